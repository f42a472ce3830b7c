"""DFlash: the network is z-lab's, the cache holds what it should, checkpoints come back whole."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from goldens import GOLDEN, read_golden
from helpers import write_hub
from hypothesis import given, settings, strategies as st
from safetensors.numpy import load_file, save_file
from test_checkpoints import JSON

import dflash_lite
from dflash_lite import dflash, transformer
from dflash_lite.checkpoints import ModelConfig, UserError
from dflash_lite.decoding import decode, generate, make_sampling, prefill
from dflash_lite.paged_attention import PagedMemory
from dflash_lite.speculative import distribution
from dflash_lite.training import Batch, draw_anchors
from dflash_lite.transformer import Transformer, attention

DRAFTERS = GOLDEN / "drafters"
NAMES = sorted(path.stem for path in DRAFTERS.glob("*.npz"))
TOLERANCE = 1e-4


def target_of(config, table=None, seed=0):
    """A random target that a drafter's config fits."""
    shape = config.layers
    layers = ModelConfig(
        "llama", shape.vocab_size, shape.hidden_size, 48, config.num_target_layers or 12, 4, 2, 8,
        128, tie_word_embeddings=True,
    )
    model = Transformer(layers, rngs=nnx.Rngs(seed))
    if table is not None:
        model.embed_tokens = nnx.Param(jnp.asarray(table))
    return model


@pytest.fixture(scope="module", params=NAMES)
def golden(request):
    """A drafter as the package loads it, its target, and what z-lab's code computes."""
    data = read_golden(f"drafters/{request.param}.npz")
    folder = DRAFTERS / request.param
    config = dflash.read_config(json.loads((folder / "config.json").read_text()))
    target = target_of(config, data["table"])
    return dflash_lite.load_drafter(folder, target), target, data


def observe(drafter, target, memory, features, first, padding=0):
    """Let a drafter see feature rows from a position on, some rows of padding behind them."""
    rows = np.pad(features, ((0, 0), (0, padding), (0, 0)), constant_values=9.0)
    positions = first + np.broadcast_to(np.arange(rows.shape[1]), rows.shape[:2])
    counted = np.broadcast_to(np.arange(rows.shape[1]) < features.shape[1], rows.shape[:2])
    tapped = tuple(np.split(rows, len(drafter.taps), axis=-1))
    tokens = np.zeros(rows.shape[:2], int)
    return drafter.observe(target, memory, tokens, jnp.asarray(positions), counted, tapped)


def assert_close(found, expected, what):
    error = np.abs(np.asarray(found) - expected).max() / np.abs(expected).max()
    assert error < TOLERANCE, f"{what}: off by {error:.1e} of the largest value"


def test_a_block_is_what_z_lab_computes(golden):
    """First call and later calls, with rows of padding that must not show."""
    drafter, target, data = golden
    assert drafter.taps == tuple(data["taps"])
    memory, start = drafter.begin(target, 1, 40), 0
    for call, count in enumerate(data["contexts"]):
        features = data["features"][:, start : start + count]
        memory = observe(drafter, target, memory, features, start, padding=4)
        start += count
        anchor = jnp.array([[data["anchors"][call]]])
        positions = start + jnp.arange(drafter.block)[None]
        view = dflash.BlockCache(drafter.network.config, memory, jnp.array([start]))
        hidden = drafter.network(drafter.embed(target, anchor), positions, view)
        assert_close(hidden[0], data["hidden"][call], f"hidden states of call {call}")
        logits = drafter.logits(target, hidden)
        assert_close(logits[0], data["logits"][call], f"logits of call {call}")


