"""Calls of kernels: modes, grids, parameters and results."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
import neuronxcc.nki.typing as nt
import numpy as np
import pytest

from neurontools import compat
from neurontools.errors import NeuronToolsError
from neurontools.nki.first import launch

SOURCE = np.arange(24, dtype=np.float32).reshape(4, 6) / 7


def doubled(a):
    """Return twice a tensor."""
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.load(a) * 2)
    return out


@pytest.mark.parametrize(
    "kernel",
    [
        nki.jit(doubled),
        nki.jit(mode="simulation")(doubled),
        nki.jit(mode="baremetal", platform_target="trn1")(doubled),
        nki.jit(nki.jit(doubled), mode="torchxla"),
        nki.baremetal(doubled),
        nki.baremetal(additional_compile_opt="-O1")(nki.jit(doubled)),
        functools.partial(nki.simulate_kernel, nki.jit(doubled)),
        functools.partial(nki.simulate_kernel, doubled),
        nki.jit(functools.partial(doubled)),
    ],
)
def test_every_decorator_runs_a_kernel(kernel):
    assert kernel(SOURCE).tolist() == (SOURCE * 2).tolist()


def test_a_kernel_keeps_the_name_the_words_and_the_parameters_of_its_function():
    kernel = nki.jit(doubled)
    assert (kernel.__name__, kernel.__doc__) == ("doubled", "Return twice a tensor.")
    assert kernel.__signature__.parameters.keys() == {"a"}
    assert not hasattr(kernel, "__wrapped__")


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: nki.jit(doubled, mode="fast"), "nki.jit has no mode 'fast'"),
        (lambda: nki.profile(doubled), "working_directory of nki.profile is None"),
        (lambda: nki.profile(working_directory="here"), "working_directory of nki.profile is 'here'"),
        (lambda: nki.jit(doubled)[nl.nc(4)], "a grid is distributed to at most 2 cores"),
        (lambda: nl.load(SOURCE), "functions of NKI work in kernels alone|not a tile"),
        (lambda: nl.zeros((4, 4), dtype=nl.float32), "functions of NKI work in kernels alone"),
    ],
)
def test_a_wrong_call_is_refused(use, message):
    with pytest.raises(NeuronToolsError, match=message):
        use()


def test_kernels_that_are_called_in_kernels_are_plain_functions():
    @nki.jit(mode="trace")
    def inner(tile, factor):
        return tile * factor

    @nki.jit
    def outer(a):
        return inner(nl.load(a), 3.0), inner[2](nl.load(a), 3.0)

    line = outer.func.__code__.co_firstlineno + 2
    with pytest.raises(
        AssertionError, match=r"Calling kernel with spmd grid \(inner\[2\]\) inside another kernel"
    ) as caught:
        outer(SOURCE)
    assert str(caught.value).startswith(f"{__file__}:{line}: inner: ")
    assert nki.jit(lambda a: inner(nl.load(a), 3.0))(SOURCE).tolist() == (SOURCE * np.float32(3)).tolist()


# ---- parameters


def test_output_parameters_of_older_kernels_are_written_in_place():
    @nki.trace
    def kernel(a, out):
        nl.store(out, nl.load(a))

    out = np.zeros((4, 6), dtype=np.float64)
    assert nki.simulate_kernel(kernel, SOURCE, out) is None
    assert out.tolist() == SOURCE.tolist()


def test_parameters_are_immutable_unless_they_say_otherwise():
    def changed(a: nt.mutable_tensor, b: nt.tensor[4, 6]):
        nl.store(a, nl.load(b))
        return a

    def wrong(a: nt.tensor):
        nl.store(a, 1.0)
        return a

    target = np.zeros_like(SOURCE)
    assert nki.jit(changed)(target, SOURCE).tolist() == target.tolist() == SOURCE.tolist()
    with pytest.raises(AssertionError, match="store: Cannot update immutable parameter `a`"):
        nki.jit(wrong)(target)
    with pytest.raises(AssertionError, match="dma_copy: Cannot update immutable parameter `a`"):
        nki.jit(lambda a: nisa.dma_copy(dst=a, src=a))(target)


def test_results_of_every_kind():
    @nki.jit
    def kernel(arrays, count: int, options):
        out = nl.ndarray((4, 6), dtype=nl.bfloat16, buffer=nl.hbm)
        nl.store(out, nl.load(arrays["a"][0]) + options.bias)
        return [out, nl.load(arrays["a"][0])], {"count": count, "none": None}

    (stored, loaded), rest = kernel({"a": (SOURCE,)}, 3, options=SimpleNamespace(bias=1.0))
    assert (stored.dtype, loaded.tolist(), rest) == (nl.bfloat16, SOURCE.tolist(), {"count": 3, "none": None})
    assert np.allclose(stored.astype(np.float32), SOURCE + 1, rtol=1e-2)


def test_a_result_that_was_never_written_is_refused():
    @nki.jit
    def kernel(a):
        out = nl.ndarray((4, 6), dtype=a.dtype, buffer=nl.shared_hbm)
        for tile in nl.affine_range(4 // 5):
            nl.store(out, nl.load(a), mask=tile > 0)
        return out

    with pytest.raises(AssertionError, match="result out was never written"):
        kernel(SOURCE)


@pytest.mark.parametrize(("mode", "precise", "rounds"), [("simulation", "", False), ("baremetal", "", True), ("simulation", "1", True), ("baremetal", "0", False)])  # fmt: skip
def test_simulations_keep_types_that_numpy_lacks_in_float32(monkeypatch, mode, precise, rounds):
    monkeypatch.delenv("NKI_PRECISE_FP", raising=False)
    if precise:
        monkeypatch.setenv("NKI_PRECISE_FP", precise)
    kernel = nki.jit(lambda a: nl.copy(nl.load(a, dtype=nl.bfloat16), dtype=nl.float32), mode=mode)
    assert (kernel(SOURCE).tolist() == SOURCE.tolist()) is not rounds


@pytest.mark.parametrize(
    ("variable", "option", "generation"),
    [("", None, 3), ("", "trn1", 2), ("trn3", "trn1", 4), ("inf2", None, 2)],
)
def test_the_target_is_that_of_the_environment_or_of_the_decorator(monkeypatch, variable, option, generation):
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", variable)
    seen = []
    nki.jit(lambda: seen.append(nisa.get_nc_version()), **({"platform_target": option} if option else {}))()
    assert [version.value for version in seen] == [generation]
    assert (seen[0] >= nisa.nc_version.gen3) is (generation >= 3)


def test_a_call_with_tensors_of_torch_returns_one():
    torch = pytest.importorskip("torch")
    result = nki.jit(doubled)(torch.tensor(SOURCE))
    assert torch.equal(result, torch.tensor(SOURCE) * 2)


# ---- grids


def numbered(a):
    out = nl.ndarray(a.shape, dtype=nl.int32, buffer=nl.shared_hbm)
    place = tuple(nl.program_id(axis) for axis in range(nl.program_ndim()))
    number = place[0] if len(place) == 1 else place[0] * nl.num_programs(1) + place[1]
    nl.store(out[place], number + 100 * nl.num_programs())
    return out


@pytest.mark.parametrize(
    ("grid", "cores"),
    [
        ((4, 2), [8]),
        ((nl.spmd_dim(nl.nc(2), 2), 2), [4, 4]),
        ((nl.nc(2) * 2, 2), [4, 4]),
        ((2 * nl.nc(2), 2), [4, 4]),
        ((4, nl.nc(2)), [4, 4]),
    ],
)
def test_the_programs_of_a_grid_share_their_results(grid, cores):
    done = launch.run(nki.jit(numbered)[grid], (np.zeros((4, 2, 1, 1), dtype=np.int32),), {})
    assert done.results.ravel().tolist() == [800 + number for number in range(8)]
    stores = [sum(record.opcode == "dma_copy" for record in core.records) for core in done.launch.cores]
    assert stores == cores


@pytest.mark.parametrize(
    ("dim", "cores"),
    [
        (nl.nc(2) * 2, [0, 0, 1, 1]),
        (2 * nl.nc(2), [0, 1, 0, 1]),
        (nl.spmd_dim(4), [0, 0, 0, 0]),
        (nl.nc(2), [0, 1]),
    ],
)
def test_a_factor_of_a_grid_numbers_the_cores(dim, cores):
    assert [dim.core_of(number) for number in range(dim.size)] == cores


def test_programs_that_declare_different_results_are_refused():
    @nki.jit
    def kernel(a):
        out = nl.ndarray((4, 6 + nl.program_id(0)), dtype=a.dtype, buffer=nl.shared_hbm)
        nl.store(out[0:4, 0:6], nl.load(a))
        return out

    with pytest.raises(
        AssertionError, match="the programs of the grid declare different tensors in shared HBM"
    ):
        kernel[2](SOURCE)


def test_a_reduction_over_programs_is_refused():
    with pytest.raises(AssertionError, match="programs of a grid run one after another"):
        nki.jit(lambda a: nl.all_reduce(nl.load(a), op=np.add, program_axes=0))[2](SOURCE)


# ---- benchmark


def test_an_annotation_with_sizes_and_type_is_measured_as_an_array_is(target):
    target("trn1")
    latencies = []
    for argument in (np.zeros((128, 512), nl.float16), nt.tensor[[128, 512], nl.float16]):
        kernel = nki.benchmark(doubled)
        kernel(argument)
        latencies.append(kernel.benchmark_result.nc_latency.get_latency_percentile(50))
    assert latencies[0] == latencies[1]
    for annotation in (nt.tensor, nt.tensor[128, 512]):
        with pytest.raises(NeuronToolsError, match="doubled: argument a is an annotation"):
            nki.jit(doubled)(annotation)


def test_a_benchmark_prints_and_keeps_the_modelled_latency(monkeypatch, capsys):
    launches = []

    def modelled_us(finished):
        launches.append(finished)
        return 12.3456

    monkeypatch.setitem(sys.modules, "neurontools.nki.program", SimpleNamespace(modelled_us=modelled_us))
    kernel = nki.benchmark(warmup=5, iters=10)(doubled)[1]
    kernel(SOURCE)
    latency = kernel.benchmark_result.nc_latency
    assert [latency.get_latency_percentile(percentile) for percentile in (0, 50, 99, 100)] == [12.3456] * 4
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "NCLatency: (modelled)"
    assert lines[1:] == [f"  p{percentile} = 12.35us" for percentile in (0, 1, 10, 25, 50, 90, 99, 100)]
    assert [record.opcode for record in launches[0].cores[0].records] == [
        "dma_copy",
        "tensor_scalar",
        "dma_copy",
    ]
    with pytest.raises(NeuronToolsError, match="no percentile 51 of a benchmark"):
        latency.get_latency_percentile(51)


def test_the_import_takes_no_torch():
    code = "import sys, neuronxcc.nki.isa; print(sorted({'torch', 'jax'} & set(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": str(Path(compat.__path__[0]))}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_device_print_shows_a_tile(capsys):
    @nki.jit
    def kernel(a):
        nl.device_print("tile:", nl.load(a[0:1, 0:2]))
        nl.device_print("never", nl.load(a), mask=False)

    kernel(SOURCE)
    assert capsys.readouterr().out.startswith("tile: [[0.")
