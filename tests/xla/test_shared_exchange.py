"""Members of an exchange through shared memory, here as threads of one process, against the same arithmetic in one place."""

from __future__ import annotations

import ctypes
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import torch

from neurontools.xla.device_guard import ensure_guard, typed_sum
from neurontools.xla.distributed import reductions, shared_exchange
from neurontools.xla.distributed.reductions import SmallReduction, reduce_into
from neurontools.xla.distributed.shared_exchange import SharedExchange

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch

SIZE = 3
GENERATOR = torch.Generator().manual_seed(0)


class Patient:
    """Waits for ever; keeps which positions have answered while others have not."""

    def __init__(self) -> None:
        self.answered: list[int] = []
        self.late = threading.Event()

    def check(self, takes_part: Callable[[int], bool]) -> None:
        self.answered = [position for position in range(SIZE) if takes_part(position)]
        self.late.set()

    def failure(self, error: Exception, position: int) -> Exception:
        return RuntimeError(f"member {position}: {error}")

    def mismatch(self, position: int, other: str) -> Exception:
        return RuntimeError(f"member {position} runs {other}")


@pytest.fixture(
    params=[(1 << 12, 0), (1 << 22, 0), (1 << 22, 1 << 21)], ids=["many pieces", "one piece", "small tensors"]
)
def members(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    area_bytes, small_bytes = request.param
    monkeypatch.setattr(shared_exchange, "_AREA_BYTES", area_bytes)
    monkeypatch.setattr(shared_exchange, "_SMALL_BYTES", small_bytes)
    connections: list[dict[int, socket.socket]] = [{} for _ in range(SIZE)]
    for one in range(SIZE):
        for other in range(one):
            connections[one][other], connections[other][one] = socket.socketpair(
                socket.AF_UNIX, socket.SOCK_SEQPACKET
            )
    made = [SharedExchange(position, own) for position, own in enumerate(connections)]
    together(lambda position: made[position].share_memory(Patient()))
    yield made
    for own in connections:
        for connection in own.values():
            connection.close()


def together(work: Callable[[int], Any]) -> list[Any]:
    """Run a function for all positions at the same time and return the results."""
    with ThreadPoolExecutor(SIZE) as pool:
        return list(pool.map(work, range(SIZE)))


def random_tensors(dtype: torch.dtype, *sizes: int) -> list[list[torch.Tensor]]:
    """Return tensors of these sizes for each member."""
    return [[torch.randint(0, 9, (n,), generator=GENERATOR).to(dtype) for n in sizes] for _ in range(SIZE)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
def test_all_reduce_adds_in_the_order_of_the_members(members: Any, dtype: torch.dtype) -> None:
    given = random_tensors(dtype, 3000, 0, 1, 5)
    expected = [(a + b + c).mul(1) for a, b, c in zip(*given, strict=True)]
    for _ in range(3):
        own = [[tensor.clone() for tensor in tensors] for tensors in given]
        together(lambda position, own=own: members[position].all_reduce(own[position], "sum", 1.0, Patient()))
        for tensors in own:
            assert all(torch.equal(*pair) for pair in zip(tensors, expected, strict=True))


@pytest.mark.parametrize(
    ("name", "reduce"),
    [("mul", torch.mul), ("min", torch.minimum), ("max", torch.maximum), ("or", torch.bitwise_or)],
)
def test_all_reduce_reduces_by_its_operation(members: Any, name: str, reduce: Any) -> None:
    given = random_tensors(torch.int32, 10)
    expected = reduce(reduce(given[0][0], given[1][0]), given[2][0])
    together(lambda position: members[position].all_reduce(given[position], name, 1.0, Patient()))
    assert all(torch.equal(tensor, expected) for (tensor,) in given)


def test_results_are_scaled(members: Any) -> None:
    given = random_tensors(torch.float32, 7)
    expected = (given[0][0] + given[1][0] + given[2][0]) * 0.5
    whole = [(tensor * 10).long() for (tensor,) in given]
    together(lambda position: members[position].all_reduce(given[position], "sum", 0.5, Patient()))
    together(lambda position: members[position].all_reduce([whole[position]], "sum", 0.25, Patient()))
    assert all(torch.equal(tensor, expected) for (tensor,) in given)
    assert torch.equal(whole[0], (expected * 2 * 10 * 0.25).long())


def test_rows_are_exchanged(members: Any) -> None:
    rows = [torch.stack(tensors) for tensors in random_tensors(torch.float32, *[2500] * SIZE)]
    received = [torch.empty_like(matrix) for matrix in rows]
    together(lambda position: members[position].all_to_all(received[position], rows[position], Patient()))
    for position, matrix in enumerate(received):
        assert torch.equal(matrix, torch.stack([sent[position] for sent in rows]))
    parts = [torch.empty(2500) for _ in rows]
    together(
        lambda position: members[position].reduce_scatter(
            parts[position], rows[position], "sum", 2.0, Patient()
        )
    )
    for position, part in enumerate(parts):
        assert torch.equal(part, 2 * (rows[0] + rows[1] + rows[2])[position])


def test_tensors_are_gathered_and_copied(members: Any) -> None:
    given = random_tensors(torch.float16, 3000, 4)
    gathered = [torch.empty(SIZE, 3000, dtype=torch.float16) for _ in given]
    together(lambda position: members[position].all_gather(gathered[position], given[position][0], Patient()))
    expected = torch.stack([first for first, _ in given])
    assert all(torch.equal(matrix, expected) for matrix in gathered)
    source = [tensor.clone() for tensor in given[1]]
    together(lambda position: members[position].broadcast(given[position], 1, Patient()))
    assert all(torch.equal(*pair) for own in given for pair in zip(own, source, strict=True))


def test_members_that_run_different_collectives_are_found_out(members: Any) -> None:
    def work(position: int) -> str:
        own = members[position]
        with pytest.raises(RuntimeError) as caught:
            own.barrier(Patient()) if position == 1 else own.broadcast([torch.ones(2)], 0, Patient())
        return str(caught.value)

    assert together(work) == [
        "member 1 runs barrier",
        "member 0 runs broadcast of 2 torch.float32 from 0",
        "member 1 runs barrier",
    ]


def test_memory_that_the_first_member_never_sends_is_its_failure() -> None:
    own, first = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    first.close()
    with own, pytest.raises(RuntimeError, match="member 0: it has closed its connection"):
        SharedExchange(1, {0: own})._receive_descriptor(Patient())


def test_a_member_that_does_not_come_or_ends_is_known(members: Any) -> None:
    waiting = Patient()

    def work(position: int) -> str:
        if position == 1:
            waiting.late.wait()
            waiting.late.clear()
            waiting.late.wait()
            for connection in members[1]._connections.values():
                connection.shutdown(socket.SHUT_RDWR)
            return "ended"
        with pytest.raises(RuntimeError) as caught:
            members[position].barrier(waiting if position == 0 else Patient())
        return str(caught.value)

    connections = [own for member in members for own in member._connections.values()]
    for connection in connections:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, shared_exchange._SLICE)
    ended = "member 1: it has closed its connection"
    assert together(work) == [ended, "ended", ended]
    assert waiting.answered == [0, 2]


def test_an_exchange_whose_first_use_is_in_inference_mode_goes_on_outside_of_it(members: Any) -> None:
    def work(position: int) -> list[torch.Tensor]:
        own = [torch.ones(3), torch.ones(2000)]
        with torch.inference_mode():
            members[position].all_reduce([torch.ones(3), torch.ones(2000)], "sum", 1.0, Patient())
        members[position].all_reduce(own, "sum", 1.0, Patient())
        return own

    assert all(torch.equal(tensor, torch.full_like(tensor, SIZE)) for own in together(work) for tensor in own)


@pytest.mark.parametrize("member_count", [2, 3, 5])
@pytest.mark.parametrize("scale", [1.0, 0.5, 1 / 3])
def test_sums_in_one_pass_are_those_of_torch_to_the_last_bit(
    monkeypatch: pytest.MonkeyPatch, member_count: int, scale: float
) -> None:
    shapes = [(), (0,), (7,), (8,), (3, 5), (1000, 3)]
    count = sum(torch.Size(shape).numel() for shape in shapes)
    bits = torch.randint(-(2**31), 2**31, (2, member_count, count), generator=GENERATOR, dtype=torch.int64)
    areas = bits.to(torch.int32).view(torch.float32).nan_to_num(1e-40, 3e38, -3e38)  # of all sizes
    library = ctypes.CDLL(ensure_guard(torch.__path__[0]))
    results = []
    for function in (None, typed_sum(library)):
        monkeypatch.setattr(reductions, "find_sum", lambda function=function: function)
        tensors = [torch.zeros(shape) for shape in shapes]
        memory = torch.empty(4 * count, dtype=torch.uint8)
        reduction = SmallReduction("sum", tensors, [list(turn) for turn in areas], 1, memory)
        reduction.finish(1, tensors, scale)
        first, *others = areas[1].clone().unbind()
        reduce_into(first, "sum", [first, *others], scale)
        results += [
            torch.cat([tensor.view(-1) for tensor in tensors]).view(torch.int32),
            first.view(torch.int32),
        ]
    assert all(torch.equal(results[0], result) for result in results[1:])
    assert results[0].count_nonzero() > count / 2
