"""torch_xla.amp.syncfree: optimizers that skip a step on the device, without reading whether gradients are finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from neurontools.compat.structures import is_tensor
from neurontools.compat.unsupported import missing_names

__all__ = ["SGD", "Adam", "AdamW"]


__getattr__ = missing_names(__name__)


class _SkipsOnDevice:
    """Adds `found_inf` to the step of an optimizer."""

    param_groups: list[dict[str, Any]]
    state: dict[Any, dict[str, Any]]

    def step(self, closure: Callable[[], Any] | None = None, found_inf: torch.Tensor | None = None) -> Any:
        """Step, unless `found_inf`, a tensor on the device, is not zero."""
        if found_inf is None:
            return super().step(closure)  # type: ignore[misc]
        self._count_on_device()
        parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        before = {p: p.detach().clone() for p in parameters}
        state_before = {
            p: {name: value.clone() for name, value in self.state.get(p, {}).items() if is_tensor(value)}
            for p in parameters
        }
        result = super().step(closure)  # type: ignore[misc]
        skipped = found_inf != 0
        with torch.no_grad():
            for p in parameters:
                p.copy_(torch.where(skipped, before[p], p))
                for name, value in self.state[p].items():
                    if is_tensor(value):
                        old = state_before[p].get(name, torch.zeros_like(value))
                        value.copy_(torch.where(skipped, old, value))
        return result

    def _count_on_device(self) -> None:
        for group in self.param_groups:
            if "capturable" in group:
                group["capturable"] = True
                for p in group["params"]:
                    if "step" in self.state.get(p, {}):
                        self.state[p]["step"] = self.state[p]["step"].to(p.device)


class SGD(_SkipsOnDevice, torch.optim.SGD):  # type: ignore[misc]
    """torch.optim.SGD with `step(found_inf=...)`."""


class Adam(_SkipsOnDevice, torch.optim.Adam):  # type: ignore[misc]
    """torch.optim.Adam with `step(found_inf=...)`."""


class AdamW(_SkipsOnDevice, torch.optim.AdamW):  # type: ignore[misc]
    """torch.optim.AdamW with `step(found_inf=...)`."""
