"""The model computes what transformers computes (golden/README.md).

Every layer's output and the logits agree within 1e-4 of that layer's largest
value, in float32, at every position that holds a token.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from goldens import GOLDEN, read_golden
from helpers import write_hub
from safetensors.numpy import load_file, save_file

import dflash_lite
from dflash_lite import transformer
from dflash_lite.checkpoints import read_safetensors
from dflash_lite.transformer import FEW_ROWS, Linear, matmul

NAMES = sorted(path.stem for path in (GOLDEN / "checkpoints").glob("*.npz"))
INPUTS = ["short", "long", "padded"]
TOLERANCE = 1e-4


def run(model, tokens):
    """Logits and the output of every layer: (…, vocab), (layers, …, hidden)."""
    output = model(tokens, taps=range(model.config.num_hidden_layers))
    return model.logits(output.hidden), jnp.stack(output.taps)


def kept(tokens, lengths):
    """Which places of a batch hold a token; padding is at the end."""
    return np.arange(tokens.shape[1]) < np.reshape(lengths, (-1, 1))


def assert_close(found, expected, largest, what):
    error = np.abs(np.asarray(found) - expected).max() / largest
    assert error < TOLERANCE, f"{what}: off by {error:.1e} of the largest value"


@pytest.fixture(scope="module", params=NAMES)
def small(request):
    """A random checkpoint, as the package loads it, and what it should give."""
    name = request.param
    model, _ = dflash_lite.load(GOLDEN / "checkpoints" / name)
    return model, read_golden(f"checkpoints/{name}.npz")


@pytest.mark.parametrize("inputs", INPUTS)
def test_small_checkpoints(small, inputs):
    model, data = small
    tokens = data[f"{inputs}_tokens"]
    lengths = data["lengths"] if inputs == "padded" else tokens.shape[1]
    mask = kept(tokens, lengths)
    logits, layers = run(model, jnp.asarray(tokens))
    expected = data[f"{inputs}_layers"]
    assert len(layers) == len(expected)
    for i, layer in enumerate(np.asarray(layers)):
        assert_close(layer[mask], expected[i], abs(expected[i]).max(), f"layer {i}")
    expected = data[f"{inputs}_logits"]
    assert_close(np.asarray(logits)[mask], expected, abs(expected).max(), "logits")


def test_every_kind_of_checkpoint_is_there():
    wanted = "tied untied bias mha mqa linear llama3 yarn sharded bfloat16 qwen3".split()
    assert [kind for kind in wanted if not any(kind in name for name in NAMES)] == []


@pytest.mark.parametrize("inputs", INPUTS)
def test_smollm2(smollm2, inputs):
    data = read_golden("smollm2.npz")
    tokens = data[f"{inputs}_tokens"]
    lengths = data["padded_lengths"] if inputs == "padded" else tokens.shape[1]
    mask, places = kept(tokens, lengths), data[f"{inputs}_positions"]
    logits, layers = jax.jit(run)(smollm2[0], jnp.asarray(tokens))
    largest = data[f"{inputs}_layer_largest"]
    for i, layer in enumerate(np.asarray(layers)):
        layer = layer[mask]
        expected = data[f"{inputs}_layers"][i]
        assert_close(layer[places], expected, largest[i], f"layer {i}")
        norms = data[f"{inputs}_layer_norms"][i]
        assert_close(np.linalg.norm(layer, axis=-1), norms, norms.max(), f"norms of layer {i}")
    logits, largest = np.asarray(logits)[mask], data[f"{inputs}_logits_largest"]
    some = data[f"{inputs}_some_logits"]
    assert_close(logits[places, ::16], some, largest, "logits")
    if inputs == "long":
        assert_close(logits[-1], data["long_last_logits"], largest, "last logits")
    assert (logits.argmax(-1) == data[f"{inputs}_argmax"]).mean() > 0.99


def test_bfloat16_is_what_its_rounding_allows():
    """torch's own bfloat16 is off by up to 4% of the largest logit."""
    data = read_golden("smollm2.npz")
    model, _ = dflash_lite.load("smollm2-135m", dtype="bfloat16")
    logits, layers = jax.jit(run)(model, jnp.asarray(data["short_tokens"]))
    assert layers.dtype == jnp.bfloat16
    found = np.asarray(logits)[0, data["short_positions"], ::16]
    error = abs(found - data["short_some_logits"]).max() / data["short_logits_largest"]
    assert 1e-4 < error < 0.06


