# ---
# jupyter:
#   dflash_lite:
#     module: flash_attention
#     public:
#     - tiled_attention
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 4. Attention in tiles
#
# Attention computed piece by piece, so that its table of scores never lies in
# memory: in JAX, with a backward pass that computes the scores again, and as a
# kernel for TPUs.
#
# **The question.** The inputs and the output of attention grow with the length
# of the text. Why should its memory grow with the square?
#
# **Afterwards you can** compute a softmax without seeing its whole row, say
# what a tile saves and what it does not, write the backward pass that
# recomputes, and read a Pallas kernel.
#
# **Time.** 40 minutes to read and run, 30 minutes of exercises.

# %% tags=["export"]
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Bool, Float, Int

# %%
import matplotlib.pyplot as plt
import numpy as np

from dflash_lite.exercises import check
from dflash_lite.transformer import attention

# %% [markdown]
# ## A table that nobody asked for
#
# For $n$ tokens, attention takes $n$ queries, keys and values, and gives $n$
# vectors. On the way, chapter 2's code writes down a score for every pair of
# positions and every head.
#
# **Predict.** SmolLM2 has nine heads. How large is the table of one layer, in
# float32, for 1,024 tokens? And for 65,536?

# %%
heads, size = 9, 64
for n in (1024, 8192, 65536):
    vectors, table = 4 * n * heads * size * 4, heads * n**2 * 4
    print(f"{n:6} tokens: {vectors / 2**20:6.0f} MiB", end=" of vectors, ")
    print(f"{table / 2**20:9,.0f} MiB of scores")
assert table == 144 * 2**30

# %% [markdown]
# At 65,536 tokens, the vectors fit into a laptop and the table does not fit
# into any chip. And before memory runs out, the table costs time: it is
# written, read by the softmax, written again as weights, and read once more to
# mix the values.
#
# Nobody wants the table. We want its rows' mixtures.

# %% [markdown]
# ## A softmax without the whole row
#
# One query has the scores $s_1, s_2, \dots$ and mixes the values $v_i$ with
# weights $e^{s_i}$. To keep the exponentials small, one subtracts the largest
# score $m$, which changes nothing in the quotient:
#
# $$o = \frac{\sum_i e^{s_i - m}\, v_i}{\sum_i e^{s_i - m}}.$$
#
# It seems that $m$ must be known first. But suppose that we have seen some of
# the scores, and know their largest $m$, their total $\ell = \sum e^{s_i - m}$
# and their mixture $a = \sum e^{s_i - m} v_i$. More scores come, and the
# largest is now $m'$. Then the old sums were taken with the wrong $m$, and all
# of them in the same way: by the factor $e^{m - m'}$. So we mend them and go on
# ([Milakov and Gimelshein 2018](https://arxiv.org/abs/1805.02867)).


# %%
def online(scores, values, tile):
    top, total, mix = -np.inf, 0.0, 0.0
    for i in range(0, len(scores), tile):
        s, v = scores[i : i + tile], values[i : i + tile]
        new = max(top, s.max())
        fade, weights = np.exp(top - new), np.exp(s - new)
        total = fade * total + weights.sum()
        mix = fade * mix + weights @ v
        top = new
    return mix / total


# %%
rng = np.random.default_rng(0)
scores, values = 300 * rng.normal(size=50), rng.normal(size=(50, 3))
with np.errstate(over="ignore", invalid="ignore"):
    naive = np.exp(scores) @ values / np.exp(scores).sum()
exact = np.exp(scores - scores.max()) @ values
exact /= np.exp(scores - scores.max()).sum()
assert all(np.allclose(online(scores, values, t), exact) for t in (1, 7, 50))

# %% [markdown]
# The tiles may have any size. The result is the same up to rounding, and since
# the largest score so far is always subtracted, nothing overflows, even here
# where scores reach several hundred.

# %% [markdown]
# ## In JAX
#
# Now for all queries and heads at once. A *tile* is a few hundred keys with
# their values. The running sums are one array each.


