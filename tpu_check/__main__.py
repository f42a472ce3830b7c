"""Compile every entry of the list for every chip, and say which do not fit.

    python -m tpu_check [--chip v5e] [--only PATTERN] [--add] [--results bench/results/tpu.json]

Needs the environment of `make tpu-check`, and no TPU. Ctrl-C keeps what there is in
build/tpu_check/, and the same command goes on from there. A run of a part of the list leaves
the committed results as they are, or with --add puts its own into them.
"""

import argparse
import datetime
import hashlib
import json
import platform
import re
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib import metadata
from pathlib import Path

from tqdm import tqdm

from tpu_check import compiler, coverage, report
from tpu_check.chips import CHIPS
from tpu_check.entries import ENTRIES, Entry
from tpu_check.functions import FUNCTIONS, build

ROOT = Path(__file__).resolve().parent.parent
PARTIAL = ROOT / "build" / "tpu_check"
AT_ONCE = 2  # compilations
FOUND = ("seconds", "arguments", "outputs", "temporaries", "code", "compiler")


def versions() -> dict[str, str]:
    about = {name: metadata.version(name) for name in ("jax", "libtpu", "flax")}
    return {"python": platform.python_version()} | about


def sources() -> str:
    """Changes whenever a program may have changed."""
    files = [*sorted(ROOT.glob("dflash_lite/*.py")), *sorted(ROOT.glob("tpu_check/*.py"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def one(entry: Entry, chip: str, before: dict | None) -> dict:
    """An entry's record; an error of ours is a problem of this entry alone."""
    about = entry._asdict() | {"label": entry.label, "chip": chip}
    try:
        return about | compiler.check(entry.label, build(entry), chip, before)
    except Exception as error:
        problem = f"{entry.label}, {chip}: {type(error).__name__}: {compiler.short(error)}"
        return about | {"problem": problem}


def done_before(partial: Path, results: dict) -> dict[tuple[str, str], dict]:
    """What an interrupted run of the same sources and versions has compiled."""
    try:
        old = json.loads(partial.read_text("utf-8"))
        same = (old["sources"], old["versions"]) == (results["sources"], results["versions"])
    except (OSError, ValueError, KeyError):
        return {}
    keep = lambda r: {name: r[name] for name in FOUND}
    return {(r["label"], r["chip"]): keep(r) for r in old["programs"] if same and "seconds" in r}


def chosen(chips: list[str], pattern: str) -> list[tuple[Entry, str]]:
    """The part of the list that is asked for, in its order."""
    return [(entry, chip) for chip in CHIPS if chip in chips for entry in ENTRIES
            if chip in entry.chips and re.search(pattern, entry.label)]  # fmt: skip


def run(work: list[tuple[Entry, str]], partial: Path, results: dict) -> None:
    """Fill `results`, and keep them in a file after each program."""
    partial.parent.mkdir(parents=True, exist_ok=True)
    before = done_before(partial, results)
    order = {(entry.label, chip): i for i, (entry, chip) in enumerate(work)}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        futures = [pool.submit(one, entry, chip, before.get((entry.label, chip)))
                   for entry, chip in work]  # fmt: skip
        try:
            for future in tqdm(as_completed(futures), total=len(futures), unit="program"):
                record = future.result()
                results["programs"].append(record)
                results["programs"].sort(key=lambda r: order[r["label"], r["chip"]])
                partial.write_text(json.dumps(results), "utf-8")
                if record["problem"]:
                    tqdm.write(record["problem"])
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def added(old: dict, results: dict) -> dict:
    """Older results of the whole list, with those of a part in their places.

    Raises:
        ValueError: the older ones were made with other versions.
    """
    if old["versions"] != results["versions"]:
        raise ValueError(
            f"the results in the file were made with {old['versions']}, these with "
            f"{results['versions']}; compile the whole list"
        )
    found = {(r["label"], r["chip"]): r for r in (*old["programs"], *results["programs"])}
    listed = [(entry.label, chip) for entry, chip in chosen(list(CHIPS), "")]
    return results | {"programs": [found[key] for key in listed if key in found]}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chip", action="append", choices=list(CHIPS), help="only for this one")
    parser.add_argument("--only", default="", metavar="PATTERN", help="entries that match")
    parser.add_argument("--add", action="store_true", help="put a part into the whole's results")
    parser.add_argument("--results", type=Path, default=report.NEWEST)
    args = parser.parse_args(argv)
    work = chosen(args.chip or list(CHIPS), args.only)
    if not work:
        known = "\n".join(entry.label for entry in ENTRIES)
        print(f"No entry matches {args.only!r}. The list:\n{known}", file=sys.stderr)
        return 1
    today = datetime.date.today().isoformat()
    results = {"date": today, "versions": versions(), "sources": sources(), "programs": []}
    whole = not (args.chip or args.only)
    partial = PARTIAL / f"{'all' if whole else 'part'}_{args.results.name}"
    try:
        run(work, partial, results)
    except KeyboardInterrupt:
        print("\nInterrupted; the same command goes on from here.", file=sys.stderr)
        return 130
    problems = [r["problem"] for r in results["programs"] if r["problem"]]
    problems += coverage.forgotten({FUNCTIONS[entry.function][0] for entry in ENTRIES})
    if not whole:
        print(report.table(results["programs"]))
    try:
        if args.add:
            results = added(json.loads(args.results.read_text("utf-8")), results)
        if whole or args.add:
            del results["sources"]
            args.results.write_text(report.compact(results), "utf-8")
            partial.unlink()
            report.write()
    except (OSError, ValueError) as error:
        problems.append(f"{args.results} was not written: {error}")
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{len(work)} programs compiled, {len(problems)} problems.")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
