"""`dflash-lite bench` and `dflash-lite compare`, on tiny random models."""

import ast
import collections
import copy
import io
import json
import os
import random
import statistics
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import write_hub
from rich.console import Console
from test_command_line import PATIENCE, Terminal, lines

import dflash_lite
from dflash_lite import benchmark, decoding, dflash, eagle, speculative
from dflash_lite.benchmark import Bench, Task
from dflash_lite.decoding import generate

COMMAND = [sys.executable, "-m", "dflash_lite"]
ROOT = str(Path(dflash_lite.__file__).parents[1])
SETS = ("math", "code", "chat", "copy")
PROMPTS = "".join(
    json.dumps({"prompt": f"{group} {n}: ab ab ab", "set": group}) + "\n"
    for group in SETS
    for n in range(2)
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module")
def folder(place):
    return str(write_hub(place / "secret-folder" / "tiny"))


@pytest.fixture(scope="module")
def pair(folder):
    return dflash_lite.load(folder)


@pytest.fixture(scope="module")
def prompts(place):
    path = place / "prompts.jsonl"
    path.write_text(PROMPTS)
    return str(path)


@pytest.fixture(scope="module")
def environment(place):
    """The variables of a plain terminal; tests share one cache of compiled programs."""
    ours = ("JAX_PLATFORMS", "DFLASH_", "PYTHON", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LC_",
            "LANG")  # fmt: skip
    kept = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    cache = {"DFLASH_LITE_CACHE": str(place / "cache"), "PYTHONPATH": ROOT}
    return kept | cache | {"TERM": "xterm", "LANG": "C.UTF-8"}


@pytest.fixture(scope="module")
def run(environment):
    """Runs `dflash-lite` with arguments, without a terminal."""

    def run(*arguments, **variables):
        return subprocess.run([*COMMAND, *arguments], env=environment | variables, text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE)

    return run


@pytest.fixture
def terminal(environment):
    opened = []

    def start(*arguments, channels=("stdin", "stdout", "stderr"), **variables):
        opened.append(Terminal(arguments, environment | variables, channels))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def make_bench(pair, names=("lookup", "replay"), tasks=2, sets=("math", "copy"),
               runs=2, new=12):
    """A `Bench` that has measured so many tasks of each set."""
    drafters = benchmark.make_drafters(names, pair[0], 4)
    bench = Bench(*pair, drafters, block=4, max_new_tokens=new, runs=runs)
    for number in range(tasks):
        for line, group in enumerate(sets, 1 + 10 * number):
            task = Task(f"{group} ab ab ab {number}", group, number, line)
            collections.deque(bench.measure(task), maxlen=0)
    return bench


@pytest.fixture(scope="module")
def bench(pair):
    return make_bench(pair)


# Drafters by name
# ----------------

UNTRAINED = ["lookup", "early-exit", "replay"]  # those that need no name of a checkpoint


def test_drafters_by_name(pair):
    model, _ = pair
    assert benchmark.make_drafter("lookup", model, 5) == speculative.PromptLookup(5)
    assert benchmark.make_drafter("lookup:3", model, 5).least == 3
    assert benchmark.make_drafter("early-exit", model, 5) == speculative.EarlyExit(1, 5)
    assert benchmark.make_drafter("early-exit:1", model, 7) == speculative.EarlyExit(1, 7)
    assert benchmark.make_drafter("replay:0.5", model, 5).share == 0.5
    assert list(benchmark.make_drafters(None, model, 5)) == UNTRAINED
    for kind in ("draft-model", "eagle", "dflash"):
        with pytest.raises(dflash_lite.UserError, match=f"expected {kind}: and the folder"):
            benchmark.make_drafter(kind, model, 5)
    for kind in ("eagle", "dflash"):
        with pytest.raises(dflash_lite.UserError, match="no drafter 'nowhere'"):
            benchmark.make_drafter(f"{kind}:nowhere", model, 5)
    assert benchmark.check_names("lookup, replay,lookup") == ["lookup", "replay"]


def test_trained_drafters_by_name(pair, tmp_path):
    model, _ = pair
    eagle.save_eagle(eagle.new_eagle(model, taps=(0, 1)), tmp_path / "eagle")
    made = benchmark.make_drafter(f"eagle:{tmp_path / 'eagle'}", model, 5)
    assert (made.block, made.taps) == (5, (0, 1))
    dflash.save_drafter(dflash.new_drafter(model, 3, layers=1), tmp_path / "dflash")
    assert benchmark.make_drafter(f"dflash:{tmp_path / 'dflash'}", model, 5).block == 5
    small = write_hub(tmp_path / "small", num_hidden_layers=1)
    made = benchmark.make_drafter(f"draft-model:{small}", model, 6)
    assert (made.block, made.model.config.num_hidden_layers) == (6, 1)


@pytest.mark.parametrize(
    "name, words",
    [
        ("crystal", "no drafter 'crystal'; expected some of lookup, early-exit, draft-model"),
        ("", "no drafter ''"),
        ("plain", "no drafter 'plain'"),
        ("early-exit:ten", "early-exit:10"),
        ("early-exit:3", "from 1 to 1"),
        ("lookup:0", "least is 0"),
        ("lookup:x", "lookup:3"),
        ("replay:2", "share is 2.0; expected a number from 0 to 1"),
        ("replay:nan", "share is nan"),
        ("lookup:65", "most ≤ 64"),
    ],
)
def test_a_wrong_drafter_gets_one_line(pair, name, words):
    with pytest.raises(dflash_lite.UserError, match=words) as error:
        benchmark.make_drafter(name, pair[0], 4)
    assert "\n" not in str(error.value)


def test_a_drafter_that_does_not_fit_is_left_out_unless_asked_for(tmp_path):
    model, _ = dflash_lite.load(write_hub(tmp_path / "one", num_hidden_layers=1))
    assert list(benchmark.make_drafters(None, model, 4)) == ["lookup", "replay"]
    with pytest.raises(dflash_lite.UserError, match="the model has 1"):
        benchmark.make_drafters(["early-exit"], model, 4)


@pytest.mark.parametrize("names", [None, ["lookup"]])
def test_a_block_beyond_the_context_leaves_no_drafter_out_in_silence(pair, names):
    with pytest.raises(dflash_lite.UserError, match="block is 2049; expected at most .* 2048 tok"):
        benchmark.make_drafters(names, pair[0], 2049)


# Prompts
# -------


def test_sets_take_turns():
    tasks = benchmark.parse_tasks(PROMPTS + '\n{"prompt": "Hi"}\r\n', "x")
    assert [task.set for task in tasks] == [*SETS, "prompts", *SETS]
    assert [task.number for task in tasks] == [0] * 5 + [1] * 4
    assert tasks[0] == Task("math 0: ab ab ab", "math", 0, 1) and tasks[4].line == 10


def test_sets_can_be_chosen(prompts):
    tasks = benchmark.read_tasks(Path(prompts), "copy, math")
    assert [task.set for task in tasks] == ["math", "copy", "math", "copy"]


def test_a_line_may_hold_any_separator_of_unicode(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes("\ufeff".encode() + json.dumps({"prompt": "a\u2028b"}, ensure_ascii=False)
                     .encode())
    assert benchmark.read_tasks(path, None)[0].prompt == "a\u2028b"


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "has no prompts"),
        (" \n\n", "has no prompts"),
        ("hello", "Line 1 of x is no JSON"),
        ("[" * 100_000, "Line 1 of x is no JSON"),
        ('{"prompt": "a"}\n{"promt": "b"}', "Line 2 of x has no prompt"),
        ('["a"]', "has no prompt"),
        ('{"prompt": 3}', "has no prompt"),
        ('{"prompt": " "}', "has no prompt"),
        ('{"prompt": "\\ud83d"}', "half a character"),
        ('{"prompt": "a", "set": ""}', "the set ''"),
        ('{"prompt": "a", "set": null}', "the set None"),
        ('{"prompt": "a", "set": "a|b"}', "the set 'a|b'"),
        ('{"prompt": "a", "set": "all"}', "rename it"),
    ],
)
def test_wrong_prompts_get_one_line(text, words):
    with pytest.raises(dflash_lite.UserError) as error:
        benchmark.parse_tasks(text, "x")
    assert words in str(error.value) and "\n" not in str(error.value)


