"""Messages between workers: two workers of a run in one process."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist

from neurontools.runtime.status import NrtError, NrtStatus
from neurontools.xla.distributed import collective_wait, collectives, greeting
from neurontools.xla.distributed.messages import MessageExchange
from neurontools.xla.distributed.worker_roster import WorkerRoster

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

Pair = tuple[MessageExchange, MessageExchange]


@pytest.fixture
def store() -> dist.Store:
    """The store of a run of two workers."""
    return dist.HashStore()


@pytest.fixture
def pair(store: dist.Store) -> Pair:
    """Both workers of the run."""
    first, second = (WorkerRoster(store, rank, 2, timedelta(seconds=60)) for rank in range(2))
    return MessageExchange(first), MessageExchange(second)


def octets(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.uint8)


def received(exchange: MessageExchange, source: int, tag: int, size: int) -> list[int]:
    output = torch.zeros(size, dtype=torch.uint8)
    exchange.receive(output, source, tag)
    return output.tolist()


def test_both_may_send_first_and_each_tag_keeps_its_order(pair: Pair) -> None:
    first, second = pair
    large = torch.arange(1 << 20, dtype=torch.int32).view(torch.uint8)
    first.send(large, 1, 0)
    second.send(large.flip(0), 0, 0)
    sent = octets(1, 2)
    first.send(sent, 1, 7)
    sent.zero_()  # a send takes a copy
    first.send(octets(), 1, 8)
    first.send(octets(3), 1, 7)
    assert received(second, 0, 8, 0) == []
    assert received(second, 0, 7, 2) == [1, 2]
    assert received(second, 0, 7, 1) == [3]
    assert received(second, 0, 0, large.numel()) == large.tolist()
    assert received(first, 1, 0, large.numel()) == large.flip(0).tolist()
    first.finish(60)
    assert all(outbox.is_done() for outbox in first._outboxes.values())


def test_a_receiver_waits_for_a_late_sender(pair: Pair) -> None:
    first, second = pair
    found: list[list[int]] = []
    receiver = threading.Thread(target=lambda: found.append(received(second, 0, 5, 1)))
    receiver.start()
    first.send(octets(9), 1, 4)
    first.send(octets(5), 1, 5)
    receiver.join(60)
    assert found == [[5]]


def test_a_send_of_another_size_is_an_error_of_that_worker(pair: Pair) -> None:
    first, second = pair
    first.send(octets(1, 2, 3), 1, 0)
    with pytest.raises(
        NrtError, match=r"recv from rank 0 .*rank 0 \(pid .* a send of 3 bytes, not of 2"
    ) as caught:
        received(second, 0, 0, 2)
    assert caught.value.status is NrtStatus.NRT_EXEC_HW_ERR_COLLECTIVES


def test_a_sender_that_is_silent_for_too_long_is_named(store: dist.Store) -> None:
    first, second = (WorkerRoster(store, rank, 2, timedelta(seconds=0)) for rank in range(2))
    assert first.rank == 0
    with pytest.raises(NrtError, match=r"no answer in 0 s from rank 0 \(pid") as caught:
        received(MessageExchange(second), 0, 0, 1)
    assert caught.value.status is NrtStatus.NRT_TIMEOUT


def test_each_request_has_its_own_timeout(pair: Pair) -> None:
    first, second = pair
    second.request(0, 7, timedelta(seconds=60))
    second.request(0, 7, timedelta(milliseconds=300))
    first.send(octets(1), 1, 7)
    assert received(second, 0, 7, 1) == [1]
    with pytest.raises(NrtError, match=r"recv from rank 0 of ranks 0,1: no answer in 0\.3 s from rank 0"):
        received(second, 0, 7, 1)


def connect(pair: Pair) -> socket.socket:
    """Return a connection from the first worker to the second one."""
    first, second = pair
    second._open()
    assert second._listener is not None
    return greeting.connect(second._listener.address, first._roster.network.key, 0, 1)


def header(tag: int, nbytes: int) -> bytes:
    return tag.to_bytes(8, "little", signed=True) + nbytes.to_bytes(8, "little", signed=True)


def test_what_a_worker_sent_before_it_ended_arrives_and_then_it_is_named(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, second = pair
    with connect(pair) as sender:
        sender.sendall(header(2, 1) + b"x")
    assert received(second, 0, 2, 1) == [ord("x")]
    monkeypatch.setattr("neurontools.xla.distributed.worker_roster.WorkerProcess.has_ended", lambda _: True)
    with pytest.raises(NrtError, match=r"rank 0 \(pid .*\) has ended"):
        received(second, 0, 2, 1)


@pytest.mark.parametrize("nbytes", [-1, -5, -(2**63), 2**62, 2**63 - 1, 1 << 50])
def test_a_length_that_no_message_has_ends_its_sender(
    pair: Pair, nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collective_wait, "_NOTICE_S", 0.0)
    _, second = pair
    with connect(pair) as sender:
        sender.sendall(header(0, 1) + b"x" + header(1, nbytes))
        assert received(second, 0, 0, 1) == [ord("x")]
        for _ in range(2):
            with pytest.raises(
                NrtError, match=rf"recv from rank 0 .*rank 0 \(pid .* announced a message of {nbytes} bytes"
            ):
                received(second, 0, 1, 1)


@pytest.mark.parametrize("sent", [b"", b"ab", header(1, 8), header(1, 8) + b"half"], ids=len)
def test_a_connection_that_ends_early_counts_once_something_came(
    pair: Pair, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collective_wait, "_NOTICE_S", 0.0)
    first, second = pair
    connect(pair).close()  # a worker may give up a connection before it sends
    with connect(pair) as sender:
        sender.sendall(sent)
    if len(sent) < len(header(0, 0)):
        first.send(octets(4), 1, 1)
        assert received(second, 0, 1, 1) == [4]
    else:
        with pytest.raises(NrtError, match=r"rank 0 \(pid .*\): it has closed its connection"):
            received(second, 0, 1, 1)


def test_collectives_send_the_bytes_of_a_tensor_of_any_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[object, ...]] = []

    class Messages:
        def send(self, data: torch.Tensor, target: int, tag: int) -> None:
            calls.append(("send", data.view(torch.int16).tolist(), target, tag))

        def receive(self, data: torch.Tensor, source: int, tag: int, timeout: None) -> None:
            calls.append(("receive", data.numel(), source, tag))
            data.fill_(1)

    class Group:
        messages = Messages()

    group: Callable[[], Group] = Group
    monkeypatch.setattr(collectives.worker_group, "current", group)
    collectives._send(torch.tensor([[1, 2], [3, 4]], dtype=torch.int16).t(), 3, 7)
    output = torch.zeros(2, 2, dtype=torch.int16)
    collectives._receive(output.t(), 2, 8)
    assert calls == [("send", [1, 3, 2, 4], 3, 7), ("receive", 8, 2, 8)]
    assert output.tolist() == [[257, 257], [257, 257]]
