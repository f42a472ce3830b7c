"""Chapter 7 against obvious loops; runs that are killed, repeated and spread over devices."""

import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import write_hub
from hypothesis import given, settings, strategies as st
from safetensors.numpy import load_file, save_file

from dflash_lite import training as t
from dflash_lite.checkpoints import UserError
from dflash_lite.decoding import encode_prompt, generate
from dflash_lite.transformer import attention, load

PROMPTS = [("Say hi!", "chat"), ("the in", "math"), ("What?", "chat"), ("er er er", "math"),
           ("A prompt of more bytes than others.", "chat"), ("x", "math"),
           ("the the", "code"), ("hello there", "code"), ("1 + 1", "math")]  # fmt: skip


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return load(write_hub(tmp_path_factory.mktemp("target") / "hub"))


@pytest.fixture(scope="module")
def model(parts):
    return parts[0]


@pytest.fixture(scope="module")
def tokenizer(parts):
    return parts[1]


@pytest.fixture(scope="module")
def responses(model, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    return t.write_responses(
        model, tokenizer, PROMPTS, folder, max_new_tokens=20, rows=4, shard=4, progress=False
    )


# Anchors, labels, weights, mask
# ------------------------------


def random_batch(seed, rows=3, length=24):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(2, length + 1, rows)
    starts = np.array([rng.integers(1, n) for n in lengths])
    tokens = rng.integers(1, 200, (rows, length)) * (np.arange(length) < lengths[:, None])
    return t.Batch(jnp.array(tokens), jnp.array(lengths), jnp.array(starts))


def drawn(seed, batch, count):
    """Anchors on the host, where loops over single elements are cheap."""
    return map(np.asarray, draw_anchors(jax.random.key(seed), batch, count))


draw_anchors = jax.jit(t.draw_anchors, static_argnums=2)


def places(batch, row):
    """Where this row's anchors may lie, by the rule's own words."""
    length, start = int(batch.lengths[row]), int(batch.starts[row])
    return [a for a in range(length) if a >= start and a + 1 < length]


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 1000), st.sampled_from([1, 4, 30]))
def test_anchors_are_distinct_places_of_the_response(seed, count):
    batch = random_batch(seed)
    anchors, valid = drawn(seed, batch, count)
    for row in range(3):
        allowed = places(batch, row)
        chosen = anchors[row][valid[row]].tolist()
        assert len(set(chosen)) == len(chosen) == min(count, len(allowed))
        assert set(chosen) <= set(allowed) and chosen == sorted(chosen)
        assert not anchors[row][~valid[row]].any()


def test_every_place_is_drawn_now_and_then():
    tokens = jnp.ones((200, 24), jnp.int32)
    batch = t.Batch(tokens, jnp.full(200, 20), jnp.full(200, 12))  # 200 draws of one text
    anchors, valid = t.draw_anchors(jax.random.key(0), batch, 2)
    assert valid.all()
    counts = np.bincount(anchors.reshape(-1), minlength=24)
    assert counts[12:19].min() > 20 and counts.sum() == counts[12:19].sum() == 400


def test_anchors_of_a_row_depend_on_no_other_row_and_no_padding():
    batch, keys = random_batch(1), jax.random.split(jax.random.key(7), 3)
    anchors, valid = t.draw_anchors(keys, batch, 5)
    for row in range(3):
        one = jax.tree.map(lambda x: x[row : row + 1], batch)  # noqa: B023
        wide = one._replace(tokens=jnp.pad(one.tokens, ((0, 0), (0, 40))))
        for alone in (one, wide):
            found, fine = t.draw_anchors(keys[row : row + 1], alone, 5)
            assert (found[0] == anchors[row]).all() and (fine[0] == valid[row]).all()


block_labels = jax.jit(t.block_labels, static_argnums=3)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 1000), st.sampled_from([2, 4, 9]))
def test_labels_are_the_tokens_behind_the_anchor(seed, block):
    batch = random_batch(seed)
    anchors, valid = drawn(seed, batch, 6)
    labels, there = map(
        np.asarray, block_labels(batch.tokens, anchors, valid, block, batch.lengths)
    )
    batch = jax.device_get(batch)
    assert labels.shape == there.shape == (3, 6, block - 1)
    for row, n, k in np.ndindex(3, 6, block - 1):
        at = int(anchors[row, n]) + k + 1
        expected = bool(valid[row, n]) and at < int(batch.lengths[row])
        assert bool(there[row, n, k]) == expected
        if expected:
            assert labels[row, n, k] == batch.tokens[row, at]