# Turns
# -----


def test_the_order_rotates():
    orders = [benchmark.rotated("abc", turn) for turn in range(4)]
    assert ["".join(order) for order in orders] == ["abc", "bca", "cab", "abc"]


@pytest.mark.parametrize("runs", [1, 3])
def test_each_mode_begins_equally_often_in_each_set(pair, monkeypatch, runs):
    """Nothing is computed: only the order counts."""
    made = decoding.Generation([1], "a", "length", decoding.Statistics())
    monkeypatch.setattr(Bench, "ask", lambda self, ids, drafter: made)
    bench = make_bench(pair, tasks=3, sets=SETS[:2], runs=runs)
    firsts = collections.Counter(
        (entry["set"], entry["mode"]) for entry in bench.record["runs"] if entry["place"] == 0
    )
    assert len(firsts) == 6 and set(firsts.values()) == {runs}
    times = [(e["prompt"], e["run"]) for e in bench.record["runs"]]
    assert times == sorted(times, key=times.index), "the modes of a run stand together"
    assert len(set(times)) * 3 == len(times)


# What a run is
# -------------


def test_programs_are_compiled_before_the_first_run(pair, monkeypatch):
    bench, seen, ask = make_bench(pair, ["lookup"], tasks=0, new=30), [], Bench.ask

    def spy(self, ids, drafter):
        generation = ask(self, ids, drafter)
        seen.append(generation.statistics.compile_seconds)
        return generation

    monkeypatch.setattr(Bench, "ask", spy)
    monkeypatch.setattr(Bench, "take_apart", lambda *_: {"verify_ms": None, "draft_ms": {}})
    compiled = []
    for number, prompt in enumerate(["a b c d e f", "b c d e f"]):
        stages, seconds, asked = [], [], 0
        for stage in bench.measure(Task(prompt, "math", number, number)):
            stages.append(stage)
            seconds.append(sum(seen))
            asked += len(seen)
            seen.clear()
        timed = [s for s, stage in zip(seconds[1:], stages) if stage in bench.modes]
        assert len(timed) == 1 + 2 * 3 and not any(timed[3:]), "runs compile nothing"
        compiled.append((any(s > 0 for s in timed), asked))
    # a reference and four runs; the second prompt has the shapes of the first
    assert compiled == [(True, 2 + 5), (False, 5)]


def test_runs_hold_what_generate_reports(pair, bench):
    model, tokenizer = pair
    entry = next(e for e in bench.record["runs"] if e["mode"] == "replay")
    ids = bench.encode(Task(f"{entry['set']} ab ab ab 0", "", 0, 0))
    known = bench.table(ids, generate(model, tokenizer, ids, max_new_tokens=12))
    drafter = speculative.Replay(known, 4)
    expected = generate(model, tokenizer, ids, max_new_tokens=12, drafter=drafter).statistics
    for ours, theirs in {"tokens": "decode_tokens", "steps": "decode_steps",
                         "drafted": "drafted", "accepted": "accepted"}.items():
        assert entry[ours] == getattr(expected, theirs)
    assert entry["seconds"] > 0 and sum(entry["drafted"]) > 0


def test_replay_is_perfect_and_texts_are_equal(bench):
    replays = [e for e in bench.record["runs"] if e["mode"] == "replay"]
    assert replays and all(e["accepted"] == e["drafted"] != [] for e in replays)
    assert all(e["steps"] == 3 and e["tokens"] == 11 for e in replays), "4, 4 and 3"
    assert bench.record["checks"] == []


# Parts of a step
# ---------------


