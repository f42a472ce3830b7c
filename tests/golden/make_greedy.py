"""Makes greedy.json.gz: greedy continuations by transformers in float32.

`margins` holds, for each new token, how far its logit lies above the second
best: where that is tiny, another order of summation may choose the other one.

    python make_greedy.py [SmolLM2-135M-Instruct.Q4_1.gguf]
"""

import torch
from common import model_path, source, write_json
from make_smollm2 import smollm2
from make_tokens import smollm2_tokenizer
from texts import PROMPTS
from transformers.utils import logging

NEW_TOKENS = 128


def main():
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    path = model_path()
    tokenizer, model = smollm2_tokenizer(path), smollm2(path)
    runs = []
    for kind, prompt in PROMPTS:
        text = prompt if kind == "raw" else tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True)
        ids = tokenizer.encode(text, add_special_tokens=False)
        out = model.generate(
            torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            do_sample=False, max_new_tokens=NEW_TOKENS, eos_token_id=2, pad_token_id=2,
            output_logits=True, return_dict_in_generate=True)
        best = torch.stack(out.logits)[:, 0].topk(2).values
        new = out.sequences[0, len(ids):].tolist()
        runs.append({
            "kind": kind,
            "prompt": prompt,
            "ids": ids,
            # The stop token (2, <|im_end|>) is the last one where it stopped.
            "new_ids": new,
            "text": tokenizer.decode(new, skip_special_tokens=True),
            "margins": [round(m, 5) for m in (best[:, 0] - best[:, 1]).tolist()],
        })
        print(f"{kind:5}{len(ids):4} + {len(new):3}  smallest margin "
              f"{min(runs[-1]['margins']):.5f}  {runs[-1]['text'][:50]!r}", flush=True)
    write_json("greedy.json.gz", {
        "source": source(__file__, "gguf", "torch", "transformers"),
        "max_new_tokens": NEW_TOKENS,
        "stop_id": 2,
        "runs": runs,
    })


if __name__ == "__main__":
    main()