@pytest.mark.parametrize("block, gamma", [(16, 7), (10, 5), (8, 4), (4, 2), (13, 6), (32, 7)])
def test_weights_decay_as_the_paper_says(block, gamma):
    expected = [np.exp(-(k - 1) / gamma) for k in range(1, block)]
    assert np.allclose(t.slot_weights(block), expected, rtol=1e-6)
    assert np.allclose(t.slot_weights(block, 3.0)[1], np.exp(-1 / 3))
    with pytest.raises(UserError, match="gamma is 0"):
        t.slot_weights(block, 0)


block_mask = jax.jit(t.block_mask, static_argnums=(2, 3))


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 1000), st.sampled_from([2, 3]))
def test_mask_and_positions_by_definition(seed, block):
    batch, length = random_batch(seed), 24
    anchors, valid = drawn(seed, batch, 5)
    mask = np.asarray(block_mask(anchors, valid, length, block))
    positions = np.asarray(t.block_positions(anchors, block))
    assert mask.shape == (3, 5 * block, length + 5 * block)
    expected = np.zeros(mask.shape, bool)
    for row, n, i in np.ndindex(3, 5, block):
        query = n * block + i
        assert positions[row, query] == anchors[row, n] + i
        for j in range(length):
            expected[row, query, j] = valid[row, n] and j < anchors[row, n]
        for i2 in range(block):
            expected[row, query, length + n * block + i2] = True
    assert (mask == expected).all()


def test_nothing_leaks_through_two_layers_of_attention():
    """Changing what a block may not see moves nothing in it; what it may see does."""
    batch, block, count, size = random_batch(3, rows=1, length=24), 3, 4, 8
    anchors, valid = t.draw_anchors(jax.random.key(1), batch, count)
    mask = t.block_mask(anchors, valid, 24, block)
    weights = jax.random.normal(jax.random.key(2), (2, size, size)) * 0.4
    table = jax.random.normal(jax.random.key(3), (300, size))

    @jax.jit
    def pass_over(tokens, blocks):
        context, x = table[tokens][None], table[blocks].reshape(1, -1, size)
        for w in weights:
            both = jnp.concatenate([context, x], axis=1)[:, None]
            x = x + attention(x[:, :, None], both, both, mask)[:, :, 0] @ w
        return x.reshape(count, block, size)

    run = lambda *x: np.asarray(pass_over(*x))
    tokens = batch.tokens[0]
    blocks = jax.random.randint(jax.random.key(4), (count, block), 0, 300)
    before = run(tokens, blocks)
    assert valid.sum() >= 2
    for n in np.flatnonzero(valid[0]):
        anchor = int(anchors[0, n])
        for at in range(24):
            moved = (run(tokens.at[at].add(1), blocks)[n] != before[n]).any()
            assert moved == (at < anchor), f"token {at} and the block at {anchor}"
        for other in range(count):
            moved = run(tokens, blocks.at[other, 1].add(1))[n] != before[n]
            assert moved.any() == (other == n)


def test_loss_and_acceptance_by_definition():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 3, 4, 5))
    labels = rng.integers(0, 5, (2, 3, 4))
    logits[0, 0, [0, 1], labels[0, 0, [0, 1]]] += 9  # two right, then chance
    logits[1, 2, np.arange(4), labels[1, 2]] += 9  # all right
    there = np.ones((2, 3, 4), bool)
    there[0, 1, 2:], there[1, 0] = False, False
    labels[0, 2, 1] = -1  # not in the vocabulary of the logits
    weights = np.array([1.0, 0.5, 0.25, 0.125])
    total = weight = accepted = anchors = 0
    for b, a in np.ndindex(2, 3):
        going = True
        for k in range(4):
            scores, label = logits[b, a, k], labels[b, a, k]
            if there[b, a, k] and label >= 0:
                total -= weights[k] * (scores[label] - np.log(np.exp(scores).sum()))
                weight += weights[k]
            going &= bool(there[b, a, k] and scores.argmax() == label)
            accepted += going
        anchors += there[b, a, 0]
        accepted += there[b, a, 0]
    loss, sums = t.block_loss(*map(jnp.array, (logits, labels, there, weights)))
    assert np.isclose(loss, total / weight, rtol=1e-5)
    assert np.isclose(sums["loss"], total, rtol=1e-5)
    assert (int(sums["accepted"]), int(sums["anchors"])) == (accepted, anchors)


