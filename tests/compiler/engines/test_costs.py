from __future__ import annotations

import pytest

from neurontools.compiler.engines.dma import transfer_ns
from neurontools.compiler.engines.modelled_core import ModelledCore, engine_costs, read_costs, versions
from neurontools.compiler.engines.placement import Engine
from neurontools.machine.instances.catalogue import instance_type

TRN1 = ModelledCore(instance_type("trn1.2xlarge").device, 1)
TRN2 = ModelledCore(instance_type("trn2.48xlarge").device, 1)


def test_every_constant_has_a_source_or_is_marked_as_ours() -> None:
    for name, row in read_costs().items():
        assert "value" in row, name
        assert row.keys() & {"source", "decision"}, name
        assert set(row) <= {"value", "source", "decision", "disagree", "fitted"}, name
        if isinstance(row["value"], dict):
            assert tuple(row["value"]) == versions() == ("v2", "v3", "v4")


def test_few_constants_are_fitted() -> None:
    fitted = {name for name, row in read_costs().items() if row.get("fitted")}
    assert fitted == {"host_step_ns", "kernel_start_ns", "launch_ns", "operator_pieces"}


@pytest.mark.parametrize(
    ("instance", "version", "is_fallback"),
    [
        ("trn1.2xlarge", "v2", False),
        ("inf2.xlarge", "v2", False),
        ("trn2.48xlarge", "v3", False),
        ("trn3.48xlarge", "v4", False),
        ("inf1.xlarge", "v2", True),
    ],
)
def test_a_core_without_published_constants_uses_labelled_ones(
    instance: str, version: str, is_fallback: bool
) -> None:
    costs = engine_costs(instance_type(instance).device.core.name)
    assert (costs.version, costs.is_fallback) == (version, is_fallback)


@pytest.mark.parametrize(
    ("partition_bytes", "share"),
    [
        (32, 0.012),
        (64, 0.025),
        (128, 0.05),
        (256, 0.103),
        (512, 0.206),
        (1024, 0.422),
        (2048, 0.813),
        (4096, 0.966),
        (8192, 0.983),
        (16384, 0.990),
    ],
)
def test_the_size_curve_is_that_of_the_documents(partition_bytes: int, share: float) -> None:
    nbytes = partition_bytes * TRN1.costs.partitions
    share_of_plateau = nbytes / TRN1.dma_bytes_ns / transfer_ns(TRN1, nbytes, partition_bytes)
    assert share_of_plateau == pytest.approx(share, abs=0.02)


def test_the_bandwidth_of_a_core_is_that_of_its_sixteen_engines() -> None:
    assert TRN1.dma_bytes_ns == 16 * 17
    assert TRN2.dma_bytes_ns == pytest.approx(
        2.9e12 / 8 / 1e9
    )  # HBM gives less than 16 engines of 23 bytes a ns
    assert transfer_ns(TRN1, 1 << 30, 1 << 16) == pytest.approx((1 << 30) / 272, rel=0.01)


def test_a_small_transfer_keeps_an_engine_waiting() -> None:
    assert transfer_ns(TRN1, 4, 4) == pytest.approx(1300 / 16)
    assert transfer_ns(TRN1, 0, 4) == 0


def test_two_physical_cores_halve_a_cycle() -> None:
    both = ModelledCore(instance_type("trn2.48xlarge").device, 2)
    for engine in (Engine.TENSOR, Engine.VECTOR, Engine.SCALAR, Engine.GPSIMD):
        assert both.cycle_ns[engine] == TRN2.cycle_ns[engine] / 2
    assert both.dma_bytes_ns == 2 * TRN2.dma_bytes_ns
    assert both.sbuf_bytes == 2 * TRN2.sbuf_bytes


@pytest.mark.parametrize(
    ("dtype", "passes"),
    [("bfloat16", 1), ("float16", 1), ("float32", 4), ("float8_e5m2", 1), ("unheard_of", 4)],
)
def test_float32_takes_four_passes(dtype: str, passes: float) -> None:
    assert TRN1.matmul_passes(dtype) == passes


def test_casting_to_bf16_takes_one_pass() -> None:
    cast = ModelledCore(instance_type("trn1.2xlarge").device, 1, "bf16")
    assert cast.matmul_passes("float32") == 1
    assert cast.cast_bytes == 2
