"""What the daemon costs while eight processes execute and somebody watches once a second."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from typing import IO, TYPE_CHECKING

from benchmarks.machine import cpu_share, running_machine
from benchmarks.report import BenchmarkRow, in_short_form
from neurontools.machine import launch
from neurontools.machine.client import Client

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PROCESSES = in_short_form(8, 1)
UPDATES_S = 100_000
SETTLE_S, SECONDS = in_short_form((2, 15), (0, 0.1))

# Executions in bursts a hundred times a second; what a burst lacked the next one makes up for.
WRITER = """
import os, sys, time
from neurontools.machine.client import Client
from neurontools.machine.pages.page import PageWriter
rate = float(sys.argv[1])
client = Client.connect()
place = client.register("bench", "python train.py", count=int(sys.argv[2]))
page = PageWriter(place.page_fd)
slots = range(len(place.cores))
begin, end, done, start = page.begin, page.end, 0, time.monotonic()
os.write(1, b".")
while True:
    due = (time.monotonic() - start) * rate
    while done < due:
        for slot in slots:
            begin(slot)
            end(slot, 0, 50_000, 1_000_000)
        done += len(slots)
    time.sleep(0.01)
"""

WATCHER = """
from neurontools.machine.client import Client
for snapshot in Client.connect().watch(1.0):
    pass
"""


def main() -> list[BenchmarkRow]:
    """Measure and return the rows."""
    with (
        running_machine("trn2.48xlarge") as environ,
        executing(environ, UPDATES_S) as cores,
        child([sys.executable, "-P", "-c", WATCHER], environ),
    ):
        time.sleep(SETTLE_S)
        rate, share = _measured(launch.list_machines()[0].pid)
    what = f"{PROCESSES} processes, {cores} cores, watched once a second"
    return [
        BenchmarkRow.at_least(
            f"telemetry updates, {what}", rate, "1/s", UPDATES_S, "an update is one execution"
        ),
        BenchmarkRow.at_most("neurond meanwhile, CPU", 100 * share, "%", 5, f"of one CPU, over {SECONDS} s"),
    ]


@contextmanager
def executing(environ: Mapping[str, str], updates_s: float) -> Iterator[int]:
    """Let processes execute on all cores of the machine at a rate in all; yields the number of cores."""
    cores = launch.list_machines()[0].core_count
    # A little faster than asked for, so that the rate holds whatever the scheduler does.
    words = [str(1.02 * updates_s / PROCESSES), str(cores // PROCESSES)]
    with ExitStack() as stack:
        command = [sys.executable, "-P", "-c", WRITER, *words]
        for writer in [stack.enter_context(child(command, environ)) for _ in range(PROCESSES)]:
            assert writer.stdout
            assert writer.stdout.read(1) == b"."
        yield cores


@contextmanager
def child(
    command: Sequence[str], environ: Mapping[str, str], out: IO[bytes] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process until the end of the block, its output into a file or, without one, a pipe."""
    process = subprocess.Popen(
        command,
        env=environ,
        stdout=out or subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()


def _measured(daemon: int) -> tuple[float, float]:
    with Client.connect("bench") as client:
        before = client.snapshot()
        share = cpu_share(daemon, SECONDS)
        after = client.snapshot()
    start, end = (dict(snapshot.lifetime).get("executions", 0) for snapshot in (before, after))
    return (end - start) / (1e-9 * (after.taken_ns - before.taken_ns)), share


if __name__ == "__main__":
    os.environ.setdefault("NO_COLOR", "1")
    for row in main():
        print(row)
