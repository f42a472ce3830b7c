import json
import os
import signal
from dataclasses import replace

import draw_curve
import evaluate_target
import export_target
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import textgen
import train_target as t
from flax import nnx

import dflash_lite
from dflash_lite.checkpoints import hub_tokenizer
from dflash_lite.transformer import Transformer

SMALL = replace(
    t.TINY, hidden_size=32, intermediate_size=64, num_hidden_layers=4,
    num_attention_heads=4, num_key_value_heads=2, head_dim=8,
)  # fmt: skip


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(t, "TINY", SMALL)
    monkeypatch.setattr(t, "EVALUATION", {"math_fresh": 6})


def arguments(folder, steps=6, **more):
    words = {"folder": folder, "steps": steps, "rows": 2, "length": 128,
             "grow-at": 3, "log-every": 1, "evaluate-every": 3, **more}  # fmt: skip
    return [f"--{name}={value}" for name, value in words.items()]


def losses(folder):
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if "loss" in line]


def test_a_resumed_run_has_the_same_losses(tmp_path):
    t.main(arguments(tmp_path / "whole"))
    t.main(arguments(tmp_path / "parts", **{"stop-after": 4}))
    t.main(arguments(tmp_path / "parts"))
    whole = losses(tmp_path / "whole")
    assert len(whole) == 6 and whole[-1] < whole[0]
    assert losses(tmp_path / "parts") == whole


@pytest.mark.parametrize("stop", [2, 3])
def test_a_run_resumes_before_and_at_its_growth(tmp_path, stop):
    t.main(arguments(tmp_path / "whole"))
    t.main(arguments(tmp_path / "parts", **{"stop-after": stop}))
    t.main(arguments(tmp_path / "parts"))
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")


def test_growth_changes_nothing_at_first():
    few = replace(SMALL, num_hidden_layers=2)
    graph, params = nnx.split(Transformer(few, rngs=nnx.Rngs(1)))
    transform = t.optimizer(10, 1e-3)
    state = transform.init(params)
    more, _ = nnx.split(Transformer(SMALL, rngs=nnx.Rngs(2)))
    grown, state = t.grow_run(params, state, 4)
    tokens = jax.random.randint(jax.random.key(0), (1, 10), 5, 2048)
    segments = jnp.zeros_like(tokens)
    a = t.forward(graph, params, tokens, segments, jnp.float32)
    b = t.forward(more, grown, tokens, segments, jnp.float32)
    assert np.allclose(a, b, atol=1e-5)
    size = len(jax.tree.leaves(grown))
    assert len(jax.tree.leaves(state)) == 2 * size + 2


def test_the_length_doubles_and_no_row_comes_twice():
    plans = [t.batch_plan(step, 6, 256, 3) for step in range(6)]
    assert {rows * length for _, rows, length in plans} == {6 * 256}
    assert [length for _, _, length in plans] == [256] * 3 + [512] * 3
    rows = [first + i for first, count, _ in plans for i in range(count)]
    assert rows == list(range(3 * 6 + 3 * 3))


def test_a_run_resumes_before_and_at_its_longer_rows(tmp_path):
    t.main(arguments(tmp_path / "whole", **{"long-at": 4}))
    for stop in (1, 3):
        t.main(arguments(tmp_path / "parts", **{"long-at": 4, "stop-after": stop}))
    t.main(arguments(tmp_path / "parts", **{"long-at": 4}))
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")


def test_a_run_goes_on_from_a_model(tmp_path):
    t.main(arguments(tmp_path / "first", steps=4))
    export_target.main([f"--folder={tmp_path / 'first'}", f"--out={tmp_path / 'model'}"])
    more = {"begin": tmp_path / "model", "first-row": 8, "rate": 1e-9}
    t.main(arguments(tmp_path / "second", steps=2, **more))
    begun, found = t.load_run(tmp_path / "first"), t.load_run(tmp_path / "second")
    assert found.config.num_hidden_layers == 4
    near = zip(jax.tree.leaves(begun), jax.tree.leaves(found), strict=True)
    assert all(np.allclose(a, b, rtol=2**-8, atol=1e-6) for a, b in near)
    assert t.batch_plan(0, 2, 128, 100, 8)[0] == 8 == t.batch_plan(4, 2, 128, 100)[0]


def test_workers_make_the_same_batches(tmp_path):
    t.main(arguments(tmp_path / "alone", steps=3))
    t.main(arguments(tmp_path / "helped", steps=3, workers=1))
    assert losses(tmp_path / "helped") == losses(tmp_path / "alone")


def test_sigterm_saves_and_stops(tmp_path, monkeypatch):
    real = t.make_batch

    def batch(*args):
        if args[1] == 2 * 2:  # the first row of step 2
            os.kill(os.getpid(), signal.SIGTERM)
        return real(*args)

    monkeypatch.setattr(t, "make_batch", batch)
    t.main(arguments(tmp_path))
    assert t.read_notes(tmp_path / "state.safetensors")["step"] == 3
    assert json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])[
        "event"
    ] == "stop"


