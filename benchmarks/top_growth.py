"""Does neuron-top grow? `python benchmarks/top_growth.py [--minutes 60] [--write]`.

It runs in a terminal of 200x60 at 10 Hz over 512 changing cores, and every page is turned to again and again. Every
half minute its memory, threads and open files are noted. Writes TOP_GROWTH.md with `--write`; the exit code is 1 when
it grew more than a history of an hour may take.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

# The checkout comes last, so that the installed package is what is measured.
sys.path.append(str(Path(__file__).parents[1]))

from benchmarks.run import machine
from benchmarks.terminal import Terminal, terminal
from benchmarks.wide import CORES, wide_machine

EVERY_S = 30.0
# After so long every page was drawn and every cache was filled.
SETTLED_S = 120.0
# The last hour of 512 cores by the minute, and the processes' own.
ROOM_MIB = 3.0
# Each page and what its keys turn to, then back in time, to the start, forward again, and to now.
KEYS = ("h", "u", "p", "\r", "v", "t", "e", "o", " ", "[[[", "{", "]", " ")
RESULT = Path(__file__).with_name("TOP_GROWTH.md")


@dataclass(frozen=True, slots=True)
class GrowthSample:
    """What neuron-top had at a moment since its start."""

    at_s: float
    own_mib: float
    pss_mib: float
    threads: int
    files: int
    cpu_s: float


def main(argv: list[str] | None = None) -> int:
    """Measure, report, and return the exit code."""
    arguments = parser().parse_args(argv)
    samples = measured(60 * arguments.minutes)
    text = report(arguments.minutes, samples)
    print(text)
    if arguments.write:
        RESULT.write_text(text, encoding="utf-8")
    return 0 if grown_mib(samples) <= ROOM_MIB else 1


def parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    made = argparse.ArgumentParser(description="Watch neuron-top's memory over a long run.")
    made.add_argument("--minutes", type=float, default=60.0)
    made.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    return made


def measured(seconds: float) -> list[GrowthSample]:
    """Run neuron-top for so long and return what was noted."""
    command = (str(Path(sys.executable).parent / "neuron-top"), "--interval", "0.1")
    with wide_machine(busy=True) as environ, terminal(command, environ) as shown:
        begin_s = time.monotonic() - shown.first_paint_s(b"neuron-top")
        return _samples(shown, begin_s, seconds)


def _samples(shown: Terminal, begin_s: float, seconds: float) -> list[GrowthSample]:
    process = psutil.Process(shown.pid)
    samples = []
    keys = itertools.cycle(KEYS)
    for at_s in _steps(EVERY_S, seconds):
        while (left_s := begin_s + at_s - time.monotonic()) > 0:
            shown.read(min(left_s, EVERY_S / len(KEYS)))
            shown.press(next(keys))
        used = process.cpu_times()
        samples.append(
            GrowthSample(
                at_s,
                own_mib(shown.pid),
                process.memory_full_info().pss / 2**20,
                process.num_threads(),
                process.num_fds(),
                used.user + used.system,
            )
        )
    return samples


def own_mib(pid: int) -> float:
    """Return the memory that is no page of a file: all others' share goes up and down with the programs of the computer."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        (line,) = (line for line in file if line.startswith("RssAnon:"))
    return int(line.split()[1]) / 2**10


def _steps(step: float, end: float) -> list[float]:
    return [step * number for number in range(1, int(end / step) + 1)]


def grown_mib(samples: list[GrowthSample]) -> float:
    """Return by how much the end is above the moment when everything had been drawn once: medians of five."""
    settled = [sample.own_mib for sample in samples if sample.at_s >= SETTLED_S]
    return sorted(settled[-5:])[2] - sorted(settled[:5])[2]


def report(minutes: float, samples: list[GrowthSample]) -> str:
    """Return the figures as Markdown."""
    last = samples[-1]
    rows = "\n".join(
        f"| {sample.at_s / 60:g} | {sample.own_mib:.1f} | {sample.pss_mib:.1f} | {sample.threads} | {sample.files} |"
        for sample in samples
        if sample is last or sample.at_s % max(60, 60 * (minutes // 12)) == 0
    )
    return (
        f"# A long run of neuron-top\n\n`python benchmarks/top_growth.py --minutes {minutes:g}`: {CORES} changing cores, "
        f"10 updates a second, 200x60, a key every {EVERY_S / len(KEYS):.1f} s; on {machine()}.\n\n"
        f"Memory without pages of files grown since minute {SETTLED_S / 60:g}: {grown_mib(samples):.1f} MiB (at most {ROOM_MIB:g}). "
        f"CPU over all: {100 * last.cpu_s / last.at_s:.1f} % of one core.\n\n"
        f"| minute | memory without pages of files, MiB | with its share of those (PSS), MiB | threads | open files |\n"
        f"|---|---|---|---|---|\n{rows}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
