"""neurond: start, stop and inspect simulated machines."""

from __future__ import annotations

import argparse
import json
import os
from typing import TYPE_CHECKING, Any

from neurontools import env, paths
from neurontools.base.text import plural, printable, shorten, table
from neurontools.base.units import format_age, format_binary_size, format_duration
from neurontools.commands import console
from neurontools.commands.parsing import EXIT_CODES, add_json, add_machine, add_verb
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.commands.parsing import Verbs
    from neurontools.machine.machine_config import DaemonInfo
    from neurontools.machine.snapshot import Snapshot

_COMMAND_WIDTH = 60

EXAMPLES = (
    """examples:
  neurond start --instance trn1.32xlarge        the default machine, as a trn1.32xlarge
  neurond start --instance trn2.48xlarge --lnc 1 --machine big && NEURONTOOLS_MACHINE=big neuron-ls
  neurond start --instance trn2.48xlarge --visible-devices 13        as in a container with device 13
  neurond start --group ml --dir /srv/neuron    shared: members use it with NEURONTOOLS_RUNTIME_DIR=/srv/neuron
  neurond status --json
  neurond list
  neurond logs -f
  neurond restart                               e.g. after an upgrade
  neurond stop --machine big

"""
    + EXIT_CODES
)


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        prog="neurond",
        description="Start, stop and inspect simulated Neuron machines. Each machine is one background process. Tools start the default machine when they need it.",
        epilog=EXAMPLES,
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    start = _verb(verbs, "start", "start a machine unless it is running", _start)
    add = start.add_argument
    add("--instance", metavar="TYPE", help="instance type (default: NEURONTOOLS_INSTANCE or trn1.2xlarge)")
    add("--lnc", type=int, metavar="N", help="logical NeuronCore configuration (trn2, trn3: 1 or 2)")
    add(
        "--visible-devices",
        metavar="LIST",
        help="only these devices of the host, as in a container: 13, 0,2 or 0-3; or all",
    )
    add(
        "--neighbours",
        choices=("host", "docs"),
        help="order in which trn2 lists connected devices: as real hosts do (default) or as AWS's documentation does",
    )
    add(
        "--ultraserver-mode",
        metavar="LIST",
        help="ways in which the instances of the UltraServer may be joined, e.g. 1,2,3,4 (trn2u, trn3; default: all)",
    )
    add(
        "--ultraserver-node",
        type=int,
        metavar="N",
        help="index of the machine in its UltraServer, from 0 (trn2u, trn3)",
    )
    add("--group", metavar="GROUP", help="share the machine with a group (name or number); needs --dir")
    add(
        "--dir",
        metavar="DIR",
        help="new or empty directory for the group's machines; the group must be able to reach it",
    )
    add("--foreground", action="store_true", help="run in the foreground and log to stderr, until Ctrl-C")
    _verb(verbs, "status", "show a machine and the processes on it", _status)
    stop = _verb(verbs, "stop", "stop a machine", _stop)
    stop.add_argument(
        "--force", action="store_true", help="stop even if processes hold cores; they keep running"
    )
    _verb(verbs, "restart", "replace the daemon; processes keep their cores", _restart)
    _verb(verbs, "list", "list the running machines", _list)
    logs = _verb(verbs, "logs", "print the daemon's log", _logs)
    logs.add_argument("-f", "--follow", action="store_true", help="follow the log as it grows")
    logs.add_argument(
        "--kernel",
        action="store_true",
        help="print the machine's kernel log instead: the driver's lines of dmesg",
    )
    return parser


