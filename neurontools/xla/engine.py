"""The engine of the device: it records operators and runs them as graphs, with a recorder per core."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import torch

from neurontools.base.interrupts import HOLD_S, InterruptHold
from neurontools.customop.signal_takeover import before_takeover
from neurontools.xla.accelerator import Accelerator, DeviceError
from neurontools.xla.buffers import ChargedBuffer, buffer_of
from neurontools.xla.compiled_function import CompiledFunction, record_function
from neurontools.xla.debugging import metrics
from neurontools.xla.device import keep_from_compiler
from neurontools.xla.device_guard import GUARD_REMEDY, set_device_count
from neurontools.xla.device_name import device_name
from neurontools.xla.fusion import OneGraph
from neurontools.xla.kernels import kernel_for
from neurontools.xla.memory import HostBudget, host_limit
from neurontools.xla.operators import operator_of
from neurontools.xla.program import build_graph
from neurontools.xla.recorder import Recorder
from neurontools.xla.recorder_lock import RecorderLock, deliver_from
from neurontools.xla.rng import checked_state, define_operators, seeded_state, state_at
from neurontools.xla.tensor_kernels import handle_maker
from neurontools.xla.trie import RecordedFunction, new_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from neurontools.compiler.graph import Graph
    from neurontools.runtime.memory import MemoryInfo
    from neurontools.xla.fusion import Fusion
    from neurontools.xla.operators import Kernel, Operator
    from neurontools.xla.stores import TensorStore
    from neurontools.xla.trie import Function

_LONGEST_WAIT_S = 2.0  # a thread may wait for another worker, which may wait for the child


class CurrentDevice:
    """The device that `xla` without an index means in a thread; torch's device guard stores it."""

    @property
    def index(self) -> int:
        """The position of the current device in this process."""
        index: int = torch.accelerator.current_device_index()
        return index

    def set(self, index: int) -> None:
        """Make a device the current one.

        Raises:
            DeviceError: there is no device guard in C++, and the one in Python supports only xla:0.
        """
        torch.accelerator.set_device_index(index)
        if self.index != index:
            raise DeviceError(
                "the current device cannot change without the device guard in C++", GUARD_REMEDY
            )


