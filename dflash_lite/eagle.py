"""EAGLE-3.

A drafter of one layer that reads the target's hidden states, drafts token by
token, and learns from its own guesses; beside it a draft model of its own.
Published checkpoints load.

Made from chapters/08_eagle.py by tools/tangle.py:
edit the chapter, not this file.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from dflash_lite.checkpoints import (
    WEIGHTS,
    ModelConfig,
    Tensors,
    UserError,
    fetch_hub,
    fetch_weights,
    hub_config,
    hub_tensors,
    read_flag,
    read_json,
)
from dflash_lite.decoding import DenseCache, Sampling, State
from dflash_lite.speculative import (
    Draft,
    DraftModel,
    Speculative,
    as_drafter,
    at_row,
    check_block,
    draw,
)
from dflash_lite.training import (
    Batch,
    block_labels,
    block_loss,
    draw_anchors,
    to_draft,
)
from dflash_lite.transformer import (
    MLP,
    Attention,
    Cache,
    Linear,
    RMSNorm,
    Rotation,
    Transformer,
    fill,
    matmul,
    module_list,
    module_tensors,
    read_parameter,
    rotate,
    rotation,
    shape_entries,
    write_folder,
)

__all__ = [
    "eagle_taps",
    "EagleConfig",
    "EagleLayer",
    "context_keys_values",
    "EagleNetwork",
    "EagleMemory",
    "write_context",
    "target_head",
    "to_target",
    "Unrolled",
    "PASS_DECAY",
    "Eagle",
    "check_eagle",
    "read_eagle_config",
    "FLAGS",
    "read_layers",
    "BORROWED",
    "HEADS",
    "VOCABULARY",
    "read_vocabulary",
    "vocabulary_offsets",
    "read_matrix",
    "open_eagle",
    "drafter_folder",
    "load_eagle",
    "save_eagle",
    "new_eagle",
    "DraftLearner",
]


# A drafter that is told
# ----------------------

def eagle_taps(layers: int) -> tuple[int, ...]:
    """The layers, from 0, whose output a drafter reads if its config is silent.

    Args:
        layers: of the target.

    Raises:
        UserError: the target has too few layers for three taps.

    Source: EAGLE-3 (Li et al. 2025), section 3.1; the layers are those that
    speculators 0.9 takes: what enters 2, n // 2 and n − 3.
    """
    enters = (2, layers // 2, layers - 3)
    if not enters[0] < enters[1] < enters[2]:
        raise UserError(
            f"The target has {layers} layers; expected 7 or more for the usual "
            "three taps. Name other taps."
        )
    return tuple(i - 1 for i in enters)


# One layer over two inputs
# -------------------------

@dataclass(frozen=True)
class EagleConfig:
    """The shape of a drafter, with the names of published configs."""

    shape: ModelConfig  # of its layer; vocab_size is the target's
    target_layer_ids: tuple[int, ...]  # whose output it reads, from 0
    draft_vocab_size: int | None = None  # None: the target's
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False

    def __post_init__(self) -> None:
        ids, count = self.target_layer_ids, self.shape.num_hidden_layers
        if not ids or not all(type(i) is int and i >= 0 for i in ids):
            raise UserError(
                f"The drafter reads the outputs of layers {list(ids)}; "
                "expected layers from 0 on."
            )
        if count != 1:
            raise UserError(
                f"num_hidden_layers is {count}; expected 1, as EAGLE-3 has."
            )
        if self.norm_before_fc and self.fc_norm:
            raise UserError(
                "norm_before_fc and fc_norm are both set; expected one of them."
            )
        size, vocab = self.draft_vocab_size, self.shape.vocab_size
        if size is not None and (type(size) is not int or not 0 < size < vocab):
            raise UserError(
                f"draft_vocab_size is {size!r:.60}; expected a whole number "
                f"from 1 to the target's {vocab}."
            )


class EagleLayer(nnx.Module):
    """A decoder layer that reads an embedding beside the residual stream.

    Source: EAGLE-3 (Li et al. 2025), section 3.1.
    """

    def __init__(
        self, config: EagleConfig, *, dtype: Any = jnp.float32, rngs: nnx.Rngs
    ):
        c, options = config.shape, dict(dtype=dtype, rngs=rngs)
        norm = lambda: RMSNorm(c.hidden_size, eps=c.rms_norm_eps, dtype=dtype)
        self.before_residual = config.norm_before_residual
        self.input_layernorm, self.hidden_norm = norm(), norm()
        self.self_attn = Attention(c, **options)
        sizes = (2 * c.hidden_size, *self.self_attn.qkv_proj.outputs)
        bias = c.attention_bias
        self.self_attn.qkv_proj = Linear(*sizes, bias=bias, **options)
        self.post_attention_layernorm = norm()
        self.mlp = MLP(c, **options)

    def enter(
        self,
        embeds: Float[Array, "batch rows hidden"],
        features: Float[Array, "batch rows hidden"],
    ) -> tuple[
        Float[Array, "batch rows twice"], Float[Array, "batch rows hidden"]
    ]:
        """What attention reads, and the residual stream."""
        normed = self.hidden_norm(features)
        both = [self.input_layernorm(embeds), normed]
        stream = normed if self.before_residual else features
        return jnp.concatenate(both, axis=-1), stream

    def __call__(
        self,
        embeds: Float[Array, "batch rows hidden"],
        features: Float[Array, "batch rows hidden"],
        by: Rotation,
        positions: Int[Array, "batch rows"],
        cache: Cache,
    ) -> tuple[Float[Array, "batch rows hidden"], Cache]:
        """Add attention, then the MLP, to the features."""
        both, x = self.enter(embeds, features)
        mixed, cache = self.self_attn(both, 0, by, positions, cache)
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x)), cache


def context_keys_values(
    part: Attention, x: Float[Array, "batch rows inputs"], by: Rotation
) -> tuple[Float[Array, "batch rows kv_heads head_dim"], ...]:
    """Keys and values of an `Attention`, without its queries."""
    stacked, flat = part.qkv_proj, x.reshape(-1, x.shape[-1])
    first = stacked.outputs[0]
    y = matmul(flat, stacked.weight[...][first:])
    y = y if stacked.bias is None else y + stacked.bias[...][first:]
    split = (*x.shape[:2], -1, part.head_dim)
    k, v = (z.reshape(split) for z in jnp.split(y, 2, axis=-1))
    k = k if part.k_norm is None else part.k_norm(k)
    return rotate(k, by), v


class EagleNetwork(nnx.Module):
    """What a drafter has of its own; the embedding is the target's.

    Args:
        config: its shape.
        dtype: the type of parameters and activations.
        rngs: random state for the initial weights.

    Source: EAGLE-3 (Li et al. 2025), section 3.1; speculators 0.9 is matched
    to rounding.
    """

    def __init__(
        self, config: EagleConfig, *, dtype: Any = jnp.float32, rngs: nnx.Rngs
    ):
        c, taps = config.shape, len(config.target_layer_ids)
        options = dict(dtype=dtype, rngs=rngs)
        norm = lambda n=c.hidden_size: RMSNorm(
            n, eps=c.rms_norm_eps, dtype=dtype
        )
        self.config = config
        wide = taps * c.hidden_size
        self.input_norm = norm(wide) if config.norm_before_fc else None
        each = [norm() for _ in range(taps)]
        self.fc_norm = module_list(each) if config.fc_norm else None
        self.fc = Linear(wide, c.hidden_size, **options)
        self.midlayer = EagleLayer(config, **options)
        self.norm = norm()

    def fuse(
        self, taps: Sequence[Float[Array, "batch rows hidden"]]
    ) -> Float[Array, "batch rows hidden"]:
        """The features of positions, from the target's taps."""
        taps = [tap.astype(self.fc.weight.dtype) for tap in taps]
        if self.fc_norm is not None:
            taps = [norm(tap) for norm, tap in zip(self.fc_norm, taps)]
        x = jnp.concatenate(taps, axis=-1)
        x = x if self.input_norm is None else self.input_norm(x)
        return self.fc(x)[0]

    def keys_and_values(
        self,
        embeds: Float[Array, "batch rows hidden"],
        features: Float[Array, "batch rows hidden"],
        positions: Int[Array, "batch rows"],
    ) -> tuple[Float[Array, "batch rows kv_heads head_dim"], ...]:
        """What later rows need of rows with known tokens: (k, v)."""
        c = self.config.shape
        by = rotation(c.rope, c.head_dim, positions)
        both, _ = self.midlayer.enter(embeds, features)
        return context_keys_values(self.midlayer.self_attn, both, by)

    def __call__(
        self,
        embeds: Float[Array, "batch rows hidden"],
        features: Float[Array, "batch rows hidden"],
        positions: Int[Array, "batch rows"],
        cache: Cache,
    ) -> tuple[
        Float[Array, "batch rows hidden"],
        Float[Array, "batch rows hidden"],
        Cache,
    ]:
        """One pass.

        Returns:
            What the head reads, what the next pass takes for a feature, and
            the cache.
        """
        c = self.config.shape
        by = rotation(c.rope, c.head_dim, positions)
        x, cache = self.midlayer(embeds, features, by, positions, cache)
        normed = self.norm(x)
        return normed, normed if self.config.norm_output else x, cache


