"""Large objects are sent in parts; a sync that was killed or cut goes on behind the last part that arrived.

Which upload that was is noted in a file of this user, with the content's digest: parts of another content, or of another
user, are never mixed in. The object appears at once, when all parts are there.
"""

from __future__ import annotations

import hashlib
import json
import os
from base64 import b64encode
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from neurontools import paths
from neurontools.cache.files import remove_quietly, write_atomically
from neurontools.cache.remote.errors import RemoteError, Trouble

if TYPE_CHECKING:
    from neurontools.cache.remote.connection import Connection
    from neurontools.cache.remote.digests import Digests

_ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class _Upload:
    """An upload that is not finished: the server's name for it, and the parts that have arrived."""

    upload_id: str
    arrived: frozenset[int]


def send_in_parts(
    connection: Connection, path: str, file: IO[bytes], digests: Digests, *, only_new: bool
) -> bool:
    """Write an object part by part; the server checks the md5 of each.

    Args:
        connection: to the bucket.
        path: of the object.
        file: its content.
        digests: of the file, with parts.
        only_new: replace nothing; a server that cannot promise that is asked shortly before.

    Returns:
        Whether it was written; False when another one is there.

    Raises:
        RemoteError: it cannot be written. What has arrived is kept for the next time.
    """
    for attempt in range(_ATTEMPTS):
        upload = _begun_before(connection, path, digests) or _begin(connection, path, digests)
        try:
            _send_missing(connection, path, upload, file, digests)
            written = _finish(connection, path, upload, digests, only_new=only_new)
        except RemoteError as error:
            if error.trouble is not Trouble.LOST:
                raise
            # Another process of this user has finished the same upload, or the server has dropped it.
            remove_quietly(_note_path(path))
            there = connection.stored(path)
            if there is not None and digests.describes(there.size_bytes, there.tag):
                return True
            if attempt + 1 == _ATTEMPTS:
                raise
        else:
            remove_quietly(_note_path(path))
            return written
    raise AssertionError


def _begin(connection: Connection, path: str, digests: Digests) -> _Upload:
    metadata = {connection.digest_key: digests.sha256.hex()}
    answer = connection.ask("create_multipart_upload", f"write {path}", path, Metadata=metadata)
    upload_id = str(answer["UploadId"])
    note = {"path": path, "upload_id": upload_id, "sha256": digests.sha256.hex(), "part": digests.part_bytes}
    note_path = _note_path(path)
    # Without the note the upload is only not taken up again.
    with suppress(OSError):
        os.makedirs(os.path.dirname(note_path), mode=0o700, exist_ok=True)
        write_atomically(note_path, json.dumps(note).encode())
    return _Upload(upload_id, frozenset())


def _begun_before(connection: Connection, path: str, digests: Digests) -> _Upload | None:
    note = _noted(path)
    if note is None:
        return None
    upload_id = str(note.get("upload_id"))
    if (note.get("sha256"), note.get("part")) != (digests.sha256.hex(), digests.part_bytes):
        _abort(connection, path, upload_id)
        return None
    try:
        return _Upload(upload_id, _arrived(connection, path, upload_id, digests))
    except RemoteError as error:
        # Who may write need not have the right to list parts.
        if error.concerns_all and error.trouble is not Trouble.DENIED:
            raise
        return None


def _arrived(connection: Connection, path: str, upload_id: str, digests: Digests) -> frozenset[int]:
    found: set[int] = set()
    more: dict[str, Any] = {}
    while True:
        answer = connection.ask("list_parts", f"write {path}", path, UploadId=upload_id, **more)
        for part in answer.get("Parts", ()):
            number = int(part["PartNumber"])
            known = number <= len(digests.part_md5s) and digests.part_md5s[number - 1].hex()
            if known and part["ETag"].strip('"') == known:
                found.add(number)
        if not answer.get("IsTruncated"):
            return frozenset(found)
        more = {"PartNumberMarker": answer["NextPartNumberMarker"]}


def _send_missing(
    connection: Connection, path: str, upload: _Upload, file: IO[bytes], digests: Digests
) -> None:
    for number, md5 in enumerate(digests.part_md5s, 1):
        if number in upload.arrived:
            continue
        file.seek((number - 1) * digests.part_bytes)
        connection.ask(
            "upload_part",
            f"write {path}",
            path,
            UploadId=upload.upload_id,
            PartNumber=number,
            Body=file.read(digests.part_bytes),
            ContentMD5=b64encode(md5).decode(),
        )


def _finish(connection: Connection, path: str, upload: _Upload, digests: Digests, *, only_new: bool) -> bool:
    """Let the object appear; return False when another one is there."""
    parts = [{"PartNumber": number, "ETag": md5.hex()} for number, md5 in enumerate(digests.part_md5s, 1)]
    fields = {"UploadId": upload.upload_id, "MultipartUpload": {"Parts": parts}}
    condition = {"IfNoneMatch": "*"} if only_new else {}
    # Servers that do not know the condition ignore it, so it is asked for beforehand, too.
    if not only_new or connection.stored(path) is None:
        try:
            connection.ask("complete_multipart_upload", f"write {path}", path, **fields, **condition)
        except RemoteError as error:
            if error.trouble is Trouble.UNSUPPORTED and only_new:
                return _finish(connection, path, upload, digests, only_new=False)
            if error.trouble is not Trouble.TAKEN:
                raise
        else:
            return True
    _abort(connection, path, upload.upload_id)
    return False


def _abort(connection: Connection, path: str, upload_id: str) -> None:
    with suppress(RemoteError):
        connection.ask("abort_multipart_upload", f"write {path}", path, UploadId=upload_id)
    remove_quietly(_note_path(path))


def _noted(path: str) -> dict[str, Any] | None:
    try:
        with open(_note_path(path), encoding="utf-8") as note:
            found = json.load(note)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("path") == path else None


def _note_path(path: str) -> str:
    name = hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return f"{paths.state_dir()}/compile-cache-uploads/{name}.json"
