"""Chapters as pages: how Sphinx reads them, shows their exercises and links to Colab."""

import hashlib
import re
import sys
from importlib import metadata
from pathlib import Path

import jupytext
import nbformat
from docutils import nodes

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from notebooks import colab_link  # noqa: E402
from student import MARKER, learners_edition  # noqa: E402

NOTEBOOK_LINK = re.compile(r"(\]\((?!\w+:)[^)\s]*)\.ipynb(?=[)#\s])")


def cache_folder():
    """Where jupyter-cache keeps the outputs.

    It keys on a chapter's own cells, so the folder's name stands for all else that shapes them: the
    package and the versions.
    """
    versions = [sys.version, metadata.version("jax"), metadata.version("flax")]
    fingerprint = hashlib.sha256(repr(versions).encode())
    for module in sorted((ROOT / "dflash_lite").glob("*.py")):
        fingerprint.update(module.read_bytes())
    return ROOT / "build" / "jupyter-cache" / fingerprint.hexdigest()[:16]


def read(text):
    """The notebook of a chapter, for myst-nb."""
    nb = jupytext.reads(text, fmt="py:percent")
    nb.metadata = nbformat.from_dict({"kernelspec": nb.metadata.kernelspec})
    for cell in nb.cells:
        tags = cell.metadata.get("tags", [])
        if "check" in tags:
            cell.metadata.tags = [*tags, "hide-input"]
            cell.metadata.mystnb = {
                "code_prompt_show": "Show the check",
                "code_prompt_hide": "Hide the check",
            }
    return nb


def link_to_pages(app, docname, source):
    """On GitHub and in Colab one reads notebooks, so links name them; pages are made from .py."""
    source[0] = NOTEBOOK_LINK.sub(r"\1.py", source[0])


def fold_solutions(app, doctree):
    """Show an exercise with its hole, the solution folded below; the page ran with the solution."""
    exercises = [
        node
        for node in doctree.findall(nodes.container)
        if node.get("nb_element") == "cell_code"
        and "exercise" in node["cell_metadata"].get("tags", [])
    ]
    if not exercises:
        return
    chapter = Path(app.env.doc2path(app.env.docname))
    holes = [
        cell.source
        for cell in learners_edition(chapter).cells
        if "exercise" in cell.metadata.get("tags", [])
    ]
    for exercise, hole in zip(exercises, holes, strict=True):
        block = next(exercise.findall(nodes.literal_block))
        solution = block.deepcopy()
        _fill(solution, MARKER.sub("", block.rawsource))
        _fill(block, hole)
        place = exercise.parent.index(exercise) + 1
        exercise.parent[place:place] = [
            nodes.raw("", '<details class="solution"><summary>Solution</summary>', format="html"),
            solution,
            nodes.raw("", "</details>", format="html"),
        ]


def _fill(block, text):
    block.rawsource = text
    block.children = []
    block += nodes.Text(text)


def add_colab_button(app, pagename, templatename, context, doctree):
    """A button to Colab on each chapter: the notebook lies beside the chapter, on main."""
    if not pagename.startswith("chapters/"):
        return
    context["header_buttons"].insert(
        0,
        {
            "type": "link",
            "url": colab_link(f"{pagename}.ipynb"),
            "tooltip": "Open this chapter in Google Colab",
            "text": "Colab",
            "icon": "fas fa-rocket",
            "label": "colab-button",
        },
    )


def setup(app):
    app.connect("source-read", link_to_pages)
    app.connect("doctree-read", fold_solutions)
    # After the theme, which makes the list of buttons.
    app.connect("html-page-context", add_colab_button, priority=900)
    return {"version": "1", "env_version": 1, "parallel_read_safe": True}
