# ---
# jupyter:
#   dflash_lite:
#     module: exercises
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
# # 91. Exercise checks
#
# A check runs a learner's answer and says in one line whether it is right,
# not written yet, or what is wrong with it.
#
# **You will be able to** read a check, and write one for an exercise of your
# own. **Time:** 5 minutes.
#
# The chapters leave holes for you to fill. A check below each hole tells you
# how you are doing. It must not stop the notebook: *Run all* should reach the
# end while half of the holes are empty.

# %% [markdown]
# ## Reading a check
#
# Here is an answer with a bug. **Predict:** what should a helpful check say
# about it?

# %%
def accept_prefix(draft: list[int], best: list[int]) -> int:
    """How many drafted tokens, from the left, does the target agree with?"""
    return sum(a == b for a, b in zip(draft, best))


# %% [markdown]
# `accept_prefix([1, 2, 3], [1, 9, 3])` should be 1, because the agreement ends
# at the 9. The answer above counts 2. A test finds that out, and its message
# tells the learner which rule was broken:

# %%
try:
    assert accept_prefix([1, 2, 3], [1, 9, 3]) == 1, "stop at the first 9"
except AssertionError as error:
    print(error)

# %% [markdown]
# An exception says one of three things: the answer is wrong (`AssertionError`),
# it is not written yet (`NotImplementedError`, which is what a hole raises), or
# it stopped by itself (anything else).

# %% [markdown]
# ## The check
#
# `check(answer)` is a decorator. It runs the test below it at once and prints
# one line. Our own tests set `DFLASH_LITE_CHECK=strict`. Then a check that does
# not end with "right" is an error, so that no solution in the book is wrong.

# %% tags=["export"]
import os
import traceback
from collections.abc import Callable


# %% tags=["export"]
def check(answer: Callable) -> Callable[[Callable], None]:
    """Decorate a test of `answer`: run it at once and print what it found.

    The test takes the answer as its argument and asserts what should hold; the
    message of an assertion tells the learner what is wrong.

    Raises:
        AssertionError: the answer is not right, and the environment variable
            DFLASH_LITE_CHECK is "strict".
    """

    def run(test: Callable) -> None:
        word = _verdict(test, answer)
        line = f"{answer.__name__}: {word}"
        if word != "right" and os.environ.get("DFLASH_LITE_CHECK") == "strict":
            raise AssertionError(line)
        print(line)

    return run


# %% tags=["export"]
def _verdict(test: Callable, answer: Callable) -> str:
    try:
        test(answer)
    except NotImplementedError:
        return "not written yet"
    except AssertionError as error:
        failed = traceback.extract_tb(error.__traceback__)[-1].line
        return f"not right yet: {str(error) or failed}"
    except Exception as error:
        return f"stopped with {type(error).__name__}: {error}"
    return "right"


# %% [markdown]
# ## All four answers
#
# The wrong answer from above, a hole, an answer that stops, and a right one.
# (This chapter runs in strict mode too when we test it, so it switches that
# off for the first three.)

# %%
from unittest import mock

lenient = mock.patch.dict(os.environ, DFLASH_LITE_CHECK="")
lenient.start()


@check(accept_prefix)
def _(f):
    assert f([1, 2, 3], [1, 9, 3]) == 1, "stop at the first disagreement"


# %%
def hole(draft, best):
    raise NotImplementedError("your turn")


@check(hole)
def _(f):
    assert f([1], [1]) == 1


# %%
def too_far(draft, best):
    n = 0
    while draft[n] == best[n]:
        n += 1
    return n


@check(too_far)
def _(f):
    assert f([4, 5], [4, 5]) == 2


# %% [markdown]
# The last one runs past the end when all tokens agree.

# %%
lenient.stop()

# %% [markdown]
# ## Your turn
#
# **Exercise 91.1** (3 min). Write `accept_prefix` so that it passes.

# %% tags=["exercise"]
def accepted(draft: list[int], best: list[int]) -> int:
    """How many drafted tokens, from the left, does the target agree with?"""
    ### BEGIN SOLUTION
    n = 0
    while n < len(draft) and draft[n] == best[n]:
        n += 1
    return n
    ### END SOLUTION


# %% tags=["check"]
@check(accepted)
def _(f):
    assert f([1, 2, 3], [1, 9, 3]) == 1, "stop at the first disagreement"
    assert f([1], [2]) == 0, "nothing agrees"
    assert f([4, 5], [4, 5]) == 2, "all agree: do not look past the end"


# %% [markdown]
# ## Key points
#
# - A check prints one line and never stops the notebook.
# - The message of its assertion is the hint. Write it for the learner.
# - `DFLASH_LITE_CHECK=strict` turns every "not yet" into an error.
