"""`neuron-cache verify` wherever the root is. In a bucket every entry is copied here, checked, and the copy thrown away."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from neurontools.cache import verify
from neurontools.cache.remote.connection import Connection
from neurontools.cache.remote.copies import copied
from neurontools.cache.remote.errors import RemoteError
from neurontools.cache.remote.tree import BucketTree
from neurontools.cache.remote.url import is_remote

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.cache.verify import Finding
    from neurontools.cache.walk import Place

_AT_ONCE = 8


def check_root(
    root: str, places: Sequence[Place], progress: Callable[[int, int], None] | None = None
) -> tuple[int, tuple[Finding, ...]]:
    """Return how many entries of a directory or a bucket were checked, and what is wrong with them."""
    if is_remote(root):
        return check_bucket(root, places, progress)
    return verify.check(root, places, progress)


def check_bucket(
    root: str, places: Sequence[Place], progress: Callable[[int, int], None] | None = None
) -> tuple[int, tuple[Finding, ...]]:
    """Return how many entries were checked, and what is wrong with them, as `verify.check`.

    Raises:
        RemoteError: an entry cannot be read.
        OSError: there is no room for a copy.
    """
    findings: list[Finding] = []
    checked = 0
    connection = Connection(root)

    def check(place: Place) -> tuple[int, tuple[Finding, ...]]:
        try:
            return check_copy(place)
        except RemoteError as error:
            if error.is_gone:
                return 0, ()
            raise

    def check_copy(place: Place) -> tuple[int, tuple[Finding, ...]]:
        with copied(BucketTree(root, connection=connection), root, place) as (local, here):
            number, found = verify.check(local, [here])
            there = tuple(replace(finding, path=root + finding.path.removeprefix(local)) for finding in found)
            return number, there

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for number, (sound, found) in enumerate(pool.map(check, places)):
            if progress is not None:
                progress(number, len(places))
            checked += sound
            findings += found
    return checked, tuple(findings)
