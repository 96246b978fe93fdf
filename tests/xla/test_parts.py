"""Parts on their own: report texts, log lines, generated executables, scratch memory, random state."""

from __future__ import annotations

import json
import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from neurontools.compiler.graph import Graph, GraphError, Lifted, Node, Slot, Symbol, View, contiguous_strides
from neurontools.compiler.limits import graph_sizes, scratch_bytes
from neurontools.errors import UsageError
from neurontools.runtime.memory import MemoryInfo
from neurontools.xla import custom_op_graph
from neurontools.xla.buffers import NEVER, DeviceBuffer
from neurontools.xla.call_capture import _last_positional, fast_result
from neurontools.xla.debugging import metrics
from neurontools.xla.distributed import collectives, process_group, worker_group, workers
from neurontools.xla.distributed.worker_group import WorkerGroup
from neurontools.xla.distributed.worker_roster import WorkerRoster
from neurontools.xla.execution import generate
from neurontools.xla.geometry import intern_layout, view_of
from neurontools.xla.memory import HostBudget, HostMemoryError, MemoryAccount, host_limit
from neurontools.xla.operators import Kind, Parameter, operator_of
from neurontools.xla.rng import DeviceGenerator, state_at
from neurontools.xla.trie import Alias, Fresh

if TYPE_CHECKING:
    from tests.xla.conftest import InMemoryAccelerator


def vector(slot: int, size: int = 4, dtype: str = "float32") -> View:
    return View(slot, dtype, (size,), (1,), 0)


def chain() -> Graph:
    """(x + 0.5) * t, then a cast of it; the temporaries are slots 2 and 3."""
    return Graph(
        slots=(Slot(16), Slot(16), Slot(16), Slot(16), Slot(8)),
        inputs=(0, 1),
        lifted=1,
        nodes=(
            Node("aten.add.Scalar", (vector(0), Lifted(0)), (), (vector(2),)),
            Node("aten.mul.Tensor", (vector(2), vector(1)), (), (vector(3),)),
            Node(
                "aten._to_copy.default",
                (vector(3),),
                (("dtype", Symbol("dtype", "float16")),),
                (vector(4, dtype="float16"),),
            ),
        ),
        outputs=(4,),
    )


def form(size: int) -> int:
    return intern_layout(4 * size, (torch.float32, (size,), (1,), 0))


def test_an_executable_runs_a_graph_as_torch_would() -> None:
    run = generate(chain(), [form(4), form(4)])
    x, y = torch.arange(4.0), torch.full((4,), 2.0)
    (result,) = run([x, y], [0.5])
    assert torch.equal(result, ((x + 0.5) * y).half())


def test_an_executable_sees_inputs_through_the_views_of_the_graph() -> None:
    flipped = View(0, "float32", (2, 2), (1, 2), 0)
    graph = Graph((Slot(16), Slot(16)), (0,), 0, (Node("aten.clone.default", (flipped,), (), (View(1, "float32", (2, 2), (1, 2), 0),)),), (1,))  # fmt: skip
    (result,) = generate(graph, [form(4)])([torch.arange(4.0)], [])
    assert torch.equal(result, torch.arange(4.0).view(2, 2).t())


def calls(*steps: tuple[str, tuple[int, ...], int]) -> Graph:
    """Return a graph of operators on vectors: their names, slots of operands and slot of the result; 0 is the input."""
    nodes = [
        Node(op, tuple(vector(slot, 4) for slot in given), (), (vector(made, 4),))
        for op, given, made in steps
    ]
    last = steps[-1][2]
    return Graph((Slot(16),) * (last + 1), (0,), 0, tuple(nodes), (last,))


def test_an_executable_drops_buffers_after_their_last_use() -> None:
    graph = calls(
        ("aten.exp.default", (0,), 1),
        ("aten.neg.default", (0,), 2),
        ("aten.add.Tensor", (1, 2), 3),
        ("aten.sin.default", (3,), 4),
        ("aten.mul.Tensor", (3, 4), 5),
        ("aten.cos.default", (0,), 6),
        ("aten.sub.Tensor", (5, 6), 7),
    )
    run = generate(graph, [form(4)])
    import dis

    names = set(run.__code__.co_varnames)  # type: ignore[attr-defined]
    assert len(names) == len(["hosts", "scalars", "input", "1, 3, 5 and 7 in turn"])
    deleted = [step.argval for step in dis.get_instructions(run) if step.opname == "DELETE_FAST"]
    assert deleted == ["s0"]  # the input
    x = torch.arange(4.0)
    total = x.exp() + x.neg()
    (result,) = run([x], [])
    assert torch.equal(result, total * total.sin() - x.cos())


