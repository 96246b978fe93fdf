"""Fuzz every parser of foreign data: `python tests/fuzz/run.py [--inputs N] [--seed S] [TARGET ...]` (`make fuzz`).

An input is a function of seed, target and number, so a run can be repeated. A finding is an exception that is not an
error of ours, output that is not clean, or more time or memory than the target's limit; its shortest input is saved.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
sys.path.append(str(REPOSITORY))

from tests.fuzz import targets  # noqa: E402

FOUND = REPOSITORY / ".fuzz"
_KEPT = ("PATH", "LD_LIBRARY_PATH", "TMPDIR")


def main() -> int:
    """Return 0 where nothing was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="names or groups of targets (all)")
    parser.add_argument("--inputs", type=int, default=1000, help="inputs of each target (1000)")
    parser.add_argument("--seed", type=int, default=1, help="of the inputs (1)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes side by side")
    parser.add_argument("--list", action="store_true", help="list the targets")
    arguments = parser.parse_args()
    names = [target.name for target in targets.load()]
    if arguments.list:
        out("\n".join(names))
        return 0
    chosen = [name for name in names if not arguments.targets or is_chosen(name, arguments.targets)]
    started_s = time.monotonic()
    total, findings = 0, []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        reports = pool.map(lambda name: fuzz([name], arguments.inputs, arguments.seed), chosen)
        for name, (inputs, found) in zip(chosen, reports, strict=True):
            out(f"{name:<28} {inputs:>7} inputs  {len(found):>3} findings")
            total += inputs
            findings += found
    out(f"{'total':<28} {total:>7} inputs  {len(findings):>3} findings, {time.monotonic() - started_s:.0f} s")
    for finding in findings:
        out(
            f"\n{finding['target']}: {finding['kind']} in {finding['site']}: {finding['text']}\n  {save(finding)}"
        )
    return 1 if findings else 0


def out(text: str) -> None:
    """Write a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def is_chosen(name: str, wanted: list[str]) -> bool:
    """Return whether a target is wanted, by its name or its group."""
    return name in wanted or name.partition("/")[0] in wanted


def fuzz(
    names: list[str], inputs: int, seed: int, *, shrink: bool = True, corpus: bool = True
) -> tuple[int, list[dict[str, Any]]]:
    """Run targets in processes with homes of their own; return the number of inputs and the findings.

    Args:
        names: the targets.
        inputs: how many each gets.
        seed: of the inputs.
        shrink: whether the inputs of findings are shortened.
        corpus: whether the inputs of the corpus run, too.
    """
    count, findings = 0, []
    first = 0
    remaining = list(names)
    while remaining:
        order = {
            "targets": remaining,
            "seed": seed,
            "first": first,
            "count": inputs,
            "corpus": corpus,
            "shrink": shrink,
        }
        messages, stack = _run_worker(order)
        findings += [message for message in messages if "kind" in message]
        finished = [message for message in messages if "inputs" in message]
        count += first + sum(message["inputs"] for message in finished)
        if stack is None:
            break
        last = messages[-1]
        findings.append(_killed(last, stack))
        remaining = remaining[remaining.index(last["target"]) :]
        # Inputs are announced by fifties. The corpus is not tried again, nor are seeds that end a worker.
        if isinstance(last.get("at"), int):
            first, corpus = last["at"] + 50, False
        else:
            first, remaining = 0, remaining[1:]
    return count, findings


def _run_worker(order: dict[str, Any]) -> tuple[list[dict[str, Any]], str | None]:
    """Return what a worker reported, and its last words if it did not end in order."""
    with tempfile.TemporaryDirectory(prefix="nt-fuzz-", dir="/tmp") as home:
        command = [sys.executable, Path(__file__).with_name("worker.py"), json.dumps(order)]
        variables = environment(home)
        if is_chosen(order["targets"][0], list(targets.GUARDED)):
            variables["LD_PRELOAD"] = guarded_memory(home)
        done = subprocess.run(command, cwd=home, env=variables, capture_output=True, check=False)
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    return messages, None if done.returncode == 0 else done.stderr.decode("utf-8", "replace")


def environment(home: str) -> dict[str, str]:
    """Return the variables of a worker: none lead out of its home."""
    run = f"{home}/run"
    os.mkdir(run, 0o700)
    return {
        **{name: os.environ[name] for name in _KEPT if name in os.environ},
        "HOME": home,
        "XDG_CONFIG_HOME": f"{home}/config",
        "XDG_STATE_HOME": f"{home}/state",
        "XDG_CACHE_HOME": f"{home}/cache",
        "NEURONTOOLS_RUNTIME_DIR": run,
        "NEURON_COMPILE_CACHE_URL": f"{home}/compile-cache",
        "NEURONTOOLS_AUTOSTART": "0",
        "NO_COLOR": "1",
        "COLUMNS": "100",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def guarded_memory(home: str) -> str:
    """Compile the library that puts guard pages around the memory of tensors, and return its path."""
    from neurontools.customop.building.toolchain import find_compiler

    source, library = Path(__file__).with_name("guarded_memory.cpp"), f"{home}/guarded_memory.so"
    flags = ("-std=c++17", "-O1", "-fPIC", "-shared", "-ldl")
    subprocess.run([*find_compiler().command, str(source), *flags, "-o", library], check=True)
    return library


def _killed(last: dict[str, Any], stack: str) -> dict[str, Any]:
    lines = stack.strip().splitlines()
    site = next((line.strip() for line in lines if "/neurontools/" in line), lines[-1] if lines else "?")
    return {**last, "kind": "Ended", "site": site, "text": "\n".join(lines[-15:]), "data": ""}


def save(finding: dict[str, Any]) -> Path:
    """Write the input of a finding where it can be looked at; return its path."""
    name = sha256(f"{finding['kind']} {finding['site']}".encode()).hexdigest()[:12]
    path = FOUND / finding["target"] / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(base64.b64decode(finding["data"]))
    return path


if __name__ == "__main__":
    sys.exit(main())
