"""Errors of requests to a bucket, each with its reason and remedy."""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Iterator

_QUERY = re.compile(r"\?[^\s\"]*")
_RIGHTS = "reading needs s3:ListBucket and s3:GetObject, writing s3:PutObject, removing s3:DeleteObject"
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
        """Whether every other object would meet the same error."""
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
    for cause in _causes(error):
        response: Any = getattr(cause, "response", None)
        if isinstance(response, dict) and isinstance(response.get("Error"), dict):
            answer = response["Error"]
            code = str(answer.get("Code", ""))
            if code:
                return _refusal(code, str(answer.get("Message", "")), bucket, doing)
    names = {kind.__name__ for cause in _causes(error) for kind in type(cause).__mro__}
    if not names.isdisjoint(_CREDENTIAL_ERRORS):
        return RemoteError(
            f"cannot {doing}: no AWS credentials found",
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or run 'aws configure'",
            RemoteErrorKind.CREDENTIALS,
        )
    reason = _QUERY.sub("", " ".join(str(error).split())) or type(error).__name__
    if not names.isdisjoint(_CONNECTION_ERRORS):
        return RemoteError(
            f"cannot {doing}: {reason}",
            "check the network and AWS_ENDPOINT_URL, then try again",
            RemoteErrorKind.UNREACHABLE,
        )
    return RemoteError(f"cannot {doing}: {reason}", "check the AWS settings of this shell")


def _refusal(code: str, text: str, bucket: str, doing: str) -> RemoteError:
    kind = _CODES.get(code, RemoteErrorKind.OTHER)
    reason, remedy = {
        RemoteErrorKind.DENIED: ("access denied", f"the credentials need these permissions: {_RIGHTS}"),
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


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
