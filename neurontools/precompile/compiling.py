"""The second phase: compile what waits in a cache, side by side, and sum up."""

from __future__ import annotations

import os
import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.cache.flags import parse_environment_flags
from neurontools.errors import UsageError
from neurontools.precompile import farm
from neurontools.precompile.farm import FarmOptions, Job
from neurontools.precompile.report import Outcome, now
from neurontools.precompile.work import groups_of, schedule, to_compile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from neurontools.precompile.work import Groups

RETRIES_VARIABLE = "NEURON_PARALLEL_COMPILE_MAX_RETRIES"


@dataclass(frozen=True, slots=True)
class Nodes:
    """The number of a node, and how many share the work by the names of the graphs; one node does all."""

    node: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.node < self.count:
            raise UsageError(
                f"node {self.node} of {self.count} does not exist",
                "--node_id counts from 0 to --world_size - 1",
            )


@dataclass(frozen=True, slots=True)
class Task:
    """What a parallel compile has before it.

    Args:
        root: of the cache.
        groups: its entries by state.
        entries: directories of those to compile, in order.
        known_failures: entries that this program needs and that failed before; they are not tried again.
    """

    root: str
    groups: Groups
    entries: tuple[str, ...]
    known_failures: tuple[str, ...]


def plan(root: str, environ: Mapping[str, str], nodes: Nodes, collected: tuple[str, ...] = ()) -> Task:
    """Return what is to be compiled in a root.

    Args:
        root: of the cache.
        environ: NEURON_CC_FLAGS says whether failures are tried again.
        nodes: which share of the work is ours.
        collected: entries of the trial run.

    Raises:
        UsageError: NEURON_CC_FLAGS cannot be read.
        NotACacheError: the root is no cache.
    """
    groups = groups_of(root)
    retry = parse_environment_flags(environ).retry_failed
    failed = frozenset(entry.path for entry in groups.failed) if not retry else frozenset()
    return Task(
        root=root,
        groups=groups,
        entries=schedule(to_compile(groups, retry_failed=retry), nodes.node, nodes.count),
        known_failures=tuple(entry for entry in collected if entry in failed),
    )


def carry_out(
    tasks: Sequence[Task],
    parallel: int,
    environ: Mapping[str, str],
    progress: Callable[[int, int], None] | None = None,
) -> Outcome:
    """Compile and return what came of it.

    Args:
        tasks: as planned, one for each cache.
        parallel: how many compiles at a time.
        environ: the environment of the compile processes.
        progress: is told how many graphs of how many are done.

    Raises:
        UsageError: the number of retries cannot be read.
    """
    options = FarmOptions(parallel, _retries(environ))
    started, since = now(), time.monotonic()
    variables = farm.environment(environ, f"{os.getpid()}:{int(started)}")
    total = sum(len(task.entries) for task in tasks)
    jobs = []
    for task in tasks:
        with closing(
            farm.compile_all(task.entries, farm.worker_command(task.root), options, variables)
        ) as running:
            for job in running:
                jobs.append(job)
                if progress is not None:
                    progress(len(jobs), total)
    known = [Job(entry, "failed before", 0, 0.0) for task in tasks for entry in task.known_failures]
    return Outcome((*known, *jobs), started, time.monotonic() - since)


def default_parallel() -> int:
    """Return how many compiles at a time are useful here: one per CPU that this process may use."""
    return len(os.sched_getaffinity(0))


def _retries(environ: Mapping[str, str]) -> int:
    text = environ.get(RETRIES_VARIABLE, "") or "0"
    if not text.isdecimal():
        raise UsageError(f"{RETRIES_VARIABLE} is {text!r}, which is no number", "give 0, 1, 2, ...")
    return int(text)
