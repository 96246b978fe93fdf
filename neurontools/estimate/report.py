"""Estimates as tables and as plots of latency against throughput, in text and as HTML; each number with its range."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from neurontools import __version__
from neurontools.base.text import table
from neurontools.base.units import format_binary_size, format_count, format_percent
from neurontools.estimate.recorded_graph import Execution
from neurontools.estimate.serving import Serving
from neurontools.estimate.steps import ranges
from neurontools.estimate.training import Training

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.estimate.steps import Range

_MARKS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_HEIGHT, _WIDTH = 12, 64
_TIMES = {"first_ns", "token_ns", "step_ns", "execution_ns", "run_s", "price"}
_RATES = {"tokens_s", "executions_s"}
_DRAWING = 860, 420, 70  # width, height and margin of the picture


Option = Serving | Training | Execution


class Point(NamedTuple):
    """A row in a plot: latency in ms, tokens or executions a second, its instance type and what it is."""

    latency_ms: float
    rate_s: float
    instance: str
    text: str


def times_of(option: Option) -> tuple[Range, Range]:
    """Return the ranges of an option's first time and of its second one, which throughput and price share."""
    by_family = ranges()
    if isinstance(option, Training):
        return by_family["training"], by_family["training"]
    if isinstance(option, Execution) or option.family == "other":
        return by_family["graph"], by_family["graph"]
    if option.family == "encoder":
        return by_family["encoder"], by_family["encoder"]
    return by_family["prompt"], by_family["token"]


def fields_of(option: Option) -> dict[str, Any]:
    """Return an option as JSON and CSV have it: in base units, times and prices with the ends of their ranges."""
    first, second = times_of(option)
    fields: dict[str, Any] = {**asdict(option), "used_bytes": option.used_bytes}
    for name in _TIMES & fields.keys():
        factor, value = first if name == "first_ns" else second, fields[name]
        fields[f"{name}_low"] = None if value is None else value * factor.low
        fields[f"{name}_high"] = None if value is None else value * factor.high
    for name in _RATES & fields.keys():
        fields[f"{name}_low"], fields[f"{name}_high"] = fields[name] / second.high, fields[name] / second.low
    return {**dict(sorted(fields.items())), "is_modelled": True}


def serving_table(options: Sequence[Serving], width: int | None) -> str:
    """Return ways to serve as a table."""
    is_decoder = any(option.token_ns for option in options)
    head = ["instance", "TP", "copies", "batch", "in+out", "HBM/core"]
    head += (
        ["first token", "a token", "tokens/s", "bound by"]
        if is_decoder
        else ["latency", "tokens/s", "bound by"]
    )
    has_prices = any(option.price is not None for option in options)
    rows = []
    for option in options:
        first, second = times_of(option)
        cells = [option.instance, str(option.tensor), str(option.replicas), str(option.batch)]
        cells += [f"{option.prompt}+{option.output}", _memory(option), _time(option.first_ns, first)]
        if is_decoder:
            cells.append(_time(option.token_ns, second) if option.token_ns else "-")
        cells += [_rate(option.tokens_s, second), option.bound_token or option.bound_first]
        rows.append(cells + ([_price(option.price, second)] if has_prices else []))
    head += ["1M tokens"] if has_prices else []
    return table(head, rows, "<" + ">" * (len(head) - 1), width=width, optional=(2, 4, 5))


def training_table(options: Sequence[Training], width: int | None) -> str:
    """Return ways to train as a table."""
    has_stages = any(option.stages > 1 for option in options)
    head = ["instance", "TP", *(["PP"] if has_stages else []), "DP", "batch"]
    head += ["HBM/core", "step", "tokens/s", "MFU", "bound by"]
    has_run = any(option.run_s is not None for option in options)
    has_prices = any(option.price is not None for option in options)
    rows = []
    for option in options:
        factor = times_of(option)[1]
        several, parts = option.instances > 1, option.micro_batches > 1
        cells = [f"{option.instances} x " * several + option.instance, str(option.tensor)]
        cells += [str(option.stages)] if has_stages else []
        cells += [
            str(option.replicas),
            f"{option.micro_batches}x" * parts + f"{option.batch}x{option.length}",
        ]
        cells += [_memory(option), _time(option.step_ns, factor), _rate(option.tokens_s, factor)]
        cells += [_share(option.mfu, factor), option.bound]
        if has_run:
            cells.append("-" if option.run_s is None else _between(option.run_s / 3600, factor) + " h")
        rows.append(cells + ([_price(option.price, factor)] if has_prices else []))
    head += (["run"] if has_run else []) + (["price" if has_run else "1M tokens"] if has_prices else [])
    optional = (head.index("HBM/core"), head.index("MFU"))
    return table(head, rows, "<" + ">" * (len(head) - 1), width=width, optional=optional)


