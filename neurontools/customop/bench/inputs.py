"""Inputs of a benchmark, given one by one or by a shape for all tensors."""

from __future__ import annotations

import re
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

_SIZE = re.compile(r"(?P<number>\d+)(?P<unit>[KM]?)\Z")
_SIZE_OF_INPUT = re.compile(r"(?:^|(?<=x))\d+[KM](?=[x:])")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20}


def parse_template(text: str) -> Template:
    """Parse an input: `32x4096:float32[:seed]`, `4Kx1K:float32`, `*:float32` or a number.

    Raises:
        UsageError: the text has another form.
    """
    text = _SIZE_OF_INPUT.sub(lambda size: str(_size(size[0], text)), text)
    return parse_pattern(text) if text.startswith("*") else parse_input(text)


def parse_shape(text: str) -> Sizes:
    """Parse `32x4096`, sizes with K or M, or `scalar`.

    Raises:
        UsageError: the text has another form.
    """
    return () if text == "scalar" else tuple(_size(word, text) for word in text.split("x"))


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


def bind(templates: Sequence[Template], shape: Sizes) -> tuple[TensorInput | float | int, ...]:
    """Return inputs with `shape` for tensors of any shape; a tensor without a seed uses its position as the seed."""
    return tuple(
        value.sized({}, shape, position) if isinstance(value, Pattern) else value
        for position, value in enumerate(templates)
    )


def wants_shape(templates: Sequence[Template]) -> bool:
    """Return whether an input is a tensor of any shape."""
    return any(isinstance(value, Pattern) for value in templates)


def _size(word: str, text: str) -> int:
    size = _SIZE.match(word)
    if size is None:
        raise UsageError(f"invalid sizes {text!r}", "use e.g. 1024, 4K or 32x4096")
    return int(size["number"]) * _UNITS[size["unit"]]
