"""Lets a trained target write, and counts its right answers."""

import argparse
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import textgen
import train_target as t
from flax import nnx
from tokenizers import Tokenizer

from dflash_lite.transformer import Transformer, attention

END = 2  # <|im_end|>


class Cache(NamedTuple):
    """Keys and values of every layer, (layers, batch, kv_heads, length, size)."""

    k: jax.Array
    v: jax.Array

    def attend(self, layer, q, k, v, positions):
        """One new token for each row, all rows at the same position."""
        at = (layer, 0, 0, positions[0, 0], 0)
        new = Cache(*(
            jax.lax.dynamic_update_slice(old, x.swapaxes(1, 2)[None], at)
            for old, x in zip(self, (k, v))
        ))  # fmt: skip
        seen = jnp.arange(self.k.shape[3]) <= positions[:, :, None]
        return attention(q, new.k[layer], new.v[layer], seen), new


@partial(jax.jit, static_argnums=0)
def write(graph, params, prompts, lengths):
    """Greedy continuation of padded prompts (batch, length), in place."""
    model = nnx.merge(graph, params)
    c, (batch, length) = model.config, prompts.shape
    shape = (c.num_hidden_layers, batch, c.num_key_value_heads, length, c.head_dim)

    def step(position, carry):
        tokens, cache = carry
        here = jnp.full((batch, 1), position)
        out = model(jax.lax.dynamic_slice_in_dim(tokens, position, 1, 1), here, cache)
        guess = model.logits(out.hidden)[:, 0].argmax(-1).astype(tokens.dtype)
        keep = position + 1 < lengths
        guess = jnp.where(keep, tokens[:, position + 1], guess)
        return tokens.at[:, position + 1].set(guess), out.cache

    empty = Cache(jnp.zeros(shape), jnp.zeros(shape))
    return jax.lax.fori_loop(0, length - 1, step, (prompts, empty))[0]


def responses(graph, params, tokenizer, examples, length):
    """What the model answers to each prompt."""
    asks = [
        tokenizer.encode(
            f"<|im_start|>user\n{e.prompt}<|im_end|>\n<|im_start|>assistant\n"
        ).ids
        for e in examples
    ]
    prompts = np.stack([t.pad_to(a, length) for a in asks])
    sizes = np.array([len(a) for a in asks])
    for row, size in zip(np.asarray(write(graph, params, prompts, sizes)), sizes):
        ids = row[size:].tolist()
        yield tokenizer.decode(ids[: ids.index(END)] if END in ids else ids)


def load_params(folder):
    """The parameters of a run."""
    file = folder / "state.safetensors"
    arrays, notes = t.load_file(file), t.read_notes(file)
    grown = notes["step"] > notes["grow_at"]
    layers = t.TINY.num_hidden_layers if grown else notes["few_layers"]
    config = replace(t.TINY, num_hidden_layers=layers)
    graph, params = nnx.split(Transformer(config, rngs=nnx.Rngs(0)))
    leaves, shape = jax.tree.flatten(params)
    loaded = [jnp.asarray(arrays[str(i)]) for i in range(len(leaves))]
    return graph, jax.tree.unflatten(shape, loaded)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=t.HERE / "runs" / "tiny")
    parser.add_argument("--tokenizer", default=str(t.HERE / "tokenizer/tokenizer.json"))
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--length", type=int, default=320)
    parser.add_argument("--show", type=int, default=2)
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(args.tokenizer)
    graph, params = load_params(args.folder)
    result = {"step": t.read_notes(args.folder / "state.safetensors")["step"]}
    for kind in textgen.KINDS:
        for split in ("fresh", "heldout"):
            examples = [textgen.sample(kind, i, split) for i in range(args.count)]
            said = list(responses(graph, params, tokenizer, examples, args.length))
            right = [textgen.check(e, s) for e, s in zip(examples, said)]
            result[f"{kind}_{split}"] = sum(right) / len(right)
            for e, s in list(zip(examples, said))[: args.show]:
                print(f"--- {e.template}\n{e.prompt}\n>>> {s}\n(right: {e.answer})")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
