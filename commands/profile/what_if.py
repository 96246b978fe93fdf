"""neuron-profile what-if: the modelled step time after a change, without running the program."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from neurontools.commands import console
from neurontools.commands.parsing import add_json, add_verb
from neurontools.commands.profile.options import open_profile
from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.commands.parsing import Verbs
    from neurontools.compiler.neff import Neff
    from neurontools.compiler.what_if import Change, Forecast

_PURPOSE = "print the modelled step time after a change, without running the program"
_EXAMPLES = """The program does not run: the graph of a NEFF is changed to what the changed program would record, and the
engine model estimates its time. All times are modelled.

examples:
  neuron-profile what-if prof --dtype bf16           a captured run, with bfloat16
  neuron-profile what-if model.neff --batch 8=16     twice the batch; --batch x2 finds the batch itself
  neuron-profile what-if model.neff --shape 260=256 --shape 780=768
  neuron-profile what-if MODULE_123 --attention fused --json
  neuron-profile what-if prof --instance trn1.32xlarge,trn2.48xlarge --prices prices.yaml

A price list has lines such as 'trn1.2xlarge: 1.34': the price per hour, in any currency.
"""


def add(verbs: Verbs) -> None:
    """Add the sub-command."""
    parser = add_verb(verbs, "what-if", _PURPOSE, _run)
    parser.epilog = _EXAMPLES
    add_argument = parser.add_argument
    add_argument(
        "source", metavar="SOURCE", help="NEFF file, profile directory, or entry of the compile cache"
    )
    add_argument(
        "--dtype",
        default="",
        metavar="TYPE",
        help="data type of all floating-point tensors: bf16, fp16, fp32",
    )
    add_argument(
        "--batch",
        type=_batch,
        metavar="OLD=NEW",
        help="change the batch size, or scale it by a factor such as x2",
    )
    add_argument(
        "--shape",
        type=_sizes,
        action="append",
        default=[],
        metavar="OLD=NEW",
        help="change all dimensions of size OLD, and the sizes that follow from them; may be repeated",
    )
    add_argument(
        "--attention", choices=("fused", "written-out"), default="", help="write attention in this form"
    )
    add_argument(
        "--instance",
        type=_names,
        default=(),
        metavar="LIST",
        help="instance types, separated by commas, or all",
    )
    add_argument("--lnc", type=int, metavar="N", help="physical cores of a logical core: 1 or 2")
    add_argument("--prices", metavar="FILE", help="price list: cost per hour of each instance (YAML or JSON)")
    add_json(parser, "print JSON (base units)")


def _batch(text: str) -> tuple[int | None, float]:
    if "=" in text:
        return _sizes(text)
    try:
        return None, float(text.strip("x"))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is neither OLD=NEW nor a factor such as x2") from error


def _sizes(text: str) -> tuple[int, int]:
    old, _, new = text.partition("=")
    if not (old.isdecimal() and new.isdecimal() and int(old) > 0 and 0 < int(new) < 1 << 40):
        raise argparse.ArgumentTypeError(f"{text!r} is not OLD=NEW, two sizes such as 260=256")
    return int(old), int(new)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _run(arguments: argparse.Namespace) -> int:
    from neurontools.base.files import open_input
    from neurontools.compiler.neff import parse
    from neurontools.compiler.what_if import Change, read_prices, what_if
    from neurontools.machine.instances.catalogue import instance_names

    change = Change(arguments.dtype, arguments.batch, dict(arguments.shape), arguments.attention)
    prices = read_prices(arguments.prices) if arguments.prices else {}
    path = neff_path(arguments.source)
    with open_input(path) as file:
        neff = parse(file.read())
    names = arguments.instance
    names = instance_names() if names == ("all",) else names or tuple(prices)
    forecasts = what_if(neff, change, names, arguments.lnc, prices)
    console.show(
        arguments.json,
        lambda: {
            "is_simulation": True,
            "neff": path,
            "operators": len(neff.graph.nodes),
            "forecasts": [_json(forecast) for forecast in forecasts],
        },
        lambda: f"NEFF       {path}\n{_text(neff, change, forecasts)}",
    )
    return 0 if any(forecast.after_ns is not None for forecast in forecasts) else 1


def neff_path(source: str) -> str:
    """Return the path of the NEFF that is meant; of a profile that of the program with most device time."""
    from neurontools.cache.selection import find_neff

    if not os.path.isdir(source):
        return find_neff(source)
    try:
        trace = open_profile(source)
    except NeuronToolsError:  # any directory with NEFFs, or numpy is not installed
        return find_neff(source)
    from neurontools.profiler.analysis.programs import busiest_program, neff_path

    busiest = busiest_program(trace)
    return neff_path(trace, busiest) if busiest else find_neff(source)


def _json(forecast: Forecast) -> dict[str, Any]:
    from dataclasses import asdict

    fields = asdict(forecast)
    return {
        **fields,
        "ratio": forecast.ratio,
        "sample_ratio": forecast.sample_ratio,
        "price_per_million_steps": forecast.price_per_million_steps,
        "problem": forecast.problem or None,
    }


def _text(neff: Neff, change: Change, forecasts: Sequence[Forecast]) -> str:
    from neurontools.base.text import plural, table

    head = ["instance", "LNC", "cores", "step", "changed", "ratio"]
    rows = [_row(forecast) for forecast in forecasts]
    if change.batch is not None:
        head.append("a sample")
        for row, forecast in zip(rows, forecasts, strict=True):
            row.append("-" if forecast.sample_ratio is None else f"{forecast.sample_ratio:.3f}")
    has_prices = any(forecast.price_per_hour is not None for forecast in forecasts)
    if has_prices:
        head.append("price of 1M steps")
        for row, forecast in zip(rows, forecasts, strict=True):
            price = forecast.price_per_million_steps
            row.append("-" if price is None else f"{price:.4g}")
    lines = [
        f"graph      {neff.header.name}, {plural(len(neff.graph.nodes), 'operator')}",
        f"change     {_describe(change)}",
        "",
        table(head, rows, "<" + ">" * (len(head) - 1)),
        "",
    ]
    lines += [f"{forecast.instance}: {forecast.problem}" for forecast in forecasts if forecast.problem]
    lines += [
        f"{forecast.instance}: modelled with the constants of NeuronCore-{forecast.fallback}"
        for forecast in forecasts
        if forecast.fallback
    ]
    lines.append("Times are modelled, for one step of one logical core.")
    if has_prices:
        lines.append("The price is that of one core's steps, with all cores of the instance in use.")
    return "\n".join(lines)


def _row(forecast: Forecast) -> list[str]:
    from neurontools.base.units import format_ns

    times = ["-" if ns is None else format_ns(ns) for ns in (forecast.before_ns, forecast.after_ns)]
    ratio = "-" if forecast.ratio is None else f"{forecast.ratio:.3f}"
    return [forecast.instance, str(forecast.lnc), str(forecast.cores or "-"), *times, ratio]


def _describe(change: Change) -> str:
    parts = [change.dtype]
    if change.batch is not None:
        old, new = change.batch
        parts.append(f"batch x{new:g}" if old is None else f"batch {old} to {new:g}")
    parts += [f"size {old} to {new}" for old, new in change.sizes.items()]
    parts.append(f"attention {change.attention}" if change.attention else "")
    return ", ".join(part for part in parts if part) or "no change"
