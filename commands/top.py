"""neuron-top: the live dashboard of the machine."""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import sys
from typing import TYPE_CHECKING

from neurontools import env
from neurontools.base.text import did_you_mean, shows_utf8
from neurontools.commands import console
from neurontools.commands.parsing import add_duration
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.tui.top.run import TopOptions
    from neurontools.tui.top.source import MachineAddress

EXAMPLES = """examples:
  neuron-top                     live view; q quits, ? shows the keys
  neuron-top --interval 0.5      two updates a second
  neuron-top --once              one screen as text, rates over one interval
  neuron-top --machine ci        another machine
  neuron-top --source real       this host's devices, if the Neuron driver is installed
  neuron-top --source run.jsonl  a recording of neuron-monitor output
  neuron-top --page processes --filter 'owner=me tag~train'
                                 start on a page, with a filter as in neuron-ls
  neuron-top --once --page devices --json
                                 a page as JSON
  neuron-top --machine a,b --remote ci=http://10.0.0.7:8000
                                 several machines; n and b switch between them
  neuron-top --record run.jsonl  record the live view as neuron-monitor output
  neuron-top --replay run.jsonl --speed 10
                                 replay: space pauses, [ ] step, { } a minute, + - speed
  neuron-top --exec-on-alert 'logger -t neuron alert'
                                 run a command when an alert begins, described by
                                 NEURONTOOLS_ALERT* variables

exit codes: 0 success, 1 failed, 2 usage error, 3 no machine, 4 daemon error, 129 terminal
closed, 130 interrupted, 131 quit (SIGQUIT), 143 terminated
"""


_SLOWEST, _FASTEST = 0.1, 300.0


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        prog="neuron-top",
        description="Show NeuronCore utilization, vCPU and memory use of the machine, live. Without a terminal it "
        "prints one screen as text.",
        epilog=EXAMPLES,
    )
    add = parser.add_argument
    add_duration(parser, "--interval", "time between updates, 0.1s to 1h (default: 1s)")
    add(
        "--machine",
        metavar="NAME,...",
        help="machine names, separated by commas (default: NEURONTOOLS_MACHINE or 'default')",
    )
    add(
        "--remote",
        metavar="HOST=URL",
        action="append",
        default=[],
        help="also show a remote machine from its neuron-monitor-prometheus, e.g. "
        "ci=http://10.0.0.7:8000; can be repeated; https+insecure:// accepts any certificate",
    )
    add(
        "--source",
        metavar="SOURCE",
        default="sim",
        help="data source: sim, real, a file of neuron-monitor output, shown one line per interval, or "
        "the address of an exporter (default: sim)",
    )
    add(
        "--record",
        metavar="FILE",
        help="record every update into a new file as neuron-monitor output ('neurontools scenario replay' and "
        "--replay read it); several machines get run.NAME.jsonl each",
    )
    add(
        "--replay",
        metavar="FILE",
        help="replay a recording at its original speed; keys pause, seek and change the speed",
    )
    add("--speed", metavar="X", type=float, help="speed of --replay, 0.1 to 300 (default: 1)")
    add("--page", metavar="PAGE", help="first page, or the page to print (default: overview)")
    add(
        "--filter",
        metavar="EXPR",
        default="",
        help="only processes that match EXPR, as in neuron-ls --filter",
    )
    add(
        "--theme",
        metavar="THEME",
        help="auto (match the terminal), dark, light, colorblind, ansi, or a theme of Textual such as nord "
        "(default: auto)",
    )
    add(
        "--classic",
        action="store_true",
        help="show the real neuron-top's screen as the overview; key c switches",
    )
    add("--ascii", action="store_true", help="draw with ASCII only (default: if the terminal lacks UTF-8)")
    add("--readonly", action="store_true", help="disable signals to processes")
    add(
        "--exec-on-alert",
        metavar="CMD",
        help="run a command when an alert begins (split into words, no shell)",
    )
    add("--once", action="store_true", help="print the current screen as text and exit")
    add("--json", action="store_true", help="with --once: print JSON")
    add("--list-keys", action="store_true", help="print the names of all keys and exit")
    return parser


def _run(arguments: argparse.Namespace) -> int:
    if arguments.json and not arguments.once:
        raise UsageError("--json needs --once", "add --once, or use neuron-monitor for a stream")
    if arguments.list_keys:
        return _list_keys()
    _check_time(arguments)
    is_live = not arguments.once and console.has_screen()
    if is_live:
        gc.disable()  # while much is imported that stays; `run_live` enables it
    options, problems = _options(arguments)
    if is_live:
        return _run_live(options, problems)
    from neurontools.tui.top import run

    if not arguments.once:
        obstacle = console.screen_obstacle()
        remedy = (
            "run it in a terminal" if obstacle == "not a terminal" else "set TERM, e.g. TERM=xterm-256color,"
        )
        console.warn(f"{obstacle}: printing one screen (as with --once); {remedy} for the live view")
    for problem in problems:
        console.notice(f"warning: {problem}")
    width = shutil.get_terminal_size().columns
    from neurontools.tui.widgets.lines import ascii_only

    screen, notices = run.one_page(options, width, as_json=arguments.json, on_notice=console.notice)
    for text in notices:
        console.warn(text)
    console.out_now(ascii_only(screen) if options.settings.ascii else screen)
    return 0


