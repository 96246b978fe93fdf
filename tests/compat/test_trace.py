"""torch_neuronx.trace: models compiled ahead of time, saved, loaded, placed on cores, with batches of any size."""

from __future__ import annotations

import collections
import dataclasses
import gc
import math
import threading
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


class Network(torch.nn.Module):
    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.conv = torch.nn.Conv2d(1, 2, 3)
        self.norm = torch.nn.BatchNorm2d(2)
        self.scale = torch.full((2, 1, 1), 0.5)  # neither parameter nor buffer
        self.eval()

    def forward(self, x):
        return (self.norm(self.conv(x)) * self.scale + 1).flatten(1)


IMAGE = torch.rand(2, 1, 4, 4)


@pytest.fixture
def network():
    return Network()


@pytest.fixture
def traced(neuronx, network):
    return neuronx.trace(network, IMAGE)


def saved(module, home):
    torch.jit.save(module, str(home / "model.pt"))
    return torch.jit.load(str(home / "model.pt"))


def test_a_function_is_one_operator_on_cpu_tensors(neuronx, shims, home):
    def function(x, y):
        return 2 * x + y

    made = neuronx.trace(function, (torch.rand(3), torch.rand(3)), compiler_workdir=str(home / "work"))
    assert isinstance(made, torch.jit.ScriptModule)
    assert "ops.neuron.forward_v2" in made.code
    assert (home / "work" / "graph.neff").stat().st_size > 1024
    x, y = torch.rand(3), torch.rand(3)
    before = shims.executions
    result = saved(made, home)(x, y)
    assert result.device.type == "cpu"
    assert torch.equal(result, function(x, y))
    assert shims.executions == before + 1


def test_a_module_is_traced_with_its_weights_and_stays_on_the_cpu(neuronx, network, traced, home, shims):
    assert network.conv.weight.device.type == "cpu"
    images = torch.rand(2, 1, 4, 4)
    assert torch.equal(traced(images), network(images))
    assert torch.equal(saved(traced, home)(images), network(images))
    assert shims.loads[0][1] >= sum(weight.nbytes for weight in network.parameters())


def test_results_keep_their_structure(neuronx):
    Pair = collections.namedtuple("Pair", "low high")  # noqa: PYI024
    x = torch.rand(2, 3)
    made = neuronx.trace(lambda t, mask: {"sum": t.sum(1), "masked": t * mask}, (x, torch.ones(2, 3)))
    outcome = made(x, torch.zeros(2, 3))
    assert torch.equal(outcome["sum"], x.sum(1))
    assert not outcome["masked"].any()
    pair = neuronx.trace(lambda t: Pair(t.min(), (t.max(), t)), x)(x)
    assert (pair[0], pair[1][0]) == (x.min(), x.max())
    assert torch.equal(pair[1][1], x)
    constant = torch.arange(3.0)
    assert torch.equal(neuronx.trace(lambda t: (constant, t), x)(x)[0], constant)


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    parts: dict
    pair: object = None


Pair = collections.namedtuple("Pair", "left right")  # noqa: PYI024


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (
            lambda x: Output(x + 1, {"k": x * 2, "l": (x, [x - 1])}),
            (1, {"k": 0, "l": (0, [-1])}),
        ),
        (
            lambda x: {"a": {"b": x, "c": None}, "n": 3, "s": "it's"},
            {"a": {"b": 0, "c": None}, "n": 3, "s": "it's"},
        ),
        (lambda x: [x, (x + 1, None), Pair(x, x + 2)], [0, (1, None), (0, 2)]),
        (lambda x: (x, True, {"q": [x + 1]}), (0, True, {"q": [1]})),
    ],
)
def test_nested_results_keep_their_structure(neuronx, home, function, expected):
    def numbers(value):
        """The structure with the first number of each tensor."""
        if isinstance(value, torch.Tensor):
            return int(value[0])
        if isinstance(value, dict):
            return {key: numbers(item) for key, item in value.items()}
        return type(value)(map(numbers, value)) if isinstance(value, list | tuple) else value

    module = neuronx.trace(function, torch.zeros(3))
    assert numbers(module(torch.zeros(3))) == expected
    assert numbers(saved(module, home)(torch.zeros(3))) == expected


def choose_bucket(tensors: list[torch.Tensor]):
    length = tensors[0].shape[1]
    number = 0
    size = 4
    if length > 4:
        number = 1
        size = 8
    padded: list[torch.Tensor] = []
    for tensor in tensors:
        zeros = torch.zeros([tensor.shape[0], size - length], dtype=tensor.dtype)
        padded.append(torch.cat([tensor, zeros], dim=1))
    return padded, torch.tensor([number])


def scripted_choice():
    return torch.jit.script(choose_bucket)


