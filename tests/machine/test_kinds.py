"""The kinds of machines that `neurond start` makes: neighbours, visible devices, places in an UltraServer."""

from __future__ import annotations

import json
import os
import signal

import pytest
from msgspec.structs import asdict

from neurontools.errors import DaemonError, NeuronToolsError, UsageError
from neurontools.machine import launch
from neurontools.machine.client import Client
from neurontools.machine.codec import convert
from neurontools.machine.devices import device_states, place_in_ultraserver, ultraserver_of
from neurontools.machine.effective_config import resolve_config
from neurontools.machine.instances.catalogue import instance_names, instance_type
from neurontools.machine.machine_config import DaemonInfo, MachineConfig, StartOptions
from neurontools.machine.machine_names import core_ranges
from neurontools.machine.snapshot import Snapshot

CLASS_FILES = ("node_id_2", "node_id_4", "server_id_2", "server_id_4", "ultraserver_mode")


def wish(instance, before=None, **options):
    """The kind of machine that somebody gets who starts one of a type."""
    return resolve_config(StartOptions("m", **options), instance_type(instance), before)


def start(**options):
    return launch.start(StartOptions("default", **options))


def snapshot():
    with Client.connect() as client:
        return client.snapshot()


@pytest.mark.parametrize("name", instance_names())
def test_every_type_starts_with_every_lnc_that_it_supports(name):
    instance = instance_type(name)
    for lnc in instance.device.lnc_choices:
        kind = wish(name, lnc=lnc)
        cores = [core for device in device_states(kind, instance) for core in device.core_ids]
        assert cores == list(range(instance.core_count(lnc)))
    with pytest.raises(NeuronToolsError, match=r"configuration 3 does not exist"):
        wish(name, lnc=3)


def test_a_machine_with_lnc_1_has_twice_the_cores_and_another_core_version():
    start(instance_type="trn2.48xlarge", lnc=1)
    seen = snapshot()
    assert (seen.lnc, seen.neuroncore_version) == (1, "v3")
    assert seen.devices[1].core_ids == tuple(range(8, 16))
    launch.stop()
    start(instance_type="trn2.48xlarge", lnc=2)
    assert (snapshot().neuroncore_version, snapshot().devices[1].core_ids) == ("v3d", (4, 5, 6, 7))


def test_a_container_sees_its_devices_renumbered_with_the_hosts_neighbours():
    info = start(instance_type="trn2.48xlarge", visible_devices="13, 2")
    assert (info.device_count, info.core_count, info.visible_devices) == (2, 8, (2, 13))
    host = instance_type("trn2.48xlarge")
    for index, (device, at) in enumerate(zip(snapshot().devices, (2, 13), strict=True)):
        assert device.index == index
        assert device.core_ids == tuple(range(4 * index, 4 * index + 4))
        assert device.connected_to == host.connected_to[at]
        assert (device.bdf, device.cpu_affinity, device.numa_node) == (
            host.pci_bdf[at],
            host.cpu_affinity[at],
            host.numa_node[at],
        )


def test_a_process_in_a_container_gets_the_cores_that_are_visible_and_no_others():
    start(instance_type="trn2.48xlarge", visible_devices="13")
    with Client.connect() as client:
        place = client.register("job", "python job.py", runtime_version="2.1")
        os.close(place.page_fd)
        assert place.cores == (0, 1, 2, 3)


def test_the_documents_order_of_neighbours_can_be_chosen():
    start(instance_type="trn2.48xlarge", neighbours="docs")
    assert snapshot().devices[13].connected_to == (9, 12, 1, 14)
    launch.stop()
    start(instance_type="trn2.48xlarge")
    assert snapshot().devices[13].connected_to == (12, 1, 9, 14)


