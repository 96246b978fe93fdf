"""Results of traced functions: taken apart into tensors, and put together again in TorchScript.

torch.jit.trace knows tensors, tuples, and lists and dicts whose values have one type. Other structures, such as the nested
outputs of transformers' models, are put together by TorchScript code around the traced module.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from neurontools.compat.traced_model import TracedModelError

if TYPE_CHECKING:
    from collections.abc import Sequence

_TENSOR = "Tensor"
_CONSTANTS = (bool, int, float, str, type(None))


class Leaf(NamedTuple):
    """The place of a tensor in a structure."""

    position: int


def take_apart(result: Any) -> tuple[list[torch.Tensor], Any]:
    """Return the tensors of a result, and its structure with a `Leaf` for each of them.

    Mappings become dicts, named tuples become tuples. Dataclasses, such as the outputs of transformers' models, lose
    fields that are None. If all others are tensors, they become dicts; nested ones, and those within a tuple, become
    tuples. Source: AWS Neuron samples, which index the traced ViT by name and the traced CLIP by position.

    Raises:
        TracedModelError: it holds something that a traced model cannot return, or no tensor.
    """
    tensors: list[torch.Tensor] = []
    structure = _take_apart(result, tensors)
    if not tensors:
        raise TracedModelError("the traced function returns no tensor", "return tensors")
    return tensors, structure


def _take_apart(value: Any, tensors: list[torch.Tensor], *, in_tuple: bool = False) -> Any:
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return Leaf(len(tensors) - 1)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        present = {name: item for name, item in fields.items() if item is not None}
        is_flat = all(isinstance(item, torch.Tensor) for item in present.values())
        return _take_apart(present if is_flat and not in_tuple else tuple(present.values()), tensors)
    if isinstance(value, Mapping):
        return _take_fields(value, tensors)
    if isinstance(value, tuple):
        return tuple(_take_apart(item, tensors, in_tuple=True) for item in value)
    if isinstance(value, list):
        return [_take_apart(item, tensors) for item in value]
    if isinstance(value, _CONSTANTS):
        return value
    raise TracedModelError(
        f"the traced function returns a value of type {type(value).__name__}",
        "return tensors, numbers, texts, and tuples, lists, dicts or dataclasses of them",
    )


def _take_fields(value: Mapping[Any, Any], tensors: list[torch.Tensor]) -> dict[str, Any]:
    if any(not isinstance(key, str) for key in value):
        raise TracedModelError(
            "the traced function returns a dict with keys other than texts", "name its parts"
        )
    return {str(key): _take_apart(item, tensors) for key, item in value.items()}


def put_together(structure: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """Return a structure with its tensors."""
    match structure:
        case Leaf():
            return tensors[structure.position]
        case dict():
            return {key: put_together(item, tensors) for key, item in structure.items()}
        case tuple() | list():
            return type(structure)(put_together(item, tensors) for item in structure)
    return structure


def is_traceable(structure: Any) -> bool:
    """Return whether torch.jit.trace can return a structure."""
    return _type_of(structure) is not None


def _type_of(structure: Any) -> str | None:
    """Return the type of a structure as torch.jit.trace infers it, None if it cannot."""
    match structure:
        case Leaf():
            return _TENSOR
        case tuple():
            parts = [_type_of(item) for item in structure]
            return None if not parts or None in parts else f"Tuple[{', '.join(map(str, parts))}]"
        case list() | dict():
            items = structure.values() if isinstance(structure, dict) else structure
            kinds = {_type_of(item) for item in items}
            return None if len(kinds) != 1 or None in kinds else f"{type(structure).__name__}[{kinds.pop()}]"
    return None


class _Structured(torch.nn.Module):  # type: ignore[misc]
    """A traced module inside of the code that puts its results together."""

    def __init__(self, model: torch.jit.ScriptModule) -> None:
        super().__init__()
        self.model = model


def with_structure(model: torch.jit.ScriptModule, structure: Any) -> torch.jit.ScriptModule:
    """Return a module that calls a traced one, which returns a list of tensors, and puts its results together."""
    arguments = model._c._get_method("forward").schema.arguments[1:]  # noqa: SLF001 # no public access
    writer = _Writer()
    result = writer.expression(structure)
    taken = "".join(f", {argument.name}: {argument.type.annotation_str}" for argument in arguments)
    lines = [
        f"def forward(self{taken}) -> {_annotation(structure)}:",
        f"    results = self.model({', '.join(argument.name for argument in arguments)})",
        *(f"    {line}" for line in writer.lines),
        f"    return {result}",
    ]
    outer = torch.jit.script(_Structured(model))
    outer.define("\n".join(lines) + "\n")
    return outer


class _Writer:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def expression(self, structure: Any) -> str:
        """Return an expression for a structure; containers of mixed types are made by `lines` before it."""
        match structure:
            case Leaf():
                return f"results[{structure.position}]"
            case tuple():
                return "(" + "".join(f"{self.expression(item)}, " for item in structure) + ")"
            case dict() | list():
                return self._container(structure)
        return repr(structure)

    def _container(self, structure: dict[str, Any] | list[Any]) -> str:
        if isinstance(structure, dict):
            parts = [f"[{key!r}] = {self.expression(item)}" for key, item in structure.items()]
        else:
            parts = [f".append({self.expression(item)})" for item in structure]
        name = f"part_{len(self.lines)}"
        empty = "{}" if isinstance(structure, dict) else "[]"
        self.lines.append(f"{name}: {_annotation(structure)} = {empty}")
        self.lines += [name + part for part in parts]
        return name


def _annotation(structure: Any) -> str:
    match structure:
        case Leaf():
            return _TENSOR
        case tuple():
            return f"Tuple[{', '.join(map(_annotation, structure)) or '()'}]"
        case dict():
            return "Dict[str, Any]"
        case list():
            return "List[Any]"
    return "Any"
