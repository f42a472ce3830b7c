"""The weights in the repository are what the package knows, and they fit together."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dflash_lite
from dflash_lite.checkpoints import SUMS, WEIGHTS, read_safetensors, sha256, weights_intact

ROOT = Path(__file__).parents[1]
FOLDERS = sorted(path.parent for path in (ROOT / "weights").glob("*/config.json"))
LARGEST = 80_000_000  # bytes, all together


def tool(root, *words):
    """Run tools/weights.py on a copy of the project."""
    code = f"""if True:
        import sys, pathlib
        sys.path.insert(0, {str(ROOT / "tools")!r})
        import weights
        sys.exit(weights.main({list(words)!r}, pathlib.Path({str(root)!r})))"""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


@pytest.fixture
def copy(tmp_path):
    """A project with one folder of weights and an empty table."""
    (tmp_path / "chapters").mkdir()
    (tmp_path / "chapters" / "01_checkpoints.py").write_text("a\nWEIGHTS: dict[str, str] = {}\nb\n")
    folder = tmp_path / "weights" / "small"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}\n")
    (folder / "README.md").write_text("a card")
    return tmp_path


def test_the_package_knows_every_folder():
    assert sorted(WEIGHTS) == [folder.name for folder in FOLDERS]
    found = tool(ROOT, "--check")
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_folder_is_whole_and_has_a_card(folder):
    assert weights_intact(folder, WEIGHTS[folder.name])
    assert (folder / "README.md").is_file()
    tensors = read_safetensors(folder / "model.safetensors")
    assert {str(array.dtype) for array in tensors.values() if array.ndim > 1} == {"bfloat16"}


def test_all_weights_together_are_small():
    size = sum(path.stat().st_size for folder in FOLDERS for path in folder.iterdir())
    assert size <= LARGEST, f"{size} bytes"


def test_the_tool_writes_lists_and_the_table(copy):
    assert tool(copy, "--check").returncode == 1
    assert not (copy / "weights" / "small" / SUMS).exists()
    assert tool(copy).returncode == 0
    folder = copy / "weights" / "small"
    names = {}
    exec((copy / "chapters" / "01_checkpoints.py").read_text().strip("ab\n"), names)
    assert names["WEIGHTS"] == {"small": sha256(folder / SUMS)}
    assert weights_intact(folder, names["WEIGHTS"]["small"])
    assert tool(copy, "--check").returncode == 0
    (folder / "README.md").write_text("another card")
    assert tool(copy, "--check").returncode == 0
    (folder / "config.json").write_text("{ }\n")
    found = tool(copy, "--check")
    assert found.returncode == 1 and "weights/small/SHA256SUMS is stale" in found.stdout
    assert tool(copy).returncode == 0 and tool(copy, "--check").returncode == 0


def test_weights_that_went_leave_the_table(copy):
    assert tool(copy).returncode == 0
    shutil.rmtree(copy / "weights")
    assert tool(copy, "--check").returncode == 1
    assert tool(copy).returncode == 0
    assert "{}" in (copy / "chapters" / "01_checkpoints.py").read_text()


def test_a_chapter_without_the_table_is_an_error(copy):
    (copy / "chapters" / "01_checkpoints.py").write_text("")
    found = tool(copy)
    assert found.returncode == 2 and "has no table" in found.stderr
    assert "Traceback" not in found.stderr


def test_tiny_does_what_its_card_says(monkeypatch):
    """40 problems of the generator in lab/, which no training has seen."""
    monkeypatch.syspath_prepend(str(ROOT / "lab"))
    import evaluate_target
    import textgen

    examples = [textgen.sample("math", 10_000 + i, "fresh") for i in range(40)]
    said = evaluate_target.answers(*dflash_lite.load("tiny"), examples)
    right = sum(map(textgen.check, examples, said))
    assert right >= 24, f"{right} of 40; the card's 82% give fewer than 24 once in 3,000 draws"


def drafters():
    return [folder.name for folder in FOLDERS if "-" in folder.name.removeprefix("smollm2-135m")]


@pytest.mark.parametrize("name", drafters())
def test_a_drafter_fits_its_target(name):
    target, _ = dflash_lite.load(name.rpartition("-")[0])
    load = dflash_lite.load_eagle if name.endswith("eagle") else dflash_lite.load_drafter
    load(name, target)
