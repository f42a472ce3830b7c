# ---
# jupyter:
#   dflash_lite:
#     module: block_diffusion
#     public:
#     - BlockDrafter
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
# # 9. Block diffusion
#
# A small model that fills a whole block of masks in one pass. It sees the tokens
# only, no hidden states; what it lacks is what chapter 10 adds.
#
# **The question.** A drafter that runs once for each draft pays for each draft.
# Can one pass guess them all?
#
# **Afterwards you can** train a model to fill blanks, say which row of a block
# sees what, draft a block in one pass or in several, and say what guesses made
# at the same time cannot know of each other.
#
# **Time.** 35 minutes to read and run, 25 minutes of exercises.

# %% tags=["export"]
import functools
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from dflash_lite.checkpoints import UserError
from dflash_lite.decoding import DenseCache, Sampling, State
from dflash_lite.eagle import DraftLearner, target_head
from dflash_lite.speculative import (
    Draft,
    DraftModel,
    Speculative,
    as_drafter,
    at_row,
    check_block,
)
from dflash_lite.training import (
    Batch,
    block_labels,
    block_loss,
    block_mask,
    block_positions,
    draw_anchors,
    row_keys,
    slot_weights,
    to_draft,
)
from dflash_lite.transformer import NoCache, Transformer, matmul

# %%
import dataclasses
import tempfile
import time

import matplotlib.pyplot as plt

from dflash_lite.decoding import generate, make_sampling
from dflash_lite.exercises import check
from dflash_lite.speculative import draft_by_steps
from dflash_lite.training import TrainSettings, example_responses, train
from dflash_lite.transformer import attention, load

model, tokenizer = load("smollm2-135m")
MASK = tokenizer.encode("<file_sep>", add_special_tokens=False)[0]

# %% [markdown]
# ## Filling in blanks
#
# A language model guesses the next token from those before. There is another
# way to learn a text: hide some of its tokens and guess each from what is left,
# on both sides. A hidden token becomes the *mask*, a token that no text
# contains.


# %%
def hide(key, tokens, share):
    """Put the mask in the place of about this share of the tokens."""
    hidden = jax.random.uniform(key, tokens.shape) < share
    return jnp.where(hidden, MASK, tokens)


text = "The sea is blue because water absorbs red light."
ids = jnp.array(tokenizer.encode(text))
for share in (0.25, 0.5, 1.0):
    noisy = hide(jax.random.key(0), ids, share).tolist()
    pieces = ["___" if i == MASK else tokenizer.decode([i]) for i in noisy]
    print(f"{share:4.0%} {'|'.join(pieces)}")
assert (hide(jax.random.key(0), ids, 1.0) == MASK).all()

# %% [markdown]
# A model that has learnt this for every share can write. It starts with nothing
# but masks, fills in the tokens it is surest of, and repeats until none is left.
# Hiding is the noise and filling removes it, so this is called *diffusion*.
#
# *Block diffusion* ([Arriola et al. 2025](https://arxiv.org/abs/2503.09573))
# goes from left to right again, but in blocks: all tokens of a block are filled
# together, and the blocks before are known text. That is the form a drafter
# needs. The known text is what the target has verified, the block is the draft.
# And since the target judges the draft anyway, one pass may be enough.
#
# ## What guesses at the same time cannot know
#
# In one pass each slot is filled for itself. Say the target answers "of course"
# or "no problem", each half of the time.
#
# **Predict.** The drafter knows these chances exactly. How often is a draft of
# two tokens a possible answer?

# %%
answers = {("of", "course"): 0.5, ("no", "problem"): 0.5}
firsts = {"of": 0.5, "no": 0.5}
seconds = {"course": 0.5, "problem": 0.5}
possible = sum(
    firsts[a] * seconds[b] for a in firsts for b in seconds if (a, b) in answers
)
print(f"token by token: 100%, both at once: {possible:.0%}")
assert possible == 0.5

