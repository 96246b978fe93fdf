"""From options to a run: operation, groups of cores, sizes; invalid combinations are refused here."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from neurontools.collectives import operations
from neurontools.collectives.fabric import allowed_ranks
from neurontools.collectives.model import Algorithm, Workload, timed
from neurontools.collectives.operations import (
    DEFAULT_BYTES,
    DataType,
    Operation,
    Options,
    divisor,
    parse_name,
    parse_operation,
    parse_size,
    round_sizes,
    sweep,
)
from neurontools.errors import UsageError
from neurontools.machine.instances.catalogue import instance_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.collectives.fabric import Fabric

AVERAGE = "avg"
DEFAULT_CC_DIM = 1
_MAX_ITERATIONS = 100_000
_MAX_NODES = 4096

_SHAPE = re.compile(r"\d{1,9}(?:[x,]\d{1,9}){0,7}", re.ASCII)
_PERCENTILE = re.compile(r"p(\d{1,3}(?:\.\d{1,3})?)", re.ASCII)


def _sbuf_size(
    options: Options, operation: Operation, kind: DataType, fabric: Fabric, ranks: int
) -> int | None:
    """Return the size of an SBUF collective, None where no input shape is given.

    Raises:
        UsageError: the instance cannot do it, or the shapes do not fit the operation, each other or the SBUF.
    """
    core = instance_type(fabric.instance).device.core
    if not core.sbuf_collectives:
        raise UsageError(f"--sb2sb is not supported on {fabric.instance}", "it needs Trn2 or later")
    if options.input_shape is None:
        if options.output_shape is not None or options.cc_dim is not None:
            raise UsageError("--output-shape and --cc-dim need --input-shape")
        return None
    given = parse_shape(options.input_shape)
    result = _output_shape(
        operation, given, DEFAULT_CC_DIM if options.cc_dim is None else options.cc_dim, ranks
    )
    if options.output_shape is not None and parse_shape(options.output_shape) != result:
        shown = ",".join(map(str, result))
        raise UsageError(
            f"--output-shape {options.output_shape} does not match {operation.value}, which produces {shown}"
        )
    size = max(math.prod(given), math.prod(result)) * kind.nbytes
    room = core.sbuf_bytes * fabric.lnc
    if size > room:
        raise UsageError(f"{size} bytes do not fit into the SBUF of {room} bytes", "use smaller shapes")
    return size


def parse_shape(text: str) -> tuple[int, ...]:
    """Return the dimensions of a shape such as `128,512` or `128x512`.

    Raises:
        UsageError: it is not a shape.
    """
    if _SHAPE.fullmatch(text) is None or 0 in (shape := tuple(map(int, re.split("[x,]", text)))):
        raise UsageError(f"invalid shape {text!r}", "use dimensions such as 128,512")
    return shape


def _output_shape(operation: Operation, given: tuple[int, ...], dim: int, ranks: int) -> tuple[int, ...]:
    if not 0 <= dim < len(given):
        raise UsageError(f"--cc-dim {dim} is out of range: the shape has {len(given)} dimensions")
    length = given[dim]
    if operation in {Operation.ALL_GATHER, Operation.ALL_GATHERV}:
        length *= ranks
    elif operation is Operation.REDUCE_SCATTER:
        if length % ranks:
            raise UsageError(f"dimension {dim} of {length} cannot be divided among {ranks} ranks")
        length //= ranks
    return (*given[:dim], length, *given[dim + 1 :])


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One table: its rows are `sizes`. Iteration i runs `works[i % len(works)]`.

    `asked_sizes` are the sizes before they were rounded to whole elements of every rank.
    """

    works: tuple[Workload, ...]
    kind: DataType
    sizes: tuple[int, ...]
    asked_sizes: tuple[int, ...]
    stats: tuple[str, ...]
    algorithm: Algorithm | None
    options: Options

    @property
    def operation(self) -> Operation:
        """The collective."""
        return self.works[0].operation

    @property
    def cores(self) -> tuple[int, ...]:
        """The cores of all groups."""
        return tuple(core for group in self.works[0].groups for core in group)


def prepare(options: Options, fabric: Fabric, cores: tuple[int, ...]) -> Benchmark:
    """Return the run of the cores of one instance's ranks, by rank.

    Raises:
        UsageError: an option is invalid or contradicts another.
        NeuronToolsError: this instance cannot do it.
    """
    operation, kind = parse_operation(options.operation), parse_name(DataType, options.datatype, "data type")
    _check_counts(options)
    _check_nodes(options, fabric)
    _check_flags(options, operation)
    elements = _block_elements(options, operation, len(cores))
    works = _works(options, operation, fabric, cores, elements)
    asked = _sizes(options, operation, kind, works[0], elements)
    sizes = _whole_sizes(operation, kind, asked, works[0])
    algorithm = None if options.algorithm is None else parse_name(Algorithm, options.algorithm, "algorithm")
    for work in works:
        timed(work, sizes[0], algorithm)
    return Benchmark(works, kind, sizes, asked, check_statistics(options.stats), algorithm, options)


