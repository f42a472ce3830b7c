"""From chapters to package, notebooks and the learner's edition, on small chapters."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
import urllib.request
from pathlib import Path

import jupytext
import nbformat
import pytest

import address
import notebooks
import student
import tangle
from chapters import Problem, chapter_paths, read_chapter, run_tool

ROOT = Path(__file__).resolve().parent.parent

HEADER = """\
# ---
# jupyter:
#   dflash_lite:
#     module: {module}
#     public:{public}
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---
"""

COUNTING = '''
# %% [markdown]
# # 1. Counting
#
# How many [words](https://example.org) has a *text*?
#
# More prose.

# %% tags=["export"]
import re

# A word is letters.
WORD = re.compile("[a-z]+")

# %% [markdown]
# ## 1.1 Words
#
# Try it:

# %%
print(len(WORD.findall("one two")), "words")

# %% tags=["export"]
import re
from collections import Counter


def words(text: str) -> Counter:
    """How often each word stands in `text`."""
    return Counter(_split(text))


def _split(text: str) -> list[str]:
    return WORD.findall(text)  # letters only


# %% tags=["nbval-ignore-output"]
import time

time.time()
'''

RANKING = '''
# %% [markdown]
# # 2. Ranking
#
# Which word is the most common?

# %% tags=["export"]
import re
from collections import Counter

from dflash_lite.counting import words


def common(text: str) -> str:
    """The most common word of `text`; ValueError if it has none."""
    if not re.search("[a-z]", text):
        raise ValueError("no words")
    counts: Counter = words(text)
    return counts.most_common(1)[0][0]


# %%
common("a b b")

# %% [markdown]
# **Exercise 2.1** (1 min).

# %% tags=["exercise"]
def rare(text):
    """The least common word."""
    ### BEGIN SOLUTION
    return words(text).most_common()[-1][0]
    ### END SOLUTION


# %% tags=["check"]
def check(f):
    try:
        assert f("a b b") == "a"
    except NotImplementedError:
        print("rare: not written yet")
    else:
        print("rare: right")


check(rare)
'''


def write_chapter(root, number, module, text, public=()):
    path = root / "chapters" / f"{number:02}_{module}.py"
    path.parent.mkdir(exist_ok=True)
    header = HEADER.format(module=module, public="".join(f"\n#     - {name}" for name in public))
    path.write_text(header + text, encoding="utf-8")
    return path


def edit(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.fixture
def project(tmp_path):
    """A project of two chapters, with this project's machinery and nothing made yet."""
    return write_project(tmp_path)


def write_project(folder):
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "tools", folder / "tools", ignore=shutil.ignore_patterns("__*"))
    write_chapter(folder, 1, "counting", COUNTING, ["words", "WORD"])
    write_chapter(folder, 2, "ranking", RANKING, ["common"])
    return folder


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    project = write_project(tmp_path_factory.mktemp("made"))
    assert tangle.main([], project) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(project))
        assert notebooks.main([], project) == 0
    return project


@pytest.fixture
def made(made_once, tmp_path, monkeypatch):
    """The project with its package and notebooks made."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return shutil.copytree(made_once, tmp_path, dirs_exist_ok=True)


# The package
# -----------


def test_module_reads_as_written_by_hand(project):
    assert tangle.tangle(project)["dflash_lite/counting.py"] == '''\
"""Counting.

How many words has a text?

Made from chapters/01_counting.py by tools/tangle.py:
edit the chapter, not this file.
"""

import re
from collections import Counter

__all__ = ["WORD", "words"]

# A word is letters.
WORD = re.compile("[a-z]+")


# Words
# -----

def words(text: str) -> Counter:
    """How often each word stands in `text`."""
    return Counter(_split(text))


def _split(text: str) -> list[str]:
    return WORD.findall(text)  # letters only
'''


def test_imports_come_once_in_three_groups(project):
    write_chapter(project, 3, "imports", '''
# %% [markdown]
# # Imports
#
# Lead.

# %% tags=["export"]
import jax.numpy as jnp
import numpy as np
import os.path
import jax, zlib
from typing import (
    Any,
    TypeVar as TV,
)

from dflash_lite.ranking import common
from dflash_lite.counting import words, WORD

# %% tags=["export"]
import jax.numpy as jnp
from flax import nnx
from typing import NamedTuple, Any
import os

T = TV("T")
ALL: list[Any] = [jnp, np, os.path, jax, zlib, common, words, WORD, nnx, NamedTuple, os]
''')
    assert '''
import os
import os.path
import zlib
from typing import Any, NamedTuple, TypeVar as TV

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from dflash_lite.counting import WORD, words
from dflash_lite.ranking import common

__all__ = ["T", "ALL"]

T =''' in tangle.tangle(project)["dflash_lite/imports.py"]


def test_many_names_are_folded(project):
    names = [f"a_rather_long_name_{i}" for i in range(5)]
    cells = "".join(f'\n# %% tags=["export"]\n{name} = {i}\n' for i, name in enumerate(names))
    write_chapter(project, 3, "many", "\n# %% [markdown]\n# # M\n#\n# Lead.\n" + cells)
    write_chapter(project, 4, "more", f'''
# %% [markdown]
# # More
#
# Lead.

# %% tags=["export"]
from dflash_lite.many import {", ".join(names)}

FIRST = {names[0]}
''')
    files = tangle.tangle(project)
    assert f"import (\n    {names[0]},\n" in files["dflash_lite/more.py"]
    assert f'__all__ = [\n    "{names[0]}",\n' in files["dflash_lite/many.py"]
    assert f"]\n\n{names[0]} = 0\n\n{names[1]} = 1\n" in files["dflash_lite/many.py"]
    for text in files.values():
        assert max(map(len, text.splitlines())) <= 88
        compile(text, "module", "exec")


def test_package_imports_lazily(project):
    assert tangle.main([], project) == 0
    code = """
