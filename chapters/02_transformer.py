# ---
# jupyter:
#   dflash_lite:
#     module: transformer
#     public:
#     - Transformer
#     - load
#     - save_model
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
# # 2. The transformer
#
# The decoder that chapter 1's weights belong to, built from its parts: the
# Llama family and its close relative Qwen3, in Flax NNX, equal to the
# reference implementation up to rounding.
#
# **The question.** What does the model compute, exactly, and which of its
# parts will the later chapters need to get at?
#
# **Afterwards you can** write RMSNorm, rotary embedding, grouped-query
# attention and SwiGLU from their formulas, load real weights into them, look
# inside the running model, and say where its parameters and bytes are.
#
# **Time.** 40 minutes to read and run, 25 minutes of exercises.

# %% tags=["export"]
import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int
from safetensors.numpy import save_file

from dflash_lite.checkpoints import (
    Checkpoint,
    ModelConfig,
    RopeConfig,
    Tokenizer,
    UserError,
    open_checkpoint,
)

# %%
import matplotlib.pyplot as plt

from dflash_lite.exercises import check

# %% [markdown]
# ## A stream that layers add to
#
# Each token becomes a vector of `hidden_size` numbers. Thirty layers look at
# these vectors, one after the other, and each *adds* something to them. The
# sum so far is called the residual stream. At the end, the vector of a
# position is compared with the vector of every token in the vocabulary: the
# scores are the logits of the next token.
#
# A layer does two things. Attention moves information between positions; the
# MLP works on each position alone. Nothing else in the model moves
# information between positions, so attention is where caches come in.
#
# The real settings are small enough to keep in mind:

# %%
checkpoint = open_checkpoint("smollm2-135m")
config = checkpoint.config
for (
    name
) in "hidden_size num_hidden_layers num_attention_heads head_dim".split():
    print(f"{name:22}{getattr(config, name):>6}")

# %% [markdown]
# ## One product, and how many rows it has
#
# A linear layer is a matrix product. The weight is stored as the Hub stores
# it, one row for each output, and all tokens of all texts are the rows of one
# matrix.
#
# How many rows that is decides what the processor does. With one row, each
# weight is used once, and reading it takes the time. With hundreds, each is
# used hundreds of times, and computing takes the time. In between lie a few
# texts side by side, or a few guesses for one text (chapter 6). There XLA's
# CPU compiler chooses badly: it rearranges the weight in memory before it
# computes. A product of *two* pairs of matrices goes to another library,
# YNNPACK, which does not. So with a few rows we cut the weight into halves.
#
# Accelerators multiply float32 matrices in reduced precision unless they are
# told otherwise. We tell them: who asks for float32 gets float32.


# %% tags=["export"]
FEW_ROWS = 64  # up to here, halves are quicker on a CPU


