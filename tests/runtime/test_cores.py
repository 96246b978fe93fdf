"""NEURON_RT_VISIBLE_CORES and NEURON_RT_NUM_CORES."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.runtime.core_claim import (
    CoreRequest,
    format_not_available,
    parse_core_request,
    parse_visible_cores,
)
from neurontools.runtime.status import NrtError, NrtStatus


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("3", (3,)),
        ("0-3", (0, 1, 2, 3)),
        ("3,4", (3, 4)),
        (" 0 - 1 , 2 ", (0, 1, 2)),
        ("4-5,6-7", (4, 5, 6, 7)),
        ("5-5", (5,)),
    ],
)
def test_index_range_and_list(text: str, cores: tuple[int, ...]) -> None:
    assert parse_visible_cores(text) == cores


@pytest.mark.parametrize("text", ["3,5,6", "4,3", "3-0", "1,1", "0-2,2-3"])
def test_cores_must_be_contiguous_and_rising(text: str) -> None:
    with pytest.raises(NrtError, match="Neuron cores are not contiguous") as caught:
        parse_visible_cores(text)
    assert caught.value.status == NrtStatus.NRT_INVALID
    assert text in caught.value.remedy


@pytest.mark.parametrize(
    "text", ["x", "-1", "1-", "-", ",", "0,", "0--1", "0x1", "1.0", "٣", "99999999999", "0;1"]
)
def test_invalid_input_is_named(text: str) -> None:
    with pytest.raises(NrtError, match="is malformed") as caught:
        parse_visible_cores(text)
    assert text in str(caught.value)


@given(st.text(max_size=12))
def test_any_text_is_a_run_of_cores_or_an_error(text: str) -> None:
    with suppress(NrtError):
        cores = parse_visible_cores(text)
        assert cores == tuple(range(cores[0], cores[0] + len(cores)))


@given(st.integers(0, 500), st.integers(0, 40))
def test_all_ways_to_write_a_run_agree(first: int, more: int) -> None:
    cores = tuple(range(first, first + more + 1))
    assert parse_visible_cores(f"{first}-{first + more}") == cores
    assert parse_visible_cores(",".join(map(str, cores))) == cores


@pytest.mark.parametrize(
    ("environ", "wish"),
    [
        ({}, CoreRequest()),
        ({"NEURON_RT_NUM_CORES": "0"}, CoreRequest()),
        ({"NEURON_RT_NUM_CORES": "2"}, CoreRequest(count=2)),
        ({"NEURON_RT_NUM_CORES": "", "NEURON_RT_VISIBLE_CORES": " "}, CoreRequest()),
        ({"NEURON_RT_VISIBLE_CORES": "1"}, CoreRequest(cores=(1,))),
        ({"NEURON_RT_VISIBLE_CORES": "1", "NEURON_RT_NUM_CORES": "nonsense"}, CoreRequest(cores=(1,))),
    ],
)
def test_visible_cores_beat_their_number(environ: dict[str, str], wish: CoreRequest) -> None:
    assert parse_core_request(environ) == wish


@pytest.mark.parametrize("count", ["-1", "two", "1.5"])
def test_a_bad_number_of_cores(count: str) -> None:
    with pytest.raises(NrtError, match=f"NEURON_RT_NUM_CORES={count} is not a number of cores"):
        parse_core_request({"NEURON_RT_NUM_CORES": count})


def test_the_line_of_named_cores() -> None:
    line = format_not_available(CoreRequest(cores=(0,)), 0, 64, 2, reason="cores busy, ret=-16")
    assert line == (
        "Logical Neuron Core(s) not available - Requested:lnc0-lnc0 Available:0 Logical Core size:2 "
        "(cores busy, ret=-16)"
    )


def test_the_line_of_a_number_of_cores() -> None:
    line = format_not_available(CoreRequest(count=2), 0, 32, 1)
    assert line == "Logical Neuron Core(s) not available - Requested:2 Available:0 Logical Core size:1"


def test_the_line_of_all_cores() -> None:
    assert "Requested:32 Available:31" in format_not_available(CoreRequest(), 31, 32, 1)
