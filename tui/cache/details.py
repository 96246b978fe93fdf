"""The panes below the list: the entry or group at the cursor, its operators, why it was compiled, its lookups."""

from __future__ import annotations

from collections import Counter
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from neurontools.base.text import plural, printable, short_operator
from neurontools.base.units import format_size, format_size_both, format_time
from neurontools.cache.entry_report import format_lookups, hits_over_time
from neurontools.cache.fields import format_elapsed
from neurontools.cache.show import detail_fields
from neurontools.tui.widgets.bars import bar
from neurontools.tui.widgets.charts import wide_chart
from neurontools.tui.widgets.frames import beside, framed, inner_width
from neurontools.tui.widgets.lines import Line, Role, fact_lines, fit, fixed, width_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neurontools.cache.browser import BrowserRow, EntryGroup
    from neurontools.cache.entry_report import EntryReport, RowReporter
    from neurontools.cache.events import LookupEvent
    from neurontools.cache.show import EntryDetails
    from neurontools.cache.why.explain import Explanation

_LEAST_FOR_THREE = 160
_LABEL = 13
_FIGURE = 8
_MOST_BARS = 18
_LEAST_CHART, _MOST_CHART = 2, 8
_LEAST_LOOKUPS = 7
_LEFT_OUT = frozenset({"path", "layout", "flags hash", "built by", "data", "uuid"})
_IN_BARS = frozenset({"operators", "files"})


class RowReport(NamedTuple):
    """What is known of a row: of its entry, None if it is gone or a group, and the lookups of its entries."""

    row: BrowserRow
    entry: EntryReport | None
    lookups: tuple[LookupEvent, ...]


def read_report(reporter: RowReporter, row: BrowserRow) -> RowReport:
    """Read what is known of a row."""
    entries = (row.entry,) if row.entry is not None else row.group.entries if row.group is not None else ()
    found = reporter.report(row.entry.place) if row.entry is not None else None
    return RowReport(row, found, reporter.lookups([entry.module for entry in entries]))


