"""EAGLE-3: the network is that of speculators, its memory holds true rows, training is drafting."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from goldens import GOLDEN, read_golden
from helpers import write_hub
from hypothesis import given, settings, strategies as st
from safetensors.numpy import load_file, save_file
from test_checkpoints import JSON

import dflash_lite
from dflash_lite import eagle, training as t, transformer
from dflash_lite.checkpoints import ModelConfig, UserError
from dflash_lite.decoding import DenseCache, decode, encode_prompt, generate, make_sampling, prefill
from dflash_lite.paged_attention import PagedMemory
from dflash_lite.speculative import distribution
from dflash_lite.transformer import Transformer, nnx, rotation

DRAFTERS = GOLDEN / "eagle"
NAMES = sorted(path.stem for path in DRAFTERS.glob("*.npz"))
TOLERANCE = 1e-4
LAYERS = 12  # of the golden drafters' target


def target_of(table=None, **changes):
    """A random target that the golden drafters fit."""
    shape = dict(
        model_type="llama", vocab_size=48, hidden_size=16, intermediate_size=24,
        num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=2, head_dim=4,
        max_position_embeddings=64,
    )  # fmt: skip
    model = Transformer(ModelConfig(**shape | changes), rngs=nnx.Rngs(0))
    if table is not None:
        model.embed_tokens = nnx.Param(jnp.asarray(table))
    return model


@pytest.fixture(scope="module", params=NAMES)
def golden(request):
    """A drafter as the package loads it, its target, and what speculators computes."""
    data = read_golden(f"eagle/{request.param}.npz")
    target = target_of(data["table"])
    return dflash_lite.load_eagle(DRAFTERS / request.param, target), target, data


def taps_of(drafter, features):
    """The golden features, one array for each tap, with a batch of one."""
    parts = np.split(np.asarray(features), len(drafter.taps), axis=-1)
    return tuple(jnp.asarray(part)[None] for part in parts)


def text_of(data):
    """The token at 0 has no row; those behind features do."""
    return np.concatenate([[0], data["tokens"]])


def observe(drafter, target, memory, data, first, end, padding=0):
    """Let a drafter see positions `first` to `end` − 1, some rows of padding behind them."""
    count = end - first
    rows = np.pad(data["features"][first:end], ((0, padding), (0, 0)), constant_values=9.0)
    tokens = np.pad(text_of(data)[first:end], (0, padding))[None]
    positions = first + np.arange(count + padding)[None]
    counted = np.arange(count + padding)[None] < count
    seen = (jnp.asarray(x) for x in (tokens, positions, counted))
    return drafter.observe(target, memory, *seen, taps_of(drafter, rows))


def chain(drafter, target, memory, data, row, passes, feature=None):
    """States and logits of the passes from a row on, with the true tokens."""
    cache, found = memory.cache, []
    feature = (memory.feature if feature is None else feature)[:, None]
    for i in range(passes):
        token = jnp.array([[data["tokens"][row + i]]])
        at = jnp.array([[row + i]])
        hidden, feature, cache = drafter.network(
            drafter.embed(target, token), feature, at, cache
        )
        found.append((hidden[0, 0], drafter.logits(target, hidden)[0, 0]))
    return [jnp.stack(x) for x in zip(*found)]


def assert_close(found, expected, what):
    error = np.abs(np.asarray(found) - expected).max() / np.abs(expected).max()
    assert error < TOLERANCE, f"{what}: off by {error:.1e} of the largest value"


def test_a_chain_is_what_speculators_computes(golden):
    """Behind the first call and later ones, with rows of padding that must not show."""
    drafter, target, data = golden
    memory, first = drafter.begin(target, 1, 32), 0
    assert (np.asarray(drafter.vocabulary) == data["words"]).all() or drafter.vocabulary is None
    for end in (1, 5, 6, 9):
        memory = observe(drafter, target, memory, data, first, end, padding=3)
        first, row = end, end - 1
        passes = min(3, len(data["tokens"]) - row)
        hidden, logits = chain(drafter, target, memory, data, row, passes)
        states = np.asarray(drafter.network.norm(jnp.asarray(data["states"])))
        assert_close(hidden, states[:passes, row], f"states behind {end} features")
        assert_close(logits, data["logits"][:passes, row], f"logits behind {end} features")


def test_unrolled_training_is_what_speculators_computes(golden):
    """All chains of a text in one pass; and so training is what drafting computes."""
    drafter, target, data = golden
    rows = len(data["tokens"])
    features = np.concatenate([data["features"], np.full_like(data["features"][:1], 3.0)])
    batch = t.Batch(jnp.asarray(text_of(data))[None], None, None, taps_of(drafter, features))
    anchors = 1 + jnp.arange(rows - 2)[None]  # whose three tokens are there
    logits = drafter.logits(target, drafter.unroll(target, batch, anchors))[0]
    expected = np.stack([data["logits"][i, : rows - 2] for i in range(3)], axis=1)
    assert_close(logits, expected, "logits")


@pytest.mark.parametrize("wrong", ["position", "token", "feature", "row 0"])
def test_the_golden_arrays_see_what_is_off_by_one(golden, wrong):
    """The tests above can fail."""
    drafter, target, data = golden
    spoiled = dict(data)
    if wrong == "token":
        spoiled["tokens"] = np.roll(data["tokens"], 1)
    if wrong == "feature":
        spoiled["features"] = np.roll(data["features"], 1, axis=0)
    memory = observe(drafter, target, drafter.begin(target, 1, 32), spoiled, 0, 6)
    if wrong == "row 0":  # a row without a feature
        first = jax.tree.map(lambda x: x.at[:, :, 6].set(0.0), memory.cache)
        memory = memory._replace(cache=jax.tree.map(lambda x: jnp.roll(x, 1, 2), first))
    row = 6 if wrong == "position" else 5
    data = data if wrong != "position" else data | {"tokens": np.roll(data["tokens"], 1)}
    _, logits = chain(drafter, target, memory, data, row, 3)
    expected = data["logits"][:, 5]
    assert np.abs(np.asarray(logits) - expected).max() > 10 * TOLERANCE * np.abs(expected).max()


def test_taps_are_what_enters_the_published_layers():
    for layers, enters in ((30, (2, 15, 27)), (36, (2, 18, 33)), (7, (2, 3, 4))):
        assert eagle.eagle_taps(layers) == tuple(i - 1 for i in enters)
    model = target_of(num_hidden_layers=8)
    tokens, seen = jnp.array([[5, 7, 9]]), {}
    positions = jnp.arange(3)[None]
    x, cache = model.embed_tokens[...][tokens], DenseCache.empty(model.config, 1, 4, jnp.float32)
    for i, layer in enumerate(model.layers):
        seen[i] = x
        by = rotation(model.config.rope, 4, positions)
        x, cache = layer(x, i, by, positions, cache)
    for tap, enters in zip(model(tokens, taps=eagle.eagle_taps(8)).taps, (2, 4, 5)):
        np.testing.assert_allclose(tap, seen[enters], atol=1e-5)
    with pytest.raises(UserError, match="has 6 layers; expected 7"):
        eagle.eagle_taps(6)


# The whole drafter

@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """A random target with a tokenizer."""
    folder = tmp_path_factory.mktemp("eagle") / "target"
    return dflash_lite.load(write_hub(folder, num_hidden_layers=3))


@pytest.fixture(scope="module")
def pair(parts):
    """The target and random drafters for it: of all words and of some, also with other norms."""
    model, tokenizer = parts
    make = lambda **how: eagle.new_eagle(model, taps=(0, 1, 2), seed=1, **how)
    some = list(range(5, 250, 3))
    return model, tokenizer, {
        "all": make(), "few": make(vocabulary=some, norm_before_residual=True),
        "normed": make(norm_output=True, fc_norm=True), "long": make(block=7),
    }  # fmt: skip


PROMPTS = ["ab ab ab", "the", "in the other theatre, the thing"]


@pytest.mark.parametrize("where", ["dense", "paged"])
@pytest.mark.parametrize("how", [{}, {"temperature": 1.0}, {"temperature": 0.8, "top_k": 5}])
@pytest.mark.parametrize("name", ["all", "few"])
def test_a_random_drafter_leaves_the_text(pair, name, where, how):
    """Greedy text is the same; a drawn one is as long, and drafts were verified."""
    model, tokenizer, drafters = pair
    memory = PagedMemory(model, 64, 8) if where == "paged" else None
    options = dict(max_new_tokens=24, chat=False, **how)
    plain = generate(model, tokenizer, PROMPTS, **options)
    found = generate(model, tokenizer, PROMPTS, drafter=drafters[name], memory=memory, **options)
    for a, b in zip(plain, found, strict=True):
        assert b.statistics.drafted[0] > 0
        assert a.tokens == b.tokens if not how else 0 < len(b.tokens) <= 24


def start(model, drafter, prompts, new=24, **how):
    """A state after prefill, and what `decode` needs."""
    lengths = np.array([len(p) for p in prompts], np.int32)
    packed = np.zeros((len(prompts), 16), np.int32)
    for row, prompt in zip(packed, prompts, strict=True):
        row[: len(prompt)] = prompt
    how = {"temperature": 0.0, "top_k": None, "top_p": None, "seed": 0} | how
    sampling, mode = make_sampling(model, len(prompts), **how)
    stops = jnp.array([-1])
    state = prefill(model, packed, lengths, lengths + new, stops, sampling, 64, mode, drafter)
    return state, stops, sampling, mode


def rows_of(drafter, model, tokens):
    """Keys and values of all rows and the features, from the text read from scratch."""
    fused = drafter.network.fuse(model(tokens, taps=drafter.taps).taps)
    following = jnp.roll(tokens, -1, axis=1)
    at = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    return drafter.network.keys_and_values(drafter.embed(model, following), fused, at), fused


@pytest.mark.parametrize("name", ["all", "normed", "long"])
def test_memory_holds_true_rows_up_to_the_last_feature(pair, name):
    """After every step, as if the text had been read from scratch in one pass."""
    model, _, drafters = pair
    drafter, rng = drafters[name], np.random.default_rng(0)
    prompts = [rng.integers(4, 250, n).tolist() for n in (1, 9, 16)]
    state, stops, sampling, mode = start(model, drafter, prompts)
    for _ in range(6):
        lengths, memory = np.asarray(state.lengths), state.progress.memory
        (k, v), fused = rows_of(drafter, model, state.tokens)
        for row, length in enumerate(lengths):
            for held, new in ((memory.cache.keys[0], k), (memory.cache.values[0], v)):
                here = np.asarray(held[row]).swapaxes(0, 1)[: length - 2]
                np.testing.assert_allclose(here, new[row, : length - 2], atol=2e-5)
            kept = np.asarray(fused[row, length - 2])
            np.testing.assert_allclose(memory.feature[row], kept, atol=2e-5)
        state = decode(model, state, stops, sampling, np.int32(1), mode, drafter)


@pytest.mark.parametrize("name", ["all", "few"])
def test_what_a_refused_draft_left_is_never_read(pair, name):
    """Noise in all rows behind the last true one: the draft stays what it is."""
    model, _, drafters = pair
    drafter = drafters[name]
    state, stops, sampling, mode = start(model, drafter, [[5, 6, 7], [9] * 11])
    for _ in range(4):
        draft, after = drafter.draft(model, state, sampling, mode)
        behind = jnp.arange(64) >= (state.lengths - 2)[:, None]
        memory = state.progress.memory
        noise = jax.tree.map(lambda x: jnp.where(behind[:, None, :, None], 7.0, x), memory.cache)  # noqa: B023
        memory = memory._replace(cache=noise)
        spoiled = state._replace(progress=state.progress._replace(memory=memory))
        found, _ = drafter.draft(model, spoiled, sampling, mode)
        np.testing.assert_array_equal(draft.tokens, found.tokens)
        state = decode(model, state, stops, sampling, np.int32(1), mode, drafter)


def test_a_draft_is_its_own_chain(pair):
    """Each guess is the best of a pass that reads the guess before and the state before."""
    model, _, drafters = pair
    for name in ("all", "few", "normed"):
        drafter = drafters[name]
        state, _, sampling, mode = start(model, drafter, [[5, 6, 7, 8]])
        draft, _ = drafter.draft(model, state, sampling, mode)
        data = {"tokens": np.concatenate([state.tokens[0, 1:5], draft.tokens[0]])}
        _, logits = chain(drafter, model, state.progress.memory, data, 3, 3)
        best = np.asarray(logits).argmax(-1)
        words = drafter.vocabulary
        assert (draft.tokens[0] == (best if words is None else words[best])).all()


@pytest.mark.parametrize("how", [{"temperature": 0.7}, {"temperature": 1.3, "top_k": 4}])
def test_chances_are_those_the_draft_was_drawn_from(pair, how):
    """Also with a reduced vocabulary: other tokens have none."""
    model, _, drafters = pair
    for name in ("all", "few"):
        drafter = drafters[name]
        state, _, sampling, mode = start(model, drafter, [[5, 6, 7, 8]], **how)
        draft, _ = drafter.draft(model, state, sampling, mode)
        data = {"tokens": np.concatenate([state.tokens[0, 1:5], draft.tokens[0]])}
        _, logits = chain(drafter, model, state.progress.memory, data, 3, 3)
        rows = jax.tree.map(lambda x: jnp.repeat(x, 3, axis=0), sampling)
        expected = np.asarray(distribution(logits, rows, mode))
        found = np.asarray(draft.chances[0])
        assert found.shape[1] == model.config.vocab_size
        if name == "few":
            words = np.asarray(drafter.vocabulary)
            assert np.isin(np.asarray(draft.tokens), words).all()
            assert not np.delete(found, words, axis=1).any()
            found = found[:, words]
        np.testing.assert_allclose(found, expected, atol=1e-6)


# Training

def random_batch(drafter, model, rows=2, length=24, seed=0):
    rng = np.random.default_rng(seed)
    tokens = jnp.array(rng.integers(4, 250, (rows, length)))
    features = t.read_features(model, tokens, drafter.taps)
    lengths = jnp.array(rng.integers(length - 5, length + 1, rows))
    return t.Batch(tokens, lengths, jnp.full(rows, 5), features)


def test_a_chain_learns_nothing_from_behind_its_anchor(pair):
    """Other features there, and other chains, leave it; its own tokens and rows before do not."""
    model, _, drafters = pair
    for name in ("all", "normed"):
        drafter = drafters[name]
        batch, anchors = random_batch(drafter, model), jnp.array([[6, 10, 18]] * 2)
        before = drafter.unroll(model, batch, anchors)
        place = jnp.arange(24)
        for n, anchor in enumerate((6, 10, 18)):
            far = (place >= anchor)[:, None]
            features = tuple(jnp.where(far, 3.0, x) for x in batch.features)
            tokens = jnp.where(place > anchor + 2, 5, batch.tokens)
            behind = batch._replace(features=features, tokens=tokens)
            others = anchors.at[:, [i for i in range(3) if i != n]].set(2)
            for other, where in ((behind, anchors), (batch, others)):
                after = drafter.unroll(model, other, where)
                np.testing.assert_allclose(before[:, n], after[:, n], atol=1e-6)
            for at in (anchor - 1, anchor - 3):
                nearer = tuple(x.at[:, at].add(1.0) for x in batch.features)
                after = drafter.unroll(model, batch._replace(features=nearer), anchors)
                assert (np.abs(np.asarray(after[:, n] - before[:, n])).max(-1) > 1e-5).all()
            token = batch._replace(tokens=batch.tokens.at[:, anchor + 1].set(5))
            moved = np.abs(np.asarray(drafter.unroll(model, token, anchors) - before))[:, n].max(-1)
            assert (moved[:, 0] < 1e-6).all() and (moved[:, 1:] > 1e-5).all()


def test_later_passes_teach_earlier_ones(pair):
    """The gradient of the third pass goes through the states of the first two."""
    model, _, drafters = pair
    drafter = drafters["all"]
    batch = random_batch(drafter, model)

    def third(shift):
        network = drafter.network
        real, calls = type(network).__call__, []

        class Shifted(type(network)):
            def __call__(self, embeds, features, positions, cache):
                calls.append(None)
                hidden, x, cache = real(self, embeds, features, positions, cache)
                return hidden, x + shift * (len(calls) == 1), cache

        before = network.__class__
        network.__class__ = Shifted
        try:
            hidden = drafter.unroll(model, batch, jnp.array([[6, 10]] * 2))
        finally:
            network.__class__ = before
        return hidden[:, :, 2].sum()

    assert abs(jax.grad(third)(0.0)) > 1e-4


def test_the_loss_is_the_cross_entropy_of_the_passes(pair):
    """Against a loop in float64 over anchors and passes, with and without a smaller head."""
    model, _, drafters = pair
    for name in ("all", "few"):
        drafter = dataclasses.replace(drafters[name], anchors=5)
        batch = random_batch(drafter, model)
        key = jax.vmap(jax.random.key)(jnp.arange(2))
        loss, sums = drafter.loss(model, batch, key)
        anchors, valid = t.draw_anchors(key, batch, 5)
        words = np.arange(267) if drafter.vocabulary is None else np.asarray(drafter.vocabulary)
        total, weight, accepted = 0.0, 0.0, 0
        assert valid.all()
        for row, n in np.ndindex(2, 5):
            anchor, run = int(anchors[row, n]), True
            features = np.concatenate(batch.features, -1)[row]
            data = {"tokens": np.asarray(batch.tokens[row, 1:]), "features": features}
            data["tokens"] = np.pad(data["tokens"], (0, 3))
            memory = drafter.begin(model, 1, 24)
            memory = observe(drafter, model, memory, data, 0, anchor)
            _, logits = chain(drafter, model, memory, data, anchor - 1, 3)
            accepted += 1
            for k, scores in enumerate(np.asarray(logits, np.float64), 1):
                if anchor + k >= batch.lengths[row]:
                    break
                label = int(batch.tokens[row, anchor + k])
                run = run and words[scores.argmax()] == label
                accepted += run
                if label in words:
                    right = scores[np.flatnonzero(words == label)[0]]
                    miss = np.log(np.exp(scores - scores.max()).sum()) + scores.max() - right
                    total, weight = total + 0.8 ** (k - 1) * miss, weight + 0.8 ** (k - 1)
        np.testing.assert_allclose(loss, total / weight, rtol=1e-4)
        assert sums["accepted"] == accepted and sums["anchors"] == 10


TEXTS = [("Say hi!", "a"), ("the in", "b"), ("What?", "a"), ("er er er", "b"),
         ("x", "a"), ("A prompt of more bytes than others.", "a"), ("the the", "b"),
         ("hello", "b")]  # fmt: skip


@pytest.fixture(scope="module")
def responses(parts, tmp_path_factory):
    model, tokenizer = parts
    how = dict(max_new_tokens=24, rows=4, progress=False)
    return t.write_responses(model, tokenizer, TEXTS, tmp_path_factory.mktemp("shards"), **how)


SETTINGS = t.TrainSettings(
    steps=60, rows=4, rate=1e-2, longest=48, log_every=20, evaluate_every=60, save_every=60
)


@pytest.fixture(scope="module", params=["eagle", "draft model"])
def trained(request, pair, responses, tmp_path_factory):
    """What chapter 7's trainer makes of a drafter, and its metrics."""
    model = pair[0]
    learner = dataclasses.replace(pair[2]["all"], anchors=16)
    if request.param == "draft model":
        learner = eagle.DraftLearner.new(model, layers=1, hidden_size=24, seed=2)
    folder = tmp_path_factory.mktemp("run")
    return t.train(model, learner, responses, folder, SETTINGS, held_out=responses.of("a"))


