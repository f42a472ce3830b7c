"""The command line.

The command `dflash-lite` puts a model behind a terminal, a pipe or a script:
`generate` writes an answer while the model works, `doctor` says what is wrong
with a machine.

Made from chapters/90_command_line.py by tools/tangle.py:
edit the chapter, not this file.
"""

import contextlib
import json
import logging
import os
import platform
import queue
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

import typer
from rich.console import Console

__all__ = [
    "say",
    "Talk",
    "prepare_output",
    "interrupt_once",
    "leave",
    "exit_codes",
    "decode_text",
    "read_prompt",
    "in_background",
    "keep_programs",
    "silence",
    "Settings",
    "News",
    "snapshot",
    "answer",
    "follow",
    "summary",
    "as_json",
    "app",
    "show_version",
    "options",
    "generate_command",
    "finish",
    "Problem",
    "PACKAGES",
    "installed",
    "unmet",
    "ACCELERATORS",
    "devices",
    "idle",
    "features",
    "memory",
    "cache",
    "NEEDED_MEMORY",
    "shortages",
    "size",
    "examine",
    "page_way",
    "cores",
    "describe",
    "doctor",
    "main",
]


# Three promises
# --------------

def say(message: str) -> None:
    """Write one line for a person, to standard error."""
    print(" ".join(message.split()), file=sys.stderr, flush=True)


# Any terminal
# ------------

class Talk:
    """Standard error, without the errors of writing to it."""

    def __init__(self, stream: Any):
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write if possible."""
        with contextlib.suppress(OSError):
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush if possible."""
        with contextlib.suppress(OSError):
            self.stream.flush()


def prepare_output() -> None:
    """Let standard output and standard error take any text."""
    sys.stdout = sys.stdout or open(os.devnull, "w")
    sys.stderr = Talk(sys.stderr or open(os.devnull, "w"))
    sys.stdout.reconfigure(errors="replace")


# How a command ends
# ------------------

def interrupt_once() -> None:
    """Let the first Ctrl-C raise KeyboardInterrupt; ignore all that follow."""

    def interrupt(*_: Any) -> NoReturn:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, interrupt)


def leave(code: int) -> NoReturn:
    """End the process now, whatever its other threads are doing."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


@contextlib.contextmanager
def exit_codes() -> Iterator[None]:
    """End the process by convention when the block fails.

    A problem that the user can mend gives one line and code 1; Ctrl-C gives
    one line and code 130; a closed pipe gives code 141. Anything else is a bug
    of ours and keeps its stack trace.
    """
    try:
        try:
            yield
        finally:  # typer ends the process itself after a help
            sys.stdout.flush()
    except KeyboardInterrupt:
        say("dflash-lite: interrupted")
        leave(128 + signal.SIGINT)
    except SystemExit as end:
        if end.code == 128 + signal.SIGINT:  # typer met it before a command ran
            say("dflash-lite: interrupted")
        raise
    except BrokenPipeError:
        leave(128 + signal.SIGPIPE)
    except (
        OSError
    ) as error:  # a full disk, perhaps: nothing more can be written
        say(f"dflash-lite: {error}")
        leave(1)
    except ValueError as error:
        from dflash_lite.checkpoints import UserError

        if not isinstance(error, UserError):
            raise
        say(f"dflash-lite: {error}")
        raise SystemExit(1) from None


# The prompt
# ----------

def decode_text(data: bytes) -> str:
    """Text from UTF-8, without the line end that `echo` adds.

    Raises:
        UserError: the bytes are not UTF-8, or only white space.
    """
    from dflash_lite.checkpoints import UserError

    try:
        text = data.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise UserError(
            f"The prompt is not UTF-8: byte {error.start} is "
            f"{data[error.start]:#04x}. Convert it first, for example with "
            "iconv."
        ) from None
    if not text.strip():
        raise UserError(
            "The prompt is empty; expected some text: write it behind the "
            "command, or pipe it in."
        )
    return text


def read_prompt(argument: str | None) -> str:
    """The prompt: the argument, or standard input for "-" or None.

    Raises:
        UserError: it is empty or no text.
        typer.BadParameter: there is neither an argument nor a pipe.
    """
    if argument not in (None, "-"):
        return decode_text(argument.encode("utf-8", "surrogateescape"))
    if sys.stdin is None or (argument is None and sys.stdin.isatty()):
        raise typer.BadParameter("Give a prompt, or pipe one in.")
    return decode_text(sys.stdin.buffer.read())


# Stop at any moment
# ------------------

def in_background(work: Iterator[Any]) -> Iterator[Any]:
    """Iterate in another thread and yield its items here.

    An exception of the work is raised here. When this side stops early, the
    thread goes on until the process ends.
    """
    news: queue.SimpleQueue = queue.SimpleQueue()
    finished = object()

    def run() -> None:
        try:
            for item in work:
                news.put((item, None))
            news.put((finished, None))
        except BaseException as error:
            news.put((None, error))

    threading.Thread(target=run, daemon=True).start()
    while True:
        item, error = news.get()
        if error is not None:
            raise error
        if item is finished:
            return
        yield item


# Start quickly, and quietly
# --------------------------

def keep_programs() -> None:
    """Let JAX keep compiled programs in `cache_dir()/jax`.

    Nothing changes where `JAX_COMPILATION_CACHE_DIR` is set.

    Raises:
        UserError: JAX finds no device to run programs on.
    """
    import jax

    from dflash_lite.checkpoints import UserError, cache_dir

    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:
        asked = os.environ.get("JAX_PLATFORMS")
        reason = (str(error).splitlines() or ["no reason given"])[0]
        raise UserError(
            f"JAX finds no device ({reason:.120}), and JAX_PLATFORMS is "
            f"{asked!r:.60}; expected cpu, or a device with its jax installed."
        ) from None
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    jax.config.update("jax_compilation_cache_dir", str(cache_dir() / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def silence() -> None:
    """Keep warnings of libraries from the terminal; call it before JAX loads.

    Python's own switches (`-W`, `PYTHONWARNINGS`) and the C++ one win.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    logging.getLogger("jax").setLevel(logging.CRITICAL)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")


