from __future__ import annotations

import io
import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neurontools.profiler.analysis.dependencies import event_details
from neurontools.profiler.analysis.metrics import core_metrics
from neurontools.profiler.analysis.operators import top_operators
from neurontools.profiler.analysis.summary import engine_totals, report, summarise, to_json, to_text
from neurontools.profiler.capture.format import ENGINES, Peaks, ProfileError, Track
from neurontools.profiler.capture.settings import CaptureOptions, DeviceProfile
from neurontools.profiler.exchange.export_timeline import layout, write_chrome
from neurontools.profiler.trace.open import load
from neurontools.profiler.trace.selection import Selection, select

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Maker

    from neurontools.profiler.trace.trace import Trace


def metrics_of(trace: Trace, nc: int = 0) -> dict[str, float]:
    core = next(core for core in summarise(trace).cores if core.nc == nc)
    return {metric.name: metric.value for metric in core.metrics}


def test_metrics_of_a_known_program(trace: Trace) -> None:
    metrics = metrics_of(trace)
    expected = {
        "total_time": 5 * 25_000e-9,
        "total_exec_time": 5 * 24_000e-9,
        "total_active_time": 5 * 24_000e-9,
        "total_active_time_percent": 96.0,
        "trace_count": 5,
        "neuroncore_cycle_count": 175_000,
        "hardware_flops": 5 * 14 * 92_000_000,  # the Tensor engine works for 14 us at 92 TFLOPS
        "tensor_engine_active_time": 5 * 14_000e-9,
        "tensor_engine_active_time_percent": 56.0,
        "tensor_engine_instruction_count": 10,
        "matmul_instruction_count": 10,
        "activate_instruction_time": 5 * 2_500e-9,
        "dma_active_time": 5 * 7_000e-9,
        "dma_transfer_time": 5 * 10_000e-9,
        "dma_transfer_count": 15,
        "hbm_read_bytes": 5 * 131_072,
        "hbm_write_bytes": 5 * 32_768,
        "mm_arithmetic_intensity": 6_291_456 / 163_840,
        "peak_flops_bandwidth_ratio": 92e12 / 410e9,
        "mfu_estimated_percent": 100 * 6_291_456 / (92e12 * 25e-6),
        "mbu_estimated_percent": 100 * 163_840 / (410e9 * 25e-6),
        "sync_engine_instruction_count": 0,
        "cc_op_count": 0,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)


def test_metrics_that_need_an_unknown_peak_are_left_out(trace: Trace) -> None:
    rows = tuple(row for row in trace.rows if not row.track.measured and row.nc == 0)
    names = {metric.name for metric in core_metrics(trace, rows, Peaks())}
    assert not names & {"mfu_estimated_percent", "mbu_estimated_percent", "neuroncore_cycle_count"}
    assert not names & {"hardware_flops", "hfu_estimated_percent"}
    assert "model_flops" in names


def test_setup_instructions_do_not_count_as_execution(home: Path, maker: Maker) -> None:
    class WithSetup(type(maker)):  # type: ignore[misc]
        def mlp(self) -> tuple[object, ...]:
            return (
                self.operation("wait", "Sync", 0, 3_000, opcode="EVENT_SEMAPHORE"),
                self.operation("aten.mm", "Tensor", 5_000, 1_000),
                self.operation("aten.relu", "Scalar", 7_000, 2_000),
            )

    WithSetup().finished(home / "p", steps=4)
    metrics = metrics_of(load(str(home / "p")))
    assert metrics["total_exec_time"] == pytest.approx(4 * 4_000e-9)
    assert metrics["total_active_time"] == pytest.approx(4 * 6_000e-9)


def test_the_first_execution_is_the_warm_up(trace: Trace) -> None:
    model = summarise(trace).models[0]
    assert (model.executions, model.failures) == (5, 0)
    assert model.warmup_wall_ns == 3_000_000
    assert (model.wall_min_ns, model.wall_median_ns, model.wall_max_ns) == (300_000, 300_000, 300_000)
    assert model.modelled_ns == 25_000


