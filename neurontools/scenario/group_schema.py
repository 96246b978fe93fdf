"""A group of processes in a scenario file: identity, cores, start, end and restart."""

from __future__ import annotations

from dataclasses import replace
from string import Formatter
from typing import TYPE_CHECKING

from neurontools.base.text import did_you_mean
from neurontools.config import types
from neurontools.config.reader import LIST, MismatchError
from neurontools.config.types import DURATION, POSITIVE_DURATION, SIZE, WHOLE, WORDS, Type
from neurontools.machine.machine_names import core_ranges, parse_indices, unknown_index
from neurontools.scenario.model import Ending, GroupPlan, ModelPlan, ProcessPlan, Restart
from neurontools.scenario.work_schema import MAX_BYTES, STATUS, read_latencies, read_work

if TYPE_CHECKING:
    from neurontools.config.reader import Section, Value

MAX_PROCESSES = 5000
_FIELDS = ("group", "rank", "count", "cores", "first_core")
_DEFAULT_VERSION = "2.30.51"
_GROUP_KEYS = ("description", "count", "cores", "overrides")

_COUNT = types.whole(1, MAX_PROCESSES, expected=f"1 to {MAX_PROCESSES} processes")
_CORES = types.list_of(types.whole(expected="the number of a core"), "a list of cores")
_CORE_RANGES: Type[list[int]] = types.scalar(
    "a number of cores for each process, or ids such as 0-15", parse_indices, []
)


class CorePlacement:
    """The cores of a scenario's machine.

    Args:
        core_count: the number of cores; 0: unknown, nothing is checked.
    """

    def __init__(self, core_count: int) -> None:
        self._core_count = core_count
        self._named: set[int] = set()
        self._next = 0
        self._taken: dict[int, list[tuple[float, float, str]]] = {}

    def reserve(self, value: Value, cores: tuple[int, ...]) -> None:
        """Reserve the cores that a group names."""
        beyond = [core for core in cores if core >= self._core_count]
        if beyond and self._core_count:
            value.fail(*unknown_index("core", beyond[0], range(self._core_count)))
        self._named.update(cores)

    def all_cores(self) -> tuple[int, ...]:
        """Return all cores."""
        return tuple(range(self._core_count))

    def allocate(self, value: Value, count: int) -> tuple[int, ...]:
        """Return the next cores that are not reserved; fewer after noting that not enough are left."""
        chosen: list[int] = []
        core = self._next
        while len(chosen) < count and core < self._core_count:
            if core not in self._named:
                chosen.append(core)
            core += 1
        self._next = core
        if len(chosen) < count and self._core_count:
            value.fail(f"the machine's {self._core_count} cores are too few for all processes")
        return tuple(chosen)

    def occupy(
        self, value: Value, process: str, cores: tuple[int, ...], start_s: float, stop_s: float
    ) -> None:
        """Assign cores to a process for a time; note a core that is assigned to another process."""
        for core in cores:
            for begins_s, ends_s, owner in self._taken.setdefault(core, []):
                if start_s < ends_s and begins_s < stop_s:
                    value.fail(f"core {core} belongs to {owner} at that time")
                    return
            self._taken[core].append((start_s, stop_s, process))


class GroupReader:
    """Reader of one group. Call `reserve` of all groups before `group`, so that named cores are known first.

    Args:
        name: the group's name.
        value: the group in the file.
        seed: the group's seed.
        duration_s: the length of the scenario.
    """

    def __init__(self, name: str, value: Value, seed: str, duration_s: float) -> None:
        self._name = name
        self._value = value
        self._seed = seed
        self._duration_s = duration_s
        self._section = value.section("a mapping such as {count: 2, cores: 1, utilization: 80}")
        self._count = self._section.read("count", _COUNT, 1)
        self._named: tuple[int, ...] = ()
        self._cores_per_process = 0

    def reserve(self, placement: CorePlacement) -> None:
        """Read the cores of the group, and reserve those that it names."""
        value = self._section.get("cores")
        if value is None:
            return
        if value.is_scalar and value.text.isdecimal():
            self._cores_per_process = int(value.text)
        elif value.is_scalar and value.text == "all":
            self._named = placement.all_cores()
        else:
            self._named = tuple(value.read(_CORES if value.kind == LIST else _CORE_RANGES, ()))
            placement.reserve(value, self._named)
        if self._named:
            self._cores_per_process, rest = divmod(len(self._named), self._count)
            if rest or not self._cores_per_process:
                value.fail(f"{len(self._named)} cores cannot be divided evenly among {self._count} processes")

    def group(self, placement: CorePlacement) -> GroupPlan:
        """Return the group with its processes."""
        description = self._section.read("description", WORDS, "")
        overrides = self._read_overrides()
        common = self._section.without(*_GROUP_KEYS)
        default = _ProcessReader(self._name, common, self._count, self._cores_per_process > 0)
        processes = []
        for rank in range(self._count):
            changed = overrides.get(rank)
            reader = default
            if changed is not None:
                reader = _ProcessReader(
                    self._name, common.merged(changed), self._count, self._cores_per_process > 0
                )
            process = reader.process(rank, self._cores(rank, placement), f"{self._seed}/{rank}")
            end_s = self._duration_s if process.stop_s is None else process.stop_s
            placement.occupy(self._value, f"{self._name} {rank}", process.cores, process.start_s, end_s)
            processes.append(process)
        return GroupPlan(self._name, description, tuple(processes), default.phases)

    def _read_overrides(self) -> dict[int, Section]:
        overrides = {}
        for name, value in self._section.section("overrides", "a mapping of ranks") or ():
            if not name.isdecimal() or int(name) >= self._count:
                value.fail(f"the group has no process {name!r}; its ranks are 0-{self._count - 1}")
            else:
                overrides[int(name)] = value.section("a mapping of the keys that differ")
        return overrides

    def _cores(self, rank: int, placement: CorePlacement) -> tuple[int, ...]:
        if self._named:
            return self._named[rank * self._cores_per_process : (rank + 1) * self._cores_per_process]
        return placement.allocate(self._value, self._cores_per_process) if self._cores_per_process else ()


