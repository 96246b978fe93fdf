"""Sync of other stacks' entries: TorchNeuron's files and vLLM's directories; what does not say that it is finished stays.

Uploads: whole objects or none, in parts when they are large, and never over another host's object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from neurontools.cache import layouts
from neurontools.cache.entries import scan
from neurontools.cache.entry_files import State
from neurontools.cache.layouts import SENTINEL, CacheLayout
from neurontools.cache.remote.bucket import RemoteError, RemoteErrorKind
from neurontools.compiler.neff_header import write_header
from tests.cache.remote.conftest import client, connect, fill, keys, put
from tests.cache.remote.wires import refusing

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cache.remote.conftest import Run


NEFF = write_header(b"neffdata", name="real", build_version="1.0", lnc=1) + b"neffdata"
KEY = "0123456789abcdef" * 2
OTHER_KEY = "f" * 32


def write(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


@pytest.fixture
def here(home: Path) -> Path:
    return write(
        home / "here",
        {
            "ab/cd/first.neff": NEFF,
            "ab/ce/empty.neff": b"",
            f"{KEY}/graph.neff": NEFF,
            f"{KEY}/deep/er/weights.bin": b"w" * 5000,
            f"{KEY}/{SENTINEL}": b"",
            f"{KEY}/{layouts.PIN}": b"",
            f"{OTHER_KEY}/half": b"h",
            "USER_neuroncc-1.0.47218.0+162039557/MODULE_12/MODULE_1/uuid/a.neff": NEFF,
        },
    )


MOVED = {
    "ab/cd/first.neff": NEFF,
    f"{KEY}/graph.neff": NEFF,
    f"{KEY}/deep/er/weights.bin": b"w" * 5000,
    f"{KEY}/{SENTINEL}": b"",
}


def content(root: Path) -> dict[str, bytes]:
    own = {layouts.CACHE_TAG, layouts.ROOT_LOCK}
    found = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    return {name: data for name, data in found.items() if name not in own}


def test_there_and_back_again(here: Path, bucket: str, home: Path, run: Run) -> None:
    first = run("copy", "--from", here, "--to", bucket, "--json").json
    assert len(first["copied"]) == 2
    assert sorted(item["reason"] for item in first["left_out"]) == [
        "its compile was interrupted",
        "its compile was interrupted",
        "its layout (oldest) does not mark finished entries; copy it with cp or rsync",
    ]
    assert set(keys(bucket)) == set(MOVED)
    assert run("copy", "--from", bucket, "--to", home / "back").code == 0
    assert run("copy", "--from", home / "back", "--to", home / "third").code == 0
    assert content(home / "back") == content(home / "third") == MOVED
    entries = scan(str(home / "third")).entries
    assert {(entry.layout, entry.state) for entry in entries} == {
        (CacheLayout.TORCHNEURON, State.DONE),
        (CacheLayout.VLLM, State.DONE),
    }
    for source, target in ((here, bucket), (bucket, home / "third"), (here, home / "back")):
        again = run("copy", "--from", source, "--to", target, "--json").json
        assert (again["copied"], len(again["present"])) == ([], 2)


def test_the_sentinel_is_written_last(here: Path, bucket: str, run: Run, uploaded: list[str]) -> None:
    assert run("copy", "--from", here, "--to", bucket, "--filter", "layout=vllm").code == 0
    assert uploaded[-1] == SENTINEL


def test_an_interrupted_sync_is_completed_and_another_content_is_not_mixed_in(
    here: Path, bucket: str, run: Run
) -> None:
    put(bucket, {f"{OTHER_KEY}/{SENTINEL}": b"", f"{KEY}/graph.neff": NEFF})
    assert (
        len(run("copy", "--from", here, "--to", bucket, "--filter", "layout=vllm", "--json").json["copied"])
        == 1
    )
    other = bucket + "-2"
    put(other, {f"{OTHER_KEY}/{SENTINEL}": b"", f"{KEY}/graph.neff": b"of another host"})
    refused = run("copy", "--from", here, "--to", other, "--filter", "layout=vllm")
    assert refused.code == 1
    assert "another unfinished entry is there" in refused.err
    assert f"{KEY}/{SENTINEL}" not in keys(other)


def test_what_is_in_a_directory_is_never_replaced(here: Path, home: Path, run: Run) -> None:
    mine = {
        "ab/cd/first.neff": NEFF,
        f"{KEY}/mine": b"unfinished",
        f"{OTHER_KEY}/{SENTINEL}": b"",
    }
    there = write(home / "there", mine)
    done = run("copy", "--from", here, "--to", there)
    assert (done.code, "the target has an unfinished entry" in done.err) == (0, True)
    assert content(there) == mine


def test_what_arrives_in_the_middle_is_not_replaced(here: Path, home: Path, run: Run) -> None:
    from neurontools.cache.copy import runner
    from neurontools.cache.copy.plan import CopyFilter

    with runner.plan_copy(str(here), str(home / "there"), CopyFilter(lambda _: True)) as plan:
        write(home / "there", {"ab/cd/first.neff": b"another"})
        result = runner.run_copy(plan)
    assert len(result.select(runner.CopyOutcome.PRESENT)) == 1
    assert (home / "there" / "ab/cd/first.neff").read_bytes() == b"another"


def test_damage_and_links_are_left_out(here: Path, home: Path, run: Run) -> None:
    (here / "ab/cd/bad.neff").write_bytes(NEFF[:-1])
    (here / KEY / "link").symlink_to("/etc/passwd")
    done = run("copy", "--from", here, "--to", home / "there")
    assert "damaged: 7 bytes of data, the header states 8" in done.err
    assert "cannot be read: Too many levels of symbolic links" in done.err
    assert content(home / "there") == {"ab/cd/first.neff": NEFF}


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
