"""torch_neuronx.xla_impl.data_parallel: batches of a traced model spread over cores.

Source: AWS Neuron documentation, "PyTorch NeuronX DataParallel API".
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from neurontools.compat import core_placement, traced_model
from neurontools.compat.traced_model import DYNAMIC_BATCH
from neurontools.xla import api

if TYPE_CHECKING:
    from collections.abc import Sequence


class DataParallel(torch.nn.Module):  # type: ignore[misc]
    """Splits inputs along a dimension, runs the parts on several cores at once, and joins the results.

    Args:
        model: a traced module.
        device_ids: cores of this process, as numbers or `nc:#`; all by default.
        dim: the dimension.
        set_dynamic_batching: whether parts may differ from the traced batch size, for `dim=0`.

    `num_workers` is the number of threads, `split_size` the size of a part; None divides inputs evenly.

    Raises:
        ValueError: a core does not exist.
    """

    def __init__(
        self,
        model: torch.jit.ScriptModule,
        device_ids: Sequence[int | str] | None = None,
        dim: int = 0,
        set_dynamic_batching: bool = True,
    ) -> None:
        super().__init__()
        chosen = range(api.device_count()) if device_ids is None else device_ids
        self.device_ids = [core_placement.core_number(device) for device in chosen]
        self.dim = dim
        self.num_workers = 2 * len(self.device_ids)
        self.split_size: int | None = None
        self._parts = traced_model.submodules(model)
        self._model = model
        for part in self._parts:
            traced_model.model_of(part).place(self.device_ids)
        if set_dynamic_batching and dim == 0 and self._takes_any_batch():
            core_placement.dynamic_batch(model)

    def disable_dynamic_batching(self) -> None:
        """Require parts of the traced batch size."""
        for part in self._parts:
            part.settings[DYNAMIC_BATCH] = 0

    def forward(self, *inputs: Any) -> Any:
        """Return the joined results."""
        leaves, spec = tree_flatten(inputs)
        size = leaves[0].shape[self.dim]
        step = self.split_size or max(1, size // len(self.device_ids))
        chunks = [
            tree_unflatten([leaf.narrow(self.dim, start, min(step, size - start)) for leaf in leaves], spec)
            for start in range(0, size, step)
        ]

        def run(position: int) -> Any:
            with traced_model.on_core(self.device_ids[position % len(self.device_ids)]):
                return self._model(*chunks[position])

        with ThreadPoolExecutor(self.num_workers) as workers:
            outcomes = list(workers.map(run, range(len(chunks))))
        return tree_map(lambda *parts: torch.cat(parts, self.dim), *outcomes)

    def _takes_any_batch(self) -> bool:
        try:
            for part in self._parts:
                traced_model.traced_batch(traced_model.model_of(part).signature)
        except ValueError:
            return False
        return True


__all__ = ["DataParallel"]
