"""What a machine becomes when its daemon starts: the wish, the former daemon's journal, and who still lives on it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools import env
from neurontools.errors import DaemonError
from neurontools.machine.faults.book import NO_FAULTS, FaultRecord
from neurontools.machine.history import History
from neurontools.machine.instances import catalogue
from neurontools.machine.journal import Definition, Journal
from neurontools.machine.kind_choice import kind_of
from neurontools.machine.processes import ProcessKey, is_alive, key_of

if TYPE_CHECKING:
    from neurontools.machine.info import StartOptions
    from neurontools.machine.kind import Kind


@dataclass(frozen=True, slots=True)
class Past:
    """What a former daemon left: its journal, and whether processes live that use its devices; who looks is no matter."""

    journal: Journal | None
    boot_id: str
    inhabited: bool

    @property
    def definition(self) -> Definition | None:
        """The definition to go on with: of a daemon that was killed, or whose processes live; else None."""
        if self.journal is None or self.journal.boot_id != self.boot_id:
            return None
        return self.journal.definition if self.journal.running or self.inhabited else None

    def history(self, now: Definition) -> History:
        """Return what was counted so far: by name for ever, by device and core while these are the same ones."""
        if self.journal is None:
            return History()
        counted, before = self.journal.history, self.journal.definition
        same_devices = (before.instance_type, before.visible_devices) == (
            now.instance_type,
            now.visible_devices,
        )
        same_cores = same_devices and before.lnc == now.lnc
        return History(
            counted.lifetime,
            counted.core_totals if same_cores else (),
            counted.hardware if same_devices else {},
        )

    @property
    def counted(self) -> frozenset[ProcessKey]:
        """The processes that are gone and counted already, though their pages may still be there."""
        return frozenset(self.journal.counted) if self.journal else frozenset()

    def faults(self, now: Definition) -> FaultRecord:
        """Return the faults of a machine that goes on as it was; another one starts without any."""
        before = self.definition
        goes_on = self.journal is not None and before is not None and before.kind == now.kind
        return self.journal.faults if self.journal is not None and goes_on else NO_FAULTS


def resolve(options: StartOptions, past: Past) -> Definition:
    """Return what the machine is.

    Raises:
        UnknownInstanceError: no such instance type.
        UsageError: a list of devices or modes makes no sense.
        NeuronToolsError: the type does not offer what is wanted.
        DaemonError: processes of another type's machine still live under this name.
        ProcessLookupError: the parent is gone.
    """
    before = past.definition
    wish = options.instance_type or (before.instance_type if before else env.instance())
    instance = catalogue.instance_type(wish)
    kind = kind_of(options, instance, before.kind if before is not None else None)
    if before is not None and past.inhabited and kind != before.kind:
        raise other_type(
            options.machine,
            before.kind,
            kind,
            "end the processes that still live on it: 'neurond start' and 'neurond status' list them",
        )
    same_type = before is not None and before.instance_type == instance.name
    return Definition(
        machine=options.machine,
        instance_type=instance.name,
        lnc=kind.lnc,
        started_unix_s=before.started_unix_s if before is not None and same_type else time.time(),
        idle_exit_s=before.idle_exit_s if before is not None and options.resume else options.idle_exit_s,
        parent=_parent(options, before),
        neighbours=kind.neighbours,
        visible_devices=kind.visible_devices,
        ultraserver_modes=kind.ultraserver_modes,
        ultraserver_node=kind.ultraserver_node,
    )


def other_type(machine: str, runs: Kind, wanted: Kind, remedy: str | None = None) -> DaemonError:
    """Return the error of a start under a name that belongs to another kind of machine.

    Args:
        machine: the name.
        runs: the kind of the machine that has it.
        wanted: the kind that was asked for.
        remedy: what helps beside another name; None: stopping the machine.
    """
    return DaemonError(
        f"machine {machine!r} is {_in_words(runs, wanted)}, not {_in_words(wanted, runs)}",
        "choose another name with --name, --machine or NEURONTOOLS_MACHINE, or "
        + (remedy or "stop it first: neurond stop" + _name_flag(machine)),
    )


def _in_words(kind: Kind, other: Kind) -> str:
    differences = kind.differences(other)
    return f"{kind.instance_type} with {' and '.join(differences)}" if differences else kind.instance_type


def _name_flag(machine: str) -> str:
    return "" if machine == env.DEFAULT_MACHINE else f" --name {machine}"


def _parent(options: StartOptions, before: Definition | None) -> ProcessKey | None:
    if options.parent_pid is not None:
        return key_of(options.parent_pid)
    if before is not None and before.parent is not None and is_alive(before.parent):
        return before.parent
    return None
