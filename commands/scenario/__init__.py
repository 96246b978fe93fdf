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
  neurontools scenario play my.yaml --machine ci --loop   until ctrl+c
  neurontools scenario show ecc-storm
  neurontools scenario check my.yaml                      every mistake, with its line
  neurontools scenario record --out run.jsonl --count 60  what neuron-monitor prints
  neuron-monitor | neurontools scenario record - --out run.jsonl
  neurontools scenario record ecc-storm --offline --out storm.jsonl
  neurontools scenario replay run.jsonl --speed 5 | neuron-monitor-prometheus

exit codes: 0 fine, 1 mistakes in a file or damaged lines, 2 wrong command line, 3 no machine, 4 the machine is of
another type or its daemon refuses, 130 interrupted, 143 terminated
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        prog="neurontools scenario",
        description="Play scenarios on the simulated machine, and record and replay the lines of neuron-monitor.",
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
        raise UsageError(f"{flag} {text} is not longer than 0", "write for example 500ms, 30s, 5m or 1h30m")
    return seconds


def _verb(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser], name: str, what: str
) -> argparse.ArgumentParser:
    return verbs.add_parser(name, help=what, description=what[0].upper() + what[1:] + ".")


def _json(parser: argparse.ArgumentParser, what: str = "print JSON") -> None:
    parser.add_argument("--json", action="store_true", help=what)


def _machine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--machine", metavar="NAME", help="the machine (default: NEURONTOOLS_MACHINE or 'default')"
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
    play = _verb(verbs, "play", "fill a machine with the synthetic processes of a scenario")
    play.add_argument("scenario", metavar="NAME|FILE", help="a bundled scenario, or a YAML file")
    play.add_argument(
        "--machine",
        metavar="NAME",
        help="machine to play on (default: NEURONTOOLS_MACHINE or 'default'); if it does not run, it is started and "
        "stopped again at the end",
    )
    play.add_argument(
        "--speed", metavar="X", type=float, default=1.0, help="scenario seconds in a second (default: 1)"
    )
    play.add_argument("--duration", metavar="D", help="scenario time to play, such as 90s or 5m")
    play.add_argument("--seed", metavar="N", type=int, help="replace the seed of the file")
    play.add_argument(
        "--loop", action="store_true", help="start again at the end, until ctrl+c or --duration"
    )
    _json(play, "print events as JSON lines")


def _record_verb(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    record = _verb(verbs, "record", "record the lines of neuron-monitor, or compute those of a scenario")
    record.add_argument(
        "scenario",
        metavar="-|NAME|FILE",
        nargs="?",
        help="- records stdin; a scenario needs --offline; without it the machine is recorded",
    )
    record.add_argument("--out", metavar="FILE", required=True, help="the recording, - for stdout")
    record.add_argument("--force", action="store_true", help="replace an existing file")
    record.add_argument(
        "--offline", action="store_true", help="compute the scenario's recording, without a machine"
    )
    _machine(record)
    record.add_argument(
        "--source",
        metavar="sim|real",
        default="sim",
        help="the simulated machine or the real host (default: sim)",
    )
    record.add_argument("--duration", metavar="D", help="length of the recording, such as 90s or 5m")
    record.add_argument("--count", metavar="N", type=int, help="number of lines to record")
    record.add_argument("--period", metavar="D", help="time between two lines (default: neuron-monitor's 5s)")
    record.add_argument("--seed", metavar="N", type=int, help="replace the seed of the scenario")


def _replay_verb(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    replay = _verb(verbs, "replay", "print a recording, byte for byte, at its own pace")
    replay.add_argument("file", metavar="FILE", help="a recording, - for stdin")
    replay.add_argument(
        "--speed", metavar="X", type=float, default=1.0, help="factor of the original pace (default: 1)"
    )
    replay.add_argument("--loop", action="store_true", help="start again at the end, until ctrl+c")
    replay.add_argument("--no-wait", action="store_true", help="print all lines at once")
