from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.cache import layouts, location, locks
from neurontools.cache.entries import Entry, Scan, scan
from neurontools.cache.entry_files import State
from neurontools.cache.events import Usage
from neurontools.cache.lock_owner import Liveness, new_lock_owner
from neurontools.cache.locks import LockState, hold, is_in_use
from neurontools.cache.pruning import removal
from neurontools.cache.pruning.prune import prepare_pruning
from neurontools.cache.pruning.rule_options import RULES
from neurontools.cache.pruning.rules import FOREIGN_GRACE_S, NETWORK_GRACE_S, PruneRules, make_plan
from neurontools.commands.cache import main
from neurontools.errors import NeuronToolsError, UsageError
from neurontools.machine.instances.catalogue import instance_type
from tests.cache.conftest import DAY, Tree
from tests.compiler.graphs import mlp

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.cache.store import CompileCache

TRN1 = instance_type("trn1.2xlarge").device
NOW = 1e9


def entry(number: int, **changes: object) -> Entry:
    values: dict[str, object] = {
        "path": f"/c/v/{number}",
        "compiler": "v",
        "module": str(number),
        "state": State.DONE,
        "size_bytes": 100,
        "made_unix_s": NOW - 1000 - number,
        "used_unix_s": NOW - 1000 - number,
        "hits": 0,
        "flags": (),
        "name": "",
        "ours": True,
        "note": "",
        "lock": None,
    }
    return Entry(**(values | changes))  # type: ignore[arg-type]


def plan_paths(
    rules: PruneRules, *found: Entry, in_use: frozenset[str] = frozenset(), network: bool = False
) -> list[str]:
    plan = make_plan(Scan("/c", True, found, 0), rules, NOW, in_use.__contains__, network=network)
    return [choice.entry.module for choice in plan.remove]


_LOCKS = st.sampled_from(Liveness).map(lambda lives: LockState("/l", None, 0.0, lives)) | st.none()
_ENTRIES = st.lists(
    st.builds(
        lambda number, state, size, age, ours, lock: entry(
            number,
            state=state,
            size_bytes=size,
            made_unix_s=NOW - age,
            used_unix_s=NOW - age,
            ours=ours,
            lock=lock,
        ),
        st.integers(0, 10**6),
        st.sampled_from(State),
        st.integers(0, 1000),
        st.integers(0, 10**6),
        st.booleans(),
        _LOCKS,
    ),
    max_size=12,
    unique_by=lambda one: one.path,
)
_RULES = st.builds(
    PruneRules,
    max_bytes=st.none() | st.integers(0, 5000),
    older_than_s=st.none() | st.integers(0, 10**6).map(float),
    failed=st.booleans(),
    interrupted=st.booleans(),
    grace_s=st.none() | st.integers(0, 10**6).map(float),
)


@given(_ENTRIES, _RULES, st.data(), st.booleans())
def test_a_plan_keeps_its_promises(
    found: list[Entry], rules: PruneRules, data: st.DataObject, network: bool
) -> None:
    loaded = frozenset(one.path for one in found if data.draw(st.booleans()))
    plan = make_plan(Scan("/c", True, tuple(found), 0), rules, NOW, loaded.__contains__, network=network)
    removed = {choice.entry.path for choice in plan.remove}
    spared = {choice.entry.path for choice in plan.spare}
    assert len(removed) == len(plan.remove)
    assert not removed & spared
    assert not removed & loaded
    for choice in (*plan.remove, *plan.spare):
        assert choice.reason
    for one in found:
        if one.lock is not None and one.lock.liveness is not Liveness.DEAD:
            assert one.path not in removed
        if rules.failed and one.state is State.FAILED:
            assert one.path in removed | spared
    rest = [one for one in found if one.path not in removed]
    if rules.max_bytes is not None and sum(one.size_bytes for one in rest) > rules.max_bytes:
        assert {one.path for one in rest if one.size_bytes} <= spared


@given(_ENTRIES)
def test_without_matching_rules_nothing_goes(found: list[Entry]) -> None:
    assert plan_paths(PruneRules(older_than_s=1e9), *found) == []
    assert plan_paths(PruneRules(max_bytes=10**9), *found) == []


