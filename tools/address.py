"""Change the repository's public address everywhere it stands.

    python tools/address.py https://github.com/OWNER/NAME

pyproject.toml names it (`Repository`); badges, links and the notebooks' first cells follow.
"""

import argparse
import re
import sys
from pathlib import Path

from chapters import ROOT, run_tool, write_file
from notebooks import address

FILES = ["pyproject.toml", "*.md", "CITATION.cff", "book/*.md", "chapters/*.ipynb"]
OWNER, NAME = r"[A-Za-z\d][A-Za-z\d-]*", r"(?!\.+$)[A-Za-z\d._-]+"
ADDRESS = re.compile(rf"(?:https://)?github\.com/({OWNER}/{NAME})", re.ASCII)


def change_address(new: str, root: Path = ROOT) -> list[str]:
    """Replace the address in all files that name it; return their names.

    Raises:
        ValueError: the address is not one of a repository on GitHub, or a file is no text.
    """
    match = ADDRESS.fullmatch(new.strip().rstrip("/").removesuffix(".git"))
    if not match:
        raise ValueError(f"URL={new!r}: expected https://github.com/OWNER/NAME")
    old = re.escape(address(root).removeprefix("https://github.com/"))
    place = re.compile(rf"(?:(?<=github\.com/)|(?<=/github/)){old}(?![\w-])")
    paths = {path for pattern in FILES for path in root.glob(pattern) if path.is_file()}
    moved = {}
    for path in sorted(paths):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            name = path.relative_to(root)
            raise ValueError(f"{name} is no text, nothing changed: {error}") from None
        if text != place.sub(match[1], text):
            moved[path] = place.sub(match[1], text)
    # pyproject.toml last: until then it names the old address, and the command can run again
    for path in sorted(moved, key=lambda path: (path.name == "pyproject.toml", path)):
        write_file(path, moved[path])
    return [path.relative_to(root).as_posix() for path in moved]


def main(argv: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", metavar="URL", help="https://github.com/OWNER/NAME")
    try:
        changed = change_address(parser.parse_args(argv).url, root)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    print("changed " + (", ".join(changed) or "nothing"))
    return 0


if __name__ == "__main__":
    sys.exit(run_tool(main))
