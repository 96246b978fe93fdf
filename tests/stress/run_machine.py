"""The long form of the stress test: `python tests/stress/run_machine.py [--seconds 60] [--clients 1000]`.

Writes MACHINE.md with `--write`; the exit code is 1 when anything was wrong. As root it runs on a machine that three
users share and in a small file system that is filled; without, as one user; the report says what was left out.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

# The checkout comes last, so that the installed package is what is stressed.
sys.path.append(str(Path(__file__).parents[2]))

from neurontools import machine
from neurontools.machine.sharing import share
from tests.stress import isolated
from tests.stress.machine_chaos.chaos import ChaosOptions, ChaosOutcome, ChaosTest

if TYPE_CHECKING:
    import argparse

GROUP = 47110815
USERS = (0, 65534, 65533)
CLOCK_SOURCE = Path(__file__).parent / "machine_chaos" / "clock.c"
RESULT = Path(__file__).with_name("MACHINE.md")
BYTES_A_CLIENT = 1 << 16
SCRATCH = 1 << 20


def main(argv: list[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    if arguments.inside:
        return inside(arguments)
    with isolated.own_folder("nt-chaos-") as folder:
        disk = folder / "disk"
        disk.mkdir()
        disk_bytes = SCRATCH + BYTES_A_CLIENT * arguments.clients
        return isolated.run_again(__file__, argv, folder, environment(folder, disk), disk, disk_bytes)


def parser() -> argparse.ArgumentParser:
    made = isolated.parser("Stress a simulated machine and check what must hold.", RESULT)
    made.add_argument("--clients", type=int, default=1000)
    made.add_argument("--instance", default="trn2.48xlarge")
    return made


def environment(folder: Path, disk: Path) -> dict[str, str]:
    machine_of_ours = {"NEURONTOOLS_RUNTIME_DIR": f"{disk}/run", "NEURONTOOLS_MACHINE": "chaos"}
    values = {**isolated.environment(folder), **machine_of_ours}
    compiler = shutil.which("cc")
    if compiler:
        (folder / "clock").write_bytes(bytes(8))
        (folder / "clock").chmod(0o644)
        library = f"{folder}/clock.so"
        flags = ["-O2", "-shared", "-fPIC"]
        subprocess.run([compiler, *flags, "-o", library, str(CLOCK_SOURCE), "-ldl"], check=True)
        values |= {"LD_PRELOAD": library, "CHAOS_CLOCK": f"{folder}/clock"}
    return values


def inside(arguments: argparse.Namespace) -> int:
    # Another user may not be able to read the interpreter's files: everything is loaded before.
    for module in pkgutil.iter_modules(machine.__path__):
        importlib.import_module(f"neurontools.machine.{module.name}")
    users = USERS if os.geteuid() == 0 else ()
    if users:
        share(os.environ["NEURONTOOLS_RUNTIME_DIR"], str(GROUP))
    options = ChaosOptions(
        seconds=arguments.seconds,
        clients=arguments.clients,
        seed=arguments.seed,
        instance=arguments.instance,
        users=users,
        group=GROUP,
        clock=os.environ.get("CHAOS_CLOCK", ""),
        full_disk=arguments.full_disk,
    )
    outcome = ChaosTest(options).run()
    return isolated.print_report(arguments, outcome, report(options, outcome), RESULT)


def report(options: ChaosOptions, outcome: ChaosOutcome) -> str:
    left_out = [
        *([] if options.users else ["other users (needs root)"]),
        *([] if options.clock else ["clock jumps (no C compiler)"]),
        *([] if options.full_disk else ["a full disk (needs a mount)"]),
    ]
    rows = {
        "clients at once": f"{outcome.most_alive:,}",
        "client processes in all": f"{outcome.processes:,}",
        "registrations": f"{outcome.registrations:,}",
        "executions": f"{outcome.executions:,}",
        "daemons killed": outcome.daemons_killed,
        "jumps of the wall clock": outcome.clock_jumps,
        "users": max(1, len(options.users)),
        "seconds with a full disk": f"{outcome.full_disk_s:.1f} ({outcome.private_pages} private pages)",
        "checkpoints at which everything was compared": outcome.checkpoints,
        "descriptors of the daemon, at first and at last": "{} and {}".format(*outcome.descriptors),
        "resident memory of the daemon, at first and at last": "{:.1f} and {:.1f} MiB".format(
            *outcome.resident_mib
        ),
        "resident memory, most at a checkpoint": f"{outcome.resident_at_most_mib:.1f} MiB",
    }
    command = (
        f"`python tests/stress/run_machine.py --seconds {options.seconds:g} --clients {options.clients} "
        f"--seed {options.seed}`: {options.instance}."
    )
    return isolated.report("Stress", command, rows, left_out, outcome.wrong)


if __name__ == "__main__":
    sys.exit(main())
