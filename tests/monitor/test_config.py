"""The configuration file: what is collected, and what is said of nonsense in it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neurontools.monitor.config import (
    ConfigError,
    DurationError,
    MetricKey,
    default_config,
    load_config,
    parse_config,
    parse_go_duration,
)
from neurontools.monitor.report import RuntimeGroup, SystemGroup

COUNTERS, MEMORY = RuntimeGroup.NEURONCORE_COUNTERS, RuntimeGroup.MEMORY_USED


def periods_of(text: str):
    config, problems = parse_config(text, "m.conf")
    assert problems == ()
    return config.periods()


def problems_of(text: str):
    config, problems = parse_config(text, "m.conf")
    return config, [problem.located("m.conf") for problem in problems]


def test_the_documents_example():
    text = """{"period": "1s",
 "neuron_runtimes": [{"tag_filter": ".*", "period": "3s", "metrics": [{"type": "neuroncore_counters"},
   {"type": "memory_used"}, {"type": "neuron_runtime_vcpu_usage"}, {"period": "4s", "type": "execution_stats"}]}],
 "system_metrics": [{"type": "vcpu_usage"}, {"type": "memory_info"}, {"period": "2s", "type": "neuron_hw_counters"}]}"""
    assert periods_of(text) == {
        MetricKey(0, COUNTERS): 3,
        MetricKey(0, MEMORY): 3,
        MetricKey(0, RuntimeGroup.VCPU_USAGE): 3,
        MetricKey(0, RuntimeGroup.EXECUTION_STATS): 4,
        MetricKey(None, SystemGroup.VCPU_USAGE): 1,
        MetricKey(None, SystemGroup.MEMORY_INFO): 1,
        MetricKey(None, SystemGroup.HARDWARE_COUNTERS): 2,
    }


@pytest.mark.parametrize(
    "text",
    ["{}", '{"system_metrics": []}', '{"neuron_runtimes": null, "system_metrics": null, "period": null}'],
)
def test_every_key_may_be_left_out(text):
    assert periods_of(text) == {}


def test_the_default_period_is_five_seconds():
    assert periods_of('{"system_metrics":[{"type":"memory_info"}]}') == {
        MetricKey(None, SystemGroup.MEMORY_INFO): 5
    }


def test_without_a_file_every_group_is_collected_every_five_seconds():
    periods = default_config().periods()
    assert {key.group for key in periods} == {*RuntimeGroup, *SystemGroup}
    assert set(periods.values()) == {5}


def test_a_tag_filter_finds_its_text_anywhere():
    config, _ = parse_config(
        '{"neuron_runtimes":[{"tag_filter":"ra.n","metrics":[]},{"metrics":[]}]}', "m.conf"
    )
    assert config.runtimes[0].tag_filter.search("my-train-7")
    assert not config.runtimes[0].tag_filter.search("serve")
    assert config.runtimes[1].tag_filter.search("")


GOOD = '{"type": "memory_info"}'


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            '{\n "period": "soon",\n "system_metrics": [' + GOOD + "]}",
            "m.conf:2: period: invalid duration 'soon'; use a number with a unit",
        ),
        (
            '{"period": 5, "system_metrics": [' + GOOD + "]}",
            "m.conf:1: period: expected a duration as a string",
        ),
        (
            '{"period": "0s", "system_metrics": [' + GOOD + "]}",
            "m.conf:1: period: '0s' is not between 10ms and",
        ),
        ('{"period": "-1s", "system_metrics": [' + GOOD + "]}", "m.conf:1: period: '-1s' is not between"),
        (
            '{"system_metrics": [' + GOOD + ',\n{"type": "gpu"}]}',
            "m.conf:2: system_metrics[1].type: unknown metric group 'gpu' (known: vcpu_usage",
        ),
        (
            '{"system_metrics": [' + GOOD + ',\n{"typ": "vcpu_usage"}]}',
            "m.conf:2: system_metrics[1].typ: unknown key; did you mean 'type'?",
        ),
        ('{"system_metrics": [' + GOOD + ",\n7]}", "m.conf:2: system_metrics[1]: expected an object"),
        (
            '{"system_metrics": [' + GOOD + ', {"type":\n["x"]}]}',
            "m.conf:2: system_metrics[1].type: expected the name",
        ),
        (
            '{"system_metrics": [' + GOOD + ",\n" + GOOD + "]}",
            "m.conf:2: system_metrics[1].type: memory_info is listed twice",
        ),
        (
            '{"system_metrics": [' + GOOD + ', {"type": "memory_used"}]}',
            "memory_used belongs in neuron_runtimes[].metrics",
        ),
        (
            '{"neuron_runtimes": [{"metrics": [{"type": "hw_counters"}]}], "system_metrics": [' + GOOD + "]}",
            "m.conf:1: neuron_runtimes[0].metrics[0].type: neuron_hw_counters belongs in system_metrics",
        ),
        ('{"system_metrics": [' + GOOD + '],\n "gpus": []}', "m.conf:2: gpus: unknown key; known: period,"),
        (
            '{"system_metrics": [' + GOOD + '],\n "neuron_runtimes": {}}',
            "m.conf:2: neuron_runtimes: expected a list",
        ),
        (
            '{"system_metrics": [' + GOOD + '], "neuron_runtimes": [\n{"tag_filter": "(", "metrics": []}]}',
            "m.conf:2: neuron_runtimes[0].tag_filter: invalid regular expression: missing )",
        ),
        (
            '{"system_metrics": [' + GOOD + '], "neuron_runtimes": [{"tag_filter": 7, "metrics": []}]}',
            "neuron_runtimes[0].tag_filter: expected a regular expression as a string",
        ),
        (
            '{"system_metrics": [' + GOOD + '], "neuron_runtimes": [{}]}',
            "neuron_runtimes[0]: no metrics listed",
        ),
    ],
)
def test_what_is_wrong_is_named_and_the_rest_is_collected(text, problem):
    config, problems = problems_of(text)
    assert len(problems) <= 2
    assert any(problem in found for found in problems)
    assert MetricKey(None, SystemGroup.MEMORY_INFO) in config.periods()


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("inference_stats", RuntimeGroup.EXECUTION_STATS, "runtime"),
        ("nc_counters", RuntimeGroup.NEURONCORE_COUNTERS, "runtime"),
        ("runtime_cpu_usage", RuntimeGroup.VCPU_USAGE, "runtime"),
        ("hw_counters", SystemGroup.HARDWARE_COUNTERS, "system"),
        ("cpu_usage", SystemGroup.VCPU_USAGE, "system"),
    ],
)
def test_old_names_are_collected_under_the_new_ones(old, new, place):
    metrics = [{"type": old}]
    root = {"neuron_runtimes": [{"metrics": metrics}]} if place == "runtime" else {"system_metrics": metrics}
    config, problems = problems_of(json.dumps(root))
    assert [key.group for key in config.periods()] == [new]
    assert f"{old!r} is the old name of {new}" in problems[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "m.conf:1:1: not JSON"),
        ('{"period": "1s",\n  oops}', "m.conf:2:3: not JSON"),
        ("[]", "m.conf:1: expected an object"),
        ("\n\n7", "m.conf:3: expected an object"),
        ("[" * 100_000, "m.conf: not JSON"),
        ('{"a":' + "1" * 5000 + "}", "m.conf: not JSON"),
    ],
)
def test_a_file_that_is_not_a_configuration_is_an_error(text, message):
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "m.conf")
    assert caught.value.message.startswith(message)
    assert caught.value.exit_code == 1


def test_files_that_cannot_be_read(home):
    with pytest.raises(ConfigError, match="cannot read /nowhere: No such file"):
        load_config("/nowhere")
    with pytest.raises(ConfigError, match="Is a directory"):
        load_config(str(home))
    (home / "latin").write_bytes(b'{"a": "\xe9"}')
    with pytest.raises(ConfigError, match="not UTF-8 at byte 7"):
        load_config(str(home / "latin"))


def test_a_byte_order_mark_is_accepted(home):
    (home / "bom").write_bytes(b"\xef\xbb\xbf{}")
    assert load_config(str(home / "bom"))[1] == ()


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=4)
    | st.sampled_from(["1s", "memory_info"]),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["period", "neuron_runtimes", "system_metrics", "metrics", "type", "tag_filter", "x"]
            ),
            children,
            max_size=4,
        )
    ),
    max_leaves=10,
)


@settings(max_examples=150)
@given(json_values)
def test_any_json_gives_a_configuration_or_one_error(value):
    try:
        config, problems = parse_config(json.dumps(value, indent=1), "m.conf")
    except ConfigError:
        assert not isinstance(value, dict)
        return
    assert all(period_s >= 0.01 for period_s in config.periods().values())
    assert all("\n" not in problem.located("m.conf") for problem in problems)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1s", 1),
        ("500ms", 0.5),
        ("1m30s", 90),
        ("1.5h", 5400),
        (".5s", 0.5),
        ("2.s", 2),
        ("+3s", 3),
        ("-3s", -3),
        ("0", 0),
        ("1h2m3s4ms5us6ns", 3723.004005006),
        ("7µs", 7e-6),
        ("7μs", 7e-6),
    ],
)
def test_durations_as_go_reads_them(text, expected):
    assert parse_go_duration(text) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s",
        "5",
        "1 s",
        "1d",
        "1s ",
        "1,5s",
        "--1s",
        ".s",
        "1e3s",
        "5 minutes",
        "1s30",
        "٣s",
        "1" * 100_000,
    ],
)
def test_what_go_refuses_is_refused(text):
    with pytest.raises(DurationError, match="invalid duration"):
        parse_go_duration(text)
