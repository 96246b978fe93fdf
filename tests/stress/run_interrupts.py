"""Ctrl-C at random moments of a training: `python tests/stress/run_interrupts.py [--count 100] [--seed 1]`.

Each time a process trains on the xla device, with new graphs all the time, and gets SIGINT after a random time. It must
end with KeyboardInterrupt, leave its core free and no half-written entry in the compile cache. The exit code is 1 when
anything was wrong.
"""

from __future__ import annotations

import argparse
import gc
import json
import mmap
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

# The checkout comes last, so that the installed package is what is tested.
sys.path.append(str(Path(__file__).parents[2]))

from neurontools.cache.verify import verify_entries, verify_orphans
from neurontools.cache.walk import walk
from neurontools.machine.client import Client
from neurontools.machine.launch import start, stop
from neurontools.machine.machine_config import StartOptions

PHASES = ("upload", "forward", "backward", "optimizer", "cut")
LONGEST_S = 0.4
LIMIT_S = 30.0


@dataclass
class InterruptOutcome:
    """What happened: interrupts by phase, and what was wrong."""

    phases: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PHASES, 0))
    wrong: list[str] = field(default_factory=list)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Interrupt training processes and check how they end.")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.inside:
        return inside(arguments)
    folder = Path(tempfile.mkdtemp(prefix="nt-interrupts-", dir="/tmp"))
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("NEURON")},
        "NEURONTOOLS_RUNTIME_DIR": str(folder / "run"),
        "NEURON_COMPILE_CACHE_URL": str(folder / "compile-cache"),
        "NEURON_RT_NUM_CORES": "1",
        "OMP_NUM_THREADS": "1",
    }
    try:
        command = [
            sys.executable,
            "-P",
            __file__,
            *(sys.argv[1:] if argv is None else argv),
            "--inside",
            folder,
        ]
        return subprocess.run(command, env=environ, check=False).returncode
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def inside(arguments: argparse.Namespace) -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    start(StartOptions(machine="default", instance_type="trn1.2xlarge"))
    import torch
    import torch.optim

    from neurontools.xla import api

    torch.set_num_threads(1)
    api.activate()
    torch.optim.AdamW([torch.zeros(1)])  # what it imports takes a second
    gc.freeze()  # collecting torch's objects takes the children a second each
    outcome = InterruptOutcome()
    chance = random.Random(arguments.seed)
    with Client.connect() as client:
        for number in range(arguments.count):
            interrupt_once(arguments.inside, number, chance, outcome, client)
    # Each process compiles graphs of its own: what one leaves behind, no other repairs.
    outcome.wrong += cache_problems(str(arguments.inside / "compile-cache"))
    stop(force=True)
    print(json.dumps(asdict(outcome)) if arguments.json else report(outcome))
    return 1 if outcome.wrong else 0


def interrupt_once(
    folder: Path, number: int, chance: random.Random, outcome: InterruptOutcome, client: Client
) -> None:
    """Fork a process that trains, interrupt it and check how it ended."""
    rows, delay_s = chance.randrange(2, 1 << 20), chance.uniform(0.0, LONGEST_S)
    phase = mmap.mmap(-1, 1)
    errors = folder / "errors"
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        train(rows, phase)
    while phase[0] == 0:
        time.sleep(0.001)
    time.sleep(delay_s)
    moment = PHASES[phase[0] - 1]
    os.kill(pid, signal.SIGINT)
    status = wait(pid)
    outcome.phases[moment] += 1
    text = errors.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if "||" not in line]
    problems = []
    if status != -signal.SIGINT:
        problems.append(f"exit status {status}")
    if not lines or lines[-1] != "KeyboardInterrupt" or "ignored in" in text:
        problems.append("stderr: " + "\n".join(lines))
    if client.snapshot().processes:
        ends = time.monotonic() + LIMIT_S
        while client.snapshot().processes and time.monotonic() < ends:
            time.sleep(0.01)
        if client.snapshot().processes:
            problems.append("the core is not free")
    outcome.wrong += [
        f"interrupt {number} in {moment} after {delay_s:.4f} s: {problem}" for problem in problems
    ]


def wait(pid: int) -> int:
    """Return the exit code of a child, minus the signal if one ended it; a child that hangs is killed."""
    ends = time.monotonic() + LIMIT_S
    while time.monotonic() < ends:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def cache_problems(root: str) -> list[str]:
    """Return what is wrong with the compile cache while nobody uses it."""
    if not os.path.isdir(root):
        return []
    findings = (*verify_entries(root, walk(root).places)[1], *verify_orphans(root))
    return [f"{finding.path}: {finding.words}" for finding in findings]


def train(rows: int, phase: mmap.mmap) -> None:
    """Train without end; `phase` is the step's part that runs, numbered from 1."""
    import torch
    from torch import nn

    from neurontools.xla import api

    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 4))
    model = model.to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = 0
    while True:
        step += 1
        phase[0] = 1
        x = torch.ones(2 + (rows + step // 8) % 61, 8).to("xla")
        phase[0] = 2
        loss = model(x * (rows + step // 8)).pow(2).mean()
        phase[0] = 3
        optimizer.zero_grad()
        loss.backward()
        phase[0] = 4
        optimizer.step()
        phase[0] = 5
        api.mark_step()


def report(outcome: InterruptOutcome) -> str:
    """Return the outcome as text."""
    phases = ", ".join(f"{count} in {phase}" for phase, count in outcome.phases.items())
    return "\n".join(
        [f"{sum(outcome.phases.values())} interrupts ({phases}), {len(outcome.wrong)} wrong", *outcome.wrong]
    )


if __name__ == "__main__":
    sys.exit(main())
