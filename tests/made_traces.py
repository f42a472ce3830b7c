"""Traces that no model made: with the sizes of real ones, and with hostile text."""

import random

from dflash_lite.traces import Trace, TraceStep

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<!--<script>",
    "]]>",
    '"><b onmouseover=alert(1)>',
    "'`${alert(1)}`",
    "&lt;i&gt;",
    "\u2028\u2029",
    "\ud800",
    "\udc00x",
    "\u202eabc\u2066",
    "\u200f",
    "\x00\x08\x1b[31m",
    "שלום",
    "\ufeff",
    "",
    " \t\n\n",
    "👩\u200d🚀",
    "\\u003c/script>",
    "$x$ **b** [a](b)",
]


def a_trace(count=256, most=7, seed=0, pieces=None, pages=False, **change) -> Trace:
    """A trace with the sizes of a real one: English pieces, ids of a vocabulary of 150,000."""
    rng = random.Random(seed)
    words = pieces or [f" {w}" for w in "the light of a longer between scattering sky".split()]
    ids = lambda n: [rng.randrange(150_000) for _ in range(n)]
    tokens, texts = ids(count), [rng.choice(words) for _ in range(count)]
    steps, at, seconds = [], 1, 0.0
    while at < count:
        accepted = min(rng.choice([0, 0, 1, 2, 3, 5, most]) if most else 0, most)
        accepted = min(accepted, count - at)
        wrong = most - accepted
        seconds += rng.uniform(0.028, 0.033) if most else rng.uniform(0.019, 0.021)
        bonus = tokens[at + accepted] if at + accepted < count else None
        steps.append(
            TraceStep(
                seconds=seconds,
                drafts=[*tokens[at : at + accepted], *[t + 150_000 for t in ids(wrong)]],
                draft_pieces=[*texts[at : at + accepted], *rng.choices(words, k=wrong)],
                accepted=accepted,
                target=rng.random() if wrong else None,
                drafter=rng.random() if wrong else None,
                bonus=bonus,
                new=accepted + (bonus is not None),
                pages=at // 16 + 1 if pages else None,
            )
        )
        at += steps[-1].new
    known = {
        "model": "SmolLM2-135M-Instruct",
        "drafter": "a smaller one" if most else "plain",
        "block": most + 1,
        "prompt": "Why is the sky blue? Answer in one short paragraph.",
        "settings": {
            "max_new_tokens": count, "temperature": 0.8, "top_k": 40, "top_p": None, "seed": 3,
        },
        "prefill_seconds": 0.0412,
        "tokens": tokens,
        "pieces": texts,
        "finish_reason": "length",
        "steps": steps,
    }
    return Trace(**known | change)
