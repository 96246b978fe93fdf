"""Tensors in nested structures: found, replaced, moved between the CPU and the device."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch

from neurontools.xla.device_name import device_name

Predicate = Callable[[Any], bool]


def visit(value: Any, is_wanted: Predicate, act: Callable[[Any], Any]) -> None:
    """Call a function for each wanted object in containers and attributes, once per object."""
    seen: set[int] = set()

    def walk(item: Any) -> None:
        if id(item) in seen:
            return
        seen.add(id(item))
        if is_wanted(item):
            act(item)
        else:
            for part in _parts(item):
                walk(part)

    walk(value)


def replace(value: Any, is_wanted: Predicate, convert: Callable[[Any], Any]) -> Any:
    """Return a copy of a structure with each wanted object replaced; an object that occurs twice stays one object.

    Containers keep their types. Objects with attributes are copied, their attributes replaced.
    """
    done: dict[int, Any] = {}
    kept: list[Any] = []  # keeps the ids in `done` valid

    def walk(item: Any) -> Any:
        if id(item) in done:
            return done[id(item)]
        kept.append(item)
        if is_wanted(item):
            made = convert(item)
        elif isinstance(item, tuple):
            parts = [walk(part) for part in item]
            made = type(item)(*parts) if hasattr(item, "_fields") else type(item)(parts)
        elif isinstance(item, list | set | dict) or _has_attributes(item):
            made = done[id(item)] = copy.copy(item)
            _refill(made, item, walk)
        else:
            made = item
        done[id(item)] = made
        return made

    return walk(value)


def to_cpu(value: Any) -> Any:
    """Return a structure with its tensors on the CPU."""
    return replace(value, is_tensor, lambda tensor: tensor.cpu())


def to_device(value: Any, device: torch.device | str) -> Any:
    """Return a structure with its CPU tensors on a device."""
    return replace(
        value, lambda item: is_tensor(item) and item.device.type == "cpu", lambda tensor: tensor.to(device)
    )


def is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor."""
    return isinstance(value, torch.Tensor)


def is_device_tensor(value: Any) -> bool:
    """Return whether a value is a tensor of the lazy device."""
    return isinstance(value, torch.Tensor) and value.device.type == device_name()


def _has_attributes(item: Any) -> bool:
    # Modules own their parameters: a copy would train others than the optimizer's.
    return hasattr(item, "__dict__") and not callable(item) and not isinstance(item, type)


def _parts(item: Any) -> list[Any]:
    if isinstance(item, Mapping):
        return [*item.keys(), *item.values()]
    if isinstance(item, list | tuple | set):
        return list(item)
    return list(vars(item).values()) if _has_attributes(item) else []


def _refill(made: Any, item: Any, walk: Callable[[Any], Any]) -> None:
    if isinstance(item, dict):
        for key, part in item.items():
            made[walk(key)] = walk(part)
    elif isinstance(item, list):
        made[:] = [walk(part) for part in item]
    elif isinstance(item, set):
        made.clear()
        made.update(walk(part) for part in item)
    else:
        for name, part in vars(item).items():
            made.__dict__[name] = walk(part)
