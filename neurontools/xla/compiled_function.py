"""Functions that run as one graph: recorded at the first call, specialized for later calls, or recorded ahead of time."""

# ruff: noqa: SLF001
# Torch's private API.

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from neurontools.base.interrupts import HOLD_S, InterruptHold
from neurontools.compiler.options import CompileError
from neurontools.xla.buffers import LACKING, buffer_of
from neurontools.xla.fusion import OneGraph
from neurontools.xla.geometry import geometry_of, layout_geometry
from neurontools.xla.graph_values import view_from
from neurontools.xla.specialization import (
    ArgumentGuards,
    ArgumentResult,
    ComputedResult,
    ConstantResult,
    RecordedCall,
    Result,
    Specialization,
    buffers_with_numbers,
    copy_to_device,
    first_positions,
    write_back,
)
from neurontools.xla.trie import RecordedFunction, RecordedInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from neurontools.xla.buffers import DeviceBuffer
    from neurontools.xla.recorder import Recorder
    from neurontools.xla.stores import TensorStores
    from neurontools.xla.trie import Function


class CompiledFunction:
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
        engine: TensorStores,
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
        self._specializations: list[Specialization] = []

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
            for specialization in self._specializations:
                if specialization.accepts(args, buffers):
                    return specialization.execute(args, buffers, self._before, self._cause)
            return self._specialize(args, buffers, numbers)
        copies = copy_to_device(args, numbers)
        outcome = self._record_once(args)
        write_back(copies)
        return outcome

    def _specialize(self, args: list[Any], buffers: list[DeviceBuffer], numbers: Sequence[int]) -> Any:
        recorder: Any = buffers[0].recorder
        given, guards, first = tuple(args), ArgumentGuards(args, buffers), first_positions(buffers)
        copies = copy_to_device(args, numbers)
        recorded = [buffer_of(arg) for arg in args]
        transfers = -1
        versions: list[int] = []

        def begin() -> None:
            nonlocal transfers, versions
            transfers, versions = recorder.transfers, _versions(args)

        calls: list[RecordedCall | None] = []

        def end(outcome: Any) -> None:
            if recorder.transfers == transfers and all(buffer.recorder is recorder for buffer in recorded):
                changed = [
                    position
                    for position, (version, before) in enumerate(zip(_versions(args), versions, strict=True))
                    if version != before and first[position] == position  # views share the counter
                ]
                calls.append(_recorded_call(recorder, args, recorded, outcome, tuple(changed)))

        outcome = self._record_once(args, begin, end)
        call = calls[0] if calls else None
        if call is not None and guards.match(given, buffers):
            program = recorder.executed if call.node.parent is not None else None
            fresh = program.fresh if program is not None else ()
            if call.computed().issuperset(fresh) and call.returned().isdisjoint(numbers):
                self._specializations.append(Specialization(recorder, guards, program, call))
        write_back(copies)
        return outcome

    def _record_once(
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
def _as_one_graph(engine: TensorStores) -> Iterator[None]:
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


def _recorded_call(
    recorder: Recorder,
    args: Sequence[Any],
    buffers: list[DeviceBuffer],
    outcome: Any,
    changed: tuple[int, ...],
) -> RecordedCall | None:
    """Return what a call has recorded, None if that cannot be repeated without the call."""
    node = recorder.node
    if outcome.__class__ not in {list, tuple}:
        return None
    positions = {id(buffer): position for position, buffer in reversed(list(enumerate(buffers)))}
    inputs = tuple((slot, positions.get(id(recorder.slots[slot]))) for slot in node.trace().inputs())
    results = [_result(recorder, value, args, positions) for value in outcome]
    if None in results or any(position is None and slot not in recorder.blank for slot, position in inputs):
        return None
    return RecordedCall(
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


def record_function(
    recorder: Recorder,
    function: Function,
    arguments: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
) -> RecordedFunction | None:
    """Record a function; the parameters are those of `DeviceEngine.record_function`."""
    with recorder.lock:
        recorder.sync("trace")
        limit, recorder.graph_limit = recorder.graph_limit, sys.maxsize  # a traced model is one graph
        try:
            return _record(recorder, function, arguments, weights)
        finally:
            recorder.graph_limit = limit
            recorder.reset()


def _record(
    recorder: Recorder,
    function: Function,
    arguments: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
) -> RecordedFunction | None:
    epoch = recorder.epoch
    taken = [recorder.adopt(argument.detach().clone()) for argument in arguments]
    results = [_recorded(recorder, result) for result in function(taken)]
    if recorder.epoch is not epoch:
        raise CompileError(
            "NCC_EMOD025",
            "Dynamic shape is not supported: the traced function has a tensor whose shape depends on values",
            "move that part out of the function, or pad the tensor to a fixed size",
        )
    if recorder.learning:
        return None
    trace = recorder.node.trace()
    positions = {id(buffer_of(tensor)): position for position, tensor in enumerate(taken)}
    origins = {id(buffer_of(weight)): weight for weight in weights}
    inputs = []
    for slot in trace.inputs():
        buffer = recorder.slots[slot]
        argument = positions.get(id(buffer), -1)
        inputs.append(
            RecordedInput(
                argument=argument,
                value=recorder.host_of(buffer) if argument < 0 else None,
                origin=origins.get(id(buffer)),
                geometry=view_from(slot, layout_geometry(buffer.layout_id)),
            )
        )
    views = tuple(view_from(buffer_of(result).slot, geometry_of(result)) for result in results)
    return RecordedFunction(trace, tuple(inputs), tuple(recorder.scalars), views)


def _recorded(recorder: Recorder, result: torch.Tensor) -> torch.Tensor:
    """Return a result as a tensor of the recording; the graph copies tensors that the function only passes through."""
    if result.device.type != recorder.device.type:
        result = result.to(recorder.device)
    return result if buffer_of(result).epoch is recorder.epoch else result.clone()
