"""Watches registered processes: their end, exec, and the size of the pages that they write.

A program that replaces itself by another one (exec) keeps its pid and its start time, so its pidfd says nothing. But
exec closes its connection, and the stack of the new program lies elsewhere. Its cores are free then, as a real driver
frees what a closed file held.

A process writes its page through a descriptor, and the kernel has no limit for a single file. So the daemon checks the
pages of other users every second until no process has them open. It cuts a page that has grown, and refuses further
registrations of its user.
"""

from __future__ import annotations

import fcntl
import logging
import os
from typing import TYPE_CHECKING

from neurontools.machine.pages.page import is_private
from neurontools.machine.processes import open_pidfd, stack_start

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, TimerHandle
    from collections.abc import Callable

    from neurontools.machine.events import Process
    from neurontools.machine.processes import ProcessKey

_PERIOD_S = 2.0


class ExitWatcher:
    """Watches running processes, each by one pidfd, however many registered ones end with it.

    Args:
        loop: reports when a watched process has exited.
        on_exit: gets the registered processes that end with it.
    """

    def __init__(self, loop: AbstractEventLoop, on_exit: Callable[[tuple[ProcessKey, ...]], None]) -> None:
        self._loop = loop
        self._on_exit = on_exit
        self._pidfds: dict[ProcessKey, int] = {}
        self._registered: dict[ProcessKey, dict[ProcessKey, None]] = {}
        self._hosts: dict[ProcessKey, ProcessKey] = {}

    def watch(self, key: ProcessKey, host: ProcessKey) -> None:
        """Watch a process of the host with which a registered process ends.

        Raises:
            ProcessLookupError: that process has exited.
        """
        if host not in self._pidfds:
            self._pidfds[host] = pidfd = open_pidfd(host)
            self._registered[host] = {}
            self._loop.add_reader(pidfd, self._exited, host)
        self._registered[host][key] = None
        self._hosts[key] = host

    def unwatch(self, key: ProcessKey) -> None:
        """Stop watching for a registered process; ignored when it was not watched."""
        host = self._hosts.pop(key, None)
        if host is None:
            return
        del self._registered[host][key]
        if not self._registered[host]:
            self._drop(host)

    def watched_with(self, host: ProcessKey) -> tuple[ProcessKey, ...]:
        """Return the registered processes that end with a process of the host."""
        return tuple(self._registered.get(host, ()))

    def close(self) -> None:
        """Stop watching."""
        for host in list(self._pidfds):
            self._drop(host)
        self._hosts.clear()

    def _exited(self, host: ProcessKey) -> None:
        self._on_exit(self.watched_with(host))

    def _drop(self, host: ProcessKey) -> None:
        pidfd = self._pidfds.pop(host)
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        del self._registered[host]


