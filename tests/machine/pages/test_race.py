"""Writers and readers at the same time, in several processes and threads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from neurontools.machine.pages.page import PageIdentity, PageReader, PageValue, PageWriter, create_page
from neurontools.machine.snapshot import MemoryCategory, ModelState

# Every value is a function of the number of executions, so that a torn one shows.
WRITER = """
import os, sys
from neurontools.machine.snapshot import MemoryCategory
from neurontools.machine.pages.page import PageWriter
writer = PageWriter(os.open(sys.argv[1], os.O_RDWR))
sys.stdout.write("ready\\n"); sys.stdout.flush()
n = 0
while True:
    n += 1
    for slot in (0, 1):
        writer.begin(slot)
        writer.end(slot, 0, 1000, flops=7, gpsimd_ns=3)
    for category in MemoryCategory:
        writer.set_memory(0, category, n)
"""

OpenedPage = Callable[[Path, tuple[int, ...]], AbstractContextManager[tuple[PageWriter, PageReader, int]]]
MakeModel = Callable[..., ModelState]


def consistent(value: PageValue) -> bool:
    memory = value.cores[0].memory
    sizes = [getattr(memory, category) for category in MemoryCategory]
    counters = all(
        use.flops == 7 * use.executions and use.gpsimd_ns == 3 * use.executions for use in value.cores
    )
    executions = sum(use.executions for use in value.cores)
    sums = dict(value.status_counts).get(0, 0) == executions == sum(value.latency_counts)
    return counters and sums and sizes == sorted(sizes, reverse=True) and sizes[0] - sizes[-1] <= 1


def test_a_reader_in_another_process_never_sees_a_torn_value(home: Path, identity: PageIdentity) -> None:
    path = str(home / "race.page")
    fd = create_page(path, identity, (0, 1))
    writer = subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE)
    try:
        assert writer.stdout is not None
        writer.stdout.readline()
        reader = PageReader(fd)
        values: list[PageValue | None] = []
        end_s = time.monotonic() + 20
        seen: set[int] = set()
        while (len(values) < 300 or len(seen) < 2) and time.monotonic() < end_s:
            value = reader.read(time.monotonic_ns())
            if value is not None:
                seen.add(value.cores[0].executions)
            if not values or value is not values[-1]:
                values.append(value)
    finally:
        writer.kill()
        writer.communicate()
        os.close(fd)
    good = [value for value in values if value is not None]
    assert all(map(consistent, good))
    executions = [value.cores[0].executions for value in good]
    assert executions == sorted(executions)
    assert len(set(executions)) > 1, "the writer must have been at work"


def test_a_writer_killed_anywhere_leaves_a_page_that_reads_or_does_not(
    home: Path, identity: PageIdentity
) -> None:
    for attempt in range(5):
        path = str(home / f"killed-{attempt}.page")
        fd = create_page(path, identity, (0, 1))
        writer = subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(0.001 * attempt)
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        value = PageReader(fd).read(time.monotonic_ns())
        assert value is None or consistent(value)
        os.close(fd)


def test_threads_on_different_cores_lose_nothing(
    home: Path, opened_page: OpenedPage, model: MakeModel
) -> None:
    rounds = 2000
    with opened_page(home, (0, 1, 2, 3)) as (writer, reader, _):

        def work(slot: int) -> None:
            for number in range(rounds):
                writer.begin(slot)
                writer.set_memory(slot, MemoryCategory.TENSORS, number)
                place = writer.add_model(model(10001 + number, core=slot))
                writer.end(slot, 0, 10)
                writer.remove_model(place)
                writer.set_host_memory(MemoryCategory.TENSORS, number)

        threads = [threading.Thread(target=work, args=(slot,)) for slot in range(4)]
        for thread in threads:
            thread.start()
        seen = []
        while any(thread.is_alive() for thread in threads):
            value = reader.read(time.monotonic_ns())
            if value is not None:
                seen.append(sum(use.executions for use in value.cores))
        for thread in threads:
            thread.join()
        value = reader.read(time.monotonic_ns())
    assert value is not None
    assert [use.executions for use in value.cores] == [rounds] * 4
    assert [use.memory.tensors for use in value.cores] == [rounds - 1] * 4
    assert value.models == ()
    assert seen == sorted(seen)
