# ---
# jupyter:
#   dflash_lite:
#     module: benchmark
#     public: []
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 93. Measuring a speedup
#
# Two commands: `dflash-lite compare` lets plain decoding and every drafter
# answer one prompt, and `dflash-lite bench` measures them on many prompts, with
# an interval around each speedup.
#
# **The question.** When may you say that one way of decoding is faster than
# another?
#
# **Afterwards you can** take turns so that a drifting machine favours nobody,
# put an interval around a speedup, read an acceptance length, and tell a
# near-tie from a bug.
#
# **Time.** 20 minutes to read and run, 15 minutes of exercises.

# %% tags=["export"]
import contextlib
import functools
import json
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NoReturn

import typer

from dflash_lite.command_line import (
    Settings,
    app,
    cores,
    exit_codes,
    in_background,
    installed,
    keep_programs,
    leave,
    main as start,
    read_prompt,
    say,
    silence,
    snapshot,
)

# %%
import shlex
from dataclasses import replace as changed

import numpy as np
from flax import nnx
from IPython.display import Image

from dflash_lite.checkpoints import UserError
from dflash_lite.decoding import generate
from dflash_lite.exercises import check
from dflash_lite.speculative import PromptLookup
from dflash_lite.transformer import Transformer, load

full, tokenizer = load("smollm2-135m")
config = changed(full.config, hidden_size=64, intermediate_size=64)
config = changed(config, num_hidden_layers=2)
small = Transformer(config, rngs=nnx.Rngs(0))

# %% [markdown]
# Like chapter 90, the commands must start at once. So what needs JAX is
# imported where it is used, and the exception for a user's mistake as well.


# %% tags=["export"]
def refuse(message: str) -> NoReturn:
    """Raise a `UserError`."""
    from dflash_lite.checkpoints import UserError

    raise UserError(message)


# %% [markdown]
# ## Drafters by name
#
# A command knows drafters by their names. What stands behind a colon is a
# detail: `early-exit:10` runs 10 layers, `replay:0.8` is right 8 times of 10.
# A new drafter is one line in a dictionary.


# %% tags=["export"]
def number_in(name: str, detail: str, kind: type, expected: str) -> Any:
    """The number behind the colon of a drafter's name.

    Raises:
        UserError: it is none.
    """
    try:
        return kind(detail)
    except ValueError:
        refuse(f"The drafter is '{name}:{detail}'; expected {expected}.")


def make_lookup(model: Any, block: int, detail: str) -> Any:
    """`PromptLookup`; a detail is the number of tokens that must agree."""
    from dflash_lite.speculative import PromptLookup

    least = number_in("lookup", detail or "2", int, "lookup or lookup:3")
    return PromptLookup(block, least, max(4, least))


