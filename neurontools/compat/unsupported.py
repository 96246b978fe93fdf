"""Names of the real packages: which the shims lack and what to use instead, and which have limits."""

from __future__ import annotations

_TORCHVISION = "pip install torchvision"
_PROFILE = "neuron-run --profile DIR"
_STABLEHLO = "neuron-packager info, which shows the graph of a NEFF"
_DEVICE = "torch_xla.device"
_PROFILER = "torch_neuronx.experimental.profiler"
_CUSTOM_OPERATORS = "torch_neuronx.xla_impl.custom_op"

_TRACE = "torch_neuronx.trace"

_ACCEPTED = "accepted, without effect"

UNSUPPORTED: dict[str, dict[str, str]] = {
    "torch_xla": {
        "set_custom_compile_options": "NEURON_CC_FLAGS",
        "save_as_stablehlo": _STABLEHLO,
        "save_torch_model_as_stablehlo": _STABLEHLO,
        "tpu": "torch_xla.runtime",
    },
    "libneuronxla": {
        "supported_clients": "torch_xla.runtime",
    },
    "torch_xla.core.functions": {"SyncBatchNorm": "all_reduce"},
    "torch_xla.core.xla_model": {
        "CoalescingBuckets": "all_gather_bucketized, reduce_scatter_bucketized",
        "DeviceContext": _DEVICE,
        "MemoryInfo": "get_memory_info",
        "get_stablehlo": _STABLEHLO,
        "get_stablehlo_bytecode": _STABLEHLO,
        "recv": "collective_permute",
        "send": "collective_permute",
    },
    "torch_xla.debug.profiler": {
        "get_tracer_marked_step": "torch_xla.debug.metrics.counter_value('MarkStep')",
        "set_tracer_marked_step": "torch_xla.sync",
        "start_server": "start_trace",
        "trace": "start_trace",
        "trace_detached": "start_trace",
    },
    "torch_xla.distributed.parallel_loader": {
        "PerDeviceLoader": "MpDeviceLoader",
        "PerDeviceQueue": "MpDeviceLoader",
    },
    "torch_xla.distributed.spmd": {
        **dict.fromkeys(("HybridMesh", "ShardingType"), "Mesh"),
        **dict.fromkeys(
            (
                *("XLAShard", "XLAShardedTensor", "annotate_custom_sharding", "auto_policy", "shard_as"),
                *("disable_manual_sharding", "enable_manual_sharding", "mark_sharding_with_gradients"),
                *("wrap_if_sharded", "xla_distribute_module", "xla_distribute_tensor"),
            ),
            "mark_sharding",
        ),
        **dict.fromkeys(
            ("XLAPatchedLinear", "apply_backward_optimization_barrier", "xla_patched_nn_linear_forward"),
            "torch.nn.Linear",
        ),
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
    "torch_neuronx.testing.validation": {"logit_validation": "neuron_allclose"},
    "torch_xla.utils.utils": {"Cleaner": "weakref.finalize", "DataWrapper": "a dataclass of tensors"},
    "torch_neuronx": {
        "parallel_compile": "neuron_parallel_compile",
        "profiler": _PROFILER,
    },
    "torchvision": dict.fromkeys(("io", "models", "ops", "utils"), _TORCHVISION),
    "torchvision.transforms": dict.fromkeys(("InterpolationMode", "functional", "v2"), _TORCHVISION),
    "torchvision.datasets": dict.fromkeys(("CIFAR10", "FashionMNIST", "ImageFolder"), _TORCHVISION),
}
"""By module."""

UNSUPPORTED_MODULES: dict[str, str] = {
    "torch_neuronx.parallel_compile": "neuron_parallel_compile",
    "torch_neuronx.distributed": "torch_xla.distributed",
    "libneuronxla.neuron_cc_wrapper": "neuron_parallel_compile",
    "neuronxcc": _TRACE,
    "torch_xla._internal": "torch_xla.runtime",
    "torch_xla.core.xla_builder": "torch_xla.compile",
    "torch_xla.core.xla_op_registry": "torch_neuronx.xla_impl.custom_op",
    "torch_xla.debug.graph_saver": _STABLEHLO,
    "torch_xla.debug.metrics_compare_utils": "torch_xla.debug.metrics",
    "torch_xla.debug.metrics_saver": "torch_xla.debug.metrics.metrics_report",
    "torch_xla.debug.model_comparator": "torch.testing.assert_close",
    "torch_xla.distributed.data_parallel": "torch_xla.launch",
    "torch_xla.distributed.spmd.api": "torch_xla.distributed.spmd",
    "torch_xla.distributed.spmd.xla_sharding": "torch_xla.distributed.spmd",
    "torch_xla.experimental.distributed_checkpoint": "torch_xla.utils.serialization",
    "torch_xla.experimental.gradient_accumulation": "torch_xla.compile",
    "torch_xla.experimental.pjrt": "torch_xla.runtime",
    "torch_xla.experimental.scan": "torch_xla.compile",
    "torch_xla.experimental.scan_layers": "torch_xla.compile",
    "torch_xla.stablehlo": _STABLEHLO,
    "torch_xla.utils.closures": "torch_xla.core.xla_model.add_step_closure",
    "torch_xla.utils.dlpack": "Tensor.cpu",
    "torch_xla.utils.keyd_queue": "queue.Queue",
    "torchvision.io": _TORCHVISION,
    "torchvision.models": _TORCHVISION,
    "torchvision.ops": _TORCHVISION,
    "torchvision.utils": _TORCHVISION,
}
"""Modules and packages that the shims lack; a package stands for its modules too."""

IMPORT_ONLY: dict[str, str] = {
    "libneuronxla.neuron_xla_compile": _TRACE,
    "libneuronxla.neuron_xla_wlo_compile": _TRACE,
    "neuronxcc": _CUSTOM_OPERATORS,
    "neuronxcc.nki": _CUSTOM_OPERATORS,
    "nki": _CUSTOM_OPERATORS,
    "nkilib": _CUSTOM_OPERATORS,
    "torch.classes.neuron": _TRACE,
    "torch_neuronx.experimental.profiler.v2_x": _PROFILE,
    "torch_neuronx.nki": _CUSTOM_OPERATORS,
    "torch_neuronx.nki_jit": _CUSTOM_OPERATORS,
    "torch_neuronx.proto": "neuron-packager info",
    "torch_neuronx.pyhlo": _STABLEHLO,
    "torch_neuronx.xla_impl.base": _CUSTOM_OPERATORS,
    "torch_neuronx.xla_impl.custom_call_targets": _CUSTOM_OPERATORS,
    "torch_neuronx.xla_impl.bucket_trace": "torch_neuronx.bucket_model_trace",
    "torch_neuronx.xla_impl.ops": _CUSTOM_OPERATORS,
    "torch_neuronx.xla_impl.structure": _TRACE,
    "torch_neuronx.xla_impl.trace": _TRACE,
}
"""Modules and names that can be imported, but not used; a module stands for its names and modules too."""

LIMITS: dict[str, dict[str, str]] = {
    "torch_neuronx": {
        "BucketModelConfig": "without `shared_state_buffer`",
        "nki_op": "registers a custom operator of torch; calls of NKI kernels in it are refused",
        "PartitionerConfig": _ACCEPTED,
    },
    "libneuronxla": {"register_hlo_snapshot_callback": _ACCEPTED},
    "torch_xla": {
        "compile": "`custom_compile_options` is refused; `full_graph` raises after the read",
        "sync": "graphs run synchronously, so `wait` changes nothing",
    },
    "torch_xla.core.xla_model": {
        "add_step_closure": "`run_async` closures run synchronously",
        "get_ordinal": "removed in torch_xla 2.7",
        "optimization_barrier_": _ACCEPTED,
        "xrt_world_size": "removed in torch_xla 2.7",
    },
    "torch_xla.distributed.parallel_loader": {
        "MpDeviceLoader": "batches are read when they are needed: prefetch sizes have no effect",
        "ParallelLoader": "one device",
    },
    "torch_xla.distributed.spmd": dict.fromkeys(
        ("Mesh", "ShardingSpec", "get_1d_mesh", "mark_sharding"), "meshes of one device"
    ),
    "torch_xla.runtime": {
        "initialize_cache": "sets `NEURON_COMPILE_CACHE_URL`; `readonly` is refused",
        "set_device_type": "NEURON alone",
        "use_spmd": "without `auto`",
    },
    "torch_xla.utils.checkpoint": {"checkpoint": "torch's implementation"},
    "torch_xla.utils.utils": {
        "for_each_instance_rewrite": "containers keep their types",
    },
}
"""Notes on supported names, by module."""
