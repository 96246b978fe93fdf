"""neurontools fault: let something go wrong with the simulated machine, and make it right again."""

from __future__ import annotations

import argparse
import json
import math
from typing import TYPE_CHECKING, Any

from neurontools import env
from neurontools.commands import console
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.machine.faults.kinds import FaultKind

EXAMPLES = """examples:
  neurontools fault kinds
  neurontools fault inject hang --core 5 --count 1           one execution on core 5 hangs until it times out
  neurontools fault inject ecc --type mem-uncorrected --device 3 --after 10s --count 2
  neurontools fault inject ecc --type mem-corrected --device 0 --every 200ms --amount 50     an ECC storm
  neurontools fault inject slow-core --core 2 --factor 3     until it is cleared
  neurontools fault inject link-down --device 0 --to 4
  neurontools fault inject oom --tag trainer --after-executions 100
  neurontools fault list
  neurontools fault clear --all
  neurontools fault reset --device 3

exit codes: 0 fine, 1 failed, 2 usage, 3 no machine runs, 4 the machine refuses
"""

_ONLY_FOR = {
    "factor": ("slow-core", "--factor"),
    "to": ("link-down", "--to"),
    "type": ("ecc", "--type"),
    "amount": ("ecc", "--amount"),
    "every": ("ecc", "--every"),
}


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        prog="neurontools fault",
        description="Let something go wrong with the simulated machine; 'neurontools help faults' says where it shows.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    _inject_parser(verbs)
    _verb(verbs, "list", "show the faults of the machine")
    clear = _verb(verbs, "clear", "end faults and what they broke")
    clear.add_argument("ids", metavar="ID", nargs="*", help="numbers that `list` shows")
    clear.add_argument("--all", action="store_true", help="all of them")
    _verb(verbs, "kinds", "show what can go wrong")
    reset = _verb(verbs, "reset", "reset a device: mends what memory errors broke, keeps its error counters")
    reset.add_argument("--device", metavar="N", required=True, help="the device")
    reset.add_argument("--force", action="store_true", help="even if processes hold cores of it")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return console.run(lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    arguments = console.parse(build_parser(), argv)
    verbs: dict[str, Callable[[argparse.Namespace], int]] = {
        "inject": _inject,
        "list": _list,
        "clear": _clear,
        "kinds": _kinds,
        "reset": _reset,
    }
    return verbs[arguments.verb](arguments)


def _verb(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser], name: str, what: str
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(
        name,
        help=what,
        description=what[0].upper() + what[1:] + ".",
    )
    parser.add_argument(
        "--machine", metavar="NAME", help="the machine (default: NEURONTOOLS_MACHINE or 'default')"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _inject_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    inject = _verb(verbs, "inject", "let something go wrong")
    inject.add_argument("kind", metavar="KIND", help="`neurontools fault kinds` lists them")
    where = inject.add_argument_group("where (default: on every core)")
    where.add_argument("--device", metavar="N", help="only this device")
    where.add_argument("--core", metavar="N", help="only this core, by its id on the machine")
    where.add_argument("--to", metavar="N", help="the device at the other end of a link (link-down)")
    where.add_argument("--pid", metavar="PID", help="only this process")
    where.add_argument("--tag", metavar="TAG", help="only processes with this NEURON_PROCESS_TAG")
    when = inject.add_argument_group("when and how often (default: now, until it is cleared)")
    when.add_argument("--after", metavar="DURATION", help="wait so long: 10s, 250ms, 2m")
    when.add_argument("--after-executions", metavar="N", help="let so many executions (or allocations) pass")
    when.add_argument("--count", metavar="N", help="executions, allocations or memory errors that it makes")
    when.add_argument("--duration", metavar="DURATION", help="end so long after it was armed")
    how = inject.add_argument_group("how")
    how.add_argument("--factor", metavar="F", help="how many times as long executions last (slow-core; 2)")
    how.add_argument("--type", metavar="TYPE", help="type of memory errors (ecc; mem-uncorrected)")
    how.add_argument("--amount", metavar="N", help="memory errors at a time (ecc; 1)")
    how.add_argument("--every", metavar="DURATION", help="time between memory errors (ecc; all at once)")


def _inject(arguments: argparse.Namespace) -> int:
    from neurontools.machine.client import Client
    from neurontools.machine.faults.wording import ecc_of, kind_of, public_json, seconds_of, sentence

    kind = kind_of(arguments.kind)
    _check_options(arguments, kind)
    seconds = {
        name: seconds_of(text)
        for name, text in (
            ("after_s", arguments.after),
            ("duration_s", arguments.duration),
            ("every_s", arguments.every),
        )
        if text is not None
    }
    numbers = {
        name: _whole(f"--{name.replace('_', '-')}", getattr(arguments, name))
        for name in ("device", "core", "to", "pid", "after_executions", "count", "amount")
        if getattr(arguments, name) is not None
    }
    factor = {} if arguments.factor is None else {"factor": _factor(arguments.factor)}
    ecc = {} if arguments.type is None else {"ecc": ecc_of(arguments.type)}
    wish: dict[str, Any] = {**seconds, **numbers, **factor, **ecc}
    with Client.connect(_machine(arguments)) as client:
        fault = client.inject(kind, tag=arguments.tag, **wish)
    console.out(json.dumps(public_json(fault), indent=2) if arguments.json else sentence(fault))
    return 0


def _list(arguments: argparse.Namespace) -> int:
    from neurontools.machine.client import Client
    from neurontools.machine.faults.wording import public_json, table

    with Client.connect(_machine(arguments)) as client:
        faults = client.faults()
    if arguments.json:
        console.out(json.dumps([public_json(fault) for fault in faults], indent=2))
    elif faults:
        console.out("\n".join(table(faults)))
    else:
        console.notice("no faults")
    return 0


def _clear(arguments: argparse.Namespace) -> int:
    from neurontools.machine.client import Client

    if bool(arguments.ids) == arguments.all:
        raise UsageError(
            "say which faults to clear: their numbers, or --all", "`neurontools fault list` shows them"
        )
    ids = [_whole("ID", text) for text in arguments.ids]
    with Client.connect(_machine(arguments)) as client:
        cleared = client.clear_faults(*ids)
    if arguments.json:
        console.out(json.dumps({"cleared": list(cleared)}, indent=2))
    else:
        console.out(f"cleared: {', '.join(map(str, cleared)) or 'nothing, there was no fault'}")
    return 0


def _kinds(arguments: argparse.Namespace) -> int:
    from neurontools.machine.faults.wording import kinds_json, kinds_table

    console.out(json.dumps(kinds_json(), indent=2) if arguments.json else "\n".join(kinds_table()))
    return 0


def _reset(arguments: argparse.Namespace) -> int:
    from neurontools.machine.client import Client

    device = _whole("--device", arguments.device)
    with Client.connect(_machine(arguments)) as client:
        client.reset_device(device, force=arguments.force)
    console.out(json.dumps({"device": device}, indent=2) if arguments.json else f"device {device} was reset")
    return 0


def _check_options(arguments: argparse.Namespace, kind: FaultKind) -> None:
    for name, (only, flag) in _ONLY_FOR.items():
        if getattr(arguments, name) is not None and kind != only:
            raise UsageError(f"{flag} is for {only} only, not for {kind}", "neurontools fault inject --help")


def _whole(what: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise UsageError(f"{what} is a whole number, not {text!r}", "neurontools fault --help")
    return int(text)


def _factor(text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not math.isfinite(factor):
        raise UsageError(f"--factor is a number, not {text!r}", "write for example --factor 3")
    return factor


def _machine(arguments: argparse.Namespace) -> str:
    return env.machine() if arguments.machine is None else str(arguments.machine)
