"""Compile for a chip that is not there, and read what the compiler says.

Import this before a TPU library is loaded: it sets what libtpu reads then.
"""

import os

# no server to ask for the machine's data, no chip to look for, and a neighbour may do the same
os.environ |= {
    "TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v5litepod-1",
    "TPU_WORKER_HOSTNAMES": "localhost", "JAX_PLATFORMS": "cpu",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}  # fmt: skip

import contextlib
import functools
import time
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tpu_check.chips import CHIPS, GIB
from tpu_check.functions import MIB, Work


@functools.cache
def mesh(chip: str) -> Mesh:
    """The first chip of its topology, as libtpu describes it."""
    c = CHIPS[chip]
    found = topologies.get_topology_desc(c.topology, "tpu", chips_per_host_bounds=c.bounds)
    return Mesh(np.array(found.devices[:1]), ("x",))


def on_chip(chip: str, tree: Any) -> Any:
    """Shapes that lie on the chip."""
    shard = NamedSharding(mesh(chip), PartitionSpec())
    put = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=shard)
    return jax.tree.map(put, tree)


def compile_for(chip: str, work: Work) -> tuple[Any, float]:
    """The program, and the seconds of compiling without tracing.

    Raises:
        jax.errors.JaxRuntimeError: the compiler's refusal.
    """
    # since 0.8 a kernel is lowered for a described chip only inside its mesh
    use = getattr(jax.sharding, "use_abstract_mesh", lambda _: contextlib.nullcontext())
    arguments = on_chip(chip, work.arguments)
    drafter = {} if work.drafter is None else {"drafter": on_chip(chip, work.drafter)}
    with use(mesh(chip).abstract_mesh):
        lowered = work.function.lower(*arguments, **work.options, **drafter)
    start = time.perf_counter()
    return lowered.compile(), time.perf_counter() - start


def short(error: Exception) -> str:
    """What matters of a compiler's message, on one line."""
    return " ".join(str(error).split())[:400]


def measure(work: Work, chip: str) -> dict:
    """What the compiler says of a program: bytes and seconds, or why it refuses."""
    try:
        program, seconds = compile_for(chip, work)
    except Exception as error:  # a kernel's lowering has many ways to refuse
        return {"refused": short(error)}
    memory, counted = program.memory_analysis(), program.cost_analysis() or {}
    return {
        "seconds": seconds,
        "arguments": memory.argument_size_in_bytes,
        "outputs": memory.output_size_in_bytes - memory.alias_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
        "code": memory.generated_code_size_in_bytes,
        "compiler": {n: counted[n] for n in ("flops", "bytes accessed") if n in counted},
    }


def judge(name: str, found: dict, bound: float, chip: str) -> str | None:
    """Why a program fails the check: the chip is too small, or its bound."""
    if "refused" in found:
        return f"{name}, {chip}: refused: {found['refused']}"
    parts = ("arguments", "outputs", "temporaries", "code")
    total, hbm = sum(found[part] for part in parts), CHIPS[chip].hbm
    if total > hbm:
        return (f"{name}, {chip}: it takes {total:,} bytes ({total / GIB:.2f} GiB); the chip has "
                f"{hbm:,.0f} ({hbm / GIB:.2f} GiB): make it smaller, or list only chips that "
                "hold it")  # fmt: skip
    taken = found["temporaries"]
    if taken > bound:
        return (f"{name}, {chip}: its temporaries are {taken:,} bytes ({taken / MIB:,.0f} MiB); "
                f"expected at most {bound:,.0f} ({bound / MIB:,.0f} MiB): look for a copy of a "
                "whole cache")  # fmt: skip
    return None


def check(name: str, work: Work, chip: str, found: dict | None = None) -> dict:
    """A program's record; `found` is what `measure` said of it before.

    Returns:
        What it does and takes; under "problem" why it fails the check, or None.
    """
    found = found or measure(work, chip)
    about = {"bound": work.bound, "flops": work.flops}
    return about | found | {"problem": judge(name, found, work.bound, chip)}
