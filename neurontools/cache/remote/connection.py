"""Requests to one bucket: lists in pages, objects and parts of them, writes that replace nothing by accident."""

from __future__ import annotations

from base64 import b64encode
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import IO, TYPE_CHECKING, Any

from neurontools.cache.remote.client import AT_ONCE, ATTEMPTS, client, failures, require_packages
from neurontools.cache.remote.digests import Digests, digests_of
from neurontools.cache.remote.errors import RemoteError, Trouble, refusal, told
from neurontools.cache.remote.url import SCHEME, split

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

_PAGE = 1000
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Stored:
    """An object: its path (`s3://bucket/key`), length, time of the last change (Unix seconds) and the server's tag."""

    path: str
    size_bytes: int
    changed_unix_s: float
    tag: str


class Connection:
    """Speaks to one bucket; threads may share it. Connects at the first request.

    An object's own sha256 is in its metadata under `digest_key`.
    """

    digest_key = "sha256"

    def __init__(self, root: str) -> None:
        require_packages()
        self.bucket, _ = split(root)

    def pages(self, path: str) -> Iterator[list[Stored]]:
        """Yield all objects whose path begins so, a page at a time.

        Raises:
            RemoteError: the bucket cannot be listed.
        """
        more: dict[str, str] = {}
        while True:
            with self._told(f"list {path}"):
                page = self._call("list_objects_v2", Prefix=split(path)[1], MaxKeys=_PAGE, **more)
            yield [self._listed(found) for found in page.get("Contents", ())]
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def starts(self, wanted: Sequence[tuple[str, int]]) -> list[bytes | None]:
        """Return the first bytes of many objects that are not empty, None for those that are gone.

        Args:
            wanted: path and number of bytes of each.

        Raises:
            RemoteError: one cannot be read.
        """

        async def read(path: str, most_bytes: int) -> bytes | None:
            try:
                return await self._part(path, f"bytes=0-{most_bytes - 1}")
            except RemoteError as error:
                if error.trouble is Trouble.GONE:
                    return None
                raise

        return self._together([partial(read, *item) for item in wanted])

    def part(self, path: str, first: int, last: int) -> bytes:
        """Return the bytes of an object from one position to another, that one included.

        Raises:
            RemoteError: it cannot be read.
        """
        found: bytes = self._together([lambda: self._part(path, f"bytes={first}-{last}")])[0]
        return found

    def download(self, stored: Stored, file: IO[bytes]) -> None:
        """Write an object into an empty file; a broken connection is taken up where it broke.

        Raises:
            RemoteError: it cannot be read, has been replaced meanwhile, or does not match its digest.
        """
        digest = ""
        for attempt in range(ATTEMPTS):
            try:
                digest = self._together([lambda: self._download(stored, file)])[0] or digest
            except RemoteError as error:
                if error.trouble is not Trouble.UNREACHABLE or attempt + 1 == ATTEMPTS:
                    raise
            if file.tell() >= stored.size_bytes:
                break
        file.flush()
        if file.tell() != stored.size_bytes:
            raise RemoteError(f"cannot read {stored.path}: it ends after {file.tell()} bytes")
        if digest and digest != digests_of(file).sha256.hex():
            raise RemoteError(f"{stored.path} is damaged: it does not match its sha256")

    def upload(self, path: str, file: IO[bytes], digests: Digests, *, only_new: bool = False) -> bool:
        """Write an object in one piece, whole or not at all; the server checks its md5.

        Args:
            path: where.
            file: what, from its beginning.
            digests: of the file.
            only_new: replace nothing; a server that cannot promise that is asked to replace.

        Returns:
            Whether it was written; False when another one is there.

        Raises:
            RemoteError: it cannot be written.
        """
        condition = {"IfNoneMatch": "*"} if only_new else {}
        file.seek(0)
        try:
            self.ask(
                "put_object",
                f"write {path}",
                path,
                Body=file,
                ContentMD5=b64encode(digests.md5).decode(),
                Metadata={self.digest_key: digests.sha256.hex()},
                **condition,
            )
        except RemoteError as error:
            if error.trouble is Trouble.TAKEN:
                return False
            if error.trouble is Trouble.UNSUPPORTED and only_new:
                return self.upload(path, file, digests)
            raise
        return True

    def ask(self, operation: str, doing: str, path: str, **fields: Any) -> dict[str, Any]:
        """Return the answer to a request about one object.

        Args:
            operation: its name in S3's interface.
            doing: what an error says that could not be done, such as "write s3://bucket/key".
            path: of the object.
            fields: what else the request has.

        Raises:
            RemoteError: it is refused, or nobody answers.
        """
        with self._told(doing):
            return self._call(operation, Key=split(path)[1], **fields)

    def stored(self, path: str) -> Stored | None:
        """Return an object as it is now, None where there is none.

        Raises:
            RemoteError: the bucket cannot be listed.
        """
        return next((found for page in self.pages(path) for found in page if found.path == path), None)

    def delete(self, paths: Sequence[str]) -> None:
        """Delete objects, up to a thousand with one request; those that are gone are no error.

        Raises:
            RemoteError: one cannot be deleted.
        """
        for first in range(0, len(paths), _PAGE):
            some = paths[first : first + _PAGE]
            with self._told(f"delete {some[0]}"):
                keys = [{"Key": split(path)[1]} for path in some]
                answer = self._call("delete_objects", Delete={"Objects": keys, "Quiet": True})
            for refused in answer.get("Errors", ()):
                path = f"{SCHEME}{self.bucket}/{refused.get('Key', '')}"
                code, text = refused.get("Code", ""), refused.get("Message", "")
                raise refusal(code, text, self.bucket, f"delete {path}")

    def _listed(self, found: dict[str, Any]) -> Stored:
        path = f"{SCHEME}{self.bucket}/{found['Key']}"
        return Stored(
            path, int(found["Size"]), found["LastModified"].timestamp(), found.get("ETag", "").strip('"')
        )

    async def _part(self, path: str, span: str) -> bytes:
        with self._told(f"read {path}"):
            answer = await client()._call_s3(  # noqa: SLF001  s3fs names the awaitable form so
                "get_object", Bucket=self.bucket, Key=split(path)[1], Range=span
            )
            async with answer["Body"] as body:
                data: bytes = await body.read()
                return data

    async def _download(self, stored: Stored, file: IO[bytes]) -> str:
        """Append what is missing to a file and return the object's own sha256, "" where it has none."""
        start = file.tell()
        span = {"Range": f"bytes={start}-"} if start else {}
        doing = f"read {stored.path}"
        with self._told(doing):
            answer = await client()._call_s3(  # noqa: SLF001
                "get_object", Bucket=self.bucket, Key=split(stored.path)[1], IfMatch=f'"{stored.tag}"', **span
            )
        async with answer["Body"] as body:
            while True:
                with self._told(doing):
                    chunk = await body.read(_CHUNK_BYTES)
                if not chunk:
                    break
                file.write(chunk)
        return str(answer.get("Metadata", {}).get(self.digest_key, ""))

    def _together(self, calls: Sequence[Callable[[], Awaitable[Any]]]) -> list[Any]:
        import asyncio

        from fsspec.asyn import sync

        async def run() -> list[Any]:
            free = asyncio.Semaphore(AT_ONCE)

            async def one(call: Callable[[], Awaitable[Any]]) -> Any:
                async with free:
                    return await call()

            return await asyncio.gather(*(one(call) for call in calls))

        return list(sync(client().loop, run))

    def _call(self, operation: str, **fields: Any) -> dict[str, Any]:
        answer: dict[str, Any] = client().call_s3(operation, Bucket=self.bucket, **fields)
        return answer

    @contextmanager
    def _told(self, doing: str) -> Iterator[None]:
        try:
            yield
        except failures() as error:
            raise told(error, self.bucket, doing) from error
