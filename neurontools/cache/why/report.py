"""`neuron-cache why` as text and JSON; docs/reference/neuron-cache.md describes the fields."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from neurontools.base.files import read_start
from neurontools.base.text import plural, printable, wrap
from neurontools.base.units import format_time
from neurontools.cache.events import LookupEventKind
from neurontools.cache.why.causes import CauseName, format_values
from neurontools.cache.why.diff_text import diff_lines, format_operation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from neurontools.cache.why.causes import Cause
    from neurontools.cache.why.compare import EntryComparison, EntryFacts
    from neurontools.cache.why.diff import DiffStep, GraphDiff
    from neurontools.cache.why.explain import Explanation, RunExplanation

SCHEMA = 2
DEFAULT_LINES = 40
_MAX_JSON_STEPS = 200
_MIN_WIDTH = 40
_SHOWN_DIFFERENCES = 3
_SHOWN_MISSES = 30
_SHOWN_SOURCES = 5
_SHOWN_DIGITS = 10
_MAX_SOURCE_BYTES = 1 << 22
_MAX_SOURCE_LINE = 120
_COLOURS = {"-": "31", "+": "32", "@": "36", "~": "33"}
_BOLD = "1"
_LABEL = 11
_SEQUENCES = frozenset({CauseName.SHAPE, CauseName.LAST_BATCH, CauseName.SCALAR})


@dataclass(frozen=True, slots=True)
class ReportStyle:
    """How to print a report.

    Args:
        width: columns.
        colour: whether to use colours.
        cut: whether to cut lines at the width.
        full: print the whole difference of the graphs.
        most_lines: the maximum number of lines of a graph's difference.
        directory: file names are shown relative to it; ends with a slash, "" for none.
    """

    width: int = 100
    colour: bool = False
    cut: bool = False
    full: bool = False
    most_lines: int | None = DEFAULT_LINES
    directory: str = ""

    def relative(self, text: str) -> str:
        """Return a text with its source lines relative to the directory."""
        return re.sub(re.escape(self.directory) + r"(?=\S+:\d)", "", text) if self.directory else text

    def paint(self, text: str, code: str) -> str:
        """Return a text in a colour, if colours are used."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and code else text

    def wrap(self, text: str, indent: int, label: str = "") -> list[str]:
        """Return a text in lines of the width, after a label."""
        first = " " * indent + (f"{label:<{_LABEL}}" if label else "")
        rest = " " * (indent + (_LABEL if label else 0))
        shown = printable(self.relative(text))
        return wrap(shown, max(self.width, _MIN_WIDTH), first_indent=first, indent=rest) or [first.rstrip()]


def format_explanation(explanation: Explanation, style: ReportStyle) -> str:
    """Return why an entry was compiled, against another entry or alone."""
    comparison, facts = explanation.comparison, explanation.facts
    if comparison is None and facts is not None:
        lines = [*style.wrap(_describe(facts), 0, "entry"), ""]
        lines += _format_causes(explanation.causes, style, 0)
        return "\n".join((*lines, *_format_unread_parts(facts.unread, style))).rstrip()
    assert comparison is not None
    lines = style.wrap(_describe(comparison.new), 0, "entry")
    lines += style.wrap(_describe(comparison.old), 0, "against")
    if comparison.diff is not None:
        lines += style.wrap(f"{explanation.likeness:.0%} of the operators", 0, "alike")
    lines.append("")
    if not comparison.differences and not comparison.unread:
        same = comparison.old.entry.path == comparison.new.entry.path
        lines.append("both names are one entry" if same else "nothing that is part of the key differs")
    elif not comparison.differences:
        lines.append("no difference in the parts that can be read")
    lines += _format_causes(explanation.causes, style, 0)
    lines += _format_differences(comparison, style)
    lines += _format_graphs(comparison, style)
    lines += _format_unread_parts(comparison.unread, style)
    return "\n".join(lines).rstrip()