@pytest.mark.parametrize("shift", [-1, 1])
def test_the_golden_arrays_see_a_position_that_is_off_by_one(golden, shift):
    """The test above can fail: context rows shifted by one give other states."""
    drafter, target, data = golden
    count = data["contexts"][0]
    memory = observe(drafter, target, drafter.begin(target, 1, 40),
                     data["features"][:, :count], max(shift, 0))  # fmt: skip
    anchor = jnp.array([[data["anchors"][0]]])
    first = count + min(shift, 0)
    positions = first + jnp.arange(drafter.block)[None]
    view = dflash.BlockCache(drafter.network.config, memory, jnp.array([count + max(shift, 0)]))
    hidden = drafter.network(drafter.embed(target, anchor), positions, view)
    expected = data["hidden"][0]
    assert np.abs(np.asarray(hidden[0]) - expected).max() > 10 * TOLERANCE * np.abs(expected).max()


def test_default_taps_are_z_labs():
    known = read_golden("drafters/taps.json")
    assert len(known) > 500
    for name, taps in known.items():
        assert dflash.default_taps(*map(int, name.split())) == tuple(taps), name


# Parts of attention, against one that joins them

@settings(max_examples=25)
@given(
    st.integers(1, 3), st.sampled_from([(1, 1), (2, 1), (4, 2), (3, 3)]), st.integers(1, 5),
    st.lists(st.integers(1, 6), min_size=1, max_size=3), st.integers(0, 2**31),
)  # fmt: skip
def test_attention_over_parts_is_attention(batch, heads, queries, sizes, seed):
    rng = np.random.default_rng(seed)
    count, kv = heads
    q = rng.normal(size=(batch, queries, count, 8)).astype(np.float32)
    parts = [
        dflash.Part(
            *rng.normal(size=(2, batch, kv, size, 8)).astype(np.float32),
            rng.random((batch, queries, size)) < 0.6,
        )
        for size in sizes
    ]
    joined = dflash.Part(*(np.concatenate(x, 2 if x[0].ndim == 4 else -1) for x in zip(*parts)))
    expected = jax.jit(attention)(q, *joined)
    found = jax.jit(dflash.attend_to_parts)(q, parts)
    np.testing.assert_allclose(found, expected, atol=2e-6)


def test_what_a_query_sees_follows_the_table():
    """Every rule against the obvious loop."""
    queries, keys = jnp.array([[5, 6, 7]]), jnp.arange(10)[None]
    for window in (None, 1, 3):
        for causal in (False, True):
            found = np.asarray(dflash.near(queries, keys, window, causal))[0]
            for i, q in enumerate((5, 6, 7)):
                for k in range(10):
                    seen = (k <= q or not causal) and (window is None or abs(q - k) < window)
                    assert found[i, k] == seen


# The whole drafter

@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A random target with a tokenizer, and a random drafter of two layers for it."""
    folder = tmp_path_factory.mktemp("dflash") / "target"
    write_hub(folder, num_hidden_layers=6)
    model, tokenizer = dflash_lite.load(folder)
    return model, tokenizer, dflash.new_drafter(model, 3, layers=2, block=4, seed=1)


PROMPTS = ["ab ab ab", "the", "in the other theatre, the thing"]


@pytest.mark.parametrize("how, where", [
    ({}, "dense"), ({}, "paged"), ({"temperature": 1.0}, "paged"),
    ({"temperature": 0.8, "top_k": 5}, "dense"),
])  # fmt: skip
def test_a_random_drafter_leaves_the_text(pair, where, how):
    """Greedy text is the same; a drawn one is as long, and drafts were verified."""
    model, tokenizer, drafter = pair
    memory = PagedMemory(model, 64, 8) if where == "paged" else None
    options = dict(max_new_tokens=24, chat=False, **how)
    plain = generate(model, tokenizer, PROMPTS, **options)
    found = generate(model, tokenizer, PROMPTS, drafter=drafter, memory=memory, **options)
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


@jax.jit
def from_scratch(model, drafter, tokens):
    """The context's keys and values of whole texts."""
    output = model(tokens, taps=drafter.taps)
    fused = drafter.network.fuse(output.taps)
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    return drafter.network.keys_and_values(fused, positions)


