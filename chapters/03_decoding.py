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
from dataclasses import dataclass
from typing import Any, NamedTuple

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
# to get rid of. And to get from 1 token to $n$ it runs the model
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

    @property
    def done(self) -> Bool[Array, "batch"]:
        """Rows that need no further token."""
        return self.stopped | (self.lengths >= self.limits)


def append(
    state: State, token: Int[Array, "batch"], stops: Int[Array, "stops"]
) -> State:
    """Add a token to each row that is not done; a stop token ends it."""
    running, stop = ~state.done, jnp.isin(token, stops)
    rows, nowhere = jnp.arange(token.shape[0]), state.tokens.shape[1]
    at = jnp.where(running & ~stop, state.lengths, nowhere)
    return state._replace(
        tokens=state.tokens.at[rows, at].set(token, mode="drop"),
        lengths=state.lengths + (running & ~stop),
        stopped=state.stopped | (running & stop),
    )


# %% [markdown]
# Prefill runs over all prompts at once and draws the first token. Only the
# last position of each prompt needs logits. A long prompt goes through in
# chunks, because the scores of 8,000 queries against 8,000 keys would fill
# gigabytes; one compiled body serves all chunks.

# %% tags=["export"]
PREFILL_CHUNK = 512  # tokens


def read_prompts(
    model: Transformer,
    tokens: Int[Array, "batch capacity"],
    firsts: Int[Array, "batch"],
    lengths: Int[Array, "batch"],
    cache: Cache,
    chunk: int,
) -> tuple[Float[Array, "batch hidden"], Cache]:
    """The hidden state of each prompt's last token, and the filled cache.

    Args:
        firsts: where to begin; the cache holds the positions before.
        lengths: where each prompt ends.
        chunk: tokens at a time.
    """
    batch, capacity = tokens.shape

    def body(i: Int[Array, ""], carry: tuple) -> tuple:
        last, cache = carry
        positions = (firsts + i * chunk)[:, None] + jnp.arange(chunk)
        there = jnp.minimum(positions, capacity - 1)
        part = jnp.take_along_axis(tokens, there, axis=1)
        output = model(part, positions, cache)
        at = lengths - 1 - positions[:, 0]
        inside = ((0 <= at) & (at < chunk))[:, None]
        found = output.hidden[jnp.arange(batch), jnp.clip(at, 0, chunk - 1)]
        return jnp.where(inside, found, last), output.cache

    hidden = jnp.zeros(
        (batch, model.config.hidden_size), model.embed_tokens.dtype
    )
    chunks = -(-jnp.max(lengths - firsts) // chunk)
    return jax.lax.fori_loop(0, chunks, body, (hidden, cache))


# %% tags=["export"]
def read_and_choose(
    model: Transformer,
    state: State,
    firsts: Int[Array, "batch"],
    stops: Int[Array, "stops"],
    sampling: Sampling,
    chunk: int,
    mode: str,
) -> State:
    """Read the prompts of a state and add the first token of each answer."""
    last, cache = read_prompts(
        model, state.tokens, firsts, state.lengths, state.cache, chunk
    )
    token = choose(model.logits(last), state.lengths, sampling, mode)
    return append(state._replace(cache=cache), token, stops)


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
    return read_and_choose(model, state, firsts, stops, sampling, chunk, mode)


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
    return append(state._replace(cache=output.cache), token, stops)


@functools.partial(jax.jit, static_argnames="mode", donate_argnames="state")
def decode(
    model: Transformer,
    state: State,
    stops: Int[Array, "stops"],
    sampling: Sampling,
    steps: Int[Array, ""],
    mode: str,
) -> State:
    """Decode until every row is done, or for `steps` steps."""

    def unfinished(carry: tuple[Int[Array, ""], State]) -> Bool[Array, ""]:
        step, state = carry
        return (step < steps) & ~state.done.all()

    def body(
        carry: tuple[Int[Array, ""], State],
    ) -> tuple[Int[Array, ""], State]:
        step, state = carry
        return step + 1, decode_step(model, state, stops, sampling, mode)

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
        raise UserError("The prompt is empty; expected at least one token.")
    return ids


# %% tags=["export"]
def _all_are(prompt: Any, kind: type) -> bool:
    return isinstance(prompt, list) and all(isinstance(x, kind) for x in prompt)


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
        work: Iterator[tuple[State, np.ndarray]],
    ):
        self.rows, self.one, self.work = rows, one, work
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
        for state, starts in self.work:
            seen = (state.tokens, state.lengths, state.stopped, state.done)
            tokens, lengths, stopped, done = jax.device_get(seen)
            pieces = []
            for row, start in enumerate(starts):
                start += len(self.generations[row].tokens)
                new = tokens[row, start : lengths[row]].tolist()
                end = (
                    ("stop" if stopped[row] else "length")
                    if done[row]
                    else None
                )
                pieces.append((row, self._add(row, new, end)))
            pieces = [p for p in pieces if p[1]]
            yield from (p[1] for p in pieces) if self.one else pieces

    def _add(self, row: int, tokens: list[int], end: str | None) -> str:
        generation = self.generations[row]
        self.statistics.decode_tokens += len(tokens) if generation.tokens else 0
        self.statistics.new_tokens += len(tokens)
        piece = "".join(self.rows[row].push(token) for token in tokens)
        if end and generation.finish_reason == "interrupted":
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
) -> Generation | list[Generation] | Stream:
    """Let the model continue one prompt or several.

    Args:
        prompt: a text, a chat (dicts with "role" and "content"), token ids, or
            a list of these; an empty list gives an empty list.
        max_new_tokens: at most so many; fewer when the context ends.
        temperature: 0 takes the most likely token, always.
        top_k: with a temperature, draw from the k most likely tokens only.
        top_p: with a temperature, draw from the most likely tokens that hold
            probability p.
        seed: row i of a batch draws as a single prompt does with seed + i.
        chat: write a text as the user's turn of a chat, with the model's
            template; False takes the text as it is.
        system: a system message before the chat; None leaves that to the
            template. Only a chat can have one.
        stream: return a `Stream` instead of waiting for the end.

    Raises:
        UserError: a prompt is empty or longer than the model's context, or a
            setting is impossible.
    """
    check_settings(max_new_tokens, temperature, top_k, top_p, seed)
    prompt = prompt.tolist() if hasattr(prompt, "tolist") else prompt
    prompt = list(prompt) if isinstance(prompt, tuple) else prompt
    one = is_one(prompt)
    every = [prompt] if one else prompt
    prompts = [encode_prompt(tokenizer, p, chat, system) for p in every]
    check_prompts(prompts, model.config)
    rows, statistics = [tokenizer.stream() for _ in prompts], Statistics()
    statistics.prompt_tokens = sum(map(len, prompts))
    how = (temperature, top_k, top_p, seed)
    steps = STREAM_STEPS if stream else QUIET_STEPS
    stops = tokenizer.stop_ids
    work = run(model, prompts, max_new_tokens, stops, how, steps, statistics)
    result = Stream(rows, one, statistics, work)
    if not stream:
        for _ in result:
            pass
    return result if stream else result.result


