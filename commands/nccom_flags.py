"""The command line of nccom-test and its streams file, as options (AWS Neuron documentation, nccom-test user guide)."""

from __future__ import annotations

import argparse
from copy import copy
from typing import TYPE_CHECKING, Any

from neurontools.base.files import open_input
from neurontools.collectives.operations import NAMES, Options, read_json
from neurontools.commands import console, parsing
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

EXAMPLES = """examples:
  nccom-test -r 2 allr
  nccom-test -r 32 -b 1kb -e 512kb -f 8 -d fp32 all_gather
  nccom-test -r 8 --check random -d bf16 -n 100 --stats avg p50 p99 --show-algorithm all_reduce
  nccom-test -r 2 --report-to-json-file report.json sendrecv
  nccom-test --instance trn2.48xlarge -r 64 -b 1MB -e 1GB -f 4 redsct

Times and bandwidths are modelled: they come from a cost model of the instance type, not from hardware. Each run
says so on a terminal, and the JSON has "modelled": true. Results of --check are measured on real buffers.

exit codes: 0 success, 1 no machine, wrong results or a failed collective, 2 usage error, 4 daemon error, 130 interrupted
"""

# Flags that a stream may set for itself; the others are those of the whole run.
STREAM_FLAGS = frozenset({
    "minbytes", "maxbytes", "stepbytes", "stepfactor", "iters", "warmup_iters", "neff_iters", "neff_warmup_iters",
    "datatype", "check", "seed", "unique_buff", "coalesced_cc_size_ratio", "shared_output_buff",
    "variable_size_op_metadata", "stats", "sb2sb", "input_shape", "output_shape", "cc_dim",
    "data_parallel_dimension", "custom_replica_groups", "custom_src_target_pairs", "algorithm", "check_bytes",
})  # fmt: skip

_NO_EFFECT = "accepted, without effect"  # they only concern how the real tool starts its processes
_RECORDED = "recorded in the report, without effect"
_DTYPES = "uint8 int8 fp8 fp8e4 uint16 int16 fp16 bf16 uint32 int32 fp32"


