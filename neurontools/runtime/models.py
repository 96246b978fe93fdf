"""Loaded models: their memory, their slot on the telemetry page, and the observers of executions."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from threading import RLock
from typing import TYPE_CHECKING, Protocol

from neurontools.machine.snapshot import MemoryCategory, MemoryUse, ModelState
from neurontools.runtime.status import NrtError, NrtStatus

if TYPE_CHECKING:
    from neurontools.machine.pages.page import PageWriter
    from neurontools.runtime.memory import DeviceMemory

FIRST_MODEL_ID = 10001
RUNTIME_MEMORY_BYTES = 132_256
"""What the runtime itself takes on a core with a loaded model, as captured lines of neuron-monitor show it."""


@dataclass(frozen=True, slots=True)
class Model:
    """A NEFF on a core.

    `nc` is the process's own index of the core, `core` its machine-wide logical id. `modelled_ns`, `flops` and
    `gpsimd_ns` are the cost model's for one execution. `memory` is what it needs on the device; its scratchpad is
    shared with the other models of the core. `page_slot` is its place on the telemetry page. `collective` is set
    when it exchanges data with other cores.
    """

    name: str
    uuid: bytes
    nc: int
    core: int
    neff: bytes
    modelled_ns: int
    flops: int
    gpsimd_ns: int
    memory: MemoryUse
    collective: bool = False
    model_id: int = 0
    page_slot: int = -1


class ExecutionObserver(Protocol):
    """Records what a runtime does. Times are CLOCK_MONOTONIC ns; calls come in the executing thread."""

    def on_load(self, model: Model, start_ns: int, end_ns: int) -> None:
        """Take note of a model that was loaded."""

    def on_execute(self, model: Model, execution: int, start_ns: int, end_ns: int, status: NrtStatus) -> None:
        """Take note of a model's `execution`-th execution (from 1)."""

    def on_unload(self, model: Model) -> None:
        """Take note of a model that was unloaded."""

    def on_close(self) -> None:
        """Take note that the runtime closes; nothing comes after it."""


class ModelEntry:
    """A model and how often it was executed."""

    __slots__ = ("executions", "model")

    def __init__(self, model: Model) -> None:
        self.model = model
        self.executions = 0


class ModelTable:
    """The models of one process. Code and constants add up on a core; the scratchpad is as big as the biggest needs.

    A core with a model has the runtime's own memory too.

    Unloading may happen in a finalizer, in the middle of loading in the same thread: sizes are adjusted step by step
    towards what the table says, never computed ahead.
    """

    def __init__(self, memory: DeviceMemory, writer: PageWriter) -> None:
        self._memory = memory
        self._writer = writer
        self._ids = itertools.count(FIRST_MODEL_ID)
        self._loaded: dict[int, ModelEntry] = {}
        self._scratch_wanted: tuple[list[int], ...] = tuple([] for _ in writer.cores)
        self._shared_held = [
            {MemoryCategory.MODEL_SHARED_SCRATCHPAD: 0, MemoryCategory.RUNTIME_MEMORY: 0}
            for _ in writer.cores
        ]
        self._changing = RLock()

    def load(self, model: Model) -> Model:
        """Take memory for a model and show it; return it with its id and its place on the page.

        Raises:
            NrtError: NRT_RESOURCE when the device is full; nothing is taken then.
        """
        with self._changing:
            self._take(model.nc, model.memory)
            model_id = next(self._ids)
            shown = ModelState(model_id, model.name, model.uuid.hex(), model.core, False, model.memory)
            loaded = replace(model, model_id=model_id, page_slot=self._writer.add_model(shown))
            self._loaded[model_id] = ModelEntry(loaded)
        return loaded

    def unload(self, model: Model) -> bool:
        """Give a model's memory back; return False when it was not loaded (any more)."""
        with self._changing:
            if self._loaded.pop(model.model_id, None) is None:
                return False
            self._writer.remove_model(model.page_slot)
            self._scratch_wanted[model.nc].remove(model.memory.model_shared_scratchpad)
            self._give_back(model.nc, model.memory)
        return True

    def find(self, model: Model) -> ModelEntry:
        """Return a loaded model's entry.

        Raises:
            NrtError: NRT_INVALID_HANDLE when it is not loaded.
        """
        found = self._loaded.get(model.model_id)
        if found is None:
            raise NrtError("nrt_execute", NrtStatus.NRT_INVALID_HANDLE, f"model {model.name} is not loaded")
        return found

    def models(self) -> tuple[Model, ...]:
        """Return the loaded models."""
        with self._changing:
            return tuple(loaded.model for loaded in self._loaded.values())

    def _take(self, nc: int, memory: MemoryUse) -> None:
        taken = MemoryUse()
        self._scratch_wanted[nc].append(memory.model_shared_scratchpad)
        try:
            self._memory.allocate(nc, memory.model_code, MemoryCategory.MODEL_CODE, function="nrt_load")
            taken = MemoryUse(model_code=memory.model_code)
            self._memory.allocate(nc, memory.constants, MemoryCategory.CONSTANTS, function="nrt_load")
            taken = memory
            self._fit_shared(nc)
        except BaseException:
            self._scratch_wanted[nc].remove(memory.model_shared_scratchpad)
            self._give_back(nc, taken)
            raise

    def _give_back(self, nc: int, memory: MemoryUse) -> None:
        self._memory.free(nc, memory.model_code, MemoryCategory.MODEL_CODE)
        self._memory.free(nc, memory.constants, MemoryCategory.CONSTANTS)
        self._fit_shared(nc)

    def _fit_shared(self, nc: int) -> None:
        held = self._shared_held[nc]
        for category in held:
            while missing := self._shared_bytes(nc, category) - held[category]:
                if missing > 0:
                    self._memory.allocate(nc, missing, category, function="nrt_load")
                else:
                    self._memory.free(nc, -missing, category)
                held[category] += missing

    def _shared_bytes(self, nc: int, category: MemoryCategory) -> int:
        wanted = self._scratch_wanted[nc]
        if category is MemoryCategory.RUNTIME_MEMORY:
            return RUNTIME_MEMORY_BYTES if wanted else 0
        return max(wanted, default=0)
