"""The demo is the main job: it must do what it says and leave nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """One run of the demo in a temporary directory of its own."""
    folder = tmp_path_factory.mktemp("demo")
    run = subprocess.run(
        [str(Path(sys.executable).parent / "neurontools"), "demo", "--epochs", "6"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "TMPDIR": str(folder), "LANG": "C.UTF-8"},
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run, folder


def section(demo, title):
    """Return what the demo printed under a heading."""
    text = demo[0].stdout.partition(f"== {title}\n")[2]
    return text.partition("\n== ")[0]


def test_the_network_learns_twice_the_same(demo):
    shares = re.findall(r"^test accuracy: ([\d.]+) %$", demo[0].stdout, re.MULTILINE)
    assert len(shares) == 2
    assert float(shares[0]) > 90
    assert shares[0] == shares[1]


def test_neuron_ls_shows_the_training_process_on_its_core(demo):
    table = section(demo, "While it runs")
    rows = [line for line in table.splitlines() if "train.py" in line]
    assert len(rows) == 1
    assert rows[0].startswith("| 0 ")
    assert re.search(r"\| \d+ +\|", rows[0])


def test_the_first_run_compiles_and_the_second_does_not(demo):
    log = demo[0].stderr
    compiled = log.count("Call compiler with cmd")
    assert compiled > 0
    assert log.count("Using a cached neff at") == compiled


def test_the_cache_lists_what_was_compiled(demo):
    listing = section(demo, "The compile cache")
    assert listing.count("MODULE_") == demo[0].stderr.count("Call compiler with cmd")


def test_the_profile_names_the_engines_and_the_operators(demo):
    summary = section(demo, "The profile of the first run")
    assert "tensor_engine_active_time" in summary
    assert "aten.addmm" in summary or "aten.mm" in summary
    assert "relu_tcm.forward" in summary


def test_it_says_what_to_try_next(demo):
    assert "neuron-top" in demo[0].stdout.splitlines()[-5]


def test_it_leaves_no_files_and_no_processes(demo):
    _, folder = demo
    assert list(folder.iterdir()) == []
    assert not [process for process in psutil.process_iter() if str(folder) in _environment(process)]


DEMO = """
import sys
from neurontools.commands import demo

class Run(demo.DemoRun):
    def __init__(self, root):
        super().__init__(root)
        self.environment["XDG_CACHE_HOME"] = sys.argv[1]

demo.DemoRun = Run
sys.exit(demo.main([]))
"""
"""The demo with a build directory of the tests, where the runtime of custom operators is compiled already."""


def test_interrupted_it_still_cleans_up(tmp_path, torch_python):
    command = [torch_python, "-c", DEMO, os.environ["XDG_CACHE_HOME"]]
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "TMPDIR": str(tmp_path), "LANG": "C.UTF-8"}
    with subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("epoch"):
                break
        psutil.Process(child.pid).send_signal(signal.SIGINT)
        child.stdout.read()
        assert child.wait(600) == 130
    assert list(tmp_path.iterdir()) == []
    wait_until(lambda: not [each for each in psutil.process_iter() if str(tmp_path) in _environment(each)])


def _environment(process):
    try:
        return " ".join(process.environ().values())
    except (psutil.Error, OSError):
        return ""
