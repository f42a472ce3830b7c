"""The command `dflash-lite train`, on a model of a few thousand weights."""

import json
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import write_hub
from typer.testing import CliRunner

import dflash_lite
from dflash_lite import benchmark, training, training_runs as runs

PROMPTS = [("Say hi!", "chat"), ("the in", "math"), ("What?", "chat"), ("er er", "math"),
           ("x", "math"), ("hello there", "code"), ("1 + 1", "math")]  # fmt: skip
def small(steps=4, rows=2):
    return (f"--layers 1 --block 4 --vocabulary 0 --anchors 4 --rows {rows} --steps {steps} "
            f"--evaluate-every 2 --taps 1,3 --mask 5").split()  # fmt: skip


SMALL = small()
SMALL_EAGLE = " ".join(SMALL).replace("--layers 1 ", "").replace(" --mask 5", "").split()


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    return write_hub(tmp_path_factory.mktemp("target") / "hub", num_hidden_layers=6)


@pytest.fixture(scope="module")
def parts(hub):
    return dflash_lite.load(hub)


@pytest.fixture(scope="module")
def answers(parts, tmp_path_factory):
    """A folder of answers, written without the command."""
    folder = tmp_path_factory.mktemp("answers")
    training.write_responses(*parts, PROMPTS, folder, max_new_tokens=12, rows=4, progress=False)
    return folder


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": p, "set": s}) for p, s in PROMPTS))
    return path


@pytest.fixture
def run(hub, monkeypatch):
    """Call the command in this process: exit code, standard output, standard error."""
    monkeypatch.setattr(runs, "silence", lambda: None)  # it is for whole processes
    monkeypatch.setattr(runs, "keep_programs", lambda: None)

    def run(*arguments, model=hub):
        words = [*map(str, arguments), *(["--model", str(model)] if model else [])]
        found = CliRunner().invoke(runs.train_app, words)
        if found.exception and not isinstance(found.exception, SystemExit):
            raise found.exception
        return found.exit_code, found.stdout, found.stderr

    return run


# Data
# ----


def test_data_are_what_the_library_writes(run, parts, answers, prompts, tmp_path):
    folder = tmp_path / "out"
    words = ("data", folder, "--prompts", prompts, "--max-new-tokens", 12, "--rows", 4)
    code, said, _ = run(*words)
    wanted, found = training.read_shards(answers), training.read_shards(folder, *parts)
    by_prompt = lambda data: {t.prompt: (t.tokens.tolist(), t.start, t.set) for t in data.texts}
    assert code == 0 and by_prompt(found) == by_prompt(wanted)
    tokens = sum(len(text.tokens) - text.start for text in wanted.texts)
    assert said == f"{len(PROMPTS)} answers with {tokens:,} tokens in {folder}\n"
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert run(*words)[0] == 0  # all is there
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_the_model_writes_prompts_too(run, parts, tmp_path):
    code, _, err = run("data", tmp_path / "out", "--own", 8, "--max-new-tokens", 4, "--rows", 4)
    turns = training.write_prompts(*parts, 8, rows=4, seed=0)
    found = training.read_shards(tmp_path / "out", *parts)
    assert code == 0 and "by 8 tries" in err
    assert len(found) == len(turns) > 0 and found.sets == ("own",)


def test_a_dry_run_of_data_writes_nothing(run, prompts, tmp_path):
    code, said, _ = run("data", tmp_path / "out", "--prompts", prompts, "--rows", 4, "--dry-run")
    assert code == 0 and not (tmp_path / "out").exists()
    lines = dict(line.split("  ", 1) for line in said.splitlines())
    most = len(PROMPTS) * 256
    assert lines["tokens"].strip() == f"{most:,} at most"
    assert int(lines["speed"].split()[0].replace(",", "")) > 0


# Drafters
# --------


