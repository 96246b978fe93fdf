from __future__ import annotations

import numpy as np
import pytest

from neurontools.nki.context import ElementAccess
from neurontools.nki.locations import UserLine
from neurontools.nki.memory import Allocation, MemoryRegion
from neurontools.nki.regions import Boxes, box_of, byte_numbers

_TENSOR = Allocation(MemoryRegion.shared_hbm, (4, 6, 8), "float32", UserLine("kernel.py", 1))


def _access(
    offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str = "float32"
) -> ElementAccess:
    return ElementAccess(_TENSOR, offset, shape, strides, dtype)


@pytest.mark.parametrize(
    ("access", "low", "high", "is_exact"),
    [
        (_access(0, (4, 6, 8), (48, 8, 1)), (0, 0, 0), (4, 6, 8), True),
        (_access(48 + 16 + 2, (2, 3, 4), (48, 8, 1)), (1, 2, 2), (3, 5, 6), True),
        (_access(0, (192,), (1,)), (0, 0, 0), (4, 6, 8), True),
        (_access(48, (16,), (1,)), (1, 0, 0), (2, 2, 8), True),
        (_access(0, (6, 4), (8, 2)), (0, 0, 0), (1, 6, 7), False),
        (_access(4, (8,), (1,)), (0, 0, 0), (1, 2, 8), False),
        (_access(8, (5, 3), (0, 1)), (0, 1, 0), (1, 2, 3), True),
    ],
)
def test_the_box_of_an_access(
    access: ElementAccess, low: tuple[int, ...], high: tuple[int, ...], is_exact: bool
) -> None:
    assert box_of(access) == (low, high, is_exact)


def test_the_box_contains_every_element_of_any_access() -> None:
    generator = np.random.default_rng(0)
    for _ in range(300):
        shape = tuple(int(size) for size in generator.integers(1, 4, 3))
        strides = tuple(int(step) for step in generator.integers(0, 20, 3))
        span = sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
        access = _access(int(generator.integers(0, 192 - span)), shape, strides)
        box = box_of(access)
        elements = np.unique(byte_numbers(access) // 4)
        inside = np.unravel_index(elements, _TENSOR.shape)
        for index, low, high in zip(inside, box.low, box.high, strict=True):
            assert index.min() >= low
            assert index.max() < high
        if box.is_exact:
            assert elements.size == np.prod(np.subtract(box.high, box.low))


def test_bytes_of_another_type() -> None:
    assert byte_numbers(_access(3, (2,), (2,), "int8")).tolist() == [3, 5]
    assert byte_numbers(_access(1, (1,), (1,))).tolist() == [4, 5, 6, 7]


def test_boxes_know_which_share_elements() -> None:
    boxes = Boxes()
    whole = boxes.number(_access(0, (4, 6, 8), (48, 8, 1)))
    parts = [boxes.number(_access(48 * row, (6, 8), (8, 1))) for row in range(4)]
    odd = [boxes.number(_access(48 * row + 8, (2, 8), (8, 1))) for row in range(4)]
    assert boxes.number(_access(0, (192,), (1,))) == whole
    assert sorted(boxes.overlapping[parts[1]]) == sorted([whole, parts[1], odd[1]])
    assert sorted(boxes.covered[whole]) == sorted([whole, *parts, *odd])
    assert boxes.covered[odd[2]] == [odd[2]]
