"""What is recorded, compiled, executed and counted: one graph per shape of a step, one execution per cut."""

from __future__ import annotations

import gc
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from neurontools.xla import api, kernels
from neurontools.xla.accelerator import DeviceError, LostValueError
from neurontools.xla.debugging import metrics
from neurontools.xla.operators import operator_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.compiler.graph import Graph
    from neurontools.xla.accelerator import LoadedGraph
    from tests.xla.conftest import InMemoryAccelerator


def trainer(optimizer: Callable[[Any], Any], schedule: bool = False) -> Callable[[int], torch.Tensor]:
    model = nn.Linear(6, 3).to("xla")
    chosen = optimizer(model.parameters())
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(chosen, 20) if schedule else None

    def step(rows: int) -> torch.Tensor:
        chosen.zero_grad()
        loss = model(torch.ones(rows, 6).to("xla")).pow(2).mean()
        loss.backward()
        chosen.step()
        if scheduler is not None:
            scheduler.step()
        api.mark_step()
        return loss

    return step


def test_nothing_runs_before_a_cut(machine: InMemoryAccelerator) -> None:
    x = torch.ones(3, device="xla") + 1
    assert machine.executions == 0
    assert api.engine().pending(0) == 2
    assert x.sum().item() == 6
    assert machine.executions == 1
    assert api.engine().pending(0) == 0


def test_a_repeated_step_compiles_once_and_executes_every_time(machine: InMemoryAccelerator) -> None:
    step = trainer(lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9))
    for _ in range(6):
        step(4)
    assert machine.executions == 6
    # The first step makes the momentum buffers, so it is a graph of its own.
    assert len(machine.graphs) == 2
    assert metrics.counter_value("UncachedCompile") == 2
    assert metrics.counter_value("CachedCompile") == 4
    assert metrics.counter_value("MarkStep") == 6


@pytest.mark.parametrize("foreach", [True, False])
def test_a_learning_rate_schedule_does_not_recompile(machine: InMemoryAccelerator, foreach: bool) -> None:
    step = trainer(lambda parameters: torch.optim.AdamW(parameters, lr=0.1, foreach=foreach), schedule=True)
    step(4)
    after_first = len(machine.graphs)
    for _ in range(12):
        step(4)
    assert len(machine.graphs) - after_first <= 1
    before = len(machine.graphs)
    for _ in range(5):
        step(4)
    assert len(machine.graphs) == before


