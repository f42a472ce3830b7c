"""Measure speculative decoding: the loop itself, and prompt lookup beside transformers' own.

    python -m bench.speculation [--rounds 5] [--tokens 128] [--prompts 6]

SmolLM2, float32, batch 1, two threads. In each round every subject takes its turn at every
prompt, in rotating order. Run it on a machine that does nothing else.
"""

import argparse
import datetime
import functools
import json
import platform
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from bench.ratios import Summary, ratio, summary
from bench.report import RESULTS, SPECULATION, grid, machine as where, number, write
from dflash_lite.benchmark import hardware, read_tasks

BLOCK, THREADS = 8, 2
SETS = ("copy", "math", "code", "chat")
OURS, PERFECT, LOOKUP = "plain", "perfect drafter", "prompt lookup"
THEIRS, THEIR_LOOKUP = "transformers, plain", "transformers, prompt lookup"
PEER = "transformers"


def prompts(count: int) -> list[tuple[str, str]]:
    """The first prompts of each built-in set: (set, prompt)."""
    tasks = [task for task in read_tasks(None, None) if task.number < count]
    return [(name, task.prompt) for name in SETS for task in tasks if task.set == name]


class Passes:
    """Bare passes of the model over a block: the least that a step can cost.

    Each is the model, the logits and their argmax in a loop on the device, with the cache
    updated in place.
    """

    def __init__(self, model: Any, capacity: int, length: int):
        import jax
        import jax.numpy as jnp

        from dflash_lite.decoding import DenseCache

        self.model, self.length = model, length
        make = functools.partial(DenseCache.empty, model.config, 1, capacity, jnp.float32)
        self.caches = {rows: make() for rows in (1, BLOCK)}

        @functools.partial(jax.jit, static_argnames="rows", donate_argnames="cache")
        def passes(model: Any, cache: Any, start: Any, count: Any, rows: int) -> Any:
            def body(i: Any, carry: tuple) -> tuple:
                cache, last = carry
                positions = (start + i) * jnp.ones((1, 1), jnp.int32) + jnp.arange(rows)
                tokens = jnp.broadcast_to(last, (1, rows))
                output = model(tokens, positions, cache)
                return output.cache, model.logits(output.hidden).argmax(-1)[:, -1:]

            first = jnp.ones((1, 1), jnp.int32)
            return jax.lax.fori_loop(0, count, body, (cache, first))

        self.passes = passes

    def seconds(self, rows: int, count: int = 16) -> float:
        """Of one pass over so many tokens."""
        import jax

        start = time.perf_counter()
        self.caches[rows], last = self.passes(
            self.model, self.caches[rows], np.int32(self.length), np.int32(count), rows
        )
        jax.block_until_ready((self.caches[rows], last))
        return (time.perf_counter() - start) / count


class Subject:
    """dflash_lite's own decoding of one prompt, with and without `generate` around it."""

    def __init__(self, model: Any, tokenizer: Any, new_tokens: int):
        self.model, self.tokenizer, self.new = model, tokenizer, new_tokens

    def call(self, ids: list[int], drafter: Any) -> dict:
        """`generate`: seconds of decoding by the host's clock, and what it made."""
        from dflash_lite import generate

        found = generate(
            self.model, self.tokenizer, ids, max_new_tokens=self.new, drafter=drafter
        )
        cost = found.statistics
        return {"tokens": found.tokens, "seconds": cost.decode_seconds,
                "steps": cost.decode_steps, "made": cost.decode_tokens,
                "compiled": cost.compile_seconds > 0}  # fmt: skip

    def loop(self, ids: list[int], drafter: Any) -> float:
        """The whole answer as one call on the device: seconds."""
        import jax
        import jax.numpy as jnp

        from dflash_lite import decoding

        packed, lengths = decoding.pack([ids])
        how, mode = decoding.make_sampling(self.model, 1, 0.0, None, None, 0)
        capacity = decoding.bucket(packed.shape[1] + self.new)
        stops = jnp.array([-1], jnp.int32)
        state = decoding.prefill(
            self.model, packed, lengths, lengths + self.new, stops, how, capacity, mode
        )
        if drafter is not None:
            progress = drafter.start(self.model, *state.tokens.shape)
            state = state._replace(progress=progress)
        jax.block_until_ready(state)
        start = time.perf_counter()
        state = decoding.decode(self.model, state, stops, how, np.int32(self.new), mode, drafter)
        jax.block_until_ready(state)
        return time.perf_counter() - start


