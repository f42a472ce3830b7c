# ---
# jupyter:
#   dflash_lite:
#     module: speculative
#     public:
#     - DraftModel
#     - EarlyExit
#     - PromptLookup
#     - Replay
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
# # 6. Speculative decoding
#
# Draft and verify: guesses at the next tokens, checked by the model in one
# pass; rules that keep its text exactly as it was; four drafters; and a law
# that says when all this pays.
#
# **The question.** How can a model write several tokens in one pass, and still
# write what it would have written alone?
#
# **Afterwards you can** verify a draft by greedy choice and by probabilities,
# say why no text changes, write a drafter, and predict from two measurements
# whether it pays.
#
# **Time.** 60 minutes to read and run, 35 minutes of exercises.

# %% tags=["export"]
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

# %%
import time

import matplotlib.pyplot as plt

from dflash_lite.decoding import encode_prompt, generate, make_sampling
from dflash_lite.exercises import check
from dflash_lite.transformer import load

model, tokenizer = load("smollm2-135m")

# %% [markdown]
# ## One pass checks a whole text
#
# A decode step reads every weight to make one token (chapter 3). Prefill reads
# them once for a whole prompt. So suppose that somebody hands us the answer,
# and we only have to check it.

# %%
question = """Write this text again, word for word:

The old lighthouse stands on a rock at the end of the bay. Every evening its \
keeper climbs the stairs, lights the lamp and writes the weather into a book. \
The lamp has not missed a night in a hundred years."""
answer = generate(model, tokenizer, question, max_new_tokens=48)
print(answer.text)

# %% [markdown]
# Run the model over question and answer in one pass. The logits at each
# position give its choice for the next token. (`taps` keeps what each layer
# puts out; we come back to it.)

# %%
forward = jax.jit(Transformer.__call__, static_argnames="taps")
ids = encode_prompt(tokenizer, question, True, None)
text = jnp.array([ids + answer.tokens])
layers = tuple(range(30))
one_pass = forward(model, text, taps=layers)
choices = model.logits(one_pass.hidden)[0].argmax(-1)
assert (choices[len(ids) - 1 : -1] == text[0, len(ids) :]).all()

# %% [markdown]
# One pass has confirmed all tokens, where writing them took one pass each. If a
# token of the answer had been another, the model's choice in its place would
# have said so; and everything before it would still be confirmed.
#
# That is *speculative decoding* ([Leviathan et al. 2023](
# https://arxiv.org/abs/2211.17192), [Chen et al. 2023](
# https://arxiv.org/abs/2302.01318)). A *drafter*, somebody cheap, guesses the
# next tokens: the *draft*. The model runs over them in one pass: it *verifies*.
# What agrees with its own choice is *accepted*.
#
# ## What does a pass over more tokens cost?
#
# All depends on this. If a pass over eight tokens costs as much as eight
# passes, nothing is won.
#
# **Predict.** By the roofline of chapter 3 a pass waits for the weights until
# computing takes longer. At how many tokens is that, on a TPU v5e (197 Tflop/s,
# 819 GB/s, two bytes and two operations for each weight)? On a v5p (459 and
# 2,765)? On a v6e (918 and 1,640)?

# %%
chips = {"v5e": (197e12, 819e9), "v5p": (459e12, 2765e9)}
chips["v6e"] = (918e12, 1640e9)
for chip, (peak, bandwidth) in chips.items():
    print(f"{chip}: flat up to {peak / bandwidth:.0f} tokens")

# %% [markdown]
# And here? We time a pass over 1 to 1,024 tokens behind a cache of 64, with the
# logits of each, as a verification needs them.

# %%
@jax.jit
def pass_over(model, tokens, positions, cache):
    output = model(tokens, positions, cache)
    return model.logits(output.hidden).argmax(-1)


def pass_seconds(count, tries=2):
    cache = DenseCache.empty(model.config, 1, 64 + count, jnp.float32)
    positions = 64 + jnp.arange(count)[None]
    run = pass_over.lower(model, positions, positions, cache).compile()
    times = []
    for _ in range(tries):
        start = time.perf_counter()
        result = run(model, positions, positions, cache)
        promised = time.perf_counter() - start
        jax.block_until_ready(result)
        times.append((time.perf_counter() - start, promised))
    return min(times)


# %%
counts = [1, 8, 32, 1024]
waited, promised = np.array([pass_seconds(n) for n in counts]).T
assert waited[-1] > 8 * waited[0] and promised[-1] < waited[-1] / 2

