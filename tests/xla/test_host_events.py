"""What profilers are told about the host: steps, cuts, compiles, copies, waits, collectives and memory."""

from __future__ import annotations

import gc
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import torch

import neurontools
from neurontools.runtime import host_activity
from neurontools.runtime.host_activity import HostEvent, remove_observer
from neurontools.xla import api
from neurontools.xla.debugging import compile_log
from neurontools.xla.distributed import collectives, worker_group
from neurontools.xla.host_events import observe, timed_batches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.runtime.host_activity import HostRecord
    from tests.xla.conftest import InMemoryAccelerator

HERE = f"{__file__}:"


@dataclass(frozen=True)
class Seen:
    kind: HostEvent
    start_ns: int
    end_ns: int
    nc: int
    name: str
    source: str
    nbytes: int
    number: int


class Observer:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[Seen] = []

    def on_host_event(self, event: HostRecord) -> None:
        self.events.append(Seen(*event))

    def of(self, kind: HostEvent) -> list[Seen]:
        return [event for event in self.events if event.kind is kind]

    def only(self, kind: HostEvent) -> Seen:
        (event,) = self.of(kind)
        return event


@pytest.fixture
def observer(machine: InMemoryAccelerator) -> Iterator[Observer]:
    gc.collect()
    made = Observer()
    observe(made)
    yield made
    remove_observer(made)


def test_a_step_is_told_with_its_line_and_the_cut_within_it(observer: Observer) -> None:
    made = torch.ones(4).to("xla") + 1
    api.mark_step()
    step, cut = observer.only(HostEvent.STEP), observer.only(HostEvent.CUT)
    assert (step.name, cut.name, cut.number) == ("mark_step", "mark_step", 1)
    assert step.source == cut.source
    assert step.source.startswith(HERE)
    assert step.start_ns <= cut.start_ns <= cut.end_ns <= step.end_ns
    assert made.tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("cause", [".item()", "print of a tensor", "copy to the CPU", "aten::nonzero"])
def test_a_cut_tells_what_read_the_value(cause: str, observer: Observer) -> None:
    value = torch.ones(1).to("xla") * 3
    match cause:
        case ".item()":
            assert value.item() == 3
        case "print of a tensor":
            assert "3." in repr(value)
        case "copy to the CPU":
            assert value.cpu().tolist() == [3]
        case _:
            assert value.nonzero().tolist() == [[0]]
            assert observer.only(HostEvent.CPU_OPERATOR).name == "aten::nonzero"
    cut = observer.of(HostEvent.CUT)[0]
    assert cut.name == cause
    assert cut.source.startswith(HERE)


@pytest.mark.parametrize("form", ["if", "while", "not", "and", "or", "assert", "ternary"])
def test_a_condition_is_a_bool(form: str, observer: Observer) -> None:
    value = torch.ones(1).to("xla") * 3
    match form:
        case "if":
            if value > 2:
                pass
        case "while":
            while value > 9:
                pass
        case "not":
            assert (not value) is False
        case "and":
            assert (value and form) == form
        case "or":
            assert (value or form) is value
        case "assert":
            assert value
        case _:
            assert (1 if value else 2) == 1
    assert observer.of(HostEvent.CUT)[0].name == "bool"


@pytest.mark.parametrize("convert", [bool, float, int])
def test_a_conversion_of_a_value_is_item(convert: type, observer: Observer) -> None:
    assert convert(torch.ones(1).to("xla") * 3)
    assert observer.of(HostEvent.CUT)[0].name == ".item()"


def test_events_have_the_call_stack_of_the_program_if_a_profile_wants_it(
    observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_log, "_with_stacks", False)
    compile_log.record_stacks()

    def read(depth: int) -> float:
        return read(depth - 1) if depth else torch.ones(1).to("xla").item()

    read(2)
    source, *frames = observer.only(HostEvent.DOWNLOAD).source.split("\n")
    assert source.startswith(HERE)
    name = f"{test_events_have_the_call_stack_of_the_program_if_a_profile_wants_it.__name__}.<locals>.read"
    assert [frame.split(" ")[0] for frame in frames[:4]] == [name, name, name, name.partition(".")[0]]
    assert frames[0] == f"{name} {source}"
    read(100)
    assert observer.of(HostEvent.DOWNLOAD)[-1].source.count("\n") == 32


def test_the_first_use_of_a_graph_is_a_compile_and_the_next_one_neither(observer: Observer) -> None:
    for _ in range(3):
        torch.ones(3).to("xla").exp_()
        api.mark_step()
    compiled = observer.only(HostEvent.COMPILE)
    assert compiled.number == 1
    assert not observer.of(HostEvent.CACHE_HIT)
    assert len(observer.of(HostEvent.CUT)) == 3
    cut = observer.of(HostEvent.CUT)[0]
    assert cut.start_ns <= compiled.start_ns < compiled.end_ns <= cut.end_ns


def test_eager_mode_tells_no_cut_an_operator(observer: Observer) -> None:
    api.set_eager(True)
    try:
        assert (torch.ones(3).to("xla") + 1).sum().item() == 6
    finally:
        api.set_eager(False)
    assert not observer.of(HostEvent.CUT)


