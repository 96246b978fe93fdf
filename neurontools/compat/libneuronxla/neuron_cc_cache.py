"""The compile cache as programs built on libneuronxla use it, such as optimum-neuron: places, files, locks.

Source: the calls in optimum-neuron's `optimum/neuron/cache/hub_cache.py`.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from neurontools.base.files import write_atomic
from neurontools.base.json_reader import load_json
from neurontools.cache import layouts
from neurontools.cache.entries import scan
from neurontools.cache.entry_files import State
from neurontools.cache.flags import flags_hash
from neurontools.cache.location import is_remote, resolve
from neurontools.cache.lock_list import list_locks, stale_locks
from neurontools.cache.locks import try_lock
from neurontools.cache.pruning.prune import break_any_locks, prepare_pruning
from neurontools.cache.pruning.rules import PruneRules
from neurontools.cache.walk import walk
from neurontools.compat.unsupported import missing_names
from neurontools.compiler.options import COMPILER_VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.cache.locks import EntryLock


__getattr__ = missing_names(__name__)


class CacheUrl:
    """The place of a cache.

    Args:
        url: a directory, or `s3://bucket/prefix`.
        url_type: `fs` or `s3`; None asks the URL.
    """

    def __init__(self, url: str, url_type: str | None = None) -> None:
        self.url = url
        self.url_type = url_type or ("s3" if is_remote(url) else "fs")

    @staticmethod
    def get_cache_url(cache_dir: str | None = None) -> CacheUrl:
        """Return a cache's place: the argument, else what the environment names."""
        return CacheUrl(resolve(url=cache_dir).root)

    def is_s3(self) -> bool:
        """Return whether the cache is in a bucket."""
        return self.url_type == "s3"

    def is_fs(self) -> bool:
        """Return whether the cache is a directory."""
        return self.url_type == "fs"


class CompileCache:
    """A cache: the paths of its entries. `cache_path` is its directory or URL."""

    cache_type = ""

    def __init__(self, cache_url: CacheUrl) -> None:
        self.cache_url = cache_url
        self.cache_path = cache_url.url

    @staticmethod
    def get_compiler_flags_hash(compile_flags: Sequence[str]) -> str:
        """Return the digits that stand for compiler flags in the name of an entry."""
        return flags_hash(compile_flags)

    def get_cache_dir(self, model_hash: str, compile_flags_str: str) -> str:
        """Return the directory of an entry; the flags are a JSON list."""
        module = layouts.module_name(model_hash, tuple(load_json(compile_flags_str.encode())))
        return self.get_cache_dir_with_cache_key(module)

    def get_cache_dir_with_cache_key(self, cache_key: str) -> str:
        """Return the directory of a name below that of this compiler version."""
        return f"{self.cache_path}/{layouts.compiler_name(COMPILER_VERSION)}/{cache_key}"


class CompileCacheFs(CompileCache):
    """A cache in a directory."""

    cache_type = "fs"

    def __init__(self, cache_url: CacheUrl) -> None:
        super().__init__(cache_url)
        self.cache_path = resolve(url=cache_url.url).directory
        self._locks: dict[str, EntryLock] = {}

    def exists(self, path: str) -> bool:
        """Return whether a file or directory is there."""
        return os.path.exists(path)

    def remove(self, path: str) -> None:
        """Remove a file or directory."""
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)

    def download_file(self, filename: str, dst_path: str) -> None:
        """Copy a file out of the cache."""
        shutil.copyfile(filename, dst_path)

    def download_file_to_string(self, filename: str, limit: int | None = None) -> str:
        """Return the text of a file, or its first `limit` bytes."""
        with open(filename, "rb") as file:
            return file.read(-1 if limit is None else limit).decode(errors="replace")

    def upload_file(self, cache_path: str, src_path: str) -> None:
        """Copy a file into the cache."""
        with open(src_path, "rb") as file:
            self._write(cache_path, file.read())

    def upload_string_to_file(self, cache_path: str, data: str) -> None:
        """Write a text into the cache."""
        self._write(cache_path, data.encode())

    def get_hlos(self, failed_neff_str: str = "") -> tuple[list[str], ...]:  # noqa: ARG002 # part of the name
        """Return the graphs to compile, locked, done and failed; a failure is known by its entry."""
        found = scan(self.cache_path, details=False).entries
        own = [entry for entry in found if entry.compiler == COMPILER_VERSION]

        def graphs(*states: State) -> list[str]:
            return [f"{entry.path}/{layouts.GRAPH}" for entry in own if entry.state in states]

        todo = graphs(State.TODO, State.INTERRUPTED)
        return todo, graphs(State.LOCKED), graphs(State.DONE), graphs(State.FAILED)

    def hlo_acquire_lock(self, h: str) -> bool:
        """Lock the entry of a graph; return whether that succeeded."""
        entry = os.path.dirname(h)
        os.makedirs(entry, exist_ok=True)
        lock = try_lock(self.cache_path, entry)
        if lock is not None:
            self._locks[entry] = lock
        return lock is not None

    def hlo_release_lock(self, h: str) -> None:
        """Unlock the entry of a graph that this object locked."""
        lock = self._locks.pop(os.path.dirname(h), None)
        if lock is not None:
            lock.release()

    def clear_locks(self) -> None:
        """Remove the locks whose holder has ended."""
        stale = stale_locks(list_locks(walk(self.cache_path).places), 0.0)
        break_any_locks(self.cache_path, stale, 0.0)

    def clean(self) -> None:
        """Remove all entries that no process uses."""
        found = scan(self.cache_path, details=False)
        prepare_pruning(found, PruneRules(everything=True, grace_s=0.0)).carry_out()

    def _write(self, path: str, data: bytes) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write_atomic(path, data)


class CompileCacheS3(CompileCacheFs):
    """A cache in a bucket: this user's copy of it, as runs use it. Runs fetch from the bucket and send to it."""

    cache_type = "s3"


def create_compile_cache(cache_url: CacheUrl) -> CompileCacheFs:
    """Return the cache at a place."""
    return CompileCacheS3(cache_url) if cache_url.is_s3() else CompileCacheFs(cache_url)
