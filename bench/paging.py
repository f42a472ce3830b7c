"""Measure decoding over pages beside the dense cache, and what keeping the pages costs.

    python -m bench.paging [--rounds 10]

`make bench` runs it after the decoding benchmark. Some minutes on two cores that do nothing else.
"""

import argparse
import dataclasses
import datetime
import json
import platform
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from bench.ratios import ratio, summary
from bench.report import PAGING, RESULTS, grid, machine as where, number, spread, write
from dflash_lite.benchmark import hardware

ROWS, CONTEXT, SIZE, THREADS = 8, 512, 16, 2
MANY = 64  # sequences whose pages are kept
STEPS = 2  # decode steps in one timing
SPACE = 32  # tokens that a timing may add before the lengths are set back
# a fixed memory, in rows of the cache: for the longest texts, or for those that chapter 5 draws
BUDGET, LONGEST, USUAL = 4096, 2048, 529


def subjects(model: Any) -> dict[str, Any]:
    """A state halfway through a batch for each cache."""
    import jax.numpy as jnp

    from dflash_lite.decoding import DenseCache
    from dflash_lite.paged_attention import PagedBatch, PagedMemory

    length = CONTEXT - SPACE
    memory = PagedMemory(model, ROWS * CONTEXT // SIZE, SIZE)
    batch = PagedBatch(memory, [[i] + [7] * (length - 1) for i in range(ROWS)], [CONTEXT] * ROWS)
    caches = {
        "dense": DenseCache.empty(model.config, ROWS, CONTEXT, jnp.float32),
        "pages": batch.make_room([length] * ROWS, SPACE),
        "XLA's attention": library_cache(model.config),
    }
    return {name: state_of(cache, ROWS) for name, cache in caches.items()}


def in_a_budget(model: Any) -> dict[str, Any]:
    """As many texts as a fixed memory holds: each with room for the longest, and in pages."""
    import jax.numpy as jnp

    from dflash_lite.decoding import DenseCache
    from dflash_lite.paged_attention import PagedBatch, PagedMemory

    few, pages = BUDGET // LONGEST, BUDGET // SIZE
    count = pages // -(-(USUAL + SPACE) // SIZE)
    memory = PagedMemory(model, pages, SIZE)
    prompts = [[i] + [7] * (USUAL - 1) for i in range(count)]
    batch = PagedBatch(memory, prompts, [USUAL + SPACE] * count)
    dense = DenseCache.empty(model.config, few, LONGEST, jnp.float32)
    return {
        "room for the longest": state_of(dense, few, USUAL, LONGEST),
        "room in pages": state_of(batch.make_room([USUAL] * count, SPACE), count, USUAL, LONGEST),
    }


def state_of(cache: Any, rows: int, length: int = CONTEXT - SPACE, capacity: int = CONTEXT) -> Any:
    import numpy as np

    from dflash_lite.decoding import State

    lengths = np.full(rows, length, np.int32)
    tokens = np.ones((rows, capacity), np.int32)
    return State(tokens, lengths, lengths + SPACE, np.zeros(rows, bool), cache)


def library_cache(config: Any) -> Any:
    """A dense cache that attends by `jax.nn.dot_product_attention`, in the layout it wants."""
    import jax
    import jax.numpy as jnp

    class LibraryCache(NamedTuple):
        keys: tuple
        values: tuple

        def attend(self, layer, q, k, v, positions):
            """The protocol `Cache`."""
            rows, arrays = jnp.arange(q.shape[0])[:, None], []
            for old, new in ((self.keys, k), (self.values, v)):
                written = old[layer].at[rows, positions].set(new, mode="drop")
                arrays.append((*old[:layer], written, *old[layer + 1 :]))
            seen = jnp.arange(arrays[0][layer].shape[1]) <= positions[..., None]
            mixed = jax.nn.dot_product_attention(
                q, arrays[0][layer], arrays[1][layer], mask=seen[:, None]
            )
            return mixed, LibraryCache(*arrays)

    shape = (ROWS, CONTEXT, config.num_key_value_heads, config.head_dim)
    layers = range(config.num_hidden_layers)
    return LibraryCache(*(tuple(jnp.zeros(shape) for _ in layers) for _ in "kv"))


def step(model: Any, state: Any) -> tuple[float, Any]:
    """Seconds of one decode step, and the state, set back to where it was."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from dflash_lite.decoding import decode, make_sampling

    rows, lengths = len(state.lengths), np.asarray(state.lengths)
    how, mode = make_sampling(model, rows, 0.0, None, None, 0)
    stops = jnp.array([-1], jnp.int32)
    start = time.perf_counter()
    state = decode(model, state, stops, how, np.int32(STEPS), mode)
    jax.block_until_ready(state)
    seconds = (time.perf_counter() - start) / STEPS
    return seconds, state._replace(lengths=lengths)


def upkeep(model: Any) -> tuple[Any, Any]:
    """A function that keeps pages for one step of many texts, and their state.

    It makes room for one token more, lays out the tables, and records the token, as between two
    calls of `decode` when the host looks after every step. Transfers are not in it.
    """
    from dflash_lite.paged_attention import PagedMemory, layout

    length = CONTEXT - SPACE
    memory = PagedMemory(model, MANY * CONTEXT // SIZE, SIZE)
    pool, texts = memory.pool, []
    for number_ in range(MANY):
        prompt = [number_] + [7] * (length - 1)
        text = pool.admit(prompt)
        pool.commit(text, prompt)
        texts.append(text)
    count = len(pool.pages.users)

    def keep() -> None:
        for text in texts:
            pool.reserve(text, len(text.tokens) + 1)
        layout(texts, CONTEXT // SIZE, count)
        for text in texts:
            pool.commit(text, [5])

    def back() -> None:
        for text in texts:
            pool.truncate(text, length)

    def timed() -> float:
        back()
        start = time.perf_counter()
        for _ in range(SPACE):  # both a step that needs pages, and those that need none
            keep()
        return (time.perf_counter() - start) / SPACE

    timed()
    at = layout(texts, CONTEXT // SIZE, count)
    return timed, state_of(dataclasses.replace(memory.cache, at=at), MANY)


def moved(model: Any, state: Any) -> float:
    """Bytes that the operations of a decode step read and write, as the compiler counts."""
    import jax
    import jax.numpy as jnp

    from dflash_lite.decoding import decode_step, make_sampling

    how, mode = make_sampling(model, len(state.lengths), 0.0, None, None, 0)
    once = jax.jit(decode_step, static_argnames="mode", donate_argnames="state")
    program = once.lower(model, state, jnp.array([-1], jnp.int32), how, mode).compile()
    cost = program.cost_analysis()
    return (cost[0] if isinstance(cost, list) else cost)["bytes accessed"]


def measure(rounds: int) -> dict:
    """The results of all rounds."""
    from bench.__main__ import rotate, use_cores

    about, threads = hardware(), use_cores(THREADS)
    import jax
    from tqdm import tqdm

    import dflash_lite

    model, _ = dflash_lite.load("smollm2-135m")
    weights = sum(x.nbytes for x in jax.tree.leaves(model))
    row = 8 * (c := model.config).num_hidden_layers * c.num_key_value_heads * c.head_dim
    states = subjects(model)
    results = {
        "date": datetime.date.today().isoformat(), "machine": about, "threads": threads,
        "versions": {"python": platform.python_version()}
        | {n: metadata.version(n) for n in ("dflash_lite", "jax", "flax", "numpy")},
        "rows": ROWS, "context": CONTEXT, "page": SIZE, "many": MANY, "rounds": rounds,
        "least_bytes": weights + ROWS * (CONTEXT - SPACE + 1) * row,
        # every page of the pool, and its running sums written and read
        "page_bytes": weights + ROWS * CONTEXT * row
        + 2 * ROWS * CONTEXT // SIZE * c.num_hidden_layers * c.num_attention_heads
        * 4 * (c.head_dim + 2),
        "bytes": {name: moved(model, state) for name, state in states.items()},
    }  # fmt: skip
    tight = in_a_budget(model)
    results["budget"] = {
        "rows": BUDGET, "longest": LONGEST, "usual": USUAL,
        "texts": {name: len(state.lengths) for name, state in tight.items()},
    }  # fmt: skip
    keep, many = upkeep(model)
    states |= tight | {"many rows": many}
    results["seconds"] = {name: [] for name in [*states, "upkeep"]}
    for number_ in tqdm(range(-1, rounds), unit="round"):
        for name in rotate([*states, "upkeep"], max(number_, 0)):
            if name == "upkeep":
                seconds = keep()
            else:
                seconds, states[name] = step(model, states[name])
            if number_ >= 0:  # the first compiles
                results["seconds"][name].append(seconds)
    return results


def table(results: dict) -> str:
    """The results in Markdown."""
    seconds, dense = results["seconds"], results["seconds"]["dense"]
    rows = []
    for name in ("dense", "pages", "XLA's attention"):
        beside = ratio(seconds[name], dense)
        median, span, _ = spread(summary([1e3 * s for s in seconds[name]]))
        times = "1" if name == "dense" else (
            f"{beside.median:.2f} ({beside.interval[0]:.2f} to {beside.interval[1]:.2f})"
        )  # fmt: skip
        rows.append([name, median, span, times])
    least, counted, budget = results["least_bytes"], results["bytes"], results["budget"]
    few, many = budget["texts"].values()
    of_one = [[s / texts for s in seconds[name]] for name, texts in budget["texts"].items()]
    factor, slower = ratio(*of_one), ratio(seconds["room in pages"],
                                           seconds["room for the longest"])  # fmt: skip
    share = ratio([100 * s for s in seconds["upkeep"]], seconds["many rows"])
    return "\n\n".join([
        f"SmolLM2-135M, float32: one decode step of {results['rows']} rows at a context of "
        f"{results['context']}, pages of {results['page']}, {results['threads']} threads.",
        grid(["cache", "ms a step", "range", "over the dense cache"], rows),
        f"{results['rounds']} rounds in rotating order, ratios within a round, in brackets a 95% "
        "bootstrap interval of the median. \"XLA's attention\" is a dense cache that attends by "
        "`jax.nn.dot_product_attention`.",
        f"Bytes: at least {number(least / 1e9)} GB for the weights and the rows that count; "
        f"{results['page_bytes'] / least:.2f} times that for whole pages and their running sums. "
        "The compiler counts what all operations read and write, wherever it lies: "
        f"{number(counted['dense'] / 1e9)} GB for the dense cache, "
        f"{counted['pages'] / counted['dense']:.2f} times that for pages.",
        f"Keeping the pages of {results['many']} texts costs "
        f"{number(1e3 * summary(seconds['upkeep']).median)} ms a step on the host, "
        f"{share.median:.2g}% ({share.low:.2g} to {share.high:.2g}) of a step of that many rows.",
        f"**In a fixed memory.** A cache of {budget['rows']:,} rows holds {few} texts if each has "
        f"room for the longest, {budget['longest']:,} tokens, and {many} texts of the usual "
        f"length, {budget['usual']}, in pages. A step of {many} takes {slower.median:.2f} "
        f"({slower.interval[0]:.2f} to {slower.interval[1]:.2f}) times as long as one of {few}, so "
        f"there are {factor.median:.2f} ({factor.interval[0]:.2f} to {factor.interval[1]:.2f}) "
        "times as many tokens a second. The factor is the ratio of the texts over what more rows "
        "cost; Kwon et al. report 2 to 4, on GPUs, where they cost little.",
        where(results),
    ])  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.paging", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="at least 2")
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    try:
        results = measure(max(2, args.rounds))
    except KeyboardInterrupt:
        print("\nInterrupted; nothing was written.", file=sys.stderr)
        return 130
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / PAGING).write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    print(table(results))
    if args.output == RESULTS:
        write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