class _Once(argparse.Action):
    """Stores a value and refuses a flag that is given twice."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        given = namespace.__dict__.setdefault("given", set())
        if self.dest in given:
            parser.error(f"{option_string or 'the operation'} is given twice")
        given.add(self.dest)
        setattr(namespace, self.dest, True if self.nargs == 0 else values)


def _flag(names: str, metavar: str | None, purpose: str, **settings: Any) -> tuple[list[str], dict[str, Any]]:
    """Return the names and settings of a flag; one with an empty metavar is a switch."""
    values = {"nargs": 0, "default": False} if metavar == "" else {"metavar": metavar}
    return names.split(), {"help": purpose, **values, **settings}


_FLAGS = {
    "sizes and iterations": (
        _flag("-N --nnodes", "N", "nodes (default: 1)", type=int, default=1),
        _flag("-b --minbytes", "SIZE", "smallest size, e.g. 1kb (default: 32M)"),
        _flag("-e --maxbytes", "SIZE", "largest size (default: 32M)"),
        _flag("-i --stepbytes", "SIZE", "step between sizes (default: (max-min)/10)"),
        _flag("-f --stepfactor", "X", "factor between sizes instead of a step", type=float),
        _flag("-n --iters", "N", "iterations (default: 20)", type=int, default=20),
        _flag("-w --warmup_iters", "N", "warm-up iterations (default: 5)", type=int, default=5),
        _flag("-I --neff_iters", "N", _RECORDED, type=int),
        _flag("-W --neff_warmup_iters", "N", _RECORDED, type=int),
    ),
    "data": (
        _flag("-d --datatype", "TYPE", f"{_DTYPES} (default: uint8)", default="uint8"),
        _flag(
            "-c --check",
            None,
            "move real data between buffers and compare the results (needs numpy)",
            nargs="?",
            const="random",
            choices=("random", "all_ones"),
        ),
        _flag("--seed", "N", "seed of random data and of the spread of times", type=int, default=0),
        _flag("--unique-buff", "", _RECORDED),
        _flag("--coalesced-cc-size-ratio", "RATIO", _RECORDED),
        _flag("--shared-output-buff", "", _RECORDED),
        _flag("--variable-size-op-metadata", "FILE", "JSON: element counts of all_gatherv, alltoallv"),
        _flag("--data-parallel-dimension", "N", "groups of N ranks", type=int),
        _flag("--custom-replica-groups", "FILE", 'JSON: {"replica_groups": [[[0, 1], [2, 3]]]}'),
        _flag("--custom-src-target-pairs", "FILE", 'JSON: {"src_target_pairs": [[[0, 1], [1, 0]]]}'),
        _flag("--streams-json", "FILE", 'JSON: {"streams": [{"operation": ...}]}, one table per stream'),
    ),
    "several nodes (modelled over the instance's network)": (
        _flag("-s --hosts", "HOST", "MPI hosts; needs NEURON_RT_ROOT_COMM_ID", nargs="+"),
        _flag("--hosts-file", "FILE", "file of MPI hosts, one per line"),
        _flag("-S --slurm-mode", "", "accepted, without effect; excludes MPI hosts"),
        _flag("--mpi-log-dir", "DIR", _NO_EFFECT),
        _flag("-u --slurm-vcpus-per-node", "N", _NO_EFFECT),
        _flag("--slurm-job-id", "N", _NO_EFFECT),
        _flag("--slurm-setup-script", "FILE", _NO_EFFECT, nargs="?", const="default"),
        _flag("--slurm-use-head-node-neuron-bench", "", _NO_EFFECT),
        _flag("--vcpu-pin-mode", "MODE", _NO_EFFECT),
        _flag("--data-collector-port", "PORT", _NO_EFFECT, type=int, default=60006),
        _flag("--data-collector-host", "HOST", _NO_EFFECT),
    ),
    "output": (
        _flag("--non-interactive", "", "show no progress on a terminal"),
        _flag("--report-to-json-file", "FILE", "also write the results to FILE"),
        _flag("-t --stats", "STAT", "avg, p50, p99, ... (default: avg)", nargs="+", default=["avg"]),
        _flag("--show-algorithm", "", "add a column with the algorithm"),
        _flag("--show-input-output-size", "", "add columns with input and output sizes"),
    ),
    "from SBUF to SBUF (Trn2 and later)": (
        _flag("--sb2sb", "", "keep data in SBUF"),
        _flag("--input-shape", "SHAPE", "e.g. 128,512"),
        _flag("--output-shape", "SHAPE", "must match the operation"),
        _flag("--cc-dim", "N", "dimension that is gathered or scattered (default: 1)", type=int),
    ),
    "flags that the real tool does not have": (
        _flag("--machine", "NAME", parsing.MACHINE_HELP),
        _flag("--instance", "TYPE", "model this instance type without a machine"),
        _flag("--algorithm", "NAME", "mesh, rdh, hier, ring or kangaring instead of the fastest"),
        _flag("--check-bytes", "SIZE", "memory of this computer for --check (default: 1GB)"),
        _flag("--json", "", "print JSON"),
    ),
}


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        prog="nccom-test",
        usage="nccom-test -r RANKS [FLAG ...] OPERATION",
        description="Time collective operations between the NeuronCores of the machine. Times are modelled.",
        epilog=EXAMPLES,
        allow_abbrev=False,
    )
    parser.add_argument("operation", nargs="?", choices=NAMES, metavar="OPERATION", help=", ".join(NAMES))
    workers, settings = _flag("-r --nworkers", "RANKS", "total number of ranks (required)", type=int)
    parser.add_argument(*workers, action=_Once, **settings)
    for title, flags in _FLAGS.items():
        group = parser.add_argument_group(title)
        for names, settings in flags:
            group.add_argument(*names, action=_Once, **settings)
    return parser


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line; the operation may stand anywhere, even after a flag with optional values.

    Raises:
        UsageError: there is no operation or more than one, or no number of ranks.
    """
    parser = build_parser()
    operations, words = _take_operations(parser, argv)
    found = console.parse(parser, [*operations[:1], *words])
    if len(operations) > 1:
        raise UsageError(
            f"more than one operation: {operations[0]} and {operations[1]}", "use one, or --streams-json"
        )
    if found.streams_json and found.operation:
        raise UsageError(
            "an operation and --streams-json exclude each other", "name the operations in the file"
        )
    if not found.streams_json and not found.operation:
        raise UsageError("no operation given", f"use one of {', '.join(NAMES)}")
    if found.nworkers is None:
        raise UsageError("-r/--nworkers is missing", "set the number of ranks: nccom-test -r 2 allr")
    if found.machine and found.instance:
        raise UsageError("--machine and --instance exclude each other", "--instance uses no machine")
    if found.debug:
        found.non_interactive = True
    return found