def test_a_run_learns(trained):
    lines = {line["step"]: line for line in trained.metrics if "loss" in line}
    assert lines[60]["loss"] < lines[1]["loss"] - 1
    assert lines[1]["acceptance"] < 1.2 and lines[60]["acceptance"] > 1.6


def test_measured_acceptance_is_what_decoding_accepts(parts, trained, monkeypatch):
    """At each anchor of a greedy text, the loss counts what the step there added."""
    model, tokenizer = parts
    drafter, compared = trained.learner, 0
    for prompt, _ in TEXTS:
        lengths = []
        watch = lambda look: lengths.append(int(look.lengths[0]))  # noqa: B023
        answer = generate(
            model, tokenizer, prompt, max_new_tokens=30, drafter=drafter, watch=watch
        ).tokens
        tokens = jnp.array([encode_prompt(tokenizer, prompt, True, None) + answer])
        size = tokens.shape[1]
        features = t.read_features(model, tokens, drafter.taps)
        for length, following in zip(lengths, lengths[1:]):
            if length + drafter.block > size:  # the text's end cuts the draft
                continue
            # the only anchor: a response that begins there, and all behind its drafts cut off
            batch = t.Batch(tokens, jnp.array([length + 3]), jnp.array([length - 1]), features)
            chosen = jnp.array([[length - 1]]), jnp.array([[True]])
            monkeypatch.setattr(eagle, "draw_anchors", lambda *_: chosen)  # noqa: B023
            _, sums = drafter.loss(model, batch, jax.random.key(0)[None])
            found = int(sums["accepted"])
            if isinstance(drafter, eagle.DraftLearner):  # it has all anchors of the response
                batch = batch._replace(starts=jnp.array([length]))
                found -= int(drafter.loss(model, batch, jax.random.key(0)[None])[1]["accepted"])
            assert found == following - length
            compared += following - length > 1
    assert compared


