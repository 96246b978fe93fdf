"""A program that compiles for the device `neuron`: runs every check and prints what it saw as JSON."""

import contextlib
import itertools
import json
import logging
import os
import sys
import traceback
from functools import partial

import torch
import torch._dynamo
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from neurontools.native import activation, patches
from neurontools.xla import api
from neurontools.xla.compiled_function import CompiledFunction
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


@contextlib.contextmanager
def recordings():
    """Yield a list that gets an item each time a compiled graph is recorded."""
    calls, record = [], CompiledFunction._record_once
    CompiledFunction._record_once = lambda *args: (calls.append(args), record(*args))[1]
    try:
        yield calls
    finally:
        CompiledFunction._record_once = record


def message(function):
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


@check
def flexible_attention():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch.manual_seed(0)
    length = 128
    inputs = [torch.randn(1, 2, length, 8) for _ in range(3)]
    distance = torch.arange(length).view(-1, 1) - torch.arange(length)
    mask = torch.where(distance >= 0, distance * 0.01, -torch.inf)

    def causal(batch, head, query, key):
        return query >= key

    def biased(score, batch, head, query, key):
        return score + (query - key) * 0.01

    def results(attention, device, **options):
        moved = [value.detach().to(device).requires_grad_() for value in inputs]
        outcome = attention(*moved, **options)
        outcome.square().sum().backward()
        return [value.detach().cpu() for value in (outcome, *(value.grad for value in moved))]

    expected = results(functional.scaled_dot_product_attention, "cpu", attn_mask=mask)
    blocks = create_block_mask(causal, None, None, length, length, device=DEVICE)
    compiled = torch.compile(flex_attention, fullgraph=True)
    runs = [
        results(attention, DEVICE, score_mod=biased, block_mask=blocks)
        for attention in (flex_attention, compiled, compiled)
    ]
    return [all(torch.allclose(*pair, atol=1e-4) for pair in zip(run, expected, strict=True)) for run in runs]


def train(device, *, whole=False):
    """Return losses and statistics of a training run, and its executions a step."""
    torch.manual_seed(0)
    layers = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Dropout(0.2), nn.Linear(8, 3)
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    update = optimizer.step

    def loss_of(x, target):
        return functional.cross_entropy(model(x), target)

    if whole:
        loss_of, update = torch.compile(loss_of, fullgraph=True), torch.compile(update)
    losses, counted, steps = [], [], []
    activation.observers, activation.report_step = [None], lambda *step: steps.append(step)
    batches = torch.Generator().manual_seed(1)
    torch.manual_seed(2)
    for _ in range(5):
        x = torch.randn(5, 6, generator=batches)
        target = torch.randint(0, 3, (5,), generator=batches)
        before = compiles(), executions()
        optimizer.zero_grad()
        loss = loss_of(x.to(device), target.to(device))
        loss.backward()
        update()
        api.engine().sync()
        counted.append((compiles() - before[0], executions() - before[1]))
        losses.append(loss.detach())
    activation.observers = []
    statistics = [model[1].running_mean.tolist(), model[1].num_batches_tracked.item()]
    return [loss.item() for loss in losses], statistics, counted, len(steps)


@check
def whole_step():
    expected, found = train("cpu"), train(DEVICE, whole=True)
    return {"same": found[:2] == expected[:2], "counted": found[2], "steps": found[3]}


