"""The one S3 client of a process, by s3fs.

Credentials, region and endpoint are those of the usual AWS variables and files. Everything ends in bounded time:
connecting after 5 s, silence after 20 s, three attempts.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

from neurontools.errors import MissingDependencyError

ATTEMPTS = 3
CONNECT_S = 5
SILENCE_S = 20
AT_ONCE = 32
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


def require_packages() -> None:
    """Refuse buckets where the packages for them are not there; imports none of them.

    Raises:
        MissingDependencyError: s3fs is missing.
    """
    from importlib.util import find_spec

    if find_spec("s3fs") is None:
        raise MissingDependencyError(
            "compile caches in buckets (s3://) need the package s3fs, which is not installed",
            "pip install 'neurontools[s3]'",
        )


def client() -> Any:
    """Return the client of this process with the AWS variables as they are now."""
    settings = tuple(sorted(item for item in os.environ.items() if item[0].startswith("AWS_")))
    return _filesystem(os.getpid(), settings)


def failures() -> tuple[type[Exception], ...]:
    """Return what requests may raise."""
    from aiohttp import ClientError
    from botocore.exceptions import BotoCoreError
    from botocore.exceptions import ClientError as Refusal

    return OSError, ValueError, BotoCoreError, Refusal, ClientError


@lru_cache(maxsize=4)
def _filesystem(pid: int, settings: tuple[tuple[str, str], ...]) -> Any:
    # The thread that speaks does not live on in a forked child, so each process has one of its own.
    del pid
    import s3fs

    config = {
        "connect_timeout": CONNECT_S,
        "read_timeout": SILENCE_S,
        "retries": {"total_max_attempts": ATTEMPTS, "mode": "standard"},
        "max_pool_connections": AT_ONCE,
        # The md5 that is sent with each object is understood by every server, newer checksums are not.
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }
    if any(value and name in _ENDPOINTS for name, value in settings):
        # A server of one's own has seldom a name for each bucket.
        config["s3"] = {"addressing_style": "path"}
    files = s3fs.S3FileSystem(config_kwargs=config, use_listings_cache=False, skip_instance_cache=True)
    files.retries = 1
    return files
