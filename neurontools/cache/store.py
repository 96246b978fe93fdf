"""The persistent compile cache as the lazy device uses it: one call finds a graph's NEFF or compiles it.

A hit writes nothing, so read-only roots work. A miss locks the entry, compiles, and publishes with the done marker
last. A cache that cannot be written to costs one warning; the compile still succeeds.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from neurontools import env
from neurontools.base.interrupts import InterruptHold, is_of_handler
from neurontools.base.units import parse_age
from neurontools.cache import extraction, layouts, logs
from neurontools.cache.flags import parse_environment_flags
from neurontools.cache.location import resolve
from neurontools.cache.lookup import CacheResult, CacheRoot, CompileRequest, LockWaitTimeoutError, Lookup
from neurontools.cache.pruning.policy import read_setting
from neurontools.compiler.graph import module_hash_of
from neurontools.compiler.options import COMPILER_VERSION, downcast_variable, names_flag, target_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from neurontools.cache.location import Location
    from neurontools.cache.remote.store import BucketStore
    from neurontools.compiler.graph import Graph
    from neurontools.compiler.neff import NativePart
    from neurontools.machine.instances.catalogue import DeviceType


__all__ = ["CacheResult", "CompileCache"]

_LNC_VARIABLES = ("NEURON_LOGICAL_NC_CONFIG", "NEURON_RT_VIRTUAL_CORE_SIZE")


class CompileCache:
    """One root of the compile cache. Entries found or compiled stay marked as in use until `close`.

    `url` is the root as it was chosen. `root` is the directory that is used: for a bucket, this user's copy of it.
    """

    def __init__(self, location: Location, environ: Mapping[str, str]) -> None:
        settings = parse_environment_flags(environ)
        self.url = location.root
        self.root = location.directory
        self.flags = settings.compiler
        self._settings = settings
        self._validate_hash = environ.get("NEURON_RT_VALIDATE_HASH", "").lower() in {"1", "true"}
        self._lnc = next((environ[name] for name in _LNC_VARIABLES if environ.get(name)), "")
        self._downcast = downcast_variable(environ) if env.numerics_are_device(environ) else ""
        self._environ = environ
        self.extracts_only = extraction.extracts_only(environ)
        if self.extracts_only:
            extraction.record(extraction.RecordKind.ROOT, self.root)
        self._wait_s = read_setting(env.CACHE_LOCK_TIMEOUT, parse_age, environ) or None
        self._files = CacheRoot(self.root, _bucket(location))
        logs.apply_level(settings.log_level)
        text = f"Compile cache path: {self.url}"
        logs.log(logging.INFO, logs.CACHE, text, short=text)

    @classmethod
    def open(cls, environ: Mapping[str, str] | None = None, url: str | None = None) -> CompileCache:
        """Return the cache named by the settings; nothing is created yet.

        Raises:
            UsageError: NEURON_CC_FLAGS, the lock timeout or the root is invalid.
            MissingDependencyError: the root is in a bucket, and the packages for buckets are not installed.
        """
        variables = os.environ if environ is None else environ
        cache = cls(resolve(variables, url), variables)
        if env.flag(env.CACHE_AUTO_PRUNE, variables):
            import atexit

            atexit.register(cache.close)
        return cache

    def flags_for(
        self, device: DeviceType, lnc: int | None = None, further: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """Return the flags of a compile for a device: the wrapper puts the target in front of the user's flags.

        A logical NeuronCore configuration other than the device's default is a flag, so that it is part of the key. So
        is the variable that stores float32 as bfloat16 on the device: torch_xla compiles other graphs then.

        Args:
            device: the device that the graph will run on.
            lnc: the machine's logical NeuronCore configuration; None reads the environment.
            further: flags behind those of the settings.
        """
        flags = (*self.flags, *further)
        wanted = self._lnc if lnc is None else str(lnc)
        is_other = bool(wanted) and wanted != str(device.lnc_default) and len(device.lnc_choices) > 1
        if is_other and not names_flag(flags, "--logical-nc-config"):
            flags = (*flags, f"--logical-nc-config={wanted}")
        if self._downcast:
            flags = (*flags, f"--downcast={self._downcast}")
        return flags if names_flag(flags, "--target") else (f"--target={target_of(device)}", *flags)

    def get_or_compile(
        self,
        graph: Graph,
        device: DeviceType,
        name: str,
        libraries: Sequence[NativePart] = (),
        lnc: int | None = None,
        further: Sequence[str] = (),
    ) -> CacheResult:
        """Return a graph's NEFF, cached or compiled; waits for another process that compiles it.

        Args:
            graph: the graph.
            device: the device that it will run on.
            name: the network's name, kept in a new NEFF.
            libraries: native libraries to put into a new NEFF.
            lnc: physical cores per logical core of the machine; None reads the environment.
            further: flags behind those of the settings.

        Raises:
            CompileError: the compiler refuses it, now or in a cached failure.
        """
        digest = graph.digest()
        flags = self.flags_for(device, lnc, further)
        request = CompileRequest(
            graph=graph,
            digest=digest,
            device=device,
            name=name,
            flags=flags,
            libraries=tuple(libraries),
            entry=self._entry(digest, flags),
            retry_failed=self._settings.retry_failed,
            validate_hash=self._validate_hash,
            wait_s=self._wait_s,
        )
        try:
            return self._run(Lookup(self._files, request))
        finally:
            graph.release_stored_form()

    def _run(self, lookup: Lookup) -> CacheResult:
        if self._settings.no_cache:
            return lookup.compile_uncached()
        try:
            return lookup.run()
        except LockWaitTimeoutError:
            return lookup.compile_uncached()
        except OSError as error:
            if is_of_handler(error):
                raise
            lookup.give_up(error)
            return lookup.compile_uncached()

    def extract(
        self, graph: Graph, device: DeviceType, libraries: Sequence[NativePart] = (), lnc: int | None = None
    ) -> bool:
        """Store a graph for a later compile; see `extraction.extract`.

        Raises:
            NeuronToolsError: the cache cannot be written to.
        """
        flags = self.flags_for(device, lnc)
        entry = self._entry(graph.digest(), flags)
        try:
            with InterruptHold():  # no lock or half an entry stays after Ctrl-C
                return extraction.extract(self.root, entry, graph, flags, libraries)
        finally:
            graph.release_stored_form()

    def _entry(self, digest: str, flags: tuple[str, ...]) -> str:
        module = layouts.module_name(module_hash_of(digest), flags)
        return f"{self.root}/{layouts.compiler_name(COMPILER_VERSION)}/{module}"

    def close(self) -> None:
        """Release the entries, and prune by the user's policy if that is enabled."""
        self._files.close()
        if env.flag(env.CACHE_AUTO_PRUNE, self._environ):
            from neurontools.cache.pruning.policy import prune_after_run

            prune_after_run(self.root, self._environ)


def bucket_behind(root: str, environ: Mapping[str, str] | None = None) -> BucketStore | None:
    """Return the bucket whose local copy a directory is, None for other directories.

    Args:
        root: a directory.
        environ: names the bucket; None for this process's.

    Raises:
        UsageError: as `resolve`.
        MissingDependencyError: the packages for buckets are not installed.
    """
    location = resolve(environ)
    return _bucket(location) if location.is_remote and location.directory == root else None


def _bucket(location: Location) -> BucketStore | None:
    if not location.is_remote:
        return None
    from neurontools.cache.remote.store import BucketStore

    return BucketStore(location.root)
