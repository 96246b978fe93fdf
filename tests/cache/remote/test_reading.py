"""A cache in a bucket is read as one in a directory is, and with few requests.

`why` for entries in a bucket: read from there, explained as those of a directory.
"""

from __future__ import annotations

import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from neurontools.cache import layouts
from neurontools.cache.entries import scan
from neurontools.cache.remote import tree
from neurontools.cache.remote.bucket import StoredObject
from neurontools.cache.remote.tree import BucketItem, BucketTree
from neurontools.compiler.neff_header import write_header
from tests.cache.remote.conftest import TRN1, Run, connect, fill, modules, put
from tests.cache.trees import lay_out
from tests.compiler.graphs import mlp

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.cache.store import CompileCache
    from tests.cache.remote.conftest import Run, Server

ENTRY = "neuronxcc-2.16.372.0+4a9b2326/MODULE_9219523464496887986+e30acd3a"
NEFF = write_header(b"neffdata", name="bert", build_version="1.0", lnc=1) + b"neffdata"
DONE = {
    f"{ENTRY}/compile_flags.json": b'["--target=trn1"]',
    f"{ENTRY}/model.hlo_module.pb": b"hlo",
    f"{ENTRY}/model.neff": NEFF,
    f"{ENTRY}/model.done": b"",
}


