"""An endless, restartable stream of training rows of fixed length."""

import random
from functools import cache

import numpy as np
import textgen
from tiny_tokenizer import chat
from tokenizers import Tokenizer

END = "<|endoftext|>"
MIX = {"math": 5, "code": 3, "chat": 2}  # examples of each kind in ten
ROOM = 64  # no row holds more examples than this
CONTINUES = 4  # one example in so many continues the chat before it


def row_examples(row, split="train", mix=MIX):
    """The examples that row number `row` may hold, in order."""
    rng = random.Random(f"row/{row}")
    kinds = [kind for kind, share in mix.items() for _ in range(share)]
    for i in range(ROOM):
        yield textgen.sample(rng.choice(kinds), row * ROOM + i, split)


def tokenise(tokenizer, example):
    """Token ids of an exchange, and which of them the model answers with."""
    text = chat(example.prompt, example.response)
    head = text[: text.index("<|im_start|>assistant\n") + 22]
    ids, start = tokenizer.encode(text).ids, len(tokenizer.encode(head).ids)
    return ids, [i >= start for i in range(len(ids))]


def pack_row(tokenizer, row, length, mix=MIX):
    """Tokens, response mask and chat number of one row, each (length,).

    Chats follow one another, the last is cut off at the row's end. Some
    examples are a further turn of the chat before them.
    """
    rng = random.Random(f"turns/{row}")
    ids, mask, segments = [], [], []
    for _number, example in enumerate(row_examples(row, mix=mix)):
        new, answers = tokenise(tokenizer, example)
        apart = not ids or rng.randrange(CONTINUES) > 0
        if apart and ids:
            new, answers = [tokenizer.token_to_id(END), *new], [True, *answers]
        segment = (segments[-1] if ids else 0) + (apart and bool(ids))
        ids += new
        mask += answers
        segments += [segment] * len(new)
        if len(ids) >= length:
            break
    return (np.array(ids[:length], np.int32), np.array(mask[:length]),
            np.array(segments[:length], np.int32))  # fmt: skip


def batch(tokenizer, first, rows, length, mix=MIX):
    """Rows from number `first` on, stacked: three arrays (rows, length)."""
    packed = [pack_row(tokenizer, first + i, length, mix) for i in range(rows)]
    return tuple(np.stack(column) for column in zip(*packed))


def make_batch(tokenizer_file, first, rows, length):
    """A batch for a tokenizer file; what helper processes run."""
    return batch(read_tokenizer(tokenizer_file), first, rows, length)


@cache
def read_tokenizer(file):
    """The tokenizer, read once in each process."""
    return Tokenizer.from_file(file)
