"""A bucket behind a run's local copy of it: what the copy lacks is fetched from there, what is compiled is sent there.

The copy is a root like any other: processes of one host take turns by its locks, and what it has costs no request.
Hosts do not lock each other out: both compile, and the first that writes the done marker has finished the entry.
A bucket that does not answer or refuses costs one warning; the run goes on with the copy.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from neurontools.cache import layout, logs
from neurontools.cache.files import remove_quietly, sync_directory
from neurontools.cache.remote.connection import Connection
from neurontools.cache.remote.errors import RemoteError, Trouble
from neurontools.cache.remote.sending import send_entry
from neurontools.cache.remote.tree import BucketTree
from neurontools.cache.states import State
from neurontools.cache.sync.sync_plan import carries, in_writing_order

if TYPE_CHECKING:
    from neurontools.cache.remote.connection import Stored


class BucketStore:
    """One root in a bucket, as one process uses it. Nothing here raises: trouble is logged, once for each direction.

    Raises:
        MissingDependencyError: s3fs is missing.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self._connection = Connection(root)
        self._reads = True
        self._writes = True

    def fetch(self, entry: str, *, failures: bool) -> bool:
        """Bring an entry into the local copy, its done marker last; return whether something came.

        Args:
            entry: its directory in the copy, which this process has locked.
            failures: a cached failure is wanted, too.

        Raises:
            OSError: the copy cannot be written to.
        """
        if not self._reads:
            return False
        try:
            return self._fetch(entry, failures=failures)
        except RemoteError as error:
            self._reads = not error.concerns_all
            # Who may not read may still write; a bucket that is not there is waited for only once.
            self._writes = self._reads or error.trouble is Trouble.DENIED
            self._warn("read", error)
            return False

    def send(self, entry: str, state: State, *, replace: bool) -> None:
        """Write an entry of the local copy to the bucket, unless it is finished there.

        Args:
            entry: its directory in the copy.
            state: what it is there for: DONE or FAILED.
            replace: what is finished there is damaged.
        """
        if not self._writes:
            return
        wanted = carries(state)
        try:
            names = in_writing_order([name for name in os.listdir(entry) if wanted(name)])
            send_entry(self._connection, entry, names, self._path(entry), replace=replace)
        except RemoteError as error:
            self._writes = not error.concerns_all
            self._warn("write", error)
        except OSError as error:
            logs.log(
                logging.WARNING, logs.CACHE, f"Cannot send {entry} to {self.root}: {error.strerror or error}"
            )

    def _fetch(self, entry: str, *, failures: bool) -> bool:
        tree, path = BucketTree(self.root, connection=self._connection), self._path(entry)
        there = {stored.path.removeprefix(path + "/"): stored for stored in tree.below(path)}
        if layout.NEFF in there and layout.DONE in there:
            wanted = carries(State.DONE)
        elif failures and layout.LOG in there and layout.NEFF not in there:
            wanted = carries(State.FAILED)
        else:
            return False
        # Tags may be anything; only what a lookup reads is brought.
        names = [name for name in there if wanted(name) and not name.startswith(".")]
        for name in in_writing_order(names):
            self._bring(there[name], f"{entry}/{name}")
        sync_directory(entry)
        logs.log(logging.INFO, logs.CACHE, f"Copied {path} to {entry}")
        return True

    def _bring(self, stored: Stored, target: str) -> None:
        aside = f"{os.path.dirname(target)}/{layout.TEMPORARY_PREFIX}{os.getpid()}-{os.urandom(4).hex()}"
        try:
            with open(aside, "x+b") as file:
                if stored.size_bytes:
                    self._connection.download(stored, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, target)
        finally:
            remove_quietly(aside)

    def _path(self, entry: str) -> str:
        above, _, module = entry.rpartition("/")
        return f"{self.root}/{os.path.basename(above)}/{module}"

    def _warn(self, doing: str, error: RemoteError) -> None:
        text = f"Cannot {doing} the compile cache {self.root}: {error.message}. Going on with the local copy."
        logs.log(logging.WARNING, logs.CACHE, text)