# %% [markdown]
# `promised` is the time until the call came back. JAX hands back a promise and
# computes in the background; who forgets to wait times the promise.

# %% tags=["nbval-ignore-output"]
print("tokens   waited  promised")
for n, true, wrong in zip(counts, waited, promised):
    print(f"{n:6}{true * 1e3:7.0f} ms{wrong * 1e3:7.1f} ms")

# %% tags=["nbval-ignore-output"] mystnb={"image": {"alt": "Two lines on logarithmic axes over 1 to 1,024 tokens. With waiting, the time of a pass rises slowly at first and then in proportion. Without waiting it rises far less and lies far below."}}
fig, ax = plt.subplots(figsize=(7, 3))
ax.plot(counts, waited * 1e3, "o-", label="waiting for the result")
ax.plot(counts, promised * 1e3, "s--", label="not waiting")
ax.set_xscale("log", base=2)
ax.set_yscale("log")
ax.legend(frameon=False)
_ = ax.set(xlabel="tokens in a pass", ylabel="milliseconds")

# %% [markdown]
# The lower line is the time to hand the work over. It hardly asks how much work
# that is, so it makes any pass look flat in the number of tokens. The roofline
# unmasks such a curve: a v5p takes 2.9 ms to read weights of 8 GB, so whoever
# measures 1.5 ms for a pass of that model has timed promises.

# %%
assert abs(8e9 / chips["v5p"][1] * 1e3 - 2.9) < 0.01  # milliseconds

# %% [markdown]
# The upper line is what counts. On a CPU a pass over 8 tokens costs more than
# one over 1, but far less than eight. On a TPU it would be flat up to the
# tokens computed above.
#
# ## The greedy rule
#
# A draft of $K$ tokens stands behind the last token of the text, the *anchor*.
# One pass over this *block* of $K + 1$ tokens gives the model's choice behind
# each. Accept drafts from
# the left as long as each equals the choice before it. The first choice that
# differs is right in any case: the model has seen only accepted tokens before
# it. And if all drafts are accepted, the last choice comes for free. So each
# step gives the accepted tokens and one more, the *bonus*. It never gives less
# than a decode step.

# %% tags=["export"]
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


# %% tags=["export"]
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


# %% tags=["export"]
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


# %% [markdown]
# **Predict.** The drafts are 5, 9, 2. The model would choose 5 first, 9 behind
# 5, 7 behind 9, and 4 behind 2. How many tokens does the step give, and which?

# %%
would_choose = jax.nn.one_hot(jnp.array([[5, 9, 7, 4]]), 10)
greedy, _ = make_sampling(model, 1, 0.0, None, None, 0)
draft = Draft(jnp.array([[5, 9, 2]]), jnp.array([3]))
accepted, bonus = agree(would_choose, draft, jnp.array([1]), greedy, "greedy")
assert accepted == 2 and bonus == 7  # and 4 answered a question nobody asked

# %% [markdown]
# The pass has written keys and values for all its tokens, also for refused
# ones. Chapter 3's cache forgets them by itself: the next step begins at the
# position behind the last accepted token, and overwrites them.
#
# ## When tokens are drawn
#
# With a temperature there is no single right token. What must stay is the
# *distribution* of the text: each token is as likely as without a drafter.
#
# Let the drafter draw its token from $q$, and the model want $p$. Where $q$
# gives a token more than $p$ does, it comes too often, so we keep it with the
# probability $p/q$ only. Where $q$ gives less, we always keep it, and it still
# comes too rarely. What is missing there is exactly what we refused elsewhere.
# So after a refusal we draw from what is missing: $\max(p - q, 0)$, scaled to
# add up to 1.

# %% tags=["export"]
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


# %% [markdown]
# **Predict.** $p$ = (0.5, 0.3, 0.2) and $q$ = (0.2, 0.2, 0.6). How often is a
# draft accepted?

# %%
p, q = jnp.array([0.5, 0.3, 0.2]), jnp.array([0.2, 0.2, 0.6])
keep = jax.vmap(lambda token: acceptance(p, q, token))(jnp.arange(3))
print("kept:", [f"{x:.2f}" for x in keep])
print("drawn after a refusal:", [f"{x:.2f}" for x in residual(p, q)])
assert jnp.isclose((q * keep).sum(), jnp.minimum(p, q).sum())
assert jnp.isclose((q * keep).sum(), 0.6)