def test_a_bucket_is_chosen_by_the_inputs(neuronx, home, shims):
    made = []

    def make(factor=1.0):
        made.append(factor)
        return (lambda x, y: {"sum": (x * factor + y).sum(1), "x": [x]}), {}

    examples = [(torch.zeros(2, size), torch.zeros(2, size)) for size in (4, 8)]
    config = neuronx.BucketModelConfig(scripted_choice, func_kwargs=[{"factor": 2.0}, {"factor": 3.0}])
    model = neuronx.bucket_model_trace(make, examples, config, compiler_workdir=str(home / "work"))
    assert made == [2.0, 3.0]
    assert (home / "work" / "bucket_1" / "graph.neff").exists()
    for module in (model, saved(model, home)):
        short, long = (module(torch.ones(2, size), torch.ones(2, size)) for size in (3, 6))
        assert short["sum"].tolist() == [9.0, 9.0]
        assert long["sum"].tolist() == [24.0, 24.0]
        assert [tuple(result["x"][0].shape) for result in (short, long)] == [(2, 4), (2, 8)]


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda n, c: n.bucket_model_trace(lambda: (torch.neg, {}), [], c), "one example for each bucket"),
        (
            lambda n, c: n.bucket_model_trace(lambda: torch.neg, [torch.zeros(2)], c),
            "returns a model and its",
        ),
        (
            lambda n, c: n.bucket_model_trace(
                lambda: (torch.neg, {}), [torch.zeros(2)], n.BucketModelConfig(lambda: choose_bucket)
            ),
            "no TorchScript function",
        ),
        (
            lambda n, c: n.bucket_model_trace(
                lambda: (lambda *x: x[0], {}), [torch.zeros(2), (torch.zeros(2), torch.zeros(2))], c
            ),
            "different structures",
        ),
        (
            lambda n, c: n.bucket_model_trace(
                lambda: (torch.neg, {}),
                [torch.zeros(2)],
                n.BucketModelConfig(scripted_choice, func_kwargs=[{}, {}]),
            ),
            "2 entries for 1 buckets",
        ),
        (
            lambda n, c: n.BucketModelConfig(scripted_choice, shared_state_buffer=[torch.zeros(2)]),
            "shared_state_buffer is not simulated",
        ),
    ],
)
def test_buckets_that_do_not_fit_are_refused(neuronx, run, message):
    with pytest.raises(RuntimeError, match=message):
        run(neuronx, neuronx.BucketModelConfig(scripted_choice))


def test_a_call_changes_neither_inputs_nor_weights(neuronx, home):
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(2))

        def forward(self, x):
            x.add_(1)
            return (self.count.add_(x)).clone()

    module = Counter()
    made = neuronx.trace(module, torch.ones(2))
    x = torch.full((2,), 4.0)
    assert made(x).tolist() == made(x).tolist() == [5, 5]
    assert x.tolist() == [4, 4]
    assert module.count.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            (torch.rand(3, 1, 4, 4),),
            r"input 0 is float32\[3, 1, 4, 4\], but the model was traced with float32\[2, 1",
        ),
        ((torch.rand(2, 1, 4, 4).double(),), r"input 0 is float64\[2, 1, 4, 4\]"),
        ((torch.rand(2, 1, 4, 4, device="meta"),), "traced models take CPU tensors"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(traced, inputs, message):
    with pytest.raises(RuntimeError, match=message):
        traced(*inputs)


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (lambda x: x[x > 0.5], {}, "shape depends on values"),
        (lambda x: (x, object()), {}, "returns a value of type object"),
        (lambda x: {3: x}, {}, "keys other than texts"),
        (lambda x: None, {}, "returns no tensor"),
        (lambda x: x.to(torch.complex128), {}, "Complex data types"),
        (lambda x: x, {"compiler_args": "--optlevel=9"}, "optlevel"),
        (lambda x: x, {"cpu_backend": True}, "cpu_backend needs a --target"),
        (lambda x: x, {"partitioner_config": object()}, "a PartitionerConfig or None"),
        (lambda x: x, {"input_output_aliases": {IMAGE: 0}}, "does not use"),
    ],
)
def test_what_cannot_be_traced_is_refused(neuronx, function, options, message):
    with pytest.raises(Exception, match=message):
        neuronx.trace(function, torch.rand(2), **options)
    with pytest.raises(RuntimeError, match="traced functions take tensors"):
        neuronx.trace(lambda x, n: x * n, (torch.rand(2), 3))


def test_control_flow_is_that_of_the_example(neuronx):
    def function(x):
        scale = x.sum().item()
        return (x if x[0] > 0 else -x) * scale, torch.tensor(x.tolist())

    made = neuronx.trace(function, torch.tensor([1.0, 2.0]))
    scaled, constant = made(torch.tensor([-1.0, 5.0]))
    assert scaled.tolist() == [-3, 15]
    assert constant.tolist() == [1, 2]
    assert not torch.jit.is_tracing()


