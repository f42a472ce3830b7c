# ---
# jupyter:
#   dflash_lite:
#     module: traces
#     public:
#     - Trace
#     - TraceStep
#     - player
#     - read_trace
#     - record_trace
#     - save_trace
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
# # 92. Traces you can replay
#
# A trace says of each step of a generation what was drafted, what was kept,
# and when. A player replays traces on one clock, so that you see one method
# overtake another.
#
# **The question.** Where does the time of speculative decoding go, token by
# token?
#
# **Afterwards you can** read a trace, write one that holds together, replay
# several beside each other, and say from a trace whether a drafter pays.
#
# **Time.** 15 minutes to read and run, 10 minutes of exercises.

# %% tags=["export"]
import dataclasses
import html
import json
import math
import numbers
import os
import re
import reprlib
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

from dflash_lite.checkpoints import UserError

# %%
import tempfile

from dflash_lite.exercises import check

# %% [markdown]
# ## One step
#
# In speculative decoding a small *drafter* proposes a few tokens, the *drafts*.
# The model that we want to hear, the *target*, reads them all in one pass. It
# accepts drafts from the left up to the first that it refuses. Then it adds one
# token of its own, the *bonus*.
#
# Plain decoding fits the same form: no drafts, and each step is a bonus.


# %% tags=["export"]
@dataclass(frozen=True)
class TraceStep:
    """One pass of the target, and what came of it."""

    seconds: float  # from the end of prefill to the end of this step
    drafts: tuple[int, ...]
    draft_pieces: tuple[str, ...]  # the drafts as text
    accepted: int  # so many drafts, from the left
    target: float | None  # its probability of the first refused draft
    drafter: float | None  # the drafter's, where it tells
    bonus: int | None  # the target's own token; None: the text had ended
    new: int  # tokens that this step added to the text
    pages: int | None = None  # in use after the step, with a paged cache


# %% [markdown]
# Time counts from the end of prefill and leaves compilation out. `new` is
# `accepted`, and one more with the bonus. It is less when the text ends inside
# the block: a stop token is never part of the text.
#
# **Predict.** Three of seven drafts are accepted. How many tokens does the step
# add, and how many did the target read?

# %%
step = TraceStep(
    seconds=0.03,
    drafts=(11, 12, 13, 91, 92, 93, 94),
    draft_pieces=(" sky", " looks", " blue", " and", " the", " sun", " is"),
    accepted=3,
    target=0.03,
    drafter=0.4,
    bonus=14,
    new=4,
)
print(step.new, "added,", 1 + len(step.drafts), "read")

# %% [markdown]
# It read the last token of the text as well, because the first draft is judged
# by what the target says after that token.

# %% [markdown]
# ## A whole generation
#
# The first token comes from prefill, before any step. A token is not always a
# character: its piece may be empty until a character is complete.

# %% tags=["export"]
SETTINGS = {
    "max_new_tokens": int,
    "temperature": float,
    "top_k": int | None,
    "top_p": float | None,
    "seed": int,
}


# %% tags=["export"]
@dataclass(frozen=True, kw_only=True)
class Trace:
    """A generation, step by step. It checks itself when it is made.

    Raises:
        UserError: a value is of the wrong kind, or two disagree; the message
            names the place.
    """

    format: Literal["dflash_lite.trace"] = "dflash_lite.trace"
    version: Literal[1] = 1
    model: str
    drafter: str  # "plain": none
    block: int  # tokens of a pass: the last one and the drafts
    prompt: str
    settings: dict[str, Any]  # with the keys of SETTINGS
    prefill_seconds: float
    tokens: tuple[int, ...]  # of the text, without a stop token
    pieces: tuple[str, ...]  # joined they are the text
    finish_reason: Literal["stop", "length", "interrupted"]
    steps: tuple[TraceStep, ...]

    def __post_init__(self):
        for name, value in _fields(vars(self), Trace, "").items():
            object.__setattr__(self, name, value)
        for holds, place, value, expected in _rules(self):
            if not holds:
                _wrong(place, value, expected)

    def to_json(self) -> str:
        """The trace as JSON, in ASCII and without spaces."""
        record = dataclasses.asdict(self)
        return json.dumps(record, separators=(",", ":"), allow_nan=False)


# %% [markdown]
# ## One sentence a mistake
#
# A trace may come from another program, or from an editor. If it is wrong, the
# player would show nonsense, and nobody would notice. So each mistake gets one
# sentence: the place, the value, what was expected, and what to do.


# %% tags=["export"]
def _wrong(place: str, value: Any, expected: str) -> NoReturn:
    raise UserError(
        f"{place} is {reprlib.repr(value)}; expected {expected}. Record the "
        "trace again, or mend this value."
    )


# %% [markdown]
# **Kinds.** The annotations of the two classes say what each value must be. We
# read them instead of writing them again.
#
# Python counts `True` as a 1, and JSON's numbers include `1e999`, which is no
# number here. Whole numbers end where those of a browser end.

# %% tags=["export"]
LARGEST = 2**53 - 1  # the last whole number that JavaScript counts to


def _value(value: Any, kind: Any, place: str) -> Any:
    """The value, as its annotation wants it."""
    inner = typing.get_args(kind)
    if isinstance(kind, types.UnionType):
        return None if value is None else _value(value, inner[0], place)
    if kind is TraceStep:
        if not isinstance(value, TraceStep | dict):
            _wrong(place, value, "a step: an object")
        known = value if isinstance(value, dict) else vars(value)
        return TraceStep(**_fields(known, TraceStep, place + "."))
    origin = typing.get_origin(kind)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            _wrong(place, value, "a list")
        each = enumerate(value)
        return tuple(_value(v, inner[0], f"{place}[{i}]") for i, v in each)
    if origin is dict:
        if not isinstance(value, dict):
            _wrong(place, value, f"an object with {', '.join(SETTINGS)}")
        return _known(value, SETTINGS, place + ".")
    if origin is Literal:
        if value not in inner or isinstance(value, bool):
            _wrong(place, value, " or ".join(map(repr, inner)))
        return value
    return _scalar(value, kind, place)


# %% [markdown]
# A character outside the first 65,536 can be written as two *surrogates*. Such
# a pair reads back as the character that it stands for. A single one is no
# character at all. A trace keeps it as it is.


# %% tags=["export"]
def _scalar(value: Any, kind: type, place: str) -> Any:
    """A text or a number."""
    if kind is str:
        if not isinstance(value, str):
            _wrong(place, value, "a text")
        code = value.encode("utf-16-le", "surrogatepass")
        return code.decode("utf-16-le", "surrogatepass")
    number = numbers.Integral if kind is int else numbers.Real
    least = -LARGEST if place == "settings.seed" else 0
    if (
        isinstance(value, bool)
        or not isinstance(value, number)
        or not least <= value <= LARGEST  # NaN is in no range
    ):
        what = "whole number" if kind is int else "number"
        _wrong(place, value, f"a {what} from {least} to {LARGEST}")
    return kind(value)


# %% [markdown]
# No key may be missing, and none may be unknown: a misspelt key is both.


