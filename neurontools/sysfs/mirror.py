"""A machine's sysfs tree kept current in a directory: each snapshot changes only the files that it must."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from neurontools.errors import NeuronToolsError
from neurontools.machine.instances.catalogue import instance_type
from neurontools.sysfs.claim import Claim
from neurontools.sysfs.edits import Edits, MachineControls
from neurontools.sysfs.generation import emulated
from neurontools.sysfs.layout import Role
from neurontools.sysfs.power import PowerMeter
from neurontools.sysfs.tree import File, Link, Tree, metric_files, part_files
from neurontools.sysfs.watcher import Changes, Watcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from neurontools.machine.snapshot import Snapshot
    from neurontools.sysfs.edits import Controls
    from neurontools.sysfs.generation import Generation
    from neurontools.sysfs.history import History
    from neurontools.sysfs.tree import Entry, Part

_TOPS = ("dev", "proc", "sys")
_DELETION_CHECKS = 20
_DELETION_PAUSE_S = 0.05
_CHECKED_AT_LEAST = 16
_CHECKS_IN_A_ROUND = 600
_CHECKS_WITHOUT_WATCHES = 10
_EMPTY_FOR_S = 1.0


class Mirror:
    """The tree of one machine in a directory. Everything below its `sys`, `proc` and `dev` is the mirror's.

    Args:
        path: the directory; empty, or a mirror of this machine.
        machine: the machine's name.
        driver: the driver whose tree it is, None for the one that NEURONTOOLS_EMULATE asks for.
        controls: carry out what is written to the files, None for those of the machine of that name.
        on_notice: gets a line for a person, such as why a write was not applied.

    Raises:
        NeuronToolsError: the directory can't be used; `Claim` says when.
    """

    def __init__(
        self,
        path: str,
        machine: str,
        *,
        driver: Generation | None = None,
        controls: Controls | None = None,
        on_notice: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._driver = driver or emulated()
        self._claim = Claim(path, machine)
        self._folder = self._claim.folder
        self._history = self._claim.history()
        self._edits = Edits(self._history, controls or MachineControls(machine), on_notice)
        self._on_notice = on_notice
        self._power = PowerMeter()
        self._watcher = Watcher()
        self._tree: tuple[tuple[str, str, int, float], Tree] | None = None
        self._entries: dict[str, Entry] = {}
        self._parts: dict[str, Part] = {}
        self._own: set[str] = set()
        self._seen = Changes()
        self._behind: set[str] = set()
        self._emptied: dict[str, float] = {}
        self._lost = False
        self._told_late = False
        self._round: Iterator[str] = iter(())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop keeping it; the files stay."""
        self._watcher.close()
        self._claim.close()

    @property
    def file_count(self) -> int:
        """How many files and links the tree has."""
        return len(self._entries)

    def check(self) -> None:
        """Make sure that the directory is still there.

        Raises:
            MirrorLostError: it was deleted or replaced.
        """
        self._claim.check()

    def update(self, snapshot: Snapshot) -> int:
        """Bring the files up to date, after what others wrote to them was applied.

        Returns:
            How many files were written.

        Raises:
            MirrorLostError: the directory was deleted or replaced.
            NeuronToolsError: a file can't be written.
        """
        try:
            return self._bring_up_to_date(snapshot)
        except OSError as error:
            self._check(being_deleted=isinstance(error, FileNotFoundError))
            raise NeuronToolsError(
                f"cannot write the mirror {self._claim.path}: {error.strerror}",
                "make room, or export elsewhere",
            ) from error

    def _check(self, *, being_deleted: bool) -> None:
        # Who deletes a tree deletes the directory itself last; what is missing tells that some moments earlier.
        for _ in range(_DELETION_CHECKS if being_deleted else 1):
            self._claim.check()
            if being_deleted:
                time.sleep(_DELETION_PAUSE_S)

    def save(self) -> None:
        """Write down resets and peaks, for whoever keeps the mirror next; nothing where the directory is gone.

        Raises:
            OSError: that can't be written.
        """
        if self._claim.holds():
            self._claim.keep(self._history)

    def _bring_up_to_date(self, snapshot: Snapshot) -> int:
        self._claim.check()
        self._power.update(snapshot)
        changes = self._seen
        changes.then(self._watcher.changes())
        if changes.lost and not self._lost:
            self._lost = True  # perhaps somebody deletes the whole mirror just now: look again first
            return 0
        changes.written |= self._compared()
        written = self._update(snapshot, changes)
        self._seen = self._watcher.changes(self._own)
        if self._history.changed:
            self._claim.keep(self._history)
        self._folder.leave()
        return written

    def _update(self, snapshot: Snapshot, changes: Changes) -> int:
        tree = self._tree_of(snapshot)
        parts = {part.directory: part for part in tree.parts(snapshot)}
        before = snapshot
        for path in sorted(changes.written):
            snapshot = self._edits.apply(path, self._folder.read(path), parts, snapshot)
        if snapshot is not before:
            parts = {part.directory: part for part in tree.parts(snapshot)}
        frame = tree.frame(snapshot)
        if self._lost or parts.keys() != self._parts.keys() or not frame.items() <= self._entries.items():
            return self._rebuild(frame, parts)
        touched = changes.written | self._emptied.keys()
        different = self._different(parts, touched | self._behind)
        waiting = self._being_written(touched)
        written = self._write({path: entry for path, entry in different.items() if path not in waiting})
        self._parts = parts
        self._behind = changes.removed
        return written

    def _tree_of(self, snapshot: Snapshot) -> Tree:
        identity = snapshot.instance_id, snapshot.instance_type, snapshot.lnc, snapshot.started_unix_s
        if self._tree is None or self._tree[0] != identity:
            kind = f"{snapshot.instance_type} LNC {snapshot.lnc}"
            self._history.begin(kind, snapshot.started_unix_s)
            self._parts = {}
            instance = instance_type(snapshot.instance_type)
            self._tree = identity, Tree(instance, self._driver, self._power)
        return self._tree[1]

    def _different(self, parts: dict[str, Part], again: set[str]) -> dict[str, Entry]:
        """Return the files that must be written: those of changed parts with another text, and those of `again`."""
        different: dict[str, Entry] = {}
        for directory, part in parts.items():
            known = self._parts[directory]
            if part is not known:
                different.update(
                    (path, file)
                    for path, file in _changed(known, part, self._history)
                    if self._entries[path] != file
                )
        for path in again & self._entries.keys():
            different[path] = self._again(path, parts)
        return dict(sorted(different.items()))

    def _being_written(self, touched: Iterable[str]) -> set[str]:
        """Return those that were emptied a moment ago: who did that writes next, and not to a file put in its place."""
        now_s = time.monotonic()
        emptied = [path for path in touched if path in self._entries and self._folder.read(path) == ""]
        self._emptied = {path: self._emptied.get(path, now_s) for path in emptied}
        return {path for path, since_s in self._emptied.items() if now_s - since_s < _EMPTY_FOR_S}

    def _again(self, path: str, parts: dict[str, Part]) -> Entry:
        for directory in _above(path):
            if directory in parts:
                files = dict(part_files(parts[directory], self._history))
                return files.get(path, self._entries[path])
        return self._entries[path]

    def _write(self, entries: dict[str, Entry]) -> int:
        self._own = set(entries)
        for path, entry in entries.items():
            match entry:
                case File(text, mode):
                    self._folder.write(path, text, mode)
                case Link(target):
                    self._folder.link(path, target)
        self._entries.update(entries)
        return len(entries)

    def _rebuild(self, frame: dict[str, Entry], parts: dict[str, Part]) -> int:
        entries = dict(frame)
        for part in parts.values():
            entries.update(part_files(part, self._history))
        entries = dict(sorted(entries.items()))
        self._sweep(entries)
        written = self._write(
            {path: entry for path, entry in entries.items() if not self._is_there(path, entry)}
        )
        self._entries, self._parts = entries, parts
        self._behind, self._lost = set(), False
        self._watch()
        return written

    def _is_there(self, path: str, entry: Entry) -> bool:
        match entry:
            case File(text, mode):
                return self._folder.read(path) == text and self._folder.mode(path) == mode
            case Link(target):
                return self._folder.target(path) == target

    def _sweep(self, entries: dict[str, Entry]) -> None:
        wanted = {directory for path in entries for directory in _above(path)}
        gone = [directory for directory in self._parts if directory not in wanted]
        for directory in gone:
            self._history.forget(directory)
        for top in _TOPS:
            for path, is_directory in list(self._folder.walk(top)):
                if path not in entries and not (is_directory and path in wanted):
                    self._folder.remove(path)

    def _watch(self) -> None:
        directories = {"", *(directory for path in self._entries for directory in _above(path))}
        self._watcher.watch(self._folder, sorted(directories))
        if not (self._watcher.complete or self._told_late):
            self._on_notice("writes to the mirror are noticed late: fs.inotify.max_user_watches is too low")
            self._told_late = True

    def _compared(self) -> set[str]:
        """Return those of the next few files in which is something else than we wrote."""
        if self._lost or not self._entries:
            return set()
        share = _CHECKS_IN_A_ROUND if self._watcher.complete else _CHECKS_WITHOUT_WATCHES
        found = set()
        for _ in range(max(_CHECKED_AT_LEAST, len(self._entries) // share)):
            path = next(self._round, None)
            if path is None:
                self._round = iter(tuple(self._entries))
                continue
            entry = self._entries.get(path)
            if isinstance(entry, File) and entry.mode & 0o200 and self._folder.read(path) != entry.text:
                found.add(path)
        return found


def _changed(known: Part, part: Part, history: History) -> Iterator[tuple[str, File]]:
    """Yield the files of the numbers and texts that differ between two states of a part."""
    for metric, before, amount in zip(part.layout.metrics, known.numbers, part.numbers, strict=True):
        if before != amount:
            yield from metric_files(f"{part.directory}/{metric.directory}", metric.roles, amount, history)
    for leaf, old, text in zip(part.layout.leaves, known.texts, part.texts, strict=True):
        if old != text and leaf.role is not Role.NOTIFY:
            yield f"{part.directory}/{leaf.path}", File(text, leaf.mode)


def _above(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path
