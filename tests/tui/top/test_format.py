"""Numbers as neuron-top writes them."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.tui.top import numbers
from neurontools.tui.widgets.lines import Role, fit, fixed, meter, stacked_meter, text_of, width_of, wrapped

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0.0B"),
        (1023, "1023.0B"),
        (1024, "1.0KB"),
        (256 * KIB, "256.0KB"),
        (round(12.4 * MIB), "12.4MB"),
        (round(17.5 * GIB), "17.5GB"),
        (1024 * MIB - 1, "1.0GB"),
        (512 * GIB, "512.0GB"),
        (1536 * GIB, "1.5TB"),
        (5000 * 1024 * GIB, "5000.0TB"),
    ],
)
def test_sizes_have_one_decimal_and_a_unit(count: int, text: str) -> None:
    assert numbers.size(count) == text


def test_recorded_forms() -> None:
    assert numbers.bracketed_percent(0.5681) == "[56.81%]"
    assert numbers.bracketed_percent(0.0072) == "[ 0.72%]"
    assert numbers.bracketed_percent(1.0) == "[100.00%]"
    assert numbers.percent(0.5686) == "56.86%"
    assert numbers.bracketed_cpu(0.0072, 0.0913) == "[ 0.72%, 9.13%]"
    assert numbers.teraflops(9.946e12) == "   9.946TF"
    assert numbers.teraflops(318.278e12) == " 318.278TF"
    assert numbers.bracketed_teraflops(10.004e12) == "[  10.004TF]"
    assert (numbers.device_label(0), numbers.device_label(10)) == ("ND 0", "ND10")


def test_a_bar_has_whole_steps_a_begun_one_and_the_rest() -> None:
    assert meter(0.55, 10, colour=True) == (
        ("|" * 5, Role.METER_ON),
        ("|", Role.METER_PART),
        ("|" * 4, Role.METER_OFF),
    )
    assert text_of(meter(0.55, 10, colour=False)) == "|||||:...."
    assert meter(1.0, 4, colour=True) == (("||||", Role.METER_ON),)
    assert meter(0.0, 4, colour=True) == (("||||", Role.METER_OFF),)
    assert meter(0.5, 2, colour=True, marked=True) == (("|", Role.MARKED_ON), ("|", Role.MARKED_OFF))
    assert text_of(stacked_meter(0.5, 0.25, 8, colour=False)) == "||||##.."


@given(st.floats(-1, 2), st.floats(-1, 2), st.integers(0, 80), st.booleans())
def test_bars_are_exactly_as_wide_as_asked(one: float, other: float, width: int, colour: bool) -> None:
    assert len(text_of(meter(one, width, colour=colour))) == width
    assert len(text_of(stacked_meter(one, other, width, colour=colour))) == width


@given(st.lists(st.text(max_size=12)), st.integers(0, 40))
def test_lines_fit_whatever_is_in_them(texts: list[str], width: int) -> None:
    line = fit(((text, Role.PLAIN) for text in texts), width)
    assert sum(width_of(text) for text, _ in line) == width
    pieces = [text_of(line), *(fixed(text, width) for text in texts), *wrapped("".join(texts), width + 1)]
    assert not [letter for text in pieces for letter in text if unicodedata.category(letter)[0] == "C"]
    assert all(width_of(fixed(text, width)) == width for text in texts)


def test_a_cut_name_says_so() -> None:
    assert fixed("bert-large-train.neff", 10) == "bert-larg…"
    assert fixed("short", 10) == "short     "


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0us"),
        (0.00085, "850us"),
        (0.0009997, "1.0ms"),
        (0.0123, "12.3ms"),
        (0.2904, "290ms"),
        (0.99996, "1.00s"),
        (99.996, "100s"),
        (125.4, "125s"),
        (12345.0, "12345s"),
    ],
)
def test_latencies_for_narrow_columns(seconds: float, text: str) -> None:
    assert numbers.short_latency(seconds) == text


@given(st.floats(0, 99_999))
def test_narrow_forms_have_at_most_six_cells(value: float) -> None:
    assert len(numbers.short_latency(value)) <= 6
    assert len(numbers.short_rate(value * 100)) <= 6
