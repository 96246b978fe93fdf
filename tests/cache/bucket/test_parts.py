"""Large objects go in parts: what has arrived is not sent again, and parts of different contents never mix."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from neurontools import paths
from neurontools.cache.remote import digests
from neurontools.cache.remote.connection import Connection
from neurontools.cache.remote.digests import digests_of
from neurontools.cache.remote.errors import RemoteError, Trouble
from neurontools.cache.remote.parts import send_in_parts
from tests.cache.bucket.conftest import connect, fill, keys
from tests.cache.bucket.test_sync import assert_sound
from tests.cache.bucket.wires import refusing

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cache.bucket.conftest import Run

DATA = bytes(range(256)) * 400
PART = 10_000
LAST = -(-len(DATA) // PART)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "LARGE_BYTES", PART)
    monkeypatch.setattr(digests, "PART_BYTES", PART)


class Asked:
    """The requests about objects; `refuse` may raise instead of one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests: list[tuple[str, int]] = []
        self.refuse: Callable[[str, int], None] = lambda *_: None
        ask = Connection.ask

        def asked(connection: Connection, operation: str, doing: str, path: str, **fields: Any) -> Any:
            number = int(fields.get("PartNumber", 0))
            self.refuse(operation, number)
            self.requests.append((operation, number))
            return ask(connection, operation, doing, path, **fields)

        monkeypatch.setattr(Connection, "ask", asked)

    @property
    def parts(self) -> list[int]:
        return [number for operation, number in self.requests if operation == "upload_part"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)


def cut_at(
    operation: str, part: int = 0, trouble: Trouble = Trouble.UNREACHABLE
) -> Callable[[str, int], None]:
    def refuse(now: str, number: int) -> None:
        if (now, number) == (operation, part):
            raise RemoteError("cut", trouble=trouble)

    return refuse


def upload(path: str, data: bytes = DATA, *, only_new: bool = True) -> bool:
    file = io.BytesIO(data)
    found = digests_of(file)
    send = send_in_parts if found.part_md5s else Connection.upload
    return send(connect(path), path, file, found, only_new=only_new)


def content(path: str) -> bytes:
    stored = connect(path).stored(path)
    assert stored is not None
    file = io.BytesIO()
    connect(path).download(stored, file)
    return file.getvalue()


def notes() -> list[Path]:
    return list(Path(paths.state_dir(), "compile-cache-uploads").glob("*"))


def unfinished(root: str) -> int:
    answer = connect(root)._call("list_multipart_uploads")
    return len(answer.get("Uploads", ()))


def test_a_large_object_is_sent_in_parts_and_has_the_tag_that_was_foretold(bucket: str, asked: Asked) -> None:
    path = f"{bucket}/large"
    assert upload(path)
    assert asked.parts == list(range(1, LAST + 1))
    assert content(path) == DATA
    assert keys(bucket)["large"] == digests_of(io.BytesIO(DATA)).tag
    assert (unfinished(bucket), notes()) == (0, [])
    assert upload(path, b"other" * 5000, only_new=False)
    assert content(path) == b"other" * 5000


@pytest.mark.parametrize("size", [0, 1, PART, PART + 1, 2 * PART, 2 * PART + 1])
def test_every_size_arrives_whole(bucket: str, size: int) -> None:
    path = f"{bucket}/sized"
    assert upload(path, DATA[:size])
    assert content(path) == DATA[:size] if size else connect(path).stored(path) is not None
    assert digests_of(io.BytesIO(DATA[:size])).describes(size, keys(bucket)["sized"])


def test_what_has_arrived_is_not_sent_again(bucket: str, asked: Asked) -> None:
    path = f"{bucket}/large"
    asked.refuse = cut_at("upload_part", 6)
    with pytest.raises(RemoteError):
        upload(path)
    assert keys(bucket) == {}
    asked.refuse = cut_at("complete_multipart_upload")
    asked.requests.clear()
    with pytest.raises(RemoteError):
        upload(path)
    assert asked.parts == list(range(6, LAST + 1))
    asked.refuse = lambda *_: None
    asked.requests.clear()
    assert upload(path)
    assert asked.parts == []
    assert content(path) == DATA
    assert (unfinished(bucket), notes()) == (0, [])


def test_parts_of_another_content_are_thrown_away(bucket: str, asked: Asked) -> None:
    path, other = f"{bucket}/large", DATA[:-1] + b"!"
    asked.refuse = cut_at("upload_part", LAST)
    with pytest.raises(RemoteError):
        upload(path)
    asked.refuse = lambda *_: None
    asked.requests.clear()
    assert upload(path, other)
    assert asked.parts == list(range(1, LAST + 1))
    assert content(path) == other
    assert unfinished(bucket) == 0