def make_early_exit(model: Any, block: int, detail: str) -> Any:
    """`EarlyExit`; without a detail with two thirds of the layers."""
    from dflash_lite.speculative import EarlyExit

    usual = max(1, model.config.num_hidden_layers * 2 // 3)
    expected = "early-exit or early-exit:10"
    layers = number_in("early-exit", detail or str(usual), int, expected)
    return EarlyExit(layers, block)


def make_replay(model: Any, block: int, detail: str) -> Any:
    """`Replay`, which gets the answers later; a detail is its `share`."""
    import numpy as np

    from dflash_lite.speculative import Replay

    share = number_in("replay", detail or "1", float, "replay or replay:0.8")
    return Replay(np.full((1, 1), -1, np.int32), block, share)


def stored(kind: str, detail: str) -> str:
    """The checkpoint behind the colon of a drafter's name.

    Raises:
        UserError: there is none.
    """
    if not detail:
        refuse(
            f"The drafter is '{kind}'; expected {kind}: and the folder or the "
            f"Hub id of one, such as {kind}:runs/drafter."
        )
    return detail


def make_dflash(model: Any, block: int, detail: str) -> Any:
    """A trained `DFlash`; the detail is what `load_drafter` takes."""
    name = stored("dflash", detail)
    from dflash_lite.dflash import load_drafter

    return load_drafter(name, model, block)


def make_eagle(model: Any, block: int, detail: str) -> Any:
    """A trained `Eagle`; the detail is what `load_eagle` takes."""
    name = stored("eagle", detail)
    from dflash_lite.eagle import load_eagle

    return load_eagle(name, model, block)


def make_draft_model(model: Any, block: int, detail: str) -> Any:
    """`DraftModel`; the detail is what `dflash_lite.load` takes."""
    name = stored("draft-model", detail)
    from dflash_lite.speculative import DraftModel
    from dflash_lite.transformer import load

    small, _ = load(name, model.embed_tokens.dtype.name)
    return DraftModel(small, block)


DRAFTERS: dict[str, Callable[[Any, int, str], Any]] = {
    "lookup": make_lookup,
    "early-exit": make_early_exit,
    "draft-model": make_draft_model,
    "eagle": make_eagle,
    "dflash": make_dflash,
    "replay": make_replay,
}

# %% tags=["export"]
def check_names(names: str | None) -> list[str] | None:
    """The drafters of a list with commas; None stays None.

    Raises:
        UserError: there is no such drafter.
    """
    if names is None:
        return None
    found = list(dict.fromkeys(name.strip() for name in names.split(",")))
    for name in found:
        if name.partition(":")[0] not in DRAFTERS:
            refuse(
                f"There is no drafter '{name}'; expected some of "
                f"{', '.join(DRAFTERS)}, with commas between them."
            )
    return found


def make_drafter(name: str, model: Any, block: int) -> Any:
    """A drafter by its name.

    Args:
        name: one of `DRAFTERS`, with a detail behind a colon or without.
        block: tokens of a verification: the last one and the drafts.

    Raises:
        UserError: there is no such drafter, or it does not fit the model.
    """
    check_names(name)
    kind, _, detail = name.partition(":")
    drafter = DRAFTERS[kind](model, block, detail)
    drafter.check(model)
    return drafter


def make_drafters(
    names: Sequence[str] | None, model: Any, block: int
) -> dict[str, Any]:
    """Drafters by their names; for None all that fit the model.

    Raises:
        UserError: a name or the block is wrong, or a named drafter does not fit
            the model.
    """
    from dflash_lite.checkpoints import UserError
    from dflash_lite.speculative import check_block

    check_block(block, model)
    if names is not None:
        return {name: make_drafter(name, model, block) for name in names}
    made = {}
    for name in DRAFTERS:
        with contextlib.suppress(UserError):
            made[name] = make_drafter(name, model, block)
    return made


# %%
assert make_drafter("lookup", small, 8) == PromptLookup(8)
assert make_drafter("early-exit", full, 8).layers == 20
try:
    make_drafter("crystal-ball", small, 8)
except UserError as error:
    print(error)

# %% [markdown]
# `replay` is not a real drafter. It knows the answer, so it is the upper bound
# for all that verify the same number of tokens.
#
# ## Prompts
#
# A drafter that copies shines where an answer repeats its prompt, and is idle
# elsewhere. So a speedup belongs to a kind of prompts. We keep prompts in
# *sets*. A file has a line of JSON for each.


# %% tags=["export"]
class Task(NamedTuple):
    """A prompt of a benchmark."""

    prompt: str
    set: str
    number: int  # in its set, from 0
    line: int  # in the file, from 1


EXAMPLE = '{"prompt": "Add 2 and 3.", "set": "math"}'
LARGEST_FILE = 1 << 26  # bytes of prompts; those of the package have 20,000
ALL = "all"  # the name of all sets together


def parse_task(line: str, where: str) -> tuple[str, str]:
    """Prompt and set of one line of JSON.

    Raises:
        UserError: the line has no prompt, or is no JSON.
    """
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        refuse(f"{where} is no JSON ({error}); expected {EXAMPLE}.")
    prompt = entry.get("prompt") if isinstance(entry, dict) else None
    if not isinstance(prompt, str) or not prompt.strip():
        refuse(f"{where} has no prompt: {line:.60}; expected {EXAMPLE}.")
    if re.search("[\ud800-\udfff]", prompt):
        refuse(f"{where} has half a character; write it whole, as UTF-8.")
    group = entry.get("set", "prompts")
    if not isinstance(group, str) or not re.fullmatch(r"[\w-]{1,32}", group):
        refuse(
            f"{where} has the set {group!r:.60}; expected a word of letters "
            "and digits."
        )
    if group == ALL:
        refuse(f"{where} has the set '{ALL}', which means all; rename it.")
    return prompt, group


def parse_tasks(text: str, source: str) -> list[Task]:
    """The prompts of a text of JSON lines, all sets in turn.

    Args:
        source: the file's name, for messages.

    Raises:
        UserError: a line is wrong, or there is none.
    """
    tasks, counts = [], {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        prompt, group = parse_task(line, f"Line {number} of {source}")
        tasks.append(Task(prompt, group, counts.get(group, 0), number))
        counts[group] = counts.get(group, 0) + 1
    if not tasks:
        refuse(f"{source} has no prompts; expected lines like {EXAMPLE}.")
    return sorted(tasks, key=lambda task: task.number)


# %% [markdown]
# The sets take turns, so that whoever stops early has some of each.


# %% tags=["export"]
def read_tasks(path: Path | None, sets: str | None) -> list[Task]:
    """The prompts of a file, or the package's own; of all sets or some.

    Raises:
        UserError: the file cannot be read, a line is wrong, or a set is empty.
    """
    if path is None:
        path = resources.files("dflash_lite") / "prompts.jsonl"
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
        if len(data) > LARGEST_FILE:  # cut, perhaps inside of a character
            refuse(
                f"{path} is larger than {LARGEST_FILE} bytes; expected less. "
                "Are these prompts?"
            )
        text = data.decode("utf-8-sig")
    except OSError as error:
        refuse(
            f"The prompts cannot be read from {path}: {error.strerror}. Give "
            f"a file with lines like {EXAMPLE}."
        )
    except UnicodeDecodeError as error:
        refuse(
            f"{path} is not UTF-8: byte {error.start} is "
            f"{error.object[error.start]:#04x}. Convert it, for example with "
            "iconv."
        )
    tasks = parse_tasks(text, path.name)
    there = list(dict.fromkeys(task.set for task in tasks))
    wanted = there if sets is None else [s.strip() for s in sets.split(",")]
    for name in wanted:
        if name not in there:
            refuse(
                f"There are no prompts in the set '{name}' of {path.name}; "
                f"expected some of {', '.join(there)}."
            )
    return [task for task in tasks if task.set in wanted]


# %%
lines = """{"prompt": "Name a colour.", "set": "chat"}
{"prompt": "Name another.", "set": "chat"}
{"prompt": "Say it again: one, two, one, two.", "set": "copy"}"""
tasks = parse_tasks(lines, "my.jsonl")
print([f"{task.set} {task.number}" for task in tasks])
try:
    parse_tasks('{"promt": "Hi"}', "my.jsonl")
except UserError as error:
    print(error)

# %% [markdown]
# ## Taking turns
#
# A machine gets warm, a neighbour starts a build. Say that it slows down by a
# tenth each minute. We time two ways of decoding, *equally* fast, ten times
# each.
#
# **Predict.** What ratio do you get when one goes first ten times and then the
# other? What, when they take turns?

# %%
slower = 1.1 ** np.arange(20)
first, then = slower[:10], slower[10:]
print(f"one after the other: {np.median(first / then):.2f}")
print(f"in turns: {np.median(slower[0::2] / slower[1::2]):.2f}")
swap = np.array([1, -1] * 5)  # and each begins every other time
print(f"and swapped: {np.median((slower[0::2] / slower[1::2]) ** swap):.2f}")

# %% [markdown]
# In turns the error is small, and when each begins equally often it goes to
# both sides. With more than two, the order rotates.


# %% tags=["export"]
def rotated(items: Sequence[Any], turn: int) -> list[Any]:
    """The items in order, beginning with another one each turn."""
    begin = turn % len(items)
    return [*items[begin:], *items[:begin]]


# %%
for turn in range(4):
    print(*rotated(["plain", "lookup", "replay"], turn))

# %% [markdown]
# ## One prompt
#
# What is timed is decoding: from the first token on, to the last, and until the
# host has the tokens. Chapter 3's loop fetches them from the device, so it
# waits for results and not for promises. Reading the prompt costs the same for
# all and is not counted. Neither is compiling: each mode runs once, untimed,
# for each shape that its programs are compiled for.
#
# A run gives this.


# %% tags=["export"]
def run_entry(generation: Any) -> dict[str, Any]:
    """What one run gave; times in seconds, of decoding and of prefill."""
    cost = generation.statistics
    return {
        "seconds": cost.decode_seconds,
        "prefill_seconds": cost.prefill_seconds,
        "tokens": cost.decode_tokens,
        "steps": cost.decode_steps,
        "drafted": list(cost.drafted),
        "accepted": list(cost.accepted),
    }


# %% [markdown]
# `Replay` wants the answer in a table. Its width follows the buckets of chapter
# 3, because a new width would be a new program.


# %% tags=["export"]
def table(
    ids: list[int], answer: list[int], new: int, context: int
) -> Any:
    """A prompt and its answer as `Replay` takes them.

    Args:
        new: tokens that an answer can have.
        context: tokens that prompt and answer can have together.

    Returns:
        (1, width) token ids, −1 behind the answer.
    """
    import numpy as np

    from dflash_lite.decoding import bucket

    width = bucket(bucket(len(ids)) + min(new, context))
    filled = np.full((1, width), -1, np.int32)
    filled[0, : len(ids) + len(answer)] = ids + answer
    return filled


# %% [markdown]
# ## What a step is made of
#
# A step drafts and verifies. Inside of one program the two have no clocks, so
# we take them apart from outside.
#
# - *Verify*: the same loop with `Replay`. Its drafts cost nothing, and every
#   step is a pass over the whole block.
# - *Draft*: the drafter works beside `Replay`. It guesses, the guess is thrown
#   away, and the answer is verified. These steps verify the same, so what they
#   cost more is drafting.
#
# XLA would not compute what nobody uses. So the guess is used, under a
# condition that never holds: a token below zero.


# %% tags=["export"]
@functools.cache
def beside_class() -> type:
    """The class of drafters that work beside a `Replay`, for nothing."""
    import jax.numpy as jnp

    from dflash_lite.speculative import Replay, as_drafter

    @as_drafter("block", data=("answers", "share", "other"))
    class Beside(Replay):
        other: Any = None

        taps = property(lambda self: self.other.taps)
        reads = property(lambda self: self.other.reads)

        def begin(self, *context: Any) -> Any:
            return self.other.begin(*context)

        def read(self, *context: Any) -> Any:
            return self.other.read(*context)

        def observe(self, *context: Any) -> Any:
            return self.other.observe(*context)

        def draft(self, model: Any, state: Any, *how: Any) -> Any:
            guess, state = self.other.draft(model, state, *how)
            draft, state = Replay.draft(self, model, state, *how)
            never = guess.tokens < 0
            tokens = jnp.where(never, guess.tokens, draft.tokens)
            return draft._replace(tokens=tokens), state

    return Beside


# %%
answers = table([1, 2], [3] * 9, 16, 512)
beside = beside_class()(answers, 4, 1.0, PromptLookup(4))
known = generate(small, tokenizer, [1, 2], max_new_tokens=16, drafter=beside)
alone = generate(small, tokenizer, [1, 2], max_new_tokens=16)
assert known.tokens == alone.tokens, "a strange drafter, and the same text"

# %% [markdown]
# ## A near-tie or a bug?
#
# The text must not change. Yet a pass over eight tokens adds numbers up in
# another order than a pass over one, and the last digits differ. Where two
# tokens have almost the same logit, the choice can turn over. That is no bug,
# and a bug must not hide behind it.
#
# So look at the first place where two texts differ. One pass over what they
# have in common, in float32, says what the model thinks of the two tokens. Both
# must be nearly the best. We measure the gap between the best logit and the
# lower of the two, as a share of the spread from the lowest logit to the
# highest.
#
# **Predict.** How far apart does rounding move the logits of the same token, in
# a pass over few tokens and in one over many? Below which gap would you call
# two tokens equal?

# %%
text = tokenizer.encode("The lamp has not missed a night in a hundred years.")
forward = lambda ids: full.logits(full(np.array([ids])).hidden)[0]
many, few = forward(text), forward(text[:5])
spread = many.max(-1) - many.min(-1)
moved = float((abs(many[:5] - few).max(-1) / spread[:5]).max())

# %% tags=["nbval-ignore-output"]
print(f"by {moved:.0e} of their spread, which is {spread.mean():.0f}")

# %% [markdown]
# The limit is about ten times that. In bfloat16 a number has 8 bits instead of
# 24, so the limit there is wider, and a bug can hide behind it: look for bugs
# in float32.

# %% tags=["export"]
NEAR_TIE = {"float32": 3e-5, "bfloat16": 2e-2}  # shares of the spread

# %%
assert moved < NEAR_TIE["float32"]


# %% tags=["export"]
def first_difference(a: list[int], b: list[int]) -> int | None:
    """The first place where two answers differ; None: they are equal."""
    if a == b:
        return None
    shorter = min(len(a), len(b))
    places = (i for i in range(shorter) if a[i] != b[i])
    return next(places, shorter)


def logit_gap(
    model: Any,
    ids: list[int],
    tokens: Sequence[int | None],
    stop_ids: Sequence[int],
) -> float | None:
    """How far the worse of two tokens is from the best.

    Args:
        ids: the text before them.
        tokens: the tokens; None where an answer ended.
        stop_ids: tokens that end an answer.

    Returns:
        The gap of the logits, in float32, as a share of their spread. None: an
        answer ended, but no token could end it.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np

    from dflash_lite.decoding import pack

    wide = jax.tree.map(
        lambda x: x.astype("float32") if x.dtype == jnp.bfloat16 else x, model
    )
    with jax.default_matmul_precision("highest"):
        hidden = wide(jnp.asarray(pack([ids])[0])).hidden[:, len(ids) - 1]
        logits = np.asarray(wide.logits(hidden)[0], np.float64)
    stops = [i for i in stop_ids if i < len(logits)]
    if None in tokens and not stops:
        return None
    stop = logits[stops].max(initial=-np.inf)
    scores = [stop if token is None else logits[token] for token in tokens]
    gap = (logits.max() - min(scores)) / (logits.max() - logits.min())
    return float(gap)


# %% [markdown]
# Two tests: the model's own choice has no gap, and a wrong token has a wide
# one.

# %%
chosen = alone.tokens[0]
assert logit_gap(small, [1, 2], [chosen, chosen], ()) < NEAR_TIE["float32"]
print(f"{logit_gap(small, [1, 2], [chosen, chosen + 1], ()):.2f}")
assert logit_gap(small, [1, 2], [chosen, chosen + 1], ()) > 0.1

# %% [markdown]
# ## All modes on one prompt
#
# Now the work itself. A *mode* is plain decoding or a drafter. Plain decoding
# writes the answer once, untimed: the reference that every run is compared
# with, and that `replay` replays.

# %% tags=["export"]
PLAIN = "plain"


class Bench:
    """Measures modes on prompts, one after the other.

    Args:
        drafters: by name; plain decoding is added in front.
        block: tokens of a verification, for the time of one.
        runs: how often each mode is timed on each prompt.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        drafters: dict[str, Any],
        block: int = 8,
        max_new_tokens: int = 128,
        runs: int = 3,
    ):
        self.model, self.tokenizer, self.block = model, tokenizer, block
        self.modes = {PLAIN: None} | drafters
        self.new, self.runs = max_new_tokens, runs
        self.shapes: set = set()  # for which a mode is compiled
        self.sets: list[str] = []  # in the order of their first prompts
        names = ("runs", "checks", "parts", "compilations")
        self.record: dict[str, list] = {name: [] for name in names}

    def encode(self, task: Task) -> list[int]:
        """The token ids of a prompt, as the user's turn of a chat.

        Raises:
            UserError: the prompt does not fit into the context.
        """
        from dflash_lite.decoding import encode_prompt

        ids = encode_prompt(self.tokenizer, task.prompt, True, None)
        context = self.model.config.max_position_embeddings
        if len(ids) >= context:
            refuse(
                f"The prompt in line {task.line} has {len(ids)} tokens; the "
                f"model's context is {context}, and an answer must fit in. "
                "Shorten the prompt."
            )
        return ids

    def ask(self, ids: list[int], drafter: Any) -> Any:
        """The `Generation` of a prompt."""
        from dflash_lite.decoding import generate

        how = {"max_new_tokens": self.new, "drafter": drafter}
        return generate(self.model, self.tokenizer, ids, **how)

    def warm(self, name: str, ids: list[int], drafter: Any) -> float:
        """Compile if this shape is new; return the seconds of compiling."""
        context = self.model.config.max_position_embeddings
        shape = name, table(ids, [], self.new, context).shape, len_bucket(ids)
        if shape in self.shapes:
            return 0.0
        self.shapes.add(shape)
        return self.ask(ids, drafter).statistics.compile_seconds

    def measure(self, task: Task) -> Iterator[str]:
        """Measure a prompt and add it to the record; yield what begins."""
        ids = self.encode(task)
        self.sets += [task.set] * (task.set not in self.sets)
        label = {"prompt": task.line, "set": task.set}
        found: dict[str, list] = {name: [] for name in self.record}
        yield PLAIN
        compiled = {PLAIN: self.warm(PLAIN, ids, None)}
        reference = self.ask(ids, None)
        known = self.table(ids, reference)
        modes = {name: with_answer(d, known) for name, d in self.modes.items()}
        for mode, drafter in modes.items():
            yield mode
            if mode not in compiled:
                compiled[mode] = self.warm(mode, ids, drafter)
            entry = {"mode": mode, "compile_seconds": compiled[mode]}
            found["compilations"].append(label | entry)
        turn = task.number * self.runs + self.sets.index(task.set)
        for run in range(self.runs):
            for place, mode in enumerate(rotated(list(modes), turn + run)):
                yield mode
                written = self.ask(ids, modes[mode])
                where = {"mode": mode, "run": run, "place": place}
                found["runs"].append(label | where | run_entry(written))
                entry = self.compare(ids, reference.tokens, written.tokens)
                if entry is not None:
                    found["checks"].append(label | where | entry)
            yield "parts of a step"
            entry = self.take_apart(ids, known)
            found["parts"].append(label | {"run": run} | entry)
        for name, entries in found.items():
            self.record[name] += entries

    def table(self, ids: list[int], reference: Any) -> Any:
        """The table of a prompt and its answer."""
        context = self.model.config.max_position_embeddings
        return table(ids, reference.tokens, self.new, context)

    def compare(
        self, ids: list[int], ours: list[int], theirs: list[int]
    ) -> dict[str, Any] | None:
        """Where an answer leaves the reference, and the gap there."""
        at = first_difference(ours, theirs)
        if at is None:
            return None
        tokens = [dict(enumerate(answer)).get(at) for answer in (ours, theirs)]
        stops = self.tokenizer.stop_ids
        gap = logit_gap(self.model, ids + ours[:at], tokens, stops)
        limit = NEAR_TIE[str(self.model.embed_tokens.dtype)]
        tie = gap is not None and gap < limit
        return {"position": at, "gap": gap, "near_tie": tie}

    def take_apart(self, ids: list[int], known: Any) -> dict[str, Any]:
        """Milliseconds of a verification, and of each drafter's drafting.

        A draft's can be below zero where the machine is not quiet.
        """
        from dflash_lite.speculative import Replay, Speculative

        def step_ms(name: str, drafter: Any) -> float | None:
            self.warm(f"{name} apart", ids, drafter)
            cost = self.ask(ids, drafter).statistics
            return milliseconds(cost.decode_seconds, cost.decode_steps)

        verify = step_ms(PLAIN, Replay(known, self.block))
        draft = {}
        for name, drafter in self.modes.items():
            if not isinstance(drafter, Speculative) or verify is None:
                continue
            beside = beside_class()(known, self.block, 1.0, drafter)
            free = isinstance(drafter, Replay)
            draft[name] = 0.0 if free else step_ms(name, beside) - verify
        return {"verify_ms": verify, "draft_ms": draft}


def with_answer(drafter: Any, known: Any) -> Any:
    """The drafter; a `Replay` gets the table of the answer."""
    if hasattr(drafter, "answers"):
        return replace(drafter, answers=known)
    return drafter


def len_bucket(ids: list[int]) -> int:
    """The width that a prompt is padded to."""
    from dflash_lite.decoding import bucket

    return bucket(len(ids))


def milliseconds(seconds: float, steps: int) -> float | None:
    """A step's milliseconds; None if there was none."""
    return 1e3 * seconds / steps if steps else None


# %%
drafters = make_drafters(["lookup", "replay"], small, 4)
bench = Bench(small, tokenizer, drafters, block=4, max_new_tokens=24, runs=3)
for task in tasks:
    for _ in bench.measure(task):
        pass
print({name: len(entries) for name, entries in bench.record.items()})
firsts = [run["mode"] for run in bench.record["runs"] if run["place"] == 0]
print({mode: firsts.count(mode) for mode in bench.modes})
assert bench.record["checks"] == []

# %% [markdown]
# ## From runs to a number
#
# In each run we divide the seconds of plain decoding by those of the mode, with
# the same prompt and at nearly the same time. A prompt's speedup is the median
# over its runs, a set's speedup the median over its prompts. One hiccup of the
# machine moves a mean, and a median hardly.

# %%
seconds = np.array([2.0, 2.1, 1.9, 2.0, 9.0])  # somebody started a build
print(f"mean {seconds.mean():.1f}, median {np.median(seconds):.1f}")

# %% [markdown]
# (Where two texts part at a near-tie they can have different lengths. So the
# seconds are per token, which is the same where the texts are equal.)
#
# How sure is that median? Other prompts would have given another one. The
# *bootstrap* ([Efron 1979](https://doi.org/10.1214/aos/1176344552)) makes other
# prompts out of ours: draw as many as there are, with replacement, take the
# median, and do it thousands of times. The middle 95% are the interval.

# %% tags=["export"]
RESAMPLES = 10_000


def bootstrap(
    values: Sequence[float], resamples: int = RESAMPLES
) -> tuple[float, float]:
    """A 95% interval of the median: the percentile bootstrap.

    The same values give the same interval.

    Args:
        values: one of each prompt, at least one.
        resamples: how many.

    Source: Efron 1979.
    """
    import numpy as np

    x = np.asarray(values, np.float64)
    draws = np.random.default_rng(0).integers(len(x), size=(resamples, len(x)))
    medians = np.median(x[draws], axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return float(low), float(high)


# %% [markdown]
# **Predict.** From 6 prompts to 96: how much narrower does the interval get?

# %%
speedups = np.random.default_rng(1).lognormal(0.4, 0.3, 96)
for count in (6, 24, 96):
    low, high = bootstrap(speedups[:count])
    print(f"{count:2} prompts: {low:.2f} to {high:.2f}")

# %% [markdown]
# About four times: the root of sixteen. If an interval holds 1, the benchmark
# has not shown that the mode is faster.
#
# ## Acceptance length
#
# The *acceptance length* is the number of tokens that a step adds, the bonus
# counted: without any accepted draft it is 1. Some papers leave the bonus out,
# so say which you mean. (A stop token is no token of the answer: the last step
# can add none, and plain decoding be a little below 1.) The length does not
# depend on the machine, and it says nothing about speed: a drafter that is
# always right and as slow as the model wins nothing.
#
# The share of accepted drafts by their place in the draft says how
# long a block should be: where the last places are never accepted, they only
# cost.

# %% tags=["export"]
def shares(runs: Sequence[dict[str, Any]]) -> list[float | None]:
    """Of the drafts in each place, how many were accepted."""
    places = max((len(run["drafted"]) for run in runs), default=0)
    add = lambda key, at: sum(sum(run[key][at : at + 1]) for run in runs)
    counts = [(add("accepted", i), add("drafted", i)) for i in range(places)]
    return [good / count if count else None for good, count in counts]


def prompt_speedups(
    plain: Sequence[dict[str, Any]], runs: Sequence[dict[str, Any]]
) -> list[float]:
    """Each prompt's median of plain seconds over a mode's, per token."""
    from statistics import median

    rate = lambda run: run["seconds"] / run["tokens"]
    timed = {(r["prompt"], r["run"]): r for r in plain if r["tokens"]}
    ratios: dict[int, list[float]] = {}
    for run in runs:
        beside = timed.get((run["prompt"], run["run"]))
        if beside and run["tokens"]:
            ratio = rate(beside) / rate(run)
            ratios.setdefault(run["prompt"], []).append(ratio)
    return [median(found) for found in ratios.values()]


# %% [markdown]
# ## What the law says
#
# Beside the measured speedup stands a predicted one, by the law of chapter 6:
# the tokens of a step over what it costs, in plain steps. The tokens are
# measured, and so are the costs, each alone. Where the two numbers disagree,
# something else takes time, or the machine was not quiet.
#
# A step that drafts nothing costs as much as a plain one. Prompt lookup has
# many of those.


# %% tags=["export"]
def predicted(
    plain: Sequence[dict[str, Any]],
    runs: Sequence[dict[str, Any]],
    verify_ms: float | None,
    draft_ms: float | None,
) -> float | None:
    """The speedup by the speed law; None where nothing was decoded.

    Args:
        plain: runs of plain decoding.
        runs: of a drafter.
        verify_ms: of a pass over a whole block.
        draft_ms: of drafting; less than nothing counts as nothing.

    Source: Leviathan et al. 2023, theorem 3.8.
    """
    add = lambda of, key: sum(run[key] for run in of)
    steps, tokens = add(runs, "steps"), add(runs, "tokens")
    seconds, count = add(plain, "seconds"), add(plain, "tokens")
    if None in (verify_ms, draft_ms) or not tokens or not count:
        return None
    step = milliseconds(seconds, add(plain, "steps"))
    share = sum(sum(run["drafted"][:1]) for run in runs) / steps
    cost = step + share * (verify_ms - step) + max(draft_ms, 0)
    return tokens / steps * milliseconds(seconds, count) / cost


# %%
by_hand = {"seconds": 2.0, "steps": 100, "tokens": 100, "drafted": []}
ours = {"steps": 40, "tokens": 100, "drafted": [20]}  # in half of the steps
law = predicted([by_hand], [ours], verify_ms=30, draft_ms=5)
assert np.isclose(law, (100 / 40) * 20 / (20 / 2 + 30 / 2 + 5))

# %% [markdown]
# Everything about one mode and one set. An answer of a single token needs no
# decode step; it has no speedup and is left out of the median.


# %% tags=["export"]
def summarise_mode(
    record: dict[str, list], mode: str, group: str
) -> dict[str, Any]:
    """The results of a mode on a set, or on all sets.

    Args:
        record: of a `Bench`.
    """
    from statistics import median

    inside = lambda entry: group in (ALL, entry["set"])
    ours = lambda name: [
        entry
        for entry in record[name]
        if inside(entry) and entry["mode"] == mode
    ]
    runs = ours("runs")
    plain = [r for r in record["runs"] if inside(r) and r["mode"] == PLAIN]
    ratios = prompt_speedups(plain, runs)
    low, high = bootstrap(ratios) if len(ratios) > 1 else (None, None)
    add = lambda key: sum(run[key] for run in runs)
    seconds, tokens, steps = map(add, ("seconds", "tokens", "steps"))
    parts = [part for part in record["parts"] if inside(part)]
    drafts = [p["draft_ms"][mode] for p in parts if mode in p["draft_ms"]]
    passes = [p["verify_ms"] for p in parts if p["verify_ms"] is not None]
    draft_ms = median(drafts) if drafts else None
    verify_ms = median(passes) if passes and mode != PLAIN else None
    differ = {entry["prompt"]: True for entry in ours("checks")}
    for entry in ours("checks"):
        differ[entry["prompt"]] &= entry["near_tie"]
    return {
        "mode": mode,
        "set": group,
        "prompts": len({run["prompt"] for run in runs}),
        "runs": 1 + max((run["run"] for run in runs), default=-1),
        "tokens_per_second": tokens / seconds if tokens else None,
        "speedup": median(ratios) if ratios else None,
        "speedup_low": low,
        "speedup_high": high,
        "predicted": predicted(plain, runs, verify_ms, draft_ms),
        "acceptance_length": tokens / steps if steps else None,
        "accepted_by_position": shares(runs),
        "step_ms": milliseconds(seconds, steps),
        "draft_ms": draft_ms,
        "verify_ms": verify_ms,
        "compile_seconds": sum(
            entry["compile_seconds"] for entry in ours("compilations")
        ),
        "mismatches": len(differ),
        "near_ties": sum(differ.values()),
    }


def summarise(record: dict[str, list]) -> list[dict[str, Any]]:
    """The results of each mode and set, and of all sets together."""
    modes = dict.fromkeys(run["mode"] for run in record["compilations"])
    sets = dict.fromkeys(run["set"] for run in record["compilations"])
    return [
        summarise_mode(record, mode, group)
        for group in [*sets, ALL]
        for mode in modes
    ]


# %%
found = summarise(bench.record)
for entry in found:
    if entry["set"] == "all":
        print(entry["mode"], f"{entry['acceptance_length']:.2f}", end="  ")
        print(entry["accepted_by_position"])
assert found[-1]["acceptance_length"] > 3.5

# %% [markdown]
# ## Results for others
#
# A result without its machine is worth little. But a name of a host or a path
# is nobody's business.


# %% tags=["export"]
def processor() -> str:
    """The processor's name, where the system tells it."""
    ask = ["sysctl", "-n", "machdep.cpu.brand_string"]  # on a Mac
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    name = ""
    with contextlib.suppress(OSError):
        name = subprocess.run(ask, capture_output=True, text=True).stdout
    return name.strip() or platform.processor() or platform.machine()


def hardware() -> dict[str, Any]:
    """Processor, cores and system, and not the computer's name."""
    return {
        "processor": processor(),
        "cores": cores(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def machine() -> dict[str, Any]:
    """Versions, devices and processor; neither host names nor paths."""
    import jax

    packages = ("dflash_lite", "jax", "jaxlib", "flax", "numpy")
    versions = {name: installed(name) for name in packages}
    devices = jax.devices()
    return {
        "versions": {"python": platform.python_version()} | versions,
        "platform": devices[0].platform,
        "device": devices[0].device_kind,
        "devices": len(devices),
    } | hardware()


def only_name(text: str) -> str:
    """A model's name or Hub id; of a path the last part."""
    return Path(text).resolve().name if Path(text).exists() else text


# %% tags=["export"]
@dataclass(frozen=True)
class BenchSettings:
    """The options of `dflash-lite bench`."""

    model: str = "smollm2-135m"
    dtype: str = "float32"
    drafters: tuple[str, ...] | None = None  # all that fit the model
    block: int = 8
    max_new_tokens: int = 128
    runs: int = 3


FORMAT = "dflash-lite bench 1"


def as_results(
    bench: Bench, settings: BenchSettings, about: dict[str, Any], total: int
) -> dict[str, Any]:
    """All that was measured so far, ready for JSON.

    Args:
        about: the machine.
        total: how many prompts there are.
    """
    options = asdict(settings) | {"model": only_name(settings.model)}
    options["drafters"] = [mode for mode in bench.modes if mode != PLAIN]
    done = len(bench.record["parts"]) // bench.runs
    return {
        "format": FORMAT,
        "machine": about,
        "settings": options | {"prompts": total},
        "complete": done == total,
        "results": summarise(bench.record),
        **{name: entries[:] for name, entries in bench.record.items()},
    }


def as_text(results: dict[str, Any]) -> str:
    """The results as JSON, each entry of a list on a line of its own."""

    def value(of: Any) -> str:
        if not isinstance(of, list):
            return json.dumps(of)
        return "[\n" + ",\n".join(map(json.dumps, of)) + "\n]"

    pairs = [f"{json.dumps(key)}: {value(of)}" for key, of in results.items()]
    return "{\n" + ",\n".join(pairs) + "\n}"


# %% [markdown]
# People read a table.


# %% tags=["export"]
def shown(value: float | None, form: str = ".2f") -> str:
    """A number for people; a dash for None."""
    return "–" if value is None else format(value, form)


def percents(values: Sequence[float | None]) -> str:
    """Shares as whole percents, one behind the other."""
    return " ".join(shown(v and 100 * v, ".0f") for v in values) or "–"


def markdown_row(entry: dict[str, Any]) -> list[str]:
    """The cells of one mode and set."""
    speedup = shown(entry["speedup"])
    if entry["speedup_low"] is not None and entry["mode"] != PLAIN:
        low, high = entry["speedup_low"], entry["speedup_high"]
        speedup += f" ({low:.2f} to {high:.2f})"
    differ = f"{entry['mismatches']} of {entry['prompts']}"
    if entry["mismatches"]:
        differ += f", near-ties {entry['near_ties']}"
    return [
        entry["set"],
        entry["mode"],
        shown(entry["tokens_per_second"], ".1f"),
        speedup,
        shown(entry["predicted"]),
        shown(entry["acceptance_length"]),
        percents(entry["accepted_by_position"]),
        shown(entry["draft_ms"]),
        shown(entry["verify_ms"]),
        differ,
    ]


HEADER = [
    "set",
    "mode",
    "tokens/s",
    "speedup (95%)",
    "predicted",
    "acceptance length",
    "accepted by position, %",
    "draft ms",
    "verify ms",
    "texts that differ",
]


def markdown(results: dict[str, Any]) -> str:
    """The results as a table in Markdown, and what its numbers mean.

    Args:
        results: from `as_results`, or the JSON file of `dflash-lite bench`.
    """
    entries = results["results"]
    several = len({entry["set"] for entry in entries}) > 2
    rows = [
        markdown_row(entry)
        for entry in entries
        if several or entry["set"] != ALL
    ]
    table = [HEADER, ["---"] * len(HEADER), *rows]
    lines = [f"| {' | '.join(cells)} |" for cells in table]
    about, how = results["machine"], results["settings"]
    compiled = sum(e["compile_seconds"] for e in entries if e["set"] == ALL)
    done = max((e["prompts"] for e in entries if e["set"] == ALL), default=0)
    versions = about["versions"]
    notes = (
        f"{how['model']}, {how['dtype']}, greedy, batch 1: {done} of "
        f"{how['prompts']} prompts, up to {how['max_new_tokens']} tokens, "
        f"{how['runs']} run{'s' * (how['runs'] > 1)}, {how['block']} tokens in "
        "a verification.",
        "Speedup: plain seconds over the mode's, of decoding one prompt in "
        "one run; the median, in brackets a 95% bootstrap interval over the "
        "prompts. Acceptance length: tokens a step, the bonus counted and a "
        "stop token not. Draft and verify: a step's parts, measured apart, "
        "with all drafts accepted. Predicted: the speedup that these allow by "
        "the speed law. Texts that differ from plain decoding's are "
        "near-ties where both tokens are almost the best.",
        f"Compiling took {compiled:.1f} s and is in none of these numbers.",
        f"{about['device']}, {about['processor']}, "
        f"{about['cores']} cores; python {versions['python']}, jax "
        f"{versions['jax']}, dflash_lite {versions['dflash_lite']}.",
    )
    return "\n".join(lines) + "\n\n" + "\n\n".join(notes) + "\n"


# %%
settings = BenchSettings("small", drafters=tuple(drafters), block=4)
settings = changed(settings, max_new_tokens=24)
results = as_results(bench, settings, machine(), len(tasks))
assert json.loads(as_text(results)) == results

# %% tags=["nbval-ignore-output"]
print(markdown(results))

# %% [markdown]
# And a picture, on white, so that it can stand on a dark page. Hatches tell the
# modes apart where colours do not.

# %% tags=["export"]
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "ooo", "+++", "---")


def draw_speedups(results: dict[str, Any]) -> Any:
    """A matplotlib `Figure`: a bar for each mode and set, with its interval."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    known = [e for e in results["results"] if e["speedup"] is not None]
    modes = dict.fromkeys(e["mode"] for e in known if e["mode"] != PLAIN)
    sets = list(dict.fromkeys(entry["set"] for entry in known))
    figure = Figure(figsize=(8, 3.5), facecolor="white", layout="constrained")
    axes = figure.add_subplot()
    width = 0.8 / max(1, len(modes))
    for number, mode in enumerate(modes):
        ours = {e["set"]: e for e in known if e["mode"] == mode}
        bars = [ours[name] for name in sets if name in ours]
        at = [sets.index(e["set"]) - 0.4 + (number + 0.5) * width for e in bars]
        highs = [e["speedup"] for e in bars]
        ends = [(e["speedup_low"], e["speedup_high"]) for e in bars]
        errors = [
            (high - (low or high), (top or high) - high)
            for high, (low, top) in zip(highs, ends, strict=True)
        ]
        colour = colormaps["cividis"](0.35 + 0.65 * number / len(modes))
        look = {"edgecolor": "black", "hatch": HATCHES[number % len(HATCHES)]}
        axes.bar(at, highs, width, label=mode, color=colour, **look)
        down, up = zip(*errors, strict=True)
        line = {"fmt": "none", "color": "black", "capsize": 3}
        axes.errorbar(at, highs, (down, up), **line)
    axes.axhline(1, color="black", linestyle="--", linewidth=1)
    axes.set_xticks(range(len(sets)), sets)
    axes.set_ylabel("times as fast as plain decoding")
    if modes:
        figure.legend(ncols=len(modes), loc="outside upper left")
    return figure


def picture(results: dict[str, Any], kind: str) -> bytes:
    """The drawn speedups as "png", "svg" or "pdf"."""
    import io

    data = io.BytesIO()
    draw_speedups(results).savefig(data, format=kind, dpi=150)
    return data.getvalue()


# %% tags=["nbval-ignore-output"] mystnb={"image": {"alt": "Bars of the speedup of prompt lookup and replay on the sets chat and copy and on both, each with another hatch and an interval. A dashed line marks plain decoding."}}
Image(picture(results, "png"), width=560)

# %% [markdown]
# ## Files that are whole
#
# A benchmark takes an hour, and then the file cannot be written, because its
# folder does not exist. So we try before we measure. And whoever opens the file
# while we write must see the old results or the new, never half of them: write
# another file, then rename it.


# %% tags=["export"]
def part_of(path: Path) -> Path:
    """The file beside a file that is written first."""
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole or not at all."""
    path = path.resolve()
    try:
        part_of(path).write_bytes(data)
        os.replace(part_of(path), path)
    finally:
        part_of(path).unlink(missing_ok=True)


def check_writable(path: Path, endings: Sequence[str] = ()) -> None:
    """Refuse a file that could not be written.

    Args:
        endings: of the name, if not all will do.

    Raises:
        UserError: it says why.
    """
    if endings and path.suffix.lower() not in endings:
        refuse(
            f"The file is {str(path)!r}; expected a name that ends in "
            f"{', '.join(endings)}."
        )
    path = path.resolve()
    if path.exists() and not path.is_file():
        refuse(f"{path} is no file that could be replaced; give another name.")
    if not path.parent.is_dir():
        refuse(f"There is no folder {path.parent}; make it first.")
    if path.exists() and not os.access(path, os.W_OK):
        refuse(f"The file {path} is write-protected; give another name.")
    try:
        part_of(path).touch()
        part_of(path).unlink()
    except OSError as error:
        refuse(
            f"The file {path} cannot be written: {error.strerror}. Give one in "
            "another folder."
        )


# %%
for wrong in ("/nowhere/results.json", "/dev/null", "/"):
    try:
        check_writable(Path(wrong))
    except UserError as error:
        print(error)

# %% [markdown]
# ## The command bench
#
# The work runs in another thread, as in chapter 90. After each prompt it hands
# over all results so far. The main thread writes them to the file and waits
# again; it must not compute while the other one measures, so even the text of
# the file comes from there.

# %% tags=["export"]
class Event(NamedTuple):
    """What the working thread reports."""

    stage: str  # it begins with this; "": nothing to show
    share: float = 0.0  # of the work is done
    so_far: Any = None


def open_model(name: str, dtype: str) -> Iterator[Event]:
    """Report while a model loads; return it and its tokenizer."""
    yield Event("Starting")
    from dflash_lite import checkpoints, transformer

    keep_programs()
    yield Event("")  # a download shows a bar of its own
    checkpoint = checkpoints.open_checkpoint(name)
    yield Event(f"Loading {only_name(name)}")
    model = transformer.from_checkpoint(checkpoint, dtype)
    return model, checkpoint.tokenizer


def measure_all(
    settings: BenchSettings, tasks: Sequence[Task]
) -> Iterator[Event]:
    """Measure all prompts; after each come the results and their JSON.

    Raises:
        UserError: there is no such model, a drafter does not fit, or a prompt.
    """
    model, tokenizer = yield from open_model(settings.model, settings.dtype)
    block, new, runs = settings.block, settings.max_new_tokens, settings.runs
    drafters = make_drafters(settings.drafters, model, block)
    bench = Bench(model, tokenizer, drafters, block, new, runs)
    for task in tasks:
        bench.encode(task)  # all mistakes come before the first run
    about = machine()
    for number, task in enumerate(tasks):
        steps = (1 + len(bench.modes)) * (runs + 1)
        for step, mode in enumerate(bench.measure(task)):
            share = (number + step / steps) / len(tasks)
            yield Event(f"{task.set} {task.number + 1}, {mode}", share)
        results = as_results(bench, settings, about, len(tasks))
        text = as_text(results)
        share = (number + 1) / len(tasks)
        yield Event(task.set, share, (results, text))


# %% [markdown]
# A bar on standard error shows how far we are, on terminals only.


# %% tags=["export"]
def watch(events: Iterator[Event], path: Path | None) -> tuple[Any, bool]:
    """Show the progress, keep the results in a file as they come.

    Returns:
        The last results, None if there are none; and whether all came.
    """
    from tqdm import tqdm

    results, written, text = None, None, None
    form = "{desc}: {percentage:3.0f}% |{bar}| {elapsed}<{remaining}"
    bar = tqdm(total=1, file=sys.stderr, bar_format=form, leave=False,
               disable=not sys.stderr.isatty(), ascii=True)  # fmt: skip
    try:
        for event in events:
            if not event.stage:
                bar.clear()
                continue
            bar.set_description(event.stage, refresh=False)
            bar.n = event.share
            bar.refresh()
            if event.so_far is not None:
                results, text = event.so_far
                keep(path, text)
                written = text
        return results, True
    except KeyboardInterrupt:
        if written is not text:
            keep(path, text)
        return results, False
    finally:
        bar.close()


def keep(path: Path | None, text: str) -> None:
    """Write results to their file, if there is one."""
    if path is not None:
        write_whole(path, f"{text}\n".encode())


# %% [markdown]
# Options that both commands have, once.

# %% tags=["export"]
ModelOption = Annotated[
    str, typer.Option(help="A name, a .gguf file, a folder, or a Hub id.")
]
DraftersOption = Annotated[
    str | None,
    typer.Option(
        help=f"Some of {', '.join(DRAFTERS)}, with commas; early-exit:10 runs "
        "10 layers. Default: all that fit the model."
    ),
]
BlockOption = Annotated[
    int,
    typer.Option(
        min=2, help="Tokens in a verification: the last one and the drafts."
    ),
]
DtypeOption = Annotated[
    Literal["float32", "bfloat16"], typer.Option(help="Numbers of the weights.")
]

# %% tags=["export"]
@app.command("bench")
def bench_command(
    model: ModelOption = "smollm2-135m",
    drafters: DraftersOption = None,
    block: BlockOption = 8,
    prompts: Path = typer.Option(
        None, help=f"A file with lines like {EXAMPLE}. Default: the package's."
    ),
    sets: str = typer.Option(
        None, help="Only these sets of prompts, with commas."
    ),
    max_new_tokens: int = typer.Option(
        128, min=1, help="At most so many for each prompt."
    ),
    runs: int = typer.Option(3, min=1, help="How often each is timed."),
    dtype: DtypeOption = "float32",
    json_file: Path = typer.Option(
        None, "--json", help="Keep all results in this file, as they come."
    ),
    plot_file: Path = typer.Option(
        None, "--plot", help="Draw the speedups: a .png, .svg or .pdf file."
    ),
) -> None:
    """Measure drafters against plain decoding on many prompts."""
    with exit_codes():
        silence()
        names = check_names(drafters)
        tasks = read_tasks(prompts, sets)
        if json_file is not None:
            check_writable(json_file)
        if plot_file is not None:
            check_writable(plot_file, (".png", ".svg", ".pdf"))
        paths = [f.resolve() for f in (json_file, plot_file) if f is not None]
        if len(set(paths)) < len(paths):
            refuse(f"--json and --plot both name {plot_file}; give two files.")
        wanted = None if names is None else tuple(names)
        how = (model, dtype, wanted, block, max_new_tokens, runs)
        events = in_background(measure_all(BenchSettings(*how), tasks))
        results, whole = watch(events, json_file)
        if results is not None:
            if plot_file is not None:
                write_plot(plot_file, results)
            print(markdown(results), end="", flush=True)
        if not whole:
            raise KeyboardInterrupt


def write_plot(path: Path, results: dict[str, Any]) -> None:
    """Draw the speedups into a file; its ending says the format."""
    write_whole(path, picture(results, path.suffix.lower()[1:]))


# %% [markdown]
# After Ctrl-C the results of all whole prompts are in the file and in the
# table, and the exit code is 130.
#
# ## The command compare
#
# One prompt, each mode once, and you look on. The looking costs something: the
# host fetches the text every few steps. Each mode is compiled before, by a
# stream that is left after its first decode steps.


# %% tags=["export"]
def compile_stream(stream: Any) -> float:
    """Let a stream decode a little; return the seconds of compiling."""
    for _ in stream:
        if stream.statistics.decode_tokens:
            break
    stream.work.close()
    return stream.statistics.compile_seconds


def compare_all(
    prompt: str,
    settings: Settings,
    names: Sequence[str] | None,
    block: int,
) -> Iterator[Event]:
    """Let each mode answer; report mode, compile seconds and `Generation`.

    Raises:
        UserError: there is no such model, a drafter does not fit, or the
            prompt.
        typer.BadParameter: a setting is impossible.
    """
    yield Event("Starting")
    from dflash_lite import checkpoints, decoding

    options = asdict(settings)
    del options["model"], options["dtype"]
    checked = ("max_new_tokens", "temperature", "top_k", "top_p", "seed")
    try:
        decoding.check_settings(*(options[key] for key in checked))
    except checkpoints.UserError as error:
        raise typer.BadParameter(str(error)) from None
    model, tokenizer = yield from open_model(settings.model, settings.dtype)
    how = (tokenizer, prompt, settings.chat, settings.system)
    ids = decoding.encode_prompt(*how)
    modes = {PLAIN: None} | make_drafters(names, model, block)
    known = None
    for mode, drafter in modes.items():
        yield Event(mode)
        drafter = with_answer(drafter, known)
        ask = lambda drafter: decoding.generate(
            model, tokenizer, prompt, **options, stream=True, drafter=drafter
        )
        compiled = compile_stream(ask(drafter))
        stream = ask(drafter)
        for _ in stream:
            state = mode, compiled, snapshot(stream.result)
            yield Event(mode, so_far=state)
        yield Event(mode, so_far=(mode, compiled, snapshot(stream.result)))
        if known is None:
            context = model.config.max_position_embeddings
            new = settings.max_new_tokens
            known = table(ids, stream.result.tokens, new, context)


# %% tags=["export"]
def compare_entry(
    mode: str, compiled: float, generation: Any, plain: Any
) -> dict[str, Any]:
    """What a mode did, beside plain decoding."""
    cost = generation.statistics
    speed, other = cost.tokens_per_second, plain.statistics.tokens_per_second
    common = min(len(generation.tokens), len(plain.tokens))
    whole = generation.finish_reason != "interrupted"
    same = generation.tokens[:common] == plain.tokens[:common]
    if whole and plain.finish_reason != "interrupted":
        same = generation.tokens == plain.tokens
    return {
        "mode": mode,
        "tokens": len(generation.tokens),
        "finish_reason": generation.finish_reason,
        "tokens_per_second": speed or None,
        "ratio": speed / other if speed and other else None,
        "acceptance_length": cost.acceptance_length or None,
        "accepted_by_position": shares([run_entry(generation)]),
        "same_text": same,
        "compile_seconds": compiled + cost.compile_seconds,
        "text": generation.text,
    }


def compare_entries(found: dict[str, tuple]) -> list[dict[str, Any]]:
    """An entry for each mode that has begun."""
    if not found:
        return []
    plain = next(iter(found.values()))[1]
    return [
        compare_entry(mode, *state, plain) for mode, state in found.items()
    ]


def compare_table(entries: Sequence[dict[str, Any]]) -> Any:
    """The modes as a table of rich."""
    from rich import box
    from rich.table import Table

    how = {"show_edge": False, "pad_edge": False, "collapse_padding": True}
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), **how)
    table.add_column("mode")
    for name in ("tokens/s", "ratio", "tokens/step"):
        table.add_column(name, justify="right")
    table.add_column("accepted by position, %")
    table.add_column("text")
    for entry in entries:
        cut = " (cut)" * (entry["finish_reason"] == "interrupted")
        table.add_row(
            entry["mode"] + cut,
            shown(entry["tokens_per_second"], ".1f"),
            shown(entry["ratio"]),
            shown(entry["acceptance_length"]),
            percents(entry["accepted_by_position"]),
            "same" if entry["same_text"] else "other",
        )
    return table


DRAWN = (
    "Other: a drafter that draws its drafts uses random numbers of its own. "
    "The text is another one, as likely as plain decoding's."
)
PARTED = (
    "Other: the text parts from plain decoding's. `dflash-lite bench` says "
    "whether at a near-tie, where rounding decides, or by a bug."
)
NOTE = (
    "Tokens/step: the acceptance length, the bonus counted and a stop token "
    "not. Reading the prompt and compiling are not timed. One run each; "
    "`dflash-lite bench` repeats."
)

# %% [markdown]
# The live view shows the end of the text that is being written, and the table
# as far as it is known.


# %% tags=["export"]
def live_view(stage: str, found: dict[str, tuple], width: int) -> Any:
    """What the terminal shows while a mode works."""
    from rich.console import Group
    from rich.text import Text

    text = found[stage][1].text if stage in found else ""
    tail = Text("\n".join(text[-6 * width :].split("\n")[-6:]))
    head = Text(f"{stage} …", style="bold")
    return Group(head, tail, compare_table(compare_entries(found)))


def follow_modes(events: Iterator[Event]) -> tuple[dict[str, tuple], bool]:
    """Show the modes while they work, on a terminal.

    Returns:
        Compile seconds and `Generation` of each mode; whether all ended.
    """
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True, force_terminal=sys.stderr.isatty())
    live = Live(console=console, transient=True, auto_refresh=False,
                redirect_stdout=False, redirect_stderr=False)  # fmt: skip
    seen = sys.stderr.isatty() and not console.is_dumb_terminal
    found: dict[str, tuple] = {}
    try:
        for event in events:
            if event.so_far is not None:
                mode, *state = event.so_far
                found[mode] = tuple(state)
            if seen and event.stage:
                live.start()
                view = live_view(event.stage, found, console.width)
                live.update(view, refresh=True)
            elif seen:
                live.stop()
        return found, True
    except KeyboardInterrupt:
        return found, False
    finally:
        live.stop()


