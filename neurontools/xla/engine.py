"""The engine of the lazy device: one recorder per core, opened on first use."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from neurontools.customop.signal_takeover import before_takeover
from neurontools.xla import metrics
from neurontools.xla.accelerator import Accelerator, DeviceError
from neurontools.xla.memory import HostBudget, host_limit
from neurontools.xla.recorder import Recorder
from neurontools.xla.tensor_kernels import handle_maker
from neurontools.xla.trie import new_root

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.runtime.memory import MemoryInfo


class PythonEngine:
    """Records operators per device and runs them at syncs.

    Args:
        open_accelerator: opens the cores at the first use of the device.
    """

    def __init__(self, open_accelerator: Callable[[], Accelerator]) -> None:
        self._open_accelerator = open_accelerator
        self._accelerator: Accelerator | None = None
        self._recorders: dict[int, Recorder] = {}
        self._lock = threading.RLock()
        self._seed: int | None = None
        self._host = HostBudget(host_limit())
        metrics.add_source(self._tensor_counters)
        before_takeover(self.forget_programs)

    @property
    def accelerator(self) -> Accelerator:
        """The cores of this process; opens them."""
        with self._lock:
            if self._accelerator is None:
                self._accelerator = self._open_accelerator()
            return self._accelerator

    def recorder(self, index: int) -> Recorder:
        """Return the recorder of a device.

        Raises:
            DeviceError: this process has no such core.
        """
        found = self._recorders.get(index)
        if found is not None:
            return found
        with self._lock:
            count = self.accelerator.core_count()
            if not 0 <= index < count:
                raise DeviceError(
                    f"device xla:{index} does not exist: this process has {count} NeuronCore(s)",
                    "set NEURON_RT_NUM_CORES or NEURON_RT_VISIBLE_CORES before the device is used",
                )
            made = self._recorders[index] = Recorder(index, self.accelerator, handle_maker(index), self._host)
            if self._seed is not None:
                made.generator.seed(self._seed)
            return made

    def recorder_for(self, device: Any) -> Recorder:
        """Return the recorder of a torch device; without an index that is xla:0."""
        if isinstance(device, str):
            device = torch.device(device)
        return self._recorders.get(device.index or 0) or self.recorder(device.index or 0)

    def sync(self, index: int | None = None) -> None:
        """Run what is recorded on one device, or on all."""
        for recorder in tuple(self._recorders.values()):
            if index is None or recorder.index == index:
                recorder.sync("mark_step")

    def pending(self, index: int) -> int:
        """Return the number of recorded operators that have not run."""
        found = self._recorders.get(index)
        return len(found.node.path()) if found is not None else 0

    def memory(self, index: int) -> MemoryInfo:
        """Return the device memory of a core."""
        return self.recorder(index).account.read()

    def seed(self, seed: int) -> None:
        """Seed the random numbers of every device."""
        self._seed = seed
        for recorder in tuple(self._recorders.values()):
            recorder.generator.seed(seed)

    def forget_programs(self) -> None:
        """Run what is recorded and forget all programs: custom operators are about to be replaced."""
        for recorder in tuple(self._recorders.values()):
            with recorder.lock:
                recorder.sync("custom operators replaced")
                recorder.root = recorder.node = new_root()

    def shutdown(self) -> None:
        """Drop what is recorded and give the cores back. Tensors keep their values but take no device memory."""
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
