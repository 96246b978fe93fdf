"""No overflow and no overlap at any size of the terminal and of the machine."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from neurontools.tui.top.layout import (
    FLOPS_WIDTHS,
    PERCENT_WIDTHS,
    CellStyle,
    core_grid,
    screen_layout,
    too_small,
)
from neurontools.tui.top.model import TopModel
from neurontools.tui.top.screen import classic_frame, text_screen
from neurontools.tui.top.source import SourceProblem, TimedSnapshot
from neurontools.tui.widgets.lines import Role, dotted, text_of, width_of, wrapped

Make = Callable[..., tuple[TimedSnapshot, TimedSnapshot]]
Job = Callable[..., object]

widths, heights = st.integers(60, 300), st.integers(16, 100)
devices, cores = st.integers(1, 16), st.integers(1, 8)


@given(widths, heights, devices, cores, st.sampled_from([PERCENT_WIDTHS, FLOPS_WIDTHS]))
def test_panes_share_the_height(width: int, height: int, count: int, per_device: int, values: object) -> None:
    layout = screen_layout(width, height, count, per_device, values)  # type: ignore[arg-type]
    assert 12 + layout.grid.lines + layout.tree_lines + sum(layout.blanks) == height
    assert layout.grid.lines >= 1
    assert layout.tree_lines >= 3
    assert layout.grid.columns * (5 + per_device * layout.grid.cell) <= width


@given(
    size=st.tuples(widths, heights),
    machine=st.tuples(devices, cores),
    flops=st.booleans(),
    colour=st.booleans(),
    moves=st.integers(0, 200),
    tag=st.text(max_size=30),
    trouble=st.sampled_from(["", "machine stopped, waiting for it", "x" * 200]),
)
@example((60, 16), (16, 8), True, True, 3, "a" * 255, "x" * 200)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_line_fills_its_row(
    ticks: Make,
    job: Job,
    size: tuple[int, int],
    machine: tuple[int, int],
    flops: bool,
    colour: bool,
    moves: int,
    tag: str,
    trouble: str,
) -> None:
    count = machine[0] * machine[1]
    busy = tuple((index * 37 % 101) / 100 for index in range(count))
    model = TopModel(colour=colour)
    for tick in ticks(*machine, jobs=(job(7, tag, tuple(range(count)), busy, 80e12), job(8, "", (), ()))):
        model.update(tick)
    if flops:
        model.toggle_flops()
    model.tree.toggle_all()
    model.tree.move(moves)
    model.update(SourceProblem(trouble)) if trouble else None
    model.step_tab(moves % 3)
    lines = [line for pane in classic_frame(model, *size).values() for line in pane]
    assert len(lines) == size[1]
    assert {sum(width_of(text) for text, _ in line) for line in lines} == {size[0]}


def test_before_the_first_snapshot_the_screen_is_whole_too() -> None:
    lines = [line for pane in classic_frame(TopModel(), 80, 24).values() for line in pane]
    assert len(lines) == 24
    assert {len(text_of(line)) for line in lines} == {80}


@pytest.mark.parametrize(
    ("width", "height", "count", "per_device", "columns", "style"),
    [
        (80, 24, 1, 2, 1, CellStyle.FULL),  # trn1.2xlarge
        (80, 24, 16, 2, 2, CellStyle.FULL),  # trn1.32xlarge
        (80, 24, 12, 2, 2, CellStyle.FULL),  # inf2.48xlarge
        (80, 24, 16, 4, 2, CellStyle.COMPACT),  # trn2.48xlarge
        (120, 40, 16, 4, 1, CellStyle.FULL),
        (200, 60, 16, 8, 1, CellStyle.FULL),  # trn2.48xlarge, LNC=1
        (60, 16, 16, 8, 1, CellStyle.VALUE),
        (60, 16, 1, 32, 1, CellStyle.METER),
    ],
)
def test_cores_are_drawn_as_fully_as_the_terminal_allows(
    width: int, height: int, count: int, per_device: int, columns: int, style: CellStyle
) -> None:
    grid = screen_layout(width, height, count, per_device, PERCENT_WIDTHS).grid
    assert (grid.columns, grid.style) == (columns, style)


@given(widths, st.integers(1, 88), devices, cores)
def test_one_device_a_line_wherever_that_shows_all(
    width: int, lines: int, count: int, per_device: int
) -> None:
    grid = core_grid(width, lines, count, per_device, PERCENT_WIDTHS)
    assert grid.lines <= lines
    if grid.visible < count:
        assert (grid.columns, grid.lines) == (1, lines)
    if count <= lines and (width - 5) // per_device >= 13:
        assert (grid.columns, grid.lines, grid.style) == (1, count, CellStyle.FULL)


def test_what_is_too_small() -> None:
    assert [too_small(60, 16), too_small(59, 40), too_small(200, 15)] == [False, True, True]


def test_the_device_of_the_selected_row_is_in_view(ticks: Make) -> None:
    model = TopModel()
    for tick in ticks(16, 8):
        model.update(tick)
    for device in range(16):
        model.tree.select(device)
        shown = [text_of(line) for line in classic_frame(model, 60, 16)["cores"]]
        assert any(re.match(rf" ND{device} ", line) for line in shown), device
        assert re.search(r"ND\d+-ND\d+ of 16", shown[0])
        tree = [text_of(line) for line in classic_frame(model, 60, 16)["details"]]
        assert any(f"[+] ND{device:2d} " in line for line in tree)


def test_text_shows_every_device_and_the_open_tree(training: tuple[TimedSnapshot, TimedSnapshot]) -> None:
    model = TopModel(colour=False)
    for tick in training:
        model.update(tick)
    model.tree.toggle_all()
    text = text_screen(model, 80)
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert all(f" ND{device}" in text for device in range(16))
    assert text.count("bert-large-train") == 31
    assert "neuron-top" in text.splitlines()[0]
    assert not text.endswith("\n")


@given(st.text(alphabet="ab -é日e\u0301", max_size=60), st.integers(2, 20))
def test_a_wrapped_text_keeps_its_words_and_its_width(text: str, width: int) -> None:
    pieces = wrapped(text, width)
    assert all(width_of(piece) <= width for piece in pieces)
    assert "".join("".join(pieces).split()) == "".join(text.split())


@given(st.lists(st.text(alphabet="ab é日", max_size=12), max_size=4), st.integers(2, 30))
def test_a_line_that_is_cut_says_so(texts: list[str], width: int) -> None:
    whole = "".join(texts)
    line = text_of(dotted([(text, Role.PLAIN) for text in texts], width))
    assert width_of(line) == width
    assert line.endswith("…") == (width_of(whole) > width)
    assert width_of(whole) > width or line.startswith(whole)