@pytest.mark.parametrize("other", [speculative.PromptLookup(4), speculative.EarlyExit(1, 4)])
def test_a_drafter_beside_a_replay_changes_nothing(pair, other):
    model, tokenizer = pair
    ids = [5, 6, 7, 8] * 6
    plain = generate(model, tokenizer, ids, max_new_tokens=12)
    known = benchmark.table(ids, plain.tokens, 12, 2048)
    for drafter in (benchmark.beside_class()(known, 4, 1.0, other),
                    speculative.Replay(known, 4)):
        beside = generate(model, tokenizer, ids, max_new_tokens=12, drafter=drafter)
        assert beside.tokens == plain.tokens
        assert beside.statistics.decode_steps == 3
        assert beside.statistics.accepted == beside.statistics.drafted


def test_a_drafter_beside_a_replay_reads_and_watches_too():
    class Other:
        taps, reads = (1, 2), True

        def __getattr__(self, name):
            return lambda *context: (name, context)

    beside = benchmark.beside_class()(np.zeros((1, 4), np.int32), 4, 1.0, Other())
    assert isinstance(beside, decoding.Drafter)
    assert (beside.taps, beside.reads, beside.sparing) == ((1, 2), True, False)
    for name in ("begin", "read", "observe"):
        assert getattr(beside, name)("model", 3) == (name, ("model", 3))


def test_the_compiler_keeps_the_guess_of_a_drafter_beside_a_replay(pair):
    """Else its time would be nothing: the program must compute more than without it."""
    model, _ = pair
    known = benchmark.table([5, 6, 7], [8] * 12, 12, 2048)
    sampling, mode = decoding.make_sampling(model, 1, 0.0, None, None, 0)
    stops = jnp.array([-1], jnp.int32)
    plan = lambda drafter: decoding.prefill.lower(
        model, np.ones((1, 16), np.int32), np.array([3]), np.array([15]), stops, sampling, 32,
        mode, None,
    ).out_info._replace(progress=drafter.start(model, 1, 32))
    flops = {}
    for name, drafter in {"alone": speculative.Replay(known, 4), "beside": benchmark.beside_class()(
        known, 4, 1.0, speculative.PromptLookup(4)
    )}.items():
        how = (model, plan(drafter), stops, sampling, np.int32(4), mode, drafter)
        flops[name] = decoding.decode.lower(*how).compile().cost_analysis()["flops"]
    assert flops["beside"] - flops["alone"] > 32 * 4, "four comparisons with each token"


def test_the_table_has_one_shape_for_each_bucket():
    widths = {benchmark.table([1] * n, [2] * k, 12, 2048).shape for n in (17, 32) for k in (0, 12)}
    assert len(widths) == 1
    known = benchmark.table([1, 2], [3], 12, 2048)[0].tolist()
    assert known[:4] == [1, 2, 3, -1] and set(known[3:]) == {-1}
    assert benchmark.table([1] * 60, [2] * 4, 10**9, 64).shape[1] <= 128


# Near-ties
# ---------


@pytest.mark.parametrize(
    "a, b, place", [("abc", "abc", None), ("abc", "abd", 2), ("ab", "abc", 2), ("", "a", 0)]
)
def test_first_difference(a, b, place):
    assert benchmark.first_difference(list(a), list(b)) == place
    assert benchmark.first_difference(list(b), list(a)) == place


def test_the_gap_is_that_of_the_models_logits(pair):
    model, tokenizer = pair
    ids = [5, 6, 7, 5, 6, 9, 100, 8] * 2
    hidden = model(jnp.array([ids])).hidden
    logits = np.asarray(model.logits(hidden)[0, -1], np.float64)
    spread = logits.max() - logits.min()
    order = logits.argsort()[::-1].tolist()
    gap = lambda *tokens: benchmark.logit_gap(model, ids, tokens, tokenizer.stop_ids)
    assert gap(order[0], order[0]) == pytest.approx(0, abs=1e-6)
    assert gap(order[0], order[3]) == pytest.approx((logits.max() - logits[order[3]]) / spread,
                                                    rel=1e-3)
    assert gap(order[3], order[1]) == gap(order[0], order[3]), "the worse of both counts"
    stop = (logits.max() - logits[list(tokenizer.stop_ids)].max()) / spread
    assert gap(order[0], None) == pytest.approx(stop, rel=1e-3)
    assert benchmark.logit_gap(model, ids, (order[0], None), ()) is None
    beyond = (*tokenizer.stop_ids, 2**31 - 1)  # a token that the model does not have
    found = benchmark.logit_gap(model, ids, (order[0], None), beyond)
    assert found == gap(order[0], None)
    assert benchmark.logit_gap(model, ids, (order[0], None), (2**31 - 1,)) is None


def test_the_gap_of_a_narrow_model_is_computed_in_float32(folder, pair):
    narrow, _ = dflash_lite.load(folder, "bfloat16")
    gap = lambda model: benchmark.logit_gap(model, [5, 6, 7, 9], (3, 4), ())
    assert gap(narrow) == pytest.approx(gap(pair[0]), abs=0.02)
    assert narrow.embed_tokens.dtype == jnp.bfloat16, "the model itself stays narrow"


def test_a_wrong_token_is_no_near_tie_and_a_tie_is_one(pair):
    bench = make_bench(pair, tasks=0)
    ids = [5, 6, 7, 8] * 6
    plain = bench.ask(ids, None).tokens
    wrong = [*plain[:4], (plain[4] + 1) % 200, *plain[5:]]
    found = bench.compare(ids, plain, wrong)
    assert (found["position"], found["near_tie"]) == (4, False) and found["gap"] > 1e-3
    assert bench.compare(ids, plain, plain[:]) is None
    # with two equal rows in the head both tokens are the best
    head = np.asarray(pair[0].embed_tokens[...])
    twin = (plain[0] + 1) % 200
    model, tokenizer = copy.deepcopy(pair[0]), pair[1]
    rows = head.copy()
    rows[twin] = rows[plain[0]]
    model.embed_tokens[...] = jnp.asarray(rows)
    if twin not in ids and plain[0] not in ids:
        tied = Bench(model, tokenizer, {}, 4)
        assert tied.compare(ids, [plain[0]], [twin])["near_tie"]


