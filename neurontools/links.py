"""Links to our console scripts where programs look for the real tools, such as `<prefix>/bin/neuron-ls`.

A manifest beside the links lists their names and targets, so a link is recognized after its environment was moved or
replaced. A link that is not in the manifest, or points elsewhere, is foreign and never touched.
"""

from __future__ import annotations

import json
import os
import sysconfig
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, distribution
from typing import TYPE_CHECKING, Any

from neurontools.base.files import write_atomic
from neurontools.base.json_reader import load_json
from neurontools.base.locks import flock
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
"""The programs in /opt/aws/neuron/bin of a real host (AWS Neuron documentation, system tools) that we provide too."""

MANIFEST = ".neurontools-links.json"

_FOREIGN_HINT = "choose another --prefix, or move it away"


class LinkAction(StrEnum):
    """What is done about a link: `KEPT` was right already, `LEFT` is foreign, `GONE` was deleted before."""

    MADE = "made"
    REPAIRED = "repaired"
    KEPT = "kept"
    REMOVED = "removed"
    LEFT = "left"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Link:
    """A link, its target (for `LEFT` that of the manifest), and what was, or would be, done about it."""

    path: str
    target: str
    action: LinkAction

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"path": self.path, "target": self.target, "action": str(self.action)}


def installed_scripts() -> dict[str, str]:
    """Return the absolute paths of the installed console scripts among `TOOLS`, by name."""
    found = {}
    for name in sorted({*TOOLS} & {*_script_names()}):
        path = _script_path(name)
        if path is not None:
            found[name] = path
    return found


def make_links(prefix: str, scripts: Mapping[str, str], *, dry_run: bool = False) -> tuple[Link, ...]:
    """Create `<prefix>/bin/<name>` for every script, and repair the links created before; nothing else is touched.

    Args:
        prefix: a directory, which need not exist.
        scripts: absolute paths by name.
        dry_run: change nothing, return what would be done.

    Returns:
        The links, by name.

    Raises:
        UsageError: the prefix is empty.
        NeuronToolsError: a foreign file is in the way (then nothing was changed), or the directory is not writable.
    """
    place = _LinkDirectory(prefix)
    with place.locked(dry_run=dry_run):
        manifest = place.manifest()
        links = tuple(_plan_link(place, name, scripts[name], manifest) for name in sorted(scripts))
        if not dry_run and any(link.action != LinkAction.KEPT for link in links):
            place.write_manifest(manifest | _own_links(links, manifest))
            for link in links:
                _apply(link)
    return links


def remove_links(prefix: str, *, dry_run: bool = False) -> tuple[Link, ...]:
    """Remove the links that `make_links` created, the manifest, and directories that are empty then.

    A link that was replaced is left. Without a manifest all links are foreign.

    Raises:
        NeuronToolsError: the directory is not writable.
    """
    place = _LinkDirectory(prefix)
    if not os.path.lexists(f"{place.bin}/{MANIFEST}"):
        return ()
    with place.locked(dry_run=dry_run):
        manifest = place.manifest()
        links = tuple(_plan_removal(place, name, manifest[name]) for name in sorted(manifest))
        if not dry_run:
            for link in links:
                if link.action == LinkAction.REMOVED:
                    os.unlink(link.path)
            place.clear()
    return links


