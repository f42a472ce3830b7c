"""The dual cache.

Two models remember one text: the target in pages, the drafter in plain arrays.
One number must hold for both. Where it does not, nothing looks wrong; a museum
shows nine ways to get there.

Made from chapters/11_dual_cache.py by tools/tangle.py:
edit the chapter, not this file.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from dflash_lite.checkpoints import ModelConfig, Tokenizer, UserError
from dflash_lite.decoding import (
    PREFILL_CHUNK,
    DenseCache,
    Drafter,
    Generation,
    Look,
    Prompt,
    State,
    bucket,
    decode,
    encode_prompt,
    generate,
    make_sampling,
)
from dflash_lite.dflash import BlockCache, DFlash
from dflash_lite.eagle import write_context
from dflash_lite.paged_attention import (
    PagedBatch,
    PagedMemory,
    Text,
    layout,
    read_pages,
)
from dflash_lite.speculative import Draft, Progress, as_drafter
from dflash_lite.training import replace_rows
from dflash_lite.transformer import Transformer

__all__ = [
    "cache_bytes",
    "frontier",
    "check_invariant",
    "CheckedBatch",
    "CheckedMemory",
    "DualBatch",
    "Handed",
    "ContextBuffer",
    "write_features",
    "draft_block",
    "verify_block",
    "Meter",
    "HostStep",
    "decode_from_host",
    "exhibit",
    "Exhibit",
    "Inflated",
    "BonusCounted",
    "TapsOffByOne",
    "SharedPositions",
    "SlotsTooEarly",
    "KeepingCache",
    "StaleBlock",
    "NoWindow",
    "PrefixOnly",
    "Bug",
    "MUSEUM",
    "with_bug",
    "visit",
]


# Two models, two memories
# ------------------------

def cache_bytes(config: ModelConfig, tokens: int, number: int = 2) -> int:
    """Bytes of keys and values.

    Args:
        number: bytes of each number; 2 in bfloat16.
    """
    row = config.num_key_value_heads * config.head_dim
    return 2 * config.num_hidden_layers * row * tokens * number


# One number
# ----------

def frontier(state: State) -> Int[Array, "batch"]:
    """How far the target has read: the one number of the dual cache.

    So many tokens have hidden states, so many rows of context the drafter
    holds, and this is the position of the next anchor.
    """
    return state.lengths - 1


def check_invariant(state: State, texts: Sequence[Text]) -> None:
    """Compare both caches with the position of the next anchor.

    Args:
        state: of a `DFlash` drafter.
        texts: of its rows; rows without pages are passed over.

    Raises:
        AssertionError: they differ; it names the row and the numbers.
    """
    anchors = np.asarray(frontier(state))
    arrays = jax.tree.leaves(jax.device_get(state.progress.memory))
    written = [(x != 0).any((1, 3)) for x in arrays]
    place = np.arange(written[0].shape[1])
    for row, (text, anchor) in enumerate(zip(texts, anchors, strict=True)):
        if not text.pages:
            continue
        wrong = sum(int((x[row] != (place < anchor)).sum()) for x in written)
        if wrong or len(text.tokens) != anchor:
            raise AssertionError(
                f"Row {row}: the next anchor has the position {anchor}. The "
                f"target has read {len(text.tokens)} tokens, and {wrong} rows "
                "of the drafter's arrays are missing or too many."
            )


class CheckedBatch(PagedBatch):
    """A `PagedBatch` that checks the invariant at each look."""

    def commit(self, state: State) -> Look:
        """Take back the cache of a state, look, and check."""
        seen = super().commit(state)
        if isinstance(self.drafter, DFlash):
            check_invariant(state, self.texts)
        return seen


class CheckedMemory(PagedMemory):
    """A `PagedMemory` in debug mode, for drafters like `DFlash`.

    It raises an `AssertionError` when target, drafter and text disagree about
    how far the text has got.
    """

    def batch(
        self,
        model: Transformer,
        prompts: list[list[int]],
        limits: Sequence[int],
        drafter: Drafter | None = None,
    ) -> CheckedBatch:
        """As `PagedMemory.batch`."""
        return CheckedBatch(self, prompts, limits, drafter)


# Texts come and go
# -----------------

class DualBatch(PagedBatch):
    """Rows that texts come to and leave: pages for the target, arrays for it.

    Args:
        drafter: one that reads the prompts, such as `DFlash`.
        rows: texts at a time.
        capacity: tokens that a text can reach.
        stop_ids: tokens that end a text.
        how: temperature, top_k and top_p.
    """

    def __init__(
        self,
        memory: PagedMemory,
        drafter: Drafter,
        rows: int,
        capacity: int,
        stop_ids: Sequence[int] = (),
        how: tuple[float, int | None, float | None] = (0.0, None, None),
    ):
        super().__init__(memory, [], [capacity], drafter)
        model, self.how, self.capacity = memory.model, how, bucket(capacity)
        drafter.check(model)
        self.stops = jnp.array(tuple(stop_ids) or (-1,), jnp.int32)
        self.sampling, self.mode = make_sampling(model, rows, *how, 0)
        self.texts = [Text([], []) for _ in range(rows)]
        self.limits = [0] * rows
        self.lengths = np.ones(rows, np.int32)
        self.state = State(
            jnp.zeros((rows, self.capacity), jnp.int32),
            jnp.ones(rows, jnp.int32),
            jnp.zeros(rows, jnp.int32),
            jnp.ones(rows, bool),
            None,
            drafter.start(model, rows, self.capacity),
        )

    @property
    def free(self) -> list[int]:
        """Rows without a text."""
        return [row for row, text in enumerate(self.texts) if not text.pages]

    def put(
        self, row: int, prompt: list[int], limit: int, seed: int = 0
    ) -> None:
        """Read a text into a free row, and draw its next token.

        Args:
            limit: tokens that it can reach, at most the capacity.

        Raises:
            UserError: the row is taken, or the text does not fit.
            PoolExhausted: there are not enough pages; nothing changes.
        """
        if row not in self.free or not 0 < len(prompt) < limit <= self.capacity:
            raise UserError(
                f"A text of {len(prompt)} tokens with the limit {limit} cannot "
                f"go to row {row}. Expected one of the free rows {self.free}, "
                f"and 0 < tokens < limit <= {self.capacity}."
            )
        memory, drafter = self.memory, self.drafter
        text = memory.pool.admit(prompt, fresh=True)
        self.texts[row], self.limits[row] = text, limit
        memory.lend(self)
        tokens = np.zeros((1, self.capacity), np.int32)
        tokens[0, : len(prompt)] = prompt
        length, ends = np.array([[len(prompt)], [limit]], np.int32)
        pages = memory.cache.keys[0].shape[0]
        cache = replace(memory.cache, at=layout([text], self.blocks, pages))
        state = State(tokens, length, ends, np.zeros(1, bool), cache)
        sampling, _ = make_sampling(memory.model, 1, *self.how, seed)
        how = (np.zeros(1, np.int32), self.stops, sampling)
        chunk = min(bucket(len(prompt)), PREFILL_CHUNK)
        new = read_pages(
            memory.model, state, *how, chunk, self.mode, drafter
        )
        memory.cache, memory.user = new.cache, None
        memory.pool.commit(text, prompt)
        self.state, self.sampling = replace_rows(
            self.state, self.sampling, np.array([row]),
            new._replace(cache=None), sampling,
        )  # fmt: skip
        self.lengths = np.array(self.state.lengths)

    def step(self, steps: int = 1) -> Look:
        """Let all texts go on, each until its end.

        Raises:
            PoolExhausted: there are not enough pages; remove a text, and call
                again.
        """
        room = steps * self.drafter.block
        cache = self.make_room(self.lengths, room)
        state = self.state._replace(cache=cache)
        how = (self.stops, self.sampling, np.int32(steps), self.mode)
        state = decode(self.memory.model, state, *how, self.drafter)
        seen = self.commit(state)
        self.state = state._replace(cache=None)
        self.lengths = np.array(seen.lengths)
        return seen

    def remove(self, row: int) -> list[int]:
        """End a text, or put it off, and give its pages back.

        Returns:
            All of its tokens: what `put` needs to go on with it.
        """
        tokens = np.asarray(self.state.tokens)[row, : self.lengths[row]]
        self.memory.pool.release(self.texts[row])
        self.texts[row], self.limits[row] = Text([], []), 0
        self.lengths[row] = 1
        state = self.state
        self.state = state._replace(
            lengths=state.lengths.at[row].set(1),
            stopped=state.stopped.at[row].set(True),
        )
        return tokens.tolist()


# Feeding the drafter
# -------------------

class Handed(NamedTuple):
    """New features for a drafter, padded behind."""

    features: tuple[Float[Array, "1 width hidden"], ...]
    first: Int[Array, "1"]  # the position of the first row
    count: Int[Array, "1"]  # rows that count


class ContextBuffer:
    """Hands the target's features to a drafter, each row once.

    It serves one text at a time; another one begins anew.

    Args:
        smallest: rows that a short part is padded to.

    Source: the host-driven loop of vLLM's TPU backend (tpu-inference 0.32).
    """

    def __init__(self, smallest: int = 16):
        self.smallest, self.consumed = smallest, 0
        self.text: Any = None

    def take(
        self,
        text: Any,
        seq_len: int,
        first: int,
        features: Sequence[Float[np.ndarray, "rows hidden"]],
    ) -> Handed:
        """The rows from `consumed` up to `seq_len`.

        Args:
            text: which one; anything that can be compared.
            seq_len: tokens that have been read for good.
            first: the position of the features' first row; rows at `seq_len`
                and behind are of refused drafts, or padding.

        Raises:
            UserError: a row would be lost, or `seq_len` went back.
        """
        if text != self.text:
            self.text, self.consumed = text, 0
        begin, end = self.consumed - first, seq_len - first
        if not 0 <= begin <= end <= len(features[0]):
            raise UserError(
                f"The drafter has consumed {self.consumed} rows and shall have "
                f"{seq_len}; the features are of the positions {first} to "
                f"{first + len(features[0]) - 1}. Hand over each row in turn."
            )
        count = end - begin
        width = max(self.smallest, 1 << max(count - 1, 0).bit_length())
        behind = (0, width - count), (0, 0)
        pad = lambda x: np.pad(np.asarray(x)[begin:end], behind)[None]
        self.consumed = seq_len
        numbers = np.array([[seq_len - count], [count]], np.int32)
        return Handed(tuple(map(pad, features)), *numbers)


@functools.partial(jax.jit, donate_argnames="memory")
def write_features(
    model: Transformer,
    drafter: DFlash,
    memory: DenseCache,
    handed: Handed,
) -> DenseCache:
    """Add context rows to a drafter's arrays."""
    index = jnp.arange(handed.features[0].shape[1])
    positions = handed.first[:, None] + index
    seen = (positions, index < handed.count[:, None], handed.features)
    return drafter.observe(model, memory, positions, *seen)