def execution_table(options: Sequence[Execution], width: int | None) -> str:
    """Return executions of a recorded graph as a table."""
    head = ["instance", "ranks", "copies", "HBM/core", "execution", "a second", "MFU", "bound by"]
    has_prices = any(option.price is not None for option in options)
    rows = []
    for option in options:
        factor = times_of(option)[1]
        cells = [option.instance, str(option.ranks), str(option.copies), _memory(option)]
        cells += [_time(option.execution_ns, factor), _rate(option.executions_s, factor)]
        cells += [_share(option.mfu, factor), option.bound]
        rows.append(cells + ([_price(option.price, factor)] if has_prices else []))
    head += ["1M executions"] if has_prices else []
    return table(head, rows, "<" + ">" * (len(head) - 1), width=width, optional=(3, 6))


def notes(options: Sequence[Option]) -> list[str]:
    """Return the lines below a table: that its numbers are modelled, and where the ranges are from."""
    sources = dict.fromkeys(factor.source for option in options[:1] for factor in times_of(option))
    lines = [
        "All times, rates and prices are modelled; in brackets is the range in which published ones are expected"
    ]
    lines[0] += f" ({'; '.join(sources)})."
    for name, version in dict.fromkeys((option.instance, option.fallback) for option in options):
        if version:
            lines.append(f"{name} is modelled with the constants of NeuronCore-{version}.")
    return lines


def smallest_degrees(options: Sequence[Serving | Training]) -> dict[str, int]:
    """Return the smallest tensor-parallel degree of each instance type that holds the model."""
    smallest: dict[str, int] = {}
    for option in options:
        smallest[option.instance] = min(option.tensor, smallest.get(option.instance, option.tensor))
    return smallest


def points(options: Sequence[Option]) -> list[Point]:
    """Return the points of a plot: of serving a token or an encoder's execution, of training a step."""
    plotted = []
    for option in options:
        if isinstance(option, Execution):
            latency, text = option.execution_ns, f"{option.ranks} ranks"
        elif isinstance(option, Training):
            latency, text = option.step_ns, f"TP {option.tensor}, batch {option.batch}x{option.length}"
            text += f", PP {option.stages}, {option.instances} instances" * (
                option.instances * option.stages > 1
            )
        else:
            latency = option.token_ns or option.first_ns
            text = f"TP {option.tensor}, batch {option.batch}, {option.prompt}+{option.output} tokens"
        rate_s = option.executions_s if isinstance(option, Execution) else option.tokens_s
        plotted.append(Point(latency / 1e6, rate_s, option.instance, text))
    return plotted


