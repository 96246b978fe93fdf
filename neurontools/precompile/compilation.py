"""The second phase of neuron_parallel_compile: select entries of a cache, compile them, report on them, remove NEFFs.

Log lines and JSON keys are the real tool's (AWS Neuron documentation, PyTorch NeuronX neuron_parallel_compile).
"""

from __future__ import annotations

import json
import os
import time
from contextlib import closing, suppress
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from neurontools.cache import layouts
from neurontools.cache.entries import scan
from neurontools.cache.entry_files import State
from neurontools.cache.flags import parse_environment_flags
from neurontools.cache.layouts import CacheLayout
from neurontools.cache.location import is_network_root
from neurontools.cache.locks import is_in_use, try_lock
from neurontools.cache.pruning.rules import PruneRules, reason_to_spare
from neurontools.compiler.options import COMPILER_VERSION
from neurontools.errors import NeuronToolsError, UsageError
from neurontools.precompile.worker_pool import (
    CompileResult,
    compile_all,
    worker_command,
    worker_environment,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from neurontools.cache.entries import Entry

MAX_NEIGHBOURS = 8

RETRIES_VARIABLE = "NEURON_PARALLEL_COMPILE_MAX_RETRIES"

MAX_EXIT_CODE = 255


@dataclass(frozen=True, slots=True)
class EntryGroups:
    """The entries of a root as the real wrapper groups them into todo, locked, done and failed."""

    todo: tuple[Entry, ...]
    locked: tuple[Entry, ...]
    done: tuple[Entry, ...]
    failed: tuple[Entry, ...]

    @property
    def total(self) -> int:
        """The number of entries."""
        return len(self.todo) + len(self.locked) + len(self.done) + len(self.failed)


def group_entries(root: str) -> EntryGroups:
    """Return the entries of this compiler version in a root by state; interrupted compiles are to do.

    Raises:
        NotACacheError: the root is not a cache.
    """
    found = [
        entry
        for entry in scan(root, details=False).entries
        if entry.layout is CacheLayout.CURRENT and entry.compiler == COMPILER_VERSION
    ]

    def in_state(*states: State) -> tuple[Entry, ...]:
        return tuple(entry for entry in found if entry.state in states)

    todo = in_state(State.TODO, State.INTERRUPTED)
    return EntryGroups(todo, in_state(State.LOCKED), in_state(State.DONE), in_state(State.FAILED))


def format_groups(groups: EntryGroups, *, with_failed: bool) -> str:
    """Return the number of entries in each state and, if requested, the failed ones."""
    lines = [f"{name}[{len(entries)}]" for name, entries in _named(groups)]
    if with_failed:
        lines += [f"  {entry.path}: {entry.note}" for entry in groups.failed]
    return "\n".join(lines)


def format_remaining(groups: EntryGroups) -> str:
    """Return the line that counts the entries by state."""
    return (
        f"Current remaining items are {len(groups.todo)}, locked are {len(groups.locked)}, "
        f"failed are {len(groups.failed)}, done are {len(groups.done)}, total is {groups.total}"
    )


def groups_json(groups: EntryGroups) -> dict[str, list[str]]:
    """Return the directories of the entries in each state."""
    return {name: [entry.path for entry in entries] for name, entries in _named(groups)}


def _named(groups: EntryGroups) -> list[tuple[str, tuple[Entry, ...]]]:
    return [(field.name, getattr(groups, field.name)) for field in fields(groups)]


def select_entries(groups: EntryGroups, *, retry_failed: bool) -> tuple[str, ...]:
    """Return the directories of the entries to compile; cached failures only with `retry_failed`."""
    chosen = (*groups.todo, *groups.failed) if retry_failed else groups.todo
    return tuple(entry.path for entry in chosen)


def schedule(paths: Iterable[str], node: int, nodes: int) -> tuple[str, ...]:
    """Return the entries of one node of several: its own share first, then those of at most 8 next neighbours.

    Entries that a neighbour has compiled meanwhile are hits.

    Args:
        paths: the entries, the same set on every node.
        node: this node, from 0.
        nodes: number of nodes.
    """
    ordered = sorted(paths)
    helped = min(MAX_NEIGHBOURS, nodes - 1)
    return tuple(path for step in range(helped + 1) for path in ordered[(node + step) % nodes :: nodes])


@dataclass(frozen=True, slots=True)
class NodeShare:
    """The number of this node and of all nodes that share the work."""

    node: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.node < self.count:
            raise UsageError(
                f"node {self.node} of {self.count} does not exist",
                "--node_id counts from 0 to --world_size - 1",
            )


@dataclass(frozen=True, slots=True)
class CompileTask:
    """The work of a parallel compile in one cache.

    Args:
        root: of the cache.
        groups: its entries by state.
        entries: directories of the entries to compile, in order.
        known_failures: entries that this program needs and that failed before; they are not retried.
    """

    root: str
    groups: EntryGroups
    entries: tuple[str, ...]
    known_failures: tuple[str, ...]


def plan_task(
    root: str, environ: Mapping[str, str], share: NodeShare, collected: tuple[str, ...] = ()
) -> CompileTask:
    """Return the work in a root.

    Args:
        root: of the cache.
        environ: NEURON_CC_FLAGS decides whether failures are retried.
        share: the share of this node.
        collected: entries of the trial run.

    Raises:
        UsageError: NEURON_CC_FLAGS cannot be read.
        NotACacheError: the root is not a cache.
    """
    groups = group_entries(root)
    retry = parse_environment_flags(environ).retry_failed
    failed = frozenset(entry.path for entry in groups.failed) if not retry else frozenset()
    return CompileTask(
        root=root,
        groups=groups,
        entries=schedule(select_entries(groups, retry_failed=retry), share.node, share.count),
        known_failures=tuple(entry for entry in collected if entry in failed),
    )


def compile_tasks(
    tasks: Sequence[CompileTask],
    parallel: int,
    environ: Mapping[str, str],
    progress: Callable[[int, int], None] | None = None,
) -> CompileReport:
    """Compile all entries of some tasks and return the report.

    Args:
        tasks: as planned, one for each cache.
        parallel: number of compile processes.
        environ: the environment of the compile processes.
        progress: called with the number of finished graphs and of all.

    Raises:
        UsageError: the number of retries cannot be read.
    """
    retries = _retries(environ)
    started, since = now(), time.monotonic()
    variables = worker_environment(environ, f"{os.getpid()}:{int(started)}")
    total = sum(len(task.entries) for task in tasks)
    results = []
    for task in tasks:
        with closing(
            compile_all(task.entries, worker_command(task.root), variables, parallel, retries)
        ) as running:
            for result in running:
                results.append(result)
                if progress is not None:
                    progress(len(results), total)
    known = [CompileResult(entry, "failed before", 0, 0.0) for task in tasks for entry in task.known_failures]
    return CompileReport((*known, *results), started, time.monotonic() - since)


def default_parallel() -> int:
    """Return the default number of compile processes: one per CPU that this process may use."""
    return len(os.sched_getaffinity(0))


def _retries(environ: Mapping[str, str]) -> int:
    text = environ.get(RETRIES_VARIABLE, "") or "0"
    if not text.isdecimal():
        raise UsageError(f"invalid number of retries {RETRIES_VARIABLE}={text!r}", "use 0, 1, 2, ...")
    return int(text)


def clear_neffs(
    root: str, entries: Iterable[Entry], *, dry_run: bool
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Remove the NEFFs of finished entries.

    Args:
        root: of the cache.
        entries: finished entries.
        dry_run: remove nothing.

    Returns:
        The removed NEFFs, and pairs of entry and reason for those that are kept: pinned, locked or in use.

    Raises:
        NeuronToolsError: the cache cannot be written.
    """
    network = is_network_root(root)
    gone, spared = [], []
    for entry in entries:
        reason = reason_to_spare(entry, PruneRules(grace_s=0.0), time.time(), network=network)
        if not reason and is_in_use(entry.path):
            reason = "in use"
        if not reason and not dry_run:
            reason = _clear(root, entry.path)
        if reason:
            spared.append((entry.path, reason))
        else:
            gone.append(f"{entry.path}/{layouts.NEFF}")
    return tuple(gone), tuple(spared)


def _clear(root: str, entry: str) -> str:
    try:
        lock = try_lock(root, entry)
    except FileNotFoundError:
        return "removed meanwhile"
    except OSError as error:
        raise NeuronToolsError(
            f"cannot remove from the compile cache {root}: {error.strerror}",
            "run this as the owner of the cache, on a host where it is writable",
        ) from error
    if lock is None:
        return "locked meanwhile"
    try:
        # The marker first: a reader sees a finished entry or one to compile, never a marker alone.
        with suppress(OSError), layouts.open_entry(entry) as directory:
            directory.remove_quietly(layouts.DONE)
            directory.remove_quietly(layouts.NEFF)
    finally:
        lock.release()
    return ""


@dataclass(frozen=True, slots=True)
class CompileReport:
    """The results of a parallel compile, with its start (Unix seconds) and duration."""

    results: tuple[CompileResult, ...]
    started_unix_s: float
    seconds: float

    @property
    def failed(self) -> tuple[CompileResult, ...]:
        """The graphs without a NEFF."""
        return tuple(result for result in self.results if result.error)

    @property
    def exit_code(self) -> int:
        """The number of failed graphs, at most 255."""
        return min(len(self.failed), MAX_EXIT_CODE)


def report_json(report: CompileReport) -> dict[str, Any]:
    """Return the report with the real tool's keys; `false` is present only if something failed."""
    failed = len(report.failed)
    summary = {"true": len(report.results) - failed, **({"false": failed} if failed else {})}
    return {
        "compilation_summary": summary,
        "compilation_report": {
            f"{result.entry}/{layouts.GRAPH}": {
                "status": not result.error,
                "retry": result.retries,
                "compile_time": round(result.seconds, 6),
            }
            for result in report.results
        },
        "start_time": report.started_unix_s,
        "compilation_time": round(report.seconds, 6),
    }


def format_report(report: CompileReport) -> str:
    """Return the report as the real tool prints it."""
    return json.dumps(report_json(report), indent=4)


def format_totals(report: CompileReport) -> tuple[str, ...]:
    """Return the three lines of totals that scripts parse."""
    failed = len(report.failed)
    return (
        f"Total graphs: {len(report.results)}",
        f"Total successful compilations: {len(report.results) - failed}",
        f"Total failed compilations: {failed}",
    )


def format_grab(paths: Sequence[str]) -> str:
    """Return the line that names the graphs to compile."""
    return f"master grab hlos to compile: {[f'{path}/{layouts.GRAPH}' for path in paths]}"


def format_log_line(tag: str, text: str) -> str:
    """Return a line as the real tools log it."""
    import logging

    from neurontools.cache.logs import WrapperFormatter

    record = logging.LogRecord(tag, logging.INFO, "", 0, text, None, None)
    record.tag = tag
    return WrapperFormatter().format(record)


def now() -> float:
    """Return the time, in Unix seconds, to the millisecond."""
    return round(time.time(), 3)
