"""Attention in tiles equals the table in float64, wherever the tiles end."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import attention_by_definition
from hypothesis import example, given, settings, strategies as st
from jax.experimental.pallas import tpu as pltpu

from dflash_lite.flash_attention import (
    Running,
    flash_attention,
    from_rows,
    key_tiles,
    tiled_attention,
    to_rows,
)
from dflash_lite.transformer import attention

SIMULATED = pltpu.InterpretParams(
    detect_races=True, uninitialized_memory="nan", out_of_bounds_reads="raise"
)
tiled = jax.jit(tiled_attention, static_argnames=("causal", "tile"))


def arrays(seed, batch, queries, keys, kv_heads=1, group=1, size=16, scale=1.0):
    rng = np.random.default_rng(seed)
    one = lambda *shape: jnp.asarray(scale * rng.standard_normal(shape), jnp.float32)
    q = one(batch, queries, kv_heads * group, size)
    k, v = one(batch, kv_heads, keys, size), one(batch, kv_heads, keys, size) / scale
    return q, k, v


@st.composite
def problems(draw, longest):
    """Sizes, positions and lengths: prompts, blocks over a cache, whole or not."""
    keys = draw(st.integers(1, longest))
    queries = draw(st.integers(1, min(keys, 40)) | st.just(min(keys, 130)))
    lengths = [draw(st.integers(0, keys)) for _ in range(2)]
    starts = [draw(st.sampled_from([0, max(n - queries, 0), keys])) for n in lengths]
    heads = draw(st.sampled_from([(1, 1), (2, 3), (3, 1), (1, 4)]))
    return keys, queries, starts, lengths, heads, draw(st.booleans())


EDGES = [
    (1, 1, [0, 0], [1, 0], (1, 1), True),  # one key, and none
    (256, 40, [216, 0], [256, 40], (2, 3), True),  # ends with a tile
    (257, 130, [127, 0], [257, 256], (1, 4), False),  # one key more
]


def assert_equal_to_definition(function, problem):
    keys, queries, starts, lengths, (kv_heads, group), causal = problem
    q, k, v = arrays([keys, queries], 2, queries, keys, kv_heads, group)
    behind = np.arange(keys) >= np.array(lengths)[:, None]
    expected = attention_by_definition(q, k, v, starts, lengths, causal)
    v = jnp.where(behind[:, None, :, None], 1e30, v)  # padding is anything
    found = function(q, k, v, jnp.array(starts), jnp.array(lengths), causal=causal)
    np.testing.assert_allclose(found, expected, atol=2e-6)


@given(problems(700), st.sampled_from([1, 64, 256]))
@example(EDGES[0], 64)
@example(EDGES[1], 256)
@example(EDGES[2], 256)
@settings(max_examples=15, deadline=None)
def test_tiles_equal_the_definition(problem, tile):
    tile = max(tile, problem[0] // 100)
    call = lambda *a, causal: tiled(*a, causal=causal, tile=tile)
    assert_equal_to_definition(call, problem)


@given(problems(700))
@example(EDGES[0])
@example(EDGES[1])
@example(EDGES[2])
@settings(max_examples=3, deadline=None)
def test_the_kernel_equals_the_definition(problem):
    """Simulated: memory that was never written is NaN, races are found."""
    call = lambda *a, causal: flash_attention(
        *a, causal=causal, row_tile=64, key_tile=128, interpret=SIMULATED
    )
    assert_equal_to_definition(call, problem)


@pytest.fixture(params=["tiles", "kernel"])
def function(request):
    if request.param == "tiles":
        return tiled_attention
    return lambda *a, **options: flash_attention(*a, interpret=SIMULATED, **options)


def test_scores_of_hundreds_neither_overflow_nor_vanish(function):
    q, k, v = arrays(1, 1, 3, 50, scale=40.0)
    assert np.abs(np.einsum("bthd,bhsd->bhts", q, k)).max() / 4 > 500
    at, length = jnp.array([47]), jnp.array([50])
    expected = attention_by_definition(q, k, v, [47], [50], True)
    np.testing.assert_allclose(function(q, k, v, at, length), expected, atol=1e-4)


def test_a_query_without_keys_gets_zeros(function):
    q, k, v = arrays(2, 2, 4, 20)
    found = np.asarray(function(q, k, v, jnp.array([0, 0]), jnp.array([0, 20])))
    assert (found[0] == 0).all() and (found[1] != 0).all()


def test_nan_behind_the_length_stays_there(function):
    q, k, v = arrays(3, 1, 4, 300)
    whole = function(q, k, v, jnp.array([96]), jnp.array([100]))
    k, v = (x.at[:, :, 100:].set(jnp.nan) for x in (k, v))
    np.testing.assert_array_equal(function(q, k, v, jnp.array([96]), jnp.array([100])), whole)


def test_nan_behind_the_length_reaches_no_gradient():
    q, k, v = arrays(3, 1, 4, 300)
    loss = lambda *x: tiled_attention(*x, jnp.array([96]), jnp.array([100]), tile=64).sum()
    gradient = jax.grad(loss, (0, 1, 2))
    whole = gradient(q, k, v)
    k, v = (x.at[:, :, 100:].set(jnp.nan) for x in (k, v))
    for found, expected in zip(gradient(q, k, v), whole, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_no_more_keys_count_than_there_are(function):
    """Without a causal mask, what pads the last tile would be seen."""
    q, k, v = arrays(9, 1, 4, 50)
    found = (function(q, k, v, jnp.array([46]), jnp.array([n]), causal=False) for n in (50, 99))
    np.testing.assert_array_equal(*found)


def test_the_future_does_not_matter(function):
    q, k, v = arrays(4, 1, 5, 40)
    at, length = jnp.array([10]), jnp.array([40])
    before = np.asarray(function(q, k, v, at, length))
    after = np.asarray(function(q, k.at[:, :, 13:].add(1), v.at[:, :, 13:].add(1), at, length))
    np.testing.assert_array_equal(before[:, :3], after[:, :3])
    assert (before[:, 3:] != after[:, 3:]).all()


def test_bfloat16_is_off_by_its_rounding(function):
    q, k, v = arrays(5, 1, 30, 200, 2, 2)
    rounded = [x.astype(jnp.bfloat16) for x in (q, k, v)]
    found = function(*rounded, jnp.array([170]), jnp.array([200]))
    expected = attention_by_definition(*rounded, [170], [200], True)
    assert found.dtype == jnp.bfloat16
    error = np.abs(np.asarray(found, np.float64) - expected).max()
    assert 0 < error < 2**-7 * np.abs(expected).max()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("keys", [30, 64, 100])
def test_gradients_equal_those_of_the_table(causal, keys):
    q, k, v = arrays(6, 2, 30, keys, 2, 3)
    starts, lengths = jnp.array([keys - 30, 0]), jnp.array([keys, 25])
    weight = jnp.asarray(np.random.default_rng(7).standard_normal(q.shape), jnp.float32)
    key = np.arange(keys)
    seen = key < np.asarray(lengths)[:, None, None]
    position = np.asarray(starts)[:, None, None] + np.arange(30)[:, None]
    mask = jnp.asarray(np.broadcast_to(seen & ((key <= position) | (not causal)), (2, 30, keys)))
    table = lambda *x: (attention(*x, mask) * weight).sum()
    ours = lambda *x: (tiled_attention(*x, starts, lengths, causal, 64) * weight).sum()
    found, expected = (jax.jit(jax.grad(f, (0, 1, 2)))(q, k, v) for f in (ours, table))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


def test_the_gradient_needs_no_table():
    n = 2048
    shape = lambda heads, n: jax.ShapeDtypeStruct((1, n, heads, 64), jnp.float32)
    keys = jax.ShapeDtypeStruct((1, 3, n, 64), jnp.float32)
    start, length = jnp.zeros(1, jnp.int32), jnp.full(1, n, jnp.int32)
    loss = lambda q, k, v: tiled_attention(q, k, v, start, length).sum()
    compiled = jax.jit(jax.grad(loss, (0, 1, 2))).lower(shape(9, n), keys, keys).compile()
    table = 9 * n * n * 4
    assert compiled.memory_analysis().temp_size_in_bytes < table


@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 500), st.integers(1, 5))
@settings(deadline=None)
def test_the_tiles_needed_are_those_that_some_row_sees(start, length, last_row, group):
    """Counted: the last key that the rows up to `last_row` see, and its tile."""
    seen = [key for key in range(length) if key <= start + last_row // group]
    assert int(key_tiles(start, length, last_row, 128, group, True)) == -(-len(seen) // 128)


@given(st.integers(1, 9), st.integers(1, 3), st.integers(1, 4))
@settings(deadline=None)
def test_rows_put_queries_of_a_group_together(queries, kv_heads, group):
    q = np.random.default_rng(0).standard_normal((2, queries, kv_heads * group, 4))
    rows = to_rows(q, kv_heads)
    for row in range(queries * group):
        for head in range(kv_heads):
            expected = q[:, row // group, head * group + row % group]
            np.testing.assert_array_equal(rows[:, head, row], expected)
    np.testing.assert_array_equal(from_rows(rows, queries), q)


def test_running_sums_do_not_care_how_keys_are_cut():
    rng = np.random.default_rng(8)
    scores, values = 30 * rng.standard_normal((2, 40)), rng.standard_normal((40, 3))
    scores, values = jnp.asarray(scores, jnp.float32), jnp.asarray(values, jnp.float32)
    seen = jnp.asarray(rng.random((2, 40)) < 0.7)
    results = []
    for tile in (1, 3, 40):
        running = Running.start(2, 3)
        for i in range(0, 40, tile):
            part = slice(i, i + tile)
            running = running.add(scores[:, part], seen[:, part], values[part])
        results.append(running.result())
    for other in results[1:]:
        np.testing.assert_allclose(other, results[0], atol=1e-5)
