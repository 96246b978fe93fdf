"""Every mode of neuron-ls byte for byte. A file `*.capture.txt` is output of a real machine or of the documents."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neurontools.machine.listing.text import render

INSTANCES = ("trn1.2xlarge", "trn1.32xlarge", "inf2.xlarge", "inf2.48xlarge", "trn2.48xlarge")
MODES = {"plain": [], "w": ["-w"], "a": ["-a"], "t": ["-t"], "j": ["-j"]}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("load", ["idle", "busy"])
@pytest.mark.parametrize("instance", INSTANCES)
def test_output_is_the_golden_file_of_release_2_32(make, busy_jobs, golden, instance, load, mode):
    jobs = busy_jobs(instance) if load == "busy" else ()
    code, out, err = render(make(instance, jobs), MODES[mode], "2.32")
    assert (code, err) == (0, b"")
    assert out == golden(f"{instance}.{load}.{mode}.2.32.txt", out)


@pytest.mark.parametrize("instance", ["trn1.2xlarge", "trn2.48xlarge"])
def test_json_is_the_golden_file_of_release_2_28(make, golden, instance):
    out = render(make(instance), ["-j"], "2.28")[1]
    assert out == golden(f"{instance}.idle.j.2.28.txt", out)


@pytest.mark.parametrize(
    "instance", ["inf1.6xlarge", "inf1.24xlarge", "inf2.24xlarge", "trn3.48xlarge", "trn3e.24xlarge"]
)
def test_drawings_are_the_golden_files(make, golden, instance):
    out = render(make(instance), ["-t"], "2.32")[1]
    assert out == golden(f"{instance}.idle.t.2.32.txt", out)


def test_idle_table_is_the_capture_of_a_real_trn1(make, capture):
    out = render(make("trn1.2xlarge"), [], "2.32")[1]
    assert out == capture("trn1.2xlarge.idle.plain")


def test_json_is_the_capture_of_release_2_28(make, capture):
    out = render(make("trn1.2xlarge"), ["-j"], "2.28")[1]
    assert out + b"\n" == capture("trn1.2xlarge.idle.j.2.28")


def test_table_with_a_process_is_the_capture_of_a_real_trn1(make, job, capture):
    command = "/opt/conda/bin/python -c from multiprocessing.spawn import spawn_main"
    snapshot = make("trn1.2xlarge", (job(37021, command, (0, 1), "2.27.23"),))
    table = table_of(render(snapshot, [], "2.32")[1])
    assert table == capture("trn1.2xlarge.busy.plain")


def test_table_in_a_container_is_the_capture_of_a_real_trn2(make, job, capture):
    jobs = (job(1966681, "", (0,)), job(1966680, "", (1, 2)))
    whole = make("trn2.48xlarge", jobs, instance_id="i-0dcf246b9a7d5f066")
    device = replace(whole.devices[13], index=0, core_ids=(0, 1, 2, 3))
    out = render(replace(whole, devices=(device,)), [], "2.32")[1]
    assert out == capture("trn2.48xlarge.container.plain.2.32")


@pytest.mark.parametrize("instance", ["trn1.32xlarge", "trn2.48xlarge"])
def test_torus_is_the_drawing_of_the_documents(make, capture, instance):
    out = render(make(instance), ["-t"], "2.32")[1]
    assert out.endswith(b"+\n\n\n" + capture("torus4x4.drawing"))


def test_chain_is_the_drawing_of_the_documents(make, capture):
    out = render(make("inf1.6xlarge"), ["-t"], "2.32")[1]
    assert out.endswith(b"\n\n\n" + capture("chain4.drawing"))


def table_of(out):
    return out[out.index(b"+") :]