# %% tags=["export"]
def _known(
    record: dict[str, Any], kinds: dict[str, Any], place: str
) -> dict[str, Any]:
    """The values of a record that has these keys and no others."""
    for key in record:
        if key not in kinds:
            _wrong(f"{place}{key!s:.40}", record[key], "no such key")
    for key in kinds:
        if key not in record:
            raise UserError(
                f"{place}{key} is missing; expected {', '.join(kinds)}. "
                "Record the trace again, or add it."
            )
    return {k: _value(record[k], kinds[k], place + k) for k in kinds}


def _fields(record: dict[str, Any], cls: type, place: str) -> dict[str, Any]:
    return _known(record, typing.get_type_hints(cls), place)


# %% [markdown]
# **Rules.** Values of the right kind can still contradict each other. A rule
# says whether it holds, and else what to complain about. Each may rely on those
# before it.


# %% tags=["export"]
Rule = tuple[bool, str, Any, str]  # does it hold; place, value, expectation


def _rules(trace: Trace) -> Iterator[Rule]:
    """What must hold between the values of a trace."""
    count, most = len(trace.tokens), trace.settings["max_new_tokens"]
    top_p = trace.settings["top_p"]
    plain = trace.drafter == "plain"
    block = "1, because the drafter is plain" if plain else "at least 2"
    yield (trace.block == 1) == plain, "block", trace.block, block
    yield trace.block > 0, "block", trace.block, block
    yield top_p is None or top_p <= 1, "settings.top_p", top_p, "at most 1"
    yield len(trace.pieces) == count, "pieces", trace.pieces, f"{count} texts"
    yield count <= most, "tokens", trace.tokens, f"at most {most} of them"
    at, seconds = min(count, 1), 0.0
    for number, step in enumerate(trace.steps):
        last = number == len(trace.steps) - 1
        for holds, name, value, expected in _step_rules(step, trace, last):
            yield holds, f"steps[{number}].{name}", value, expected
        place = f"steps[{number}]."
        late = f"at least {seconds}, the end of the step before"
        yield step.seconds >= seconds, place + "seconds", step.seconds, late
        own = step.drafts[: step.accepted] + (step.bonus,)
        added = trace.tokens[at : at + step.new]
        says = f"to add {added} as tokens[{at}:{at + step.new}] says"
        yield own[: step.new] == added, place + "drafts and bonus", own, says
        at, seconds = at + step.new, step.seconds
    added = f"{at} of them: one from prefill, and each step's `new`"
    yield at == count, "tokens", trace.tokens, added


# %% [markdown]
# Only the last step may lack a bonus or lose tokens, because only there does
# the text end.


# %% tags=["export"]
def _step_rules(step: TraceStep, trace: Trace, last: bool) -> Iterator[Rule]:
    """What must hold within a step."""
    drafts = len(step.drafts)
    most = f"at most {trace.block - 1}, one less than the block"
    yield drafts < trace.block, "drafts", step.drafts, most
    pieces, texts = step.draft_pieces, f"{drafts} texts"
    yield len(pieces) == drafts, "draft_pieces", pieces, texts
    most = f"at most {drafts}, the number of drafts"
    yield step.accepted <= drafts, "accepted", step.accepted, most
    whole = step.accepted + (step.bonus is not None)
    there = step.bonus is not None or last
    yield there, "bonus", None, "a token, because steps follow"
    accepted = f"{whole}, the accepted drafts and the bonus"
    yield step.new <= whole, "new", step.new, f"at most {accepted}"
    yield step.new == whole or last, "new", step.new, accepted
    refused = step.accepted < drafts
    for name in ("target", "drafter"):
        chance = getattr(step, name)
        yield chance is None or refused, name, chance, "null: none was refused"
        yield chance is None or chance <= 1, name, chance, "at most 1"
    known = step.target is not None
    told = known or not refused or step.bonus is None
    yield told, "target", None, "its probability of the refused draft"
    alone = "null, because target is null"
    yield known or step.drafter is None, "drafter", step.drafter, alone


# %% [markdown]
# ## Two traces by hand
#
# Now a race that we know all about. Both lanes write the same text. Plain
# decoding takes 20 ms a token. The other lane has seven drafts in a step;
# drafting and verifying take 30 ms together.

# %%
TEXT = (
    "The| sky| looks| blue| because| air| scatters| blue| light| more| than|"
    " red| light|.\n|At| sunset| the| light| takes| a| longer| way|,| and| the|"
    " blue| is| lost| in| between|."
)
pieces = TEXT.split("|")
tokens = list(range(100, 100 + len(pieces)))
common = {
    "model": "by hand",
    "prompt": "Why is the sky blue?",
    "settings": {
        "max_new_tokens": 64,
        "temperature": 0.0,
        "top_k": None,
        "top_p": None,
        "seed": 0,
    },
    "tokens": tokens,
    "pieces": pieces,
    "finish_reason": "stop",
}

# %% [markdown]
# Each plain step adds its bonus. The last one brings the stop token, 2, which
# is not part of the text.

# %%
ends = [*tokens[1:], 2]
plain = Trace(
    drafter="plain",
    block=1,
    prefill_seconds=0.025,
    steps=[
        TraceStep(
            seconds=(i + 1) / 50,
            drafts=[],
            draft_pieces=[],
            accepted=0,
            target=None,
            drafter=None,
            bonus=token,
            new=int(token != 2),
        )
        for i, token in enumerate(ends)
    ],
    **common,
)
print(len(plain.tokens), "tokens,", plain.steps[-1].seconds, "seconds")

# %% [markdown]
# For the other lane, a line is a step: how many drafts are right, the wrong
# ones after them, and what target and drafter thought of the first of those.

# %%
STORY = [
    (0, " sun| is| yellow| because| it| is| hot", 0.01, 0.21),
    (1, " red| in| the| evening| and| at| night", 0.08, 0.35),
    (0, " of| the| air| and| the| light|.", 0.22, 0.48),
    (6, " the", 0.04, 0.37),
    (2, " because| the| sun| is| low|.", 0.002, 0.31),
    (7, "", None, None),
    (4, " air|.| So", 0.12, 0.44),
    (3, " It| is| red", 0.3, 0.41),
]


def by_hand(story, most):
    steps, at = [], 1
    for number, (right, wrong, target, drafter) in enumerate(story):
        wrong = wrong.split("|") if wrong else []
        wrong = wrong[: most - right]
        ids = [900 + 10 * number + i for i in range(len(wrong))]
        drafts = [*tokens[at : at + right], *ids]
        shown = [*pieces[at : at + right], *wrong]
        end = at + right
        bonus = tokens[end] if end < len(tokens) else 2
        new = right + (end < len(tokens))
        seconds = round(0.03 * (number + 1), 3)
        steps.append(
            TraceStep(
                seconds, drafts, shown, right, target, drafter, bonus, new
            )
        )
        at += new
    return steps


drafted = Trace(
    drafter="a small model",
    block=8,
    prefill_seconds=0.03,
    steps=by_hand(STORY, 7),
    **common,
)
print([step.new for step in drafted.steps], drafted.steps[-1].seconds)

