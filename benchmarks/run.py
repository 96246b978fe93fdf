"""Run every benchmark and write RESULTS.md: `python benchmarks/run.py [NAME ...]`."""

from __future__ import annotations

import os
import platform
import sys
from importlib import import_module
from pathlib import Path

# The checkout comes last, so that the installed package is what is measured.
sys.path.append(str(Path(__file__).parents[1]))

from benchmarks.report import Row, table

BENCHMARKS = (
    "neuron_ls",
    "peers",
    "telemetry",
    "load",
    "monitor",
    "sysfs",
    "snapshot",
    "machine",
    "mlp_steps",
    "cache",
    "top",
    "customop",
)


def main(names: list[str]) -> int:
    """Run the named benchmarks, all by default; only a full run is written down."""
    rows: list[Row] = []
    for name in names or BENCHMARKS:
        print(f"{name} ...", flush=True)
        rows += import_module(f"benchmarks.{name}").main()
    text = table(rows)
    print(text)
    if not names:
        path = Path(__file__).with_name("RESULTS.md")
        path.write_text(f"# Results\n\n`make bench` on {machine()}.\n\n{text}\n")
        print(f"written: {path}")
    return 0 if all(row.ok for row in rows) else 1


def machine() -> str:
    """Describe this computer without naming it."""
    model = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    return f"{os.cpu_count()} x {model}, {platform.system()}, Python {platform.python_version()}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
