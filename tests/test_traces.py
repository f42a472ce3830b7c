"""Traces: what they may hold, how a wrong one is refused, and what the player's HTML is made of."""

import copy
import dataclasses
import json
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from helpers import write_hub
from hypothesis import given, settings, strategies as st
from made_traces import HOSTILE, a_trace

import dflash_lite
from dflash_lite import traces
from dflash_lite.checkpoints import UserError
from dflash_lite.decoding import encode_prompt
from dflash_lite.traces import (
    Trace,
    TraceStep,
    player,
    read_trace,
    reason,
    record_trace,
    save_trace,
)

ROOT = Path(__file__).resolve().parent.parent


# Round trips
# -----------


@pytest.mark.parametrize("most", [0, 1, 7])
@pytest.mark.parametrize("count", [0, 1, 2, 40, 256])
@pytest.mark.parametrize("pages", [False, True])
def test_written_and_read_again_it_is_equal(tmp_path, count, most, pages):
    trace = a_trace(count, most, seed=count, pages=pages)
    assert read_trace(trace.to_json()) == trace
    save_trace(trace, tmp_path / "trace.json")
    for path in (tmp_path / "trace.json", str(tmp_path / "trace.json")):
        assert read_trace(path) == trace
    assert trace.to_json() == read_trace(trace.to_json()).to_json()


@settings(max_examples=60)
@given(st.lists(st.text(st.characters(codec=None), max_size=6), min_size=1, max_size=5))
def test_any_text_comes_back(texts):
    trace = a_trace(20, pieces=texts, prompt=texts[0], model=texts[-1])
    again = read_trace(trace.to_json())
    assert again == trace and again.to_json() == trace.to_json()
    player(trace).html.encode()


def test_two_halves_of_a_character_are_that_character():
    assert a_trace(2, prompt="\ud83d\ude00").prompt == "😀"


def test_the_schema_is_what_the_chapter_says():
    record = json.loads(a_trace(20, pages=True).to_json())
    assert list(record) == (
        "format version model drafter block prompt settings prefill_seconds tokens pieces "
        "finish_reason steps"
    ).split()
    assert record["format"] == "dflash_lite.trace" and record["version"] == 1
    assert list(record["steps"][0]) == (
        "seconds drafts draft_pieces accepted target drafter bonus new pages"
    ).split()
    assert ": " not in a_trace(20, prompt="", model="m").to_json()


def test_arrays_and_their_numbers_are_taken():
    step = a_trace(20).steps[0]
    odd = dataclasses.replace(
        step, seconds=np.float32(0.5), accepted=np.int64(step.accepted), drafts=list(step.drafts)
    )
    trace = a_trace(20, steps=[odd, *(
        dataclasses.replace(s, seconds=s.seconds + 1) for s in a_trace(20).steps[1:]
    )])
    assert type(trace.steps[0].accepted) is int and type(trace.steps[0].seconds) is float
    assert read_trace(trace.to_json()) == trace


def test_a_trace_cannot_change():
    trace = a_trace(20)
    with pytest.raises(dataclasses.FrozenInstanceError):
        trace.model = "other"
    with pytest.raises(AttributeError):
        trace.tokens.append(1)


def test_a_stop_token_is_in_no_text():
    """The three ways to end: at the bonus, among the accepted drafts, before the bonus."""
    base = a_trace(1)
    step = TraceStep(0.1, (5, 2, 7), ("a", "", "b"), 3, None, None, 9, 1)
    two = {"tokens": (base.tokens[0], 5), "pieces": ("x", "a"), "finish_reason": "stop"}
    two["settings"] = base.settings | {"max_new_tokens": 9}
    for change in (
        {},
        {"bonus": None},
        {"accepted": 2, "target": 0.1, "drafter": None},
        {"accepted": 2, "bonus": None},
        {"accepted": 1, "bonus": 2, "target": 0.0},
    ):
        trace = dataclasses.replace(base, steps=[dataclasses.replace(step, **change)], **two)
        assert read_trace(trace.to_json()) == trace
        assert player(trace).html


# What is refused
# ---------------