# %% [markdown]
# Each slot is right, and yet half of the pairs are "of problem" or "no course".
# A drafter that goes token by token has seen its own first word when it guesses
# the second. This is the price of one pass.
#
# A greedy target is kinder: from each prompt follows one text only. Then
# nothing is left to chance, and the drafter could in principle know every slot.
# It has to find out which of the answers this prompt leads to.
#
# ## Which row sees what
#
# | row | sees of the text | sees of the block |
# |---|---|---|
# | of the text | itself and what is before | nothing |
# | of the block | all that is before the block | all rows, both ways |
#
# The first row of a block is the newest known token, the *anchor*; the others
# are masks. The text is read as by any language model, so its keys and values
# can stay in a cache. Those of a block cannot: the next block stands at other
# places, and its slots held masks.
#
# ### Two kinds of keys, one softmax
#
# A query of the block sees rows of the cache, and rows that are new in this
# step. One could join both in one array, and copy the whole cache for each
# layer and each step. Instead we multiply with each part where it lies; only
# the scores are joined, for the softmax.

# %% tags=["export"]
class Part(NamedTuple):
    """Some of the keys and values that queries may see."""

    keys: Float[Array, "batch kv_heads keys head_dim"]
    values: Float[Array, "batch kv_heads keys head_dim"]
    mask: Bool[Array, "batch queries keys"]


