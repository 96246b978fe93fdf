"""Which process of a scenario gets which cores: those that the file names, else the next ones that nobody named."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neurontools.scenario.nodes import Item


class Placement:
    """The cores of a scenario's machine.

    Args:
        core_count: how many there are; 0: unknown, nothing is checked.
    """

    def __init__(self, core_count: int) -> None:
        self._core_count = core_count
        self._named: set[int] = set()
        self._next = 0
        self._taken: dict[int, list[tuple[float, float, str]]] = {}

    def name(self, item: Item, cores: tuple[int, ...]) -> None:
        """Keep cores that a group names from those that ask for any."""
        beyond = [core for core in cores if core >= self._core_count]
        if beyond and self._core_count:
            item.wrong(f"there is no core {beyond[0]}, this machine has 0-{self._core_count - 1}")
        self._named.update(cores)

    def everything(self) -> tuple[int, ...]:
        """Return all cores."""
        return tuple(range(self._core_count))

    def any(self, item: Item, count: int) -> tuple[int, ...]:
        """Return the next cores that no group named; none after noting that there are too few."""
        chosen: list[int] = []
        core = self._next
        while len(chosen) < count and core < self._core_count:
            if core not in self._named:
                chosen.append(core)
            core += 1
        self._next = core
        if len(chosen) < count and self._core_count:
            item.wrong(f"the machine's {self._core_count} cores are too few for all processes")
        return tuple(chosen)

    def take(self, item: Item, who: str, cores: tuple[int, ...], start_s: float, stop_s: float) -> bool:
        """Give cores to a process for a time; return False after noting that another one has them then."""
        for core in cores:
            for begins_s, ends_s, owner in self._taken.setdefault(core, []):
                if start_s < ends_s and begins_s < stop_s:
                    item.wrong(f"core {core} belongs to {owner} at that time")
                    return False
            self._taken[core].append((start_s, stop_s, who))
        return True