def measure(rounds: int, new_tokens: int, count: int) -> dict:
    """The results of all rounds."""
    from dataclasses import replace

    from bench import peers
    from bench.__main__ import Failed, Worker, float32_file, rotate, use_cores

    about, threads = hardware(), use_cores(THREADS)
    from tqdm import tqdm

    import dflash_lite
    from dflash_lite.decoding import encode_prompt

    model, tokenizer = dflash_lite.load("smollm2-135m")
    tokenizer = replace(tokenizer, stop_ids=())  # every answer has the same length
    reason = peers.set_up().get(PEER, "unknown")
    peer = None if reason else Worker(peers.python(), "worker_transformers", float32_file())
    results: dict = {
        "date": datetime.date.today().isoformat(), "machine": about, "threads": threads,
        "versions": {"python": platform.python_version()}
        | {n: metadata.version(n) for n in ("dflash_lite", "jax", "flax", "numpy")},
        "block": BLOCK, "new_tokens": new_tokens, "rounds": rounds, "peer": reason,
        "passes": {"1": [], str(BLOCK): []}, "runs": [],
    }  # fmt: skip
    if peer:
        results["versions"] |= peer.ask("about")["versions"]
    subject, lookup = Subject(model, tokenizer, new_tokens), dflash_lite.PromptLookup(BLOCK)
    work = [(name, text, encode_prompt(tokenizer, text, True, None))
            for name, text in prompts(count)]  # fmt: skip
    bare = Passes(model, 512, 192)

    def theirs(ids: list[int], tokens: int) -> dict:
        """Decoding alone: what a call takes beyond one for a single token."""
        first = peer.ask("generate", ids=ids, tokens=1, lookup=0)["seconds"]
        found = peer.ask("generate", ids=ids, tokens=new_tokens, lookup=tokens)
        return {"seconds": found["seconds"] - first, "tokens": found["tokens"]}

    try:
        progress = tqdm(total=(rounds + 1) * len(work), unit="prompt")
        for round_ in range(-1, rounds):  # the first compiles
            for rows in rotate([1, BLOCK], max(round_, 0)):
                seconds = bare.seconds(rows)
                if round_ >= 0:
                    results["passes"][str(rows)].append(seconds)
            for index, (name, _, ids) in enumerate(work):
                answers = np.full((1, len(ids) + new_tokens), -1, np.int32)
                answer = subject.call(ids, None)["tokens"]
                answers[0] = ids + answer
                perfect = dflash_lite.Replay(np.pad(
                    answers, ((0, 0), (0, 1024 - answers.shape[1])), constant_values=-1
                ), BLOCK)  # fmt: skip
                turns = {
                    OURS: lambda ids=ids: subject.call(ids, None),
                    PERFECT: lambda ids=ids, d=perfect: subject.call(ids, d),
                    LOOKUP: lambda ids=ids: subject.call(ids, lookup),
                    "loop, plain": lambda ids=ids: {"seconds": subject.loop(ids, None)},
                    "loop, perfect": lambda ids=ids, d=perfect: {"seconds": subject.loop(ids, d)},
                }
                if peer:
                    turns[THEIRS] = lambda ids=ids: theirs(ids, 0)
                    turns[THEIR_LOOKUP] = lambda ids=ids: theirs(ids, BLOCK - 1)
                record = {"set": name, "prompt": index, "round": round_}
                for turn in rotate(list(turns), max(round_, 0) + index):
                    found = turns[turn]()
                    made = found.pop("tokens", answer)
                    record[turn] = found | {"same": made == answer}
                if round_ >= 0:
                    results["runs"].append(record)
                progress.update()
    except Failed as failure:
        raise SystemExit(str(failure)) from None
    finally:
        if peer:
            peer.close()
    return results


def of(results: dict, name: str, kind: str, chosen: str | None = None) -> list[float]:
    """One value a run."""
    return [run[name][kind] for run in results["runs"] if chosen in (None, run["set"])]


