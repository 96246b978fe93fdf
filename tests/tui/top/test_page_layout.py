"""No page overflows at any size of the terminal and of the machine, whatever is open on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from neurontools.tui.top.keys import ANYWHERE, CLASSIC
from neurontools.tui.top.model import TopModel
from neurontools.tui.top.page import filled
from neurontools.tui.top.pages.columns import COLUMNS, DEFAULT_COLUMNS, duration, fitting, latency
from neurontools.tui.top.pages.registry import make_pages, page_data, page_text
from neurontools.tui.top.screen import keys_bar, page_keys, page_names
from neurontools.tui.widgets.bars import blocks
from neurontools.tui.widgets.charts import braille, chart
from neurontools.tui.widgets.lines import width_of
from neurontools.tui.widgets.screens import help_lines, key_rows

if TYPE_CHECKING:
    from neurontools.tui.top.source import TimedSnapshot

Make = Callable[..., "tuple[TimedSnapshot, TimedSnapshot]"]
Job = Callable[..., object]


@given(
    size=st.tuples(st.integers(60, 300), st.integers(16, 100)),
    machine=st.tuples(st.integers(0, 16), st.integers(1, 32)),
    page=st.integers(0, 4),
    presses=st.lists(st.integers(0, 60), max_size=6),
    colour=st.booleans(),
    tag=st.text(max_size=30),
    links=st.integers(0, 5),
)
@example((60, 16), (16, 32), 3, [8], True, "日本語" * 9, 1)
@example((80, 24), (16, 32), 2, [8, 8], False, "a" * 255, 2)
@example((80, 24), (0, 8), 1, [8], False, "", 0)
@example((80, 24), (0, 8), 3, [9, 10], False, "", 0)
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_line_of_every_page_fits(
    ticks: Make,
    job: Job,
    size: tuple[int, int],
    machine: tuple[int, int],
    page: int,
    presses: list[int],
    colour: bool,
    tag: str,
    links: int,
) -> None:
    count = machine[0] * machine[1]
    busy = tuple((index * 37 % 101) / 100 for index in range(count))
    model = TopModel(colour=colour)
    jobs = (job(7, tag, tuple(range(count)), busy, 80e12), job(8, "", (), ()))
    for tick in ticks(*machine, jobs=jobs):
        devices = tuple(
            replace(
                device,
                connected_to=tuple(
                    other for other in range(machine[0]) if 0 < abs(other - device.index) <= links
                ),
            )
            for device in tick.snapshot.devices
        )
        model.update(replace(tick, snapshot=replace(tick.snapshot, devices=devices)))
    pages = make_pages()
    shown = pages[page]
    keys = shown.bindings()
    for press in presses:
        if keys:
            keys[press % len(keys)].run(model)
    width, height = size
    lines = shown.lines(model, width, height - 3)
    assert len(lines) <= height - 3
    for line in (
        *filled(lines, width, height - 3),
        *filled(shown.live_lines(model, width, height - 3), width, height - 3),
        page_names(pages, shown, model, width).line,
        page_keys(pages, shown, {}, width).line,
        keys_bar(shown, {}, width),
    ):
        assert sum(width_of(text) for text, _ in line) == width
    assert all(len(line) <= width for line in page_text(shown, model, width).splitlines() if line.isascii())
    assert page_data(shown, model)["page"] == shown.name


@given(st.integers(20, 300))
def test_help_fits_any_width(width: int) -> None:
    for line in help_lines([("Keys", key_rows([*ANYWHERE, *CLASSIC]))], ["a note"], width, 2):
        assert sum(width_of(text) for text, _ in line) == width


@given(st.integers(60, 300))
def test_the_columns_that_fit_fit_and_the_pid_is_among_them(width: int) -> None:
    shown = fitting(DEFAULT_COLUMNS, width)
    columns = shown.columns
    assert 2 + sum(shown.width_of(column) + 1 for column in columns) <= width
    assert {"pid", "utilization", "command"} <= {column.name for column in columns}
    assert [column for column in DEFAULT_COLUMNS if column in columns] == list(columns)


def test_every_column_has_a_key_of_its_own_that_stands_in_its_head() -> None:
    keys = [column.key for column in COLUMNS.values()]
    assert len(set(keys)) == len(keys)
    assert all(column.key in column.head for column in COLUMNS.values())


shares = st.one_of(st.none(), st.floats(0, 1))


@given(st.lists(shares, min_size=1, max_size=60), st.integers(1, 8), st.integers(1, 4))
def test_charts_are_as_large_as_asked_for(values: list[float | None], lines: int, stretch: int) -> None:
    drawn = chart(values, lines, stretch)
    assert len(drawn) == lines
    assert {len(line) for line in drawn} == {-(-len(values) * stretch // 2)}
    assert len(blocks(values)) == len(values)
    assert len(braille(values)) == -(-len(values) // 2)


def test_charts_tell_a_gap_from_zero_and_zero_from_all() -> None:
    assert blocks((None, 0.0, 1.0)) == " ▁█"
    assert braille((None, None, 0.0, 0.0, 1.0, 1.0)) == " ⣀⣿"
    assert chart((1.0, 0.5), 2) == ("⡇", "⣿")


def test_short_forms() -> None:
    assert [duration(age) for age in (5, 65, 3700, 90000)] == ["5s", "1m05s", "1h01m", "1d01h"]
    assert [latency(value) for value in (None, 85e-5, 0.0123, 1.2)] == ["-", "850us", "12.3ms", "1.20s"]


@given(st.integers(60, 200), st.integers(0, 4))
def test_the_current_page_is_named_at_the_top_and_the_bottom_and_a_click_finds_each(
    width: int, at: int
) -> None:
    pages = make_pages()
    top, bottom = (
        page_names(pages, pages[at], TopModel(), width),
        page_keys(pages, pages[at], {}, width),
    )
    for line in (top, bottom):
        text = "".join(text for text, _ in line.line)
        assert pages[at].title in text
        assert [name.position for name in line.names] == list(range(len(pages)))
        for name in line.names:
            assert line.at(name.left) == line.at(name.right - 1) == name.position
    assert top.at(width - 1) is None
