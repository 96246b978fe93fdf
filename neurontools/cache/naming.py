"""Which entry a person means: a path, a module's name, or the start of one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from neurontools.cache.remote.url import is_remote
from neurontools.cache.tree import exists, tree_of
from neurontools.cache.walk import HINT, place_of, walk
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.cache.walk import Place

_SHORTEST = 3
_NAMES_SHOWN = 4


class NoSuchEntryError(UsageError):
    """Nothing in the root is called that, or several entries are."""

    exit_code = 1


def find_places(root: str, names: Sequence[str]) -> tuple[Place, ...]:
    """Return the place of each name: a path of an entry or of something in it, a module, or the start of a module.

    The start may leave out `MODULE_`.

    Raises:
        NoSuchEntryError: a name fits no entry, or several.
        NotACacheError: the root is no cache.
    """
    known: list[Place] = []
    found = []
    for name in names:
        place = _at_path(root, name)
        if place is None:
            known = known or _places(root)
            place = _by_name(root, known, name)
        found.append(place)
    return tuple({place.path: place for place in found}.values())


def _places(root: str) -> list[Place]:
    walked = walk(root)
    if not walked.exists:
        raise NoSuchEntryError(f"there is no compile cache at {root}", HINT)
    return walked.places


def _at_path(root: str, name: str) -> Place | None:
    path, base = (
        (name.rstrip("/"), root) if is_remote(root) else (os.path.abspath(name), os.path.abspath(root))
    )
    tree = tree_of(root)
    while "/" in name and path.startswith(base + "/"):
        place = place_of(base, path)
        if place is not None and exists(tree, path):
            return place
        path = os.path.dirname(path)
    return None


def _by_name(root: str, places: Sequence[Place], name: str) -> Place:
    wanted = name.strip().rstrip("/")
    exact = [place for place in places if place.module == wanted]
    starts = (wanted, f"MODULE_{wanted}")
    fits = exact or [
        place for place in places if len(wanted) >= _SHORTEST and place.module.startswith(starts)
    ]
    if len(fits) == 1:
        return fits[0]
    if not fits:
        short = f"; {_SHORTEST} characters at least" if len(wanted) < _SHORTEST else ""
        raise NoSuchEntryError(
            f"no entry {name!a} in {root}{short}",
            "'neuron-cache ls' lists them; give a path or the start of a name",
        )
    shown = ", ".join(place.path.removeprefix(root + "/") for place in fits[:_NAMES_SHOWN])
    more = f" and {len(fits) - _NAMES_SHOWN} more" if len(fits) > _NAMES_SHOWN else ""
    raise NoSuchEntryError(
        f"{name!a} names {len(fits)} entries: {shown}{more}", "give more of the name, or the path"
    )
