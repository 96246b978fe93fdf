"""Links to our console scripts where programs look for the real tools, such as `<prefix>/bin/neuron-ls`.

Ours are the links to an installed script, and links of the same name as their target that point to nothing: those of an
environment that was moved or removed. Everything else is foreign and never touched.
"""

from __future__ import annotations

import os
import sysconfig
from contextlib import contextmanager, suppress
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
"""The programs in /opt/aws/neuron/bin of a real host (AWS Neuron documentation, system tools) that we provide too."""

_FOREIGN_HINT = "choose another --prefix, or move it away"


class LinkAction(StrEnum):
    """What is done about a link: `KEPT` was right already, `REPAIRED` pointed to nothing."""

    MADE = "made"
    REPAIRED = "repaired"
    KEPT = "kept"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class Link:
    """A link, its target, and what was, or would be, done about it."""

    path: str
    target: str
    action: LinkAction

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"path": self.path, "target": self.target, "action": str(self.action)}


def installed_scripts() -> dict[str, str]:
    """Return the absolute paths of the installed console scripts among `TOOLS`, by name."""
    try:
        package = distribution("neurontools")
    except PackageNotFoundError:
        return {}
    installed = {point.name for point in package.entry_points if point.group == "console_scripts"}
    # The record of the installer knows the scripts' directory, also of a user scheme or another prefix.
    recorded = [file for file in package.files or () if file.parent.name != "neurontools"]
    scripts: dict[str, str] = {}
    for name in sorted({*TOOLS} & installed):
        paths = [str(file.locate()) for file in recorded if file.name == name]
        for path in (*paths, f"{sysconfig.get_path('scripts')}/{name}"):
            if os.access(path, os.X_OK) and os.path.isfile(path):
                scripts.setdefault(name, os.path.abspath(path))
    return scripts


def make_links(prefix: str, scripts: Mapping[str, str], *, dry_run: bool = False) -> tuple[Link, ...]:
    """Create or repair `<prefix>/bin/<name>` for every script; nothing else is touched.

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
    with _bin_directory(prefix) as directory:
        links = tuple(_plan(f"{directory}/{name}", scripts[name]) for name in sorted(scripts))
        changed = [link for link in links if link.action != LinkAction.KEPT]
        if changed and not dry_run:
            os.makedirs(directory, exist_ok=True)
            for link in changed:
                aside = f"{directory}/.{os.path.basename(link.path)}.{os.getpid()}"
                os.symlink(link.target, aside)
                os.replace(aside, link.path)
    return links


def remove_links(prefix: str, scripts: Mapping[str, str], *, dry_run: bool = False) -> tuple[Link, ...]:
    """Remove our links and the directories that are empty then.

    Raises:
        UsageError: the prefix is empty.
        NeuronToolsError: the directory is not writable.
    """
    with _bin_directory(prefix) as directory:
        links = tuple(
            Link(path, os.readlink(path), LinkAction.REMOVED)
            for name in sorted(scripts)
            if _is_ours(path := f"{directory}/{name}", scripts[name])
        )
        if links and not dry_run:
            for link in links:
                os.unlink(link.path)
            with suppress(OSError):
                os.rmdir(directory)
                os.rmdir(os.path.dirname(directory))
    return links


@contextmanager
def _bin_directory(prefix: str) -> Iterator[str]:
    if not prefix:
        raise UsageError("the prefix is empty", "name a directory, such as /opt/aws/neuron")
    directory = os.path.join(os.path.abspath(prefix), "bin")
    if os.path.islink(directory) or (os.path.lexists(directory) and not os.path.isdir(directory)):
        raise NeuronToolsError(f"{directory} is not a real directory", _FOREIGN_HINT)
    try:
        yield directory
    except OSError as error:
        raise NeuronToolsError(
            f"cannot link in {directory}: {error.strerror or error}",
            "choose another --prefix, or run as a user with write access",
        ) from error


def _is_ours(path: str, target: str) -> bool:
    if not os.path.islink(path):
        return False
    target_now = os.readlink(path)
    is_broken = os.path.basename(target_now) == os.path.basename(path) and not os.path.exists(path)
    return target_now == target or is_broken


def _plan(path: str, target: str) -> Link:
    if not os.path.lexists(path):
        return Link(path, target, LinkAction.MADE)
    if _is_ours(path, target):
        return Link(path, target, LinkAction.KEPT if os.readlink(path) == target else LinkAction.REPAIRED)
    kind = "directory" if os.path.isdir(path) else "file"
    if os.path.islink(path):
        kind = f"link to {os.readlink(path)}"
    raise NeuronToolsError(
        f"refusing to replace {path}: neurontools did not create this {kind}", _FOREIGN_HINT
    )
