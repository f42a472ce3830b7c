"""The museum of silent bugs on a real drafter: what each costs, and what it leaves as it is.

    python -m bench.museum FOLDER [--model smollm2-135m] [--rounds 3] [--tokens 128] [--prompts 4]

FOLDER holds a DFlash drafter of the model (or is its name). In each round every exhibit of
chapter 11 answers every prompt, in rotating order, and so does the drafter as it should be. The
table goes to standard output; --output FILE keeps the measurements. Run it on a machine that does
nothing else.
"""

import argparse
import datetime
import json
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from tqdm import tqdm

from bench.ratios import Summary, ratio
from bench.report import grid, machine as where, number
from dflash_lite.benchmark import hardware, read_tasks
from dflash_lite.checkpoints import UserError

RIGHT, THREADS = "as it should be", 2


def exhibits(windows: tuple[int | None, ...]) -> dict[str, Any]:
    """The bugs that a drafter can have, and none; without windows none can be ignored."""
    from dflash_lite.dual_cache import MUSEUM, Bug, NoWindow

    some = {n: bug for n, bug in MUSEUM.items() if any(windows) or bug.drafter is not NoWindow}
    return {RIGHT: Bug("")} | some


def chosen(path: Path | None, count: int) -> list[tuple[str, str]]:
    """The first prompts of each set: (set, prompt)."""
    return [(task.set, task.prompt) for task in read_tasks(path, None) if task.number < count]


def measure(folder: str, name: str, prompts: list[tuple[str, str]], rounds: int,
            new_tokens: int) -> dict:
    """The results of all rounds.

    Raises:
        UserError: the model or the drafter cannot be read, or they do not fit.
    """  # fmt: skip
    from dataclasses import replace

    from bench.__main__ import rotate, use_cores

    about, threads = hardware(), use_cores(THREADS)
    import jax

    import dflash_lite
    from dflash_lite.dual_cache import visit

    model, tokenizer = dflash_lite.load(name)
    drafter = dflash_lite.load_drafter(folder, model)
    tokenizer = replace(tokenizer, stop_ids=())  # every answer has the same length
    config = drafter.network.config
    shown = exhibits(config.windows)
    results: dict = {
        "date": datetime.date.today().isoformat(), "machine": about, "threads": threads,
        "versions": {"python": platform.python_version()}
        | {n: metadata.version(n) for n in ("dflash_lite", "jax", "flax", "numpy")},
        "device": jax.default_backend(), "model": name, "block": drafter.block,
        "layers": config.layers.num_hidden_layers, "taps": list(config.target_layer_ids),
        "new_tokens": new_tokens, "rounds": rounds, "runs": [],
    }  # fmt: skip
    progress = tqdm(total=(rounds + 1) * len(prompts), unit="prompt")
    for round_ in range(-1, rounds):  # the first compiles
        for index, (kind, prompt) in enumerate(prompts):
            for title in rotate(list(shown), max(round_, 0) + index):
                plain, found = visit(
                    model, tokenizer, drafter, shown[title], prompt, new_tokens
                )
                if round_ >= 0:
                    results["runs"].append({
                        "exhibit": title, "round": round_, "prompt": index, "set": kind,
                        "same": found.tokens == plain.tokens,
                        "made": found.statistics.decode_tokens,
                        "steps": found.statistics.decode_steps,
                        "seconds": found.statistics.decode_seconds,
                        "plain": plain.statistics.decode_seconds,
                    })  # fmt: skip
            progress.update()
    progress.close()
    return results


def of(results: dict, title: str) -> list[dict]:
    """The runs of an exhibit, in the order of rounds and prompts."""
    runs = [run for run in results["runs"] if run["exhibit"] == title]
    return sorted(runs, key=lambda run: (run["round"], run["prompt"]))


def acceptance(runs: list[dict]) -> float:
    """Tokens of a step over all runs."""
    return sum(run["made"] for run in runs) / sum(run["steps"] for run in runs)


def rate(runs: list[dict]) -> float:
    """Tokens per second over all runs."""
    return sum(run["made"] for run in runs) / sum(run["seconds"] for run in runs)


def spread(s: Summary) -> str:
    return f"{s.median:.2f} ({s.interval[0]:.2f} to {s.interval[1]:.2f})"


def table(results: dict) -> str:
    """The results in Markdown."""
    from dflash_lite.dual_cache import MUSEUM

    right, rows = of(results, RIGHT), []
    seconds = [run["seconds"] for run in right]
    for title, bug in MUSEUM.items():
        runs = of(results, title)
        test = f"`test_{bug.test}`"
        if not runs:
            rows.append([title, "no layer has a window", "", "", "", "", "", test])
            continue
        same = sum(run["same"] for run in runs)
        slower = ratio(seconds, [run["seconds"] for run in runs])
        rows.append([
            title, f"yes, {same} of {len(runs)}" if same == len(runs) else f"{same} of {len(runs)}",
            f"{acceptance(right):.2f}", f"{acceptance(runs):.2f}", number(rate(right)),
            number(rate(runs)), spread(slower), test,
        ])  # fmt: skip
    header = ["bug", "output unchanged", "acceptance length without it", "with it",
              "tokens/s without it", "with it", "speed kept", "caught by"]  # fmt: skip
    prompts = len({run["prompt"] for run in right})
    gain = ratio([run["plain"] for run in right], seconds)
    return "\n\n".join([
        f"{results['model']}, a DFlash drafter of {results['layers']} layers, block "
        f"{results['block']}; {prompts} prompts, {results['new_tokens']} greedy tokens each, batch "
        f"1, {results['threads']} threads on a {results['device']}. Without a bug decoding is "
        f"{spread(gain)} times as fast as without a drafter.",
        grid(header, rows),
        "Unchanged: equal to what the target writes alone for the same token ids; near-ties of "
        f"rounding count as changed. Speed kept: medians of ratios within a prompt and one of "
        f"{results['rounds']} rounds, in brackets their 95% bootstrap interval. The tests are "
        "those of tests/test_dual_cache.py.",
        where(results).split(" `make bench`")[0],
    ])  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.museum", description=__doc__.splitlines()[0]
    )
    parser.add_argument("drafter", help="its folder, or its name")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=3, help="at least 2")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompts", type=int, default=4, help="of each set")
    parser.add_argument("--tasks", type=Path, help="prompts of your own, as for dflash-lite bench")
    parser.add_argument("--output", type=Path, help="a JSON file for the measurements")
    args = parser.parse_args(argv)
    try:
        if args.output and not args.output.parent.is_dir():
            raise UserError(f"There is no folder {args.output.parent}; make it, or name another.")
        prompts = chosen(args.tasks, max(1, args.prompts))
        rounds = max(2, args.rounds)
        results = measure(args.drafter, args.model, prompts, rounds, max(2, args.tokens))
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted; nothing was written.", file=sys.stderr)
        return 130
    print(table(results))
    if args.output:
        part = args.output.with_name(args.output.name + ".partial")
        part.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
        os.replace(part, args.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
