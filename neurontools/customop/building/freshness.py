"""Whether a library file is what a build would make now: the part of building that runs every time, so it stays small."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from neurontools.customop.building.request import absolute
from neurontools.customop.building.toolchain import HERE, toolchain_key
from neurontools.customop.errors import CustomOpLibraryError
from neurontools.customop.package import read_package

if TYPE_CHECKING:
    from collections.abc import Iterable

    from neurontools.customop.building.compilers import Compiler
    from neurontools.customop.building.request import BuildRequest
    from neurontools.customop.manifest import Manifest, SourceEntry

_DECISIVE = (
    "building/compilation",
    "building/making",
    "manifest",
    "package",
    "signature",
    "building/toolchain",
    "building/units",
)  # what they write may change


def build_key(request: BuildRequest, compiler: Compiler) -> str:
    """Return a digest of everything that decides the result but the sources' contents."""
    facts = (
        request.name,
        toolchain_key(compiler, sanitize=request.sanitize),
        [file_sha256(HERE / f"{module}.py") for module in _DECISIVE],
        request.multicore,
        request.release,
        request.cflags,
        absolute(request.compute),
        absolute(request.shape),
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def up_to_date(path: Path, key: str) -> Manifest | None:
    """Return the manifest of a library that a build would make again just so, else None."""
    try:
        manifest = read_package(path).manifest
        current = manifest.build_key == key and not changed_sources(manifest.sources)
    except (CustomOpLibraryError, OSError):
        return None
    return manifest if current else None


def changed_sources(entries: Iterable[SourceEntry]) -> tuple[str, ...]:
    """Return the paths of files that are gone or differ from what was compiled."""
    changed = []
    for entry in entries:
        try:
            same = file_sha256(Path(entry.path)) == entry.sha256
        except OSError:
            same = False
        if not same:
            changed.append(entry.path)
    return tuple(changed)


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's contents."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
