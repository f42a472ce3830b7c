"""Speculative decoding.

Draft and verify: guesses at the next tokens, checked by the model in one pass;
rules that keep its text exactly as it was; four drafters; and a law that says
when all this pays.

Made from chapters/06_speculative.py by tools/tangle.py:
edit the chapter, not this file.
"""

import functools
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, Shaped

from dflash_lite.checkpoints import UserError
from dflash_lite.decoding import (
    DenseCache,
    Sampling,
    State,
    choose,
    extend,
    gumbel,
    truncate,
)
from dflash_lite.transformer import Cache, Transformer

__all__ = [
    "Draft",
    "Verdict",
    "each_position",
    "prefix",
    "at_row",
    "one_more",
    "agree",
    "distribution",
    "acceptance",
    "residual",
    "stream",
    "DRAFTS",
    "REFUSALS",
    "REPAIRS",
    "LUCK",
    "weigh",
    "judge",
    "Report",
    "Progress",
    "no_report",
    "add_verdict",
    "check_block",
    "check_draft",
    "Speculative",
    "as_drafter",
    "Replay",
    "PromptLookup",
    "draw",
    "draft_by_steps",
    "DraftModel",
    "EarlyExit",
    "tokens_a_step",
    "predicted_speedup",
]


# The greedy rule
# ---------------

class Draft(NamedTuple):
    """Guesses at the tokens behind each row's last one."""

    tokens: Int[Array, "batch drafts"]
    counts: Int[Array, "batch"]  # the first so many are guesses
    # what each was drawn from, adding up to 1; None: the drafter was sure
    chances: Float[Array, "batch drafts vocab"] | None = None


class Verdict(NamedTuple):
    """What the model made of a draft."""

    drafts: Int[Array, "batch drafts"]
    counts: Int[Array, "batch"]  # drafts that were verified
    accepted: Int[Array, "batch"]  # the first so many
    bonus: Int[Array, "batch"]  # the model's own token behind them
    # probabilities of the first draft that was refused; 0 where none was
    target: Float[Array, "batch"]
    drafter: Float[Array, "batch"]  # 0 also if it drew nothing


def each_position(
    sampling: Sampling, lengths: Int[Array, "batch"], count: int
) -> tuple[Sampling, Int[Array, "rows"]]:
    """Sampling and positions of the `count` tokens from each length on."""
    rows = jax.tree.map(lambda x: jnp.repeat(x, count, axis=0), sampling)
    return rows, (lengths[:, None] + jnp.arange(count)).reshape(-1)


def prefix(
    fine: Bool[Array, "batch drafts"], counts: Int[Array, "batch"]
) -> Int[Array, "batch"]:
    """How many of the first `counts` are fine before one is not."""
    fine &= jnp.arange(fine.shape[1]) < counts[:, None]
    return jnp.cumprod(fine, axis=1).sum(1)


def at_row(
    x: Shaped[Array, "batch rows *rest"], index: Int[Array, "batch"]
) -> Shaped[Array, "batch *rest"]:
    """One row of each batch entry."""
    return x[jnp.arange(len(x)), index]


def one_more(
    x: Shaped[Array, "batch rows *rest"],
) -> Shaped[Array, "batch more *rest"]:
    """A row of zeros behind the others, where no draft is."""
    return jnp.pad(x, ((0, 0), (0, 1)) + ((0, 0),) * (x.ndim - 2))


def agree(
    logits: Float[Array, "batch rows vocab"],
    draft: Draft,
    lengths: Int[Array, "batch"],
    sampling: Sampling,
    mode: str,
) -> tuple[Int[Array, "batch"], Int[Array, "batch"]]:
    """Accept the drafts that equal the model's own choice.

    Returns:
        How many are accepted, and the model's own token behind them.
    """
    batch, rows, vocab = logits.shape
    how, positions = each_position(sampling, lengths, rows)
    flat = choose(logits.reshape(-1, vocab), positions, how, mode)
    choices = flat.reshape(batch, rows)
    accepted = prefix(choices[:, :-1] == draft.tokens, draft.counts)
    return accepted, at_row(choices, accepted)


