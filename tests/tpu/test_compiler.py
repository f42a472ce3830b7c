"""The TPU compiler refuses what does not fit, and the check says so. Run by make tpu-check."""

from tpu_check import compiler  # isort: split

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from dflash_lite.flash_attention import flash_attention
from tpu_check import __main__ as driver
from tpu_check.chips import CHIPS, GIB
from tpu_check.entries import Entry
from tpu_check.functions import MIB, Work, build


def array(*shape, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(shape, dtype)


def work(function, *arguments, bound=0, **options):
    return Work(jax.jit(function, **options), arguments, {}, 0, bound)


def test_a_kernel_that_is_too_large_is_refused():
    """A table of 4096 × 16384 scores is 256 MiB; a core of a v5e has 128 MiB."""
    keys = array(1, 1, 32768, 128)
    whole = lambda *x: flash_attention(*x, row_tile=4096, key_tile=16384)
    ones = jax.ShapeDtypeStruct((1,), jnp.int32)
    program = work(whole, array(1, 4096, 1, 128), keys, keys, ones, ones, bound=GIB)
    assert "vmem" in compiler.check("whole", program, "v5e")["problem"].lower()
    tiled = program._replace(function=jax.jit(flash_attention))
    assert compiler.check("tiles", tiled, "v5e")["problem"] is None


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


def test_a_step_that_copies_its_cache_is_found():
    """The bound of an entry is the check's own: a copy of one large layer is over it."""
    entry = Entry("verify", "Qwen3-4B", tokens=16, context=32768)
    bound = build(entry).bound
    def copied(cache):
        return jax.lax.optimization_barrier(cache.swapaxes(2, 3)).swapaxes(2, 3) + 1

    program = work(copied, array(4, 8, 32768, 128), bound=bound, donate_argnums=0)
    assert "temporaries" in compiler.check("copied", program, "v5e")["problem"]


def test_one_failure_stops_no_other(tmp_path, monkeypatch):
    """A builder that raises, and a program that fits, in one run."""
    broken = Entry("no such function", "Qwen3-4B", context=128)
    fine = Entry("flash_attention", "SmolLM2-135M", tokens=16, context=128)
    results = {"programs": []}
    driver.run([(broken, "v5e"), (fine, "v5e")], tmp_path / "partial.json", results)
    assert [bool(record["problem"]) for record in results["programs"]] == [True, False]
    assert "no such function" in (tmp_path / "partial.json").read_text("utf-8")


def test_operations_are_counted_as_the_compiler_counts_them():
    """Of one step without a loop; it counts what is not a product too."""
    entry = Entry("verify", "SmolLM2-135M", tokens=16, context=1024)
    program = build(entry)
    counted = compiler.check(entry.label, program, "v5e")["compiler"]["flops"]
    assert 1 <= counted / program.flops < 1.5
