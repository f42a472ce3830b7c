"""Greedy text and sampling equal those of transformers (golden/README.md)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from goldens import read_golden

import dflash_lite
from dflash_lite.decoding import Sampling, choose, truncate

LONG = 100  # tokens; longer prompts run apart, since all of a batch are padded
NEAR_TIE = 1e-3  # logits; float32 rounds to about 1e-4


@pytest.fixture(scope="module")
def greedy():
    data = read_golden("greedy.json.gz")
    assert len(data["runs"]) >= 20 and data["max_new_tokens"] == 128
    return data


def assert_same(generation, run, stop):
    """Equal token for token, up to the first choice that was a near tie."""
    expected = [i for i in run["new_ids"] if i != stop]
    found = generation.tokens
    for step, pair in enumerate(zip(found, expected, strict=False)):
        if pair[0] != pair[1]:
            margin = run["margins"][step]
            assert margin < NEAR_TIE, f"{run['prompt'][:40]!r}: token {step}, margin {margin}"
            return
    assert len(found) == len(expected), run["prompt"][:40]
    assert generation.text == run["text"]
    assert generation.finish_reason == ("stop" if run["new_ids"][-1] == stop else "length")


def generate(smollm2, runs):
    """Greedy generations of several prompts of one kind."""
    return dflash_lite.generate(
        *smollm2, [run["prompt"] for run in runs], chat=runs[0]["kind"] == "chat"
    )


@pytest.mark.parametrize("kind", ["raw", "chat"])
def test_greedy_batch_of_unequal_prompts(smollm2, greedy, kind):
    runs = [r for r in greedy["runs"] if r["kind"] == kind and len(r["ids"]) < LONG]
    assert len({len(run["ids"]) for run in runs}) > 5
    generations = generate(smollm2, runs)
    for generation, run in zip(generations, runs, strict=True):
        assert_same(generation, run, greedy["stop_id"])
    assert generations[0].statistics.prompt_tokens == sum(len(run["ids"]) for run in runs)


def test_greedy_long_prompts(smollm2, greedy):
    runs = [run for run in greedy["runs"] if len(run["ids"]) >= LONG]
    assert len(runs) == 3
    for kind in {run["kind"] for run in runs}:
        some = [run for run in runs if run["kind"] == kind]
        for generation, run in zip(generate(smollm2, some), some, strict=True):
            assert_same(generation, run, greedy["stop_id"])


def test_greedy_alone(smollm2, greedy):
    """One that a batch above has as well."""
    assert_same(generate(smollm2, [greedy["runs"][3]])[0], greedy["runs"][3], greedy["stop_id"])


def sampling_id(case):
    return f"{case['row']}-{case['temperature']}-{case['top_k']}-{case['top_p']}"


def warped(case, rows):
    """The package's scores for a case."""
    logits = jnp.array([[-jnp.inf if x is None else x for x in rows[case["row"]]]])
    one = lambda x: jnp.array([x])
    sampling = Sampling(
        temperature=one(case["temperature"]),
        top_k=one(case["top_k"] or logits.shape[1]),
        top_p=one(1.0 if case["top_p"] is None else case["top_p"]),
        keys=jax.random.key(0)[None],
    )
    return logits, sampling, np.asarray(jax.jit(truncate)(logits, sampling)[0])


SAMPLING = read_golden("sampling.json.gz")


@pytest.mark.parametrize("case", SAMPLING["cases"], ids=sampling_id)
def test_truncation_keeps_what_transformers_keeps(case):
    _, _, scores = warped(case, SAMPLING["rows"])
    kept = np.flatnonzero(np.isfinite(scores))
    found = np.asarray(jax.nn.softmax(jnp.asarray(scores)))[kept]
    expected = np.array(case["probabilities"])
    if case["ties"]:  # any of the tokens that tie may stay
        found, expected = np.sort(found), np.sort(expected)
        assert len(kept) == len(case["kept"])
    else:
        assert kept.tolist() == case["kept"]
    largest = max(abs(x) for x in SAMPLING["rows"][case["row"]] if x is not None)
    rounding = np.finfo(np.float32).eps * largest / case["temperature"]  # of float32 scores
    np.testing.assert_allclose(found, expected, rtol=max(1e-4, rounding), atol=1e-7)


@pytest.mark.parametrize(
    "case", [c for c in SAMPLING["cases"] if 1 < len(c["kept"]) < 9], ids=sampling_id
)
def test_only_kept_tokens_are_drawn(case):
    logits, sampling, scores = warped(case, SAMPLING["rows"])
    draws = 64
    many = lambda x: jnp.repeat(x, draws, axis=0)
    tokens = choose(
        many(logits), jnp.arange(draws), jax.tree.map(many, sampling), mode="truncated"
    )
    assert set(np.asarray(tokens).tolist()) <= set(np.flatnonzero(np.isfinite(scores)).tolist())
