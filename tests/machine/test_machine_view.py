"""The numbers of the dashboard: rates, sums, and the memory tree."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from neurontools.machine.machine_view import (
    core_rates,
    device_processes,
    machine_view,
    process_key,
    quantile_s,
    quantiles_s,
    restrict,
)
from neurontools.machine.memory_tree import MemoryMap, MemoryNode, NodeKind
from neurontools.machine.snapshot import (
    CoreUse,
    DeviceState,
    MemoryUse,
    ModelState,
    ProcessState,
    Snapshot,
    busy_share,
)

SECOND_NS = 1_000_000_000

memories = st.builds(MemoryUse, *[st.sampled_from((0, 0, 1, 4096, 1 << 20, 3 << 30))] * 7)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    devices, cores = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    free = list(range(devices * cores))
    processes = []
    for pid in range(1, 1 + draw(st.integers(0, 3))):
        own = [free.pop(0) for _ in range(draw(st.integers(0, min(3, len(free)))))]
        uses = tuple(
            CoreUse(
                core=core,
                busy_ns=draw(st.integers(0, 5 * SECOND_NS)),
                executions=1,
                flops=draw(st.integers(0, 10**15)),
                gpsimd_ns=0,
                executing=False,
                memory=draw(memories),
            )
            for core in own
        )
        models = tuple(
            ModelState(10001 + index, f"m{index}", "00", core, draw(st.booleans()), draw(memories))
            for index, core in enumerate(own * draw(st.integers(0, 2)))
        )
        processes.append(process(pid, uses, models, draw(memories)))
    return Snapshot(
        machine="default",
        source="sim",
        instance_type="trn1.32xlarge",
        instance_id="i-0",
        lnc=1,
        lnc_applies=False,
        neuroncore_version="v2",
        taken_ns=draw(st.integers(1, 3)) * SECOND_NS,
        taken_unix_s=0.0,
        started_unix_s=0.0,
        devices=tuple(
            DeviceState(
                index, "", "", "-1", None, tuple(range(index * cores, (index + 1) * cores)), 32 << 30, 0
            )
            for index in range(devices)
        ),
        processes=tuple(processes),
    )


def process(
    pid: int, uses: tuple[CoreUse, ...], models: tuple[ModelState, ...] = (), host: MemoryUse | None = None
) -> ProcessState:
    return ProcessState(
        pid=pid,
        start_ticks=pid,
        uid=0,
        command="python",
        tag="",
        runtime_version="2",
        origin="live",
        uses_device=True,
        cores=uses,
        host_memory=host or MemoryUse(),
        models=models,
        status_counts=(),
        latency_counts=(),
        registered_ns=pid,
    )


def every_node(nodes: tuple[MemoryNode, ...]) -> list[MemoryNode]:
    return [node for top in nodes for node in (top, *every_node(top.children))]


@given(snapshots())
@settings(max_examples=60)
def test_every_parent_of_the_memory_tree_is_the_sum_of_its_children(snapshot: Snapshot) -> None:
    for node in every_node(MemoryMap(snapshot).tree()):
        if node.kind is not NodeKind.CATEGORY and node.children:
            assert node.device_bytes == sum(child.device_bytes for child in node.children)
            assert node.host_bytes == sum(child.host_bytes for child in node.children)
        if not node.children and node.kind is not NodeKind.CATEGORY:
            assert (node.device_bytes, node.host_bytes) == (0, 0)
        assert node.device_bytes >= 0
        assert node.host_bytes >= 0


@given(snapshots())
@settings(max_examples=60)
def test_a_closed_node_says_the_same_as_an_open_one(snapshot: Snapshot) -> None:
    whole = MemoryMap(snapshot).tree()
    assert MemoryMap(snapshot).tree(()) == tuple(replace(node, children=()) for node in whole)
    assert MemoryMap(snapshot).tree({node.key for node in every_node(whole)}) == whole


@given(snapshots())
@settings(max_examples=60)
def test_the_tree_and_the_summary_agree(snapshot: Snapshot) -> None:
    tree = MemoryMap(snapshot).tree()
    assert sum(node.device_bytes for node in tree) == MemoryMap(snapshot).device.total_bytes
    assert sum(node.host_bytes for node in tree) == MemoryMap(snapshot).host.total_bytes


@given(snapshots())
@settings(max_examples=60)
def test_the_processes_together_are_the_machine(snapshot: Snapshot) -> None:
    parts = [restrict(snapshot, process_key(process)) for process in snapshot.processes]
    assert sum(MemoryMap(part).device.total_bytes for part in parts) == MemoryMap(snapshot).device.total_bytes
    assert sum(MemoryMap(part).host.total_bytes for part in parts) == MemoryMap(snapshot).host.total_bytes


@given(snapshots())
@settings(max_examples=60)
def test_keys_of_the_tree_are_unique(snapshot: Snapshot) -> None:
    keys = [node.key for node in every_node(MemoryMap(snapshot).tree())]
    assert len(keys) == len(set(keys))


@given(snapshots(), st.integers(-SECOND_NS, 3 * SECOND_NS))
@settings(max_examples=60)
def test_utilization_is_a_share_whatever_the_counters_say(snapshot: Snapshot, elapsed_ns: int) -> None:
    other = replace(snapshot, taken_ns=snapshot.taken_ns + elapsed_ns, processes=snapshot.processes[1:])
    for before, after in ((snapshot, other), (other, snapshot), (None, snapshot)):
        rates = core_rates(before, after)
        assert sorted(rates) == sorted(core for device in snapshot.devices for core in device.core_ids)
        assert all(0 <= rate.utilization <= 1 and rate.flops_s >= 0 for rate in rates.values())
        view = machine_view(before, after)
        assert 0 <= view.mean_utilization <= 1
        mean = sum(rate.utilization for rate in rates.values()) / len(rates)
        assert view.mean_utilization == pytest.approx(mean)


def busy(core: int, busy_ns: int, flops: int) -> CoreUse:
    return CoreUse(core, busy_ns, 0, flops, 0, executing=False, memory=MemoryUse())


def two_devices(taken_ns: int, *processes: ProcessState) -> Snapshot:
    devices = tuple(
        DeviceState(index, "", "", "-1", None, (2 * index, 2 * index + 1), 32 << 30, 0) for index in range(2)
    )
    return Snapshot(
        "default", "sim", "t", "i-0", 1, False, "v2", taken_ns, 0.0, 0.0, devices, tuple(processes)
    )


def test_rates_are_differences_over_wall_time() -> None:
    before = two_devices(10 * SECOND_NS, process(1, (busy(0, 5, 7), busy(1, 0, 0))))
    after = two_devices(
        12 * SECOND_NS,
        process(1, (busy(0, 5 + SECOND_NS, 7 + 4 * 10**12), busy(1, 0, 0))),
        process(2, (busy(3, SECOND_NS // 2, 10**12),)),
    )
    rates = core_rates(before, after)
    assert [rates[core].utilization for core in range(4)] == [0.5, 0.0, 0.0, 0.25]
    assert [rates[core].flops_s for core in range(4)] == [2e12, 0.0, 0.0, 0.5e12]


def test_the_mean_of_the_machine_counts_idle_cores_and_that_of_a_process_only_its_own() -> None:
    before = two_devices(0, process(1, (busy(0, 0, 0),)))
    after = two_devices(SECOND_NS, process(1, (busy(0, SECOND_NS // 2, 8 * 10**12),)))
    machine, one = machine_view(before, after), machine_view(before, after, (1, 1))
    assert (machine.mean_utilization, machine.mean_flops_s) == (0.125, 2e12)
    assert (one.mean_utilization, one.mean_flops_s) == (0.5, 8e12)
    assert machine.total_flops_s == one.total_flops_s == 8e12


def test_a_process_that_took_over_a_pid_starts_at_zero() -> None:
    first, second = process(1, (busy(0, 9 * SECOND_NS, 10**15),)), process(1, (busy(0, SECOND_NS, 10**12),))
    rates = core_rates(
        two_devices(0, first), two_devices(2 * SECOND_NS, replace(second, start_ticks=second.start_ticks + 1))
    )
    assert (rates[0].utilization, rates[0].flops_s) == (0.5, 0.5e12)


def test_a_view_of_a_process_that_is_gone_is_empty() -> None:
    view = machine_view(None, two_devices(0, process(1, (busy(0, 1, 1),))), (99, 99))
    assert (view.mean_utilization, view.memory.device.total_bytes, view.total_flops_s) == (0.0, 0, 0.0)


def test_processes_that_only_look_are_no_device_processes() -> None:
    looker = replace(process(7, ()), uses_device=False)
    snapshot = two_devices(0, looker, process(9, ()), replace(process(3, ()), registered_ns=50))
    assert [found.pid for found in device_processes(snapshot)] == [9, 3]


def test_a_model_that_is_seen_before_its_memory_counts_once() -> None:
    memory = MemoryUse(constants=10, model_code=5)
    model = ModelState(10001, "m", "00", 0, True, memory)
    early = two_devices(0, process(1, (busy(0, 0, 0),), (model,)))
    use = replace(busy(0, 0, 0), memory=MemoryUse(constants=10, model_code=5, tensors=1))
    later = two_devices(0, process(1, (use,), (model,)))
    assert (MemoryMap(early).device.total_bytes, MemoryMap(later).device.total_bytes) == (15, 16)
    core = MemoryMap(later).tree()[0].children[0]
    assert [(node.kind, node.device_bytes) for node in core.children] == [
        (NodeKind.MODEL, 15),
        (NodeKind.CATEGORY, 1),
    ]


@pytest.mark.parametrize("only_used", [False, True])
def test_a_map_made_from_a_former_one_is_the_same_as_a_new_one(only_used):
    first = two_devices(0, process(1, (busy(0, 1, 1), busy(1, 2, 2))), process(2, (busy(2, 1, 1),)))
    grown = MemoryUse(tensors=77)
    one, other = first.processes
    moved = replace(one, cores=tuple(replace(use, busy_ns=use.busy_ns + 5) for use in one.cores))
    bigger = replace(one, cores=(replace(one.cores[0], memory=grown), *one.cores[1:]))
    for processes in ((moved, other), (bigger, other), (other,), (other, one), (bigger, moved)):
        later = replace(first, processes=processes)
        former = MemoryMap(first, only_used=only_used)
        quick, plain = (
            MemoryMap(later, only_used=only_used, former=former),
            MemoryMap(later, only_used=only_used),
        )
        assert quick.tree() == plain.tree()
        assert (quick.host, quick.device) == (plain.host, plain.device)


def test_devices_that_show_the_same_as_before_are_the_same_objects():
    before = two_devices(0, process(1, (busy(0, 1, 0), busy(2, 1, 0))))
    after = two_devices(10, process(1, (busy(0, 6, 0), busy(2, 1, 0))))
    first = machine_view(before, before)
    later = machine_view(before, after, former=first)
    assert later.devices == machine_view(before, after).devices
    assert [new is old for new, old in zip(later.devices, first.devices, strict=True)] == [False, True]


def test_the_busy_share_of_a_core_is_over_wall_time_and_from_0_to_1() -> None:
    before = two_devices(1000, process(1, (busy(0, 100, 0), busy(1, 0, 0), busy(2, 500, 0))))
    after = two_devices(2000, process(1, (busy(0, 350, 0), busy(1, 5000, 0), busy(2, 400, 0))))
    assert busy_share(before, after) == {0: 0.25, 1: 1.0, 2: 0.0, 3: 0.0}
    assert busy_share(after, after) == {0: 0.0, 1: 0.0, 2: 0.0, 3: 0.0}
    successor = replace(after, processes=(replace(after.processes[0], start_ticks=9),))
    assert busy_share(before, successor)[0] == 0.35


def test_a_category_of_memory_is_on_the_device_or_the_host_and_has_no_children() -> None:
    use = replace(busy(0, 0, 0), memory=MemoryUse(tensors=3, model_code=2))
    shown = two_devices(1, process(1, (use,), host=MemoryUse(tensors=5, application_memory=7)))
    leaves = [node for node in every_node(MemoryMap(shown).tree()) if node.kind is NodeKind.CATEGORY]
    assert all(not node.expandable and not node.children for node in leaves)
    assert sorted((node.name, node.device_bytes, node.host_bytes) for node in leaves) == [
        ("application_memory", 0, 7),
        ("model_code", 2, 0),
        ("tensors", 0, 5),
        ("tensors", 3, 0),
    ]


@pytest.mark.parametrize("change", [{"memory": MemoryUse(constants=30)}, {"core": 1}, {"running": False}])
def test_a_model_that_grows_or_moves_is_counted_anew(change):
    model = ModelState(10001, "m", "00", 0, True, MemoryUse(constants=10))
    first = two_devices(0, process(1, (busy(0, 0, 0), busy(1, 0, 0)), (model,)))
    changed = replace(first.processes[0], models=(replace(model, **change),))
    later = replace(first, processes=(changed,))
    quick, plain = MemoryMap(later, former=MemoryMap(first)), MemoryMap(later)
    assert quick.tree() == plain.tree()
    assert (quick.host, quick.device) == (plain.host, plain.device)


def test_a_quantile_lies_between_the_bounds_of_its_bucket() -> None:
    counts = [0] * 64
    counts[10], counts[20] = 4, 4
    assert quantile_s(counts, 25) == pytest.approx(2 ** (10.5 / 2) * 1e-6, rel=1e-4)
    assert quantile_s(counts, 50) == pytest.approx(2 ** (11 / 2) * 1e-6, rel=1e-4)
    assert quantile_s(counts, 100) == pytest.approx(2 ** (21 / 2) * 1e-6, rel=1e-4)
    assert quantiles_s(counts, (0, 75)) == pytest.approx([2**5 * 1e-6, 2 ** (20.5 / 2) * 1e-6], rel=1e-4)


def test_maps_are_of_one_tree_only_if_their_snapshots_and_choices_are() -> None:
    one = Snapshot(
        machine="default", source="sim", instance_type="trn1.2xlarge", instance_id="i-0", lnc=1, lnc_applies=False,
        neuroncore_version="v2", taken_ns=1, taken_unix_s=0.0, started_unix_s=0.0,
        devices=(DeviceState(0, "", "", "-1", None, (0, 1), 32 << 30, 0),), processes=(process(7, ()),),
    )  # fmt: skip
    shown = MemoryMap(one)
    assert MemoryMap(one, former=shown).has_same_tree(shown)
    assert not MemoryMap(one, only_used=True, former=shown).has_same_tree(shown)
    other = replace(one, processes=(*one.processes, process(99, (), (), MemoryUse(tensors=5))))
    assert not MemoryMap(other, former=shown).has_same_tree(shown)
