"""Ranks on a machine: cores are claimed while the test runs, and telemetry shows the executions."""

from __future__ import annotations

import os
import re
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from neurontools import env
from neurontools.collectives.fabric import Fabric, find_fabric
from neurontools.errors import UsageError
from neurontools.machine import launch
from neurontools.machine.client import Client
from neurontools.machine.instances.catalogue import instance_type
from neurontools.machine.pages.page import PageWriter
from neurontools.machine.snapshot import MemoryUse
from neurontools.runtime.core_claim import release_cores
from neurontools.runtime.faults import Faults
from neurontools.runtime.log import RuntimeLog
from neurontools.runtime.models import Model
from neurontools.runtime.status import RUNTIME_VERSION, NrtError, NrtStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

LNC = "NEURON_LOGICAL_NC_CONFIG"
ROOT_COMM_ID = "NEURON_RT_ROOT_COMM_ID"

_ADDRESS = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[^:\s]+):(\d{1,5})", re.ASCII)

_TAG_CHARACTERS = 255

_T = TypeVar("_T")
# Executions of one row that telemetry shows; writing more would take longer than anything else.
_COUNTED_MAX = 200


class Ranks:
    """Executes the iterations of a row. Without a machine nothing is claimed and nothing is counted."""

    def execute(self, _times_s: tuple[float, ...], work: Callable[[], _T], /) -> tuple[_T, tuple[float, ...]]:
        """Do `work` in a first iteration, then the others.

        Returns:
            The result of `work`, and for the first iterations how many times as long as modelled they take; those
            that follow take as long as the last of them.

        Raises:
            NrtError: a fault makes an iteration fail.
        """
        return work(), ()


class ClaimedRanks(Ranks):
    """Ranks on claimed cores.

    Args:
        writer: the process's telemetry page.
        faults: the machine's faults; asked only while some are armed for this process.
        uses_links: whether the ranks are on several devices, so that a broken link makes them fail.
        paced: whether every iteration lasts as long as the model says.
    """

    def __init__(self, writer: PageWriter, faults: Faults, *, uses_links: bool, paced: bool) -> None:
        self._writer = writer
        self._faults = faults
        self._uses_links = uses_links
        self._paced = paced

    def execute(self, times_s: tuple[float, ...], work: Callable[[], _T], /) -> tuple[_T, tuple[float, ...]]:
        """Do `work` in a first iteration, then the others, all of them counted in the telemetry page."""
        result, slower = self._iteration(times_s[0], work)
        others = times_s[1:] if self._paced else times_s[1:_COUNTED_MAX]
        return result, (slower, *(self._iteration(time_s, lambda: None)[1] for time_s in others))

    def _iteration(self, time_s: float, work: Callable[[], _T]) -> tuple[_T, float]:
        cores = self._writer.cores
        statuses: list[int] = [NrtStatus.NRT_FAILURE] * len(cores)
        since_ns, slower = time.monotonic_ns(), 1.0
        for slot in range(len(cores)):
            self._writer.begin(slot)
        try:
            reached: list[int] = [NrtStatus.NRT_SUCCESS] * len(cores)
            if self._writer.armed_faults:
                slower = self._meet_faults(cores, statuses, reached)
            result = work()
            if self._paced:
                time.sleep(max(since_ns + time_s * slower * 1e9 - time.monotonic_ns(), 0) / 1e9)
            statuses = reached
        finally:
            wall_ns = time.monotonic_ns() - since_ns
            for slot, status in enumerate(statuses):
                self._writer.end(slot, status, wall_ns)
        return result, slower

    def _meet_faults(self, cores: tuple[int, ...], statuses: list[int], reached: list[int]) -> float:
        # The slowest rank decides how long all take; where one fails, the others cannot finish.
        slowest = 1.0
        for slot, core in enumerate(cores):
            model = Model(
                "nccom-test", b"", core, core, b"", 0, 0, 0, MemoryUse(), self._uses_links, model_id=1
            )
            try:
                _, reached[slot], slower = self._faults.execute(model, lambda: None)
            except NrtError as error:
                statuses[slot] = error.status
                raise
            slowest = max(slowest, slower)
        return slowest


