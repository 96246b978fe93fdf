"""Counts the code by package: statements, modules, functions, and modules that only one other module imports.

`make size` prints the table. A statement counts once, however many lines it has; imports and docstrings count in the
tests only.
`size_budget.yaml` limits the statements of each package, and `test_size.py` checks them.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
BUDGET = Path(__file__).with_name("size_budget.yaml")
SOURCES = ("neurontools", "commands", "tui")
TESTS = "tests"
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(slots=True)
class Size:
    """The size of a package. `single_importer` counts modules that exactly one other module of the sources imports."""

    statements: int = 0
    modules: int = 0
    functions: int = 0
    single_importer: int = 0


def count_package_sizes(root: Path = ROOT) -> dict[str, Size]:
    """Return the size of every package of the sources, and of the tests as one, by name."""
    sizes: dict[str, Size] = {}
    imported: dict[str, set[str]] = {}
    for path in _modules(root):
        tree = ast.parse((root / path).read_bytes())
        package = package_of(path)
        size = sizes.setdefault(package, Size())
        size.statements += count_statements(tree, everything=package == TESTS)
        size.modules += 1
        size.functions += sum(isinstance(statement, _FUNCTIONS) for statement in _statements(tree))
        if package != TESTS:
            imported[_module_name(path)] = _imported(tree)
    importers = Counter(name for own, names in imported.items() for name in names - {own})
    for path in _modules(root):
        sizes[package_of(path)].single_importer += importers[_module_name(path)] == 1
    return dict(sorted(sizes.items()))


def count_statements(tree: ast.Module, *, everything: bool = False) -> int:
    """Return the number of statements, without imports and docstrings unless everything counts."""
    statements = list(_statements(tree))
    if everything:
        return len(statements)
    imports = sum(isinstance(statement, ast.Import | ast.ImportFrom) for statement in statements)
    docstrings = sum(
        isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None
        for node in (tree, *statements)
    )
    return len(statements) - imports - docstrings


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements below a node: `ast.walk` visits ten times as many nodes, those of expressions."""
    for block in ("body", "handlers", "orelse", "finalbody", "cases"):
        for child in getattr(node, block, ()):
            if isinstance(child, ast.stmt):
                yield child
            yield from _statements(child)


def package_of(path: Path) -> str:
    """Return the package that a module counts for: `neurontools/xla`, `commands`, `tui/top`, `tests`."""
    if path.parts[0] in {TESTS, "commands"}:
        return path.parts[0]
    return "/".join(path.parts[:2]) if len(path.parts) > 2 else path.parts[0]


def _modules(root: Path) -> list[Path]:
    paths = [path for folder in (*SOURCES, TESTS) for path in sorted((root / folder).rglob("*.py"))]
    return [path.relative_to(root) for path in paths]


def _module_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    name = ".".join(parts if parts[0] in {"neurontools", TESTS} else ("neurontools", *parts))
    return name.removesuffix(".__init__")


def _imported(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for statement in _statements(tree):
        if isinstance(statement, ast.Import):
            names.update(alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            names.add(statement.module)
            names.update(f"{statement.module}.{alias.name}" for alias in statement.names)
    return names


def _print_table(sizes: dict[str, Size]) -> None:
    row = "{:26}{:>11}{:>9}{:>11}{:>17}"
    print(row.format("package", "statements", "modules", "functions", "single importer"))
    sources = Size()
    for name, size in sizes.items():
        print(row.format(name, size.statements, size.modules, size.functions, size.single_importer))
        if name != TESTS:
            sources.statements += size.statements
            sources.modules += size.modules
            sources.functions += size.functions
            sources.single_importer += size.single_importer
    print(row.format("all but tests", *(getattr(sources, name) for name in Size.__slots__)))


if __name__ == "__main__":
    _print_table(count_package_sizes(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT))
