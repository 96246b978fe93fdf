"""The file `lib<name>.so`: shape library, kernel library, worker, manifest and footer, in this order.

It begins with an ELF file, so `file` and `dlopen` accept it as a shared library; the loader ignores the rest.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import struct
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from neurontools.base.files import atomic_file, write_all
from neurontools.base.json_reader import load_json
from neurontools.customop.errors import CustomOpLibraryError
from neurontools.customop.signature import ABI_VERSION, check_schema, schema

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import DataclassInstance

_FOOTER = struct.Struct("<QQQQ8s")  # bytes of shape, kernel, worker, manifest
_MAGIC = b"NTCUSTOP"
_REBUILD = "rebuild it with neuron-customop build or custom_op.load"
_MACHINES = {"x86_64": 62, "aarch64": 183}
_NAMES = {62: "x86_64", 183: "aarch64", 40: "arm", 243: "riscv", 3: "i386"}
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SHARED_LIBRARY = 3
_MAX_COUNT = 2**31 - 1
_Record = TypeVar("_Record", bound="DataclassInstance")

FORMAT = 2


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
    """Write a library file atomically.

    Raises:
        CustomOpLibraryError: the file cannot be written.
    """
    description = manifest.to_bytes()
    footer = _FOOTER.pack(len(parts.shape), len(parts.kernel), len(parts.worker), len(description), _MAGIC)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path, mode=0o755) as file:
            file.writelines((parts.shape, parts.kernel, parts.worker, description, footer))
    except OSError as error:
        raise CustomOpLibraryError(
            f"cannot write {path}: {error.strerror}", "choose another directory"
        ) from error


def read_package(path: str | os.PathLike[str]) -> Package:
    """Read a library file and check lengths, digests, processor and version.

    Raises:
        CustomOpLibraryError: the file is missing, not a custom operator library, damaged, or for another computer or
            version.
    """
    name = os.fspath(path)
    try:
        data = Path(name).read_bytes()
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        remedy = "build it first" if missing else "give the path of a readable lib<name>.so"
        raise CustomOpLibraryError(f"cannot read {name}: {error.strerror}", remedy) from error
    manifest, parts = _split(name, data)
    for part in (parts.shape, parts.kernel):
        problem = shared_library_problem(part)
        if problem:
            raise CustomOpLibraryError(f"cannot load {name}: {problem}", _REBUILD)
    if manifest.abi != ABI_VERSION:
        raise CustomOpLibraryError(
            f"cannot load {name}: built for ABI {manifest.abi}, this version has ABI {ABI_VERSION}",
            _REBUILD,
        )
    if parts.sha256 != manifest.parts_sha256:
        raise CustomOpLibraryError(f"cannot load {name}: the file is damaged", _REBUILD)
    return Package(os.path.abspath(name), manifest, parts, hashlib.sha256(data).hexdigest())


def find_operator(package: Package, op: str) -> int:
    """Return the position of an operator, by `library::operator`, or by `operator` if that is unique.

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
            f"{name} is a shared library but not a custom operator library, or it is truncated",
            _REBUILD,
        )
    *lengths, _ = _FOOTER.unpack_from(data, len(data) - _FOOTER.size)
    if sum(lengths) + _FOOTER.size != len(data):
        raise CustomOpLibraryError(f"cannot load {name}: it is truncated or damaged", _REBUILD)
    pieces = []
    begin = 0
    for length in lengths:
        pieces.append(data[begin : begin + length])
        begin += length
    try:
        return manifest_from_bytes(pieces[3]), Parts(pieces[0], pieces[1], pieces[2])
    except ValueError as error:
        raise CustomOpLibraryError(f"cannot load {name}: {error}", _REBUILD) from error


def is_elf(data: bytes) -> bool:
    """Return whether data begins with the ELF magic."""
    return data.startswith(b"\x7fELF")


def shared_library_problem(data: bytes) -> str:
    """Return why data is not a 64-bit shared library for this processor, "" if it is one."""
    if not is_elf(data):
        return "it is not an ELF file"
    if len(data) < _HEADER.size:
        return "it is truncated"
    header = _HEADER.unpack_from(data)
    ident, kind, machine = header[:3]
    program_at, section_at = header[5:7]
    program_size, programs, section_size, sections = header[9:13]
    if ident[4] != 2 or ident[5] != 1:
        return "it is not a 64-bit little-endian ELF file"
    if machine != _MACHINES.get(platform.machine()):
        return f"it is for {_NAMES.get(machine, f'machine {machine}')}, this computer is {platform.machine()}"
    if kind != _SHARED_LIBRARY:
        return "it is not a shared library"
    if max(program_at + programs * program_size, section_at + sections * section_size) > len(data):
        return "it is truncated"
    return ""


def section(data: bytes, name: str) -> bytes:
    """Return the contents of a section of a 64-bit ELF file, b"" if there is no such section."""
    header = _HEADER.unpack_from(data)
    at, size, count, names = header[6], header[11], header[12], header[13]
    entries = [_SECTION.unpack_from(data, at + index * size) for index in range(count)]
    strings = entries[names][4]
    for entry in entries:
        begin = strings + entry[0]
        if data[begin : data.index(b"\0", begin)] == name.encode():
            return data[entry[4] : entry[4] + entry[5]]
    return b""


