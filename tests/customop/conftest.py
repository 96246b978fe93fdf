"""Libraries that the tests share: built once into the test cache, found there by every later test and process."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from neurontools.customop.building.build import build
from neurontools.customop.building.request import BuildRequest
from neurontools.customop.marshalling import execute
from neurontools.customop.operation import CustomOperator, new_executor
from neurontools.customop.package import Package, read_package

if TYPE_CHECKING:
    import torch

    from neurontools.customop.calls import Executor
    from neurontools.customop.executors import WorkerExecutor

KERNELS = Path(__file__).parent / "kernels"
SAMPLES = Path(__file__).parents[2] / "fixtures" / "customops"
UNOPTIMIZED = {
    "calibration",
    "interface",
    "memory",
    "mixed",
    "multicore_advice",
    "multicore_calibration",
    "operations",
    "styles",
}
"""Kernels of which tests count or compare results; the samples, `faults`, `wrong` and `advice` are built as users do."""

Library = Callable[[str], Path]
Read = Callable[[str], Package]


def request_for(name: str, directory: Path | None = None) -> BuildRequest:
    """Return how a library of `kernels/` or of the samples is built."""
    home = KERNELS / name if (KERNELS / name).is_dir() else SAMPLES / name
    compute = next(path for path in (home / "compute.cpp", home / "relu.cpp") if path.exists())
    return BuildRequest(
        name,
        (compute,),
        (home / "shape.cpp",),
        directory,
        cflags=("-O0",) if name in UNOPTIMIZED else (),
        multicore="multicore" in name,
    )


def worker_of(executor: WorkerExecutor) -> int:
    """Return the process that runs the kernels of an executor: the child of its guard."""
    (worker,) = Path(f"/proc/{executor.pid}/task/{executor.pid}/children").read_text().split()
    return int(worker)


_built: dict[tuple[str, ...], tuple[Path, int]] = {}


@pytest.fixture
def library() -> Library:
    """Return the path of a built library, by the name of its directory.

    Its sources stay as they are: a library that is still the one that this process found built is not built again.
    """

    def find(name: str) -> Path:
        variables = (os.environ.get(variable, "") for variable in ("CXX", "PATH", "XDG_CACHE_HOME"))
        key = (name, *variables)
        path, time_ns = _built.get(key, (Path(), 0))
        if not path.is_file() or path.stat().st_mtime_ns != time_ns:
            path = build(request_for(name)).path
            _built[key] = path, path.stat().st_mtime_ns
        return path

    return find


@pytest.fixture
def package(library: Library) -> Callable[[str], Package]:
    """Return a library's contents, by the name of its directory."""
    return lambda name: read_package(library(name))


@pytest.fixture
def operation(package: Callable[[str], Package]) -> Iterator[Callable[[str], CustomOperator]]:
    """Return an operator with a worker of its own, by `directory::operator`; the workers end with the test."""
    executors: dict[str, Executor] = {}

    def find(qualified: str) -> CustomOperator:
        home, _, name = qualified.partition("::")
        contents = package(home)
        if home not in executors:
            executors[home] = new_executor(contents)
        index = next(i for i, entry in enumerate(contents.manifest.operators) if entry.name == name)
        return CustomOperator(contents, index, executors[home])

    yield find
    for executor in executors.values():
        executor.close()


Call = Callable[..., "torch.Tensor"]


@pytest.fixture
def call(operation: Callable[[str], CustomOperator]) -> Call:
    """Call an operator of the library of operations by its name."""
    found: dict[str, CustomOperator] = {}

    def run(name: str, *arguments: object) -> torch.Tensor:
        if name not in found:
            found[name] = operation(f"operations::{name}")
        output: torch.Tensor = execute(found[name], arguments)[0]
        return output

    return run


@pytest.fixture(scope="session")
def place() -> Iterator[Path]:
    """A directory that no other process uses meanwhile, at a path that later runs have again.

    Object files are found by path and contents: what a test compiles, the next one with the same sources does not.
    """
    for number in range(1000):
        path = Path(tempfile.gettempdir()) / f"neurontools-test-place-{os.getuid()}-{number}"
        path.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        yield path
        os.close(lock)
        return


@pytest.fixture
def scratch(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty work directory that is also the current one; its path is that of other tests, too."""
    path = place / "work"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    with monkeypatch.context() as patch:
        patch.chdir(path)
        yield path
    shutil.rmtree(path, ignore_errors=True)
