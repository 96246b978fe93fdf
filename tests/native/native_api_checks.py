"""Checks of native_checks.py: torch's interfaces for any accelerator, files, refusals."""

import copy
import io
import json
import os
import pickle

import numpy as np
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from neurontools.native import modules
from neurontools.xla import api
from neurontools.xla.debugging.metrics import counter_value

DEVICE = "neuron"
CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def message(attempt):
    """Return what an attempt raises, in one line."""
    try:
        return f"no error: {attempt()!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        self.head.weight = self.words.weight
        self.register_buffer("columns", torch.arange(6.0).view(2, 3).t())


@check
def accelerator():
    accelerator = torch.accelerator
    with accelerator.device_index(1):
        inside = [torch.neuron.current_device(), str(torch.ones(1, device=DEVICE).device)]
    supported = accelerator.get_device_capability()["supported_dtypes"]
    return {
        "inside": inside,
        "after": accelerator.current_device_index(),
        "no such device": message(lambda: accelerator.set_device_index(9)),
        "still": accelerator.current_device_index(),
        "capability": [torch.bfloat16 in supported, torch.complex128 in supported],
        "streams": accelerator.current_stream() == torch.neuron.current_stream() == torch.neuron.Stream(),
    }


@check
def streams_and_events():
    module, x = torch.neuron, torch.ones(8, device=DEVICE)
    x.record_stream(module.Stream())
    with module.stream(module.Stream(1)):
        inside = module.current_device()
    generic = torch.Event(DEVICE, enable_timing=True), torch.Event(DEVICE, enable_timing=True)
    generic[0].record()
    pending = x + 1
    generic[1].record()
    again = module.Stream().record_event()
    return {
        "inside": inside,
        "after": module.current_device(),
        "torch": isinstance(again, torch.Event) and isinstance(module.Stream(), torch.Stream),
        "elapsed": generic[0].elapsed_time(generic[1]) > 0,
        "ran": pending.tolist() == [2] * 8,
        "waiting": module.Stream().wait_event(again),
        "names": [repr(module.Stream(1)), repr(module.Event(enable_timing=True))],
    }


@check
def memory():
    module = torch.neuron
    x = torch.zeros(1 << 20, device=DEVICE) + 1
    module.synchronize()
    peak = module.max_memory_allocated()
    del x
    module.reset_peak_memory_stats()
    lowered = module.max_memory_allocated()
    torch.accelerator.reset_peak_memory_stats()
    module.reset_accumulated_memory_stats()
    nested = module.memory_stats_as_nested_dict()
    from torch.neuron.memory import memory_stats

    return {
        "torch": memory_stats(0) == module.memory_stats() == torch.accelerator.memory_stats(),
        "retries": module.memory_stats()["num_alloc_retries"],
        "class": module.OutOfMemoryError is torch.OutOfMemoryError,
        "random": torch.neuron.random.initial_seed() == module.initial_seed(),
        "snapshot": message(lambda: module.memory.memory_snapshot),
        "lowered": peak - lowered >= 1 << 22,
        "equal": module.memory_allocated() == torch.accelerator.max_memory_allocated(),
        "nested": nested["reserved_bytes"]["all"]["peak"] == module.max_memory_reserved() > 0,
        "summary": [line.partition(" ")[0] for line in module.memory_summary().splitlines()],
        "short": len(module.memory_summary(abbreviated=True).splitlines()),
    }


@check
def memory_before_a_read():
    module = torch.neuron
    start = module.memory_allocated()
    tensors = [torch.empty(1 << 20, device=DEVICE)]
    empty = module.memory_allocated()
    tensors.append(torch.zeros(1 << 20, device=DEVICE))
    tensors.append(tensors[1] + 1)
    sizes = [empty - start, module.memory_allocated() - start, torch.accelerator.memory_allocated() - start]
    below_peak = module.memory_allocated() <= module.max_memory_allocated()
    pending = api.engine().pending(0)
    tensors.clear()
    return {"sizes": [size >> 20 for size in sizes], "below": below_peak, "pending": pending}


