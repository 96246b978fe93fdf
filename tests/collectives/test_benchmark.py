"""What a line means on an instance: sizes, groups, pairs, shapes; and what is refused there."""

from __future__ import annotations

import json
import sys

import pytest

from neurontools.commands.nccom_test import main

PAIR = "--instance trn1.2xlarge -r 2"
QUAD = "--instance trn2.3xlarge -r 4"
FILES = {
    "groups": {"replica_groups": [[[0, 1], [2, 3]], [[0, 2], [1, 3]]]},
    "uneven": {"replica_groups": [[[0, 1, 2], [3]]]},
    "missing": {"replica_groups": [[[0, 1]]]},
    "twice": {"replica_groups": [[[0, 1], [1, 3]]]},
    "beyond": {"replica_groups": [[[0, 1], [2, 4]]]},
    "flat": {"replica_groups": [[0, 1], [2, 3]]},
    "pairs": {"src_target_pairs": [[[0, 1], [1, 0]]]},
    "two_targets": {"src_target_pairs": [[[0, 1], [0, 2]]]},
    "two_sources": {"src_target_pairs": [[[0, 1], [2, 1]]]},
    "triple": {"src_target_pairs": [[[0, 1, 2]]]},
    "text": {"src_target_pairs": [[["a", 1]]]},
    "counts": {"counts": [1, 0, 5, 10]},
    "table": {"counts": [[1, 2, 3, 4], [0, 0, 0, 0], [5, 6, 7, 8], [1, 1, 1, 1]]},
    "zeros": {"counts": [0, 0, 0, 0]},
    "negative": {"counts": [1, -1, 1, 1]},
    "nothing": {},
}


@pytest.fixture(autouse=True)
def files(home):
    for name, content in FILES.items():
        (home / f"{name}.json").write_text(json.dumps(content))


@pytest.fixture
def report(capsys):
    """Run a line with --json and return its report."""

    def run(line, code=0):
        assert main([*line.split(), "--json"]) == code
        return json.loads(capsys.readouterr().out)

    return run


def sizes(report):
    return [row["size(B)"] for row in report["results"]]


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (f"{PAIR} allr", [2**25]),
        (f"{PAIR} -b 1kb -e 8kb -f 2 allr", [1024, 2048, 4096, 8192]),
        (f"{PAIR} -b 1kb -e 4kb -i 1kb allr", [1024, 2048, 3072, 4096]),
        (f"{PAIR} -b 1001 -e 1001 -d fp32 allr", [1000]),
        (f"{PAIR} -b 1 -e 1 -d fp32 allr", [8]),
        (f"{PAIR} -b 7 -e 7 -d fp32 sendrecv", [4]),
        (f"{PAIR} -b 1 -e 9 -i 1 -d fp32 allr", [8]),
        (f"{QUAD} -b 1000 -e 1300 -i 50 alltoall", [1000, 1048, 1100, 1148, 1200, 1248, 1300]),
        (f"{QUAD} --variable-size-op-metadata counts.json -d fp32 allgv", [64]),
        (f"{QUAD} --variable-size-op-metadata table.json -d int16 alltoallv", [52]),
        (f"{QUAD} --sb2sb --input-shape 128,512 -d bf16 allg", [524288]),
        (f"{QUAD} --sb2sb --input-shape 128x512 --output-shape 128x128 redsct", [65536]),
        (f"{QUAD} --sb2sb --input-shape 128x512 --cc-dim 0 --output-shape 512,512 allg", [262144]),
        (f"{QUAD} --sb2sb -b 1kb -e 1kb allr", [1024]),
    ],
)
def test_sizes(report, line, wanted):
    assert sizes(report(line)) == wanted


def test_rounded_sizes_are_reported_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(f"{PAIR} -b 1001 -e 1001 -d fp32 allr".split()) == 0
    assert "note: sizes are rounded down to whole elements of every rank\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "sizes"),
    [("allg", (256, 1024)), ("redsct", (1024, 256)), ("allr", (1024, 1024)), ("alltoall", (1024, 1024))],
)
def test_input_and_output_sizes(report, line, sizes):
    row = report(f"{QUAD} -b 1kb -e 1kb --show-input-output-size {line}")["results"][0]
    assert (row["total_input_size(B)"], row["total_output_size(B)"]) == sizes


@pytest.mark.parametrize(
    "line",
    [
        "allr --custom-replica-groups groups.json",
        "allg --data-parallel-dimension 2",
        "permute --custom-src-target-pairs pairs.json",
        "sendrecv --custom-src-target-pairs pairs.json",
        "allgv --variable-size-op-metadata counts.json",
        "alltoallv --variable-size-op-metadata table.json",
        "alltoallv",
        "allr --algorithm ring",
    ],
)
def test_a_checked_run_is_right(report, line):
    row = report(
        f"{QUAD} -b 4kb -e 4kb --check -d fp16 {line}" if "metadata" not in line else f"{QUAD} --check {line}"
    )
    assert row["results"][0]["check"] == "passed"