def test_the_loss_of_a_draft_model_by_definition(parts):
    """Against a loop; acceptance counted from every anchor of the response."""
    model, _ = parts
    learner = eagle.DraftLearner.new(model, layers=1, hidden_size=16, seed=0)
    rng = np.random.default_rng(0)
    tokens, lengths, starts = rng.integers(0, 6, (3, 20)), [20, 11, 7], [3, 5, 5]
    learner.model.embed_tokens = nnx.Param(learner.model.embed_tokens[...].at[6:].set(0.0))
    batch = t.Batch(*map(jnp.array, (tokens, lengths, starts)))
    loss, sums = learner.loss(model, batch, None)
    scores = np.asarray(learner.model.logits(learner.model(batch.tokens).hidden), np.float64)
    total = places = accepted = 0
    for row, (length, begin) in enumerate(zip(lengths, starts)):
        for a in range(begin, length - 1):
            miss = np.log(np.exp(scores[row, a]).sum()) - scores[row, a, tokens[row, a + 1]]
            total, places, accepted = total + miss, places + 1, accepted + 1
            for at in range(a, min(a + 3, length - 1)):
                if scores[row, at].argmax() != tokens[row, at + 1]:
                    break
                accepted += 1
    np.testing.assert_allclose(loss, total / places, rtol=1e-5)
    assert (int(sums["accepted"]), int(sums["anchors"])) == (accepted, places)
    assert accepted > places, "some guesses were right"


