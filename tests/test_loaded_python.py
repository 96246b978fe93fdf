"""Programs of tests/loaded_python.py see and end as those of a new Python do."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.loaded_python import LoadedPython

if TYPE_CHECKING:
    from collections.abc import Iterator

TRACEBACK = """Traceback (most recent call last):
  File "<string>", line 1, in <module>
ZeroDivisionError: division by zero
"""
ENDS = {
    "raise SystemExit(7)": (7, ""),
    "raise SystemExit('why')": (1, "why\n"),
    "import atexit, sys; atexit.register(sys.stderr.write, 'end')": (0, "end"),
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": (-signal.SIGKILL, ""),
    "1/0": (1, TRACEBACK),
}


@pytest.fixture(scope="module")
def python() -> Iterator[LoadedPython]:
    loaded = LoadedPython("import wave")
    yield loaded
    loaded.close()


@pytest.mark.parametrize("program", ENDS)
def test_a_program_ends_as_in_python(python: LoadedPython, home: Path, program: str) -> None:
    done = python.run(["-c", program], home)
    assert (done.returncode, done.stderr) == ENDS[program]
    done = subprocess.run([python.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == ENDS[program]


def test_a_program_has_its_own_directory_environment_arguments_and_modules(
    python: LoadedPython, home: Path
) -> None:
    (home / "sitecustomize.py").write_text("import builtins; builtins.mine = 'yes'\n")
    (home / "beside.py").write_text("name = 'beside'\n")
    program = home / "program.py"
    program.write_text(
        "import os, sys, beside\n"
        "print('wave' in sys.modules, mine, beside.name, sys.argv[1:], os.environ['ONE'], os.getcwd(), __name__)\n"
    )
    done = python.run(["-u", str(program), "x", "-c"], Path("/"), {"ONE": "1", "PYTHONPATH": str(home)})
    assert (done.stdout, done.stderr) == ("True yes beside ['x', '-c'] 1 / __main__\n", "")


SPAWNS = """
import multiprocessing, os, sys

def work(queue):
    queue.put(("wave" in sys.modules, os.getpid()))

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    workers = [context.Process(target=work, args=(queue,)) for _ in range(2)]
    [worker.start() for worker in workers]
    loaded, pids = zip(*[queue.get() for _ in workers])
    [worker.join() for worker in workers]
    print(loaded, len({*pids, os.getpid()}), [worker.exitcode for worker in workers])
"""


def test_workers_that_multiprocessing_spawns_are_copies(python: LoadedPython, home: Path) -> None:
    (home / "program.py").write_text(SPAWNS)
    done = python.run([str(home / "program.py")], home)
    assert (done.stdout, done.stderr) == ("(True, True) 3 [0, 0]\n", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_reaches_the_program(python: LoadedPython, number: signal.Signals) -> None:
    program = "import time; print(1); time.sleep(600)"
    with subprocess.Popen(
        [python.executable, "-u", "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(number)
        assert process.stdout.read() == b""  # who had it open has ended
    assert process.returncode == -number


def test_the_outputs_of_a_program_may_be_pipes_or_files(python: LoadedPython, home: Path) -> None:
    program = "import sys; [file.reconfigure(errors='replace') for file in (sys.stdout, sys.stderr)]; print('wörld')"
    done = python.run(["-c", program], home)
    assert (done.returncode, done.stdout, done.stderr) == (0, "wörld\n", "")
    command = [python.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "wörld\n", "")