@check
def what_torch_has_for_gpus_alone():
    return {
        "snapshot": message(lambda: torch.neuron.memory._snapshot),
        "amp": message(lambda: exec("from torch.neuron import amp")),
        "DataParallel": message(lambda: nn.DataParallel(nn.Linear(2, 2).to(DEVICE))),
        "inductor": message(
            lambda: torch.compile(torch.relu, backend="inductor")(torch.ones(2, device=DEVICE))
        ),
    }


@check
def products_of_experts():
    torch.manual_seed(0)
    ends = torch.tensor([16, 32], dtype=torch.int32)
    rows, columns = torch.rand(2, 32), torch.rand(2, 16)
    left, right = torch.randn(2, 32, 32), torch.randn(2, 32, 16)
    cases = {  # each: operands, their scales, where groups end, and the two products
        "stacks": (left, right, rows, columns, None, lambda a, b: a @ b),
        "groups of rows": (left[0], right, rows[0], columns, ends, lambda a, b: (a.view(2, 16, 32) @ b).flatten(0, 1)),
        "groups of columns": (
            left, right[0].repeat(1, 2), rows, rows[0], ends,
            lambda a, b: torch.cat([a[0] @ b[:, :16], a[1] @ b[:, 16:]], 1),
        ),
        "groups of both": (
            left[0], right[0], None, None, ends,
            lambda a, b: torch.stack([a[:, :16] @ b[:16], a[:, 16:] @ b[16:]]),
        ),
    }  # fmt: skip
    seen = {}
    for name, (left_values, right_values, a_scale, b_scale, offs, multiply) in cases.items():
        a = left_values.to(torch.float8_e4m3fn)
        b = right_values.mT.contiguous().to(torch.float8_e4m3fn).mT
        if a_scale is None:  # a scale for each group and row, or column
            scales = rows.flatten(), columns.flatten()
            expected = multiply(a.float(), b.float()) * rows.unsqueeze(2) * columns.unsqueeze(1)
        else:
            scales = a_scale, b_scale
            expected = multiply(a.float() * a_scale.unsqueeze(-1), b.float() * b_scale.unsqueeze(-2))
        moved = [value if value is None else value.to(DEVICE) for value in (a, b, *scales, offs)]
        product = torch._scaled_grouped_mm(*moved, out_dtype=torch.bfloat16)
        seen[name] = bool(torch.allclose(product.cpu().float(), expected, rtol=0.01, atol=0.01))
    return seen


@check
def kernels_of_nki():
    import nki.isa as nisa
    import nki.language as nl
    from torch_neuronx import nki, nki_op

    @nki.jit
    def kernel(source):
        target = nl.ndarray(source.shape, dtype=source.dtype, buffer=nl.shared_hbm)
        tile = nl.load(source)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=4.0)
        nl.store(target, value=tile)
        return target

    @nki_op("native_checks::times_four", mutates_args={})
    def times_four(x: torch.Tensor) -> torch.Tensor:
        return kernel(x)

    times_four.register_fake(torch.empty_like)
    times_four.register_autograd(lambda context, gradient: gradient * 3)
    x = torch.ones(2, 3, device=DEVICE, requires_grad=True)
    seen = {
        "eager": times_four(x).tolist(),
        "compiled": torch.compile(times_four, fullgraph=True)(x).tolist(),
    }
    times_four(x).sum().backward()
    seen["gradient"] = x.grad.tolist()
    times_four.register_kernel(DEVICE)(lambda x: x * 2)
    return seen | {"other kernel": times_four(x).tolist()}


@check
def pinned_memory():
    x = torch.arange(4.0).pin_memory()
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.arange(4.0)), batch_size=2, pin_memory=True
    )
    return {
        "pinned": [x.is_pinned(), x[1:].is_pinned(), torch.empty(2, pin_memory=True).is_pinned()],
        "loaded": [batch.is_pinned() for (batch,) in loader],
        "not": torch.ones(2).is_pinned(),
        "moved": x.to(DEVICE, non_blocking=True).to("cpu", non_blocking=True).tolist(),
    }


