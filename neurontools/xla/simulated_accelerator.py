"""The simulated machine under the lazy device: its runtime, and the compile cache in front of the compiler."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from neurontools import env
from neurontools.base.text import printable_lines
from neurontools.cache.logs import show_cache_lines
from neurontools.cache.store import CompileCache
from neurontools.cache.why.explain import LiveExplainer
from neurontools.cache.why.report import ReportStyle, format_compile
from neurontools.compiler.compile import compile_graph
from neurontools.compiler.engines.placement import COLLECTIVE_OPCODE
from neurontools.compiler.limits import scratch_bytes, type_error
from neurontools.compiler.neff import network_name
from neurontools.compiler.options import device_of, names_flag, target_of
from neurontools.errors import NeuronToolsError
from neurontools.profiler.capture.live import LiveProfiler
from neurontools.profiler.capture.observer import capture_from_environ
from neurontools.runtime.session import MemoryInfo, Runtime
from neurontools.runtime.status import NrtError, NrtStatus
from neurontools.xla.accelerator import LoadedGraph
from neurontools.xla.custom_op_graph import execute_natively, native_parts
from neurontools.xla.debugging.compile_log import EAGER, report_at_exit
from neurontools.xla.distributed import workers
from neurontools.xla.distributed.workers import check_worker_count
from neurontools.xla.host_events import attach
from neurontools.xla.numerics_settings import NumericsSettings, read_numerics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.cache.lookup import CacheResult
    from neurontools.compiler.graph import Graph, Node
    from neurontools.compiler.neff import Neff
    from neurontools.compiler.options import CompileError
    from neurontools.machine.instances.catalogue import DeviceType
    from neurontools.runtime.models import Model

T = TypeVar("T")
_WIDTH = 80


class SimulatedAccelerator:
    """The cores that this process claims on the simulated machine, and the compile cache."""

    def __init__(
        self, runtime: Runtime, cache: CompileCache, numerics: NumericsSettings | None = None
    ) -> None:
        self.runtime = runtime
        self.numerics = numerics
        self._cache = cache
        self._explainer = _compile_explainer(cache)

    @classmethod
    def open(cls) -> SimulatedAccelerator:
        """Claim the cores that the environment requests, start the machine if needed, attach the profiler if requested."""
        show_cache_lines()
        runtime = Runtime.open(on_notice=_notice)
        try:
            check_worker_count(runtime.instance, runtime.lnc, os.environ)
            capture = capture_from_environ(runtime)
            if capture is not None:
                attach(capture, runtime)
            runtime.on_profile_request = LiveProfiler(runtime, attach).follow_request
            cache = CompileCache.open()
            report_at_exit(cache.url)
            return cls(runtime, cache, read_numerics(os.environ, cache.flags, runtime.instance.device))
        except BaseException:
            runtime.close()  # the program may try again
            raise

    @property
    def dumps_inputs(self) -> bool:
        """Whether an execution that fails writes its inputs to files."""
        return self.runtime.dumps_inputs

    @property
    def faults_armed(self) -> bool:
        """Whether a fault may let the next allocation fail."""
        return self.runtime.faults_armed

    def core_count(self) -> int:
        """Return the number of claimed cores."""
        return len(self.runtime.cores)

    def device_kind(self) -> str:
        """Return NC_v2, NC_v3 or NC_v3d."""
        version = self.runtime.instance.device.core.monitor_version(self.runtime.lnc)
        return f"NC_{version}"

    def allocate(self, index: int, nbytes: int) -> None:
        """Take device memory for tensors."""
        self.runtime.allocate(index, nbytes)

    def free(self, index: int, nbytes: int) -> None:
        """Give device memory back."""
        self.runtime.free(index, nbytes)

    def memory(self, index: int) -> MemoryInfo:
        """Return the device memory of a core."""
        return self.runtime.memory_info(index)

    def reset_peak_memory(self, index: int) -> None:
        """Let the peak of a core's memory start again at the memory in use."""
        self.runtime.reset_peak_memory(index)

    def load(self, index: int, graph: Graph) -> LoadedGraph:
        """Compile a graph, or find it in the cache, and load it on a core."""
        device, lnc, libraries = self.runtime.instance.device, self.runtime.lnc, native_parts(graph)
        if self._cache.extracts_only:
            known = self._cache.extract(graph, device, libraries, lnc)
            return LoadedGraph(graph, graph.digest(), known, compile_s=0.0, handle=None, extracted=True)
        name = network_name(graph)
        result = self._cache.get_or_compile(graph, device, name, libraries, lnc)
        if self._explainer is not None and not result.hit:
            self._explainer.explain(graph, result)
        model = self._load(index, result.neff, result.data, name, 0)
        stored = result.neff.graph
        return LoadedGraph(
            stored, stored.digest(), result.hit, result.seconds, model, neff_bytes=len(result.data)
        )

    def refusal(self, call: Node) -> CompileError | None:
        """Return the error of every graph that has a call, None if the compiler takes it."""
        device = self.runtime.instance.device
        return type_error(call, device, self._cache.flags_for(device, self.runtime.lnc))

    def compile(self, graph: Graph, flags: Sequence[str]) -> bytes:
        """Return a graph's NEFF, without the cache."""
        device = self.runtime.instance.device
        target = [] if names_flag(flags, "--target") else [f"--target={target_of(device)}"]
        return compile_graph(graph, device, [*target, *flags], network_name(graph), native_parts(graph))

    def find_or_compile(self, graph: Graph, flags: Sequence[str]) -> tuple[bytes, bool]:
        """Return a graph's NEFF with further flags, and whether the cache had it."""
        device, lnc = self.runtime.instance.device, self.runtime.lnc
        name, libraries = network_name(graph), native_parts(graph)
        result = self._cache.get_or_compile(graph, device, name, libraries, lnc, flags)
        return result.data, result.hit

    def numerics_for(self, flags: Sequence[str]) -> NumericsSettings | None:
        """Return how results of a NEFF are rounded that was compiled with other flags."""
        numerics = self.numerics
        return None if numerics is None else numerics.with_flags(flags, self.runtime.instance.device)

    def load_neff(self, index: int, neff: Neff, data: bytes, constant_bytes: int) -> LoadedGraph:
        """Load a parsed NEFF on a core; `data` are its bytes, `constant_bytes` is the device memory of its weights."""
        check_target(neff.flags, self.runtime.instance.device)
        model = self._load(index, neff, data, network_name(neff.graph), constant_bytes)
        return LoadedGraph(neff.graph, neff.graph.digest(), hit=True, compile_s=0.0, handle=model)

    def unload(self, loaded: LoadedGraph) -> None:
        """Take a graph off its core."""
        self.runtime.unload(loaded.handle)

    def _load(self, index: int, neff: Neff, data: bytes, name: str, constant_bytes: int) -> Model:
        return self.runtime.load(
            index,
            name=name,
            uuid=neff.header.uuid,
            neff=data,
            code_bytes=len(data),
            constant_bytes=constant_bytes,
            scratch_bytes=scratch_bytes(neff.graph),
            modelled_ns=neff.cost.total_ns,
            flops=neff.cost.flops,
            gpsimd_ns=neff.cost.gpsimd_ns,
            collective=any(row.opcode == COLLECTIVE_OPCODE for row in neff.cost.rows),
        )

    def execute(self, loaded: LoadedGraph, run: Callable[[], T], inputs: Sequence[Any] = ()) -> T:
        """Run one execution of a loaded graph; `inputs` are its tensors, on the host."""
        contents = (lambda: map(_content, inputs)) if self.runtime.dumps_inputs else None
        if loaded.graph.libraries:
            return execute_natively(lambda call: self.runtime.execute(loaded.handle, call, contents), run)
        return self.runtime.execute(loaded.handle, run, contents)

    def close(self) -> None:
        """Unload everything and give the cores back."""
        self.runtime.close()


