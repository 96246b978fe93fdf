"""The paths to read in ARCHITECTURE.md lead through files and functions that exist."""

from __future__ import annotations

import ast
import re

import pytest

from tests.style.prose import ROOT

STEPS = re.findall(
    r"^\d+\. `(\S+\.py)`: (.*)$", (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"), re.MULTILINE
)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@pytest.mark.parametrize(("path", "names"), STEPS)
def test_a_step_names_what_its_file_defines(path: str, names: str) -> None:
    tree = ast.parse((ROOT / path).read_bytes())
    defined = {node.name for node in ast.walk(tree) if isinstance(node, _DEFINITIONS)}
    assert set(re.findall(r"`(\w+)`", names)) <= defined
