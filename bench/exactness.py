"""Count the tokens that differ between plain decoding and every other way to the same text.

    python -m bench.exactness [--prompts 60] [--tokens 256] [--model smollm2-135m]

Greedy, float32. A difference is a near-tie if both tokens are almost the best, by the rule of
chapter 93. What follows a difference is another text and is not compared. A long run on two cores:
the results say after each batch what has been compared, and the same command goes on from there.
"""

import argparse
import datetime
import hashlib
import json
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from bench.report import EXACTNESS, RESULTS, grid, machine as where, write
from dflash_lite.benchmark import NEAR_TIE, first_difference, hardware, logit_gap, read_tasks

AT_ONCE = 12  # prompts in a batch
PAGE = 16
LIMIT = NEAR_TIE["float32"]


def prompts(count: int) -> list[str]:
    """The first prompts of each built-in set, in turns."""
    return [task.prompt for task in read_tasks(None, None)][:count]


def compare(
    model: Any, ids: list[list[int]], plain: list, found: list, stops: tuple[int, ...]
) -> dict:
    """What differs from plain decoding."""
    gaps, compared = [], 0
    for prompt, a, b in zip(ids, plain, found, strict=True):
        at = first_difference(a, b)
        compared += len(a) if at is None else at + 1
        if at is not None:
            tokens = [text[at] if at < len(text) else None for text in (a, b)]
            gaps.append(logit_gap(model, prompt + a[:at], tokens, stops))
    near = [gap for gap in gaps if gap is not None and gap < LIMIT]
    return {
        "compared": compared, "differences": len(gaps), "near_ties": len(near), "gaps": gaps,
    }  # fmt: skip