# When tokens are drawn
# ---------------------

def distribution(
    logits: Float[Array, "rows vocab"], sampling: Sampling, mode: str
) -> Float[Array, "rows vocab"]:
    """The probabilities that `choose` draws from."""
    if mode == "greedy":
        return jax.nn.one_hot(jnp.argmax(logits, -1), logits.shape[-1])
    if mode == "truncated":
        return jax.nn.softmax(truncate(logits, sampling), axis=-1)
    below = logits - jnp.max(logits, axis=-1, keepdims=True)
    return jax.nn.softmax(below / sampling.temperature[:, None], axis=-1)


def acceptance(
    p: Float[Array, "*rows vocab"],
    q: Float[Array, "*rows vocab"],
    drafts: Int[Array, "*rows"],
) -> Float[Array, "*rows"]:
    """The probability to keep a draft: min(1, p/q).

    Args:
        p: the model's probabilities at the draft's place.
        q: what the draft was drawn from.

    Source: Leviathan et al. 2023, section 2.3.
    """
    of = lambda x: jnp.take_along_axis(x, drafts[..., None], axis=-1)[..., 0]
    least = jnp.finfo(jnp.float32).tiny  # never 0/0
    return jnp.minimum(1, of(p) / jnp.maximum(of(q), least))


def residual(
    p: Float[Array, "*rows vocab"], q: Float[Array, "*rows vocab"]
) -> Float[Array, "*rows vocab"]:
    """What the token is drawn from after a refusal: max(p − q, 0), scaled.

    Source: Leviathan et al. 2023, section 2.3.
    """
    left = jnp.maximum(p - q, 0)
    total = left.sum(-1, keepdims=True)
    return jnp.where(total > 0, left / total, p)


def stream(keys: Key[Array, "batch"], number: int) -> Key[Array, "batch"]:
    """Keys for random numbers of another use; `choose` has its own."""
    fold = lambda key: jax.random.fold_in(key, jnp.uint32(2**31 + number))
    return jax.vmap(fold)(keys)


DRAFTS = 0  # uses of random numbers
REFUSALS = 1
REPAIRS = 2
LUCK = 3


def weigh(
    logits: Float[Array, "batch rows vocab"],
    draft: Draft,
    lengths: Int[Array, "batch"],
    sampling: Sampling,
    mode: str,
) -> tuple[Int[Array, "batch"], Int[Array, "batch"]]:
    """Accept drafts by their probabilities; the full rule.

    Returns:
        How many are accepted, and the token behind them: drawn from the
        residual after a refusal, from the model's distribution after none.

    Source: Leviathan et al. 2023, algorithm 1.
    """
    batch, rows, vocab = logits.shape
    how, positions = each_position(sampling, lengths, rows)
    p = distribution(logits.reshape(-1, vocab), how, mode)
    p = p.reshape(batch, rows, vocab)
    keys = stream(sampling.keys, REFUSALS)
    place = lambda key, at: jax.random.uniform(jax.random.fold_in(key, at))
    drawn = jax.vmap(place)(jnp.repeat(keys, rows), positions)
    drawn = drawn.reshape(batch, rows)[:, :-1]
    kept = drawn < acceptance(p[:, :-1], draft.chances, draft.tokens)
    accepted = prefix(kept, draft.counts)
    here = at_row(p, accepted)
    q = at_row(one_more(draft.chances), accepted)
    refused = (accepted < draft.counts)[:, None]
    scores = jnp.log(jnp.where(refused, residual(here, q), here))
    noise = gumbel(stream(sampling.keys, REPAIRS), lengths + accepted, vocab)
    return accepted, jnp.argmax(scores + noise, axis=-1)


