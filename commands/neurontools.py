"""neurontools: the umbrella over every tool, as sub-commands."""

from __future__ import annotations

import sys
import textwrap
from importlib import import_module
from typing import TYPE_CHECKING

from neurontools import __version__
from neurontools.commands import console
from neurontools.commands.help_text import EXIT_CODES
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

# sub-command -> (module under neurontools.commands, own program name or "", what it does)
COMMANDS = {
    "ls": ("ls", "neuron-ls", "list the Neuron devices and the processes on them"),
    "top": ("top", "neuron-top", "live dashboard of cores, memory and processes"),
    "monitor": ("monitor", "neuron-monitor", "the machine's metrics as JSON lines"),
    "monitor-prometheus": (
        "monitor_prometheus",
        "neuron-monitor-prometheus",
        "metrics of neuron-monitor for Prometheus",
    ),
    "run": ("run", "neuron-run", "run a program on the simulated machine"),
    "customop": ("customop", "neuron-customop", "write, build, try and debug custom C++ operators"),
    "cache": ("cache", "neuron-cache", "look into the compile cache and keep it small"),
    "parallel-compile": (
        "parallel_compile",
        "neuron_parallel_compile",
        "compile a program's graphs ahead of time, side by side",
    ),
    "packager": ("packager", "neuron-packager", "look into a NEFF and take it apart"),
    "profile": ("profile", "neuron-profile", "look at profiles of runs"),
    "nccom-test": ("nccom_test", "nccom-test", "time collective operations between NeuronCores"),
    "neurond": ("neurond", "neurond", "start, stop and list simulated machines"),
    "fault": ("fault", "", "let something go wrong with the simulated machine"),
    "config": ("config", "", "every setting, its value and where that came from"),
    "sysfs": ("sysfs", "", "export, show and reset the driver's files in /sys"),
    "link": ("link", "", "links to the tools where programs look for the real ones"),
    "demo": ("demo", "", "train a small network on the simulated machine and show every tool"),
    "scenario": ("scenario", "", "play synthetic processes; record and replay neuron-monitor's lines"),
    "doctor": ("doctor", "", "what is installed, what is missing and how to get it"),
    "completion": ("completion", "", "shell completion for bash, zsh and fish"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    return console.run(lambda: _dispatch(words))


def help_text() -> str:
    """Return what `neurontools --help` prints."""
    lines = [
        "usage: neurontools COMMAND [ARG ...]",
        "",
        "A simulated AWS Neuron machine and the tools on top of it.",
        "",
    ]
    for name, (_, program, purpose) in COMMANDS.items():
        also = f"{program}: " if program else ""
        lines += textwrap.wrap(f"  {name:<20}{also}{purpose}", 80, subsequent_indent=" " * 22)
    lines += [
        "",
        "examples:",
        "  neurontools demo",
        "  neurontools ls --topology",
        "  neurontools cache prune --older-than 30d --dry-run",
        "",
        "'neurontools COMMAND --help' says more; --version prints the version.",
        "",
        *textwrap.wrap(EXIT_CODES, 80),
    ]
    return "\n".join(lines)


def _dispatch(words: list[str]) -> int:
    match words:
        case [] | ["-h" | "--help" | "help"]:
            console.out(help_text())
            return 0
        case ["--version"]:
            console.out(f"neurontools {__version__}")
            return 0
        case [name, *rest] if name in COMMANDS:
            code: int = import_module(f"neurontools.commands.{COMMANDS[name][0]}").main(rest)
            return code
    raise UsageError(f"unknown command {words[0]!r}", _suggestion(words[0]))


def _suggestion(word: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(word, COMMANDS, n=1)
    return f"did you mean '{near[0]}'?" if near else "'neurontools --help' lists the commands"