@pytest.mark.parametrize("gap, dtype, tie", [
    (1e-5, "float32", True), (1e-4, "float32", False), (1e-4, "bfloat16", True),
    (0.05, "bfloat16", False), (None, "float32", False),
])  # fmt: skip
def test_the_limit_of_a_near_tie_is_near(pair, folder, monkeypatch, gap, dtype, tie):
    """Float32's rounding moves logits by some millionths of their spread."""
    monkeypatch.setattr(benchmark, "logit_gap", lambda *_: gap)
    bench = Bench(*dflash_lite.load(folder, dtype), {}, 4)
    assert bench.compare([1], [2], [3]) == {"position": 0, "gap": gap, "near_tie": tie}


def test_rounding_alone_is_a_near_tie(pair):
    """The same tokens in a pass over few and in one over many."""
    model, _ = pair
    ids = np.random.default_rng(0).integers(0, 200, (1, 60))
    many, few = (np.asarray(model.logits(model(x).hidden)[0]) for x in (ids, ids[:, :7]))
    moved = np.abs(many[:7] - few).max(-1) / np.ptp(many[:7], axis=-1)
    assert moved.max() < benchmark.NEAR_TIE["float32"]


def test_mismatches_are_found_and_told_apart(pair, monkeypatch):
    bench = make_bench(pair, names=["lookup"], tasks=0)
    ask = Bench.ask

    def lie(self, ids, drafter):
        generation = ask(self, ids, drafter)
        if drafter is not None and not hasattr(drafter, "answers"):
            generation.tokens[3] = (generation.tokens[3] + 1) % 200
        return generation

    bench.ask = lie.__get__(bench)
    collections.deque(bench.measure(Task("math ab ab ab 0", "math", 0, 1)), maxlen=0)
    by_mode = {(e["mode"], e["set"]): e for e in benchmark.summarise(bench.record)}
    assert by_mode["lookup", "all"]["mismatches"] == 1, "two runs of one prompt"
    assert by_mode["lookup", "all"]["near_ties"] == 0
    assert by_mode["plain", "all"]["mismatches"] == 0
    assert bench.record["checks"][0]["position"] == 3


# Statistics
# ----------


def bootstrap_by_loops(values, resamples, seed):
    """The same method, one resample at a time, from other random numbers."""
    draw = random.Random(seed)
    medians = sorted(
        statistics.median(draw.choices(values, k=len(values))) for _ in range(resamples)
    )
    return medians[int(0.025 * resamples)], medians[int(0.975 * resamples)]


@pytest.mark.parametrize("count", [5, 24, 97])
def test_the_interval_equals_that_of_loops(count):
    values = np.random.default_rng(count).lognormal(0.5, 0.4, count).tolist()
    low, high = benchmark.bootstrap(values)
    slow_low, slow_high = bootstrap_by_loops(values, 4000, seed=1)
    spread = max(values) - min(values)
    assert low == pytest.approx(slow_low, abs=0.03 * spread)
    assert high == pytest.approx(slow_high, abs=0.03 * spread)
    assert low < statistics.median(values) < high
    assert benchmark.bootstrap(values, 50) == benchmark.bootstrap(values, 50), "the same each time"
    assert benchmark.RESAMPLES >= 2000


