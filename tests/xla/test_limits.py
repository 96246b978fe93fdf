"""Limits: device memory before the host's, memory of the learning pass, the length of a graph, kinds of tensors."""

from __future__ import annotations

import gc
import logging
from typing import TYPE_CHECKING

import pytest
import torch

from neurontools.xla import api, recorder
from neurontools.xla.accelerator import DeviceError
from neurontools.xla.debugging import metrics
from neurontools.xla.memory import HostMemoryError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.xla.conftest import InMemoryAccelerator

MANY = 20_000_000_000  # 80 GB of float32


@pytest.mark.parametrize(
    "allocate",
    [
        lambda: torch.ones(MANY, device="xla"),
        lambda: torch.randn(1000, MANY // 1000, device="xla"),
        lambda: torch.empty(MANY, device="xla").add_(1),
        lambda: torch.ones(2, device="xla").expand(MANY // 2, 2).clone(),
        lambda: torch.ones(150_000, 1, device="xla") + torch.ones(1, 150_000, device="xla"),
        lambda: torch.ones(150_000, 1, device="xla") @ torch.ones(1, 150_000, device="xla"),
        lambda: torch.ones(1000, device="xla").repeat(MANY // 1000),
    ],
)
def test_a_tensor_that_fits_no_device_is_refused_before_the_host_allocates_it(
    machine: InMemoryAccelerator, allocate: Callable[[], torch.Tensor]
) -> None:
    for _ in range(2):
        with pytest.raises(MemoryError, match=f"of {machine.limit_bytes} bytes"):
            allocate()
        assert (torch.ones(2, device="xla") + 1).tolist() == [2, 2]
    gc.collect()
    assert api.engine().memory(0).used_bytes == 0


def test_the_hosts_limit_counts_where_the_device_has_room(
    machine: InMemoryAccelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.limit_bytes = 1 << 50
    with pytest.raises(HostMemoryError, match="the simulated device memory is not full"):
        torch.ones(MANY, device="xla")
    # As if the size had not been foreseen.
    monkeypatch.setattr("neurontools.xla.memory.MemoryAccount.check", lambda account, nbytes: None)
    with pytest.raises(HostMemoryError, match=r"this computer has no memory for a device tensor of 4\.50 PB"):
        torch.ones(1 << 50, device="xla")


def live_host_bytes() -> int:
    """Return the bytes of contents that the recording holds on the host."""
    held = {}
    for buffer in api.engine().recorder(0).slots:
        if buffer.host is not None:
            storage = buffer.host.untyped_storage()
            held[storage._cdata] = storage.nbytes()
    return sum(held.values())


@pytest.mark.parametrize("known_start", [False, True])
def test_the_learning_pass_drops_what_no_tensor_refers_to(
    machine: InMemoryAccelerator, monkeypatch: pytest.MonkeyPatch, known_start: bool
) -> None:
    monkeypatch.setattr(recorder, "_RELEASE_BYTES", 1 << 14)
    start = torch.full((1000,), 2.0).to("xla")
    kept = [torch.full((1000,), float(number)).to("xla") for number in range(20)]

    def program(count: int) -> tuple[int, list[float]]:
        x, peak = start, 0
        for number in range(count):
            x = x * 0.5 + kept[number % 20]
            if api.engine().recorder(0).learning:
                peak = max(peak, live_host_bytes())
        return peak, x.tolist()

    expected = torch.full((1000,), 2.0)
    if known_start:
        program(60)
    for number in range(100):
        expected = expected * 0.5 + float(number % 20)
    peak, got = program(100)
    assert got == expected.tolist()
    eager = 23 * 4000  # inputs and one step
    assert eager <= peak <= 1.3 * eager
    assert program(100)[1] == expected.tolist()


def test_a_program_without_a_cut_is_cut_and_goes_on(
    machine: InMemoryAccelerator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(api.engine().recorder(0), "graph_limit", 50)

    def program() -> list[float]:
        x = torch.ones(3).to("xla")
        y = x + 1
        for _ in range(240):
            x = x * 0.5 + y
        return x.tolist()

    expected = torch.ones(3)
    for _ in range(240):
        expected = expected * 0.5 + 2
    with caplog.at_level(logging.WARNING, "neurontools.xla"):
        for _ in range(3):
            assert program() == expected.tolist()
    assert metrics.counter_value("GraphLimitCut") == 3 * 9
    assert machine.executions == 3 * 10
    assert len(machine.graphs) == 3  # the first one, those in the middle, the last one
    assert "cut a graph of 50 operators: the program has no mark_step" in caplog.text


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_sparse_tensors_stay_on_the_cpu(machine: InMemoryAccelerator) -> None:
    with pytest.raises(DeviceError, match="does not support sparse tensors"):
        torch.eye(3).to_sparse().to("xla")
    with pytest.raises(DeviceError, match="does not support sparse tensors"):
        torch.eye(3).to_sparse_csr().to("xla") @ torch.eye(3).to("xla")
    table = torch.nn.Embedding(5, 3, sparse=True).to("xla")
    with pytest.raises(DeviceError) as caught:
        table(torch.tensor([1, 2]).to("xla")).sum().backward()
    assert "sparse=False" in caught.value.remedy


@pytest.mark.filterwarnings("ignore:.*deprecated:UserWarning")
def test_quantized_tensors_stay_on_the_cpu(machine: InMemoryAccelerator) -> None:
    quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    with pytest.raises(DeviceError, match="does not support quantized tensors"):
        quantized.to("xla")
    with pytest.raises(DeviceError, match=r"quantize_per_tensor\.default returns a quantized tensor"):
        torch.quantize_per_tensor(torch.ones(3, device="xla"), 0.1, 0, torch.qint8)
    assert (torch.ones(3, device="xla") + 1).sum().item() == 6
