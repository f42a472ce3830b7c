"""Write tests/slow_tests.txt: the tests that CI leaves out on older versions, for their time.

    python -m pytest tests --ignore tests/browser --ignore tests/tpu --junitxml build/tests.xml
    python tools/slow_tests.py build/tests.xml

Run the first line with nothing compiled yet (another JAX_COMPILATION_CACHE_DIR), as CI has it.
"""

import argparse
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

from chapters import run_tool

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 3  # of a test with all its parameters


def slow_tests(report: Path, seconds: float) -> list[str]:
    """The names of the tests in a JUnit report that take longer, as "file::name"."""
    times: Counter[str] = Counter()
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        # a class of a state machine is a part of the module's name
        file = case.get("classname", "").split(".")[1]
        times[f"{file}.py::{case.get('name', '').split('[')[0]}"] += float(case.get("time", 0))
    return sorted(name for name, time in times.items() if time > seconds)


def main(argv: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=Path, help="what pytest --junitxml wrote")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    args = parser.parse_args(argv)
    try:
        names = slow_tests(args.report, args.seconds)
    except (ElementTree.ParseError, IndexError, ValueError) as error:
        print(f"{args.report} is no report of pytest --junitxml: {error}", file=sys.stderr)
        return 1
    path = root / "tests" / "slow_tests.txt"
    path.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    print(f"wrote {path.relative_to(root)}: {len(names)} tests")
    return 0


if __name__ == "__main__":
    sys.exit(run_tool(main))
