"""Flags of the real tool's `view`: those that choose a part of a profile, and those that have no effect here, with the reason."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from neurontools.commands import console
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from neurontools.profiler.trace.selection import SystemFilter

_NO_DATABASE = "there is no database"
_GROUPS = "rows are grouped by process, clock and core"
_WITHOUT_EFFECT = {
    "--port": "there is no server",
    "--db-endpoint": _NO_DATABASE,
    "--db-org": _NO_DATABASE,
    "--db-bucket": _NO_DATABASE,
    "--data-path": "--output-file says where files are written",
    "--display-name": "a profile has the name of its directory",
    "--framework-source-root": "a profile has the full paths of source files",
    "--nki-source-root": "a profile has the full paths of source files",
    "--system-trace-primary-group": _GROUPS,
    "--system-trace-secondary-group": _GROUPS,
    "-F": "there are no further settings",
}
_SWITCHES_WITHOUT_EFFECT = {"--show-perfetto-flows": "trace files have no arrows"}
_ALWAYS = ("--force", "--enable-memory-tracker")  # existing files are replaced, memory is recorded
_REFUSED = {
    "--ingest-only": ("there is no database", "write tables with --output-format parquet"),
    "--terminology": ("there is no glossary here", "docs/reference/neuron-profile.md explains the metrics"),
}


def add_real_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags to `view`; help lists those that choose a part."""
    add = parser.add_argument
    add("--ignore-device-profile", action="store_true", help="skip what the device did (modelled)")
    add("--ignore-system-profile", action="store_true", help="skip wall-clock events (measured)")
    add(
        "--system-trace-filter-neuron-core",
        metavar="LIST",
        help="wall-clock events: only these NeuronCores of each process",
    )
    add(
        "--system-trace-filter-event-type",
        metavar="LIST",
        help="wall-clock events: only these names; hardware, software; ^name excludes",
    )
    add(
        "--system-trace-filter-instance-id",
        metavar="LIST",
        help="wall-clock events: only those of these instances",
    )
    for flag in _WITHOUT_EFFECT:
        add(flag, dest=flag, action="append", metavar="VALUE", help=argparse.SUPPRESS)
    for flag in (*_SWITCHES_WITHOUT_EFFECT, *_ALWAYS, *_REFUSED):
        add(flag, dest=flag, action="store_true", help=argparse.SUPPRESS)


def check_real_flags(arguments: argparse.Namespace) -> None:
    """Warn of flags that have no effect.

    Raises:
        UsageError: a flag asks for what does not exist here.
    """
    given = vars(arguments)
    for flag, (reason, remedy) in _REFUSED.items():
        if given[flag]:
            raise UsageError(f"{flag}: {reason}", remedy)
    for flag, reason in {**_WITHOUT_EFFECT, **_SWITCHES_WITHOUT_EFFECT}.items():
        if given[flag]:
            console.warn(f"{flag} has no effect: {reason}")


def system_filter(arguments: argparse.Namespace) -> SystemFilter | None:
    """Return which wall-clock events the command line asks for; None for all.

    Raises:
        UsageError: the list of cores is invalid.
    """
    cores = arguments.system_trace_filter_neuron_core
    names = arguments.system_trace_filter_event_type
    instances = arguments.system_trace_filter_instance_id
    if not cores and not names and not instances:
        return None
    from neurontools.profiler.capture.settings import event_names, parse_numbers
    from neurontools.profiler.trace.selection import SystemFilter

    return SystemFilter(
        ncs=parse_numbers(cores, "--system-trace-filter-neuron-core") if cores else None,
        names=event_names(names) if names else None,
        instances=frozenset(word.strip() for word in instances.split(",")) if instances else None,
    )
