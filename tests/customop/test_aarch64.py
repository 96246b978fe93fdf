"""The runtime and the interface on aarch64, by a cross compiler and an emulator where these are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from neurontools.customop.building import toolchain

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
