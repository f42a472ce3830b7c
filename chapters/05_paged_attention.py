# ---
# jupyter:
#   dflash_lite:
#     module: paged_attention
#     public:
#     - PagedCache
#     - PagedMemory
#     - PagePool
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
# # 5. Paged attention
#
# The cache in pages: an allocator that wastes little and lets texts share what
# they have in common, a cache that finds a text's pages through its block
# table, and a kernel that reads them where they lie.
#
# **The question.** Nobody knows how long an answer will be. How much memory
# should a server set aside for it?
#
# **Afterwards you can** say where a reserved cache loses memory, build the
# allocator that serving engines use, plug its pages into the model of chapter
# 2, and choose a page size by calculation.
#
# **Time.** 50 minutes to read and run, 30 minutes of exercises.

# %% tags=["export"]
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

# %%
import time

from IPython.display import HTML

from dflash_lite.decoding import (
    DenseCache,
    decode,
    generate,
    make_sampling,
)
from dflash_lite.exercises import check
from dflash_lite.transformer import load

model, tokenizer = load("smollm2-135m")
config = model.config

# %% [markdown]
# ## What reserving costs
#
# Chapter 3's cache has one array for a batch, with a row for every position up
# to some limit. A server that works like this must reserve the limit for each
# request, since nobody knows where the answer will end.
#
# We let such a server run, on paper. Requests have lengths like those that
# chat servers see: many short, few very long. Each is given a contiguous
# stretch of a memory of 16,384 rows, when there is one; each step adds a token
# to every running text. Three ways to choose the stretch: the limit of 2,048;
# the next power of two, if an oracle told us the final length; and the exact
# final length, if it told us that.


# %%
def requests(count, seed=0):
    rng = np.random.default_rng(seed)
    prompt, answer = np.exp(rng.normal(5.2, 0.8, (2, count))).astype(int)
    return [(int(p), int(p + a)) for p, a in zip(prompt + 16, answer + 16)]


lengths = np.array([min(end, 2048) for _, end in requests(4000)])
print(f"mean {lengths.mean():.0f} tokens, median {np.median(lengths):.0f},")
print(f"one in ten above {np.quantile(lengths, 0.9):.0f}")
assert lengths.mean() > 400


# %%
def first_fit(taken, size, memory):
    at = 0
    for start, end in sorted(taken):
        if start - at >= size:
            return at
        at = end
    return at if memory - at >= size else None


