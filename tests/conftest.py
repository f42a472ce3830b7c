"""What the tests share."""

import pytest
from hypothesis import settings

# The same examples every time; "search" draws new ones.
settings.register_profile("steady", derandomize=True, database=None, deadline=None)
settings.register_profile("search", derandomize=False, print_blob=True, deadline=None)
settings.load_profile("steady")


@pytest.fixture(scope="session")
def smollm2():
    """The model and the tokenizer of the book, loaded once."""
    import dflash_lite

    return dflash_lite.load("smollm2-135m")
