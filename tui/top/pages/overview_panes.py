"""The panes of the overview: processors, memory, its tree, history, processes, events."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from neurontools.base.text import printable
from neurontools.dashboard.events import PROBLEMS, fold
from neurontools.dashboard.machine_history import MACHINE, HistorySlot
from neurontools.machine.memory_tree import NodeKind
from neurontools.machine.snapshot import MemoryUse
from neurontools.tui.top.numbers import size
from neurontools.tui.top.pages.memory_tree import DEVICE_LABELS, HOST_LABELS, label
from neurontools.tui.widgets.bars import bar, stack_role, stacked_bar
from neurontools.tui.widgets.charts import wide_chart
from neurontools.tui.widgets.frames import row
from neurontools.tui.widgets.lines import Line, Role, Span, dotted, fit, fixed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neurontools.machine.host import CpuShare
    from neurontools.machine.snapshot import DeviceState
    from neurontools.tui.top.model import TopModel
    from neurontools.tui.top.pages.memory_tree import TreeRow

_CPU_LABEL = 9
_CPU_VALUE = 24
_MEMORY_LABEL = 8
_TOTAL = 20
_TREE_BAR, _MOST_TREE_BAR = 12, 60
_TREE_NAME = 44
_SIZE = 9
_AXIS = 5
_ON_DEVICE = ("tensors", "constants", "model_code", "runtime_memory", "model_shared_scratchpad")


def cpu_rows(model: TopModel, width: int) -> Iterator[Line]:
    """Yield the host's CPUs, and the share of the machine's processes."""
    for name, share in (("System", model.shown.system_cpu), ("Runtime", model.shown.runtime_cpu)):
        yield _cpu_row(name, share if model.shown.has_rates else None, width)


def _cpu_row(name: str, share: CpuShare | None, width: int) -> Line:
    user, system = (share.user, share.system) if share else (0.0, 0.0)
    value = f" {100 * user:5.1f}% usr {100 * system:5.1f}% sys" if share else f" {'-':>6} usr {'-':>6} sys"
    room = max(4, width - _CPU_LABEL - len(value) - 1)
    return fit(
        (
            (f" {name:<{_CPU_LABEL - 1}}", Role.HEAD),
            *stacked_bar((user, system), room),
            (value, Role.PLAIN if user + system else Role.DIM),
        ),
        width,
    )


def memory_rows(model: TopModel, width: int) -> Iterator[Line]:
    """Yield the memory of all devices by category as a bar of their capacity, its legend, and the host's memory."""
    view, snapshot = model.shown.view, model.shown.snapshot
    device = view.memory.device if view else MemoryUse()
    host = view.memory.host if view else MemoryUse()
    whole = sum(one.memory_bytes for one in snapshot.devices if not one.lost) if snapshot else 0
    parts = [getattr(device, name) for name in _ON_DEVICE]
    total = f" {size(device.total_bytes)} of {size(whole)}"
    room = max(4, width - _MEMORY_LABEL - max(_TOTAL, len(total)) - 1)
    yield fit(
        (
            (f" {'HBM':<{_MEMORY_LABEL - 1}}", Role.HEAD),
            *stacked_bar([part / whole if whole else 0.0 for part in parts], room),
            (total, Role.PLAIN if device.total_bytes else Role.DIM),
        ),
        width,
    )
    legend: list[Span] = [(" " * _MEMORY_LABEL, Role.PLAIN)]
    for number, (name, count) in enumerate(zip(_ON_DEVICE, parts, strict=True)):
        if count:
            text = f" {DEVICE_LABELS[name][1].lower()} {size(count)}  "
            legend += [("■", stack_role(number)), (text, Role.PLAIN)]
    yield dotted(legend, width)
    spans: list[Span] = [(f" {'Host':<{_MEMORY_LABEL - 1}}", Role.HEAD)]
    for name, names in HOST_LABELS.items():
        count = host.total_bytes if name == "total_bytes" else getattr(host, name)
        if count or name == "total_bytes":
            text = f"{names[1].rstrip('.').lower()} {size(count)}  "
            spans.append((text, Role.PLAIN if count else Role.DIM))
    yield dotted(spans, width)


