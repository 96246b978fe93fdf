"""The layout: how many lines and columns of the terminal each pane gets. Pure arithmetic."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

MIN_WIDTH = 60
MIN_HEIGHT = 16

DEVICE_LABEL_WIDTH = 5
_FRAME_LINES = 12  # title 1, cores 2, vCPU 3, summary 3, details 1, bottom 2
_FEWEST_TREE_LINES = 3
_COMFORTABLE_TREE_LINES = 10
_MOST_BLANKS = 4
_SMALLEST_BAR = 4


class CellStyle(Enum):
    """How a core is drawn: bar and full value, bar and short value, short value alone, bar alone."""

    FULL = "full"
    COMPACT = "compact"
    VALUE = "value"
    METER = "meter"


class ValueWidths(Struct, frozen=True):
    """Width of a core's value in full and in short form."""

    full: int
    short: int


PERCENT_WIDTHS = ValueWidths(full=8, short=4)
FLOPS_WIDTHS = ValueWidths(full=12, short=6)


class CoreGrid(Struct, frozen=True):
    """Devices in `columns` side by side, `lines` of them visible, each core `cell` wide plus a blank."""

    columns: int
    lines: int
    cell: int
    style: CellStyle

    @property
    def visible(self) -> int:
        """The number of devices visible at once."""
        return self.columns * self.lines


class ScreenLayout(Struct, frozen=True):
    """Lines of each pane; blank lines go above the first panes. They add up to the terminal's height."""

    grid: CoreGrid
    tree_lines: int
    blanks: tuple[int, ...]


def too_small(width: int, height: int) -> bool:
    """Return whether a terminal cannot hold the dashboard."""
    return width < MIN_WIDTH or height < MIN_HEIGHT


def screen_layout(width: int, height: int, devices: int, cores: int, values: ValueWidths) -> ScreenLayout:
    """Divide a terminal among the panes.

    Args:
        width: cells in a line, at least `MIN_WIDTH`.
        height: lines, at least `MIN_HEIGHT`.
        devices: number of devices of the machine.
        cores: logical cores of a device.
        values: widths of a core's value.
    """
    spare = height - _FRAME_LINES
    tree_lines = max(_FEWEST_TREE_LINES, min(8, height // 6))
    grid = core_grid(width, spare - tree_lines, devices, cores, values)
    tree_lines = spare - grid.lines
    spare = tree_lines - _COMFORTABLE_TREE_LINES
    blanks = _MOST_BLANKS if spare >= _MOST_BLANKS else 1 if spare >= 1 else 0
    above = tuple(int(index < blanks) for index in range(_MOST_BLANKS))
    return ScreenLayout(grid, tree_lines - blanks, above)


def core_grid(width: int, most_lines: int, devices: int, cores: int, values: ValueWidths) -> CoreGrid:
    """Choose how cores are drawn: one device per line if that fits, then side by side, then shorter.

    If no layout shows all devices, there is one device per line and the pane scrolls.
    """
    narrowest_cells = {
        CellStyle.FULL: values.full + _SMALLEST_BAR + 1,
        CellStyle.COMPACT: values.short + _SMALLEST_BAR,
        CellStyle.VALUE: values.short + 1,
        CellStyle.METER: 0,
    }
    for style in (CellStyle.FULL, CellStyle.COMPACT):
        columns = 1
        while (cell := _cell_width(width, columns, cores)) >= narrowest_cells[style]:
            lines = -(-devices // columns)
            if lines <= most_lines:
                return CoreGrid(columns, lines, cell, style)
            columns += 1
    cell = _cell_width(width, 1, cores)
    style = next(
        (style for style, narrowest in narrowest_cells.items() if cell >= narrowest), CellStyle.METER
    )
    return CoreGrid(1, min(devices, most_lines), cell, style)


def _cell_width(width: int, columns: int, cores: int) -> int:
    column = (width - (columns - 1)) // columns
    return (column - DEVICE_LABEL_WIDTH) // max(1, cores)
