"""Make the pictures of neuron-top for the docs: the real app, a real daemon, real processes on a private machine.

python docs/screenshots.py [DIRECTORY]     (default: docs/images)
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

MACHINE = "docs"
GIB = 1 << 30
JOBS = (
    # tag, cores, share of time that the first and the last core execute, model, size of its code and weights
    ("bert-pretrain", "0-23", (0.97, 0.42), "bert-large-train", 2 * GIB),
    ("llama-serve", "24-29", (0.64, 0.30), "llama-8b-decode", 5 * GIB),
    ("", "31", (0.08, 0.08), "resnet50-eval", GIB // 4),
)
PERIOD_S = 0.05


def job(tag: str, first: float, last: float, name: str, size: int) -> None:
    """Be one process on the machine: load a model on every core and execute until killed."""
    from neurontools.machine.memory import MemoryCategory
    from neurontools.runtime.session import Runtime

    runtime = Runtime.open(tag=tag or None)
    count = len(runtime.cores)

    def work(nc: int) -> None:
        share = first + (last - first) * nc / max(1, count - 1)
        runtime.allocate(nc, size // 3, MemoryCategory.TENSORS)
        model = runtime.load(
            nc,
            name=f"{name}-{nc}.neff",
            uuid=bytes([nc] * 16),
            neff=b"",
            code_bytes=size // 2,
            constant_bytes=size // 4,
            scratch_bytes=size // 8,
            modelled_ns=0,
            flops=int(48e12 * share * PERIOD_S),
        )
        while True:
            runtime.execute(model, lambda: time.sleep(PERIOD_S * share))
            time.sleep(PERIOD_S * (1 - share))

    for nc in range(count):
        threading.Thread(target=work, args=(nc,), daemon=True).start()
    threading.Event().wait()


async def take(path: Path, size: tuple[int, int], *keys: str) -> None:
    """Let the app run for a few updates, press keys and save what it shows."""
    from neurontools.tui.top_app import TopApp
    from neurontools.tui.top_source import FollowedSource

    app = TopApp(FollowedSource("sim", 1.0, MACHINE))
    async with app.run_test(size=size) as pilot:
        while len(app.model.tabs) <= len(JOBS) or app.model.view is None:
            await pilot.pause(0.2)
        await pilot.pause(2.5)
        await pilot.press(*keys)
        await pilot.pause()
        app.save_screenshot(path.name, str(path.parent))


def main(directory: Path) -> None:
    """Start the machine and its processes, take the pictures, end everything."""
    from neurontools.machine import launch
    from neurontools.machine.info import StartOptions

    directory.mkdir(parents=True, exist_ok=True)
    launch.start(StartOptions(machine=MACHINE, instance_type="trn1.32xlarge"))
    processes = []
    try:
        for index, (_, cores, *_) in enumerate(JOBS):
            environ = {**os.environ, "NEURON_RT_VISIBLE_CORES": cores}
            command = [sys.executable, __file__, "--job", str(index)]
            processes.append(subprocess.Popen(command, env=environ))
        time.sleep(2)
        asyncio.run(take(directory / "neuron-top.svg", (120, 40), "down", "enter", "down", "enter", "down"))
        asyncio.run(take(directory / "neuron-top-flops.svg", (100, 30), "2", "f"))
    finally:
        for process in processes:
            process.kill()
            process.wait()
        launch.stop(MACHINE, force=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--job"]:
        job_tag, _, (job_first, job_last), job_name, job_size = JOBS[int(sys.argv[2])]
        job(job_tag, job_first, job_last, job_name, job_size)
    else:
        os.environ.pop("NO_COLOR", None)
        with tempfile.TemporaryDirectory(prefix="nt-docs-") as private:
            os.environ["NEURONTOOLS_RUNTIME_DIR"] = f"{private}/run"
            os.environ["NEURONTOOLS_MACHINE"] = MACHINE
            main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "images"))
