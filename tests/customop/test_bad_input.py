"""What is wrong with sources, names and library files: each is one line, and one that says what to do."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from neurontools.commands.customop import main
from neurontools.customop.package import Package, Parts, write_package
from neurontools.customop.signature import ABI_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch

KERNEL = "torch::Tensor op(const torch::Tensor& x) { return x; }"
SAME = "torch::Tensor same(torch::Tensor x) { return torch::zeros(x.sizes(), torch::kFloat); }"
DEFINE = 'm.def("op", &same, "op");'
NAMING = "the third argument of m.def is the name of a function in the compute sources"
DEFINED = "operator bad::op: its kernel function {} is not defined in kernel.cpp"


def kernel_source(text: str) -> str:
    return f"#include <torch/torch.h>\n#include <unistd.h>\n#include <vector>\n{text}\n"


def shape_source(function: str, *definitions: str) -> str:
    body = " ".join(definitions or (DEFINE,))
    head = '#include <torch/torch.h>\n#include "torchneuron/register.h"\n#include <vector>\n'
    return f"{head}{function}\nNEURON_LIBRARY(bad, m) {{ {body} }}\n"


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, str]:
    """Return the error and the hint that a command prints, and nothing else."""
    assert main(words) == 1
    out, err = capsys.readouterr()
    assert out == ""
    lines = [line for line in err.splitlines() if line.startswith(("error: ", "hint: "))]
    assert len(lines) == 2, err
    assert "Traceback" not in err
    return lines[0].removeprefix("error: "), lines[1].removeprefix("hint: ")


def built(capsys: pytest.CaptureFixture[str], name: str = "bad") -> tuple[str, str]:
    words = ("build", name, "--compute", "kernel.cpp", "--shape", "shape.cpp", "--cflag=-O0")
    return refusal(capsys, *words, "--no-compile-commands")


def of_shape(result: str, parameters: str) -> str:
    return f"{result} same({parameters}) {{ return {{}}; }}"


SHAPES = {
    "float": (
        of_shape("torch::Tensor", "torch::Tensor, float"),
        "operator bad::op: shape function: parameter 1 has the unsupported type float",
        "use double",
    ),
    "result": (
        of_shape("double", "torch::Tensor"),
        "operator bad::op: shape function returns double",
        "it must return exactly one torch::Tensor",
    ),
}


DEFINITIONS = {
    "eleven": (
        [f'm.def("op{i}", &same, "op");' for i in range(11)],
        "11 operators in one library; the limit is 10",
        "split the library",
    ),
    "no-function-name": (
        ['m.def("op", &same, "op()");'],
        'operator bad::op: "op()" is not the name of a function',
        NAMING,
    ),
    "missing": (['m.def("op", &same, "none");'], DEFINED.format("none"), NAMING),
    "missing-scope": (['m.def("op", &same, "in::side");'], DEFINED.format("in::side"), NAMING),
    "libc": (
        ['m.def("op", &same, "read");'],
        DEFINED.format("read") + "; the function read that is declared there is not a kernel",
        NAMING,
    ),
    "libc-variadic": (
        ['m.def("op", &same, "printf");'],
        DEFINED.format("printf") + "; the function printf that is declared there is not a kernel",
        NAMING,
    ),
}


KERNELS = {
    "mismatch": (
        "torch::Tensor op(const torch::Tensor& x, double) { return x; }",
        "operator bad::op: kernel op takes (Tensor, double), its shape function takes (Tensor)",
        "both must have the same parameters",
    ),
    "result": (
        "std::vector<float> op(const torch::Tensor& x) { return {}; }",
        "operator bad::op: kernel op returns std::vector<float, std::allocator<float> >",
        "it must return exactly one torch::Tensor",
    ),
    "overloaded": (
        f"{KERNEL} torch::Tensor op(double) {{ return {{}}; }}",
        "operator bad::op: kernel function op in kernel.cpp is overloaded",
        "give kernels different names",
    ),
}


CASES = {
    **{f"shape-{name}": (KERNEL, (text,), *told) for name, (text, *told) in SHAPES.items()},
    **{name: (KERNEL, (SAME, *definitions), *told) for name, (definitions, *told) in DEFINITIONS.items()},
    **{f"kernel-{name}": (text, (SAME,), *told) for name, (text, *told) in KERNELS.items()},
}
"""Source of the kernel, shape function with definitions, error and hint."""


@pytest.mark.parametrize("name", CASES)
def test_what_does_not_fit_is_refused_in_a_line(
    scratch: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    kernel, shape, error, hint = CASES[name]
    (scratch / "kernel.cpp").write_text(kernel_source(kernel))
    (scratch / "shape.cpp").write_text(shape_source(*shape))
    assert built(capsys) == (error, hint)


def test_the_reserved_name(scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert built(capsys, "builtin") == ('the library name "builtin" is reserved', "choose another name")


def damaged(contents: Package, kind: str) -> tuple[Package, bytes]:
    """Return a library with something wrong, and the bytes of its file."""
    data = Path(contents.path).read_bytes()
    if kind == "truncated":
        return contents, data[: len(data) // 2]
    if kind == "changed":
        middle = len(contents.parts.shape) + len(contents.parts.kernel) // 2
        return contents, data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    return contents, contents.parts.kernel if kind == "foreign" else b"#!/bin/sh\n"


FILES = {
    "truncated": "bad.so is a shared library but not a custom operator library, or it is truncated",
    "changed": "cannot load bad.so: the file is damaged",
    "foreign": "bad.so is a shared library but not a custom operator library, or it is truncated",
    "script": "bad.so is not a shared library",
}


@pytest.mark.parametrize("command", ["load", "inspect"])
@pytest.mark.parametrize("kind", FILES)
def test_files_that_are_no_whole_library(
    scratch: Path,
    package: Callable[[str], Package],
    capsys: pytest.CaptureFixture[str],
    kind: str,
    command: str,
) -> None:
    (scratch / "bad.so").write_bytes(damaged(package("faults"), kind)[1])
    error, hint = refusal(capsys, command, "bad.so")
    assert error == FILES[kind]
    assert hint in {
        "rebuild it with neuron-customop build or custom_op.load",
        "give the path of a lib<name>.so",
    }


def test_a_library_for_another_version_or_processor(
    scratch: Path, package: Callable[[str], Package], capsys: pytest.CaptureFixture[str]
) -> None:
    contents = package("faults")
    old = ABI_VERSION - 1
    write_package(scratch / "old.so", replace(contents.manifest, abi=old), contents.parts)
    error, hint = refusal(capsys, "load", "old.so")
    assert error == f"cannot load old.so: built for ABI {old}, this version has ABI {ABI_VERSION}"
    assert hint == "rebuild it with neuron-customop build or custom_op.load"
    kernel = bytearray(contents.parts.kernel)
    kernel[18:20] = (243).to_bytes(2, "little")
    parts = Parts(contents.parts.shape, bytes(kernel), contents.parts.worker)
    write_package(scratch / "riscv.so", replace(contents.manifest, parts_sha256=parts.sha256), parts)
    error, hint = refusal(capsys, "load", "riscv.so")
    assert error.startswith("cannot load riscv.so: it is for riscv, this computer is ")


def test_a_kernel_library_with_other_entry_points(
    scratch: Path, package: Callable[[str], Package], capsys: pytest.CaptureFixture[str]
) -> None:
    contents = package("faults")
    kernel = contents.parts.kernel.replace(b"neurontools_describe\0", b"neurontools_deskribe\0")
    parts = Parts(contents.parts.shape, kernel, contents.parts.worker)
    write_package(scratch / "other.so", replace(contents.manifest, parts_sha256=parts.sha256), parts)
    error, _ = refusal(capsys, "load", "other.so")
    assert error.endswith("other.so: the library lacks the entry points of a custom operator library")


def test_an_operator_or_a_file_that_is_not_there(
    scratch: Path, package: Callable[[str], Package], capsys: pytest.CaptureFixture[str]
) -> None:
    error, hint = refusal(capsys, "run", package("faults").path, "none", "--input", "8:float32")
    assert error.endswith("has no operator none")
    assert hint == "it has faults::fault, faults::copy, faults::nap, faults::bad_shape"
    error, hint = refusal(capsys, "load", "none.so")
    assert (error, hint) == ("cannot read none.so: No such file or directory", "build it first")


TWO = """
import sys, torch
from neurontools.customop.load import load_library
for path in (*sys.argv[1:], *sys.argv[1:]):
    load_library(path)
