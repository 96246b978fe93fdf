"""A run with its compile cache in a bucket: a local copy in front, whole entries, and it goes on without the bucket."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from neurontools.cache import layouts
from neurontools.cache.entries import scan
from neurontools.cache.entry_files import State
from neurontools.cache.events import Usage
from neurontools.cache.location import copy_dir
from neurontools.cache.store import CompileCache
from neurontools.compiler.options import CompileError
from tests.cache.remote.conftest import TRN1, keys, put
from tests.cache.remote.test_copy import assert_sound
from tests.cache.remote.wires import refusing
from tests.compiler.graphs import mlp

if TYPE_CHECKING:
    from tests.conftest import Tool

BROKEN = mlp(dtype="complex128")
Opener = Callable[..., CompileCache]


@pytest.fixture(autouse=True)
def own_copies(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "xdg-cache"))


def another_host(root: str) -> None:
    """Forget the copy, as a host that has never seen the bucket."""
    shutil.rmtree(copy_dir(root))


def test_what_one_host_compiles_another_finds(
    bucket: str, open_cache: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = open_cache(bucket).get_or_compile(mlp(), TRN1, "mlp")
    assert (made.hit, made.entry.startswith(copy_dir(bucket))) == (False, True)
    assert_sound(bucket, 1)
    another_host(bucket)
    found = open_cache(bucket).get_or_compile(mlp(), TRN1, "mlp")
    assert (found.hit, found.data) == (True, made.data)
    assert Usage(bucket).totals().hits == 1


def test_a_hit_in_the_copy_needs_no_bucket(
    bucket: str, open_cache: Opener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    open_cache(bucket).get_or_compile(mlp(), TRN1, "mlp")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with caplog.at_level(logging.WARNING):
        assert open_cache(bucket).get_or_compile(mlp(), TRN1, "mlp").hit
    assert caplog.messages == []


def test_failures_are_shared_until_somebody_tries_again(bucket: str, open_cache: Opener) -> None:
    with pytest.raises(CompileError, match="Complex"):
        open_cache(bucket).get_or_compile(BROKEN, TRN1, "bad")
    assert [entry.state for entry in scan(bucket).entries] == [State.FAILED]
    another_host(bucket)
    cache = open_cache(bucket)
    with pytest.raises(CompileError, match="Complex"):
        cache.get_or_compile(BROKEN, TRN1, "bad")
    assert Usage(bucket).totals().misses == 1
    with pytest.raises(CompileError):
        open_cache(bucket, NEURON_CC_FLAGS="--retry_failed_compilation").get_or_compile(BROKEN, TRN1, "bad")
    assert Usage(bucket).totals().misses == 2


@pytest.mark.parametrize("missing", [layouts.DONE, layouts.NEFF])
def test_half_an_entry_is_none(
    missing: str, bucket: str, open_cache: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    entry = Path(open_cache(bucket).get_or_compile(mlp(), TRN1, "mlp").entry)
    name = f"{entry.parent.name}/{entry.name}"
    files = {f"{name}/{path.name}": path.read_bytes() for path in entry.iterdir() if path.name != missing}
    another_host(bucket)
    other = f"{bucket}-2"
    put(other, files)
    with caplog.at_level(logging.INFO):
        assert not open_cache(other).get_or_compile(mlp(), TRN1, "mlp").hit
    assert not [text for text in caplog.messages if text.startswith("Copied ")]
    assert_sound(other, 1)


def test_a_damaged_neff_is_compiled_again_and_replaced(
    bucket: str, open_cache: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    entry = Path(open_cache(bucket).get_or_compile(mlp(), TRN1, "mlp").entry)
    name = f"{entry.parent.name}/{entry.name}/{layouts.NEFF}"
    put(bucket, {name: b"not a neff"})
    another_host(bucket)
    assert not open_cache(bucket).get_or_compile(mlp(), TRN1, "mlp").hit
    assert any("Ignoring the damaged neff" in message for message in caplog.messages)
    assert_sound(bucket, 1)


@pytest.mark.parametrize("only_writes", [False, True])
def test_a_bucket_that_refuses_costs_warnings_and_no_result(
    only_writes: bool,
    open_cache: Opener,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pytest.importorskip("s3fs")
    with refusing("AccessDenied", only_writes=only_writes) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        cache = open_cache("s3://closed/x")
        with caplog.at_level(logging.WARNING):
            results = [cache.get_or_compile(mlp(rows=rows), TRN1, "mlp") for rows in (3, 4)]
    assert [result.hit for result in results] == [False, False]
    told = [message.split(":")[0] for message in caplog.messages]
    writing = "Cannot write the compile cache s3"
    assert told == ([writing] if only_writes else ["Cannot read the compile cache s3", writing])
    assert open_cache("s3://closed/x").get_or_compile(mlp(rows=3), TRN1, "mlp").hit


def test_many_threads_of_two_hosts_leave_one_sound_entry(
    bucket: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caches = []
    for host in ("one", "two"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(home / host))
        caches.append(CompileCache.open(None, bucket))
    results: list[bytes] = []

    def work(cache: CompileCache) -> None:
        results.append(cache.get_or_compile(mlp(), TRN1, "mlp").data)

    threads = [threading.Thread(target=work, args=(cache,)) for cache in caches * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for cache in caches:
        cache.close()
    assert len(results) == 6
    assert_sound(bucket, 1)


def test_no_cache_asks_no_bucket(
    open_cache: Opener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("s3fs")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    cache = open_cache("s3://some/x", NEURON_CC_FLAGS="--no_cache")
    with caplog.at_level(logging.WARNING):
        assert not cache.get_or_compile(mlp(), TRN1, "mlp").hit
    assert caplog.messages == []


def test_the_log_names_the_bucket(bucket: str, open_cache: Opener, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        cache = open_cache(bucket)
    assert caplog.messages[0] == f"Compile cache path: {bucket}"
    assert (cache.url, cache.root) == (bucket, copy_dir(bucket))
    assert keys(bucket) == {}


def test_a_forked_child_speaks_to_the_bucket_itself(bucket: str, open_cache: Opener) -> None:
    open_cache(bucket).get_or_compile(mlp(), TRN1, "mlp")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # this process has threads
        child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(0 if len(scan(bucket).entries) == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.torch
def test_graphs_that_are_collected_are_compiled_into_the_bucket(
    bucket: str, open_cache: Opener, tool: Tool
) -> None:
    open_cache(bucket, NEURON_EXTRACT_GRAPHS_ONLY="1").extract(mlp(), TRN1)
    assert keys(bucket) == {}
    environ = {**os.environ, "NEURON_COMPILE_CACHE_URL": bucket}
    done = tool("neuron_parallel_compile", "--command", "compile", env=environ)
    assert (done.returncode, "Total successful compilations: 1" in done.stderr + done.stdout) == (0, True)
    assert_sound(bucket, 1)
    cache = open_cache(bucket)
    assert cache.get_or_compile(mlp(), TRN1, "mlp").hit
    cache.close()
    cleared = tool("neuron_parallel_compile", "--command", "clear-neffs", env=environ)
    assert (cleared.returncode, "1 NEFFs removed" in cleared.stdout) == (0, True)
    assert_sound(bucket, 1)
    again = tool("neuron_parallel_compile", "--command", "compile", env=environ)
    assert (again.returncode, "Call compiler" in again.stderr) == (0, False)
