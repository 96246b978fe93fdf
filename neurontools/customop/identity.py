"""What makes two library files the same code: sources, how they were built, and for what; not where they lie."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neurontools.customop.package import Package


def code_digest(package: Package) -> str:
    """Return a digest (hex) of a library's code, the same wherever the library and its sources lie.

    The compiled parts cannot give it: their debugging information holds paths.
    """
    manifest = package.manifest
    facts = (
        manifest.abi,
        manifest.machine,
        manifest.compiler,
        (manifest.multicore, manifest.release, manifest.sanitize, manifest.stack_bytes),
        manifest.cflags,
        manifest.operators,
        sorted((os.path.basename(source.path), source.sha256) for source in manifest.sources),
        hashlib.sha256(package.parts.worker).hexdigest(),
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()
