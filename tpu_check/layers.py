"""What a loop over the layers costs and saves, beside layers written out.

    python -m tpu_check.layers [--rounds 9] [--results bench/results/layers.json]

One decode step at batch 1, for the CPU (where the smaller model also runs) and for a v5e. The
cache is the same but for its one array of all layers, which a loop needs.
"""

from tpu_check import compiler  # isort: split

import argparse
import dataclasses
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from tqdm import tqdm

from bench.ratios import ratio
from dflash_lite.checkpoints import ModelConfig
from dflash_lite.transformer import Transformer, attention, rotation
from tpu_check import report
from tpu_check.__main__ import versions
from tpu_check.functions import Work
from tpu_check.models import DTYPE, MODELS, abstract

CONTEXT, CHIP = 2048, "v5e"


def write(cache: jax.Array, new: jax.Array, positions: jax.Array, *layer: Any) -> jax.Array:
    """Put new rows in place; every axis but the last has an index, so that no copy is made."""
    batch, heads = new.shape[0], new.shape[2]
    rows, head = jnp.arange(batch)[:, None, None], jnp.arange(heads)[None, :, None]
    at = (*layer, rows, head, positions[:, None, :])
    return cache.at[at].set(new.swapaxes(1, 2), mode="drop")


class Listed(NamedTuple):
    """A cache of one array for each layer."""

    keys: tuple[jax.Array, ...]
    values: tuple[jax.Array, ...]

    def attend(self, layer, q, k, v, positions):
        both = []
        for old, new in ((self.keys, k), (self.values, v)):
            both.append([*old[:layer], write(old[layer], new, positions), *old[layer + 1 :]])
        k, v = jax.lax.optimization_barrier((both[0][layer], both[1][layer]))
        seen = jnp.arange(k.shape[2]) <= positions[..., None]
        return attention(q, k, v, seen), Listed(*map(tuple, both))


class Stacked(NamedTuple):
    """A cache of one array for all layers."""

    keys: jax.Array
    values: jax.Array

    def attend(self, layer, q, k, v, positions):
        new = Stacked(*(write(old, x, positions, layer) for old, x in zip(self, (k, v))))
        k, v = (jax.lax.dynamic_index_in_dim(x, layer, keepdims=False) for x in new)
        seen = jnp.arange(k.shape[2]) <= positions[..., None]
        return attention(q, k, v, seen), new


@partial(jax.jit, donate_argnames="cache")
def unrolled(model: Transformer, token: jax.Array, at: jax.Array, cache: Listed) -> tuple:
    output = model(token, at, cache)
    return model.logits(output.hidden).argmax(-1), output.cache


@partial(jax.jit, donate_argnames="cache")
def looped(
    model: Transformer, layers: Any, token: jax.Array, at: jax.Array, cache: Stacked
) -> tuple:
    """The same; `layers` are a layer whose parameters have a first axis for all."""
    config = model.config
    by = rotation(config.rope, config.head_dim, at)

    def step(carry: tuple, one: tuple) -> tuple:
        (x, cache), (number, layer) = carry, one
        return layer(x, number, by, at, cache), None

    start = model.embed_tokens[...][token], cache
    numbered = jnp.arange(config.num_hidden_layers), layers
    (x, cache), _ = jax.lax.scan(step, start, numbered)
    return model.logits(model.norm(x)).argmax(-1), cache


def stack(model: Transformer) -> tuple[Transformer, Any]:
    """The model without its layers, and these as one."""
    layers = jax.tree.map(lambda *x: jnp.stack(x), *model.layers)
    graph, state = nnx.split(model)
    bare = nnx.merge(graph, state)
    bare.layers = type(model.layers)([])
    return bare, layers


def shape(config: ModelConfig, dtype: Any) -> Transformer:
    """The model without values."""
    return nnx.eval_shape(lambda: Transformer(config, dtype=dtype, rngs=nnx.Rngs(0)))


def works(model: Transformer, dtype: Any) -> dict[str, Work]:
    """Both programs."""
    c = model.config
    heads = (1, c.num_key_value_heads, CONTEXT, c.head_dim)
    one, all_ = (jax.ShapeDtypeStruct(s, dtype) for s in (heads, (c.num_hidden_layers, *heads)))
    each = (one,) * c.num_hidden_layers
    token = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    loop = (*jax.eval_shape(stack, model), token, token, Stacked(all_, all_))
    return {
        "unrolled": Work(unrolled, (model, token, token, Listed(each, each)), {}, 0, 0),
        "loop": Work(looped, loop, {}, 0, 0),
    }