import sys, dflash_lite
assert [m for m in sys.modules if m.startswith("dflash_lite.")] == []
assert dflash_lite.__all__ == ["words", "WORD", "common"]
assert set(dflash_lite.__all__) < set(dir(dflash_lite))
from dflash_lite import common
assert common("b b a") == "b" and common is dflash_lite.ranking.common
try:
    dflash_lite.nothing
except AttributeError as error:
    print(error)
"""
    env = {**os.environ, "PYTHONPATH": str(project)}
    run = subprocess.run([sys.executable, "-c", code], cwd=project, env=env,
                         capture_output=True, text=True)
    assert run.stdout == "module 'dflash_lite' has no attribute 'nothing'\n", run.stderr


def test_a_chapter_can_be_a_command(project, capsys):
    ranking = project / "chapters" / "02_ranking.py"
    edit(ranking, "#     module: ranking", "#     main: say\n#     module: ranking")
    assert tangle.main([], project) == 2
    assert "chapters/02_ranking.py:1: `main` names `say`" in capsys.readouterr().err
    command = '\n\n# %% tags=["export"]\ndef say() -> None:\n    """Say."""\n    print("said")\n'
    ranking.write_text(ranking.read_text() + command)
    assert tangle.main([], project) == 0
    run = subprocess.run([sys.executable, "-m", "dflash_lite"], cwd=project,
                         capture_output=True, text=True)
    assert run.stdout == "said\n", run.stderr
    counting = project / "chapters" / "01_counting.py"
    edit(counting, "#     module: counting", "#     main: words\n#     module: counting")
    assert tangle.main([], project) == 2
    assert "01_counting.py names a `main`, too" in capsys.readouterr().err
    for path, line in ((counting, "words"), (ranking, "say")):
        edit(path, f"#     main: {line}\n", "")
    assert tangle.main([], project) == 0
    assert not (project / "dflash_lite" / "__main__.py").exists()


def test_every_line_of_an_exported_cell_arrives(project):
    files = tangle.tangle(project)
    for path in chapter_paths(project):
        chapter = read_chapter(path, project)
        text = files[f"dflash_lite/{chapter.name}.py"]
        for cell in chapter.cells:
            if "export" in cell.tags:
                body = re.sub(r"^(import|from) .*\n", "", cell.source, flags=re.M).strip()
                assert body in text


BROKEN = [
    # (text of chapter 2, what replaces it, the line that is reported, the message)
    (
        "import re\n",
        "from __future__ import annotations\n",
        "from __future__ import annotations",
        "from __future__",
    ),
    ("import re\n", "from re import *\n", "from re import *", "star import"),
    ("import re\n", "from . import counting\n", "from . import counting", "relative import"),
    ("import re\n", "%time 1\n", "%time 1", "magic"),
    ("import re\n", "!ls\n", "!ls", "magic"),
    (
        "import re\n",
        "import re  # regular expressions\n",
        "import re  # regular expressions",
        "without their comment",
    ),
    ("import re\n", "# Regular expressions\nimport re\n", "import re", "without their comment"),
    ("import re\n", "import re; X = 1\n", "import re; X = 1", "one statement on a line"),
    ("import re\n", "import jax as re\nimport re\n", "import re", "imported twice"),
    ("import re\n", "print(1)\nimport re\n", "print(1)", "imports, definitions and constants"),
    (
        "import re\n",
        "A, B = 1, 2\nimport re\n",
        "A, B = 1, 2",
        "imports, definitions and constants",
    ),
    ("import re\n", "N: int\nimport re\n", "N: int", "imports, definitions and constants"),
    ("import re\n", "if True:\n    import re\n", "if True:", "imports, definitions and constants"),
    ("import re\n", "import re\nre.X = 1\n", "re.X = 1", "imports, definitions and constants"),
    ("import re\n", "import re\ntype X = int\n", "type X = int", "syntax error"),
    ("import re\n", "import re\nX = (\n", "X = (", "syntax error"),
    ("import re\n", "import re\nX = 1\nX = 2\n", "X = 2", "`X` is defined twice"),
    ("import re\n", "import re\nre = 1\n", "re = 1", "`re` is defined twice"),
    (
        "counting import words",
        "exercises import check",
        "from dflash_lite.exercises import check",
        "exercise checks",
    ),
    (
        "counting import words",
        "ranking import words",
        "from dflash_lite.ranking import words",
        "cannot import itself",
    ),
    (
        "counting import words",
        "serving import words",
        "from dflash_lite.serving import words",
        "made by a later chapter",
    ),
    (
        "counting import words",
        "nowhere import words",
        "from dflash_lite.nowhere import words",
        "no chapter makes",
    ),
    (
        "from dflash_lite.counting import words",
        "from dflash_lite import words",
        "from dflash_lite import words",
        "no chapter",
    ),
    (
        "import re\n",
        "import re\nimport dflash_lite\n",
        "import dflash_lite",
        "write `from dflash_lite.module",
    ),
    (
        "raise Val",
        "from dflash_lite.serving import x; raise Val",
        'from dflash_lite.serving import x; raise ValueError("no words")',
        "made by a later chapter",
    ),
    (
        '"""The most',
        'f"""The most',
        "def common(text: str) -> str:",
        "`common` is public and has no docstring",
    ),
    (
        "text: str) -> str",
        "text) -> str",
        "def common(text) -> str:",
        "`common` is public; `text` has no annotation",
    ),
    (
        "text: str) -> str",
        "text: str)",
        "def common(text: str):",
        "`common` is public; the result has no annotation",
    ),
    (
        "text: str) -> str",
        "text: str, *a) -> str",
        "def common(text: str, *a) -> str:",
        "`a` has no annotation",
    ),
    (
        "import re\n",
        "import re\nclass A:\n    x = 1\n",
        "class A:",
        "`A` is public and has no docstring",
    ),
    (
        "import re\n",
        'import re\nclass A:\n    """A."""\n\n    def __init__(self, n):\n        pass\n',
        "def __init__(self, n):",
        "`A.__init__` is public; `n` has no annotation",
    ),
    (
        "import re\n",
        "import re\nX = total\n",
        "X = total",
        "`total` is neither exported nor imported",
    ),
    (
        "words(text)\n",
        "words(total)\n",
        "counts: Counter = words(total)",
        "`total` is neither exported nor imported",
    ),
    (
        "counts: Counter",
        "counts: Nothing",
        "counts: Nothing = words(text)",
        "`Nothing` is neither exported nor imported",
    ),
    ("module: ranking", "module: sorting", "# ---", "the header says module 'sorting'"),
    ("- common", "- rank", "# ---", "`public` lists `rank`, which is not exported"),
    ("- common", "- words", "# ---", "`public` lists `words`, which is not exported"),
    ("# # 2. Ranking", "# Ranking", "# Ranking", "the first cell has a title"),
    ("# Which word is the most common?\n", "", "# # 2. Ranking", "the first cell has a title"),
    ('["exercise"]', '["exercise", "export"]', "def rare(text):", "an exercise is not exported"),
    ("# %% [markdown]\n# # 2.", '# %% [markdown] tags=["export"]\n# # 2.', "# # 2. Ranking",
     "an exported cell holds code"),
    ("\n# %% [markdown]\n# # 2.", "\nx = 1\n# %% [markdown]\n# # 2.", "# ---", "first `# %%` line"),
]


