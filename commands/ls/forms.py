"""neuron-ls beside its fast path: help, watching, other sources, the first start of a machine, errors."""

from __future__ import annotations

import sys

from neurontools import __version__, env
from neurontools.commands import console
from neurontools.commands.ls.output import show
from neurontools.errors import DaemonError, NeuronToolsError, NoMachineError
from neurontools.machine.listing.flags import FlagError, parse
from neurontools.machine.render_client import Reply, request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Iterable, Sequence

    from neurontools.machine.listing.flags import Flags

SIMULATION = "sim"


def build_parser() -> ArgumentParser:
    """Return the command's parser."""
    from neurontools.commands.ls import parser

    return parser.build_parser()


def main(words: Sequence[str]) -> int:
    """Run a command line that is not plain: help, version, flags of ours, or a wrong flag."""
    return console.run(lambda: _main(words))


def without_reply(words: list[str]) -> int:
    """Retry after the fast path got no reply: start a machine if allowed, and ask again."""
    return console.run(lambda: _show(_ask_again(words, env.machine())))


def failed(error: NeuronToolsError) -> int:
    """Print an error and return its exit code, or raise it with `--debug`."""
    return console.run(lambda: _raise(error))


def _raise(error: NeuronToolsError) -> int:
    raise error


def _main(words: Sequence[str]) -> int:
    try:
        flags = parse(list(words))
    except FlagError as error:
        return show((1, f"{error}\n".encode("utf-8", "replace"), b""))
    if flags.help:
        console.parse(build_parser(), ["--help"])
    if flags.version:
        console.out(f"neuron-ls {__version__}")
        return 0
    if flags.colour is not None:
        from neurontools.machine.listing.table import wants_colour

        flags.colour = "always" if wants_colour(flags.colour, terminal=sys.stdout.isatty()) else "never"
    if flags.source in {None, SIMULATION}:
        return _list_machine(flags, flags.machine or env.machine())
    return _list_source(flags, flags.source or "")


def _list_machine(flags: Flags, machine: str) -> int:
    words = flags.words()
    if flags.verbose:
        sys.stderr.write(f"source: sim:{machine}\n")
    reply = _ask(words, machine)
    if flags.period_s is None or reply is None:
        return _show(reply)
    from neurontools.commands.ls.watch import replies_of

    return _watch(flags, replies_of(lambda: request(words, machine), machine, flags.period_s))


def _list_source(flags: Flags, name: str) -> int:
    from neurontools.machine.listing.text import render
    from neurontools.sources import open_source

    words = flags.words()
    try:
        with open_source(name, machine=flags.machine) as source:
            if flags.verbose:
                sys.stderr.write(f"source: {source.name}\n")
            if flags.period_s is None:
                code = show(render(source.snapshot(), words, env.emulate()))
            else:
                snapshots = source.watch(flags.period_s)
                code = _watch(flags, (render(snapshot, words, env.emulate()) for snapshot in snapshots))
            if flags.verbose:
                sys.stderr.writelines(f"note: {notice}\n" for notice in source.notices)
            return code
    except NoMachineError:
        return _no_driver()


def _watch(flags: Flags, replies: Iterable[Reply]) -> int:
    from neurontools.commands.ls.watch import watch

    code = watch(replies, lines_of_json=flags.format == "json")
    if code is not None:
        return code
    return _no_driver() if flags.source in {None, SIMULATION} else 0


def _ask(words: list[str], machine: str) -> Reply | None:
    try:
        reply = request(words, machine)
    except ConnectionResetError:
        reply = None
    return reply or _ask_again(words, machine)


def _ask_again(words: list[str], machine: str) -> Reply | None:
    from neurontools.machine import launch

    try:
        launch.ensure_running(machine, on_notice=console.notice)
    except NoMachineError:
        pass  # it may still answer: another process may have started a successor
    try:
        return request(words, machine)
    except ConnectionResetError as error:
        raise DaemonError("neurond ended before its reply was complete", "see 'neurond logs'") from error


def _show(reply: Reply | None) -> int:
    return _no_driver() if reply is None else show(reply)


def _no_driver() -> int:
    """Print what the real tool prints on a host without the driver."""
    from neurontools.machine.listing.text import no_devices_line

    sys.stderr.write(no_devices_line())
    return 1