# What it remembers
# -----------------

class EagleMemory(NamedTuple):
    """What a drafter keeps of each text."""

    cache: DenseCache  # row p: the feature of p and token p + 1
    feature: Float[Array, "batch hidden"]  # of the last position read


def write_context(
    cache: DenseCache,
    new: Sequence[tuple[Float[Array, "batch rows kv_heads head_dim"], ...]],
    positions: Int[Array, "batch rows"],
    counted: Bool[Array, "batch rows"],
) -> DenseCache:
    """Put keys and values of each layer at their positions, if they count."""
    batch, heads, capacity, _ = cache.keys[0].shape
    there = jnp.where(counted, positions, capacity)[:, None]
    at = jnp.arange(batch)[:, None, None], jnp.arange(heads)[:, None], there
    put = lambda old, x: old.at[at].set(x.swapaxes(1, 2), mode="drop")
    keys = [put(old, k) for old, (k, _) in zip(cache.keys, new)]
    values = [put(old, v) for old, (_, v) in zip(cache.values, new)]
    return DenseCache(tuple(keys), tuple(values))


def target_head(
    target: Transformer, vocabulary: Int[Array, "draft_vocab"] | None
) -> Float[Array, "draft_vocab hidden"]:
    """The rows of the target's head for some of its tokens, or all."""
    head = target.embed_tokens if target.lm_head is None else target.lm_head
    return head[...] if vocabulary is None else head[...][vocabulary]


