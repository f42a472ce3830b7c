"""Templates: lines of text with slots and with sums that work themselves out.

`{thing}` draws a word and keeps it, `{thing2}` another one, `{A}` and `{B}` are
different people, `{A.she}` is a pronoun, and `<a + b = s>` writes a sum step by
step and keeps its result in the slot s.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from arithmetic import work
from words import PEOPLE, choose

MARK = re.compile(
    r"\{([A-Za-z]\w*)(?:\.(\w+))?\}|<(\w+) ([-+*/]|//|%) (\w+) = (\w+)>"
)


@dataclass(frozen=True)
class Template:
    """One wording: a question, its answer, and how its numbers are drawn.

    For code, `ask` says what the program does, `source` is the program, and
    `reply` follows its run.
    """

    kind: str
    name: str
    ask: str
    reply: str
    draw: Callable
    source: str = ""


class Slots(dict):
    """Slot values; a missing slot draws a word from the pool of its name."""

    def __init__(self, rng, values):
        super().__init__(values)
        self.rng = rng
        self.sealed = False

    def __missing__(self, slot):
        if self.sealed:
            raise KeyError(f"the reply draws {slot!r}, not in the prompt")
        pool = "name" if slot in PEOPLE else slot.rstrip("0123456789")
        self[slot] = choose(self.rng, pool, list(self.values()))
        return self[slot]

    def number(self, operand):
        """The number that a slot or a literal such as `10` stands for."""
        return int(operand) if operand.isdigit() else self[operand]


def fill(text, slots):
    """Replaces slots and sums in reading order."""

    def replace(mark):
        slot, part, left, op, right, result = mark.groups()
        if slot:
            value = getattr(slots[slot], part) if part else slots[slot]
            return fill(str(value), slots)
        a, b = slots.number(left), slots.number(right)
        slots[result], steps = work(a, op, b)
        slots["last"] = slots[result]
        return steps

    return MARK.sub(replace, text)


def capital(text):
    """The text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def blocks(table):
    """The entries of a table of templates, which blank lines separate."""
    return [b for b in re.split(r"\n[ ]*\n", table.strip("\n")) if b.strip()]


def pairs(table):
    """Question and answer of each entry; answer lines start with `>`."""
    for block in blocks(table):
        ask = [x for x in block.split("\n") if not x.startswith(">")]
        reply = [x[1:].strip() for x in block.split("\n") if x.startswith(">")]
        yield "\n".join(ask), "\n".join(reply)


TEMPLATES = []


def family(kind, name, table):
    """Registers the entries of a table; the function below draws numbers."""

    def register(draw):
        for i, (ask, reply) in enumerate(pairs(table)):
            name_i = f"{kind}/{name}/{i}"
            TEMPLATES.append(Template(kind, name_i, ask, reply, draw))
        return draw

    return register