def attend_to_parts(
    q: Float[Array, "batch queries heads head_dim"], parts: Sequence[Part]
) -> Float[Array, "batch queries heads head_dim"]:
    """Attention over several parts as if they were one; see `attention`."""
    batch, queries, heads, size = q.shape
    kv_heads = parts[0].keys.shape[1]
    exact = jax.lax.Precision.HIGHEST if q.dtype == jnp.float32 else None
    grouped = q.reshape(batch, queries, kv_heads, -1, size).swapaxes(1, 2)
    grouped = grouped.reshape(batch, kv_heads, -1, size)
    outer = ((0, 1), (0, 1))
    last, rows = (((3,), (3,)), outer), (((3,), (2,)), outer)
    dot = functools.partial(jax.lax.dot_general, precision=exact)
    scores = [dot(grouped, part.keys, last) for part in parts]
    repeat = lambda mask: jnp.repeat(mask, heads // kv_heads, axis=1)
    seen = jnp.concatenate([repeat(part.mask) for part in parts], -1)[:, None]
    scores = jnp.concatenate(scores, -1).astype(jnp.float32) * size**-0.5
    lowest = jnp.finfo(scores.dtype).min
    weights = jax.nn.softmax(jnp.where(seen, scores, lowest), axis=-1)
    weights = jnp.where(seen, weights, 0).astype(q.dtype)
    ends = np.cumsum([part.keys.shape[2] for part in parts])[:-1]
    split = jnp.split(weights, ends, axis=-1)
    mixed = sum(dot(w, p.values, rows) for w, p in zip(split, parts))
    mixed = mixed.reshape(batch, kv_heads, queries, -1, size).swapaxes(1, 2)
    return mixed.reshape(q.shape)


# %%
draw_array = lambda seed, *shape: jax.random.normal(jax.random.key(seed), shape)
q = draw_array(0, 1, 8, 9, 64)
old, new = draw_array(1, 2, 1, 3, 40, 64), draw_array(2, 2, 1, 3, 8, 64)
before = jnp.arange(40)[None, None] < jnp.full((1, 8, 1), 33)
masks = before, jnp.ones((1, 8, 8), bool)
both = attend_to_parts(q, [Part(*old, masks[0]), Part(*new, masks[1])])
joined = (jnp.concatenate([a, b], axis=2) for a, b in zip(old, new))
one = attention(q, *joined, jnp.concatenate(masks, axis=2))
assert abs(both - one).max() < 1e-5

# %% [markdown]
# The plug of chapter 2 takes q, k and v of a layer. For a block it stores
# nothing.


# %% tags=["export"]
class BlockView(NamedTuple):
    """A plug: a block sees the text before it, and itself both ways."""

    cache: DenseCache
    anchors: Int[Array, "batch"]  # rows of the cache that a block sees

    def attend(
        self,
        layer: int,
        q: Float[Array, "batch block heads head_dim"],
        k: Float[Array, "batch block kv_heads head_dim"],
        v: Float[Array, "batch block kv_heads head_dim"],
        positions: Int[Array, "batch block"],
    ) -> tuple[Float[Array, "batch block heads head_dim"], "BlockView"]:
        """Attend to the text and the block; see `Cache`."""
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        before = jnp.arange(keys.shape[2]) < self.anchors[:, None, None]
        before = jnp.repeat(before, q.shape[1], axis=1)
        own = jnp.ones((*q.shape[:2], q.shape[1]), bool)
        new = k.swapaxes(1, 2), v.swapaxes(1, 2)
        parts = [Part(keys, values, before), Part(*new, own)]
        return attend_to_parts(q, parts), self


# %% [markdown]
# In training many blocks of one text are filled in one pass. The text is read
# once, and the keys and values of each layer are kept. Then all blocks run side
# by side, each with chapter 7's mask: the text before its own anchor, its own
# rows, and nothing of the other blocks.


# %% tags=["export"]
class Recorder(NamedTuple):
    """A plug: rows see those before them; keys and values are kept."""

    kept: tuple[tuple[Array, Array], ...] = ()  # of each layer

    def attend(
        self,
        layer: int,
        q: Float[Array, "batch tokens heads head_dim"],
        k: Float[Array, "batch tokens kv_heads head_dim"],
        v: Float[Array, "batch tokens kv_heads head_dim"],
        positions: Int[Array, "batch tokens"],
    ) -> tuple[Float[Array, "batch tokens heads head_dim"], "Recorder"]:
        """Attend within the call; see `Cache`."""
        mixed, _ = NoCache().attend(layer, q, k, v, positions)
        new = k.swapaxes(1, 2), v.swapaxes(1, 2)
        return mixed, Recorder((*self.kept, new))


class BlocksOfTexts(NamedTuple):
    """A plug: blocks of a text, side by side; see `block_mask`."""

    context: tuple[tuple[Array, Array], ...]  # of each layer
    mask: Bool[Array, "batch queries keys"]  # the text's keys, then the blocks'

    def attend(
        self,
        layer: int,
        q: Float[Array, "batch queries heads head_dim"],
        k: Float[Array, "batch queries kv_heads head_dim"],
        v: Float[Array, "batch queries kv_heads head_dim"],
        positions: Int[Array, "batch queries"],
    ) -> tuple[Float[Array, "batch queries heads head_dim"], "BlocksOfTexts"]:
        """Attend to the text before and the own block; see `Cache`."""
        context, length = self.context[layer], self.context[layer][0].shape[2]
        new = k.swapaxes(1, 2), v.swapaxes(1, 2)
        masks = self.mask[..., :length], self.mask[..., length:]
        parts = [Part(*context, masks[0]), Part(*new, masks[1])]
        return attend_to_parts(q, parts), self


# %% [markdown]
# ## The surest first
#
# One pass fills all blanks. With more passes, each fills an equal part of the
# blanks that are left, those with the most certain guesses, and the next pass
# sees them as text.


# %% tags=["export"]
def reveal(
    slots: Int[Array, "batch drafts"],
    logits: Float[Array, "batch drafts vocab"],
    mask_token_id: int,
    left: int,
    vocabulary: Int[Array, "vocab"] | None = None,
) -> Int[Array, "batch drafts"]:
    """Fill the surest blanks with their likeliest tokens.

    Args:
        slots: tokens, with the mask in each blank.
        left: passes that are left, this one included; the last fills all.
        vocabulary: the tokens that the logits are of; None for all.

    Source: MaskGIT (Chang et al. 2022), section 3.2, with equal parts.
    """
    chances = jax.nn.softmax(logits.astype(jnp.float32), axis=-1)
    blank, sure = slots == mask_token_id, chances.max(-1)
    many = -(-blank.sum(1) // left)
    order = jnp.argsort(jnp.where(blank, -sure, jnp.inf), axis=1)
    rank = jnp.argsort(order, axis=1)
    chosen = blank & (rank < many[:, None])
    best = logits.argmax(-1)
    best = best if vocabulary is None else vocabulary[best]
    return jnp.where(chosen, best, slots)


# %%
certain = jnp.array([0.9, 0.2, 0.6, 0.5, 0.3])
scores = jnp.log(jnp.stack([certain, 1 - certain, 0 * certain + 1e-9], -1))
slots = jnp.full((1, 5), 2)  # here token 2 is the mask
for left in (3, 2, 1):
    slots = reveal(slots, scores[None], 2, left)
    print(["01_"[i] for i in slots[0].tolist()])
assert slots[0].tolist() == [0, 1, 0, 0, 1]

# %% [markdown]
# ## The drafter
#
# Its network is a small language model like chapter 8's draft model. After each
# verification it reads the verified tokens into its cache; rows of refused
# drafts lie behind the anchor, where no block looks. Nothing is drawn: a
# guess is the likeliest token of its slot, so chapter 6's rule needs no chances
# and the text stays exact at every temperature.
#
# Training hides all slots of every second block, as drafting does, and some of
# the others, so that passes after the first know what they see. Only hidden
# slots are scored. What decoding would accept is counted on the blocks that
# are hidden whole.


# %% tags=["export"]
@as_drafter(
    "mask_token_id", "block", "passes", "anchors", data=("model", "vocabulary")
)
class BlockDrafter(Speculative):
    """Fills a block of masks in one pass, from the tokens before it.

    Args:
        model: the small model.
        mask_token_id: a token that no text contains.
        block: tokens of a verification, one more than there are drafts.
        passes: how many fill a block, from 1 to the number of drafts.
        vocabulary: the tokens that it can draft, rising; None for all.
        anchors: places that training draws from each text.

    Source: Block Diffusion (Arriola et al. 2025), section 3; that a block
    begins with a known token is DFlash's form (Chen et al. 2026).
    """

    model: Transformer
    mask_token_id: int
    block: int = 8
    passes: int = 1
    vocabulary: Int[Array, "draft_vocab"] | None = None
    anchors: int = 32
    reads: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_block(self.block)

    @classmethod
    def new(
        cls,
        target: Transformer,
        mask_token_id: int,
        layers: int = 2,
        hidden_size: int = 192,
        block: int = 8,
        vocabulary: Int[np.ndarray, "draft_vocab"] | None = None,
        seed: int = 0,
    ) -> "BlockDrafter":
        """One with random weights and an embedding of the target's tokens.

        Raises:
            UserError: a setting is impossible.
        """
        if vocabulary is not None and mask_token_id in vocabulary:
            raise UserError(
                f"vocabulary holds the mask, token {mask_token_id}; expected "
                "tokens that a text can contain."
            )
        small = DraftLearner.new(target, layers, hidden_size, block, seed)
        words = None if vocabulary is None else jnp.asarray(vocabulary)
        found = cls(small.model, mask_token_id, block, vocabulary=words)
        found.check(target)
        return found

    def check(self, model: Transformer) -> None:
        """Refuse a model with another vocabulary, and impossible settings."""
        super().check(model)
        DraftModel(self.model, self.block).check(model)
        limits = {
            "mask_token_id": (0, model.config.vocab_size - 1),
            "passes": (1, self.drafts),
        }
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= high:
                raise UserError(
                    f"{name} is {value!r:.60}; expected a whole number from "
                    f"{low} to {high}."
                )

    def begin(
        self, model: Transformer, batch: int, capacity: int
    ) -> DenseCache:
        """An empty cache of the small model."""
        dtype = self.model.embed_tokens.dtype
        return DenseCache.empty(self.model.config, batch, capacity, dtype)

    def observe(
        self,
        model: Transformer,
        memory: DenseCache,
        tokens: Int[Array, "batch tokens"],
        positions: Int[Array, "batch tokens"],
        counted: Bool[Array, "batch tokens"],
        tapped: tuple[Float[Array, "batch tokens hidden"], ...],
    ) -> DenseCache:
        """Read the same tokens; see `Speculative.observe`."""
        return self.model(tokens, positions, memory).cache

    def logits(
        self, hidden: Float[Array, "*rest hidden"]
    ) -> Float[Array, "*rest draft_vocab"]:
        """Scores in float32; the mask is never a guess."""
        head = target_head(self.model, self.vocabulary)
        flat = matmul(hidden.reshape(-1, hidden.shape[-1]), head)
        flat = flat.astype(jnp.float32)
        if self.vocabulary is None:
            flat = flat.at[:, self.mask_token_id].set(-jnp.inf)
        return flat.reshape(*hidden.shape[:-1], -1)

    def fill(
        self,
        memory: DenseCache,
        last: Int[Array, "batch"],
        anchors: Int[Array, "batch"],
    ) -> Int[Array, "batch drafts"]:
        """Tokens for the slots behind the anchors.

        Args:
            memory: has read the tokens before the anchors.
            last: the tokens at the anchors.
        """
        positions = anchors[:, None] + jnp.arange(self.block)
        view = BlockView(memory, anchors)
        slots = jnp.full((len(last), self.drafts), self.mask_token_id)
        for number in range(self.passes):
            tokens = jnp.concatenate([last[:, None], slots], axis=1)
            hidden = self.model(tokens, positions, view).hidden[:, 1:]
            how = self.mask_token_id, self.passes - number, self.vocabulary
            slots = reveal(slots, self.logits(hidden), *how)
        return slots

    def draft(
        self, model: Transformer, state: State, sampling: Sampling, mode: str
    ) -> tuple[Draft, State]:
        """Fill the slots behind the last token."""
        anchors = state.lengths - 1
        last = at_row(state.tokens, anchors)
        slots = self.fill(state.progress.memory, last, anchors)
        return Draft(slots, jnp.full(len(last), self.drafts), None), state

    def loss(
        self, model: Transformer, batch: Batch, key: Key[Array, "*rows"]
    ) -> tuple[Float[Array, ""], dict[str, Array]]:
        """The loss of a batch of texts; see `Learner`."""
        keys = row_keys(key, len(batch.tokens))
        anchors, valid = draw_anchors(keys, batch, self.anchors)
        labels, there = block_labels(
            batch.tokens, anchors, valid, self.block, batch.lengths
        )
        known = some_known(keys, labels.shape)
        slots = jnp.where(known, labels, self.mask_token_id)
        scores = self.scores(batch.tokens, anchors, valid, slots)
        labels = jnp.where(labels == self.mask_token_id, -1, labels)
        labels = to_draft(labels, self.vocabulary)
        weights = slot_weights(self.block)
        loss, sums = block_loss(scores, labels, there & ~known, weights)
        whole = (x[:, ::2] for x in (scores, labels, there))
        _, counts = block_loss(*whole, weights)
        return loss, sums | {n: counts[n] for n in ("accepted", "anchors")}

    def scores(
        self,
        tokens: Int[Array, "batch tokens"],
        anchors: Int[Array, "batch anchors"],
        valid: Bool[Array, "batch anchors"],
        slots: Int[Array, "batch anchors drafts"],
    ) -> Float[Array, "batch anchors drafts draft_vocab"]:
        """Logits of many blocks of each text, in one pass."""
        first = jnp.take_along_axis(tokens, anchors, axis=1)[..., None]
        blocks = jnp.concatenate([first, slots], axis=-1)
        context = self.model(tokens, cache=Recorder()).cache.kept
        mask = block_mask(anchors, valid, tokens.shape[1], self.block)
        hidden = self.model(
            blocks.reshape(len(tokens), -1),
            block_positions(anchors, self.block),
            BlocksOfTexts(context, mask),
        ).hidden
        hidden = hidden.reshape(*blocks.shape, -1)
        return self.logits(hidden[:, :, 1:])


def some_known(
    keys: Key[Array, "batch"], shape: tuple[int, int, int]
) -> Bool[Array, "batch anchors drafts"]:
    """Slots that a block is told in training: none of every second block.

    Of the others each has a share of its own, drawn evenly from 0 to 1.
    """
    draw = lambda key: (
        jax.random.uniform(jax.random.fold_in(key, 0), shape[1:]),
        jax.random.uniform(jax.random.fold_in(key, 1), (shape[1], 1)),
    )
    keys = jax.vmap(jax.random.fold_in, (0, None))(keys, 1)
    luck, share = jax.vmap(draw)(keys)
    odd = jnp.arange(shape[1]) % 2 == 1
    return (luck < share) & odd[:, None]


# %% [markdown]
# ## One pass against one for each draft
#
# How long does drafting take? Two small models of the same size, two layers of
# SmolLM2's width and its vocabulary, with random weights: what is drafted does
# not matter here. One drafts token by token, the other fills a block.
#
# **Predict.** Token by token, 16 drafts take 16 times as long as one. And in
# one pass?

# %%
wide = BlockDrafter.new(model, MASK, layers=2, hidden_size=576)
cache = DenseCache.empty(wide.model.config, 1, 64, jnp.float32)
last, at = jnp.array([5]), jnp.array([40])
greedy, _ = make_sampling(model, 1, 0.0, None, None, 0)


@functools.partial(jax.jit, static_argnames="drafts")
def by_steps(net, cache, drafts):
    how = (last[:, None], at + 1, greedy, "greedy", drafts)
    return draft_by_steps(net, cache, *how)[0].tokens


@jax.jit
def at_once(drafter, cache):
    return drafter.fill(cache, last, at)


def milliseconds(call, *arguments):
    call(*arguments).block_until_ready()  # compiles
    times = []
    for _ in range(5):
        start = time.perf_counter()
        call(*arguments).block_until_ready()
        times.append(1e3 * (time.perf_counter() - start))
    return min(times)


# %%
counts = (1, 2, 4, 8, 16)
steps = [milliseconds(by_steps, wide.model, cache, n) for n in counts]
passes = [
    milliseconds(at_once, dataclasses.replace(wide, block=n + 1), cache)
    for n in counts
]

# %% tags=["nbval-ignore-output"] mystnb={"image": {"alt": "Milliseconds to draft against the number of drafts, from 1 to 16. Token by token the line rises in proportion; in one pass it rises slowly."}}
fig, ax = plt.subplots(figsize=(7, 3))
ax.plot(counts, steps, "o-", label="token by token")
ax.plot(counts, passes, "s--", label="one pass")
for n, a, b in zip(counts, steps, passes):
    print(f"{n:2} drafts: {a:6.1f} ms token by token, {b:5.1f} in one pass")
ax.set(xlabel="drafts", ylabel="milliseconds", ylim=0, xticks=counts)
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# Token by token the time grows with the number of drafts: each pass reads all
# weights anew. One pass reads them once, and only its arithmetic grows with the
# block. A CPU feels that; on a chip that computes hundreds of operations in the
# time of reading a number, as chapter 3 has shown, it hardly shows.
#
# ## It learns
#
# A brief training on four short answers of SmolLM2, by heart. For a drafter of
# use it takes thousands of texts; here we only want to see masks being filled.

# %%
responses = example_responses(model, tokenizer)
texts = [x for x in responses.texts if len(x.tokens) <= 64][:4]
few = dataclasses.replace(responses, texts=tuple(texts))
words = np.unique(np.concatenate([text.tokens for text in texts]))
new = BlockDrafter.new(model, MASK, hidden_size=128, vocabulary=words)
small = dataclasses.replace(new, anchors=16)
settings = TrainSettings(steps=120, rows=4, rate=3e-3, longest=64)
with tempfile.TemporaryDirectory() as folder:
    run = train(model, small, few, folder, settings)
# arrays of one device, as from a file; a run's lie on a mesh of devices
drafter = jax.tree.map(jnp.asarray, jax.device_get(run.learner))

# %% tags=["nbval-ignore-output"] mystnb={"image": {"alt": "Acceptance length in training against the step: it starts near 1 and rises."}}
lines = [line for line in run.metrics if "loss" in line]
fig, ax = plt.subplots(figsize=(7, 2.6))
ax.plot([x["step"] for x in lines], [x["acceptance"] for x in lines])
_ = ax.set(xlabel="step", ylabel="acceptance length", ylim=1)

# %% [markdown]
# It drafts for the target through the same loop as every drafter. The text
# stays what it was.

# %%
prompt = texts[0].tokens[: texts[0].start].tolist()
how = dict(max_new_tokens=24)
plain = generate(model, tokenizer, prompt, **how)
fast = generate(model, tokenizer, prompt, drafter=drafter, **how)
assert fast.tokens == plain.tokens

# %% tags=["nbval-ignore-output"]
print(f"acceptance length {fast.statistics.acceptance_length:.2f}")

# %% [markdown]
# ## Do more passes pay?
#
# From every anchor of the four texts: how many drafts in a row are right, if
# one, two or four passes fill the seven slots? The texts are the target's own,
# so no pass of the target is needed.


# %%
@jax.jit
def accepted(drafter, tokens, start, end):
    """Acceptance length over all anchors of a text; `end` is its length."""
    size = len(tokens)
    memory = drafter.begin(model, 1, size)
    seen = tokens[None], jnp.arange(size)[None], None, ()
    memory = drafter.observe(model, memory, *seen)
    anchors = jnp.arange(size)
    each = jax.tree.map(lambda x: jnp.repeat(x, size, axis=0), memory)
    drafts = drafter.fill(each, tokens, anchors)
    at = anchors[:, None] + jnp.arange(1, drafter.block)
    right = (drafts == tokens[jnp.minimum(at, size - 1)]) & (at < end)
    run = 1 + jnp.cumprod(right, axis=1).sum(1)
    inside = (anchors >= start) & (anchors < end - 1)
    return jnp.where(inside, run, 0).sum() / inside.sum()


def mean_accepted(drafter):
    found = []
    for one in texts:
        padded = np.zeros(64, np.int32)
        padded[: len(one.tokens)] = one.tokens
        found.append(accepted(drafter, padded, one.start, len(one.tokens)))
    return float(np.mean(found))


by_passes = {
    n: mean_accepted(dataclasses.replace(drafter, passes=n)) for n in (1, 2, 4)
}

# %% tags=["nbval-ignore-output"]
for n, length in by_passes.items():
    print(f"{n} passes: acceptance length {length:.2f}")

# %% [markdown]
# These texts it knows by heart, so there is little to revise; on new texts a
# second look could add something. How much would it have to add? Say that a
# verification takes as long as eight passes of the drafter. Then a step with
# two passes takes 10 where it took 9, and the acceptance length must rise by a
# ninth, only to break even.

# %% tags=["nbval-ignore-output"]
for n, length in by_passes.items():
    print(f"{n} passes: {length / (8 + n):.3f} tokens in the time of one pass")

# %% [markdown]
# There is a better reviser at hand. The verification is a pass too, of a far
# better model; it corrects the first mistake of a block, and everything behind
# it is drafted anew in the next step. A drafter that looks twice does badly what
# the target does well a moment later.
#
# What holds this drafter back is another thing: it knows the tokens and nothing
# else. It has to find out alone what the target means to say. Chapter 10 tells
# it.
#
# ## Exercises
#
# **9.1 A pair by two slots** (5 minutes). `joint` holds the chance of each pair
# of tokens. Each slot draws from its own chances, whatever the other draws.
# Return how often the pair that comes out is one with a chance above 0.

# %% tags=["exercise"]
def coherent(joint: dict[tuple[str, str], float]) -> float:
    """The chance of a possible pair."""
    ### BEGIN SOLUTION
    firsts, seconds = {}, {}
    for (a, b), chance in joint.items():
        firsts[a] = firsts.get(a, 0) + chance
        seconds[b] = seconds.get(b, 0) + chance
    return sum(firsts[a] * seconds[b] for a, b in joint if joint[a, b] > 0)
    ### END SOLUTION


# %% tags=["check"]
@check(coherent)
def _(f):
    assert f({("a", "b"): 1.0}) == 1, "one answer only: nothing is left open"
    half = f({("of", "course"): 0.5, ("no", "problem"): 0.5})
    assert half != 1, "the slots do not know of each other"
    assert abs(half - 0.5) < 1e-9
    same = f({("very", "good"): 0.5, ("very", "bad"): 0.5})
    assert same == 1, "the first word is the same: any second one fits it"
    assert abs(f({("a", "b"): 0.9, ("c", "d"): 0.1}) - 0.82) < 1e-9


# %% [markdown]
# **9.2 How many in each pass** (5 minutes). `drafts` slots are filled in
# `passes` passes; each fills an equal part of those that are left, rounded up.
# Return the numbers.

# %% tags=["exercise"]
def schedule(drafts: int, passes: int) -> list[int]:
    """Slots that each pass fills."""
    ### BEGIN SOLUTION
    counts = []
    for left in range(passes, 0, -1):
        counts.append(-(-(drafts - sum(counts)) // left))
    return counts
    ### END SOLUTION


# %% tags=["check"]
@check(schedule)
def _(f):
    assert f(7, 1) == [7], "one pass fills all"
    assert f(7, 2) != [3, 4], "rounded up: the first pass fills the larger part"
    assert f(7, 2) == [4, 3] and f(7, 3) == [3, 2, 2]
    assert f(4, 4) == [1, 1, 1, 1] and sum(f(15, 4)) == 15


# %% [markdown]
# **9.3 The dearer draft** (15 minutes). A pass of the drafter takes `draft`
# plain steps; a verification takes `verify` plain steps for any block. Each
# draft is accepted with probability `steps` if it was made token by token, and
# `once` if all were made in one pass, given that those before it were. Return
# the best speedup of both ways over 1 to 16 drafts. `tokens_a_step` is chapter
# 6's.

# %% tags=["exercise"]
from dflash_lite.speculative import tokens_a_step


def best_of_both(
    steps: float, once: float, draft: float, verify: float
) -> tuple[float, float]:
    """Largest speedups: token by token, in one pass."""
    ### BEGIN SOLUTION
    speed = lambda rate, k, passes: (
        tokens_a_step(rate, k) / (verify + passes * draft)
    )
    counts = range(1, 17)
    return (
        max(speed(steps, k, k) for k in counts),
        max(speed(once, k, 1) for k in counts),
    )
    ### END SOLUTION


# %% tags=["check"]
@check(best_of_both)
def _(f):
    free = f(0.8, 0.8, 0.0, 1.0)
    assert free[0] == free[1], "drafts that cost nothing: both are the same"
    a, b = f(0.8, 0.8, 0.1, 1.0)
    assert a < b, "the same acceptance, and fewer passes"
    assert abs(b - tokens_a_step(0.8, 16) / 1.1) < 1e-9, "16 drafts, one pass"
    assert abs(a - tokens_a_step(0.8, 6) / 1.6) < 1e-9, "6 drafts, 6 passes"
    assert f(0.8, 0.6, 0.1, 1.0)[0] > f(0.8, 0.6, 0.1, 1.0)[1]


# %% [markdown]
# ## Key points
#
# - A masked model fills blanks; in block diffusion the text before is known and
#   a whole block is blank.
# - Rows of the text see what is before them. Rows of the block see the text and
#   each other. The block's keys and values are not kept.
# - Token by token the time of a draft grows with its length. One pass reads the
#   weights once, whatever the block.
# - Slots that are filled at the same time do not know of each other. Where the
#   target has one answer only, they need not.
# - Each further pass costs as much as the first; the verification revises better.
#
# **Next:** chapter 10 gives such a drafter the target's hidden states.
