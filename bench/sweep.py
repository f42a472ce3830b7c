"""Speedup for 1 to 16 drafts a step: what the law predicts beside what is measured.

    python -m bench.sweep [--drafts 1 2 4 8 16] [--prompts 2] [--tokens 64] [--runs 2]

SmolLM2, float32, batch 1. For each number of drafts `dflash-lite bench` measures the drafters on
the first prompts of the sets math, code and chat. Its prediction is the speed law with the
acceptance, the verification and the draft that it measured. What is done is kept in build/, and
the same command goes on from there. Run it on a machine that does nothing else.
"""

import argparse
import datetime
import json
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.exactness import keep, resume
from bench.report import RESULTS, ROOT, SWEEP, grid, machine as where, write
from dflash_lite.benchmark import BenchSettings, hardware, measure_all, read_tasks

MODEL, SETS = "smollm2-135m", ("math", "code", "chat")
DRAFTERS = {
    "lookup": "prompt lookup",
    "early-exit": "the first half of the layers",
    "replay:0.7": "a drafter right in 7 of 10",
}
KEYS = ("speedup", "speedup_low", "speedup_high", "predicted", "acceptance_length", "draft_ms",
        "verify_ms", "mismatches", "near_ties")  # fmt: skip
PARTIAL = ROOT / "build" / "sweep.json"


def one(drafts: int, tasks: list, tokens: int, runs: int) -> list[dict]:
    """What `dflash-lite bench` says of each drafter and set, with so many drafts in a step."""
    settings = BenchSettings(MODEL, "float32", tuple(DRAFTERS), drafts + 1, tokens, runs)
    results: Any = None
    for event in measure_all(settings, tasks):
        results = event.so_far[0] if event.so_far is not None else results
    return [
        {"drafter": entry["mode"], "set": entry["set"], "drafts": drafts}
        | {key: entry[key] for key in KEYS}
        for entry in results["results"]
        if entry["mode"] in DRAFTERS and entry["set"] in SETS
    ]


def measure(
    counts: list[int], prompts: int, tokens: int, runs: int, partial: Path = PARTIAL
) -> dict:
    """The results for all numbers of drafts."""
    from tqdm import tqdm

    tasks = [t for t in read_tasks(None, ",".join(SETS)) if t.number < prompts]
    versions = {"python": platform.python_version()} | {
        n: metadata.version(n) for n in ("dflash_lite", "jax", "flax", "numpy")
    }
    run = {"model": MODEL, "prompts": prompts, "new_tokens": tokens, "runs": runs,
           "versions": versions, "machine": hardware()}  # fmt: skip
    rows = resume(run, partial).get("rows", [])
    done = {row["drafts"] for row in rows}
    left = [n for n in counts if n not in done]
    for drafts in tqdm(left, unit="count", initial=len(done), total=len(done) + len(left)):
        rows += one(drafts, tasks, tokens, runs)
        keep(run, {"rows": rows}, partial)
    rows = sorted((r for r in rows if r["drafts"] in counts), key=lambda r: r["drafts"])
    return run | {"date": datetime.date.today().isoformat(), "rows": rows}


def shown(row: dict) -> str:
    """Measured, predicted and acceptance length."""
    predicted = "–" if row["predicted"] is None else f"{row['predicted']:.2f}"
    return f"{row['speedup']:.2f} / {predicted} ({row['acceptance_length']:.2f})"


def table(results: dict) -> str:
    """The results in Markdown."""
    parts = [
        f"SmolLM2-135M, float32, batch 1, {results['new_tokens']} greedy tokens; "
        f"{results['prompts']} prompts of each set, each timed {results['runs']} times beside "
        "plain decoding. Speedup measured / predicted, and in brackets the acceptance length."
    ]
    for name, title in DRAFTERS.items():
        rows = [row for row in results["rows"] if row["drafter"] == name]
        found = {(row["drafts"], row["set"]): shown(row) for row in rows}
        counts = sorted({row["drafts"] for row in rows})
        body = [[str(n), *(found[n, group] for group in SETS)] for n in counts]
        parts += [f"**{title.capitalize()}**", grid(["drafts", *SETS], body)]
    both = [r for r in results["rows"] if r["predicted"] is not None]
    ratios = sorted(r["speedup"] / r["predicted"] for r in both)
    lost = sum(r["speedup"] < 1 for r in results["rows"])
    wrong = sum(r["mismatches"] - r["near_ties"] for r in results["rows"])
    parts += [
        f"Of {len(results['rows'])} rows {lost} lose against plain decoding. Measured over "
        f"predicted: median {ratios[len(ratios) // 2]:.2f}, range {ratios[0]:.2f} to "
        f"{ratios[-1]:.2f}. Answers that differ from plain decoding and are no near-tie: {wrong}.",
        where(results),
    ]
    return "\n\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--drafts", type=int, nargs="+", default=[1, 2, 3, 4, 6, 8, 12, 16])
    parser.add_argument("--prompts", type=int, default=2, help="of each set")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--runs", type=int, default=2)
    args = parser.parse_args()
    for name, values in vars(args).items():
        if min(values if isinstance(values, list) else [values]) < 1:
            parser.error(f"--{name} is {values}; expected whole numbers from 1 on")
    try:
        results = measure(sorted(set(args.drafts)), args.prompts, args.tokens, args.runs)
    except KeyboardInterrupt:
        print("\nInterrupted; the same command goes on with the next number.", file=sys.stderr)
        return 130
    (RESULTS / SWEEP).write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    PARTIAL.unlink(missing_ok=True)
    write()
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
