"""Change the repository's public address everywhere it stands.

    python tools/address.py https://github.com/OWNER/NAME

pyproject.toml names it (`Repository`); badges, links and the notebooks' first cells follow.
"""

import re
import sys
from pathlib import Path

from chapters import ROOT, write_file
from notebooks import address

FILES = ["pyproject.toml", "*.md", "CITATION.cff", "book/*.md", "chapters/*.ipynb"]
ADDRESS = re.compile(r"https://github\.com/([\w.-]+/[\w.-]+)")


def change_address(new: str, root: Path = ROOT) -> list[str]:
    """Replace the address in all files that name it; return their names.

    Raises:
        ValueError: the address is not one of a repository on GitHub.
    """
    new = new.removesuffix("/").removesuffix(".git")
    match = ADDRESS.fullmatch(new)
    if not match:
        raise ValueError(f"URL={new!r}: expected https://github.com/OWNER/NAME")
    old = re.escape(address(root).removeprefix("https://github.com/"))
    place = re.compile(rf"(?:(?<=github\.com/)|(?<=/github/)){old}(?![\w-])")
    changed = []
    for path in sorted(path for pattern in FILES for path in root.glob(pattern)):
        text = path.read_text(encoding="utf-8")
        moved = place.sub(match[1], text)
        if moved != text:
            write_file(path, moved)
            changed.append(path.relative_to(root).as_posix())
    return changed


def main() -> int:
    try:
        changed = change_address(sys.argv[1])
    except (IndexError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    print("changed " + (", ".join(changed) or "nothing"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
