"""When each process of a scenario lives: started, crashed, out of memory, started again. All of it known beforehand."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from neurontools.scenario.seeds import unit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.scenario.model import ProcessPlan, Scenario

MAX_LIVES = 10_000


class End(StrEnum):
    """Why a life ends."""

    STOP = "stop"
    CRASH = "crash"
    EXIT = "exit"
    OUT_OF_MEMORY = "out of memory"
    SCENARIO = "end of scenario"


@dataclass(frozen=True, slots=True)
class Life:
    """One life of a process, from `start_s` to `end_s` of scenario time.

    `attempt` counts from 0. From `fails_s` on it does nothing any more: it has failed once with NRT status `status`.
    `process` is its place in `Scenario.processes`.
    """

    process: int
    plan: ProcessPlan
    attempt: int
    start_s: float
    end_s: float
    end: End
    fails_s: float | None = None
    status: int | None = None

    @property
    def seed(self) -> str:
        """What is by chance in this life."""
        return f"{self.plan.seed}/{self.attempt}"


class Lives:
    """The lives of all processes of a scenario."""

    def __init__(self, lives: tuple[tuple[Life, ...], ...]) -> None:
        self.by_process = lives
        self._starts = [[life.start_s for life in of_one] for of_one in lives]

    def at(self, time_s: float) -> list[Life]:
        """Return who lives at a scenario time, in the order of `Scenario.processes`."""
        found = []
        for starts, of_one in zip(self._starts, self.by_process, strict=True):
            index = bisect_right(starts, time_s) - 1
            if index >= 0 and time_s < of_one[index].end_s:
                found.append(of_one[index])
        return found

    def __iter__(self) -> Iterator[Life]:
        for of_one in self.by_process:
            yield from of_one


def lives_of(
    process: int, plan: ProcessPlan, scenario: Scenario, *, after: Life | None = None
) -> Iterator[Life]:
    """Yield the lives of a process as if memory never ended.

    Args:
        process: its place in the scenario.
        plan: the process.
        scenario: whose duration and seed count.
        after: only the lives that follow this one.
    """
    last_s = scenario.duration_s if plan.stop_s is None else min(plan.stop_s, scenario.duration_s)
    life = after
    if life is None:
        if plan.start_s >= last_s:
            return
        life = _life(process, plan, 0, plan.start_s, last_s)
        yield life
    while life.attempt < MAX_LIVES:
        restart = plan.restart
        again = life.end in {End.CRASH, End.EXIT, End.OUT_OF_MEMORY}
        if not again or restart is None or (restart.times is not None and life.attempt >= restart.times):
            return
        delay_s = min(restart.delay_s * restart.backoff ** min(life.attempt, 64), restart.longest_s)
        if life.end_s + delay_s >= last_s:
            return
        life = _life(process, plan, life.attempt + 1, life.end_s + delay_s, last_s)
        yield life


def out_of_memory(life: Life, time_s: float, status: int, linger_s: float) -> Life:
    """Return a life that finds its device full at a time and ends a little later."""
    return replace(
        life,
        end_s=min(life.end_s, time_s + linger_s),
        end=End.OUT_OF_MEMORY,
        fails_s=time_s,
        status=status,
    )


def _life(process: int, plan: ProcessPlan, attempt: int, start_s: float, last_s: float) -> Life:
    stopped = End.SCENARIO if plan.stop_s is None else End.STOP
    ending = plan.ending
    if ending is None:
        return Life(process, plan, attempt, start_s, last_s, stopped)
    chance = unit(plan.seed, "lifetime", str(attempt))
    length_s = ending.shortest_s + (ending.longest_s - ending.shortest_s) * chance
    if start_s + length_s >= last_s:
        return Life(process, plan, attempt, start_s, last_s, stopped)
    if ending.status is None:
        return Life(process, plan, attempt, start_s, start_s + length_s, End.EXIT)
    fails_s = start_s + max(0.0, length_s - ending.linger_s)
    return Life(process, plan, attempt, start_s, start_s + length_s, End.CRASH, fails_s, ending.status)
