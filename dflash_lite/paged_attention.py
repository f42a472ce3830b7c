"""Paged attention.

The cache in pages: an allocator that wastes little and lets texts share what
they have in common, a cache that finds a text's pages through its block table,
and a kernel that reads them where they lie.

Made from chapters/05_paged_attention.py by tools/tangle.py:
edit the chapter, not this file.
"""

import dataclasses
import functools
import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from dflash_lite.checkpoints import ModelConfig, UserError
from dflash_lite.decoding import (
    PREFILL_CHUNK,
    Drafter,
    Look,
    Sampling,
    State,
    bucket,
    joined,
    look,
    pack,
    read_and_choose,
    reading,
)
from dflash_lite.flash_attention import (
    LOWEST,
    Running,
    from_rows,
    grid_of_tiles,
    kernel,
    key_tiles,
    product,
    to_rows,
)
from dflash_lite.transformer import Transformer, attention

__all__ = [
    "PoolExhausted",
    "Pages",
    "NamedPages",
    "page_name",
    "Text",
    "PagePool",
    "Layout",
    "layout",
    "gather_pages",
    "visit_pages",
    "paged_attention",
    "page_reader",
    "READERS",
    "PagedCache",
    "FEW_VISITS",
    "PagedMemory",
    "PagedBatch",
    "pad_pairs",
    "copy_pages",
    "read_pages",
]


# Pages, counted
# --------------

class PoolExhausted(UserError):
    """More pages were asked for than there are; nothing was taken."""


class Pages:
    """Numbered pages with counts of their users.

    Args:
        count: how many there are.
    """

    def __init__(self, count: int):
        self.users = [0] * count
        self.free = list(range(count))[::-1]

    @property
    def available(self) -> int:
        """How many can be taken."""
        return len(self.free)

    def take(self, count: int) -> list[int]:
        """New pages with one user each: all of them, or an error."""
        if count > self.available:
            raise PoolExhausted(
                f"{count} pages are needed, {self.available} of "
                f"{len(self.users)} are free. Wait until a text ends, or make "
                "the pool larger."
            )
        pages = [self.next_free() for _ in range(count)]
        for page in pages:
            self.users[page] = 1
        return pages

    def next_free(self) -> int:
        """Remove a page from the stock."""
        return self.free.pop()

    def share(self, page: int) -> None:
        """One more user."""
        self.users[page] += 1

    def give_back(self, page: int) -> None:
        """One user less; at zero the page is free."""
        self.users[page] -= 1
        if not self.users[page]:
            self.retire(page)

    def retire(self, page: int) -> None:
        """Put a page without users back into the stock."""
        self.free.append(page)


# The same beginning, once
# ------------------------

class NamedPages(Pages):
    """Pages that can be found by their content until the room is needed.

    Source: automatic prefix caching of vLLM, whose rules are matched.
    """

    def __init__(self, count: int):
        super().__init__(count)
        self.by_name: dict[bytes, int] = {}
        self.names: dict[int, bytes] = {}
        self.waiting: OrderedDict[int, None] = OrderedDict()  # oldest first

    @property
    def available(self) -> int:
        """Free pages and those that wait."""
        return len(self.free) + len(self.waiting)

    def next_free(self) -> int:
        """A free page, or the one that has waited longest."""
        if self.free:
            return self.free.pop()
        page, _ = self.waiting.popitem(last=False)
        self.forget(page)
        return page

    def share(self, page: int) -> None:
        """One more user, perhaps the first again."""
        self.waiting.pop(page, None)
        self.users[page] += 1

    def retire(self, page: int) -> None:
        """A named page waits; another is free."""
        if page in self.names:
            self.waiting[page] = None
        else:
            self.free.append(page)

    def publish(self, page: int, name: bytes) -> None:
        """Let others find a page, unless one of that content is known."""
        if name not in self.by_name:
            self.by_name[name], self.names[page] = page, name

    def forget(self, page: int) -> None:
        """Let nobody find a page any more; its content will change."""
        if page in self.names:
            del self.by_name[self.names.pop(page)]

    def forget_all(self) -> None:
        """Let nobody find any page: their content is gone."""
        self.by_name.clear()
        self.names.clear()
        self.free += self.waiting
        self.waiting.clear()


def page_name(before: bytes, tokens: list[int]) -> bytes:
    """The name of a full page, from the name before it and its tokens."""
    content = np.asarray(tokens, np.int32).tobytes()
    return hashlib.blake2b(before + content, digest_size=16).digest()


