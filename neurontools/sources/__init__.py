"""Where snapshots come from: the simulated machine, the real host, or a recording of neuron-monitor."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.sources.source import Source

SIM = "sim"


def open_source(
    name: str,
    *,
    machine: str | None = None,
    looker: str | None = None,
    start: bool = True,
    on_notice: Callable[[str], None] | None = None,
) -> Source:
    """Return an open source of snapshots.

    Args:
        name: "sim", the simulated machine.
        machine: name of the simulated machine, None for the one that NEURONTOOLS_MACHINE names.
        looker: list this process among those that look at the devices, under this command (`neuron-ls -a`).
        start: whether a simulated machine that does not run may be started, where NEURONTOOLS_AUTOSTART allows it.
        on_notice: gets a line for a person when something was started.

    Raises:
        UsageError: there is no such source.
        NoMachineError: the simulated machine does not run and may not be started.
        DaemonError: its daemon refuses or does not answer.
    """
    if name == SIM:
        from neurontools.sources.sim import SimSource

        return SimSource(machine, looker=looker, start=start, on_notice=on_notice)
    from neurontools.errors import UsageError

    raise UsageError(f"unknown source {name!r}", f"choose {SIM}")
