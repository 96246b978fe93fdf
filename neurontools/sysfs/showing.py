"""Looking into the tree of a machine without writing it anywhere."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from neurontools.errors import NeuronToolsError
from neurontools.machine.instances.catalogue import instance_type
from neurontools.sysfs.generation import emulated
from neurontools.sysfs.tree import CLASS, DEVICES, Link, tree

if TYPE_CHECKING:
    from neurontools.machine.snapshot import Snapshot
    from neurontools.sysfs.tree import Entry


def matching(snapshot: Snapshot, wanted: str) -> dict[str, Entry]:
    """Return the files of a machine's tree that a path means.

    Args:
        snapshot: the machine.
        wanted: a path (`/sys/devices/...`), one relative to the devices' directory (`neuron0/core_count`), or a
            pattern such as `neuron*/core_count`; a directory means everything below it. The class view works too.

    Raises:
        NeuronToolsError: there is no such file.
    """
    entries = tree(snapshot, instance_type(snapshot.instance_type), emulated())
    path = wanted.strip("/")
    if path.startswith(f"{CLASS}/neuron"):
        path = DEVICES + path.removeprefix(CLASS)
    for candidate in (path, f"{DEVICES}/{path}".rstrip("/")):
        found = {
            name: entry
            for name, entry in entries.items()
            if fnmatchcase(name, candidate) or fnmatchcase(name, f"{candidate}/*")
        }
        if found:
            return found
    raise NeuronToolsError(f"no file {wanted!r} in the tree", "neurontools sysfs show lists all of them")


def text_of(entry: Entry) -> str:
    """Return what a reader gets: the file's text, or where a link leads."""
    return f"-> {entry.target}" if isinstance(entry, Link) else entry.text