def test_groups_are_smaller_collectives(report):
    whole = report(f"{QUAD} allr")["results"][0]
    pairs = report(f"{QUAD} --data-parallel-dimension 2 allr")["results"][0]
    assert pairs["busbw(GB/s)"] == pytest.approx(pairs["algbw(GB/s)"])
    assert whole["busbw(GB/s)"] == pytest.approx(1.5 * whole["algbw(GB/s)"], rel=1e-3)


def test_streams_share_the_links(report, home):
    alone = report(f"{PAIR} allr")["results"][0]["time:avg(us)"]
    (home / "two.json").write_text(
        json.dumps({"streams": [{"operation": "allr"}, {"operation": "sendrecv"}]})
    )
    both = report(f"{PAIR} --streams-json two.json")
    assert both["results"][0]["time:avg(us)"] == pytest.approx(2 * alone, rel=0.01)
    assert [stream["operation"] for stream in both["config"]["streams"]] == ["allr", "sendrecv"]


def test_the_same_line_gives_the_same_numbers(report):
    line = f"{PAIR} -t avg p50 p99 allr"
    assert report(line) == report(line)
    one, other = report(line)["results"][0], report(f"{line} --seed 1")["results"][0]
    assert one["time:avg(us)"] == other["time:avg(us)"]
    assert one["time:p99(us)"] != other["time:p99(us)"]
    assert one["time:p50(us)"] < one["time:p99(us)"]


def test_the_report_says_that_it_is_modelled(report):
    config = report(f"{PAIR} allr")["config"]
    assert (config["modelled"], config["instance_type"], config["machine"]) == (True, "trn1.2xlarge", None)


def test_several_nodes_are_modelled(report, monkeypatch):
    line = "--instance trn1.32xlarge -r 64 -N 2 --show-algorithm allr"
    assert report(line)["results"][0]["algorithm"] == "hier"
    monkeypatch.setenv("NEURON_RT_ROOT_COMM_ID", "[::1]:46820")
    assert sizes(report(f"{line} -s a b")) == [2**25]


def test_the_environment_chooses_the_configuration(report, monkeypatch):
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "1")
    assert report("--instance trn2.3xlarge -r 8 allr")["config"]["logical_neuroncore_config"] == 1


