# ---
# jupyter:
#   dflash_lite:
#     module: dflash
#     public:
#     - DFlash
#     - load_drafter
#     - save_drafter
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
# # 10. DFlash
#
# A drafter that fills a whole block in one pass, because it reads what the
# target already knows: hidden states of some of its layers, injected as keys
# and values into a small stack of layers. Published checkpoints load.
#
# **The question.** A drafter that guesses seven tokens one after the other runs
# seven times. How can it run once, and still guess well?
#
# **Afterwards you can** say which position every row of the drafter has and
# what it may see, build the drafter from chapter 2's layers, read and write the
# published checkpoints, and find the mistakes that only acceptance shows.
#
# **Time.** 60 minutes to read and run, 30 minutes of exercises.

# %% tags=["export"]
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from dflash_lite.block_diffusion import Part, attend_to_parts
from dflash_lite.checkpoints import (
    ModelConfig,
    Tensors,
    UserError,
    hub_config,
    hub_tensors,
    is_number,
    read_flag,
    read_json,
)
from dflash_lite.decoding import DenseCache, Sampling, State
from dflash_lite.eagle import (
    BORROWED,
    HEADS,
    VOCABULARY,
    context_keys_values,
    drafter_folder,
    read_layers,
    read_matrix,
    read_vocabulary,
    target_head,
    to_target,
    vocabulary_offsets,
    write_context,
)
from dflash_lite.speculative import (
    Draft,
    Speculative,
    as_drafter,
    check_block,
    draw,
    each_position,
)
from dflash_lite.training import (
    Batch,
    block_labels,
    block_loss,
    block_mask,
    block_positions,
    draw_anchors,
    slot_weights,
    to_draft,
)
from dflash_lite.transformer import (
    Layer,
    Linear,
    RMSNorm,
    Transformer,
    fill,
    matmul,
    module_list,
    module_tensors,
    rotation,
    shape_entries,
    write_folder,
)

# %%
import dataclasses

import matplotlib.pyplot as plt
import optax

from dflash_lite.decoding import generate
from dflash_lite.exercises import check
from dflash_lite.training import Parts, example_responses, read_features
from dflash_lite.transformer import load

model, tokenizer = load("smollm2-135m")

# %% [markdown]
# ## What the target already knows
#
# When the target has read a text, it has done more than predict one token. The
# hidden states of its layers hold what it makes of the text, and often where
# it is going. EAGLE feeds such states to a small drafter that still guesses
# token by token. DFlash ([Chen et al. 2026](https://arxiv.org/abs/2602.06036))
# goes two steps further:
#
# - The states are not added to the drafter's input. They become *keys and
#   values* of every layer of the drafter, beside those of its own tokens.
# - The drafter's input is a *block*: the last token of the text, the *anchor*,
#   and behind it mask tokens. One pass fills them all.
#
# ### Taps
#
# Which layers? Those of `target_layer_ids`, counted from 0; a *tap* is the
# residual stream that leaves such a layer. Where a config does not name them,
# they spread evenly over the target: from layer 1 to the third from the end.

