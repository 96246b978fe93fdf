"""Which compiler versions are current: entries of the others are found by nobody any more."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from neurontools.compiler.version import COMMIT_PREFIX, COMPILER_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable

_NUMBER = re.compile(r"\d+")


def current_compilers(versions: Iterable[str]) -> frozenset[str]:
    """Return which of the compiler versions of a cache are in use.

    Ours is; of the real compiler the one that is installed here, and where none is, the newest.
    """
    known = {version for version in versions if version}
    foreign = {version for version in known if not version.rpartition("+")[2].startswith(COMMIT_PREFIX)}
    installed = _installed()
    current = {version for version in foreign if installed and version.startswith(installed)}
    newest = max(foreign, key=_order, default="")
    return frozenset({COMPILER_VERSION, *(current or ({newest} if newest else ()))})


def _order(version: str) -> tuple[tuple[int, ...], str]:
    return tuple(int(number) for number in _NUMBER.findall(version.partition("+")[0])), version


def _installed() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("neuronx-cc")
    except PackageNotFoundError:
        return ""