def test_sizes_are_rounded_by_functions_of_torch_where_libraries_ask_for_tracing(neuronx):
    def pad(x):
        wanted = x.shape[1] / 4
        columns = int(torch.ceil(wanted) * 4) if torch.jit.is_tracing() else math.ceil(wanted) * 4
        lower = int(torch.floor(wanted)) + int(torch.round(wanted))
        return torch.nn.functional.pad(x, (0, columns - x.shape[1])) + lower, torch.ceil(x)

    x = torch.arange(10.0).view(2, 5) / 4
    made = neuronx.trace(pad, torch.ones(2, 5))
    padded, rounded = made(x)
    assert torch.equal(padded, torch.nn.functional.pad(x, (0, 3)) + 2)
    assert torch.equal(rounded, x.ceil())
    with pytest.raises(TypeError):
        torch.ceil(1.5)


def test_analyze_counts_operators_and_shows_those_without_support(neuronx):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    report = neuronx.analyze(model, torch.rand(2, 4))
    assert report["supported_operators"] == {"aten::linear": 2, "aten::relu": 1}
    assert (report["support_percentage"], report["unsupported_operators"]) == ("100.00%", [])
    assert report["torch_neuronx_version"] == neuronx.__version__
    report = neuronx.analyze(
        lambda x: torch.fft.fft(x).real + 1, torch.rand(4), additional_ignored_ops={"aten::add"}
    )
    assert report["support_percentage"] == "0.00%"
    first = report["unsupported_operators"][0]
    assert (first["kind"], first["failureAt"]) == ("aten::fft_fft", "neuronx-cc")
    assert "test_trace.py" in first["call"]


def test_compiling_for_another_target_loads_nothing(neuronx, shims, network):
    neuronx.trace(network, IMAGE, compiler_args=["--target", "inf2"], cpu_backend=True)
    assert shims.loads == []


def test_models_go_to_the_cores_in_turn_and_where_they_are_placed(neuronx, shims, traced, home):
    def cores(module, calls):
        shims.cores_used.clear()
        for _ in range(calls):
            module(IMAGE)
        return list(shims.cores_used)

    first = cores(traced, 2)
    assert first in ([0, 0], [1, 1])
    assert cores(saved(traced, home), 1) == [1 - first[0]]
    neuronx.set_neuron_cores(traced, start_nc=1)
    assert cores(traced, 2) == [1, 1]
    neuronx.set_multicore(traced)
    assert cores(traced, 3) == [0, 1, 0]
    neuronx.move_trace_to_device(traced, 0)
    assert cores(traced, 2) == [0, 0]
    with neuronx.neuron_cores_context(start_nc=1, nc_count=1):
        placed = saved(traced, home)
    assert cores(placed, 2) == [1, 1]
    with neuronx.experimental.multicore_context():
        placed = saved(traced, home)
    assert cores(placed, 3) == [0, 1, 0]
    for start, count in ((2, 1), (0, 3), (1, 2), (0, 0)):
        with pytest.raises(ValueError, match="this process has 2 NeuronCore"):
            neuronx.set_neuron_cores(traced, start, count)


def test_a_model_that_is_gone_leaves_its_core(neuronx, shims, network):
    made = neuronx.trace(network, IMAGE)
    made(IMAGE)
    shims.unloads.clear()
    del made
    gc.collect()
    neuronx.trace(network, IMAGE)
    assert len(shims.unloads) >= 1


def test_lazy_and_asynchronous_loading(neuronx, shims, traced, home, monkeypatch):
    neuronx.lazy_load(traced)
    shims.loads.clear()
    loaded = saved(traced, home)
    assert shims.loads == []
    loaded(IMAGE)
    assert len(shims.loads) == 1
    neuronx.lazy_load(traced, False)
    neuronx.async_load(traced)
    may_load, threads = threading.Event(), []
    load = type(shims).load_neff

    def slow(self, *arguments):
        threads.append(threading.current_thread().name)
        may_load.wait(10)
        return load(self, *arguments)

    monkeypatch.setattr(type(shims), "load_neff", slow)
    loaded = saved(traced, home)
    may_load.set()
    assert torch.equal(loaded(IMAGE), traced(IMAGE))
    assert threads == ["neuron-load"]


