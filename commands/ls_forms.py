"""What neuron-ls does beside its fast path: help, watching, the first start of a machine, errors."""

from __future__ import annotations

import sys
import time

from neurontools import __version__, env
from neurontools.commands import console
from neurontools.commands.ls_output import show
from neurontools.errors import DaemonError, NeuronToolsError, NoMachineError
from neurontools.machine.listing.flags import FlagError, parse
from neurontools.machine.render_client import Reply, request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Sequence

DEFAULT_PERIOD_S = 1.0
MIN_PERIOD_S = 0.05
MAX_PERIOD_S = 86400.0

EXAMPLES = """examples:
  neuron-ls
  neuron-ls --wide --show-all-procs
  neuron-ls --topology
  neuron-ls -j | python -c 'import json, sys; print(sum(d["nc_count"] for d in json.load(sys.stdin)))'
  neuron-ls --machine ci --device 0-3 --csv
  neuron-ls --watch
"""


def build_parser() -> ArgumentParser:
    """Return the command's parser."""
    import argparse

    parser = argparse.ArgumentParser(
        prog="neuron-ls",
        description="List the Neuron devices of the machine and the processes on them.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "-w", "--wide", action="store_true", help="cut commands to 80 characters instead of 40"
    )
    parser.add_argument(
        "-a",
        "--show-all-procs",
        action="store_true",
        help="also list processes without a Neuron runtime (runtime version NA)",
    )
    parser.add_argument("-t", "--topology", action="store_true", help="draw how the devices are connected")
    parser.add_argument("-j", "--json-output", action="store_true", help="print JSON and nothing else")
    ours = parser.add_argument_group("flags that the real tool does not have")
    ours.add_argument("--csv", action="store_true", help="one line for every process of every device")
    ours.add_argument("--device", metavar="LIST", help="only these devices, such as 0,2 or 0-3")
    ours.add_argument(
        "--watch",
        metavar="SECONDS",
        nargs="?",
        help=f"repeat whenever something changed, looking every SECONDS (default {DEFAULT_PERIOD_S:g}); "
        "with -j one line of JSON each time",
    )
    ours.add_argument(
        "--machine", metavar="NAME", help="machine to look at (default: NEURONTOOLS_MACHINE or 'default')"
    )
    return parser


class OwnFlags:
    """The flags of ours that the client obeys; `rest` is what the daemon renders."""

    def __init__(self, words: Sequence[str]) -> None:
        self.machine: str | None = None
        self.period_s: float | None = None
        self.version = False
        self.rest: list[str] = []
        pending = list(words)
        while pending:
            word = pending.pop(0)
            flag, equals, value = word.partition("=")
            if flag == "--machine":
                self.machine = value if equals else "".join(pending[:1])
                del pending[: 0 if equals else 1]
                if not self.machine:
                    raise FlagError("expected argument for flag `--machine'")
            elif flag == "--watch":
                if not equals and pending and pending[0][:1].isdigit():
                    value = pending.pop(0)
                self.period_s = _period_s(value) if value or equals else DEFAULT_PERIOD_S
            elif word == "--version":
                self.version = True
            elif word != "--debug":
                self.rest.append(word)


def main(words: Sequence[str]) -> int:
    """Run a command line that is not plain: help, version, flags of ours, or a wrong flag."""
    return console.run(lambda: _main(words))


def without_reply(words: list[str]) -> int:
    """Print what there is to print after the fast path got no reply: start a machine if that is allowed, ask again."""
    return console.run(lambda: _show(_ask_again(words, env.machine())))


def failed(error: NeuronToolsError) -> int:
    """Print an error and return its exit code, or raise it with `--debug`."""
    return console.run(lambda: _raise(error))


def _raise(error: NeuronToolsError) -> int:
    raise error


def _main(words: Sequence[str]) -> int:
    try:
        own = OwnFlags(words)
        flags = parse(own.rest)
    except FlagError as error:
        return show((1, f"{error}\n".encode("utf-8", "replace"), b""))
    if flags.help:
        console.parse(build_parser(), ["--help"])
    if own.version:
        console.out(f"neuron-ls {__version__}")
        return 0
    machine = own.machine or env.machine()
    reply = _ask(own.rest, machine)
    if own.period_s is None or reply is None:
        return _show(reply)
    return _watch(own.rest, machine, own.period_s, reply, lines_of_json=flags.json)


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
        pass  # it may still answer: a daemon that was busy ending has a successor by now
    try:
        return request(words, machine)
    except ConnectionResetError as error:
        raise DaemonError("neurond ends before its reply is complete", "look at 'neurond logs'") from error


def _watch(words: list[str], machine: str, period_s: float, reply: Reply, *, lines_of_json: bool) -> int:
    shown = None
    current: Reply | None = reply
    while current is not None:
        code, out, err = current
        if current != shown:
            show((code, _frame(out, lines_of_json=lines_of_json), err))
            shown = current
        if code:
            return code
        time.sleep(period_s)
        try:
            current = request(words, machine)
        except ConnectionResetError:
            current = None
    return _no_driver()


def _frame(out: bytes, *, lines_of_json: bool) -> bytes:
    if lines_of_json:
        import json

        return json.dumps(json.loads(out), separators=(",", ":")).encode() + b"\n"
    if sys.stdout.isatty():
        return b"\x1b[H" + out.replace(b"\n", b"\x1b[K\n") + b"\x1b[J"
    return out


def _period_s(text: str) -> float:
    try:
        period_s = float(text)
    except ValueError:
        period_s = 0.0
    if not MIN_PERIOD_S <= period_s <= MAX_PERIOD_S:
        raise FlagError(f"flag `--watch' expects {MIN_PERIOD_S:g} to {MAX_PERIOD_S:g} seconds, not `{text}'")
    return period_s


def _show(reply: Reply | None) -> int:
    return _no_driver() if reply is None else show(reply)


def _no_driver() -> int:
    """Say what the real tool says on a host without the driver (system-tools.md 1.2)."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    sys.stderr.write(
        f'time="{now}" level=fatal msg="Failed to load MLA system information" '
        'error="failed to discover Neuron devices"\n'
    )
    return 1
