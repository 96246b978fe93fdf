"""Whatever an operation writes, that write fails, the disk fills up there, or the process is killed there.

After each of them: what is marked as finished is sound, what was there before is there, and the next lookup works.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from neurontools.cache import layouts
from neurontools.cache.entries import scan
from neurontools.cache.entry_files import State
from neurontools.cache.entry_io import look_up
from neurontools.cache.lock_owner import new_lock_owner
from neurontools.cache.pins_and_tags import remove_pin, set_pin, set_tag
from neurontools.cache.pruning.prune import breakable_locks, prepare_pruning
from neurontools.cache.pruning.removal import break_locks
from neurontools.cache.pruning.rules import PruneRules
from neurontools.cache.store import CompileCache
from neurontools.cache.verify import repair, verify_entries, verify_orphans
from neurontools.cache.walk import EntryRef, parse_entry_path, walk
from neurontools.compiler.graph import Graph, graph_from_bytes
from neurontools.compiler.options import CompileError
from neurontools.errors import NeuronToolsError
from neurontools.machine.instances.catalogue import instance_type
from tests.cache.copies import copy_all
from tests.cache.entries import entry_path
from tests.cache.failing_writes import How, spoiled
from tests.compiler.graphs import mlp
from tests.loaded_python import LoadedPython

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.slow

TRN1 = instance_type("trn1.2xlarge").device
KEPT = mlp(rows=2)
PINNED = mlp(rows=3)
WANTED = mlp(rows=5)
REFUSED = mlp(dtype="complex128")
MOST_CHANGES = 400
MODULE = "tests.cache.test_every_write"


@dataclass(frozen=True)
class Case:
    """An operation on a cache that holds KEPT and PINNED. `setting` prepares more, `spares` says that both stay."""

    name: str
    run: Callable[[str], object]
    setting: Callable[[str], object] = lambda _: None
    spares: bool = True


def opened(root: str, **variables: str) -> CompileCache:
    return CompileCache.open(variables, root)


def needed(root: str, graph: Graph, **variables: str) -> None:
    cache = opened(root, **variables)
    try:
        assert cache.get_or_compile(graph, TRN1, "net").neff.graph == graph
    finally:
        cache.close()


def refused(root: str) -> None:
    with pytest.raises(CompileError):
        needed(root, REFUSED)


def entry_of(root: str, graph: Graph) -> Path:
    return Path(entry_path(opened(root), graph))


def the_place(root: str, graph: Graph) -> EntryRef:
    place = parse_entry_path(root, str(entry_of(root, graph)))
    assert place is not None
    return place


def extract(root: str) -> None:
    opened(root, NEURON_EXTRACT_GRAPHS_ONLY="1").extract(WANTED, TRN1)


def dies_while_compiling(root: str) -> None:
    entry = entry_of(root, WANTED)
    entry.mkdir()
    (entry / layouts.GRAPH).write_bytes(WANTED.to_bytes())
    (entry / layouts.LOCK).write_bytes(replace(new_lock_owner(), start_ticks=1).to_bytes())


def rots(root: str) -> None:
    needed(root, WANTED)
    neff = entry_of(root, WANTED) / layouts.NEFF
    neff.write_bytes(neff.read_bytes()[:-1])


def prune(root: str) -> None:
    prepare_pruning(scan(root, details=False), PruneRules(everything=True, grace_s=0.0)).carry_out()


def fix(root: str) -> None:
    repair(root, verify_entries(root, walk(root).places)[1])


def break_stale(root: str) -> None:
    break_locks(root, breakable_locks(scan(root), 0.0), 0.0)


def export(root: str) -> None:
    copy_all(root, f"{root}.tar.gz")


def packed(root: str) -> None:
    other = root + "-other"
    needed(other, WANTED)
    copy_all(other, f"{root}.tar.gz")


def unpack(root: str) -> None:
    copy_all(f"{root}.tar.gz", root)


CASES = (
    Case("compile", lambda root: needed(root, WANTED)),
    Case("hit", lambda root: needed(root, KEPT)),
    Case("first of all", lambda root: needed(root + "/new", WANTED)),
    Case("remember a refusal", refused),
    Case("extract", extract),
    Case("take over from the dead", lambda root: needed(root, WANTED), dies_while_compiling),
    Case("compile what rots", lambda root: needed(root, WANTED), rots),
    Case("retry a refusal", lambda root: needed(root, WANTED, NEURON_CC_FLAGS="--retry_failed_compilation")),
    Case("prune", prune, spares=False),
    Case("verify and fix", fix, rots),
    Case("break locks", break_stale, dies_while_compiling),
    Case("pin", lambda root: set_pin(root, the_place(root, KEPT))),
    Case("unpin", lambda root: remove_pin(root, the_place(root, PINNED))),
    Case("tag", lambda root: set_tag(root, the_place(root, KEPT), "best")),
    Case("export", export),
    Case("import", unpack, packed),
)


def contents(entry: Path) -> dict[str, str]:
    files = (layouts.GRAPH, layouts.FLAGS, layouts.NEFF, layouts.DONE)
    return {name: hashlib.sha256((entry / name).read_bytes()).hexdigest() for name in files}


def check_sound(root: str, rotten: str = "") -> None:
    """Check that each entry that claims to be finished is whole; `rotten` is one that was not from the start."""
    for entry in scan(root).entries:
        if entry.state is not State.DONE or entry.path == rotten:
            continue
        graph = graph_from_bytes(Path(entry.path, layouts.GRAPH).read_bytes())
        found = look_up(entry.path, graph.digest(), validate_hash=True)
        assert found is not None
        assert found.held is not None
        os.close(found.held)


def run_until_killed(name: str, root: str, at: int) -> None:
    """Run a case and end this process before one of its changes: with exit code 137, else with 0."""
    os.fsync = lambda _: None
    try:
        with spoiled(How.KILLED, at):
            next(case for case in CASES if case.name == name).run(root)
    finally:
        os._exit(0)


@pytest.fixture(scope="module")
def small_process() -> Iterator[LoadedPython]:
    """A process that has loaded this module alone: a copy of it takes less time than one of the test run."""
    process = LoadedPython(f"import {MODULE}")
    yield process
    process.close()


def attempt(case: Case, root: str, how: How, at: int, small_process: LoadedPython) -> bool:
    """Run a case with one change spoiled; return whether it got that far."""
    if how is How.KILLED:
        call = f"import {MODULE}; {MODULE}.run_until_killed({case.name!r}, {root!r}, {at})"
        return small_process.run(["-c", call], Path(root).parent).returncode == 137
    with spoiled(how, at) as changes:
        try:
            case.run(root)
        except (NeuronToolsError, OSError):
            if not changes.spoiled:
                raise
    return changes.spoiled


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with two finished entries, one of them pinned."""
    root = tmp_path_factory.mktemp("cache") / "root"
    needed(str(root), KEPT)
    needed(str(root), PINNED)
    set_pin(str(root), the_place(str(root), PINNED))
    return root


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.mark.usefixtures("quick_disk")
@pytest.mark.parametrize("how", [How.EIO_ONCE, How.FULL_FROM_THERE, How.KILLED], ids=lambda how: how.value)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_write_may_go_wrong(
    case: Case, how: How, template: Path, home: Path, small_process: LoadedPython
) -> None:
    root = f"{home}/cache"
    kept, pinned = entry_of(root, KEPT), entry_of(root, PINNED)
    for at in range(MOST_CHANGES):
        shutil.copytree(template, root)
        case.setting(root)
        before = contents(kept), contents(pinned)
        got_there = attempt(case, root, how, at, small_process)
        check_sound(root, str(entry_of(root, WANTED)) if case.setting is rots else "")
        assert contents(pinned) == before[1]
        if case.spares:
            assert contents(kept) == before[0]
        for graph in (WANTED, KEPT, PINNED):
            needed(root, graph, NEURONTOOLS_CACHE_LOCK_TIMEOUT="5s")
        check_sound(root)
        assert State.LOCKED not in {entry.state for entry in scan(root).entries}
        for path in home.glob("cache*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if not got_there:
            break
    else:
        pytest.fail(f"more than {MOST_CHANGES} changes")
    assert at > 0


@pytest.mark.usefixtures("quick_disk")
@pytest.mark.parametrize("run", [lambda root: needed(root, WANTED), extract], ids=["compile", "extract"])
def test_an_interrupt_at_any_write_leaves_nothing_half_done(
    run: Callable[[str], object], template: Path, home: Path
) -> None:
    root = f"{home}/cache"
    for at in range(MOST_CHANGES):
        shutil.copytree(template, root)
        with spoiled(How.INTERRUPTED, at) as changes:
            try:
                run(root)
            except KeyboardInterrupt:
                assert changes.spoiled
        assert (*verify_entries(root, walk(root).places)[1], *verify_orphans(root)) == ()
        assert {entry.state for entry in scan(root).entries} <= {State.DONE, State.TODO}
        shutil.rmtree(root)
        if not changes.spoiled:
            break
    assert at > 5
