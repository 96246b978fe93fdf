"""Kernels in files: loaded by name, and called with arrays of given shapes that hold reproducible random numbers."""

from __future__ import annotations

import ast
import inspect
import os
import re
import runpy
import sys
from contextlib import contextmanager
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from os.path import dirname, isfile
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import numpy as np

from neurontools.base.text import did_you_mean
from neurontools.errors import TORCH_REMEDY, NeuronToolsError, UsageError
from neurontools.nki.dtypes import INTEGERS, dtype_name, numpy_dtype
from neurontools.nki.first.launch import EagerKernel
from neurontools.nki.first.loops import nc
from neurontools.nki.launch import Kernel
from neurontools.nki.limits import TARGET_VARIABLE, chosen_target, limits_of
from neurontools.nki.program import device_of_target

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from neurontools.nki.context import Launch

_SHORT = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "f16": "float16",
    "fp32": "float32",
    "f32": "float32",
    "i32": "int32",
    "u32": "uint32",
    "i8": "int8",
    "u8": "uint8",
    "fp8": "float8_e4m3",
}
_SHAPE = re.compile(r"([A-Za-z_]\w*)=(\d+(?:x\d+)*)(?::(\w+))?", re.ASCII)
_LARGEST_INTEGER = 8
_MOST_BYTES = 1 << 34


class ArrayArgument(NamedTuple):
    """An array that a kernel is called with: the parameter's name, the sizes by dimension, and the NKI type."""

    name: str
    shape: tuple[int, ...]
    dtype: str


def parse_array(text: str) -> ArrayArgument:
    """Return the array that a text such as `a=128x512:bf16` describes; without a type it is float32.

    Raises:
        UsageError: it describes none.
    """
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise UsageError(f"invalid shape {text!r}", "use NAME=SIZES:TYPE, for example a=128x512:bf16")
    name, sizes, kind = match.groups()
    shape = tuple(int(size) for size in sizes.split("x"))
    if 0 in shape:
        raise UsageError(f"invalid shape {text!r}: a size is 0", "use sizes above 0")
    dtype = dtype_name(_SHORT.get(kind or "fp32", kind or "float32"))
    nbytes = int(np.prod(shape, dtype=object)) * numpy_dtype(dtype).itemsize
    if nbytes > _MOST_BYTES:
        raise UsageError(f"shape {text!r} is too large", "the maximum is 16GiB")
    return ArrayArgument(name, shape, dtype)


def parse_scalar(text: str) -> tuple[str, Any]:
    """Return name and value of a text such as `eps=1e-6`: a Python literal, or a string.

    Raises:
        UsageError: there is no `=`.
    """
    name, separator, value = text.partition("=")
    if not separator or not name.isidentifier():
        raise UsageError(f"invalid argument {text!r}", "use NAME=VALUE, for example eps=1e-6")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return name, value


def random_array(argument: ArrayArgument) -> np.ndarray:
    """Return the array of an argument: normally distributed numbers, integers from 0 to 7; equal in every run."""
    generator = np.random.default_rng(crc32(argument.name.encode()))
    if argument.dtype in INTEGERS or argument.dtype == "bool":
        values: np.ndarray = generator.integers(0, _LARGEST_INTEGER, argument.shape)
    else:
        values = generator.standard_normal(argument.shape, dtype=np.float32)
    return values.astype(numpy_dtype(argument.dtype))


def load_kernel(source: str) -> Kernel | EagerKernel:
    """Return the kernel of either generation that `FILE.py::name` names; the name may be left out where the file has one kernel.

    Raises:
        NeuronToolsError: the file cannot be run.
        UsageError: there is no such file or kernel.
    """
    path, _, name = source.partition("::")
    if not isfile(path):
        raise UsageError(f"{path}: no such file", "name a Python file and a kernel: FILE.py::name")
    _provide_nki()
    folder = dirname(os.path.abspath(path))
    sys.path.insert(0, folder)
    with _at_line(path, "the file must run without arguments"):
        names = runpy.run_path(path, run_name="__kernel__")
    kernels = {key: value for key, value in names.items() if isinstance(value, Kernel | EagerKernel)}
    if not name and len(kernels) == 1:
        return next(iter(kernels.values()))
    named = names.get(name)
    if isinstance(named, Kernel | EagerKernel):
        return named
    if inspect.isfunction(named):
        return Kernel(named)
    listed = ", ".join(kernels)
    if not kernels:
        raise UsageError(f"{path}: no kernel", "decorate a function with nki.jit")
    if not name:
        raise UsageError(f"{path}: {len(kernels)} kernels: {listed}", "name one: FILE.py::name")
    hint = did_you_mean(name, kernels, otherwise=f"kernels of the file: {listed}")
    raise UsageError(f"{path}: no kernel {name!r}", hint or f"kernels of the file: {listed}")