@pytest.mark.parametrize("old, new, line, message", BROKEN)
def test_broken_rule_is_found(project, capsys, old, new, line, message):
    write_chapter(project, 3, "serving", "\n# %% [markdown]\n# # Serving\n#\n# Lead.\n")
    write_chapter(project, 91, "exercises", "\n# %% [markdown]\n# # Checks\n#\n# Lead.\n")
    assert tangle.main([], project) == 0
    before = {p.name: p.read_text() for p in (project / "dflash_lite").iterdir()}
    edit(project / "chapters" / "02_ranking.py", old, new)
    edit(project / "chapters" / "01_counting.py", "# A word is", "# A long word is")
    capsys.readouterr()
    assert tangle.main([], project) == 2
    error = capsys.readouterr().err
    place = re.match(r"chapters/02_ranking\.py:(\d+): (?:cell \d+: )?(.*)", error)
    lines = (project / "chapters" / "02_ranking.py").read_text().splitlines()
    assert place and lines[int(place[1]) - 1].strip() == line, error
    assert message in place[2]
    assert {p.name: p.read_text() for p in (project / "dflash_lite").iterdir()} == before


def test_all_problems_are_reported_at_once(project, capsys):
    edit(project / "chapters" / "01_counting.py", "def words(text: str)", "def words(text)")
    edit(project / "chapters" / "02_ranking.py", "import re\n", "%time 1\n")
    assert tangle.main(["--check"], project) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2


@pytest.mark.parametrize("name", ["2_ranking.py", "02_Ranking.py", "02_two words.py"])
def test_file_name_of_a_chapter(project, name):
    path = project / "chapters" / "02_ranking.py"
    path.rename(path.with_name(name))
    with pytest.raises(Problem, match="NN_name.py"):
        tangle.tangle(project)


def test_two_chapters_of_one_name(project):
    write_chapter(project, 3, "counting", COUNTING.replace("WORD", "W").replace("words", "w"))
    with pytest.raises(Problem, match="two chapters make dflash_lite.counting"):
        tangle.tangle(project)


def test_public_name_is_offered_once(project):
    chapter = project / "chapters" / "02_ranking.py"
    edit(chapter, "import re\n", "import re\ncounting = 1\n")
    edit(chapter, "- common", "- counting")
    with pytest.raises(Problem, match="`counting` is taken"):
        tangle.tangle(project)


def test_stale_module_fails_the_check_with_a_diff(project, capsys):
    assert tangle.main([], project) == 0
    assert tangle.main(["--check"], project) == 0
    module = project / "dflash_lite" / "counting.py"
    edit(module, "letters only", "edited by hand")
    capsys.readouterr()
    assert tangle.main(["--check"], project) == 1
    error = capsys.readouterr().err
    assert "\n-    return WORD.findall(text)  # edited by hand\n" in error
    assert "\n+    return WORD.findall(text)  # letters only\n" in error
    assert error.endswith("`make package` writes the package anew.\n")
    assert "edited by hand" in module.read_text()
    assert tangle.main([], project) == 0
    assert tangle.main(["--check"], project) == 0


def test_without_chapters_nothing_is_removed(made, capsys):
    (made / "chapters").rename(made / "elsewhere")
    before = sorted(path.name for path in (made / "dflash_lite").iterdir())
    capsys.readouterr()
    for tool in (tangle.main, notebooks.main):
        for flags in ([], ["--check"]):
            assert tool(flags, made) == 2
            assert capsys.readouterr().err.startswith("chapters/ has no chapters; expected")
    assert student.main(made) == 2
    assert sorted(path.name for path in (made / "dflash_lite").iterdir()) == before


def test_files_that_are_no_text_are_named_or_replaced(project, capsys):
    assert tangle.main([], project) == 0
    module, other = (project / "dflash_lite" / name for name in ("counting.py", "old.py"))
    good = module.read_bytes()
    module.write_bytes(b"\xff" + good)
    other.write_bytes(b"\xff")
    capsys.readouterr()
    assert tangle.main(["--check"], project) == 1
    assert "old.py: no chapter makes this file" in capsys.readouterr().err
    assert tangle.main([], project) == 1
    assert module.read_bytes() == good and other.read_bytes() == b"\xff"