# %% [markdown]
# A mistake is found at once, by name. **Predict:** what is wrong with each of
# these?

# %%
second = drafted.steps[1]
for change in (
    {"accepted": 8},
    {"new": 1},
    {"bonus": 7},
    {"target": float("nan")},
    {"seconds": 0.01},
):
    steps = list(drafted.steps)
    steps[1] = dataclasses.replace(second, **change)
    try:
        dataclasses.replace(drafted, steps=steps)
    except UserError as error:
        print(str(error)[:76])

# %% [markdown]
# ## A generation as a trace
#
# `generate` calls `watch` after prefill and after every step (chapter 3). With
# a drafter, the report's last verdict says what became of the drafts.


# %% tags=["export"]
def _step(before: Any, seen: Any, tokenizer: Any) -> dict[str, Any]:
    """A step between two looks at a text."""
    start, end = int(before.lengths[0]), int(seen.lengths[0])
    new = seen.tokens[0, start:end].tolist()
    step = dict(seconds=seen.seconds, new=len(new), pages=seen.pages)
    if seen.report is None:
        step |= dict(drafts=[], accepted=0, target=None, drafter=None)
        step["bonus"] = new[0] if new else None
    else:
        last = [x[0].tolist() for x in seen.report.last]
        drafts, count, accepted, bonus, target, drafter = last
        step |= dict(drafts=drafts[:count], accepted=accepted)
        step["bonus"] = bonus if len(new) >= accepted else None
        told = accepted < count
        step["target"] = min(target, 1.0) if told else None
        step["drafter"] = min(drafter, 1.0) if told and drafter else None
    pieces = [tokenizer.decode([token], False) for token in step["drafts"]]
    return step | {"draft_pieces": pieces}


def _shape(config: Any) -> str:
    """What to call a model that has no name."""
    layers, width = config.num_hidden_layers, config.hidden_size
    return f"{config.model_type}, {layers} layers of {width}"


def record_trace(
    model: Any,
    tokenizer: Any,
    prompt: Any,
    drafter: Any = None,
    name: str | None = None,
    **settings: Any,
) -> "Trace":
    """Generate, and return the trace.

    Args:
        prompt: one prompt, as for `generate`.
        name: of the model; None describes its shape.
        settings: those of `generate`; `memory` and `chat` too, but neither
            `stream` nor `watch`.

    Raises:
        UserError: as `generate` does, or there are several prompts.
    """
    from dflash_lite.decoding import encode_prompt, generate, is_one

    prompt = prompt.tolist() if hasattr(prompt, "tolist") else prompt
    prompt = list(prompt) if isinstance(prompt, tuple) else prompt
    if not is_one(prompt):
        _wrong("prompt", prompt, "one prompt; a trace is of one text")
    for key in ("stream", "watch"):
        if key in settings:
            _wrong(key, settings[key], "nothing; recording looks by itself")
    chat, system = settings.get("chat", True), settings.get("system")
    ids = encode_prompt(tokenizer, prompt, chat, system)
    looks: list[Any] = []
    how = settings | {"drafter": drafter, "watch": looks.append}
    found = generate(model, tokenizer, prompt, **how)
    stream = tokenizer.stream()
    pieces = [stream.push(token) for token in found.tokens]
    if pieces:
        pieces[-1] += stream.finish()
    kept = {key: settings.get(key) for key in SETTINGS}
    defaults = {"max_new_tokens": 128, "temperature": 0.0, "seed": 0}
    kept |= {k: v for k, v in defaults.items() if kept[k] is None}
    pairs = zip(looks, looks[1:], strict=False)
    return Trace(
        model=_shape(model.config) if name is None else name,
        drafter="plain" if drafter is None else type(drafter).__name__,
        block=1 if drafter is None else drafter.block,
        prompt=prompt if isinstance(prompt, str) else tokenizer.decode(ids),
        settings=kept,
        prefill_seconds=found.statistics.prefill_seconds,
        tokens=found.tokens,
        pieces=pieces,
        finish_reason=found.finish_reason,
        steps=[_step(*pair, tokenizer) for pair in pairs],
    )


# %% [markdown]
# ## On disk
#
# A trace is a JSON object with the names above. Reading trusts nobody: not the
# size, not the encoding, not the depth, not the version. Twice the same key in
# an object is a mistake as well; Python would take the last one in silence.

# %% tags=["export"]
SIZE_LIMIT = 1 << 24  # bytes of a trace; one of 256 tokens needs 50,000


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r:.60} stands twice")
    return record


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _limit(size: int) -> None:
    if size > SIZE_LIMIT:
        raise UserError(
            f"The trace is larger than {SIZE_LIMIT} bytes; expected less. "
            "Record fewer tokens."
        )


def _parse(text: str) -> Trace:
    try:
        record = json.loads(
            text, object_pairs_hook=_once, parse_constant=_constant
        )
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"The trace is no JSON ({error}); expected one whole object. "
            "Record it again."
        ) from None
    if not isinstance(record, dict):
        _wrong("The trace", record, "an object")
    for key in ("format", "version"):  # first: they say how to read the rest
        known = Trace.__dataclass_fields__[key].default
        if key in record and record[key] != known:
            raise UserError(
                f"{key} is {record[key]!r:.60}; expected {known!r}. A trace "
                "of another program, or of a newer version? Update this one."
            )
    return Trace(**_fields(record, Trace, ""))


# %% tags=["export"]
def read_trace(source: Path | str) -> Trace:
    """Read a trace from a file, or from text that begins with `{`.

    Raises:
        UserError: it cannot be read, or is no valid trace; the message names
            the file and the place.
    """
    if isinstance(source, str) and source.lstrip().startswith("{"):
        _limit(len(source))
        return _parse(source)
    if not isinstance(source, str | os.PathLike):
        _wrong("The source of a trace", source, "a path, or text: {…}")
    try:
        with open(source, "rb") as file:
            data = file.read(SIZE_LIMIT + 1)
    except (OSError, ValueError) as error:  # ValueError: a zero in the path
        raise UserError(
            f"{str(source)!r:.80} cannot be read ({error}); expected a file "
            "with a trace. Check the path."
        ) from None
    try:
        _limit(len(data))
        return _parse(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UserError(
            f"{source}: byte {error.start} is {data[error.start]:#04x}; "
            "expected UTF-8. Record the trace again."
        ) from None
    except UserError as error:
        raise UserError(f"{source}: {error}") from None


# %% [markdown]
# Writing replaces the file in one step, so that nobody reads half of it.


# %% tags=["export"]
def _write(path: Path | str, text: str) -> None:
    path = Path(path)
    try:
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            part.write_bytes(text.encode())
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
    except (OSError, ValueError) as error:  # ValueError: no file's name
        raise UserError(
            f"{path} cannot be written ({error}); expected a file in a folder "
            "with room. Choose another path."
        ) from error


def save_trace(trace: Trace, path: Path | str) -> None:
    """Write a trace to a file; it is there whole or not at all.

    Raises:
        UserError: the file cannot be written.
    """
    _write(path, trace.to_json())


# %%
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "race.json")
    save_trace(drafted, path)
    print(path.stat().st_size, "bytes")
    assert read_trace(path) == drafted
    path.write_text(drafted.to_json().replace('"accepted":1', '"accepted":9'))
    try:
        read_trace(path)
    except UserError as error:
        print(str(error).removeprefix(folder + os.sep))

