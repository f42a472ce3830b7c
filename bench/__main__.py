"""Measure, and write the results, their tables and their plot.

    python -m bench [--rounds 10] [--tokens 128] [--output bench/results]

Minutes on two cores (llama.cpp's build, once, is extra). Ctrl-C keeps what there is in
build/bench/decoding.json. Run it on a machine that does nothing else.
"""

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from tqdm import tqdm

from bench import peers, report
from dflash_lite.benchmark import hardware

ROOT = Path(__file__).resolve().parent.parent
BENCH = ROOT / "bench"
PARTIAL = ROOT / "build" / "bench" / "decoding.json"
THREADS = 2
QUESTION = "Why is the sky blue? Answer in one short paragraph."
BATCHES = [1, 2, 4, 8, 16, 32, 64]
LONGEST_PROMPT = 200
LOADS = 5


class Failed(Exception):
    """A worker ended; the message says where its log is."""


class Worker:
    """A process that answers one request at a time."""

    def __init__(self, python: Path | str, script: str, *arguments: Path):
        self.log = PARTIAL.with_name(f"{script}.log")
        self.process = subprocess.Popen(
            [python, BENCH / f"{script}.py", *arguments],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            stderr=self.log.open("w"), env=os.environ | {"NPROC": str(THREADS)},
        )  # fmt: skip

    def ask(self, do: str, **request) -> dict:
        """The answer to a request.

        Raises:
            Failed: the process is gone.
        """
        try:
            self.process.stdin.write(json.dumps({"do": do, **request}) + "\n")
            self.process.stdin.flush()
            return json.loads(self.process.stdout.readline())
        except (OSError, ValueError):
            raise Failed(f"{self.log.stem} ended; its log is {self.log}") from None

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def use_cores(count: int) -> int:
    """Bind this process and its children to so many cores, where the system can.

    NPROC and the peers' own settings say the same to thread pools; this keeps other threads
    of a library from using a third core.
    """
    if not hasattr(os, "sched_setaffinity"):
        return min(count, os.cpu_count())
    allowed = sorted(os.sched_getaffinity(0))
    siblings = Path("/sys/devices/system/cpu")
    cores: dict[str, int] = {}  # one logical processor of each physical core
    for cpu in allowed:
        file = siblings / f"cpu{cpu}/topology/thread_siblings_list"
        cores.setdefault(file.read_text() if file.exists() else str(cpu), cpu)
    chosen = [*cores.values(), *(c for c in allowed if c not in cores.values())][:count]
    os.sched_setaffinity(0, chosen)
    return len(chosen)


def float32_file() -> Path:
    """The model's GGUF file with float32 tensors, made if need be, in the cache folder."""
    from dflash_lite import checkpoints

    source = checkpoints.fetch("smollm2-135m")
    target = checkpoints.cache_dir() / "bench" / "SmolLM2-135M-Instruct.F32.gguf"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, BENCH / "float32_gguf.py", source, target], check=True)
    return target


def start_peers(results: dict, reasons: dict[str, str]) -> dict[str, Worker]:
    """The workers of the peers that are there; `results` says why others are not."""
    workers = {}
    for name, reason in reasons.items():
        if reason:
            results["peers"][name] = reason
            continue
        script = "worker_" + name.replace(".", "_")
        worker = Worker(peers.python(), script, float32_file())
        try:
            results["versions"] |= worker.ask("about")["versions"]
        except Failed as failure:
            results["peers"][name] = str(failure)
            continue
        results["peers"][name] = ""
        workers[name] = worker
    return workers


