"""Where an operator runs on the lazy device: graphs, the compile cache, profiles and monitors, as a user meets them.

Custom operators exist on NeuronCore-v2 only: other machines are refused, unless somebody says to go on.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from neurontools import env
from neurontools.commands.customop import main
from neurontools.customop.environment import check_instance
from neurontools.customop.errors import UnsupportedInstanceError
from neurontools.customop.torch_operators import register
from neurontools.machine import launch
from neurontools.machine.machine_config import StartOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.customop.conftest import Library

    Tool = Callable[..., subprocess.CompletedProcess[str]]
    from neurontools.customop.package import Package

HEAD = """
    import os, sys, time
    import torch
    import torch_xla.core.xla_model as xm
    from torch_neuronx.xla_impl import custom_op
"""


@pytest.fixture
def run(tool: Tool, torch_python: str, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run a program under neuron-run in a directory of its own; returns what it printed, the log included."""
    monkeypatch.setenv("NEURONTOOLS_AUTOSTART", "1")

    def start(body: str, *arguments: str) -> str:
        (scratch / "program.py").write_text(textwrap.dedent(HEAD) + textwrap.dedent(body))
        done = tool("neuron-run", "--", torch_python, "program.py", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return start


def test_operators_are_recorded_on_the_device(
    run: Callable[..., str], library: Callable[[str], Path]
) -> None:
    run(
        """
        custom_op.load_library(sys.argv[1])
        ops = torch.ops.relu_tcm
        x = torch.randn(4, 8)
        device = x.to("xla")
        views = [lambda v: v, torch.t, lambda v: v[::2, 1:], lambda v: v[:1].expand(3, -1), lambda v: v[0, 0], lambda v: v[:0]]
        for view in views * 3:  # learned, then recorded
            y = ops.forward(view(device))
            xm.mark_step()
            assert torch.equal(y.cpu(), torch.relu(view(x)))
        from neurontools.customop.torch_operators import is_device_resident
        from neurontools.xla.buffers import buffer_of
        weight, places = torch.ones(8, 8).to("xla"), []
        for _ in range(3):  # what operators read moves into the machine's memory once, and their results lie there
            y = ops.forward(weight)
            xm.mark_step()
            hosts = [buffer_of(weight).host, buffer_of(y).host]
            places.append((hosts[0].data_ptr(), [is_device_resident(host) for host in hosts]))
        assert places[1] == places[2], places
        assert places[2][1] == [True, True], places
        class Relu(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return ops.forward(x)
            @staticmethod
            def backward(ctx, gradient):
                return ops.backward(gradient, ctx.saved_tensors[0])
        for _ in range(3):
            leaf = device.clone().requires_grad_()
            Relu.apply(leaf).sum().backward()
            assert torch.equal(leaf.grad.cpu(), (x > 0).float())
        torch.library.opcheck(ops.forward, (device,))
        with torch.inference_mode():
            assert torch.equal(ops.forward(device).cpu(), torch.relu(x))
        try:
            ops.backward(device, x)
        except RuntimeError as error:
            assert "at least two devices, xla:0 and cpu" in str(error)
        else:
            raise AssertionError("tensors of two devices")
        """,
        str(library("relu_tcm")),
    )


SHAPE = """#include <torch/torch.h>
#include "torchneuron/register.h"
torch::Tensor shape(torch::Tensor x, torch::Scalar n) { return torch::zeros({x.size(0), n.to<int64_t>() + EXTRA}, torch::kFloat); }
NEURON_LIBRARY(wide, m) { m.def("fill", &shape, "fill"); }
"""
KERNEL = """#include <torch/torch.h>
torch::Tensor fill(torch::Tensor x, torch::Scalar n) { return torch::full({x.size(0), n.to<int64_t>() + EXTRA}, n, torch::kFloat); }
"""


def test_numbers_choose_shapes_and_an_edited_library_takes_over(
    run: Callable[..., str], scratch: Path
) -> None:
    for extra in ("0", "1"):
        (scratch / f"shape{extra}.cpp").write_text(SHAPE.replace("EXTRA", extra))
        (scratch / f"kernel{extra}.cpp").write_text(KERNEL.replace("EXTRA", extra))
    run(
        """
        def load(version):
            sources = [f"kernel{version}.cpp"], [f"shape{version}.cpp"]
            custom_op.load("wide", *sources, build_directory=".", extra_cflags=["-O0"])
        load(0)
        x = torch.zeros(2, 1).to("xla")
        def step(n):
            y = torch.ops.wide.fill(x, n)
            xm.mark_step()
            return y
        for n in (2, 3.0, 2, 3.0, 2, 3.0):
            assert step(n).shape == (2, n), step(n).shape
            assert torch.equal(step(n).cpu(), torch.full((2, int(n)), float(n)))
        pending = torch.ops.wide.fill(x, 2)
        load(1)
        assert torch.equal(pending.cpu(), torch.full((2, 2), 2.0))  # by the code that it was recorded with
        for _ in range(3):
            assert torch.equal(step(2).cpu(), torch.full((2, 3), 2.0))
        """
    )


STEP = """
    def step(home, name):
        sources = [f"{home}/kernel.cpp"], [f"{home}/shape.cpp"]
        custom_op.load(name, *sources, build_directory=".", extra_cflags=["-O0"])
        y = torch.ops.wide.fill(torch.zeros(2, 1).to("xla"), 3)
        xm.mark_step()
    step(sys.argv[1], sys.argv[2])
"""
EDIT = """
    with open(f"{sys.argv[1]}/kernel.cpp", "a") as source:
        source.write("// a comment\\n")
    print("edited", file=sys.stderr, flush=True)
    step(sys.argv[1], sys.argv[2])
"""


def test_the_compile_cache_knows_an_operator_by_its_code(
    run: Callable[..., str], tool: Tool, scratch: Path, home: Path
) -> None:
    for name in ("here", "there"):
        (scratch / name).mkdir()
        (scratch / name / "shape.cpp").write_text(SHAPE.replace("EXTRA", "0"))
        (scratch / name / "kernel.cpp").write_text(KERNEL.replace("EXTRA", "0"))
    assert "Call compiler" in run(STEP, "here", "fill")
    moved, _, edited = run(STEP + EDIT, "there", "renamed").partition("edited\n")
    assert "Using a cached neff" in moved
    assert "Call compiler" not in moved
    assert "Call compiler" in edited
    modules = [path.name for path in (home / "compile-cache").glob("*/MODULE_*")]
    shown = [tool("neuron-cache", "show", module).stdout for module in modules]
    assert sorted("libfill.so" in text for text in shown) == [False, True]
    assert sorted("librenamed.so" in text for text in shown) == [False, True]


LOOP = """
    custom_op.load_library(sys.argv[1])
    x = torch.randn(32, 4096).to("xla")
    end = time.monotonic() + 60
    for step in range(10**9):
        y = torch.ops.relu_tcm.forward(x) + 1
        xm.mark_step()
        if step == 5:
            print("busy", flush=True)
        if os.path.exists("stop") or time.monotonic() > end:
            break
        time.sleep(0.01)
"""
MONITOR = """
    {"period": "300ms", "neuron_runtimes": [{"tag_filter": ".*", "metrics": [{"type": "neuroncore_counters"}]}],
     "system_metrics": []}
"""


@pytest.mark.torch
def test_gpsimd_time_is_in_monitor_top_and_profile(
    tool: Tool,
    torch_python: str,
    scratch: Path,
    library: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NEURONTOOLS_AUTOSTART", "1")
    (scratch / "program.py").write_text(textwrap.dedent(HEAD) + textwrap.dedent(LOOP))
    (scratch / "monitor.json").write_text(MONITOR)
    program = subprocess.Popen(
        [
            str(Path(sys.executable).parent / "neuron-run"),
            *("--profile", "profile", "--", torch_python, "program.py", str(library("relu_tcm"))),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert program.stdout is not None
    try:
        assert program.stdout.readline() == "busy\n"
        lines = tool("neuron-monitor", "-c", "monitor.json", "--limit", "3").stdout.splitlines()
        page = json.loads(tool("neuron-top", "--once", "--page", "processes", "--json").stdout)
    finally:
        (scratch / "stop").touch()
        program.stdout.close()
        assert program.wait(60) == 0
    cores = _cores(json.loads(lines[-1]))
    assert cores["0"]["gpsimd_modelled_seconds"] > 0
    assert "gpsimd_modelled_seconds" not in cores["1"]
    assert page["processes"][0]["gpsimd_modelled_s"] > 0
    summary = tool("neuron-profile", "summary", "profile").stdout
    (row,) = (
        line.split() for line in summary.splitlines() if line.split()[:1] == ["relu_tcm.forward.default"]
    )
    assert row[1] == "GpSimd"


def _cores(line: dict[str, Any]) -> dict[str, Any]:
    (runtime,) = line["neuron_runtime_data"]
    cores: dict[str, Any] = runtime["report"]["neuroncore_counters"]["neuroncores_in_use"]
    return cores


def test_an_operator_without_end_is_a_timeout_of_the_runtime(
    run: Callable[..., str], library: Callable[[str], Path]
) -> None:
    printed = run(
        """
        custom_op.load_library(sys.argv[1])
        x = torch.arange(8.0).to("xla")
        nap = torch.ops.faults.nap
        nap(x, 0.2)
        xm.mark_step()
        os.environ["NEURON_RT_EXEC_TIMEOUT"] = "0.05"
        y = nap(x, 0.2)
        try:
            xm.mark_step()
        except Exception as error:
            print(type(error).__name__, error)
        os.environ["NEURON_RT_EXEC_TIMEOUT"] = "30"
        assert torch.equal(torch.ops.faults.copy(x).cpu(), torch.arange(8.0))
        """,
        str(library("faults")),
    )
    assert "(NRT_TIMEOUT)" in printed
    assert (
        "NeuronCustomOpError custom operator faults::nap failed on core 0: timeout: no result after 0.05 s"
        in printed
    )


@pytest.mark.parametrize("kind", ["trn1.2xlarge", "trn1n.32xlarge", "inf2.xlarge"])
def test_machines_with_version_2_cores_are_fine(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setenv(env.INSTANCE, kind)
    check_instance()


@pytest.mark.parametrize(
    ("kind", "core"),
    [
        ("inf1.xlarge", "NeuronCore-v1"),
        ("trn2.48xlarge", "NeuronCore-v3"),
        ("trn3.48xlarge", "NeuronCore-v4"),
    ],
)
def test_other_machines_are_refused(monkeypatch: pytest.MonkeyPatch, kind: str, core: str) -> None:
    monkeypatch.setenv(env.INSTANCE, kind)
    with pytest.raises(UnsupportedInstanceError, match=f"machine 'default' is {kind} with {core}") as caught:
        check_instance()
    assert f"{env.CUSTOMOP_ANY_INSTANCE}=1" in caught.value.remedy
    monkeypatch.setenv(env.CUSTOMOP_ANY_INSTANCE, "1")
    check_instance()


def test_the_machine_that_runs_counts(home: Path) -> None:
    machine = "other"
    launch.start(StartOptions(machine=machine, instance_type="trn2.3xlarge"))
    try:
        code = "from neurontools.customop.environment import check_instance; check_instance()"
        run = subprocess.run(
            [sys.executable, "-c", f"import os; os.environ['{env.MACHINE}'] = '{machine}'; {code}"],
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        launch.stop(machine)
    assert run.returncode == 1
    assert "machine 'other' is trn2.3xlarge with NeuronCore-v3" in run.stderr
    assert "hint: choose another machine" in run.stderr


def test_loading_is_refused(package: Callable[[str], Package], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.INSTANCE, "trn2.48xlarge")
    with pytest.raises(UnsupportedInstanceError, match="custom operators need NeuronCore-v2"):
        register(package("multicore_wrong"))


@pytest.mark.parametrize(
    "words",
    [
        ("load", "LIB"),
        ("run", "LIB", "copy", "--input", "8:float32"),
        ("check", "LIB", "copy", "--cases", "0", "--input", "N:float32"),
    ],
    ids=lambda words: words[0],
)
def test_the_flag_of_the_commands(
    library: Library,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
) -> None:
    monkeypatch.setenv(env.INSTANCE, "trn2.48xlarge")
    monkeypatch.setenv(env.CUSTOMOP_ANY_INSTANCE, "")  # the flag sets it: restored at the end
    argv = [str(library("faults")) if word == "LIB" else word for word in words]
    assert main(argv) == 1
    err = capsys.readouterr().err
    assert "error: custom operators need NeuronCore-v2 (trn1, trn1n, inf2); machine 'default' is" in err
    assert "hint: " in err
    assert main([*argv, "--any-instance"]) == 0


def test_the_flag_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    assert "--any-instance" in capsys.readouterr().out
