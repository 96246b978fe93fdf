"""Kernels and calls that are wrong: each is one error at the user's line with a remedy, and no traceback of ours."""

from __future__ import annotations

import inspect
import json
import math
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest

from neurontools.compat import nki
from neurontools.compat.nki import isa as nisa
from neurontools.compat.nki import language as nl
from neurontools.nki.errors import KernelError
from neurontools.nki.instructions import INSTRUCTIONS
from neurontools.nki.language import NAMES
from neurontools.nki.objects import MOST_ITERATIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    Tool = Callable[..., subprocess.CompletedProcess[str]]

A = np.ones((128, 64), np.float32)
FIRST = "belongs to neuronxcc.nki, the first generation"


def register(value: int = 1) -> Any:
    """Return a register."""
    return nisa.register_alloc(value)


def generator(a: Any) -> Any:
    """Yield, where a kernel returns."""
    yield a


async def coroutine(a: Any) -> Any:
    """Return to whoever awaits it."""
    return a


async def stream(a: Any) -> Any:
    """Yield to whoever awaits it."""
    yield a


def while_register() -> None:
    """Test a register again and again."""
    number = register()
    while number:
        pass


# What a kernel does with its argument in HBM and a tile of it, and the error: `FILE:LINE: ` and this; then the hint.
STEPS: dict[str, tuple[Callable[[Any, Any], Any], str, str]] = {
    # the first generation's idioms
    "load with mask": (lambda a, t: nl.load(a, mask=True), f"load: mask= {FIRST}", "here: slices that end"),
    "store with mask": (lambda a, t: nl.store(a, t, mask=None), f"store: mask= {FIRST}", "here: slices"),
    "dtype": (lambda a, t: nisa.tensor_copy(t, dtype=nl.bfloat16), f"tensor_copy: dtype= {FIRST}", "here: the type of dst"),
    "arange": (lambda a, t: nl.arange(128), f"'arange': it {FIRST}", "here: slices: a[0:128]"),
    "mgrid": (lambda a, t: nl.mgrid[0:128], f"'mgrid': it {FIRST}", "here: slices"),
    "par_dim": (lambda a, t: nl.par_dim(128), f"'par_dim': it {FIRST}", "here: dimension 0"),
    "loop_reduce": (lambda a, t: nl.loop_reduce(t, nl.add, []), f"'loop_reduce': it {FIRST}", "here: nisa.tensor_tensor"),
    "dynamic copy": (lambda a, t: nisa.tensor_copy_dynamic_src(t, t), f"'tensor_copy_dynamic_src': it {FIRST}", "here: "),
    "result of an instruction": (
        lambda a, t: nisa.tensor_tensor(t, t, op=nl.add),
        "tensor_tensor: missing 1 required positional argument: 'data2'",
        "its parameters: dst, data1, data2, op, engine, name; instructions write to dst, those of neuronxcc.nki",
    ),
    "+": (lambda a, t: t + t, "+: tensors have no operators in nki, the second generation", "use nl.add"),
    "number *": (lambda a, t: 2 * t, "*: tensors have no operators in nki", "use nl.add"),
    "-": (lambda a, t: -t, "-: tensors have no operators in nki", "use nl.add"),
    "<": (lambda a, t: t < 1, "<: tensors have no operators in nki", "use nl.add"),
    "array *": (lambda a, t: A * t, "*: tensors have no operators in nki", "use nl.add"),
    "assignment": (lambda a, t: t.__setitem__(..., t), "assignment: tensors are written by instructions", "use nisa"),
    "astype": (lambda a, t: t.astype(nl.int32), f"astype: {FIRST}", "here: nisa.tensor_copy"),
    "numpy function": (lambda a, t: np.exp(t), "tensor: numpy computes on arrays, not on tensors", "use nl.exp"),
    "numpy reduction": (lambda a, t: np.sum(t), "tensor: numpy computes on arrays, not on tensors", "use nl.exp"),
    "numpy mean": (lambda a, t: np.mean(t), "iteration: a tensor cannot be iterated over", "iterate over a range"),
    "root": (lambda a, t: math.sqrt(t), "tensor: must be real number, not NkiTensor", "elements are known at run time"),
    "format": (lambda a, t: f"{t:.3f}", "tensor: unsupported format string", "elements are known at run time"),
    "condition of Python": (lambda a, t: nl.where(t == 1, t, t), "where: condition is a bool, not a tensor", ""),
    # types and sizes
    "unknown name": (lambda a, t: nl.lod(a), "language' has no attribute 'lod'", "nearest supported name: load"),
    "unknown attribute": (lambda a, t: t.shap, "shap: tensors have no such attribute", "did you mean 'shape'?"),
    "unknown argument": (
        lambda a, t: nisa.tensor_copy(t, t, foo=1),
        "tensor_copy: got an unexpected keyword argument 'foo'",
        "its parameters: dst, src, engine, name",
    ),
    "number of a tensor": (lambda a, t: float(t), "tensor: float() argument must be", "elements are known at run time"),
    "shape of fractions": (lambda a, t: nl.ndarray((64 / 3, 2), nl.float32), "ndarray: size 0 of the shape is 21.3", "divide with //"),
    "shape of a text": (lambda a, t: nl.ndarray("ab", nl.float32), "ndarray: size 0 of the shape is 'ab', not", ""),
    "shape of a tensor": (lambda a, t: nl.ndarray((t, 2), nl.float32), "ndarray: size 0 of the shape is a NkiTensor", ""),
    "shape of nothing": (lambda a, t: nl.ndarray((0, 2), nl.float32), "ndarray: shape (0, 2) has a size that is not", ""),
    "beyond SBUF": (lambda a, t: nl.ndarray((128, 1 << 30), nl.float32), "ndarray: 4294967296 bytes a partition, SBUF has", "tile"),
    "beyond HBM": (
        lambda a, t: nl.ndarray((1 << 20, 1 << 20), nl.float32, buffer=nl.shared_hbm),
        "ndarray: shape (1048576, 1048576) takes 4.00 TiB, HBM has 24.0 GiB on trn2",
        "",
    ),
    "no type": (lambda a, t: nl.ndarray((4, 2), None), "ndarray: unknown data type of a kernel: None", "NKI has bool"),
    "complex type": (lambda a, t: nl.ndarray((4, 2), np.complex64), "ndarray: unknown data type of a kernel: ", "NKI has"),
    "buffer": (lambda a, t: nl.ndarray((4, 2), nl.float32, buffer="x"), "ndarray: buffer 'x' is not a memory", "use nl.sbuf"),
    "address": (lambda a, t: nl.ndarray((4, 2), nl.float32, address=3), "ndarray: address 3 is not a pair", "give the first"),
    "address below 0": (lambda a, t: nl.ndarray((4, 2), nl.float32, address=(0, -8)), "ndarray: address (0, -8) is negative", ""),
    "engine": (lambda a, t: nisa.tensor_copy(t, t, engine="vector"), "tensor_copy: engine 'vector' is not one", "use nisa.engine"),
    "value": (lambda a, t: nisa.memset(t, None), "memset: value is a NoneType, not a number", ""),
    "pattern": (lambda a, t: nisa.iota(t, [1, 2]), "iota: pattern [1, 2] is not a list of pairs", "use [[step, size]"),
    "access pattern": (lambda a, t: t.ap("x"), "ap: pattern 'x' is not a list of pairs", "use [[step, size]"),
    "slice of fractions": (lambda a, t: a[0:1.5], "slice: its end is 1.5, not an integer", "divide with //"),
    "index of an array": (lambda a, t: a[np.arange(3)], "index: ndarray cannot be an index", "use integers"),
    "operand": (lambda a, t: nl.multiply(t, None), "multiply: takes 2 operands, tiles or numbers", ""),
    "three operands": (lambda a, t: nl.add(t, t, t), "add: takes 2 operands", ""),
    "axis": (lambda a, t: nl.sum(t, axis=7), "add: axis 7 does not exist, x has 2 dimensions", ""),
    "load of an array": (lambda a, t: nl.load(A), "load: src is a ndarray, not a tensor", ""),
    "store to SBUF": (lambda a, t: nl.store(t, a), "store: dst is on the chip, must be in HBM", "copy with nl.copy"),
    "other error of ours": (
        lambda a, t: nisa.tensor_reduce(t, nl.add, t, axis="x"),
        "tensor_reduce: TypeError: ",
        "called with dst=t, op=",
    ),
    # loops
    "endless range": (lambda a, t: list(nl.dynamic_range(1 << 80)), f"dynamic_range: more than {MOST_ITERATIONS} iterations", "the loop"),
    "endless fori_loop": (lambda a, t: nl.fori_loop(0, 1 << 40, print), "dynamic_range: more than", "the loop does not end"),
    "endless while_loop": (lambda a, t: nl.while_loop(register(), lambda r: r), "while_loop: more than", "the loop does not end"),
    "endless while": (lambda a, t: while_register(), "while: more than", "the loop does not end"),
    "range of a tensor": (lambda a, t: nl.dynamic_range(t), "range: a bound is a NkiTensor, not an integer", ""),
    "range of fractions": (lambda a, t: nl.affine_range(2.5), "range: a bound is 2.5, not an integer", "divide with //"),
    "step 0": (lambda a, t: nl.dynamic_range(0, 3, 0), "range: the step is 0", ""),
}  # fmt: skip


