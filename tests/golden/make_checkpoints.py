"""Makes checkpoints/: small random models and what transformers computes.

Each folder is written by transformers' save_pretrained; the .npz beside it
holds inputs, each decoder layer's own output and the logits, in float32.
Weights are drawn large, so that a missing option shows: the script runs each
model with each of its options off and refuses one that changes too little.

    python make_checkpoints.py
"""

import copy
import json
import shutil
from contextlib import contextmanager

import numpy as np
import torch
import transformers.models.llama.modeling_llama as llama
import transformers.models.qwen3.modeling_qwen3 as qwen3
from common import HERE, source
from texts import LONG as TEXT
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
)
from transformers.utils import logging

FOLDER = HERE / "checkpoints"
SHAPE = dict(
    vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=8,
    max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=False,
    bos_token_id=1, eos_token_id=2, pad_token_id=0, attn_implementation="eager",
)
WIDE = dict(head_dim=16, max_position_embeddings=128)  # heads wider than hidden / heads
LLAMA3 = dict(rope_type="llama3", rope_theta=10_000.0, factor=4.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=32)
LINEAR = dict(rope_type="linear", rope_theta=10_000.0, factor=4.0)
YARN = dict(rope_type="yarn", rope_theta=10_000.0, factor=4.0,
            original_max_position_embeddings=32)

# name: (config class, options, how it is saved)
CONFIGS = {
    "llama-tied": (LlamaConfig, dict(tie_word_embeddings=True), "hub"),
    "llama-untied": (LlamaConfig, dict(rms_norm_eps=0.05), ""),
    "llama-bias": (LlamaConfig, dict(attention_bias=True, mlp_bias=True), ""),
    "llama-mha": (LlamaConfig, dict(num_key_value_heads=4, tie_word_embeddings=True), ""),
    "llama-mqa-wide": (LlamaConfig, WIDE | dict(num_key_value_heads=1), ""),
    "llama-linear": (LlamaConfig, dict(rope_parameters=LINEAR), ""),
    "llama-llama3": (LlamaConfig, WIDE | dict(rope_parameters=LLAMA3), "hub"),
    "llama-yarn": (LlamaConfig, WIDE | dict(rope_parameters=YARN | dict(
        beta_fast=1.0, beta_slow=0.25, attention_factor=0.8)), ""),
    "llama-sharded": (LlamaConfig, dict(num_hidden_layers=3), "sharded"),
    "llama-bfloat16": (LlamaConfig, dict(tie_word_embeddings=True), "bfloat16"),
    "qwen3-tied": (Qwen3Config, dict(tie_word_embeddings=True), ""),
    "qwen3-untied": (Qwen3Config, dict(attention_bias=True, rms_norm_eps=0.05), "hub"),
    "qwen3-yarn": (Qwen3Config, WIDE | dict(rope_parameters=YARN), "hub"),
}
LENGTHS = (5, 12, 1)  # of the padded batch
LONG = 48             # above the original context of the scaled ones


def random_model(seed, config_class, options):
    model = AutoModelForCausalLM.from_config(config_class(**SHAPE | options)).eval()
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(1 + 0.2 * torch.randn(parameter.shape))
            else:
                parameter.copy_(0.3 * torch.randn(parameter.shape))
    return model


def tiny_tokenizer():
    """A byte-level BPE of 96 tokens, for the folders to be complete."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator([TEXT.lower()], trainers.BpeTrainer(
        vocab_size=SHAPE["vocab_size"], limit_alphabet=60, show_progress=False,
        special_tokens=["<pad>", "<|im_start|>", "<|im_end|>"]))
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<|im_start|>", eos_token="<|im_end|>",
        pad_token="<pad>", chat_template=(
            "{% for message in messages %}"
            "{{ bos_token + message.role + '\n' + message.content + eos_token + '\n' }}"
            "{% endfor %}{% if add_generation_prompt %}{{ bos_token }}{% endif %}"))


def run(model, tokens, lengths=None):
    """Logits and each layer's output, at the positions that hold a token."""
    tokens = torch.as_tensor(tokens)
    if lengths is None:
        lengths = [tokens.shape[1]] * tokens.shape[0]
    mask = torch.arange(tokens.shape[1])[None] < torch.tensor(lengths)[:, None]
    layers = []
    hooks = [
        layer.register_forward_hook(lambda module, inputs, output: layers.append(
            output[0] if isinstance(output, tuple) else output))
        for layer in model.model.layers
    ]
    with torch.no_grad():
        logits = model(tokens, attention_mask=mask.long(), use_cache=False).logits
    for hook in hooks:
        hook.remove()
    kept = [x[mask].to(torch.promote_types(x.dtype, torch.float32)).numpy()
            for x in (logits, *layers)]
    return kept[0], np.stack(kept[1:])


@contextmanager
def patched(module, **functions):
    before = {name: getattr(module, name) for name in functions}
    for name, function in functions.items():
        setattr(module, name, function)
    yield
    for name, function in before.items():
        setattr(module, name, function)


