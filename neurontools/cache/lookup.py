"""One lookup: hit, replayed failure, waiting for another process, or compile and publish."""

from __future__ import annotations

import logging
import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.base.interrupts import InterruptHold
from neurontools.base.text import plural
from neurontools.cache import layouts, logs
from neurontools.cache.entry_files import State
from neurontools.cache.entry_io import (
    discard_neff,
    look_up,
    new_provenance,
    prepare_entry,
    publish,
    read_failure,
    read_provenance,
    store_failure,
    write_provenance,
)
from neurontools.cache.events import Events, LookupEventKind, Usage
from neurontools.cache.lock_owner import Waiter
from neurontools.cache.locks import examine_lock, hold, release, try_lock
from neurontools.compiler import compile as compiler
from neurontools.compiler.neff import NativePart, Neff, NeffError, parse
from neurontools.compiler.options import CompileError

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.cache.entry_io import CachedNeff
    from neurontools.cache.locks import EntryLock
    from neurontools.cache.remote.store import BucketStore
    from neurontools.compiler.graph import Graph
    from neurontools.machine.instances.catalogue import DeviceType

_FIRST_POLL_S = 0.01
_SLOWEST_POLL_S = 0.5
_NOTICE_S = 60.0
_SHORT_WAIT_S = 0.5
_ATTEMPTS = 50


@dataclass(frozen=True, slots=True)
class CacheResult:
    """A graph's NEFF.

    `entry` is its directory, "" when it is not cached; `seconds` is how long the lookup took.
    """

    neff: Neff
    data: bytes
    hit: bool
    entry: str
    seconds: float


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """A graph to look up or compile. `wait_s` limits the wait for another process; `retries` counts earlier attempts."""

    graph: Graph
    digest: str
    device: DeviceType
    name: str
    flags: tuple[str, ...]
    libraries: tuple[NativePart, ...]
    entry: str
    retry_failed: bool
    validate_hash: bool
    wait_s: float | None = None
    retries: int = 0


class CacheRoot:
    """A root in use by this process; `bucket` is set if its directory is a copy of a bucket."""

    def __init__(self, path: str, bucket: BucketStore | None = None) -> None:
        self.path = path
        self.bucket = bucket
        counted = path if bucket is None else bucket.root
        self.usage = Usage(counted)
        self.events = Events(counted)
        self._held: dict[str, int] = {}
        self._warned = False

    def keep_in_use(self, entry: str, held: int | None = None) -> None:
        """Mark an entry as in use until `close`, with a held or a new descriptor."""
        if entry in self._held:
            release(held)
            return
        descriptor = hold(entry) if held is None else held
        if descriptor is not None:
            self._held[entry] = descriptor

    def fetch(self, entry: str, *, failures: bool) -> bool:
        """Fetch a missing entry from the bucket, if there is one; return whether the bucket had it.

        Raises:
            OSError: the copy cannot be written to.
        """
        return self.bucket is not None and self.bucket.fetch(entry, failures=failures)

    def send(self, entry: str, state: State, *, replace: bool = False) -> None:
        """Upload a new entry to the bucket, if there is one; `replace` a damaged one."""
        if self.bucket is not None:
            self.bucket.send(entry, state, replace=replace)

    def warn_unusable(self, error: OSError) -> None:
        """Warn once that the cache cannot be written to."""
        if not self._warned:
            self._warned = True
            reason = error.strerror or str(error)
            text = f"Cannot write to the compile cache {self.path}: {reason}. Compiling without it."
            logs.log(logging.WARNING, logs.CACHE, text)

    def close(self) -> None:
        """Release the entries."""
        for descriptor in self._held.values():
            os.close(descriptor)
        self._held.clear()
        self.events.close()


class LockWaitTimeoutError(Exception):
    """Another process held the entry's lock for longer than the wait limit."""


