"""What neuron-ls does beside its fast path: help, the first start of a machine, errors."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

from neurontools.commands import console, ls

from neurontools import env
from neurontools.errors import DaemonError, NeuronToolsError, NoMachineError
from neurontools.machine.ls_flags import FlagError, parse

if TYPE_CHECKING:
    from collections.abc import Sequence

EXAMPLES = """examples:
  neuron-ls
  neuron-ls --wide --show-all-procs
  neuron-ls --topology
  neuron-ls -j | python -c 'import json, sys; print(sum(d["nc_count"] for d in json.load(sys.stdin)))'
  NEURONTOOLS_MACHINE=ci neuron-ls
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
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
    return parser


def main(words: Sequence[str]) -> int:
    """Run a command line that is not plain: help, version, or a wrong flag."""
    if "--version" in words:
        console.parse(build_parser(), ["--version"])
    words = [word for word in words if word != "--debug"]
    try:
        flags = parse(words)
    except FlagError as error:
        return ls.show((1, f"{error}\n".encode("utf-8", "replace"), b""))
    if flags.help:
        parser = build_parser()
        console.parse(parser, ["--help"])
    return ls.main([word for word in words if word != "--"])


def without_reply(words: list[str]) -> int:
    """Print what there is to print after the fast path got no reply: start a machine if that is allowed, ask again."""
    return console.run(lambda: _ask_again(words))


def failed(error: NeuronToolsError) -> int:
    """Print an error and return its exit code, or raise it with `--debug`."""
    return console.run(lambda: _raise(error))


def cannot_write(error: OSError) -> int:
    """Say why the output could not be written and return the exit code."""
    return failed(NeuronToolsError(f"cannot write the output: {error.strerror}"))


def _raise(error: NeuronToolsError) -> int:
    raise error


def _ask_again(words: list[str]) -> int:
    if env.autostart():
        from neurontools.machine import launch

        try:
            launch.ensure_running(env.machine(), on_notice=console.notice)
        except NoMachineError:
            return _no_driver()
    try:
        reply = ls.request(words)
    except ConnectionResetError as error:
        raise DaemonError("neurond ends before its reply is complete", "look at 'neurond logs'") from error
    return _no_driver() if reply is None else ls.show(reply)


def _no_driver() -> int:
    """Say what the real tool says on a host without the driver (system-tools.md 1.2)."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    sys.stderr.write(
        f'time="{now}" level=fatal msg="Failed to load MLA system information" '
        'error="failed to discover Neuron devices"\n'
    )
    return 1
