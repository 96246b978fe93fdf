"""Captures for tests, made by the real Capture class from small hand-made programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from neurontools.profiler.capture import Capture
from neurontools.profiler.machine import Machine
from neurontools.profiler.meta import Peaks
from neurontools.profiler.model import Operation, Program
from neurontools.profiler.program import pairing_hash
from neurontools.profiler.settings import CaptureOptions, DeviceProfile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

START_NS = 5_000_000_000_000


@dataclass(frozen=True)
class StandInModel:
    """What the runtime passes to its observers."""

    model_id: int
    name: str
    uuid: bytes
    nc: int
    core: int
    neff: bytes


def operation(name: str, engine: str, start_ns: int, duration_ns: int, **more: object) -> Operation:
    fields: dict[str, object] = {
        "opcode": {"Tensor": "MATMUL", "Scalar": "ACTIVATE", "DMA": "DMA_DIRECT2D"}.get(
            engine, "TENSOR_TENSOR"
        ),
        "flops": 0,
        "read_bytes": 0,
        "write_bytes": 0,
        "shape": "f32[128,128]",
        "source": "train.py:12",
    }
    return Operation(name=name, engine=engine, start_ns=start_ns, duration_ns=duration_ns, **(fields | more))  # type: ignore[arg-type]


MLP = (
    operation("aten.copy_", "DMA", 0, 4_000, read_bytes=65_536),
    operation("aten.copy_", "DMA", 1_000, 4_000, read_bytes=65_536),
    operation("aten.mm", "Tensor", 4_000, 9_000, flops=4_194_304),
    operation("aten.relu", "Scalar", 13_000, 2_500),
    operation("aten.mm", "Tensor", 15_500, 5_000, flops=2_097_152),
    operation("aten.add", "Vector", 20_500, 1_500),
    operation("custom::tick", "GpSimd", 21_000, 700),
    operation("aten.copy_", "DMA", 22_000, 2_000, write_bytes=32_768),
)

MACHINE = Machine("trn1.2xlarge", "i-0123456789abcdef0", 1, (0, 1), Peaks(92e12, 410e9, 1.4e9))


def reader_of(programs: dict[bytes, tuple[int, tuple[Operation, ...]]]) -> Callable[[bytes], Program]:
    def read(neff: bytes) -> Program:
        total_ns, operations = programs[neff]
        return Program(pairing_hash(neff), total_ns, operations)

    return read


def make_capture(
    directory: Path, options: CaptureOptions | None = None, machine: Machine = MACHINE, **more: object
) -> Capture:
    return Capture(
        str(directory),
        machine,
        options or CaptureOptions(device=DeviceProfile.SESSION),
        command=("python", "train.py"),
        read_program=more.pop("read_program", reader_of({b"mlp": (25_000, MLP)})),  # type: ignore[arg-type]
        **more,  # type: ignore[arg-type]
    )


def model(nc: int = 0, neff: bytes = b"mlp", model_id: int = 10001, name: str = "mlp") -> StandInModel:
    return StandInModel(model_id, name, bytes(range(16)), nc, nc, neff)


def train(capture: Capture, steps: int = 5, ncs: tuple[int, ...] = (0,), wall_ns: int = 300_000) -> None:
    """Load the model on some cores and execute it; the first execution takes ten times as long."""
    models = [model(nc, model_id=10001 + nc) for nc in ncs]
    now = START_NS
    for each in models:
        capture.on_load(each, now, now + 2_000_000)  # type: ignore[arg-type]
    now += 2_500_000
    for step in range(steps):
        for each in models:
            end = now + (10 * wall_ns if step == 0 else wall_ns)
            capture.on_execute(each, step, now, end, 0)  # type: ignore[arg-type]
            now = end + 50_000


@pytest.fixture
def profile_dir(home: Path) -> Path:
    """A finished capture: two cores, five steps each."""
    directory = home / "profile"
    capture = make_capture(directory)
    train(capture, ncs=(0, 1))
    capture.on_close()
    return directory
