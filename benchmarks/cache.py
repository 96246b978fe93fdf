"""neuron-cache on a root with 100,000 entries, beside find and rm; why between large graphs; what a hit costs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.report import BenchmarkRow, in_short_form

ENTRIES, OPERATORS = in_short_form((100_000, 5_000), (10, 20))
SETTLE_S, ROUNDS, HITS = in_short_form((3, 3, 300), (0, 1, 1))
_TOOL = str(Path(sys.executable).parent / "neuron-cache")
_LOAD_JSON = "import json, sys; [json.loads(line) for name in sys.argv[1:] for line in open(name, 'rb')]"
_FILES = (
    ("model.hlo_module.pb", b"g" * 100),
    ("compile_flags.json", b'["--target=trn1"]'),
    ("model.neff", b"\0" * 1100),
    ("model.done", b""),
)


def main() -> list[BenchmarkRow]:
    """Measure and return the rows."""
    with tempfile.TemporaryDirectory(prefix="neuron-cache-") as folder:
        return [*_big_root(folder), *_why(folder), *_hits(folder)]


def _big_root(folder: str) -> list[BenchmarkRow]:
    root = f"{folder}/root"
    environ = {**os.environ, "XDG_STATE_HOME": f"{folder}/state", "XDG_CACHE_HOME": f"{folder}/cache"}
    directory = make_root(root, ENTRIES)
    time.sleep(SETTLE_S)  # so long a directory must have been left alone before the index believes its mtime
    find = _least(["find", root, "-printf", "%s %p\\n"], environ)
    stats = _least([_TOOL, "stats", "--cache-dir", root], environ)
    listing = [_TOOL, "ls", "--limit", "50", "--cache-dir", root]
    cold = _seconds(listing, environ)
    warm = _least(listing, environ)
    half = ENTRIES // 2
    half_root = f"{folder}/other"
    make_root(half_root, half)
    os.sync()
    remove = _seconds(["rm", "-rf", half_root], environ)
    os.sync()
    command = [_TOOL, "prune", "--keep-last", str(half), "-y", "--cache-dir", root]
    prune = _seconds(command, environ)
    left = len(os.listdir(directory))
    note = f"{ENTRIES:,} entries of 4 files"
    return [
        BenchmarkRow.info("find -printf", find, "s", note),
        BenchmarkRow.at_most(
            "neuron-cache stats / find -printf", stats / find, "times", 2.5, f"{stats:.2f} s"
        ),
        BenchmarkRow.info("neuron-cache ls --limit 50, without index", cold, "s", "makes the index"),
        BenchmarkRow.at_most("neuron-cache ls --limit 50, with index / find -printf", warm / find, "x", 0.35),
        BenchmarkRow.info("neuron-cache ls --limit 50, with index", warm, "s"),
        BenchmarkRow.info(
            f"rm -rf of {half:,} entries", remove, "s", "a root of its own with the same files"
        ),
        BenchmarkRow.at_most(
            "neuron-cache prune of as many / rm -rf",
            prune / remove,
            "times",
            2,
            f"{prune:.2f} s, {left:,} left",
        ),
    ]


def make_root(root: str, entries: int) -> str:
    """Make a cache with so many finished entries and return their directory."""
    directory = f"{root}/neuronxcc-2.16.372.0+5eed0002"
    os.makedirs(directory)
    Path(root, "lock").touch()
    for number in range(entries):
        entry = f"{directory}/MODULE_{10**18 + number}+e30acd3a"
        os.mkdir(entry)
        for name, data in _FILES:
            with open(f"{entry}/{name}", "wb") as file:
                file.write(data)
    return directory


def _why(folder: str) -> list[BenchmarkRow]:
    rows = []
    for operators, limit in ((OPERATORS, 6.0), (10 * OPERATORS, 12.0)):
        root = f"{folder}/why-{operators}"
        names = [_graph_entry(root, operators, odd_one_out) for odd_one_out in (False, True)]
        seconds = _least([_TOOL, "why", *names, "--cache-dir", root], dict(os.environ))
        graphs = map(str, sorted(Path(root).glob("*/*/model.hlo_module.pb")))
        loads = _least([sys.executable, "-c", _LOAD_JSON, *graphs], dict(os.environ))
        what, note = (
            f"neuron-cache why, {operators:,} operators",
            "two graphs, every 20th operator another one",
        )
        rows += [
            BenchmarkRow.at_most(
                f"{what} / python that loads both as JSON", seconds / loads, "x", limit, note
            ),
            BenchmarkRow.info(what, seconds, "s"),
        ]
    return rows


def _graph_entry(root: str, operators: int, odd_one_out: bool) -> str:
    from neurontools.compiler.graph import Node
    from tests.compiler.graphs import graph_of, tensor

    names = [f"aten.op{number % 17}.default" for number in range(operators)]
    if odd_one_out:
        names[::20] = ["aten.relu.default"] * len(names[::20])
    nodes = (
        Node(name, (tensor(number, 8, 64),), (), (tensor(number + 1, 8, 64),), f"model.py:{number % 300}")
        for number, name in enumerate(names)
    )
    graph = graph_of(*nodes, inputs=(0,))
    entry = Path(root, "neuronxcc-2.16.372.0+5eed0002", f"MODULE_{graph.module_hash()}+e30acd3a")
    entry.mkdir(parents=True)
    (entry / "model.hlo_module.pb").write_bytes(graph.to_bytes())
    (entry / "compile_flags.json").write_text('["--target=trn1"]', encoding="utf-8")
    return entry.name


def _hits(folder: str) -> list[BenchmarkRow]:
    from neurontools.cache.store import CompileCache
    from neurontools.compiler.neff import parse
    from neurontools.machine.instances.catalogue import instance_type
    from tests.compiler.graphs import mlp

    environ = {"NEURON_COMPILE_CACHE_URL": f"{folder}/hits"}
    os.environ["NEURONTOOLS_RUNTIME_DIR"] = f"{folder}/run"
    device, graph = instance_type("trn1.2xlarge").device, mlp()
    cache = CompileCache.open(environ)
    entry = cache.get_or_compile(graph, device, "mlp").entry
    whole, load = [], []
    for _ in range(HITS):
        started = time.perf_counter()
        assert cache.get_or_compile(graph, device, "mlp").hit
        whole.append(time.perf_counter() - started)
        started = time.perf_counter()
        parse(Path(entry, "model.neff").read_bytes())
        load.append(time.perf_counter() - started)
    cache.close()
    shutil.rmtree(f"{folder}/hits")
    cost_ms = 1e3 * (median(whole) - median(load))
    note = f"median of {HITS}; reading and checking the NEFF itself takes {1e3 * median(load):.2f} ms"
    return [
        BenchmarkRow.at_most(
            "a hit / reading and checking its NEFF", cost_ms / (1e3 * median(load)), "x", 3, note
        ),
        BenchmarkRow.info("a hit, before the NEFF's own load", cost_ms, "ms", "at most 1 ms"),
    ]


def _least(command: list[str], environ: dict[str, str]) -> float:
    return min(_seconds(command, environ) for _ in range(ROUNDS))


def _seconds(command: list[str], environ: dict[str, str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, env=environ, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


if __name__ == "__main__":
    for row in main():
        print(row)
