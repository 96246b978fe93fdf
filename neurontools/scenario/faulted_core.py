"""A core of a synthetic process that faults hit: its counters, where they differ from those of the scenario.

An execution that a fault hits does what the runtime of a real program does with it: it fails before it runs, runs and
counts as failed, takes longer, or hangs until the fault is cleared or the execution times out.
"""

from __future__ import annotations

from dataclasses import replace
from math import log2
from typing import TYPE_CHECKING, Protocol

from neurontools.machine.faults.kinds import KINDS, FaultKind
from neurontools.machine.snapshot import LATENCY_BUCKETS, add_counts
from neurontools.runtime.status import NrtStatus

if TYPE_CHECKING:
    from neurontools.machine.faults.params import Hit
    from neurontools.machine.pages.writer import CoreCounters

# How many executions of an update ask for a fault at most; the others follow the scenario.
_MAX_QUERIES = 8
_ASK_EVERY_NS = 500_000_000
# An execution that fails before it runs takes about 0.1 ms.
_FAILED_BUCKET = int(2 * log2(100))


class FaultQueries(Protocol):
    """Questions to the machine about the executions of one process."""

    @property
    def left(self) -> int:
        """How many executions may ask before the next update."""

    def take(self, core: int) -> Hit | None:
        """Return how a fault hits an execution that is about to begin."""

    def holds(self, hit: Hit, core: int) -> bool:
        """Return whether an execution must keep hanging."""

    def release(self, core: int) -> None:
        """Report that an execution no longer hangs."""


