"""One builder of a library at a time: a lock that ends with its holder, however that ends."""

from __future__ import annotations

import fcntl
import hashlib
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from neurontools.customop.building.toolchain import home
from neurontools.customop.errors import CustomOpBuildError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@contextmanager
def held(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of a file that is about to be written; the lock lies in our cache directory, not beside the file.

    Args:
        path: the absolute path of the file.
        on_wait: called once when another process or thread holds the lock.

    Raises:
        CustomOpBuildError: the cache directory cannot be written.
    """
    directory = home() / "locks"
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:24]
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(directory / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CustomOpBuildError(
            f"cannot write {directory}: {error.strerror}", "set XDG_CACHE_HOME to another directory"
        ) from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