def matmul(
    x: Float[Array, "m k"], w: Float[Array, "n k"]
) -> Float[Array, "m n"]:
    """x Wᵀ, in the full precision of its type on every device."""
    exact = jax.lax.Precision.HIGHEST if x.dtype == jnp.float32 else None
    rows, outputs = x.shape[0], w.shape[0]
    if not 1 < rows <= FEW_ROWS or outputs % 2:
        both_last = (((1,), (1,)), ((), ()))
        return jax.lax.dot_general(x, w, both_last, precision=exact)
    halves = w.reshape(2, outputs // 2, w.shape[1])
    twice = jnp.broadcast_to(x, (2, *x.shape))
    each = (((2,), (2,)), ((0,), (0,)))
    y = jax.lax.dot_general(halves, twice, each, precision=exact)
    return y.reshape(outputs, rows).T


# %% [markdown]
# The query, the key and the value of a token (below) are three products with
# the same input, and so are two products of the MLP. The cores must agree on
# every product that they share, and that costs time too. So we stack weights
# with the same input into one. `Linear` therefore takes several sizes, and
# returns one array for each.


# %% tags=["export"]
class Linear(nnx.Module):
    """y = x Wᵀ + b; with several sizes of output, one stacked product."""

    def __init__(
        self,
        inputs: int,
        *outputs: int,
        bias: bool = False,
        dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ):
        shape, normal = (sum(outputs), inputs), nnx.initializers.normal(0.02)
        self.outputs = outputs
        self.weight = nnx.Param(normal(rngs.params(), shape, dtype))
        self.bias = nnx.Param(jnp.zeros(shape[0], dtype)) if bias else None

    def __call__(
        self, x: Float[Array, "*rest inputs"]
    ) -> tuple[Float[Array, "*rest _"], ...]:
        """Apply to the last axis; one array for each size of output."""
        y = matmul(x.reshape(-1, x.shape[-1]), self.weight[...])
        y = y if self.bias is None else y + self.bias[...]
        y = y.reshape(*x.shape[:-1], -1)
        ends = np.cumsum(self.outputs)[:-1]
        return tuple(jnp.split(y, ends, axis=-1))


# %%
x = jax.random.normal(jax.random.key(1), (8, 64))
pair = Linear(64, 4, 6, rngs=nnx.Rngs(0))
a, b = pair(x)
assert (a.shape, b.shape) == ((8, 4), (8, 6))
assert np.allclose(jnp.hstack([a, b]), x @ pair.weight[...].T, atol=1e-6)

# %% [markdown]
# ## RMSNorm
#
# Sums grow. Before each sublayer the vector is brought to a standard length:
# divide by the root of the mean square, then scale each component by a learned
# weight ([Zhang and Sennrich 2019](https://arxiv.org/abs/1910.07467)):
#
# $$\operatorname{norm}(x)_i = w_i \, \frac{x_i}
# {\sqrt{\tfrac{1}{n} \sum_j x_j^2 + \varepsilon}}.$$
#
# The square is taken in float32 even in a bfloat16 model, and the result is
# rounded back *before* the weight is applied. The order matters for equality
# with the reference in bfloat16.


# %% tags=["export"]
class RMSNorm(nnx.Module):
    """Root-mean-square normalisation over the last axis."""

    def __init__(
        self, size: int, *, eps: float = 1e-6, dtype: Any = jnp.float32
    ):
        self.weight = nnx.Param(jnp.ones(size, dtype))
        self.eps = eps

    def __call__(
        self, x: Float[Array, "*rest size"]
    ) -> Float[Array, "*rest size"]:
        """Normalise; the statistics are float32."""
        wide = x.astype(jnp.float32)
        mean_square = jnp.mean(wide * wide, axis=-1, keepdims=True)
        narrow = (wide * jax.lax.rsqrt(mean_square + self.eps)).astype(x.dtype)
        return self.weight[...] * narrow


# %%
norm = RMSNorm(4)
x = jnp.array([3.0, -4.0, 0.0, 5.0])
print(norm(x))
assert np.allclose(jnp.mean(norm(x) ** 2), 1)
assert np.allclose(norm(x), norm(10 * x), atol=1e-5)

# %% [markdown]
# ## Positions are angles
#
# Attention compares a query with every key. Without help it cannot tell near
# from far. The rotary embedding ([Su et al. 2021](
# https://arxiv.org/abs/2104.09864)) turns pairs of numbers in q and k by an
# angle that grows with the position. The dot product of two turned vectors
# depends on the *difference* of their angles, so it knows the distance.
#
# Pair $i$ of a head with $d$ numbers turns by $\theta^{-2i/d}$ radians a token:
# the first pair quickly, the last very slowly.


# %% tags=["export"]
def rope_frequencies(
    rope: RopeConfig, head_dim: int
) -> tuple[np.ndarray, float]:
    """The angle per token of each pair, and a factor for cos and sin.

    Returns:
        (head_dim / 2,) radians per token, and the factor (1 except in YaRN).

    Source: RoFormer (Su et al. 2021), section 3.2; for the kinds "llama3" and
    "yarn" the functions below.
    """
    plain = rope.theta ** -(np.arange(0, head_dim, 2) / head_dim)
    if rope.kind == "linear":
        return plain / rope.factor, 1.0
    if rope.kind == "factors":
        return plain / np.asarray(rope.factors), 1.0
    if rope.kind == "llama3":
        return llama3_frequencies(plain, rope), 1.0
    if rope.kind == "yarn":
        return yarn_frequencies(plain, rope, head_dim), yarn_factor(rope)
    return plain, 1.0


# %%
angles, _ = rope_frequencies(config.rope, config.head_dim)
turn = 2 * np.pi / angles
print(
    f"one turn: pair 0 {turn[0]:.1f} tokens, last pair {turn[-1]:,.0f} tokens"
)

# %% [markdown]
# **Predict.** SmolLM2 was trained on at most 8,192 tokens. How many of its 32
# pairs never complete a turn?

# %%
never = int((turn > config.max_position_embeddings).sum())
print(never, "of", len(turn), "pairs")
assert 8 < never < 16

# %% [markdown]
# Such slow pairs are why a context can be stretched after training: Llama 3.1
# and YaRN slow the slow pairs further and leave the quick ones alone. Llama
# 3.1 decides by wavelength, with a smooth step between two bounds.


# %% tags=["export"]
def llama3_frequencies(plain: np.ndarray, rope: RopeConfig) -> np.ndarray:
    """Stretch as Llama 3.1 does: waves longer than the old context, by factor.

    Source: `_compute_llama3_parameters` of transformers, whose values are
    matched.
    """
    turns = rope.original_max_position_embeddings * plain / (2 * np.pi)
    low, high = rope.low_freq_factor, rope.high_freq_factor
    keep = np.clip((turns - low) / (high - low), 0, 1)
    return keep * plain + (1 - keep) * plain / rope.factor


def yarn_frequencies(
    plain: np.ndarray, rope: RopeConfig, head_dim: int
) -> np.ndarray:
    """Stretch as YaRN does: a ramp over the index of the pair.

    Source: YaRN (Peng et al. 2023), section 3.2, with the bounds of
    `_compute_yarn_parameters` of transformers.
    """

    def pair_with(turns: float) -> float:
        wave = rope.original_max_position_embeddings / (turns * 2 * math.pi)
        return head_dim * math.log(wave) / (2 * math.log(rope.theta))

    low, high = pair_with(rope.beta_fast), pair_with(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = (np.arange(head_dim // 2) - low) / max(high - low, 1e-3)
    keep = 1 - np.clip(ramp, 0, 1)
    return keep * plain + (1 - keep) * plain / rope.factor


def yarn_factor(rope: RopeConfig) -> float:
    """The factor of cos and sin that keeps YaRN's attention sharp."""
    if rope.attention_factor is not None:
        return rope.attention_factor
    return 0.1 * math.log(rope.factor) + 1 if rope.factor > 1 else 1.0


# %% [markdown]
# Cosines and sines are computed once for all layers, in float32: at position
# 8,000 an angle in bfloat16 would be off by whole turns.


# %% tags=["export"]
class Rotation(NamedTuple):
    """Cosine and sine of each pair's angle at each position."""

    cos: Float[Array, "batch tokens pairs"]
    sin: Float[Array, "batch tokens pairs"]


def rotation(
    rope: RopeConfig, head_dim: int, positions: Int[Array, "batch tokens"]
) -> Rotation:
    """The rotation at absolute positions, in float32."""
    frequencies, factor = rope_frequencies(rope, head_dim)
    angles = positions[..., None] * jnp.asarray(frequencies, jnp.float32)
    return Rotation(jnp.cos(angles) * factor, jnp.sin(angles) * factor)


def rotate(
    x: Float[Array, "batch tokens heads head_dim"], by: Rotation
) -> Float[Array, "batch tokens heads head_dim"]:
    """Turn the pairs (i, i + head_dim / 2) of every head.

    Source: RoFormer (Su et al. 2021), equation 34, with the pairing of
    transformers.
    """
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = by.cos[:, :, None], by.sin[:, :, None]
    turned = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
    return turned.astype(x.dtype)


# %% [markdown]
# The claim to check: only the distance counts. We turn a query and a key at
# positions 3 and 10, and again at 103 and 110.

# %%
q, k = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, config.head_dim))


def score(at: int, to: int) -> float:
    turns = [rotation(config.rope, 64, jnp.array([[p]])) for p in (at, to)]
    return float(jnp.sum(rotate(q, turns[0]) * rotate(k, turns[1])))


# %%
assert np.isclose(score(3, 10), score(103, 110), rtol=1e-4)
assert not np.isclose(score(3, 10), score(3, 11), rtol=1e-4)

# %% [markdown]
# ## Attention, with few keys for many queries
#
# A head mixes the values of all positions, weighted by how well their keys
# answer its query:
#
# $$\operatorname{attention}(q, K, V) =
# \operatorname{softmax}\!\left(\frac{q K^\top}{\sqrt d}\right) V.$$
#
# Keys and values must be remembered for every past token, so the model keeps
# few of them: SmolLM2 has nine query heads, and three heads of keys and values,
# each shared by three queries ([Ainslie et al. 2023](
# https://arxiv.org/abs/2305.13245)).
#
# The mask says which query sees which key. Softmax runs in float32.


# %% tags=["export"]
def attention(
    q: Float[Array, "batch queries heads head_dim"],
    k: Float[Array, "batch kv_heads keys head_dim"],
    v: Float[Array, "batch kv_heads keys head_dim"],
    mask: Bool[Array, "batch queries keys"],
) -> Float[Array, "batch queries heads head_dim"]:
    """Grouped-query attention; a query that sees no key gets zeros.

    Query heads h·g to h·g + g − 1 share the keys and values of head h.

    Source: Ainslie et al. 2023 (GQA), section 2.2.
    """
    batch, queries, heads, size = q.shape
    exact = jax.lax.Precision.HIGHEST if q.dtype == jnp.float32 else None
    kv_heads = k.shape[1]
    grouped = q.reshape(batch, queries, kv_heads, -1, size).swapaxes(1, 2)
    grouped = grouped.reshape(batch, kv_heads, -1, size)
    # q first: with k first, XLA's CPU compiler writes transposed copies of k, v
    last, outer = ((3,), (3,)), ((0, 1), (0, 1))
    scores = jax.lax.dot_general(grouped, k, (last, outer), precision=exact)
    scores = scores.astype(jnp.float32) * size**-0.5
    seen = jnp.repeat(mask, heads // kv_heads, axis=1)[:, None]
    lowest = jnp.finfo(scores.dtype).min
    weights = jax.nn.softmax(jnp.where(seen, scores, lowest), axis=-1)
    weights = jnp.where(seen, weights, 0).astype(v.dtype)
    rows = ((3,), (2,))
    mixed = jax.lax.dot_general(weights, v, (rows, outer), precision=exact)
    mixed = mixed.reshape(batch, kv_heads, queries, -1, size).swapaxes(1, 2)
    return mixed.reshape(q.shape)


# %% [markdown]
# ## The cache is a plug
#
# A layer computes q, k and v of the new tokens. What happens next depends on
# who runs the model. In training, the new tokens see each other and that is
# all. In decoding, they also see what came before, from a cache. In chapter 5
# the cache lies in pages.
#
# So the layer does not decide. It hands q, k and v to an object with one
# method, which stores what it wants and returns the attention's result. The
# forward pass is written once; every cache plugs in here.


# %% tags=["export"]
@runtime_checkable
class Cache(Protocol):
    """Where keys and values live; a pytree, passed through the forward pass."""

    def attend(
        self,
        layer: int,
        q: Float[Array, "batch tokens heads head_dim"],
        k: Float[Array, "batch tokens kv_heads head_dim"],
        v: Float[Array, "batch tokens kv_heads head_dim"],
        positions: Int[Array, "batch tokens"],
    ) -> tuple[Float[Array, "batch tokens heads head_dim"], "Cache"]:
        """Store k and v of one layer, attend with q, return both results."""
        ...


# %% [markdown]
# The simplest plug stores nothing. A token sees the tokens of this call whose
# position is not after its own.


# %% tags=["export"]
class NoCache(NamedTuple):
    """New tokens see each other, causally by position, and nothing else."""

    def attend(
        self,
        layer: int,
        q: Float[Array, "batch tokens heads head_dim"],
        k: Float[Array, "batch tokens kv_heads head_dim"],
        v: Float[Array, "batch tokens kv_heads head_dim"],
        positions: Int[Array, "batch tokens"],
    ) -> tuple[Float[Array, "batch tokens heads head_dim"], "NoCache"]:
        """Attend within the call; see `Cache`."""
        mask = positions[:, None, :] <= positions[:, :, None]
        return attention(q, k.swapaxes(1, 2), v.swapaxes(1, 2), mask), self


# %% [markdown]
# The layer's own part is short. Qwen3 normalises each head's q and k before
# they turn; Llama does not. The attributes carry the Hub's names, so that
# loading needs next to no table.


# %% tags=["export"]
class Attention(nnx.Module):
    """Projections, rotary embedding, and whatever the cache does."""

    def __init__(
        self, config: ModelConfig, *, dtype: Any = jnp.float32, rngs: nnx.Rngs
    ):
        c = config
        self.head_dim = c.head_dim
        queries = c.num_attention_heads * c.head_dim
        keys = c.num_key_value_heads * c.head_dim
        options = dict(bias=c.attention_bias, dtype=dtype, rngs=rngs)
        self.qkv_proj = Linear(c.hidden_size, queries, keys, keys, **options)
        self.o_proj = Linear(queries, c.hidden_size, **options)
        norms = c.model_type == "qwen3"
        norm = dict(eps=c.rms_norm_eps, dtype=dtype)
        self.q_norm = RMSNorm(c.head_dim, **norm) if norms else None
        self.k_norm = RMSNorm(c.head_dim, **norm) if norms else None

    def project(
        self, x: Float[Array, "batch tokens hidden"], by: Rotation
    ) -> tuple[Float[Array, "batch tokens _ head_dim"], ...]:
        """The heads of q, k and v; q and k normalised, where so, and turned."""
        split = (*x.shape[:2], -1, self.head_dim)
        q, k, v = (y.reshape(split) for y in self.qkv_proj(x))
        q = q if self.q_norm is None else self.q_norm(q)
        k = k if self.k_norm is None else self.k_norm(k)
        return rotate(q, by), rotate(k, by), v

    def __call__(
        self,
        x: Float[Array, "batch tokens hidden"],
        layer: int,
        by: Rotation,
        positions: Int[Array, "batch tokens"],
        cache: Cache,
    ) -> tuple[Float[Array, "batch tokens hidden"], Cache]:
        """Attend through the cache; return the result and the new cache."""
        q, k, v = self.project(x, by)
        mixed, cache = cache.attend(layer, q, k, v, positions)
        (y,) = self.o_proj(mixed.reshape(*x.shape[:2], -1))
        return y, cache


# %% [markdown]
# ## SwiGLU
#
# Most parameters sit in the MLP. Two projections widen the vector; one of
# them, through the smooth switch $\operatorname{silu}(z) = z\,\sigma(z)$, gates
# the other; a third brings the width back ([Shazeer 2020](
# https://arxiv.org/abs/2002.05202)).


# %% tags=["export"]
class MLP(nnx.Module):
    """SwiGLU: down(silu(gate(x)) · up(x)).

    Source: GLU variants improve transformer (Shazeer 2020), equation 6.
    """

    def __init__(
        self, config: ModelConfig, *, dtype: Any = jnp.float32, rngs: nnx.Rngs
    ):
        hidden, wide = config.hidden_size, config.intermediate_size
        options = dict(bias=config.mlp_bias, dtype=dtype, rngs=rngs)
        self.gate_up_proj = Linear(hidden, wide, wide, **options)
        self.down_proj = Linear(wide, hidden, **options)

    def __call__(
        self, x: Float[Array, "*rest hidden"]
    ) -> Float[Array, "*rest hidden"]:
        """Apply to each position alone."""
        gate, up = self.gate_up_proj(x)
        (y,) = self.down_proj(jax.nn.silu(gate) * up)
        return y


# %% [markdown]
# ## A layer
#
# Norm, attention, add; norm, MLP, add.


# %% tags=["export"]
class Layer(nnx.Module):
    """One decoder layer, with its norms before each part."""

    def __init__(
        self, config: ModelConfig, *, dtype: Any = jnp.float32, rngs: nnx.Rngs
    ):
        norm = dict(eps=config.rms_norm_eps, dtype=dtype)
        self.input_layernorm = RMSNorm(config.hidden_size, **norm)
        self.self_attn = Attention(config, dtype=dtype, rngs=rngs)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, **norm)
        self.mlp = MLP(config, dtype=dtype, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "batch tokens hidden"],
        layer: int,
        by: Rotation,
        positions: Int[Array, "batch tokens"],
        cache: Cache,
    ) -> tuple[Float[Array, "batch tokens hidden"], Cache]:
        """Add attention, then the MLP, to the residual stream."""
        mixed, cache = self.self_attn(
            self.input_layernorm(x), layer, by, positions, cache
        )
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x)), cache


