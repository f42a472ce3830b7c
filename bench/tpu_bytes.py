"""Print what the TPU compiler says of attention with and without its table of scores.

    .venv-tpu/bin/python -m bench.tpu_bytes

Chapter 4 shows the numbers. It needs no TPU, but the environment of `make tpu-check`.
"""

from tpu_check import compiler  # isort: split

import jax
import jax.numpy as jnp

from dflash_lite.flash_attention import flash_attention
from dflash_lite.transformer import attention
from tpu_check.functions import Work

CHIP = "v5e"
HEADS, KV_HEADS, SIZE = 9, 3, 64  # one layer of SmolLM2


def table(q, k, v):
    """Chapter 2's attention, causal."""
    n = q.shape[1]
    return attention(q, k, v, (jnp.arange(n) <= jnp.arange(n)[:, None])[None])


def tiles(q, k, v):
    """Chapter 4's kernel."""
    return flash_attention(q, k, v, jnp.zeros(1, jnp.int32), jnp.full(1, q.shape[1], jnp.int32))


def line(function, n: int) -> str:
    """What the compiler says of n tokens in bfloat16, perhaps a refusal."""
    array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.bfloat16)
    keys = array(1, KV_HEADS, n, SIZE)
    work = Work(jax.jit(function), (array(1, n, HEADS, SIZE), keys, keys), {}, 0, 0)
    found = compiler.measure(work, CHIP)
    if "refused" in found:
        return f"refused: {found['refused'][:150]}"
    kept = f"{found['temporaries'] / 1e6:,.0f} MB kept in HBM"
    if function is tiles:  # a kernel's own traffic is not in the compiler's count
        return kept
    return f"{found['compiler']['bytes accessed'] / 1e6:,.0f} MB read and written, {kept}"


def main() -> None:
    for n in (128, 512, 1024, 2048, 4096, 8192, 16384, 32768):
        for function in (table, tiles):
            print(f"{n:6} {function.__name__}: {line(function, n)}", flush=True)


if __name__ == "__main__":
    main()
