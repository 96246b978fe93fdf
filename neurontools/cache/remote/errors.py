"""What goes wrong between us and a bucket, each as one line that says what to do."""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Iterator

_DENIED = frozenset({"AccessDenied", "AllAccessDisabled", "AccountProblem", "Forbidden", "403"})
_BAD_CREDENTIALS = frozenset(
    {
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidToken",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    }
)
_TAKEN = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "412"})
_GONE = frozenset({"NoSuchKey", "404"})
_LOST = frozenset({"NoSuchUpload", "InvalidPart", "InvalidPartOrder"})
_NO_CREDENTIALS = frozenset({"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"})
_QUERY = re.compile(r"\?[^\s\"]*")
_RIGHTS = "reading needs s3:ListBucket and s3:GetObject, writing s3:PutObject, removing s3:DeleteObject"


class Trouble(Enum):
    """What kind of trouble it is. GONE, TAKEN and LOST (an upload in parts) concern one object, the others the whole bucket."""

    DENIED = auto()
    CREDENTIALS = auto()
    NO_BUCKET = auto()
    UNREACHABLE = auto()
    GONE = auto()
    TAKEN = auto()
    LOST = auto()
    UNSUPPORTED = auto()
    OTHER = auto()


class RemoteError(NeuronToolsError):
    """A bucket cannot be read or written."""

    def __init__(self, message: str, remedy: str = "", trouble: Trouble = Trouble.OTHER) -> None:
        super().__init__(message, remedy)
        self.trouble = trouble

    @property
    def concerns_all(self) -> bool:
        """Whether the next object would fare no better."""
        return self.trouble in {
            Trouble.DENIED,
            Trouble.CREDENTIALS,
            Trouble.NO_BUCKET,
            Trouble.UNREACHABLE,
        }

    @property
    def is_gone(self) -> bool:
        """Whether an object was removed or replaced after it was listed."""
        return self.trouble in {Trouble.GONE, Trouble.TAKEN}


def told(error: Exception, bucket: str, doing: str) -> RemoteError:
    """Return what an exception of s3fs or botocore means.

    Args:
        error: as it was raised.
        bucket: which one.
        doing: what was tried, such as "list s3://bucket/prefix".
    """
    code, text = _answer(error)
    if code:
        return refusal(code, text, bucket, doing)
    if any(type(cause).__name__ in _NO_CREDENTIALS for cause in _causes(error)):
        return RemoteError(
            f"cannot {doing}: no AWS credentials are found",
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or run 'aws configure'",
            Trouble.CREDENTIALS,
        )
    if any(_is_connection(cause) for cause in _causes(error)):
        return RemoteError(
            f"cannot {doing}: {_reason(error)}",
            "check the network and AWS_ENDPOINT_URL, then run it again",
            Trouble.UNREACHABLE,
        )
    return RemoteError(f"cannot {doing}: {_reason(error)}", "check the AWS settings of this shell")


def refusal(code: str, text: str, bucket: str, doing: str) -> RemoteError:
    """Return what a server's refusal means; see `told`."""
    if code == "NoSuchBucket":
        return RemoteError(
            f"there is no bucket {bucket!a}",
            "check its name, AWS_ENDPOINT_URL and the region; neuron-cache makes no buckets",
            Trouble.NO_BUCKET,
        )
    if code in _DENIED:
        return RemoteError(
            f"cannot {doing}: access denied", f"these credentials need more: {_RIGHTS}", Trouble.DENIED
        )
    if code in _BAD_CREDENTIALS:
        return RemoteError(
            f"cannot {doing}: the credentials are refused ({code})",
            "renew them: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_PROFILE",
            Trouble.CREDENTIALS,
        )
    if code in _GONE:
        return RemoteError(
            f"cannot {doing}: nothing is there ({code})", "check AWS_ENDPOINT_URL", trouble=Trouble.GONE
        )
    if code in _TAKEN:
        return RemoteError(f"cannot {doing}: another one is there", trouble=Trouble.TAKEN)
    if code in _LOST:
        return RemoteError(
            f"cannot {doing}: the server has dropped a part of it ({code})", "run it again", Trouble.LOST
        )
    if code in {"NotImplemented", "501"}:
        return RemoteError(f"cannot {doing}: the server does not know how", trouble=Trouble.UNSUPPORTED)
    return RemoteError(f"cannot {doing}: {' '.join(text.split()) or code} ({code})")


def _answer(error: Exception) -> tuple[str, str]:
    """Return code and message of a server's refusal, "" where no server refused."""
    for cause in _causes(error):
        response: Any = getattr(cause, "response", None)
        if isinstance(response, dict) and isinstance(response.get("Error"), dict):
            answer = response["Error"]
            return str(answer.get("Code", "")), str(answer.get("Message", ""))
    return "", ""


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_connection(error: BaseException) -> bool:
    names = {kind.__name__ for kind in type(error).__mro__}
    # botocore's, aiohttp's and the system's; none of them is imported here for that.
    return not names.isdisjoint({"HTTPClientError", "ConnectionError", "ClientError", "TimeoutError"}) or (
        "IncompleteReadError" in names or "ResponseStreamingError" in names
    )


def _reason(error: Exception) -> str:
    words = _QUERY.sub("", " ".join(str(error).split()))
    return words or type(error).__name__