@jax.jit
def draft_block(
    model: Transformer,
    drafter: DFlash,
    memory: DenseCache,
    anchors: Int[Array, "batch 1"],
    seq_len: Int[Array, "batch"],
) -> Int[Array, "batch drafts"]:
    """The likeliest tokens behind the anchors."""
    positions = seq_len[:, None] + jnp.arange(drafter.block)
    view = BlockCache(drafter.network.config, memory, seq_len)
    hidden = drafter.network(drafter.embed(model, anchors), positions, view)
    logits = drafter.logits(model, hidden[:, 1:])
    return drafter.choose(logits, seq_len + 1, None, "greedy", model).tokens


@functools.partial(
    jax.jit, static_argnames="taps", donate_argnames="cache"
)
def verify_block(
    model: Transformer,
    cache: DenseCache,
    tokens: Int[Array, "batch tokens"],
    first: Int[Array, "batch"],
    taps: tuple[int, ...],
) -> tuple[
    Int[Array, "batch tokens"],
    tuple[Float[Array, "batch tokens hidden"], ...],
    DenseCache,
]:
    """The target's choice behind each token, its features, and its cache."""
    positions = first[:, None] + jnp.arange(tokens.shape[1])
    output = model(tokens, positions, cache, taps)
    choices = model.logits(output.hidden).argmax(-1)
    return choices, output.taps, output.cache


