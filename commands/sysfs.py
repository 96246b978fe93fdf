"""neurontools sysfs: export, show and reset the driver's sysfs tree of a simulated machine."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from neurontools.base.text import plural
from neurontools.commands import console
from neurontools.commands.parsing import add_duration, add_json, add_machine, add_verb
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from neurontools.sources.sysfs_export import SysfsExport

EXAMPLES = """examples:
  neurontools sysfs export sysfs           write the tree once
  neurontools sysfs export sysfs --watch   keep it current until Ctrl-C
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


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        prog="neurontools sysfs",
        description="Export the files that the Neuron driver would show in /sys for the simulated machine. They are read-only.",
        epilog=EXAMPLES,
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    export = add_verb(verbs, "export", "write the tree to a directory", _export)
    export.add_argument("directory", metavar="DIR", help="an empty directory, or an earlier export")
    export.add_argument("--watch", action="store_true", help="keep the tree current")
    add_duration(export, "--interval", "time between updates (default: 1s)", 1.0)
    show = add_verb(verbs, "show", "print files of the tree", _show)
    show.add_argument(
        "path",
        metavar="PATH",
        nargs="?",
        default="neuron*",
        help="file, directory or pattern (default: all)",
    )
    reset = add_verb(verbs, "reset", "zero the counters of the devices", _reset)
    reset.add_argument("--device", metavar="N", type=int, help="index of the device (default: all)")
    for verb in (export, show, reset):
        add_machine(verb)
        add_json(verb)
    return parser


def _export(arguments: argparse.Namespace) -> int:
    if not _SHORTEST_INTERVAL_S <= arguments.interval <= _LONGEST_INTERVAL_S:
        raise UsageError(
            f"--interval of {arguments.interval:g} seconds is out of range",
            f"use {_SHORTEST_INTERVAL_S:g} to {_LONGEST_INTERVAL_S:g} seconds",
        )
    console.notice(f"exporting to {arguments.directory} ...")
    from neurontools.sources.sysfs_export import export, export_continuously

    if not arguments.watch:
        done = export(arguments.directory, machine=arguments.machine, on_notice=console.notice)
        _report(done, as_json=arguments.json)
        return 0
    console.exit_on_sigterm()
    export_continuously(
        arguments.directory,
        arguments.interval,
        machine=arguments.machine,
        on_start=console.notice,
        on_notice=console.warn,
        on_first=lambda done: _report(done, as_json=arguments.json),
    )
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from neurontools.sources import open_source
    from neurontools.sysfs.tree import entry_text, find_files

    with open_source("sim", machine=arguments.machine, on_notice=console.notice) as source:
        found = find_files(source.snapshot(), arguments.path)
    if arguments.json:
        console.print_json({f"/{path}": entry_text(entry) for path, entry in found.items()})
    elif len(found) == 1:
        console.out(entry_text(next(iter(found.values()))).removesuffix("\n"))
    else:
        console.out("\n".join(f"/{path}: {entry_text(entry).strip()}" for path, entry in found.items()))
    return 0


def _reset(arguments: argparse.Namespace) -> int:
    from neurontools import env
    from neurontools.sysfs.aggregates import reset_counters

    if arguments.device is not None and arguments.device < 0:
        raise UsageError(f"invalid device {arguments.device}", "use an index such as 0")
    devices = reset_counters(arguments.machine or env.machine(), arguments.device)
    if arguments.json:
        import json

        console.out(json.dumps({"devices": devices}))
    else:
        console.out(f"counters reset on {plural(len(devices), 'device')}")
    return 0


def _report(done: SysfsExport, *, as_json: bool) -> None:
    if as_json:
        import json
        from dataclasses import asdict

        console.out_now(json.dumps(asdict(done)))
    else:
        devices = plural(done.device_count, "device")
        console.out_now(
            f"{done.path}: {done.instance_type}, {devices}, {done.file_count} files, {done.written_count} written"
        )


main = console.command(build_parser)
