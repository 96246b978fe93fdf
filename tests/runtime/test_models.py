"""Loading, executing, observing."""

from __future__ import annotations

import signal
import sys
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neurontools.machine.snapshot import MemoryUse
from neurontools.runtime.status import NrtError, NrtStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.runtime.conftest import Place, Watcher


def test_a_loaded_model_has_its_memory_and_shows(place: Place) -> None:
    model = place.load(1, name="mlp", uuid=b"\x01" * 16)
    assert (model.model_id, model.nc, model.core) == (10001, 1, 1)
    assert place.runtime.memory_use(1) == MemoryUse(
        model_code=1000, constants=2000, model_shared_scratchpad=3000, runtime_memory=132_256
    )
    value = place.page.read(0)
    assert value is not None
    assert [(state.model_id, state.name, state.uuid, state.core) for state in value.models] == [
        (10001, "mlp", "01" * 16, 1)
    ]
    place.runtime.unload(model)
    place.runtime.unload(model)
    assert place.runtime.memory_use(1) == MemoryUse()
    value = place.page.read(0)
    assert value is not None
    assert value.models == ()


def test_application_memory_is_the_resident_memory_of_the_process(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    resident_bytes = 10**9

    def stat(_pid: int) -> SimpleNamespace:
        return SimpleNamespace(resident_bytes=resident_bytes)

    def shown() -> int:
        value = place.page.read(time.monotonic_ns())
        assert value is not None
        return value.host_memory.application_memory

    assert shown() > 1 << 20
    monkeypatch.setattr("neurontools.runtime.session.read_stat", stat)
    model = place.load(0)
    assert shown() == 10**9
    place.runtime.allocate(0, 300_000)
    resident_bytes = 2 * 10**9
    place.runtime.execute(model, lambda: None)
    assert shown() == 10**9  # read again a second later
    monkeypatch.setattr(place.runtime, "_host_memory_due_ns", 0)
    place.runtime.execute(model, lambda: None)
    assert shown() == 2 * 10**9 - 300_000


def test_the_runtimes_own_memory_is_there_once_while_a_core_has_models(place: Place) -> None:
    first, second = place.load(0), place.load(0)
    assert [place.runtime.memory_use(nc).runtime_memory for nc in (0, 1)] == [132_256, 0]
    place.runtime.unload(first)
    assert place.runtime.memory_use(0).runtime_memory == 132_256
    place.runtime.unload(second)
    assert place.runtime.memory_use(0) == MemoryUse()


def test_cores_are_machine_wide_in_the_model_and_the_page(new_place: Callable[..., Place]) -> None:
    place = new_place(cores=(1,))
    model = place.load(0)
    assert (model.nc, model.core) == (0, 1)
    value = place.page.read(0)
    assert value is not None
    assert value.models[0].core == 1


def test_a_model_that_does_not_fit_takes_nothing(new_place: Callable[..., Place]) -> None:
    place = new_place(total=1 << 20)
    with pytest.raises(NrtError) as caught:
        place.load(constant_bytes=900_000, scratch_bytes=900_000)
    assert str(caught.value) == 'nrt_load status=4 message="Allocation Failure"'
    assert place.runtime.memory_use(0) == MemoryUse()
    place.load(constant_bytes=900_000)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(st.data())
def test_models_of_a_core_share_one_scratchpad(new_place: Callable[..., Place], data: st.DataObject) -> None:
    place = new_place()
    loaded = []
    for _ in range(data.draw(st.integers(1, 12))):
        if loaded and data.draw(st.booleans()):
            place.runtime.unload(loaded.pop(data.draw(st.integers(0, len(loaded) - 1))))
        else:
            loaded.append(place.load(scratch_bytes=data.draw(st.integers(0, 10**6))))
        wanted = [model.memory.model_shared_scratchpad for model in loaded]
        use = place.runtime.memory_use(0)
        assert use.model_shared_scratchpad == max(wanted, default=0)
        assert use.constants == 2000 * len(loaded)
    for model in loaded:
        place.runtime.unload(model)
    assert place.runtime.memory_use(0) == MemoryUse()


def test_more_models_than_the_page_shows(place: Place) -> None:
    models = [place.load() for _ in range(70)]
    assert place.runtime.execute(models[-1], lambda: "done") == "done"
    for model in models:
        place.runtime.unload(model)
    assert place.runtime.memory_use(0) == MemoryUse()


def test_an_execution_is_counted(place: Place) -> None:
    model = place.load()
    before_ns = time.monotonic_ns()
    assert [place.runtime.execute(model, lambda: 42) for _ in range(3)] == [42] * 3
    elapsed_ns = time.monotonic_ns() - before_ns
    value = place.page.read(0)
    assert value is not None
    use = value.cores[0]
    assert (use.executions, use.flops, use.gpsimd_ns, use.executing) == (3, 21, 9, False)
    assert 0 < use.busy_ns <= elapsed_ns
    assert value.status_counts == ((0, 3),)


def test_while_it_runs_the_page_says_so(place: Place) -> None:
    model = place.load()

    def look() -> None:
        value = place.page.read(time.monotonic_ns())
        assert value is not None
        assert value.cores[0].executing
        assert value.models[0].running
        assert not value.cores[1].executing

    place.runtime.execute(model, look)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("boom"), NrtStatus.NRT_EXEC_COMPLETED_WITH_ERR),
        (KeyboardInterrupt(), NrtStatus.NRT_EXEC_COMPLETED_WITH_ERR),
        (NrtError("nrt_execute", NrtStatus.NRT_EXEC_OOB), NrtStatus.NRT_EXEC_OOB),
    ],
)
def test_a_failure_goes_through_and_is_counted(
    place: Place,
    watcher: Watcher,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    status: NrtStatus,
) -> None:
    model = place.load()
    place.runtime.observers.append(watcher)

    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        place.runtime.execute(model, fail)
    assert caught.value is error
    value = place.page.read(0)
    assert value is not None
    assert value.status_counts == ((status, 1),)
    assert (value.cores[0].executing, value.cores[0].flops) == (False, 0)
    assert watcher.told == [("execute", 10001, 1, status)]
    assert f"h_model.id10001: {status.text} ({status.name})" in capsys.readouterr().err