# %% tags=["export"]
def default_taps(target_layers: int, draft_layers: int) -> tuple[int, ...]:
    """The layers of the target that a drafter watches if its config is silent.

    Source: z-lab's dflash 0.1.0, `build_target_layer_ids`.
    """
    if draft_layers == 1:
        return (target_layers // 2,)
    step = (target_layers - 4) / (draft_layers - 1)
    return tuple(round(1 + i * step) for i in range(draft_layers))


# %%
assert default_taps(36, 5) == (1, 9, 17, 25, 33)  # Qwen3-4B
assert default_taps(30, 3) == (1, 14, 27)  # SmolLM2, three layers

# %% [markdown]
# ## The shape of a drafter
#
# Its layers are Qwen3's, whatever the target is. What is its own stands in
# `dflash_config`. Some drafters have layers with a *sliding window*: a query
# sees keys less than so many positions away; such layers are causal inside the
# block, unless the config says otherwise.

# %% tags=["export"]
@dataclass(frozen=True)
class DFlashConfig:
    """The shape of a drafter."""

    layers: ModelConfig  # of its stack; vocab_size is the target's
    block_size: int  # tokens of a block it was trained with
    mask_token_id: int
    target_layer_ids: tuple[int, ...]  # counted from 0
    num_target_layers: int | None  # None: not said
    windows: tuple[int | None, ...]  # positions, for each layer; None: all
    causal: tuple[bool, ...]  # inside the block, for each layer
    draft_vocab_size: int | None = None  # None: the target's
    input_scale: float = 1.0  # of the embeddings
    output_scale: float = 1.0  # of the logits
    softcap: float = 0.0  # of the logits; 0: none

    def __post_init__(self) -> None:
        ids, count = self.target_layer_ids, self.num_target_layers
        check_block(self.block_size)
        end = math.inf if count is None else count
        if not ids or not all(type(i) is int and 0 <= i < end for i in ids):
            raise UserError(
                f"target_layer_ids is {list(ids)}; expected layers from 0 on, "
                f"below num_target_layers, {count}."
            )
        mask, vocab = self.mask_token_id, self.layers.vocab_size
        if type(mask) is not int or not 0 <= mask < vocab:
            raise UserError(
                f"mask_token_id is {mask!r}; expected a token from 0 to "
                f"{vocab - 1}."
            )
        scales = {"input_embedding_scale": self.input_scale,
                  "output_multiplier": self.output_scale}  # fmt: skip
        for name, value in scales.items():
            if not is_number(value) or value <= 0:
                raise UserError(
                    f"{name} is {value!r:.60}; expected a number above 0."
                )
        if not is_number(self.softcap) or self.softcap < 0:
            raise UserError(
                f"final_logit_softcapping is {self.softcap!r:.60}; expected a "
                "number above 0, or null."
            )


# %% [markdown]
# Published configs come in two layouts. z-lab's own is a Qwen3 config with a
# `dflash_config`. That of vLLM's *speculators* wraps it, and counts its layers
# from 1: the most common mistake in porting a drafter, and a silent one. Both
# are read; options that this package does not compute are refused by name.

# %% tags=["export"]
UNKNOWN_OPTIONS = (
    "attention_sink_bias",
    "conv_kernel_size",
    "conv_group_size",
    "selector_rank",
    "selector_top_k",
    "sample_from_anchor",
)


def read_config(data: Mapping[str, Any]) -> DFlashConfig:
    """The shape of a drafter from its `config.json`, of either layout.

    Raises:
        UserError: an entry is missing, impossible, or not known here.

    Source: the configs that z-lab's dflash 0.1.0 and vLLM's speculators 0.9
    read.
    """
    if data.get("speculators_model_type"):
        data = unwrap(data)
    own = data.get("dflash_config")
    if not isinstance(own, Mapping):
        raise UserError(
            "config.json has no dflash_config; it is no DFlash drafter."
        )
    get = lambda name, default=None: own.get(name, data.get(name, default))
    unknown = [name for name in UNKNOWN_OPTIONS if get(name)]
    if unknown:
        raise UserError(
            f"The drafter needs {unknown[0]}, which this package does not "
            "compute. Expected a drafter of the first DFlash."
        )
    whole = {"model_type": "qwen3", "use_sliding_window": False}
    layers = hub_config({**data, **whole})
    count, targets = layers.num_hidden_layers, get("num_target_layers")
    ids = get("target_layer_ids")
    least = 5 if ids is None else 1  # that taps can spread over
    known = type(targets) is int and targets >= least
    if not known and (targets is not None or ids is None):
        raise UserError(
            f"num_target_layers is {targets!r}; expected a whole number of "
            f"{least} or more, or target_layer_ids alone."
        )
    taps = (
        default_taps(targets, count)
        if ids is None
        else read_layers("target_layer_ids", ids)
    )
    windows, causal = read_windows(data, own, count)
    size, softcap = get("draft_vocab_size"), get("final_logit_softcapping")
    return DFlashConfig(
        layers,
        block_size=get("block_size", 16),
        mask_token_id=get("mask_token_id"),
        target_layer_ids=taps,
        num_target_layers=targets,
        windows=windows,
        causal=causal,
        draft_vocab_size=None if size == layers.vocab_size else size,
        input_scale=get("input_embedding_scale", 1.0),
        output_scale=get("output_multiplier", 1.0),
        softcap=0.0 if softcap is None else softcap,
    )


# %% tags=["export"]
def read_windows(
    data: Mapping[str, Any], own: Mapping[str, Any], count: int
) -> tuple[tuple[int | None, ...], tuple[bool, ...]]:
    """The window and the causal rule of each layer."""
    kinds, slide = data.get("layer_types"), read_flag(own, "use_swa")
    if kinds is None:
        kinds = [LAYER_TYPES[slide]] * count
    if not isinstance(kinds, list) or any(k not in LAYER_TYPES for k in kinds):
        raise UserError(
            f"layer_types is {kinds!r:.60}; expected a list of "
            f"{' and '.join(LAYER_TYPES)}."
        )
    if len(kinds) != count:
        raise UserError(
            f"layer_types has {len(kinds)} entries; expected {count}, one for "
            "each layer."
        )
    size = own.get("swa_window_size") if slide else None
    if read_flag(data, "use_sliding_window"):
        size = data.get("sliding_window")
    if size is not None and (type(size) is not int or size < 1):
        raise UserError(
            f"The sliding window is {size!r}; expected a whole number of 1 or "
            "more."
        )
    slides = [kind == LAYER_TYPES[1] for kind in kinds]
    says = {"causal": own.get("causal", data.get("is_causal"))}
    causal = slides
    if says["causal"] is not None:
        causal = [read_flag(says, "causal")] * count
    return tuple(size if s else None for s in slides), tuple(causal)


LAYER_TYPES = ("full_attention", "sliding_attention")


def unwrap(data: Mapping[str, Any]) -> dict[str, Any]:
    """A config of the speculators layout in z-lab's."""
    kind = data["speculators_model_type"]
    layers = data.get("transformer_layer_config")
    ids = data.get("aux_hidden_state_layer_ids")
    if kind != "dflash" or not isinstance(layers, Mapping) or not ids:
        raise UserError(
            f"speculators_model_type is {kind!r}; expected 'dflash', with a "
            "transformer_layer_config and aux_hidden_state_layer_ids."
        )
    taps = read_layers("aux_hidden_state_layer_ids", ids, first=1)
    own: dict[str, Any] = {"target_layer_ids": list(taps)}
    if read_flag(data, "sliding_window_non_causal"):
        own["causal"] = False
    names = "block_size mask_token_id draft_vocab_size sample_from_anchor"
    own |= {name: data[name] for name in names.split() if name in data}
    return {**layers, "dflash_config": own}


# %%
qwen3_4b = {
    "vocab_size": 151936, "hidden_size": 2560, "intermediate_size": 9728,
    "num_hidden_layers": 5, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128,
    "max_position_embeddings": 40960, "rope_theta": 1_000_000,
    "block_size": 16, "num_target_layers": 36,
    "dflash_config": {"mask_token_id": 151669},
}  # fmt: skip
published = read_config(qwen3_4b)
print("taps", published.target_layer_ids, "windows", published.windows)

# %% [markdown]
# ## What a row may see
#
# As in chapter 9, a query of the block sees the context, which lies in a cache,
# and the block, which is new in every step, in one softmax; and the plug stores
# nothing. New are layers that do not see everything.
#
# | query | sees of the context | sees of the block |
# |---|---|---|
# | full layer | all rows before the anchor | all rows, both ways |
# | causal layer | all rows before the anchor | rows up to its own |
# | sliding layer | rows less than W positions back | rows less than W away |

# %% tags=["export"]
def near(
    queries: Int[Array, "batch queries"],
    keys: Int[Array, "batch keys"],
    window: int | None,
    causal: bool,
) -> Bool[Array, "batch queries keys"]:
    """Which keys a query may see, by their positions."""
    ahead = keys[:, None] - queries[..., None]
    seen = (ahead <= 0) if causal else jnp.ones_like(ahead, bool)
    return seen if window is None else seen & (jnp.abs(ahead) < window)


@dataclass(frozen=True)
class BlockCache:
    """A plug: a block sees the context and itself; nothing is stored.

    Args:
        config: of the drafter.
        context: keys and values of the positions before the anchor.
        anchors: position of each row's anchor.
    """

    config: DFlashConfig
    context: DenseCache
    anchors: Int[Array, "batch"]

    def attend(
        self,
        layer: int,
        q: Float[Array, "batch block heads head_dim"],
        k: Float[Array, "batch block kv_heads head_dim"],
        v: Float[Array, "batch block kv_heads head_dim"],
        positions: Int[Array, "batch block"],
    ) -> tuple[Float[Array, "batch block heads head_dim"], "BlockCache"]:
        """Attend to context and block; see `Cache`."""
        rule = self.config.windows[layer], self.config.causal[layer]
        kept = self.context.keys[layer], self.context.values[layer]
        index = jnp.arange(kept[0].shape[2])[None]
        there = (index < self.anchors[:, None])[:, None]
        before = Part(*kept, there & near(positions, index, *rule))
        own = near(positions, positions, *rule)
        block = Part(k.swapaxes(1, 2), v.swapaxes(1, 2), own)
        return attend_to_parts(q, [before, block]), self


# %% mystnb={"image": {"alt": "Three masks side by side for a block of eight rows behind a context of twelve positions. Full: every row sees everything. Causal: inside the block each row sees up to itself. Sliding with a window of six: a diagonal band that leaves the early context out."}}
rules = {"full": (None, False), "causal": (None, True), "sliding": (6, True)}
fig, axes = plt.subplots(1, 3, figsize=(9, 2), sharey=True)
rows = 12 + jnp.arange(8)[None]
for ax, (name, rule) in zip(axes, rules.items()):
    ax.imshow(near(rows, jnp.arange(20)[None], *rule)[0], cmap="cividis")
    ax.axvline(11.5, color="white")
    ax.set(title=name, xlabel="position of the key")
_ = axes[0].set(ylabel="row of the block")

# %% [markdown]
# ## The network
#
# `fc` fuses the taps of a position into one vector, and a norm brings it to the
# scale of a layer's input. Each layer makes keys and values of it with its own
# projections. A context row has no query, no output and no MLP: what it makes
# depends on nothing but the target's states there, so it can be kept for good.

# %% tags=["export"]
class DraftNetwork(nnx.Module):
    """The layers of a drafter; embedding and head are the target's.

    Args:
        config: its shape.
        dtype: the type of parameters and activations.
        rngs: random state for the initial weights.

    Source: DFlash (Chen et al. 2026), section 3; z-lab's dflash 0.1.0 is
    matched to rounding.
    """

    def __init__(
        self, config: DFlashConfig, *, dtype: Any = jnp.float32, rngs: nnx.Rngs
    ):
        c, options = config.layers, dict(dtype=dtype, rngs=rngs)
        norm = dict(eps=c.rms_norm_eps, dtype=dtype)
        wide = len(config.target_layer_ids) * c.hidden_size
        self.config = config
        self.fc = Linear(wide, c.hidden_size, **options)
        self.hidden_norm = RMSNorm(c.hidden_size, **norm)
        layers = [Layer(c, **options) for _ in range(c.num_hidden_layers)]
        self.layers = module_list(layers)
        self.norm = RMSNorm(c.hidden_size, **norm)

    def fuse(
        self, taps: Sequence[Float[Array, "batch tokens hidden"]]
    ) -> Float[Array, "batch tokens hidden"]:
        """One vector for each position, from the target's taps."""
        dtype = self.fc.weight.dtype
        (x,) = self.fc(jnp.concatenate(taps, axis=-1).astype(dtype))
        return self.hidden_norm(x)

    def keys_and_values(
        self,
        fused: Float[Array, "batch tokens hidden"],
        positions: Int[Array, "batch tokens"],
    ) -> list[tuple[Float[Array, "batch tokens kv_heads head_dim"], ...]]:
        """What each layer makes of context rows: (k, v)."""
        c = self.config.layers
        by = rotation(c.rope, c.head_dim, positions)
        parts = [layer.self_attn for layer in self.layers]
        return [context_keys_values(part, fused, by) for part in parts]

    def __call__(
        self,
        x: Float[Array, "batch block hidden"],
        positions: Int[Array, "batch block"],
        cache: Any,
    ) -> Float[Array, "batch block hidden"]:
        """The hidden states of a block, after the final norm."""
        c = self.config.layers
        by = rotation(c.rope, c.head_dim, positions)
        for i, layer in enumerate(self.layers):
            x, _ = layer(x, i, by, positions, cache)
        return self.norm(x)


# %% [markdown]
# The published drafter of Qwen3-4B has this many parameters:

# %%
network = nnx.eval_shape(lambda: DraftNetwork(published, rngs=nnx.Rngs(0)))
sizes = [x.size for x in jax.tree.leaves(nnx.state(network))]
print(f"{sum(sizes):,}")
assert sum(sizes) == 537_427_200

# %% [markdown]
# ### Positions
#
# A context row has the position of its token. The anchor's position is that of
# the first place whose state the target has not computed, and the masks follow.
# Context and block share no position: the anchor's own state does not exist
# yet. A port that gave the block the positions of the last context rows would
# run, and accept less.
#
# | place | 0 … n − 1 | n | n + 1 … |
# |---|---|---|---|
# | token | text | anchor | mask |
# | state of the target | yes | not yet | no |
# | in the drafter | key and value | query, key and value | the same |
#
# And slot k guesses the token *at* its own place, not the one behind it: a mask
# is filled in. The anchor's output says nothing and is not used.
#
# ## The drafter
#
# It fits chapter 6's protocol. Its memory is a cache of context rows only:
# after each verification it takes the taps of the rows that count, and writes
# their keys and values at their positions, by chapter 8's `write_context`.

# %% tags=["export"]
@as_drafter("block", "anchors", data=("network", "vocabulary", "head"))
class DFlash(Speculative):
    """Drafts a block in one pass, from hidden states of the target.

    Args:
        network: its layers.
        block: tokens of a verification, one more than there are drafts; at
            most the block it was trained with.
        vocabulary: the target's tokens that it can draft, rising; None for
            all.
        head: a row for each of them; None takes rows of the target's head.
        anchors: places that training draws from each text.

    Source: DFlash (Chen et al. 2026), sections 3 and 4.
    """

    network: DraftNetwork
    block: int
    vocabulary: Int[Array, "draft_vocab"] | None = None
    head: Float[Array, "draft_vocab hidden"] | None = None
    anchors: int = 64
    reads: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_block(self.block)

    @property
    def taps(self) -> tuple[int, ...]:
        """The layers of the target that it watches."""
        return self.network.config.target_layer_ids

    def check(self, model: Transformer) -> None:
        """Refuse a target that it was not made for; see `check_target`."""
        super().check(model)
        check_target(self.network.config, model.config)
        largest = self.network.config.block_size
        if self.block > largest:
            raise UserError(
                f"block is {self.block}; expected at most {largest}, which "
                "this drafter was trained with."
            )

    def begin(
        self, model: Transformer, batch: int, capacity: int
    ) -> DenseCache:
        """A cache without context."""
        config, dtype = self.network.config, self.network.fc.weight.dtype
        return DenseCache.empty(config.layers, batch, capacity, dtype)

    def observe(
        self,
        model: Transformer,
        memory: DenseCache,
        tokens: Int[Array, "batch tokens"],
        positions: Int[Array, "batch tokens"],
        counted: Bool[Array, "batch tokens"],
        tapped: tuple[Float[Array, "batch tokens hidden"], ...],
    ) -> DenseCache:
        """Add context rows; see `Speculative.observe`."""
        fused = self.network.fuse(tapped)
        new = self.network.keys_and_values(fused, positions)
        return write_context(memory, new, positions, counted)

    def logits(
        self, model: Transformer, hidden: Float[Array, "*rest hidden"]
    ) -> Float[Array, "*rest draft_vocab"]:
        """Scores of the tokens that it can draft, in float32."""
        config, head = self.network.config, self.head
        scale, cap = config.output_scale, config.softcap
        if head is None:
            head = target_head(model, self.vocabulary)
        flat = hidden.reshape(-1, hidden.shape[-1]).astype(head.dtype)
        scores = matmul(flat, head).astype(jnp.float32) * scale
        scores = scores.reshape(*hidden.shape[:-1], -1)
        return jnp.tanh(scores / cap) * cap if cap > 0 else scores

    def draft(
        self, model: Transformer, state: State, sampling: Sampling, mode: str
    ) -> tuple[Draft, State]:
        """One pass over the anchor and the masks behind it."""
        anchors = state.lengths - 1
        positions = anchors[:, None] + jnp.arange(self.block)
        last = jnp.take_along_axis(state.tokens, positions[:, :1], axis=1)
        x = self.embed(model, last)
        memory = state.progress.memory
        view = BlockCache(self.network.config, memory, anchors)
        hidden = self.network(x, positions, view)[:, 1:]
        logits = self.logits(model, hidden)
        return self.choose(logits, state.lengths, sampling, mode, model), state

    def loss(
        self, model: Transformer, batch: Batch, key: Key[Array, "*rows"]
    ) -> tuple[Float[Array, ""], dict[str, Array]]:
        """The loss of a batch of texts; see `Learner`."""
        anchors, valid = draw_anchors(key, batch, self.anchors)
        labels, there = block_labels(
            batch.tokens, anchors, valid, self.block, batch.lengths
        )
        hidden = self.blocks(model, batch, anchors, valid)[:, :, 1:]
        scores = self.logits(model, hidden)
        labels = to_draft(labels, self.vocabulary)
        return block_loss(scores, labels, there, slot_weights(self.block))

    def blocks(
        self,
        model: Transformer,
        batch: Batch,
        anchors: Int[Array, "batch anchors"],
        valid: Bool[Array, "batch anchors"],
    ) -> Float[Array, "batch anchors block hidden"]:
        """The hidden states of many blocks of each text, in one pass."""
        length, network = batch.tokens.shape[1], self.network
        at = jnp.broadcast_to(jnp.arange(length), batch.tokens.shape)
        context = network.keys_and_values(network.fuse(batch.features), at)
        mask = block_mask(anchors, valid, length, self.block)[..., :length]
        view = TrainingCache(network.config, context, mask, self.block)
        first = jnp.take_along_axis(batch.tokens, anchors, axis=1)
        x = self.embed(model, first[..., None])
        x = x.reshape(len(x), -1, x.shape[-1])
        hidden = network(x, block_positions(anchors, self.block), view)
        return hidden.reshape(*anchors.shape, self.block, -1)

    def embed(
        self, model: Transformer, anchors: Int[Array, "*rest 1"]
    ) -> Float[Array, "*rest block hidden"]:
        """The input of a block: the anchor's embedding, and the mask's."""
        config, table = self.network.config, model.embed_tokens[...]
        masks = ((0, 0),) * (anchors.ndim - 1) + ((0, self.drafts),)
        tokens = jnp.pad(anchors, masks, constant_values=config.mask_token_id)
        x = table[tokens].astype(self.network.fc.weight.dtype)
        return x * config.input_scale

    def choose(
        self,
        logits: Float[Array, "batch drafts draft_vocab"],
        lengths: Int[Array, "batch"],
        sampling: Sampling,
        mode: str,
        model: Transformer,
    ) -> Draft:
        """A token for each slot, each drawn on its own."""
        batch, drafts, size = logits.shape
        how, positions = each_position(sampling, lengths, drafts)
        flat = logits.reshape(-1, size)
        drawn = draw(flat, positions, how, mode)
        vocab = model.config.vocab_size
        tokens, chances = to_target(*drawn, self.vocabulary, vocab)
        if chances is not None:
            chances = chances.reshape(batch, drafts, -1)
        counts = jnp.full(batch, drafts)
        return Draft(tokens.reshape(batch, drafts), counts, chances)


# %% [markdown]
# ### What it learns from
#
# Chapter 7 says what a drafter learns from: many anchors of one text in one
# pass, each with its own block, and a mask that leaks nothing. The context is
# the same for all blocks of a text, so its keys and values are made once. One
# softmax again, over the context and the rows of the own block.

# %% tags=["export"]
@dataclass(frozen=True)
class TrainingCache:
    """A plug: the blocks of a text see the context before their anchor.

    Args:
        config: of the drafter.
        context: of each layer, from `DraftNetwork.keys_and_values`.
        mask: which context rows a block's rows see.
        block: tokens of each block.
    """

    config: DFlashConfig
    context: list[tuple[Float[Array, "batch tokens kv_heads head_dim"], ...]]
    mask: Bool[Array, "batch queries tokens"]
    block: int

    def attend(
        self,
        layer: int,
        q: Float[Array, "batch queries heads head_dim"],
        k: Float[Array, "batch queries kv_heads head_dim"],
        v: Float[Array, "batch queries kv_heads head_dim"],
        positions: Int[Array, "batch queries"],
    ) -> tuple[Float[Array, "batch queries heads head_dim"], "TrainingCache"]:
        """Attend to context and own block; see `Cache`."""
        rule = self.config.windows[layer], self.config.causal[layer]
        keys, values = self.context[layer]
        batch, length, heads, size = keys.shape
        split = lambda x, *rest: x.reshape(batch, -1, self.block, *rest, size)
        groups = q.shape[2] // heads
        q, k, v = split(q, heads, groups), split(k, heads), split(v, heads)
        before = jnp.einsum("banhgd,bthd->bhgant", q, keys)
        own = jnp.einsum("banhgd,bamhd->bhganm", q, k)
        at = jnp.arange(length)[None]
        seen = self.mask & near(positions, at, *rule)
        seen = seen.reshape(batch, 1, 1, -1, self.block, length)
        at = positions.reshape(-1, self.block)
        inside = near(at, at, *rule).reshape(batch, 1, 1, *k.shape[1:3], -1)
        hide = lambda scores, seen: jnp.where(seen, scores, -jnp.inf)
        scores = [hide(before, seen), hide(own, inside)]
        scores = jnp.concatenate(scores, -1).astype(jnp.float32) * size**-0.5
        weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
        mixed = jnp.einsum("bhgant,bthd->banhgd", weights[..., :length], values)
        mixed += jnp.einsum("bhganm,bamhd->banhgd", weights[..., length:], v)
        return mixed.reshape(*positions.shape, -1, size), self


# %% [markdown]
# A drafter reads embedding, head and hidden states of one target. On another of
# the same shape it would run, and guess at random. What can be checked is
# checked.

# %% tags=["export"]
def check_target(config: DFlashConfig, target: ModelConfig) -> None:
    """Refuse a target whose shape a drafter was not made for.

    Raises:
        UserError: it says what differs, and both values.
    """
    pairs = {
        "hidden_size": (config.layers.hidden_size, target.hidden_size),
        "vocab_size": (config.layers.vocab_size, target.vocab_size),
        "layers": (config.num_target_layers, target.num_hidden_layers),
    }
    if config.num_target_layers is None:
        deepest = max(config.target_layer_ids) + 1
        pairs["layers"] = deepest, max(deepest, target.num_hidden_layers)
    for name, (ours, theirs) in pairs.items():
        if ours != theirs:
            raise UserError(
                f"The drafter was made for a target with {name} {ours}; this "
                f"one has {theirs}. Load the drafter of this target."
            )


# %% [markdown]
# ## Checkpoints
#
# A published drafter has $11 L + 3$ tensors for $L$ layers, 58 for five, under
# the names of Qwen3 without the prefix `model.`, and no embedding and no head.

# %% tags=["export"]
def open_drafter(
    folder: Path, target: Transformer, block: int | None, dtype: Any
) -> DFlash:
    """The drafter in a folder, of z-lab's or of the speculators layout.

    Raises:
        UserError: a file is missing or damaged, is no drafter, or that of
            another target.
    """
    data = read_json(folder / "config.json")
    if not data:
        raise UserError(f"{folder} has no config.json; it is no drafter.")
    config = read_config(data)
    check_target(config, target.config)
    tensors = hub_tensors(folder)
    other = (*BORROWED, *HEADS, *VOCABULARY)
    own = {n: r for n, r in tensors.readers.items() if n not in other}
    make = lambda dtype: DraftNetwork(config, dtype=dtype, rngs=nnx.Rngs(0))
    network = fill(make, Tensors(own), config.layers, dtype, prefix="")
    block, size = block or config.block_size, config.draft_vocab_size
    shape = config.layers.vocab_size, config.layers.hidden_size
    words = read_vocabulary(tensors, size, shape[0])
    if words is None:
        return DFlash(network, block)
    same, shape = target_head(target, words), (size, shape[1])
    head = read_matrix(tensors, HEADS[0], shape, same, dtype)
    return DFlash(network, block, words, same if head is None else head)


# %% [markdown]
# A reduced vocabulary is read as in chapter 8. Files of the speculators layout
# bring the rows of its head; ours take them from the target.

# %% tags=["export"]
def load_drafter(
    name_or_path: str | os.PathLike,
    target: Transformer,
    block: int | None = None,
    dtype: Any = None,
) -> DFlash:
    """Load the DFlash drafter of a target.

    Args:
        name_or_path: a folder in z-lab's or in the speculators layout, weights
            of ours such as "tiny-dflash", or a Hub id "owner/name".
        target: the model that it drafts for.
        block: tokens of a verification; by default what it was trained with.
        dtype: "float32" or "bfloat16"; by default that of the target.

    Raises:
        UserError: nothing is there, or it does not fit; the message says why.
    """
    dtype = target.embed_tokens.dtype if dtype is None else dtype
    folder = drafter_folder(name_or_path, "z-lab/Qwen3-4B-DFlash-b16")
    found = open_drafter(folder, target, block, dtype)
    found.check(target)
    return found


# %% tags=["export"]
def save_drafter(
    drafter: DFlash, folder: str | os.PathLike, dtype: Any = "bfloat16"
) -> None:
    """Write a drafter in z-lab's layout.

    Args:
        folder: is made if need be; `config.json` and `model.safetensors` in it
            are replaced when both are written whole.
        dtype: the type to write; "float32" or "bfloat16".
    """
    config = drafter.network.config
    tensors = module_tensors(drafter.network, config.layers, dtype)
    if drafter.vocabulary is not None:
        tensors["d2t"] = vocabulary_offsets(drafter.vocabulary)
    if drafter.head is not None:
        tensors[HEADS[0]] = np.asarray(drafter.head).astype(jnp.dtype(dtype))
    write_folder(folder, tensors, write_config(config))


# %% tags=["export"]
def write_config(config: DFlashConfig) -> dict[str, Any]:
    """The `config.json` of a drafter, in z-lab's layout."""
    slides = [size is not None for size in config.windows]
    sizes = [size for size in config.windows if size is not None]
    kinds = [LAYER_TYPES[s] for s in slides]
    own = {
        "block_size": config.block_size,
        "mask_token_id": config.mask_token_id,
        "target_layer_ids": list(config.target_layer_ids),
    }
    options = {
        "draft_vocab_size": (config.draft_vocab_size, None),
        "input_embedding_scale": (config.input_scale, 1.0),
        "output_multiplier": (config.output_scale, 1.0),
        "final_logit_softcapping": (config.softcap, 0.0),
    }
    own |= {n: value for n, (value, usual) in options.items() if value != usual}
    usual = list(config.causal) == slides
    rule = {} if usual else {"is_causal": config.causal[0]}
    return shape_entries(config.layers) | rule | {
        "architectures": ["DFlashDraftModel"],
        "num_target_layers": config.num_target_layers,
        "layer_types": kinds,
        "use_sliding_window": any(slides),
        "sliding_window": sizes[0] if sizes else None,
        "dflash_config": own,
    }  # fmt: skip


# %% [markdown]
# ## A new drafter
#
# Before it is trained, a drafter's numbers are random. Embedding and head it
# has from the target; a mask token needs a row of the embedding, and any token
# that no text contains will do.
#
# One number is not left to chance. What enters a block are rows of the
# embedding, and the residual stream carries them to the head, which knows them
# well: the first guesses would be sure, and wrong. So the final norm begins
# small, such that the logits of a state of ordinary size spread by about one.

# %% tags=["export"]
def new_drafter(
    target: Transformer,
    mask_token_id: int,
    layers: int = 3,
    block: int = 8,
    taps: Sequence[int] | None = None,
    vocabulary: Int[np.ndarray, "draft_vocab"] | None = None,
    seed: int = 0,
) -> DFlash:
    """A drafter with random weights, of the target's width, in float32.

    Args:
        mask_token_id: a token that no text contains.
        layers: how many.
        block: tokens of a block.
        taps: layers of the target to watch; by default `default_taps`.
        vocabulary: the tokens that it can draft, rising; None for all.

    Raises:
        UserError: a setting is impossible.
    """
    shape, count = target.config, target.config.num_hidden_layers
    taps = default_taps(count, layers) if taps is None else tuple(taps)
    config = DFlashConfig(
        replace(
            shape, model_type="qwen3", num_hidden_layers=layers,
            attention_bias=False, mlp_bias=False,
        ),
        block_size=block,
        mask_token_id=mask_token_id,
        target_layer_ids=taps,
        num_target_layers=count,
        windows=(None,) * layers,
        causal=(False,) * layers,
        draft_vocab_size=None if vocabulary is None else len(vocabulary),
    )  # fmt: skip
    network = DraftNetwork(config, rngs=nnx.Rngs(seed))
    head = target_head(target, None).astype(jnp.float32)
    spread = jnp.sqrt(jnp.mean(head * head) * shape.hidden_size)
    network.norm.weight[...] = network.norm.weight[...] / spread
    if vocabulary is None:
        return DFlash(network, block)
    return DFlash(network, block, jnp.asarray(vocabulary, jnp.int32))


# %% [markdown]
# ## On the real model: one text by heart
#
# A drafter of one layer for SmolLM2. The mask token is one that no text of ours
# contains; the head scores only the tokens that the answers contain.

# %%
responses = example_responses(model, tokenizer)
texts = [responses.of(name).texts[0] for name in ("math", "code", "chat")]
for text in texts:
    print(repr(tokenizer.decode(text.tokens[text.start :].tolist()))[:70])

# %%
words = np.unique(np.concatenate([text.tokens for text in texts]))
MASK = tokenizer.encode("<file_sep>", add_special_tokens=False)[0]
assert MASK not in words
drafter = new_drafter(model, MASK, layers=1, block=8, vocabulary=words)
drafter = dataclasses.replace(drafter, anchors=32)
print("taps", drafter.taps)

# %%
length = 128
tokens = np.zeros((3, length), np.int32)
for row, text in zip(tokens, texts):
    row[: len(text.tokens)] = text.tokens[:length]
lengths = jnp.array([min(len(text.tokens), length) for text in texts])
starts = jnp.array([text.start for text in texts])
features = read_features(model, jnp.array(tokens), drafter.taps)
batch = Batch(jnp.array(tokens), lengths, starts, features)

# %% [markdown]
# Sixty steps on these three texts. A drafter that learns three texts by heart is
# of no use to anybody, but it shows that all parts work together: if a
# position, a tap or a mask were wrong, decoding would accept less than training
# promises.

# %%
parts = Parts.of(drafter)
rates = optax.warmup_cosine_decay_schedule(0, 3e-3, 5, 60)
change = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rates))


