"""The rates of one logical core: cycles and bytes become nanoseconds here, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from neurontools.compiler.engines.costs import engine_costs
from neurontools.compiler.engines.placement import Engine
from neurontools.compiler.work import item_bytes

if TYPE_CHECKING:
    from neurontools.machine.instances.catalogue import DeviceType

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
