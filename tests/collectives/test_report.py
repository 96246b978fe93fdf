"""Tables and JSON, byte for byte: golden files named like the line that makes them; WRITE_GOLDEN=1 writes them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from neurontools.collectives.checking import DataCheck
from neurontools.collectives.running import Row, errors_line, failed_table, report_style, results, table
from neurontools.commands.nccom_test import main

GOLDEN = Path(__file__).parent / "golden"
LINES = {
    "allg.trn1.32xlarge.2.32": "--instance trn1.32xlarge -r 32 -b 1kb -e 512kb -f 8 -d fp32 all_gather",
    "allg.trn1.32xlarge.2.28": "--instance trn1.32xlarge -r 32 -b 1kb -e 512kb -f 8 -d fp32 all_gather",
    "allr.trn1.2xlarge.2.32": "--instance trn1.2xlarge -r 2 allr",
    "everything.trn2.48xlarge.2.32": "--instance trn2.48xlarge -r 64 -b 1kb -e 1GB -f 32 -d bf16 -t avg p50 p99 "
    "--show-algorithm --show-input-output-size reduce_scatter",
    "allr.json.trn1.2xlarge.2.32": "--instance trn1.2xlarge -r 2 -t avg p99 --show-algorithm allr --json",
    "allr.json.trn1.2xlarge.2.28": "--instance trn1.2xlarge -r 2 allr --json",
}


@pytest.mark.parametrize("name", LINES)
def test_what_a_line_prints(name, capsys, monkeypatch):
    monkeypatch.setenv("NEURONTOOLS_EMULATE", name[-4:])
    assert main(LINES[name].split()) == 0
    out = capsys.readouterr().out
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("WRITE_GOLDEN") == "1":
        path.write_text(out)
    assert out == path.read_text()


def row(nbytes=1024, time_s=6.19e-6, factor=31 / 32, checks=()):
    rate = nbytes / time_s
    return Row(
        nbytes,
        nbytes // 4,
        "fp32",
        (("avg", time_s),),
        rate,
        rate * factor,
        "mesh",
        nbytes // 32,
        nbytes,
        checks,
    )


def test_columns_are_right_aligned_and_joined_by_four_spaces():
    lines = table([row(), row(524288, 23.11e-6)], ["avg"], report_style("2.32")).splitlines()
    assert lines[0] == "size(B)    count(elems)    type    time:avg(us)    algbw(GB/s)    busbw(GB/s)"
    assert lines[1] == "   1024             256    fp32            6.19           0.17           0.16"
    assert lines[2] == " 524288          131072    fp32           23.11          22.69          21.98"
    assert lines[3] == "Avg bus bandwidth:\t11.0690GB/s"


@pytest.mark.parametrize(
    ("time_s", "text"), [(10e-6, "10.0"), (260.6e-6, "260.6"), (6.194e-6, "6.19"), (1.0, "1000000.0")]
)
def test_a_time_is_a_float_of_at_most_two_places(time_s, text):
    assert table([row(time_s=time_s)], ["avg"], report_style("2.32")).splitlines()[1].split()[3] == text


def test_before_2_31_times_were_whole_and_bandwidths_binary():
    lines = table([row(2**30, 0.5)], ["avg"], report_style("2.28")).splitlines()
    assert lines[0].split()[3] == "time(us)"
    assert lines[1].split()[3:5] == ["500000", "2.00"]


def test_a_json_row_has_the_documents_keys_and_types():
    (record,) = results([row()], report_style("2.32"))
    assert list(record) == ["size(B)", "count(elems)", "type", "algbw(GB/s)", "busbw(GB/s)", "time:avg(us)"]
    assert [type(value) for value in record.values()] == [int, int, str, float, float, float]
    assert record["time:avg(us)"] == 6.19


def test_a_check_is_in_the_json_only_when_one_was_made():
    wrong = DataCheck(ranks=2, receivers=2, verified_bytes=4, asked_bytes=4, wrong=(1,))
    right = DataCheck(ranks=2, receivers=2, verified_bytes=4, asked_bytes=4, wrong=())
    records = results([row(checks=(right,)), row(checks=(right, wrong)), row()], report_style("2.32"))
    assert [record.get("check") for record in records] == ["passed", "failed", None]


def test_the_texts_of_a_failure():
    text = failed_table(["avg"], report_style("2.32"), "/tmp/nccom_test_log_12345678.log")
    assert text.splitlines()[1] == "Failure running neuron-bench - log file /tmp/nccom_test_log_12345678.log"
    assert errors_line(1) == "1 errors found - test failed"


def test_a_report_file_has_what_json_prints(home, capsys):
    line = "--instance trn1.2xlarge -r 2 allr --json --report-to-json-file report.json"
    assert main(line.split()) == 0
    out = capsys.readouterr().out
    assert (home / "report.json").read_text() == out
    assert set(json.loads(out)) == {"results", "config"}