def test_a_draft_model_of_an_impossible_size(parts):
    with pytest.raises(UserError, match="hidden_size is 20; expected a multiple of 8"):
        eagle.DraftLearner.new(parts[0], hidden_size=20)


# Checkpoints

def load(folder, **other):
    name = Path(folder).name
    known = DRAFTERS / f"{name}.npz"
    table = read_golden(f"eagle/{name}.npz")["table"] if known.exists() else None
    return dflash_lite.load_eagle(folder, target_of(table), **other)


@pytest.mark.parametrize("name", NAMES)
def test_a_drafter_comes_back(name, tmp_path):
    drafter = load(DRAFTERS / name)
    dflash_lite.save_eagle(drafter, tmp_path / name, "float32")
    again = load(tmp_path / name)
    assert again.network.config == drafter.network.config
    for a, b in zip(jax.tree.leaves(drafter), jax.tree.leaves(again), strict=True):
        assert (np.asarray(a) == np.asarray(b)).all()
    assert sorted(p.name for p in (tmp_path / name).iterdir()) == [
        "config.json", "model.safetensors"
    ]


@pytest.mark.parametrize("name", NAMES)
def test_all_tensors_of_the_authors_layout_are_written_as_they_are(name, tmp_path):
    dflash_lite.save_eagle(load(DRAFTERS / name), tmp_path / "again", "float32")
    first, second = (load_file(f / "model.safetensors")
                     for f in (DRAFTERS / name, tmp_path / "again"))  # fmt: skip
    data = json.loads((DRAFTERS / name / "config.json").read_text())
    if "speculators_model_type" in data:
        first = {n.replace("layers.0.", "midlayer."): x for n, x in first.items()}
        first = {n: x for n, x in first.items() if n != "embed_tokens.weight"}  # the target's
    assert first.keys() == second.keys()
    for label, array in first.items():
        assert second[label].dtype == array.dtype and (second[label] == array).all(), label
    config = json.loads((tmp_path / "again" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]


@pytest.mark.parametrize("name", ["published", "reduced"])
def test_bfloat16_comes_back(name, tmp_path):
    drafter = load(DRAFTERS / name, dtype="bfloat16")
    dflash_lite.save_eagle(drafter, tmp_path / name)
    again = load(tmp_path / name, dtype="bfloat16")
    for a, b in zip(jax.tree.leaves(drafter), jax.tree.leaves(again), strict=True):
        assert a.dtype == b.dtype and (np.asarray(a) == np.asarray(b)).all()


def copy_of(name, folder, change=None, **entries):
    """A golden drafter with another config or other tensors."""
    shutil.copytree(DRAFTERS / name, folder)
    data = json.loads((folder / "config.json").read_text()) | entries
    (folder / "config.json").write_text(json.dumps(data))
    if change:
        path = folder / "model.safetensors"
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path)
    return folder


