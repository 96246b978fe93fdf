"""Training steps on the device `neuron`, eager and compiled, and on the device `xla`, against eager torch on the CPU.

A process has one of the two devices, so each way has a process of its own. They take turns, and each has blocks on the
CPU before its own. One thread, CPU time.
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
from benchmarks.report import BenchmarkRow

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCKS = 11
WAYS = {
    "xla": "lazy",
    "eager": "eager",
    "compiled": "compiled",
    "whole": "compiled with loss and optimizer",
}
_EAGER_BUDGETS = {"mlp": 0.5, "cnn": 0.8, "gpt": 0.95}
_WARM_UP = 8
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
    with running_machine("trn2.3xlarge") as environ, ExitStack() as stack:
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
    for way in ("compiled", "whole"):
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
        text=True,
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
            on_cpu, on_device = _trainer(MODELS[name], "cpu", ""), _trainer(MODELS[name], device, way)
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