def fixture_record() -> dict:
    """A small trace that is right: three steps, the second refuses a draft."""
    return {
        "format": "dflash_lite.trace",
        "version": 1,
        "model": "m",
        "drafter": "d",
        "block": 3,
        "prompt": "p",
        "settings": {
            "max_new_tokens": 9, "temperature": 1, "top_k": None, "top_p": 0.9, "seed": -1,
        },
        "prefill_seconds": 0.5,
        "tokens": [10, 11, 12, 13, 14, 15],
        "pieces": ["a", "b", "c", "d", "e", "f"],
        "finish_reason": "stop",
        "steps": [
            {
                "seconds": 0.1, "drafts": [11, 12], "draft_pieces": ["b", "c"], "accepted": 2,
                "target": None, "drafter": None, "bonus": 13, "new": 3, "pages": 1,
            },
            {
                "seconds": 0.2, "drafts": [98, 99], "draft_pieces": ["x", "y"], "accepted": 0,
                "target": 0.25, "drafter": 0.5, "bonus": 14, "new": 1, "pages": 1,
            },
            {
                "seconds": 0.3, "drafts": [15, 2], "draft_pieces": ["f", ""], "accepted": 2,
                "target": None, "drafter": None, "bonus": None, "new": 1, "pages": None,
            },
        ],
    }


def test_the_small_trace_is_right():
    assert read_trace(json.dumps(fixture_record(), indent=1)).steps[1].target == 0.25


ABSENT = object()
FAULTS = [  # where, what to put there, the place that is named, a part of the sentence
    ("format", "other", "format", "'dflash_lite.trace'"),
    ("format", ABSENT, "format", "missing"),
    ("version", 2, "version", "expected 1. A trace of another program, or of a newer"),
    ("version", True, "version", "expected 1"),
    ("version", "1", "version", "expected 1"),
    ("version", ABSENT, "version", "missing"),
    ("model", 3, "model", "a text"),
    ("model", ABSENT, "model", "missing"),
    ("modle", "m", "modle", "no such key"),
    ("drafter", None, "drafter", "a text"),
    ("drafter", "plain", "block", "1, because the drafter is plain"),
    ("block", 1, "block", "at least 2"),
    ("block", 0, "block", "at least 2"),
    ("block", -1, "block", "from 0"),
    ("block", 2.0, "block", "a whole number"),
    ("block", True, "block", "a whole number"),
    ("block", 2, "steps[0].drafts", "at most 1, one less than the block"),
    ("prompt", ["p"], "prompt", "a text"),
    ("settings", [], "settings", "an object with max_new_tokens"),
    ("settings.seed", ABSENT, "settings.seed", "missing"),
    ("settings.seed", 0.5, "settings.seed", "a whole number"),
    ("settings.seed", -(2**60), "settings.seed", "a whole number"),
    ("settings.min_p", 0.5, "settings.min_p", "no such key"),
    ("settings.top_p", 1.5, "settings.top_p", "at most 1"),
    ("settings.top_k", "all", "settings.top_k", "a whole number"),
    ("settings.temperature", None, "settings.temperature", "a number"),
    ("settings.temperature", -1, "settings.temperature", "from 0"),
    ("settings.max_new_tokens", 5, "tokens", "at most 5 of them"),
    ("prefill_seconds", -0.1, "prefill_seconds", "from 0"),
    ("prefill_seconds", True, "prefill_seconds", "a number"),
    ("prefill_seconds", float("inf"), "prefill_seconds", ""),
    ("tokens", "abc", "tokens", "a list"),
    ("tokens[1]", "b", "tokens[1]", "a whole number"),
    ("tokens[1]", True, "tokens[1]", "a whole number"),
    ("tokens[1]", -5, "tokens[1]", "from 0"),
    ("tokens[1]", 2**53, "tokens[1]", "9007199254740991"),
    ("tokens[1]", 77, "steps[0].drafts and bonus", "to add (77, 12, 13) as tokens[1:4]"),
    ("pieces", ["a"], "pieces", "6 texts"),
    ("pieces[5]", None, "pieces[5]", "a text"),
    ("finish_reason", "eos", "finish_reason", "'stop' or 'length' or 'interrupted'"),
    ("finish_reason", None, "finish_reason", "'stop'"),
    ("steps", {}, "steps", "a list"),
    ("steps", [], "tokens", "1 of them"),
    ("steps[1]", None, "steps[1]", "a step"),
    ("steps[1].seconds", 0.05, "steps[1].seconds", "at least 0.1"),
    ("steps[1].seconds", -0.05, "steps[1].seconds", "from 0"),
    ("steps[1].seconds", "0.2", "steps[1].seconds", "a number"),
    ("steps[1].drafts", [98], "steps[1].draft_pieces", "1 texts"),
    ("steps[1].drafts", None, "steps[1].drafts", "a list"),
    ("steps[1].drafts[0]", False, "steps[1].drafts[0]", "a whole number"),
    ("steps[1].draft_pieces", ["x"], "steps[1].draft_pieces", "2 texts"),
    ("steps[1].draft_pieces[1]", 5, "steps[1].draft_pieces[1]", "a text"),
    ("steps[1].accepted", 3, "steps[1].accepted", "at most 2, the number of drafts"),
    ("steps[1].accepted", True, "steps[1].accepted", "a whole number"),
    ("steps[1].accepted", 1, "steps[1].new", "2, the accepted drafts and the bonus"),
    ("steps[1].target", 1.5, "steps[1].target", "at most 1"),
    ("steps[1].target", None, "steps[1].target", "its probability"),
    ("steps[0].target", 0.5, "steps[0].target", "null: none was refused"),
    ("steps[0].drafter", 0.5, "steps[0].drafter", "null: none was refused"),
    ("steps[1].drafter", 1.01, "steps[1].drafter", "at most 1"),
    ("steps[1].drafter", True, "steps[1].drafter", "a number"),
    ("steps[1].bonus", None, "steps[1].bonus", "because steps follow"),
    ("steps[1].bonus", 15, "steps[1].drafts and bonus", "to add (14,)"),
    ("steps[1].new", 0, "steps[1].new", "1, the accepted drafts and the bonus"),
    ("steps[1].new", 2, "steps[1].new", "at most 1"),
    ("steps[2].new", 2, "steps[2].drafts and bonus", "to add (15,)"),
    ("steps[2].new", 0, "tokens", "5 of them"),
    ("steps[1].pages", -1, "steps[1].pages", "from 0"),
    ("steps[1].pages", 1.5, "steps[1].pages", "a whole number"),
    ("steps[1].pages", ABSENT, "steps[1].pages", "missing"),
    ("steps[1].note", "x", "steps[1].note", "no such key"),
]