def test_an_embedding_of_its_own_is_kept_and_the_targets_is_not(tmp_path):
    assert load(DRAFTERS / "published").table is None

    def other(tensors):
        tensors["embed_tokens.weight"] = tensors["embed_tokens.weight"] + 1

    drafter = load(copy_of("published", tmp_path / "published", other))
    table = read_golden("eagle/published.npz")["table"]
    np.testing.assert_array_equal(drafter.table, table + 1)
    np.testing.assert_array_equal(drafter.embed(target_of(), jnp.array([[3]]))[0, 0], table[3] + 1)
    dflash_lite.save_eagle(drafter, tmp_path / "again" / "published", "float32")
    again = load(tmp_path / "again" / "published")
    np.testing.assert_array_equal(again.table, drafter.table)


@pytest.mark.parametrize(
    "name, entries, words",
    [
        ("plain", {"architectures": ["LlamaForCausalLM"]}, "no EAGLE-3 drafter"),
        ("plain", {"num_hidden_layers": 2}, "num_hidden_layers is 2; expected 1"),
        ("plain", {"draft_vocab_size": 49}, "draft_vocab_size is 49; .*48"),
        ("plain", {"draft_vocab_size": 7}, r"d2t has the shape None"),
        ("plain", {"eagle_aux_hidden_state_layer_ids": [0, 3, 5]}, r"\[-1, 2, 4\]"),
        ("plain", {"eagle_aux_hidden_state_layer_ids": []}, r"layers \[\]"),
        ("plain", {"eagle_aux_hidden_state_layer_ids": [1, 2, 13]}, "of 13 layers; .*has 12"),
        ("plain", {"eagle_aux_hidden_state_layer_ids": 0}, "layer_ids is 0; expected a list"),
        ("plain", {"eagle_aux_hidden_state_layer_ids": [1, "2"]}, "expected a list of layers"),
        ("plain", {"architectures": 1}, "no EAGLE-3 drafter"),
        ("plain", {"architectures": [1]}, "no EAGLE-3 drafter"),
        ("plain", {"layer_types": "sliding_attention"}, "sliding_attention"),
        ("plain", {"norm_output": "false"}, "norm_output is 'false'; expected true or false"),
        ("plain", {"target_hidden_size": 32}, "target_hidden_size is 32, hidden_size 16"),
        ("plain", {"hidden_size": 32}, "hidden_size 32; this one has 16"),
        ("plain", {"vocab_size": 50, "draft_vocab_size": 50}, "vocab_size 50; this one has 48"),
        ("plain", {"layer_types": ["sliding_attention"]}, "sliding_attention"),
        ("plain", {"norm_before_fc": True, "fc_norm": True}, "both set"),
        ("plain", {"norm_before_fc": True}, "no tensor input_norm.weight"),
        ("plain", {"intermediate_size": 32}, "midlayer.mlp.* has the shape"),
        ("before-fc", {"norm_before_fc": False}, "no place for the tensor input_norm"),
        ("published", {"speculators_model_type": "dflash"}, "is 'dflash'; expected 'eagle3'"),
        ("published", {"transformer_layer_config": None}, "with a transformer_layer_config"),
        ("reduced", {"draft_vocab_size": 19}, r"d2t has the shape \(20,\); expected \(19,\)"),
    ],
)  # fmt: skip
def test_a_wrong_config_is_named(tmp_path, name, entries, words):
    with pytest.raises(UserError, match=words):
        load(copy_of(name, tmp_path / name, **entries))


