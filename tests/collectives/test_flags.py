"""The command line: every flag, its default, operations anywhere, streams, and what is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from neurontools.collectives.operations import ALIASES, NAMES
from neurontools.commands import nccom_flags
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from neurontools.collectives.operations import Options


def options(line: str | list[str]) -> Options:
    words = line.split() if isinstance(line, str) else line
    return nccom_flags.parse_options(nccom_flags.parse(words))[0]


def test_the_defaults_are_those_of_the_documents():
    found = nccom_flags.parse(["-r", "2", "allr"])
    assert (found.nnodes, found.minbytes, found.maxbytes, found.stepbytes, found.stepfactor) == (
        1,
        None,
        None,
        None,
        None,
    )
    assert (found.iters, found.warmup_iters, found.datatype, found.stats) == (20, 5, "uint8", ["avg"])
    assert (found.check, found.cc_dim, found.data_collector_port) == (None, None, 60006)
    switches = ("unique_buff", "shared_output_buff", "slurm_mode", "non_interactive", "show_algorithm", "sb2sb",
                "show_input_output_size", "slurm_use_head_node_neuron_bench")  # fmt: skip
    assert not any(getattr(found, name) for name in switches)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "line", ["{} -r 2", "-r 2 {}", "-r 2 {} -n 3", "-c {} -r 2", "-r 2 -t avg p50 {}", "-r2 -s h {}"]
)
def test_an_operation_may_stand_anywhere(name, line, monkeypatch):
    assert options(line.format(name)).operation == name


def test_there_are_the_operations_and_aliases_of_the_documents():
    assert set(ALIASES) == {"allr", "allg", "allgv", "redsct"}
    assert {
        "all_reduce",
        "all_gather",
        "all_gatherv",
        "reduce_scatter",
        "sendrecv",
        "alltoall",
        "alltoallv",
        "permute",
    } <= set(NAMES)


@pytest.mark.parametrize(
    ("short", "long", "value", "name", "wanted"),
    [
        ("-N", "--nnodes", "2", "nodes", 2),
        ("-b", "--minbytes", "1kb", "minbytes", "1kb"),
        ("-e", "--maxbytes", "1GB", "maxbytes", "1GB"),
        ("-i", "--stepbytes", "1MB", "stepbytes", "1MB"),
        ("-f", "--stepfactor", "2", "stepfactor", 2.0),
        ("-n", "--iters", "7", "iters", 7),
        ("-w", "--warmup_iters", "0", "warmup_iters", 0),
        ("-I", "--neff_iters", "3", "neff_iters", 3),
        ("-W", "--neff_warmup_iters", "4", "neff_warmup_iters", 4),
        ("-d", "--datatype", "bf16", "datatype", "bf16"),
        ("-c", "--check", "all_ones", "check", "all_ones"),
        ("-t", "--stats", "avg,p99", "stats", ("avg", "p99")),
        ("-s", "--hosts", "a,b", "hosts", ("a", "b")),
        ("", "--seed", "5", "seed", 5),
        ("", "--coalesced-cc-size-ratio", "1", "coalesced_cc_size_ratio", "1"),
        ("", "--variable-size-op-metadata", "f", "variable_size_op_metadata", "f"),
        ("", "--input-shape", "2,2", "input_shape", "2,2"),
        ("", "--output-shape", "2,2", "output_shape", "2,2"),
        ("", "--cc-dim", "0", "cc_dim", 0),
        ("", "--data-parallel-dimension", "2", "data_parallel_dimension", 2),
        ("", "--custom-replica-groups", "f", "custom_replica_groups", "f"),
        ("", "--custom-src-target-pairs", "f", "custom_src_target_pairs", "f"),
        ("", "--algorithm", "ring", "algorithm", "ring"),
        ("", "--check-bytes", "1MB", "check_bytes", "1MB"),
    ],
)
def test_a_flag_with_a_value(short, long, value, name, wanted):
    for flag in filter(None, (short, long)):
        assert getattr(options(["-r", "2", "allr", flag, value]), name) == wanted
    assert getattr(options(["-r", "2", f"{long}={value}", "allr"]), name) == wanted


@pytest.mark.parametrize(
    "line",
    [
        "--mpi-log-dir d", "-u 4", "--slurm-vcpus-per-node 4", "--slurm-setup-script", "--slurm-setup-script f",
        "--slurm-job-id 7", "--slurm-use-head-node-neuron-bench", "-S", "--slurm-mode", "--vcpu-pin-mode m",
        "--data-collector-port 1", "--data-collector-host h", "--non-interactive", "--report-to-json-file f",
        "--show-algorithm", "--show-input-output-size", "--debug", "--unique-buff", "--shared-output-buff", "--sb2sb",
        "--json", "--machine m", "--instance trn1.2xlarge",
    ],
)  # fmt: skip
def test_a_flag_that_is_accepted(line):
    assert options(f"-r 2 {line} allr").operation == "allr"


def test_check_without_a_value_is_random():
    assert options("-r 2 -c allr").check == "random"
    assert options("-r 2 allr --check").check == "random"


def test_debug_implies_non_interactive():
    assert nccom_flags.parse(["-r", "2", "allr", "--debug"]).non_interactive


def test_a_value_may_look_like_an_operation():
    assert options("-r 2 --report-to-json-file allr sendrecv").operation == "sendrecv"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "no operation given"),
        ("-r 2", "no operation given"),
        ("allr", "-r/--nworkers is missing"),
        ("-r 2 allr allg", "more than one operation: allr and allg"),
        ("-r 2 allr allr", "more than one operation: allr and allr"),
        ("-r 2 allr --machine a --instance b", "--machine and --instance exclude each other"),
        ("-r 2 allr -s a --hosts-file f", "--hosts and --hosts-file exclude each other"),
        ("-r 2 allr -s a -S", "MPI hosts and --slurm-mode exclude each other"),
        ("-r 2 allr --streams-json f", "an operation and --streams-json exclude each other"),
        ("-r 2 --streams-json nowhere.json", "cannot read nowhere.json"),
        ("-r 2 allr --hosts-file nowhere", "cannot read nowhere"),
    ],
)
def test_an_invalid_line(line, words):
    with pytest.raises(UsageError, match=words):
        options(line)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("-r 2 nothing", "invalid choice: 'nothing'"),
        ("-r two allr", "invalid int value: 'two'"),
        ("-r 2 -r 2 allr", "-r is given twice"),
        ("-r 2 --nworkers 2 allr", "--nworkers is given twice"),
        ("-r 2 -S --slurm-mode allr", "--slurm-mode is given twice"),
        ("-r 2 -c all_twos allr", "invalid choice: 'all_twos'"),
        ("-r 2 --minbyte 1 allr", "unrecognized arguments"),
        ("-r 2 --unknown allr", "unrecognized arguments: --unknown"),
        ("-r 2 allr extra", "unrecognized arguments: extra"),
        ("-r 2 allr -b", "expected one argument"),
        ("-r 2 allr -f fast", "invalid float value: 'fast'"),
    ],
)
def test_what_the_parser_refuses(line, words):
    with pytest.raises(UsageError, match=words):
        nccom_flags.parse(line.split())


def test_hosts_come_from_a_file(home):
    (home / "hosts").write_text("# nodes\nnode-1 slots=1\n\nnode-2\n")
    assert options("-r 2 allr --hosts-file hosts").hosts == ("node-1", "node-2")
    (home / "hosts").write_text("\n")
    with pytest.raises(UsageError, match="names no host"):
        options("-r 2 allr --hosts-file hosts")


def test_streams_take_the_line_as_their_defaults(home):
    streams = [
        {"operation": "allr", "minbytes": "1kb", "warmup_iters": 2, "unique_buff": True, "sb2sb": False},
        {"operation": "sendrecv", "stats": ["avg", "p50"], "ops_per_iter": 3, "check": True},
    ]
    (home / "s.json").write_text(json.dumps({"streams": streams}))
    one, two = nccom_flags.parse_options(
        nccom_flags.parse(["-r", "2", "-n", "7", "-b", "4kb", "--streams-json", "s.json"])
    )
    assert (one.operation, one.minbytes, one.iters, one.warmup_iters, one.unique_buff) == (
        "allr",
        "1kb",
        7,
        2,
        True,
    )
    assert (two.operation, two.minbytes, two.stats, two.ops_per_iter, two.check) == (
        "sendrecv",
        "4kb",
        ("avg", "p50"),
        3,
        "random",
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is not JSON"),
        ("[" * 100000, "is not JSON"),
        ("[]", "must be"),
        ('{"streams": []}', "at least one stream"),
        ('{"streams": [1]}', "stream 0 names no operation"),
        ('{"streams": [{"operation": "allr"}, {"operation": "sum"}]}', "stream 1 names no operation"),
        ('{"streams": [{"operation": "allr", "colour": 1}]}', "stream 0: unknown or global key 'colour'"),
        ('{"streams": [{"operation": "allr", "nworkers": 4}]}', "stream 0: unknown or global key 'nworkers'"),
        ('{"streams": [{"operation": "allr", "ops_per_iter": "x"}]}', "ops_per_iter 'x' is not a number"),
    ],
)
def test_invalid_streams(home, content, words):
    (home / "s.json").write_text(content)
    with pytest.raises(UsageError, match=words):
        options("-r 2 --streams-json s.json")


def test_a_wrong_value_in_a_stream_names_the_stream(home):
    (home / "s.json").write_text('{"streams": [{"operation": "allr", "iters": "many"}]}')
    with pytest.raises(
        UsageError, match=r"^s\.json: stream 0: argument -n/--iters: invalid int value: 'many'"
    ):
        options("-r 2 --streams-json s.json")