class ExecDetector:
    """Detects exec in processes that no connection speaks for: checks them at once, then every two seconds.

    Without such processes there is no timer.

    Args:
        loop: runs the timer.
        process_of: the registered process of a key, None when it is not registered (any more).
        on_replaced: gets a process that now runs another program.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        process_of: Callable[[ProcessKey], Process | None],
        on_replaced: Callable[[ProcessKey], None],
    ) -> None:
        self._loop = loop
        self._process_of = process_of
        self._on_replaced = on_replaced
        self._keys: set[ProcessKey] = set()
        self._timer: TimerHandle | None = None

    def add(self, key: ProcessKey) -> None:
        """Check a process from now on."""
        process = self._process_of(key)
        if process is None or not process.stack:
            return
        if is_replaced(process):
            self._on_replaced(key)
            return
        self._keys.add(key)
        if self._timer is None:
            self._timer = self._loop.call_later(_PERIOD_S, self._check)

    def discard(self, key: ProcessKey) -> None:
        """Stop checking a process: a connection speaks for it, or it has exited."""
        self._keys.discard(key)

    def close(self) -> None:
        """Stop checking."""
        self._keys.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        keys, self._keys, self._timer = self._keys, set(), None
        for key in keys:
            self.add(key)


def is_replaced(process: Process) -> bool:
    """Return whether a process runs another program than when it registered."""
    if not process.stack or process.player is not None:
        return False
    return stack_start(process.key.pid) not in {0, process.stack}


log = logging.getLogger("neurond")

PERIOD_S = 1.0
PAGES_MAX = 1024
_EXTRA_BYTES = 1 << 16  # what a file system may allocate for a page beyond its size


class PageLimits:
    """The pages of other users. Without such pages there is no timer.

    Args:
        loop: runs the timer.
        is_registered: whether a process is still registered; its page is then certainly in use.
        on_grown: gets a process whose page grew.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        is_registered: Callable[[ProcessKey], bool],
        on_grown: Callable[[ProcessKey], None],
    ) -> None:
        self._loop = loop
        self._is_registered = is_registered
        self._on_grown = on_grown
        self._pages: dict[int, tuple[ProcessKey, int, int]] = {}
        self._refused_uids: set[int] = set()
        self._timer: TimerHandle | None = None

    def add(self, key: ProcessKey, uid: int, page_fd: int) -> None:
        """Watch the page of a process, unless it is the daemon's own user's, or in memory and sealed."""
        if uid == os.getuid() or is_private(page_fd):
            return
        try:
            # An open file of its own, not a duplicate: a lease then shows whether another process has it open.
            own_fd = os.open(f"/proc/self/fd/{page_fd}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            log.warning("the page of process %d cannot be watched: %s", key.pid, error.strerror)
            return
        self._pages[own_fd] = key, uid, os.fstat(own_fd).st_size
        if self._timer is None:
            self._timer = self._loop.call_later(PERIOD_S, self._check)

    def refusal_reason(self, uid: int) -> str:
        """Return why a user may not have another page, "" if it may."""
        if uid in self._refused_uids:
            return f"uid {uid} wrote beyond a telemetry page"
        if self._count(uid) >= PAGES_MAX:
            self._release()
            if self._count(uid) >= PAGES_MAX:
                return f"processes of uid {uid} have {PAGES_MAX} telemetry pages open"
        return ""

    def close(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for page_fd in self._pages:
            os.close(page_fd)
        self._pages.clear()

    def _count(self, uid: int) -> int:
        return sum(owner == uid for _, owner, _ in self._pages.values())

    def _check(self) -> None:
        self._timer = None
        for page_fd, (key, uid, page_bytes) in list(self._pages.items()):
            if _has_grown(page_fd, page_bytes):
                log.warning("process %d of uid %d wrote beyond its telemetry page", key.pid, uid)
                self._refused_uids.add(uid)
                _cut(page_fd, page_bytes)
                self._on_grown(key)
        self._release()
        if self._pages:
            self._timer = self._loop.call_later(PERIOD_S, self._check)

    def _release(self) -> None:
        for page_fd, (key, _, _) in list(self._pages.items()):
            if not self._is_registered(key) and not _is_open_elsewhere(page_fd):
                os.close(page_fd)
                del self._pages[page_fd]


def _has_grown(page_fd: int, page_bytes: int) -> bool:
    found = os.fstat(page_fd)
    return found.st_size > page_bytes or found.st_blocks * 512 > page_bytes + _EXTRA_BYTES


def _cut(page_fd: int, page_bytes: int) -> None:
    try:
        # Truncating to the current size would keep blocks allocated beyond the end; growing by a byte first frees them.
        os.ftruncate(page_fd, page_bytes + 1)
        os.ftruncate(page_fd, page_bytes)
    except OSError as error:
        log.error("cannot cut a telemetry page: %s", error)  # noqa: TRY400  no traceback wanted


def _is_open_elsewhere(page_fd: int) -> bool:
    # The kernel grants a write lease only on a file that has no other descriptor or mapping (fcntl(2), F_SETLEASE).
    try:
        fcntl.fcntl(page_fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(page_fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return True
    except OSError:
        return False  # this file system has no leases
    return False
