"""The mirror of the host's files that programs under neuron-run see at their real paths.

neurond writes it when a program looks at such a file: it imports this module at the first request, as it does with the
text of neuron-ls, and answers with the mirror's directory.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import TYPE_CHECKING

from neurontools import env, paths
from neurontools.sysfs.layout import driver_release
from neurontools.sysfs.mirror import SysfsMirror
from neurontools.sysfs.tree import TreeLink

if TYPE_CHECKING:
    from neurontools.machine.snapshot import Snapshot

_PROGRAMS = "opt/aws/neuron/bin"
_PROGRAM_NAMES = (
    *("nccom-test", "neuron-ls", "neuron-monitor", "neuron-monitor-prometheus.py", "neuron-packager"),
    *("neuron-profile", "neuron-top"),
)


def render(
    snapshot: Snapshot,
    argv: list[str],
    emulate: str,
    *,
    asker: object = None,  # noqa: ARG001  any program may look
) -> tuple[int, bytes, bytes]:
    """Bring the mirror up to date and return its directory, as a tool's exit code, output and errors.

    Args:
        snapshot: the machine.
        argv: the number of a device whose files are needed, -1 for none; a large machine has twenty thousand.
        emulate: the release whose driver is shown, "" for the default one.
        asker: the program that looks.

    Raises:
        NeuronToolsError: the mirror cannot be written.
    """
    directory, mirror = _mirror(snapshot.machine, emulate or env.DEFAULT_EMULATE)
    mirror.add_devices(int(number) for number in argv if number.isdecimal())
    mirror.update(snapshot)
    return 0, os.fsencode(directory), b""


@cache
def _mirror(machine: str, release: str) -> tuple[str, SysfsMirror]:
    parent = f"{paths.machine_dir(machine)}/host"
    os.makedirs(parent, mode=0o755, exist_ok=True)
    directory = f"{parent}/{driver_release(release).driver_version}"
    return directory, SysfsMirror(
        directory, machine, driver=driver_release(release), programs=_installed_programs(), devices=()
    )


def _installed_programs() -> dict[str, TreeLink]:
    """Return links to the tools beside this Python, where the real tools are installed."""
    home = os.path.dirname(sys.executable)
    names = {name: name.removesuffix(".py") for name in _PROGRAM_NAMES}
    return {
        f"{_PROGRAMS}/{name}": TreeLink(f"{home}/{program}")
        for name, program in names.items()
        if os.path.exists(f"{home}/{program}")
    }
