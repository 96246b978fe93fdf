"""Read a NEFF file of any origin as a stream: header, members, variables. Its code is never run.

The archives of real NEFFs are gzip tars; uncompressed ones are accepted too.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import zlib
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING, Any

from neurontools.base.files import open_input
from neurontools.base.json_reader import load_json
from neurontools.compiler.archive import ArchiveError, Member, TarReader, max_expanded_bytes
from neurontools.compiler.neff_header import HEADER_BYTES, NeffError, NeffHeader, read_header

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.compiler.graph import Graph, View

LIMIT_BYTES = 64 * 2**30
DATA_NAME = "neff.tgz"
_CHUNK_BYTES = 1 << 20
_MOST_FILES = 1 << 14  # a model has some dozens
_MAX_JSON_BYTES = 64 * 2**20
_GZIP_MAGIC = b"\x1f\x8b"
_GRAPH = "graph.json"
_DEFINITION = "def.json"
_MANIFEST = "neff.json"


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of a subgraph ("sg00", ...) from its def.json; shape and dtype if known.

    `kind` is the stored type: input, output, state-buffer, file, tmp-buf, virtual, pointer, dge-table.
    """

    subgraph: str
    name: str
    kind: str
    size_bytes: int | None
    shape: tuple[int, ...] | None = None
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class NativeLibrary:
    """A library of custom operators inside a NEFF; `digest` is the sha256 (hex) in the manifest of the NEFF."""

    name: str
    digest: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class NeffFile:
    """The contents of a NEFF file. `problem` is the error of the data after the header, or ""."""

    header: NeffHeader
    problem: str
    members: tuple[Member, ...]
    variables: tuple[Variable, ...]
    is_simulated: bool
    libraries: tuple[NativeLibrary, ...] = ()


def read_neff_file(path: str) -> NeffFile:
    """Return header, members and variables of a NEFF whose members have at most 100 times its size, or 16 MiB.

    Args:
        path: the file.

    Raises:
        NeffError: the file does not exist, or has no NEFF header.
    """
    with _opened(path) as (file, header):
        problem = _data_problem(file, header)
        members: list[Member] = []
        stored: dict[str, bytes] = {}
        try:
            with _archive(file, max_expanded_bytes(header.data_bytes, LIMIT_BYTES)) as archive:
                for member in archive.members():
                    members.append(member)
                    if _is_metadata(member):
                        stored[member.name] = b"".join(archive.chunks())
        except ArchiveError as error:
            problem = problem or error.message
    return NeffFile(
        header,
        problem,
        tuple(members),
        _variables(stored),
        is_simulated=_GRAPH in stored,
        libraries=tuple(_libraries(stored.get(_MANIFEST, b""))),
    )


def unpack_neff(path: str, directory: str, limit_bytes: int | None = None) -> tuple[Member, ...]:
    """Write the members of a NEFF, and its data part as `neff.tgz`, to a new directory, completely or not at all.

    Args:
        path: the file.
        directory: a path that does not exist, or an empty directory.
        limit_bytes: maximum total size of its members; by default 100 times the size of the file, or 16 MiB.

    Raises:
        NeffError: the file is not a NEFF, damaged or above the limit, or the directory is not empty.
        OSError: the directory cannot be written.
    """
    target = os.path.abspath(directory)
    if os.path.lexists(target) and (not os.path.isdir(target) or os.listdir(target)):
        raise NeffError(f"cannot unpack to {directory}: the directory is not empty", "choose another with -o")
    with _opened(path) as (file, header):
        problem = _data_problem(file, header)
        if problem:
            raise NeffError(f"{path}: {problem}")
        aside = f"{target}.unpacking-{os.getpid()}"
        os.makedirs(aside)
        try:
            limit = max_expanded_bytes(header.data_bytes, LIMIT_BYTES) if limit_bytes is None else limit_bytes
            members = _write_members(file, aside, limit)
            _copy_data(file, f"{aside}/{DATA_NAME}")
            os.rename(aside, target)
        except ArchiveError as error:
            raise NeffError(f"{path}: {error.message}", error.remedy) from error
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return members


def _write_members(file: IO[bytes], directory: str, limit_bytes: int) -> tuple[Member, ...]:
    members = []
    with _archive(file, limit_bytes) as archive:
        for member in archive.members():
            if member.name == DATA_NAME:
                raise ArchiveError(f"the archive holds a file named {DATA_NAME}")
            members.append(member)
            _write_member(archive, member, f"{directory}/{member.name}")
    return tuple(members)


