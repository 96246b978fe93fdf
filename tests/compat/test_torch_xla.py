"""Names of torch_xla that public scripts use, in a run of one process."""

from __future__ import annotations

import collections
import os

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def device(shims):
    return torch.device("xla")


@pytest.fixture
def xm(shims):
    import torch_xla.core.xla_model as module

    return module


def test_collectives_of_one_process_return_its_own_values(xm, device):
    x = torch.arange(4.0).to(device)
    for result in (
        xm.all_reduce(xm.REDUCE_SUM, x, scale=0.5),
        xm.all_gather(x),
        xm.all_to_all(x, 0, 0, 1),
        xm.collective_permute(x, [[0, 0]]),
        xm.all_gather([x], pin_layout=False)[0],
        xm.reduce_scatter_bucketized(xm.REDUCE_SUM, [x], 1.0, 0, 1)[0],
    ):
        assert result is not x
        assert torch.equal(result.cpu(), torch.arange(4.0))
    assert torch.equal(xm.reduce_scatter(xm.REDUCE_MAX, x, 2.0, 0, 1).cpu(), 2 * torch.arange(4.0))
    assert not xm.collective_permute(x, []).any()
    tensors = [x]
    assert xm.all_reduce("sum", tensors, groups=[[0]]) is tensors
    out = torch.zeros(4, device=device)
    assert xm.all_gather(x, output=out) is out
    assert torch.equal(out.cpu(), torch.arange(4.0))
    xm.collective_broadcast([x])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda xm, x: xm.all_reduce("mean", x), "Invalid reduce type: mean"),
        (lambda xm, x: xm.all_reduce("sum", x, groups=[[0, 1]]), "processes that do not exist"),
        (
            lambda xm, x: xm.reduce_scatter("sum", x, 1.0, 0, 2),
            "shard_count is 2, but the group has 1 process",
        ),
        (lambda xm, x: xm.all_to_all(x, 0, 0, 4), "split_count is 4"),
        (lambda xm, x: xm.collective_permute(x, [[0, 1]]), "names a process that does not exist"),
        (lambda xm, x: xm.collective_broadcast([x], root_ordinal=3), "root_ordinal 3 does not exist"),
    ],
)
def test_collectives_refuse_groups_that_the_run_does_not_have(xm, device, call, message):
    with pytest.raises(ValueError, match=message):
        call(xm, torch.ones(2, device=device))


def test_structures_move_between_cpu_and_device(xm, device):
    Pair = collections.namedtuple("Pair", "left right")  # noqa: PYI024
    shared = torch.ones(2)

    class Batch:
        def __init__(self):
            self.data = {"x": shared, "y": [shared, 3]}

    batch, pair, names = xm.send_cpu_data_to_device((Batch(), Pair(shared, None), {"a"}), device)
    assert batch.data["x"].device.type == "xla"
    assert batch.data["y"][0] is batch.data["x"] is pair.left
    assert (pair.right, names, batch.data["y"][1]) == (None, {"a"}, 3)
    (single,) = xm.send_cpu_data_to_device(shared, device)
    assert xm.is_xla_tensor(single)
    assert not xm.is_xla_tensor(shared)
    back = xm._maybe_convert_to_cpu({"k": (single, [single])})
    assert back["k"][0] is back["k"][1][0]
    assert torch.equal(back["k"][0], shared)
    with pytest.raises(RuntimeError, match="is sharing a view with"):
        xm.check_view_sharing([shared, shared[:1]])


