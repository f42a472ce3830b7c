"""Deterministic examples of three kinds for a small language model."""

import hashlib
import random
from dataclasses import dataclass
from functools import cache

import chat_text  # noqa: F401  (registers its templates)
import math_text  # noqa: F401
from chat_text import build_chat
from code_text import build_code
from grammar import TEMPLATES, Slots, fill

KINDS = ("math", "code", "chat")
SPLITS = ("train", "fresh", "heldout")
FRESH = 16  # one prompt in so many is kept out of training


@dataclass(frozen=True)
class Example:
    """One exchange; `answer` is what `check` looks for in a response."""

    prompt: str
    response: str
    kind: str
    template: str
    answer: str


@cache
def templates(kind, held):
    """The templates of a kind; every tenth is held out of training."""
    own = [t for t in TEMPLATES if t.kind == kind]
    return [t for i, t in enumerate(own) if (i % 10 == 7) == held]


def is_fresh(prompt):
    """Whether the prompt's own digest keeps it out of training."""
    return hashlib.sha256(prompt.encode()).digest()[0] % FRESH == 0


LEADS = ("", "", "Solve step by step. ", "Please help {name}. ",
         "A task for {name}: ", "{name} asks: ")  # fmt: skip


def build_math(template, slots):
    """Prompt, worked response and answer of a math template."""
    prompt = fill(template.ask, slots)
    prompt = fill(slots.rng.choice(LEADS), slots) + prompt
    slots.sealed = True
    work = fill(template.reply, slots)
    answer = str(slots.get("answer", slots.get("last")))
    return prompt, f"{work}\nAnswer: {answer}", answer


BUILD = {"math": build_math, "code": build_code, "chat": build_chat}


def sample(kind, index, split="train"):
    """The example with this number; any number, in any order.

    A prompt whose digest says fresh is drawn again for `train`, and any other
    prompt for `fresh`, so the two never share a prompt. `heldout` draws from
    templates that the other splits never use.

    Raises ValueError for a kind or split that does not exist.
    """
    if kind not in KINDS or split not in SPLITS:
        raise ValueError(
            f"no examples of kind {kind!r}, split {split!r};"
            f" kinds are {KINDS}, splits are {SPLITS}"
        )
    rng = random.Random(f"{kind}/{split}/{index}")
    while True:
        template = rng.choice(templates(kind, split == "heldout"))
        slots = Slots(rng, template.draw(rng))
        prompt, response, answer = BUILD[kind](template, slots)
        if split == "heldout" or is_fresh(prompt) == (split == "fresh"):
            return Example(prompt, response, kind, template.name, answer)


def check(example, response):
    """Whether a response has the right answer.

    Math ends in `Answer: ...`, code in `-> ...` or `Output: ...`; a chat
    response must contain the words that the prompt asks for.
    """
    if example.kind == "chat":
        return all(word in response for word in example.answer.split("|"))
    marker = "Answer: "
    if example.kind == "code":
        marker = "Output: " if "/program/" in example.template else "-> "
    return response.rpartition(marker)[2].strip() == example.answer.strip()
