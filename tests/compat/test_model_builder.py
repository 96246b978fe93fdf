"""Models of several ranks in one process, with the names as NxD's ModelBuilder uses them."""

import ast
from collections import OrderedDict

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

GROUPS = [[0, 1]]


class Rows(torch.nn.Module):
    """Rank r has rows of the first weight and columns of the second one, and counts its calls."""

    def __init__(self):
        super().__init__()
        self.up = torch.nn.Parameter(torch.zeros(4, 3))
        self.down = torch.nn.Parameter(torch.zeros(3, 4))
        self.calls = torch.nn.Parameter(torch.zeros(1), requires_grad=False)

    def forward(self, x):
        import torch_xla.core.xla_model as xm

        part = torch.relu(x @ self.up) @ self.down
        return [xm.all_reduce("sum", part, groups=GROUPS), self.calls + 1]


def dense(x, weights):
    return sum(torch.relu(x @ rank["up"]) @ rank["down"] for rank in weights)


def random_weights(ranks=2):
    return [{"up": torch.rand(4, 3) - 0.5, "down": torch.rand(3, 4) - 0.5} for _ in range(ranks)]


@pytest.fixture
def world(neuronx, monkeypatch):
    """The shims, while a library says that there are two ranks."""
    import torch_xla.runtime

    monkeypatch.setattr(torch_xla.runtime, "world_size", lambda: 2)
    return neuronx


def compiled(artifacts, ranks=2, world=2):
    import libneuronxla

    neff = libneuronxla.neuron_xla_compile(
        artifacts.hlo_module.SerializeToString(),
        "--model-type=transformer -O1 --logfile=log.txt",
        input_format="hlo",
        platform_target="trn1",
        use_cache=False,
        work_dir=None,
    )
    return torch.classes.neuron.SPMDModel(neff, artifacts.metaneff.SerializeToString(), ranks, world)


def generate(module, inputs, aliases=None, **options):
    from torch_neuronx.xla_impl.trace import generate_hlo

    return generate_hlo(
        module,
        inputs,
        aliases,
        inline_weights_to_neff=False,
        return_weights=False,
        output_aliased_tensor=False,
        cpu_backend=True,
        **options,
    )


class Model(torch.nn.Module):
    """What libraries make of compiled models: weights and state on the cores, a model for each bucket."""

    weights: list[dict[str, torch.Tensor]]
    states: list[dict[str, torch.Tensor]]

    def __init__(self, models):
        super().__init__()
        self.models = models
        self.weights = [{"none": torch.zeros(0)}]
        self.states = [{"none": torch.zeros(0)}]

    def forward(self, inputs: list[torch.Tensor], bucket: int) -> list[torch.Tensor]:
        if not self.models[bucket].is_initialized():
            raise ValueError("no weights")
        return self.models[bucket].forward(inputs)

    @torch.jit.export
    def initialize(self, weights: list[dict[str, torch.Tensor]]):
        self.weights = torch.ops.neuron._parallel_load(weights)
        self.states = [{"calls": torch.zeros(1).to(f"privateuseone:{rank}")} for rank in range(len(weights))]
        for model in self.models:
            model.initialize(self.states, self.weights, 0)


def two_buckets():
    module = Rows()
    artifacts = [generate(module, (torch.ones(size, 4),), {module.calls: 1}) for size in (2, 5)]
    return torch.jit.script(Model([compiled(each) for each in artifacts])), artifacts


def test_ranks_reduce_and_buckets_share_weights_and_state(world, shims):
    model, _ = two_buckets()
    weights = random_weights()
    model.initialize(weights)
    for bucket, size in ((0, 2), (1, 5), (0, 2)):
        x = torch.rand(size, 4)
        (result,) = model([x], bucket)
        torch.testing.assert_close(result, dense(x, weights), rtol=1e-5, atol=1e-6)
    assert [state["calls"].cpu().item() for state in model.states] == [3, 3]
    assert set(shims.cores_used) == {0, 1}
    weight_bytes = 4 * 2 * 4 * 3
    assert min(shims.used_bytes[core] for core in (0, 1)) >= weight_bytes


