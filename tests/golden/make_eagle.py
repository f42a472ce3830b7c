"""Makes eagle/: small random EAGLE-3 drafters and what speculators computes.

Each folder has a published layout (config.json, model.safetensors): that of speculators, written
by its own `save_pretrained`, or the authors', with `midlayer` and a flat config. The .npz beside it
holds inputs and, for each row of a text and three passes, the state before the final norm and the
logits, in float32. speculators feeds the true tokens to later passes, so the chain of a row is what
drafting computes there if its drafts are those tokens. Weights are drawn large, so that a missing
option shows: the script runs each drafter with each of its options off and refuses one that changes
too little.

    pip install torch transformers safetensors pydantic loguru
    pip install --no-deps speculators==0.9.0
    python make_eagle.py
"""

import json
import shutil
import sys
from unittest.mock import MagicMock

import numpy as np
import torch
from common import HERE, source
from safetensors.torch import save_file
from transformers import LlamaConfig, Qwen3Config

# what reads training data needs many more packages, and is not used here
sys.modules["speculators.train.data"] = MagicMock()

from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig  # noqa: E402

FOLDER = HERE / "eagle"
VOCAB, LAYERS, ROWS, PASSES = 48, 12, 11, 3
SHAPE = dict(
    vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
    num_attention_heads=4, num_key_value_heads=2, head_dim=4, max_position_embeddings=64,
    rms_norm_eps=1e-5, tie_word_embeddings=False, rope_theta=10_000.0, attention_bias=False,
)
LLAMA3 = dict(rope_type="llama3", rope_theta=10_000.0, factor=4.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=16)
# name: layout, kind of layer, options of the layer's config, options of the drafter
CONFIGS = {
    "plain": ("authors", LlamaConfig, {}, {}),
    "reduced": ("authors", LlamaConfig, dict(num_key_value_heads=1), {"draft_vocab_size": 20}),
    "published": ("speculators", LlamaConfig, dict(rope_parameters=LLAMA3),
                  {"draft_vocab_size": 24, "norm_before_residual": True}),
    "before-fc": ("authors", LlamaConfig, dict(num_key_value_heads=4),
                  {"norm_before_fc": True, "draft_vocab_size": 20}),
    "fc-norm": ("speculators", LlamaConfig, dict(rms_norm_eps=0.05),
                {"fc_norm": True, "norm_output": True}),
    "qwen3": ("speculators", Qwen3Config, dict(attention_bias=True, head_dim=8),
              {"draft_vocab_size": 20, "norm_before_residual": True}),
    "taps": ("authors", LlamaConfig, {}, {"eagle_aux_hidden_state_layer_ids": [1, 5, 8, 12]}),
}
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


def drafter_of(kind, options, own):
    shape = kind(**SHAPE | options)
    shape._attn_implementation = "eager"
    own = {"draft_vocab_size": VOCAB, "eagle_aux_hidden_state_layer_ids": None} | own
    return Eagle3DraftModel(Eagle3SpeculatorConfig(transformer_layer_config=shape, **own)).eval()


def random_drafter(name, kind, options, own):
    """A drafter with large random weights; the words of a small vocabulary are random too."""
    drafter = drafter_of(kind, options, own)
    generator = torch.Generator().manual_seed(list(CONFIGS).index(name))
    with torch.no_grad():
        for label, parameter in drafter.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            scale = 1.0 if label in ("embed_tokens.weight", "lm_head.weight") else 0.3
            parameter.copy_(1 + 0.2 * noise if "norm" in label else scale * noise)
        if drafter.t2d is not None:
            words = torch.randperm(VOCAB, generator=generator)[: drafter.draft_vocab_size]
            words = words.sort().values
            drafter.d2t.copy_(words - torch.arange(len(words)))
            drafter.t2d.zero_()[words] = True
    return drafter


def inputs(drafter):
    """Features of positions 0 to ROWS − 1, and the tokens behind them."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn((1, ROWS, drafter.fc.in_features), generator=generator)
    tokens = torch.randint(VOCAB, (1, ROWS), generator=generator)
    return features, tokens


def run(drafter, features, tokens):
    """States and logits of each pass: two arrays (passes, rows, …)."""
    states, logits = [], []
    hooks = [
        drafter.norm.register_forward_hook(lambda _, given, found: states.append(given[0][0])),
        drafter.lm_head.register_forward_hook(lambda _, given, found: logits.append(found[0])),
    ]
    with torch.no_grad():
        drafter(features, tokens, document_ids=torch.zeros_like(tokens), ttt_steps=PASSES)
    for hook in hooks:
        hook.remove()
    return torch.stack(states), torch.stack(logits)


def write(name, layout, drafter, own):
    """The folder in the published layout."""
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if layout == "speculators":
        drafter.save_pretrained(folder)
        for path in folder.glob("*.py"):  # a copy of its own code
            path.unlink()
        return
    left_out = ("embed_tokens.weight", "verifier_lm_head.weight", "verifier_norm.weight")
    tensors = {n.replace("layers.0.", "midlayer."): t.contiguous()
               for n, t in drafter.state_dict().items() if n not in left_out}
    save_file(tensors, str(folder / "model.safetensors"))
    shape = drafter.config.transformer_layer_config
    config = {n: getattr(shape, n) for n in SHAPE if n != "rope_theta"} | dict(
        architectures=["LlamaForCausalLMEagle3"], model_type=shape.model_type, rope_theta=10_000.0,
        hidden_act="silu", torch_dtype="float32", draft_vocab_size=VOCAB,
    )
    (folder / "config.json").write_text(json.dumps(config | own, indent=2) + "\n")


def main():
    for name, (layout, kind, options, own) in CONFIGS.items():
        drafter = random_drafter(name, kind, options, own)
        data = inputs(drafter)
        states, logits = run(drafter, *data)
        for flag in set(FLAGS) & own.keys():
            other = drafter_of(kind, options, {k: v for k, v in own.items() if k != flag})
            other.load_state_dict(drafter.state_dict(), strict=False)
            change = (run(other, *data)[1] - logits).abs().max() / logits.abs().max()
            assert change > 0.01, (name, flag, change)
            print(f"{name}: without {flag} the logits change by {change:.0%}")
        write(name, layout, drafter, own)
        words = np.arange(VOCAB) if drafter.t2d is None else drafter.t2d.nonzero()[:, 0].numpy()
        np.savez_compressed(
            FOLDER / f"{name}.npz", table=drafter.embed_tokens.weight.detach().numpy(),
            features=data[0][0].numpy(), tokens=data[1][0].numpy(), words=words,
            states=states.numpy(), logits=logits.numpy(),
            source=json.dumps(source(__file__, "speculators", "torch", "transformers",
                                     model=False)),
        )


if __name__ == "__main__":
    main()