def test_skipping_the_warm_up_leaves_the_other_executions(trace: Trace) -> None:
    warm = select(trace, Selection(skip_warmup=True))
    assert metrics_of(warm)["trace_count"] == 4
    assert summarise(warm).models[0].wall_max_ns == 300_000
    assert warm.event_count == trace.event_count - 2 * (1 + 2 + 9)


def test_selections_keep_cores_and_stretches(trace: Trace) -> None:
    assert {row.nc for row in select(trace, Selection(ncs=frozenset({1}))).rows} == {1}
    early = select(trace, Selection(to_ns=2_000_000))
    assert [row.track for row in early.rows] == [Track.RUNTIME, Track.RUNTIME]
    with pytest.raises(ProfileError, match="no events match the filters"):
        select(trace, Selection(from_ns=10**15))


def test_a_neff_selects_the_models_loaded_from_it(trace: Trace, profile_dir: Path, home: Path) -> None:
    stored = next(profile_dir.glob("*/neff_*.neff"))
    assert select(trace, Selection(neff=str(stored))).event_count == trace.event_count
    (home / "other.neff").write_bytes(b"other")
    with pytest.raises(ProfileError, match="no records of"):
        select(trace, Selection(neff=str(home / "other.neff")))
    with pytest.raises(ProfileError, match="cannot read"):
        select(trace, Selection(neff=str(home / "missing.neff")))


def test_operators_are_grouped_and_sorted_by_time(trace: Trace) -> None:
    operators = top_operators(trace)
    assert [(each.name, each.engine, each.count, each.total_ns) for each in operators[:3]] == [
        ("aten.mm", "Tensor", 20, 140_000),
        ("aten.copy_", "DMA", 30, 100_000),
        ("aten.relu", "Scalar", 10, 25_000),
    ]
    assert sum(each.share for each in operators) == pytest.approx(1)
    assert sum(each.total_ns for each in operators) == sum(each.total_ns for each in engine_totals(trace))
    assert top_operators(trace, 2) == operators[:2]


def test_text_and_json_agree_and_label_their_clocks(trace: Trace) -> None:
    what = report(trace)
    text, data = to_text(what), json.loads(json.dumps(to_json(what)))
    assert "measured on this computer" in text
    assert "modelled (not measured)" in text
    assert data["is_simulation"] is True
    assert data["cores"][0]["modelled"] == metrics_of(trace)
    assert data["models"][0]["modelled_ns"] == 25_000
    assert all(len(line) <= 96 for line in text.splitlines())


def test_of_runs_that_followed_each_other_the_newest_is_shown_and_of_ranks_all(
    home: Path, maker: Maker
) -> None:
    def run(name: str, session: str, steps: int, starts: tuple[int, ...]) -> None:
        for start in starts:
            options = CaptureOptions(device=DeviceProfile.SESSION)
            meta = replace(maker.meta(options), session=session, started_unix_ns=start)
            capture = maker.capture(home / name, options, meta=meta)
            maker.train(capture, steps=steps)
            capture.on_close()

    run("ranks", "one", 1, (10, 20))
    assert len(load(str(home / "ranks")).processes) == 2
    assert summarise(load(str(home / "ranks"))).warnings == ()
    now = time.time_ns()
    run("together", "", 1, (now, now + 1))
    assert len(load(str(home / "together")).processes) == 2
    for steps in (1, 2, 3):
        run("runs", f"run {steps}", steps, (steps,))
    newest = load(str(home / "runs"))
    assert len(newest.runs[0].number) == 3
    assert summarise(newest).warnings == (
        f"this is the newest of 3 runs in {home / 'runs'}: --session 1 shows the oldest",
    )
    assert len(load(str(home / "runs"), 1).runs[0].number) == 1
    with pytest.raises(ProfileError, match="has 3 runs, no run 4"):
        load(str(home / "runs"), 4)


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from([*(track.label for track in ENGINES), "DMA"]),
        st.integers(0, 500),
        st.integers(0, 200),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(OPERATIONS, st.integers(1, 4))