# Data
# ----


def test_replaced_rows_answer_as_alone(model, tokenizer, responses):
    assert len(responses) == len(PROMPTS)
    by_digest = {text.prompt: text for text in responses.texts}
    for prompt, name in PROMPTS:
        ids = encode_prompt(tokenizer, prompt, True, None)
        text = by_digest[t.prompt_digest(ids)]
        alone = generate(model, tokenizer, prompt, max_new_tokens=20)
        assert text.tokens[: text.start].tolist() == ids and text.set == name
        assert text.tokens[text.start :].tolist() == alone.tokens


def test_drawn_answers_do_not_depend_on_their_row(model, tokenizer, tmp_path):
    how = dict(max_new_tokens=12, sampled=0.5, temperature=0.9, progress=False)
    few = t.write_responses(model, tokenizer, PROMPTS, tmp_path / "a", rows=2, **how)
    many = t.write_responses(model, tokenizer, PROMPTS[::-1], tmp_path / "b", rows=9, **how)
    answers = [{x.prompt: x.tokens.tolist() for x in found.texts} for found in (few, many)]
    assert answers[0] == answers[1]
    greedy = drawn = 0
    for prompt, _ in PROMPTS:
        digest = t.prompt_digest(encode_prompt(tokenizer, prompt, True, None))
        text = next(x for x in few.texts if x.prompt == digest)
        seed = t.prompt_seed(digest)
        plain = generate(model, tokenizer, prompt, max_new_tokens=12).tokens
        warm = generate(model, tokenizer, prompt, max_new_tokens=12, temperature=0.9, seed=seed)
        answer = text.tokens[text.start :].tolist()
        assert answer in (plain, warm.tokens)
        greedy, drawn = greedy + (answer == plain), drawn + (answer == warm.tokens)
    assert greedy and drawn


def test_writing_goes_on_where_it_was_killed(model, tokenizer, responses, tmp_path, monkeypatch):
    real, calls = t.write_shard, []

    def killed(path, *args, **named):
        calls.append(path)
        if len(calls) == 2:
            raise KeyboardInterrupt
        real(path, *args, **named)

    how = dict(max_new_tokens=20, rows=4, shard=4, progress=False)
    monkeypatch.setattr(t, "write_shard", killed)
    with pytest.raises(KeyboardInterrupt):
        t.write_responses(model, tokenizer, PROMPTS, tmp_path, **how)
    assert len(t.read_shards(tmp_path)) == 4
    monkeypatch.setattr(t, "write_shard", real)
    twice = PROMPTS + PROMPTS[:3]  # duplicates are dropped
    found = t.write_responses(model, tokenizer, twice, tmp_path, **how)
    prompts = [text.prompt for text in found.texts]
    assert sorted(prompts) == sorted(text.prompt for text in responses.texts)
    whole = {text.prompt: text.tokens.tolist() for text in responses.texts}
    assert all(whole[text.prompt] == text.tokens.tolist() for text in found.texts)
    files = {path: path.read_bytes() for path in t.shard_paths(tmp_path)}
    t.write_responses(model, tokenizer, PROMPTS, tmp_path, **how)
    assert files == {path: path.read_bytes() for path in t.shard_paths(tmp_path)}


@pytest.fixture
def shards(model, tokenizer, tmp_path):
    t.write_responses(
        model, tokenizer, PROMPTS[:4], tmp_path / "s", max_new_tokens=8, shard=2, progress=False
    )
    return tmp_path / "s"


def test_other_sampling_is_refused(model, tokenizer, shards):
    with pytest.raises(UserError, match='begun with the sampling .*"max_new_tokens": 8'):
        t.write_responses(model, tokenizer, PROMPTS, shards, max_new_tokens=9, progress=False)