# %% [markdown]
# ## The model
#
# The whole forward pass: look up embeddings, run the layers, normalise. Two
# things come out besides. The cache, with the new keys and values in it. And
# *taps*: the residual stream after chosen layers. A DFlash drafter reads taps;
# so will we, when we look inside.
#
# The logits are a separate step. A prompt of a thousand tokens needs the
# logits of its last position only, and those of all would be 200 MB.


# %% tags=["export"]
class Output(NamedTuple):
    """What a forward pass gives."""

    hidden: Float[Array, "batch tokens hidden"]  # after the final norm
    taps: tuple[Float[Array, "batch tokens hidden"], ...]  # one for each tap
    cache: Cache


class Transformer(nnx.Module):
    """A decoder of the Llama or Qwen3 family.

    Args:
        config: the model's shape.
        dtype: the type of parameters and activations.
        rngs: random state for the initial weights.
    """

    def __init__(
        self, config: ModelConfig, *, dtype: Any = jnp.float32, rngs: nnx.Rngs
    ):
        self.config = config
        normal = nnx.initializers.normal(0.02)
        table = (config.vocab_size, config.hidden_size)
        self.embed_tokens = nnx.Param(normal(rngs.params(), table, dtype))
        options = dict(dtype=dtype, rngs=rngs)
        layers = [
            Layer(config, **options) for _ in range(config.num_hidden_layers)
        ]
        self.layers = module_list(layers)
        self.norm = RMSNorm(
            config.hidden_size, eps=config.rms_norm_eps, dtype=dtype
        )
        tied = config.tie_word_embeddings
        self.lm_head = (
            None if tied else nnx.Param(normal(rngs.params(), table, dtype))
        )

    def __call__(
        self,
        tokens: Int[Array, "batch tokens"],
        positions: Int[Array, "batch tokens"] | None = None,
        cache: Cache = NoCache(),
        taps: Sequence[int] = (),
        depth: int | None = None,
    ) -> Output:
        """Run the layers over new tokens.

        Args:
            tokens: token ids, below `vocab_size`.
            positions: the absolute position of each; 0, 1, … by default.
            cache: where keys and values go.
            taps: layers, counted from 0, whose output stream is returned.
            depth: stop after so many layers; None runs them all.

        Source: Llama 2 (Touvron et al. 2023), section 2.2; Qwen3 technical
        report (2025), section 2; `transformers` is matched to rounding.
        """
        if positions is None:
            positions = jnp.broadcast_to(
                jnp.arange(tokens.shape[1]), tokens.shape
            )
        by = rotation(self.config.rope, self.config.head_dim, positions)
        x, tapped = self.embed_tokens[...][tokens], {}
        for i, layer in enumerate(list(self.layers)[:depth]):
            x, cache = layer(x, i, by, positions, cache)
            tapped[i] = x
        return Output(self.norm(x), tuple(tapped[i] for i in taps), cache)

    def logits(
        self, hidden: Float[Array, "*rest hidden"]
    ) -> Float[Array, "*rest vocab"]:
        """Scores of the next token, in float32, from `Output.hidden`."""
        head = self.embed_tokens if self.lm_head is None else self.lm_head
        flat = hidden.reshape(-1, hidden.shape[-1])
        scores = matmul(flat, head[...]).astype(jnp.float32)
        return scores.reshape(*hidden.shape[:-1], -1)


