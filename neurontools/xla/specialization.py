"""Specializations of compiled functions: guards on the arguments of a call, the program to execute, how results are made.

A call whose arguments pass the guards executes the program that an earlier call has recorded. Arguments on the CPU are
copied to the device; numbers among them are inputs of the program themselves.
"""

# ruff: noqa: SLF001
# Torch's private API.

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._C._dynamo.guards import TensorGuards

from neurontools.base.interrupts import HOLD_S, InterruptHold
from neurontools.compiler.graph_nodes import contiguous_strides
from neurontools.runtime.host_activity import observers
from neurontools.xla.buffers import NEVER, DeviceBuffer, attach
from neurontools.xla.debugging import metrics
from neurontools.xla.device_name import device_name
from neurontools.xla.execution import host_execution
from neurontools.xla.geometry import Geometry, intern_layout, is_dense, layout_bytes, layout_geometry
from neurontools.xla.host_events import observed_cut

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from neurontools.compiler.graph import Node
    from neurontools.xla.accelerator import Program
    from neurontools.xla.recorder import Recorder
    from neurontools.xla.trie import TrieNode


@dataclass(frozen=True, slots=True)
class ArgumentResult:
    """A result that is an argument, or a view of one."""

    position: int
    geometry: Geometry | None


@dataclass(frozen=True, slots=True)
class ComputedResult:
    """A result that the graph computes: a view of a slot."""

    slot: int
    geometry: Geometry


@dataclass(frozen=True, slots=True)
class ConstantResult:
    """A result that is always the same value."""

    value: Any


Result = ArgumentResult | ComputedResult | ConstantResult


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """What a call has recorded, before its program is known.

    `inputs` are slots with the positions of their arguments, None for uninitialised tensors that it makes; `changed`
    are the positions of arguments that it changes.
    """

    node: TrieNode
    inputs: tuple[tuple[int, int | None], ...]
    scalars: tuple[float, ...]
    results: tuple[Result, ...]
    kind: type
    changed: tuple[int, ...]

    def computed(self) -> set[int]:
        """Return the slots of the results that the graph computes."""
        return {result.slot for result in self.results if isinstance(result, ComputedResult)}

    def returned(self) -> set[int]:
        """Return the positions of the arguments that are results, or have views that are."""
        return {result.position for result in self.results if isinstance(result, ArgumentResult)}


