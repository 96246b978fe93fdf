"""torch_xla.distributed.fsdp.wrap: which submodules are wrapped on their own."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch

from neurontools.compat.unsupported import missing_names

_FEWEST_PARAMETERS = 100_000_000
_NEVER_ALONE = frozenset({torch.nn.ModuleList, torch.nn.ModuleDict})
_WHOLE = frozenset({torch.nn.MultiheadAttention})


__getattr__ = missing_names(__name__)


def always_wrap_policy(*_: Any, **__: Any) -> bool:
    """Wrap every submodule."""
    return True


def transformer_auto_wrap_policy(
    module: torch.nn.Module,
    recurse: bool,
    unwrapped_params: int,  # torch_xla's signature
    transformer_layer_cls: Collection[type[torch.nn.Module]],
) -> bool:
    """Return whether to look into a module (`recurse`), or to wrap it: if it is of one of the classes."""
    return recurse or isinstance(module, tuple(transformer_layer_cls))


def size_based_auto_wrap_policy(
    module: torch.nn.Module,
    recurse: bool,
    unwrapped_params: int,
    min_num_params: int = _FEWEST_PARAMETERS,
    force_leaf_modules: Collection[type[torch.nn.Module]] = _WHOLE,
    exclude_wrap_modules: Collection[type[torch.nn.Module]] = _NEVER_ALONE,
) -> bool:
    """Return whether to look into a module (`recurse`), or to wrap it: if it has enough parameters that are not wrapped."""
    excluded = force_leaf_modules if recurse else exclude_wrap_modules
    return unwrapped_params >= min_num_params and not isinstance(module, tuple(excluded))


def recursive_wrap(
    module: torch.nn.Module,
    auto_wrap_policy: Callable[..., bool],
    wrapper_cls: Callable[..., torch.nn.Module],
    ignored_params: Collection[torch.nn.Parameter] = (),
    only_wrap_children: bool = False,
    **kwargs: Any,
) -> tuple[torch.nn.Module, int]:
    """Wrap the submodules that a policy chooses, innermost first.

    Args:
        module: wrapped too if the policy says so, unless `only_wrap_children`.
        auto_wrap_policy: takes `module`, `recurse` and `unwrapped_params`.
        wrapper_cls: takes a module and `kwargs`.
        ignored_params: parameters that do not count.
        only_wrap_children: leave the module itself as it is.
        **kwargs: for the wrapper.

    Returns:
        The module, and the number of parameters that were wrapped in this call.
    """
    ignored = set(ignored_params)
    count = sum(parameter.numel() for parameter in module.parameters() if parameter not in ignored)
    if not auto_wrap_policy(module=module, recurse=True, unwrapped_params=count):
        return module, 0
    total = 0
    for name, child in list(module.named_children()):
        wrapped, number = recursive_wrap(child, auto_wrap_policy, wrapper_cls, ignored_params, **kwargs)
        setattr(module, name, wrapped)
        total += number
    left = count - total
    if only_wrap_children or not auto_wrap_policy(module=module, recurse=False, unwrapped_params=left):
        return module, total
    return wrapper_cls(module, **kwargs), count
