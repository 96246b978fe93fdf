"""Entries of a cache root, read from their files. Unknown names are counted and skipped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from neurontools.base.json_reader import load_json
from neurontools.cache import layouts
from neurontools.cache.entry_files import FilesInspector, State
from neurontools.cache.events import Usage
from neurontools.cache.layouts import CacheLayout
from neurontools.cache.location import ARGUMENT_SOURCE
from neurontools.cache.walk import (
    LOCAL,
    CacheTree,
    EntryRef,
    NotACacheError,
    RegistryRecord,
    Walk,
    exists,
    missing_cache,
    open_tree,
    parse_entry_path,
    walk,
    with_progress,
)
from neurontools.compiler.neff_header import HEADER_BYTES, NeffError, read_header
from neurontools.compiler.options import COMMIT_PREFIX

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

    from neurontools.cache.entry_files import EntryFiles
    from neurontools.cache.location import Location
    from neurontools.cache.locks import LockState


_MAX_FLAGS_BYTES = 1 << 16
_NEVER = (0, 0.0)
_WITH_HEADERS = frozenset({CacheLayout.CURRENT, CacheLayout.TORCHNEURON})
_TIMED = (layouts.STAMP, layouts.DONE, layouts.NEFF)
__all__ = ["Entry", "NotACacheError", "Scan", "read_entry", "scan", "scan_location"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One compiled graph. `size_bytes` are allocated on disk; times are Unix seconds; `hits` are this user's.

    `path` is a directory, a file in TorchNeuron's layout. `flags` and `name` are empty where they were not read.
    `inode` and `changed_ns` (mtime of the path) identify the version that was read.
    """

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
    layout: CacheLayout = CacheLayout.CURRENT
    pinned: bool = False
    tags: tuple[str, ...] = ()
    inode: int = 0
    changed_ns: int = 0

    @property
    def place(self) -> EntryRef:
        """The reference to this entry."""
        return EntryRef(self.path, self.layout, self.compiler, self.module)


class EntryReader:
    """Reads entries; files that several entries share by hard links count once."""

    def __init__(self, root: str, tree: CacheTree | None = None) -> None:
        self._tree = open_tree(root) if tree is None else tree
        self._inspector = FilesInspector(self._tree)
        self._usage = Usage(root)
        self._hits: dict[str, dict[str, tuple[int, float]]] | None = None

    def for_many(self) -> Self:
        """Read the counters of a whole directory at once, and only once; return this reader."""
        self._hits = {}
        return self

    def read(self, place: EntryRef, *, details: bool = True) -> Entry | None:
        """Return an entry, None if it is gone or cannot be read.

        Args:
            place: the entry.
            details: read the compiler's flags and the network's name, too.
        """
        try:
            own = self._tree.lstat(place.path)
            content = self._inspector.inspect(place)
        except OSError:
            return None
        current = place.layout is CacheLayout.CURRENT
        if current:
            made = _creation_time(content.files, own)
            hits, used = self._hits_and_last_use(place, content.files, made)
        else:
            files = content.files.values()
            last_change = max((status.st_mtime for status in files), default=own.st_mtime)
            made = content.files[content.neff].st_mtime if content.neff else last_change
            hits = self._read_counter(place)[0]
            used = max((max(status.st_mtime, status.st_atime) for status in files), default=made)
        flags, name = self._details(place, content) if details else ((), "")
        return Entry(
            path=place.path,
            compiler=place.compiler,
            module=place.module,
            state=content.state,
            size_bytes=content.size_bytes,
            made_unix_s=made,
            used_unix_s=used,
            hits=hits,
            flags=flags,
            name=name,
            ours=current and place.compiler.rpartition("+")[2].startswith(COMMIT_PREFIX),
            note=content.note,
            lock=content.lock,
            layout=place.layout,
            pinned=layouts.PIN in content.files,
            tags=_tags(content.files),
            inode=own.st_ino,
            changed_ns=own.st_mtime_ns,
        )

    def _details(self, place: EntryRef, content: EntryFiles) -> tuple[tuple[str, ...], str]:
        """Return the compiler flags and the name of the network."""
        if place.layout is not CacheLayout.CURRENT:
            return (), _network_name(self._tree, content.neff) if content.neff else ""
        flags = (read_stored_flags(place.path, self._tree) or ()) if layouts.FLAGS in content.files else ()
        done = content.state is State.DONE
        return flags, _network_name(self._tree, place.file()) if done else ""

    def _hits_and_last_use(
        self, place: EntryRef, files: dict[str, os.stat_result], made: float
    ) -> tuple[int, float]:
        hits, used = self._read_counter(place)
        for name in _TIMED:
            if name in files:
                used = max(used, files[name].st_mtime)
        if layouts.NEFF in files:
            used = max(used, files[layouts.NEFF].st_atime)
        return hits, used or made

    def _read_counter(self, place: EntryRef) -> tuple[int, float]:
        if self._hits is None:
            return self._usage.hits(place.path)
        directory, _, name = place.path.rpartition("/")
        known = self._hits.get(directory)
        if known is None:
            known = self._hits[directory] = self._usage.hits_below(directory)
        return known.get(name, _NEVER)


