"""Block diffusion.

A small model that fills a whole block of masks in one pass. It sees the tokens
only, no hidden states; what it lacks is what chapter 10 adds.

Made from chapters/09_block_diffusion.py by tools/tangle.py:
edit the chapter, not this file.
"""

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

__all__ = [
    "Part",
    "attend_to_parts",
    "BlockView",
    "Recorder",
    "BlocksOfTexts",
    "reveal",
    "BlockDrafter",
    "some_known",
]


# Which row sees what
# -------------------

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


# The surest first
# ----------------

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


# The drafter
# -----------

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
