"""A root as ten years of tools might have left it, written by hand after the reference, read and listed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from neurontools.cache import layouts
from neurontools.cache.entries import NotACacheError, detail_files, read_entry, scan
from neurontools.cache.entry_files import State, first_error_line, is_killed_compile
from neurontools.cache.flags import FlagsRule, flags_rule
from neurontools.cache.layouts import CacheLayout
from neurontools.cache.walk import EntryRef
from neurontools.commands.cache import main
from tests.cache.conftest import DAY, NOW, Tree
from tests.cache.golden_files import compare
from tests.cache.trees import lay_out


@pytest.fixture
def old(home: Path) -> Path:
    return lay_out("generations", home / "compile-cache")


def test_every_generation_is_read_with_its_state(old: Path) -> None:
    found = {entry.module.partition("+")[0]: (entry.layout, entry.state) for entry in scan(str(old)).entries}
    current = CacheLayout.CURRENT
    assert found == {
        "MODULE_9219523464496887986": (current, State.DONE),
        "MODULE_0a1b2c3d4e5f60718293": (current, State.DONE),
        "MODULE_8068656800389078395": (current, State.DONE),
        "MODULE_111": (current, State.TODO),
        "MODULE_201": (current, State.FAILED),
        "MODULE_202": (current, State.INTERRUPTED),
        "MODULE_203": (current, State.LOCKED),
        "MODULE_204": (current, State.LOCKED),
        "MODULE_205": (current, State.TODO),
        "MODULE_206": (current, State.TODO),
        "MODULE_207": (current, State.INTERRUPTED),
        "MODULE_6037029842375": (CacheLayout.OLDEST, State.DONE),
        "MODULE_77": (CacheLayout.OLDEST, State.TODO),
        "abcd9f3e1122": (CacheLayout.TORCHNEURON, State.DONE),
        "abce000000aa": (CacheLayout.TORCHNEURON, State.INTERRUPTED),
        "00112233445566778899aabbccddeeff": (CacheLayout.VLLM, State.DONE),
        "ffeeddccbbaa99887766554433221100": (CacheLayout.VLLM, State.INTERRUPTED),
    }


def test_what_is_unknown_is_counted_and_records_are_distinguished(old: Path) -> None:
    found = scan(str(old))
    assert found.skipped == 4
    assert [(record.kind, record.optimum, record.arch, record.model) for record in found.registry] == [
        ("REGISTRY/INFERENCE", "", "", "gpt2"),
        ("0_REGISTRY", "0.0.27", "trn1", "meta-llama/Llama-2-7b"),
    ]


def test_both_rules_of_the_flags_hash_are_known(old: Path) -> None:
    rules = {
        entry.module.partition("+")[2]: flags_rule(entry.module, entry.flags)
        for entry in scan(str(old)).entries
        if entry.flags
    }
    assert rules == {"e30acd3a": FlagsRule.NEW, "3cc9a3cb": FlagsRule.NEW, "abb26765": FlagsRule.OLD}
    assert flags_rule("MODULE_1+d41d8cd9", ()) is FlagsRule.OLD
    assert flags_rule("MODULE_1+d7517139", ()) is FlagsRule.NEW
    assert flags_rule("MODULE_1+00000000", ()) is FlagsRule.NONE


def test_each_entry_is_found_again_by_its_path(old: Path) -> None:
    for entry in scan(str(old)).entries:
        again = read_entry(str(old), entry.path)
        assert again is not None
        assert replace(again, lock=None) == replace(entry, lock=None)
    assert read_entry(str(old), str(old / "notes.txt")) is None
    assert read_entry(str(old), str(old / "lock")) is None


@pytest.mark.usefixtures("frozen", "old")
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        (
            "generations_ls",
            ["ls", "--columns", "state,layout,size,used,compiler,name,path", "--sort", "path"],
        ),
        ("generations_stats", ["stats"]),
        ("generations_registry", ["ls", "--registry"]),
        ("generations_show", ["show", "9219", "MODULE_201", "6037", "abcd9", "0011"]),
    ],
)
def test_golden_texts_of_all_generations(
    name: str,
    arguments: list[str],
    home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    assert main(arguments) == 0
    compare(name, capsys.readouterr().out.replace(str(home), "HOME"))


def test_the_files_that_hold_the_details_of_entries_are_known_in_advance() -> None:
    places = [EntryRef(f"/c/{layout}", layout, "", "") for layout in CacheLayout]
    assert [path for path, _ in detail_files(places)] == [
        "/c/current/compile_flags.json",
        "/c/current/model.neff",
        "/c/torchneuron",
    ]


def test_a_root_of_one_foreign_layout_is_a_cache_and_a_likeness_is_not(home: Path) -> None:
    sharded = home / "neff_cache"
    (sharded / "0a" / "1b").mkdir(parents=True)
    (sharded / "0a" / "1b" / "0a1b.neff").write_bytes(b"x")
    assert [entry.layout for entry in scan(str(sharded)).entries] == [CacheLayout.TORCHNEURON]
    objects = home / "objects"
    (objects / "0a" / "1b").mkdir(parents=True)
    (objects / "0a" / "1b" / "0a1b").touch()
    (objects / ("e" * 32)).mkdir()
    with pytest.raises(NotACacheError, match="it contains other files"):
        scan(str(objects))


def test_a_copy_of_a_cache_of_2022_under_another_name_is_not_part_of_a_cache(old: Path) -> None:
    before = scan(str(old))
    folder = next(path for path in old.rglob("*") if layouts.is_oldest_compiler_dir(path.name)).parent
    shutil.copytree(folder, old / "backup")
    after = scan(str(old))
    assert [entry.path for entry in after.entries] == [entry.path for entry in before.entries]
    assert after.skipped > before.skipped


def test_a_path_that_is_not_a_cache_says_what_it_found(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "photos").mkdir()
    for name in ("a.jpg", "b.jpg", "c.jpg", "d\x1b.jpg"):
        (home / "photos" / name).touch()
    assert main(["ls", "--cache-dir", str(home / "photos")]) == 1
    assert "('a.jpg', 'b.jpg', 'c.jpg' and 1 more)" in capsys.readouterr().err


def test_links_are_never_followed(home: Path) -> None:
    root, outside = home / "c", home / "outside"
    outside.mkdir()
    (outside / layouts.NEFF).write_bytes(b"x")
    (root / "neuronxcc-1+a").mkdir(parents=True)
    (root / "neuronxcc-1+a" / "MODULE_1+00000000").symlink_to(outside)
    (root / "neuronxcc-2+b").symlink_to(outside)
    (root / "ab").symlink_to(outside)
    assert (scan(str(root)).entries, scan(str(root)).skipped) == ((), 3)


@pytest.mark.parametrize(
    ("log", "ended"),
    [
        ("died with <Signals.SIGKILL: 9>", True),
        ("KeyboardInterrupt", True),
        ("returned non-zero exit status 137.", True),
        ("returned non-zero exit status 70.", False),
        ("[NCC_EOOM001] out of memory\nKilled", False),
        ("", False),
    ],
)
def test_a_kill_is_distinguished_from_a_refusal(log: str, ended: bool) -> None:
    assert is_killed_compile(log) is ended


def test_a_kill_at_the_end_of_a_long_log_is_seen(tree: Tree) -> None:
    tree.failed("compiling ...\n" * 10_000 + "died with <Signals.SIGTERM: 15>\n")
    assert [entry.state for entry in scan(str(tree.root)).entries] == [State.INTERRUPTED]


def test_the_line_that_says_what_failed_comes_first() -> None:
    assert first_error_line("one\nsome Error here\nERROR: [NCC_EVRF004] no\n") == "[NCC_EVRF004] no"
    assert first_error_line("one\nValueError: bad\n") == "ValueError: bad"
    assert first_error_line("\n only this\n") == "only this"
    assert first_error_line("") == ""


def test_times_are_those_of_the_files(old: Path) -> None:
    entry = next(entry for entry in scan(str(old)).entries if entry.module == "MODULE_77")
    assert entry.made_unix_s == NOW - 1300 * DAY


# The interpreter may lie in a directory that only root can enter, so everything is imported before the change of user.
_NOBODY = """
import os, sys, sqlite3
from neurontools.commands.cache import main
looks = (["ls"], ["ls", "--limit", "2"], ["stats"], ["show", "9219"], ["locks"], ["ls", "--registry"])
for arguments in (*looks, ["verify"]):
    main(arguments)
os.setgroups([])
os.setuid(65534)
os.environ.update(XDG_STATE_HOME="/nonexistent", XDG_CACHE_HOME="/nonexistent")
del os.environ["NEURONTOOLS_RUNTIME_DIR"]
print([main(arguments) for arguments in looks], main(["verify"]), main(["rm", "--all", "-y", "--grace", "0"]), file=sys.stderr)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs another user")
def test_another_user_may_look_and_is_refused_to_change(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="nt-", dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        root = lay_out("generations", Path(folder, "cache"))
        monkeypatch.setenv("NEURON_COMPILE_CACHE_URL", str(root))
        before = sorted(root.rglob("*"))
        shown = subprocess.run(
            [sys.executable, "-c", _NOBODY], capture_output=True, text=True, check=True, cwd=folder
        )
        assert "[0, 0, 0, 0, 0, 0] 1 1" in shown.stderr
        assert f"cannot remove from the compile cache {root}: Permission denied" in shown.stderr
        assert sorted(root.rglob("*")) == before