# The answer
# ----------

@dataclass(frozen=True)
class Settings:
    """The options of the command, as `load` and `generate` take them."""

    model: str = "smollm2-135m"
    dtype: str = "float32"
    max_new_tokens: int = 256
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    chat: bool = True
    system: str | None = None


class News(NamedTuple):
    """What the working thread reports."""

    stage: str | None = None  # it begins with this; "": nothing to show
    piece: str = ""  # more text
    so_far: Any = None  # the Generation up to here


def snapshot(generation: Any) -> Any:
    """A copy of a `Generation` that the other thread does not change."""
    return replace(
        generation,
        tokens=generation.tokens[:],
        statistics=replace(generation.statistics),
    )


def answer(prompt: str, settings: Settings) -> Iterator[News]:
    """Load the model and let it answer.

    Raises:
        UserError: there is no such model, or the prompt does not fit.
        typer.BadParameter: a setting is impossible.
    """
    yield News(stage="Starting")
    from dflash_lite import checkpoints, decoding, transformer

    keep_programs()
    options = asdict(settings)
    name, dtype = options.pop("model"), options.pop("dtype")
    checked = ("max_new_tokens", "temperature", "top_k", "top_p", "seed")
    try:
        decoding.check_settings(*(options[key] for key in checked))
    except checkpoints.UserError as error:
        raise typer.BadParameter(str(error)) from None
    if settings.system is not None and not settings.chat:
        raise typer.BadParameter("--raw has no chat, so leave out --system.")
    yield News(stage="")  # a download shows a bar of its own
    checkpoint = checkpoints.open_checkpoint(name)
    yield News(stage=f"Loading {name}")
    model = transformer.from_checkpoint(checkpoint, dtype)
    tokenizer = checkpoint.tokenizer
    stream = decoding.generate(model, tokenizer, prompt, **options, stream=True)
    yield News(stage="Answering", so_far=snapshot(stream.result))
    for piece in stream:
        yield News(piece=piece, so_far=snapshot(stream.result))
    yield News(so_far=snapshot(stream.result))