def test_an_executable_deletes_what_no_result_replaces() -> None:
    graph = calls(
        ("aten.exp.default", (0,), 1),
        ("aten.neg.default", (0,), 2),
        ("aten.add.Tensor", (1, 2), 3),
        ("aten.mul.Tensor", (1, 2), 4),
        ("aten.sub.Tensor", (3, 4), 5),
        ("aten.mul.Tensor", (5, 5), 6),
    )
    run = generate(graph, [form(4)])
    import dis

    assert [step.opname for step in dis.get_instructions(run)].count("DELETE_FAST") == 2
    x = torch.arange(4.0)
    (result,) = run([x], [])
    assert torch.equal(result, (x.exp() - x - x.exp() * -x) ** 2)


def test_an_executable_keeps_what_a_nested_call_still_reads() -> None:
    graph = calls(
        ("aten.exp.default", (0,), 1),
        ("aten.relu_.default", (1,), 1),
        ("aten.neg.default", (1,), 2),
        ("aten.sin.default", (2,), 3),
        ("aten.add.Tensor", (3, 0), 4),
        ("aten.mul.Tensor", (4, 4), 5),
    )
    x = torch.arange(4.0)
    total = x.exp().relu_().neg().sin() + x
    (result,) = generate(graph, [form(4)])([x], [])
    assert torch.equal(result, total * total)


def test_an_executable_nests_calls_to_a_limited_depth() -> None:
    graph = calls(*(("aten.neg.default", (slot,), slot + 1) for slot in range(2001)))
    (result,) = generate(graph, [form(4)])([torch.arange(4.0)], [])
    assert torch.equal(result, -torch.arange(4.0))


@pytest.mark.parametrize("value", [0.1, -0.0, math.inf, math.nan, 1e300, 5, True])
def test_an_executable_has_constants_as_they_are(value: float) -> None:
    node = Node(
        "aten.full.default",
        ((2,), value),
        (("dtype", Symbol("dtype", "float64")),),
        (View(0, "float64", (2,), (1,), 0),),
    )
    (result,) = generate(Graph((Slot(16),), (), 0, (node,), (0,)), [])([], [])
    assert torch.equal(
        result.view(torch.int64), torch.full((2,), value, dtype=torch.float64).view(torch.int64)
    )


def test_an_operator_that_does_not_exist_here_is_named() -> None:
    graph = Graph((Slot(4),), (0,), 0, (Node("my_ops.gone.default", (vector(0, 1),), (), (None,)),), ())
    with pytest.raises(GraphError, match=r"my_ops\.gone\.default does not exist"):
        generate(graph, [form(1)])


def test_scratch_memory_is_the_most_that_temporaries_take_at_one_time() -> None:
    assert scratch_bytes(chain()) == 32  # slots 2 and 3 meet in the multiplication
    assert scratch_bytes(Graph((), (), 0, (), ())) == 0
    assert graph_sizes(chain()) == (32, 8, 0, 32)


@given(
    shape=st.lists(st.integers(1, 5), max_size=4).map(tuple),
    dtype=st.sampled_from([torch.int16, torch.float32]),
)
def test_strides_and_views_agree_with_torch(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = torch.zeros(shape, dtype=dtype)
    assert contiguous_strides(shape) == tensor.stride()
    as_bytes = (torch.uint8, (tensor.numel() * dtype.itemsize,), (1,), 0)
    assert view_of(tensor, as_bytes).untyped_storage()._cdata == tensor.untyped_storage()._cdata


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "000.000us"),
        (486_408, "486.408us"),
        (5_486_408, "005ms486.408us"),
        (9_969_486_408, "09s969ms486.408us"),
        (3_725_000_000_000, "01h02m05s000ms000.000us"),
    ],
)
def test_durations_read_as_in_torch_xla(nanoseconds: int, text: str) -> None:
    assert metrics.duration_text(nanoseconds) == text