def executable_file(name: str, contents: bytes) -> int:
    """Return a descriptor of an anonymous file (memfd) whose contents can be loaded or executed."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        write_all(fd, contents)
        os.fchmod(fd, 0o500)
    except BaseException:
        os.close(fd)
        raise
    return fd


class Access(StrEnum):
    """How a kernel's source accesses tensors; determines the modelled time before the first run."""

    ELEMENT = "element"
    STREAM = "stream"
    TCM = "tcm"
    TENSOR = "tensor"


@dataclass(frozen=True, slots=True)
class OperatorEntry:
    """An operator of a library.

    Args:
        library: namespace under `torch.ops`.
        name: operator name.
        kernel: name of the kernel function.
        kernel_index: index of the kernel in the compiled library.
        parameters: kinds of the parameters (`tensor`, `const-tensor`, `scalar`, `double`, `int64`).
        access: how the kernel accesses tensors.
    """

    library: str
    name: str
    kernel: str
    kernel_index: int
    parameters: tuple[str, ...]
    access: Access

    @property
    def qualified(self) -> str:
        """`library::operator`."""
        return f"{self.library}::{self.name}"

    @property
    def schema(self) -> str:
        """The torch schema."""
        return schema(self.name, self.parameters)


@dataclass(frozen=True, slots=True)
class SourceEntry:
    """A source file of a library: its absolute path at the build and the SHA-256 of its contents."""

    path: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of a library.

    Args:
        name: the library is `lib<name>.so`.
        abi: version of the ABI between host and library.
        multicore: whether every kernel runs on all cores.
        release: whether it was built without accessor checks.
        sanitize: whether it was built with the compiler's sanitizers.
        stack_bytes: declared stack size, 0 if not declared.
        cflags: the user's compiler flags.
        compiler: version line of the compiler.
        machine: processor architecture of the code.
        build_key: digest of everything that determines the result except the contents of the sources.
        parts_sha256: digest of the compiled parts.
        compute: absolute paths of the kernels' sources.
        shape: absolute paths of the shape functions' sources.
        operators: the operators.
        sources: the files that it was built from, including the user's headers.
    """

    name: str
    abi: int
    multicore: bool
    release: bool
    sanitize: bool
    stack_bytes: int
    cflags: tuple[str, ...]
    compiler: str
    machine: str
    build_key: str
    parts_sha256: str
    compute: tuple[str, ...]
    shape: tuple[str, ...]
    operators: tuple[OperatorEntry, ...]
    sources: tuple[SourceEntry, ...]

    def to_bytes(self) -> bytes:
        """Return the JSON form."""
        return json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True, indent=1).encode()


def manifest_from_bytes(data: bytes) -> Manifest:
    """Parse the JSON form.

    Raises:
        ValueError: it is not a manifest.
    """
    try:
        raw = load_json(data, any_text=True)
        if raw.pop("format") != FORMAT:
            raise ValueError("the manifest has another format")
        return _parse_record(Manifest, raw)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the manifest has wrong fields: {error}") from error


def _parse_record(record: type[_Record], raw: dict[str, object]) -> _Record:
    values = {field.name: _PARSERS[cast("str", field.type)](raw.pop(field.name)) for field in fields(record)}
    if raw:
        raise ValueError(f"the manifest has unknown fields: {', '.join(map(ascii, raw))}")
    return record(**values)


def _parse_text(value: object) -> str:
    # A path may hold bytes that are not UTF-8, as surrogates that stand for them.
    text = cast("str", value)
    if b"\0" in text.encode("utf-8", "surrogateescape"):
        raise ValueError("the manifest has a text with a null character")
    return text


def _parse_count(value: object) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_COUNT:
        raise ValueError(f"the manifest has a wrong number: {value!r:.40}")
    return value


def _parse_flag(value: object) -> bool:
    if type(value) is not bool:
        raise ValueError(f"the manifest has {value!a:.40} where it needs true or false")
    return value


def _parse_list(parse: Callable[[Any], object]) -> Callable[[object], tuple[object, ...]]:
    def parse_items(value: object) -> tuple[object, ...]:
        if type(value) is not list:
            raise ValueError(f"the manifest has {value!a:.40} where it needs a list")
        return tuple(map(parse, value))

    return parse_items


def _parse_operator(raw: dict[str, object]) -> OperatorEntry:
    operator = _parse_record(OperatorEntry, raw)
    check_schema(operator.library, operator.name, operator.parameters)
    return operator


_PARSERS: dict[str, Callable[[object], object]] = {
    "str": _parse_text,
    "int": _parse_count,
    "bool": _parse_flag,
    "Access": lambda value: Access(cast("str", value)),
    "tuple[str, ...]": _parse_list(_parse_text),
    "tuple[OperatorEntry, ...]": _parse_list(_parse_operator),
    "tuple[SourceEntry, ...]": _parse_list(partial(_parse_record, SourceEntry)),
}
