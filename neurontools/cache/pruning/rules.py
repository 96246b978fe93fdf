"""Which entries are removed and why: a pure plan from a scan, rules and the time. `removal.py` carries it out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.base.packages import installed_version
from neurontools.base.units import format_age, format_size
from neurontools.cache.entry_files import State
from neurontools.cache.lock_owner import Liveness
from neurontools.compiler.options import COMMIT_PREFIX, COMPILER_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from neurontools.cache.entries import Entry, Scan


FOREIGN_GRACE_S = 600.0
NETWORK_GRACE_S = 86400.0
_FAILED_STATES = frozenset({State.FAILED, State.INTERRUPTED})
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class PruneRules:
    """What to remove; rules that are None, False or empty are not set.

    Args:
        max_bytes: remove failed and interrupted compiles, then the least recently used entries, until the rest fits.
        older_than_s: remove entries not used for this long.
        failed: remove cached failures.
        interrupted: remove leftovers of killed compiles.
        incomplete: remove graphs that were never compiled, and empty entries.
        old_compilers: remove entries of old compilers.
        keep_last: keep this number of finished entries, the most recently used; without another rule, remove all others.
        everything: remove all.
        named: remove the entries with these paths.
        grace_s: spare entries used less than this ago. None: no grace for ours where flock shows what is in use,
            10 minutes for entries of other tools and for graphs that wait to be compiled, 24 h on a network file system.
    """

    max_bytes: int | None = None
    older_than_s: float | None = None
    failed: bool = False
    interrupted: bool = False
    incomplete: bool = False
    old_compilers: bool = False
    keep_last: int | None = None
    everything: bool = False
    named: frozenset[str] = frozenset()
    grace_s: float | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no rule selects anything."""
        return self.keep_last is None and not self.selects

    @property
    def selects(self) -> bool:
        """Whether a rule other than `keep_last` selects something."""
        limits = self.max_bytes is not None or self.older_than_s is not None
        states = self.failed or self.interrupted or self.incomplete or self.old_compilers
        return limits or states or self.everything or bool(self.named)


@dataclass(frozen=True, slots=True)
class PruneDecision:
    """An entry and the reason to remove it, or to keep it although a rule selects it."""

    entry: Entry
    reason: str


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """The entries to remove and those spared, in the order of removal."""

    root: str
    remove: tuple[PruneDecision, ...]
    spare: tuple[PruneDecision, ...]
    total_bytes: int

    @property
    def freed_bytes(self) -> int:
        """Total size of the entries to remove."""
        return sum(choice.entry.size_bytes for choice in self.remove)


def make_plan(
    scan: Scan, rules: PruneRules, now: float, in_use: Callable[[str], bool], *, network: bool = False
) -> PrunePlan:
    """Return the plan of what the rules remove.

    Args:
        scan: the root's content.
        rules: what to remove.
        now: Unix seconds.
        in_use: returns whether an entry (by path) is loaded by a process.
        network: the root is on a network file system, where flock shows nothing.
    """
    kept = _last_used(scan, rules.keep_last)
    current = current_compilers({entry.compiler for entry in scan.entries}) if rules.old_compilers else None
    selected = {
        entry.path: PruneDecision(entry, reason)
        for entry in sorted(scan.entries, key=_longest_unused_first)
        if (reason := reason_to_remove(entry, rules, now, current))
    }
    guarded: dict[str, PruneDecision] = {}

    def spare(entry: Entry) -> bool:
        reason = reason_to_spare(entry, rules, now, network=network)
        if not reason and entry.path in kept:
            reason = f"among the {rules.keep_last} most recently used"
        if not reason and in_use(entry.path):
            reason = "in use"
        if reason:
            guarded[entry.path] = PruneDecision(entry, reason)
        return bool(reason)

    remove = [choice for choice in selected.values() if not spare(choice.entry)]
    total = sum(entry.size_bytes for entry in scan.entries)
    if rules.max_bytes is not None:
        rest = total - sum(choice.entry.size_bytes for choice in remove)
        limit = f"over the limit of {format_size(rules.max_bytes)}"
        for entry in sorted(scan.entries, key=_failed_first):
            if rest <= rules.max_bytes:
                break
            if entry.path not in selected and not spare(entry):
                why = entry.state.value if entry.state in _FAILED_STATES else _unused_text(entry, now)
                remove.append(PruneDecision(entry, f"{limit}, {why}"))
                rest -= entry.size_bytes
    return PrunePlan(scan.root, tuple(remove), tuple(guarded.values()), total)