def format_run(report: RunExplanation, style: ReportStyle) -> str:
    """Return why a run compiled."""
    replayed = sum(
        miss.event is not None and miss.event.kind is LookupEventKind.REPLAY for miss in report.misses
    )
    compiled = plural(len(report.misses) + report.left_out - replayed, "compile")
    head = f"{report.run}, {format_time(report.started_unix_s)}: {compiled}"
    head += f" ({report.compiled_s:.3f} s), {plural(report.hits, 'hit')}"
    head += f", {plural(replayed, 'failure')} replayed" if replayed else ""
    lines = [*style.wrap(head, 0, "run"), *style.wrap(report.root, 0, "cache"), ""]
    if not report.misses:
        lines.append("nothing to explain: all of its graphs were in the cache")
    lines += _format_causes((shared.cause for shared in report.shared), style, 0)
    explained = _explained_by_shared(report)
    shown = report.misses if style.full else report.misses[:_SHOWN_MISSES]
    for number, miss in enumerate(shown, 1):
        lines += _format_miss(number, miss, style, explained.get(_module(miss)))
    if len(shown) < len(report.misses):
        lines.append(f"and {len(report.misses) - len(shown)} more (--full)")
    if report.left_out:
        lines.append(f"and {report.left_out} more, not examined")
    return "\n".join(lines).rstrip()


def format_compile(number: int, miss: Explanation, style: ReportStyle) -> str:
    """Return why a run has just compiled its `number`-th graph."""
    lines = [*_format_miss(number, miss, style, None)]
    graph = miss.facts.graph if miss.facts is not None else None
    if graph is not None:
        cause, _, source = graph.cut.rpartition(" at ")
        lines[1:1] = style.wrap(
            f"{plural(len(graph.operations), 'operator')}, up to {cause or graph.cut}", 3, "graph"
        )
        lines[2:2] = style.wrap(read_source_line(source), 3, "line") if cause else []
    return "\n".join(lines)


def _module(miss: Explanation) -> str:
    return "" if miss.event is None else miss.event.module


def _format_miss(number: int, miss: Explanation, style: ReportStyle, shared: Cause | None) -> Iterator[str]:
    event, comparison = miss.event, miss.comparison
    if event is None:
        return
    title = f"{number}. {event.module}  {format_time(event.unix_s)[11:]}"
    title += f"  {event.seconds:.3f} s" if event.kind is LookupEventKind.MISS else f"  {event.kind}"
    yield style.paint(printable(title), _BOLD)
    if shared is not None and not style.full:
        sizes = comparison.diff.sizes_text if comparison is not None and comparison.diff is not None else ""
        yield from style.wrap(shared.name + (f": {sizes}" if sizes else ""), 3, "as above")
        return
    if comparison is not None:
        text = f"{comparison.old.entry.module} ({miss.likeness:.0%} alike)"
        yield from style.wrap(text, 3, "against")
    yield from _format_causes(miss.causes, style, 3)
    if comparison is None:
        return
    shown = comparison.differences if style.full else comparison.differences[:_SHOWN_DIFFERENCES]
    for item in shown:
        yield from style.wrap(item.text, 3, item.subject)
    hidden = len(comparison.differences) - len(shown)
    if hidden:
        names = (event.module, comparison.old.entry.module)
        start, old_module = (name.removeprefix("MODULE_")[:_SHOWN_DIGITS] for name in names)
        yield f"   {'':<{_LABEL}}{plural(hidden, 'more difference')}: neuron-cache why {start} {old_module}"
    if style.full:
        yield from _format_graphs(comparison, style)


def _explained_by_shared(report: RunExplanation) -> dict[str, Cause]:
    """Return by module the cause of each compile that a shared cause explains.

    The first of a sequence keeps its own cause: it is not new because others came after it.
    """
    found = {}
    for shared in report.shared:
        members = [miss for miss in report.misses if _module(miss) in shared.modules]
        for position, miss in enumerate(members):
            name = miss.causes[0].name if miss.causes else None
            is_same, is_first = name is shared.cause.name, name is CauseName.FIRST
            keeps_own = not position and (is_first or shared.cause.name in _SEQUENCES)
            if not keeps_own and (miss.comparison is not None or is_same or is_first):
                found[_module(miss)] = shared.cause
    return found


