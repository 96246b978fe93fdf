"""Names of the real packages that the shims lack, and what to use instead; empty where nothing replaces a name."""

from __future__ import annotations

_TORCHVISION = "pip install torchvision"
_PROFILE = "neuron-run --profile DIR"
_STABLEHLO = "neuron-packager info, which shows the graph of a NEFF"
_DEVICE = "torch_xla.device"

UNSUPPORTED: dict[str, dict[str, str]] = {
    "torch_xla": {
        "set_custom_compile_options": "NEURON_CC_FLAGS",
        "save_as_stablehlo": _STABLEHLO,
        "save_torch_model_as_stablehlo": _STABLEHLO,
        "tpu": "torch_xla.runtime",
    },
    "torch_xla.core.xla_model": {
        "CoalescingBuckets": "all_gather_bucketized, reduce_scatter_bucketized",
        "DeviceContext": _DEVICE,
        "MemoryInfo": "get_memory_info",
        "ToXlaTensorArena": "send_cpu_data_to_device",
        "get_stablehlo": _STABLEHLO,
        "get_stablehlo_bytecode": _STABLEHLO,
        "recv": "collective_permute",
        "send": "collective_permute",
    },
    "torch_xla.debug.profiler": {
        "get_tracer_marked_step": "torch_xla.debug.metrics.counter_value('MarkStep')",
        "set_tracer_marked_step": "torch_xla.sync",
        "start_server": _PROFILE,
        "start_trace": _PROFILE,
        "stop_trace": _PROFILE,
        "trace": _PROFILE,
        "trace_detached": _PROFILE,
    },
    "torch_xla.distributed.parallel_loader": {
        "PerDeviceLoader": "MpDeviceLoader",
        "PerDeviceQueue": "MpDeviceLoader",
    },
    "torch_xla.distributed.xla_backend": {
        "new_xla_process_group": "torch.distributed.new_group",
    },
    "torch_xla.distributed.xla_multiprocessing": {"create_optimized_replica_groups": ""},
    "torch_xla.utils.checkpoint": {
        "CheckpointFunction": "checkpoint",
        "get_device_states": "torch_xla.core.xla_model.get_rng_state",
        "set_device_states": "torch_xla.core.xla_model.set_rng_state",
    },
    "torch_xla.utils.utils": {"Cleaner": "weakref.finalize", "DataWrapper": "a dataclass of tensors"},
    "torch_neuronx": {
        "BucketModelConfig": "trace, once per shape",
        "PartitionerConfig": "trace: all supported operators run on the device",
        "Stream": "torch_xla.sync",
        "analyze": "neuron_parallel_compile --command analyze",
        "bucket_model_trace": "trace, once per shape",
        "parallel_compile": "neuron_parallel_compile",
        "profiling": _PROFILE,
        "profiler": _PROFILE,
        "synchronize": "torch_xla.sync",
    },
    "torchvision": dict.fromkeys(("io", "models", "ops", "utils"), _TORCHVISION),
    "torchvision.transforms": dict.fromkeys(("InterpolationMode", "functional", "v2"), _TORCHVISION),
    "torchvision.datasets": dict.fromkeys(("CIFAR10", "FashionMNIST", "ImageFolder"), _TORCHVISION),
}
"""By module."""

UNSUPPORTED_MODULES: dict[str, str] = {
    "torch_neuronx.parallel_compile": "neuron_parallel_compile",
    "torch_neuronx.profiling": _PROFILE,
    "torch_neuronx.pyhlo": _STABLEHLO,
    "torch_xla._internal": "torch_xla.runtime",
    "torch_xla.core.dynamo_bridge": "torch_xla.compile",
    "torch_xla.core.functions": "torch_xla.core.xla_model",
    "torch_xla.core.xla_builder": "torch_xla.compile",
    "torch_xla.core.xla_op_registry": "torch_neuronx.xla_impl.custom_op",
    "torch_xla.debug.graph_saver": _STABLEHLO,
    "torch_xla.debug.metrics_compare_utils": "torch_xla.debug.metrics",
    "torch_xla.debug.metrics_saver": "torch_xla.debug.metrics.metrics_report",
    "torch_xla.debug.model_comparator": "torch.testing.assert_close",
    "torch_xla.distributed.data_parallel": "torch_xla.launch",
    "torch_xla.experimental": "torch_xla.compile",
    "torch_xla.stablehlo": _STABLEHLO,
    "torch_xla.test": "torch_xla.core.xla_model.master_print",
    "torch_xla.utils.closures": "torch_xla.core.xla_model.add_step_closure",
    "torch_xla.utils.dlpack": "Tensor.cpu",
    "torch_xla.utils.keyd_queue": "queue.Queue",
    "torchvision.io": _TORCHVISION,
    "torchvision.models": _TORCHVISION,
    "torchvision.ops": _TORCHVISION,
    "torchvision.utils": _TORCHVISION,
}
"""Modules and packages that the shims lack; a package stands for its modules too."""