def plant(record: dict, where: str, value) -> dict:
    """The record with one value changed, added, or taken out."""
    record = copy.deepcopy(record)
    *way, last = where.replace("]", "").replace("[", ".").split(".")
    at = record
    for name in way:
        at = at[int(name) if isinstance(at, list) else name]
    last = int(last) if isinstance(at, list) else last
    if value is ABSENT:
        del at[last]
    else:
        at[last] = value
    return record


@pytest.mark.parametrize(
    "where, value, place, part", FAULTS, ids=[f"{w}={v!r:.12}" for w, v, *_ in FAULTS]
)
def test_each_wrong_thing_gets_one_sentence(tmp_path, where, value, place, part):
    text = json.dumps(plant(fixture_record(), where, value))
    path = tmp_path / "wrong.json"
    path.write_text(text)
    with pytest.raises(UserError) as found:
        read_trace(text)
    with pytest.raises(UserError) as in_file:
        read_trace(path)
    assert str(in_file.value) == f"{path}: {found.value}"
    message = str(found.value)
    if value == float("inf"):  # the JSON of Python has a word for it, JSON has none
        assert "Infinity is no number" in message
        return
    assert message.startswith(place + " is "), message
    assert part in message and "expected" in message and "\n" not in message
    assert message.endswith(".") and len(message) < 300
    if where in ("format", "version", "modle") or value is ABSENT and "." not in where:
        return
    with pytest.raises(UserError) as made:  # the same rule when it is made in Python
        Trace(**plant(fixture_record(), where, value))
    assert str(made.value) == message


def test_a_drafter_says_nothing_of_what_nobody_judged():
    record = plant(fixture_record(), "steps[2].accepted", 1)
    assert read_trace(json.dumps(record)).steps[2].target is None
    with pytest.raises(UserError, match=r"steps\[2\].drafter is 0.5; expected null, because"):
        read_trace(json.dumps(plant(record, "steps[2].drafter", 0.5)))