def shown(s: Summary) -> str:
    """A median with its interval."""
    return f"{s.median:.2f} ({s.interval[0]:.2f} to {s.interval[1]:.2f})"


def efficiency(results: dict) -> tuple[Summary, Summary]:
    """The perfect drafter's step over a bare pass, upside down, and the host's share in percent.

    What the passes allow is the acceptance length times a plain step over a bare pass of a block.
    """
    allowed, reached, host = [], [], []
    passes = results["passes"][str(results["block"])]
    for run in results["runs"]:
        length = run[PERFECT]["made"] / run[PERFECT]["steps"]
        plain = run["loop, plain"]["seconds"]
        per_token = plain / run[PERFECT]["made"]
        allowed.append(length * per_token / passes[run["round"]])
        reached.append(run[OURS]["seconds"] / run[PERFECT]["seconds"])
        host.append(100 * (run[PERFECT]["seconds"] / run["loop, perfect"]["seconds"] - 1))
    return ratio([100 * r for r in reached], allowed), summary(host)


def table(results: dict) -> str:
    """The results in Markdown."""
    rows = []
    there = {run["set"] for run in results["runs"]}
    for name in (*(n for n in SETS if n in there), None):
        plain = of(results, OURS, "seconds", name)
        length = np.sum(of(results, LOOKUP, "made", name)) / np.sum(
            of(results, LOOKUP, "steps", name))  # fmt: skip
        cells = [name or "all", f"{length:.2f}",
                 shown(ratio(plain, of(results, LOOKUP, "seconds", name)))]
        if not results["peer"]:
            theirs = of(results, THEIR_LOOKUP, "seconds", name)
            cells += [shown(ratio(of(results, THEIRS, "seconds", name), theirs)),
                      shown(ratio(theirs, of(results, LOOKUP, "seconds", name)))]
        rows.append(cells)
    header = ["prompts", "acceptance length", "prompt lookup over plain decoding"]
    if not results["peer"]:
        header += ["transformers: the same", "dflash_lite over transformers, prompt lookup both"]
    share, host = efficiency(results)
    one, many = (summary([1e3 * s for s in results["passes"][key]])
                 for key in ("1", str(results["block"])))  # fmt: skip
    gain = ratio(of(results, OURS, "seconds"), of(results, PERFECT, "seconds"))
    length = np.sum(of(results, PERFECT, "made")) / np.sum(of(results, PERFECT, "steps"))
    count = len({run["prompt"] for run in results["runs"]}) // len(there)
    wrong = sum(not run[name]["same"] for run in results["runs"] for name in (PERFECT, LOOKUP))
    return "\n\n".join([
        f"SmolLM2-135M, float32, batch 1, {results['new_tokens']} greedy tokens, "
        f"{results['threads']} threads; {count} prompts of each set. Decoding alone, without "
        "reading the prompt. How many times as fast:",
        grid(header, rows),
        f"{results['rounds']} rounds over all prompts, in rotating order; medians of ratios within "
        "a round and a prompt, in brackets their 95% bootstrap interval. Acceptance length counts "
        f"the bonus. Answers that differed from plain decoding: {wrong} of "
        f"{2 * len(results['runs'])}.",
        f"**The loop.** A bare pass of the model takes {number(one.median)} ms over one token and "
        f"{number(many.median)} ms over {results['block']}. With a drafter that knows the answer "
        f"(acceptance length {length:.2f}) decoding is {shown(gain)} times as fast, "
        f"{number(share.median)}% ({number(share.interval[0])} to {number(share.interval[1])}) of "
        f"what these passes allow. `generate` takes {host.median:.2g}% ({host.interval[0]:.2g} to "
        f"{host.interval[1]:.2g}) more than the loop on the device.",
        where(results),
    ])  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.speculation", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="at least 2")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompts", type=int, default=6, help="of each set")
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    try:
        results = measure(max(2, args.rounds), args.tokens, args.prompts)
    except KeyboardInterrupt:
        print("\nInterrupted; nothing was written.", file=sys.stderr)
        return 130
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / SPECULATION).write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    print(table(results))
    if args.output == RESULTS:
        write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
