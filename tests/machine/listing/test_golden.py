"""Every mode of neuron-ls byte for byte.

The names of the files say what they are: instance type, LNC where it applies, load, mode, release, and where the text
is from: `.capture.txt` from a real machine, `.docs.txt` from the documents, `.ours.txt` from our renderer.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from neurontools.machine.instances.catalogue import instance_names, instance_type
from neurontools.machine.listing.text import render
from neurontools.machine.machine_config import DOCS

GOLDEN = Path(__file__).parent / "golden"
MODES = {"plain": [], "w": ["-w"], "a": ["-a"], "t": ["-t"], "j": ["-j"]}
IDLE = ("trn1.2xlarge", "trn1.32xlarge", "inf2.48xlarge", "trn2.48xlarge", "trn3e.24xlarge")
CASES = [(name, lnc) for name in instance_names() for lnc in instance_type(name).device.lnc_choices]


def title(name, lnc):
    """How a golden file of an instance type begins."""
    return f"{name}.lnc{lnc}" if instance_type(name).lnc_applies else name


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("instance", "lnc"), CASES)
def test_a_busy_machine_of_every_type_is_its_golden_file(make, busy_jobs, golden, instance, lnc, mode):
    code, out, err = render(make(instance, busy_jobs(instance, lnc), lnc=lnc), MODES[mode], "2.32")
    assert (code, err) == (0, b"")
    assert out == golden(f"{title(instance, lnc)}.busy.{mode}.2.32.ours.txt", out)


@pytest.mark.parametrize(
    ("instance", "mode", "release"),
    [
        *((instance, mode, "2.32") for instance in IDLE for mode in ("plain", "t", "j")),
        *((instance, "j", "2.28") for instance in ("trn1.2xlarge", "trn2.48xlarge")),
    ],
)
def test_an_idle_machine_is_its_golden_file(make, golden, instance, mode, release):
    lnc = instance_type(instance).device.lnc_default
    out = render(make(instance), MODES[mode], release)[1]
    assert out == golden(f"{title(instance, lnc)}.idle.{mode}.{release}.ours.txt", out)


@pytest.mark.parametrize("instance", IDLE)
def test_wide_and_all_change_nothing_where_no_process_is(make, instance):
    plain = render(make(instance), [], "2.32")
    assert render(make(instance), ["-w"], "2.32") == render(make(instance), ["-a"], "2.32") == plain


@pytest.mark.parametrize("mode", ["plain", "t", "j"])
@pytest.mark.parametrize(
    ("instance", "visible"),
    [
        ("trn2.48xlarge", (13,)),
        ("trn2.48xlarge", (0, 1, 4, 5)),
        ("inf2.48xlarge", (0, 11)),
        ("trn3e.24xlarge", (1, 2)),
    ],
)
def test_a_container_sees_what_its_golden_file_says(make, golden, instance, visible, mode):
    out = render(make(instance, visible=visible), MODES[mode], "2.32")[1]
    devices = "-".join(map(str, visible))
    lnc = instance_type(instance).device.lnc_default
    assert out == golden(f"{title(instance, lnc)}.container-{devices}.{mode}.2.32.ours.txt", out)


@pytest.mark.parametrize("mode", ["plain", "j"])
def test_the_documents_order_of_neighbours_is_its_golden_file(make, golden, mode):
    out = render(make("trn2.48xlarge", neighbours=DOCS), MODES[mode], "2.32")[1]
    assert out == golden(f"trn2.48xlarge.lnc2.neighbours-docs.{mode}.2.32.ours.txt", out)


def test_every_golden_file_is_asked_for_and_says_where_it_is_from():
    kinds = {path.name.rsplit(".", 2)[1] for path in GOLDEN.iterdir()}
    assert kinds == {"capture", "docs", "ours"}
    busy = {path.name for path in GOLDEN.glob("*.busy.*.ours.txt")}
    assert busy == {f"{title(name, lnc)}.busy.{mode}.2.32.ours.txt" for name, lnc in CASES for mode in MODES}


def test_idle_table_is_the_capture_of_a_real_trn1(make, capture):
    out = render(make("trn1.2xlarge"), [], "2.32")[1]
    assert out == capture("trn1.2xlarge.idle.plain.2.25-2.32.capture")


def test_json_is_the_capture_of_release_2_28(make, capture):
    out = render(make("trn1.2xlarge"), ["-j"], "2.28")[1]
    assert out + b"\n" == capture("trn1.2xlarge.idle.j.2.28.capture")


def test_table_with_a_process_is_the_capture_of_a_real_trn1(make, job, capture):
    command = "/opt/conda/bin/python -c from multiprocessing.spawn import spawn_main"
    snapshot = make("trn1.2xlarge", (job(37021, command, (0, 1), "2.27.23"),))
    table = table_of(render(snapshot, [], "2.32")[1])
    assert table == capture("trn1.2xlarge.busy.plain.2.25-2.32.capture")


def test_table_in_a_container_is_the_capture_of_a_real_trn2(make, job, capture):
    jobs = (job(1966681, "", (0,)), job(1966680, "", (1, 2)))
    snapshot = make("trn2.48xlarge", jobs, visible=(13,), instance_id="i-0dcf246b9a7d5f066")
    assert render(snapshot, [], "2.32")[1] == capture(
        "trn2.48xlarge.lnc2.container-13.busy.plain.2.32.capture"
    )


def test_json_of_a_trn2_is_what_the_documents_show_of_its_first_device(make, job, capture):
    bench = job(113985, "neuron-bench exec --run-as-cc-neff --neff-dir /tmp/cc", (0,), "2.0.0")
    snapshot = make("trn2.48xlarge", (bench,), neighbours=DOCS)
    device = json.loads(render(snapshot, ["-j"], "2.28")[1])[0]
    shown = json.loads(capture("trn2.48xlarge.lnc2.busy.j-device0.2.22.docs"))
    assert {key: device[key] for key in shown} == shown
    assert [key for key in device if key in shown] == list(shown)


@pytest.mark.parametrize("instance", ["trn1.32xlarge", "trn2.48xlarge"])
def test_torus_is_the_drawing_of_the_documents(make, capture, instance):
    out = render(make(instance), ["-t"], "2.32")[1]
    assert out.endswith(b"+\n\n\n" + capture("torus4x4.drawing.2.22-2.32.docs"))


def test_chain_is_the_drawing_of_the_documents(make, capture):
    out = render(make("inf1.6xlarge"), ["-t"], "2.32")[1]
    assert out.endswith(b"\n\n\n" + capture("chain4.drawing.2.14-2.21.docs"))


def table_of(out):
    return out[out.index(b"+") :]
