"""What is known of a kernel after it has run: modelled time, engines, memory, critical path and warnings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from neurontools.base.garbage import without_collection
from neurontools.base.text import plural, table
from neurontools.base.units import format_binary_size, format_ns, format_percent
from neurontools.compiler.engines.dma import queue_of
from neurontools.compiler.engines.placement import Engine
from neurontools.compiler.engines.schedule import schedule
from neurontools.nki.memory import MemoryRegion
from neurontools.nki.program import modelled_core, program_of, start_us
from neurontools.nki.usage import capacity, placed_lifetimes, usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.compiler.engines.schedule import Scheduled
    from neurontools.nki.context import Core, Launch, Record
    from neurontools.nki.usage import Lifetime

_BOUND_SHARE = 0.5
"""Busy share from which an engine is called the bound; below, instructions wait for each other."""
LATENCY = "latency"
_MOST_LINES = 10


class KernelInstruction(NamedTuple):
    """An instruction in time.

    Args:
        opcode: its name.
        engine: the engine that runs it.
        queue: the DMA queue of a transfer, "" for others.
        start_us: when it starts, from the kernel's first instruction on.
        duration_us: how long the engine is busy.
        file: of the kernel.
        line: of the kernel.
        name: that the kernel gave it.
        nbytes: bytes that it reads from or writes to HBM.
        flops: floating-point operations.
        waits_for: positions of the instructions that it waits for.
    """

    opcode: str
    engine: str
    queue: str
    start_us: float
    duration_us: float
    file: str
    line: int
    name: str
    nbytes: int
    flops: int
    waits_for: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """The use of SBUF or PSUM, in bytes of a partition.

    Args:
        name: SBUF or PSUM.
        peak_bytes: the most in use.
        capacity_bytes: what tensors may use.
        peak_location: line of the instruction at the peak, "" where nothing is used.
        over_time: times in microseconds, each with the bytes in use from it on.
        largest: labels, bytes and declarations of the largest tensors alive at the peak.
    """

    name: str
    peak_bytes: int
    capacity_bytes: int
    peak_location: str
    over_time: tuple[tuple[float, int], ...]
    largest: tuple[tuple[str, int, str], ...]


class LineTime(NamedTuple):
    """The time of a line of the kernel: of its instructions, and on the critical path."""

    file: str
    line: int
    opcode: str
    engine: str
    instructions: int
    busy_us: float
    critical_us: float


@dataclass(frozen=True, slots=True)
class CoreReport:
    """What one core did.

    Args:
        number: of the core.
        time_us: from its first instruction to the end of the last.
        busy_us: by engine how long it works.
        instructions: in program order.
        critical_path: positions of the instructions that decide the end, first to last.
        lines: by line of the kernel, longest on the critical path first.
        memory: SBUF and PSUM.
        bound: the engine that is busy most of the time, "latency" where none is busy for half of it.
    """

    number: int
    time_us: float
    busy_us: dict[str, float]
    instructions: tuple[KernelInstruction, ...]
    critical_path: tuple[int, ...]
    lines: tuple[LineTime, ...]
    memory: tuple[MemoryReport, ...]
    bound: str


@dataclass(frozen=True, slots=True)
class KernelReport:
    """What is known of a launch.

    Args:
        kernel: its name.
        target: the device, such as trn2.
        time_us: modelled time, the start included.
        start_us: time that every kernel takes besides its instructions.
        cores: by physical core.
        warnings: kind, file, line and message, in the order of lines.
    """

    kernel: str
    target: str
    time_us: float
    start_us: float
    cores: tuple[CoreReport, ...]
    warnings: tuple[tuple[str, str, int, str], ...]

    @property
    def slowest(self) -> CoreReport:
        """The core that decides the time."""
        return max(self.cores, key=lambda core: core.time_us)

    @property
    def bound(self) -> str:
        """What bounds the slowest core."""
        return self.slowest.bound


def report(launch: Launch) -> KernelReport:
    """Return what is known of a launch that has ended."""
    cores = tuple(_core_report(core) for core in launch.cores)
    start = start_us(launch.limits)
    warnings = sorted(
        (warning.location.file, warning.location.line, warning.kind, warning.message)
        for warning in launch.warnings
    )
    return KernelReport(
        launch.kernel,
        launch.limits.target,
        start + max(core.time_us for core in cores),
        start,
        cores,
        tuple((kind, file, line, message) for file, line, kind, message in warnings),
    )


def _core_report(core: Core) -> CoreReport:
    made = program_of(core)
    with without_collection():
        scheduled = schedule(made.alone(), modelled_core(core.limits))
    groups = scheduled.groups
    busy: dict[str, float] = {}
    starts = [0.0] * len(core.records)
    seen = -1
    rows = []
    for number, group in enumerate(groups):
        busy[group.engine.value] = busy.get(group.engine.value, 0.0) + group.busy_ns / 1e3
        source = made.facts[number].call
        if source != seen:
            starts[source], seen = group.start_ns / 1e3, source
        rows.append(_row(core.records[source], group))
    path = tuple(scheduled.critical_path())
    alive = placed_lifetimes(core)
    memory = tuple(_memory(core, region, alive, starts) for region in (MemoryRegion.sbuf, MemoryRegion.psum))
    time_us = scheduled.end_ns / 1e3
    engine = max(busy, key=lambda name: busy[name], default=LATENCY)
    bound = engine if busy and busy[engine] >= _BOUND_SHARE * time_us else LATENCY
    return CoreReport(
        core.number, time_us, busy, tuple(rows), path, _lines(rows, groups, path), memory, bound
    )


def _row(record: Record, group: Scheduled) -> KernelInstruction:
    instruction = group.instruction
    nbytes = instruction.read_bytes + instruction.write_bytes
    queue = queue_of(instruction.opcode, instruction.write_bytes).name if group.engine is Engine.DMA else ""
    return KernelInstruction(
        instruction.opcode,
        group.engine.value,
        queue,
        group.start_ns / 1e3,
        group.busy_ns / 1e3,
        record.location.file,
        record.location.line,
        record.name or "",
        nbytes,
        instruction.flops,
        tuple(sorted({earlier for earlier, _ in group.waits})),
    )


def _lines(
    rows: Sequence[KernelInstruction], groups: Sequence[Scheduled], path: Sequence[int]
) -> tuple[LineTime, ...]:
    found: dict[tuple[str, int, str, str], list[float]] = {}
    for row in rows:
        entry = found.setdefault((row.file, row.line, row.opcode, row.engine), [0.0, 0.0, 0.0])
        entry[0] += 1
        entry[1] += row.duration_us
    before = 0.0
    for number in path:
        row = rows[number]
        found[row.file, row.line, row.opcode, row.engine][2] += (groups[number].end_ns - before) / 1e3
        before = groups[number].end_ns
    lines = [LineTime(*key, int(count), busy, critical) for key, (count, busy, critical) in found.items()]
    return tuple(sorted(lines, key=lambda line: (-line.critical_us, -line.busy_us)))


def _memory(
    core: Core, region: MemoryRegion, alive: Sequence[Lifetime], starts: Sequence[float]
) -> MemoryReport:
    used = usage(region, alive)
    largest = tuple(
        (item.allocation.label, item.partition_bytes, str(item.allocation.location))
        for item in used.alive(used.peak)[:_MOST_LINES]
    )
    over_time = [
        (starts[number] if number < len(starts) else starts[-1], nbytes) for number, nbytes in used.levels
    ]
    location = str(core.records[used.peak].location) if used.lifetimes else ""
    name = region.value.upper()
    return MemoryReport(
        name, used.peak_bytes, capacity(region, core.limits), location, tuple(sorted(over_time)), largest
    )


# ---- output


def to_json(found: KernelReport) -> dict[str, Any]:
    """Return a report as a value for JSON: times in nanoseconds, sizes in bytes of a partition."""
    return {
        "kernel": found.kernel,
        "target": found.target,
        "time_ns": _ns(found.time_us),
        "start_ns": _ns(found.start_us),
        "bound": found.bound,
        "cores": [_core_json(core) for core in found.cores],
        "warnings": [
            {"kind": kind, "file": file, "line": line, "message": message}
            for kind, file, line, message in found.warnings
        ],
    }


def _ns(time_us: float) -> float:
    return round(time_us * 1e3, 3)


def _core_json(core: CoreReport) -> dict[str, Any]:
    return {
        "core": core.number,
        "time_ns": _ns(core.time_us),
        "bound": core.bound,
        "busy_ns": {name: _ns(value) for name, value in core.busy_us.items()},
        "memory": [
            {
                "name": memory.name,
                "peak_bytes": memory.peak_bytes,
                "capacity_bytes": memory.capacity_bytes,
                "peak_location": memory.peak_location,
                "over_time": [{"time_ns": _ns(time), "bytes": nbytes} for time, nbytes in memory.over_time],
                "largest": [
                    {"tensor": label, "bytes": nbytes, "declared": place}
                    for label, nbytes, place in memory.largest
                ],
            }
            for memory in core.memory
        ],
        "critical_path": list(core.critical_path),
        "instructions": [
            {
                "opcode": row.opcode,
                "engine": row.engine,
                "queue": row.queue,
                "start_ns": _ns(row.start_us),
                "duration_ns": _ns(row.duration_us),
                "file": row.file,
                "line": row.line,
                "name": row.name,
                "bytes": row.nbytes,
                "flops": row.flops,
                "waits_for": list(row.waits_for),
            }
            for row in core.instructions
        ],
    }


def to_text(found: KernelReport, width: int | None = None) -> str:
    """Return a report for people, of the slowest core."""
    core = found.slowest
    whole, start, own = (format_ns(time * 1e3) for time in (found.time_us, found.start_us, core.time_us))
    cores, instructions = plural(len(found.cores), "core"), plural(len(core.instructions), "instruction")
    parts = [
        f"{found.kernel} on {found.target}, {cores}: {whole} (modelled), bound by {core.bound}",
        f"  start {start}, {instructions} {own}",
    ]
    if len(found.cores) > 1:
        times = ", ".join(f"core {item.number} {format_ns(item.time_us * 1e3)}" for item in found.cores)
        parts.append(f"  {times}; below is core {core.number}")
    engines = [
        (
            name,
            format_ns(busy * 1e3),
            format_percent(busy / core.time_us),
            str(sum(row.engine == name for row in core.instructions)),
        )
        for name, busy in sorted(core.busy_us.items(), key=lambda item: -item[1])
    ]
    parts += ["", table(("engine", "busy", "share", "instructions"), engines, "<>>>", width=width)]
    parts += ["", table(("memory", "peak", "of", "at"), _memory_rows(core), "<>><", width=width)]
    rows = [
        (
            _place(line.file, line.line),
            line.opcode,
            line.engine,
            str(line.instructions),
            format_ns(line.busy_us * 1e3),
            format_ns(line.critical_us * 1e3),
        )
        for line in core.lines[:_MOST_LINES]
    ]
    head = ("line", "instruction", "engine", "count", "busy", "critical path")
    parts += ["", table(head, rows, "<<<>>>", width=width)]
    if len(core.lines) > _MOST_LINES:
        parts.append(f"{len(core.lines) - _MOST_LINES} more lines (--json)")
    parts += ["", *(f"{file}:{line}: warning: {message}" for _, file, line, message in found.warnings)]
    if not found.warnings:
        parts.append("no warnings")
    return "\n".join(parts)


def _memory_rows(core: CoreReport) -> list[tuple[str, ...]]:
    return [
        (
            memory.name,
            f"{format_binary_size(memory.peak_bytes)} a partition",
            format_binary_size(memory.capacity_bytes),
            memory.peak_location.rpartition("/")[2] or "-",
        )
        for memory in core.memory
    ]


def _place(file: str, line: int) -> str:
    return f"{file.rpartition('/')[2]}:{line}"
