"""The layouts that compile caches of this stack have had, told by their names (compile-runtime.md sections 1.3 and 1.8)."""

from __future__ import annotations

import re
from enum import StrEnum

OLDEST_PREFIX = "USER_neuroncc-"
OLDEST_FOLDER = "neuron-compile-cache"
SENTINEL = ".compilation_complete"
NEFF_SUFFIX = ".neff"
NEWER_REGISTRY = "0_REGISTRY"
REGISTRIES = frozenset({NEWER_REGISTRY, "REGISTRY", "INFERENCE", "TRAINING"})
_OLDEST_COMPILER = re.compile(OLDEST_PREFIX + r"[!-~]+")
_OLDEST_MODULE = re.compile(r"MODULE_([0-9a-f]+)")
_SHARD = re.compile(r"[0-9a-f]{2}")
_VLLM = re.compile(r"[0-9a-f]{32}")


class Generation(StrEnum):
    """A layout: the wrapper's of today, the one of 2022, TorchNeuron's sharded NEFFs, vLLM's directories."""

    CURRENT = "current"
    OLDEST = "oldest"
    TORCHNEURON = "torchneuron"
    VLLM = "vllm"


def is_oldest_compiler(name: str) -> bool:
    """Return whether a name in the root is that of a compiler version's directory of 2022."""
    return _OLDEST_COMPILER.fullmatch(name) is not None


def oldest_graph_hash(name: str) -> str:
    """Return the graph hash in the name of an entry of 2022, "" for another name."""
    found = _OLDEST_MODULE.fullmatch(name)
    return found[1] if found else ""


def is_shard(name: str) -> bool:
    """Return whether a name is one of the two levels of directories above TorchNeuron's NEFFs."""
    return _SHARD.fullmatch(name) is not None


def is_vllm_key(name: str) -> bool:
    """Return whether a name is that of an entry of vLLM's compile cache."""
    return _VLLM.fullmatch(name) is not None
