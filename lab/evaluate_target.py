"""Lets a target answer fresh and held-out prompts greedily, and counts the right answers."""

import argparse
import json
import math
from pathlib import Path

import textgen

import dflash_lite
from dflash_lite.decoding import bucket, encode_prompt
from dflash_lite.training import Writer

HERE = Path(__file__).parent
MOST = 256  # tokens of an answer
ROWS = 64


def answers(model, tokenizer, examples):
    """What the model says to each prompt."""
    asks = [encode_prompt(tokenizer, e.prompt, True, None) for e in examples]
    capacity = bucket(max(map(len, asks)) + MOST)
    writer = Writer(model, tokenizer.stop_ids, ROWS, capacity, MOST, (0.0, None, None))
    found = dict(writer.answers(asks, [0] * len(asks)))
    return [tokenizer.decode(found[i]) for i in range(len(asks))]


def interval(right, count, z=1.96):
    """The 95% interval of a share (Wilson 1927)."""
    share, wide = right / count, z * z / count
    middle = (share + wide / 2) / (1 + wide)
    reach = z * math.sqrt(share * (1 - share) / count + wide / count / 4) / (1 + wide)
    return middle - reach, middle + reach


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=str(HERE.parent / "weights" / "tiny"))
    parser.add_argument("--count", type=int, default=500, help="prompts of each kind and split")
    parser.add_argument("--show", type=int, default=0, help="answers to print, wrong ones first")
    args = parser.parse_args(argv)
    model, tokenizer = dflash_lite.load(args.model)
    for kind in textgen.KINDS:
        for split in ("fresh", "heldout"):
            examples = [textgen.sample(kind, i, split) for i in range(args.count)]
            said = answers(model, tokenizer, examples)
            right = [textgen.check(e, s) for e, s in zip(examples, said)]
            low, high = interval(sum(right), len(right))
            order = sorted(range(len(right)), key=lambda i: right[i])
            for i in order[: args.show]:
                e = examples[i]
                print(f"--- {e.template}: {right[i]}\n{e.prompt}\n>>> {said[i]}\n({e.answer})")
            found = {"right": sum(right) / len(right), "low": low, "high": high}
            found = {name: round(value, 4) for name, value in found.items()}
            line = {"kind": kind, "split": split, "count": len(right), **found}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