# %% mystnb={"image": {"alt": "For three tokens, bars for the model's probability p and the drafter's q side by side. Their common part, the smaller of the two, is hatched: that share of drafts is kept. The part of p above q is what is drawn from after a refusal."}}
fig, ax = plt.subplots(figsize=(6, 2.6))
places, common = np.arange(3), np.minimum(p, q)
sides = ("p, the model", p, -0.2), ("q, the drafter", q, 0.2)
for name, values, shift in sides:
    ax.bar(places + shift, values, 0.36, label=name)
    kept = ax.bar(places + shift, common, 0.36, fill=False, hatch="///")
kept.set_label("common: kept")
ax.set_xticks(places, ["a", "b", "c"])
_ = ax.legend(frameon=False), ax.set_ylabel("probability")

# %% [markdown]
# The check: the probability of each token, over all ways to it. Either it is
# drafted and kept, or something is refused and it is drawn then.

# %%
refused = 1 - (q * keep).sum()
assert jnp.allclose(q * keep + refused * residual(p, q), p)

# %% [markdown]
# ### A drafter that is sure
#
# Some drafters do not draw: they copy, or take the likeliest token. Then $q$ is
# 1 for the draft and 0 for all else. The rule says: keep it with probability
# $p$(draft), else draw from $p$ without it.
#
# There is a simpler way to do just that. Draw from $p$ as if there were no
# draft; if the draw happens to be the draft, the draft is accepted. That is
# `agree`, with `choose` of chapter 3 in it. And since `choose` takes its random
# numbers from the seed and the position, the text is not only drawn from the
# same distribution: it is the *same text* that plain decoding writes with this
# seed.
#
# ### Random numbers must not be used twice
#
# The full rule draws three times for a position: the draft, the refusal, and
# the repair after it. If two of them shared a random number, the draft would
# know how it will be judged, and the proof above would be void. So each use has
# its own stream.

# %% tags=["export"]
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


# %% [markdown]
# Both rules give a verdict. It also keeps the two probabilities of the first
# draft that was refused, because whoever reads a trace wants to know why.

# %% tags=["export"]
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


# %% [markdown]
# ## One step
#
# A drafter is a small object. It can watch what the model reads (`observe`),
# and it guesses (`draft`). The step is the same for all of them. It runs in
# chapter 3's loop in place of `decode_step`, so nothing goes to the host
# between a draft and its verification.

# %% tags=["export"]
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


# %% [markdown]
# A drafter is written by somebody else, and a table of the wrong shape would
# end in an error deep inside of the model. So what it hands over is checked:
# shapes and kinds, which are known when a program is compiled, and cost nothing
# when it runs. The *values* nobody sees then. They need no check: a count is
# cut to what there is, and a token that the model does not choose is refused.


# %% tags=["export"]
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


# %% tags=["export"]
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


# %% tags=["export"]
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


# %% [markdown]
# Three places deserve a second look.
#
# - Near the limit the block shrinks: `room` leaves a place for the bonus.
# - A stop token among the accepted ones ends the text right there. `extend`
#   sees to it, and to the limit.
# - `counted` marks the tokens whose hidden states are final: those before the
#   new last token. The bonus is not among them. No pass has read it yet; the
#   next one will.
#
# A drafter that often has no idea sets `sparing`. Then a step without any draft
# runs the model over one token only, which is a plain decode step.
#
# ## A drafter that knows
#
# The first drafter has the answer in its hands. It costs nothing and is always
# right, so it shows what the loop itself is worth. With `share` below 1 it errs
# that often, and shows any other drafter's fate.

# %% tags=["export"]
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


# %% tags=["export"]
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


# %%
def known(prompt, answer, capacity=512):
    ids = encode_prompt(tokenizer, prompt, True, None) + answer.tokens
    table = np.full((1, capacity), -1, np.int32)
    table[0, : len(ids)] = ids
    return table


def best_of(prompt, tries=2, new=48, **options):
    how = dict(max_new_tokens=new, **options)
    runs = [generate(model, tokenizer, prompt, **how) for _ in range(tries)]
    return min(runs, key=lambda run: run.statistics.decode_seconds)


# %%
plain = best_of(question)
perfect = best_of(question, drafter=Replay(known(question, answer)))
assert perfect.tokens == plain.tokens
cost = perfect.statistics
print(f"{cost.decode_tokens} tokens in {cost.decode_steps} steps, "
      f"{cost.acceptance_length:.2f} a step")

