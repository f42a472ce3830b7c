"""The benchmark's statistics and tables, and that pages show the committed results."""

import copy
import json
import sys
from collections import Counter
from types import SimpleNamespace

import gguf
import jax
import numpy as np
import pytest
from helpers import write_hub

import dflash_lite
from bench import (
    __main__ as driver,
    exactness,
    float32_gguf,
    paging,
    peers,
    published,
    ratios,
    report,
    speculation,
    study,
    sweep,
    visits as visits_of,
)
from bench.__main__ import rotate
from dflash_lite import benchmark, decoding, paged_attention, training
from tpu_check.chips import Chip
from tpu_check.models import shapes


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


def test_the_pages_show_the_committed_results():
    assert report.stale() == [], "run python -m bench.report"
    shown = [page.name for page in report.pages() if "<!-- bench:" in page.read_text("utf-8")]
    assert shown == ["README.md", "benchmarks.md", "study.md"]


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


ANSWERS = {
    "about": {"versions": {"jax": "1", "flax": "2", "numpy": "3", "transformers": "4",
                           "torch": "5"}, "weight_bytes": 4_000_000, "cache_row_bytes": 8},
    "prompt": {"ids": [5, 6, 7]}, "generate": {"seconds": 2.0, "tokens": [8, 9]},
    "loop": {"prefill": 0.5, "decode": 1.5}, "steps": {"decode": 1.6}, "read": {"seconds": 0.25},
    "product": {"operations": 1e9}, "batch": {"seconds": 0.75},
    "compilations": {"longest": 2, "first_pass": {"16": 2}, "second_pass": 0},
}  # fmt: skip


def test_a_worker_answers_line_by_line_and_its_end_is_told(tmp_path, monkeypatch):
    """A library's own printing does not get between the answers."""
    (tmp_path / "double.py").write_text(
        f"import sys; sys.path.insert(0, {str(driver.BENCH)!r})\n"
        "from serve import serve\n"
        "def double(x): print('chatter'); return {'twice': 2 * x}\n"
        "serve({'double': double})\n", "utf-8",
    )  # fmt: skip
    monkeypatch.setattr(driver, "BENCH", tmp_path)
    monkeypatch.setattr(driver, "PARTIAL", tmp_path / "decoding.json")
    worker = driver.Worker(sys.executable, "double")
    try:
        assert [worker.ask("double", x=x)["twice"] for x in (3, 4)] == [6, 8]
        with pytest.raises(driver.Failed, match="double.log"):
            worker.ask("no such thing")
        assert "chatter" in worker.log.read_text("utf-8")
    finally:
        worker.close()


def test_a_float32_gguf_has_the_same_values_and_settings(tmp_path):
    values = np.arange(64, dtype=np.float32).reshape(2, 32) / 64
    packed = gguf.quantize(values, gguf.GGMLQuantizationType.Q4_1)
    source, target = tmp_path / "packed.gguf", tmp_path / "plain.gguf"
    writer = gguf.GGUFWriter(source, "llama")
    writer.add_block_count(7)
    writer.add_token_list(["a", "b"])
    writer.add_tensor("token_embd.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    for step in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{step}_to_file")()
    writer.close()
    float32_gguf.write(source, target)
    found = gguf.GGUFReader(target)
    assert found.fields["llama.block_count"].contents() == 7
    assert found.fields["tokenizer.ggml.tokens"].contents() == ["a", "b"]
    (tensor,) = found.tensors
    assert tensor.tensor_type == gguf.GGMLQuantizationType.F32
    # a Q4_1 block of 32 values in [0, 1) has steps of a fifteenth of its range
    assert np.abs(tensor.data - values).max() <= 0.5 * (31 / 64) / 15 + 1e-3
    assert list(tmp_path.glob("*.part")) == []