def tree_rows(model: TopModel, width: int, first: int, room: int) -> Iterator[Line]:
    """Yield the visible rows of the memory tree, each with a bar of its share of the device."""
    shown = model.tree.rows[first : first + room]
    snapshot = model.shown.snapshot
    states = {device.index: device for device in snapshot.devices} if snapshot else {}
    for at, one in enumerate(shown, first):
        yield row(_tree_spans(one, states, width - 1), width, selected=at == model.tree.selected)


def _tree_spans(one: TreeRow, states: dict[int, DeviceState], width: int) -> tuple[Span, ...]:
    node = one.node
    sign = "  " if one.opened is None else "▾ " if one.opened else "▸ "
    name = "  " * one.depth + sign + label(node)
    if node.kind is NodeKind.MODEL:
        name += f"  #{node.number}"
    lost = node.kind is NodeKind.DEVICE and node.number in states and states[node.number].lost
    cells = max(_TREE_BAR, min(_MOST_TREE_BAR, width - 2 * _SIZE - _TREE_NAME))
    room = max(8, width - 2 * _SIZE - cells - 2)
    if lost:
        return (fixed(name, room), Role.ALERT), ("  lost", Role.WARNING)
    used = bool(node.device_bytes or node.host_bytes)
    role = Role.PLAIN if used and node.running else Role.DIM
    whole = _capacity(node.key, states)
    share = node.device_bytes / whole if whole else 0.0
    return (
        (fixed(name, room), role),
        (" ", role),
        *(bar(share, cells) if whole else ((" " * cells, role),)),
        (f" {size(node.device_bytes):>{_SIZE}}", role if node.device_bytes else Role.DIM),
        (f"{size(node.host_bytes):>{_SIZE}}", role if node.host_bytes else Role.DIM),
    )


def _capacity(key: Sequence[object], states: dict[int, DeviceState]) -> int:
    # The key of a device, and of all that is in it, begins with ("device", index).
    if len(key) > 1 and key[0] == "device" and key[1] in states:
        return states[key[1]].memory_bytes
    return 0


def history_rows(slots: Sequence[HistorySlot | None], width: int, lines: int) -> Iterator[Line]:
    """Yield a chart of shares with an axis."""
    values = [None if slot is None else slot.mean for slot in slots]
    drawn = wide_chart(values, max(1, width - _AXIS - 1), lines)
    for number, spans in enumerate(drawn):
        mark = "100%" if number == 0 else "0%" if number == lines - 1 else ""
        if lines >= 5 and number == lines // 2:
            mark = "50%"
        yield fit(((f"{mark:>{_AXIS}} ", Role.DIM), *spans), width)


def history_note(slots: Sequence[HistorySlot | None]) -> str:
    """Return average and peak."""
    known = [slot for slot in slots if slot]
    if not known:
        return ""
    mean, peak = sum(slot.mean for slot in known) / len(known), max(slot.peak for slot in known)
    return f"last minute: avg {100 * mean:.1f}%  peak {100 * peak:.1f}%"


def machine_minute(model: TopModel) -> Sequence[HistorySlot | None]:
    """Return the last minute of the mean over all cores."""
    return model.history.minute(MACHINE)


def event_rows(model: TopModel, width: int, room: int) -> Iterator[Line]:
    """Yield active alerts, then events, newest first."""
    alerts = model.monitor.alerts[: max(1, room // 2)]
    if not alerts and not model.monitor.events:
        yield dotted(((" no events since neuron-top started", Role.DIM),), width)
    for alert in alerts:
        yield dotted(((" ! now      ", Role.ALERT), (printable(alert.text), Role.ALERT)), width)
    for one in fold(reversed(model.monitor.events))[: max(0, room - len(alerts))]:
        event = one.newest
        when = time.strftime("%H:%M:%S", time.localtime(event.unix_s))
        is_problem = event.kind in PROBLEMS
        yield dotted(
            (
                (f" {'!' if is_problem else '·'} {when} ", Role.ALERT if is_problem else Role.DIM),
                (printable(one.text), Role.PLAIN),
            ),
            width,
        )