def logits_but(model, tokens):
    """(option, logits when it is off or has another value), for each one used."""
    config, weights = model.config, model.state_dict()
    modeling = llama if config.model_type == "llama" else qwen3

    def rebuilt(**options):
        other = copy.deepcopy(config)
        for name, value in options.items():
            setattr(other, name, value)
        fresh = AutoModelForCausalLM.from_config(other).eval()
        fresh.load_state_dict(weights)
        return run(fresh, tokens)[0]

    rope = config.rope_parameters
    changes = {"rope_theta": rope["rope_theta"] * 2, "factor": 2.0, "low_freq_factor": 2.0,
               "high_freq_factor": 2.0, "original_max_position_embeddings": 128,
               "beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": 1.0}
    for name, value in changes.items():
        if name in rope:
            yield name, rebuilt(rope_parameters=rope | {name: value})
    if rope["rope_type"] != "default":
        yield "rope scaling", rebuilt(rope_parameters=dict(
            rope_type="default", rope_theta=rope["rope_theta"]))
    if rope["rope_type"] == "yarn" and "attention_factor" not in rope:
        yield "attention factor", rebuilt(rope_parameters=rope | dict(attention_factor=1.0))
    if config.rms_norm_eps > 1e-3:
        yield "rms_norm_eps", rebuilt(rms_norm_eps=1e-5)

    def adjacent_pairs(x):  # the other convention of RoPE
        return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)

    with patched(modeling, rotate_half=adjacent_pairs):
        yield "rotate_half", run(model, tokens)[0]
    if 1 < config.num_key_value_heads < config.num_attention_heads:
        with patched(modeling, repeat_kv=lambda x, n: x.repeat(1, n, 1, 1)):
            yield "order of key-value heads", run(model, tokens)[0]

    def changed(edit):
        other = copy.deepcopy(model)
        with torch.no_grad():
            edit(other)
        return run(other, tokens)[0]

    for part in ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"):
        names = [n for n in weights if n.endswith(f"{part}.bias")]
        # A bias on the keys adds the same to all scores of a query, but for RoPE.
        if names:
            yield f"{part}.bias", changed(lambda m, names=names: [
                m.get_parameter(n).zero_() for n in names])
    for norm in ("q_norm", "k_norm"):
        if hasattr(model.model.layers[0].self_attn, norm):
            yield norm, changed(lambda m, norm=norm: [
                setattr(layer.self_attn, norm, torch.nn.Identity())
                for layer in m.model.layers])
    if not config.tie_word_embeddings:
        yield "untied head", changed(
            lambda m: m.lm_head.weight.copy_(m.model.embed_tokens.weight))


def hub_style(folder):
    """Spell config.json as the checkpoints on the Hub do, from before version 5."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope if rope["rope_type"] != "default" else None
    if rope["rope_type"] == "yarn":
        rope["type"] = rope.pop("rope_type")  # the older spelling still
    config["torch_dtype"] = config.pop("dtype")
    if config["model_type"] == "llama":
        del config["head_dim"]  # then it is hidden_size / num_attention_heads
        if config["rope_scaling"]:
            config["head_dim"] = WIDE["head_dim"]
    path.write_text(json.dumps(config, indent=2) + "\n")


def save(model, folder, how):
    if how == "bfloat16":
        model = model.to(torch.bfloat16)
    model.save_pretrained(folder, **({"max_shard_size": "40KB"} if how == "sharded" else {}))
    tiny_tokenizer().save_pretrained(folder, save_jinja_files=how != "hub")
    if how == "hub":
        hub_style(folder)


def main():
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    shutil.rmtree(FOLDER, ignore_errors=True)
    for seed, (name, (config_class, options, how)) in enumerate(CONFIGS.items()):
        folder = FOLDER / name
        save(random_model(seed, config_class, options), folder, how)
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager")

        rng = np.random.default_rng(seed)
        inputs = {
            "short": (rng.integers(3, 96, (1, 7)), None),
            "long": (rng.integers(3, 96, (1, LONG)), None),
            "padded": (rng.integers(3, 96, (len(LENGTHS), max(LENGTHS))), LENGTHS),
        }
        for row, length in enumerate(LENGTHS):
            inputs["padded"][0][row, length:] = 0
        arrays = {"lengths": np.array(LENGTHS)}
        for key, (tokens, lengths) in inputs.items():
            logits, layers = run(model, tokens, lengths)
            exact, _ = run(copy.deepcopy(model).double(), tokens, lengths)
            rounding = abs(logits - exact).max() / abs(exact).max()
            assert rounding < 1e-5, f"{name}, {key}: float32 is off by {rounding}"
            arrays |= {f"{key}_tokens": tokens, f"{key}_logits": logits,
                       f"{key}_layers": layers, f"{key}_rounding": rounding}

        # A row of the padded batch is what the row gives alone.
        ends = np.cumsum(LENGTHS)
        for row, (start, end) in enumerate(zip(ends - LENGTHS, ends, strict=True)):
            alone, _ = run(model, inputs["padded"][0][row:row + 1, :LENGTHS[row]])
            np.testing.assert_allclose(arrays["padded_logits"][start:end], alone, atol=1e-4)

        tokenizer = AutoTokenizer.from_pretrained(folder)
        text = "the sea was 4 mm lower, said the priest."
        arrays |= {
            "text": text, "text_ids": tokenizer.encode(text),
            "text_chat": tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], tokenize=False,
                add_generation_prompt=True),
        }

        largest = abs(arrays["long_logits"]).max()
        for option, logits in logits_but(model, inputs["long"][0]):
            change = abs(logits - arrays["long_logits"]).max() / largest
            print(f"{name:15} but {option:32} logits change by {change:.3f}")
            assert change > 1e-2, f"{name}: {option} hardly matters ({change})"
        arrays["source"] = json.dumps(source(__file__, "torch", "transformers", model=False))
        np.savez_compressed(FOLDER / f"{name}.npz", **arrays)
    size = sum(f.stat().st_size for f in FOLDER.rglob("*") if f.is_file())
    print(f"checkpoints: {size:,} bytes")


if __name__ == "__main__":
    main()
