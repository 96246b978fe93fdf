"""The two ends of a sync: what entries are read from and what they are put into, and how a directory is either."""

from __future__ import annotations

import itertools
import os
import shutil
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from neurontools.cache import verify
from neurontools.cache.entry_io import hold, let_go
from neurontools.cache.entry_reader import EntryReader
from neurontools.cache.files import sync_directory
from neurontools.cache.generations import SENTINEL, Generation
from neurontools.cache.placing import place_entry, place_file
from neurontools.cache.states import State
from neurontools.cache.sync.sync_plan import carries_of, in_writing_order, relative_path
from neurontools.cache.walk import Place

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from neurontools.cache.entries import Entry

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class NotMovedError(Exception):
    """An entry is left out after all; the text says why."""


class Source(Protocol):
    """Where entries come from: a root."""

    root: str

    def opened(self, entry: Entry) -> AbstractContextManager[tuple[str, Place]]:
        """Give a directory that is a root, and the place of the entry in it, as it is now."""

    def copy(self, entry: Entry, directory: str) -> None:
        """Make a directory with the files of an entry that are moved, to disk."""


class Target(Protocol):
    """Where entries go."""

    def put(self, entry: Entry, source: Source) -> bool:
        """Take an entry; return False when it is there. NotMovedError says that it cannot be taken."""


class LocalSource:
    """A root on a file system. What is read is held, so that no prune takes it away meanwhile."""

    def __init__(self, root: str) -> None:
        self.root = root

    @contextmanager
    def opened(self, entry: Entry) -> Iterator[tuple[str, Place]]:
        """Give the root and the entry's place in it.

        Raises:
            NotMovedError: the entry has changed or is gone.
        """
        place = Place(entry.path, entry.generation, entry.compiler, entry.module)
        held = hold(entry.path)
        try:
            found = EntryReader(self.root).read(place, details=False)
            if found is None:
                raise NotMovedError("gone meanwhile")
            if found.state is not entry.state:
                raise NotMovedError(f"{found.state.value} meanwhile")
            yield self.root, place
        finally:
            let_go(held)

    def copy(self, entry: Entry, directory: str) -> None:
        """Copy the files of an entry.

        Raises:
            NotMovedError: it has changed, is gone, or holds what is no plain file.
            OSError: the copy cannot be written.
        """
        with self.opened(entry) as (_, place):
            os.makedirs(os.path.dirname(directory) if _is_file(entry) else directory)
            for path in files_to_move(place.path, entry):
                target = directory + path.removeprefix(place.path)
                os.makedirs(os.path.dirname(target), exist_ok=True)
                _copy_plain(path, target)


class LocalTarget:
    """A root on a file system. `aside` is a directory in it that nobody else uses."""

    def __init__(self, root: str, aside: str) -> None:
        self._root = root
        self._aside = aside
        self._numbers = itertools.count()

    def put(self, entry: Entry, source: Source) -> bool:
        """Copy an entry, check the copy, and let it appear at once.

        Raises:
            NotMovedError: it is damaged, or compiled by a process just now.
            OSError: it cannot be written.
        """
        relative = relative_path(source.root, entry)
        root = f"{self._aside}/{next(self._numbers)}"
        staged = f"{root}/{relative}"
        try:
            source.copy(entry, staged)
            check_sound(root, Place(staged, entry.generation, entry.compiler, entry.module), entry.state)
            became = self._place(entry, staged, relative)
        finally:
            shutil.rmtree(root, ignore_errors=True)
        if became == "locked":
            raise NotMovedError("a process compiles it there")
        if became == "imported":
            sync_directory(os.path.dirname(f"{self._root}/{relative}"))
        return became == "imported"

    def _place(self, entry: Entry, staged: str, relative: str) -> str:
        if _is_file(entry):
            return place_file(staged, f"{self._root}/{relative}")
        for directory, _, _ in os.walk(staged):
            sync_directory(directory)
        fill = entry.state is State.DONE and entry.generation is Generation.CURRENT
        names = in_writing_order(os.listdir(staged)) if fill else ()
        became = place_entry(self._root, staged, relative, names, fill=fill)
        if became == "present" and entry.generation is Generation.VLLM:
            _refuse_unfinished(f"{self._root}/{relative}")
        return became


def files_to_move(path: str, entry: Entry) -> list[str]:
    """Return the files of an entry that are moved, in the order of writing.

    Args:
        path: where the entry is now: a directory, or its one file.
        entry: as it was chosen.
    """
    if _is_file(entry):
        return [path]
    wanted = carries_of(entry)
    inside = entry.generation is not Generation.CURRENT
    names = _names_below(path) if inside else os.listdir(path)
    return [f"{path}/{name}" for name in in_writing_order([name for name in names if wanted(name)])]


def _is_file(entry: Entry) -> bool:
    return entry.generation is Generation.TORCHNEURON


def _refuse_unfinished(path: str) -> None:
    if not os.path.exists(f"{path}/{SENTINEL}"):
        raise NotMovedError("an unfinished one is there; its own stack completes or replaces it")


def _names_below(path: str) -> list[str]:
    """Return the names of all that is below a directory and is none, as `directory/name`; links are not followed."""
    return [
        os.path.relpath(f"{directory}/{name}", path)
        for directory, inner, names in os.walk(path)
        for name in (*names, *(link for link in inner if os.path.islink(f"{directory}/{link}")))
    ]


def check_sound(root: str, place: Place, state: State) -> None:
    """Refuse an entry that `verify` finds damaged, or that is not in the state in which it was when it was chosen.

    Raises:
        NotMovedError: it is.
    """
    _, findings = verify.check(root, [place])
    reason = verify.reason_against(findings)
    if reason:
        raise NotMovedError(reason)
    found = EntryReader(root).read(place, details=False)
    if found is None or found.state is not state:
        raise NotMovedError("it changed while it was read")


def _copy_plain(path: str, target: str) -> None:
    with os.fdopen(os.open(path, _OPEN), "rb") as file, open(target, "xb") as copy:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise NotMovedError(f"{os.path.basename(path)} is no plain file")
        shutil.copyfileobj(file, copy, 1 << 20)
        copy.flush()
        os.fsync(copy.fileno())
