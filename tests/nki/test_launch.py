"""Calls of kernels: arguments, results, cores, warnings, and Python in kernels."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from neurontools.compat import nki
from neurontools.compat.nki import isa as nisa
from neurontools.compat.nki import language as nl
from neurontools.nki.errors import KernelError, KernelUsageError
from neurontools.nki.launch import Kernel, get_nc_version, run, simulate_kernel

if TYPE_CHECKING:
    from collections.abc import Callable

A = np.arange(8, dtype=np.float32).reshape(2, 4)


def _double(a: Any) -> Any:
    tile = nl.load(a)
    out = nl.ndarray(a.shape, a.dtype, nl.shared_hbm)
    nl.store(out, nl.add(tile, tile))
    return out


double = nki.jit(_double)


def test_kernels_run_on_arrays() -> None:
    np.testing.assert_array_equal(double(A), 2 * A)
    np.testing.assert_array_equal(nki.simulate(double)(A), 2 * A)
    np.testing.assert_array_equal(nki.simulate(_double)(A), 2 * A)
    np.testing.assert_array_equal(simulate_kernel(_double, (A,)), 2 * A)
    np.testing.assert_array_equal(nki.jit(mode="ignored")(_double)(A), 2 * A)


def test_results_have_the_structure_that_the_kernel_returns() -> None:
    class Pair(NamedTuple):
        first: Any
        second: Any

    @nki.jit
    def kernel(a: Any) -> Any:
        return {"one": _double(a), "pair": Pair(_double(a), 3)}

    result = kernel(A)
    np.testing.assert_array_equal(result["one"], 2 * A)
    np.testing.assert_array_equal(result["pair"].first, 2 * A)
    assert result["pair"].second == 3


@pytest.mark.parametrize("layout", [np.ascontiguousarray, np.asfortranarray])
def test_arguments_that_a_kernel_writes_change_in_place(layout: Callable[[np.ndarray], np.ndarray]) -> None:
    @nki.jit
    def kernel(a: Any) -> None:
        nisa.dma_copy(a, nl.add(nl.load(a), 1.0))

    array = layout(A.copy())
    kernel(array)
    np.testing.assert_array_equal(array, A + 1)


def test_arguments_may_be_nested() -> None:
    @nki.jit
    def kernel(inputs: Any, options: Any) -> Any:
        out = nl.ndarray(inputs[0].shape, nl.float32, nl.shared_hbm)
        nl.store(out, nl.multiply(nl.add(nl.load(inputs[0]), nl.load(options["b"])), options["factor"]))
        return out

    np.testing.assert_array_equal(kernel([A], {"b": A, "factor": 3.0}), 6 * A)


def test_torch_tensors_come_back_as_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.int32):
        tensor = torch.arange(8).reshape(2, 4).to(dtype)
        result = double(tensor)
        assert result.dtype == dtype
        assert torch.equal(result, tensor * 2)


@pytest.mark.parametrize(
    ("target_name", "generation"), [("trn1", "gen2"), ("inf2", "gen2"), ("trn2", "gen3"), ("gen4", "gen4")]
)
def test_the_target_decides_the_generation(
    target: Callable[[str], None], target_name: str, generation: str
) -> None:
    target(target_name)
    assert get_nc_version() is nisa.nc_version[generation]
    assert get_nc_version() >= nisa.nc_version.gen2


def test_without_a_target_it_is_trn3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NEURON_PLATFORM_TARGET_OVERRIDE")
    assert get_nc_version() is nisa.nc_version.gen4


def test_kernels_call_kernels() -> None:
    @nki.jit
    def kernel(a: Any) -> Any:
        return double(a)

    np.testing.assert_array_equal(kernel(A), 2 * A)


@pytest.mark.parametrize(
    ("buffer", "message"), [(nl.sbuf, "returns out in sbuf"), (nl.private_hbm, "returns out in private_hbm")]
)
def test_results_must_be_in_shared_hbm(buffer: Any, message: str) -> None:
    @nki.jit
    def kernel(a: Any) -> Any:
        out = nl.ndarray(a.shape, a.dtype, buffer)
        nisa.dma_copy(out, a)
        return out

    with pytest.raises(KernelError, match=message):
        kernel(A)


def test_results_must_be_written() -> None:
    @nki.jit
    def kernel(a: Any) -> Any:
        out = nl.ndarray(a.shape, a.dtype, nl.shared_hbm)
        return out  # noqa: RET504  the name is part of the error

    with pytest.raises(KernelError, match="result out was never written"):
        kernel(A)


def test_elements_that_were_never_written_are_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    @nki.jit
    def kernel(a: Any) -> Any:
        half = nl.ndarray((2, 8), nl.float32)
        nisa.dma_copy(half[:, 0:4], a)
        whole = nl.ndarray((2, 8), nl.float32)
        nisa.tensor_copy(whole, half)
        out = nl.ndarray((2, 8), nl.float32, nl.shared_hbm)
        nisa.dma_copy(out, whole)
        return out

    kernel(A)
    error = capsys.readouterr().err
    assert error.count("warning:") == 1
    assert "src: 8 of 16 elements were never written (half declared at" in error


def test_reading_what_was_written_is_no_warning(capsys: pytest.CaptureFixture[str]) -> None:
    @nki.jit
    def kernel(a: Any) -> Any:
        tile = nl.ndarray((2, 8), nl.float32)
        nisa.dma_copy(tile[:, 0:4], a)
        nisa.tensor_copy(tile[:, 4:8], tile[:, 0:4])
        out = nl.ndarray((2, 8), nl.float32, nl.shared_hbm)
        nisa.dma_copy(out, tile)
        return out

    kernel(A)
    assert capsys.readouterr().err == ""


def test_two_cores_share_hbm_and_wait_for_each_other() -> None:
    @nki.jit
    def kernel(a: Any) -> Any:
        core = nl.program_id(0)
        shared = nl.ndarray(a.shape, a.dtype, nl.shared_hbm)
        out = nl.ndarray(a.shape, a.dtype, nl.shared_hbm)
        nisa.dma_copy(shared[core : core + 1], nl.load(a[core : core + 1]))
        nisa.core_barrier(shared, (0, 1))
        nisa.dma_copy(out[core : core + 1], nl.load(shared[1 - core : 2 - core]))
        return out

    np.testing.assert_array_equal(kernel[2](A), A[::-1])


@pytest.mark.parametrize(
    "number", [2, 2.0, np.float16(2), np.int8(2), ml_dtypes.bfloat16(2), ml_dtypes.float8_e5m2(2)]
)
def test_constants_are_numbers_of_any_type(number: Any) -> None:
    @nki.jit
    def kernel(a: Any) -> Any:
        filled, out = nl.ndarray(a.shape, a.dtype), nl.ndarray(a.shape, a.dtype, nl.shared_hbm)
        nisa.memset(filled, number)
        nisa.tensor_scalar(filled, filled, nl.add, number)
        nisa.dma_copy(out, filled)
        return out

    np.testing.assert_array_equal(kernel(A), np.full_like(A, 4))


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_a_core_may_have_an_empty_share(rows: int) -> None:
    @nki.jit
    def kernel(a: Any) -> Any:
        core, share = nl.program_id(0), a.shape[0] // 2
        mine = nl.ds(core * share, share if core == 0 else a.shape[0] - share)
        out = nl.ndarray(a.shape, a.dtype, nl.shared_hbm)
        source, target = a[mine], out[mine]
        for row in range(source.shape[0]):
            nisa.dma_copy(target[row : row + 1], nl.load(source[row : row + 1]))
        return out

    given = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
    np.testing.assert_array_equal(kernel[2](given), given)


def test_a_barrier_for_a_tensor_on_the_chip_waits_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    @nki.jit
    def kernel(a: Any) -> Any:
        core = nl.program_id(0)
        out = nl.ndarray(a.shape, a.dtype, nl.shared_hbm)
        mine = nl.load(a[core : core + 1])
        nisa.core_barrier(mine, (0, 1))
        nisa.dma_copy(out[core : core + 1], mine)
        return out

    np.testing.assert_array_equal(kernel[2](A), A)
    assert "core_barrier: mine is on the chip, which other cores cannot read" in capsys.readouterr().err


def test_cores_exchange_tiles() -> None:
    @nki.jit
    def kernel(a: Any) -> Any:
        core = nl.program_id(0)
        assert nl.num_programs() == 2
        mine, theirs = nl.load(a[core : core + 1]), nl.ndarray((1, 4), nl.float32)
        nisa.sendrecv(mine, theirs, 1 - core, 1 - core, pipe_id=0)
        out = nl.ndarray(a.shape, a.dtype, nl.shared_hbm)
        nisa.dma_copy(out[core : core + 1], theirs)
        return out

    np.testing.assert_array_equal(kernel[2](A), A[::-1])


def test_a_barrier_that_one_core_does_not_reach_is_an_error_with_both_places() -> None:
    before = threading.active_count()

    @nki.jit
    def kernel(a: Any) -> None:
        shared = nl.ndarray(a.shape, a.dtype, nl.shared_hbm)
        if nl.program_id(0) == 0:
            nisa.core_barrier(shared, (0, 1))

    with pytest.raises(KernelError, match="core_barrier: the cores wait for each other for ever") as caught:
        kernel[2](A)
    assert "note: core 0 waits in core_barrier at" in str(caught.value)
    assert "note: core 1 has ended" in str(caught.value)
    assert threading.active_count() == before


def test_an_error_of_one_core_ends_the_other() -> None:
    before = threading.active_count()

    @nki.jit
    def kernel(a: Any) -> None:
        shared = nl.ndarray(a.shape, a.dtype, nl.shared_hbm)
        if nl.program_id(0) == 1:
            raise ValueError("of the user")
        nisa.core_barrier(shared, (0, 1))

    with pytest.raises(ValueError, match="of the user"):
        kernel[2](A)
    assert threading.active_count() == before


def test_cores_that_declare_different_shared_tensors_are_an_error() -> None:
    @nki.jit
    def kernel() -> None:
        nl.ndarray((2, 2 + nl.program_id(0)), nl.float32, nl.shared_hbm)

    with pytest.raises(KernelError, match="the cores declare different tensors in shared HBM"):
        kernel[2]()


class Plain(nl.NKIObject):
    size: int
    factor: float = 2.0


@dataclass(frozen=True)
class Frozen(nl.NKIObject):
    size: int
    names: list[str] = field(default_factory=list)


class AfterInit(nl.NKIObject):
    size: int = 3
    twice = None

    def __post_init__(self) -> None:
        self.twice = 2 * self.size


def test_classes_of_kernels_take_their_fields() -> None:
    assert (Plain(4).size, Plain().size, Plain(size=1).factor) == (4, None, 2.0)
    assert (Frozen(1).names, Frozen(size=2).size) == ([], 2)
    assert Frozen(1).names is not Frozen(1).names
    assert AfterInit(size=5).twice == 10
    assert AfterInit(twice=1).twice == 6
    with pytest.raises(TypeError, match="Plain has no field 'wrong'"):
        Plain(wrong=1)


def test_dynamic_loops_run() -> None:
    @nki.jit
    def kernel(count: Any) -> Any:
        register = nisa.register_alloc()
        nisa.register_load(register, nl.load(count))
        total = nl.zeros((1, 1), nl.int32)
        one = nl.full((1, 1), 1, nl.int32)
        for _ in nl.dynamic_range(register):
            nisa.tensor_tensor(total, total, one, nl.add)
        nl.fori_loop(0, register, lambda i: nisa.tensor_tensor(total, total, one, nl.add))
        while register:
            nisa.register_move(register, int(register) - 1)
            nisa.tensor_tensor(total, total, one, nl.add)
        out = nl.ndarray((1, 1), nl.int32, nl.shared_hbm)
        nisa.dma_copy(out, total)
        return out

    assert kernel(np.array([[5]], np.int32)).tolist() == [[15]]


def test_a_register_is_an_index() -> None:
    @nki.jit
    def kernel(a: Any) -> Any:
        out = nl.ndarray((1, 4), nl.float32, nl.shared_hbm)
        nisa.dma_copy(out, nl.load(a[nl.ds(nisa.register_alloc(1), 1)]))
        return out

    np.testing.assert_array_equal(kernel(A), A[1:2])


def test_instructions_are_recorded_with_their_lines() -> None:
    finished = run(Kernel(_double), (A,), {})
    records = finished.launch.cores[0].records
    assert [record.opcode for record in records] == ["dma_copy", "tensor_tensor", "dma_copy"]
    assert {record.location.file for record in records} == {__file__}
    assert records[1].reads[0].shape == (2, 4)


def test_device_print_shows_elements(capsys: pytest.CaptureFixture[str]) -> None:
    nki.jit(lambda a: nl.device_print("tile:", nl.load(a)))(A)
    assert capsys.readouterr().out == f"tile: {A}\n"


def test_printing_a_tensor_shows_its_elements(capsys: pytest.CaptureFixture[str]) -> None:
    nki.jit(lambda a: print(nl.load(a)))(A)  # noqa: T201  as users do
    printed = capsys.readouterr().out
    assert "float32 (2, 4) in sbuf" in printed
    assert "[4. 5. 6. 7.]" in printed


def test_wrappers_compute() -> None:
    @nki.jit
    def kernel(a: Any, w: Any) -> Any:
        tile, weights = nl.load(a), nl.load(w)
        results = [
            nl.softmax(tile),
            nl.rms_norm(tile, weights, axis=1, n=4),
            nl.subtract(tile, nl.mean(tile, axis=1, keepdims=True)),
            nl.where(nl.greater(tile, 2.5), tile, 0.0),
            nl.broadcast_to(nl.max(tile, axis=1, keepdims=True), tile.shape),
        ]
        out = []
        for result in results:
            made = nl.ndarray(result.shape, result.dtype, nl.shared_hbm)
            nl.store(made, result)
            out.append(made)
        return out

    weights = np.ones_like(A)
    soft, norm, centred, selected, largest = kernel(A, weights)
    exponentials = np.exp(A - A.max(1, keepdims=True))
    np.testing.assert_allclose(soft, exponentials / exponentials.sum(1, keepdims=True), rtol=1e-6)
    np.testing.assert_allclose(norm, A / np.sqrt((A * A).mean(1, keepdims=True) + 1e-6), rtol=1e-6)
    np.testing.assert_allclose(centred, A - A.mean(1, keepdims=True))
    np.testing.assert_array_equal(selected, np.where(A > 2.5, A, 0))
    np.testing.assert_array_equal(largest, np.broadcast_to(A.max(1, keepdims=True), A.shape))


@pytest.mark.parametrize("variable", [{"NEURON_LOGICAL_NC_CONFIG": "1"}, {"NEURONTOOLS_RUN": "1"}])
def test_a_launch_on_more_cores_than_a_logical_core_has_is_refused(
    monkeypatch: pytest.MonkeyPatch, variable: dict[str, str]
) -> None:
    monkeypatch.setattr("neurontools.nki.limits._machine", lambda: ("trn1", 1))
    for name, value in variable.items():
        monkeypatch.setenv(name, value)
    expected = (
        "but NEURON_LOGICAL_NC_CONFIG=1" if "NEURON_LOGICAL_NC_CONFIG" in variable else r"\(trn1\) have 1"
    )
    with pytest.raises(KernelUsageError, match=f"_double: a launch on 2 cores, .*{expected}"):
        double[2](A)
    np.testing.assert_array_equal(double[1](A), 2 * A)
    np.testing.assert_array_equal(double(A), 2 * A)
    np.testing.assert_array_equal(nki.simulate(double[2])(A), 2 * A)  # on the CPU
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "2")
    np.testing.assert_array_equal(double[2](A), 2 * A)