def test_an_empty_folder_is_named(tmp_path):
    with pytest.raises(UserError, match="has no file responses-"):
        t.read_shards(tmp_path)


@pytest.mark.parametrize("damage", ["cut", "noise", "empty", "array", "offsets", "starts"])
def test_a_damaged_shard_is_named(shards, damage):
    path = t.shard_paths(shards)[1]
    data = path.read_bytes()
    if damage in ("cut", "noise", "empty"):
        path.write_bytes({"cut": data[:-9], "noise": b"\xff" * 99, "empty": b""}[damage])
    else:
        size = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + size])["__metadata__"]
        arrays = load_file(path)
        if damage == "array":
            del arrays["starts"]
        elif damage == "offsets":
            arrays["offsets"] = arrays["offsets"] + 1
        else:
            arrays["starts"] = arrays["starts"] + 10_000
        save_file(arrays, path, metadata)
    with pytest.raises(UserError, match=f"{path.name} is damaged"):
        t.read_shards(shards)


def test_data_of_another_target_or_tokenizer(model, tokenizer, shards, tmp_path):
    other, _ = load(write_hub(tmp_path / "other", seed=1))
    with pytest.raises(UserError, match="another target"):
        t.read_shards(shards, other)
    changed = replace(tokenizer, template=tokenizer.template + " ")
    with pytest.raises(UserError, match="another tokenizer"):
        t.read_shards(shards, model, changed)
    assert len(t.read_shards(shards, model, tokenizer)) == 4
    with pytest.raises(UserError, match="begun with the target"):
        t.write_responses(other, tokenizer, PROMPTS, shards, max_new_tokens=8, progress=False)


def test_the_digest_knows_the_model_in_both_precisions(model, tmp_path):
    hub = write_hub(tmp_path / "hub")
    narrow, _ = load(hub, dtype="bfloat16")
    assert t.target_digest(narrow) == t.target_digest(model)
    longer, _ = load(write_hub(tmp_path / "longer", max_position_embeddings=4096))
    assert t.target_digest(longer) != t.target_digest(model)


def test_a_full_disk_leaves_no_part_of_a_shard(model, tokenizer, tmp_path, monkeypatch):
    def full(arrays, path, metadata):
        Path(path).write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(t, "save_file", full)
    with pytest.raises(UserError, match="disk is full"):
        t.write_responses(model, tokenizer, PROMPTS, tmp_path, max_new_tokens=8, progress=False)
    assert list(tmp_path.iterdir()) == []


def test_impossible_requests(model, tokenizer, tmp_path):
    with pytest.raises(UserError, match="no prompts"):
        t.write_responses(model, tokenizer, [], tmp_path)
    with pytest.raises(UserError, match="sampled is 2"):
        t.write_responses(model, tokenizer, PROMPTS, tmp_path, sampled=2)
    with pytest.raises(UserError, match="A prompt has 3"):
        t.write_responses(model, tokenizer, [("x" * 3000, "long")], tmp_path)


def test_self_written_prompts(model, tokenizer):
    turns = t.write_prompts(model, tokenizer, 12, temperature=1.5, max_new_tokens=200, rows=4)
    assert turns == t.write_prompts(
        model, tokenizer, 12, temperature=1.5, max_new_tokens=200, rows=12
    )
    assert len(set(turns)) == len(turns) and all(turns)
    assert t.write_prompts(model, tokenizer, 3, temperature=0, max_new_tokens=200)[1:] == []


def test_sets(responses):
    assert responses.sets == ("chat", "code", "math")
    assert {text.set for text in responses.of("code", "math").texts} == {"code", "math"}
    with pytest.raises(UserError, match="no set 'maths'; expected some of chat, code, math"):
        responses.of("maths")


# Batches
# -------


def test_batches_hold_every_text_once_an_epoch(responses):
    batches = t.Batches(responses, rows=2, longest=64, seed=3)
    for epoch in range(3):
        seen = []
        for step in range(epoch * batches.per_epoch, (epoch + 1) * batches.per_epoch):
            dealt = batches[step]
            for tokens, length, start in zip(dealt.tokens, dealt.lengths, dealt.starts):
                if length:
                    assert not tokens[length:].any()
                    seen.append((tokens[:length].tobytes(), int(start)))
        texts = [(x.tokens[:64].tobytes(), x.start) for x in responses.texts]
        fine = [x for x, text in zip(texts, responses.texts) if len(text.tokens) - text.start > 1]
        assert sorted(seen) == sorted(fine)