@pytest.mark.parametrize("seed", range(3))
def test_memory_holds_the_context_and_nothing_else(pair, seed):
    """After every step, as if the text had been read from scratch in one pass."""
    model, _, drafter = pair
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(4, 250, n).tolist() for n in (1, 9, 16)]
    state, stops, sampling, mode = start(model, drafter, prompts)
    for _ in range(5):
        lengths, memory = np.asarray(state.lengths), state.progress.memory
        expected = from_scratch(model, drafter, state.tokens)
        for layer, (k, v) in enumerate(expected):
            for held, new in ((memory.keys, k), (memory.values, v)):
                for row, length in enumerate(lengths):
                    here = np.asarray(held[layer][row]).swapaxes(0, 1)
                    kept = np.asarray(new[row, : length - 1])
                    np.testing.assert_allclose(here[: length - 1], kept, atol=2e-5)
                    assert not here[length - 1 :].any(), "nothing of a block or of padding"
        state = decode(model, state, stops, sampling, np.int32(1), mode, drafter)


def test_slot_k_predicts_the_token_at_slot_k(pair):
    """The draft of a place is the argmax of the hidden row at that place, not of the one before."""
    model, _, drafter = pair
    state, _, sampling, mode = start(model, drafter, [[5, 6, 7, 8]])
    draft, _ = drafter.draft(model, state, sampling, mode)
    view = dflash.BlockCache(drafter.network.config, state.progress.memory, state.lengths - 1)
    positions = (state.lengths - 1)[:, None] + jnp.arange(4)
    last = state.tokens[:, 4:5]
    rows = drafter.logits(model, drafter.network(drafter.embed(model, last), positions, view))
    assert draft.tokens.shape == (1, 3)
    assert (np.asarray(draft.tokens[0]) == np.asarray(rows[0].argmax(-1))[1:]).all()


@pytest.mark.parametrize("how", [{"temperature": 0.7}, {"temperature": 1.3, "top_k": 4}])
def test_chances_are_those_the_draft_was_drawn_from(pair, how):
    """Also with a reduced vocabulary: other tokens have none."""
    model, _, drafter = pair
    tokens = np.arange(5, 60, 3)
    few = dflash.DFlash(drafter.network, 4, jnp.array(tokens), model.embed_tokens[...][tokens])
    for one in (drafter, few):
        state, _, sampling, mode = start(model, one, [[5, 6, 7, 8]], **how)
        draft, _ = one.draft(model, state, sampling, mode)
        view = dflash.BlockCache(one.network.config, state.progress.memory, state.lengths - 1)
        positions = (state.lengths - 1)[:, None] + jnp.arange(4)
        x = one.embed(model, state.tokens[:, 4:5])
        hidden = one.network(x, positions, view)[0, 1:]
        rows = jax.tree.map(lambda x: jnp.repeat(x, 3, axis=0), sampling)
        expected = np.asarray(distribution(one.logits(model, hidden), rows, mode))
        found = np.asarray(draft.chances[0])
        if one is few:
            assert np.isin(np.asarray(draft.tokens), tokens).all()
            assert found.shape[1] == model.config.vocab_size
            others = np.setdiff1d(np.arange(model.config.vocab_size), tokens)
            assert not found[:, others].any()
            found = found[:, tokens]
        np.testing.assert_allclose(found, expected, atol=1e-6)
        np.testing.assert_allclose(found.sum(-1), 1, atol=1e-5)


# Training sees what drafting sees

def blocks_alone(drafter, target, batch, row, anchors):
    """Hidden states of each block as decoding computes them, one anchor at a time."""
    features = np.concatenate(batch.features, -1)[row : row + 1]
    found = []
    for anchor in anchors:
        memory = drafter.begin(target, 1, batch.tokens.shape[1])
        memory = observe(drafter, target, memory, features[:, :anchor], 0)
        view = dflash.BlockCache(drafter.network.config, memory, jnp.array([anchor]))
        positions = anchor + jnp.arange(drafter.block)[None]
        x = drafter.embed(target, batch.tokens[row, anchor][None, None])
        found.append(drafter.network(x, positions, view)[0])
    return jnp.stack(found)


