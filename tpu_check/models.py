"""The models at their real sizes, without their weights."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from dflash_lite.checkpoints import ModelConfig, RopeConfig
from dflash_lite.transformer import Transformer

# config.json of HuggingFaceTB/SmolLM2-135M-Instruct and of Qwen/Qwen3-4B
MODELS = {
    "SmolLM2-135M": ModelConfig(
        model_type="llama",
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        rope=RopeConfig(theta=100_000.0),
    ),
    "Qwen3-4B": ModelConfig(
        model_type="qwen3",
        vocab_size=151936,
        hidden_size=2560,
        intermediate_size=9728,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40960,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        rope=RopeConfig(theta=1_000_000.0),
    ),
}
DTYPE = jnp.bfloat16


def abstract(model: Transformer) -> Transformer:
    """The same model with shapes in place of arrays."""
    graph, state = nnx.split(model)
    bare = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype)
    return nnx.merge(graph, jax.tree.map(bare, state))


@functools.cache
def shapes(name: str) -> Transformer:
    """A model whose parameters have shapes and no values."""
    make = lambda: Transformer(MODELS[name], dtype=DTYPE, rngs=nnx.Rngs(0))
    return nnx.eval_shape(make)