def to_target(
    tokens: Int[Array, "rows"],
    chances: Float[Array, "rows draft_vocab"] | None,
    vocabulary: Int[Array, "draft_vocab"] | None,
    vocab: int,
) -> tuple[Int[Array, "rows"], Float[Array, "rows vocab"] | None]:
    """Tokens of a reduced vocabulary and their chances, as the target's."""
    if vocabulary is None:
        return tokens, chances
    if chances is not None:
        wide = jnp.zeros((len(tokens), vocab), chances.dtype)
        chances = wide.at[:, vocabulary].set(chances)
    return vocabulary[tokens], chances


# The training-time test
# ----------------------

class Unrolled(NamedTuple):
    """A plug: chains of passes, each behind the rows of a text.

    Source: EAGLE-3 (Li et al. 2025), section 3.2.
    """

    keys: Float[Array, "batch rows kv_heads head_dim"]
    values: Float[Array, "batch rows kv_heads head_dim"]
    starts: Int[Array, "batch chains"]  # a chain sees the rows before
    own: tuple[tuple[Array, Array], ...] = ()  # (k, v) of earlier passes

    def attend(
        self,
        layer: int,
        q: Float[Array, "batch chains heads head_dim"],
        k: Float[Array, "batch chains kv_heads head_dim"],
        v: Float[Array, "batch chains kv_heads head_dim"],
        positions: Int[Array, "batch chains"],
    ) -> tuple[Float[Array, "batch chains heads head_dim"], "Unrolled"]:
        """Attend to the text's rows and the chain's own; see `Cache`."""
        view = self._replace(own=(*self.own, (k, v)))
        k, v = (jnp.stack(x, axis=2) for x in zip(*view.own))
        rows, heads = self.keys.shape[1:3]
        grouped = q.reshape(*q.shape[:2], heads, -1, q.shape[-1])
        exact = jax.lax.Precision.HIGHEST if q.dtype == jnp.float32 else None
        dot = lambda form, *x: jnp.einsum(form, *x, precision=exact)
        before = dot("bahgd,bshd->bahgs", grouped, self.keys)
        chain = dot("bahgd,bamhd->bahgm", grouped, k)
        seen = jnp.arange(rows) < self.starts[..., None]
        before = jnp.where(seen[:, :, None, None], before, -jnp.inf)
        scores = jnp.concatenate([before, chain], axis=-1).astype(jnp.float32)
        weights = jax.nn.softmax(scores * q.shape[-1] ** -0.5, axis=-1)
        weights = weights.astype(v.dtype)
        mixed = dot("bahgs,bshd->bahgd", weights[..., :rows], self.values)
        mixed += dot("bahgm,bamhd->bahgd", weights[..., rows:], v)
        return mixed.reshape(q.shape), view


