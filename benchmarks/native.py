"""Training steps on the device `neuron`, eager and compiled, and on the device `xla`, against eager torch on the CPU.

A process has one of the two devices, so each way has a process of its own. They take turns, and each has blocks on the
CPU before its own. One thread, CPU time. Compiled are the model alone, three functions (loss, backward, optimizer), or
a step in one function, which computes its gradients with torch.func.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.machine import running_machine
from benchmarks.report import BenchmarkRow, in_short_form

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCKS = in_short_form(21, 1)
WAYS = {
    "xla": "lazy",
    "eager": "eager",
    "compiled": "compiled",
    "whole": "compiled with loss and optimizer",
    "function": "compiled as one function",
}
_EAGER_BUDGETS = {"mlp": 0.5, "cnn": 0.8, "gpt": 0.95}
_WARM_UP = in_short_form(8, 1)
# The checkout comes last, so that the installed package is what is measured.
_CHILD = f"""
import sys
sys.path.append({str(Path(__file__).parents[1])!r})
from benchmarks.native import serve
serve(sys.argv[1])
"""


def main() -> list[BenchmarkRow]:
    """Measure and return the rows."""
    rows = []
    with running_machine("trn2.48xlarge") as environ, ExitStack() as stack:
        children = {way: stack.enter_context(_start(way, environ)) for way in WAYS}
        for name, least in _EAGER_BUDGETS.items():
            equal = {way: _ask(child, name) for way, child in children.items()}
            blocks = [{way: _ask(child, "") for way, child in children.items()} for _ in range(BLOCKS)]
            rows += _rows(name, least, equal, blocks)
        for child in children.values():
            child.communicate(timeout=60)
    return rows


def _rows(name: str, least: float, equal: dict[str, Any], blocks: list[dict[str, Any]]) -> list[BenchmarkRow]:
    title = name.upper()
    rows = []
    for way, text in WAYS.items():
        ratio = median(block[way]["cpu_s"] / block[way]["device_s"] for block in blocks)
        note = f"{1e6 * median(block[way]['device_s'] for block in blocks):,.0f} us a step; losses equal: {equal[way]}"
        row = f"{title}, {text}, steps/s to eager CPU"
        rows.append(
            BenchmarkRow.at_least(row, ratio, "x", least, note)
            if way == "eager"
            else BenchmarkRow.info(row, ratio, "x", note)
        )
    for way in ("compiled", "whole", "function"):
        faster = median(
            block[way]["cpu_s"] / block[way]["device_s"] / (block["xla"]["cpu_s"] / block["xla"]["device_s"])
            for block in blocks
        )
        rows.append(BenchmarkRow.at_least(f"{title}, {WAYS[way]}, steps/s to lazy", faster, "x", 1))
    return rows


def _start(way: str, environ: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _CHILD, way],
        env={
            **environ,
            "OMP_NUM_THREADS": "1",
            "NEURON_RT_NUM_CORES": "1",
            "NEURON_CC_FLAGS": "--log_level=ERROR",
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )


def _ask(child: subprocess.Popen[str], line: str) -> Any:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(f"{line}\n")
    child.stdin.flush()
    answer = child.stdout.readline()
    if not answer:
        raise RuntimeError(f"a process of the benchmark ended with exit code {child.wait(60)}")
    return json.loads(answer)


def serve(way: str) -> None:
    """Train in one way: a line with a model's name chooses it, an empty line measures a block of it."""
    import torch

    from benchmarks.training_models import MODELS

    device = _activate(way)
    torch.set_num_threads(1)
    for line in sys.stdin:
        answer: Any
        name = line.strip()
        if name:
            count = MODELS[name]()[3]
            on_cpu = _trainer(MODELS[name], "cpu", "")
            on_device = _function(MODELS[name]) if way == "function" else _trainer(MODELS[name], device, way)
            losses = [(on_cpu().item(), on_device().item()) for _ in range(_WARM_UP)]
            answer = all(one == other for one, other in losses)
        else:
            answer = {"cpu_s": _time(on_cpu, count), "device_s": _time(on_device, count)}
        print(json.dumps(answer), flush=True)


def _activate(way: str) -> str:
    if way == "xla":
        from neurontools.xla import api

        api.activate()
        return "xla"
    from neurontools.native.activation import activate

    activate()
    return "neuron"


def _time(step: Callable[[], Any], count: int) -> float:
    start_s = time.process_time()
    for _ in range(count):
        step()
    return (time.process_time() - start_s) / count


def _trainer(make: Callable[[], Any], device: str, way: str) -> Callable[[], Any]:
    import torch
    from torch.nn import functional

    from neurontools.xla import api

    torch.manual_seed(0)
    torch.compiler.reset()
    model, inputs, targets, _ = make()
    optimizer = torch.optim.SGD(model.to(device).parameters(), lr=0.01, momentum=0.9)
    scores_of = torch.compile(model, backend="neuron") if way == "compiled" else model

    def loss_of(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(scores_of(images).flatten(0, -2), labels.flatten())

    update = optimizer.step
    if way == "whole":
        loss_of, update = torch.compile(loss_of, backend="neuron"), torch.compile(update, backend="neuron")

    def step() -> Any:
        optimizer.zero_grad()
        loss = loss_of(inputs.to(device), targets.to(device))
        loss.backward()
        update()
        if device == "xla":
            api.mark_step()
        return loss

    return step


def _function(make: Callable[[], Any]) -> Callable[[], Any]:
    """Return the step of `_trainer` as one compiled function."""
    import torch
    from torch.nn import functional

    torch.manual_seed(0)
    torch.compiler.reset()
    model, inputs, targets, _ = make()
    named = dict(model.to("neuron").named_parameters())
    weights, statistics = {name: value.detach() for name, value in named.items()}, dict(model.named_buffers())
    velocities = {name: torch.zeros_like(value) for name, value in weights.items()}

    def loss_of(weights: Any, images: torch.Tensor, labels: torch.Tensor) -> Any:
        updated = {name: value.clone() for name, value in statistics.items()}
        scores = torch.func.functional_call(model, (weights, updated), (images,))
        return functional.cross_entropy(scores.flatten(0, -2), labels.flatten()), updated

    @torch.compile(backend="neuron")
    def update(images: torch.Tensor, labels: torch.Tensor) -> Any:
        gradients, (loss, updated) = torch.func.grad_and_value(loss_of, has_aux=True)(weights, images, labels)
        torch._foreach_mul_(list(velocities.values()), 0.9)
        torch._foreach_add_(list(velocities.values()), list(gradients.values()))
        torch._foreach_add_(list(weights.values()), list(velocities.values()), alpha=-0.01)
        for name, value in statistics.items():
            value.copy_(updated[name])
        return loss

    return lambda: update(inputs.to("neuron"), targets.to("neuron"))
