"""Inspect a library file."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from neurontools.customop.building.freshness import changed_sources
from neurontools.customop.package import Package, read_package

if TYPE_CHECKING:
    import os


@dataclass(frozen=True, slots=True)
class FilePart:
    """A part of a library file: name, size and digest."""

    name: str
    nbytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Inspection:
    """The contents of a library file.

    Args:
        package: its contents.
        parts: its parts.
        changed: source files that are missing or have changed since the build.
    """

    package: Package
    parts: tuple[FilePart, ...]
    changed: tuple[str, ...]


def inspect_library(path: str | os.PathLike[str]) -> Inspection:
    """Read a library file without running its code.

    Raises:
        CustomOpLibraryError: the file is missing, not a custom operator library, damaged, or for another computer or version.
    """
    package = read_package(path)
    contents = asdict(package.parts).items()
    parts = tuple(FilePart(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in contents)
    return Inspection(package, parts, changed_sources(package.manifest.sources))
