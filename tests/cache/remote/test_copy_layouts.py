"""Sync of other stacks' entries: TorchNeuron's files and vLLM's directories; what does not say that it is finished stays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from neurontools.cache import layouts
from neurontools.cache.entries import scan
from neurontools.cache.entry_files import State
from neurontools.cache.layouts import SENTINEL, CacheLayout
from neurontools.compiler.neff_header import write_header
from tests.cache.remote.conftest import keys, put

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


def test_the_sentinel_is_written_last(
    here: Path, bucket: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from neurontools.cache.remote.bucket import Bucket

    written: list[str] = []
    upload = Bucket.upload

    def noted(self: Bucket, path: str, *rest: Any, **options: Any) -> bool:
        written.append(path)
        return upload(self, path, *rest, **options)

    monkeypatch.setattr(Bucket, "upload", noted)
    assert run("copy", "--from", here, "--to", bucket, "--filter", "layout=vllm").code == 0
    assert [path.rpartition("/")[2] for path in written][-1] == SENTINEL


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
