"""Names of `torch.neuron` that are others under another name, or missing. Imports no torch: a page is made from it."""

from __future__ import annotations

import dis
from types import FrameType, MappingProxyType

_IMPORT_FROM = dis.opmap["IMPORT_FROM"]

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
        **dict.fromkeys(
            ("CUDAGraph", "NEURONGraph", "graph", "graphs", "make_graphed_callables"),
            "torch.compile(backend='neuron')",
        ),
        **dict.fromkeys(
            ("_dump_snapshot", "_record_memory_history", "_snapshot", "memory_snapshot"),
            "neuron-run --profile DIR, which records allocations with their lines",
        ),
        **dict.fromkeys(("memory_usage", "utilization"), "neuron-monitor"),
        **dict.fromkeys(("comm", "nccl"), "torch.distributed"),
        **dict.fromkeys(("reset_max_memory_allocated", "reset_max_memory_cached"), "reset_peak_memory_stats"),
        "amp": "torch.amp",
        "default_generators": "torch.Generator('neuron')",
        "get_arch_list": "get_device_name",
        "get_device_capability": "torch.accelerator.get_device_capability",
        "ipc_collect": "empty_cache",
        "is_current_stream_capturing": "torch.compiler.is_compiling",
        "list_gpu_processes": "neuron-ls",
        "max_memory_cached": "max_memory_reserved",
        "memory_cached": "memory_reserved",
        "nvtx": "torch.profiler.record_function",
        "profiler": "torch.profiler",
        "streams": "Stream",
    }
)
"""Names that programs for other accelerators use, and the nearest supported one."""


def missing_name_error(module: str, name: str, hint: str, caller: FrameType) -> ImportError | AttributeError:
    """Return the error of a name that a module lacks, for the module's `__getattr__`.

    Args:
        module: the module.
        name: the name.
        hint: what the message ends with.
        caller: the frame that wants the name; `from module import name` would replace the text of an AttributeError.
    """
    if caller.f_code.co_code[caller.f_lasti] == _IMPORT_FROM:
        return ImportError(f"cannot import name {name!r} from {module!r}{hint}", name=module)
    return AttributeError(f"module {module!r} has no attribute {name!r}{hint}", name=name)