def test_a_saved_model_is_not_compiled_again_and_takes_other_weights(world, home, monkeypatch):
    model, _ = two_buckets()
    torch.jit.save(model, str(home / "model.pt"))
    del model
    monkeypatch.setattr("tests.xla.conftest.InMemoryAccelerator.compile", None)
    loaded = torch.jit.load(str(home / "model.pt"))
    with pytest.raises(torch.jit.Error, match="no weights"):
        loaded([torch.rand(2, 4)], 0)
    for weights in (random_weights(), random_weights()):
        loaded.initialize(weights)
        x = torch.rand(5, 4)
        torch.testing.assert_close(loaded([x], 1)[0], dense(x, weights), rtol=1e-5, atol=1e-6)
        assert loaded.states[1]["calls"].cpu().item() == 1


def test_the_border_says_what_libraries_look_for(world):
    from torch_neuronx.proto import metaneff_pb2
    from torch_neuronx.pyhlo import hlo_pb2
    from torch_neuronx.xla_impl.trace import get_torch_dtype

    _, (artifacts, _) = two_buckets()
    metaneff = metaneff_pb2.MetaNeff()
    metaneff.ParseFromString(artifacts.metaneff.SerializeToString())
    state = metaneff_pb2.MetaTensor.Type.INPUT_STATE
    (held,) = [tensor for tensor in metaneff.input_tensors if tensor.type is state]
    assert (held.checkpoint_key, list(held.shape)) == (b"calls", [1])
    assert get_torch_dtype(held.data_type) is torch.float32
    assert metaneff.input_tensors[0].type is metaneff_pb2.MetaTensor.Type.USER_INPUT
    assert list(metaneff.output_aliases_to) == [1]
    names = {tensor.checkpoint_key.decode(): number for number, tensor in enumerate(metaneff.input_tensors)}
    assert artifacts.weight_name_to_idx == {name: names[name] for name in ("up", "down")}
    module = hlo_pb2.HloModuleProto()
    module.ParseFromString(metaneff.serialized_graph_def)
    (entry,) = [each for each in module.computations if each.id == module.entry_computation_id]
    assert [each.opcode for each in entry.instructions] == ["parameter"] * len(metaneff.input_tensors)
    module.frontend_attributes.map["transposable_weight_idx"] = "1"
    again = hlo_pb2.HloModuleProto()
    again.CopyFrom(module)
    assert again.frontend_attributes.map == {"transposable_weight_idx": "1"}
    assert str(again) == str(module)