@pytest.mark.parametrize("old, new, message", [
    ("#   dflash_lite:", "#   dflash_lite: 3\n#   more:", "dflash_lite is 3 in the header"),
    ("#     public:\n#     - common", "#     public: 3", "`public` is 3; expected names"),
    ("#     public:\n#     - common", "#     public: [1, [2]]",
     "`public` is [1, [2]]; expected names"),
    ('tags=["export"]', "tags=[1, {}]", ""),
    ("import re\n", "import re\nX = " + "-" * 20_000 + "1\n", "nested too deeply"),
])  # fmt: skip
def test_a_damaged_header_or_cell_is_one_line(project, capsys, old, new, message):
    chapter = project / "chapters" / ("01_counting.py" if "re" in old else "02_ranking.py")
    edit(chapter, old, new)
    assert tangle.main([], project) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"chapters/{chapter.name}:") and message in error
    assert not (project / "dflash_lite").exists()


@pytest.mark.parametrize("text", ["[project]\n", "[project", '[project]\nurls = "x"\n'])
def test_a_project_without_an_address(project, capsys, text):
    (project / "pyproject.toml").write_text(text)
    assert student.main(project) == 2
    assert "pyproject.toml has no address" in capsys.readouterr().err


def test_module_without_a_chapter(project, capsys):
    assert tangle.main([], project) == 0
    (project / "chapters" / "02_ranking.py").unlink()
    made, own = project / "dflash_lite" / "ranking.py", project / "dflash_lite" / "own.py"
    own.write_text("x = 1\n")
    assert tangle.main(["--check"], project) == 1
    assert "dflash_lite/ranking.py: no chapter makes this file" in capsys.readouterr().err
    assert tangle.main([], project) == 1
    assert "dflash_lite/own.py: no chapter makes this file" in capsys.readouterr().err
    assert not made.exists() and own.exists()


def test_an_interrupted_write_leaves_the_old_file(project, monkeypatch):
    assert tangle.main([], project) == 0
    old = {p.name: p.read_text() for p in (project / "dflash_lite").iterdir()}
    edit(project / "chapters" / "01_counting.py", "letters only", "only letters")

    def fail(*args):
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError):
        tangle.main([], project)
    assert {p.name: p.read_text() for p in (project / "dflash_lite").iterdir()} == old


# The notebooks
# -------------


