"""A chaos test of the compile cache: `python tests/stress/run_cache.py [--seconds 60] [--processes 16]`.

Writes CACHE.md with `--write`; the exit code is 1 when anything was wrong. As root it runs in a small file system that
is filled now and then, with a program of another user; the report says what was left out.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

# The checkout comes last, so that the installed package is what is stressed.
sys.path.append(str(Path(__file__).parents[2]))

from tests.stress import isolated
from tests.stress.cache_chaos.chaos import CacheChaosOptions, CacheChaosOutcome, CacheChaosTest

if TYPE_CHECKING:
    import argparse

DISK_BYTES = 6 << 20
RESULT = Path(__file__).with_name("CACHE.md")


def main(argv: list[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    if arguments.inside:
        return inside(arguments)
    with isolated.own_folder("nt-cache-chaos-") as folder:
        return isolated.run_again(__file__, argv, folder, isolated.environment(folder), folder, DISK_BYTES)


def parser() -> argparse.ArgumentParser:
    made = isolated.parser("Stress one compile cache and check what must hold.", RESULT)
    made.add_argument("--processes", type=int, default=16)
    return made


def inside(arguments: argparse.Namespace) -> int:
    options = CacheChaosOptions(
        arguments.seconds, arguments.processes, arguments.seed, full_disk=arguments.full_disk
    )
    outcome = CacheChaosTest(Path(arguments.inside), options).run()
    return isolated.print_report(arguments, outcome, report(options, outcome), RESULT)


def report(options: CacheChaosOptions, outcome: CacheChaosOutcome) -> str:
    left_out = [
        *([] if os.geteuid() == 0 else ["another user (needs root)"]),
        *([] if options.full_disk else ["a full disk (needs a mount)"]),
    ]
    rows = {
        "processes at once": options.processes,
        "processes in all": f"{outcome.processes:,}",
        "killed with -9": f"{outcome.kills:,}",
        **{f"rounds of a {role}": f"{rounds:,}" for role, rounds in outcome.rounds.items()},
        "rounds that a full disk or a competitor refused": f"{outcome.refused:,}",
        "seconds with a full disk": f"{outcome.full_disk_s:.1f}",
        "checks at rest": outcome.checks_at_rest,
    }
    command = (
        f"`python tests/stress/run_cache.py --seconds {options.seconds:g} "
        f"--processes {options.processes} --seed {options.seed}`"
    )
    return isolated.report("Stress of the compile cache", command, rows, left_out, outcome.wrong)


if __name__ == "__main__":
    sys.exit(main())
