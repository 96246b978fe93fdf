"""A NEFF on the first N cores of this process: each rank executes it on its own core, in a thread of its own."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import torch

from neurontools.xla import api
from neurontools.xla.distributed import worker_group
from neurontools.xla.multicore.communicator import RankCommunicator
from neurontools.xla.multicore.meeting import RankError, RecordedMeeting, ThreadMeeting

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from neurontools.xla.neff_executable import NeffExecutable


def recorded_as_first_of(size: int) -> AbstractContextManager[None]:
    """Return a context in which this thread is rank 0 of a run whose other ranks only have shapes."""
    return worker_group.substitute(RankCommunicator(RecordedMeeting(), 0, size))


class MulticoreExecutable:
    """A NEFF on several cores.

    Args:
        make: returns the executable; called as rank 0, so that it can check the collectives.
        size: number of ranks, each on the core of its number.

    Raises:
        NrtError: the memory of a core is full.
    """

    def __init__(self, make: Callable[[], NeffExecutable], size: int) -> None:
        with recorded_as_first_of(size):
            self._executable = make()
        self._loaded = [self._executable.load(core) for core in range(size)]
        self._lock = threading.Lock()

    def execute(self, tensors: Sequence[Sequence[torch.Tensor]]) -> list[list[torch.Tensor]]:
        """Execute it and return the results of each rank; `tensors` are the inputs of each rank, on the host.

        Raises:
            NrtError: the execution of a rank fails.
        """
        meeting = ThreadMeeting()
        results, errors = [], []
        with self._lock, ThreadPoolExecutor(len(tensors), "neuron-rank") as threads:
            others = [
                threads.submit(self._run, meeting, rank, inputs)
                for rank, inputs in enumerate(tensors[1:], start=1)
            ]
            runs: list[Callable[[], list[torch.Tensor]]] = [
                partial(self._run, meeting, 0, tensors[0]),
                *[other.result for other in others],
            ]
            for run in runs:
                try:
                    results.append(run())
                except BaseException as error:  # noqa: BLE001 # raised when all ranks have ended
                    errors.append(error)
        if errors:
            raise min(errors, key=lambda error: isinstance(error, RankError))
        return results

    def unload(self) -> None:
        """Take it off its cores."""
        for loaded in self._loaded:
            api.engine().accelerator.unload(loaded)
        self._loaded = []

    def _run(self, meeting: ThreadMeeting, rank: int, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        communicator = RankCommunicator(meeting, rank, len(self._loaded))
        try:
            with torch.no_grad(), worker_group.substitute(communicator):
                return self._executable.execute(self._loaded[rank], inputs)
        except BaseException:
            meeting.fail(rank)
            raise