# %% [markdown]
# `acceptance_length` is the number that this field compares: tokens that a step
# adds, the bonus counted. With seven drafts it is at most 8; the last step is
# cut by the end of the text.
#
# **Predict.** From the times of a pass above: how much quicker should this be?

# %%
gain = plain.statistics.decode_seconds / cost.decode_seconds
allowed = cost.acceptance_length * waited[0] / waited[1]

# %% tags=["nbval-ignore-output"]
print(f"measured {gain:.2f} times as fast, the passes allow {allowed:.2f}")

# %% [markdown]
# With a temperature the same seed must give the same text, however many drafts
# are refused. A small random model is enough to see it.

# %%
from dataclasses import replace

from flax import nnx

small_config = replace(
    model.config, hidden_size=64, intermediate_size=64, num_hidden_layers=2
)
small = Transformer(small_config, rngs=nnx.Rngs(0))
how = dict(max_new_tokens=24, temperature=0.7, seed=5)
alone = generate(small, tokenizer, [1, 2, 3], **how)
half = Replay(np.array([[1, 2, 3] + alone.tokens]), share=0.5)
helped = generate(small, tokenizer, [1, 2, 3], drafter=half, **how)
assert helped.tokens == alone.tokens
print(f"{helped.statistics.decode_steps} steps, the same 24 tokens")

# %% [markdown]
# ## Prompt lookup
#
# A real drafter now, and a free one. Texts repeat themselves: a summary quotes,
# an edited program keeps most of its lines. So look where the last few tokens
# stood before, and copy what came after ([Saxena 2023](
# https://github.com/apoorvumang/prompt-lookup-decoding)). Of all such places
# take the one that agrees longest, and of those the latest.

# %% tags=["export"]
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


# %%
lookup = best_of(question, drafter=PromptLookup())
assert lookup.tokens == plain.tokens
print(f"acceptance length {lookup.statistics.acceptance_length:.2f}")
print("drafted ", lookup.statistics.drafted)
print("accepted", lookup.statistics.accepted)

# %% tags=["nbval-ignore-output"]
gain = plain.statistics.decode_seconds / lookup.statistics.decode_seconds
print(f"{gain:.2f} times as fast as plain decoding")

# %% [markdown]
# ## A drafter of your own
#
# This is all that it takes: a class with a block, and a method that guesses.
# (Elsewhere: `from dflash_lite.speculative import Draft, Speculative,
# as_drafter`.) Ours has one idea, that the last token comes again.

# %%
@as_drafter("block")
class Again(Speculative):
    block: int = 4

    def draft(self, model, state, sampling, mode):
        at = state.lengths[:, None] - 1
        last = jnp.take_along_axis(state.tokens, at, axis=1)
        tokens = jnp.tile(last, (1, self.drafts))
        counts = jnp.full(len(tokens), self.drafts)
        return Draft(tokens, counts), state


again = generate(small, tokenizer, [1, 2, 3], drafter=Again(), **how)
assert again.tokens == alone.tokens
print(f"acceptance length {again.statistics.acceptance_length:.2f}")

# %% [markdown]
# However bad the idea is, the text stays what it was. Only who draws its drafts
# must be honest: `chances` has to be what they were drawn from. A drafter that
# remembers something has more methods, `begin` and `observe`; one that reads
# hidden states names the layers in `taps`.
#
# What has the wrong shape is refused with its name:

# %%
@as_drafter("block")
class Short(Again):
    block: int = 4

    def draft(self, *context):
        draft, state = super().draft(*context)
        return draft._replace(tokens=draft.tokens[:, 1:]), state


try:
    generate(small, tokenizer, [1, 2, 3], drafter=Short(), **how)
except UserError as error:
    print(error)

# %% [markdown]
# ## A model as a drafter
#
# Where nothing repeats, somebody has to predict. A smaller model can, one pass
# for each draft. When tokens are drawn, it draws too, and says from what.

# %% tags=["export"]
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


# %% [markdown]
# The smaller model has a cache of its own, and there is a trap. It drafts
# $d_1 \dots d_K$ by running over the last token and $d_1 \dots d_{K-1}$. The
# last draft it never reads. If all are accepted, its cache has a hole at that
# position, for ever. The text stays right, since the large model judges every
# draft; only the acceptance sinks, and nobody knows why. So it reads the last
# *two* tokens again before it drafts.

# %% tags=["export"]
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


# %% [markdown]
# Must it be another model? The first layers of the same model, with its norm
# and its head, make a smaller one for nothing.
#
# **Predict.** The pass at the beginning kept the output of all 30 layers. After
# which layer does the head name the token that the model will choose, half of
# the time?

