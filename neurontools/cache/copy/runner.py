"""`neuron-cache copy` as a library: copies the entries that one place has and another lacks, entry by entry.

Readers of the target see each entry whole or not at all, even if the copy is killed; the next run copies the rest. An
archive is written whole or not at all, and all of its entries are verified before the first one is copied from it.
"""

from __future__ import annotations

import os
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from neurontools.base.files import READ_SAFELY, remove_quietly
from neurontools.base.locks import flock
from neurontools.base.text import plural, printable, table
from neurontools.base.units import format_size, format_size_both
from neurontools.cache import layouts
from neurontools.cache.copy.archive import (
    LIMIT_BYTES,
    CopyError,
    add_end,
    compress,
    is_archive,
    open_archive,
    unpack,
)
from neurontools.cache.copy.endpoints import (
    ArchiveTarget,
    BucketSource,
    BucketTarget,
    CopySource,
    CopyTarget,
    DirectorySource,
    DirectoryTarget,
    NotCopiedError,
    StagedSource,
    staging_directory,
)
from neurontools.cache.copy.plan import LeftOut, make_plan, relative_path
from neurontools.cache.entries import Scan, scan
from neurontools.cache.location import is_remote
from neurontools.cache.pruning.prune import prepare_pruning
from neurontools.cache.pruning.rules import PruneRules
from neurontools.cache.remote.bucket import RemoteError
from neurontools.cache.walk import missing_cache, walk
from neurontools.errors import NeuronToolsError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from neurontools.cache.copy.plan import CopyFilter, CopyPlan
    from neurontools.cache.entries import Entry
    from neurontools.cache.pruning.prune import Pruning
    from neurontools.cache.pruning.removal import Removal
    from neurontools.cache.pruning.rules import PrunePlan

    Progress = Callable[[int, int], None]

MOST_JOBS = 64
_TEMPORARY = ".writing-"


class CopyOutcome(StrEnum):
    """Outcome of the copy of an entry; PRESENT: another process has copied it meanwhile."""

    COPIED = "copied"
    PRESENT = "present"
    LEFT_OUT = "left out"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CopiedEntry:
    """An entry, the outcome of its copy, and the reason if it was left out or failed."""

    entry: Entry
    outcome: CopyOutcome
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CopyResult:
    """The outcome of a copy. `stopped` is the error that ended it early."""

    copied: tuple[CopiedEntry, ...]
    stopped: NeuronToolsError | None

    def select(self, outcome: CopyOutcome) -> tuple[CopiedEntry, ...]:
        """Return the entries with one outcome."""
        return tuple(item for item in self.copied if item.outcome is outcome)

    @property
    def is_complete(self) -> bool:
        """Whether nothing failed."""
        return self.stopped is None and not self.select(CopyOutcome.FAILED)


@contextmanager
def plan_copy(
    source: str,
    target: str,
    selection: CopyFilter,
    *,
    details: bool = False,
    force: bool = False,
    limit_bytes: int = LIMIT_BYTES,
    on_listed: Callable[[int], None] | None = None,
    on_unpacked: Progress | None = None,
) -> Iterator[CopyPlan]:
    """Yield the plan of a copy. Nothing is touched, but an archive as source is unpacked while the context lasts.

    Args:
        source: an existing root or archive.
        target: a root, which need not exist (its bucket must), or an archive.
        selection: the entries to copy.
        details: the selection needs flags or names.
        force: an existing archive may be replaced.
        limit_bytes: the maximum total size of the files of an archive.
        on_listed: called with the number of objects of a bucket that were listed.
        on_unpacked: called with the number of bytes of an archive that were read and of all.

    Raises:
        UsageError: both roots are the same, or one is in the other.
        NotACacheError: one is not a cache, or the source does not exist.
        CopyError: the archive to read is invalid, or that to write exists.
        RemoteError: a bucket cannot be listed.
    """
    if not is_archive(source) and not is_archive(target) and _overlap(source, target):
        raise UsageError(
            f"{source} and {target} are the same cache, or one contains the other", "name two separate caches"
        )
    selection = replace(selection, archive=is_archive(target))
    with ExitStack() as stack:
        existing = Scan(target, exists=False, entries=(), skipped=0)
        if is_archive(target):
            if os.path.lexists(target) and not force:
                raise CopyError(f"cannot write {target}: the file exists", "use another name, or add --force")
        else:
            existing = scan(target, details=details, on_listed=on_listed)
        if not is_archive(source):
            content = scan(source, details=details, on_listed=on_listed)
            if not content.exists:
                raise missing_cache(source)
            yield make_plan(content, existing, selection)
            return
        file = stack.enter_context(open_archive(source))
        staging = _stage(target, stack)
        root = f"{staging}/archive"
        with _write_errors(target):
            unpack(source, file, root, limit_bytes, on_unpacked)
        plan = make_plan(scan(root, details=details), existing, selection)
        left_out = (LeftOut(item.path.removeprefix(f"{root}/"), item.reason) for item in plan.left_out)
        yield replace(plan, source=source, left_out=tuple(left_out), staging=staging)


