"""Who imports whom in the package: no circles, not by imports inside functions either.

Modules of one package may import each other for types alone; between packages those count as well.
"""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import neurontools
from neurontools import commands, compat, fixtures, tui

PACKAGES = {
    "neurontools": Path(neurontools.__file__).parent,
    "neurontools.commands": Path(commands.__path__[0]),
    "neurontools.tui": Path(tui.__path__[0]),
}
# Scripts of users' kind, and packages that stand under the names of others.
LEFT_OUT = (
    Path(fixtures.__path__[0]),
    *(Path(compat.__path__[0]) / name for name in ("torchvision", "site")),
)


def modules() -> dict[str, Path]:
    """Return the file of every module, by its full name."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in folder.rglob("*.py"):
            if any(path.is_relative_to(left_out) for left_out in LEFT_OUT):
                continue
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join([package, *(part for part in parts if part != "__init__")])] = path
    return found


def imported(path: Path, known: dict[str, Path]) -> set[str]:
    """Return the modules of ours that a file imports, wherever it does so, but for types from its own package."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    blocks = [node for node in tree.body if isinstance(node, ast.If) and is_for_types(node)]
    neighbours = {name for name, other in known.items() if other.parent == path.parent}
    for_types = names_in(blocks, known)
    tree.body = [node for node in tree.body if node not in blocks]
    return names_in([tree], known) | for_types - neighbours


def is_for_types(block: ast.If) -> bool:
    return isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"


def names_in(trees: list[ast.Module] | list[ast.If], known: dict[str, Path]) -> set[str]:
    names = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= inner & known.keys() or {node.module}
    return names & known.keys()


def test_no_module_imports_itself_by_way_of_others() -> None:
    known = modules()
    graph = {name: imported(path, known) - {name} for name, path in known.items()}
    assert len(graph) > 200
    assert "neurontools.machine.launch" in graph["neurontools.machine.client"]
    order = list(TopologicalSorter(graph).static_order())
    assert order.index("neurontools.machine.launch") < order.index("neurontools.machine.client")
