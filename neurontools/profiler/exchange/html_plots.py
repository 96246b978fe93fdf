"""Plots of the report as inline SVG: no script is needed to read them; a tooltip says the numbers."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

from neurontools.base.text import printable, short_operator
from neurontools.base.units import format_count, format_ns
from neurontools.profiler.trace.timeline import tick_step

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from neurontools.profiler.analysis.roofline import Roofline, RooflinePoint
    from neurontools.profiler.analysis.steps import ProcessSteps

_WIDTH, _HEIGHT = 860, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 16, 14, 42
_MOST_BARS = 240
_MOST_POINTS = 60
_LABELLED = 6
PARTS = (
    ("compile_ns", "compile"),
    ("load_ns", "load"),
    ("transfer_ns", "transfer"),
    ("execute_ns", "execute"),
    ("idle_ns", "idle"),
)


def text_of(value: object) -> str:
    """Return a text as HTML."""
    return escape(printable(str(value)))


def steps_plot(steps: ProcessSteps) -> str:
    """Return measured steps as stacked bars; of very many, the longest of each stretch."""
    size = len(steps)
    stretch = -(-size // _MOST_BARS)
    drawn = [
        max(range(first, min(first + stretch, size)), key=lambda place: int(steps.duration_ns[place]))
        for first in range(0, size, stretch)
    ]
    typical = steps.duration_ns[steps.steady]
    highest = max(int(typical.max()) * 9 // 8, 1)  # first steps, which compile, would make all others flat
    plot_width, plot_height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    pitch = min(plot_width / len(drawn), 40.0)
    parts = []
    for index, place in enumerate(drawn):
        step = steps[place]
        left, bottom = _LEFT + index * pitch, float(_TOP + plot_height)
        title = f"step {step.number}: {format_ns(step.duration_ns)}, " + ", ".join(
            f"{label} {format_ns(getattr(step, name))}" for name, label in PARTS
        )
        bars = []
        for name, label in PARTS:
            height = min(plot_height * getattr(step, name) / highest, bottom - _TOP)
            bottom -= height
            bars.append(_rect(left, bottom, pitch * 0.85, height, label))
        if step.duration_ns > highest:
            bars.append(_rect(left, _TOP + 8, pitch * 0.85, 3, "cut"))
        parts.append(f"<g><title>{text_of(title)}</title>{''.join(bars)}</g>")
    ticks = range(0, highest + 1, tick_step(highest, 5))
    axis = [_level(_TOP + plot_height * (1 - tick / highest), format_ns(tick)) for tick in ticks]
    what = f"steps {steps[0].number} to {steps[-1].number}"
    what += f", the longest of every {stretch}" if stretch > 1 else ""
    what += (
        ", bars with a gap are longer" if any(steps.duration_ns[place] > highest for place in drawn) else ""
    )
    return _svg([*axis, *parts, _caption(what)], f"Time of {what}")


def _rect(left: float, top: float, width: float, height: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.2f}"/>'


def _level(top: float, label: str) -> str:
    return (
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{top:.1f}" y2="{top:.1f}"/>'
        f'<text x="{_LEFT - 8}" y="{top + 4:.1f}" text-anchor="end">{text_of(label)}</text>'
    )


def _column(left: float, label: str) -> str:
    bottom = _HEIGHT - _BOTTOM
    return (
        f'<line class="grid" x1="{left:.1f}" x2="{left:.1f}" y1="{_TOP}" y2="{bottom}"/>'
        f'<text x="{left:.1f}" y="{bottom + 16}" text-anchor="middle">{text_of(label)}</text>'
    )


def _caption(text: str) -> str:
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    return f'<text x="{middle:.0f}" y="{_HEIGHT - 6}" text-anchor="middle">{text_of(text)}</text>'


def _svg(parts: Iterable[str], label: str) -> str:
    return f'<svg role="img" aria-label="{text_of(label)}" viewBox="0 0 {_WIDTH} {_HEIGHT}">{"".join(parts)}</svg>'


def roofline_plot(found: Roofline) -> str:
    """Return operators on a roofline, both axes logarithmic; "" without peaks or operators that compute."""
    points = [point for point in found.points if point.flops and math.isfinite(point.intensity)]
    points = points[:_MOST_POINTS]
    if not points or not found.ridge:
        return ""
    axes = _Axes(points, found)
    left, right = axes.lowest_x, axes.highest_x
    roof = [(left, left * found.peak_bytes_s), (found.ridge, found.peak_flops_s), (right, found.peak_flops_s)]
    line = " ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in roof)
    ridge = axes.x(found.ridge)
    parts = [
        *(_column(axes.x(10.0**power), f"10^{power}") for power in axes.powers_x),
        *(_level(axes.y(10.0**power), format_count(10.0**power)) for power in axes.powers_y),
        f'<polyline class="roof" points="{line}"/>',
        f'<line class="ridge" x1="{ridge:.1f}" x2="{ridge:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>',
        *(_dot(axes, point) for point in reversed(points)),
        *_names(axes, points[:_LABELLED]),
        _caption("FLOP per byte of HBM; vertical: FLOP/s; area of a dot: its time"),
    ]
    return _svg(parts, "Roofline of operators")


class _Axes:
    """Logarithmic axes that hold all points and the ridge."""

    def __init__(self, points: Sequence[RooflinePoint], found: Roofline) -> None:
        xs = [point.intensity for point in points] + [found.ridge]
        ys = [point.flops_s for point in points] + [found.peak_flops_s]
        self._low_x, self._high_x = math.floor(math.log10(min(xs))), math.ceil(math.log10(max(xs) * 1.5))
        self._low_y, self._high_y = (
            math.floor(math.log10(min(ys) / 1.5)),
            math.ceil(math.log10(max(ys) * 1.2)),
        )
        self.lowest_x = max(10.0**self._low_x, 10.0**self._low_y / found.peak_bytes_s)
        self.highest_x = 10.0**self._high_x

    @property
    def powers_x(self) -> range:
        """Powers of ten on the axis."""
        return range(self._low_x, self._high_x + 1)

    @property
    def powers_y(self) -> range:
        """Powers of ten on the axis."""
        return range(self._low_y, self._high_y + 1)

    def x(self, value: float) -> float:
        """Return where an intensity is."""
        share = (math.log10(value) - self._low_x) / (self._high_x - self._low_x)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        """Return where a speed is."""
        share = (math.log10(value) - self._low_y) / (self._high_y - self._low_y)
        return _TOP + (1 - share) * (_HEIGHT - _TOP - _BOTTOM)


def _dot(axes: _Axes, point: RooflinePoint) -> str:
    radius = 3 + 13 * math.sqrt(min(point.share, 1.0))
    title = (
        f"{point.name}: {format_ns(point.total_ns)}, {format_count(point.flops_s)}FLOP/s, "
        f"{point.intensity:.3g} FLOP/B, bound by {point.bound}, {point.roof_share:.0%} of the roof"
    )
    return (
        f'<circle class="{point.bound}" cx="{axes.x(point.intensity):.1f}" cy="{axes.y(point.flops_s):.1f}" '
        f'r="{radius:.1f}"><title>{text_of(title)}</title></circle>'
    )


def _names(axes: _Axes, points: Sequence[RooflinePoint]) -> list[str]:
    """Return names beside dots, moved up where they would touch."""
    taken: list[tuple[float, float]] = []
    names = []
    for point in points:
        left, top = axes.x(point.intensity) + 10, axes.y(point.flops_s) + 4
        while any(abs(top - other) < 13 and abs(left - side) < 170 for side, other in taken):
            top -= 13
        taken.append((left, top))
        anchor = "start"
        if left > _WIDTH - 200:
            left, anchor = left - 22, "end"
        names.append(
            f'<text x="{left:.1f}" y="{top:.1f}" text-anchor="{anchor}">{text_of(short_operator(point.name)[:28])}</text>'
        )
    return names
