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

INSTEAD = MappingProxyType(
    {
        "NEURONGraph": "torch.compile(backend='neuron')",
        "get_device_capability": "torch.accelerator.get_device_capability",
        "graph": "torch.compile(backend='neuron')",
        "memory_snapshot": "memory_stats",
        "utilization": "neuron-monitor",
    }
)
"""Names that programs for other accelerators use, and the nearest supported one."""