def pytest_run(project, *args, **env):
    """Run pytest in a project's copy, with nbval."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--color=no",
               "--nbval-current-env", *args]
    environment = {**os.environ, "PYTHONPATH": str(project), **env}
    environment.pop("PYTEST_ADDOPTS", None)
    run = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
    return run.returncode, run.stdout + run.stderr


LAX = "--nbval-lax", "chapters"
STRICT = (
    "--nbval", "--nbval-sanitize-with", "tools/sanitize.cfg",
    "chapters/01_counting.ipynb", "chapters/02_ranking.ipynb",
)  # fmt: skip


def test_notebooks_are_thin_and_the_same_each_time(made):
    path = made / "chapters" / "01_counting.ipynb"
    first = path.read_bytes()
    notebook = nbformat.reads(first.decode(), as_version=4)
    assert [c.id for c in notebook.cells[:2]] == ["badge", "install"]
    outputs = [c.outputs for c in notebook.cells if c.cell_type == "code"]
    assert outputs[2][0].text == "2 words\n"
    assert outputs[-1] == [], "the time of day is an ignored output"
    assert notebooks.main(["01"], made) == 0
    assert path.read_bytes() == first
    assert notebooks.main(["--check"], made) == 0


def test_pictures_and_warnings_stay_out():
    stream = nbformat.v4.new_output
    outputs = [
        stream("stream", name="stdout", text="a"),
        stream("stream", name="stderr", text="Warning"),
        stream("stream", name="stdout", text="b"),
        stream("display_data", data={"image/png": "…", "text/plain": "<Figure>"}),
    ]
    kept = notebooks.merge_streams(outputs)
    assert [dict(o.get("data", {}), text=o.get("text")) for o in kept] == [
        {"text": "ab"}, {"text/plain": "<Figure>", "text": None}
    ]


def test_stale_notebook_fails_the_check(made, capsys):
    edit(made / "chapters" / "01_counting.py", "Try it:", "Try this:")
    capsys.readouterr()
    assert notebooks.main(["--check"], made) == 1
    error = capsys.readouterr().err
    assert "\n-Try it:\n" in error and "\n+Try this:\n" in error
    assert "`make notebooks`" in error.splitlines()[-1]


@pytest.mark.parametrize("break_it, message", [
    (lambda path: path.unlink(), "missing"),
    (lambda path: path.write_text("{"), "not a notebook"),
    (lambda path: edit(path, '"execution_count": 2', '"execution_count": 2 '), "not as"),
    (lambda path: path.rename(path.with_name("07_gone.ipynb")), "its chapter is gone"),
    (lambda path: edit(path, '"nbval-ignore-output"', '"other"'), '-# %% code'),
])
def test_damaged_notebook_fails_the_check(made, capsys, break_it, message):
    break_it(made / "chapters" / "01_counting.ipynb")
    capsys.readouterr()
    assert notebooks.main(["--check"], made) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("damage", [
    lambda data: b"",
    lambda data: data[: len(data) // 2],
    lambda data: b"[]",
    lambda data: b"null",
    lambda data: b"{}",
    lambda data: b'{"cells": 1, "nbformat": 4, "nbformat_minor": 5}',
    lambda data: data.replace(b'"nbformat": 4', b'"nbformat": "x"'),
    lambda data: data.replace(b'"id":', b'"di":'),
    lambda data: data.replace(b'"nbformat_minor": 5', b'"nbformat_minor": 4'),
    lambda data: b"\x89PNG\xff\x00" * 100,
])
def test_a_file_that_is_no_notebook_is_named_in_one_line(made, capfd, recwarn, damage):
    path = made / "chapters" / "01_counting.ipynb"
    path.write_bytes(damage(path.read_bytes()))
    assert notebooks.main(["--check"], made) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert not recwarn.list
    assert line.startswith("chapters/01_counting.ipynb: ") and "make notebooks" in line


def test_notebook_of_a_chapter_that_stops(project, capsys):
    edit(project / "chapters" / "01_counting.py", "print(len(WORD", "print(1 / 0, len(WORD")
    assert notebooks.main(["01"], project) == 1
    error = capsys.readouterr().err
    assert "chapters/01_counting.py" in error and "ZeroDivisionError" in error
    assert not (project / "chapters" / "01_counting.ipynb").exists()


def test_unknown_name_is_refused(project, capsys):
    assert notebooks.main(["09"], project) == 2
    assert "01_counting, 02_ranking" in capsys.readouterr().err


def test_chapters_pass_as_written(made):
    code, text = pytest_run(made, *LAX)
    assert code == 0 and "8 passed" in text, text


def test_broken_chapter_and_wrong_solution_fail(made):
    edit(made / "chapters" / "01_counting.py", 'findall("one two"))', 'findall("one two") + 1)')
    edit(made / "chapters" / "02_ranking.py", "most_common()[-1]", "most_common()[0]")
    code, text = pytest_run(made, *LAX)
    assert code == 1 and "2 failed" in text, text
    assert "01_counting.py::Cell 1" in text and "TypeError" in text, text
    assert "02_ranking.py::Cell 3" in text, text


def test_changed_output_fails_strictly_and_a_warning_does_not(made):
    edit(made / "chapters" / "01_counting.ipynb", "2 words", "3 words")
    edit(made / "dflash_lite" / "counting.py", "import re\n",
         "import re\nimport sys\nprint('warning', file=sys.stderr)\n")
    code, text = pytest_run(made, *STRICT)
    assert code == 1 and "1 failed, 9 passed" in text, text
    assert "01_counting.ipynb::Cell 2" in text and "3 words" in text, text


SHOWING = '''
# %% [markdown]
# # 3. Showing
#
# What does a page show?

# %% tags=["nbval-ignore-output"]
from IPython.display import HTML, display

handle = display("before", display_id=True)

# %%
handle.update("after")
HTML("<b>bold</b>")

# %% tags=["nbval-ignore-output"]
from ipywidgets import Output

box = Output()
with box:
    print("gone")
box.clear_output()
with box:
    print("inside")
box
'''


def test_the_book_finds_what_the_tests_saw(made):
    from jupyter_cache import get_cache

    shutil.copytree(ROOT / "book" / "_ext", made / "book" / "_ext")
    write_chapter(made, 3, "showing", SHOWING)
    assert tangle.main([], made) == 0 and notebooks.main(["03"], made) == 0
    edit(made / "chapters" / "02_ranking.ipynb", "\"'b'\"", "\"'c'\"")
    sys.path.insert(0, str(ROOT / "book" / "_ext"))
    from pages import read

    def page(name):
        [folder] = (made / "build" / "jupyter-cache").iterdir()
        written = (made / "chapters" / f"{name}.py").read_text("utf-8")
        _, found = get_cache(folder).merge_match_into_notebook(read(written))
        return [cell.outputs for cell in found.cells if cell.cell_type == "code"]

    code, text = pytest_run(made, *STRICT[:-2], "--keep-outputs", "chapters")
    assert code == 1 and "1 failed" in text, text
    outputs = page("01_counting")
    assert outputs[1][0].text == "2 words\n" and float(outputs[3][0].data["text/plain"]) > 0
    (changed,), (bold,), (box,) = page("03_showing")
    assert "application/vnd.jupyter.widget-view+json" in box.data
    assert changed.data["text/plain"] == "'after'" and bold.data["text/html"] == "<b>bold</b>"
    with pytest.raises(KeyError):
        page("02_ranking")  # a cell has failed


def test_checks_are_strict_unless_told_otherwise(made):
    (made / "chapters" / "01_counting.py").write_text(
        HEADER.format(module="counting", public="")
        + "\n# %%\nimport os\nassert os.environ['DFLASH_LITE_CHECK'] == 'strict'\n"
    )
    env = {"DFLASH_LITE_CHECK": "lenient"}
    assert pytest_run(made, "--nbval-lax", "chapters/01_counting.py")[0] == 0
    assert pytest_run(made, "--nbval-lax", "chapters/01_counting.py", **env)[0] == 1


def test_pytest_without_nbval_runs_no_chapter(made):
    code, text = pytest_run(made, "chapters/01_counting.py")
    assert code == 5 and "no tests ran" in text


# The first cells of a notebook
# -----------------------------


def run_install(monkeypatch, returncode=0):
    """Run the install cell with a pip that does nothing; return its commands."""
    commands = []

    def run(command, **options):
        commands.append([str(word) for word in command[1:]])
        return subprocess.CompletedProcess(command, returncode if "install" in command else 0)

    monkeypatch.setattr(subprocess, "run", run)
    exec(notebooks.INSTALL.format(address="https://github.com/a/b"), {})
    return commands


def test_install_cell_does_nothing_elsewhere(monkeypatch):
    assert run_install(monkeypatch) == []


def test_install_cell_holds_every_installed_version_on_colab(monkeypatch):
    monkeypatch.setitem(sys.modules, "google.colab", sys)
    freeze, install = run_install(monkeypatch)
    assert freeze == ["-m", "pip", "list", "--format=freeze"]
    assert install[:5] == ["-m", "pip", "install", "-q", "-c"]
    assert install[6] == "dflash_lite @ git+https://github.com/a/b"


def test_install_cell_says_so_when_it_fails(monkeypatch):
    monkeypatch.setitem(sys.modules, "google.colab", sys)
    with pytest.raises(SystemExit, match="could not be installed"):
        run_install(monkeypatch, returncode=1)


# The learner's edition
# ---------------------


def test_learners_edition_runs_through(made):
    assert student.main(made) == 0
    path = made / "build" / "student" / "02_ranking.ipynb"
    notebook = nbformat.read(path, as_version=4)
    assert "most_common()[-1]" not in "".join(
        c.source for c in notebook.cells if c.cell_type == "code"
    )
    solution = next(c for c in notebook.cells if c.id.endswith("-solution"))
    assert "<details>" in solution.source and "most_common()[-1]" in solution.source
    assert "### " not in solution.source
    code, text = pytest_run(made, "--nbval-lax", "build/student", DFLASH_LITE_CHECK="lenient")
    assert code == 0 and "10 passed" in text, text
    notebooks.execute(notebook, path.parent, made)
    assert notebook.cells[-1].outputs[0].text == "rare: not written yet\n"


def edition(project):
    """The notebooks of the learner's edition, by name."""
    return {p.name: p.read_bytes() for p in (project / "build" / "student").glob("*.ipynb")}


