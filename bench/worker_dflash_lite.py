"""dflash_lite in a process of its own; see serve.py."""

import importlib.metadata
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from serve import serve, timed

import dflash_lite
from dflash_lite import decoding
from dflash_lite.transformer import Transformer

NEVER = jnp.array([-1], jnp.int32)  # no token stops an answer
CAPACITY = 128  # of the caches whose steps are timed for many batch sizes

model, tokenizer = dflash_lite.load("smollm2-135m")
tokenizer = replace(tokenizer, stop_ids=())
weights = sum(x.nbytes for x in jax.tree.leaves(model))
to_read = np.ones(weights // 4, np.float32)
threads = int(os.environ["NPROC"])
pool = ThreadPoolExecutor(threads)


def about() -> dict:
    """Sizes and versions."""
    return {
        "versions": {n: importlib.metadata.version(n) for n in ("jax", "flax", "numpy")},
        "weight_bytes": weights,
        "cache_row_bytes": 8 * model.config.num_hidden_layers
        * model.config.num_key_value_heads * model.config.head_dim,
    }


def prompt(text: str) -> dict:
    """The token ids of a question in the model's chat template."""
    return {"ids": decoding.encode_prompt(tokenizer, text, True, None)}


def generate(ids: list[int], tokens: int) -> dict:
    """The package's own call, from token ids to token ids."""
    count = decoding.COMPILE_CLOCK.count
    seconds, answer = timed(
        lambda: dflash_lite.generate(model, tokenizer, ids, max_new_tokens=tokens)
    )
    compiled = decoding.COMPILE_CLOCK.count - count
    return {"seconds": seconds, "tokens": answer.tokens, "compiled": compiled}


def begin(ids: list[int], tokens: int) -> tuple:
    """The state that `generate` has before it decodes, and the seconds to get it."""
    packed, lengths = decoding.pack([ids])
    sampling, mode = decoding.make_sampling(model, 1, 0.0, None, None, 0)
    capacity = decoding.bucket(packed.shape[1] + tokens)
    seconds, state = timed(
        lambda: jax.block_until_ready(
            decoding.prefill(
                model, packed, lengths, lengths + tokens, NEVER, sampling, capacity, mode
            )
        )
    )
    return seconds, state, sampling, mode


def loop(ids: list[int], tokens: int) -> dict:
    """Prefill and the whole decode loop on the device: no look in between."""
    prefill, state, sampling, mode = begin(ids, tokens)
    steps = np.int32(tokens - 1)
    decode, _ = timed(
        lambda: jax.block_until_ready(
            decoding.decode(model, state, NEVER, sampling, steps, mode)
        )
    )
    return {"prefill": prefill, "decode": decode}


def steps(ids: list[int], tokens: int) -> dict:
    """The same program one step a call, waiting for each: the sum of the steps."""
    _, state, sampling, mode = begin(ids, tokens)
    total = 0.0
    for _ in range(tokens - 1):
        seconds, state = timed(
            lambda state=state: jax.block_until_ready(
                decoding.decode(model, state, NEVER, sampling, np.int32(1), mode)
            )
        )
        total += seconds
    return {"decode": total}


def read(tries: int) -> dict:
    """Seconds to read an array as large as the weights: the best of two ways.

    XLA's sum uses all threads; NumPy's dot product of each thread's share with itself needs
    fewer instructions a byte. Whichever is quicker says more about the memory.
    """
    parts = np.array_split(to_read, threads)
    on_device = jnp.asarray(to_read)
    total = jax.jit(jnp.sum)
    ways = [
        lambda: total(on_device).block_until_ready(),
        lambda: list(pool.map(lambda part: np.dot(part, part), parts)),
    ]
    for way in ways:
        way()
    return {"seconds": min(timed(way)[0] for way in ways for _ in range(tries))}


def product(size: int, tries: int) -> dict:
    """Operations per second in a product of square float32 matrices."""
    square = jnp.ones((size, size))
    multiply = jax.jit(lambda x: jnp.matmul(x, x, precision=jax.lax.Precision.HIGHEST))
    multiply(square).block_until_ready()
    best = min(timed(lambda: multiply(square).block_until_ready())[0] for _ in range(tries))
    return {"operations": 2 * size**3 / best}


def batch(rows: int, tries: int) -> dict:
    """Seconds of one decode step for so many rows, the best of some tries."""
    sampling, mode = decoding.make_sampling(model, rows, 0.0, None, None, 0)
    cache = decoding.DenseCache.empty(model.config, rows, CAPACITY, jnp.float32)
    full = jnp.full(rows, CAPACITY // 2, jnp.int32)
    state = decoding.State(
        jnp.ones((rows, CAPACITY), jnp.int32), full, full + CAPACITY // 2,
        jnp.zeros(rows, bool), cache,
    )  # fmt: skip
    best = float("inf")
    for attempt in range(tries + 1):
        seconds, state = timed(
            lambda state=state: jax.block_until_ready(
                decoding.decode(model, state, NEVER, sampling, np.int32(1), mode)
            )
        )
        best = min(best, seconds) if attempt else best  # the first may compile
    return {"seconds": best}


def compilations(longest: int) -> dict:
    """Programs compiled for prompts of every length, in a first and a second pass.

    What compiles depends on shapes and not on weights, so a small random model stands in.
    """
    config = replace(
        model.config, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=1, num_key_value_heads=1, head_dim=32,
    )  # fmt: skip
    small = Transformer(config, rngs=nnx.Rngs(0))

    def compiled(length: int) -> int:
        count = decoding.COMPILE_CLOCK.count
        dflash_lite.generate(small, tokenizer, [1] * length, max_new_tokens=4)
        return decoding.COMPILE_CLOCK.count - count

    compiled(4 * longest)  # the small programs around the loop, the same for all lengths
    passes = [[compiled(n) for n in range(1, longest + 1)] for _ in range(2)]
    buckets: dict[int, int] = {}
    for length, count in enumerate(passes[0], 1):
        width = decoding.bucket(length)
        buckets[width] = buckets.get(width, 0) + count
    return {"longest": longest, "first_pass": buckets, "second_pass": sum(passes[1])}


if __name__ == "__main__":
    handlers = (
        about, prompt, generate, loop, steps, read, product, batch, compilations
    )  # fmt: skip
    serve({f.__name__: f for f in handlers})
