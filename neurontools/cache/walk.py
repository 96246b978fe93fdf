"""Reading a root on a file system or in a bucket: names, metadata, starts of files, and the entries in it.

Links are never followed, and the content of entries is not read. A name that no layout knows is counted; a root without
any sure sign of a cache is refused.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

from neurontools.base import files
from neurontools.cache import layouts
from neurontools.cache.layouts import (
    NEFF_SUFFIX,
    NEWER_REGISTRY,
    OLDEST_FOLDER,
    OLDEST_PREFIX,
    REGISTRIES,
    SENTINEL,
    CacheLayout,
    is_oldest_compiler_dir,
    is_shard,
    is_vllm_key,
    oldest_graph_hash,
)
from neurontools.cache.location import is_remote
from neurontools.cache.locks import LockState, examine_lock
from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager


class DirectoryItem(Protocol):
    """A name in a directory; `os.DirEntry` is one."""

    @property
    def name(self) -> str:
        """The name alone."""

    @property
    def path(self) -> str:
        """The directory's path, a slash and the name."""

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether it is a directory."""

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether it is a plain file."""

    def is_symlink(self) -> bool:
        """Return whether it is a link."""

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return its metadata."""


class CacheTree(Protocol):
    """Reads one root. Paths are whole: the root and the path below it."""

    def scandir(self, path: str) -> AbstractContextManager[Iterator[DirectoryItem]]:
        """Return the items of a directory; raises OSError like `os.scandir`."""

    def lstat(self, path: str) -> os.stat_result:
        """Return the metadata of a file or directory; raises OSError like `os.lstat`."""

    def read_start(self, path: str, most_bytes: int) -> bytes:
        """Return the first bytes of a file, b"" where it cannot be read."""

    def read_ends_text(self, path: str, each_bytes: int) -> str:
        """Return the start of a text file and, if it is longer, its end after a line `...`."""

    def examine_lock(self, path: str) -> LockState | None:
        """Return the state of a lock, or None when there is none."""

    def prefetch(self, ranges: Iterable[tuple[str, int]]) -> None:
        """Prefetch the first bytes of many files where single reads are slow."""


class LocalTree:
    """A root on a file system."""

    def scandir(self, path: str) -> AbstractContextManager[Iterator[DirectoryItem]]:
        """Return the items of a directory."""
        return os.scandir(path)

    lstat = staticmethod(os.lstat)
    read_start = staticmethod(files.read_start)
    read_ends_text = staticmethod(files.read_ends_text)
    examine_lock = staticmethod(examine_lock)

    def prefetch(self, ranges: Iterable[tuple[str, int]]) -> None:
        """Do nothing: local reads are fast."""


LOCAL = LocalTree()


def open_tree(root: str, on_listed: Callable[[int], None] | None = None) -> CacheTree:
    """Return the reader of a root.

    Args:
        root: a directory, or `s3://bucket/prefix`.
        on_listed: called periodically with the number of objects listed in a bucket.

    Raises:
        MissingDependencyError: the root is in a bucket, and the packages for buckets are not installed.
    """
    if not is_remote(root):
        return LOCAL
    from neurontools.cache.remote.tree import BucketTree

    return BucketTree(root, on_listed)


def exists(tree: CacheTree, path: str) -> bool:
    """Return whether something is at a path; links are not followed."""
    try:
        tree.lstat(path)
    except OSError:
        return False
    return True


HINT = "'neuron-cache stats --path' prints the cache in use; --cache-dir selects another"
_MAX_REGISTRY_DEPTH = 8
_NAMES_SHOWN = 3
_PROGRESS_STEP = 1000


class NotACacheError(NeuronToolsError):
    """The cache does not exist, cannot be read, or is not a compile cache."""


def missing_cache(root: str) -> NotACacheError:
    """Return the error for a root that does not exist."""
    why = "no object has this prefix" if is_remote(root) else "no such directory"
    return NotACacheError(f"no compile cache at {root}: {why}", HINT)


@dataclass(frozen=True, slots=True)
class EntryRef:
    """A reference to an entry; `compiler` is its version, "" in layouts without it."""

    path: str
    layout: CacheLayout
    compiler: str
    module: str

    def file(self, name: str = layouts.NEFF) -> str:
        """Return the path of one of its files, the NEFF if none is named; an entry of TorchNeuron is a single file."""
        return self.path if self.layout is CacheLayout.TORCHNEURON else f"{self.path}/{name}"


@dataclass(frozen=True, slots=True)
class RegistryRecord:
    """A registry file of optimum for an exported or trained model. Parts missing in its path are ""."""

    path: str
    compiler: str
    kind: str
    optimum: str
    arch: str
    model: str


@dataclass(slots=True)
class Walk:
    """The entries of a root.

    `skipped` counts names that no layout knows, `unread` are directories that cannot be read.
    """

    root: str
    exists: bool = True
    places: list[EntryRef] = field(default_factory=list)
    registry: list[RegistryRecord] = field(default_factory=list)
    skipped: int = 0
    unread: list[str] = field(default_factory=list)
    tree: CacheTree = LOCAL


def walk(root: str, on_listed: Callable[[int], None] | None = None) -> Walk:
    """Return the entries of a root, sorted by path.

    Args:
        root: a directory, or `s3://bucket/prefix`.
        on_listed: called periodically with the number of objects listed in a bucket.

    Raises:
        NotACacheError: the root exists and is not a directory, cannot be read, or is not a compile cache.
        RemoteError: the bucket cannot be listed.
    """
    found = Walk(root, tree=open_tree(root, on_listed))
    items = _root_items(found)
    if items is None:
        found.exists = False
        return found
    for item in items:
        _walk_item(found, item)
    _walk_vllm(found, [item for item in items if is_vllm_key(item.name) and _is_directory(item)])
    if not found.places and items and not _is_marked(found, items):
        names = ", ".join(ascii(item.name) for item in items[:_NAMES_SHOWN])
        more = f" and {len(items) - _NAMES_SHOWN} more" if len(items) > _NAMES_SHOWN else ""
        raise NotACacheError(
            f"{root} is not a compile cache: it contains other files ({names}{more}) "
            f"and no {layouts.COMPILER_PREFIX}* directory",
            HINT,
        )
    found.places.sort(key=attrgetter("path"))
    return found


def with_progress(
    places: Sequence[EntryRef], on_read: Callable[[int, int], None] | None
) -> Iterator[EntryRef]:
    """Yield entries; `on_read` is called periodically with the number so far and the total."""
    for number, place in enumerate(places):
        if on_read is not None and number % _PROGRESS_STEP == 0:
            on_read(number, len(places))
        yield place


def parse_entry_path(root: str, path: str) -> EntryRef | None:
    """Return the entry that a path inside a root would be, None if no layout has entries there."""
    if not path.startswith(root.rstrip("/") + "/"):
        return None
    parts = path[len(root.rstrip("/")) + 1 :].rstrip("/").split("/")
    match parts:
        case [compiler, module] if layouts.is_compiler_dir(compiler) and layouts.split_module(module):
            version = compiler.removeprefix(layouts.COMPILER_PREFIX)
            return EntryRef(path, CacheLayout.CURRENT, version, module)
        case [*above, compiler, module] if is_oldest_compiler_dir(compiler) and oldest_graph_hash(module):
            version = compiler.removeprefix(OLDEST_PREFIX)
            return (
                EntryRef(path, CacheLayout.OLDEST, version, module)
                if above in ([], [OLDEST_FOLDER])
                else None
            )
        case [first, second, name] if is_shard(first) and is_shard(second) and name.endswith(NEFF_SUFFIX):
            return EntryRef(path, CacheLayout.TORCHNEURON, "", name.removesuffix(NEFF_SUFFIX))
        case [key] if is_vllm_key(key):
            return EntryRef(path, CacheLayout.VLLM, "", key)
    return None


def _root_items(found: Walk) -> list[DirectoryItem] | None:
    root = found.root
    try:
        with found.tree.scandir(root) as listing:
            return sorted(listing, key=lambda item: item.name)
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        raise NotACacheError(f"{root} is not a compile cache: it is a file", HINT) from error
    except OSError as error:
        raise NotACacheError(f"cannot read the compile cache {root}: {error.strerror}", HINT) from error


def _is_marked(found: Walk, items: list[DirectoryItem]) -> bool:
    names = {item.name for item in items}
    marks = {layouts.TRASH, layouts.CACHE_TAG, layouts.IMPORTING}
    if names <= {layouts.ROOT_LOCK} or names & marks:
        return True
    return any(
        layouts.is_compiler_dir(item.name)
        or is_oldest_compiler_dir(item.name)
        or _is_oldest_folder(found, item)
        for item in items
    )


def _walk_item(found: Walk, item: DirectoryItem) -> None:
    name = item.name
    if layouts.is_own_name(name):
        return
    if not _is_directory(item):
        found.skipped += 1
    elif layouts.is_compiler_dir(name):
        _walk_compiler(found, item.path, name.removeprefix(layouts.COMPILER_PREFIX))
    elif is_oldest_compiler_dir(name):
        _walk_oldest(found, item.path, name.removeprefix(OLDEST_PREFIX))
    elif _is_oldest_folder(found, item):
        for inner in _items(found, item.path):
            if is_oldest_compiler_dir(inner.name) and _is_directory(inner):
                _walk_oldest(found, inner.path, inner.name.removeprefix(OLDEST_PREFIX))
            else:
                found.skipped += 1
    elif not is_vllm_key(name) and not (is_shard(name) and _walk_shard(found, item.path)):
        found.skipped += 1


def _walk_compiler(found: Walk, path: str, compiler: str) -> None:
    for item in _items(found, path):
        name = item.name
        if layouts.split_module(name) is not None and _is_directory(item):
            found.places.append(EntryRef(item.path, CacheLayout.CURRENT, compiler, name))
        elif name in REGISTRIES and _is_directory(item):
            _walk_registry(found, item.path, compiler, name, ())
        else:
            found.skipped += 1


def _walk_oldest(found: Walk, path: str, compiler: str) -> None:
    for item in _items(found, path):
        if oldest_graph_hash(item.name) and _is_directory(item):
            found.places.append(EntryRef(item.path, CacheLayout.OLDEST, compiler, item.name))
        else:
            found.skipped += 1


def _walk_vllm(found: Walk, items: list[DirectoryItem]) -> None:
    """Add directories named like vLLM's keys, if at least one of them is finished."""
    if any(exists(found.tree, f"{item.path}/{SENTINEL}") for item in items):
        found.places += [EntryRef(item.path, CacheLayout.VLLM, "", item.name) for item in items]
    else:
        found.skipped += len(items)


