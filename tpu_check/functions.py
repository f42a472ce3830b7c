"""How to call each function of the package at a real size, and what it may take.

A builder turns an entry of the list into a `Work`: the jitted function, its arguments as shapes,
the operations it must do, and a bound on the memory it may take beside arguments and results.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from dflash_lite import (
    decoding,
    dflash,
    dual_cache,
    eagle,
    flash_attention as tiles,
    speculative,
    training,
)
from dflash_lite.checkpoints import ModelConfig
from dflash_lite.decoding import DenseCache, Sampling, State
from dflash_lite.paged_attention import (
    Layout,
    PagedCache,
    copy_pages as copy,
    paged_attention as kernel,
    read_pages as read,
)
from dflash_lite.transformer import Transformer
from tpu_check.models import DTYPE, MODELS, shapes

if TYPE_CHECKING:
    from tpu_check.entries import Entry

MIB = 2**20
SMALL = 96 * MIB  # what any program may take: far less than a cache of the list
LANES = 128  # a row of a TPU's memory; shorter ones may be padded


class Work(NamedTuple):
    """A program to compile."""

    function: Any  # jitted, with donation as in the package
    arguments: tuple  # shapes
    options: dict  # static arguments
    flops: float  # of the matrix products, masked parts of dense tables included
    bound: float  # bytes of temporaries
    drafter: Any = None  # shapes


# What it does and may take
# -------------------------

def products(config: ModelConfig, rows: int, keys: int, scored: int) -> float:
    """FLOPs of a pass of `rows` tokens that see `keys` each, with logits for `scored`."""
    c = config
    heads = c.num_attention_heads * c.head_dim
    kv = c.num_key_value_heads * c.head_dim
    layer = c.hidden_size * (2 * heads + 2 * kv + 3 * c.intermediate_size) + 2 * keys * heads
    return 2.0 * (rows * c.num_hidden_layers * layer + scored * c.vocab_size * c.hidden_size)


def activations(config: ModelConfig, rows: int, keys: int, scored: int) -> float:
    """Bytes of one layer's arrays for `rows` tokens: wide ones, a table of scores, logits.

    Float32 throughout; the table three times, for scores, weights and mask, and so the logits.
    """
    c = config
    wide = 4 * c.hidden_size + 3 * c.intermediate_size + 4 * c.num_attention_heads * c.head_dim
    table = 3 * c.num_attention_heads * keys
    return 4.0 * (rows * (wide + table) + 3 * scored * c.vocab_size)


def padded_cache(config: ModelConfig, batch: int, context: int) -> float:
    """Bytes of a dense cache whose heads fill whole lanes."""
    c = config
    lanes = -(-c.head_dim // LANES) * LANES
    rows = 2 * c.num_hidden_layers * c.num_key_value_heads * batch * context
    return rows * lanes * jnp.dtype(DTYPE).itemsize


# Arguments
# ---------

def integers(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def dense_cache(config: ModelConfig, batch: int, context: int) -> DenseCache:
    return jax.eval_shape(lambda: DenseCache.empty(config, batch, context, DTYPE))


def sampling(batch: int) -> Sampling:
    floats = jax.ShapeDtypeStruct((batch,), jnp.float32)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), batch))
    return Sampling(floats, integers(batch), floats, keys)


def paged_cache(config: ModelConfig, batch: int, context: int) -> PagedCache:
    """Pages for `batch` whole contexts, as the kernel reads them."""
    blocks = -(-context // PAGE)
    pages = batch * blocks
    arrays = jax.eval_shape(lambda: PagedCache.empty(config, pages, PAGE, DTYPE, "kernel"))
    table, users = integers(batch, blocks), integers(pages, 1)
    at = Layout(table, table, users, users)
    return PagedCache(arrays.keys, arrays.values, at, "kernel")


STOPS = integers(2)
PAGE = 64  # tokens


# Builders
# --------

def prefill(entry: "Entry") -> Work:
    """Chapter 3's prefill: it makes the cache and fills it, chunk by chunk."""
    config, batch = MODELS[entry.model], entry.batch
    rows = integers(batch)
    arguments = (shapes(entry.model), integers(batch, entry.tokens), rows, rows, STOPS,
                 sampling(batch))  # fmt: skip
    part = batch * min(entry.tokens, decoding.PREFILL_CHUNK)
    return Work(
        decoding.prefill, arguments, {"capacity": entry.context, "mode": entry.mode},
        products(config, batch * entry.tokens, entry.context, batch),
        activations(config, part, entry.context, batch),
    )  # fmt: skip


