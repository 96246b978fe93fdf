"""Snapshots as changes: whatever happened in between, who gets the changes sees what the daemon saw."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from neurontools.machine import launch
from neurontools.machine.changes import Changes, apply_changes, apply_notification, compute_changes
from neurontools.machine.client import Client
from neurontools.machine.codec import convert, decode, encode
from neurontools.machine.machine_config import StartOptions
from neurontools.machine.protocol import CHANGES, SNAPSHOT, Notification, push_line
from neurontools.machine.requests import Empty, WatchRequest
from neurontools.machine.snapshot import (
    LATENCY_BUCKETS,
    CoreTotals,
    CoreUse,
    DeviceState,
    HardwareCounters,
    MemoryUse,
    ModelState,
    ProcessState,
    Snapshot,
)

few = st.integers(0, 3)
counts = st.integers(0, 1 << 40)
texts = st.sampled_from(["", "a", "train.py", 'né"\n'])
memories = st.builds(MemoryUse, tensors=few, model_code=few)
failures = st.lists(st.tuples(few, few), max_size=2).map(tuple)
uses = st.builds(
    CoreUse, few, counts, counts, counts, counts, st.booleans(), memories, model_loads=few, failures=failures
)
models = st.builds(ModelState, few, texts, texts, few, st.booleans(), memories)
histograms = st.dictionaries(st.integers(0, LATENCY_BUCKETS - 1), counts, max_size=3).map(
    lambda some: tuple(some.get(bucket, 0) for bucket in range(LATENCY_BUCKETS))
)
processes = st.builds(
    ProcessState,
    pid=few,
    start_ticks=st.integers(0, 1),
    uid=few,
    command=texts,
    tag=texts,
    runtime_version=texts,
    origin=st.sampled_from(["live", "synthetic"]),
    uses_device=st.booleans(),
    cores=st.lists(uses, max_size=3).map(tuple),
    host_memory=memories,
    models=st.lists(models, max_size=3).map(tuple),
    status_counts=failures,
    latency_counts=histograms,
    registered_ns=counts,
    stale=st.booleans(),
    cpu_user_ns=few,
    cpu_system_ns=few,
)
devices = st.builds(
    DeviceState,
    index=few,
    bdf=texts,
    cpu_affinity=texts,
    numa_node=texts,
    connected_to=st.one_of(st.none(), st.lists(few, max_size=2).map(tuple)),
    core_ids=st.lists(few, max_size=2).map(tuple),
    memory_bytes=counts,
    memory_used_bytes=few,
    hardware=st.builds(HardwareCounters, few, few, few, few, few),
    lost=st.booleans(),
    links_down=st.lists(few, max_size=2).map(tuple),
    unhealthy=st.lists(texts, max_size=2).map(tuple),
)
snapshots = st.builds(
    Snapshot,
    machine=texts,
    source=texts,
    instance_type=texts,
    instance_id=texts,
    lnc=few,
    lnc_applies=st.booleans(),
    neuroncore_version=texts,
    taken_ns=counts,
    taken_unix_s=st.floats(0, 1e10),
    started_unix_s=st.floats(0, 1e10),
    devices=st.lists(devices, max_size=3).map(tuple),
    processes=st.lists(processes, max_size=4, unique_by=lambda one: (one.pid, one.start_ticks)).map(tuple),
    lifetime=st.lists(st.tuples(texts, counts), max_size=2).map(tuple),
    core_totals=st.lists(st.builds(CoreTotals, few, few, failures=failures), max_size=2).map(tuple),
)


def sent(value: object) -> object:
    return json.loads(encode(value))


def notification(method: str, params: object) -> Notification:
    return Notification(method, push_line(method, encode(params)))


def sent_changes(before: Snapshot, after: Snapshot) -> Changes:
    return decode(encode(compute_changes(before, after)), Changes)


@settings(max_examples=60)
@given(st.lists(snapshots, min_size=1, max_size=4))
def test_a_series_of_changes_tells_what_whole_snapshots_tell(series):
    seen = apply_notification(None, notification(SNAPSHOT, series[0]))
    for before, after in pairwise(series):
        seen = apply_notification(seen, notification(CHANGES, compute_changes(before, after)))
        assert seen == after == convert(sent(after), Snapshot)


@settings(max_examples=60)
@given(snapshots, st.data())
def test_small_changes_of_a_process_are_reported(before, data):
    """Changes as they mostly are: the same processes, with some of their values replaced."""
    wild = data.draw(st.lists(processes, min_size=4, max_size=4))
    names = data.draw(st.sets(st.sampled_from(["cores", "models", "latency_counts", "tag", "stale"])))
    after = replace(
        before,
        taken_ns=before.taken_ns + 1,
        processes=tuple(
            replace(process, **{name: getattr(other, name) for name in names})
            for process, other in zip(before.processes, wild, strict=False)
        ),
    )
    assert apply_changes(before, sent_changes(before, after)) == after


@settings(max_examples=30)
@given(snapshots)
def test_without_a_change_next_to_nothing_is_sent(snapshot):
    later = replace(snapshot, taken_ns=snapshot.taken_ns + 1)
    assert len(encode(compute_changes(snapshot, later))) < 60
    assert apply_changes(snapshot, sent_changes(snapshot, later)).processes is snapshot.processes


def test_changes_of_another_machine_are_an_error():
    data = [{}, [], None, [], [[5, [], [0], [], [], {}]]]
    nothing = Snapshot("m", "sim", "", "", 1, False, "v2", 0, 0.0, 0.0, (), ())
    with pytest.raises(IndexError):
        apply_changes(nothing, convert(data, Changes))
    for params in (data, [{}, [], [-1], [], []], [{}, [[9, None]], None, [], []]):
        with pytest.raises(ConnectionError):
            apply_notification(nothing, notification(CHANGES, params))


def snapshot_of(use: CoreUse) -> Snapshot:
    latency = (0,) * LATENCY_BUCKETS
    process = ProcessState(
        7, 1, 0, "train.py", "", "2.0", "live", True, (use,), MemoryUse(), (), (), latency, 1
    )  # fmt: skip
    return Snapshot("m", "sim", "", "", 1, False, "v2", 0, 0.0, 0.0, (), (process,))


@pytest.mark.parametrize("executing", [False, True])
def test_a_core_that_only_begins_or_ends_an_execution_has_changed(executing):
    """The counters stand still at the begin of an execution: the flag alone says it."""
    use = CoreUse(3, 5, 1, 7, 0, executing, MemoryUse())
    before = snapshot_of(use)
    process = before.processes[0]
    after = replace(before, processes=(replace(process, cores=(replace(use, executing=not executing),)),))
    assert json.loads(encode(compute_changes(before, after)))[4] == [
        [0, [0, 0, 0, 0, 0, int(not executing)], [], [], [], {}]
    ]
    assert apply_changes(before, sent_changes(before, after)) == after


def test_watchers_of_both_forms_see_the_same_machine():
    launch.start(StartOptions("default", "trn1.2xlarge"))
    with Client.connect() as client:
        client.register("job", "python train.py")
        whole = client._open_connection(owner=False)  # the form that is not the client's own
        whole.request(WatchRequest(0.05), Empty)
        told = client.watch(0.05)
        first = next(told)
        client.reserve(first.processes[0].cores[0].core, 1 << 20)
        later = next(each for each in told if each.devices[0].memory_used_bytes)
        plain = next(
            snapshot
            for pushed in iter(lambda: whole.next_notification(5), None)
            if pushed.method == SNAPSHOT
            and (snapshot := pushed.params(Snapshot)).devices[0].memory_used_bytes
        )
        assert plain.processes == later.processes
        assert plain.devices == later.devices
        whole.close()
    launch.stop("default", force=True)


def test_what_counters_do_not_cover_of_a_core_is_sent_whole():
    use = CoreUse(0, 1, 2, 3, 4, False, MemoryUse(), 0, ())
    before = snapshot_of(use)
    for changed in (
        replace(use, failures=((1200, 1),)),
        replace(use, memory=MemoryUse(tensors=5)),
        replace(use, model_loads=3),
        replace(use, core=7),
    ):
        after = snapshot_of(changed)
        assert apply_changes(before, sent_changes(before, after)) == after
