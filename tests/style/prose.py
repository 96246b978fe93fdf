"""Words that are not used in help, messages, docstrings, comments and pages, and where they are found."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]

BANNED = {
    r"makes? no sense": "name what is wrong: `invalid size '12x': expected e.g. 10MB`",
    r"(?<!there )\b(?:is|are) no (?!longer\b|more\b)": "`is not a ...`, or `there is no ...`",
    r"\btold\b(?! apart)": "reported, given, passed, sent",
    r"\bsaid\b": "reported, given, set",
    r"\bwish(?:es|ed)?\b": "request, option",
    r"\bcomes? along\b": "is bundled, appears",
    r"\bof yours\b": "your ...",
    r"\bnobody\b": "no user, no process; `cannot be ...`",
    r"\bnonsense\b": "invalid input",
    r"\bso (?:many|long)\b(?! as\b)": "the number of ..., for the time of ...",
    r"\bturn to this\b": "switch to this",
    r"\bone that\b": "name the thing",
    r"\bis had\b": "is held, exists",
    r"\bwhoever\b": "the reader, the user, the process that",
    r"\bas ever\b": "as usual",
    r"(?<!for )(?<!after )(?<!takes )(?<!in )\ba moment\b": "a snapshot, a time",
}
"""Expressions that are not used, and what to write in their place."""

_PATTERN = re.compile("|".join(f"(?:{pattern})" for pattern in BANNED), re.IGNORECASE)


def find_banned(text: str) -> Iterator[str]:
    """Yield each banned expression in a text, with the words around it."""
    joined = " ".join(text.split())
    for match in _PATTERN.finditer(joined):
        yield joined[max(0, match.start() - 30) : match.end() + 30]


def python_texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each string literal of a module, and of its comments if a line has banned words."""
    source = path.read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
    if any("#" in line and any(find_banned(line)) for line in source.splitlines()):  # else it takes seconds
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string


def syntax_of(path: Path, words: re.Pattern[str]) -> Iterator[ast.AST]:
    """Yield the syntax tree's nodes of a module that contains some words; parsing all modules takes seconds."""
    source = path.read_text(encoding="utf-8")
    if words.search(source):
        yield from ast.walk(ast.parse(source))


def page_text(path: Path) -> str:
    """Return a Markdown page without its code blocks."""
    return re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)


def modules() -> Iterator[Path]:
    """Yield all modules of the package."""
    for folder in ("neurontools", "commands", "tui"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not any(
                (ROOT / "neurontools" / name) in path.parents for name in ("commands", "tui", "fixtures")
            ):
                yield path
