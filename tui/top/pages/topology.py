"""A drawing of the links between devices: devices in rows, a line for each link, coloured by load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.dashboard.links import device_utilization, drawn_pairs, is_switched, links, placement
from neurontools.tui.top.numbers import short_percent
from neurontools.tui.widgets.bars import bar
from neurontools.tui.widgets.lines import Line, Role, Span, fit, heat

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from neurontools.dashboard.links import DeviceLink, Pair
    from neurontools.machine.snapshot import Snapshot

_NODE_WIDTH = 11
_LINK_WIDTH = 3
_MARGIN = 1
_LINK_COLUMN = 30
_NO_LINK = " " * _LINK_WIDTH


class Topology:
    """A drawing of one snapshot.

    Args:
        snapshot: the machine.
        utilization: of every core, by machine-wide id.
        selected: index of the marked device, None for none.
        alerts: indices of devices to mark.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        utilization: Mapping[int, float],
        selected: int | None,
        alerts: Mapping[int, object],
    ) -> None:
        self._devices = {device.index: device for device in snapshot.devices}
        self._utilization = utilization
        self._selected = selected
        self._alerts = alerts
        self._links = links(snapshot, utilization)

    def lines(self, width: int) -> list[Line]:
        """Return the drawing, the links it could not draw, and a legend."""
        indices = sorted(self._devices)
        if not self._links:
            return [fit(((" one device, no links" if len(indices) < 2 else " no links", Role.DIM),), width)]
        step = _NODE_WIDTH + _LINK_WIDTH
        most = max(1, (width - _LINK_WIDTH - _MARGIN) // step)
        switched = is_switched(indices, self._links)
        place = placement(indices, self._links, most)
        rows = [
            line
            for number in range(len(place.rows))
            for line in self._rows(place.rows, number, switched=switched)
        ]
        drawn = drawn_pairs(place)
        return [
            *(fit(spans, width) for spans in rows),
            *self._rest(drawn, width, switched=switched),
            *self._legend(width),
        ]

    def link_rows(self, width: int, room: int) -> Iterator[Line]:
        """Yield every link with a bar of its load: broken ones, those of the marked device, then the busiest."""
        links = sorted(
            self._links.values(),
            key=lambda link: (
                not link.is_down,
                self._selected not in link.devices,
                -(link.load or 0.0),
                link.devices,
            ),
        )
        columns = max(1, min(3, width // _LINK_COLUMN))
        cells = width // columns
        rows = -(-len(links) // columns)
        for number in range(min(room, rows)):
            spans: list[Span] = []
            for link in links[number::rows]:
                is_own = self._selected in link.devices
                name = f" {_named(link):<11}"
                spans.append((name, Role.ALERT if link.is_down else Role.STRONG if is_own else Role.HEAD))
                if link.is_down:
                    spans.append((f"{'down':<{cells - len(name)}}", Role.WARNING))
                    continue
                load = link.load or 0.0
                spans += [
                    *bar(load, cells - len(name) - 7),
                    (f" {short_percent(load)}  ", Role.PLAIN if load else Role.DIM),
                ]
            yield fit(spans, width)

    def _rows(
        self, rows: tuple[tuple[int | None, ...], ...], number: int, *, switched: bool
    ) -> list[list[Span]]:
        row = rows[number]
        first, last = row[0], row[-1]
        wrap = None if switched or len(row) < 3 else self._between(first, last)
        line: list[Span] = [(" " * _MARGIN, Role.PLAIN), self._across(wrap)]
        for at, device in enumerate(row):
            line.append(self._node(device))
            if at + 1 < len(row):
                line.append(self._across(None if switched else self._between(device, row[at + 1])))
        line.append(self._across(wrap))
        if switched:
            return [line]
        below = rows[number + 1] if number + 1 < len(rows) else None
        lines = [line]
        if below is not None:
            lines.append(self._down_spans(row, below))
        elif len(rows) > 2 and any(
            self._between(top, bottom) for top, bottom in zip(rows[0], row, strict=True)
        ):
            lines.append(self._down_spans(rows[0], row))
        if (
            number == 0
            and len(rows) > 2
            and any(self._between(top, low) for top, low in zip(row, rows[-1], strict=True))
        ):
            lines.insert(0, self._down_spans(row, rows[-1]))
        return lines

    def _down_spans(self, above: tuple[int | None, ...], below: tuple[int | None, ...]) -> list[Span]:
        spans: list[Span] = [(" " * (_MARGIN + _LINK_WIDTH), Role.PLAIN)]
        for first, second in zip(above, below, strict=True):
            link = self._between(first, second)
            spans += [(f"{_down(link):^{_NODE_WIDTH}}", _role(link)), (_NO_LINK, Role.PLAIN)]
        return spans

    def _between(self, first: int | None, second: int | None) -> DeviceLink | None:
        if first is None or second is None:
            return None
        return self._links.get((min(first, second), max(first, second)))

    def _node(self, index: int | None) -> Span:
        if index is None:
            return " " * _NODE_WIDTH, Role.PLAIN
        device = self._devices[index]
        share = device_utilization(device, self._utilization)
        value = "lost" if device.lost else f"{100 * share:3.0f}%"
        mark = "!" if index in self._alerts else " "
        text = f"[{mark}ND{index:<2d} {value}]"
        role = Role.ALERT if device.lost else heat(share) if share else Role.PLAIN
        return text, Role.ON_STRONG if index == self._selected else role

    def _across(self, link: DeviceLink | None) -> Span:
        if link is None:
            return _NO_LINK, Role.PLAIN
        return ("-x-" if link.is_down else "===" if link.load else "---"), _role(link)

    def _rest(self, drawn: set[Pair], width: int, *, switched: bool) -> list[Line]:
        lines = []
        if switched:
            text = (
                f" NeuronLink switch: each of the {len(self._devices)} devices is linked to every other one"
            )
            lines.append(fit(((text, Role.PLAIN),), width))
        others = [link for pair, link in sorted(self._links.items()) if pair not in drawn and not switched]
        if others:
            text = "  ".join(_named(link) for link in others)
            lines.append(fit(((f" also linked: {text}", Role.PLAIN),), width))
        broken = [link for link in self._links.values() if link.is_down]
        if broken:
            lines.append(fit(((f" down: {'  '.join(map(_named, broken))}", Role.ALERT),), width))
        return lines

    def _legend(self, width: int) -> list[Line]:
        spans: list[Span] = [
            (" --- no job spans it  ", Role.DIM),
            ("-x- ", Role.ALERT),
            ("down  ", Role.DIM),
            ("=== ", heat(0.5)),
            ("busy (modelled)", Role.DIM),
        ]
        return [fit((), width), fit(spans, width)]


def _role(link: DeviceLink | None) -> Role:
    if link is None:
        return Role.PLAIN
    return Role.ALERT if link.is_down else heat(link.load) if link.load else Role.DIM


def _down(link: DeviceLink | None) -> str:
    if link is None:
        return " "
    return "x" if link.is_down else "║" if link.load else "|"


def _named(link: DeviceLink) -> str:
    return f"ND{link.devices[0]}-ND{link.devices[1]}"