def test_a_partial_batch_is_one_more_graph(machine: InMemoryAccelerator) -> None:
    step = trainer(lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    for rows in (4, 4, 4, 2, 4, 4, 2):
        step(rows)
    assert len(machine.graphs) == 2
    assert machine.executions == 7


def test_keeping_a_value_alive_changes_the_graph(machine: InMemoryAccelerator) -> None:
    x = torch.ones(3).to("xla")
    kept = []
    for keep in (False, True, False, True):
        y = x * 2
        z = y + 1
        if keep:
            kept.append(y)
        del y
        api.mark_step()
        assert z.tolist() == [3, 3, 3]
    assert len(machine.graphs) == 2
    assert [len(graph.outputs) for graph in machine.graphs] == [1, 2]
    assert [value.tolist() for value in kept] == [[2, 2, 2]] * 2


def test_dtype_shape_and_constants_are_part_of_the_graph(machine: InMemoryAccelerator) -> None:
    for x in (torch.ones(2), torch.ones(3), torch.ones(2).double(), torch.ones(4)[::2]):
        for value in (1.5, 2.5, 2, 1):
            _ = (x.to("xla") * value).sum().item()
    shapes = 4  # a strided host tensor is uploaded with its strides gone, but not its size
    assert len(machine.graphs) == (shapes - 1) * 2


def test_graphs_name_operators_views_sources_and_inputs(machine: InMemoryAccelerator) -> None:
    x = torch.ones(2, 3).to("xla")
    y = x.t() @ x
    api.mark_step()
    (graph,) = machine.graphs
    (call,) = graph.nodes
    assert call.op == "aten.mm.default"
    assert call.args[0].strides == (1, 3)  # type: ignore[union-attr]
    assert graph.inputs == (0,)
    assert graph.outputs == (1,)
    assert call.source.startswith(f"{__file__}:")
    assert y.shape == (3, 3)


def test_numbers_are_inputs_of_the_graph(machine: InMemoryAccelerator) -> None:
    x = torch.ones(2).to("xla")
    for value in (0.5, 3, float("nan"), float("inf"), -0.0, -7):
        got = (x * value + value).cpu()
        assert torch.equal(got.nan_to_num(7.0), (torch.ones(2) * value + value).nan_to_num(7.0))
    (graph,) = machine.graphs
    assert graph.lifted == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_only_0_and_1_and_minus_1_are_constants(machine: InMemoryAccelerator, dtype: torch.dtype) -> None:
    x = torch.ones(2, dtype=dtype).to("xla")
    for number in range(2, 200):
        assert (x + number).tolist() == [1 + number] * 2
    assert len(machine.graphs) == 1
    for number in (0, 1, -1):
        assert (x + number).tolist() == [1 + number] * 2
    assert len(machine.graphs) == 4
    for value in (0.5, 7.25):
        assert (x + value).tolist() == [1 + value] * 2
    # The result of float and float has the same form for all numbers, that of int and float has not.
    assert len(machine.graphs) == (4 if dtype.is_floating_point else 5)


def test_numbers_of_every_type_of_schema_are_inputs(machine: InMemoryAccelerator) -> None:
    functional = nn.functional
    x = torch.linspace(-2, 2, 24).view(2, 3, 4)
    programs: list[Callable[[torch.Tensor, float], torch.Tensor]] = [
        lambda x, p: functional.dropout(x, p / 5),
        lambda x, std: x.clone().normal_(0.0, std),
        lambda x, std: torch.empty_like(x).normal_(std, 1),
        lambda x, eps: functional.layer_norm(x, (4,), eps=eps),
        lambda x, slope: functional.leaky_relu(x, slope / 100),  # 0.01 is the default
        lambda x, threshold: functional.softplus(x, 1, 17 + round(threshold)),  # so is 20
        lambda x, scale: functional.scaled_dot_product_attention(x, x, x, scale=scale),
        lambda x, value: torch.where(x > 0, x, value),
        lambda x, value: torch.linspace(0.0, value, 4, device=x.device),
        lambda x, value: x.log().nan_to_num(nan=value),
        lambda x, value: torch.clamp(x, max=value),
        lambda x, value: torch._foreach_add([x, x], [value, value / 7])[1],
    ]
    for number, program in enumerate(programs):
        for value in (0.5, 1.0, 2.0, 3.0, -0.0):
            if value == 1 or not (value or number == 9):
                continue
            torch.manual_seed(1)
            expected = program(x, value)
            torch.manual_seed(1)
            assert torch.equal(program(x.to("xla"), value).cpu(), expected), (number, value)
        assert len(machine.graphs) == number + 1, number


def test_a_fused_optimizer_under_a_schedule_does_not_recompile(machine: InMemoryAccelerator) -> None:
    step = trainer(lambda parameters: torch.optim.AdamW(parameters, lr=0.1, fused=True), schedule=True)
    for _ in range(12):
        step(4)
    assert len(machine.graphs) <= 2


def test_integers_and_booleans_are_not_mixed_up(machine: InMemoryAccelerator) -> None:
    x = torch.ones(2, dtype=torch.int32).to("xla")
    dtypes = [(x + value).cpu().dtype for value in (1, 1.0, True)]
    assert dtypes == [torch.int32, torch.float32, torch.int32]
    assert torch.arange(0, 3, device="xla").dtype == torch.int64
    assert torch.arange(0, 3.0, device="xla").dtype == torch.float32


def test_an_operator_that_cannot_be_recorded_is_counted_and_warned_about_once(
    machine: InMemoryAccelerator, caplog: pytest.LogCaptureFixture
) -> None:
    x = torch.tensor([3, 1, 3]).to("xla")
    with caplog.at_level(logging.WARNING, "neurontools.xla"):
        for _ in range(3):
            assert torch.unique_consecutive(x).tolist() == [3, 1, 3]
    assert metrics.counter_value("aten::unique_consecutive") == 3
    assert [record.getMessage() for record in caplog.records] == [
        "aten::unique_consecutive is not recorded on the xla device: it runs on the CPU"
    ]


def test_only_an_index_by_a_mask_runs_on_the_cpu(machine: InMemoryAccelerator) -> None:
    x = torch.arange(4.0).to("xla")
    assert x[torch.tensor([3, 1]).to("xla")].tolist() == [3.0, 1.0]
    assert metrics.counter_value("aten::index") is None
    assert x[(x > 1).to("xla")].tolist() == [2.0, 3.0]
    assert metrics.counter_value("aten::index") == 1


def test_a_custom_operator_is_recorded_under_its_own_name(machine: InMemoryAccelerator) -> None:
    library = torch.library.Library("neuron_test", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    calls = []

    def twice(x: torch.Tensor) -> torch.Tensor:
        calls.append(x.device.type)
        return x * 2

    library.impl("twice", twice, "CPU")
    for _ in range(3):
        assert torch.ops.neuron_test.twice(torch.ones(2).to("xla")).tolist() == [2, 2]
    assert calls == ["cpu"] * 3
    (graph,) = machine.graphs
    assert [call.op for call in graph.nodes] == ["neuron_test.twice.default"]


def test_an_operator_may_return_its_argument(machine: InMemoryAccelerator) -> None:
    library = torch.library.Library("neuron_same", "DEF")
    library.define("same(Tensor x, Tensor y) -> (Tensor, Tensor)")
    library.impl("same", lambda x, y: (x + y, y), "CPU")
    x, y = torch.ones(3).to("xla"), torch.zeros(3).to("xla")
    for number in range(1, 4):
        added, same = torch.ops.neuron_same.same(x, y)
        y.add_(1)
        api.mark_step()
        assert same.tolist() == y.tolist() == [float(number)] * 3
        assert added.tolist() == [float(number)] * 3


def test_a_number_goes_to_the_overload_that_takes_numbers(machine: InMemoryAccelerator) -> None:
    def overload(name: str) -> str | None:
        found = kernels.find_scalar_overload(operator_of(getattr(torch.ops.aten, name).Tensor))
        return None if found is None else str(found)

    assert overload("mul") == "aten.mul.Scalar"
    assert overload("eq") == "aten.eq.Scalar"
    assert kernels.find_scalar_overload(operator_of(torch.ops.aten.relu.default)) is None


def test_dropout_of_everything_leaves_zeros_and_no_mark(machine: InMemoryAccelerator) -> None:
    x = torch.full((4,), 3.0).to("xla")
    kept, mask = torch.ops.aten.native_dropout(x, 1.0, True)
    assert (kept.tolist(), mask.tolist()) == ([0.0] * 4, [False] * 4)
    kept, mask = torch.ops.aten.native_dropout(x, 0.0, True)
    assert (kept.tolist(), mask.tolist()) == ([3.0] * 4, [True] * 4)


def test_memory_is_accounted_for_and_returns_to_zero(machine: InMemoryAccelerator) -> None:
    x = torch.zeros(256, dtype=torch.float32).to("xla")
    assert api.engine().memory(0).used_bytes == 1024
    y = x + 1
    z = x.view(16, 16)
    assert api.engine().memory(0).used_bytes == 1024  # recorded, not computed
    api.mark_step()
    assert api.engine().memory(0).used_bytes == 2048
    del x
    assert api.engine().memory(0).used_bytes == 2048  # the view holds the buffer
    del z
    assert api.engine().memory(0).used_bytes == 1024
    y.add_(1)
    del y
    api.mark_step()
    assert api.engine().memory(0).used_bytes == 0
    assert machine.peak_bytes[0] == 2048


def test_a_training_loop_leaves_no_memory_behind(machine: InMemoryAccelerator) -> None:
    step = trainer(torch.optim.Adam)
    for rows in (4, 4, 3, 4):
        step(rows)
    assert api.engine().memory(0).used_bytes > 0
    del step
    gc.collect()
    api.mark_step()
    assert api.engine().memory(0).used_bytes == 0
    assert metrics.counter_value("CreateXlaTensor") == metrics.counter_value("DestroyXlaTensor")


def test_reference_cycles_are_freed_by_the_collector(machine: InMemoryAccelerator) -> None:
    class Cycle:
        pass

    cycle = Cycle()
    cycle.me, cycle.tensor = cycle, torch.ones(4).to("xla")  # type: ignore[attr-defined]
    del cycle
    gc.collect()
    assert api.engine().memory(0).used_bytes == 0


def test_a_full_device_says_so_and_can_go_on(machine: InMemoryAccelerator) -> None:
    machine.limit_bytes = 100
    x = torch.ones(16).to("xla")
    y = x + 1
    z = y * 2
    with pytest.raises(MemoryError, match="of 100 bytes"):
        api.mark_step()
    with pytest.raises(LostValueError, match="has no value"):
        z.cpu()
    del y, z
    total = (x * 2).sum().item()  # not inside the assert, which would keep x * 2 alive
    assert total == 32
    with pytest.raises(MemoryError):
        torch.ones(1000).to("xla")
    assert api.engine().memory(0).used_bytes == 64


def test_a_failed_execution_loses_its_results_only(machine: InMemoryAccelerator) -> None:
    for _ in range(2):
        x = torch.ones(2).to("xla")
        y = x + 1
        machine.fail_next = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            api.mark_step()
        with pytest.raises(LostValueError):
            y + 1
        assert (x + 1).tolist() == [2, 2]


def test_an_error_in_a_call_leaves_the_recording_usable(machine: InMemoryAccelerator) -> None:
    x = torch.ones(2, 3).to("xla")
    for _ in range(3):
        y = x + 1
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            y @ x
        with pytest.raises(RuntimeError, match="same device"):
            y + torch.ones(2, 3)
        assert (y * 2).sum().item() == 24


def test_an_interrupt_at_any_point_of_a_call_keeps_the_recording_consistent(
    machine: InMemoryAccelerator,
) -> None:
    import sys

    x = torch.ones(3).to("xla")
    _ = (x + 1.5).mul_(x).tolist()
    learned = len(machine.graphs)
    for stop_at in range(1, 60):
        left = stop_at

        def interrupt(frame: Any, event: str, argument: Any) -> Any:
            nonlocal left
            if "neurontools" not in frame.f_code.co_filename or "tests" in frame.f_code.co_filename:
                return interrupt
            left -= event == "line"
            if left == 0:
                raise KeyboardInterrupt
            return interrupt

        y = None
        before = sys.gettrace()  # that of coverage
        sys.settrace(interrupt)
        try:
            y = (x + 1.5).mul_(x)
        except KeyboardInterrupt:
            y = None
        finally:
            sys.settrace(before)
        if y is not None:
            assert y.tolist() == [2.5] * 3
        assert (x * 2).tolist() == [2, 2, 2]
        api.mark_step()
    assert len(machine.graphs) > learned


def test_step_closures_run_once_after_the_step(machine: InMemoryAccelerator) -> None:
    seen: list[float] = []
    loss = torch.ones(2).to("xla").sum()
    api.add_step_closure(lambda value: seen.append(value.item()), (loss,))
    assert seen == []
    api.mark_step()
    api.mark_step()
    assert seen == [2.0]


def test_random_numbers_have_a_stream_of_their_own(machine: InMemoryAccelerator) -> None:
    torch.manual_seed(3)
    on_cpu = torch.rand(4)
    torch.manual_seed(3)
    on_device = torch.rand(4, device="xla")
    assert torch.equal(torch.rand(4), on_cpu)
    assert torch.equal(on_device.cpu(), on_cpu)


def test_torch_saves_and_restores_the_random_state_of_a_device(machine: InMemoryAccelerator) -> None:
    module = torch.get_device_module("xla")
    torch.manual_seed(3)
    state = module.get_rng_state("xla:0")
    first = torch.rand(3, device="xla").tolist()
    module.set_rng_state(state, 0)
    assert torch.rand(3, device="xla").tolist() == first
    other = module.get_rng_state(torch.device("xla", 1))
    assert torch.equal(other, state)  # each device has a stream of its own


def test_the_random_state_can_be_saved_and_restored(machine: InMemoryAccelerator) -> None:
    api.engine().seed(5)
    _ = torch.rand(3, device="xla").cpu()
    state = api.engine().rng_value(0)
    first = [torch.rand(3, device="xla").tolist() for _ in range(3)]
    api.engine().set_rng_value(0, state)
    assert [torch.rand(3, device="xla").tolist() for _ in range(3)] == first
    api.engine().set_rng_value(0, 5)
    fresh = torch.rand(3, device="xla").tolist()
    api.engine().seed(5)
    assert torch.rand(3, device="xla").tolist() == fresh
    assert fresh != first[0]


def test_dropout_differs_between_steps_and_repeats_with_the_seed(machine: InMemoryAccelerator) -> None:
    def masks() -> list[list[float]]:
        torch.manual_seed(9)
        return [nn.functional.dropout(torch.ones(32, device="xla")).tolist() for _ in range(3)]

    first = masks()
    assert first[0] != first[1]
    assert masks() == first
    assert len(machine.graphs) == 1


def test_several_devices_are_kept_apart(machine: InMemoryAccelerator) -> None:
    x = torch.ones(2, 2, device="xla:1")
    assert x.device == torch.device("xla:1")
    y = x.to("xla:0")
    with pytest.raises(RuntimeError, match="xla:1 and xla:0"):
        x + y
    w = nn.Parameter(torch.ones(2, 2).to("xla:1"))
    (x @ w).sum().backward()
    assert w.grad.device == torch.device("xla:1")
    assert w.grad.cpu().tolist() == [[2, 2], [2, 2]]
    with pytest.raises(DeviceError, match="this process has 2 NeuronCore"):
        torch.ones(1, device="xla:2")


def test_the_report_has_the_shape_of_torch_xla(machine: InMemoryAccelerator) -> None:
    _ = (torch.ones(2).to("xla") + 1).tolist()
    report = metrics.metrics_report()
    lines = report.splitlines()
    start = lines.index("Metric: CompileTime")
    assert lines[start + 1] == "  TotalSamples: 1"
    assert lines[start + 2].startswith("  Accumulator: ")
    assert lines[start + 2].endswith("us")
    assert any(line.startswith("  Percentiles: 1%=") for line in lines)
    assert "Counter: CreateXlaTensor\n  Value: 2\n" in report
    for name in (
        "CompileTime",
        "ExecuteTime",
        "TransferToDeviceTime",
        "TransferFromDeviceTime",
        "TensorsGraphSize",
    ):
        assert name in metrics.metric_names()
        samples, total, last = metrics.metric_data(name) or (0, 0.0, ())
        assert samples == len(last) == 1
        assert total == last[0][1]
    assert metrics.metric_data("Nothing") is None


def test_shutdown_gives_the_cores_back_and_the_next_use_opens_them_again(
    machine: InMemoryAccelerator,
) -> None:
    x = torch.ones(2).to("xla")
    y = x + 1
    api.shutdown()
    assert machine.closed
    assert x.tolist() == [1, 1]
    with pytest.raises(LostValueError):
        y.tolist()
    assert torch.ones(2, device="xla").tolist() == [1, 1]


def test_another_name_for_the_device_is_refused(
    machine: InMemoryAccelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    from neurontools.xla import device

    device.rename()
    monkeypatch.setattr(device, "device_name", lambda: "neuron")
    with pytest.raises(DeviceError, match="already called 'xla'"):
        device.rename()
    with pytest.raises(DeviceError, match="called 'xla', so it cannot be 'neuron' too"):
        api.activate(name="neuron")


def test_integers_are_counted_in_a_histogram(machine: InMemoryAccelerator) -> None:
    for _ in range(2):
        counts = torch.histc(torch.tensor([1, 3, 3, 0], dtype=torch.int32).to("xla"), 4, 0, 3)
        assert counts.dtype == torch.int32
        assert counts.tolist() == [1, 1, 0, 2]


@pytest.mark.parametrize(
    ("call", "dtype"),
    [
        (lambda x, out: torch.add(x, 0.5, out=out), torch.int32),
        (lambda x, out: torch.mm(x, x, out=out), torch.float64),
        (lambda x, out: torch.argmax(x, 0, out=out), torch.float32),
    ],
)
def test_outputs_of_a_type_that_the_results_do_not_fit_are_refused(
    machine: InMemoryAccelerator, call: Callable[[torch.Tensor, torch.Tensor], object], dtype: torch.dtype
) -> None:
    for device in ("cpu", "xla"):
        with pytest.raises(RuntimeError):
            call(torch.ones(2, 2).to(device), torch.empty(0, dtype=dtype, device=device))


def test_threads_may_use_the_device_at_the_same_time(machine: InMemoryAccelerator) -> None:
    def work(seed: int) -> list[float]:
        x = torch.full((8,), float(seed)).to("xla")
        for _ in range(10):
            x = x * 0.5 + 1
        return x.tolist()

    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(work, range(12)))
    expected = []
    for seed in range(12):
        x = torch.full((8,), float(seed))
        for _ in range(10):
            x = x * 0.5 + 1
        expected.append(x.tolist())
    assert got == expected


def test_threads_may_be_the_first_to_use_an_operator(machine: InMemoryAccelerator) -> None:
    x = torch.arange(6.0).reshape(3, 2)
    start = threading.Barrier(4)

    def work(_: int) -> torch.Tensor:
        start.wait()
        return torch.cdist(x.to("xla"), x.to("xla")).cpu()

    with ThreadPoolExecutor(4) as pool:
        assert all(torch.equal(found, torch.cdist(x, x)) for found in pool.map(work, range(4)))


def test_two_threads_may_be_the_first_to_use_the_device(
    machine: InMemoryAccelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2)

    class Recorders(dict[int, Any]):
        """Answers the first question of both threads at the same time."""

        def get(self, index: int, default: Any = None) -> Any:
            found = super().get(index, default)
            if threading.get_ident() not in asked:
                asked.add(threading.get_ident())
                both.wait(30)
            return found

    asked: set[int] = set()
    engine = api.engine()
    monkeypatch.setattr(engine, "_recorders", Recorders())
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(engine.recorder, [0, 0])
    assert first is second


def test_a_trace_cache_that_grew_too_large_is_dropped_without_a_recompile(
    machine: InMemoryAccelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neurontools.xla.recorder._TRIE_LIMIT", 3)
    x = torch.ones(3).to("xla")
    root = api.engine().recorder(0).root
    for _ in range(2):
        for length in range(1, 8):
            y = x
            for _ in range(length):
                y = y * 0.5
            assert y.tolist() == [0.5**length] * 3
    assert api.engine().recorder(0).root is not root
    assert len(machine.graphs) == 7


def test_a_call_that_fails_after_a_known_start_does_not_repeat_what_has_run(
    machine: InMemoryAccelerator,
) -> None:
    def program(fails: bool) -> list[float]:
        x = torch.ones(3).to("xla")
        x.add_(1)
        if fails:
            with pytest.raises(RuntimeError):
                x.view(1, 3) @ torch.ones(2, 2).to("xla")
        x.mul_(3)
        return x.tolist()

    assert [program(fails) for fails in (False, False, True, True, False)] == [[6.0] * 3] * 5


def test_no_garbage_is_collected_while_a_graph_compiles(
    machine: InMemoryAccelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, collecting = machine.load, []

    def load_and_look(index: int, graph: Graph) -> LoadedGraph:
        collecting.append(gc.isenabled())
        return load(index, graph)

    monkeypatch.setattr(machine, "load", load_and_look)
    assert (torch.ones(3, device="xla") * 3).tolist() == [3, 3, 3]
    assert collecting == [False] * len(machine.graphs)
    assert gc.isenabled()