def _format_causes(causes: Iterable[Cause], style: ReportStyle, indent: int) -> Iterator[str]:
    for cause in causes:
        is_whole = cause.text.startswith(cause.name)
        yield from (
            style.paint(line, _BOLD) for line in style.wrap(cause.text if is_whole else cause.name, indent)
        )
        yield from style.wrap(cause.text, indent + 2) if not is_whole else ()
        if any(value not in cause.text for value in cause.values):
            yield from style.wrap(format_values(cause.values), indent + 2, "values:")
        yield from style.wrap(cause.advice, indent + 2, "do:")
        if not indent:
            yield ""


def _format_differences(comparison: EntryComparison, style: ReportStyle) -> Iterator[str]:
    if not comparison.differences:
        return
    yield style.paint("what differs", _BOLD)
    before = ""
    for item in comparison.differences:
        yield from style.wrap(item.text, 2, item.subject if item.subject != before else " ")
        before = item.subject
    sources = dict.fromkeys(item.source for item in comparison.differences if item.source)
    for number, source in enumerate(list(sources)[:_SHOWN_SOURCES]):
        yield from style.wrap(read_source_line(source), 2, "lines" if number == 0 else " ")
    yield ""


def _format_graphs(comparison: EntryComparison, style: ReportStyle) -> Iterator[str]:
    diff = comparison.diff
    if diff is None or diff.is_empty:
        return
    number = f"{len(diff.old.operations)} -> {plural(len(diff.new.operations), 'operator')}"
    changed = f"{len(diff.changed())} changed, {len(diff.added())} added, {len(diff.removed())} removed"
    yield style.paint("graph", _BOLD)
    yield from style.wrap(f"{number}: {diff.equal_count} the same, {changed}", 2)
    for sign, source in _difference_sources(diff):
        yield from style.wrap(source, 2, f"parts at {sign}")
    for graph, sign in ((diff.old, "-"), (diff.new, "+")):
        if graph.cut and diff.old.cut != diff.new.cut:
            yield from style.wrap(graph.cut, 2, f"cut by {sign}")
    for line in diff_lines(diff, full=style.full, most=None if style.full else style.most_lines):
        text = style.relative(line.text)
        text = f"  {text}" if line.mark == "@" else f"  {line.mark} {text}"
        text = text[: style.width - 1] + "…" if style.cut and len(text) > style.width else text
        yield style.paint(text, _COLOURS.get(line.mark, ""))
    yield ""


def _difference_sources(diff: GraphDiff) -> Iterator[tuple[str, str]]:
    """Yield sign and source line of each graph where they part; nothing if only the inputs' sizes differ."""
    step = diff.first_difference()
    if step is None or step.follows:
        return
    old = read_source_line(diff.old.operations[step.old].source) if step.old >= 0 else ""
    new = read_source_line(diff.new.operations[step.new].source) if step.new >= 0 else ""
    if old == new:
        yield " ", new
        return
    yield from ((sign, source) for sign, source in (("-", old), ("+", new)) if source)


def _format_unread_parts(unread: tuple[str, ...], style: ReportStyle) -> Iterator[str]:
    if unread:
        yield style.paint("what could not be read", _BOLD)
    for text in unread:
        yield from style.wrap(text, 2)


def _describe(facts: EntryFacts) -> str:
    entry, origin = facts.entry, facts.origin
    by = f", compiled by {origin.program or 'a program'}" if origin is not None else ""
    return f"{entry.module} ({entry.state}, {format_time(entry.made_unix_s)}{by})"


def read_source_line(source: str) -> str:
    """Return `file:line: text` for a `file:line`, without the text if the file is not here.

    Graphs come from files that others may write, so only regular files named like a script are opened.
    """
    path, _, number = source.rpartition(":")
    if not path.endswith(".py") or not number.isdigit() or not os.path.isfile(path):
        return source
    lines = read_start(path, _MAX_SOURCE_BYTES).decode("utf-8", "replace").splitlines()
    position = int(number) - 1
    text = lines[position].strip() if 0 <= position < len(lines) else ""
    return f"{source}: {text[:_MAX_SOURCE_LINE]}" if text else source


