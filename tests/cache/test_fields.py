from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.base.units import format_age, format_size, format_size_both, parse_age, parse_size
from neurontools.errors import UsageError


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("17", 17),
        ("17B", 17),
        ("20GB", 20 * 10**9),
        ("20G", 20 * 10**9),
        ("20GiB", 20 * 2**30),
        ("20gib", 20 * 2**30),
        ("1.5 MB", 1_500_000),
        ("2K", 2000),
        ("1TiB", 2**40),
    ],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "GB", "-1", "1e9", "10 apples", "1iB", "9" * 40, "1.2.3G", "inf"])
def test_what_is_not_a_size_is_reported(text: str) -> None:
    with pytest.raises(UsageError, match="size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30d", 2_592_000),
        ("12h", 43_200),
        ("90s", 90),
        ("2w", 1_209_600),
        ("1h30m", 5400),
        ("0", 0),
        ("1.5h", 5400),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_age(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "d", "-3d", "3 apples", "1d2", "1e3s", "nan"])
def test_what_is_not_a_duration_is_reported(text: str) -> None:
    with pytest.raises(UsageError, match="duration"):
        parse_age(text)


@given(st.text(max_size=12))
def test_no_text_makes_another_error(text: str) -> None:
    for parse in (parse_size, parse_age):
        try:
            assert parse(text) >= 0
        except UsageError:
            continue


@given(st.integers(0, 10**17))
def test_a_printed_size_reads_back_within_its_digits(size_bytes: int) -> None:
    assert parse_size(format_size(size_bytes)) == pytest.approx(size_bytes, rel=0.006)


@given(st.integers(0, 10**17))
def test_a_printed_size_stays_short(size_bytes: int) -> None:
    assert len(format_size(size_bytes)) <= 8
    assert len(format_size_both(size_bytes)) <= 24


@given(st.floats(0, 10**9))
def test_a_printed_duration_is_not_longer_than_the_true_one(seconds: float) -> None:
    assert parse_age(format_age(seconds)) <= seconds


def test_sizes_are_shown_by_1000_and_by_1024() -> None:
    assert format_size_both(20 * 10**9) == "20.0 GB (18.63 GiB)"
    assert format_size_both(500) == "500 B"
