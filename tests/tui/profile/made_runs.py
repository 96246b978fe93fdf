"""Profiles of made-up runs for pictures: four workers train a small GPT, before and after a change."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import structs

from benchmarks.engine_model.training import decoder_training
from neurontools.compiler.compile import compile_graph
from neurontools.compiler.neff import parse
from neurontools.machine.instances.catalogue import instance_type
from neurontools.profiler.capture.format import read_meta
from neurontools.profiler.capture.settings import CaptureOptions, DeviceProfile
from neurontools.runtime.host_activity import HostEvent
from tests.profiler.conftest import Maker
from tests.profiler.test_host_events import tell

if TYPE_CHECKING:
    from pathlib import Path

    from neurontools.compiler.graph import Graph
    from neurontools.profiler.capture.observer import Capture

WORKERS = 4
STEPS = 12
_SLOWEST = 2
_MS, _MIB = 1_000_000, 1 << 20
_TEXT = """\
import torch
from torch import nn


class Block(nn.Module):
    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


def step(model, batch, optimizer):
    loss = model(*batch)
    loss.backward()
    optimizer.step()
    xm.mark_step()
"""
_PLACES = (
    ("embedding", 12, "GPT.embed"),
    ("attention", 7, "GPT.blocks.0.attn"),
    ("addmm", 8, "GPT.blocks.0.mlp"),
    ("gelu", 8, "GPT.blocks.0.mlp"),
    ("native_layer_norm", 7, "GPT.blocks.0.ln1"),
    ("softmax", 12, "GPT.head"),
    ("nll_loss", 12, "GPT.head"),
    ("mm", 13, "GPT.blocks.1.mlp"),
    ("", 14, ""),
)


def make_runs(folder: Path) -> tuple[str, str]:
    """Write the profiles of a run in float32 and of one that casts products to bf16; return their directories."""
    program = folder / "train.py"
    program.write_text(_TEXT)
    graph = decoder_training(
        layers=2, width=256, heads=4, vocabulary=8192, batch=8, length=128, optimizer="adamw"
    )
    graph = _placed(graph, "train.py")
    device = instance_type("trn1.2xlarge").device
    before = compile_graph(graph, device, ("--target=trn1",), "gpt")
    after = compile_graph(
        graph, device, ("--target=trn1", "--auto-cast=matmult", "--auto-cast-type=bf16"), "gpt"
    )
    for name, neff in (("before", before), ("after", after)):
        for rank in range(WORKERS):
            _capture(folder / name / f"worker{rank}", neff, rank)
    return str(folder / "before"), str(folder / "after")


def _placed(graph: Graph, program: str) -> Graph:
    """Return the graph with lines of the program and layers."""
    found = []
    for node in graph.nodes:
        line, layer = next((line, layer) for word, line, layer in _PLACES if word in node.op)
        found.append(structs.replace(node, source=f"{program}:{line}", layer=layer))
    return replace(graph, nodes=tuple(found))


def _capture(directory: Path, neff: bytes, rank: int) -> None:
    """Write the profile of a worker; the slowest one reads its batches late, and the others wait for it."""
    maker, options = Maker(), CaptureOptions(device=DeviceProfile.SESSION)
    meta = replace(
        maker.meta(options), rank=rank, world_size=WORKERS, started_ns=maker.start_ns - 1, session="made-up"
    )
    capture = maker.capture(directory, options, meta=meta)
    model = maker.model(neff=neff, name="gpt")
    now = maker.start_ns
    capture.on_load(model, now, now + 3 * _MS)
    now += 4 * _MS
    for number, (name, mib) in enumerate((("parameters", 12), ("exp_avg", 12), ("exp_avg_sq", 12)), 1):
        _hold(capture, HostEvent.ALLOCATION, now, name, mib, number)
    device_ns = parse(neff).cost.total_ns
    for step in range(1, STEPS + 1):
        now = _step(capture, model, step, now, device_ns, rank)
    capture.on_close()
    # A capture belongs to its process, but pictures are the same in every run.
    replace(read_meta(capture.directory), pid=4000 + rank).write(capture.directory)


def _step(capture: Capture, model: object, step: int, begun: int, device_ns: int, rank: int) -> int:
    """Report a step; return when it ended."""
    line = "train.py:12"
    late = 3 * _MS if rank == _SLOWEST else _MS + ((step * 7 + rank * 3) % 5) * 100_000
    tell(capture, HostEvent.INPUT, begun, begun + late, name="DataLoader", source=line)
    now = begun + late
    _hold(capture, HostEvent.ALLOCATION, now, "activations", 20 + step % 3, 10)
    tell(capture, HostEvent.CUT, now, now + _MS // 2, name="mark_step", source="train.py:15", number=400)
    now += _MS // 2
    capture.on_execute(model, step, now, now + device_ns, 0)  # type: ignore[arg-type]
    now += device_ns
    waits = 0 if rank == _SLOWEST else 3 * _MS - late
    for kind, length in ((HostEvent.PEER_WAIT, waits), (HostEvent.COLLECTIVE, waits + _MS // 4)):
        tell(capture, kind, now, now + length, name="all_reduce", source="train.py:14", number=WORKERS)
    now += waits + _MS // 4
    _hold(capture, HostEvent.RELEASE, now, "activations", 20 + step % 3, 10)
    tell(capture, HostEvent.STEP, begun, now, name="mark_step", source="train.py:15", number=step)
    return now


def _hold(capture: Capture, kind: HostEvent, now: int, name: str, mib: int, number: int) -> None:
    tell(capture, kind, now, now, name=name, source="train.py:13", nbytes=mib * _MIB, number=number)
