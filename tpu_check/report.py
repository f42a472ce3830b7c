"""The table of the committed results, in the book.

    python -m tpu_check.report [--check]

The page shows it between `<!-- tpu_check -->` and `<!-- /tpu_check -->`.
"""

import argparse
import json
import re
import sys
from pathlib import Path

from bench.report import grid, number
from tpu_check.chips import CHIPS

ROOT = Path(__file__).resolve().parent.parent
NEWEST = ROOT / "bench" / "results" / "tpu.json"
COLAB = ROOT / "bench" / "results" / "tpu_colab.json"
LAYERS = ROOT / "bench" / "results" / "layers.json"
PAGE = ROOT / "book" / "tpu.md"
MIB, GIB = 2**20, 2**30


def compact(results: dict) -> str:
    """JSON with a line for each program, so that a change of one shows."""
    head = {name: value for name, value in results.items() if name != "programs"}
    lines = ",\n".join(json.dumps(record) for record in results["programs"])
    return json.dumps(head)[:-1] + ', "programs": [\n' + lines + "\n]}\n"


def size(count: float) -> str:
    return f"{count / GIB:.2f} GiB" if count >= GIB else f"{count / MIB:.1f} MiB"


def roofline(record: dict) -> tuple[float, str]:
    """The least seconds of the program's work, and what bounds them.

    Arguments are read once, and results that are not in place written once.
    """
    chip = CHIPS[record["chip"]]
    moving = (record["arguments"] + record["outputs"]) / chip.bandwidth
    computing = record["flops"] / chip.peak
    return max(moving, computing), "memory" if moving > computing else "compute"


def row(record: dict) -> list[str]:
    name = record["function"] + ("" if record["mode"] == "greedy" else f", {record['mode']}")
    start = [name, record["model"], str(record["batch"]), str(record["tokens"]),
             f"{record['context']:,}", record["chip"]]  # fmt: skip
    if "arguments" not in record:
        return [*start, "refused", "", "", "", "", ""]
    seconds, bound = roofline(record)
    return [*start, f"{record['seconds']:.1f}", size(record["arguments"]),
            size(record["temporaries"]), number(record["flops"] / 1e9), number(1e3 * seconds),
            bound]  # fmt: skip


HEADER = ["function", "model", "batch", "tokens", "context", "chip", "compile s", "arguments",
          "temporaries", "GFLOP", "roofline ms", "bound by"]  # fmt: skip


def table(programs: list[dict]) -> str:
    return grid(HEADER, [row(record) for record in programs])


def about(results: dict) -> str:
    """Which versions, how many programs, and how it ended."""
    programs, v = results["programs"], results["versions"]
    problems = [record["problem"] for record in programs if record["problem"]]
    refused = f"{len(problems)} fail" if problems else "all fit"
    return (f"jax {v['jax']}, libtpu {v['libtpu']}, flax {v['flax']}, python {v['python']}, "
            f"{results['date']}: {len(programs)} programs, {refused}.")  # fmt: skip


def beside(newest: dict, colab: dict) -> str:
    """What the older compiler does otherwise."""
    def taken(results):
        return {(r["label"], r["chip"]): r["temporaries"] for r in results["programs"]
                if "temporaries" in r}  # fmt: skip

    new, old = taken(newest), taken(colab)
    rows = [
        [*key, size(new[key]), size(old[key])]
        for key in new if key in old and abs(new[key] - old[key]) > max(64 * MIB, new[key] / 4)
    ]  # fmt: skip
    if not rows:
        return "Both compilers take about the same temporaries everywhere."
    return "Where their temporaries differ by more than a quarter and 64 MiB:\n\n" + grid(
        ["program", "chip", f"jax {newest['versions']['jax']}", f"jax {colab['versions']['jax']}"],
        rows,
    )


def layers_table(results: dict) -> str:
    """What a loop over the layers costs and saves."""
    rows = []
    for r in results["rows"]:
        rows.append([r["model"], r["where"], r["layers"], number(r["trace"]), number(r["compile"]),
                     f"{r['bytes'] / 1e9:.2f} GB", size(r["temporaries"]),
                     f"{1e3 * r['step']:.1f}" if r.get("step") else ""])  # fmt: skip
    header = ["model", "compiled for", "layers", "trace s", "compile s", "read and written a step",
              "temporaries", "measured ms a step"]  # fmt: skip
    ratio = results["ratio"]
    return "\n\n".join([
        grid(header, rows),
        f"On the CPU a step of the loop takes {ratio['median']:.2f} times as long as one of the "
        f"unrolled layers (median of {ratio['rounds']} rounds that take turns, "
        f"{ratio['low']:.2f} to {ratio['high']:.2f}).",
    ])  # fmt: skip


def blocks() -> dict[str, str]:
    """What stands between the page's markers."""
    read = lambda path: json.loads(path.read_text("utf-8")) if path.exists() else None
    newest, colab, layers = read(NEWEST), read(COLAB), read(LAYERS)
    found = {}
    if newest:
        found["tpu_check"] = "\n\n".join([about(newest), table(newest["programs"])])
    if newest and colab:
        found["tpu_check:colab"] = "\n\n".join([about(colab), beside(newest, colab)])
    if layers:
        found["layers"] = layers_table(layers)
    return found


def filled(text: str) -> str:
    """The page's text with the committed results in it."""
    for name, new in blocks().items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        text = re.sub(pattern, lambda m, new=new: f"{m[1]}\n{new}\n\n{m[2]}", text, flags=re.S)
    return text


def stale() -> bool:
    """Whether the page shows something else than the committed results."""
    text = PAGE.read_text("utf-8")
    return filled(text) != text


def write() -> None:
    PAGE.write_text(filled(PAGE.read_text("utf-8")), "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, name a stale page")
    if not parser.parse_args().check:
        write()
        return 0
    if stale():
        print(f"{PAGE} does not show the committed results: run python -m tpu_check.report")
    return stale()


if __name__ == "__main__":
    sys.exit(main())