def test_other_settings_are_refused(tmp_path):
    t.main(arguments(tmp_path, **{"stop-after": 1}))
    with pytest.raises(ValueError, match="another folder"):
        t.main(arguments(tmp_path, steps=7))


def test_packed_chats_do_not_see_each_other():
    graph, params = nnx.split(Transformer(SMALL, rngs=nnx.Rngs(1)))
    tokens = jax.random.randint(jax.random.key(0), (1, 10), 5, 2048)
    segments = jnp.array([[0] * 4 + [1] * 6])
    both = t.forward(graph, params, tokens, segments, jnp.float32)
    other = tokens.at[0, 1].add(1)
    changed = t.forward(graph, params, other, segments, jnp.float32)
    assert np.allclose(both[:, 4:], changed[:, 4:], atol=1e-6)
    assert not np.allclose(both[:, 1:4], changed[:, 1:4], atol=1e-4)
    plain = Transformer(SMALL, rngs=nnx.Rngs(1))
    alone = plain.logits(plain(tokens[:, 4:]).hidden)
    assert np.allclose(both[:, 4:], alone, atol=1e-4)


def test_a_run_is_exported_and_answers(tmp_path, capsys):
    t.main(arguments(tmp_path / "run", steps=4))
    export_target.main([f"--folder={tmp_path / 'run'}", f"--out={tmp_path / 'out'}"])
    model, tokenizer = dflash_lite.load(tmp_path / "out")
    run = t.load_run(tmp_path / "run")
    assert replace(model.config, rope=run.config.rope) == run.config
    assert model.config.rope.theta == 10_000 and model.config.num_hidden_layers == 4
    near = zip(jax.tree.leaves(model), jax.tree.leaves(run), strict=True)
    assert all(np.allclose(a, b, rtol=2**-8) for a, b in near)
    capsys.readouterr()
    evaluate_target.main([f"--model={tmp_path / 'out'}", "--count=3"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["count"] for line in lines] == [3] * 6


def test_answers_are_judged_right_or_wrong(monkeypatch):
    monkeypatch.setattr(evaluate_target, "Writer", Perfect)
    examples = [textgen.sample("math", i, "fresh") for i in range(4)]
    tokenizer = hub_tokenizer(t.HERE / "tokenizer")
    said = evaluate_target.answers(examples, tokenizer, examples)
    assert said == [e.response for e in examples]
    assert all(textgen.check(e, s) for e, s in zip(examples, said))
    assert not textgen.check(examples[0], said[0] + "1")


class Perfect:
    """Writes the responses of the generator, last one first."""

    def __init__(self, examples, *_):
        self.examples, self.tokenizer = examples, hub_tokenizer(t.HERE / "tokenizer")

    def answers(self, asks, seeds):
        for i in reversed(range(len(asks))):
            yield i, self.tokenizer.encode(self.examples[i].response)


def test_exact_matches_counts_whole_examples():
    tokens = np.array([[5, 6, 7, 8, 9, 10, 11, 0]] * 4)
    answers = np.array([[0, 1, 1, 0, 1, 1, 1, 0]] * 4)
    segments = np.array([[1, 1, 1, 2, 2, 2, 2, 0]] * 4)
    right = np.roll(tokens, -1, axis=1)
    wrong = right.copy()
    wrong[0, 0] = 99  # one token of one response
    wrong[:, 2] = 99  # a prompt's token does not count
    assert t.exact_matches(lambda *_: right, None, tokens, answers, segments) == 1
    assert t.exact_matches(lambda *_: wrong, None, tokens, answers, segments) == 7 / 8


def test_a_curve_keeps_what_the_metrics_say(tmp_path):
    lines = [{"event": "start"}, *({"step": s, "loss": 2.0} for s in range(1, 401)),
             {"step": 400, "exact_math_fresh": 0.5, "exact_chat_fresh": 0.25},
             {"step": 200, "held_out": {"math": 1.5}}]  # fmt: skip
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    draw_curve.main([str(tmp_path), str(tmp_path / "out")])
    kept = [json.loads(x) for x in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    losses = [row for row in kept if "loss" in row]
    assert len(losses) == draw_curve.LINES and {row["loss"] for row in losses} == {2.0}
    assert kept[-2:] == [{"step": 200, "held_out": {"math": 1.5}},
                         {"step": 400, "held_out": {"math_fresh": 0.5, "chat_fresh": 0.25}}]
    picture = (tmp_path / "out" / "curve.svg").read_bytes()
    draw_curve.main([str(tmp_path), str(tmp_path / "again")])
    assert (tmp_path / "again" / "curve.svg").read_bytes() == picture and b"math, fresh" in picture