# %% tags=["export"]
class Running(NamedTuple):
    """What is known of each row's softmax after some of the keys; float32."""

    top: Float[Array, "*rows 1"]  # the largest score
    total: Float[Array, "*rows 1"]  # of the weights, taken with `top`
    mix: Float[Array, "*rows head_dim"]  # of the values, with these weights

    @classmethod
    def start(cls, *shape: int) -> "Running":
        """Nothing seen yet; the last size is the head's."""
        one = jnp.zeros((*shape[:-1], 1), jnp.float32)
        return cls(one + LOWEST, one, jnp.zeros(shape, jnp.float32))

    def add(
        self,
        scores: Float[Array, "*rows keys"],
        seen: Bool[Array, "*rows keys"],
        values: Float[Array, "*batch keys head_dim"],
    ) -> "Running":
        """Take in a tile of keys.

        Source: FlashAttention (Dao et al. 2022), algorithm 1.
        """
        scores = jnp.where(seen, scores, LOWEST)
        top = jnp.maximum(self.top, scores.max(-1, keepdims=True))
        weights = jnp.where(seen, jnp.exp(scores - top), 0)
        fade = jnp.exp(self.top - top)
        total = self.total * fade + weights.sum(-1, keepdims=True)
        mixed = product("...mn,...nd->...md", weights, values)
        return Running(top, total, self.mix * fade + mixed)

    def result(self) -> Float[Array, "*rows head_dim"]:
        """The mixtures; zeros for a row that has seen no key."""
        return self.mix / jnp.where(self.total == 0, 1, self.total)


LOWEST = float(jnp.finfo(jnp.float32).min)  # finite: no NaN can arise from it


# %% tags=["export"]
def product(
    axes: str, a: Float[Array, "*a"], b: Float[Array, "*b"]
) -> Float[Array, "*c"]:
    """An einsum with float32 sums; exact for float32, on every device."""
    exact = jax.lax.Precision.HIGHEST if b.dtype == jnp.float32 else None
    return jnp.einsum(
        axes,
        a.astype(b.dtype),
        b,
        precision=exact,
        preferred_element_type=jnp.float32,
    )


# %% [markdown]
# Two numbers per text say who sees whom, and they serve every case of this
# book. `starts` is the position of the first query: zero for a prompt, the
# length so far for new tokens over a cache. `lengths` is how many keys count;
# what lies behind is padding.
#
# Several query heads share a head of keys. Their queries become neighbouring
# *rows* of one matrix, so row $r$ of a group of $g$ holds query $r // g$.


