"""The metric groups of neuron-monitor by the names of its configuration and its report (system-tools.md section 3)."""

from __future__ import annotations

from enum import StrEnum


class RuntimeGroup(StrEnum):
    """Groups of one process on the machine, in the order of the documents' default configuration."""

    NEURONCORE_COUNTERS = "neuroncore_counters"
    MEMORY_USED = "memory_used"
    VCPU_USAGE = "neuron_runtime_vcpu_usage"
    EXECUTION_STATS = "execution_stats"


class SystemGroup(StrEnum):
    """Groups of the host and its devices."""

    VCPU_USAGE = "vcpu_usage"
    MEMORY_INFO = "memory_info"
    HARDWARE_COUNTERS = "neuron_hw_counters"
