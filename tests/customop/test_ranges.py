"""The worker's table of mapped ranges: found again, forgotten when there are too many."""

from __future__ import annotations

import subprocess
from pathlib import Path

from neurontools.customop.building.toolchain import BASE_FLAGS, INCLUDE, SOURCE, find_compiler

PROGRAM = Path(__file__).parent / "kernels" / "ranges.cpp"


def test_more_ranges_than_the_worker_keeps(tmp_path: Path) -> None:
    command = [*find_compiler().command, *BASE_FLAGS, "-O1", "-I", str(INCLUDE), "-I", str(SOURCE)]
    command += [str(PROGRAM), str(SOURCE / "slots.cpp"), "-o", str(tmp_path / "program")]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    told = subprocess.run([tmp_path / "program"], capture_output=True, text=True, check=True).stdout
    assert told == "18000 right, same 1, empty refused 1\n"
