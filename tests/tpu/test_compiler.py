"""The TPU compiler refuses what does not fit, and the check says so. Run by make tpu-check."""

from tpu_check import compiler  # isort: split

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tpu_check import __main__ as driver
from tpu_check.chips import CHIPS, GIB
from tpu_check.entries import Entry
from tpu_check.functions import MIB, Work, build

FINE = Entry("flash_attention", "SmolLM2-135M", tokens=16, context=128)


def array(*shape, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(shape, dtype)


def work(function, *arguments, bound=0, **options):
    return Work(jax.jit(function, **options), arguments, {}, 0, bound)


def doubled(x, rows):
    """A kernel that goes through a buffer of `rows` KiB."""
    def through(x, output, buffer):
        buffer[:8] = x[...]
        output[...] = 2 * buffer[:8]

    buffers = [pltpu.VMEM((rows, 256), jnp.float32)]
    return pl.pallas_call(through, out_shape=array(8, 256, dtype=jnp.float32),
                          scratch_shapes=buffers)(x)  # fmt: skip


def test_a_kernel_that_is_too_large_is_refused():
    """A core of a v5e has 128 MiB of vector memory; the buffers are of 8 KiB and 256 MiB."""
    kernel = lambda rows: work(lambda x: doubled(x, rows), array(8, 256, dtype=jnp.float32))
    assert compiler.check("small", kernel(8), "v5e")["problem"] is None
    problem = compiler.check("large", kernel(2**18), "v5e")["problem"]
    assert problem.startswith("large, v5e: refused: ") and "vmem" in problem.lower()


@pytest.mark.parametrize("chip", CHIPS)
def test_a_program_that_is_larger_than_the_chip_is_refused(chip):
    """Just over and well under the bytes that chips.py names: the number is the compiler's."""
    size = lambda gib: int((CHIPS[chip].hbm / GIB + gib) * GIB)
    fill = lambda gib: work(lambda x: x + 1, array(size(gib), dtype=jnp.int8), donate_argnums=0)
    problem = compiler.check("too large", fill(0.02), chip)["problem"]
    assert problem and problem.startswith(f"too large, {chip}: ")
    assert compiler.check("fits", fill(-0.5), chip)["problem"] is None


def test_arguments_and_results_count_even_where_the_compiler_is_content(monkeypatch):
    """The check adds them up itself."""
    small = CHIPS["v5e"]._replace(hbm=3 * MIB)
    monkeypatch.setitem(compiler.CHIPS, "v5e", small)
    two = work(lambda x: x + 1, array(2 * MIB, dtype=jnp.int8), bound=GIB)
    problem = compiler.check("two copies", two, "v5e")["problem"]
    assert "two copies, v5e: it takes 4," in problem and "the chip has 3,145,728" in problem


def first_page(pool):
    """A kernel that reads one page of a pool in HBM."""
    def copy(page, output):
        output[...] = page[0, 0]

    return pl.pallas_call(
        copy,
        grid=(1,),
        in_specs=[pl.BlockSpec((1, 1, 64, pool.shape[-1]), lambda i: (0, 0, 0, 0))],
        out_specs=pl.BlockSpec((64, pool.shape[-1]), lambda i: (0, 0)),
        out_shape=array(64, pool.shape[-1]),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",)),
    )(pool)  # fmt: skip


def test_a_hidden_copy_of_a_pool_is_found():
    """Heads of 64 are padded to 128 lanes, and the whole pool with them."""
    pool = lambda size: work(first_page, array(4096, 8, 64, size), bound=16 * MIB)
    assert compiler.check("heads of 128", pool(128), "v5e")["problem"] is None
    problem = compiler.check("heads of 64", pool(64), "v5e")["problem"]
    assert problem.startswith("heads of 64, v5e: its temporaries are ")
    assert "expected at most 16,777,216 (16 MiB)" in problem


def test_a_copy_of_a_cache_is_over_an_entrys_bound():
    """The bound of a real entry, and a program that keeps a second one of its cache."""
    entry = Entry("decode", "Qwen3-4B", batch=8, context=2048)
    bound = build(entry).bound

    def copied(cache):
        other = jax.lax.optimization_barrier(cache + 1)
        return cache - other.mean(2, keepdims=True)

    cache = array(72, 8, 8, 2048, 128)
    program = work(copied, cache, bound=bound, donate_argnums=0)
    assert "its temporaries are" in compiler.check("copied", program, "v5e")["problem"]
    kept = work(lambda cache: cache - 1, cache, bound=bound, donate_argnums=0)
    assert compiler.check("kept", kept, "v5e")["problem"] is None


def test_one_failure_stops_no_other(tmp_path, monkeypatch):
    """A builder that raises, and a program that fits, in one run."""
    broken = Entry("no such function", "Qwen3-4B", context=128)
    results = {"sources": "", "versions": {}, "programs": []}
    driver.run([(broken, "v5e"), (FINE, "v5e")], tmp_path / "partial.json", results)
    assert [bool(record["problem"]) for record in results["programs"]] == [True, False]
    assert "no such function" in (tmp_path / "partial.json").read_text("utf-8")


def test_an_interrupted_run_goes_on(tmp_path, monkeypatch):
    """What is compiled is judged again but not compiled; other sources begin anew."""
    partial, of = tmp_path / "partial.json", {"sources": "a", "versions": {}}
    driver.run([(FINE, "v5e")], partial, of | {"programs": []})
    monkeypatch.setattr(compiler, "measure", lambda work, chip: {"refused": "compiled again"})
    for source, refused in (("a", False), ("b", True)):
        results = of | {"sources": source, "programs": []}
        driver.run([(FINE, "v5e")], partial, results)
        assert [bool(record["problem"]) for record in results["programs"]] == [refused]


def test_a_problem_is_a_line_and_the_status(tmp_path, monkeypatch, capsys):
    """A part of the list prints its table and leaves the results alone."""
    monkeypatch.setattr(driver, "PARTIAL", tmp_path)
    monkeypatch.setattr(driver, "ENTRIES", [FINE])
    monkeypatch.setattr(driver.coverage, "forgotten", lambda covered: [])
    options = ["--chip", "v5e", "--results", str(tmp_path / "tpu.json")]
    assert driver.main(options) == 0
    out = capsys.readouterr().out
    assert "| flash_attention | SmolLM2-135M |" in out and "1 programs compiled, 0 problems" in out
    monkeypatch.setattr(compiler, "measure", lambda work, chip: {"refused": "too large"})
    (tmp_path / "part_tpu.json").unlink()
    assert driver.main(options) == 1
    assert f"{FINE.label}, v5e: refused: too large\n" in capsys.readouterr().err
    assert driver.main([*options, "--only", "no such thing"]) == 1
    assert FINE.label in capsys.readouterr().err
    assert not (tmp_path / "tpu.json").exists()


def test_operations_are_counted_as_the_compiler_counts_them():
    """Of one step without a loop; it counts what is not a product too."""
    entry = Entry("verify", "SmolLM2-135M", tokens=16, context=1024)
    program = build(entry)
    counted = compiler.check(entry.label, program, "v5e")["compiler"]["flops"]
    assert 1 <= counted / program.flops < 1.5
