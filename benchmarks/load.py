"""What the daemon costs while eight processes execute and somebody watches once a second."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from benchmarks.machine import cpu_share, running_machine
from benchmarks.report import Row
from neurontools.machine import launch
from neurontools.machine.client import Client

if TYPE_CHECKING:
    from collections.abc import Mapping

PROCESSES = 8
UPDATES_S = 100_000
SECONDS = 15

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


def main() -> list[Row]:
    """Measure and return the rows."""
    with running_machine("trn2.48xlarge") as environ:
        cores = launch.list_machines()[0].core_count
        # A little faster than needed, so that the rate holds whatever the scheduler does.
        words = [str(1.02 * UPDATES_S / PROCESSES), str(cores // PROCESSES)]
        children = [_start(WRITER, words, environ) for _ in range(PROCESSES)]
        try:
            for child in children:
                assert child.stdout
                assert child.stdout.read(1) == b"."
            children.append(_start(WATCHER, [], environ))
            time.sleep(2)
            rate, share = _measured(launch.list_machines()[0].pid)
        finally:
            for child in children:
                child.send_signal(signal.SIGKILL)
                child.communicate()
    what = f"{PROCESSES} processes, {cores} cores, watched once a second"
    return [
        Row.at_least(f"telemetry updates, {what}", rate, "1/s", UPDATES_S, "an update is one execution"),
        Row.at_most("neurond meanwhile, CPU", 100 * share, "%", 5, f"of one CPU, over {SECONDS} s"),
    ]


def _measured(daemon: int) -> tuple[float, float]:
    with Client.connect("bench") as client:
        before = client.snapshot()
        share = cpu_share(daemon, SECONDS)
        after = client.snapshot()
    done = dict(after.lifetime)["executions"] - dict(before.lifetime)["executions"]
    return done / (1e-9 * (after.taken_ns - before.taken_ns)), share


def _start(code: str, words: list[str], environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-c", code, *words]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    os.environ.setdefault("NO_COLOR", "1")
    for row in main():
        print(row)