def test_a_successful_run_prints_nothing(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.runtime.execute(place.load(), lambda: None)
    place.runtime.close()
    assert capsys.readouterr() == ("", "")


def test_observers_get_every_event_in_order(place: Place, watcher: Watcher) -> None:
    place.runtime.observers.append(watcher)
    first, second = place.load(), place.load()
    place.runtime.execute(second, lambda: None)
    place.runtime.execute(second, lambda: None)
    place.runtime.unload(first)
    place.runtime.close()
    place.runtime.close()
    done = NrtStatus.NRT_SUCCESS
    assert watcher.told == [
        ("load", 10001),
        ("load", 10002),
        ("execute", 10002, 1, done),
        ("execute", 10002, 2, done),
        ("unload", 10001),
        ("unload", 10002),
        ("close",),
    ]


def test_an_unloaded_model_cannot_be_executed(place: Place) -> None:
    model = place.load()
    place.runtime.unload(model)
    with pytest.raises(NrtError) as caught:
        place.runtime.execute(model, lambda: None)
    assert caught.value.status == NrtStatus.NRT_INVALID_HANDLE


def test_an_execution_inside_an_execution_finds_the_core_busy(place: Place) -> None:
    here, there = place.load(0), place.load(1)
    assert place.runtime.execute(here, lambda: place.runtime.execute(there, lambda: 5)) == 5
    with pytest.raises(NrtError) as caught:
        place.runtime.execute(here, lambda: place.runtime.execute(here, lambda: 5))
    assert caught.value.status == NrtStatus.NRT_EXEC_NC_BUSY
    assert place.runtime.execute(here, lambda: 5) == 5


def test_executions_on_one_core_follow_each_other(place: Place) -> None:
    model = place.load()
    inside: list[int] = []
    most = []

    def run() -> None:
        inside.append(1)
        time.sleep(0.001)
        most.append(len(inside))
        inside.pop()

    threads = [threading.Thread(target=lambda: place.runtime.execute(model, run)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 8


def test_two_cores_execute_at_the_same_time(place: Place) -> None:
    meet = threading.Barrier(2, timeout=600)
    models = [place.load(0), place.load(1)]
    threads = [
        threading.Thread(target=lambda model=model: place.runtime.execute(model, meet.wait))
        for model in models
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    value = place.page.read(0)
    assert value is not None
    assert [use.executions for use in value.cores] == [1, 1]
    assert not meet.broken


def test_pace_makes_an_execution_last_its_modelled_time(
    new_place: Callable[..., Place], watcher: Watcher
) -> None:
    for paced in ("0", "1"):
        place = new_place(NEURONTOOLS_PACE=paced)
        model = place.load(modelled_ns=20_000_000)
        place.runtime.execute(model, lambda: None)
        value = place.page.read(0)
        assert value is not None
        assert (value.cores[0].busy_ns >= 20_000_000) == (paced == "1")


def test_after_close_every_call_says_so(place: Place) -> None:
    model = place.load()
    place.runtime.allocate(0, 10)
    place.runtime.close()
    assert place.client.closed
    for call in (
        lambda: place.runtime.execute(model, lambda: None),
        lambda: place.runtime.allocate(0, 1),
        lambda: place.runtime.memory_info(0),
        place.load,
    ):
        with pytest.raises(NrtError, match="Runtime is closed") as caught:
            call()
        assert caught.value.status == NrtStatus.NRT_CLOSED
    place.runtime.free(0, 10)
    place.runtime.unload(model)


def test_closing_while_another_thread_executes(place: Place) -> None:
    model = place.load()
    started, closed = threading.Event(), threading.Event()
    result: list[int] = []

    def run() -> int:
        started.set()
        closed.wait(20)
        return 7

    thread = threading.Thread(target=lambda: result.append(place.runtime.execute(model, run)))
    thread.start()
    started.wait(20)
    place.runtime.close()
    closed.set()
    thread.join()
    assert result == [7]


@pytest.mark.skipif(sys.gettrace() is not None, reason="a signal in coverage's tracer leaves its lock held")
def test_signals_that_raise_anywhere_leave_nothing_stuck(place: Place) -> None:
    class Interrupted(BaseException):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    model = place.load()
    interrupted = 0
    former = signal.signal(signal.SIGVTALRM, interrupt)
    try:
        for round_number in range(150):
            try:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0.0001 + round_number * 1e-6)
                while True:
                    place.runtime.execute(model, lambda: None)
            except Interrupted:
                interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, former)
    assert interrupted == 150
    place.runtime.execute(model, lambda: None)
    value = place.page.read(time.monotonic_ns())
    assert value is not None
    assert not value.cores[0].executing
    assert value.cores[0].executions >= interrupted
