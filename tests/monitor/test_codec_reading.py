"""Lines back to reports: ours, real ones, and damaged ones."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neurontools.monitor import report as r
from neurontools.monitor.codec import DamagedLineError, format_line, parse_line
from tests.monitor.test_codec_writing import CAPTURED

counts = st.integers(0, 2**53)
few = st.integers(0, 1024)
shares = st.floats(0, 1e9, allow_nan=False)
texts = st.text(max_size=12)


def built(kind, value):
    return st.builds(kind, *[value] * len(kind.__slots__))


def by_index(values):
    return st.dictionaries(st.integers(0, 999), values, max_size=4).map(
        lambda found: tuple(sorted(found.items(), key=lambda pair: pair[0]))
    )


cores = st.builds(
    r.CoreActivity,
    shares,
    counts,
    shares,
    st.none() | st.builds(r.PhysicalCores, st.sampled_from(["v3d", "v4d"]), by_index(shares)),
)
subgraphs = st.builds(
    r.Subgraph,
    st.just("sg_00"),
    counts,
    counts,
    built(r.HostMemory, counts),
    built(r.SubgraphMemory, counts),
    counts,
    counts,
)
models = st.builds(
    r.ReportedModel, texts, texts, counts, st.booleans(), st.lists(subgraphs, max_size=1).map(tuple)
)
latencies = st.none() | built(r.Percentiles, shares)
runtimes = st.builds(
    r.RuntimeEntry,
    pid=counts,
    tag=texts,
    address=texts,
    error=texts,
    neuroncore_counters=st.none() | st.builds(r.NeuroncoreCounters, shares, by_index(cores), texts),
    memory_used=st.none()
    | st.builds(
        r.MemoryUsed,
        shares,
        counts,
        counts,
        built(r.HostMemory, counts),
        by_index(built(r.CoreMemory, counts)),
        st.lists(models, max_size=2).map(tuple),
        texts,
    ),
    vcpu_usage=st.none() | st.builds(r.RuntimeVcpuUsage, shares, shares, shares, texts),
    execution_stats=st.none()
    | st.builds(
        r.ExecutionStats,
        shares,
        built(r.ErrorSummary, counts),
        built(r.ExecutionSummary, counts),
        latencies,
        latencies,
        texts,
    ),
)
systems = st.builds(
    r.SystemData,
    st.none() | st.builds(r.HostMemoryInfo, shares, counts, counts, counts, counts, texts),
    st.none()
    | st.builds(
        r.HardwareErrors, shares, st.lists(built(r.DeviceErrors, counts), max_size=3).map(tuple), texts
    ),
    st.none()
    | st.builds(
        r.VcpuUsage, shares, built(r.VcpuShares, shares), by_index(built(r.VcpuShares, shares)), counts, texts
    ),
)
hardware = st.builds(r.HardwareInfo, texts, texts, texts, few, counts, few, few, texts)
reports = st.builds(
    r.MonitorReport,
    st.lists(runtimes, max_size=2).map(tuple),
    systems,
    built(r.InstanceInfo, texts),
    hardware,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=80)
@given(reports)
def test_what_was_written_is_read_again(report):
    assert parse_line(format_line(report)) == report


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("neuron_device_count", 1025),
        ("neuron_device_count", 2**31),
        ("neuroncore_per_device_count", 10**18),
        ("logical_neuroncore_config", -1),
    ],
)
def test_more_devices_than_any_machine_has_are_damage(name, number):
    line = json.dumps({"neuron_hardware_info": {name: number}})
    with pytest.raises(
        DamagedLineError,
        match=rf"damaged line: {name} is {number:.10g}, expected 0 to 1024".replace("+", r"\+"),
    ):
        parse_line(line)


@pytest.mark.parametrize("number", ["1e400", "1e300", "NaN", "1" + "0" * 30, "-1", "1e10"])
def test_a_period_that_cannot_be_is_damage(number):
    with pytest.raises(DamagedLineError):
        parse_line(f'{{"system_data":{{"memory_info":{{"period":{number}}}}}}}')


@settings(max_examples=60)
@given(reports, st.data())
def test_a_line_that_was_cut_off_is_damaged(report, data):
    line = format_line(report)
    with pytest.raises(DamagedLineError, match="damaged line: not JSON"):
        parse_line(line[: data.draw(st.integers(0, len(line) - 1))])


@settings(max_examples=80)
@given(reports, json_values, st.data())
def test_a_value_of_another_kind_is_read_or_named_and_nothing_else(report, nonsense, data):
    root = json.loads(format_line(report))
    node = root
    for _ in range(data.draw(st.integers(1, 6))):
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            break
        key = data.draw(st.sampled_from(keys))
        if isinstance(node[key], dict | list) and node[key]:
            node = node[key]
        else:
            node[key] = nonsense
            break
    try:
        parse_line(json.dumps(root))
    except DamagedLineError as error:
        assert error.message.startswith("damaged line: ")  # noqa: PT017  it may be read as well


@settings(max_examples=60)
@given(st.binary(max_size=60))
def test_bytes_that_are_no_line_are_damaged(data):
    with pytest.raises(DamagedLineError):
        parse_line(data)


def test_a_real_line_is_read():
    report = parse_line(CAPTURED.replace("{...}", '{"instance_id":"i-1","unknown":[1]}'))
    assert report.runtimes == ()
    assert report.system.memory_info.memory_used_bytes == 1284890624
    assert report.system.vcpu_usage is None
    assert report.instance.instance_id == "i-1"
    assert report.hardware.neuron_device_type == "trainium"


@pytest.mark.parametrize(
    ("core", "flops"),
    [
        ({"flops": 7}, 7),
        ({"effective_flops": 8}, 8),
        ({"effective_flops": 8.4e12, "flops": 7}, 8_400_000_000_000),
        ({"flops": None}, 0),
        ({}, 0),
    ],
)
def test_either_name_of_the_flops_is_read(core, flops):
    group = {"period": 1, "neuroncores_in_use": {"3": {"neuroncore_utilization": 4, **core}}, "error": ""}
    line = json.dumps({"neuron_runtime_data": [{"pid": 1, "report": {"neuroncore_counters": group}}]})
    assert parse_line(line).runtimes[0].neuroncore_counters.cores == ((3, r.CoreActivity(4.0, flops)),)


@pytest.mark.parametrize(
    "line", ['{"system_data":null}', '{"neuron_runtime_data":null,"instance_info":null}']
)
def test_null_is_absent(line):
    assert parse_line(line) == r.MonitorReport()


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("", "not JSON"),
        ("hello", "not JSON"),
        ("[]", "the whole line: expected an object"),
        ("{}", "none of neuron-monitor's keys"),
        ('{"neuron_runtime_data":7}', "neuron_runtime_data: expected a list, found 7"),
        ('{"neuron_runtime_data":[{"pid":"x"}]}', "neuron_runtime_data[0].pid: expected a number, found 'x'"),
        ('{"neuron_runtime_data":[3]}', "neuron_runtime_data[0]: expected an object, found 3"),
        ('{"instance_info":{"ami_id":1}}', "instance_info.ami_id: expected a text, found 1"),
        (
            '{"system_data":{"memory_info":{"period":true}}}',
            "system_data.memory_info.period: expected a number",
        ),
        ('{"system_data":{"memory_info":{"period":1e999}}}', "system_data.memory_info.period"),
        (
            '{"system_data":{"vcpu_usage":{"usage_data":{"x":{}}}}}',
            "system_data.vcpu_usage.usage_data: 'x' is not an index",
        ),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_damaged_line_names_the_place(line, place):
    with pytest.raises(DamagedLineError) as caught:
        parse_line(line)
    assert place in caught.value.message
    assert len(caught.value.message) < 200
