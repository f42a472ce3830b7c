"""Model files are read exactly, and each damaged one gets its own clear error."""

import io
import json
import pickle
import struct
import tracemalloc
import zipfile

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from goldens import GOLDEN
from helpers import CONFIG, END, neighbours, tiny_tensors, write_gguf, write_hub
from hypothesis import given, settings, strategies as st
from safetensors.numpy import load_file, save_file

import dflash_lite
from dflash_lite.checkpoints import (
    Tensors,
    UserError,
    fetch,
    hub_config,
    open_checkpoint,
    read_gguf,
    read_safetensors,
    unpermute,
)

Q = gguf.GGMLQuantizationType


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A place for files, shared by the examples of a test."""
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def hub(folder):
    return write_hub(folder / "hub")


@pytest.fixture(scope="module")
def gguf_file(folder, hub):
    return write_gguf(folder / "whole.gguf", hub)


@pytest.fixture
def copy(tmp_path):
    """A fresh Hub folder to damage."""
    return write_hub(tmp_path / "copy")


def read_all(path):
    """Open a checkpoint and read every tensor."""
    checkpoint = open_checkpoint(path)
    return checkpoint, dict(checkpoint.tensors)


def refused(path, *words, read=read_all):
    """`read(path)` fails with a message that has each of the words."""
    with pytest.raises(UserError) as caught:
        read(path)
    message = str(caught.value)
    assert [word for word in words if word not in message] == [], message


def write(path, data):
    """Write bytes as a new file; an old one may still be mapped into memory."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    return path


def zip_file():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("model", "x" * 1000)
    return buffer.getvalue()


FOREIGN = {
    "empty": b"",
    "one byte": b"G",
    "zip": zip_file(),
    "png": b"\x89PNG\r\n\x1a\n" + bytes(100),
    "text": b"<!DOCTYPE html><html>404 Not Found</html>" * 20,
    "pickle": pickle.dumps({"weight": list(range(100))}),
    "zeros": bytes(4096),
}


# Safetensors


@pytest.mark.parametrize("data", FOREIGN.values(), ids=FOREIGN)
def test_a_foreign_file_is_no_safetensors(copy, data):
    path = copy / "model.safetensors"
    path.write_bytes(data)
    refused(path, "model.safetensors", "xpected", "fetch it again", read=read_safetensors)
    refused(copy, "model.safetensors", "xpected", "fetch it again")


def test_looking_for_a_name_reads_no_array():
    read = []
    tensors = Tensors({"a": lambda: read.append("a") or np.zeros(1)})
    assert "a" in tensors and "b" not in tensors and list(tensors) == ["a"] and not read
    assert tensors["a"].shape == (1,) and read == ["a"]


def test_a_missing_safetensors_file(folder):
    refused(folder / "no.safetensors", "no.safetensors", read=read_safetensors)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_truncated_safetensors_file(folder, hub, data):
    whole = (hub / "model.safetensors").read_bytes()
    cut = data.draw(st.integers(0, len(whole) - 1))
    path = write(folder / "cut.safetensors", whole[:cut])
    refused(path, "cut.safetensors", "fetch it again", read=read_safetensors)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_a_damaged_safetensors_header(folder, hub, data):
    """It is refused, or it still describes arrays that lie in the file."""
    whole = bytearray((hub / "model.safetensors").read_bytes())
    end = 8 + struct.unpack("<Q", whole[:8])[0]
    at = data.draw(st.integers(0, end - 1))
    whole[at] = data.draw(st.integers(0, 255))
    path = write(folder / "damaged.safetensors", bytes(whole))
    try:
        arrays = dict(read_safetensors(path))
    except UserError as error:
        assert "damaged.safetensors" in str(error)
    else:
        assert sum(array.nbytes for array in arrays.values()) == len(whole) - end


def test_safetensors_of_every_type(folder):
    rng = np.random.default_rng(0)
    arrays = {
        str(dtype.__name__): rng.integers(0, 2, (3, 5)).astype(dtype)
        for dtype in (np.float64, np.float32, np.float16, np.int64, np.uint8, np.bool_)
    }
    arrays["scalar"], arrays["empty"] = np.array(2.5, np.float32), np.zeros((0, 4), np.float32)
    path = folder / "types.safetensors"
    save_file(arrays, path)
    found = dict(read_safetensors(path))
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_bfloat16_safetensors():
    """The upper half of a float32, taken from the file by hand."""
    path = GOLDEN / "checkpoints/llama-bfloat16/model.safetensors"
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + size])
    header.pop("__metadata__", None)
    tensors = read_safetensors(path)
    assert set(tensors) == set(header)
    for name, entry in header.items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        halves = np.frombuffer(raw[begin:end], "<u2").astype(np.uint32)
        expected = (halves << 16).view(np.float32).reshape(entry["shape"])
        assert tensors[name].dtype == jnp.bfloat16
        np.testing.assert_array_equal(tensors[name].astype(np.float32), expected)