@pytest.mark.parametrize("rows", [1, 2, 7, FEW_ROWS, FEW_ROWS + 1])
@pytest.mark.parametrize("outputs", [0, 1, 6, 9])
def test_matmul_for_any_number_of_rows(rows, outputs):
    """One row, halves for a few, odd weights and large products: all the same sums."""
    rng = np.random.default_rng([rows, outputs])
    x, w = rng.standard_normal((rows, 40)), rng.standard_normal((outputs, 40))
    found = jax.jit(matmul)(jnp.array(x, jnp.float32), jnp.array(w, jnp.float32))
    np.testing.assert_allclose(found, x @ w.T, atol=2e-5)


@pytest.mark.parametrize("rows", [1, 5])
def test_linear_stacks_products_and_biases(rows):
    layer = Linear(12, 6, 2, 4, bias=True, rngs=nnx.Rngs(1))
    weight = np.asarray(layer.weight[...], np.float64)
    bias = np.arange(12.0)
    layer.bias = nnx.Param(jnp.asarray(bias, jnp.float32))
    x = np.random.default_rng(rows).standard_normal((rows, 12))
    whole = x @ weight.T + bias
    found = layer(jnp.array(x, jnp.float32)[None])
    for part, expected in zip(found, np.split(whole, [6, 8], axis=1), strict=True):
        np.testing.assert_allclose(part[0], expected, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("changes", [
    {"model_type": "qwen3", "rope_theta": 5e5},
    {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True},
    {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
])  # fmt: skip
def test_what_is_written_is_read_back(tmp_path, changes, dtype):
    source = write_hub(tmp_path / "source", **{"attention_bias": False, **changes})
    if changes.get("attention_bias"):
        add_biases(source)
    model, tokenizer = dflash_lite.load(source, dtype=dtype)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "config.json").write_text("old")
    dflash_lite.save_model(model, tokenizer, tmp_path / "out", dtype)
    again, words = dflash_lite.load(tmp_path / "out", dtype=dtype)
    assert again.config == model.config
    leaves = zip(jax.tree.leaves(model), jax.tree.leaves(again), strict=True)
    assert all((a == b).all() and a.dtype == b.dtype for a, b in leaves)
    assert words.encode("Say the word") == tokenizer.encode("Say the word")
    fields = ("stop_ids", "template", "specials")
    assert all(getattr(words, name) == getattr(tokenizer, name) for name in fields)
    files = (tmp_path / name / "model.safetensors" for name in ("source", "out"))
    before, after = map(read_safetensors, files)
    assert set(before) == set(after) and after["model.norm.weight"].dtype == dtype
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]


def add_biases(folder):
    tensors = load_file(folder / "model.safetensors")
    for name, array in list(tensors.items()):
        if "_proj.weight" in name:
            bias = np.arange(array.shape[0], dtype=np.float32) / array.shape[0]
            tensors[name.replace(".weight", ".bias")] = bias
    save_file(tensors, folder / "model.safetensors")


def test_a_folder_keeps_its_files_when_writing_fails(tmp_path, monkeypatch):
    source = write_hub(tmp_path / "source")
    model, tokenizer = dflash_lite.load(source)
    before = {path.name: path.read_bytes() for path in source.iterdir()}

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(transformer, "save_file", full)
    with pytest.raises(OSError):
        dflash_lite.save_model(model, tokenizer, source)
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before