@check
def step_in_one_function():
    """A step with torch.func is one graph: losses, weights, and the executions of a step."""

    def train_functionally(device, compile_function):
        torch.manual_seed(0)
        layers = nn.Linear(4, 8), nn.BatchNorm1d(6), nn.GELU(), nn.Linear(8, 4)
        model = nn.Sequential(*layers).to(device)
        weights = {name: value.detach() for name, value in model.named_parameters()}
        velocities = {name: torch.zeros_like(value) for name, value in weights.items()}
        statistics = dict(model.named_buffers())

        def loss_of(weights, x, target):
            updated = {name: value.clone() for name, value in statistics.items()}
            query = torch.func.functional_call(model, (weights, updated), (x,))
            found = functional.scaled_dot_product_attention(query, query, query, is_causal=True)
            return functional.mse_loss(found, target), updated

        def step(x, target):
            gradients, (loss, updated) = torch.func.grad_and_value(loss_of, has_aux=True)(weights, x, target)
            for name, weight in weights.items():
                velocities[name].mul_(0.9).add_(gradients[name])
                weight.sub_(velocities[name], alpha=0.1)
            for name, value in statistics.items():
                value.copy_(updated[name])
            return loss

        step, losses, counted = compile_function(step), [], []
        batches = torch.Generator().manual_seed(1)
        for _ in range(5):
            x, target = (torch.randn(3, 6, 4, generator=batches).to(device) for _ in range(2))
            before = executions()
            losses.append(step(x, target))
            counted.append(executions() - before)
        values = [value.tolist() for value in (*weights.values(), *statistics.values())]
        return [loss.item() for loss in losses], values, counted[1:]  # the first one ends what came before it

    expected = train_functionally("cpu", lambda step: step)
    found = train_functionally(DEVICE, partial(torch.compile, fullgraph=True))
    return {"same": found[:2] == expected[:2], "counted": found[2]}