@dataclass
class Meter:
    """Moves arrays between host and device, and counts them."""

    up: int = 0
    down: int = 0
    moved: int = 0  # bytes, both ways

    def put(self, tree: Any) -> Any:
        """To the device."""
        leaves = jax.tree.leaves(tree)
        self.up += len(leaves)
        self.moved += sum(x.nbytes for x in leaves)
        return jax.device_put(tree)

    def get(self, tree: Any) -> Any:
        """To the host."""
        found = jax.device_get(tree)
        leaves = jax.tree.leaves(found)
        self.down += len(leaves)
        self.moved += sum(x.nbytes for x in leaves)
        return found


class HostStep(NamedTuple):
    """What a step of the loop on the host did."""

    first: int  # position of the context rows handed over
    count: int
    width: int  # with padding
    drafts: list[int]
    accepted: int


def decode_from_host(
    model: Transformer,
    drafter: DFlash,
    prompt: list[int],
    limit: int,
    capacity: int,
    meter: Meter,
) -> tuple[list[int], list[HostStep]]:
    """Greedy speculative decoding, driven by the host; for one text.

    Args:
        limit: tokens that the text can reach.
        capacity: rows of both caches, at least a block more.

    Returns:
        The text with its prompt, and the steps.
    """
    dtype = model.embed_tokens.dtype
    cache = DenseCache.empty(model.config, 1, capacity, dtype)
    memory = drafter.begin(model, 1, capacity)
    text, first, steps, told = list(prompt), 0, [], ()
    new = prompt + [0] * (bucket(len(prompt)) - len(prompt))
    buffer, last, drafts = ContextBuffer(), len(prompt) - 1, ()
    one = lambda n: np.array([n], np.int32)
    with jax.transfer_guard("disallow"):
        while True:
            up = meter.put((one(new), one(first)))
            choices, features, cache = verify_block(
                model, cache, *up, drafter.taps
            )
            (choices,), features = meter.get((choices, features))
            accepted = 0
            if len(drafts):
                room = min(len(drafts), limit - len(text) - 1)
                same = drafts[:room] == choices[:room]
                accepted = int(np.cumprod(same).sum())
                done = (drafts.tolist(), accepted)
                steps.append(HostStep(*told, *done))
                last = accepted
                text += drafts[:accepted].tolist()
            text.append(int(choices[last]))
            if len(text) >= limit:
                return text, steps
            seq_len = len(text) - 1
            rows = [x[0] for x in features]
            handed = buffer.take(0, seq_len, first, rows)
            width = handed.features[0].shape[1]
            told = (int(handed.first[0]), int(handed.count[0]), width)
            memory = write_features(model, drafter, memory, meter.put(handed))
            up = meter.put((one([text[-1]]), one(seq_len)))
            found = draft_block(model, drafter, memory, *up)
            drafts = meter.get(found)[0]
            new, first = [text[-1], *drafts.tolist()], seq_len