def judge(
    logits: Float[Array, "batch rows vocab"],
    draft: Draft,
    lengths: Int[Array, "batch"],
    sampling: Sampling,
    mode: str,
) -> Verdict:
    """Compare a draft with what the model says.

    Args:
        logits: of the model, behind the last token and behind each draft.
        lengths: tokens before the draft; its first has this position.
        mode: as for `choose`.
    """
    sure = mode == "greedy" or draft.chances is None
    rule = agree if sure else weigh
    accepted, bonus = rule(logits, draft, lengths, sampling, mode)
    refused = accepted < draft.counts
    token = at_row(one_more(draft.tokens), accepted)
    of = lambda x: jnp.where(refused, at_row(x, token), 0)
    scores = at_row(logits, accepted)
    if mode == "greedy":
        p = of(jax.nn.softmax(scores, axis=-1))
    else:
        p = of(distribution(scores, sampling, mode))
    q = jnp.zeros_like(p)
    if not sure:
        q = of(at_row(one_more(draft.chances), accepted))
    return Verdict(draft.tokens, draft.counts, accepted, bonus, p, q)


# One step
# --------

class Report(NamedTuple):
    """What the steps of a drafter did; each row counts until its end."""

    steps: Int[Array, "batch"]
    drafted: Int[Array, "batch drafts"]  # verified, by place in the draft
    accepted: Int[Array, "batch drafts"]
    last: Verdict  # of the last step


class Progress(NamedTuple):
    """A drafter's part of the state."""

    memory: Any  # its own
    report: Report


def no_report(batch: int, drafts: int) -> Report:
    """The report before the first step."""
    # each its own array: all of them are donated
    row = lambda kind=jnp.int32: jnp.zeros(batch, kind)
    table = lambda: jnp.zeros((batch, drafts), jnp.int32)
    chances = row(jnp.float32), row(jnp.float32)
    last = Verdict(table(), row(), row(), row(), *chances)
    return Report(row(), table(), table(), last)


def add_verdict(
    report: Report, verdict: Verdict, running: Bool[Array, "batch"]
) -> Report:
    """The report after one more step of the rows that run."""
    index = jnp.arange(report.drafted.shape[1])
    counted = lambda n: running[:, None] & (index < n[:, None])
    return Report(
        report.steps + running,
        report.drafted + counted(verdict.counts),
        report.accepted + counted(verdict.accepted),
        verdict,
    )


def check_block(block: Any, model: Transformer | None = None) -> None:
    """Refuse a block that is no whole number from 2 to the model's context."""
    if type(block) is not int or block < 2:
        raise UserError(
            f"block is {block!r:.60}; expected a whole number of 2 or more: "
            "the last token and the drafts behind it."
        )
    if model and block > model.config.max_position_embeddings:
        raise UserError(
            f"block is {block}; expected at most the model's context of "
            f"{model.config.max_position_embeddings} tokens."
        )


def check_draft(found: Any, drafter: str, shape: tuple[int, int, int]) -> None:
    """Refuse what is not a draft and a state.

    Args:
        drafter: its name, for messages.
        shape: batch, drafts and vocabulary.

    Raises:
        UserError: it says which part is wrong.
    """
    pair = isinstance(found, tuple) and len(found) == 2
    if not pair or not isinstance(found[0], Draft):
        raise UserError(
            f"{drafter}.draft returns {found!r:.60}; expected a Draft and the "
            "state."
        )
    kinds = jnp.integer, jnp.integer, jnp.floating
    sizes = shape[:2], shape[:1], shape
    parts = zip(Draft._fields, found[0], sizes, kinds, strict=True)
    for name, part, size, kind in parts:
        if name == "chances" and part is None:
            continue
        part = jnp.asarray(part)
        if part.shape != size or not jnp.issubdtype(part.dtype, kind):
            raise UserError(
                f"{drafter}.draft returns {name} of shape {part.shape} and "
                f"type {part.dtype}; expected {size}, {kind.__name__}."
            )