# %% tags=["export"]
@app.command("compare")
def compare_command(
    prompt: str = typer.Argument(
        None, help="The prompt (quoted), or - for standard input."
    ),
    model: ModelOption = "smollm2-135m",
    drafters: DraftersOption = None,
    block: BlockOption = 8,
    max_new_tokens: int = typer.Option(128, min=0, help="At most so many."),
    temperature: float = typer.Option(0.0, help="0 takes the likeliest token."),
    top_k: int = typer.Option(
        None, min=1, help="With a temperature: of the k likeliest."
    ),
    top_p: float = typer.Option(
        None, help="With a temperature: of this much probability."
    ),
    seed: int = typer.Option(0, help="The same seed gives the same text."),
    chat: bool = typer.Option(
        True, "--chat/--raw", help="Ask a question, or continue a text."
    ),
    system: str = typer.Option(None, help="The system message of the chat."),
    dtype: DtypeOption = "float32",
    as_object: bool = typer.Option(
        False, "--json", help="Print one JSON object."
    ),
) -> None:
    """Let plain decoding and every drafter answer a prompt; compare them."""
    sampling = (max_new_tokens, temperature, top_k, top_p, seed)
    settings = Settings(model, dtype, *sampling, chat, system)
    if system is not None and not chat:
        raise typer.BadParameter("--raw has no chat, so leave out --system.")
    with exit_codes():
        silence()
        names, text = check_names(drafters), read_prompt(prompt)
        events = in_background(compare_all(text, settings, names, block))
        found, whole = follow_modes(events)
        if not found:
            raise KeyboardInterrupt
        show_comparison(compare_entries(found), settings, block, as_object)
    if not whole:
        leave(128 + signal.SIGINT)