@dataclass(frozen=True, slots=True)
class TargetMachine:
    """A machine as a test sees it: its name, fabric and cores."""

    name: str
    fabric: Fabric
    cores: tuple[int, ...]


def find_machine(machine: str, on_notice: Callable[[str], None]) -> TargetMachine:
    """Return a machine, started if need be.

    Raises:
        NoMachineError: it does not run and may not be started.
        DaemonError: the daemon refuses or fails.
    """
    launch.ensure_running(machine, on_notice)
    with Client.connect(machine) as client:
        seen = client.snapshot()
    cores = tuple(core for device in seen.devices for core in device.core_ids)
    return TargetMachine(machine, find_fabric(seen.instance_type, seen.lnc), cores)


def check_lnc(view: TargetMachine, wanted: int | None) -> None:
    """Refuse a machine with another logical NeuronCore configuration than NEURON_LOGICAL_NC_CONFIG says.

    Raises:
        UsageError: they differ.
    """
    if wanted is not None and wanted != view.fabric.lnc:
        kind = instance_type(view.fabric.instance)
        start = f"start one with it: neurond start --instance {kind.name} --lnc {wanted} --machine NAME"
        raise UsageError(
            f"NEURON_LOGICAL_NC_CONFIG={wanted}, but machine {view.name!r} runs with {view.fabric.lnc}",
            start if wanted in kind.device.lnc_choices else f"unset it: {kind.name} has no other",
        )


@contextmanager
def claim_ranks(machine: TargetMachine | None, cores: Sequence[int]) -> Iterator[Ranks]:
    """Hold the cores of the ranks; without a machine nothing is held.

    Raises:
        CoresBusyError, DeviceLostError: cores are not free, or lost.
        DaemonError: the daemon refuses or fails.
    """
    if machine is None:
        yield Ranks()
        return
    uses_links = len({machine.fabric.device_of(core) for core in cores}) > 1
    client = Client.connect(machine.name)
    try:
        registration = client.register(
            tag=os.environ.get("NEURON_PROCESS_TAG", "")[:_TAG_CHARACTERS],
            command=" ".join(sys.orig_argv),
            cores=tuple(sorted(cores)),
            runtime_version=RUNTIME_VERSION,
        )
        try:
            writer = PageWriter(registration.page_fd)
        finally:
            os.close(registration.page_fd)
        faults = Faults(client, writer, RuntimeLog(os.environ), os.environ, machine.fabric.instance)
        try:
            yield ClaimedRanks(writer, faults, uses_links=uses_links, paced=env.flag(env.PACE))
        finally:
            writer.close()
    finally:
        release_cores(client)


def requested_lnc(environ: Mapping[str, str]) -> int | None:
    """Return the logical NeuronCore configuration that NEURON_LOGICAL_NC_CONFIG asks for, None where it is unset.

    Raises:
        UsageError: it is neither 1 nor 2.
    """
    text = environ.get(LNC, "")
    if not text:
        return None
    if text not in {"1", "2"}:
        raise UsageError(f"{LNC}={text} is not a logical NeuronCore configuration", "set 1 or 2, or unset it")
    return int(text)


def check_root(environ: Mapping[str, str]) -> None:
    """Refuse MPI hosts without a usable NEURON_RT_ROOT_COMM_ID.

    Raises:
        UsageError: it is missing or not of the form host:port.
    """
    text = environ.get(ROOT_COMM_ID, "")
    match = _ADDRESS.fullmatch(text)
    if match is None or not 0 < int(match[1]) < 65536:
        problem = f"{ROOT_COMM_ID}={text} is not ip:port" if text else f"{ROOT_COMM_ID} is not set"
        raise UsageError(f"{problem}, which MPI hosts need", f"export {ROOT_COMM_ID}=10.0.0.1:46820")