class Speculative:
    """Base of all drafters: the step that drafts, verifies and accepts.

    A subclass is a pytree with a field `block` and the method `draft`;
    `as_drafter` makes it one. It fits the protocol `Drafter`.
    """

    block: int  # tokens of a verification: the last one and the drafts
    taps: tuple[int, ...] = ()
    reads: ClassVar[bool] = False
    sparing: ClassVar[bool] = False  # it often drafts nothing

    @property
    def drafts(self) -> int:
        """Drafts in a step."""
        return self.block - 1

    def check(self, model: Transformer) -> None:
        """Refuse a model that the drafter does not fit.

        Raises:
            UserError: it says why.
        """
        name = type(self).__name__
        if jax.tree_util.all_leaves([self]):
            raise UserError(
                f"{name} is no pytree; put @as_drafter(\"block\") above its "
                "class, with the names of its other fields."
            )
        if type(self).draft is Speculative.draft:
            raise UserError(
                f"{name} has no method `draft`; expected one that returns a "
                "Draft and the state."
            )
        check_block(self.block, model)

    def begin(self, model: Transformer, batch: int, capacity: int) -> Any:
        """The drafter's memory before a token is read."""
        return None

    def start(self, model: Transformer, batch: int, capacity: int) -> Progress:
        """The drafter's part of a new state."""
        memory = self.begin(model, batch, capacity)
        return Progress(memory, no_report(batch, self.drafts))

    def read(
        self, model: Transformer, progress: Progress, *seen: Any
    ) -> Progress:
        """Read a part of the prompts; see `observe`."""
        return progress._replace(
            memory=self.observe(model, progress.memory, *seen)
        )

    def observe(
        self,
        model: Transformer,
        memory: Any,
        tokens: Int[Array, "batch tokens"],
        positions: Int[Array, "batch tokens"],
        counted: Bool[Array, "batch tokens"],
        tapped: tuple[Float[Array, "batch tokens hidden"], ...],
    ) -> Any:
        """The memory after the model has read tokens.

        Args:
            counted: false of padding and of drafts that were refused.
            tapped: the output of the layers `taps`.
        """
        return memory

    def draft(
        self, model: Transformer, state: State, sampling: Sampling, mode: str
    ) -> tuple[Draft, State]:
        """Guess; the state may have other memory and other rows of cache.

        Returns:
            Tokens (batch, drafts) and how many of each row count, and the
            state.
        """
        raise NotImplementedError

    def step(
        self,
        model: Transformer,
        state: State,
        stops: Int[Array, "stops"],
        sampling: Sampling,
        mode: str,
    ) -> State:
        """Draft and verify once: from one token more to `block`."""
        found = self.draft(model, state, sampling, mode)
        shape = len(state.tokens), self.drafts, model.config.vocab_size
        check_draft(found, type(self).__name__, shape)
        draft, state = found
        tokens = jnp.asarray(draft.tokens, jnp.int32)
        room = jnp.where(state.done, 0, state.limits - state.lengths - 1)
        counts = jnp.clip(draft.counts, 0, jnp.minimum(room, self.drafts))
        draft = draft._replace(tokens=tokens, counts=counts.astype(jnp.int32))
        verify_in = functools.partial(
            self.verify, model, draft, stops, sampling, mode
        )
        if not self.sparing:
            return verify_in(self.drafts, state)
        ways = [functools.partial(verify_in, n) for n in (0, self.drafts)]
        return jax.lax.cond(counts.any(), ways[1], ways[0], state)

    def verify(
        self,
        model: Transformer,
        draft: Draft,
        stops: Int[Array, "stops"],
        sampling: Sampling,
        mode: str,
        width: int,
        state: State,
    ) -> State:
        """Run the model over the last token and `width` drafts; accept."""
        lengths, running, drafts = state.lengths, ~state.done, draft.tokens
        draft = draft._replace(tokens=drafts[:, :width])
        if draft.chances is not None:
            draft = draft._replace(chances=draft.chances[:, :width])
        positions = lengths[:, None] - 1 + jnp.arange(width + 1)
        last = jnp.take_along_axis(state.tokens, positions[:, :1], axis=1)
        tokens = jnp.concatenate([last, draft.tokens], axis=1)
        output = model(tokens, positions, state.cache, self.taps)
        logits = model.logits(output.hidden)
        verdict = judge(logits, draft, lengths, sampling, mode)
        index = jnp.arange(width + 1)
        accepted, bonus = verdict.accepted[:, None], verdict.bonus[:, None]
        new = jnp.where(index == accepted, bonus, one_more(draft.tokens))
        state = state._replace(cache=output.cache)
        state = extend(state, new, verdict.accepted + 1, stops)
        counted = positions < state.lengths[:, None] - 1
        seen = (tokens, positions, counted, output.taps)
        memory = self.observe(model, state.progress.memory, *seen)
        verdict = verdict._replace(drafts=drafts)
        report = add_verdict(state.progress.report, verdict, running)
        return state._replace(progress=Progress(memory, report))