def plot_text(plotted: Sequence[Point]) -> str:
    """Return a plot of latency against throughput, both on logarithmic axes, in text; a letter for each instance type."""
    names = list(dict.fromkeys(point.instance for point in plotted))
    marks = dict(zip(names, _MARKS * (len(names) // len(_MARKS) + 1), strict=False))
    across, up = (
        _axis([p.latency_ms for p in plotted], _WIDTH - 1),
        _axis([p.rate_s for p in plotted], _HEIGHT - 1),
    )
    rows = [[" "] * _WIDTH for _ in range(_HEIGHT)]
    for point in reversed(plotted):  # the best are drawn last
        rows[_HEIGHT - 1 - round(up(point.rate_s))][round(across(point.latency_ms))] = marks[point.instance]
    rates, latencies = [p.rate_s for p in plotted], [p.latency_ms for p in plotted]
    ends = [format_count(max(rates)), *[""] * (_HEIGHT - 2), format_count(min(rates))]
    left, right = f"{min(latencies):.3g} ms", f"{max(latencies):.3g} ms"
    lines = ["throughput a second by latency, modelled"]
    lines += [f"{end:>9} |{''.join(row).rstrip()}" for end, row in zip(ends, rows, strict=True)]
    lines += [f"{'':>9} +{'-' * _WIDTH}", f"{'':>11}{left}{right:>{_WIDTH - len(left)}}"]
    return "\n".join([*lines, "  ".join(f"{mark} {name}" for name, mark in marks.items())])


def _axis(values: Sequence[float], size: float) -> Callable[[float], float]:
    """Return the place of a value on a logarithmic axis from 0 to `size`."""
    from math import log

    low, high = log(min(values)), log(max(values))
    return lambda value: size * (log(value) - low) / (high - low) if high > low else size / 2


def html(title: str, plotted: Sequence[Point], rows: Sequence[dict[str, Any]], remarks: Sequence[str]) -> str:
    """Return a page with the plot, a table of all numbers and remarks; it needs no network and no script."""
    from neurontools.profiler.exchange.html_plots import text_of
    from neurontools.profiler.exchange.html_report import STYLE

    head = "".join(f"<th>{text_of(name)}</th>" for name in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{text_of(_cell(value))}</td>" for value in row.values()) + "</tr>"
        for row in rows
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text_of(title)}</title><style>{STYLE}</style></head><body><main>\n<h1>{text_of(title)}</h1>"
        f"{''.join(f'<p>{text_of(remark)}</p>' for remark in remarks)}\n{_picture(plotted, text_of)}\n"
        f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>\n'
        f"<footer>neurontools {text_of(__version__)}</footer></main></body></html>\n"
    )


def _picture(plotted: Sequence[Point], text_of: Callable[[str], str]) -> str:
    width, height, margin = _DRAWING
    names = list(dict.fromkeys(point.instance for point in plotted))
    across = _axis([point.latency_ms for point in plotted], width - 2 * margin)
    up = _axis([point.rate_s for point in plotted], height - 2 * margin)
    shapes = [f'<path class="roof" d="M{margin} {margin / 2}V{height - margin}H{width - margin / 2}"/>']
    for point in plotted:
        x, y = margin + across(point.latency_ms), height - margin - up(point.rate_s)
        about = f"{point.instance}, {point.text}: {point.latency_ms:.4g} ms, {point.rate_s:.4g} a second"
        hue = 360 * names.index(point.instance) // len(names)
        shapes.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="hsl({hue} 60% 50%)"><title>{text_of(about)}</title></circle>'
        )
    latencies, rates = [p.latency_ms for p in plotted], [p.rate_s for p in plotted]
    labels = [
        (margin, height - margin + 18, f"{min(latencies):.3g} ms"),
        (width - margin, height - margin + 18, f"{max(latencies):.3g} ms"),
        (4, height - margin, format_count(min(rates))),
        (4, margin, f"{format_count(max(rates))} a second"),
    ]
    shapes += [f'<text x="{x}" y="{y}">{text_of(text)}</text>' for x, y, text in labels]
    shapes += [
        f'<text x="{width - margin * 2.4:.0f}" y="{20 + 15 * number}" style="fill:hsl({360 * number // len(names)} 60% 50%)">'
        f"{text_of(name)}</text>"
        for number, name in enumerate(names)
    ]
    return f'<svg viewBox="0 0 {width} {height}" role="img">{"".join(shapes)}</svg>'


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _memory(option: Option) -> str:
    return f"{format_binary_size(option.used_bytes)} of {format_binary_size(option.hbm_bytes)}"


def _time(time_ns: float, factor: Range) -> str:
    return _between(time_ns / 1e6, factor) + " ms"


def _share(share: float, factor: Range) -> str:
    low, high = (format_percent(min(share / end, 1.0)) for end in (factor.high, factor.low))
    return f"{format_percent(share)} ({low} - {high})"


def _rate(rate_s: float, factor: Range) -> str:
    low, high = (format_count(float(f"{rate_s / end:.3g}")) for end in (factor.high, factor.low))
    return f"{format_count(float(f'{rate_s:.3g}'))} ({low} - {high})"


def _price(price: float | None, factor: Range) -> str:
    return "-" if price is None else _between(price, factor)


def _between(value: float, factor: Range) -> str:
    ends = (value, value * factor.low, value * factor.high)
    middle, low, high = (f"{end:.0f}" if end >= 1000 else f"{end:.3g}" for end in ends)
    return f"{middle} ({low} - {high})"
