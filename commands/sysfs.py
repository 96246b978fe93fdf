"""neurontools sysfs: the driver's sysfs tree of the simulated machine, in a directory or on the screen."""

from __future__ import annotations

import argparse
import signal
from typing import TYPE_CHECKING, NoReturn

from neurontools.commands import console
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.sources.mirroring import Export

EXAMPLES = """examples:
  neurontools sysfs export sysfs           write the tree once
  neurontools sysfs export sysfs --watch   keep it current; Ctrl-C ends
  neurontools sysfs export ci --machine ci --watch --interval 0.2
  cat sysfs/sys/class/neuron_device/neuron0/connected_devices
  echo 0 > sysfs/sys/class/neuron_device/neuron0/stats/hardware/mem_ecc_uncorrected
  neurontools sysfs show neuron0/core_count
  neurontools sysfs show 'neuron*/info/serial_number' --json

exit codes: 0 fine, 1 the directory can't be used or was deleted, 2 wrong command line, 3 no machine,
4 daemon trouble, 130 interrupted, 143 terminated
"""

_SHORTEST_INTERVAL_S = 0.05
_LONGEST_INTERVAL_S = 3600.0
_TERMINATED = 128 + signal.SIGTERM


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        prog="neurontools sysfs",
        description="Show the files that the Neuron driver would have in /sys for the simulated machine.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    export = verbs.add_parser("export", help="write the tree into a directory")
    export.add_argument(
        "directory", metavar="DIR", help="an empty directory, or one that was exported before"
    )
    export.add_argument(
        "--watch", action="store_true", help="keep it current, and apply what is written to its files"
    )
    export.add_argument(
        "--interval", metavar="S", type=float, default=1.0, help="seconds between updates (default: 1)"
    )
    show = verbs.add_parser("show", help="print files of the tree")
    show.add_argument(
        "path",
        metavar="PATH",
        nargs="?",
        default="neuron*",
        help="a file, a directory or a pattern (default: all)",
    )
    for verb in (export, show):
        verb.add_argument(
            "--machine", metavar="NAME", help="the machine (default: NEURONTOOLS_MACHINE or 'default')"
        )
        verb.add_argument("--json", action="store_true", help="print JSON")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return console.run(lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    arguments = console.parse(build_parser(), argv)
    if arguments.verb == "show":
        return _show(arguments)
    if not _SHORTEST_INTERVAL_S <= arguments.interval <= _LONGEST_INTERVAL_S:
        raise UsageError(
            f"--interval {arguments.interval:g} is out of range",
            f"give {_SHORTEST_INTERVAL_S:g} to {_LONGEST_INTERVAL_S:g} seconds",
        )
    console.notice(f"writing the tree into {arguments.directory} ...")
    return _watch(arguments) if arguments.watch else _export(arguments)


def _export(arguments: argparse.Namespace) -> int:
    from neurontools.sources.mirroring import export

    done = export(arguments.directory, machine=arguments.machine, on_notice=console.notice)
    _report(done, as_json=arguments.json)
    return 0


def _watch(arguments: argparse.Namespace) -> int:
    from neurontools.sources.mirroring import keep

    signal.signal(signal.SIGTERM, _terminate)
    try:
        keep(
            arguments.directory,
            arguments.interval,
            machine=arguments.machine,
            on_start=console.notice,
            on_notice=console.warn,
            on_first=lambda done: _report(done, as_json=arguments.json),
        )
    except _TerminatedError:
        return _TERMINATED
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from neurontools.sources import open_source
    from neurontools.sysfs.showing import matching, text_of

    with open_source("sim", machine=arguments.machine, on_notice=console.notice) as source:
        found = matching(source.snapshot(), arguments.path)
    if arguments.json:
        import json

        console.out(json.dumps({f"/{path}": text_of(entry) for path, entry in found.items()}, indent=2))
    elif len(found) == 1:
        console.out(text_of(next(iter(found.values()))).removesuffix("\n"))
    else:
        console.out("\n".join(f"/{path}: {text_of(entry).strip()}" for path, entry in found.items()))
    return 0


def _report(done: Export, *, as_json: bool) -> None:
    if as_json:
        import json
        from dataclasses import asdict

        console.out_now(json.dumps(asdict(done)))
    else:
        devices = "1 device" if done.device_count == 1 else f"{done.device_count} devices"
        console.out_now(
            f"{done.path}: {done.instance_type}, {devices}, {done.file_count} files, {done.written_count} written"
        )


class _TerminatedError(Exception):
    """SIGTERM came."""


def _terminate(*_: object) -> NoReturn:
    raise _TerminatedError
