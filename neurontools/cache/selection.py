"""Which entries a command selects: by name, by filter, or because this computer could reuse them."""

from __future__ import annotations

import glob
import os
import time
from typing import TYPE_CHECKING

from neurontools.cache.entries import EntryReader, scan_location
from neurontools.cache.fields import parse_filters
from neurontools.cache.flags import parse_environment_flags
from neurontools.cache.layouts import NEFF_SUFFIX
from neurontools.cache.location import is_remote, resolve
from neurontools.cache.walk import LOCAL, EntryRef, exists, missing_cache, open_tree, parse_entry_path, walk
from neurontools.compiler.options import COMPILER_VERSION, names_flag
from neurontools.errors import NeuronToolsError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from neurontools.cache.entries import Entry
    from neurontools.cache.location import Location


_SHORTEST = 3
_NAMES_SHOWN = 4
# Flags that a lookup adds for the device, unless the user sets them.
_ADDED = ("--target", "--logical-nc-config")


class NoSuchEntryError(UsageError):
    """A name matches no entry, or several."""

    exit_code = 1


def find_entries(root: str, names: Sequence[str]) -> tuple[EntryRef, ...]:
    """Return the entry of each name: a path of it or in it, a module, or the start of a module.

    The start may leave out `MODULE_`.

    Raises:
        NoSuchEntryError: a name fits no entry, or several.
        NotACacheError: the root does not exist, or is not a cache.
    """
    known: list[EntryRef] = []
    found = []
    for name in names:
        place = _at_path(root, name)
        if place is None:
            known = known or _places(root)
            place = _by_name(root, known, name)
        found.append(place)
    return tuple({place.path: place for place in found}.values())


def find_neff(source: str) -> str:
    """Return the NEFF that is meant: a file, the largest in a directory such as a profile, or that of a cache's entry.

    Args:
        source: a path, or an entry of the cache in use, by its module or the start of that.

    Raises:
        NeuronToolsError: there is no such file, or no NEFF in the directory.
        NoSuchEntryError: the name fits no entry, or several, or one without a NEFF.
    """
    if os.path.isfile(source):
        return source
    if os.path.isdir(source):
        inside = glob.escape(source.rstrip("/") or "/")
        found = [
            path for depth in ("", "*/", "*/*/") for path in glob.glob(f"{inside}/{depth}*{NEFF_SUFFIX}")
        ]
        if not found:
            raise NeuronToolsError(
                f"{source} has no NEFF: the run loaded no graph, or it is not a profile",
                "capture one: neuron-run --profile DIR -- COMMAND",
            )
        return max(sorted(found), key=os.path.getsize)
    if os.sep in source:
        raise NeuronToolsError(
            f"{source} does not exist", "name a NEFF file, a profile, or an entry of the cache"
        )
    (entry,) = find_entries(resolve().directory, [source])
    if not os.path.isfile(entry.file()):
        raise NoSuchEntryError(
            f"{entry.module} has no NEFF: its compile failed or has not ended",
            f"see 'neuron-cache show {source}'",
        )
    return entry.file()


def _places(root: str) -> list[EntryRef]:
    walked = walk(root)
    if not walked.exists:
        raise missing_cache(root)
    return walked.places


def _at_path(root: str, name: str) -> EntryRef | None:
    path, base = (
        (name.rstrip("/"), root) if is_remote(root) else (os.path.abspath(name), os.path.abspath(root))
    )
    tree = open_tree(root)
    while "/" in name and path.startswith(base + "/"):
        place = parse_entry_path(base, path)
        if place is not None and exists(tree, path) and not (tree is LOCAL and _has_link(base, path)):
            return place
        path = os.path.dirname(path)
    return None


def _has_link(root: str, path: str) -> bool:
    """Return whether a path below a root, or a directory on the way to it, is a link."""
    while path != root:
        if os.path.islink(path):
            return True
        path = os.path.dirname(path)
    return False


def _by_name(root: str, places: Sequence[EntryRef], name: str) -> EntryRef:
    wanted = name.strip().rstrip("/")
    exact = [place for place in places if place.module == wanted]
    starts = (wanted, f"MODULE_{wanted}")
    fits = exact or [
        place for place in places if len(wanted) >= _SHORTEST and place.module.startswith(starts)
    ]
    if len(fits) == 1:
        return fits[0]
    if not fits:
        short = f"; {_SHORTEST} characters or more are needed" if len(wanted) < _SHORTEST else ""
        raise NoSuchEntryError(
            f"no entry {name!a} in {root}{short}",
            "'neuron-cache ls' lists entries; use a path or the start of a name",
        )
    shown = ", ".join(place.path.removeprefix(root + "/") for place in fits[:_NAMES_SHOWN])
    more = f" and {len(fits) - _NAMES_SHOWN} more" if len(fits) > _NAMES_SHOWN else ""
    raise NoSuchEntryError(
        f"{name!a} matches {len(fits)} entries: {shown}{more}", "use a longer prefix, or the path"
    )


def select_entries(
    location: Location, names: Sequence[str], conditions: Sequence[str]
) -> tuple[EntryRef, ...]:
    """Return the named entries that match the conditions; without names, all that match.

    Args:
        location: which root.
        names: paths, modules, or starts of them.
        conditions: as `--filter` takes them; all must hold.

    Raises:
        NoSuchEntryError: a name fits no entry or several, or the conditions fit none.
        UsageError: a condition does not parse.
        NotACacheError: the root is not a cache.
    """
    chosen = parse_filters(conditions)
    if names:
        entries = _named(location.root, names)
    else:
        entries = scan_location(location, details=chosen.needs_details).entries
    now = time.time()
    places = tuple(entry.place for entry in entries if chosen.matches(entry, now))
    if not places:
        raise NoSuchEntryError(
            f"no entry in {location.root} matches the filter", "'neuron-cache ls' lists all entries"
        )
    return places


def _named(root: str, names: Sequence[str]) -> tuple[Entry, ...]:
    reader = EntryReader(root)
    read = (reader.read(place) for place in find_entries(root, names))
    return tuple(entry for entry in read if entry is not None)


def reuse_filter(environ: Mapping[str, str] | None = None) -> Callable[[Entry], str]:
    """Return a function that returns why a lookup on this computer would not reuse an entry, "" if it would.

    Args:
        environ: environment, None for this process's.

    Raises:
        UsageError: a quote in NEURON_CC_FLAGS is not closed.
    """
    wanted = parse_environment_flags(os.environ if environ is None else environ).compiler
    added = tuple(f"{flag}=" for flag in _ADDED if not names_flag(wanted, flag))

    def rejection_reason(entry: Entry) -> str:
        if entry.compiler != COMPILER_VERSION:
            return f"other compiler version ({entry.compiler})"
        own = tuple(flag for flag in entry.flags if not flag.startswith(added or ("\0",)))
        return "" if own == wanted else "other compiler flags"

    return rejection_reason
