"""What one process knows of a cache root: counters, entries in use, whether it has warned."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from neurontools.cache import logs
from neurontools.cache.entry_io import hold, let_go
from neurontools.cache.events import Events
from neurontools.cache.usage import Usage

if TYPE_CHECKING:
    from neurontools.cache.remote.store import BucketStore
    from neurontools.cache.states import State


class CacheRoot:
    """A root as a process uses it; `bucket` is what its directory is a copy of, None for a root of its own."""

    def __init__(self, path: str, bucket: BucketStore | None = None) -> None:
        self.path = path
        self.bucket = bucket
        counted = path if bucket is None else bucket.root
        self.usage = Usage(counted)
        self.events = Events(counted)
        self._held: dict[str, int] = {}
        self._warned = False

    def keep_in_use(self, entry: str, held: int | None = None) -> None:
        """Mark an entry as in use until `close`, by a descriptor that is held already or a new one."""
        if entry in self._held:
            let_go(held)
            return
        descriptor = hold(entry) if held is None else held
        if descriptor is not None:
            self._held[entry] = descriptor

    def fetch(self, entry: str, *, failures: bool) -> bool:
        """Bring an entry that is missing from the bucket, where there is one; return whether something came.

        Raises:
            OSError: the copy cannot be written to.
        """
        return self.bucket is not None and self.bucket.fetch(entry, failures=failures)

    def send(self, entry: str, state: State, *, replace: bool = False) -> None:
        """Write an entry that was made to the bucket, where there is one; `replace` a damaged one."""
        if self.bucket is not None:
            self.bucket.send(entry, state, replace=replace)

    def warn_unusable(self, error: OSError) -> None:
        """Say once that the cache cannot be written to."""
        if not self._warned:
            self._warned = True
            reason = error.strerror or str(error)
            text = f"Cannot write to the compile cache {self.path}: {reason}. Compiling without it."
            logs.log(logging.WARNING, logs.CACHE, text)

    def close(self) -> None:
        """Stop marking entries as in use."""
        for descriptor in self._held.values():
            os.close(descriptor)
        self._held.clear()
        self.events.close()
