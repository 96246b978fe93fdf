"""One entry as it is now: state, size, age and use, read from its files and nothing else."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from neurontools.cache import layout
from neurontools.cache.generations import NEFF_SUFFIX, SENTINEL, Generation
from neurontools.cache.states import State, note_of, state_of
from neurontools.cache.tree import LOCAL, tree_of
from neurontools.cache.usage import Usage
from neurontools.compiler.neff_header import HEADER_BYTES, NeffError, read_header
from neurontools.compiler.version import COMMIT_PREFIX

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from neurontools.cache.locks import LockState
    from neurontools.cache.tree import Tree
    from neurontools.cache.walk import Place

_MAX_FLAGS_BYTES = 1 << 16
_LOG_BYTES = 1 << 14
_MAX_DEPTH = 8
_KIND_MASK, _KIND_DIRECTORY = 0o170000, 0o040000
_NEVER = (0, 0.0)
_TIMED = (layout.STAMP, layout.DONE, layout.NEFF)


@dataclass(frozen=True, slots=True)
class Entry:
    """One compiled graph. `size_bytes` are allocated on disk; times are Unix seconds; `hits` are this user's.

    `path` is a directory, a file in TorchNeuron's layout. `flags` and `name` are empty where they were not read.
    `inode` and `changed_ns` (mtime of the path) tell whether it is still the one that was read.
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
    generation: Generation = Generation.CURRENT
    pinned: bool = False
    tags: tuple[str, ...] = ()
    inode: int = 0
    changed_ns: int = 0


@dataclass(slots=True)
class _Files:
    """The files of an entry by name; those of the oldest layout lie deeper and are listed by their last name."""

    by_name: dict[str, os.stat_result] = field(default_factory=dict)
    size_bytes: int = 0


class EntryReader:
    """Reads entries; files that several entries share by hard links count once."""

    def __init__(self, root: str, tree: Tree | None = None) -> None:
        self._tree = tree_of(root) if tree is None else tree
        self._usage = Usage(root)
        self._hits: dict[str, dict[str, tuple[int, float]]] | None = None
        self._linked: set[tuple[int, int]] = set()

    def for_many(self) -> Self:
        """Read the counters of a whole directory at once, and only once; return this reader."""
        self._hits = {}
        return self

    def read(self, place: Place, *, details: bool = True) -> Entry | None:
        """Return the entry at a place, or None when it is gone or cannot be read.

        Args:
            place: where.
            details: read the compiler's flags and the network's name, too.
        """
        try:
            own = self._tree.lstat(place.path)
            files = self._files(place, own)
        except OSError:
            return None
        if place.generation is Generation.CURRENT:
            return self._current(place, own, files, details=details)
        return self._foreign(place, own, files, details=details)

    def _current(self, place: Place, own: os.stat_result, files: _Files, *, details: bool) -> Entry:
        path, found = place.path, files.by_name
        lock = _find_lock(self._tree, path, found)
        log = self._tree.read_ends_text(f"{path}/{layout.LOG}", _LOG_BYTES) if layout.LOG in found else ""
        state = state_of(found, lock, log)
        made = _made(found, own)
        hits, used = self._used(place, found, made)
        return Entry(
            path=path,
            compiler=place.compiler,
            module=place.module,
            state=state,
            size_bytes=files.size_bytes,
            made_unix_s=made,
            used_unix_s=used,
            hits=hits,
            flags=read_stored_flags(path, self._tree) if details and layout.FLAGS in found else (),
            name=_network_name(self._tree, f"{path}/{layout.NEFF}")
            if details and state is State.DONE
            else "",
            ours=place.compiler.rpartition("+")[2].startswith(COMMIT_PREFIX),
            note=note_of(state, lock, log, found),
            lock=lock,
            pinned=layout.PIN in found,
            tags=_tags(found),
            inode=own.st_ino,
            changed_ns=own.st_mtime_ns,
        )

    def _used(self, place: Place, found: dict[str, os.stat_result], made: float) -> tuple[int, float]:
        hits, used = self._counted(place)
        for name in _TIMED:
            if name in found:
                used = max(used, found[name].st_mtime)
        if layout.NEFF in found:
            used = max(used, found[layout.NEFF].st_atime)
        return hits, used or made

    def _counted(self, place: Place) -> tuple[int, float]:
        if self._hits is None:
            return self._usage.hits(place.path)
        directory, _, name = place.path.rpartition("/")
        known = self._hits.get(directory)
        if known is None:
            known = self._hits[directory] = self._usage.hits_below(directory)
        return known.get(name, _NEVER)

    def _foreign(self, place: Place, own: os.stat_result, files: _Files, *, details: bool) -> Entry:
        found = files.by_name
        neff = next((name for name in sorted(found) if name.endswith(NEFF_SUFFIX)), "")
        state, note = _foreign_state(place.generation, found, neff)
        changed = max((item.st_mtime for item in found.values()), default=own.st_mtime)
        made = found[neff].st_mtime if neff else changed
        seen = [max(item.st_mtime, item.st_atime) for item in found.values()]
        return Entry(
            path=place.path,
            compiler=place.compiler,
            module=place.module,
            state=state,
            size_bytes=files.size_bytes,
            made_unix_s=made,
            used_unix_s=max(seen, default=made),
            hits=self._counted(place)[0],
            flags=(),
            name=_network_name(self._tree, neff) if details and neff else "",
            ours=False,
            note=note,
            lock=None,
            generation=place.generation,
            pinned=layout.PIN in found,
            tags=_tags(found),
            inode=own.st_ino,
            changed_ns=own.st_mtime_ns,
        )

    def _files(self, place: Place, own: os.stat_result) -> _Files:
        files = _Files()
        if place.generation is Generation.CURRENT:
            self._add_flat(files, place.path)
        elif place.generation is Generation.TORCHNEURON:
            files.by_name[place.path] = own
            files.size_bytes = allocated(own)
        else:
            self._add_deep(files, place.path, 0, named=True)
        return files

    def _add_flat(self, files: _Files, path: str) -> None:
        by_name = files.by_name
        size = 0
        with self._tree.scandir(path) as items:
            for item in items:
                found = by_name[item.name] = item.stat(follow_symlinks=False)
                if found.st_mode & _KIND_MASK == _KIND_DIRECTORY:
                    self._add_below(files, item.path, 1)
                elif found.st_nlink == 1 or self._is_first(found):
                    size += allocated(found)
        files.size_bytes += size

    def _add_deep(self, files: _Files, path: str, depth: int, *, named: bool) -> None:
        with self._tree.scandir(path) as items:
            for item in items:
                found = item.stat(follow_symlinks=False)
                if found.st_mode & _KIND_MASK == _KIND_DIRECTORY:
                    self._add_below(files, item.path, depth + 1, named=named)
                    continue
                if named:
                    files.by_name[item.path if item.name.endswith(NEFF_SUFFIX) else item.name] = found
                if found.st_nlink == 1 or self._is_first(found):
                    files.size_bytes += allocated(found)

    def _add_below(self, files: _Files, path: str, depth: int, *, named: bool = False) -> None:
        if depth > _MAX_DEPTH:
            return
        with suppress(OSError):
            self._add_deep(files, path, depth, named=named)

    def _is_first(self, found: os.stat_result) -> bool:
        key = (found.st_dev, found.st_ino)
        first = key not in self._linked
        self._linked.add(key)
        return first