def resume(run: dict, partial: Path) -> dict:
    """What an earlier call of the same run has kept; nothing for a new run."""
    try:
        kept = json.loads(partial.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return kept["found"] if kept.get("run") == run else {}


def keep(run: dict, found: dict, partial: Path, more: dict | None = None) -> None:
    """Write what there is, whole or not at all."""
    partial.parent.mkdir(parents=True, exist_ok=True)
    beside = partial.with_suffix(".new")
    text = json.dumps({"run": run, "found": found} | (more or {}), indent=1)
    beside.write_text(text + "\n", "utf-8")
    os.replace(beside, partial)


def merged(run: dict, batches: list[dict]) -> dict:
    """The results of all batches so far."""
    rows = []
    for row in batches[0]["rows"]:
        same = [r for b in batches for r in b["rows"] if r["way"] == row["way"]]
        same = [r for r in same if r["cache"] == row["cache"]]
        sums = ("steps", "compared", "differences", "near_ties")
        rows.append({"way": row["way"], "cache": row["cache"]}
                    | {name: sum(r[name] for r in same) for name in sums}
                    | {"gaps": [gap for r in same for gap in r["gaps"]]})  # fmt: skip
    machines = {json.dumps(b["machine"]): b["machine"] for b in batches}
    about = batches[-1]["machine"]
    if len(machines) > 1:  # a run that went on somewhere else
        names = [m["processor"] for m in machines.values()]
        about = about | {"processor": " and ".join(dict.fromkeys(names))}
    return run | {
        "date": batches[-1]["date"], "machine": about, "limit": LIMIT,
        "prompts": sum(b["prompts"] for b in batches),
        "tokens": sum(b["tokens"] for b in batches), "rows": rows,
    }  # fmt: skip


def measure(name: str, count: int, new_tokens: int, results: Path) -> dict:
    """The results for all ways, kept in the file `results` after each batch."""
    import jax
    from tqdm import tqdm

    import dflash_lite
    from dflash_lite.decoding import encode_prompt, generate

    model, tokenizer = dflash_lite.load(name)
    ids = [encode_prompt(tokenizer, text, True, None) for text in prompts(count)]
    ids.sort(key=len)  # texts of a batch are of like length
    groups = [ids[i : i + AT_ONCE] for i in range(0, len(ids), AT_ONCE)]
    longest = max(map(len, ids)) + new_tokens
    memory = dflash_lite.PagedMemory(model, AT_ONCE * (longest // PAGE + 2), PAGE)
    half = max(1, model.config.num_hidden_layers // 2)

    def replay(share: float) -> Any:
        def make(group: list[list[int]], plain: list[list[int]]) -> Any:
            answers = np.full((len(group), longest + 1), -1, np.int32)
            for row, prompt, answer in zip(answers, group, plain, strict=True):
                row[: len(prompt) + len(answer)] = prompt + answer
            return dflash_lite.Replay(answers, 8, share)

        return make

    ways = {
        "plain": lambda *_: None,
        "prompt lookup": lambda *_: dflash_lite.PromptLookup(8),
        "a drafter right in 7 of 10": replay(0.7),
        f"the first {half} layers": lambda *_: dflash_lite.EarlyExit(half, 4),
    }
    versions = {"python": platform.python_version()} | {
        n: metadata.version(n) for n in ("dflash_lite", "jax", "flax", "numpy")
    }
    run = {
        "model": name, "ids": hashlib.sha256(json.dumps(ids).encode()).hexdigest(),
        "new_tokens": new_tokens, "versions": versions, "page": PAGE, "at_once": AT_ONCE,
        "device": jax.default_backend(),
    }  # fmt: skip
    runs = [(way, cache) for way in ways for cache in ("dense", "pages")]
    batches = resume(run, results).get("batches", [])
    left = groups[len(batches) :]
    for group in tqdm(left, unit="batch", initial=len(batches), total=len(groups)):
        plain: list[list[int]] = []
        rows = []
        for way, cache in runs:
            drafter = ways[way](group, plain)
            kept = memory if cache == "pages" else None
            answers = generate(
                model, tokenizer, group, max_new_tokens=new_tokens, drafter=drafter, memory=kept
            )
            texts = [answer.tokens for answer in answers]
            if not plain:
                plain = texts
                continue
            rows.append(
                {"way": way, "cache": cache, "steps": answers[0].statistics.decode_steps}
                | compare(model, group, plain, texts, tokenizer.stop_ids)
            )
        batches.append({
            "prompts": len(group), "tokens": sum(map(len, plain)), "rows": rows,
            "machine": hardware(), "date": datetime.date.today().isoformat(),
        })  # fmt: skip
        keep(run, {"batches": batches}, results, merged(run, batches))
    return merged(run, batches)


def table(results: dict) -> str:
    """The results in Markdown."""
    # no gap: an answer ended where no token could end it, so nothing is wider
    widest = lambda gaps: "none" if None in gaps else f"{max(gaps):.1e}" if gaps else ""
    rows = [
        [row["way"], row["cache"], f"{row['compared']:,}", str(row["differences"]),
         str(row["near_ties"]), widest(row["gaps"])]
        for row in results["rows"]
    ]  # fmt: skip
    header = ["drafter", "cache", "tokens compared", "differences", "of them near-ties",
              "widest gap"]  # fmt: skip
    return "\n\n".join([
        f"{results['prompts']} prompts, at most {results['new_tokens']} tokens each, "
        f"{results['tokens']:,} tokens in all; greedy, float32, compared with plain decoding over "
        "a dense cache.",
        grid(header, rows),
        "The gap is that between the best logit and the lower one of the two tokens, as a share of "
        "the spread of all logits, computed anew in one pass over what both texts share. A "
        f"near-tie: it is below {results['limit']:g}. What follows a difference is another text "
        "and is not compared.",
        where(results),
    ])  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.exactness", description=__doc__)
    parser.add_argument("--prompts", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    try:
        results = measure(args.model, args.prompts, args.tokens, args.output / EXACTNESS)
    except KeyboardInterrupt:
        print("\nInterrupted; the same command goes on from the last batch.", file=sys.stderr)
        return 130
    print(table(results))
    if args.output == RESULTS:
        write()
    return sum(row["differences"] - row["near_ties"] for row in results["rows"]) > 0


if __name__ == "__main__":
    sys.exit(main())