@jax.jit
def learn(params, state, key):
    loss = lambda p: parts.join(p).loss(model, batch, key)
    (_, sums), grads = jax.value_and_grad(loss, has_aux=True)(params)
    updates, state = change.update(grads, state, params)
    return optax.apply_updates(params, updates), state, sums


# %%
params, state = parts.params, change.init(parts.params)
curve = []
for step in range(60):
    key = jax.random.fold_in(jax.random.key(0), step)
    params, state, sums = learn(params, state, key)
    curve.append(float(sums["accepted"] / sums["anchors"]))
learned = parts.join(params)

# %% mystnb={"image": {"alt": "Acceptance length in training over sixty steps: it starts at 1 and climbs towards the block of 8."}}
fig, ax = plt.subplots(figsize=(7, 2.4))
ax.plot(curve)
ax.axhline(8, linestyle=":", color="gray")
_ = ax.set(xlabel="step", ylabel="acceptance length")

# %% [markdown]
# Now decode with it, from the prompt of the code. The text must be the same,
# and the number of steps small.

# %%
prompt = texts[1].tokens[: texts[1].start].tolist()
how = dict(max_new_tokens=64)
plain = generate(model, tokenizer, prompt, **how)
quick = generate(model, tokenizer, prompt, drafter=learned, **how)
assert quick.tokens == plain.tokens
per_step = quick.statistics.acceptance_length
assert per_step > 2

