"""The environment of the libraries that dflash_lite is compared with: .venv-peers.

They are optional: one that cannot be installed is reported with its reason. On Linux the
package index may offer torch with CUDA (gigabytes); to take the CPU build, run

    PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make bench

llama.cpp is compiled from source, once. `rm -r .venv-peers` tries everything again.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".venv-peers"
PEERS = {
    "transformers": ["torch==2.13.0", "transformers==5.24.0", "gguf==0.19.0", "accelerate==1.15.0"],
    "llama.cpp": ["llama-cpp-python==0.3.36"],
}
# llama.cpp's programs are not used here, and are most of the compiling
LEAN = " ".join(
    f"-D{part}=OFF"
    for part in ("LLAVA_BUILD", "LLAMA_BUILD_COMMON", "LLAMA_BUILD_TOOLS", "LLAMA_BUILD_SERVER")
)


def python() -> Path:
    """The Python of the peers' environment."""
    return FOLDER / "bin" / "python"


def run(command: list, **options) -> subprocess.CompletedProcess:
    return subprocess.run(command, capture_output=True, text=True, **options)


def set_up() -> dict[str, str]:
    """Install what is missing.

    Returns:
        For each peer "" if it is there, else why not.
    """
    stamp = FOLDER / "peers.json"
    state = json.loads(stamp.read_text("utf-8")) if stamp.exists() else {}
    if not python().exists():
        # the peers have wheels for the oldest Python that is supported; newer ones may wait
        find = run(["sh", ROOT / "tools/find_python.sh", "3.11", "3.12", "3.13"])
        chosen = find.stdout.strip() or sys.executable
        made = run([chosen, "-m", "venv", "--clear", FOLDER])
        if made.returncode:
            return dict.fromkeys(PEERS, f"no environment: {last_line(made.stderr)}")
    for name, wanted in PEERS.items():
        if state.get(name, {}).get("wanted") == wanted:
            continue
        print(f"Installing {name} for comparison: minutes, once.", file=sys.stderr)
        install = [python(), "-m", "pip", "install", "--disable-pip-version-check", *wanted]
        pip = run(install, env=os.environ | {"CMAKE_ARGS": LEAN}, stdin=subprocess.DEVNULL)
        reason = f"not installed: {last_line(pip.stderr)}" if pip.returncode else ""
        state[name] = {"wanted": wanted, "reason": reason}
        stamp.write_text(json.dumps(state, indent=1), "utf-8")
    return {name: state[name]["reason"] for name in PEERS}


def last_line(text: str) -> str:
    return ([line.strip() for line in text.splitlines() if line.strip()] or ["?"])[-1][:160]
