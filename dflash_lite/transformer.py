"""The transformer.

The decoder that chapter 1's weights belong to, built from its parts: the Llama
family and its close relative Qwen3, in Flax NNX, equal to the reference
implementation up to rounding.

Made from chapters/02_transformer.py by tools/tangle.py:
edit the chapter, not this file.
"""

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

__all__ = [
    "FEW_ROWS",
    "matmul",
    "Linear",
    "RMSNorm",
    "rope_frequencies",
    "llama3_frequencies",
    "yarn_frequencies",
    "yarn_factor",
    "Rotation",
    "rotation",
    "rotate",
    "attention",
    "Cache",
    "NoCache",
    "Attention",
    "MLP",
    "Layer",
    "Output",
    "Transformer",
    "module_list",
    "from_checkpoint",
    "fill",
    "DTYPES",
    "IGNORED_TENSORS",
    "parameter_parts",
    "read_parameter",
    "load",
    "module_tensors",
    "shape_entries",
    "write_folder",
    "save_model",
]


# One product, and how many rows it has
# -------------------------------------

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


# RMSNorm
# -------

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


# Positions are angles
# --------------------

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


# Attention, with few keys for many queries
# -----------------------------------------

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


# The cache is a plug
# -------------------

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


# SwiGLU
# ------

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


# A layer
# -------

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


# The model
# ---------

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


# Real weights
# ------------

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


# Back to disk
# ------------

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