LEAST_WIDTH = 64  # of the table; a terminal may break lines, rich would cut


def show_comparison(
    entries: list[dict[str, Any]],
    settings: Settings,
    block: int,
    as_object: bool,
) -> None:
    """Print the table, or one JSON object."""
    if as_object:
        options = asdict(settings) | {"model": only_name(settings.model)}
        record = {"machine": machine(), "settings": options | {"block": block}}
        print(json.dumps(record | {"modes": entries}))
        return
    from rich.console import Console

    console = Console()
    console.width = max(console.width, LEAST_WIDTH)
    with console.capture() as table:  # else rich ends a closed pipe its own way
        console.print(compare_table(entries))
    print(table.get(), end="", flush=True)
    say(NOTE)
    if not all(entry["same_text"] for entry in entries):
        say(DRAWN if settings.temperature else PARTED)


# %% [markdown]
# Whoever enters by this door finds these two commands as well.


# %% tags=["export"]
def main() -> None:
    """The command `dflash-lite`; it ends the process."""
    start()


# %% [markdown]
# ## A look
#
# The real model copies a text, alone and with the free drafter.

# %%
call = "import dflash_lite.benchmark as b; b.main()"
dflash_lite = f"{shlex.quote(sys.executable)} -c '{call}'"
wanted = "Write this again, word for word: The lamp has not missed a night."
compared = subprocess.run(
    f"{dflash_lite} compare --drafters lookup --max-new-tokens 16 '{wanted}'",
    shell=True, capture_output=True, text=True,
)  # fmt: skip

