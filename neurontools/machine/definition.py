"""What a machine becomes when its daemon starts: the wish, the former daemon's journal, and who still lives on it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools import env
from neurontools.errors import DaemonError
from neurontools.machine.history import History
from neurontools.machine.instances import catalogue
from neurontools.machine.journal import Definition, Journal
from neurontools.machine.processes import ProcessKey, is_alive, key_of

if TYPE_CHECKING:
    from neurontools.machine.info import StartOptions


@dataclass(frozen=True, slots=True)
class Past:
    """What a former daemon left: its journal, and whether processes of it still live."""

    journal: Journal | None
    boot_id: str
    inhabited: bool

    @property
    def definition(self) -> Definition | None:
        """The definition to go on with: of a daemon that was killed, or whose processes live; else None."""
        if self.journal is None or self.journal.boot_id != self.boot_id:
            return None
        return self.journal.definition if self.journal.running or self.inhabited else None

    @property
    def history(self) -> History:
        """What was counted so far."""
        return self.journal.history if self.journal else History()


def resolve(options: StartOptions, past: Past) -> Definition:
    """Return what the machine is.

    Raises:
        UnknownInstanceError: no such instance type.
        NeuronToolsError: the type does not offer that LNC.
        DaemonError: processes of another type's machine still live under this name.
        ProcessLookupError: the parent is gone.
    """
    before = past.definition
    wish = options.instance_type or (before.instance_type if before else env.instance())
    instance = catalogue.instance_type(wish)
    same_type = before is not None and before.instance_type == instance.name
    kept_lnc = before.lnc if before is not None and same_type else instance.device.lnc_default
    lnc = kept_lnc if options.lnc is None else options.lnc
    instance.cores_per_device(lnc)
    if before is not None and past.inhabited and (instance.name, lnc) != (before.instance_type, before.lnc):
        raise other_type(options.machine, before.instance_type, before.lnc, instance.name, lnc)
    return Definition(
        machine=options.machine,
        instance_type=instance.name,
        lnc=lnc,
        started_unix_s=before.started_unix_s if before is not None and same_type else time.time(),
        idle_exit_s=before.idle_exit_s if before is not None and options.resume else options.idle_exit_s,
        parent=_parent(options, before),
    )


def other_type(machine: str, runs: str, runs_lnc: int, wanted: str, wanted_lnc: int) -> DaemonError:
    """Return the error of a start under a name that belongs to another kind of machine."""
    with_lnc = runs == wanted
    return DaemonError(
        f"machine {machine!r} is {_kind(runs, runs_lnc, with_lnc=with_lnc)}, "
        f"not {_kind(wanted, wanted_lnc, with_lnc=with_lnc)}",
        "choose another name with --name, or stop it first: neurond stop" + _name_flag(machine),
    )


def _kind(instance_type: str, lnc: int, *, with_lnc: bool) -> str:
    return f"{instance_type} with LNC {lnc}" if with_lnc else instance_type


def _name_flag(machine: str) -> str:
    return "" if machine == env.DEFAULT_MACHINE else f" --name {machine}"


def _parent(options: StartOptions, before: Definition | None) -> ProcessKey | None:
    if options.parent_pid is not None:
        return key_of(options.parent_pid)
    if before is not None and before.parent is not None and is_alive(before.parent):
        return before.parent
    return None
