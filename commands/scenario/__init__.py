"""neurontools scenario: fill a machine with synthetic processes; record and replay neuron-monitor's lines."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from neurontools.base.units import parse_duration
from neurontools.commands import console
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

EXAMPLES = """examples:
  neurontools scenario list
  neurontools scenario play training-32 --speed 10        then neuron-top in another terminal
  neurontools scenario play my.yaml --machine ci --loop   until Ctrl-C
  neurontools scenario show ecc-storm
  neurontools scenario check my.yaml                      every mistake, with its line
  neurontools scenario record --out run.jsonl --count 60  what neuron-monitor prints
  neuron-monitor | neurontools scenario record - --out run.jsonl
  neurontools scenario record ecc-storm --offline --out storm.jsonl
  neurontools scenario replay run.jsonl --speed 5 | neuron-monitor-prometheus

exit codes: 0 success, 1 mistakes in a file or damaged lines, 2 usage error, 3 no machine, 4 the machine has another
instance type, or daemon error, 130 interrupted, 143 terminated
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        prog="neurontools scenario",
        description="Play scenarios on the simulated machine; record and replay neuron-monitor output.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    _list_verb(verbs)
    _show_verbs(verbs)
    _play_verb(verbs)
    _record_verb(verbs)
    _replay_verb(verbs)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return console.run(lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    from neurontools.commands.scenario import play, recording, show

    arguments = console.parse(build_parser(), argv)
    for option in ("duration", "period"):
        if hasattr(arguments, option):
            setattr(arguments, option, _parse_duration(getattr(arguments, option), f"--{option}"))
    verbs: dict[str, Callable[[argparse.Namespace], int]] = {
        "list": show.list_all,
        "show": show.show,
        "check": show.check,
        "play": play.play,
        "record": recording.record,
        "replay": recording.replay,
    }
    return verbs[arguments.verb](arguments)


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


def _verb(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser], name: str, what: str
) -> argparse.ArgumentParser:
    return verbs.add_parser(name, help=what, description=what[0].upper() + what[1:] + ".")


def _json(parser: argparse.ArgumentParser, what: str = "print JSON") -> None:
    parser.add_argument("--json", action="store_true", help=what)


def _machine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--machine", metavar="NAME", help="machine name (default: NEURONTOOLS_MACHINE or 'default')"
    )


def _list_verb(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    _json(_verb(verbs, "list", "list the bundled scenarios"))


def _show_verbs(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    show = _verb(verbs, "show", "show what a scenario does, group by group")
    check = _verb(verbs, "check", "check scenario files and report every mistake with its line")
    show.add_argument("scenario", metavar="NAME|FILE", help="a bundled scenario, or a YAML file")
    check.add_argument("files", metavar="NAME|FILE", nargs="+", help="scenario files")
    _json(show)
    _json(check)


def _play_verb(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    play = _verb(verbs, "play", "run the synthetic processes of a scenario on a machine")
    play.add_argument("scenario", metavar="NAME|FILE", help="a bundled scenario, or a YAML file")
    play.add_argument(
        "--machine",
        metavar="NAME",
        help="machine name (default: NEURONTOOLS_MACHINE or 'default'); a machine that is not running is started, and "
        "stopped at the end",
    )
    play.add_argument(
        "--speed", metavar="X", type=float, default=1.0, help="scenario seconds per second (default: 1)"
    )
    play.add_argument("--duration", metavar="DURATION", help="scenario time to play, e.g. 90s or 5m")
    play.add_argument("--seed", metavar="N", type=int, help="override the seed of the scenario")
    play.add_argument("--loop", action="store_true", help="repeat until Ctrl-C or --duration")
    _json(play, "print one JSON object per event")


def _record_verb(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    record = _verb(verbs, "record", "record neuron-monitor output, or compute it from a scenario")
    record.add_argument(
        "scenario",
        metavar="-|NAME|FILE",
        nargs="?",
        help="- for stdin, or a scenario with --offline (default: record the machine)",
    )
    record.add_argument("--out", metavar="FILE", required=True, help="file to write, - for stdout")
    record.add_argument("--force", action="store_true", help="replace an existing file")
    record.add_argument(
        "--offline", action="store_true", help="compute the scenario's recording, without a machine"
    )
    _machine(record)
    record.add_argument(
        "--source",
        metavar="sim|real",
        default="sim",
        help="data source: the simulated machine (default) or this host",
    )
    record.add_argument("--duration", metavar="DURATION", help="length of the recording, e.g. 90s or 5m")
    record.add_argument("--count", metavar="N", type=int, help="number of lines to record")
    record.add_argument("--period", metavar="DURATION", help="time between two reports (default: 5s)")
    record.add_argument("--seed", metavar="N", type=int, help="override the seed of the scenario")


def _replay_verb(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    replay = _verb(verbs, "replay", "print a recording, byte for byte, at its recorded speed")
    replay.add_argument("file", metavar="FILE", help="a recording, - for stdin")
    replay.add_argument(
        "--speed", metavar="X", type=float, default=1.0, help="multiple of the recorded speed (default: 1)"
    )
    replay.add_argument("--loop", action="store_true", help="repeat until Ctrl-C")
    replay.add_argument("--no-wait", action="store_true", help="print all lines at once")