def test_true_is_no_version_in_python_either():
    with pytest.raises(UserError, match="version is True; expected 1"):
        a_trace(2, version=True)


@pytest.mark.parametrize(
    "text, part",
    [
        ("{", "no JSON"),
        (json.dumps(fixture_record())[:-1], "no JSON"),
        (json.dumps(fixture_record()) + "x", "no JSON"),
        ('{"version":NaN}', "NaN is no number"),
        ('{"version":-Infinity}', "-Infinity is no number"),
        (json.dumps(fixture_record()).replace("0.25", "1e999"), "steps[1].target is inf"),
        (json.dumps(fixture_record()).replace("0.25", "9" * 5000), "no JSON"),
        ('{"model":"a","model":"b"}', "the key 'model' stands twice"),
        ('{"model":' + "[" * 200_000, "no JSON"),
        ('{"model":' * 200_000, "no JSON"),
        ('{"model":' + "[" * 900 + "]" * 900 + "}", "missing"),
        (json.dumps(fixture_record()).replace('"m"', "[" * 900 + "]" * 900), "model is [[[["),
        ("{}", "format is missing"),
        ("{" + " " * traces.SIZE_LIMIT + "}", "larger than 16777216 bytes"),
    ],
    ids=lambda text: text[:24],
)
def test_damaged_text_is_named(tmp_path, text, part):
    (tmp_path / "damaged").write_text(text)
    for source in (text, tmp_path / "damaged"):
        with pytest.raises(UserError) as found:
            read_trace(source)
        assert part in str(found.value) and len(str(found.value)) < 400


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"1", b'"a"', b"\xff\xfe{", b"\x00"])
def test_a_file_that_is_no_trace_is_named(tmp_path, data):
    path = tmp_path / "other"
    path.write_bytes(data)
    with pytest.raises(UserError, match="other: .*expected"):
        read_trace(path)


def test_a_mark_at_the_start_of_a_file_is_no_damage(tmp_path):
    path = tmp_path / "bom"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(fixture_record()).encode())
    assert read_trace(path).model == "m"


@pytest.mark.parametrize("source", ["", "nowhere.json", "/", "a\0b", "x" * 5000, None, 3, b"{}"])
def test_a_source_that_is_not_there_is_named(source):
    with pytest.raises(UserError, match="expected"):
        read_trace(source)