# %% [markdown]
# ## Why lanes on one clock
#
# A drafter is praised by its *acceptance length*, the tokens that a step adds.
# But a step with a drafter takes longer than a plain one. Only the clock on the
# wall tells who wins, and it starts with the prompt: a drafter has to read the
# prompt too.
#
# At a time, a lane shows the tokens of all steps that have ended. Nothing of a
# step is there before its end.


# %%
def shown(trace, seconds):
    begin = trace.prefill_seconds
    first = bool(trace.tokens) and begin <= seconds
    return first + sum(
        step.new for step in trace.steps if begin + step.seconds <= seconds
    )


# %% [markdown]
# **Predict.** Plain decoding is ahead at first. When does the drafter take the
# lead, once and for all?

# %%
for ms in range(0, 201, 20):
    counts = [shown(trace, ms / 1000) for trace in (plain, drafted)]
    print(f"{ms:3} ms  plain {counts[0]:2}  drafted {counts[1]:2}")

# %% [markdown]
# ## A picture that outlives its notebook
#
# The player is one piece of HTML: the traces, their style and a script, and
# nothing from elsewhere. It needs no kernel and no network.
#
# A notebook that you did not run is shown without scripts and styles, and so is
# GitHub's view of it. So we write the finished text and a table of its steps
# first. A script, where one may run, then builds the player and folds the table
# away.
#
# White space and what cannot be seen is made visible. A mark that turns the
# direction of writing would turn our table as well.

# %% tags=["export"]
UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff"
    "\ud800-\udfff]"
)
SPACES = str.maketrans({" ": "·", "\n": "↵", "\t": "⇥"})


def visible(piece: str) -> str:
    """A piece of text with marks for what one cannot see; never empty.

    Characters without a picture become their number, like U+200F.
    """
    marked = piece.translate(SPACES) or "◌"
    return UNSEEN.sub(lambda found: f"U+{ord(found[0]):04X}", marked)


def _readable(text: str) -> str:
    """The same for a whole text, as HTML, with its white space left alone."""
    number = lambda c: c[0] if c[0] in "\n\t" else f"U+{ord(c[0]):04X}"
    return html.escape(UNSEEN.sub(number, text))


# %%
print(visible(" sky"), visible(".\n"), visible(""), visible("\u202e"))

# %% [markdown]
# The reason is the heart of the matter. Where tokens are drawn, the target
# refuses only what it finds less likely than the drafter did. Without chance it
# refuses all but its own first choice.


# %% tags=["export"]
def percent(chance: float) -> str:
    """A probability for people: 3%, 0.3%."""
    if 0 < chance < 0.001:
        return "under 0.1%"
    if 0 < chance < 0.01:
        return f"{100 * chance:.1f}%"
    return f"{math.floor(100 * chance + 0.5)}%"


def reason(step: TraceStep) -> str:
    """Why the first refused draft was refused; empty when none was."""
    if step.accepted == len(step.drafts):
        return ""
    if step.target is None:
        return "not needed: the text had ended"
    own = f"target gave {percent(step.target)}"
    if step.drafter is None:
        return own
    return f"{own}, drafter {percent(step.drafter)}"


# %%
print(reason(drafted.steps[0]))

# %% [markdown]
# ## The table
#
# Accepted drafts are underlined, refused ones struck through. HTML has an
# element for each, which no style sheet needs to explain.


# %% tags=["export"]
def _name(trace: Trace, number: int) -> str:
    """What a lane is called; the number keeps the names apart."""
    drafts = f"{trace.block - 1} draft{'s' * (trace.block > 2)}"
    how = f"{trace.drafter}, {drafts} a step"
    return f"{number}. {'plain decoding' if trace.block == 1 else how}"


def _row(step: TraceStep, number: int, own: str, columns: Sequence[str]) -> str:
    """A step as a row of the table; `own` is the target's own token."""
    parts = [
        f"<{tag}>{html.escape(visible(piece))}</{tag}>"
        for i, piece in enumerate(step.draft_pieces)
        for tag in ["u" if i < step.accepted else "s"]
    ]
    cells = {
        "step": str(number),
        "seconds": f"{step.seconds:.3f}",
        "drafts": " ".join(parts),
        "why refused": reason(step),
        "target's own": html.escape(own),
        "new": str(step.new),
        "pages": "" if step.pages is None else str(step.pages),
    }
    inside = "".join(f"<td>{cells[name]}</td>" for name in columns)
    return f"<tr>{inside}</tr>"


# %% [markdown]
# Above the table stands the sum of it. The speed leaves the first token out,
# which prefill made. The acceptance length counts the bonus.


# %% tags=["export"]
def _totals(trace: Trace) -> str:
    """A trace in one sentence."""
    new = sum(step.new for step in trace.steps)
    seconds = trace.steps[-1].seconds if trace.steps else 0.0
    parts = [
        f"{len(trace.tokens)} tokens in "
        f"{trace.prefill_seconds + seconds:.3f} s",
        f"{trace.prefill_seconds:.3f} s of it prefill",
    ]
    if seconds:
        parts.append(f"{new / seconds:.1f} tokens/s after prefill")
    if trace.block > 1 and trace.steps:
        length = f"{new / len(trace.steps):.2f}"
        parts.append(f"{length} tokens a step with the bonus")
    return ", ".join(parts) + f". It ended by {trace.finish_reason}."


# %%
for trace in (plain, drafted):
    print(_totals(trace))

# %% [markdown]
# A plain trace gets no empty columns.


# %% tags=["export"]
def _table(trace: Trace, number: int) -> str:
    """A trace as HTML that needs no script: its text, then its steps."""
    columns = ["step", "seconds"]
    columns += ["drafts", "why refused"] * (trace.block > 1)
    columns += ["target's own", "new"]
    columns += ["pages"] * any(s.pages is not None for s in trace.steps)
    rows, at = [], min(1, len(trace.tokens))
    for i, step in enumerate(trace.steps):
        kept = step.new > step.accepted  # else the bonus is not in the text
        own = visible(trace.pieces[at + step.accepted]) if kept else "(end)"
        rows.append(_row(step, i + 1, own, columns))
        at += step.new
    head = "".join(f'<th scope="col">{name}</th>' for name in columns)
    name, text = _readable(_name(trace, number)), "".join(trace.pieces)
    first = visible(trace.pieces[0]) if trace.pieces else "none"
    return (
        f'<section><p><b>{name}</b>: {_totals(trace)}</p>'
        f'<p class="df-text" dir="auto">{_readable(text)}</p>'
        f'<div class="df-wide"><table><caption>Steps of {name}. First token, '
        f"from prefill: {html.escape(first)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
        f"</table></div></section>"
    )

# %% [markdown]
# ## The script: what a lane shows
#
# The script comes in three parts. The first knows the time. It finds what a
# lane shows then, and the moments at which something changes.

