"""Makes drafters/: small random DFlash drafters and what z-lab's own code computes.

Each folder has the published layout (config.json, model.safetensors); the .npz beside it holds
inputs and, for three calls in a row with one cache, the hidden states of the block, in float32.
Between calls the cache is cut back to the context, as z-lab's loop does. Weights are drawn large,
so that a missing option shows: the script runs each drafter with each of its options off and
refuses one that changes too little.

    pip install torch transformers safetensors && pip install --no-deps dflash==0.1.0
    python make_dflash.py
"""

import json
import shutil

import numpy as np
import torch
from common import HERE, source
from dflash.model import DFlashDraftModel, _crop_to, _make_cache, build_target_layer_ids
from safetensors.torch import save_file
from transformers import Qwen3Config

FOLDER = HERE / "drafters"
VOCAB, LAYERS = 96, 12  # of the target
SHAPE = dict(
    vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=128,
    rms_norm_eps=1e-5, tie_word_embeddings=True, rope_theta=10_000.0,
)
SLIDING = ["sliding_attention", "full_attention"]
YARN = dict(rope_type="yarn", rope_theta=10_000.0, factor=4.0,
            original_max_position_embeddings=32)
# name: options of the Qwen3 config, of dflash_config, and of the top level
CONFIGS = {
    "plain": ({}, {}, {"block_size": 8}),
    "one-layer": (dict(num_hidden_layers=1, num_key_value_heads=1, head_dim=16),
                  {"block_size": 5}, {}),
    "many-taps": (dict(num_hidden_layers=3), {"target_layer_ids": [0, 3, 4, 8, 11]},
                  {"block_size": 4}),
    "bias": (dict(attention_bias=True, num_key_value_heads=4, rms_norm_eps=0.05), {},
             {"block_size": 8}),
    "sliding": (dict(layer_types=SLIDING, use_sliding_window=True, sliding_window=6), {},
                {"block_size": 8}),
    "sliding-both-ways": (dict(layer_types=SLIDING, use_sliding_window=True, sliding_window=6),
                          {}, {"block_size": 8, "is_causal": False}),
    "causal": ({}, {}, {"block_size": 8, "is_causal": True}),
    "yarn": (dict(rope_parameters=YARN), {}, {"block_size": 8}),
    "scaled": ({}, {"input_embedding_scale": 2.0, "output_multiplier": 0.5,
                    "final_logit_softcapping": 4.0}, {"block_size": 8}),
}
CONTEXTS = (13, 3, 1)  # new context rows in each call


def random_drafter(options, own, top):
    """A drafter with large random weights; the config as the wheel reads it."""
    config = Qwen3Config(**SHAPE | options)
    config.num_target_layers = LAYERS
    config.dflash_config = {"mask_token_id": 7, **own}
    for name, value in top.items():
        setattr(config, name, value)
    config._attn_implementation = "sdpa"
    torch.manual_seed(len(options) + 10 * len(own) + 100 * len(top))
    drafter = DFlashDraftModel(config).eval()
    with torch.no_grad():
        for name, parameter in drafter.named_parameters():
            noise = torch.randn(parameter.shape)
            parameter.copy_(1 + 0.2 * noise if "norm" in name else 0.3 * noise)
    return drafter


def inputs(drafter):
    """The target's embedding table, features and blocks of the calls."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(shape, generator=generator)
    hidden, taps = SHAPE["hidden_size"], len(drafter.target_layer_ids)
    table = draw(VOCAB, hidden)
    features = draw(1, sum(CONTEXTS), taps * hidden)
    anchors = torch.randint(VOCAB, (len(CONTEXTS),), generator=generator)
    return table, features, anchors


def run(drafter, table, features, anchors):
    """Hidden states and logits of each call's block: two arrays (calls, block, …)."""
    cache, start = _make_cache(drafter.config), 0
    scale = drafter.config.dflash_config.get("input_embedding_scale", 1.0)
    hidden, logits = [], []
    head = lambda x: x @ table.T
    for count, anchor in zip(CONTEXTS, anchors.tolist(), strict=True):
        end = start + count
        block = torch.full((1, drafter.block_size), drafter.mask_token_id)
        block[0, 0] = anchor
        with torch.no_grad():
            found = drafter(
                target_hidden=features[:, start:end], noise_embedding=table[block] * scale,
                position_ids=torch.arange(start, end + drafter.block_size)[None],
                past_key_values=cache, use_cache=True,
            )
            logits.append(drafter.compute_logits(found, head)[0])
        hidden.append(found[0])
        _crop_to(cache, end)
        start = end
    return torch.stack(hidden), torch.stack(logits)


def write(name, drafter, options, own, top):
    """The folder in the published layout."""
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config = dict(
        SHAPE, architectures=["DFlashDraftModel"], model_type="qwen3", dtype="float32",
        num_target_layers=LAYERS, dflash_config={"mask_token_id": 7, **own},
    )
    (folder / "config.json").write_text(json.dumps(config | options | top, indent=2) + "\n")
    save_file({n: t.contiguous() for n, t in drafter.state_dict().items()},
              str(folder / "model.safetensors"))


def main():
    for name, (options, own, top) in CONFIGS.items():
        drafter = random_drafter(options, own, top)
        data = inputs(drafter)
        hidden, logits = run(drafter, *data)
        for key in ("is_causal", "layer_types"):
            if key in top or key in options:
                less = {k: v for k, v in options.items() if k != key}
                other = random_drafter(less, own, {k: v for k, v in top.items() if k != key})
                other.load_state_dict(drafter.state_dict())
                change = (run(other, *data)[0] - hidden).abs().max() / hidden.abs().max()
                assert change > 0.01, (name, key, change)
                print(f"{name}: without {key} the hidden states change by {change:.0%}")
        write(name, drafter, options, own, top)
        table, features, anchors = (x.numpy() for x in data)
        np.savez_compressed(
            FOLDER / f"{name}.npz", table=table, features=features, anchors=anchors,
            contexts=np.array(CONTEXTS), taps=np.array(drafter.target_layer_ids),
            hidden=hidden.numpy(), logits=logits.numpy(), source=json.dumps(
                source(__file__, "dflash", "torch", "transformers", model=False)
            ),
        )
    layers = {f"{n} {k}": build_target_layer_ids(n, k) for n in range(5, 81) for k in range(1, 9)}
    (FOLDER / "taps.json").write_text(json.dumps(layers) + "\n")


if __name__ == "__main__":
    main()
