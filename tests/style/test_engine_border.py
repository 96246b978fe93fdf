"""Only the engine in Python knows how it records: everything else uses the interfaces of `xla/engine.py`."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from tests.style.prose import ROOT, modules, syntax_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PACKAGE = "neurontools.xla."
INSIDE = {
    "buffers",
    "call_capture",
    "function_recording",
    "graph_function",
    "host_arguments",
    "kernels",
    "known_call",
    "learning",
    "program_run",
    "python_engine",
    "recorder",
    "refused_calls",
    "trie",
}
"""The modules of the engine."""

CHOOSER = "neurontools/xla/api.py"
"""The module that decides which engine a process has."""

ACCOUNT = "neurontools/xla/memory.py"
"""The account of device memory: it marks a buffer as charged in the same step."""


def reaches_inside(path: Path) -> Iterator[str]:
    """Yield what a module uses of the engine's inside."""
    for node in syntax_of(path, re.compile("|".join([*INSIDE, "buffer_of"]))):
        match node:
            case ast.ImportFrom(module=str(module), names=names):
                found = [module, *(f"{module}.{alias.name}" for alias in names)]
                yield from (name for name in found if name.removeprefix(_PACKAGE) in INSIDE)
            case ast.Import(names=names):
                yield from (alias.name for alias in names if alias.name.removeprefix(_PACKAGE) in INSIDE)
            case ast.Attribute(attr="recorder" | "buffer_of" as name) if "xla" in str(path):
                yield name


def test_only_the_engine_knows_its_inside():
    found = {}
    for path in modules():
        name = str(path.relative_to(ROOT))
        if not (name.startswith("neurontools/xla/") and path.stem in INSIDE):
            found[name] = sorted(set(reaches_inside(path)))
    assert {name: names for name, names in found.items() if names} == {
        CHOOSER: [f"{_PACKAGE}python_engine"],
        ACCOUNT: [f"{_PACKAGE}buffers"],
    }


def test_the_modules_of_the_engine_exist():
    assert {path.stem for path in (ROOT / "neurontools" / "xla").glob("*.py")} >= INSIDE
