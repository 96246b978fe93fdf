"""A page is untrusted input: whatever is in it, reading gives the truth, None, or a PageError."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neurontools.machine.pages.layout import PageLayout
from neurontools.machine.pages.page import PageError, PageReader, PageValue, PageWriter

OpenedPage = Callable[[Path, tuple[int, ...]], AbstractContextManager[tuple[PageWriter, PageReader, int]]]

NOW = 2**62
LAYOUT = PageLayout(2)
many = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)


def read(home: Path, content: bytes) -> PageValue | None:
    path = home / "damaged.page"
    path.write_bytes(content)
    fd = os.open(path, os.O_RDONLY)
    try:
        return PageReader(fd).read(NOW)
    except PageError:
        return None
    finally:
        os.close(fd)


def test_the_undamaged_page_reads(home: Path, good: bytes) -> None:
    value = read(home, good)
    assert value is not None
    assert value.status_counts == ((0, 2), (1004, 1))
    assert [state.running for state in value.models] == [True, False]


@many
@given(st.data())
def test_a_flipped_bit_never_shows(home: Path, good: bytes, data: st.DataObject) -> None:
    bit = data.draw(st.integers(0, 8 * LAYOUT.page_bytes - 1))
    damaged = bytearray(good)
    damaged[bit // 8] ^= 1 << bit % 8
    assert read(home, bytes(damaged)) in (None, read(home, good))


@many
@given(st.data())
def test_overwritten_bytes_never_show(home: Path, good: bytes, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(good) - 1))
    noise = data.draw(st.binary(min_size=1, max_size=300))[: len(good) - start]
    damaged = good[:start] + noise + good[start + len(noise) :]
    assert read(home, damaged) in (None, read(home, good))


@many
@given(st.data())
def test_a_zeroed_block_never_shows(home: Path, good: bytes, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(good) // 64)) * 64
    size = data.draw(st.integers(1, 200)) * 64
    damaged = good[:start] + bytes(len(good[start : start + size])) + good[start + size :]
    assert read(home, damaged) in (None, read(home, good))


@many
@given(
    st.integers(0, LAYOUT.page_bytes),
    st.booleans(),
    st.sampled_from((0, 1004)),
    st.integers(0, 2**50),
    st.integers(0, 2**40),
)
def test_parts_of_two_moments_never_show_as_one(
    home: Path, opened_page: OpenedPage, split: int, newer_first: bool, status: int, wall_ns: int, flops: int
) -> None:
    with opened_page(home, (0, 1)) as (writer, reader, fd):
        writer.begin(1)
        writer.end(1, 0, 5, flops=5)
        moments = [(reader.read(NOW), os.pread(fd, LAYOUT.page_bytes, 0))]
        writer.begin(1)
        writer.end(1, status, wall_ns, flops=flops)
        moments.append((reader.read(NOW), os.pread(fd, LAYOUT.page_bytes, 0)))
    (old, old_bytes), (new, new_bytes) = reversed(moments) if newer_first else moments
    assert old != new
    assert read(home, new_bytes[:split] + old_bytes[split:]) in (None, old, new)


@many
@given(st.data())
def test_a_truncated_page_is_refused(home: Path, good: bytes, data: st.DataObject) -> None:
    assert read(home, good[: data.draw(st.integers(0, len(good) - 1))]) is None


@many
@given(st.binary(max_size=5000))
def test_random_bytes_are_no_page(home: Path, noise: bytes) -> None:
    assert read(home, noise) is None
    assert read(home, b"NTLMPAGE" + noise) is None


@pytest.mark.parametrize(
    ("offset", "content", "message"),
    [
        (0, b"?", "wrong magic"),
        (8, b"\x07", "version 7, this program reads version 3"),
        (24, b"\xff\xff", "impossible sizes"),
        (16, b"\x01", "bytes instead of"),
        (40, b"\x01", "checksum"),
    ],
)
def test_the_reason_is_named(home: Path, good: bytes, offset: int, content: bytes, message: str) -> None:
    path = home / "damaged.page"
    path.write_bytes(good[:offset] + content + good[offset + len(content) :])
    fd = os.open(path, os.O_RDWR)
    try:
        for side in (PageReader, PageWriter):
            with pytest.raises(PageError, match=message):
                side(fd)
    finally:
        os.close(fd)


def test_truncated_under_its_reader(home: Path, opened_page: OpenedPage) -> None:
    with opened_page(home, (0, 1)) as (writer, reader, fd):
        assert reader.read(NOW) is not None
        writer.close()
        os.ftruncate(fd, 5000)
        assert reader.read(NOW) is None
        os.ftruncate(fd, 0)
        assert reader.changed()
        assert reader.read(NOW) is None
        os.ftruncate(fd, LAYOUT.page_bytes)
        assert reader.read(NOW) is None


def test_a_closed_descriptor_reads_as_nothing(home: Path, opened_page: OpenedPage) -> None:
    with opened_page(home, (0,)) as (_, _reader, fd):
        copy = os.dup(fd)
        reader = PageReader(copy)
        os.close(copy)
        assert reader.read(NOW) is None


def test_a_write_that_a_signal_broke_off_is_repaired_by_the_next(home: Path, opened_page: OpenedPage) -> None:
    with opened_page(home, (0,)) as (writer, reader, _):
        writer.begin(0)
        writer.end(0, 0, 100, flops=3)
        with pytest.raises(TypeError):
            writer.end(0, 0, 100, flops="no number")  # type: ignore[arg-type]
        assert reader.read(NOW) is None
        writer.begin(0)
        writer.end(0, 0, 100, flops=3)
        value = reader.read(NOW)
    assert value is not None
    assert value.cores[0].flops == 6
    assert not value.cores[0].executing
