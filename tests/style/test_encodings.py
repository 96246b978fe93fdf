"""Text of files and of other processes is UTF-8, whatever the locale is."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import pytest

from tests.style.prose import ROOT, modules, syntax_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_WORDS = re.compile(r"text=|universal_newlines|errors=|popen|getoutput|open\(|_text\(|File\(")
_TEXT = {"text", "universal_newlines", "errors"}
_SHELLS = {"getoutput", "getstatusoutput", "popen"}


def sources() -> Iterator[Path]:
    """Yield all modules but the tests'; those of mutation and stress run on their own too."""
    yield from modules()
    for folder in ("benchmarks", "docs", "fixtures", "tests/mutation", "tests/stress"):
        yield from sorted((ROOT / folder).rglob("*.py"))
    yield ROOT / "noxfile.py"


def is_in_locale(call: ast.Call) -> bool:
    """Return whether a call reads or writes text in the encoding of the locale."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    words = {word.arg for word in call.keywords}
    if "encoding" in words:
        return False
    match name:
        case "run" | "Popen" | "check_output":
            return bool(words & _TEXT)
        case "read_text":
            return not call.args
        case "write_text":
            return len(call.args) == 1
        case "open" if isinstance(call.func, ast.Name):
            return is_text(call, 1, "r")
        case "NamedTemporaryFile" | "TemporaryFile":
            return is_text(call, 0, "w+b")
    return name in _SHELLS


def is_text(call: ast.Call, place: int, default: str) -> bool:
    """Return whether a call opens a file for text, with the mode at a place of its arguments."""
    modes = [*call.args[place : place + 1], *(word.value for word in call.keywords if word.arg == "mode")]
    return all(
        isinstance(mode, ast.Constant) and "b" not in str(mode.value)
        for mode in modes or [ast.Constant(default)]
    )


def test_text_is_utf_8() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sources()
        for node in syntax_of(path, _WORDS)
        if isinstance(node, ast.Call) and is_in_locale(node)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("call", "is_wrong"),
    [
        ("subprocess.run(c, text=True)", True),
        ("Popen(c, universal_newlines=True)", True),
        ("run(c, errors='replace')", True),
        ("os.popen(c)", True),
        ("open(p, 'w')", True),
        ("open(p)", True),
        ("path.read_text()", True),
        ("NamedTemporaryFile(mode='w')", True),
        ("run(c, encoding='utf-8')", False),
        ("open(p, 'rb')", False),
        ("os.open(p, flags)", False),
        ("TemporaryFile()", False),
        ("load_json(line, any_text=True)", False),
    ],
)
def test_calls_in_the_locale_are_found(call: str, is_wrong: bool) -> None:
    tree = ast.parse(call, mode="eval").body
    assert isinstance(tree, ast.Call)
    assert is_in_locale(tree) == is_wrong
