"""Which functions of the package are programs, found in its source."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "dflash_lite"
MARKS = {"jit", "pmap", "shard_map", "pallas_call"}


def makes_program(node: ast.AST) -> bool:
    """Whether something in here compiles."""
    names = (getattr(n, "attr", getattr(n, "id", None)) for n in ast.walk(node))
    return not MARKS.isdisjoint(names)


def names(node: ast.stmt) -> list[str]:
    """What a statement of a module or a class defines."""
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    if isinstance(node, ast.AnnAssign):
        return [node.target.id]
    return [node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) else []


def programs(package: Path = PACKAGE) -> set[str]:
    """Dotted names of the package's functions and methods that are jitted or hold a kernel."""
    found = set()
    for path in sorted(package.glob("*.py")):
        module = f"{package.name}.{path.stem}"
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef):
                inner = {f"{module}.{node.name}.{name}" for part in node.body
                         if makes_program(part) for name in names(part)}  # fmt: skip
                found |= inner
            elif makes_program(node):
                found |= {f"{module}.{name}" for name in names(node)}
    return found


def forgotten(covered: set[str], package: Path = PACKAGE) -> list[str]:
    """One line for each program of the package that no entry compiles."""
    return [
        f"{name} is compiled nowhere: add it to tpu_check/functions.py and a line to "
        "tpu_check/entries.py"
        for name in sorted(programs(package) - covered)
    ]
