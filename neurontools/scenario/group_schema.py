"""A group of processes of a scenario file: who they are, where they run, how they live."""

from __future__ import annotations

from string import Formatter
from typing import TYPE_CHECKING

from neurontools.machine.indices import parse_indices
from neurontools.machine.naming import core_ranges
from neurontools.scenario.curve_schema import latencies_of
from neurontools.scenario.model import Ending, GroupPlan, ModelPlan, ProcessPlan, Restart, Work
from neurontools.scenario.problems import suggestion
from neurontools.scenario.quantities import (
    DURATION_FORM,
    SIZE_FORM,
    duration,
    number,
    size,
    status,
    whole,
)
from neurontools.scenario.work_schema import MOST_BYTES, work_of

if TYPE_CHECKING:
    from neurontools.scenario.nodes import Item, Section
    from neurontools.scenario.placement import Placement

MAX_PROCESSES = 5000
_FIELDS = ("group", "rank", "count", "cores", "first_core")
_DEFAULT_VERSION = "2.30.51"
_OF_THE_GROUP = ("description", "count", "cores", "overrides")


class GroupReader:
    """Reads one group. `reserve` comes before `group` and for all groups, so that named cores are known first.

    Args:
        name: the group's name.
        item: its place in the file.
        seed: of this group.
        duration_s: how long the scenario lasts.
    """

    def __init__(self, name: str, item: Item, seed: str, duration_s: float) -> None:
        self._name = name
        self._item = item
        self._seed = seed
        self._duration_s = duration_s
        self._section = item.section("a mapping such as {count: 2, cores: 1, utilization: 80}")
        self._count = self._read_count()
        self._named: tuple[int, ...] = ()
        self._each = 0

    def reserve(self, placement: Placement) -> None:
        """Read which cores the group wants, and keep those that it names."""
        item = self._section.get("cores")
        if item is None:
            self._each = 0
        elif item.is_scalar and item.node.value.isdecimal():
            self._each = item.scalar(whole, "a number of cores", 0)
        elif item.is_scalar and item.node.value == "all":
            self._named = placement.everything()
        else:
            self._named = self._read_cores(item)
            placement.name(item, self._named)
        if item is not None and self._named:
            self._each, rest = divmod(len(self._named), self._count)
            if rest or not self._each:
                item.wrong(f"{len(self._named)} cores can't be shared evenly by {self._count} processes")

    def group(self, placement: Placement) -> GroupPlan:
        """Return the group with its processes."""
        description = self._section.scalar("description", str, "a text", "")
        overrides = self._read_overrides()
        common = self._section.without(*_OF_THE_GROUP)
        usual = _ProcessReader(self._name, common, self._count, self._each > 0)
        processes = []
        for rank in range(self._count):
            changed = overrides.get(rank)
            reader = usual
            if changed is not None:
                reader = _ProcessReader(self._name, common.merged(changed), self._count, self._each > 0)
            process = reader.process(rank, self._cores(rank, placement), f"{self._seed}/{rank}")
            end_s = self._duration_s if process.stop_s is None else process.stop_s
            placement.take(self._item, f"{self._name} {rank}", process.cores, process.start_s, end_s)
            processes.append(process)
        return GroupPlan(self._name, description, tuple(processes), usual.phases)

    def _read_count(self) -> int:
        item = self._section.get("count")
        count = 1 if item is None else item.scalar(whole, "a whole number of at least 1", 1)
        if item is not None and not 1 <= count <= MAX_PROCESSES:
            item.wrong(f"expected 1 to {MAX_PROCESSES} processes, found {count}")
            return 1
        return count

    def _read_cores(self, item: Item) -> tuple[int, ...]:
        if item.is_list:
            return tuple(core.scalar(whole, "the number of a core", 0) for core in item.items("a list"))
        return item.scalar(
            lambda text: tuple(parse_indices(text)),
            "a number of cores for each process, or ids such as 0-15",
            (),
        )

    def _read_overrides(self) -> dict[int, Section]:
        item = self._section.get("overrides")
        if item is None:
            return {}
        overrides = {}
        for name, value in item.section("a mapping of ranks").all().items():
            if not name.isdecimal() or int(name) >= self._count:
                value.wrong(f"no process {name!r} in this group, its ranks are 0-{self._count - 1}")
            else:
                overrides[int(name)] = value.section("a mapping of the keys that differ")
        return overrides

    def _cores(self, rank: int, placement: Placement) -> tuple[int, ...]:
        if self._named:
            return self._named[rank * self._each : (rank + 1) * self._each]
        return placement.any(self._item, self._each) if self._each else ()