# %% tags=["export"]
def visible(
    shape: tuple[int, int],
    first_row: Int[Array, ""] | int,
    first_key: Int[Array, ""] | int,
    start: Int[Array, ""],
    length: Int[Array, ""],
    group: int,
    causal: bool,
) -> Bool[Array, "rows keys"]:
    """Which rows of a tile see which of its keys."""
    row = first_row + jax.lax.broadcasted_iota(jnp.int32, shape, 0)
    key = first_key + jax.lax.broadcasted_iota(jnp.int32, shape, 1)
    return (key < length) & ((key <= start + row // group) | (not causal))


def to_rows(
    q: Float[Array, "batch queries heads head_dim"], kv_heads: int
) -> Float[Array, "batch kv_heads rows head_dim"]:
    """Put the queries that share keys into one matrix."""
    batch, queries, heads, size = q.shape
    rows = q.reshape(batch, queries, kv_heads, -1, size).swapaxes(1, 2)
    return rows.reshape(batch, kv_heads, -1, size)


def from_rows(
    rows: Float[Array, "batch kv_heads rows head_dim"], queries: int
) -> Float[Array, "batch queries heads head_dim"]:
    """The inverse of `to_rows`."""
    batch, kv_heads, _, size = rows.shape
    q = rows.reshape(batch, kv_heads, queries, -1, size).swapaxes(1, 2)
    return q.reshape(batch, queries, -1, size)


# %% [markdown]
# A scan takes the tiles one after the other. Keys that do not fill the last
# tile are padded, and `lengths` hides the padding. What lies behind a text's
# length may be anything, even NaN, and 0 · NaN is NaN: so there `within` puts
# zeros.


# %% tags=["export"]
def split_keys(
    x: Float[Array, "batch kv_heads keys head_dim"], tile: int
) -> Float[Array, "tiles batch kv_heads tile head_dim"]:
    """Cut keys or values into tiles, the last one padded with zeros."""
    batch, heads, keys, size = x.shape
    padded = jnp.pad(x, ((0, 0), (0, 0), (0, -keys % tile), (0, 0)))
    tiles = padded.reshape(batch, heads, -1, tile, size)
    return jnp.moveaxis(tiles, 2, 0)


def within(
    x: Float[Array, "batch kv_heads tile head_dim"],
    number: Int[Array, ""],
    lengths: Int[Array, "batch"],
) -> Float[Array, "batch kv_heads tile head_dim"]:
    """A tile of keys or values, with zeros behind each text's length."""
    key = number * x.shape[2] + jnp.arange(x.shape[2])
    counts = (key < lengths[:, None])[:, None, :, None]
    return jnp.where(counts, x, jnp.zeros((), x.dtype))


def tile_scores(
    rows: Float[Array, "batch kv_heads rows head_dim"],
    k: Float[Array, "batch kv_heads tile head_dim"],
    number: Int[Array, ""],
    starts: Int[Array, "batch"],
    lengths: Int[Array, "batch"],
    group: int,
    causal: bool,
) -> tuple[
    Float[Array, "batch kv_heads rows tile"], Bool[Array, "batch 1 rows tile"]
]:
    """The scores of one tile, and which of them count."""
    scores = product("...md,...nd->...mn", rows, k) * rows.shape[-1] ** -0.5
    shape, first = scores.shape[2:], number * k.shape[2]
    mask = lambda start, length: visible(
        shape, 0, first, start, length, group, causal
    )
    return scores, jax.vmap(mask)(starts, lengths)[:, None]


# %% tags=["export"]
def scan_tiles(
    q: Float[Array, "batch queries heads head_dim"],
    k: Float[Array, "batch kv_heads keys head_dim"],
    v: Float[Array, "batch kv_heads keys head_dim"],
    starts: Int[Array, "batch"],
    lengths: Int[Array, "batch"],
    causal: bool,
    tile: int,
) -> Running:
    """The running sums of every row after all tiles."""
    rows, group = to_rows(q, k.shape[1]), q.shape[2] // k.shape[1]
    tiles = split_keys(k, tile), split_keys(v, tile)

    def step(running: Running, at: tuple) -> tuple[Running, None]:
        number, (k, v) = at
        scores, seen = tile_scores(
            rows, k, number, starts, lengths, group, causal
        )
        return running.add(scores, seen, within(v, number, lengths)), None

    start = Running.start(*rows.shape)
    return jax.lax.scan(step, start, (jnp.arange(len(tiles[0])), tiles))[0]


# %% [markdown]
# The check: against chapter 2's `attention`, which writes the table down. 300
# tokens, of which the last 40 come new over a cache; two texts, one shorter.

# %%
draw = functools.partial(jax.random.normal, dtype=jnp.float32)
q = draw(jax.random.key(0), (2, 40, 9, 64))
k, v = draw(jax.random.key(1), (2, 2, 3, 300, 64))
starts, lengths = jnp.array([260, 100]), jnp.array([300, 140])
position = starts[:, None, None] + jnp.arange(40)[:, None]
whole = attention(q, k, v, jnp.arange(300) <= position)

# %%
running = scan_tiles(q, k, v, starts, lengths, True, 64)
parts = from_rows(running.result(), 40)
assert jnp.abs(parts - whole).max() < 1e-5

# %% [markdown]
# ## Memory, as the compiler sees it
#
# A compiled program says how many bytes it needs besides its inputs and
# outputs: its temporaries. So we can ask for 8,192 tokens without having the
# memory, because nothing runs.
#
# **Predict.** From 1,024 to 8,192 tokens the length grows by 8. By how much
# does the memory grow, with the table and without?


# %%
def whole_table(q, k, v):
    n = q.shape[1]
    mask = jnp.arange(n) <= jnp.arange(n)[:, None]
    return attention(q, k, v, mask[None])


def in_tiles(q, k, v):
    n = q.shape[1]
    start, length = jnp.zeros(1, jnp.int32), jnp.full(1, n, jnp.int32)
    running = scan_tiles(q, k, v, start, length, True, 256)
    return from_rows(running.result(), n)


# %%
def shapes(n):
    array = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    return array((1, n, 9, 64)), array((1, 3, n, 64)), array((1, 3, n, 64))


def temporaries(f, n):
    compiled = jax.jit(f).lower(*shapes(n)).compile()
    return compiled.memory_analysis().temp_size_in_bytes


# %%
sizes = [1024, 2048, 4096, 8192]
table = [temporaries(whole_table, n) / 2**20 for n in sizes]
tiles = [temporaries(in_tiles, n) / 2**20 for n in sizes]

# %% tags=["nbval-ignore-output"]
for n, a, b in zip(sizes, table, tiles):
    print(f"{n:5} tokens: {a:7,.0f} MiB with the table, {b:4,.0f} in tiles")

# %%
assert table[-1] / table[0] > 50 and tiles[-1] / tiles[0] < 10

# %% [markdown]
# The work has not become less: every score is still computed, once. What
# changed is where it lives, and for how long.

# %% [markdown]
# ## A backward pass that computes again
#
# Training needs gradients, and here the table comes back. To differentiate a
# scan, JAX keeps what each step computed, and the steps together computed the
# table.


# %%
def gradient(f):
    return jax.grad(lambda q, k, v: f(q, k, v).sum(), (0, 1, 2))


# %%
remembered = temporaries(gradient(in_tiles), 4096) / 2**20
assert remembered > 2 * heads * 4096**2 * 4 / 2**20

# %% [markdown]
# The way out is to forget the weights and compute them again in the backward
# pass ([Dao et al. 2022](https://arxiv.org/abs/2205.14135), section 3.1). One
# number for each row is enough to do that: the logarithm of its sum of
# exponentials, $L = m + \log \ell$. Then every weight is
#
# $$p_{ij} = e^{s_{ij} - L_i},$$
#
# final at once, with no running sums. Let $\bar o_i$ be the gradient that
# arrives at the output. The rules of calculus give
#
# $$\bar v_j = \sum_i p_{ij}\, \bar o_i, \qquad
# \bar p_{ij} = \bar o_i \cdot v_j, \qquad
# \bar s_{ij} = p_{ij}\,(\bar p_{ij} - \delta_i), \qquad
# \delta_i = \sum_j p_{ij}\, \bar p_{ij} = \bar o_i \cdot o_i.$$
#
# The last step is the pretty one. $\delta_i$ looks like a sum over the whole
# row, and it is a product of two short vectors that we have.


# %% tags=["export"]
def tiled_attention(
    q: Float[Array, "batch queries heads head_dim"],
    k: Float[Array, "batch kv_heads keys head_dim"],
    v: Float[Array, "batch kv_heads keys head_dim"],
    starts: Int[Array, "batch"],
    lengths: Int[Array, "batch"],
    causal: bool = True,
    tile: int = 256,
) -> Float[Array, "batch queries heads head_dim"]:
    """Grouped-query attention that never holds all scores, on any device.

    Its gradient holds none either: it computes them again.

    Args:
        starts: the position of each text's first query.
        lengths: how many keys of each text count, from the first; what lies
            behind has no effect. A query that sees none gets zeros.
        causal: a query sees no key behind its own position.
        tile: keys at a time.

    Source: FlashAttention (Dao et al. 2022), algorithms 1 and 4.
    """
    lengths = jnp.minimum(lengths, k.shape[2])
    return with_gradient(q, k, v, starts, lengths, causal, tile)


def forward(
    q: Float[Array, "batch queries heads head_dim"],
    k: Float[Array, "batch kv_heads keys head_dim"],
    v: Float[Array, "batch kv_heads keys head_dim"],
    starts: Int[Array, "batch"],
    lengths: Int[Array, "batch"],
    causal: bool,
    tile: int,
) -> tuple[Float[Array, "batch queries heads head_dim"], tuple]:
    """The output, and what the backward pass needs."""
    running = scan_tiles(q, k, v, starts, lengths, causal, tile)
    output = from_rows(running.result(), q.shape[1]).astype(q.dtype)
    log_sum = running.top + jnp.log(running.total)
    return output, (q, k, v, starts, lengths, output, log_sum)


# %% tags=["export"]
def backward(
    causal: bool,
    tile: int,
    saved: tuple,
    gradient: Float[Array, "batch queries heads head_dim"],
) -> tuple[Any, ...]:
    """The gradients of q, k and v, tile by tile."""
    q, k, v, starts, lengths, output, log_sum = saved
    group, scale = q.shape[2] // k.shape[1], q.shape[-1] ** -0.5
    rows, given = to_rows(q, k.shape[1]), to_rows(gradient, k.shape[1])
    delta = to_rows(output, k.shape[1]).astype(jnp.float32) * given
    delta = delta.sum(-1, keepdims=True)
    tiles = split_keys(k, tile), split_keys(v, tile)

    def step(to_q: Any, at: tuple) -> tuple[Any, tuple[Any, Any]]:
        number, tiles = at
        k, v = (within(x, number, lengths) for x in tiles)
        scores, seen = tile_scores(
            rows, k, number, starts, lengths, group, causal
        )
        weights = jnp.where(seen, jnp.exp(scores - log_sum), 0)
        to_v = product("...mn,...md->...nd", weights, given)
        to_weights = product("...md,...nd->...mn", given, v)
        to_scores = weights * (to_weights - delta) * scale
        to_q += product("...mn,...nd->...md", to_scores, k)
        return to_q, (product("...mn,...md->...nd", to_scores, rows), to_v)

    zero = jnp.zeros(rows.shape, jnp.float32)
    numbered = jnp.arange(len(tiles[0])), tiles
    to_q, (to_k, to_v) = jax.lax.scan(step, zero, numbered)
    to_q = from_rows(to_q, q.shape[1]).astype(q.dtype)
    to_k, to_v = (join_keys(x, k.shape[2]) for x in (to_k, to_v))
    return to_q, to_k.astype(k.dtype), to_v.astype(v.dtype), None, None


# %% tags=["export"]
def join_keys(
    tiles: Float[Array, "tiles batch kv_heads tile head_dim"], keys: int
) -> Float[Array, "batch kv_heads keys head_dim"]:
    """The inverse of `split_keys`."""
    x = jnp.moveaxis(tiles, 0, 2)
    return x.reshape(*x.shape[:2], -1, x.shape[-1])[:, :, :keys]


def recomputing() -> Callable[..., Array]:
    """The output of `forward`, with `backward` for its gradient."""
    output = lambda *arguments: forward(*arguments)[0]
    function = jax.custom_vjp(output, nondiff_argnums=(5, 6))
    function.defvjp(forward, backward)
    return function


with_gradient = recomputing()

# %% [markdown]
# Equal to what automatic differentiation finds, and without the table:


# %%
def forgetful(q, k, v):
    n = q.shape[1]
    start, length = jnp.zeros(1, jnp.int32), jnp.full(1, n, jnp.int32)
    return tiled_attention(q, k, v, start, length)


# %%
arrays = [draw(jax.random.key(i), s.shape) for i, s in enumerate(shapes(300))]
ours = jax.jit(gradient(forgetful))(*arrays)
theirs = jax.jit(gradient(whole_table))(*arrays)
for a, b in zip(ours, theirs, strict=True):
    assert jnp.abs(a - b).max() < 1e-4 * jnp.abs(b).max()

# %%
recomputed = temporaries(gradient(forgetful), 4096) / 2**20
assert recomputed < remembered / 10

# %% tags=["nbval-ignore-output"]
plain = temporaries(gradient(whole_table), 4096) / 2**20
print(f"gradient, 4,096 tokens: {plain:,.0f} MiB with the table,", end=" ")
print(f"{remembered:,.0f} in tiles, {recomputed:,.0f} computing again")
# %% [markdown]
# ## The same loop on a TPU
#
# A TPU core has a large memory (HBM, 16 GB on a v5e) and a small one next to
# its arithmetic units (VMEM, some tens of MB at most). XLA decides what is
# copied between them, and when. A *kernel* is a program in which we decide.
#
# Pallas divides the work into a grid. Here a point of the grid is a text, a
# head of keys, a tile of rows and a tile of keys. For each point, a *block
# spec* names the block of each array that is needed, and Pallas copies it into
# VMEM while the previous point is still computing. The points run in order,
# the last coordinate quickest. So the running sums stay in VMEM from one tile
# of keys to the next, and the output is written once.
#
# The body is the step of our scan. `Running.add` serves both.


# %% tags=["export"]
def key_tiles(
    start: Int[Array, ""],
    length: Int[Array, ""],
    last_row: Int[Array, ""] | int,
    tile: int,
    group: int,
    causal: bool,
) -> Int[Array, ""]:
    """How many tiles of keys the rows up to `last_row` need, from the first."""
    end = length
    if causal:
        end = jnp.minimum(end, start + last_row // group + 1)
    return (end + tile - 1) // tile


def kernel(
    starts: Any,
    lengths: Any,
    q: Any,
    k: Any,
    v: Any,
    output: Any,
    top: Any,
    total: Any,
    mix: Any,
    *,
    group: int,
    causal: bool,
    scale: float,
) -> None:
    """One tile of keys for one tile of rows; arguments are Pallas references.

    Args:
        starts, lengths: one number for each text, in scalar memory.
        q, k, v: the tiles: (rows, head_dim) and twice (keys, head_dim).
        output: (rows, head_dim), written after the last tile of keys.
        top, total, mix: the running sums, kept from tile to tile.
        group: query heads that share a head of keys.
        scale: of the scores; the head's width to the power of −1/2.
    """
    text, row_tile, key_tile = (pl.program_id(axis) for axis in (0, 2, 3))
    start, length = starts[text], lengths[text]
    (rows, size), keys = q.shape, k.shape[0]
    first_row, first_key = row_tile * rows, key_tile * keys

    @pl.when(key_tile == 0)
    def _() -> None:
        top[...], total[...], mix[...] = Running.start(rows, size)

    last_row = first_row + rows - 1
    needed = key_tiles(start, length, last_row, keys, group, causal)

    @pl.when(key_tile < needed)
    def _() -> None:
        scores = product("md,nd->mn", q[...], k[...]) * scale
        shape = scores.shape
        seen = visible(
            shape, first_row, first_key, start, length, group, causal
        )
        # behind the length lies anything, even NaN, and 0 · NaN is NaN
        key = first_key + jax.lax.broadcasted_iota(jnp.int32, v.shape, 0)
        values = jnp.where(key < length, v[...], jnp.zeros((), v.dtype))
        running = Running(top[...], total[...], mix[...])
        top[...], total[...], mix[...] = running.add(scores, seen, values)

    @pl.when(key_tile == pl.num_programs(3) - 1)
    def _() -> None:
        running = Running(top[...], total[...], mix[...])
        output[...] = running.result().astype(output.dtype)


# %% [markdown]
# Around the body: which block belongs to which point. Chapter 5 divides its
# work in the same way, and only finds its keys elsewhere. So what surrounds the
# body is a function of where the keys lie.


# %% tags=["export"]
def grid_of_tiles(
    rows: Float[Array, "batch kv_heads rows head_dim"],
    row_tile: int,
    key_tile: int,
    steps: int,
    scalars: int,
    place: Callable[..., tuple[Any, ...]],
) -> dict[str, Any]:
    """What `pallas_call` must know to run `kernel` over texts, heads and tiles.

    Args:
        row_tile, key_tile: rows and keys at a time.
        steps: tiles of keys for each text, needed or not.
        scalars: how many arrays lie in scalar memory, before q, k and v.
        place: the block of keys of a point (text, head, tile of rows, tile of
            keys, and the scalars).
    """
    batch, kv_heads, count, size = rows.shape

    def here(b: Any, h: Any, i: Any, j: Any, *_: Any) -> tuple[Any, ...]:
        return b, h, i, 0

    row_block = pl.BlockSpec((None, None, row_tile, size), here)
    key_block = pl.BlockSpec((None, None, key_tile, size), place)
    sums = [pltpu.VMEM((row_tile, n), jnp.float32) for n in (1, 1, size)]
    return dict(
        out_shape=jax.ShapeDtypeStruct(rows.shape, rows.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=scalars,
            grid=(batch, kv_heads, pl.cdiv(count, row_tile), steps),
            in_specs=[row_block, key_block, key_block],
            out_specs=row_block,
            scratch_shapes=sums,
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel",) * 3 + ("arbitrary",)
        ),
    )


# %% [markdown]
# One trick is in `place`. Tiles that nobody sees are skipped in the body, but
# their blocks would still be copied. So for them the block spec names the last
# block that was needed; it is there already, and nothing moves.


# %% tags=["export"]
def flash_attention(
    q: Float[Array, "batch queries heads head_dim"],
    k: Float[Array, "batch kv_heads keys head_dim"],
    v: Float[Array, "batch kv_heads keys head_dim"],
    starts: Int[Array, "batch"],
    lengths: Int[Array, "batch"],
    causal: bool = True,
    row_tile: int = 256,
    key_tile: int = 512,
    interpret: Any = False,
) -> Float[Array, "batch queries heads head_dim"]:
    """`tiled_attention` as one TPU kernel; bfloat16 or float32, no gradient.

    Args:
        starts, lengths, causal: as in `tiled_attention`.
        row_tile: queries times their group at a time.
        key_tile: keys at a time; a multiple of 128.
        interpret: simulate the kernel on any device; `True`, or
            `pltpu.InterpretParams` to simulate the memories too.

    Source: FlashAttention-2 (Dao 2023), section 3.1: tiles of queries outside,
    tiles of keys inside.
    """
    kv_heads, keys = k.shape[1:3]
    group, rows = q.shape[2] // kv_heads, to_rows(q, kv_heads)
    count, size = rows.shape[2:]
    row_tile = min(row_tile, -(-count // 16) * 16)
    key_tile = min(key_tile, -(-keys // 128) * 128)

    def place(b: Any, h: Any, i: Any, j: Any, starts: Any, lengths: Any) -> Any:
        last_row = (i + 1) * row_tile - 1
        needed = key_tiles(
            starts[b], lengths[b], last_row, key_tile, group, causal
        )
        return b, h, jnp.minimum(j, jnp.maximum(needed - 1, 0)), 0

    tiles = pl.cdiv(keys, key_tile)
    output = pl.pallas_call(
        functools.partial(
            kernel, group=group, causal=causal, scale=size**-0.5
        ),
        **grid_of_tiles(rows, row_tile, key_tile, tiles, 2, place),
        interpret=interpret,
        name="flash_attention",
    )(starts, jnp.minimum(lengths, keys), rows, k, v)
    return from_rows(output, q.shape[1])


# %% [markdown]
# There is no TPU in most machines, but Pallas can simulate one on the CPU, with
# its memories, and look for races between the copies and the computing.
# Uninitialised memory reads as NaN there, so a forgotten mask shows.

# %%
simulated = pltpu.InterpretParams(
    detect_races=True, uninitialized_memory="nan"
)
found = flash_attention(
    q, k, v, starts, lengths, row_tile=64, key_tile=128, interpret=simulated
)
assert jnp.abs(found - whole).max() < 1e-5

# %% [markdown]
# A simulation proves the numbers. It does not prove that the TPU's compiler
# takes the kernel: that has rules of its own about shapes and layouts. The
# repository's `bench/tpu_bytes.py` compiles this kernel for a v5e, on a machine
# that has none.
#
# ## Bytes through the door
#
# Why should this be quicker? The operations are the same, or a few more. What
# changes is how often the data passes between HBM and the core.
#
# With the table, the scores are written and read several times:
# $O(n^2)$ bytes. In tiles, queries and output pass once, and the keys and
# values once for each tile of rows. That is $O(n^2)$ too, but divided by the
# height of a tile.
#
# We count the blocks that the kernel asks for, with its own function.


# %%
def tiled_bytes(n, group=3, row_tile=256, key_tile=512, item=2):
    key_tile, blocks = min(key_tile, -(-n // 128) * 128), 0
    for i in range(-(-n * group // row_tile)):
        last = (i + 1) * row_tile - 1
        blocks += int(key_tiles(0, n, last, key_tile, group, True))
    vectors = 2 * n * heads * size * item
    return vectors + 3 * blocks * key_tile * 2 * size * item


# %% [markdown]
# For the version with the table we asked the TPU compiler about one layer of
# SmolLM2, in bfloat16, on a v5e. It gives two numbers: the bytes that the
# operations read and write, wherever these lie, and the size of what lies in
# HBM between the operations. `bench/tpu_bytes.py` asks again.

# %%
TABLE = {  # tokens: MB read and written, MB in HBM (libtpu 0.0.50.1)
    128: (6, 0),
    512: (40, 0),
    1024: (135, 0),
    2048: (917, 302),
    4096: (3761, 1258),
    8192: (14054, 5071),
    16384: (22582, 5713),
}
print("tokens   with the table   of it in HBM   in tiles")
for n, (moved, kept) in TABLE.items():
    tiles_moved = tiled_bytes(n) / 1e6
    print(f"{n:6}{moved:14,} MB{kept:12,} MB{tiles_moved:8,.1f} MB")

# %% mystnb={"image": {"alt": "Two lines on logarithmic axes: megabytes moved against tokens. The line with the table rises more steeply from 1,024 tokens on, and the line of the tiles lies a factor of ten to forty below it."}}
fig, ax = plt.subplots(figsize=(7, 3))
tokens, tabled = list(TABLE), [moved for moved, _ in TABLE.values()]
ax.plot(tokens, tabled, "s--", label="with the table")
ax.plot(tokens, [tiled_bytes(n) / 1e6 for n in tokens], "o-", label="in tiles")
ax.axvspan(1024, 2048, color="0.8", label="the table leaves VMEM")
ax.set_xscale("log", base=2)
ax.set_yscale("log")
ax.legend(frameon=False)
_ = ax.set(xlabel="tokens", ylabel="megabytes moved")

# %% [markdown]
# Up to 1,024 tokens nothing lies in HBM: the table fits into VMEM, and XLA
# keeps it there by itself. Tiles save work inside the chip, but the narrow door
# is not what is busy. The crossover lies between 1,024 and 2,048 tokens. From
# there on the table has to go through the door, several times. At 32,768
# tokens the compiler refuses: the table would need 21 GB, and the chip has 16.
#
# What does this buy in seconds? The authors of FlashAttention measured
# training on an A100: 15% in all for BERT-large with 512 tokens, and three
# times for GPT-2 with 1,024 tokens against Hugging Face's implementation, 1.7
# times against Megatron's ([Dao et al. 2022](
# https://arxiv.org/abs/2205.14135), section 4.1). The smaller numbers come from
# shorter texts and better opponents, as our lines suggest they must. All of
# them are of training, where every token is a query.
#
# **Predict.** Decoding has one query. What do tiles save there?

# %%
one_query = 9 * 8192 * 2 * 2  # a row of scores, written and read, in bfloat16
cache = 2 * 3 * 8192 * 64 * 2
print(f"scores {one_query / 1e3:.0f} kB, keys and values {cache / 1e3:.0f} kB")
assert one_query < cache / 10

# %% [markdown]
# Next to nothing: with one query, the table is one row. The keys and values
# must be read in any case, and each is used once. For decoding the question is
# another one: where the cache lies. That is chapter 5.

# %% [markdown]
# ## Exercises
#
# **4.1 Two halves** (10 minutes). Two machines have each seen half of the
# keys. Each sends the largest score, the total and the mixture, and one
# combines them. Write that. (This is how one long text is decoded by many
# cores at once.)


# %% tags=["exercise"]
def combine(a: Running, b: Running) -> Running:
    """The running sums over the keys of both."""
    ### BEGIN SOLUTION
    top = jnp.maximum(a.top, b.top)
    ours, theirs = jnp.exp(a.top - top), jnp.exp(b.top - top)
    total = a.total * ours + b.total * theirs
    return Running(top, total, a.mix * ours + b.mix * theirs)
    ### END SOLUTION


# %% tags=["check"]
@check(combine)
def _(f):
    scores, values = draw(jax.random.key(5), (2, 9)), draw(
        jax.random.key(6), (9, 4)
    )
    scores = scores * 50
    empty, yes = Running.start(2, 4), jnp.ones((2, 9), bool)
    all_ = empty.add(scores, yes, values)
    left = empty.add(scores[:, :4], yes[:, :4], values[:4])
    right = empty.add(scores[:, 4:], yes[:, 4:], values[4:])
    found = f(left, right)
    assert jnp.allclose(found.top, all_.top), "the larger of both tops"
    assert not jnp.allclose(found.total, left.total + right.total), (
        "bring both totals to the common top first"
    )
    assert jnp.allclose(found.total, all_.total, rtol=1e-4), "the total"
    assert jnp.allclose(found.mix, all_.mix, rtol=1e-4, atol=1e-5), (
        "the mixture fades like the total"
    )
    assert jnp.allclose(f(left, empty).mix, left.mix), "half may be empty"


# %% [markdown]
# **4.2 Half the work** (10 minutes). A causal text has $n$ queries and $n$
# keys, tiles of $t \times t$, and $t$ divides $n$. A tile must be computed if
# some query in it sees some key in it. How many must be?


# %% tags=["exercise"]
def causal_tiles(n: int, t: int) -> int:
    """The number of tiles that a causal mask does not empty."""
    ### BEGIN SOLUTION
    side = n // t
    return side * (side + 1) // 2
    ### END SOLUTION


# %% tags=["check"]
@check(causal_tiles)
def _(f):
    assert f(4, 4) == 1, "one tile holds everything"
    assert f(1024, 1) != 1024**2 // 2, "the diagonal counts too"
    assert f(1024, 1) == 1024 * 1025 // 2, "a tile of one: each visible pair"
    assert f(1024, 256) != 16, "a query sees no key behind it"
    assert f(1024, 256) == 10, "4 + 3 + 2 + 1"


# %% [markdown]
# **4.3 What fits** (10 minutes). The kernel needs in VMEM: the tiles of q, k,
# v and the output, each twice, because the next is copied while this one is
# used; the running sums in float32; and the tile of scores in float32. The
# sums `top` and `total` take 128 columns there, however few they use. How
# many bytes is that?


# %% tags=["exercise"]
def vmem_bytes(row_tile: int, key_tile: int, head_dim: int, item: int) -> int:
    """Bytes of VMEM; `item` is the bytes of one input number."""
    ### BEGIN SOLUTION
    tiles = 2 * (2 * row_tile + 2 * key_tile) * head_dim * item
    sums = row_tile * (128 + 128 + head_dim) * 4
    return tiles + sums + row_tile * key_tile * 4
    ### END SOLUTION


# %% tags=["check"]
@check(vmem_bytes)
def _(f):
    scores = 256 * 512 * 4
    assert f(256, 512, 128, 2) > scores, "the scores are not all"
    assert f(256, 512, 128, 2) != 786_432 // 2 + 393_216 + scores, (
        "each tile of q, k, v and the output is there twice"
    )
    assert f(256, 512, 128, 4) - f(256, 512, 128, 2) == 786_432, (
        "only the tiles of q, k, v and output depend on the item"
    )
    assert f(256, 512, 128, 2) == 786_432 + 393_216 + scores, (
        "sums: 128 + 128 + head_dim columns of four bytes"
    )


# %% [markdown]
# ## Key points
#
# - A softmax can be taken in pieces, because old sums are mended by one
#   factor. So the table of scores need not exist.
# - The backward pass needs it neither: one number for each row lets it compute
#   the weights again.
# - Tiles change how many bytes move, not what is computed. They pay where
#   there are many queries, which is prefill and training.
# - A Pallas kernel is the body of that loop, with the copies planned by us. A
#   simulation proves its numbers, a compiler proves that it can exist.
#
# **Next:** chapter 5 puts the cache into pages, so that many texts share one
# memory.
