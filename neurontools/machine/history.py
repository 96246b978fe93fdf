"""What a machine has counted since it was made: it outlives processes and daemons."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from neurontools.machine.hardware import CoreTotals, HardwareCounters, core_totals_from_json

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class History:
    """The counters of a machine.

    `lifetime` are named counters of the whole machine, `core_totals` what processes that are gone did on each core,
    `hardware` the memory errors of each device that has any.
    """

    lifetime: Mapping[str, int] = field(default_factory=dict)
    core_totals: tuple[CoreTotals, ...] = ()
    hardware: Mapping[int, HardwareCounters] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


def history_from_json(data: dict[str, Any]) -> History:
    """Return the history of its JSON form.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: the value is none.
    """
    return History(
        {str(name): int(count) for name, count in data["lifetime"].items()},
        tuple(core_totals_from_json(totals) for totals in data["core_totals"]),
        {int(device): HardwareCounters(**counts) for device, counts in data["hardware"].items()},
    )
