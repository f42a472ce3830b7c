"""Chapter 9 against obvious loops: what a block sees, what training and drafting have in common."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import END, write_hub
from hypothesis import given, settings, strategies as st

from dflash_lite import block_diffusion as bd, training
from dflash_lite.checkpoints import UserError
from dflash_lite.decoding import decode, generate, make_sampling, prefill
from dflash_lite.paged_attention import PagedMemory
from dflash_lite.transformer import attention, load

MASK = END + 1  # a token that no text here contains
CAPACITY = 64


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A random target and its tokenizer."""
    return load(write_hub(tmp_path_factory.mktemp("target") / "hub"))


@pytest.fixture(scope="module")
def drafter(pair):
    """Random, with weights so large that everything matters."""
    found = bd.BlockDrafter.new(pair[0], MASK, hidden_size=32, block=5, seed=3)
    louder = lambda x: x * 8 if x.ndim > 1 else x
    return dataclasses.replace(found, model=jax.tree.map(louder, found.model), anchors=6)


def texts(rows=3, length=24, seed=0):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(14, length + 1, rows)
    tokens = rng.integers(1, 250, (rows, length)) * (np.arange(length) < lengths[:, None])
    starts = np.array([3, 1, 8][:rows])
    return training.Batch(jnp.array(tokens), jnp.array(lengths), jnp.array(starts))


# Attention

@settings(max_examples=20)
@given(
    st.integers(1, 2), st.sampled_from([(1, 1), (4, 2), (3, 3)]), st.integers(1, 4),
    st.lists(st.integers(1, 6), min_size=1, max_size=3), st.integers(0, 2**31),
)  # fmt: skip
def test_attention_over_parts_is_attention(batch, heads, queries, sizes, seed):
    rng = np.random.default_rng(seed)
    count, kv = heads
    q = rng.normal(size=(batch, queries, count, 8)).astype(np.float32)
    parts = [
        bd.Part(
            *rng.normal(size=(2, batch, kv, size, 8)).astype(np.float32),
            rng.random((batch, queries, size)) < 0.6,
        )
        for size in sizes
    ]
    joined = bd.Part(*(np.concatenate(x, 2 if x[0].ndim == 4 else -1) for x in zip(*parts)))
    expected = jax.jit(attention)(q, *joined)
    found = jax.jit(bd.attend_to_parts)(q, parts)
    np.testing.assert_allclose(found, expected, atol=2e-6)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Seen:
    """A plug that attends within the call by a table of who sees whom."""

    table: jax.Array

    def attend(self, layer, q, k, v, positions):
        return attention(q, k.swapaxes(1, 2), v.swapaxes(1, 2), self.table[None]), self


@jax.jit
def from_definition(net, text, block, table, positions):
    """Hidden states of a text and a block behind it, in one pass over both."""
    tokens = jnp.concatenate([text, block])[None]
    return net(tokens, positions[None], Seen(table)).hidden[0]


def block_by_definition(drafter, text, slots):
    """Logits of the slots: a row of the text sees what is before it, one of the block all."""
    known, size = len(text) - 1, drafter.block
    table = np.zeros((known + size,) * 2, bool)
    for i in range(known + size):
        for j in range(known + size):
            table[i, j] = j <= i if i < known else True
    block = np.array([text[-1], *slots])
    positions = np.arange(known + size)
    hidden = from_definition(drafter.model, np.array(text[:-1]), block, table, positions)
    logits = np.array(drafter.model.logits(hidden[known + 1 :]), np.float64)
    if drafter.vocabulary is None:
        logits[:, drafter.mask_token_id] = -np.inf
    else:
        logits[:, ~np.isin(np.arange(logits.shape[1]), drafter.vocabulary)] = -np.inf
    return logits


fill = jax.jit(bd.BlockDrafter.fill)


@jax.jit
def read(net, tokens, cache):
    """The cache after a pass over whole texts."""
    return net(tokens, jnp.arange(tokens.shape[1])[None], cache).cache


