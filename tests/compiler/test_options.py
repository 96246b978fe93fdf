from __future__ import annotations

import pytest

from neurontools.compiler.compile import compile_graph
from neurontools.compiler.neff import parse
from neurontools.compiler.options import CompileError, device_of, flags_for, names_flag, read_flags, target_of
from neurontools.machine.instances.catalogue import instance_type
from tests.compiler.graphs import mlp

TRN1 = instance_type("trn1.2xlarge").device
TRN2 = instance_type("trn2.48xlarge").device


@pytest.mark.parametrize(
    ("name", "target"), [("trn1.32xlarge", "trn1"), ("inf2.xlarge", "inf2"), ("trn2.48xlarge", "trn2")]
)
def test_the_target_is_the_instance_family(name: str, target: str) -> None:
    assert target_of(instance_type(name).device) == target


@pytest.mark.parametrize("flags", [("-lnc", "1"), ("-lnc=1",), ("--lnc=1",), ("--logical-nc-config", "1")])
def test_the_logical_core_size_has_several_spellings(flags: tuple[str, ...]) -> None:
    assert read_flags(flags, TRN2).lnc == 1
    assert names_flag(flags, "--logical-nc-config")


@pytest.mark.parametrize("size", [("-lnc", "2"), ("-lnc=2",), ("--lnc=2",), ("--logical-nc-config", "2")])
def test_flags_for_another_device_name_that_and_its_core_size(size: tuple[str, ...]) -> None:
    flags = flags_for(TRN1, 1, ("--target=trn2", *size, "--auto-cast=all"))
    assert device_of(flags) == TRN1
    assert (read_flags(flags, TRN1).lnc, read_flags(flags, TRN1).auto_cast) == (1, "all")


def test_without_flags_the_device_decides() -> None:
    assert (read_flags((), TRN1).lnc, read_flags((), TRN2).lnc) == (1, 2)
    assert read_flags((), TRN1).matmul_dtype is None


def test_casting_is_off_by_default_and_bf16_when_on() -> None:
    assert read_flags(("--auto-cast-type=fp16",), TRN1).matmul_dtype is None
    assert read_flags(("--auto-cast=matmult",), TRN1).matmul_dtype == "bf16"
    assert read_flags(("--auto-cast", "all", "--auto-cast-type", "tf32"), TRN1).matmul_dtype == "tf32"


@pytest.mark.parametrize(
    "flags",
    [
        ("--target=gpu",),
        ("--optlevel=9",),
        ("-O7",),
        ("--auto-cast",),
        ("--model-type=",),
        ("-lnc=2",),
        ("--logical-nc-config=3",),
    ],
)
def test_a_wrong_value_is_the_documented_error(flags: tuple[str, ...]) -> None:
    with pytest.raises(CompileError, match=r"\[NCC_EARG001\]"):
        read_flags(flags, TRN1)


def test_flags_that_we_do_not_know_are_kept_and_ignored() -> None:
    flags = ("--target=trn1", "-O1", "--tensorizer-options=--x --y", "positional", "--verbose=35")
    assert parse(compile_graph(mlp(), TRN1, flags, "mlp")).flags == flags


def test_complex_numbers_are_refused_with_the_source_line() -> None:
    with pytest.raises(CompileError, match=r"\[NCC_EVRF004\].*complex128.*train\.py:7"):
        compile_graph(mlp(dtype="complex128"), TRN1, (), "mlp")
