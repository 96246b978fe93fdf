"""Kernels of the first generation that use the second's idioms, or that are wrong: one error at the line, with a remedy."""

from __future__ import annotations

import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
import numpy as np
import pytest

from neurontools.compat.nki import isa as second_isa
from neurontools.compat.nki import language as second
from neurontools.nki.errors import KernelError

A = np.ones((128, 64), np.float32)
SECOND = "belongs to nki, the second generation"
RETURNED = "instructions return their result, those of nki, the second generation, take a dst"


def tile(*shape):
    """Return a tile in SBUF."""
    return nl.ndarray(shape or (128, 64), nl.float32, buffer=nl.sbuf)


STEPS = {
    "dst of an operator": (lambda a, t: nisa.tensor_tensor(dst=tile(), data1=t, data2=t, op=nl.add), f"tensor_tensor: dst= {SECOND}", "here: the result"),
    "dst of an activation": (lambda a, t: nisa.activation(dst=tile(), op=nl.exp, data=t), f"activation: dst= {SECOND}", "here: the result"),
    "dst of a copy": (lambda a, t: nisa.tensor_copy(dst=tile(), src=t), f"tensor_copy: dst= {SECOND}", "here: the result"),
    "dst of a reduction": (lambda a, t: nisa.tensor_reduce(dst=tile(), op=nl.add, data=t, axis=1), f"tensor_reduce: dst= {SECOND}", "here: "),
    "dst by position": (lambda a, t: nisa.tensor_tensor(tile(), t, t, nl.add), "tensor_tensor: takes 3 positional arguments but 4", RETURNED),
    "dst of a product": (lambda a, t: nisa.nc_matmul(tile(), t, t), "nc_matmul: takes 2 positional arguments but 3", RETURNED),
    "positions of dma_copy": (lambda a, t: nisa.dma_copy(tile(), a), "dma_copy: takes 0 positional arguments but 2", "its parameters: dst, src"),
    "memset": (lambda a, t: nisa.memset(t, 0.0), "memset: missing 1 required positional argument: 'dtype'", RETURNED),
    "accumulate": (lambda a, t: nisa.nc_matmul(t, t, accumulate=True), f"nc_matmul: accumulate= {SECOND}", "here: psum[...] += "),
    "misspelt keyword": (lambda a, t: nl.load(a, maks=None), "load: got an unexpected keyword argument 'maks'", "its parameters: src, mask, dtype"),
    "misspelt keyword of an operator": (lambda a, t: nl.add(t, t, dtyp=None), "add: got an unexpected keyword argument 'dtyp'", "its parameters: x, y, dtype, mask"),
    "misspelt keyword of an instruction": (lambda a, t: nisa.activation(nl.exp, t, offset=1), "activation: got an unexpected keyword argument 'offset'", "its parameters: op, data"),
    "address": (lambda a, t: nl.ndarray((4, 4), nl.float32, address=(0, 0)), f"ndarray: address= {SECOND}", "here: nki.compiler"),
    "ap": (lambda a, t: t.ap([[64, 128], [1, 64]]), f"ap: {SECOND}", "here: indices"),
    "reshape_dim": (lambda a, t: t.reshape_dim(1, (8, 8)), f"reshape_dim: {SECOND}", "here: tile.reshape"),
    "fori_loop": (lambda a, t: nl.fori_loop(0, 3, print), f"'fori_loop': it {SECOND}", "here: nl.sequential_range"),
    "dynamic_range": (lambda a, t: nl.dynamic_range(3), f"'dynamic_range': it {SECOND}", "here: nl.sequential_range"),
    "register": (lambda a, t: nisa.register_alloc(1), f"'register_alloc': it {SECOND}", "here: a number of Python"),
    "function of nki.language": (lambda a, t: second.load(a), f"load: {SECOND}, the kernel kernel to neuronxcc.nki", "import all"),
    "instruction of nki.isa": (lambda a, t: second_isa.tensor_copy(t, t), f"tensor_copy: {SECOND}, the kernel", "import all"),
    "numpy function": (lambda a, t: np.exp(t), "tensor: numpy computes on arrays, not on tensors", "use nl.exp"),
    "unknown attribute": (lambda a, t: t.shap, "shap: tensors have no such attribute", "did you mean 'shape'?"),
    "unknown name": (lambda a, t: nl.lod(a), "has no attribute 'lod'", "nearest supported name: load"),
    "shape of fractions": (lambda a, t: tile(64 / 3, 2), "ndarray: size 0 of the shape is 21.3", "divide with //"),
    "no type": (lambda a, t: nl.ndarray((4, 4), None), "ndarray: unknown data type of a kernel: None", "NKI has bool"),
    "beyond HBM": (
        lambda a, t: nl.ndarray((1 << 20, 1 << 20), nl.float32, buffer=nl.shared_hbm),
        "ndarray: shape (1048576, 1048576) takes 4.00 TiB, HBM has 24.0 GiB on trn2",
        "",
    ),
    "range of fractions": (lambda a, t: list(nl.affine_range(2.5)), "range: a bound is 2.5, not an integer", "divide with //"),
}  # fmt: skip


