"""Inputs of a check: patterns of shapes, and sizes that kernels often get wrong."""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.customop.abi import DEVICE_NAMES
from neurontools.customop.runner import TensorInput, check_below, parse_number
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Input = TensorInput | float | int
MAX_ELEMENTS = 1 << 17
_PATTERN = re.compile(
    r"(?P<dims>\*|scalar|(?:\d+|[A-Z])(?:x(?:\d+|[A-Z]))*):(?P<dtype>\w+)(?:%(?P<below>[1-9]\d*|[A-Z]))?\Z"
)
LETTERS = "ABCDEFGH"  # one for each dimension of a tensor
_MANY = 2  # number of dimensions up to which every size is tried in every dimension
_RANDOM_ELEMENTS = 1 << 14
_PRIMES = (3, 5, 7, 11, 2, 2, 3, 2)
_PIECES = (1023, 1024, 1025, 4095, 4097, 5000)  # around a 4 KiB buffer of floats, and the 16 KiB pool
_SMALL_DIM_MAX = 65535  # documented limit of a dimension if there are more than four
_LARGE_DIM = 70001  # above it: allowed if there are at most four
_LARGE_DIM_COUNT = 4
_FORM = (
    "inputs look like NxM:float32 (equal letters, equal sizes), 8x4:int32, N:int32%M (from 0 to M-1), *:float32 (any shape), "
    "or a number"
)


@dataclass(frozen=True, slots=True)
class Pattern:
    """The shapes of an input.

    Args:
        dims: sizes, and letters for free ones; None: any shape, the same for all such inputs.
        dtype: element type.
        below: integers are below this number, or below the size of a letter; None: 100.
    """

    dims: tuple[int | str, ...] | None
    dtype: str
    below: int | str | None = None

    def sized(self, sizes: dict[str, int], shape: tuple[int, ...], seed: int) -> TensorInput:
        """Return the input for sizes of its letters, or for the shape of `*`."""
        dims = (
            shape
            if self.dims is None
            else tuple(sizes[dim] if isinstance(dim, str) else dim for dim in self.dims)
        )
        below = sizes[self.below] if isinstance(self.below, str) else self.below
        return TensorInput(dims, self.dtype, seed, below)

    @property
    def letters(self) -> frozenset[str]:
        """The letters that need a size."""
        return frozenset(word for word in (*(self.dims or ()), self.below) if isinstance(word, str))


Value = Pattern | float | int


@dataclass(frozen=True, slots=True)
class Case:
    """Inputs for one call."""

    inputs: tuple[Input, ...]

    @property
    def elements(self) -> int:
        """Elements of all tensors together."""
        return sum(math.prod(value.sizes) for value in self.inputs if isinstance(value, TensorInput))

    @property
    def has_empty(self) -> bool:
        """Whether a tensor has no elements."""
        return any(0 in value.sizes for value in self.inputs if isinstance(value, TensorInput))

    @property
    def possible(self) -> bool:
        """Whether the inputs exist: an integer tensor with elements needs a bound above 0."""
        return all(
            value.below != 0 or 0 in value.sizes for value in self.inputs if isinstance(value, TensorInput)
        )

    @property
    def words(self) -> tuple[str, ...]:
        """The inputs in the notation of `neuron-customop run --input`."""
        return tuple(map(_word, self.inputs))


def parse_pattern(text: str) -> Value:
    """Parse an input of the command line: a pattern of shapes, or a number.

    Raises:
        UsageError: it is neither.
    """
    found = _PATTERN.match(text)
    if found is None:
        return parse_number(text, _FORM)
    if found["dtype"] not in DEVICE_NAMES:
        raise UsageError(
            f"input {text}: the device does not support dtype {found['dtype']}",
            f"one of {', '.join(DEVICE_NAMES)}",
        )
    below = found["below"] and _size(found["below"])
    check_below(text, found["dtype"], below)
    if found["dims"] == "*":
        return Pattern(None, found["dtype"], below)
    words = [] if found["dims"] == "scalar" else found["dims"].split("x")
    return Pattern(tuple(map(_size, words)), found["dtype"], below)


def _size(word: str) -> int | str:
    return int(word) if word.isdigit() else word


def cases(patterns: Sequence[Value], ranks: Sequence[int], count: int, seed: int) -> Iterator[Case]:
    """Yield inputs: first sizes that kernels often get wrong, then random ones.

    Args:
        patterns: the operator's inputs.
        ranks: numbers of dimensions for `*`.
        count: number of random cases per rank.
        seed: seed of random sizes and contents.
    """
    any_shape = any(isinstance(pattern, Pattern) and pattern.dims is None for pattern in patterns)
    seen = set()
    for rank in ranks if any_shape else (0,):
        bound = [_with_rank(pattern, rank) for pattern in patterns]
        letters = sorted({word for value in bound if isinstance(value, Pattern) for word in value.letters})
        for sizes in _assignments(len(letters), count, random.Random(f"{seed} {rank}")):  # noqa: S311
            case = case_of(bound, dict(zip(letters, sizes, strict=True)), seed)
            if case.possible and case.words not in seen and case.elements <= MAX_ELEMENTS * len(patterns):
                seen.add(case.words)
                yield case


def _with_rank(pattern: Value, rank: int) -> Value:
    if not isinstance(pattern, Pattern) or pattern.dims is not None:
        return pattern
    return Pattern(tuple(LETTERS[:rank]), pattern.dtype, pattern.below)


def case_of(patterns: Sequence[Value], sizes: dict[str, int], seed: int) -> Case:
    """Return the inputs for sizes of the letters; the position of a tensor is part of the seed of its contents."""
    return Case(
        tuple(
            value.sized(sizes, (), seed + position) if isinstance(value, Pattern) else value
            for position, value in enumerate(patterns)
        )
    )


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


def pattern_words(values: Sequence[Value]) -> str:
    """Return patterns in the notation of `check --input`, separated by spaces."""
    return " ".join(_pattern_word(value) if isinstance(value, Pattern) else repr(value) for value in values)


def _pattern_word(pattern: Pattern) -> str:
    dims = "*" if pattern.dims is None else "x".join(map(str, pattern.dims)) or "scalar"
    below = "" if pattern.below is None else f"%{pattern.below}"
    return f"{dims}:{pattern.dtype}{below}"


def _word(value: Input) -> str:
    if not isinstance(value, TensorInput):
        return repr(value)
    sizes = "x".join(map(str, value.sizes)) or "scalar"
    below = "" if value.below is None else f"%{value.below}"
    return f"{sizes}:{value.dtype}{below}:{value.seed}"
