"""What the lazy device tells profilers about its work on the host; called only while one observes.

The functions read the clock and the user's line.
"""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext, suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, Protocol

from neurontools.runtime.host_activity import (
    HostEvent,
    add_observer,
    after_cut,
    note_execution,
    observers,
    report,
    report_allocation,
)
from neurontools.xla.call_sites import moved_parameter
from neurontools.xla.debugging.compile_log import EAGER, event_source, record_stacks, refined
from neurontools.xla.geometry import layout_geometry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from neurontools.compiler.graph import Graph, Node
    from neurontools.profiler.capture.observer import Capture
    from neurontools.runtime.host_activity import HostObserver
    from neurontools.runtime.session import Runtime
    from neurontools.xla.accelerator import Program

_KEPT_TABLES = 1000
_results: dict[str, dict[int, tuple[str, str]]] = {}
_inputs = threading.local()
_loaders_watched = False


class _Buffer(Protocol):
    layout_id: int
    nbytes: int


class _Buffers(Protocol):
    def __getitem__(self, slot: int, /) -> _Buffer: ...


class Observed:
    """Reports a block as one event, also when it fails. No generator, whose frame would be the line that is found."""

    __slots__ = ("_kind", "_name", "_nbytes", "_nc", "_number", "_source", "_start_ns")

    def __init__(self, kind: HostEvent, name: str, *, nc: int = 0, nbytes: int = 0, number: int = 0) -> None:
        self._kind = kind
        self._name = name
        self._nc = nc
        self._nbytes = nbytes
        self._number = number
        self._source = event_source()
        self._start_ns = time.monotonic_ns()

    def __enter__(self) -> None:
        """Go on; the event has begun."""

    def __exit__(self, *error: object) -> None:
        report(
            self._kind,
            self._start_ns,
            time.monotonic_ns(),
            nc=self._nc,
            name=self._name,
            source=self._source,
            nbytes=self._nbytes,
            number=self._number,
        )


def observed_cut(nc: int, cause: str, operators: int) -> AbstractContextManager[None]:
    """Report the end of a recording, its compile and its execution as one event."""
    if cause == EAGER:
        note_execution()
        return nullcontext()  # a cut an operator
    return Observed(HostEvent.CUT, refined(cause), nc=nc, number=operators)


def observe(observer: HostObserver) -> None:
    """Report to an observer, and the waits for torch's data loaders too; `remove_observer` ends that."""
    global _loaders_watched  # noqa: PLW0603 # of this process
    if not _loaders_watched:
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        _BaseDataLoaderIter.__next__ = _timed(_BaseDataLoaderIter.__next__)
        _loaders_watched = True
    add_observer(observer)


def attach(capture: Capture, runtime: Runtime) -> None:
    """Let a capture record this process from now on, with the models and the memory that it has already."""
    runtime.add_observer(capture)
    held = [runtime.memory_use(nc) for nc in range(len(runtime.cores))]
    capture.host.hold([use.tensors + use.model_code + use.constants for use in held])
    if capture.wants_stacks:
        record_stacks()
    observe(capture.host)


def timed_batches(loader: Iterable[Any]) -> Iterator[Any]:
    """Yield what a loader yields, and report how long the program waits for it."""
    batches = iter(loader)
    take = _timed(next)
    with suppress(StopIteration):
        while True:
            yield take(batches)


def _timed(take: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @wraps(take)
    def timed(batches: Any) -> Any:
        if not observers or getattr(_inputs, "waiting", False):
            return take(batches)
        _inputs.waiting = True
        try:
            with Observed(HostEvent.INPUT, type(batches).__name__):
                return take(batches)
        finally:
            _inputs.waiting = False

    return timed


def report_copy(kind: HostEvent, start_ns: int, nbytes: int, nc: int) -> None:
    """Report a copy that ends now, without the cut before it."""
    end_ns = time.monotonic_ns()
    start_ns = after_cut(start_ns, end_ns)
    report(kind, start_ns, end_ns, nc=nc, source=event_source(), nbytes=nbytes)


def report_buffer(nc: int, buffer: _Buffer) -> None:
    """Report the memory of a buffer that the program fills from the host."""
    name = moved_parameter()
    if not name:
        dtype, shape, _, _ = layout_geometry(buffer.layout_id)
        name = f"{str(dtype).removeprefix('torch.')}[{','.join(map(str, shape))}]"
    report_allocation(nc, buffer, buffer.nbytes, name, event_source())


def report_results(nc: int, program: Program, slots: _Buffers, calls: Callable[[], tuple[Node, ...]]) -> None:
    """Report the memory of what an execution returns, with the operators and lines that make it.

    `calls` returns the recorded operators: the graph in a NEFF of the compile cache may have older lines.
    """
    loaded = program.loaded
    made = _results.get(loaded.digest)
    if made is None:
        if len(_results) >= _KEPT_TABLES:
            _results.clear()
        made = _results[loaded.digest] = _makers(loaded.graph, calls())
    for slot in program.fresh:
        name, source = made.get(slot, ("", ""))
        report_allocation(nc, slots[slot], slots[slot].nbytes, name, source)


def _makers(graph: Graph, calls: tuple[Node, ...]) -> dict[int, tuple[str, str]]:
    """Return by slot of a result the operator that makes it, and its line."""
    wanted = set(graph.outputs)
    found: dict[int, tuple[str, str]] = {}
    for node in calls:
        for result in node.results:
            if result is not None and result.slot in wanted:
                name = f"{node.op} in {node.layer}" if node.layer else node.op
                found.setdefault(result.slot, (name, node.source))
    return found
