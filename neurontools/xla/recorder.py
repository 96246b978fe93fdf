"""The recorder of one device: follows the trace cache while operators arrive, learns unknown calls, runs the graph at a sync.

A call that the trie knows is recorded without running. The first unknown call switches to learning: what is recorded
so far is run call by call, and this and every further call up to the sync runs at once on the host buffers; its
result is the shape inference. The sync compiles the whole path. The learning pass is that path's first execution: the
sync reports it to the accelerator as one execution, which commits the buffers, and runs nothing a second time.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from neurontools.base.interrupts import HOLD_S, InterruptHold, is_of_handler
from neurontools.compiler.graph_nodes import contiguous_strides
from neurontools.compiler.options import CompileError
from neurontools.runtime.host_activity import observers, report_release
from neurontools.xla import fallback
from neurontools.xla.buffers import NEVER, DeviceBuffer, attach, buffer_of, is_replaced, lost_value
from neurontools.xla.call_capture import Call, has_rare_type, shape_results
from neurontools.xla.call_sites import CallSites
from neurontools.xla.core_arithmetic import numerics_of
from neurontools.xla.debugging import metrics
from neurontools.xla.debugging.compile_log import EAGER
from neurontools.xla.debugging.debug_analysis import execution_observers
from neurontools.xla.device_name import device_name
from neurontools.xla.execution import host_execution
from neurontools.xla.fusion import OneGraph
from neurontools.xla.geometry import geometry_of, intern_layout, layout_geometry, restride, view_of
from neurontools.xla.graph_values import UnstorableError
from neurontools.xla.host_events import observed_cut, report_buffer
from neurontools.xla.learning import HELD_BY_RECORDER, learned_node, release_unreferenced, run_recorded
from neurontools.xla.memory import MemoryAccount, host_allocation, may_be_larger, result_bytes
from neurontools.xla.operators import call_arguments, is_constant
from neurontools.xla.program import ProgramRunner, ProgramStore
from neurontools.xla.recorder_lock import CALL, RECORDING, RecorderLock
from neurontools.xla.refused_calls import run_accepted
from neurontools.xla.rng import DeviceGenerator
from neurontools.xla.trie import Alias, Fresh, Recipe, TrieNode, new_root

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Sequence

    from neurontools.compiler.graph import Node
    from neurontools.xla.accelerator import Accelerator, Program
    from neurontools.xla.fusion import Fusion
    from neurontools.xla.memory import HostBudget
    from neurontools.xla.operators import Operator
    from neurontools.xla.stores import TensorStores

_TRIE_LIMIT = 200_000
_CHECKED_BYTES = 1 << 30
_RELEASE_BYTES = 1 << 23


class Recorder:
    """One device.

    Args:
        index: its position in this process.
        accelerator: the cores of this process.
        make: creates an empty contiguous handle.
        host: what device contents may take of this computer's memory, shared by all devices.
        stores: all devices of the engine.

    `unfinished` is what an exception would leave half done: CALL, RECORDING, or the buffers that an execution changes.
    It is set first and deleted last, so that the next user settles it: no cleanup can be interrupted itself.
    `transfers` counts what passes between device and host outside graphs; `executed` is the newest program; `blank` are
    the inputs that were uninitialised or lost by their slots, and their earlier `DeviceBuffer.epoch`.
    """

    def __init__(
        self, index: int, accelerator: Accelerator, make: Any, host: HostBudget, stores: TensorStores
    ) -> None:
        self.index = index
        self.make = make
        self.device = torch.device(device_name(), index)
        self.account = MemoryAccount(accelerator, index, host)
        self.call_sites = CallSites()
        self.generator = DeviceGenerator()
        self.lock = RecorderLock(self.settle)
        self.unfinished: Any = None
        self.numerics = numerics_of(accelerator.numerics)
        self.programs = ProgramStore(accelerator, index, self.numerics)
        self.root = self.node = new_root()
        self.epoch: object = object()
        self.slots: list[DeviceBuffer] = []
        self.blank: dict[int, tuple[DeviceBuffer, object]] = {}
        self.scalars: list[float] = []
        self.learning = False
        self.fuse(OneGraph())
        self.eager = False
        self.created = self.destroyed = 0
        self.transfers = 0
        self.executed: Program | None = None
        self._unreleased_bytes = 0
        self._release_at_bytes = _RELEASE_BYTES
        self.runner = ProgramRunner(index, accelerator, self.account, self.generator)
        self.stores = stores
        self._known_nodes = 0
        self._observers = execution_observers(index)

    def fuse(self, fusion: Fusion) -> None:
        """Choose where recordings end that are not synchronized."""
        self.graph_limit = fusion.limit
        self._counts_recorded = fusion.counts_recorded
        self._is_complete = fusion.is_complete
        self._runs_on_host = fusion.runs_on_host

    def calls(self) -> tuple[Node, ...]:
        """Return the operators that are recorded so far."""
        return self.node.calls()

    def bind(self, buffer: DeviceBuffer, *, replaced: bool = False) -> int:
        """Make a buffer an input of the recording and return its part of the key.

        Raises:
            LostValueError: its contents are lost, and the call does not replace all of them.
        """
        if buffer.recorder is not self:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{self.device} and {buffer.recorder.device}!"
            )
        slots = self.slots
        slot = len(slots)
        if buffer.host is None:
            self.blank[slot] = buffer, buffer.epoch  # first: what an exception interrupts gets no value
            self._allocate(buffer, replaced=replaced)
        slots.append(buffer)
        buffer.slot = slot
        buffer.epoch = self.epoch
        return -1 - buffer.layout_id

    def bind_overwritten(self, buffer: DeviceBuffer, values: tuple[Any, ...]) -> int:
        """Make the buffer of the first argument of a call, which is overwritten, an input; see `bind`."""
        return self.bind(buffer, replaced=buffer.host is None and is_replaced(buffer, *values))

    def describe(
        self, tensors: Sequence[torch.Tensor | None], buffers: Sequence[DeviceBuffer | None]
    ) -> Hashable:
        """Return the key part of a list of tensors."""
        epoch, bind = self.epoch, self.bind
        return tuple(
            [
                None
                if tensor is None or buffer is None
                else (
                    buffer.slot if buffer.epoch is epoch else bind(buffer),
                    tensor.dtype,
                    tensor.size(),
                    tensor.stride(),
                    tensor.storage_offset(),
                )
                for tensor, buffer in zip(tensors, buffers, strict=True)
            ]
        )

    def scalar(self, value: Any) -> Hashable:
        """Return the key part of a number; all but constants become inputs of the graph, whose type is the key."""
        if is_constant(value):
            return (value.__class__, value)
        self.scalars.append(value)
        return value.__class__  # type: ignore[no-any-return]

    # Buffers

    def adopt(self, host: torch.Tensor) -> torch.Tensor:
        """Return a device tensor whose contents are a host tensor; the caller gives up the host tensor."""
        self.transfers += 1
        nbytes = host.untyped_storage().nbytes()
        geometry = geometry_of(host)
        handle = self.make(geometry[1], geometry[0])
        buffer = DeviceBuffer(self, NEVER, 0, nbytes, intern_layout(nbytes, geometry))
        self.fill(buffer, host)
        attach(handle, buffer)
        if geometry[3] or contiguous_strides(geometry[1]) != geometry[2]:
            handle = restride(handle, geometry)
        return handle

    def empty(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialised device tensor; its contents on the host are allocated at its first use."""
        extent = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        nbytes = 0 if 0 in shape else extent * dtype.itemsize
        geometry = (dtype, shape, strides, 0)
        handle = self.make(shape, dtype)
        buffer = DeviceBuffer(self, NEVER, 0, nbytes, intern_layout(nbytes, geometry))
        if self._counts_recorded:
            self.charge(buffer)
        attach(handle, buffer)
        return handle if contiguous_strides(shape) == strides else restride(handle, geometry)

    def fill(self, buffer: DeviceBuffer, host: torch.Tensor) -> None:
        """Give a buffer its contents, with the geometry of its layout, and account for them."""
        self.charge(buffer)
        buffer.host = host if self.numerics is None else self.numerics.upload(host)

    def charge(self, buffer: DeviceBuffer) -> None:
        """Account for a buffer's device memory."""
        if buffer.charged:
            return
        if not self.account.charge_kept(buffer):
            with InterruptHold(HOLD_S):
                self.account.charge(buffer.nbytes)
                buffer.mark_charged()
        self.created += 1
        if observers:
            report_buffer(self.index, buffer)

    def forget(self, buffer: DeviceBuffer) -> None:
        """Release the memory of a buffer; called from its finalizer."""
        if not buffer.charged:
            return
        self.account.release(buffer)
        self.destroyed += 1
        if observers:
            report_release(self.index, buffer, buffer.nbytes)
        if self.node.parent is None:
            self.account.trim()

    def host_of(self, buffer: DeviceBuffer) -> torch.Tensor:
        """Return a buffer's contents outside a recording that changes them."""
        return self._allocate(buffer) if buffer.host is None else buffer.host

    def _allocate(self, buffer: DeviceBuffer, *, replaced: bool = False) -> torch.Tensor:
        """Give a buffer uninitialised contents, and return them."""
        if buffer.epoch is not NEVER and not replaced:
            raise lost_value(buffer)
        dtype, shape, strides, _ = layout_geometry(buffer.layout_id)
        self.charge(buffer)
        with host_allocation(self.account):
            buffer.host = host = torch.empty_strided(shape, strides, dtype=dtype)
        return host

    def read(self, tensor: torch.Tensor, cause: str) -> torch.Tensor:
        """Return the host view of a device tensor, after a sync if its value is still only recorded."""
        buffer = buffer_of(tensor)
        with self.lock:
            self.transfers += 1
            if buffer.epoch is self.epoch:
                try:
                    self.sync(cause)
                except CompileError:
                    if buffer.epoch is not NEVER:
                        raise
            geometry = geometry_of(tensor)
            host = self.host_of(buffer)
            return host if layout_geometry(buffer.layout_id) == geometry else view_of(host, geometry)

    def replace(self, tensor: torch.Tensor, host: torch.Tensor) -> bool:
        """Replace the contents of a device tensor, if nothing is recorded on it and it views all of its storage."""
        self.transfers += 1
        buffer = buffer_of(tensor)
        geometry = geometry_of(tensor)
        if buffer.epoch is self.epoch or layout_geometry(buffer.layout_id) != geometry:
            return False
        fresh = torch.empty_strided(geometry[1], geometry[2], dtype=geometry[0])
        fresh.copy_(host)
        self.fill(buffer, fresh)
        return True

    def produce(
        self, child: TrieNode, tensors: Sequence[torch.Tensor | None], values: tuple[Any, ...]
    ) -> Any:
        """Record a known call and return its results; `tensors` are its tensors, `values` all of its arguments."""
        slots = self.slots
        handles: list[torch.Tensor | None] = []
        for recipe in child.recipes:
            handles.append(self._handle(recipe, tensors, handles))
        results = shape_results(child.operator, handles)
        if self.slots is not slots:
            return self.repeat(child.operator, values)
        self.node = child
        return results

    def repeat(self, operator: Any, values: tuple[Any, ...]) -> Any:
        """Call an operator again: a signal handler or finalizer has used the device while it was being recorded."""
        args, kwargs = call_arguments(operator, values)
        return operator.overload(*args, **kwargs)

    def _handle(
        self, recipe: Recipe, tensors: Sequence[torch.Tensor | None], earlier: Sequence[torch.Tensor | None]
    ) -> torch.Tensor | None:
        if recipe is None:
            return None
        if isinstance(recipe, Alias):
            base = (earlier if recipe.of_result else tensors)[recipe.tensor]
            assert base is not None
            return restride(base, recipe.geometry)
        handle = self.make(recipe.geometry[1], recipe.geometry[0])
        buffer = DeviceBuffer(self, self.epoch, recipe.slot, recipe.nbytes, recipe.layout_id)
        self.slots.append(buffer)
        attach(handle, buffer)
        return handle if recipe.contiguous else restride(handle, recipe.geometry)

    def settle(self) -> None:
        """Undo what an exception has ended half way: a call is not recorded, values that a graph was changing are lost."""
        unfinished = self.unfinished
        if unfinished is None:
            return
        if unfinished is CALL:
            self._roll_back()
            # A call that goes on after this, in the code around a signal handler, sees the copy.
            self.slots = self.slots.copy()
        else:
            recorded = [self.slots[slot] for slot in self.node.visible()]
            self._lose(recorded if unfinished is RECORDING else unfinished)
            self.reset()
        self.unfinished = None

    def _roll_back(self) -> None:
        node = self.node
        while node.slots > len(self.slots) or node.lifted > len(self.scalars):
            assert node.parent is not None
            node = node.parent
        self.node = node
        for buffer in self.slots[node.slots :]:
            buffer.epoch = NEVER
        for buffer, epoch in [self.blank[slot] for slot in self.blank if slot >= node.slots]:
            buffer.host, buffer.epoch = None, epoch
        del self.slots[node.slots :]
        self.blank = {slot: blank for slot, blank in self.blank.items() if slot < node.slots}
        del self.scalars[node.lifted :]

    # Misses

    def learn(self, operator: Operator, key: Hashable, values: tuple[Any, ...]) -> Any:
        """Run a call that the trie does not know, add it, and return its results."""
        self._roll_back()
        if self.node.depth >= self.graph_limit and self._is_complete(self.calls()):
            self.sync("limit of operators in a graph")
            return self.repeat(operator, values)
        if not self.learning and self.node.parent is not None:
            with InterruptHold(HOLD_S):
                self.unfinished = RECORDING
                run_recorded(self)
                self.node = self.node.unfollowed()
                self.learning = True
                self.unfinished = CALL
        call = Call(self, operator, values)
        try:
            call.read()
        except UnstorableError:
            self._roll_back()
            return fallback.run_on_cpu(self.stores, operator, *call_arguments(operator, values))
        if has_rare_type(call.tensors) and self._runs_on_host(call.node(())):
            self._roll_back()
            return fallback.run_on_cpu(self.stores, operator, *call_arguments(operator, values))
        if not call.written and not operator.random:
            return self._learn(call, key)
        hold = InterruptHold(HOLD_S)
        try:
            hold.__enter__()
            return self._learn(call, key)
        finally:
            hold.end()  # what was held back takes effect when torch has returned

    def _learn(self, call: Call, key: Hashable) -> Any:
        operator, slots = call.operator, self.slots
        bound = len(slots) - self.node.slots
        outcome = self._compute(call)
        recipes, hosts = call.recipes(outcome)
        is_rare = has_rare_type(hosts) and self._runs_on_host(call.node(recipes))
        if is_rare or self.slots is not slots:
            self._roll_back()
            if is_rare:
                fallback.report(operator)
            handles = [None if host is None else self.adopt(host) for host in hosts]
            return call.returned(handles)
        parent = self.node.shadow_of or self.node
        child = parent.edges.get(key)
        if child is None:
            child = learned_node(self, parent, call, recipes, bound)
            self._known_nodes += 1
        handles = []
        for recipe, host in zip(recipes, hosts, strict=True):
            handles.append(self._handle(recipe, call.tensors, handles))
            if isinstance(recipe, Fresh):
                slots[recipe.slot].host = host
                self._unreleased_bytes += recipe.nbytes
        if self._unreleased_bytes > self._release_at_bytes:
            self._release_at_bytes = max(_RELEASE_BYTES, release_unreferenced(slots) // 8)
            self._unreleased_bytes = 0
        parent.edges[key] = child
        result, node = call.returned(handles), child.unfollowed()
        self.learning = True
        self.node = node
        if self.eager:
            self.sync(EAGER)
        return result

    def _compute(self, call: Call) -> Any:
        """Run a call on the host, after a check whether the device has memory for what it returns."""
        operator, args, kwargs = call.operator, call.host_args, call.host_kwargs
        function = operator.overload if self.numerics is None else self.numerics.bind(operator)
        with host_execution(), host_allocation(self.account):
            if may_be_larger(operator, args, kwargs, min(_CHECKED_BYTES, self.account.host_room())):
                self.account.check(result_bytes(operator, args, kwargs))
            with self.generator.scope() if operator.random else nullcontext():
                return function(*args, **kwargs)

    # Execution

    def live_slots(self) -> tuple[int, ...]:
        """Return the slots of recorded results that the program still has."""
        slots, count = self.slots, sys.getrefcount
        return tuple([slot for slot in self.node.visible() if count(slots[slot]) > HELD_BY_RECORDER])

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Continue the device's stream of random numbers in torch's default generator; runs recorded draws first."""
        self.finish_draws()
        with InterruptHold(HOLD_S), self.generator.scope():
            yield

    def finish_draws(self) -> None:
        """Run the recorded operators if they draw random numbers: their state is needed now."""
        if self.node.draws:
            self.sync("state of the random numbers")

    def sync(self, cause: str) -> None:
        """Run the recorded calls and start a new recording.

        What a signal handler raises before the graph runs leaves the recording as it is.
        """
        with self.lock:
            if self.node.parent is None:
                return
            try:
                with observed_cut(self.index, cause, self.node.depth) if observers else nullcontext():
                    try:
                        program = self._program(cause)
                    except CompileError:
                        run_accepted(self, cause)
                        raise
                    with InterruptHold(HOLD_S):
                        self.unfinished = RECORDING
                        self.runner.run(program, self.slots, self.scalars, self.calls, computed=self.learning)
                        self.reset()
            except BaseException as error:
                if isinstance(error, Exception) and not is_of_handler(error):
                    self.unfinished = RECORDING
                self.settle()
                raise

    def note_execution(self, program: Program, slots: int, cause: str) -> None:
        """Count the tensors of a program with that many slots, and show it to debugging tools."""
        if self._observers and cause != EAGER:
            for observe in self._observers:
                observe(program.loaded, cause)
        self.created += slots - len(program.inputs)
        self.destroyed += slots - len(program.inputs) - len(program.fresh)  # which no tensor refers to

    def reset(self) -> None:
        """Drop the recorded operators; the values that they would have computed are lost."""
        if self._known_nodes > _TRIE_LIMIT:
            self.root = new_root()
            self._known_nodes = 0
        node = new_root() if self.eager else self.root  # an unknown operator runs at once
        epoch = object()
        # Without a call from here on, so that no exception comes in between.
        self.node = node
        self.slots, self.blank, self.scalars = [], {}, []
        self.epoch = epoch
        self.learning = False
        self.unfinished = None
        self._unreleased_bytes = 0
        self._release_at_bytes = _RELEASE_BYTES
        self.account.trim()

    def close(self) -> None:
        """Drop the recorded operators and stop accounting for memory."""
        with self.lock:
            self.unfinished = RECORDING
            self.settle()
            self.account.close()

    def _lose(self, buffers: Iterable[DeviceBuffer]) -> None:
        for buffer in buffers:
            if self.learning and buffer.charged:
                continue  # its operators have run
            buffer.host = None
            if buffer.epoch is NEVER:
                buffer.epoch = RECORDING

    def _program(self, cause: str) -> Program:
        node, live = self.node, self.live_slots()
        program = node.programs.get(live)
        if program is None:
            program = node.programs[live] = self.programs.build(node.trace(), live, cause)
        else:
            metrics.count("CachedCompile")
        self.executed = program
        self.note_execution(program, node.slots, cause)
        return program
