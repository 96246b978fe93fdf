"""Functions that run as one graph: recorded at the first call, executed without a recording afterwards."""

# ruff: noqa: SLF001
# Torch's private API.

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from neurontools.base.interrupts import HOLD_S, InterruptHold
from neurontools.xla.buffers import LACKING, buffer_of
from neurontools.xla.fusion import OneGraph
from neurontools.xla.geometry import geometry_of, layout_geometry
from neurontools.xla.host_arguments import buffers_with_numbers, copy_to_device, write_back
from neurontools.xla.known_call import (
    ArgumentLayouts,
    ArgumentResult,
    CallDraft,
    ComputedResult,
    ConstantResult,
    KnownCall,
    Result,
    first_positions,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from neurontools.xla.buffers import DeviceBuffer
    from neurontools.xla.engine import DeviceEngine
    from neurontools.xla.recorder import Recorder


class GraphFunction:
    """A function whose operators run as one graph.

    A call whose arguments have the layouts of an earlier one executes the same program, and the function itself is not
    called. A function that passes contents between device and host outside of its graph is recorded each time.

    Arguments on the CPU are copied to the device, and changed as their copies are. Numbers need no copies once the
    program is known: it computes with the numbers themselves.

    Args:
        engine: records the operators.
        function: takes and returns tensors.
        before: what ends a recording that is open when the function is called.
        cause: what ends the graph.
        repeatable: whether its operators follow from the layouts of its arguments.
        on_host: the positions of its arguments on the CPU.
    """

    def __init__(
        self,
        engine: DeviceEngine,
        function: Callable[..., Any],
        before: str,
        cause: str,
        *,
        repeatable: bool,
        on_host: Sequence[int],
    ) -> None:
        self._engine = engine
        self._function = function
        self._before = before
        self._cause = cause
        self._repeatable = repeatable
        self._on_host = on_host
        self._calls: list[KnownCall] = []

    def __call__(self, args: list[Any]) -> Any:
        """Return what the function returns for these arguments; may clear the list."""
        if not self._on_host:
            return self._run(args, ())
        on_host = [position for position in self._on_host if args[position] is not None]
        copies = copy_to_device(args, [position for position in on_host if args[position].dim()])
        with InterruptHold(HOLD_S):  # arguments on the device and on the CPU change together
            outcome = self._run(args, [position for position in on_host if not args[position].dim()])
            write_back(copies)
        return outcome

    def _run(self, args: list[Any], numbers: Sequence[int]) -> Any:
        try:
            buffers: list[DeviceBuffer] = [arg.untyped_storage()._neuron_buffer for arg in args]
        except AttributeError as error:
            if error.name not in LACKING:
                raise
            buffers = buffers_with_numbers(args)
        if buffers and self._repeatable:
            for known in self._calls:
                if known.accepts(args, buffers):
                    return known.execute(args, buffers, self._before, self._cause)
            return self._learn(args, buffers, numbers)
        copies = copy_to_device(args, numbers)
        outcome = self._record(args)
        write_back(copies)
        return outcome

    def _learn(self, args: list[Any], buffers: list[DeviceBuffer], numbers: Sequence[int]) -> Any:
        recorder: Any = buffers[0].recorder
        given, layouts, first = tuple(args), ArgumentLayouts(args, buffers), first_positions(buffers)
        copies = copy_to_device(args, numbers)
        recorded = [buffer_of(arg) for arg in args]
        transfers = -1
        versions: list[int] = []

        def begin() -> None:
            nonlocal transfers, versions
            transfers, versions = recorder.transfers, _versions(args)

        drafts: list[CallDraft | None] = []

        def end(outcome: Any) -> None:
            if recorder.transfers == transfers and all(buffer.recorder is recorder for buffer in recorded):
                changed = [
                    position
                    for position, (version, before) in enumerate(zip(_versions(args), versions, strict=True))
                    if version != before and first[position] == position  # views share the counter
                ]
                drafts.append(_draft(recorder, args, recorded, outcome, tuple(changed)))

        outcome = self._record(args, begin, end)
        draft = drafts[0] if drafts else None
        if draft is not None and layouts.match(given, buffers):
            program = recorder.executed if draft.node.parent is not None else None
            fresh = program.fresh if program is not None else ()
            if draft.computed().issuperset(fresh) and draft.returned().isdisjoint(numbers):
                self._calls.append(KnownCall(recorder, layouts, program, draft))
        write_back(copies)
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
        with _as_one_graph(engine):
            try:
                begin()
                outcome = self._function(*args)
                end(outcome)
                return outcome
            finally:
                engine.sync(cause=self._cause)


@contextmanager
def _as_one_graph(engine: DeviceEngine) -> Iterator[None]:
    """Let recordings end only at synchronizations inside the block."""
    with InterruptHold() as hold:
        eager, fusion = engine.eager, engine.set_fusion(OneGraph())
        try:
            engine.set_eager(False)
            with hold.allowed():
                yield
        finally:
            engine.set_eager(eager)
            engine.set_fusion(fusion)


def _draft(
    recorder: Recorder,
    args: Sequence[Any],
    buffers: list[DeviceBuffer],
    outcome: Any,
    changed: tuple[int, ...],
) -> CallDraft | None:
    """Return what a call has recorded, None if that cannot be repeated without the call."""
    node = recorder.node
    if outcome.__class__ not in {list, tuple}:
        return None
    positions = {id(buffer): position for position, buffer in reversed(list(enumerate(buffers)))}
    inputs = tuple((slot, positions.get(id(recorder.slots[slot]))) for slot in node.trace().inputs())
    results = [_result(recorder, value, args, positions) for value in outcome]
    if None in results or any(position is None and slot not in recorder.blank for slot, position in inputs):
        return None
    return CallDraft(
        node,
        inputs,
        tuple(recorder.scalars),
        tuple(result for result in results if result is not None),
        outcome.__class__,
        changed,
    )


def _result(recorder: Recorder, value: Any, args: Sequence[Any], positions: dict[int, int]) -> Result | None:
    if not isinstance(value, torch.Tensor):
        return ConstantResult(value) if value is None or isinstance(value, (int, float)) else None
    for position, argument in enumerate(args):
        if value is argument:
            return ArgumentResult(position, None)
    if value.__class__ is not torch.Tensor or recorder.stores.store_of(value) is not recorder:
        return None
    buffer, geometry = buffer_of(value), geometry_of(value)
    argument_position = positions.get(id(buffer))
    if argument_position is not None:
        same_type = args[argument_position].dtype == value.dtype
        return ArgumentResult(argument_position, geometry) if same_type else None
    if buffer.epoch is not recorder.epoch:
        return None
    if layout_geometry(buffer.layout_id)[0] != value.dtype or value.requires_grad:
        return None
    return ComputedResult(buffer.slot, geometry)


def _versions(args: Sequence[Any]) -> list[int]:
    return [0 if arg.is_inference() else arg._version for arg in args]