x = torch.arange(8.0)
print(torch.equal(torch.ops.faults.copy(x), x), torch.ops.multicore_faults.fault(x.repeat(2), 8).sum().item())
"""


def test_two_libraries_in_one_process_both_work_and_the_second_is_reported_once(
    package: Callable[[str], Package], torch_python: str
) -> None:
    paths = [package("faults").path, package("multicore_faults").path]
    done = subprocess.run([torch_python, "-c", TWO, *paths], capture_output=True, text=True, check=False)
    assert done.stdout == "True 56.0\n"
    assert done.stderr == (
        f"{paths[1]} is a second custom operator library in this process ({paths[0]} is loaded): "
        "a model may use only one\n"
    )


def test_integers_are_taken_with_a_warning(scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (scratch / "kernel.cpp").write_text(kernel_source(KERNEL.replace("& x)", "& x, int64_t)")))
    (scratch / "shape.cpp").write_text(shape_source(SAME.replace(" x)", " x, int64_t)")))
    words = ("build", "bad", "--compute", "kernel.cpp", "--shape", "shape.cpp", "--cflag=-O0")
    assert main([*words, "--no-compile-commands"]) == 0
    assert (
        "operator bad::op takes int64_t: the AWS documentation of 2025-12 allows only double"
        in capsys.readouterr().err
    )
