"""Make the package `dflash_lite/` from the cells of the chapters that are tagged `export`.

    python tools/tangle.py            write the package
    python tools/tangle.py --check    exit 1 and show the difference if it is not up to date

The text of an exported cell goes to its chapter's module untouched and in order; only import
statements move to the top. Exported cells keep these rules:

- they hold imports, definitions and assignments to names, and each name is defined once;
- imports are absolute, name what they import, carry no comment, and from this package they
  take earlier chapters only, never the exercise checks;
- public functions and classes have a docstring and annotations;
- what they use is exported or imported in an exported cell.

A chapter's header lists the names that the package offers (`public`), and may name the function
that is the package's command (`main`).
"""

import argparse
import ast
import builtins
import difflib
import re
import symtable
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

from chapters import (
    PACKAGE,
    ROOT,
    Cell,
    Chapter,
    Problem,
    chapter_paths,
    read_chapter,
    run_tool,
    write_file,
)

WIDTH = 79
OLDEST_PYTHON = (3, 11)
CHECKS = "exercises"  # the module of exercise checks: never imported by the package
MADE_BY = "by tools/tangle.py"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINITIONS = (*FUNCTIONS, ast.ClassDef)
ASSIGNMENTS = (ast.Assign, ast.AnnAssign)


@dataclass
class Block:
    """The part of one exported cell that stays in place."""

    text: str
    section: str
    values_only: bool  # nothing but assignments


@dataclass
class Module:
    """What a chapter exports."""

    chapter: Chapter
    doc: str
    blocks: list[Block] = field(default_factory=list)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)  # as: (module, name or "")
    names: list[str] = field(default_factory=list)  # defined here, in order
    problems: list[Problem] = field(default_factory=list)

    @property
    def public(self) -> list[str]:
        return [name for name in self.names if not name.startswith("_")]

    @property
    def imported(self) -> set[str]:
        """The names that imports bind: `os` for `import os.path`."""
        return {name.split(".")[0] for name in self.imports}


# Rules
# -----


def title_and_lead(chapter: Chapter) -> str:
    """The module's docstring: the chapter's title and its first paragraph."""
    first = chapter.cells[0] if chapter.cells else Cell(1, 1, "none", "", [])
    title, lead, *_ = [*re.split(r"\n\s*\n", first.source.strip()), "", ""]
    if first.kind != "markdown" or not title.startswith("# ") or not lead or lead.startswith("#"):
        raise chapter.problem(first, 1, "the first cell has a title `# 1. …` and a lead paragraph")
    title = re.sub(r"^\d+\. *", "", plain(title[2:])).rstrip(".")
    lead = textwrap.fill(plain(lead), WIDTH, break_long_words=False, break_on_hyphens=False)
    made = f"Made from {chapter.path} {MADE_BY}:\nedit the chapter, not this file."
    end = "" if title.endswith(("?", "!")) else "."
    doc = f"{title}{end}\n\n{lead}\n\n{made}\n"
    return f'r"""{doc}"""' if "\\" in doc else f'"""{doc}"""'


