"""Fully sharded data parallelism: a module whose parameters are divided among the workers (PyTorch/XLA, FSDP guide)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from neurontools.compat.collectives import all_reduce, clip_norm_
from neurontools.compat.torch_xla.distributed.fsdp.wrap import recursive_wrap
from neurontools.compat.unsupported import missing_names
from neurontools.xla import api
from neurontools.xla.distributed import collectives, workers

__getattr__ = missing_names(__name__)


class _Gather(torch.autograd.Function):  # type: ignore[misc]
    """Gathers a parameter from its parts; backwards, averages its gradient and keeps this worker's part."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, groups: Any, size: int) -> torch.Tensor:
        ctx.groups, ctx.size = groups, size
        return collectives.all_gather(part, 0, groups)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return collectives.reduce_scatter(gradient, "sum", 1.0 / ctx.size, 0, ctx.groups), None, None


class XlaFullyShardedDataParallel(torch.nn.Module):  # type: ignore[misc]
    """Wraps a module so that each worker keeps only its part of every parameter.

    The parts are flat and padded to the same length. They are what `parameters()` returns, and what an optimizer
    updates; call its `step`, not `xm.optimizer_step`, because the gradients are averaged already. Wrapped modules inside
    of the module keep their own parts.

    Args:
        module: its parameters are the same on all workers.
        compute_dtype: of the parameters while the module runs; that of the module by default.
        sharding_groups: ranks that divide the parameters among themselves; all workers by default.
        auto_wrap_policy: which submodules are wrapped first, as in `torch_xla.distributed.fsdp.wrap`. Checkpointed layers
            are computed again in the backward pass, and need their own wrapper for it.
        **options: the other options of torch_xla; when parameters are whole again is not modelled.
    """

    all_reduce_op = staticmethod(all_reduce)

    def __init__(
        self,
        module: torch.nn.Module,
        *,
        compute_dtype: torch.dtype | None = None,
        sharding_groups: Any = None,
        auto_wrap_policy: Callable[..., bool] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self._groups = sharding_groups or [list(range(workers.world_size()))]
        group = next((list(group) for group in self._groups if workers.rank() in group), None)
        if group is None:
            raise ValueError(f"rank {workers.rank()} is in none of the sharding_groups {self._groups}")
        self.rank, self.world_size = group.index(workers.rank()), len(group)
        self.compute_dtype = compute_dtype
        self.module = module
        self._shapes: dict[str, torch.Size] = {}
        if auto_wrap_policy is not None:
            inner = {"compute_dtype": compute_dtype, "sharding_groups": sharding_groups, **options}
            recursive_wrap(module, auto_wrap_policy, type(self), only_wrap_children=True, **inner)
        api.engine().sync()
        parts: dict[torch.nn.Parameter, torch.nn.Parameter] = {}
        for name, parameter in list(module.named_parameters(remove_duplicate=False)):
            if getattr(parameter, "_is_sharded", False):
                continue
            if parameter not in parts:
                parts[parameter] = self._part(parameter)
            self._shapes[name] = parameter.shape
            owner, _, attribute = name.rpartition(".")
            setattr(module.get_submodule(owner), attribute, parts[parameter])

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the wrapped module."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def __getitem__(self, key: Any) -> Any:
        """Return an item of the wrapped module, such as a layer of a Sequential."""
        return self.module[key]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module with whole parameters."""
        own = dict(self.module.named_parameters(remove_duplicate=False))
        gathered: dict[torch.nn.Parameter, torch.Tensor] = {}
        whole = {}
        for name, shape in self._shapes.items():
            part = own[name]
            if part not in gathered:
                flat = _Gather.apply(part, self._groups, self.world_size)[: shape.numel()].view(shape)
                gathered[part] = flat if self.compute_dtype is None else flat.to(self.compute_dtype)
            whole[name] = gathered[part]
        return torch.func.functional_call(self.module, whole, args, kwargs, tie_weights=False)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0, groups: Any = None) -> torch.Tensor:
        """Scale the gradients of all parts so that their norm is at most `max_norm`; return the norm before.

        Raises:
            ValueError: `norm_type` is not 2.
        """
        if norm_type != 2.0:
            raise ValueError(f"norm_type {norm_type} is not supported, use 2")
        gradients = [part.grad for part in self.parameters() if part.grad is not None]
        return clip_norm_(gradients, max_norm, (groups or self._groups,))

    def get_shard_metadata(self) -> dict[str, Any]:
        """Return the shapes of the whole parameters, and this worker's place among the parts."""
        shapes = {name: tuple(shape) for name, shape in self._shapes.items()}
        return {"shard_info": shapes, "rank": self.rank, "world_size": self.world_size}

    def _part(self, parameter: torch.nn.Parameter) -> torch.nn.Parameter:
        flat = parameter.detach().cpu().reshape(-1)
        padded = torch.nn.functional.pad(flat, [0, -flat.numel() % self.world_size])
        own = padded.chunk(self.world_size)[self.rank].clone().to(parameter.device)
        part = torch.nn.Parameter(own, requires_grad=parameter.requires_grad)
        part._is_sharded = True  # noqa: SLF001
        return part
