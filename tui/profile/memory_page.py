"""The page of memory: the device's over time (measured), what was alive at the peak, SBUF and PSUM of the program (modelled)."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from textual.binding import Binding

from neurontools.base import units
from neurontools.errors import NeuronToolsError
from neurontools.profiler.analysis.programs import busiest_program, core_memory, on_chip_use
from neurontools.tui.profile.page import ProfileListPage
from neurontools.tui.profile.timeline_drawing import short_label
from neurontools.tui.widgets.bars import bar, blocks
from neurontools.tui.widgets.charts import wide_chart
from neurontools.tui.widgets.frames import beside, chrome_lines, framed, inner_width, is_boxed, row
from neurontools.tui.widgets.lines import Role, fit, fixed, wrapped
from neurontools.tui.widgets.table_lines import Cursor, TableColumn, TableLayout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual import events
    from textual.binding import BindingType

    from neurontools.profiler.analysis.programs import MemoryCurve, MemoryOwner, OnChipUse
    from neurontools.profiler.trace.trace import Trace
    from neurontools.tui.widgets.lines import Line, Span
    from neurontools.tui.widgets.theme import Theme

_BAR = 14
_COLUMNS = (
    TableColumn("alive at the peak", right=False),
    TableColumn("line", 26, right=False, rank=2),
    TableColumn("buffers", 8, rank=1),
    TableColumn("size", 10),
    TableColumn("", _BAR, right=False, rank=3),
)
_LIST = 46
_LISTED_FROM = 100
_NOTHING = "No device memory was recorded: the profile has no allocations."


class MemoryPage(ProfileListPage):
    """Memory of one core, with all cores beside it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab,n", "core(1)", "next core", key_display="Tab", show=False),
        Binding("shift+tab,N", "core(-1)", "previous core", key_display="⇧Tab", show=False),
    ]
    title = "Memory"

    def __init__(self, trace: Trace, look: Theme, *, id: str) -> None:  # noqa: A002
        super().__init__(trace, look, id=id)
        self._chosen = Cursor()
        self._list_lines = 0

    @cached_property
    def _cores(self) -> tuple[MemoryCurve, ...]:
        return core_memory(self._trace)

    @cached_property
    def _on_chip(self) -> OnChipUse | str:
        """Use of SBUF and PSUM, or why it is not known."""
        program = busiest_program(self._trace)
        if not program:
            return "no program of this profile can be read"
        try:
            return on_chip_use(self._trace, program)
        except NeuronToolsError as error:
            return error.message

    @property
    def count(self) -> int:
        """Number of rows: what was alive at the peak."""
        return len(self._core.owners) if self._cores else 0

    @property
    def _core(self) -> MemoryCurve:
        return self._cores[self._chosen.row]

    def action_core(self, step: int) -> None:
        """Show another core; after the last the first."""
        if self._cores:
            self._chosen.row = (self._chosen.row + step) % len(self._cores)
            self.cursor.row = 0
        self.draw()

    def on_click(self, event: events.Click) -> None:
        """Show the core that is clicked, or select a row."""
        x, y = event.screen_x - self.region.x, event.screen_y - self.region.y
        number = self._chosen.first + y - 1
        if 0 < y < self._list_lines + 1 and x >= self.size.width - _LIST and number < len(self._cores):
            self.action_core(number - self._chosen.row)
            return
        super().on_click(event)

    def lines(self, width: int, height: int) -> list[Line]:
        """Return the panes."""
        if not self._cores and isinstance(self._on_chip, str):
            return self.no_data(f"{_NOTHING} SBUF: {self._on_chip}.")
        boxed = is_boxed(width, height)
        third = max(height // 3, 4)
        self._top = third + 2
        return [
            *self._device((width, third), boxed=boxed),
            *self._owners((width, height - 2 * third), boxed=boxed),
            *self._chip((width, third), boxed=boxed),
        ][:height]

    def _device(self, size: tuple[int, int], *, boxed: bool) -> list[Line]:
        inner = inner_width(size[0], boxed=boxed)
        room = size[1] - chrome_lines(boxed=boxed)
        if not self._cores:
            text = [fit(((f" {piece}", Role.DIM),), inner) for piece in wrapped(_NOTHING, inner - 2)]
            return framed("Device memory", text, size, boxed=boxed)
        has_list = len(self._cores) > 1 and size[0] >= _LISTED_FROM
        self._list_lines = room if has_list else 0
        across = size[0] - _LIST if has_list else size[0]
        inner = inner_width(across, boxed=boxed)
        core = self._core
        shares = self._shares(core, 2 * inner, core.peak_bytes)
        peak = f"peak {units.format_size(core.peak_bytes)} at {units.format_ns(core.peak_ns)}"
        title = f"Device memory of {self._label_of(core)}"
        if len(self._cores) > 1:
            title += f", {self._chosen.row + 1} of {len(self._cores)} cores"
        axis = _axis(units.format_size(core.peak_bytes), self._trace.end_ns)
        chart = framed(
            title,
            _with_axis(wide_chart(shares, inner, max(room - 1, 1)), axis, inner),
            (across, size[1]),
            note=f"{peak}, measured",
            foot="tab next core" if len(self._cores) > 1 else "",
            boxed=boxed,
        )
        return beside(chart, self._list((_LIST, size[1]), boxed=boxed)) if has_list else chart

    def _list(self, size: tuple[int, int], *, boxed: bool) -> list[Line]:
        """Return the curves of all cores on one scale."""
        inner = inner_width(size[0], boxed=boxed)
        most = max(core.peak_bytes for core in self._cores)
        cells = inner - 24
        body = []
        for number in self._chosen.window(len(self._cores), size[1] - chrome_lines(boxed=boxed)):
            core = self._cores[number]
            spans = (
                (fixed(self._label_of(core), 11) + " ", Role.PLAIN),
                (blocks(self._shares(core, cells, most)), Role.GRAPH),
                (units.format_size(core.peak_bytes).rjust(10), Role.VALUE),
            )
            body.append(row(spans, inner, selected=number == self._chosen.row))
        return framed("Cores", body, size, note="peak", boxed=boxed)

    def _shares(self, core: MemoryCurve, count: int, most: int) -> list[float]:
        times = np.linspace(0, self._trace.end_ns, count).astype(np.int64)
        shares: list[float] = (core.at(times) / max(most, 1)).tolist()
        return shares

    def _label_of(self, core: MemoryCurve) -> str:
        has_several = len({each.row.process for each in self._cores}) > 1
        return short_label(core.row, has_several=has_several).removesuffix(" wall")

    def _owners(self, size: tuple[int, int], *, boxed: bool) -> list[Line]:
        inner = inner_width(size[0], boxed=boxed)
        layout = TableLayout(_COLUMNS, inner)
        room = size[1] - chrome_lines(boxed=boxed) - 1
        body = self.table(layout, room, self._core.owners if self._cores else (), self._owner_cells)
        return framed("Peak", body, size, boxed=boxed, foot="↑↓ select")

    def _owner_cells(self, owner: MemoryOwner) -> tuple[Span | tuple[Span, ...], ...]:
        return (
            (owner.name, Role.PLAIN),
            (owner.source.rpartition("/")[2] or "-", Role.DIM),
            (str(owner.buffers), Role.DIM),
            (units.format_size(owner.nbytes), Role.VALUE),
            bar(owner.nbytes / max(self._core.peak_bytes, 1), _BAR),
        )

    def _chip(self, size: tuple[int, int], *, boxed: bool) -> list[Line]:
        use = self._on_chip
        if isinstance(use, str):
            inner = inner_width(size[0], boxed=boxed)
            text = [fit(((f" {piece}", Role.DIM),), inner) for piece in wrapped(use, inner - 2)]
            return framed("SBUF and PSUM", text, size, boxed=boxed)
        left = (size[0] // 2, size[1])
        right = (size[0] - left[0], size[1])
        sbuf_axis = _axis(units.format_size(use.sbuf_bytes), use.total_ns)
        psum_axis = _axis(f"{use.psum_banks} banks", use.total_ns)
        sbuf = _use(use.sbuf, use.sbuf_bytes, use.total_ns, left, sbuf_axis, boxed=boxed)
        psum = _use(use.psum, use.psum_banks, use.total_ns, right, psum_axis, boxed=boxed)
        sbuf_peak = max((used for _, used in use.sbuf), default=0)
        psum_peak = max((used for _, used in use.psum), default=0)
        sizes = f"{units.format_size(sbuf_peak)} of {units.format_size(use.sbuf_bytes)}, modelled"
        banks = f"{psum_peak} of {use.psum_banks} banks, modelled"
        name = f"SBUF of {use.program}"
        return beside(
            framed(name, sbuf, left, note=sizes, boxed=boxed),
            framed("PSUM", psum, right, note=banks, boxed=boxed),
        )


def _use(
    steps: Sequence[tuple[float, int]],
    most: int,
    total_ns: int,
    size: tuple[int, int],
    axis: str,
    *,
    boxed: bool,
) -> Sequence[Line]:
    """Return the use of a memory over an execution as a chart."""
    width = inner_width(size[0], boxed=boxed)
    height = max(size[1] - chrome_lines(boxed=boxed), 1)
    if not steps:
        return [fit(((" not used", Role.DIM),), width)]
    starts = np.array([start for start, _ in steps])
    used = np.array([value for _, value in steps])
    times = np.linspace(0, total_ns, 2 * width)
    step = np.searchsorted(starts, times, side="right") - 1
    shares = np.where(step < 0, 0, used[np.maximum(step, 0)]) / max(most, 1)
    chart = wide_chart(np.minimum(shares, 1.0).tolist(), width, max(height - 1, 1))
    return _with_axis(chart, axis, width)


def _axis(highest: str, total_ns: int) -> str:
    """Return what the height and the width of a chart stand for."""
    return f" 0 to {highest} up, 0 to {units.format_ns(total_ns)} across"


def _with_axis(chart: Sequence[Line], axis: str, width: int) -> list[Line]:
    """Return a chart with what its width stands for below."""
    return [*chart, fit(((axis, Role.DIM),), width)]