def _write_member(archive: TarReader, member: Member, path: str) -> None:
    try:
        if member.is_directory:
            os.makedirs(path, exist_ok=True)
            return
        os.makedirs(os.path.dirname(path), exist_ok=True)
        # "x": a second member of the same name must not replace the first.
        with open(path, "xb") as written:
            written.writelines(archive.chunks())
    except (FileExistsError, NotADirectoryError) as error:
        raise ArchiveError(f"the archive holds {member.name!a} twice") from error


def _copy_data(file: IO[bytes], path: str) -> None:
    file.seek(HEADER_BYTES)
    with open(path, "xb") as written:
        shutil.copyfileobj(file, written, _CHUNK_BYTES)


@contextmanager
def _opened(path: str) -> Iterator[tuple[IO[bytes], NeffHeader]]:
    try:
        file = open_input(path)
    except OSError as error:
        raise NeffError(f"cannot read {path}: {error.strerror}") from error
    with file:
        yield file, _header(file, path)


def _header(file: IO[bytes], path: str) -> NeffHeader:
    try:
        return read_header(file.read(HEADER_BYTES))
    except NeffError as error:
        raise NeffError(f"{path}: {error.message}", error.remedy) from error


def _data_problem(file: IO[bytes], header: NeffHeader) -> str:
    length = os.fstat(file.fileno()).st_size - HEADER_BYTES
    if length != header.data_bytes:
        return f"{length} bytes of data, the header states {header.data_bytes}"
    digest = hashlib.md5(usedforsecurity=False) if header.package_version == 1 else hashlib.sha256()
    file.seek(HEADER_BYTES)
    while chunk := file.read(_CHUNK_BYTES):
        digest.update(chunk)
    if digest.digest() != header.data_hash[: digest.digest_size]:
        return "the data does not match the header's hash"
    return ""


@contextmanager
def _archive(file: IO[bytes], limit_bytes: int) -> Iterator[TarReader]:
    file.seek(HEADER_BYTES)
    magic = file.read(len(_GZIP_MAGIC))
    file.seek(HEADER_BYTES)
    try:
        if magic == _GZIP_MAGIC:
            with gzip.GzipFile(fileobj=file) as expanded:
                yield TarReader(expanded, limit_bytes, _MOST_FILES)
        else:
            yield TarReader(file, limit_bytes, _MOST_FILES)
    except (zlib.error, EOFError, gzip.BadGzipFile) as error:
        raise ArchiveError(f"the archive is damaged: {error}") from error


def _is_metadata(member: Member) -> bool:
    name = member.name.rpartition("/")[2] if member.name.startswith("sg") else member.name
    return name in {_GRAPH, _DEFINITION, _MANIFEST} and member.size_bytes <= _MAX_JSON_BYTES


def _variables(stored: dict[str, bytes]) -> tuple[Variable, ...]:
    graph = _graph(stored.get(_GRAPH))
    found: list[Variable] = []
    for name in sorted(stored):
        folder, _, last = name.rpartition("/")
        if last == _DEFINITION:
            found += _defined(folder, stored[name])
    return tuple(found if graph is None else _with_shapes(found, graph))


def _defined(folder: str, content: bytes) -> Iterator[Variable]:
    # Only type and size of a variable are used, where they are valid.
    defined: Any = None
    with suppress(ValueError, AttributeError):
        defined = load_json(content, any_text=True).get("var")
    for name, fields in defined.items() if isinstance(defined, dict) else ():
        if isinstance(fields, dict):
            size = fields.get("size")
            yield Variable(
                subgraph=folder,
                name=str(name),
                kind=str(fields.get("type", "")),
                size_bytes=size if isinstance(size, int) and not isinstance(size, bool) else None,
            )


def _libraries(manifest: bytes) -> Iterator[NativeLibrary]:
    rows: Any = None
    with suppress(ValueError, AttributeError):
        rows = load_json(manifest, any_text=True).get("libraries")
    for row in rows if isinstance(rows, list) else ():
        with suppress(KeyError, TypeError, ValueError):
            yield NativeLibrary(str(row["name"]), str(row["digest"]), int(row["size"]))


def _graph(content: bytes | None) -> Graph | None:
    if content is None:
        return None
    from neurontools.compiler.graph import GraphError, graph_from_bytes

    try:
        return graph_from_bytes(content)
    except GraphError:
        return None


def _with_shapes(variables: list[Variable], graph: Graph) -> Iterator[Variable]:
    from neurontools.compiler.graph import reads

    views: dict[str, View] = {}
    for node in graph.nodes:
        for used in (*(view for view in node.results if view is not None), *reads(node)):
            views.setdefault(f"slot{used.slot}", used)
    for variable in variables:
        known = views.get(variable.name)
        yield variable if known is None else replace(variable, shape=known.shape, dtype=known.dtype)
