"""What is in a cache root: entries with state, size, age and use. Reading only; unknown names are counted and left."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.cache import layout
from neurontools.cache.location import ARGUMENT_SOURCE
from neurontools.cache.locks import LockState, examine_lock, flock
from neurontools.cache.states import State, note_of, state_of
from neurontools.cache.usage import Usage
from neurontools.compiler.neff_header import HEADER_BYTES, NeffError, read_header
from neurontools.compiler.version import COMMIT_PREFIX
from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.cache.location import Location

_MAX_FLAGS_BYTES = 1 << 16
_LOG_BYTES = 1 << 14
_MAX_DEPTH = 8


class NotACacheError(NeuronToolsError):
    """The directory is there and is no compile cache."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One MODULE directory. `size_bytes` are allocated on disk; times are Unix seconds; `hits` are this user's."""

    path: str
    compiler: str
    module: str
    state: State
    size_bytes: int
    made_unix_s: float
    used_unix_s: float
    hits: int
    flags: tuple[str, ...]
    name: str
    ours: bool
    note: str
    lock: LockState | None


@dataclass(frozen=True, slots=True)
class Scan:
    """A root's content. `skipped` counts names that are not this layout's; `exists` is False for a root not made yet."""

    root: str
    exists: bool
    entries: tuple[Entry, ...]
    skipped: int


def scan(root: str) -> Scan:
    """Return what a root holds.

    Raises:
        NotACacheError: it exists and is no directory, cannot be read, or holds no sign of a compile cache.
    """
    names = _root_names(root)
    if names is None:
        return Scan(root, exists=False, entries=(), skipped=0)
    reader = _Reader(root)
    entries = []
    skipped = 0
    for name in sorted(names):
        if layout.is_compiler_dir(name) and _is_real_directory(f"{root}/{name}"):
            for path in _children(f"{root}/{name}"):
                known = layout.split_module(os.path.basename(path)) is not None
                entry = reader.read(path) if known and _is_real_directory(path) else None
                if entry is None:
                    skipped += 1
                else:
                    entries.append(entry)
        elif name not in {layout.ROOT_LOCK, layout.CACHE_TAG, layout.TRASH}:
            skipped += 1
    return Scan(root, exists=True, entries=tuple(entries), skipped=skipped)


def scan_location(location: Location) -> Scan:
    """Return what the root of a location holds; only a root that was named by hand must be there.

    Raises:
        NotACacheError: as `scan`, or the command line names a directory that does not exist.
    """
    found = scan(location.root)
    if not found.exists and location.source == ARGUMENT_SOURCE:
        raise NotACacheError(f"there is no compile cache at {location.root}: no such directory", _HINT)
    return found


def read_entry(root: str, path: str) -> Entry | None:
    """Return an entry as it is now, or None when it is gone."""
    return _Reader(root).read(path)


def is_in_use(entry: str) -> bool:
    """Return whether a process of this host holds the entry loaded."""
    try:
        descriptor = os.open(entry, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        return not flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)