def random_batch(drafter, target, rows=2, length=24, seed=0):
    rng = np.random.default_rng(seed)
    tokens = jnp.array(rng.integers(4, target.config.vocab_size, (rows, length)))
    hidden = target.config.hidden_size
    taps = rng.normal(size=(len(drafter.taps), rows, length, hidden)).astype(np.float32)
    lengths = jnp.array(rng.integers(length - 5, length + 1, rows))
    return Batch(tokens, lengths, jnp.full(rows, 5), tuple(map(jnp.array, taps)))


def test_training_computes_what_drafting_computes(golden):
    """Every layout of z-lab's: windows, causal layers, biases, scales."""
    drafter, target, _ = golden
    batch = random_batch(drafter, target)
    anchors = jnp.array([[5, 9, 17], [6, 16, 18]])
    found = drafter.blocks(target, batch, anchors, jnp.ones((2, 3), bool))
    for row in range(2):
        expected = np.asarray(blocks_alone(drafter, target, batch, row, anchors[row].tolist()))
        assert_close(found[row], expected, f"row {row}")


def test_a_block_learns_nothing_from_behind_its_anchor(golden):
    """Other tokens and features there, and other blocks, leave its hidden states."""
    drafter, target, _ = golden
    batch = random_batch(drafter, target)
    anchors, valid = jnp.array([[6, 10, 18]] * 2), jnp.ones((2, 3), bool)
    before = drafter.blocks(target, batch, anchors, valid)
    place = jnp.arange(24)
    for n, anchor in enumerate((6, 10, 18)):
        behind = batch._replace(
            tokens=jnp.where(place > anchor, 5, batch.tokens),
            features=tuple(jnp.where((place >= anchor)[:, None], 3.0, x) for x in batch.features),
        )
        after = drafter.blocks(target, behind, anchors, valid)
        np.testing.assert_array_equal(before[:, n], after[:, n])
        nearer = batch._replace(
            features=tuple(x.at[:, anchor - 1].add(1.0) for x in batch.features)
        )
        after = drafter.blocks(target, nearer, anchors, valid)
        assert (np.abs(np.asarray(after[:, n] - before[:, n])).max((1, 2)) > 1e-4).all()


def test_the_loss_is_the_cross_entropy_of_the_slots(pair):
    """Against a loop in float64 over anchors and slots, with and without a smaller head."""
    model, _, drafter = pair
    few = np.arange(0, model.config.vocab_size, 2)
    for one in (drafter, dflash.DFlash(drafter.network, 4, jnp.array(few))):
        one = dataclasses.replace(one, anchors=5)
        batch = random_batch(one, model)
        key = jax.vmap(jax.random.key)(jnp.arange(2))
        loss, sums = one.loss(model, batch, key)
        anchors, valid = draw_anchors(key, batch, 5)
        total, weight, accepted = 0.0, 0.0, 0
        for row in range(2):
            hidden = blocks_alone(one, model, batch, row, anchors[row].tolist())
            scores = np.asarray(one.logits(model, hidden), np.float64)
            for n, anchor in enumerate(anchors[row].tolist()):
                assert valid[row, n]
                run = True
                accepted += 1
                for k in range(1, 4):
                    if anchor + k >= batch.lengths[row]:
                        break
                    label, row_k = int(batch.tokens[row, anchor + k]), scores[n, k]
                    index = label
                    if len(row_k) == len(few):
                        index = label // 2 if label % 2 == 0 else None
                    run = run and index is not None and row_k.argmax() == index
                    accepted += run
                    if index is None:
                        continue
                    chance = row_k[index] - np.log(np.exp(row_k - row_k.max()).sum()) - row_k.max()
                    share = np.exp(-(k - 1) / 2)
                    total, weight = total - share * chance, weight + share
        np.testing.assert_allclose(loss, total / weight, rtol=1e-4)
        assert sums["accepted"] == accepted and sums["anchors"] == 10


