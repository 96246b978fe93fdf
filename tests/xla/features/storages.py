"""Storages: resized, given to other tensors, copied, and outputs that share memory. Errors of torch are features, too."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

from tests.xla.features.feature import feature

if TYPE_CHECKING:
    from collections.abc import Callable


def outcomes(calls: dict[str, Callable[[torch.Tensor], Any]], dev: str, count: int = 6) -> list[Any]:
    """Return what each call gives for new numbers and what it makes of them, or its error."""
    found: list[Any] = []
    for name, call in calls.items():
        numbers = torch.arange(float(count)).to(dev)
        try:
            found += [name, call(numbers), numbers]
        except (RuntimeError, IndexError) as error:
            found += [name, str(error).partition(".")[0][:40]]
    return found


def grown(numbers: torch.Tensor, *views: torch.Tensor) -> Any:
    numbers[4:] = 7
    return [*views, numbers.untyped_storage().nbytes()]


@feature
def resized_in_the_storage(dev: str) -> Any:  # noqa: C901  a table
    def shrink(x: torch.Tensor) -> Any:
        return x[1:].resize_(3).add_(10)

    def reshape(x: torch.Tensor) -> Any:
        return x.view(-1).resize_(2, 2).fill_(9)

    def grow(x: torch.Tensor) -> Any:
        part = x[:2]
        return grown(x.mul_(2).resize_(9), part.add_(1))

    def grow_view(x: torch.Tensor) -> Any:
        part = x[3:].resize_(5)
        part[3:] = 1
        return part, part.storage_offset(), part.untyped_storage().nbytes()

    def transposed(x: torch.Tensor) -> Any:
        made = x.view(2, 3).t().resize_(2, 2)
        return made, made.stride()

    def larger_output(x: torch.Tensor) -> Any:
        part = x[:1]
        torch.add(torch.ones(9, device=dev), 1, out=x)
        return part

    def strided_output(x: torch.Tensor) -> Any:
        made = torch.mul(x.view(2, 3).t(), 2, out=torch.empty(0, device=dev))
        return made, made.stride()

    def of_storage(x: torch.Tensor) -> Any:
        x.untyped_storage().resize_(40)
        return grown(x.set_(x.untyped_storage()))

    def window(x: torch.Tensor) -> Any:
        made = torch.zeros(1, device=dev).set_(x.untyped_storage(), 4, (4,), (1,))
        made[2:] = 5
        return made, x.set_().shape

    def emptied(x: torch.Tensor) -> Any:
        x.untyped_storage().resize_(0)
        nbytes = x.untyped_storage().nbytes()
        x.untyped_storage().resize_(24)
        return x.fill_(3), nbytes

    def channels_last(x: torch.Tensor) -> Any:
        return x.resize_(1, 2, 1, 3, memory_format=torch.channels_last).stride()

    def short(x: torch.Tensor) -> Any:
        made = x.to(torch.int16)[:5].clone().resize_(7)[:5]
        return made, made.untyped_storage().nbytes()

    return outcomes({name: call for name, call in locals().items() if callable(call)}, dev)


@feature
def sizes_of_storages(dev: str) -> Any:
    x = torch.arange(4.0, device=dev)
    made = (
        x, x[1:], x.expand(2, 4), x + 1, x.to(torch.bfloat16), torch.empty_strided((2, 2), (5, 1), device=dev),
        torch.empty(0, device=dev), torch.ones(3, 2).t().to(dev), x.max(0)[0],
    )  # fmt: skip
    return [tensor.untyped_storage().nbytes() for tensor in made]


@feature
def in_place_with_larger_operands(dev: str) -> Any:
    large = torch.ones(3, 2, device=dev)
    names = (
        "add_", "mul_", "atan2_", "copysign_", "logical_and_", "logical_or_", "logical_xor_", "ldexp_", "hypot_", "xlogy_",
        "pow_", "float_power_", "floor_divide_", "eq_", "nextafter_", "heaviside_", "clamp_min_", "copy_",
    )  # fmt: skip
    calls: dict[str, Callable[[torch.Tensor], Any]] = {
        name: lambda x, name=name: getattr(x, name)(large) for name in names
    }
    calls["logical_and_ of numbers"] = lambda x: x.logical_and_(large[0])
    calls["addcmul_"] = lambda x: x.addcmul_(large, x)
    calls["ldexp_ of its size"] = lambda x: x.ldexp_(large[0])
    calls["out= of an operand"] = lambda x: torch.add(x, large, out=x)
    return outcomes(calls, dev, count=2)


@feature
def outputs_in_the_memory_of_operands(dev: str) -> Any:
    swap = torch.tensor([1, 0], device=dev)
    return outcomes(
        {
            "part": lambda x: torch.mul(x[:5], 2, out=x[1:]),
            "part of a sum": lambda x: torch.cumsum(x[:5], 0, out=x[1:]),
            "part of a clamp": lambda x: torch.clamp(x[1:], 1, 2, out=x[:5]),
            "all": lambda x: torch.add(x, 1, out=x),
            "all of a sum": lambda x: torch.cumsum(x, 0, out=x),
            "other part": lambda x: torch.mul(x[:3], 2, out=x[3:]),
            "gather": lambda x: torch.gather(x, 0, swap, out=x[:2]),
            "select": lambda x: torch.index_select(x, 0, swap, out=x[:2]),
            "cat": lambda x: torch.cat([x[:2], x[2:]], out=x),
            "expanded": lambda x: torch.add(x[:2], 1, out=x[:1].expand(2)),
            "transposed": lambda x: torch.add(x[:4].view(2, 2).t(), 1, out=x[:4].view(2, 2)),
        },
        dev,
    )


@feature
def assigned_to_itself(dev: str) -> Any:
    def assign(index: Any) -> Callable[[torch.Tensor], Any]:
        return lambda x: x.sum().__setitem__(index, x.sum()) or _assign(x.sum(), index)

    yes = torch.tensor([True], device=dev)[0]
    places: tuple[Any, ...] = ((), ..., None, True, False, (None, ...), yes)
    return outcomes({str(position): assign(place) for position, place in enumerate(places)}, dev)


def _assign(number: torch.Tensor, index: Any) -> torch.Tensor:
    number[index] = number
    return number


class Marked(torch.Tensor):
    pass


@feature
def shallow_copies(dev: str) -> Any:
    def change(tensor: torch.Tensor) -> Any:
        tensor.mark = [1]
        made = copy.copy(tensor)
        with torch.no_grad():
            made.add_(1)
        facts = type(made).__name__, made.mark, made.requires_grad, made.is_leaf, made.stride()
        return tensor, *facts, made.storage_offset()

    return outcomes(
        {
            "whole": change,
            "part": lambda x: change(x[1:4]),
            "transposed": lambda x: change(x.view(2, 3).t()),
            "leaf": lambda x: change(x.requires_grad_()),
            "result": lambda x: change(x.requires_grad_() * 2),
            "parameter": lambda x: change(torch.nn.Parameter(x)),
            "subclass": lambda x: change(x.as_subclass(Marked)),
        },
        dev,
    )
