"""nccom-test: time collective operations between the NeuronCores of the machine."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from neurontools import env
from neurontools.commands import console
from neurontools.commands.console import ProgressLine
from neurontools.errors import NoMachineError, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from neurontools.collectives.benchmark import Benchmark
    from neurontools.collectives.machine_ranks import Ranks, TargetMachine
    from neurontools.collectives.operations import Options
    from neurontools.collectives.running import Row, TableStyle

NO_DRIVER = (
    "Neuron DKMS Driver is not running! Read the troubleshooting guide at: "
    "https://awsdocs-neuron.readthedocs-hosted.com/"
)
_RELEASES = ("2.32", "2.28")


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    from neurontools.commands import nccom_flags

    return nccom_flags.build_parser()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return console.run(lambda: _run(list(sys.argv[1:] if argv is None else argv)))


def _run(argv: list[str]) -> int:
    from neurontools.collectives.running import report_style
    from neurontools.commands import nccom_flags

    found = nccom_flags.parse(argv)
    streams = nccom_flags.parse_options(found)
    release = env.emulate()
    if release not in _RELEASES:
        raise UsageError(
            f"unknown release {release!r}", f"set NEURONTOOLS_EMULATE to {' or '.join(_RELEASES)}"
        )
    style = report_style(release, algorithm=found.show_algorithm, sizes=found.show_input_output_size)
    try:
        machine, benchmarks = _prepare(found, streams)
    except NoMachineError as error:
        console.out(NO_DRIVER)
        console.notice(f"hint: {error.remedy}")
        return 1
    from neurontools.collectives.machine_ranks import claim_ranks
    from neurontools.machine.protocol import CoresBusyError, DeviceLostError
    from neurontools.runtime.status import NrtError

    try:
        with claim_ranks(machine, benchmarks[0].cores) as ranks:
            tables = _run_all(benchmarks, ranks, show_progress=not found.non_interactive)
    except (CoresBusyError, DeviceLostError, NrtError) as error:
        return _could_not_run(found, benchmarks, style, f"{error.message}\n{error.remedy}\n")
    return _show(found, benchmarks, tables, style, machine)


def _prepare(
    found: argparse.Namespace, streams: tuple[Options, ...]
) -> tuple[TargetMachine | None, tuple[Benchmark, ...]]:
    from neurontools.collectives import machine_ranks
    from neurontools.collectives.benchmark import check_ranks, prepare, side_by_side
    from neurontools.collectives.fabric import find_fabric

    lnc = machine_ranks.requested_lnc(os.environ)
    if streams[0].hosts:
        machine_ranks.check_root(os.environ)
    if found.instance:
        machine, fabric = None, find_fabric(found.instance, lnc)
        cores = tuple(range(fabric.core_count))
    else:
        machine = machine_ranks.find_machine(found.machine or env.machine(), console.notice)
        machine_ranks.check_lnc(machine, lnc)
        fabric, cores = machine.fabric, _visible(machine.cores)
    check_ranks(streams[0], fabric, cores)
    of_ranks = cores[: streams[0].workers // streams[0].nodes]
    benchmarks = tuple(prepare(options, fabric, of_ranks) for options in streams)
    return machine, side_by_side(benchmarks)


def _visible(cores: tuple[int, ...]) -> tuple[int, ...]:
    from neurontools.runtime.core_claim import VISIBLE_CORES, parse_visible_cores
    from neurontools.runtime.status import NrtError

    text = os.environ.get(VISIBLE_CORES, "")
    if not text.strip():
        return cores
    try:
        wanted = parse_visible_cores(text)
    except NrtError as error:
        raise UsageError(error.detail, error.remedy) from error
    if not set(wanted) <= set(cores):
        raise UsageError(f"{VISIBLE_CORES}={text} names cores that do not exist", f"cores are 0-{cores[-1]}")
    return wanted


def _run_all(
    benchmarks: tuple[Benchmark, ...], ranks: Ranks, *, show_progress: bool
) -> tuple[tuple[Row, ...], ...]:
    from neurontools.collectives.running import run

    with ProgressLine(enabled=show_progress) as line:

        def show(done: int, total: int, action: str) -> None:
            line.show(f"{action}: {done} of {total}")

        return tuple(tuple(run(benchmark, ranks, show)) for benchmark in benchmarks)


def _show(
    found: argparse.Namespace,
    benchmarks: tuple[Benchmark, ...],
    tables: tuple[tuple[Row, ...], ...],
    style: TableStyle,
    machine: TargetMachine | None,
) -> int:
    from neurontools.collectives import running

    wrong = sum(not row.is_right for rows in tables for row in rows)
    lines = [
        running.table(rows, benchmark.stats, style)
        for benchmark, rows in zip(benchmarks, tables, strict=True)
    ]
    lines += [running.errors_line(wrong)] if wrong else []
    _print_results(
        found,
        lines,
        [record for rows in tables for record in running.results(rows, style)],
        running.config(benchmarks, None if machine is None else machine.name),
    )
    _print_notes(benchmarks, tables)
    return 1 if wrong else 0


def _could_not_run(
    found: argparse.Namespace, benchmarks: tuple[Benchmark, ...], style: TableStyle, reason: str
) -> int:
    import tempfile

    from neurontools.collectives import running

    descriptor, path = tempfile.mkstemp(prefix="nccom_test_log_", suffix=".log")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(reason)
    lines = [running.failed_table(benchmarks[0].stats, style, path), running.errors_line(1)]
    _print_results(found, lines, [], running.config(benchmarks, None))
    console.notice(reason.rstrip())
    return 1


def _print_results(found: argparse.Namespace, lines: list[str], results: list[Any], config: Any) -> None:
    """Print the results as text or JSON, and write them to the file of `--report-to-json-file`."""
    import json

    document = json.dumps({"results": results, "config": config}, indent=4)
    for text in [document] if found.json else lines:
        console.out(text)
    if found.report_to_json_file:
        with open(found.report_to_json_file, "w", encoding="utf-8") as file:
            file.write(document + "\n")


def _print_notes(benchmarks: tuple[Benchmark, ...], tables: tuple[tuple[Row, ...], ...]) -> None:
    fabric = benchmarks[0].works[0].fabric
    console.notice(
        f"modelled: times come from a cost model of {fabric.instance} (LNC {fabric.lnc}), not from hardware"
    )
    if any(benchmark.sizes != benchmark.asked_sizes for benchmark in benchmarks):
        console.notice("note: sizes are rounded down to whole elements of every rank")
    # The user requested --check, so its result is printed in a pipe too.
    for line in [line for rows in tables for row in rows for line in _verified(row)]:
        console.err(line)


def _verified(row: Row) -> list[str]:
    lines = []
    for check in row.checks:
        right = check.receivers - len(check.wrong)
        size = f"{check.verified_bytes} of {check.asked_bytes} bytes each"
        line = f"size {row.nbytes}: verified {right} of {check.ranks} ranks, {size}, {row.algorithm}"
        if check.wrong:
            ranks = ", ".join(map(str, check.wrong[:8]))
            line += f"; wrong: rank {ranks}{' ...' if len(check.wrong) > 8 else ''} {check.detail}".rstrip()
        lines.append(line)
    return lines
