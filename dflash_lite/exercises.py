"""Exercise checks.

A check runs a learner's answer and says in one line whether it is right, not
written yet, or what is wrong with it.

Made from chapters/91_exercises.py by tools/tangle.py:
edit the chapter, not this file.
"""

import os
import traceback
from collections.abc import Callable

__all__ = ["check"]


# The check
# ---------

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
