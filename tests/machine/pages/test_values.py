"""What a writer puts on a page, a reader gets from it."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neurontools.machine.pages.layout import CATEGORIES, MODEL_SLOTS, STATUS_NUMBERS
from neurontools.machine.pages.page import (
    NO_MODEL,
    PageError,
    PageFullError,
    PageIdentity,
    PageReader,
    PageWriter,
    create_page,
    create_private_page,
    is_private,
    page_size,
    ring,
    ring_profile,
)
from neurontools.machine.snapshot import LATENCY_BUCKETS, MemoryCategory, MemoryUse, ModelState
from neurontools.runtime.status import NrtStatus

OpenedPage = Callable[[Path, tuple[int, ...]], AbstractContextManager[tuple[PageWriter, PageReader, int]]]
MakeModel = Callable[..., ModelState]

NOW = 10**18
per_example = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)


def test_the_layout_knows_every_status_and_category() -> None:
    assert tuple(sorted(NrtStatus)) == STATUS_NUMBERS
    assert tuple(MemoryCategory) == CATEGORIES


def test_a_new_page_is_idle_and_empty(home: Path, opened_page: OpenedPage, identity: PageIdentity) -> None:
    with opened_page(home, (4, 5)) as (_, reader, _fd):
        value = reader.read(NOW)
    assert reader.identity == identity
    assert reader.cores == (4, 5)
    assert value is not None
    assert [(use.core, use.busy_ns, use.executing) for use in value.cores] == [(4, 0, False), (5, 0, False)]
    assert value.models == value.status_counts == ()
    assert value.latency_counts == (0,) * LATENCY_BUCKETS


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=60).map(lambda word: word.rstrip("\0"))
number = st.integers(0, 2**64 - 1)


@per_example
@given(
    identity=st.builds(PageIdentity, *(text, number, number, text, number, text, text, text, number)).filter(
        lambda who: all(len(word.encode()) <= 64 for word in (who.machine, who.boot_id, who.runtime_version))
    ),
    cores=st.lists(st.integers(0, 2**32 - 1), max_size=40).map(tuple),
)
def test_identity_and_cores_come_back(home: Path, identity: PageIdentity, cores: tuple[int, ...]) -> None:
    path = home / "identity.page"
    path.unlink(missing_ok=True)
    fd = create_page(str(path), identity, cores)
    try:
        assert os.fstat(fd).st_size == page_size(len(cores))
        reader = PageReader(fd)
        assert (reader.identity, reader.cores) == (identity, cores)
        assert reader.read(NOW) is not None
    finally:
        os.close(fd)


@given(st.text(max_size=2000))
def test_long_text_is_cut_between_characters(command: str) -> None:
    from neurontools.machine.pages.layout import fitted

    cut = fitted(command, 1024).decode()
    whole = command.encode("utf-8", "replace").decode()
    assert whole.startswith(cut)
    assert len(cut.encode()) > 1020 or cut == whole


execution = st.tuples(
    st.integers(0, 1),
    st.sampled_from(STATUS_NUMBERS),
    st.integers(0, 10**13),
    st.integers(0, 2**62),
    st.integers(0, 10**9),
)


@per_example
@given(executions=st.lists(execution, max_size=30))
def test_executions_add_up(
    home: Path, executions: list[tuple[int, int, int, int, int]], opened_page: OpenedPage
) -> None:
    with opened_page(home, (0, 1)) as (writer, reader, _):
        for slot, status, wall_ns, flops, gpsimd_ns in executions:
            writer.begin(slot)
            writer.end(slot, status, wall_ns, flops, gpsimd_ns)
        value = reader.read(NOW)
    assert value is not None
    for slot, use in enumerate(value.cores):
        mine = [entry for entry in executions if entry[0] == slot]
        assert use.executions == len(mine)
        assert use.busy_ns == sum(entry[2] for entry in mine)
        assert use.flops == sum(entry[3] for entry in mine) % 2**64
        assert use.gpsimd_ns == sum(entry[4] for entry in mine)
    by_status = {status: [entry[1] for entry in executions].count(status) for status in STATUS_NUMBERS}
    assert dict(value.status_counts) == {status: count for status, count in by_status.items() if count}
    assert sum(value.latency_counts) == len(executions)


@given(wall_ns=st.integers(0, 2**50))
@per_example
def test_latency_goes_into_the_bucket_that_holds_it(
    home: Path, wall_ns: int, opened_page: OpenedPage
) -> None:
    with opened_page(home, (0,)) as (writer, reader, _):
        writer.begin(0)
        writer.end(0, 0, wall_ns)
        value = reader.read(NOW)
    assert value is not None
    bucket = value.latency_counts.index(1)
    half_octaves = (wall_ns / 1000) ** 2
    assert half_octaves < 2 ** (bucket + 1) or bucket == LATENCY_BUCKETS - 1
    assert half_octaves >= 2**bucket or bucket == 0


def test_an_unknown_status_counts_as_a_failure(home: Path, opened_page: OpenedPage) -> None:
    with opened_page(home, (0,)) as (writer, reader, _):
        writer.begin(0)
        writer.end(0, 4242, 5)
        value = reader.read(NOW)
    assert value is not None
    assert value.status_counts == ((NrtStatus.NRT_FAILURE, 1),)


def test_the_execution_under_way_is_busy_time(home: Path, opened_page: OpenedPage, model: MakeModel) -> None:
    with opened_page(home, (0,)) as (writer, reader, _):
        slot = writer.add_model(model())
        since_ns = writer.begin(0, slot)
        value = reader.read(since_ns + 5_000)
        before_it_began = reader.read(since_ns - 1)
    assert value is not None
    assert before_it_began is not None
    assert (value.cores[0].busy_ns, value.cores[0].executing, value.models[0].running) == (5_000, True, True)
    assert before_it_began.cores[0].busy_ns == 0


def test_memory_and_reservations(home: Path, opened_page: OpenedPage) -> None:
    with opened_page(home, (7, 8)) as (writer, reader, _):
        for index, category in enumerate(MemoryCategory):
            writer.set_memory(1, category, index + 1)
            writer.set_host_memory(category, 100 * index)
        writer.set_reserved(0, 1 << 40)
        value = reader.read(NOW)
    assert value is not None
    assert value.cores[0].memory == MemoryUse()
    assert value.cores[1].memory == MemoryUse(1, 2, 3, 4, 5, 6, 7)
    assert value.host_memory == MemoryUse(0, 100, 200, 300, 400, 500, 600)
    assert value.reserved_bytes == (1 << 40, 0)


def test_models_come_and_go(home: Path, opened_page: OpenedPage, model: MakeModel) -> None:
    with opened_page(home, (3,)) as (writer, reader, _):
        slots = [writer.add_model(model(10001 + index, core=3)) for index in range(MODEL_SLOTS)]
        assert writer.add_model(model(1, core=3)) == NO_MODEL
        assert writer.add_model(model(1, core=9)) == NO_MODEL
        writer.remove_model(NO_MODEL)
        full = reader.read(NOW)
        for slot in slots[1:]:
            writer.remove_model(slot)
        one = reader.read(NOW)
        again = writer.add_model(model(77, core=3))
    assert full is not None
    assert one is not None
    assert [state.model_id for state in full.models] == [10001 + index for index in range(MODEL_SLOTS)]
    assert one.models == (model(core=3),)
    assert again in slots[1:]


def test_a_writer_goes_on_where_the_last_one_stopped(
    home: Path, opened_page: OpenedPage, model: MakeModel
) -> None:
    with opened_page(home, (0,)) as (writer, reader, fd):
        writer.begin(0)
        writer.end(0, 0, 10, flops=5)
        writer.set_memory(0, MemoryCategory.TENSORS, 9)
        writer.add_model(model())
        second = PageWriter(fd)
        second.begin(0)
        second.end(0, 0, 10, flops=5)
        second.set_memory(0, MemoryCategory.CONSTANTS, 1)
        assert second.add_model(model(10002)) == 1
        value = reader.read(NOW)
        second.close()
    assert value is not None
    assert (value.cores[0].executions, value.cores[0].busy_ns, value.cores[0].flops) == (2, 20, 10)
    assert value.cores[0].memory == MemoryUse(constants=1, tensors=9)


def test_changed_tells_whether_reading_is_worth_it(home: Path, opened_page: OpenedPage) -> None:
    with opened_page(home, (0,)) as (writer, reader, _):
        assert reader.changed()
        reader.read(NOW)
        assert not reader.changed()
        writer.set_host_memory(MemoryCategory.TENSORS, 1)
        assert reader.changed()
        writer.begin(0)
        reader.read(NOW)
        assert reader.changed(), "busy time grows while an execution is under way"
        writer.end(0, 0, 1)
        reader.read(NOW)
        assert not reader.changed()


@pytest.mark.parametrize("core_count", [1, 8, 9, 300])
def test_only_what_changed_is_another_object(home: Path, opened_page: OpenedPage, core_count: int) -> None:
    with opened_page(home, tuple(range(core_count))) as (writer, reader, fd):
        last = core_count - 1
        writer.begin(last)
        writer.end(last, 1004, 50_000, flops=3)
        first = reader.read(NOW)
        assert reader.read(NOW + 1) is first
        writer.begin(last)
        writer.end(last, 0, 70_000, flops=4)
        second = reader.read(NOW)
        writer.set_host_memory(MemoryCategory.TENSORS, 8)
        third = reader.read(NOW)
        os.ftruncate(fd, page_size(core_count) - 1)
        assert reader.read(NOW) is None
        os.ftruncate(fd, page_size(core_count))
        assert reader.read(NOW) == third
    assert first is not None
    assert second is not None
    assert third is not None
    assert [one is two for one, two in zip(first.cores, second.cores, strict=True)] == [True] * last + [False]
    assert second.status_counts == ((0, 1), (1004, 1))
    assert (second.cores[last].busy_ns, second.cores[last].flops, sum(second.latency_counts)) == (
        120_000,
        7,
        2,
    )
    assert third.latency_counts is second.latency_counts
    assert third.host_memory == MemoryUse(tensors=8)


def test_a_page_is_not_made_twice(home: Path, identity: PageIdentity) -> None:
    path = str(home / "page")
    os.close(create_page(path, identity, (0,)))
    with pytest.raises(PageError, match="File exists"):
        create_page(path, identity, (0,))


def test_impossible_pages_are_refused(home: Path, identity: PageIdentity) -> None:
    with pytest.raises(PageError, match="at most"):
        create_page(str(home / "page"), identity, tuple(range(5000)))
    with pytest.raises(PageError, match="4711"):
        create_page(str(home / "page"), identity, (-1,))
    with pytest.raises(PageError, match="No such file"):
        create_page(str(home / "absent" / "page"), identity, (0,))
    assert list(home.glob("page*")) == []


def test_a_full_disk_is_reported_and_leaves_nothing(home: Path, identity: PageIdentity) -> None:
    path = home / "page"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(PageFullError, match="no room for telemetry page"):
            create_page(str(path), identity, (0,))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not path.exists()


def test_a_private_page_needs_no_disk(identity: PageIdentity) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        fd = create_private_page(identity, (4, 5))
        assert resource.getrlimit(resource.RLIMIT_FSIZE) == (4096, hard)
        writer = PageWriter(fd)
        writer.begin(1)
        writer.end(1, 0, 10, flops=5)
        writer.set_memory(0, MemoryCategory.TENSORS, 9)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    reader = PageReader(fd)
    value = reader.read(NOW)
    assert value is not None
    assert (reader.identity, reader.cores) == (identity, (4, 5))
    assert [(use.busy_ns, use.flops, use.memory.tensors) for use in value.cores] == [(0, 0, 9), (10, 5, 0)]
    assert os.fstat(fd).st_size == page_size(2)
    assert is_private(fd)
    writer.close()
    os.close(fd)


@pytest.mark.parametrize("call", ["memfd_create", "pwrite"])
def test_a_private_page_without_memory_is_an_error_and_leaves_nothing_open(
    identity: PageIdentity, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(PageError, match=r"no memory for a telemetry page .*: Cannot allocate memory"):
        create_private_page(identity, (0,))
    assert os.listdir("/proc/self/fd") == before


def test_a_page_with_a_name_is_not_private(home: Path, identity: PageIdentity) -> None:
    fd = create_page(str(home / "page"), identity, (0,))
    assert not is_private(fd)
    os.close(fd)


def test_failures_and_model_loads_belong_to_their_core(
    home: Path, opened_page: OpenedPage, model: MakeModel
) -> None:
    with opened_page(home, (4, 5)) as (writer, reader, _fd):
        slot = writer.add_model(model(core=5))
        writer.remove_model(slot)
        writer.add_model(model(core=5))
        for status in (0, 1004, 1201, 1004):
            writer.begin(1)
            writer.end(1, status, 10)
        value = reader.read(NOW)
        again = PageWriter(_fd)
        again.add_model(model(core=5))
        later = reader.read(NOW)
        again.close()
    assert value is not None
    assert later is not None
    assert [(use.model_loads, use.failures) for use in value.cores] == [(0, ()), (2, ((1004, 2), (1201, 1)))]
    assert later.cores[1].model_loads == 3


def test_cpu_time_is_shown_for_those_whom_no_system_knows(home: Path, opened_page: OpenedPage) -> None:
    with opened_page(home, (4,)) as (writer, reader, _fd):
        writer.set_cpu_time(5_000, 7)
        value = reader.read(NOW)
    assert value is not None
    assert value.cpu_ns == (5_000, 7)


def test_the_doorbell_rings_in_the_page_and_changes_nothing_else(home: Path, opened_page: OpenedPage) -> None:
    with opened_page(home, (4, 5)) as (writer, reader, fd):
        before = reader.read(NOW)
        assert writer.armed_faults == 0
        ring(fd, 3)
        ring_profile(fd, 5)
        assert (writer.armed_faults, writer.profile_request) == (3, 5)
        ring(fd, 0)
        assert (writer.armed_faults, writer.profile_request, bool(writer.doorbell)) == (0, 5, True)
        ring_profile(fd, 0)
        assert writer.doorbell == 0
        assert reader.read(NOW) is before
        os.ftruncate(fd, 0)
        ring(fd, 1)
        assert os.fstat(fd).st_size == 0
