"""Steps of two workers under torchrun against DistributedDataParallel over gloo on the CPU, in the same processes, in turn.

CPU time of a worker, so that the figures do not depend on how many CPUs the computer has for the two. A small model
spends its time on recording, with one process as with two: the ratio of one process is shown beside.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.machine import running_machine
from benchmarks.report import BenchmarkRow

BIN = Path(sys.executable).parent
WORKER = Path(__file__).with_name("worker_steps.py")


def main() -> list[BenchmarkRow]:
    """Run both workers and return the rows."""
    with running_machine("trn1.2xlarge") as environ:
        command = [BIN / "neuron-run", "--", "torchrun", "--standalone", "--nproc_per_node=2", WORKER]
        result = subprocess.run(
            list(map(str, command)),
            env={**environ, "OMP_NUM_THREADS": "1", "NEURON_CC_FLAGS": "--log_level=ERROR"},
            stdout=subprocess.PIPE,
            encoding="utf-8",
            check=True,
        )
    return [row for name, found in json.loads(result.stdout).items() for row in _rows(name.upper(), found)]


def _rows(name: str, found: dict[str, Any]) -> list[BenchmarkRow]:
    def ratio(one: str, other: str, clock: int) -> float:
        return median(block[one][clock] / block[other][clock] for block in found["blocks"])

    added = [
        median(block[together][0] - block[alone][0] for block in found["blocks"])
        for alone, together in (("eager", "gloo"), ("device", "workers"))
    ]
    clocks = f"wall time: {ratio('gloo', 'workers', 1):.3g} x"
    both, alone = ratio("gloo", "workers", 0), ratio("eager", "device", 0)
    return [
        BenchmarkRow.at_least(f"{name}, two workers / gloo DDP, CPU time", both, "x", 0.95, clocks),
        BenchmarkRow.info(f"{name}, one process, device / eager, CPU time", alone, "x",
            f"median of {len(found['blocks'])} interleaved blocks; losses equal: {found['equal']}"),
        BenchmarkRow.at_most(f"{name}, CPU time that the other worker adds, device / gloo DDP", added[1] / added[0], "x",
            1, f"{1e3 * added[1]:.3g} ms and {1e3 * added[0]:.3g} ms a step"),
    ]  # fmt: skip
