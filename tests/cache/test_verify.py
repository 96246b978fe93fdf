"""`neuron-cache verify`: damage of every kind is found, put aside, and never run."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neurontools.cache import layouts
from neurontools.cache.entries import scan
from neurontools.cache.events import Usage
from neurontools.cache.lock_owner import new_lock_owner
from neurontools.cache.locks import hold
from neurontools.cache.pruning.removal import remove_damaged
from neurontools.cache.verify import ProblemKind, VerifyProblem, format_problems
from neurontools.commands.cache import main
from neurontools.compiler.neff_header import HEADER_BYTES, write_header
from neurontools.machine.instances.catalogue import instance_type
from tests.cache.conftest import DAY, Tree
from tests.cache.trees import lay_out
from tests.compiler.graphs import mlp

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.cache.store import CompileCache

TRN1 = instance_type("trn1.2xlarge").device


def problems(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    capsys.readouterr()
    code = main(["verify", "--json", *arguments])
    shown = json.loads(capsys.readouterr().out)
    found = [row["problem"] for row in shown["problems"]]
    assert code == int(
        not all(row["done"] for row in shown["repairs"]) if "--fix" in arguments else bool(found)
    )
    return found


def test_a_sound_cache_has_no_problems(entry: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert problems(capsys) == []
    assert main(["verify"]) == 0
    assert "1 entry checked" in capsys.readouterr().out


def test_a_cache_of_every_generation_is_judged_by_its_own_rules(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lay_out("generations", home / "compile-cache")
    assert problems(capsys) == ["header", "no done marker", "no done marker", "header"]
    assert problems(capsys, "--fix") != []
    assert problems(capsys) == []


DAMAGE = {
    "flags": lambda path: (path / layouts.FLAGS).write_text('["--target=trn2"]'),
    "flags unreadable": lambda path: (path / layouts.FLAGS).write_text("{"),
    "flags unreadable: a lone surrogate": lambda path: (path / layouts.FLAGS).write_text('["\\ud800"]'),
    "header": lambda path: (path / layouts.NEFF).write_bytes(b"x" * 2000),
    "size": lambda path: (path / layouts.NEFF).write_bytes((path / layouts.NEFF).read_bytes()[:-1]),
    "hash": lambda path: flip(path / layouts.NEFF, HEADER_BYTES + 20),
    "content": lambda path: (path / layouts.NEFF).write_bytes(
        write_header(b"no archive", name="x", build_version="y", lnc=1) + b"no archive"
    ),
    "no done marker": lambda path: (path / layouts.DONE).unlink(),
    "no neff": lambda path: (path / layouts.NEFF).unlink(),
    "empty file": lambda path: (path / layouts.GRAPH).write_bytes(b""),
}


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("kind", sorted(DAMAGE))
def test_each_kind_of_damage_is_found_and_removed(
    kind: str, entry: Path, capsys: pytest.CaptureFixture[str], open_cache: Callable[..., CompileCache]
) -> None:
    DAMAGE[kind](entry)
    assert problems(capsys) == [kind.partition(" unreadable")[0]]
    assert entry.exists()
    assert problems(capsys, "--fix") == [kind.partition(" unreadable")[0]]
    assert not entry.exists()
    assert problems(capsys) == []
    assert scan(str(entry.parents[1])).entries == ()
    assert not open_cache().get_or_compile(mlp(), TRN1, "mlp").hit


def test_checking_is_not_a_use(entry: Path) -> None:
    neff = entry / layouts.NEFF
    os.utime(neff, (1, 2))
    assert main(["verify"]) == 0
    assert neff.stat().st_atime == 1


def test_another_graph_under_the_name_is_found(
    entry: Path, open_cache: Callable[..., CompileCache], capsys: pytest.CaptureFixture[str]
) -> None:
    cache = open_cache()
    other = cache.get_or_compile(mlp(8), TRN1, "mlp").entry
    cache.close()
    (entry / layouts.NEFF).write_bytes(Path(other, layouts.NEFF).read_bytes())
    assert problems(capsys) == ["content"]


def test_a_lookup_replaces_damage(entry: Path, open_cache: Callable[..., CompileCache]) -> None:
    (entry / layouts.NEFF).write_bytes((entry / layouts.NEFF).read_bytes()[:-9])
    assert not open_cache().get_or_compile(mlp(), TRN1, "mlp").hit
    assert open_cache().get_or_compile(mlp(), TRN1, "mlp").hit


def test_a_digest_is_checked_at_load_when_asked(entry: Path, open_cache: Callable[..., CompileCache]) -> None:
    data = bytearray((entry / layouts.NEFF).read_bytes())
    # The gzip header's time and system bytes are not part of what is unpacked, only of the digest.
    data[HEADER_BYTES + 9] ^= 1
    (entry / layouts.NEFF).write_bytes(data)
    assert open_cache().get_or_compile(mlp(), TRN1, "mlp").hit
    assert not open_cache(NEURON_RT_VALIDATE_HASH="true").get_or_compile(mlp(), TRN1, "mlp").hit
    assert open_cache(NEURON_RT_VALIDATE_HASH="true").get_or_compile(mlp(), TRN1, "mlp").hit


def test_leftovers_are_found_and_removed(tree: Tree, capsys: pytest.CaptureFixture[str], entry: Path) -> None:
    old = entry / f"{layouts.TEMPORARY_PREFIX}1-2-3"
    old.write_bytes(b"half")
    os.utime(old, (1, 1))
    (entry / f"{layouts.TEMPORARY_PREFIX}fresh").write_bytes(b"now")
    dead = replace(new_lock_owner(), start_ticks=1)
    (entry / layouts.LOCK).write_bytes(dead.to_bytes())
    (entry / f"{layouts.WAITER_PREFIX}1-x").write_bytes(dead.to_bytes())
    (tree.root / layouts.TRASH / "1-abc").mkdir(parents=True)
    gone = tree.done(graph="77", unused_s=DAY)
    Usage(str(tree.root)).count_hit(str(gone))
    for path in (*gone.iterdir(), gone):
        path.unlink() if path.is_file() else path.rmdir()
    assert problems(capsys) == ["leftover"] * 5
    assert problems(capsys, "--fix") == ["leftover"] * 5
    assert problems(capsys) == []
    assert (entry / layouts.NEFF).exists()
    assert (entry / f"{layouts.TEMPORARY_PREFIX}fresh").exists()


def test_what_is_locked_is_left_out_and_what_is_in_use_stays(
    entry: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (entry / layouts.DONE).unlink()
    held = hold(str(entry))
    assert held is not None
    assert main(["verify", "--fix"]) == 1
    os.close(held)
    assert "in use: " in capsys.readouterr().out
    (entry / layouts.LOCK).write_bytes(new_lock_owner().to_bytes())
    assert problems(capsys) == []
    assert entry.exists()


def test_what_changed_since_it_was_judged_stays(entry: Path) -> None:
    root = str(entry.parents[1])
    (judged,) = scan(root).entries
    (entry / "new").touch()
    os.utime(entry, (1, 1))
    assert remove_damaged(root, judged) == "changed meanwhile"
    assert entry.exists()


def test_a_damaged_entry_that_is_pinned_stays(entry: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (entry / layouts.NEFF).write_bytes(b"x")
    (entry / layouts.PIN).touch()
    assert main(["verify", "--fix"]) == 1
    assert f"pinned: {entry}" in capsys.readouterr().out
    assert entry.exists()


def test_one_entry_can_be_checked(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    tree.entry(graph="1000", files={layouts.DONE: b""})
    tree.entry(graph="2000", files={layouts.DONE: b""})
    assert problems(capsys, "1000") == ["no neff"]
    assert len(problems(capsys)) == 2


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6), st.integers(0, 7))
def test_no_flipped_bit_is_ever_run(entry: Path, offset: int, bit: int) -> None:
    """With NEURON_RT_VALIDATE_HASH, and by `verify`, every flipped bit behind the header is found."""
    path = entry / layouts.NEFF
    sound = path.read_bytes()
    damaged = bytearray(sound)
    damaged[HEADER_BYTES + offset % (len(sound) - HEADER_BYTES)] ^= 1 << bit
    path.write_bytes(damaged)
    try:
        assert main(["verify", str(entry)]) == 1
    finally:
        path.write_bytes(sound)
    assert main(["verify", str(entry)]) == 0


def test_on_a_narrow_terminal_the_kind_of_a_problem_goes_first() -> None:
    words = "its digest does not match its content"
    found = [VerifyProblem("/c/MODULE_1", ProblemKind.UNMARKED, words, None)]
    wide = format_problems("/c", 3, found, 120).splitlines()
    narrow = format_problems("/c", 3, found, 40).splitlines()
    assert wide[0].split() == ["PROBLEM", "WHAT", "PATH"]
    assert words in wide[1]
    assert narrow[0].split() == ["WHAT", "PATH"]
    assert narrow[1].endswith("content  MODULE_1")
    assert narrow[-2:] == ["(too narrow for problem)", "3 entries checked in /c, 1 problem"]
