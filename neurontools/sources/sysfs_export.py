"""Export of a machine's sysfs tree to a directory, once or continuously."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.sources import SIM
from neurontools.sources.retrying import RetryingSource, SourceProblem
from neurontools.sources.sim import SimSource
from neurontools.sysfs.mirror import SysfsMirror

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class SysfsExport:
    """An exported tree: its machine, the number of devices and files, and how many files were written."""

    path: str
    machine: str
    instance_type: str
    device_count: int
    file_count: int
    written_count: int


def export(
    path: str, *, machine: str | None = None, on_notice: Callable[[str], None] = lambda _: None
) -> SysfsExport:
    """Write the sysfs tree of a machine into a directory.

    Args:
        path: the directory; empty, missing, or a mirror of this machine.
        machine: the machine's name, None for that of NEURONTOOLS_MACHINE.
        on_notice: gets lines for a person.

    Raises:
        NeuronToolsError: the directory can't be used or written, or there is no machine.
    """
    with SimSource(machine, on_notice=on_notice) as source, SysfsMirror(path, source.machine) as mirror:
        snapshot = source.snapshot()
        written = mirror.update(snapshot)
        return SysfsExport(
            path,
            source.machine,
            snapshot.instance_type,
            len(snapshot.devices),
            mirror.file_count,
            written,
        )


def export_continuously(
    path: str,
    period_s: float,
    *,
    machine: str | None = None,
    on_start: Callable[[str], None] = lambda _: None,
    on_notice: Callable[[str], None] = lambda _: None,
    on_first: Callable[[SysfsExport], None] = lambda _: None,
) -> None:
    """Keep the sysfs tree of a machine current in a directory until an exception ends it; waits while the machine is gone.

    Args:
        path: as in `export`.
        period_s: time between two updates.
        machine: the machine's name, None for that of NEURONTOOLS_MACHINE.
        on_start: gets a line for a person when a machine was started.
        on_notice: gets lines for a log, such as that the machine is gone.
        on_first: gets the result once the tree is complete.

    Raises:
        MirrorLostError: the directory was deleted or replaced.
        NeuronToolsError: the directory can't be used or written, or there is no machine at the start.
    """
    with RetryingSource(SIM, period_s, machine=machine, on_notice=on_start) as follower:
        name = follower.name.removeprefix(f"{SIM}:")
        with SysfsMirror(path, name) as mirror:
            _update_until_closed(
                mirror, follower, on_notice, lambda counts: on_first(SysfsExport(path, name, *counts))
            )


def _update_until_closed(
    mirror: SysfsMirror,
    follower: RetryingSource,
    on_notice: Callable[[str], None],
    on_first: Callable[[tuple[str, int, int, int]], None],
) -> None:
    trouble, first = "", True
    for update in follower.updates():
        if isinstance(update, SourceProblem):
            if update.text != trouble:
                on_notice(update.text)
            trouble = update.text
            mirror.check()
            continue
        if trouble:
            on_notice("the machine is back")
            trouble = ""
        written = mirror.update(update)
        if first:
            on_first((update.instance_type, len(update.devices), mirror.file_count, written))
            first = False
