"""Speculative decoding: the rules are exact, and no drafter changes the model's text."""

import dataclasses
import functools
import itertools
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from helpers import write_hub
from hypothesis import example, given, settings, strategies as st
from scipy import stats

import dflash_lite
from dflash_lite import speculative
from dflash_lite.checkpoints import UserError
from dflash_lite.decoding import (
    COMPILE_CLOCK,
    DenseBatch,
    DenseCache,
    Generation,
    Sampling,
    State,
    decode,
    extend,
    generate,
    make_sampling,
)
from dflash_lite.eagle import new_eagle
from dflash_lite.paged_attention import PagedCache, PagedMemory
from dflash_lite.speculative import (
    Draft,
    DraftModel,
    EarlyExit,
    PromptLookup,
    Replay,
    acceptance,
    agree,
    distribution,
    draw,
    residual,
    weigh,
)

# The rules, by enumeration

VOCAB = 4  # prefixes of up to three tokens have a row each: 4 · row + 1 + token
ROWS = 1 + 4 + 16 + 64
TEMPERATURES = {f"plain {t}": {"temperature": t} for t in (0.5, 1.0, 2.0)}
CUTS = {
    "top-k": {"top_k": 2},
    "top-p": {"top_p": 0.8},
    "both": {"temperature": 1.5, "top_k": 3, "top_p": 0.9},
}
MODES = TEMPERATURES | CUTS


def row_of(prefix):
    return functools.reduce(lambda row, token: VOCAB * row + 1 + token, prefix, 0)


def random_tables(seed, vocab=VOCAB):
    """Logits of the model and of a drafter, behind every prefix."""
    tables = np.random.default_rng(seed).normal(0, 1.5, (2, ROWS, VOCAB))
    tables[:, :, vocab:] = -np.inf
    return tables.astype(np.float32)


def probabilities(logits, temperature=1.0, top_k=None, top_p=1.0):
    """What temperature, top-k and top-p leave, in float64; logits have no ties."""
    scores = np.array(logits, np.float64) / temperature
    for row in scores.reshape(-1, scores.shape[-1]):
        order = np.argsort(-row)
        row[order[top_k or len(row) :]] = -np.inf
        row[:] = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
        before = np.cumsum(row[order]) - row[order]
        row[order[before >= top_p]] = 0
        row /= row.sum()
    return scores


def sampling(rows, temperature=1.0, top_k=None, top_p=1.0, seed=0):
    full = lambda x, dtype: jnp.full(rows, x, dtype)
    keys = jax.vmap(jax.random.key)(jnp.arange(rows, dtype=jnp.uint32) + seed)
    return Sampling(
        full(temperature, jnp.float32), full(top_k or VOCAB, jnp.int32),
        full(top_p, jnp.float32), keys,
    )  # fmt: skip


def mode_of(options):
    return "truncated" if {"top_k", "top_p"} & options.keys() else "plain"


def joint(p, prefix, count):
    """The chances of the next `count` tokens, by the conditionals themselves."""
    if not count:
        return np.array(1.0)
    here = p[row_of(prefix)]
    return np.stack([here[x] * joint(p, (*prefix, x), count - 1) for x in range(VOCAB)])


class Rule(NamedTuple):
    """The parts of the rule, for planted errors to replace."""

    acceptance: Any = acceptance
    residual: Any = residual
    bonus: Any = lambda p, q: p
    neighbour: bool = False  # q of the place before