def plain(markdown: str) -> str:
    """Markdown as one line of plain text: links give their words, emphasis goes."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(markdown.split()))
    return re.sub(r"(\*{1,2})(\S(?:.*?\S)?)\1", r"\2", text)


def section_of(cell: Cell) -> str | None:
    """The last `## ` heading of a Markdown cell, without its number."""
    headings = re.findall(r"^## +(?:\d+(?:\.\d+)*\.? +)?(.+?) *$", cell.source, re.M)
    return plain(headings[-1]) if headings else None


def own_module(node: ast.Import | ast.ImportFrom) -> list[str]:
    """What an import takes directly from the package ("" is the package itself)."""
    if isinstance(node, ast.Import):
        targets = [alias.name for alias in node.names]
    elif node.module == PACKAGE:
        targets = [f"{PACKAGE}.{alias.name}" for alias in node.names]
    else:
        targets = [node.module or ""]
    parts = [target.split(".") for target in targets]
    return [part[1] if len(part) > 1 else "" for part in parts if part[0] == PACKAGE]


def check_import(node, chapter: Chapter, earlier: list[str], all_modules: list[str]) -> str | None:
    """What is wrong with an import in an exported cell, or None."""
    if isinstance(node, ast.ImportFrom):
        if node.level:
            return f"relative import; write `from {PACKAGE}.name import …`"
        if node.module == "__future__":
            return "`from __future__` does not work in a cell; leave it out"
        if node.names[0].name == "*":
            return f"star import; name what you need from {node.module}"
    for module in own_module(node):
        if module == "__version__":
            continue
        if module == CHECKS:
            return f"{PACKAGE}.{CHECKS} is for exercise checks, not for the package"
        if module == chapter.name:
            return f"a module cannot import itself ({PACKAGE}.{module})"
        if module not in all_modules:
            if not module:
                return f"write `from {PACKAGE}.module import name`"
            return f"no chapter makes {PACKAGE}.{module}"
        if module not in earlier:
            return f"{PACKAGE}.{module} is made by a later chapter; imports follow chapter order"
    return None


def unannotated(function, method: bool = False) -> str | None:
    """The first thing of a function that has no annotation, or None."""
    a = function.args
    args = [*a.posonlyargs, *a.args]
    static = any(getattr(d, "id", "") == "staticmethod" for d in function.decorator_list)
    if method and not static:
        args = args[1:]
    for arg in [*args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]:
        if arg.annotation is None:
            return f"`{arg.arg}`"
    if function.returns is None and not (method and function.name == "__init__"):
        return "the result"
    return None


def check_definition(node) -> list[tuple[int, str]]:
    """Missing docstrings and annotations of a public definition, with their lines."""
    if node.name.startswith("_"):
        return []
    wrong = []
    if not ast.get_docstring(node):
        wrong.append((node.lineno, f"`{node.name}` is public and has no docstring"))
    if isinstance(node, FUNCTIONS):
        functions = [(node.name, node, False)]
    else:
        functions = [
            (f"{node.name}.{n.name}", n, True)
            for n in node.body
            if isinstance(n, FUNCTIONS)
            and (not n.name.startswith("_") or n.name in ("__init__", "__call__"))
        ]
    for name, function, method in functions:
        what = unannotated(function, method)
        if what:
            wrong.append((function.lineno, f"`{name}` is public; {what} has no annotation"))
    return wrong


def bound_names(node) -> list[str]:
    """The names that a top-level statement of an exported cell defines."""
    if isinstance(node, DEFINITIONS):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def allowed(node) -> bool:
    """Whether a top-level statement may stand in an exported cell."""
    if isinstance(node, ASSIGNMENTS):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return node.value is not None and all(isinstance(t, ast.Name) for t in targets)
    return isinstance(node, (ast.Import, ast.ImportFrom, *DEFINITIONS))


# From cells to modules
# ---------------------


class Exporter:
    """Collects a chapter's exported cells into its module, and what is wrong with them."""

    def __init__(self, chapter: Chapter, earlier: list[str], all_modules: list[str]):
        self.chapter, self.earlier, self.all_modules = chapter, earlier, all_modules
        self.module = Module(chapter, title_and_lead(chapter))
        self.cells: list[tuple[Cell, ast.Module]] = []

    def problem(self, cell: Cell, line: int, message: str) -> None:
        self.module.problems.append(self.chapter.problem(cell, line, message))

    def run(self) -> Module:
        section = ""
        for cell in self.chapter.cells:
            if "export" in cell.tags:
                self.export(cell, section)
            elif cell.kind == "markdown":
                section = section_of(cell) or section
        self.check_leaks()
        return self.module

    def export(self, cell: Cell, section: str) -> None:
        if "exercise" in cell.tags:
            return self.problem(cell, 1, "an exercise is not exported: learners find a hole there")
        if cell.kind != "code":
            return self.problem(cell, 1, f"an exported cell holds code; this is {cell.kind}")
        for number, line in enumerate(cell.source.splitlines(), 1):
            if re.match(r"\s*(%|!)", line):
                return self.problem(cell, number, f"magic in an exported cell: {line.strip()}")
        try:
            tree = ast.parse(cell.source, feature_version=OLDEST_PYTHON)
        except SyntaxError as error:
            return self.problem(cell, error.lineno or 1, f"syntax error: {error.msg}")
        except (ValueError, RecursionError, MemoryError):
            return self.problem(cell, 1, "Python cannot read the cell: it is nested too deeply")
        lines = cell.source.splitlines()
        self.cells.append((cell, tree))
        for node in tree.body:
            self.check(cell, node, lines)
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                for number in range(node.lineno, node.end_lineno + 1):
                    lines[number - 1] = None
        text = "\n".join(line for line in lines if line is not None).strip("\n")
        if text:
            stay = [n for n in tree.body if not isinstance(n, (ast.Import, ast.ImportFrom))]
            values_only = all(isinstance(n, ASSIGNMENTS) for n in stay)
            self.module.blocks.append(Block(text, section, values_only))

    def check(self, cell: Cell, node, lines: list[str]) -> None:
        if not allowed(node):
            return self.problem(
                cell, node.lineno,
                "an exported cell holds imports, definitions and constants, not: "
                f"{lines[node.lineno - 1].strip()}",
            )
        for inner in ast.walk(node):
            if isinstance(inner, (ast.Import, ast.ImportFrom)):
                wrong = check_import(inner, self.chapter, self.earlier, self.all_modules)
                if wrong:
                    self.problem(cell, inner.lineno, wrong)
                elif inner is node:
                    self.add_import(cell, node, lines)
        if isinstance(node, DEFINITIONS):
            for line, message in check_definition(node):
                self.problem(cell, line, message)
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            for name in bound_names(node):
                if name in self.module.names or name in self.module.imported:
                    self.problem(cell, node.lineno, f"`{name}` is defined twice in this module")
                else:
                    self.module.names.append(name)

    def add_import(self, cell: Cell, node, lines: list[str]) -> None:
        text = lines[node.lineno - 1 : node.end_lineno]
        above = lines[node.lineno - 2] if node.lineno > 1 else None
        if any("#" in line for line in text) or (above or "").lstrip().startswith("#"):
            return self.problem(
                cell, node.lineno, "imports move to the top of the module without their comment; "
                "say it in prose",
            )
        if len(ast.parse("\n".join(text)).body) > 1:
            return self.problem(cell, node.lineno, "one statement on a line")
        for alias in node.names:
            plain_import = isinstance(node, ast.Import)
            what = (alias.name, "") if plain_import else (node.module, alias.name)
            name = alias.asname or alias.name
            if self.module.imports.setdefault(name, what) != what:
                self.problem(cell, node.lineno, f"`{name}` is imported twice, from other places")
            elif name.split(".")[0] in self.module.names:
                self.problem(cell, node.lineno, f"`{name}` is defined twice in this module")

    def check_leaks(self) -> None:
        """Names that exported code takes from the notebook without exporting them."""
        if self.module.problems:
            return
        source = "\n".join(cell.source for cell, _ in self.cells)
        known = {*self.module.names, *self.module.imported, *dir(builtins), "__file__", "__name__"}
        leaked = global_names(symtable.symtable(source, self.chapter.path, "exec")) - known
        for cell, tree in self.cells:
            for node in ast.walk(tree):
                if isinstance(node, ast.Name) and node.id in leaked:
                    leaked.discard(node.id)
                    self.problem(
                        cell, node.lineno,
                        f"`{node.id}` is neither exported nor imported in an exported cell",
                    )