def side_by_side(benchmarks: tuple[Benchmark, ...]) -> tuple[Benchmark, ...]:
    """Return benchmarks that run as streams at the same time and share the links."""
    count = len(benchmarks)
    return tuple(
        replace(benchmark, works=tuple(replace(work, streams=count) for work in benchmark.works))
        for benchmark in benchmarks
    )


def check_ranks(options: Options, fabric: Fabric, cores: tuple[int, ...]) -> None:
    """Refuse a number of ranks that the instance does not have or cannot connect.

    `cores` are those that may be used, in ascending order.

    Raises:
        UsageError: the ranks are refused.
    """
    ranks, nodes = options.workers, options.nodes
    if ranks < 2:
        raise UsageError(f"-r {ranks}: a collective needs at least 2 ranks", "use -r 2 or more")
    if nodes < 1 or ranks % nodes:
        raise UsageError(
            f"{ranks} ranks cannot be spread over {nodes} nodes",
            "-r counts the ranks of all nodes: use a multiple of -N",
        )
    ranks_per_node, free = ranks // nodes, len(cores)
    if ranks_per_node > free:
        hidden = ", or change NEURON_RT_VISIBLE_CORES" if free < fabric.core_count else ""
        raise UsageError(
            f"{ranks_per_node} ranks need {ranks_per_node} NeuronCores, {fabric.instance} has {free} available",
            f"use -r {max(free * nodes, 2)} or less{hidden}",
        )
    allowed = allowed_ranks(fabric.instance, fabric.lnc)
    if allowed is not None:
        _check_connected(ranks_per_node, nodes, allowed, fabric, cores[0])


def _check_connected(
    ranks_per_node: int, nodes: int, allowed: tuple[int, ...], fabric: Fabric, first: int
) -> None:
    # AWS Neuron documentation: several nodes use all cores; N cores start at a multiple of N.
    choices = [count for count in allowed if count > 1] if nodes == 1 else [allowed[-1]]
    if ranks_per_node not in choices:
        where = f"{fabric.instance} (LNC {fabric.lnc})" + (f", {nodes} nodes" if nodes > 1 else "")
        raise UsageError(
            f"{ranks_per_node} ranks on one node cannot be connected on {where}",
            f"use {', '.join(map(str, choices))} ranks per node",
        )
    if first % ranks_per_node:
        raise UsageError(
            f"{ranks_per_node} ranks cannot start at core {first}",
            f"set NEURON_RT_VISIBLE_CORES to start at a multiple of {ranks_per_node}",
        )


def _check_counts(options: Options) -> None:
    limits = (
        ("-n/--iters", options.iters, 1),
        ("-w/--warmup_iters", options.warmup_iters, 0),
        ("-I/--neff_iters", options.neff_iters, 1),
        ("-W/--neff_warmup_iters", options.neff_warmup_iters, 0),
        ("ops_per_iter", options.ops_per_iter, 1),
    )
    if not 0 <= options.seed < 2**63:
        raise UsageError(f"--seed {options.seed} is out of range: must be 0 to 2**63 - 1")
    for name, value, least in limits:
        if value is not None and not least <= value <= _MAX_ITERATIONS:
            raise UsageError(f"{name} {value} is out of range: must be {least} to {_MAX_ITERATIONS}")


def _check_nodes(options: Options, fabric: Fabric) -> None:
    if options.nodes == 1:
        return
    if fabric.instance.startswith("inf"):
        raise UsageError(
            f"collectives between instances are not supported on {fabric.instance}", "use one instance: -N 1"
        )
    if options.nodes > _MAX_NODES:
        raise UsageError(f"-N {options.nodes} is out of range: the maximum is {_MAX_NODES}")
    if options.hosts and len(options.hosts) != options.nodes:
        raise UsageError(f"-N {options.nodes} nodes but {len(options.hosts)} hosts", "name one host for each")
    given = {
        "--check": options.check,
        "--custom-replica-groups": options.custom_replica_groups,
        "--data-parallel-dimension": options.data_parallel_dimension,
        "--custom-src-target-pairs": options.custom_src_target_pairs,
        "--variable-size-op-metadata": options.variable_size_op_metadata,
        "--sb2sb": options.sb2sb or None,
    }
    for flag, value in given.items():
        if value is not None:
            raise UsageError(f"{flag} works on one instance only: other instances are modelled", "use -N 1")


def _check_flags(options: Options, operation: Operation) -> None:
    if options.custom_replica_groups and options.data_parallel_dimension is not None:
        raise UsageError("--custom-replica-groups and --data-parallel-dimension exclude each other")
    if options.custom_src_target_pairs and not operation.is_point_to_point:
        raise UsageError(f"--custom-src-target-pairs is for permute and sendrecv, not {operation.value}")
    grouped = options.custom_replica_groups or options.data_parallel_dimension is not None
    if operation.is_point_to_point and grouped:
        raise UsageError(
            f"{operation.value} has no replica groups",
            "set senders and receivers with --custom-src-target-pairs",
        )
    if options.variable_size_op_metadata:
        if not operation.is_variable:
            raise UsageError(
                f"--variable-size-op-metadata is for all_gatherv and alltoallv, not {operation.value}"
            )
        if grouped or _sizes_given(options):
            raise UsageError("--variable-size-op-metadata already sets the sizes, for one group of all ranks")
    if not options.sb2sb:
        for flag, value in (
            ("input-shape", options.input_shape),
            ("output-shape", options.output_shape),
            ("cc-dim", options.cc_dim),
        ):
            if value is not None:
                raise UsageError(f"--{flag} needs --sb2sb")


