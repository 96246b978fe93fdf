"""neuron-ls beside its fast path: help, watching, other sources, the first start of a machine, errors."""

from __future__ import annotations

import sys
import time
from select import poll

from neurontools import __version__, env, paths
from neurontools.base.text import printable, suggest
from neurontools.commands import console
from neurontools.commands.ls.output import show
from neurontools.errors import DaemonError, NeuronToolsError, NoMachineError
from neurontools.machine.directory import request_recovery
from neurontools.machine.listing.flags import (
    COLOURS,
    DEFAULT_PERIOD_S,
    DEVICE_KEYS,
    PROCESS_KEYS,
    FlagError,
    Flags,
    UnknownFlagError,
    parse,
    suggestions,
)
from neurontools.machine.render_client import Reply, request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, _ArgumentGroup
    from collections.abc import Iterable, Iterator, Sequence


SIMULATION = "sim"
RESTART_S = 3.0
_RETRY_S = 0.05


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
        return show((1, f"{error}\n".encode("utf-8", "replace"), _hint(error)))
    if flags.help:
        console.parse(build_parser(), ["--help"])
    if flags.version:
        console.out(f"neuron-ls {__version__}")
        return 0
    if flags.colour is not None:
        from neurontools.machine.listing.formats import wants_colour

        flags.colour = "always" if wants_colour(flags.colour, terminal=sys.stdout.isatty()) else "never"
    if flags.source in {None, SIMULATION}:
        return _list_machine(flags, flags.machine or env.machine())
    return _list_source(flags, flags.source or "")


def _hint(error: FlagError) -> bytes:
    """Return a line for stderr that names the flag nearest to an unknown one; the real tool writes none."""
    if not isinstance(error, UnknownFlagError):
        return b""
    near = suggest(error.flag, suggestions())
    remedy = f"did you mean {near!r}?" if near else "see 'neuron-ls --help'"
    return f"hint: {printable(remedy)}\n".encode()


def _list_machine(flags: Flags, machine: str) -> int:
    words = flags.words()
    if flags.verbose:
        console.err(f"source: sim:{machine}")
    reply = _ask_once(words, machine) or _ask_again(words, machine)
    if reply is None and flags.machine is not None:
        from neurontools.machine import launch

        launch.ensure_running(machine)  # says that there is no such machine
    if flags.period_s is None or reply is None:
        return _show(reply)
    return _watch(flags, _repeat_request(words, machine, flags.period_s))


def _list_source(flags: Flags, name: str) -> int:
    from neurontools.machine.listing.text import render
    from neurontools.sources import open_source

    words = flags.words()
    try:
        with open_source(name, machine=flags.machine) as source:
            if flags.verbose:
                console.err(f"source: {printable(source.name)}")
            if flags.period_s is None:
                code = show(render(source.snapshot(), words, env.emulate()))
            else:
                snapshots = source.watch(flags.period_s)
                code = _watch(flags, (render(snapshot, words, env.emulate()) for snapshot in snapshots))
            if flags.verbose:
                for notice in source.notices:
                    console.err(f"note: {printable(notice)}")
            return code
    except NoMachineError:
        return _no_driver()


def _watch(flags: Flags, replies: Iterable[Reply]) -> int:
    """Print each reply that differs from the previous one; with JSON, each becomes one line."""
    shown = None
    lines_of_json = flags.format == "json"
    for reply in replies:
        code, out, err = reply
        if reply != shown:
            ended = show((code, _frame(out, lines_of_json=lines_of_json and not code), err))
            shown = reply
            if ended:
                return ended
        if _reader_closes(0.0):
            return 0
    return _no_driver() if flags.source in {None, SIMULATION} else 0


def _repeat_request(words: list[str], machine: str, period_s: float) -> Iterator[Reply]:
    """Yield the replies of a machine's daemon, until the machine is stopped.

    A daemon restores its deleted runtime directory, and a killed daemon is replaced (unless NEURONTOOLS_AUTOSTART=0).
    After a stop, a restart is awaited for `RESTART_S` seconds.
    """
    while (reply := _ask_until_gone(words, machine)) is not None:
        yield reply
        _reader_closes(period_s)


def _reader_closes(within_s: float) -> bool:
    """Wait up to a time until the reader of standard output closes it; return whether it did."""
    try:
        watched = poll()
        watched.register(1, 0)  # errors and hang-ups are always reported
        return bool(watched.poll(within_s * 1000))
    except OSError:
        return True