def test_a_drafter_is_trained_and_loads(run, parts, answers, tmp_path):
    model, tokenizer = parts
    words = ("drafter", answers, tmp_path / "run", *SMALL, "--held-out", answers)
    code, said, err = run(*words)
    assert code == 0, err
    lines = said.splitlines()
    place = tmp_path / "run" / "drafter"
    assert [line.split(":")[0] for line in lines[:-1]] == ["step 0", "step 2", "step 4"]
    assert lines[-1] == f"The drafter is in {place}"
    assert "taps 1,3, mask token 5, " in err
    metrics = training.read_metrics(tmp_path / "run")
    assert [m["step"] for m in metrics if "loss" in m] == [1, 2, 3, 4]
    last = [m for m in metrics if "held_out" in m][-1]["held_out"]
    assert lines[2] == "step 4: held out " + ", ".join(f"{n} {v:.3f}" for n, v in last.items())
    drafter = dflash_lite.load_drafter(tmp_path / "run" / "drafter", model)
    assert (drafter.taps, drafter.block) == ((1, 3), 4)
    how = dict(max_new_tokens=12)
    plain = dflash_lite.generate(model, tokenizer, "Say hi!", **how)
    assert dflash_lite.generate(model, tokenizer, "Say hi!", drafter=drafter, **how).tokens == (
        plain.tokens
    )
    again = run(*words)  # a run that has ended is not made again
    assert again[0] == 0 and training.read_metrics(tmp_path / "run") == metrics


def test_an_eagle_is_trained_and_loads(run, parts, answers, tmp_path):
    words = ("drafter", answers, tmp_path / "run", "--kind", "eagle", *SMALL_EAGLE)
    code, said, err = run(*words)
    assert code == 0, err
    assert "taps 1,3, " in err and "mask" not in err
    drafter = dflash_lite.load_eagle(tmp_path / "run" / "drafter", parts[0])
    assert (drafter.taps, drafter.block) == ((1, 3), 4)
    found = benchmark.make_drafter(f"eagle:{tmp_path / 'run' / 'drafter'}", parts[0], 4)
    assert found.taps == (1, 3)
    for flag in ("--layers", "--mask"):
        code, _, err = run(*words, flag, 2)
        assert code != 0 and "one layer and no mask" in err


def test_a_dry_run_of_a_drafter_writes_nothing(run, answers, tmp_path):
    code, said, _ = run("drafter", answers, tmp_path / "run", *SMALL, "--dry-run")
    lines = {line.split("  ")[0]: line.split("  ")[-1].strip() for line in said.splitlines()}
    assert code == 0 and not (tmp_path / "run").exists()
    assert set(lines) == {"parameters", "texts", "steps", "memory", "time"}
    assert lines["steps"].startswith("4, which are ") and int(lines["texts"]) <= len(PROMPTS)


def test_a_stopped_run_says_how_to_go_on(run, answers, tmp_path, monkeypatch):
    def leave(code):
        raise SystemExit(code)

    whole = training.train

    def stopped(*arguments):
        trained = whole(*arguments)
        return trained._replace(step=trained.step - 1)

    monkeypatch.setattr(runs, "leave", leave)
    monkeypatch.setattr(training, "train", stopped)
    code, _, err = run("drafter", answers, tmp_path / "run", *SMALL)
    assert code == 130 and "stopped and saved at step 3 of 4; the same command goes on" in err
    assert not (tmp_path / "run" / "drafter").exists()


def test_ctrl_c_saves_a_run_that_goes_on(hub, answers, tmp_path):
    """In a process of its own: the first key saves, the same command ends the run."""
    folder = tmp_path / "run"
    words = [sys.executable, "-m", "dflash_lite", "train", "drafter", str(answers), str(folder),
             "--model", str(hub), *small(300), "--save-every", "50", "--evaluate-every", "300",
             "--held-out", str(answers)]  # fmt: skip
    first = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert first.stdout.readline().startswith("step 0: held out")
    first.send_signal(signal.SIGINT)
    _, err = first.communicate()
    assert first.returncode == 130 and "the same command goes on" in err, err
    done = max(m["step"] for m in training.read_metrics(folder))
    assert 1 <= done < 300
    second = subprocess.run(words, capture_output=True, text=True)
    assert second.returncode == 0, second.stderr
    assert "The drafter is in" in second.stdout and "step 0:" not in second.stdout
    steps = [m["step"] for m in training.read_metrics(folder) if "loss" in m]
    assert steps == list(range(1, 301))


# Targets
# -------

TEXTS = [("Say hi!", "hello", "chat"), ("x", "the end", "chat"), ("1 + 1", "22", "math"),
         ("1 + 2", "33", "math")]  # fmt: skip
SIZES = ("--layers 2 --hidden-size 32 --heads 2 --rows 4 --rate 0.01 --longest 64 "
         "--steps 60 --evaluate-every 30").split()  # fmt: skip


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.jsonl"
    lines = [json.dumps(dict(zip(("prompt", "response", "set"), text))) for text in TEXTS]
    path.write_text("\n".join(lines) + "\n\n")
    return path


