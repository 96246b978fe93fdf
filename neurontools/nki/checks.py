"""What is checked after a kernel has run: results, and later memory and races."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.nki.errors import KernelError

if TYPE_CHECKING:
    from neurontools.nki.context import Launch
    from neurontools.nki.tensor import NkiTensor


def check_launch(launch: Launch, results: list[NkiTensor]) -> None:
    """Check a launch that has ended.

    Raises:
        KernelError: a result was never written.
    """
    for result in results:
        storage = result.storage
        if not storage.is_complete and storage.written is None:
            raise KernelError(
                f"{storage.allocation.location}: {launch.kernel}: result {storage.allocation.label} was never written",
                "store to it with nisa.dma_copy",
            )