def upload(local: Path, root: str) -> None:
    files = (path for path in local.rglob("*") if path.is_file() and not path.is_symlink())
    put(root, {str(path.relative_to(local)): path.read_bytes() for path in files})


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requests that are made, by their names."""
    import s3fs

    made: list[str] = []
    call = s3fs.S3FileSystem._call_s3

    async def counting(self: object, operation: str, *rest: object, **fields: object) -> object:
        made.append(operation)
        return await call(self, operation, *rest, **fields)

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", counting)
    return made


def test_a_prefix_is_a_directory_without_a_size_or_a_time() -> None:
    found = BucketItem("MODULE_1", "s3://team/MODULE_1", None).stat()
    assert (stat.S_ISDIR(found.st_mode), found.st_size, found.st_mtime) == (True, 0, 0.0)


@pytest.mark.parametrize(
    "name", sorted(path.stem for path in (Path(__file__).parents[3] / "fixtures" / "caches").glob("*.yaml"))
)
def test_every_generation_is_read_as_from_a_directory(name: str, bucket: str, home: Path) -> None:
    local = lay_out(name, home / "laid-out")
    upload(local, bucket)
    here, there = scan(str(local)), scan(bucket)
    facts = [
        {
            (
                entry.path.removeprefix(found.root),
                entry.state,
                entry.layout,
                entry.flags,
                entry.name,
                entry.compiler,
            )
            for entry in found.entries
        }
        for found in (here, there)
    ]
    # What is empty or a link in a directory has no key in a bucket.
    empty = {
        fact
        for fact in facts[0]
        if not any(Path(f"{local}{fact[0]}").rglob("*")) and Path(f"{local}{fact[0]}").is_dir()
    }
    assert facts[1] == facts[0] - empty
    assert facts[1]


def test_reading_commands_work_in_a_bucket(bucket: str, home: Path, run: Run) -> None:
    upload(fill(home / "here", 3), bucket)
    put(bucket, {f"{ENTRY}/model.hlo_module.pb.lock": b"", f"{ENTRY}/model.hlo_module.pb": b"hlo"})
    where = ("--cache-dir", bucket)
    listed = run("ls", *where, "--json")
    assert len(modules(listed)) == 4
    assert {entry["state"] for entry in listed.json["entries"]} == {"done", "locked"}
    assert {entry["name"] for entry in listed.json["entries"]} == {"mlp0", "mlp1", "mlp2", ""}
    text = run("ls", *where).out
    assert "buckets record no time of use" in text
    assert text.endswith(f" in {bucket}\n")
    assert len(run("ls", *where, "-q", "--limit", 2, "--filter", "state=done").out.splitlines()) == 2
    assert run("stats", *where, "--json").json["total"]["count"] == 4
    assert "done" in run("stats", *where).out
    shown = run("show", *where, listed.json["entries"][0]["path"], "--json").json
    assert shown[0]["path"].startswith(bucket)
    assert run("locks", *where, "--json").json["locks"][0]["state"] == "unknown"
    assert run("verify", *where, listed.json["entries"][0]["path"]).code == 0
    assert run("stats", "--path", *where, "-q").out == f"{bucket}\n"
    archive = home / "x.tar.gz"
    exported = run("copy", *where, "--to", archive, "--json").json
    assert len(exported["copied"]) == 3
    assert run("copy", "--from", archive, "--cache-dir", home / "imported").code == 0
    assert run("copy", "--from", archive, "--to", f"{bucket}-2").code == 0
    assert len(run("ls", "--cache-dir", f"{bucket}-2", "--json").json["entries"]) == 3
    assert modules(run("ls", "--cache-dir", home / "imported", "--json")) == modules(
        run("ls", "--cache-dir", home / "here", "--json")
    )


def test_an_entry_may_be_named_as_in_a_directory(bucket: str, run: Run) -> None:
    put(bucket, DONE)
    for name in (
        "9219",
        "MODULE_9219523464496887986+e30acd3a",
        f"{bucket}/{ENTRY}",
        f"{bucket}/{ENTRY}/model.neff",
    ):
        shown = run("show", "--cache-dir", bucket, name)
        assert (shown.code, "bert" in shown.out) == (0, True)
    assert run("show", "--cache-dir", bucket, "77777").code == 1


def test_verify_finds_damage_in_a_bucket(bucket: str, home: Path, run: Run) -> None:
    upload(fill(home / "here", 2), bucket)
    put(bucket, DONE | {f"{ENTRY}/model.neff": NEFF[:-1] + b"?"})
    found = run("verify", "--cache-dir", bucket, "--json")
    assert found.code == 1
    assert found.json["checked"] == 3
    assert [problem["path"] for problem in found.json["problems"]] == [f"{bucket}/{ENTRY}/model.neff"]


def test_what_needs_a_directory_says_how_to_get_one(bucket: str, run: Run) -> None:
    for words in (["pin", "x"], ["verify", "--fix"], ["tag", "t", "x"]):
        refused = run(*words, "--cache-dir", bucket)
        assert refused.code == 2
        assert f"neuron-cache copy --from {bucket} --to DIR" in refused.err


def test_many_entries_are_listed_in_pages(bucket: str, server: Server, run: Run, counted: list[str]) -> None:
    server.fill(bucket, 1500, "model.neff", "model.done")
    stats = run("stats", "--cache-dir", bucket, "--json").json
    assert stats["total"]["count"] == 1500
    assert counted == ["list_objects_v2"] * 3


def test_equal_files_are_read_once(bucket: str, server: Server, run: Run, counted: list[str]) -> None:
    server.fill(bucket, 50, "compile_flags.json", "model.neff", "model.done")
    listed = run("ls", "--cache-dir", bucket, "--json").json["entries"]
    assert [entry["flags"] for entry in listed] == [["--target=trn1"]] * 50
    assert counted == ["list_objects_v2", "get_object", "get_object"]
    counted.clear()
    assert len(run("ls", "--cache-dir", bucket, "--limit", 5, "--json").json["entries"]) == 5
    assert counted.count("list_objects_v2") == 6


def test_odd_keys_are_skipped(bucket: str, run: Run) -> None:
    odd = {
        f"{ENTRY}/../../../evil": b"x",
        "//twice": b"x",
        "dir/": b"",
        "neuronxcc-1/": b"",
        "neuronxcc-1/MODULE_1+x": b"",
    }
    put(bucket, DONE | odd)
    listed = run("ls", "--cache-dir", bucket, "--json")
    assert modules(listed) == ["MODULE_9219523464496887986+e30acd3a"]


def test_a_key_deeper_than_any_layout_hides_nothing(bucket: str, run: Run) -> None:
    put(bucket, DONE | {"p/" + "/" * 900 + "x": b"", f"{ENTRY}/{'a/' * 400}x": b""})
    shown = run("ls", "--cache-dir", bucket)
    assert (shown.code, shown.err) == (0, "")
    assert "1 entry" in shown.out
    for verb in ("stats", "verify", "locks"):
        assert "Traceback" not in run(verb, "--cache-dir", bucket).err


def test_a_key_that_leads_out_is_never_written(bucket: str, home: Path, run: Run) -> None:
    put(bucket, DONE | {f"{ENTRY}/../../../../evil": b"x"})
    refused = run("copy", "--cache-dir", bucket, "--to", home / "x.tar")
    assert refused.code == 1
    assert "is not a valid file name" in refused.err
    synced = run("copy", "--from", bucket, "--to", home / "synced")
    assert synced.code == 0
    assert not list(home.rglob("evil"))
    assert sorted(path.name for path in (home / "synced" / ENTRY).iterdir()) == sorted(
        name.rpartition("/")[2] for name in DONE
    )


@pytest.mark.parametrize("words", [["--max-size", "0B"], ["--older-than", "0s"]])
def test_prune_spares_what_is_new_locked_or_pinned(words: list[str], bucket: str, run: Run) -> None:
    other = ENTRY.replace("921", "1921")
    put(
        bucket,
        DONE | {name.replace(ENTRY, other): data for name, data in DONE.items()} | {f"{other}/.pinned": b""},
    )
    where = ("--cache-dir", bucket)
    spared = run("prune", *where, *words, "--json", "--dry-run").json
    assert (spared["removed"], len(spared["spared"])) == ([], 2)
    planned = run("prune", *where, *words, "--grace", "0s", "--dry-run")
    assert "buckets record no time of use" in planned.out
    assert "pinned" in planned.out
    done = run("prune", *where, *words, "--grace", "0s", "-y", "--json").json
    assert [choice["path"] for choice in done["removed"]] == [f"{bucket}/{ENTRY}"]
    assert modules(run("ls", *where, "--json")) == ["MODULE_19219523464496887986+e30acd3a"]


def test_what_changes_before_a_removal_is_spared(bucket: str, run: Run) -> None:
    from neurontools.cache.pruning.prune import prepare_pruning
    from neurontools.cache.pruning.rules import PruneRules

    put(bucket, DONE)
    work = prepare_pruning(scan(bucket), PruneRules(everything=True, grace_s=0.0))
    time.sleep(1.1)  # the server's times are whole seconds
    put(bucket, {f"{ENTRY}/model.neff": NEFF})
    removal, _ = work.carry_out()
    assert [choice.reason for choice in removal.spared] == ["used meanwhile"]
    assert scan(bucket).entries


def test_stale_locks_without_owners_are_broken_by_age(bucket: str, run: Run) -> None:
    put(bucket, DONE | {f"{ENTRY}/{layouts.LOCK}": b""})
    where, prune = ("locks", "--cache-dir", bucket), ("prune", "--cache-dir", bucket, "-y", "--locks")
    assert run(*prune, "1h", "--json").json["locks"] == []
    time.sleep(1.1)
    assert len(run(*prune, "1s", "--json").json["locks"]) == 1
    assert run(*where, "--json").json["locks"] == []


def test_done_goes_first_when_an_entry_is_removed(
    bucket: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from neurontools.cache.remote.bucket import Bucket

    put(bucket, DONE)
    order: list[str] = []
    delete = Bucket.delete
    monkeypatch.setattr(Bucket, "delete", lambda self, paths: (order.extend(paths), delete(self, paths))[1])
    assert run("rm", "--cache-dir", bucket, "9219", "--grace", "0s", "-y").code == 0
    assert order[0].endswith("/model.done")
    assert len(order) == len(DONE)
    assert run("ls", "--cache-dir", bucket).code == 1


def test_local_caches_import_nothing_for_buckets(home: Path) -> None:
    fill(home / "here", 1)
    code = (
        "import sys; from neurontools.commands.cache import main; "
        f"main(['ls', '--cache-dir', {str(home / 'here')!r}]); main(['stats', '--cache-dir', {str(home / 'here')!r}]); "
        "print(sorted({'s3fs', 'fsspec', 'botocore', 'aiohttp', 'asyncio'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_bucket_itself_may_be_the_root(bucket: str, run: Run) -> None:
    root = bucket.removesuffix("/team/cache")
    put(root, DONE)
    assert modules(run("ls", "--cache-dir", root + "/", "--json")) == ["MODULE_9219523464496887986+e30acd3a"]
    assert connect(root).name == root.removeprefix("s3://")


def test_what_is_removed_while_it_is_read_is_left_out(
    bucket: str, home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from neurontools.cache.remote.bucket import Bucket

    upload(fill(home / "here", 2), bucket)
    put(bucket, DONE)
    download = Bucket.download

    def late(self: Bucket, stored: StoredObject, target: str) -> None:
        if ENTRY in stored.path:
            self.delete([stored.path])
        download(self, stored, target)

    monkeypatch.setattr(Bucket, "download", late)
    checked = run("verify", "--cache-dir", bucket, "--json")
    assert (checked.code, checked.json["checked"]) == (0, 2)
    put(bucket, DONE)
    exported = run("copy", "--cache-dir", bucket, "--to", home / "x.tar", "--json").json
    assert [item["reason"] for item in exported["left_out"]] == ["changed or removed meanwhile"]
    put(bucket, DONE)
    synced = run("copy", "--from", bucket, "--to", home / "synced", "--json").json
    assert [item["reason"] for item in synced["left_out"]] == ["changed or removed meanwhile"]


@pytest.mark.parametrize(
    ("each_bytes", "text"), [(3, "abc\n...\nfgh"), (5, "abcde\n...\nfgh"), (8, "abcdefgh"), (9, "abcdefgh")]
)
def test_of_a_long_text_start_and_end_are_read(
    monkeypatch: pytest.MonkeyPatch, each_bytes: int, text: str
) -> None:
    data = b"abcdefgh"
    bucket: Any = SimpleNamespace(read_range=lambda _path, start, end: data[start:end])
    tree = BucketTree("s3://bucket/cache", bucket=bucket)
    monkeypatch.setattr(tree, "read_start", lambda _path, most_bytes: data[:most_bytes])
    monkeypatch.setattr(tree, "stored", lambda _path: SimpleNamespace(size_bytes=len(data)))
    assert tree.read_ends_text("s3://bucket/cache/log", each_bytes) == text


def test_what_a_bucket_says_of_an_object_is_said_as_of_a_file() -> None:
    found = tree._file_stat(StoredObject("s3://bucket/key", 7, 1_700_000_000.25, ""))
    assert stat.S_ISREG(found.st_mode)
    assert (found.st_size, found.st_nlink) == (7, 1)
    assert found.st_atime == found.st_mtime == found.st_ctime == 1_700_000_000.25
    assert found.st_mtime_ns == pytest.approx(1_700_000_000_250_000_000, abs=1000)


def test_compiles_into_a_bucket_are_explained(
    bucket: str,
    open_cache: Callable[..., CompileCache],
    run: Run,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "xdg-cache"))
    cache = open_cache(bucket)
    for rows in (8, 3):
        cache.get_or_compile(mlp(rows=rows), TRN1, "mlp")
    cache.close()
    report = run("why", "--last", "--json", "--cache-dir", bucket).json
    assert [cause["name"] for cause in report["causes"]] == ["last partial batch"]
    paths = [miss["entry"]["path"] for miss in report["misses"]]
    assert all(path.startswith(f"{bucket}/") for path in paths)
    pair = run("why", *paths, "--json", "--cache-dir", bucket).json
    assert pair["causes"][0]["name"] == "input shape changed"
    assert (pair["nearest"]["path"], pair["entry"]["path"]) == tuple(paths)
