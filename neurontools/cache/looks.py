"""One look at the files of an entry: what they are, how large, and the state that they show."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.cache import layout
from neurontools.cache.generations import NEFF_SUFFIX, SENTINEL, Generation
from neurontools.cache.states import State, note_of, state_of

if TYPE_CHECKING:
    import os

    from neurontools.cache.locks import LockState
    from neurontools.cache.tree import Tree
    from neurontools.cache.walk import Place

_LOG_BYTES = 1 << 14
_MAX_DEPTH = 8
_KIND_MASK, _KIND_DIRECTORY = 0o170000, 0o040000


@dataclass(slots=True)
class Look:
    """What the files of an entry show.

    `files` are told by name; those of the oldest layout lie deeper: a NEFF by its path, others by their last name.
    `neff` is the key of a foreign entry's NEFF. `size_bytes` are allocated on disk.
    """

    files: dict[str, os.stat_result]
    size_bytes: int
    state: State = State.TODO
    note: str = ""
    lock: LockState | None = None
    neff: str = ""


class Looker:
    """Looks at entries of a root; files that several entries share by hard links count once."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._linked: set[tuple[int, int]] = set()

    def look(self, place: Place) -> Look:
        """Return what the files at a place show.

        Raises:
            OSError: it is gone or cannot be read.
        """
        if place.generation is Generation.CURRENT:
            return self._look_at_current(place.path)
        return self._look_at_foreign(place)

    def _look_at_current(self, path: str) -> Look:
        look = self._flat(path)
        files = look.files
        for name in files:
            if name.endswith(layout.LOCK_SUFFIX):
                look.lock = self._tree.examine_lock(f"{path}/{name}")
                break
        log = self._tree.read_ends_text(f"{path}/{layout.LOG}", _LOG_BYTES) if layout.LOG in files else ""
        look.state = state_of(files, look.lock, log)
        if look.state is not State.DONE:
            look.note = note_of(look.state, look.lock, log, files)
        return look

    def _look_at_foreign(self, place: Place) -> Look:
        look = Look({}, 0)
        if place.generation is Generation.TORCHNEURON:
            found = look.files[place.path] = self._tree.lstat(place.path)
            look.size_bytes = allocated(found)
        else:
            self._add_deep(look, place.path, 0, named=True)
        look.neff = next((name for name in sorted(look.files) if name.endswith(NEFF_SUFFIX)), "")
        look.state, look.note = _foreign_state(place.generation, look)
        return look

    def _flat(self, path: str) -> Look:
        # The inner loop of every scan: of 100,000 entries each microsecond here is half a second.
        look = Look({}, 0)
        files, size = look.files, 0
        with self._tree.scandir(path) as items:
            for item in items:
                found = files[item.name] = item.stat(follow_symlinks=False)
                if found.st_mode & _KIND_MASK == _KIND_DIRECTORY:
                    self._add_below(look, item.path, 1)
                elif found.st_nlink == 1 or self._is_first(found):
                    size += allocated(found)
        look.size_bytes += size
        return look

    def _add_deep(self, look: Look, path: str, depth: int, *, named: bool) -> None:
        with self._tree.scandir(path) as items:
            for item in items:
                found = item.stat(follow_symlinks=False)
                if found.st_mode & _KIND_MASK == _KIND_DIRECTORY:
                    self._add_below(look, item.path, depth + 1, named=named)
                    continue
                if named:
                    look.files[item.path if item.name.endswith(NEFF_SUFFIX) else item.name] = found
                if found.st_nlink == 1 or self._is_first(found):
                    look.size_bytes += allocated(found)

    def _add_below(self, look: Look, path: str, depth: int, *, named: bool = False) -> None:
        if depth > _MAX_DEPTH:
            return
        with suppress(OSError):
            self._add_deep(look, path, depth, named=named)

    def _is_first(self, found: os.stat_result) -> bool:
        key = (found.st_dev, found.st_ino)
        first = key not in self._linked
        self._linked.add(key)
        return first


def allocated(found: os.stat_result) -> int:
    """Return the bytes that a file occupies on disk; its length in a bucket, where there are no blocks."""
    blocks: int | None = found.st_blocks
    return found.st_size if blocks is None else blocks * 512


def _foreign_state(generation: Generation, look: Look) -> tuple[State, str]:
    if generation is Generation.VLLM:
        done = SENTINEL in look.files
        return (State.DONE, "") if done else (State.INTERRUPTED, f"no {SENTINEL}")
    if look.neff and look.files[look.neff].st_size > 0:
        return State.DONE, ""
    return (State.INTERRUPTED, "the neff is empty") if look.neff else (State.TODO, "")
