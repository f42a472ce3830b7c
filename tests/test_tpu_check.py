"""The list of what is compiled for TPUs, and the page that shows it; no TPU's compiler needed."""

import dataclasses
import json

import jax
import pytest

from dflash_lite.decoding import DenseCache
from tpu_check import coverage, entries, functions, models, report
from tpu_check.chips import CHIPS
from tpu_check.entries import ENTRIES, Entry


def covered(listed=ENTRIES):
    return {functions.FUNCTIONS[entry.function][0] for entry in listed}


def test_every_program_of_the_package_is_compiled():
    assert {"dflash_lite.decoding.decode", "dflash_lite.flash_attention.flash_attention"} <= (
        coverage.programs()
    )
    assert coverage.forgotten(covered()) == []


def test_a_forgotten_entry_is_found():
    without = [entry for entry in ENTRIES if entry.function != "decode"]
    (line,) = coverage.forgotten(covered(without))
    assert line.startswith("dflash_lite.decoding.decode is compiled nowhere: add it to ")


SOURCE = """
import functools
import jax
from jax import jit
from flax import nnx

plain = 3
made = jax.jit(lambda x: x)

@functools.partial(jax.jit, static_argnames="n")
def decorated(x, n): ...

def factory():
    return jit(lambda x: x)

def kernel(x):
    return pl.pallas_call(body)(x)

def uses(x):
    return decorated(x, 1)

class Model:
    @nnx.jit
    def step(self): ...

    def name(self): ...
"""


def test_programs_are_found_however_they_are_written(tmp_path):
    (tmp_path / "parts.py").write_text(SOURCE, "utf-8")
    names = {"made", "decorated", "factory", "kernel", "Model.step"}
    expected = {f"{tmp_path.name}.parts.{name}" for name in names}
    assert coverage.programs(tmp_path) == expected


def test_the_list_is_of_known_things_and_names_nothing_twice():
    for entry in ENTRIES:
        assert entry.function in functions.FUNCTIONS, entry
        assert entry.model in models.MODELS and set(entry.chips) <= set(CHIPS), entry
        assert entry.context >= entry.tokens, entry
        functions.build(entry)
    labels = [entry.label for entry in ENTRIES]
    assert len(set(labels)) == len(labels)


def test_the_list_has_the_sizes_that_matter():
    """Both models and head sizes, batches to 64, contexts to 32K, blocks of 16."""
    decodes = [e for e in ENTRIES if e.function == "decode"]
    for model in models.MODELS:
        assert {1, 64} <= {e.batch for e in decodes if e.model == model}
        assert len({e.tokens for e in ENTRIES if (e.function, e.model) == ("prefill", model)}) > 1
    for function in ("decode", "verify", "flash_attention"):
        assert max(e.context for e in ENTRIES if e.function == function) == 32768
    assert 16 in {e.tokens for e in ENTRIES if e.function == "verify"}


def test_the_models_have_their_published_sizes():
    """134.5 million and 4.02 thousand million parameters; 144 KiB of cache a token for Qwen3."""
    count = lambda name: sum(x.size for x in jax.tree.leaves(models.shapes(name)))
    assert count("SmolLM2-135M") == 134_515_008
    assert count("Qwen3-4B") == 4_022_468_096
    assert functions.padded_cache(models.MODELS["Qwen3-4B"], 1, 1) == 144 * 1024


def test_the_small_model_has_its_checkpoints_settings(smollm2):
    """Its GGUF file has a float32 epsilon, and the context as the one before a stretch."""
    found = dataclasses.asdict(smollm2[0].config)
    ours = dataclasses.asdict(models.MODELS["SmolLM2-135M"])
    assert found.pop("rms_norm_eps") == pytest.approx(ours.pop("rms_norm_eps"))
    found["rope"]["original_max_position_embeddings"] = 0
    assert found == ours


def test_products_are_twice_the_weights_for_each_token():
    """Without keys and with logits for every token: 2 × the matrices' parameters."""
    config = models.MODELS["Qwen3-4B"]
    leaves = jax.tree.leaves(models.shapes("Qwen3-4B"))
    matrices = sum(x.size for x in leaves if len(x.shape) == 2)
    assert functions.products(config, 3, 0, 3) == 2 * 3 * matrices


