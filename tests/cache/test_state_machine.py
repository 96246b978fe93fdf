"""An entry's life as a state machine: whatever happened to its files, a lookup ends in a sound entry or a failure."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from neurontools.cache import layouts
from neurontools.cache.entries import read_entry, scan
from neurontools.cache.entry_files import State
from neurontools.cache.lock_owner import new_lock_owner
from neurontools.cache.pruning.prune import prepare_pruning
from neurontools.cache.pruning.rules import PruneRules
from neurontools.cache.store import CompileCache
from neurontools.cache.verify import repair, verify_entries
from neurontools.cache.walk import walk
from neurontools.compiler.options import CompileError
from neurontools.machine.instances.catalogue import instance_type
from tests.cache.entries import entry_path
from tests.compiler.graphs import mlp

TRN1 = instance_type("trn1.2xlarge").device
NEFFS = {layouts.NEFF, layouts.DONE}


class EntryLife(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.home = tempfile.mkdtemp(prefix="nt-", dir="/tmp")
        self.cache = CompileCache.open({}, f"{self.home}/cache")
        self.entry = Path(entry_path(self.cache, mlp()))
        layouts.make_root(self.cache.root)

    def teardown(self) -> None:
        self.cache.close()
        shutil.rmtree(self.home)

    def names(self) -> set[str]:
        return set(os.listdir(self.entry)) if self.entry.exists() else set()

    def write(self, name: str, data: bytes) -> None:
        self.entry.mkdir(parents=True, exist_ok=True)
        (self.entry / name).write_bytes(data)

    @rule()
    def extraction_leaves_a_graph(self) -> None:
        self.write(layouts.GRAPH, mlp().to_bytes())

    @rule()
    def a_writer_dies_before_the_done_marker(self) -> None:
        self.write(layouts.NEFF, b"half")
        (self.entry / layouts.DONE).unlink(missing_ok=True)

    @rule()
    def a_writer_dies_while_writing(self) -> None:
        self.write(layouts.TEMPORARY_PREFIX + "1-2-3", b"half")

    @rule()
    def a_marker_is_left_alone(self) -> None:
        self.write(layouts.DONE, b"")

    @rule()
    def a_compile_failed(self) -> None:
        self.write(layouts.LOG, b"ERROR: [NCC_EVRF004] no complex numbers\n")

    @rule()
    def a_compile_was_killed(self) -> None:
        self.write(layouts.LOG, b"died with <Signals.SIGKILL: 9>\n")

    @rule()
    def a_dead_process_left_its_lock(self) -> None:
        self.write(layouts.LOCK, replace(new_lock_owner(), start_ticks=1).to_bytes())

    @precondition(lambda self: layouts.NEFF in self.names())
    @rule()
    def a_bit_of_the_neff_rots(self) -> None:
        path = self.entry / layouts.NEFF
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2])

    @precondition(lambda self: self.names())
    @rule()
    def somebody_prunes(self) -> None:
        self.cache.close()
        pruning = prepare_pruning(scan(self.cache.root), PruneRules(older_than_s=-1.0, grace_s=0))
        removal, _ = pruning.carry_out()
        assert len(removal.removed) == (0 if layouts.PIN in self.names() else 1)
        assert self.entry.exists() == (layouts.PIN in self.names())

    @precondition(lambda self: self.names())
    @rule()
    def somebody_pins_or_unpins(self) -> None:
        pin = self.entry / layouts.PIN
        pin.unlink() if pin.exists() else pin.touch()

    @rule()
    def somebody_verifies_and_fixes(self) -> None:
        self.cache.close()
        is_pinned = layouts.PIN in self.names()
        places = walk(self.cache.root).places
        repairs = repair(self.cache.root, verify_entries(self.cache.root, places)[1])
        assert all(done.done or (is_pinned and done.words == "pinned") for done in repairs)
        assert is_pinned or verify_entries(self.cache.root, walk(self.cache.root).places)[1] == ()

    @rule()
    def a_waiter_was_killed(self) -> None:
        self.write(layouts.WAITER_PREFIX + "1-x", replace(new_lock_owner(), start_ticks=1).to_bytes())

    @rule()
    def somebody_needs_it(self) -> None:
        poisoned = layouts.NEFF not in self.names() and self.log().startswith("ERROR: [")
        try:
            result = self.cache.get_or_compile(mlp(), TRN1, "mlp")
        except CompileError:
            assert poisoned
            return
        assert not poisoned
        assert result.neff.graph == mlp()
        assert self.names() >= NEFFS
        assert self.cache.get_or_compile(mlp(), TRN1, "mlp").hit

    def log(self) -> str:
        path = self.entry / layouts.LOG
        return path.read_text() if path.exists() else ""

    @invariant()
    def the_state_follows_from_the_files(self) -> None:
        names = self.names()
        found = read_entry(self.cache.root, str(self.entry))
        assert (found is None) == (not self.entry.exists())
        if found is None:
            return
        assert (found.state is State.DONE) == (names >= NEFFS)
        assert found.state is not State.LOCKED
        if found.state is State.FAILED:
            assert layouts.LOG in names
            assert layouts.NEFF not in names


TestEntryLife = EntryLife.TestCase
TestEntryLife.settings = settings(max_examples=15, stateful_step_count=12)