def test_gradients_rates_and_ordinals(xm, device):
    model = torch.nn.Linear(2, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    assert xm._fetch_gradients(optimizer) == []
    model(torch.ones(1, 2, device=device)).sum().backward()
    assert [tuple(gradient.shape) for gradient in xm._fetch_gradients(optimizer)] == [(1, 2), (1,)]
    xm.all_reduce_bucketized_gradients(xm._fetch_gradients(optimizer), 1.0)
    xm.broadcast_master_param(model)
    assert xm.do_on_ordinals(lambda x: x.device.type, (model.weight,)) == "cpu"
    assert xm.do_on_ordinals(print, ordinals=(1,)) is None
    assert xm.xla_rendezvous(b"x") == [b"x"]
    tracker = xm.RateTracker()
    tracker.add(5)
    assert tracker.rate() > 0
    assert tracker.global_rate() > 0
    assert xm.xla_real_devices(["xla:1"]) == ["NEURON:1"]
    xm.set_replication(device, [str(device)])


def test_compile_is_a_function_a_decorator_and_a_block(shims, device):
    import torch_xla

    x = torch.ones(2, device=device)

    @torch_xla.compile
    def double(t):
        return t + t

    @torch_xla.compile(name="triple")
    def triple(t):
        return t + t + t

    assert double(x).tolist() == [2, 2]
    assert triple(x).tolist() == [3, 3]
    with torch_xla.compile():
        y = x * 4
    executions = shims.executions
    assert y.tolist() == [4, 4]
    assert shims.executions == executions
    assert torch_xla.compile(triple)(x).tolist() == [3, 3]
    with torch_xla.step():
        y = x * 5
    assert y.tolist() == [5, 5]
    with pytest.raises(RuntimeError, match="read in the middle"), torch_xla.compile(full_graph=True):
        (x + 1).tolist()
    grows = torch_xla.compile(lambda n: torch.ones(n, device=device) + 1, max_different_graphs=2)
    for size in (2, 3, 2, 3):
        grows(size)
    with pytest.raises(RuntimeError, match="produced 3 different graphs"):
        grows(4)
    torch_xla.sync(wait=True, reset_scope=False)


def test_collectives_with_gradients(device):
    import torch_xla.core.functions as xf

    x = torch.arange(1.0, 5.0).to(device).requires_grad_()
    for reduction in ("sum", "mul", "max"):
        x.grad = None
        (xf.all_reduce(reduction, x) * x).sum().backward()
        assert torch.equal(x.grad.cpu(), 2 * torch.arange(1.0, 5.0))
    x.grad = None
    xf.all_gather(x.reshape(2, 2), 1).square().sum().backward()
    assert torch.equal(x.grad.cpu(), 2 * torch.arange(1.0, 5.0))
    with pytest.raises(RuntimeError, match="Unsupported reduce type: and"):
        xf.all_reduce("and", x).sum().backward()
    weight, columns = torch.rand(3, 2), torch.rand(2, 4)
    result = xf.distributed_mm(weight.to(device), columns.to(device), split=2)
    torch.testing.assert_close(result.cpu(), weight @ columns)
    with pytest.raises(ValueError, match="x needs 2 rows"):
        xf.distributed_mm(weight.to(device), weight.to(device))


def test_eager_mode_ends_where_a_function_is_compiled(shims, device):
    import torch_xla
    from torch_xla.experimental import eager_mode, eager_mode_context, is_eager_mode

    x = torch.ones(2, device=device)
    torch_xla.sync()
    eager_mode(True)
    try:
        executions = shims.executions
        y = x + 1 + 1
        assert shims.executions == executions + 2
        assert torch_xla.compile(lambda t: t * 2 + 1)(y).tolist() == [7, 7]
        assert shims.executions == executions + 3
        with eager_mode_context(False) as before:
            assert before
            assert not is_eager_mode()
        assert is_eager_mode()
    finally:
        eager_mode(False)


def test_launch_and_spawn_run_one_worker_in_this_process(shims, monkeypatch):
    import torch_xla
    import torch_xla.distributed.xla_multiprocessing as xmp

    seen = []
    torch_xla.launch(lambda index, value: seen.append((index, value)), ("a",), debug_single_process=True)
    xmp.spawn(seen.append, nprocs=1)
    monkeypatch.setenv("NEURONCORE_NUM_DEVICES", "1")
    torch_xla.launch(seen.append)
    assert seen == [(0, "a"), 0, 0]
    monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", "0-1")
    with pytest.raises(ValueError, match=r"Unsupported nprocs \(4\)"):
        xmp.spawn(print, nprocs=4)
    model = torch.nn.Linear(1, 1)
    assert xmp.MpModelWrapper(model).to("xla") is model
    assert model.weight.device.type == "xla"
    assert xmp.MpSerialExecutor().run(lambda: 7) == 7


def test_a_loader_runs_one_graph_for_several_batches(shims, device):
    import torch_xla.distributed.parallel_loader as pl

    batches = [torch.full((2,), float(number)) for number in range(5)]
    loader = pl.MpDeviceLoader(batches, device, batches_per_execution=2)
    total = torch.zeros(2, device=device)
    start = shims.executions
    for batch in loader:
        total += batch
    assert shims.executions - start == 3
    assert total.tolist() == [10, 10]
    assert len(loader) == 5
    with pytest.raises(TypeError, match="no_such_option"):
        pl.MpDeviceLoader(batches, device, no_such_option=1)


def test_metrics_are_reported_in_short_and_cleared(shims, device):
    import torch_xla
    import torch_xla.debug.metrics as met

    (torch.ones(2, device=device) + 1).tolist()
    torch_xla.sync()
    report = met.short_metrics_report()
    assert "Counter: MarkStep" in report
    assert "Metric: CompileTime" in report
    assert "CreateXlaTensor" not in report
    assert met.short_metrics_report(["UncachedCompile"], ["TensorsGraphSize"]).startswith(
        "Metric: TensorsGraphSize"
    )
    met.clear_counters()
    assert met.counter_names() == []
    assert met.metric_names() != []
    met.clear_all()
    assert met.metrics_report() == ""
    torch.nonzero(torch.ones(2, device=device))
    assert "aten::nonzero" in met.executed_fallback_ops()


def test_tensors_that_share_memory_have_one_id(shims, device):
    import torch_xla

    x, y = torch.ones(4, device=device), torch.ones(4, device=device)
    identity = torch_xla._XLAC._xla_get_tensor_id
    assert identity(x) == identity(x.detach()) != identity(y)
    with pytest.raises(RuntimeError, match="not an XLA tensor"):
        identity(torch.ones(1))


def test_a_checkpoint_has_one_file_per_device_tensor(shims, device, home):
    import torch_xla.utils.serialization as xser

    shared = torch.arange(3.0).to(device)
    xser.save({"a": shared, "b": [shared, torch.ones(2)], "step": 4}, str(home / "model.pt"))
    assert os.listdir(home / "model.pt.tensors") == ["tensor_0.pt"]
    loaded = xser.load(str(home / "model.pt"))
    assert loaded["a"].device.type == "cpu"
    assert loaded["a"].tolist() == [0, 1, 2]
    assert loaded["b"][0].tolist() == [0, 1, 2]
    assert (loaded["b"][1].tolist(), loaded["step"]) == ([1, 1], 4)


@pytest.mark.parametrize("replaces", [False, True])
def test_checkpointed_layers_have_the_gradients_of_plain_ones(shims, device, replaces, monkeypatch):
    import torch.utils.checkpoint
    from torch_xla.utils.checkpoint import checkpoint

    if replaces:  # as AWS's samples do, before libraries look torch's function up
        monkeypatch.setattr(torch.utils.checkpoint, "checkpoint", checkpoint)
    layer = torch.nn.Linear(3, 3).to(device)
    x = torch.ones(2, 3, device=device)
    layer(x).relu().sum().backward()
    expected = layer.weight.grad.cpu()
    for reentrant in (True, False):
        layer.zero_grad()
        inner = x.clone().requires_grad_()
        checkpoint(lambda t: layer(t).relu(), inner, use_reentrant=reentrant).sum().backward()
        assert torch.equal(layer.weight.grad.cpu(), expected)


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW"])
def test_syncfree_optimizers_skip_a_step_on_the_device(shims, device, kind):
    from torch_xla.amp import syncfree

    torch.manual_seed(0)
    model, reference = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
    reference.load_state_dict(model.state_dict())
    model.to(device)
    options = {"lr": 0.1, **({"momentum": 0.9} if kind == "SGD" else {})}
    optimizer = getattr(syncfree, kind)(model.parameters(), **options)
    plain = getattr(torch.optim, kind)(reference.parameters(), **options)
    for skip in (True, False, True, False):
        x = torch.rand(2, 3)
        for net, data in ((model, x.to(device)), (reference, x)):
            net.zero_grad()
            net(data).sum().backward()
        optimizer.step(found_inf=torch.tensor(float(skip)).to(device))
        if not skip:
            plain.step()
    torch.testing.assert_close(model.weight.cpu(), reference.weight, rtol=1e-4, atol=1e-5)  # float32 counters


def test_autocast_is_bfloat16_by_default(shims, device):
    from torch_xla.amp import autocast

    layer = torch.nn.Linear(2, 2).to(device)
    with autocast(device):
        assert layer(torch.ones(1, 2, device=device)).dtype == torch.bfloat16
    with autocast("xla", dtype=torch.float16):
        assert layer(torch.ones(1, 2, device=device)).dtype == torch.float16
    with pytest.raises(RuntimeError, match="needs an XLA device"):
        autocast("cpu")


def test_runtime_names(shims):
    import torch_xla.runtime as xr

    assert (xr.device_type(), xr.host_index(), xr.process_count()) == ("NEURON", 0, 1)
    assert xr.global_runtime_device_count() == xr.addressable_runtime_device_count() == 2
    assert xr.runtime_device_attributes("NEURON:1") == {"core_kind": "NC_v2", "index": 1}
    with pytest.raises(IndexError):
        xr.runtime_device_attributes("NEURON:2")
    assert not xr.is_spmd()
    assert xr.is_bf16_supported()


def test_utilities_of_training_scripts(shims, capsys, monkeypatch):
    import torch_xla.utils.utils as xu

    loader = xu.SampleGenerator(torch.ones(2), 3)
    assert len(list(loader)) == len(list(loader)) == len(loader) == 3
    ((data, target),) = xu.FnDataGenerator(lambda t: t * 2, 4, torch.ones, dims=[2])
    assert (data.shape, target.sum()) == ((4, 2), 16)
    monkeypatch.setenv("SOME_FLAG", "1")
    assert xu.getenv_as("SOME_FLAG", bool) is True
    assert xu.getenv_as("SOME_FLAG", int) == 1
    assert xu.getenv_as("NO_FLAG", int, 5) == 5
    assert xu.check_env_flag("SOME_FLAG")
    assert not xu.check_env_flag("NO_FLAG")
    assert xu.shape([[1, 2], [3, 4]]) == [2, 2]
    assert xu.flatten_nested_tuple((1, [2, (3,)])) == (1, 2, 3)
    assert xu.as_list(3) == [3]
    assert xu.parallel_work(2, abs, [-1, 2]) == [1, 2]
    assert len(set(xu.get_free_tcp_ports(2))) == 2
    with xu.TimedScope("took "):
        pass
    assert capsys.readouterr().err.startswith("took ")
    folder = xu.TmpFolder()
    path = folder.name
    assert os.path.isdir(path)
    del folder
    assert not os.path.exists(path)


def test_named_steps_end_with_the_pending_graph(shims, device):
    import torch_xla.debug.profiler as xp

    x = torch.ones(2, device=device)
    with xp.StepTrace("train", step_num=3):
        y = x + 1
    executions = shims.executions
    assert y.tolist() == [2, 2]
    assert shims.executions == executions
    with xp.Trace("part", size=2):
        x.add_(1)
    assert xp.trace_me("scope")(lambda: 5)() == 5


def test_zero_1_steps_as_the_optimizer_itself_and_resumes(shims, device):
    from torch_xla.distributed.zero_redundancy_optimizer import ZeroRedundancyOptimizer

    def make(dtype=torch.float32, **more):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2).to(device, dtype)
        options = {"lr": 0.1, "save_master_weights": True, "max_norm": 0.5, **more}
        return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, **options)

    def step(model, optimizer, clip=False):
        optimizer.zero_grad()
        model(torch.ones(4, 3, device=device, dtype=model.weight.dtype)).square().sum().backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()

    model, zero = make()
    plain_model, _ = make()
    plain = torch.optim.AdamW(plain_model.parameters(), 0.1)
    for _ in range(3):
        step(model, zero)
        step(plain_model, plain, clip=True)
    torch.testing.assert_close(model.weight.cpu(), plain_model.weight.cpu())
    assert zero.grad_norm > 0.5
    state = dict(zero.state_dict())
    assert state["shape_info"] == {0: (2, 3), 1: (2,)}
    other_model, other = make()
    other.load_state_dict(state)
    assert torch.equal(other_model.weight.cpu(), model.weight.cpu())
    step(model, zero)
    step(other_model, other)
    assert torch.equal(other_model.weight.cpu(), model.weight.cpu())
    half_model, half = make(torch.bfloat16)
    step(half_model, half)
    assert half.base_optimizer.param_groups[0]["params"][0].dtype == torch.float32
    assert half_model.weight.dtype == torch.bfloat16