def run_copy(plan: CopyPlan, *, jobs: int = 8, progress: Progress | None = None) -> CopyResult:
    """Copy the entries of a plan.

    Args:
        plan: from `plan_copy`.
        jobs: number of entries to copy at once.
        progress: called with the number of finished entries and of all.

    Raises:
        UsageError: jobs is below 1 or above 64.
        NeuronToolsError: the target cannot be written, or an archive would be empty.
    """
    if not 1 <= jobs <= MOST_JOBS:
        raise UsageError(f"{jobs} jobs are out of range", f"use 1 to {MOST_JOBS}")
    if is_archive(plan.target):
        with _write_errors(plan.target):
            return _write_archive(plan, progress)
    if not plan.copy:
        return CopyResult((), None)
    with ExitStack() as stack:
        if is_remote(plan.target):
            target: CopyTarget = BucketTarget(plan.target)
        else:
            target = DirectoryTarget(plan.target, plan.staging or _stage(plan.target, stack))
        return _CopyRunner(plan, target).run(jobs, progress)


def _stage(target: str, stack: ExitStack) -> str:
    """Return a directory that only this process uses, in the target if that is a directory."""
    if is_remote(target):
        return stack.enter_context(TemporaryDirectory(prefix="neuron-cache-"))
    with _write_errors(target):
        walk(target)
        layouts.make_root(target)
        return stack.enter_context(staging_directory(target))