def _sizes_given(options: Options) -> bool:
    given = (options.minbytes, options.maxbytes, options.stepbytes, options.stepfactor)
    return any(value is not None for value in given)


def _block_elements(options: Options, operation: Operation, ranks: int) -> tuple[int, ...]:
    path = options.variable_size_op_metadata
    return () if not path else operations.block_elements(path, ranks, all_to_all=operation.is_all_to_all)


def _works(
    options: Options,
    operation: Operation,
    fabric: Fabric,
    cores: tuple[int, ...],
    elements: tuple[int, ...],
) -> tuple[Workload, ...]:
    ranks = len(cores)
    if operation is Operation.ALL_GATHERV:
        _check_one_device(fabric, cores)
    if options.custom_src_target_pairs:
        lists = operations.source_target_pairs(options.custom_src_target_pairs, ranks)
        return tuple(Workload(operation, (cores,), fabric, pairs=pairs) for pairs in lists)
    if options.custom_replica_groups:
        divisions = operations.replica_groups(options.custom_replica_groups, ranks)
    elif options.data_parallel_dimension is not None:
        divisions = (operations.data_parallel(ranks, options.data_parallel_dimension),)
    else:
        divisions = (operations.whole(ranks),)
    total = _total(elements, ranks)
    shares = tuple(count / total for count in elements) or None
    return tuple(
        Workload(
            operation,
            tuple(tuple(cores[rank] for rank in group) for group in division),
            fabric,
            shares=shares,
            nodes=options.nodes,
        )
        for division in divisions
    )


def _check_one_device(fabric: Fabric, cores: tuple[int, ...]) -> None:
    device = instance_type(fabric.instance).device.name
    if len({fabric.device_of(core) for core in cores}) > 1 or not device.startswith("trainium"):
        raise UsageError(
            "all_gatherv works within one Trainium device only",
            f"use all_gather, or at most {fabric.cores_per_device} ranks on a Trn instance",
        )


def _total(elements: tuple[int, ...], ranks: int) -> int:
    # The size of an all_gatherv is what all ranks give; that of an alltoallv what the rank gives that sends most.
    if len(elements) <= ranks:
        return sum(elements)
    return max(sum(elements[row * ranks : (row + 1) * ranks]) for row in range(ranks))


def _sizes(
    options: Options, operation: Operation, kind: DataType, work: Workload, elements: tuple[int, ...]
) -> tuple[int, ...]:
    if elements:
        return (_total(elements, work.ranks) * kind.nbytes,)
    if options.sb2sb:
        if _sizes_given(options) and options.input_shape:
            raise UsageError("--input-shape already sets the size", "omit -b, -e, -i and -f")
        shaped = _sbuf_size(options, operation, kind, work.fabric, work.ranks)
        if shaped is not None:
            return (shaped,)
    minimum = DEFAULT_BYTES if options.minbytes is None else parse_size(options.minbytes)
    maximum = DEFAULT_BYTES if options.maxbytes is None else parse_size(options.maxbytes)
    step = None if options.stepbytes is None else parse_size(options.stepbytes)
    return sweep(minimum, maximum, step=step, factor=options.stepfactor)


def _whole_sizes(
    operation: Operation, kind: DataType, asked: tuple[int, ...], work: Workload
) -> tuple[int, ...]:
    if work.shares is not None:
        return asked
    parts = divisor(operation, work.ranks)
    multiple = kind.nbytes * parts
    if operation.is_all_to_all:
        for size in (asked[0], asked[-1]):
            if size % multiple:
                raise UsageError(
                    f"{operation.value}: size {size} is not divisible by {parts} ranks x {kind.nbytes} bytes",
                    f"use multiples of {multiple}",
                )
    return round_sizes(asked, multiple)


def check_statistics(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of statistics, each once.

    Raises:
        UsageError: there is none, or a name is neither `avg` nor a percentile from `p0` to `p100`.
    """
    if not names:
        raise UsageError("no statistics given", "use e.g. avg p50 p99")
    for name in names:
        match = _PERCENTILE.fullmatch(name)
        if name != AVERAGE and (match is None or float(match[1]) > 100):
            raise UsageError(f"unknown statistic {name!r}", "use e.g. avg p50 p99")
    return tuple(dict.fromkeys(names))


def statistic(name: str, times: Sequence[float]) -> float:
    """Return the average, or a percentile by nearest rank."""
    if name == AVERAGE:
        return math.fsum(times) / len(times)
    rank = math.ceil(float(name[1:]) / 100 * len(times))
    return sorted(times)[max(rank, 1) - 1]
