# ---
# jupyter:
#   dflash_lite:
#     module: decoding
#     public:
#     - DenseCache
#     - Generation
#     - generate
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
# # 3. Decoding
#
# From logits to text: prefill, the key-value cache, the decode step, sampling,
# and the whole loop on the device. Then the reason why it is slow, measured on
# the machine in front of you.
#
# **The question.** Why does a model that reads a thousand tokens in a moment
# write only tens of tokens a second?
#
# **Afterwards you can** build a key-value cache and say what it saves, sample
# with temperature, top-k and top-p as Hugging Face does, run the loop without
# asking the host, and predict the time of a token from the bytes it reads.
#
# **Time.** 45 minutes to read and run, 35 minutes of exercises.

# %% tags=["export"]
import functools
import numbers
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from dflash_lite.checkpoints import (
    ModelConfig,
    TextStream,
    Tokenizer,
    UserError,
)
from dflash_lite.transformer import Cache, Transformer, attention

# %%
import matplotlib.pyplot as plt

from dflash_lite.exercises import check
from dflash_lite.transformer import load

model, tokenizer = load("smollm2-135m")
config = model.config

# %% [markdown]
# ## The obvious loop
#
# Run the model, take the most likely token, append it, run again. It works,
# and each step computes again what the last one knew.


# %%
def slow_greedy(ids, steps):
    for _ in range(steps):
        hidden = model(jnp.array([ids])).hidden[:, -1]
        ids = ids + [int(model.logits(hidden).argmax())]
    return ids


# %%
start = tokenizer.encode("The three primary colours are")
slow = slow_greedy(start, 2)
tokenizer.decode(slow)

# %% [markdown]
# Each call has a new shape, so each call compiles anew; that is the first thing
# to get rid of. And for $n$ new tokens behind the first it runs the model
# over $1 + 2 + \dots + n$ positions; that is the second.

# %% [markdown]
# ## The cache
#
# What does a new token need from the old ones? Only their keys and values: in
# each layer its query meets the keys of all positions so far, and no old
# position ever looks at a new one. So we keep keys and values, and run the
# model over the new tokens alone.
#
# The arrays have a fixed capacity, because a compiled program has fixed
# shapes. The token at position $p$ lies in row $p$. A query at position $p$
# sees the rows $0 \dots p$; what lies behind them is of no interest, be it
# zeros, padding, or the leftovers of a draft that was rejected. Cutting the
# cache back costs nothing: one lowers a number.


# %% tags=["export"]
class DenseCache(NamedTuple):
    """Keys and values in arrays of fixed capacity; row p holds position p.

    Fits the protocol `Cache`. Positions at or beyond the capacity are dropped.
    """

    keys: tuple[Float[Array, "batch kv_heads capacity head_dim"], ...]
    values: tuple[Float[Array, "batch kv_heads capacity head_dim"], ...]

    @classmethod
    def empty(
        cls, config: ModelConfig, batch: int, capacity: int, dtype: Any
    ) -> "DenseCache":
        """A cache of zeros, one pair of arrays for each layer."""
        shape = (batch, config.num_key_value_heads, capacity, config.head_dim)
        layers = range(config.num_hidden_layers)
        zeros = [tuple(jnp.zeros(shape, dtype) for _ in layers) for _ in "kv"]
        return cls(*zeros)

    def attend(
        self,
        layer: int,
        q: Float[Array, "batch tokens heads head_dim"],
        k: Float[Array, "batch tokens kv_heads head_dim"],
        v: Float[Array, "batch tokens kv_heads head_dim"],
        positions: Int[Array, "batch tokens"],
    ) -> tuple[Float[Array, "batch tokens heads head_dim"], "DenseCache"]:
        """Write k and v at their positions; attend to all rows up to them."""
        rows = jnp.arange(q.shape[0])[:, None, None]
        heads = jnp.arange(k.shape[2])[:, None]
        # every axis by number: with a slice, a TPU would turn the cache around
        at = (rows, heads, positions[:, None])
        keys, values = list(self.keys), list(self.values)
        for arrays, new in ((keys, k), (values, v)):
            place = arrays[layer].at[at]
            arrays[layer] = place.set(new.swapaxes(1, 2), mode="drop")
        # without the barrier XLA fuses write and read, and copies the cache
        written = jax.lax.optimization_barrier((keys[layer], values[layer]))
        keys[layer], values[layer] = written
        seen = jnp.arange(written[0].shape[2]) <= positions[..., None]
        mixed = attention(q, *written, seen)
        return mixed, DenseCache(tuple(keys), tuple(values))


# %% [markdown]
# **Predict.** How many bytes does one token of cache take in this model, in
# float32? (Two arrays, thirty layers, three heads of 64.) How many tokens of
# cache weigh as much as the weights?

# %%
token_bytes = 2 * 30 * 3 * 64 * 4
weight_bytes = 134_515_008 * 4
print(f"{token_bytes:,} bytes; {weight_bytes // token_bytes:,} tokens")
cache = DenseCache.empty(config, 1, 128, jnp.float32)
assert sum(x.nbytes for x in jax.tree.leaves(cache)) == 128 * token_bytes

# %% [markdown]
# The check that matters: run a text through the cache in two parts, and compare
# with one run without a cache.

# %%
forward = jax.jit(Transformer.__call__)
sentence = "A cache must not change what the model says."
ids = jnp.array([tokenizer.encode(sentence)])
at = jnp.arange(ids.shape[1])[None]
whole = forward(model, ids, at).hidden
half = ids.shape[1] // 2
first = forward(model, ids[:, :half], at[:, :half], cache)
second = forward(model, ids[:, half:], at[:, half:], first.cache)
parts = jnp.concatenate([first.hidden, second.hidden], axis=1)
assert jnp.abs(parts - whole).max() < 1e-4 * jnp.abs(whole).max()

# %% [markdown]
# ## From scores to a token
#
# The model gives a score for each token. *Greedy* decoding takes the largest.
# Sampling draws from the distribution that the scores define, after three
# changes, in this order:
#
# 1. divide by the temperature: below 1 sharpens, above 1 flattens;
# 2. top-k: only the k best stay;
# 3. top-p: only the smallest set of best tokens that holds probability p stays
#    ([Holtzman et al. 2019](https://arxiv.org/abs/1904.09751)).
#
# Sorted, both cuts would be easy. But sorting 49,152 scores at every step is
# slow. There is a quicker way, because both cuts are thresholds: keep the
# scores that reach some number. We look for the number by halving an interval,
# and the interval is all float32 numbers there are.
#
# Their bits, read as an integer, are in the right order; only negative numbers
# run backwards. Thirty-two halvings find any threshold exactly.


