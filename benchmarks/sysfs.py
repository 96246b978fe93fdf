"""What the sysfs mirror of a big machine costs: writing it, and keeping it current once a second."""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

from benchmarks.load import child, executing
from benchmarks.machine import cpu_share, running_machine
from benchmarks.report import BenchmarkRow, in_short_form

SETTLE_S, SECONDS = in_short_form((2, 20), (0, 0.1))
EXECUTIONS_S = 10_000
INSTANCE = in_short_form("trn2.48xlarge", "trn1.2xlarge")


def main() -> list[BenchmarkRow]:
    """Measure and return the rows."""
    with running_machine(INSTANCE) as environ:
        export_s = _export(environ)
        idle, _ = _watched(environ, busy=False)
        busy, changed = _watched(environ, busy=True)
    note = f"of one CPU, over {SECONDS} s, once a second, on this computer's disk"
    return [
        BenchmarkRow.info(
            f"writing the sysfs mirror of {INSTANCE}", export_s, "s", "13,795 files on this computer's disk"
        ),
        BenchmarkRow.at_most("keeping the sysfs mirror of an idle machine, CPU", 100 * idle, "%", 1, note),
        BenchmarkRow.at_most(
            "keeping the sysfs mirror of a busy machine, CPU",
            100 * busy,
            "%",
            3,
            f"{note}; {changed} files change",
        ),
    ]


def _export(environ: dict[str, str]) -> float:
    with tempfile.TemporaryDirectory() as folder, Path(folder, "log").open("wb") as log:
        start = time.monotonic()
        with child([*_PROGRAM, f"{folder}/mirror"], environ, log) as export:
            export.wait()
        return time.monotonic() - start


def _watched(environ: dict[str, str], *, busy: bool) -> tuple[float, int]:
    with (
        executing(environ, EXECUTIONS_S) if busy else nullcontext(),
        tempfile.TemporaryDirectory() as folder,
        Path(folder, "log").open("wb") as log,
        child([*_PROGRAM, f"{folder}/mirror", "--watch"], environ, log) as mirror,
    ):
        while not Path(log.name).read_bytes():
            assert mirror.poll() is None
            time.sleep(0.1)
        time.sleep(SETTLE_S)
        share = cpu_share(mirror.pid, SECONDS)
        newest = time.time() - 1.2
        changed = sum(
            path.lstat().st_mtime > newest for path in Path(folder, "mirror").rglob("*") if path.is_file()
        )
        return share, changed


_PROGRAM = (str(Path(sys.executable).parent / "neurontools"), "sysfs", "export")


if __name__ == "__main__":
    for row in main():
        print(row)
