"""The workers of the cache's chaos test, and what each of them checks."""

from __future__ import annotations

import logging
import os
import random
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from neurontools.cache import layouts
from neurontools.cache.copy.plan import CopyFilter
from neurontools.cache.copy.runner import plan_copy, run_copy
from neurontools.cache.entries import scan
from neurontools.cache.entry_io import look_up
from neurontools.cache.pins_and_tags import remove_pin, set_pin
from neurontools.cache.pruning.prune import prepare_pruning
from neurontools.cache.pruning.rules import PruneRules
from neurontools.cache.stats import collect_stats
from neurontools.cache.store import CompileCache
from neurontools.cache.verify import repair, verify_entries
from neurontools.cache.walk import walk
from neurontools.compiler.graph import graph_from_bytes
from neurontools.compiler.neff import NeffError
from neurontools.errors import NeuronToolsError
from neurontools.machine.instances.catalogue import instance_type
from tests.compiler.graphs import mlp

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.cache.walk import EntryRef

GRAPHS = 24
HELD_AT_ONCE = 4
OTHER_UID = 65534
TRN1 = instance_type("trn1.2xlarge").device
RULES = (
    PruneRules(everything=True, grace_s=0.0),
    PruneRules(max_bytes=40_000, grace_s=0.0),
    PruneRules(keep_last=3, grace_s=0.0),
    PruneRules(older_than_s=0.2, grace_s=0.0),
    PruneRules(failed=True, interrupted=True, incomplete=True, grace_s=0.0),
)


class CacheCorruptError(Exception):
    """Something was seen that must never be seen."""


def run(role: str, root: str, seed: int, report: Callable[[str], None]) -> None:
    """Play a role until killed; call `report` with `done` after each round and `wrong: ...` for what must not be.

    A round that the full disk or a competing process ends with an error of ours is a round like any other.
    """
    logging.disable(logging.CRITICAL)
    rng = random.Random(seed)
    step = ROLES[role](root, rng)
    while True:
        try:
            step()
        except CacheCorruptError as error:
            report(f"wrong: {role}: {error}")
        except (NeuronToolsError, OSError):
            report("refused")
        except Exception as error:
            report(f"wrong: {role}: {type(error).__name__}: {error}")
        else:
            report("done")


def _program(root: str, rng: random.Random) -> Callable[[], None]:
    """Runs as a training does: needs graphs in turn, and what it holds must stay."""
    state = {"cache": CompileCache.open({"NEURONTOOLS_CACHE_LOCK_TIMEOUT": "20s"}, root)}
    held: list[str] = []

    def step() -> None:
        if len(held) == HELD_AT_ONCE:
            state["cache"].close()
            held.clear()
            state["cache"] = CompileCache.open({"NEURONTOOLS_CACHE_LOCK_TIMEOUT": "20s"}, root)
        graph = mlp(rows=1 + rng.randrange(GRAPHS))
        result = state["cache"].get_or_compile(graph, TRN1, "net")
        if result.neff.graph != graph:
            raise CacheCorruptError("the NEFF of another graph")
        if result.entry:
            held.append(result.entry)
        for entry in held:
            if not os.path.isfile(f"{entry}/{layouts.NEFF}"):
                raise CacheCorruptError(f"{entry} disappeared while it was in use")

    return step


def _reader(root: str, _: random.Random) -> Callable[[], None]:
    """Reads every entry: an entry that is marked as finished is whole."""

    def step() -> None:
        for place in walk(root).places:
            _read(place)

    return step


def _read(place: EntryRef) -> None:
    done = Path(place.path, layouts.DONE)
    try:
        before = done.stat()
        graph = graph_from_bytes(Path(place.path, layouts.GRAPH).read_bytes())
        found = look_up(place.path, graph.digest(), validate_hash=True)
    except OSError:
        return
    except NeffError as error:
        with suppress(OSError):
            if done.stat() == before:
                raise CacheCorruptError(f"{place.path} is marked as finished: {error.message}") from error
        return
    if found is not None and found.held is not None:
        os.close(found.held)


def _pruner(root: str, rng: random.Random) -> Callable[[], None]:
    def step() -> None:
        prepare_pruning(scan(root, details=False), rng.choice(RULES), break_stale_s=3600.0).carry_out()

    return step


def _lister(root: str, _: random.Random) -> Callable[[], None]:
    def step() -> None:
        scan(root)
        collect_stats(walk(root), lambda _: False)

    return step


def _repairer(root: str, _: random.Random) -> Callable[[], None]:
    def step() -> None:
        repair(root, verify_entries(root, walk(root).places)[1])

    return step


def _pinner(root: str, rng: random.Random) -> Callable[[], None]:
    def step() -> None:
        for place in walk(root).places:
            (set_pin if rng.random() < 0.1 else remove_pin)(root, place)

    return step


def _copier(root: str, rng: random.Random) -> Callable[[], None]:
    archive = f"{root}-{os.getpid()}-{rng.random()}.tar.gz"

    def step() -> None:
        try:
            for source, target in ((root, archive), (archive, root)):
                with plan_copy(source, target, CopyFilter(lambda _: True), force=True) as plan:
                    run_copy(plan)
        finally:
            with suppress(OSError):
                os.unlink(archive)

    return step


def _other_user(root: str, rng: random.Random) -> Callable[[], None]:
    """A program of another user: the root is read-only for it."""
    # The interpreter may be in a directory that only root can enter: load all that a round imports before the change.
    with tempfile.TemporaryDirectory() as warm:
        _program(warm, rng)()
    if os.geteuid() == 0:
        os.setgid(OTHER_UID)
        os.setuid(OTHER_UID)
    return _program(root, rng)


ROLES: dict[str, Callable[[str, random.Random], Callable[[], None]]] = {
    "program": _program,
    "reader": _reader,
    "pruner": _pruner,
    "lister": _lister,
    "repairer": _repairer,
    "pinner": _pinner,
    "copier": _copier,
    "other_user": _other_user,
}
