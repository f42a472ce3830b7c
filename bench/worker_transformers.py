"""transformers on torch's CPU kernels in a process of its own; see serve.py.

    python worker_transformers.py FILE.gguf
"""

import os
import sys
from pathlib import Path

import torch
import transformers
from serve import serve, timed

torch.set_num_threads(int(os.environ["NPROC"]))
path = Path(sys.argv[1])
model = transformers.AutoModelForCausalLM.from_pretrained(
    path.parent, gguf_file=path.name, dtype=torch.float32
).eval()
model.generation_config = transformers.GenerationConfig(
    do_sample=False, use_cache=True, eos_token_id=None, pad_token_id=0
)


def about() -> dict:
    """Versions."""
    return {"versions": {"transformers": transformers.__version__, "torch": torch.__version__}}


@torch.inference_mode()
def generate(ids: list[int], tokens: int, lookup: int = 0) -> dict:
    """From token ids to token ids, greedily, with the library's key-value cache.

    With `lookup`, its prompt lookup decoding drafts so many tokens a step.
    """
    more = {"prompt_lookup_num_tokens": lookup} if lookup else {}

    def run() -> list[int]:
        prompt = torch.tensor([ids])
        mask = torch.ones_like(prompt)
        output = model.generate(prompt, attention_mask=mask, max_new_tokens=tokens, **more)
        return output[0, len(ids) :].tolist()

    seconds, made = timed(run)
    return {"seconds": seconds, "tokens": made}


if __name__ == "__main__":
    serve({"about": about, "generate": generate})
