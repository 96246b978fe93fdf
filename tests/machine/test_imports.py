"""Who imports whom inside the machine package: no circles, not even by imports inside functions."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

from neurontools import machine

PACKAGE = machine.__name__


def imported(module: Path) -> set[str]:
    """The modules of the package that a module imports at run time, wherever it does so."""
    tree = ast.parse(module.read_text())
    for_types_only = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node not in for_types_only:
            if node.module == PACKAGE:
                names |= {alias.name for alias in node.names}
            elif node.module and node.module.startswith(f"{PACKAGE}."):
                names.add(node.module.removeprefix(f"{PACKAGE}."))
    return names


def test_no_module_of_the_machine_imports_itself_by_way_of_others() -> None:
    directory = Path(next(iter(machine.__path__)))
    graph = {module.stem: imported(module) for module in directory.glob("*.py")}
    assert {"wire", "launch"} <= graph["client"]
    order = list(TopologicalSorter(graph).static_order())
    assert order.index("launch") < order.index("client")
