"""Names of files and directories in compile caches, and the present and past layouts of caches."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from enum import StrEnum

from neurontools.base import files
from neurontools.base.directories import Directory, open_below
from neurontools.cache.flags import flags_hash
from neurontools.cache.location import open_root

ROOT_LOCK = "lock"
COMPILER_PREFIX = "neuronxcc-"
GRAPH = "model.hlo_module.pb"
GRAPH_NAMES = (GRAPH, "model.hlo.pb", "model.hlo_module.pb.gz", "model.hlo.pb.gz")
FLAGS = "compile_flags.json"
NEFF = "model.neff"
DONE = "model.done"
LOG = "model.log"
LOCK = GRAPH + ".lock"
LOCK_SUFFIX = ".lock"
STAMP = ".last_used"
PIN = ".pinned"
TAG_PREFIX = ".tag-"
ORIGIN = ".compiled_by.json"
WAITER_PREFIX = ".waiting-"
IMPORTING = ".importing"
TEMPORARY_PREFIX = files.TEMPORARY_PREFIX
TRASH = ".trash"
CACHE_TAG = "CACHEDIR.TAG"
TAG_SIGNATURE = "Signature: 8a477f597d28d172789f06886806bc55"
_TAG_TEXT = f"{TAG_SIGNATURE}\n# A compile cache: backups may leave it out.\n"
_MODULE = re.compile(r"MODULE_([0-9a-f]+)\+([0-9a-f]{8})")
_COMPILER = re.compile(COMPILER_PREFIX + r"[!-~]+")
_OWN_NAME = re.compile(r"lock|CACHEDIR\.TAG|\.(?:trash|importing)(?:-[0-9]+)?")
OLDEST_PREFIX = "USER_neuroncc-"
OLDEST_FOLDER = "neuron-compile-cache"
SENTINEL = ".compilation_complete"
NEFF_SUFFIX = ".neff"
NEWER_REGISTRY = "0_REGISTRY"
REGISTRIES = frozenset({NEWER_REGISTRY, "REGISTRY", "INFERENCE", "TRAINING"})
_OLDEST_COMPILER = re.compile(OLDEST_PREFIX + r"[!-~]+")
_OLDEST_MODULE = re.compile(r"MODULE_([0-9a-f]+)")
_SHARD = re.compile(r"[0-9a-f]{2}")
_VLLM = re.compile(r"[0-9a-f]{32}")


def module_name(graph_hash: str, flags: tuple[str, ...]) -> str:
    """Return the directory name of an entry."""
    return f"MODULE_{graph_hash}+{flags_hash(flags)}"


def compiler_name(version: str) -> str:
    """Return the directory name of a compiler version."""
    return COMPILER_PREFIX + version


def is_compiler_dir(name: str) -> bool:
    """Return whether a name is that of a compiler version's directory."""
    return _COMPILER.fullmatch(name) is not None


def split_module(name: str) -> tuple[str, str] | None:
    """Return the graph hash and flags hash of an entry's directory name, None for other names."""
    found = _MODULE.fullmatch(name)
    return (found[1], found[2]) if found else None


def is_own_name(name: str) -> bool:
    """Return whether a name in a root is that of a file or directory of this toolkit beside the entries."""
    return _OWN_NAME.fullmatch(name) is not None


def work_names(name: str) -> tuple[str, str]:
    """Return the names that a work directory of this user can have in a root; see `work_name`."""
    return name, f"{name}-{os.geteuid()}"


def work_name(root: Directory, name: str) -> str:
    """Return the name of a work directory of this user: with the uid where a directory of another user has the name.

    Args:
        root: the cache.
        name: `TRASH` or `IMPORTING`.
    """
    found = root.status(name)
    common, own = work_names(name)
    return common if found is None or found.st_uid == os.geteuid() else own


def display_path(path: str, root: str, width: int | None) -> str:
    """Return a path as a table shows it: below the root on a terminal, whole in a pipe (`width` None)."""
    return path if width is None else path.removeprefix(f"{root}/")


def make_root(root: str) -> None:
    """Create the root with its lock file; a new one gets a CACHEDIR.TAG.

    Raises:
        OSError: it cannot be made or written to.
    """
    if not os.path.isdir(root):
        os.makedirs(root, exist_ok=True)
    with open_root(root) as directory:
        if directory.status(ROOT_LOCK) is None:
            is_new = not directory.names()
            with suppress(FileExistsError):
                directory.create(ROOT_LOCK)
                if is_new:
                    directory.create(CACHE_TAG, _TAG_TEXT)


def root_of(entry: str) -> str:
    """Return the root of an entry of the current layout."""
    return os.path.dirname(os.path.dirname(entry))


def open_entry(entry: str, *, create: bool = False) -> Directory:
    """Open the directory of an entry of the current layout; neither it nor the compiler's directory may be a link.

    Raises:
        OSError: it does not exist or cannot be opened, or with `create`, cannot be created.
    """
    return open_below(root_of(entry), entry, create=create)


def remove_empty_entry(entry: str) -> None:
    """Remove the directory of an entry of the current layout if it is empty; errors are ignored."""
    with suppress(OSError), open_below(root_of(entry), os.path.dirname(entry)) as above:
        above.remove_if_empty(os.path.basename(entry))


class CacheLayout(StrEnum):
    """A layout: the current one, that of 2022, TorchNeuron's sharded NEFFs, or vLLM's directories."""

    CURRENT = "current"
    OLDEST = "oldest"
    TORCHNEURON = "torchneuron"
    VLLM = "vllm"


def is_oldest_compiler_dir(name: str) -> bool:
    """Return whether a name is that of a compiler version's directory of 2022."""
    return _OLDEST_COMPILER.fullmatch(name) is not None


def oldest_graph_hash(name: str) -> str:
    """Return the graph hash in the name of an entry of 2022, "" for another name."""
    found = _OLDEST_MODULE.fullmatch(name)
    return found[1] if found else ""


def is_shard(name: str) -> bool:
    """Return whether a name is one of the two levels of directories above TorchNeuron's NEFFs."""
    return _SHARD.fullmatch(name) is not None


def is_vllm_key(name: str) -> bool:
    """Return whether a name is that of an entry of vLLM's compile cache."""
    return _VLLM.fullmatch(name) is not None