def test_epochs_differ_and_a_step_needs_no_replay(responses):
    one, two = (t.Batches(responses, 2, 64, 3) for _ in range(2))
    assert (one[11].tokens == two[11].tokens).all()
    _ = [one[i] for i in range(11)]
    assert (one[11].tokens == two[11].tokens).all()
    orders = [str(one.epoch(i)) for i in range(4)]
    assert len(set(orders)) == 4
    assert str(t.Batches(responses, 2, 64, 4).epoch(0)) != orders[0]


def test_data_without_an_answer_is_refused(responses):
    texts = tuple(x._replace(start=len(x.tokens)) for x in responses.texts)
    short = replace(responses, texts=texts)
    with pytest.raises(UserError, match="None of 9 texts has a response"):
        t.Batches(short, 2, 64, 0)


# Heads
# -----


@pytest.fixture(scope="module")
def heads(model):
    return t.Heads.new(model, taps=(0, 1), block=4, anchors=8, seed=1)


def test_a_trained_and_a_random_drafter_leave_the_text_as_it_is(model, tokenizer, heads, trained):
    prompts = [prompt for prompt, _ in PROMPTS]
    for drafter, how in ((heads, dict()), (trained.learner, dict(temperature=0.8, seed=3))):
        plain = generate(model, tokenizer, prompts, max_new_tokens=17, **how)
        fast = generate(model, tokenizer, prompts, max_new_tokens=17, drafter=drafter, **how)
        assert [x.tokens for x in fast] == [x.tokens for x in plain]


def test_measured_acceptance_is_what_decoding_accepts(model, tokenizer, trained, monkeypatch):
    """At each anchor of a greedy text, the loss counts what the step there added."""
    drafter, compared, width = trained.learner, 0, 128

    @jax.jit
    def accepted(batch, at):
        monkeypatch.setattr(t, "draw_anchors", lambda *_: (at[None, None], jnp.array([[True]])))
        return drafter.loss(model, batch, jax.random.key(0)[None])[1]["accepted"]

    for prompt, _ in PROMPTS:
        lengths = []
        watch = lambda look: lengths.append(int(look.lengths[0]))  # noqa: B023
        answer = generate(
            model, tokenizer, prompt, max_new_tokens=30, drafter=drafter, watch=watch
        ).tokens
        text = encode_prompt(tokenizer, prompt, True, None) + answer
        tokens = jnp.zeros((1, width), int).at[0, : len(text)].set(jnp.array(text))
        features = t.read_features(model, tokens, drafter.taps)
        batch = t.Batch(tokens, jnp.array([len(text)]), jnp.array([1]), features)
        for length, following in zip(lengths, lengths[1:]):
            if length + drafter.block <= len(text):  # the text's end cuts no draft
                assert int(accepted(batch, length - 1)) == following - length
                compared += following - length > 1
    assert compared


def test_the_state_has_the_features_before_the_anchor(model, tokenizer, heads):
    """What `draft` is given equals what training gives, at every step."""
    seen = []

    class Spy(type(heads)):
        def logits(self, model, features, anchors):
            jax.debug.callback(lambda *x: seen.append(jax.device_get(x)), *features, anchors)
            return super().logits(model, features, anchors)

    jax.tree_util.register_dataclass(
        Spy, ["mix", "heads", "vocabulary"], ["taps", "block", "anchors"]
    )
    spy = Spy(heads.mix, heads.heads, heads.vocabulary, heads.taps, heads.block, heads.anchors)
    out = generate(model, tokenizer, "Say hi!", max_new_tokens=9, drafter=spy)
    jax.effects_barrier()
    tokens = encode_prompt(tokenizer, "Say hi!", True, None) + out.tokens
    features = t.read_features(model, jnp.array([tokens]), heads.taps)
    assert len(seen) >= 2
    features = jax.device_get(features)
    for *kept, anchors in seen:
        fits = [
            tokens[at] == anchors[0]
            and all(np.allclose(g[0], f[0, at - 1], atol=1e-4) for g, f in zip(kept, features))
            for at in range(1, len(tokens))
        ]
        assert any(fits)