# %% tags=["nbval-ignore-output"]
print(f"{per_step:.1f} tokens a step")

# %% [markdown]
# ### Silent bugs
#
# Feed this drafter wrong features, and nothing fails. The text of a decoding
# would stay right, because the target checks every draft. Only the acceptance
# length tells.
#
# **Predict.** Which hurts more: taps that are off by one layer, or features
# that are off by one position?


# %%
@jax.jit
def accepted(features):
    key = jax.random.key(1)
    sums = learned.loss(model, batch._replace(features=features), key)[1]
    return sums["accepted"] / sums["anchors"]


def tapped(offset):
    layers = tuple(tap + offset for tap in drafter.taps)
    return read_features(model, batch.tokens, layers)


# %%
right = batch.features
features = {
    "as trained": right,
    "one layer later": tapped(1),
    "four layers later": tapped(4),
    "one position late": tuple(jnp.roll(x, 1, axis=1) for x in right),
    "none": tuple(jnp.zeros_like(x) for x in right),
}
lengths = {name: float(accepted(x)) for name, x in features.items()}

# %% mystnb={"image": {"alt": "Five bars of acceptance length. As trained about 6.5; one layer later about 5.5; four layers later about 4; one position late 1.3; without features 1.0."}}
fig, ax = plt.subplots(figsize=(7, 2.2))
ax.barh(list(lengths), list(lengths.values()))
ax.invert_yaxis()
_ = ax.set(xlabel="acceptance length, from 1 to 8")

