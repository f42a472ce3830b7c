"""Measure both ways to read pages beside each other: where bringing the queries stops to pay.

    python -m bench.visits [--rounds 10]

Chapter 5 chooses by `FEW_VISITS`: queries brought to pages, for each entry of a block table. This
prints how long a layer's attention takes in both ways, for more and more queries, with texts that
share nothing and texts that share half of their pages. It needs no model and writes nothing.
"""

import argparse
import sys
import time
from functools import partial
from typing import Any

from bench.ratios import ratio, summary
from bench.report import grid, number

TEXTS, CONTEXT, SIZE, THREADS = 8, 512, 16, 2
HEADS, KV_HEADS, WIDTH = 9, 3, 64  # SmolLM2's
QUERIES = (1, 2, 3, 4, 6, 8, 16)


def problem(queries: int, shared: int) -> tuple[float, tuple]:
    """Visits for each entry of a table, and the arguments of both ways.

    Args:
        shared: tokens that all texts begin with.
    """
    import jax
    import jax.numpy as jnp

    from dflash_lite.paged_attention import Layout, PagePool, layout

    pool = PagePool(TEXTS * CONTEXT // SIZE, SIZE)
    texts = []
    for text in range(TEXTS):
        prompt = [0] * shared + [text + 1] * (CONTEXT - shared)
        texts.append(pool.admit(prompt))
        pool.commit(texts[-1], prompt[len(texts[-1].tokens) :])
    count = len(pool.pages.users)
    at = Layout(*map(jnp.asarray, layout(texts, CONTEXT // SIZE, count)))
    draw = partial(jax.random.normal, dtype=jnp.float32)
    q = draw(jax.random.key(0), (TEXTS, queries, HEADS, WIDTH))
    keys, values = draw(jax.random.key(1), (2, count, KV_HEADS, SIZE, WIDTH))
    ends = jnp.arange(CONTEXT - queries, CONTEXT)
    positions = jnp.broadcast_to(ends, (TEXTS, queries))
    return queries * at.users.size / at.tables.size, (q, keys, values, at, positions)


def seconds(way: Any, arguments: tuple) -> float:
    """Of one call that is compiled."""
    import jax

    start = time.perf_counter()
    jax.block_until_ready(way(*arguments))
    return time.perf_counter() - start


def compare(queries: int, shared: int, rounds: int) -> list[str]:
    """A row of the table; the two ways take turns."""
    import jax

    from dflash_lite.paged_attention import FEW_VISITS, gather_pages, visit_pages

    visits, arguments = problem(queries, shared)
    ways = [jax.jit(visit_pages), jax.jit(gather_pages)]
    for way in ways:
        seconds(way, arguments)  # compiles
    times: list[list[float]] = [[], []]
    for round_ in range(rounds):
        for which in (0, 1) if round_ % 2 else (1, 0):
            times[which].append(seconds(ways[which], arguments))
    visit, gather = (summary([1e3 * s for s in one]).median for one in times)
    beside = ratio(*times)
    chosen = "visit" if visits <= FEW_VISITS else "gather"
    return [str(queries), str(shared), number(visits), number(visit), number(gather),
            f"{beside.median:.2f} ({beside.low:.2f} to {beside.high:.2f})", chosen]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.visits", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="at least 2")
    rounds = max(2, parser.parse_args().rounds)
    from bench.__main__ import use_cores

    use_cores(THREADS)
    try:
        rows = [compare(n, shared, rounds) for shared in (0, CONTEXT // 2) for n in QUERIES]
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return 130
    header = ["queries", "shared tokens", "visits an entry", "visit ms", "gather ms",
              "visit over gather", "chapter 5 takes"]  # fmt: skip
    print(grid(header, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