def run_reserved(reserve, steps=1500, memory=16_384):
    waiting, running, shares = requests(4000)[::-1], [], []
    for _ in range(steps):
        running = [[a, b, n + 1, end] for a, b, n, end in running if n < end]
        while True:
            now, end = waiting[-1]
            now, end = min(now, 2047), min(end, 2048)
            taken = [(a, b) for a, b, *_ in running]
            at = first_fit(taken, reserve(end), memory)
            if at is None:
                break
            running.append([at, at + reserve(end), now, end])
            waiting.pop()
        used = sum(n for *_, n, _ in running)
        later = sum(end - n for *_, n, end in running)
        never = sum(b - a - end for a, b, _, end in running)
        between = memory - used - later - never
        shares.append((used, later, never, between, len(running)))
    return np.mean(shares[steps // 5 :], axis=0)


# %%
ways = {
    "the limit": lambda end: 2048,
    "power of two": lambda end: 1 << (end - 1).bit_length(),
    "exact": lambda end: end,
}
reserved = {name: run_reserved(way) for name, way in ways.items()}
print(f"{'':14}{'in use':>8}{'for later':>11}{'never':>8}{'between':>9}")
for name, shares in reserved.items():
    parts = [f"{share / 16_384:9.1%}" for share in shares[:4]]
    print(f"{name:14}" + "".join(parts))

# %%
in_use = {name: shares[0] / 16_384 for name, shares in reserved.items()}
assert in_use["the limit"] < 0.35 and in_use["exact"] < 0.8

# %% [markdown]
# Of the memory that a server with a limit owns, less than a third holds tokens.
# Most of the rest will *never* hold any, because the answers end early. And
# even an oracle does not save everything: part is kept for tokens that come
# later, and part lies *between* the stretches, too short for anybody.
#
# Operating systems had this problem in the sixties, and solved it with pages.
# [Kwon et al. (2023)](https://arxiv.org/abs/2309.06180) brought the solution to
# the cache: memory is cut into pages of a few tokens; a text takes one page at
# a time, when it needs one, wherever there is one. A *block table* lists its
# pages in order. What can be lost is the unfilled part of a text's last page.

# %% [markdown]
# ## Pages, counted
#
# First the stock of pages. A page has a number, and a count of the texts that
# use it. Texts can share a page, so giving one back lowers its count, and only
# at zero it is free again. Whoever asks for five pages gets five or none: a
# text with half of its pages could neither run nor end.


# %% tags=["export"]
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


# %%
pages = Pages(3)
a, b = pages.take(2)
pages.share(a)
pages.give_back(a)
assert pages.available == 1
try:
    pages.take(2)
except PoolExhausted as error:
    print(error)
assert pages.available == 1

# %% [markdown]
# ## The same beginning, once
#
# A thousand chats begin with the same system message. Its keys and values are
# the same in all of them, because a token's keys and values depend on the
# tokens before it and on nothing else. So a full page is known by a name: a
# hash of its tokens and of the name of the page before it. Who needs a page
# with that name can share it.
#
# When a named page loses its last user, it is not erased. It waits, and can be
# found again; only when the stock is empty, the page that has waited longest
# is taken. Unused memory is a cache for free.


# %% tags=["export"]
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


# %%
hello, more = page_name(b"", [1, 2]), page_name(b"", [3, 4])
assert page_name(hello, [3, 4]) != more, "the same tokens, another past"

# %% [markdown]
# ## Texts
#
# Now the texts. A `Text` knows its tokens and its pages. Its tokens are those
# whose keys and values lie in the pages: a token that was just drawn is not
# among them yet, as in chapter 3.
#
# - `admit` finds the pages that a prompt can share, and takes the rest. The
#   last token of a prompt is never shared: somebody must compute its logits.
# - `reserve` makes room for tokens to come, and comes before every writing. If
#   the next token would go into a page that others use too, the text gets a
#   copy of its own: *copy on write*. If the page has a name, from tokens that
#   were truncated, nobody can find it any more.
# - `commit` says that tokens have arrived, and publishes pages that got full.
# - `truncate` forgets tokens, for drafts that were rejected.
# - `fork` makes a second text with the same past, for free.
# - `release` gives everything back, last page first: if a beginning is to be
#   erased one day, its end should go before it.


# %% tags=["export"]
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


# %% [markdown]
# Two chats with one system message, in pages of four tokens. The second needs
# one page where the first needed three.

# %%
pool = PagePool(8, 4)
system = list(range(100, 108))
first = pool.admit(system + [1, 2, 3])
pool.commit(first, system + [1, 2, 3])
second = pool.admit(system + [7])
print(first.pages, second.pages, "shared:", len(second.tokens), "tokens")
assert second.pages[:2] == first.pages[:2] and len(second.tokens) == 8

# %% [markdown]
# **Predict.** We fork the first text, and both forks go on. Its last page holds
# three tokens and has room for one. What happens when the first fork writes?
# And when the second does?

# %%
other = pool.fork(first)
copies = pool.reserve(other, 12), pool.reserve(first, 12)
print(copies)
assert len(copies[0]) == 1 and copies[1] == []
assert other.pages[:2] == first.pages[:2] and other.pages[2] != first.pages[2]

# %% [markdown]
# The first to write gets a copy. Then the page has one user left, who may
# write where it is.
#
# Step through a longer story. A filled dot is a token; a page is free, or waits
# to be found again, or shows the texts that use it.


# %%
def picture(pool, texts, title):
    cells, rows = [], []
    for page in range(len(pool.pages.users)):
        who = [name for name, text in texts.items() if page in text.pages]
        state = "waits" if page in pool.pages.waiting else "free"
        filled = pool.size if page in pool.pages.names else 0
        for text in (texts[name] for name in who):
            left = len(text.tokens) - text.pages.index(page) * pool.size
            filled = max(filled, min(left, pool.size))
        dots = "●" * filled + "○" * (pool.size - filled)
        look = "solid" if who else "dashed" if state == "waits" else "dotted"
        box = f"border:2px {look};padding:.3em;min-width:4.5em"
        inside = f"page {page}<br><b>{' '.join(who) or state}</b><br>{dots}"
        cells.append(f'<div style="{box}">{inside}</div>')
    for name, text in texts.items():
        table = ", ".join(map(str, text.pages))
        rows.append(f"<b>{name}</b>: {len(text.tokens)} tokens in [{table}]")
    grid = "display:flex;flex-wrap:wrap;gap:.4em;text-align:center"
    return (
        f'<div class="step"><p>{title}</p><div style="{grid}">'
        f"{''.join(cells)}</div><p>{'<br>'.join(rows) or 'no texts'}</p></div>"
    )


# %%
STEPPER = """<script>(() => {
const box = document.getElementById("pool-story");
const steps = [...box.querySelectorAll(".step")], bar = box.firstElementChild;
let at = 0;
const show = to => { at = Math.max(0, Math.min(steps.length - 1, to));
  steps.forEach((step, i) => step.hidden = i !== at);
  bar.lastElementChild.textContent = ` ${at + 1} of ${steps.length}`; };
for (const [text, by] of [["◀ back", -1], ["next ▶", 1]]) {
  const button = document.createElement("button");
  button.textContent = text; button.style.marginRight = ".5em";
  button.onclick = () => show(at + by); bar.append(button); }
const count = document.createElement("span");
count.setAttribute("aria-live", "polite"); bar.append(count); show(0);
})()</script>"""


def stepped(pictures):
    steps = "".join(pictures)
    return HTML(f'<div id="pool-story"><p></p>{steps}</div>{STEPPER}')


# %%
pool, texts, story = PagePool(8, 4), {}, []


def tell(title):
    story.append(picture(pool, texts, title))


def arrive(name, prompt):
    texts[name] = text = pool.admit(prompt)
    found = len(text.tokens)
    pool.commit(text, prompt[found:])
    tell(f"{name} arrives: {len(prompt)} tokens, {found} of them found.")


tell("An empty pool: eight pages of four tokens.")
arrive("A", system + [1, 2, 3])
arrive("B", system + [7])
for token in (4, 5):
    pool.reserve(texts["A"], len(texts["A"].tokens) + 1)
    pool.commit(texts["A"], [token])
tell("A grows by two tokens: its third page is full, and it takes a fourth.")
texts["C"] = pool.fork(texts["B"])
tell("C is a fork of B: the same table, and no page more.")
pool.reserve(texts["C"], 10)
pool.commit(texts["C"], [8])
tell("C writes into a page that B uses too: it takes a copy first.")
pool.release(texts.pop("A"))
tell("A ends. Its third page is full and has a name, so it waits.")
pool.release(texts.pop("B"))
pool.release(texts.pop("C"))
tell("B and C end. The pages of the system message wait too.")
arrive("D", list(range(16)))
arrive("E", system + [1, 2, 3, 4, 9])
pool.release(texts.pop("D"))
pool.release(texts.pop("E"))
tell("D and E end. All full pages wait now.")
arrive("F", list(range(50, 62)))
tell("F took the free page, then those that had waited longest.")
stepped(story)

# %% [markdown]
# ## What pages waste
#
# The same requests, in the same memory, through the pool with pages of 16. A
# request is admitted when its prompt fits and a few pages stay free. When a
# text finds no page for its next token, the last that came must leave: it gives
# its pages back and waits to be admitted again. Without this rule, all texts
# could wait for each other.


# %%
def grow(pool, running, waiting):
    for text, end in running[:]:
        while (text, end) in running:
            try:
                pool.reserve(text, len(text.tokens) + 1)
                pool.commit(text, [0])
                break
            except PoolExhausted:
                last, its_end = running.pop()
                waiting.append((len(last.tokens), its_end))
                pool.release(last)


# %%
def run_paged(size, steps=1500, memory=16_384):
    pool, waiting = PagePool(memory // size, size), requests(4000)[::-1]
    running, shares = [], []
    for step in range(steps):
        for text, end in [r for r in running if len(r[0].tokens) >= r[1]]:
            pool.release(text)
            running.remove((text, end))
        while pool.pages.available * size > memory // 20 + waiting[-1][0]:
            now, end = waiting.pop()
            prompt = [step, len(running)] + [0] * (min(now, 2047) - 2)
            text = pool.admit(prompt)
            pool.commit(text, prompt[len(text.tokens) :])
            running.append((text, min(end, 2048)))
        grow(pool, running, waiting)
        used = sum(len(text.tokens) for text, _ in running)
        held = sum(len(text.pages) for text, _ in running) * size
        shares.append((used, held - used, len(running)))
    return np.mean(shares[steps // 5 :], axis=0)


# %%
used, wasted, texts = run_paged(16)
print(f"in use {used / 16_384:.1%}; unfilled {wasted / (used + wasted):.2%}")
print(f"of what {texts:.0f} texts hold")
assert wasted / (used + wasted) < 0.04

# %% [markdown]
# Under 4% of what the texts hold is lost, and there is nothing for later and
# nothing in between.
#
# **Predict.** A text ends anywhere in its last page. How much is lost on
# average, with pages of $P$ tokens and texts of $L$?
#
# If every place is equally likely, the last page lacks $(P - 1) / 2$ tokens,
# and the share of what is held is
#
# $$w = \frac{(P - 1) / 2}{L + (P - 1) / 2}.$$

# %%
sizes = [8, 16, 32, 64, 128, 256]
measured = []
for size in sizes:
    used, wasted, texts = run_paged(size, steps=400)
    mean, half = used / texts, (size - 1) / 2
    measured.append((wasted / (used + wasted), half / (mean + half)))
    print(f"{size:4}: {measured[-1][0]:6.2%}, by the formula", end=" ")
    print(f"{measured[-1][1]:6.2%}")

# %%
assert all(abs(m / f - 1) < 0.2 for m, f in measured)


# %% [markdown]
# Small pages waste little. What speaks for large ones? Every page costs an
# entry in a table, a hash, and a separate copy from memory to the core. On a
# TPU a copy should be large to be worth its start, so pages there have 64 to
# 256 tokens, and the table above says what that costs: with 128 tokens, a
# seventh of the memory at this length of text.
#
# ## The cache
#
# Now the arrays. Keys and values of a layer lie in one array whose first axis
# counts pages. A batch brings its block tables. A token at position $p$ goes to
# page `table[p // size]`, row `p % size`. That is the whole change to writing.
# Reading needs more thought.
#
# The plain way gathers a text's pages into one array, and goes on as in chapter
# 3. It copies the whole cache at every step. For few queries there is a better
# way: *bring the query to the page*. A query is small. So for every page we
# fetch the queries of the texts that use it, and compute what chapter 4 calls
# the running sums over this one page: largest score, total, mixture. They are
# small too. We fetch them by text and combine them, as exercise 4.1 does with
# two halves. Keys and values are read once, where they lie.
#
# For that, a page must know its users. `layout` writes down both directions.


# %% tags=["export"]
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


# %%
pair = layout([first, second], blocks=4, pages=8)
print(pair.tables)
print(pair.users[first.pages[0]], pair.users[second.pages[-1]])
assert pair.users.shape == (8, 2), "the system message has two users"

# %% [markdown]
# Both ways of reading, for any number of queries.


# %% tags=["export"]
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


# %% tags=["export"]
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


# %% [markdown]
# The check: two texts that share two pages, against chapter 2's `attention`
# over rows that we pick one by one.

# %%
draw = functools.partial(jax.random.normal, dtype=jnp.float32)
keys, values = draw(jax.random.key(0), (2, 8, 3, 4, 64))
q, positions = draw(jax.random.key(1), (2, 1, 9, 64)), jnp.array([[10], [8]])
for row, text in enumerate((first, second)):
    n = int(positions[row, 0]) + 1
    picked = [(text.pages[p // 4], p % 4) for p in range(n)]
    k = jnp.stack([keys[page, :, slot] for page, slot in picked], axis=1)
    v = jnp.stack([values[page, :, slot] for page, slot in picked], axis=1)
    seen = jnp.ones((1, 1, n), bool)
    slow = attention(q[row][None], k[None], v[None], seen)[0]
    for way in (gather_pages, visit_pages):
        quick = way(q, keys, values, pair, positions)[row]
        assert jnp.abs(quick - slow).max() < 1e-5

# %% [markdown]
# ## The kernel
#
# On a TPU neither copy nor detour is needed. The kernel of chapter 4 asks for
# the next tile of keys by its number. Here a tile is a page, and the number
# comes from the block table: that is the only difference. The table lies in
# scalar memory, where the block specs can read it before the copy starts.


# %% tags=["export"]
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


# %% [markdown]
# In the simulator of chapter 4, with its search for races:

# %%
simulated = pltpu.InterpretParams(
    detect_races=True, uninitialized_memory="nan"
)
start, length = positions[:, 0], positions[:, -1] + 1
tables = jnp.asarray(pair.tables)
tiles = paged_attention(
    q, keys, values, tables, start, length, interpret=simulated
)
visited = visit_pages(q, keys, values, pair, positions)
assert jnp.abs(tiles - visited).max() < 1e-5

# %% [markdown]
# ## A cache that is a plug
#
# The model of chapter 2 hands q, k and v to a cache and does not ask what the
# cache is. So pages need one more class, and no change anywhere else.
#
# On a TPU the last axis of an array in memory is a multiple of 128 numbers. A
# kernel that is given heads of 64 makes the compiler copy the whole pool into
# that form, at every step. So there the cache keeps heads of 64 in rows of 128;
# half of each row is zeros. SmolLM2 pays twice the memory for that, and Qwen3
# nothing, since its heads have 128.


# %% tags=["export"]
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

# %% [markdown]
# Pages outlive a call: a system message that one call has read, the next one
# finds. So pool and arrays are kept together, and a batch of texts uses them
# for a while. It makes room before each stretch of decoding, and says
# afterwards what has been written.
#
# While a program runs, it has the arrays for itself, because it writes in place.
# If it is stopped just then (Ctrl-C, say), they are gone. The memory makes new
# ones, and forgets what it knew.


# %% tags=["export"]
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


# %% tags=["export"]
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


# %% tags=["export"]
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

# %% [markdown]
# `generate` and its loop are those of chapter 3. They ask the batch for room
# before a stretch and tell it afterwards; only tokens that no page holds yet
# are read.
#
# Eight questions under one system message, with pages of 16, in two batches.
# The first four are new. The others find their beginning.


# %%
def ask(memory, prompts):
    shared = sum(len(memory.pool.find(p)) for p in prompts)
    how = dict(max_new_tokens=24, memory=memory)
    return generate(model, tokenizer, prompts, **how), shared



def chat(question):
    rules = "You are a patient teacher. Answer in one short sentence."
    chat = [{"role": "system", "content": rules}]
    chat.append({"role": "user", "content": question})
    return tokenizer.encode(tokenizer.chat(chat), add_special_tokens=False)


# %%
names = "Ada Lovelace, Marie Curie, Alan Turing, Emmy Noether, Leonhard Euler"
questions = [f"Who was {name}?" for name in names.split(", ")]
questions += ["Say hi!", "Name a fruit, and its colour.", "What is a prime?"]
prompts = [chat(q) for q in questions]
memory = PagedMemory(model, pages=64, size=16)
first_four, none = ask(memory, prompts[:4])
paged, shared = ask(memory, prompts[4:])
print(f"pages found: {none} for the first four, {shared} for the others")
print(first_four[0].text)

# %% [markdown]
# The check that matters, again: pages must not change what is written. The same
# prompts over chapter 3's dense cache give the same tokens.

# %%
dense = generate(model, tokenizer, prompts[4:], max_new_tokens=24)
assert [p.tokens for p in paged] == [d.tokens for d in dense]
assert none == 0 and shared == 4 * (len(chat("")) // 16)

# %% [markdown]
# ## More texts in the same memory
#
# What is it all for? A decode step of many rows takes little longer than one
# of few (chapter 3). So a server wants many texts at once, and the memory for
# the cache limits their number.
#
# **Predict.** The two simulated servers have the same requests and the same
# memory. How many texts does each hold at a time?

# %%
held = {"the limit": reserved["the limit"][4], "pages": texts}
print({name: round(float(count), 1) for name, count in held.items()})

# %% [markdown]
# Now the tokens per second, on this machine. We take a quarter of that memory,
# 4,096 rows, so that it fits a laptop: two stretches of 2,048 rows, or 256
# pages for a quarter of the texts.


# %%
def step_seconds(state, tries=4, steps=4):
    stops, times = jnp.array([-1], jnp.int32), []
    how, mode = make_sampling(model, len(state.lengths), 0.0, None, None, 0)
    for _ in range(tries):
        start = time.perf_counter()
        state = decode(model, state, stops, how, np.int32(steps), mode)
        jax.block_until_ready(state)
        times.append((time.perf_counter() - start) / steps)
    return min(times[1:])


def halfway(cache, lengths):
    lengths = np.array(lengths, np.int32)
    tokens = np.ones((len(lengths), 2048), np.int32)
    never = np.zeros(len(lengths), bool)
    return State(tokens, lengths, lengths + 64, never, cache)


# %%
count = round(texts / 4)
length = int(used / texts)
memory = PagedMemory(model, pages=256, size=16)
made_up = [[i] + [7] * (length - 1) for i in range(count)]
batch = PagedBatch(memory, made_up, [length + 64] * count)
in_pages = halfway(batch.make_room([length] * count, 32), [length] * count)
two = DenseCache.empty(config, 2, 2048, jnp.float32)
seconds = step_seconds(halfway(two, [length] * 2)), step_seconds(in_pages)
rates = 2 / seconds[0], count / seconds[1]

# %% tags=["nbval-ignore-output"]
for rows, step, rate in zip((2, count), seconds, rates):
    print(f"{rows:3} texts, {step * 1e3:4.0f} ms a step, {rate:4.0f} tokens/s")
print(f"factor {rates[1] / rates[0]:.1f}")

# %% [markdown]
# Kwon et al. report 2 to 4 times the throughput of earlier servers (section
# 6.2). The factor is a product of two. How many more texts fit depends on how
# far the limit is from the length of usual texts. How much that brings depends
# on what a row costs: on a TPU almost nothing up to some hundreds of rows, on
# this CPU a good part of a step.

# %% [markdown]
# ## Exercises
#
# **5.1 Where is it?** (5 minutes). Pages lie one behind the other. In which row
# of the pool is a text's token at `position`?


# %% tags=["exercise"]
def row_of(table: list[int], position: int, size: int) -> int:
    """The row, counted over all pages, from a block table."""
    ### BEGIN SOLUTION
    return table[position // size] * size + position % size
    ### END SOLUTION


# %% tags=["check"]
@check(row_of)
def _(f):
    assert f([5, 2], 0, 16) != 0, "the first token lies in page 5, not in 0"
    assert f([5, 2], 0, 16) == 80, "page 5 begins at row 80"
    assert f([5, 2], 15, 16) == 95, "the last row of page 5"
    assert f([5, 2], 16, 16) == 32, "position 16 is the first row of page 2"


# %% [markdown]
# **5.2 How large may a page be?** (10 minutes). Texts have `length` tokens on
# average. Find the largest power of two for a page that wastes at most `share`
# of what the texts hold, by the formula.


# %% tags=["exercise"]
def page_size(length: float, share: float) -> int:
    """A power of two; 1 wastes nothing and is always allowed."""
    ### BEGIN SOLUTION
    size = 1
    while (size * 2 - 1) / 2 <= share * (length + (size * 2 - 1) / 2):
        size *= 2
    return size
    ### END SOLUTION


# %% tags=["check"]
@check(page_size)
def _(f):
    assert f(200, 0.04) == 16, "16 wastes 3.6% at 200 tokens, 32 wastes 7%"
    assert f(1000, 0.04) == 64, "five times the length, four times the page"
    assert f(10, 0.01) == 1, "even two tokens would waste too much"
    assert f(1000, 0.06) == 128, "128 wastes 5.97% at 1,000 tokens"


# %% [markdown]
# **5.3 What can be shared?** (15 minutes). An old text has left its full pages
# behind. How many of them can a new prompt use? Remember who computes the last
# token's logits.


# %% tags=["exercise"]
def shared_pages(old: list[int], prompt: list[int], size: int) -> int:
    """The number of pages at the beginning that need not be computed."""
    ### BEGIN SOLUTION
    count = 0
    while (count + 1) * size <= min(len(old), len(prompt) - 1):
        end = (count + 1) * size
        if old[:end] != prompt[:end]:
            break
        count += 1
    return count
    ### END SOLUTION


# %% tags=["check"]
@check(shared_pages)
def _(f):
    assert f([1, 2, 3, 4, 5], [1, 2, 3, 4, 9], 2) == 2, "two full pages agree"
    assert f([1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6], 2) != 3, (
        "the old text's third page is not full"
    )
    assert f([1, 2, 3, 4], [1, 2, 3, 4], 2) != 2, (
        "the last token of the prompt must be computed"
    )
    assert f([1, 2, 3, 4], [1, 2, 3, 4], 2) == 1, "the page before it is shared"
    assert f([9, 2, 3, 4], [1, 2, 3, 4, 5], 2) == 0, (
        "the same tokens after another beginning are other keys and values"
    )


# %% [markdown]
# ## Key points
#
# - Reserving the limit wastes most of the memory, because answers end early.
#   Pages waste half a page for each text.
# - A full page is named by its tokens and all before them. So a beginning is
#   computed once and found again, until its room is needed.
# - Whoever writes into a page that others use takes a copy first.
# - The block table is the only thing that attention must know more. On a TPU a
#   kernel reads it before it copies; on a CPU the queries go to the pages.
# - More texts in the same memory are more tokens per second, as far as a row of
#   the batch is cheap.
#
# **Next:** chapter 6 gives one text several rows of a batch: guesses about its
# own future.
