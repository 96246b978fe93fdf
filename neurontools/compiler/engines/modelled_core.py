"""The rates of one logical core and their constants: cycles and bytes become nanoseconds here, and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from neurontools import paths
from neurontools.base.interrupts import InterruptHold
from neurontools.compiler.engines.placement import Engine
from neurontools.compiler.work import item_bytes

if TYPE_CHECKING:
    from neurontools.machine.instances.catalogue import DeviceType


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
    host_step_ns: float


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


_TORCH_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp8_e4m3": "float8_e4m3fn", "fp8": "float8_e5m2"}
_SIXTEEN_BITS = frozenset({"bfloat16", "float16", "int16", "uint16", "bf16", "fp16"})


class ModelledCore:
    """One logical core of a device. Work is spread evenly over its physical cores.

    Args:
        device: whose rates apply.
        lnc: physical cores of the logical core.
        matmul_dtype: what float32 matrix products are cast to, None for no cast.
    """

    def __init__(self, device: DeviceType, lnc: int, matmul_dtype: str | None = None) -> None:
        self.device = device
        self.lnc = lnc
        self.matmul_dtype = matmul_dtype
        self.costs = engine_costs(device.core.name)
        self.has_gpsimd = device.core.gpsimd_processors > 0
        self.cycle_ns = {
            engine: 1e9 / (device.core.engine_clock_hz(engine) * lnc)
            for engine in (Engine.TENSOR, Engine.VECTOR, Engine.SCALAR, Engine.GPSIMD)
        }
        share = lnc / device.physical_cores
        engines_bytes_s = self.costs.dma_engines * self.costs.dma_engine_bytes_ns * 1e9 * lnc
        self.hbm_bytes_s = device.memory_bandwidth_bytes_s * share
        self.dma_bytes_ns = min(engines_bytes_s, self.hbm_bytes_s, device.dma_bandwidth_bytes_s * share) / 1e9
        self.sbuf_bytes = int(device.core.sbuf_bytes * lnc * self.costs.sbuf_usable)
        self.cast_bytes = item_bytes(_TORCH_NAMES.get(matmul_dtype or "", matmul_dtype or ""))
        self._passes: dict[str, float] = {}

    def matmul_type(self, dtype: str) -> str:
        """Return the type that products of a type run in."""
        return self.matmul_dtype if self.matmul_dtype and dtype == "float32" else dtype

    def matmul_passes(self, dtype: str) -> float:
        """Return how often a product of a type goes through the Tensor engine, compared with bf16."""
        found = self._passes.get(dtype)
        if found is None:
            core = self.device.core
            found = core.tensor_flops_s("bf16") / core.tensor_flops_s(self.matmul_type(dtype))
            self._passes[dtype] = found
        return found

    def tensor_scalar_factor(self, dtype: str, *, from_psum: bool) -> float:
        """Return Vector cycles an element of instructions with one tensor."""
        if dtype in _SIXTEEN_BITS and not from_psum:
            return self.costs.tensor_scalar_16bit
        return self.costs.tensor_scalar_32bit

    def tensor_tensor_factor(self, dtype: str, *, from_psum: bool) -> float:
        """Return Vector cycles an element of instructions with two tensors."""
        if from_psum:
            return self.costs.tensor_tensor_psum
        return self.costs.tensor_tensor_16bit if dtype in _SIXTEEN_BITS else self.costs.tensor_tensor

    def activation_factor(self, dtype: str) -> float:
        """Return Scalar cycles an element."""
        return self.costs.activation_16bit if dtype in _SIXTEEN_BITS else 1.0

    def reduce_factor(self, dtype: str) -> float:
        """Return Vector cycles an element of a sum or a maximum."""
        return self.costs.tensor_reduce_16bit if dtype in _SIXTEEN_BITS else 1.0


@cache
def kernel_core(device: DeviceType) -> ModelledCore:
    """Return the physical core of a device that a kernel runs on.

    Instructions of a kernel wait for single instructions, those of an operator for all of its tiles.
    """
    machine = ModelledCore(device, 1)
    machine.costs = replace(machine.costs, semaphore_ns=machine.costs.kernel_semaphore_ns)
    return machine