# %% tags=["export"]
def ordinal(x: Float[Array, "*shape"]) -> Int[Array, "*shape"]:
    """An int32 for each float32, in the same order; both zeros give 0."""
    x = jnp.where(x == 0, 0.0, x)
    bits = jax.lax.bitcast_convert_type(x, jnp.int32)
    return jnp.where(bits < 0, bits ^ jnp.int32(2**31 - 1), bits)


def highest(
    holds: Callable[[Int[Array, "batch"]], Bool[Array, "batch"]], batch: int
) -> Int[Array, "batch"]:
    """The largest int32 of which `holds` is true, for each row.

    Args:
        holds: true of small numbers, false of large ones. Where it is true of
            none, the smallest int32 comes back.
    """

    def body(i: Int[Array, ""], found: Int[Array, "batch"]) -> Any:
        higher = found + jnp.left_shift(jnp.int32(1), 31 - i)  # first: to 0
        return jnp.where(holds(higher), higher, found)

    lowest = jnp.full(batch, -(2**31), jnp.int32)
    return jax.lax.fori_loop(0, 32, body, lowest)


# %%
numbers_in_order = jnp.array([-jnp.inf, -2.5, -0.0, 0.0, 1e-30, 3.0])
ordinals = ordinal(numbers_in_order)
assert (jnp.diff(ordinals) >= 0).all() and ordinals[2] == ordinals[3]
assert highest(lambda number: number // 7 <= 6, 1) == 48

# %% [markdown]
# Top-k keeps what ties with the k-th score. Top-p asks for the smallest set,
# so of the scores that tie at its edge it keeps only as many as it needs, the
# first in the vocabulary.


# %% tags=["export"]
class Sampling(NamedTuple):
    """How tokens are drawn; one entry for each row of the batch."""

    temperature: Float[Array, "batch"]
    top_k: Int[Array, "batch"]  # the vocabulary's size: no cut
    top_p: Float[Array, "batch"]  # 1: no cut
    keys: Key[Array, "batch"]


def truncate(
    logits: Float[Array, "batch vocab"], sampling: Sampling
) -> Float[Array, "batch vocab"]:
    """Apply temperature, top-k and top-p; what is cut becomes -inf.

    Source: TemperatureLogitsWarper, TopKLogitsWarper and TopPLogitsWarper of
    transformers, in its order. A tie at the k-th score keeps all that tie.
    """
    order, batch = ordinal(logits), logits.shape[0]
    reach = lambda at: order >= at[:, None]
    kth = highest(lambda at: reach(at).sum(-1) >= sampling.top_k, batch)
    best = jnp.max(logits, axis=-1, keepdims=True)
    scores = (logits - best) / sampling.temperature[:, None]
    scores = jnp.where(reach(kth), scores, -jnp.inf)

    mass = jax.nn.softmax(scores, axis=-1)
    held = lambda those: jnp.where(those, mass, 0).sum(-1)
    edge = highest(lambda at: held(reach(at)) >= sampling.top_p, batch)
    edge = jnp.minimum(edge, order.max(-1))[:, None]
    above, tied = order > edge, order == edge
    earlier = jnp.cumsum(tied, axis=-1) - tied
    missing = (sampling.top_p - held(above))[:, None]
    needed = (earlier == 0) | (earlier * mass < missing)
    inside = above | (tied & needed) | (sampling.top_p >= 1)[:, None]
    return jnp.where(inside, scores, -jnp.inf)


# %% [markdown]
# To draw, one need not even add up probabilities ([Maddison et al. 2014](
# https://arxiv.org/abs/1411.0030)): add to each score a random number from the
# Gumbel distribution, and the largest sum is a draw from the softmax. The
# random number depends on the seed and the position only. So the same seed
# gives the same text, whatever the batch, and however the loop is cut up.


# %% tags=["export"]
def gumbel(
    keys: Key[Array, "batch"], positions: Int[Array, "batch"], vocab: int
) -> Float[Array, "batch vocab"]:
    """Gumbel noise for the token at each row's position."""

    def noise(
        key: Key[Array, ""], position: Int[Array, ""]
    ) -> Float[Array, "vocab"]:
        key = jax.random.fold_in(key, position)
        tiny = jnp.finfo(jnp.float32).tiny
        uniform = jax.random.uniform(key, (vocab,), minval=tiny)
        return -jnp.log(-jnp.log(uniform))

    return jax.vmap(noise)(keys, positions)


def choose(
    logits: Float[Array, "batch vocab"],
    positions: Int[Array, "batch"],
    sampling: Sampling,
    mode: str,
) -> Int[Array, "batch"]:
    """The next token of each row.

    Args:
        logits: scores of the next token.
        positions: the position that the next token will have.
        mode: "greedy"; "plain", temperature only; or "truncated".
    """
    if mode == "greedy":
        return jnp.argmax(logits, axis=-1)
    noise = gumbel(sampling.keys, positions, logits.shape[-1])
    if mode == "truncated":
        return jnp.argmax(truncate(logits, sampling) + noise, axis=-1)
    below = logits - jnp.max(logits, axis=-1, keepdims=True)
    scores = below / sampling.temperature[:, None]
    return jnp.argmax(scores + noise, axis=-1)


# %% [markdown]
# **Predict.** Scores 2, 1, 0 and -1 have the probabilities 0.64, 0.24, 0.09
# and 0.03. Which tokens can be drawn with top-p 0.7? And with 0.6?


# %%
def possible(top_p: float) -> list[int]:
    one = lambda x: jnp.array([x])
    sampling = Sampling(one(1.0), one(4), one(top_p), jax.random.key(0)[None])
    scores = truncate(jnp.array([[2.0, 1.0, 0.0, -1.0]]), sampling)
    return jnp.flatnonzero(jnp.isfinite(scores[0])).tolist()


# %%
assert possible(0.7) == [0, 1] and possible(0.6) == [0]

# %% [markdown]
# ## The loop on the device
#
# Everything the loop needs to know lies in one state: the tokens so far, how
# many there are, when to stop. Prompts of unequal length are padded *behind*.
# The padding computes rows of cache that no query ever sees, since the tokens
# that follow overwrite them.


# %% tags=["export"]
class State(NamedTuple):
    """A batch of texts in the making.

    The last token of a row has no keys and values yet: the cache holds exactly
    the positions 0 to lengths − 2.
    """

    tokens: Int[Array, "batch capacity"]  # prompt and answer
    lengths: Int[Array, "batch"]  # tokens that count
    limits: Int[Array, "batch"]  # a row ends at this length
    stopped: Bool[Array, "batch"]  # a row ends with a stop token
    cache: Cache
    progress: Any = None  # of a drafter; the host reads its `report`

    @property
    def done(self) -> Bool[Array, "batch"]:
        """Rows that need no further token."""
        return self.stopped | (self.lengths >= self.limits)


def extend(
    state: State,
    tokens: Int[Array, "batch new"],
    counts: Int[Array, "batch"],
    stops: Int[Array, "stops"],
) -> State:
    """Add the first `counts` tokens to each row, up to a stop or its limit."""
    running = jnp.where(state.done, 0, state.limits - state.lengths)
    counts, index = jnp.minimum(counts, running), jnp.arange(tokens.shape[1])
    inside = index < counts[:, None]
    stop = jnp.isin(tokens, stops) & inside
    before = inside & (jnp.cumsum(stop, axis=1) == 0)
    rows, nowhere = jnp.arange(len(tokens))[:, None], state.tokens.shape[1]
    at = jnp.where(before, state.lengths[:, None] + index, nowhere)
    return state._replace(
        tokens=state.tokens.at[rows, at].set(tokens, mode="drop"),
        lengths=state.lengths + before.sum(1, dtype=jnp.int32),
        stopped=state.stopped | stop.any(1),
    )


# %% [markdown]
# Prefill runs over all prompts at once and draws the first token. Only the
# last position of each prompt needs logits. A long prompt goes through in
# chunks, because the scores of 8,000 queries against 8,000 keys would fill
# gigabytes; one compiled body serves all chunks.
#
# From chapter 6 on a *drafter* takes part: it may read along, and its step takes
# the place of the decode step. Here there is none, and `drafter`
# is None. What these loops ask of one is written down here.


# %% tags=["export"]
@runtime_checkable
class Drafter(Protocol):
    """Takes part in prefill and takes over the decode step; a pytree."""

    taps: tuple[int, ...]  # layers of the model whose output it watches
    block: int  # a step adds at most so many tokens
    reads: bool  # it reads the prompts too, every token of them

    def check(self, model: Transformer) -> None:
        """Refuse a model that it does not fit, with a `UserError`."""
        ...

    def start(self, model: Transformer, batch: int, capacity: int) -> Any:
        """`State.progress` before a token is read; it has a `report`."""
        ...

    def read(
        self,
        model: Transformer,
        progress: Any,
        tokens: Int[Array, "batch tokens"],
        positions: Int[Array, "batch tokens"],
        counted: Bool[Array, "batch tokens"],
        tapped: tuple[Float[Array, "batch tokens hidden"], ...],
    ) -> Any:
        """Read a part of the prompts; tokens not `counted` are padding."""
        ...

    def step(
        self,
        model: Transformer,
        state: State,
        stops: Int[Array, "stops"],
        sampling: Sampling,
        mode: str,
    ) -> State:
        """Some tokens more for each row that is not done."""
        ...


# %% tags=["export"]
PREFILL_CHUNK = 512  # tokens


def read_prompts(
    model: Transformer,
    state: State,
    firsts: Int[Array, "batch"],
    chunk: int,
    drafter: Drafter | None = None,
) -> tuple[Float[Array, "batch hidden"], State]:
    """The hidden state of each prompt's last token; the cache gets filled.

    Args:
        firsts: where to begin; the cache holds the positions before.
        chunk: tokens at a time.
    """
    tokens, lengths, config = state.tokens, state.lengths, model.config
    batch, capacity = tokens.shape
    taps = () if drafter is None else drafter.taps

    def body(i: Int[Array, ""], carry: tuple) -> tuple:
        last, cache, progress = carry
        positions = (firsts + i * chunk)[:, None] + jnp.arange(chunk)
        there = jnp.minimum(positions, capacity - 1)
        part = jnp.take_along_axis(tokens, there, axis=1)
        output = model(part, positions, cache, taps)
        if drafter is not None:
            counted = positions < lengths[:, None]
            seen = (part, positions, counted, output.taps)
            progress = drafter.read(model, progress, *seen)
        at = lengths - 1 - positions[:, 0]
        inside = ((0 <= at) & (at < chunk))[:, None]
        found = output.hidden[jnp.arange(batch), jnp.clip(at, 0, chunk - 1)]
        return jnp.where(inside, found, last), output.cache, progress

    hidden = jnp.zeros((batch, config.hidden_size), model.embed_tokens.dtype)
    chunks = -(-jnp.max(lengths - firsts) // chunk)
    carry = (hidden, state.cache, state.progress)
    hidden, *rest = jax.lax.fori_loop(0, chunks, body, carry)
    return hidden, state._replace(cache=rest[0], progress=rest[1])


# %% tags=["export"]
def read_and_choose(
    model: Transformer,
    state: State,
    firsts: Int[Array, "batch"],
    stops: Int[Array, "stops"],
    sampling: Sampling,
    chunk: int,
    mode: str,
    drafter: Drafter | None = None,
) -> State:
    """Read the prompts of a state and add the first token of each answer."""
    if drafter is not None:
        progress = drafter.start(model, *state.tokens.shape)
        state = state._replace(progress=progress)
    last, state = read_prompts(model, state, firsts, chunk, drafter)
    token = choose(model.logits(last), state.lengths, sampling, mode)
    return extend(state, token[:, None], jnp.ones_like(token), stops)


@functools.partial(jax.jit, static_argnames=("capacity", "mode"))
def prefill(
    model: Transformer,
    prompts: Int[Array, "batch bucket"],
    lengths: Int[Array, "batch"],
    limits: Int[Array, "batch"],
    stops: Int[Array, "stops"],
    sampling: Sampling,
    capacity: int,
    mode: str,
    drafter: Drafter | None = None,
) -> State:
    """Read the prompts into a new cache and draw the first token of each row.

    Args:
        prompts: token ids, padded behind to a power of two.
        lengths: the true length of each prompt, at least 1.
        limits: prompt and answer together, at most `capacity`.
        stops: tokens that end an answer.
        capacity: rows of the cache, at least as many as `prompts` has.
    """
    batch, width = prompts.shape
    dtype = model.embed_tokens.dtype
    cache = DenseCache.empty(model.config, batch, capacity, dtype)
    tokens = jnp.pad(prompts, ((0, 0), (0, capacity - width)))
    state = State(tokens, lengths, limits, jnp.zeros(batch, bool), cache)
    chunk, firsts = min(width, PREFILL_CHUNK), jnp.zeros_like(lengths)
    return read_and_choose(
        model, state, firsts, stops, sampling, chunk, mode, drafter
    )


# %% [markdown]
# A decode step feeds each row's last token. `lax.while_loop` repeats it on the
# device until every row is done, or until so many steps are done that we want
# to look. The state is donated: the cache is updated in place.


# %% tags=["export"]
def decode_step(
    model: Transformer,
    state: State,
    stops: Int[Array, "stops"],
    sampling: Sampling,
    mode: str,
) -> State:
    """One token more for each row that is not done."""
    at = state.lengths - 1
    last = jnp.take_along_axis(state.tokens, at[:, None], axis=1)
    output = model(last, at[:, None], state.cache)
    logits = model.logits(output.hidden[:, 0])
    token = choose(logits, state.lengths, sampling, mode)
    state = state._replace(cache=output.cache)
    return extend(state, token[:, None], jnp.ones_like(token), stops)


@functools.partial(jax.jit, static_argnames="mode", donate_argnames="state")
def decode(
    model: Transformer,
    state: State,
    stops: Int[Array, "stops"],
    sampling: Sampling,
    steps: Int[Array, ""],
    mode: str,
    drafter: Drafter | None = None,
) -> State:
    """Decode until every row is done, or for `steps` steps."""
    step_once = decode_step if drafter is None else drafter.step

    def unfinished(carry: tuple[Int[Array, ""], State]) -> Bool[Array, ""]:
        step, state = carry
        return (step < steps) & ~state.done.all()

    def body(
        carry: tuple[Int[Array, ""], State],
    ) -> tuple[Int[Array, ""], State]:
        step, state = carry
        return step + 1, step_once(model, state, stops, sampling, mode)

    return jax.lax.while_loop(unfinished, body, (jnp.int32(0), state))[1]


# %% [markdown]
# ## Few shapes, few programs
#
# Each new shape costs a compilation of some seconds, so shapes must be few. A
# prompt is padded to the next power of two, and the capacity follows from that
# and from the number of new tokens. Prompts of 17 to 32 tokens share a
# program, and those of 33 to 64 the next.

# %% tags=["export"]
SMALLEST_BUCKET = 16  # tokens


def bucket(length: int) -> int:
    """The power of two that a length is padded to."""
    return max(SMALLEST_BUCKET, 1 << (length - 1).bit_length())


# %%
assert [bucket(n) for n in (1, 16, 17, 100, 128)] == [16, 16, 32, 128, 128]

# %% [markdown]
# Whoever reports tokens per second should not count compiling, and whoever
# promises few compilations should count them. JAX announces both. Events can
# lie inside each other, so we keep the union of their intervals.


# %% tags=["export"]
class CompileClock:
    """Counts compilations, and the seconds of tracing and compiling."""

    def __init__(self):
        self.count, self.own = 0, threading.local()
        jax.monitoring.register_event_duration_secs_listener(self._event)

    @property
    def spans(self) -> list[tuple[float, float]]:
        """When this thread traced or compiled, start and end."""
        return self.own.__dict__.setdefault("spans", [])

    @property
    def seconds(self) -> float:
        """Seconds of this thread so far."""
        return sum(end - start for start, end in self.spans)

    def _event(self, event: str, duration: float, **details: Any) -> None:
        if not event.startswith("/jax/core/compile/"):
            return
        self.count += event.endswith("backend_compile_duration")
        end = time.perf_counter()
        start = end - duration
        while self.spans and self.spans[-1][0] >= start:
            self.spans.pop()
        if self.spans:
            start = max(start, self.spans[-1][1])
        self.spans.append((start, end))


COMPILE_CLOCK = CompileClock()

# %% [markdown]
# ## One call
#
# `generate` is what people call. It takes a question, a chat, token ids, or a
# list of any of them.


# %% tags=["export"]
@dataclass
class Statistics:
    """What a call of `generate` cost; a batch shares one."""

    prompt_tokens: int = 0
    new_tokens: int = 0
    prefill_seconds: float = 0.0  # without compiling
    decode_seconds: float = 0.0  # without compiling
    compile_seconds: float = 0.0

    decode_tokens: int = 0  # new tokens without each row's first
    decode_steps: int = 0  # of all rows, each until its end
    drafted: list[int] = field(default_factory=list)  # by place in the draft
    accepted: list[int] = field(default_factory=list)  # of those

    @property
    def acceptance_length(self) -> float:
        """Tokens that a decode step adds to a row; a stop token adds none."""
        if not self.decode_steps:
            return 0.0
        return self.decode_tokens / self.decode_steps

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all rows per second of decoding; 0 if none was decoded."""
        if not self.decode_tokens:
            return 0.0
        return self.decode_tokens / self.decode_seconds


@dataclass
class Generation:
    """What the model wrote."""

    tokens: list[int]  # without the prompt and without the stop token
    text: str
    finish_reason: str  # "stop", "length", or "interrupted"
    statistics: Statistics


Prompt = str | list[int] | list[dict[str, str]]


# %% tags=["export"]
def encode_prompt(
    tokenizer: Tokenizer, prompt: Prompt, chat: bool, system: str | None
) -> list[int]:
    """The token ids of a prompt: of a text, a chat, or ids themselves.

    Raises:
        UserError: the prompt is empty, or none of these; or it is no chat and
            has a system message.
    """
    if isinstance(prompt, str) and chat:
        prompt = [{"role": "user", "content": prompt}]
    if system is not None and not _all_are(prompt, dict):
        raise UserError(
            f"system is {system!r:.60}, but the prompt is no chat. Leave it "
            "out, or write it into the text."
        )
    if not isinstance(system, str | None):
        raise UserError(f"system is {system!r:.60}; expected a text or None.")
    if isinstance(prompt, str):
        ids = tokenizer.encode(prompt)
    elif isinstance(prompt, list) and not prompt:
        ids = []
    elif _all_are(prompt, dict):
        for message in prompt:
            parts = [message.get(name) for name in ("role", "content")]
            if not all(isinstance(part, str) for part in parts):
                raise UserError(
                    f"A message is {message!r:.60}; expected a role and a "
                    "content, both of them texts."
                )
        if system is not None:
            prompt = [{"role": "system", "content": system}, *prompt]
        text = tokenizer.chat(prompt)
        ids = tokenizer.encode(text, add_special_tokens=False)
    elif _all_are(prompt, numbers.Integral):
        ids = [int(i) for i in prompt]
    else:
        raise UserError(
            f"A prompt is {prompt!r:.60}; expected a text, a list of chat "
            "messages, or a list of token ids."
        )
    if not ids:
        raise UserError(
            "The prompt is empty; expected at least one token: give it "
            "some text or ids."
        )
    return ids


# %% tags=["export"]
def _all_are(prompt: Any, kind: type) -> bool:
    return isinstance(prompt, list) and all(
        isinstance(x, kind) and not isinstance(x, bool) for x in prompt
    )


def is_one(prompt: Prompt | Sequence[Prompt]) -> bool:
    """Whether this is a single prompt, rather than a list of them."""
    if not isinstance(prompt, list):
        return True
    return bool(prompt) and isinstance(prompt[0], (numbers.Integral, dict))


def check_prompts(prompts: list[list[int]], config: ModelConfig) -> None:
    """Refuse prompts that the model cannot read.

    Raises:
        UserError: a prompt is longer than the context, or an id out of range.
    """
    context, last = config.max_position_embeddings, config.vocab_size - 1
    for ids in prompts:
        if len(ids) > context:
            raise UserError(
                f"A prompt has {len(ids)} tokens; the model's context is "
                f"{context}. Shorten the prompt."
            )
        wrong = [i for i in ids if not 0 <= i <= last]
        if wrong:
            raise UserError(
                f"The token id {wrong[0]} is outside of 0 to {last}. Encode "
                "the prompt with this model's tokenizer."
            )


# %% [markdown]
# The settings are checked before any work, and each wrong one is named.


# %% tags=["export"]
def check_settings(
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int,
) -> None:
    """Refuse impossible settings.

    Raises:
        UserError: it names the setting, its value, and what was expected.
    """
    rules = [
        (
            "max_new_tokens",
            max_new_tokens,
            lambda x: x >= 0,
            "a whole number of 0 or more",
        ),
        (
            "temperature",
            temperature,
            lambda x: 0 <= x < 1e9,
            "a number from 0 to 1e9",
        ),
        (
            "top_k",
            top_k,
            lambda x: x >= 1,
            "a whole number of 1 or more, or None",
        ),
        (
            "top_p",
            top_p,
            lambda x: 0 < x <= 1,
            "a number above 0, up to 1, or None",
        ),
        ("seed", seed, lambda x: True, "a whole number"),
    ]
    for name, value, fine, expected in rules:
        if value is None and "None" in expected:
            continue
        kinds = WHOLE if "whole" in expected else (*WHOLE, *REAL)
        right = isinstance(value, kinds) and not isinstance(value, bool)
        if not right or not fine(value):
            raise UserError(f"{name} is {value!r:.60}; expected {expected}.")


WHOLE = (int, np.integer)
REAL = (float, np.floating)


# %% [markdown]
# Between two stretches of the loop the host looks: it copies tokens and
# lengths, never the cache. Whoever owns the cache prepares it before a stretch
# and hears what was written after it. A dense cache needs nothing of this; the
# pages of chapter 5 do.


# %% tags=["export"]
class Look(NamedTuple):
    """What the host sees of a state."""

    tokens: Int[np.ndarray, "batch capacity"]
    lengths: Int[np.ndarray, "batch"]
    stopped: Bool[np.ndarray, "batch"]
    done: Bool[np.ndarray, "batch"]
    report: Any = None  # a drafter's
    seconds: float = 0.0  # of decoding until now, without compiling
    pages: int | None = None  # in use


def look(state: State) -> Look:
    """Wait for a state and copy what the host needs of it."""
    report = getattr(state.progress, "report", None)
    seen = (state.tokens, state.lengths, state.stopped, state.done, report)
    return Look(*jax.device_get(seen))


# %% tags=["export"]
def reading(drafter: Drafter | None) -> Drafter | None:
    """A drafter, if it reads the prompts; others share one program."""
    return drafter if drafter is not None and drafter.reads else None


def joined(
    model: Transformer, state: State, drafter: Drafter | None
) -> State:
    """A state after prefill, with a drafter that did not read along."""
    if drafter is None or drafter.reads:
        return state
    progress = drafter.start(model, *state.tokens.shape)
    return state._replace(progress=progress)


class DenseBatch:
    """Prompts that are read, and continued together, in a dense cache.

    Args:
        prompts: token ids, at least one for each text.
        limits: tokens that each text can reach, the prompt included.
    """

    def __init__(
        self,
        model: Transformer,
        prompts: list[list[int]],
        limits: Int[np.ndarray, "batch"],
        drafter: Drafter | None = None,
    ):
        self.model, self.limits, self.drafter = model, limits, drafter
        self.packed, self.lengths = pack(prompts)
        context = bucket(model.config.max_position_embeddings)
        longest = self.packed.shape[1] + int((limits - self.lengths).max())
        self.capacity = min(bucket(longest), context)

    def prefill(
        self, stops: Int[Array, "stops"], sampling: Sampling, mode: str
    ) -> State:
        """The state after the prompts are read."""
        texts = (self.packed, self.lengths, self.limits)
        how = (stops, sampling, self.capacity, mode, reading(self.drafter))
        state = prefill(self.model, *texts, *how)
        return joined(self.model, state, self.drafter)

    def make_room(
        self, lengths: Int[np.ndarray, "batch"], tokens: int
    ) -> Cache:
        """The cache, prepared for so many tokens more of each text."""
        return self.cache

    def commit(self, state: State) -> Look:
        """Take back the cache of a state, and look at the rest."""
        self.cache = state.cache
        return look(state)

    def release(self) -> None:
        """End the texts."""


# %% [markdown]
# A stream runs the loop a few steps at a time and hands out the text that is
# complete. Its `result` is valid at any time, so an interrupted answer is not
# lost. A call without streaming is the same stream, looked at less often.


# %% tags=["export"]
class Stream:
    """Iterate for pieces of text; `result` holds what there is so far.

    For one prompt the pieces are strings, for several (row, string).
    """

    def __init__(
        self,
        rows: list[TextStream],
        one: bool,
        statistics: Statistics,
        work: Iterator[tuple[Look, np.ndarray]],
        watch: Callable[[Look], None] | None = None,
    ):
        self.rows, self.one, self.work, self.watch = rows, one, work, watch
        self.statistics, self.pieces = statistics, self._pieces()
        self.generations = [
            Generation([], "", "interrupted", statistics) for _ in rows
        ]

    @property
    def result(self) -> Generation | list[Generation]:
        """The generation of the prompt, or the list of them."""
        return self.generations[0] if self.one else self.generations

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self.pieces)

    def _pieces(self) -> Iterator[Any]:
        for seen, starts in self.work:
            rows = enumerate(starts.tolist())
            pieces = [self._row(seen, *row) for row in rows]
            if seen.report is not None:
                self.statistics.decode_steps = int(seen.report.steps.sum())
                self.statistics.drafted = seen.report.drafted.sum(0).tolist()
                self.statistics.accepted = seen.report.accepted.sum(0).tolist()
            if self.watch is not None:
                self.watch(seen)
            pieces = [p for p in pieces if p[1]]
            yield from (p[1] for p in pieces) if self.one else pieces

    def _row(self, seen: Look, row: int, start: int) -> tuple[int, str]:
        start += len(self.generations[row].tokens)
        new = seen.tokens[row, start : seen.lengths[row]].tolist()
        end = "stop" if seen.stopped[row] else "length"
        return row, self._add(row, new, end if seen.done[row] else None)

    def _add(self, row: int, tokens: list[int], end: str | None) -> str:
        generation, cost = self.generations[row], self.statistics
        ends = bool(end) and generation.finish_reason == "interrupted"
        if generation.tokens:
            cost.decode_tokens += len(tokens)
            cost.decode_steps += len(tokens) + (ends and end == "stop")
        cost.new_tokens += len(tokens)
        piece = "".join(self.rows[row].push(token) for token in tokens)
        if ends:
            generation.finish_reason = end
            piece += self.rows[row].finish()
        generation.tokens += tokens
        generation.text += piece
        return piece


# %% [markdown]
# What remains is to prepare the arrays and to keep time.


# %% tags=["export"]
def pack(prompts: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Prompts of unequal length in one array, padded behind with zeros."""
    lengths = np.array([len(p) for p in prompts], np.int32)
    widest = int(lengths.max(initial=1))
    packed = np.zeros((len(prompts), bucket(widest)), np.int32)
    for row, prompt in zip(packed, prompts, strict=True):
        row[: len(prompt)] = prompt
    return packed, lengths


class Timer:
    """Adds the seconds of a block to a statistic, without compiling."""

    def __init__(self, statistics: Statistics, name: str):
        self.statistics, self.name = statistics, name

    def __enter__(self) -> None:
        self.start = time.perf_counter() - COMPILE_CLOCK.seconds
        self.compiled = COMPILE_CLOCK.seconds

    def __exit__(self, *error: Any) -> None:
        compiled = COMPILE_CLOCK.seconds
        seconds = time.perf_counter() - compiled - self.start
        old = getattr(self.statistics, self.name)
        setattr(self.statistics, self.name, old + seconds)
        self.statistics.compile_seconds += compiled - self.compiled


# %% tags=["export"]
def generate(
    model: Transformer,
    tokenizer: Tokenizer,
    prompt: Prompt | Sequence[Prompt],
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    chat: bool = True,
    system: str | None = None,
    stream: bool = False,
    drafter: Drafter | None = None,
    memory: Any = None,
    watch: Callable[[Look], None] | None = None,
) -> Generation | list[Generation] | Stream:
    """Let the model continue one prompt or several.

    Args:
        prompt: a text, a chat (dicts with "role" and "content"), token ids, or
            a list of these; an empty list gives an empty list.
        max_new_tokens: at most so many; fewer when the context ends.
        temperature: 0 takes the most likely token, always; so does a number
            below 1e-30.
        top_k: with a temperature, draw from the k most likely tokens only.
        top_p: with a temperature, draw from the most likely tokens that hold
            probability p.
        seed: row i of a batch draws as a single prompt does with seed + i.
        chat: write a text as the user's turn of a chat, with the model's
            template; False takes the text as it is.
        system: a system message before the chat; None leaves that to the
            template. Only a chat can have one.
        stream: return a `Stream` instead of waiting for the end.
        drafter: guesses tokens that the model then verifies (chapter 6); the
            text stays what it is, or is drawn from the same distribution.
        memory: a `PagedMemory` of this model (chapter 5), to keep the cache
            in; None makes a dense cache for this call.
        watch: is called with a `Look` after prefill and after every step.

    Raises:
        UserError: a prompt is empty or longer than the model's context, a
            setting is impossible, the drafter does not fit the model, or the
            memory's pages do not suffice.
    """
    check_settings(max_new_tokens, temperature, top_k, top_p, seed)
    for name, value in (("chat", chat), ("stream", stream)):
        if type(value) is not bool:
            raise UserError(f"{name} is {value!r:.60}; expected True or False.")
    if watch is not None and not callable(watch):
        raise UserError(f"watch is {watch!r:.60}; expected a function or None.")
    check_parts(model, drafter, memory)
    prompt = prompt.tolist() if hasattr(prompt, "tolist") else prompt
    prompt = list(prompt) if isinstance(prompt, tuple) else prompt
    one = is_one(prompt)
    every = [prompt] if one else prompt
    prompts = [encode_prompt(tokenizer, p, chat, system) for p in every]
    check_prompts(prompts, model.config)
    rows, statistics = [tokenizer.stream() for _ in prompts], Statistics()
    statistics.prompt_tokens = sum(map(len, prompts))
    how = (temperature, top_k, top_p, seed)
    steps = 1 if watch else STREAM_STEPS if stream else QUIET_STEPS
    steps = max(1, steps // drafter.block) if drafter else steps
    batch_of = DenseBatch if memory is None else memory.batch
    parts = (how, steps, statistics, drafter, batch_of)
    work = run(model, prompts, max_new_tokens, tokenizer.stop_ids, *parts)
    result = Stream(rows, one, statistics, work, watch)
    if not stream:
        for _ in result:
            pass
    return result if stream else result.result


STREAM_STEPS = 4  # tokens between two looks, when somebody reads along
QUIET_STEPS = 64  # and when nobody does; Ctrl-C is noticed between looks


# %% tags=["export"]
def check_parts(model: Transformer, drafter: Any, memory: Any) -> None:
    """Refuse a drafter or a memory that is none, or not this model's.

    Raises:
        UserError: it says what it is and what was expected.
    """
    is_class = isinstance(drafter, type)  # it has the methods too
    fits = drafter is None or (isinstance(drafter, Drafter) and not is_class)
    if not fits:
        raise UserError(
            f"The drafter is {drafter!r:.60}; expected one of chapter 6, such "
            "as PromptLookup(), or None."
        )
    if memory is not None and getattr(memory, "model", None) is not model:
        raise UserError(
            f"The memory is {memory!r:.60}; expected a PagedMemory of this "
            "model, or None."
        )
    if drafter is not None:
        drafter.check(model)


# %% tags=["export"]
COLDEST = 1e-30  # smaller is 0: float32 could not divide by it


def make_sampling(
    model: Transformer,
    batch: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int,
) -> tuple[Sampling, str]:
    """The sampling arrays of a batch, and the mode of `choose`."""
    cut = top_k is not None or (top_p is not None and top_p < 1)
    cold = temperature < COLDEST
    mode = "greedy" if cold else "truncated" if cut else "plain"
    top_k = min(top_k or model.config.vocab_size, model.config.vocab_size)
    seeds = jnp.arange(batch, dtype=jnp.uint32) + jnp.uint32(int(seed) % 2**32)
    sampling = Sampling(
        temperature=jnp.full(batch, 1.0 if cold else temperature, jnp.float32),
        top_k=jnp.full(batch, top_k, jnp.int32),
        top_p=jnp.full(batch, 1.0 if top_p is None else top_p, jnp.float32),
        keys=jax.vmap(jax.random.key)(seeds),
    )
    return sampling, mode


# %% tags=["export"]
def run(
    model: Transformer,
    prompts: list[list[int]],
    max_new_tokens: int,
    stop_ids: tuple[int, ...],
    how: tuple[float, int | None, float | None, int],
    steps: int,
    statistics: Statistics,
    drafter: Drafter | None = None,
    batch_of: Callable[..., Any] = DenseBatch,
) -> Iterator[tuple[Look, np.ndarray]]:
    """A look after prefill and after every few steps, and the first lengths.

    Args:
        how: temperature, top_k, top_p and seed.
        batch_of: makes the batch, as `DenseBatch` does.
    """
    packed, lengths = pack(prompts)
    context = model.config.max_position_embeddings
    max_new_tokens = min(int(max_new_tokens), context)
    limits = np.minimum(lengths + max_new_tokens, context).astype(np.int32)
    if (lengths >= limits).all():  # nothing to write, so nothing to read
        none = np.zeros(len(prompts), bool)
        yield Look(packed, lengths, none, ~none), lengths
        return
    sampling, mode = make_sampling(model, len(prompts), *how)
    stops = jnp.array(stop_ids or (-1,), jnp.int32)
    room = steps * (1 if drafter is None else drafter.block)
    batch = batch_of(model, prompts, limits, drafter)
    try:
        with Timer(statistics, "prefill_seconds"):
            state = batch.prefill(stops, sampling, mode)
            seen = batch.commit(state)
        yield seen, lengths
        while not seen.done.all():
            with Timer(statistics, "decode_seconds"):
                cache = batch.make_room(seen.lengths, room)
                state = state._replace(cache=cache)
                how = (np.int32(steps), mode, drafter)
                state = decode(model, state, stops, sampling, *how)
                seen = batch.commit(state)
            yield seen._replace(seconds=statistics.decode_seconds), lengths
    finally:
        batch.release()


# %% [markdown]
# ## It speaks

# %%
answer = generate(model, tokenizer, "Why is the sky blue?", max_new_tokens=48)
print(answer.text)
assert answer.finish_reason == "length" and len(answer.tokens) == 48

# %% [markdown]
# A stream hands out text while the model works. The pieces are whole
# characters, and joined they are the text.

# %%
hello = "Say hello to a friend of mine."
stream = generate(model, tokenizer, hello, max_new_tokens=48, stream=True)
pieces = list(stream)
print(pieces)
assert "".join(pieces) == stream.result.text

# %% [markdown]
# **Predict.** Eight prompts of different lengths run as one batch. The short
# ones are padded. Does the padding change what they get?

# %%
names = "Ada Lovelace, Marie Curie, Alan Turing, Emmy Noether, Leonhard Euler"
questions = [f"Who was {name}?" for name in names.split(", ")]
questions += ["Say hi!", "Name a fruit, and its colour.", "What is a prime?"]
together = generate(model, tokenizer, questions, max_new_tokens=24)
for i in (0, 5):
    alone = generate(model, tokenizer, questions[i], max_new_tokens=24)
    assert together[i].tokens == alone.tokens
    print(alone.text[:60])

# %% [markdown]
# And how often did all of this compile? Programs that a shape had made before
# cost nothing.

# %%
count = COMPILE_CLOCK.count
again = generate(model, tokenizer, "Why is the sea blue?", max_new_tokens=48)
assert COMPILE_CLOCK.count == count
assert again.statistics.compile_seconds == 0

# %% [markdown]
# ## The same text twice
#
# A drawn text depends on its seed, and on nothing around it. Row $i$ of a batch
# draws as a single prompt does with seed + $i$.

# %%
how = dict(max_new_tokens=16, temperature=0.8, top_p=0.9)
pair = ["Tell me a story."] * 2
third, fourth = generate(model, tokenizer, pair, seed=3, **how)
anew, _ = generate(model, tokenizer, pair, seed=4, **how)
assert anew.tokens == fourth.tokens != third.tokens

# %% [markdown]
# ## Why it is slow
#
# Two speeds of the same model: how many tokens of a prompt it reads in a
# second, and how many it writes.

# %%
text = "The cat sat on the mat. " * 30
for _ in range(2):  # the second time, nothing compiles
    read = generate(model, tokenizer, text, max_new_tokens=1, chat=False)
reading = read.statistics.prompt_tokens / read.statistics.prefill_seconds
writing = again.statistics.tokens_per_second
assert reading > 2 * writing

# %% tags=["nbval-ignore-output"]
print(f"reads {reading:.0f} tokens a second, writes {writing:.0f}")

# %% [markdown]
# A decode step reads every weight once, and uses each for one multiplication
# and one addition per row of the batch. That is *arithmetic intensity*: the
# operations per byte read.
#
# A machine has two speeds: bytes per second from memory, and operations per
# second in its cores. The *roofline* ([Williams et al. 2009](
# https://doi.org/10.1145/1498765.1498785)) says that a step takes at least the
# longer of the two times:
#
# $$t \ge \max\!\left(\frac{\text{bytes}}{\text{bandwidth}},
# \frac{\text{operations}}{\text{peak}}\right).$$
#
# We measure both speeds here, on this machine: a sum over half a gigabyte, and
# a product of large matrices. JAX returns before the work is done, so each
# timing waits with `block_until_ready`.


# %%
def best_seconds(run, tries=5):
    jax.block_until_ready(run())
    times = []
    for _ in range(tries):
        start = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - start)
    return min(times)


# %%
many, square = jnp.ones(2**27), jnp.ones((2048, 2048))
total = jax.jit(lambda x: x.sum())
product = jax.jit(lambda x: x @ x)
bandwidth = many.nbytes / best_seconds(lambda: total(many))
peak = 2 * 2048**3 / best_seconds(lambda: product(square))
del many

# %% tags=["nbval-ignore-output"]
print(f"{bandwidth / 1e9:.1f} GB/s, {peak / 1e9:.0f} Gflop/s")
print(f"balance: {peak / bandwidth:.0f} operations for each byte")

# %% [markdown]
# Decoding one row does two operations for the four bytes of a float32 weight:
# half an operation per byte. Every machine offers far more. So a decode step
# with one row waits for memory, and by this floor a second row costs nothing.
# That is the gap which speculative decoding fills: chapter 6 gives it several
# tokens of one text at a time.
#
# **Predict.** From the measured bandwidth: how many milliseconds must a token
# take at least?


# %%
def step_seconds(batch, tries=4, steps=4):
    full = jnp.full(batch, 16, jnp.int32)
    cache = DenseCache.empty(config, batch, 128, jnp.float32)
    tokens, never = jnp.ones((batch, 128), jnp.int32), jnp.zeros(batch, bool)
    state = State(tokens, full, full + 100, never, cache)
    sampling, mode = make_sampling(model, batch, 0.0, None, None, 0)
    stops, times = jnp.full(len(tokenizer.stop_ids), -1, jnp.int32), []
    for _ in range(tries):
        start = time.perf_counter()
        state = decode(model, state, stops, sampling, np.int32(steps), mode)
        jax.block_until_ready(state)
        times.append((time.perf_counter() - start) / steps)
    return min(times[1:])


# %%
def predicted_seconds(batch):
    size = sum(x.nbytes for x in jax.tree.leaves(model))
    kept = batch * 128 * token_bytes
    operations = 2 * batch * size / 4
    return max((size + kept) / bandwidth, operations / peak)


# %%
batches = [1, 8, 64]
measured = [step_seconds(b) for b in batches]
predicted = [predicted_seconds(b) for b in batches]

# %% tags=["nbval-ignore-output"]
print("rows  predicted  measured   a token")
for b, p, m in zip(batches, predicted, measured):
    print(f"{b:4}{p * 1e3:8.1f} ms{m * 1e3:7.1f} ms{m / b * 1e3:7.2f} ms")

# %% tags=["nbval-ignore-output"] mystnb={"image": {"alt": "Two lines on logarithmic axes: predicted and measured milliseconds of a decode step for 1 to 64 rows. Both are flat at first and rise later; the measured line lies above."}}
fig, ax = plt.subplots(figsize=(7, 3))
ax.plot(batches, np.array(predicted) * 1e3, "s--", label="roofline")
ax.plot(batches, np.array(measured) * 1e3, "o-", label="measured")
ax.set_xscale("log", base=2)
ax.set_yscale("log")
ax.legend(frameon=False)
_ = ax.set(xlabel="rows in the batch", ylabel="milliseconds a step")

# %% [markdown]
# The prediction is a floor, and it has the right shape: nearly flat at first,
# then rising in proportion. The measured line lies above it, on a CPU most of
# all for two to eight rows: a product of so few rows is neither quite reading
# nor quite computing, and no library is at its best there. Still, eight rows
# cost about as much as two single steps, not as eight. The page
# [Benchmarks](../book/benchmarks.md) measures this with more care.
#
# A batch helps a server with many users. A single user has one text, and for
# it the second row has to come from somewhere else: from guesses.

# %% [markdown]
# ## Exercises
#
# **3.1 How full is the cache?** (5 minutes). A server keeps Qwen3-4B (36
# layers, 8 key-value heads of 128, bfloat16) for several users. Write the
# bytes of cache that one text of so many tokens takes.


# %% tags=["exercise"]
def cache_bytes(
    tokens: int, layers: int, kv_heads: int, head_dim: int, item: int
) -> int:
    """Bytes of keys and values; `item` is the bytes of one number."""
    ### BEGIN SOLUTION
    return 2 * tokens * layers * kv_heads * head_dim * item
    ### END SOLUTION


# %% tags=["check"]
@check(cache_bytes)
def _(f):
    assert f(1, 30, 3, 64, 4) != 23_040, "keys and values: two arrays"
    assert f(1, 30, 3, 64, 4) == 46_080, "SmolLM2 keeps 46,080 bytes a token"
    assert f(2, 30, 3, 64, 4) == 92_160, "it grows with the tokens"
    assert f(1, 36, 8, 128, 2) == 147_456, "Qwen3-4B: 144 KiB a token"


# %% [markdown]
# **3.2 Top-p by hand** (15 minutes). From the probabilities of the tokens,
# return the set of tokens that top-p keeps: the most likely ones, until their
# probabilities add up to p or more. At least one token always stays.


# %% tags=["exercise"]
def nucleus(probabilities: list[float], top_p: float) -> set[int]:
    """The tokens that top-p sampling can draw."""
    ### BEGIN SOLUTION
    order = sorted(range(len(probabilities)), key=lambda i: -probabilities[i])
    kept, held = set(), 0.0
    for i in order:
        if kept and held >= top_p:
            break
        kept.add(i)
        held += probabilities[i]
    return kept
    ### END SOLUTION


# %% tags=["check"]
@check(nucleus)
def _(f):
    p = [0.1, 0.5, 0.05, 0.35]
    assert f(p, 0.8) != {1}, "the token that crosses p belongs to the set"
    assert f(p, 0.8) == {1, 3}, "the most likely first, not the first in order"
    assert f(p, 0.4) == {1}, "one token can hold p alone"
    assert f(p, 0.0) == {1}, "at least one token stays"
    assert f(p, 1.0) == {0, 1, 2, 3}, "p = 1 keeps all"


# %% [markdown]
# **3.3 From which batch on?** (15 minutes). A chip reads `bandwidth` bytes and
# computes `peak` operations a second. Weights of `item` bytes serve a batch.
# From how many rows on is a decode step limited by computing? Ignore the cache.
# For a TPU v5e (197 Tflop/s in bfloat16, 819 GB/s), is a single user's
# decoding anywhere near it?


# %% tags=["exercise"]
def knee(bandwidth: float, peak: float, item: int) -> float:
    """The number of rows at which reading and computing take equally long."""
    ### BEGIN SOLUTION
    return peak / bandwidth * item / 2
    ### END SOLUTION


# %% tags=["check"]
@check(knee)
def _(f):
    assert f(1.0, 1.0, 2) != 2, "a weight is used for two operations"
    assert f(1.0, 1.0, 2) == 1, "2 bytes and 2 operations: one row balances"
    assert f(1.0, 8.0, 2) == 8, "a quicker core needs more rows"
    assert f(1.0, 1.0, 4) == 2, "a larger weight takes longer to read"
    assert f(4.0, 8.0, 2) == 2, "a quicker memory needs fewer rows"
    assert round(f(819e9, 197e12, 2)) == 241, "a v5e: about 241 rows"


# %% [markdown]
# ## Key points
#
# - Prefill reads many tokens in one pass; decode makes them one at a time.
# - The cache keeps keys and values, because nothing else of the past is ever
#   needed. Rows behind the current position do not matter, so cutting back is
#   free.
# - Shapes are padded to powers of two, so programs are few; the loop runs on
#   the device, so the host does not wait in it.
# - A decode step reads all weights for each token. On one row it uses a small
#   part of the machine's arithmetic.
#
# **Next:** chapter 4 looks into attention itself, and how it avoids writing
# down all scores.
