"""Few programs, none after warm-up, and no question to the host in the loop."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import write_hub

import dflash_lite
from dflash_lite.decoding import (
    COMPILE_CLOCK,
    CompileClock,
    bucket,
    decode,
    make_sampling,
    pack,
    prefill,
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A tiny model that never stops; no other test has its shapes."""
    folder = write_hub(tmp_path_factory.mktemp("model"), num_hidden_layers=1)
    model, tokenizer = dflash_lite.load(folder)
    return model, dataclasses.replace(tokenizer, stop_ids=())


def programs():
    """How many programs the two parts have been compiled to."""
    return prefill._cache_size(), decode._cache_size()


LENGTHS = [1, 5, 16, 17, 30, 32, 33, 64]


def ask(pair, length, **options):
    ids = np.random.default_rng(length).integers(0, 200, length).tolist()
    return dflash_lite.generate(*pair, ids, max_new_tokens=8, **options)


def test_one_program_for_each_bucket(pair):
    """Counted by jit itself, and by the clock that people see."""
    buckets = {bucket(n) for n in LENGTHS}
    assert len(buckets) == 3
    ask(pair, 200)  # what is compiled once for all: device_get, keys, …
    before, count = programs(), COMPILE_CLOCK.count
    for n in LENGTHS:
        ask(pair, n)
    assert programs() == (before[0] + len(buckets), before[1] + len(buckets))
    assert COMPILE_CLOCK.count - count == 2 * len(buckets)


@pytest.mark.parametrize("mode", [{}, {"temperature": 0.7}, {"temperature": 0.7, "top_p": 0.9}])
def test_no_program_after_warm_up(pair, mode):
    """Other prompts, seeds, temperatures, cuts, and a stream: all the same programs."""
    ask(pair, 20, **mode)
    ask(pair, 20, stream=True, **mode)
    before, count = programs(), COMPILE_CLOCK.count
    for n in (17, 25, 32):
        assert ask(pair, n, **mode).statistics.compile_seconds == 0
        for _ in ask(pair, n, stream=True, **mode):
            pass
        other = {name: value * 0.9 for name, value in mode.items()}
        ask(pair, n, seed=n, **other)
    if "top_p" in mode:
        ask(pair, 20, temperature=0.3, top_k=7)
    assert programs() == before and COMPILE_CLOCK.count == count


def test_nothing_to_write_compiles_nothing(pair):
    """In no mode, for no size of batch that others use."""
    full = pair[0].config.max_position_embeddings
    count = COMPILE_CLOCK.count
    for options in ({}, {"temperature": 0.7}, {"stream": True}):
        for prompt, new in (([[3, 4]] * 13, 0), ([[5] * full] * 13, 8), ([], 8)):
            found = dflash_lite.generate(*pair, prompt, max_new_tokens=new, **options)
            if "stream" in options:
                assert list(found) == []
                found = found.result
            assert [(one.tokens, one.text, one.finish_reason) for one in found] == [
                ([], "", "length")
            ] * len(prompt)
    assert COMPILE_CLOCK.count == count


def prepared(model, rows=2):
    packed, lengths = pack([list(range(3, 3 + n)) for n in (5, 9)][:rows])
    how, mode = make_sampling(model, rows, 0.8, 20, None, 0)
    stops = jnp.array([-1], jnp.int32)
    state = prefill(model, packed, lengths, lengths + 20, stops, how, 64, mode)
    return state, stops, how, mode


def test_the_loop_never_asks_the_host(pair):
    """No transfer either way, but for those that are asked for."""
    model, _ = pair
    state, stops, how, mode = prepared(model)
    steps = jax.device_put(np.int32(16))
    decode.lower(model, state, stops, how, steps, mode).compile()
    with jax.transfer_guard("disallow"):
        state = decode(model, state, stops, how, steps, mode)
        state = decode(model, state, stops, how, steps, mode)
    assert jax.device_get(state.done).all()
    text = decode.lower(model, state, stops, how, steps, mode).as_text()
    assert "while" in text
    assert [w for w in ("callback", "infeed", "outfeed", "send", "recv") if w in text] == []


def test_the_whole_answer_is_one_call_of_the_loop(pair, monkeypatch):
    """Without a reader the host looks every 64 steps, with one every 4."""
    from dflash_lite import decoding

    calls = []
    monkeypatch.setattr(decoding, "decode", lambda *args: calls.append(1) or decode(*args))
    dflash_lite.generate(*pair, [1], max_new_tokens=65)
    assert len(calls) == 1
    stream = dflash_lite.generate(*pair, [1], max_new_tokens=65, stream=True)
    for _ in stream:
        pass
    assert len(calls) == 1 + 16


def test_the_state_is_updated_in_place(pair):
    """It is given away: its arrays are deleted, and the new cache lies where the old did."""
    model, _ = pair
    state, stops, how, mode = prepared(model)
    old = jax.tree.leaves(state)
    where = [x.unsafe_buffer_pointer() for x in jax.tree.leaves(state.cache)]
    new = decode(model, state, stops, how, np.int32(3), mode)
    assert all(x.is_deleted() for x in old)
    assert [x.unsafe_buffer_pointer() for x in jax.tree.leaves(new.cache)] == where


def test_a_step_makes_no_copy_of_the_cache(pair):
    """What the program needs beside its arguments is far less than the cache."""
    model, _ = pair
    packed, lengths = pack([[1, 2, 3]])
    how, mode = make_sampling(model, 1, 0.0, None, None, 0)
    stops = jnp.array([-1], jnp.int32)
    state = prefill(model, packed, lengths, lengths + 5, stops, how, 1 << 16, mode)
    size = sum(x.nbytes for x in jax.tree.leaves(state.cache))
    memory = decode.lower(model, state, stops, how, np.int32(4), mode).compile().memory_analysis()
    assert memory.alias_size_in_bytes >= size
    # the CPU compilers of older versions copy it, whatever the program says
    allowed = size / 2 if jax.__version_info__ >= (0, 12) else 4 * size
    assert memory.temp_size_in_bytes < allowed


def test_the_clock_adds_up_spans_that_overlap(monkeypatch):
    """Events come at their end, the inner before the outer."""
    from dflash_lite import decoding

    clock, now = CompileClock(), []
    monkeypatch.setattr(decoding.time, "perf_counter", lambda: now[-1])

    def event(name, start, end):
        now.append(end)
        clock._event(f"/jax/core/compile/{name}", end - start)

    event("jaxpr_trace_duration", 1, 2)
    event("jaxpr_trace_duration", 3, 4)
    event("jaxpr_trace_duration", 0, 5)  # both lie in it
    event("backend_compile_duration", 4.5, 7)  # half in it
    event("backend_compile_duration", 10, 11)
    assert clock.seconds == 8 and clock.count == 2
    now.append(20)
    clock._event("/jax/other/duration", 5)
    assert clock.seconds == 8
