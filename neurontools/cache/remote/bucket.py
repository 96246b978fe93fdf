"""One S3 bucket: list, read, download, upload and delete objects, by s3fs' public interface.

Credentials, region and endpoint come from the usual AWS variables and files. Every request ends in bounded time:
connecting after 5 s, silence after 20 s, three attempts.
"""

from __future__ import annotations

import hashlib
import os
import re
from base64 import b64encode
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from neurontools.cache.location import SCHEME, split
from neurontools.errors import MissingDependencyError, NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ATTEMPTS = 3
CONNECT_S = 5
SILENCE_S = 20
_CONNECTIONS = 32
# s3fs holds this many chunks of 50 MiB of each large file in memory.
_CHUNKS_AT_ONCE = 2
_DIGEST_KEY = "sha256"
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")

_URL_QUERY = re.compile(r"\?[^\s\"]*")
_PERMISSIONS = "reading needs s3:ListBucket and s3:GetObject, writing s3:PutObject, removing s3:DeleteObject"
# Of botocore, aiohttp and the system; none of them is imported here.
_CREDENTIAL_ERRORS = frozenset({"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"})
_CONNECTION_ERRORS = frozenset(
    {
        "HTTPClientError",
        "ConnectionError",
        "ClientError",
        "TimeoutError",
        "IncompleteReadError",
        "ResponseStreamingError",
    }
)


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object: path (`s3://bucket/key`), length, time of the last change (Unix seconds), the server's entity tag."""

    path: str
    size_bytes: int
    changed_unix_s: float
    tag: str


