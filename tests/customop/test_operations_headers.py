"""The headers compile without a warning in programs that ask for all of them, by every compiler that is here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from neurontools import customop

INCLUDE = Path(next(iter(customop.__path__))) / "include"
KERNELS = Path(__file__).parent / "kernels"
WARNINGS = (
    "-Wall",
    "-Wextra",
    "-Wpedantic",
    "-Wshadow",
    "-Wconversion",
    "-Wsign-conversion",
    "-Wnon-virtual-dtor",
    "-Werror",
)
COMPILERS = ("g++", "clang++", "aarch64-linux-gnu-g++")
PROGRAM = f"""
#include <ATen/ATen.h>
#include <neuron/neuron-utils.hpp>
#include <torch/extension.h>
#include <torch/torch.h>
#include "torchneuron/register.h"
#include "{KERNELS / "interface" / "compute.cpp"}"
#include "{KERNELS / "interface" / "shape.cpp"}"

at::Tensor twice(at::Tensor x) {{ return at::add(x, x); }}
"""


# A language that only one of two compilers objects to is rare: the other two speak ours and the newest.
@pytest.mark.parametrize(
    ("compiler", "standard"),
    [
        *(("g++", standard) for standard in ("c++14", "c++17", "c++20")),
        *((compiler, standard) for compiler in COMPILERS[1:] for standard in ("c++14", "c++20")),
    ],
)
def test_the_headers_have_no_warnings(compiler: str, standard: str, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    source = tmp_path / "program.cpp"
    source.write_text(PROGRAM)
    # Not as system headers, where compilers keep quiet.
    command = [compiler, f"-std={standard}", *WARNINGS, "-fsyntax-only", "-I", str(INCLUDE), str(source)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")


def test_there_is_a_compiler_to_test_with() -> None:
    assert any(map(shutil.which, COMPILERS))
