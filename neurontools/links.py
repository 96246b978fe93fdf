"""Links to our console scripts where programs look for the real tools: `<prefix>/bin/neuron-ls` and its like.

Which links are ours is written in a manifest beside them, name and target, so that a link is known again after the
environment that it led into was moved or replaced. A link that the manifest does not know, or that leads elsewhere by
now, is somebody else's and never touched.
"""

from __future__ import annotations

import fcntl
import json
import os
import sysconfig
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, distribution
from typing import TYPE_CHECKING, Any

from neurontools.errors import NeuronToolsError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

TOOLS = (
    "nccom-test",
    "neuron-explorer",
    "neuron-ls",
    "neuron-monitor",
    "neuron-monitor-prometheus.py",
    "neuron-profile",
    "neuron-top",
)
"""What a real host has in /opt/aws/neuron/bin (system-tools.md, install facts) and this package may have too."""

MANIFEST = ".neurontools-links.json"

_ADVICE = "choose another --prefix, or move it away if you know what it is"


class Action(StrEnum):
    """What becomes of a link: `KEPT` was right already, `LEFT` is not ours, `GONE` was deleted by somebody else."""

    MADE = "made"
    REPAIRED = "repaired"
    KEPT = "kept"
    REMOVED = "removed"
    LEFT = "left"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Link:
    """One link, where it leads (for `LEFT`: led when it was made), and what was, or would be, done about it."""

    path: str
    target: str
    action: Action

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"path": self.path, "target": self.target, "action": str(self.action)}


def installed_scripts() -> dict[str, str]:
    """Return the absolute paths of those tools whose console scripts are installed, by name."""
    found = {}
    for name in sorted({*TOOLS} & {*_script_names()}):
        path = _script_path(name)
        if path is not None:
            found[name] = path
    return found


def make_links(prefix: str, scripts: Mapping[str, str], *, dry_run: bool = False) -> tuple[Link, ...]:
    """Make `<prefix>/bin/<name>` for every script, and repair those that were made before; nothing else is touched.

    Args:
        prefix: a directory, which need not exist.
        scripts: absolute paths by name.
        dry_run: only say what would be done.

    Returns:
        What was done, by name.

    Raises:
        UsageError: the prefix is empty.
        NeuronToolsError: something that we did not make is in the way (nothing was changed then), or the
            directory can't be written.
    """
    place = _Place(prefix)
    with place.locked(dry_run=dry_run):
        manifest = place.manifest()
        links = tuple(_planned(place, name, scripts[name], manifest) for name in sorted(scripts))
        if not dry_run and any(link.action != Action.KEPT for link in links):
            place.write_manifest(manifest | _ours(links, manifest))
            for link in links:
                _put(link)
    return links


def remove_links(prefix: str, *, dry_run: bool = False) -> tuple[Link, ...]:
    """Remove the links that `make_links` made there, the manifest, and directories that are empty then.

    A link of ours that somebody else replaced is left. Without a manifest there is nothing of ours.

    Raises:
        NeuronToolsError: the directory can't be written.
    """
    place = _Place(prefix)
    if not os.path.lexists(f"{place.bin}/{MANIFEST}"):
        return ()
    with place.locked(dry_run=dry_run):
        manifest = place.manifest()
        links = tuple(_removal(place, name, manifest[name]) for name in sorted(manifest))
        if not dry_run:
            for link in links:
                if link.action == Action.REMOVED:
                    os.unlink(link.path)
            place.clear()
    return links