def global_names(table: symtable.SymbolTable) -> set[str]:
    """All names that a module's scopes look up in the module."""
    module = table.get_type() == "module"
    names = {
        symbol.get_name()
        for symbol in table.get_symbols()
        if symbol.is_referenced() and (module or symbol.is_global())
    }
    return names.union(*map(global_names, table.get_children()))


# Writing modules
# ---------------


def fold(start: str, names: list[str], end: str) -> str:
    """`start`, the names and `end` on one line, or in hanging lines if that is too long."""
    line = f"{start}{', '.join(names)}{end}"
    if len(line) <= WIDTH:
        return line
    if not start.endswith(("(", "[", "{")):
        start, end = start + "(", ")"
    body = "\n".join(f"    {name}," for name in names)
    return f"{start}\n{body}\n{end}"


def import_lines(imports: dict[str, tuple[str, str]]) -> list[str]:
    """Import statements in three groups (standard, third party, own), once each."""
    groups: list[list[tuple]] = [[], [], []]
    together: dict[str, list[str]] = {}
    for bound, (module, name) in imports.items():
        if name:
            together.setdefault(module, []).append(name if name == bound else f"{name} as {bound}")
            continue
        line = f"import {module}" if bound == module else f"import {module} as {bound}"
        groups[group(module)].append((0, module.lower(), line))
    for module, names in together.items():
        names = sorted(names, key=import_order)
        groups[group(module)].append((1, module.lower(), fold(f"from {module} import ", names, "")))
    return ["\n".join(line for *_, line in sorted(lines)) for lines in groups if lines]


