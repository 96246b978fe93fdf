"""neuron-profile steps, top, roofline, gaps, critical-path and ranks: tables of numbers."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from neurontools.base.text import plural, table
from neurontools.base.units import format_count, format_ns
from neurontools.commands.parsing import add_limit
from neurontools.commands.profile.options import (
    add_number_output,
    add_reading_verb,
    fields_of,
    load_trace,
    print_numbers,
)
from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence
    from typing import Any

    from neurontools.commands.parsing import Verbs
    from neurontools.profiler.analysis.host import Gaps
    from neurontools.profiler.analysis.operators import GroupTotal
    from neurontools.profiler.analysis.programs import CriticalPath
    from neurontools.profiler.analysis.ranks import RankReport
    from neurontools.profiler.analysis.roofline import Roofline
    from neurontools.profiler.analysis.steps import ProcessSteps
    from neurontools.profiler.trace.trace import Trace

    Columns = dict[str, Callable[[Any], str]]  # head of a column, and its text of an item

WIDTH = 80
_LIMIT = 20
_LONG_NAME = 18
_GROUPS = ("operator", "shape", "layer", "source", "engine", "rank", "opcode")
_POINTS = ("operator", "layer", "source")

_EXAMPLES = {
    "steps": """Steps end where the program ends them (mark_step, optimizer_step); without that, one step is the sequence of
executions that repeats. Times of steps are measured on this computer; 'device' is modelled.

examples:
  neuron-profile steps prof
  neuron-profile steps prof --skip-warmup --csv > steps.csv""",
    "top": """examples:
  neuron-profile top prof --limit 5 --skip-warmup
  neuron-profile top prof --by layer --steps 3-7
  neuron-profile top prof --by source --engine tensor --json""",
    "roofline": """FLOP/B is the intensity: operations per byte read from and written to HBM. Below the ridge memory bounds the
speed, above it the Tensor engine. The gap is the time that the operator would save at its roof. All times are modelled.

examples:
  neuron-profile roofline prof
  neuron-profile roofline prof --by layer --json""",
    "gaps": """A gap is the time between two executions on a NeuronCore, measured on this computer. 'python' is time
without a record in the profile: the program's own work.

examples:
  neuron-profile gaps prof --limit 5
  neuron-profile gaps prof --min 1ms --steps 3-7""",
    "critical-path": """The path is the chain of work that determines the time of an execution; slack is how much later other work
of the operator could end without delaying it. All times are modelled.

examples:
  neuron-profile critical-path prof
  neuron-profile critical-path prof --csv > path.csv""",
    "ranks": """Work is a step without the time in which the worker waits for others. Times are medians of steps, measured.