def emitted(rule, p, q, exact, block):
    """The distribution of the next block + 1 tokens, over all drafts and all refusals.

    Args:
        exact: what short outcomes are continued with.
    """
    used = q[np.append(1, np.arange(ROWS - 1) // VOCAB)] if rule.neighbour else q
    every = jnp.broadcast_to(jnp.arange(VOCAB), (ROWS, VOCAB))
    wide = [jnp.broadcast_to(x[:, None], (ROWS, VOCAB, VOCAB)) for x in (p, used)]
    kept = np.asarray(rule.acceptance(*wide, every), np.float64)
    repair = np.asarray(rule.residual(p, used), np.float64)
    bonus = np.asarray(rule.bonus(p, used), np.float64)
    q, found = np.asarray(q, np.float64), np.zeros((VOCAB,) * (block + 1))
    rest = functools.cache(functools.partial(joint, exact))
    for drafts in itertools.product(range(VOCAB), repeat=block):
        rows = [row_of(drafts[:i]) for i in range(block + 1)]
        chance = np.prod([q[row, d] for row, d in zip(rows, drafts)])
        if not chance:
            continue
        for k, row in enumerate(rows):
            refused = 1 - kept[row, drafts[k]] if k < block else 1.0
            tokens = repair[row] if k < block else bonus[row]
            for x in range(VOCAB):
                begin = (*drafts[:k], x)
                found[begin] += chance * refused * tokens[x] * rest(begin, block - k)
            chance *= 1 - refused
    return found


def error_of(rule, seed, block, options, sure=False, vocab=VOCAB):
    """By how much the tokens' distribution misses the model's, at most."""
    model, drafter = random_tables(seed, vocab)
    how, mode = sampling(ROWS, **options), mode_of(options)
    p, q = (distribution(jnp.array(x), how, mode) for x in (model, drafter))
    if sure:
        q = distribution(jnp.array(drafter), how, "greedy")
    exact = probabilities(model, **options)
    found = emitted(rule, p, q, exact, block)
    return np.abs(found - joint(exact, (), block + 1)).max()


@pytest.mark.parametrize("options", MODES.values(), ids=MODES)
@pytest.mark.parametrize("sure", [False, True], ids=["drawn", "sure"])
def test_the_rule_is_exact(options, sure):
    """For a sure drafter q is 1 at its draft: kept with p(d), and else p without d."""
    for block, vocab, seed in ((1, 4, 0), (2, 4, 1), (2, 3, 2), (3, 4, 3), (3, 3, 4)):
        assert error_of(Rule(), seed, block, options, sure, vocab) < 1e-6


def the_wrong_way_round(p, q, drafts):
    of = lambda x: jnp.take_along_axis(x, drafts[..., None], axis=-1)[..., 0]
    return jnp.minimum(1, of(q) / jnp.maximum(of(p), 1e-38))


ERRORS = {
    "no residual": Rule(residual=lambda p, q: p),
    "bonus of the drafter": Rule(bonus=lambda p, q: q),
    "q of the neighbour": Rule(neighbour=True),
    "q/p": Rule(acceptance=the_wrong_way_round),
}


@pytest.mark.parametrize("rule", ERRORS.values(), ids=ERRORS)
@pytest.mark.parametrize("sure", [False, True], ids=["drawn", "sure"])
def test_a_rule_with_an_error_is_not(rule, sure):
    for options in ({"temperature": 1.0}, CUTS["both"]):
        for block in (1, 2):  # a table may hide it
            errors = [error_of(rule, seed, block, options, sure) for seed in range(2)]
            assert not max(errors) < 1e-3


def test_the_parts_where_a_chance_is_nought():
    p = jnp.array([[0.5, 0.5, 0, 0], [0, 1, 0, 0], [0.25] * 4])
    q = jnp.array([[0, 0, 0.5, 0.5], [0, 1, 0, 0], [0.25] * 4])
    assert acceptance(p, q, jnp.array([2, 1, 3])).tolist() == [0, 1, 1]
    assert residual(p, q).tolist() == p.tolist()


def test_a_chance_of_nought_over_nought_is_a_number():
    """1e-38 is below float32's smallest normal number, and XLA takes it for zero."""
    p, q = jnp.array([[0.0, 1.0]]), jnp.array([[0.0, 1.0]])
    assert 0 <= jax.jit(acceptance)(p, q, jnp.array([0]))[0] <= 1


# The rules, drawn

MANY = 16_384
OPTIONS = {"plain": {"temperature": 1.2}, "truncated": CUTS["both"]}


def play(p_table, q_table, how, lengths, counts, mode):
    """Two drafts a row, drawn and weighed with the row's own keys."""
    rows, drawn = [jnp.zeros_like(lengths)], []
    for i in range(2):
        drawn.append(draw(q_table[rows[-1]], lengths + i, how, mode))
        rows.append(VOCAB * rows[-1] + 1 + drawn[-1][0])
    tokens, chances = (jnp.stack(x, axis=1) for x in zip(*drawn))
    logits = p_table[jnp.stack(rows, axis=1)]
    return tokens, *weigh(logits, Draft(tokens, counts, chances), lengths, how, mode)


SURE = 3, 0  # drafts


def play_surely(p_table, q_table, how, lengths, counts, mode):
    """The same two drafts for every row."""
    tokens = jnp.broadcast_to(jnp.array(SURE), (len(lengths), 2))
    logits = p_table[jnp.array([row_of(SURE[:i]) for i in range(3)])]
    logits = jnp.broadcast_to(logits, (len(lengths), 3, VOCAB))
    return tokens, *agree(logits, Draft(tokens, counts), lengths, how, mode)


def outcomes(game, options, seed=5):
    """Of many rows: drafts, accepted, bonus and counts."""
    tables = jnp.array(random_tables(seed))
    lengths, counts = 5 + jnp.arange(MANY) % 7, jnp.arange(MANY) % 4 % 3
    how, mode = sampling(MANY, **options, seed=1), mode_of(options)
    play = jax.jit(functools.partial(game, mode=mode))  # anew, as parts may be patched
    found = play(*tables, how, lengths, counts)
    return [np.asarray(x) for x in (*found, counts)]


def pvalue(found, expected):
    """Chi-square of counts; cells that are rarely hit are taken together."""
    found, expected = found.ravel(), expected.ravel() * found.sum()
    assert (found[expected == 0] == 0).all()
    rare = expected < 8
    if rare.any():
        found = np.append(found[~rare], found[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    found, expected = found[expected > 0], expected[expected > 0]
    return stats.chisquare(found, expected).pvalue


def p_of_texts(game, options):
    """Whether the next three tokens are drawn as the model alone would draw them."""
    tokens, accepted, bonus, counts = outcomes(game, options)
    exact = probabilities(random_tables(5)[0], **options)
    luck, found = np.random.default_rng(0), np.zeros((VOCAB,) * 3)
    assert (accepted <= counts).all() and len(set(accepted)) == 3
    texts = np.concatenate([tokens, bonus[:, None]], axis=1)
    texts[np.arange(MANY), accepted] = bonus
    for at in (1, 2):  # short ones go on with the model's own draws
        rows = functools.reduce(lambda row, x: VOCAB * row + 1 + x, texts.T[:at], 0)
        ends = exact[rows].cumsum(1)
        own = (luck.random((MANY, 1)) * ends[:, -1:] >= ends).sum(1)
        texts[:, at] = np.where(at > accepted, own, texts[:, at])
    np.add.at(found, tuple(texts.T), 1)
    return pvalue(found, joint(exact, (), 3))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("game", [play, play_surely])
def test_texts_are_drawn_as_without_drafts(game, options):
    """Chi-square with fixed keys; rows have two drafts, one, or none."""
    assert p_of_texts(game, options) > 1e-2


def p_of_outcomes(found, p, q):
    """Of drafts, accepted and bonus together, as the rule's definition gives them."""
    expected = np.zeros((VOCAB, VOCAB, 3, VOCAB))
    for drafts in itertools.product(range(VOCAB), repeat=2):
        rows = [row_of(drafts[:i]) for i in range(3)]
        chance = q[rows[0], drafts[0]] * q[rows[1], drafts[1]]
        for k, row in enumerate(rows):
            if k == 2:
                expected[(*drafts, k)] = chance * p[row]
            elif chance > 0:
                kept = min(1, p[row, drafts[k]] / q[row, drafts[k]])
                left = np.maximum(p[row] - q[row], 0)
                if left.sum():
                    expected[(*drafts, k)] = chance * (1 - kept) * left / left.sum()
                chance *= kept
    table, (tokens, accepted, bonus, given) = np.zeros_like(expected), found
    np.add.at(table, (*tokens.T, accepted, bonus), given == 2)
    return pvalue(table, expected)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_outcomes_are_as_frequent_as_the_rule_says(options):
    p, q = (probabilities(x, **options) for x in random_tables(5))
    found = outcomes(play, options)
    assert p_of_outcomes(found, p, q) > 1e-2
    wrong = np.roll(q, 1, axis=0)
    with pytest.raises(AssertionError):  # it has teeth
        assert p_of_outcomes(found, p, wrong) > 1e-6
    sure = np.zeros_like(q)
    for token, row in zip(SURE, (0, row_of(SURE[:1]))):
        sure[row, token] = 1
    assert p_of_outcomes(outcomes(play_surely, options), p, sure) > 1e-2


@pytest.mark.parametrize(
    "one, other, seed",
    [("DRAFTS", "REFUSALS", 5), ("DRAFTS", "REPAIRS", 12), ("REFUSALS", "REPAIRS", 7)],
)
def test_the_same_random_numbers_twice_are_seen(monkeypatch, one, other, seed):
    """Each seed is one whose tables show the error well."""
    options = OPTIONS["plain"]
    p, q = (probabilities(x, **options) for x in random_tables(seed))
    monkeypatch.setattr(speculative, other, getattr(speculative, one))
    assert p_of_outcomes(outcomes(play, options, seed), p, q) < 1e-6
    monkeypatch.undo()
    assert p_of_outcomes(outcomes(play, options, seed), p, q) > 1e-2


# Tokens at the end of texts

WIDE = 8
ROW = st.fixed_dictionaries(
    {
        "length": st.integers(1, WIDE),
        "limit": st.integers(1, WIDE),
        "stopped": st.sampled_from([False, False, True]),
        "count": st.integers(0, 4),
        "new": st.lists(st.integers(0, 5), min_size=4, max_size=4),
    }
)
run_extend = jax.jit(extend)


@given(st.lists(ROW, min_size=3, max_size=3), st.tuples(*[st.integers(-1, 5)] * 2))
@settings(max_examples=100, deadline=None)
def test_extend_adds_what_is_wanted(rows, stops):
    tokens = 10 + np.arange(3 * WIDE, dtype=np.int32).reshape(3, WIDE)
    numbers = lambda name: np.array([row[name] for row in rows], np.int32)
    stopped = np.array([row["stopped"] for row in rows])
    state = State(tokens, numbers("length"), numbers("limit"), stopped, None)
    new = run_extend(state, numbers("new"), numbers("count"), np.array(stops, np.int32))
    for i, row in enumerate(rows):
        text, end = tokens[i, : row["length"]].tolist(), row["stopped"]
        for token in row["new"][: row["count"]]:
            if end or len(text) >= row["limit"]:
                break
            end = token in stops
            text += [token] * (not end)
        assert new.tokens[i].tolist() == text + tokens[i, len(text) :].tolist()
        assert (new.lengths[i], new.stopped[i]) == (len(text), end)
        assert new.done[i] == (end or len(text) >= row["limit"])


# The same text, greedily

CONTEXT, TOKENS, CAPACITY = 28, 12, 32  # few tokens, so that drafts are often right
LENGTHS = 5, 16, 9
NO_STOPS = -1, -2


def small(folder, seed, mixed):
    """A random model; layers that mix in less of the past write more regular texts."""
    hub = write_hub(
        folder / f"{seed}", seed, max_position_embeddings=CONTEXT, tie_word_embeddings=False
    )
    model, tokenizer = dflash_lite.load(hub)
    model.config = dataclasses.replace(model.config, vocab_size=TOKENS)
    for name in ("embed_tokens", "lm_head"):
        setattr(model, name, nnx.Param(getattr(model, name)[...][:TOKENS]))
    for layer in model.layers:
        weigh_down(layer, mixed)
    return model, tokenizer


def weigh_down(layer, factor):
    for linear in (layer.self_attn.o_proj, layer.mlp.down_proj):
        linear.weight = nnx.Param(linear.weight[...] * factor)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Two models to write, one to draft, and the lively one without its second layer."""
    folder = tmp_path_factory.mktemp("models")
    made = {
        "lively": small(folder, 5, 1.0), "calm": small(folder, 6, 0.2),
        "other": small(folder, 7, 0.2), "shallow": small(folder, 5, 1.0),
    }  # fmt: skip
    weigh_down(made["shallow"][0].layers[1], 0.0)
    return made


def prompts_of(seed):
    """Of unequal lengths; the second repeats itself."""
    short, long, other = (np.random.default_rng([seed, n]).integers(0, TOKENS, n) for n in LENGTHS)
    return [short.tolist(), [*long[:5], *long[:5], *long[:5], long[0]], other.tolist()]


def write(pair, prompts, new, stops=NO_STOPS, **options):
    tokenizer = dataclasses.replace(pair[1], stop_ids=stops)
    return generate(pair[0], tokenizer, prompts, max_new_tokens=new, **options)


def known(prompts, texts):
    answers = np.full((len(prompts), CAPACITY), -1, np.int32)
    for row, prompt, text in zip(answers, prompts, texts):
        row[: len(prompt) + len(text)] = prompt + text
    return answers


class Case(NamedTuple):
    """A drafter, and where the cache lies."""

    name: str
    drafts: int
    page: int | None = None

    def drafters(self, pairs, model, prompts, texts):
        """Good ones and bad ones of the kind, for one program."""
        answers = known(prompts, texts)
        half = np.where(np.arange(CAPACITY) % 5 == 2, -1, answers)
        return {
            "replay": [Replay(answers, self.drafts + 1, share) for share in (1.0, 0.7, 0.0)]
            + [Replay(half, self.drafts + 1, 1.0)],
            "lookup": [PromptLookup(self.drafts + 1, 1, 3)],
            "exit": [EarlyExit(1, self.drafts + 1)],
            "model": [DraftModel(pairs[name][0], self.drafts + 1) for name in ("other", model)],
            "eagle": [new_eagle(pairs[model][0], self.drafts + 1, (0, 1))],
        }[self.name]

    def memory(self, model):
        return self.page and PagedMemory(model, 16 * 8 // self.page, self.page)


DENSE = [
    Case("replay", 7), Case("replay", 1), Case("lookup", 3), Case("exit", 3), Case("model", 7),
    Case("eagle", 3),
]  # fmt: skip
PAGED = [
    Case("replay", 3, 16), Case("lookup", 7, 16), Case("exit", 1, 8), Case("model", 3, 8),
    Case("eagle", 4, 16),
]  # fmt: skip
CASES = DENSE + PAGED


def name_of(case):
    return "-".join(str(part) for part in case if part)


@jax.jit
def scores_of(model, tokens):
    return model.logits(model(tokens).hidden)


def all_scores(model, texts):
    """Logits behind every token, without a cache."""
    padded = np.zeros((3, CAPACITY), np.int32)
    for row, text in zip(padded, texts):
        row[: len(text)] = text
    return np.asarray(scores_of(model, padded), np.float64)


TIES = []  # places where two tokens were as good as equal


def assert_same(model, prompts, found, expected):
    """Token for token, and the same ends; but a near-tie may fall either way."""
    for prompt, one, other in zip(prompts, found, expected):
        if one.tokens == other.tokens:
            assert one.finish_reason == other.finish_reason
            assert one.text == other.text
            continue
        pairs = enumerate(itertools.zip_longest(one.tokens, other.tokens))
        at, (a, b) = next((i, pair) for i, pair in pairs if pair[0] != pair[1])
        assert a is not None and b is not None, f"{one.tokens} for {other.tokens}"
        row = all_scores(model, [prompt + other.tokens[:at]])[0, len(prompt) + at - 1]
        assert abs(row[a] - row[b]) < 1e-4, f"token {at}: {a} for {b}, {abs(row[a] - row[b])}"
        TIES.append((prompt, at))
    assert len(TIES) < 3, TIES


@pytest.mark.parametrize("case", CASES, ids=name_of)
@pytest.mark.parametrize("name", ["lively", "calm"])
def test_a_greedy_text_stays_what_it_is(pairs, name, case):
    """At every limit, in the context's last tokens, and with stops inside a block."""
    pair, prompts = pairs[name], prompts_of(1)
    whole = write(pair, prompts, 20)
    assert [len(g.tokens) for g in whole] == [20, CONTEXT - 16, CONTEXT - 9]
    texts, memory = [g.tokens for g in whole], case.memory(pair[0])
    stops = [(texts[row][at], NO_STOPS[1]) for row, at in ((0, 2), (1, 4), (2, 9))]
    ends = [(new, NO_STOPS) for new in (*range(1, 13), 20)]
    ends += [(20, stop) for stop in stops] + [(20, (stops[0][0], stops[2][0]))]
    for drafter in case.drafters(pairs, name, prompts, texts):
        for new, stop in ends:
            options = {"drafter": drafter, "memory": memory}
            found = write(pair, prompts, new, stop, **options)
            plain = []
            for text, prompt in zip(texts, prompts):
                text = text[: min(new, CONTEXT - len(prompt))]
                at = [i for i, token in enumerate(text) if token in stop]
                text, why = (text[: at[0]], "stop") if at else (text, "length")
                said = pair[1].decode(text)
                plain.append(Generation(text, said, why, None))
            assert_same(pair[0], prompts, found, plain)


def test_plain_decoding_ends_where_these_tests_say(pairs):
    prompts = prompts_of(1)
    whole = write(pairs["calm"], prompts, 20)
    stop = whole[0].tokens[2], whole[2].tokens[9]
    for text, found in zip(whole, write(pairs["calm"], prompts, 11, stop)):
        at = [i for i, token in enumerate(text.tokens[:11]) if token in stop]
        assert found.tokens == text.tokens[: at[0] if at else 11]
        assert found.finish_reason == ("stop" if at else "length")


def watched(pair, prompts, new, drafter, **options):
    """The texts, and what was seen after prefill and after every step."""
    looks = []
    found = write(pair, prompts, new, drafter=drafter, watch=looks.append, **options)
    return found, looks


def verified(draft, text):
    """How many drafts come true."""
    wrong = [i for i, (a, b) in enumerate(zip(draft, text)) if a != b]
    return wrong[0] if wrong else min(len(draft), len(text))


@pytest.mark.parametrize("case", DENSE, ids=name_of)
def test_each_step_says_what_it_did(pairs, case):
    """Drafts, tokens and probabilities of the last step; and the counts of all steps."""
    pair, prompts = pairs["calm"], prompts_of(2)
    texts = [p + g.tokens for p, g in zip(prompts, write(pair, prompts, 20))]
    answers = [text[len(p) :] for text, p in zip(texts, prompts)]
    logits, different = all_scores(pair[0], texts), 0
    for drafter in case.drafters(pairs, "calm", prompts, answers):
        found, looks = watched(pair, prompts, 20, drafter)
        steps, places = 0, range(case.drafts)
        drafted, accepted = ([0] * case.drafts for _ in "da")
        for before, after in itertools.pairwise(looks):
            last, counts = after.report.last, set()
            for row in np.flatnonzero(~before.done):
                start, end = before.lengths[row], len(texts[row])
                n, right = last.counts[row], last.accepted[row]
                draft, here = last.drafts[row].tolist(), texts[row][start:]
                assert n <= min(case.drafts, end - start - 1)
                assert right == verified(draft[:n], here)
                assert draft[:right] + [last.bonus[row]] == here[: right + 1]
                assert after.lengths[row] == start + right + 1
                target = np.exp(logits[row, start + right - 1])
                p = target[draft[right]] / target.sum() if right < n else 0
                np.testing.assert_allclose(last.target[row], p, atol=1e-5)
                assert last.drafter[row] == 0, "these drafters are sure"
                steps += 1
                drafted = [x + (i < n) for i, x in zip(places, drafted)]
                accepted = [x + (i < right) for i, x in zip(places, accepted)]
                counts.add(right)
            different += len(counts) > 1
        statistics = found[0].statistics
        assert (statistics.drafted, statistics.accepted) == (drafted, accepted)
        assert statistics.decode_steps == steps
        new = sum(len(g.tokens) for g in found)
        assert statistics.acceptance_length == (new - 3) / steps
        assert [g.tokens for g in found] == answers
    assert different, "rows accept different counts in one step"


# What is accepted, and what the cache holds


def steps_of(model, prompts, new, drafter, memory=None, steps=1):
    """The state after prefill and after every step, as `generate` goes through them."""
    lengths = np.array([len(p) for p in prompts], np.int32)
    limits = np.minimum(lengths + new, CONTEXT)
    how, mode = make_sampling(model, len(prompts), 0.0, None, None, 0)
    stops = jnp.array(NO_STOPS, jnp.int32)
    batch = (DenseBatch if memory is None else memory.batch)(model, prompts, limits, drafter)
    state = batch.prefill(stops, how, mode)
    seen = batch.commit(state)
    yield state
    while not seen.done.all():
        cache = batch.make_room(seen.lengths, steps * drafter.block)
        parts = (state._replace(cache=cache), stops, how, np.int32(steps), mode, drafter)
        state = decode(model, *parts)
        seen = batch.commit(state)
        yield state
    batch.release()


@jax.jit
def one_run(model, tokens, cache):
    return model(tokens, cache=cache).cache


def assert_holds(model, cache, tokens, lengths):
    """The cache holds the first so many positions, as one run over the tokens gives them."""
    empty = DenseCache.empty(model.config, len(tokens), CAPACITY, jnp.float32)
    whole, cache = jax.device_get((one_run(model, tokens, empty), cache))
    arrays = cache.keys + cache.values
    if isinstance(cache, PagedCache):
        held = [x[np.maximum(cache.at.tables, 0)].swapaxes(1, 2) for x in arrays]
        arrays = [x.reshape(*x.shape[:2], -1, x.shape[-1]) for x in held]
    for found, expected in zip(arrays, whole.keys + whole.values, strict=True):
        for row, n in enumerate(lengths):
            inside = np.s_[row, :, :n]
            np.testing.assert_allclose(found[inside], expected[inside], atol=1e-4)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_the_state_keeps_its_promise(pairs, case):
    """After each step the cache holds positions 0 to length - 2; a draft model's, one fewer."""
    (model, _), prompts = pairs["lively"], prompts_of(3)
    texts = [g.tokens for g in write(pairs["lively"], prompts, 20)]
    for drafter in case.drafters(pairs, "lively", prompts, texts):
        for state in steps_of(model, prompts, 20, drafter, case.memory(model)):
            tokens, lengths = jax.device_get((state.tokens, state.lengths))
            assert_holds(model, state.cache, tokens, lengths - 1)
            for row, prompt in zip(tokens, prompts):
                assert row[: len(prompt)].tolist() == prompt
            if case.name == "model":
                assert_holds(drafter.model, state.progress.memory, tokens, lengths - 2)
        for row, n, prompt, text in zip(tokens, lengths, prompts, texts):
            assert row[:n].tolist() == prompt + text


def right_in(case, pairs, prompts):
    """A model, and a drafter that is never wrong for it."""
    name = "shallow" if case.name == "exit" else "lively"
    texts = [g.tokens for g in write(pairs[name], prompts, 20)]
    drafter = {
        "replay": lambda: Replay(known(prompts, texts), case.drafts + 1),
        "exit": lambda: EarlyExit(1, case.drafts + 1),
        "model": lambda: DraftModel(pairs[name][0], case.drafts + 1),
    }[case.name]()
    return pairs[name], drafter


def assert_all_right(found, block):
    """Each step adds block + 1 tokens, or all that are left."""
    drafted, steps, new = [0] * block, 0, 0
    for left in (len(g.tokens) - 1 for g in found):
        new += left
        while left:
            steps += 1
            added = min(block + 1, left)
            drafted = [n + (i < added - 1) for i, n in enumerate(drafted)]
            left -= added
    statistics = found[0].statistics
    assert (statistics.drafted, statistics.accepted) == (drafted, drafted)
    assert statistics.decode_tokens == new and statistics.decode_steps == steps
    assert statistics.acceptance_length == (new / steps if steps else 0)


SURELY = [case for case in CASES if case.name not in ("lookup", "eagle")]


@pytest.mark.parametrize("case", SURELY, ids=name_of)
def test_who_knows_the_text_is_always_right(pairs, case):
    """With stops from nowhere and at every limit; a hole in a cache would show."""
    for seed in (5, 6, 7):
        prompts = prompts_of(seed)
        pair, drafter = right_in(case, pairs, prompts)
        for new in (20, 6, 3, 2, 1):
            memory = case.memory(pair[0])
            assert_all_right(write(pair, prompts, new, drafter=drafter, memory=memory), case.drafts)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_beginning_that_is_found_is_read_by_the_draft_model(pairs, seed):
    case = Case("model", 3, 8)
    pair, drafter = right_in(case, pairs, prompts_of(seed))
    prompts, memory = prompts_of(seed), case.memory(pair[0])
    first = write(pair, prompts, 12, memory=memory, drafter=drafter)
    assert [len(memory.pool.find(p)) for p in prompts] == [0, 1, 1]
    again = write(pair, prompts, 12, memory=memory, drafter=drafter)
    for found in (first, again):
        assert_all_right(found, 3)
    assert [g.tokens for g in again] == [g.tokens for g in first]
    assert memory.pool.pages.available == 16


def test_a_stop_token_ends_the_report_of_its_row(pairs):
    """Drafts behind the stop were verified, and a row that has ended is counted no more."""
    pair, prompts = pairs["lively"], prompts_of(1)
    texts = [g.tokens for g in write(pair, prompts, 20)]
    drafter = Replay(known(prompts, texts), 8)
    stop = texts[0][3]
    ends = [t.index(stop) if stop in t else len(t) for t in texts]
    found = write(pair, prompts, 20, (stop, -2), drafter=drafter)
    assert [len(g.tokens) for g in found] == ends
    steps = 0
    for text, end in zip(texts, ends):
        left = min(end + 1, len(text)) - 1  # with the stop, without the first
        steps += -(-left // 8)
    assert found[0].statistics.decode_steps == steps


# Looking up


def looked_up(text, block, least, most):
    """By trying every place."""
    best = 0, -1
    for place in range(len(text) - 1):
        agreed = 0
        while agreed < min(most, place + 1) and text[place - agreed] == text[-1 - agreed]:
            agreed += 1
        best = max(best, (agreed, place))
    agreed, place = best
    return text[place + 1 :][:block] if agreed >= least else []


@functools.partial(jax.jit, static_argnames="drafter")
def look_up(tokens, lengths, drafter):
    return drafter.draft(None, State(tokens, lengths, None, None, None), None, "greedy")[0]


RULES = [(least, most) for most in range(1, 5) for least in range(1, most + 1)]


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=16), min_size=2, max_size=2),
    st.sampled_from(RULES),
    st.integers(0, 2),
)
@example([[0, 1, 2, 0, 1, 1, 0, 1], [0]], (2, 4), 0)
@example([[0, 0, 0], [1, 1, 1, 1]], (1, 1), 1)
@settings(max_examples=100, deadline=None)
def test_what_is_looked_up(texts, rule, rest):
    """What lies behind a text's length is not part of it."""
    tokens = np.full((2, 16), rest, np.int32)
    for row, text in zip(tokens, texts):
        row[: len(text)] = text
    lengths = np.array([len(text) for text in texts], np.int32)
    draft = look_up(tokens, lengths, PromptLookup(4, *rule))
    for row, n, text in zip(np.asarray(draft.tokens), draft.counts, texts):
        assert row[:n].tolist() == looked_up(text, 3, *rule)
    assert draft.chances is None


# Drawn texts

DRAWN = {
    "plain": ({"temperature": 1.2}, Case("replay", 7)),
    "truncated": ({"temperature": 1.2, "top_k": 8, "top_p": 0.95}, Case("lookup", 3)),
}


@pytest.mark.parametrize("options, case", DRAWN.values(), ids=DRAWN)
def test_a_sure_drafter_changes_no_drawn_text(pairs, options, case):
    """A draft is accepted if it is the token that the model draws with its own noise."""
    pair, prompts, accepted = pairs["calm"], prompts_of(1), 0
    for seed in range(2):
        expected = [write(pair, prompts, 20, seed=s, **options) for s in (seed, seed + 1)]
        texts = [[g.tokens for g in found] for found in expected]
        drafters = [PromptLookup(4, 1, 3)]
        if case.name == "replay":
            answers = [known(prompts, tokens) for tokens in texts]
            shares = (answers[0], 1.0), (answers[0], 0.5), (answers[1], 1.0)
            drafters = [Replay(answer, 8, share) for answer, share in shares]
        for drafter in drafters:
            found = write(pair, prompts, 20, seed=seed, drafter=drafter, **options)
            assert [g.tokens for g in found] == texts[0]
            accepted += sum(found[0].statistics.accepted)
        assert texts[0] != texts[1]
    assert accepted > 4


UNSURE = {
    "exit": {"temperature": 1.3},
    "model": {"temperature": 1.3, "top_k": 8, "top_p": 0.95},
    "eagle": {"temperature": 1.3},
}


@pytest.mark.parametrize("kind, options", UNSURE.items(), ids=UNSURE)
def test_drawn_texts_are_as_likely_as_the_model_says(pairs, kind, options):
    """Three tokens of many rows; and what the first step says of its drafts."""
    (model, _), count = pairs["lively"], 1024
    # both draft with what the model "shallow" would say
    name = "shallow" if kind == "exit" else "other"
    drafter = {
        "exit": lambda: EarlyExit(1, 4),
        "model": lambda: DraftModel(pairs[name][0], 4),
        "eagle": lambda: new_eagle(model, 4, (0, 1)),
    }[kind]()
    prompt = prompts_of(4)[0]
    settings = [options.get(key) for key in ("temperature", "top_k", "top_p")]
    how, mode = make_sampling(model, count, *settings, 0)
    stops, n = jnp.array(NO_STOPS, jnp.int32), len(prompt)
    batch = DenseBatch(model, [prompt] * count, np.full(count, n + 5, np.int32), drafter)
    state = batch.prefill(stops, how, mode)
    state = decode(model, state, stops, how, np.int32(1), mode, drafter)
    seen = batch.commit(state)
    state = decode(model, state, stops, how, np.int32(9), mode, drafter)
    tokens = batch.commit(state).tokens[:, n : n + 3]

    texts = [[*prompt, *ab] for ab in itertools.product(range(TOKENS), repeat=2)]
    logits = np.asarray(scores_of(model, np.array(texts)), np.float64)[:, n - 1 :]
    p = probabilities(logits, **options).reshape(TOKENS, TOKENS, 3, TOKENS)
    first, second = p[0, 0, 0][:, None], p[:, 0, 1]
    whole = (first * second)[..., None] * p[:, :, 2]
    found = np.zeros(whole.shape)
    np.add.at(found, tuple(tokens.T), 1)
    for axis in range(3):
        assert pvalue(found.sum(axis), whole.sum(axis)) > 1e-2

    last = seen.report.last
    assert (last.counts == 3).all() and {0, 1, 2, 3} == set(last.accepted)
    refused = last.accepted < 3
    assert (last.target[~refused] == 0).all() and (last.drafter[~refused] == 0).all()
    rows = [np.flatnonzero(last.accepted == k)[0] for k in range(3)]
    texts = [[*seen.tokens[r, : n + 1], *last.drafts[r, :k]] for k, r in enumerate(rows)]
    speakers = [(model, last.target), (pairs[name][0], last.drafter)]
    if kind == "eagle":
        speakers.pop()  # test_eagle.py has its chances
    for which, said in speakers:
        scores = all_scores(which, texts)
        for k, row in enumerate(rows):
            chance = probabilities(scores[k, n + k], **options)[last.drafts[row, k]]
            np.testing.assert_allclose(said[row], chance, atol=1e-5)


# The loop


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_no_program_after_warm_up(pairs, case):
    """Other prompts of a bucket, other limits, stops and drafters: the same programs."""
    pair, memory = pairs["calm"], case.memory(pairs["calm"][0])
    for seed in (8, 8, 9, 10):
        if seed == 9:
            count = COMPILE_CLOCK.count
        prompts = [p[: 12 - seed] for p in prompts_of(seed)[:2]] + prompts_of(seed)[1:2]
        texts = [[seed] * 4] * 3
        for drafter in case.drafters(pairs, "calm", prompts, texts):
            write(pair, prompts, seed, (seed, -2), drafter=drafter, memory=memory)
    assert COMPILE_CLOCK.count == count


def parts_of(pairs, case):
    """A state that can be decoded, and all else that decoding needs."""
    (model, _), prompts = pairs["calm"], prompts_of(1)
    drafter = case.drafters(pairs, "calm", prompts, [[1] * 9] * 3)[0]
    if case.name == "replay":
        drafter = jax.device_put(drafter)
    state = next(steps_of(model, prompts, 12, drafter))
    how, mode = make_sampling(model, 3, 0.0, None, None, 0)
    stops, steps = jnp.array(NO_STOPS, jnp.int32), jax.device_put(np.int32(2))
    return model, state, stops, how, steps, mode, drafter


@pytest.mark.parametrize("case", DENSE, ids=name_of)
def test_the_loop_asks_nobody_and_works_in_place(pairs, case):
    """The state is given away: its arrays are deleted, and caches stay where they are."""
    decode(*parts_of(pairs, case))  # compiles
    model, state, *rest = parts_of(pairs, case)
    caches = lambda state: jax.tree.leaves((state.cache, state.progress.memory))
    old = jax.tree.leaves(state)
    where = [x.unsafe_buffer_pointer() for x in caches(state)]
    with jax.transfer_guard("disallow"):
        new = decode(model, state, *rest)
    assert all(x.is_deleted() for x in old)
    assert [x.unsafe_buffer_pointer() for x in caches(new)] == where
    text = decode.lower(model, new, *rest).as_text()
    assert [w for w in ("callback", "infeed", "outfeed", "send", "recv") if w in text] == []


# What is refused


@pytest.mark.parametrize("block", [1, 0, -3, 1.5, True, "3", None])
@pytest.mark.parametrize("kind", ["lookup", "exit", "model", "replay"])
def test_a_block_is_a_whole_number(pairs, kind, block):
    make = {
        "lookup": PromptLookup,
        "exit": functools.partial(EarlyExit, 1),
        "model": functools.partial(DraftModel, pairs["other"][0]),
        "replay": functools.partial(Replay, np.zeros((1, 4), np.int32)),
    }[kind]
    with pytest.raises(UserError, match=f"block is {block!r}; expected a whole number of 2"):
        write(pairs["calm"], [[1, 2]], 1, drafter=make(block))


@pytest.mark.parametrize("least, most", [(3, 2), (0, 2), (1.0, 2), (True, 2), (1, "2"), (-1, -1)])
def test_tokens_that_must_agree(least, most):
    with pytest.raises(UserError, match=f"least is {least!r} and most is {most!r}; expected"):
        PromptLookup(3, least, most)


@pytest.mark.parametrize("layers", [0, -1, 2, 7, 1.0, True, "1", None])
def test_layers_to_exit_from(pairs, layers):
    with pytest.raises(UserError, match=f"layers is {layers!r}; expected .* from 1 to 1, .* has 2"):
        write(pairs["calm"], [[1]], 3, drafter=EarlyExit(layers))


def test_a_draft_model_with_another_vocabulary(pairs, tmp_path):
    model = dflash_lite.load(write_hub(tmp_path, num_hidden_layers=1))[0]
    with pytest.raises(UserError, match="has 267 tokens, the model 12; expected the same"):
        write(pairs["calm"], [[1]], 3, drafter=DraftModel(model))


@pytest.mark.parametrize("kind", [PromptLookup, functools.partial(EarlyExit, 1), "model", "replay"])
def test_a_block_beyond_the_context(pairs, kind):
    """It would only take memory; the logits of a large one do not fit into any."""
    if kind == "model":
        kind = functools.partial(DraftModel, pairs["other"][0])
    if kind == "replay":
        kind = functools.partial(Replay, np.zeros((1, 4), np.int32))
    with pytest.raises(UserError, match=rf"block is {CONTEXT + 1}; expected at most .*{CONTEXT} "):
        write(pairs["calm"], [[1, 2]], 3, drafter=kind(block=CONTEXT + 1))
    found = write(pairs["calm"], [[1, 2]], 3, drafter=kind(block=CONTEXT))
    assert found[0].tokens == write(pairs["calm"], [[1, 2]], 3)[0].tokens


ANSWER = np.array([[1, 2, 3, 4]], np.int32)


@pytest.mark.parametrize("answers, share, words", [
    (ANSWER[0], 1.0, r"answers has the shape \(4,\)"),
    (ANSWER * 1.0, 1.0, "answers has .* float64; expected token ids"),
    (np.repeat(ANSWER, 2, 0), 1.0, "answers has 2 rows for 1 texts"),
    (ANSWER, 1.5, "share is 1.5; expected a number from 0 to 1"),
    (ANSWER, np.nan, "share is nan"), (ANSWER, "1", "share is '1'"),
    (ANSWER, None, "share is None"),
    (ANSWER, ANSWER, "share is array"),
])  # fmt: skip
def test_a_replay_that_is_none(pairs, answers, share, words):
    with pytest.raises(UserError, match=words):
        write(pairs["calm"], [[1, 2]], 3, drafter=Replay(answers, 3, share))


@pytest.mark.parametrize("model", [None, "qwen", ("model", "tokenizer")])
def test_a_draft_model_that_is_none(pairs, model):
    with pytest.raises(UserError, match="draft model is .*the first of the two that .*load"):
        write(pairs["calm"], [[1, 2]], 3, drafter=DraftModel(model))


@speculative.as_drafter("parts")
class Own(speculative.Speculative):
    """A drafter that returns what it is told."""

    parts: tuple  # shapes and kinds of tokens, counts and chances
    block: ClassVar[int] = 4

    def draft(self, model, state, sampling, mode):
        make = lambda part: None if part is None else jnp.full(part[0], 3, part[1])
        return Draft(*map(make, self.parts)), state


RIGHT = (((2, 3), "int32"), ((2,), "int32"), None)


@pytest.mark.parametrize("place, part, words", [
    (0, ((2, 2), "int32"), r"tokens of shape \(2, 2\) and type int32; expected \(2, 3\), integer"),
    (0, ((2, 4), "int32"), "tokens of shape"), (0, ((3,), "int32"), "tokens of shape"),
    (0, ((2, 3), "float32"), "tokens .*type float32"), (0, ((2, 3), "bool"), "tokens .*type bool"),
    (1, ((2,), "float32"), "counts .*type float32"), (1, ((), "int32"), "counts of shape"),
    (1, ((1,), "int32"), "counts of shape"), (1, ((2, 3), "int32"), "counts of shape"),
    (2, ((2, 3, 5), "float32"), "chances of shape"), (2, ((2, 3, 12), "int32"), "chances .*int32"),
    (2, ((2, 3, 12), "bool"), "chances .*bool; expected .*, floating"),
])  # fmt: skip
def test_a_draft_of_the_wrong_shape_is_named(pairs, place, part, words):
    parts = (*RIGHT[:place], part, *RIGHT[place + 1 :])
    with pytest.raises(UserError, match=f"Own.draft returns {words}"):
        write(pairs["calm"], [[1, 2], [3]], 3, drafter=Own(parts))


@pytest.mark.parametrize("kinds", ["uint32 int32", "int16 int8", "uint8 uint32"])
def test_a_draft_may_have_any_whole_numbers(pairs, kinds):
    parts = [(shape, kind) for (shape, _), kind in zip(RIGHT, kinds.split())]
    found = write(pairs["calm"], [[1, 2], [3]], 9, drafter=Own((*parts, None)))
    assert [g.tokens for g in found] == [g.tokens for g in write(pairs["calm"], [[1, 2], [3]], 9)]


@pytest.mark.parametrize("token, count", [(10**6, 3), (-1, 3), (3, 10**6), (3, -5)])
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0}], ids=["greedy", "drawn"])
def test_values_out_of_range_change_no_text(pairs, token, count, options):
    @speculative.as_drafter("block")
    class Wild(speculative.Speculative):
        block: int = 4

        def draft(self, model, state, sampling, mode):
            rows = len(state.tokens)
            return Draft(jnp.full((rows, 3), token), jnp.full(rows, count)), state

    prompts = [[1, 2], [3]]
    found = write(pairs["lively"], prompts, 9, drafter=Wild(), **options)
    plain = write(pairs["lively"], prompts, 9, **options)
    assert [g.tokens for g in found] == [g.tokens for g in plain]


