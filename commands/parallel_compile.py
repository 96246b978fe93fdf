"""neuron_parallel_compile: collect the graphs of a program in a trial run, and compile them side by side."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from neurontools.commands import console
from neurontools.commands.parsing import add_json
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.precompile.trial_run import TrialRun

_EXAMPLES = """examples:
  neuron_parallel_compile python train.py --steps 10
  neuron_parallel_compile --command collect python train.py --steps 10
  neuron_parallel_compile --command compile --num_parallel 4
  neuron_parallel_compile --command scan-with-failed
  neuron_parallel_compile --command clear-locks --dry-run
  neuron_parallel_compile --command analyze --analyze-output report python train.py

During the trial run nothing runs on the device: all results are zeros. Limit it to 10-15 steps.
The exit code is the number of graphs that failed to compile, at most 255; 1 failed, 2 usage error."""

_SEE_HELP = "see 'neuron_parallel_compile --help'"
_WITH_PROGRAM = frozenset({"collect-and-compile", "collect", "analyze"})


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        prog="neuron_parallel_compile",
        usage="neuron_parallel_compile [option ...] [PROGRAM [ARG ...]]",
        description="Compile the graphs of a program ahead of time: a trial run stores them in the compile cache, "
        "then they are compiled in parallel. Later runs of the program compile nothing.",
        epilog=_EXAMPLES,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--command",
        choices=tuple(_COMMANDS),
        default="collect-and-compile",
        help="what to do: both phases (default), one of them, analyze the program's operators, list the cache, "
        "or remove everything, locks, or NEFFs",
    )
    add("--num_parallel", type=int, metavar="N", help="number of parallel compiles (default: number of CPUs)")
    add("--node_id", type=int, default=0, metavar="N", help="index of this node, from 0")
    add("--world_size", type=int, default=1, metavar="N", help="number of nodes that share the work")
    add(
        "--static_schedule",
        action="store_true",
        help="each node starts with its own share of the graphs (default: all start with the first)",
    )
    add(
        "--analyze-output",
        default="model_analysis_result",
        metavar="DIR",
        help="where analyze writes result.json (default: %(default)s)",
    )
    add(
        "--analyze-verbosity",
        type=int,
        choices=(1, 2),
        default=2,
        help="2 adds the graph to each unsupported operator (default)",
    )
    add("--parallel_compile_workdir", metavar="DIR", help="directory for the trial run's intermediate files")
    add("--log_level", choices=("INFO", "WARNING", "ERROR"), help="minimum level of the log")
    add(
        "--dry-run",
        action="store_true",
        help="with clean, clear-locks, clear-neffs: print what would be removed, change nothing",
    )
    add_json(parser)
    add("program", nargs=argparse.REMAINDER, metavar="PROGRAM [ARG ...]")
    return parser


def _run(arguments: argparse.Namespace) -> int:
    if arguments.program[:1] == ["--"]:
        arguments.program = arguments.program[1:]
    if bool(arguments.program) != (arguments.command in _WITH_PROGRAM):
        wants = (
            "a program to run (neuron_parallel_compile python train.py)"
            if not arguments.program
            else "no program"
        )
        raise UsageError(f"--command {arguments.command} takes {wants}", _SEE_HELP)
    for name in ("num_parallel", "world_size"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise UsageError(f"argument --{name}: {value} is less than 1", _SEE_HELP)
    return _COMMANDS[arguments.command](arguments)


def _collect_and_compile(arguments: argparse.Namespace) -> int:
    collected = _trial_run(arguments)
    return _compile_roots(arguments, collected.roots or (_directory(),), collected.entries)


def _collect(arguments: argparse.Namespace) -> int:
    collected = _trial_run(arguments)
    _log(arguments, f"Collected graphs: {len(collected.entries)}")
    return 0


def _compile(arguments: argparse.Namespace) -> int:
    return _compile_roots(arguments, (_directory(),))


def _trial_run(arguments: argparse.Namespace) -> TrialRun:
    from neurontools.precompile.trial_run import check_exit_code, collect, default_workdir

    environ = _environment(arguments)
    workdir = arguments.parallel_compile_workdir or default_workdir()
    stdout = sys.stderr.fileno() if arguments.json else None
    collected = collect(tuple(arguments.program), workdir, environ, stdout)
    warning = check_exit_code(collected, environ)
    if warning:
        console.warn(warning)
    return collected


def _compile_roots(
    arguments: argparse.Namespace, roots: tuple[str, ...], collected: tuple[str, ...] = ()
) -> int:
    from neurontools.commands.console import ProgressCounter
    from neurontools.precompile import compilation

    environ = _environment(arguments)
    share = compilation.NodeShare(arguments.node_id, arguments.world_size)
    if not arguments.static_schedule:
        share = compilation.NodeShare()
    tasks = [compilation.plan_task(root, environ, share, collected) for root in roots]
    for task in tasks:
        _log(arguments, compilation.format_remaining(task.groups), tag="NEURON_CACHE")
        _log(arguments, compilation.format_grab(task.entries))
    with ProgressCounter("compiled", "graphs") as progress:
        parallel = arguments.num_parallel or compilation.default_parallel()
        found = compilation.compile_tasks(tasks, parallel, environ, progress)
    for result in found.failed:
        console.warn(f"{result.entry}: {result.error}")
    if arguments.json:
        console.print_json(compilation.report_json(found))
    else:
        _log(arguments, compilation.format_report(found))
        for line in compilation.format_totals(found):
            _log(arguments, line)
    return found.exit_code


def _analyze(arguments: argparse.Namespace) -> int:
    from neurontools.precompile import trial_run

    found = trial_run.analyze(_trial_run(arguments))
    path = trial_run.write_result(found, arguments.analyze_output, arguments.analyze_verbosity)
    if arguments.json:
        console.print_json(trial_run.result_json(found, arguments.analyze_verbosity))
    else:
        for line in trial_run.format_summary(found, path):
            _log(arguments, line, tag="ANALYZE")
    return 0


def _scan(arguments: argparse.Namespace) -> int:
    from neurontools.precompile import compilation

    groups = compilation.group_entries(_directory())
    with_failed = arguments.command == "scan-with-failed"
    return console.show(
        arguments.json,
        lambda: compilation.groups_json(groups),
        lambda: compilation.format_groups(groups, with_failed=with_failed),
    )


def _clean(arguments: argparse.Namespace) -> int:
    from neurontools.cache.entries import scan
    from neurontools.cache.pruning.prune import prepare_pruning
    from neurontools.cache.pruning.rules import PruneRules
    from neurontools.commands.cache.removal import remove, show_plan

    found = scan(_directory_to_clear("rm --all"), details=False)
    work = prepare_pruning(found, PruneRules(everything=True, grace_s=0.0))
    if arguments.dry_run or work.is_empty:
        show_plan(work, as_json=arguments.json)
    else:
        remove(work, as_json=arguments.json)
    return 0


def _clear_locks(arguments: argparse.Namespace) -> int:
    from neurontools.cache import lock_list
    from neurontools.cache.pruning import prune
    from neurontools.cache.walk import walk

    root = _directory_to_clear("prune --locks 0")
    locks = lock_list.list_locks(walk(root).places)
    stale = lock_list.stale_locks(locks, 0.0)
    if stale and not arguments.dry_run:
        stale = prune.break_any_locks(root, stale, 0.0)
    if arguments.json:
        console.print_json(prune.locks_removed_json(root, stale, dry_run=arguments.dry_run))
    else:
        lines = prune.format_stale_locks(stale)
        summary = lock_list.format_broken_locks(locks, stale, dry_run=arguments.dry_run)
        console.out(f"{lines}\n{summary}".lstrip())
    return 0


def _clear_neffs(arguments: argparse.Namespace) -> int:
    from neurontools.precompile import compilation

    root = _directory_to_clear("rm")
    gone, spared = compilation.clear_neffs(
        root, compilation.group_entries(root).done, dry_run=arguments.dry_run
    )
    if arguments.json:
        spared_json = [{"entry": entry, "reason": reason} for entry, reason in spared]
        console.print_json(
            {"root": root, "dry_run": arguments.dry_run, "removed": gone, "spared": spared_json}
        )
        return 0
    for path in gone if arguments.dry_run else ():
        console.out(path)
    for entry, reason in spared:
        console.out(f"spared: {entry} ({reason})")
    done = "to remove" if arguments.dry_run else "removed"
    console.out(f"{len(gone)} NEFFs {done}; their graphs stay")
    return 0


def _directory() -> str:
    """Return the cache's directory; for a cache in a bucket, the copy that runs of this host use."""
    from neurontools.cache.location import resolve

    return resolve().directory


