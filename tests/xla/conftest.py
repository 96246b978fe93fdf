"""The lazy device on an in-memory machine: counts what it is asked for, enforces a memory size, fails on demand."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from neurontools.compiler.compile import compile_graph
from neurontools.compiler.graph import Graph, Node, graph_from_bytes
from neurontools.compiler.limits import type_error
from neurontools.compiler.neff import network_name, parse
from neurontools.machine.instances.catalogue import instance_type
from neurontools.runtime.memory import MemoryInfo
from neurontools.xla.accelerator import LoadedGraph

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from neurontools.compiler.neff import Neff
    from neurontools.compiler.options import CompileError
    from neurontools.xla.numerics_settings import NumericsSettings


@dataclass
class InMemoryAccelerator:
    cores: int = 2
    limit_bytes: int = 1 << 34
    used_bytes: dict[int, int] = field(default_factory=dict)
    peak_bytes: dict[int, int] = field(default_factory=dict)
    graphs: list[Graph] = field(default_factory=list)
    executions: int = 0
    cores_used: list[int | None] = field(default_factory=list)
    loads: list[tuple[int, int]] = field(default_factory=list)
    unloads: list[int] = field(default_factory=list)
    fail_next: Exception | None = None
    numerics: NumericsSettings | None = None
    faults_armed: bool = False
    checks_types: bool = False
    closed: bool = False

    def core_count(self) -> int:
        return self.cores

    def device_kind(self) -> str:
        return "NC_v2"

    def allocate(self, index: int, nbytes: int) -> None:
        used = self.used_bytes.get(index, 0) + nbytes
        if used > self.limit_bytes:
            raise MemoryError(f"{used} of {self.limit_bytes} bytes")
        self.used_bytes[index] = used
        self.peak_bytes[index] = max(used, self.peak_bytes.get(index, 0))

    def free(self, index: int, nbytes: int) -> None:
        self.used_bytes[index] -= nbytes
        assert self.used_bytes[index] >= 0

    def memory(self, index: int) -> MemoryInfo:
        return MemoryInfo(self.used_bytes.get(index, 0), self.peak_bytes.get(index, 0), self.limit_bytes)

    def reset_peak_memory(self, index: int) -> None:
        self.peak_bytes[index] = self.used_bytes.get(index, 0)

    def load(self, index: int, graph: Graph) -> LoadedGraph:
        stored = graph_from_bytes(graph.to_bytes())
        assert stored == graph
        error = next(filter(None, map(self.refusal, graph.nodes)), None) if self.checks_types else None
        if error is not None:
            raise error
        self.graphs.append(graph)
        return LoadedGraph(stored, stored.digest(), hit=False, compile_s=0.0, handle=None)

    def refusal(self, call: Node) -> CompileError | None:
        return type_error(call, instance_type("trn1.2xlarge").device)

    def compile(self, graph: Graph, flags: Sequence[str]) -> bytes:
        device = instance_type("trn1.2xlarge").device
        return compile_graph(graph, device, ["--target=trn1", *flags], network_name(graph))

    def find_or_compile(self, graph: Graph, flags: Sequence[str]) -> tuple[bytes, bool]:
        return self.compile(graph, flags), False

    def numerics_for(self, flags: Sequence[str]) -> NumericsSettings | None:
        device = instance_type("trn1.2xlarge").device
        return None if self.numerics is None else self.numerics.with_flags(flags, device)

    def load_neff(self, index: int, neff: Neff, data: bytes, constant_bytes: int) -> LoadedGraph:
        graph = parse(data).graph
        assert graph == neff.graph
        self.loads.append((index, constant_bytes))
        return LoadedGraph(graph, graph.digest(), hit=True, compile_s=0.0, handle=index)

    dumps_inputs = False

    def unload(self, loaded: LoadedGraph) -> None:
        self.unloads.append(loaded.handle)

    def execute(self, loaded: LoadedGraph, run: Callable[[], Any], inputs: Sequence[Any] = ()) -> Any:
        self.executions += 1
        self.cores_used.append(loaded.handle)
        if self.fail_next is not None:
            failure, self.fail_next = self.fail_next, None
            raise failure
        return run()

    def close(self) -> None:
        self.closed = True


_current: list[InMemoryAccelerator] = []


@pytest.fixture
def machine() -> Iterator[InMemoryAccelerator]:
    import torch  # here: without torch, modules are skipped one by one, which an error in this file would prevent

    from neurontools.xla import api
    from neurontools.xla.debugging import metrics

    _current[:] = [InMemoryAccelerator()]
    api.activate(open_accelerator=lambda: _current[0])
    api.shutdown()
    metrics.clear_all()
    # torch.manual_seed, which keeps three formatted stacks for devices that are not there, takes a third of a test.
    torch.default_generator.manual_seed(0)
    torch.get_device_module("xla").manual_seed_all(0)
    torch.set_num_threads(1)
    yield _current[0]
    gc.collect()
    api.shutdown()