@check
def saving():
    model = Tied().to(DEVICE)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)

    def load(location):
        file.seek(0)
        return torch.load(file, map_location=location)

    found = load(None)
    found["words.weight"].zero_()
    old = io.BytesIO()
    torch.save(model.state_dict(), old, _use_new_zipfile_serialization=False)
    old.seek(0)
    whole = io.BytesIO()
    torch.save(model, whole)
    whole.seek(0)
    module = torch.load(whole, weights_only=False)
    locations = {
        "cpu": "cpu",
        "second": "neuron:1",
        "dictionary": {"neuron:0": "neuron:2"},
        "function": lambda storage, location: storage,
        "default": None,
    }
    return {
        "devices": {name: str(load(place)["columns"].device) for name, place in locations.items()},
        "values": load("neuron:1")["columns"].tolist()
        == load("cpu")["columns"].tolist()
        == [[0, 3], [1, 4], [2, 5]],
        "strides": found["columns"].stride(),
        "tied": found["head.weight"].abs().sum().item() == 0,
        "old": str(torch.load(old, map_location="neuron:1")["columns"].device),
        "module": module.head.weight is module.words.weight and module.head.weight.is_neuron,
        "pickled": str(pickle.loads(pickle.dumps(nn.Parameter(torch.ones(1, device="neuron:1")))).device),
        "device": str(pickle.loads(pickle.dumps(torch.device("neuron:1")))),
    }


def saved_function(x):
    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(lambda x: x + 1, x.to(DEVICE)), file)
    values = []
    for place in ("cpu", DEVICE):
        file.seek(0)
        values.append(torch.jit.load(file, map_location=place)(x.to(place)).tolist())
    return values


@check
def torchscript():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(2, 3))
    model[2].weight = model[0].weight
    x = torch.arange(4.0).view(2, 2)
    expected = model[:2].eval()(x)
    traced = torch.jit.trace(model[:2], x)
    moved = torch.jit.script(model.eval()).to(DEVICE)
    found, results = {}, [traced.to(DEVICE)(x.to(DEVICE))]
    for place in (None, "cpu", "neuron:1"):
        file = io.BytesIO()
        torch.jit.save(traced, file)
        file.seek(0)
        loaded = torch.jit.load(file, map_location=place)
        found[str(place)] = str(next(loaded.parameters()).device)
        results.append(loaded.to(DEVICE)(x.to(DEVICE)))
    constant = torch.ones(2, device=DEVICE)

    class Shifted(nn.Module):
        def forward(self, x):
            return x + constant

    return {
        "devices": found,
        "same": [torch.equal(result.cpu(), expected) for result in results],
        "kept": next(traced.parameters()).is_neuron,
        "tied": len({weight._cdata for weight in moved.parameters()}),
        "constant": message(lambda: torch.jit.save(torch.jit.trace(Shifted(), x.to(DEVICE)), io.BytesIO())),
        "function": message(
            lambda: torch.jit.save(torch.jit.trace(lambda x: x + constant, x.to(DEVICE)), io.BytesIO())
        ),
        "plain function": saved_function(x),
    }


@check
def storages():
    x, other = torch.arange(4.0, device=DEVICE), torch.arange(4.0, device=DEVICE)
    model = nn.Linear(2, 2).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2, device=DEVICE)).sum().backward()
    optimizer.step()
    averages = [
        state["state"][0]["exp_avg"]
        for state in (optimizer.state_dict(), copy.deepcopy(optimizer.state_dict()))
    ]
    whole, part = copy.deepcopy((x, x[1:]))
    whole.zero_()
    return {
        "apart": x.data_ptr() != other.data_ptr()
        and x.untyped_storage().data_ptr() == x.view(2, 2).data_ptr(),
        "offset": x[1:].data_ptr() - x.data_ptr(),
        "bytes": x.untyped_storage().nbytes(),
        "copied": torch.equal(*averages) and averages[0].data_ptr() != averages[1].data_ptr(),
        "shared": part.tolist(),
        "original": x.tolist(),
    }