def test_a_large_file_is_not_read_whole(tmp_path):
    path = tmp_path / "large"
    with open(path, "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match="large: The trace is larger than"):
        read_trace(path)


# Files
# -----


@pytest.mark.parametrize("write", [lambda t, p: save_trace(t, p), lambda t, p: player(t).save(p)])
@pytest.mark.parametrize("breaks", ["replace", "write_bytes"])
def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch, write, breaks):
    path = tmp_path / "file"
    path.write_text("old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    def half(self, data):
        with open(self, "wb") as file:
            file.write(data[:10])
        fail()

    with monkeypatch.context() as patch:
        if breaks == "replace":
            patch.setattr(os, "replace", fail)
        else:
            patch.setattr(Path, "write_bytes", half)
        with pytest.raises(UserError, match="cannot be written.*No space left"):
            write(a_trace(20), path)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
    write(a_trace(20), path)
    assert path.read_text() != "old" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("place", ["nowhere/trace.json", "", ".", "/", "a\0b", "x" * 5000])
def test_a_place_that_cannot_be_written_is_named(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="cannot be written"):
        save_trace(a_trace(20), place)
    assert list(tmp_path.iterdir()) == []


# The player's HTML
# -----------------


class Parsed(HTMLParser):
    """The elements of a page, its visible text, and the text of its scripts."""

    VOID = {"meta", "br", "input", "img"}

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes, self.text, self.scripts = [], set(), "", []
        self.open = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes.update(name for name, _ in attributes)
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        elif self.open and self.open[-1] != "style":
            self.text += data


def test_hostile_text_stays_text(tmp_path):
    hostile = a_trace(60, pieces=HOSTILE, prompt="".join(HOSTILE), model=HOSTILE[0],
                      drafter=HOSTILE[1])
    title = HOSTILE[4] + HOSTILE[0] + "\ud800"
    made = player([hostile, a_trace(20, 0)], title=title)
    made.save(tmp_path / "page.html")
    page = Parsed((tmp_path / "page.html").read_bytes().decode("utf-8"))
    allowed = ("html head meta title body div style p section b table caption thead tbody tr th td "
               "u s script").split()
    assert set(page.tags) <= set(allowed) and page.open == []
    names = {"lang", "charset", "name", "content", "class", "dir", "type", "scope", "data-title"}
    assert page.attributes == names
    data, _ = page.scripts
    assert [read_trace(json.dumps(one)) for one in json.loads(data)][0] == hostile
    assert data.isascii() and not set("<>&") & set(data)
    for sign in "\x00\x1b\u2028\u2029\u202e\u2066\u200f\ufeff":
        assert sign not in made.html and sign not in page.text
    assert "U+202Eabc" in page.text and HOSTILE[0] in page.text and "U+D800" in page.text


def test_nothing_comes_from_elsewhere():
    """The player asks for nothing: no address stands in its code."""
    for part in (traces.STYLE, traces.SCRIPT_STATE, traces.SCRIPT_PICTURE, traces.SCRIPT_CONTROLS):
        for word in ("http", "//", "url(", "@import", "fetch", "import(", "innerHTML", "eval",
                     "document.write", "</", "parent.", "localStorage"):
            assert word not in part
        assert "autoplay" not in part


@pytest.mark.parametrize("most", [0, 7])
def test_256_tokens_weigh_less_than_100_kb(tmp_path, most):
    trace = a_trace(256, most, pages=True)
    save_trace(trace, tmp_path / "trace.json")
    player(trace).save(tmp_path / "trace.html")
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert all(5_000 < size < 100_000 for size in sizes), sizes


def test_the_table_says_what_happened():
    trace = read_trace(json.dumps(fixture_record()))
    page = Parsed(player(trace).html)
    assert "6 tokens in 0.800 s, 0.500 s of it prefill, 16.7 tokens/s after prefill, " in page.text
    assert "1. d, 2 drafts a step: " in page.text
    assert "1.67 tokens a step with the bonus. It ended by stop." in page.text
    assert "<tr><td>2</td><td>0.200</td><td><s>x</s> <s>y</s></td>" in player(trace).html
    assert "<td>target gave 25%, drafter 50%</td><td>e</td><td>1</td>" in player(trace).html
    assert "<u>f</u> <u>◌</u>" in player(trace).html and "<td>(end)</td>" in player(trace).html


def test_the_same_traces_give_the_same_html():
    """A notebook's output must not change from run to run; and nothing needs an id."""
    one = player(a_trace(20)).html
    assert one == player([a_trace(20)]).html and " id=" not in one
    assert len(repr(player(a_trace(20)))) < 200


@pytest.mark.parametrize("wrong", [[], None, 3, "{}", [None], [fixture_record()]])
def test_only_traces_can_be_played(wrong):
    with pytest.raises((UserError, TypeError), match="traces|iterable"):
        player(wrong)


@pytest.mark.parametrize(
    "step, said",
    [
        ({"accepted": 2, "target": None, "drafter": None}, ""),
        ({"target": 0.03, "drafter": None}, "target gave 3%"),
        ({"target": 0.0, "drafter": 1.0}, "target gave 0%, drafter 100%"),
        ({"target": 0.003, "drafter": 0.0004}, "target gave 0.3%, drafter under 0.1%"),
        ({"target": None, "drafter": None}, "not needed: the text had ended"),
    ],
)
def test_the_reason_is_said(step, said):
    base = TraceStep(0.1, (1, 2), ("a", "b"), 0, 0.5, 0.5, 3, 1)
    assert reason(dataclasses.replace(base, **step)) == said


def test_traces_need_no_jax():
    code = "import sys, dflash_lite.traces; print({'jax', 'flax'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert run.stdout == "set()\n", run.stderr


def test_the_notebook_holds_the_player_and_is_small():
    path = ROOT / "chapters" / "92_traces.ipynb"
    assert path.stat().st_size < 150_000
    outputs = [
        "".join(output["data"]["text/html"])
        for cell in json.loads(path.read_text("utf-8"))["cells"]
        for output in cell.get("outputs", [])
        if "text/html" in output.get("data", {})
    ]
    (shown,) = outputs
    assert traces.SCRIPT_CONTROLS in shown and "by hand" in Parsed(shown).text


# Of a real generation
# --------------------


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A tiny random model; no other test has its shapes."""
    return dflash_lite.load(write_hub(tmp_path_factory.mktemp("traced"), intermediate_size=48))


PROMPTS = ["Hello", [3, 4, 5, 3, 4], [{"role": "user", "content": "Hi"}]]


@pytest.mark.parametrize("prompt", PROMPTS, ids=["text", "ids", "chat"])
@pytest.mark.parametrize("paged", [False, True])
def test_a_generation_is_recorded(pair, prompt, paged):
    model, tokenizer = pair
    known = encode_prompt(tokenizer, prompt, True, None)
    plain = dflash_lite.generate(model, tokenizer, prompt, max_new_tokens=12)
    answers = np.full((1, 256), -1, np.int32)
    answers[0, : len(known) + len(plain.tokens)] = known + plain.tokens
    memory = dflash_lite.PagedMemory(model, 32, 8) if paged else None
    for drafter in (None, dflash_lite.Replay(answers, 4, 0.5), dflash_lite.PromptLookup(4, 1, 2)):
        options = {"max_new_tokens": 12, "memory": memory}
        found = record_trace(model, tokenizer, prompt, drafter, **options)
        assert list(found.tokens) == plain.tokens and "".join(found.pieces) == plain.text
        assert found.finish_reason == plain.finish_reason
        assert read_trace(found.to_json()) == found
        assert all((step.pages is not None) == paged for step in found.steps)
        if drafter is None:
            stop = plain.finish_reason == "stop"
            assert len(found.steps) == len(plain.tokens) - 1 + stop
        refused = [step for step in found.steps if step.accepted < len(step.drafts)]
        assert all(0 <= step.target < 1 and step.drafter is None for step in refused)
    if len(plain.tokens) > 6:
        replayed = record_trace(model, tokenizer, prompt, dflash_lite.Replay(answers, 4),
                                max_new_tokens=12)  # fmt: skip
        assert [step.accepted for step in replayed.steps[:2]] == [3, 3]


def test_the_probability_of_a_refused_draft_is_the_targets(pair):
    """Beside a softmax in float64 of the logits of one pass over the text so far."""
    model, tokenizer = pair[0], dataclasses.replace(pair[1], stop_ids=())
    prompt = [3, 4, 5, 6]
    plain = dflash_lite.generate(model, tokenizer, prompt, max_new_tokens=12)
    answers = np.array([prompt + plain.tokens])
    found = record_trace(model, tokenizer, prompt, dflash_lite.Replay(answers, 4, 0.2),
                         max_new_tokens=12)  # fmt: skip
    at, seen = 1, 0
    for step in found.steps:
        if step.accepted < len(step.drafts):
            text = prompt + list(found.tokens[: at + step.accepted])
            hidden = model(np.array([text])).hidden[:, -1]
            scores = np.asarray(model.logits(hidden)[0], np.float64)
            chances = np.exp(scores - scores.max())
            draft = step.drafts[step.accepted]
            assert step.target == pytest.approx(chances[draft] / chances.sum(), abs=1e-5)
            seen += 1
        at += step.new
    assert seen


def test_a_prompt_may_be_all_that_generate_takes(pair):
    ids = [3, 4, 5, 3, 4]
    found = [record_trace(*pair, prompt, max_new_tokens=3)
             for prompt in (ids, tuple(ids), np.array(ids))]  # fmt: skip
    assert found[0].tokens == found[1].tokens == found[2].tokens
    assert found[0].prompt == found[1].prompt == found[2].prompt


def test_no_model_is_called_by_the_name_of_another(pair):
    assert record_trace(*pair, "Hi", max_new_tokens=1).model == "llama, 2 layers of 32"
    assert record_trace(*pair, "Hi", name="mine", max_new_tokens=1).model == "mine"


@pytest.mark.parametrize("wrong", [{"stream": True}, {"watch": print}])
def test_recording_looks_by_itself(pair, wrong):
    with pytest.raises(UserError, match=f"{next(iter(wrong))} is .*recording looks by itself"):
        record_trace(*pair, "Hi", **wrong)


def test_a_trace_is_of_one_text(pair):
    with pytest.raises(UserError, match="one prompt"):
        record_trace(*pair, ["Hello", "Hi"])