STREAM_STEPS = 4  # decode steps between two looks, when somebody reads along
QUIET_STEPS = 64  # and when nobody does; Ctrl-C is noticed between looks


# %% tags=["export"]
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
    mode = "greedy" if temperature == 0 else "truncated" if cut else "plain"
    top_k = min(top_k or model.config.vocab_size, model.config.vocab_size)
    seeds = jnp.arange(batch, dtype=jnp.uint32) + jnp.uint32(int(seed) % 2**32)
    sampling = Sampling(
        temperature=jnp.full(batch, temperature or 1.0, jnp.float32),
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
) -> Iterator[tuple[State, np.ndarray]]:
    """The state after prefill, and after every few decode steps.

    Args:
        how: temperature, top_k, top_p and seed.
    """
    packed, lengths = pack(prompts)
    context = model.config.max_position_embeddings
    max_new_tokens = min(int(max_new_tokens), context)
    limits = np.minimum(lengths + max_new_tokens, context).astype(np.int32)
    if (lengths >= limits).all():  # nothing to write, so nothing to read
        none, nothing = np.zeros(len(prompts), bool), DenseCache((), ())
        yield State(packed, lengths, limits, none, nothing), lengths
        return
    capacity = min(bucket(packed.shape[1] + max_new_tokens), bucket(context))
    sampling, mode = make_sampling(model, len(prompts), *how)
    stops = jnp.array(stop_ids or (-1,), jnp.int32)
    with Timer(statistics, "prefill_seconds"):
        state = prefill(
            model, packed, lengths, limits, stops, sampling, capacity, mode
        )
        unfinished = not jax.device_get(state.done).all()
    yield state, lengths
    while unfinished:
        with Timer(statistics, "decode_seconds"):
            state = decode(model, state, stops, sampling, np.int32(steps), mode)
            unfinished = not jax.device_get(state.done).all()
        yield state, lengths


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
