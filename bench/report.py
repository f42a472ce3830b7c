"""The table and the plot of the committed results, and the pages that show them.

    python -m bench.report [--check]

A page shows a table between `<!-- bench:NAME -->` and `<!-- /bench -->`; NAME is decoding,
paging, exactness, speculation, sweep or published.
"""

import argparse
import hashlib
import json
import re
import sys
from pathlib import Path

from bench.ratios import Summary, ratio, summary

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
NAME, PLOT, PAGING = "decoding.json", "decoding.svg", "paging.json"
EXACTNESS, SPECULATION, SWEEP = "exactness.json", "speculation.json", "sweep.json"
STUDY = "study.json"
BLOCK = re.compile(r"(<!-- bench:(\w+) -->\n).*?(<!-- /bench -->)", re.DOTALL)
ALT = (
    "Two plots. Left: tokens per second of each library, a bar each. Right: milliseconds of a "
    "decode step for 1 to 64 rows, measured and as the roofline predicts, on logarithmic axes."
)


def pages() -> list[Path]:
    """The pages that may have a table."""
    return [ROOT / "README.md", *sorted((ROOT / "book").glob("*.md"))]


def read() -> dict:
    """The committed results.

    Raises:
        ValueError: the run was not finished.
    """
    results = json.loads((RESULTS / NAME).read_text("utf-8"))
    if not results["complete"]:
        raise ValueError(f"{RESULTS / NAME} is of a run that was interrupted; run make bench")
    return results


def number(value: float) -> str:
    """Three digits that count: 0.0123, 1.23, 12.3, 123."""
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def spread(s: Summary, unit: str = "") -> list[str]:
    """A row's last cells: median, range, interval."""
    low, high = s.interval
    return [
        number(s.median) + unit,
        f"{number(s.low)} to {number(s.high)}",
        f"{number(low)} to {number(high)}",
    ]