# %%
names = "as trained", "one layer later", "four layers later", "none"
ordered = [lengths[name] for name in names]
assert ordered == sorted(ordered, reverse=True)
assert lengths["one position late"] < 2

# %% [markdown]
# A neighbouring layer says nearly the same, since every layer only adds to the
# residual stream. So this bug hides best: a few tenths of acceptance, no error,
# no wrong text. The features of a neighbouring position are worth little more
# than none. Chapter 11 has a museum of such bugs.

# %% [markdown]
# ## Exercises
#
# **10.1 What becomes context** (10 minutes). A block was verified at the
# position `anchor`, and `accepted` of its drafts agree. Return the positions
# whose states the target has now computed for good, and the next anchor.

# %% tags=["exercise"]
def after_verification(anchor: int, accepted: int) -> tuple[list[int], int]:
    """New context positions, and the position of the next anchor."""
    ### BEGIN SOLUTION
    following = anchor + accepted + 1
    return list(range(anchor, following)), following
    ### END SOLUTION


# %% tags=["check"]
@check(after_verification)
def _(f):
    rows, following = f(10, 3)
    assert 14 not in rows, "the bonus was not read yet: it has no state"
    assert 10 in rows, "the verification has read the anchor: it has one now"
    assert rows == [10, 11, 12, 13], "the anchor and the accepted drafts"
    assert following == 14, "the bonus is the next anchor"
    assert f(5, 0) == ([5], 6), "with nothing accepted the anchor still counts"