def test_a_learners_work_is_kept(project, capsys):
    folder = project / "build" / "student"
    assert student.main(project) == 0
    made = edition(project)
    for number, work in enumerate([b"mine", b"more of mine"]):
        (folder / "02_ranking.ipynb").write_bytes(work)
        (folder / "mine.ipynb").write_bytes(b"all mine")
        capsys.readouterr()
        assert student.main(project) == 0
        said, _ = capsys.readouterr().out.splitlines()
        kept = f"02_ranking.mine{number or ''}.ipynb"
        assert said == f"kept your 02_ranking.ipynb as {kept}"
        assert edition(project)[kept] == work
    mine = {"02_ranking.mine.ipynb": b"mine", "02_ranking.mine1.ipynb": b"more of mine"}
    assert edition(project) == made | mine | {"mine.ipynb": b"all mine"}


def test_what_nobody_changed_is_replaced(project, capsys):
    assert student.main(project) == 0
    edit(project / "chapters" / "01_counting.py", "Try it:", "Try this:")
    capsys.readouterr()
    assert student.main(project) == 0
    assert len(edition(project)) == 2 and "kept" not in capsys.readouterr().out
    assert b"Try this:" in edition(project)["01_counting.ipynb"]


@pytest.mark.parametrize("text", ["", "[]", "{", "\x00"])
def test_a_list_of_made_files_that_is_lost_costs_nobody_their_work(project, capsys, text):
    assert student.main(project) == 0
    (project / "build" / "student" / ".made.json").write_text(text)
    (project / "build" / "student" / "01_counting.ipynb").write_bytes(b"mine")
    assert student.main(project) == 0
    assert edition(project)["01_counting.mine.ipynb"] == b"mine" and len(edition(project)) == 3


def test_pictures_of_the_edition_are_kept_too(project, capsys):
    for folder in ("chapters", "build/student"):
        (project / folder / "pictures").mkdir(parents=True)
        (project / folder / "pictures" / "a.svg").write_text(folder)
    assert student.main(project) == 0
    pictures = project / "build" / "student" / "pictures"
    found = {path.name: path.read_text() for path in pictures.iterdir()}
    assert found == {"a.svg": "chapters", "a.mine.svg": "build/student"}


def test_an_edition_that_was_stopped_is_made_again(project, capsys, monkeypatch):
    write = student.write_bytes

    def fail(path, data):
        if path.name == "02_ranking.ipynb":
            raise KeyboardInterrupt
        write(path, data)

    monkeypatch.setattr(student, "write_bytes", fail)
    with pytest.raises(KeyboardInterrupt):
        student.main(project)
    monkeypatch.undo()
    assert student.main(project) == 0
    assert "kept" not in capsys.readouterr().out and len(edition(project)) == 2


@pytest.mark.parametrize("old, new", [
    ("    ### END SOLUTION\n", ""),
    ("    ### BEGIN SOLUTION\n", ""),
    ("    ### BEGIN SOLUTION\n", "### BEGIN SOLUTION\n"),
])
def test_exercise_without_a_whole_solution(project, capsys, old, new):
    answers = project / "build" / "student" / "my_answers.ipynb"
    answers.parent.mkdir(parents=True)
    answers.write_text("{}")
    edit(project / "chapters" / "02_ranking.py", old, new)
    assert student.main(project) == 2
    assert "chapters/02_ranking.py" in capsys.readouterr().err
    assert [path.name for path in answers.parent.iterdir()] == [answers.name]


@pytest.mark.parametrize("tags", ['["export"', "export", '"export"'])
def test_tags_that_cannot_be_read(project, tags):
    path = project / "chapters" / "02_ranking.py"
    edit(path, '# %% tags=["export"]', f"# %% tags={tags}")
    with pytest.raises(Problem, match="02_ranking.py:[0-9]+: (unreadable tags|it cannot be read)"):
        read_chapter(path, project)


def test_a_chapter_that_is_no_text(project):
    path = project / "chapters" / "02_ranking.py"
    path.write_bytes(b"# %% \xff\xfe")
    with pytest.raises(Problem, match="02_ranking.py:1: it cannot be read"):
        read_chapter(path, project)
    path.unlink()
    path.mkdir()
    with pytest.raises(Problem, match="02_ranking.py:1: it cannot be read"):
        read_chapter(path, project)


def test_a_header_that_is_no_yaml(project):
    path = project / "chapters" / "02_ranking.py"
    edit(path, "module: ranking", "module: [")
    with pytest.raises(Problem, match="02_ranking.py:1: it cannot be read"):
        read_chapter(path, project)


@pytest.mark.parametrize("error, code, line", [
    (OSError(28, "No space left", "a.py"), 2, "[Errno 28] No space left: 'a.py'"),
    (KeyboardInterrupt(), 130, "Interrupted; what is written is whole."),
])  # fmt: skip
def test_a_tool_that_cannot_go_on_says_so_in_one_line(capsys, error, code, line):
    def main():
        raise error

    assert run_tool(main) == code
    assert capsys.readouterr().err.strip() == line


