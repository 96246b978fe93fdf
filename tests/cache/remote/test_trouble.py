"""What is wrong with a bucket is one clear line, an exit code, and never a long wait."""

from __future__ import annotations

import importlib.util
import socket
import sys
from typing import TYPE_CHECKING

import pytest

from tests.cache.remote.wires import refusing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cache.remote.conftest import Ran, Run

COMMANDS = [
    ["ls"],
    ["stats"],
    ["stats"],
    ["verify"],
    ["locks"],
    ["show", "9219"],
    ["prune", "--failed", "-y"],
]
needs_s3fs = pytest.mark.skipif(
    importlib.util.find_spec("s3fs") is None, reason="needs pip install 'neurontools[s3]'"
)


@pytest.fixture
def deaf() -> Iterator[int]:
    """A port that takes connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def assert_refused(done: Ran, says: str) -> None:
    assert done.code == 1
    lines = done.err.splitlines()
    assert len(lines) == 2, done.err
    assert lines[0].startswith("error: ")
    assert says in lines[0]
    assert lines[1].startswith("hint: ")


@needs_s3fs
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_access_denied(words: list[str], run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with refusing("AccessDenied") as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        refused = run(*words, "--cache-dir", "s3://closed/x")
    assert_refused(refused, "access denied")
    assert "s3:ListBucket" in refused.err


@needs_s3fs
@pytest.mark.parametrize("code", ["InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"])
def test_bad_credentials(code: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with refusing(code) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        refused = run("ls", "--cache-dir", "s3://closed/x")
    assert_refused(refused, f"the server rejected the credentials ({code})")


@needs_s3fs
def test_an_answer_that_is_unknown_is_shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with refusing("KMS.DisabledException", status=400) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        refused = run("ls", "--cache-dir", "s3://closed/x")
    assert refused.code == 1
    assert "cannot list s3://closed/x: no (KMS.DisabledException)" in refused.err


def test_no_such_bucket(bucket: str, run: Run) -> None:
    refused = run("ls", "--cache-dir", "s3://caches-nobody-made/x")
    assert_refused(
        refused, "cannot list s3://caches-nobody-made/x: bucket 'caches-nobody-made' does not exist"
    )
    refused = run("ls", "--cache-dir", f"{bucket}/elsewhere")
    assert_refused(refused, "no compile cache at")


def test_other_things_in_a_bucket(bucket: str, run: Run) -> None:
    from tests.cache.remote.conftest import put

    put(bucket, {"holiday.jpg": b"x", "letters/one.txt": b"x"})
    refused = run("ls", "--cache-dir", bucket)
    assert_refused(refused, "is not a compile cache: it contains other files ('holiday.jpg', 'letters')")


@needs_s3fs
def test_no_credentials(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    refused = run("ls", "--cache-dir", "s3://some/x")
    assert_refused(refused, "no AWS credentials found")


@needs_s3fs
def test_no_listener(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    refused = run("ls", "--cache-dir", "s3://some/x")
    assert_refused(refused, f'Could not connect to the endpoint URL: "http://127.0.0.1:{port}/some"')


@needs_s3fs
def test_a_server_that_says_nothing_is_given_up(deaf: int, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from neurontools.cache.remote import bucket

    monkeypatch.setattr(bucket, "SILENCE_S", 0.2)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{deaf}")
    refused = run("ls", "--cache-dir", "s3://some/x")
    assert_refused(refused, "Read timeout on endpoint URL")


@needs_s3fs
def test_an_endpoint_that_is_none(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "nonsense")
    refused = run("ls", "--cache-dir", "s3://some/x")
    assert_refused(refused, "Invalid endpoint: nonsense")


def test_without_the_extra(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "s3fs" else real(name))
    for words in (["ls", "--cache-dir", "s3://some/x"], ["copy", "--from", "s3://some/x", "--to", "here"]):
        refused = run(*words)
        assert refused.code == 1
        assert_refused(refused, "need the package s3fs")
        assert "pip install 'neurontools[s3]'" in refused.err
    assert run("stats", "--path", "--cache-dir", "s3://some/x").code == 0
