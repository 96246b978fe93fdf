"""The location of the compile cache, and the setting that determines it.

Order: an explicit path, `--cache_dir` in NEURON_CC_FLAGS, NEURON_COMPILE_CACHE_URL, the default of the real tools.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neurontools.cache.flags import parse_environment_flags
from neurontools.cache.remote.url import is_remote, normal_root
from neurontools.cache.usage import copy_dir
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_ROOT = "/var/tmp/neuron-compile-cache"  # noqa: S108  the real tools' default
URL_VARIABLE = "NEURON_COMPILE_CACHE_URL"
FLAG_SOURCE = "--cache_dir in NEURON_CC_FLAGS"
ARGUMENT_SOURCE = "command line"
DEFAULT_SOURCE = "default"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A setting that can name the root; `value` is "" where it is not set."""

    source: str
    value: str


@dataclass(frozen=True, slots=True)
class Location:
    """The chosen root, the setting that chose it, and every setting in order of precedence.

    The root is an absolute path, or `s3://bucket/prefix` without a slash at its end.
    """

    root: str
    source: str
    candidates: tuple[Candidate, ...]

    @property
    def is_remote(self) -> bool:
        """Whether the root is in a bucket."""
        return is_remote(self.root)


def resolve(environ: Mapping[str, str] | None = None, url: str | None = None) -> Location:
    """Return the cache's root.

    Args:
        environ: environment, None for this process's.
        url: an explicit path, `file://` or `s3://` URL, which beats every setting.

    Raises:
        UsageError: the setting that wins names another remote store or nothing usable.
    """
    variables = os.environ if environ is None else environ
    candidates = (
        Candidate(ARGUMENT_SOURCE, url or ""),
        Candidate(FLAG_SOURCE, parse_environment_flags(variables).cache_dir),
        Candidate(URL_VARIABLE, variables.get(URL_VARIABLE, "")),
        Candidate(DEFAULT_SOURCE, DEFAULT_ROOT),
    )
    chosen = next(candidate for candidate in candidates if candidate.value)
    return Location(_root(chosen), chosen.source, candidates)


def format_location(location: Location) -> str:
    """Return the root and the settings that can name it, with a mark on the one in effect."""
    lines = [location.root, *([f"  local copy: {copy_dir(location.root)}"] if location.is_remote else [])]
    for candidate in location.candidates:
        mark = "*" if candidate.source == location.source else " "
        lines.append(f"{mark} {candidate.source:<31} {candidate.value or '(not set)'}")
    return "\n".join(lines)


def location_json(location: Location) -> dict[str, Any]:
    """Return the JSON form of `format_location`."""
    return {
        "root": location.root,
        "copy": copy_dir(location.root) if location.is_remote else None,
        "source": location.source,
        "candidates": [{"source": item.source, "value": item.value or None} for item in location.candidates],
    }


def _root(chosen: Candidate) -> str:
    if is_remote(chosen.value):
        return normal_root(chosen.value)
    value = chosen.value.removeprefix("file://")
    scheme, separator, _ = value.partition("://")
    if separator:
        raise UsageError(
            f"the compile cache at {chosen.value} ({chosen.source}) is remote: {scheme} is not supported",
            "name a directory or s3://BUCKET/PREFIX, and copy or mount other remote caches",
        )
    if "\0" in value:
        raise UsageError(f"the path of the compile cache ({chosen.source}) contains a NUL character")
    return os.path.abspath(os.path.expanduser(value))
