"""Attention in tiles.

Attention computed piece by piece, so that its table of scores never lies in
memory: in JAX, with a backward pass that computes the scores again, and as a
kernel for TPUs.

Made from chapters/04_flash_attention.py by tools/tangle.py:
edit the chapter, not this file.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Bool, Float, Int

__all__ = [
    "Running",
    "LOWEST",
    "product",
    "visible",
    "to_rows",
    "from_rows",
    "split_keys",
    "within",
    "tile_scores",
    "scan_tiles",
    "tiled_attention",
    "forward",
    "backward",
    "join_keys",
    "recomputing",
    "with_gradient",
    "key_tiles",
    "kernel",
    "grid_of_tiles",
    "flash_attention",
]


# In JAX
# ------

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


# A backward pass that computes again
# -----------------------------------

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


# The same loop on a TPU
# ----------------------

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
