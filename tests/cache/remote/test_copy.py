"""Sync: whatever kills or cuts it, readers see whole entries, and the next run moves only what is missing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from neurontools.cache import layouts
from neurontools.cache.copy.plan import in_writing_order
from neurontools.cache.entries import scan
from neurontools.cache.entry_files import State
from neurontools.cache.locks import try_lock
from neurontools.cache.store import CompileCache
from neurontools.cache.verify import verify_root
from neurontools.cache.walk import walk
from neurontools.compiler.options import CompileError
from tests.cache.remote.conftest import TRN1, client, connect, fill, keys, modules, put
from tests.cache.remote.wires import proxy, refusing
from tests.compiler.graphs import mlp

if TYPE_CHECKING:
    from tests.cache.remote.conftest import Run, Server

CLI = [str(Path(sys.executable).parent / "neuron-cache")]


def assert_sound(root: str, number: int) -> None:
    places = walk(root).places
    assert verify_root(root, places) == (number, ())
    assert {entry.state for entry in scan(root, details=False).entries} == {State.DONE}


def done_in(root: str) -> int:
    return sum(name.endswith(layouts.DONE) for name in keys(root))


def start(*words: str, endpoint: str = "") -> subprocess.Popen[str]:
    import os

    environ = {**os.environ, **({"AWS_ENDPOINT_URL": endpoint} if endpoint else {})}
    return subprocess.Popen(
        [*CLI, "copy", *words], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_there_and_back_again(bucket: str, home: Path, run: Run) -> None:
    here, back, third = fill(home / "here", 4), home / "back", home / "third"
    planned = run("copy", "--from", here, "--to", bucket, "--dry-run", "--json").json
    assert (len(planned["copied"]), planned["dry_run"], keys(bucket)) == (4, True, {})
    assert (
        run("copy", "--from", here, "--to", bucket, "--dry-run")
        .out.splitlines()[-1]
        .startswith("4 entries to copy")
    )
    assert run("copy", "--from", here, "--to", bucket).out.startswith("4 entries copied")
    assert_sound(bucket, 4)
    assert run("copy", "--from", bucket, "--to", back, "--jobs", 2).code == 0
    assert_sound(str(back), 4)
    assert run("copy", "--from", back, "--to", third).code == 0
    assert_sound(str(third), 4)
    assert run("copy", "--from", bucket, "--to", bucket + "-2").code == 0
    assert_sound(bucket + "-2", 4)
    again = run("copy", "--from", here, "--to", bucket, "--json").json
    assert (again["copied"], len(again["present"])) == ([], 4)
    cache = CompileCache.open({}, str(third))
    assert cache.get_or_compile(mlp(rows=4), TRN1, "mlp0").hit
    cache.close()


def test_only_what_is_unused_travels(bucket: str, home: Path, run: Run) -> None:
    here = fill(home / "here", 1)
    entry = next(path.parent for path in here.rglob(layouts.NEFF))
    for name in (layouts.PIN, f"{layouts.TAG_PREFIX}v2", layouts.STAMP, f"{layouts.TEMPORARY_PREFIX}1"):
        (entry / name).touch()
    run("copy", "--from", here, "--to", bucket)
    assert {name.rpartition("/")[2] for name in keys(bucket)} == {
        layouts.GRAPH,
        layouts.FLAGS,
        layouts.NEFF,
        layouts.DONE,
        f"{layouts.TAG_PREFIX}v2",
    }


def test_the_marker_is_written_last(bucket: str, home: Path, run: Run, uploaded: list[str]) -> None:
    assert run("copy", "--from", fill(home / "here", 1), "--to", bucket).code == 0
    assert uploaded == [layouts.FLAGS, layouts.GRAPH, layouts.NEFF, layouts.DONE]
    names = ["model.done", "model.neff", "a", ".tag-z", "model.log", "zz"]
    assert in_writing_order(names)[-3:] == ["model.log", "model.neff", "model.done"]


def test_states_and_filters_choose(bucket: str, home: Path, run: Run) -> None:
    here = fill(home / "here", 2)
    cache = CompileCache.open({}, str(here))
    with pytest.raises(CompileError):
        cache.get_or_compile(mlp(dtype="complex128"), TRN1, "bad")
    cache.close()
    fill(here, 1, first=7)
    todo = next(path.parent for path in here.rglob(layouts.NEFF) if scan(str(here)))
    (todo / layouts.NEFF).unlink()
    (todo / layouts.DONE).unlink()
    first = run("copy", "--from", here, "--to", bucket, "--only-done", "--json").json
    assert {item["state"] for item in first["copied"]} == {"done"}
    assert sorted(item["reason"].split(";")[0] for item in first["left_out"]) == [
        "a cached failure",
        "never compiled",
    ]
    second = run("copy", "--from", here, "--to", bucket, "--with-failed", "--json").json
    assert {item["state"] for item in second["copied"]} == {"failed", "todo"}
    states = {entry.module: entry.state for entry in scan(bucket).entries}
    assert states == {entry.module: entry.state for entry in scan(str(here)).entries}
    back = run(
        "copy",
        "--from",
        bucket,
        "--to",
        home / "back",
        "--with-failed",
        "--filter",
        "state=failed,todo",
        "--json",
    ).json
    assert len(back["copied"]) == 2
    assert {entry.state for entry in scan(str(home / "back")).entries} == {State.FAILED, State.TODO}


def test_a_finished_entry_replaces_a_failure_and_never_the_reverse(bucket: str, home: Path, run: Run) -> None:
    here = fill(home / "here", 1)
    entry = next(path.parent for path in here.rglob(layouts.NEFF))
    name = str(entry.relative_to(here))
    put(bucket, {f"{name}/{layouts.LOG}": b"ERROR: [NCC_X1] no\n"})
    assert len(run("copy", "--from", here, "--to", bucket, "--json").json["copied"]) == 1
    assert scan(bucket).entries[0].state is State.DONE
    other = home / "other"
    (other / name).mkdir(parents=True)
    (other / name / layouts.LOG).write_text("ERROR: [NCC_X1] no\n")
    assert run("copy", "--from", other, "--to", bucket, "--with-failed", "--json").json["copied"] == []
    assert run("copy", "--from", bucket, "--to", other, "--json").json["copied"] != []
    assert scan(str(other)).entries[0].state is State.DONE


@pytest.mark.parametrize("direction", ["up", "down"])
def test_damage_does_not_travel(direction: str, bucket: str, home: Path, run: Run) -> None:
    here = fill(home / "here", 2)
    neff = next(here.rglob(layouts.NEFF))
    neff.write_bytes(neff.read_bytes()[:-3] + b"???")
    if direction == "down":
        put(bucket, {str(path.relative_to(here)): path.read_bytes() for path in here.rglob("model.*")})
        put(bucket, {str(path.relative_to(here)): path.read_bytes() for path in here.rglob("*.json")})
    source, target = (here, bucket) if direction == "up" else (bucket, home / "back")
    result = run("copy", "--from", source, "--to", target, "--json").json
    assert (len(result["copied"]), len(result["left_out"])) == (1, 1)
    assert result["left_out"][0]["reason"].startswith("damaged: ")
    assert_sound(str(target), 1)


def test_an_object_that_was_falsified_on_the_way_is_refused(
    bucket: str, home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("copy", "--from", fill(home / "here", 1), "--to", bucket)
    get_file = client().get_file

    def falsify(path: str, target: str, **options: Any) -> None:
        get_file(path, target, **options)
        if path.endswith(layouts.GRAPH):
            data = Path(target).read_bytes()
            Path(target).write_bytes(data[:-1] + b"?")

    monkeypatch.setattr(client(), "get_file", falsify)
    result = run("copy", "--from", bucket, "--to", home / "back", "--json")
    assert (result.code, result.json["failed"]) == (1, 1)
    assert "does not match its sha256" in result.json["left_out"][0]["reason"]
    assert not list((home / "back").rglob(layouts.NEFF))


@pytest.mark.parametrize("direction", ["up", "down"])
def test_killed_in_the_middle_and_run_again(
    direction: str, bucket: str, home: Path, run: Run, server: Server
) -> None:
    here, back = fill(home / "here", 12), home / "back"
    if direction == "down":
        run("copy", "--from", here, "--to", bucket)
    source, target = (here, bucket) if direction == "up" else (bucket, back)
    with proxy(server.endpoint, stall_after=60_000 if direction == "up" else 90_000) as line:
        process = start("--from", str(source), "--to", str(target), "--jobs", "2", endpoint=line.endpoint)
        assert line.stalled.wait(60), process.communicate()
        process.send_signal(signal.SIGKILL)
        process.communicate()
    there = scan(str(target), details=False).entries
    finished = [entry for entry in there if entry.state is State.DONE]
    assert 0 < len(finished) < 12
    before = keys(bucket)
    again = run("copy", "--from", source, "--to", target, "--json").json
    assert (len(again["copied"]), len(again["present"])) == (12 - len(finished), len(finished))
    assert_sound(str(target), 12)
    if direction == "up":
        assert before.items() <= keys(bucket).items()
    else:
        assert not (back / layouts.IMPORTING).exists()


def test_a_cut_download_is_started_again(
    bucket: str, home: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytes(range(256)) * 4000
    put(bucket, {"big": content})
    with proxy(server.endpoint, cuts=2, cut_after=300_000) as line:
        monkeypatch.setenv("AWS_ENDPOINT_URL", line.endpoint)
        (stored,) = connect(bucket).list_objects(f"{bucket}/big")
        connect(bucket).download(stored, str(home / "big"))
        assert line.broken == 2
    assert (home / "big").read_bytes() == content


def test_a_connection_that_is_cut_again_and_again_ends_the_sync(
    bucket: str, home: Path, run: Run, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("copy", "--from", fill(home / "here", 3), "--to", bucket)
    straight = server.endpoint
    with proxy(straight, cuts=1000, cut_after=2500) as line:
        monkeypatch.setenv("AWS_ENDPOINT_URL", line.endpoint)
        cut = run("copy", "--from", bucket, "--to", home / "back", "--jobs", 1)
    assert cut.code == 1
    assert cut.err.splitlines()[-2].startswith("error: cannot ")
    monkeypatch.setenv("AWS_ENDPOINT_URL", straight)
    assert run("copy", "--from", bucket, "--to", home / "back").code == 0
    assert_sound(str(home / "back"), 3)


def test_two_hosts_write_at_once(bucket: str, home: Path) -> None:
    # The same graphs under other names: the NEFFs differ, so a mixture would show.
    roots = [fill(home / name, 10, name=name) for name in ("one", "two")]
    processes = [start("--from", str(root), "--to", bucket, "--json") for root in roots]
    outputs = [process.communicate(timeout=600) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    results = [json.loads(out) for out, _ in outputs]
    assert [len(result["copied"]) + len(result["present"]) for result in results] == [10, 10]
    assert_sound(bucket, 10)
    names = {entry.name.rstrip("0123456789") for entry in scan(bucket).entries}
    assert names <= {"one", "two"}


def test_who_comes_second_replaces_nothing(bucket: str, home: Path, run: Run) -> None:
    from neurontools.cache.remote.transfer import upload_entry

    one, two = (fill(home / name, 1, name=name) for name in ("one", "two"))
    run("copy", "--from", one, "--to", bucket)
    before = keys(bucket)
    entry = next(path.parent for path in two.rglob(layouts.NEFF))
    files = {name: f"{entry}/{name}" for name in (layouts.FLAGS, layouts.GRAPH, layouts.NEFF, layouts.DONE)}
    assert not upload_entry(connect(bucket), files, f"{bucket}/{entry.relative_to(two)}")
    assert keys(bucket) == before


def test_a_half_written_neff_is_completed(bucket: str, home: Path, run: Run) -> None:
    here = fill(home / "here", 1)
    neff = next(here.rglob(layouts.NEFF))
    put(bucket, {str(neff.relative_to(here)): b"of a sync that was killed"})
    assert scan(bucket).entries[0].state is State.INTERRUPTED
    assert len(run("copy", "--from", here, "--to", bucket, "--json").json["copied"]) == 1
    assert_sound(bucket, 1)


def test_delete_shows_asks_and_spares(bucket: str, home: Path, run: Run) -> None:
    here = fill(home / "here", 3)
    run("copy", "--from", here, "--to", bucket)
    gone = sorted(path.parent for path in here.rglob(layouts.NEFF))[:2]
    for path in gone:
        run("rm", "--cache-dir", here, path, "--grace", "0s", "-y")
    put(bucket, {f"{gone[0].relative_to(here)}/{layouts.PIN}": b""})
    young = run("copy", "--from", here, "--to", bucket, "--delete", "--dry-run", "--json").json
    assert (young["removed"], len(young["spared"])) == ([], 2)
    options = ("--delete", "--grace", "0s")
    planned = run("copy", "--from", here, "--to", bucket, *options, "--dry-run")
    assert "1 entry to remove" in planned.out
    unasked = run("copy", "--from", here, "--to", bucket, *options)
    assert (unasked.code, "stdin is not a terminal" in unasked.err) == (2, True)
    assert done_in(bucket) == 3
    done = run("copy", "--from", here, "--to", bucket, *options, "-y", "--json").json
    assert [item["path"] for item in done["removed"]] == [f"{bucket}/{gone[1].relative_to(here)}"]
    assert [item["reason"] for item in done["spared"]] == ["pinned"]
    assert done_in(bucket) == 2


def test_an_empty_source_deletes_nothing(bucket: str, home: Path, run: Run) -> None:
    run("copy", "--from", fill(home / "here", 1), "--to", bucket)
    (home / "empty").mkdir()
    refused = run("copy", "--from", home / "empty", "--to", bucket, "--delete", "--grace", "0s", "-y")
    assert (refused.code, done_in(bucket)) == (2, 1)
    assert "would remove all" in refused.err


def test_what_is_compiled_there_is_left(home: Path, run: Run) -> None:
    here, there = fill(home / "here", 1), home / "there"
    name = next(path.parent for path in here.rglob(layouts.NEFF)).relative_to(here)
    (there / name).mkdir(parents=True)
    lock = try_lock(str(there), str(there / name))
    assert lock is not None
    try:
        result = run("copy", "--from", here, "--to", there, "--json").json
    finally:
        lock.release()
    assert [item["reason"] for item in result["left_out"]] == ["a process is compiling it there"]
    assert run("copy", "--from", here, "--to", there).code == 0
    assert_sound(str(there), 1)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["here", "here"], 2, "the same cache, or one contains the other"),
        (["here", "here/inner"], 2, "the same cache, or one contains the other"),
        (["nowhere", "there"], 1, "no compile cache at"),
        (["here", "there", "--jobs", "0"], 2, "'0' is not a number above 0"),
        (["here", "there", "--grace", "1d"], 2, "--grace needs --delete"),
        (["here", "there", "--dry-run", "-y"], 2, "exclude each other"),
        (["here", "there", "--filter", "size>"], 2, "size>"),
        (["here", "gs://bucket/x"], 2, "not supported"),
        (["here", "s3://"], 2, "names no bucket"),
        (["here", ""], 2, "must not be empty"),
    ],
)
def test_invalid_input_is_refused(words: list[str], code: int, says: str, home: Path, run: Run) -> None:
    fill(home / "here", 1)
    refused = run("copy", "--from", words[0], "--to", *words[1:])
    assert refused.code == code
    assert says in refused.err
    assert not (home / "there").exists()


def test_a_bucket_that_may_not_be_written_ends_the_sync_at_once(
    home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("s3fs")
    with refusing("AccessDenied", only_writes=True) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        refused = run("copy", "--from", fill(home / "here", 5), "--to", "s3://closed/x", "--jobs", 1)
    assert refused.code == 1
    lines = refused.err.splitlines()
    assert lines[0] == "warning: stopped after 0 entries, 5 left; run the command again to continue"
    assert lines[1].endswith(": access denied")
    assert "s3:PutObject" in lines[2]


def test_no_room_in_the_target_ends_the_sync(home: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from neurontools.cache.copy import endpoints

    def full(root: str, path: str, target: str) -> None:
        raise OSError(28, "No space left on device", target)

    monkeypatch.setattr(endpoints, "copy_file_below", full)
    ended = run("copy", "--from", fill(home / "here", 2), "--to", home / "there")
    assert ended.code == 1
    assert "No space left on device" in ended.err
    assert modules(run("ls", "--cache-dir", home / "there", "--json")) == []


def test_a_file_that_cannot_be_read_stops_nothing_else(
    home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from neurontools.cache.copy import endpoints

    here = fill(home / "here", 3)
    bad = str(min(here.rglob(layouts.GRAPH)))
    copy = endpoints.copy_file_below

    def broken(root: str, path: str, target: str) -> None:
        if path == bad:
            raise OSError(5, "Input/output error", path)
        copy(root, path, target)

    monkeypatch.setattr(endpoints, "copy_file_below", broken)
    result = run("copy", "--from", here, "--to", home / "there", "--json")
    assert (result.code, len(result.json["copied"]), result.json["failed"]) == (1, 2, 1)
    assert result.json["left_out"][0]["reason"] == "cannot be read: Input/output error"


def test_no_marker_is_written_before_the_neff_of_another_host_is_there(
    bucket: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from neurontools.cache.remote.bucket import Bucket, RemoteError
    from neurontools.cache.remote.transfer import upload_entry

    entry = next(path.parent for path in fill(home / "here", 1).rglob(layouts.NEFF))
    upload = Bucket.upload

    def taken(self: Bucket, path: str, *rest: Any, **options: Any) -> bool:
        # S3 answers so while another upload of the same object is under way, which may yet fail.
        return False if path.endswith(layouts.NEFF) else upload(self, path, *rest, **options)

    monkeypatch.setattr(Bucket, "upload", taken)
    files = {name: f"{entry}/{name}" for name in (layouts.FLAGS, layouts.GRAPH, layouts.NEFF, layouts.DONE)}
    with pytest.raises(RemoteError, match="another host is writing it"):
        upload_entry(connect(bucket), files, f"{bucket}/{entry.parent.name}/{entry.name}")
    assert done_in(bucket) == 0
