from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast
from uuid import uuid4

import pytest

from neurontools.cache.store import CompileCache
from neurontools.commands.cache import main
from neurontools.machine.instances.catalogue import instance_type
from tests.compiler.graphs import mlp

if TYPE_CHECKING:
    from neurontools.cache.remote.bucket import Bucket

TRN1 = instance_type("trn1.2xlarge").device
Run = Callable[..., "Ran"]


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command line of neuron-cache did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Server:
    """moto's S3 server in a process of its own."""

    def __init__(self) -> None:
        command = [sys.executable, str(Path(__file__).with_name("server.py"))]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "S3_UPLOAD_PART_MIN_SIZE": "1"},
        )
        self._lines = cast("IO[str]", self._process.stdout)
        self.endpoint = self._lines.readline().strip()

    def fill(self, root: str, number: int, *names: str) -> None:
        """Make entries of the real compiler with some files below a root."""
        bucket, _, prefix = root.removeprefix("s3://").partition("/")
        stdin = cast("IO[str]", self._process.stdin)
        stdin.write(f"fill {bucket} {prefix} {number} {' '.join(names)}\n")
        stdin.flush()
        assert self._lines.readline() == "filled\n"

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    for package in ("moto", "s3fs"):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install 'neurontools[s3,dev]'")
    made = Server()
    assert made.endpoint, "moto's server did not start"
    yield made
    made.end()


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def bucket(server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A root in a new bucket."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    name = f"caches-{uuid4().hex[:12]}"
    client().mkdir(name)
    return f"s3://{name}/team/cache"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command line of neuron-cache in this process."""

    def ran(*words: object) -> Ran:
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return ran


@pytest.fixture
def uploaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the objects that are uploaded, in order."""
    from neurontools.cache.remote.bucket import Bucket

    written: list[str] = []
    upload = Bucket.upload

    def noted(self: Bucket, path: str, *rest: Any, **options: Any) -> bool:
        written.append(path.rpartition("/")[2])
        return upload(self, path, *rest, **options)

    monkeypatch.setattr(Bucket, "upload", noted)
    return written


def connect(root: str) -> Bucket:
    from neurontools.cache.remote.bucket import Bucket

    return Bucket(root)


def client() -> Any:
    from neurontools.cache.remote import bucket

    return bucket._client()


def fill(root: Path, number: int, *, name: str = "mlp", first: int = 0) -> Path:
    """Compile some graphs into a directory."""
    cache = CompileCache.open({"NEURON_COMPILE_CACHE_URL": str(root)})
    for position in range(first, first + number):
        cache.get_or_compile(mlp(rows=4 + position), TRN1, f"{name}{position}")
    cache.close()
    return root


def put(root: str, files: dict[str, bytes]) -> None:
    """Write objects below a root."""
    target = connect(root)
    with tempfile.NamedTemporaryFile() as file:
        for name, data in files.items():
            Path(file.name).write_bytes(data)
            target.upload(f"{root}/{name}", file.name)


def keys(root: str) -> dict[str, str]:
    """Return the objects below a root: their names and tags."""
    return {stored.path.removeprefix(root + "/"): stored.tag for stored in connect(root).list_objects(root)}


def modules(ran: Ran) -> list[str]:
    return sorted(entry["module"] for entry in ran.json["entries"])