@pytest.fixture(scope="module", params=["all words", "half of them"])
def either(request, drafter):
    """With every token of the target, and with every second one."""
    half = None if request.param == "all words" else jnp.arange(0, 260, 2)
    return dataclasses.replace(drafter, vocabulary=half)


def test_a_block_is_what_its_definition_says(pair, either):
    """Also where the cache holds rows behind the anchor: nobody looks at them."""
    drafter = either
    text = texts().tokens[0, :14].tolist()
    memory = drafter.begin(pair[0], 1, CAPACITY)
    memory = read(drafter.model, jnp.array([text]), memory)
    for length in (2, 9, 14):
        anchor = jnp.array([length - 1])
        found = fill(drafter, memory, jnp.array([text[length - 1]]), anchor)
        blank = [MASK] * drafter.drafts
        expected = block_by_definition(drafter, text[:length], blank)
        assert found[0].tolist() == expected.argmax(-1).tolist()


def test_training_computes_what_the_definition_says(drafter):
    batch = texts()
    anchors, valid = training.draw_anchors(jax.random.key(1), batch, 4)
    rng = np.random.default_rng(0)
    slots = np.where(rng.random((3, 4, 4)) < 0.5, MASK, rng.integers(1, 250, (3, 4, 4)))
    found = np.asarray(jax.jit(bd.BlockDrafter.scores)(
        drafter, batch.tokens, anchors, valid, jnp.array(slots)))  # fmt: skip
    assert valid.all()
    for row, n in ((0, 0), (0, 3), (1, 1), (2, 2)):
        text = np.asarray(batch.tokens[row, : int(anchors[row, n]) + 1]).tolist()
        expected = block_by_definition(drafter, text, slots[row, n])
        np.testing.assert_allclose(found[row, n], expected, rtol=1e-4, atol=1e-4)


def test_nothing_leaks(drafter):
    """Tokens at or behind an anchor, and other blocks, move nothing; those before do."""
    batch = texts()
    anchors, valid = training.draw_anchors(jax.random.key(1), batch, 3)
    scores = jax.jit(bd.BlockDrafter.scores)
    slots = jnp.full((3, 3, 4), MASK)
    before = np.asarray(scores(drafter, batch.tokens, anchors, valid, slots))
    place = np.arange(batch.tokens.shape[1])
    for n in range(3):
        at = np.asarray(anchors[:, n])[:, None]
        behind = jnp.where(place > at, 5, batch.tokens)
        others = slots.at[:, [i for i in range(3) if i != n]].set(7)
        after = np.asarray(scores(drafter, behind, anchors, valid, others))
        np.testing.assert_allclose(after[:, n], before[:, n], atol=1e-5)
        nearer = jnp.where(place == at - 1, 5, batch.tokens)
        after = np.asarray(scores(drafter, nearer, anchors, valid, slots))
        words = np.arange(before.shape[-1]) != MASK  # whose logit is -inf
        moved = np.abs(after[:, n][..., words] - before[:, n][..., words])
        assert (moved.max((1, 2)) > 1e-3).all()


# Filling

reveal = jax.jit(bd.reveal, static_argnums=(2, 3))