class _Reader:
    """Reads entries; files that several entries share by hard links count once."""

    def __init__(self, root: str) -> None:
        self._usage = Usage(root)
        self._linked: set[tuple[int, int]] = set()

    def read(self, path: str) -> Entry | None:
        try:
            files = _files(path)
            own = os.lstat(path)
        except OSError:
            return None
        compiler_dir, _, module = path.rpartition("/")
        compiler = os.path.basename(compiler_dir).removeprefix(layout.COMPILER_PREFIX)
        lock = _find_lock(path, files)
        log = _text(f"{path}/{layout.LOG}", _LOG_BYTES) if layout.LOG in files else ""
        state = state_of(files, lock, log)
        hits, counted = self._usage.hits(path)
        times = [files[name].st_mtime for name in (layout.STAMP, layout.DONE, layout.NEFF) if name in files]
        if layout.NEFF in files:
            times.append(files[layout.NEFF].st_atime)
        made = _made(files, own)
        return Entry(
            path=path,
            compiler=compiler,
            module=module,
            state=state,
            size_bytes=self._size(path, files),
            made_unix_s=made,
            used_unix_s=max([counted, *times], default=made) or made,
            hits=hits,
            flags=_flags(f"{path}/{layout.FLAGS}") if layout.FLAGS in files else (),
            name=_network_name(f"{path}/{layout.NEFF}") if state is State.DONE else "",
            ours=compiler.rpartition("+")[2].startswith(COMMIT_PREFIX),
            note=note_of(state, lock, log, files),
            lock=lock,
        )

    def _size(self, path: str, files: dict[str, os.stat_result], depth: int = 0) -> int:
        total = 0
        for name, found in files.items():
            if found.st_nlink > 1 and not _is_directory(found):
                key = (found.st_dev, found.st_ino)
                if key in self._linked:
                    continue
                self._linked.add(key)
            total += _allocated(found)
            if _is_directory(found) and depth < _MAX_DEPTH:
                total += self._size_below(f"{path}/{name}", depth + 1)
        return total

    def _size_below(self, path: str, depth: int) -> int:
        try:
            return self._size(path, _files(path), depth)
        except OSError:
            return 0


def _root_names(root: str) -> list[str] | None:
    try:
        names = os.listdir(root)
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        raise NotACacheError(f"{root} is not a compile cache: it is a file", _HINT) from error
    except OSError as error:
        raise NotACacheError(f"cannot read the compile cache {root}: {error.strerror}", _HINT) from error
    signs = (layout.is_compiler_dir, layout.is_oldest_layout, {layout.TRASH, layout.CACHE_TAG}.__contains__)
    known = any(sign(name) for name in names for sign in signs)
    if names and not known and set(names) != {layout.ROOT_LOCK}:
        raise NotACacheError(
            f"{root} is not a compile cache: it holds other things and no {layout.COMPILER_PREFIX}* directory",
            _HINT,
        )
    return names


_HINT = "'neuron-cache path' says which directory is meant and why; --cache-dir names another"


def _children(path: str) -> Iterator[str]:
    try:
        names = sorted(os.listdir(path))
    except OSError:
        return
    for name in names:
        yield f"{path}/{name}"


def _files(path: str) -> dict[str, os.stat_result]:
    with os.scandir(path) as items:
        return {item.name: item.stat(follow_symlinks=False) for item in items}


def _is_directory(found: os.stat_result) -> bool:
    return found.st_mode & 0o170000 == 0o040000


def _is_real_directory(path: str) -> bool:
    try:
        return _is_directory(os.lstat(path))
    except OSError:
        return False


def _allocated(found: os.stat_result) -> int:
    return 0 if _is_directory(found) else found.st_blocks * 512


def _find_lock(path: str, files: dict[str, os.stat_result]) -> LockState | None:
    for name in files:
        if name.endswith(layout.LOCK_SUFFIX):
            return examine_lock(f"{path}/{name}")
    return None


def _made(files: dict[str, os.stat_result], own: os.stat_result) -> float:
    for name in (layout.DONE, layout.NEFF, layout.LOG, *layout.GRAPH_NAMES):
        if name in files:
            return files[name].st_mtime
    return own.st_mtime


def _flags(path: str) -> tuple[str, ...]:
    try:
        stored = json.loads(_text(path, _MAX_FLAGS_BYTES))
    except (ValueError, RecursionError):
        return ()
    return tuple(str(flag) for flag in stored) if isinstance(stored, list) else ()


def _network_name(path: str) -> str:
    try:
        return read_header(_bytes(path, HEADER_BYTES)).name
    except NeffError:
        return ""


def _text(path: str, most_bytes: int) -> str:
    return _bytes(path, most_bytes).decode("utf-8", "replace")


def _bytes(path: str, most_bytes: int) -> bytes:
    """Return the start of a file without changing its atime, which says when it was last used."""
    for option in (os.O_NOATIME, 0):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | option)
        except PermissionError:
            continue
        except OSError:
            return b""
        try:
            return os.read(descriptor, most_bytes)
        except OSError:
            return b""
        finally:
            os.close(descriptor)
    return b""
