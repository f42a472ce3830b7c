"""Tiny random models, written as the Hub writes them, or as llama.cpp does."""

import json
from pathlib import Path

import gguf
import numpy as np
import tokenizers
from safetensors.numpy import load_file, save_file
from tokenizers import AddedToken, decoders, models, pre_tokenizers

MERGES = ["Ġ t", "h e", "Ġt he", "i n", "e r", "Ã ©", "ð Ł", "ðŁ ĺ"]
SPECIALS = ["<|end|>", "<|user|>", "<|assistant|>"]
END = 256 + len(MERGES)  # the id of <|end|>
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CONFIG = {
    "model_type": "llama",
    "vocab_size": END + len(SPECIALS),
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "eos_token_id": END,
}


def tiny_backend() -> tokenizers.Tokenizer:
    """A byte-level BPE: 256 bytes, a few merges, three special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = alphabet + [merge.replace(" ", "") for merge in MERGES]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    backend = tokenizers.Tokenizer(models.BPE(vocab, [tuple(m.split()) for m in MERGES]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIALS])
    return backend


def tiny_tensors(config: dict, seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights under the Hub's names, large enough that all of them matter."""
    rng = np.random.default_rng(seed)
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    head = config["head_dim"]
    queries, keys = (config[f"num_{n}_heads"] * head for n in ("attention", "key_value"))
    shapes = {"embed_tokens.weight": (config["vocab_size"], hidden), "norm.weight": (hidden,)}
    for i in range(config["num_hidden_layers"]):
        layer = {
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
            "self_attn.q_proj.weight": (queries, hidden),
            "self_attn.k_proj.weight": (keys, hidden),
            "self_attn.v_proj.weight": (keys, hidden),
            "self_attn.o_proj.weight": (hidden, queries),
            "mlp.gate_proj.weight": (wide, hidden),
            "mlp.up_proj.weight": (wide, hidden),
            "mlp.down_proj.weight": (hidden, wide),
        }
        if config["model_type"] == "qwen3":
            layer |= {"self_attn.q_norm.weight": (head,), "self_attn.k_norm.weight": (head,)}
        shapes |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    shapes = {f"model.{name}": shape for name, shape in shapes.items()}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return {
        name: rng.normal("norm" in name, 0.3, shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def write_hub(folder: Path, seed: int = 0, **changes) -> Path:
    """A model folder in the Hub's layout; `changes` go into config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    config = CONFIG | changes
    (folder / "config.json").write_text(json.dumps(config))
    tiny_backend().save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    save_file(tiny_tensors(config, seed), folder / "model.safetensors")
    return folder


GGUF_PARTS = {  # from the tables of llama.cpp, docs and constants.py
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def neighbours(rows: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's row order: in each head, row i and row i + d/2 become neighbours."""
    size = len(rows) // heads
    out = np.empty_like(rows)
    for head in range(heads):
        for i in range(size // 2):
            out[head * size + 2 * i] = rows[head * size + i]
            out[head * size + 2 * i + 1] = rows[head * size + i + size // 2]
    return out


def write_gguf(
    path: Path, hub: Path, settings: dict | None = None, tensors: dict | None = None
) -> Path:
    """A Hub folder as llama.cpp's converter writes it, in float32.

    `settings` (a float, int or str each, named without the family) and
    `tensors` are added.
    """
    config = json.loads((hub / "config.json").read_text())
    backend = tokenizers.Tokenizer.from_file(str(hub / "tokenizer.json"))
    writer = gguf.GGUFWriter(path, config["model_type"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config.get("head_dim", 8))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(10_000.0)
    for name, value in (settings or {}).items():
        add = {float: writer.add_float32, int: writer.add_uint32, str: writer.add_string}
        add[type(value)](f"{config['model_type']}.{name}", value)
    write_gguf_tokenizer(writer, backend, config["eos_token_id"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, array in load_file(hub / "model.safetensors").items():
        base, kind = name.rsplit(".", 1)
        part = base
        prefix = ""
        if base.startswith("model.layers."):
            _, _, block, part = base.split(".", 3)
            prefix = f"blk.{block}."
        if config["model_type"] == "llama" and base.rsplit(".", 1)[-1] in heads:
            array = neighbours(array, heads[base.rsplit(".", 1)[-1]])
        writer.add_tensor(f"{prefix}{GGUF_PARTS[part]}.{kind}", array)
    for name, array in (tensors or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_gguf_tokenizer(writer, backend, eos: int) -> None:
    """The tables of a byte-level BPE."""
    model = json.loads(backend.to_str())
    pieces = sorted(backend.get_vocab(), key=backend.token_to_id)
    special = {token["content"] for token in model["added_tokens"]}
    merges = model["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(pieces)
    writer.add_token_types([3 if piece in special else 1 for piece in pieces])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    writer.add_eos_token_id(eos)
    writer.add_chat_template(TEMPLATE)


def attention_by_definition(q, k, v, starts, lengths, causal):
    """One query and head at a time, in float64."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    output, group = np.zeros(q.shape), q.shape[2] // k.shape[1]
    for text, query, head in np.ndindex(q.shape[:3]):
        end = lengths[text]
        if causal:
            end = min(end, starts[text] + query + 1)
        if end > 0:
            scores = k[text, head // group, :end] @ q[text, query, head] / q.shape[3] ** 0.5
            weights = np.exp(scores - scores.max())
            mixed = weights @ v[text, head // group, :end]
            output[text, query, head] = mixed / weights.sum()
    return output
