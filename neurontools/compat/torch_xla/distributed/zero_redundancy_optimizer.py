"""torch_xla.distributed.zero_redundancy_optimizer: ZeRO-1, which divides an optimizer's state among the workers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import torch

from neurontools.compat.collectives import clip_norm_
from neurontools.compat.unsupported import missing_names
from neurontools.xla import api
from neurontools.xla.distributed import collectives, workers

__getattr__ = missing_names(__name__)


class ZeroRedundancyOptimizer(torch.optim.Optimizer):  # type: ignore[misc]
    """Runs an optimizer on this worker's part of every parameter; parts are rows, padded to the same number.

    Args:
        params: of the whole model, the same on all workers.
        optimizer_class: of the optimizer that updates the parts.
        optimizer_dtype: of the parts; float32 by default.
        grad_clipping: scale the gradients so that their norm over all parts is at most `max_norm`.
        max_norm: 1.0 by default.
        pin_layout: without effect here.
        sharding_groups: ranks that divide the state among themselves; all workers by default.
        grad_norm_groups: ranks whose norms are added up too, with model parallelism.
        lazy_init: make the parts by `init_zero`, after `sharding_groups` was set.
        bucket_cap_mb_all_gather: without effect here.
        bucket_cap_mb_reduce_scatter: without effect here.
        use_grad_acc_hook: add up gradients in `optimizer_dtype`, in `main_grad` of each parameter instead of `grad`.
        save_master_weights: put the parts themselves into `state_dict`.
        higher_cc_precision: average gradients in `optimizer_dtype`.
        **defaults: arguments of the optimizer.
    """

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_class: type[torch.optim.Optimizer],
        optimizer_dtype: torch.dtype | None = None,
        grad_clipping: bool = True,
        max_norm: float | None = None,
        pin_layout: bool = True,
        sharding_groups: Any = None,
        grad_norm_groups: Any = None,
        lazy_init: bool = False,
        bucket_cap_mb_all_gather: int = 0,
        bucket_cap_mb_reduce_scatter: int = 0,
        use_grad_acc_hook: bool = False,
        save_master_weights: bool = False,
        higher_cc_precision: bool = False,
        **defaults: Any,
    ) -> None:
        super().__init__(params, defaults)
        self.save_master_weights = save_master_weights
        self.higher_cc_precision = higher_cc_precision
        self._grad_norm: torch.Tensor | None = None
        self.optimizer_class = optimizer_class
        self.optimizer_dtype = optimizer_dtype or torch.float32
        self.grad_clipping = grad_clipping
        self.max_norm = 1.0 if max_norm is None else max_norm
        self._sharding_groups = sharding_groups or [list(range(workers.world_size()))]
        self._grad_acc_hooks: list[Any] = []
        self.use_grad_acc_hook = use_grad_acc_hook
        self.inited = False
        self._optimizer_arguments = defaults
        self._grad_norm_groups = grad_norm_groups
        if not lazy_init:
            self.init_zero()

    @property
    def sharding_groups(self) -> Any:
        """Ranks that divide the state among themselves; to be set before `init_zero`."""
        return self._sharding_groups

    @sharding_groups.setter
    def sharding_groups(self, groups: Any) -> None:
        self._sharding_groups = groups

    @property
    def grad_norm(self) -> torch.Tensor | None:
        """The norm of all gradients before the last clipping."""
        return self._grad_norm

    def init_zero(self) -> None:
        """Make this worker's parts and their optimizer.

        Raises:
            ValueError: the worker is in no sharding group.
        """
        rank = workers.rank()
        group = next((list(group) for group in self.sharding_groups if rank in group), None)
        if group is None:
            raise ValueError(
                f"Current rank {rank} is missing from the sharding_groups {self.sharding_groups}"
            )
        self.local_world_size, self.local_rank = len(group), group.index(rank)
        api.engine().sync()
        parts = [
            {**options, "params": [self._part(parameter) for parameter in options["params"]]}
            for options in self.param_groups
        ]
        self.base_optimizer = self.optimizer_class(parts, **self._optimizer_arguments)
        self._sync_param_groups(self.param_groups, self.base_optimizer.param_groups)
        self._register_hooks()
        self.inited = True

    def step(self, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
        """Average the gradients, update this worker's parts and gather the parameters."""
        if not self.inited:
            raise RuntimeError("call init_zero() before step()")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._sync_param_groups(self.param_groups, self.base_optimizer.param_groups)
        with torch.no_grad():
            self._reduce_gradients()
            self.base_optimizer.step(**options)
            self.base_optimizer.zero_grad(set_to_none=True)
            self._gather_parameters(self._pairs())
        self._sync_param_groups(self.base_optimizer.param_groups, self.param_groups)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, also those in `main_grad`."""
        super().zero_grad(set_to_none)
        if self.use_grad_acc_hook:
            for group in self.param_groups:
                for parameter in group["params"]:
                    if hasattr(parameter, "main_grad"):
                        parameter.main_grad.zero_()

    def _register_hooks(self) -> None:
        """Let every parameter add up its gradients in `main_grad`."""
        for hook in self._grad_acc_hooks:
            hook.remove()
        self._grad_acc_hooks = [
            parameter.register_post_accumulate_grad_hook(self._accumulate)
            for group in self.param_groups
            for parameter in group["params"]
            if self.use_grad_acc_hook and parameter.requires_grad
        ]

    def _accumulate(self, parameter: Any) -> None:
        gradient = parameter.grad.detach().to(self.optimizer_dtype)
        if hasattr(parameter, "main_grad"):
            parameter.main_grad.add_(gradient)
        else:
            parameter.main_grad = gradient
        parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this worker; `base_state` is that of its parts."""
        state: dict[str, Any] = super().state_dict()
        state["base_state"] = self.base_optimizer.state_dict()["state"]
        state["shape_info"] = {position: whole.shape for position, (whole, _) in enumerate(self._all_pairs())}
        if self.save_master_weights:
            state["sharded_master_weights"] = {
                position: part.data for position, (_, part) in enumerate(self._all_pairs())
            }
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue at the `state_dict` of the same worker."""
        whole = copy.deepcopy(state_dict)
        base_state, masters = whole.pop("base_state"), whole.pop("sharded_master_weights", None)
        whole.pop("shape_info", None)
        super().load_state_dict(whole)
        self.init_zero()
        self.base_optimizer.load_state_dict({**self.base_optimizer.state_dict(), "state": base_state})
        if masters is not None:
            with torch.no_grad():
                for position, (_, part) in enumerate(self._all_pairs()):
                    part.copy_(masters[position])
                self._gather_parameters(self._all_pairs())

    def _all_pairs(self) -> Iterator[tuple[Any, Any]]:
        """Return the parameters, each with its part."""
        wholes, parts = self.param_groups, self.base_optimizer.param_groups
        return chain.from_iterable(
            zip(whole["params"], part["params"], strict=True)
            for whole, part in zip(wholes, parts, strict=True)
        )

    def _pairs(self) -> Iterator[tuple[Any, Any]]:
        """Return the parameters that have gradients, each with its part."""
        return ((whole, part) for whole, part in self._all_pairs() if _gradient(whole) is not None)

    def _part(self, parameter: torch.Tensor) -> torch.nn.Parameter:
        rows = self._padded(parameter.detach().cpu()).chunk(self.local_world_size)[self.local_rank]
        part = rows.to(self.optimizer_dtype, copy=True).to(parameter.device)
        return torch.nn.Parameter(part, requires_grad=parameter.requires_grad)

    def _padded(self, tensor: torch.Tensor) -> torch.Tensor:
        rows = tensor if tensor.dim() else tensor.reshape(1)
        missing = -rows.size(0) % self.local_world_size
        if not missing:
            return rows
        return torch.nn.functional.pad(rows, [0, 0] * (rows.dim() - 1) + [0, missing])

    def _reduce_gradients(self) -> None:
        scale = 1.0 / self.local_world_size
        for parameter, part in self._pairs():
            padded = self._padded(_gradient(parameter))
            if self.higher_cc_precision:
                padded = padded.to(self.optimizer_dtype)
            gradient = collectives.reduce_scatter(padded, "sum", scale, 0, self.sharding_groups)
            part.grad = gradient.to(self.optimizer_dtype)
        if self.grad_clipping:
            self._clip_grad_norm(max_norm=self.max_norm)

    def _gather_parameters(self, pairs: Iterator[tuple[Any, Any]]) -> None:
        for parameter, part in pairs:
            whole = collectives.all_gather(part.detach().to(parameter.dtype), 0, self.sharding_groups)
            parameter.data.copy_(whole[: parameter.size(0)] if parameter.dim() else whole[0])

    def _clip_grad_norm(self, max_norm: float) -> None:
        """Scale the gradients of the parts; subclasses of libraries have their own norm."""
        gradients = [
            part.grad
            for group in self.base_optimizer.param_groups
            for part in group["params"]
            if part.grad is not None
        ]
        divisions = [groups for groups in (self.sharding_groups, self._grad_norm_groups) if groups]
        self._grad_norm = clip_norm_(gradients, max_norm, divisions)

    @staticmethod
    def _sync_param_groups(source: list[dict[str, Any]], target: list[dict[str, Any]]) -> None:
        """Copy the options of parameter groups, such as learning rates; subclasses of libraries call this."""
        for given, taking in zip(source, target, strict=True):
            taking.update({name: value for name, value in given.items() if name != "params"})


def _gradient(parameter: Any) -> Any:
    """Return what a parameter's gradients add up to; None without gradients."""
    return parameter.grad if parameter.grad is not None else getattr(parameter, "main_grad", None)
