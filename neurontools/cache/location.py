"""The location of the compile cache, and the setting that determines it.

Order: an explicit path, `--cache_dir` in NEURON_CC_FLAGS, NEURON_COMPILE_CACHE_URL, the default of the real tools.
Paths in a bucket are the root `s3://bucket/prefix`, a slash, and the rest of the key. A path may be written as a `file:`
URL (RFC 8089), in which `%20` is a blank.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from neurontools import paths
from neurontools.base.directories import Directory
from neurontools.cache.flags import parse_environment_flags
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEME = "s3://"
LAST_USE_NOTE = (
    "used: buckets record no time of use; ages count from the last write, or from your own last hit"
)
_SCHEME = re.compile(r"(file|s3):|[A-Za-z][A-Za-z0-9+.-]*://", re.IGNORECASE)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
DEFAULT_ROOT = "/var/tmp/neuron-compile-cache"  # noqa: S108  the real tools' default
URL_VARIABLE = "NEURON_COMPILE_CACHE_URL"
FLAG_SOURCE = "--cache_dir in NEURON_CC_FLAGS"
FOREIGN_REMEDY = f"--cache-dir or {URL_VARIABLE}"
ARGUMENT_SOURCE = "command line"
DEFAULT_SOURCE = "default"
_NETWORK_TYPES = ("nfs", "cifs", "smb", "lustre", "ceph", "gluster", "afs", "9p", "fuse.", "gpfs", "beegfs")


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

    @property
    def directory(self) -> str:
        """The directory that runs use: the root, or this user's copy of a bucket."""
        return copy_dir(self.root) if self.is_remote else self.root


def resolve(environ: Mapping[str, str] | None = None, url: str | None = None) -> Location:
    """Return the cache's root.

    Args:
        environ: environment, None for this process's.
        url: an explicit path, `file:` or `s3:` URL, which beats every setting.

    Raises:
        UsageError: the setting in effect names an unsupported remote store or no usable path.
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
    lines = [location.root, *([f"  local copy: {location.directory}"] if location.is_remote else [])]
    for candidate in location.candidates:
        mark = "*" if candidate.source == location.source else " "
        lines.append(f"{mark} {candidate.source:<31} {candidate.value or '(not set)'}")
    return "\n".join(lines)


def location_json(location: Location) -> dict[str, Any]:
    """Return the JSON form of `format_location`."""
    return {
        "root": location.root,
        "copy": location.directory if location.is_remote else None,
        "source": location.source,
        "candidates": [{"source": item.source, "value": item.value or None} for item in location.candidates],
    }


def _root(chosen: Candidate) -> str:
    scheme = _scheme_of(chosen.value)
    if scheme == "s3":
        return normal_root(chosen.value)
    if scheme not in {"", "file"}:
        raise UsageError(
            f"the compile cache at {chosen.value!a} ({chosen.source}) is remote: {scheme} is not supported",
            "name a directory or s3://BUCKET/PREFIX, and copy or mount other remote caches",
        )
    path = os.path.abspath(os.path.expanduser(local_path(chosen.value)))
    return "/" + path.lstrip("/")  # abspath keeps two slashes at the beginning


def _scheme_of(place: str) -> str:
    found = _SCHEME.match(place)
    return found[0].partition(":")[0].lower() if found else ""


def local_path(place: str) -> str:
    """Return the path that a `file:` URL names; other texts as they are.

    Raises:
        UsageError: the URL names another computer, or no path, or the path contains a NUL character.
    """
    path = _url_path(place) if _scheme_of(place) == "file" else place
    if "\0" in path:
        raise UsageError(f"the path of the compile cache {place!a} contains a NUL character")
    return path


def _url_path(place: str) -> str:
    path = place.partition(":")[2]
    if path.startswith("//"):
        host, slash, below = path[2:].partition("/")
        if host.lower() not in {"", "localhost"}:
            raise UsageError(
                f"the compile cache at {place!a} is on another computer, {host!a}",
                "write file:///DIRECTORY for a directory of this one, and mount or copy other caches",
            )
        path = slash + below
    if not path:
        raise UsageError(f"the compile cache at {place!a} names no directory", "write file:///DIRECTORY")
    return os.fsdecode(unquote_to_bytes(os.fsencode(path)))


def is_remote(path: str) -> bool:
    """Return whether a root, or a path in one, is in a bucket."""
    return path[: len(SCHEME)].lower() == SCHEME


def is_network_root(root: str) -> bool:
    """Return whether flock may not work for a root: in a bucket, on NFS, Lustre, FUSE, ..."""
    if is_remote(root):
        return True
    best, kind = "", ""
    path = os.path.realpath(root)
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
            for line in mounts:
                left, _, right = line.partition(" - ")
                point = left.split()[4]
                if (path + "/").startswith(point.rstrip("/") + "/") and len(point) >= len(best):
                    best, kind = point, right.split()[0]
    except (OSError, IndexError):
        return False
    return kind.startswith(_NETWORK_TYPES)


def normal_root(url: str) -> str:
    """Return the root that a URL names, without slashes at its end.

    Raises:
        UsageError: it names no bucket, or its path cannot be the prefix of a key.
    """
    bucket, _, prefix = url.partition("://")[2].partition("/")
    prefix = prefix.rstrip("/")
    if not _BUCKET.fullmatch(bucket):
        raise UsageError(f"the compile cache at {url!a} names no bucket", "write s3://BUCKET/PREFIX")
    if "\0" in prefix or (prefix and not {"", ".", ".."}.isdisjoint(prefix.split("/"))):
        raise UsageError(
            f"the prefix of the compile cache {url!a} contains an empty part, . or ..",
            "write s3://BUCKET/PREFIX with single slashes",
        )
    return f"{SCHEME}{bucket}/{prefix}" if prefix else f"{SCHEME}{bucket}"


def split(path: str) -> tuple[str, str]:
    """Return the bucket and the key of a path; the key of a bucket itself is ""."""
    bucket, _, key = path.removeprefix(SCHEME).partition("/")
    return bucket, key


def open_root(root: str) -> Directory:
    """Open a root for writing.

    Raises:
        OSError: it cannot be opened, or it is the default root and another user created it, as everyone may.
    """
    if root == DEFAULT_ROOT:
        owner = os.lstat(root).st_uid
        if owner not in {0, os.geteuid()}:
            raise PermissionError(
                errno.EPERM, f"it belongs to uid {owner}; use another with {FOREIGN_REMEDY}"
            )
    return Directory.open(root)


def root_key(root: str) -> str:
    """Return the name of this user's files for a root."""
    return hashlib.sha256(os.fsencode(real_root(root))).hexdigest()[:16]


def counters_dir(root: str) -> str:
    """Return the directory of this user's counters for a root."""
    return f"{paths.state_dir()}/compile-cache/{root_key(root)}"


def copy_dir(root: str) -> str:
    """Return the directory of this user's copy of a bucket."""
    return f"{paths.cache_home()}/compile-cache-copies/{root_key(root)}"


def real_root(root: str) -> str:
    """Return a root without symbolic links; a root in a bucket as it is."""
    return root if is_remote(root) else os.path.realpath(root)