def grid(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def speeds(results: dict) -> dict[str, list[float]]:
    """Tokens per second of each library, one value a round."""
    tokens = results["new_tokens"]
    names = ["dflash_lite", *(n for n, reason in results["peers"].items() if not reason)]
    return {name: [tokens / s for s in results["seconds"][name]] for name in names}


def speed_table(results: dict) -> str:
    """Libraries side by side."""
    versions, rows = results["versions"], []
    ours = speeds(results)["dflash_lite"]
    labels = {
        "dflash_lite": f"dflash_lite (jax {versions['jax']})",
        "transformers": "transformers {transformers} (torch {torch})",
        "llama.cpp": "llama.cpp (llama-cpp-python {llama-cpp-python})",
    }
    for name, values in speeds(results).items():
        times = ratio(ours, values)
        beside = "1" if name == "dflash_lite" else (
            f"{times.median:.2f} ({times.interval[0]:.2f} to {times.interval[1]:.2f})"
        )  # fmt: skip
        median, span, _ = spread(summary(values))
        differ = f"{results['tokens_differ'][name]} of {results['tokens_made'][name]}"
        rows.append([labels[name].format(**versions), median, span, beside, differ])
    for name, reason in results["peers"].items():
        if reason:
            rows.append([name, reason.replace("|", "/"), "", "", ""])
    header = ["library", "tokens/s", "range", "how many times as fast dflash_lite is",
              "tokens that differ from dflash_lite's"]  # fmt: skip
    return grid(header, rows)


def cost_table(results: dict) -> str:
    """What a token, a call and a start cost."""
    seconds, start = results["seconds"], results["start"]
    steps = results["new_tokens"] - 1
    per_token = [s / steps for s in seconds["loop"]]
    percent = lambda above, below: [100 * (a / b - 1) for a, b in zip(above, below)]
    device = [a + b for a, b in zip(seconds["prefill"], seconds["loop"])]
    size = results["weight_bytes"]
    rows = [
        ["a token: milliseconds in the loop on the device", *spread(summary(
            [1e3 * s for s in per_token]))],
        ["reading the weights once: milliseconds", *spread(summary(
            [1e3 * s for s in seconds["read"]]))],
        ["the bandwidth that this is: GB/s", *spread(summary(
            [size / s / 1e9 for s in seconds["read"]]))],
        ["**a token over reading the weights once**", *spread(ratio(
            per_token, seconds["read"]))],
        ["`generate` over prefill and loop on the device", *spread(summary(
            percent(seconds["dflash_lite"], device)), " %")],
        ["one step a call over the loop on the device", *spread(summary(
            percent(seconds["steps"], seconds["loop"])), " %")],
        ["`load` in a fresh process: seconds", *spread(summary(start["load"]))],
        ["`dflash-lite generate`: seconds to the first text", *spread(summary(
            start["first_text"]))],
        ["`dflash-lite generate`: peak memory in GB", *spread(summary(
            [b / 1e9 for b in start["peak_bytes"]]))],
    ]  # fmt: skip
    return grid(["", "median", "range", "95% interval of the median"], rows)


def predicted(results: dict, rows: int) -> list[float]:
    """The roofline's seconds of a decode step, one value a round."""
    batches, size = results["batches"], results["weight_bytes"]
    moved = size + rows * 128 * results["cache_row_bytes"]
    return [
        max(moved / size * read, 2 * rows * size / 4 / operations)
        for read, operations in zip(batches["read"], batches["operations"])
    ]


def batch_sizes(results: dict) -> list[int]:
    return [int(name) for name in results["batches"] if name.isdigit()]


def batch_table(results: dict) -> str:
    """Measured and predicted milliseconds of a step."""
    rows = []
    for size in batch_sizes(results):
        measured, floor = results["batches"][str(size)], predicted(results, size)
        over = ratio(measured, floor)
        rows.append([
            str(size), number(1e3 * summary(floor).median), number(1e3 * summary(measured).median),
            f"{number(over.median)} ({number(over.low)} to {number(over.high)})",
            number(1e3 * summary(measured).median / size),
        ])  # fmt: skip
    header = ["rows", "predicted ms", "measured ms", "measured / predicted (range)", "ms a token"]
    return grid(header, rows)


def task(results: dict) -> str:
    """What each library had to do."""
    return (
        f"SmolLM2-135M, float32, batch 1: {results['new_tokens']} greedy tokens after a prompt of "
        f"{results['prompt_tokens']}, {results['threads']} threads; the prompt's time is included."
    )


def method(results: dict) -> str:
    """How ratios are taken."""
    return (
        f"{results['rounds']} rounds, in each of which the subjects take turns in another order. "
        "Ratios are taken within a round; in brackets a 95% bootstrap interval of their median."
    )


def machine(results: dict) -> str:
    """Where, with what, and when."""
    about = results["machine"]
    bare = {k: v for k, v in results["versions"].items() if k in ("python", "flax", "numpy")}
    versions = ", ".join(f"{name} {version}" for name, version in bare.items())
    return (
        f"{about['processor']}, {about['cores']} cores, {about['system']}; {versions}; "
        f"{results['date']}. `make bench` measures your machine."
    )


def short(results: dict) -> str:
    """What fits a front page, in Markdown."""
    return "\n\n".join(
        [task(results), speed_table(results), method(results), machine(results)]
    )


def table(results: dict) -> str:
    """All of it, in Markdown."""
    found = results["compilations"]
    first = ", ".join(f"{count} for {width}" for width, count in found["first_pass"].items())
    return "\n\n".join([
        task(results),
        speed_table(results),
        method(results),
        cost_table(results),
        "Reading the weights: the best of ten passes over an array of their size, sums by XLA and "
        "dot products by NumPy, with the same threads.",
        batch_table(results),
        "A step's prediction is the roofline: the longer of reading weights and cache at that "
        "bandwidth, and computing at the speed of a 2048 × 2048 product.",
        f"Programs compiled for prompts of 1 to {found['longest']} tokens, by the width that they "
        f"are padded to: {first}; in a second pass {found['second_pass']}, and in the rounds above "
        f"{results['compiled_in_rounds']}.",
        machine(results),
    ])  # fmt: skip


def block(results: dict, page: Path) -> str:
    """What stands between the markers of a page: README.md has the short form."""
    if page.name == "README.md":
        return f"\n{short(results)}\n\n"
    return f"\n{table(results)}\n\n![{ALT}](../bench/results/{PLOT})\n\n"


def filled(text: str, results: dict, page: Path) -> str:
    """A page's text with the results of `results` between its markers."""
    from bench import exactness, paging, published, speculation, sweep

    tables = {"paging": (paging, PAGING), "exactness": (exactness, EXACTNESS),
              "speculation": (speculation, SPECULATION), "sweep": (sweep, SWEEP)}  # fmt: skip

    def new(match: re.Match) -> str:
        if match[2] == "published":
            return f"{match[1]}\n{published.table()}\n\n{match[3]}"
        if match[2] not in tables:
            return match[1] + block(results, page) + match[3]
        source, name = tables[match[2]]
        of = json.loads((RESULTS / name).read_text("utf-8"))
        return f"{match[1]}\n{source.table(of)}\n\n{match[3]}"

    return BLOCK.sub(new, text)


def digest(results: dict) -> str:
    return hashlib.sha256(json.dumps(results, sort_keys=True).encode()).hexdigest()


def plot(results: dict, path: Path) -> None:
    """Draw both plots on white, so that they can be read on a dark page too."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    style = {"svg.hashsalt": "dflash_lite", "svg.fonttype": "none", "axes.spines.top": False,
             "axes.spines.right": False, "font.family": "sans-serif"}  # fmt: skip
    with plt.rc_context(style):
        figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
        bars = {name: summary(values) for name, values in speeds(results).items()}
        heights = [s.median for s in bars.values()]
        errors = [[s.median - s.low for s in bars.values()],
                  [s.high - s.median for s in bars.values()]]  # fmt: skip
        colours = ["#0b6e99", *["#9aa5ac"] * (len(bars) - 1)]
        left.bar(list(bars), heights, color=colours, yerr=errors, capsize=4)
        left.set_ylabel("tokens per second")
        left.set_title(f"Batch 1, float32, {results['threads']} threads", fontsize=10)
        rows = batch_sizes(results)
        floor = [1e3 * summary(predicted(results, r)).median for r in rows]
        right.plot(rows, floor, "s--", color="#555", label="roofline")
        steps = [summary([1e3 * s for s in results["batches"][str(r)]]) for r in rows]
        right.plot(rows, [s.median for s in steps], "o-", color="#0b6e99", label="measured")
        right.fill_between(rows, [s.low for s in steps], [s.high for s in steps],
                           color="#0b6e99", alpha=0.2, lw=0)  # fmt: skip
        right.set_xscale("log", base=2)
        right.set_yscale("log")
        right.set_xticks(rows, [str(r) for r in rows])
        right.set(xlabel="rows in the batch", ylabel="milliseconds a step")
        right.set_title("One decode step", fontsize=10)
        right.legend(frameon=False)
        about = {"Date": None, "Creator": None, "Description": digest(results)}
        figure.savefig(path, format="svg", facecolor="white", metadata=about)
        plt.close(figure)


def write() -> None:
    """Draw the plot and fill the pages."""
    results = read()
    plot(results, RESULTS / PLOT)
    for page in pages():
        text = page.read_text("utf-8")
        page.write_text(filled(text, results, page), "utf-8")


def stale() -> list[str]:
    """The files that do not show the committed results, relative to the repository."""
    results = read()
    wrong = [p for p in pages() if filled(t := p.read_text("utf-8"), results, p) != t]
    if digest(results) not in (RESULTS / PLOT).read_text("utf-8"):
        wrong.append(RESULTS / PLOT)
    return [str(path.relative_to(ROOT)) for path in wrong]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, name stale files")
    if not parser.parse_args().check:
        write()
        return 0
    for path in stale():
        print(f"{path} does not show the committed results: run python -m bench.report")
    return bool(stale())


if __name__ == "__main__":
    sys.exit(main())
