"""Four drafters that learn from the same texts: what each guesses, and what it is worth.

    python -m bench.study DATA --prompts FILE [--model tiny] [--seeds 3] [--steps 2000]
        [--minutes 10] [--blocks 2 4 6 8 12 16] [--per-set 8] [--runs 3]

DATA is a folder that `dflash-lite train data` has filled, FILE holds prompts that are not in it. A
draft model, EAGLE-3, DFlash and DFlash without the target's features train on the same batches in
the same order for the same number of steps; and once more each for the same time. Then
`dflash-lite bench` measures them beside plain decoding for each size of a block, and beside it
batches and a temperature. Runs lie in build/study/, and bench/results/study.json has what is done
after each part; the same command goes on from there. Measure on a machine that does nothing else.
"""

import argparse
import datetime
import json
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.exactness import keep, resume
from bench.ratios import ratio
from bench.report import RESULTS, ROOT, STUDY
from dflash_lite.benchmark import PLAIN, BenchSettings, hardware, measure_all, read_tasks, rotated

DRAFT_MODEL, EAGLE, DFLASH, BLIND = "draft model", "EAGLE-3", "DFlash", "DFlash without features"
KINDS = (DRAFT_MODEL, EAGLE, DFLASH, BLIND)
NAMES = {DRAFT_MODEL: "draft-model", EAGLE: "eagle", DFLASH: "dflash", BLIND: "block-diffusion"}
STEPS, TIME = "the same steps", "the same time"
BATCHES = (1, 4, 16)
KEYS = ("set", "speedup", "speedup_low", "speedup_high", "predicted", "acceptance_length",
        "accepted_by_position", "step_ms", "draft_ms", "verify_ms", "mismatches",
        "near_ties")  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """What the drafters of a target are built with."""

    layers: int  # of DFlash, with features and without
    draft_layers: int  # of the draft model
    draft_hidden: int
    block: int  # of the two that fill a block, in training
    unrolled: int  # block of the two that draft token by token, in training
    words: int  # tokens that can be drafted; 0 for all
    taps: tuple[int, ...] | None = None  # of EAGLE-3 and DFlash; None: each kind's own


SIZES = {
    "tiny": Sizes(1, 2, 256, 16, 6, 0, (1, 3, 5)),  # six layers have no usual taps
    "smollm2-135m": Sizes(2, 2, 192, 8, 6, 8192),
}


def new_learner(kind: str, sizes: Sizes, parts: tuple, data: Any, seed: int) -> Any:
    """A drafter of a kind with random weights."""
    from dflash_lite.block_diffusion import BlockDrafter
    from dflash_lite.dflash import new_drafter
    from dflash_lite.eagle import DraftLearner, new_eagle
    from dflash_lite.training_runs import frequent_tokens, unused_token

    model, tokenizer = parts
    words = frequent_tokens(data, sizes.words)[0] if sizes.words else None
    mask = unused_token(model, tokenizer, data)
    if kind == DRAFT_MODEL:
        return DraftLearner.new(model, sizes.draft_layers, sizes.draft_hidden, sizes.unrolled, seed)
    if kind == EAGLE:
        return new_eagle(model, sizes.unrolled, sizes.taps, words, seed)
    if kind == DFLASH:
        return new_drafter(model, mask, sizes.layers, sizes.block, sizes.taps, words, seed)
    hidden = model.config.hidden_size
    return BlockDrafter.new(model, mask, sizes.layers, hidden, sizes.block, words, seed)


def write_learner(kind: str, learner: Any, tokenizer: Any, folder: Path) -> None:
    """Write a trained drafter, for `open_learner` and for `dflash-lite bench`."""
    from dflash_lite import save_eagle, save_model
    from dflash_lite.dflash import save_drafter

    if kind == EAGLE:
        save_eagle(learner, folder, "float32")
    elif kind == DFLASH:
        save_drafter(learner, folder, "float32")
    else:
        save_model(learner.model, tokenizer, folder, "float32")
    if kind == BLIND:
        words = learner.vocabulary
        notes = {"mask_token_id": learner.mask_token_id,
                 "vocabulary": None if words is None else words.tolist()}  # fmt: skip
        (folder / "block_drafter.json").write_text(json.dumps(notes) + "\n")


def make_block_diffusion(model: Any, block: int, detail: str) -> Any:
    """A `BlockDrafter` from a folder that `write_learner` wrote."""
    import jax.numpy as jnp

    import dflash_lite

    notes = json.loads((Path(detail) / "block_drafter.json").read_text())
    small, _ = dflash_lite.load(detail, model.embed_tokens.dtype.name)
    words = notes["vocabulary"]
    words = None if words is None else jnp.array(words, jnp.int32)
    return dflash_lite.BlockDrafter(small, notes["mask_token_id"], block, vocabulary=words)


def open_drafter(kind: str, folder: Path, model: Any, block: int) -> Any:
    """A trained drafter, ready to draft."""
    from dflash_lite import benchmark

    benchmark.DRAFTERS.setdefault(NAMES[BLIND], make_block_diffusion)
    return benchmark.make_drafter(f"{NAMES[kind]}:{folder}", model, block)


