"""Kernels that go wrong: each is an error that says what, where and with which arguments, and the session goes on."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from neurontools.customop.calls import Failure, Outcome
from neurontools.customop.errors import NeuronCustomOpError
from neurontools.customop.marshalling import execute, infer
from neurontools.customop.operation import CustomOperator, log_outcome
from neurontools.customop.torch_operators import Caller

SOURCE = Path(__file__).parent / "kernels" / "faults" / "compute.cpp"
Find = Callable[[str], CustomOperator]


def line_of(mark: str) -> str:
    """Return `file:line` of a mark in the source of the kernels."""
    lines = SOURCE.read_text().splitlines()
    number = next(i for i, line in enumerate(lines, 1) if line.endswith(f"// {mark}"))
    return f"compute.cpp:{number}"


def fail(operation: CustomOperator, which: int, size: int = 8) -> NeuronCustomOpError:
    x = torch.arange(float(size))
    with pytest.raises(NeuronCustomOpError) as caught:
        execute(operation, (x, x.clone(), which))
    return caught.value


CASES = [
    # which, kind, part of the message, mark of the line
    (0, "null", "write through a null pointer (did tcm_malloc fail?", "null"),
    (1, "const", "write to argument 0, which the kernel takes as const Tensor&", "const"),
    (2, "bounds", "access 0 bytes past the end of argument 1 (32 bytes)", "past"),
    (3, "stack", "stack overflow", "recursion"),
    (4, "bounds", "index 8 is out of bounds for dimension 0 of size 8", "index"),
    (5, "bounds", "index -1 is out of bounds for dimension 0 of size 8", "negative"),
    (20, "tcm", "write past the end of a TCM block of 4096 bytes", None),
    (21, "tcm", "tensor_to_tcm of 32 bytes into a TCM block that has 16 bytes left", "tcm-copy"),
    (22, "tcm", "null pointer: did tcm_malloc fail? the pool has 16384 bytes", None),
    (23, "tcm", "tcm_free of a pointer that is not a live TCM block", None),
    (25, "bounds", "tensor_to_tcm of elements [7, 9) of a tensor of 8", None),
    (26, "dtype", "tensor_to_tcm with Int elements on a tensor of dtype Float", None),
    (27, "tcm", "write before the beginning of a TCM block of 4096 bytes", None),
    (29, "coverage", "12 of 32 output bytes were never written", None),
    (40, "stream", "read() beyond the last of 8 elements", "stream-end"),
    (41, "stream", "read() after close()", None),
    (42, "stream", "many read streams or one write stream", None),
    (43, "coherence", "element access while a stream accessor", "coherence"),
    (60, "abort", "abort() called", "abort"),
    (61, "exit", "exit(7) called", "exit"),
    (62, "assert", "assertion `input.numel() == 0' failed", "assert"),
    (65, "illegal", "illegal instruction", None),
    (66, "exit", "_exit(3) called", "direct-exit"),
    (67, "worker", "the worker was killed by SIGKILL", None),
    (68, "exception", "went wrong", "throw"),
    (69, "exception", "an exception that is not a std::exception", None),
    (70, "check", "expected nothing, got 8 elements", "check"),
    (71, "exception", "vector", None),
    (80, "dtype", "accessor with Int elements on a tensor of dtype Float", "dtype"),
    (81, "rank", "accessor of rank 3 on a tensor of 1 dimensions", "rank"),
    (82, "output", "its shape function promised [8]", None),
    (83, "output", "the kernel returned dtype Int, its shape function promised Float", None),
    (84, "undefined", "a tensor that was never given a value", None),
    (85, "dtype", "dtype Double does not exist on the device", None),
    (86, "shape", "the device does not broadcast", None),
    (100, "worker", "the kernel closed the worker's descriptors or executed another program", None),
    (101, "worker", "the worker was killed by SIGBUS", None),
    (103, "worker", "the worker was killed by SIGKILL", None),
]


@pytest.mark.parametrize(("which", "kind", "message", "mark"), CASES, ids=[f"{c[0]}-{c[1]}" for c in CASES])
def test_a_fault_is_reported_and_the_next_call_works(
    operation: Find, which: int, kind: str, message: str, mark: str | None
) -> None:
    broken = operation("faults::fault")
    error = fail(broken, which)
    assert error.op == "faults::fault"
    assert error.kind == kind
    assert message in error.reason
    assert error.arguments == f"8:float32, 8:float32, {which}"
    if mark:
        assert error.location.endswith(line_of(mark)), error.location
    x = torch.rand(5)
    assert torch.equal(execute(operation("faults::copy"), (x,))[0], x)


def test_integer_division_by_zero_is_reported_where_the_processor_traps(operation: Find) -> None:
    if os.uname().machine == "aarch64":  # divides without a trap
        x = torch.arange(8.0)
        assert torch.equal(execute(operation("faults::fault"), (x, x.clone(), 64))[0], x)
        return
    error = fail(operation("faults::fault"), 64)
    assert (error.kind, error.reason) == ("arithmetic", "integer division by zero")
    assert error.location.endswith(line_of("division"))


def test_an_endless_loop_ends_at_the_time_limit_and_names_the_loop(
    operation: Find, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_RT_EXEC_TIMEOUT", "0.3")
    error = fail(operation("faults::fault"), 63)
    assert (error.kind, error.reason) == ("timeout", "no result after 0.3 s")
    assert error.location.endswith(line_of("loop"))
    x = torch.rand(5)
    assert torch.equal(execute(operation("faults::copy"), (x,))[0], x)


@pytest.mark.parametrize(
    ("which", "warning"),
    [
        (24, "1 TCM block (4096 bytes) not freed when the kernel returned"),
        (28, "tensor_to_tcm with a pointer that is not from tcm_malloc"),
        (44, "the values may be stale"),
    ],
)
def test_a_doubtful_kernel_succeeds_with_a_warning(
    operation: Find, caplog: pytest.LogCaptureFixture, which: int, warning: str
) -> None:
    x = torch.arange(8.0)
    with caplog.at_level(logging.WARNING, "neurontools.customop"):
        result, completed = execute(operation("faults::fault"), (x, x.clone(), which))
    assert torch.equal(result, x)
    assert warning in completed.warnings[0]


def test_a_quiet_policy_and_a_fifth_stream_are_fine(operation: Find) -> None:
    x = torch.arange(8.0)
    for which in (45, 46):
        result, completed = execute(operation("faults::fault"), (x, x.clone(), which))
        assert torch.equal(result, x)
        assert completed.warnings == ()


MULTICORE = [
    (0, "output", "must write through get_dst_tensor(); core 0 returned without calling it", 0),
    (1, "multicore", "element accessors work in single-core mode only", 0),
    (2, "multicore", "stream accessors work in single-core mode only", 0),
    (3, "overlap", "cores 0 and 1 both wrote output byte 8", 1),
    (4, "coverage", "4 of 64 output bytes were never written, from element 15 on", 7),
    (5, "tcm", "null pointer", 5),
]


@pytest.mark.parametrize(("which", "kind", "message", "core"), MULTICORE)
def test_faults_of_eight_cores(operation: Find, which: int, kind: str, message: str, core: int) -> None:
    with pytest.raises(NeuronCustomOpError) as caught:
        execute(operation("multicore_faults::fault"), (torch.zeros(16), which))
    assert (caught.value.kind, caught.value.core) == (kind, core)
    assert message in caught.value.reason


def test_eight_cores_write_their_parts(operation: Find) -> None:
    result, _ = execute(operation("multicore_faults::fault"), (torch.zeros(16), 8))
    assert result.tolist() == [float(core) for core in range(8) for _ in range(2)]


def test_an_uneven_share_leaves_elements_unwritten_and_is_reported(operation: Find) -> None:
    with pytest.raises(NeuronCustomOpError, match="4 of 68 output bytes were never written"):
        execute(operation("multicore_faults::fault"), (torch.zeros(17), 8))


SHAPES = [
    (0, "shape", "a shape function must not touch tensor data"),
    (1, "null", "write through a null pointer"),
    (2, "exception", "an exception that is not a std::exception"),
    (3, "dtype", "the shape function returned dtype float64"),
    (4, "shape", "size -2 of dimension 0 is negative"),
]


@pytest.mark.parametrize(("which", "kind", "message"), SHAPES)
def test_a_wrong_shape_function_is_harmless(operation: Find, which: int, kind: str, message: str) -> None:
    broken = operation("faults::bad_shape")
    with pytest.raises(NeuronCustomOpError) as caught:
        infer(broken, (torch.zeros(3), which))
    assert (caught.value.kind, caught.value.core) == (kind, -1)
    assert message in caught.value.reason
    assert infer(broken, (torch.zeros(3), 9)).sizes == (3, 2)


@pytest.mark.parametrize(
    ("tensor", "problem"),
    [
        (torch.zeros(2, dtype=torch.int64), "argument 0 has dtype int64"),
        (torch.zeros(2, dtype=torch.float64), "argument 0 has dtype float64"),
        (torch.zeros(2, dtype=torch.complex64), "argument 0 has dtype number -1"),
        (torch.zeros([1] * 9), "argument 0 has 9 dimensions; the limit is 8"),
        (torch.zeros(1, dtype=torch.int8).expand(1, 1, 1, 1, 65536), "has a dimension of 65536"),
    ],
)
def test_limits_of_the_device_are_kept(operation: Find, tensor: torch.Tensor, problem: str) -> None:
    with pytest.raises(NeuronCustomOpError) as caught:
        infer(operation("faults::copy"), (tensor,))
    assert caught.value.kind == "limit"
    assert problem in caught.value.reason


def test_printed_text_appears_in_the_log_only_when_it_is_asked_for(
    operation: Find, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    x = torch.arange(8.0)
    call = (x, x.clone(), 72)
    execute(operation("faults::fault"), call)
    monkeypatch.setenv("NEURON_RT_GPSIMD_STDOUT_QUEUE_SIZE_BYTES", "64")
    execute(operation("faults::fault"), call)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("NEURON_RT_LOG_LEVEL", "INFO")
    execute(operation("faults::fault"), call)
    printed = capsys.readouterr().err
    assert (
        "INFO   TDRV:pool_stdio_queue_consume_all_entries Printing stdout from GPSIMD:\n8 elements\n"
        in printed
    )


def test_the_newest_printed_text_stays_in_the_queue(
    operation: Find, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEURON_RT_GPSIMD_STDOUT_QUEUE_SIZE_BYTES", "32")
    monkeypatch.setenv("NEURON_RT_LOG_LEVEL", "INFO")
    x = torch.arange(8.0)
    execute(operation("faults::fault"), (x, x.clone(), 73))
    assert capsys.readouterr().err.endswith("GPSIMD:\n 996\nline 997\nline 998\nline 999\n")


@pytest.mark.parametrize("is_prepared", [False, True])
def test_only_core_0_prints(
    is_prepared: bool, operation: Find, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEURON_RT_GPSIMD_STDOUT_QUEUE_SIZE_BYTES", "1024")
    monkeypatch.setenv("NEURON_RT_LOG_LEVEL", "INFO")
    fault = operation("multicore_faults::fault")
    if is_prepared:
        Caller(fault)(torch.zeros(16), 6)
    else:
        execute(fault, (torch.zeros(16), 6))
    assert capsys.readouterr().err.endswith("GPSIMD:\ncore 0\n")


def test_a_timeout_is_logged_in_milliseconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEURON_RT_EXEC_TIMEOUT", "2.5")
    log_outcome("my_ops::slow", Outcome(Failure("timeout", "no result after 2.5 s", fatal=True)))
    assert "inference timeout (2500 ms) on Neuron Device 0" in capsys.readouterr().err


def test_a_fault_logs_as_the_real_runtime_does(operation: Find, capsys: pytest.CaptureFixture[str]) -> None:
    fail(operation("faults::fault"), 60)
    lines = capsys.readouterr().err.splitlines()
    assert "GPSIMD EXCEPTION OCCURRED: ABORT: abort() called" in lines[0]
    assert lines[1].endswith("Inference completed with err: 5")
