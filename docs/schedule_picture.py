"""Draw the modelled schedule of one BERT-base layer: `python -m docs.schedule_picture [FILE]`.

The second of three layers is drawn (batch 1, 128 positions, trn1, bf16 products): its weights are loaded
while the layer before it still runs, as in the whole model. The default is docs/images/schedule-of-a-layer.svg.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.engine_model.transformers import encoder
from neurontools.compiler.engines.estimate import plan
from neurontools.compiler.engines.modelled_core import ModelledCore
from neurontools.compiler.engines.placement import Engine
from neurontools.machine.instances.catalogue import instance_type

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.compiler.engines.schedule import Schedule, Scheduled
    from neurontools.compiler.graph import Graph

PATH = Path(__file__).parent / "images" / "schedule-of-a-layer.svg"
_BERT = {"layers": 3, "width": 768, "heads": 12, "inner": 3072, "vocabulary": 30522}
_LAYER = 1
_INSTANCE = "trn1.2xlarge"

_ROWS = (Engine.DMA, Engine.TENSOR, Engine.VECTOR, Engine.SCALAR, Engine.GPSIMD)
_LEFT, _WIDTH, _TOP, _HEIGHT, _GAP = 92, 1000, 112, 34, 12
_SBUF_HEIGHT, _BELOW = 90, 46

# Parts of the layer in the order of its operators: name, the operators, colour.
_PARTS = (
    ("query, key, value", ("addmm",) * 3, "#4e8fd0"),
    ("attention", ("bmm", "div", "add", "_softmax", "bmm", "clone"), "#d99a2b"),
    ("attention output", ("addmm",), "#3fa7a0"),
    ("add, layer norm", ("add", "native_layer_norm"), "#9a7fd1"),
    ("feed-forward up", ("addmm",), "#6aa84f"),
    ("gelu", ("gelu",), "#d0648c"),
    ("feed-forward down", ("addmm",), "#b5713d"),
    ("add, layer norm", ("add", "native_layer_norm"), "#9a7fd1"),
)
_OTHERS = "#8a8f98"
_EXPLANATION = (
    "A box is a group of tiles: filled for the share of time in which the engine works, pale for waiting. "
    "Percentages: how long an engine works."
)

_STYLE = """
text { font-family: system-ui, "Segoe UI", "DejaVu Sans", sans-serif; font-size: 13px; fill: #2b3036 }
.small { font-size: 11.5px }
.title { font-size: 15px; font-weight: 600 }
.line { stroke: #8a8f98; stroke-opacity: .35 }
.lane { fill: #8a8f98; fill-opacity: .1 }
.interval { fill-opacity: .35 }
.critical { fill: none; stroke: #d5281f; stroke-width: 2 }
.in { font-size: 11px; text-anchor: middle }
.use { fill: #4e8fd0; fill-opacity: .35; stroke: #4e8fd0; stroke-width: 1.5 }
.limit { stroke: #d5281f; stroke-dasharray: 5 4 }
@media (prefers-color-scheme: dark) {
  text { fill: #d7dbe0 }
  .critical { stroke: #ff6b5e }
  .limit { stroke: #ff6b5e }
}
"""


class _Box(NamedTuple):
    """A group of tiles in the picture."""

    engine: Engine
    start_ns: float
    end_ns: float
    share: float  # of its time in which the engine works
    part: int  # number in _PARTS, -1 for an operator of another layer
    is_critical: bool
    title: str


class _Picture:
    def __init__(self, graph: Graph, planned: Schedule, machine: ModelledCore) -> None:
        self.planned = planned
        self.machine = machine
        self.parts = _parts_by_operator(graph)
        own = [group for group in planned.groups if group.operator in self.parts and group.instruction.count]
        computes = [group for group in own if group.engine is not Engine.DMA]
        self.start_ns = min(group.start_ns for group in computes)
        self.end_ns = max(group.end_ns for group in computes)
        critical = set(planned.critical_path())
        self.boxes = [
            _Box(
                group.engine,
                max(group.start_ns, self.start_ns),
                min(group.end_ns, self.end_ns),
                min(1.0, group.busy_ns / max(group.end_ns - group.start_ns, 1e-9)),
                self.parts.get(group.operator, -1),
                number in critical,
                _described(graph, group),
            )
            for number, group in enumerate(planned.groups)
            if group.instruction.count and group.end_ns > self.start_ns and group.start_ns < self.end_ns
        ]

    def x(self, at_ns: float) -> float:
        return round(_LEFT + (at_ns - self.start_ns) / (self.end_ns - self.start_ns) * _WIDTH, 1)

    def svg(self) -> str:
        rows = _TOP + len(_ROWS) * (_HEIGHT + _GAP)
        width, height = _LEFT + _WIDTH + 20, rows + 26 + _SBUF_HEIGHT + _BELOW
        parts = [
            *self._head(),
            *self._lanes(),
            *self._sbuf(rows + 26),
            *self._axis(rows + 26),
            *self._groups(),
        ]
        label = "modelled schedule of one BERT-base layer"
        size = f'viewBox="0 0 {width} {height}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}">'
        return "\n".join([head, f"<style>{_STYLE}</style>", *parts, "</svg>", ""])

    def _head(self) -> Iterator[str]:
        length = (self.end_ns - self.start_ns) / 1e3
        title = "One BERT-base layer on trn1, batch 1, 128 positions, bf16 products"
        yield _text(8, 22, f"{title}: {length:.0f} µs, modelled", "title")
        x = 8.0
        seen = dict.fromkeys((name, colour) for name, _, colour in _PARTS)
        for name, colour in (*seen, ("layers beside it", _OTHERS)):
            yield f'<rect x="{x}" y="40" width="13" height="13" rx="2" fill="{colour}"/>'
            yield _text(x + 18, 51, name, "small")
            x += 34 + 6.4 * len(name)
        yield f'<rect class="critical" x="{x}" y="41" width="13" height="11" rx="2"/>'
        yield _text(x + 19, 51, "critical path", "small")
        yield _text(8, 76, _EXPLANATION, "small")

    def _lanes(self) -> Iterator[str]:
        for number, engine in enumerate(_ROWS):
            y = _TOP + number * (_HEIGHT + _GAP)
            yield f'<rect class="lane" x="{_LEFT}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}"/>'
            yield _text(8, y + 17, engine, "")
            busy = sum((box.end_ns - box.start_ns) * box.share for box in self.boxes if box.engine is engine)
            yield _text(8, y + 31, f"{busy / (self.end_ns - self.start_ns):.0%}", "small")

    def _groups(self) -> Iterator[str]:
        # The critical path is drawn last, so that its frames are whole.
        for box in sorted(self.boxes, key=lambda box: box.is_critical):
            y = _TOP + _ROWS.index(box.engine) * (_HEIGHT + _GAP)
            x = self.x(box.start_ns)
            width = max(1.5, round(self.x(box.end_ns) - x, 1))
            name, _, colour = _PARTS[box.part] if box.part >= 0 else ("next layer", (), _OTHERS)
            full = round(_HEIGHT * box.share, 1)
            yield f'<g fill="{colour}"><title>{escape(box.title)}</title>'
            yield f'<rect class="interval" x="{x}" y="{y}" width="{width}" height="{_HEIGHT}" rx="2"/>'
            yield f'<rect x="{x}" y="{round(y + _HEIGHT - full, 1)}" width="{width}" height="{full}" rx="2"/></g>'
            if box.is_critical:
                inner = f'width="{round(max(0.5, width - 2), 1)}" height="{_HEIGHT - 2}"'
                yield f'<rect class="critical" x="{round(x + 1, 1)}" y="{y + 1}" {inner} rx="2"/>'
            if box.engine is Engine.DMA and width > 6.2 * len(name):
                label = f"weights: {name}" if width > 6.2 * len(f"weights: {name}") else name
                yield _text(round(x + width / 2, 1), y - 4, label, "in")

    def _sbuf(self, top: float) -> Iterator[str]:
        capacity = self.machine.sbuf_bytes

        def y(nbytes: float) -> float:
            return round(top + _SBUF_HEIGHT * (1 - nbytes / capacity), 1)

        yield f'<rect class="lane" x="{_LEFT}" y="{top}" width="{_WIDTH}" height="{_SBUF_HEIGHT}"/>'
        yield _text(8, top + 17, "SBUF", "")
        yield _text(8, top + 31, f"of {capacity / 2**20:.1f} MiB", "small")
        points: list[tuple[float, float]] = []
        used = 0
        for at_ns, nbytes in self.planned.sbuf_use():
            if self.start_ns < at_ns <= self.end_ns:
                points += [(self.x(at_ns), y(used)), (self.x(at_ns), y(nbytes))]
            if at_ns <= self.end_ns:
                used = nbytes
        points = [(float(_LEFT), points[0][1]), *points, (float(_LEFT + _WIDTH), y(used))]
        outline = " ".join(f"{x},{height}" for x, height in points)
        bottom = top + _SBUF_HEIGHT
        yield f'<polygon class="use" points="{_LEFT},{bottom} {outline} {_LEFT + _WIDTH},{bottom}"/>'
        yield f'<line class="limit" x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{top}" y2="{top}"/>'

    def _axis(self, top: float) -> Iterator[str]:
        bottom = top + _SBUF_HEIGHT
        for us in range(0, int((self.end_ns - self.start_ns) / 1e3) + 1, 10):
            x = self.x(self.start_ns + us * 1e3)
            yield f'<line class="line" x1="{x}" x2="{x}" y1="{_TOP - 8}" y2="{bottom + 5}"/>'
            yield _text(x, bottom + 20, f"{us}" if us else "0 µs", "in")


def _parts_by_operator(graph: Graph) -> dict[int, int]:
    """Return the number in _PARTS of each operator of the layer.

    Raises:
        ValueError: the layer has other operators.
    """
    names = [name for _, operators, _ in _PARTS for name in operators]
    numbers = [number for number, (_, operators, _) in enumerate(_PARTS) for _ in operators]
    calls = [node.op.split(".")[1] for node in graph.nodes]
    first = calls.index("addmm") + _LAYER * len(names)
    if calls[first : first + len(names)] != names:
        raise ValueError(f"the layer has other operators: {calls[first : first + len(names)]}")
    return {first + position: number for position, number in enumerate(numbers)}


def _described(graph: Graph, group: Scheduled) -> str:
    tiles, took, works = group.instruction.count, group.end_ns - group.start_ns, group.busy_ns
    what = f"{graph.nodes[group.operator].op}: {tiles} x {group.instruction.opcode}"
    return f"{what}, {took / 1e3:.1f} µs, the engine works for {works / 1e3:.1f} µs"


def _text(x: float, y: float, text: str, kind: str) -> str:
    styled = f' class="{kind}"' if kind else ""
    return f'<text{styled} x="{x}" y="{y}">{escape(text)}</text>'


def picture() -> str:
    """Return the picture as SVG."""
    graph = encoder(**_BERT, batch=1, length=128)
    device = instance_type(_INSTANCE).device
    machine = ModelledCore(device, device.lnc_default, "bf16")
    return _Picture(graph, plan(graph, machine), machine).svg()


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else PATH).write_text(picture(), encoding="utf-8")