# %%
hidden = jnp.stack(one_pass.taps)[:, 0, len(ids) - 1 : -1]
early = jax.jit(lambda x: model.logits(model.norm(x)).argmax(-1))(hidden)
agreement = (early == text[0, len(ids) :]).mean(1)
for layer in (5, 10, 15, 20, 25, 29):
    print(f"after layer {layer}: {agreement[layer - 1]:.2f}")
assert agreement[15] < 0.3

# %% mystnb={"image": {"alt": "Share of tokens that each layer already names, over the layers 1 to 30. It stays under a fifth until layer 18, then climbs and reaches 1 at the last layer."}}
fig, ax = plt.subplots(figsize=(7, 2.6))
ax.plot(np.arange(1, 31), agreement, "o-")
_ = ax.set(xlabel="after layer", ylabel="names the token", ylim=(0, 1.05))

# %% [markdown]
# The model makes up its mind late. Half of the layers name few tokens, and with
# the head they read more than half of what a pass reads.
# [LayerSkip](https://arxiv.org/abs/2404.16710) trains models to leave early;
# this one was not.

# %% tags=["export"]
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


# %% [markdown]
# The small random model again: with itself as the draft model, every draft is
# right, also where a block was accepted whole.

# %%
twin = generate(
    small, tokenizer, [1, 2, 3], max_new_tokens=17, drafter=DraftModel(small)
)
assert twin.statistics.acceptance_length == 4

# %% [markdown]
# ## When does it pay?
#
# Let a draft be accepted with probability $a$, each independent of the others.
# A step with $K$ drafts gives at least one token; two if the first is accepted;
# and so on:
#
# $$1 + a + a^2 + \dots + a^K = \frac{1 - a^{K+1}}{1 - a}.$$
#
# It costs a pass over $K + 1$ tokens and the drafting. So the speedup is
#
# $$\frac{1 - a^{K+1}}{1 - a} \cdot \frac{t_1}{t_{K+1} + t_\text{draft}}.$$

# %% tags=["export"]
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


# %% [markdown]
# Is it true? `Replay` errs as often as we like. We compare with the measured
# speed, for seven drafts.

# %%
shares = [0.0, 0.4, 0.8, 1.0]
table = known(question, plain)
measured = []
for share in shares:
    run = best_of(question, drafter=Replay(table, share=share))
    measured.append(
        plain.statistics.decode_seconds / run.statistics.decode_seconds
    )
verify = waited[1] / waited[0]
law = [predicted_speedup(share, 7, verify) for share in shares]

# %% tags=["nbval-ignore-output"]
print(f"a pass over 8 tokens costs {verify:.2f} plain steps")
for share, by_law, real in zip(shares, law, measured):
    print(f"accepted {share:.1f}: law {by_law:.2f}, measured {real:.2f}")

# %% [markdown]
# On 48 tokens the luck of a few drafts matters, and the last step is cut.
# `dflash-lite bench` runs longer, on many prompts.
#
# Now turn the law around. Below which acceptance does each number of drafts
# lose? The times of the passes are those of this machine.

# %%
drafts = np.arange(1, 17)
cost_of = np.interp(drafts + 1, counts, waited / waited[0])
rates = np.linspace(0, 1, 41)
law = np.array([
    [predicted_speedup(a, k, c) for k, c in zip(drafts, cost_of)] for a in rates
])  # fmt: skip

# %% tags=["nbval-ignore-output"] mystnb={"image": {"alt": "A map of the predicted speedup over drafts per step, 1 to 16, and acceptance from 0 to 1. A thick line marks speedup 1; below it, at low acceptance, speculation loses. Many drafts win only at high acceptance."}}
fig, ax = plt.subplots(figsize=(7, 3.6))
levels = [0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6]
shades = ax.contourf(drafts, rates, law, levels, cmap="cividis", extend="both")
ax.contour(drafts, rates, law, [1], colors="white", linewidths=3)
fig.colorbar(shades, label="speedup")
_ = ax.set(xlabel="drafts in a step", ylabel="probability of acceptance")

# %% [markdown]
# The white line is the break-even. Under it, speculation makes things slower;
# how far it is up depends on what a pass over more tokens costs. A server with
# many texts has used up the cheap tokens already, and its line lies higher.
#
# In a notebook you can move it yourself. `verify` and `draft` are the costs of
# a verification and of drafting, in plain steps.