class _Place:
    """The directory of the links and the manifest in it."""

    def __init__(self, prefix: str) -> None:
        if not prefix:
            raise UsageError("the prefix is empty", "name a directory, such as /opt/aws/neuron")
        self.bin = os.path.join(os.path.abspath(prefix), "bin")
        self._made: list[str] = []

    @contextmanager
    def locked(self, *, dry_run: bool) -> Iterator[None]:
        """Hold the directory for this process alone; it is made first, unless this is only a rehearsal."""
        if os.path.islink(self.bin) or (os.path.lexists(self.bin) and not os.path.isdir(self.bin)):
            raise NeuronToolsError(f"{self.bin} is not a real directory", _ADVICE)
        try:
            if dry_run:
                yield
                return
            self._make()
            descriptor = os.open(self.bin, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield
            finally:
                os.close(descriptor)
        except OSError as error:
            raise NeuronToolsError(
                f"cannot link in {self.bin}: {error.strerror or error}",
                "choose another --prefix, or run it as a user who may write there",
            ) from error

    def manifest(self) -> dict[str, str]:
        """Return targets of our links by name; empty where no link was made yet."""
        return {
            name: target
            for name, target in self._recorded().get("links", {}).items()
            if isinstance(target, str) and name == os.path.basename(name) and name not in {"", ".", ".."}
        }

    def write_manifest(self, links: Mapping[str, str]) -> None:
        """Write down our links, and the directories that we made for them."""
        made = [*self._recorded().get("directories", []), *self._made]
        path = f"{self.bin}/{MANIFEST}"
        with open(f"{path}.new", "w", encoding="utf-8", opener=_fresh) as file:
            json.dump({"links": dict(sorted(links.items())), "directories": made}, file, indent=2)
            file.write("\n")
        os.replace(f"{path}.new", path)

    def clear(self) -> None:
        """Remove the manifest and, from the inmost on, the directories that were made for it and are empty."""
        made = self._recorded().get("directories", [])
        os.unlink(f"{self.bin}/{MANIFEST}")
        for path in sorted((path for path in made if self._is_ours(path)), key=len, reverse=True):
            try:
                os.rmdir(path)
            except OSError:
                return

    def _is_ours(self, path: object) -> bool:
        return isinstance(path, str) and f"{self.bin}/".startswith(path.rstrip("/") + "/")

    def _recorded(self) -> dict[str, Any]:
        try:
            with open(f"{self.bin}/{MANIFEST}", encoding="utf-8") as file:
                recorded = json.load(file)
        except FileNotFoundError:
            return {}
        except ValueError:
            recorded = None
        if isinstance(recorded, dict) and isinstance(recorded.get("links", {}), dict):
            return recorded
        raise NeuronToolsError(f"{self.bin}/{MANIFEST} is damaged", "remove it and the links beside it")

    def _make(self) -> None:
        missing = []
        path = self.bin
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for directory in reversed(missing):
            try:
                os.mkdir(directory)
            except FileExistsError:
                continue
            self._made.append(directory)


def _planned(place: _Place, name: str, target: str, manifest: Mapping[str, str]) -> Link:
    path = f"{place.bin}/{name}"
    if not os.path.lexists(path):
        return Link(path, target, Action.MADE)
    if not os.path.islink(path):
        kind = "a directory" if os.path.isdir(path) else "a file"
        raise NeuronToolsError(
            f"refusing to touch {path}: it is {kind} that neurontools did not make", _ADVICE
        )
    leads_to = os.readlink(path)
    if leads_to == target:
        return Link(path, target, Action.KEPT)
    if leads_to != manifest.get(name):
        raise NeuronToolsError(
            f"refusing to touch {path}: it is a link to {leads_to} that neurontools did not make", _ADVICE
        )
    return Link(path, target, Action.REPAIRED)


def _ours(links: tuple[Link, ...], manifest: Mapping[str, str]) -> dict[str, str]:
    # A link that leads right but was made by hand stays its maker's.
    names = {link: os.path.basename(link.path) for link in links}
    return {
        name: link.target for link, name in names.items() if link.action != Action.KEPT or name in manifest
    }


def _removal(place: _Place, name: str, target: str) -> Link:
    path = f"{place.bin}/{name}"
    if not os.path.lexists(path):
        return Link(path, target, Action.GONE)
    ours = os.path.islink(path) and os.readlink(path) == target
    return Link(path, target, Action.REMOVED if ours else Action.LEFT)


def _put(link: Link) -> None:
    if link.action == Action.MADE:
        os.symlink(link.target, link.path)
    elif link.action == Action.REPAIRED:
        aside = f"{os.path.dirname(link.path)}/.{os.path.basename(link.path)}.new"
        if os.path.islink(aside):
            os.unlink(aside)  # of a process that was killed
        os.symlink(link.target, aside)
        os.replace(aside, link.path)


def _fresh(path: str, flags: int) -> int:
    try:
        os.unlink(path)  # of a process that was killed; never written through
    except FileNotFoundError:
        pass
    return os.open(path, flags | os.O_EXCL | os.O_NOFOLLOW, 0o644)


def _script_names() -> set[str]:
    try:
        points = distribution("neurontools").entry_points
    except PackageNotFoundError:
        return set()
    return {point.name for point in points if point.group == "console_scripts"}


def _script_path(name: str) -> str | None:
    # The installer's record knows where scripts went, also in a user's scheme or under another prefix.
    recorded = distribution("neurontools").files or ()
    places = [
        str(file.locate()) for file in recorded if file.name == name and file.parent.name != "neurontools"
    ]
    for path in (*places, f"{sysconfig.get_path('scripts')}/{name}"):
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return os.path.abspath(path)
    return None