# The drafter
# -----------

PASS_DECAY = 0.8  # of the loss, from pass to pass


@as_drafter("block", "anchors", data=("network", "vocabulary", "head", "table"))
class Eagle(Speculative):
    """Drafts token by token with one layer over the target's features.

    Args:
        network: its layer and what fuses the features.
        block: tokens of a verification, one more than there are drafts.
        vocabulary: the target's tokens that it can draft, rising; None for
            all.
        head: a row for each of them; None takes the target's.
        table: its own embedding; None takes the target's.
        anchors: places that training draws from each text.

    Source: EAGLE-3 (Li et al. 2025), section 3.
    """

    network: EagleNetwork
    block: int = 4
    vocabulary: Int[Array, "draft_vocab"] | None = None
    head: Float[Array, "draft_vocab hidden"] | None = None
    table: Float[Array, "vocab hidden"] | None = None
    anchors: int = 64
    reads: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_block(self.block)

    @property
    def taps(self) -> tuple[int, ...]:
        """The layers of the target that it reads."""
        return self.network.config.target_layer_ids

    def check(self, model: Transformer) -> None:
        """Refuse a target that it was not made for; see `check_eagle`."""
        super().check(model)
        check_eagle(self.network.config, model.config)

    def embed(
        self, model: Transformer, tokens: Int[Array, "batch rows"]
    ) -> Float[Array, "batch rows hidden"]:
        """The embeddings of tokens, in the network's type."""
        table = model.embed_tokens[...] if self.table is None else self.table
        return table[tokens].astype(self.network.fc.weight.dtype)

    def logits(
        self, model: Transformer, hidden: Float[Array, "*rest hidden"]
    ) -> Float[Array, "*rest draft_vocab"]:
        """Scores of the tokens that it can draft, in float32."""
        head = self.head
        if head is None:
            head = target_head(model, self.vocabulary)
        flat = hidden.reshape(-1, hidden.shape[-1]).astype(head.dtype)
        scores = matmul(flat, head).astype(jnp.float32)
        return scores.reshape(*hidden.shape[:-1], -1)

    def begin(
        self, model: Transformer, batch: int, capacity: int
    ) -> EagleMemory:
        """An empty cache and no feature."""
        shape, dtype = self.network.config.shape, self.network.fc.weight.dtype
        cache = DenseCache.empty(shape, batch, capacity, dtype)
        return EagleMemory(cache, jnp.zeros((batch, shape.hidden_size), dtype))

    def observe(
        self,
        model: Transformer,
        memory: EagleMemory,
        tokens: Int[Array, "batch tokens"],
        positions: Int[Array, "batch tokens"],
        counted: Bool[Array, "batch tokens"],
        tapped: tuple[Float[Array, "batch tokens hidden"], ...],
    ) -> EagleMemory:
        """Add rows of true features; see `Speculative.observe`."""
        fused, rows = self.network.fuse(tapped), positions - 1
        before = jnp.concatenate([memory.feature[:, None], fused[:, :-1]], 1)
        embeds = self.embed(model, tokens)
        new = self.network.keys_and_values(embeds, before, rows)
        there = counted & (rows >= 0)  # the first token has none before it
        cache = write_context(memory.cache, [new], rows, there)
        count = counted.sum(1)
        last = at_row(fused, jnp.maximum(count - 1, 0))
        feature = jnp.where((count > 0)[:, None], last, memory.feature)
        return EagleMemory(cache, feature)

    def draft(
        self, model: Transformer, state: State, sampling: Sampling, mode: str
    ) -> tuple[Draft, State]:
        """A pass for each draft, the first with the newest feature."""
        memory, lengths = state.progress.memory, state.lengths

        def body(carry: tuple, i: Int[Array, ""]) -> tuple:
            cache, token, feature = carry
            embeds, at = self.embed(model, token[:, None]), lengths - 2 + i
            hidden, feature, cache = self.network(
                embeds, feature[:, None], at[:, None], cache
            )
            scores = self.logits(model, hidden[:, 0])
            drawn = draw(scores, lengths + i, sampling, mode)
            vocab = model.config.vocab_size
            token, chances = to_target(*drawn, self.vocabulary, vocab)
            token = token.astype(jnp.int32)
            return (cache, token, feature[:, 0]), (token, chances)

        last = at_row(state.tokens, lengths - 1)
        carry = (memory.cache, last, memory.feature)
        (cache, *_), found = jax.lax.scan(body, carry, jnp.arange(self.drafts))
        tokens, chances = jax.tree.map(lambda x: x.swapaxes(0, 1), found)
        memory = memory._replace(cache=cache)
        progress = state.progress._replace(memory=memory)
        counts = jnp.full(len(lengths), self.drafts)
        return Draft(tokens, counts, chances), state._replace(progress=progress)

    def loss(
        self, model: Transformer, batch: Batch, key: Key[Array, "*rows"]
    ) -> tuple[Float[Array, ""], dict[str, Array]]:
        """The loss of a batch of texts; see `Learner`."""
        anchors, valid = draw_anchors(key, batch, self.anchors)
        labels, there = block_labels(
            batch.tokens, anchors, valid, self.block, batch.lengths
        )
        scores = self.logits(model, self.unroll(model, batch, anchors))
        labels = to_draft(labels, self.vocabulary)
        weights = PASS_DECAY ** jnp.arange(self.drafts)
        return block_loss(scores, labels, there, weights)

    def unroll(
        self,
        model: Transformer,
        batch: Batch,
        anchors: Int[Array, "batch anchors"],
    ) -> Float[Array, "batch anchors drafts hidden"]:
        """What the head reads in each pass from each anchor."""
        tokens, network = batch.tokens, self.network
        fused, last = network.fuse(batch.features), tokens.shape[1] - 1
        at = jnp.broadcast_to(jnp.arange(last + 1), tokens.shape)
        following = jnp.roll(tokens, -1, axis=1)  # no anchor sees the last row
        rows = self.embed(model, following), fused, at
        starts = jnp.maximum(anchors - 1, 0)
        view = Unrolled(*network.keys_and_values(*rows), starts)
        x, found = jnp.take_along_axis(fused, starts[..., None], axis=1), []
        for i in range(self.drafts):
            place = jnp.minimum(anchors + i, last)
            token = jnp.take_along_axis(tokens, place, axis=1)
            embeds = self.embed(model, token)
            hidden, x, view = network(embeds, x, starts + i, view)
            found.append(hidden)
        return jnp.stack(found, axis=2)