@check
def moving_modules():
    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)  # before the move, as on any other device
    before, hooked = model.words.weight, []
    before.register_hook(lambda gradient: hooked.append(gradient.device.type))
    model.to(DEVICE)
    model.head(model.words(torch.tensor([1], device=DEVICE))).sum().backward()
    start = before.detach().cpu()
    optimizer.step()
    graph = model.head(model.words(torch.tensor([1], device=DEVICE)))  # torch cannot swap what it refers to
    kept, moved = model.words.weight is before, before.is_neuron
    model.cpu()
    lazy = nn.LazyLinear(2).to(DEVICE)
    return {
        "lazy": [str(lazy.weight.device), list(lazy(torch.ones(1, 3, device=DEVICE)).shape)],
        "hooked": hooked,
        "kept": kept,
        "moved": moved,
        "trained": not torch.equal(start, model.words.weight.detach()),
        "back": str(model.words.weight.device),
        "tied": model.head.weight is model.words.weight,
        "graph": str(graph.device),
    }


@check
def assigned_data():
    """As FSDP with CPU offload does it: contents leave the device between the forward and the backward pass."""
    weight = nn.Parameter(torch.ones(2))
    weight.data = weight.data.to(DEVICE)
    kinds = [str(weight.device), weight.requires_grad, isinstance(weight, nn.Parameter)]
    loss = (weight * 2).sum()
    weight.data = weight.data.cpu() * 3
    kinds.append(str(weight.device))
    weight.data = weight.data.to(DEVICE)
    for result in (loss, (weight * 2).sum()):
        result.backward()
    take, modules.take_contents = modules.take_contents, lambda *_: False  # as without a compiler for C++
    graph = weight.sum()
    refused = message(lambda: setattr(weight, "data", weight.data.cpu()))
    del graph
    modules.take_contents = take
    return {"kinds": kinds, "values": weight.tolist(), "gradient": weight.grad.tolist(), "refused": refused}


@check
def random_numbers():
    generator = torch.Generator(DEVICE).manual_seed(5)
    clone = generator.clone_state()
    drawn = [torch.rand(2, device=DEVICE, generator=source).tolist() for source in (generator, clone)]
    torch.manual_seed(1)
    with torch.random.fork_rng(device_type=DEVICE):
        first = torch.rand(2, device=DEVICE).tolist()
    return {
        "clone": drawn[0] == drawn[1] and str(clone.device) == DEVICE,
        "forked": first == torch.rand(2, device=DEVICE).tolist(),
    }


@check
def default_device():
    torch.set_default_device(DEVICE)
    try:
        inside = str(torch.ones(1).device), str(nn.Linear(1, 1).weight.device)
    finally:
        torch.set_default_device(None)
    return {
        "inside": inside,
        "printed": repr(torch.tensor([1.5, 2], device=DEVICE)),
        "on the CPU": counter_value("aten::masked_select"),  # which torch chooses the format with
        "cpu": str(torch.ones(1).device),
    }


@check
def refusals():
    x, other = torch.ones(2, 2, device=DEVICE), torch.ones(2, 2, device="neuron:1")
    return {
        "index": message(lambda: torch.ones(1, device="neuron:7")),
        "index of a stream": message(lambda: torch.neuron.Stream(7)),
        "type": message(lambda: torch.neuron.memory_allocated("cpu")),
        "cpu": message(lambda: x + torch.ones(2, 2)),
        "two devices": message(lambda: x @ other),
        "numpy": message(x.numpy),
        "array": message(lambda: np.asarray(x)),
        "shared": message(lambda: torch.UntypedStorage._new_shared(4, device=x.device)),
        "dlpack": message(lambda: torch.utils.dlpack.to_dlpack(x)),
        "np.from_dlpack": message(lambda: np.from_dlpack(x)),
        "double": (torch.ones(1, dtype=torch.float64, device=DEVICE) / 3).tolist() == [1 / 3],
    }