def test_rates_are_those_of_the_samples_that_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics.clear_all()
    ticks = iter([5_000_000_000, 6_000_000_000, 7_500_000_000])
    monkeypatch.setattr(metrics.time, "monotonic_ns", lambda: next(ticks))
    for value in (1_000, 2_000, 7_000):
        metrics.sample("ExecuteTime", value)
    shown = metrics.metrics_report()
    metrics.clear_all()
    assert "\n  ValueRate: 004.000us / second\n  Rate: 1.2 / second\n" in shown
    assert "  Percentiles: 1%=001.000us; 5%=001.000us; 10%=001.000us; 20%=001.000us; 50%=002.000us; " in shown
    assert shown.endswith("80%=007.000us; 90%=007.000us; 95%=007.000us; 99%=007.000us\n")


def test_bytes_are_reported_in_units_of_1024() -> None:
    metrics.clear_all()
    for value in (100.0, 2345.0, float(3 << 40)):
        metrics.sample("InboundData", value, "B")
    report = metrics.metrics_report()
    metrics.clear_all()
    assert "  Accumulator: 3.00TB\n" in report
    assert "1%=100.00B; " in report
    assert "50%=2.29KB; " in report
    assert "99%=3.00TB\n" in report


def test_clearing_metrics_starts_every_counter_at_zero() -> None:
    metrics.clear_all()
    metrics.count("MarkStep", 3)
    metrics.sample("ExecuteTime", 1_500_000)
    assert metrics.counters()["MarkStep"] == 3
    assert (
        "Metric: ExecuteTime\n  TotalSamples: 1\n  Accumulator: 001ms500.000us\n" in metrics.metrics_report()
    )
    metrics.clear_all()
    assert metrics.counters() == {}
    assert metrics.metrics_report() == ""


@given(seed=st.integers(0, 2**63), draws=st.integers(0, 5))
def test_the_random_state_survives_as_a_number(seed: int, draws: int) -> None:
    generator = DeviceGenerator()
    generator.seed(seed)
    with generator.scope():
        torch.rand(draws)
    state = generator.value()
    assert 0 <= state <= 2**63
    with generator.scope():
        expected = torch.rand(3)
    generator.restore(state_at(state))
    with generator.scope():
        assert torch.equal(torch.rand(3), expected)


def release(account: MemoryAccount, nbytes: int) -> None:
    """Do what the finalizer of a buffer does outside of a recording."""
    buffer = DeviceBuffer(None, NEVER, 0, nbytes, 0)  # type: ignore[arg-type]
    buffer.mark_charged()
    account.release(buffer)
    account.trim()


def test_frees_from_a_finalizer_inside_an_allocation_are_passed_on_later(
    machine: InMemoryAccelerator,
) -> None:
    account = MemoryAccount(machine, 0, HostBudget(1000))
    account.charge(100)
    allocate = machine.allocate

    def allocate_and_collect(index: int, nbytes: int) -> None:
        release(account, 100)  # what the garbage collector may do at any moment
        allocate(index, nbytes)

    machine.allocate = allocate_and_collect  # type: ignore[method-assign]
    account.charge(30)
    assert machine.used_bytes[0] == 130
    assert account.read() == MemoryInfo(30, 130, machine.limit_bytes)


def test_small_frees_are_kept_for_the_next_tensors_and_large_ones_passed_on(
    machine: InMemoryAccelerator,
) -> None:
    account = MemoryAccount(machine, 0, HostBudget(1 << 30))
    account.charge(1000)
    release(account, 600)
    account.charge(500)
    assert machine.used_bytes[0] == 1000
    assert account.read().used_bytes == 900
    account.charge(2 << 20)
    release(account, 2 << 20)
    assert machine.used_bytes[0] == 900


def test_kept_memory_is_not_used_while_a_fault_may_fail_the_next_allocation(
    machine: InMemoryAccelerator,
) -> None:
    account = MemoryAccount(machine, 0, HostBudget(1000))
    account.charge(100)
    release(account, 100)
    machine.faults_armed, machine.limit_bytes = True, 50
    with pytest.raises(MemoryError):
        account.charge(60)


def test_contents_beyond_this_computers_budget_are_refused_and_nothing_is_taken(
    machine: InMemoryAccelerator,
) -> None:
    host = HostBudget(100)
    account = MemoryAccount(machine, 0, host)
    account.charge(60)
    with pytest.raises(HostMemoryError, match="101 B of host memory, the limit is 100 B"):
        account.charge(41)
    assert (machine.used_bytes[0], host.used_bytes) == (60, 60)
    release(account, 60)
    account.charge(40)
    with pytest.raises(HostMemoryError):
        account.charge(61)
    account.charge(60)
    assert (machine.used_bytes[0], host.used_bytes) == (100, 100)