@dataclass(frozen=True)
class Unit:
    """One training: a kind, a seed, and what was equal for all kinds."""

    kind: str
    budget: str
    seed: int

    @property
    def name(self) -> str:
        """A folder's name."""
        words = (self.kind, self.budget.removeprefix("the same "), self.seed)
        return "-".join(str(word).lower().replace(" ", "-") for word in words)


def train_unit(
    unit: Unit, parts: tuple, data: Any, settings: Any, minutes: float, sizes: Sizes, place: Path
) -> dict:
    """Train one drafter; for a budget of time, so many steps as fit into it."""
    import jax

    from dflash_lite.training import forecast, train

    learner = new_learner(unit.kind, sizes, parts, data, unit.seed)
    settings = replace(settings, seed=unit.seed)
    if unit.budget == TIME:
        notes = place / "steps.json"  # a resumed run keeps its length
        if not notes.exists():
            found = forecast(parts[0], learner, data, settings)
            each = found.seconds / settings.steps
            place.mkdir(parents=True, exist_ok=True)
            notes.write_text(json.dumps(max(1, round(60 * minutes / each))))
        settings = replace(settings, steps=json.loads(notes.read_text()))
    begun = time.monotonic()
    trained = train(*parts[:1], learner, data, place, settings)
    if trained.step < settings.steps:
        raise KeyboardInterrupt
    write_learner(unit.kind, trained.learner, parts[1], place / "drafter")
    losses = [line for line in trained.metrics if "loss" in line]
    last = losses[-max(1, len(losses) // 20) :]
    floats = [x for x in jax.tree.leaves(trained.learner) if x.dtype == "float32"]
    return {
        "kind": unit.kind, "budget": unit.budget, "seed": unit.seed, "steps": settings.steps,
        "rows": settings.rows, "seconds": losses[-1]["seconds"],
        "wall_seconds": round(time.monotonic() - begun, 1),
        "parameters": sum(x.size for x in floats),
        "train_acceptance": sum(x["acceptance"] for x in last) / len(last),
        "machine": hardware(), "date": datetime.date.today().isoformat(),
    }  # fmt: skip


def measure_block(model: str, folders: dict, block: int, tasks: list, tokens: int, runs: int):
    """What `dflash-lite bench` says of all drafters of a budget and a seed, by kind."""
    from dflash_lite import benchmark

    benchmark.DRAFTERS.setdefault(NAMES[BLIND], make_block_diffusion)
    names = {f"{NAMES[kind]}:{folder}": kind for kind, folder in folders.items()}
    settings = BenchSettings(model, "float32", tuple(names), block, tokens, runs)
    results: Any = None
    for event in measure_all(settings, tasks):
        results = event.so_far[0] if event.so_far is not None else results
    short = {benchmark.only_name(name): kind for name, kind in names.items()} | names
    return [
        {"kind": short.get(entry["mode"], PLAIN), "block": block}
        | {key: entry[key] for key in KEYS}
        for entry in results["results"]
    ]


def measure_batch(
    parts: tuple, drafters: dict, tasks: list, batch: int, temperature: float, tokens: int,
    runs: int,
) -> list[dict]:  # fmt: skip
    """Drafters beside plain decoding, so many prompts at a time; modes take turns."""
    from dflash_lite import generate

    model, tokenizer = parts
    prompts = [task.prompt for task in tasks]
    groups = [prompts[i : i + batch] for i in range(0, len(prompts) - batch + 1, batch)]
    modes = {PLAIN: None} | drafters
    seconds: dict[str, list[float]] = {name: [] for name in modes}
    made = {name: [0, 0] for name in modes}

    def ask(name: str, group: list[str], seed: int) -> Any:
        how = {"max_new_tokens": tokens, "temperature": temperature, "seed": seed}
        return generate(model, tokenizer, group, drafter=modes[name], **how)[0].statistics

    for name in modes:
        for group in groups:
            ask(name, group, 0)  # compiles
    for run in range(runs):
        for number, group in enumerate(groups):
            for name in rotated(list(modes), run + number):
                cost = ask(name, group, run)
                seconds[name].append(cost.decode_seconds / max(1, cost.decode_tokens))
                made[name][0] += cost.decode_tokens
                made[name][1] += cost.decode_steps
    rows = []
    for name in drafters:
        found = ratio(seconds[PLAIN], seconds[name])
        rows.append({
            "kind": name, "batch": batch, "temperature": temperature,
            "speedup": found.median, "speedup_low": found.interval[0],
            "speedup_high": found.interval[1],
            "acceptance_length": made[name][0] / max(1, made[name][1]),
        })  # fmt: skip
    return rows


def best_blocks(rows: list[dict]) -> dict[str, int]:
    """The block of each kind with the best speedup over all sets, median of the seeds."""
    from statistics import median

    best = {}
    for kind in KINDS:
        speeds: dict[int, list[float]] = {}
        for row in rows:
            if row["kind"] == kind and row["set"] == "all":
                speeds.setdefault(row["block"], []).append(row["speedup"])
        middle = {block: median(values) for block, values in sorted(speeds.items())}
        if middle:
            best[kind] = max(middle, key=middle.__getitem__)
    return best


class Study:
    """All trainings and measurements of a target, kept after each."""

    def __init__(self, args: argparse.Namespace, place: Path, results: Path):
        self.args, self.place, self.file = args, place, results
        versions = {"python": platform.python_version()} | {
            name: metadata.version(name) for name in ("dflash_lite", "jax", "flax", "numpy")
        }
        self.run = {"model": args.model, "steps": args.steps, "minutes": args.minutes,
                    "blocks": args.blocks, "tokens": args.tokens, "runs": args.runs,
                    "prompts": args.per_set, "versions": versions}  # fmt: skip
        empty: dict[str, list] = {"trained": [], "rows": [], "batches": []}
        self.found = empty | resume(self.run, results)

    def keep(self) -> None:
        """Write what there is."""
        keep(self.run, self.found, self.file)

    def has(self, part: str, **wanted: Any) -> bool:
        """Whether a part of the results has such a row."""
        return any(all(row[k] == v for k, v in wanted.items()) for row in self.found[part])

    def units(self) -> list[Unit]:
        """All trainings; those of a seed together, so that a part of them is of use."""
        seeds, budgets = range(self.args.seeds), (STEPS, TIME)
        return [Unit(k, b, s) for s in seeds for b in budgets for k in KINDS]

    def train(self, say: Callable[[str], None]) -> None:
        """All trainings that are not done."""
        import dflash_lite
        from dflash_lite.training import TrainSettings, read_shards

        parts = dflash_lite.load(self.args.model)
        data = read_shards(self.args.data, *parts)
        settings = TrainSettings(steps=self.args.steps, rows=self.args.rows, longest=512,
                                 save_every=50)  # fmt: skip
        sizes = SIZES.get(self.args.model, SIZES["tiny"])
        for unit in self.units():
            where = self.place / unit.name
            wanted = {"kind": unit.kind, "budget": unit.budget, "seed": unit.seed}
            there = (where / "drafter" / "config.json").exists()
            if self.has("trained", **wanted) and there:
                continue
            say(f"{unit.name} trains")
            row = train_unit(unit, parts, data, settings, self.args.minutes, sizes, where)
            self.found["trained"].append(row)
            self.keep()

    def folders(self, budget: str, seed: int) -> dict[str, Path]:
        """Where the drafters of a budget and a seed lie."""
        return {kind: self.place / Unit(kind, budget, seed).name / "drafter" for kind in KINDS}

    def measure(self, say: Callable[[str], None]) -> None:
        """All measurements that are not done."""
        import dflash_lite

        a = self.args
        tasks = [task for task in read_tasks(a.prompts, None) if task.number < a.per_set]
        for seed in range(a.seeds):
            for budget in (STEPS, TIME):
                for block in a.blocks:
                    about = {"budget": budget, "seed": seed}
                    if self.has("rows", block=block, **about):
                        continue
                    say(f"{budget}, seed {seed}: blocks of {block}")
                    folders = self.folders(budget, seed)
                    rows = measure_block(a.model, folders, block, tasks, a.tokens, a.runs)
                    self.found["rows"] += [row | about for row in rows]
                    self.keep()
        parts = dflash_lite.load(a.model)
        best = best_blocks(self.found["rows"])
        folders = self.folders(STEPS, 0)
        drafters = {kind: open_drafter(kind, folders[kind], parts[0], best[kind]) for kind in KINDS}
        for temperature in (0.0, 1.0):
            for batch in BATCHES:
                about = {"batch": batch, "temperature": temperature}
                if self.has("batches", **about):
                    continue
                say(f"batches of {batch}, temperature {temperature:g}")
                how = (batch, temperature, a.tokens, a.runs)
                rows = measure_batch(parts, drafters, tasks, *how)
                self.found["batches"] += [row | {"block": best[row["kind"]]} for row in rows]
                self.keep()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("data", type=Path)
    add("--prompts", type=Path, required=True)
    add("--model", default="tiny")
    add("--seeds", type=int, default=3)
    add("--steps", type=int, default=2000)
    add("--rows", type=int, default=8)
    add("--minutes", type=float, default=10)
    add("--blocks", type=int, nargs="+", default=[2, 4, 6, 8, 12, 16])
    add("--per-set", type=int, default=8)
    add("--tokens", type=int, default=128)
    add("--runs", type=int, default=3)
    add("--place", type=Path, default=ROOT / "build" / "study")
    add("--output", type=Path, default=RESULTS / STUDY)
    add("--train-only", action="store_true", help="measure later, on a quiet machine")
    args = parser.parse_args(argv)
    study = Study(args, args.place / Path(args.model).name, args.output)
    say = lambda text: print(text, file=sys.stderr, flush=True)
    try:
        study.train(say)
        if not args.train_only:
            study.measure(say)
    except KeyboardInterrupt:
        print("\nInterrupted; the same command goes on.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