examples:
  neuron-profile ranks prof
  neuron-profile ranks prof --steps 3-7 --json""",
}


def add(verbs: Verbs) -> None:
    """Add the verbs."""
    _add(verbs, "steps", "list the training steps and their typical times", _steps)
    top = _add(verbs, "top", "print the operators that take the most device time", _top)
    top.add_argument("--by", choices=_GROUPS, metavar="WHAT", help=f"group by {', '.join(_GROUPS)}")
    # -n is the NEFF, as in the real tool
    add_limit(top, f"number of operators (default: {_LIMIT})", short=False)
    roofline = _add(
        verbs, "roofline", "print what bounds each operator, and how far it is from that bound", _roofline
    )
    roofline.add_argument(
        "--by", choices=_POINTS, default="operator", metavar="WHAT", help=f"group by {', '.join(_POINTS)}"
    )
    add_limit(roofline, f"number of rows (default: {_LIMIT})", short=False)
    gaps = _add(verbs, "gaps", "list the times between executions and what the host did", _gaps)
    gaps.add_argument("--min", dest="shortest", metavar="TIME", help="leave out shorter gaps, e.g. 1ms")
    add_limit(gaps, f"number of gaps (default: {_LIMIT})", short=False)
    path = _add(
        verbs,
        "critical-path",
        "print the chain of work that determines the time of each graph",
        _critical_path,
    )
    add_limit(path, f"number of operators of each graph (default: {_LIMIT})", short=False)
    _add(verbs, "ranks", "compare the workers: skew, stragglers, waits", _ranks)


def _add(
    verbs: Verbs, name: str, purpose: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    parser = add_reading_verb(verbs, name, purpose, run)
    add_number_output(parser)
    parser.epilog = _EXAMPLES[name]
    return parser


def _steps(arguments: argparse.Namespace) -> int:
    from neurontools.profiler.analysis.annotated_steps import HOW_TO_MARK
    from neurontools.profiler.analysis.steps import find_steps

    trace = load_trace(arguments)
    processes = find_steps(trace)
    if not processes and trace.measured_by:
        raise NeuronToolsError("the trace has no steps", HOW_TO_MARK)
    if not processes:
        raise NeuronToolsError(
            "the profile has no executions, so no steps", "capture a run that uses the device"
        )
    # A run may have a million steps: those are listed only for programs.
    listed = processes if arguments.json or arguments.csv else ()
    rows = [{"rank": each.rank, "pid": each.pid, **fields_of(step)} for each in listed for step in each]
    document = [
        {
            "process": each.process,
            "rank": each.rank,
            "pid": each.pid,
            "how": each.how,
            "summary": fields_of(each.summary()),
            "steps": [fields_of(step) for step in each],
        }
        for each in listed
    ]
    print_numbers(
        arguments, "\n\n".join(_steps_text(steps, trace.measured_by) for steps in processes), rows, document
    )
    return 0


def _steps_text(steps: ProcessSteps, measured_by: str) -> str:
    summary = steps.summary()
    who = f"pid {steps.pid}" if steps.rank is None else f"rank {steps.rank} (pid {steps.pid})"
    names: tuple[str, ...] = (
        "duration_ns",
        "compile_ns",
        "load_ns",
        "transfer_ns",
        "execute_ns",
        "idle_ns",
        "device_ns",
    )
    times = "Times are measured on this computer; the column device is modelled."
    if measured_by and not steps.execute_ns.any():
        names, times = ("duration_ns",), f"Times are measured by {measured_by}, which shows no device."
    elif measured_by:
        names = ("duration_ns", "execute_ns", "idle_ns")
        times = f"Times are measured by {measured_by}; execute is what its rows of devices show."
    head = ("step", "time", *(name.removesuffix("_ns") for name in names[1:]))
    rows = [
        (
            f"{step.number}{' first' if step.is_first else ''}",
            *(format_ns(getattr(step, name)) for name in names),
        )
        for step in itertools.islice(steps, _LIMIT)
    ]
    average = (
        "average",
        format_ns(summary.mean_ns),
        *(format_ns(getattr(summary, name)) for name in names[1:]),
    )
    lines = [
        f"{plural(len(steps), 'step')} of {who}: {steps.how}",
        table(head, [*rows, average], "<" + ">" * len(names), width=WIDTH),
        f"shortest {format_ns(summary.min_ns)}, median {format_ns(summary.median_ns)}, longest {format_ns(summary.max_ns)}"
        + (f" ({summary.first_count} first left out)" if summary.first_count else ""),
        times,
    ]
    if len(rows) < len(steps):
        lines.insert(2, f"({len(steps) - len(rows)} more: --json or --csv list all)")
    return "\n".join(lines)


def _load_profile(arguments: argparse.Namespace) -> Trace:
    """Open a profile for what only executions on NeuronCores tell.

    Raises:
        NeuronToolsError: it is a trace of another program.
    """
    trace = load_trace(arguments)
    if trace.measured_by:
        raise NeuronToolsError(
            f"{arguments.verb} needs executions of NeuronCores, and a trace of {trace.measured_by} has none",
            "summary, top and steps tell where its time goes",
        )
    return trace


def _no_operators() -> NeuronToolsError:
    return NeuronToolsError(
        "the profile has no device records, so no operators",
        "capture the run with neuron-run --profile DIR, or with NEURON_RT_INSPECT_DEVICE_PROFILE=1",
    )


def _top(arguments: argparse.Namespace) -> int:
    from neurontools.profiler.analysis.operators import By, group_totals, top_operators
    from neurontools.profiler.analysis.summary import (
        device_rows,
        device_rows_text,
        operators_text,
        operators_title,
        time_of_operators,
    )

    trace = load_trace(arguments)
    limit = arguments.limit or _LIMIT
    if arguments.by is None:
        operators = top_operators(trace, limit)
        text = operators_text(operators, operators_title(trace))
        rows = [fields_of(each) for each in operators]
    else:
        groups = group_totals(trace, By(arguments.by), limit)
        title = f"By {arguments.by}, {time_of_operators(trace)}"
        text = _groups_text(groups, arguments.by, title) if groups else ""
        rows = [
            fields_of(each) | {"flops_s": each.flops_s, "bytes_s": each.bytes_s, "intensity": each.intensity}
            for each in groups
        ]
    if not rows:
        raise _no_operators()
    where = device_rows_text(device_rows(trace))
    print_numbers(arguments, f"{text}\n{where}" if where else text, rows)
    return 0


def _groups_text(groups: tuple[GroupTotal, ...], by: str, title: str) -> str:
    columns: Columns = {
        by: lambda each: each.name,
        "count": lambda each: str(each.count),
        "total": lambda each: format_ns(each.total_ns),
        "share": lambda each: f"{each.share:.1%}",
        "median": lambda each: format_ns(each.median_ns),
        "longest": lambda each: format_ns(each.max_ns),
        "FLOP/s": lambda each: format_count(each.flops_s),
        "B/s": lambda each: format_count(each.bytes_s),
    }
    return f"{title}\n{_named_table(columns, groups, 'median', 'longest')}"


def _roofline(arguments: argparse.Namespace) -> int:
    from neurontools.profiler.analysis.operators import By
    from neurontools.profiler.analysis.roofline import roofline

    found = roofline(_load_profile(arguments), By(arguments.by), arguments.limit or _LIMIT)
    if not found.points:
        raise _no_operators()
    points = [
        fields_of(each) | {"intensity": each.intensity if each.bytes_moved or not each.flops else None}
        for each in found.points
    ]
    document = {
        "peak_flops_s": found.peak_flops_s,
        "peak_bytes_s": found.peak_bytes_s,
        "ridge": found.ridge,
        "points": points,
    }
    print_numbers(arguments, _roofline_text(found, arguments.by), points, document)
    return 0


def _roofline_text(found: Roofline, by: str) -> str:
    columns: Columns = {
        by: lambda each: each.name,
        "time": lambda each: format_ns(each.total_ns),
        "FLOP/B": lambda each: "-" if each.intensity == float("inf") else format_count(each.intensity),
        "FLOP/s": lambda each: format_count(each.flops_s),
        "B/s": lambda each: format_count(each.bytes_s),
        "bound": lambda each: each.bound or "-",
        "of roof": lambda each: f"{each.roof_share:.1%}" if each.bound else "-",
        "gap": lambda each: format_ns(each.gap_ns) if each.bound else "-",
    }
    peaks = f"{format_count(found.peak_flops_s)}FLOP/s, {format_count(found.peak_bytes_s)}B/s"
    return "\n".join([
        f"Roofline of a NeuronCore, modelled: {peaks}, ridge {format_count(found.ridge)} FLOP/B",
        _named_table(columns, found.points, "FLOP/s", "B/s"),
    ])  # fmt: skip


def _gaps(arguments: argparse.Namespace) -> int:
    from neurontools.base.units import parse_duration_ns
    from neurontools.profiler.analysis.host import find_gaps

    shortest = parse_duration_ns(arguments.shortest, needs_unit=True) if arguments.shortest else 1
    gaps = find_gaps(_load_profile(arguments), arguments.limit or _LIMIT, max(1, shortest))
    rows = [
        {**fields_of(gap), "host": " ".join(f"{kind}={ns}" for kind, ns in gap.host)} for gap in gaps.gaps
    ]
    document = {
        "count": gaps.count,
        "total_ns": gaps.total_ns,
        "span_ns": gaps.span_ns,
        "host": dict(gaps.host),
        "gaps": [fields_of(gap) | {"host": dict(gap.host)} for gap in gaps.gaps],
    }
    print_numbers(arguments, _gaps_text(gaps), rows, document)
    return 0


def _gaps_text(found: Gaps) -> str:
    if not found.count:
        return "No gaps: each execution follows the one before at once, or there are fewer than two."
    columns: Columns = {
        "worker": lambda gap: f"pid {gap.pid}" if gap.rank is None else f"rank {gap.rank}",
        "core": lambda gap: f"NC{gap.nc}",
        "start": lambda gap: format_ns(gap.start_ns),
        "length": lambda gap: format_ns(gap.duration_ns),
        "host": lambda gap: _host_text(gap.host),
    }
    return "\n".join([
        f"{plural(found.count, 'gap')} between executions, measured: {format_ns(found.total_ns)}, {found.share:.1%} of the time",
        f"meanwhile the host: {_host_text(found.host, 4)}",
        _table(columns, found.gaps, "<<>><"),
    ])  # fmt: skip


def _named_table(columns: Columns, items: Sequence[Any], *left_out: str) -> str:
    """Return a table whose first column has names; where they are long, columns that say less are left out."""
    name = next(iter(columns.values()))
    if max(len(name(item)) for item in items) > _LONG_NAME:
        columns = {head: text for head, text in columns.items() if head not in left_out}
    return _table(columns, items, "<" + ">" * (len(columns) - 1))


def _table(columns: Columns, items: Sequence[Any], align: str) -> str:
    rows = [[text(item) for text in columns.values()] for item in items]
    return table(tuple(columns), rows, align, width=WIDTH)


def _host_text(host: Sequence[tuple[str, int]], limit: int = 2) -> str:
    return ", ".join(f"{kind} {format_ns(ns)}" for kind, ns in host[:limit])


def _critical_path(arguments: argparse.Namespace) -> int:
    from neurontools.profiler.analysis.programs import critical_paths

    limit = arguments.limit or _LIMIT
    paths = critical_paths(_load_profile(arguments))
    rows = [
        {"program": path.program, "neff_hash": path.neff_hash, **fields_of(part)}
        for path in paths
        for part in path.parts
    ]
    document = [fields_of(path) | {"total_ns": path.total_ns} for path in paths]
    print_numbers(arguments, "\n\n".join(_path_text(path, limit) for path in paths), rows, document)
    return 0


def _path_text(path: CriticalPath, limit: int) -> str:
    engines = ", ".join(f"{each.name} {each.share:.0%}" for each in path.engines if each.path_ns)
    columns: Columns = {
        "operator": lambda each: each.name,
        "parts": lambda each: str(each.count),
        "on the path": lambda each: format_ns(each.path_ns),
        "share": lambda each: f"{each.share:.1%}",
        "slack of the rest": lambda each: "-" if each.slack_ns is None else format_ns(each.slack_ns),
    }
    return "\n".join([
        f"{path.program}: {format_ns(path.total_ns)} modelled, {plural(path.executions, 'execution')}",
        f"launch: {format_ns(path.launch_ns)}",
        f"engines of the path: {engines or '-'}",
        _table(columns, path.operators[:limit], "<>>>>"),
    ])  # fmt: skip


def _ranks(arguments: argparse.Namespace) -> int:
    from neurontools.profiler.analysis.ranks import compare_ranks

    report = compare_ranks(load_trace(arguments))
    rows = [fields_of(rank) for rank in report.ranks]
    print_numbers(arguments, _ranks_text(report), rows, fields_of(report))
    return 0


def _ranks_text(found: RankReport) -> str:
    columns: Columns = {
        "worker": lambda each: f"rank {each.rank}",
        "step": lambda each: format_ns(each.step_ns),
        "work": lambda each: format_ns(each.work_ns),
        "wait": lambda each: format_ns(each.wait_ns) if found.has_waits else "-",
        "slowest in": lambda each: f"{each.slowest_share:.0%}",
        "": lambda each: "straggler" if each.is_straggler else "",
    }
    lines = [
        f"{len(found.ranks)} workers, {plural(len(found.steps), 'step')} in common, medians, measured",
        f"the slowest worker of a step takes {format_ns(found.lost_ns)} longer than the median worker",
        _table(columns, found.ranks, "<>>>><"),
    ]
    if found.missing:
        lines.append(f"missing in the profile: rank {', '.join(map(str, found.missing))}")
    if not found.has_waits:
        lines.append("Waits for other workers were not recorded: all of a step counts as work.")
    return "\n".join(lines)
