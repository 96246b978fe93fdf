"""How much device memory a process wants over its age, and who finds a device full: part of the plan, not of chance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.machine.memory import MemoryCategory, MemoryUse
from neurontools.scenario.curves import Constant
from neurontools.scenario.lives import Life, Lives, lives_of, out_of_memory

if TYPE_CHECKING:
    from neurontools.machine.events import Layout
    from neurontools.scenario.model import ModelPlan, ProcessPlan, Scenario

NRT_RESOURCE = 4
OOM_LINGER_S = 2.0
# Sizes that change all the time change in steps, as allocations do; each step is a message to the daemon.
GRANULE_BYTES = 1 << 20
_STEP_S = 0.25


def loaded_models(plan: ProcessPlan, age_s: float) -> list[tuple[int, ModelPlan]]:
    """Return the models that are loaded at an age, with their place in the plan."""
    return [
        (index, model)
        for index, model in enumerate(plan.models)
        if model.load_s <= age_s and (model.unload_s is None or age_s < model.unload_s)
    ]


def wanted_memory(plan: ProcessPlan, age_s: float) -> MemoryUse:
    """Return the device memory that a process wants on each of its cores."""
    amounts = dict.fromkeys(MemoryCategory, 0)
    for name, curve in plan.work.memory:
        wanted = curve.value(age_s)
        steady = isinstance(curve, Constant)
        amounts[MemoryCategory(name)] = (
            int(wanted) if steady else int(wanted) // GRANULE_BYTES * GRANULE_BYTES
        )
    scratchpad = 0
    for _, model in loaded_models(plan, age_s):
        amounts[MemoryCategory.MODEL_CODE] += model.code_bytes
        amounts[MemoryCategory.CONSTANTS] += model.constant_bytes
        scratchpad = max(scratchpad, model.scratchpad_bytes)
    amounts[MemoryCategory.MODEL_SHARED_SCRATCHPAD] += scratchpad
    return MemoryUse(**{category.value: nbytes for category, nbytes in amounts.items()})


def held_memory(life: Life, time_s: float) -> MemoryUse:
    """Return the device memory that a life holds on each of its cores: what it wants until it finds no more."""
    if life.fails_s is None or time_s < life.fails_s:
        return wanted_memory(life.plan, time_s - life.start_s)
    # One that failed stays as it was just before.
    age_s = life.fails_s - _STEP_S - life.start_s
    return wanted_memory(life.plan, age_s) if age_s >= 0 else MemoryUse()


def plan_lives(scenario: Scenario, layout: Layout) -> Lives:
    """Return the lives of a scenario's processes, those that find their device full cut short."""
    lives = [list(lives_of(index, plan, scenario)) for index, plan in enumerate(scenario.processes)]
    for device in _tight_devices(scenario, layout):
        _fill(lives, device, scenario, layout)
    return Lives(tuple(map(tuple, lives)))


def _tight_devices(scenario: Scenario, layout: Layout) -> list[int]:
    most = [0.0] * layout.device_count
    for plan in scenario.processes:
        each = sum(curve.high for _, curve in plan.work.memory)
        each += sum(model.code_bytes + model.constant_bytes + model.scratchpad_bytes for model in plan.models)
        for core in plan.cores:
            most[layout.device_of(core)] += each
    return [device for device, nbytes in enumerate(most) if nbytes > layout.memory_bytes]


def _fill(lives: list[list[Life]], device: int, scenario: Scenario, layout: Layout) -> None:
    # Step through time; whoever grew most when the device became too small is the one that gets no more.
    tenants = [
        (index, sum(layout.device_of(core) == device for core in plan.cores))
        for index, plan in enumerate(scenario.processes)
        if any(layout.device_of(core) == device for core in plan.cores)
    ]
    before = dict.fromkeys([index for index, _ in tenants], 0)
    for step in range(int(scenario.duration_s / _STEP_S) + 1):
        time_s = step * _STEP_S
        now: dict[int, int] = {}
        living: dict[int, Life] = {}
        for index, cores in tenants:
            life = _living(lives[index], time_s)
            now[index] = 0 if life is None else cores * held_memory(life, time_s).total_bytes
            if life is not None:
                living[index] = life
        while sum(now.values()) > layout.memory_bytes:
            growing = [index for index, life in living.items() if not _has_failed(life, time_s)]
            if not growing:
                break
            victim = max(growing, key=lambda index: (now[index] - before[index], index))
            life = out_of_memory(living[victim], time_s, NRT_RESOURCE, OOM_LINGER_S)
            lives[victim] = [
                *lives[victim][: life.attempt],
                life,
                *lives_of(victim, life.plan, scenario, after=life),
            ]
            living[victim] = life
            now[victim] = min(before[victim], now[victim])
        before = now


def _living(lives: list[Life], time_s: float) -> Life | None:
    return next((life for life in reversed(lives) if life.start_s <= time_s < life.end_s), None)


def _has_failed(life: Life, time_s: float) -> bool:
    return life.fails_s is not None and time_s >= life.fails_s
