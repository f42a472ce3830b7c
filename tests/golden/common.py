"""What the scripts that make the golden files share: the model file, its
checksum, and writing files that come out the same each time."""

import argparse
import gzip
import hashlib
import json
import os
import platform
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def model_path() -> Path:
    """The GGUF named on the command line, or the one in the cache folder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("gguf", nargs="?", type=Path, help=f"path of {MODEL}")
    path = parser.parse_args().gguf
    if path is None and "DFLASH_LITE_CACHE" in os.environ:
        path = next(Path(os.environ["DFLASH_LITE_CACHE"]).rglob(MODEL), None)
    if path is None:
        parser.error(f"give the path of {MODEL}, or set DFLASH_LITE_CACHE")
    if hashlib.sha256(path.read_bytes()).hexdigest() != SHA256:
        parser.error(f"{path} is not the {MODEL} that the goldens are made of")
    return path


def source(script: str, *packages: str, model: bool = True) -> dict:
    """The `source` entry: what made the file, out of what."""
    entry = {
        "script": Path(script).name,
        "python": platform.python_version(),
        "packages": {package: version(package) for package in packages},
    }
    if model:
        entry |= {"model": MODEL, "sha256": SHA256}
    return entry


def write_json(name: str, data: dict) -> None:
    """Write `data`, compressed when the name ends in .gz."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n"
    raw = text.encode()
    if name.endswith(".gz"):
        raw = gzip.compress(raw, mtime=0)
    (HERE / name).write_bytes(raw)
    print(f"{name}: {len(raw):,} bytes")


def read_json(name: str) -> dict:
    raw = (HERE / name).read_bytes()
    return json.loads(gzip.decompress(raw) if name.endswith(".gz") else raw)
