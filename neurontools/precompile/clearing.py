"""Taking NEFFs away and keeping the graphs, so that they are compiled again: `--command clear-neffs`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from neurontools.base.files import remove_quietly
from neurontools.cache import layouts
from neurontools.cache.entries import is_in_use
from neurontools.cache.locks import try_lock
from neurontools.cache.pruning.removal import is_network_root
from neurontools.cache.pruning.rules import PruneRules, reason_to_spare
from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from neurontools.cache.entries import Entry


def clear_neffs(
    root: str, entries: Iterable[Entry], *, dry_run: bool
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Remove the NEFFs of finished entries.

    Args:
        root: of the cache.
        entries: the finished ones.
        dry_run: remove nothing, say what would go.

    Returns:
        The NEFFs that went, and pairs of entry and reason for those that stay: pinned, locked or in use.

    Raises:
        NeuronToolsError: the cache cannot be written to.
    """
    network = is_network_root(root)
    gone, spared = [], []
    for entry in entries:
        reason = reason_to_spare(entry, PruneRules(grace_s=0.0), time.time(), network=network)
        if not reason and is_in_use(entry.path):
            reason = "in use"
        if not reason and not dry_run:
            reason = _clear(root, entry.path)
        if reason:
            spared.append((entry.path, reason))
        else:
            gone.append(f"{entry.path}/{layouts.NEFF}")
    return tuple(gone), tuple(spared)


def _clear(root: str, entry: str) -> str:
    try:
        lock = try_lock(root, entry)
    except FileNotFoundError:
        return "gone meanwhile"
    except OSError as error:
        raise NeuronToolsError(
            f"cannot remove from the compile cache {root}: {error.strerror}",
            "run this as the owner of the cache, on a host where it is writable",
        ) from error
    if lock is None:
        return "locked meanwhile"
    try:
        # The marker first: a reader sees a finished entry or one that waits to be compiled, never a marker alone.
        remove_quietly(f"{entry}/{layouts.DONE}")
        remove_quietly(f"{entry}/{layouts.NEFF}")
    finally:
        lock.release()
    return ""
