"""Recording of a function on one device by the engine in Python, for graphs that are compiled ahead of time."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from neurontools.compiler.options import CompileError
from neurontools.xla.buffers import buffer_of
from neurontools.xla.geometry import geometry_of, layout_geometry
from neurontools.xla.graph_values import view_from
from neurontools.xla.recorded_trace import RecordedFunction, RecordedInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from neurontools.xla.recorded_trace import Function
    from neurontools.xla.recorder import Recorder


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