@pytest.mark.parametrize("make", [
    lambda project: tangle.main([], project),
    lambda project: notebooks.main(["02"], project),
    lambda project: notebooks.main(["--check", "02"], project),
    lambda project: student.main(project),
])
def test_every_tool_names_a_chapter_that_is_no_text(project, capsys, make):
    path = project / "chapters" / "02_ranking.py"
    path.with_suffix(".ipynb").write_text(nbformat.writes(nbformat.v4.new_notebook()))
    path.write_bytes(b"# %% \xff\xfe")
    assert make(project) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("chapters/02_ranking.py:1: it cannot be read")


# Exercise checks
# ---------------


@pytest.fixture
def check():
    from dflash_lite.exercises import check

    return check


def wrong(n):
    return n + 1


def test_check_names_the_mistake(check, capsys, monkeypatch):
    monkeypatch.delenv("DFLASH_LITE_CHECK", raising=False)

    def hole(n):
        raise NotImplementedError("your turn")

    @check(wrong)
    def _(f):
        if f(1) != 3:  # pytest would add to the message of an assertion
            raise AssertionError("add two")

    @check(wrong)
    def _(f):
        assert f(1) == 2

    @check(hole)
    def _(f):
        assert f(1) == 2

    @check(wrong)
    def _(f):
        f("text")

    assert capsys.readouterr().out == (
        "wrong: not right yet: add two\nwrong: right\nhole: not written yet\n"
        'wrong: stopped with TypeError: can only concatenate str (not "int") to str\n'
    )


def test_check_without_a_message_shows_the_assertion(check, capsys, monkeypatch):
    monkeypatch.delenv("DFLASH_LITE_CHECK", raising=False)
    code = "@check(wrong)\ndef _(f):\n    assert f(1) == 3\n"
    import linecache

    linecache.cache["cell"] = (len(code), None, code.splitlines(True), "cell")
    exec(compile(code, "cell", "exec"), {"check": check, "wrong": wrong})
    assert capsys.readouterr().out == "wrong: not right yet: assert f(1) == 3\n"


def test_check_raises_when_strict(check, monkeypatch):
    monkeypatch.setenv("DFLASH_LITE_CHECK", "strict")
    with pytest.raises(AssertionError, match="wrong: not right yet: add two"):

        @check(wrong)
        def _(f):
            assert f(1) == 3, "add two"


# The project's own chapters
# --------------------------


def test_made_files_are_up_to_date(capsys):
    """On each set of versions: what is made does not depend on them."""
    tangle.main(["--check"])
    notebooks.main(["--check"])
    assert capsys.readouterr().err == ""


def test_importing_the_package_loads_no_jax():
    code = "import sys, dflash_lite; print({'jax', 'flax', 'numpy'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "set()\n", run.stderr


def test_wheel_is_small_and_has_nothing_else():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["setuptools"] == {
        "packages": ["dflash_lite"],
        "package-data": {"dflash_lite": ["prompts.jsonl", "responses-*.safetensors"]},
    }
    files = [path for path in (ROOT / "dflash_lite").iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 1_000_000


def test_code_of_the_chapters_fits_80_columns():
    wide = [
        f"{chapter.path}:{cell.line + n}"
        for chapter in map(read_chapter, chapter_paths())
        for cell in chapter.cells
        if cell.kind == "code"
        for n, line in enumerate(cell.source.splitlines())
        if len(line) > 80
    ]
    assert wide == []


@pytest.mark.parametrize("path", chapter_paths(), ids=lambda path: path.stem)
def test_jupyterlab_saves_a_chapter_as_it_is_written(path):
    config = jupytext.config.load_jupytext_configuration_file(str(ROOT / "jupytext.toml"))
    text = path.read_text(encoding="utf-8")
    notebook = jupytext.reads(text, fmt="py:percent", config=config)
    saved = jupytext.writes(notebook, fmt="py:percent", config=config)
    assert saved == text, "write the header as JupyterLab does: see chapters/91_exercises.py"


@pytest.fixture
def lab(project, tmp_path):
    """JupyterLab as `make lab` starts it, in a small project: ask(path) and ask(path, put)."""
    pytest.importorskip("jupyterlab", reason="needs the extra `notebooks`")
    shutil.copy(ROOT / "jupytext.toml", project)
    dry = subprocess.run(["make", "-n", "lab", "LAB=--no-browser --allow-root --port=0"], cwd=ROOT,
                         capture_output=True, text=True, check=True).stdout
    command = dry[dry.index("JUPYTER_CONFIG_PATH"):].replace(str(ROOT), str(project))
    command = command.replace(".venv/bin/python", f"exec {sys.executable}")
    runtime = tmp_path / "runtime"
    env = {**os.environ, "HOME": str(tmp_path), "JUPYTER_RUNTIME_DIR": str(runtime)}
    with open(tmp_path / "lab.log", "w") as log:
        server = subprocess.Popen(command, shell=True, cwd=project, env=env, stdout=log, stderr=log)

    def ask(path, put=None):
        info = json.loads(next(runtime.glob("jpserver-*.json")).read_text())
        request = urllib.request.Request(
            f"http://127.0.0.1:{info['port']}/{path}",
            data=put and json.dumps(put).encode(),
            method="PUT" if put else "GET",
            headers={"Authorization": f"token {info['token']}"},
        )
        return json.load(urllib.request.urlopen(request))

    try:
        for _ in range(600):
            try:
                ask("api/status")
                break
            except (OSError, StopIteration, ValueError):
                assert server.poll() is None, (tmp_path / "lab.log").read_text()
                time.sleep(0.1)
        yield ask
    finally:
        server.terminate()
        server.wait()


def test_jupyterlab_opens_and_saves_chapters_as_notebooks(lab, project):
    settings = lab("lab/api/settings/@jupyterlab/docmanager-extension:plugin")
    viewers = settings["schema"]["properties"]["defaultViewers"]["default"]
    assert viewers == {"python": "Jupytext Notebook"}
    path = project / "chapters" / "01_counting.py"
    text = path.read_text()
    content = lab("api/contents/chapters/01_counting.py?type=notebook")["content"]
    kernel = lab("api/kernelspecs")["kernelspecs"]["python3"]["spec"]
    content["metadata"]["kernelspec"] = {
        "display_name": kernel["display_name"], "language": "python", "name": "python3"
    }
    content["metadata"]["language_info"] = {"name": "python", "version": "3.99"}
    for cell in content["cells"]:
        if cell["cell_type"] == "code":
            cell["metadata"]["execution"] = {"iopub.execute_input": "now"}
            cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "printed"}]
    put = {"type": "notebook", "format": "json", "content": content}
    lab("api/contents/chapters/01_counting.py", put)
    assert path.read_text() == text, "saving keeps the file's own form"
    assert "printed" in (project / "build" / "lab" / "01_counting.ipynb").read_text()
    assert not path.with_suffix(".ipynb").exists()
    again = lab("api/contents/chapters/01_counting.py?type=notebook")["content"]
    assert "printed" in json.dumps(again), "outputs come back"