def test_heads_learn_the_labels_of_their_vocabulary_only(model, heads):
    some = t.Heads.new(model, (0, 1), vocabulary=[3, 5, 9], anchors=8)
    batch = random_batch(5)
    batch = batch._replace(features=t.read_features(model, batch.tokens, (0, 1)))
    for drafter in (some, heads):
        _, sums = drafter.loss(model, batch, jax.random.key(0))
        anchors, valid = t.draw_anchors(jax.random.key(0), batch, 8)
        labels, there = t.block_labels(batch.tokens, anchors, valid, 4, batch.lengths)
        known = np.isin(labels, drafter.vocabulary) & np.asarray(there)
        assert np.isclose(sums["weight"], (known * np.asarray(t.slot_weights(4))).sum())
    tokens = some.vocabulary.tolist()
    assert tokens == [3, 5, 9]


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(taps=(2,)), r"taps is \(2,\); expected layers from 0 to 1"),
        (dict(taps=()), r"taps is \(\)"),
        (dict(block=1), "block is 1"),
        (dict(vocabulary=[5, 9999]), "from 5 to 9999; expected tokens from 0 to 266"),
    ],
)  # fmt: skip
def test_heads_that_do_not_fit(model, change, message):
    with pytest.raises(UserError, match=message):
        t.Heads.new(model, **dict(taps=(0,)) | change)


def test_heads_of_another_model(model, tokenizer, heads, tmp_path):
    wide, _ = load(write_hub(tmp_path / "wide", hidden_size=64))
    with pytest.raises(UserError, match="hidden size 32, the model has 64"):
        generate(wide, tokenizer, "x", drafter=heads)


# Runs
# ----

SETTINGS = t.TrainSettings(
    steps=12, rows=4, rate=1e-2, longest=40, log_every=4, evaluate_every=6, save_every=4
)