class _LinkDirectory:
    """The directory of the links and the manifest in it."""

    def __init__(self, prefix: str) -> None:
        if not prefix:
            raise UsageError("the prefix is empty", "name a directory, such as /opt/aws/neuron")
        self.bin = os.path.join(os.path.abspath(prefix), "bin")
        self._made: list[str] = []

    @contextmanager
    def locked(self, *, dry_run: bool) -> Iterator[None]:
        """Lock the directory; it is created first, except in a dry run."""
        if os.path.islink(self.bin) or (os.path.lexists(self.bin) and not os.path.isdir(self.bin)):
            raise NeuronToolsError(f"{self.bin} is not a real directory", _FOREIGN_HINT)
        try:
            if dry_run:
                yield
                return
            self._make()
            descriptor = os.open(self.bin, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                flock(descriptor)
                yield
            finally:
                os.close(descriptor)
        except OSError as error:
            raise NeuronToolsError(
                f"cannot link in {self.bin}: {error.strerror or error}",
                "choose another --prefix, or run as a user with write access",
            ) from error

    def manifest(self) -> dict[str, str]:
        """Return the targets of our links by name."""
        return {
            name: target
            for name, target in self._recorded().get("links", {}).items()
            if isinstance(target, str) and name == os.path.basename(name) and name not in {"", ".", ".."}
        }

    def write_manifest(self, links: Mapping[str, str]) -> None:
        """Record our links and the directories created for them."""
        made = [*self._recorded().get("directories", []), *self._made]
        path = f"{self.bin}/{MANIFEST}"
        document = {"links": dict(sorted(links.items())), "directories": made}
        write_atomic(path, json.dumps(document, indent=2) + "\n", mode=0o644)

    def clear(self) -> None:
        """Remove the manifest and the directories created for it that are empty."""
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
            with open(f"{self.bin}/{MANIFEST}", "rb") as file:
                recorded = load_json(file.read())
        except FileNotFoundError:
            return {}
        except ValueError:
            recorded = None
        if (
            isinstance(recorded, dict)
            and isinstance(recorded.get("links", {}), dict)
            and isinstance(recorded.get("directories", []), list)
        ):
            return recorded
        raise NeuronToolsError(
            f"{self.bin}/{MANIFEST} is damaged", "remove it and the links in that directory"
        )

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


def _plan_link(place: _LinkDirectory, name: str, target: str, manifest: Mapping[str, str]) -> Link:
    path = f"{place.bin}/{name}"
    if not os.path.lexists(path):
        return Link(path, target, LinkAction.MADE)
    if not os.path.islink(path):
        kind = "directory" if os.path.isdir(path) else "file"
        raise NeuronToolsError(
            f"refusing to replace {path}: neurontools did not create this {kind}", _FOREIGN_HINT
        )
    target_now = os.readlink(path)
    if target_now == target:
        return Link(path, target, LinkAction.KEPT)
    if target_now != manifest.get(name):
        raise NeuronToolsError(
            f"refusing to replace {path}: neurontools did not create this link to {target_now}", _FOREIGN_HINT
        )
    return Link(path, target, LinkAction.REPAIRED)


def _own_links(links: tuple[Link, ...], manifest: Mapping[str, str]) -> dict[str, str]:
    # A link created by hand that points to the right target stays foreign.
    names = {link: os.path.basename(link.path) for link in links}
    return {
        name: link.target
        for link, name in names.items()
        if link.action != LinkAction.KEPT or name in manifest
    }


def _plan_removal(place: _LinkDirectory, name: str, target: str) -> Link:
    path = f"{place.bin}/{name}"
    if not os.path.lexists(path):
        return Link(path, target, LinkAction.GONE)
    ours = os.path.islink(path) and os.readlink(path) == target
    return Link(path, target, LinkAction.REMOVED if ours else LinkAction.LEFT)


def _apply(link: Link) -> None:
    if link.action == LinkAction.MADE:
        os.symlink(link.target, link.path)
    elif link.action == LinkAction.REPAIRED:
        aside = f"{os.path.dirname(link.path)}/.{os.path.basename(link.path)}.new"
        if os.path.islink(aside):
            os.unlink(aside)  # left by a killed process
        os.symlink(link.target, aside)
        os.replace(aside, link.path)


def _script_names() -> set[str]:
    try:
        points = distribution("neurontools").entry_points
    except PackageNotFoundError:
        return set()
    return {point.name for point in points if point.group == "console_scripts"}


def _script_path(name: str) -> str | None:
    # The record of the installer knows the scripts' directory, also of a user scheme or another prefix.
    recorded = distribution("neurontools").files or ()
    places = [
        str(file.locate()) for file in recorded if file.name == name and file.parent.name != "neurontools"
    ]
    for path in (*places, f"{sysconfig.get_path('scripts')}/{name}"):
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return os.path.abspath(path)
    return None