@pytest.fixture(scope="module")
def trained(pair):
    """A drafter that has learnt the target's texts, and these texts."""
    model, _, _ = pair
    rng = np.random.default_rng(0)
    prompts = [rng.integers(4, 250, 8).tolist() for _ in range(12)]
    answers = generate(model, pair[1], prompts, max_new_tokens=40)
    texts = [p + a.tokens for p, a in zip(prompts, answers, strict=True)]
    tokens = np.zeros((12, 64), np.int32)
    for row, text in zip(tokens, texts, strict=True):
        row[: len(text)] = text
    drafter = dflash.new_drafter(model, 3, layers=2, block=6, seed=2)
    lengths = jnp.array([len(text) for text in texts])
    features = jax.jit(lambda t: model(t, taps=drafter.taps).taps)(tokens)
    batch = Batch(jnp.array(tokens), lengths, jnp.full(12, 8), features)
    drafter = dataclasses.replace(drafter, anchors=24)
    transform = optax.adam(3e-3)

    @jax.jit
    def step(drafter, state, number):
        keys = jax.vmap(lambda row: jax.random.fold_in(jax.random.key(number), row))(
            jnp.arange(12)
        )
        loss = lambda drafter: drafter.loss(model, batch, keys)
        (_, sums), slope = jax.value_and_grad(loss, has_aux=True)(drafter)
        change, state = transform.update(slope, state)
        return optax.apply_updates(drafter, change), state, sums

    state, curve = transform.init(drafter), []
    for number in range(150):
        drafter, state, sums = step(drafter, state, number)
        curve.append(float(sums["accepted"] / sums["anchors"]))
    return drafter, batch, curve


def test_acceptance_rises_with_training(trained):
    assert trained[2][0] < 1.5 and trained[2][-1] > 3


def test_decoding_accepts_what_training_counted(pair, trained):
    """Step by step: the drafts of a text and how many of them are accepted are those that the
    training's pass gives at the same anchor."""
    model, _, _ = pair
    drafter, batch, _ = trained
    prompts = [batch.tokens[row, :8].tolist() for row in range(3)]
    state, stops, sampling, mode = start(model, drafter, prompts, new=30)
    total = 0
    for _ in range(6):
        anchors = (state.lengths - 1)[:, None]
        texts = batch._replace(**{
            name: jax.tree.map(lambda x: x[:3], getattr(batch, name)) for name in batch._fields
        })
        hidden = drafter.blocks(model, texts, anchors, jnp.ones((3, 1), bool))[:, 0, 1:]
        drafts = np.asarray(drafter.logits(model, hidden).argmax(-1))
        following = np.asarray(anchors) + np.arange(1, 6)
        labels = np.take_along_axis(np.asarray(texts.tokens), following, axis=1)
        room = np.asarray(state.limits - state.lengths)[:, None]
        right = (drafts == labels) & (np.arange(1, 6) < room)
        expected = np.cumprod(right, axis=1).sum(1)
        running = ~np.asarray(state.done)
        state = decode(model, state, stops, sampling, np.int32(1), mode, drafter)
        last = state.progress.report.last
        np.testing.assert_array_equal(np.asarray(last.drafts)[running], drafts[running])
        np.testing.assert_array_equal(np.asarray(last.accepted)[running], expected[running])
        total += expected[running].sum()
    assert total > 20, "the drafter was not asked much"


# Checkpoints