def test_active_time_of_any_schedule_equals_brute_force(
    tmp_path_factory: pytest.TempPathFactory, maker: Maker, drawn: list[tuple[str, int, int]], steps: int
) -> None:
    class Drawn(type(maker)):  # type: ignore[misc]
        def mlp(self) -> tuple[object, ...]:
            return tuple(self.operation("op", engine, start, duration) for engine, start, duration in drawn)

    directory = tmp_path_factory.mktemp("drawn")
    Drawn().finished(directory, steps=steps)
    metrics = metrics_of(load(str(directory)))

    def covered(engines: set[str]) -> int:
        return len(
            {
                ns
                for engine, start, length in drawn
                if engine in engines
                for ns in range(start, start + length)
            }
        )

    for track in ENGINES:
        name = f"{track.label.lower()}_engine_active_time"
        assert round(metrics[name] * 1e9) == steps * covered({track.label})
    assert round(metrics["total_active_time"] * 1e9) == steps * covered({engine for engine, _, _ in drawn})
    last = max(start + length for _, start, length in drawn)
    assert round(metrics["total_exec_time"] * 1e9) == steps * (last - min(start for _, start, _ in drawn))


def test_collectives_are_counted_on_their_own_track(home: Path, maker: Maker) -> None:
    class WithExchange(type(maker)):  # type: ignore[misc]
        def mlp(self) -> tuple[object, ...]:
            return (
                self.operation("aten.mm", "Tensor", 0, 4_000),
                self.operation("exchange", "CC-cores", 4_000, 6_000, opcode="PSEUDO_TRIGGER_COLLECTIVE"),
                self.operation("aten.copy_", "DMA", 5_000, 1_000),
            )

    WithExchange().finished(home / "p", steps=2)
    trace = load(str(home / "p"))
    metrics = metrics_of(trace)
    assert metrics["cc_op_count"] == 2
    assert metrics["cc_op_time"] == metrics["cc_op_active_time"] == pytest.approx(2 * 6_000e-9)
    assert metrics["total_active_time"] == pytest.approx(2 * 10_000e-9)
    assert metrics["dma_transfer_count"] == 2
    assert {total.engine for total in engine_totals(trace)} == {"Tensor", "DMA", "CC-cores"}
    assert "DMA 2" not in {line.name for line in layout(trace)[1]}


def test_transfers_have_a_queue_and_are_counted_by_who_makes_their_descriptors(
    home: Path, maker: Maker
) -> None:
    def moved(start_ns: int, opcode: str, read: int, write: int) -> object:
        numbers = {"read_bytes": read, "write_bytes": write}
        return maker.operation("aten.copy_", "DMA", start_ns, 1_000, opcode=opcode, **numbers)

    class WithTransfers(type(maker)):  # type: ignore[misc]
        def mlp(self) -> tuple[object, ...]:
            return (
                moved(0, "DMA_DIRECT2D", 300, 0),
                moved(2_000, "DMA_INDIRECT", 100, 0),
                moved(4_000, "DMA_TRANSPOSE", 200, 0),
                moved(6_000, "DMA_DIRECT2D", 0, 400),
            )

    WithTransfers().finished(home / "p", steps=1)
    trace = load(str(home / "p"))
    metrics = metrics_of(trace)
    assert metrics["dma_queue_count"] == 4
    for mode, times, size in (("static", 2, 700), ("software_dynamic", 1, 100), ("hardware_dynamic", 1, 200)):
        assert metrics[f"{mode}_dma_active_time"] == pytest.approx(times * 1_000e-9)
        assert metrics[f"{mode}_dma_size"] == size
        assert metrics[f"{mode}_dma_size_percent"] == pytest.approx(size / 10)
    (row,) = (row for row in trace.rows_of(Track.DMA) if row.nc == 0)
    queues = [dict(event_details(trace, event))["queue"] for event in range(row.first, row.last)]
    assert queues == ["qSyncIO0", "qGpSimdDynamicSW", "qSyncDynamicHW", "qScalarIO0"]
    exported = io.StringIO()
    write_chrome(trace, exported)
    assert all(f'"queue":"{queue}"' in exported.getvalue() for queue in queues)
