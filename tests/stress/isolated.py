"""What the stress scripts share: each runs itself again in a folder, and where it may on a small disk, of its own."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class StressOutcome(Protocol):
    """The outcome of a test, a dataclass; nothing is `wrong` after a good run."""

    wrong: list[str]


@contextmanager
def own_folder(prefix: str) -> Iterator[Path]:
    """A folder that every user may enter; afterwards it is gone."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def environment(folder: Path) -> dict[str, str]:
    """Return this process's environment, with the folder in place of the user's directories and settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NEURON", "XDG_"))}
    places = {f"XDG_{what.upper()}_HOME": f"{folder}/user/{what}" for what in ("config", "cache", "state")}
    return {**kept, **places}


def parser(description: str, result: Path) -> argparse.ArgumentParser:
    """Return a parser of what every stress script understands."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--seconds", type=float, default=60.0)
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--write", action="store_true", help=f"write {result.name}")
    made.add_argument("--json", action="store_true", help="print the outcome as JSON")
    made.add_argument("--inside", help=argparse.SUPPRESS)
    made.add_argument("--full-disk", action="store_true", help=argparse.SUPPRESS)
    return made


def run_again(
    script: str,
    argv: Sequence[str] | None,
    folder: Path,
    environ: Mapping[str, str],
    disk: Path,
    disk_bytes: int,
) -> int:
    """Run a script with the same arguments and `--inside FOLDER`; return its exit code.

    Where this process may mount, `disk` is then a private file system of that size, and the script
    gets `--full-disk` too: it may fill that.
    """
    command = [
        sys.executable,
        "-P",
        script,
        *(sys.argv[1:] if argv is None else argv),
        "--inside",
        str(folder),
    ]
    if _may_mount():
        mount = f'mount -t tmpfs -o size={disk_bytes},mode=755 tmpfs {disk} && exec "$@"'
        command = ["unshare", "-m", "sh", "-c", mount, "sh", *command, "--full-disk"]
    return subprocess.run(command, env=dict(environ), check=False).returncode


def _may_mount() -> bool:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "-m", "true"], check=False).returncode == 0


def print_report(arguments: argparse.Namespace, outcome: StressOutcome, text: str, result: Path) -> int:
    """Print an outcome, write it where that is asked for, and return the exit code."""
    print(json.dumps(asdict(outcome)) if arguments.json else text)  # type: ignore[call-overload]
    if arguments.write:
        result.write_text(text, encoding="utf-8")
    return 1 if outcome.wrong else 0


def report(
    title: str, command: str, rows: Mapping[str, object], left_out: Sequence[str], wrong: Sequence[str]
) -> str:
    """Return a page: the command, a table of what happened, and the first 50 things that were wrong."""
    rows = {**rows, "left out": ", ".join(left_out) or "nothing", "wrong": len(wrong)}
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    lines = "".join(f"- {line}\n" for line in wrong[:50])
    return f"# {title}\n\n{command}\n\n| what | |\n|---|---|\n{table}\n\n{lines}"