# Texts
# -----

@dataclass(eq=False)
class Text:
    """One text in the pool."""

    tokens: list[int]  # those whose keys and values lie in the pages
    pages: list[int]  # the block table
    names: list[bytes] = field(default_factory=list)  # of its full pages


class PagePool:
    """Which page holds what; the arrays themselves lie in a `PagedCache`.

    Args:
        count: the number of pages.
        size: tokens in a page.

    Source: PagedAttention (Kwon et al. 2023), sections 4.2 to 4.4.
    """

    def __init__(self, count: int, size: int):
        if any(type(n) is not int or n < 1 for n in (count, size)):
            raise UserError(
                f"A pool of {count!r} pages of {size!r} tokens cannot be; "
                "expected two whole numbers of 1 or more."
            )
        self.size = size
        self.pages = NamedPages(count)

    def find(self, prompt: list[int]) -> list[bytes]:
        """The names of the pages that hold the prompt's beginning.

        The last token is never among them: its logits must be computed.
        """
        names: list[bytes] = []
        for end in range(self.size, len(prompt), self.size):
            before = names[-1] if names else b""
            name = page_name(before, prompt[end - self.size : end])
            if name not in self.pages.by_name:
                break
            names.append(name)
        return names

    def admit(
        self, prompt: list[int], room: int = 0, fresh: bool = False
    ) -> Text:
        """A text with pages for a prompt and `room` more tokens.

        Its `tokens` are the beginning of the prompt that need not be computed;
        none if it is to be `fresh`.

        Raises:
            PoolExhausted: there are not enough pages; nothing is taken.
        """
        names = [] if fresh else self.find(prompt)
        shared = [self.pages.by_name[name] for name in names]
        for page in shared:
            self.pages.share(page)
        text = Text(prompt[: len(shared) * self.size], shared, names)
        try:
            self.reserve(text, len(prompt) + room)
        except PoolExhausted:
            self.release(text)
            raise
        return text

    def reserve(self, text: Text, length: int) -> list[tuple[int, int]]:
        """Make room for `length` tokens in all.

        Returns:
            Pairs (from, to) of pages whose content must be copied before the
            next token is written; at most one.

        Raises:
            PoolExhausted: there are not enough pages; nothing changes.
        """
        missing = max(-(-length // self.size) - len(text.pages), 0)
        last = len(text.tokens) // self.size  # where the next token goes
        grows = length > len(text.tokens)
        written = text.pages[last : last + 1] if grows else []
        copied = [page for page in written if self.pages.users[page] > 1]
        new = self.pages.take(missing + len(copied))
        for page in written:
            if page in copied:
                text.pages[last] = new[-1]
                self.pages.give_back(page)
            else:
                self.pages.forget(page)
        text.pages += new[:missing]
        return list(zip(copied, new[missing:], strict=True))

    def commit(self, text: Text, tokens: list[int]) -> None:
        """Record tokens whose keys and values now lie in the pages."""
        room = len(text.pages) * self.size
        if len(text.tokens) + len(tokens) > room:
            raise UserError(
                f"A text would have {len(text.tokens) + len(tokens)} tokens "
                f"and has room for {room}. Call `reserve` before."
            )
        text.tokens += tokens
        for i in range(len(text.names), len(text.tokens) // self.size):
            before = text.names[-1] if text.names else b""
            part = text.tokens[i * self.size : (i + 1) * self.size]
            text.names.append(page_name(before, part))
            self.pages.publish(text.pages[i], text.names[-1])

    def truncate(self, text: Text, length: int) -> None:
        """Keep the first `length` tokens, and the pages that hold them."""
        full, kept = length // self.size, -(-length // self.size)
        del text.tokens[length:], text.names[full:]
        for page in reversed(text.pages[kept:]):
            self.pages.give_back(page)
        del text.pages[kept:]

    def fork(self, text: Text) -> Text:
        """Another text with the same tokens, in the same pages."""
        held = text.pages[: -(-len(text.tokens) // self.size)]
        for page in held:
            self.pages.share(page)
        return Text(text.tokens[:], held, text.names[:])

    def release(self, text: Text) -> None:
        """End a text."""
        self.truncate(text, 0)


# The cache
# ---------

class Layout(NamedTuple):
    """Which text of a batch finds what where; made by `layout`."""

    tables: Int[Array, "batch blocks"]  # page numbers in order; −1: none
    slots: Int[Array, "batch blocks"]  # which of the page's users the text is
    users: Int[Array, "pages users"]  # texts that use a page; `batch`: nobody
    order: Int[Array, "pages users"]  # the page's place in each one's table


def layout(texts: list[Text], blocks: int, pages: int) -> Layout:
    """The block tables of a batch, and the way back from pages to texts.

    Args:
        blocks: entries of a table, at least as many as a text has pages.
        pages: the number of pages in the pool.
    """
    counts = [len(text.pages) for text in texts]
    row = np.repeat(np.arange(len(texts)), counts)
    block = np.concatenate([np.arange(n) for n in (0, *counts)])
    page = np.array([p for text in texts for p in text.pages], int)
    by_page = np.argsort(page, kind="stable")
    first = np.searchsorted(page[by_page], page[by_page])
    slot = np.zeros_like(page)
    slot[by_page] = np.arange(len(page)) - first
    most = int(slot.max(initial=0)) + 1
    tables = np.full((len(texts), blocks), -1, np.int32)
    slots = np.zeros((len(texts), blocks), np.int32)
    width = 1 << (most - 1).bit_length()  # few shapes
    users = np.full((pages, width), len(texts), np.int32)
    order = np.zeros((pages, width), np.int32)
    tables[row, block], slots[row, block] = page, slot
    users[page, slot], order[page, slot] = row, block
    return Layout(tables, slots, users, order)


def gather_pages(
    q: Float[Array, "batch queries heads head_dim"],
    keys: Float[Array, "pages kv_heads size head_dim"],
    values: Float[Array, "pages kv_heads size head_dim"],
    at: Layout,
    positions: Int[Array, "batch queries"],
) -> Float[Array, "batch queries heads head_dim"]:
    """Causal attention over a copy of each text's pages; for many queries."""
    pages, (_, kv_heads, size, width) = jnp.maximum(at.tables, 0), keys.shape
    rows = lambda x: (
        x[pages].swapaxes(1, 2).reshape(len(pages), kv_heads, -1, width)
    )
    seen = jnp.arange(pages.shape[1] * size) <= positions[..., None]
    return attention(q, rows(keys), rows(values), seen)


def visit_pages(
    q: Float[Array, "batch queries heads head_dim"],
    keys: Float[Array, "pages kv_heads size head_dim"],
    values: Float[Array, "pages kv_heads size head_dim"],
    at: Layout,
    positions: Int[Array, "batch queries"],
) -> Float[Array, "batch queries heads head_dim"]:
    """Causal attention in the pages, with the queries brought; for few."""
    pages, kv_heads, size, width = keys.shape
    rows, group = to_rows(q, kv_heads), q.shape[2] // kv_heads
    nobody = jnp.zeros((1, *rows.shape[1:]), rows.dtype)
    brought = jnp.concatenate([rows, nobody])[at.users].swapaxes(1, 2)
    brought = brought.reshape(pages, kv_heads, -1, width)
    scores = product("nhrd,nhkd->nhrk", brought, keys) * width**-0.5

    position = jnp.pad(positions, ((0, 1), (0, 0)), constant_values=-1)
    position = jnp.repeat(position[at.users], group, axis=2)
    index = at.order[..., None, None] * size + jnp.arange(size)
    seen = (index <= position[..., None]).reshape(pages, 1, -1, size)
    seen = jnp.broadcast_to(seen, scores.shape)
    part = Running.start(*brought.shape).add(scores, seen, values)

    held = (at.tables >= 0)[..., None, None, None]
    by_user = (pages, kv_heads, at.users.shape[1], rows.shape[2], -1)
    here = jnp.maximum(at.tables, 0), slice(None), at.slots
    top, total, mix = (x.reshape(by_user)[here] for x in part)
    best = jnp.where(held, top, LOWEST).max(1, keepdims=True)
    share = jnp.where(held, jnp.exp(top - best), 0)
    whole = Running(best[:, 0], (total * share).sum(1), (mix * share).sum(1))
    return from_rows(whole.result(), q.shape[1]).astype(q.dtype)


# The kernel
# ----------

def paged_attention(
    q: Float[Array, "batch queries heads head_dim"],
    keys: Float[Array, "pages kv_heads size head_dim"],
    values: Float[Array, "pages kv_heads size head_dim"],
    tables: Int[Array, "batch blocks"],
    starts: Int[Array, "batch"],
    lengths: Int[Array, "batch"],
    causal: bool = True,
    scale: float | None = None,
    interpret: Any = False,
) -> Float[Array, "batch queries heads head_dim"]:
    """Attention over pages as one TPU kernel: decode, verify and draft.

    Args:
        tables: page numbers in order; entries behind `lengths` may be −1.
        starts: the position of each text's first query.
        lengths: tokens of each text that count, the new ones included.
        causal: False lets every query see all tokens, as a block of drafts
            does.
        scale: of the scores; head_dim to the power of −1/2 by default.
        interpret: as in `flash_attention`.

    Source: PagedAttention (Kwon et al. 2023), section 4.1.
    """
    _, kv_heads, size, width = keys.shape
    group, rows = q.shape[2] // kv_heads, to_rows(q, kv_heads)
    row_tile = min(256, -(-rows.shape[2] // 16) * 16)
    scale = width**-0.5 if scale is None else scale

    def page(
        b: Any, h: Any, i: Any, j: Any, tables: Any, starts: Any, lengths: Any
    ) -> tuple[Any, ...]:
        last_row = (i + 1) * row_tile - 1
        needed = key_tiles(starts[b], lengths[b], last_row, size, group, causal)
        block = jnp.minimum(j, jnp.maximum(needed - 1, 0))
        return jnp.maximum(tables[b, block], 0), h, 0, 0

    def body(tables: Any, starts: Any, lengths: Any, *blocks: Any) -> None:
        kernel(
            starts, lengths, *blocks, group=group, causal=causal, scale=scale
        )

    blocks = tables.shape[1]
    output = pl.pallas_call(
        body,
        **grid_of_tiles(rows, row_tile, size, blocks, 3, page),
        interpret=interpret,
        name="paged_attention",
    )(tables, starts, lengths, rows, keys, values)
    return from_rows(output, q.shape[1])


# A cache that is a plug
# ----------------------

def page_reader(platform: str) -> tuple[str, str]:
    """How attention reads pages on a platform ("cpu", "gpu", "tpu"), and why.

    Returns:
        One of `READERS`, for `PagedCache`, and a sentence.
    """
    if platform == "tpu":
        return "kernel", "the Pallas kernel reads pages where they lie"
    return "arrays", (
        f"the Pallas kernel needs a TPU and this is a {platform}, so XLA "
        "brings few queries to the pages and gathers the pages for many"
    )


READERS = ("kernel", "simulated", "arrays")


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["keys", "values", "at"],
    meta_fields=["reader"],
)
@dataclass(frozen=True)
class PagedCache:
    """Keys and values in pages, and the layout of the texts of a batch.

    Fits the protocol `Cache`. Positions beyond a text's pages are dropped.

    Args:
        reader: "kernel"; "simulated", the kernel on any device; or "arrays".
    """

    keys: tuple[Float[Array, "pages kv_heads size width"], ...]
    values: tuple[Float[Array, "pages kv_heads size width"], ...]
    at: Layout
    reader: str

    @classmethod
    def empty(
        cls, config: ModelConfig, pages: int, size: int, dtype: Any, reader: str
    ) -> "PagedCache":
        """Pages of zeros, and no texts."""
        lanes = 1 if reader == "arrays" else 128
        width = -(-config.head_dim // lanes) * lanes
        shape = (pages, config.num_key_value_heads, size, width)
        layers = range(config.num_hidden_layers)
        arrays = [tuple(jnp.zeros(shape, dtype) for _ in layers) for _ in "kv"]
        return cls(*arrays, layout([], 1, pages), reader)

    def attend(
        self,
        layer: int,
        q: Float[Array, "batch tokens heads head_dim"],
        k: Float[Array, "batch tokens kv_heads head_dim"],
        v: Float[Array, "batch tokens kv_heads head_dim"],
        positions: Int[Array, "batch tokens"],
    ) -> tuple[Float[Array, "batch tokens heads head_dim"], "PagedCache"]:
        """Write k and v into the pages; attend to all positions up to q's."""
        keys, values = list(self.keys), list(self.values)
        page, slot = self.locate(positions)
        heads = jnp.arange(k.shape[2])[:, None]
        # every axis by number: with a slice, a TPU would turn the pages around
        at = (page[:, None], heads, slot[:, None])
        for arrays, new in ((keys, k), (values, v)):
            spare = arrays[layer].shape[-1] - new.shape[-1]
            wide = jnp.pad(new.swapaxes(1, 2), ((0, 0),) * 3 + ((0, spare),))
            arrays[layer] = arrays[layer].at[at].set(wide, mode="drop")
        # without the barrier XLA fuses write and read, and copies the cache
        written = jax.lax.optimization_barrier((keys[layer], values[layer]))
        keys[layer], values[layer] = written
        mixed = self.read(q, *written, positions)
        new = PagedCache(tuple(keys), tuple(values), self.at, self.reader)
        return mixed, new

    def locate(
        self, positions: Int[Array, "batch tokens"]
    ) -> tuple[Int[Array, "batch tokens"], Int[Array, "batch tokens"]]:
        """Page and row of each position; a page that is not there for none."""
        pages, _, size, _ = self.keys[0].shape
        block, last = positions // size, self.at.tables.shape[1] - 1
        known = jnp.asarray(self.at.tables)
        page = jnp.take_along_axis(known, jnp.minimum(block, last), axis=1)
        held = (block <= last) & (page >= 0)
        return jnp.where(held, page, pages), positions % size

    def read(
        self,
        q: Float[Array, "batch tokens heads head_dim"],
        keys: Float[Array, "pages kv_heads size width"],
        values: Float[Array, "pages kv_heads size width"],
        positions: Int[Array, "batch tokens"],
    ) -> Float[Array, "batch tokens heads head_dim"]:
        """Attention over one layer's pages."""
        at = Layout(*map(jnp.asarray, self.at))
        if self.reader == "arrays":
            visits = q.shape[1] * at.users.size
            few = visits <= FEW_VISITS * at.tables.size
            way = visit_pages if few else gather_pages
            return way(q, keys, values, at, positions)
        spare = keys.shape[-1] - q.shape[-1]
        mixed = paged_attention(
            jnp.pad(q, ((0, 0),) * 3 + ((0, spare),)),
            keys,
            values,
            at.tables,
            positions[:, 0],
            positions[:, -1] + 1,
            scale=q.shape[-1] ** -0.5,
            interpret=self.reader == "simulated" and pltpu.InterpretParams(),
        )
        return mixed[..., : q.shape[-1]]


# queries brought to pages, for each entry of a table; see bench/visits.py
FEW_VISITS = 1.5


class PagedMemory:
    """A pool and its arrays, for one model; what lives on between calls.

    One thread at a time may use it; several streams may take turns.

    Args:
        pages: how many.
        size: tokens in a page; a power of two from 16 on for a TPU.
        reader: as in `PagedCache`; by default what suits the device.

    Raises:
        UserError: there can be no such pages, or not so many.
    """

    def __init__(
        self,
        model: Transformer,
        pages: int,
        size: int = 16,
        reader: str | None = None,
    ):
        reader = reader or page_reader(jax.default_backend())[0]
        if reader not in READERS:
            raise UserError(
                f"The reader is {reader!r}; expected one of {READERS}."
            )
        self.model, self.reader = model, reader
        try:
            self.pool = PagePool(pages, size)
            self.cache = self.zeros()
        except (MemoryError, OverflowError, jax.errors.JaxRuntimeError):
            raise UserError(
                f"{pages} pages of {size} tokens do not fit into the memory of "
                "the device; ask for fewer."
            ) from None
        self.user: PagedBatch | None = None  # who computes with the arrays
        self.losses = 0  # how often their content was lost

    def zeros(self) -> PagedCache:
        """New arrays."""
        count, size = len(self.pool.pages.users), self.pool.size
        dtype = self.model.embed_tokens.dtype
        return PagedCache.empty(
            self.model.config, count, size, dtype, self.reader
        )

    def batch(
        self,
        model: Transformer,
        prompts: list[list[int]],
        limits: Sequence[int],
        drafter: Drafter | None = None,
    ) -> "PagedBatch":
        """Prompts that are read and continued together, in these pages."""
        return PagedBatch(self, prompts, limits, drafter)

    def lend(self, user: "PagedBatch") -> None:
        """Let a batch compute with the arrays, until it gives them back.

        Raises:
            UserError: another batch computes, or lost what this one wrote.
        """
        if self.user not in (None, user):
            raise UserError(
                "Another call computes in this PagedMemory; expected one at a "
                "time. Wait until it ends, or make a memory for each thread."
            )
        if user.losses != self.losses:
            raise UserError(
                "What this text had in the PagedMemory is gone: another call "
                "was interrupted while it computed there. Start again."
            )
        self.user = user

    def recover(self, user: "PagedBatch") -> None:
        """Make new arrays, if those of an interrupted batch are gone."""
        if self.user is not user:
            return
        self.user = None
        if any(x.is_deleted() for x in jax.tree.leaves(self.cache.keys)):
            self.losses += 1
            self.pool.pages.forget_all()
            self.cache = self.zeros()


class PagedBatch:
    """Texts of a `PagedMemory` that are read and written together.

    Args:
        prompts: token ids.
        limits: tokens that each text can reach.

    Raises:
        PoolExhausted: the prompts do not fit; nothing is taken.
    """

    def __init__(
        self,
        memory: PagedMemory,
        prompts: list[list[int]],
        limits: Sequence[int],
        drafter: Drafter | None = None,
    ):
        self.memory, self.limits, self.texts = memory, limits, []
        self.prompts, self.drafter = prompts, drafter
        self.losses = memory.losses
        fresh = reading(drafter) is not None
        self.blocks = -(-bucket(int(max(limits))) // memory.pool.size)
        try:
            for prompt in prompts:
                self.texts.append(memory.pool.admit(prompt, fresh=fresh))
        except PoolExhausted:
            self.release()
            raise

    def prefill(
        self, stops: Int[Array, "stops"], sampling: Sampling, mode: str
    ) -> State:
        """The state after what no page holds yet is read."""
        _, lengths = pack(self.prompts)
        firsts = np.array([len(t.tokens) for t in self.texts], np.int32)
        chunk = min(bucket(int((lengths - firsts).max())), PREFILL_CHUNK)
        shape = (len(lengths), bucket(int(max(self.limits))))
        packed, never = np.zeros(shape, np.int32), np.zeros(shape[0], bool)
        for row, prompt in zip(packed, self.prompts, strict=True):
            row[: len(prompt)] = prompt
        limits = np.asarray(self.limits, np.int32)
        cache = self.make_room(lengths, 0)
        state = State(packed, lengths, limits, never, cache)
        how = (firsts, stops, sampling, chunk, mode, reading(self.drafter))
        state = read_pages(self.memory.model, state, *how)
        return joined(self.memory.model, state, self.drafter)

    def make_room(self, lengths: Sequence[int], tokens: int) -> PagedCache:
        """The cache, with pages for `tokens` more tokens of each text."""
        memory, copies = self.memory, []
        memory.lend(self)
        rows = zip(self.texts, lengths, self.limits, strict=True)
        try:
            for text, length, limit in rows:
                end = min(int(length) + tokens, int(limit))
                copies += memory.pool.reserve(text, end)
        finally:  # the tables already name the copies
            if copies:
                memory.cache = copy_pages(memory.cache, pad_pairs(copies))
        pages = memory.cache.keys[0].shape[0]
        at = layout(self.texts, self.blocks, pages)
        return dataclasses.replace(memory.cache, at=at)

    def commit(self, state: State) -> Look:
        """Take back the cache of a state, look, and record what it holds."""
        self.memory.cache, self.memory.user = state.cache, None
        seen = look(state)  # it waits, and can be interrupted
        rows = zip(self.texts, seen.tokens, seen.lengths, strict=True)
        for text, row, length in rows:
            new = row[len(text.tokens) : length - 1].tolist()
            self.memory.pool.commit(text, new)
        pages = self.memory.pool.pages
        return seen._replace(pages=len(pages.users) - pages.available)

    def release(self) -> None:
        """End the texts; their full pages can still be found."""
        while self.texts:
            self.memory.pool.release(self.texts.pop())
        self.memory.recover(self)


def pad_pairs(pairs: list[tuple[int, int]]) -> Int[Array, "count 2"]:
    """Pairs of pages, padded to a power of two with a page that is not."""
    missing = (1 << (len(pairs) - 1).bit_length()) - len(pairs)
    return np.array(pairs + [(0, 2**30)] * missing, np.int32)


@functools.partial(jax.jit, donate_argnames="cache")
def copy_pages(cache: PagedCache, pairs: Int[Array, "count 2"]) -> PagedCache:
    """Copy the content of pages, for every (from, to)."""
    source, target = pairs[:, 0], pairs[:, 1]
    copy = lambda x: x.at[target].set(x[source], mode="drop")
    keys, values = jax.tree.map(copy, (cache.keys, cache.values))
    return PagedCache(keys, values, cache.at, cache.reader)


read_pages = jax.jit(
    read_and_choose,
    static_argnames=("chunk", "mode"),
    donate_argnames="state",
)