# The public address
# ------------------


def test_address_changes_everywhere(made):
    (made / "README.md").write_text(
        "https://github.com/dflash-lite/dflash_lite/issues "
        "https://colab.research.google.com/github/dflash-lite/dflash_lite/blob/main/a.ipynb "
        "https://github.com/dflash-lite/dflash_lite-extra https://github.com/other/dflash_lite\n"
    )
    changed = address.change_address("https://github.com/someone/book.git", made)
    assert changed == ["README.md", "chapters/01_counting.ipynb", "chapters/02_ranking.ipynb",
                       "pyproject.toml"]
    assert notebooks.address(made) == "https://github.com/someone/book"
    assert notebooks.main(["--check"], made) == 0
    assert (made / "README.md").read_text() == (
        "https://github.com/someone/book/issues "
        "https://colab.research.google.com/github/someone/book/blob/main/a.ipynb "
        "https://github.com/dflash-lite/dflash_lite-extra https://github.com/other/dflash_lite\n"
    )


REFUSED = ["", "https://github.com/a", "http://x", "git@github.com:a/b", "https://github.com/a/.."]
REFUSED += ["https://gitlab.com/a/b", "https://github.com/a/b c", "https://github.com/a/b/tree/main"]
REFUSED += ["https://github.com/a/.git", "https://github.com/-a/b", "a/b", "https://github.com.x/a/b"]


@pytest.mark.parametrize("url", REFUSED)
def test_address_must_be_a_repository(project, capsys, url):
    before = (project / "pyproject.toml").read_text()
    assert address.main([url], project) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "expected https://github.com/OWNER/NAME" in line
    assert (project / "pyproject.toml").read_text() == before


@pytest.mark.parametrize("url", [
    "https://github.com/some-one/a.book", " https://github.com/some-one/a.book/ ",
    "https://github.com/some-one/a.book.git", "https://github.com/some-one/a.book.git//",
    "github.com/some-one/a.book",
])
def test_every_way_to_write_an_address(project, url):
    assert address.main([url], project) == 0
    assert notebooks.address(project) == "https://github.com/some-one/a.book"
    assert address.main([url], project) == 0, "the same again changes nothing"


@pytest.mark.parametrize("arguments", [[], ["https://github.com/a/b", "more"]])
def test_address_without_its_argument(capsys, arguments):
    with pytest.raises(SystemExit, match="2"):
        address.main(arguments)
    assert "URL" in capsys.readouterr().err


def test_a_file_that_is_no_text_stops_a_new_address_before_it_starts(project, capsys):
    (project / "A.md").write_text("https://github.com/dflash-lite/dflash_lite")
    (project / "README.md").write_bytes(b"\xff")
    assert address.main(["https://github.com/a/b"], project) == 2
    assert "README.md" in capsys.readouterr().err
    assert "dflash-lite/dflash_lite" in (project / "A.md").read_text()


def test_a_new_address_that_was_stopped_goes_on(project, monkeypatch, capsys):
    (project / "README.md").write_text("https://github.com/dflash-lite/dflash_lite")
    write = address.write_file

    def fail_at_once(path, text):
        if path.suffix == ".md":
            return write(path, text)
        raise OSError("disk full")

    monkeypatch.setattr(address, "write_file", fail_at_once)
    assert address.main(["https://github.com/a/b"], project) == 2
    assert capsys.readouterr().err == "disk full\n"
    monkeypatch.undo()
    (project / "z.md").write_text("https://github.com/dflash-lite/dflash_lite")
    assert address.main(["https://github.com/a/b"], project) == 0
    assert {p.read_text() for p in project.glob("*.md")} == {"https://github.com/a/b"}


# Pages
# -----


def test_every_page_says_the_same_of_a_chapters_time():
    """Its exercises, its lead, the README's sum, and instructors' table, without appendices."""
    readme = (ROOT / "README.md").read_text("utf-8")
    instructors = (ROOT / "book" / "instructors.md").read_text("utf-8")
    said = r"\*\*Time[.:]\*\* (\d+) minutes(?: to read and run, (\d+) minutes of exercises)?"
    for path in chapter_paths():
        text = path.read_text("utf-8").replace("\n# ", " ")
        read, work = (int(n or 0) for n in re.search(said, text).groups())
        assert sum(map(int, re.findall(r"\((\d+) minutes\)", text))) == work, path.name
        row = rf"\(chapters/{path.name}\) \|[^|]+\|[^|]+\| {read + work} \|"
        assert re.search(row, readme), path.name
        if path.name < "90":
            row = rf"^\| {int(path.name[:2])}\. [^|]+\| {read} min \| {work} min \|$"
            assert re.search(row, instructors, re.M), path.name
