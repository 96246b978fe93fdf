"""Programs: recorded sequences as graphs, compiled, loaded and executed on a core."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Protocol

import torch

from neurontools.base.garbage import without_collection
from neurontools.compiler.graph import Graph, Slot
from neurontools.compiler.neff import network_name
from neurontools.runtime.host_activity import HostEvent, observers, report
from neurontools.xla.accelerator import Program
from neurontools.xla.custom_op_graph import in_machine_memory, libraries_of, native_inputs
from neurontools.xla.debugging import metrics
from neurontools.xla.debugging.compile_log import EAGER, current_source, event_source, refined
from neurontools.xla.debugging.debug_analysis import show_compilation, shows_compilations
from neurontools.xla.execution import generate, host_execution, overload_of
from neurontools.xla.geometry import layout_bytes, layout_geometry
from neurontools.xla.host_events import report_results
from neurontools.xla.operators import operator_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from neurontools.compiler.graph import Node
    from neurontools.compiler.options import CompileError
    from neurontools.xla.accelerator import Accelerator, Executable, LoadedGraph
    from neurontools.xla.buffers import DeviceBuffer
    from neurontools.xla.core_arithmetic import DeviceNumerics
    from neurontools.xla.memory import MemoryAccount
    from neurontools.xla.rng import DeviceGenerator
    from neurontools.xla.trie import RecordedTrace

"""What ends a graph of a single operator in eager mode; debugging output leaves such graphs out."""


def build_graph(trace: RecordedTrace, live: tuple[int, ...], cut: str = "") -> Graph:
    """Return the graph of a recording.

    Args:
        trace: the recording.
        live: slots that are still referenced at the sync.
        cut: what ended the recording.
    """
    return Graph(
        slots=tuple(Slot(layout_bytes(layout_id)) for layouts in trace.added for layout_id in layouts),
        inputs=trace.inputs(),
        lifted=trace.lifted,
        nodes=trace.calls,
        outputs=live,
        libraries=libraries_of(call.op for call in trace.calls),
        cut=cut,
    )


class ProgramStore:
    """The programs of one device in this process, by graph digest."""

    def __init__(self, accelerator: Accelerator, index: int, numerics: DeviceNumerics | None = None) -> None:
        self._accelerator = accelerator
        self._numerics = numerics
        self._index = index
        self._loaded: dict[str, LoadedGraph] = {}

    def build(self, trace: RecordedTrace, live: tuple[int, ...], cause: str) -> Program:
        """Return the program of a recording that has none yet; compiles when the cache lacks the graph.

        `trace` and `live` are as in `build_graph`, `cause` is what ended the recording.
        """
        with without_collection():  # the objects of a graph have no cycles
            return self._build(trace, live, cause)

    def refusals(self, calls: Sequence[Node]) -> dict[int, CompileError]:
        """Return the errors of the calls that the compiler refuses in every graph, by their positions."""
        errors = enumerate(map(self._accelerator.refusal, calls))
        return {position: error for position, error in errors if error is not None}

    def _build(self, trace: RecordedTrace, live: tuple[int, ...], cause: str) -> Program:
        graph = build_graph(trace, live, f"{refined(cause)} at {current_source() or 'an unknown line'}")
        loaded = self._load(graph, cause)
        inputs = set(graph.inputs)
        fresh = tuple(slot for slot in live if slot not in inputs)
        return Program(
            loaded=loaded,
            executable=self._executable(loaded.graph, trace.input_layouts()),
            inputs=loaded.graph.inputs,
            fresh=fresh,
            fresh_bytes=sum(graph.slots[slot].nbytes for slot in fresh),
            random=any(operator_of(overload_of(node)).random for node in loaded.graph.nodes),
            native=native_inputs(loaded.graph),
        )

    def _executable(self, graph: Graph, input_layouts: Sequence[int]) -> Callable[[], Executable]:
        @functools.cache
        def executable() -> Executable:
            with without_collection():
                return generate(graph, input_layouts, self._numerics)

        return executable

    def _load(self, graph: Graph, cause: str) -> LoadedGraph:
        digest = graph.digest()
        known = self._loaded.get(digest)
        if known is not None:
            metrics.count("CachedCompile")
            return known
        start_ns = time.monotonic_ns()
        loaded = self._accelerator.load(self._index, graph)
        end_ns = time.monotonic_ns()
        metrics.count("CachedCompile" if loaded.hit else "UncachedCompile")
        metrics.sample("CompileTime", end_ns - start_ns)
        if observers:
            kind = HostEvent.CACHE_HIT if loaded.hit else HostEvent.COMPILE
            source = event_source()
            count = len(graph.nodes)
            report(
                kind, start_ns, end_ns, nc=self._index, name=network_name(graph), source=source, number=count
            )
        metrics.sample("TensorsGraphSize", len(graph.nodes), "")
        if cause != EAGER and shows_compilations():
            show_compilation(graph, loaded, cause)
        self._loaded[digest] = loaded
        return loaded


class ProgramBuffers(Protocol):
    """The buffers of a program by slot."""

    def __getitem__(self, slot: int, /) -> DeviceBuffer:
        """Return the buffer of an input or of a result."""


class ProgramRunner:
    """Executes the programs of one device.

    Args:
        index: the position of the device in this process.
        accelerator: the cores of this process.
        account: the device's memory.
        generator: its random numbers.
    """

    def __init__(
        self, index: int, accelerator: Accelerator, account: MemoryAccount, generator: DeviceGenerator
    ) -> None:
        self._index = index
        self._accelerator = accelerator
        self._account = account
        self._generator = generator

    def run(
        self,
        program: Program,
        buffers: ProgramBuffers,
        scalars: Sequence[float],
        calls: Callable[[], tuple[Node, ...]],
        *,
        computed: bool = False,
        hosts: list[torch.Tensor | None] | None = None,
    ) -> None:
        """Execute a program and fill the buffers of its results.

        Args:
            program: what is executed.
            buffers: its inputs with their contents, and its results.
            scalars: its scalar inputs.
            calls: returns its operators, for profilers.
            computed: whether the buffers have its results already.
            hosts: the contents of its inputs, in place of `buffers`; each is given up after its last use.
        """
        try:
            if program.fresh_bytes:
                self._account.charge(program.fresh_bytes)
            for slot in program.fresh:
                buffers[slot].mark_charged()
            if observers:
                report_results(self._index, program, buffers, calls)
            start_ns = time.perf_counter_ns()
            if program.loaded.extracted:
                _blank(buffers, program.loaded.graph.outputs)
            elif computed:
                self._accelerator.execute(program.loaded, lambda: None)
            else:
                self._compute(program, buffers, scalars, hosts)
            metrics.sample("ExecuteTime", time.perf_counter_ns() - start_ns)
        except BaseException:
            for slot in program.fresh:
                buffers[slot].host = None
            raise

    def gives_up_inputs(self, program: Program) -> bool:
        """Return whether a program may take its inputs as `hosts`."""
        return not (program.native or program.loaded.extracted or self._accelerator.dumps_inputs)

    def _compute(
        self,
        program: Program,
        buffers: ProgramBuffers,
        scalars: Sequence[float],
        given: list[torch.Tensor | None] | None,
    ) -> None:
        for slot in program.native:
            host = buffers[slot].host
            buffers[slot].host = host if host is None else in_machine_memory(host)
        hosts = [] if given is not None else [buffers[slot].host for slot in program.inputs]
        taken = hosts if given is None else _taken(given)
        run = functools.partial(program.executable(), taken, scalars)
        with host_execution():
            if program.random:
                with self._generator.scope():
                    outcome = self._accelerator.execute(program.loaded, run, hosts)
            else:
                outcome = self._accelerator.execute(program.loaded, run, hosts)
        for slot, host in zip(program.fresh, outcome, strict=True):
            buffers[slot].host = host


def _taken(hosts: list[torch.Tensor | None]) -> Iterator[torch.Tensor | None]:
    """Yield the items of a list, which is empty afterwards: the program alone holds them then."""
    hosts.reverse()
    while hosts:
        yield hosts.pop()


def _blank(buffers: ProgramBuffers, slots: Sequence[int]) -> None:
    """Set all results of a graph to zero, as the real device does while graphs are extracted."""
    with host_execution():
        for slot in slots:
            buffer = buffers[slot]
            if buffer.host is None:
                dtype, shape, strides, _ = layout_geometry(buffer.layout_id)
                buffer.host = torch.empty_strided(shape, strides, dtype=dtype)
            buffer.host.zero_()