def test_a_failed_asynchronous_load_is_raised_by_the_execution(neuronx, shims, traced, home, monkeypatch):
    neuronx.async_load(traced)

    def fail(*arguments):
        raise MemoryError("device full")

    monkeypatch.setattr(type(shims), "load_neff", fail)
    loaded = saved(traced, home)
    with pytest.raises(RuntimeError, match="device full"):
        loaded(IMAGE)


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_dynamic_batching_splits_and_pads(neuronx, network, traced, batch, home):
    assert neuronx.dynamic_batch(traced) is traced
    images = torch.rand(batch, 1, 4, 4)
    torch.testing.assert_close(saved(traced, home)(images), network(images))
    with pytest.raises(RuntimeError, match="only dimension 0"):
        traced(torch.rand(2, 1, 5, 4))


def test_dynamic_batching_needs_one_batch_dimension(neuronx):
    made = neuronx.trace(lambda x, y: x.sum() + y.sum(), (torch.rand(1, 2), torch.rand(3, 2)))
    with pytest.raises(ValueError, match="same size in dimension 0"):
        neuronx.dynamic_batch(made)


def test_data_parallel_spreads_a_batch_over_the_cores(neuronx, shims, network, traced):
    parallel = neuronx.DataParallel(traced)
    assert (parallel.device_ids, parallel.num_workers) == ([0, 1], 4)
    images = torch.rand(8, 1, 4, 4)
    shims.cores_used.clear()
    torch.testing.assert_close(parallel(images), network(images))
    assert sorted(shims.cores_used) == [0, 0, 1, 1]
    parallel.disable_dynamic_batching()
    torch.testing.assert_close(parallel(images[:4]), network(images[:4]))
    with pytest.raises(RuntimeError, match="was traced with"):
        parallel(images)
    parallel.split_size = 2
    torch.testing.assert_close(parallel(images), network(images))
    other = neuronx.trace(lambda x: x * 2, torch.rand(3, 2))
    along = neuronx.DataParallel(other, device_ids=["nc:1", 0], dim=1, set_dynamic_batching=False)
    wide = torch.rand(3, 4)
    assert torch.equal(along(wide), wide * 2)
    with pytest.raises(ValueError, match="device 'nc:7' does not exist"):
        neuronx.DataParallel(traced, device_ids=["nc:7"])


def test_separated_weights_are_replaced(neuronx, network, home):
    made = neuronx.trace(network, IMAGE, inline_weights_to_neff=False)
    loaded = saved(made, home)
    other = Network(seed=1)
    for weights in (other, other.state_dict()):
        neuronx.replace_weights(loaded, weights)
        assert torch.equal(loaded(IMAGE), other(IMAGE))
    assert torch.equal(made(IMAGE), network(IMAGE))
    with pytest.raises(ValueError, match=r"weight 'conv\.weight' is torch\.float64"):
        neuronx.replace_weights(loaded, {"conv.weight": torch.zeros(2, 1, 3, 3).double()})
    with pytest.warns(UserWarning, match="no separated weights"):
        neuronx.replace_weights(neuronx.trace(network, IMAGE), other)


def test_a_model_from_elsewhere_may_only_compute(neuronx, shims, home, monkeypatch):
    from neurontools.compat import tracing
    from neurontools.xla.accelerator import DeviceError

    def compile_hostile(graph, flags):
        call = msgspec.structs.replace(graph.nodes[0], op="aten.from_file.default")
        return compile_exported(replace(graph, nodes=(call,)), flags)

    compile_exported = tracing.compile_exported
    monkeypatch.setattr(tracing, "compile_exported", compile_hostile)
    made = neuronx.trace(torch.relu, torch.rand(3), cpu_backend=True, compiler_args="--target trn1")
    with pytest.raises(DeviceError) as caught:
        saved(made, home)
    assert caught.value.message == (
        f"the NEFF in {home}/model.pt calls 'aten.from_file.default', which a NEFF of another process may not call"
    )


def test_a_model_that_only_this_process_may_run_is_warned_about(neuronx, caplog):
    options = {"cpu_backend": True, "compiler_args": "--target trn1"}
    neuronx.trace(lambda x: torch.relu(x) + 1, torch.rand(3), **options)
    assert not caplog.messages
    neuronx.trace(lambda x: torch.ops.aten.hash_tensor(x).float(), torch.rand(3), **options)
    assert caplog.messages == [
        "the traced model calls aten.hash_tensor.default, so only this process can run it: others refuse its NEFF"
    ]


def test_a_traced_model_may_be_larger_than_a_graph_of_a_program(neuronx, shims, monkeypatch):
    from neurontools.xla import api

    monkeypatch.setattr(api.engine().recorder(0), "graph_limit", 3)
    made = neuronx.trace(lambda x: ((((x * 2) + 1) * 3) - 4) * 5, torch.rand(3))
    assert made(torch.ones(3)).tolist() == [25.0, 25.0, 25.0]


def test_the_example_of_the_page(neuronx, home, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "trace.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(home)
    exec(code, {})
    assert capsys.readouterr().out == "True\n"
