"""torch.load onto the device, and processes, which cannot share its tensors."""

from __future__ import annotations

import io
import threading
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from neurontools.xla import api
from neurontools.xla.accelerator import DeviceError

if TYPE_CHECKING:
    from tests.xla.conftest import InMemoryAccelerator


@pytest.mark.parametrize("location", ["xla", torch.device("xla:0"), {"cpu": "xla:0"}])
@pytest.mark.parametrize("weights_only", [True, False])
def test_tensors_are_loaded_onto_the_device(
    machine: InMemoryAccelerator, location: Any, weights_only: bool
) -> None:
    whole = torch.arange(12.0).view(3, 4)
    wanted = {
        "whole": whole,
        "column": whole[:, 1],
        "half": torch.ones(3).half(),
        "step": torch.tensor(3.0),
        "weight": nn.Parameter(torch.ones(2)),
    }
    stored = io.BytesIO()
    torch.save(wanted, stored)
    stored.seek(0)
    loaded = torch.load(stored, map_location=location, weights_only=weights_only)
    for name, value in wanted.items():
        assert loaded[name].device == torch.device("xla:0")
        assert loaded[name].dtype == value.dtype
        assert type(loaded[name]) is type(value)
        assert torch.equal(loaded[name].cpu(), value.detach())
    for _ in range(2):
        loaded["whole"].add_(1)
        api.mark_step()
    assert loaded["column"].tolist() == [3, 7, 11]  # one storage, as on the CPU
    (loaded["weight"] * 3).sum().backward()
    assert loaded["weight"].grad.tolist() == [3, 3]


def test_what_is_saved_from_the_device_loads_everywhere(machine: InMemoryAccelerator) -> None:
    stored = io.BytesIO()
    torch.save(torch.arange(6.0).to("xla:1"), stored)
    for location, device in ((None, "xla:1"), ("cpu", "cpu"), ("xla:0", "xla:0")):
        stored.seek(0)
        loaded = torch.load(stored, map_location=location)
        assert loaded.device == torch.device(device)
        assert loaded.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_storage_keeps_its_contents_when_it_shrinks_and_grows(machine: InMemoryAccelerator) -> None:
    x = torch.arange(4.0).to("xla")
    x.untyped_storage().resize_(0)
    x.untyped_storage().resize_(16)
    assert x.tolist() == [0, 1, 2, 3]
    x.untyped_storage().resize_(17)
    assert x.tolist() == [0, 1, 2, 3]
    assert x.untyped_storage().nbytes() == 17


def test_device_tensors_are_not_shared_with_processes(machine: InMemoryAccelerator) -> None:
    x = torch.ones(3).to("xla")
    text = "a tensor on xla:0 cannot be shared with another process"
    for value in (x, nn.Parameter(x), nn.Linear(2, 2).to("xla")):
        with pytest.raises(DeviceError, match=text):
            ForkingPickler.dumps(value)
    for share in (x.share_memory_, nn.Linear(2, 2).to("xla").share_memory):
        with pytest.raises(DeviceError, match=text):
            share()
    queue = torch.multiprocessing.SimpleQueue()
    with pytest.raises(DeviceError, match=text):
        queue.put(x)
    queue.put(x.cpu())
    assert queue.get().tolist() == [1, 1, 1]
    queue.close()
    assert torch.ones(3).share_memory_().is_shared()


def test_autocast_computes_in_bfloat16_in_every_thread(machine: InMemoryAccelerator) -> None:
    found = []

    def multiply() -> None:
        x = torch.ones(2, 2, device="xla")
        with torch.autocast("xla"):
            found.append((x @ x).dtype)
        with torch.autocast("xla", dtype=torch.float16):
            found.append((x @ x).dtype)

    multiply()
    thread = threading.Thread(target=multiply)
    thread.start()
    thread.join()
    assert found == [torch.bfloat16, torch.float16] * 2


def test_a_copy_to_the_host_has_the_type_and_the_order_that_are_asked_for(
    machine: InMemoryAccelerator,
) -> None:
    x = torch.arange(24.0).reshape(1, 2, 3, 4)
    on_device = x.to("xla")
    last = on_device.to("cpu", torch.float64, memory_format=torch.channels_last)
    assert last.dtype == torch.float64
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(last, x.double())
    assert on_device.to("cpu").is_contiguous()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_of_the_strided_layout_are_refused(machine: InMemoryAccelerator) -> None:
    parts = [torch.ones(2, 4).to("xla"), torch.ones(3, 4).to("xla")]
    for options in ({}, {"requires_grad": True}):
        with pytest.raises(DeviceError, match="does not support nested tensors"):
            torch.nested.nested_tensor(parts, device="xla", **options)
        with pytest.raises(DeviceError, match="does not support nested tensors"):
            torch.nested.nested_tensor([torch.ones(2, 4)], **options).to("xla")
