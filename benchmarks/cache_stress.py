"""A storm on the compile cache: `python benchmarks/cache_stress.py [--seconds 60] [--processes 16]`.

Writes CACHE_STRESS.md with `--write`; the exit code is 1 when anything was wrong. As root it storms in a small file
system that is filled now and then, with a program of another user; the report says what was left out.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

# The checkout comes last, so that the installed package is what is stressed.
sys.path.append(str(Path(__file__).parents[1]))

from benchmarks.cache_storm.storm import Options, Outcome, Storm

DISK_BYTES = 6 << 20
RESULT = Path(__file__).with_name("CACHE_STRESS.md")


def main(argv: list[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    if arguments.inside:
        return inside(arguments)
    folder = Path(tempfile.mkdtemp(prefix="nt-cache-storm-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("NEURON", "XDG_"))}
        environ = {**kept, "XDG_STATE_HOME": f"{folder}/state", "XDG_CONFIG_HOME": f"{folder}/config"}
        words = [sys.executable, "-P", __file__, *(sys.argv[1:] if argv is None else argv)]
        command = [*words, "--inside", str(folder)]
        if os.geteuid() == 0 and subprocess.run(["unshare", "-m", "true"], check=False).returncode == 0:
            mount = f'mount -t tmpfs -o size={DISK_BYTES},mode=755 tmpfs {folder} && exec "$@"'
            command = ["unshare", "-m", "sh", "-c", mount, "sh", *command, "--full-disk"]
        return subprocess.run(command, env=environ, check=False).returncode
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description="Stress one compile cache and check what must hold.")
    made.add_argument("--seconds", type=float, default=60.0)
    made.add_argument("--processes", type=int, default=16)
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    made.add_argument("--json", action="store_true", help="print the outcome as JSON")
    made.add_argument("--inside", help=argparse.SUPPRESS)
    made.add_argument("--full-disk", action="store_true", help=argparse.SUPPRESS)
    return made


def inside(arguments: argparse.Namespace) -> int:
    options = Options(arguments.seconds, arguments.processes, arguments.seed, full_disk=arguments.full_disk)
    outcome = Storm(Path(arguments.inside), options).run()
    text = json.dumps(asdict(outcome)) if arguments.json else report(options, outcome)
    print(text)
    if arguments.write:
        RESULT.write_text(text)
    return 1 if outcome.wrong else 0


def report(options: Options, outcome: Outcome) -> str:
    left_out = [
        *([] if os.geteuid() == 0 else ["another user (needs root)"]),
        *([] if options.full_disk else ["a full disk (needs a mount)"]),
    ]
    rows = {
        "processes at once": options.processes,
        "processes in all": f"{outcome.lives:,}",
        "killed with -9": f"{outcome.kills:,}",
        **{f"rounds of a {role}": f"{rounds:,}" for role, rounds in outcome.rounds.items()},
        "rounds that a full disk or a competitor refused": f"{outcome.refused:,}",
        "seconds with a full disk": f"{outcome.full_disk_s:.1f}",
        "checks at rest": outcome.quiet_checks,
        "left out": ", ".join(left_out) or "nothing",
        "wrong": len(outcome.wrong),
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    wrong = "".join(f"- {line}\n" for line in outcome.wrong[:50])
    return (
        f"# Stress of the compile cache\n\n`python benchmarks/cache_stress.py --seconds {options.seconds:g} "
        f"--processes {options.processes} --seed {options.seed}`\n\n| what | |\n|---|---|\n{table}\n\n{wrong}"
    )


if __name__ == "__main__":
    sys.exit(main())
