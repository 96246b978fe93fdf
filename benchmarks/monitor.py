"""What neuron-monitor costs at one report a second, on a big machine on which eight processes execute."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.load import PROCESSES, child, executing
from benchmarks.machine import cpu_share, running_machine
from benchmarks.report import BenchmarkRow, in_short_form

SECONDS = in_short_form(20, 2.5)
REPORTS = 2
ROUNDS = in_short_form(101, 1)
JSON_LIMIT = 5.0
EXECUTIONS_S = 10_000
GROUPS = {
    "neuron_runtimes": ("neuroncore_counters", "memory_used", "neuron_runtime_vcpu_usage", "execution_stats"),
    "system_metrics": ("vcpu_usage", "memory_info", "neuron_hw_counters"),
}


def main() -> list[BenchmarkRow]:
    """Measure and return the rows."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running_machine("trn2.48xlarge") as environ,
        executing(environ, EXECUTIONS_S) as cores,
    ):
        config = Path(folder, "monitor.conf")
        config.write_text(json.dumps(_config()), encoding="utf-8")
        command = [str(Path(sys.executable).parent / "neuron-monitor"), "-c", str(config)]
        with (Path(folder, "out")).open("wb") as out, child(command, environ, out) as monitor:
            while Path(out.name).read_bytes().count(b"\n") < REPORTS:
                assert monitor.poll() is None
                time.sleep(0.05)
            before = Path(out.name).read_bytes().count(b"\n")
            share = cpu_share(monitor.pid, SECONDS)
            lines = Path(out.name).read_bytes().count(b"\n") - before
            report = json.loads(Path(out.name).read_bytes().splitlines()[-2])
    dumps_s = _dumps_s(report)
    note = (
        f"of one CPU, over {SECONDS} s: {lines} reports, {PROCESSES} processes on {cores} cores, every group"
    )
    return [
        BenchmarkRow.at_most(
            "neuron-monitor, CPU of a report / json.dumps of it",
            share * SECONDS / lines / dumps_s,
            "x",
            JSON_LIMIT,
            f"json.dumps: {1e3 * dumps_s:.2f} ms",
        ),
        BenchmarkRow.info("neuron-monitor at 1 s, CPU", 100 * share, "%", note),
    ]


def _dumps_s(report: object) -> float:
    """Return the CPU time in which Python's own encoder writes a report, median."""
    times = []
    for _ in range(ROUNDS):
        begin = time.process_time()
        json.dumps(report)
        times.append(time.process_time() - begin)
    return median(times)


def _config() -> dict[str, object]:
    runtimes = [{"type": group} for group in GROUPS["neuron_runtimes"]]
    system = [{"type": group} for group in GROUPS["system_metrics"]]
    return {
        "period": "1s",
        "neuron_runtimes": [{"tag_filter": ".*", "metrics": runtimes}],
        "system_metrics": system,
    }


if __name__ == "__main__":
    for row in main():
        print(row)