@contextmanager
def _write_errors(target: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NeuronToolsError(
            f"cannot write to {target}: {error.strerror or error}",
            "free space there, or run this as its owner, on a host where it is writable",
        ) from error


def _write_archive(plan: CopyPlan, progress: Progress | None) -> CopyResult:
    path = plan.target
    temporary = f"{path}{_TEMPORARY}{os.getpid()}"
    try:
        _remove_abandoned(path)
        with open(temporary, "xb") as file:
            flock(file.fileno())
            with (
                compress(file, path) as stream,
                tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as tar,
            ):
                target = ArchiveTarget(tar)
                result = _CopyRunner(plan, target).run(1, progress)
                failed = result.select(CopyOutcome.FAILED)
                if result.stopped is not None:
                    raise result.stopped
                if failed:
                    raise CopyError(
                        f"cannot copy {failed[0].entry.path}: {failed[0].reason}", "check who owns it"
                    )
                if not target.count:
                    raise _nothing_copied(left_out_rows(plan, result))
                add_end(tar, target.count)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        remove_quietly(temporary)
    return result


def _remove_abandoned(path: str) -> None:
    """Remove partial files of killed copies to the same archive: their locks are free."""
    directory, name = os.path.split(path)
    for left in os.listdir(directory):
        if left.startswith(name + _TEMPORARY):
            abandoned = os.path.join(directory, left)
            with suppress(OSError), os.fdopen(os.open(abandoned, READ_SAFELY), "rb") as file:
                if flock(file.fileno(), wait=False):
                    os.unlink(abandoned)


def _nothing_copied(left_out: list[tuple[str, str]]) -> CopyError:
    if not left_out:
        return CopyError("nothing to copy: the cache has no such entry")
    path, reason = left_out[0]
    return CopyError(f"nothing to copy: no selected entry is finished and valid ({path}: {reason})")


def prepare_deletion(plan: CopyPlan, grace_s: float | None = None) -> Pruning | None:
    """Return the removal of the target's extra entries, by the rules of every removal; None if there are none.

    Raises:
        UsageError: no entry of the source is selected, so that everything would be removed.
    """
    if not plan.copy and not plan.present and not plan.left_out:
        raise UsageError(
            f"no entry of {plan.source} is selected: --delete would remove all of {plan.target}",
            "'neuron-cache rm --all' removes everything",
        )
    if not plan.extra:
        return None
    rules = PruneRules(named=frozenset(entry.path for entry in plan.extra), grace_s=grace_s)
    return prepare_pruning(Scan(plan.target, exists=True, entries=plan.extra, skipped=0), rules)


class _CopyRunner:
    """Copies entries side by side; stops at the first error that every entry would meet."""

    def __init__(self, plan: CopyPlan, target: CopyTarget) -> None:
        self._plan = plan
        self._source: CopySource = (
            StagedSource(plan.root)
            if plan.staging
            else BucketSource(plan.root)
            if is_remote(plan.root)
            else DirectorySource(plan.root)
        )
        self._target = target
        self._stop = threading.Event()
        self._stopped: NeuronToolsError | None = None

    def run(self, jobs: int, progress: Progress | None) -> CopyResult:
        copied: list[CopiedEntry] = []
        pool = ThreadPoolExecutor(jobs, thread_name_prefix="neuron-cache-copy")
        try:
            for item in pool.map(self._copy, self._plan.copy):
                if item is not None:
                    copied.append(item)
                if progress is not None:
                    progress(len(copied), len(self._plan.copy))
        finally:
            self._stop.set()
            pool.shutdown(cancel_futures=True)
        return CopyResult(tuple(copied), self._stopped)

    def _copy(self, entry: Entry) -> CopiedEntry | None:
        if self._stop.is_set():
            return None
        try:
            is_new = self._target.put(entry, self._source)
        except NotCopiedError as error:
            return CopiedEntry(entry, CopyOutcome.LEFT_OUT, str(error))
        except RemoteError as error:
            if not error.concerns_all:
                return CopiedEntry(entry, CopyOutcome.FAILED, error.message)
            self._abort(error)
            return None
        except OSError as error:
            words = error.strerror or str(error)
            if str(error.filename).startswith(self._plan.root + "/"):
                return CopiedEntry(entry, CopyOutcome.FAILED, f"cannot be read: {words}")
            self._abort(NeuronToolsError(f"cannot write to {self._plan.target}: {words}", "free space there"))
            return None
        return CopiedEntry(entry, CopyOutcome.COPIED if is_new else CopyOutcome.PRESENT)

    def _abort(self, error: NeuronToolsError) -> None:
        if not self._stop.is_set():
            self._stopped = error
            self._stop.set()


def _overlap(source: str, target: str) -> bool:
    if is_remote(source) != is_remote(target):
        return False
    if not is_remote(source):
        source, target = os.path.realpath(source), os.path.realpath(target)
    source, target = source.rstrip("/") + "/", target.rstrip("/") + "/"
    return source.startswith(target) or target.startswith(source)


def format_plan(plan: CopyPlan) -> str:
    """Return the entries to copy, with size and state, and the total."""
    rows = [(format_size(entry.size_bytes), entry.state.value, _path(plan, entry)) for entry in plan.copy]
    lines = [table(None, rows, "><<")] if rows else []
    number = plural(len(rows), "entry", "entries")
    lines.append(f"{number} to copy, {format_size_both(plan.copy_bytes)}, to {plan.target}{_present(plan)}")
    return "\n".join(lines)


def left_out_rows(plan: CopyPlan, result: CopyResult | None) -> list[tuple[str, str]]:
    """Return path and reason of the selected entries that are not copied."""
    rows = [(item.path, item.reason) for item in plan.left_out]
    if result is not None:
        for outcome in (CopyOutcome.LEFT_OUT, CopyOutcome.FAILED):
            rows += [(_path(plan, item.entry), item.reason) for item in result.select(outcome)]
    return rows


def format_result(plan: CopyPlan, result: CopyResult) -> str:
    """Format the number and size of the copied entries, and of the failed ones."""
    copied = result.select(CopyOutcome.COPIED)
    size = format_size_both(sum(item.entry.size_bytes for item in copied))
    text = (
        f"{plural(len(copied), 'entry', 'entries')} copied, {size}, to {plan.target}{_present(plan, result)}"
    )
    failed = result.select(CopyOutcome.FAILED)
    return f"{text}; {len(failed)} failed" if failed else text


def format_stopped(plan: CopyPlan, result: CopyResult) -> str:
    """Return how far a copy came that ended early."""
    remaining = len(plan.copy) - len(result.copied)
    copied = plural(len(result.select(CopyOutcome.COPIED)), "entry", "entries")
    return f"stopped after {copied}, {remaining} left; run the command again to continue"


def copy_json(
    plan: CopyPlan, result: CopyResult | None, deletion: PrunePlan | None, removal: Removal | None
) -> dict[str, Any]:
    """Return the JSON form of a plan (`result` None) or of its result."""

    def select(outcome: CopyOutcome) -> list[Entry]:
        return [] if result is None else [item.entry for item in result.select(outcome)]

    copied = plan.copy if result is None else select(CopyOutcome.COPIED)
    present = [*plan.present, *select(CopyOutcome.PRESENT)]
    stopped = None if result is None else result.stopped
    planned = () if deletion is None else deletion.remove
    removed = planned if removal is None else removal.removed
    spared = [*(deletion.spare if deletion is not None else ()), *(removal.spared if removal else ())]
    return {
        "from": plan.source,
        "to": plan.target,
        "dry_run": result is None,
        "copied": _entries(plan, copied),
        "copied_bytes": sum(entry.size_bytes for entry in copied),
        "present": [_path(plan, entry) for entry in present],
        "left_out": [
            {"path": printable(path), "reason": reason} for path, reason in left_out_rows(plan, result)
        ],
        "failed": len(select(CopyOutcome.FAILED)),
        "removed": _entries(plan, [choice.entry for choice in removed]),
        "spared": [{"path": choice.entry.path, "reason": choice.reason} for choice in spared],
        "stopped": None if stopped is None else stopped.message,
    }


def _present(plan: CopyPlan, result: CopyResult | None = None) -> str:
    count = len(plan.present) + (0 if result is None else len(result.select(CopyOutcome.PRESENT)))
    return f"; {count} already there" if count else ""


def _entries(plan: CopyPlan, entries: Sequence[Entry]) -> list[dict[str, Any]]:
    return [
        {"path": _path(plan, entry), "state": entry.state.value, "size_bytes": entry.size_bytes}
        for entry in entries
    ]


def _path(plan: CopyPlan, entry: Entry) -> str:
    """Return an entry's path; of an entry in an archive, its path there."""
    return relative_path(plan.root, entry) if plan.staging else entry.path