def _directory_to_clear(verb: str) -> str:
    """Return the directory; warn if there is a bucket behind it."""
    from neurontools.cache.location import resolve

    found = resolve()
    if found.is_remote:
        console.warn(
            f"this removes from {found.directory}, the copy of {found.root}; entries of the bucket are fetched again "
            f"until 'neuron-cache {verb} --cache-dir {found.root}' removes it there"
        )
    return found.directory


def _environment(arguments: argparse.Namespace) -> dict[str, str]:
    environ = dict(os.environ)
    if arguments.log_level:
        flags = environ.get("NEURON_CC_FLAGS", "")
        environ["NEURON_CC_FLAGS"] = f"{flags} --log_level={arguments.log_level}".lstrip()
    return environ


def _log(arguments: argparse.Namespace, text: str, tag: str = "NEURON_PARALLEL_COMPILE") -> None:
    from neurontools.precompile.compilation import format_log_line

    if not arguments.json and arguments.log_level in {None, "INFO"}:
        console.out_now(format_log_line(tag, text))


_COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "collect-and-compile": _collect_and_compile,
    "collect": _collect,
    "compile": _compile,
    "analyze": _analyze,
    "clean": _clean,
    "clear-locks": _clear_locks,
    "clear-neffs": _clear_neffs,
    "scan": _scan,
    "scan-with-failed": _scan,
}


main = console.command(build_parser, _run)