def test_the_longest_unused_go_first_and_only_as_many_as_needed() -> None:
    found = [entry(1), entry(3), entry(2)]
    assert plan_paths(PruneRules(max_bytes=150), *found) == ["3", "2"]
    assert plan_paths(PruneRules(max_bytes=300), *found) == []


def test_useless_entries_go_before_useful_ones() -> None:
    assert plan_paths(PruneRules(max_bytes=100), entry(9), entry(1, state=State.FAILED)) == ["1"]


def test_age_counts_from_the_last_use() -> None:
    old_but_used = entry(1, made_unix_s=NOW - 90 * DAY, used_unix_s=NOW - DAY)
    assert plan_paths(PruneRules(older_than_s=30 * DAY), old_but_used) == []


def test_limits_of_age_and_size_are_not_yet_over_them() -> None:
    exactly = entry(1, used_unix_s=NOW - 30 * DAY, made_unix_s=NOW - 40 * DAY, size_bytes=100)
    assert plan_paths(PruneRules(older_than_s=30 * DAY), exactly) == []
    assert plan_paths(PruneRules(older_than_s=30 * DAY - 1), exactly) == ["1"]
    assert plan_paths(PruneRules(max_bytes=100), exactly) == []
    assert plan_paths(PruneRules(max_bytes=99), exactly) == ["1"]


def test_the_grace_period_ends_at_its_age() -> None:
    used = entry(1, used_unix_s=NOW - 600, made_unix_s=NOW - 9000)
    assert plan_paths(PruneRules(everything=True, grace_s=600), used) == ["1"]
    assert plan_paths(PruneRules(everything=True, grace_s=601), used) == []


def test_keep_last_protects_exactly_that_number_of_finished_entries() -> None:
    found = [entry(number) for number in range(4)]
    failed = entry(9, state=State.FAILED, used_unix_s=NOW - 1)
    assert plan_paths(PruneRules(keep_last=2, grace_s=0.0), *found, failed) == ["3", "2", "9"]
    assert plan_paths(PruneRules(keep_last=2, everything=True, grace_s=0.0), *found) == ["3", "2"]
    assert plan_paths(PruneRules(keep_last=0, grace_s=0.0), *found) == ["3", "2", "1", "0"]


def test_each_kind_of_entry_has_its_grace() -> None:
    def goes(age_s: float, *, ours: bool, network: bool) -> bool:
        found = entry(1, ours=ours, made_unix_s=NOW - age_s, used_unix_s=NOW - age_s)
        return plan_paths(PruneRules(max_bytes=0), found, network=network) == ["1"]

    assert goes(0, ours=True, network=False)
    assert not goes(FOREIGN_GRACE_S - 1, ours=False, network=False)
    assert goes(FOREIGN_GRACE_S + 1, ours=False, network=False)
    assert not goes(NETWORK_GRACE_S - 1, ours=True, network=True)
    assert goes(NETWORK_GRACE_S + 1, ours=True, network=True)