def test_a_full_device_takes_nothing_of_the_host_budget(machine: InMemoryAccelerator) -> None:
    machine.limit_bytes = 50
    host = HostBudget(100)
    with pytest.raises(MemoryError):
        MemoryAccount(machine, 0, host).charge(60)
    assert host.used_bytes == 0


@pytest.mark.parametrize(
    ("chosen", "limit_bytes"),
    [
        ("8GiB", 8 << 30),
        ("1000", 1000),
        ("50%", os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2),
    ],
)
def test_the_host_budget_is_a_size_or_a_share(
    monkeypatch: pytest.MonkeyPatch, chosen: str, limit_bytes: int
) -> None:
    monkeypatch.setenv("NEURONTOOLS_HOST_MEMORY", chosen)
    assert host_limit() == limit_bytes


@pytest.mark.parametrize("chosen", ["lots", "x%"])
def test_a_host_budget_that_is_neither_is_named(monkeypatch: pytest.MonkeyPatch, chosen: str) -> None:
    monkeypatch.setenv("NEURONTOOLS_HOST_MEMORY", chosen)
    with pytest.raises(UsageError, match=chosen):
        host_limit()


def test_every_collective_that_has_a_kernel_is_defined(monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        def __init__(self, *_: str) -> None:
            self.defined: list[str] = []
            self.implemented: list[str] = []

        def define(self, schema: str) -> None:
            self.defined.append(schema.partition("(")[0])

        def impl(self, name: str, *_: object) -> None:
            self.implemented.append(name)

    monkeypatch.setattr(collectives, "_library", None)
    monkeypatch.setattr(torch.library, "Library", Library)
    collectives.define()
    made = collectives._library
    collectives.define()
    assert collectives._library is made
    assert sorted(2 * made.defined) == sorted(made.implemented)  # on the host and on the meta device
    assert "all_reduce_" in made.defined


@pytest.mark.parametrize(("value", "count"), [(None, 1), ("", 1), ("4", 4), ("many", 1)])
def test_without_a_launcher_a_program_is_the_only_worker(
    monkeypatch: pytest.MonkeyPatch, value: str | None, count: int
) -> None:
    for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert workers.local_world_size() == workers.world_size() == count


def test_arguments_at_the_end_that_have_their_default_are_left_out() -> None:
    def parameter(name: str, *, keyword_only: bool = False, default: object = None) -> Parameter:
        return Parameter(
            name, Kind.CONSTANT, keyword_only, default is not None, default, written=False, overwritten=False
        )

    operator: Any = SimpleNamespace(
        parameters=(
            parameter("size"),
            parameter("dim", default=1),
            parameter("start", default=7),
            parameter("alpha", keyword_only=True, default=1),
        )
    )
    assert _last_positional(operator, (3, 1, 7, 1)) == 0
    assert _last_positional(operator, (3, 2, 7, 5)) == 1
    assert _last_positional(operator, (3, 1, 8, 1)) == 2
    assert _last_positional(SimpleNamespace(parameters=operator.parameters[3:]), (5,)) == -1  # type: ignore[arg-type]


def test_operators_are_the_same_only_if_they_are_one_object() -> None:
    operator = operator_of(torch.ops.aten.add.Tensor)
    assert operator_of(torch.ops.aten.add.Tensor) is operator
    assert replace(operator) != operator


def test_each_member_gets_its_part_of_an_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_group, "_prepare", lambda _: None)
    monkeypatch.setattr(process_group, "_finished", lambda tensors: tensors)
    sizes: list[tuple[list[int], list[int]]] = []

    def exchange(
        joined: torch.Tensor, flat: torch.Tensor, received: list[int], sent: list[int], _: Any
    ) -> None:
        sizes.append((received, sent))
        joined.copy_(flat + 1)

    monkeypatch.setattr(process_group.collectives, "all_to_all_uneven_", exchange)
    member: Any = SimpleNamespace(_mesh=None)
    outputs = [torch.zeros(1, 2), torch.zeros(2), torch.zeros(2, 1)]
    tensors = [torch.full((2,), float(n)) for n in range(3)]
    process_group.ProcessGroupXla.alltoall(member, outputs, tensors)
    assert [output.tolist() for output in outputs] == [[[1.0, 1.0]], [2.0, 2.0], [[3.0], [3.0]]]
    assert sizes == [([2, 2, 2], [2, 2, 2])]
    with pytest.raises(NotImplementedError, match="the backend xla exchanges parts of equal size only"):
        process_group.ProcessGroupXla.alltoall(member, [torch.zeros(1), torch.zeros(3)], tensors[:2])


