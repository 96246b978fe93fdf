"""A program that uses the device `neuron`: runs every check and prints what it saw as JSON."""

import contextlib
import copy
import io
import json
import os
import runpy
import sys
import weakref

import native_api_checks
import torch
import torch.utils.checkpoint
from torch import nn

import neurontools.fixtures
from neurontools.xla import api
from neurontools.xla.debugging import metrics

DEVICE = "neuron"
CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def executions():
    return (metrics.metric_data("ExecuteTime") or [0])[0]


def compiles():
    return (metrics.metric_data("CompileTime") or [0])[0]


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))


def losses(device, *, steps=6, compiled=False, optimizer=torch.optim.AdamW):
    """Return the losses of a small training run, and graphs and executions after each step."""
    net = model().to(device)
    step_of = torch.compile(net) if compiled else net
    update = optimizer(net.parameters(), lr=0.05)
    batches = torch.Generator().manual_seed(1)
    kept, counted = [], []
    for _ in range(steps):
        x = torch.randn(5, 6, generator=batches)
        target = torch.randint(0, 3, (5,), generator=batches)
        update.zero_grad()
        loss = nn.functional.cross_entropy(step_of(x.to(device)), target.to(device))
        loss.backward()
        update.step()
        kept.append(loss.detach())
        counted.append((compiles(), executions()))
    return [loss.item() for loss in kept], counted


@check
def names():
    x = torch.ones(2).to(DEVICE)
    return {
        "device": str(x.device),
        "is_neuron": x.is_neuron,
        "method": str(torch.ones(1).neuron().device),
        "module": str(nn.Linear(1, 1).neuron().weight.device),
        "accelerator": str(torch.accelerator.current_accelerator(check_available=True)),
        "counts": [torch.neuron.device_count(), torch.accelerator.device_count()],
        "backend": "neuron" in torch._dynamo.list_backends(),
    }


@check
def training():
    expected, _ = losses("cpu")
    found, counted = losses(DEVICE)
    return {"same": found == expected, "counted": counted}


@check
def compiled_training():
    expected, _ = losses("cpu")
    found, counted = losses(DEVICE, compiled=True)
    return {"same": found == expected, "counted": counted}


@check
def loop_without_reads():
    x, weight = torch.ones(4, 4, device=DEVICE), torch.eye(4).to(DEVICE)
    api.engine().sync()
    before = compiles(), executions()
    for _ in range(400):  # 1,200 operators
        x = (x @ weight * 0.5 + 1).tanh()
    after = compiles(), executions()
    expected = torch.ones(4, 4)
    for _ in range(400):
        expected = (expected @ torch.eye(4) * 0.5 + 1).tanh()
    return {
        "same": torch.equal(x.cpu(), expected),
        "compiles": after[0] - before[0],
        "executions": after[1] - before[1],
    }


@check
def deterministic_mode():
    x = torch.ones(3, device=DEVICE)
    fused = api.engine().eager
    torch.use_deterministic_algorithms(True)
    single = api.engine().eager
    before = executions()
    y = x + 1
    y = y * 2
    counted = executions() - before
    torch.set_deterministic_debug_mode(0)
    return {"eager": [fused, single, api.engine().eager], "executions": counted, "y": y.tolist()}


@check
def graph_break_and_shapes():
    def function(x):
        y = x * 2 + 1
        torch._dynamo.graph_break()
        return y.relu().sum()

    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(function, backend="neuron")
    results = [compiled(torch.full((size,), 1.0).to(DEVICE)).item() for size in (2, 3, 3, 4)]
    x = torch.full((2,), 3.0, requires_grad=True)
    compiled(x.to(DEVICE)).backward()
    return {
        "results": results,
        "gradient": x.grad.tolist(),
        "graphs": torch._dynamo.utils.counters["stats"]["unique_graphs"],
        "breaks": sum(torch._dynamo.utils.counters["graph_break"].values()),
    }


@check
def compiled_inputs_of_the_cpu():
    compiled = torch.compile(lambda x: x + torch.ones(2), backend="neuron")
    y = compiled(torch.ones(2))
    os.environ["TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY"] = "1"
    try:
        compiled(torch.ones(2))
        refused = ""
    except Exception as error:
        refused = str(error)
    del os.environ["TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY"]
    return {"device": str(y.device), "y": y.tolist(), "refused": refused}


@check
def dynamic_is_refused():
    try:
        torch.compile(lambda x: x + 1, backend="neuron", dynamic=True)(torch.ones(3, device=DEVICE))
    except Exception as error:
        return str(error)
    return ""


@check
def whole_graph():
    @torch.compile(backend="neuron", fullgraph=True)
    def function(x, y):
        for _ in range(130):  # more operators than an eager fusion takes
            x = x * y + 1
        return x

    x, y = torch.full((3,), 2.0), torch.full((3,), 0.5)
    on_device = x.to(DEVICE), y.to(DEVICE)
    function(*on_device)
    before = executions()
    result = function(*on_device)
    for _ in range(200):
        x = x * y + 1
    return {"executions": executions() - before, "same": torch.equal(result.cpu(), x)}


@check
def amp():
    net, x = model(), torch.ones(2, 6)
    low = copy.deepcopy(net).bfloat16()
    inner = net[2](low[1](low[0](x.bfloat16())).float())  # a LayerNorm computes in float32, as on CUDA
    with torch.autocast(DEVICE):
        result = net.to(DEVICE)(x.to(DEVICE))
        y = x.to(DEVICE, torch.bfloat16)
        types = [
            (y @ y.T).dtype,
            (x.to(DEVICE) @ y.T).dtype,
            y.softmax(0).dtype,
            y.sum().dtype,
            y.exp().dtype,
            y.relu().dtype,
            torch.addcmul(x.to(DEVICE), y, y).dtype,
            (y.double() @ y.double().T).dtype,
            y.softmax(0, dtype=torch.bfloat16).dtype,
            y.long().sum().dtype,
        ]
        try:
            nn.functional.binary_cross_entropy(y.sigmoid(), y)
            refused = ""
        except RuntimeError as error:
            refused = str(error)
    return {
        "same": torch.equal(result.cpu(), low[3](inner.bfloat16())),
        "types": [str(dtype).removeprefix("torch.") for dtype in types],
        "refused": refused,
    }