class Counting(torch.nn.Module):
    """Changes its buffers, without a word about it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("last", torch.zeros(2))
        self.register_buffer("still", torch.ones(1))

    def forward(self, x, scale=None, unused=None):
        self.calls += 1
        self.last = torch.stack([self.calls[0], self.last[0]])
        result = x * self.still
        return {"sum": result.sum(), "all": (result if scale is None else result * scale, "text", 3)}


def test_buffers_that_a_model_changes_hold_state(world):
    from torch_neuronx.xla_impl.structure import Flattener, Packer

    module = Counting()
    inputs = OrderedDict(x=torch.ones(2), unused=torch.ones(3), scale=torch.ones(1))
    artifacts = generate(module, inputs, enable_aliasing=True, treat_inputs_as_kwargs=True)
    assert module.calls.item() == 0
    assert module.last.device.type == "cpu"
    state = {tensor.checkpoint_key for tensor in artifacts.metaneff.input_tensors if int(tensor.type) == 3}
    assert state == {b"calls", b"last"}
    model = compiled(artifacts)
    states = [{"calls": torch.zeros(1), "last": torch.zeros(2)} for _ in range(2)]
    loaded = torch.ops.neuron._parallel_load(states)
    model.initialize(loaded, [{"still": torch.ones(1)}] * 2, 0)
    written = [artifacts.flattener.layout, artifacts.flattener.exclude]
    flattener = Flattener(*[ast.literal_eval(str(part)) for part in written])
    packer = Packer(
        *[
            ast.literal_eval(str(part))
            for part in (artifacts.packer.layout, artifacts.packer.identifiers, artifacts.packer.constants)
        ]
    )
    for _ in range(3):
        flat = flattener([torch.tensor([1.0, 2.0]), torch.zeros(9), torch.tensor([3.0])])
        result = packer(model.forward(flat))
    assert result["sum"].item() == 3
    assert (result["all"][0].tolist(), *result["all"][1:]) == ([3.0, 6.0], "text", 3)
    assert [held["last"].tolist() for held in loaded] == [[3.0, 2.0]] * 2


class Ranked(torch.nn.Module):
    def forward(self, x):
        import torch_xla.core.xla_model as xm

        return xm.all_gather(x, dim=0, groups=GROUPS), xm.reduce_scatter("max", x, 1.0, 0, 2, groups=GROUPS)


@pytest.mark.parametrize("way", ["forward_ranked", "forward_async", "forward_ranked_to_cpu"])
def test_each_rank_may_have_inputs_of_its_own(world, way):
    model = compiled(generate(Ranked(), (torch.ones(4),)))
    model.initialize([], [{}, {}], 0)
    inputs = [torch.tensor([1.0, 5.0, 3.0, 7.0]), torch.tensor([4.0, 2.0, 8.0, 6.0])]
    given = (
        inputs if way == "forward_ranked_to_cpu" else [x.to(f"xla:{rank}") for rank, x in enumerate(inputs)]
    )
    results = getattr(model, way)([[x] for x in given])
    for rank, (gathered, scattered) in enumerate(results):
        assert str(gathered.device) == ("cpu" if way == "forward_ranked_to_cpu" else f"xla:{rank}")
        assert gathered.tolist() == torch.cat(inputs).tolist()
        assert scattered.tolist() == torch.maximum(*inputs).view(2, 2)[rank].tolist()


class Choosing(torch.nn.Module):
    def forward(self, x, temperature):
        return x / temperature if torch.any(temperature != 1.0) else x


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_values_that_a_model_reads_are_those_of_the_examples(world, temperature):
    artifacts = generate(Choosing(), (torch.ones(2), torch.tensor([temperature])))
    model = compiled(artifacts)
    model.initialize([], [{}, {}], 0)
    inputs = (torch.tensor([4.0, 6.0]), torch.tensor([temperature]))
    assert model.forward(artifacts.flattener(inputs))[0].tolist() == [4.0 / temperature, 6.0 / temperature]


def test_torch_script_records_a_model_without_weights(world):
    model, _ = two_buckets()
    for each in model.models:
        each.set_mock_initialized(True)

    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            return self.model([x], torch.jit.annotate(int, 0))[0]

    recorded = torch.jit.trace(Outer(), torch.rand(2, 4), strict=False, check_trace=False)
    for each in recorded.model.models:
        each.set_mock_initialized(False)
    weights = random_weights()
    recorded.model.initialize(weights)
    x = torch.rand(2, 4)
    torch.testing.assert_close(recorded(x), dense(x, weights), rtol=1e-5, atol=1e-6)


def test_artifacts_are_written_to_files(world, home):
    _, (artifacts, _) = two_buckets()
    first = compiled(artifacts)
    assert first.save_metaneff(str(home / "metaneff"))
    assert (home / "metaneff").read_bytes() == artifacts.metaneff.SerializeToString()
    assert first.save_neff(str(home / "neff"))
    assert (home / "neff").stat().st_size > 1024


def refusal(call):
    from neurontools.errors import NeuronToolsError

    with pytest.raises((NeuronToolsError, RuntimeError)) as caught:
        call()
    return str(caught.value)


def test_invalid_uses_are_named(world):
    module = Rows()
    artifacts = generate(module, (torch.ones(2, 4),), {module.calls: 1})
    weights, states = random_weights(), [{"calls": torch.zeros(1)}] * 2
    few = random_weights()
    del few[1]["down"]
    cases = {
        "the model has 4 ranks, but this process has 2 NeuronCore": lambda: compiled(
            artifacts, 4, 4
        ).initialize(states * 2, weights * 2, 0),
        "2 of them in this process": lambda: compiled(artifacts, 2, 4).initialize(states, weights, 0),
        "got weights of 1": lambda: compiled(artifacts).initialize(states, weights[:1], 0),
        "the checkpoint of rank 1 lacks 'down'": lambda: compiled(artifacts).initialize(states, few, 0),
        "weight 'up' of rank 0 is float32[8, 3], but the model was compiled for float32[4, 3]": lambda: (
            compiled(artifacts).initialize(states, [{**rank, "up": torch.rand(8, 3)} for rank in weights], 0)
        ),
        "has no weights yet": lambda: compiled(artifacts).forward([torch.rand(2, 4)]),
    }
    for text, call in cases.items():
        assert text in refusal(call), text
    model = compiled(artifacts)
    model.initialize(states, weights, 0)
    assert "compiled for float32[2, 4]" in refusal(lambda: model.forward([torch.rand(3, 4)]))
    assert "takes 1 inputs, not 0" in refusal(lambda: model.forward([]))
    assert "inputs for 1" in refusal(lambda: model.forward_ranked([[torch.rand(2, 4)]]))
    damaged = torch.classes.neuron.SPMDModel(b"neff", b"{}", 2, 2)
    assert "not a MetaNeff" in refusal(lambda: damaged.initialize([], [{}] * 2, 0))


def test_a_rank_that_fails_ends_the_others(world, shims):
    from neurontools.runtime.status import NrtError, NrtStatus

    module = Rows()
    model = compiled(generate(module, (torch.ones(2, 4),), {module.calls: 1}))
    model.initialize([{"calls": torch.zeros(1)} for _ in range(2)], random_weights(), 0)
    shims.fail_next = NrtError("nrt_execute", NrtStatus.NRT_EXEC_HW_ERR_NC_UE)
    assert "status=1202" in refusal(lambda: model.forward([torch.rand(2, 4)]))
    assert len(model.forward([torch.rand(2, 4)])) == 1


def test_damaged_messages_are_refused(neuronx):
    from torch_neuronx.proto import metaneff_pb2

    from neurontools.compat.traced_model import TracedModelError

    for data in (b"", b"{}", b"[]", b"\x0a\x03abc", b'{"name": 3}'):
        with pytest.raises(TracedModelError, match="not a MetaNeff"):
            metaneff_pb2.MetaNeff().ParseFromString(data)


def test_the_runtime_has_the_memory_of_a_core(neuronx):
    runtime = torch.classes.neuron.Runtime()
    runtime.initialize()
    held = torch.ones(1024).to("xla:0")
    used, free = runtime.get_vnc_memory_stats()
    assert used >= held.nbytes
    assert free > 0
    with pytest.raises(ValueError, match="do not exist"):
        runtime.set_default_neuron_cores(1, 2)
    runtime.unload()


def test_logits_of_a_generation_are_compared_behind_a_divergence(neuronx):
    from torch_neuronx.testing.validation import logit_validation

    expected = torch.tensor([[[1.0, 5.0, 2.0]], [[4.0, 3.9999, 0.0]], [[0.0, 1.0, 3.0]]])

    def generate(changed):
        def logits(given):
            start = given.shape[1] - 2
            return (expected + changed)[start:]

        return logits

    near = torch.zeros(3, 1, 3)
    near[1, 0, 1] = 0.001
    assert logit_validation([[7, 8]], generate(near), expected)[0]
    far = torch.zeros(3, 1, 3)
    far[2, 0, 0] = 9.0
    passed, results, text = logit_validation([[7, 8]], generate(far), expected)
    assert (passed, [each["passed"] for each in results]) == (False, [True, True, False])
    assert text == "logits of tokens [2] differ"