def detail_files(places: Sequence[EntryRef]) -> Iterator[tuple[str, int]]:
    """Yield the files that contain the details of entries, and how many bytes of each are read."""
    for place in places:
        if place.layout is CacheLayout.CURRENT:
            yield place.file(layouts.FLAGS), _MAX_FLAGS_BYTES
        if place.layout in _WITH_HEADERS:
            yield place.file(), HEADER_BYTES


def read_stored_flags(entry: str, tree: CacheTree = LOCAL) -> tuple[str, ...] | None:
    """Return the compiler flags stored in an entry, None if they are unreadable or not a list of strings."""
    try:
        stored = load_json(tree.read_start(f"{entry}/{layouts.FLAGS}", _MAX_FLAGS_BYTES))
    except ValueError:
        return None
    is_list = isinstance(stored, list) and all(isinstance(flag, str) for flag in stored)
    return tuple(stored) if is_list else None


def _tags(files: dict[str, os.stat_result]) -> tuple[str, ...]:
    prefix = layouts.TAG_PREFIX
    return tuple(sorted([name[len(prefix) :] for name in files if name.startswith(prefix)]))


def _creation_time(files: dict[str, os.stat_result], own: os.stat_result) -> float:
    for name in (layouts.DONE, layouts.NEFF, layouts.LOG, *layouts.GRAPH_NAMES):
        if name in files:
            return files[name].st_mtime
    return own.st_mtime


def _network_name(tree: CacheTree, path: str) -> str:
    try:
        return read_header(tree.read_start(path, HEADER_BYTES)).name
    except NeffError:
        return ""


@dataclass(frozen=True, slots=True)
class Scan:
    """The content of a root. `exists` is False for a root that was not created yet.

    `skipped` counts names of no known layout, `unread` counts entries and directories that cannot be read.
    """

    root: str
    exists: bool
    entries: tuple[Entry, ...]
    skipped: int
    registry: tuple[RegistryRecord, ...] = ()
    unread: int = 0


def scan(root: str, *, details: bool = True, on_listed: Callable[[int], None] | None = None) -> Scan:
    """Return the content of a root.

    Args:
        root: the directory, or `s3://bucket/prefix`.
        details: read the compiler's flags and the network's name of each entry, too.
        on_listed: called periodically with the number of objects listed in a bucket.

    Raises:
        NotACacheError: it exists and is not a directory, cannot be read, or is not a compile cache.
    """
    return scan_walk(walk(root, on_listed), details=details)


def scan_walk(
    found: Walk, *, details: bool = True, on_read: Callable[[int, int], None] | None = None
) -> Scan:
    """Return the content of a root from its walk; see `scan`.

    Args:
        found: the walk.
        details: as for `scan`.
        on_read: called periodically with the number of entries read, and of all.
    """
    if details:
        found.tree.prefetch(detail_files(found.places))
    reader = EntryReader(found.root, found.tree).for_many()
    read = [reader.read(place, details=details) for place in with_progress(found.places, on_read)]
    entries = tuple(entry for entry in read if entry is not None)
    missed = (place for place, entry in zip(found.places, read, strict=True) if entry is None)
    lost = sum(exists(found.tree, place.path) for place in missed)
    return Scan(
        found.root,
        exists=found.exists,
        entries=entries,
        skipped=found.skipped,
        registry=tuple(found.registry),
        unread=len(found.unread) + lost,
    )


def scan_location(
    location: Location, *, details: bool = True, on_listed: Callable[[int], None] | None = None
) -> Scan:
    """Return the content of a location's root, which must exist only if the command line names it; see `scan`.

    Raises:
        NotACacheError: as `scan`, or the command line names a directory that does not exist.
    """
    found = scan(location.root, details=details, on_listed=on_listed)
    check_root_exists(location, found)
    return found


def check_root_exists(location: Location, found: Scan | Walk) -> None:
    """Reject a missing root if the command line names it.

    Raises:
        NotACacheError: the command line names a root that does not exist.
    """
    if not found.exists and location.source == ARGUMENT_SOURCE:
        raise missing_cache(location.root)


def read_entry(root: str, path: str, *, details: bool = True) -> Entry | None:
    """Return an entry as it is now, None if it is gone or not an entry."""
    place = parse_entry_path(root, path)
    return EntryReader(root).read(place, details=details) if place is not None else None
