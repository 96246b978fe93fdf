from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    Tool = Callable[..., subprocess.CompletedProcess[str]]

_SOURCE = """\
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def add(a, b, factor=1.0):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    left = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    right = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=left, src=a)
    nisa.dma_copy(dst=right, src=b)
    nisa.tensor_scalar(dst=right, data=right, op0=nl.multiply, operand0=factor)
    nisa.tensor_tensor(dst=left, data1=left, data2=right, op=nl.add)
    nisa.dma_copy(dst=out, src=left)
    return out


@nki.jit
def broken(a):
    raise ValueError("no reason")


def plain(a):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=a)
    nisa.dma_copy(dst=tile, src=a)
    nisa.dma_copy(dst=out, src=tile)
    return out


limit = 3
"""
_NO_LNC_2 = "logical NeuronCore configuration 2 does not exist on"
_SHAPES = ("--shape", "a=128x512:bf16", "--shape", "b=128x512:bf16", "--target", "trn2")


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Return a file with kernels."""
    path = tmp_path / "kernels.py"
    path.write_text(_SOURCE)
    return str(path)


def test_text_names_time_bound_and_lines(tool: Tool, file: str) -> None:
    done = tool("neuron-profile", "kernel", f"{file}::add", *_SHAPES)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("add on trn2, 1 core: ")
    assert "kernels.py:14  TENSOR_TENSOR" in done.stdout
    assert done.stdout.endswith("no warnings\n")


def test_json_is_the_same_in_every_run(tool: Tool, file: str) -> None:
    words = ("neuron-profile", "kernel", f"{file}::add", *_SHAPES, "--json")
    first, second = tool(*words).stdout, tool(*words).stdout
    assert first == second
    value = json.loads(first)
    assert (value["kernel"], value["target"]) == ("add", "trn2")
    assert [row["line"] for row in value["cores"][0]["instructions"]] == [11, 12, 13, 14, 15]


def test_the_target_and_other_arguments_reach_the_kernel(tool: Tool, file: str) -> None:
    def time_ns(*words: str) -> float:
        shown = tool("neuron-profile", "kernel", f"{file}::add", *_SHAPES, "--json", *words)
        return float(json.loads(shown.stdout)["time_ns"])

    assert time_ns("--target", "trn1") > time_ns("--target", "trn2")
    assert time_ns("--arg", "factor=2.5") == time_ns()


def test_warnings_are_part_of_the_report(tool: Tool, file: str) -> None:
    done = tool("neuron-profile", "kernel", f"{file}::plain", "--shape", "a=128x512", "--target", "trn2")
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        "kernels.py:27: warning: dma_copy: what it writes to tile is overwritten by dma_copy" in done.stdout
    )


@pytest.mark.parametrize(
    ("words", "exit_code", "error"),
    [
        (("missing.py::add",), 2, "error: missing.py: no such file"),
        (("FILE",), 2, "error: FILE: 2 kernels: add, broken"),
        (("FILE::ad",), 2, "error: FILE: no kernel 'ad'"),
        (("FILE::limit",), 2, "error: FILE: no kernel 'limit'"),
        (("FILE::add", "--shape", "a=12y"), 2, "error: invalid shape 'a=12y'"),
        (("FILE::add", "--shape", "a=0x4"), 2, "error: invalid shape 'a=0x4': a size is 0"),
        (
            ("FILE::add", "--shape", "a=99999x99999x99999"),
            2,
            "error: shape 'a=99999x99999x99999' is too large",
        ),
        (("FILE::add", "--shape", "a=4x4:real"), 2, "error: unknown data type of a kernel: 'real'"),
        (("FILE::add", "--arg", "factor"), 2, "error: invalid argument 'factor'"),
        (("FILE::add", "--shape", "a=128x4"), 2, "error: add needs b"),
        (("FILE::add", *_SHAPES, "--arg", "c=1"), 2, "error: add has no parameter 'c'"),
        (("FILE::add", *_SHAPES, "--arg", "a=1"), 2, "error: argument 'a' is given twice"),
        (("FILE::add", "--target", "trn9"), 2, "error: unknown target 'trn9' of a kernel"),
        *[
            (("FILE::add", *_SHAPES, "--target", target, "--lnc", "2"), 2, f"error: {_NO_LNC_2} {target}")
            for target in ("trn1", "inf2", "gen2")
        ],
        (("FILE::broken", "--shape", "a=4x4"), 1, "error: FILE:21: ValueError: no reason"),
    ],
)
def test_an_error_is_one_line_and_a_hint(
    tool: Tool, file: str, words: tuple[str, ...], exit_code: int, error: str
) -> None:
    done = tool("neuron-profile", "kernel", *[word.replace("FILE", file) for word in words])
    lines = done.stderr.splitlines()
    assert (done.returncode, done.stdout, lines[0]) == (exit_code, "", error.replace("FILE", file))
    assert [line.partition(":")[0] for line in lines[1:]] == ["hint"]


_FIRST_SOURCE = """\
from neuronxcc import nki
import neuronxcc.nki.language as nl


