"""The benchmark's statistics and tables, and that pages show the committed results."""

import copy
import json

import numpy as np
import pytest

from bench import ratios, report
from bench.__main__ import rotate

committed = report.RESULTS / report.NAME


def test_ratios_are_taken_within_a_round():
    """The machine is three times slower in the second round; the ratio does not see it."""
    found = ratios.ratio([2.0, 6.0, 2.0], [1.0, 3.0, 1.0])
    assert (found.median, found.low, found.high, found.interval) == (2.0, 2.0, 2.0, (2.0, 2.0))
    with pytest.raises(ValueError, match="2 values over 1"):
        ratios.ratio([1.0, 2.0], [1.0])


def test_summary_of_known_values():
    found = ratios.summary([5.0, 1.0, 3.0])
    assert (found.median, found.low, found.high) == (3.0, 1.0, 5.0)
    assert found.interval == (1.0, 5.0)  # 7 of 27 resamples have the median 1, and 7 have 5
    with pytest.raises(ValueError, match="no values"):
        ratios.summary([])


def test_the_interval_covers_the_median_about_as_often_as_it_says():
    """200 experiments of 15 rounds whose true median is 1."""
    rng = np.random.default_rng(1)
    intervals = [ratios.summary(rng.lognormal(0, 0.3, 15), 1000).interval for _ in range(200)]
    covered = sum(low <= 1 <= high for low, high in intervals)
    # a bootstrap of a small sample's median covers 90 to 97 %; 3.5 standard errors around that
    assert 165 <= covered <= 199


def test_the_interval_shrinks_with_more_rounds():
    rng = np.random.default_rng(2)
    few, many = (ratios.summary(rng.lognormal(0, 0.3, n)).interval for n in (8, 200))
    assert many[1] - many[0] < (few[1] - few[0]) / 2


def test_every_subject_begins_a_round_equally_often():
    firsts = [rotate(["a", "b", "c"], number)[0] for number in range(6)]
    assert firsts == ["a", "b", "c", "a", "b", "c"]
    assert sorted(rotate(["a", "b", "c"], 4)) == ["a", "b", "c"]


MADE_UP = {
    "complete": True, "date": "2020-01-02", "rounds": 2, "threads": 2,
    "machine": {"processor": "An abacus", "cores": 2, "system": "Linux"},
    "versions": {"python": "3.13.0", "dflash_lite": "0.1.0", "jax": "1", "flax": "2",
                 "numpy": "3", "transformers": "4", "torch": "5"},
    "peers": {"transformers": "", "llama.cpp": "not installed: no compiler"},
    "weight_bytes": 4_000_000_000, "cache_row_bytes": 0, "prompt_tokens": 30, "new_tokens": 101,
    "tokens_made": {"dflash_lite": 101, "transformers": 101},
    "tokens_differ": {"dflash_lite": 0, "transformers": 3},
    "compilations": {"longest": 200, "first_pass": {"16": 2, "32": 2}, "second_pass": 0},
    "compiled_in_rounds": 0,
    "seconds": {"dflash_lite": [10.1, 20.2], "transformers": [20.2, 60.6], "prefill": [0.1, 0.2],
                "loop": [9.9, 19.8], "steps": [10.89, 21.78], "read": [0.05, 0.11]},
    "batches": {"read": [0.5, 0.5], "operations": [4e9, 4e9], "1": [1.0, 1.0], "4": [3.0, 3.0]},
    "start": {"load": [2.0, 4.0], "first_text": [5.0, 5.0], "peak_bytes": [1e9, 1e9]},
}  # fmt: skip


def rows(markdown: str) -> list[list[str]]:
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_speeds_and_what_is_missing():
    found = rows(report.speed_table(MADE_UP))
    # 101 tokens in 10.1 and 20.2 seconds; 20.2 / 10.1 and 60.6 / 20.2 times as fast
    assert found[2][1:] == ["7.5", "5 to 10", "1", "0 of 101"]
    assert found[3][3:] == ["2.50 (2.00 to 3.00)", "3 of 101"]
    assert found[4] == ["llama.cpp", "not installed: no compiler", "", "", ""]


def test_costs():
    found = {row[0]: row[1:] for row in rows(report.cost_table(MADE_UP))}
    # 9.9 s for 100 steps over 0.05 s, and 19.8 s over 0.11 s; 4 GB in 0.05 s and in 0.11 s
    assert found["**a token over reading the weights once**"][:2] == ["1.89", "1.8 to 1.98"]
    assert found["`generate` over prefill and loop on the device"][0] == "1 %"
    assert found["one step a call over the loop on the device"][1] == "10 to 10"
    assert found["the bandwidth that this is: GB/s"][0] == "58.2"


def test_the_roofline_is_the_longer_of_both_times():
    """Reading takes 0.5 s whatever the rows; a row computes 2e9 operations in 0.5 s."""
    assert report.predicted(MADE_UP, 1) == [0.5, 0.5]
    assert report.predicted(MADE_UP, 4) == [2.0, 2.0]
    assert rows(report.batch_table(MADE_UP))[3] == ["4", "2000", "3000", "1.5 (1.5 to 1.5)", "750"]


def test_a_page_is_filled_between_its_markers_only(tmp_path):
    page = tmp_path / "page.md"
    text = "before\n<!-- bench:decoding -->\nold\n<!-- /bench -->\nafter\n"
    new = report.filled(text, MADE_UP, page)
    assert new.startswith("before\n<!-- bench:decoding -->\n") and "old" not in new
    assert new.endswith("<!-- /bench -->\nafter\n") and "An abacus" in new
    assert report.filled(new, MADE_UP, page) == new
    assert report.filled("no markers", MADE_UP, page) == "no markers"


def test_the_plot_is_stable_and_says_what_it_shows(tmp_path):
    for name in ("a.svg", "b.svg"):
        report.plot(MADE_UP, tmp_path / name)
    first = (tmp_path / "a.svg").read_text("utf-8")
    assert first == (tmp_path / "b.svg").read_text("utf-8")
    assert report.digest(MADE_UP) in first


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A repository of one page that shows made-up results."""
    monkeypatch.setattr(report, "ROOT", tmp_path)
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    page = tmp_path / "README.md"
    page.write_text("<!-- bench:decoding -->\n<!-- /bench -->\n", "utf-8")
    (tmp_path / report.NAME).write_text(json.dumps(MADE_UP), "utf-8")
    report.write()
    return page


def test_a_changed_number_is_found(site):
    assert report.stale() == []
    site.write_text(site.read_text("utf-8").replace("2.50 (2.00", "2.60 (2.00"), "utf-8")
    assert report.stale() == ["README.md"]


def test_new_results_make_page_and_plot_stale(site):
    new = copy.deepcopy(MADE_UP)
    new["seconds"]["transformers"][0] = 30.3
    (site.parent / report.NAME).write_text(json.dumps(new), "utf-8")
    assert report.stale() == ["README.md", report.PLOT]


def test_an_interrupted_run_is_refused(site):
    (site.parent / report.NAME).write_text(json.dumps(MADE_UP | {"complete": False}), "utf-8")
    with pytest.raises(ValueError, match="interrupted"):
        report.stale()


def test_the_pages_show_the_committed_results():
    """`make bench` measures; `python -m bench.report` writes the pages."""
    assert committed.exists(), "bench/results/decoding.json is missing: run make bench"
    assert report.stale() == []
    assert "<!-- bench:decoding -->" in (report.ROOT / "README.md").read_text("utf-8")
