"""Checks of a finished launch: results, memory, lost writes, and races between cores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.base.garbage import without_collection
from neurontools.nki.dataflow import check_dataflow
from neurontools.nki.errors import KernelError
from neurontools.nki.races import check_races
from neurontools.nki.usage import check_usage, placed_lifetimes

if TYPE_CHECKING:
    from neurontools.nki.context import Launch
    from neurontools.nki.tensor import NkiTensor


def check_launch(launch: Launch, results: list[NkiTensor]) -> None:
    """Check a launch that has ended.

    Raises:
        KernelError: a result was never written, or tensors do not fit on the chip.
    """
    for result in results:
        _check_result(launch, result)
    if not launch.checks:
        return
    with without_collection():
        for core in launch.cores:
            check_usage(core, placed_lifetimes(core))
            check_dataflow(core)
        check_races(launch)


def _check_result(launch: Launch, result: NkiTensor) -> None:
    storage = result.storage
    allocation = storage.allocation
    if storage.is_complete:
        return
    if storage.written is None:
        raise KernelError(
            f"{allocation.location}: {launch.kernel}: result {allocation.label} was never written",
            "store to it with nisa.dma_copy",
        )
    missing = storage.written.size - int(storage.written.sum())
    if missing and launch.checks:
        launch.warn(
            "incomplete",
            f"{launch.kernel}: {missing} of {storage.written.size} elements of result {allocation.label} were never written",
            allocation.location,
        )
