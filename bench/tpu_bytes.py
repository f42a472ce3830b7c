"""Print what the TPU compiler says of attention with and without its table of scores.

    python bench/tpu_bytes.py

Chapter 4 shows the numbers. It needs no TPU, but the TPU's compiler: `pip install "jax[tpu]"`
beside the package, in an environment of its own.
"""

import contextlib
import os

os.environ |= {
    "TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v5litepod-1",
    "TPU_WORKER_HOSTNAMES": "localhost", "JAX_PLATFORMS": "cpu",
}  # fmt: skip

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dflash_lite.flash_attention import flash_attention
from dflash_lite.transformer import attention

CHIP = topologies.get_topology_desc("v5e:1x1", "tpu", chips_per_host_bounds=(1, 1, 1))
MESH = Mesh(np.array(CHIP.devices).reshape(1), ("x",))
HEADS, KV_HEADS, SIZE = 9, 3, 64  # one layer of SmolLM2


def table(q, k, v):
    """Chapter 2's attention, causal."""
    n = q.shape[1]
    return attention(q, k, v, (jnp.arange(n) <= jnp.arange(n)[:, None])[None])


def tiles(q, k, v):
    """Chapter 4's kernel."""
    return flash_attention(q, k, v, jnp.zeros(1, jnp.int32), jnp.full(1, q.shape[1], jnp.int32))


def compile_for_chip(function, n: int):
    """The program for n tokens in bfloat16; the compiler's error where it refuses."""
    shard = NamedSharding(MESH, PartitionSpec())
    array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=shard)
    use = getattr(jax.sharding, "use_abstract_mesh", lambda _: contextlib.nullcontext())
    keys = array(1, KV_HEADS, n, SIZE)
    with use(MESH.abstract_mesh):
        return jax.jit(function).lower(array(1, n, HEADS, SIZE), keys, keys).compile()


def main() -> None:
    for n in (128, 512, 1024, 2048, 4096, 8192, 16384, 32768):
        for function in (table, tiles):
            try:
                program = compile_for_chip(function, n)
            except jax.errors.JaxRuntimeError as error:
                print(f"{n:6} {function.__name__}: refused: {str(error).splitlines()[0][:150]}")
                continue
            kept = program.memory_analysis().temp_size_in_bytes / 1e6
            moved = program.cost_analysis()["bytes accessed"] / 1e6
            # a kernel's own traffic is not in the compiler's count
            count = f"{moved:,.0f} MB read and written, " if function is table else ""
            print(f"{n:6} {function.__name__}: {count}{kept:,.0f} MB kept in HBM")


if __name__ == "__main__":
    main()
