"""Snapshot time with 512 cores and 1,000 processes: every page just changed, and nothing changed."""

from __future__ import annotations

import json
import os
import resource
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks.report import Row
from neurontools.machine.daemon.report import Report, now
from neurontools.machine.daemon.telemetry import Telemetry
from neurontools.machine.events import Adopt, Layout, Process
from neurontools.machine.instances.catalogue import instance_type
from neurontools.machine.journal import Definition
from neurontools.machine.pages.page import PageIdentity, PageWriter, create_page
from neurontools.machine.processes import ProcessKey
from neurontools.machine.state import Machine

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.machine.instances.catalogue import InstanceType

DEVICES, CORES, PROCESSES = 64, 512, 1000
WARMING_UP, ROUNDS = 5, 101
CPU = "process CPU time, median"


def main() -> list[Row]:
    """Measure and return the rows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        machine, telemetry, writers = _fill(folder, stack)
        report = Report(Definition("bench", "512 cores", 1, time.time()), _instance())

        def work() -> None:
            for writer in writers:
                writer.begin(0)
                writer.end(0, 0, 1000, 1000, 0)

        changed = _median_ms(lambda: report.snapshot(machine, telemetry, now()), work)
        idle = _median_ms(lambda: report.snapshot(machine, telemetry, now()), lambda: None)
        text = _median_ms(lambda: report.encoded(machine, telemetry, now()), work)
        size = len(report.encoded(machine, telemetry, now()))
        assert len(json.loads(report.encoded(machine, telemetry, now()))["processes"]) == PROCESSES
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    what = f"{CORES} cores, {PROCESSES:,} processes"
    return [
        Row.at_most(f"snapshot, {what}, every core's page changed", changed, "ms", 3, CPU),
        Row.info(f"snapshot, {what}, nothing changed", idle, "ms", CPU),
        Row.info(
            "the same with its JSON encoded, every core's page changed",
            text,
            "ms",
            f"{CPU}, {size / 2**20:.1f} MiB",
        ),
    ]


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


def _fill(folder: str, stack: ExitStack) -> tuple[Machine, list[Telemetry], list[PageWriter]]:
    machine = Machine(Layout(DEVICES, CORES // DEVICES, 96 * 2**30), {})
    telemetry, writers = [], []
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
    return machine, telemetry, writers


def _median_ms(measured: Callable[[], object], before: Callable[[], None]) -> float:
    # CPU time, because other programs on the computer would be measured with the wall clock.
    # The first rounds are not counted: a daemon runs long.
    times = []
    for _ in range(WARMING_UP + ROUNDS):
        before()
        begin = time.process_time_ns()
        measured()
        times.append(1e-6 * (time.process_time_ns() - begin))
    return statistics.median(times[WARMING_UP:])
