"""Files of a machine's tree by path or pattern, without an export."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from neurontools.errors import NeuronToolsError
from neurontools.machine.instances.catalogue import instance_type
from neurontools.sysfs.counters import BaselineReader
from neurontools.sysfs.driver_release import emulated
from neurontools.sysfs.tree import CLASS, DEVICES, TreeLink, build_tree

if TYPE_CHECKING:
    from neurontools.machine.snapshot import Snapshot
    from neurontools.sysfs.tree import Entry


def find_files(snapshot: Snapshot, path: str) -> dict[str, Entry]:
    """Return the files of a machine's tree that a path selects.

    Args:
        snapshot: the machine.
        path: an absolute path (`/sys/devices/...`), one relative to the devices' directory (`neuron0/core_count`), or a
            pattern such as `neuron*/core_count`; a directory selects everything below it. The class view works too.

    Raises:
        NeuronToolsError: there is no such file.
    """
    baseline = BaselineReader(snapshot.machine).read()
    entries = build_tree(snapshot, instance_type(snapshot.instance_type), emulated(), baseline=baseline)
    pattern = path.strip("/")
    if pattern.startswith(f"{CLASS}/neuron"):
        pattern = DEVICES + pattern.removeprefix(CLASS)
    for candidate in (pattern, f"{DEVICES}/{pattern}".rstrip("/")):
        found = {
            name: entry
            for name, entry in entries.items()
            if fnmatchcase(name, candidate) or fnmatchcase(name, f"{candidate}/*")
        }
        if found:
            return found
    raise NeuronToolsError(f"no file {path!r} in the tree", "list all files with: neurontools sysfs show")


def entry_text(entry: Entry) -> str:
    """Return the text of a file, or the target of a link."""
    return f"-> {entry.target}" if isinstance(entry, TreeLink) else entry.text
