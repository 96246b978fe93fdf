"""A report as the line that neuron-monitor writes: compact, with the real order of keys (system-tools.md section 3.3).

Structs keep the documents' order with `period` first and `error` last, as captured lines do; maps (groups, cores,
vCPUs, subgraphs, percentiles) are sorted by their text, so that core 10 comes before core 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.monitor.go_json import number, object_text, quoted, sorted_object
from neurontools.monitor.groups import RuntimeGroup, SystemGroup

if TYPE_CHECKING:
    from collections.abc import Iterable

    from neurontools.monitor.report import (
        CoreCounters,
        CoreMemory,
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
        RuntimeEntry,
        RuntimeVcpuUsage,
        Subgraph,
        SubgraphMemory,
        SystemData,
        VcpuShares,
        VcpuUsage,
    )

_Pairs = list[tuple[str, str]]
# Members of objects by core and by identity of the counters: the processes of a report share those of idle cores.
_CoreTexts = dict[tuple[int, int], str]


def report_line(report: MonitorReport) -> str:
    """Return the line of a report, without its newline."""
    texts: _CoreTexts = {}
    return object_text(
        [
            ("neuron_runtime_data", _array(_runtime(entry, texts) for entry in report.runtimes)),
            ("system_data", _system(report.system)),
            ("instance_info", _instance(report.instance)),
            ("neuron_hardware_info", _hardware(report.hardware)),
        ]
    )


def _runtime(entry: RuntimeEntry, texts: _CoreTexts) -> str:
    groups: _Pairs = []
    if entry.neuroncore_counters is not None:
        groups.append((RuntimeGroup.NEURONCORE_COUNTERS, _counters(entry.neuroncore_counters, texts)))
    if entry.memory_used is not None:
        groups.append((RuntimeGroup.MEMORY_USED, _memory_used(entry.memory_used)))
    if entry.vcpu_usage is not None:
        groups.append((RuntimeGroup.VCPU_USAGE, _runtime_vcpu(entry.vcpu_usage)))
    if entry.execution_stats is not None:
        groups.append((RuntimeGroup.EXECUTION_STATS, _executions(entry.execution_stats)))
    return object_text(
        [
            ("pid", str(entry.pid)),
            ("address", quoted(entry.address)),
            ("neuron_runtime_tag", quoted(entry.tag)),
            ("error", quoted(entry.error)),
            ("report", sorted_object(groups)),
        ]
    )


def _system(system: SystemData) -> str:
    groups: _Pairs = []
    if system.vcpu_usage is not None:
        groups.append((SystemGroup.VCPU_USAGE, _vcpu_usage(system.vcpu_usage)))
    if system.memory_info is not None:
        groups.append((SystemGroup.MEMORY_INFO, _memory_info(system.memory_info)))
    if system.hardware_errors is not None:
        groups.append((SystemGroup.HARDWARE_COUNTERS, _hardware_errors(system.hardware_errors)))
    return sorted_object(groups) if groups else "null"


def _group(period_s: float, error: str, data: _Pairs) -> str:
    return object_text([("period", number(period_s)), *data, ("error", quoted(error))])


def _counters(group: NeuroncoreCounters, texts: _CoreTexts) -> str:
    members = []
    for core, counters in group.cores:
        key = (core, id(counters))
        text = texts.get(key)
        if text is None:
            text = texts[key] = f'"{core}":{_core(counters)}'
        members.append(text)
    members.sort()  # the key comes first in the text
    return _group(group.period_s, group.error, [("neuroncores_in_use", "{" + ",".join(members) + "}")])


def _core(counters: CoreCounters) -> str:
    pairs = [
        ("neuroncore_utilization", number(counters.utilization_percent)),
        ("effective_flops", str(counters.flops)),
        ("flops", str(counters.flops)),
    ]
    # Ours: only where custom operators ran, so other lines are what the real tool writes.
    if counters.gpsimd_s:
        pairs.append(("gpsimd_modelled_seconds", number(counters.gpsimd_s)))
    physical = counters.physical
    if physical is not None:
        prefix = f"nc_{physical.version.rstrip('d')}."
        cores = (
            (f"{prefix}{core}", f'{{"neuroncore_utilization":{number(percent)}}}')
            for core, percent in physical.utilization_percent
        )
        pairs.append((physical.version, sorted_object(cores)))
    return object_text(pairs)


def _executions(group: ExecutionStats) -> str:
    latencies = [
        ("total_latency", _percentiles(group.total_latency)),
        ("device_latency", _percentiles(group.device_latency)),
    ]
    return _group(
        group.period_s,
        group.error,
        [
            ("error_summary", _integers(group.errors)),
            ("execution_summary", _integers(group.executions)),
            ("latency_stats", object_text(latencies)),
        ],
    )


def _percentiles(percentiles: Percentiles | None) -> str:
    if percentiles is None:
        return "null"
    return sorted_object(_numbers(percentiles))


def _memory_used(group: MemoryUsed) -> str:
    cores = sorted_object((str(core), _integers(memory)) for core, memory in group.cores)
    breakdown = [("host", _integers(group.host)), ("neuroncore_memory_usage", cores)]
    used = [
        ("host", str(group.host_bytes)),
        ("neuron_device", str(group.device_bytes)),
        ("usage_breakdown", object_text(breakdown)),
    ]
    return _group(
        group.period_s,
        group.error,
        [
            ("neuron_runtime_used_bytes", object_text(used)),
            ("loaded_models", _array(map(_model, group.models))),
        ],
    )


def _model(model: LoadedModel) -> str:
    subgraphs = sorted_object((subgraph.name, _subgraph(subgraph)) for subgraph in model.subgraphs)
    return object_text(
        [
            ("name", quoted(model.name)),
            ("uuid", quoted(model.uuid)),
            ("model_id", str(model.model_id)),
            ("is_running", "true" if model.is_running else "false"),
            ("subgraphs", subgraphs),
        ]
    )


def _subgraph(subgraph: Subgraph) -> str:
    breakdown = [("host", _integers(subgraph.host)), ("neuron_device", _integers(subgraph.device))]
    used = [
        ("host", str(subgraph.host_bytes)),
        ("neuron_device", str(subgraph.device_bytes)),
        ("usage_breakdown", object_text(breakdown)),
    ]
    return object_text(
        [
            ("memory_used_bytes", object_text(used)),
            ("neuroncore_index", str(subgraph.core_index)),
            ("neuron_device_index", str(subgraph.device_index)),
        ]
    )


def _runtime_vcpu(group: RuntimeVcpuUsage) -> str:
    usage = [("user", number(group.user_percent)), ("system", number(group.system_percent))]
    return _group(group.period_s, group.error, [("vcpu_usage", object_text(usage))])


def _vcpu_usage(group: VcpuUsage) -> str:
    return _group(
        group.period_s,
        group.error,
        [
            ("average_usage", _shares(group.average)),
            ("usage_data", sorted_object((str(vcpu), _shares(shares)) for vcpu, shares in group.vcpus)),
            ("context_switch_count", str(group.context_switches)),
        ],
    )


def _shares(shares: VcpuShares) -> str:
    return object_text(_numbers(shares))


def _memory_info(group: MemoryInfo) -> str:
    return _group(
        group.period_s,
        group.error,
        [
            ("memory_total_bytes", str(group.memory_total_bytes)),
            ("memory_used_bytes", str(group.memory_used_bytes)),
            ("swap_total_bytes", str(group.swap_total_bytes)),
            ("swap_used_bytes", str(group.swap_used_bytes)),
        ],
    )


def _hardware_errors(group: HardwareErrors) -> str:
    devices = _array(
        object_text(
            [
                ("neuron_device_index", str(device.device_index)),
                ("mem_ecc_corrected", str(device.mem_ecc_corrected)),
                ("mem_ecc_uncorrected", str(device.mem_ecc_uncorrected)),
                ("sram_ecc_uncorrected", str(device.sram_ecc_uncorrected)),
                ("sram_ecc_corrected", str(device.sram_ecc_corrected)),
            ]
        )
        for device in group.devices
    )
    return _group(group.period_s, group.error, [("neuron_devices", devices)])


def _instance(info: InstanceInfo) -> str:
    return object_text([(name, quoted(getattr(info, name))) for name in info.__slots__])


def _hardware(info: HardwareInfo) -> str:
    return object_text(
        [
            ("neuron_device_type", quoted(info.neuron_device_type)),
            ("neuron_device_version", quoted(info.neuron_device_version)),
            ("neuroncore_version", quoted(info.neuroncore_version)),
            ("neuron_device_count", str(info.neuron_device_count)),
            ("neuron_device_memory_size", str(info.neuron_device_memory_size)),
            ("neuroncore_per_device_count", str(info.neuroncore_per_device_count)),
            ("logical_neuroncore_config", str(info.logical_neuroncore_config)),
            ("error", quoted(info.error)),
        ]
    )


def _integers(record: HostMemory | CoreMemory | SubgraphMemory | ErrorSummary | ExecutionSummary) -> str:
    return object_text([(name, str(getattr(record, name))) for name in record.__slots__])


def _numbers(record: Percentiles | VcpuShares) -> _Pairs:
    return [(name, number(getattr(record, name))) for name in record.__slots__]


def _array(items: Iterable[str]) -> str:
    return "[" + ",".join(items) + "]"
