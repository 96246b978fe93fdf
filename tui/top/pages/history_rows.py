"""The rows of the page of histories: of cores and devices, of memory, of processes; some open to more rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from neurontools.dashboard.machine_history import MACHINE, Series
from neurontools.dashboard.process_history import LATENCIES, Measure
from neurontools.machine.view import device_processes, process_key
from neurontools.tui.top.pages.curves import Curve, Unit
from neurontools.tui.widgets.lines import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from neurontools.machine.snapshot import DeviceState, ProcessState
    from neurontools.machine.view import ProcessKey
    from neurontools.tui.top.model import TopModel

Opens = int | tuple[int, int] | None
"""What enter on a row opens or closes: a device by its index, a process by its key, nothing."""

_UNITS = {Measure.EXECUTIONS: Unit.RATE, **dict.fromkeys(LATENCIES, Unit.LATENCY)}


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """A row: what it is called, in the list and by itself, its curve, and what it opens."""

    label: str
    name: str
    curve: Curve
    opens: Opens = None


@dataclass(frozen=True, slots=True)
class View:
    """One kind of rows, which are made for a model with what is open; `label` is how many cells their labels take."""

    title: str
    label: int
    rows: Callable[[TopModel, Collection[Opens]], list[HistoryRow]]


def process_curve(model: TopModel, process: ProcessKey, measure: Measure) -> Curve:
    """Return what a process did over time."""
    histories = model.history.processes
    return Curve(
        _UNITS[measure],
        partial(histories.minute, process, measure),
        partial(histories.hour, process, measure),
    )


def _share(model: TopModel, series: Series) -> Curve:
    history = model.history
    return Curve(Unit.SHARE, partial(history.minute, series), partial(history.hour, series))


def _devices(model: TopModel) -> Sequence[DeviceState]:
    return model.snapshot.devices if model.snapshot else ()


def _utilization(model: TopModel, opened: Collection[Opens]) -> list[HistoryRow]:
    rows = [HistoryRow(" all cores", "all cores", _share(model, MACHINE))]
    for device in _devices(model):
        index = device.index
        is_open = index in opened
        rows.append(
            HistoryRow(f" {_sign(is_open)} ND{index}", f"ND{index}", _share(model, ("device", index)), index)
        )
        if is_open:
            rows += [
                HistoryRow(f"     NC{place}", f"NC{place}", _share(model, ("core", core)), index)
                for place, core in enumerate(sorted(device.core_ids))
            ]
    return rows


def _memory(model: TopModel, _opened: Collection[Opens]) -> list[HistoryRow]:
    return [
        HistoryRow(f" ND{device.index}", f"ND{device.index}", _share(model, ("memory", device.index)))
        for device in _devices(model)
    ]


def _executions(model: TopModel, _opened: Collection[Opens]) -> list[HistoryRow]:
    rows = []
    for process in _processes(model):
        name = _name(process)
        curve = process_curve(model, process_key(process), Measure.EXECUTIONS)
        rows.append(HistoryRow(f" {name}", f"{name}, executions/s", curve))
    return rows


def _latency(model: TopModel, opened: Collection[Opens]) -> list[HistoryRow]:
    rows = []
    for process in _processes(model):
        key, name = process_key(process), _name(process)
        is_open = key in opened
        curve = process_curve(model, key, Measure.P99)
        rows.append(HistoryRow(f" {_sign(is_open)} {name}", f"{name}, latency p99", curve, key))
        if is_open:
            rows += [
                HistoryRow(
                    f"     {measure}",
                    f"{name}, latency {measure}",
                    process_curve(model, key, measure),
                    key,
                )
                for measure in LATENCIES
            ]
    return rows


def _processes(model: TopModel) -> Sequence[ProcessState]:
    return device_processes(model.snapshot) if model.snapshot else ()


def _name(process: ProcessState) -> str:
    return f"{process.pid} {clean(process.tag or process.command)}"


def _sign(is_open: bool) -> str:
    return "[-]" if is_open else "[+]"


_CORES_LABEL = 14
_PROCESSES_LABEL = 28

VIEWS = (
    View("Utilization", _CORES_LABEL, _utilization),
    View("Memory used", _CORES_LABEL, _memory),
    View("Executions/s", _PROCESSES_LABEL, _executions),
    View("Latency p99", _PROCESSES_LABEL, _latency),
)
"""What the page can show, in the order in which its key goes through them."""