def load_seconds() -> float:
    """Seconds that a fresh process needs to import the package and load the model."""
    code = (
        "import time; start = time.perf_counter(); import dflash_lite; "
        "dflash_lite.load('smollm2-135m'); print(time.perf_counter() - start)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(run.stdout)


def command() -> dict:
    """Run `dflash-lite generate` as `make demo` does.

    Returns:
        Seconds until the first byte of text, and the peak of resident memory in bytes.
    """
    program = Path(sys.executable).with_name("dflash-lite")
    start = time.perf_counter()
    process = subprocess.Popen(
        [program, "generate", QUESTION, "--max-new-tokens", "64"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
    )  # fmt: skip
    process.stdout.read(1)
    first = time.perf_counter() - start
    process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise Failed(f"dflash-lite generate ended with code {process.returncode}")
    unit = 1 if sys.platform == "darwin" else 1024
    return {"first_text": first, "peak_bytes": usage.ru_maxrss * unit}


def save(results: dict, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


def rotate(items: list, by: int) -> list:
    """The items in turn, beginning with another one each time."""
    by %= len(items)
    return items[by:] + items[:by]


def measure(results: dict, rounds: int, tokens: int, keep: Callable[[], None]) -> None:
    """Fill `results`; `keep` is called after each round."""
    reasons = peers.set_up()
    results["threads"] = use_cores(THREADS)
    ours = Worker(sys.executable, "worker_dflash_lite")
    workers = {"dflash_lite": ours}
    try:
        about = ours.ask("about")
        results["versions"] |= about.pop("versions")
        results |= about
        workers |= start_peers(results, reasons)
        ids = ours.ask("prompt", text=QUESTION)["ids"]
        results |= {"prompt_tokens": len(ids), "new_tokens": tokens}
        total = len(workers) + 1 + rounds * (len(workers) + 3) + rounds // 2 * (len(BATCHES) + 2)
        with tqdm(total=total + LOADS * 2, unit="measurement") as bar:
            compare(results, workers, ids, rounds, tokens, keep, bar)
            widen(results, ours, rounds // 2, keep, bar)
            for worker in workers.values():  # what follows wants the memory for itself
                worker.close()
            start_up(results, keep, bar)
    finally:
        for worker in workers.values():
            worker.close()


def compare(
    results: dict, workers: dict[str, Worker], ids: list[int], rounds: int, tokens: int,
    keep: Callable[[], None], bar: tqdm,
) -> None:  # fmt: skip
    """Tokens per second beside the peers, the loop and its steps, and the weights' reading."""
    ours = workers["dflash_lite"]
    bar.set_description("warming up")
    made = {}
    for name, worker in workers.items():
        made[name] = worker.ask("generate", ids=ids, tokens=tokens)["tokens"]
        bar.update()
    results["tokens_made"] = {name: len(x) for name, x in made.items()}
    results["tokens_differ"] = {
        name: sum(a != b for a, b in zip(x, made["dflash_lite"])) for name, x in made.items()
    }
    for task in ("loop", "steps"):
        ours.ask(task, ids=ids, tokens=tokens)
    results["compilations"] = ours.ask("compilations", longest=LONGEST_PROMPT)
    bar.update()
    seconds = results["seconds"] = {name: [] for name in workers}
    names = ("prefill", "loop", "steps", "read")
    seconds |= {name: [] for name in names}
    results["compiled_in_rounds"] = 0

    def generate(name: str) -> None:
        answer = workers[name].ask("generate", ids=ids, tokens=tokens)
        seconds[name].append(answer["seconds"])
        results["compiled_in_rounds"] += answer.get("compiled", 0)

    def loop(_: str) -> None:
        answer = ours.ask("loop", ids=ids, tokens=tokens)
        seconds["prefill"].append(answer["prefill"])
        seconds["loop"].append(answer["decode"])

    def steps(_: str) -> None:
        seconds["steps"].append(ours.ask("steps", ids=ids, tokens=tokens)["decode"])

    def read(_: str) -> None:
        seconds["read"].append(ours.ask("read", tries=5)["seconds"])

    tasks = {name: generate for name in workers} | {"loop": loop, "steps": steps, "read": read}
    for number in range(rounds):
        for name in rotate(list(tasks), number):
            bar.set_description(f"round {number + 1}: {name}")
            tasks[name](name)
            bar.update()
        results["rounds"] = number + 1
        keep()


def widen(
    results: dict, ours: Worker, rounds: int, keep: Callable[[], None], bar: tqdm
) -> None:
    """One decode step for each batch size, beside both limits of the machine."""
    bar.set_description("batches")
    for rows in BATCHES:  # compiles
        ours.ask("batch", rows=rows, tries=0)
    batches = results["batches"] = {"read": [], "operations": []}
    batches |= {str(rows): [] for rows in BATCHES}
    for number in range(rounds):
        for task in rotate(["read", "product", *BATCHES], number):
            if task == "read":
                batches["read"].append(ours.ask("read", tries=5)["seconds"])
            elif task == "product":
                answer = ours.ask("product", size=2048, tries=3)
                batches["operations"].append(answer["operations"])
            else:
                batches[str(task)].append(ours.ask("batch", rows=task, tries=4)["seconds"])
            bar.update()
        keep()


def start_up(results: dict, keep: Callable[[], None], bar: tqdm) -> None:
    """Fresh processes: loading, the first word of the command, its memory."""
    command()  # fills the disk's cache and that of compiled programs
    start = results["start"] = {"load": [], "first_text": [], "peak_bytes": []}
    for _ in range(LOADS):
        bar.set_description("start")
        start["load"].append(load_seconds())
        bar.update()
        for name, value in command().items():
            start[name].append(value)
        bar.update()
        keep()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10, help="at least 2")
    parser.add_argument("--tokens", type=int, default=128, help="new tokens of each answer")
    parser.add_argument("--output", type=Path, default=report.RESULTS)
    args = parser.parse_args()
    PARTIAL.parent.mkdir(parents=True, exist_ok=True)
    results = {
        "complete": False,
        "date": datetime.date.today().isoformat(),
        "machine": hardware(),
        "versions": {
            "python": platform.python_version(), "dflash_lite": metadata.version("dflash_lite")
        },
        "peers": {},
    }  # fmt: skip
    keep = lambda: save(results, PARTIAL)
    try:
        measure(results, max(2, args.rounds), args.tokens, keep)
    except KeyboardInterrupt:
        keep()
        print(f"\nInterrupted. What there is lies in {PARTIAL}; {report.RESULTS} is as it was.",
              file=sys.stderr)  # fmt: skip
        return 130
    except (Failed, subprocess.CalledProcessError) as failure:
        keep()
        print(f"\n{failure}. What there is lies in {PARTIAL}.", file=sys.stderr)
        return 1
    results["complete"] = True
    save(results, args.output / report.NAME)
    report.plot(results, args.output / report.PLOT)
    print(report.table(results))
    if args.output == report.RESULTS:
        report.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
