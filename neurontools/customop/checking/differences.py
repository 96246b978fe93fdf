"""Where two tensors differ, as text."""

from __future__ import annotations

from typing import Any

from neurontools.customop.marshalling import import_torch


def first_difference(left: Any, right: Any) -> str | None:
    """Return where the bytes of two tensors differ first, as `[2, 5]: 1.0 and 2.0`; None when they are the same."""
    torch = import_torch()
    if left.shape != right.shape or left.dtype != right.dtype:
        return f"{shape_words(left)} and {shape_words(right)}"
    raw = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[left.element_size()]
    unequal = (left.reshape(-1).view(raw) != right.reshape(-1).view(raw)).nonzero()
    if not len(unequal):
        return None
    flat = int(unequal[0])
    values = left.reshape(-1)[flat].item(), right.reshape(-1)[flat].item()
    ours, theirs = _apart(*values)
    return f"{_place(left, flat)}: {ours} and {theirs}"


def worst_difference(output: Any, expected: Any) -> str:
    """Return where a result is farthest from what it should be."""
    torch = import_torch()
    apart = (output.double() - expected.double()).abs()
    apart = torch.where(apart.isnan() & ~(output.isnan() & expected.isnan()), torch.inf, apart).nan_to_num(
        0.0, torch.inf
    )
    flat = int(apart.reshape(-1).argmax())
    ours, theirs = output.reshape(-1)[flat].item(), expected.reshape(-1)[flat].item()
    told = _apart(ours, theirs)
    return f"worst at {_place(output, flat)}: {told[0]}, the reference gives {told[1]}"


def _apart(left: float, right: float) -> tuple[str, str]:
    """Return two numbers with as many digits as it takes to tell them apart."""
    return next(
        (
            words
            for digits in (6, 9)
            if (words := (f"{left:.{digits}g}", f"{right:.{digits}g}"))[0] != words[1]
        ),
        (f"{left:.9g}", f"{right:.9g}"),
    )


def _place(tensor: Any, flat: int) -> str:
    place = []
    for size in reversed(tensor.shape):
        place.append(flat % size)
        flat //= size
    return str(place[::-1])


def shape_words(tensor: Any) -> str:
    """Return shape and dtype as `8x4:float32`."""
    sizes = "x".join(map(str, tensor.shape)) or "scalar"
    return f"{sizes}:{str(tensor.dtype).removeprefix('torch.')}"
