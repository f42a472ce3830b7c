"""Make the learner's edition `build/student/`: notebooks with holes and folded solutions.

    python tools/student.py

In a cell tagged `exercise`, what stands between `### BEGIN SOLUTION` and `### END SOLUTION`
becomes a hole that raises NotImplementedError. The whole cell stands folded below.

A file that a learner has changed is moved aside first: NN_name.ipynb becomes NN_name.mine.ipynb.
What this tool wrote last it knows from `.made.json`, beside the notebooks.
"""

import hashlib
import itertools
import json
import re
import sys
from pathlib import Path

import nbformat
from nbformat.v4 import new_markdown_cell

from chapters import ROOT, Problem, chapter_paths, run_tool, write_bytes, write_file
from notebooks import build, text_of

SOLUTION = re.compile(r"^([ \t]+)### BEGIN SOLUTION\n.*?^[ \t]+### END SOLUTION$", re.S | re.M)
HOLE = r'\1raise NotImplementedError("your turn")'
MARKER = re.compile(r"^[ \t]*### (BEGIN|END) SOLUTION\n?", re.M)
FOLDED = "<details>\n<summary>Solution</summary>\n\n```python\n{code}\n```\n\n</details>"


def learners_edition(path: Path, root: Path = ROOT) -> nbformat.NotebookNode:
    """The notebook of a chapter with a hole for each solution.

    Raises:
        Problem: an exercise without a solution, or a solution that is not inside a function.
    """
    notebook = build(path, root)
    cells = []
    for cell in notebook.cells:
        if cell.id == "badge":  # it opens the edition with the solutions
            continue
        cells.append(cell)
        if "exercise" in cell.metadata.get("tags", []):
            with_hole, holes = SOLUTION.subn(HOLE, cell.source)
            if not holes or MARKER.search(with_hole):
                where = path.relative_to(root).as_posix()
                raise Problem(
                    f"{where}: an exercise has its solution between `### BEGIN SOLUTION` and "
                    f"`### END SOLUTION`, inside a function:\n{cell.source}"
                )
            code = MARKER.sub("", cell.source).rstrip()
            cells.append(new_markdown_cell(FOLDED.format(code=code), id=f"{cell.id}-solution"))
            cell.source = with_hole
    notebook.cells = cells
    return notebook


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def read_made(target: Path) -> dict[str, str]:
    """The hashes of the files that this tool wrote last, by their relative paths."""
    try:
        made = json.loads((target / ".made.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return made if isinstance(made, dict) else {}


def free_name(path: Path) -> Path:
    """NN_name.mine.ipynb, or with a number behind `mine` if that is there."""
    names = (f"{path.stem}.mine{n or ''}{path.suffix}" for n in itertools.count())
    return next(p for p in map(path.with_name, names) if not p.exists() and not p.is_symlink())


def keep_changed(path: Path, new: bytes, made: str | None) -> Path | None:
    """Move a file aside that is neither what was made last nor what will be; return where to."""
    if not path.exists() or (path.is_file() and sha256(path.read_bytes()) in (made, sha256(new))):
        return None
    return path.rename(free_name(path))


def main(root: Path = ROOT) -> int:
    target = root / "build" / "student"
    try:
        notebooks = {path.stem: learners_edition(path, root) for path in chapter_paths(root)}
    except Problem as problem:
        print(problem, file=sys.stderr)
        return 2
    files = {f"{name}.ipynb": text_of(book).encode() for name, book in notebooks.items()}
    extra = [p for p in (root / "chapters").iterdir() if p.is_dir() and p.name[0] not in "._"]
    for path in sorted(path for folder in extra for path in folder.rglob("*") if path.is_file()):
        files[path.relative_to(root / "chapters").as_posix()] = path.read_bytes()
    made = read_made(target)
    for name, data in files.items():
        kept = keep_changed(target / name, data, made.get(name))
        if kept:
            print(f"kept your {name} as {kept.name}")
        write_bytes(target / name, data)
        made[name] = sha256(data)
        write_file(target / ".made.json", json.dumps(made, indent=1) + "\n")
    print(f"wrote {target.relative_to(root).as_posix()}/")
    return 0


if __name__ == "__main__":
    sys.exit(run_tool(main))
