"""Compile processes side by side, and what becomes of those that die."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from pathlib import Path

import pytest

from neurontools.precompile.worker_pool import CompileResult, compile_all

# Speaks as a compile process does; words of the entry's name say how it behaves. `once` leaves a mark beside it.
ACTOR = """
import json, os, signal, sys
for line in sys.stdin:
    name = line.strip()
    first = "once" not in name or not os.path.exists(name)
    if "once" in name:
        open(name, "w").close()
    if "dies" in name and first:
        os.kill(os.getpid(), signal.SIGKILL)
    if "leaves" in name:
        sys.exit(3)
    if "babbles" in name:
        print("?", flush=True)
        continue
    error = "refused" if "refused" in name and first else ""
    print(json.dumps({"error": error, "pid": os.getpid()}), flush=True)
"""


def jobs_of(entries: list[str], parallel: int = 2, retries: int = 0) -> dict[str, CompileResult]:
    command = (sys.executable, "-c", ACTOR)
    with closing(compile_all(entries, command, os.environ, parallel, retries)) as running:
        return {job.entry: job for job in running}


def test_every_entry_is_compiled_once() -> None:
    entries = [f"e{number}" for number in range(20)]
    jobs = jobs_of(entries, parallel=3)
    assert sorted(jobs) == sorted(entries)
    assert all(job.error == "" and job.retries == 0 for job in jobs.values())


def test_nothing_to_do_starts_nothing() -> None:
    assert jobs_of([]) == {}


def test_a_compile_process_that_dies_fails_its_entry_and_no_other() -> None:
    jobs = jobs_of(["dies", "a", "b", "leaves", "c", "babbles", "d"], parallel=1)
    assert jobs["dies"].error == "the compile process was killed by signal 9"
    assert jobs["leaves"].error == "it ended with exit code 3"
    assert jobs["babbles"].error.startswith("the compile process sent an invalid answer")
    assert [name for name, job in jobs.items() if not job.error] == ["a", "b", "c", "d"]


def test_what_failed_is_tried_again_as_often_as_allowed(home: Path) -> None:
    entries = [f"{home}/dies-once", f"{home}/refused-once", f"{home}/refused-always"]
    dies, once, always = jobs_of([entries[0]], retries=2), jobs_of([entries[1]], retries=2), {}
    assert (dies[entries[0]].error, dies[entries[0]].retries) == ("", 1)
    assert (once[entries[1]].error, once[entries[1]].retries) == ("", 1)
    always = jobs_of(["refused"], retries=2)
    assert (always["refused"].error, always["refused"].retries) == ("refused", 2)


def test_a_command_that_does_not_start_is_an_error_of_every_entry() -> None:
    with closing(compile_all(["a", "b"], ("/nonexistent",), os.environ, 2)) as running:
        assert [job.error for job in running] == [
            "the compile process cannot start: No such file or directory"
        ] * 2


@pytest.mark.parametrize("taken", [0, 1])
def test_giving_up_ends_the_processes(taken: int, home: Path) -> None:
    script = f"""
import os, sys, time
open("{home}/" + str(os.getpid()), "w").close()
for line in sys.stdin:
    if line.startswith("quick"):
        print('{{"error": ""}}', flush=True)
    else:
        time.sleep(600)
"""
    entries = ["quick"] * taken + ["slow", "slow"]
    running = compile_all(entries, (sys.executable, "-c", script), os.environ, 2)
    with closing(running):
        for _ in range(taken):
            next(running)
    for pid in (int(path.name) for path in home.iterdir() if path.name.isdecimal()):
        assert not Path(f"/proc/{pid}").exists()
