"""`neuron-cache why` as text: what caused a compile, what differs, and where the graphs part."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.cache.events import EventKind
from neurontools.cache.tables import counted, moment, plain
from neurontools.cache.why.cause import CauseName
from neurontools.cache.why.diff_text import diff_lines
from neurontools.cache.why.nearest import unread_words
from neurontools.cache.why.series import shown_values
from neurontools.cache.why.source_lines import source_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from neurontools.cache.why.cause import Cause
    from neurontools.cache.why.compare import Comparison
    from neurontools.cache.why.diff import GraphDiff
    from neurontools.cache.why.entry_facts import EntryFacts
    from neurontools.cache.why.pair_report import LoneReport, PairReport
    from neurontools.cache.why.run_report import MissReport, RunReport

DEFAULT_LINES = 40
_NARROWEST = 40
_DIFFERENCES_OF_A_MISS = 3
_MISSES_SHOWN = 30
_LINES_OF_SOURCE = 5
_DIGITS = 10
_COLOURS = {"-": "31", "+": "32", "@": "36", "~": "33"}
_BOLD, _DIM = "1", "2"
_LABEL = 11


@dataclass(frozen=True, slots=True)
class Look:
    """How to print: columns, colours, whether lines are cut at the width, how much of a graph's difference.

    `here` is a directory, with a slash, that file names are shown without.
    """

    width: int = 100
    colour: bool = False
    cut: bool = False
    full: bool = False
    most_lines: int | None = DEFAULT_LINES
    here: str = ""

    def shortened(self, text: str) -> str:
        """Return a text with the source lines in it named from `here`."""
        return re.sub(re.escape(self.here) + r"(?=\S+:\d)", "", text) if self.here else text

    def painted(self, text: str, code: str) -> str:
        """Return a text in a colour, if there are colours."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and code else text

    def wrapped(self, text: str, indent: int, label: str = "") -> list[str]:
        """Return a text in lines of the width, behind a label."""
        first = " " * indent + (f"{label:<{_LABEL}}" if label else "")
        rest = " " * (indent + (_LABEL if label else 0))
        width = max(self.width, _NARROWEST)
        return textwrap.wrap(
            plain(self.shortened(text)),
            width,
            initial_indent=first,
            subsequent_indent=rest,
            break_on_hyphens=False,
        ) or [first.rstrip()]


def pair_text(report: PairReport, look: Look) -> str:
    """Return why two entries are two."""
    comparison = report.comparison
    lines = [
        *look.wrapped(_name(comparison.new), 0, "entry"),
        *look.wrapped(_name(comparison.old), 0, "against"),
    ]
    if comparison.diff is not None:
        lines += look.wrapped(f"{report.likeness:.0%} of the operators", 0, "alike")
    lines.append("")
    if not comparison.differences and not comparison.unread:
        same = comparison.old.entry.path == comparison.new.entry.path
        lines.append("this is one entry" if same else "nothing that is part of the key differs")
    elif not comparison.differences:
        lines.append("no difference in what can be read")
    lines += _cause_lines(report.causes, look, 0)
    lines += _difference_lines(comparison, look)
    lines += _graph_lines(comparison, look)
    lines += _unread_lines(comparison.unread, look)
    return "\n".join(lines).rstrip()


def lone_text(report: LoneReport, look: Look) -> str:
    """Return that an entry has no neighbour."""
    lines = [*look.wrapped(_name(report.facts), 0, "entry"), "", *look.wrapped(_alone(report), 0)]
    return "\n".join((*lines, *_unread_lines(report.facts.unread, look))).rstrip()


def _alone(report: LoneReport) -> str:
    if not report.others:
        return "nothing to compare it with: it is the only entry of this cache"
    others = counted(report.others, "other entry", "other entries")
    if report.facts.graph is None:
        return (
            f"not known: its graph cannot be read, so it cannot be compared with the {others} of this cache"
        )
    unread = f"; {unread_words(report.unread)}" if report.unread else ""
    none = "the one other entry of this cache is not" if report.others == 1 else f"none of the {others} is"
    return f"nothing to compare it with: {none} like it{unread}"


def run_text(report: RunReport, look: Look) -> str:
    """Return why a run compiled."""
    replayed = sum(miss.event.kind is EventKind.REPLAY for miss in report.misses)
    compiled = counted(len(report.misses) + report.left_out - replayed, "compile", "compiles")
    head = f"{report.run}, {moment(report.started_unix_s)}: {compiled}"
    head += f" ({report.compiled_s:.3f} s), {counted(report.hits, 'hit', 'hits')}"
    if replayed:
        head += f", {counted(replayed, 'failure', 'failures')} replayed"
    lines = [*look.wrapped(head, 0, "run"), *look.wrapped(report.root, 0, "cache"), ""]
    if not report.misses:
        lines.append("nothing to explain: it found all of its graphs")
    lines += _cause_lines((series.cause for series in report.series), look, 0)
    explained = _explained(report)
    shown = report.misses if look.full else report.misses[:_MISSES_SHOWN]
    for number, miss in enumerate(shown, 1):
        lines += _miss_lines(number, miss, look, explained.get(miss.event.module))
    if len(shown) < len(report.misses):
        lines.append(f"and {len(report.misses) - len(shown)} more (--full)")
    if report.left_out:
        lines.append(f"and {report.left_out} more, not looked at")
    return "\n".join(lines).rstrip()


