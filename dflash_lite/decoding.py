"""Decoding.

From logits to text: prefill, the key-value cache, the decode step, sampling,
and the whole loop on the device. Then the reason why it is slow, measured on
the machine in front of you.

Made from chapters/03_decoding.py by tools/tangle.py:
edit the chapter, not this file.
"""

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

__all__ = [
    "DenseCache",
    "ordinal",
    "highest",
    "Sampling",
    "truncate",
    "gumbel",
    "choose",
    "State",
    "append",
    "PREFILL_CHUNK",
    "read_prompts",
    "read_and_choose",
    "prefill",
    "decode_step",
    "decode",
    "SMALLEST_BUCKET",
    "bucket",
    "CompileClock",
    "COMPILE_CLOCK",
    "Statistics",
    "Generation",
    "Prompt",
    "encode_prompt",
    "is_one",
    "check_prompts",
    "check_settings",
    "WHOLE",
    "REAL",
    "Stream",
    "pack",
    "Timer",
    "generate",
    "STREAM_STEPS",
    "QUIET_STEPS",
    "make_sampling",
    "run",
]


# The cache
# ---------

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


# From scores to a token
# ----------------------

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


# The loop on the device
# ----------------------

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


# Few shapes, few programs
# ------------------------

SMALLEST_BUCKET = 16  # tokens


def bucket(length: int) -> int:
    """The power of two that a length is padded to."""
    return max(SMALLEST_BUCKET, 1 << (length - 1).bit_length())


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


# One call
# --------

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
