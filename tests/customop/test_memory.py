"""Memory of tensors: read where they lie, results that stay there, temporaries in the output's place, forks, limits."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest
import torch

from neurontools.customop import arena
from neurontools.customop.errors import NeuronCustomOpError
from neurontools.customop.executors import WorkerExecutor
from neurontools.customop.operation import CustomOperator
from neurontools.customop.torch_operators import Caller, device_resident, is_device_resident

Find = Callable[[str], CustomOperator]


@pytest.fixture
def call(operation: Find) -> Callable[..., torch.Tensor]:
    callers: dict[str, Caller] = {}

    def run(name: str, *arguments: object) -> torch.Tensor:
        if name not in callers:
            callers[name] = Caller(operation(name))
        return callers[name](*arguments)

    return run


@pytest.fixture
def copies(operation: Find) -> Callable[[str], int]:
    """Return how many tensors were copied to the worker of a library so far."""

    def count(name: str) -> int:
        executor = operation(name).executor
        assert isinstance(executor, WorkerExecutor)
        session = executor._session
        return session.staging.copied_in if session else 0

    return count


@pytest.fixture(autouse=True)
def own_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Memory that only this test uses, whatever libraries other tests loaded; nothing of it stays."""
    with monkeypatch.context() as patch:
        patch.setattr(arena, "_arenas", [])
        yield
        gc.collect()
        assert arena._current() is None


@pytest.mark.parametrize("sizes", [(4, 4), (1,), (3, 5), (1024,), (1025,), (300_000,), ()], ids=str)
def test_resident_tensors_are_read_and_written_in_place(
    call: Callable[..., torch.Tensor], copies: Callable[[str], int], sizes: tuple[int, ...]
) -> None:
    x = torch.randn(sizes)
    there = device_resident(x.reshape(-1))
    assert is_device_resident(there)
    assert not is_device_resident(x)
    y = call("memory::sum", there, there)
    z = call("memory::sum", y, there)
    assert copies("memory::sum") == 0
    assert is_device_resident(y)
    assert is_device_resident(z)
    assert torch.equal(z, (x + x + x).reshape(-1))


def test_results_of_ordinary_tensors_are_ordinary(call: Callable[..., torch.Tensor]) -> None:
    y = call("memory::sum", torch.rand(5), torch.rand(5))
    assert not is_device_resident(y)
    assert is_device_resident(call("memory::sum", torch.rand(5), device_resident(y)))


def test_a_resident_tensor_is_itself(call: Callable[..., torch.Tensor]) -> None:
    x = device_resident(torch.rand(9))
    assert device_resident(x) is x
    assert device_resident(torch.empty(0, 3)).shape == (0, 3)
    assert call("memory::sum", torch.empty(0), torch.empty(0)).shape == (0,)


def test_views_of_resident_tensors_are_right(
    call: Callable[..., torch.Tensor], copies: Callable[[str], int]
) -> None:
    x = device_resident(torch.arange(40.0))
    for view in (x[:10], x[30:], x[::4], x[11:21], x.flip(0)[:10]):
        assert torch.equal(call("memory::sum", view, view), 2 * view.clone())
    before = copies("memory::sum")
    call("memory::sum", x[30:], x[30:])  # ends where its block ends
    assert copies("memory::sum") == before


@pytest.mark.parametrize(("first", "last"), [(0, 10), (11, 21), (0, 39)])
def test_a_view_that_does_not_end_with_its_block_is_copied_in_front_of_a_guard_page(
    call: Callable[..., torch.Tensor], copies: Callable[[str], int], first: int, last: int
) -> None:
    x = device_resident(torch.arange(40.0))
    before = copies("memory::sum")
    call("memory::sum", x[first:last], x)
    assert copies("memory::sum") == before + 1
    call("memory::sum", x, x)
    assert copies("memory::sum") == before + 1


def test_what_a_kernel_may_write_to_is_copied(call: Callable[..., torch.Tensor]) -> None:
    x = device_resident(torch.arange(8.0))
    assert torch.equal(call("memory::writes", x), 2 * torch.arange(8.0))
    assert torch.equal(x, torch.arange(8.0))


def test_a_kernel_cannot_write_to_a_constant_resident_tensor(call: Callable[..., torch.Tensor]) -> None:
    x = device_resident(torch.arange(8.0))
    with pytest.raises(NeuronCustomOpError, match="const: write to argument 0"):
        call("faults::fault", x, torch.zeros(8), 1)
    assert torch.equal(x, torch.arange(8.0))
    assert torch.equal(call("faults::copy", x), x)