@pytest.mark.parametrize("entry", [e for e in ENTRIES if e.function in ("decode", "verify")],
                         ids=lambda e: e.label)  # fmt: skip
def test_a_bound_is_less_than_another_copy_of_the_cache(entry):
    """So a hidden copy fails the check, in every program over a cache of 128 MiB or more."""
    config = models.MODELS[entry.model]
    bare = functions.build(entry._replace(copies=0)).bound
    cache = jax.eval_shape(lambda: DenseCache.empty(config, entry.batch, entry.context, "bfloat16"))
    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(cache))
    assert bare < size


def test_labels_name_what_only_searches():
    entry = Entry("decode", entries.QWEN3, batch=8, context=2048, mode="truncated")
    assert entry.label == "decode truncated Qwen3-4B batch 8 tokens 1 context 2048"


# The page
# --------

RECORD = {
    "function": "decode", "model": "M", "batch": 1, "tokens": 1, "context": 2048, "mode": "greedy",
    "label": "decode M", "chip": "v5e", "bound": 1e9, "flops": 197e9, "arguments": 8.19e9,
    "outputs": 0, "temporaries": 2**20, "seconds": 3.21, "problem": None,
}  # fmt: skip


def test_the_roofline_is_the_longer_of_moving_and_computing():
    assert report.roofline(RECORD) == (pytest.approx(0.01), "memory")
    assert report.roofline(RECORD | {"flops": 197e12}) == (1.0, "compute")
    assert "| 10 | memory |" in report.table([RECORD])


def test_a_refused_program_stands_in_the_table():
    bare = {name: RECORD[name] for name in ("function", "model", "batch", "tokens", "context",
                                            "mode", "label", "chip")}  # fmt: skip
    assert "refused" in report.table([bare | {"problem": "decode M, v5e: refused: too large"}])


def test_the_page_shows_the_committed_results():
    assert not report.stale(), "run python -m tpu_check.report"


def test_new_results_make_the_page_stale(tmp_path, monkeypatch):
    results = json.loads(report.NEWEST.read_text("utf-8"))
    results["programs"][0]["temporaries"] += 2**30
    monkeypatch.setattr(report, "NEWEST", tmp_path / "tpu.json")
    report.NEWEST.write_text(report.compact(results), "utf-8")
    assert report.stale()


def committed():
    return sorted(report.NEWEST.parent.glob("tpu*.json"))


def test_the_newest_versions_have_results():
    assert report.NEWEST in committed()


@pytest.mark.parametrize("path", committed(), ids=lambda path: path.name)
def test_committed_results_are_of_the_whole_list(path):
    programs = json.loads(path.read_text("utf-8"))["programs"]
    found = {(record["label"], record["chip"]) for record in programs}
    assert found == {(entry.label, chip) for entry in ENTRIES for chip in entry.chips}
    assert [r["problem"] for r in programs if r["problem"]] == []


def test_a_part_is_put_into_the_whole_list():
    from tpu_check.__main__ import added, chosen

    pairs = [(entry.label, chip) for entry, chip in chosen(["v5e", "v6e", "v5p"], "")]
    record = lambda pair, value: {"label": pair[0], "chip": pair[1], "value": value}
    gone = record(("a program that the list no longer has", "v5e"), 0)
    old = {"date": "then", "versions": {"jax": "1"},
           "programs": [record(pair, 0) for pair in pairs[1:]] + [gone]}  # fmt: skip
    new = {"date": "now", "versions": {"jax": "1"}, "sources": "x",
           "programs": [record(pairs[3], 1), record(pairs[0], 1)]}  # fmt: skip
    found = added(old, new)
    assert [(r["label"], r["chip"]) for r in found["programs"]] == pairs
    assert [i for i, r in enumerate(found["programs"]) if r["value"]] == [0, 3]
    assert found["date"] == "now"
    with pytest.raises(ValueError, match="compile the whole list"):
        added(old, new | {"versions": {"jax": "2"}})
