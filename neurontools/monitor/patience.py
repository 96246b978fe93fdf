"""A source of snapshots that is waited for: opened again after every trouble until it tells something again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from neurontools.errors import NeuronToolsError, NoMachineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.machine.snapshot import Snapshot

_RETRY_S = (0.05, 0.2, 0.5, 1.0)


class SnapshotSource(Protocol):
    """Something that can be asked for the machine at this moment."""

    def snapshot(self) -> Snapshot:
        """Return the machine now."""
        ...

    def close(self) -> None:
        """Give back what the source holds."""
        ...


class PatientSource:
    """The machine now, or as soon as there is one again.

    Args:
        open_source: opens the source; its argument says whether a machine that does not run may be started, which
            only the first time may: whoever only looks must not undo `neurond stop`.
        on_trouble: told in a line that there is no data and why, once, and once that there is again.
        wait: sleeps for some seconds.

    Raises:
        NeuronToolsError: it cannot be opened in the first place.
    """

    def __init__(
        self,
        open_source: Callable[[bool], SnapshotSource],
        on_trouble: Callable[[str], None],
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._open = open_source
        self._on_trouble = on_trouble
        self._wait = wait
        self._source: SnapshotSource | None = open_source(True)

    def snapshot(self) -> Snapshot:
        """Return the machine now; waits as long as there is none."""
        failures = 0
        while True:
            try:
                if self._source is None:
                    self._source = self._open(False)
                snapshot = self._source.snapshot()
            except (NeuronToolsError, OSError, ValueError, KeyError, TypeError) as error:
                self.close()
                failures += 1
                if failures == 2:  # one that comes back at once is no news
                    self._on_trouble(_reason(error))
                self._wait(_RETRY_S[min(failures, len(_RETRY_S)) - 1])
            else:
                if failures > 1:
                    self._on_trouble("there is data again")
                return snapshot

    def close(self) -> None:
        """Close the source."""
        if self._source is not None:
            self._source.close()
            self._source = None


def _reason(error: Exception) -> str:
    message = error.message if isinstance(error, NeuronToolsError) else f"no data ({error!r})"
    return f"{message}, waiting for it" if isinstance(error, NoMachineError) else f"{message}, trying again"
