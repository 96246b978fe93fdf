"""A recording as a source: lines that neuron-monitor wrote, real or simulated, as snapshots."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Self

from neurontools.errors import NeuronToolsError
from neurontools.machine.instances import catalogue
from neurontools.machine.snapshot import NO_ERRORS, DeviceState, Snapshot
from neurontools.monitor.codec import DamagedLineError, parse_line
from neurontools.monitor.report import SystemGroup
from neurontools.sources.reported_machine import ReportedMachine, cores_of, unknown_process

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.machine.instances.catalogue import InstanceType
    from neurontools.machine.snapshot import HardwareCounters, ProcessState

_RECORDED = "recorded"
_LONGEST_LINE_BYTES = 64 << 20
_ERRORS = b'"' + SystemGroup.HARDWARE_COUNTERS.encode() + b'"'


class RecordingError(NeuronToolsError):
    """A file that is not a recording of neuron-monitor."""


class RecordingSource:
    """The lines of a file as snapshots; a line that is cut off or damaged ends it, with a notice.

    Args:
        path: the file.

    Raises:
        RecordingError: it can't be read.
    """

    live = False

    def __init__(self, path: str) -> None:
        self.name = f"file:{os.path.basename(path)}"
        self.notices: tuple[str, ...] = ()
        self._path = path
        try:
            with open(path, "rb") as file:
                # The lines carry no dates; the last one is as old as the file.
                self._ended_unix_s = os.fstat(file.fileno()).st_mtime
                file.read(0)
        except OSError as error:
            raise RecordingError(
                f"cannot read the recording {path}: {error.strerror}", "use a file of neuron-monitor's lines"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing stays open."""

    def snapshot(self) -> Snapshot:
        """Return the machine as it was at the end.

        Raises:
            RecordingError: there is no line that can be used.
        """
        last: Snapshot | None = None
        for snapshot in self.snapshots():
            last = snapshot
        if last is None:
            raise self._empty()
        return last

    def watch(self, period_s: float) -> Iterator[Snapshot]:
        """Yield the snapshot of each line, one every `period_s` seconds whatever the lines say they cover.

        Raises:
            RecordingError: there is no line that can be used.
        """
        found = False
        for snapshot in self.snapshots():
            if found:
                time.sleep(period_s)
            found = True
            yield snapshot
        if not found:
            raise self._empty()

    def snapshots(self) -> Iterator[Snapshot]:
        """Yield the snapshot of each line without waiting.

        Raises:
            RecordingError: the file can't be read.
        """
        reported = _reported_machine()
        reported.errors.update(self._first_errors())
        for number, line in enumerate(self._lines(), start=1):
            try:
                report = parse_line(line)
            except DamagedLineError as error:
                problem = (
                    f"which is not a report ({error.message})" if line.endswith(b"\n") else "which is cut off"
                )
                self._notice(f"{self._path}: stopped at line {number}, {problem}")
                return
            reported.take(report)
            if reported.hardware.neuron_device_count:
                yield self._snapshot(reported)

    def _first_errors(self) -> dict[int, HardwareCounters]:
        """Return the memory errors of the first line that has them: before it they are unknown, not 0."""
        reported = _reported_machine()
        for line in self._lines():
            if _ERRORS in line:
                try:
                    reported.take(parse_line(line))
                except DamagedLineError:
                    break
                if reported.errors:
                    break
        return reported.errors

    def _lines(self) -> Iterator[bytes]:
        try:
            with open(self._path, "rb") as file:
                while line := file.readline(_LONGEST_LINE_BYTES):
                    if line.strip():
                        yield line
        except OSError as error:
            raise RecordingError(f"cannot read the recording {self._path}: {error.strerror}") from error

    def _snapshot(self, reported: ReportedMachine) -> Snapshot:
        hardware, instance = reported.hardware, reported.instance
        processes = reported.processes()
        return Snapshot(
            machine=self.name.removeprefix("file:"),
            source="recording",
            instance_type=instance.instance_type,
            instance_id=instance.instance_id,
            lnc=max(1, hardware.logical_neuroncore_config),
            lnc_applies=_lnc_applies(instance.instance_type, hardware.logical_neuroncore_config),
            neuroncore_version=hardware.neuroncore_version,
            taken_ns=round(reported.clock_s * 1e9),
            taken_unix_s=self._ended_unix_s + reported.clock_s,
            started_unix_s=self._ended_unix_s,
            devices=reported_devices(reported, processes),
            processes=processes,
        )

    def _notice(self, text: str) -> None:
        if text not in self.notices:
            self.notices += (text,)

    def _empty(self) -> RecordingError:
        message = (
            self.notices[0] if self.notices else f"{self._path} has no line of neuron-monitor with devices"
        )
        return RecordingError(message, "record one with: neuron-monitor > FILE")


def _reported_machine() -> ReportedMachine:
    return ReportedMachine(lambda pid, tag: unknown_process(pid, tag, _RECORDED))


def reported_devices(
    reported: ReportedMachine, processes: tuple[ProcessState, ...]
) -> tuple[DeviceState, ...]:
    """Return the devices of the reports, with PCI addresses and links from the catalogue's instance type."""
    instance = known_instance(reported.instance.instance_type)
    used: dict[int, int] = {}
    for process in processes:
        for use in process.cores:
            used[use.core] = used.get(use.core, 0) + use.memory.total_bytes
    fits = instance is not None and instance.device_count == reported.hardware.neuron_device_count
    return tuple(
        DeviceState(
            index=index,
            bdf=instance.pci_bdf[index] if instance and fits else "",
            cpu_affinity=instance.cpu_affinity[index] if instance and fits else "",
            numa_node=instance.numa_node[index] if instance and fits else "-1",
            connected_to=instance.connected_to[index] if instance and fits else None,
            core_ids=cores,
            memory_bytes=reported.hardware.neuron_device_memory_size,
            memory_used_bytes=sum(used.get(core, 0) for core in cores),
            hardware=reported.errors.get(index, NO_ERRORS),
        )
        for index, cores in cores_of(reported.hardware).items()
    )


def known_instance(name: str) -> InstanceType | None:
    """Return an instance type of the catalogue, None when it is not in there."""
    try:
        return catalogue.instance_type(name)
    except catalogue.UnknownInstanceError:
        return None


def _lnc_applies(instance_type: str, lnc: int) -> bool:
    instance = known_instance(instance_type)
    return lnc > 1 if instance is None else instance.lnc_applies
