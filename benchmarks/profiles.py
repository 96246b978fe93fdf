"""What a profile costs: the record of an execution, and opening and drawing ten million events."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.engine_model.training import decoder_training
from benchmarks.report import BenchmarkRow, in_short_form
from neurontools.compiler.compile import compile_graph
from neurontools.compiler.engines.estimate import estimate
from neurontools.compiler.engines.instructions import Instruction, InstructionFacts, KernelProgram
from neurontools.compiler.engines.placement import Engine
from neurontools.compiler.graph import Graph, Node, Slot, View
from neurontools.compiler.neff import pack, parse
from neurontools.machine.instances.catalogue import instance_type
from neurontools.profiler.capture.observer import Capture, describe_run
from neurontools.profiler.capture.settings import CaptureOptions, DeviceProfile
from neurontools.profiler.trace.open import load
from neurontools.profiler.trace.timeline import TraceTimeline, Viewport
from neurontools.runtime.host_activity import add_observer, report_allocation

if TYPE_CHECKING:
    from neurontools.profiler.trace.trace import Trace

_EVENTS = in_short_form((10_000_000, 30_000_000), (1_000_000, 3_000_000))
_EXECUTIONS, _ROUNDS, _READINGS, _FRAMES = in_short_form((20_000, 9, 3, 200), (10, 1, 1, 2))
_COLUMNS = 160
_INSTRUCTIONS = 100_002
_LOOP = [(Engine.DMA, "DMA_DIRECT2D"), (Engine.VECTOR, "TENSOR_SCALAR"), (Engine.SCALAR, "ACTIVATION")]
_GPT = {"layers": 2, "width": 768, "heads": 12, "vocabulary": 50257, "batch": 4, "length": 128}


@dataclass(frozen=True)
class _Model:
    """What the runtime passes to its observers."""

    neff: bytes
    model_id: int = 10001
    name: str = "gpt"
    uuid: bytes = bytes(16)
    nc: int = 0
    core: int = 0


class _Machine:
    """As much of a runtime as a capture asks for."""

    instance = instance_type("trn1.2xlarge")
    lnc, cores = 1, (0,)


def main() -> list[BenchmarkRow]:
    """Return CPU times and memory; frames without the terminal, 160 cells wide."""
    graph = decoder_training(**_GPT, optimizer="adamw")
    model = _Model(compile_graph(graph, _Machine.instance.device, ("--target=trn1",), "gpt"))
    directory = tempfile.mkdtemp()
    try:
        rows = _capture_cost(directory, model)
        per_execution = len(parse(model.neff).cost.rows) + 3  # and those of neuron_rt, neuron_hw and Model
        for events in _EVENTS:
            path = os.path.join(directory, str(events))
            _write(path, model, events // per_execution)
            rows += _reading(path, events)
        rows += _kernel_reading(os.path.join(directory, "kernel"))
    finally:
        shutil.rmtree(directory)
    return rows


def _capture(directory: str) -> Capture:
    options = CaptureOptions(device=DeviceProfile.SESSION, max_events_per_nc=10**8)
    meta = describe_run(_Machine(), options)  # type: ignore[arg-type]
    return Capture(directory, replace(meta, started_ns=1), options)


def _capture_cost(directory: str, model: _Model) -> list[BenchmarkRow]:
    capture = _capture(os.path.join(directory, "cost"))
    capture.on_load(model, 10**9, 10**9 + 1)  # type: ignore[arg-type]
    add_observer(capture.host)
    buffers = [object() for _ in range(_EXECUTIONS)]
    record = struct.Struct("<qqqIIIHBB")
    own, memory, bare = [], [], []
    for _ in range(_ROUNDS):
        begun = time.thread_time_ns()
        for number in range(_EXECUTIONS):
            capture.on_execute(model, number, 10**9 + number * 30_000, 10**9 + number * 30_000 + 9, 0)  # type: ignore[arg-type]
        own.append((time.thread_time_ns() - begun) / _EXECUTIONS)
        begun = time.thread_time_ns()
        for taken in buffers:
            report_allocation(0, taken, 4096, "float32[32,32]", "train.py:12")
        memory.append((time.thread_time_ns() - begun) / _EXECUTIONS)
        buffer = bytearray()
        begun = time.thread_time_ns()
        for number in range(_EXECUTIONS):
            buffer += record.pack(10**9 + number * 30_000, 9, 0, 0, 0, number, 0, 0, 2)
        bare.append((time.thread_time_ns() - begun) / _EXECUTIONS)
    capture.on_close()
    note = f"{min(own) / min(bare):.1f} times a loop that packs the record into a bytearray"
    ratio = f"{min(memory) / min(own):.1f} times an execution"
    return [
        BenchmarkRow.at_most("record an execution", min(own) / 1e3, "us", 1.0, note),
        BenchmarkRow.at_most("record an allocation", min(memory) / 1e3, "us", 1.0, ratio),
    ]


def _write(path: str, model: _Model, executions: int) -> None:
    capture = _capture(path)
    capture.on_load(model, 10**9, 10**9 + 1)  # type: ignore[arg-type]
    step_ns = parse(model.neff).cost.total_ns + 100_000
    # The run must not seem longer than this computer is up.
    step_ns = min(step_ns, time.monotonic_ns() // (executions + 1))
    for number in range(1, executions + 1):
        start = 2 * 10**9 + number * step_ns
        capture.on_execute(model, number, start, start + 50_000, 0)  # type: ignore[arg-type]
    capture.on_close()


def _reading(path: str, events: int) -> list[BenchmarkRow]:
    size = sum(entry.stat().st_size for entry in os.scandir(next(os.scandir(path)).path))
    name = f"{events // 1_000_000} million events"
    cpu_s, peak_mib = min(_top(path) for _ in range(_READINGS))
    trace = load(path)
    p50, p95 = _frames(trace)
    small = events <= _EVENTS[0]
    return [
        BenchmarkRow.info(f"{name}, size", size / 1e6, "MB"),
        BenchmarkRow.at_most(
            f"{name}, open and top 20", cpu_s, "s", 0.4 if small else 1.0, "CPU of the command"
        ),
        BenchmarkRow.at_most(f"{name}, peak memory", peak_mib, "MiB", 60.0 if small else 100.0),
        BenchmarkRow.at_most(
            f"{name}, frame of {len(trace.rows)} rows, 95th percentile",
            p95,
            "ms",
            8 if small else 16,
            f"median {p50:.1f} ms",
        ),
    ]


def _kernel_reading(path: str) -> list[BenchmarkRow]:
    """Open a kernel that has run once: a row for each of its instructions."""
    _write(path, _Model(_kernel_neff(), name="kernel"), 1)
    cpu_s, peak_mib = min(_top(path) for _ in range(3))
    name = f"kernel of {_INSTRUCTIONS:,} instructions"
    return [
        BenchmarkRow.at_most(f"{name}, open and top 20", cpu_s, "s", 1.0, "CPU of the command"),
        BenchmarkRow.info(f"{name}, peak memory", peak_mib, "MiB"),
    ]


def _kernel_neff() -> bytes:
    """Return the NEFF of a kernel that loads, computes and stores in turn."""
    instructions = [
        Instruction(
            engine,
            opcode,
            1,
            100.0 + number % 7,
            (number - 1,) if number % 3 else (),
            (number,),
            source=f"kernel.py:{number % 100}",
        )
        for number, (engine, opcode) in enumerate(_LOOP * (_INSTRUCTIONS // len(_LOOP)))
    ]
    kernel = KernelProgram(
        tuple(instructions), tuple(InstructionFacts(number) for number in range(len(instructions)))
    )
    view = View(0, "float32", (128, 512), (512, 1), 0)
    graph = Graph((Slot(1 << 18),), (0,), 0, (Node("nki.kernel.default", (view,), (), ()),), ())
    cost = estimate(graph, instance_type("trn2.3xlarge").device, lnc=1, custom={0: kernel})
    flags = ("--target=trn2", "--logical-nc-config=1")
    return pack(graph, cost, name="kernel", build_version="2.0", flags=flags, kernels={0: kernel})


def _top(path: str) -> tuple[float, float]:
    command = [os.path.join(os.path.dirname(sys.executable), "neuron-profile"), "top", path, "--limit", "20"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as child:
        _, _, usage = os.wait4(child.pid, 0)
        child.returncode = 0
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def _frames(trace: Trace) -> tuple[float, float]:
    """Return the median and the 95th percentile of the time that the contents of a frame take, in ms."""
    random = np.random.default_rng(1)
    timeline = TraceTimeline(trace)
    whole = Viewport.fit(trace.end_ns, _COLUMNS)
    for row in timeline.rows:
        row.cells(whole.edges())
    found = []
    for _ in range(_FRAMES):
        at = int(random.uniform(0, trace.end_ns))
        view = whole.zoomed(float(10.0 ** -random.uniform(0, 6)), at)
        begun = time.thread_time_ns()
        for row in timeline.rows:
            row.cells(view.edges())
        found.append((time.thread_time_ns() - begun) / 1e6)
    p50, p95 = np.percentile(found, (50, 95))
    return float(p50), float(p95)