# %% tags=["nbval-ignore-output"]
print(compared.stdout, compared.stderr)

# %%
assert compared.returncode == 0 and compared.stdout.count("same") == 2

# %% [markdown]
# ## Exercises
#
# **93.1 Two papers** (5 minutes). One paper counts accepted drafts per step,
# the other tokens per step with the bonus. From the number of accepted drafts
# of each step, return both.


# %% tags=["exercise"]
def lengths(accepted: list[int]) -> tuple[float, float]:
    """Accepted drafts per step, and tokens per step with the bonus."""
    ### BEGIN SOLUTION
    mean = sum(accepted) / len(accepted)
    return mean, mean + 1
    ### END SOLUTION


# %% tags=["check"]
@check(lengths)
def _(f):
    drafts, tokens = f([2, 0, 1])
    assert drafts != 3, "per step: divide by the number of steps"
    assert drafts == 1, "three drafts in three steps"
    assert tokens != 1, "each step adds a bonus"
    assert tokens == 2, "three drafts and three bonuses in three steps"
    assert f([0]) == (0, 1), "a step without accepted drafts adds its bonus"


# %% [markdown]
# **93.2 Shown or not?** (10 minutes). From the intervals of two modes against
# plain decoding, say what is shown about each: `"faster"`, `"slower"` or
# `"not shown"`.


# %% tags=["exercise"]
def verdict(low: float, high: float) -> str:
    """What a 95% interval of a speedup shows."""
    ### BEGIN SOLUTION
    return "faster" if low > 1 else "slower" if high < 1 else "not shown"
    ### END SOLUTION


# %% tags=["check"]
@check(verdict)
def _(f):
    assert f(0.95, 1.4) != "faster", "an interval that holds 1 shows nothing"
    assert f(0.95, 1.4) == "not shown"
    assert f(1.1, 1.4) == "faster", "the whole interval is above 1"
    assert f(0.6, 0.9) == "slower", "the whole interval is below 1"


# %% [markdown]
# ## Key points
#
# - Take turns, let each begin equally often, and take ratios within a turn.
# - A median of ratios and a bootstrap interval over the prompts say how fast,
#   and how sure.
# - Acceptance length counts the bonus here. It is no speedup.
# - Where two texts part, both tokens must be almost the best for the model, in
#   float32; else it is a bug.
# - Keep the raw seconds, so that others can compute again.
