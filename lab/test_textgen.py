import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import make_prompts
import oracle
import pytest
import textgen
from grammar import TEMPLATES
from textgen import KINDS, SPLITS, check, sample

HERE = Path(__file__).parent


def draw(kind, count, split="train", start=0):
    return [sample(kind, start + i, split) for i in range(count)]


def digest(count=100):
    """One digest of the first examples of every kind and split."""
    total = hashlib.sha256()
    for kind in KINDS:
        for split in SPLITS:
            for e in draw(kind, count if split != "fresh" else count // 10, split):
                total.update(repr(e).encode())
    return total.hexdigest()


def test_there_are_hundreds_of_templates_a_tenth_held_out():
    kinds = Counter(t.kind for t in TEMPLATES)
    assert len(TEMPLATES) >= 300 and min(kinds.values()) >= 100
    for kind in KINDS:
        trained, held = textgen.templates(kind, False), textgen.templates(kind, True)
        assert 0.08 < len(held) / (len(trained) + len(held)) < 0.12
        names = {t.name.rsplit("/", 1)[0] for t in trained}
        assert names >= {t.name.rsplit("/", 1)[0] for t in held}


def test_no_two_templates_share_their_question():
    asks = Counter((t.kind, t.ask, t.source) for t in TEMPLATES)
    assert max(asks.values()) == 1


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_every_math_answer_is_right(split):
    seen = set()
    for e in draw("math", 6000, split):
        assert e.answer == oracle.answer(e), e
        assert not oracle.false_sums(e.response), e
        assert not oracle.false_divisions(e.response), e
        seen.add(e.template)
    assert len(seen) == len(textgen.templates("math", split == "heldout"))


def run(code, call=None):
    scope = {}
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, scope)
        return repr(eval(call, scope)) if call else out.getvalue().strip()


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_every_code_output_is_what_python_says(split):
    for e in draw("code", 4000, split):
        text = e.prompt if "/program/" in e.template else e.response
        code = re.search(r"```python\n(.*?)\n```", text, re.S)[1]
        call = re.search(r"\n(\w+\(.*\)) -> ", e.response)
        if call:
            assert call[1] in e.prompt, e
        assert run(code, call and call[1]) == e.answer, e
        assert not oracle.false_sums(e.response), e


def test_oracles_can_fail():
    e = sample("math", 1)
    wrong = replace(e, prompt=re.sub(r"\d+", "17", e.prompt))
    assert oracle.answer(wrong) != e.answer
    assert oracle.false_sums("So 7 + 8 = 15. 4 + 3 + 1 = 9.") == ["4 + 3 + 1 = 9"]
    assert oracle.false_sums("Tens: 5 - 1 - 3 = 2.")
    assert oracle.false_divisions("So 9 / 2 = 4 remainder 2.")


@pytest.mark.parametrize("kind", KINDS)
def test_check_accepts_the_right_answer_only(kind):
    for e in draw(kind, 500):
        assert check(e, e.response), e
        assert check(e, e.response + "\n") or kind == "chat"
        assert not check(e, ""), e
        wrong = e.response.replace(e.answer.split("|")[0], "")
        assert not check(e, wrong), e


def test_a_prompt_has_one_response():
    seen = {}
    for kind in KINDS:
        for e in draw(kind, 8000):
            assert seen.setdefault(e.prompt, e.response) == e.response, e


def test_splits_share_no_prompt():
    """50,000 draws; train and fresh are disjoint by rule, held out by count."""
    prompts = {split: set() for split in SPLITS}
    for kind in KINDS:
        for split, count in zip(SPLITS, (12_000, 1_700, 3_000)):
            prompts[split] |= {e.prompt for e in draw(kind, count, split)}
    assert all(textgen.is_fresh(p) for p in prompts["fresh"])
    assert not any(textgen.is_fresh(p) for p in prompts["train"])
    assert not prompts["train"] & prompts["heldout"]
    assert not prompts["fresh"] & prompts["heldout"]


@pytest.mark.parametrize(("kind", "least"), [*zip(KINDS, (10**6, 10**6, 10**5))])
def test_there_are_very_many_prompts(kind, least):
    """Birthday estimate: n draws with c equal pairs mean n² / 2c prompts."""
    count = 30_000
    times = Counter(e.prompt for e in draw(kind, count))
    pairs = sum(c * (c - 1) // 2 for c in times.values())
    prompts = count**2 / 2 / max(pairs, 1)
    print(f"{kind}: at least {prompts:,.0f} prompts ({pairs} equal pairs)")
    assert prompts >= least


def test_the_vocabulary_is_closed():
    words = Counter()
    for kind in KINDS:
        for split in ("train", "heldout"):
            for e in draw(kind, 3000, split):
                words.update(re.findall("[A-Za-z]+", e.prompt + " " + e.response))
    print(len(words), "words")
    assert len(words) < 2000


def test_any_example_can_be_made_alone():
    late = sample("code", 12345, "fresh")
    draw("math", 20)
    assert sample("code", 12345, "fresh") == late


def test_all_python_versions_make_the_same_text():
    here = digest()
    script = f"import sys; sys.path.insert(0, {str(HERE)!r});"
    script += "import test_textgen; print(test_textgen.digest())"
    others = os.environ.get("TEXTGEN_PYTHONS", "").split(os.pathsep)
    found = [p for p in map(shutil.which, filter(None, others)) if p]
    for python in found or [sys.executable]:
        run = subprocess.run(
            [python, "-c", script.replace("import test_textgen;", STUB)],
            capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": "7"},
        )  # fmt: skip
        assert run.stdout.strip() == here, python


# Other interpreters may lack pytest: give the import something to hold on to.
STUB = (
    "import types; fake = types.ModuleType('pytest');"
    " fake.mark = types.SimpleNamespace(parametrize=lambda *a: lambda f: f);"
    " sys.modules.setdefault('pytest', fake); import test_textgen;"
)


def test_unknown_kinds_and_splits_are_named():
    with pytest.raises(ValueError, match="poems"):
        sample("poems", 0)
    with pytest.raises(ValueError, match="test"):
        sample("math", 0, "test")


def test_throughput_is_printed():
    for kind in KINDS:
        begin = time.perf_counter()
        draw(kind, 300, start=10**6)
        print(f"{kind}: {300 / (time.perf_counter() - begin):,.0f} a second")


def written(file, *words):
    make_prompts.main([str(file), *words])
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_prompt_files_hold_no_prompt_twice(tmp_path):
    train = written(tmp_path / "train.jsonl", "--count", "200")
    held = written(tmp_path / "held.jsonl", "--split", "heldout", "--count", "30",
                   "--without", str(tmp_path / "train.jsonl"))  # fmt: skip
    texts = [row["prompt"] for row in train + held]
    assert len(set(texts)) == len(texts) == 3 * 230
    assert [row["set"] for row in held] == ["math"] * 30 + ["code"] * 30 + ["chat"] * 30


def test_prompts_of_other_files_are_left_out(tmp_path):
    first = written(tmp_path / "a.jsonl", "--split", "fresh", "--count", "5")
    rest = written(tmp_path / "b.jsonl", "--split", "fresh", "--count", "5",
                   "--without", str(tmp_path / "a.jsonl"))  # fmt: skip
    both = written(tmp_path / "c.jsonl", "--split", "fresh", "--count", "10")
    assert {row["prompt"] for row in first + rest} == {row["prompt"] for row in both}
