"""The translation units of a library: each includes one user source and exports its kernels."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.customop.package import Access

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

_COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_QUOTED = re.compile(r'"([A-Za-z_][\w:]*)"')
_CALL = re.compile(r"\b(\w+)\s*(?:<[^<>;()]*>)?\s*\(")
_ELEMENT = re.compile(r"[.>]\s*(?:template\s+)?accessor\s*<|\bdata_ptr\b")
_STREAM = re.compile(r"\b(?:read|write)_stream_accessor\b")
EXPORT = re.compile(r'KernelDefinition neurontools_kernel_\d+\("([^"]*)"')
_TCM = re.compile(r"\btcm_accessor\b")


@dataclass(frozen=True, slots=True)
class KernelUnit:
    """A compute source with the names of the kernels that it defines."""

    source: Path
    kernels: tuple[str, ...]


def shape_unit(source: Path) -> str:
    """Return the text of a unit for a shape source."""
    return f"{_include(source)}\n"


def kernel_unit(unit: KernelUnit) -> str:
    """Return the text of a unit for a compute source: the compiler deduces the signatures of exported kernels."""
    exports = [
        f'static const ::neurontools::KernelDefinition neurontools_kernel_{index}("{name}", &{name});'
        for index, name in enumerate(unit.kernels)
    ]
    return "\n".join((_include(unit.source), '#include "neurontools/registry.hpp"', *exports, ""))


def assign_kernels(sources: Sequence[Path], kernels: Iterable[str]) -> tuple[KernelUnit, ...]:
    """Find the compute source that defines each kernel.

    A kernel without a visible definition is assigned to the first source: a macro may define it, else the compiler fails.
    """
    texts = {source: _code(source) for source in sources}
    wanted = dict.fromkeys(kernels)
    homes: dict[str, Path] = {}
    for kernel in wanted:
        homes[kernel] = next((source for source in sources if _defines(texts[source], kernel)), sources[0])
    return tuple(
        KernelUnit(source, tuple(kernel for kernel in wanted if homes[kernel] == source))
        for source in sources
    )


def defines(source: Path, kernel: str) -> bool:
    """Return whether a source visibly defines a kernel; a macro may define others."""
    return _defines(_code(source), kernel)


def guess_kernel_units(work: Path, sources: Sequence[Path], shapes: Sequence[Path]) -> list[str]:
    """Guess the texts of compute units before the shape sources are compiled.

    Args:
        work: directory of the last build's units, which are reused.
        sources: the compute sources.
        shapes: the shape sources; a quoted name that a compute source defines is taken for a kernel.
    """
    last = [work / f"kernel_{index}.cpp" for index in range(len(sources))]
    if all(path.is_file() for path in last):
        return [os.fsdecode(path.read_bytes()) for path in last]
    names = dict.fromkeys(name for path in shapes for name in _QUOTED.findall(os.fsdecode(path.read_bytes())))
    texts = {source: _code(source) for source in sources}
    found: dict[Path, list[str]] = {source: [] for source in sources}
    for name in names:
        home = next((source for source in sources if _defines(texts[source], name)), None)
        if home is not None:
            found[home].append(name)
    return [kernel_unit(KernelUnit(source, tuple(kernels))) for source, kernels in found.items()]


def access_of(source: Path, kernel: str) -> Access:
    """Return how a kernel accesses tensors, from its source text and that of the functions it calls."""
    body = "\n".join(_reachable(_code(source), kernel))
    for pattern, access in ((_ELEMENT, Access.ELEMENT), (_STREAM, Access.STREAM), (_TCM, Access.TCM)):
        if pattern.search(body):
            return access
    return Access.TENSOR


def _reachable(text: str, kernel: str) -> list[str]:
    bodies: list[str] = []
    seen = {kernel}
    waiting = [kernel]
    while waiting:
        body = _body(text, waiting.pop())
        bodies.append(body)
        called = {name for name in _CALL.findall(body) if name not in seen and _defines(text, name)}
        seen |= called
        waiting.extend(called)
    return bodies


def _include(source: Path) -> str:
    path = str(source).replace("\\", "\\\\").replace('"', '\\"')
    return f'#include "{path}"'


def _code(source: Path) -> str:
    text = os.fsdecode(source.read_bytes())
    return _COMMENT.sub(lambda match: " " * len(match[0]), text)


def _definition(kernel: str) -> re.Pattern[str]:
    return re.compile(rf"\b{re.escape(kernel.rpartition('::')[2])}\s*\([^;{{}}]*\)\s*(?:noexcept\s*)?\{{")


def _defines(text: str, kernel: str) -> bool:
    return _definition(kernel).search(text) is not None


def _body(text: str, kernel: str) -> str:
    found = _definition(kernel).search(text)
    if found is None:
        return text
    depth = 0
    for index in range(found.end() - 1, len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return text[found.end() : index]
    return text[found.end() :]