def test_a_safetensors_type_that_numpy_lacks(folder):
    """Such as float8, in which some models are published."""
    entry = {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}
    header = json.dumps({"weight": entry}).encode()
    path = folder / "float8.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    refused(path, "float8.safetensors", "weight", read=lambda p: dict(read_safetensors(p)))


# GGUF: damaged files


@pytest.mark.parametrize("data", FOREIGN.values(), ids=FOREIGN)
def test_a_foreign_file_is_no_gguf(tmp_path, data):
    path = write(tmp_path / "model.gguf", data)
    refused(path, "model.gguf", "xpected", "fetch it again")


def test_a_missing_gguf_file(tmp_path):
    refused(tmp_path / "no.gguf", "no.gguf")


def test_a_folder_named_like_a_gguf_file(tmp_path):
    (tmp_path / "model.gguf").mkdir()
    refused(tmp_path / "model.gguf", "model.gguf", read=read_gguf)


@pytest.mark.parametrize("version", [0, 1, 4, struct.unpack("<I", b"\0\0\0\3")[0]])
def test_another_gguf_version(tmp_path, gguf_file, version):
    """The last is version 3 written on a big-endian machine."""
    data = bytearray(gguf_file.read_bytes())
    data[4:8] = struct.pack("<I", version)
    path = write(tmp_path / "old.gguf", bytes(data))
    refused(path, "old.gguf", f"version is {version}", "version 2 or 3")


def test_gguf_version_2_is_read_like_3(tmp_path, gguf_file):
    data = bytearray(gguf_file.read_bytes())
    data[4:8] = struct.pack("<I", 2)
    path = write(tmp_path / "two.gguf", bytes(data))
    assert read_all(path)[1].keys() == read_all(gguf_file)[1].keys()


def end_of_data(path):
    """Where the last tensor ends; padding may follow."""
    return max(t.data_offset + t.n_bytes for t in gguf.GGUFReader(path).tensors)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_a_truncated_gguf_file(folder, gguf_file, data):
    whole = gguf_file.read_bytes()
    cut = data.draw(st.integers(0, int(end_of_data(gguf_file)) - 1))
    path = write(folder / "cut.gguf", whole[:cut])
    refused(path, "cut.gguf", "fetch it again")


def header_size(path):
    return min(t.data_offset for t in gguf.GGUFReader(path).tensors)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_damaged_gguf_headers(folder, gguf_file, data):
    """Any header is read or refused; nothing else escapes."""
    whole = bytearray(gguf_file.read_bytes())
    end = int(header_size(gguf_file))
    for _ in range(data.draw(st.integers(1, 4))):  # counts and settings, or tensors
        at = data.draw(st.integers(0, 900) | st.integers(end - 1800, end - 1))
        whole[at] = data.draw(st.integers(0, 255))
    path = write(folder / "damaged.gguf", bytes(whole))
    try:
        read_all(path)
    except UserError:
        pass


def text(s):
    return struct.pack("<Q", len(s)) + s


def header(tensors=0, settings=0):
    return struct.pack("<4sIQQ", b"GGUF", 3, tensors, settings)


def setting(name, kind, raw):
    return text(name) + struct.pack("<I", kind) + raw


def tensor(name, shape, kind, offset=0):
    sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + sizes + struct.pack("<IQ", kind, offset)


U4, U8 = struct.Struct("<I").pack, struct.Struct("<Q").pack
NESTED = b"".join(U4(9) + U8(1) for _ in range(5000))
CRAFTED = {
    "2^60 settings": header(0, 2**60) + bytes(1000),
    "2^64-1 tensors": header(2**64 - 1) + bytes(1000),
    "a string of 2^63 bytes": header(0, 1) + U8(2**63) + bytes(100),
    "an array of 2^62 numbers": header(0, 1) + setting(b"a", 9, U4(4) + U8(2**62)),
    "an array of 2^62 strings": header(0, 1) + setting(b"a", 9, U4(8) + U8(2**62)),
    "arrays in arrays": header(0, 1) + setting(b"a", 9, NESTED + bytes(20)),
    "a setting of type 99": header(0, 1) + setting(b"a", 99, bytes(8)),
    "an alignment of 0": header(0, 1) + setting(b"general.alignment", 4, U4(0)),
    "an alignment of text": header(0, 1) + setting(b"general.alignment", 8, text(b"x")),
    "2^32-1 dimensions": header(1) + text(b"t") + U4(2**32 - 1) + bytes(100),
    "no dimension": header(1) + tensor(b"t", (), 0) + bytes(64),
    "2^63 numbers": header(1) + tensor(b"t", (2**63,), 0) + bytes(64),
    "2^64 numbers": header(1) + tensor(b"t", (2**32, 2**32), 0) + bytes(64),
    "an offset of 2^63": header(1) + tensor(b"t", (4,), 0, 2**63) + bytes(64),
    "tensor type 999": header(1) + tensor(b"t", (4,), 999) + bytes(64),
    "a tensor type without a decoder": header(1) + tensor(b"t", (32,), Q.Q8_1) + bytes(128),
    "half a block": header(1) + tensor(b"t", (16,), Q.Q4_0) + bytes(64),
}