# %%
def show(accepted=0.7, drafts=7, verify=1.5, draft=0.1):
    gain = predicted_speedup(accepted, drafts, verify, draft)
    verdict = "pays" if gain > 1 else "loses"
    length = tokens_a_step(accepted, drafts)
    print(f"{length:.2f} tokens a step, {gain:.2f} times as fast: it {verdict}")


# %% tags=["nbval-ignore-output"]
try:
    from ipywidgets import interact

    interact(
        show, accepted=(0.0, 1.0), drafts=(1, 16), verify=(1.0, 4.0),
        draft=(0.0, 2.0),
    )  # fmt: skip
except ImportError:  # the picture above is its twin
    show()

# %% [markdown]
# ## Exercises
#
# **6.1 The greedy rule by hand** (10 minutes). From the drafts and the model's
# choices (one more than there are drafts), return the tokens of the step.

# %% tags=["exercise"]
def step_tokens(drafts: list[int], choices: list[int]) -> list[int]:
    """The accepted drafts and the bonus."""
    ### BEGIN SOLUTION
    count = 0
    while count < len(drafts) and drafts[count] == choices[count]:
        count += 1
    return drafts[:count] + [choices[count]]
    ### END SOLUTION


# %% tags=["check"]
@check(step_tokens)
def _(f):
    assert f([5, 9, 2], [5, 9, 7, 4]) != [5, 9], "the bonus is missing"
    assert f([5, 9, 2], [5, 9, 7, 4]) != [5, 9, 4], (
        "the bonus stands in the place of the first refused draft"
    )
    assert f([5, 9, 2], [5, 9, 7, 4]) == [5, 9, 7], "two accepted, then 7"
    assert f([5, 9], [5, 9, 7]) == [5, 9, 7], "all accepted: the last choice"
    assert f([1, 9], [5, 9, 7]) == [5], "a later match does not count"
    assert f([], [5]) == [5], "no draft: a decode step"


# %% [markdown]
# **6.2 Break-even** (10 minutes). A pass over $K + 1$ tokens costs `verify`
# plain steps and drafting costs `draft`. What acceptance length must a drafter
# reach to be as fast as plain decoding?

# %% tags=["exercise"]
def break_even(verify: float, draft: float) -> float:
    """The acceptance length at which nothing is won or lost."""
    ### BEGIN SOLUTION
    return verify + draft
    ### END SOLUTION


# %% tags=["check"]
@check(break_even)
def _(f):
    assert f(1.5, 0.0) == 1.5, "a step must give as many tokens as it costs"
    assert f(1.5, 0.3) == 1.8, "drafting costs too"


# %% [markdown]
# **6.3 The full rule** (15 minutes). Return the probability of each token at
# the first place of a step: drafted from `q` and kept, or drawn after a
# refusal.
# The check compares it with `p`, and tries a wrong residual too.

# %% tags=["exercise"]
def first_token(
    p: list[float], q: list[float], after: list[float]
) -> list[float]:
    """Probabilities of the token, if `after` is drawn from on a refusal."""
    ### BEGIN SOLUTION
    kept = [min(a, b) for a, b in zip(p, q, strict=True)]
    refused = 1 - sum(kept)
    return [k + refused * r for k, r in zip(kept, after, strict=True)]
    ### END SOLUTION


# %% tags=["check"]
@check(first_token)
def _(f):
    p, q = [0.5, 0.3, 0.2], [0.2, 0.2, 0.6]
    right = f(p, q, [0.75, 0.25, 0.0])
    assert not np.allclose(right, [0.2, 0.2, 0.2]), "after a refusal comes more"
    assert np.allclose(right, p), "with max(p − q, 0) it is p"
    wrong = f(p, q, p)
    assert np.allclose(wrong, [0.4, 0.32, 0.28]), (
        "drawing from p after a refusal gives tokens that q likes too often"
    )


# %% [markdown]
# ## Key points
#
# - A pass over several tokens costs less than as many passes. Time it with
#   `block_until_ready`, or you time a promise.
# - Verification accepts drafts from the left, and gives one token more. The
#   text, or its distribution, stays exactly what it was.
# - A sure drafter needs no probabilities: draw as usual and compare.
# - Refused drafts leave rows in the caches that later steps overwrite; accepted
#   drafts can leave a hole in a draft model's cache.
# - Acceptance length against cost: a drafter pays when a step gives more tokens
#   than it costs plain steps.
#
# **Next:** chapter 7 trains drafters on what the model itself writes.
