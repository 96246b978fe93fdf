"""neuron-ls against an empty console script installed the same way, the interpreter's own start, and without a daemon."""

from __future__ import annotations

import base64
import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.machine import own_directories, running_machine
from benchmarks.processes import run_ms, time_in_turn
from benchmarks.report import BenchmarkRow, in_short_form
from neurontools import env
from neurontools.machine import launch

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "neurontools_empty_script"
ROUNDS, COLD_ROUNDS = in_short_form((40, 11), (1, 1))


def main() -> list[BenchmarkRow]:
    """Measure and return the rows."""
    bin_dir = Path(sys.executable).parent
    with empty_script() as empty, running_machine("trn1.32xlarge") as environ:
        commands = [
            [str(empty)],
            [sys.executable, "-c", "pass"],
            [str(bin_dir / "neuron-ls")],
            [str(bin_dir / "neuron-ls"), "-j"],
        ]
        script, python, text, json = time_in_turn(commands, ROUNDS, environ)
    cold_ms = _cold_ms(commands[2])
    return [
        BenchmarkRow.at_most("neuron-ls / empty console script", text.median_ms / script.median_ms, "x", 1.2),
        BenchmarkRow.at_most(
            "neuron-ls -j / empty console script", json.median_ms / script.median_ms, "x", 1.2
        ),
        BenchmarkRow.at_most(
            "neuron-ls, cold / empty console script",
            cold_ms / script.median_ms,
            "x",
            20,
            "no daemon runs: it is started and answers",
        ),
        BenchmarkRow.info("neuron-ls, cold, median", cold_ms, "ms"),
        BenchmarkRow.info("neuron-ls / python -c pass", text.median_ms / python.median_ms, "x"),
        BenchmarkRow.info("neuron-ls, median", text.median_ms, "ms"),
        BenchmarkRow.info("empty console script, median", script.median_ms, "ms"),
        BenchmarkRow.info("python -c pass, median", python.median_ms, "ms"),
    ]


def _cold_ms(command: list[str]) -> float:
    times = []
    for _ in range(COLD_ROUNDS):
        with own_directories() as environ:
            times.append(run_ms(command, environ))
            launch.stop(env.machine(), force=True)
    return statistics.median(times)


@contextmanager
def empty_script() -> Iterator[Path]:
    """Install a console script that does nothing, by the same installer, and remove it afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        wheel = _write_wheel(Path(folder))
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        subprocess.run(
            [*pip, "install", "--no-index", "--no-deps", "--force-reinstall", str(wheel)], check=True
        )
        try:
            yield Path(sys.executable).parent / "neurontools-empty-script"
        finally:
            subprocess.run([*pip, "uninstall", "--yes", NAME], check=True)


def _write_wheel(folder: Path) -> Path:
    info = f"{NAME}-1.0.dist-info"
    files = {
        f"{NAME}.py": "def main():\n    return 0\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: benchmarks\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\nneurontools-empty-script = {NAME}:main\n",
    }
    record = "".join(f"{name},sha256={_digest(text)},{len(text)}\n" for name, text in files.items())
    files[f"{info}/RECORD"] = record + f"{info}/RECORD,,\n"
    path = folder / f"{NAME}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


if __name__ == "__main__":
    os.environ.setdefault("NO_COLOR", "1")
    for row in main():
        print(row)