def module_list(modules: list) -> Any:
    """A list that Flax tracks: `nnx.List` where there is one (from 0.12)."""
    return getattr(nnx, "List", list)(modules)


# %% [markdown]
# ## Real weights
#
# A new model draws 135 million random numbers, and we would replace every one.
# `nnx.eval_shape` builds the modules with shapes instead of arrays; then each
# parameter is looked up by its path, which is its name on the Hub; stacked
# weights are put together on the way.


# %% tags=["export"]
def from_checkpoint(
    checkpoint: Checkpoint, dtype: Any = "float32"
) -> Transformer:
    """A model with a checkpoint's weights.

    Args:
        checkpoint: from `open_checkpoint`.
        dtype: the type to hold weights in; "float32" or "bfloat16".

    Raises:
        UserError: a tensor is missing, has another shape than the config says,
            or belongs to no part of the model.
    """
    config, tensors = checkpoint.config, checkpoint.tensors
    count = config.num_hidden_layers
    if count > len(tensors):
        raise UserError(
            f"num_hidden_layers is {count}, but the checkpoint has only "
            f"{len(tensors)} tensors. Fetch it again."
        )
    make = lambda dtype: Transformer(config, dtype=dtype, rngs=nnx.Rngs(0))
    return fill(make, tensors, config, dtype)


