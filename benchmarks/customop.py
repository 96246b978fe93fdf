"""Custom operators beside the peers: an operator of `torch.utils.cpp_extension` and torch's own relu.

What is compared: building, the call of an operator on 4 x 4 elements, and relu of 4096 x 4096, the libraries built with
`release`. The one worker that runs the kernel has one thread, so torch has one too, but where the note says otherwise.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any
from unittest import mock

from benchmarks.neuron_ls import empty_script
from benchmarks.processes import run_ms
from benchmarks.report import BenchmarkRow, in_short_form

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SAMPLES = Path(__file__).parents[1] / "fixtures" / "customops"
STYLES = ("relu_element", "relu_tcm", "relu_multicore")
SMALL, LARGE = (4, 4), in_short_form((4096, 4096), (64, 64))
CALLS, ROUNDS = in_short_form((2000, 9), (1, 1))
COLD_BUILDS, UNCHANGED_BUILDS = in_short_form((3, 9), (1, 1))
FLOOR = "an operator in Python that does nothing"
TIMES_FLOOR = 15.0
TIMES_RELU = 1.2
PART_OF_CPP_EXTENSION = 1 / 20
TIMES_EMPTY_SCRIPT = 11.0
WORKER_MIB = 10  # with the guard bytes of eight cores, 1 MiB each

PEER = """
#include <torch/extension.h>

torch::Tensor relu(const torch::Tensor& input) {
  torch::Tensor output = torch::empty_like(input);
  const auto x = input.accessor<float, 2>();
  auto y = output.accessor<float, 2>();
  for (int64_t row = 0, rows = input.size(0); row < rows; ++row)
    for (int64_t column = 0, columns = input.size(1); column < columns; ++column)
      y[row][column] = x[row][column] < 0.0f ? 0.0f : x[row][column];
  return output;
}