PLAIN = json.loads((DRAFTERS / "plain" / "config.json").read_text())
PUBLISHED = json.loads((DRAFTERS / "published" / "config.json").read_text())


@pytest.mark.parametrize("config", [PLAIN, PUBLISHED], ids=["authors", "speculators"])
@settings(max_examples=150)
@given(data=st.data())
def test_any_config_is_read_or_refused(config, data):
    odd, more = dict(config), ["eagle_config", "layer_types", "target_hidden_size", *eagle.FLAGS]
    for name in data.draw(st.lists(st.sampled_from([*config, *more]), min_size=1, max_size=3)):
        odd[name] = data.draw(JSON)
    try:
        eagle.read_eagle_config(odd, 12)
    except UserError:
        pass


def wrong_words(tensors):
    tensors["d2t"] = tensors["d2t"] + 40


def falling_words(tensors):
    tensors["d2t"] = tensors["d2t"][::-1].copy()


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda x: x.pop("fc.weight"), "no tensor fc.weight"),
        (lambda x: x.pop("midlayer.hidden_norm.weight"), "hidden_norm"),
        (lambda x: x.update(extra=x["norm.weight"]), "no place for the tensor extra"),
        (lambda x: x.update({"lm_head.weight": x["fc.weight"]}), "lm_head.weight has the shape"),
        (wrong_words, "d2t names the tokens .*expected rising ones from 0 to 47"),
        (falling_words, "d2t names the tokens"),
    ],
)
def test_a_wrong_file_is_named(tmp_path, change, words):
    with pytest.raises(UserError, match=words):
        load(copy_of("reduced", tmp_path / "reduced", change))