@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A folder in the layout of Qwen3-4B's drafter, of small sizes, in bfloat16."""
    folder = tmp_path_factory.mktemp("published") / "drafter"
    config = {
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "dtype": "bfloat16",
        "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 5,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "max_position_embeddings": 128, "rope_theta": 1_000_000, "rms_norm_eps": 1e-6,
        "block_size": 16, "num_target_layers": 36, "attention_bias": False,
        "dflash_config": {"mask_token_id": 90, "target_layer_ids": [1, 9, 17, 25, 33]},
    }  # fmt: skip
    sizes = {"q_proj": (64, 32), "k_proj": (32, 32), "v_proj": (32, 32), "o_proj": (32, 64),
             "q_norm": (16,), "k_norm": (16,)}  # fmt: skip
    shapes = {"fc": (32, 160), "hidden_norm": (32,), "norm": (32,)}
    for i in range(5):
        layer = {f"self_attn.{name}": size for name, size in sizes.items()}
        layer |= {"input_layernorm": (32,), "post_attention_layernorm": (32,)}
        layer |= {"mlp.gate_proj": (48, 32), "mlp.up_proj": (48, 32), "mlp.down_proj": (32, 48)}
        shapes |= {f"layers.{i}.{name}": size for name, size in layer.items()}
    rng = np.random.default_rng(0)
    tensors = {f"{n}.weight": rng.normal(size=s).astype(jnp.bfloat16) for n, s in shapes.items()}
    assert len(tensors) == 58
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