class _ProcessReader:
    """Reads what the processes of a group have in common, once, and makes them."""

    def __init__(self, group: str, section: Section, count: int, has_cores: bool) -> None:
        self._group = group
        self._count = count
        self._has_cores = has_cores
        self._tag = self._template(section, "tag", "")
        self._command = self._template(section, "command", f"python {group}.py --rank {{rank}}")
        self._uid = section.scalar("uid", whole, "the number of a user", -1)
        self._version = section.scalar("runtime_version", str, "a version", _DEFAULT_VERSION)
        self._start_s = section.scalar("start", duration, DURATION_FORM, 0.0)
        self._stagger_s = section.scalar("stagger", duration, DURATION_FORM, 0.0)
        stop = section.get("stop")
        self._stop_s = None if stop is None else stop.scalar(duration, DURATION_FORM, 0.0)
        if stop is not None and self._stop_s is not None and self._stop_s <= self._start_s:
            stop.wrong("'stop' is not later than 'start'")
        self._latencies = latencies_of(section.get("latency"))
        work = work_of(section, self._latencies)
        self._work: Work = work.work
        self.phases = work.phases
        self._models = tuple(self._model(item) for item in self._listed(section, "models"))
        self._ending = _ending(section)
        self._restart = _restart(section)
        if not has_cores and (work.needs_cores or self._models):
            section.item.wrong(
                "needs 'cores': utilization, executions, errors, memory and models are those of cores"
            )
        section.finish()

    def process(self, rank: int, cores: tuple[int, ...], seed: str) -> ProcessPlan:
        """Return the process of a rank."""
        words = {
            "group": self._group,
            "rank": rank,
            "count": self._count,
            "cores": core_ranges(cores),
            "first_core": cores[0] if cores else -1,
        }
        return ProcessPlan(
            group=self._group,
            rank=rank,
            tag=self._tag.format(**words),
            command=self._command.format(**words),
            uid=None if self._uid < 0 else self._uid,
            runtime_version=self._version if self._has_cores else "NA",
            uses_device=self._has_cores,
            cores=cores,
            start_s=self._start_s + rank * self._stagger_s,
            stop_s=self._stop_s,
            work=self._work.seeded(seed),
            models=tuple(model.named(model.name.format(**words)) for model in self._models),
            latencies=self._latencies,
            ending=self._ending,
            restart=self._restart,
            seed=seed,
        )

    def _template(self, section: Section, name: str, default: str) -> str:
        item = section.get(name)
        return default if item is None else _template(item)

    def _listed(self, section: Section, name: str) -> list[Item]:
        item = section.get(name)
        return [] if item is None else item.items("a list of models")

    def _model(self, item: Item) -> ModelPlan:
        section = item.section("a mapping such as {name: bert.neff, code: 64 MiB, constants: 1 GiB}")
        named = section.need("name")
        unload = section.get("unload")
        plan = ModelPlan(
            name="" if named is None else _template(named),
            code_bytes=_bytes(section, "code"),
            constant_bytes=_bytes(section, "constants"),
            scratchpad_bytes=_bytes(section, "scratchpad"),
            load_s=section.scalar("load", duration, DURATION_FORM, 0.0),
            unload_s=None if unload is None else unload.scalar(duration, DURATION_FORM, 0.0),
        )
        section.finish()
        return plan


def _bytes(section: Section, name: str) -> int:
    item = section.get(name)
    if item is None:
        return 0
    nbytes = item.scalar(size, SIZE_FORM, 0.0)
    if nbytes > MOST_BYTES:
        item.wrong(f"is {nbytes:g}; the greatest is {MOST_BYTES:g}")
    return int(nbytes)


def _template(item: Item) -> str:
    text = item.scalar(str, "a text", "")
    try:
        fields = [name for _, name, _, _ in Formatter().parse(text) if name is not None]
    except ValueError as error:
        item.wrong(f"bad text: {error}; write {{{{ and }}}} for braces")
        return ""
    for name in fields:
        if name not in _FIELDS:
            item.wrong(f"unknown field {{{name}}}; {suggestion(name, _FIELDS)}")
            return ""
    try:
        text.format(group="", rank=0, count=1, cores="", first_core=0)
    except ValueError as error:
        item.wrong(f"bad text: {error}")
        return ""
    return text


def _ending(section: Section) -> Ending | None:
    lifetime = section.get("lifetime")
    crash = section.get("crash")
    linger_s = section.scalar("linger", duration, DURATION_FORM, 2.0)
    if lifetime is None:
        if crash is not None:
            crash.wrong("needs 'lifetime'")
        return None
    if lifetime.is_scalar:
        shortest_s = longest_s = lifetime.scalar(duration, DURATION_FORM, 1.0)
    else:
        inner = lifetime.section("a duration, or a mapping such as {shortest: 10s, longest: 40s}")
        shortest_s = inner.scalar("shortest", duration, DURATION_FORM, 1.0)
        longest_s = inner.scalar("longest", duration, DURATION_FORM, shortest_s)
        inner.finish()
    if not 0 < shortest_s <= longest_s:
        lifetime.wrong("expected durations longer than 0, the longest not shorter than the shortest")
        return None
    number_of = None if crash is None else crash.scalar(status, "an NRT status such as NRT_EXEC_BAD_INPUT", 1)
    return Ending(shortest_s, longest_s, number_of, linger_s)


def _restart(section: Section) -> Restart | None:
    item = section.get("restart")
    if item is None:
        return None
    inner = item.section("a mapping such as {after: 5s, backoff: 2, longest: 1m, times: 10}")
    times = inner.get("times")
    restart = Restart(
        delay_s=inner.scalar("after", duration, DURATION_FORM, 1.0),
        backoff=inner.scalar("backoff", number, "a number of at least 1", 1.0),
        longest_s=inner.scalar("longest", duration, DURATION_FORM, 3600.0),
        times=None if times is None else times.scalar(whole, "a whole number", 1),
    )
    if restart.delay_s <= 0 or restart.backoff < 1:
        item.wrong("expected a delay longer than 0 and a backoff of at least 1")
    inner.finish()
    return restart