@pytest.fixture(scope="module")
def trained(model, heads, responses, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return t.train(model, heads, responses, folder, SETTINGS, held_out=responses.of("chat"))


def values(lines, key="loss"):
    return {line["step"]: line[key] for line in lines if key in line}


def test_a_run_learns_and_says_how(trained, heads):
    losses = values(trained.metrics)
    assert list(losses) == list(range(1, 13)) and trained.step == 12
    assert losses[12] < losses[1] - 0.5
    assert list(values(trained.metrics, "held_out")) == [0, 6, 12]
    rates = values(trained.metrics, "rate")
    assert rates[1] == 0 and max(rates.values()) == rates[2] == pytest.approx(1e-2)
    assert (heads.mix != trained.learner.mix).any()
    assert (heads.vocabulary == trained.learner.vocabulary).all()


def test_held_out_acceptance_by_definition(model, responses, trained):
    """The last evaluation again, from the trained drafter, one anchor at a time."""
    found, anchors = 0, 0
    drafter = jax.device_get(trained.learner)
    vocabulary, logits = drafter.vocabulary, jax.jit(type(drafter).logits)
    for text in responses.of("chat").texts:
        tokens = text.tokens[: SETTINGS.longest]
        wide = np.zeros((1, SETTINGS.longest), int)  # one program for all
        wide[0, : len(tokens)] = tokens
        features = jax.device_get(t.read_features(model, jnp.array(wide), drafter.taps))
        all_places = [a for a in range(text.start, len(tokens) - 1)]
        batch = t.Batch(jnp.array(tokens)[None], jnp.array([len(tokens)]), jnp.array([text.start]))
        key = jax.random.fold_in(jax.random.key(SETTINGS.seed), t.HELD_OUT)
        key = jax.random.fold_in(key, text.prompt % 2**32)
        chosen, valid = t.draw_anchors(key[None], batch, drafter.anchors)
        for a in chosen[valid].tolist():
            assert a in all_places
            before = tuple(x[0, a - 1][None] for x in features)
            scores = logits(drafter, model, before, jnp.array([int(tokens[a])]))[0]
            guesses = vocabulary[np.argmax(scores, -1)].tolist()
            run = 0
            for k, guess in enumerate(guesses, 1):
                if a + k >= len(tokens) or tokens[a + k] != guess:
                    break
                run += 1
            found, anchors = found + 1 + run, anchors + 1
    last = values(trained.metrics, "held_out")[12]["chat"]
    assert np.isclose(last, found / anchors)


def test_a_killed_run_resumes_to_the_same_losses(
    model, heads, responses, trained, tmp_path, monkeypatch
):
    real = t.Trainer.train_once

    def killed(self):
        if self.step == 10:
            raise RuntimeError("killed")
        real(self)

    monkeypatch.setattr(t.Trainer, "train_once", killed)
    held = dict(held_out=responses.of("chat"))
    with pytest.raises(RuntimeError, match="killed"):
        t.train(model, heads, responses, tmp_path, SETTINGS, **held)
    monkeypatch.setattr(t.Trainer, "train_once", real)
    # what the run in the folder has learnt counts, not the drafter given
    again = t.train(model, t.Heads.new(model, (0, 1), 4, anchors=8, seed=9), responses, tmp_path,
                    SETTINGS, **held)  # fmt: skip
    assert values(again.metrics) == values(trained.metrics)
    assert values(again.metrics, "held_out") == values(trained.metrics, "held_out")
    assert (again.learner.mix == trained.learner.mix).all()
    steps = [line["step"] for line in again.metrics if "loss" in line]
    assert steps == list(range(1, 13))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_stops(model, heads, responses, trained, tmp_path, number):
    before = signal.getsignal(number)

    def watch(line):
        if line.get("step") == 4 and "loss" in line:
            os.kill(os.getpid(), number)

    stopped = t.train(model, heads, responses, tmp_path, SETTINGS, watch=watch)
    assert 4 <= stopped.step < 12 and signal.getsignal(number) is before
    again = t.train(model, heads, responses, tmp_path, SETTINGS)
    assert values(again.metrics) == values(trained.metrics)


def test_a_signal_that_comes_while_its_handler_is_set(monkeypatch):
    real = signal.signal

    def set_and_fire(number, handler):
        old = real(number, handler)
        if getattr(handler, "__name__", "") == "_ask":
            handler(number, None)
        return old

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(t.signal, "signal", set_and_fire)
    with t.Stop() as stop:
        assert stop.asked
    assert signal.getsignal(signal.SIGTERM) is before


def test_kept_features_give_the_same_losses(model, heads, responses, trained, tmp_path):
    kept = replace(SETTINGS, keep_features=True)
    found = t.train(model, heads, responses, tmp_path, kept)
    a, b = values(found.metrics), values(trained.metrics)
    assert np.allclose(list(a.values()), list(b.values()), rtol=1e-3)


def test_changed_settings_are_named(model, heads, responses, trained, tmp_path):
    few = replace(SETTINGS, steps=4)
    t.train(model, heads, responses, tmp_path, few)
    with pytest.raises(UserError, match="begun with rate 0.01, not 0.02"):
        t.train(model, heads, responses, tmp_path, replace(few, rate=0.02))
    with pytest.raises(UserError, match="begun with data"):
        t.train(model, heads, responses.of("chat"), tmp_path, few)
    with pytest.raises(UserError, match="begun with learner 'taps"):
        other = t.Heads.new(model, taps=(1,), block=4, anchors=8)
        t.train(model, other, responses, tmp_path, few)
    free = replace(few, log_every=1, save_every=2, evaluate_every=3)
    assert t.train(model, heads, responses, tmp_path, free).step == 4


def test_data_of_another_target_do_not_train(heads, responses, tokenizer, tmp_path):
    other, _ = load(write_hub(tmp_path / "other", seed=1))
    with pytest.raises(UserError, match="written by another target"):
        t.train(other, heads, responses, tmp_path / "run", SETTINGS)


def test_a_loss_that_is_no_number_keeps_the_last_checkpoint(
    model, heads, responses, trained, tmp_path, monkeypatch
):
    real = t.Trainer.train_once

    def poisoned(self):
        if self.step == 5:
            params, state = self.state
            self.state = ([p * jnp.nan for p in params], state)
        real(self)

    monkeypatch.setattr(t.Trainer, "train_once", poisoned)
    with pytest.raises(UserError, match="At step 6 the loss is nan.*step 4 is kept.*below 0.01"):
        t.train(model, heads, responses, tmp_path, SETTINGS)
    assert list(values(t.read_metrics(tmp_path))) == [1, 2, 3, 4, 5]
    monkeypatch.setattr(t.Trainer, "train_once", real)
    again = t.train(model, heads, responses, tmp_path, SETTINGS)
    assert values(again.metrics) == values(trained.metrics)


def test_a_full_disk_stops_before_half_a_checkpoint(
    model, heads, responses, tmp_path, monkeypatch
):
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(t.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(UserError, match="disk is full: the checkpoint of step 4 needs"):
        t.train(model, heads, responses, tmp_path, SETTINGS)
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == []


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(steps=0), "steps is 0"),
        (dict(rows=1.5), "rows is 1.5"),
        (dict(rate=-1), "rate is -1"),
        (dict(warmup="x"), "warmup is 'x'"),
        (dict(save_every=0), "save_every is 0"),
    ],
)
def test_impossible_settings(change, message):
    with pytest.raises(UserError, match=message):
        t.TrainSettings(**change)


