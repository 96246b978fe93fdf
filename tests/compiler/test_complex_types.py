"""complex64 compiles in some operators, other complex types in none."""

from __future__ import annotations

import re

import pytest

from neurontools.compiler.graph import Node, View
from neurontools.compiler.limits import type_error
from neurontools.machine.instances.catalogue import instance_type

TRN1 = instance_type("trn1.2xlarge").device


def call(op: str, dtype: str) -> Node:
    view = View(0, dtype, (4,), (1,), 0)
    return Node(op, (view,), (), (view,), source="train.py:7")


@pytest.mark.parametrize(
    "op",
    [
        "add.Tensor",
        "mul_.Tensor",
        "_foreach_mul_.Scalar",
        "abs.default",
        "exp.default",
        "mm.default",
        "cat.default",
    ],
)
def test_complex64_runs_in_the_documented_operations(op: str) -> None:
    assert type_error(call(f"aten.{op}", "complex64"), TRN1) is None


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        ("aten.sum.default", "complex64"),
        ("aten._fft_c2c.default", "complex64"),
        ("aten.index.Tensor", "complex64"),
        ("aten.add.Tensor", "complex128"),
        ("mine.add.default", "complex64"),
    ],
)
def test_other_complex_calls_are_refused_with_the_source_line(op: str, dtype: str) -> None:
    error = type_error(call(op, dtype), TRN1)
    assert error is not None
    assert re.search(rf"NCC_EVRF004.*{dtype} in {op} \(train.py:7\)", error.message)