class Bucket:
    """Requests to the bucket of a root; threads may share it. Connects at the first request.

    Every method raises RemoteError when a request fails.

    Raises:
        MissingDependencyError: s3fs is not installed.
    """

    def __init__(self, root: str) -> None:
        _require_s3fs()
        self.name, _ = split(root)

    def list_objects(self, path: str) -> list[StoredObject]:
        """Return all objects whose path starts with `path`."""
        above, _, name = path.rpartition("/") if split(path)[1] else (path, "", "")
        with self._translated_errors(f"list {path}"):
            found = _client().find(above, prefix=name, detail=True)
        return [
            StoredObject(
                f"{SCHEME}{name}",
                int(item["size"]),
                item["LastModified"].timestamp(),
                item.get("ETag", "").strip('"'),
            )
            for name, item in found.items()
        ]

    def find_object(self, path: str) -> StoredObject | None:
        """Return an object as it is now, None if it does not exist."""
        return next((stored for stored in self.list_objects(path) if stored.path == path), None)

    def read_starts(self, ranges: Sequence[tuple[str, int]]) -> list[bytes | None]:
        """Return the first bytes of non-empty objects, None for objects that no longer exist.

        Args:
            ranges: path and number of bytes of each.
        """
        if not ranges:
            return []
        paths, sizes = [path for path, _ in ranges], [size for _, size in ranges]
        with self._translated_errors(f"read {paths[0]}"):
            found = _client().cat_ranges(paths, 0, sizes, batch_size=_CONNECTIONS, on_error="return")
        return [self._content_or_none(path, data) for path, data in zip(paths, found, strict=True)]

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Return the bytes of an object from `start` up to, not including, `end`."""
        with self._translated_errors(f"read {path}"):
            return bytes(_client().cat_file(path, start=start, end=end))

    def download(self, stored: StoredObject, target: str) -> None:
        """Write an object to a file and check its length and digest; starts again after a broken connection."""
        doing = f"read {stored.path}"
        for attempt in range(ATTEMPTS):
            try:
                with self._translated_errors(doing):
                    _client().get_file(stored.path, target, max_concurrency=_CHUNKS_AT_ONCE)
                break
            except RemoteError as error:
                if error.kind is not RemoteErrorKind.UNREACHABLE or attempt + 1 == ATTEMPTS:
                    raise
        size = os.path.getsize(target)
        if size != stored.size_bytes:
            raise RemoteError(f"cannot {doing}: it ends after {size} bytes")
        if self._has_content(stored, target) is False:
            raise RemoteError(f"{stored.path} is damaged: it does not match its sha256")

    def upload(self, path: str, source: str, *, only_new: bool = False) -> bool:
        """Write a file to an object, whole or not at all; large files are sent in parts.

        Args:
            path: of the object.
            source: path of the file.
            only_new: replace nothing; a server without conditional writes replaces.

        Returns:
            Whether it was written; False if another object already exists there.
        """
        fields = {
            "ContentMD5": b64encode(_digest(source, "md5").digest()).decode(),
            "Metadata": {_DIGEST_KEY: _digest(source, "sha256").hexdigest()},
        }
        mode = "create" if only_new else "overwrite"
        try:
            with self._translated_errors(f"write {path}"):
                _client().put_file(source, path, mode=mode, max_concurrency=_CHUNKS_AT_ONCE, **fields)
        except RemoteError as error:
            if error.kind is RemoteErrorKind.TAKEN:
                return False
            if error.kind is RemoteErrorKind.UNSUPPORTED and only_new:
                return self.upload(path, source)
            raise
        return True

    def is_same(self, stored: StoredObject, source: str) -> bool:
        """Return whether an object has the content of a file."""
        return os.path.getsize(source) == stored.size_bytes and bool(self._has_content(stored, source))

    def delete(self, paths: Sequence[str]) -> None:
        """Delete objects in this order; objects that no longer exist are not an error."""
        for path in paths:
            with self._translated_errors(f"delete {path}"):
                _client().rm_file(path)

    def _has_content(self, stored: StoredObject, file: str) -> bool | None:
        """Return whether an object and a file have the same digest, None if the object has no known digest."""
        if stored.tag == _digest(file, "md5").hexdigest():
            return True
        with self._translated_errors(f"read {stored.path}"):
            digest = _client().metadata(stored.path).get(_DIGEST_KEY)
        return None if digest is None else bool(digest == _digest(file, "sha256").hexdigest())

    def _content_or_none(self, path: str, data: bytes | Exception) -> bytes | None:
        if not isinstance(data, Exception):
            return bytes(data)
        error = translate_error(data, self.name, f"read {path}")
        if error.kind is RemoteErrorKind.GONE:
            return None
        raise error from data

    @contextmanager
    def _translated_errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except _request_errors() as error:
            raise translate_error(error, self.name, doing) from error


def _digest(path: str, name: str) -> Any:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(name, usedforsecurity=False))


def _require_s3fs() -> None:
    from importlib.util import find_spec

    if find_spec("s3fs") is None:
        raise MissingDependencyError(
            "compile caches in buckets (s3://) need the package s3fs, which is not installed",
            "pip install 'neurontools[s3]'",
        )


def _request_errors() -> tuple[type[Exception], ...]:
    from aiohttp import ClientError as ConnectionFailure
    from botocore.exceptions import BotoCoreError, ClientError

    return OSError, ValueError, BotoCoreError, ClientError, ConnectionFailure


def _client() -> Any:
    """Return the client of this process with the AWS variables as they are now."""
    settings = tuple(sorted(item for item in os.environ.items() if item[0].startswith("AWS_")))
    return _filesystem(os.getpid(), settings)


@lru_cache(maxsize=4)
def _filesystem(pid: int, settings: tuple[tuple[str, str], ...]) -> Any:
    # The client's thread does not survive a fork, so each process has its own client.
    del pid
    import s3fs

    config = {
        "connect_timeout": CONNECT_S,
        "read_timeout": SILENCE_S,
        "retries": {"total_max_attempts": ATTEMPTS, "mode": "standard"},
        "max_pool_connections": _CONNECTIONS,
        # Every server understands the md5 sent with each object, but not newer checksums.
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }
    if any(value and name in _ENDPOINTS for name, value in settings):
        # A private server seldom has a host name for each bucket.
        config["s3"] = {"addressing_style": "path"}
    files = s3fs.S3FileSystem(config_kwargs=config, use_listings_cache=False, skip_instance_cache=True)
    files.retries = 1
    return files


class RemoteErrorKind(Enum):
    """The kind of an error. GONE and TAKEN concern one object, the others the whole bucket."""

    DENIED = auto()
    CREDENTIALS = auto()
    NO_BUCKET = auto()
    UNREACHABLE = auto()
    GONE = auto()
    TAKEN = auto()
    UNSUPPORTED = auto()
    OTHER = auto()


_CODES = {
    **dict.fromkeys(
        ("AccessDenied", "AllAccessDisabled", "AccountProblem", "Forbidden", "403"), RemoteErrorKind.DENIED
    ),
    **dict.fromkeys(
        (
            "ExpiredToken",
            "InvalidAccessKeyId",
            "InvalidClientTokenId",
            "InvalidToken",
            "RequestTimeTooSkewed",
            "SignatureDoesNotMatch",
            "TokenRefreshRequired",
        ),
        RemoteErrorKind.CREDENTIALS,
    ),
    "NoSuchBucket": RemoteErrorKind.NO_BUCKET,
    **dict.fromkeys(("NoSuchKey", "404"), RemoteErrorKind.GONE),
    **dict.fromkeys(("PreconditionFailed", "ConditionalRequestConflict", "412"), RemoteErrorKind.TAKEN),
    **dict.fromkeys(("NotImplemented", "501"), RemoteErrorKind.UNSUPPORTED),
}


class RemoteError(NeuronToolsError):
    """A bucket cannot be read or written."""

    def __init__(self, message: str, remedy: str = "", kind: RemoteErrorKind = RemoteErrorKind.OTHER) -> None:
        super().__init__(message, remedy)
        self.kind = kind

    @property
    def concerns_all(self) -> bool:
        """Whether requests for other objects would fail with the same error."""
        return self.kind in {
            RemoteErrorKind.DENIED,
            RemoteErrorKind.CREDENTIALS,
            RemoteErrorKind.NO_BUCKET,
            RemoteErrorKind.UNREACHABLE,
        }

    @property
    def is_gone(self) -> bool:
        """Whether an object was removed or replaced after it was listed."""
        return self.kind in {RemoteErrorKind.GONE, RemoteErrorKind.TAKEN}


def translate_error(error: Exception, bucket: str, doing: str) -> RemoteError:
    """Return the RemoteError for an exception of s3fs or botocore.

    Args:
        error: as raised.
        bucket: its name.
        doing: the failed operation, such as "list s3://bucket/prefix".
    """
    for cause in _error_chain(error):
        response: Any = getattr(cause, "response", None)
        if isinstance(response, dict) and isinstance(response.get("Error"), dict):
            answer = response["Error"]
            code = str(answer.get("Code", ""))
            if code:
                return _error_of_code(code, str(answer.get("Message", "")), bucket, doing)
    names = {kind.__name__ for cause in _error_chain(error) for kind in type(cause).__mro__}
    if not names.isdisjoint(_CREDENTIAL_ERRORS):
        return RemoteError(
            f"cannot {doing}: no AWS credentials found",
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or run 'aws configure'",
            RemoteErrorKind.CREDENTIALS,
        )
    reason = _URL_QUERY.sub("", " ".join(str(error).split())) or type(error).__name__
    if not names.isdisjoint(_CONNECTION_ERRORS):
        return RemoteError(
            f"cannot {doing}: {reason}",
            "check the network and AWS_ENDPOINT_URL, then try again",
            RemoteErrorKind.UNREACHABLE,
        )
    return RemoteError(f"cannot {doing}: {reason}", "check the AWS settings of this shell")


def _error_of_code(code: str, text: str, bucket: str, doing: str) -> RemoteError:
    kind = _CODES.get(code, RemoteErrorKind.OTHER)
    reason, remedy = {
        RemoteErrorKind.DENIED: ("access denied", f"the credentials need these permissions: {_PERMISSIONS}"),
        RemoteErrorKind.CREDENTIALS: (
            f"the server rejected the credentials ({code})",
            "renew them: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_PROFILE",
        ),
        RemoteErrorKind.NO_BUCKET: (
            f"bucket {bucket!a} does not exist",
            "check its name, AWS_ENDPOINT_URL and the region; neuron-cache creates no buckets",
        ),
        RemoteErrorKind.GONE: (f"it does not exist ({code})", "check AWS_ENDPOINT_URL"),
        RemoteErrorKind.TAKEN: ("another object already exists there", ""),
        RemoteErrorKind.UNSUPPORTED: ("the server does not support it", ""),
    }.get(kind, (f"{' '.join(text.split()) or code} ({code})", ""))
    return RemoteError(f"cannot {doing}: {reason}", remedy, kind)


def _error_chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
