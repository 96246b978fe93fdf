"""neuron-run becomes the program: its environment, its exit code, its shims."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from neurontools.compat.launch import RunOptions, environment, hiding_flag


def test_a_program_keeps_its_exit_code_and_output(tool, home):
    run = tool("neuron-run", "--", "python", "-c", "print('hello'); raise SystemExit(7)")
    assert (run.returncode, run.stdout, run.stderr) == (7, "hello\n", "")


def test_a_failing_script_shows_its_own_traceback_only(tool, home):
    script = home / "bad.py"
    script.write_text("def f():\n    return 1 / 0\nf()\n")
    run = tool("neuron-run", "--", "python", str(script))
    assert run.returncode == 1
    assert run.stderr.startswith("Traceback (most recent call last):")
    assert run.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert "neurontools" not in run.stderr


def test_a_missing_program_is_one_line_and_127(tool):
    run = tool("neuron-run", "--", "no-such-program-here")
    assert run.returncode == 127
    assert (
        run.stderr
        == "error: cannot run no-such-program-here: program not found\nhint: check the name and PATH\n"
    )


def test_a_script_that_is_not_a_program_is_126_with_the_way_to_run_it(tool, home):
    (home / "train.py").write_text("print(1)\n")
    run = tool("neuron-run", "train.py", cwd=home)
    assert run.returncode == 126
    assert (
        run.stderr
        == "error: cannot run train.py: it is not executable\nhint: neuron-run -- python train.py\n"
    )


def test_a_directory_and_a_program_of_a_wrong_format_are_126(tool, home):
    broken = home / "broken"
    broken.write_bytes(b"\x7fELFnothing")
    broken.chmod(0o755)
    for name, reason in ((str(home), "it is a directory"), (str(broken), "Exec format error")):
        run = tool("neuron-run", "--", name)
        assert run.returncode == 126
        assert run.stderr.startswith(f"error: cannot run {name}: {reason}\n")


def test_a_profile_without_a_place_is_refused_before_the_program_starts(tool, home):
    (home / "file").write_text("")
    run = tool("neuron-run", "--profile", str(home / "file"), "--", "python", "-c", "print('started')")
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.startswith(f"error: cannot write a profile to {home}/file: File exists\nhint: ")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--steps", "1-2"), "--steps is for a profile"),
        (("--stacks",), "--stacks is for a profile"),
        (("--profile", "p", "--steps", "0-2"), "--steps 0-2 is not a range of steps"),
        (("--profile", "p", "--steps", "3-2"), "--steps 3-2 is not a range of steps"),
        (("--profile", "p", "--steps", "last"), "--steps last is not a range of steps"),
    ],
)
def test_steps_that_cannot_be_profiled_are_named(tool, options, problem):
    run = tool("neuron-run", *options, "--", "python", "-c", "print('started')")
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith(f"error: {problem}\nhint: ")


def test_a_run_that_never_uses_the_device_leaves_no_profile_directory(tool, home):
    (home / "old").mkdir()
    for directory in (home / "new" / "prof", home / "old"):
        run = tool("neuron-run", "--profile", str(directory), "--", "python", "no-such-script.py")
        assert run.returncode == 2
    assert not (home / "new").exists()
    assert (home / "old").exists()


@pytest.mark.torch
def test_the_traceback_of_a_script_ends_with_the_remedy(tool, torch_python):
    code = "import torch, torch_xla.core.xla_model as xm; torch.ones(1).to(xm.xla_device())"
    run = tool("neuron-run", "--", torch_python, "-c", code)
    assert run.returncode == 1
    assert run.stderr.endswith("\nhint: start it: neurond start\n")


def test_no_program_is_a_usage_error(tool):
    run = tool("neuron-run")
    assert run.returncode == 2
    assert "no program given" in run.stderr


def test_a_signal_reaches_the_program_itself(home):
    command = [str(Path(sys.executable).parent / "neuron-run"), "--", "python", "-c"]
    code = "import time; print('up', flush=True); time.sleep(60)"
    with subprocess.Popen([*command, code], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        child.send_signal(signal.SIGTERM)
        assert child.wait(10) == -signal.SIGTERM


def test_the_shims_are_found_only_under_neuron_run(tool, home):
    code = "import importlib.util as u; print(u.find_spec('torch_xla') is not None)"
    assert tool("neuron-run", "--", "python", "-c", code).stdout == "True\n"
    assert subprocess.check_output([sys.executable, "-c", code], text=True, cwd=home) == "False\n"


def test_a_real_package_wins_over_a_shim(tool, home):
    (home / "torch_xla").mkdir()
    (home / "torch_xla" / "__init__.py").write_text("real = True\n")
    run = tool("neuron-run", "--", "python", "-c", "import torch_xla; print(torch_xla.real)", cwd=home)
    assert run.stdout == "True\n"


@pytest.mark.torch
def test_an_installed_torch_xla_is_not_mixed_with_the_simulated_torch_neuronx(tool, torch_python, home):
    (home / "torch_xla").mkdir()
    (home / "torch_xla" / "__init__.py").write_text("")
    run = tool("neuron-run", "--", torch_python, "-c", "import torch_neuronx", cwd=home)
    assert re.search(
        r"^ImportError: torch_xla is installed in .*/torch_xla, .*pip uninstall torch_xla",
        run.stderr,
        re.MULTILINE,
    )


@pytest.mark.torch
def test_another_torch_is_refused_in_one_line(tool, torch_python):
    script = "import torch; del torch._C._acc; torch.__version__ = '2.9.1'; import torch_xla"
    run = tool("neuron-run", "--", torch_python, "-c", script)
    assert re.search(
        r"DeviceError: torch 2.9.1 lacks create_empty_tensor, .*\nhint: install torch 2.13\n$", run.stderr
    )


def test_the_users_own_sitecustomize_still_runs(tool, home, monkeypatch):
    (home / "sitecustomize.py").write_text("import builtins; builtins.mine = 'yes'\n")
    monkeypatch.setenv("PYTHONPATH", str(home))
    run = tool("neuron-run", "--", "python", "-c", "import builtins; print(builtins.mine)")
    assert run.stdout == "yes\n"


def test_starting_python_under_neuron_run_does_not_load_torch(tool):
    run = tool("neuron-run", "--", "python", "-c", "import sys; print('torch' in sys.modules)")
    assert run.stdout == "False\n"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (RunOptions(("x",), machine="ci"), {"NEURONTOOLS_MACHINE": "ci"}),
        (RunOptions(("x",), cache="/c"), {"NEURON_COMPILE_CACHE_URL": "/c"}),
        (RunOptions(("x",), explain=True), {"NEURONTOOLS_EXPLAIN": "1"}),
        (
            RunOptions(("x",), profile="/p"),
            {
                "NEURON_RT_INSPECT_ENABLE": "1",
                "NEURON_RT_INSPECT_DEVICE_PROFILE": "1",
                "NEURON_RT_INSPECT_OUTPUT_DIR": "/p",
            },
        ),
    ],
)
def test_options_become_the_variables_that_the_real_runtime_reads(options, expected):
    assert environment(options, {}).items() >= expected.items()


def test_the_environment_keeps_what_was_there():
    made = environment(RunOptions(("x",)), {"PATH": "/bin", "PYTHONPATH": "/mine", "OTHER": "1"})
    assert made["PATH"] == f"{os.path.dirname(sys.executable)}:/bin"
    assert made["PYTHONPATH"].endswith("/site:/mine")
    assert made["OTHER"] == "1"


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        ("python -E x.py", "-E"),
        ("python3 -I x.py", "-I"),
        ("/usr/bin/python3.11 -u -I x.py", "-I"),
        ("python -uE x.py", "-E"),
        ("python -X dev -W ignore -I x.py", "-I"),
        ("python -Xdev -Ic pass", "-I"),
        ("python -S x.py", "-S"),
        ("python -u x.py -E", ""),
        ("python -c pass -I", ""),
        ("python -m pytest -I", ""),
        ("python -mE", ""),
        ("python -WE x.py", ""),
        ("python -W -I x.py", ""),
        ("python --version", ""),
        ("python", ""),
        ("python -", ""),
        ("torchrun -I x.py", ""),
    ],
)
def test_flags_that_hide_the_packages_are_found(command, flag):
    assert hiding_flag(command.split()) == flag


def test_a_hidden_package_is_announced(tool, home):
    run = tool("neuron-run", "--", "python", "-I", "-c", "import torch_xla")
    first, *_, last = run.stderr.splitlines()
    assert first == (
        "warning: python -I hides torch_xla, torch_neuronx and the device neuron from the program: leave -I out"
    )
    assert last == "ModuleNotFoundError: No module named 'torch_xla'"
