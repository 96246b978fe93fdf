"""The module torch.xla: current device, memory, streams and events, as torch's code for any device uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from neurontools.xla import api
from neurontools.xla.accelerator import DeviceError

if TYPE_CHECKING:
    from tests.xla.conftest import InMemoryAccelerator


def test_a_device_without_an_index_is_the_current_one(machine: InMemoryAccelerator) -> None:
    module = torch.get_device_module("xla")
    assert module.current_device() == 0
    with module.device(1):
        assert module.current_device() == 1
        x = torch.ones(2, device="xla")
        assert x.device == torch.device("xla:1")
        with module.device(torch.device("xla")), module.device(-1), module.device(None):
            assert module.current_device() == 1
    assert torch.ones(2, device="xla").device == torch.device("xla:0")
    with module.device_of(x):
        assert module.current_device() == 1
    with module.device_of(torch.ones(2)):
        assert module.current_device() == 0
    module.set_device("xla:1")
    assert module.current_device() == 1
    with pytest.raises(DeviceError, match="xla:7 does not exist"):
        module.set_device(7)
    module.set_device(0)


def test_the_device_is_the_accelerator_of_torch(machine: InMemoryAccelerator) -> None:
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator(check_available=True) == torch.device("xla")


def test_each_device_has_its_own_random_numbers(machine: InMemoryAccelerator) -> None:
    module = torch.get_device_module("xla")
    states = module.get_rng_state_all()
    first = torch.rand(2, device="xla:1").tolist()
    assert torch.rand(2, device="xla:0").tolist() == first
    module.set_rng_state_all(states)
    assert torch.rand(2, device="xla:1").tolist() == first
    with module.device(1):
        module.manual_seed(9)
        assert module.initial_seed() == 9
    assert module.initial_seed() == 0
    module.seed_all()
    assert module.initial_seed() not in {0, 9}


def test_memory_is_reported_in_torchs_names(machine: InMemoryAccelerator) -> None:
    module = torch.get_device_module("xla")
    x = torch.zeros(256).to("xla")
    del x
    y = torch.zeros(128).to("xla")
    assert module.memory_allocated() == module.memory_allocated(y.device) == 512
    assert module.max_memory_allocated(0) == 1024
    assert module.memory_stats()["allocated_bytes.all.current"] == 512
    assert module.mem_get_info() == (machine.limit_bytes - 512, machine.limit_bytes)
    assert module.get_device_properties(0).total_memory == machine.limit_bytes
    assert module.get_device_name() == "NC_v2"
    module.empty_cache()
    assert module.memory_allocated() == 512


def test_waiting_for_a_stream_or_an_event_runs_what_is_recorded(machine: InMemoryAccelerator) -> None:
    module = torch.get_device_module("xla")
    stream = module.current_stream()
    assert stream == module.default_stream("xla:0") != module.Stream(1)
    for wait in (stream.synchronize, module.synchronize):
        before = machine.executions
        x = torch.ones(2, device="xla") + 1
        with module.stream(stream):
            event = stream.record_event()
        assert not event.query()
        assert not stream.query()
        wait()
        assert event.query()
        assert stream.query()
        event.synchronize()
        assert machine.executions == before + 1
        x += 1
        event.synchronize()  # not its work
        assert machine.executions == before + 1
        event.record()
        event.synchronize()
        assert machine.executions == before + 2


def test_events_with_times_end_the_graph(machine: InMemoryAccelerator) -> None:
    module = torch.get_device_module("xla")
    start, end = module.Event(enable_timing=True), module.Event(enable_timing=True)
    start.record()
    x = torch.ones(2, device="xla") + 1
    end.record()
    assert machine.executions == 1
    assert api.engine().pending(0) == 0
    assert start.elapsed_time(end) > 0
    with pytest.raises(DeviceError, match="has no time"):
        start.elapsed_time(module.Event())
    assert x.tolist() == [2, 2]