def _run_live(options: TopOptions, problems: Sequence[str]) -> int:
    from neurontools.tui.top import run

    env.configuration()  # plain commands report its problems at the end, which is hours later here
    notices = (*env.config_problems(), *problems)
    colour = console.colour_wanted()
    return run.run_live(options, colour=colour, notices=notices, on_notice=console.notice)


def _check_time(arguments: argparse.Namespace) -> None:
    if arguments.speed is None:
        arguments.speed = 1.0
    elif arguments.replay is None:
        raise UsageError("--speed needs --replay", "add --replay FILE")
    if not _SLOWEST <= arguments.speed <= _FASTEST:
        raise UsageError(
            f"--speed {arguments.speed:g} is out of range", f"use {_SLOWEST:g} to {_FASTEST:g} times"
        )
    if arguments.replay is not None and (arguments.source != "sim" or arguments.machine is not None):
        raise UsageError("--replay cannot be combined with --source or --machine", "remove them")
    if arguments.record is not None and (arguments.replay is not None or arguments.once):
        conflicting = "--once" if arguments.once else "--replay"
        raise UsageError(f"--record cannot be combined with {conflicting}", "remove one of them")
    if arguments.replay is not None and not os.path.exists(arguments.replay):
        raise UsageError(
            f"recording not found: {arguments.replay}",
            "record one with --record FILE or 'neuron-monitor > FILE'",
        )


def _options(arguments: argparse.Namespace) -> tuple[TopOptions, tuple[str, ...]]:
    from msgspec.structs import replace

    from neurontools.dashboard.process_table import problem_of
    from neurontools.tui.names import PAGE_NAMES, TEXTUAL_THEMES, THEME_NAMES
    from neurontools.tui.top.run import TopOptions
    from neurontools.tui.top.settings import LONGEST_INTERVAL_S, SHORTEST_INTERVAL_S, load_settings

    settings, problems = load_settings()
    if arguments.interval is not None:
        if not SHORTEST_INTERVAL_S <= arguments.interval <= LONGEST_INTERVAL_S:
            raise UsageError(
                f"--interval of {arguments.interval:g} seconds is out of range",
                f"use {SHORTEST_INTERVAL_S:g} to {LONGEST_INTERVAL_S:g} seconds",
            )
        settings = replace(settings, interval_s=arguments.interval)
    for name, known in (("page", PAGE_NAMES), ("theme", (*THEME_NAMES, *TEXTUAL_THEMES))):
        value = getattr(arguments, name)
        if value is not None and value not in known:
            raise UsageError(f"--{name}: unknown {name} {value!r}", did_you_mean(value, known))
    settings = replace(
        settings,
        page=arguments.page or settings.page,
        theme=arguments.theme or settings.theme,
        classic=arguments.classic or settings.classic,
        ascii=arguments.ascii or settings.ascii or not shows_utf8(sys.stdout.encoding, os.environ),
    )
    if problem := problem_of(arguments.filter):
        raise UsageError(
            f"--filter {arguments.filter!r}: {problem}", "'neurontools help neuron-ls' explains filters"
        )
    alert_command = None
    if arguments.exec_on_alert is not None:
        from neurontools.dashboard.alerts import check_command, split_command

        alert_command = split_command(arguments.exec_on_alert)
        check_command(alert_command)
    options = TopOptions(
        source=arguments.source,
        machine=arguments.machine,
        settings=settings,
        readonly=arguments.readonly,
        filter=arguments.filter,
        alert_command=alert_command,
        record=arguments.record,
        # A file of that name, not the source.
        replay=f"./{arguments.replay}" if arguments.replay in {"sim", "real"} else arguments.replay,
        speed=arguments.speed,
        places=_places(arguments),
    )
    return options, problems


def _places(arguments: argparse.Namespace) -> tuple[MachineAddress, ...]:
    names: list[str] = [] if arguments.machine is None else arguments.machine.split(",")
    if not arguments.remote and len(names) < 2:
        return ()
    if arguments.source != "sim" or arguments.replay is not None:
        raise UsageError("several machines cannot be combined with --source or --replay", "remove them")
    if arguments.once and (arguments.page or arguments.filter):
        raise UsageError(
            "--once prints only the list of several machines",
            "remove --page and --filter, or name a single machine",
        )
    from neurontools.tui.top.source import places_of

    return places_of(names, arguments.remote)


def _list_keys() -> int:
    from neurontools.tui.top.keys import key_names

    for name, keys, text in key_names():
        console.out(f"{name:<28} {keys:<28} {text}")
    return 0


main = console.command(build_parser, _run)