def follow(news: Iterator[News], quiet: bool) -> Any:
    """Show news as it comes; return the last `Generation`.

    Args:
        news: from `answer`.
        quiet: do not write the text.

    Raises:
        KeyboardInterrupt: Ctrl-C, before there was anything to return.
    """
    last = None
    terminal = Console(stderr=True, force_terminal=sys.stderr.isatty())
    status = terminal.status("", spinner="line")
    try:
        for item in news:
            last = item.so_far or last
            if item.stage and not terminal.is_dumb_terminal:
                status.update(item.stage)
                status.start()
            elif item.stage == "":
                status.stop()
            if item.piece and not quiet:
                status.stop()
                print(item.piece, end="", flush=True)
    except KeyboardInterrupt:
        if last is None:
            raise
    finally:
        status.stop()
    return last


def summary(generation: Any) -> str:
    """One line about an answer: tokens, seconds, tokens per second."""
    cost = generation.statistics
    line = f"{cost.new_tokens} token" + "s" * (cost.new_tokens != 1)
    if cost.decode_tokens:
        line += f" in {cost.decode_seconds:.2f} s, "
        line += f"{cost.tokens_per_second:.1f} tokens per second"
    line += f", after {cost.prefill_seconds:.2f} s for the prompt"
    if cost.compile_seconds:
        line += f" and {cost.compile_seconds:.2f} s of compiling"
    ends = {"stop": "", "length": "; cut at the limit"}
    return line + ends.get(generation.finish_reason, "; interrupted")


def as_json(generation: Any, settings: Settings) -> str:
    """The answer and all that led to it, as a JSON object in ASCII."""
    options = asdict(settings)
    record = {"model": options.pop("model")} | asdict(generation)
    speed = generation.statistics.tokens_per_second
    record["statistics"]["tokens_per_second"] = speed
    return json.dumps(record | {"settings": options})


# The command
# -----------

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def show_version(wanted: bool) -> None:
    """Print the version and end, if wanted."""
    if wanted:
        print("dflash-lite", metadata.version("dflash_lite"))
        raise typer.Exit()


@app.callback()
def options(
    version: bool = typer.Option(
        False,
        "--version",
        help="Show the version.",
        callback=show_version,
        is_eager=True,
    ),
) -> None:
    """A language model on your machine, from the book dflash_lite."""


@app.command("generate")
def generate_command(
    prompt: str = typer.Argument(
        None, help="The prompt (quoted), or - for standard input."
    ),
    model: str = typer.Option(
        "smollm2-135m", help="A name, a .gguf file, a folder, or a Hub id."
    ),
    max_new_tokens: int = typer.Option(256, min=0, help="At most so many."),
    temperature: float = typer.Option(0.0, help="0 takes the likeliest token."),
    top_k: int = typer.Option(
        None, min=1, help="With a temperature: of the k likeliest."
    ),
    top_p: float = typer.Option(
        None, help="With a temperature: of this much probability."
    ),
    seed: int = typer.Option(0, help="The same seed gives the same text."),
    chat: bool = typer.Option(
        True, "--chat/--raw", help="Ask a question, or continue a text."
    ),
    system: str = typer.Option(None, help="The system message of the chat."),
    dtype: Literal["float32", "bfloat16"] = typer.Option(
        "float32", help="Numbers of the weights."
    ),
    as_object: bool = typer.Option(
        False, "--json", help="Print one JSON object."
    ),
) -> None:
    """Let the model answer a prompt."""
    settings = Settings(
        model,
        dtype,
        max_new_tokens,
        temperature,
        top_k,
        top_p,
        seed,
        chat,
        system,
    )
    with exit_codes():
        silence()
        text = read_prompt(prompt)
        news = in_background(answer(text, settings))
        finish(follow(news, quiet=as_object), settings, as_object)


def finish(generation: Any, settings: Settings, as_object: bool) -> None:
    """Complete the output of `generate`; end with code 130 after Ctrl-C."""
    if as_object:
        print(as_json(generation, settings))
    else:
        if generation.text and not generation.text.endswith("\n"):
            print(flush=True)
        say(summary(generation))
    if generation.finish_reason == "interrupted":
        leave(128 + signal.SIGINT)


# The doctor
# ----------

class Problem(NamedTuple):
    """Something that the doctor found."""

    what: str
    remedy: str  # mostly a command
    must: bool = True  # False: it works as it is, but could be better


PACKAGES = (
    "dflash_lite jax jaxlib flax numpy tokenizers safetensors gguf "
    "huggingface_hub"
).split()