def kernel_of(step: Callable[[Any, Any], Any]) -> Any:
    """Return a kernel that copies its argument and takes a step."""

    @nki.jit
    def kernel(a: Any) -> Any:
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
        t = nl.load(a)
        step(a, t)
        nl.store(out, t)
        return out

    return kernel


def assert_error(error: KernelError, text: str, hint: str) -> None:
    """Check that an error has a line of this file, a text, and a hint; texts without a function stand anywhere."""
    first = error.message.splitlines()[0]
    place, _, rest = first.removeprefix(f"{__file__}:").partition(": ")
    assert place.isdigit(), first
    assert text in rest
    assert error.remedy.startswith(hint)


@pytest.mark.parametrize("name", STEPS)
def test_a_wrong_step_is_an_error_at_its_line(name: str) -> None:
    step, text, hint = STEPS[name]
    with pytest.raises(KernelError) as caught:
        kernel_of(step)(A)
    assert_error(caught.value, text, hint)


@nki.jit
def doubled(a: Any, factor: float = 2.0) -> Any:
    """Return a tensor times a factor."""
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.multiply(nl.load(a), factor))
    return out


@nki.jit
def incremented(a: Any) -> None:
    """Add 1 to the argument itself."""
    nl.store(a, nl.add(nl.load(a), 1.0))


