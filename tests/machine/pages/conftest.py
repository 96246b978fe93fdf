"""Pages for tests: fixtures that hand out the functions which make them."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from neurontools.machine.pages.page import PageIdentity, PageReader, PageWriter, create_page
from neurontools.machine.snapshot import MemoryCategory, MemoryUse, ModelState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IDENTITY = PageIdentity(
    machine="default",
    pid=4711,
    start_ticks=99,
    boot_id="0c6a6b1e-8e39-4b0e-a8f6-000000000000",
    uid=1000,
    tag="job",
    command="python train.py",
    runtime_version="2.34.10.0",
    registered_ns=1_000,
)


def model(model_id: int = 10001, core: int = 0, name: str = "model") -> ModelState:
    memory = MemoryUse(constants=10, model_code=20, model_shared_scratchpad=30)
    return ModelState(model_id, name, "00112233445566778899aabbccddeeff", core, False, memory)


@contextmanager
def opened_page(directory: Path, cores: tuple[int, ...]) -> Iterator[tuple[PageWriter, PageReader, int]]:
    path = directory / "test.page"
    path.unlink(missing_ok=True)
    fd = create_page(str(path), IDENTITY, cores)
    writer = PageWriter(fd)
    try:
        yield writer, PageReader(fd), fd
    finally:
        writer.close()
        os.close(fd)


def busy_page(directory: Path) -> bytes:
    """The bytes of a page on which every kind of value is set."""
    with opened_page(directory, (4, 5)) as (writer, _, fd):
        slot = writer.add_model(model(core=5))
        writer.add_model(model(10002, core=4, name="other"))
        writer.set_memory(1, MemoryCategory.TENSORS, 12_345)
        writer.set_reserved(1, 16 << 20)
        writer.set_host_memory(MemoryCategory.APPLICATION_MEMORY, 678)
        for wall_ns, status in ((1_500, 0), (2_000_000, 0), (90_000, 1004)):
            writer.begin(0, slot)
            writer.end(0, status, wall_ns, flops=1_000_000, gpsimd_ns=7)
        writer.begin(1, slot)
        return os.pread(fd, os.fstat(fd).st_size, 0)


@pytest.fixture
def identity() -> PageIdentity:
    return IDENTITY


@pytest.fixture(name="opened_page")
def fixture_opened_page() -> object:
    return opened_page


@pytest.fixture(name="model")
def fixture_model() -> object:
    return model


@pytest.fixture
def good(home: Path) -> bytes:
    """The bytes of a page on which every kind of value is set."""
    return busy_page(home)