def test_where_documents_and_hosts_agree_both_orders_are_one_kind():
    assert wish("trn1.32xlarge", neighbours="docs") == wish("trn1.32xlarge")


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_the_kind_survives_the_daemon(end, monkeypatch):
    monkeypatch.setenv("NEURONTOOLS_AUTOSTART", "1")
    options = {
        "instance_type": "trn2u.48xlarge",
        "lnc": 1,
        "neighbours": "docs",
        "visible_devices": "1-2",
        "ultraserver_mode": "1,3",
        "ultraserver_node": 2,
    }
    before = start(**options)
    seen = snapshot()
    if end == "restart":
        after = launch.restart()
    else:
        os.kill(before.pid, signal.SIGKILL)
        launch.ensure_running()
        after = launch.find("default")
    assert after.pid != before.pid
    assert after.config == before.config
    assert snapshot().devices == seen.devices
    assert snapshot().ultraserver == seen.ultraserver
    assert start(**options).was_running


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"lnc": 1}, ("LNC 2", "LNC 1")),
        ({"visible_devices": "12"}, ("visible devices 13", "visible devices 12")),
        ({"visible_devices": "all"}, ("visible devices 13", "all devices visible")),
        (
            {"neighbours": "docs"},
            ("neighbours in the hosts' order", "neighbours in the order of AWS's documentation"),
        ),
        ({"ultraserver_node": 3}, ("UltraServer node 0", "UltraServer node 3")),
        ({"ultraserver_mode": "4"}, ("UltraServer modes 1,2,3,4", "UltraServer modes 4")),
    ],
)
def test_another_kind_under_the_same_name_is_refused_and_the_difference_named(other, words):
    start(instance_type="trn2u.48xlarge", visible_devices="13")
    is_, wanted = words
    with pytest.raises(DaemonError) as caught:
        start(**other)
    assert caught.value.message == (
        f"machine 'default' is trn2u.48xlarge with {is_}, not trn2u.48xlarge with {wanted}"
    )
    assert start().was_running
    assert start(instance_type="trn2u.48xlarge", visible_devices="13").was_running


@pytest.mark.parametrize(
    ("text", "devices"),
    [("13", (13,)), (" 0 , 4-6 ", (0, 4, 5, 6)), ("15,0", (0, 15)), ("all", None), ("0-15", None)],
)
def test_visible_devices_are_a_list_or_all(text, devices):
    assert wish("trn2.48xlarge", visible_devices=text).visible_devices == devices


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("", UsageError, "invalid list '' for --visible-devices: it is empty"),
        ("1,,2", UsageError, "it is empty"),
        ("1,1", UsageError, "1 is listed twice"),
        ("0-3,2", UsageError, "2 is listed twice"),
        ("3-1", UsageError, "range '3-1' runs backwards"),
        ("-1", UsageError, "'-1' is neither an index nor a range"),
        ("one", UsageError, "'one' is neither an index nor a range"),
        ("1.0", UsageError, "'1.0' is neither an index nor a range"),
        ("٣", UsageError, "is neither an index nor a range"),
        ("16", NeuronToolsError, "trn2.48xlarge has no Neuron device 16"),
        ("0-9999", NeuronToolsError, "trn2.48xlarge has no Neuron device 9999"),
    ],
)
def test_wrong_lists_of_visible_devices_are_refused(text, error, message):
    with pytest.raises(error, match="--visible-devices" if error is UsageError else "device") as caught:
        wish("trn2.48xlarge", visible_devices=text)
    assert message in caught.value.message
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("instance", "options", "message"),
    [
        ("trn2.48xlarge", {"ultraserver_node": 1}, "trn2.48xlarge is not part of an UltraServer"),
        ("trn2u.48xlarge", {"ultraserver_node": 4}, "no UltraServer node 4"),
        ("trn2u.48xlarge", {"ultraserver_node": -1}, "no UltraServer node -1"),
        ("trn2u.48xlarge", {"ultraserver_mode": "5"}, "unknown UltraServer mode '5'"),
        ("trn2u.48xlarge", {"ultraserver_mode": "x"}, "invalid list 'x' for --ultraserver-mode"),
        ("trn2.48xlarge", {"neighbours": "up"}, "unknown order of neighbours 'up'"),
    ],
)
def test_other_wrong_options_are_refused(instance, options, message):
    with pytest.raises(NeuronToolsError) as caught:
        wish(instance, **options)
    assert message in caught.value.message
    assert caught.value.remedy


def test_what_a_later_start_leaves_open_is_as_before():
    before = wish("trn2u.48xlarge", lnc=1, visible_devices="3", ultraserver_node=2)
    assert wish("trn2u.48xlarge", before) == before
    assert wish("trn2u.48xlarge", before, lnc=2).visible_devices == (3,)
    assert wish("trn2.48xlarge", before) == MachineConfig("trn2.48xlarge", 2)