def test_results_outlive_the_worker_that_made_them(call: Callable[..., torch.Tensor]) -> None:
    x = device_resident(torch.arange(8.0))
    y = call("faults::copy", x)
    with pytest.raises(NeuronCustomOpError):
        call("faults::fault", x, torch.zeros(8), 60)
    assert torch.equal(y, torch.arange(8.0))
    assert torch.equal(call("faults::copy", y), y)


@pytest.mark.parametrize(("which", "expected"), [(0, 7.0), (1, 0.0), (2, 7.0), (3, 7.0), (4, 0.0)])
def test_temporaries_of_the_output_s_size(
    call: Callable[..., torch.Tensor], which: int, expected: float
) -> None:
    x = torch.arange(100.0)
    if which == 3:
        call("memory::temporaries", x, 2)  # it keeps its first temporary
        call("memory::sum", x, x)
    assert torch.equal(call("memory::temporaries", x, which), x + expected)


def test_a_signature_is_prepared_for_each_number_and_dtype(call: Callable[..., torch.Tensor]) -> None:
    x = torch.arange(6.0)
    for _ in range(2):
        assert [call("memory::temporaries", x, which)[0].item() for which in (0, 4)] == [7.0, 0.0]
        for dtype in (torch.float32, torch.float16):
            with (
                pytest.raises(NeuronCustomOpError, match="dtype") if dtype != torch.float32 else nullcontext()
            ):
                call("memory::sum", x.to(dtype), x.to(dtype))


def test_memory_is_used_again(call: Callable[..., torch.Tensor]) -> None:
    x = device_resident(torch.rand(5000))
    kept = [call("memory::sum", x, x) for _ in range(3)]
    places = {y.data_ptr() for y in kept}
    assert len(places) == 3
    del kept
    assert {call("memory::sum", x, x).data_ptr() for _ in range(3)} <= places


def test_without_room_a_result_is_an_ordinary_tensor(
    call: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = device_resident(torch.rand(4096))
    call("memory::sum", x.clone(), x.clone())  # the copies' blocks
    room = 3 * x.nbytes  # the tensor and both copies
    monkeypatch.setattr(arena, "memory_limit_bytes", lambda: room)
    y = call("memory::sum", x, x)
    assert not is_device_resident(y)
    assert torch.equal(y, x + x)


def test_a_forked_child_sees_the_tensors_and_uses_memory_of_its_own(
    call: Callable[..., torch.Tensor],
) -> None:
    x = device_resident(torch.arange(64.0))
    y = call("memory::sum", x, x)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            fine = not is_device_resident(x) and torch.equal(
                call("memory::sum", x, y), 3 * torch.arange(64.0)
            )
            mine = device_resident(torch.full((64,), 5.0))
            fine = fine and is_device_resident(call("memory::sum", mine, mine))
            code = 0 if fine else 2
        finally:
            os._exit(code)
    # The child may still look at these bytes: nobody gets them as fresh memory.
    address = y.data_ptr()
    del y
    assert call("memory::sum", device_resident(torch.rand(64)), torch.rand(64)).data_ptr() != address
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert torch.equal(call("memory::sum", x, x), 2 * torch.arange(64.0))


def test_tensors_outlive_their_memory_s_workers(call: Callable[..., torch.Tensor], operation: Find) -> None:
    y = call("memory::sum", device_resident(torch.ones(10)), torch.ones(10))
    operation("memory::sum").executor.close()
    gc.collect()
    assert torch.equal(y, torch.full((10,), 2.0))


@pytest.mark.parametrize(
    ("nbytes", "size"),
    [
        (0, 4096), (1, 4096), (4096, 4096), (4097, 8192), (20_000, 32_768),
        (16 << 20, 16 << 20), ((16 << 20) + 1, 32 << 20), (40 << 20, 48 << 20),
    ],
)  # fmt: skip
def test_sizes_of_blocks_are_powers_of_two_then_steps_of_16_mib(nbytes: int, size: int) -> None:
    assert arena.block_bytes(nbytes) == size


@pytest.mark.parametrize("child", [True, False])
def test_only_a_child_gets_a_new_lock_after_a_fork(monkeypatch: pytest.MonkeyPatch, child: bool) -> None:
    """Another thread of the parent may have held the lock of the arenas."""
    monkeypatch.setattr(arena, "_arenas", [])
    before = arena._lock
    monkeypatch.setattr(arena, "_lock", before)
    arena._after_fork(child=child)
    assert (arena._lock is not before) is child