def test_without_the_extra_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "optax", None)
    with pytest.raises(UserError, match=r'pip install "dflash_lite\[train\]"'):
        t.optimizer(SETTINGS)


def test_one_cosine_with_warm_up():
    _, rates = t.optimizer(replace(SETTINGS, steps=100))
    found = [float(rates(i)) for i in range(101)]
    expected = [0.01 * i / 4 for i in range(4)]
    expected += [0.01 * (1 + np.cos(np.pi * (i - 4) / 96)) / 2 for i in range(4, 101)]
    assert np.allclose(found, expected, atol=1e-7)


def test_only_matrices_decay():
    transform, _ = t.optimizer(replace(SETTINGS, warmup=0.1, decay=0.5))
    params = [jnp.ones((2, 2)), jnp.ones(2)]
    state = transform.init(params)
    still = [jnp.zeros_like(p) for p in params]
    for _ in range(3):
        updates, state = transform.update(still, state, params)
    assert (updates[0] < 0).all() and (updates[1] == 0).all()


def test_forecast_counts_what_the_run_is(model, heads, responses):
    found = t.forecast(model, heads, responses, SETTINGS)
    assert found.parameters == heads.mix.size + heads.heads.size
    assert found.bytes > 3 * 4 * found.parameters and found.seconds > 0
    batches = t.Batches(responses, 4, 40, 0)
    assert found.epochs == 12 / batches.per_epoch and found.texts == 9


FOUR = """
import sys
from dflash_lite import training as t
from dflash_lite.transformer import load
import jax
assert len(jax.devices()) == 4
model, tokenizer = load(sys.argv[1])
data = t.read_shards(sys.argv[2], model, tokenizer)
heads = t.Heads.new(model, taps=(0, 1), block=4, anchors=8, seed=1)
settings = t.TrainSettings(steps=12, rows=4, rate=1e-2, longest=40, log_every=4,
                           evaluate_every=6, save_every=4)
t.train(model, heads, data, sys.argv[3], settings, held_out=data.of("chat"))
try:
    t.check_rows(6)
except Exception as error:
    print(error)
"""


def test_four_devices_have_the_same_losses(model, tokenizer, responses, trained, tmp_path):
    hub = write_hub(tmp_path / "hub")
    t.write_responses(
        model, tokenizer, PROMPTS, tmp_path / "data", max_new_tokens=20, rows=4, shard=4,
        progress=False,
    )  # fmt: skip
    flags = "--xla_force_host_platform_device_count=4"
    run = subprocess.run(
        [sys.executable, "-c", FOUR, hub, tmp_path / "data", tmp_path / "run"],
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "rows is 6; expected a multiple of 4" in run.stdout
    lines = t.read_metrics(tmp_path / "run")
    a, b = values(lines), values(trained.metrics)
    assert list(a) == list(b)
    assert np.allclose(list(a.values()), list(b.values()), rtol=1e-4)
    pairs = zip(values(lines, "held_out").values(), values(trained.metrics, "held_out").values())
    assert all(np.isclose(x["chat"], y["chat"], atol=0.05) for x, y in pairs)