class DeviceEngine:
    """Records operators per device and runs them at synchronizations. `index` is the position of a device.

    Args:
        open_accelerator: opens the cores at the first use of the device.
    """

    def __init__(self, open_accelerator: Callable[[], Accelerator]) -> None:
        self._open_accelerator = open_accelerator
        self.current = CurrentDevice()
        self._device_name = device_name()
        self._accelerator: Accelerator | None = None
        self._recorders: dict[int, Recorder] = {}
        self._lock = threading.RLock()
        self._seed: int | None = None
        self.local_rank: int | None = None
        self.count_cores: Callable[[], int] | None = None
        """Counts the cores that this process may claim, without claiming them."""
        self._eager = False
        self._fusion: Fusion = OneGraph()
        self._host = HostBudget(host_limit())
        self._rng_library = define_operators()
        operators = torch.ops.neurontools
        self._get_state = self.kernel(operator_of(operators.get_rng_state.default))
        self._set_state = self.kernel(operator_of(operators.set_rng_state.default))
        deliver_from(ChargedBuffer.__del__, finalizes=True)
        keep_from_compiler(ChargedBuffer.__del__)
        metrics.add_source(self._tensor_counters)
        before_takeover(self.forget_programs)
        ForkLocks(lambda: tuple(self._recorders.values()))

    @property
    def accelerator(self) -> Accelerator:
        """The cores of this process; opens them."""
        with self._lock:
            if self._accelerator is None:
                with InterruptHold(HOLD_S):
                    self._accelerator = self._open_accelerator()
                    set_device_count(self._accelerator.core_count())
            return self._accelerator

    @property
    def is_open(self) -> bool:
        """Whether the cores are open."""
        return self._accelerator is not None

    def recorder(self, index: int) -> Recorder:
        """Return the recorder of a device.

        Raises:
            DeviceError: this process has no such core.
        """
        recorder = self._recorders.get(index)
        if recorder is not None:
            return recorder
        with self._lock:
            recorder = self._recorders.get(index)  # another thread may have been faster
            if recorder is not None:
                return recorder
            count = self.accelerator.core_count()
            if self.position_of(index) != index:
                return self.recorder(0)
            if not 0 <= index < count:
                raise DeviceError(
                    f"device {self._device_name}:{index} does not exist: this process has {count} NeuronCore(s)",
                    "set NEURON_RT_NUM_CORES or NEURON_RT_VISIBLE_CORES before the device is used",
                )
            recorder = self._recorders[index] = Recorder(
                index, self.accelerator, handle_maker(index), self._host, self
            )
            recorder.eager = self._eager
            recorder.fuse(self._fusion)
            if self._seed is not None:
                recorder.generator.seed(self._seed)
            return recorder

    def kernel(self, operator: Operator) -> Kernel:
        """Return the dispatcher kernel that records an operator, or runs it on the CPU if it cannot be recorded."""
        return kernel_for(operator, self)

    def store(self, device: Any) -> Recorder:
        """Return the recorder of a torch device; without an index that is the current device."""
        if isinstance(device, str):
            device = torch.device(device)
        index = self.current.index if device.index is None else device.index
        return self._recorders.get(index) or self.recorder(index)

    def store_of(self, value: Any) -> TensorStore | None:
        """Return the recorder that a value is on, None for values that are not tensors of the lazy device."""
        if isinstance(value, torch.Tensor) and value.device.type == self._device_name:
            return buffer_of(value).recorder
        return None

    def position_of(self, index: int) -> int:
        """Return the position of a device: 0 for `local_rank` where this process has no such core."""
        return 0 if index == self.local_rank and index >= self.accelerator.core_count() else index

    def check_device(self, index: int) -> None:
        """Check that a device exists; opens the cores, unless it is among those that `count_cores` counts.

        Raises:
            DeviceError: this process has no such core.
        """
        if self.count_cores is None or self.is_open or not 0 <= index < self.count_cores():
            self.recorder(index)
        else:
            set_device_count(index + 1)

    def sync(self, index: int | None = None, cause: str = "mark_step") -> None:
        """Run the operators recorded on one device, or on all."""
        for recorder in tuple(self._recorders.values()):
            if index is None or recorder.index == index:
                recorder.sync(cause)

    @property
    def eager(self) -> bool:
        """Whether each operator runs at once, as a graph of its own."""
        return self._eager

    def set_eager(self, enabled: bool) -> None:
        """Turn eager mode on or off; runs the recorded operators first."""
        if enabled == self._eager:
            return
        self._eager = enabled
        for recorder in tuple(self._recorders.values()):
            with recorder.lock:
                recorder.sync("change of the execution mode")
                recorder.eager = enabled
                recorder.reset()

    def set_fusion(self, fusion: Fusion) -> Fusion:
        """Choose where recordings end that are not synchronized, and return the choice before."""
        before, self._fusion = self._fusion, fusion
        for recorder in tuple(self._recorders.values()):
            recorder.fuse(fusion)
        return before

    def pending(self, index: int) -> int:
        """Return the number of recorded operators that have not run."""
        recorder = self._recorders.get(index)
        return len(recorder.node.path()) if recorder is not None else 0

    def recording(self, index: int) -> object:
        """Return what identifies the recording of a device, None while nothing is recorded."""
        return self.recorder(index).epoch if self.pending(index) else None

    def recorded_graph(self, tensors: Sequence[torch.Tensor]) -> tuple[Graph, list[torch.Tensor]]:
        """Return the recording of tensors of one device, as a graph, and the tensors without one."""
        recorder = self.recorder(tensors[0].device.index)
        with recorder.lock:
            made = set(recorder.node.visible())
            slots = [b.slot if b.epoch is recorder.epoch else -1 for b in map(buffer_of, tensors)]
            held = [tensor for tensor, slot in zip(tensors, slots, strict=True) if slot not in made]
            return build_graph(recorder.node.trace(), tuple(sorted(made.intersection(slots)))), held

    def record_function(
        self,
        index: int,
        function: Function,
        arguments: Sequence[torch.Tensor],
        weights: Sequence[torch.Tensor],
    ) -> RecordedFunction | None:
        """Record a function on a device, then drop the recording; runs previously recorded operators first.

        Args:
            index: the device.
            function: takes device tensors and returns tensors.
            arguments: its arguments, as CPU tensors.
            weights: device tensors that it may read.

        Returns:
            The recording; None if the engine had to run the function to learn its operators: call this again.

        Raises:
            DeviceError: the function needs a value while it is recorded.
        """
        return record_function(self.recorder(index), function, arguments, weights)

    def as_graph(
        self,
        function: Callable[..., Any],
        before: str,
        cause: str,
        *,
        repeatable: bool,
        on_host: Sequence[int] = (),
    ) -> Callable[[list[Any]], Any]:
        """Return a function that takes the arguments of another one as a list, which it may clear, and runs it as one graph.

        Args:
            function: takes tensors, and returns a list or tuple of tensors.
            before: why an open recording ends when it is called.
            cause: why its graph ends.
            repeatable: whether its operators follow from the layouts of its arguments: then it is not called again.
            on_host: the positions of arguments that are on the CPU: it gets copies on the device.
        """
        return CompiledFunction(self, function, before, cause, repeatable=repeatable, on_host=on_host)

    def memory(self, index: int) -> MemoryInfo:
        """Return the device memory of a core; with that of recorded tensors, if the fusion counts it."""
        recorder = self.recorder(index)
        with recorder.lock:
            memory = recorder.account.read()
            used_bytes = memory.used_bytes
            if self._fusion.counts_recorded:
                recorded = [recorder.slots[slot] for slot in recorder.live_slots()]
                used_bytes += sum(buffer.nbytes for buffer in recorded if not buffer.charged)
        return replace(memory, used_bytes=used_bytes, peak_bytes=max(memory.peak_bytes, used_bytes))

    def reset_peak_memory(self, index: int) -> None:
        """Reset the peak memory of a core to its current use."""
        self.recorder(index).account.settle()
        self.accelerator.reset_peak_memory(index)

    def seed(self, seed: int, index: int | None = None) -> None:
        """Seed the random numbers of one device, or of all: those drawn from here on, not those already recorded."""
        if index is None:
            self._seed = seed
        for position in tuple(self._recorders) if index is None else (index,):
            self.set_rng_state(position, seeded_state(seed))

    def initial_seed(self, index: int) -> int:
        """Return the seed of a device's random numbers; runs recorded draws first."""
        recorder = self.recorder(index)
        with recorder.lock:
            recorder.finish_draws()
            return recorder.generator.initial_seed()

    def rng_state(self, index: int, *, recorded: bool = False) -> torch.Tensor:
        """Return the state of a device's random numbers at this point of the program, as bytes on the device.

        `recorded` makes it part of the graph even where its value is known.
        """
        recorder = self.recorder(index)
        with recorder.lock:
            if not recorder.node.draws and not recorded:
                return recorder.adopt(recorder.generator.state())
            state: torch.Tensor = self._get_state(device=recorder.device)
            return state

    def set_rng_state(self, index: int, state: torch.Tensor, *, recorded: bool = False) -> None:
        """Continue a device's random numbers from a state that `rng_state` returned, from this point of the program on.

        `recorded` makes it part of the graph even where no numbers have been drawn in it.

        Raises:
            RuntimeError: `state` is not a valid state.
        """
        recorder = self.recorder(index)
        with recorder.lock:
            on_device = state.device == recorder.device
            recorded = recorded or recorder.node.draws
            if not on_device or not recorded:
                state = checked_state(state.cpu())
            if not recorded:
                recorder.generator.restore(state)
            else:
                self._set_state(state if on_device else recorder.adopt(state.clone()))

    def rng_value(self, index: int) -> int:
        """Return the state of a device's random numbers as 64 bits; runs recorded draws first."""
        recorder = self.recorder(index)
        with recorder.lock:
            recorder.finish_draws()
            return recorder.generator.value()

    def set_rng_value(self, index: int, value: int) -> None:
        """Continue a device's random numbers at a value of `rng_value`, or start them at a seed."""
        self.set_rng_state(index, state_at(value))

    def forget_programs(self) -> None:
        """Run the recorded operators and forget all programs: custom operators are about to be replaced."""
        for recorder in tuple(self._recorders.values()):
            with recorder.lock:
                recorder.sync("custom operators replaced")
                recorder.root = recorder.node = new_root()

    def shutdown(self) -> None:
        """Drop the recorded operators and give the cores back. Tensors keep their values but take no device memory."""
        with self._lock:
            accelerator, self._accelerator = self._accelerator, None
            for recorder in self._recorders.values():
                recorder.close()
            self._recorders.clear()
            if accelerator is not None:
                accelerator.close()

    def _tensor_counters(self) -> dict[str, int]:
        recorders = tuple(self._recorders.values())
        return {
            "CreateXlaTensor": sum(recorder.created for recorder in recorders),
            "DestroyXlaTensor": sum(recorder.destroyed for recorder in recorders),
        }


class Locked(Protocol):
    """The recorder of a device."""

    lock: RecorderLock

    def settle(self) -> None:
        """Clean up after an exception."""


class ForkLocks:
    """Takes locks before a fork and gives them back after it, in parent and child.

    Args:
        owners: returns the present recorders. A recorder that stays busy gets a new lock in the child, where it can only refuse.
    """

    def __init__(self, owners: Callable[[], Iterable[Locked]]) -> None:
        self._owners = owners
        self._held: list[Locked] = []
        os.register_at_fork(before=self._take, after_in_parent=self._release, after_in_child=self._renew)

    def _take(self) -> None:
        self._held = [owner for owner in self._owners() if owner.lock.acquire(timeout=_LONGEST_WAIT_S)]

    def _release(self) -> None:
        while self._held:
            self._held.pop().lock.release()

    def _renew(self) -> None:
        self._held.clear()
        for owner in self._owners():
            owner.lock = RecorderLock(owner.settle)