def _take_operations(parser: argparse.ArgumentParser, argv: Sequence[str]) -> tuple[list[str], list[str]]:
    takes_one = {
        name
        for action in parser._actions  # noqa: SLF001  argparse lists its flags nowhere else
        for name in action.option_strings
        if action.nargs is None
    }
    operations, words = [], []
    after_flag = False
    for word in argv:
        if word in NAMES and not after_flag:
            operations.append(word)
        else:
            words.append(word)
        after_flag = not after_flag and word in takes_one
    return operations, words


def parse_options(found: argparse.Namespace) -> tuple[Options, ...]:
    """Return the options of the command line: one, or those of every stream.

    Raises:
        UsageError: a file cannot be read or is invalid.
    """
    if found.streams_json is None:
        return (_options(found, 1),)
    document = read_json(found.streams_json)
    streams = document.get("streams") if isinstance(document, dict) else None
    if not isinstance(streams, list) or not streams:
        raise UsageError(f'{found.streams_json} must be {{"streams": [...]}} with at least one stream')
    return tuple(_stream(found, number, stream) for number, stream in enumerate(streams))


def _stream(found: argparse.Namespace, number: int, stream: Any) -> Options:
    where = f"{found.streams_json}: stream {number}"
    if not isinstance(stream, dict) or stream.get("operation") not in NAMES:
        raise UsageError(f"{where} names no operation", f"use one of {', '.join(NAMES)}")
    ops_per_iter = stream.get("ops_per_iter", 1)
    if not isinstance(ops_per_iter, int) or isinstance(ops_per_iter, bool):
        raise UsageError(f"{where}: ops_per_iter {ops_per_iter!r} is not a number")
    words = [stream["operation"]]
    for key, value in stream.items():
        if key not in {"operation", "ops_per_iter"}:
            words += _flag_words(where, key, value)
    base = copy(found)
    base.__dict__.pop("given", None)
    try:
        return _options(parsing.parse(build_parser(), words, base), ops_per_iter)
    except UsageError as error:
        raise UsageError(f"{where}: {error.message}", error.remedy) from None


def _flag_words(where: str, key: str, value: Any) -> list[str]:
    if key not in STREAM_FLAGS:
        raise UsageError(
            f"{where}: unknown or global key {key!r}", f"known: {', '.join(sorted(STREAM_FLAGS))}"
        )
    flag = f"--{key}" if key.endswith("_iters") else f"--{key.replace('_', '-')}"
    if value is False or value is None:
        return []
    if value is True:
        return [flag]
    return [flag, *map(str, value)] if isinstance(value, list) else [f"{flag}={value}"]


def _options(found: argparse.Namespace, ops_per_iter: int) -> Options:
    names = {name for name in Options.__slots__ if name in STREAM_FLAGS} - {"stats"}
    return Options(
        operation=found.operation,
        workers=found.nworkers,
        nodes=found.nnodes,
        ops_per_iter=ops_per_iter,
        stats=tuple(name for word in found.stats for name in word.split(",") if name),
        hosts=_hosts(found),
        slurm_mode=found.slurm_mode,
        **{name: getattr(found, name) for name in names},
    )


def _hosts(found: argparse.Namespace) -> tuple[str, ...]:
    if found.hosts and found.hosts_file:
        raise UsageError("--hosts and --hosts-file exclude each other")
    if (found.hosts or found.hosts_file) and found.slurm_mode:
        raise UsageError("MPI hosts and --slurm-mode exclude each other")
    if found.hosts:
        return tuple(name for word in found.hosts for name in word.split(",") if name)
    if not found.hosts_file:
        return ()
    try:
        with open_input(found.hosts_file) as file:
            lines = file.read().decode().split("\n")
        names = tuple(line.split()[0] for line in lines if line.split() and not line.startswith("#"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot read {found.hosts_file}: {getattr(error, 'strerror', 'not text')}"
        ) from error
    if not names:
        raise UsageError(f"{found.hosts_file} names no host")
    return names