# %% tags=["export"]
SCRIPT_STATE = r"""
const laneOf = (trace, i) => {
  const times = trace.steps.map(s => trace.prefill_seconds + s.seconds);
  const counts = [Math.min(1, trace.tokens.length)];
  for (const s of trace.steps) counts.push(counts.at(-1) + s.new);
  const plain = trace.block === 1;
  const how = plain ? "plain decoding"
    : `${trace.drafter}, ${many(trace.block - 1, "draft")} a step`;
  const end = times.length ? times.at(-1) : trace.prefill_seconds;
  const name = `${i + 1}. ${readable(how)}`;
  return { trace, times, counts, plain, end, name };
};
const at = (lane, t) => {
  let steps = 0;
  while (steps < lane.times.length && lane.times[steps] <= t) steps++;
  const read = lane.trace.prefill_seconds <= t;
  return { steps, read, tokens: read ? lane.counts[steps] : 0 };
};
const momentsOf = lanes => [...new Set(
  [0, ...lanes.flatMap(l => [l.trace.prefill_seconds, ...l.times])]
)].sort((a, b) => a - b);
const leaderAt = (lanes, t) => {
  const counts = lanes.map(lane => at(lane, t).tokens);
  const most = Math.max(...counts);
  const first = counts.indexOf(most);
  const alone = counts.lastIndexOf(most) === first;
  const second = Math.max(0, ...counts.filter((_, i) => i !== first));
  return { lane: alone ? first : -1, tokens: most, by: most - second };
};
const changesOf = (lanes, moments) => {
  const changes = [];
  let leader = -1;
  for (const t of moments) {
    const now = leaderAt(lanes, t).lane;
    if (now >= 0 && now !== leader) changes.push({ t, lane: leader = now });
  }
  return changes;
};
"""

# %% [markdown]
# ## The script: what one sees
#
# The second part makes the elements. Text from a trace only ever becomes the
# text of an element, never its HTML. Spaces stay spaces, so that lines break
# and one can copy; the style sheet draws the dots.
#
# Tokens that are not there yet take their room already: nothing jumps while it
# plays.

# %% tags=["export"]
SCRIPT_PICTURE = r"""
const SPACES = { " ": "·", "\n": "↵", "\t": "⇥" };
const UNSEEN = new RegExp("([\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f" +
  "\\u2028-\\u202e\\u2066-\\u2069\\ufeff\\ud800-\\udfff])", "u");
const number = c => {
  const code = c.codePointAt(0).toString(16).toUpperCase();
  return "U+" + code.padStart(4, "0");
};
const parts = text => text.split(/([ \n\t])/)
  .flatMap(part => part in SPACES ? [part] : part.split(UNSEEN))
  .filter(part => part !== "");
const visible = piece => parts(piece).map(part => SPACES[part]
  ?? (UNSEEN.test(part) ? number(part) : part)).join("") || "◌";
const readable = text => parts(text).map(part =>
  part in SPACES ? part : UNSEEN.test(part) ? number(part) : part).join("");
const make = (tag, name, ...inside) => {
  const e = document.createElement(tag);
  if (name) e.className = name;
  e.append(...inside);
  return e;
};
const token = (piece, kind) => {
  const e = make("span", `df-token df-${kind}`);
  if (piece === "") e.classList.add("df-empty");
  for (const part of parts(piece)) {
    if (part in SPACES) {
      const space = make("span", "df-space", part);
      space.dataset.mark = SPACES[part];
      e.append(space);
    } else if (UNSEEN.test(part)) e.append(make("code", "", number(part)));
    else e.append(part);
  }
  return e;
};
const percent = p => {
  if (p > 0 && p < 0.001) return "under 0.1%";
  if (p > 0 && p < 0.01) return (100 * p).toFixed(1) + "%";
  return Math.round(100 * p) + "%";
};
const reason = step => {
  if (step.accepted === step.drafts.length) return "";
  if (step.target === null) return "not needed: the text had ended";
  const own = `target gave ${percent(step.target)}`;
  if (step.drafter === null) return own;
  return `${own}, drafter ${percent(step.drafter)}`;
};
const many = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;
const numbersOf = (lane, { steps, tokens }) => {
  const found = [many(tokens, "token")];
  const last = lane.trace.steps[steps - 1];
  const added = lane.counts[steps] - lane.counts[0];
  if (last && last.seconds > 0)
    found.push(`${(added / last.seconds).toFixed(1)} tokens/s`);
  if (last && lane.plain === false)
    found.push(`${(added / steps).toFixed(2)} tokens a step ` +
      "with the bonus");
  if (last && last.pages !== null) found.push(many(last.pages, "page"));
  return found.join(" · ");
};
const originsOf = ({ trace }) => {
  const kinds = trace.tokens.length ? ["first"] : [];
  for (const s of trace.steps)
    for (let i = 0; i < s.new; i++)
      kinds.push(i < s.accepted ? "draft" : "own");
  return kinds;
};
const stepLine = (lane, { steps, read }) => {
  const line = make("p", "df-now");
  if (steps === 0) {
    line.append(read ? "Prefill has read the prompt: one token."
      : "Reading the prompt …");
    return line;
  }
  const step = lane.trace.steps[steps - 1];
  line.append(`Step ${steps} of ${lane.times.length}: `);
  if (step.drafts.length) {
    line.append(`${step.accepted} of ${many(step.drafts.length, "draft")} ` +
      "accepted. ");
    const drafts = make("span", "df-drafts");
    drafts.dir = "auto";
    step.draft_pieces.forEach((piece, i) => {
      const accepted = i < step.accepted;
      const e = token(piece, accepted ? "draft" : "refused");
      drafts.append(make(accepted ? "u" : "s", "", e), "\u200b");
    });
    line.append(drafts);
    const why = reason(step);
    if (why) line.append(" ", make("span", "df-why", `(${why})`));
    line.append(" ");
  }
  const own = lane.counts[steps - 1] + step.accepted;
  if (step.new > step.accepted)
    line.append("The target's own: \u200b",
      token(lane.trace.pieces[own], "own"));
  if (steps === lane.times.length)
    line.append(` The text ended by ${lane.trace.finish_reason}.`);
  return line;
};
const spoken = (lane, state) => {
  let text = `${lane.name}: ${numbersOf(lane, state).replaceAll(" · ", ", ")}`;
  const step = lane.trace.steps[state.steps - 1];
  if (step && step.drafts.length) {
    text += `; step ${state.steps}, ${step.accepted} of ` +
      many(step.drafts.length, "draft") + " accepted";
    if (step.accepted < step.drafts.length)
      text += `, refused ${visible(step.draft_pieces[step.accepted])}, ` +
        reason(step);
  }
  return text + ".";
};
"""

# %% [markdown]
# ## The script: what one can do
#
# The third part has the buttons, the slider and the keys. It starts nothing by
# itself: whoever does not press *Play* sees nothing move. What a screen reader
# says changes with each step that is asked for, and not while it plays.
#
# JupyterLab has its own use for the arrow keys. An attribute asks it to leave
# them to us. And a slider rounds its value, so that its right end may lie just
# before the last step: what is within a microsecond of a change goes there.

