"""`s3://bucket/prefix`: how a root in a bucket is written. Paths in it are the root, a slash, and the rest of the key."""

from __future__ import annotations

import re

from neurontools.errors import UsageError

SCHEME = "s3://"
LAST_USE_NOTE = "used: a bucket keeps no time of use; counted since the last write, or your own last hit"
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")


def is_remote(path: str) -> bool:
    """Return whether a root, or a path in one, is in a bucket."""
    return path.startswith(SCHEME)


def normal_root(url: str) -> str:
    """Return the root that a URL names, without slashes at its end.

    Raises:
        UsageError: it names no bucket, or cannot be a key's start.
    """
    bucket, _, prefix = url.removeprefix(SCHEME).partition("/")
    prefix = prefix.rstrip("/")
    if not _BUCKET.fullmatch(bucket):
        raise UsageError(f"the compile cache at {url!a} names no bucket", "write s3://BUCKET/PREFIX")
    if "\0" in prefix or (prefix and not {"", ".", ".."}.isdisjoint(prefix.split("/"))):
        raise UsageError(
            f"the prefix of the compile cache {url!a} holds an empty part, . or ..",
            "write s3://BUCKET/PREFIX, single slashes",
        )
    return f"{SCHEME}{bucket}/{prefix}" if prefix else f"{SCHEME}{bucket}"


def split(path: str) -> tuple[str, str]:
    """Return the bucket and the key of a path; the key of a bucket itself is ""."""
    bucket, _, key = path.removeprefix(SCHEME).partition("/")
    return bucket, key