# A drafter that knows
# --------------------

def as_drafter(*meta: str, data: tuple[str, ...] = ()) -> Any:
    """Make a drafter's class a frozen dataclass and a pytree.

    Args:
        meta: fields that a compiled program is made for.
        data: fields with arrays.
    """

    def make(kind: type) -> type:
        kind = dataclass(frozen=True)(kind)
        return jax.tree_util.register_dataclass(kind, list(data), list(meta))

    return make


@as_drafter("block", data=("answers", "share"))
class Replay(Speculative):
    """Drafts a known answer: the perfect drafter, or one as good as you like.

    Args:
        answers: prompts and answers, at their positions; −1 where unknown.
        block: tokens of a verification, one more than there are drafts.
        share: of the drafts, so many are right, from 0 to 1; the others are
            one too high.
    """

    answers: Int[Array, "batch capacity"]
    block: int = 8
    share: float = 1.0

    def __post_init__(self) -> None:
        check_block(self.block)

    def check(self, model: Transformer) -> None:
        """Refuse a table that is none, and a share that is none."""
        super().check(model)
        table, share = np.asarray(self.answers), np.asarray(self.share)
        if table.ndim != 2 or not np.issubdtype(table.dtype, np.integer):
            raise UserError(
                f"answers has the shape {table.shape} and the type "
                f"{table.dtype}; expected token ids, a row for each text."
            )
        if share.shape or share.dtype.kind not in "if" or not 0 <= share <= 1:
            raise UserError(
                f"share is {self.share!r:.60}; expected a number from 0 to 1."
            )

    def begin(self, model: Transformer, batch: int, capacity: int) -> None:
        """No memory; but each text needs its answer."""
        if len(self.answers) != batch:
            raise UserError(
                f"answers has {len(self.answers)} rows for {batch} texts; "
                "expected a row for each."
            )

    def draft(
        self, model: Transformer, state: State, sampling: Sampling, mode: str
    ) -> tuple[Draft, State]:
        """The tokens of the answer from the row's length on."""
        at = state.lengths[:, None] + jnp.arange(self.drafts)
        known = jnp.pad(
            jnp.asarray(self.answers), ((0, 0), (0, 1)), constant_values=-1
        )
        last = known.shape[1] - 1
        tokens = jnp.take_along_axis(known, jnp.minimum(at, last), axis=1)
        counts = prefix(tokens >= 0, jnp.full(len(at), self.drafts))
        luck = lambda position: jax.random.uniform(
            jax.random.fold_in(jax.random.key(LUCK), position)
        )
        wrong = jax.vmap(jax.vmap(luck))(at) >= self.share
        wrong_tokens = (tokens + 1) % model.config.vocab_size
        return Draft(jnp.where(wrong, wrong_tokens, tokens), counts), state


# Prompt lookup
# -------------

