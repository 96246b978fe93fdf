"""One device in full: cores, memory by category, processes, errors, links over the last minute."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.base.text import printable
from neurontools.dashboard.events import MachineEventKind
from neurontools.dashboard.links import DeviceLink, links
from neurontools.dashboard.machine_history import HistorySlot, summary
from neurontools.machine.machine_names import core_ranges
from neurontools.machine.snapshot import DeviceState, HardwareCounter, MemoryCategory
from neurontools.tui.top.numbers import percent, size
from neurontools.tui.top.pages.curves import merged, values_of
from neurontools.tui.top.pages.memory_tree import CATEGORY_NAMES
from neurontools.tui.widgets.bars import bar
from neurontools.tui.widgets.charts import wide_chart
from neurontools.tui.widgets.frames import chrome_lines, framed, inner_width
from neurontools.tui.widgets.lines import Line, Role, Span, fact_lines, fit, fixed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from neurontools.tui.top.model import TopModel


_LABEL_WIDTH = 20
_METER_WIDTH = 30
_AFTER_METER = 40
_VALUE = 11
_MOST_CURVE = 120
_ON_DEVICE = (
    MemoryCategory.TENSORS,
    MemoryCategory.CONSTANTS,
    MemoryCategory.MODEL_CODE,
    MemoryCategory.MODEL_SHARED_SCRATCHPAD,
    MemoryCategory.RUNTIME_MEMORY,
)
_UNCORRECTED = "uncorrected"


def device_lines(
    model: TopModel, device: DeviceState, width: int, *, has_links: bool = True
) -> Iterator[Line]:
    """Yield the details of a device, its links among them unless they are shown elsewhere."""
    for alert in model.monitor.alerts_of_device.get(device.index, ()):
        yield from fact_lines("", f"! {alert.condition}: {printable(alert.text)}", width, 1, Role.ALERT)
    yield from _fact(
        "address",
        f"{device.bdf or '-'}, NUMA node {device.numa_node}, CPUs {device.cpu_affinity or '-'}",
        width,
    )
    state = (
        "lost" if device.lost else "unhealthy: " + ", ".join(device.unhealthy) if device.unhealthy else "good"
    )
    yield from _fact("state", state, width, Role.ALERT if device.lost or device.unhealthy else Role.VALUE)
    if not device.lost and (found := power_of(model, device)):
        lowest, highest = percent(found.lowest).strip(), percent(found.highest).strip()
        text = f"{percent(found.mean).strip()}, from {lowest} to {highest} in the last minute"
        yield from _fact("power", text + (" (modelled)" if found.is_modelled else ""), width)
    if not device.lost:
        yield from _cores(model, device, width)
    yield from _memory(model, device, width)
    yield from _processes(model, device, width)
    yield from _errors(device, width)
    if has_links:
        yield from _links(model, device, width)


@dataclass(frozen=True, slots=True)
class Power:
    """The power of a device over the last minute, as shares (0..1) of its maximum."""

    lowest: float
    highest: float
    mean: float
    is_modelled: bool


def power_of(model: TopModel, device: DeviceState) -> Power | None:
    """Return the driver's values; for a simulated device the share of time its cores executed; else None."""
    if device.power is not None:
        return Power(*device.power, is_modelled=False)
    seen = [slot for slot in model.history.minute(("device", device.index)) if slot]
    if not seen or model.shown.snapshot is None or model.shown.snapshot.source != "sim":
        return None
    mean = sum(slot.mean for slot in seen) / len(seen)
    lowest, highest = min(slot.mean for slot in seen), max(slot.peak for slot in seen)
    return Power(lowest, highest, mean, is_modelled=True)


def _fact(name: str, text: str, width: int, role: Role = Role.PLAIN) -> Iterator[Line]:
    return fact_lines(name, text, width, _LABEL_WIDTH, role)