def test_a_target_is_trained_from_nothing_and_answers(run, hub, texts, tmp_path):
    words = ("target", texts, tmp_path / "run", "--tokenizer", hub, "--held-out", texts, *SIZES)
    code, said, err = run(*words, model=None)
    assert code == 0, err
    lines = said.splitlines()
    assert [line.split(":")[0] for line in lines[:-1]] == ["step 0", "step 30", "step 60"]
    assert lines[-2] == "step 60: held out chat 2.000, math 2.000"  # every next token is right
    assert lines[-1] == f"The model is in {tmp_path / 'run' / 'model'}"
    model, tokenizer = dflash_lite.load(tmp_path / "run" / "model")
    assert (model.config.num_hidden_layers, model.config.head_dim) == (2, 16)
    assert model.config.intermediate_size == 88 and model.config.max_position_embeddings == 64
    for prompt, response, _ in TEXTS:
        found = dflash_lite.generate(model, tokenizer, prompt, max_new_tokens=16)
        assert found.text == response and found.finish_reason == "stop"


def test_prompts_are_learnt_but_held_out_texts_begin_with_the_response(parts):
    tokenizer = parts[1]
    exchange = [runs.Exchange("Say hi!", "hello", "chat")]
    whole, rest = (runs.encode_exchanges(tokenizer, exchange, w).texts[0] for w in (True, False))
    assert whole.tokens.tolist() == rest.tokens.tolist()
    assert (whole.start, whole.set, whole.prompt) == (1, "chat", rest.prompt)
    answer = tokenizer.encode("hello", add_special_tokens=False)
    assert rest.tokens[rest.start :].tolist() == [*answer, tokenizer.stop_ids[0]]


def test_a_dry_run_of_a_target_writes_nothing(run, hub, texts, tmp_path):
    words = ("target", texts, tmp_path / "run", "--tokenizer", hub, *SIZES, "--dry-run")
    code, said, _ = run(*words, model=None)
    lines = {line.split("  ")[0]: line.split("  ")[-1].strip() for line in said.splitlines()}
    assert code == 0 and not (tmp_path / "run").exists()
    assert (lines["texts"], lines["steps"].split()[0]) == ("4", "60,")