REFUSED = [
    (f"{PAIR} -r", "expected one argument"),
    ("--instance trn1.2xlarge -r 1 allr", "at least 2 ranks"),
    ("--instance trn1.2xlarge -r -2 allr", "at least 2 ranks"),
    ("--instance trn1.2xlarge -r 3 allr", "3 ranks need 3 NeuronCores, trn1.2xlarge has 2 available"),
    (
        "--instance trn1.32xlarge -r 4 allr",
        "4 ranks on one node cannot be connected on trn1.32xlarge (LNC 1)",
    ),
    ("--instance trn2.48xlarge -r 8 allr", "use 4, 16, 64 ranks per node"),
    (
        "--instance trn1.32xlarge -r 16 -N 2 allr",
        "8 ranks on one node cannot be connected on trn1.32xlarge (LNC 1), 2 nodes",
    ),
    ("--instance trn1.32xlarge -r 33 -N 2 allr", "33 ranks cannot be spread over 2 nodes"),
    ("--instance trn1.32xlarge -r 32 -N 0 allr", "cannot be spread over 0 nodes"),
    ("--instance inf2.48xlarge -r 48 -N 2 allr", "not supported on inf2.48xlarge"),
    ("--instance trn2.3xlarge -r 8 -N 2 allr", "network rate of trn2.3xlarge is not published"),
    ("--instance trn1.32xlarge -r 64 -N 2 --check allr", "--check works on one instance only"),
    ("--instance trn1.32xlarge -r 64 -N 2 sendrecv", "sendrecv between instances is not modelled"),
    ("--instance trn1.32xlarge -r 64 -N 2 -s a b allr", "NEURON_RT_ROOT_COMM_ID is not set"),
    ("--instance trn9 -r 2 allr", "unknown instance type 'trn9'"),
    (f"{PAIR} allr -b 64MB", "is above the largest"),
    (f"{PAIR} allr -b 1x", "invalid size '1x'"),
    (f"{PAIR} allr -f 0.5", "is not a finite number above 1"),
    (f"{PAIR} allr -i 1kb -f 2", "exclude each other"),
    (f"{PAIR} allr -n 0", "-n/--iters 0 is out of range: must be 1"),
    (f"{PAIR} allr -w -1", "-w/--warmup_iters -1 is out of range: must be 0"),
    (f"{PAIR} allr -I 0", "-I/--neff_iters 0 is out of range: must be 1"),
    (f"{PAIR} allr -d fp64", "unknown data type 'fp64'"),
    (f"{PAIR} allr -t p101", "unknown statistic 'p101'"),
    (f"{PAIR} allr --algorithm tree", "unknown algorithm 'tree'"),
    (f"{PAIR} allr --algorithm kangaring", "kangaring is not possible"),
    (f"{QUAD} alltoall -b 999 -e 999", "size 999 is not divisible by 4 ranks x 1 bytes"),
    (f"{PAIR} --sb2sb allr", "--sb2sb is not supported on trn1.2xlarge"),
    (f"{QUAD} --input-shape 2,2 allr", "--input-shape needs --sb2sb"),
    (f"{QUAD} --cc-dim 1 allr", "--cc-dim needs --sb2sb"),
    (f"{QUAD} --sb2sb --cc-dim 1 allr", "need --input-shape"),
    (f"{QUAD} --sb2sb --input-shape 2,b allr", "invalid shape '2,b'"),
    (f"{QUAD} --sb2sb --input-shape 0,2 allr", "invalid shape '0,2'"),
    (f"{QUAD} --sb2sb --input-shape 2,2 --cc-dim 2 allr", "out of range: the shape has 2 dimensions"),
    (f"{QUAD} --sb2sb --input-shape 2,3 redsct", "dimension 1 of 3 cannot be divided among 4 ranks"),
    (
        f"{QUAD} --sb2sb --input-shape 2,4 --output-shape 2,4 allg",
        "does not match all_gather, which produces 2,16",
    ),
    (f"{QUAD} --sb2sb --input-shape 99999,99999 allr", "do not fit into the SBUF"),
    (f"{QUAD} --sb2sb --input-shape 2,4 -b 1 allr", "--input-shape already sets the size"),
    (f"{QUAD} --custom-replica-groups groups.json --data-parallel-dimension 2 allr", "exclude each other"),
    (f"{QUAD} --custom-replica-groups groups.json sendrecv", "sendrecv has no replica groups"),
    (f"{QUAD} --custom-replica-groups uneven.json allr", "must be of one size"),
    (f"{QUAD} --custom-replica-groups missing.json allr", "do not hold each of the 4 ranks once"),
    (f"{QUAD} --custom-replica-groups twice.json allr", "do not hold each of the 4 ranks once"),
    (f"{QUAD} --custom-replica-groups beyond.json allr", "4 is not a rank"),
    (f"{QUAD} --custom-replica-groups flat.json allr", "must be lists of lists of ranks"),
    (f"{QUAD} --custom-replica-groups nothing.json allr", "must be"),
    (f"{QUAD} --custom-replica-groups nowhere.json allr", "cannot read nowhere.json"),
    (f"{QUAD} --data-parallel-dimension 3 allr", "does not divide 4 ranks"),
    (f"{QUAD} --data-parallel-dimension 1 allr", "does not divide 4 ranks"),
    (f"{QUAD} --custom-src-target-pairs pairs.json allr", "is for permute and sendrecv"),
    (f"{QUAD} --custom-src-target-pairs two_targets.json permute", "rank 0 sends more than once"),
    (f"{QUAD} --custom-src-target-pairs two_sources.json permute", "rank 1 receives more than once"),
    (f"{QUAD} --custom-src-target-pairs triple.json permute", "is not a pair of ranks"),
    (f"{QUAD} --custom-src-target-pairs text.json permute", "'a' is not a rank"),
    (f"{QUAD} --variable-size-op-metadata counts.json allg", "is for all_gatherv and alltoallv"),
    (f"{QUAD} --variable-size-op-metadata counts.json alltoallv", "with 4 lists of 4 element counts"),
    (f"{QUAD} --variable-size-op-metadata table.json allgv", "with 4 element counts"),
    (f"{QUAD} --variable-size-op-metadata zeros.json allgv", "all counts are 0"),
    (f"{QUAD} --variable-size-op-metadata negative.json allgv", "with 4 element counts"),
    (f"{QUAD} --variable-size-op-metadata counts.json -b 1 allgv", "already sets the sizes"),
    ("--instance trn1.32xlarge -r 8 allgv", "all_gatherv works within one Trainium device only"),
    ("--instance inf2.xlarge -r 2 allgv", "all_gatherv works within one Trainium device only"),
    (f"{PAIR} --check --check-bytes none allr", "invalid size 'none'"),
]


@pytest.mark.parametrize(("line", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_is_refused(line, words, capsys):
    try:
        code = main(line.split())
    except SystemExit as exit_:
        code = exit_.code
    out, err = capsys.readouterr()
    assert code in {1, 2}
    assert out == ""
    assert words in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("NEURON_LOGICAL_NC_CONFIG", "3", "is not a logical NeuronCore configuration"),
        ("NEURON_LOGICAL_NC_CONFIG", "2", "configuration 2 does not exist on trn1.2xlarge"),
        ("NEURONTOOLS_EMULATE", "1.0", "unknown release '1.0'"),
        ("NEURON_RT_ROOT_COMM_ID", "nowhere", "NEURON_RT_ROOT_COMM_ID=nowhere is not ip:port"),
        ("NEURON_RT_ROOT_COMM_ID", "10.0.0.1:99999", "is not ip:port"),
        ("NEURONTOOLS_HOST_MEMORY", "lots", "invalid size 'lots'"),
    ],
)
def test_an_invalid_environment(name, value, words, capsys, monkeypatch):
    monkeypatch.setenv(name, value)
    assert (
        main(
            f"{PAIR} allr --check -s localhost".split() if "COMM" in name else f"{PAIR} allr --check".split()
        )
        != 0
    )
    assert words in capsys.readouterr().err