@settings(max_examples=40)
@given(st.integers(0, 2**31), st.integers(1, 7), st.integers(1, 4))
def test_the_surest_blanks_are_filled(seed, drafts, left):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(2, drafts, 6))
    logits[..., 5] = -np.inf  # the mask
    slots = np.where(rng.random((2, drafts)) < 0.6, 5, rng.integers(0, 5, (2, drafts)))
    found = np.asarray(reveal(jnp.array(slots), jnp.array(logits), 5, left))
    for row in range(2):
        blanks = np.flatnonzero(slots[row] == 5)
        chances = np.exp(logits[row]) / np.exp(logits[row]).sum(-1, keepdims=True)
        surest = sorted(blanks, key=lambda i: -chances[i].max())
        chosen = surest[: -(-len(blanks) // left)]
        for i in range(drafts):
            expected = logits[row, i].argmax() if i in chosen else slots[row, i]
            assert found[row, i] == expected


@pytest.mark.parametrize("passes", [2, 3, 4])
def test_later_passes_see_what_is_filled(pair, drafter, passes):
    text = texts().tokens[0, :12].tolist()
    memory = read(drafter.model, jnp.array([text]), drafter.begin(pair[0], 1, CAPACITY))
    several = dataclasses.replace(drafter, passes=passes)
    found = fill(several, memory, jnp.array([text[-1]]), jnp.array([11]))[0].tolist()
    slots, counts = [MASK] * 4, {2: [2, 2], 3: [2, 1, 1], 4: [1] * 4}[passes]
    for count in counts:
        logits = block_by_definition(drafter, text, slots)
        sure = np.exp(logits - logits.max(-1, keepdims=True))
        sure = 1 / sure.sum(-1)
        blanks = [i for i in range(4) if slots[i] == MASK]
        for i in sorted(blanks, key=lambda i: -sure[i])[:count]:  # noqa: B023
            slots[i] = int(logits[i].argmax())
    assert found == slots and MASK not in found


# The loop

def test_memory_is_what_reading_from_scratch_gives(pair, drafter):
    """After every step, for all rows that a block sees."""
    model, _ = pair
    prompts = [[5, 6, 7], list(range(20, 33)), [9]]
    lengths = np.array([len(p) for p in prompts], np.int32)
    packed = np.zeros((3, 16), np.int32)
    for row, prompt in zip(packed, prompts, strict=True):
        row[: len(prompt)] = prompt
    sampling, mode = make_sampling(model, 3, 0.0, None, None, 0)
    stops = jnp.array([-1])
    state = prefill(model, packed, lengths, lengths + 24, stops, sampling, CAPACITY, mode, drafter)
    for _ in range(4):
        whole = read(drafter.model, state.tokens, drafter.begin(model, 3, CAPACITY))
        for held, new in zip(jax.tree.leaves(state.progress.memory), jax.tree.leaves(whole)):
            held, new = np.asarray(held), np.asarray(new)
            for row, length in enumerate(np.asarray(state.lengths)):
                rows = slice(0, length - 1)
                np.testing.assert_allclose(held[row, :, rows], new[row, :, rows], atol=2e-5)
        state = decode(model, state, stops, sampling, np.int32(1), mode, drafter)


@pytest.mark.parametrize("how, where, passes", [
    ({}, "dense", 1), ({}, "paged", 3), ({"temperature": 0.8, "seed": 3}, "dense", 2),
])  # fmt: skip
def test_the_text_stays(pair, drafter, how, where, passes):
    model, tokenizer = pair
    prompts = ["ab ab ab", "the", "in the other theatre, the thing"]
    memory = PagedMemory(model, 64, 8) if where == "paged" else None
    options = dict(max_new_tokens=20, chat=False, **how)
    plain = generate(model, tokenizer, prompts, **options)
    several = dataclasses.replace(drafter, passes=passes)
    found = generate(model, tokenizer, prompts, drafter=several, memory=memory, **options)
    assert [x.tokens for x in found] == [x.tokens for x in plain]
    assert found[0].statistics.drafted[0] > 0


# Training

def test_what_training_tells():
    keys = jax.random.split(jax.random.key(0), 400)
    known = np.asarray(bd.some_known(keys, (400, 6, 4)))
    assert not known[:, ::2].any(), "every second block is hidden whole"
    counts = np.bincount(known[:, 1::2].sum(-1).reshape(-1), minlength=5)
    # a share drawn evenly makes every number of known slots as likely: 240 of 1200 each
    assert abs(counts - 240).max() < 4.5 * np.sqrt(1200 * 0.2 * 0.8)


@pytest.mark.parametrize("wild", [False, True], ids=["", "a text has the mask"])
def test_the_loss_scores_hidden_slots_and_counts_whole_blocks(either, wild):
    drafter = either
    batch, key = texts(), jax.random.key(4)
    if wild:
        middle = (int(batch.starts[0]) + int(batch.lengths[0])) // 2
        batch = batch._replace(tokens=batch.tokens.at[0, middle].set(MASK))
    loss, sums = jax.jit(bd.BlockDrafter.loss)(drafter, None, batch, key)
    keys = training.row_keys(key, 3)
    anchors, valid = map(np.asarray, training.draw_anchors(keys, batch, 6))
    known = np.asarray(bd.some_known(keys, (3, 6, 4)))
    total = weight = accepted = count = 0
    for row, n in np.ndindex(3, 6):
        if not valid[row, n]:
            continue
        at = int(anchors[row, n])
        tokens = np.asarray(batch.tokens[row]).tolist()
        end = int(batch.lengths[row])
        labels = [tokens[at + k] if at + k < end else 0 for k in range(1, 5)]
        # behind the end of a text a slot is told what the array holds there
        padded = [tokens[min(at + k, len(tokens) - 1)] for k in range(1, 5)]
        slots = [x if told else MASK for x, told in zip(padded, known[row, n])]
        logits = block_by_definition(drafter, tokens[: at + 1], slots)
        going = True
        for k in range(4):
            there = at + k + 1 < end
            if there and not known[row, n, k] and np.isfinite(logits[k][labels[k]]):
                share = np.exp(-k / 2.5)
                chances = logits[k] - np.log(np.exp(logits[k] - logits[k].max()).sum())
                total -= share * (chances[labels[k]] - logits[k].max())
                weight += share
            going = going and there and logits[k].argmax() == labels[k]
            accepted += going and n % 2 == 0
        accepted, count = accepted + (n % 2 == 0), count + (n % 2 == 0)
    np.testing.assert_allclose(float(loss), total / weight, rtol=1e-4)
    assert (int(sums["accepted"]), int(sums["anchors"])) == (accepted, count)


def test_it_learns(pair, drafter, tmp_path):
    model, tokenizer = pair
    prompts = [("Say hi!", "chat"), ("the in", "math"), ("What?", "chat"), ("er er", "math")]
    data = training.write_responses(
        model, tokenizer, prompts, tmp_path / "data", max_new_tokens=16, progress=False
    )
    new = dataclasses.replace(
        bd.BlockDrafter.new(model, MASK, hidden_size=32, block=4), anchors=8
    )
    how = training.TrainSettings(steps=100, rows=4, rate=1e-2, longest=64)
    lines = [x for x in training.train(model, new, data, tmp_path / "run", how).metrics
             if "loss" in x]  # fmt: skip
    assert lines[-1]["loss"] < lines[0]["loss"] / 2
    assert lines[-1]["acceptance"] > lines[0]["acceptance"] + 0.2


# Errors

@pytest.mark.parametrize("change, message", [
    (dict(mask_token_id=9999), "mask_token_id is 9999; expected a whole number from 0 to"),
    (dict(mask_token_id=None), "mask_token_id is None"),
    (dict(passes=0), "passes is 0; expected a whole number from 1 to 4"),
    (dict(passes=5), "passes is 5"),
    (dict(block=1), "block is 1"),
])  # fmt: skip
def test_settings_that_are_impossible(pair, drafter, change, message):
    with pytest.raises(UserError, match=message):
        dataclasses.replace(drafter, **change).check(pair[0])


def test_another_vocabulary_and_another_width(pair, drafter, tmp_path):
    other, tokenizer = load(write_hub(tmp_path / "other", vocab_size=300))
    with pytest.raises(UserError, match="expected the same tokenizer"):
        generate(other, tokenizer, "x", drafter=drafter)
    with pytest.raises(UserError, match="vocabulary holds the mask, token 265"):
        bd.BlockDrafter.new(pair[0], MASK, hidden_size=32, vocabulary=np.array([1, MASK]))
    with pytest.raises(UserError, match="hidden_size is 33; expected a multiple of 8"):
        bd.BlockDrafter.new(pair[0], MASK, hidden_size=33)