def test_copies_are_told_with_their_bytes_and_without_the_cut_before_them(observer: Observer) -> None:
    moved = torch.ones(256).to("xla")
    (moved + 1).cpu()
    upload, download = observer.only(HostEvent.UPLOAD), observer.only(HostEvent.DOWNLOAD)
    assert (upload.nbytes, download.nbytes) == (1024, 1024)
    assert observer.only(HostEvent.CUT).end_ns <= download.start_ns <= download.end_ns
    assert upload.source.startswith(HERE)


def test_waits_and_garbage_are_told(observer: Observer) -> None:
    torch.get_device_module("xla").synchronize()
    api.wait_device_ops()
    assert [event.name for event in observer.of(HostEvent.WAIT)] == ["synchronize", "wait_device_ops"]
    kept = [[number] for number in range(200_000)]
    gc.collect()
    assert kept
    assert observer.of(HostEvent.GARBAGE)[-1].number == 2


def test_a_loader_is_told_once_a_batch_also_inside_another_loader(observer: Observer) -> None:
    batches = torch.utils.data.DataLoader(torch.arange(4), batch_size=2)
    assert [batch.tolist() for batch in timed_batches(batches)] == [[0, 1], [2, 3]]
    waits = observer.of(HostEvent.INPUT)
    assert len(waits) == 3  # the last one found the end
    assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3]]
    assert len(observer.of(HostEvent.INPUT)) == 6


def test_marks_carry_their_line(observer: Observer) -> None:
    neurontools.mark("epoch 3")
    assert observer.only(HostEvent.MARK).name == "epoch 3"
    assert observer.only(HostEvent.MARK).source.startswith(HERE)


def test_memory_is_told_by_buffer_with_the_line_that_takes_it(observer: Observer) -> None:
    weight = torch.ones(8, 4).to("xla")
    product = weight @ weight.t()
    api.mark_step()
    assert product is not None
    taken = observer.of(HostEvent.ALLOCATION)
    assert [(event.name, event.nbytes) for event in taken] == [
        ("float32[8,4]", 128),
        ("aten.mm.default", 256),
    ]
    assert all(event.source.startswith(HERE) for event in taken)
    del weight, product
    gc.collect()
    given = observer.of(HostEvent.RELEASE)
    assert {(event.number, event.nbytes) for event in given} == {
        (event.number, event.nbytes) for event in taken
    }


def test_parameters_are_named_when_a_model_is_moved(observer: Observer) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.BatchNorm1d(2))).to("xla")
    assert [event.name for event in observer.of(HostEvent.ALLOCATION)] == [
        *(f"Sequential.0.{name}" for name in ("weight", "bias")),
        *(f"Sequential.1.0.{name}" for name in ("weight", "bias", "running_mean", "running_var")),
        "Sequential.1.0.num_batches_tracked",
    ]
    assert model is not None


def test_results_that_a_known_graph_returns_are_allocations_too(observer: Observer) -> None:
    kept = []
    for _ in range(3):
        kept.append(torch.ones(16).to("xla").exp())
        api.mark_step()
    results = [event for event in observer.of(HostEvent.ALLOCATION) if event.name == "aten.exp.default"]
    assert len(results) == 3
    assert len({event.number for event in results}) == 3


def test_a_buffer_from_before_the_profile_is_released_without_a_number(machine: InMemoryAccelerator) -> None:
    old = torch.ones(8).to("xla")
    made = Observer()
    observe(made)
    try:
        del old
        gc.collect()
    finally:
        remove_observer(made)
    assert [(event.number, event.nbytes) for event in made.of(HostEvent.RELEASE)] == [(0, 32)]


def test_nothing_is_told_after_the_end(machine: InMemoryAccelerator) -> None:
    made = Observer()
    observe(made)
    remove_observer(made)
    remove_observer(made)  # no error
    torch.ones(4).to("xla").add_(1)
    api.mark_step()
    neurontools.mark("unseen")
    gc.collect()
    assert made.events == []
    assert host_activity._watch_garbage not in gc.callbacks


def test_collectives_are_told_with_the_wait_for_the_other_worker(
    observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = Group()
    monkeypatch.setattr(worker_group, "current", lambda: group)
    tensor = torch.ones(32)
    collectives._reported(collectives._all_reduce)([tensor], "sum", 1.0, "[[0,1]]")
    told = observer.only(HostEvent.COLLECTIVE)
    assert (told.name, told.nbytes, told.number) == ("all_reduce", 128, 2)
    assert tensor.tolist() == [2.0] * 32


class Group:
    """A group of two workers that hold the same."""

    size = 2
    ranks = (0, 1)

    def group_in(self, groups: str) -> Group:
        assert groups
        return self

    def all_reduce(self, tensors: list[torch.Tensor], reduce_type: str, scale: float) -> None:
        for tensor in tensors:
            tensor.mul_(2)


def test_another_threads_events_are_told_too(observer: Observer) -> None:
    def work() -> None:
        torch.ones(2).to("xla").add_(1)
        api.mark_step()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert observer.only(HostEvent.STEP).end_ns <= time.monotonic_ns()