# %% tags=["export"]
def fill(
    make: Callable[[Any], nnx.Module],
    tensors: Any,
    config: ModelConfig,
    dtype: Any,
    prefix: str = "model.",
) -> Any:
    """A module with the weights of a checkpoint, and none of its own.

    Args:
        make: the module, for a type of its parameters.
        tensors: arrays by their names on the Hub.
        config: the shape of the module's layers.
        dtype: "float32" or "bfloat16".
        prefix: of the names on the Hub.

    Raises:
        UserError: as `from_checkpoint`.
    """
    if dtype not in (*DTYPES, *map(jnp.dtype, DTYPES)):
        raise UserError(
            f"The dtype is {dtype!r}; expected {' or '.join(DTYPES)}."
        )
    dtype = jnp.dtype(dtype)
    graph, state = nnx.split(nnx.eval_shape(lambda: make(dtype)))
    flat = dict(nnx.to_flat_state(state))
    parts = {
        path: parameter_parts(path, param.shape, config, prefix)
        for path, param in flat.items()
    }
    used = {name for shapes in parts.values() for name in shapes}
    unused = {
        name
        for name in tensors.keys() - used
        if not name.endswith(IGNORED_TENSORS)
    }
    if unused:
        raise UserError(f"The model has no place for the tensor {min(unused)}.")
    for path, param in flat.items():
        array = read_parameter(tensors, parts[path], dtype)
        flat[path] = param.replace(jnp.asarray(array))
    return nnx.merge(graph, nnx.from_flat_state(flat))


DTYPES = ("float32", "bfloat16")
# derived from the config, or a copy of the embedding
IGNORED_TENSORS = ("inv_freq", "rope_freqs.weight", "lm_head.weight")


# %% tags=["export"]
def parameter_parts(
    path: tuple[str | int, ...],
    shape: tuple[int, ...],
    config: ModelConfig,
    prefix: str = "model.",
) -> dict[str, tuple[int, ...]]:
    """The Hub's tensors that one parameter stacks, in order, and their shapes.

    Args:
        path: where the parameter lies in the model.
        shape: of the whole parameter.
        prefix: of the tensors' names.
    """
    name = ".".join(map(str, path))
    name = name if name.endswith((".weight", ".bias")) else name + ".weight"
    name = name if name == "lm_head.weight" else prefix + name
    keys = config.num_key_value_heads * config.head_dim
    queries, wide = config.num_attention_heads * config.head_dim, shape[0] // 2
    stacks = {
        "qkv_proj": {"q_proj": queries, "k_proj": keys, "v_proj": keys},
        "gate_up_proj": {"gate_proj": wide, "up_proj": wide},
    }
    for stack, rows in stacks.items():
        if stack in path:
            return {
                name.replace(stack, part): (count, *shape[1:])
                for part, count in rows.items()
            }
    return {name: shape}