def fake_record():
    """Two sets, two modes, three runs; seconds drawn so that nothing is symmetric."""
    draw = np.random.default_rng(3)
    record = {name: [] for name in ("runs", "checks", "parts", "compilations")}
    for prompt in range(9):
        label = {"prompt": prompt, "set": "math" if prompt % 3 else "copy"}
        for mode in ("plain", "lookup"):
            seconds = float(prompt == 0 or prompt == 4)
            record["compilations"].append(label | {"mode": mode, "compile_seconds": seconds})
            for run in range(3):
                drafts = mode == "lookup"
                drafted = sorted(draw.integers(0, 9, 3).tolist(), reverse=True)
                entry = {
                    "mode": mode, "run": run, "place": 0, "prefill_seconds": 1.0,
                    "seconds": float(draw.uniform(1, 3)), "tokens": 20 + prompt,
                    "steps": 7 + prompt if drafts else 20 + prompt,
                    "drafted": drafted * drafts,
                    "accepted": [d // 2 for d in drafted] * drafts,
                }
                record["runs"].append(label | entry)
        for run in range(3):
            part = {"run": run, "verify_ms": float(draw.uniform(5, 9)),
                    "draft_ms": {"lookup": float(draw.uniform(0, 1))}}
            record["parts"].append(label | part)
    tie = {"mode": "lookup", "position": 1, "gap": 1e-9, "near_tie": True}
    for prompt, near in ((1, True), (1, True), (2, True), (2, False)):
        group = {"prompt": prompt, "set": "math"}
        record["checks"].append(group | tie | {"near_tie": near})
    return record


@pytest.mark.parametrize("group", ["math", "copy", "all"])
def test_results_equal_a_recount(group):
    record = fake_record()
    (found,) = [
        entry for entry in benchmark.summarise(record)
        if (entry["set"], entry["mode"]) == (group, "lookup")
    ]
    inside = lambda e: group == "all" or e["set"] == group
    per_prompt = collections.defaultdict(list)
    tokens = steps = seconds = 0
    drafted, accepted = [0, 0, 0], [0, 0, 0]
    for entry in record["runs"]:
        if entry["mode"] != "lookup" or not inside(entry):
            continue
        (plain,) = [e for e in record["runs"] if e["mode"] == "plain"
                    and (e["prompt"], e["run"]) == (entry["prompt"], entry["run"])]
        per_prompt[entry["prompt"]].append(plain["seconds"] / entry["seconds"])
        tokens, steps = tokens + entry["tokens"], steps + entry["steps"]
        seconds += entry["seconds"]
        for i in range(3):
            drafted[i] += entry["drafted"][i]
            accepted[i] += entry["accepted"][i]
    ratios = [statistics.median(values) for values in per_prompt.values()]
    assert found["prompts"] == len(ratios) and found["runs"] == 3
    assert found["speedup"] == pytest.approx(statistics.median(ratios))
    interval = benchmark.bootstrap(ratios)
    assert (found["speedup_low"], found["speedup_high"]) == pytest.approx(interval)
    assert found["tokens_per_second"] == pytest.approx(tokens / seconds)
    assert found["acceptance_length"] == pytest.approx(tokens / steps)
    shares = [a / d for a, d in zip(accepted, drafted, strict=True)]
    assert found["accepted_by_position"] == pytest.approx(shares)
    parts = [e for e in record["parts"] if inside(e)]
    assert found["verify_ms"] == statistics.median(e["verify_ms"] for e in parts)
    assert found["draft_ms"] == statistics.median(e["draft_ms"]["lookup"] for e in parts)
    assert found["compile_seconds"] == {"math": 1.0, "copy": 1.0, "all": 2.0}[group]
    expected = (0, 0) if group == "copy" else (2, 1)
    assert (found["mismatches"], found["near_ties"]) == expected


def test_plain_decoding_is_once_as_fast_as_itself():
    plain = benchmark.summarise(fake_record())[-2]
    assert (plain["mode"], plain["set"]) == ("plain", "all")
    assert (plain["speedup"], plain["speedup_low"], plain["speedup_high"]) == (1, 1, 1)
    assert plain["accepted_by_position"] == [] and plain["verify_ms"] is None


def test_an_answer_of_one_token_has_no_speedup():
    record = fake_record()
    for entry in record["runs"]:
        if entry["prompt"] == 0:
            entry |= {"tokens": 0, "steps": 0, "seconds": 0.0}
        if entry["prompt"] == 1 and entry["mode"] == "lookup":
            entry |= {"tokens": 0, "steps": 0, "seconds": 0.0}
    entries = benchmark.summarise(record)
    assert entries[-1]["prompts"] == 9 and entries[-1]["speedup"] is not None
    for entry in record["runs"]:
        entry |= {"tokens": 0, "steps": 0, "seconds": 0.0}
    last = benchmark.summarise(record)[-1]
    assert last["speedup"] is last["acceptance_length"] is last["tokens_per_second"] is None


def test_bench_of_single_tokens_ends_well(pair):
    bench = make_bench(pair, tasks=1, new=1)
    entry = benchmark.summarise(bench.record)[-1]
    assert entry["speedup"] is None and entry["verify_ms"] is None
    settings = benchmark.BenchSettings()
    results = benchmark.as_results(bench, settings, benchmark.machine(), 2)
    assert "| – |" in benchmark.markdown(results)
    assert benchmark.picture(results, "png").startswith(b"\x89PNG")


# Results
# -------

KEYS = (
    "mode set prompts runs tokens_per_second speedup speedup_low speedup_high "
    "predicted acceptance_length accepted_by_position draft_ms verify_ms compile_seconds "
    "mismatches near_ties"
).split()


@pytest.fixture(scope="module")
def benched(run, folder, prompts, place):
    """One whole run of the command: what it printed, and its files."""
    files = place / "results.json", place / "plot.svg"
    ended = run("bench", "--model", folder, "--prompts", prompts, "--max-new-tokens", "12",
                "--runs", "1", "--block", "4", "--sets", "math,copy",
                "--json", str(files[0]), "--plot", str(files[1]))
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout, *files


def test_the_json_file_has_all(benched, folder):
    results = json.loads(benched[1].read_text())
    assert results["format"] == benchmark.FORMAT and results["complete"] is True
    modes = ["plain", *UNTRAINED]
    cells = [(entry["set"], entry["mode"]) for entry in results["results"]]
    assert cells == [(group, mode) for group in ("math", "copy", "all") for mode in modes]
    assert all(set(KEYS) <= set(entry) for entry in results["results"])
    assert len(results["runs"]) == 4 * len(modes) and len(results["parts"]) == 4
    assert all(entry["prompts"] == (4 if entry["set"] == "all" else 2)
               for entry in results["results"])
    assert results["settings"] == {
        "model": "tiny", "dtype": "float32", "drafters": modes[1:], "block": 4,
        "max_new_tokens": 12, "runs": 1, "prompts": 4,
    }
    machine = results["machine"]
    assert machine["platform"] == "cpu" and machine["versions"]["jax"]
    record = {name: results[name] for name in ("runs", "checks", "parts", "compilations")}
    assert benchmark.summarise(record) == results["results"], "anyone can compute again"


def test_results_name_no_host_and_no_path(benched):
    text = benched[1].read_text()
    assert "secret-folder" not in text and os.uname().nodename not in text
    assert ROOT not in text


def test_the_table_is_what_the_file_says(benched):
    results = json.loads(benched[1].read_text())
    assert benched[0] == benchmark.markdown(results)
    table = [line for line in lines(benched[0]) if line.startswith("|")]
    assert len(table) == 2 + 12
    assert {line.count("|") for line in table} == {len(benchmark.HEADER) + 1}
    assert "| replay |" in table[-1] and "100 100 100" in table[-1]
    for word in ("bonus counted", "near-ties", "95% bootstrap", "greedy"):
        assert word in benched[0]


def test_the_law_is_that_of_the_costs():
    """100 tokens at 20 ms each; 40 steps, half of which draft and verify for 30 + 5 ms."""
    plain = [{"seconds": 1.0, "steps": 50, "tokens": 50, "drafted": []}] * 2
    runs = [{"steps": 25, "tokens": 60, "drafted": [20, 9]}, {"steps": 15, "tokens": 40,
                                                              "drafted": []}]  # fmt: skip
    law = lambda *ms: benchmark.predicted(plain, runs, *ms)
    assert law(30, 5) == pytest.approx(100 * 20 / (20 * 20 + 20 * 30 + 40 * 5))
    assert law(30, -5) == law(30, 0) == pytest.approx(100 * 20 / (20 * 20 + 20 * 30))
    assert law(None, 5) is law(30, None) is None
    assert benchmark.predicted(plain, [], 30, 5) is benchmark.predicted([], runs, 30, 5) is None


def test_what_is_always_drafted_is_predicted_by_the_law_of_chapter_6():
    plain = [{"seconds": 2.0, "steps": 100, "tokens": 100, "drafted": []}]
    runs = [{"steps": 32, "tokens": 62, "drafted": [32, 32, 32, 32]}]  # 1 + 1/2 + … + 1/16 a step
    expected = speculative.predicted_speedup(0.5, 4, verify=30 / 20, draft=5 / 20)
    assert benchmark.predicted(plain, runs, 30, 5) == pytest.approx(expected)


def test_the_prediction_stands_beside_what_was_measured(benched):
    results = json.loads(benched[1].read_text())
    for entry in results["results"]:
        assert (entry["predicted"] is None) == (entry["mode"] == "plain")
    heads, _, *rows = [[cell.strip() for cell in line.split("|")] for line in lines(benched[0])
                       if line.startswith("|")]  # fmt: skip
    at = heads.index("predicted")
    assert heads[at - 1] == "speedup (95%)"
    shown = [row[at] for row in rows]
    assert shown == [benchmark.shown(entry["predicted"]) for entry in results["results"]]


def test_the_machine_is_described_once(monkeypatch):
    """With a Mac's way to its processor's name; and without any."""
    about = benchmark.machine()
    assert {name: about[name] for name in ("processor", "cores", "system")} == benchmark.hardware()

    def missing(*_, **__):
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    answer = lambda *_, **__: subprocess.CompletedProcess([], 0, "Apple M1\n")
    monkeypatch.setattr(subprocess, "run", answer)
    assert benchmark.processor() == "Apple M1"
    monkeypatch.setattr(subprocess, "run", missing)
    assert benchmark.processor()


def test_one_set_needs_no_row_for_all_sets():
    entry = benchmark.summarise(fake_record())
    some = [e for e in entry if e["set"] in ("math", "all")]
    results = {"results": some, "machine": benchmark.machine(),
               "settings": {"prompts": 6} | vars(benchmark.BenchSettings())}
    assert "| all |" not in benchmark.markdown(results)
    assert "| math |" in benchmark.markdown(results)


def test_the_plot_tells_modes_apart_without_colour(benched):
    assert benched[2].read_text().lstrip().startswith("<?xml")
    results = json.loads(benched[1].read_text())
    figure = benchmark.draw_speedups(results)
    bars = figure.axes[0].containers
    hatches = [c.patches[0].get_hatch() for c in bars if hasattr(c, "patches")]
    assert len(hatches) == 3 == len(set(hatches))
    assert figure.get_facecolor() == (1, 1, 1, 1), "readable on a dark page"


def test_no_other_file_is_left(benched, place):
    assert not list(place.glob("*.part")) and not list(place.glob(".*.part"))


# Files
# -----


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "r.json"
    benchmark.write_whole(path, b"old")
    assert path.read_bytes() == b"old"

    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(KeyboardInterrupt):
        benchmark.write_whole(path, b"new")
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["r.json"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "real")
    benchmark.write_whole(tmp_path / "link", b"x")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_bytes() == b"x"


def test_checking_leaves_nothing_behind(tmp_path):
    (tmp_path / "old").write_text("old")
    benchmark.check_writable(tmp_path / "old")
    benchmark.check_writable(tmp_path / "new.png", (".png",))
    assert os.listdir(tmp_path) == ["old"] and (tmp_path / "old").read_text() == "old"


@pytest.mark.parametrize(
    "name, words",
    [
        ("", "no file that could be replaced"),
        ("missing/x.json", "There is no folder"),
        ("/dev/null", "no file that could be replaced"),
        ("/proc/x.json", "cannot be written"),
        ("a" * 300, ""),
    ],
)
def test_an_unwritable_file_gets_one_line(tmp_path, name, words):
    with pytest.raises((dflash_lite.UserError, OSError)) as error:
        benchmark.check_writable(tmp_path / name)
    assert words in str(error.value)


# Mistakes
# --------


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--prompts", "nowhere.jsonl"], "nowhere.jsonl: No such file"),
        (["--prompts", "/"], "Is a directory"),
        (["--prompts", "LATIN"], "not UTF-8: byte 12 is 0xe4"),
        (["--prompts", "LONG"], "line 2 has"),
        (["--sets", "maths"], "the set 'maths' of prompts.jsonl; expected some of math, code"),
        (["--sets", ""], "the set ''"),
        (["--drafters", "crystal"], "no drafter 'crystal'"),
        (["--drafters", "early-exit:9"], "from 1 to 1"),
        (["--model", "nothing"], "no model 'nothing'"),
        (["--json", "/"], "no file that could be replaced"),
        (["--json", "/nowhere/x.json"], "no folder /nowhere"),
        (["--plot", "x.txt"], "ends in .png"),
        (["--json", "x.svg", "--plot", "x.svg"], "--json and --plot both name"),
        (["--block", "9999"], "at most the model's context"),
        (["--prompts", "/dev/zero"], "is larger than"),
    ],
)
def test_a_mistake_gets_one_line_before_anything_is_measured(
    run, folder, prompts, tmp_path, flags, words
):
    files = {"LATIN": '{"prompt": "ä"}'.encode("latin-1"),
             "LONG": b'{"prompt": "a"}\n' + json.dumps({"prompt": "abc " * 900}).encode()}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    flags = [str(tmp_path / f) if f in files else f for f in flags]
    given = {"--model": folder, "--prompts": prompts, "--json": str(tmp_path / "r.json")}
    given |= dict(zip(flags[::2], flags[1::2], strict=True))
    ended = run("bench", *[part for pair in given.items() for part in pair])
    (line,) = lines(ended.stderr)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert line.startswith("dflash-lite: ") and words in line
    assert sorted(os.listdir(tmp_path)) == ["LATIN", "LONG"]


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["bench", "--block", "1"], "--block"),
        (["bench", "--runs", "0"], "--runs"),
        (["bench", "--max-new-tokens", "0"], "--max-new-tokens"),
        (["bench", "--dtype", "int4"], "--dtype"),
        (["compare", "--block", "1", "Hi"], "--block"),
        (["compare", "--top-p", "0", "--model", "none", "Hi"], "top_p is 0.0"),
        (["compare", "--raw", "--system", "x", "Hi"], "--system"),
    ],
)
def test_wrong_usage_gets_code_2(run, arguments, words):
    ended = run(*arguments, COLUMNS="200")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert words in ended.stderr and "Traceback" not in ended.stderr


