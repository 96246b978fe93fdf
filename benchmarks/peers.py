"""The start-up of tools that answer the same question on other hardware, side by side with neuron-ls.

They are not ours to install: `pip install -e '.[bench]'` brings them. gpustat and nvitop find sixteen devices of a stub
of NVIDIA's library, built here; tpu-info finds no device.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.machine import running_machine
from benchmarks.processes import time_in_turn
from benchmarks.report import BenchmarkRow, in_short_form

if TYPE_CHECKING:
    from collections.abc import Iterator

ROUNDS = in_short_form(4, 1)
STUB = Path(__file__).with_name("nvml_stub.c")
LIBRARY = "libnvidia-ml.so.1"


@dataclass(frozen=True, slots=True)
class StartupPeer:
    """A tool and how it is asked to print its devices once."""

    command: tuple[str, ...]
    needs_stub: bool
    note: str


PEERS = (
    StartupPeer(("gpustat",), True, "16 devices of an NVML stub; it sleeps 0.1 s for each"),
    StartupPeer(("gpustat", "--version"), False, "start-up alone"),
    StartupPeer(("nvitop", "-1"), True, "16 devices of an NVML stub"),
    StartupPeer(("tpu-info",), False, "finds no device"),
)


def main() -> list[BenchmarkRow]:
    """Measure what is installed and return the rows."""
    bin_dir = Path(sys.executable).parent
    with nvml_stub() as library_dir, running_machine("trn1.32xlarge") as environ:
        names = [" ".join(peer.command) for peer in PEERS]
        missing = {
            name: why
            for name, peer in zip(names, PEERS, strict=True)
            if (why := _why_not(peer, bin_dir, library_dir))
        }
        present = [peer.command for peer in PEERS if " ".join(peer.command) not in missing]
        commands = [[str(bin_dir / first), *rest] for first, *rest in [("neuron-ls",), *present]]
        stubbed = {"LD_LIBRARY_PATH": library_dir} if library_dir else {}
        own_timing, *peer_timings = time_in_turn(commands, ROUNDS, {**environ, **stubbed})
    found = {" ".join(command): timing for command, timing in zip(present, peer_timings, strict=True)}
    rows = [
        BenchmarkRow.info(
            "neuron-ls, beside the peers", own_timing.median_ms, "ms", "16 simulated devices, warm"
        )
    ]
    for name, peer in zip(names, PEERS, strict=True):
        if name in missing:
            rows.append(BenchmarkRow.missing(name, missing[name]))
            continue
        times = found[name].median_ms / own_timing.median_ms
        rows.append(
            BenchmarkRow.info(name, found[name].median_ms, "ms", f"{times:.1f} times neuron-ls; {peer.note}")
        )
    return rows


@contextmanager
def nvml_stub() -> Iterator[str | None]:
    """Build the stub with the system's compiler; yields its directory, None where there is no compiler."""
    compiler = shutil.which("cc")
    with tempfile.TemporaryDirectory(prefix="nt-bench-nvml-") as folder:
        if compiler is None:
            yield None
            return
        flags = ["-std=c11", "-O2", "-shared", "-fPIC"]
        subprocess.run([compiler, *flags, "-o", f"{folder}/{LIBRARY}", str(STUB)], check=True)
        yield folder


def _why_not(peer: StartupPeer, bin_dir: Path, library_dir: str | None) -> str:
    if not (bin_dir / peer.command[0]).exists():
        return "not installed"
    return "no C compiler for the stub" if peer.needs_stub and library_dir is None else ""


if __name__ == "__main__":
    for row in main():
        print(row)
