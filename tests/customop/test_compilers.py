"""Other compilers than g++: the same library, the same faults at the same lines, the same words about bad input.

The runtime and the interface on aarch64, by a cross compiler and an emulator where these are installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from neurontools.customop.building import toolchain
from neurontools.customop.building.build import build
from neurontools.customop.building.request import BuildRequest
from neurontools.customop.errors import CustomOpBuildError, NeuronCustomOpError
from neurontools.customop.marshalling import execute
from neurontools.customop.operation import CustomOperator, new_executor
from neurontools.customop.package import read_package
from tests.customop.conftest import request_for

if TYPE_CHECKING:
    from collections.abc import Iterator

COMPILERS = {"clang++": "clang++", "zig": f"{sys.executable} -m ziglang c++"}


def is_there(name: str) -> bool:
    return find_spec("ziglang") is not None if name == "zig" else shutil.which(name) is not None


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.skipif(not is_there(name), reason=f"{name} is not installed"))
        for name in COMPILERS
    ]
)
def compiler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    monkeypatch.setenv("CXX", COMPILERS[name])
    return name


@pytest.fixture
def operation(compiler: str) -> Iterator[CustomOperator]:
    package = read_package(build(request_for("faults")).path)
    assert package.manifest.compiler
    executor = new_executor(package)
    yield CustomOperator(package, 0, executor)
    executor.close()


LINES = {
    0: ("null", "null"),
    4: ("bounds", "index"),
    20: ("tcm", "malloc"),
    21: ("tcm", "tcm-copy"),
    29: ("coverage", "partly"),
    60: ("abort", "abort"),
    61: ("exit", "exit"),
    62: ("assert", "assert"),
    80: ("dtype", "dtype"),
    82: ("output", "kernel"),
}


def test_faults_are_reported_at_their_lines(operation: CustomOperator) -> None:
    source = request_for("faults").compute[0].read_text().splitlines()
    x = torch.arange(8.0)
    for which, (kind, mark) in LINES.items():
        with pytest.raises(NeuronCustomOpError) as caught:
            execute(operation, (x, x.clone(), which))
        line = next(i for i, text in enumerate(source, 1) if text.endswith(f"// {mark}"))
        assert (caught.value.kind, caught.value.location.rpartition(":")[2]) == (kind, str(line)), which
    _, completed = execute(operation, (x, x.clone(), 24))
    assert completed.warnings[0].startswith("tcm: 1 TCM block (4096 bytes) not freed")


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (
            "torch::Tensor read(torch::Tensor x) { return x; } torch::Tensor read(double) { return {}; }",
            "operator bad::op: kernel function read in kernel.cpp is overloaded",
        ),
        (
            "",
            "its kernel function read is not defined in kernel.cpp; the function read that is declared there is not a kernel",
        ),
        ("torch::Tensor op(torch::Tensor x) { return y; }", "kernel.cpp:2:44: error: "),
    ],
    ids=["overloaded", "libc", "error"],
)
def test_bad_input_is_reported_in_the_same_words(
    compiler: str, scratch: Path, kernel: str, message: str
) -> None:
    assert compiler
    head = "#include <torch/torch.h>\n"
    unistd = "#include <unistd.h>\n" if not kernel else ""
    (scratch / "kernel.cpp").write_text(f"{head}{unistd}{kernel}\n")
    (scratch / "shape.cpp").write_text(
        f'{head}#include "torchneuron/register.h"\ntorch::Tensor same(torch::Tensor x) {{ return x; }}\n'
        f'NEURON_LIBRARY(bad, m) {{ m.def("op", &same, "{"op" if " op(" in kernel else "read"}"); }}\n'
    )
    wanted = BuildRequest("bad", (scratch / "kernel.cpp",), (scratch / "shape.cpp",), scratch, ("-O0",))
    with pytest.raises(CustomOpBuildError) as caught:
        build(wanted)
    assert message.replace("kernel.cpp", str(scratch / "kernel.cpp")) in caught.value.message
    if message.endswith("error: "):
        assert f"{kernel}\n" in caught.value.message  # the line itself, which clang prints without an indent


CXX, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
HERE = Path(__file__).parent / "kernels" / "interface"
KERNELS = ("dtypes", "factories", "operations", "bits", "members", "streams", "tcm")
TRAPS = "-Wl,--wrap=__cxa_throw,--wrap=abort,--wrap=exit,--wrap=_exit,--wrap=__assert_fail"


def compile_(directory: Path, *words: str) -> None:
    flags = ("-std=c++14", "-fPIC", "-fvisibility=hidden", "-g1", "-O1", "-I", str(toolchain.INCLUDE))
    run = subprocess.run([CXX, *flags, *words], cwd=directory, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")


def emulate(directory: Path, *words: str, fd: int = 0) -> str:
    command = [EMULATOR, "-L", "/usr/aarch64-linux-gnu", *words]
    run = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, check=False, pass_fds=(fd,) if fd else ()
    )
    assert (run.returncode, run.stderr) == (0, "")
    return run.stdout


@pytest.mark.skipif(not (shutil.which(CXX) and shutil.which(EMULATOR)), reason=f"no {CXX} or no {EMULATOR}")
def test_every_item_works_there_and_the_worker_reads_the_library(tmp_path: Path) -> None:
    exports = "".join(f'static const neurontools::KernelDefinition k_{k}("{k}", &{k});\n' for k in KERNELS)
    (tmp_path / "unit.cpp").write_text(
        f'#include "{HERE / "compute.cpp"}"\n#include "neurontools/registry.hpp"\n{exports}'
    )
    runtime = [str(toolchain.SOURCE / f"{name}.cpp") for name in toolchain.RUNTIME_SOURCES]
    worker = [str(toolchain.SOURCE / f"{name}.cpp") for name in toolchain.WORKER_SOURCES]
    compile_(tmp_path, "-shared", "unit.cpp", *runtime, TRAPS, "-Wl,-z,defs", "-o", "kernels.so")
    compile_(tmp_path, *worker, "-o", "worker", "-ldl", "-pthread")
    compile_(tmp_path, str(HERE / "run.cpp"), "-o", "run", "-ldl")
    results = emulate(tmp_path, "./run", "./kernels.so", *KERNELS).splitlines()
    assert [line for line in results if line != "6"] == [f"{name} 0 1 " for name in KERNELS]
    fd = os.open(tmp_path / "kernels.so", os.O_RDONLY)
    try:
        described = emulate(tmp_path, "./worker", "describe", str(fd), fd=fd)
    finally:
        os.close(fd)
    assert described == "".join(f"kernel\t{name}\ttensor\tconst-tensor\n" for name in KERNELS)