def _verb(
    verbs: Verbs, name: str, purpose: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    parser = add_verb(verbs, name, purpose, run)
    if name != "list":
        add_machine(parser)
    if name != "logs":
        add_json(parser)
    return parser


def _start(arguments: argparse.Namespace) -> int:
    from neurontools.machine import launch

    _share(arguments.group, arguments.dir)
    options = launch.StartOptions(
        machine=env.machine() if arguments.machine is None else arguments.machine,
        instance_type=arguments.instance,
        lnc=arguments.lnc,
        neighbours=arguments.neighbours,
        visible_devices=arguments.visible_devices,
        ultraserver_mode=arguments.ultraserver_mode,
        ultraserver_node=arguments.ultraserver_node,
        foreground=arguments.foreground,
    )
    info = launch.start(options)
    if not arguments.foreground or info.was_running:
        _show(arguments, info, "is already running:" if info.was_running else "started:")
    return 0


def _share(group: str | None, directory: str | None) -> None:
    if group is None and directory is None:
        return
    if group is None:
        raise UsageError("--dir needs --group", f"for a private directory set {env.RUNTIME_DIR}")
    if directory is None:
        raise UsageError(
            "--group needs --dir", "name a directory that the group can reach: --dir /srv/neuron"
        )
    from neurontools.machine.sharing import share

    os.environ[env.RUNTIME_DIR] = share(directory, group)


def _status(arguments: argparse.Namespace) -> int:
    from neurontools.machine import launch
    from neurontools.machine.client import Client
    from neurontools.machine.machine_names import check_name

    info = launch.find(check_name(env.machine() if arguments.machine is None else arguments.machine))
    with Client.connect(info.machine) as client:
        snapshot = client.snapshot()
    return console.show(
        arguments.json,
        lambda: {"daemon": info.to_json(), "machine": snapshot.to_json()},
        lambda: _status_text(info, snapshot),
    )


def _stop(arguments: argparse.Namespace) -> int:
    from neurontools.machine import launch

    _show(arguments, launch.stop(arguments.machine, force=arguments.force), "stopped:")
    return 0


def _restart(arguments: argparse.Namespace) -> int:
    from neurontools.machine import launch

    _show(arguments, launch.restart(arguments.machine), "restarted:")
    return 0


def _list(arguments: argparse.Namespace) -> int:
    from neurontools.machine import launch

    infos = launch.list_machines()
    if arguments.json:
        console.print_json([info.to_json() for info in infos])
        return 0
    rows = [
        (
            info.machine,
            info.instance_type,
            str(info.device_count),
            str(info.core_count),
            str(info.pid),
            _uptime(info),
        )
        for info in infos
    ]
    console.out(table(("NAME", "INSTANCE", "DEVICES", "CORES", "PID", "UP"), rows, "<<<<<<"))
    return 0


def _logs(arguments: argparse.Namespace) -> int:
    from neurontools.machine.directory import lines

    for line in lines(
        arguments.machine, follow=arguments.follow, kernel=arguments.kernel, pause=console.pause
    ):
        console.out_now(line)
    return 0


def _show(arguments: argparse.Namespace, info: DaemonInfo, what: str) -> None:
    if arguments.json:
        console.out_now(json.dumps(info.to_json(), indent=2))
        return
    size = f"{plural(info.device_count, 'device')}, {plural(info.core_count, 'NeuronCore')}"
    console.out_now(
        printable(f"machine {info.machine!r} {what} {info.instance_type} ({size}), pid {info.pid}")
    )
    if info.group is not None and what.endswith("started:"):
        console.out_now(f"group {info.group} uses it with {env.RUNTIME_DIR}={paths.runtime_dir()}")


def _status_text(info: DaemonInfo, snapshot: Snapshot) -> str:
    claimed = sum(len(process.cores) for process in snapshot.processes)
    used = sum(device.memory_used_bytes for device in snapshot.devices)
    total = sum(device.memory_bytes for device in snapshot.devices)
    rows: list[tuple[str, Any]] = [
        ("machine", info.machine),
        ("instance", f"{info.instance_type} ({snapshot.instance_id})"),
        (
            "devices",
            f"{_devices(info, snapshot)}, {format_binary_size(total)} of memory, {format_binary_size(used)} reserved",
        ),
        ("cores", f"{claimed} of {info.core_count} claimed"),
        ("neurond", f"pid {info.pid}, up {_uptime(info)}"),
        ("version", f"{info.version}, protocol {info.protocol}"),
        ("socket", info.socket),
        ("log", info.log),
        ("ends", _ending(info)),
    ]
    if snapshot.lnc_applies:
        rows.insert(2, ("LNC", snapshot.lnc))
    rows[2:2] = _kind_rows(info)
    if info.group is not None:
        rows.append(("group", f"{info.group}, with {env.RUNTIME_DIR}={paths.runtime_dir()}"))
    rows += [
        (
            "process",
            f"{process.pid} {shorten(printable(process.command), _COMMAND_WIDTH) or '?'} ({plural(len(process.cores), 'core')})",
        )
        for process in snapshot.processes
    ]
    return "\n".join(printable(f"{name:<10}{value}") for name, value in rows)


def _uptime(info: DaemonInfo) -> str:
    from neurontools.machine.processes import ticks_now

    # From start times since boot: the wall clock may jump.
    return format_age(max(0, ticks_now() - info.start_ticks) / os.sysconf("SC_CLK_TCK"))


def _devices(info: DaemonInfo, snapshot: Snapshot) -> str:
    lost = sum(device.lost for device in snapshot.devices)
    return f"{info.device_count} ({lost} lost)" if lost else str(info.device_count)


def _kind_rows(info: DaemonInfo) -> list[tuple[str, Any]]:
    from neurontools.machine.machine_config import HOST
    from neurontools.machine.machine_names import core_ranges

    rows: list[tuple[str, Any]] = []
    if info.visible_devices is not None:
        rows.append(("visible", f"devices {core_ranges(info.visible_devices)} of the host"))
    if info.neighbours != HOST:
        rows.append(("links", "neighbours in the order of AWS's documentation"))
    if info.ultraserver_node is not None:
        modes = ",".join(map(str, info.ultraserver_modes or ()))
        rows.append(("server", f"node {info.ultraserver_node} of its UltraServer, modes {modes}"))
    return rows


def _ending(info: DaemonInfo) -> str:
    if info.parent_pid is not None:
        return f"when process {info.parent_pid} exits"
    if info.idle_exit_s is not None:
        return f"after {format_duration(info.idle_exit_s)} without clients and processes"
    return "with neurond stop"


main = console.command(build_parser)
