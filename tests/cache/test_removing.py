"""The rules beside age and size, removal by name, everything, the standing policy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from neurontools.cache import layouts
from neurontools.cache.entries import Scan, scan
from neurontools.cache.entry_files import State
from neurontools.cache.lock_owner import new_lock_owner
from neurontools.cache.locks import hold
from neurontools.cache.pruning import policy
from neurontools.cache.pruning.policy import read_policy
from neurontools.cache.pruning.rules import PruneRules, current_compilers, make_plan
from neurontools.commands.cache import main
from neurontools.compiler.options import COMPILER_VERSION
from neurontools.errors import UsageError
from neurontools.machine.instances.catalogue import instance_type
from tests.cache.conftest import DAY, NOW, Tree
from tests.cache.entries import an_entry
from tests.cache.trees import lay_out
from tests.compiler.graphs import mlp

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.cache.entries import Entry
    from neurontools.cache.store import CompileCache

TRN1 = instance_type("trn1.2xlarge").device


def number(which: int, **changes: object) -> Entry:
    return an_entry(path=f"/c/v/{which}", module=str(which), **({"used_unix_s": NOW - DAY * which} | changes))


def removed(rules: PruneRules, *found: Entry) -> list[str]:
    plan = make_plan(Scan("/c", True, found, 0), rules, NOW, lambda _: False)
    return [choice.entry.module for choice in plan.remove]


@pytest.mark.parametrize(
    ("numbers", "rules", "left"),
    [
        ((1, 2, 3), PruneRules(keep_last=2), ["3"]),
        ((1, 2, 3), PruneRules(keep_last=0), ["3", "2", "1"]),
        ((1, 40, 50), PruneRules(keep_last=2, older_than_s=30 * DAY), ["50"]),
        ((1, 40, 50), PruneRules(keep_last=1, max_bytes=0), ["50", "40"]),
    ],
)
def test_keep_last_alone_removes_the_others_and_protects_from_other_rules(
    numbers: tuple[int, ...], rules: PruneRules, left: list[str]
) -> None:
    found = [number(which, made_unix_s=NOW - 100 * DAY) for which in numbers]
    assert removed(rules, *found) == left


def test_every_rule_but_keep_last_and_grace_selects() -> None:
    quiet = {"keep_last": 1, "grace_s": 1.0}
    values = {field.name: quiet.get(field.name, field.default) for field in fields(PruneRules)}
    assert not PruneRules(**values).selects
    loud = {"max_bytes": 0, "older_than_s": 0.0, "named": frozenset({"/x"})}
    for name in values.keys() - quiet.keys():
        assert PruneRules(**(values | {name: loud.get(name, True)})).selects


def test_only_finished_entries_count_as_last_used() -> None:
    failed = number(1, state=State.FAILED)
    assert removed(PruneRules(keep_last=1), failed, number(2)) == ["1"]


def test_what_is_pinned_always_stays(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    path = tree.done(unused_s=90 * DAY)
    (path / layouts.PIN).touch()
    for arguments in (
        ["prune", "--older-than", "1d", "-y"],
        ["rm", "--all", "-y"],
        ["prune", "--max-size", "0", "-y"],
    ):
        assert main(arguments) == 0
    assert main(["rm", path.name, "-y"]) == 1
    assert path.exists()
    assert capsys.readouterr().out.count("pinned") == 4


def test_incomplete_entries_have_time_to_be_compiled() -> None:
    fresh = number(1, state=State.TODO, used_unix_s=NOW, made_unix_s=NOW)
    old = an_entry(path="/c/v/2", module="2", state=State.TODO, used_unix_s=1, made_unix_s=1)
    assert removed(PruneRules(incomplete=True), fresh, old, number(3)) == ["2"]


def test_old_compilers_are_all_but_ours_and_the_newest_real_one() -> None:
    versions = {"2.9.4.0+a1", "2.16.372.0+b2", "2.12.68.0+c3", "", COMPILER_VERSION, "2.10.0.0+5eed0000"}
    assert current_compilers(versions) == {"2.16.372.0+b2", COMPILER_VERSION}
    assert current_compilers(set()) == {COMPILER_VERSION}
    old = number(1, compiler="2.9.4.0+a1", made_unix_s=0)
    new = number(2, compiler="2.16.372.0+b2", made_unix_s=0)
    assert removed(PruneRules(old_compilers=True), old, new, number(3, compiler="", made_unix_s=0)) == ["1"]


def test_entries_of_every_generation_can_be_removed(home: Path) -> None:
    root = lay_out("generations", home / "compile-cache")
    assert main(["rm", "--all", "-y"]) == 0
    left = {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir() or path.is_symlink()}
    assert left == {
        "lock",
        "notes.txt",
        "12/info",
        "neuronxcc-2.16.372.0+4a9b2326/.bucket_meta.json",
        "neuronxcc-2.16.372.0+4a9b2326/0_REGISTRY/0.0.27/trn1/meta-llama/Llama-2-7b/0123abcd.json",
        "neuronxcc-2.16.372.0+4a9b2326/MODULE_203+e30acd3a/model.hlo_module.pb",
        "neuronxcc-2.16.372.0+4a9b2326/MODULE_203+e30acd3a/model.hlo_module.pb.lock",
        "neuronxcc-2.16.372.0+4a9b2326/MODULE_alias+e30acd3a",
        "neuronxcc-2.12.68.0+4480452af/MODULE_204+abb26765/model.hlo.pb",
        "neuronxcc-2.12.68.0+4480452af/MODULE_204+abb26765/model.hlo.pb.lock",
        "neuronxcc-2.12.68.0+4480452af/REGISTRY/INFERENCE/gpt2/4567.json",
    }
    assert not (root / "ab").exists()


def test_rm_removes_what_is_named_and_nothing_else(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third = (tree.done(graph=f"{which}00", unused_s=DAY) for which in (1, 2, 3))
    assert main(["rm", "100", str(second / layouts.NEFF), "--dry-run"]) == 0
    assert first.exists()
    assert main(["rm", "100", str(second / layouts.NEFF), "-y"]) == 0
    assert [path.exists() for path in (first, second, third)] == [False, False, True]
    assert main(["rm", "100", "-y"]) == 1
    assert "no entry '100'" in capsys.readouterr().err


def test_rm_refuses_what_is_in_use(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    path = tree.done()
    held = hold(str(path))
    assert held is not None
    assert main(["rm", str(path), "-y"]) == 1
    os.close(held)
    assert "in use" in capsys.readouterr().out
    (path / layouts.LOCK).write_bytes(new_lock_owner().to_bytes())
    assert main(["rm", str(path), "-y"]) == 1
    assert path.exists()


@pytest.mark.parametrize(
    "name", ["../compile-cache-else", "/etc/passwd", "..", ".", "/", "MODULE_", "neuronxcc-x"]
)
def test_rm_never_leaves_the_root(name: str, tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    tree.done(graph="100")
    tree.done(graph="200")
    assert main(["rm", name, "-y"]) in {1, 2}
    assert "error: " in capsys.readouterr().err
    assert len(scan(str(tree.root)).entries) == 2


def test_locks_alone_can_be_pruned(tree: Tree) -> None:
    path = tree.entry()
    (path / layouts.LOCK).touch()
    os.utime(path / layouts.LOCK, (1, 1))
    assert main(["prune", "--locks", "-y"]) == 0
    assert not (path / layouts.LOCK).exists()


def test_an_entry_that_cannot_be_removed_does_not_stop_the_others(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refused, other = tree.failed(graph="1", unused_s=DAY), tree.failed(graph="2", unused_s=DAY)
    rename = os.rename

    def refuse(source: str, target: str, **directories: int) -> None:
        if source == refused.name:
            raise PermissionError(13, "Permission denied")
        rename(source, target, **directories)

    monkeypatch.setattr(os, "rename", refuse)
    assert main(["prune", "--failed", "-y"]) == 0
    assert (refused.exists(), other.exists()) == (True, False)
    assert "cannot be removed: Permission denied" in capsys.readouterr().out


def test_the_policy_comes_from_the_settings(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old, kept = tree.done(graph="1", unused_s=40 * DAY), tree.done(graph="2", unused_s=-1e9)
    assert main(["prune", "--policy", "-y"]) == 2
    assert "no pruning policy" in capsys.readouterr().err
    monkeypatch.setenv("NEURONTOOLS_CACHE_OLDER_THAN", "30d")
    assert main(["prune", "--policy", "--failed", "-y"]) == 2
    assert "exclude each other" in capsys.readouterr().err
    assert main(["prune", "--policy", "-y"]) == 0
    assert (old.exists(), kept.exists()) == (False, True)


@pytest.mark.parametrize(
    ("key", "value"),
    [("max_size", "huge"), ("older_than", "30"), ("keep_last", "-1"), ("remove", "failed,everything")],
)
def test_an_invalid_policy_names_its_setting(key: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"NEURONTOOLS_CACHE_{key.upper()}: "):
        read_policy({f"NEURONTOOLS_CACHE_{key.upper()}": value})


def test_every_part_of_a_policy_is_read() -> None:
    read = read_policy(
        {
            "NEURONTOOLS_CACHE_MAX_SIZE": "20GB",
            "NEURONTOOLS_CACHE_OLDER_THAN": "30d",
            "NEURONTOOLS_CACHE_KEEP_LAST": "5",
            "NEURONTOOLS_CACHE_REMOVE": "failed,interrupted, incomplete ,old-compilers,locks",
        }
    )
    assert read.rules == PruneRules(
        max_bytes=20 * 10**9,
        older_than_s=30 * DAY,
        keep_last=5,
        failed=True,
        interrupted=True,
        incomplete=True,
        old_compilers=True,
    )
    assert read.break_stale_s == policy.STALE_LOCK_S


def test_a_run_prunes_at_its_end_once_an_hour(tree: Tree, open_cache: Callable[..., CompileCache]) -> None:
    variables = {"NEURONTOOLS_CACHE_AUTO_PRUNE": "1", "NEURONTOOLS_CACHE_REMOVE": "failed"}
    first = tree.failed(graph="1", unused_s=DAY)
    open_cache().close()
    assert first.exists()
    open_cache(**variables).close()
    assert not first.exists()
    second = tree.failed(graph="2", unused_s=DAY)
    open_cache(**variables).close()
    assert second.exists()


def test_a_broken_policy_does_not_break_a_run(
    open_cache: Callable[..., CompileCache], caplog: pytest.LogCaptureFixture
) -> None:
    cache = open_cache(NEURONTOOLS_CACHE_AUTO_PRUNE="1", NEURONTOOLS_CACHE_MAX_SIZE="huge")
    cache.get_or_compile(mlp(), TRN1, "mlp")
    cache.close()
    assert "NEURONTOOLS_CACHE_MAX_SIZE: invalid size" in caplog.text


_RUN = """
import sys
sys.path.append(sys.argv[1])
from neurontools.cache.store import CompileCache
from neurontools.machine.instances.catalogue import instance_type
from tests.compiler.graphs import mlp
CompileCache.open().get_or_compile(mlp(), instance_type("trn1.2xlarge").device, "mlp")
"""


def test_a_program_that_just_ends_prunes_too(tree: Tree) -> None:
    failed = tree.failed(graph="1", unused_s=DAY)
    environ = os.environ | {"NEURONTOOLS_CACHE_AUTO_PRUNE": "1", "NEURONTOOLS_CACHE_REMOVE": "failed"}
    checkout = str(Path(__file__).parents[2])
    subprocess.run([sys.executable, "-c", _RUN, checkout], env=environ, check=True)
    assert not failed.exists()
    assert len(scan(str(tree.root)).entries) == 1


def test_a_long_plan_is_cut_before_the_question(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    from neurontools.cache.pruning import prune

    for which in range(30):
        tree.failed(graph=str(which), unused_s=DAY)
    work = prune.prepare_pruning(scan(str(tree.root)), PruneRules(failed=True))
    asked = prune.format_plan(work.plan, most=prune.MOST_ASKED)
    assert "... and 10 more; --dry-run lists all" in asked
    assert main(["prune", "--failed", "--dry-run", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["removed"]) == 30
    assert prune.removal_question(work.plan, ()).startswith("Remove 30 entries, ")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["prune", "--max-size", "1XB"], "--max-size: invalid size '1XB'"),
        (["prune", "--older-than", "30"], "--older-than: duration '30' needs a unit"),
        (["prune", "--keep-last", "few"], "--keep-last: invalid number of entries 'few'"),
        (["prune", "--locks", "old"], "--locks: invalid duration"),
        (["rm", "--all", "--grace", "x"], "--grace: invalid duration"),
        (["copy", "--max-size", "x", "--from", "a.tar"], "--max-size: invalid size"),
    ],
)
def test_an_invalid_value_is_reported_with_its_option(
    tree: Tree, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err.startswith(f"error: {says}")