@check
def grad_scaler():
    net = model().to(DEVICE)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=4.0)
    update = torch.optim.SGD(net.parameters(), lr=0.1)
    before = net[0].weight.detach().cpu()
    scaler.scale(net(torch.ones(2, 6, device=DEVICE)).sum()).backward()
    scaler.step(update)
    scaler.update()
    return {"changed": not torch.equal(before, net[0].weight.detach().cpu()), "scale": scaler.get_scale()}


@check
def saved():
    net = model().to(DEVICE)
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    again = torch.load(file)
    file.seek(0)
    on_cpu = torch.load(file, map_location="cpu")
    expected = model().state_dict()
    return {
        "device": str(again["0.weight"].device),
        "same": all(torch.equal(again[name].cpu(), expected[name]) for name in expected),
        "cpu": all(torch.equal(on_cpu[name], expected[name]) for name in expected),
    }


@check
def loader_and_checkpoint():
    data = torch.utils.data.TensorDataset(torch.arange(12.0).view(6, 2))
    gradients = []
    for checkpointed in (False, True):
        torch.manual_seed(5)
        net = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 1)).to(DEVICE)
        for (x,) in torch.utils.data.DataLoader(data, batch_size=3, pin_memory=True):
            moved = x.to(DEVICE, non_blocking=True)
            result = (
                torch.utils.checkpoint.checkpoint(net, moved, use_reentrant=False)
                if checkpointed
                else net(moved)
            )
            result.sum().backward()
        gradients.append(net[0].weight.grad.cpu())
    return {"same": torch.equal(*gradients)}


@check
def module_of_the_device():
    module = torch.neuron
    module.synchronize()
    used = module.memory_allocated()
    kept = torch.zeros(256, device=DEVICE)
    module.synchronize()
    first, second = module.Event(enable_timing=True), module.Event(enable_timing=True)
    first.record()
    kept += 1
    second.record()
    second.synchronize()
    module.manual_seed(3)
    drawn = torch.rand(2, device=DEVICE).tolist()
    torch.manual_seed(3)
    with module.stream(module.Stream()):
        again = torch.rand(2).tolist()
    properties = module.get_device_properties(0)
    try:
        hint = str(module.memory_snapshot)
    except AttributeError as error:
        hint = str(error)
    return {
        "allocated": module.memory_allocated() - used,
        "stats": module.memory_stats()["allocated_bytes.all.current"] == module.memory_allocated(),
        "current": [module.current_device(), torch.accelerator.current_device_index()],
        "elapsed": first.elapsed_time(second) > 0,
        "same": drawn == again,
        "name": properties.name,
        "hint": hint,
        "current_stream": str(torch.accelerator.current_stream().device),
    }


@check
def parameters_that_move():
    moves = {
        "to": lambda module: module.to(DEVICE),
        "neuron": lambda module: module.neuron(),
        "with a type": lambda module: module.to(DEVICE, torch.bfloat16),
        "back": lambda module: module.to(DEVICE).cpu(),
        "after a step": lambda module: (module(torch.ones(1, 2)).sum().backward(), module.to(DEVICE)),
    }
    found = {}
    for name, move in moves.items():
        first, second = nn.Linear(2, 2), nn.Linear(2, 2)
        second.weight = first.weight
        both, weight, hooked = nn.Sequential(first, second), first.weight, []
        weight.tag, reference, number = "a", weakref.ref(weight), id(weight)
        weight.register_post_accumulate_grad_hook(lambda moved, hooked=hooked: hooked.append(moved.tag))
        move(both)
        device, dtype = weight.device, weight.dtype
        hooked.clear()
        both(torch.ones(1, 2, device=device, dtype=dtype)).sum().backward()
        found[name] = {
            "device": device.type,
            "kept": first.weight is weight and reference() is weight and id(first.weight) == number,
            "shared": second.weight is weight,
            "tag": weight.tag,
            "hooked": hooked,
            "gradient": weight.grad.device.type,
            "class": type(weight).__name__,
        }
    return found


@check
def other_names():
    seen = []
    for attempt in (lambda: __import__("torch_xla"), lambda: api.activate(name="xla")):
        try:
            attempt()
        except Exception as error:
            seen.append(f"{type(error).__name__}: {error}")
    import torch_neuronx

    return {"errors": seen, "memory": torch_neuronx.memory_allocated() == torch.neuron.memory_allocated()}


@check
def sample():
    main = runpy.run_path(os.path.join(neurontools.fixtures.__path__[0], "samples", "native", "train.py"))[
        "main"
    ]
    runs = {
        "cpu": ("cpu",),
        **{mode: (DEVICE, mode) for mode in ("eager", "compile", "mixed")},
        "eager amp": (DEVICE, "eager", True),
    }
    printed = {}
    for name, arguments in runs.items():
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            main(*arguments)
        printed[name] = out.getvalue().splitlines()
    return printed


results = {}
for function in (*CHECKS, *native_api_checks.CHECKS):
    try:
        results[function.__name__] = function()
    except Exception:  # one check must not hide the others
        import traceback

        results[function.__name__] = {"error": traceback.format_exc()}
with open(sys.argv[1], "w") as file:
    json.dump(results, file)