def check_eagle(config: EagleConfig, target: ModelConfig) -> None:
    """Refuse a target whose shape a drafter was not made for.

    Raises:
        UserError: it says what differs, and both values.
    """
    shape, deepest = config.shape, max(config.target_layer_ids) + 1
    for name in ("hidden_size", "vocab_size"):
        ours, theirs = getattr(shape, name), getattr(target, name)
        if ours != theirs:
            raise UserError(
                f"The drafter was made for a target with {name} {ours}; this "
                f"one has {theirs}. Load the drafter of this target."
            )
    if deepest > target.num_hidden_layers:
        raise UserError(
            f"The drafter reads the output of {deepest} layers; this target "
            f"has {target.num_hidden_layers}. Load the drafter of this target."
        )


# Checkpoints
# -----------

def read_eagle_config(data: Mapping[str, Any], layers: int) -> EagleConfig:
    """The shape of a drafter from its `config.json`, of either layout.

    Args:
        layers: of the target, for a config that names no taps.

    Raises:
        UserError: an entry is missing, impossible, or not known here.

    Source: speculators 0.9, and the layout of the authors' checkpoints.
    """
    kind, flat = data.get("speculators_model_type"), dict(data)
    if kind is not None:
        inner = data.get("transformer_layer_config")
        if kind != "eagle3" or not isinstance(inner, Mapping):
            raise UserError(
                f"speculators_model_type is {kind!r:.60}; expected 'eagle3', "
                "with a transformer_layer_config."
            )
        flat = dict(inner)
    inside = data.get("eagle_config")
    own = {**(inside if isinstance(inside, Mapping) else {}), **data}
    names = str(data.get("architectures")).lower()
    if kind is None and "eagle3" not in names:
        raise UserError(
            "config.json is no EAGLE-3 drafter: none of its architectures has "
            "Eagle3 in its name."
        )
    if "sliding_attention" in str(flat.get("layer_types")):
        raise UserError("layer_types has sliding_attention; expected none.")
    shape = hub_config(flat)
    wide = own.get("target_hidden_size") or shape.hidden_size
    if wide != shape.hidden_size:
        raise UserError(
            f"target_hidden_size is {wide}, hidden_size {shape.hidden_size}; "
            "this package knows drafters as wide as their target."
        )
    name = "eagle_aux_hidden_state_layer_ids"
    ids = own.get(name)
    taps = eagle_taps(layers) if ids is None else read_layers(name, ids, 1)
    size = own.get("draft_vocab_size")
    flags = {name: read_flag(own, name) for name in FLAGS}
    size = None if size == shape.vocab_size else size
    return EagleConfig(shape, taps, size, **flags)


FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


def read_layers(name: str, ids: Any, first: int = 0) -> tuple[int, ...]:
    """Layers counted from 0, from a list that counts from `first`.

    Raises:
        UserError: it is no list of numbers.
    """
    if not isinstance(ids, list) or not all(type(i) is int for i in ids):
        raise UserError(f"{name} is {ids!r:.60}; expected a list of layers.")
    return tuple(i - first for i in ids)


BORROWED = ("embed_tokens.weight", "verifier_norm.weight")
HEADS = ("lm_head.weight", "verifier_lm_head.weight")
VOCABULARY = ("d2t", "t2d")  # between the draft's and the target's tokens


def read_vocabulary(
    tensors: Mapping[str, np.ndarray], size: int | None, vocab: int
) -> Int[Array, "draft_vocab"] | None:
    """The target's tokens that a drafter can draft; None if it is all.

    Args:
        size: how many.
        vocab: the target's.

    Raises:
        UserError: the table is missing or names no tokens.
    """
    if size is None:
        return None
    offsets = np.asarray(tensors["d2t"]) if "d2t" in tensors else None
    if offsets is None or offsets.shape != (size,):
        shape = None if offsets is None else offsets.shape
        raise UserError(
            f"draft_vocab_size is {size}, and d2t has the shape {shape}; "
            f"expected ({size},). Fetch the drafter again."
        )
    tokens = np.arange(size) + offsets
    rising = (np.diff(tokens) > 0).all()
    if not rising or tokens[0] < 0 or tokens[-1] >= vocab:
        raise UserError(
            f"d2t names the tokens {tokens.min()} to {tokens.max()}; expected "
            f"rising ones from 0 to {vocab - 1}. Fetch the drafter again."
        )
    return jnp.asarray(tokens, jnp.int32)


def vocabulary_offsets(
    vocabulary: Int[Array, "draft_vocab"],
) -> Int[np.ndarray, "draft_vocab"]:
    """The table `d2t` of a reduced vocabulary."""
    return np.asarray(vocabulary, np.int64) - np.arange(len(vocabulary))


def read_matrix(
    tensors: Mapping[str, np.ndarray],
    name: str,
    shape: tuple[int, int],
    same: Float[Array, "vocab hidden"] | None,
    dtype: Any,
) -> Float[Array, "rows hidden"] | None:
    """A head or an embedding; None if there is none, or it equals `same`."""
    if name not in tensors:
        return None
    found = jnp.asarray(read_parameter(tensors, {name: shape}, dtype))
    if same is not None and same.shape == shape:
        found = None if (found == same.astype(dtype)).all() else found
    return found


