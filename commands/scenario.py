"""neurontools scenario: fill a machine with synthetic processes; record and replay neuron-monitor's lines."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from neurontools.commands import console

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
    from neurontools.commands import scenario_play, scenario_recording, scenario_show

    arguments = console.parse(build_parser(), argv)
    verbs: dict[str, Callable[[argparse.Namespace], int]] = {
        "list": scenario_show.list_all,
        "show": scenario_show.show,
        "check": scenario_show.check,
        "play": scenario_play.play,
        "record": scenario_recording.record,
        "replay": scenario_recording.replay,
    }
    return verbs[arguments.verb](arguments)


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
    _json(_verb(verbs, "list", "list the scenarios that come with neurontools"))


def _show_verbs(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    show = _verb(verbs, "show", "show what a scenario does, group by group")
    check = _verb(verbs, "check", "check scenario files and name every mistake with its line")
    show.add_argument("scenario", metavar="NAME|FILE", help="a scenario of the list, or a YAML file")
    check.add_argument("files", metavar="NAME|FILE", nargs="+", help="scenario files")
    _json(show)
    _json(check)


def _play_verb(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    play = _verb(verbs, "play", "fill a machine with the synthetic processes of a scenario")
    play.add_argument("scenario", metavar="NAME|FILE", help="a scenario of the list, or a YAML file")
    play.add_argument(
        "--machine",
        metavar="NAME",
        help="play on this machine (default: NEURONTOOLS_MACHINE or 'default'); one that does not run is started "
        "and ends with the play",
    )
    play.add_argument(
        "--speed", metavar="X", type=float, default=1.0, help="scenario seconds in a second (default: 1)"
    )
    play.add_argument("--duration", metavar="D", help="stop after so much scenario time, such as 90s or 5m")
    play.add_argument("--seed", metavar="N", type=int, help="another seed than the file's")
    play.add_argument(
        "--loop", action="store_true", help="start again at the end, until ctrl+c or --duration"
    )
    _json(play, "print what happens as JSON lines")


def _record_verb(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    record = _verb(verbs, "record", "record the lines of neuron-monitor, or compute those of a scenario")
    record.add_argument(
        "scenario",
        metavar="-|NAME|FILE",
        nargs="?",
        help="- records what comes on stdin; a scenario needs --offline; nothing: the machine",
    )
    record.add_argument("--out", metavar="FILE", required=True, help="the recording, - for stdout")
    record.add_argument("--force", action="store_true", help="replace a file that is there")
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
    record.add_argument("--duration", metavar="D", help="how much to record, such as 90s or 5m")
    record.add_argument("--count", metavar="N", type=int, help="how many lines to record")
    record.add_argument("--period", metavar="D", help="time between two lines (default: neuron-monitor's 5s)")
    record.add_argument("--seed", metavar="N", type=int, help="another seed than the scenario's")


def _replay_verb(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    replay = _verb(verbs, "replay", "print a recording, byte for byte, in its own pace")
    replay.add_argument("file", metavar="FILE", help="a recording, - for stdin")
    replay.add_argument(
        "--speed", metavar="X", type=float, default=1.0, help="so many times as fast (default: 1)"
    )
    replay.add_argument("--loop", action="store_true", help="start again at the end, until ctrl+c")
    replay.add_argument("--no-wait", action="store_true", help="print everything at once")