class Recorded:
    """A group of two workers that notes its calls."""

    ranks = (0, 1)

    def __init__(self, rank: int = 1) -> None:
        self.rank = rank
        self.calls: list[tuple[object, ...]] = []

    def group_in(self, groups: str) -> Recorded:
        self.calls.append(("groups", groups))
        return self

    def all_reduce(self, flat: list[torch.Tensor], reduce_type: str, scale: float) -> None:
        self.calls.append((reduce_type, scale, *(part.dtype for part in flat)))
        for part in flat:
            part.mul_(2)

    def broadcast(self, flat: list[torch.Tensor], root: int) -> None:
        self.calls.append(("broadcast", root, *(part.numel() for part in flat)))
        for part in flat:
            part.zero_()


def test_all_reduce_takes_each_type_at_once_and_narrow_ones_in_a_wider(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = Recorded()
    monkeypatch.setattr(collectives.worker_group, "current", lambda: group)
    tensors = [torch.ones(2, 3).t(), torch.ones(2, dtype=torch.int16), torch.ones(4)]
    collectives._all_reduce(tensors, "sum", 0.5, "{{0,1}}")
    assert [tensor.flatten().tolist() for tensor in tensors] == [[2.0] * 6, [2.0] * 2, [2.0] * 4]
    assert [tensor.dtype for tensor in tensors] == [torch.float32, torch.int16, torch.float32]
    wider = collectives._WIDER[torch.int16]
    assert group.calls == [
        ("groups", "{{0,1}}"),
        ("sum", 0.5, torch.float32, torch.float32),
        ("sum", 0.5, wider),
    ]


def test_broadcast_sends_the_bytes_of_each_type_from_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Recorded()
    monkeypatch.setattr(collectives.worker_group, "current", lambda: group)
    tensors = [torch.ones(3), torch.ones(2, 2).t(), torch.ones(2, dtype=torch.int16)]
    collectives._broadcast(tensors, 1, "{{0,1}}")
    assert all(not tensor.any() for tensor in tensors)
    assert group.calls == [("groups", "{{0,1}}"), ("broadcast", 1, 12, 16), ("broadcast", 1, 4)]


def test_point_to_point_names_the_member_by_its_place_in_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[object, ...]] = []
    monkeypatch.setattr(process_group, "_prepare", lambda _: None)
    monkeypatch.setattr(process_group, "_finished", lambda tensors: tensors)
    monkeypatch.setattr(process_group.collectives, "send", lambda *call: calls.append(call))
    monkeypatch.setattr(process_group.collectives, "receive_", lambda *call: calls.append(call))
    requests: list[tuple[object, ...]] = []
    a_minute = timedelta(minutes=1)

    def request(source: int, tag: int, timeout: timedelta) -> SimpleNamespace:
        requests.append((source, tag, timeout))
        return SimpleNamespace(source=source, tag=tag)

    run = SimpleNamespace(
        group=lambda ranks: SimpleNamespace(timeout={(2, 5): a_minute}[ranks]),
        messages=SimpleNamespace(request=request),
    )
    monkeypatch.setattr(process_group.worker_group, "current", lambda: run)
    member: Any = SimpleNamespace(_ranks=(2, 5), _receives={})
    tensor = torch.ones(1)
    process_group.ProcessGroupXla.send(member, [tensor], 1)
    process_group.ProcessGroupXla.send(member, [tensor], 0, tag=4)
    receives = [
        process_group.ProcessGroupXla.recv(member, [tensor], 0, tag=4),
        process_group.ProcessGroupXla.recv(member, [tensor], 1),
    ]
    assert calls == [(tensor, 5, 0), (tensor, 2, 4)]  # received when the program waits for it
    assert requests == [(2, 4, a_minute), (5, 0, a_minute)]
    for receive in receives:
        assert receive.wait()
        assert receive.wait()
    assert calls[2:] == [(tensor, 2, 4), (tensor, 5, 0)]