TORCH_LIBRARY(neurontools_peer, library) { library.def("relu(Tensor input) -> Tensor"); }
TORCH_LIBRARY_IMPL(neurontools_peer, CPU, library) { library.impl("relu", &relu); }
"""


@dataclass(frozen=True, slots=True)
class _Peer:
    """The operator of cpp_extension: its seconds to build, and itself; or why there is none."""

    seconds: float = 0.0
    call: Callable[[Any], Any] | None = None
    missing: str = ""


def main() -> list[BenchmarkRow]:
    """Measure and return the rows."""
    with _own_directories() as root:
        peer = _build_peer(root)
        return [*_building(root, peer), *_calling(peer), *_computing(peer)]


def _building(root: Path, peer: _Peer) -> list[BenchmarkRow]:
    sample = SAMPLES / "relu_element"
    command = [str(Path(sys.executable).with_name("neuron-customop")), "build", "relu"]
    command += [
        "--compute",
        str(sample / "relu.cpp"),
        "--shape",
        str(sample / "shape.cpp"),
        "-o",
        str(root / "out"),
    ]
    cold, warm = [], []
    for number in range(COLD_BUILDS):
        fresh = {**os.environ, "XDG_CACHE_HOME": str(root / f"cold-{number}")}
        shutil.rmtree(root / "out", ignore_errors=True)
        cold.append(run_ms(command, fresh))
        shutil.rmtree(root / "out")
        warm.append(run_ms(command, fresh))
    unchanged = [run_ms(command, fresh) for _ in range(UNCHANGED_BUILDS)]
    with empty_script() as empty:
        script_ms = median(run_ms([str(empty)], fresh) for _ in range(UNCHANGED_BUILDS))
    cold_ms, what = median(cold), "neuron-customop build, nothing cached"
    note = "the whole command; runtime, worker and the sample's two sources; neither side has ccache"
    if peer.call is None:
        rows = [
            BenchmarkRow.missing("cpp_extension.load", peer.missing),
            BenchmarkRow.info(what, cold_ms, "ms", note),
        ]
    else:
        times = cold_ms / (1e3 * peer.seconds)
        rows = [
            BenchmarkRow.at_most(f"{what} / cpp_extension.load", times, "x", PART_OF_CPP_EXTENSION, note),
            BenchmarkRow.info(
                "cpp_extension.load", peer.seconds, "s", "of the same operator, -O3, ninja, no ccache"
            ),
            BenchmarkRow.info(what, cold_ms, "ms"),
        ]
    return [
        *rows,
        BenchmarkRow.info(
            "neuron-customop build of a new library", median(warm), "ms", "the runtime was built before"
        ),
        BenchmarkRow.at_most(
            "neuron-customop build, unchanged / empty console script",
            median(unchanged) / script_ms,
            "x",
            TIMES_EMPTY_SCRIPT,
            "the whole command",
        ),
        BenchmarkRow.info("neuron-customop build, unchanged", median(unchanged), "ms"),
    ]


def _calling(peer: _Peer) -> list[BenchmarkRow]:
    import torch

    from neurontools.customop.torch_operators import device_resident

    torch.set_num_threads(1)
    x = torch.randn(SMALL)
    there = device_resident(x)
    ours = {style: _load(style) for style in STYLES}
    library = torch.library.Library("neurontools_floor", "FRAGMENT")
    library.define("nothing(Tensor input) -> Tensor")
    library.impl("nothing", lambda _input: x, "CPU")
    nothing = torch.ops.neurontools_floor.nothing
    calls: dict[str, Callable[[], object]] = {
        "torch.relu": lambda: torch.relu(x),
        "empty": lambda: nothing(x),
        **({"peer": partial(peer.call, x)} if peer.call else {}),
        **{f"{style}, resident": partial(op, there) for style, op in ours.items()},
        **{f"{style}, copied": partial(op, x) for style, op in ours.items()},
    }
    took = _medians_us(calls)
    rows = [
        BenchmarkRow.info("torch.relu, 4x4", took["torch.relu"], "us"),
        BenchmarkRow.info(FLOOR, took["empty"], "us", "the floor: torch's dispatcher"),
    ]
    floor_us = took["empty"]
    rows += [BenchmarkRow.info("an operator of cpp_extension, 4x4", took["peer"], "us")] if peer.call else []
    for style in STYLES:
        resident_us, copied_us = took[f"{style}, resident"], took[f"{style}, copied"]
        rows += [
            BenchmarkRow.at_most(
                f"{style}, 4x4, resident / {FLOOR}", resident_us / floor_us, "x", TIMES_FLOOR
            ),
            BenchmarkRow.at_most(
                f"{style}, 4x4, copied in and out / {FLOOR}", copied_us / floor_us, "x", TIMES_FLOOR
            ),
            BenchmarkRow.info(f"{style}, 4x4, resident", resident_us, "us", "median, in the worker"),
            BenchmarkRow.info(f"{style}, 4x4, copied in and out", copied_us, "us", "median"),
        ]
    rows.append(
        BenchmarkRow.at_most("the worker, idle after these calls", _worker_mib(), "MiB", WORKER_MIB, "PSS")
    )
    return rows


def _computing(peer: _Peer) -> list[BenchmarkRow]:
    import torch

    from neurontools.customop.torch_operators import device_resident

    x = torch.randn(LARGE)
    there, out = device_resident(x), torch.empty(LARGE)
    ours = {style: _load(style) for style in STYLES}
    torch.set_num_threads(1)
    calls: dict[str, Callable[[], object]] = {
        "torch.relu": lambda: torch.relu(x),
        "warm": lambda: torch.clamp_min(x, 0, out=out),
        **({"peer": partial(peer.call, x)} if peer.call else {}),
        **{style: partial(op, there) for style, op in ours.items()},
    }
    took = _best_ms(calls)
    copied = _best_ms({style: partial(op, x) for style, op in ours.items()})
    torch.set_num_threads(os.cpu_count() or 1)
    took["threads"] = _best_ms({"": lambda: torch.relu(x)})[""]
    relu = took["torch.relu"]
    rows = [
        BenchmarkRow.info("torch.relu, 4096x4096", relu, "ms", "best; a new result each time, one thread"),
        BenchmarkRow.info(
            "torch.relu, 4096x4096, all threads", took["threads"], "ms", "a new result each time"
        ),
        BenchmarkRow.info(
            "torch.clamp_min(out=), 4096x4096", took["warm"], "ms", "into a result that is there, one thread"
        ),
    ]
    rows += (
        [BenchmarkRow.info("an operator of cpp_extension, 4096x4096", took["peer"], "ms")]
        if peer.call
        else []
    )
    for style in STYLES:
        name = f"{style}, 4096x4096, resident, release"
        note = f"{took[style]:.3g} ms in one worker thread; copied in and out {copied[style]:.3g} ms"
        rows.append(BenchmarkRow.at_most(f"{name} / torch.relu", took[style] / relu, "x", TIMES_RELU, note))
    slowest = max(took[style] for style in STYLES)
    rows.append(
        BenchmarkRow.info("the slowest of these / torch.relu on all threads", slowest / took["threads"], "x")
    )
    return rows


def _medians_us(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the median of each call; the calls take turns in blocks, so that a slow moment hits all of them."""
    clock, took = time.perf_counter_ns, {name: [0] for name in calls}
    for turn in range(ROUNDS):
        for name, call in calls.items():
            samples = []
            for _ in range(CALLS):
                begin = clock()
                call()
                samples.append(clock() - begin)
            took[name] = samples if turn == 0 else took[name] + samples
    return {name: 1e-3 * median(samples) for name, samples in took.items()}


