"""What the tools share: reading chapters (jupytext percent files `chapters/NN_name.py`)."""

import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import jupytext
import nbformat

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "dflash_lite"
FILE_NAME = re.compile(r"\d\d_([a-z][a-z0-9_]*)\.py")


class Problem(Exception):
    """A broken rule in a chapter; the text starts with file, line and cell."""


@dataclass
class Cell:
    """One cell of a chapter. `line` is the line of its first source line."""

    number: int
    line: int
    kind: str
    source: str
    tags: list[str]


@dataclass
class Chapter:
    """One chapter file. `path` is relative to the root, with forward slashes."""

    path: str
    name: str
    header: dict
    cells: list[Cell] = field(default_factory=list)

    @property
    def number(self) -> str:
        return Path(self.path).name[:2]

    def problem(self, cell: Cell, line: int, message: str) -> Problem:
        """A problem at `line` (1-based) of the cell's source."""
        return Problem(f"{self.path}:{cell.line + line - 1}: cell {cell.number}: {message}")


def chapter_paths(root: Path = ROOT) -> list[Path]:
    """The chapter files in chapter order.

    Raises:
        Problem: there are none.
    """
    paths = sorted((root / "chapters").glob("*.py"))
    if not paths:
        raise Problem("chapters/ has no chapters; expected files NN_name.py: fetch them again")
    return paths


def parse(path: Path, root: Path = ROOT) -> tuple[str, nbformat.NotebookNode]:
    """A chapter's text, and the notebook that it is."""
    try:
        text = path.read_text(encoding="utf-8")
        return text, jupytext.reads(text, fmt="py:percent")
    except Exception as error:  # no text, no YAML, no notebook: each library has its own
        where = path.relative_to(root).as_posix()
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise Problem(f"{where}:1: it cannot be read: {reason}") from None


def read_chapter(path: Path, root: Path = ROOT) -> Chapter:
    """Read one chapter, with the line of each cell."""
    where = path.relative_to(root).as_posix()
    match = FILE_NAME.fullmatch(path.name)
    if not match:
        raise Problem(f"{where}:1: a chapter's file is called NN_name.py, in small letters")
    text, notebook = parse(path, root)
    header = notebook.metadata.get(PACKAGE, {})
    if not isinstance(header, dict):
        raise Problem(f"{where}:1: {PACKAGE} is {header!r:.60} in the header; expected entries")
    chapter = Chapter(where, match[1], dict(header))
    starts = [n for n, line in enumerate(text.splitlines(), 1) if re.match(r"# %%( |$)", line)]
    if len(starts) != len(notebook.cells):
        raise Problem(f"{where}:1: text between the header and the first `# %%` line")
    for number, (start, cell) in enumerate(zip(starts, notebook.cells), 1):
        tags = cell.metadata.get("tags", [])
        marker = text.splitlines()[start - 1]
        texts = isinstance(tags, list) and all(isinstance(tag, str) for tag in tags)
        if not texts or (not tags and re.search(r"\btags\b", marker)):
            raise Problem(f'{where}:{start}: unreadable tags; expected # %% tags=["export"]')
        chapter.cells.append(Cell(number, start + 1, cell.cell_type, cell.source, list(tags)))
    return chapter


def write_file(path: Path, text: str) -> None:
    """Replace a text file in one step; see `write_bytes`."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a file in one step, so that nobody reads half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        half.write_bytes(data)
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)


def run_tool(main: Callable[[], int]) -> int:
    """A tool's status; a full disk, a folder that cannot be written and Ctrl-C are one line."""
    try:
        return main()
    except OSError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nInterrupted; what is written is whole.", file=sys.stderr)
        return 130
