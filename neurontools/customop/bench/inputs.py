"""Inputs of a benchmark: given one by one, by a shape for all, or swept over several sizes."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.customop.abi import DEVICE_NAMES
from neurontools.customop.checking.inputs import Pattern, parse_pattern
from neurontools.customop.probe import SAMPLE_INTEGER, SAMPLE_REAL
from neurontools.customop.runner import TensorInput, parse_input
from neurontools.customop.signature import TENSOR_KINDS
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.customop.package import OperatorEntry

Template = TensorInput | Pattern | float | int
Sizes = tuple[int, ...]
DEFAULT_SHAPES: tuple[Sizes, ...] = ((512, 512), (512 * 512,), (64, 64, 64), (16, 32, 32, 16))

_LETTERS = re.compile(r"(?P<letter>[A-Z])=(?P<sizes>.+)\Z")
_SIZE = re.compile(r"(?P<number>\d+)(?P<unit>[KM]?)\Z")
_SIZE_OF_INPUT = re.compile(r"(?:^|(?<=x))\d+[KM](?=[x:])")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20}


@dataclass(frozen=True, slots=True)
class Point:
    """One step of a sweep: sizes of letters, and the shape of tensors without one (None: found by trial)."""

    letters: tuple[tuple[str, int], ...] = ()
    shape: Sizes | None = None


def parse_template(text: str) -> Template:
    """Parse an input: `32x4096:float32[:seed]`, `4Kx1K:float32`, `NxM:float32`, `*:float32` or a number.

    Raises:
        UsageError: the text has another form.
    """
    text = _SIZE_OF_INPUT.sub(lambda found: str(_size(found[0], text)), text)
    if text.startswith("*") or any(letter.isupper() for letter in text):
        return parse_pattern(text)
    return parse_input(text)


def parse_shape(text: str) -> Sizes:
    """Parse `32x4096`, sizes with K or M, or `scalar`.

    Raises:
        UsageError: the text has another form.
    """
    return () if text == "scalar" else tuple(_size(word, text) for word in text.split("x"))


def parse_sweep(sweeps: Sequence[str], shape: str | None) -> tuple[Point, ...]:
    """Parse sweeps: `N=256,1024` for letters of inputs, `32x256,32x1024` for the shape of all tensors.

    Args:
        sweeps: the sweeps; several give all combinations.
        shape: the shape of all tensors, if given.

    Raises:
        UsageError: a sweep is invalid, or both a shape and a sweep of shapes are given.
    """
    letters: dict[str, list[int]] = {}
    shapes: list[Sizes | None] = [parse_shape(shape)] if shape else []
    for text in sweeps:
        found = _LETTERS.match(text)
        if found:
            letters[found["letter"]] = [_size(word, text) for word in found["sizes"].split(",")]
        elif shapes:
            raise UsageError(
                f"--sweep {text}: shapes are already given", "use either --shape or one --sweep of shapes"
            )
        else:
            shapes = [parse_shape(word) for word in text.split(",")]
    return tuple(
        Point(tuple(zip(letters, sizes, strict=True)), chosen)
        for chosen in shapes or [None]
        for sizes in itertools.product(*letters.values())
    )


def default_templates(entry: OperatorEntry, dtype: str) -> tuple[Template, ...]:
    """Return the default inputs of an operator: tensors of any shape, and numbers.

    Raises:
        UsageError: the device does not support the dtype.
    """
    if dtype not in DEVICE_NAMES:
        raise UsageError(f"--dtype {dtype}: not supported by the device", f"one of {', '.join(DEVICE_NAMES)}")
    return tuple(
        Pattern(None, dtype) if word in TENSOR_KINDS else SAMPLE_INTEGER if word == "int64" else SAMPLE_REAL
        for word in entry.parameters
    )


def bind(templates: Sequence[Template], point: Point, shape: Sizes) -> tuple[TensorInput | float | int, ...]:
    """Return inputs with the sizes of a point's letters, and `shape` for tensors of any shape.

    A tensor without a seed uses its position as the seed.

    Raises:
        UsageError: a letter has no size, or no input has a swept letter.
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
    """Return whether an input is a tensor of any shape."""
    return any(isinstance(value, Pattern) and value.dims is None for value in templates)


def _tensor(pattern: Pattern, letters: dict[str, int], shape: Sizes, seed: int) -> TensorInput:
    for letter in sorted(pattern.letters - letters.keys()):
        raise UsageError(f"{letter} of an input has no size", f"--sweep {letter}=256,1024,4096")
    return pattern.sized(letters, shape, seed)


def _size(word: str, text: str) -> int:
    found = _SIZE.match(word)
    if found is None:
        raise UsageError(f"invalid sizes {text!r}", "use e.g. 1024, 4K or 32x4096; for sweeps N=1K,4K")
    return int(found["number"]) * _UNITS[found["unit"]]
