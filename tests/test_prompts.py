"""The benchmark's prompts: four sets, no two alike, and of lengths that a small model can read."""

import json
import re
import tomllib
from collections import Counter
from difflib import SequenceMatcher
from importlib.resources import files
from itertools import combinations
from pathlib import Path

import pytest

from dflash_lite.checkpoints import open_checkpoint

ROOT = Path(__file__).resolve().parent.parent
FILE = files("dflash_lite") / "prompts.jsonl"
LINES = FILE.read_bytes().decode("utf-8").splitlines()
ROWS = [json.loads(line) for line in LINES]

# Tokens of a prompt, without the chat template. In `copy` it holds the text to be copied.
LIMITS = {"chat": (10, 120), "code": (10, 120), "copy": (80, 400), "math": (10, 120)}
LEAST = 24  # prompts of a set


def words(text):
    """The words in lower case; runs of numbers and of names are one `0` and one `name` each."""
    kinds = []
    for word in re.findall(r"[^\W\d_]+|\d+", text):
        kind = "0" if word[0].isdigit() else "name" if word[0].isupper() else word.lower()
        if kind not in ("0", "name") or kinds[-1:] != [kind]:
            kinds.append(kind)
    return kinds


def runs(text, n):
    """Every n words in a row; a shorter text is one run."""
    every = words(text)
    return {tuple(every[i : i + n]) for i in range(max(1, len(every) - n + 1))}


def alike(first, second):
    """The share of words that two texts have in common, in the same order."""
    return SequenceMatcher(None, words(first), words(second), autojunk=False).ratio()


def test_each_line_is_an_object_of_a_prompt_and_its_set():
    for line, row in zip(LINES, ROWS):
        assert list(row) == ["prompt", "set"], line
        assert isinstance(row["prompt"], str) and row["set"] in LIMITS, line
        assert row["prompt"] == row["prompt"].strip() != "", line
        assert line == json.dumps(row, ensure_ascii=False), "one way to write it: small diffs"


def test_lines_end_as_on_unix():
    data = FILE.read_bytes()
    assert b"\r" not in data and data.endswith(b"}\n") and data.count(b"\n") == len(LINES)


def test_sets_are_in_order_and_large_enough():
    names = [row["set"] for row in ROWS]
    assert names == sorted(names)
    counts = Counter(names)
    assert counts.keys() == LIMITS.keys() and min(counts.values()) >= LEAST, counts


def test_what_counts_as_alike():
    first = "Tom has 12 red apples and gives 5 of them to Mia. How many are left?"
    again = "Ada Berg has 140 red  apples and gives 32 of them to Jo.\nHow many are left?"
    template = "Tom owns 12 old stamps and sells 5 of these to Mia. How many remain?"
    other = "Which of the numbers from 3 to 12 are prime? Give a reason."
    assert runs(first, 8) == runs(again, 8) and alike(first, again) == 1
    assert not runs(first, 8) & runs(template, 8) and alike(first, template) > 0.5
    assert not runs(first, 8) & runs(other, 8) and alike(first, other) < 0.4


def test_no_two_prompts_share_eight_words_in_a_row():
    home = {}
    for number, row in enumerate(ROWS, 1):
        for run in runs(row["prompt"], 8):
            before = home.setdefault(run, number)
            assert before == number, f"lines {before} and {number}: {' '.join(run)}"


def test_no_prompt_is_another_one_with_some_words_changed():
    share, lines = max(
        (alike(a["prompt"], b["prompt"]), (i, j))
        for (i, a), (j, b) in combinations(enumerate(ROWS, 1), 2)
    )
    assert share < 0.5, f"lines {lines}"


def test_prompts_open_in_many_ways():
    openings = Counter(" ".join(row["prompt"].lower().split()[:3]) for row in ROWS)
    assert max(openings.values()) <= 3, openings.most_common(3)


@pytest.fixture(scope="module")
def encode():
    return open_checkpoint("smollm2-135m").tokenizer.encode


@pytest.mark.parametrize("name", LIMITS)
def test_tokens_of_a_prompt(encode, name):
    least, most = LIMITS[name]
    for row in ROWS:
        if row["set"] == name:
            count = len(encode(row["prompt"]))
            assert least <= count <= most, f"{count} tokens: {row['prompt']}"


def test_the_wheel_takes_the_file_along():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["dflash_lite"]
    taken = {path.name for pattern in patterns for path in (ROOT / "dflash_lite").glob(pattern)}
    assert FILE.name in taken
    assert all(name.startswith("responses-") for name in taken - {FILE.name})
