"""The long form of the stress test: `python benchmarks/stress.py [--seconds 60] [--clients 1000]`.

Writes STRESS.md with `--write`; the exit code is 1 when anything was wrong. As root it storms on a machine that three
users share and in a small file system that is filled; without, as one user; the report says what was left out.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

# The checkout comes last, so that the installed package is what is stressed.
sys.path.append(str(Path(__file__).parents[1]))

from benchmarks.storm.storm import Options, Outcome, Storm
from neurontools import machine
from neurontools.machine.sharing import share

GROUP = 47110815
USERS = (0, 65534, 65533)
CLOCK_SOURCE = Path(__file__).parent / "storm" / "clock.c"
RESULT = Path(__file__).with_name("STRESS.md")
BYTES_A_CLIENT = 1 << 16
SCRATCH = 1 << 20


def main(argv: list[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    if arguments.inside:
        return inside(arguments)
    folder = Path(tempfile.mkdtemp(prefix="nt-storm-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        environ = environment(folder)
        words = [sys.executable, "-P", __file__, *(sys.argv[1:] if argv is None else argv)]
        command = [*words, "--inside", str(folder)]
        if may_mount():
            size = SCRATCH + BYTES_A_CLIENT * arguments.clients
            mount = f'mount -t tmpfs -o size={size},mode=755 tmpfs {folder}/disk && exec "$@"'
            command = ["unshare", "-m", "sh", "-c", mount, "sh", *command, "--full-disk"]
        return subprocess.run(command, env=environ, check=False).returncode
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description="Stress a simulated machine and check what must hold.")
    made.add_argument("--seconds", type=float, default=60.0)
    made.add_argument("--clients", type=int, default=1000)
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--instance", default="trn2.48xlarge")
    made.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    made.add_argument("--json", action="store_true", help="print the outcome as JSON")
    made.add_argument("--inside", help=argparse.SUPPRESS)
    made.add_argument("--full-disk", action="store_true", help=argparse.SUPPRESS)
    return made


def environment(folder: Path) -> dict[str, str]:
    (folder / "disk").mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NEURON", "XDG_"))}
    values = {
        **kept,
        "NEURONTOOLS_RUNTIME_DIR": f"{folder}/disk/run",
        "NEURONTOOLS_MACHINE": "storm",
        "XDG_CONFIG_HOME": f"{folder}/config",
        "XDG_CACHE_HOME": f"{folder}/cache",
        "XDG_STATE_HOME": f"{folder}/state",
    }
    compiler = shutil.which("cc")
    if compiler:
        (folder / "clock").write_bytes(bytes(8))
        (folder / "clock").chmod(0o644)
        library = f"{folder}/clock.so"
        flags = ["-O2", "-shared", "-fPIC"]
        subprocess.run([compiler, *flags, "-o", library, str(CLOCK_SOURCE), "-ldl"], check=True)
        values |= {"LD_PRELOAD": library, "STORM_CLOCK": f"{folder}/clock"}
    return values


def may_mount() -> bool:
    return os.geteuid() == 0 and subprocess.run(["unshare", "-m", "true"], check=False).returncode == 0


def inside(arguments: argparse.Namespace) -> int:
    # Another user may not be able to read the interpreter's files: everything is loaded before.
    for module in pkgutil.iter_modules(machine.__path__):
        importlib.import_module(f"neurontools.machine.{module.name}")
    users = USERS if os.geteuid() == 0 else ()
    if users:
        share(os.environ["NEURONTOOLS_RUNTIME_DIR"], str(GROUP))
    options = Options(
        seconds=arguments.seconds,
        clients=arguments.clients,
        seed=arguments.seed,
        instance=arguments.instance,
        users=users,
        group=GROUP,
        clock=os.environ.get("STORM_CLOCK", ""),
        full_disk=arguments.full_disk,
    )
    outcome = Storm(options).run()
    text = json.dumps(asdict(outcome)) if arguments.json else report(options, outcome)
    print(text)
    if arguments.write:
        RESULT.write_text(text)
    return 1 if outcome.wrong else 0


def report(options: Options, outcome: Outcome) -> str:
    left_out = [
        *([] if options.users else ["other users (needs root)"]),
        *([] if options.clock else ["clock jumps (no C compiler)"]),
        *([] if options.full_disk else ["a full disk (needs a mount)"]),
    ]
    rows = {
        "clients at once": f"{outcome.most_alive:,}",
        "client processes in all": f"{outcome.lives:,}",
        "registrations": f"{outcome.registrations:,}",
        "executions": f"{outcome.executions:,}",
        "daemons killed": outcome.daemons_killed,
        "jumps of the wall clock": outcome.clock_jumps,
        "users": max(1, len(options.users)),
        "seconds with a full disk": f"{outcome.full_disk_s:.1f} ({outcome.private_pages} private pages)",
        "quiet points at which everything was compared": outcome.quiet_points,
        "descriptors of the daemon, at first and at last": "{} and {}".format(*outcome.descriptors),
        "resident memory of the daemon, at first and at last": "{:.1f} and {:.1f} MiB".format(
            *outcome.resident_mib
        ),
        "resident memory, most at a quiet point": f"{outcome.resident_at_most_mib:.1f} MiB",
        "left out": ", ".join(left_out) or "nothing",
        "wrong": len(outcome.wrong),
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    wrong = "".join(f"- {line}\n" for line in outcome.wrong[:50])
    return (
        f"# Stress\n\n`python benchmarks/stress.py --seconds {options.seconds:g} --clients {options.clients} "
        f"--seed {options.seed}`: {options.instance}.\n\n| what | |\n|---|---|\n{table}\n\n{wrong}"
    )


if __name__ == "__main__":
    sys.exit(main())
