"""The links of one device in full: state, modelled load over the last minute, and how often each broke."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from neurontools.dashboard.events import MachineEventKind
from neurontools.dashboard.links import links
from neurontools.dashboard.machine_history import HistorySlot, summary
from neurontools.tui.top.numbers import percent
from neurontools.tui.top.pages.curves import merged, values_of
from neurontools.tui.widgets.charts import wide_chart
from neurontools.tui.widgets.frames import chrome_lines, framed, inner_width
from neurontools.tui.widgets.lines import Line, Role, Span, fit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neurontools.dashboard.links import DeviceLink
    from neurontools.tui.top.model import TopModel

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
