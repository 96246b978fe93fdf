"""Functions that run as one graph: recorded at the first call, executed without a recording afterwards."""

# ruff: noqa: SLF001
# Torch's private API.

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from neurontools.compiler.graph_nodes import contiguous_strides
from neurontools.runtime.host_activity import observers
from neurontools.xla.buffers import NEVER, DeviceBuffer, attach, buffer_of
from neurontools.xla.debugging import metrics
from neurontools.xla.geometry import Geometry, geometry_of, layout_bytes, layout_geometry, restride
from neurontools.xla.graph_limits import OneGraph
from neurontools.xla.host_events import observed_cut

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.compiler.graph import Node
    from neurontools.xla.accelerator import Program
    from neurontools.xla.engine import DeviceEngine
    from neurontools.xla.recorder import Recorder
    from neurontools.xla.trie import TrieNode

    Layouts = list[tuple[int, torch.dtype, torch.Size, tuple[int, ...], int]]


@dataclass(frozen=True, slots=True)
class _Argument:
    """A result that is an argument, or a view of one."""

    position: int
    geometry: Geometry | None


@dataclass(frozen=True, slots=True)
class _Computed:
    """A result that the graph computes: a view of a slot, None for all of it."""

    slot: int
    view: Geometry | None


@dataclass(frozen=True, slots=True)
class _Constant:
    """A result that is always the same value."""

    value: Any


_Result = _Argument | _Computed | _Constant


class GraphFunction:
    """A function whose operators run as one graph.

    A call whose arguments have the layouts of an earlier one executes the same program, and the function itself is not
    called. A function that passes contents between device and host outside of its graph is recorded each time.

    Args:
        engine: records the operators.
        function: takes and returns tensors.
        before: what ends a recording that is open when the function is called.
        cause: what ends the graph.
        repeatable: whether its operators follow from the layouts of its arguments.
    """

    def __init__(
        self,
        engine: DeviceEngine,
        function: Callable[..., Any],
        before: str,
        cause: str,
        *,
        repeatable: bool,
    ) -> None:
        self._engine = engine
        self._function = function
        self._before = before
        self._cause = cause
        self._repeatable = repeatable
        self._calls: list[KnownCall] = []

    def __call__(self, args: list[Any]) -> Any:
        """Return what the function returns for these arguments; may clear the list."""
        try:
            buffers: list[DeviceBuffer] = [arg.untyped_storage()._neuron_buffer for arg in args]
        except AttributeError:
            buffers = []  # an argument is not on the device
        if not buffers or not self._repeatable:
            return self._record(args)
        layouts, same = _layouts(args, buffers), _same(buffers)
        for known in self._calls:
            if known.layouts == layouts and known.same == same and known.recorder is buffers[0].recorder:
                return known.execute(args, buffers, self._before, self._cause)
        return self._learn(args, buffers, layouts, same)

    def _learn(
        self, args: Sequence[Any], buffers: list[DeviceBuffer], layouts: Layouts, same: list[int]
    ) -> Any:
        recorder: Any = buffers[0].recorder
        transfers = -1
        versions: list[int] = []

        def begin() -> None:
            nonlocal transfers, versions
            transfers, versions = recorder.transfers, _versions(args)

        drafts: list[_Draft | None] = []

        def end(outcome: Any) -> None:
            if recorder.transfers == transfers and all(buffer.recorder is recorder for buffer in buffers):
                changed = [
                    position
                    for position, (version, before) in enumerate(zip(_versions(args), versions, strict=True))
                    if version != before and same[position] == position  # views share the counter
                ]
                drafts.append(_draft(recorder, args, buffers, outcome, tuple(changed)))

        outcome = self._record(args, begin, end)
        draft = drafts[0] if drafts else None
        if draft is not None and layouts == _layouts(args, buffers):
            program = recorder.executed
            if set(program.fresh) <= draft.computed():
                self._calls.append(KnownCall(recorder, layouts, same, program, draft))
        return outcome

    def _record(
        self,
        args: Sequence[Any],
        begin: Callable[[], None] = lambda: None,
        end: Callable[[Any], None] = lambda _: None,
    ) -> Any:
        """Call the function and run what it records as one graph; `begin` and `end` are called within the recording."""
        engine = self._engine
        engine.sync(cause=self._before)
        eager, fusion = engine.eager, engine.set_fusion(OneGraph())
        engine.set_eager(False)
        try:
            begin()
            outcome = self._function(*args)
            end(outcome)
            return outcome
        finally:
            engine.sync(cause=self._cause)
            engine.set_eager(eager)
            engine.set_fusion(fusion)


@dataclass(frozen=True, slots=True)
class _Draft:
    """What a call has recorded, before its program is known."""

    node: TrieNode
    inputs: tuple[tuple[int, int], ...]
    scalars: tuple[float, ...]
    results: tuple[_Result, ...]
    kind: type
    changed: tuple[int, ...]

    def computed(self) -> set[int]:
        return {result.slot for result in self.results if isinstance(result, _Computed)}