def test_prune_removes_what_it_announced(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    old, kept, failed = (
        tree.done(unused_s=40 * DAY, graph="1"),
        tree.done(unused_s=-1e9, graph="2"),
        tree.failed(graph="3"),
    )
    Usage(str(tree.root)).count_hit(str(failed))
    arguments = ["prune", "--older-than", "30d", "--failed"]
    assert main([*arguments, "--dry-run", "--json"]) == 0
    announced = json.loads(capsys.readouterr().out)
    assert (old.exists(), announced["dry_run"]) == (True, True)
    assert main([*arguments, "-y", "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert done["removed"] == announced["removed"]
    assert done["freed_bytes"] == sum(row["size_bytes"] for row in done["removed"])
    assert [old.exists(), kept.exists(), failed.exists()] == [False, True, False]
    assert Usage(str(tree.root)).hits(str(failed)) == (0, 0.0)
    assert not (tree.root / layouts.TRASH).exists()


def test_nothing_to_do_is_fine(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    tree.done(unused_s=-1e9)
    assert main(["prune", "--failed", "-y"]) == 0
    assert capsys.readouterr().out.startswith("0 entries to remove")


def test_an_emptied_compiler_directory_goes_too(tree: Tree) -> None:
    path = tree.done(compiler="1.0+abc", unused_s=DAY)
    assert main(["prune", "--max-size", "0", "-y"]) == 0
    assert not path.parent.exists()
    assert tree.root.exists()


def test_what_a_process_has_loaded_is_spared(
    open_cache: Callable[..., CompileCache], capsys: pytest.CaptureFixture[str]
) -> None:
    cache = open_cache()
    loaded = cache.get_or_compile(mlp(), TRN1, "mlp").entry
    other = open_cache()
    idle = other.get_or_compile(mlp(8), TRN1, "mlp").entry
    other.close()
    assert main(["stats", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["total"]["active"] == 1
    assert main(["prune", "--max-size", "0", "-y", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [(row["path"], row["reason"]) for row in shown["spared"]] == [(loaded, "in use")]
    assert [row["path"] for row in shown["removed"]] == [idle]
    cache.close()
    assert main(["prune", "--max-size", "0", "-y"]) == 0
    assert not os.path.exists(loaded)


def test_a_hit_also_marks_its_entry(open_cache: Callable[..., CompileCache]) -> None:
    open_cache().get_or_compile(mlp(), TRN1, "mlp")
    entry_path = open_cache().get_or_compile(mlp(), TRN1, "mlp").entry
    assert is_in_use(entry_path)


@pytest.mark.parametrize("change", ["loaded", "locked", "used", "gone"])
def test_what_happens_after_the_plan_is_respected(tree: Tree, change: str) -> None:
    path = tree.done(unused_s=DAY)
    work = prepare_pruning(scan(str(tree.root)), PruneRules(max_bytes=0))
    assert len(work.plan.remove) == 1
    held = None
    match change:
        case "loaded":
            held = hold(str(path))
        case "locked":
            (path / layouts.LOCK).write_bytes(new_lock_owner().to_bytes())
        case "used":
            (path / layouts.STAMP).touch()
        case "gone":
            path.rename(tree.root / "elsewhere")
    outcome, _ = work.carry_out()
    assert outcome.removed == ()
    assert len(outcome.spared) == 1
    assert path.exists() == (change != "gone")
    if held is not None:
        os.close(held)


def test_an_entry_that_is_locked_during_the_rename_comes_back(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tree.done(unused_s=DAY)
    work = prepare_pruning(scan(str(tree.root)), PruneRules(max_bytes=0))

    def lock_first(*_: object, **__: object) -> str:
        (path / layouts.LOCK).write_bytes(new_lock_owner().to_bytes())
        return ""

    monkeypatch.setattr(removal, "changed_since", lock_first)
    outcome, _ = work.carry_out()
    assert [choice.reason for choice in outcome.spared] == ["taken by another process"]
    assert (path / layouts.NEFF).exists()


def test_an_entry_that_was_made_anew_during_the_rename_is_left_alone(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tree.done(unused_s=DAY)
    work = prepare_pruning(scan(str(tree.root)), PruneRules(max_bytes=0))
    rename = os.rename

    def race(source: str, target: str, **directories: int) -> None:
        rename(source, target, **directories)
        if source == path.name:
            trash = tree.root / layouts.TRASH
            (trash / target / layouts.LOCK).write_bytes(new_lock_owner().to_bytes())
            path.mkdir()
            (path / layouts.NEFF).write_bytes(b"new")

    monkeypatch.setattr(os, "rename", race)
    outcome, _ = work.carry_out()
    assert len(outcome.removed) == 1
    assert (path / layouts.NEFF).read_bytes() == b"new"
    assert not (tree.root / layouts.TRASH).exists()


def test_foreign_entries_are_removed_under_the_root_lock(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.done(compiler="2.12.68.0+4480452af", unused_s=DAY)
    work = prepare_pruning(scan(str(tree.root)), PruneRules(max_bytes=0))
    seen = []

    def look(*_: object, **__: object) -> str:
        with open(tree.root / layouts.ROOT_LOCK) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                seen.append("held")
        return "looked"

    monkeypatch.setattr(removal, "changed_since", look)
    work.carry_out()
    assert seen == ["held"]


def test_a_killed_prune_leaves_only_trash_that_the_next_one_clears(tree: Tree) -> None:
    trash = tree.root / layouts.TRASH / "123-abc"
    trash.mkdir(parents=True)
    (trash / layouts.NEFF).write_bytes(b"x" * 5000)
    tree.failed()
    assert len(scan(str(tree.root)).entries) == 1
    assert main(["prune", "--failed", "-y"]) == 0
    assert not (tree.root / layouts.TRASH).exists()


def test_prunes_at_the_same_time_do_not_disturb_each_other(tree: Tree) -> None:
    for number in range(120):
        tree.failed(graph=str(number))
    command = [str(Path(sys.executable).parent / "neuron-cache"), "prune", "--failed", "-y", "--json"]
    jobs = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)
    ]
    shown = [job.communicate() for job in jobs]
    assert [(job.returncode, errors) for job, (_, errors) in zip(jobs, shown, strict=True)] == [(0, "")] * 4
    assert sum(len(json.loads(output)["removed"]) for output, _ in shown) == 120
    assert sorted(path.name for path in tree.root.iterdir()) == [layouts.ROOT_LOCK]


def test_links_in_an_entry_are_removed_and_not_followed(tree: Tree, home: Path) -> None:
    (home / "precious").mkdir()
    (home / "precious" / "data").write_text("keep")
    path = tree.failed()
    (path / "link").symlink_to(home / "precious")
    assert main(["prune", "--failed", "-y"]) == 0
    assert not path.exists()
    assert (home / "precious" / "data").read_text() == "keep"


def test_stale_locks_are_broken_and_fresh_ones_are_not(
    tree: Tree, capsys: pytest.CaptureFixture[str]
) -> None:
    fresh, stale, living = tree.entry(graph="1"), tree.entry(graph="2"), tree.entry(graph="3")
    (fresh / layouts.LOCK).touch()
    (stale / layouts.LOCK).touch()
    os.utime(stale / layouts.LOCK, (1, 1))
    (living / layouts.LOCK).write_bytes(new_lock_owner().to_bytes())
    os.utime(living / layouts.LOCK, (1, 1))
    assert main(["prune", "--locks", "4h", "--dry-run"]) == 0
    assert (stale / layouts.LOCK).exists()
    assert main(["prune", "--locks", "4h", "-y"]) == 0
    assert f"lock {stale / layouts.LOCK} of an unnamed process" in capsys.readouterr().out
    assert [(path / layouts.LOCK).exists() for path in (fresh, stale, living)] == [True, False, True]


def test_prune_wants_a_rule(tree: Tree) -> None:
    with pytest.raises(UsageError, match="no rule given"):
        prepare_pruning(scan(str(tree.root)), PruneRules())


def test_a_root_that_cannot_be_written_is_reported(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.failed(unused_s=DAY)
    work = prepare_pruning(scan(str(tree.root)), PruneRules(failed=True))

    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(NeuronToolsError, match="Read-only file system"):
        work.carry_out()


def test_without_a_terminal_prune_does_not_ask(
    tree: Tree, tool: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    path = tree.failed()
    shown = tool("neuron-cache", "prune", "--failed")
    assert (shown.returncode, path.exists()) == (2, True)
    assert (str(path) in shown.stderr, shown.stdout) == (True, "")
    assert "hint: add -y" in shown.stderr


@pytest.mark.parametrize(
    ("answer", "code", "gone"),
    [
        (b"y\n", 0, True),
        (b"n\n", 1, False),
        (b"\n", 1, False),
        (b"\xff\n", 1, False),
        (b"\x04", 1, False),
    ],
)
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_on_a_terminal_prune_asks_and_keeps_stdout_for_the_result(
    tree: Tree, form: list[str], answer: bytes, code: int, gone: bool
) -> None:
    path = tree.failed()
    control, terminal = pty.openpty()
    process = subprocess.Popen(
        [str(Path(sys.executable).parent / "neuron-cache"), "prune", "--failed", *form],
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.write(control, answer)
    out, asked = process.communicate(timeout=600)
    os.close(control)
    os.close(terminal)
    assert (process.returncode, path.exists()) == (code, not gone)
    assert str(path) in asked
    assert "Remove 1 entry, " in asked
    assert bool(out) is gone
    if gone and form:
        assert len(json.loads(out)["removed"]) == 1


_PRUNER = """
import sys
sys.path.append(sys.argv[1])
from neurontools.cache.pruning import removal
import time
removal.Directory.remove_tree = lambda *a, **k: (print("renamed", flush=True), time.sleep(600))
from neurontools.commands.cache import main
main(["prune", "--failed", "-y"])
"""


def test_a_prune_that_is_killed_in_the_middle_leaves_a_sound_cache(
    tree: Tree, open_cache: Callable[..., CompileCache]
) -> None:
    path = tree.failed()
    kept = tree.done(graph="2", unused_s=-1e9)
    checkout = str(Path(__file__).parents[2])
    process = subprocess.Popen([sys.executable, "-c", _PRUNER, checkout], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "renamed\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert [entry.path for entry in scan(str(tree.root)).entries] == [str(kept)]
    assert not path.exists()
    assert not open_cache().get_or_compile(mlp(), TRN1, "mlp").hit


def test_a_root_is_local_where_the_mounts_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = open
    monkeypatch.setattr(
        "builtins.open",
        lambda path, *a, **k: real(tmp_path / "none" if "mountinfo" in str(path) else path, *a, **k),
    )
    assert location.is_network_root("/shared/cache") is False
    assert location.is_network_root("s3://bucket/cache")


def test_network_file_systems_are_recognized_by_their_type(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "2 1 0:5 / /shared rw,relatime shared:1 - nfs4 server:/x rw\n"
        "3 2 0:6 / /shared/local rw - ext4 /dev/sdb1 rw\n"
    )
    real = open
    monkeypatch.setattr(
        "builtins.open", lambda path, *a, **k: real(mounts if "mountinfo" in str(path) else path, *a, **k)
    )
    assert location.is_network_root("/shared/cache")
    assert not location.is_network_root("/shared/local/cache")
    assert not location.is_network_root("/sharedcache")


_LOOKUPS = """
import sys
sys.path.append(sys.argv[1])
from neurontools.cache.store import CompileCache
from neurontools.machine.instances.catalogue import instance_type
from tests.compiler.graphs import mlp
device = instance_type("trn1.2xlarge").device
for turn in range(80):
    cache = CompileCache.open()
    for rows in (4, 8):
        assert cache.get_or_compile(mlp(rows), device, "mlp").neff.graph == mlp(rows)
    cache.close()
"""


def test_pruning_under_running_jobs_harms_none(home: Path) -> None:
    root = home / "compile-cache"
    checkout = str(Path(__file__).parents[2])
    jobs = [
        subprocess.Popen([sys.executable, "-c", _LOOKUPS, checkout], stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    removed = 0
    while any(job.poll() is None for job in jobs):
        outcome, _ = (
            prepare_pruning(scan(str(root)), PruneRules(max_bytes=0)).carry_out()
            if root.exists()
            else (None, ())
        )
        removed += len(outcome.removed) if outcome is not None else 0
    errors = [job.communicate()[1] for job in jobs]
    assert ([job.returncode for job in jobs], "".join(errors)) == ([0, 0], "")
    assert removed > 0
    assert not [found for found in scan(str(root)).entries if found.state is not State.DONE]


def test_planning_locks_no_entry_where_the_kernel_lists_locks(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exclusive lock, however short, would make a run that loads the entry wait."""
    free, used = tree.done(graph="11", unused_s=DAY), tree.done(graph="22", unused_s=DAY)
    monkeypatch.setattr(locks, "_held_inodes", lambda _: frozenset({used.stat().st_ino}))
    monkeypatch.setattr(locks, "is_in_use", lambda path: pytest.fail(f"{path} was locked"))
    plan = prepare_pruning(scan(str(tree.root)), PruneRules(everything=True)).plan
    assert [choice.entry.path for choice in plan.remove] == [str(free)]
    assert [(choice.entry.path, choice.reason) for choice in plan.spare] == [(str(used), "in use")]


def test_the_error_without_a_rule_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prune"]) == 2
    hint = capsys.readouterr().err.splitlines()[1]
    assert [rule.flag for rule in RULES if rule.flag not in hint] == []
    assert {rule.field for rule in RULES} <= {field.name for field in dataclasses.fields(PruneRules)}