def installed(package: str) -> str | None:
    """The version of an installed package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def unmet(requirements: list[str]) -> Iterator[Problem]:
    """The requirements that this environment does not meet."""
    from packaging.requirements import Requirement

    for text in requirements:
        wanted = Requirement(text)
        if wanted.marker and not wanted.marker.evaluate({"extra": ""}):
            continue
        version = installed(wanted.name)
        if not version or not wanted.specifier.contains(
            version, prereleases=True
        ):
            what = f"{wanted.name} is {version or 'missing'}, needed is {text}"
            yield Problem(what, f'{sys.executable} -m pip install "{text}"')


ACCELERATORS = {
    "gpu": ("/dev/nvidiactl", 'pip install "jax[cuda12]"'),
    "tpu": ("/dev/accel0", 'pip install "jax[tpu]"'),
}


def devices() -> list[dict[str, Any]]:
    """The devices that JAX uses; memory in bytes where JAX knows it."""
    import jax

    return [
        {
            "platform": device.platform,
            "kind": device.device_kind,
            "memory": (device.memory_stats() or {}).get("bytes_limit"),
        }
        for device in jax.devices()
    ]


def idle(platforms: set[str]) -> Iterator[Problem]:
    """Accelerators of this machine that are not among JAX's platforms."""
    for kind, (path, remedy) in ACCELERATORS.items():
        if Path(path).exists() and kind not in platforms:
            what = f"There is a {kind.upper()} here that JAX does not use"
            yield Problem(what, f"{sys.executable} -m {remedy}", must=False)


def features() -> dict[str, bool]:
    """Which number types the first device computes with."""
    import jax.numpy as jnp

    def works(dtype: str) -> bool:
        try:
            ones = jnp.ones((8, 8), dtype)
            return bool((ones @ ones == 8).all())
        except Exception:
            return False

    return {dtype: works(dtype) for dtype in ("float32", "bfloat16")}


