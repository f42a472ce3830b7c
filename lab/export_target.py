"""Writes a run as a model folder in the Hub's layout, in bfloat16."""

import argparse
import json
import shutil
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import train_target as t
from evaluate_target import load_params
from flax import nnx
from safetensors.flax import save_file

from dflash_lite.transformer import parameter_parts


def hub_tensors(params, config, dtype):
    """Tensors by the Hub's names; stacked projections are taken apart."""
    tensors = {}
    for path, param in nnx.to_flat_state(params):
        parts = parameter_parts(path, param.shape, config)
        ends = np.cumsum([shape[0] for shape in parts.values()])[:-1]
        for name, array in zip(parts, np.split(param[...], ends), strict=True):
            tensors[name] = jnp.asarray(array, dtype)
    return tensors


def hub_config(config, dtype):
    """The contents of config.json."""
    names = ("vocab_size hidden_size intermediate_size num_hidden_layers"
             " num_attention_heads num_key_value_heads head_dim"
             " max_position_embeddings rms_norm_eps tie_word_embeddings").split()  # fmt: skip
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": config.model_type,
        **{name: getattr(config, name) for name in names},
        "attention_bias": False,
        "hidden_act": "silu",
        "rope_theta": config.rope.theta,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 3,
        "torch_dtype": dtype,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=t.HERE / "runs" / "tiny")
    parser.add_argument("--out", type=Path, default=t.HERE / "runs" / "export")
    parser.add_argument("--dtype", default="bfloat16")
    args = parser.parse_args()
    _, params = load_params(args.folder)
    layers = 1 + max(path[1] for path, _ in nnx.to_flat_state(params) if path[0] == "layers")
    tiny = replace(t.TINY, num_hidden_layers=layers)
    args.out.mkdir(parents=True, exist_ok=True)
    tensors = hub_tensors(params, tiny, args.dtype)
    save_file(tensors, args.out / "model.safetensors", {"format": "pt"})
    config = json.dumps(hub_config(tiny, args.dtype), indent=2) + "\n"
    (args.out / "config.json").write_text(config)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(t.HERE / "tokenizer" / name, args.out / name)
    print(sum(np.prod(x.shape) for x in tensors.values()), "parameters in", args.out)


if __name__ == "__main__":
    main()