def load(folder, **other):
    config = dflash.read_config(json.loads((Path(folder) / "config.json").read_text()))
    return dflash_lite.load_drafter(folder, target_of(config), **other)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_all_58_tensors_come_back(published, tmp_path, dtype):
    drafter = load(published, dtype=dtype)
    dflash_lite.save_drafter(drafter, tmp_path / "again")
    first, second = (load_file(f / "model.safetensors") for f in (published, tmp_path / "again"))
    assert first.keys() == second.keys() and len(first) == 58
    for name, array in first.items():
        assert second[name].dtype == array.dtype and second[name].shape == array.shape
        assert second[name].tobytes() == array.tobytes(), name
    assert sorted(p.name for p in (tmp_path / "again").iterdir()) == [
        "config.json", "model.safetensors"
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_config_comes_back(name, tmp_path):
    drafter = load(DRAFTERS / name)
    dflash_lite.save_drafter(drafter, tmp_path / "again", "float32")
    again = load(tmp_path / "again")
    assert again.network.config == drafter.network.config
    for a, b in zip(jax.tree.leaves(drafter), jax.tree.leaves(again), strict=True):
        assert (np.asarray(a) == np.asarray(b)).all()


def speculators(folder, into, **other):
    """The same drafter in the layout of speculators."""
    shutil.copytree(folder, into)
    data = json.loads((into / "config.json").read_text())
    own = data.pop("dflash_config")
    ids = own.get("target_layer_ids", dflash.default_taps(12, data["num_hidden_layers"]))
    wrapped = {
        "speculators_model_type": "dflash", "architectures": ["DFlashSpeculator"],
        "transformer_layer_config": data, "draft_vocab_size": data["vocab_size"],
        "block_size": own.get("block_size", data.get("block_size")), "mask_token_id": 7,
        "aux_hidden_state_layer_ids": [i + 1 for i in ids],
    }  # fmt: skip
    (into / "config.json").write_text(json.dumps(wrapped | other))
    return into


@pytest.mark.parametrize("name", ["plain", "one-layer", "many-taps", "sliding"])
def test_the_layout_of_speculators_is_the_same_drafter(name, tmp_path):
    data = read_golden(f"drafters/{name}.npz")
    first = load(DRAFTERS / name)
    second = load(speculators(DRAFTERS / name, tmp_path / "s"))
    assert second.taps == tuple(data["taps"]), "speculators counts from 1"
    assert second.network.config == first.network.config or name == "plain"
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        assert (np.asarray(a) == np.asarray(b)).all()


def test_a_reduced_vocabulary_is_read(tmp_path):
    folder = speculators(DRAFTERS / "plain", tmp_path / "s", draft_vocab_size=4)
    tensors = load_file(folder / "model.safetensors")
    rows = np.random.default_rng(0).normal(size=(4, 32)).astype(np.float32)
    tokens = np.array([3, 10, 11, 95])
    offsets = tokens - np.arange(4)
    seen = np.isin(np.arange(96), tokens)
    tensors |= {"d2t": offsets, "t2d": seen, "lm_head.weight": rows}
    save_file(tensors, folder / "model.safetensors")
    drafter = load(folder)
    assert (np.asarray(drafter.vocabulary) == tokens).all()
    assert (np.asarray(drafter.head) == rows).all()
    del tensors["lm_head.weight"]  # as this package writes it: the target's rows
    save_file(tensors, folder / "model.safetensors")
    config = dflash.read_config(json.loads((folder / "config.json").read_text()))
    target = target_of(config)
    drafter = dflash_lite.load_drafter(folder, target)
    assert (np.asarray(drafter.head) == np.asarray(target.embed_tokens[...])[tokens]).all()


# Mistakes

def spoiled(tmp_path, **other):
    """The golden drafter `plain` with another config."""
    folder = tmp_path / "spoiled"
    shutil.copytree(DRAFTERS / "plain", folder)
    data = json.loads((folder / "config.json").read_text())
    own = other.pop("dflash_config", {})
    data |= other
    data["dflash_config"] |= own
    (folder / "config.json").write_text(json.dumps(data))
    return folder


@pytest.mark.parametrize(
    "other, words",
    [
        ({"dflash_config": {"target_layer_ids": [1, 12]}}, r"\[1, 12\].*below.*12"),
        ({"dflash_config": {"target_layer_ids": [-1]}}, "target_layer_ids"),
        ({"dflash_config": {"target_layer_ids": []}}, "target_layer_ids"),
        ({"dflash_config": {"mask_token_id": 96}}, "mask_token_id is 96.*95"),
        ({"dflash_config": {"mask_token_id": None}}, "mask_token_id is None"),
        ({"dflash_config": {"selector_rank": 16}}, "selector_rank"),
        ({"dflash_config": {"attention_sink_bias": True}}, "attention_sink_bias"),
        ({"dflash_config": {"use_swa": True}}, None),
        ({"dflash_config": {"use_swa": True, "swa_window_size": 0}}, "window is 0"),
        ({"dflash_config": {"use_swa": "no"}}, "use_swa is 'no'; expected true or false"),
        ({"dflash_config": {"causal": 1}}, "causal is 1; expected true or false"),
        ({"dflash_config": {"target_layer_ids": 1}}, "target_layer_ids is 1; expected a list"),
        ({"dflash_config": {"target_layer_ids": ["1"]}}, "target_layer_ids"),
        ({"layer_types": 1}, "layer_types is 1; expected a list"),
        ({"layer_types": "xy"}, "layer_types is 'xy'"),
        ({"layer_types": ["full_attention", {}]}, "layer_types"),
        ({"input_embedding_scale": None}, "input_embedding_scale is None"),
        ({"input_embedding_scale": float("nan")}, "input_embedding_scale is nan"),
        ({"output_multiplier": "x"}, "output_multiplier is 'x'; expected a number above 0"),
        ({"output_multiplier": 0}, "output_multiplier is 0"),
        ({"final_logit_softcapping": "x"}, "final_logit_softcapping is 'x'"),
        ({"final_logit_softcapping": -1.0}, "final_logit_softcapping is -1.0"),
        ({"block_size": 1}, "block is 1"),
        ({"num_target_layers": 2}, "num_target_layers is 2"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1.*expected 2"),
        ({"hidden_size": 64}, r"shape"),
        ({"dflash_config": {"draft_vocab_size": 7}}, "d2t"),
    ],
)
def test_a_wrong_config_is_named(tmp_path, other, words):
    folder = spoiled(tmp_path, **other)
    if words is None:
        assert load(folder).network.config.windows == (None, None)
    else:
        with pytest.raises(UserError, match=words):
            load(folder)


PLAIN = json.loads((DRAFTERS / "plain" / "config.json").read_text())
WRAPPED = {"speculators_model_type": "dflash", "transformer_layer_config": PLAIN,
           "aux_hidden_state_layer_ids": [2, 4], "block_size": 4, "mask_token_id": 3}  # fmt: skip


@pytest.mark.parametrize("config", [PLAIN, WRAPPED], ids=["z-lab", "speculators"])
@settings(max_examples=150)
@given(data=st.data())
def test_any_config_is_read_or_refused(config, data):
    odd = dict(config)
    names = [*config, "layer_types", "output_multiplier", "final_logit_softcapping", "use_swa",
             "input_embedding_scale", "use_sliding_window", "is_causal", "draft_vocab_size",
             "num_target_layers", "sliding_window_non_causal"]  # fmt: skip
    for name in data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=3)):
        odd[name] = data.draw(JSON)
    if isinstance(odd.get("dflash_config"), dict):
        name = data.draw(st.sampled_from([*odd["dflash_config"], "use_swa", "swa_window_size"]))
        odd["dflash_config"] = odd["dflash_config"] | {name: data.draw(JSON)}
    try:
        dflash.read_config(odd)
    except UserError:
        pass


