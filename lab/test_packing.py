from pathlib import Path

import numpy as np
import packing
import pytest
import textgen
from tiny_tokenizer import SPECIAL, chat
from tokenizers import Tokenizer

FILE = Path(__file__).parent / "tokenizer" / "tokenizer.json"


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_file(str(FILE))


def test_any_text_comes_back(tokenizer):
    for text in ["a  b\n\n\tc", "Ünïcode 日本 \x00 🙂", "12345", " x", ""]:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_digits_are_single_tokens(tokenizer):
    tokens = tokenizer.encode("So 407 + 38 = 445.").tokens
    assert not [t for t in tokens if any(c.isdigit() for c in t) and len(t) > 1]


def test_special_tokens_are_whole_and_first(tokenizer):
    assert [tokenizer.token_to_id(s) for s in SPECIAL] == list(range(len(SPECIAL)))
    ids = tokenizer.encode(chat("Hi", "Yes")).ids
    assert [i for i in ids if i < len(SPECIAL)] == [1, 2, 1, 2]


def test_rows_are_full_and_restart_anywhere(tokenizer):
    first = packing.pack_row(tokenizer, 7, 256)
    packing.pack_row(tokenizer, 3, 256)
    again = packing.pack_row(tokenizer, 7, 256)
    for a, b in zip(first, again):
        assert a.shape == (256,) and np.array_equal(a, b)
    rows = packing.batch(tokenizer, 4, 4, 256)
    assert np.array_equal(rows[0][3], first[0])


def test_the_mask_marks_responses(tokenizer):
    example = textgen.sample("math", 5)
    ids, answers = packing.tokenise(tokenizer, example)
    said = tokenizer.decode(
        [i for i, a in zip(ids, answers) if a], skip_special_tokens=False
    )
    assert said == example.response + "<|im_end|>\n"


def test_segments_begin_with_the_end_token(tokenizer):
    tokens, _, segments = packing.pack_row(tokenizer, 11, 2048)
    starts = np.flatnonzero(np.diff(segments)) + 1
    assert len(starts) and (tokens[starts] == tokenizer.token_to_id("<|endoftext|>")).all()
    assert (np.diff(segments) >= 0).all()


def test_no_row_runs_out_of_examples(tokenizer):
    assert len(packing.pack_row(tokenizer, 0, 4096)[0]) == 4096


def test_specials_never_occur_in_text():
    for kind in textgen.KINDS:
        for i in range(300):
            e = textgen.sample(kind, i)
            assert "<|" not in e.prompt + e.response
