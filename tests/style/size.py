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
    importers = _count_importers(root)
    sizes: dict[str, Size] = {}
    for path in _modules(root, (*SOURCES, TESTS)):
        tree = ast.parse(path.read_bytes())
        package = package_of(path.relative_to(root))
        size = sizes.setdefault(package, Size())
        size.statements += count_statements(tree, everything=package == TESTS)
        size.modules += 1
        size.functions += sum(isinstance(node, _FUNCTIONS) for node in ast.walk(tree))
        size.single_importer += importers[_module_name(path.relative_to(root))] == 1
    return dict(sorted(sizes.items()))


def count_statements(tree: ast.Module, *, everything: bool = False) -> int:
    """Return the number of statements, without imports and docstrings unless everything counts."""
    nodes = [*ast.walk(tree)]
    statements = [node for node in nodes if isinstance(node, ast.stmt)]
    if everything:
        return len(statements)
    imports = sum(isinstance(node, ast.Import | ast.ImportFrom) for node in statements)
    docstrings = sum(
        isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None for node in nodes
    )
    return len(statements) - imports - docstrings


def package_of(path: Path) -> str:
    """Return the package that a module counts for: `neurontools/xla`, `commands`, `tui/top`, `tests`."""
    if path.parts[0] in {TESTS, "commands"}:
        return path.parts[0]
    return "/".join(path.parts[:2]) if len(path.parts) > 2 else path.parts[0]


def _modules(root: Path, folders: tuple[str, ...]) -> list[Path]:
    return [path for folder in folders for path in sorted((root / folder).rglob("*.py"))]


def _module_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    name = ".".join(parts if parts[0] in {"neurontools", TESTS} else ("neurontools", *parts))
    return name.removesuffix(".__init__")


def _count_importers(root: Path) -> Counter[str]:
    paths = _modules(root, SOURCES)
    names = {_module_name(path.relative_to(root)) for path in paths}
    importers: Counter[str] = Counter()
    for path in paths:
        own = _module_name(path.relative_to(root))
        importers.update(_imported(ast.parse(path.read_bytes())) & names - {own})
    return importers


def _imported(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
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
