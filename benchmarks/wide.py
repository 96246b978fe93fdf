"""A machine of 512 cores with a synthetic training on it: more cores than any real machine has, none of them at rest.

The catalogue has no such machine, so its daemon is told that a trn2.48xlarge has 64 devices.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

if TYPE_CHECKING:
    from collections.abc import Iterator

CORES = 512
PROCESSES = 16
MACHINE = "wide"

DAEMON = """
import os, sys
from dataclasses import replace
from neurontools.machine.instances import catalogue
model = catalogue.instance_type("trn2.48xlarge")
names = ("pci_bdf", "cpu_affinity", "numa_node", "connected_to")
wide = replace(model, device_count=64, **{name: getattr(model, name) * 4 for name in names})
catalogue.instance_type = lambda name: wide
from neurontools.machine.daemon.daemon import serve
from neurontools.machine.machine_config import StartOptions
options = StartOptions(sys.argv[1], "trn2.48xlarge", lnc=1)
serve(options, lambda info: os.write(1, b"."))
"""

# Every core executes about half of the time and changes fifty times a second; each has its memory and a model.
TRAINING = """
import os, random, sys, time
from neurontools.machine.client import Client
from neurontools.machine.snapshot import MemoryCategory, MemoryUse
from neurontools.machine.pages.page import PageWriter
from neurontools.machine.snapshot import ModelState
from neurontools.scenario.synthetic_process import (register_synthetic)
from neurontools.machine.requests import SyntheticSpec
processes, busy = int(sys.argv[2]), sys.argv[3] == "busy"
client = Client.connect(sys.argv[1])
specs = [SyntheticSpec(f"rank-{n}", "python train.py", count=512 // processes) for n in range(processes)]
cores = []
for place in register_synthetic(client, specs):
    page = PageWriter(place.page_fd)
    for slot, core in enumerate(place.cores):
        page.set_memory(slot, MemoryCategory.TENSORS, 1 << 30)
        page.set_memory(slot, MemoryCategory.MODEL_CODE, 1 << 28)
        model = ModelState(10001 + slot, "llama.neff", f"{core:032x}", core, True, MemoryUse(model_code=1 << 28))
        cores.append((page, slot, page.add_model(model)))
os.write(1, b".")
begun = {}
while busy:
    for place in cores:
        page, slot, model = place
        started = begun.pop(place, None)
        if started is not None:
            page.end(slot, 0, time.monotonic_ns() - started, 1_000_000_000, 0)
        elif random.random() < 0.6:
            begun[place] = page.begin(slot, model)
    time.sleep(0.02)
signal = __import__("signal")
signal.pause()
"""


@contextmanager
def wide_machine(*, busy: bool, processes: int = PROCESSES) -> Iterator[dict[str, str]]:
    """Start the machine in directories of its own; yields the environment that leads to it.

    Args:
        busy: whether its cores execute; else they are claimed and idle.
        processes: how many claim them.
    """
    root = Path(tempfile.mkdtemp(prefix="nt-wide-"))
    places = {
        "NEURONTOOLS_RUNTIME_DIR": str(root / "run"),
        "NEURONTOOLS_MACHINE": MACHINE,
        "XDG_CACHE_HOME": str(root / "cache"),
        "XDG_CONFIG_HOME": str(root / "config"),
        "XDG_STATE_HOME": str(root / "state"),
    }
    try:
        with (
            mock.patch.dict(os.environ, places),
            _running(DAEMON, MACHINE),
            _running(TRAINING, MACHINE, str(processes), "busy" if busy else "idle"),
        ):
            # Where compiled modules are never kept, a start measures the compiler of Python.
            yield {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    finally:
        shutil.rmtree(root, ignore_errors=True)


@contextmanager
def _running(program: str, *words: str) -> Iterator[None]:
    command = [sys.executable, "-P", "-c", program, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as child:
        try:
            assert child.stdout
            if child.stdout.read(1) != b".":
                raise RuntimeError(f"{command[3:]} did not start")
            yield
        finally:
            child.send_signal(signal.SIGKILL)