@as_drafter("block", "least", "most")
class PromptLookup(Speculative):
    """Drafts what followed the last time the same tokens came.

    Args:
        block: tokens of a verification, one more than there are drafts.
        least: tokens that must agree; with fewer it drafts nothing.
        most: of earlier places, the latest with the longest agreement up to
            this is taken; at most 64, since each costs a comparison.

    Source: prompt lookup decoding (Saxena 2023).
    """

    block: int = 8
    least: int = 2
    most: int = 4
    sparing: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_block(self.block)
        whole = all(type(n) is int for n in (self.least, self.most))
        if not whole or not 1 <= self.least <= self.most <= 64:
            raise UserError(
                f"least is {self.least!r:.20} and most is {self.most!r:.20}; "
                "expected whole numbers with 1 ≤ least ≤ most ≤ 64."
            )

    def draft(
        self, model: Transformer, state: State, sampling: Sampling, mode: str
    ) -> tuple[Draft, State]:
        """The tokens behind the latest place that agrees best."""
        tokens, lengths = state.tokens, state.lengths
        index = jnp.arange(tokens.shape[1])
        agreed = jnp.zeros_like(tokens)
        same = jnp.ones_like(tokens, bool)
        for back in range(self.most):
            at = jnp.maximum(lengths - 1 - back, 0)
            mine = jnp.take_along_axis(tokens, at[:, None], axis=1)
            there = jnp.pad(tokens, ((0, 0), (back, 0)))[:, : len(index)]
            same &= (there == mine) & (index >= back)
            agreed += same
        before = index < lengths[:, None] - 1
        score = jnp.where(before, agreed * len(index) + index, -1)
        best = jnp.argmax(score, axis=1)
        enough = at_row(jnp.where(before, agreed, 0), best) >= self.least
        follow = best[:, None] + 1 + jnp.arange(self.drafts)
        within = jnp.minimum(follow, len(index) - 1)
        drafts = jnp.take_along_axis(tokens, within, axis=1)
        counts = jnp.where(enough, lengths - 1 - best, 0)
        return Draft(drafts, jnp.minimum(counts, self.drafts)), state


# A model as a drafter
# --------------------

def draw(
    logits: Float[Array, "batch vocab"],
    positions: Int[Array, "batch"],
    sampling: Sampling,
    mode: str,
) -> tuple[Int[Array, "batch"], Float[Array, "batch vocab"] | None]:
    """A drafter's token for a position, and what it was drawn from."""
    if mode == "greedy":
        return jnp.argmax(logits, axis=-1), None
    q = distribution(logits, sampling, mode)
    noise = gumbel(stream(sampling.keys, DRAFTS), positions, q.shape[-1])
    return jnp.argmax(jnp.log(q) + noise, axis=-1), q


def draft_by_steps(
    model: Transformer,
    cache: Cache,
    tokens: Int[Array, "batch new"],
    lengths: Int[Array, "batch"],
    sampling: Sampling,
    mode: str,
    drafts: int,
    depth: int | None = None,
) -> tuple[Draft, Cache]:
    """Let a model draft, one token a pass.

    Args:
        tokens: the last tokens of each row; their keys and values are written.
        drafts: how many.
        depth: layers to run; None for all.
    """

    def guess(cache: Cache, tokens: Any, at: Any) -> tuple[Cache, Any]:
        count = tokens.shape[1]
        positions = at[:, None] - count + jnp.arange(count)
        output = model(tokens, positions, cache, depth=depth)
        logits = model.logits(output.hidden[:, -1])
        return output.cache, draw(logits, at, sampling, mode)

    def body(carry: tuple, i: Int[Array, ""]) -> tuple:
        cache, token = carry
        cache, drawn = guess(cache, token[:, None], lengths + i)
        return (cache, drawn[0]), drawn

    cache, first = guess(cache, tokens, lengths)
    carry = (cache, first[0])
    (cache, _), more = jax.lax.scan(body, carry, jnp.arange(1, drafts))
    join = lambda x, xs: jnp.concatenate([x[None], xs]).swapaxes(0, 1)
    guesses, chances = jax.tree.map(join, first, more)
    return Draft(guesses, jnp.full(len(lengths), drafts), chances), cache


