"""A class name means one thing in the whole tree."""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.style.prose import ROOT, modules

SAME_MEANING = {"Advice": "what a rule says to change: of a kernel's source, or of a training program"}
"""Names of classes that mean the same in several modules, and why they are not one."""

FOLDERS_OF_TOOLS = ("benchmarks", "tests/mutation", "tests/stress")


def test_class_names_are_unique():
    places = defaultdict(list)
    tools = [path for folder in FOLDERS_OF_TOOLS for path in (ROOT / folder).rglob("*.py")]
    for path in [*modules(), *tools]:
        if "compat" in path.parts:  # named like the classes of the real packages
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(ROOT)))
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert {name: found for name, found in twice.items() if name not in SAME_MEANING} == {}