def _draft(
    recorder: Recorder,
    args: Sequence[Any],
    buffers: list[DeviceBuffer],
    outcome: Any,
    changed: tuple[int, ...],
) -> _Draft | None:
    """Return what a call has recorded, None if that cannot be repeated without the call."""
    node = recorder.node
    if node.parent is None or outcome.__class__ not in {list, tuple}:
        return None
    positions = {id(buffer): position for position, buffer in reversed(list(enumerate(buffers)))}
    recorded = [positions.get(id(recorder.slots[slot])) for slot in node.trace().inputs()]
    results = [_result(recorder, value, args, positions) for value in outcome]
    if None in results or None in recorded:
        return None
    return _Draft(
        node,
        tuple(
            zip(
                node.trace().inputs(),
                (position for position in recorded if position is not None),
                strict=True,
            )
        ),
        tuple(recorder.scalars),
        tuple(result for result in results if result is not None),
        outcome.__class__,
        changed,
    )


def _result(recorder: Recorder, value: Any, args: Sequence[Any], positions: dict[int, int]) -> _Result | None:
    if not isinstance(value, torch.Tensor):
        return _Constant(value) if value is None or isinstance(value, (int, float)) else None
    for position, argument in enumerate(args):
        if value is argument:
            return _Argument(position, None)
    if value.__class__ is not torch.Tensor or recorder.stores.store_of(value) is not recorder:
        return None
    buffer, geometry = buffer_of(value), geometry_of(value)
    argument_position = positions.get(id(buffer))
    if argument_position is not None:
        same_type = args[argument_position].dtype == value.dtype
        return _Argument(argument_position, geometry) if same_type else None
    if buffer.epoch is not recorder.epoch:
        return None
    whole = layout_geometry(buffer.layout_id)
    if whole[0] != value.dtype or value.requires_grad:
        return None
    return _Computed(buffer.slot, None if geometry == whole else geometry)


class KnownCall:
    """A call that executes its program: its arguments have the layouts of a call that was recorded."""

    def __init__(
        self, recorder: Recorder, layouts: Layouts, same: list[int], program: Program, draft: _Draft
    ) -> None:
        self.recorder = recorder
        self.layouts = layouts
        self.same = same
        self._program = program
        self._draft = draft
        layout_ids = [layout_id for layouts in draft.node.trace().added for layout_id in layouts]
        self._fresh = [
            (slot, layout_bytes(layout_ids[slot]), layout_ids[slot], geometry, _is_contiguous(geometry))
            for slot in program.fresh
            for geometry in (layout_geometry(layout_ids[slot]),)
        ]
        self._kept = {
            *draft.changed,
            *(result.position for result in draft.results if isinstance(result, _Argument)),
        }

    def execute(self, args: list[Any], arguments: list[DeviceBuffer], before: str, cause: str) -> Any:
        """Return the results for arguments with these buffers; clears both lists, so that memory is free early."""
        recorder, draft, program = self.recorder, self._draft, self._program
        with recorder.lock:
            if recorder.node.parent is not None and not recorder.fold_constant():
                recorder.sync(before)
            hosts: list[torch.Tensor | None] | None = [
                arguments[position].host
                if arguments[position].host is not None
                else recorder.host_of(arguments[position])
                for _, position in draft.inputs
            ]
            buffers: dict[int, DeviceBuffer] = {}
            if not recorder.runner.gives_up_inputs(program):
                hosts, buffers = None, {slot: arguments[position] for slot, position in draft.inputs}
            kept = {position: args[position] for position in self._kept}
            args.clear()
            arguments.clear()
            for slot, nbytes, layout_id, _, _ in self._fresh:
                buffers[slot] = DeviceBuffer(recorder, NEVER, 0, nbytes, layout_id)
            metrics.count("CachedCompile")
            recorder.note_execution(program, draft.node.slots, cause)
            with observed_cut(recorder.index, cause, draft.node.depth) if observers else nullcontext():
                recorder.runner.run(program, buffers, draft.scalars, self._operators, hosts=hosts)
            recorder.account.trim()
        if draft.changed:
            torch.autograd.graph.increment_version([kept[position] for position in draft.changed])
        return self._results(kept, buffers)

    def _operators(self) -> tuple[Node, ...]:
        return self._draft.node.calls()

    def _results(self, args: dict[int, Any], buffers: dict[int, DeviceBuffer]) -> Any:
        make = self.recorder.make
        handles: dict[int, torch.Tensor] = {}
        for slot, _, _, geometry, is_contiguous in self._fresh:
            handle = make(geometry[1], geometry[0])
            attach(handle, buffers[slot])
            handles[slot] = handle if is_contiguous else restride(handle, geometry)
        results: list[Any] = []
        for result in self._draft.results:
            if isinstance(result, _Computed):
                handle = handles[result.slot]
                results.append(handle if result.view is None else restride(handle, result.view))
            elif isinstance(result, _Argument):
                argument = args[result.position]
                results.append(
                    argument if result.geometry is None else argument.as_strided(*result.geometry[1:])
                )
            else:
                results.append(result.value)
        return results if self._draft.kind is list else tuple(results)


def _layouts(args: Sequence[Any], buffers: list[DeviceBuffer]) -> Layouts:
    return [
        (buffer.layout_id, arg.dtype, arg.size(), arg.stride(), arg.storage_offset())
        for arg, buffer in zip(args, buffers, strict=True)
    ]


def _same(buffers: list[DeviceBuffer]) -> list[int]:
    """Return for each buffer the position at which it comes first."""
    first: dict[DeviceBuffer, int] = {}
    return [first.setdefault(buffer, position) for position, buffer in enumerate(buffers)]


def _is_contiguous(geometry: Geometry) -> bool:
    return geometry[3] == 0 and contiguous_strides(geometry[1]) == geometry[2]


def _versions(args: Sequence[Any]) -> list[int]:
    return [0 if arg.is_inference() else arg._version for arg in args]
