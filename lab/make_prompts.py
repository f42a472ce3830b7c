"""Writes prompts of the generator as JSON lines, for `dflash-lite train data` and `bench`.

No prompt comes twice. A prompt of `fresh` or `heldout` that stands in one of the files
given with --without is left out, and counted.
"""

import argparse
import json
from pathlib import Path

import textgen


def prompts(kind, split, count, seen):
    """So many distinct prompts that are not in `seen`, in the generator's order."""
    index, found = 0, []
    while len(found) < count:
        if index > 100 * count + 1000:
            raise SystemExit(f"{kind}/{split} has no {count} distinct prompts; ask for fewer")
        prompt = textgen.sample(kind, index, split).prompt
        index += 1
        if prompt not in seen:
            seen.add(prompt)
            found.append(prompt)
    return found, index - count


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("out", type=Path)
    add("--split", choices=textgen.SPLITS, default="train")
    add("--count", type=int, default=24, help="prompts of each kind")
    add("--kinds", nargs="+", choices=textgen.KINDS, default=textgen.KINDS)
    add("--without", type=Path, nargs="*", default=[], help="files of prompts to leave out")
    args = parser.parse_args(argv)
    lines = [line for file in args.without for line in file.read_text().splitlines()]
    seen = {json.loads(line)["prompt"] for line in lines}
    rows = []
    for kind in args.kinds:
        found, left_out = prompts(kind, args.split, args.count, seen)
        print(f"{kind}: {len(found)} prompts, {left_out} duplicates left out")
        rows += [{"prompt": prompt, "set": kind} for prompt in found]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    args.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
