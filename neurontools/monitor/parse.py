"""A line of neuron-monitor, ours or a real one's, back as a report (system-tools.md section 3.3).

What a release does not write reads as absent or zero: missing groups, `system_data` null, `flops` or
`effective_flops` alone. What has the wrong type is an error.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypeVar

from neurontools.monitor.groups import RuntimeGroup, SystemGroup
from neurontools.monitor.reading import DamagedLineError, Reading
from neurontools.monitor.report import (
    CoreCounters,
    CoreMemory,
    DeviceErrors,
    ErrorSummary,
    ExecutionStats,
    ExecutionSummary,
    HardwareErrors,
    HardwareInfo,
    HostMemory,
    InstanceInfo,
    LoadedModel,
    MemoryInfo,
    MemoryUsed,
    MonitorReport,
    NeuroncoreCounters,
    Percentiles,
    PhysicalCores,
    RuntimeEntry,
    RuntimeVcpuUsage,
    Subgraph,
    SubgraphMemory,
    SystemData,
    VcpuShares,
    VcpuUsage,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DamagedLineError", "parse_line"]

T = TypeVar("T")
Record = TypeVar("Record", HostMemory, CoreMemory, SubgraphMemory, ErrorSummary, ExecutionSummary)
_SHOWN = 40


def parse_line(line: str | bytes) -> MonitorReport:
    """Return the report of a line.

    Raises:
        DamagedLineError: it is no JSON, was cut off, or a value in it has the wrong type.
    """
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        why = str(error) if isinstance(error, json.JSONDecodeError) else "it cannot be decoded"
        raise DamagedLineError(f"damaged line: no JSON: {why}, found {line[:_SHOWN]!r}") from None
    root = Reading(value)
    if not isinstance(value, dict):
        raise root.error("expected an object")
    if not value.keys() & {"neuron_runtime_data", "system_data", "instance_info", "neuron_hardware_info"}:
        raise root.error("none of neuron-monitor's keys is there")
    return MonitorReport(
        runtimes=tuple(map(_runtime, root.member("neuron_runtime_data").items())),
        system=_system(root.member("system_data")),
        instance=_instance(root.member("instance_info")),
        hardware=_hardware(root.member("neuron_hardware_info")),
    )


def _runtime(entry: Reading) -> RuntimeEntry:
    report = entry.member("report")
    return RuntimeEntry(
        pid=entry.integer("pid"),
        tag=entry.text("neuron_runtime_tag"),
        address=entry.text("address"),
        error=entry.text("error"),
        neuroncore_counters=_optional(report, RuntimeGroup.NEURONCORE_COUNTERS, _counters),
        memory_used=_optional(report, RuntimeGroup.MEMORY_USED, _memory_used),
        vcpu_usage=_optional(report, RuntimeGroup.VCPU_USAGE, _runtime_vcpu),
        execution_stats=_optional(report, RuntimeGroup.EXECUTION_STATS, _executions),
    )


def _system(system: Reading) -> SystemData:
    return SystemData(
        vcpu_usage=_optional(system, SystemGroup.VCPU_USAGE, _vcpu_usage),
        memory_info=_optional(system, SystemGroup.MEMORY_INFO, _memory_info),
        hardware_errors=_optional(system, SystemGroup.HARDWARE_COUNTERS, _hardware_errors),
    )


def _optional(parent: Reading, key: str, parse: Callable[[Reading], T]) -> T | None:
    child = parent.optional(key)
    return None if child is None else parse(child)


def _by_index(parent: Reading, parse: Callable[[Reading], T], prefix: str = "") -> tuple[tuple[int, T], ...]:
    children = {parent.index(key, prefix): parse(child) for key, child in parent.members()}
    return tuple((index, children[index]) for index in sorted(children))


def _counters(group: Reading) -> NeuroncoreCounters:
    return NeuroncoreCounters(
        group.number("period"), group.text("error"), _by_index(group.member("neuroncores_in_use"), _core)
    )


def _core(core: Reading) -> CoreCounters:
    flops = "flops" if core.optional("effective_flops") is None else "effective_flops"
    physical = None
    for key, member in core.members():
        if key[:1] == "v" and key[-1:] == "d" and key[1:-1].isdigit():
            physical = _physical(key, member)
    return CoreCounters(
        core.number("neuroncore_utilization"),
        core.integer(flops),
        physical,
        core.number("gpsimd_modelled_seconds"),
    )


def _physical(version: str, cores: Reading) -> PhysicalCores:
    prefix = f"nc_{version[:-1]}."
    return PhysicalCores(
        version,
        _by_index(cores, lambda core: core.number("neuroncore_utilization"), prefix),
    )


def _executions(group: Reading) -> ExecutionStats:
    latencies = group.member("latency_stats")
    return ExecutionStats(
        period_s=group.number("period"),
        error=group.text("error"),
        errors=_integers(ErrorSummary, group.member("error_summary")),
        executions=_integers(ExecutionSummary, group.member("execution_summary")),
        total_latency=_optional(latencies, "total_latency", _percentiles),
        device_latency=_optional(latencies, "device_latency", _percentiles),
    )


def _percentiles(value: Reading) -> Percentiles:
    return Percentiles(*(value.number(name) for name in Percentiles.__slots__))


def _memory_used(group: Reading) -> MemoryUsed:
    used = group.member("neuron_runtime_used_bytes")
    breakdown = used.member("usage_breakdown")
    return MemoryUsed(
        period_s=group.number("period"),
        error=group.text("error"),
        host_bytes=used.integer("host"),
        device_bytes=used.integer("neuron_device"),
        host=_integers(HostMemory, breakdown.member("host")),
        cores=_by_index(
            breakdown.member("neuroncore_memory_usage"), lambda core: _integers(CoreMemory, core)
        ),
        models=tuple(map(_model, group.member("loaded_models").items())),
    )


def _model(model: Reading) -> LoadedModel:
    return LoadedModel(
        name=model.text("name"),
        uuid=model.text("uuid"),
        model_id=model.integer("model_id"),
        is_running=model.boolean("is_running"),
        subgraphs=tuple(_subgraph(name, subgraph) for name, subgraph in model.member("subgraphs").members()),
    )


def _subgraph(name: str, subgraph: Reading) -> Subgraph:
    used = subgraph.member("memory_used_bytes")
    breakdown = used.member("usage_breakdown")
    return Subgraph(
        name=name,
        core_index=subgraph.integer("neuroncore_index"),
        device_index=subgraph.integer("neuron_device_index"),
        host_bytes=used.integer("host"),
        device_bytes=used.integer("neuron_device"),
        host=_integers(HostMemory, breakdown.member("host")),
        device=_integers(SubgraphMemory, breakdown.member("neuron_device")),
    )


def _runtime_vcpu(group: Reading) -> RuntimeVcpuUsage:
    usage = group.member("vcpu_usage")
    return RuntimeVcpuUsage(
        group.number("period"), group.text("error"), usage.number("user"), usage.number("system")
    )


def _vcpu_usage(group: Reading) -> VcpuUsage:
    return VcpuUsage(
        period_s=group.number("period"),
        error=group.text("error"),
        average=_shares(group.member("average_usage")),
        vcpus=_by_index(group.member("usage_data"), _shares),
        context_switches=group.integer("context_switch_count"),
    )


def _shares(shares: Reading) -> VcpuShares:
    return VcpuShares(*(shares.number(name) for name in VcpuShares.__slots__))


def _memory_info(group: Reading) -> MemoryInfo:
    return MemoryInfo(
        period_s=group.number("period"),
        error=group.text("error"),
        memory_total_bytes=group.integer("memory_total_bytes"),
        memory_used_bytes=group.integer("memory_used_bytes"),
        swap_total_bytes=group.integer("swap_total_bytes"),
        swap_used_bytes=group.integer("swap_used_bytes"),
    )


def _hardware_errors(group: Reading) -> HardwareErrors:
    return HardwareErrors(
        group.number("period"),
        group.text("error"),
        tuple(
            DeviceErrors(
                device_index=device.integer("neuron_device_index"),
                mem_ecc_corrected=device.integer("mem_ecc_corrected"),
                mem_ecc_uncorrected=device.integer("mem_ecc_uncorrected"),
                sram_ecc_uncorrected=device.integer("sram_ecc_uncorrected"),
                sram_ecc_corrected=device.integer("sram_ecc_corrected"),
            )
            for device in group.member("neuron_devices").items()
        ),
    )


def _instance(info: Reading) -> InstanceInfo:
    return InstanceInfo(*(info.text(name) for name in InstanceInfo.__slots__))


def _hardware(info: Reading) -> HardwareInfo:
    return HardwareInfo(
        neuron_device_type=info.text("neuron_device_type"),
        neuron_device_version=info.text("neuron_device_version"),
        neuroncore_version=info.text("neuroncore_version"),
        neuron_device_count=info.integer("neuron_device_count"),
        neuron_device_memory_size=info.integer("neuron_device_memory_size"),
        neuroncore_per_device_count=info.integer("neuroncore_per_device_count"),
        logical_neuroncore_config=info.integer("logical_neuroncore_config", 1),
        error=info.text("error"),
    )


def _integers(record: type[Record], values: Reading) -> Record:
    return record(*(values.integer(name) for name in record.__slots__))