def reason_to_remove(
    entry: Entry, rules: PruneRules, now: float, current: frozenset[str] | None = None
) -> str:
    """Return which rule, other than the size limit, selects an entry; "" for none.

    Args:
        entry: the entry.
        rules: what to remove.
        now: Unix seconds.
        current: the compiler versions in use; None to ignore the compiler.
    """
    if entry.path in rules.named:
        return "named"
    if rules.everything:
        return "all entries"
    if rules.failed and entry.state is State.FAILED:
        return "failed"
    if rules.interrupted and entry.state is State.INTERRUPTED:
        return "interrupted"
    if rules.incomplete and entry.state is State.TODO:
        return "never compiled"
    if current is not None and entry.compiler and entry.compiler not in current:
        return f"old compiler {entry.compiler}"
    if rules.older_than_s is not None and now - entry.used_unix_s > rules.older_than_s:
        return _unused_text(entry, now)
    if rules.keep_last is not None and not rules.selects:
        return f"not among the {rules.keep_last} most recently used"
    return ""


def _last_used(scan: Scan, number: int | None) -> frozenset[str]:
    if not number:
        return frozenset()
    done = [entry for entry in scan.entries if entry.state is State.DONE]
    done.sort(key=_longest_unused_first)
    return frozenset(entry.path for entry in done[-number:])


def reason_to_spare(entry: Entry, rules: PruneRules, now: float, *, network: bool) -> str:
    """Return why an entry is kept whatever the rules select: a pin, a lock, recent use; "" for none."""
    if entry.pinned:
        return "pinned"
    if entry.lock is not None and entry.lock.liveness is not Liveness.DEAD:
        return f"locked by {entry.lock.holder}"
    grace_s = rules.grace_s
    if grace_s is None:
        grace_s = NETWORK_GRACE_S if network else 0.0 if _needs_no_grace(entry) else FOREIGN_GRACE_S
    unused_s = now - max(entry.used_unix_s, entry.made_unix_s)
    if unused_s < grace_s:
        return f"used {format_age(unused_s)} ago, grace period {format_age(grace_s)}"
    return ""


def _needs_no_grace(entry: Entry) -> bool:
    # An extracted graph is about to be compiled.
    return entry.ours and entry.state is not State.TODO


def _longest_unused_first(entry: Entry) -> tuple[float, str]:
    return entry.used_unix_s, entry.path


def _failed_first(entry: Entry) -> tuple[bool, float, str]:
    return entry.state not in _FAILED_STATES, *_longest_unused_first(entry)


def _unused_text(entry: Entry, now: float) -> str:
    return f"unused for {format_age(now - entry.used_unix_s)}"


def current_compilers(versions: Iterable[str]) -> frozenset[str]:
    """Return the compiler versions of a cache that are current.

    These are ours and the installed real compiler, or the newest one if none is installed.
    """
    known = {version for version in versions if version}
    foreign = {version for version in known if not version.rpartition("+")[2].startswith(COMMIT_PREFIX)}
    installed = installed_version("neuronx-cc")
    current = {version for version in foreign if installed and version.startswith(installed)}
    newest = max(foreign, key=_version_key, default="")
    return frozenset({COMPILER_VERSION, *(current or ({newest} if newest else ()))})


def _version_key(version: str) -> tuple[tuple[int, ...], str]:
    return tuple(int(number) for number in _NUMBER.findall(version.partition("+")[0])), version