# %% tags=["export"]
def read_parameter(
    tensors: Any, parts: dict[str, tuple[int, ...]], dtype: Any
) -> np.ndarray:
    """One parameter in the type `dtype`, from the tensors that it stacks."""
    arrays, dtype = [], jnp.dtype(dtype)
    for name, shape in parts.items():
        if name not in tensors:
            raise UserError(
                f"The checkpoint has no tensor {name}. Fetch it again."
            )
        array = tensors[name]
        if array.shape != shape:
            raise UserError(
                f"{name} has the shape {array.shape}, the config says {shape}."
            )
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise UserError(
                f"{name} has the type {array.dtype}; expected floating-point "
                "weights. Quantised ones are read from GGUF files."
            )
        with np.errstate(over="ignore"):  # what is too large becomes infinite
            array = array.astype(dtype, copy=False)
        if not np.isfinite(array).all():
            raise UserError(f"{name} is not finite in {dtype}. Fetch it again.")
        arrays.append(array)
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


# %% [markdown]
# `load` is the front door of the package.


# %% tags=["export"]
def load(
    name_or_path: str | os.PathLike, dtype: Any = "float32"
) -> tuple[Transformer, Tokenizer]:
    """Load a model and its tokenizer.

    Args:
        name_or_path: "smollm2-135m", a .gguf file, a folder in the Hub's
            layout, or a Hub id "owner/name".
        dtype: "float32" or "bfloat16".

    Raises:
        UserError: the model cannot be found or read; the message says why.
    """
    checkpoint = open_checkpoint(name_or_path)
    return from_checkpoint(checkpoint, dtype), checkpoint.tokenizer


# %%
model, tokenizer = load("smollm2-135m")

# %% [markdown]
# It knows things. We ask for the five most likely tokens after a few words.


# %%
@jax.jit
def forward(model, tokens):
    return model.logits(model(tokens).hidden)


# %%
text = "The capital of France is"
tokens = jnp.array([tokenizer.encode(text)])
logits = forward(model, tokens)
for i in jnp.argsort(-logits[0, -1])[:5]:
    print(f"{logits[0, -1, i]:7.2f}  {tokenizer.decode([int(i)])!r}")

# %%
assert tokenizer.decode([int(logits[0, -1].argmax())]) == " Paris"
assert logits.shape == (1, tokens.shape[1], config.vocab_size)

# %% [markdown]
# How near is this to the reference? The package's tests compare the logits and
# every layer's output with `transformers`: they agree to 1e-4 of the largest
# value, in float32, for this model and for small random models with each
# option above. Float32 carries about seven digits, and thirty layers of sums
# use up some.
#
# **Predict.** bfloat16 keeps eight bits of each number's digits, so it is off by
# up to $2^{-8}$ of the number. How far do the logits move?

# %%
half = from_checkpoint(checkpoint, "bfloat16")
rough = forward(half, tokens)
error = jnp.abs(rough - logits).max() / jnp.abs(logits).max()
agree = (rough.argmax(-1) == logits.argmax(-1)).mean()
assert 2**-12 < error < 2**-3 and agree > 0.5

# %% tags=["nbval-ignore-output"]
print(f"largest error {error:.3f} of the largest logit")
print(f"same next token at {agree:.0%} of the positions")

# %% [markdown]
# So "exact" needs its precision said. Float32 gives the same tokens as the
# reference; bfloat16 can choose another token wherever two are almost equal.

# %% [markdown]
# ## Back to disk
#
# Chapters 7 to 10 train models, and what is trained must be kept. Writing is
# reading backwards: a stacked weight is taken apart, each part gets its name on
# the Hub, and the settings go to `config.json`. What we write, other people's
# programs read.

# %% tags=["export"]
def module_tensors(
    module: nnx.Module, shape: ModelConfig, dtype: Any, prefix: str = ""
) -> dict[str, np.ndarray]:
    """The parameters of a module under the names of the Hub.

    Args:
        shape: of the module's layers.
        dtype: the type to write; "float32" or "bfloat16".
        prefix: of the names.
    """
    tensors = {}
    for path, param in nnx.to_flat_state(nnx.state(module, nnx.Param)):
        array = np.asarray(param[...]).astype(jnp.dtype(dtype))
        parts = parameter_parts(path, array.shape, shape, prefix)
        ends = np.cumsum([size[0] for size in parts.values()])[:-1]
        tensors |= dict(zip(parts, np.split(array, ends), strict=True))
    return tensors


def shape_entries(shape: ModelConfig) -> dict[str, Any]:
    """The entries of a `config.json` that say the shape of layers."""
    entries = asdict(shape)
    rope, plain = entries.pop("rope"), asdict(RopeConfig())
    changed = {n: v for n, v in rope.items() if v != plain[n]}
    changed |= {"rope_type": rope["kind"], "rope_theta": rope["theta"]}
    changed = {n: v for n, v in changed.items() if n not in ("kind", "theta")}
    return entries | {
        "hidden_act": "silu",
        "rope_theta": rope["theta"],
        "rope_parameters": changed,
    }