def check_target(flags: Sequence[str], device: DeviceType) -> None:
    """Check that a device runs NEFFs that were compiled with some flags.

    Raises:
        NrtError: NRT_UNSUPPORTED_NEFF_VERSION, for NeuronCores of another generation.
    """
    if not names_flag(flags, "--target"):
        return
    wanted = device_of(flags)
    cores, found = wanted.sysfs.core_arch, device.sysfs.core_arch
    legacy = os.environ.get("NEURON_RT_ALLOW_LEGACY_NEFF", "").lower() in {"1", "true"}
    if cores == found or (legacy and cores < found):
        return
    target = target_of(device)
    raise NrtError(
        "nrt_load",
        NrtStatus.NRT_UNSUPPORTED_NEFF_VERSION,
        f"compile it with --target={target}, or use neuron-run --instance with a type of {target_of(wanted)}",
        detail=f"Unsupported NEFF version: compiled for {target_of(wanted)}, but the device is {target}",
    )


def _compile_explainer(cache: CompileCache) -> CompileExplainer | None:
    if not env.flag(env.EXPLAIN):
        return None
    from neurontools.xla.simulated_accelerator import CompileExplainer  # most programs do without it

    return CompileExplainer(cache)


def _content(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy().tobytes())


def _notice(text: str) -> None:
    if sys.stderr.isatty():
        os.write(sys.stderr.fileno(), f"{text}\n".encode())


class CompileExplainer:
    """Explains the compiles of this process.

    Args:
        cache: the cache that stores the compiled graphs.
    """

    def __init__(self, cache: CompileCache) -> None:
        self._live = LiveExplainer(cache.root)
        self._count = 0
        self._is_eager = False

    def explain(self, graph: Graph, result: CacheResult) -> None:
        """Explain a compile. Never fails: it reports graphs that cannot be compared."""
        if graph.cut.startswith(EAGER):
            if not self._is_eager:
                _write("eager mode compiles each operator: such compiles are not explained\n")
            self._is_eager = True
            return
        self._count += 1
        if not result.entry:
            _write(f"{self._count}. compiled, but not stored, so it cannot be compared: {graph.cut}\n")
            return
        try:
            explanation = self._live.explain(result.entry, result.seconds)
        except (NeuronToolsError, OSError) as error:
            _write(f"{self._count}. compiled, but cannot be compared: {error}\n")
            return
        _write(format_compile(self._count, explanation, _style()) + "\n")


def _style() -> ReportStyle:
    is_terminal = sys.stderr.isatty()
    colour = is_terminal or bool(os.environ.get("FORCE_COLOR"))
    return ReportStyle(
        width=shutil.get_terminal_size((_WIDTH, 24)).columns if is_terminal else _WIDTH,
        colour=colour and not os.environ.get("NO_COLOR"),
        directory=os.getcwd().rstrip("/") + "/",
    )


def _write(text: str) -> None:
    worker = f"rank {workers.rank()}: " if workers.world_size() > 1 else ""
    sys.stderr.write(worker + printable_lines(text, styled=True))