@check
def attention():
    def function(query):
        return functional.scaled_dot_product_attention(query, query * 2, query + 1, is_causal=True).sum()

    host = torch.randn(2, 2, 8, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    function(host).backward()
    compiled, same = torch.compile(function), []
    for _ in range(3):
        moved = host.detach().to(DEVICE).requires_grad_()
        loss = compiled(moved)
        loss.backward()
        same.append(torch.equal(moved.grad.cpu(), host.grad) and loss.item() == function(host).item())
    return same


@check
def saved_tensors():
    """The forward graph saves weights as they are: the backward graph transposes them itself."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5)).to(DEVICE)
    y = torch.compile(model)(torch.ones(2, 3, device=DEVICE))
    saved = [list(tensor.shape) for tensor in y.grad_fn.saved_tensors]
    y.sum().backward()
    return saved


@check
def replayed_dropout():
    """A checkpoint in compiled code runs its dropout again with the same random numbers."""

    def gradients(device, compile_function):
        torch.manual_seed(0)
        block = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.GELU(), nn.Dropout(0.5)).to(device)
        function = compile_function(lambda x: checkpoint(block, x, use_reentrant=False))
        torch.manual_seed(1)
        counted = []
        for _ in range(3):
            api.engine().sync()
            before = executions()
            function(torch.ones(2, 4).to(device)).sum().backward()
            counted.append(executions() - before)
        return [parameter.grad.tolist() for parameter in block.parameters()], counted

    expected, found = gradients("cpu", lambda function: function), gradients(DEVICE, torch.compile)
    return {"same": found[0] == expected[0], "executions": found[1][-1]}


@check
def effects():
    """An operator that may raise an error gets a token from torch in place of a tensor."""
    matrix = torch.tensor([[2.0, 0], [0, 4]])
    inverse = torch.compile(torch.linalg.inv)
    return [inverse(matrix.to(DEVICE)).tolist() for _ in range(2)]


@check
def inference():
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)).eval()
    x = torch.randn(4, 6)
    expected = model(x)
    compiled = torch.compile(model.to(DEVICE))
    seen = []
    for mode in (torch.no_grad, torch.inference_mode):
        for _ in range(2):
            with mode():
                before = executions()
                y = compiled(x.to(DEVICE))
                seen.append([executions() - before, y.is_inference()])
            assert torch.equal(y.cpu(), expected)
    return seen


@check
def changed_and_shared_inputs():
    def function(x, y):
        x.add_(y)
        return x[0], x + y

    compiled, same, versions = torch.compile(function), [], []
    host, moved = torch.zeros(4, 2), torch.zeros(4, 2).to(DEVICE)
    parts = [(0, 0), (0, 0), (0, 1), (0, 1), (1, 0), (1, 1)]  # where the two inputs are in one storage
    with torch.no_grad():
        for one, other in parts:
            before = moved._version
            expected = function(host[one::2], host[other::2])
            found = compiled(moved[one::2], moved[other::2])
            versions.append(moved._version - before)
            same.append(all(torch.equal(a, b.cpu()) for a, b in zip(expected, found, strict=True)))
        same.append(torch.equal(host, moved.cpu()))
        found[0].fill_(7)  # a view of the input
    return {"same": same, "versions": versions, "view": moved[1].tolist()}


@check
def replaced_parameter():
    layer = nn.Linear(2, 2, bias=False).to(DEVICE).requires_grad_(requires_grad=False)
    compiled, x, seen = torch.compile(layer), torch.ones(1, 2, device=DEVICE), []
    for value in (1.0, 2.0, 3.0):
        layer.weight.data = torch.full((2, 2), value, device=DEVICE)
        seen.append(compiled(x).tolist())
    return seen


@check
def what_is_not_repeated():
    """Code that passes values between device and host has to run each time."""
    zeros = torch.zeros(2, device=DEVICE)
    noise = torch.compile(lambda x: x + torch.rand(2).to(x.device))
    drawn = {tuple(noise(zeros).tolist()) for _ in range(4)}
    choice = torch.compile(lambda which, x: torch.cond(which, lambda x: x + 1, lambda x: x - 1, (x,)))
    chosen = [choice(torch.tensor(flag).to(DEVICE), zeros).tolist()[0] for flag in (True, True, False, True)]
    masked = torch.compile(lambda x: x[x > 0].sum())
    sums = [masked(torch.tensor(v).to(DEVICE)).item() for v in ([1.0, -1], [1.0, 2], [-1.0, 3])]
    torch.manual_seed(3)
    expected = [functional.dropout(torch.ones(50)).sum().item() for _ in range(3)]
    torch.manual_seed(3)
    dropped = torch.compile(functional.dropout)
    return {
        "drawn": len(drawn),
        "chosen": chosen,
        "sums": sums,
        "dropout": [dropped(torch.ones(50).to(DEVICE)).sum().item() for _ in range(3)] == expected,
    }


@check
def numbers_of_the_cpu():
    count = torch.zeros(())

    def function(x):
        count.add_(1)
        return x * count

    compiled = torch.compile(function)
    with torch.no_grad():
        seen = [compiled(torch.ones(2, device=DEVICE)).tolist() for _ in range(3)]
    return {"seen": seen, "count": count.item(), "device": str(count.device)}


@check
def numbers_of_an_optimizer():
    """Step counts and a learning rate on the CPU: the program reads and changes them itself."""

    def train(device, backend):
        torch.manual_seed(0)
        model = nn.Linear(3, 2).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.1))
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        update, counted = torch.compile(optimizer.step, backend=backend), []
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.ones(2, 3).to(device)).square().sum().backward()
            api.engine().sync()
            before = executions(), model.weight._version, len(calls)
            update()
            counted.append(
                [executions() - before[0], model.weight._version - before[1], len(calls) - before[2]]
            )
            schedule.step()
        state = optimizer.state[model.weight]
        seen = model.weight.tolist(), state["step"].item(), str(state["step"].device), state["step"]._version
        return seen, counted

    with recordings() as calls:
        expected, (found, counted) = train("cpu", "eager")[0], train(DEVICE, DEVICE)
    return {"same": found[:3] == expected[:3], "steps": found[1:3], "counted": counted}


@check
def uninitialised_tensors():
    """A graph with torch.empty is recorded once, with and without autograd; each call returns a tensor of its own."""

    def filled(x):
        result = torch.empty(2, 3, device=x.device)
        result[0] = x
        result[1:] = x * 2
        return result

    seen = []
    for with_autograd in (False, True):
        inputs = [torch.full((3,), float(number)).to(DEVICE) for number in range(4)]
        compiled = torch.compile(filled, fullgraph=True)
        with recordings() as calls, torch.set_grad_enabled(with_autograd):
            results = [compiled(inputs[0])]
            before = torch.accelerator.memory_allocated()
            results += [compiled(x) for x in inputs[1:]]
        used = torch.accelerator.memory_allocated() - before
        same = [result.tolist() for result in results] == [filled(x.cpu()).tolist() for x in inputs]
        del results[1:]
        left = torch.accelerator.memory_allocated() - before
        seen.append({"recordings": len(calls), "same": same, "used": used, "left": left})
    return seen


@check
def views_alone():
    """A graph that computes nothing is recorded once, and executes nothing."""
    x = torch.arange(6.0).to(DEVICE)
    compiled = torch.compile(lambda x: (x.detach(), x.view(2, 3)), fullgraph=True)
    api.engine().sync()
    before = executions()
    with recordings() as calls:
        results = [compiled(x) for _ in range(3)]
    counted = executions() - before
    x.add_(1)
    return [
        len(calls),
        counted,
        [view.tolist() for view in results[-1]] == [x.tolist(), x.view(2, 3).tolist()],
    ]


@check
def gradients_of_the_cpu():
    x = torch.ones(2, requires_grad=True)
    compiled = torch.compile(lambda x: (x * x).sum())
    for _ in range(2):
        compiled(x).backward()
    return [x.grad.tolist(), str(x.grad.device)]


@check
def shapes():
    recompiles = []
    log = logging.getLogger("torch._dynamo")
    handler = logging.Handler()
    handler.emit = lambda record: recompiles.append(record.getMessage())
    log.addHandler(handler)
    torch._logging.set_logs(recompiles=True)
    compiled = torch.compile(lambda x: x * 2)
    torch._dynamo.utils.counters.clear()
    results = [compiled(torch.ones(size, device=DEVICE)).sum().item() for size in (2, 3, 2, 4)]
    found = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    torch._logging.set_logs()
    log.removeHandler(handler)
    marked = torch.ones(3, device=DEVICE)
    torch._dynamo.mark_dynamic(marked, 0)
    many = torch.compile(lambda x: x * 3)  # more shapes than torch compiles for one function
    return {
        "many": [many(torch.ones(size, device=DEVICE)).sum().item() for size in range(1, 12)][-3:],
        "results": results,
        "graphs": found,
        "logged": sum("size mismatch" in text for text in recompiles),
        "dynamic": message(lambda: torch.compile(lambda x: x + 1, dynamic=True)(marked)),
        "marked": message(lambda: torch.compile(lambda x: x + 1)(marked)),
        "others": torch._dynamo.config.automatic_dynamic_shapes,
    }


@check
def failures():
    def complex_numbers(x):
        y = x * 2
        return torch.fft.fft(y).abs()

    def too_large(x):
        return (x.expand(200_000, 300_000) + 1).sum()

    def broken(x):
        torch._dynamo.graph_break()
        return x + 1

    x = torch.ones(1, device=DEVICE)
    graph = torch.fx.Graph()
    graph.call_function(torch._higher_order_ops.triton_kernel_wrap.triton_kernel_wrapper_mutation)
    graph.output(())
    kernel = torch.fx.GraphModule({}, graph)
    return {
        "complex": message(lambda: torch.compile(complex_numbers)(torch.ones(4, device=DEVICE))),
        "large": message(lambda: torch.compile(too_large)(x)),
        "broken": message(lambda: torch.compile(broken, fullgraph=True)(x)).splitlines()[0],
        "triton": message(lambda: torch._dynamo.lookup_backend(DEVICE)(kernel, [])),
        "sparse": [
            message(partial(function, torch.eye(2, device=DEVICE)))
            for function in (torch.Tensor.to_sparse, torch.compile(lambda x: x.to_sparse()))
        ],
        "after": torch.compile(broken)(x).tolist(),
    }


called = []


@torch.library.custom_op("compiled_checks::anywhere", mutates_args=())
def anywhere(x: torch.Tensor) -> torch.Tensor:
    called.append(x.device.type)
    return x * 2


@torch.library.custom_op("compiled_checks::on_cpu", mutates_args=(), device_types="cpu")
def on_cpu(x: torch.Tensor) -> torch.Tensor:
    called.append(x.device.type)
    return x * 2


@torch.library.custom_op("compiled_checks::both", mutates_args=(), device_types="cpu")
def both(x: torch.Tensor) -> torch.Tensor:
    called.append(x.device.type)
    return x * 2


for operator in (anywhere, on_cpu, both):
    operator.register_fake(torch.empty_like)


@check
def operators_in_python():
    both.register_kernel(DEVICE)(lambda x: [called.append(f"own {x.device.type}"), x * 2][1])
    seen = {}
    for operator in (anywhere, on_cpu, both):
        called.clear()
        compiled = torch.compile(lambda x, operator=operator: operator(x + 1) + 1)
        values = [compiled(torch.full((1,), float(v)).to(DEVICE)).item() for v in range(3)]
        seen[operator._name] = [values, list(called)]
    return seen


@check
def another_backend():
    """A backend of another package: dynamo's graphs run by its own rules, on the same device beside ours."""
    graphs = []

    @torch._dynamo.register_backend
    def doubling(model, inputs):
        graphs.append([node.target for node in model.graph.nodes if node.op == "call_function"])
        return lambda *args: [result * 2 for result in model(*args)]

    x = torch.arange(3.0).to(DEVICE)
    ours, other = torch.compile(torch.square, backend=DEVICE), torch.compile(torch.square, backend="doubling")
    on_cpu = torch.compile(torch.square, backend="doubling")(torch.arange(3.0))
    return {
        "values": [ours(x).tolist(), other(x).tolist(), on_cpu.tolist(), ours(x + 1).tolist()],
        "devices": [str(other(x).device), str(on_cpu.device)],
        "graphs": len(graphs),
        "listed": [name for name in torch._dynamo.list_backends(None) if name in {"doubling", DEVICE}],
        "through ours": torch.compile(torch.square, backend=wrapping)(x).tolist(),
    }


def wrapping(model, inputs):
    """Compile with our backend, as a package does that changes graphs first."""
    return torch._dynamo.lookup_backend(DEVICE)(model, inputs)


@check
def lines():
    """Operators of compiled graphs have the user's lines and layers, those of the backward pass too."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x):
            return self.layer(x).tanh()

    model = Model().to(DEVICE)
    recorded = []
    build = api.engine().recorder(0).programs.build
    api.engine().recorder(0).programs.build = lambda trace, *rest: (
        recorded.append(trace),
        build(trace, *rest),
    )[1]
    torch.compile(model)(torch.ones(1, 2, device=DEVICE)).sum().backward()
    nodes = [node for trace in recorded for node in trace.calls if node.layer.startswith("layer")]
    line = Model.forward.__code__.co_firstlineno + 1
    return {
        "layers": sorted({(node.op.split(".")[1], node.layer) for node in nodes}),
        "lines": {node.source for node in nodes} == {f"{__file__}:{line}"},
    }


@check
def launch_blocking():
    """NEURON_LAUNCH_BLOCKING runs each operator at once; a compiled graph stays one execution."""
    x = torch.ones(2, device=DEVICE)
    compiled = torch.compile(lambda x: x * 2 + 1)
    compiled(x)
    os.environ["NEURON_LAUNCH_BLOCKING"] = "1"
    patches.choose_execution_mode()
    counted = [executions()]
    for function in (lambda x: x * 2 + 1, compiled, lambda x: x - 1):
        result = function(x)
        counted.append(executions())
    del os.environ["NEURON_LAUNCH_BLOCKING"]
    patches.choose_execution_mode()
    return [after - before for before, after in itertools.pairwise(counted)] + result.tolist()


activation.activate()
results = {}
for function in CHECKS:
    try:
        results[function.__name__] = function()
    except Exception:  # one check must not hide the others
        results[function.__name__] = {"error": traceback.format_exc()}
    torch._dynamo.reset()
with open(sys.argv[1], "w") as file:
    json.dump(results, file)