def memory() -> tuple[int, int | None]:
    """Bytes of memory in all, and free ones where the system tells."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return total, min(total, int(line.split()[1]) * 1024)
    return total, None


def cache() -> dict[str, Any]:
    """The cache folder: its path, bytes used, bytes free, and known models."""
    from dflash_lite import checkpoints
    from dflash_lite.checkpoints import PACKAGED, WEIGHTS, cache_dir

    def state(path: Path, whole: Callable[[], bool]) -> str:
        try:
            if not path.exists():
                return "not there"
            return "whole" if whole() else "damaged"
        except (OSError, ValueError):
            return "not readable"

    def packaged(name: str) -> str:
        path, known = cache_dir() / PACKAGED[name].name, PACKAGED[name]
        return state(path, lambda: checkpoints.is_intact(path, known))

    def ours(name: str) -> str:
        if checkpoints.own_folder(name).is_dir():
            return "in the checkout"
        path, known = cache_dir() / "weights" / name, WEIGHTS[name]
        return state(path, lambda: checkpoints.weights_intact(path, known))

    def bytes_of(path: Path) -> int:
        try:
            return path.stat().st_size if path.is_file() else 0
        except OSError:  # gone, or somebody else's
            return 0

    folder = cache_dir()
    there = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    return {
        "folder": str(folder),
        "writable": there.is_dir() and os.access(there, os.W_OK),
        "used": sum(map(bytes_of, folder.rglob("*"))),
        "free": shutil.disk_usage(there).free,
        "models": {name: packaged(name) for name in PACKAGED},
        "weights": {name: ours(name) for name in WEIGHTS},
    }


NEEDED_MEMORY = 1_500_000_000  # bytes, to load smollm2-135m and run it


def shortages(
    cache: dict[str, Any], available: int | None
) -> Iterator[Problem]:
    """What is wrong with the cache folder and the memory."""
    from dflash_lite.checkpoints import PACKAGED

    elsewhere = "export DFLASH_LITE_CACHE=/a/folder/with/room"
    if not cache["writable"]:
        yield Problem(
            f"The folder {cache['folder']} is not writable", elsewhere
        )
    for name, state in cache["models"].items():
        needed = 2 * PACKAGED[name].size
        if state == "damaged":
            yield Problem(
                f"The file of {name} is damaged",
                f"dflash-lite generate --model {name} Hi  # fetches it again",
            )
        if state == "not readable":
            yield Problem(f"The file of {name} is not readable", elsewhere)
        if state != "whole" and cache["free"] < needed:
            yield Problem(
                f"{name} needs {size(needed)} of disk, "
                f"{size(cache['free'])} are free",
                elsewhere,
            )
    for name, state in cache["weights"].items():
        if state in ("damaged", "not readable"):
            again = f"import dflash_lite; dflash_lite.fetch({name!r})"
            yield Problem(
                f"The files of {name} are {state}",
                f'python -c "{again}"  # fetches them again',
            )
    if available is not None and available < NEEDED_MEMORY:
        yield Problem(
            f"Free memory is {size(available)}, "
            f"needed is {size(NEEDED_MEMORY)}",
            "close other programs and notebooks",
        )


def size(count: int) -> str:
    """A number of bytes, for people."""
    return f"{count / 1e9:.1f} GB"


def examine() -> tuple[dict[str, Any], list[Problem]]:
    """All findings about this machine, and what to mend."""
    problems = list(unmet(metadata.requires("dflash_lite") or []))
    total, available = memory()
    packages = {name: installed(name) for name in PACKAGES}
    report: dict[str, Any] = {
        "versions": {"python": platform.python_version()} | packages,
        "machine": {"cores": cores(), "memory": total, "available": available},
    }
    try:
        report["devices"], report["features"] = devices(), features()
        problems += idle({device["platform"] for device in report["devices"]})
    except (ImportError, RuntimeError) as error:
        remedy = f"{sys.executable} -m pip install --upgrade jax jaxlib"
        if os.environ.get("JAX_PLATFORMS"):
            remedy = "unset JAX_PLATFORMS"
        problems.append(Problem(f"JAX does not start: {error}", remedy))
    try:
        report["paged_attention"] = page_way(report.get("devices", ()))
        report["cache"] = cache()
        problems += shortages(report["cache"], available)
    except ImportError as error:
        remedy = f"{sys.executable} -m pip install --upgrade dflash_lite"
        problems.append(Problem(f"The package does not load: {error}", remedy))
    return report, problems


def page_way(devices: Sequence[dict[str, Any]]) -> str:
    """How attention over pages is computed here, and why."""
    from dflash_lite.paged_attention import page_reader

    platform = devices[0]["platform"] if devices else "cpu"
    return ": ".join(page_reader(platform))


def cores() -> int:
    """The processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def describe(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The findings as names and values."""
    for package, version in report["versions"].items():
        yield package, version or "missing"
    for device in report.get("devices", ()):
        room = f", {size(device['memory'])}" if device["memory"] else ""
        yield "device", f"{device['platform']} ({device['kind']}{room})"
    for feature, works in report.get("features", {}).items():
        yield feature, "works" if works else "does not work"
    if way := report.get("paged_attention"):
        yield "paged attention", way
    machine = report["machine"]
    yield "cores", str(machine["cores"])
    free = machine["available"]
    free = f", {size(free)} free" if free is not None else ""
    yield "memory", size(machine["memory"]) + free
    if cache := report.get("cache"):
        yield "cache folder", cache["folder"]
        yield "disk", f"{size(cache['used'])} used, {size(cache['free'])} free"
        yield from cache["models"].items()
        yield from cache["weights"].items()
        absent = [
            name for name, state in cache["models"].items() if state != "whole"
        ]
        once = f"needed once, to get {', '.join(absent)}"
        yield "network", once if absent else "not needed"


@app.command()
def doctor(
    as_object: bool = typer.Option(
        False, "--json", help="Print one JSON object."
    ),
) -> None:
    """Say what this machine has, and what to mend."""
    with exit_codes():
        silence()
        findings = in_background(look() for look in [examine])
        report, problems = next(findings)
        if as_object:
            found = [problem._asdict() for problem in problems]
            print(json.dumps(report | {"problems": found}))
        else:
            for name, value in describe(report):
                print(f"{name:16}{value}")
            print("\nTo mend:" if problems else "\nNothing to mend.")
            for what, remedy, must in problems:
                print(
                    f"  {what}{'' if must else ' (it works without)'}:\n"
                    f"    {remedy}"
                )
    if any(problem.must for problem in problems):
        raise typer.Exit(1)


def main() -> None:
    """The command `dflash-lite`; it ends the process."""
    interrupt_once()
    prepare_output()
    with exit_codes():
        app(prog_name="dflash-lite")