class FaultedCore:
    """The counters of one core.

    Args:
        core: its machine-wide id.
        counters: what it has done so far.
        now_ns: the time of `counters`, as CLOCK_MONOTONIC.
        timeout_ns: how long an execution may hang, 0 without a limit.
    """

    def __init__(self, core: int, counters: CoreCounters, now_ns: int, timeout_ns: int) -> None:
        self._core = core
        self._scripted = self._shown = counters
        self._updated_ns = now_ns
        self._timeout_ns = timeout_ns
        self._lasting: Hit | None = None
        self._hanging: Hit | None = None
        self._hangs_since_ns = self._ask_ns = 0
        self._partial_executions = 0.0

    def advance(self, scripted: CoreCounters, queries: FaultQueries | None, now_ns: int) -> CoreCounters:
        """Return the counters after an update.

        Args:
            scripted: what the scenario says.
            queries: None while no fault is armed for the process.
            now_ns: CLOCK_MONOTONIC.
        """
        before, self._scripted = self._scripted, scripted
        elapsed_ns, self._updated_ns = now_ns - self._updated_ns, now_ns
        if self._hanging is not None:
            self._check_hanging(self._hanging, queries, now_ns)
        hits = []
        if self._hanging is None:
            hits = self._take(scripted.executions - before.executions, queries)
        if self._hanging is not None:
            self._shown = replace(self._shown, busy_ns=self._shown.busy_ns + elapsed_ns)
        else:
            self._count(before, scripted, hits, elapsed_ns)
        return self._shown

    def busy_share(self, scripted_share: float) -> float:
        """Return the share of time (0..1) in which the core executes, where the scenario says `scripted_share`."""
        if self._hanging is not None:
            return 1.0
        return min(1.0, scripted_share * _time_factor(self._lasting))

    def _take(self, executions: int, queries: FaultQueries | None) -> list[Hit]:
        """Ask about new executions; return the hits on single ones, and keep a lasting one."""
        if queries is None:
            self._lasting = None
            return []
        hits: list[Hit] = []
        for _ in range(min(executions, _MAX_QUERIES, queries.left)):
            hit = queries.take(self._core)
            self._lasting = hit if hit is not None and hit.lasting else None
            if self._lasting is not None:
                break
            if hit is not None and hit.kind is FaultKind.HANG:
                self._hanging, self._hangs_since_ns = hit, self._updated_ns
                self._ask_ns = self._updated_ns + _ASK_EVERY_NS
                break
            if hit is not None:
                hits.append(hit)
        return hits

    def _check_hanging(self, hit: Hit, queries: FaultQueries | None, now_ns: int) -> None:
        hung_ns = now_ns - self._hangs_since_ns
        if queries is not None and 0 < self._timeout_ns <= hung_ns:
            queries.release(self._core)
            self._add_executions(1, hit.status, _bucket(hung_ns))
            self._hanging = None
        elif queries is None or now_ns >= self._ask_ns:
            self._ask_ns = now_ns + _ASK_EVERY_NS
            if queries is None or not queries.holds(hit, self._core):
                self._add_executions(1, NrtStatus.NRT_SUCCESS, _bucket(hung_ns))
                self._hanging = None

    def _count(self, before: CoreCounters, scripted: CoreCounters, hits: list[Hit], elapsed_ns: int) -> None:
        executions = scripted.executions - before.executions
        others = executions - len(hits)
        # Without a new execution, time goes on for the running one.
        factor = _time_factor(self._lasting)
        if executions:
            factor = (sum(map(_time_factor, hits)) + others * factor) / executions
        running = sum(_runs(hit) for hit in hits) + others * _runs(self._lasting)
        wanted_ns = (scripted.busy_ns - before.busy_ns) * factor
        busy_ns = min(wanted_ns, max(elapsed_ns, 0)) if factor > 1 else wanted_ns
        part = busy_ns / wanted_ns if wanted_ns else 1.0
        self._partial_executions += running * part
        completed = int(self._partial_executions)
        self._partial_executions -= completed
        share = (running / executions if executions else float(_runs(self._lasting))) * part
        # The scenario's own failures are among the executions that no fault hits.
        spared = others / executions * part if executions and self._lasting is None else 0.0
        failures = _new_failures(before, scripted, spared)
        self._shown = replace(
            self._shown,
            busy_ns=self._shown.busy_ns + round(busy_ns),
            flops=self._shown.flops + round((scripted.flops - before.flops) * share),
            executions=self._shown.executions + completed,
            failures=add_counts(self._shown.failures, failures),
            latency_counts=self._with_latencies(before, scripted, completed, factor),
        )
        failed = [*hits, *([self._lasting] * others if self._lasting is not None else [])]
        unfailed = completed - sum(count for _, count in failures)
        for hit in failed:
            if hit.status and _runs(hit):
                if unfailed > 0:  # else it has not ended yet
                    unfailed -= 1
                    ended = add_counts(self._shown.failures, ((hit.status, 1),))
                    self._shown = replace(self._shown, failures=ended)
            elif hit.status:
                self._add_executions(1, hit.status, _FAILED_BUCKET)

    def _with_latencies(
        self, before: CoreCounters, scripted: CoreCounters, completed: int, factor: float
    ) -> tuple[int, ...]:
        latency = list(self._shown.latency_counts)
        new = [now - then for now, then in zip(scripted.latency_counts, before.latency_counts, strict=True)]
        total, seen, placed = sum(new), 0, 0
        shift = round(2 * log2(factor)) if factor > 1 else 0
        for bucket, count in enumerate(new):
            seen += count
            upto = completed * seen // total if total else 0
            latency[min(bucket + shift, LATENCY_BUCKETS - 1)] += upto - placed
            placed = upto
        latency[_FAILED_BUCKET] += completed - placed
        return tuple(latency)

    def _add_executions(self, count: int, status: int, bucket: int) -> None:
        latency = list(self._shown.latency_counts)
        latency[bucket] += count
        self._shown = replace(
            self._shown,
            executions=self._shown.executions + count,
            failures=add_counts(self._shown.failures, ((status, count),) if status else ()),
            latency_counts=tuple(latency),
        )


def _runs(hit: Hit | None) -> bool:
    return hit is None or KINDS[hit.kind].runs


def _time_factor(hit: Hit | None) -> float:
    if hit is not None and hit.kind is FaultKind.SLOW_CORE:
        return hit.factor
    return float(_runs(hit))


def _new_failures(before: CoreCounters, scripted: CoreCounters, share: float) -> tuple[tuple[int, int], ...]:
    earlier = dict(before.failures)
    new = ((status, int((count - earlier.get(status, 0)) * share)) for status, count in scripted.failures)
    return tuple((status, count) for status, count in new if count > 0)


def _bucket(duration_ns: int) -> int:
    return min(LATENCY_BUCKETS - 1, int(2 * log2(max(1.0, duration_ns / 1000))))
