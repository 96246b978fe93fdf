"""neuron_parallel_compile as a user runs it: both phases, a run that compiles nothing after it, failures, removals."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from neurontools.cache.entries import scan
from neurontools.cache.entry_files import State
from neurontools.machine.launch import start
from neurontools.machine.machine_config import StartOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    Tool = Callable[..., subprocess.CompletedProcess[str]]

TOOL = "neuron_parallel_compile"
# By hand: loading torch.optim takes as long as all the rest.
TRAIN = """
    import torch, torch_xla.core.xla_model as xm
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4).to(xm.xla_device())
    for step in range(3):
        x, y = torch.randn(6, 8).to("xla"), torch.randint(0, 4, (6,)).to("xla")
        model.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
        xm.mark_step()
        print("loss", loss.item())
    print("total", (model.weight * 2).sum().item())
"""
# Its first graph needs a data type that the device lacks; torch.unique runs on the CPU.
DOUBTFUL = """
    import torch, torch_xla.core.xla_model as xm
    a = torch.ones(4, dtype=torch.float64).to(xm.xla_device())
    c = torch.complex(a, a) * 2
    xm.mark_step()
    b = (a + 5).sum()
    xm.mark_step()
    torch.unique(a)
"""


@pytest.fixture(autouse=True)
def running_machine(home: Path) -> None:
    start(StartOptions(machine="default", instance_type="trn1.2xlarge"))


def program(home: Path, body: str, name: str = "train.py") -> str:
    path = home / name
    path.write_text(textwrap.dedent(body))
    return str(path)


def states(home: Path) -> list[str]:
    return sorted(entry.state.value for entry in scan(str(home / "compile-cache")).entries)


def report_of(done: subprocess.CompletedProcess[str]) -> dict[str, object]:
    found = re.search(r"NEURON_PARALLEL_COMPILE\|\|: (\{\n.*?^\})", done.stdout, re.DOTALL | re.MULTILINE)
    assert found, done.stdout + done.stderr
    report: dict[str, object] = json.loads(found[1])
    return report


def test_a_run_after_it_compiles_nothing_and_computes_the_same(
    home: Path, tool: Tool, torch_python: str
) -> None:
    script = program(home, TRAIN)
    plain = tool("neuron-run", "--cache", str(home / "plain"), "--", torch_python, script)
    done = tool(TOOL, "python", script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("loss 0.0\nloss 0.0\nloss 0.0\ntotal 0.0\n")
    assert report_of(done)["compilation_summary"] == {"true": 2}
    assert "Total graphs: 2" in done.stdout
    assert "Total successful compilations: 2" in done.stdout
    assert "Total failed compilations: 0" in done.stdout
    assert done.stderr.count("Extracting graphs (") == 2
    assert states(home) == ["done", "done"]
    after = tool("neuron-run", "--", torch_python, script)
    assert "Call compiler" not in after.stderr
    assert after.stderr.count("Using a cached neff") == 2
    assert after.stdout == plain.stdout
    stats = json.loads(tool("neuron-cache", "stats", "--runs", "--json").stdout)[-1]
    assert (stats["hits"], stats["misses"]) == (2, 0)


@pytest.mark.torch
def test_the_phases_work_one_by_one(home: Path, tool: Tool, torch_python: str) -> None:
    script = program(home, TRAIN)
    collected = tool(TOOL, "--command", "collect", torch_python, script)
    assert (collected.returncode, states(home)) == (0, ["todo", "todo"])
    assert "Collected graphs: 2" in collected.stdout
    assert tool(TOOL, "--command", "scan").stdout == "todo[2]\nlocked[0]\ndone[0]\nfailed[0]\n"
    compiled = tool(TOOL, "--command", "compile", "--num_parallel", "2")
    assert (compiled.returncode, states(home)) == (0, ["done", "done"])
    assert (
        "Current remaining items are 2, locked are 0, failed are 0, done are 0, total is 2" in compiled.stdout
    )
    assert "master grab hlos to compile: ['" in compiled.stdout
    again = tool(TOOL, "--command", "compile")
    assert "Total graphs: 0" in again.stdout


def test_graphs_that_the_compiler_refuses_are_the_exit_code(
    home: Path, tool: Tool, torch_python: str
) -> None:
    script = program(home, DOUBTFUL)
    # The real tool ignores this flag: what it makes is for the cache.
    done = tool(TOOL, torch_python, script, env={**os.environ, "NEURON_CC_FLAGS": "--no_cache"})
    assert done.returncode == 1
    assert json.dumps(report_of(done)["compilation_summary"]) == '{"true": 1, "false": 1}'
    assert "warning: " in done.stderr
    assert "[NCC_EVRF004] Complex data types are not supported" in done.stderr
    listed = tool(TOOL, "--command", "scan-with-failed")
    assert listed.stdout.startswith("todo[0]\nlocked[0]\ndone[1]\nfailed[1]\n  /")
    assert "NCC_EVRF004" in listed.stdout
    known = tool(TOOL, torch_python, script)
    assert (known.returncode, "failed before" in known.stderr) == (1, True)
    # Failures are retried whatever the program needs.
    variables = {**os.environ, "NEURON_CC_FLAGS": "--retry_failed_compilation"}
    retried = tool(TOOL, torch_python, program(home, "pass", "nothing.py"), env=variables)
    assert retried.returncode == 1
    assert "Call compiler with cmd" in retried.stderr


@pytest.mark.torch
def test_a_program_that_fails_compiles_nothing_unless_that_is_requested(
    home: Path, tool: Tool, torch_python: str
) -> None:
    script = program(home, TRAIN + "\n    raise SystemExit(7)\n")
    failed = tool(TOOL, torch_python, script)
    assert (failed.returncode, states(home)) == (1, ["todo", "todo"])
    assert failed.stderr.splitlines()[-2] == (
        "error: the program ended with exit code 7 while its graphs were collected; "
        "2 graphs were collected and none compiled"
    )
    variables = {**os.environ, "NEURON_IGNORE_TRAINING_SCRIPT_ERROR_AND_COMPILE": "1"}
    again = program(home, "raise SystemExit(7)", "again.py")
    ignored = tool(TOOL, torch_python, again, env=variables)
    assert (ignored.returncode, states(home)) == (0, ["done", "done"])
    assert "warning: the program ended with exit code 7" in ignored.stderr


@pytest.mark.torch
def test_a_program_may_name_the_cache_itself(home: Path, tool: Tool, torch_python: str) -> None:
    own = home / "own"
    script = program(
        home, f'import os; os.environ["NEURON_COMPILE_CACHE_URL"] = "{own}"\n' + textwrap.dedent(TRAIN)
    )
    assert tool(TOOL, torch_python, script).returncode == 0
    assert [entry.state for entry in scan(str(own)).entries] == [State.DONE] * 2
    assert not (home / "compile-cache").exists()


def test_analyze_says_what_the_device_does_not_run(home: Path, tool: Tool, torch_python: str) -> None:
    script = program(home, DOUBTFUL)
    done = tool(TOOL, "--command", "analyze", "--analyze-output", "report", torch_python, script)
    assert done.returncode == 0, done.stderr
    result = json.loads((home / "report" / "result.json").read_text())
    assert result["support_percentage"] == "33.33%"
    assert result["supported_operators"] == {"aten": {"aten::add": 1, "aten::sum": 1}}
    unsupported = result["unsupported_operators"]["aten"]
    assert [(item["kind"], item["failureAt"]) for item in unsupported] == [
        ("aten::_unique2", "Lowering to HLO"),
        ("aten::complex", "neuronx-cc"),
        ("aten::copy_", "neuronx-cc"),  # torch.complex writes into a tensor that it resizes
        ("aten::mul", "neuronx-cc"),
    ]
    assert unsupported[0]["call"] == f"aten::_unique2 ({script}:8)"
    assert "complex128[4]" in unsupported[1]["opGraph"]
    brief = tool(TOOL, "--command", "analyze", "--analyze-verbosity", "1", "--json", torch_python, script)
    assert all("opGraph" not in item for item in json.loads(brief.stdout)["unsupported_operators"]["aten"])


@pytest.mark.torch
def test_a_library_of_custom_operators_waits_with_its_graph(
    home: Path, tool: Tool, torch_python: str
) -> None:
    shutil.copytree(Path(__file__).parents[2] / "fixtures" / "customops" / "relu_element", home / "relu")
    built = tool("neuron-customop", "build", cwd=home / "relu")
    assert built.returncode == 0, built.stderr
    (library,) = (home / "relu").rglob("lib*.so")
    script = program(
        home,
        f"""
        import torch, torch_xla.core.xla_model as xm
        from torch_neuronx.xla_impl import custom_op
        custom_op.load_library("{library}")
        x = torch.tensor([[-1.0, 2.0]]).to(xm.xla_device())
        y = torch.ops.{library.stem.removeprefix("lib")}.forward(x)
        xm.mark_step()
        print(y.cpu().tolist())
        """,
    )
    assert tool(TOOL, "--command", "collect", torch_python, script).stdout.splitlines()[0] == "[[0.0, 0.0]]"
    (entry,) = (home / "compile-cache").glob("neuronxcc-*/MODULE_*")
    assert len(list(entry.glob(".library-*"))) == 2
    os.unlink(library)
    done = tool(TOOL, "--command", "compile")
    assert done.returncode == 0, done.stderr
    assert list(entry.glob(".library-*")) == []
    shown = tool("neuron-cache", "show", str(entry))
    assert library.name in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("nosuchprogram",), 127, "cannot run nosuchprogram: program not found"),
        (
            ("--parallel_compile_workdir", "/dev/null/x", "python"),
            1,
            "cannot write to the work directory",
        ),
        (
            ("--analyze-output", "/dev/null/x", "--command", "analyze", "true"),
            1,
            "use another directory with",
        ),
    ],
)
def test_what_cannot_be_done_is_one_line(
    tool: Tool, arguments: tuple[str, ...], code: int, words: str
) -> None:
    done = tool(TOOL, *arguments)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False)
    assert words in done.stderr


@pytest.mark.torch
def test_a_cache_that_cannot_be_written_to_stops_the_collecting(
    home: Path, tool: Tool, torch_python: str
) -> None:
    (home / "compile-cache").write_text("a file")
    done = tool(TOOL, torch_python, program(home, TRAIN))
    assert done.returncode == 1
    assert "graph extraction needs a writable cache" in done.stderr + done.stdout


def test_a_signal_reaches_the_program_which_decides(home: Path) -> None:
    script = program(
        home,
        """
        import os, signal, sys, time
        def end(*_):
            os.write(1, b"told\\n")  # print may have been interrupted in the middle
            sys.exit(5)
        signal.signal(signal.SIGTERM, end)
        print("ready", flush=True)
        time.sleep(600)
        """,
    )
    command = [str(Path(sys.executable).parent / TOOL), "python", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=600)
    assert (process.returncode, out) == (1, "told\n")
    assert "ended with exit code 5" in err