def _ask_until_gone(words: list[str], machine: str) -> Reply | None:
    give_up = time.monotonic() + RESTART_S
    while True:
        reply = _ask_once(words, machine)
        if reply is not None or time.monotonic() > give_up:
            return reply
        if not request_recovery(paths.machine_dir(machine)):
            _replace_if_killed(machine)
            time.sleep(_RETRY_S)


def _ask_once(words: list[str], machine: str) -> Reply | None:
    try:
        return request(words, machine)
    except ConnectionResetError:
        return None


def _replace_if_killed(machine: str) -> None:
    from neurontools.machine import launch

    if env.autostart() and launch.has_crashed(machine):
        launch.ensure_running(machine)


def _frame(out: bytes, *, lines_of_json: bool) -> bytes:
    if lines_of_json:
        import json

        return printable(json.dumps(json.loads(out), separators=(",", ":"))).encode() + b"\n"
    if sys.stdout.isatty():
        return b"\x1b[H" + out.replace(b"\n", b"\x1b[K\n") + b"\x1b[J"
    return out


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

    console.err(no_devices_line(), end="")
    if (machine := env.machine()) != env.DEFAULT_MACHINE:
        console.notice(f"hint: machine {machine!r} is not running; neurond start --machine {machine}")
    return 1


def _epilog() -> str:

    return f"""filters: KEY OPERATOR VALUE[,VALUE...]; all filters must hold, and one of the values of each
  of devices    {", ".join(DEVICE_KEYS)}
  of processes  {", ".join(PROCESS_KEYS)}
  operators     = != for all, ~ !~ (contains) for text, > >= < <= for numbers and sizes (512MB, 1.5GB)
  states        idle, busy (processes hold cores), executing (busy, and a core runs now)

examples:
  neuron-ls
  neuron-ls --wide --show-all-procs
  neuron-ls --topology
  neuron-ls -j | jq 'map(.nc_count) | add'
  neuron-ls --machine ci --device 0-3 --csv
  neuron-ls --filter state=busy 'memory-used>1GB' --owner me
  neuron-ls --watch --filter 'command~python'
  neuron-ls --source real --verbose

exit codes: 0 success, 1 no machine or invalid flag, 2 invalid machine name or source, 3 no machine of the
given name, 4 daemon error, 130 interrupted
"""


def build_parser() -> ArgumentParser:
    """Return the parser for help and shell completion; `listing.flags` parses the command line."""
    import argparse

    parser = argparse.ArgumentParser(
        prog="neuron-ls",
        description="List the Neuron devices of the machine and the processes on them.",
        epilog=_epilog(),
    )
    add = parser.add_argument
    add("-w", "--wide", action="store_true", help="cut commands to 80 characters instead of 40")
    add(
        "-a",
        "--show-all-procs",
        action="store_true",
        help="also list processes without a Neuron runtime (runtime version NA)",
    )
    add("-t", "--topology", action="store_true", help="draw how the devices are connected")
    add("-j", "--json-output", action="store_true", help="print JSON")
    _add_ours(parser.add_argument_group("flags that the real tool does not have"))
    return parser


def _add_ours(group: _ArgumentGroup) -> None:
    from neurontools.commands.parsing import add_json, add_machine

    add = group.add_argument
    add_json(group, "print JSON, as -j")
    add("--csv", action="store_true", help="print CSV, one line per process")
    add("--device", metavar="LIST", help="only these devices, e.g. 0,2 or 0-3")
    add(
        "--filter",
        metavar="EXPR",
        nargs="+",
        action="append",
        help="only devices and processes that match EXPR; see below",
    )
    add("--owner", metavar="USER", help="only processes of a user: a name, a uid, or me")
    add(
        "--color",
        choices=COLOURS,
        metavar="WHEN",
        nargs="?",
        help="use colours: auto (on a terminal, unless NO_COLOR is set), always or never",
    )
    add(
        "--watch",
        action="store_true",
        help="print again after every change; with -j one line of JSON each time",
    )
    add(
        "--interval",
        metavar="DURATION",
        help=f"time between two checks of --watch (default: {DEFAULT_PERIOD_S:g}s)",
    )
    add_machine(group)
    add(
        "--source",
        metavar="real|sim|FILE",
        help="data source: the simulated machine (default), this host, or a recording",
    )
    add("--verbose", action="store_true", help="print the source on stderr")
