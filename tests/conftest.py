"""What the tests share."""

import gc
from pathlib import Path

import jax
import pytest
from hypothesis import settings

# The same examples every time; "search" draws new ones.
settings.register_profile("steady", derandomize=True, database=None, deadline=None)
settings.register_profile("search", derandomize=False, print_blob=True, deadline=None)
settings.load_profile("steady")


# written by tools/slow_tests.py
SLOW = set((Path(__file__).parent / "slow_tests.txt").read_text("utf-8").split())


def pytest_collection_modifyitems(items):
    """Mark what is slow."""
    for item in items:
        if f"{item.path.name}::{getattr(item, 'originalname', item.name)}" in SLOW:
            item.add_marker(pytest.mark.slow)


def pytest_runtest_setup(item):
    """Compile quickly what computes little: else most of the tests' time is the compiler's.

    The chapters run with all optimizations, and so does the real model here.
    """
    quick = "smollm2" not in getattr(item, "fixturenames", ())
    jax.config.update("jax_disable_most_optimizations", quick)


@pytest.fixture(scope="module", autouse=True)
def forget_programs():
    """Let go of a file's programs: Linux gives a process 65,530 maps, a program takes dozens."""
    yield
    jax.clear_caches()
    gc.collect()


@pytest.fixture(scope="session")
def smollm2():
    """The model and the tokenizer of the book, loaded once."""
    import dflash_lite

    return dflash_lite.load("smollm2-135m")