def decode(entry: "Entry") -> Work:
    """Chapter 3's loop; what it does is counted for one step."""
    config, batch = MODELS[entry.model], entry.batch
    rows, cache = integers(batch), dense_cache(config, batch, entry.context)
    stopped = jax.ShapeDtypeStruct((batch,), jnp.bool_)
    state = State(integers(batch, entry.context), rows, rows, stopped, cache)
    return Work(
        decoding.decode, (shapes(entry.model), state, STOPS, sampling(batch), integers()),
        {"mode": entry.mode},
        products(config, batch, entry.context, batch),
        activations(config, batch, entry.context, batch),
    )  # fmt: skip


@partial(jax.jit, donate_argnames="cache")
def check_block(
    model: Transformer, tokens: jax.Array, positions: jax.Array, cache: DenseCache
) -> tuple[jax.Array, DenseCache]:
    """The likeliest token behind each token of a block: what a verification computes."""
    output = model(tokens, positions, cache)
    return jnp.argmax(model.logits(output.hidden), axis=-1), output.cache


def verify(entry: "Entry") -> Work:
    """One pass over a block for each text."""
    config, batch = MODELS[entry.model], entry.batch
    rows, block = batch * entry.tokens, integers(batch, entry.tokens)
    cache = dense_cache(config, batch, entry.context)
    return Work(
        check_block, (shapes(entry.model), block, block, cache), {},
        products(config, rows, entry.context, rows),
        activations(config, rows, entry.context, rows),
    )  # fmt: skip


def paged_state(entry: "Entry") -> State:
    """A batch of texts over pages."""
    batch = entry.batch
    rows, cache = integers(batch), paged_cache(MODELS[entry.model], batch, entry.context)
    stopped = jax.ShapeDtypeStruct((batch,), jnp.bool_)
    return State(integers(batch, entry.context), rows, rows, stopped, cache)


def paged_decode(entry: "Entry") -> Work:
    """The same loop over pages; no table of scores."""
    config, batch = MODELS[entry.model], entry.batch
    arguments = (shapes(entry.model), paged_state(entry), STOPS, sampling(batch), integers())
    return Work(
        decoding.decode, arguments, {"mode": entry.mode},
        products(config, batch, entry.context, batch), activations(config, batch, 0, batch),
    )  # fmt: skip