def compiled(work: Work, where: str) -> tuple[dict, Any]:
    """Seconds, bytes and temporaries of one program; nothing is kept from a run before."""
    jax.clear_caches()
    start = time.perf_counter()
    if where == "CPU":
        lowered = work.function.lower(*work.arguments, **work.options)
        middle = time.perf_counter()
        program, seconds = lowered.compile(), time.perf_counter() - middle
    else:
        program, seconds = compiler.compile_for(CHIP, work)
    trace = time.perf_counter() - start - seconds
    taken = program.memory_analysis().temp_size_in_bytes
    bytes_ = (program.cost_analysis() or {}).get("bytes accessed", 0)
    return {"trace": trace, "compile": seconds, "bytes": bytes_, "temporaries": taken}, program


def whole_loop(counted: float, config: ModelConfig, where: str, dtype: Any) -> float:
    """Bytes of all turns, of a count that has one turn of the loop.

    With half the layers the count is less by what each layer moves outside of the loop. Outside
    is the table of logits, too; what remains is a turn.
    """
    layers = config.num_hidden_layers
    half = dataclasses.replace(config, num_hidden_layers=layers // 2)
    fewer = compiled(works(shape(half, dtype), dtype)["loop"], where)[0]["bytes"]
    outside = (counted - fewer) / (layers - layers // 2)
    table = config.vocab_size * config.hidden_size * jnp.dtype(dtype).itemsize
    turn = counted - layers * outside - table
    return counted + (layers - 1) * turn


def measure(name: str, where: str, dtype: Any) -> list[dict]:
    """The rows of one model at one place."""
    config = MODELS[name]
    found = {how: compiled(work, where)[0]
             for how, work in works(shape(config, dtype), dtype).items()}  # fmt: skip
    found["loop"]["bytes"] = whole_loop(found["loop"]["bytes"], config, where, dtype)
    return [{"model": name, "where": where, "layers": how} | row for how, row in found.items()]


def race(rounds: int) -> dict[str, list[float]]:
    """Seconds of a step of the small model on this CPU; both take turns."""
    model = Transformer(MODELS["SmolLM2-135M"], dtype=jnp.float32, rngs=nnx.Rngs(0))
    both = works(abstract(model), jnp.float32)
    bare, layers = jax.jit(stack)(model)
    zeros = lambda work: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), work.arguments[-1])
    subjects = {"unrolled": (unrolled, (model,)), "loop": (looped, (bare, layers))}
    caches = {how: zeros(both[how]) for how in subjects}
    token, found, answers = jnp.ones((1, 1), jnp.int32), {how: [] for how in subjects}, {}
    for turn in tqdm(range(rounds + 1), unit="round"):
        for how in sorted(subjects, reverse=turn % 2 == 1):
            function, fixed = subjects[how]
            start = time.perf_counter()
            for i in range(8):
                at = jnp.full((1, 1), 8 * turn + i, jnp.int32)
                answer, caches[how] = function(*fixed, token, at, caches[how])
            answers[how] = int(jax.block_until_ready(answer)[0, 0])
            found[how].append((time.perf_counter() - start) / 8)
        assert len(set(answers.values())) == 1, f"the two programs disagree: {answers}"
    return {how: seconds[1:] for how, seconds in found.items()}  # the first round compiles


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--results", type=Path, default=report.LAYERS)
    args = parser.parse_args()
    jax.config.update("jax_enable_compilation_cache", False)
    seconds, rows = race(args.rounds), []
    places = [(name, where) for name in MODELS for where in ("CPU", CHIP)]
    for name, where in tqdm(places, unit="pair"):
        rows += measure(name, where, DTYPE if where == CHIP else jnp.float32)
    for row in rows:
        if row["model"] == "SmolLM2-135M" and row["where"] == "CPU":
            row["step"] = float(np.median(seconds[row["layers"]]))
    found = ratio(seconds["loop"], seconds["unrolled"])
    beside = {"median": found.median, "low": found.low, "high": found.high, "rounds": args.rounds}
    results = {"versions": versions(), "context": CONTEXT, "rows": rows, "ratio": beside}
    args.results.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    report.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