def write_folder(
    folder: str | os.PathLike,
    tensors: Mapping[str, np.ndarray],
    config: Mapping[str, Any],
    texts: Mapping[str, str] | None = None,
) -> None:
    """Write `model.safetensors`, `config.json` and other files, each whole.

    Nothing is replaced before everything is written.

    Args:
        folder: is made if need be.
        texts: the contents of further files, by their names.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    contents = {**(texts or {}), "config.json": json.dumps(config, indent=2)}
    with tempfile.TemporaryDirectory(dir=folder) as part:
        whole = Path(part) / "model.safetensors"
        save_file(dict(tensors), whole, {"format": "pt"})
        for name, text in contents.items():
            (Path(part) / name).write_text(text + "\n", "utf-8")
        for name in (whole.name, *contents):
            os.replace(Path(part) / name, folder / name)


def save_model(
    model: Transformer,
    tokenizer: Tokenizer,
    folder: str | os.PathLike,
    dtype: Any = "bfloat16",
) -> None:
    """Write a model and its tokenizer in the Hub's layout, for `load`.

    Args:
        folder: is made if need be; files in it are replaced when all are
            written whole.
        dtype: the type to write; "float32" or "bfloat16".
    """
    family = {"llama": "Llama", "qwen3": "Qwen3"}[model.config.model_type]
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **tokenizer.specials,
        "chat_template": tokenizer.template,
    }
    write_folder(
        folder,
        module_tensors(model, model.config, dtype, "model."),
        shape_entries(model.config) | {
            "architectures": [f"{family}ForCausalLM"],
            "eos_token_id": list(tokenizer.stop_ids),
            "torch_dtype": jnp.dtype(dtype).name,
        },
        {
            "tokenizer.json": tokenizer.backend.to_str(pretty=True),
            "tokenizer_config.json": json.dumps(settings, indent=2),
        },
    )  # fmt: skip


# %%
with tempfile.TemporaryDirectory() as place:
    save_model(half, tokenizer, place)
    files = {p.name: p.stat().st_size for p in Path(place).iterdir()}
    again, words = load(place, "bfloat16")
print(*sorted(files), sep="\n")
print(f"{files['model.safetensors'] / 2**20:.1f} MiB of weights")

# %%
same = jax.tree.map(lambda a, b: bool((a == b).all()), half, again)
assert all(jax.tree.leaves(same)) and words.stop_ids == tokenizer.stop_ids
assert words.encode(text) == tokenizer.encode(text)

# %% [markdown]
# ## Looking inside
#
# Since the cache is a plug, we can plug in a spy: it computes what `NoCache`
# does, and keeps the attention weights of one layer.


# %%
class Spy:
    def __init__(self, layer):
        self.layer, self.weights = layer, None

    def attend(self, layer, q, k, v, positions):
        if layer == self.layer:
            shared = jnp.repeat(k, q.shape[2] // k.shape[2], axis=2)
            scores = jnp.einsum("bthd,bshd->bhts", q, shared) / 8
            mask = positions[:, None, :] <= positions[:, :, None]
            self.weights = jax.nn.softmax(scores, where=mask[:, None])
        return NoCache().attend(layer, q, k, v, positions)[0], self


# %%
text = "Anna gave Ben a red book. Ben gave Anna a red"
ids = tokenizer.encode(text)
words = [tokenizer.decode([i]) for i in ids]
spy = Spy(layer=15)
model(jnp.array([ids]), cache=spy)
assert np.allclose(spy.weights.sum(-1), 1, atol=1e-5)

# %% [markdown]
# Each row is a token that looks, each column a token that it looks at. Most
# heads look at the first token, which serves as a resting place ([Xiao et al.
# 2023](https://arxiv.org/abs/2309.17453)). Some heads look for what followed
# the same word before: from the second *red* to *book*.

# %% mystnb={"image": {"alt": "Three attention maps of layer 15 over the words of a sentence: lower triangles, with a dark first column and some dark cells off it."}}
fig, axes = plt.subplots(1, 3, figsize=(10, 3.6), sharey=True)
for ax, head in zip(axes, (0, 4, 8), strict=True):
    ax.imshow(spy.weights[0, head], cmap="cividis_r", vmin=0, vmax=1)
    ax.set_title(f"head {head}", fontsize=10)
    ax.set_xticks(range(len(words)), words, rotation=90, fontsize=8)
_ = axes[0].set_yticks(range(len(words)), words, fontsize=8)

# %% [markdown]
# Taps show the residual stream. We follow the last position through the
# layers, and ask at each one: if the model stopped here, what would it say?
# This is the "logit lens" ([nostalgebraist 2020](
# https://www.lesswrong.com/posts/AcKRB8wDpdaN6v6ru/interpreting-gpt-the-logit-lens)).

# %%
layers = range(config.num_hidden_layers)
inside = model(jnp.array([ids]), taps=layers).taps
guesses = [model.logits(model.norm(tap))[0].argmax(-1) for tap in inside]
for i in (0, 10, 20, 24, 27, 29):
    print(f"after layer {i:2}: {tokenizer.decode([int(guesses[i][-1])])!r}")

# %%
assert tokenizer.decode([int(guesses[-1][-1])]) == " book"

# %% [markdown]
# One word is an anecdote. Over all positions of this sentence: at how many of
# them does each layer already say what the last one will say?

# %%
agree = [float((g == guesses[-1]).mean()) for g in guesses]
for i in (10, 20, 24, 27, 28, 29):
    print(f"layer {i:2}: {agree[i]:.0%}")

# %%
assert agree[10] < agree[27] < agree[29] == 1

# %% [markdown]
# Read through the model's own head, this small model makes up its mind late:
# leaving early saves little (chapter 6 tries). That does not mean that the
# middle layers know nothing, only that this head cannot read them. EAGLE-3
# (chapter 8) and DFlash (chapter 10) *train* a reader for them.

# %% mystnb={"image": {"alt": "Line plot: the length of the residual stream against the layer, for the first and the last token; the first token's is far longer in the middle layers."}}
lengths = jnp.stack([jnp.linalg.norm(t[0], axis=-1) for t in inside])
fig, ax = plt.subplots(figsize=(7, 2.8))
ax.plot(lengths[:, 0], "--", label="first token")
ax.plot(lengths[:, -1], "-", label="last token")
ax.legend(frameon=False)
_ = ax.set(xlabel="layer", ylabel="length of the stream", yscale="log")

# %% [markdown]
# ## Where the bytes are
#
# Decoding reads every parameter for every token, so bytes by part are time by
# part. Chapter 3 turns this table into milliseconds.


# %%
def part_of(path):
    return next(
        (str(p) for p in path if p in ("self_attn", "mlp", "embed_tokens")),
        "norms",
    )


sizes: dict[str, int] = {}
for path, param in nnx.to_flat_state(nnx.state(model)):
    part = "norms" if "norm" in str(path) else part_of(path)
    sizes[part] = sizes.get(part, 0) + param.size
for part, size in sizes.items():
    print(f"{part:13}{size:>12,} parameters {4 * size / 2**20:>6.1f} MiB")

# %%
assert sum(sizes.values()) == 134_515_008

# %% [markdown]
# ## Exercises
#
# **2.1 RMSNorm by hand** (5 minutes). Write the norm for one vector, without
# the module. What does $\varepsilon$ do for a vector of zeros?


# %% tags=["exercise"]
def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """Normalise one vector to root mean square 1, then scale."""
    ### BEGIN SOLUTION
    return weight * x / np.sqrt(np.mean(x**2) + eps)
    ### END SOLUTION


# %% tags=["check"]
@check(rms_norm)
def _(f):
    x, one = np.array([3.0, -4.0]), np.ones(2)
    assert not np.allclose(f(x, one, 0.0), x / 5), "divide by the mean's root"
    assert np.allclose(f(x, one, 0.0), x / np.sqrt(12.5)), (
        "the root mean square"
    )
    assert np.allclose(f(x, 2 * one, 0.0), 2 * f(x, one, 0.0)), "use the weight"
    assert np.isfinite(f(0 * x, one, 1e-6)).all(), "eps belongs under the root"


# %% [markdown]
# **2.2 Turn by complex numbers** (10 minutes). A pair $(a, b)$ is the complex
# number $a + bi$, and turning it by an angle is one multiplication. Write
# `rotate` for one head that way. Mind the pairing: first half with second half.


# %% tags=["exercise"]
def rotate_complex(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Turn one head of size d by d/2 angles."""
    ### BEGIN SOLUTION
    half = len(x) // 2
    turned = (x[:half] + 1j * x[half:]) * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag])
    ### END SOLUTION