# The museum of silent bugs
# -------------------------

exhibit = as_drafter(
    "block", "anchors", data=("network", "vocabulary", "head")
)


@exhibit
class Exhibit(DFlash):
    """`DFlash` with its decisions in methods, so that a bug changes one."""

    def seq_len(self, state: State) -> Int[Array, "batch"]:
        """Context rows that a block sees, from the first on."""
        return frontier(state)

    def first(self, state: State) -> Int[Array, "batch"]:
        """The position of the anchor."""
        return self.seq_len(state)

    def view(
        self, memory: DenseCache, seq_len: Int[Array, "batch"]
    ) -> BlockCache:
        """What the block sees."""
        return BlockCache(self.network.config, memory, seq_len)

    def after(
        self,
        memory: DenseCache,
        view: BlockCache,
        positions: Int[Array, "batch block"],
    ) -> DenseCache:
        """The memory after a draft: as before."""
        return memory

    def guesses(
        self, hidden: Float[Array, "batch block hidden"]
    ) -> Float[Array, "batch drafts hidden"]:
        """The rows that the drafts are read from."""
        return hidden[:, 1:]

    def observe(
        self,
        model: Transformer,
        memory: DenseCache,
        tokens: Int[Array, "batch tokens"],
        positions: Int[Array, "batch tokens"],
        counted: Bool[Array, "batch tokens"],
        tapped: tuple[Float[Array, "batch tokens hidden"], ...],
    ) -> DenseCache:
        """Write every row; those that do not count lie behind `seq_len`."""
        seen = (tokens, positions, jnp.ones_like(counted), tapped)
        return DFlash.observe(self, model, memory, *seen)

    def draft(
        self, model: Transformer, state: State, sampling: Any, mode: str
    ) -> tuple[Draft, State]:
        """As `DFlash.draft`."""
        at = frontier(state)[:, None]
        positions = self.first(state)[:, None] + jnp.arange(self.block)
        last = jnp.take_along_axis(state.tokens, at, axis=1)
        memory = state.progress.memory
        view = self.view(memory, self.seq_len(state))
        hidden = self.network(self.embed(model, last), positions, view)
        logits = self.logits(model, self.guesses(hidden))
        memory = self.after(memory, view, positions)
        progress = state.progress._replace(memory=memory)
        how = (state.lengths, sampling, mode, model)
        return self.choose(logits, *how), state._replace(progress=progress)


