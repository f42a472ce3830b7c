"""The moving picture of the README, and the small terminal that draws it."""

from xml.etree import ElementTree

import pytest

import record_demo
from record_demo import Screen, Span, draw, keyframes, spans, split_whole

SVG = "{http://www.w3.org/2000/svg}"


def test_the_picture_plays_in_an_image_tag():
    """Small, text as text, no script, nothing from elsewhere, still for who wants that."""
    text = record_demo.TARGET.read_text("utf-8")
    root = ElementTree.fromstring(text)
    assert len(text) < 100_000
    assert {node.tag.removeprefix(SVG) for node in root.iter()} <= {
        "svg", "title", "desc", "style", "rect", "g", "circle", "text"
    }
    assert "prefers-reduced-motion" in text and text.count("http") == 1
    last = [node.text for node in root.iter(f"{SVG}text") if "past" not in node.get("class")]
    assert last[0] == "$ make demo" and "tokens per second" in last[-1]


def test_screen_wraps_and_erases():
    screen = Screen(4)
    screen.feed("abcdef\r\nx\r\x1b[2K\x1b[1A")
    assert screen.rows == ["abcd", "ef", ""] and screen.row == 1
    screen.feed("\x1b[?25l\x1b[32mn\x1b[0m")
    assert screen.rows[1] == "nf"
    with pytest.raises(ValueError, match="5J"):
        screen.feed("\x1b[5J")


def test_spans_say_what_was_shown_and_when():
    events = [(0.0, "$ x\r\n"), (1.0, "- wait"), (2.0, "\r\x1b[2K"), (2.5, "done")]
    assert spans(events, 80) == [
        Span(0, "$ x", 0.0), Span(1, "- wait", 1.0, 2.0), Span(1, "done", 2.5)
    ]
    assert keyframes(Span(1, "- wait", 1.0, 2.0), 10.0) == (
        "0%{opacity:0}10.000%{opacity:1}20.000%,to{opacity:0}"
    )
    root = ElementTree.fromstring(draw(spans(events, 80), 80))
    assert root.find(f"{SVG}desc").text == "$ x\ndone"


@pytest.mark.parametrize("data", ["né 🙂".encode(), b"a\x1b[?25lb\x1b[2K"])
def test_output_is_cut_between_characters_and_sequences(data):
    for cut in range(len(data) + 1):
        first, rest = split_whole(data[:cut])
        second, left = split_whole(rest + data[cut:])
        assert (first + second, left) == (data.decode(), b"")
        assert "\x1b" not in record_demo.SEQUENCE.sub("", first)