# %% [markdown]
# **10.2 Off by one** (5 minutes). A config of the speculators layout names the
# states that *enter* a layer, a state 0 being the embedding. Return the layers,
# counted from 0, whose *output* is meant.

# %% tags=["exercise"]
def tapped_layers(aux_hidden_state_layer_ids: list[int]) -> list[int]:
    """Layers of the target to tap."""
    ### BEGIN SOLUTION
    return [i - 1 for i in aux_hidden_state_layer_ids]
    ### END SOLUTION


# %% tags=["check"]
@check(tapped_layers)
def _(f):
    assert f([2, 10]) != [2, 10], "what enters layer 2 has left layer 1"
    assert f([2, 10]) != [3, 11], "what enters a layer has left the one before"
    assert f([2, 10, 18, 26, 34]) == [1, 9, 17, 25, 33]


# %% [markdown]
# **10.3 What a draft reads** (15 minutes). One draft reads the drafter's
# weights, the rows of the head, and the keys and values of the context. Return
# the bytes, at two for each number. For Qwen3-4B's drafter behind 8,192 tokens,
# which of the three is largest?

# %% tags=["exercise"]
def draft_bytes(config: DFlashConfig, parameters: int, context: int) -> int:
    """Bytes that a draft pass reads from memory, in bfloat16."""
    ### BEGIN SOLUTION
    c = config.layers
    head = c.vocab_size * c.hidden_size
    row = 2 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim
    return 2 * (parameters + head + context * row)
    ### END SOLUTION


# %% tags=["check"]
@check(draft_bytes)
def _(f):
    weights, head = 2 * sum(sizes), 2 * 151936 * 2560
    none, some = f(published, sum(sizes), 0), f(published, sum(sizes), 8192)
    assert none != weights, "the head is read too, though it is the target's"
    assert none == weights + head, "weights and head, two bytes a number"
    assert some != none + 5 * 8 * 128 * 8192 * 2, "keys and values: twice"
    assert some == none + 2 * 5 * 8 * 128 * 8192 * 2


# %% [markdown]
# ## Key points
#
# - The drafter reads hidden states of the target as keys and values, and fills
#   a block of masks in one pass.
# - Context are the positions strictly before the anchor. The anchor has no
#   state yet, and the bonus is the next anchor.
# - Only context rows are kept; a block's keys and values are good for one step.
# - Slot k guesses the token at its own place.
# - Taps count from 0 and mean a layer's output. Mistakes here are silent: the
#   text stays right, and acceptance falls.
#
# **Next:** chapter 11 puts the target on pages and the drafter beside it.
