"""A source of snapshots that is opened again after errors, and the updates of several sources at once."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar

from msgspec import Struct

from neurontools.errors import NeuronToolsError, NoMachineError
from neurontools.sources import SIM, open_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from neurontools.machine.snapshot import Snapshot
    from neurontools.sources import Source

_RETRY_S = (0.05, 0.2, 0.5, 1.0, 2.0)
_ERRORS = (NeuronToolsError, OSError, ValueError, LookupError, TypeError)

Update_co = TypeVar("Update_co", covariant=True)
Update = TypeVar("Update")


class SourceProblem(Struct, frozen=True):
    """A problem, short enough for a title bar; `is_outage` says that no data comes because of it."""

    text: str
    is_outage: bool = True


class RetryingSource:
    """Snapshots of a source that is opened again after errors. A simulated machine is started only at the beginning.

    Args:
        name: of the source, as `open_source` takes it.
        period_s: time between two snapshots of `updates`.
        machine: name of the simulated machine, None for the default.
        looker: list this process among those that look at the devices, under this command.
        early_s: yield a second snapshot of a simulated machine after this time, so that rates show at once.
        on_notice: gets a line for a person when a machine was started.
        on_open: gets the source's name each time that it was opened.
        patient: start nothing, and wait for a source that can't be opened yet instead of raising an error.
        wait: sleeps for some seconds between retries of `snapshot`.

    Raises:
        NeuronToolsError: the source can't be opened.
    """

    def __init__(
        self,
        name: str,
        period_s: float,
        *,
        machine: str | None = None,
        looker: str | None = None,
        early_s: float | None = None,
        on_notice: Callable[[str], None] | None = None,
        on_open: Callable[[str], None] = lambda _: None,
        patient: bool = False,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        self._early_s = early_s
        self._kind = name
        self._period_s = period_s
        self._machine = machine
        self._looker = looker
        self._on_open = on_open
        self._closed = threading.Event()
        self._wait = wait or self._closed.wait
        self._source: Source | None = None
        self._notices: tuple[str, ...] = ()
        self.name, self.live = f"{name}:{machine}" if machine else name, True
        if not patient:
            self._source = self._open(start=True, on_notice=on_notice)
            self.name, self.live = self._source.name, self._source.live

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def notices(self) -> tuple[str, ...]:
        """Lines for the user about the data of the last source."""
        return self._notices if self._source is None else self._source.notices

    def updates(self) -> Iterator[Snapshot | SourceProblem]:
        """Yield a snapshot each period, or why there is none; ends when closed or where a recording ends."""
        failures = 0
        while not self._closed.is_set():
            try:
                for snapshot in self._snapshots():
                    failures = 0
                    yield snapshot
                    if self._closed.is_set():
                        return
            except _ERRORS as error:
                problem = self._problem(error)
            else:
                return
            self._drop()
            if self._closed.is_set():
                return
            yield SourceProblem(problem)
            self._closed.wait(_retry_delay(failures))
            failures += 1

    def snapshot(self, on_problem: Callable[[str], None]) -> Snapshot:
        """Return the current snapshot; waits as long as there is none.

        Args:
            on_problem: gets a line, once, when the second attempt fails too, and one when data is back.
        """
        failures = 0
        while True:
            try:
                if self._source is None:
                    self._source = self._open(start=False)
                snapshot = self._source.snapshot()
            except _ERRORS as error:
                self._drop()
                failures += 1
                if failures == 2:  # a source that is back at once is not news
                    on_problem(self._problem(error))
                self._wait(_retry_delay(failures - 1))
            else:
                if failures > 1:
                    on_problem("data is back")
                return snapshot

    def close(self) -> None:
        """Close the source, which ends `updates` at its next step; may be called from another thread."""
        self._closed.set()
        source = self._source
        if source is not None:
            source.close()

    def _snapshots(self) -> Iterator[Snapshot]:
        if self._source is None:
            self._source = self._open(start=False)
        try:
            if self._early_s is not None and self._kind == SIM:
                yield self._source.snapshot()
                self._closed.wait(min(self._early_s, self._period_s))
            yield from self._source.watch(self._period_s)
        finally:
            self._drop()

    def _open(self, *, start: bool, on_notice: Callable[[str], None] | None = None) -> Source:
        source = open_source(
            self._kind, machine=self._machine, looker=self._looker, start=start, on_notice=on_notice
        )
        self._on_open(source.name)
        return source

    def _drop(self) -> None:
        if self._source is not None:
            self._notices = self._source.notices
            self._source.close()
            self._source = None

    def _problem(self, error: Exception) -> str:
        if isinstance(error, NoMachineError):
            return f"{'machine not running' if self._kind == SIM else error.message}, waiting for it"
        if isinstance(error, NeuronToolsError):
            return f"{error.message}, retrying"
        return f"no data ({error}), retrying"


def _retry_delay(failures: int) -> float:
    return _RETRY_S[min(failures, len(_RETRY_S) - 1)]


class Feed(Protocol[Update_co]):
    """Something that yields updates until it is closed, which another thread may do."""

    def updates(self) -> Iterator[Update_co]:
        """Yield new items."""
        ...

    def close(self) -> None:
        """Make `updates` end soon."""
        ...


class MergedFeeds(Generic[Update]):
    """The updates of several feeds as they come; each has a thread of its own, so that a slow one holds up no other.

    Args:
        feeds: closed with this.
    """

    def __init__(self, feeds: Sequence[Feed[Update]]) -> None:
        self._feeds = tuple(feeds)
        self._queue: queue.SimpleQueue[tuple[int, Update] | Exception | None] = queue.SimpleQueue()
        self._closed = False

    def updates(self) -> Iterator[tuple[int, Update]]:
        """Yield each update with its feed's position; ends when closed or when all feeds ended.

        Raises:
            Exception: what a feed raised, which none should.
        """
        for index, feed in enumerate(self._feeds):
            threading.Thread(
                target=self._read, args=(index, feed), daemon=True, name=f"source {index}"
            ).start()
        running = len(self._feeds)
        while running and not self._closed:
            item = self._queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                running -= 1
            else:
                yield item

    def close(self) -> None:
        """End `updates`, and let every feed end."""
        self._closed = True
        for feed in self._feeds:
            feed.close()
        self._queue.put(None)

    def _read(self, index: int, feed: Feed[Update]) -> None:
        try:
            for update in feed.updates():
                if self._closed:
                    break
                self._queue.put((index, update))
        except Exception as error:  # noqa: BLE001  raised by updates()
            self._queue.put(error)
        else:
            self._queue.put(None)