def test_a_package_without_prompts_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(benchmark.resources, "files", lambda package: tmp_path)
    with pytest.raises(dflash_lite.UserError, match=r"prompts\.jsonl: No such file"):
        benchmark.read_tasks(None, None)


def test_a_file_that_is_too_large_is_not_called_wrong(tmp_path, monkeypatch):
    """Its last byte that is read is half of a character."""
    monkeypatch.setattr(benchmark, "LARGEST_FILE", 30)
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "' + "é" * 30 + '", "set": "a"}', "utf-8")
    assert path.read_bytes()[30:31] == "é".encode()[:1]
    with pytest.raises(dflash_lite.UserError, match="larger than 30 bytes"):
        benchmark.read_tasks(path, None)


# Ctrl-C
# ------

# The side that shows the results stops; what it has taken is certain.
STUCK = """
import sys, time
import dflash_lite.benchmark as b
in_background = b.in_background
def stuck(work):
    for event in in_background(work):
        yield event
        if event.stage.startswith(STOP) and (RESULT == "" or event.so_far):
            print("stuck", file=sys.stderr, flush=True)
            time.sleep(60)
STOP, RESULT = sys.argv.pop(1), sys.argv.pop(1)
b.in_background = stuck
b.main()
"""


@pytest.mark.parametrize("stop, rows", [("code", 4), ("math", 0)])
def test_interrupt_keeps_the_results_of_whole_prompts(
    terminal, folder, prompts, tmp_path, stop, rows
):
    file = tmp_path / "r.json"
    session = terminal(
        sys.executable, "-c", STUCK, stop, "", "bench", "--model", folder, "--prompts", prompts,
        "--max-new-tokens", "12", "--runs", "1", "--block", "4", "--json", str(file),
        "--plot", str(tmp_path / "r.png"), channels=["stdin", "stderr"],
    )
    session.read(until="stuck")
    session.interrupt()
    code, shown, piped = session.end()
    assert code == 130 and "Traceback" not in shown and "interrupted" in shown
    assert piped.count("| math |") == rows
    assert sorted(os.listdir(tmp_path)) == (["r.json", "r.png"] if rows else [])
    if rows:
        results = json.loads(file.read_text())
        assert results["complete"] is False and len(results["runs"]) == 4
        assert piped == benchmark.markdown(results) and "1 of 8 prompts" in piped