@check
def types_that_the_compiler_lacks():
    x = torch.arange(8.0).view(2, 4)

    def spectrum(x):
        return torch.fft.rfft(x * 2).abs() + 1  # complex64, absent from FFTs

    def written(x):
        z = torch.zeros(3, dtype=torch.complex128, device=x.device)
        z[1] = 2j
        z += 1
        return z.mul_(2).imag + x[0, :3]

    def rounded(x):
        return x.to(torch.float8_e4m3fn).float()

    checked = (spectrum, written, rounded, lambda x: torch.linalg.eigvals(x[:, :2]).real, spectrum)
    graphs = {}
    for device in ("cpu", DEVICE):
        z = x.clone().to(device).requires_grad_()
        spectrum(z).sum().backward()
        graphs[device] = [*(function(x.to(device)).cpu() for function in checked), z.grad.cpu()]
    os.environ["TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS"] = "1"
    forbidden = message(lambda: repr(x.to(DEVICE).to(torch.complex128) + 1))
    del os.environ["TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS"]
    return {
        "same": [torch.equal(*pair) for pair in zip(graphs["cpu"], graphs[DEVICE], strict=True)],
        "on the device": spectrum(x.to(DEVICE)).is_neuron,
        "forbidden": forbidden,
        "sparse": message(x.to(DEVICE).to(torch.complex64).to_sparse),
        "dropout": torch.ops.aten.native_dropout_backward(
            torch.ones(2, dtype=torch.int64, device=DEVICE), torch.tensor([True, False], device=DEVICE), 2.0
        ).tolist(),
    }


@check
def memory_of_the_device():
    accelerator = api.engine().accelerator
    before, total = torch.neuron.mem_get_info(3)
    accelerator.allocate(3, total // 2)
    after, _ = torch.neuron.mem_get_info(3)
    refused = message(lambda: accelerator.allocate(3, after + 1))
    accelerator.free(3, total // 2)
    return {
        "totals": [
            total,
            torch.neuron.get_device_properties(3).total_memory,
            torch.accelerator.get_memory_info(3)[1],
        ],
        "taken": before - after,
        "refused": refused,
    }


@check
def memory_is_full():
    try:
        torch.empty(1 << 50, dtype=torch.uint8, device=DEVICE).fill_(1)
    except torch.OutOfMemoryError as error:
        return {"full": str(error), "runtime": isinstance(error, RuntimeError)}
    return {}


@check
def profiler_with_stacks():
    x = torch.ones(32, 31, device=DEVICE)
    activities = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
    options = {"with_stack": True, "record_shapes": True, "profile_memory": True}
    with profile(activities=activities, **options) as profiled, torch.profiler.record_function("block"):
        (x @ x.T).sum().item()
    with torch.autograd.profiler.profile(use_device=DEVICE) as older:
        (x @ x.T).sum().item()
    return {
        "keys": {"block", "aten::mm"} <= {event.key for event in profiled.key_averages(group_by_stack_n=5)},
        "older": any("modelled" in event.name for event in older.function_events),
    }


@check
def profiler():
    x = torch.ones(32, 32, device=DEVICE)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as profiled:
        (x @ x).sum().item()
    profiled.export_chrome_trace("trace.json")
    with open("trace.json") as file:
        rows = [event for event in json.load(file)["traceEvents"] if event.get("args", {}).get("modelled")]
    table = profiled.key_averages().table(sort_by="self_device_time_total")
    devices = {event.use_device for event in profiled.events() if "modelled" in event.name}
    return {"rows": len(rows) >= 2, "column": "Self NEURON" in table, "devices": sorted(devices)}