def _meter_line(
    label: str, share: float, values: Iterable[Span], width: int, *, capacity: bool = False
) -> Line:
    cells = max(_METER_WIDTH, (width - _LABEL_WIDTH - _AFTER_METER) // 2)
    drawn = bar(share, cells, capacity=capacity)
    return fit(((fixed(label, _LABEL_WIDTH), Role.HEAD), *drawn, *values), width)


def _cores(model: TopModel, device: DeviceState, width: int) -> Iterator[Line]:
    for place, core in enumerate(sorted(device.core_ids)):
        rate = model.shown.rates.get(core)
        share = rate.utilization if rate else 0.0
        cells = max(_METER_WIDTH, (width - _LABEL_WIDTH - _AFTER_METER) // 2)
        room = max(1, width - _LABEL_WIDTH - cells - _VALUE - 1)
        values = values_of(model.history.minute(("core", core)))
        curve = wide_chart(values, min(room, _MOST_CURVE), 1)[0][0][0]
        value = (f" {percent(share):>8}  ", Role.VALUE if share else Role.DIM)
        yield _meter_line(f" NC{place} (core {core})", share, (value, (curve, Role.GRAPH)), width)


def _memory(model: TopModel, device: DeviceState, width: int) -> Iterator[Line]:
    used, whole = device.memory_used_bytes, device.memory_bytes
    share = used / whole if whole else 0.0
    if device.lost:
        yield from _fact("HBM in use", "unknown, the device is lost", width, Role.DIM)
        return
    value = (f" {percent(share):>8}  {size(used)} of {size(whole)}", Role.VALUE if used else Role.DIM)
    yield _meter_line(" HBM in use", share, (value,), width, capacity=True)
    own = set(device.core_ids)
    snapshot = model.shown.snapshot
    uses = (
        [use.memory for process in snapshot.processes for use in process.cores if use.core in own]
        if snapshot
        else []
    )
    parts = {
        CATEGORY_NAMES[category]: sum(getattr(memory, category) for memory in uses) for category in _ON_DEVICE
    }
    # What a driver or an exporter counts beside what it tells of processes.
    if (rest_bytes := used - sum(parts.values())) > 0:
        parts["Other"] = rest_bytes
    for name, count in parts.items():
        part = count / whole if whole else 0.0
        value = (f" {percent(part):>8}  {size(count)}", Role.PLAIN if count else Role.DIM)
        yield _meter_line(f"   {name}", part, (value,), width)


def _processes(model: TopModel, device: DeviceState, width: int) -> Iterator[Line]:
    own = set(device.core_ids)
    users = [row for row in model.shown.processes if any(use.core in own for use in row.process.cores)]
    if not users:
        yield from _fact("processes", "none", width, Role.DIM)
    for number, row in enumerate(users):
        process = row.process
        held = core_ranges(tuple(use.core for use in process.cores if use.core in own))
        text = f"{process.pid}  cores {held}  {printable(process.tag or process.command)}"
        yield from _fact("" if number else "processes", fixed(text, width - _LABEL_WIDTH).rstrip(), width)


def _errors(device: DeviceState, width: int) -> Iterator[Line]:
    for number, counter in enumerate(HardwareCounter):
        count = getattr(device.hardware, counter)
        role = Role.DIM if not count else Role.ALERT if _UNCORRECTED in counter else Role.PLAIN
        yield from _fact("" if number else "memory errors", f"{count:>8}  {counter}", width, role)


def _links(model: TopModel, device: DeviceState, width: int) -> Iterator[Line]:
    if model.shown.snapshot is None:
        return
    utilization = {core: rate.utilization for core, rate in model.shown.rates.items()}
    own_links = [
        link for pair, link in links(model.shown.snapshot, utilization).items() if device.index in pair
    ]
    if not own_links:
        yield from _fact("links", "none", width, Role.DIM)
    for number, link in enumerate(sorted(own_links, key=lambda link: link.devices)):
        peer = sum(link.devices) - device.index
        state = (
            "down"
            if link.is_down
            else "up"
            if link.load is None
            else f"up, load {percent(link.load).strip()} (modelled)"
        )
        yield from _fact(
            "" if number else "links",
            f"ND{peer:<3d} {state}",
            width,
            Role.ALERT if link.is_down else Role.PLAIN,
        )


_AXIS = 6
_MOST_CHART_LINES = 8
_LINES_BESIDE_CHART = 2


def link_pane(model: TopModel, device: int, size: tuple[int, int], *, boxed: bool = True) -> list[Line]:
    """Return the links of a device in a frame: a chart for each, as high as there is room.

    Args:
        model: the data.
        device: its index.
        size: cells across and down.
        boxed: whether the frame has sides.
    """
    width, height = inner_width(size[0], boxed=boxed), size[1] - chrome_lines(boxed=boxed)
    body: list[Line] = []
    found = _links_of(model, device)
    loaded = max(1, sum(link.load is not None for link in found))
    has_gaps = height >= _LINES_BESIDE_CHART * len(found) + loaded
    spare = height - (_LINES_BESIDE_CHART if has_gaps else 1) * len(found)
    high = min(_MOST_CHART_LINES, spare // loaded)
    for link in found:
        body += _link_lines(model, link, width, high)
        body += [fit((), width)] * has_gaps
    if not found:
        body = [fit(((" no links", Role.DIM),), width)]
    return framed(f"Links of ND{device}", body, size, note="last minute, load is modelled", boxed=boxed)


def _links_of(model: TopModel, device: int) -> list[DeviceLink]:
    if model.shown.snapshot is None:
        return []
    utilization = {core: rate.utilization for core, rate in model.shown.rates.items()}
    found = links(model.shown.snapshot, utilization)
    return [found[pair] for pair in sorted(found) if device in pair]


def _link_lines(model: TopModel, link: DeviceLink, width: int, lines: int) -> Iterator[Line]:
    name = f" ND{link.devices[0]}-ND{link.devices[1]}"
    breaks = [
        event.unix_s
        for event in model.monitor.events
        if event.kind is MachineEventKind.LINK_DOWN and (event.device, event.peer) == link.devices
    ]
    spans: list[Span] = [(f"{name:<13}", Role.STRONG)]
    if link.is_down:
        since = f" since {time.strftime('%H:%M:%S', time.localtime(breaks[-1]))}" if breaks else ""
        spans.append((f"down{since}", Role.WARNING))
    elif link.load is None:
        spans.append(("up, no job spans it", Role.DIM))
    else:
        slots = _load(model, link)
        found = summary(slots)
        text = f"  avg {percent(found.mean).strip()}  peak {percent(found.peak).strip()}" if found else ""
        spans += [(f"up, load {percent(link.load).strip()}", Role.VALUE), (text, Role.DIM)]
    if breaks:
        spans.append((f"  broke {len(breaks)}x", Role.ALERT))
    yield fit(spans, width)
    if link.load is None or lines < 1:
        return
    drawn = wide_chart(values_of(_load(model, link)), max(1, width - _AXIS - 1), lines)
    for number, spans_of_line in enumerate(drawn):
        mark = "100%" if number == 0 and lines > 1 else "0%" if number == lines - 1 else ""
        yield fit(((f"{mark:>{_AXIS}} ", Role.DIM), *spans_of_line), width)


def _load(model: TopModel, link: DeviceLink) -> Sequence[HistorySlot | None]:
    return merged([model.history.minute(("device", device)) for device in link.devices], min)