# %% tags=["check"]
@check(rotate_complex)
def _(f):
    x = np.array([1.0, 0.0, 0.0, 0.0])
    quarter = np.array([np.pi / 2, 0.0])
    assert f(x, quarter).shape == (4,), "keep the shape"
    assert not np.allclose(f(x, quarter), [0, 1, 0, 0]), (
        "you paired neighbours: pair i with i + d/2"
    )
    assert not np.allclose(f(x, quarter), [0, 0, -1, 0]), "turn the other way"
    assert np.allclose(f(x, quarter), [0, 0, 1, 0], atol=1e-12), (
        "a quarter turn"
    )
    head = np.random.default_rng(0).normal(size=64)
    by = rotation(config.rope, 64, jnp.array([[7]]))
    expected = rotate(jnp.array(head)[None, None, None], by)[0, 0, 0]
    assert np.allclose(f(head, 7 * angles), expected, atol=1e-4), (
        "compare rotate"
    )


# %% [markdown]
# **2.3 How large is Qwen3-4B?** (10 minutes). Count the parameters of a
# decoder from its settings: embeddings (once, if tied), and for each layer the
# four projections, the three of the MLP, two norms, and in Qwen3 a norm for
# the q and k of one head. One norm ends the model.


# %% tags=["exercise"]
def parameters(c: ModelConfig) -> int:
    """The number of parameters of a model without biases."""
    ### BEGIN SOLUTION
    heads = 2 * c.num_attention_heads + 2 * c.num_key_value_heads
    layer = c.hidden_size * c.head_dim * heads
    layer += 3 * c.hidden_size * c.intermediate_size + 2 * c.hidden_size
    layer += 2 * c.head_dim * (c.model_type == "qwen3")
    tables = 1 if c.tie_word_embeddings else 2
    outside = tables * c.vocab_size * c.hidden_size + c.hidden_size
    return c.num_hidden_layers * layer + outside
    ### END SOLUTION


# %% tags=["check"]
@check(parameters)
def _(f):
    qwen = ModelConfig(
        "qwen3",
        151_936,
        2560,
        9728,
        36,
        32,
        8,
        128,
        40_960,
        tie_word_embeddings=True,
    )
    ours = f(config)
    assert ours != 134_515_008 + 28_311_552, "SmolLM2 ties its embeddings"
    assert ours != 134_515_008 - 576, "the final norm is missing"
    assert ours == 134_515_008, f"SmolLM2 has 134,515,008, not {ours:,}"
    assert f(qwen) != 4_022_468_096 - 36 * 256, "Qwen3 has norms on q and k"
    assert f(qwen) == 4_022_468_096, (
        f"Qwen3-4B has 4,022,468,096, not {f(qwen):,}"
    )


# %% [markdown]
# ## Key points
#
# - Layers add to a residual stream. Attention alone moves information between
#   positions, and rotary angles tell it the distance.
# - Few key-value heads serve many query heads, because keys and values are
#   what must be kept.
# - The cache is a plug with one method. The forward pass never knows which one
#   it runs on.
# - Taps are the stream after chosen layers. The middle of the model knows much
#   of what the end will say.
# - Equality has a precision: rounding-level in float32, up to near-ties in
#   bfloat16.
#
# **Next:** chapter 3 lets the model speak, and finds out what the time goes
# into.
