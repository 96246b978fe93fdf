"""Compiler output cut down to what concerns the user's own files."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_DIAGNOSTIC = re.compile(
    r"(?P<file>[^\s:][^:\n]*):(?P<line>\d+):(?:(?P<column>\d+):)? (?P<kind>(?:fatal )?error|warning|note): (?P<text>.*)"
)
_REQUIRED = re.compile(r"(?P<file>[^\s:][^:\n]*):(?P<line>\d+):(?P<column>\d+):\s+required from here")
_CONTEXT = re.compile(r"\S+: (?:In |At )|In file included from|\s+from |\S+:\d+:\d+:\s+required (?:from|by)")
_SYSTEM = ("/usr/include", "/usr/lib", "/usr/local/include", "/usr/local/lib")
_LINKER = re.compile(r"undefined reference to|multiple definition of|undefined symbol|duplicate symbol")


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """What a compiler said about the user's files.

    Args:
        errors: lines of its errors, source lines and carets included.
        warnings: lines of its warnings.
    """

    errors: tuple[str, ...]
    warnings: tuple[str, ...]


def user_diagnostics(output: str, names: Mapping[str, str], ours: Iterable[str]) -> Diagnostics:
    """Filter compiler output.

    Args:
        output: what the compiler wrote.
        names: absolute path of a user's file -> the path as the user gave it.
        ours: directories whose files are not the user's: headers of ours and of the compiler, generated files.

    An error inside a header is told at the line of the user that led there, when the compiler names it.
    """
    prefixes = tuple(os.path.join(directory, "") for directory in (*ours, *_SYSTEM))
    errors: list[str] = []
    warnings: list[str] = []
    target: list[str] | None = None
    caller = ""
    source_follows = False  # clang prints the line of the source without an indent
    for line in output.splitlines():
        required = _REQUIRED.match(line)
        found = _DIAGNOSTIC.match(line)
        if required and not required["file"].startswith(prefixes):
            caller = f"{_shown(required['file'], names)}:{required['line']}:{required['column']}"
        elif found:
            if found["kind"] != "note":
                target = warnings if found["kind"] == "warning" else errors
            place, foreign = _place(found, names, prefixes, caller)
            told = foreign and (
                found["kind"] != "error" or any(line.startswith(place + ":") for line in errors)
            )
            if target is not None and place and not told:
                target.append(f"{place}: {found['kind']}: {found['text']}")
            source_follows = not foreign
            target = None if foreign else target
            caller = "" if found["kind"] != "note" else caller
        elif _LINKER.search(line):
            errors.append(
                line.rpartition(": ")[0].rpartition(": ")[2] + line[line.rfind(": ") :]
                if ": " in line
                else line
            )
        elif _CONTEXT.match(line):
            continue
        elif target is not None and (source_follows or line.startswith((" ", "\t"))):
            target.append(line)
            source_follows = False
    return Diagnostics(tuple(errors), tuple(warnings))


def _place(
    found: re.Match[str], names: Mapping[str, str], prefixes: tuple[str, ...], caller: str
) -> tuple[str, bool]:
    if not found["file"].startswith(prefixes):
        column = f":{found['column']}" if found["column"] else ""
        return f"{_shown(found['file'], names)}:{found['line']}{column}", False
    return caller, True


def _shown(path: str, names: Mapping[str, str]) -> str:
    return names.get(path, path)
