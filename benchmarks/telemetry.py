"""What telemetry costs: the page around one execution, a whole execution of nothing, and reading a page."""

from __future__ import annotations

import mmap
import os
import statistics
import struct
import tempfile
import time
from typing import TYPE_CHECKING

from benchmarks.machine import running_machine
from benchmarks.report import BenchmarkRow, in_short_form
from neurontools.machine.client import Client
from neurontools.machine.pages.layout import CORE_BYTES
from neurontools.machine.pages.page import PageIdentity, PageReader, PageWriter, create_page
from neurontools.machine.snapshot import MemoryCategory
from neurontools.runtime.session import Runtime

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.runtime.session import Model

CORES = (0, 1)
_CORE = struct.Struct(f"{CORE_BYTES // 8}q")
_COUNTERS = tuple(range(CORE_BYTES // 8))
_MEMORY = mmap.mmap(-1, CORE_BYTES)
CALLS, SLOW_CALLS, BLOCKS = in_short_form((5000, 500, 21), (1, 1, 1))
BUDGET = 2.5
"""Telemetry of an execution, in times of a bare loop that packs as many bytes into memory."""


def main() -> list[BenchmarkRow]:
    """Measure and return the rows."""
    return [*_page_rows(), *_runtime_rows()]


def _page_rows() -> list[BenchmarkRow]:
    with tempfile.TemporaryDirectory() as folder:
        identity = PageIdentity("bench", os.getpid(), 0, "", os.getuid(), "", "", "", time.monotonic_ns())
        fd = create_page(f"{folder}/page", identity, CORES)
        writer, reader = PageWriter(fd), PageReader(fd)
        begin, end, read = writer.begin, writer.end, reader.read

        def execution() -> None:
            begin(1, 0)
            end(1, 0, 123_456, 1_000_000_000, 0)

        execution_ns, bare_ns = per_call_ns(execution), per_call_ns(_bare_write)
        rows = [
            BenchmarkRow.at_most(
                "telemetry of one execution / packing a core's counters twice",
                execution_ns / bare_ns,
                "x",
                BUDGET,
                f"struct.pack_into into mapped memory: {bare_ns:.0f} ns",
            ),
            BenchmarkRow.info("telemetry of one execution (begin and end)", execution_ns, "ns"),
            BenchmarkRow.info(
                "showing a change of memory",
                per_call_ns(lambda: writer.set_memory(0, MemoryCategory.TENSORS, 4096)),
                "ns",
            ),
            BenchmarkRow.info(
                "looking whether a fault is armed", per_call_ns(lambda: writer.armed_faults), "ns"
            ),
            BenchmarkRow.info("asking whether a page changed", per_call_ns(reader.changed), "ns"),
            BenchmarkRow.info(
                f"reading a page of {len(CORES)} cores", per_call_ns(lambda: read(0), SLOW_CALLS), "ns"
            ),
        ]
        writer.close()
        os.close(fd)
    return rows


def _bare_write() -> None:
    _CORE.pack_into(_MEMORY, 0, *_COUNTERS)
    _CORE.pack_into(_MEMORY, 0, *_COUNTERS)


def _runtime_rows() -> list[BenchmarkRow]:
    with running_machine("trn1.2xlarge") as environ:
        runtime = Runtime.open(environ=environ)
        sizes = {"code_bytes": 4096, "constant_bytes": 0, "scratch_bytes": 4096}
        modelled = {"modelled_ns": 1000, "flops": 1000}
        model = runtime.load(0, name="nothing", uuid=bytes(16), neff=b"", **sizes, **modelled)
        rows = [
            BenchmarkRow.info(
                "executing a model that does nothing",
                per_call_ns(lambda: runtime.execute(model, _nothing)),
                "ns",
            ),
            _fault_row(runtime, model),
            BenchmarkRow.info("allocating and freeing a tensor", per_call_ns(lambda: _tensor(runtime)), "ns"),
        ]
        runtime.close()
    return rows


def _fault_row(runtime: Runtime, model: Model) -> BenchmarkRow:
    with Client.connect(runtime.machine) as client:
        client.inject("slow-core", core=runtime.cores[0], factor=1.0)
        taken_ns = per_call_ns(lambda: runtime.execute(model, _nothing), SLOW_CALLS)
        client.clear_faults()
    return BenchmarkRow.info("the same while a fault is armed, which asks the daemon", taken_ns, "ns")


def _tensor(runtime: Runtime) -> None:
    runtime.allocate(0, 4096)
    runtime.free(0, 4096)


def per_call_ns(body: Callable[[], object], calls: int = CALLS, blocks: int = BLOCKS) -> float:
    """Return the CPU time of a call, median over blocks, the empty loop taken off."""
    return statistics.median(_block_ns(body, calls) for _ in range(blocks)) - statistics.median(
        _block_ns(_nothing, calls) for _ in range(blocks)
    )


def _block_ns(body: Callable[[], object], calls: int) -> float:
    start = time.thread_time_ns()
    for _ in range(calls):
        body()
    return (time.thread_time_ns() - start) / calls


def _nothing() -> None:
    pass


if __name__ == "__main__":
    for row in main():
        print(f"{row.name}: {row.value:.0f} {row.unit}{'' if not row.budget else f' ({row.budget})'}")