def row_panes(report: RowReport | None, size: tuple[int, int], now: float) -> list[Line]:
    """Return panes about a row, exactly as many lines as the size has.

    Args:
        report: on the row, None until it is read.
        size: cells across and down.
        now: Unix seconds.
    """
    width, height = size
    if report is None:
        return framed("Entry", (fit(((" reading …", Role.DIM),), inner_width(width, boxed=True)),), size)
    columns = 3 if width >= _LEAST_FOR_THREE else 2
    widths = [width // columns] * (columns - 1)
    widths.append(width - sum(widths))
    inner = [inner_width(each, boxed=True) for each in widths]
    group, found = report.row.group, report.entry
    panes = []
    if group is not None:
        panes.append(framed("Group", _group_lines(group, now, inner[0]), (widths[0], height)))
        if columns > 2:
            panes.append(framed("Most hits", _most_hit(group, inner[1]), (widths[1], height)))
        panes.append(_lookups_pane(report.lookups, (widths[-1], height), now))
    elif found is not None:
        left_out = _LEFT_OUT | _IN_BARS if columns > 2 else _LEFT_OUT
        lines = _entry_lines(found.details, now, inner[0], left_out)
        panes.append(framed("Entry", lines, (widths[0], height), foot="⏎ show all"))
        if columns > 2:
            panes.append(framed("Operators", _operator_lines(found.details, inner[1]), (widths[1], height)))
        why = list(_cause_lines(found.explanation, inner[-1]))
        upper = min(len(why) + 2, height - (_LEAST_LOOKUPS if report.lookups else 3))
        lower = _lookups_pane(report.lookups, (widths[-1], height - upper), now)
        panes.append(
            [*framed("Why it was compiled", why, (widths[-1], upper), foot="w explain in full"), *lower]
        )
    else:
        gone = fit(((" it is gone, or cannot be read", Role.DIM),), inner_width(width, boxed=True))
        panes.append(framed("Entry", (gone,), size))
    return reduce(beside, panes)


def _entry_lines(details: EntryDetails, now: float, width: int, left_out: frozenset[str]) -> Iterator[Line]:
    if details.error_line:
        yield from fact_lines("error", details.error_line, width, _LABEL, Role.ALERT)
    yield from fact_lines("module", details.entry.module, width, _LABEL, Role.STRONG)
    for name, value in detail_fields(details, now):
        if name not in left_out:
            yield from fact_lines(name, value, width, _LABEL)


def _operator_lines(details: EntryDetails, width: int) -> Iterator[Line]:
    yield from _bars(_operators(details) or (("not known", 0, ""),), width)
    yield fit((), width)
    yield fit(((" files", Role.HEAD),), width)
    largest = sorted(details.files, key=lambda file: -file.size_bytes)
    yield from _bars([(file.name, file.size_bytes, format_size(file.size_bytes)) for file in largest], width)


def _operators(details: EntryDetails) -> list[tuple[str, int, str]]:
    counts: Counter[str] = Counter()
    for name, count in details.graph.operators() if details.graph is not None else ():
        counts[short_operator(name)] += count
    return [(name, count, f"{count:,}") for name, count in counts.most_common()]


def _most_hit(group: EntryGroup, width: int) -> Iterator[Line]:
    most = sorted(group.entries, key=lambda entry: -entry.hits)
    yield from _bars([(entry.module, entry.hits, f"{entry.hits:,}") for entry in most], width)


def _bars(values: Sequence[tuple[str, int, str]], width: int) -> Iterator[Line]:
    """Yield a name, a bar and a figure for each of the first values; the largest has a whole bar."""
    most = max((value for _, value, _ in values), default=0)
    name_width = min(max((width_of(name) for name, _, _ in values[:_MOST_BARS]), default=0), width // 2)
    cells = max(4, width - name_width - _FIGURE - 3)
    for name, value, figure in values[:_MOST_BARS]:
        role = Role.PLAIN if value else Role.DIM
        spans = (
            (f" {fixed(printable(name), name_width)} ", role),
            *bar(value / most if most else 0.0, cells),
        )
        yield fit((*spans, (f"{figure:>{_FIGURE}}", role)), width)
    if len(values) > _MOST_BARS:
        yield fit(((f" and {len(values) - _MOST_BARS:,} more", Role.DIM),), width)


def _group_lines(group: EntryGroup, now: float, width: int) -> Iterator[Line]:
    entries = group.entries
    made = [entry.made_unix_s for entry in entries]
    used = max(entries, key=lambda entry: entry.used_unix_s)
    facts = (
        ("entries", f"{len(entries):,}"),
        ("size", f"{format_size_both(group.size_bytes)} on disk"),
        ("made", f"{format_time(min(made))} to {format_time(max(made))}"),
        ("last used", f"{used.module}, {format_elapsed(now - used.used_unix_s)} ago"),
        ("hits", f"{sum(entry.hits for entry in entries):,} of this user"),
        ("pinned", f"{sum(entry.pinned for entry in entries):,}"),
    )
    yield from fact_lines("", group.title, width, 1, Role.STRONG)
    for name, text in facts:
        yield from fact_lines(name, text, width, _LABEL)
    yield fit((), width)
    yield fit(((" states", Role.HEAD),), width)
    states = Counter(entry.state.value for entry in entries).most_common()
    yield from _bars([(state, count, f"{count:,}") for state, count in states], width)


def _cause_lines(explanation: Explanation, width: int) -> Iterator[Line]:
    comparison = explanation.comparison
    for cause in explanation.causes:
        is_whole = cause.text.startswith(cause.name)
        yield from fact_lines("", cause.text if is_whole else cause.name, width, 1, Role.STRONG)
        yield from fact_lines("", cause.text, width, 3) if not is_whole else ()
        if cause.advice:
            yield from fact_lines("", f"do: {cause.advice}", width, 3, Role.DIM)
    if comparison is None:
        return
    nearest = f"{comparison.old.entry.module}, {plural(len(comparison.differences), 'difference')}"
    if comparison.diff is not None:
        nearest += f", {explanation.likeness:.0%} of the operators alike"
    yield from fact_lines("against", nearest, width, _LABEL)
    for item in comparison.differences:
        yield from fact_lines(item.subject, item.text, width, _LABEL)


def _lookups_pane(lookups: Sequence[LookupEvent], size: tuple[int, int], now: float) -> list[Line]:
    width, room = inner_width(size[0], boxed=True), size[1] - 2
    if not lookups:
        return framed("Lookups", (fit(((" none of this user is recorded", Role.DIM),), width),), size)
    lines = list(fact_lines("", format_lookups(lookups), width, 1))
    words, counts = hits_over_time(lookups, now, width - 2)
    high = max(_LEAST_CHART, min(_MOST_CHART, (room - len(lines)) // 2))
    most = max(counts)
    shares = [count / most if count else None for count in counts]
    lines += [fit(((" ", Role.PLAIN), *spans), width) for spans in wide_chart(shares, width - 2, high)]
    lines.append(fit(((f" {words} ago{'now':>{max(3, width - len(words) - 6)}}", Role.DIM),), width))
    lines += [_lookup_line(event, width) for event in reversed(lookups[-room:])]
    return framed("Lookups", lines, size, note=f"at most {most:,} hits" if most else "")


def _lookup_line(event: LookupEvent, width: int) -> Line:
    what = f" {format_time(event.unix_s)}  {event.kind:<8}{event.seconds:>9.3f} s"
    return fit(((what, Role.PLAIN), (f"  run {event.run}", Role.DIM)), width)
