"""neurontools scenario: fill a machine with synthetic processes; record and replay neuron-monitor's lines."""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import TYPE_CHECKING

from neurontools.base.units import parse_duration
from neurontools.commands import console
from neurontools.commands.parsing import add_json, add_limit, add_machine, add_verb
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from neurontools.commands.parsing import Verbs

EXAMPLES = """examples:
  neurontools scenario list
  neurontools scenario play training-32 --speed 10        then neuron-top in another terminal
  neurontools scenario play my.yaml --machine ci --loop   until Ctrl-C
  neurontools scenario show ecc-storm
  neurontools scenario check my.yaml                      every mistake, with its line
  neurontools scenario record -o run.jsonl --limit 60  what neuron-monitor prints
  neuron-monitor | neurontools scenario record - -o run.jsonl
  neurontools scenario record ecc-storm --offline -o storm.jsonl
  neurontools scenario replay run.jsonl --speed 5 | neuron-monitor-prometheus

exit codes: 0 success, 1 mistakes in a file or damaged lines, 2 usage error, 3 no machine, 4 the machine has another
instance type, or daemon error, 130 interrupted, 143 terminated
"""

# verb -> (module beside this one, function)
_BODIES = {
    "list": ("show", "list_all"),
    "show": ("show", "show"),
    "check": ("show", "check"),
    "play": ("play", "play"),
    "record": ("play", "record"),
    "replay": ("play", "replay"),
}


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        prog="neurontools scenario",
        description="Play scenarios on the simulated machine; record and replay neuron-monitor output.",
        epilog=EXAMPLES,
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    add_json(add_verb(verbs, "list", "list the bundled scenarios", _run))
    show = add_verb(verbs, "show", "show what a scenario does, group by group", _run)
    show.add_argument("scenario", metavar="NAME|FILE", help="a bundled scenario, or a YAML file")
    add_json(show)
    check = add_verb(verbs, "check", "check scenario files and report every mistake with its line", _run)
    check.add_argument("files", metavar="NAME|FILE", nargs="+", help="scenario files")
    add_json(check)
    _add_play(verbs)
    _add_record(verbs)
    _add_replay(verbs)
    return parser


def _run(arguments: argparse.Namespace) -> int:
    for option in ("duration", "interval"):
        if hasattr(arguments, option):
            setattr(arguments, option, _parse_duration(getattr(arguments, option), f"--{option}"))
    module, function = _BODIES[arguments.verb]
    body = getattr(import_module(f"neurontools.commands.scenario.{module}"), function)
    return int(body(arguments))


def _parse_duration(text: str | None, flag: str) -> float | None:
    """Return the seconds of an option, None where it is missing.

    Raises:
        UsageError: it is not a duration, or not longer than 0.
    """
    if text is None:
        return None
    try:
        seconds = parse_duration(text)
    except UsageError as error:
        raise UsageError(f"{flag}: {error.message}", error.remedy) from error
    if seconds <= 0:
        raise UsageError(f"{flag} {text} is not above 0", "use e.g. 500ms, 30s, 5m or 1h30m")
    return seconds


def _add_play(verbs: Verbs) -> None:
    play = add_verb(verbs, "play", "run the synthetic processes of a scenario on a machine", _run)
    add = play.add_argument
    add("scenario", metavar="NAME|FILE", help="a bundled scenario, or a YAML file")
    add_machine(play, note="; a machine that is not running is started, and stopped at the end")
    add("--speed", metavar="X", type=float, default=1.0, help="scenario seconds per second (default: 1)")
    add("--duration", metavar="DURATION", help="scenario time to play, e.g. 90s or 5m")
    add("--seed", metavar="N", type=int, help="override the seed of the scenario")
    add("--loop", action="store_true", help="repeat until Ctrl-C or --duration")
    add_json(play, "print one JSON object per event")


def _add_record(verbs: Verbs) -> None:
    record = add_verb(verbs, "record", "record neuron-monitor output, or compute it from a scenario", _run)
    add = record.add_argument
    add(
        "scenario",
        metavar="-|NAME|FILE",
        nargs="?",
        help="- for stdin, or a scenario with --offline (default: record the machine)",
    )
    add("-o", "--output", metavar="FILE", required=True, help="file to write, - for stdout")
    add("--force", action="store_true", help="replace an existing file")
    add("--offline", action="store_true", help="compute the scenario's recording, without a machine")
    add_machine(record)
    add(
        "--source",
        metavar="sim|real",
        default="sim",
        help="data source: the simulated machine (default) or this host",
    )
    add("--duration", metavar="DURATION", help="length of the recording, e.g. 90s or 5m")
    add_limit(record, "number of lines to record")
    add("--interval", metavar="DURATION", help="time between two reports (default: 5s)")
    add("--seed", metavar="N", type=int, help="override the seed of the scenario")


def _add_replay(verbs: Verbs) -> None:
    replay = add_verb(verbs, "replay", "print a recording, byte for byte, at its recorded speed", _run)
    replay.add_argument("file", metavar="FILE", help="a recording, - for stdin")
    replay.add_argument(
        "--speed", metavar="X", type=float, default=1.0, help="multiple of the recorded speed (default: 1)"
    )
    replay.add_argument("--loop", action="store_true", help="repeat until Ctrl-C")
    replay.add_argument("--no-wait", action="store_true", help="print all lines at once")


main = console.command(build_parser)
