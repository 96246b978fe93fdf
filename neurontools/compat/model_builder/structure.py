"""Inputs taken apart into tensors, and results put together, by structures that can be written as Python literals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurontools.compat.traced_results import Leaf

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import torch


class Flattener:
    """Makes the inputs of a NEFF from those of a model.

    Args:
        layout: the structure of the inputs, with numbers for the tensors.
        exclude: the numbers of tensors that the model does not use.
    """

    def __init__(self, layout: Any, exclude: Collection[int] | None = None) -> None:
        self.layout = layout
        self.exclude = exclude

    def __call__(self, inputs: Any) -> list[torch.Tensor]:
        """Return the tensors that the model uses."""
        tensors: dict[int, torch.Tensor] = {}
        _collect(self.layout, inputs, tensors)
        return [tensors[number] for number in sorted(set(tensors) - set(self.exclude or ()))]


class Packer:
    """Makes the result of a model from those of its NEFF.

    Args:
        layout: the structure of the result, with numbers for its parts.
        identifiers: for each part, the position of its tensor; -1 for constants.
        constants: the values of the parts that are constants.
    """

    def __init__(self, layout: Any, identifiers: Sequence[int], constants: Mapping[int, Any]) -> None:
        self.layout = layout
        self.identifiers = identifiers
        self.constants = constants

    def __call__(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Return the result."""
        return self._build(self.layout, tensors)

    def _build(self, layout: Any, tensors: Sequence[torch.Tensor]) -> Any:
        match layout:
            case tuple() | list():
                return type(layout)(self._build(item, tensors) for item in layout)
            case dict():
                return {key: self._build(item, tensors) for key, item in layout.items()}
        position = self.identifiers[layout]
        return self.constants[layout] if position < 0 else tensors[position]

    @classmethod
    def of(cls, structure: Any, aliased: Collection[int]) -> Packer:
        """Return the packer for a result of `traced_results.take_apart` without the tensors that hold state."""
        remaining = _without(structure, aliased)
        identifiers: list[int] = []
        constants: dict[int, Any] = {}
        layout = _numbered(remaining, identifiers, constants)
        tensors = sorted(identifier for identifier in identifiers if identifier >= 0)
        places = [tensors.index(identifier) if identifier >= 0 else -1 for identifier in identifiers]
        if aliased and len(identifiers) == 1:
            layout = 0
        return cls(layout, places, constants)


def _collect(layout: Any, value: Any, tensors: dict[int, torch.Tensor]) -> None:
    if isinstance(layout, tuple | list):
        for item, part in zip(layout, value, strict=True):
            _collect(item, part, tensors)
    elif isinstance(layout, dict):
        for key, item in layout.items():
            _collect(item, value[key], tensors)
    else:
        tensors[layout] = value


def _without(structure: Any, aliased: Collection[int]) -> Any:
    match structure:
        case tuple() | list() if not isinstance(structure, Leaf):
            kept = [item for item in structure if not (isinstance(item, Leaf) and item.position in aliased)]
            return type(structure)(_without(item, aliased) for item in kept)
        case dict():
            return {
                key: _without(item, aliased)
                for key, item in structure.items()
                if not (isinstance(item, Leaf) and item.position in aliased)
            }
    return structure


def _numbered(structure: Any, identifiers: list[int], constants: dict[int, Any]) -> Any:
    match structure:
        case Leaf():
            identifiers.append(structure.position)
        case tuple() | list():
            return type(structure)([_numbered(item, identifiers, constants) for item in structure])
        case dict():
            return {key: _numbered(item, identifiers, constants) for key, item in structure.items()}
        case _:
            constants[len(identifiers)] = structure
            identifiers.append(-1)
    return len(identifiers) - 1
