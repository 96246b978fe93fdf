"""Lines as a real neuron-monitor writes them."""

from __future__ import annotations

import json

INSTANCE = {
    "instance_name": "",
    "instance_id": "i-0bea223b1afb7e159",
    "instance_type": "trn1.2xlarge",
    "instance_availability_zone": "us-west-2a",
    "instance_availability_zone_id": "usw2-az1",
    "instance_region": "us-west-2",
    "ami_id": "ami-0123456789abcdef0",
    "subnet_id": "subnet-0123456789abcdef0",
    "error": "",
}
HARDWARE = {
    "neuron_device_type": "trainium",
    "neuron_device_version": "v2",
    "neuroncore_version": "v2",
    "neuron_device_count": 1,
    "neuron_device_memory_size": 34359738368,
    "neuroncore_per_device_count": 2,
    "logical_neuroncore_config": 1,
    "error": "",
}
TRN2 = {
    "neuron_device_type": "trainium2",
    "neuron_device_version": "v4",
    "neuroncore_version": "v3d",
    "neuron_device_count": 16,
    "neuron_device_memory_size": 103079215104,
    "neuroncore_per_device_count": 4,
    "logical_neuroncore_config": 2,
    "error": "",
}
MEMORY_INFO = {
    "period": 0.00047258,
    "memory_total_bytes": 33110204416,
    "memory_used_bytes": 1284890624,
    "swap_total_bytes": 0,
    "swap_used_bytes": 0,
    "error": "",
}


def line(*runtimes, system=None, instance=None, hardware=None):
    """A compact line."""
    value = {
        "neuron_runtime_data": list(runtimes),
        "system_data": system,
        "instance_info": INSTANCE if instance is None else {**INSTANCE, **instance},
        "neuron_hardware_info": HARDWARE if hardware is None else hardware,
    }
    return json.dumps(value, separators=(",", ":")) + "\n"


def runtime(pid, cores, period=1.0, tag=None, memory=1 << 20, completed=0, failed=0, latency=None, error=""):
    """A process that uses cores: id -> percent; the others of the device are listed as idle, as real lines do."""
    percentiles = dict.fromkeys(("p0", "p1", "p25", "p50", "p75", "p99", "p100"), latency)
    breakdown = {
        "constants": 0,
        "model_code": 0,
        "model_shared_scratchpad": 0,
        "runtime_memory": 0,
        "tensors": memory,
    }
    report = {
        "execution_stats": {
            "period": period,
            "error_summary": {
                "generic": 0,
                "numerical": 0,
                "transient": 0,
                "model": 0,
                "runtime": 0,
                "hardware": failed,
            },
            "execution_summary": {
                "completed": completed,
                "completed_with_err": failed,
                "completed_with_num_err": 0,
                "timed_out": 0,
                "incorrect_input": 0,
                "failed_to_queue": 0,
            },
            "latency_stats": {"total_latency": percentiles if latency else None, "device_latency": None},
            "error": "",
        },
        "memory_used": {
            "period": period,
            "neuron_runtime_used_bytes": {
                "host": 4096,
                "neuron_device": memory * len(cores),
                "usage_breakdown": {
                    "host": {"application_memory": 4096, "constants": 0, "dma_buffers": 0, "tensors": 0},
                    "neuroncore_memory_usage": {str(core): breakdown for core in cores},
                },
            },
            "loaded_models": [],
            "error": "",
        },
        "neuron_runtime_vcpu_usage": {
            "period": period,
            "vcpu_usage": {"user": 25.0, "system": 5.0},
            "error": "",
        },
        "neuroncore_counters": {
            "period": period,
            "neuroncores_in_use": {
                str(core): {"neuroncore_utilization": percent, "effective_flops": int(percent) * 10**9}
                for core, percent in cores.items()
            },
            "error": error,
        },
    }
    return {
        "pid": pid,
        "address": "",
        "neuron_runtime_tag": tag or str(pid),
        "error": "",
        "report": report,
    }


def hardware_errors(period, **counts):
    device = {"neuron_device_index": 0, "mem_ecc_corrected": 0, "mem_ecc_uncorrected": 0}
    return {
        "neuron_hw_counters": {
            "period": period,
            "neuron_devices": [{**device, "sram_ecc_uncorrected": 0, "sram_ecc_corrected": 0, **counts}],
            "error": "",
        }
    }