def read_pages(entry: "Entry") -> Work:
    """Chapter 5's prefill: what no page holds yet, chunk by chunk."""
    config, batch = MODELS[entry.model], entry.batch
    rows, lanes = batch * entry.tokens, -(-config.head_dim // LANES) * LANES
    heads = 2 * (config.num_attention_heads + config.num_key_value_heads)
    forms = 5  # of q, k, v and the result: projected, turned, padded, by rows, the kernel's
    arguments = (shapes(entry.model), paged_state(entry), integers(batch), STOPS,
                 sampling(batch))  # fmt: skip
    return Work(
        read, arguments, {"chunk": entry.tokens, "mode": entry.mode},
        products(config, rows, entry.context, batch),
        activations(config, rows, 0, batch) + 4.0 * forms * rows * heads * lanes,
    )  # fmt: skip


def copy_pages(entry: "Entry") -> Work:
    """Copy on write, for as many pages as there are texts."""
    cache = paged_cache(MODELS[entry.model], entry.batch, entry.context)
    return Work(copy, (cache, integers(entry.batch, 2)), {}, 0.0, 0.0)


def paged_attention(entry: "Entry") -> Work:
    """Chapter 5's kernel alone, over one layer's pages."""
    c, batch = MODELS[entry.model], entry.batch
    blocks, lanes = -(-entry.context // PAGE), -(-c.head_dim // LANES) * LANES
    array = lambda *shape: jax.ShapeDtypeStruct(shape, DTYPE)
    pages = array(batch * blocks, c.num_key_value_heads, PAGE, lanes)
    q = array(batch, entry.tokens, c.num_attention_heads, lanes)
    rows, heads = integers(batch), batch * entry.tokens * c.num_attention_heads
    return Work(
        jax.jit(kernel), (q, pages, pages, integers(batch, blocks), rows, rows), {},
        4.0 * heads * entry.context * c.head_dim, 4.0 * heads * 5 * lanes,
    )  # fmt: skip


def attention_arguments(entry: "Entry") -> tuple:
    """q, k, v, starts and lengths of one layer."""
    c, batch = MODELS[entry.model], entry.batch
    array = lambda *shape: jax.ShapeDtypeStruct(shape, DTYPE)
    keys = array(batch, c.num_key_value_heads, entry.context, c.head_dim)
    q = array(batch, entry.tokens, c.num_attention_heads, c.head_dim)
    return q, keys, keys, integers(batch), integers(batch)


def attention_work(entry: "Entry", function: Callable, table: int, seen: float) -> Work:
    """One layer's attention: `table` keys of scores at a time, `seen` keys a query."""
    c, rows = MODELS[entry.model], entry.batch * entry.tokens
    heads = rows * c.num_attention_heads
    lanes = -(-c.head_dim // LANES) * LANES
    # q, the result and the running sums in float32, each padded; three tables
    bound = 4.0 * heads * (5 * lanes + 3 * table)
    return Work(jax.jit(function), attention_arguments(entry), {},
                4.0 * heads * seen * c.head_dim, bound)  # fmt: skip


def flash_attention(entry: "Entry") -> Work:
    """Chapter 4's kernel; causal, the queries last, so that tiles it skips do not count."""
    seen = entry.context - (entry.tokens - 1) / 2
    return attention_work(entry, tiles.flash_attention, 0, seen)


def tiled_attention(entry: "Entry") -> Work:
    """Chapter 4's loop in JAX: it computes every tile."""
    return attention_work(entry, tiles.tiled_attention, 256, entry.context)


# Drafters
# --------

LAYERS = {"SmolLM2-135M": 3, "Qwen3-4B": 5}  # of a DFlash drafter


@functools.cache
def dflash_drafter(name: str, block: int) -> dflash.DFlash:
    """A drafter whose parameters have shapes and no values, in the type of its target."""
    last = MODELS[name].vocab_size - 1
    make = lambda target: dflash.new_drafter(target, last, layers=LAYERS[name], block=block)
    cast = lambda x: jax.ShapeDtypeStruct(x.shape, DTYPE)
    return jax.tree.map(cast, jax.eval_shape(make, shapes(name)))


def drafter_of(entry: "Entry", learned: bool) -> Any:
    """The learned drafter, or the one that costs nothing but its look at the text."""
    if learned:
        return dflash_drafter(entry.model, entry.tokens)
    return speculative.PromptLookup(entry.tokens)


def draft_cost(entry: "Entry", rows: int, keys: int, scored: int) -> tuple[float, float]:
    """FLOPs and bytes of temporaries of a pass of the learned drafter."""
    config = dflash_drafter(entry.model, entry.tokens).network.config
    layers = config.layers
    fuse = 2.0 * rows * len(config.target_layer_ids) * layers.hidden_size**2
    return (products(layers, rows, keys, scored) + fuse,
            activations(layers, rows, keys, scored))  # fmt: skip


def drafted(entry: "Entry", learned: bool, pages: bool = False) -> Work:
    """Chapter 6's loop: draft, verify, accept; what it does is counted for one step."""
    config, batch = MODELS[entry.model], entry.batch
    drafter, rows = drafter_of(entry, learned), batch * entry.tokens
    make = lambda: drafter.start(shapes(entry.model), batch, entry.context)
    counts = integers(batch)
    if pages:
        state = paged_state(entry)
    else:
        stopped = jax.ShapeDtypeStruct((batch,), jnp.bool_)
        cache = dense_cache(config, batch, entry.context)
        state = State(integers(batch, entry.context), counts, counts, stopped, cache)
    state = state._replace(progress=jax.eval_shape(make))
    own = draft_cost(entry, 2 * rows, entry.context, rows) if learned else (0.0, 0.0)
    keys = 0 if pages else entry.context
    return Work(
        decoding.decode,
        (shapes(entry.model), state, STOPS, sampling(batch), integers()),
        {"mode": entry.mode},
        products(config, rows, entry.context, rows) + own[0],
        activations(config, rows, keys, rows) + own[1],
        drafter,
    )  # fmt: skip


def read_for_dflash(entry: "Entry") -> Work:
    """Chapter 3's prefill, whose hidden states the drafter reads too."""
    work = prefill(entry)
    learned = dflash_drafter(entry.model, 16)
    rows = entry.batch * min(entry.tokens, decoding.PREFILL_CHUNK)
    config = learned.network.config
    size, taps = config.layers.hidden_size, len(config.target_layer_ids)
    made = 2 * config.layers.num_key_value_heads * config.layers.head_dim
    made *= config.layers.num_hidden_layers  # numbers of a context row, in all layers
    fuse = 2.0 * entry.batch * entry.tokens * size * (taps * size + made)
    wide = 4.0 * rows * (2 * (taps + 2) * size + 2 * made)
    return work._replace(flops=work.flops + fuse, bound=work.bound + wide, drafter=learned)


@functools.cache
def eagle_drafter(name: str, block: int) -> eagle.Eagle:
    """A drafter of `WORDS` tokens whose parameters have shapes, in the type of its target."""
    c = MODELS[name]
    shape = replace(c, num_hidden_layers=1, model_type="llama")
    config = eagle.EagleConfig(shape, eagle.eagle_taps(c.num_hidden_layers), WORDS)
    make = lambda: eagle.EagleNetwork(config, dtype=DTYPE, rngs=nnx.Rngs(0))
    head = jax.ShapeDtypeStruct((WORDS, c.hidden_size), DTYPE)
    return eagle.Eagle(nnx.eval_shape(make), block, integers(WORDS), head)


def eagle_cost(entry: "Entry", rows: int, keys: int, scored: int) -> tuple[float, float]:
    """FLOPs and bytes of temporaries of passes of an EAGLE drafter."""
    config = eagle_drafter(entry.model, entry.tokens).network.config
    shape = replace(config.shape, vocab_size=WORDS)
    entrance = (shape.num_attention_heads + 2 * shape.num_key_value_heads) * shape.head_dim
    wide = shape.hidden_size * (3 * shape.hidden_size + entrance)
    bound = activations(shape, rows, keys, scored) + 4.0 * rows * 8 * shape.hidden_size
    return products(shape, rows, keys, scored) + 2.0 * rows * wide, bound


def drafted_by_eagle(entry: "Entry") -> Work:
    """Chapter 8's step: a pass for each draft, a verification, the true rows written anew."""
    work, batch = drafted(entry, learned=False), entry.batch
    drafter, rows = eagle_drafter(entry.model, entry.tokens), entry.batch * entry.tokens
    model, state, *rest = work.arguments
    make = lambda: drafter.start(shapes(entry.model), batch, entry.context)
    state = state._replace(progress=jax.eval_shape(make))
    flops, bound = eagle_cost(entry, 2 * rows, entry.context, rows)
    return work._replace(
        arguments=(model, state, *rest), flops=work.flops + flops, bound=work.bound + bound,
        drafter=drafter,
    )  # fmt: skip


def read_for_eagle(entry: "Entry") -> Work:
    """Chapter 3's prefill, whose hidden states the drafter reads too."""
    work, learned = prefill(entry), eagle_drafter(entry.model, 8)
    rows = entry.batch * min(entry.tokens, decoding.PREFILL_CHUNK)
    shape = learned.network.config.shape
    size, made = shape.hidden_size, 2 * shape.num_key_value_heads * shape.head_dim
    fuse = 2.0 * entry.batch * entry.tokens * size * (3 * size + 2 * made)
    wide = 4.0 * rows * (2 * 7 * size + 2 * made)
    return work._replace(flops=work.flops + fuse, bound=work.bound + wide, drafter=learned)


# The loop on the host
# --------------------

def drafter_arrays(entry: "Entry") -> tuple[Any, Any]:
    """A learned drafter of a block of 16, and its context."""
    learned = dflash_drafter(entry.model, 16)
    make = lambda: learned.begin(shapes(entry.model), entry.batch, entry.context)
    return learned, jax.eval_shape(make)


def write_features(entry: "Entry") -> Work:
    """Chapter 11's context rows, as many as there are tokens."""
    learned, memory = drafter_arrays(entry)
    config, rows = learned.network.config, entry.batch * entry.tokens
    size, taps = config.layers.hidden_size, len(config.target_layer_ids)
    made = 2 * config.layers.num_key_value_heads * config.layers.head_dim
    made *= config.layers.num_hidden_layers
    row = jax.ShapeDtypeStruct((entry.batch, entry.tokens, size), DTYPE)
    handed = dual_cache.Handed((row,) * taps, integers(entry.batch), integers(entry.batch))
    return Work(
        dual_cache.write_features, (shapes(entry.model), learned, memory, handed), {},
        2.0 * rows * size * (taps * size + made), 4.0 * rows * (2 * (taps + 2) * size + 2 * made),
    )  # fmt: skip


def draft_block(entry: "Entry") -> Work:
    """Chapter 11's draft alone: a pass over a block of 16."""
    learned, memory = drafter_arrays(entry)
    rows = entry.batch * 16
    arguments = (shapes(entry.model), learned, memory, integers(entry.batch, 1),
                 integers(entry.batch))  # fmt: skip
    cost = draft_cost(entry._replace(tokens=16), rows, entry.context, rows)
    return Work(dual_cache.draft_block, arguments, {}, *cost)


def verify_block(entry: "Entry") -> Work:
    """Chapter 11's verification, with the taps of the drafter."""
    work = verify(entry)
    model, tokens, _, cache = work.arguments
    config = dflash_drafter(entry.model, 16).network.config
    taps, size = config.target_layer_ids, config.layers.hidden_size
    return work._replace(
        function=dual_cache.verify_block, options={"taps": taps},
        arguments=(model, cache, tokens, integers(entry.batch)),
        bound=work.bound + 4.0 * len(taps) * entry.batch * entry.tokens * size,
    )  # fmt: skip


# Training
# --------

WORDS = 8192  # that heads and EAGLE can draft


def replace_rows(entry: "Entry") -> Work:
    """Chapter 7's new texts in a running batch: an eighth of it."""
    config, new = MODELS[entry.model], max(1, entry.batch // 8)

    def state(batch: int) -> State:
        rows, stopped = integers(batch), jax.ShapeDtypeStruct((batch,), jnp.bool_)
        cache = dense_cache(config, batch, entry.context)
        return State(integers(batch, entry.context), rows, rows, stopped, cache)

    arguments = (state(entry.batch), sampling(entry.batch), integers(new), state(new),
                 sampling(new))  # fmt: skip
    return Work(training.replace_rows, arguments, {}, 0.0, padded_cache(config, new, entry.context))


def read_features(entry: "Entry") -> Work:
    """The target up to two thirds of its layers, over whole texts."""
    config, rows = MODELS[entry.model], entry.batch * entry.tokens
    taps = tapped(config)
    part = replace(config, num_hidden_layers=max(taps) + 1)
    return Work(
        training.read_features, (shapes(entry.model), integers(entry.batch, entry.tokens)),
        {"taps": taps}, products(part, rows, entry.context, 0),
        activations(config, rows, entry.context, 0),
    )  # fmt: skip


def tapped(config: ModelConfig) -> tuple[int, ...]:
    """Two layers in the middle."""
    return config.num_hidden_layers // 2, config.num_hidden_layers * 2 // 3


def learning(entry: "Entry", learns: bool) -> Work:
    """A step of chapter 7's heads with the target's features, or its score alone."""
    config = MODELS[entry.model]
    make = lambda: training.Heads.new(shapes(entry.model), tapped(config), vocabulary=range(WORDS))
    leaves, tree = jax.tree.flatten(jax.eval_shape(make))
    *params, _ = leaves
    parts = training.Parts(params, [None, None, jnp.arange(WORDS)], tree)
    transform, _ = training.optimizer(training.TrainSettings())
    steps = training.Steps(parts, transform, 0, DTYPE)
    texts = integers(entry.batch, entry.tokens), *(integers(entry.batch) for _ in range(2))
    number = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.uint32)
    dealt = training.Dealt(*texts, number(entry.batch), None)
    rest = (shapes(entry.model), dealt, number())
    state = jax.eval_shape(transform.init, params)
    arguments = (params, state, *rest) if learns else (params, *rest)
    weights = sum(x.size for x in params)
    drafts = entry.batch * 32 * 3  # the defaults of `Heads.new`
    own = 2.0 * (drafts / 3 * weights + drafts * WORDS * config.hidden_size)
    read = read_features(entry)
    return Work(
        steps.train if learns else steps.score, arguments, {},
        read.flops + own * (3 if learns else 1),
        read.bound + 4.0 * (4 * weights + 8 * drafts * (WORDS + config.hidden_size)),
    )  # fmt: skip


# A function of the list, the function of the package that it compiles, and its builder.
FUNCTIONS: dict[str, tuple[str, Callable[["Entry"], Work]]] = {
    "prefill": ("dflash_lite.decoding.prefill", prefill),
    "decode": ("dflash_lite.decoding.decode", decode),
    "verify": ("dflash_lite.transformer.Transformer", verify),
    "decode over pages": ("dflash_lite.paged_attention.PagedCache", paged_decode),
    "read_pages": ("dflash_lite.paged_attention.read_pages", read_pages),
    "copy_pages": ("dflash_lite.paged_attention.copy_pages", copy_pages),
    "paged_attention": ("dflash_lite.paged_attention.paged_attention", paged_attention),
    "flash_attention": ("dflash_lite.flash_attention.flash_attention", flash_attention),
    "tiled_attention": ("dflash_lite.flash_attention.tiled_attention", tiled_attention),
    "decode with lookup": ("dflash_lite.speculative.PromptLookup", partial(drafted, learned=False)),
    "decode with DFlash": ("dflash_lite.dflash.DFlash", partial(drafted, learned=True)),
    "decode with DFlash over pages": (
        "dflash_lite.dflash.DFlash", partial(drafted, learned=True, pages=True)),
    "prefill for DFlash": ("dflash_lite.dflash.DFlash", read_for_dflash),
    "decode with EAGLE": ("dflash_lite.eagle.Eagle", drafted_by_eagle),
    "prefill for EAGLE": ("dflash_lite.eagle.Eagle", read_for_eagle),
    "write_features": ("dflash_lite.dual_cache.write_features", write_features),
    "draft_block": ("dflash_lite.dual_cache.draft_block", draft_block),
    "verify_block": ("dflash_lite.dual_cache.verify_block", verify_block),
    "replace_rows": ("dflash_lite.training.replace_rows", replace_rows),
    "read_features": ("dflash_lite.training.read_features", read_features),
    "train heads": ("dflash_lite.training.Steps.train", partial(learning, learns=True)),
    "score heads": ("dflash_lite.training.Steps.score", partial(learning, learns=False)),
}


def build(entry: "Entry") -> Work:
    """The entry's program, with the bound that the check holds it to."""
    work = FUNCTIONS[entry.function][1](entry)
    copies = entry.copies * padded_cache(MODELS[entry.model], entry.batch, entry.context)
    return work._replace(bound=SMALL + work.bound + copies)