def open_eagle(
    folder: Path, target: Transformer, block: int, dtype: Any
) -> Eagle:
    """The drafter in a folder, of the authors' or of speculators' layout.

    Raises:
        UserError: a file is missing or damaged, is no drafter, or that of
            another target.
    """
    data = read_json(folder / "config.json")
    if not data:
        raise UserError(f"{folder} has no config.json; it is no drafter.")
    config = read_eagle_config(data, target.config.num_hidden_layers)
    check_eagle(config, target.config)
    if not any(folder.glob("*.safetensors")) and any(folder.glob("*.bin")):
        raise UserError(
            f"{folder} has its weights in a .bin file, a pickle, which can run "
            "any code. Expected model.safetensors; convert it first."
        )
    rename = lambda name: re.sub(r"^layers\.0\.", "midlayer.", name)
    readers = hub_tensors(folder).readers.items()
    tensors = Tensors({rename(name): read for name, read in readers})
    other = (*BORROWED, *HEADS, *VOCABULARY)
    own = {n: r for n, r in tensors.readers.items() if n not in other}
    make = lambda dtype: EagleNetwork(config, dtype=dtype, rngs=nnx.Rngs(0))
    network = fill(make, Tensors(own), config.shape, dtype, prefix="")
    vocab, hidden = config.shape.vocab_size, config.shape.hidden_size
    size = config.draft_vocab_size
    words = read_vocabulary(tensors, size, vocab)
    same, wide = target.embed_tokens[...], (vocab, hidden)
    table = read_matrix(tensors, BORROWED[0], wide, same, dtype)
    same = target_head(target, None)
    shape = (size or vocab, hidden)
    head = read_matrix(tensors, HEADS[0], shape, same, dtype)
    return Eagle(network, block, words, head, table)


def drafter_folder(name_or_path: str | os.PathLike, example: str) -> Path:
    """The folder of a drafter; one on the Hub is downloaded if need be.

    Args:
        name_or_path: a folder, weights of ours such as "tiny-dflash", or a Hub
            id "owner/name".
        example: a Hub id, for the message.

    Raises:
        UserError: nothing is there.
    """
    name = os.fspath(name_or_path)
    if name in WEIGHTS:
        return fetch_weights(name)
    path = Path(os.path.expanduser(name))
    if path.is_dir():
        return path
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not name.startswith("."):
        return fetch_hub(name, hub_tensors)
    raise UserError(
        f"There is no drafter {name!r}. Expected a folder with config.json and "
        f"model.safetensors, or a Hub id such as {example}."
    )


def load_eagle(
    name_or_path: str | os.PathLike,
    target: Transformer,
    block: int = 4,
    dtype: Any = None,
) -> Eagle:
    """Load the EAGLE-3 drafter of a target.

    Args:
        name_or_path: a folder in the authors' or in the speculators layout,
            weights of ours, or a Hub id "owner/name".
        target: the model that it drafts for.
        block: tokens of a verification, one more than there are drafts.
        dtype: "float32" or "bfloat16"; by default that of the target.

    Raises:
        UserError: nothing is there, or it does not fit; the message says why.
    """
    dtype = target.embed_tokens.dtype if dtype is None else dtype
    example = "RedHatAI/Qwen3-8B-speculator.eagle3"
    folder = drafter_folder(name_or_path, example)
    found = open_eagle(folder, target, block, dtype)
    found.check(target)
    return found


def save_eagle(
    drafter: Eagle, folder: str | os.PathLike, dtype: Any = "bfloat16"
) -> None:
    """Write a drafter in the authors' layout.

    Args:
        folder: is made if need be; `config.json` and `model.safetensors` in it
            are replaced when both are written whole.
        dtype: the type to write; "float32" or "bfloat16".
    """
    config = drafter.network.config
    tensors = module_tensors(drafter.network, config.shape, dtype)
    matrices = {HEADS[0]: drafter.head, BORROWED[0]: drafter.table}
    for name, array in matrices.items():
        if array is not None:
            tensors[name] = np.asarray(array).astype(jnp.dtype(dtype))
    vocab, size = config.shape.vocab_size, config.draft_vocab_size
    if drafter.vocabulary is not None:
        tensors["d2t"] = vocabulary_offsets(drafter.vocabulary)
        tensors["t2d"] = np.isin(np.arange(vocab), drafter.vocabulary)
    enters = [i + 1 for i in config.target_layer_ids]
    write_folder(folder, tensors, shape_entries(config.shape) | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": vocab if size is None else size,
        "eagle_aux_hidden_state_layer_ids": enters,
    } | {name: True for name in FLAGS if getattr(config, name)})  # fmt: skip


