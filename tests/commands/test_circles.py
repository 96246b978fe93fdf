"""Who imports whom in the package: no circles, neither by imports inside functions nor by those for types."""

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
    """Return the modules of ours that a file imports, wherever it does so."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
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