class ArgumentGuards:
    """Guards on the arguments of a call: how they view their buffers, and which of them share one.

    Args:
        args: tensors on the device.
        buffers: their buffers.
    """

    def __init__(self, args: Sequence[torch.Tensor], buffers: Sequence[DeviceBuffer]) -> None:
        sizes: list[Any] = [list(arg.size()) for arg in args]
        strides: list[Any] = [list(arg.stride()) for arg in args]
        self._guards = TensorGuards(*args, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
        self._geometries = _geometries(args)
        self._partial = [
            position
            for position, (arg, buffer) in enumerate(zip(args, buffers, strict=True))
            if arg.numel() * arg.itemsize != buffer.nbytes or not is_dense(arg)
        ]
        self._offsets = [args[position].storage_offset() for position in self._partial]
        self._layout_ids = [buffer.layout_id for buffer in buffers]
        self._first = first_positions(buffers)
        self._count = len(set(buffers))

    def match(self, args: Sequence[torch.Tensor], buffers: Sequence[DeviceBuffer]) -> bool:
        """Return whether other arguments are laid out like these."""
        if (
            [buffer.layout_id for buffer in buffers] != self._layout_ids
            or [args[position].storage_offset() for position in self._partial] != self._offsets
            or len(set(buffers)) != self._count
        ):
            return False
        # Torch's guards are quick, and stricter: they look at autograd and autocast, too.
        if not self._guards.check(*args) and _geometries(args) != self._geometries:
            return False
        return self._count == len(buffers) or first_positions(buffers) == self._first


def first_positions(buffers: Sequence[DeviceBuffer]) -> list[int]:
    """Return for each buffer the position at which it comes first."""
    first: dict[DeviceBuffer, int] = {}
    return [first.setdefault(buffer, position) for position, buffer in enumerate(buffers)]


def _geometries(args: Sequence[torch.Tensor]) -> list[tuple[Any, ...]]:
    return [(arg.dtype, arg.size(), arg.stride()) for arg in args]


class Specialization:
    """A call that executes its program: its arguments have the layouts of a call that was recorded.

    It has no program if it only returns arguments, views of them and constants.
    """

    def __init__(
        self, recorder: Recorder, guards: ArgumentGuards, program: Program | None, call: RecordedCall
    ) -> None:
        self._recorder = recorder
        self._guards = guards
        self._program = program
        self._call = call
        layout_ids = [layout_id for added in call.node.trace().added for layout_id in added]
        blank = [slot for slot, position in call.inputs if position is None]
        fresh = program.fresh if program is not None else ()
        own = (*fresh, *blank)
        self._own = [(slot, layout_bytes(layout_ids[slot]), layout_ids[slot]) for slot in own]
        returned = {*fresh, *call.computed()}
        self._handles = {slot: layout_geometry(layout_ids[slot]) for slot in own if slot in returned}
        computed = [
            (index, result) for index, result in enumerate(call.results) if isinstance(result, ComputedResult)
        ]
        for _, result in reversed(computed):
            if _is_contiguous(result.geometry):
                self._handles[result.slot] = result.geometry
        self._views = [
            (index, result.geometry[1:])
            for index, result in computed
            if not (_is_contiguous(result.geometry) and result.geometry == self._handles[result.slot])
        ]
        self._argument_views = [
            (index, result.geometry[1:])
            for index, result in enumerate(call.results)
            if isinstance(result, ArgumentResult) and result.geometry is not None
        ]
        self._kept = {*call.changed, *call.returned()}

    def accepts(self, args: Sequence[Any], buffers: Sequence[DeviceBuffer]) -> bool:
        """Return whether arguments with these buffers may be executed."""
        return buffers[0].recorder is self._recorder and self._guards.match(args, buffers)

    def execute(self, args: list[Any], arguments: list[DeviceBuffer], before: str, cause: str) -> Any:
        """Return the results for arguments with these buffers; may clear both lists, so that memory is free early.

        `before` is why an open recording ends, `cause` why the program runs.
        """
        recorder, call, program = self._recorder, self._call, self._program
        with recorder.lock:
            if recorder.node.parent is not None and not _fold_constant(recorder):
                recorder.sync(before)
            kept = {position: args[position] for position in self._kept}
            if program is None:
                return self._results(kept, {})
            buffers = {
                slot: DeviceBuffer(recorder, NEVER, 0, nbytes, layout_id)
                for slot, nbytes, layout_id in self._own
            }
            inputs = [
                buffers[slot] if position is None else arguments[position] for slot, position in call.inputs
            ]
            hosts: list[torch.Tensor | None] | None = [
                buffer.host if buffer.host is not None else recorder.host_of(buffer) for buffer in inputs
            ]
            if not recorder.runner.gives_up_inputs(program):
                hosts = None
                buffers.update(zip(program.inputs, inputs, strict=True))
            changed = [arguments[position] for position in call.changed]
            inputs.clear()
            args.clear()
            arguments.clear()
            metrics.count("CachedCompile")
            recorder.note_execution(program, call.node.slots, cause)
            with (
                observed_cut(recorder.index, cause, call.node.depth) if observers else nullcontext(),
                InterruptHold(HOLD_S),
            ):
                recorder.unfinished = changed
                recorder.runner.run(program, buffers, call.scalars, self._operators, hosts=hosts)
                if call.changed:
                    torch._C._increment_version([kept[position] for position in call.changed])
                recorder.unfinished = None
            recorder.account.trim()
        return self._results(kept, buffers)

    def _operators(self) -> tuple[Node, ...]:
        return self._call.node.calls()

    def _results(self, args: dict[int, Any], buffers: dict[int, DeviceBuffer]) -> Any:
        make = self._recorder.make
        handles: dict[int, torch.Tensor] = {}
        for slot, (dtype, shape, _, _) in self._handles.items():
            handle = handles[slot] = make(shape, dtype)
            attach(handle, buffers[slot])
        results: list[Any] = [
            handles[result.slot]
            if isinstance(result, ComputedResult)
            else args[result.position]
            if isinstance(result, ArgumentResult)
            else result.value
            for result in self._call.results
        ]
        if self._views:
            with host_execution():  # autograd does not see that these are views
                for index, view in self._views:
                    results[index] = results[index].as_strided(*view)
        for index, view in self._argument_views:
            results[index] = results[index].as_strided(*view)
        return results if self._call.kind is list else tuple(results)


def _fold_constant(recorder: Recorder) -> bool:
    """Fill the result of a recording that is one `ones_like`, and return whether it was.

    That is the gradient of a loss, with which the backward pass of a compiled loss starts: not worth an execution.
    """
    node = recorder.node
    if node.depth != 1 or node.operator is None or node.operator.graph_name != "aten.ones_like.default":
        return False
    with host_execution():
        for slot in node.visible():
            buffer = recorder.slots[slot]
            dtype, shape, strides, _ = layout_geometry(buffer.layout_id)
            recorder.fill(buffer, torch.empty_strided(shape, strides, dtype=dtype).fill_(1))
            buffer.epoch = NEVER
    recorder.reset()
    return True


def _is_contiguous(geometry: Geometry) -> bool:
    return geometry[3] == 0 and contiguous_strides(geometry[1]) == geometry[2]


class HostCopy(NamedTuple):
    """A copy on the device of an argument on the CPU, and the version that it had."""

    original: torch.Tensor
    copy: torch.Tensor
    version: int


def copy_to_device(args: list[Any], positions: Iterable[int]) -> list[HostCopy]:
    """Replace arguments on the CPU by copies on the device of the others, and return those."""
    devices = (arg.device for arg in args if isinstance(arg, torch.Tensor))
    device = next((device for device in devices if device.type == device_name()), device_name())
    copies = []
    with torch.inference_mode(mode=False):  # where tensors have no versions
        for position in positions:
            original, args[position] = args[position], args[position].to(device)
            copies.append(HostCopy(original, args[position], args[position]._version))
    return copies


def write_back(copies: Iterable[HostCopy]) -> None:
    """Change arguments as their copies have changed."""
    for original, copy, version in copies:
        if copy._version != version:
            original.copy_(copy)


def buffers_with_numbers(args: Sequence[Any]) -> list[DeviceBuffer]:
    """Return the buffers of arguments, where numbers on the CPU are their own contents.

    The list is empty if there are other arguments, none on the device, or numbers that share memory.
    """
    if not all(isinstance(arg, torch.Tensor) for arg in args):  # a mesh, a token for the order of operators
        return []
    attached = [getattr(arg.untyped_storage(), "_neuron_buffer", None) for arg in args]
    recorder: Any = next((buffer.recorder for buffer in attached if buffer is not None), None)
    numbers = [
        arg.untyped_storage()._cdata for arg, buffer in zip(args, attached, strict=True) if buffer is None
    ]
    if recorder is None or recorder.numerics is not None or len(set(numbers)) != len(numbers):
        return []
    buffers = [
        _number(recorder, arg) if buffer is None else buffer
        for arg, buffer in zip(args, attached, strict=True)
        if buffer is not None or (arg.device.type == "cpu" and not arg.dim())
    ]
    return buffers if len(buffers) == len(args) else []


def _number(recorder: Recorder, number: torch.Tensor) -> DeviceBuffer:
    nbytes = number.itemsize
    buffer = DeviceBuffer(recorder, NEVER, 0, nbytes, intern_layout(nbytes, (number.dtype, (), (), 0)))
    buffer.host = number.detach()
    return buffer