@exhibit
class Inflated(Exhibit):
    """`seq_len` includes drafts that nobody has verified."""

    def seq_len(self, state: State) -> Int[Array, "batch"]:
        """Too many, by the drafts of a block."""
        return frontier(state) + self.drafts


@exhibit
class BonusCounted(Exhibit):
    """`seq_len` includes the bonus, which has no hidden state."""

    def seq_len(self, state: State) -> Int[Array, "batch"]:
        """Too many, by one."""
        return frontier(state) + 1


@exhibit
class TapsOffByOne(Exhibit):
    """It taps the layer behind the right one."""

    @property
    def taps(self) -> tuple[int, ...]:
        """The layers, counted wrongly."""
        config = self.network.config
        ids = config.target_layer_ids
        last = (config.num_target_layers or max(ids) + 2) - 1
        return tuple(min(i + 1, last) for i in ids)


@exhibit
class SharedPositions(Exhibit):
    """The block begins at the position of the newest context rows."""

    def first(self, state: State) -> Int[Array, "batch"]:
        """`seq_len` without the rows of the last verification."""
        return self.seq_len(state) - 1 - state.progress.report.last.accepted


@exhibit
class SlotsTooEarly(Exhibit):
    """A draft is read from the row before its own."""

    def guesses(
        self, hidden: Float[Array, "batch block hidden"]
    ) -> Float[Array, "batch drafts hidden"]:
        """The rows of the anchor and of all slots but the last."""
        return hidden[:, :-1]


@dataclass(frozen=True)
class KeepingCache(BlockCache):
    """A `BlockCache` that remembers the block's keys and values."""

    kept: list = field(default_factory=list)

    def attend(
        self,
        layer: int,
        q: Float[Array, "batch block heads head_dim"],
        k: Float[Array, "batch block kv_heads head_dim"],
        v: Float[Array, "batch block kv_heads head_dim"],
        positions: Int[Array, "batch block"],
    ) -> tuple[Float[Array, "batch block heads head_dim"], BlockCache]:
        """As `BlockCache.attend`."""
        self.kept.append((k, v))
        return BlockCache.attend(self, layer, q, k, v, positions)


