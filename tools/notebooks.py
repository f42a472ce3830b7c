"""Make the executed notebooks `chapters/NN_name.ipynb` from the chapters.

    python tools/notebooks.py [NAME …]    run the chapters and write their notebooks
    python tools/notebooks.py --check     exit 1 and show the difference if one is not up to date

A notebook has what the chapter has, below a badge and a cell that installs the package on
Colab. It is small and the same bytes each time: cell ids come from the content; pictures,
warnings and ignored outputs are left out. The check compares everything but the outputs, so it
runs nothing; `make test` runs the notebooks and compares the outputs.
"""

import argparse
import difflib
import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell

from chapters import ROOT, Problem, chapter_paths, parse, run_tool, write_file

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
COLAB = "https://colab.research.google.com"
BADGE = "[![Open in Colab]({colab}/assets/colab-badge.svg)]({link})"
INSTALL = """\
# On Colab, install the package beside what is there. Elsewhere, do nothing.
import subprocess
import sys

if "google.colab" in sys.modules:
    pip = [sys.executable, "-m", "pip"]
    with open("installed.txt", "w") as file:
        subprocess.run([*pip, "list", "--format=freeze"], stdout=file, check=True)
    package = "dflash_lite @ git+{address}"
    if subprocess.run([*pip, "install", "-q", "-c", file.name, package]).returncode:
        sys.exit("The package could not be installed: see pip's lines above.")"""
SETTINGS = {
    "DFLASH_LITE_CHECK": "strict",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
}


def address(root: Path = ROOT) -> str:
    """The repository's public address, from pyproject.toml.

    Raises:
        Problem: it is not there.
    """
    try:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        return project["urls"]["Repository"].rstrip("/")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise Problem(
            f"pyproject.toml has no address under project.urls.Repository ({error!r:.80})"
        ) from None


def colab_link(notebook: str, root: Path = ROOT) -> str:
    """The address that opens a notebook of the repository (a relative path) in Colab."""
    slug = address(root).removeprefix("https://github.com/")
    return f"{COLAB}/github/{slug}/blob/main/{notebook}"


def build(path: Path, root: Path = ROOT) -> nbformat.NotebookNode:
    """The notebook of a chapter, not yet run."""
    _, notebook = parse(path, root)
    link = colab_link(path.with_suffix(".ipynb").relative_to(root).as_posix(), root)
    top = [
        new_markdown_cell(BADGE.format(colab=COLAB, link=link), id="badge"),
        new_code_cell(
            INSTALL.format(address=address(root)), id="install", metadata={"tags": ["hide-input"]}
        ),
    ]
    seen: dict[str, int] = {}
    for cell in notebook.cells:
        cell.metadata.pop("lines_to_next_cell", None)  # blank lines of the .py file
        key = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:8]
        seen[key] = seen.get(key, 0) + 1
        cell.id = key if seen[key] == 1 else f"{key}-{seen[key]}"
    return nbformat.from_dict(
        {"cells": top + notebook.cells, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}
    )


def execute(notebook: nbformat.NotebookNode, folder: Path, root: Path = ROOT) -> None:
    """Run all cells in `folder`, with exercise checks that raise."""
    from nbclient import NotebookClient

    settings = {**SETTINGS, "JAX_COMPILATION_CACHE_DIR": str(root / "build" / "jax-cache")}
    NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute(env={**os.environ, **settings}, stderr=subprocess.DEVNULL)


def thin(notebook: nbformat.NotebookNode) -> None:
    """Leave out what changes from run to run, and pictures."""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            ignored = "nbval-ignore-output" in cell.metadata.get("tags", [])
            cell.outputs = [] if ignored else merge_streams(cell.outputs)
    notebook.metadata = nbformat.from_dict(METADATA)


def merge_streams(outputs: list) -> list:
    """One output for all that a cell prints; no warnings, no pictures."""
    kept: list = []
    printed = None
    for output in outputs:
        if output.output_type == "stream" and output.name == "stderr":
            continue
        if output.output_type == "stream" and printed:
            printed.text += output.text
            continue
        if output.output_type == "stream":
            printed = output
        output.get("data", {}).pop("image/png", None)
        output.get("data", {}).pop("image/jpeg", None)
        kept.append(output)
    return kept


