"""Uploads: whole objects or none, in parts when they are large, and never over another host's object."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from neurontools.cache.remote.bucket import RemoteError, RemoteErrorKind
from tests.cache.remote.conftest import client, connect, fill, keys
from tests.cache.remote.wires import refusing

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cache.remote.conftest import Run

LARGE_BYTES = 100 << 20
"""What s3fs sends in parts: two chunks."""


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    path.write_bytes(bytes(range(256)) * (LARGE_BYTES // 256) + b"end")
    return path


def unfinished(root: str) -> int:
    return len(client().list_multipart_uploads(root.split("/")[2]))


@pytest.mark.slow
def test_a_large_object_is_sent_in_parts_and_recognized_again(
    bucket: str, large: Path, tmp_path: Path
) -> None:
    connection, path = connect(bucket), f"{bucket}/large"
    assert connection.upload(path, str(large), only_new=True)
    stored = connection.find_object(path)
    assert stored is not None
    assert "-" in stored.tag
    assert connection.is_same(stored, str(large))
    assert not connection.upload(path, str(large), only_new=True)
    connection.download(stored, str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == large.read_bytes()
    large.write_bytes(large.read_bytes()[:-1] + b"!")
    assert not connection.is_same(stored, str(large))
    assert unfinished(bucket) == 0


def test_a_large_upload_that_fails_leaves_no_parts(
    bucket: str, large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs

    call = s3fs.S3FileSystem._call_s3

    async def cut(self: object, operation: str, *rest: object, **fields: object) -> object:
        if operation == "upload_part" and fields["PartNumber"] == 2:
            raise ConnectionError("cut")
        return await call(self, operation, *rest, **fields)

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", cut)
    with pytest.raises(RemoteError, match="cut") as caught:
        connect(bucket).upload(f"{bucket}/large", str(large))
    assert caught.value.kind is RemoteErrorKind.UNREACHABLE
    assert keys(bucket) == {}
    assert unfinished(bucket) == 0
    monkeypatch.undo()


@pytest.mark.parametrize("size", [0, 1, 1000])
def test_every_size_arrives_whole(bucket: str, tmp_path: Path, size: int) -> None:
    connection, path = connect(bucket), f"{bucket}/sized"
    (tmp_path / "sent").write_bytes(b"x" * size)
    assert connection.upload(path, str(tmp_path / "sent"))
    stored = connection.find_object(path)
    assert stored is not None
    assert stored.size_bytes == size
    connection.download(stored, str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == b"x" * size
    assert connection.is_same(stored, str(tmp_path / "sent"))


def test_another_host_that_was_first_keeps_its_object(bucket: str, tmp_path: Path) -> None:
    connection, path = connect(bucket), f"{bucket}/once"
    (tmp_path / "first").write_bytes(b"first")
    (tmp_path / "second").write_bytes(b"second")
    assert connection.upload(path, str(tmp_path / "first"), only_new=True)
    assert not connection.upload(path, str(tmp_path / "second"), only_new=True)
    assert client().cat_file(path) == b"first"
    assert connection.upload(path, str(tmp_path / "second"))
    assert client().cat_file(path) == b"second"


def test_a_server_without_conditional_writes_is_asked_to_replace(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs
    from botocore.exceptions import ClientError

    call = s3fs.S3FileSystem._call_s3

    async def old_server(self: object, operation: str, *rest: object, **fields: object) -> object:
        if "IfNoneMatch" in fields:
            raise ClientError({"Error": {"Code": "NotImplemented", "Message": "no"}}, operation)
        return await call(self, operation, *rest, **fields)

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", old_server)
    (tmp_path / "sent").write_bytes(b"sent")
    assert connect(bucket).upload(f"{bucket}/new", str(tmp_path / "sent"), only_new=True)
    assert client().cat_file(f"{bucket}/new") == b"sent"


def test_an_object_without_a_known_digest_is_not_the_same(bucket: str, tmp_path: Path) -> None:
    connection, path = connect(bucket), f"{bucket}/foreign"
    client().pipe_file(path, b"12345")
    (tmp_path / "other").write_bytes(b"54321")
    stored = connection.find_object(path)
    assert stored is not None
    assert not connection.is_same(stored, str(tmp_path / "other"))


def test_a_bucket_that_refuses_writes_is_reported_once(
    home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("s3fs")
    with refusing("AccessDenied", only_writes=True) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        done = run("copy", "--from", fill(home / "here", 2), "--to", "s3://caches/team")
    assert done.code == 1
    assert done.err.count("access denied") == 1
    assert "s3:PutObject" in done.err
