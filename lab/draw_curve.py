"""Draws a run's metrics, and keeps a thinned copy of them beside the picture.

    python draw_curve.py runs/tiny ../weights/tiny

Left the loss of each step and its running mean, right what was measured on texts that the
run never saw: shares of right responses, or acceptance lengths.
"""

import argparse
import json
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np

LINES = 200  # of losses that are kept, at most
STYLE = {"svg.hashsalt": "dflash_lite", "svg.fonttype": "none", "axes.spines.top": False,
         "axes.spines.right": False, "font.family": "sans-serif"}  # fmt: skip
MARKS = ("o-", "s--", "^:", "d-.", "v-", "x--")


def read(folder):
    """Losses by step, and measurements by step and name; of a step, the last line counts."""
    losses, measured = {}, {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if "loss" in entry:
            losses[entry["step"]] = entry["loss"]
        found = entry.get("held_out") or {
            name.removeprefix("exact_"): value
            for name, value in entry.items()
            if name.startswith("exact_")
        }
        if found:
            measured[entry["step"]] = found
    return dict(sorted(losses.items())), dict(sorted(measured.items()))


def thinned(losses):
    """At most `LINES` means of neighbouring losses, by their last step."""
    steps = np.array(list(losses))
    parts = np.array_split(np.arange(len(steps)), min(LINES, len(steps)))
    values = np.array(list(losses.values()))
    return {int(steps[p[-1]]): round(float(values[p].mean()), 5) for p in parts}


def draw(losses, measured, path):
    """The picture, on white, so that it can be read on a dark page too."""
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
        left.plot(list(losses), list(losses.values()), color="#0b6e99")
        left.set(xlabel="step", ylabel="loss of response tokens, nats", yscale="log")
        names = sorted({name for found in measured.values() for name in found})
        for name, mark in zip(names, MARKS):
            points = [(step, found[name]) for step, found in measured.items() if name in found]
            right.plot(*zip(*points), mark, label=name.replace("_", ", "))
        right.set(xlabel="step", ylabel="on texts never seen")
        right.legend(frameon=False, fontsize=8)
        about = {"Date": None, "Creator": None}
        figure.savefig(path, format="svg", facecolor="white", metadata=about)
        plt.close(figure)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args(argv)
    matplotlib.use("Agg")  # no window
    losses, measured = read(args.run)
    if not losses:
        raise SystemExit(f"{args.run / 'metrics.jsonl'} has no losses; is this a run's folder?")
    losses = thinned(losses)
    args.out.mkdir(parents=True, exist_ok=True)
    rows = [{"step": step, "loss": loss} for step, loss in losses.items()]
    rows += [{"step": step, "held_out": found} for step, found in measured.items()]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (args.out / "metrics.jsonl").write_text(text)
    draw(losses, measured, args.out / "curve.svg")


if __name__ == "__main__":
    main()