def test_zero_1_adds_up_gradients_of_half_precision_in_float32(shims, device):
    from torch_xla.distributed.zero_redundancy_optimizer import ZeroRedundancyOptimizer

    weight = torch.nn.Parameter(torch.ones(2, 2, dtype=torch.bfloat16, device=device))
    unused = torch.nn.Parameter(torch.ones(2, device=device))
    options = {"grad_clipping": False, "use_grad_acc_hook": True, "lr": 1.0}
    zero = ZeroRedundancyOptimizer([weight, unused], torch.optim.SGD, **options)
    for _ in range(2):
        zero.zero_grad()
        for factor in (256.0, 1.0):  # bfloat16 has no 257
            (weight * factor).sum().backward()
        assert weight.grad is None
        assert weight.main_grad.tolist() == [[257.0, 257.0], [257.0, 257.0]]
    zero.step()
    (part, _) = zero.base_optimizer.param_groups[0]["params"]
    assert part.tolist() == [[-256.0, -256.0], [-256.0, -256.0]]
    assert weight.tolist() == part.tolist()
    assert not hasattr(unused, "main_grad")


def test_the_page_of_names_is_made_from_the_code():
    from runpy import run_path

    from tests.style.prose import ROOT

    page = run_path(str(ROOT / "docs" / "torch_names_page.py"))
    assert (ROOT / "docs" / "reference" / "torch-names.md").read_text() == page["torch_names_page"]()


