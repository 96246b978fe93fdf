import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.base import units
from neurontools.errors import UsageError


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("4096", 4096),
        ("4096B", 4096),
        ("1kB", 1000),
        ("1KiB", 1024),
        ("20GB", 20 * 10**9),
        ("20G", 20 * 10**9),
        ("20 GiB", 20 * 2**30),
        (" 1.5MiB ", 3 * 2**19),
        ("0.5kb", 500),
        ("17", 17),
        ("17B", 17),
        ("20GiB", 20 * 2**30),
        ("20gib", 20 * 2**30),
        ("1.5 MB", 1_500_000),
        ("2K", 2000),
        ("1TiB", 2**40),
    ],
)
def test_sizes(text, size_bytes):
    assert units.parse_size(text) == size_bytes


def test_binary_sizes_are_powers_of_1024_whatever_the_spelling():
    assert units.parse_size("1kb", binary=True) == units.parse_size("1KiB", binary=True) == 1024
    assert units.parse_size("1.5G", binary=True) == 3 * 2**29


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "12x",
        "-1",
        "1iB",
        "1e3",
        "GB",
        "1 2",
        "1.",
        "1.5",
        "0.5B",
        "٣",
        "9" * 40,
        "1e9",
        "10 apples",
        "1.2.3G",
        "inf",
    ],
)
def test_what_is_not_a_size_is_named_with_an_example(text):
    with pytest.raises(UsageError) as caught:
        units.parse_size(text)
    assert repr(text) in caught.value.message
    assert "512MiB" in caught.value.remedy


def test_sizes_fit_64_bits():
    assert units.parse_size("7EiB") == 7 * 2**60
    with pytest.raises(UsageError, match="size '8EiB' is too large"):
        units.parse_size("8EiB")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("5", 5),
        ("2.5", 2.5),
        ("250ms", 0.25),
        ("1.5us", 1.5e-6),
        ("30s", 30),
        ("5m", 300),
        ("5min", 300),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("30d", 30 * 86400),
        ("2w", 14 * 86400),
    ],
)
def test_durations(text, seconds):
    assert units.parse_duration(text) == pytest.approx(seconds, rel=1e-12)


def test_a_bare_number_is_refused_where_a_unit_is_needed():
    assert units.parse_duration("0", needs_unit=True) == 0
    with pytest.raises(UsageError, match="duration '30' needs a unit") as caught:
        units.parse_duration("30", needs_unit=True)
    assert caught.value.remedy == "for example 30s, 30m or 30d"


@pytest.mark.parametrize("text", ["", "x", "-1s", "1y", "s", "1s x", "1e3s", "inf", "nan", "1h,30m"])
def test_what_is_not_a_duration_is_named_with_an_example(text):
    with pytest.raises(UsageError) as caught:
        units.parse_duration(text)
    assert repr(text) in caught.value.message
    assert "1h30m" in caught.value.remedy


def test_durations_end_at_100_years():
    with pytest.raises(UsageError, match="too long"):
        units.parse_duration("101000w")


@given(st.text(max_size=30))
def test_any_text_is_a_size_and_a_duration_or_a_usage_error(text):
    for parse in (units.parse_size, units.parse_duration, units.parse_age):
        try:
            assert parse(text) >= 0
        except UsageError:
            pass


@given(st.integers(0, 100 * 365 * 86400 * 10**9))
def test_nanoseconds_are_read_exactly(duration_ns):
    assert units.parse_duration_ns(f"{duration_ns}ns") == duration_ns


@given(st.integers(0, 99 * 365 * 86400))
def test_a_printed_duration_is_read_back(seconds):
    assert units.parse_duration(units.format_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("size_bytes", "decimal", "binary"),
    [
        (0, "0 B", "0 B"),
        (999, "999 B", "999 B"),
        (1024, "1.02 kB", "1.00 KiB"),
        (999_499, "999 kB", "976 KiB"),
        (999_500, "1.00 MB", "976 KiB"),
        (16_384, "16.4 kB", "16.0 KiB"),
        (3 * 2**30, "3.22 GB", "3.00 GiB"),
    ],
)
def test_printed_sizes(size_bytes, decimal, binary):
    assert units.format_size(size_bytes) == decimal
    assert units.format_binary_size(size_bytes) == binary


@pytest.mark.parametrize(
    ("seconds", "text"), [(-3, "0s"), (0, "0s"), (119, "119s"), (120, "2m"), (7200, "2h"), (172800, "2d")]
)
def test_ages(seconds, text):
    assert units.format_age(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.09, "90ms"), (1.5, "1.5s"), (45, "45s"), (59.7, "1m"), (5400, "1h30m"), (187200, "2d4h")],
)
def test_printed_durations(seconds, text):
    assert units.format_duration(seconds) == text


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [
        (17, "17 ns"),
        (1250, "1.250 us"),
        (52_433_000, "52.43 ms"),
        (123_456_789_000, "123.5 s"),
        (-1250, "-1.250 us"),
    ],
)
def test_printed_nanoseconds(duration_ns, text):
    assert units.format_ns(duration_ns) == text


def test_printed_counts():
    assert [units.format_count(value) for value in (0, 950, 0.5, 1234, 1.2346e9, 2e21)] == [
        "0",
        "950",
        "0.5",
        "1.234 K",
        "1.235 G",
        "2000.0 E",
    ]


def test_percent_never_rounds_to_all_or_nothing():
    assert [units.format_percent(value) for value in (0, 0.001, 0.5, 0.995, 1)] == [
        "0 %",
        "less than 1 %",
        "50 %",
        "over 99 %",
        "100 %",
    ]


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=20))
def test_percentages_add_up(weights):
    texts = units.format_percentages([weight / sum(weights) for weight in weights])
    assert sum(round(float(text.removesuffix(" %")) * 10) for text in texts) == 1000


def test_sizes_in_both_systems():
    assert units.format_size_both(20 * 10**9) == "20.0 GB (18.63 GiB)"
    assert units.format_size_both(500) == "500 B"


def test_times_are_local_and_no_time_fails(monkeypatch):
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    assert units.format_time(1_700_000_000.0) == "2023-11-14 22:13:20"
    assert units.format_time(1e300).endswith(" s")


@given(st.integers(0, 10**17))
def test_a_printed_size_is_short_and_reads_back_within_its_digits(size_bytes):
    assert units.parse_size(units.format_size(size_bytes)) == pytest.approx(size_bytes, rel=0.006)
    assert len(units.format_size(size_bytes)) <= 8
    assert len(units.format_size_both(size_bytes)) <= 24


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
def test_ages_are_read(text, seconds):
    assert units.parse_age(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "d", "-3d", "3 apples", "1d2", "1e3s", "nan"])
def test_what_is_not_an_age_is_reported(text):
    with pytest.raises(UsageError, match="duration"):
        units.parse_age(text)


@given(st.floats(0, 10**9))
def test_a_printed_age_is_not_longer_than_the_true_one(seconds):
    assert units.parse_age(units.format_age(seconds)) <= seconds