def _best_ms(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(ROUNDS):
        for name, call in calls.items():
            begin = time.perf_counter_ns()
            result = call()
            best[name] = min(best[name], 1e-6 * (time.perf_counter_ns() - begin))
            del result
    return best


def _load(style: str) -> Callable[[Any], Any]:
    import torch

    from neurontools.customop.building.build import build
    from neurontools.customop.building.request import BuildRequest
    from neurontools.customop.load import load_library

    home, multicore = SAMPLES / style, "multicore" in style
    request = BuildRequest(
        style, (home / "relu.cpp",), (home / "shape.cpp",), multicore=multicore, release=True
    )
    load_library(build(request).path)
    operator: Callable[[Any], Any] = getattr(torch.ops, style).forward.default
    return operator


def _worker_mib() -> float:
    from neurontools.customop.executors import WorkerExecutor
    from neurontools.customop.torch_operators import operation

    largest = 0.0
    for style in STYLES:
        executor = operation(f"{style}::forward").executor
        assert isinstance(executor, WorkerExecutor)
        worker = (
            Path(f"/proc/{executor.pid}/task/{executor.pid}/children").read_text(encoding="utf-8").strip()
        )
        largest = max(largest, sum(_pss_mib(pid) for pid in (executor.pid, worker)))
    return largest


def _pss_mib(pid: object) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))


def _build_peer(root: Path) -> _Peer:
    import torch
    from torch.utils import cpp_extension

    if not cpp_extension.is_ninja_available():
        return _Peer(missing="needs ninja")
    source = root / "relu.cpp"
    source.write_text(PEER, encoding="utf-8")
    begin = time.monotonic()
    try:
        cpp_extension.load(
            "neurontools_peer", [str(source)], extra_cflags=["-O3"], is_python_module=False, verbose=False
        )
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        return _Peer(missing=str(error).splitlines()[0])
    return _Peer(time.monotonic() - begin, torch.ops.neurontools_peer.relu.default)


@contextmanager
def _own_directories() -> Iterator[Path]:
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nt-bench-customop-")))
        places = {
            "XDG_CACHE_HOME": str(root / "cache"),
            "XDG_CONFIG_HOME": str(root / "config"),
            "XDG_STATE_HOME": str(root / "state"),
            "NEURONTOOLS_RUNTIME_DIR": str(root / "run"),
            "TORCH_EXTENSIONS_DIR": str(root / "extensions"),
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))),
            "CCACHE_DISABLE": "1",
        }
        stack.enter_context(mock.patch.dict(os.environ, places))
        yield root


if __name__ == "__main__":
    for row in main():
        print(row)