@pytest.mark.parametrize("data", CRAFTED.values(), ids=CRAFTED)
def test_crafted_gguf_headers(tmp_path, data):
    """Refused at once: nothing is allocated by what a header claims."""
    path = write(tmp_path / "crafted.gguf", data)
    tracemalloc.start()
    refused(path, "crafted.gguf", "xpected", read=read_gguf)
    assert tracemalloc.get_traced_memory()[1] < 1 << 22
    tracemalloc.stop()


def test_a_tensor_one_byte_longer_than_the_file(tmp_path):
    start = -(-len(header(1) + tensor(b"t", (17,), 0)) // 32) * 32
    data = (header(1) + tensor(b"t", (17,), 0)).ljust(start, b"\0") + bytes(17 * 4)
    assert read_gguf(write(tmp_path / "a.gguf", data))[1]["t"].shape == (17,)
    refused(write(tmp_path / "b.gguf", data[:-1]), "b.gguf", "t ends at", read=read_gguf)


def rewrite(source, target, name, change):
    """Copy a GGUF file with one setting dropped (None) or changed."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, "llama")
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        value, kind, sub = field.contents(), *field.types[:2], *[None] * (len(field.types) == 1)
        if field.name == name:
            if change is None:
                continue
            value, kind, sub = change
        writer.add_key_value(field.name, value, kind, sub)
    for item in reader.tensors:
        writer.add_tensor(item.name, item.data)
    return finish(writer, target)


def finish(writer, path):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    "name",
    [
        "llama.block_count",
        "llama.embedding_length",
        "llama.context_length",
        "llama.attention.head_count",
        "llama.attention.layer_norm_rms_epsilon",
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.merges",
        "tokenizer.ggml.model",
    ],
)
def test_a_gguf_setting_that_is_missing(tmp_path, gguf_file, name):
    path = rewrite(gguf_file, tmp_path / "odd.gguf", name, None)
    refused(path, name.split(".", 1)[1].removeprefix("ggml."))


KINDS = gguf.GGUFValueType


@pytest.mark.parametrize(
    "name, change",
    [
        ("llama.attention.head_count", (0, KINDS.UINT32, None)),
        ("llama.attention.head_count_kv", (3, KINDS.UINT32, None)),
        ("llama.block_count", ("two", KINDS.STRING, None)),
        ("llama.embedding_length", ([32, 32], KINDS.ARRAY, KINDS.UINT32)),
        ("tokenizer.ggml.eos_token_id", (10**6, KINDS.UINT32, None)),
        ("tokenizer.ggml.merges", (["x y"], KINDS.ARRAY, KINDS.STRING)),
        ("tokenizer.ggml.model", ("llama", KINDS.STRING, None)),
        ("tokenizer.ggml.pre", ("deepseek-llm", KINDS.STRING, None)),
    ],
)
def test_a_gguf_setting_that_makes_no_sense(tmp_path, gguf_file, name, change):
    refused(rewrite(gguf_file, tmp_path / "odd.gguf", name, change))


def test_a_gguf_setting_with_a_default_may_be_missing(tmp_path, gguf_file):
    path = rewrite(gguf_file, tmp_path / "odd.gguf", "llama.rope.freq_base", None)
    assert read_all(path)[0].config.rope.theta == 10_000


@pytest.mark.parametrize(
    "name, value",
    [
        ("rope.scaling.type", "longrope"),
        ("rope.dimension_count", 4),  # a part of the head
        ("attention.sliding_window", 16),
        ("rope.scaling.attn_factor", 0.5),
        ("rope.scaling.yarn_ext_factor", 0.5),
    ],
)
def test_gguf_options_that_are_not_computed_are_refused(tmp_path, hub, name, value):
    refused(write_gguf(tmp_path / "option.gguf", hub, {name: value}), name)


def test_other_families_are_refused(tmp_path, gguf_file):
    data = gguf_file.read_bytes().replace(text(b"llama"), text(b"gemma"), 1)
    refused(write(tmp_path / "gemma.gguf", data), "gemma", "llama", "qwen3")


def test_gguf_tensors_with_unknown_names_are_kept_apart(tmp_path, hub, gguf_file):
    """Qwen3-Reranker has a tensor cls.output.weight, for one."""
    extra = {name: np.ones(4, np.float32) for name in ("plain", "cls.output.weight", "v.blk.0.x")}
    path = write_gguf(tmp_path / "extra.gguf", hub, tensors=extra)
    tensors = read_all(path)[1]
    assert {name: tensors[name] for name in read_all(gguf_file)[1]}.keys() <= tensors.keys()
    for name, array in read_all(gguf_file)[1].items():
        np.testing.assert_array_equal(tensors[name], array)


def test_a_gguf_query_weight_of_the_wrong_shape(tmp_path, hub):
    wrong = write_hub(tmp_path / "wrong")
    tensors = tiny_tensors(CONFIG)
    tensors["model.layers.0.self_attn.q_proj.weight"] = np.zeros((36, 32), np.float32)
    save_file(tensors, wrong / "model.safetensors")
    path = write_gguf(tmp_path / "wrong.gguf", wrong)
    refused(path, "q_proj", "(36, 32)", "(32, 32)", read=dflash_lite.load)


# GGUF: what is read


def test_the_real_file_is_read_as_by_the_gguf_package():
    path = fetch("smollm2-135m")
    settings, tensors = read_gguf(path)
    reader = gguf.GGUFReader(path)
    expected = {
        field.name: field.contents()
        for field in reader.fields.values()
        if not field.name.startswith("GGUF.")
    }
    assert settings == expected
    assert set(tensors) == {item.name for item in reader.tensors}
    for item in reader.tensors:
        if item.n_elements > 2**21 and item.name != "token_embd.weight":
            continue
        if item.name.startswith("blk.") and not item.name.startswith(("blk.0.", "blk.29.")):
            continue
        found = tensors[item.name]
        assert found.dtype == np.float32 and found.shape == tuple(item.shape[::-1])
        np.testing.assert_array_equal(found, gguf.dequantize(item.data, item.tensor_type))


def test_settings_of_every_type(tmp_path):
    path = tmp_path / "values.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    values = {
        "add_uint8": 255,
        "add_int8": -128,
        "add_uint16": 65535,
        "add_int16": -32768,
        "add_uint32": 2**32 - 1,
        "add_int32": -(2**31),
        "add_float32": 0.15625,
        "add_uint64": 2**64 - 1,
        "add_int64": -(2**63),
        "add_float64": 1 / 3,
        "add_bool": True,
        "add_string": "naïve 🙂 " + "x" * 1000,
    }
    for add, value in values.items():
        getattr(writer, add)(add, value)
    lists = {
        "strings": ["a", "é", "", "🙂"],
        "numbers": [1, -2, 3],
        "floats": [0.5, -0.25],
        "truths": [True, False],
    }
    for name, value in lists.items():
        writer.add_array(name, value)
    settings, tensors = read_gguf(finish(writer, path))
    assert settings == {"general.architecture": "llama"} | values | lists
    assert type(settings["add_bool"]) is bool
    assert len(tensors) == 0


STEPS = {  # error allowed, in units of the largest number of a block
    Q.F16: 2**-11,
    Q.BF16: 2**-8,
    Q.Q8_0: 1 / 254,
    Q.Q5_0: 1 / 16,
    Q.Q5_1: 1 / 31,
    Q.Q4_0: 1 / 8,
    Q.Q4_1: 1 / 15,
}


@pytest.mark.parametrize("align", [32, 256])
def test_tensors_of_every_type(tmp_path, align):
    """Near the numbers that were written, and what the gguf package reads."""
    rng = np.random.default_rng(0)
    path = tmp_path / "types.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(align)
    numbers = rng.normal(size=(3, 5, 64)).astype(np.float32)
    writer.add_tensor("F32", numbers)
    writer.add_tensor("odd", numbers.reshape(-1)[:37].astype(np.float16))
    for kind in STEPS:
        writer.add_tensor(kind.name, gguf.quantize(numbers, kind), raw_dtype=kind)
    block = gguf.GGML_QUANT_SIZES[Q.Q6_K][1]
    scales = np.frombuffer(np.float16(0.25).tobytes(), np.uint8)
    packed = rng.integers(0, 256, (2, 3 * block), np.uint8).reshape(2, 3, block)
    packed[..., -2:] = scales
    writer.add_tensor("Q6_K", packed.reshape(2, -1), raw_dtype=Q.Q6_K)
    tensors = read_gguf(finish(writer, path))[1]
    np.testing.assert_array_equal(tensors["F32"], numbers)
    largest = np.abs(numbers.reshape(-1, 32)).max(axis=1, keepdims=True)
    for kind, step in STEPS.items():
        assert tensors[kind.name].shape == numbers.shape
        error = np.abs(tensors[kind.name] - numbers).reshape(-1, 32)
        assert (error <= 1.01 * step * largest).all(), kind.name
    reader = gguf.GGUFReader(path)
    assert len(reader.tensors) == len(tensors) == len(STEPS) + 3
    for item in reader.tensors:
        expected = gguf.dequantize(item.data, item.tensor_type)
        np.testing.assert_array_equal(tensors[item.name], expected)


@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_unpermute_undoes_what_llama_cpp_does(heads, half, width):
    rows = np.random.default_rng(0).normal(size=(heads * half * 2, width))
    np.testing.assert_array_equal(unpermute(neighbours(rows, heads), heads), rows)
    bias = rows[:, 0]
    np.testing.assert_array_equal(unpermute(neighbours(bias, heads), heads), bias)


SAME_IN_GGUF = ["llama-tied", "llama-untied", "llama-mha", "qwen3-tied"]


def logits(model, tokens):
    return model.logits(model(tokens).hidden)


def assert_same_model(one, other):
    """Equal weights, and equal logits up to the rounding of a setting."""
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)
    tokens = jnp.arange(48)[None] % one.config.vocab_size
    a, b = logits(one, tokens), logits(other, tokens)
    assert jnp.abs(a - b).max() < 1e-4 * jnp.abs(a).max()


@pytest.mark.parametrize("name", SAME_IN_GGUF)
def test_a_gguf_file_is_the_same_model_as_its_hub_folder(tmp_path, name):
    hub = GOLDEN / "checkpoints" / name
    one, tokenizer = dflash_lite.load(hub)
    other, second = dflash_lite.load(write_gguf(tmp_path / "model.gguf", hub))
    assert_same_model(one, other)
    assert second.stop_ids == tokenizer.stop_ids
    assert second.vocab_size == tokenizer.vocab_size
    for line in ["The quick brown fox", "naïve 2026 🙂", "<|im_end|>x", "  \n\n a"]:
        assert second.encode(line) == tokenizer.encode(line)
        assert second.decode(tokenizer.encode(line)) == tokenizer.decode(tokenizer.encode(line))


@pytest.mark.parametrize("bias", ["attention_bias", "mlp_bias"])
def test_biases_of_a_gguf_file(tmp_path, bias):
    hub = GOLDEN / "checkpoints/llama-bias"
    arrays = load_file(hub / "model.safetensors")
    own = {"attention_bias": "self_attn", "mlp_bias": "mlp"}[bias]
    kept = {n: a for n, a in arrays.items() if not n.endswith("bias") or own in n}
    folder = tmp_path / "some"
    folder.mkdir()
    for file in hub.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    save_file(kept, folder / "model.safetensors")
    config = json.loads((hub / "config.json").read_text())
    off = {"attention_bias": False, "mlp_bias": False, bias: True}
    (folder / "config.json").write_text(json.dumps(config | off))
    one, _ = dflash_lite.load(folder)
    assert_same_model(one, dflash_lite.load(write_gguf(tmp_path / "bias.gguf", folder))[0])


def test_rope_factors_of_a_gguf_file(tmp_path):
    """llama.cpp's converter writes Llama 3.1's stretch as a divisor for each pair."""
    hub = GOLDEN / "checkpoints/llama-llama3"
    config = json.loads((hub / "config.json").read_text())
    rope = config["rope_scaling"]
    factors = []
    for i in range(0, config["head_dim"] if "head_dim" in config else 8, 2):
        wave = 2 * np.pi * 10_000.0 ** (i / config.get("head_dim", 8))
        turns = rope["original_max_position_embeddings"] / wave
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        smooth = (turns - low) / (high - low)
        if turns > high:
            factors.append(1.0)
        elif turns < low:
            factors.append(rope["factor"])
        else:
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    extra = {"rope_freqs.weight": np.array(factors, np.float32)}
    one, _ = dflash_lite.load(hub)
    other, _ = dflash_lite.load(write_gguf(tmp_path / "l3.gguf", hub, tensors=extra))
    assert other.config.rope.kind == "factors"
    assert_same_model(one, other)
    plain, _ = dflash_lite.load(write_gguf(tmp_path / "plain.gguf", hub))
    tokens = jnp.arange(48)[None]
    assert jnp.abs(logits(plain, tokens) - logits(one, tokens)).max() > 0.1


@pytest.mark.parametrize("name, kind", [("qwen3-yarn", "yarn"), ("llama-linear", "linear")])
def test_rope_scaling_of_a_gguf_file(tmp_path, name, kind):
    hub = GOLDEN / "checkpoints" / name
    settings = {"rope.scaling.type": kind, "rope.scaling.factor": 4.0}
    if kind == "yarn":
        settings["rope.scaling.original_context_length"] = 32
    one, _ = dflash_lite.load(hub)
    other, _ = dflash_lite.load(write_gguf(tmp_path / "scaled.gguf", hub, settings))
    assert_same_model(one, other)


# Hub folders


def edit(folder, name, change):
    path = folder / name
    data = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({k: v for k, v in (data | change).items() if v is not ...}))


def test_no_config(copy):
    (copy / "config.json").unlink()
    refused(copy, "config.json", str(copy))


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "tokenizer.json"])
@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"\xff\xfe", b"[1, 2]", b"null", b"[" * 100_000, b"{}x"],
    ids=["empty", "half", "binary", "a list", "null", "deep", "trailing"],
)
def test_json_files_that_are_damaged(copy, name, data):
    (copy / name).write_bytes(data)
    refused(copy, name, str(copy))


def test_no_tokenizer(copy):
    (copy / "tokenizer.json").unlink()
    refused(copy, "tokenizer.json")


def test_a_tokenizer_that_is_no_tokenizer(copy):
    (copy / "tokenizer.json").write_text('{"version": "1.0", "model": {"type": "Magic"}}')
    refused(copy, "tokenizer.json")


@pytest.mark.parametrize(
    "change, word",
    [
        ({"eos_token": 5}, "5"),
        ({"eos_token": {}, "chat_template": [5]}, None),
        ({"chat_template": 5}, "chat_template"),
        ({"chat_template": [{"name": "default", "template": 7}]}, "chat_template"),
    ],
)
def test_tokenizer_settings_of_the_wrong_kind(copy, change, word):
    edit(copy, "tokenizer_config.json", change)
    if word is None:
        assert open_checkpoint(copy).tokenizer.template is None
    else:
        refused(copy, word)


@pytest.mark.parametrize("change", [-1, 0, 40])
def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tmp_path, change):
    """A model with more rows than tokens is common: its table is padded."""
    path = write_hub(tmp_path / "hub", vocab_size=CONFIG["vocab_size"] + change)
    if change >= 0:
        assert open_checkpoint(path).config.vocab_size == CONFIG["vocab_size"] + change
    else:
        refused(path, str(CONFIG["vocab_size"]), "vocab_size", "fetch")


def test_a_chat_template_that_is_no_text(copy):
    (copy / "chat_template.jinja").write_bytes(b"\xff\xfe")
    refused(copy, "chat_template.jinja")
    (copy / "chat_template.jinja").unlink()
    (copy / "chat_template.jinja").mkdir()
    refused(copy, "chat_template.jinja")


def test_more_layers_than_tensors_are_refused_at_once(copy):
    edit(copy, "config.json", {"num_hidden_layers": 2**70})
    refused(copy, "num_hidden_layers", str(2**70), read=dflash_lite.load)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_weight_that_is_not_finite(copy, value):
    tensors = load_file(copy / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 4] = value
    save_file(tensors, copy / "model.safetensors")
    refused(copy, "layers.1.mlp.up_proj", "not finite", read=dflash_lite.load)


@pytest.mark.parametrize(
    "dtype, value, kind", [("float32", 1e300, np.float64), ("bfloat16", 3.4e38, np.float32)]
)
def test_a_weight_that_is_too_large_for_the_type_asked_for(copy, dtype, value, kind):
    tensors = load_file(copy / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].astype(kind)
    tensors["model.norm.weight"][3] = value
    save_file(tensors, copy / "model.safetensors")
    read = lambda path: dflash_lite.load(path, dtype)
    refused(copy, "model.norm.weight is not finite in", dtype, read=read)


@pytest.mark.parametrize("name", ["F6_E2M3", "F4"])
def test_a_type_of_numbers_that_no_array_has(tmp_path, name):
    """The header names it; the file is whole."""
    size = {"F6_E2M3": 6, "F4": 4}[name]
    header = json.dumps({"x": {"dtype": name, "shape": [8], "data_offsets": [0, size]}}).encode()
    data = len(header).to_bytes(8, "little") + header + bytes(size)
    path = write(tmp_path / "x.safetensors", data)
    refused(path, "x.safetensors", read=lambda path: dict(read_safetensors(path)))


def test_a_shard_whose_name_no_disk_can_hold(copy):
    index = {"weight_map": {"model.norm.weight": "x" * 300}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(copy, "has no file 'xxx")


@pytest.mark.parametrize(
    "factors", [[1.0] * 3, [[1.0, 1.0], [1.0, 1.0]], [0.0] * 4, [np.nan] * 4, [-1.0] * 4, [1.0]]
)
def test_rope_factors_of_a_gguf_file_that_cannot_be(tmp_path, hub, factors):
    extra = {"rope_freqs.weight": np.array(factors, np.float32)}
    path = write_gguf(tmp_path / "x.gguf", hub, tensors=extra)
    refused(path, "rope_freqs.weight", "expected 4 positive numbers", read=dflash_lite.load)


@pytest.mark.parametrize("dtype", [np.int8, np.bool_, np.int64])
def test_weights_that_are_not_floating_point(copy, dtype):
    tensors = load_file(copy / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj.weight"
    tensors[name] = tensors[name].astype(dtype)
    save_file(tensors, copy / "model.safetensors")
    refused(copy, name, np.dtype(dtype).name, "floating", read=dflash_lite.load)


@pytest.mark.parametrize("dtype", ["x", 5, "BFLOAT16", "int8", "float64", None, jnp.float16])
def test_other_types_are_refused(copy, dtype):
    refused(copy, "expected float32 or bfloat16", read=lambda p: dflash_lite.load(p, dtype))


def test_types_by_name_and_by_type(copy):
    for dtype in ("bfloat16", jnp.bfloat16, jnp.dtype("bfloat16")):
        assert dflash_lite.load(copy, dtype)[0].embed_tokens.dtype == jnp.bfloat16


def test_a_home_that_nobody_has(monkeypatch):
    refused("~nobody-of-this-name/model", "no model", "~nobody-of-this-name/model")


@pytest.mark.parametrize(
    "change, word",
    [
        ({"model_type": "gpt_neox"}, "gpt_neox"),
        ({"model_type": ...}, "model_type"),
        ({"model_type": ["llama"]}, "model_type"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"use_sliding_window": True, "sliding_window": 128}, "use_sliding_window"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "longrope"),
        ({"rope_parameters": {"rope_type": "magic"}}, "magic"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "mscale": 0.5}}, "mscale"),
        ({"rope_scaling": [1, 2]}, "rope"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ({"hidden_size": ...}, "hidden_size"),
        ({"vocab_size": ..., "num_hidden_layers": ...}, "vocab_size, num_hidden_layers"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": "32"}, "hidden_size"),
        ({"hidden_size": 2.5}, "hidden_size is 2.5; expected a whole number"),
        ({"vocab_size": True}, "vocab_size is True; expected a whole number"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"head_dim": 7}, "head_dim"),
        ({"rms_norm_eps": "x"}, "rms_norm_eps is 'x'; expected a number"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"rope_theta": "x"}, "theta is 'x'; expected a number"),
        ({"rope_scaling": {"rope_type": "linear", "factor": None}}, "factor"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "beta_fast": 0}}, "beta_fast"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}, "rope_theta": 1}, "theta"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "attention_factor": "x"}},
         "attention_factor"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0,
                           "original_max_position_embeddings": -5}},
         "original_max_position_embeddings"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0,
                           "original_max_position_embeddings": True}},
         "original_max_position_embeddings is True; expected a whole number"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": "x"}},
         "low_freq_factor"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 4.0}},
         "low_freq_factor"),
        ({"rope_theta": 0}, "theta is 0; expected a number above 0"),
        ({"rope_theta": False}, "theta is False"),
        ({"rope_scaling": ""}, "rope"),
        ({"rope_scaling": []}, "rope"),
        ({"rope_parameters": False}, "rope"),
        ({"partial_rotary_factor": 0}, "partial_rotary_factor is 0"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings is 'false'; expected true"),
        ({"attention_bias": 1}, "attention_bias is 1; expected true or false"),
        ({"mlp_bias": [1]}, "mlp_bias is [1]"),
        ({"use_sliding_window": "false"}, "use_sliding_window is 'false'"),
        ({"max_position_embeddings": 2**31 + 5}, "to 1,073,741,823"),
        ({"max_position_embeddings": 10**30}, "to 1,073,741,823"),
        ({"eos_token_id": "x"}, "eos_token_id"),
        ({"eos_token_id": [1, [2]]}, "eos_token_id"),
        ({"eos_token_id": 2**40}, "eos_token_id"),
        ({"eos_token_id": True}, "eos_token_id"),
    ],
)  # fmt: skip
def test_settings_that_are_not_computed_are_refused(copy, change, word):
    edit(copy, "config.json", change)
    refused(copy, word)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda items: st.lists(items, max_size=3) | st.dictionaries(st.text(max_size=9), items),
    max_leaves=5,
)
ROPE_NAMES = "rope_type type factor rope_theta beta_fast low_freq_factor truncate".split()
ROPE = st.dictionaries(st.sampled_from(ROPE_NAMES), JSON, max_size=3)
NAMES = st.sampled_from([*CONFIG, "hidden_act", "attention_bias", "rope_theta"])
ODD = st.dictionaries(NAMES, JSON, min_size=1, max_size=3)


@given(ODD, ROPE)
@settings(max_examples=300, deadline=None)
def test_any_config_is_read_or_refused(odd, rope):
    try:
        hub_config(CONFIG | {"rope_scaling": rope} | odd)
    except UserError:
        pass


def test_empty_new_rope_settings_do_not_hide_the_old_ones():
    old = {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}
    assert hub_config(CONFIG | old | {"rope_parameters": {}}) == hub_config(CONFIG | old)
    assert hub_config(CONFIG | old).rope.factor == 2.0


def test_old_and_new_spellings_of_the_rope_settings_agree():
    kinds = [
        ({}, {}),
        ({"rope_theta": 5e5}, {"rope_theta": 5e5}),
        (
            {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
            {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0},
        ),
        ({"rope_scaling": None}, {"rope_type": "default"}),
    ]
    for old, new in kinds:
        assert hub_config(CONFIG | old) == hub_config(CONFIG | {"rope_parameters": new})


@pytest.mark.parametrize("name", ["hidden_size", "num_attention_heads"])
def test_a_null_size_is_refused_without_head_dim(name):
    with pytest.raises(UserError, match=name):
        hub_config(CONFIG | {"head_dim": None, name: None})


def test_head_counts_have_the_usual_defaults():
    config = {k: v for k, v in CONFIG.items() if k not in ("num_key_value_heads", "head_dim")}
    for absent in ({}, {"num_key_value_heads": None, "head_dim": None}):
        found = hub_config(config | absent)
        assert (found.num_key_value_heads, found.head_dim) == (4, 8)


def shard(folder, weight_map, sizes=(8, 100)):
    """Split model.safetensors in two, with an index."""
    arrays = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(arrays)
    parts = {"a.safetensors": names[: sizes[0]], "b.safetensors": names[sizes[0] :]}
    for file, inside in parts.items():
        save_file({n: arrays[n] for n in inside}, folder / file)
    where = {n: file for file, inside in parts.items() for n in inside}
    index = {"weight_map": weight_map(where)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_sharded_folder(copy, hub):
    shard(copy, lambda where: where)
    assert_same_model(dflash_lite.load(copy)[0], dflash_lite.load(hub)[0])


def test_a_shard_that_is_missing(copy):
    shard(copy, lambda where: where)
    (copy / "b.safetensors").unlink()
    refused(copy, "b.safetensors", "fetch")


def test_a_shard_that_is_damaged(copy):
    shard(copy, lambda where: where)
    data = (copy / "b.safetensors").read_bytes()
    (copy / "b.safetensors").write_bytes(data[:-1])
    refused(copy, "b.safetensors", "fetch it again")


@pytest.mark.parametrize("name", ["../{}", "{folder}/{}", "sub/../../{}", "sub/{}", "..", "", "."])
def test_an_index_cannot_point_out_of_its_folder(copy, name):
    """Though there is a file to be read, whole and well."""
    outside = copy.parent / "outside.safetensors"
    save_file(tiny_tensors(CONFIG), outside)
    (copy / "sub").mkdir()
    save_file(tiny_tensors(CONFIG), copy / "sub" / outside.name)
    evil = name.format(outside.name, folder=copy.parent)
    shard(copy, lambda where: dict.fromkeys(where, evil))
    refused(copy, repr(evil))


@pytest.mark.parametrize("weight_map", [[1], "x", {"a": 5}, {"a": ["b"]}, {"a": None}, 7])
def test_an_index_of_another_form(copy, weight_map):
    shard(copy, lambda where: weight_map)
    refused(copy, "index.json")


def test_a_folder_of_links_as_in_the_cache_of_the_hub(copy, tmp_path):
    links = tmp_path / "links"
    links.mkdir()
    for file in copy.iterdir():
        (links / file.name).symlink_to(file)
    assert read_all(links)[1].keys() == read_all(copy)[1].keys()


def rewrite_tensors(folder, change):
    arrays = load_file(folder / "model.safetensors")
    save_file(change(arrays), folder / "model.safetensors")


@pytest.mark.parametrize(
    "name", ["model.embed_tokens.weight", "model.norm.weight", "model.layers.1.mlp.up_proj.weight"]
)
def test_a_tensor_that_is_missing(copy, name):
    rewrite_tensors(copy, lambda arrays: {n: a for n, a in arrays.items() if n != name})
    refused(copy, name, read=dflash_lite.load)


@pytest.mark.parametrize(
    "name, shape",
    [
        ("model.embed_tokens.weight", (12, 32)),
        ("model.layers.0.self_attn.k_proj.weight", (16, 31)),
        ("model.layers.1.mlp.down_proj.weight", (48, 32)),  # transposed
        ("model.norm.weight", (1, 32)),
    ],
)
def test_a_tensor_of_another_shape(copy, name, shape):
    wrong = {name: np.ones(shape, np.float32)}
    rewrite_tensors(copy, lambda arrays: arrays | wrong)
    refused(copy, name, read=dflash_lite.load)


def test_a_head_that_the_config_promises(copy):
    edit(copy, "config.json", {"tie_word_embeddings": False})
    refused(copy, "lm_head", read=dflash_lite.load)


def test_weights_that_the_config_does_not_mention_are_refused(copy):
    """Dropping a bias in silence would change what the model computes."""
    bias = {"model.layers.0.self_attn.q_proj.bias": np.ones(32, np.float32)}
    rewrite_tensors(copy, lambda arrays: arrays | bias)
    refused(copy, "q_proj.bias", read=dflash_lite.load)


def test_weights_that_are_only_repeated_are_fine(copy, hub):
    """Old files carry the rotary frequencies, and a tied head once more."""

    def change(arrays):
        head = {"lm_head.weight": arrays["model.embed_tokens.weight"]}
        old = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32)}
        return arrays | head | old

    rewrite_tensors(copy, change)
    assert_same_model(dflash_lite.load(copy)[0], dflash_lite.load(hub)[0])


def test_stop_tokens_come_from_all_files(copy):
    edit(copy, "generation_config.json", {"eos_token_id": [END + 1, END]})
    assert set(open_checkpoint(copy).tokenizer.stop_ids) == {END, END + 1}
    assert open_checkpoint(copy).tokenizer.stop_ids.count(END) == 1


# What names a model


@pytest.mark.parametrize("name", ["", "no-such-model", "./nowhere", "a/b/c", "../x/y", "x" * 5000])
def test_names_of_nothing(name):
    refused(name)


def test_a_path_may_be_a_string_or_a_path(hub, gguf_file):
    for path in (hub, gguf_file):
        assert open_checkpoint(path).config == open_checkpoint(str(path)).config


def test_a_gguf_file_may_have_any_name(tmp_path, gguf_file):
    path = write(tmp_path / "blob", gguf_file.read_bytes())
    assert open_checkpoint(path).config == open_checkpoint(gguf_file).config
