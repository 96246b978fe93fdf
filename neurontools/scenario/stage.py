"""The machine that a scenario is played on, and the synthetic processes that are on it now."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

from neurontools.errors import DaemonError, NeuronToolsError
from neurontools.machine.faults.kinds import FaultKind
from neurontools.machine.synthetic import (
    SyntheticPlace,
    SyntheticProcess,
    register_synthetic,
    reserve_synthetic,
    unregister_synthetic,
)
from neurontools.scenario.actor import Actor
from neurontools.scenario.events import EventKind, PlayEvent
from neurontools.scenario.lives import End
from neurontools.scenario.state import LifeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.machine.client import Client
    from neurontools.machine.instances.catalogue import InstanceType
    from neurontools.machine.synthetic import Reservation
    from neurontools.scenario.lives import Life
    from neurontools.scenario.model import FaultPlan

# Besides pages: sockets, standard streams, libraries.
_OTHER_DESCRIPTORS = 128
_RATED_DTYPE = "bf16"
# Faults of the machine: how many executions ask whether they are hit.
_ASKS_A_CORE, _ASKS_A_TICK = 8, 64


class Stage:
    """The synthetic processes of one play.

    Args:
        client: of the machine.
        instance: its type.
        lnc: its logical NeuronCore configuration.
        speed: scenario seconds in a second of this computer.
        on_event: told of everything that happens.
    """

    def __init__(
        self,
        client: Client,
        instance: InstanceType,
        lnc: int,
        speed: float,
        on_event: Callable[[PlayEvent], None],
    ) -> None:
        self._client = client
        self._speed = speed
        self._tell = on_event
        self._peak_flops_s = instance.device.core.tensor_flops_s(_RATED_DTYPE) * lnc
        self._actors: dict[tuple[int, int], Actor] = {}
        self._waiting: dict[tuple[int, int], Life] = {}
        self._faults: list[int] = []
        self._turn = 0

    @property
    def living(self) -> int:
        """How many synthetic processes there are."""
        return len(self._actors)

    @property
    def waiting(self) -> int:
        """How many would be there if others did not hold their cores."""
        return len(self._waiting)

    def start(self, lives: Sequence[Life], time_s: float) -> None:
        """Put processes on the machine; one whose cores are not free, or on a lost device, waits for them."""
        wanted = [
            SyntheticProcess(
                life.plan.tag,
                life.plan.command,
                life.plan.uses_device,
                life.plan.cores or None,
                None,
                life.plan.runtime_version,
                life.plan.uid,
            )
            for life in lives
        ]
        known = [actor.pid for actor in self._actors.values()]
        places = register_synthetic(self._client, wanted, known)
        for life, place in zip(lives, places, strict=True):
            if isinstance(place, SyntheticPlace):
                self._enter(life, place, time_s)
            else:
                self._wait(life, place, time_s)

    def start_waiting(self, time_s: float) -> None:
        """Try again for those whose cores were not free."""
        if self._waiting:
            self.start(list(self._waiting.values()), time_s)

    def end(self, lives: Sequence[Life], now_ns: int) -> None:
        """Take processes off the machine at the end of their lives, with the state that they have then."""
        pids = []
        for life in lives:
            self._waiting.pop(_key(life), None)
            actor = self._actors.pop(_key(life), None)
            if actor is not None:
                wanted = actor.show(life.end_s, now_ns, 0)
                if wanted and life.end is End.OUT_OF_MEMORY:
                    self._reserve([actor] * len(wanted), wanted, life.end_s)
                actor.close()
                pids.append(actor.pid)
                self._tell(PlayEvent(life.end_s, EventKind.ENDED, _name(life), actor.pid, str(life.end)))
        if pids:
            unregister_synthetic(self._client, pids)

    def show(self, time_s: float, now_ns: int, tick_ns: int) -> None:
        """Bring every process to a scenario time."""
        actors: list[Actor] = []
        changes: list[Reservation] = []
        for actor in self._actors.values():
            wanted = actor.show(time_s, now_ns, tick_ns)
            if wanted:
                changes += wanted
                actors += [actor] * len(wanted)
        if changes:
            self._reserve(actors, changes, time_s)
        self._strike()

    def inject(self, plan: FaultPlan) -> None:
        """Let something go wrong with the machine."""
        spec = plan.spec
        duration_s, every_s = spec.duration_s, spec.every_s
        try:
            fault = self._client.inject(
                spec.kind,
                device=spec.device,
                core=spec.core,
                to=spec.to,
                tag=spec.tag,
                after_executions=spec.after_executions,
                count=spec.count,
                duration_s=None if duration_s is None else duration_s / self._speed,
                factor=spec.factor,
                ecc=spec.ecc,
                amount=spec.amount,
                every_s=None if every_s is None else every_s / self._speed,
            )
        except DaemonError as error:
            self._tell(PlayEvent(plan.at_s, EventKind.FAULT_REFUSED, "", None, error.message))
            return
        self._faults.append(fault.id)
        self._tell(PlayEvent(plan.at_s, EventKind.FAULT, "", None, f"{spec.kind} on {spec.target()}"))

    def check(self) -> None:
        """Make sure that a daemon is there; a crashed one is started again."""
        self._client.call("describe")

    def clear(self) -> None:
        """Take everything off the machine again, faults included."""
        pids = [actor.pid for actor in self._actors.values()]
        for actor in self._actors.values():
            actor.close()
        self._actors.clear()
        self._waiting.clear()
        if pids:
            unregister_synthetic(self._client, pids)
        for number in self._faults:
            try:
                self._client.clear_faults(number)
            except DaemonError:
                continue  # it is over already
        self._faults.clear()

    def _strike(self) -> None:
        # Nothing but a look into each page as long as no fault is armed.
        aimed_at = [actor for actor in self._actors.values() if actor.armed_faults]
        if not aimed_at:
            return
        first = self._turn % len(aimed_at)
        self._turn += 1
        budget = _ASKS_A_TICK
        for actor in aimed_at[first:] + aimed_at[:first]:
            executions = min(actor.new_executions(), _ASKS_A_CORE)
            for slot, core in enumerate(actor.cores):
                for _ in range(min(executions, budget)):
                    budget -= 1
                    self._ask(actor, slot, core)

    def _ask(self, actor: Actor, slot: int, core: int) -> None:
        try:
            hit = self._client.take_fault(core, pid=actor.pid)
            if hit is not None and hit.kind is FaultKind.HANG:
                self._client.call("release_fault", pid=actor.pid, core=core)  # it gives up by a timeout
        except DaemonError:
            return  # the fault was cleared, or the process is not known any more
        if hit is not None and hit.status:
            actor.fail(slot, hit.status)

    def _enter(self, life: Life, place: SyntheticPlace, time_s: float) -> None:
        flops_s = self._peak_flops_s * life.plan.work.mfu
        self._waiting.pop(_key(life), None)
        self._actors[_key(life)] = Actor(LifeClock(life), place, flops_s, self._speed)
        self._tell(PlayEvent(max(time_s, life.start_s), EventKind.STARTED, _name(life), place.pid))

    def _wait(self, life: Life, why: NeuronToolsError, time_s: float) -> None:
        if _key(life) not in self._waiting:
            self._waiting[_key(life)] = life
            self._tell(PlayEvent(time_s, EventKind.WAITING, _name(life), None, why.message))

    def _reserve(self, actors: list[Actor], changes: list[Reservation], time_s: float) -> None:
        answers = reserve_synthetic(self._client, changes)
        refused: dict[int, tuple[Actor, NeuronToolsError]] = {}
        for actor, error in zip(actors, answers, strict=True):
            if error is not None:
                refused[actor.pid] = (actor, error)
        for actor in {actor.pid: actor for actor in actors}.values():
            if actor.pid not in refused:
                actor.grant()
        back: list[Reservation] = []
        for actor, error in refused.values():
            back += actor.refuse()
            life = actor.life
            self._tell(PlayEvent(time_s, EventKind.NO_MEMORY, _name(life), actor.pid, error.message))
        if back:
            reserve_synthetic(self._client, back)


def make_room(processes: int) -> None:
    """Let this program open so many telemetry pages.

    Raises:
        NeuronToolsError: its limit does not allow it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = processes + _OTHER_DESCRIPTORS
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise NeuronToolsError(
            f"{processes} processes need {needed} open files, {hard} are allowed", "raise it: ulimit -Hn"
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _key(life: Life) -> tuple[int, int]:
    return life.process, life.attempt


def _name(life: Life) -> str:
    again = f" (start {life.attempt + 1})" if life.attempt else ""
    return f"{life.plan.group} {life.plan.rank}{again}"