def _walk_shard(found: Walk, path: str) -> bool:
    """Add the NEFFs two levels below; return False without NEFFs, as in git's object directories."""
    before = len(found.places)
    others = 0
    for second in _items(found, path):
        if not (is_shard(second.name) and _is_directory(second)):
            others += 1
            continue
        for item in _items(found, second.path):
            if item.name.endswith(NEFF_SUFFIX) and item.is_file(follow_symlinks=False):
                module = item.name.removesuffix(NEFF_SUFFIX)
                found.places.append(EntryRef(item.path, CacheLayout.TORCHNEURON, "", module))
            else:
                others += 1
    if len(found.places) == before:
        return False
    found.skipped += others
    return True


def _walk_registry(found: Walk, path: str, compiler: str, kind: str, above: tuple[str, ...]) -> None:
    for item in _items(found, path):
        if _is_directory(item) and len(above) < _MAX_REGISTRY_DEPTH:
            _walk_registry(found, item.path, compiler, kind, (*above, item.name))
        elif item.name.endswith(".json") and not item.name.startswith(".") and not item.is_symlink():
            found.registry.append(_record(item.path, compiler, kind, above))
        else:
            found.skipped += 1


def _record(path: str, compiler: str, kind: str, above: tuple[str, ...]) -> RegistryRecord:
    # Only the newer registry has known levels: release of optimum, architecture, model.
    if kind != NEWER_REGISTRY:
        return RegistryRecord(path, compiler, "/".join((kind, *above[:1])), "", "", "/".join(above[1:]))
    optimum, arch, *model = (*above, "", "")[: max(2, len(above))]
    return RegistryRecord(path, compiler, kind, optimum, arch, "/".join(model))


def _is_oldest_folder(found: Walk, item: DirectoryItem) -> bool:
    if item.name != OLDEST_FOLDER or not _is_directory(item):
        return False
    try:
        with found.tree.scandir(item.path) as listing:
            return any(is_oldest_compiler_dir(inner.name) for inner in listing)
    except OSError:
        return False


def _items(found: Walk, path: str) -> Iterator[DirectoryItem]:
    try:
        with found.tree.scandir(path) as listing:
            yield from listing
    except FileNotFoundError:
        return
    except OSError:
        found.unread.append(path)


def _is_directory(item: DirectoryItem) -> bool:
    try:
        return item.is_dir(follow_symlinks=False)
    except OSError:
        return False