def test_progress_is_shown_on_a_terminal_only(terminal, folder, prompts):
    session = terminal(
        *COMMAND, "bench", "--model", folder, "--prompts", prompts, "--sets", "math",
        "--max-new-tokens", "12", "--runs", "1", "--drafters", "lookup", "--block", "4",
        channels=["stderr"],
    )
    code, shown, piped = session.end()
    assert code == 0 and "math 2, lookup" in shown and "%" in shown
    assert "\x1b" not in piped and "| math | lookup |" in piped


def test_a_write_that_was_interrupted_is_made_up_for(tmp_path, monkeypatch):
    """Ctrl-C comes in the middle of the second write."""
    writes = []

    def write(path, data):
        writes.append(data)
        if len(writes) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(benchmark, "write_whole", write)
    events = (benchmark.Event("a", 0.1, ({"n": n}, f"text {n}")) for n in range(3))
    assert benchmark.watch(events, tmp_path / "x") == ({"n": 1}, False)
    assert writes == [b"text 0\n", b"text 1\n", b"text 1\n"]


# compare
# -------


def test_compare_prints_a_table_and_nothing_else(run, folder):
    ended = run("compare", "--model", folder, "--max-new-tokens", "12", "--block", "4",
                "ab ab ab ab ab")
    assert ended.returncode == 0 and "\x1b" not in ended.stdout + ended.stderr
    rows = [line.split() for line in lines(ended.stdout) if line.strip()]
    assert [row[0] for row in rows[2:]] == ["plain", *UNTRAINED]
    assert all(len(line) <= 80 for line in lines(ended.stdout))
    (note,) = lines(ended.stderr)
    assert "bonus counted" in note


def test_a_table_of_the_usual_block_fits_a_terminal():
    entry = {"mode": "early-exit", "finish_reason": "stop", "tokens_per_second": 123.4,
             "ratio": 1.0, "acceptance_length": 2.0, "accepted_by_position": [1.0] * 7,
             "same_text": True}  # fmt: skip
    with io.StringIO() as shown:
        Console(file=shown, width=80).print(benchmark.compare_table([entry] * 2))
        rows = [line for line in lines(shown.getvalue()) if line.strip()]
    assert len(rows) == 4 and all(len(row) <= 80 for row in rows)


def test_compare_says_why_a_drawn_text_is_another(run, folder):
    ended = run("compare", "--model", folder, "--max-new-tokens", "24", "--temperature", "2",
                "--drafters", "early-exit", "ab ab")
    assert lines(ended.stdout)[-1].split()[-1] == "other"
    _, why = lines(ended.stderr)
    assert why.startswith("Other: a drafter that draws")


