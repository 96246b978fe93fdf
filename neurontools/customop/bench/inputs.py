"""Inputs of a bench: given one by one, by a shape for all, or swept over several sizes."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.customop.checking.inputs import Pattern, parse_pattern
from neurontools.customop.dtypes import DEVICE_NAMES
from neurontools.customop.probe import MADE_UP_INTEGER, MADE_UP_REAL
from neurontools.customop.runner import TensorInput, parse_input
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.customop.manifest import OperatorEntry

Template = TensorInput | Pattern | float | int
Sizes = tuple[int, ...]
DEFAULT_SHAPES: tuple[Sizes, ...] = ((512, 512), (512 * 512,), (64, 64, 64), (16, 32, 32, 16))

_LETTERS = re.compile(r"(?P<letter>[A-Z])=(?P<sizes>.+)\Z")
_SIZE = re.compile(r"(?P<number>\d+)(?P<unit>[KM]?)\Z")
_SIZE_OF_INPUT = re.compile(r"(?:^|(?<=x))\d+[KM](?=[x:])")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20}


@dataclass(frozen=True, slots=True)
class Point:
    """One step of a sweep: sizes of letters, and the shape of tensors that have none of their own (None: tried out)."""

    letters: tuple[tuple[str, int], ...] = ()
    shape: Sizes | None = None


def parse_template(text: str) -> Template:
    """Read an input: `32x4096:float32[:seed]`, `4Kx1K:float32`, `NxM:float32`, `*:float32` or a number.

    Raises:
        UsageError: it is none of these.
    """
    text = _SIZE_OF_INPUT.sub(lambda found: str(_size(found[0], text)), text)
    if text.startswith("*") or any(letter.isupper() for letter in text):
        return parse_pattern(text)
    return parse_input(text)


def parse_shape(text: str) -> Sizes:
    """Read `32x4096`, sizes with K or M, or `scalar`.

    Raises:
        UsageError: it is none of these.
    """
    return () if text == "scalar" else tuple(_size(word, text) for word in text.split("x"))


def parse_sweep(sweeps: Sequence[str], shape: str | None) -> tuple[Point, ...]:
    """Read what is swept: `N=256,1024` for letters of inputs, `32x256,32x1024` for the shape of all tensors.

    Args:
        sweeps: the sweeps; of several, all combinations are made.
        shape: the shape of all tensors, if one is given.

    Raises:
        UsageError: one makes no sense, or a shape and a sweep of shapes are both given.
    """
    letters: dict[str, list[int]] = {}
    shapes: list[Sizes | None] = [parse_shape(shape)] if shape else []
    for text in sweeps:
        found = _LETTERS.match(text)
        if found:
            letters[found["letter"]] = [_size(word, text) for word in found["sizes"].split(",")]
        elif shapes:
            raise UsageError(
                f"--sweep {text}: shapes are given already", "give --shape, or one --sweep of shapes"
            )
        else:
            shapes = [parse_shape(word) for word in text.split(",")]
    return tuple(
        Point(tuple(zip(letters, sizes, strict=True)), chosen)
        for chosen in shapes or [None]
        for sizes in itertools.product(*letters.values())
    )


def default_templates(entry: OperatorEntry, dtype: str) -> tuple[Template, ...]:
    """Return inputs for an operator of which none are given: tensors of any shape, and numbers.

    Raises:
        UsageError: the device has no such dtype.
    """
    if dtype not in DEVICE_NAMES:
        raise UsageError(
            f"--dtype {dtype}: the device has no such dtype", f"one of {', '.join(DEVICE_NAMES)}"
        )
    return tuple(
        Pattern(None, dtype)
        if word in {"tensor", "const-tensor"}
        else MADE_UP_INTEGER
        if word == "int64"
        else MADE_UP_REAL
        for word in entry.parameters
    )


def bind(templates: Sequence[Template], point: Point, shape: Sizes) -> tuple[TensorInput | float | int, ...]:
    """Return inputs with their sizes; the position of a tensor is the seed of its contents, unless it has one.

    Args:
        templates: the inputs.
        point: sizes of their letters.
        shape: the shape of tensors that may have any.

    Raises:
        UsageError: a letter has no size, or no input has a letter that is swept.
    """
    sizes = dict(point.letters)
    used = {letter for value in templates if isinstance(value, Pattern) for letter in value.letters}
    for letter in sizes:
        if letter not in used:
            raise UsageError(f"--sweep {letter}=...: no input has {letter}", f"--input {letter}x1024:float32")
    return tuple(
        _tensor(value, sizes, shape, position) if isinstance(value, Pattern) else value
        for position, value in enumerate(templates)
    )


def wants_shape(templates: Sequence[Template]) -> bool:
    """Return whether a tensor among the inputs may have any shape."""
    return any(isinstance(value, Pattern) and value.dims is None for value in templates)


def _tensor(pattern: Pattern, letters: dict[str, int], shape: Sizes, seed: int) -> TensorInput:
    for letter in sorted(pattern.letters - letters.keys()):
        raise UsageError(f"{letter} of an input has no size", f"--sweep {letter}=256,1024,4096")
    return pattern.sized(letters, shape, seed)


def _size(word: str, text: str) -> int:
    found = _SIZE.match(word)
    if found is None:
        raise UsageError(
            f"sizes {text!r} make no sense", "sizes look like 1024, 4K or 32x4096; sweeps like N=1K,4K"
        )
    return int(found["number"]) * _UNITS[found["unit"]]
