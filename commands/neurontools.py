"""neurontools: the umbrella over every tool, as sub-commands."""

from __future__ import annotations

import sys
import textwrap
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from neurontools import __version__
from neurontools.base.text import did_you_mean
from neurontools.commands import console
from neurontools.commands.parsing import EXIT_CODES
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_DOCS = Path(__file__).resolve().parents[1] / "docs"  # in the checkout and in the installed package

# sub-command -> (module under neurontools.commands, own program name or "", what it does)
COMMANDS = {
    "ls": ("ls", "neuron-ls", "list the Neuron devices and the processes on them"),
    "top": ("top", "neuron-top", "live dashboard of cores, memory and processes"),
    "monitor": ("monitor", "neuron-monitor", "print the machine's metrics as JSON lines"),
    "monitor-prometheus": (
        "monitor_prometheus",
        "neuron-monitor-prometheus",
        "serve neuron-monitor's metrics to Prometheus",
    ),
    "run": ("run", "neuron-run", "run a program on the simulated machine"),
    "customop": ("customop", "neuron-customop", "build, test and debug custom C++ operators"),
    "cache": ("cache", "neuron-cache", "inspect and prune the compile cache"),
    "parallel-compile": (
        "parallel_compile",
        "neuron_parallel_compile",
        "compile a program's graphs ahead of time, in parallel",
    ),
    "packager": ("packager", "neuron-packager", "inspect and unpack NEFF files"),
    "profile": ("profile", "neuron-profile", "capture and view profiles of runs"),
    "estimate": ("estimate", "", "estimate memory, speed and cost of a model on instance types"),
    "nccom-test": ("nccom_test", "nccom-test", "time collective operations between NeuronCores"),
    "neurond": ("neurond", "neurond", "start, stop and list simulated machines"),
    "fault": ("fault", "", "inject faults into the simulated machine"),
    "config": ("config", "", "show every setting, its value and its source"),
    "sysfs": ("sysfs", "", "export, show and reset the driver's files in /sys"),
    "link": ("link", "", "install links at the real tools' paths"),
    "new": ("new", "", "write a training script, a sample, an NKI kernel, or a custom operator"),
    "demo": ("demo", "", "train a small network on the simulated machine and show the tools"),
    "scenario": ("scenario", "", "play synthetic processes; record and replay neuron-monitor output"),
    "doctor": ("doctor", "", "check the installation"),
    "completion": ("completion", "", "print shell completion for bash, zsh or fish"),
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
        "  neurontools new train",
        "  neurontools ls --topology",
        "  neurontools cache prune --older-than 30d --dry-run",
        "",
        "Run 'neurontools COMMAND --help' for the options of a command, 'neurontools help",
        "TOPIC' for a page of the manual, 'neurontools help topics' for all topics.",
        "",
        *textwrap.wrap(EXIT_CODES, 80),
    ]
    return "\n".join(lines)


def _dispatch(words: list[str]) -> int:
    match words:
        case [] | ["-h" | "--help"]:
            console.print_help_text(help_text())
            return 0
        case ["help"]:
            console.print_help_text(help_text())
            return 0
        case ["help", name, *_] if name in COMMANDS and _topic(name) not in _pages():
            return _main_of(name)(["--help"])
        case ["help", topic, *_]:
            console.out(_help(topic))
            return 0
        case ["-V" | "--version"]:
            console.out(f"neurontools {__version__}")
            return 0
        case [name, *rest] if name in COMMANDS:
            return _main_of(name)(rest)
    hint = "see 'neurontools --help' for the commands"
    raise UsageError(
        f"unknown command {words[0]!r}",
        did_you_mean(words[0], [*COMMANDS, "help"], otherwise=hint),
    )


def _main_of(name: str) -> Callable[[Sequence[str]], int]:
    main: Callable[[Sequence[str]], int] = import_module(f"neurontools.commands.{COMMANDS[name][0]}").main
    return main


def _topic(word: str) -> str:
    return COMMANDS[word][1] or word if word in COMMANDS else word


def _pages() -> dict[str, Path]:
    reference_last = sorted(_DOCS.glob("*/*.md"), key=lambda page: (page.parent.name == "reference", page))
    return {page.stem: page for page in reference_last}


def _help(word: str) -> str:
    """Return a page of the documentation, or the list of all pages."""
    topic, pages = _topic(word), _pages()
    if topic in pages:
        return pages[topic].read_text(encoding="utf-8").rstrip()
    if topic == "topics":
        titles = {name: page.read_text(encoding="utf-8").partition("\n")[0] for name, page in pages.items()}
        return "\n".join(f"{name:<24}{title.removeprefix('# ')}" for name, title in titles.items())
    raise UsageError(
        f"no help topic {topic!r}",
        did_you_mean(topic, pages, otherwise="'neurontools help topics' lists all"),
    )