def test_each_nearest_name_and_note_belongs_to_a_module_that_exists():
    from runpy import run_path

    from neurontools.compat.unsupported import LIMITS, UNSUPPORTED, UNSUPPORTED_MODULES
    from tests.style.prose import ROOT

    names = run_path(str(ROOT / "docs" / "torch_names_page.py"))["module_names"]()
    for module, missing in UNSUPPORTED.items():
        if module.partition(".")[0] not in {"torchvision", "nki", "neuronxcc"}:  # no packages of torch
            assert not names[module] & set(missing), module
    for module, limited in LIMITS.items():
        assert set(limited) <= names[module], module
    assert {module for module in UNSUPPORTED_MODULES.keys() & names.keys() if names[module]} == set()


def test_a_mesh_has_one_device(shims, device, monkeypatch):
    import torch_xla.distributed.spmd as xs
    import torch_xla.runtime as xr

    monkeypatch.setenv("XLA_USE_SPMD", "0")
    xr.use_spmd()
    assert xr.is_spmd()
    mesh = xs.Mesh([0], (1, 1), ("data", "model"))
    assert (mesh.size(), mesh.shape()["model"], mesh.get_axis_name_idx("model")) == (1, 1, 1)
    x = torch.ones(2, 3, device=device)
    assert xs.mark_sharding(x, mesh, ("data", None)) is x
    xs.set_global_mesh(mesh)
    assert xs.get_global_mesh() is mesh
    with pytest.raises(ValueError, match="a mesh of 2 devices is not simulated"):
        xs.get_1d_mesh()
    with pytest.raises(ValueError, match="names axis 'rows'"):
        xs.mark_sharding(x, mesh, ("rows", None))
    with pytest.raises(ValueError, match="not equal to tensor rank"):
        xs.mark_sharding(x, mesh, ("data",))