def test_compare_ends_a_closed_pipe_as_every_command_does(environment, folder):
    command = [*COMMAND, "compare", "--model", folder, "--drafters", "lookup",
               "--max-new-tokens", "4", "ab ab"]  # fmt: skip
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)  # fmt: skip
    process.stdout.close()
    assert process.stderr.read() == "" and process.wait(PATIENCE) == 141
    process.stderr.close()


def test_a_narrow_terminal_loses_no_number(capsys):
    entry = {"mode": "early-exit", "finish_reason": "stop", "tokens_per_second": 1234.5,
             "ratio": 1.25, "acceptance_length": 2.5, "accepted_by_position": [1.0] * 15,
             "same_text": True}  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "20")
        benchmark.show_comparison([entry], benchmark.Settings(), 16, False)
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert all(word in shown.split() for word in ("early-exit", "1234.5", "1.25", "2.50", "same"))


def test_compare_json(run, folder):
    ended = run("compare", "--model", folder, "--json", "--block", "4", "--max-new-tokens", "12",
                "--drafters", "replay,lookup", "ab ab ab ab ab")
    assert (ended.returncode, ended.stderr) == (0, "")
    record = json.loads(ended.stdout)
    plain, replay, lookup = record["modes"]
    assert [e["mode"] for e in record["modes"]] == ["plain", "replay", "lookup"]
    assert plain["text"] == replay["text"] == lookup["text"] != ""
    assert plain["same_text"] is replay["same_text"] is lookup["same_text"] is True
    assert plain["ratio"] == 1 and plain["compile_seconds"] > 0
    assert replay["acceptance_length"] == pytest.approx(11 / 3)
    assert replay["accepted_by_position"] == [1.0, 1.0, 1.0]
    assert record["settings"]["model"] == "tiny" and record["settings"]["block"] == 4
    assert "secret-folder" not in ended.stdout


def test_options_of_compare_reach_generate(pair, monkeypatch):
    calls = []

    def opened(name, dtype):
        calls.append((name, dtype))
        yield benchmark.Event("Loading")
        return pair

    def asked(model, tokenizer, prompt, **options):
        calls.append((prompt, options))
        return generate(model, tokenizer, prompt, max_new_tokens=0, stream=True)

    monkeypatch.setattr(benchmark, "open_model", opened)
    monkeypatch.setattr(decoding, "generate", asked)
    options = {"max_new_tokens": 9, "temperature": 1.5, "top_k": 7, "top_p": 0.9, "seed": 3,
               "chat": True, "system": "Be kind."}  # fmt: skip
    settings = benchmark.Settings("a model", "bfloat16", *options.values())
    assert list(benchmark.compare_all("Hi", settings, ["lookup"], 5))
    assert calls.pop(0) == ("a model", "bfloat16")
    assert [drafter["drafter"] for _, drafter in calls] == [
        None, None, speculative.PromptLookup(5), speculative.PromptLookup(5)
    ]
    for prompt, given in calls:
        assert prompt == "Hi" and given | options == given and given["stream"] is True


def test_compare_is_live_on_a_terminal(terminal, folder):
    session = terminal(*COMMAND, "compare", "--model", folder, "--max-new-tokens", "12",
                       "--block", "4", "ab ab ab ab ab", channels=["stderr"])
    code, shown, piped = session.end()
    assert code == 0 and "replay …" in shown and "tokens/s" in shown
    assert "\x1b" not in piped and "early-exit" in piped
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h"), "the cursor is back"


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_interrupt_of_compare_shows_what_there_is(terminal, folder, flags):
    session = terminal(sys.executable, "-c", STUCK, "lookup", "result", "compare",
                       "--model", folder, "--max-new-tokens", "12", "--block", "4", *flags,
                       "ab ab ab ab ab", channels=["stdin", "stderr"])
    session.read(until="stuck")
    session.interrupt()
    code, shown, piped = session.end()
    assert code == 130 and "Traceback" not in shown
    assert "plain" in piped and "lookup" in piped and "replay" not in piped
    if flags:
        plain, cut = json.loads(piped)["modes"]
        assert (plain["finish_reason"], cut["finish_reason"]) == ("length", "interrupted")
        assert 0 < cut["tokens"] < 12 and cut["same_text"] is True
    else:
        assert "lookup (cut)" in piped


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--model", "nothing", "Hi"], "no model 'nothing'"),
        (["--drafters", "crystal", "Hi"], "no drafter 'crystal'"),
        ([" "], "empty"),
        (["word " * 1000], "context"),
    ],
)
def test_a_mistake_in_compare_gets_one_line(run, folder, arguments, words):
    ended = run("compare", "--model", folder, *arguments)
    (line,) = lines(ended.stderr)
    assert (ended.returncode, ended.stdout) == (1, "") and words in line


def test_nothing_to_write_is_no_error(run, folder):
    ended = run("compare", "--model", folder, "--max-new-tokens", "0", "Hi")
    assert ended.returncode == 0 and "plain" in ended.stdout


# Start
# -----


def test_help_lists_all_commands_and_loads_no_large_library():
    code = (
        "import contextlib, io, sys, dflash_lite.benchmark as b\n"
        "try: b.main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "large = {'jax', 'numpy', 'matplotlib', 'tqdm', 'dflash_lite.checkpoints'}\n"
        "loaded = large & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    for arguments in (["--help"], ["bench", "-h"], ["compare", "-h"]):
        shown = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True,
                               text=True, check=True, env=os.environ | {"PYTHONPATH": ROOT})
        if arguments == ["--help"]:
            for name in ("generate", "compare", "bench", "doctor"):
                assert f" {name} " in shown.stdout


def test_the_package_starts_here():
    tree = ast.parse((Path(ROOT) / "dflash_lite" / "__main__.py").read_text())
    imported = [a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names]
    assert imported == ["training_runs"]