def test_workers_are_known_once_they_have_connected_and_those_of_another_machine_are_apart() -> None:
    store = dist.HashStore()
    first = WorkerRoster(store, 0, 3, timedelta(seconds=1))
    assert first.peer(1) is None
    WorkerRoster(store, 1, 3, timedelta(seconds=1))
    other = first.peer(1)
    assert other is not None
    assert (other.rank, other.pid, other.has_ended()) == (1, os.getpid(), False)
    assert [peer.rank for peer in first.on_one_machine((0, 1))] == [0, 1]
    first.store.set("worker/2", json.dumps([1, 2, "elsewhere", "elsewhere", "other"]).encode())
    assert first.on_one_machine((0, 1, 2)) == ()
    assert not replace(other, place="elsewhere", start_ticks=1).has_ended()
    assert replace(other, start_ticks=1).has_ended()


def test_only_a_single_new_contiguous_result_takes_the_fast_way() -> None:
    single, pair = operator_of(torch.ops.aten.relu.default), operator_of(torch.ops.aten.max.dim)
    geometry = (torch.float32, (2, 3), (3, 1), 0)
    fresh = Fresh(0, geometry, 24, 7, contiguous=True)
    assert fast_result(single, (fresh,)) == ((2, 3), torch.float32, 24, 7)
    assert fast_result(single, (replace(fresh, contiguous=False),)) is None
    assert fast_result(single, (Alias(0, of_result=False, geometry=geometry),)) is None
    assert fast_result(pair, (fresh, fresh)) is None


def test_the_inputs_that_custom_operators_read_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom_op_graph, "_loaded", lambda: [SimpleNamespace(ops=("my_ops::twice",))])
    nodes = (
        Node("aten.relu.default", (vector(0),), (), (vector(3),)),
        Node("my_ops.twice.default", (vector(1), vector(3)), (), (vector(4),)),
    )
    graph = Graph((Slot(16),) * 5, (0, 1, 2), 0, nodes, (4,), ("ab" * 32,))
    assert custom_op_graph.native_inputs(graph) == (1,)
    assert custom_op_graph.native_inputs(replace(graph, libraries=())) == ()


@pytest.mark.slow
def test_a_worker_that_connects_does_not_keep_its_other_threads_from_the_store() -> None:
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    stores = [dist.TCPStore("127.0.0.1", server.port) for _ in range(2)]
    groups = [
        WorkerGroup(WorkerRoster(store, rank, 2, timedelta(seconds=1)), (0, 1))
        for rank, store in enumerate(stores)
    ]
    with ThreadPoolExecutor(3) as pool:
        groups[1]._roster.store.set("group/0-1/gloo/1", b"1")
        keys = server.num_keys()
        first = pool.submit(groups[0]._over_gloo)
        while (
            server.num_keys() < keys + 2
        ):  # its own name, and the address at which gloo waits for the other one
            assert not first.done(), first.result()
        try:
            # Often: gloo publishes its address a little before it waits.
            checks = pool.submit(lambda: [stores[0].check(["missing"]) for _ in range(2000)])
            assert not any(checks.result(timeout=30))
        finally:
            assert groups[1]._over_gloo().size() == first.result().size() == 2


class Gloo:
    """Stands for torch's process group: keeps its options instead of a connection."""

    _Options = SimpleNamespace

    def __init__(self, store: object, position: int, size: int, options: SimpleNamespace) -> None:
        self.options = options

    @staticmethod
    def create_device(hostname: str) -> str:
        return hostname

    @staticmethod
    def create_default_device() -> str:
        return "by the host's name"


@pytest.mark.parametrize(("interface", "device"), [("", "10.1.2.3"), ("eth7", "by the host's name")])
def test_gloo_listens_at_the_address_of_the_job_unless_an_interface_is_named(
    interface: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", interface)
    monkeypatch.setattr(
        worker_group, "dist", SimpleNamespace(ProcessGroupGloo=Gloo, PrefixStore=lambda *_: None)
    )
    store = SimpleNamespace(plain=SimpleNamespace(clone=lambda: None))
    network = SimpleNamespace(address="10.1.2.3")
    roster = SimpleNamespace(rank=0, size=2, timeout=timedelta(seconds=1), store=store, network=network)
    group = WorkerGroup(roster, (0, 1))  # type: ignore[arg-type]
    monkeypatch.setattr(group, "_join", lambda *_: [])
    assert group._connect_gloo().options._devices == [device]