@pytest.mark.parametrize("trouble", [Trouble.DENIED, Trouble.LOST])
def test_parts_that_cannot_be_listed_are_sent_again(bucket: str, asked: Asked, trouble: Trouble) -> None:
    path = f"{bucket}/large"
    asked.refuse = cut_at("upload_part", 3)
    with pytest.raises(RemoteError):
        upload(path)
    asked.refuse = cut_at("list_parts", trouble=trouble)
    assert upload(path)
    assert content(path) == DATA


def test_an_upload_that_another_process_has_finished_is_no_trouble(bucket: str, asked: Asked) -> None:
    path = f"{bucket}/large"
    asked.refuse = cut_at("complete_multipart_upload")
    with pytest.raises(RemoteError):
        upload(path)
    (note,) = notes()
    text = note.read_bytes()
    asked.refuse = lambda *_: None
    assert upload(path)
    note.write_bytes(text)
    assert upload(path, only_new=False)
    assert content(path) == DATA
    assert notes() == []


def test_an_upload_that_the_server_drops_on_the_way_begins_anew(bucket: str, asked: Asked) -> None:
    path = f"{bucket}/large"
    dropped: list[int] = []

    def drop(operation: str, number: int) -> None:
        if (operation, number) == ("upload_part", 4) and not dropped:
            dropped.append(number)
            raise RemoteError("gone", trouble=Trouble.LOST)

    asked.refuse = drop
    assert upload(path)
    assert asked.parts == [1, 2, 3, *range(1, LAST + 1)]
    assert content(path) == DATA


def test_another_host_that_was_first_keeps_its_object(bucket: str, asked: Asked) -> None:
    path = f"{bucket}/large"

    def overtaken(operation: str, _: int) -> None:
        if operation == "complete_multipart_upload":
            raise RemoteError("another one is there", trouble=Trouble.TAKEN)

    asked.refuse = overtaken
    assert not upload(path)
    asked.refuse = lambda *_: None
    assert upload(path, b"first")
    assert not upload(path)
    assert content(path) == b"first"
    assert (unfinished(bucket), notes()) == (0, [])


def test_a_note_that_makes_no_sense_is_no_note(bucket: str, asked: Asked) -> None:
    path = f"{bucket}/large"
    asked.refuse = cut_at("upload_part", 2)
    with pytest.raises(RemoteError):
        upload(path)
    (note,) = notes()
    note.write_text("{")
    asked.refuse = lambda *_: None
    assert upload(path)
    assert content(path) == DATA


def test_parts_grow_with_the_object_so_that_their_number_stays_allowed() -> None:
    for size in (PART + 1, PART * 10_000, PART * 10_000 + 1, 5 << 40):
        part_bytes = digests._part_bytes(size)
        assert part_bytes % PART == 0
        assert -(-size // part_bytes) <= 10_000
    assert digests._part_bytes(PART) == 0


_SYNC = """
import os, signal, sys
from neurontools.cache.remote import connection, digests
digests.LARGE_BYTES = digests.PART_BYTES = 500
ask = connection.Connection.ask
def dying(self, operation, doing, path, **fields):
    answer = ask(self, operation, doing, path, **fields)
    if fields.get("PartNumber") == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    return answer
connection.Connection.ask = dying
from neurontools.commands.cache import main
sys.exit(main(["sync", *sys.argv[2:]]))
"""


def test_a_killed_sync_goes_on_in_the_middle_of_an_object(
    bucket: str, home: Path, run: Run, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = fill(home / "here", 1)
    command = [sys.executable, "-c", textwrap.dedent(_SYNC), "3", str(here), bucket]
    killed = subprocess.run(command, check=False, env=dict(os.environ))
    assert killed.returncode == -signal.SIGKILL
    assert len(notes()) == 1
    monkeypatch.setattr(digests, "LARGE_BYTES", 500)
    monkeypatch.setattr(digests, "PART_BYTES", 500)
    assert run("sync", here, bucket).out.startswith("1 entry moved")
    assert asked.parts[0] == 4
    assert_sound(bucket, 1)
    back = home / "back"
    assert run("sync", bucket, back).code == 0
    assert_sound(str(back), 1)


def test_a_bucket_that_refuses_parts_is_told_once(
    home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "LARGE_BYTES", 100)
    monkeypatch.setattr(digests, "PART_BYTES", 100)
    with refusing("AccessDenied", only_writes=True) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        done = run("sync", fill(home / "here", 2), "s3://caches/team")
    assert done.code == 1
    assert done.err.count("access denied") == 1
    assert "s3:PutObject" in done.err
