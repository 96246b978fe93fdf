"""The file `lib<name>.so`: shape library, kernel library, worker, manifest, footer, one after the other.

It begins with an ELF file, so that `file` and `dlopen` know it as a shared library; the loader ignores what follows.
"""

from __future__ import annotations

import hashlib
import os
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from neurontools.customop import interface
from neurontools.customop.elf import is_elf, shared_library_problem
from neurontools.customop.errors import CustomOpLibraryError
from neurontools.customop.manifest import Manifest, manifest_from_bytes

_FOOTER = struct.Struct("<QQQQ8s")  # bytes of shape, kernel, worker, manifest
_MAGIC = b"NTCUSTOP"
_BUILD_AGAIN = "build it again with neuron-customop build or custom_op.load"


@dataclass(frozen=True, slots=True)
class Parts:
    """The compiled parts: ELF files.

    Args:
        shape: shared library of the shape functions and the registration.
        kernel: shared library of the kernels.
        worker: executable that runs both.
    """

    shape: bytes
    kernel: bytes
    worker: bytes

    @property
    def sha256(self) -> str:
        """Digest of all parts."""
        digest = hashlib.sha256()
        for part in (self.shape, self.kernel, self.worker):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Package:
    """A library file's contents and the digest of the whole file."""

    path: str
    manifest: Manifest
    parts: Parts
    sha256: str


def write_package(path: Path, manifest: Manifest, parts: Parts) -> None:
    """Write a library file; a reader sees the old one or the new one, never half of it.

    Raises:
        CustomOpLibraryError: the directory or the disk refuses.
    """
    import tempfile

    description = manifest.to_bytes()
    footer = _FOOTER.pack(len(parts.shape), len(parts.kernel), len(parts.worker), len(description), _MAGIC)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, scratch = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.writelines((parts.shape, parts.kernel, parts.worker, description, footer))
                os.fchmod(file.fileno(), 0o755)
                file.flush()
                os.fsync(file.fileno())
            os.replace(scratch, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(scratch)
            raise
    except OSError as error:
        raise CustomOpLibraryError(
            f"cannot write {path}: {error.strerror}", "choose another directory"
        ) from error


def read_package(path: str | os.PathLike[str]) -> Package:
    """Read a library file and check it: lengths, digests, processor, version.

    Raises:
        CustomOpLibraryError: it is not there, not ours, damaged, or for another computer or version.
    """
    name = os.fspath(path)
    try:
        data = Path(name).read_bytes()
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        remedy = "build it first" if missing else "give the path of a lib<name>.so that you may read"
        raise CustomOpLibraryError(f"cannot read {name}: {error.strerror}", remedy) from error
    manifest, parts = _split(name, data)
    for part in (parts.shape, parts.kernel):
        problem = shared_library_problem(part)
        if problem:
            raise CustomOpLibraryError(f"cannot load {name}: {problem}", _BUILD_AGAIN)
    if manifest.abi != interface.VERSION:
        raise CustomOpLibraryError(
            f"cannot load {name}: built for interface {manifest.abi}, this version has {interface.VERSION}",
            _BUILD_AGAIN,
        )
    if parts.sha256 != manifest.parts_sha256:
        raise CustomOpLibraryError(f"cannot load {name}: its contents are damaged", _BUILD_AGAIN)
    return Package(os.path.abspath(name), manifest, parts, hashlib.sha256(data).hexdigest())


def find_operator(package: Package, op: str) -> int:
    """Return the position of an operator, by `library::operator`, or `operator` when that is enough.

    Raises:
        CustomOpLibraryError: the library has no such operator, or several.
    """
    entries = package.manifest.operators
    for index, entry in enumerate(entries):
        if op in {entry.qualified, f"{entry.library}.{entry.name}"}:
            return index
    short = [index for index, entry in enumerate(entries) if entry.name == op]
    if len(short) == 1:
        return short[0]
    names = ", ".join(entry.qualified for entry in entries)
    raise CustomOpLibraryError(f"{package.path} has no operator {op}", f"it has {names}")


def _split(name: str, data: bytes) -> tuple[Manifest, Parts]:
    if len(data) < _FOOTER.size or not data.endswith(_MAGIC):
        if not is_elf(data):
            raise CustomOpLibraryError(f"{name} is not a shared library", "give the path of a lib<name>.so")
        raise CustomOpLibraryError(
            f"{name} is a shared library but not a custom operator library built here, or it is truncated",
            _BUILD_AGAIN,
        )
    *lengths, _ = _FOOTER.unpack_from(data, len(data) - _FOOTER.size)
    if sum(lengths) + _FOOTER.size != len(data):
        raise CustomOpLibraryError(f"cannot load {name}: it is truncated or damaged", _BUILD_AGAIN)
    pieces = []
    begin = 0
    for length in lengths:
        pieces.append(data[begin : begin + length])
        begin += length
    try:
        return manifest_from_bytes(pieces[3]), Parts(pieces[0], pieces[1], pieces[2])
    except ValueError as error:
        raise CustomOpLibraryError(f"cannot load {name}: {error}", _BUILD_AGAIN) from error
