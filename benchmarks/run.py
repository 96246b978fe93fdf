"""Run benchmarks, all by default: `python benchmarks/run.py [--write] [NAME ...]`; `--write` keeps them in RESULTS.md.

`--short` runs one round of each and ignores budgets: it shows what no longer runs.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import traceback
from importlib import import_module
from pathlib import Path

# The checkout comes last, so that the installed package is what is measured.
sys.path.append(str(Path(__file__).parents[1]))

from benchmarks.report import BenchmarkRow, choose_short_form, table

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
    "native",
    "workers",
    "hierarchical_sgd",
    "cache",
    "top",
    "customop",
    "kernels",
    "anchors",
    "advice",
    "neff",
    "profiles",
    "foreign_traces",
)


RESULTS = Path(__file__).with_name("RESULTS.md")
_HEAD = "## "


def main() -> int:
    """Run the named benchmarks; the exit code is 1 when one fails or a budget is not kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", choices=(*BENCHMARKS, []), help=", ".join(BENCHMARKS)
    )
    parser.add_argument("--write", action="store_true", help="keep the results in RESULTS.md")
    parser.add_argument("--short", action="store_true", help="one round of each, whatever its budgets say")
    arguments = parser.parse_args()
    if arguments.short and arguments.write:
        parser.error("--short measures nothing to keep")
    if arguments.short:
        choose_short_form()
    is_good = True
    for name in arguments.names or BENCHMARKS:
        print(f"{name} ...", flush=True)
        try:
            rows = import_module(f"benchmarks.{name}").main()
        except Exception:  # the others run all the same
            traceback.print_exc()
            is_good = False
            continue
        print(table(rows), flush=True)
        if arguments.write:
            keep(name, rows)
        is_good = is_good and (arguments.short or all(row.ok for row in rows))
    return 0 if is_good else 1


def keep(name: str, rows: list[BenchmarkRow]) -> None:
    """Put the rows of one benchmark into RESULTS.md, in place of those that are there."""
    stored = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else ""
    sections = dict(part.split("\n", 1) for part in stored.split(f"\n{_HEAD}")[1:])
    sections[name] = f"\n`python benchmarks/run.py {name}`\n\n{table(rows)}\n"
    text = "".join(f"\n{_HEAD}{known}\n{sections[known]}" for known in BENCHMARKS if known in sections)
    RESULTS.write_text(
        f"# Results\n\nEach section is one run on {machine()}. Ratios are of programs that take turns or of CPU times; the "
        f"other figures depend on what else the computer does.\n{text}",
        encoding="utf-8",
    )


def machine() -> str:
    """Describe this computer without naming it."""
    model = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    return f"{os.cpu_count()} x {model}, {platform.system()}, Python {platform.python_version()}"


if __name__ == "__main__":
    sys.exit(main())
