"""The profile as one HTML file: numbers, operators, plots, advice. It needs no network and no script."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING

from neurontools import __version__
from neurontools.base.text import plural
from neurontools.base.units import format_count, format_ns, format_size
from neurontools.errors import NeuronToolsError
from neurontools.profiler.advice.findings import gain_text
from neurontools.profiler.advice.rules import advise_trace
from neurontools.profiler.analysis.operators import By, group_totals
from neurontools.profiler.analysis.roofline import roofline
from neurontools.profiler.analysis.steps import find_steps
from neurontools.profiler.analysis.summary import metric_text, report
from neurontools.profiler.exchange.html_plots import PARTS, roofline_plot, steps_plot, text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.profiler.advice.findings import Advice
    from neurontools.profiler.analysis.summary import ProfileReport
    from neurontools.profiler.trace.trace import Trace


STYLE = """
:root{color-scheme:light dark;--ink:#1c2430;--soft:#5c6675;--page:#fff;--line:#dfe3e8;--bar:#cfe0f7;
--compile:#b2560d;--load:#8a6fc4;--transfer:#1f8a8a;--execute:#2f6fd0;--idle:#c9ced6;--memory:#b2560d;--compute:#2f6fd0}
@media (prefers-color-scheme:dark){:root{--ink:#e4e8ee;--soft:#9aa5b4;--page:#14181f;--line:#313843;--bar:#274468;
--compile:#e8934a;--load:#ab97e0;--transfer:#4fb8b8;--execute:#6fa3ee;--idle:#4a5362;--memory:#e8934a;--compute:#6fa3ee}}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:960px;margin:0 auto;padding:24px 20px 48px}
h1{font-size:1.5rem;margin:0 0 .3rem}h2{font-size:1.15rem;margin:2.2rem 0 .6rem}p{margin:.3rem 0}
code{font:13px ui-monospace,monospace;overflow-wrap:anywhere}
.warning{border-left:3px solid var(--memory);padding-left:.6rem}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:13.5px}
th{text-align:left;color:var(--soft);font-weight:600}th,td{padding:3px 12px 3px 0;border-bottom:1px solid var(--line);
vertical-align:top}td{overflow-wrap:break-word}td:first-child{overflow-wrap:anywhere}.number{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
td:first-child{min-width:11rem}summary{cursor:pointer;color:var(--soft)}footer{margin-top:3rem;color:var(--soft)}
.bar{display:inline-block;width:70px;height:10px;margin-right:8px;border-radius:2px;background:var(--line)}
.bar i{display:block;height:100%;border-radius:2px;background:var(--execute)}
.share{display:inline-block;min-width:6ch}
svg{width:100%;height:auto;margin:.4rem 0 1rem}svg text{font-size:11.5px;fill:var(--soft)}
.grid{stroke:var(--line)}.roof{fill:none;stroke:var(--ink);stroke-width:1.6}.ridge{stroke:var(--soft);stroke-dasharray:4 4}
circle{fill-opacity:.75}circle.memory{fill:var(--memory)}circle.compute{fill:var(--compute)}
rect.compile{fill:var(--compile)}rect.load{fill:var(--load)}rect.transfer{fill:var(--transfer)}
rect.cut{fill:var(--page)}rect.execute{fill:var(--execute)}rect.idle{fill:var(--idle)}
.key{margin-right:1.2rem}.key::before{content:"";display:inline-block;width:11px;height:11px;margin-right:6px;border-radius:2px}
.key.compile::before{background:var(--compile)}.key.load::before{background:var(--load)}
.key.transfer::before{background:var(--transfer)}.key.execute::before{background:var(--execute)}
.key.idle::before{background:var(--idle)}
@media print{main{max-width:none;padding:0}section{break-inside:avoid-page}}
""".strip()


_OPERATORS = 30
_GROUPS = 30
_PLOTTED_PROCESSES = 8
_MOST_CORES = 16
_MAIN_METRICS = (
    "total_time",
    "total_active_time_percent",
    "mfu_estimated_percent",
    "mbu_estimated_percent",
    "tensor_engine_active_time_percent",
    "vector_engine_active_time_percent",
    "scalar_engine_active_time_percent",
    "gpsimd_engine_active_time_percent",
    "dma_active_time_percent",
    "spill_reload_bytes",
)


def write_html(trace: Trace, file: IO[str]) -> None:
    """Write the report."""
    summary = report(trace, _OPERATORS)
    title = _title(trace)
    file.write(
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text_of(title)}</title><style>{STYLE}</style></head><body><main>\n"
    )
    file.write(_head(trace, summary, title))
    sections = (
        ("Advice", _advice(trace)),
        ("Steps, measured", _steps(trace)),
        (
            f"NeuronCores, {f'stated by {trace.measured_by}' if trace.measured_by else 'modelled'}",
            _metrics(summary),
        ),
        (summary.operators_title, _operators(summary)),
        ("Roofline, modelled", _roofline(trace)),
        ("Modules, modelled", "" if trace.measured_by else _groups(trace, By.LAYER)),
        ("Source lines, modelled", "" if trace.measured_by else _groups(trace, By.SOURCE)),
        ("Rows, measured" if trace.measured_by else "Engines, modelled", _engines(summary)),
    )
    for name, body in sections:
        if body:
            file.write(f"<section><h2>{text_of(name)}</h2>\n{body}</section>\n")
    file.write(f"<footer>neurontools {text_of(__version__)}</footer></main></body></html>\n")


def _title(trace: Trace) -> str:
    if trace.measured_by:
        return f"Trace measured by {trace.measured_by}"
    kinds = sorted({meta.instance_type for meta in trace.processes})
    return f"Profile of a simulated {', '.join(kinds)}"


def _head(trace: Trace, found: ProfileReport, title: str) -> str:
    summary = found.summary
    facts = [
        plural(len(summary.processes), "process", "processes"),
        *([plural(len(summary.cores), "NeuronCore")] if summary.cores else []),
        plural(summary.event_count, "event"),
        format_ns(summary.span_ns),
    ]
    if trace.origin_unix_ns > 0:
        started = datetime.fromtimestamp(trace.origin_unix_ns / 1e9, UTC)
        facts.append(f"{started:%Y-%m-%d %H:%M:%S} UTC")
    lines = [f"<h1>{text_of(title)}</h1><p>{text_of(', '.join(facts))}</p>"]
    if not trace.measured_by:
        commands = dict.fromkeys(shlex.join(meta.command) for meta in summary.processes)
        lines += [
            f"<p><code>{text_of(command)}</code></p>" for command in list(commands)[:_PLOTTED_PROCESSES]
        ]
        lines.append(
            "<p>Wall times are measured on the computer that ran the simulation, device times are modelled.</p>"
        )
    lines += [f'<p class="warning">{text_of(warning)}</p>' for warning in summary.warnings]
    return f"<header>{''.join(lines)}</header>\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int = 1) -> str:
    """Return a table; cells are HTML."""
    kinds = ["" if column < text_columns else ' class="number"' for column in range(len(head))]
    titles = "".join(f"<th{kind}>{text_of(name)}</th>" for kind, name in zip(kinds, head, strict=True))
    body = "\n".join(
        "<tr>" + "".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>\n'


def _share(share: float) -> str:
    """Return a share with a bar behind it."""
    width = f"{min(max(share, 0), 1):.1%}"
    return f'<span class="bar"><i style="width:{width}"></i></span><span class="share">{share:.1%}</span>'


def _advice(trace: Trace) -> str:
    """Return the advice; nothing for traces that rules cannot judge."""
    if not find_steps(trace) if trace.measured_by else not trace.runs or not trace.directories:
        return ""
    try:
        findings = advise_trace(trace)
    except NeuronToolsError as error:
        return f"<p>No advice: {text_of(error.message)}</p>"
    if not findings.advice:
        return "<p>No change that a rule knows would gain 1 % of a step.</p>"
    items = "".join(f"<li>{_one_advice(advice)}</li>" for advice in findings.advice)
    return f"<p>A step takes {text_of(format_ns(findings.step_ns))} ({findings.clock}).</p><ol>{items}</ol>"


def _one_advice(advice: Advice) -> str:
    seen = "".join(
        f"<li>{text_of(line.text)}{f' <code>{text_of(line.source)}</code>' if line.source else ''}</li>"
        for line in advice.evidence
    )
    return (
        f"<strong>{text_of(advice.title)}</strong>: {text_of(gain_text(advice))}"
        f"<p>{text_of(advice.change)}</p>{f'<ul>{seen}</ul>' if seen else ''}"
    )


def _steps(trace: Trace) -> str:
    processes = [steps for steps in find_steps(trace) if len(steps)]
    if not processes:
        return ""
    present = [label for name, label in PARTS if any(getattr(steps, name).any() for steps in processes)]
    if trace.measured_by and not any(steps.execute_ns.any() for steps in processes):
        present = []  # without a device, nothing is idle
    legend = "".join(f'<span class="key {label}">{label}</span>' for label in present)
    parts = [f'<p class="legend">{legend}</p>'] if legend else []
    for steps in processes[:_PLOTTED_PROCESSES]:
        typical = steps.summary()
        whose = f"rank {steps.rank}, " if steps.rank is not None else ""
        apart = f"; {plural(typical.first_count, 'first step')} apart" if typical.first_count else ""
        parts.append(
            f"<p>{text_of(whose)}{text_of(plural(typical.count, 'step'))}: median {text_of(format_ns(typical.median_ns))}, "
            f"{text_of(format_ns(typical.min_ns))} to {text_of(format_ns(typical.max_ns))}"
            f"{apart}. Steps found by: {text_of(steps.how)}.</p>"
            f"{steps_plot(steps)}"
        )
    if len(processes) > _PLOTTED_PROCESSES:
        parts.append(f"<p>{len(processes) - _PLOTTED_PROCESSES} more processes are not shown.</p>")
    return "".join(parts)


def _metrics(found: ProfileReport) -> str:
    cores = [core for core in found.summary.cores if core.metrics]
    if not cores:
        return ""
    names = dict.fromkeys(metric.name for core in cores for metric in core.metrics)
    columns = [{metric.name: metric for metric in core.metrics} for core in cores[:_MOST_CORES]]
    head = [
        "metric",
        *(
            f"NC{core.nc}" if core.rank is None else f"rank {core.rank} NC{core.nc}"
            for core in cores[:_MOST_CORES]
        ),
    ]
    rows = {
        name: [text_of(name), *(text_of(metric_text(core[name])) if name in core else "" for core in columns)]
        for name in names
    }
    main = _table(head, [rows[name] for name in _MAIN_METRICS if name in rows])
    more = (
        f"<p>{len(cores) - _MOST_CORES} more NeuronCores are not shown.</p>"
        if len(cores) > _MOST_CORES
        else ""
    )
    return (
        f"{main}{more}<details><summary>All {len(names)} metrics</summary>"
        f"{_table(head, list(rows.values()))}</details>"
    )


def _engines(found: ProfileReport) -> str:
    rows = [
        [
            text_of(each.engine),
            str(each.count),
            text_of(format_ns(each.total_ns)),
            text_of(format_ns(each.busy_ns)),
        ]
        for each in found.engines
    ]
    return _table(("engine", "events", "sum", "busy"), rows) if rows else ""


def _operators(found: ProfileReport) -> str:
    rows = [
        [
            text_of(each.name),
            text_of(each.engine),
            text_of(each.opcode),
            str(each.count),
            text_of(format_ns(each.total_ns)),
            _share(each.share),
            text_of(format_count(each.flops)) if each.flops else "",
            text_of(format_size(each.bytes_moved)) if each.bytes_moved else "",
        ]
        for each in found.operators
    ]
    head = ("operator", "engine", "opcode", "count", "time", "share", "FLOP", "bytes")
    return _table(head, rows, text_columns=3) if rows else ""


def _groups(trace: Trace, by: By) -> str:
    groups = group_totals(trace, by, _GROUPS)
    if len(groups) < 2:
        return ""
    rows = [
        [text_of(each.name), str(each.count), text_of(format_ns(each.total_ns)), _share(each.share)]
        for each in groups
    ]
    return _table((by.value, "events", "time, modelled", "share"), rows)


def _roofline(trace: Trace) -> str:
    if trace.measured_by:
        return ""
    points = roofline(trace, By.OPERATOR)
    plot = roofline_plot(points)
    if not plot:
        return ""
    peaks = f"Peaks of a NeuronCore: {format_count(points.peak_flops_s)}FLOP/s at bf16, {format_count(points.peak_bytes_s)}B/s of HBM."
    return f"<p>{text_of(peaks)} Left of the vertical line memory bounds the speed.</p>{plot}"