def kernel_of(step):
    """Return a kernel that copies its argument and takes a step."""

    @nki.jit
    def kernel(a):
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
        t = nl.load(a)
        step(a, t)
        nl.store(out, t)
        return out

    return kernel


def assert_error(error, text, hint):
    """Check that an error has a line of this file, a text, and a hint that has another."""
    place, _, rest = error.message.splitlines()[0].removeprefix(f"{__file__}:").partition(": ")
    assert place.isdigit()
    assert text in rest
    assert hint in error.remedy


@pytest.mark.parametrize("name", STEPS)
def test_a_wrong_step_is_an_error_at_its_line(name):
    step, text, hint = STEPS[name]
    with pytest.raises(KernelError) as caught:
        kernel_of(step)(A)
    assert_error(caught.value, text, hint)


@nki.jit
def doubled(a):
    """Return twice a tensor."""
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.load(a) * 2)
    return out


def generator(a):
    yield a


async def coroutine(a):
    return a


CALLS = {
    "missing argument": (doubled, "doubled: missing 1 required positional argument: 'a'", "its parameters: a"),
    "extra argument": (lambda: doubled(A, 2), "doubled: takes 1 positional argument but 2 were given", "its parameters: a"),
    "complex": (lambda: doubled(A.astype(complex)), "argument a has type complex128, which NeuronCores lack", "convert it"),
    "large integers": (lambda: doubled(np.array([[1 << 40]])), "argument a has numbers beyond 32 bits", ""),
    "no grid": (lambda: doubled[0](A), "grid: size 0 is not positive", ""),
    "grid of a text": (lambda: doubled["x"](A), "grid: a size is 'x', not an integer", ""),
    "three cores": (lambda: doubled[nl.nc(3)](A), "doubled: a grid is distributed to at most 2 cores, not 3", ""),
    "number as result": (lambda: nki.jit(lambda a: 3)(A), "returns a value of type int, results are tensors", "store it"),
    "generator": (lambda: nki.jit(generator)(A), "generator: is a generator, kernels are functions that", "return the"),
    "asynchronous": (lambda: nki.jit(coroutine)(A), "coroutine: is asynchronous, kernels are functions", "define it with"),
    "no function": (lambda: nki.jit(3), "nki.jit: 3 is not a function", "decorate"),
    "mode": (lambda: nki.jit(doubled, mode="x"), "nki.jit has no mode 'x'", "use one of auto"),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_is_an_error_at_its_line(name):
    call, text, hint = CALLS[name]
    with pytest.raises(KernelError) as caught:
        call()
    assert_error(caught.value, text, hint)


def test_errors_of_the_kernels_own_python_stay():
    with pytest.raises(ZeroDivisionError):
        kernel_of(lambda a, t: 1 / 0)(A)


def test_neuron_profile_runs_kernels_of_this_generation(tool, tmp_path):
    (tmp_path / "kernel.py").write_text(
        "import neuronxcc.nki as nki\nimport neuronxcc.nki.language as nl\n\n\n@nki.jit\ndef double(a, width=4):\n"
        "    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)\n    nl.store(out, nl.load(a) * (1 // (width - 4)))\n"
        "    return out\n"
    )
    words = ("neuron-profile", "kernel", f"{tmp_path}/kernel.py", "--shape", "a=128x512", "--target", "trn2")
    done = tool(*words, "--arg", "width=5")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("double on trn2, 1 core: ")
    done = tool(*words, "--arg", "width=5", "--lnc", "2")
    assert done.stdout.startswith("double on trn2, 2 cores: ")
    done = tool(*words)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {tmp_path}/kernel.py:8: ZeroDivisionError: ")