# %% tags=["export"]
SCRIPT_CONTROLS = r"""
const start = root => {
  const data = root.querySelector("script[type='application/json']");
  const lanes = JSON.parse(data.textContent).map(laneOf);
  const moments = momentsOf(lanes), end = moments.at(-1);
  const most = Math.max(1, ...lanes.map(lane => lane.trace.tokens.length));
  const digits = end < 10 ? 3 : 2;
  const clock = t => t.toFixed(digits);
  const stage = make("div", "df-stage");
  let t = 0, exact = 0, speed = 1, playing = false, before = 0;
  let painted = null;

  const button = (text, act) => {
    const e = make("button", "", text);
    e.type = "button";
    e.addEventListener("click", act);
    return e;
  };
  const play = button("▶ Play", () => playing ? pause() : run());
  const slider = make("input");
  Object.assign(slider, { type: "range", min: 0, max: end, step: "any" });
  slider.setAttribute("aria-label", "Time in seconds");
  const time = make("span", "df-time");
  const rate = make("select");
  for (const x of [0.25, 0.5, 1, 2, 4])
    rate.append(new Option(`${x}×`, x, x === 1, x === 1));
  const marks = make("input");
  Object.assign(marks, { type: "checkbox", checked: true });
  const table = button("Table of steps", () => {
    const open = root.classList.toggle("df-table");
    table.setAttribute("aria-expanded", open);
  });
  table.setAttribute("aria-expanded", false);
  stage.append(make("div", "df-bar df-controls", play,
    button("◀ Back", () => jump(earlier())),
    button("Next ▶", () => jump(later())),
    button("Restart", () => jump(0)),
    make("label", "", "Speed ", rate),
    make("label", "", marks, " Mark spaces"), table));
  stage.append(make("div", "df-bar", slider, time));

  const race = make("div", "df-race"), lead = make("p", "df-lead");
  const changes = make("p", "df-changes"), said = make("p", "df-said");
  said.setAttribute("role", "status");
  said.setAttribute("aria-live", "polite");
  stage.append(race, lead, changes);
  for (const lane of lanes) {
    lane.fill = make("i");
    lane.numbers = make("span", "df-numbers");
    const track = make("span", "df-track", lane.fill);
    track.setAttribute("aria-hidden", true);
    race.append(make("div", "df-row", make("b", "", lane.name), track,
      lane.numbers));
    const text = make("div", "df-text"), kinds = originsOf(lane);
    text.dir = "auto";
    lane.spans = lane.trace.pieces.map((p, i) => token(p, kinds[i]));
    for (const span of lane.spans) span.classList.add("df-later");
    text.append(...lane.spans);
    lane.now = make("div", "df-step");
    lane.seen = { tokens: 0, steps: -1, from: 0, read: null };
    const box = make("section", "df-lane", make("p", "df-name", make("b", "",
      lane.name), ` ${readable(lane.trace.model)}`), text, lane.now);
    box.setAttribute("aria-label", lane.name);
    stage.append(box);
  }
  const flips = lanes.length > 1 ? changesOf(lanes, moments) : [];
  const links = flips.slice(0, 12).map(({ t: when, lane }) => {
    const e = button(`${clock(when)} s: ${lanes[lane].name}`,
      () => jump(when));
    changes.append(e);
    return [when, e];
  });
  stage.append(make("p", "df-legend",
    token("first", "first"), " from prefill, ",
    token("draft", "draft"), " draft accepted, ",
    token("own", "own"), " the target's own, the bonus, ",
    make("s", "", token("draft", "refused")), " draft refused. ",
    "Tokens/s leaves prefill out. Keys: space plays, ← and → step, " +
    "Home and End jump."), said);

  const earlier = () => moments.filter(m => m < t).at(-1) ?? 0;
  const later = () => moments.find(m => m > t) ?? end;
  const leading = () => {
    if (lanes.length < 2) return "";
    const { lane, tokens, by } = leaderAt(lanes, t);
    if (t >= end) {
      const order = lanes.map((l, i) => [l.end, i]).sort((a, b) => a[0] - b[0]);
      const by = order[1][0] - order[0][0];
      return by > 0 ? `${lanes[order[0][1]].name} ended first, ` +
        `${clock(by)} s before ${lanes[order[1][1]].name}.`
        : "The first two ended together.";
    }
    if (tokens === 0) return "No token yet.";
    if (lane < 0) return `Level at ${many(tokens, "token")}.`;
    return `${lanes[lane].name} is ahead by ${many(by, "token")}.`;
  };
  const paintLane = lane => {
    const state = at(lane, t), seen = lane.seen;
    const low = Math.min(state.tokens, seen.tokens);
    const high = Math.max(state.tokens, seen.tokens);
    for (let i = low; i < high; i++)
      lane.spans[i].classList.toggle("df-later", i >= state.tokens);
    if (state.steps === seen.steps && state.read === seen.read) return;
    const from = state.steps ? lane.counts[state.steps - 1] : 0;
    lane.spans.slice(seen.from, seen.tokens)
      .forEach(span => span.classList.remove("df-fresh"));
    lane.spans.slice(from, state.tokens)
      .forEach(span => span.classList.add("df-fresh"));
    lane.fill.style.width = `${100 * state.tokens / most}%`;
    lane.numbers.textContent = numbersOf(lane, state);
    lane.now.replaceChildren(stepLine(lane, state));
    lane.seen = { ...state, from };
  };
  const paint = () => {
    slider.value = stage.dataset.time = t;
    slider.setAttribute("aria-valuetext", `${clock(t)} seconds`);
    time.textContent = `${clock(t)} of ${clock(end)} s`;
    const moment = moments.findLast(m => m <= t);
    if (moment === painted && t < end) return;
    painted = moment;
    lanes.forEach(paintLane);
    lead.textContent = leading();
    for (const [when, e] of links) e.classList.toggle("df-later", when > t);
  };
  const say = () => {
    const all = lanes.map(lane => spoken(lane, at(lane, t))).join(" ");
    said.textContent = `${clock(t)} seconds. ${all} ${leading()}`;
  };
  const show = to => {
    t = Math.min(end, Math.max(0, to));
    paint();
  };
  const jump = to => {
    pause();
    show(to);
    say();
  };
  const pause = () => {
    if (playing) say();
    playing = false;
    play.textContent = "▶ Play";
  };
  const run = () => {
    if (t >= end) show(0);
    playing = true;
    exact = t;
    play.textContent = "❚❚ Pause";
    before = performance.now();
    requestAnimationFrame(frame);
  };
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const frame = now => {
    if (playing === false || root.isConnected === false) return;
    const passed = Math.min(500, Math.max(0, now - before));
    before = now;
    exact = Math.min(end, exact + passed / 1000 * speed);
    const to = calm.matches ? moments.findLast(m => m <= exact) : exact;
    if (to !== t) show(to);
    if (exact < end) return requestAnimationFrame(frame);
    pause();
  };

  const near = x => moments.find(m => Math.abs(m - x) < 1e-6) ?? x;
  slider.addEventListener("input", () => jump(near(slider.valueAsNumber)));
  rate.addEventListener("change", () => { speed = Number(rate.value); });
  marks.addEventListener("change",
    () => stage.classList.toggle("df-marks", marks.checked));
  const keys = {
    " ": () => play.click(), ArrowRight: () => jump(later()),
    ArrowLeft: () => jump(earlier()), Home: () => jump(0),
    End: () => jump(end),
  };
  stage.addEventListener("keydown", event => {
    const { key, target } = event;
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (key in keys === false || target.closest("select")) return;
    const own = target.closest("button") || target === marks;
    if (key === " " && own) return;
    event.preventDefault();
    event.stopPropagation();
    keys[key]();
  });
  stage.tabIndex = 0;
  stage.setAttribute("role", "group");
  stage.setAttribute("aria-label", root.dataset.title);
  stage.setAttribute("data-lm-suppress-shortcuts", "true");
  stage.classList.add("df-marks");
  root.querySelector(":scope > .df-stage")?.remove();
  root.querySelector(":scope > .df-still").before(stage);
  root.classList.add("df-live");
  show(0);
};
for (const root of document.querySelectorAll(".dflash-player")) {
  if (root.started) continue;
  root.started = true;
  start(root);
}
"""