def allocated(found: os.stat_result) -> int:
    """Return the bytes that a file occupies on disk; its length in a bucket, where there are no blocks."""
    blocks: int | None = found.st_blocks
    return found.st_size if blocks is None else blocks * 512


def details_of(places: Sequence[Place]) -> Iterator[tuple[str, int]]:
    """Yield which files, and how much of them, the details of entries are read from."""
    for place in places:
        if place.generation is Generation.CURRENT:
            yield f"{place.path}/{layout.FLAGS}", _MAX_FLAGS_BYTES
            yield f"{place.path}/{layout.NEFF}", HEADER_BYTES
        elif place.generation is Generation.TORCHNEURON:
            yield place.path, HEADER_BYTES


def read_stored_flags(entry: str, tree: Tree = LOCAL) -> tuple[str, ...]:
    """Return the compiler's flags that an entry remembers, () where it remembers none that can be read."""
    try:
        stored = json.loads(tree.read_start(f"{entry}/{layout.FLAGS}", _MAX_FLAGS_BYTES))
    except (ValueError, RecursionError):
        return ()
    return tuple(str(flag) for flag in stored) if isinstance(stored, list) else ()


def _tags(files: dict[str, os.stat_result]) -> tuple[str, ...]:
    prefix = layout.TAG_PREFIX
    return tuple(sorted([name[len(prefix) :] for name in files if name.startswith(prefix)]))


def _foreign_state(generation: Generation, files: dict[str, os.stat_result], neff: str) -> tuple[State, str]:
    if generation is Generation.VLLM:
        done = SENTINEL in files
        return (State.DONE, "") if done else (State.INTERRUPTED, f"no {SENTINEL}")
    if neff and files[neff].st_size > 0:
        return State.DONE, ""
    return (State.INTERRUPTED, "the neff is empty") if neff else (State.TODO, "")


def _find_lock(tree: Tree, path: str, files: dict[str, os.stat_result]) -> LockState | None:
    for name in files:
        if name.endswith(layout.LOCK_SUFFIX):
            return tree.examine_lock(f"{path}/{name}")
    return None


def _made(files: dict[str, os.stat_result], own: os.stat_result) -> float:
    for name in (layout.DONE, layout.NEFF, layout.LOG, *layout.GRAPH_NAMES):
        if name in files:
            return files[name].st_mtime
    return own.st_mtime


def _network_name(tree: Tree, path: str) -> str:
    try:
        return read_header(tree.read_start(path, HEADER_BYTES)).name
    except NeffError:
        return ""
