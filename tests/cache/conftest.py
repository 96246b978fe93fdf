from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from neurontools.cache import layouts
from neurontools.cache.location import counters_dir
from neurontools.cache.store import CompileCache
from neurontools.compiler.compile import compile_graph
from neurontools.compiler.graph import module_hash_of
from neurontools.compiler.options import COMPILER_VERSION
from neurontools.machine.instances.catalogue import instance_type
from tests.compiler.graphs import mlp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from neurontools.compiler.graph import Graph

NOW = 1_700_000_000.0
DAY = 86400.0
TRN1 = instance_type("trn1.2xlarge").device


@dataclass(frozen=True, slots=True)
class Tree:
    """A cache made by hand, by the reference's rules."""

    root: Path

    def entry(
        self,
        *,
        graph: str = "9219523464496887986",
        flags: tuple[str, ...] = ("--target=trn1",),
        compiler: str = COMPILER_VERSION,
        files: dict[str, bytes] | None = None,
        unused_s: float = 0.0,
    ) -> Path:
        path = self.root / layouts.compiler_name(compiler) / layouts.module_name(graph, flags)
        path.mkdir(parents=True)
        content = {layouts.GRAPH: b"graph", layouts.FLAGS: json.dumps(list(flags)).encode(), **(files or {})}
        for name, data in content.items():
            (path / name).write_bytes(data)
            os.utime(path / name, (NOW - unused_s, NOW - unused_s))
        os.utime(path, (NOW - unused_s, NOW - unused_s))
        return path

    def done(self, **options: object) -> Path:
        neff = compile_graph(mlp(), TRN1, (), "mlp")
        return self.entry(files={layouts.NEFF: neff, layouts.DONE: b""}, **options)  # type: ignore[arg-type]

    def compiled(self, graph: Graph, name: str, script: str = "train.py", **options: Any) -> Path:
        """An entry with all that a run stores, compiled in a quarter of a second."""
        origin = {"compile_s": 0.25, "started_unix_s": NOW, "host": "trn1", "pid": 4711, "user": "1000"}
        flags = options.get("flags", ("--target=trn1",))
        files = {
            layouts.GRAPH: graph.to_bytes(),
            layouts.NEFF: compile_graph(graph, TRN1, flags, name),
            layouts.ORIGIN: json.dumps({**origin, "program": script}).encode(),
            layouts.DONE: b"",
        }
        return self.entry(graph=module_hash_of(graph.digest()), files=files, **options)

    def look_up(self, entry: Path, *events: tuple[float, str, float]) -> None:
        """Record lookups: how long ago, what happened, seconds."""
        root = Path(counters_dir(str(self.root)))
        counter = root / "entries" / entry.parent.name / entry.name
        counter.parent.mkdir(parents=True, exist_ok=True)
        with (root / "events").open("a") as journal, counter.open("a") as hits:
            for ago_s, kind, seconds in events:
                journal.write(f"{NOW - ago_s:.3f} 4711:998 {kind} {seconds:.6f} {entry.name}\n")
                hits.write("." * (kind == "hit"))
        newest = NOW - min(ago_s for ago_s, _, _ in events)
        os.utime(counter, (newest, newest))

    def failed(self, log: str = "ERROR: [NCC_EVRF004] no\n", **options: object) -> Path:
        return self.entry(files={layouts.LOG: log.encode()}, **options)  # type: ignore[arg-type]


@pytest.fixture
def tree(home: Path) -> Tree:
    root = home / "compile-cache"
    root.mkdir()
    (root / layouts.ROOT_LOCK).touch()
    return Tree(root)


@pytest.fixture
def open_cache() -> Iterator[Callable[..., CompileCache]]:
    """Open caches that are closed after the test; keyword arguments are environment variables."""
    opened: list[CompileCache] = []

    def make(url: str | None = None, **variables: str) -> CompileCache:
        opened.append(CompileCache.open({**os.environ, **variables}, url))
        return opened[-1]

    yield make
    for cache in opened:
        cache.close()


@pytest.fixture
def entry(open_cache: Callable[..., CompileCache]) -> Path:
    """A sound entry that nobody uses any more."""
    cache = open_cache()
    path = Path(cache.get_or_compile(mlp(), TRN1, "mlp").entry)
    cache.close()
    return path


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make times and sizes on disk the same on every computer."""
    from neurontools.cache import entry_files

    def allocated(found: os.stat_result) -> int:
        return -(-found.st_size // 4096) * 4096

    monkeypatch.setattr(entry_files, "allocated", allocated)
    monkeypatch.setattr("time.time", lambda: NOW)
