"""The user's pruning policy: the settings `cache_*` of config.yaml or the environment."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from neurontools import env, paths
from neurontools.base.locks import flock
from neurontools.base.units import format_size
from neurontools.cache import logs
from neurontools.cache.entries import scan
from neurontools.cache.location import counters_dir
from neurontools.cache.pruning.prune import prepare_pruning
from neurontools.cache.pruning.rule_options import RULES
from neurontools.cache.pruning.rules import PruneRules
from neurontools.errors import NeuronToolsError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from neurontools.cache.pruning.prune import Pruning


STALE_LOCK_S = 4 * 3600.0
AUTO_PERIOD_S = 3600.0
_PARTS = (*(rule.name for rule in RULES if not rule.setting), "locks")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Policy:
    """Rules, and the age from which unnamed locks are broken (None: never)."""

    rules: PruneRules
    break_stale_s: float | None

    @property
    def is_empty(self) -> bool:
        """Whether no rule is set."""
        return self.rules.is_empty and self.break_stale_s is None


def read_policy(environ: Mapping[str, str] | None = None) -> Policy:
    """Return the policy of the settings.

    Args:
        environ: instead of the process's environment.

    Raises:
        UsageError: a setting is invalid (the message names its place), or config.yaml has a problem.
    """
    check_settings_file()
    remove = read_setting(env.CACHE_REMOVE, _parts, environ) or frozenset()
    values = {
        rule.field: read_setting(rule.setting, rule.parse, environ) if rule.setting else rule.name in remove
        for rule in RULES
    }
    rules = PruneRules(**values)  # type: ignore[arg-type]
    return Policy(rules, STALE_LOCK_S if "locks" in remove else None)


def required_policy(environ: Mapping[str, str] | None = None) -> Policy:
    """Return the policy of the settings.

    Raises:
        UsageError: there is none, or a setting cannot be read.
    """
    policy = read_policy(environ)
    if policy.is_empty:
        raise UsageError(
            "no pruning policy is configured",
            "set cache_max_size, cache_older_than, cache_keep_last or cache_remove in config.yaml",
        )
    return policy


def prune_after_run(root: str, environ: Mapping[str, str] | None = None) -> None:
    """Apply the policy to a root if enabled, at most once an hour; errors are logged, never raised."""
    if not env.flag(env.CACHE_AUTO_PRUNE, environ) or not os.path.isdir(root):
        return
    try:
        policy = read_policy(environ)
        if policy.is_empty or not _is_due(root):
            return
        _apply(prepare_pruning(scan(root, details=False), policy.rules, policy.break_stale_s))
    except NeuronToolsError as error:
        logs.log(logging.WARNING, logs.CACHE, f"Not pruning {root}: {error.message}")
    except OSError as error:
        logs.log(logging.WARNING, logs.CACHE, f"Not pruning {root}: {error.strerror or error}")


def _apply(work: Pruning) -> None:
    if work.is_empty:
        return
    removal, broken = work.carry_out()
    freed = format_size(removal.freed_bytes)
    text = f"Pruned {work.plan.root} by policy: {len(removal.removed)} entries, {freed}; {len(broken)} locks"
    logs.log(logging.INFO, logs.CACHE, text)


def _is_due(root: str) -> bool:
    """Return whether this user has not pruned the root within the period, and record that it does now."""
    directory = counters_dir(root)
    paths.make_private(directory)
    descriptor = os.open(f"{directory}/auto_pruned", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not flock(descriptor, wait=False):
            return False
        found = os.fstat(descriptor)
        if found.st_size and time.time() - found.st_mtime < AUTO_PERIOD_S:
            return False
        os.pwrite(descriptor, b"1", 0)
        os.utime(descriptor)
    finally:
        os.close(descriptor)
    return True


def _parts(text: str) -> frozenset[str]:
    parts = frozenset(part.strip().lower() for part in text.split(",") if part.strip())
    unknown = sorted(parts - set(_PARTS))
    if unknown:
        raise UsageError(f"cannot remove {unknown[0]!r}", f"choose from {', '.join(_PARTS)}")
    return parts


def read_setting(
    name: str, parse: Callable[[str], _T], environ: Mapping[str, str] | None = None
) -> _T | None:
    """Return the value of a setting, None where it is not set.

    Args:
        name: of its environment variable.
        parse: converts the text, or raises UsageError.
        environ: instead of the process's environment.

    Raises:
        UsageError: the value is invalid; the message begins with the variable, or with file, line and key.
    """
    text = env.setting(name, environ)
    if not text:
        return None
    try:
        return parse(text)
    except UsageError as error:
        raise UsageError(f"{env.source_of(name, environ)}: {error.message}", error.remedy) from error


def check_settings_file() -> None:
    """Reject a settings file with problems: a rule that was ignored could be the rule that protects an entry.

    Raises:
        UsageError: the file has a problem.
    """
    found = env.configuration()
    if found is None or not found.problems:
        return
    first = found.problems[0]
    where = f"{found.path}:{first.line}: " if first.line else f"{found.path} "
    raise UsageError(
        f"{where}{first.key}: {first.message}",
        "fix the file; until then, the policy removes nothing",
    )
