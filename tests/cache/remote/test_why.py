"""`why` for entries in a bucket: read from there, explained as those of a directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.cache.remote.conftest import TRN1, Run
from tests.compiler.graphs import mlp

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from neurontools.cache.store import CompileCache


def test_compiles_into_a_bucket_are_explained(
    bucket: str,
    open_cache: Callable[..., CompileCache],
    run: Run,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "xdg-cache"))
    cache = open_cache(bucket)
    for rows in (8, 3):
        cache.get_or_compile(mlp(rows=rows), TRN1, "mlp")
    cache.close()
    report = run("why", "--last", "--json", "--cache-dir", bucket).json
    assert [cause["name"] for cause in report["causes"]] == ["last partial batch"]
    paths = [miss["entry"]["path"] for miss in report["misses"]]
    assert all(path.startswith(f"{bucket}/") for path in paths)
    pair = run("why", *paths, "--json", "--cache-dir", bucket).json
    assert pair["causes"][0]["name"] == "input shape changed"
    assert (pair["nearest"]["path"], pair["entry"]["path"]) == tuple(paths)
