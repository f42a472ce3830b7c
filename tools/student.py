"""Make the learner's edition `build/student/`: notebooks with holes and folded solutions.

    python tools/student.py

In a cell tagged `exercise`, what stands between `### BEGIN SOLUTION` and `### END SOLUTION`
becomes a hole that raises NotImplementedError. The whole cell stands folded below.
"""

import re
import shutil
import sys
from pathlib import Path

import nbformat
from nbformat.v4 import new_markdown_cell

from chapters import ROOT, Problem, chapter_paths, write_file
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


def main(root: Path = ROOT) -> int:
    target = root / "build" / "student"
    try:
        notebooks = {path.stem: learners_edition(path, root) for path in chapter_paths(root)}
    except Problem as problem:
        print(problem, file=sys.stderr)
        return 2
    extra = [p for p in (root / "chapters").iterdir() if p.is_dir() and p.name[0] not in "._"]
    for folder in extra:
        shutil.copytree(folder, target / folder.name, dirs_exist_ok=True)
    for name, notebook in notebooks.items():
        write_file(target / f"{name}.ipynb", text_of(notebook))
    print(f"wrote {target.relative_to(root).as_posix()}/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