def text_of(notebook: nbformat.NotebookNode) -> str:
    nbformat.validate(notebook)
    return nbformat.writes(notebook) + "\n"


def listing(notebook: nbformat.NotebookNode) -> list[str]:
    """All of a notebook but its outputs, as lines to compare."""
    lines = []
    for cell in notebook.cells:
        metadata = json.dumps(cell.metadata, sort_keys=True) if cell.metadata else ""
        lines += [f"# %% {cell.cell_type} {cell.id} {metadata}".rstrip()]
        lines += cell.source.splitlines()
    return [line + "\n" for line in lines]


def difference(path: Path, root: Path = ROOT) -> list[str]:
    """How the notebook beside a chapter differs from the one to be made, as lines."""
    target = path.with_suffix(".ipynb")
    name = target.relative_to(root).as_posix()
    if not target.exists():
        return [f"{name}: missing; make it with `make notebooks`\n"]
    try:
        text = target.read_text(encoding="utf-8")
        with warnings.catch_warnings(action="ignore"):  # what is wrong is said below
            old = nbformat.reads(text, as_version=4)
            nbformat.validate(old)
        listed = listing(old)
        thin(old)
    except Exception as error:  # no JSON, no notebook, no text: each library has its own
        reason = " ".join(str(error).split())
        return [f"{name}: not a notebook ({reason:.80}); make it with `make notebooks`\n"]
    lines = listed, listing(build(path, root))
    diff = list(difflib.unified_diff(*lines, name, f"{name} (from the chapter)"))
    if not diff and text_of(old) != text:
        return [f"{name}: not as tools/notebooks.py writes it; `make notebooks`\n"]
    return diff


def orphans(root: Path = ROOT) -> list[Path]:
    """Notebooks whose chapter is gone."""
    notebooks = sorted((root / "chapters").glob("*.ipynb"))
    return [path for path in notebooks if not path.with_suffix(".py").exists()]


def choose(names: list[str], root: Path = ROOT) -> list[Path]:
    """The chapters whose file name contains one of the names, or all of them."""
    paths = chapter_paths(root)
    for name in names:
        if not any(Path(name).stem in path.stem for path in paths):
            have = ", ".join(path.stem for path in paths)
            raise Problem(f"no chapter is called {name!r}; there are {have}")
    return [p for p in paths if not names or any(Path(name).stem in p.stem for name in names)]


def main(argv: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, show the difference")
    parser.add_argument("names", nargs="*", help="chapters (default: all)")
    args = parser.parse_args(argv)
    try:
        paths = choose(args.names, root)
    except Problem as problem:
        print(problem, file=sys.stderr)
        return 2
    stale, differs = 0, False
    for path in orphans(root):
        name = path.relative_to(root).as_posix()
        if args.check:
            print(f"{name}: its chapter is gone", file=sys.stderr)
            stale = 1
        else:
            path.unlink()
            print(f"removed {name}")
    for path in paths:
        try:
            if args.check:
                lines = difference(path, root)
                sys.stderr.writelines(lines)
                stale |= bool(lines)
                differs |= len(lines) > 1  # one line says itself what to do
                continue
            notebook = build(path, root)
            execute(notebook, path.parent, root)
        except Problem as problem:
            print(problem, file=sys.stderr)
            return 2
        except Exception as error:  # a cell's error, or a kernel that did not start or died
            message = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
            print(f"{path.relative_to(root).as_posix()}: {message}", file=sys.stderr)
            return 1
        thin(notebook)
        write_file(path.with_suffix(".ipynb"), text_of(notebook))
        print(f"wrote {path.with_suffix('.ipynb').relative_to(root).as_posix()}")
    if differs:
        print("`make notebooks` runs the chapters and writes them anew (NAMES=03 for one).",
              file=sys.stderr)
    return stale


if __name__ == "__main__":
    sys.exit(run_tool(main))