def explanation_json(explanation: Explanation, *, full: bool = False) -> dict[str, Any]:
    """Return why an entry was compiled, against another entry or alone."""
    diff = None if explanation.comparison is None else explanation.comparison.diff
    found = {"schema": SCHEMA, **_explanation_fields(explanation)}
    if explanation.comparison is None and explanation.facts is not None:
        found["unread"] = list(explanation.facts.unread)
    return found | {"graph": None if diff is None else _diff_json(diff, full=full)}


def run_json(report: RunExplanation, *, full: bool = False) -> dict[str, Any]:
    """Return why a run compiled."""
    return {
        "schema": SCHEMA,
        "root": report.root,
        "run": report.run,
        "started_unix_s": report.started_unix_s,
        "hits": report.hits,
        "compiled_s": report.compiled_s,
        "causes": [asdict(shared.cause) | {"modules": list(shared.modules)} for shared in report.shared],
        "misses": [_miss_json(miss, full=full) for miss in report.misses],
        "left_out": report.left_out,
    }


def _miss_json(miss: Explanation, *, full: bool) -> dict[str, Any]:
    event, comparison = miss.event, miss.comparison
    assert event is not None
    found: dict[str, Any] = {
        "module": event.module,
        "event": event.kind.value,
        "unix_s": event.unix_s,
        "seconds": event.seconds,
        **_explanation_fields(miss),
    }
    if comparison is not None:
        diff = comparison.diff if full else None
        found["graph"] = None if diff is None else _diff_json(diff, full=True)
    return found


def _explanation_fields(explanation: Explanation) -> dict[str, Any]:
    comparison = explanation.comparison
    return {
        "entry": None if explanation.facts is None else _entry_json(explanation.facts),
        "nearest": None if comparison is None else _entry_json(comparison.old),
        "likeness": None if comparison is None else round(explanation.likeness, 4),
        "causes": [asdict(cause) for cause in explanation.causes],
        "differences": [
            {name: value or None for name, value in asdict(item).items()}
            for item in (() if comparison is None else comparison.differences)
        ],
        "unread": [] if comparison is None else list(comparison.unread),
    }


def _entry_json(facts: EntryFacts) -> dict[str, Any]:
    entry = facts.entry
    return {
        "path": entry.path,
        "module": entry.module,
        "compiler": entry.compiler,
        "state": entry.state.value,
        "made_unix_s": entry.made_unix_s,
        "flags": None if facts.flags is None else list(facts.flags),
        "operators": None if facts.graph is None else len(facts.graph.operations),
        "program": None if facts.origin is None else facts.origin.program,
        "cut": None if facts.graph is None else facts.graph.cut or None,
    }


def _diff_json(diff: GraphDiff, *, full: bool) -> dict[str, Any]:
    differing = [step for step in diff.steps if not step.is_equal]
    shown = differing if full else differing[:_MAX_JSON_STEPS]
    return {
        "same": diff.equal_count,
        "changed": len(diff.changed()),
        "added": len(diff.added()),
        "removed": len(diff.removed()),
        "sizes": [list(pair) for pair in diff.sizes],
        "steps": [_step_json(diff, step) for step in shown],
        "left_out": len(differing) - len(shown),
    }


def _step_json(diff: GraphDiff, step: DiffStep) -> dict[str, Any]:
    old = diff.old.operations[step.old] if step.old >= 0 else None
    new = diff.new.operations[step.new] if step.new >= 0 else None
    source = new.source if new is not None else old.source if old is not None else ""
    return {
        "old": None if old is None else step.old,
        "new": None if new is None else step.new,
        "aspects": sorted(aspect.value for aspect in step.aspects),
        "by_sizes_alone": step.follows,
        "old_text": None if old is None else format_operation(diff.old, old),
        "new_text": None if new is None else format_operation(diff.new, new),
        "source": source or None,
    }
