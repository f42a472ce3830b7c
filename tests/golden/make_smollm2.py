"""Makes smollm2.npz: what transformers computes with SmolLM2 in float32.

All layers' outputs at a few positions and their lengths (L2 norms) at every
position; the logits of the last position in full and every 64th one elsewhere.

    python make_smollm2.py [SmolLM2-135M-Instruct.Q4_1.gguf]
"""

import copy
import json

import numpy as np
import torch
from common import HERE, model_path, source
from make_checkpoints import run
from make_tokens import smollm2_tokenizer
from texts import LONG, SHORT
from transformers import AutoModelForCausalLM
from transformers.utils import logging


def smollm2(path):
    return AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def main():
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    path = model_path()
    tokenizer, model = smollm2_tokenizer(path), smollm2(path)

    short = tokenizer.encode(SHORT, add_special_tokens=False)
    long = tokenizer.encode(LONG, add_special_tokens=False)
    rows = [short, long[100:133], short[:1]]
    lengths = [len(row) for row in rows]
    padded = np.array([row + [0] * (max(lengths) - len(row)) for row in rows])
    inputs = {
        # name: tokens, lengths, positions to keep in full
        "short": (np.array([short]), None, [0, len(short) - 1]),
        "long": (np.array([long]), None, [len(long) // 2, len(long) - 1]),
        "padded": (padded, lengths, np.cumsum(lengths)[:2] - 1),
    }
    arrays = {"padded_lengths": np.array(lengths)}
    bfloat16 = copy.deepcopy(model).to(torch.bfloat16)
    for name, (tokens, row_lengths, keep) in inputs.items():
        logits, layers = run(model, tokens, row_lengths)
        arrays |= {
            f"{name}_tokens": tokens,
            f"{name}_positions": np.array(keep),  # among the tokens that are no padding
            f"{name}_layers": layers[:, keep],
            f"{name}_layer_largest": abs(layers).max((1, 2)),
            f"{name}_layer_norms": np.linalg.norm(layers, axis=-1),
            f"{name}_some_logits": logits[keep][:, ::16],
            f"{name}_argmax": logits.argmax(-1),
            f"{name}_logits_largest": abs(logits).max(),
        }
        if name == "long":
            arrays["long_last_logits"] = logits[-1]
        exact, _ = run(copy.deepcopy(model).double(), tokens, row_lengths)
        half, _ = run(bfloat16, tokens, row_lengths)
        largest = abs(exact).max()
        print(f"{name}: {len(logits)} positions, largest logit {largest:.2f}; of it, "
              f"float32 is off by {abs(logits - exact).max() / largest:.1e}, "
              f"bfloat16 by {abs(half - exact).max() / largest:.1e} at most and "
              f"{np.sqrt(((half - exact) ** 2).mean()) / largest:.1e} on average (RMS); "
              f"bfloat16 has the same best token at "
              f"{(half.argmax(-1) == logits.argmax(-1)).mean():.1%} of positions")
    arrays["source"] = json.dumps(source(__file__, "gguf", "torch", "transformers"))
    np.savez_compressed(HERE / "smollm2.npz", **arrays)
    print(f"smollm2.npz: {(HERE / 'smollm2.npz').stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
