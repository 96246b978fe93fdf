"""Following a source through trouble: it is opened again until it tells something again."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from neurontools.errors import NeuronToolsError, NoMachineError
from neurontools.sources import SIM, open_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from neurontools.machine.snapshot import Snapshot
    from neurontools.sources.source import Source

_RETRY_S = (0.2, 0.5, 1.0, 2.0)


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something is wrong, in a few words for the title bar; `is_outage` says that this is why no data comes."""

    text: str
    is_outage: bool = True


class Follower:
    """Snapshots of a source for as long as somebody wants them.

    Args:
        name: of the source, as `open_source` takes it.
        period_s: time between two snapshots.
        machine: name of the simulated machine, None for the default.
        looker: list this process among those that look at the devices, under this command.
        early_s: yield a second snapshot of a simulated machine after so much time, so that rates show at once.
        on_notice: gets a line for a person when a machine was started.
        patient: start nothing, and wait for what can't be opened yet instead of raising an error.

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
        patient: bool = False,
    ) -> None:
        self._early_s = early_s
        self._kind = name
        self._period_s = period_s
        self._machine = machine
        self._looker = looker
        self._closed = threading.Event()
        self._source: Source | None = None
        self.name, self.live = f"{name}:{machine}" if machine else name, True
        if not patient:
            self._source = self._open(start=True, on_notice=on_notice)
            self.name, self.live = self._source.name, self._source.live
        self.notices: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def updates(self) -> Iterator[Snapshot | Trouble]:
        """Yield a snapshot each period, or why there is none; ends when closed or where a recording ends."""
        failures = 0
        while not self._closed.is_set():
            try:
                for snapshot in self._snapshots():
                    failures = 0
                    yield snapshot
                    if self._closed.is_set():
                        return
            except NoMachineError as error:
                trouble = _waiting(self._kind, error)
            except NeuronToolsError as error:
                trouble = f"{error.message}, retrying"
            except (OSError, ValueError, LookupError, TypeError) as error:
                trouble = f"no data ({error}), retrying"
            else:
                return
            self._drop()
            if self._closed.is_set():
                return
            yield Trouble(trouble)
            self._closed.wait(_RETRY_S[min(failures, len(_RETRY_S) - 1)])
            failures += 1

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
        return open_source(
            self._kind, machine=self._machine, looker=self._looker, start=start, on_notice=on_notice
        )

    def _drop(self) -> None:
        if self._source is not None:
            self.notices = self._source.notices
            self._source.close()
            self._source = None


def _waiting(kind: str, error: NoMachineError) -> str:
    return "machine not running, waiting for it" if kind == SIM else f"{error.message}, waiting for it"
