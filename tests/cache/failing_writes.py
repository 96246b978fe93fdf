"""The k-th change of the file system fails, or the process dies there: for tests that try every k."""

from __future__ import annotations

import builtins
import errno
import os
import signal
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_WRITERS = (
    "write",
    "fsync",
    "replace",
    "rename",
    "link",
    "symlink",
    "mkdir",
    "unlink",
    "rmdir",
    "utime",
    "ftruncate",
)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
# What a full disk never refuses.
_FREEING = frozenset({"unlink", "rmdir"})


class How(Enum):
    """One change fails, the disk is full from there on, the process is killed, or Ctrl-C is pressed."""

    EIO_ONCE = "EIO once"
    FULL_FROM_THERE = "disk full from there on"
    KILLED = "killed"
    INTERRUPTED = "interrupted"


class Changes:
    """Counts changes of the file system and spoils the one with number `at`, from 0."""

    def __init__(self, how: How, at: int) -> None:
        self.how = how
        self.at = at
        self.count = 0

    @property
    def spoiled(self) -> bool:
        """Whether the operation got as far as the spoiled change."""
        return self.count > self.at

    def before(self, name: str) -> None:
        """Is called before every change."""
        number, self.count = self.count, self.count + 1
        if self.how is How.KILLED and number == self.at:
            os._exit(137)
        if self.how is How.INTERRUPTED and number == self.at:
            signal.raise_signal(signal.SIGINT)
        if self.how is How.EIO_ONCE and number == self.at:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self.how is How.FULL_FROM_THERE and number >= self.at and name not in _FREEING:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def spoiled(how: How, at: int) -> Iterator[Changes]:
    """Spoil one change of the file system that this process makes."""
    changes = Changes(how, at)

    def guard(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any, **kwargs: Any) -> Any:
            changes.before(name)
            return function(*args, **kwargs)

        return guarded

    really_open, really_open_file = os.open, builtins.open

    def guarded_open(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & _WRITING:
            changes.before("open")
        return really_open(path, flags, *args, **kwargs)

    def guarded_open_file(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if set(mode) & set("wax+"):
            changes.before("open")
        return really_open_file(file, mode, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        for name in _WRITERS:
            patch.setattr(os, name, guard(name, getattr(os, name)))
        patch.setattr(os, "open", guarded_open)
        patch.setattr(builtins, "open", guarded_open_file)
        yield changes