class _ProcessReader:
    """Reader of the keys that the processes of a group have in common."""

    def __init__(self, group: str, section: Section, count: int, has_cores: bool) -> None:
        self._count = count
        start_s = section.read("start", DURATION, 0.0)
        self._stagger_s = section.read("stagger", DURATION, 0.0)
        stop_s = section.read("stop", DURATION, None)
        if stop_s is not None and stop_s <= start_s:
            section.fail("stop", "'stop' is not later than 'start'")
        latencies = read_latencies(section.get("latency"))
        work = read_work(section, latencies)
        self.phases = work.phases
        self._plan = ProcessPlan(
            group=group,
            rank=0,
            tag=section.read("tag", _TEMPLATE, ""),
            command=section.read("command", _TEMPLATE, f"python {group}.py --rank {{rank}}"),
            uid=section.read("uid", types.whole(expected="the number of a user"), None),
            runtime_version=section.read("runtime_version", WORDS, _DEFAULT_VERSION),
            uses_device=has_cores,
            has_collectives=section.read("collectives", types.FLAG, False),
            cores=(),
            start_s=start_s,
            stop_s=stop_s,
            work=work.work,
            models=tuple(section.read("models", _MODELS, [])),
            latencies=latencies,
            ending=_read_ending(section),
            restart=section.read("restart", _RESTART, None),
            seed="",
        )
        if not has_cores and (work.needs_cores or self._plan.models):
            section.value.fail(
                "needs 'cores': utilization, executions, errors, memory and models belong to cores"
            )
        section.finish()

    def process(self, rank: int, cores: tuple[int, ...], seed: str) -> ProcessPlan:
        """Return the process of a rank."""
        plan = self._plan
        fields = {
            "group": plan.group,
            "rank": rank,
            "count": self._count,
            "cores": core_ranges(cores),
            "first_core": cores[0] if cores else -1,
        }
        return replace(
            plan,
            rank=rank,
            tag=plan.tag.format(**fields),
            command=plan.command.format(**fields),
            runtime_version=plan.runtime_version if plan.uses_device else "NA",
            cores=cores,
            start_s=plan.start_s + rank * self._stagger_s,
            work=plan.work.seeded(seed),
            models=tuple(replace(model, name=model.name.format(**fields)) for model in plan.models),
            seed=seed,
        )


def _parse_bytes(value: Value) -> int:
    size_bytes = SIZE.parse(value)
    if size_bytes > MAX_BYTES:
        raise MismatchError(f"{size_bytes:g} bytes are too many", f"the maximum is {MAX_BYTES:g}")
    return int(size_bytes)


def _parse_template(text: str) -> str:
    try:
        fields = [name for _, name, _, _ in Formatter().parse(text) if name is not None]
    except ValueError as error:
        raise MismatchError(f"bad text: {error}", "write {{ and }} for braces") from error
    for name in fields:
        if name not in _FIELDS:
            raise MismatchError(f"unknown field {{{name}}}", did_you_mean(name, _FIELDS))
    try:
        text.format(group="", rank=0, count=1, cores="", first_core=0)
    except ValueError as error:
        raise MismatchError(f"bad text: {error}") from error
    return text


_TEMPLATE = types.scalar("a text", _parse_template, "")
_BYTES = Type(SIZE.expected, _parse_bytes, 0)
_MODEL = types.record(
    ModelPlan,
    "a mapping such as {name: bert.neff, code: 64 MiB, constants: 1 GiB}",
    {"name": ("name", _TEMPLATE)},
    {
        "code": ("code_bytes", _BYTES),
        "constants": ("constant_bytes", _BYTES),
        "scratchpad": ("scratchpad_bytes", _BYTES),
        "load": ("load_s", DURATION),
        "unload": ("unload_s", DURATION),
    },
)
_MODELS = types.list_of(_MODEL, "a list of models")
_RESTART = types.record(
    Restart,
    "a mapping such as {after: 5s, backoff: 2, longest: 1m, times: 10}",
    {},
    {
        "after": ("delay_s", POSITIVE_DURATION),
        "backoff": ("backoff", types.number(1)),
        "longest": ("longest_s", DURATION),
        "times": ("times", WHOLE),
    },
)


def _read_ending(section: Section) -> Ending | None:
    lifetime = section.get("lifetime")
    status = section.read("crash", STATUS, None)
    linger_s = section.read("linger", DURATION, 2.0)
    if lifetime is None:
        if status is not None:
            section.fail("crash", "needs 'lifetime'")
        return None
    if lifetime.is_scalar:
        shortest_s = longest_s = lifetime.read(DURATION, 1.0)
    else:
        inner = lifetime.section("a duration, or a mapping such as {shortest: 10s, longest: 40s}")
        shortest_s = inner.read("shortest", DURATION, 1.0)
        longest_s = inner.read("longest", DURATION, shortest_s)
        inner.finish()
    if not 0 < shortest_s <= longest_s:
        lifetime.fail("expected durations longer than 0, 'longest' not shorter than 'shortest'")
        return None
    return Ending(shortest_s, longest_s, status, linger_s)