@pytest.fixture
def rehearsal(tmp_path, monkeypatch):
    """The driver with workers that answer at once; returns their questions."""
    asked = []

    class Answering:
        def __init__(self, python, script, *arguments):
            self.script = script

        def ask(self, do, **request):
            asked.append((self.script, do))
            return copy.deepcopy(ANSWERS[do])

        def close(self):
            pass

    monkeypatch.setattr(driver, "Worker", Answering)
    monkeypatch.setattr(driver, "use_cores", lambda count: count)
    monkeypatch.setattr(driver, "float32_file", lambda: tmp_path / "model.gguf")
    monkeypatch.setattr(driver, "load_seconds", lambda: 3.0)
    monkeypatch.setattr(driver, "command", lambda: {"first_text": 4.0, "peak_bytes": 10**9})
    monkeypatch.setattr(peers, "set_up", lambda: {"transformers": "", "llama.cpp": "no compiler"})
    monkeypatch.setattr(driver, "PARTIAL", tmp_path / "build" / "decoding.json")
    options = ["bench", "--rounds", "4", "--tokens", "2", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", options)
    return asked


def test_the_driver_takes_turns_and_writes_complete_results(rehearsal, tmp_path, capsys):
    assert driver.main() == 0
    results = json.loads((tmp_path / report.NAME).read_text("utf-8"))
    assert results["complete"] and results["rounds"] == 4
    assert all(len(values) == 4 for values in results["seconds"].values())
    assert "no compiler" in capsys.readouterr().out
    assert report.digest(results) in (tmp_path / report.PLOT).read_text("utf-8")
    timed = rehearsal[rehearsal.index(("worker_dflash_lite", "compilations")) + 1 :]
    ours, theirs = ("worker_dflash_lite", "generate"), ("worker_transformers", "generate")
    first_round, second_round = timed[:5], timed[5:10]
    assert first_round[:2] == [ours, theirs] and second_round[0] == theirs
    assert sorted(first_round) == sorted(second_round)


def test_ctrl_c_keeps_what_there_is(rehearsal, tmp_path, monkeypatch, capsys):
    """In the third round; the committed results stay as they are."""
    answer, count = driver.Worker.ask, [0]

    def interrupted(self, do, **request):
        count[0] += do == "read"
        if count[0] == 3:
            raise KeyboardInterrupt
        return answer(self, do, **request)

    monkeypatch.setattr(driver.Worker, "ask", interrupted)
    assert driver.main() == 130
    kept = json.loads(driver.PARTIAL.read_text("utf-8"))
    assert kept["rounds"] == 2 and not kept["complete"]
    assert not (tmp_path / report.NAME).exists()
    assert "Interrupted" in capsys.readouterr().err


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


PAGED = MADE_UP | {
    "rows": 8, "context": 512, "page": 16, "many": 64,
    "least_bytes": 2_000_000_000, "page_bytes": 2_200_000_000,
    "bytes": {"dense": 3e9, "pages": 3.3e9, "XLA's attention": 4e9},
    "seconds": {"dense": [0.1, 0.2], "pages": [0.11, 0.26], "XLA's attention": [0.2, 0.4],
                "many rows": [0.5, 1.0], "upkeep": [0.001, 0.004],
                "room for the longest": [0.1, 0.2], "room in pages": [0.2, 0.5]},
    "budget": {"rows": 4096, "longest": 2048, "usual": 529,
               "texts": {"room for the longest": 2, "room in pages": 8}},
}  # fmt: skip


def test_pages_beside_the_dense_cache():
    found = paging.table(PAGED)
    assert rows(found)[2][1:] == ["150", "100 to 200", "1"]
    # 0.11 / 0.1 and 0.26 / 0.2 times as long
    assert rows(found)[3] == ["pages", "185", "110 to 260", "1.20 (1.10 to 1.30)"]
    assert "2.5 ms a step on the host, 0.3% (0.2 to 0.4)" in found
    assert "at least 2 GB" in found and "1.10 times that for whole pages" in found
    assert "3 GB for the dense cache, 1.10 times that for pages" in found
    # 4 times the texts, in steps 2 and 2.5 times as long
    assert "takes 2.25 (2.00 to 2.50) times as long as one of 2" in found
    assert "there are 1.80 (1.60 to 2.00) times as many tokens a second" in found


@pytest.mark.parametrize(
    "shared, entries",
    [
        (0, 8 * 32),  # a page of its own for each entry of the tables
        (256, (8 * 32) * 8),  # every page of the pool has a place for eight texts
    ],
)
def test_visits_are_counted_as_the_cache_counts_them(shared, entries):
    visits, (q, keys, values, at, positions) = visits_of.problem(3, shared)
    assert visits == 3 * entries / (8 * 32)
    gathered = paged_attention.gather_pages(q, keys, values, at, positions)
    visited = paged_attention.visit_pages(q, keys, values, at, positions)
    np.testing.assert_allclose(visited, gathered, atol=2e-5)


def test_a_page_shows_each_table_in_its_place(site):
    (site.parent / report.PAGING).write_text(json.dumps(PAGED), "utf-8")
    site.write_text("<!-- bench:paging -->\n<!-- /bench -->\n", "utf-8")
    assert report.stale() == ["README.md"]
    report.write()
    assert report.stale() == []
    assert paging.table(PAGED) in site.read_text("utf-8")


# Speculative decoding


@jax.tree_util.register_static
class TwoTokens:
    """Every text goes on with token 3, at a logit of 9, just before token 5."""

    def __call__(self, tokens):
        return SimpleNamespace(hidden=np.zeros((*tokens.shape, 1)))

    def logits(self, hidden):
        return np.array([[0.0, 1.0, 2.0, 9.0, 3.0, 8.9999]])


def test_a_difference_is_a_near_tie_or_not():
    plain, found = [[1, 2, 3, 4], [1, 3, 2], [1, 2], [1]], [[1, 2, 5, 9], [1, 4, 2], [1, 2], [1, 3]]
    about = exactness.compare(TwoTokens(), [[7]] * 4, plain, found, (5, 4))
    assert (about["compared"], about["differences"], about["near_ties"]) == (3 + 2 + 2 + 2, 3, 2)
    np.testing.assert_allclose(about["gaps"], [0.0001 / 9, 6 / 9, 0.0001 / 9])


def test_the_benchmarks_read_the_prompts_of_the_package():
    """One reader for all: the sets in turn, and the first of each set."""
    tasks = benchmark.read_tasks(None, None)
    assert exactness.prompts(5) == [task.prompt for task in tasks[:5]]
    assert len({task.set for task in tasks[:4]}) == 4
    chosen = speculation.prompts(2)
    assert [name for name, _ in chosen] == [x for x in speculation.SETS for _ in range(2)]
    assert chosen[:2] == [("copy", t.prompt) for t in tasks if t.set == "copy"][:2]


def test_an_interrupted_run_goes_on(tmp_path, monkeypatch):
    """The second call makes only what is missing, and a run of other settings begins anew."""
    made = []
    monkeypatch.setattr(exactness, "AT_ONCE", 6)

    class Tokenizer:
        stop_ids = (0,)

    class Model:
        config = SimpleNamespace(num_hidden_layers=4)

    def generate(model, tokenizer, group, **options):
        if len(made) == 12:
            raise KeyboardInterrupt
        made.append((tuple(map(tuple, group)), type(options["drafter"]).__name__))
        cost = SimpleNamespace(decode_steps=3)
        return [SimpleNamespace(tokens=[*ids, 7], statistics=cost) for ids in group]

    monkeypatch.setattr(dflash_lite, "load", lambda name: (Model(), Tokenizer()))
    monkeypatch.setattr(dflash_lite, "PagedMemory", lambda *_: None)
    monkeypatch.setattr(decoding, "encode_prompt", lambda tokenizer, text, *_: [len(text)])
    monkeypatch.setattr(decoding, "generate", generate)
    partial = tmp_path / "deep" / "kept.json"
    with pytest.raises(KeyboardInterrupt):
        exactness.measure("made-up", 12, 4, partial)
    assert len(made) == 12  # eight ways for the first batch of six, four for the second
    assert exactness.table(json.loads(partial.read_text())).startswith("6 prompts, at most 4")
    made.append(())
    found = exactness.measure("made-up", 12, 4, partial)
    rest = made[13:]
    assert len(rest) == 8 and len({group for group, _ in rest}) == 1
    assert rest[0] != made[0] and found["tokens"] == 12 * 2
    assert [row["differences"] for row in found["rows"]] == [0] * 7
    assert [row["steps"] for row in found["rows"]] == [6] * 7
    assert exactness.measure("made-up", 12, 4, partial) == found
    assert len(made) == 13 + 8  # all is there
    assert exactness.table(json.loads(partial.read_text())) == exactness.table(found)
    exactness.measure("made-up", 12, 5, partial)
    assert len(made) == 13 + 8 + 16
    partial.write_text("{")
    exactness.measure("made-up", 12, 5, partial)
    assert len(made) == 13 + 8 + 32


def test_where_texts_part():
    at = exactness.first_difference
    assert at([1, 2], [1, 2]) is None and at([1, 2], [1, 3]) == 1
    assert at([1, 2], [1]) == at([1], [1, 2]) == 1 and at([], [1]) == 0


def test_the_table_of_differences():
    row = {"way": "prompt lookup", "cache": "pages", "steps": 5, "compared": 12345,
           "differences": 2, "near_ties": 1, "gaps": [2e-6, 0.5]}  # fmt: skip
    made_up = MADE_UP | {"prompts": 60, "new_tokens": 256, "tokens": 15000, "limit": 3e-5,
                         "rows": [row]}  # fmt: skip
    found = exactness.table(made_up)
    assert rows(found)[2] == ["prompt lookup", "pages", "12,345", "2", "1", "5.0e-01"]
    assert "below 3e-05" in found and "share" in found
    row["gaps"] = [2e-6, None]  # an answer ended, and no token could end it
    assert rows(exactness.table(made_up))[2][-1] == "none"
    row["gaps"] = []
    assert rows(exactness.table(made_up))[2][-1] == ""


def speculated(peer=""):
    """Two prompts, two rounds; the second round is twice as slow throughout."""
    runs = []
    for round_ in (0, 1):
        for index, name in enumerate(("copy", "chat")):
            slow = 2.0**round_
            cost = lambda seconds, steps, slow=slow: {
                "seconds": seconds * slow, "made": 120, "steps": steps, "same": True}  # fmt: skip
            runs.append({
                "set": name, "prompt": index, "round": round_,
                "plain": cost(6.0, 120), "loop, plain": {"seconds": 6.0 * slow, "same": True},
                "perfect drafter": cost(2.0, 15),
                "loop, perfect": {"seconds": 1.6 * slow, "same": True},
                "prompt lookup": cost(3.0 if name == "copy" else 6.0, 40),
                "transformers, plain": cost(12.0, 120),
                "transformers, prompt lookup": cost(9.0, 120),
            })  # fmt: skip
    return MADE_UP | {
        "block": 8, "new_tokens": 121, "rounds": 2, "threads": 2, "peer": peer, "runs": runs,
        "passes": {"1": [0.05, 0.1], "8": [0.1, 0.2]},
    }  # fmt: skip


def test_what_the_passes_allow_and_the_host_adds():
    """8 tokens a step, a pass of 8 is two plain steps: 4 times as fast; reached is 3."""
    share, host = speculation.efficiency(speculated())
    assert share.median == pytest.approx(75) and host.median == pytest.approx(25)


def test_the_table_of_prompt_lookup():
    found = rows(speculation.table(speculated()))
    assert found[2] == ["copy", "3.00", "2.00 (2.00 to 2.00)", "1.33 (1.33 to 1.33)",
                        "3.00 (3.00 to 3.00)"]  # fmt: skip
    assert found[-1][:2] == ["all", "3.00"] and len(found) == 2 + 3
    alone = rows(speculation.table(speculated("not installed")))
    assert [len(row) for row in alone] == [3] * len(alone)


# The number of drafts


def swept(drafts, name="lookup", group="math", **also):
    return {"drafter": name, "set": group, "drafts": drafts, "speedup": 1.5, "speedup_low": 1.4,
            "speedup_high": 1.6, "predicted": 1.2, "acceptance_length": 2.0, "draft_ms": 1.0,
            "verify_ms": 30.0, "mismatches": 0, "near_ties": 0} | also  # fmt: skip


def test_the_table_of_numbers_of_drafts():
    made_up = MADE_UP | {"prompts": 2, "runs": 3, "rows": [
        swept(drafts, name, group) for drafts in (2, 16) for name in sweep.DRAFTERS
        for group in sweep.SETS
    ]}  # fmt: skip
    made_up["rows"][1] |= {"speedup": 0.6, "mismatches": 3, "near_ties": 2}
    made_up["rows"][-1] |= {"predicted": None}
    found = sweep.table(made_up)
    assert rows(found)[2] == ["2", "1.50 / 1.20 (2.00)", "0.60 / 1.20 (2.00)", "1.50 / 1.20 (2.00)"]
    assert rows(found)[3][0] == "16" and "1.50 / – (2.00)" in found
    assert "Of 18 rows 1 lose" in found and "no near-tie: 1." in found
    assert "median 1.25, range 0.50 to 1.25" in found
    assert "2 prompts of each set, each timed 3 times" in found


def test_a_sweep_goes_on_and_knows_other_settings(tmp_path, monkeypatch):
    made = []

    def measured(settings, tasks):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append((settings.block, settings.max_new_tokens, [t.set for t in tasks]))
        entry = swept(0) | {"mode": "lookup"}
        entries = [entry, entry | {"mode": "plain"}, entry | {"set": "all"}]
        yield SimpleNamespace(so_far=None)
        yield SimpleNamespace(so_far=({"results": entries}, ""))

    monkeypatch.setattr(sweep, "measure_all", measured)
    partial = tmp_path / "deep" / "kept.json"
    with pytest.raises(KeyboardInterrupt):
        sweep.measure([1, 4, 16], 2, 8, 1, partial)
    made.append(None)
    found = sweep.measure([1, 4, 16], 2, 8, 1, partial)
    assert [m[0] for m in made if m] == [2, 5, 17]  # the last token and the drafts
    assert made[0][1:] == (8, ["chat", "code", "math"] * 2)
    assert [(row["drafter"], row["set"], row["drafts"]) for row in found["rows"]] == [
        ("lookup", "math", n) for n in (1, 4, 16)
    ]
    sweep.measure([1], 2, 9, 1, partial)
    assert made[-1][:2] == (2, 9)


# The published table
# -------------------


def test_the_sizes_behind_the_prediction_are_those_of_the_networks():
    counts = lambda tree: sum(x.size for x in jax.tree.leaves(tree))
    size = published.parameters()
    # Qwen3-4B has 4.0B parameters (its model card), its drafter 537,427,200 (dflash 0.1.0)
    assert size["target"] + size["head"] == counts(shapes("Qwen3-4B")) == 4_022_468_096
    assert size["drafter"] == 537_427_200


def test_a_pass_is_bound_by_memory_until_it_computes_for_longer(monkeypatch):
    chip = Chip("", (1, 1, 1), 0, bandwidth=100.0, peak=1000.0)
    monkeypatch.setitem(published.CHIPS, published.CHIP, chip)
    # 50 parameters: 100 bytes take 1 s; 10 tokens compute for 1 s, 20 for 2 s
    assert [published.roofline(50, n) for n in (1, 10, 20)] == [1000.0, 1000.0, 2000.0]


def test_published_speedups_are_the_ratio_of_their_times():
    printed = {"math500": 5.72, "aime24": 3.98, "aime25": 3.35, "gsm8k": 3.17, "humaneval": 3.53,
               "mbpp": 2.77, "mt-bench": 2.36, "alpaca": 1.65, "swe-bench": 1.60}  # fmt: skip
    for name, row in published.TABLE.items():
        assert row.plain / row.drafted == pytest.approx(printed[name], abs=0.02)


def test_the_prediction_by_hand():
    # 8.045 GB and 1.853 GB at 2765 GB/s: 2.910 and 0.670 ms; (2.910 + 0.670) / 8.80 = 0.407
    found = {row[0]: row[1:] for row in rows(published.table())}
    assert found["math500"] == ["8.80", "8.02", "0.41 / 1.40", "7.15 / 5.73", "12.3"]
    assert published.TABLE.keys() < found.keys()


# The study of four drafters


@pytest.fixture(scope="module")
def small_study(tmp_path_factory):
    """A study on a model of a few thousand weights: its arguments, a folder, its results."""
    place = tmp_path_factory.mktemp("study")
    model = write_hub(place / "model", num_hidden_layers=6, vocab_size=280)  # some for masks
    asked = [("Say hi!", "chat"), ("the in", "math"), ("What?", "chat"), ("er er", "code")]
    parts = dflash_lite.load(model)
    training.write_responses(*parts, asked, place / "data", max_new_tokens=24, rows=4,
                             progress=False)  # fmt: skip
    lines = [{"prompt": "hello there", "set": "chat"}, {"prompt": "1 + 1", "set": "math"}]
    (place / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    words = ["DATA", "--prompts", "PROMPTS", "--model", "MODEL", "--seeds", "1", "--steps", "2",
             "--rows", "2", "--minutes", "0.001", "--blocks", "3", "--per-set", "1",
             "--tokens", "12", "--runs", "1", "--place", "RUNS", "--output", "OUT"]  # fmt: skip
    names = {"DATA": place / "data", "PROMPTS": place / "prompts.jsonl", "MODEL": model,
             "RUNS": place / "runs", "OUT": place / "study.json"}  # fmt: skip
    words = [str(names.get(word, word)) for word in words]
    patch = pytest.MonkeyPatch()
    patch.setattr(study, "BATCHES", (2,))
    patch.setitem(study.SIZES, str(model), study.Sizes(1, 1, 16, 4, 3, 0, (1, 3, 5)))
    assert study.main(words) == 0
    yield words, place
    patch.undo()


def test_the_study_has_every_drafter_budget_and_block(small_study):
    _, place = small_study
    found = json.loads((place / "study.json").read_text())["found"]
    assert Counter((row["kind"], row["budget"]) for row in found["trained"]) == {
        (kind, budget): 1 for kind in study.KINDS for budget in (study.STEPS, study.TIME)
    }
    equal = {row["steps"] for row in found["trained"] if row["budget"] == study.STEPS}
    assert equal == {2}
    rows = {(row["kind"], row["budget"], row["block"], row["set"]) for row in found["rows"]}
    assert len(rows) == len(found["rows"]) == 5 * 2 * 3  # with plain; math, chat and all
    for row in found["rows"]:
        assert row["mismatches"] == row["near_ties"], row
        if row["kind"] != study.PLAIN:
            assert 1 <= row["acceptance_length"] <= row["block"]
            assert len(row["accepted_by_position"]) == row["block"] - 1
    batches = {(row["kind"], row["batch"], row["temperature"]) for row in found["batches"]}
    assert len(batches) == 4 * 2


def test_what_the_study_has_is_not_made_again(small_study, monkeypatch):
    words, place = small_study
    before = (place / "study.json").read_bytes()
    monkeypatch.setattr(study, "train_unit", None)
    monkeypatch.setattr(study, "measure_block", None)
    monkeypatch.setattr(study, "measure_batch", None)
    assert study.main(words) == 0
    assert (place / "study.json").read_bytes() == before


def test_the_best_block_is_that_of_the_median_speedup():
    speeds = {2: (1.0, 1.1, 1.2), 4: (0.5, 1.15, 3.0), 8: (0.1, 1.12, 1.13)}
    rows = [{"kind": "EAGLE-3", "set": "all", "block": block, "speedup": value}
            for block, values in speeds.items() for value in values]
    rows.append({"kind": "EAGLE-3", "set": "math", "block": 16, "speedup": 9.0})
    assert study.best_blocks(rows) == {"EAGLE-3": 4}