class Lookup:
    """The lookup of one request in one root."""

    def __init__(self, root: CacheRoot, request: CompileRequest) -> None:
        self._root = root
        self._request = request
        self._entry = request.entry
        self._started = time.monotonic()
        self._module = os.path.basename(request.entry)
        self._compiled_s = 0.0
        self._damage = ""
        self._interrupts = InterruptHold()

    def run(self) -> CacheResult:
        """Return the NEFF from the cache, or compile it into the cache.

        Raises:
            CompileError: the compiler refuses the graph, now or in a cached failure.
            LockWaitTimeoutError: another process compiles it for longer than the request waits.
            OSError: the cache cannot be written to, and nothing was compiled.
        """
        with self._interrupts:  # no lock or half an entry stays after Ctrl-C
            found = self._look_up()
            if found is not None:
                return self._hit(found)
            for _ in range(_ATTEMPTS):
                result = self._run_locked()
                if result is not None:
                    return result
        raise OSError(f"the entry {self._entry} keeps disappearing")

    def _run_locked(self) -> CacheResult | None:
        """Look up and compile under the entry's lock, or after its holder; None if the entry disappeared meanwhile."""
        try:
            lock = self._lock()
        except FileNotFoundError:
            return None
        if lock is None:
            found = self._look_up()
            return None if found is None else self._hit(found)
        try:
            found = self._look_up()
            if found is None and self._fetch():
                found = self._look_up()
            return self._compile_and_publish() if found is None else self._hit(found)
        except FileNotFoundError:
            return None
        finally:
            lock.release()
            layouts.remove_empty_entry(self._entry)

    def _fetch(self) -> bool:
        with self._interrupts.allowed():
            return self._root.fetch(self._entry, failures=not self._request.retry_failed)

    def give_up(self, error: OSError) -> None:
        """Warn that the cache cannot be written to, and remove an empty entry."""
        self._root.warn_unusable(error)
        layouts.remove_empty_entry(self._entry)

    def compile_uncached(self) -> CacheResult:
        """Compile without the cache.

        Raises:
            CompileError: the compiler refuses the graph.
        """
        return self._compiled(self._compile(), "")

    def _look_up(self) -> CachedNeff | None:
        try:
            found = look_up(self._entry, self._request.digest, validate_hash=self._request.validate_hash)
        except NeffError as error:
            self._report_damage(error)
            return None
        if found is None and not self._request.retry_failed:
            failure = read_failure(self._entry)
            if failure is not None:
                self._replay(failure)
        return found

    def _report_damage(self, error: NeffError) -> None:
        if not self._damage:
            self._damage = error.message
            self._root.usage.count("damaged")
            self._root.events.add(LookupEventKind.DAMAGED, self._module)
            text = f"Ignoring the damaged neff at {self._entry}/{layouts.NEFF}: {error.message}"
            logs.log(logging.WARNING, logs.WRAPPER, text)

    def _replay(self, failure: CompileError) -> None:
        text = f"Got a cached failed neff at {self._entry}/{layouts.NEFF}. Will skip compilation, "
        text += "please set --retry_failed_compilation for recompilation."
        logs.log(logging.ERROR, logs.WRAPPER, text)
        self._root.events.add(LookupEventKind.REPLAY, self._module)
        raise failure

    def _lock(self) -> EntryLock | None:
        """Return the entry's lock, None if another holder has released it."""
        if not os.path.isdir(self._entry):
            layouts.make_root(self._root.path)
            layouts.open_entry(self._entry, create=True).close()
        lock = try_lock(self._root.path, self._entry)
        if lock is not None:
            return lock
        since = time.monotonic()
        try:
            with Waiter(self._entry) as waiter:
                return self._wait(waiter, since)
        finally:
            self._root.events.add(LookupEventKind.WAIT, self._module, time.monotonic() - since)

    def _wait(self, waiter: Waiter, since: float) -> EntryLock | None:
        poll_s = _FIRST_POLL_S
        notices = 1
        while True:
            with self._interrupts.allowed():
                time.sleep(poll_s)
            poll_s = min(poll_s * 1.5, _SLOWEST_POLL_S)
            state = examine_lock(f"{self._entry}/{layouts.LOCK}")
            if state is None:
                return None
            lock = try_lock(self._root.path, self._entry)
            if lock is not None:
                logs.log(logging.INFO, logs.CACHE, f"Took over {self._entry} from {state.holder}")
                return lock
            waited_s = time.monotonic() - since
            if waited_s >= _SHORT_WAIT_S:
                waiter.announce()
            if waited_s >= notices * _NOTICE_S:
                notices += 1
                text = f"Another process must be compiling {self._entry}/{layouts.GRAPH}, "
                text += f"been waiting for: {waited_s / 60:.1f} minutes"
                logs.log(logging.INFO, logs.CACHE, text)
                logs.log(logging.INFO, logs.CACHE, f"The lock is held by {state.holder}")
            if self._request.wait_s is not None and waited_s >= self._request.wait_s:
                text = (
                    f"Waited {waited_s:.1f} s for {state.holder} to compile {self._entry}/{layouts.GRAPH}. "
                )
                logs.log(logging.WARNING, logs.CACHE, text + "Compiling without the cache.")
                raise LockWaitTimeoutError

    def _compile_and_publish(self) -> CacheResult:
        """Compile under the lock; FileNotFoundError says that the entry was pruned before anything was compiled."""
        request = self._request
        writable = True
        if self._damage:
            discard_neff(self._entry)
        try:
            prepare_entry(self._root.path, self._entry, request.graph, request.flags)
        except FileNotFoundError:
            raise
        except OSError as error:
            self._root.warn_unusable(error)
            writable = False
        try:
            data = self._compile()
        except CompileError as error:
            failure = error
            self._root.usage.count("failures")
            self._root.events.add(LookupEventKind.FAILURE, self._module)
            if self._attempt(lambda: store_failure(self._entry, failure)):
                self._root.send(self._entry, State.FAILED)
            raise
        if writable:
            write_provenance(self._entry, new_provenance(self._compiled_s))
        if not writable or not self._attempt(lambda: publish(self._entry, data)):
            return self._compiled(data, "")
        self._root.keep_in_use(self._entry)
        with self._interrupts.allowed():
            self._root.send(self._entry, State.DONE, replace=bool(self._damage))
        return self._compiled(data, self._entry)

    def _attempt(self, write: Callable[[], None]) -> bool:
        try:
            write()
        except FileNotFoundError:
            return False
        except OSError as error:
            self._root.warn_unusable(error)
            return False
        return True

    def _compile(self) -> bytes:
        request = self._request
        source, target = f"{self._entry}/{layouts.GRAPH}", f"{self._entry}/{layouts.NEFF}"
        command = ["neuronx-cc", "compile", "--framework=XLA", source, "--output", target, *request.flags]
        command.append("--verbose=35")
        size = plural(len(request.graph.nodes), "operator")
        logs.log(
            logging.INFO,
            logs.WRAPPER,
            f"Call compiler with cmd: {' '.join(command)}",
            short=f"Compiling {self._module} ({size})",
        )
        self._root.usage.count("misses")
        started = time.monotonic()
        try:
            with self._interrupts.allowed():
                data = compiler.compile_graph(
                    request.graph, request.device, request.flags, request.name, request.libraries
                )
        except CompileError as error:
            logs.log(
                logging.ERROR,
                logs.WRAPPER,
                f"Failed compilation with {command}: {error.message}",
                short="",  # the error follows
            )
            text = f"Compilation failed for {source} after {request.retries} retries."
            logs.log(logging.ERROR, logs.WRAPPER, text, short=f"Compilation failed for {self._module}")
            raise
        self._compiled_s = time.monotonic() - started
        if sys.stderr.isatty():
            done = f"Compiler status PASS, {self._compiled_s:.3f} s"
            logs.log(logging.INFO, logs.WRAPPER, done, short=done)
        self._root.events.add(LookupEventKind.MISS, self._module, self._compiled_s)
        return data

    def _hit(self, found: CachedNeff) -> CacheResult:
        self._root.keep_in_use(self._entry, found.held)
        self._root.usage.count_hit(self._entry)
        origin = read_provenance(self._entry)
        self._root.events.add(
            LookupEventKind.HIT, self._module, origin.compile_s if origin is not None else 0.0
        )
        text = f"Using a cached neff at {self._entry}/{layouts.NEFF}"
        logs.log(logging.INFO, logs.WRAPPER, text, short=f"Using a cached neff, {self._module}")
        return CacheResult(
            neff=found.neff,
            data=found.data,
            hit=True,
            entry=self._entry,
            seconds=time.monotonic() - self._started,
        )

    def _compiled(self, data: bytes, entry: str) -> CacheResult:
        return CacheResult(
            neff=parse(data),
            data=data,
            hit=False,
            entry=entry,
            seconds=time.monotonic() - self._started,
        )
