"""What the tests share."""

import pytest


@pytest.fixture(scope="session")
def smollm2():
    """The model and the tokenizer of the book, loaded once."""
    import dflash_lite

    return dflash_lite.load("smollm2-135m")