def test_files_that_are_no_drafter_are_named(tmp_path):
    target = target_of()
    with pytest.raises(UserError, match="no drafter 'nothing'.*speculator.eagle3"):
        dflash_lite.load_eagle("nothing", target)
    with pytest.raises(UserError, match="no config.json"):
        dflash_lite.load_eagle(tmp_path, target)
    folder = copy_of("plain", tmp_path / "plain")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(UserError, match="safetensors"):
        load(folder)
    path.rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="pickle.*convert it"):
        load(folder)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"hidden_size": 32}, "hidden_size 16; this one has 32"),
        ({"vocab_size": 99}, "vocab_size 48; this one has 99"),
        ({"num_hidden_layers": 11}, "of 12 layers; .*has 11"),
    ],
)
def test_a_foreign_target_is_named(change, words):
    with pytest.raises(UserError, match=words):
        dflash_lite.load_eagle(DRAFTERS / "taps", target_of(**change))


def test_a_drafter_of_another_model_does_not_draft(pair, tmp_path):
    other, tokenizer = dflash_lite.load(write_hub(tmp_path, num_hidden_layers=2))
    with pytest.raises(UserError, match="of 3 layers; this target has 2"):
        generate(other, tokenizer, "ab", drafter=pair[2]["all"])
    for vocabulary in ([-1, 5], [5, 267]):
        with pytest.raises(UserError, match="vocabulary goes from"):
            eagle.new_eagle(pair[0], taps=(0, 1, 2), vocabulary=vocabulary)
    with pytest.raises(UserError, match="block is 1"):
        eagle.new_eagle(pair[0], block=1, taps=(0, 1, 2))


def test_a_write_that_fails_leaves_the_old_drafter(pair, tmp_path, monkeypatch):
    model, _, drafters = pair
    dflash_lite.save_eagle(drafters["all"], tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(transformer, "save_file", full)
    with pytest.raises(OSError):
        dflash_lite.save_eagle(drafters["few"], tmp_path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
