"""Writes docs/reference/commands.md from the parsers; `python docs/generate.py` calls it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from neurontools.commands import parsing
from neurontools.commands.console import add_common_options
from neurontools.commands.neurontools import COMMANDS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

HEAD = """# Commands and flags

Generated from the parsers by `python docs/generate.py`. One idea has one flag in all commands of ours. The real tools'
own flags (of `neuron-ls`, `neuron-monitor`, `neuron-monitor-prometheus`, `nccom-test`, `neuron_parallel_compile`,
`neuron-profile`, `neuron-packager`) are spelled as there. Old spellings of ours still work; help and this page omit
them.

Every command has `-h`, `--help`, `--debug` (the traceback of an error) and `-V`, `--version`; commands with
sub-commands have `help COMMAND`. Help is coloured on a terminal, unless `NO_COLOR` is set or `TERM` is `dumb`.

## Flags that several commands share

| flag | meaning |
|---|---|
"""
COMMON = {
    "--machine NAME": "the simulated machine; only `default` starts by itself",
    "--instance TYPE": "an instance type",
    "--cache-dir DIR": "the compile cache: a directory or `s3://BUCKET/PREFIX`",
    "--json": "print JSON: base units, nothing else on stdout",
    "-n, --limit N": "at most N lines, entries or reports (`--limit` alone where the real tool uses `-n`)",
    "--interval DURATION": "time between two updates: `500ms`, `5s`; a bare number is seconds",
    "--timeout DURATION": "time limit of a call",
    "--duration DURATION": "how long something lasts",
    "-o, --output PATH": "file or directory to write",
    "--filter EXPR": "only what matches",
    "--color [WHEN]": "auto, always or never; `--color always` and `--color=always`",
    "--watch": "run again at each change, until Ctrl-C",
    "--dry-run": "print what would be done, change nothing",
    "-y, --yes": "do not ask for confirmation",
    "--source SOURCE": "the simulated machine, this host, an exporter or a recording",
    "--seed N": "seed of random data",
}
_EVERYWHERE = ("--help", "--debug", "--version")


def commands_page() -> str:
    """Return the page."""
    parts = [HEAD + "".join(f"| `{flag}` | {meaning} |\n" for flag, meaning in COMMON.items())]
    for name, (module, program, purpose) in COMMANDS.items():
        parser: argparse.ArgumentParser = import_module(f"neurontools.commands.{module}").build_parser()
        add_common_options(parser)
        lines = [f"## {program or f'neurontools {name}'}", "", f"{purpose[0].upper()}{purpose[1:]}.", ""]
        lines += _table(parser)
        parts.append("\n".join(lines))
    return "\n".join(parts)


def _table(root: argparse.ArgumentParser) -> Iterator[str]:
    if not parsing.verbs(root):
        yield "| flag | meaning |"
        yield "|---|---|"
        yield from (f"| {row} |" for row in _rows(root))
        yield ""
        return
    yield "| command | flag | meaning |"
    yield "|---|---|---|"
    for parser in parsing.family(root, hidden=False):
        verb = parser.prog.removeprefix(root.prog).strip()
        if parsing.verbs(parser):
            continue
        rows = list(_rows(parser))
        yield from (f"| {'' if at else f'`{verb}`'} | {row} |" for at, row in enumerate(rows))
        if not rows:
            yield f"| `{verb}` | | |"
    yield ""


def _rows(parser: argparse.ArgumentParser) -> Iterator[str]:
    formatter = parser._get_formatter()  # noqa: SLF001  argparse fills in the defaults of help texts nowhere else
    seen = set()
    for action in parsing.visible_options(parser).values():
        if id(action) in seen or not set(_EVERYWHERE).isdisjoint(action.option_strings):
            continue
        seen.add(id(action))
        value = formatter._format_args(action, formatter._get_default_metavar_for_optional(action))  # noqa: SLF001
        names = ", ".join(action.option_strings) + (f" {value}" if value else "")
        meaning = formatter._expand_help(action) if action.help else ""  # noqa: SLF001
        yield f"`{names}` | {meaning}".replace("|", "\\|").replace(" \\| ", " | ", 1)
