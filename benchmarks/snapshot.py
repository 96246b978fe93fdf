"""Snapshot time with 512 cores and 1,000 processes, beside a bare loop that reads and unpacks the same pages."""

from __future__ import annotations

import json
import os
import resource
import statistics
import struct
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks.report import BenchmarkRow, in_short_form
from neurontools.machine.daemon.telemetry import SnapshotBuilder, Telemetry
from neurontools.machine.devices import Layout
from neurontools.machine.events import Adopt, Process
from neurontools.machine.instances.catalogue import instance_type
from neurontools.machine.journal import Definition
from neurontools.machine.pages.layout import CORE_BYTES, PageLayout
from neurontools.machine.pages.page import PageIdentity, PageWriter, create_page
from neurontools.machine.processes import ProcessKey
from neurontools.machine.state import MachineState

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.machine.instances.catalogue import InstanceType

DEVICES, CORES, PROCESSES = 64, 512, 1000
WARMING_UP, ROUNDS = in_short_form((5, 101), (0, 1))
CPU = "process CPU time, median"
READ_LIMIT = 6.0
_CORE = struct.Struct(f"{CORE_BYTES // 8}q")
_CORE_OFFSET = PageLayout(1).core_offset
JSON_LIMIT = 2.0


def main() -> list[BenchmarkRow]:
    """Measure and return the rows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        machine, telemetry, writers, pages = _fill(folder, stack)
        builder = SnapshotBuilder(Definition("bench", "512 cores", 1, time.time()), _instance())

        def work() -> None:
            for writer in writers:
                writer.begin(0)
                writer.end(0, 0, 1000, 1000, 0)

        def snapshot() -> object:
            return builder.snapshot(machine, telemetry, *_now())

        def encode() -> str:
            return builder.encoded(machine, telemetry, *_now())

        size = len(encode())
        encoded = json.loads(encode())
        assert len(encoded["processes"]) == PROCESSES
        bare, changed = _medians_ms((lambda: _read_pages(pages), snapshot), work)
        text, python_json = _medians_ms((encode, lambda: json.dumps(encoded)), work)
        (idle,) = _medians_ms((snapshot,), lambda: None)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    what = f"{CORES} cores, {PROCESSES:,} processes"
    loop = f"{CPU}; {CORES} changed pages, pread and struct.unpack: {bare:.3g} ms"
    dumps = f"{CPU}, {size / 2**20:.1f} MiB; json.dumps of the same values: {python_json:.3g} ms"
    return [
        BenchmarkRow.at_most(
            f"snapshot, {what}, changed / reading the pages", changed / bare, "x", READ_LIMIT, loop
        ),
        BenchmarkRow.at_most(
            "the same with its JSON encoded / json.dumps", text / python_json, "x", JSON_LIMIT, dumps
        ),
        BenchmarkRow.info(f"snapshot, {what}, every core's page changed", changed, "ms", CPU),
        BenchmarkRow.info(f"snapshot, {what}, nothing changed", idle, "ms", CPU),
        BenchmarkRow.info("the same with its JSON encoded, every core's page changed", text, "ms", CPU),
    ]


def _read_pages(pages: list[int]) -> None:
    for page in pages:
        _CORE.unpack(os.pread(page, CORE_BYTES, _CORE_OFFSET))


def _instance() -> InstanceType:
    # No real machine has 512 cores; 64 devices of eight are a trn2 four times over.
    model = instance_type("trn2.48xlarge")
    times = DEVICES // model.device_count
    return replace(
        model,
        device_count=DEVICES,
        connected_to=model.connected_to * times,
        pci_bdf=model.pci_bdf * times,
        cpu_affinity=model.cpu_affinity * times,
        numa_node=model.numa_node * times,
    )


def _fill(folder: str, stack: ExitStack) -> tuple[MachineState, list[Telemetry], list[PageWriter], list[int]]:
    """Return a machine, its processes' pages, and writers and descriptors of those with a core."""
    machine = MachineState(Layout(DEVICES, CORES // DEVICES, 96 * 2**30), {})
    telemetry, writers, pages = [], [], []
    for number in range(PROCESSES):
        cores = (number,) if number < CORES else ()
        process = Process(
            ProcessKey(number + 1, 7), 0, "", "python train.py", "2.34.10.0", bool(cores), cores, 0
        )
        machine.handle(Adopt(process), 0)
        identity = PageIdentity("bench", number + 1, 7, "boot", 0, "", "python train.py", "2.34.10.0", 0)
        fd = create_page(f"{folder}/{number}", identity, cores)
        page = Telemetry(process, os.dup(fd))
        stack.callback(page.close)
        stack.callback(os.close, fd)
        telemetry.append(page)
        if cores:
            writer = PageWriter(fd)
            stack.callback(writer.close)
            writers.append(writer)
            pages.append(fd)
    return machine, telemetry, writers, pages


def _medians_ms(measured: tuple[Callable[[], object], ...], before: Callable[[], None]) -> tuple[float, ...]:
    """Return the median of each function; they take turns, so that a slow moment hits all of them."""
    # CPU time, because other programs on the computer would be measured with the wall clock.
    # The first rounds are not counted: a daemon runs long.
    times: list[list[float]] = [[] for _ in measured]
    for _ in range(WARMING_UP + ROUNDS):
        for taken, function in zip(times, measured, strict=True):
            before()
            begin = time.process_time_ns()
            function()
            taken.append(1e-6 * (time.process_time_ns() - begin))
    return tuple(statistics.median(taken[WARMING_UP:]) for taken in times)


def _now() -> tuple[int, float]:
    return time.monotonic_ns(), time.time()