def new_eagle(
    target: Transformer,
    block: int = 4,
    taps: Sequence[int] | None = None,
    vocabulary: Sequence[int] | None = None,
    seed: int = 0,
    **flags: bool,
) -> Eagle:
    """A drafter with random weights, of the target's width, in float32.

    Args:
        block: tokens of a verification, one more than there are drafts.
        taps: layers of the target to read; by default `eagle_taps`.
        vocabulary: the tokens that it can draft; None for all.
        flags: those of `EagleConfig`.

    Raises:
        UserError: a setting is impossible.
    """
    shape, count = target.config, target.config.num_hidden_layers
    taps = eagle_taps(count) if taps is None else tuple(taps)
    plain = dict(num_hidden_layers=1, model_type="llama")
    plain |= dict(attention_bias=False, mlp_bias=False)
    words = None if vocabulary is None else sorted(set(map(int, vocabulary)))
    size = None if words is None else len(words)
    config = EagleConfig(replace(shape, **plain), taps, size, **flags)
    check_eagle(config, shape)
    if words and not 0 <= words[0] <= words[-1] < shape.vocab_size:
        raise UserError(
            f"vocabulary goes from {words[0]} to {words[-1]}; expected tokens "
            f"from 0 to {shape.vocab_size - 1}."
        )
    network = EagleNetwork(config, rngs=nnx.Rngs(seed))
    if words is None:
        return Eagle(network, block)
    words = jnp.array(words, jnp.int32)
    head = target_head(target, words).astype(jnp.float32)
    return Eagle(network, block, words, head)


# A draft model that learns
# -------------------------

@as_drafter("block", data=("model",))
class DraftLearner(DraftModel):
    """A draft model that chapter 7's trainer can teach.

    Args:
        model: the smaller model.
        block: tokens of a verification, one more than there are drafts.

    Source: Leviathan et al. 2023, Chen et al. 2023; that it learns from what
    the target writes is chapter 7's rule.
    """

    model: Transformer
    block: int = 4

    @classmethod
    def new(
        cls,
        target: Transformer,
        layers: int = 2,
        hidden_size: int = 192,
        block: int = 4,
        seed: int = 0,
    ) -> "DraftLearner":
        """A small model with random weights and the target's vocabulary.

        Args:
            hidden_size: a multiple of the target's head size.

        Raises:
            UserError: a setting is impossible.
        """
        c = target.config
        if type(hidden_size) is not int or hidden_size % c.head_dim:
            raise UserError(
                f"hidden_size is {hidden_size!r:.60}; expected a multiple of "
                f"{c.head_dim}, the size of the target's heads."
            )
        heads = hidden_size // c.head_dim
        wide = -(-hidden_size * c.intermediate_size // c.hidden_size)
        shape = replace(
            c, num_hidden_layers=layers, hidden_size=hidden_size,
            intermediate_size=wide, num_attention_heads=heads,
            num_key_value_heads=heads, tie_word_embeddings=True,
        )  # fmt: skip
        return cls(Transformer(shape, rngs=nnx.Rngs(seed)), block)

    def loss(
        self, model: Any, batch: Batch, key: Key[Array, "*rows"]
    ) -> tuple[Float[Array, ""], dict[str, Array]]:
        """The loss over whole responses; see `Learner`.

        It draws no anchors, and asks the target for nothing.
        """
        scores = self.model.logits(self.model(batch.tokens).hidden)
        labels = jnp.roll(batch.tokens, -1, axis=1)
        at = jnp.arange(labels.shape[1])
        there = at < batch.lengths[:, None] - 1
        anchors = there & (at >= batch.starts[:, None])
        parts = (x[:, :, None] for x in (scores, labels, anchors))
        loss, sums = block_loss(*parts, jnp.ones(1))
        right = (jnp.argmax(scores, axis=-1) == labels) & there
        later = jnp.pad(right, ((0, 0), (0, self.drafts)))
        ahead = [later[:, k : k + len(at)] for k in range(self.drafts)]
        run = jnp.cumprod(jnp.stack(ahead, axis=-1), axis=-1).sum(-1)
        accepted = jnp.where(anchors, 1 + run, 0).sum()
        return loss, sums | {"accepted": accepted}
