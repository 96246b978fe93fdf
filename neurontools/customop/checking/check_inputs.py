"""Inputs to check an operator with: patterns of shapes, and the sizes that kernels get wrong."""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.customop.dtypes import DEVICE_NAMES
from neurontools.customop.runner import TensorInput
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Input = TensorInput | float | int

MAX_ELEMENTS = 1 << 17
_PATTERN = re.compile(r"(?P<dims>\*|scalar|(?:\d+|[A-Z])(?:x(?:\d+|[A-Z]))*):(?P<dtype>\w+)\Z")
_LETTERS = "ABCDEFGH"  # as many as a tensor has dimensions at most
_MANY = 2  # dimensions up to which every size is tried in every place
_RANDOM_ELEMENTS = 1 << 14
_PRIMES = (3, 5, 7, 11, 2, 2, 3, 2)
_PIECES = (1023, 1024, 1025, 4095, 4097, 5000)  # around a 4 KiB buffer of floats, and the 16 KiB pool
_SMALL_DIM_MAX = 65535  # customops.md section 5: the limit of a dimension where there are more than four
_LARGE_DIM = 70001  # above it: allowed where there are at most four
_LARGE_DIM_COUNT = 4
_FORM = (
    "inputs look like NxM:float32 (equal letters, equal sizes), 8x4:int32, *:float32 (any shape), or a number"
)


@dataclass(frozen=True, slots=True)
class Pattern:
    """The shapes of an input.

    Args:
        dims: sizes, and letters for those that may be anything; None: any shape, the same for all such inputs.
        dtype: element type.
    """

    dims: tuple[int | str, ...] | None
    dtype: str


@dataclass(frozen=True, slots=True)
class Case:
    """Inputs for one call."""

    inputs: tuple[Input, ...]

    @property
    def elements(self) -> int:
        """Elements of all tensors together."""
        return sum(math.prod(value.sizes) for value in self.inputs if isinstance(value, TensorInput))

    @property
    def words(self) -> tuple[str, ...]:
        """The inputs as `neuron-customop run --input` takes them."""
        return tuple(map(_word, self.inputs))


def parse_pattern(text: str) -> Pattern | float | int:
    """Read an input of the command line: a pattern of shapes, or a number.

    Raises:
        UsageError: it is neither.
    """
    found = _PATTERN.match(text)
    if found is None:
        for kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                continue
        raise UsageError(f"input {text} makes no sense", _FORM)
    if found["dtype"] not in DEVICE_NAMES:
        raise UsageError(
            f"input {text}: no dtype {found['dtype']} on the device", f"one of {', '.join(DEVICE_NAMES)}"
        )
    if found["dims"] == "*":
        return Pattern(None, found["dtype"])
    words = [] if found["dims"] == "scalar" else found["dims"].split("x")
    return Pattern(tuple(int(word) if word.isdigit() else word for word in words), found["dtype"])


def cases(
    patterns: Sequence[Pattern | float | int], ranks: Sequence[int], count: int, seed: int
) -> Iterator[Case]:
    """Yield inputs: first the sizes that kernels get wrong, then random ones.

    Args:
        patterns: the operator's inputs.
        ranks: numbers of dimensions that `*` stands for, one after the other.
        count: how many random ones for each rank.
        seed: decides the random sizes and all contents.
    """
    any_shape = any(isinstance(pattern, Pattern) and pattern.dims is None for pattern in patterns)
    seen = set()
    for rank in ranks if any_shape else (0,):
        bound = [_with_rank(pattern, rank) for pattern in patterns]
        letters = sorted(
            {
                dim
                for pattern in bound
                if isinstance(pattern, Pattern)
                for dim in pattern.dims or ()
                if isinstance(dim, str)
            }
        )
        for sizes in _assignments(len(letters), count, random.Random(f"{seed} {rank}")):  # noqa: S311
            case = _case(bound, dict(zip(letters, sizes, strict=True)), seed)
            if case.words not in seen and case.elements <= MAX_ELEMENTS * len(patterns):
                seen.add(case.words)
                yield case


def _with_rank(pattern: Pattern | float, rank: int) -> Pattern | float | int:
    if not isinstance(pattern, Pattern) or pattern.dims is not None:
        return pattern
    return Pattern(tuple(_LETTERS[:rank]), pattern.dtype)


def _case(patterns: Sequence[Pattern | float | int], sizes: dict[str, int], seed: int) -> Case:
    made: list[Input] = []
    for position, pattern in enumerate(patterns):
        if isinstance(pattern, Pattern):
            dims = (dim if isinstance(dim, int) else sizes[dim] for dim in pattern.dims or ())
            made.append(TensorInput(tuple(dims), pattern.dtype, seed + position))
        else:
            made.append(pattern)
    return Case(tuple(made))


def _assignments(count: int, extra: int, generator: random.Random) -> Iterator[tuple[int, ...]]:
    if count == 0:
        yield ()
        return
    primes = _PRIMES * (count // len(_PRIMES) + 1)
    yield (8,) * min(count, 2) + (2,) * max(count - 2, 0)
    yield (1,) * count
    yield tuple(primes[:count])
    for place in range(count):
        ones = [1] * count
        for size in (*_PIECES, 0) if count <= _MANY else (1025, 0):
            yield (*ones[:place], size, *ones[place + 1 :])
        if count <= _MANY:
            yield tuple(0 if index == place else primes[index] for index in range(count))
            yield tuple(37 if index == place else primes[index] for index in range(count))
    yield (*(1,) * (count - 1), _SMALL_DIM_MAX)
    if count <= _LARGE_DIM_COUNT:
        yield (*(1,) * (count - 1), _LARGE_DIM)
    largest = max(2, int(_RANDOM_ELEMENTS ** (1 / count)))
    for _ in range(extra if count <= _MANY else extra // 4):
        yield tuple(round(math.exp(generator.uniform(0, math.log(largest)))) for _ in range(count))


def _word(value: Input) -> str:
    if not isinstance(value, TensorInput):
        return repr(value)
    sizes = "x".join(map(str, value.sizes)) or "scalar"
    return f"{sizes}:{value.dtype}:{value.seed}"