def test_a_graph_of_torchdynamo_is_one_execution_after_that_of_its_inputs(shims, device, monkeypatch, capfd):
    from torch_xla.core.dynamo_bridge import extract_compiled_graph

    monkeypatch.setenv("PT_XLA_DEBUG", "1")
    graph = torch.fx.symbolic_trace(lambda x, y: (x @ y).relu() + 2)
    x, y = torch.randn(2, 3).to(device), torch.randn(3, 2).to(device)
    run = extract_compiled_graph(graph, (x, y))
    assert shims.executions == 0
    first = run(x * 3, y)
    assert shims.executions == 2
    assert torch.equal(first.cpu(), graph(x.cpu() * 3, y.cpu()))
    shown = capfd.readouterr().err.splitlines()
    assert [line.partition(":   ")[2] for line in shown if "dynamo " in line] == [
        *["torch_xla.sync when dynamo processing input graphs"] * 2,
        "dynamo is compiling a FX graph to HLO",
        "dynamo is executing a compiled program",
    ]
    compiled = len(shims.graphs)
    assert torch.equal(run(x, y).cpu(), graph(x.cpu(), y.cpu()))
    assert shims.executions == 3
    assert len(shims.graphs) == compiled


def test_attention_of_the_kernel_library_masks_segments_and_adds_a_bias(device):
    from torch_xla.experimental.custom_kernel import flash_attention

    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 2, 4, 8)
    bias = torch.randn(2, 1, 4, 4)
    segments = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1]])
    apart = segments[:, None, :, None] != segments[:, None, None, :]
    later = torch.ones(4, 4, dtype=torch.bool).triu(1)

    def expected(masked, ab, scale):
        scores = scale * q @ k.transpose(-1, -2) + ab
        return torch.softmax(scores.masked_fill(masked, float("-inf")), dim=-1) @ v

    on_device = [tensor.to(device) for tensor in (q, k, v)]
    ids = {"q_segment_ids": segments.to(device), "kv_segment_ids": segments.to(device)}
    for options, result in (
        ({}, expected(later & False, 0.0, 1.0)),
        ({"causal": True, "sm_scale": 0.5}, expected(later, 0.0, 0.5)),
        ({"ab": bias.to(device), "causal": True}, expected(later, bias, 1.0)),
        ({**ids, "ab": bias.to(device)}, expected(apart, bias, 1.0)),
        ({**ids, "causal": True}, expected(apart | later, 0.0, 1.0)),
    ):
        torch.testing.assert_close(flash_attention(*on_device, **options).cpu(), result)


def test_a_neuron_machine_has_no_tpu(shims):
    from torch_xla._internal import tpu

    assert tpu.num_available_devices() == tpu.num_available_chips() == 0
    with pytest.raises(AttributeError, match="not simulated"):
        tpu.num_available_device  # noqa: B018