def read_only() -> np.ndarray:
    """Return an array that cannot be written."""
    array = A.copy()
    array.setflags(write=False)
    return array


CALLS: dict[str, tuple[Callable[[], Any], str, str]] = {
    "missing argument": (doubled, "doubled: missing 1 required positional argument: 'a'", "its parameters: a, factor"),
    "extra argument": (lambda: doubled(A, 1.0, 3), "doubled: takes from 1 to 2 positional arguments but 3", "its parameters"),
    "unknown argument": (lambda: doubled(A, scale=3), "doubled: got an unexpected keyword argument 'scale'", "its parameters"),
    "complex": (lambda: doubled(A.astype(complex)), "argument a has type complex128, which NeuronCores lack", "convert it"),
    "objects": (lambda: doubled(A.astype(object)), "argument a has type object, which NeuronCores lack", "convert it"),
    "texts": (lambda: doubled(np.array(["x"])), "argument a has type <U1, which NeuronCores lack", "convert it"),
    "dates": (lambda: doubled(np.array(["2026-01-01"], "M8[s]")), "argument a has type datetime64[s]", "convert it"),
    "4-bit floats": (lambda: doubled(A.astype(ml_dtypes.float4_e2m1fn)), "doubled: argument a has type float4_e2m1fn", "convert it"),
    "4-bit integers": (lambda: doubled(A.astype(ml_dtypes.int4)), "doubled: argument a has type int4", "convert it"),
    "records": (lambda: doubled(np.zeros((8, 4), [("x", "f4")])), "doubled: argument a has type [('x', '<f4')]", "convert it"),
    "large integers": (lambda: doubled(np.array([[1 << 40]])), "argument a has numbers beyond 32 bits", "NeuronCores"),
    "no elements": (lambda: doubled(np.ones((0, 4))), "ndarray: shape (0, 4) has a size that is not positive", ""),
    "written read-only array": (lambda: incremented(read_only()), "writes argument a, a read-only array", "pass a copy"),
    "grid": (lambda: doubled[4](A), "doubled[4]: a launch takes 1 or 2 cores", "loop over tiles in the kernel; grids"),
    "number as result": (lambda: nki.jit(lambda a: 3)(A), "returns a value of type int, results are tensors", "store it"),
    "array as result": (lambda: nki.jit(lambda a: A)(A), "returns a value of type ndarray, results are", "store it"),
    "tile as result": (lambda: nki.jit(lambda a: (nl.load(a),))(A), "in sbuf, results must be in shared HBM", "declare it"),
    "generator": (lambda: nki.jit(generator)(A), "generator: is a generator, kernels are functions that", "return the"),
    "asynchronous": (lambda: nki.jit(coroutine)(A), "coroutine: is asynchronous, kernels are functions", "define it with"),
    "asynchronous generator": (lambda: nki.simulate(stream)(A), "stream: is asynchronous, kernels are", "define it with"),
    "generator as result": (lambda: nki.jit(lambda a: (a for _ in "a"))(A), "a value of type generator", "return the t"),
    "no function": (lambda: nki.jit(3), "nki.jit: 3 is not a function", "decorate the kernel"),
    "class": (lambda: nki.jit(int), "nki.jit: <class 'int'> is not a function", "decorate the kernel"),
    "outside of kernels": (lambda: nl.ndarray((1, 1), nl.float32), "functions of NKI work in kernels alone", "call them from"),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_is_an_error_at_its_line(name: str) -> None:
    call, text, hint = CALLS[name]
    with pytest.raises(KernelError) as caught:
        call()
    assert_error(caught.value, text, hint)


ARRAYS = {
    "transposed": np.arange(8192, dtype=np.float32).reshape(64, 128).T,
    "every second column": np.arange(8192, dtype=np.float32).reshape(128, 64)[:, ::2],
    "reversed": np.arange(8192, dtype=np.float32).reshape(128, 64)[::-1],
    "float64": A.astype(np.float64),
    "int64": A.astype(np.int64),
    "big endian": A.astype(">f4"),
    "read-only": read_only(),
    "repeated": np.broadcast_to(np.float32(3), (128, 4)),
    "one dimension": np.ones(5, np.float32),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_any_layout_are_arguments(name: str) -> None:
    array = ARRAYS[name]
    result = doubled(array)
    assert np.array_equal(result, (2 * array).reshape(result.shape))


@pytest.mark.parametrize("name", ["transposed", "every second column", "reversed", "float64"])
def test_a_kernel_writes_its_argument_whatever_the_layout(name: str) -> None:
    array = ARRAYS[name].copy(order="K")
    incremented(array)
    assert np.array_equal(array, ARRAYS[name] + 1)


def recurse(a: Any, t: Any) -> Any:
    """Call this function for ever."""
    return recurse(a, t)


@nki.jit
def itself(a: Any) -> Any:
    """Call this kernel for ever."""
    return itself(a)


ERRORS: dict[str, tuple[Callable[[Any, Any], Any], type[Exception]]] = {
    "division": (lambda a, t: 1 / 0, ZeroDivisionError),
    "key": (lambda a, t: {}["x"], KeyError),
    "name": (lambda a, t: missing_name, NameError),  # type: ignore[name-defined]  # noqa: F821
    "recursion": (recurse, RecursionError),
    "a kernel that calls itself": (lambda a, t: itself(a), RecursionError),
    "own arguments": (lambda a, t: while_register(1), TypeError),  # type: ignore[call-arg]
    "attribute of nothing": (lambda a, t: None.shape, AttributeError),  # type: ignore[attr-defined]
    "function of numpy": (lambda a, t: np.ones(-1), ValueError),
    "error within numpy": (lambda a, t: np.linalg.inv(np.zeros((2, 2))), np.linalg.LinAlgError),
    "error within Python": (lambda a, t: json.loads("{"), json.JSONDecodeError),
    "body of a loop": (lambda a, t: nl.fori_loop(0, 3, lambda number: {}["x"]), KeyError),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_of_the_kernels_own_python_stay(name: str) -> None:
    step, kind = ERRORS[name]
    with pytest.raises(kind) as caught:
        kernel_of(step)(A)
    assert not isinstance(caught.value, KernelError)


def test_the_generation_of_another_import_is_named() -> None:
    from neurontools.nki.first import language as first

    with pytest.raises(KernelError) as caught:
        kernel_of(lambda a, t: first.load(a))(A)
    assert_error(
        caught.value, f"load: {FIRST}, the kernel kernel to nki, the second generation", "import all names"
    )


PROGRAM = """\
import sys
import numpy as np
import nki
import nki.language as nl


def helper(a):
    return CALL


@nki.jit
def kernel(a):
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.load(a))
    helper(a)
    return out


if __name__ == "__main__":
    kernel(np.ones((128, 4), np.float32))
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Return a function that writes a program whose kernel makes a call in line 8, in the current directory."""
    monkeypatch.chdir(tmp_path)

    def write(call: str) -> str:
        (tmp_path / "kernel.py").write_text(PROGRAM.replace("CALL", call))
        return "kernel.py"

    return write


WRONG = [
    ("nl.load(a, mask=None)", f"error: kernel.py:8: load: mask= {FIRST}\nhint: here: slices that end at the bound: "),
    ("nl.ndarray((256, 4), a.dtype)", "error: kernel.py:8: ndarray: partition dimension 256 exceeds maximum 128\nhint: "),
    ("a + a", "error: kernel.py:8: +: tensors have no operators in nki, the second generation\nhint: use nl.add, "),
]  # fmt: skip


@pytest.mark.parametrize(("call", "shown"), WRONG)
def test_a_command_shows_one_error(tool: Tool, program: Callable[[str], str], call: str, shown: str) -> None:
    done = tool("neuron-profile", "kernel", program(call), "--shape", "a=128x4", "--target", "trn2")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(shown)
    assert done.stderr.count("\n") == 2


def run_program(file: str) -> subprocess.Popen[str]:
    """Start a program as neuron-run starts it, on no machine."""
    from neurontools import compat

    command = (
        f"import sys; sys.path[:0] = [{compat.__path__[0]!r} + '/site', '.']; import sitecustomize, runpy"
    )
    code = f"{command}; runpy.run_path({file!r}, run_name='__main__')"
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize(
    ("call", "shown"),
    [
        *WRONG,
        ("1 / 0", "Traceback (most recent call last):\n"),
        ("helper(a)", "Traceback (most recent call last):\n"),
    ],
)
def test_a_program_ends_without_a_traceback_of_ours(
    program: Callable[[str], str], call: str, shown: str
) -> None:
    process = run_program(program(call))
    _, printed = process.communicate(timeout=120)
    assert process.returncode == 1
    assert printed.startswith(shown)
    assert "neurontools/nki" not in printed


def test_an_interrupt_names_the_line(program: Callable[[str], str]) -> None:
    process = run_program(program('print("started", flush=True) or all(nl.load(a) for _ in iter(int, 1))'))
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGINT)
        _, printed = process.communicate(timeout=120)
    finally:
        process.kill()
    assert (process.returncode, printed) == (-signal.SIGINT, "interrupted at kernel.py:8\n")


@pytest.mark.parametrize("package", ["nki", "neuronxcc.nki"])
def test_kernels_on_arrays_need_no_torch(program: Callable[[str], str], package: str) -> None:
    file = program('print("ran", sys.modules["torch"])')
    source = PROGRAM.replace("CALL", 'print("ran", sys.modules["torch"])')
    source = source.replace("import nki\nimport nki.", f"import {package} as nki\nimport {package}.")
    Path(file).write_text(source.replace("import sys\n", "import sys\nsys.modules['torch'] = None\n"))
    process = run_program(file)
    printed, errors = process.communicate(timeout=120)
    assert (printed, errors) == ("ran None\n", "")


def test_a_file_that_needs_torch_names_the_remedy(tool: Tool, tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text("import sys\nsys.modules['torch'] = None\nimport torch\n")
    done = tool("neuron-profile", "kernel", f"{tmp_path}/kernel.py")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {tmp_path}/kernel.py:3: ModuleNotFoundError: ")
    assert "hint: pip install 'neurontools[torch]'" in done.stderr


def test_a_kernel_without_results_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    nki.jit(lambda a: nl.load(a) and None)(A)
    assert "returns None and writes no argument, so it has no result" in capsys.readouterr().err
    incremented(A.copy())
    assert capsys.readouterr().err == ""


WRONG_VALUES = (None, 1.5, -1, "x", A, [1, 2], {}, object())
OPERANDS = {"op": nl.add, "ope": 1.0, "imm": 1.0, "val": 1.0, "fil": 1.0, "sha": (128, 64), "dty": nl.float32}
"""Right arguments by the first letters of their parameters; all others get a tile."""


def right_arguments(function: Any, tile: Any) -> dict[str, Any]:
    """Return arguments for the parameters of a function that have no default."""
    parameters = inspect.signature(function).parameters.values()
    return {
        item.name: next((value for start, value in OPERANDS.items() if item.name.startswith(start)), tile)
        for item in parameters
        if item.default is item.empty and item.kind is item.POSITIONAL_OR_KEYWORD
    }


FUNCTIONS = {
    **{name: function for name, function in INSTRUCTIONS.items() if name not in {"core_barrier", "sendrecv"}},
    **{name: value for name, value in NAMES.items() if inspect.isfunction(value) and name != "device_print"},
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_any_wrong_argument_is_accepted_or_an_error_of_the_kernel(name: str) -> None:
    function = FUNCTIONS[name]
    for parameter in inspect.signature(function).parameters:
        for value in WRONG_VALUES:
            wrong = {parameter: value}
            # Errors of Python would pass through here.
            with suppress(KernelError):
                kernel_of(lambda a, t, wrong=wrong: function(**right_arguments(function, t) | wrong))(A)