def test_files_that_are_no_drafter_are_named(tmp_path, pair):
    model = pair[0]
    with pytest.raises(UserError, match="no drafter 'nothing'"):
        dflash_lite.load_drafter("nothing", model)
    with pytest.raises(UserError, match="no config.json"):
        dflash_lite.load_drafter(tmp_path, model)
    shutil.copytree(GOLDEN / "checkpoints" / "qwen3-tied", tmp_path / "model")
    with pytest.raises(UserError, match="no dflash_config"):
        dflash_lite.load_drafter(tmp_path / "model", model)
    shutil.copytree(DRAFTERS / "plain", tmp_path / "cut")
    path = tmp_path / "cut" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(UserError, match="safetensors"):
        load(tmp_path / "cut")
    tensors = load_file(DRAFTERS / "plain" / "model.safetensors")
    for change, words in (({"fc.weight": None}, "fc.weight"), ({"extra.weight": 1}, "extra")):
        other = {n: t for n, t in tensors.items() if n not in change}
        other |= {n: tensors["norm.weight"] for n, t in change.items() if t}
        save_file(other, path)
        with pytest.raises(UserError, match=words):
            load(tmp_path / "cut")


@pytest.mark.parametrize(
    "change, words",
    [
        ({"hidden_size": 64}, "hidden_size 32.*has 64"),
        ({"vocab_size": 99}, "vocab_size 96.*has 99"),
        ({"num_hidden_layers": 11}, "layers 12.*has 11"),
    ],
)
def test_a_foreign_target_is_named(change, words):
    shape = dict(model_type="llama", vocab_size=96, hidden_size=32, intermediate_size=48,
                 num_hidden_layers=12, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                 max_position_embeddings=64)  # fmt: skip
    target = Transformer(ModelConfig(**shape | change), rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match=words):
        dflash_lite.load_drafter(DRAFTERS / "plain", target)


def test_a_larger_block_than_it_was_trained_with_is_refused(pair):
    model, tokenizer, drafter = pair
    larger = dflash.DFlash(drafter.network, 5)
    with pytest.raises(UserError, match="block is 5.*at most 4"):
        generate(model, tokenizer, "ab", drafter=larger)
    smaller = dflash.DFlash(drafter.network, 3)
    assert generate(model, tokenizer, "ab", max_new_tokens=4, drafter=smaller).tokens


def test_a_write_that_fails_leaves_the_old_drafter(pair, tmp_path, monkeypatch):
    model, _, drafter = pair
    dflash_lite.save_drafter(drafter, tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(transformer, "save_file", full)
    with pytest.raises(OSError):
        dflash_lite.save_drafter(dflash.new_drafter(model, 3, layers=1), tmp_path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