def test_drafters_that_are_not_whole(pairs):
    class NoPytree(speculative.Speculative):
        block = 4

        def draft(self, model, state, sampling, mode):
            return None

    @speculative.as_drafter("block")
    class NoDraft(speculative.Speculative):
        block: int = 4

    @speculative.as_drafter("block")
    class NoPair(NoDraft):
        def draft(self, model, state, sampling, mode):
            return Draft(jnp.zeros((1, 3), int), jnp.zeros(1, int))

    for drafter, words in (
        (NoPytree(), r"NoPytree is no pytree; put @as_drafter\("),
        (NoDraft(), "NoDraft has no method `draft`; expected"),
        (NoPair(), "NoPair.draft returns Draft.*expected a Draft and the state"),
    ):
        with pytest.raises(UserError, match=words):
            write(pairs["calm"], [[1, 2]], 3, drafter=drafter)


def test_parts_that_are_none(pairs):
    pair, other = pairs["calm"], PagedMemory(pairs["other"][0], 4, 8)
    for drafter in (5, "lookup", object(), PromptLookup):
        with pytest.raises(UserError, match=r"drafter is .*expected one of chapter 6.*None"):
            write(pair, [[1]], 3, drafter=drafter)
    for memory in (other, 16, "paged", PagedMemory):
        with pytest.raises(UserError, match=r"memory is .*expected a PagedMemory of this model"):
            write(pair, [[1]], 3, memory=memory)


def test_near_ties_are_rare():
    assert len(TIES) < 3
