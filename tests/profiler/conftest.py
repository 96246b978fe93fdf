"""Captures for tests, made by the real Capture class from small hand-made programs."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from neurontools import __version__
from neurontools.base.procfs import read_boot_id
from neurontools.compiler.engines.cost import CostRow, Engine, GraphCost, OpCost
from neurontools.compiler.graph import Graph, Node, Slot, View
from neurontools.compiler.neff import pack
from neurontools.profiler.capture.format import Meta, Peaks
from neurontools.profiler.capture.observer import Capture
from neurontools.profiler.capture.settings import CaptureOptions, DeviceProfile
from neurontools.profiler.trace.open import load

if TYPE_CHECKING:
    from pathlib import Path

    from neurontools.profiler.trace.trace import Trace

_OPCODES = {"Tensor": "MATMUL", "Scalar": "ACTIVATE", "DMA": "DMA_DIRECT2D"}


@dataclass(frozen=True)
class LoadedModel:
    """What the runtime passes to its observers."""

    model_id: int
    name: str
    uuid: bytes
    nc: int
    core: int
    neff: bytes


class Maker:
    """Makes programs, models and captures."""

    start_ns = 1_000_000_000

    @staticmethod
    def meta(options: CaptureOptions) -> Meta:
        return Meta(
            "trn1.2xlarge",
            "i-0123456789abcdef0",
            1,
            (0, 1),
            os.getpid(),
            ("python", "train.py"),
            read_boot_id(),
            1,
            time.time_ns(),
            options.device.value,
            options.max_events_per_nc,
            Peaks(92e12, 410e9, 1.4e9),
            __version__,
        )

    @staticmethod
    def operation(name: str, engine: str, start_ns: int, duration_ns: int, **more: Any) -> OpCost:
        fields: dict[str, Any] = {
            "opcode": _OPCODES.get(engine, "TENSOR_TENSOR"),
            "flops": 0,
            "read_bytes": 0,
            "write_bytes": 0,
            "shape": "float32[128,128]",
            "source": "train.py:12",
        }
        return OpCost(
            name, engine=Engine(engine), start_ns=start_ns, duration_ns=duration_ns, **(fields | more)
        )

    def mlp(self) -> tuple[OpCost, ...]:
        """25 us: two overlapping transfers, two products, an activation, an addition, a custom operator."""
        return (
            self.operation("aten.copy_", "DMA", 0, 4_000, read_bytes=65_536),
            self.operation("aten.copy_", "DMA", 1_000, 4_000, read_bytes=65_536),
            self.operation("aten.mm", "Tensor", 4_000, 9_000, flops=4_194_304),
            self.operation("aten.relu", "Scalar", 13_000, 2_500),
            self.operation("aten.mm", "Tensor", 15_500, 5_000, flops=2_097_152),
            self.operation("aten.add", "Vector", 20_500, 1_500),
            self.operation("custom::tick", "GpSimd", 21_000, 700),
            self.operation("aten.copy_", "DMA", 22_000, 2_000, write_bytes=32_768),
        )

    def capture(self, directory: Path, options: CaptureOptions | None = None, **more: Any) -> Capture:
        """Start a capture."""
        options = options or CaptureOptions(device=DeviceProfile.SESSION)
        return Capture(str(directory), more.pop("meta", None) or self.meta(options), options, **more)

    def worker(self, directory: Path, rank: int, workers: int) -> Capture:
        """Start the capture of one of several workers of a run."""
        options = CaptureOptions(device=DeviceProfile.SESSION)
        meta = replace(self.meta(options), rank=rank, world_size=workers, session="run")
        return self.capture(directory, options, meta=meta)

    def neff(self, operations: tuple[OpCost, ...] | None = None, total_ns: int = 25_000) -> bytes:
        """A NEFF whose schedule is hand-made: by default that of `mlp`."""
        operations = operations or self.mlp()
        graph = Graph(
            slots=tuple(Slot(65_536) for _ in operations),
            inputs=(),
            lifted=0,
            nodes=tuple(
                Node(each.name, (), (), (View(slot, "float32", (128, 128), (128, 1), 0),), each.source)
                for slot, each in enumerate(operations)
            ),
            outputs=(),
        )
        rows = tuple(
            CostRow(
                number,
                each.opcode,
                each.engine,
                each.start_ns,
                each.duration_ns,
                each.busy_ns or each.duration_ns,
                each.count,
                each.flops,
                each.read_bytes,
                each.write_bytes,
            )
            for number, each in enumerate(operations)
        )
        return pack(graph, GraphCost(rows, total_ns, graph=graph), name="mlp", build_version="2.0.0")

    def model(self, nc: int = 0, neff: bytes = b"", model_id: int = 10001, name: str = "mlp") -> Any:
        return LoadedModel(model_id, name, bytes(range(16)), nc, nc, neff or self.neff())

    def train(
        self, capture: Capture, steps: int = 5, ncs: tuple[int, ...] = (0,), wall_ns: int = 300_000
    ) -> None:
        """Load a model on some cores and execute it; the first execution takes ten times as long."""
        models = [self.model(nc, model_id=10001 + nc) for nc in ncs]
        now = self.start_ns
        for each in models:
            capture.on_load(each, now, now + 2_000_000)
        now += 2_500_000
        for step in range(1, steps + 1):
            for each in models:
                end = now + (10 * wall_ns if step == 1 else wall_ns)
                capture.on_execute(each, step, now, end, 0)
                now = end + 50_000

    def finished(self, directory: Path, options: CaptureOptions | None = None, **more: Any) -> Capture:
        """A capture of a whole run."""
        capture = self.capture(directory, options)
        self.train(capture, **more)
        capture.on_close()
        return capture


@pytest.fixture
def maker() -> Maker:
    return Maker()


@pytest.fixture
def profile_dir(home: Path, maker: Maker) -> Path:
    """A finished capture: two cores, five steps each."""
    maker.finished(home / "profile", ncs=(0, 1))
    return home / "profile"


@pytest.fixture
def trace(profile_dir: Path) -> Trace:
    """That capture with a process id that is always the same."""
    loaded = load(str(profile_dir))
    return replace(
        loaded,
        processes=tuple(replace(meta, pid=4242) for meta in loaded.processes),
        rows=tuple(replace(row, pid=4242) for row in loaded.rows),
    )