@pytest.mark.parametrize(
    "lines, message",
    [
        ("", "has no texts; expected lines like"),
        ('{"prompt": "a"}', "texts.jsonl, line 1 is"),
        ('{"prompt": "a", "response": "b"}\n[]', "texts.jsonl, line 2 is '[]'"),
        ('{"prompt": "a", "response": 1}', "line 1 is"),
        ('{"prompt": "a", "response": ""}', "line 1 is"),
        ("\xff", "is not UTF-8: byte 0"),
        (None, "The texts cannot be read from"),
    ],
)
def test_texts_that_are_none(run, hub, tmp_path, lines, message):
    path = tmp_path / "texts.jsonl"
    if lines is not None:
        path.write_bytes(lines.encode("latin-1"))
    words = ("target", path, tmp_path / "out", "--tokenizer", hub)
    code, _, err = run(*words, model=None)
    assert code == 1 and message in err and len(err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "words, message",
    [
        (["--heads", "3", "--kv-heads", "2"], "num_key_value_heads is 2"),
        (["--hidden-size", "34", "--heads", "2"], "head_dim is 17"),
        (["--rate", "-1"], "rate is -1"),
        (["--tokenizer", "nowhere"], "nowhere"),
    ],
)
def test_sizes_that_are_impossible(run, hub, texts, tmp_path, words, message):
    code, _, err = run("target", texts, tmp_path / "out", "--tokenizer", hub, *words, model=None)
    assert code == 1 and message in err and len(err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


# Choices that need the data
# --------------------------


def made_up(tokens, start=1):
    return SimpleNamespace(texts=[SimpleNamespace(tokens=np.array(tokens), start=start)])


def made_up_target(vocab, known, special, stops=(2,)):
    backend = SimpleNamespace(get_vocab_size=lambda: known,
                              get_added_tokens_decoder=lambda: dict.fromkeys(special))  # fmt: skip
    model = SimpleNamespace(config=SimpleNamespace(vocab_size=vocab))
    return model, SimpleNamespace(backend=backend, stop_ids=stops)


def test_the_mask_is_a_token_of_no_text():
    data = made_up([0, 1, 5, 9])
    assert runs.unused_token(*made_up_target(16, 12, ()), data) == 12  # behind the tokenizer's
    assert runs.unused_token(*made_up_target(16, 8, ()), data) == 8
    assert runs.unused_token(*made_up_target(16, 9, ()), data) == 10  # the text has 9
    assert runs.unused_token(*made_up_target(12, 12, (0, 1, 2, 4)), data) == 4
    with pytest.raises(dflash_lite.UserError, match="--mask"):
        runs.unused_token(*made_up_target(12, 12, (0, 1, 2)), data)  # 2 ends texts


def test_the_most_frequent_tokens_of_the_answers(parts, answers):
    data = training.read_shards(answers)
    counts = Counter(t for text in data.texts for t in text.tokens[text.start :].tolist())
    ids, share = runs.frequent_tokens(data, 5)
    assert ids.tolist() == sorted(ids.tolist()) and len(ids) == 5
    assert sum(counts[i] for i in ids.tolist()) == sum(n for _, n in counts.most_common(5))
    assert share == pytest.approx(sum(n for _, n in counts.most_common(5)) / counts.total())
    ids, share = runs.frequent_tokens(data, 10**6)
    assert set(ids.tolist()) == set(counts) and share == 1


def test_a_prompt_is_no_answer():
    ids, _ = runs.frequent_tokens(made_up([7, 7, 7, 3, 4, 4], start=3), 1)
    assert ids.tolist() == [4]


@pytest.mark.parametrize(
    "seconds, said", [(0.4, "0 s"), (89, "89 s"), (90, "2 min"), (5399, "90 min"), (5400, "1.5 h")]
)
def test_durations(seconds, said):
    assert runs.duration(seconds) == said


# Mistakes
# --------


@pytest.mark.parametrize(
    "words, code, message",
    [
        (["data", "OUT"], 1, "Give a file with --prompts"),
        (["data", "OUT", "--prompts", "nowhere.jsonl"], 1, "nowhere.jsonl"),
        (["data", "OUT", "--own", "4", "--temperature", "-1"], 1, "temperature"),
        (["data", "OUT", "--own", "4", "--sampled", "1.5"], 2, "--sampled"),
        (["drafter", "EMPTY", "OUT"], 1, "responses-*.safetensors"),
        (["drafter", "ANSWERS", "OUT", "--taps", "a"], 1, "layers like 1,14,27"),
        (["drafter", "ANSWERS", "OUT", "--taps", "9", "--mask", "5"], 1, "target_layer_ids is [9]"),
        (["drafter", "ANSWERS", "OUT", "--mask", "100000"], 1, "mask_token_id is 100000"),
        (["drafter", "ANSWERS", "OUT", "--rate", "7", *SMALL], 1, "rate is 7"),
        (["drafter", "ANSWERS", "OUT", "--steps", "0"], 2, "--steps"),
        (["drafter", "ANSWERS", "OUT", "--block", "1"], 2, "--block"),
    ],
)
def test_a_mistake_gets_one_line_and_no_file(run, answers, tmp_path, words, code, message):
    (tmp_path / "empty").mkdir()
    names = {"OUT": tmp_path / "out", "EMPTY": tmp_path / "empty", "ANSWERS": answers}
    found, _, err = run(*(names.get(word, word) for word in words))
    assert found == code and message in err
    assert code == 2 or len(err.splitlines()) <= 2  # what was chosen, and what is wrong
    assert not (tmp_path / "out").exists()


def test_data_of_another_model(run, answers, tmp_path):
    other = write_hub(tmp_path / "other", seed=1, num_hidden_layers=6)
    code, _, err = run("drafter", answers, tmp_path / "run", *SMALL, model=other)
    assert code == 1 and "made with another target" in err


def test_a_run_with_other_settings_is_refused(run, answers, tmp_path):
    assert run("drafter", answers, tmp_path / "run", *SMALL)[0] == 0
    code, _, err = run("drafter", answers, tmp_path / "run", *small(rows=3))
    assert code == 1 and "was begun with rows 2, not 3" in err


def test_the_defaults_are_those_of_the_library():
    import inspect

    from dflash_lite.dflash import new_drafter

    options = inspect.signature(runs.drafter_command).parameters
    value = lambda name: getattr(options[name].default, "default", options[name].default)
    usual = training.TrainSettings()
    for name in ("steps", "rows", "rate", "warmup", "clip", "decay", "longest", "seed",
                 "keep_features", "evaluate_every", "save_every"):  # fmt: skip
        assert value(name) == getattr(usual, name), name
    ours = inspect.signature(new_drafter).parameters
    assert (runs.LAYERS, value("block")) == (ours["layers"].default, ours["block"].default)
    assert replace(usual, steps=value("steps")) == usual
