"""Makes sampling.json.gz: probabilities after transformers' own warpers.

The list of warpers, and so their order, is what `generate` itself builds for
these settings.

    python make_sampling.py
"""

import numpy as np
import torch
from common import source, write_json
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

NOTHING = float("-inf")


def rows():
    rng = np.random.default_rng(0)
    powers = np.log2([0.5, 0.25, 0.125, 0.0625, 0.03125, 0.03125]) * np.log(2)
    return {
        "normal": rng.normal(0, 3, 64),
        "wide": rng.normal(0, 1, 500),
        "peaked": rng.normal(0, 12, 40),
        "like a model": np.sort(rng.gumbel(0, 2, 200))[::-1] + 8,
        "one hot": [NOTHING, NOTHING, 0.0, NOTHING, NOTHING],
        "with -inf": [1.0, NOTHING, 0.5, NOTHING, 0.25, -1.0, NOTHING, 3.0],
        "all equal": [0.5] * 8,
        "ties": [2.0, 1.0, 2.0, 0.0, 1.0, 1.0, -1.0],
        "tie at the top": [3.0, 3.0, 1.0, 0.0],
        "powers of two": powers,
        "powers of two, shuffled": powers[[3, 0, 5, 2, 1, 4]],
        "huge": [1e4, 9.999e3, -1e4, 0.0],
        "one token": [0.3],
    }


def settings():
    """temperature, top_k, top_p; None leaves a step out."""
    yield from [(1.0, None, None), (0.7, None, None), (10.0, None, None), (1e-3, None, None)]
    yield from [(1.0, k, None) for k in (1, 2, 3, 5, 50, 10_000)]
    yield from [(1.0, None, p) for p in (1.0, 0.999, 0.9, 0.75, 0.5, 0.1, 1e-6)]
    yield from [(0.8, 20, 0.95), (1.5, 3, 0.6), (0.5, 2, 0.99), (2.0, 40, 0.3), (0.6, 20, 1.0)]


def cut(logits, temperature, top_k, top_p):
    """How well top_p's cut is defined: "clear", "ties" or "rounding".

    "ties": equally likely tokens lie on both sides of it, so that a sort may
    keep any of them. "rounding": it depends on the last bits of a sum.
    """
    if top_p is None or top_p == 1:
        return "clear"
    exact = np.sort(logits.astype(np.float64)) / temperature
    exact = np.where(exact < exact[-(top_k or 0):][0], NOTHING, exact)
    each = np.exp(exact - exact[-1])
    distance = np.cumsum(each / each.sum())[:-1] - (1 - top_p)
    if ((0 < abs(distance)) & (abs(distance) < 1e-6)).any():
        return "rounding"
    last_out = np.flatnonzero(distance <= 0)[-1:]
    return "ties" if (exact[last_out] == exact[last_out + 1]).any() else "clear"


def main():
    torch.set_num_threads(1)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=1))
    cases = []
    for name, row in rows().items():
        logits = torch.tensor(np.array([row]), dtype=torch.float32)
        for temperature, top_k, top_p in settings():
            kind = cut(logits[0].numpy(), temperature, top_k, top_p)
            if kind == "rounding":
                continue
            config = GenerationConfig(
                do_sample=True, temperature=temperature, top_k=top_k or 0,
                top_p=1.0 if top_p is None else top_p)
            warpers = model._get_logits_processor(
                generation_config=config, input_ids_seq_length=1,
                encoder_input_ids=torch.zeros(1, 1, dtype=torch.long),
                prefix_allowed_tokens_fn=None, logits_processor=[])
            scores = warpers(None, logits.clone())[0]
            probabilities = torch.softmax(scores, -1).tolist()
            cases.append({
                "row": name, "temperature": temperature, "top_k": top_k, "top_p": top_p,
                "warpers": [type(w).__name__ for w in warpers],
                "ties": kind == "ties",  # then only the sorted probabilities count
                # The tokens that stay, and their probabilities.
                "kept": torch.isfinite(scores).nonzero()[:, 0].tolist(),
                "probabilities": [float(f"{p:.7g}") for s, p in zip(
                    scores.tolist(), probabilities, strict=True) if s > NOTHING],
            })
    write_json("sampling.json.gz", {
        "source": source(__file__, "torch", "transformers", model=False),
        "rows": {n: [None if x == NOTHING else float(np.float32(x)) for x in r]
                 for n, r in rows().items()},
        "cases": cases,
    })
    print(len(cases), "cases; warpers", sorted({tuple(c["warpers"]) for c in cases}))


if __name__ == "__main__":
    main()
