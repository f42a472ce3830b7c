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

__all__ = [
    "DenseCache",
    "ordinal",
    "highest",
    "Sampling",
    "truncate",
    "gumbel",
    "choose",
    "State",
    "extend",
    "Drafter",
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
    "Look",
    "look",
    "reading",
    "joined",
    "DenseBatch",
    "Stream",
    "pack",
    "Timer",
    "generate",
    "STREAM_STEPS",
    "QUIET_STEPS",
    "check_parts",
    "COLDEST",
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