@nki.jit
def softmax(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    e = nl.exp(tile - nl.max(tile, axis=1, keepdims=True))
    nl.store(out, e / nl.sum(e, axis=1, keepdims=True))
    return out


@nki.trace
def double(x, out):
    nl.store(out, nl.load(x) * 2)
"""


@pytest.mark.parametrize(
    ("words", "kernel", "cores", "instructions"),
    [
        (("softmax", "--shape", "x=128x512:bf16"), "softmax", 1, 7),
        (("double", "--shape", "x=128x64", "--shape", "out=128x64"), "double", 1, 3),
        (("double", "--shape", "x=128x64", "--shape", "out=128x64", "--lnc", "2"), "double", 2, 3),
    ],
)
def test_kernels_of_the_first_generation_have_the_same_report(
    tool: Tool, tmp_path: Path, words: tuple[str, ...], kernel: str, cores: int, instructions: int
) -> None:
    path = tmp_path / "first.py"
    path.write_text(_FIRST_SOURCE)
    done = tool("neuron-profile", "kernel", f"{path}::{words[0]}", *words[1:], "--target", "trn2", "--json")
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert (seen["kernel"], seen["target"], len(seen["cores"])) == (kernel, "trn2", cores)
    assert len(seen["cores"][0]["instructions"]) == instructions


def test_what_the_device_refuses_has_file_and_line(tool: Tool, file: str) -> None:
    done = tool(
        "neuron-profile",
        "kernel",
        f"{file}::add",
        "--shape",
        "a=128x4",
        "--shape",
        "b=128x8",
        "--target",
        "trn2",
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {file}:12: dma_copy: ")


def test_a_file_that_does_not_run_is_one_error(tool: Tool, tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text("import no_such_module\n")
    done = tool("neuron-profile", "kernel", f"{path}::add")
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        1,
        f"error: {path}:1: ModuleNotFoundError: No module named 'no_such_module'",
    )


def test_an_unknown_target_of_the_environment_is_named(
    tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn9")
    (tmp_path / "k.py").write_text("")
    done = tool("neuron-profile", "kernel", f"{tmp_path}/k.py")
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "error: unknown target 'trn9' of a kernel")


FILES = {
    "": ("k.py: no kernel", "hint: decorate a function with nki.jit"),
    "x = (": ("k.py:1: SyntaxError: '(' was never closed", ""),
    "import no_such_module": (
        "k.py:1: ModuleNotFoundError: No module named 'no_such_module'",
        "hint: install it, or add its folder to PYTHONPATH",
    ),
    "import sys; sys.exit(3)": ("k.py:1: SystemExit: 3", "hint: the file must run without arguments"),
}


@pytest.mark.parametrize("text", FILES)
def test_a_file_without_a_kernel_that_runs_has_its_own_remedy(tool: Tool, tmp_path: Path, text: str) -> None:
    (tmp_path / "k.py").write_text(text)
    done = tool("neuron-profile", "kernel", f"{tmp_path}/k.py")
    message, hint = FILES[text]
    assert done.returncode != 0
    assert done.stderr.splitlines() == [f"error: {tmp_path}/{message}", *filter(None, [hint])]