def import_order(name: str) -> tuple:
    """Constants, then classes, then functions, each by the alphabet."""
    word = name.split()[0]
    kind = 0 if word.isupper() and len(word) > 1 else 1 if word[0].isupper() else 2
    return kind, word.lower(), name


def group(module: str) -> int:
    root = module.split(".")[0]
    return 2 if root == PACKAGE else 0 if root in sys.stdlib_module_names else 1


def render(module: Module) -> str:
    """The text of a module."""
    parts = [module.doc]
    parts += import_lines(module.imports)
    parts.append(fold("__all__ = [", [f'"{name}"' for name in module.public], "]"))
    text, before = "\n\n".join(parts) + "\n", Block("", "", values_only=True)
    for block in module.blocks:
        new_section = block.section != before.section
        close = before.values_only and block.values_only and not new_section
        text += "\n" if close else "\n\n"
        if new_section:
            text += f"# {block.section}\n# {'-' * len(block.section)}\n\n"
        text += block.text + "\n"
        before = block
    return text


INIT = '''\
"""Speculative decoding in JAX, made of the chapters of a book: one module each.

The names below load their module when they are first used, so that
`import dflash_lite` loads neither jax nor flax.

Made from the chapters {made_by}:
edit a chapter, not this file.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
{imports}

{all_names}

_MODULES = {{
{modules}
}}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        value = version("{package}")
    elif name in _MODULES:
        value = getattr(import_module(f"{package}.{{_MODULES[name]}}"), name)
    else:
        raise AttributeError(f"module '{package}' has no attribute {{name!r}}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, "__version__"])
'''


MAIN = '''\
"""The command `{command}`, also `python -m {package}`.

It hears Ctrl-C while the modules are still loading, a tenth of a second or more.

Made {made_by}, for the chapter that names a `main`:
edit the tool, not this file.
"""

import os
import signal


def interrupt(*_: object) -> None:
    """End with one line and code 130: there is nothing yet to be kept."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        os.write(2, b"{command}: interrupted\\n")
    finally:
        os._exit(128 + signal.SIGINT)


def main() -> None:
    """Load the command and run it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    from {package} import {module}

    {module}.{main}()


if __name__ == "__main__":
    main()
'''


def render_main(modules: list[Module]) -> dict[str, str]:
    """`__main__.py`, if a chapter's header names the function that is the command."""
    named = [(m.chapter, m.chapter.header["main"]) for m in modules if "main" in m.chapter.header]
    if len(named) > 1:
        raise Problem(f"{named[1][0].path}:1: {named[0][0].path} names a `main`, too")
    texts = {}
    for chapter, name in named:
        if name not in next(m.names for m in modules if m.chapter is chapter):
            raise Problem(f"{chapter.path}:1: `main` names `{name}`, which is not exported")
        texts[f"{PACKAGE}/__main__.py"] = MAIN.format(
            command=PACKAGE.replace("_", "-"),
            package=PACKAGE,
            made_by=MADE_BY,
            module=chapter.name,
            main=name,
        )
    return texts


