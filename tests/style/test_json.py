"""JSON of files and peers is read by `base/json_reader.py`, which bounds depth, numbers and texts."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from tests.style.prose import ROOT, modules, syntax_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_OWN = "written by this program or its own child process"

ALLOWED = {
    "neurontools/base/json_reader.py": "the reader itself",
    "neurontools/compiler/graph_storage.py": "checks its numbers itself, in the time of a cache hit",
    "neurontools/config/reader.py": "checks the syntax only: numbers stay text until the schema reads them",
    "neurontools/machine/instances/catalogue.py": "this user's own rebuildable file, read when a machine starts",
    "neurontools/machine/launch.py": _OWN,
    "neurontools/monitor/codec.py": "checks its numbers itself; lines are long and many",
    "neurontools/precompile/worker_pool.py": _OWN,
    "neurontools/scenario/recording.py": "a line that the codec has checked",
    "commands/customop/show.py": _OWN,
    "commands/ls/forms.py": "the text of the user's machine, which is only compacted",
}


def unbounded_calls() -> Iterator[tuple[str, int]]:
    for path in modules():
        for node in syntax_of(path, re.compile(r"json\.load|\bloads\b")):
            if isinstance(node, ast.Call) and is_unbounded(node):
                yield str(path.relative_to(ROOT)), node.lineno


def is_unbounded(call: ast.Call) -> bool:
    """Return whether a call parses JSON without limits."""
    match call.func:
        case ast.Attribute(value=ast.Name(id="json"), attr=name):
            return name in {"load", "loads"}
        case ast.Name(id=name):
            return name == "loads"
    return False


def test_json_is_read_with_limits() -> None:
    assert [f"{name}:{line}" for name, line in unbounded_calls() if name not in ALLOWED] == []


def test_no_exception_is_out_of_date() -> None:
    assert sorted(ALLOWED) == sorted({name for name, _ in unbounded_calls()})
