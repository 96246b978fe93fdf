"""Names of `torch.neuron` that are others under another name, or missing. Imports no torch: a page is made from it."""

from __future__ import annotations

from types import MappingProxyType

ALIASES = MappingProxyType(
    {
        "StreamContext": "stream",
        "max_memory_reserved": "max_memory_allocated",
        "memory_reserved": "memory_allocated",
    }
)
"""Streams change nothing, and the device reserves no more memory than tensors take."""

SUBMODULES = MappingProxyType(
    {
        "memory": (
            "empty_cache",
            "max_memory_allocated",
            "max_memory_reserved",
            "mem_get_info",
            "memory_allocated",
            "memory_reserved",
            "memory_stats",
            "memory_stats_as_nested_dict",
            "memory_summary",
            "reset_accumulated_memory_stats",
            "reset_peak_memory_stats",
        ),
        "random": (
            "get_rng_state",
            "get_rng_state_all",
            "initial_seed",
            "manual_seed",
            "manual_seed_all",
            "seed",
            "seed_all",
            "set_rng_state",
            "set_rng_state_all",
        ),
    }
)
"""Modules of `torch.neuron`, with the functions that they offer a second time."""

INSTEAD = MappingProxyType(
    {
        "NEURONGraph": "torch.compile(backend='neuron')",
        "amp": "torch.amp",
        "default_generators": "torch.Generator('neuron')",
        "get_device_capability": "torch.accelerator.get_device_capability",
        "graph": "torch.compile(backend='neuron')",
        "make_graphed_callables": "torch.compile(backend='neuron')",
        "memory_snapshot": "memory_stats",
        "nvtx": "torch.profiler.record_function",
        "utilization": "neuron-monitor",
    }
)
"""Names that programs for other accelerators use, and the nearest supported one."""
