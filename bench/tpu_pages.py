"""Print what the TPU compiler says of paged attention: this package's kernel, and JAX's own.

    .venv-tpu/bin/python -m bench.tpu_pages

One layer of Qwen3-4B decodes 8 texts of 8,192 tokens, in bfloat16. The peer is
jax.experimental.pallas.ops.tpu.paged_attention, which computes blocks of several pages. Neither
program runs: it needs no TPU, but the environment of `make tpu-check`.
"""

from tpu_check import compiler  # isort: split

import sys
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention as peer

from dflash_lite.paged_attention import paged_attention

CHIP, TEXTS, CONTEXT = "v5e", 8, 8192
HEADS, KV_HEADS, SIZE = 32, 8, 128
VMEM_KIB = 128 * 1024  # more than any chip here has
ROWS = ("page", "kernel", "temporaries", "code", "bytes", "FLOPs", "VMEM")


def programs(page: int) -> dict[str, tuple[Any, tuple]]:
    """Both kernels for pages of a size, each with its arguments."""
    array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.bfloat16)
    numbers = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.int32)
    blocks = CONTEXT // page
    pages = TEXTS * blocks
    table, lengths = numbers(TEXTS, blocks), numbers(TEXTS)
    ours = array(TEXTS, 1, HEADS, SIZE), *[array(pages, KV_HEADS, page, SIZE)] * 2
    theirs = array(TEXTS, HEADS, SIZE), *[array(KV_HEADS, pages, page, SIZE)] * 2
    found = {"dflash_lite": (paged_attention, (*ours, table, lengths, lengths))}
    for many in (1, 512 // page):
        how = partial(peer, pages_per_compute_block=many)
        found[f"JAX, {many} pages at once"] = how, (*theirs, lengths, table)
    return found


def compiled(function: Any, arguments: tuple, vmem_kib: int) -> Any:
    """The program within so much VMEM; None if the compiler refuses."""
    with jax.sharding.use_abstract_mesh(compiler.mesh(CHIP).abstract_mesh):
        lowered = jax.jit(function).lower(*compiler.on_chip(CHIP, arguments))
    try:
        return lowered.compile({"xla_tpu_scoped_vmem_limit_kib": str(vmem_kib)})
    except jax.errors.JaxRuntimeError:
        return None


def least_vmem(function: Any, arguments: tuple) -> int:
    """KiB of VMEM that the compiler needs for the kernel's scratch and buffers."""
    low, high = 0, VMEM_KIB
    while high - low > 16:
        middle = (low + high) // 2
        fits = compiled(function, arguments, middle) is not None
        low, high = (low, middle) if fits else (middle, high)
    return high


def row(function: Any, arguments: tuple) -> list[str]:
    """What the compiler says."""
    program = compiled(function, arguments, VMEM_KIB)
    if program is None:
        return ["refused"]
    memory, counted = program.memory_analysis(), program.cost_analysis() or {}
    told = [counted.get(name) for name in ("bytes accessed", "flops")]
    return [
        f"{memory.temp_size_in_bytes:,}", f"{memory.generated_code_size_in_bytes:,}",
        *("not told" if x is None else f"{x:,.0f}" for x in told),
        f"{least_vmem(function, arguments):,} KiB",
    ]  # fmt: skip


def main() -> int:
    print(" | ".join(ROWS))
    for page in (16, 128):
        for name, (function, arguments) in programs(page).items():
            print(" | ".join([str(page), name, *row(function, arguments)]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