@contextmanager
def _at_line(path: str, remedy: str) -> Iterator[None]:
    """Raise errors of the user's code as those of a line of a file.

    Raises:
        NeuronToolsError: the code raised an error.
    """
    try:
        yield
    except NeuronToolsError:
        raise
    except SyntaxError as error:
        raise NeuronToolsError(f"{error.filename}:{error.lineno}: SyntaxError: {error.msg}", "") from error
    except (Exception, SystemExit) as error:
        folder = dirname(path)
        trace = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
        lines = [line for line in trace if line[0] == path] + [
            line for line in trace if dirname(line[0]) == folder
        ]
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            remedy = TORCH_REMEDY
        elif isinstance(error, ModuleNotFoundError):
            remedy = "install it, or add its folder to PYTHONPATH"
        location = ":".join(map(str, lines[-1])) if lines else path
        raise NeuronToolsError(f"{location}: {type(error).__name__}: {error}", remedy) from error


def _provide_nki() -> None:
    """Make `import nki` and `import neuronxcc` find the packages of this one, as in programs under neuron-run."""
    for name in ("nki", "neuronxcc"):
        if name in sys.modules:
            continue
        spec = PathFinder.find_spec(name, [f"{dirname(dirname(__file__))}/compat"])
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(module)


def launch_kernel(
    source: str, arrays: list[ArrayArgument], scalars: Mapping[str, Any], target: str, cores: int = 1
) -> Launch:
    """Run a kernel of a file on random arrays and return what happened.

    Args:
        source: FILE.py::name.
        arrays: arguments that are arrays.
        scalars: other arguments, by name.
        target: device, such as trn2; "" for that of the environment, else the newest of the kernel's generation.
        cores: physical cores, 1 or 2.

    Raises:
        NeuronToolsError: the kernel does not run.
    """
    if target:
        os.environ[TARGET_VARIABLE] = target
    _check_cores(limits_of(chosen_target()).target, cores)
    kernel = load_kernel(source)
    arguments: dict[str, Any] = dict(scalars)
    for array in arrays:
        if array.name in arguments:
            raise UsageError(f"argument {array.name!r} is given twice", "give each argument once")
        with _at_line(source, "use smaller arrays"):
            arguments[array.name] = random_array(array)
    _check_names(kernel, arguments)
    if cores > 1:
        kernel = kernel[nc(cores) if isinstance(kernel, EagerKernel) else cores]
    with _at_line(source.partition("::")[0], "--debug shows the traceback"):
        return kernel.run((), arguments, quiet=True).launch


def _check_cores(target: str, cores: int) -> None:
    choices = device_of_target(target).lnc_choices
    if cores not in choices:
        raise UsageError(
            f"logical NeuronCore configuration {cores} does not exist on {target}",
            f"choose {' or '.join(map(str, choices))}",
        )


def _check_names(kernel: Kernel | EagerKernel, arguments: Mapping[str, Any]) -> None:
    parameters = inspect.signature(kernel.func).parameters
    is_open = any(item.kind is item.VAR_KEYWORD for item in parameters.values())
    for name in arguments:
        if name not in parameters and not is_open:
            hint = did_you_mean(name, parameters, otherwise=f"it has {', '.join(parameters)}")
            raise UsageError(f"{kernel.func.__name__} has no parameter {name!r}", hint)
    missing = [
        name
        for name, item in parameters.items()
        if item.default is item.empty
        and item.kind not in {item.VAR_KEYWORD, item.VAR_POSITIONAL}
        and name not in arguments
    ]
    if missing:
        raise UsageError(
            f"{kernel.func.__name__} needs {', '.join(missing)}",
            f"give arrays as --shape {missing[0]}=128x512:bf16, others as --arg {missing[0]}=VALUE",
        )