@exhibit
class StaleBlock(Exhibit):
    """Keys and values of accepted drafts stay; the target's are not taken."""

    def read(
        self, model: Transformer, progress: Progress, *seen: Any
    ) -> Progress:
        """The prompt's context is right."""
        memory = Exhibit.observe(self, model, progress.memory, *seen)
        return progress._replace(memory=memory)

    def observe(
        self, model: Transformer, memory: DenseCache, *seen: Any
    ) -> DenseCache:
        """What was verified is taken to be there."""
        return memory

    def view(
        self, memory: DenseCache, seq_len: Int[Array, "batch"]
    ) -> BlockCache:
        """It keeps what it is given."""
        return KeepingCache(self.network.config, memory, seq_len)

    def after(
        self,
        memory: DenseCache,
        view: BlockCache,
        positions: Int[Array, "batch block"],
    ) -> DenseCache:
        """With the block's keys and values."""
        everywhere = jnp.ones_like(positions, bool)
        return write_context(memory, view.kept, positions, everywhere)


@exhibit
class NoWindow(Exhibit):
    """Layers with a sliding window see everything."""

    def view(
        self, memory: DenseCache, seq_len: Int[Array, "batch"]
    ) -> BlockCache:
        """A block without windows."""
        config = self.network.config
        config = replace(config, windows=(None,) * len(config.windows))
        return BlockCache(config, memory, seq_len)


class PrefixOnly(PagedMemory):
    """It shares pages that hold a beginning, also where a drafter reads."""

    def batch(
        self,
        model: Transformer,
        prompts: list[list[int]],
        limits: Sequence[int],
        drafter: Drafter | None = None,
    ) -> PagedBatch:
        """The texts are admitted as if nobody drafted."""
        batch = PagedBatch(self, prompts, limits)
        batch.drafter = drafter
        return batch


class Bug(NamedTuple):
    """An exhibit: one switch in one place."""

    test: str  # of tests/test_dual_cache.py, which it fails
    drafter: type[DFlash] = DFlash
    memory: type[PagedMemory] = PagedMemory
    chat: bool = True  # with the model's template


MUSEUM = {
    "sequence-length inflation": Bug("context_ends_here", Inflated),
    "bonus counted as context": Bug("context_ends_here", BonusCounted),
    "taps off by one": Bug("context_is_the_targets", TapsOffByOne),
    "block and context share positions": Bug(
        "blocks_are_those_of_training", SharedPositions
    ),
    "slots read one too early": Bug(
        "blocks_are_those_of_training", SlotsTooEarly
    ),
    "stale block": Bug("context_is_the_targets", StaleBlock),
    "sliding window ignored": Bug("windows_hide_the_rest", NoWindow),
    "prefix hit without draft keys": Bug(
        "invariant_holds_in_pages", memory=PrefixOnly
    ),
    "foreign chat template": Bug("prompts_are_those_of_training", chat=False),
}


def with_bug(drafter: DFlash, bug: Bug) -> DFlash:
    """A drafter with the same weights, and a bug."""
    parts = {f.name: getattr(drafter, f.name) for f in fields(DFlash)}
    return bug.drafter(**parts)


def visit(
    model: Transformer,
    tokenizer: Tokenizer,
    drafter: DFlash,
    bug: Bug,
    prompt: Prompt,
    max_new_tokens: int = 128,
    page: int = 16,
) -> tuple[Generation, Generation]:
    """Answer a prompt without a drafter, and with one that has a bug.

    Args:
        bug: `Bug("")` is none.
        page: tokens in a page.

    Returns:
        Both answers.
    """
    ids = encode_prompt(tokenizer, prompt, bug.chat, None)
    pages = 2 * bucket(len(ids) + max_new_tokens) // page + 2
    memory = bug.memory(model, pages, page)
    how = dict(max_new_tokens=max_new_tokens, memory=memory)
    plain = generate(model, tokenizer, ids, **how)
    broken = with_bug(drafter, bug)
    return plain, generate(model, tokenizer, ids, drafter=broken, **how)
