"""Make or complete a virtual environment with this project in it; do nothing if it is complete.

    python tools/setup.py .venv [--extras "test book"] [--constraints FILE]

Needs only the standard library. Run it with the Python that the environment shall have
(tools/find_python.sh finds one). A stamp, written last, says for what the environment is
complete; without a stamp that fits, pip runs again and adds what is missing.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NEEDED_GB = 3
NO_NETWORK = (
    "NewConnectionError", "NameResolutionError", "ConnectTimeoutError", "ReadTimeoutError",
    "Failed to establish a new connection", "Temporary failure in name resolution",
    "Network is unreachable", "Connection refused", "ProxyError", "Max retries exceeded",
)


class Failure(Exception):
    """Why there is no environment, and what to do, in one line."""


def key(root: Path, constraints: Path | None) -> str:
    """Changes whenever an environment must be completed again."""
    parts = [sys.version.encode(), (root / "pyproject.toml").read_bytes(), bytes(root)]
    if constraints:
        parts.append(constraints.read_bytes())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def read_stamp(stamp: Path) -> dict:
    try:
        data = json.loads(stamp.read_text(encoding="utf-8"))
        texts = [*data["extras"], data["key"]]
        return data if all(isinstance(text, str) for text in texts) else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def works(python: Path) -> bool:
    """Whether an environment's Python runs, is of our version and has pip."""
    code = "import sys, pip; sys.exit(sys.version != sys.argv[1])"
    try:
        return not subprocess.run([python, "-c", code, sys.version], capture_output=True).returncode
    except OSError:
        return False


def remove_half_installed(folder: Path) -> None:
    """Forget packages that pip was writing when it was stopped: it writes INSTALLER at the end."""
    for info in folder.glob("lib/python*/site-packages/*.dist-info"):
        if not (info / "INSTALLER").exists() or not (info / "RECORD").exists():
            shutil.rmtree(info)


PARTS = {"bin", "include", "lib", "lib64", "share", "etc", "man", "pyvenv.cfg", "complete.json",
         ".gitignore", "CACHEDIR.TAG", ".lock"}  # the last ones: of venv and uv


def check_folder(folder: Path, usable: bool) -> None:
    """Make sure that nothing is lost when an environment is made here; a usable one stays."""
    if not folder.parent.is_dir():
        raise Failure(f"There is no folder {folder.parent}: make it first, or name another.")
    if folder.exists() and not folder.is_dir():
        raise Failure(f"{folder} is not a folder: name another.")
    found = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if found - PARTS and not usable:
        raise Failure(f"{folder} holds {min(found - PARTS)} and is no environment that works: move "
                      "that away, or name another.")


def check_disk(folder: Path, needed_gb: float) -> None:
    free = shutil.disk_usage(folder.parent).free / 1e9
    if free < needed_gb:
        raise Failure(f"The disk has {free:.1f} GB free and {folder.name} needs about {needed_gb} "
                      "GB: free some space and run the command again.")


def install(python: Path, target: str, constraints: Path | None, root: Path) -> None:
    command = [str(python), "-m", "pip", "install", "--no-input", "--disable-pip-version-check",
               "--no-compile",  # Python compiles what is imported: a small part, and later
               "-e", target,
               # a path, not an import hook: beside a clone of this name, a hook comes too late
               "--config-settings", "editable_mode=compat"]
    # a pip before 25.1 cannot say where a wheel lies without downloading it
    command += ["-c", str(constraints)] if constraints else ["pip>=25.1"]
    pip = subprocess.Popen(command, cwd=root, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, errors="replace")
    lines = []
    for line in pip.stdout:
        lines.append(line.rstrip())
        if sys.stderr.isatty():
            print(f"\r\x1b[K{line.strip()[:78]}", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    if pip.wait():
        raise Failure(explain(lines))


def explain(lines: list[str]) -> str:
    """What to do about a pip that failed, from what it printed."""
    text = "\n".join(lines)
    if "No space left on device" in text:
        return (f"The disk is full: the environment needs about {NEEDED_GB} GB here and in the "
                "folder for temporary files (TMPDIR). Free some space and run the command again.")
    if any(word in text for word in NO_NETWORK):
        return ("pip cannot reach the package index: connect to the network (behind a proxy, set "
                "HTTPS_PROXY; with a mirror, set PIP_INDEX_URL) and run the command again.")
    last = "\n".join(f"    {line}" for line in lines[-8:])
    return f"pip could not install the packages; its last lines:\n{last}"


def set_up(folder: Path, extras: set[str], constraints: Path | None, root: Path = ROOT) -> None:
    """Bring the environment `folder` to a state that has all `extras`.

    Raises:
        Failure: with one line that says what to do.
    """
    stamp, python = folder / "complete.json", folder / "bin" / "python"
    wanted, have = key(root, constraints), read_stamp(stamp)
    extras = extras | set(have.get("extras", []))
    usable = Path(sys.prefix) == folder or works(python)
    if usable and have == {"key": wanted, "extras": sorted(extras)}:
        return
    check_folder(folder, usable)
    check_disk(folder, NEEDED_GB if not usable else 1)
    stamp.unlink(missing_ok=True)
    if not usable:
        print(f"Making {folder.name} with Python {sys.version.split()[0]}.", file=sys.stderr)
        import venv

        try:
            venv.EnvBuilder(clear=True, symlinks=True, with_pip=True).create(folder)
        except (OSError, subprocess.CalledProcessError) as error:
            raise Failure(f"{folder} cannot be made: {error}") from None
    remove_half_installed(folder)
    names = ",".join(sorted(extras))
    print(f"Installing packages into {folder.name}: minutes the first time.", file=sys.stderr)
    install(python, f".[{names}]" if names else ".", constraints, root)
    stamp.write_text(json.dumps({"key": wanted, "extras": sorted(extras)}), encoding="utf-8")


def main(argv: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--extras", default="")
    parser.add_argument("--constraints", type=Path)
    args = parser.parse_args(argv)
    try:
        set_up(args.folder.absolute(), set(args.extras.split()),
               args.constraints and args.constraints.absolute(), root)
    except (Failure, OSError) as failure:  # a folder that cannot be written, a file that is gone
        print(failure, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted; the same command goes on from here.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
