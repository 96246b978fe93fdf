"""What instructions and transfers cost on a core version: the constants of `fixtures/engines/costs.yaml`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from neurontools import paths
from neurontools.base.interrupts import InterruptHold


@dataclass(frozen=True, slots=True)
class EngineCosts:
    """Constants of one core version; `fixtures/engines/costs.yaml` explains each and names its document.

    `version` is the core whose constants these are. `is_fallback` is set for a core without published constants, which
    uses those of the nearest version.
    """

    version: str
    is_fallback: bool
    partitions: int
    matmul_moving_columns: int
    matmul_stationary_columns: int
    matmul_init_cycles: float
    matmul_shortest_columns: int
    load_stationary_cycles: float
    row_tiles: int
    psum_columns: int
    psum_banks: int
    transpose_fp32_passes: float
    shortest_cycles: float
    access_cycles: float
    tile_elements: int
    tensor_tensor: float
    tensor_tensor_psum: float
    tensor_tensor_16bit: float
    tensor_scalar: float
    tensor_scalar_16bit: float
    tensor_scalar_32bit: float
    tensor_reduce_16bit: float
    reciprocal_vector: float
    bn_aggr: float
    bn_stats_columns: int
    activation_16bit: float
    activation_reduce_cycles: float
    gpsimd_fixed_cycles: float
    gpsimd_slowdown: float
    scan: float
    scalar_tensor_tensor: float
    scalar_tensor_tensor_16bit: float
    predicated_copy: float
    predicated_copy_psum: float
    memset_16bit: float
    reduce_register_cycles: float
    exponential_vector: float
    dynamic_cycles: float
    fast_stride_bytes: int
    strided: float
    register_cycles: float
    kernel_semaphore_ns: float
    kernel_start_ns: float
    semaphore_ns: float
    dma_engines: int
    dma_engine_bytes_ns: float
    dma_overhead_bytes: float
    dma_smallest_bytes: float
    dma_latency_ns: float
    dma_transpose_share: float
    dma_accumulate_share: float
    dma_transpose_sbuf_share: float
    software_dge_ns: float
    hardware_dge_ns: float
    hardware_dge_engines: int
    didt_ns: float
    didt_share: float
    sbuf_usable: float
    operator_pieces: int
    launch_ns: float


def engine_costs(core: str) -> EngineCosts:
    """Return the constants of a core (`NeuronCore-v3`); those of v2, marked as a fallback, for one without."""
    version = core.rpartition("-")[2]
    return _costs(version) if version in versions() else _costs(versions()[0], is_fallback=True)


def versions() -> tuple[str, ...]:
    """Return the core versions that the document has constants of."""
    return tuple(next(row["value"] for row in _document().values() if isinstance(row["value"], dict)))


def read_costs() -> dict[str, Any]:
    """Return the document as it is stored: by name the value, its source and what it is based on."""
    with InterruptHold():  # its part in C cannot be imported a second time
        import yaml

    with open(f"{paths.fixtures_dir()}/engines/costs.yaml", encoding="utf-8") as file:
        document: dict[str, Any] = yaml.safe_load(file)
    return document


@cache
def _document() -> dict[str, Any]:
    return read_costs()


@cache
def _costs(version: str, *, is_fallback: bool = False) -> EngineCosts:
    values = {name: row["value"] for name, row in _document().items()}
    chosen = {name: value[version] if isinstance(value, dict) else value for name, value in values.items()}
    missing = {item.name for item in fields(EngineCosts)} ^ {"version", "is_fallback", *chosen}
    assert not missing, f"costs.yaml and EngineCosts differ: {sorted(missing)}"
    return EngineCosts(version=version, is_fallback=is_fallback, **chosen)
