from __future__ import annotations

import json

import pytest

from neurontools.nki.report import LATENCY, report, to_json, to_text
from tests.nki.launches import launch_of, line_of, matmul, ones, scale


def test_a_report_has_time_engines_memory_and_path() -> None:
    found = report(launch_of(scale, ones(256, 512)))
    core = found.slowest
    assert (found.kernel, found.target, len(found.cores), found.warnings) == ("scale", "trn2", 1, ())
    assert found.time_us == pytest.approx(found.start_us + core.time_us)
    assert core.time_us == pytest.approx(max(row.start_us + row.duration_us for row in core.instructions))
    assert [row.engine for row in core.instructions] == ["DMA", "Vector", "DMA"] * 2
    assert core.busy_us["DMA"] == pytest.approx(
        sum(row.duration_us for row in core.instructions if row.queue)
    )
    assert core.instructions[core.critical_path[-1]].engine == "DMA"
    sbuf, psum = core.memory
    assert (sbuf.name, sbuf.peak_bytes, psum.peak_bytes) == ("SBUF", 2048, 0)
    assert sbuf.largest[0][:2] == ("tile", 2048)
    assert [nbytes for _, nbytes in sbuf.over_time][-1] == 0


def test_instructions_know_their_lines_queues_and_bytes() -> None:
    load, work, store = report(launch_of(scale, ones(128, 512))).slowest.instructions
    assert load.line == line_of(scale, "src=x[rows, :]")
    assert (load.queue, store.queue, work.queue) == ("qSyncIO0", "qScalarIO0", "")
    assert load.nbytes == store.nbytes == 128 * 512 * 4
    assert work.nbytes == 0
    assert (work.waits_for, store.waits_for) == ((0,), (0, 1))


def test_the_bound_is_the_busiest_engine() -> None:
    assert report(launch_of(scale, ones(2048, 1024))).bound == "DMA"
    assert report(launch_of(scale, ones(128, 2048), depth=50)).bound == "Vector"
    assert report(launch_of(scale, ones(128, 8), depth=20)).bound == LATENCY


def test_lines_add_up_to_the_core() -> None:
    core = report(launch_of(matmul, ones(256, 256), ones(256, 512))).slowest
    assert sum(line.busy_us for line in core.lines) == pytest.approx(sum(core.busy_us.values()))
    assert sum(line.critical_us for line in core.lines) == pytest.approx(core.time_us)
    assert sum(line.instructions for line in core.lines) == len(core.instructions)


def test_json_is_complete_and_serializable() -> None:
    found = report(launch_of(scale, ones(128, 512)))
    value = json.loads(json.dumps(to_json(found)))
    assert value["time_ns"] == pytest.approx(found.time_us * 1e3)
    (core,) = value["cores"]
    assert len(core["instructions"]) == 3
    assert core["instructions"][2]["waits_for"] == [0, 1]
    assert core["memory"][0]["capacity_bytes"] == 208 * 1024


def test_text_fits_the_terminal() -> None:
    found = report(launch_of(matmul, ones(256, 256), ones(256, 512)))
    text = to_text(found, 80)
    assert max(map(len, text.splitlines())) <= 80
    assert text.startswith("matmul on trn2, 1 core: ")
    assert "no warnings" in text