# %% [markdown]
# Two players on a page do not meet: each looks only inside its own element,
# and there is no `id` that could be there twice. All classes begin with `df-`,
# because the page around has a style for `.row` or `.lead` too.

# %% [markdown]
# ## The style
#
# The kinds of tokens differ in their shape, so that they can be told apart on
# paper or without colour: a dashed box, a line below, a solid box, a line
# through.
#
# `light-dark` picks by the scheme of the page. The scheme is the system's,
# unless the page says its own; a book, JupyterLab and Colab each say it in
# another way. On paper it is always light.

# %% tags=["export"]
STYLE = """
.dflash-player.dflash-player {
  color-scheme: light dark;
  --paper: light-dark(#ffffff, #14181f);
  --ink: light-dark(#1f2328, #e6edf3);
  --pale: light-dark(#57606a, #a5afba);
  --line: light-dark(#8c959f, #6e7681);
  --draft: light-dark(#dbeafe, #12355f);
  --own: light-dark(#fff1c2, #4a3a08);
  --stroke: light-dark(#0550ae, #79b8ff);
  --bad: light-dark(#b31d28, #ff9b94);
  position: relative; box-sizing: border-box; margin: 0.5em 0;
  padding: 0.75em; overflow: clip;
  border: 1px solid var(--line); border-radius: 6px;
  background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; text-align: left;
  * { box-sizing: border-box; }
  p, section { margin: 0.4em 0; padding: 0; color: inherit; }
  b { color: inherit; }
  .df-title { font-weight: 600; }
  .df-prompt, .df-name, .df-legend { color: var(--pale);
    overflow-wrap: anywhere; }
  .df-name b { color: var(--ink); }
  .df-legend { font-size: 13px; line-height: 1.9; }
  .df-bar { display: flex; flex-wrap: wrap; align-items: center; gap: 0.5em;
    margin: 0.4em 0; }
  label { display: inline-flex; align-items: center; gap: 0.3em; margin: 0;
    color: var(--ink); font: inherit; }
  input { margin: 0; accent-color: var(--stroke); }
  input[type="range"] { flex: 1 1 8em; min-width: 0; height: 1.5em; }
  button, select { min-height: 2.1em; margin: 0; padding: 0.15em 0.7em;
    border: 1px solid var(--line); border-radius: 4px;
    background: var(--paper); color: var(--ink); font: inherit;
    max-width: 100%; white-space: normal; overflow-wrap: anywhere; }
  button { cursor: pointer; }
  button:hover { border-color: var(--stroke); }
  .df-controls button:first-child { min-width: 6.2em; font-weight: 600; }
  :focus-visible, &:focus-visible { outline: 3px solid var(--stroke);
    outline-offset: 2px; }
  .df-time, .df-numbers { font-variant-numeric: tabular-nums; }
  .df-time { min-width: 9.5em; text-align: right; }
  .df-row { display: grid; align-items: center; gap: 0 0.75em; margin: 0.3em 0;
    grid-template-columns: minmax(0, 14em) minmax(0, 1fr); }
  .df-numbers { grid-column: 2; color: var(--pale); font-size: 13px; }
  .df-row b { grid-row: span 2; align-self: start; overflow-wrap: anywhere; }
  .df-track { height: 0.9em; border: 1px solid var(--line);
    border-radius: 3px; }
  .df-track i { display: block; width: 0; height: 100%;
    background: var(--stroke); }
  .df-lead { min-height: 1.5em; font-weight: 600; }
  .df-changes { display: flex; flex-wrap: wrap; gap: 0.4em; }
  .df-changes:empty { display: none; }
  .df-changes::before { content: "Takes the lead:"; align-self: center; }
  .df-later { visibility: hidden; }
  .df-lane { border-top: 1px solid var(--line); padding-top: 0.4em; }
  .df-text, .df-now .df-token { white-space: pre-wrap;
    overflow-wrap: anywhere; }
  .df-now [data-mark="↵"] { white-space: normal; }
  .df-text { line-height: 1.9; }
  .df-step { min-height: 5em; }
  .df-now { line-height: 1.9; }
  .df-token { padding: 1px; border: 1px solid transparent; border-radius: 3px;
    -webkit-box-decoration-break: clone; box-decoration-break: clone; }
  .df-first { border: 1px dashed var(--ink); }
  .df-draft { border-bottom: 2px solid var(--stroke); border-radius: 0; }
  .df-own { border-color: var(--ink); }
  .df-refused { color: var(--bad); text-decoration: line-through; }
  .df-fresh.df-draft { background: var(--draft); }
  .df-fresh { background: var(--own); }
  s { color: var(--bad); text-decoration: line-through; }
  u { text-decoration: underline; }
  .df-drafts u { text-decoration: none; }
  .df-empty::before { content: "◌"; color: var(--pale); }
  .df-space { position: relative; }
  .df-marks .df-space::before { content: attr(data-mark); color: var(--pale); }
  .df-marks .df-space[data-mark="·"]::before { position: absolute;
    inset-inline: 0; text-align: center; }
  code { padding: 0 2px; border: 1px dotted var(--line); background: none;
    color: inherit; font-size: 11px; }
  .df-why { color: var(--bad); }
  .df-said { position: absolute; width: 1px; height: 1px; margin: 0;
    overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
  .df-wide { overflow-x: auto; }
  table { width: auto; margin: 0.5em 0; border-collapse: collapse;
    table-layout: auto; background: none; color: inherit;
    font-size: 13px; }
  caption { padding: 0.2em 0; color: var(--pale); text-align: left;
    caption-side: top; }
  tr, tr:nth-child(n), tr:hover { background: none; }
  th, td { padding: 0.15em 0.6em; border: 1px solid var(--line);
    color: inherit; text-align: left; vertical-align: top;
    white-space: normal; }
  td:has(u, s) { min-width: 15em; }
  td:has(u, s) + td { min-width: 10em; }
  &.df-live .df-still { display: none; }
  &.df-live.df-table .df-still { display: block; }
  @media (max-width: 640px) {
    .df-row { grid-template-columns: minmax(0, 1fr); }
    .df-numbers { grid-column: 1; min-height: 3em; }
    .df-time { min-width: 0; }
    .df-step { min-height: 8em; }
  }
  @media print {
    color-scheme: light;
    border: 0;
    .df-stage { display: none; }
    &.df-live .df-still { display: block; }
    .df-wide { overflow: visible; }
    table { font-size: 9pt; }
    tr { break-inside: avoid; }
  }
}
@media not print {
  :is([data-theme="light"], [data-jp-theme-light="true"], .vscode-light,
    [theme="light"]) .dflash-player.dflash-player { color-scheme: light; }
  :is([data-theme="dark"], [data-jp-theme-light="false"], .vscode-dark,
    [theme="dark"]) .dflash-player.dflash-player { color-scheme: dark; }
}
"""

