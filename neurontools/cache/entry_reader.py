"""One entry as it is now: state, size, age and use, read from its files and nothing else."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from neurontools.cache import layout
from neurontools.cache.generations import Generation
from neurontools.cache.looks import Looker
from neurontools.cache.states import State
from neurontools.cache.tree import LOCAL, tree_of
from neurontools.cache.usage import Usage
from neurontools.compiler.neff_header import HEADER_BYTES, NeffError, read_header
from neurontools.compiler.version import COMMIT_PREFIX

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from neurontools.cache.locks import LockState
    from neurontools.cache.looks import Look
    from neurontools.cache.tree import Tree
    from neurontools.cache.walk import Place

_MAX_FLAGS_BYTES = 1 << 16
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


class EntryReader:
    """Reads entries; files that several entries share by hard links count once."""

    def __init__(self, root: str, tree: Tree | None = None) -> None:
        self._tree = tree_of(root) if tree is None else tree
        self._looker = Looker(self._tree)
        self._usage = Usage(root)
        self._hits: dict[str, dict[str, tuple[int, float]]] | None = None

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
            look = self._looker.look(place)
        except OSError:
            return None
        current = place.generation is Generation.CURRENT
        if current:
            made = _made(look.files, own)
            hits, used = self._used(place, look.files, made)
        else:
            made = look.files[look.neff].st_mtime if look.neff else _last_change(look.files, own)
            hits, used = self._counted(place)[0], _last_seen(look.files, made)
        flags, name = self._details(place, look) if details else ((), "")
        return Entry(
            path=place.path,
            compiler=place.compiler,
            module=place.module,
            state=look.state,
            size_bytes=look.size_bytes,
            made_unix_s=made,
            used_unix_s=used,
            hits=hits,
            flags=flags,
            name=name,
            ours=current and place.compiler.rpartition("+")[2].startswith(COMMIT_PREFIX),
            note=look.note,
            lock=look.lock,
            generation=place.generation,
            pinned=layout.PIN in look.files,
            tags=_tags(look.files),
            inode=own.st_ino,
            changed_ns=own.st_mtime_ns,
        )

    def _details(self, place: Place, look: Look) -> tuple[tuple[str, ...], str]:
        """Return flags and name of the network."""
        if place.generation is not Generation.CURRENT:
            return (), _network_name(self._tree, look.neff) if look.neff else ""
        flags = (read_stored_flags(place.path, self._tree) or ()) if layout.FLAGS in look.files else ()
        done = look.state is State.DONE
        return flags, _network_name(self._tree, f"{place.path}/{layout.NEFF}") if done else ""

    def _used(self, place: Place, files: dict[str, os.stat_result], made: float) -> tuple[int, float]:
        hits, used = self._counted(place)
        for name in _TIMED:
            if name in files:
                used = max(used, files[name].st_mtime)
        if layout.NEFF in files:
            used = max(used, files[layout.NEFF].st_atime)
        return hits, used or made

    def _counted(self, place: Place) -> tuple[int, float]:
        if self._hits is None:
            return self._usage.hits(place.path)
        directory, _, name = place.path.rpartition("/")
        known = self._hits.get(directory)
        if known is None:
            known = self._hits[directory] = self._usage.hits_below(directory)
        return known.get(name, _NEVER)


def details_of(places: Sequence[Place]) -> Iterator[tuple[str, int]]:
    """Yield which files, and how much of them, the details of entries are read from."""
    for place in places:
        if place.generation is Generation.CURRENT:
            yield f"{place.path}/{layout.FLAGS}", _MAX_FLAGS_BYTES
            yield f"{place.path}/{layout.NEFF}", HEADER_BYTES
        elif place.generation is Generation.TORCHNEURON:
            yield place.path, HEADER_BYTES


def read_stored_flags(entry: str, tree: Tree = LOCAL) -> tuple[str, ...] | None:
    """Return the compiler's flags that an entry remembers, None where they cannot be read or are no list of texts."""
    try:
        stored = json.loads(tree.read_start(f"{entry}/{layout.FLAGS}", _MAX_FLAGS_BYTES))
    except (ValueError, RecursionError):
        return None
    is_list = isinstance(stored, list) and all(isinstance(flag, str) for flag in stored)
    return tuple(stored) if is_list else None


def _tags(files: dict[str, os.stat_result]) -> tuple[str, ...]:
    prefix = layout.TAG_PREFIX
    return tuple(sorted([name[len(prefix) :] for name in files if name.startswith(prefix)]))


def _made(files: dict[str, os.stat_result], own: os.stat_result) -> float:
    for name in (layout.DONE, layout.NEFF, layout.LOG, *layout.GRAPH_NAMES):
        if name in files:
            return files[name].st_mtime
    return own.st_mtime


def _last_change(files: dict[str, os.stat_result], own: os.stat_result) -> float:
    return max((found.st_mtime for found in files.values()), default=own.st_mtime)


def _last_seen(files: dict[str, os.stat_result], made: float) -> float:
    return max((max(found.st_mtime, found.st_atime) for found in files.values()), default=made)


def _network_name(tree: Tree, path: str) -> str:
    try:
        return read_header(tree.read_start(path, HEADER_BYTES)).name
    except NeffError:
        return ""