@pytest.mark.parametrize(
    ("node", "modes", "contents"),
    [
        (0, (1, 2, 3, 4), ("0", "0", "1,2,3,4")),
        (3, (1, 2, 3, 4), ("1", "3", "1,2,3,4")),
        (1, (1, 2, 3, 4), ("1", "1", "1,2,3,4")),
        (2, (3,), ("1", "-1", "3")),
        (1, (3,), ("0", "-1", "3")),
        (1, (1,), ("-1", "1", "1")),
        (1, (4,), ("-1", "-1", "4")),
    ],
)
def test_the_files_of_an_ultraserver_say_place_and_modes(node, modes, contents):
    files = dict(place_in_ultraserver(4, node, modes, CLASS_FILES, "me").files)
    assert (files["node_id_2"], files["node_id_4"], files["ultraserver_mode"]) == contents
    for width in ("2", "4"):
        known = files[f"node_id_{width}"] != "-1"
        assert (len(files[f"server_id_{width}"]) == 16) == known
        assert known or files[f"server_id_{width}"] == "-1"


def test_instances_of_one_ultraserver_share_its_ids():
    places = [dict(place_in_ultraserver(4, node, (1, 2), CLASS_FILES, "me").files) for node in range(4)]
    assert len({files["server_id_4"] for files in places}) == 1
    assert [files["server_id_2"] for files in places[::2]] == [files["server_id_2"] for files in places[1::2]]
    assert len({files["server_id_2"] for files in places}) == 2


@pytest.mark.parametrize("name", [name for name in instance_names() if instance_type(name).ultraserver])
def test_every_type_of_an_ultraserver_has_contents_for_its_files(name):
    instance = instance_type(name)
    place = ultraserver_of(wish(name), instance, owner="me")
    assert place is not None
    assert tuple(file for file, _ in place.files) == instance.ultraserver.class_files
    assert all(content for _, content in place.files)


def test_snapshots_and_infos_keep_the_place_in_their_json():
    info = start(instance_type="trn2u.48xlarge", ultraserver_node=1)
    seen = snapshot()
    assert seen.ultraserver.node == 1
    assert convert(json.loads(json.dumps(seen.to_json())), Snapshot) == seen
    assert convert(json.loads(json.dumps(info.to_json())), DaemonInfo) == info
    older = seen.to_json()
    del older["ultraserver"]
    assert convert(older, Snapshot).ultraserver is None


def test_status_names_what_is_special(tool):
    start(instance_type="trn2u.48xlarge", visible_devices="0-3,13", neighbours="docs", ultraserver_mode="1")
    said = tool("neurond", "status").stdout
    assert "visible   devices 0-3,13 of the host\n" in said
    assert "links     neighbours in the order of AWS's documentation\n" in said
    assert "server    node 0 of its UltraServer, modes 1\n" in said
    assert core_ranges((0, 1, 2, 3, 13)) == "0-3,13"


def test_the_command_takes_every_option(tool):
    run = tool(
        "neurond", "start", "--json", "--instance", "trn2u.48xlarge", "--lnc", "1", "--visible-devices", "13",
        "--neighbours", "docs", "--ultraserver-mode", "1,2", "--ultraserver-node", "3",
    )  # fmt: skip
    info = convert(json.loads(run.stdout), DaemonInfo)
    assert asdict(info.config) == {
        "instance_type": "trn2u.48xlarge",
        "lnc": 1,
        "neighbours": "docs",
        "visible_devices": (13,),
        "ultraserver_modes": (1, 2),
        "ultraserver_node": 3,
    }


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--visible-devices", "1,1"], 2),
        (["--visible-devices", "16"], 1),
        (["--visible-devices", ""], 2),
        (["--lnc", "3"], 1),
        (["--lnc", "two"], 2),
        (["--neighbours", "up"], 2),
        (["--ultraserver-node", "0"], 1),
        (["--instance", "trn2.47xlarge"], 2),
    ],
)
def test_invalid_input_starts_nothing(tool, words, code):
    run = tool("neurond", "start", "--instance", "trn2.48xlarge", *words)
    assert (run.returncode, run.stdout) == (code, "")
    assert "error: " in run.stderr
    assert "Traceback" not in run.stderr
    assert launch.list_machines() == ()


def test_a_name_whose_daemon_stopped_keeps_its_kind_while_processes_live_and_the_hint_says_so():
    start(instance_type="trn2.48xlarge", visible_devices="13")
    with Client.connect() as client:
        os.close(client.register("job", "python job.py", runtime_version="2.1").page_fd)
        launch.stop(force=True)
        with pytest.raises(DaemonError) as caught:
            start(instance_type="trn2.48xlarge", visible_devices="12")
    assert "with visible devices 13, not trn2.48xlarge with visible devices 12" in caught.value.message
    assert (
        "end the processes that still run on it: 'neurond start' and 'neurond status'" in caught.value.remedy
    )
    assert start().visible_devices == (13,)
