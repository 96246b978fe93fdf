"""neurontools fault: inject faults into the simulated machine, list and clear them."""

from __future__ import annotations

import argparse
import math
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from neurontools.base.units import parse_duration
from neurontools.commands import console
from neurontools.commands.parsing import add_json, add_machine, add_verb
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.commands.parsing import Verbs
    from neurontools.machine.faults.kinds import EccType, FaultKind

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

exit codes: 0 success, 1 failed, 2 usage error, 3 no machine, 4 rejected by the machine,
130 interrupted
"""


class _Parameter(NamedTuple):
    """A parameter of `FaultSpec` as a flag; `parse` gets the flag and its text."""

    name: str
    flag: str
    metavar: str
    help: str
    parse: Callable[[str, str], Any]


def _whole(what: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise UsageError(f"invalid {what} {text!r}: expected a whole number", "neurontools fault --help")
    return int(text)


def _factor(flag: str, text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not math.isfinite(factor):
        raise UsageError(f"invalid {flag} {text!r}: expected a number", f"for example {flag} 3")
    return factor


def _ecc_type(_flag: str, text: str) -> EccType:
    from neurontools.machine.faults.format import parse_ecc_type

    return parse_ecc_type(text)


def _duration(_flag: str, text: str) -> float:
    return parse_duration(text)


_PARAMETERS = {
    "where (default: on every core)": (
        _Parameter("device", "--device", "N", "only this device", _whole),
        _Parameter("core", "--core", "N", "only this core, by its id on the machine", _whole),
        _Parameter("to", "--to", "N", "the device at the other end of a link (link-down)", _whole),
        _Parameter("pid", "--pid", "PID", "only this process", _whole),
        _Parameter(
            "tag", "--tag", "TAG", "only processes with this NEURON_PROCESS_TAG", lambda _, text: text
        ),
    ),
    "when and how often (default: now, until it is cleared)": (
        _Parameter("after_s", "--after", "DURATION", "delay before the fault fires, e.g. 10s", _duration),
        _Parameter(
            "after_executions",
            "--after-executions",
            "N",
            "skip the first N executions or allocations",
            _whole,
        ),
        _Parameter("count", "--count", "N", "stop after N executions, allocations or memory errors", _whole),
        _Parameter(
            "duration_s", "--duration", "DURATION", "clear the fault this long after it was armed", _duration
        ),
    ),
    "how": (
        _Parameter("factor", "--factor", "F", "slow executions down F times (slow-core; default 2)", _factor),
        _Parameter(
            "ecc", "--type", "TYPE", "type of memory errors (ecc; default mem-uncorrected)", _ecc_type
        ),
        _Parameter("amount", "--amount", "N", "number of memory errors at a time (ecc; default 1)", _whole),
        _Parameter(
            "every_s",
            "--every",
            "DURATION",
            "time between memory errors (ecc; default all at once)",
            _duration,
        ),
    ),
}


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        prog="neurontools fault",
        description="Inject faults into the simulated machine. 'neurontools help faults' describes them.",
        epilog=EXAMPLES,
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    inject = _verb(verbs, "inject", "inject a fault", _inject)
    inject.add_argument("kind", metavar="KIND", help="kind of fault; see 'neurontools fault kinds'")
    for title, parameters in _PARAMETERS.items():
        group = inject.add_argument_group(title)
        for parameter in parameters:
            group.add_argument(
                parameter.flag, dest=parameter.name, metavar=parameter.metavar, help=parameter.help
            )
    _verb(verbs, "list", "list the faults of the machine", _list)
    clear = _verb(verbs, "clear", "end faults and repair what they broke", _clear)
    clear.add_argument("ids", metavar="ID", nargs="*", help="fault ids, from 'neurontools fault list'")
    clear.add_argument("--all", action="store_true", help="all faults")
    _verb(verbs, "kinds", "list the kinds of faults", _kinds)
    purpose = "reset a device: repairs what memory errors broke, keeps its error counters"
    reset = _verb(verbs, "reset", purpose, _reset)
    reset.add_argument("--device", metavar="N", required=True, help="the device")
    reset.add_argument("--force", action="store_true", help="reset even if processes hold its cores")
    return parser


def _verb(
    verbs: Verbs, name: str, purpose: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    parser = add_verb(verbs, name, purpose, run)
    add_machine(parser)
    add_json(parser)
    return parser


def _inject(arguments: argparse.Namespace) -> int:
    from neurontools.machine.client import Client
    from neurontools.machine.faults.format import absent_target, describe, parse_kind, to_json

    kind = parse_kind(arguments.kind)
    given = _given(arguments, kind)
    with Client.connect(arguments.machine) as client:
        fault = client.inject(kind, **given)
        absent = absent_target(fault.spec, client.snapshot().processes)
    if absent:
        console.warn(absent)
    return _print(arguments, to_json(fault), describe(fault))


def _given(arguments: argparse.Namespace, kind: FaultKind) -> Any:
    from neurontools.machine.faults.params import ONLY_FOR

    given = {}
    for parameter in (parameter for group in _PARAMETERS.values() for parameter in group):
        text = getattr(arguments, parameter.name)
        if text is None:
            continue
        only = ONLY_FOR.get(parameter.name, kind)
        if only != kind:
            raise UsageError(
                f"{parameter.flag} is for {only} only, not for {kind}", "neurontools fault inject --help"
            )
        given[parameter.name] = parameter.parse(parameter.flag, text)
    return given


def _list(arguments: argparse.Namespace) -> int:
    from neurontools.machine.client import Client
    from neurontools.machine.faults.format import fault_table, to_json

    with Client.connect(arguments.machine) as client:
        faults = client.faults()
    if not faults and not arguments.json:
        console.notice("no faults")
        return 0
    return _print(arguments, [to_json(fault) for fault in faults], fault_table(faults, time.monotonic_ns()))


def _clear(arguments: argparse.Namespace) -> int:
    from neurontools.machine.client import Client

    if bool(arguments.ids) == arguments.all:
        raise UsageError("give fault ids or --all", "`neurontools fault list` lists the faults")
    ids = [_whole("ID", text) for text in arguments.ids]
    with Client.connect(arguments.machine) as client:
        cleared = client.clear_faults(*ids)
    text = f"cleared: {', '.join(map(str, cleared)) or 'nothing, there were no faults'}"
    return _print(arguments, {"cleared": list(cleared)}, text)


def _kinds(arguments: argparse.Namespace) -> int:
    from neurontools.machine.faults.format import kind_tables, kinds_json

    return _print(arguments, kinds_json(), kind_tables())


def _reset(arguments: argparse.Namespace) -> int:
    from neurontools.machine.client import Client

    device = _whole("--device", arguments.device)
    with Client.connect(arguments.machine) as client:
        client.reset_device(device, force=arguments.force)
    return _print(arguments, {"device": device}, f"device {device} was reset")


def _print(arguments: argparse.Namespace, value: object, text: str) -> int:
    return console.show(arguments.json, lambda: value, lambda: text)


main = console.command(build_parser)
