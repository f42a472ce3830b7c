"""Write the lists of files in weights/, and the table of their digests in chapter 1.

    python tools/weights.py            # write
    python tools/weights.py --check    # exit 1 if a list or the table is stale
"""

import argparse
import hashlib
import re
import sys
from pathlib import Path

from chapters import ROOT, write_file

# what a model needs; its card and its curve can change freely
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
TABLE = re.compile(r"^WEIGHTS: dict\[str, str\] = \{.*?\}", re.DOTALL | re.MULTILINE)
CHAPTER = Path("chapters") / "01_checkpoints.py"


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sums(folder: Path) -> str:
    """The contents of a folder's SHA256SUMS."""
    there = [folder / name for name in FILES if (folder / name).is_file()]
    return "".join(f"{digest(path.read_bytes())}  {path.name}\n" for path in there)


def table(lists: dict[str, str]) -> str:
    """The Python code of the table, in lines of at most 80 columns."""
    lines = ["WEIGHTS: dict[str, str] = {"]
    for name, text in sorted(lists.items()):
        whole = digest(text.encode())
        lines += [f'    "{name}": "{whole[:32]}"', f'    "{whole[32:]}",']
    return "\n".join([*lines, "}"]) if lists else "WEIGHTS: dict[str, str] = {}"


def stale(root: Path = ROOT) -> dict[Path, str]:
    """The files that are not as they should be, with their right contents."""
    folders = [path.parent for path in sorted((root / "weights").glob("*/config.json"))]
    lists = {folder.name: sums(folder) for folder in folders}
    wanted = {root / "weights" / name / "SHA256SUMS": text for name, text in lists.items()}
    chapter = (root / CHAPTER).read_text(encoding="utf-8")
    if not TABLE.search(chapter):
        raise ValueError(f"{CHAPTER} has no table WEIGHTS; expected one to write digests into")
    wanted[root / CHAPTER] = TABLE.sub(lambda _: table(lists), chapter)
    return {
        path: text
        for path, text in wanted.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    }


def main(argv: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if stale")
    args = parser.parse_args(argv)
    try:
        found = stale(root)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    for path, text in found.items():
        name = path.relative_to(root).as_posix()
        print(f"{name} is stale: run python tools/weights.py" if args.check else f"wrote {name}")
        if not args.check:
            write_file(path, text)
    return 1 if args.check and found else 0


if __name__ == "__main__":
    sys.exit(main())