@as_drafter("block", data=("model",))
class DraftModel(Speculative):
    """Drafts with a smaller model of the same vocabulary.

    Its cache is dense. It reads the last two tokens of a row again before it
    drafts, because a block that was accepted whole leaves its last one unread.

    Args:
        model: the smaller model.
        block: tokens of a verification, one more than there are drafts.

    Source: Leviathan et al. 2023; Chen et al. 2023.
    """

    model: Transformer
    block: int = 4
    reads: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_block(self.block)

    def check(self, model: Transformer) -> None:
        """Refuse a model with another vocabulary."""
        super().check(model)
        if not isinstance(self.model, Transformer):
            raise UserError(
                f"The draft model is {self.model!r:.60}; expected a model, the "
                "first of the two that dflash_lite.load returns."
            )
        ours, theirs = self.model.config, model.config
        if ours.vocab_size != theirs.vocab_size:
            raise UserError(
                f"The draft model has {ours.vocab_size} tokens, the model "
                f"{theirs.vocab_size}; expected the same tokenizer for both."
            )

    def begin(
        self, model: Transformer, batch: int, capacity: int
    ) -> DenseCache:
        """An empty cache of the draft model."""
        dtype = self.model.embed_tokens.dtype
        return DenseCache.empty(self.model.config, batch, capacity, dtype)

    def read(
        self, model: Transformer, progress: Progress, *seen: Any
    ) -> Progress:
        """Read the same part of the prompts."""
        tokens, positions, *_ = seen
        cache = self.model(tokens, positions, progress.memory).cache
        return progress._replace(memory=cache)

    def draft(
        self, model: Transformer, state: State, sampling: Sampling, mode: str
    ) -> tuple[Draft, State]:
        """A pass of the draft model for each draft."""
        at = state.lengths[:, None] - 2 + jnp.arange(2)
        two = jnp.take_along_axis(state.tokens, at, axis=1)
        progress = state.progress
        how = (state.lengths, sampling, mode, self.drafts)
        draft, cache = draft_by_steps(
            self.model, progress.memory, two, *how
        )
        progress = progress._replace(memory=cache)
        return draft, state._replace(progress=progress)


@as_drafter("layers", "block")
class EarlyExit(Speculative):
    """Drafts with the model's own first layers, its norm and its head.

    They write the keys and values that the verification writes anew.

    Args:
        layers: how many.
        block: tokens of a verification, one more than there are drafts.

    Source: Draft & Verify (Zhang et al. 2023) skips layers; LayerSkip
    (Elhoushi et al. 2024) leaves early, with a model trained for it.
    """

    layers: int
    block: int = 4

    def __post_init__(self) -> None:
        check_block(self.block)

    def check(self, model: Transformer) -> None:
        """Refuse a model that has no more layers than are to run."""
        super().check(model)
        count = model.config.num_hidden_layers
        if type(self.layers) is not int or not 1 <= self.layers < count:
            raise UserError(
                f"layers is {self.layers!r:.60}; expected a whole number from "
                f"1 to {count - 1}, as the model has {count}."
            )

    def draft(
        self, model: Transformer, state: State, sampling: Sampling, mode: str
    ) -> tuple[Draft, State]:
        """A pass of the first layers for each draft."""
        last = jnp.take_along_axis(
            state.tokens, state.lengths[:, None] - 1, axis=1
        )
        how = (sampling, mode, self.drafts, self.layers)
        draft, cache = draft_by_steps(
            model, state.cache, last, state.lengths, *how
        )
        return draft, state._replace(cache=cache)


# When does it pay?
# -----------------

def tokens_a_step(accepted: float, drafts: int) -> float:
    """Tokens that a step gives on average.

    Args:
        accepted: the probability that a draft is accepted, if all before it
            are; the same for each.
        drafts: how many there are in a step.

    Source: Leviathan et al. 2023, equation 1.
    """
    return float(sum(accepted**i for i in range(drafts + 1)))


def predicted_speedup(
    accepted: float, drafts: int, verify: float, draft: float = 0.0
) -> float:
    """How much faster than plain decoding.

    Args:
        verify: time of a pass over drafts + 1 tokens, in plain decode steps.
        draft: time to draft, in plain decode steps.

    Source: Leviathan et al. 2023, theorem 3.8.
    """
    return tokens_a_step(accepted, drafts) / (verify + draft)
