"""Commands where streams, variables, directories or limits are odd: an answer or one error, no traceback, no stray files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.loaded_python import LoadedPython

SCRIPTS = Path(sys.executable).parent
COMMANDS = (
    ("neuron-ls",),
    ("neuron-ls", "-j"),
    ("neuron-top", "--once"),
    ("neuron-monitor", "--source", "nowhere.jsonl"),
    ("neurond", "list"),
    ("neurontools", "config", "show"),
    ("neurontools", "scenario", "check", "idle"),
    ("neuron-cache", "ls"),
    ("neuron-cache", "stats", "--json"),
    ("neuron-profile", "summary", "nowhere"),
    ("neuron-packager", "info", "nowhere.neff"),
    ("nccom-test", "--help"),
)
EXIT_CODES = {0, 1, 2, 3, 4}
UNWRITTEN = 120
"""Python's own exit code where not even standard error can be written."""

# What a shell does before it becomes the command, by name. What concerns different things shares a run.
SHELL = {
    "no stdout": 'exec "$@" >&-',
    "no stderr": 'exec "$@" 2>&-',
    "no streams": 'exec "$@" <&- >&- 2>&-',
    "stdout full": 'exec "$@" >/dev/full',
    "stderr full": 'exec "$@" 2>/dev/full',
    "both full": 'exec "$@" >/dev/full 2>/dev/full',
    "stdout read-only": 'exec "$@" 1</dev/null',
    "few descriptors": 'ulimit -n 24; exec "$@"',
    "no files": 'ulimit -f 0; exec "$@"',
    "umask 000, stdin a directory": 'umask 000; exec "$@" </',
    "umask 777, no stdin": 'umask 777; exec "$@" <&-',
    "working directory gone": 'mkdir gone; cd gone; rmdir ../gone; exec "$@"',
}
# Variables that are set, or removed (None). Those that concern different things share a run.
Variables = dict[str, str | None]
VARIABLES: dict[str, Variables] = {
    "no HOME": {"HOME": None, "XDG_STATE_HOME": None, "XDG_CONFIG_HOME": None, "XDG_CACHE_HOME": None},
    "relative HOME, cache a file": {
        "HOME": "a/b",
        "XDG_STATE_HOME": None,
        "XDG_CONFIG_HOME": None,
        "XDG_CACHE_HOME": None,
        "NEURON_COMPILE_CACHE_URL": "/dev/null",
    },
    "HOME a file": {
        "HOME": "/dev/null",
        "XDG_STATE_HOME": None,
        "XDG_CONFIG_HOME": None,
        "XDG_CACHE_HOME": None,
    },
    "relative runtime directory": {"NEURONTOOLS_RUNTIME_DIR": "run"},
    "runtime directory a file": {"NEURONTOOLS_RUNTIME_DIR": "/dev/null"},
    "runtime directory too long": {"NEURONTOOLS_RUNTIME_DIR": "/tmp/" + "x" * 3000},
    "runtime directory not UTF-8": {"NEURONTOOLS_RUNTIME_DIR": "/tmp/\udcff\n"},
    "narrow, no colour wanted, colour wanted": {"COLUMNS": "3", "NO_COLOR": "1", "FORCE_COLOR": "1"},
    "odd settings": {
        "NEURONTOOLS_MACHINE": "/../x",
        "NEURONTOOLS_EMULATE": "9.99",
        "NEURONTOOLS_INSTANCE": "\udcff",
    },
}
# Those that Python or the C library reads, at the latest when it starts.
VARIABLES_OF_PYTHON: dict[str, Variables] = {
    "no terminal, unknown time zone": {"TERM": None, "COLUMNS": None, "LINES": None, "TZ": "Nowhere/Nowhere"},
    "odd width, C locale": {"COLUMNS": "-1", "LINES": "x", "LANG": "C", "LC_ALL": "C"},
    "huge width, unknown locale": {"COLUMNS": "9" * 30, "LANG": "xx_YY.what", "LC_ALL": "xx_YY.what"},
    "ASCII": {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
    "UTF-16": {"PYTHONIOENCODING": "utf-16"},
    "no PATH, warnings are errors": {"PATH": None, "PYTHONWARNINGS": "error"},
}


def check_new_processes(shell: str, changes: Variables) -> None:
    """Run all commands side by side and check how each ended."""
    before = set(os.listdir())
    running = {
        command: subprocess.Popen(
            ["/bin/sh", "-c", shell, "sh", f"{SCRIPTS}/{command[0]}", *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=changed(changes),
        )
        for command in COMMANDS
    }
    errors = [process.communicate(timeout=600)[1].decode("utf-8", "replace") for process in running.values()]
    codes = [process.returncode for process in running.values()]
    check(zip(running, codes, errors, strict=True), before, {UNWRITTEN} if "2>" in shell else set())


def changed(changes: Variables) -> dict[str, str]:
    """Return the environment with changes."""
    every: Variables = {**os.environ, **changes}
    return {name: value for name, value in every.items() if value is not None}


def check(
    ended: Iterable[tuple[tuple[str, ...], int, str]], before: set[str], others: Iterable[int] = ()
) -> None:
    """Check exit codes and standard errors of commands, and that they left no files but theirs."""
    wrong = [
        f"{' '.join(command)}: {code}: {error[-300:]}"
        for command, code, error in ended
        if code not in EXIT_CODES.union(others) or "Traceback" in error
    ]
    assert not wrong, "\n".join(wrong)
    assert set(os.listdir()) <= before | {"run", "state", "config", "compile-cache"}


@pytest.mark.parametrize("name", SHELL)
def test_commands_under_a_shells_conditions(name: str) -> None:
    check_new_processes(SHELL[name], {})


@pytest.mark.parametrize("name", VARIABLES_OF_PYTHON)
def test_commands_under_odd_variables_of_python(name: str) -> None:
    check_new_processes('exec "$@"', VARIABLES_OF_PYTHON[name])


@pytest.mark.parametrize("name", VARIABLES)
def test_commands_under_odd_variables(name: str, loaded_commands: LoadedPython) -> None:
    before, environ = set(os.listdir()), changed(VARIABLES[name])
    ended = (
        (command, loaded_commands.run([f"{SCRIPTS}/{command[0]}", *command[1:]], Path.cwd(), environ))
        for command in COMMANDS
    )
    check(((command, done.returncode, done.stderr) for command, done in ended), before)