def _miss_lines(number: int, miss: MissReport, look: Look, series: Cause | None) -> Iterator[str]:
    event = miss.event
    title = f"{number}. {event.module}  {moment(event.unix_s)[11:]}"
    title += f"  {event.seconds:.3f} s" if event.kind is EventKind.MISS else f"  {event.kind}"
    yield look.painted(plain(title), _BOLD)
    comparison = miss.comparison
    if series is not None and not look.full:
        yield from look.wrapped(f"{series.name}{_sizes(comparison)}", 3, "as above")
        return
    if comparison is not None:
        yield from look.wrapped(f"{comparison.old.entry.module} ({miss.likeness:.0%} alike)", 3, "nearest")
    yield from _cause_lines(miss.causes, look, 3)
    if comparison is None:
        return
    shown = comparison.differences if look.full else comparison.differences[:_DIFFERENCES_OF_A_MISS]
    for item in shown:
        yield from look.wrapped(item.text, 3, item.subject)
    rest = len(comparison.differences) - len(shown)
    if rest:
        more = counted(rest, "more difference", "more differences")
        yield f"   {'':<{_LABEL}}{more}: neuron-cache why {_start(event.module)} {_start(comparison.old.entry.module)}"
    if look.full:
        yield from _graph_lines(comparison, look)


_SERIES_OF_VALUES = frozenset({CauseName.SHAPE_SERIES, CauseName.LAST_BATCH, CauseName.SCALAR})


def _explained(report: RunReport) -> dict[str, Cause]:
    """Return by module the cause of each miss that a series explains.

    The first of a series has a cause of its own: why it is new is not that others came after it.
    """
    found = {}
    for series in report.series:
        members = [miss for miss in report.misses if miss.event.module in series.modules]
        for position, miss in enumerate(members):
            name = miss.causes[0].name if miss.causes else None
            is_same, is_first = name is series.cause.name, name is CauseName.FIRST
            keeps_own = not position and not is_same and (is_first or series.cause.name in _SERIES_OF_VALUES)
            if not keeps_own and (miss.comparison is not None or is_same or is_first):
                found[miss.event.module] = series.cause
    return found


def _sizes(comparison: Comparison | None) -> str:
    sizes = comparison.diff.sizes if comparison is not None and comparison.diff is not None else ()
    return f": {', '.join(f'{old} -> {new}' for old, new in sizes)}" if sizes else ""


def _start(module: str) -> str:
    return module.removeprefix("MODULE_")[:_DIGITS]


def _cause_lines(causes: Iterable[Cause], look: Look, indent: int) -> Iterator[str]:
    for cause in causes:
        yield " " * indent + look.painted(f"{cause.name} ({cause.confidence})", _BOLD)
        yield from look.wrapped(cause.text, indent + 2)
        if any(value not in cause.text for value in cause.values):
            yield from look.wrapped(shown_values(cause.values), indent + 2, "values:")
        if cause.advice:
            yield from look.wrapped(cause.advice, indent + 2, "do:")
        if not indent:
            yield ""


def _difference_lines(comparison: Comparison, look: Look) -> Iterator[str]:
    if not comparison.differences:
        return
    yield look.painted("what differs", _BOLD)
    before = ""
    for item in comparison.differences:
        yield from look.wrapped(item.text, 2, item.subject if item.subject != before else " ")
        before = item.subject
    sources = dict.fromkeys(item.source for item in comparison.differences if item.source)
    for number, source in enumerate(list(sources)[:_LINES_OF_SOURCE]):
        yield from look.wrapped(source_line(source), 2, "lines" if number == 0 else " ")
    yield ""


def _graph_lines(comparison: Comparison, look: Look) -> Iterator[str]:
    diff = comparison.diff
    if diff is None or diff.is_empty:
        return
    lines = diff_lines(diff, full=look.full, most=None if look.full else look.most_lines)
    number = f"{len(diff.old.operations)} -> {counted(len(diff.new.operations), 'operator', 'operators')}"
    changed = f"{len(diff.changed())} changed, {len(diff.added())} added, {len(diff.removed())} removed"
    yield look.painted("graph", _BOLD)
    yield from look.wrapped(f"{number}: {diff.equal_count} the same, {changed}", 2)
    for sign, found in _parting_lines(diff):
        yield from look.wrapped(found, 2, f"parts at {sign}")
    for graph, sign in ((diff.old, "-"), (diff.new, "+")):
        if graph.cut and diff.old.cut != diff.new.cut:
            yield from look.wrapped(graph.cut, 2, f"cut by {sign}")
    for line in lines:
        shown = look.shortened(line.text)
        text = f"  {shown}" if line.mark == "@" else f"  {line.mark} {shown}"
        cut = text[: look.width - 1] + "…" if look.cut and len(text) > look.width else text
        yield look.painted(cut, _COLOURS.get(line.mark, ""))
    yield ""


def _parting_lines(diff: GraphDiff) -> Iterator[tuple[str, str]]:
    """Yield sign and source line of each graph where they part; nothing where only the inputs' sizes differ."""
    parting = diff.parting()
    if parting is None or parting.follows:
        return
    old = source_line(diff.old.operations[parting.old].source) if parting.old >= 0 else ""
    new = source_line(diff.new.operations[parting.new].source) if parting.new >= 0 else ""
    if old == new:
        yield " ", new
        return
    yield from ((sign, found) for sign, found in (("-", old), ("+", new)) if found)


def _unread_lines(unread: tuple[str, ...], look: Look) -> Iterator[str]:
    if not unread:
        return
    yield look.painted("what could not be read", _BOLD)
    for text in unread:
        yield from look.wrapped(text, 2)


def _name(facts: EntryFacts) -> str:
    entry = facts.entry
    origin = facts.origin
    by = f", compiled by {origin.program or 'a program'}" if origin is not None else ""
    return f"{entry.module} ({entry.state}, {moment(entry.made_unix_s)}{by})"
