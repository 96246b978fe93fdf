"""neurontools sysfs: export, show and reset the driver's sysfs tree of a simulated machine."""

from __future__ import annotations

import argparse
import signal
from typing import TYPE_CHECKING, NoReturn

from neurontools.commands import console
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.sources.sysfs_export import SysfsExport

EXAMPLES = """examples:
  neurontools sysfs export sysfs           write the tree once
  neurontools sysfs export sysfs --watch   keep it current; Ctrl-C stops
  neurontools sysfs export ci --machine ci --watch --interval 0.2
  cat sysfs/sys/class/neuron_device/neuron0/connected_devices
  neurontools sysfs show neuron0/core_count
  neurontools sysfs show 'neuron*/info/serial_number' --json
  neurontools sysfs reset                  zero all counters
  neurontools sysfs reset --device 3       zero the counters of one device

exit codes: 0 success, 1 the directory can't be used or was deleted, 2 usage error, 3 no machine,
4 daemon error, 130 interrupted, 143 terminated
"""

_SHORTEST_INTERVAL_S = 0.05
_LONGEST_INTERVAL_S = 3600.0
_TERMINATED = 128 + signal.SIGTERM


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        prog="neurontools sysfs",
        description="Export the files that the Neuron driver would show in /sys for the simulated machine. They are read-only.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    export = _verb(verbs, "export", "write the tree to a directory")
    export.add_argument("directory", metavar="DIR", help="an empty directory, or an earlier export")
    export.add_argument("--watch", action="store_true", help="keep the tree current")
    export.add_argument(
        "--interval", metavar="SECONDS", type=float, default=1.0, help="seconds between updates (default: 1)"
    )
    show = _verb(verbs, "show", "print files of the tree")
    show.add_argument(
        "path",
        metavar="PATH",
        nargs="?",
        default="neuron*",
        help="file, directory or pattern (default: all)",
    )
    reset = _verb(verbs, "reset", "zero the counters of the devices")
    reset.add_argument("--device", metavar="N", type=int, help="index of the device (default: all)")
    for verb in (export, show, reset):
        verb.add_argument(
            "--machine", metavar="NAME", help="machine name (default: NEURONTOOLS_MACHINE or 'default')"
        )
        verb.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _verb(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser], name: str, purpose: str
) -> argparse.ArgumentParser:
    return verbs.add_parser(name, help=purpose, description=f"{purpose.capitalize()}.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return console.run(lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    arguments = console.parse(build_parser(), argv)
    if arguments.verb == "show":
        return _show(arguments)
    if arguments.verb == "reset":
        return _reset(arguments)
    if not _SHORTEST_INTERVAL_S <= arguments.interval <= _LONGEST_INTERVAL_S:
        raise UsageError(
            f"--interval {arguments.interval:g} is out of range",
            f"use {_SHORTEST_INTERVAL_S:g} to {_LONGEST_INTERVAL_S:g} seconds",
        )
    console.notice(f"exporting to {arguments.directory} ...")
    return _watch(arguments) if arguments.watch else _export(arguments)


def _export(arguments: argparse.Namespace) -> int:
    from neurontools.sources.sysfs_export import export

    done = export(arguments.directory, machine=arguments.machine, on_notice=console.notice)
    _report(done, as_json=arguments.json)
    return 0


def _watch(arguments: argparse.Namespace) -> int:
    from neurontools.sources.sysfs_export import export_continuously

    signal.signal(signal.SIGTERM, _terminate)
    try:
        export_continuously(
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
    from neurontools.sysfs.tree import entry_text, find_files

    with open_source("sim", machine=arguments.machine, on_notice=console.notice) as source:
        found = find_files(source.snapshot(), arguments.path)
    if arguments.json:
        import json

        console.out(json.dumps({f"/{path}": entry_text(entry) for path, entry in found.items()}, indent=2))
    elif len(found) == 1:
        console.out(entry_text(next(iter(found.values()))).removesuffix("\n"))
    else:
        console.out("\n".join(f"/{path}: {entry_text(entry).strip()}" for path, entry in found.items()))
    return 0


def _reset(arguments: argparse.Namespace) -> int:
    from neurontools import env
    from neurontools.sysfs.counters import reset_counters

    if arguments.device is not None and arguments.device < 0:
        raise UsageError(f"invalid device {arguments.device}", "use an index such as 0")
    devices = reset_counters(arguments.machine or env.machine(), arguments.device)
    if arguments.json:
        import json

        console.out(json.dumps({"devices": devices}))
    else:
        console.out(f"counters reset on {len(devices)} device{'s' if len(devices) > 1 else ''}")
    return 0


def _report(done: SysfsExport, *, as_json: bool) -> None:
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
    """SIGTERM was received."""


def _terminate(*_: object) -> NoReturn:
    raise _TerminatedError