# %% [markdown]
# ## The player
#
# The traces go into the page as JSON. There a browser would take `</script>`
# for the end of the script, whatever quotes surround it. Written as a number,
# a `<` is still the same JSON.


# %% tags=["export"]
@dataclass(frozen=True)
class Player:
    """Traces as a piece of HTML, which a notebook shows."""

    title: str
    html: str = field(repr=False)

    def _repr_html_(self) -> str:
        return self.html

    def save(self, path: Path | str) -> None:
        """Write a whole page that needs nothing else, not even a network.

        Raises:
            UserError: the file cannot be written.
        """
        page = (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width">'
            '<meta name="color-scheme" content="light dark">'
            f"<title>{_readable(self.title)}</title></head>\n"
            f"<body>\n{self.html}\n</body></html>\n"
        )
        _write(path, page)


# %% tags=["export"]
def _inline(text: str) -> str:
    """JSON as it may stand in a script element."""
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def player(
    traces: Trace | Sequence[Trace], title: str = "Token by token"
) -> Player:
    """A player of one trace, or of several on one clock.

    Raises:
        UserError: there is no trace, or something else than a trace.
    """
    traces = [traces] if isinstance(traces, Trace) else list(traces)
    if not traces or not all(isinstance(t, Trace) for t in traces):
        _wrong("traces", traces, "a Trace, or a list of them")
    prompts = list(dict.fromkeys(trace.prompt for trace in traces))
    asked = "".join(
        f'<p class="df-prompt">Prompt: {_readable(prompt)}</p>'
        for prompt in prompts
    )
    tables = "".join(_table(t, i + 1) for i, t in enumerate(traces))
    data = _inline(f"[{','.join(t.to_json() for t in traces)}]")
    title = _scalar(title, str, "title")
    script = SCRIPT_PICTURE + SCRIPT_STATE + SCRIPT_CONTROLS
    return Player(
        title,
        '<div class="dflash-player tex2jax_ignore mathjax_ignore" lang="en" '
        f'dir="ltr" data-title="{_readable(title)}"><style>{STYLE}</style>'
        f'<p class="df-title">{_readable(title)}</p>{asked}'
        f'<div class="df-still">{tables}</div>'
        f'<script type="application/json">{data}</script>'
        f"<script>(() => {{{script}}})()</script></div>",
    )


# %% [markdown]
# ## The race
#
# Set the speed to a quarter and press *Play*. Look for three things:
#
# 1. Plain decoding leads at first. When does the drafter overtake it?
# 2. Text comes in bursts with a drafter. Which bursts are long, and what does
#    the drafter know there?
# 3. Step to a refused draft. What did the target think of it?

# %%
race = player([plain, drafted], "A race by hand")
assert len(race.html) < 100_000
race

# %% [markdown]
# The bursts are long where the text says what a drafter has seen before. Its
# one guess at the start of a sentence is as good as nothing.
#
# `race.save("race.html")` writes a page for a talk or a mail, and printing it
# gives the text and the table.

# %% [markdown]
# ## A race on this machine
#
# The real model now, and a text that repeats its question. Prompt lookup
# (chapter 6) drafts from what it has read. Each lane runs twice; the first time
# compiles, and the clock leaves that out, but the second is steadier.

# %%
from dflash_lite.speculative import PromptLookup
from dflash_lite.transformer import load

model, tokenizer = load("smollm2-135m")
question = """Write this text again, word for word:

The old lighthouse stands on a rock at the end of the bay. Every evening its \
keeper climbs the stairs, lights the lamp and writes the weather into a book. \
The lamp has not missed a night in a hundred years."""
lanes, name = [], "SmolLM2-135M-Instruct"
for drafter in (None, PromptLookup()):
    for _ in range(2):
        lane = record_trace(
            model, tokenizer, question, drafter, name, max_new_tokens=48
        )
    lanes.append(lane)
assert lanes[0].tokens == lanes[1].tokens

# %% tags=["nbval-ignore-output"]
player(lanes, "A copied text")

# %% [markdown]
# ## Exercises
#
# **92.1 Was it worth it?** (5 minutes). A step with a drafter takes longer than
# a plain step. How many tokens must it add, on average, so that the drafter is
# faster? Write the smallest acceptance length that pays, from two traces of one
# model.


# %% tags=["exercise"]
def must_add(plain: Trace, drafted: Trace) -> float:
    """Tokens a step, with the bonus, at which both lanes are equally fast."""
    ### BEGIN SOLUTION
    def seconds_a_step(trace):
        return trace.steps[-1].seconds / len(trace.steps)

    return seconds_a_step(drafted) / seconds_a_step(plain)
    ### END SOLUTION


# %% tags=["check"]
@check(must_add)
def _(f):
    found = f(plain, drafted)
    assert found < 3, "compare the time of a step, not of the whole text"
    assert abs(found - 1.5) < 1e-6, "30 ms a step against 20 ms: 1.5"


# %% [markdown]
# **92.2 Which guess fails?** (5 minutes). Write how often the draft at each
# place of the draft was accepted, as a share of the steps that drafted it.


# %% tags=["exercise"]
def accepted_by_place(trace: Trace) -> list[float]:
    """For each place in the draft, the share accepted there."""
    ### BEGIN SOLUTION
    shares = []
    for place in range(trace.block - 1):
        asked = [s for s in trace.steps if len(s.drafts) > place]
        kept = sum(s.accepted > place for s in asked)
        shares.append(kept / len(asked) if asked else 0.0)
    return shares
    ### END SOLUTION


# %% tags=["check"]
@check(accepted_by_place)
def _(f):
    found = f(drafted)
    assert len(found) == 7, "one share for each place of the draft"
    assert found[0] == 6 / 8, "6 of 8 first drafts were accepted"
    assert found[6] == 1 / 7, "count only the steps that drafted so many"
    assert f(plain) == [], "no drafts, no places"


# %% [markdown]
# ## Key points
#
# - A trace holds what was drafted, what was kept, and when. Its rules make a
#   mistake visible before a picture hides it.
# - Acceptance length is not speed. Compare methods on one clock.
# - Text from elsewhere goes into a page as text only.
# - A picture that needs a script should say the same without it.