def render_init(modules: list[Module]) -> str:
    """`__init__.py`: the names that the chapters' headers list as `public`, loaded lazily."""
    home: dict[str, str] = {}
    problems, imports = [], []
    for module in modules:
        chapter = module.chapter
        names = chapter.header.get("public") or []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            problems.append(f"{chapter.path}:1: `public` is {names!r:.60}; expected names")
            continue
        for name in names:
            if name not in module.names:
                problems.append(f"{chapter.path}:1: `public` lists `{name}`, which is not exported")
            elif name in home or name in (m.chapter.name for m in modules):
                problems.append(f"{chapter.path}:1: public name `{name}` is taken")
            home[name] = chapter.name
        if names:
            start = f"from {PACKAGE}.{chapter.name} import "
            imports.append(fold(start, sorted(names, key=import_order), ""))
    if problems:
        raise Problem("\n".join(problems))
    return INIT.format(
        made_by=MADE_BY,
        package=PACKAGE,
        imports=textwrap.indent("\n".join(imports) or "pass", "    "),
        all_names=fold("__all__ = [", [f'"{name}"' for name in home], "]"),
        modules="\n".join(f'    "{name}": "{module}",' for name, module in home.items()),
    )


def tangle(root: Path = ROOT) -> dict[str, str]:
    """All files of the package: {path relative to the root: text}.

    Raises:
        Problem: one or more rules are broken; the text has a line for each.
    """
    chapters, problems = [], []
    for path in chapter_paths(root):
        try:
            chapter = read_chapter(path, root)
            if chapter.header.get("module") != chapter.name:
                raise Problem(
                    f"{chapter.path}:1: the header says module {chapter.header.get('module')!r}, "
                    f"the file's name says {chapter.name!r}"
                )
            chapters.append(chapter)
        except Problem as problem:
            problems.append(problem)
    names = [chapter.name for chapter in chapters]
    for twice in sorted({name for name in names if names.count(name) > 1}):
        problems.append(Problem(f"chapters/: two chapters make {PACKAGE}.{twice}"))
    modules = []
    for number, chapter in enumerate(chapters):
        try:
            modules.append(Exporter(chapter, names[:number], names).run())
            problems += modules[-1].problems
        except Problem as problem:
            problems.append(problem)
    if not problems:
        files = {f"{PACKAGE}/{m.chapter.name}.py": render(m) for m in modules}
        try:
            init = {f"{PACKAGE}/__init__.py": render_init(modules)}
            return init | render_main(modules) | files
        except Problem as problem:
            problems.append(problem)
    raise Problem("\n".join(map(str, problems)))


def main(argv: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, show the difference")
    check = parser.parse_args(argv).check
    try:
        files = tangle(root)
    except Problem as problem:
        print(problem, file=sys.stderr)
        return 2
    stale = 0
    for path in sorted((root / PACKAGE).glob("*.py")):
        name = path.relative_to(root).as_posix()
        if name in files:
            continue
        if check or MADE_BY.encode() not in path.read_bytes():
            print(f"{name}: no chapter makes this file", file=sys.stderr)
            stale = 1
        else:
            path.unlink()
            print(f"removed {name}")
    for name, text in files.items():
        path = root / name
        old = path.read_bytes() if path.exists() else b""
        if old == text.encode():
            continue
        if check:
            stale = 1
            lines = old.decode(errors="replace").splitlines(True), text.splitlines(True)
            sys.stderr.writelines(difflib.unified_diff(*lines, name, f"{name} (from the chapters)"))
        else:
            write_file(path, text)
            print(f"wrote {name}")
    if check and stale:
        print("`make package` writes the package anew.", file=sys.stderr)
    return stale


if __name__ == "__main__":
    sys.exit(run_tool(main))
