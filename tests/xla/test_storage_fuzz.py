"""Random programs that resize tensors and storages, take views and write give what they give on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neurontools.xla import api

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.xla.conftest import InMemoryAccelerator

SHAPES = ((0,), (2,), (3,), (5,), (2, 2), (3, 2), (2, 4), ())


def grow_zeroed(tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Resize a tensor, and set what its storage has got, which torch leaves as it is."""
    before = tensor.untyped_storage().nbytes()
    tensor.resize_(shape)
    zero_from(tensor, before)


def zero_from(tensor: torch.Tensor, nbytes: int) -> None:
    storage = tensor.untyped_storage()
    first, size = nbytes // tensor.itemsize, storage.nbytes() // tensor.itemsize
    if size > first:
        torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
            storage, first, (size - first,), (1,)
        ).zero_()


def set_window(target: torch.Tensor, source: torch.Tensor, offset: int, shape: tuple[int, ...]) -> None:
    before = source.untyped_storage().nbytes()
    strides = torch.empty(shape, device="meta").stride()
    target.set_(source.untyped_storage(), offset, shape, strides)
    zero_from(source, before)


def grow_storage(tensor: torch.Tensor, elements: int) -> None:
    storage = tensor.untyped_storage()
    before = storage.nbytes()
    storage.resize_(max(before, elements * 4))
    zero_from(tensor, before)


# Every operation takes two tensors, a number and a shape, and returns what joins the pool, or None.
OPERATIONS: list[Callable[[torch.Tensor, torch.Tensor, int, tuple[int, ...]], Any]] = [
    lambda a, b, n, shape: grow_zeroed(a, shape),
    lambda a, b, n, shape: grow_zeroed(a, tuple(b.shape)),
    lambda a, b, n, shape: set_window(a, b, n % 3, shape),
    lambda a, b, n, shape: grow_storage(a, n),
    lambda a, b, n, shape: a.set_(b),
    lambda a, b, n, shape: torch.add(b, n, out=a) if a.numel() == 0 else None,
    lambda a, b, n, shape: a.add_(n),
    lambda a, b, n, shape: a.fill_(n),
    lambda a, b, n, shape: a[n % 2 :] if a.dim() else None,
    lambda a, b, n, shape: a.t() if a.dim() == 2 else None,
    lambda a, b, n, shape: a.detach(),
    lambda a, b, n, shape: a * 2,
    lambda a, b, n, shape: a.view(-1) if torch._C.TensorBase.is_contiguous(a) else None,
]
steps = st.lists(
    st.tuples(
        st.integers(-2, len(OPERATIONS) - 1),
        st.integers(0, 20),
        st.integers(0, 20),
        st.integers(0, 9),
        st.sampled_from(SHAPES),
    ),
    min_size=1,
    max_size=20,
)


def run(program: list[Any], device: str) -> list[Any]:
    pool = [
        torch.arange(6.0).view(2, 3).to(device),
        torch.arange(4.0).to(device),
        torch.empty(0, device=device),
    ]
    seen: list[Any] = []
    for operation, first, second, number, shape in program:
        a, b = pool[first % len(pool)], pool[second % len(pool)]
        if operation == -2 and device == "xla":
            api.mark_step()
        elif operation == -1:
            seen.append(a.tolist())
        elif operation >= 0:
            made = OPERATIONS[operation](a, b, number, shape)
            if made is not None and len(pool) < 12:
                pool.append(made)
    return seen + [
        (tensor.stride(), tensor.storage_offset(), tensor.untyped_storage().nbytes(), tensor.tolist())
        for tensor in pool
    ]


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@settings(max_examples=80, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=steps)
def test_random_changes_of_storages_give_the_same_as_on_the_cpu(
    machine: InMemoryAccelerator, program: list[Any]
) -> None:
    wanted = repr(run(program, "cpu"))
    for _ in range(2):  # learned, then replayed
        assert repr(run(program, "xla")) == wanted
        api.mark_step()
    assert api.engine().memory(0).used_bytes == 0
