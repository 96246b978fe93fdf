"""What a scenario file may say, and how its mistakes are reported: all at once, each with its line and key."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neurontools import scenario
from neurontools.errors import NeuronToolsError
from neurontools.scenario.schema import ScenarioError
from neurontools.scenario.timeline import ScenarioTimeline

HEAD = "description: d\ninstance: trn1.32xlarge\nduration: 1m\n"
GROUP = HEAD + "processes:\n  g:\n    cores: 1\n"

MISTAKES = [
    (GROUP + "    memory: {tensors: 9999 TiB}\n", 7, "processes.g.memory.tensors", "the maximum is"),
    (GROUP + "    executions: 5000000\n", 7, "processes.g.executions", "the maximum is 1e+06"),
    (
        GROUP + "    models: [{name: a, code: 9999 TiB}]\n",
        7,
        "processes.g.models[0].code",
        "the maximum is",
    ),
    ("", 1, "", "the file is empty"),
    ("a: [1", 1, "", "not YAML"),
    ("- 1\n", 1, "", "expected a mapping with instance"),
    ("description: d\ninstance: trn1.2xlarge\n", 1, "", "'duration' is missing"),
    ("instance: trn1.2xlarge\nduration: 1m\n", 1, "", "'description' is missing"),
    ("description: d\nduration: 1m\n", 1, "", "'instance' is missing"),
    (
        HEAD.replace("trn1.32", "trn1.33"),
        2,
        "instance",
        "unknown instance type 'trn1.33xlarge'; did you mean 'trn1.32xlarge'?",
    ),
    (HEAD + "lnc: 2\n", 4, "lnc", "logical NeuronCore configuration 2 does not exist on trn1.32xlarge"),
    (
        HEAD.replace("1m", "soon"),
        3,
        "duration",
        "expected a duration above 0 such as 500ms, 30s, 5m or 1h30m, found 'soon'",
    ),
    (HEAD.replace("1m", "0s"), 3, "duration", "expected a duration above 0"),
    (HEAD.replace("1m", "-5"), 3, "duration", "found -5"),
    (HEAD + "duratoin: 1\n", 4, "duratoin", "unknown key; did you mean 'duration'?"),
    (HEAD + "seed: x\n", 4, "seed", "expected a whole number, found 'x'"),
    (HEAD + "duration: 2m\n", 4, "duration", "duplicate key, first in line 3"),
    (HEAD + "processes: 3\n", 4, "processes", "expected a mapping of groups by name, found 3"),
    (GROUP + "    coutn: 2\n", 7, "processes.g.coutn", "unknown key; did you mean 'count'?"),
    (GROUP + "    count: 0\n", 7, "processes.g.count", "expected 1 to 5000 processes, found 0"),
    (GROUP + "    count: 33\n", 6, "processes.g", "the machine's 32 cores are too few for all processes"),
    (
        HEAD + "processes: {g: {cores: 0-40}}\n",
        4,
        "processes.g.cores",
        "no core 32; this machine has cores 0-31",
    ),
    (
        HEAD + "processes: {g: {cores: 0-x}}\n",
        4,
        "processes.g.cores",
        "expected a number of cores for each process",
    ),
    (
        HEAD + "processes: {g: {cores: 0-2, count: 2}}\n",
        4,
        "processes.g.cores",
        "3 cores cannot be divided evenly among 2 processes",
    ),
    (
        HEAD + "processes:\n  a: {cores: 0-1}\n  b: {cores: 1-2}\n",
        6,
        "processes.b",
        "core 1 belongs to a 0 at that time",
    ),
    (GROUP + "    utilization: 101\n", 7, "processes.g.utilization", "rises to 101; the maximum is 100"),
    (GROUP + "    utilization: high\n", 7, "processes.g.utilization", "expected a number of percent"),
    (
        GROUP + "    utilization: {curve: sine, low: 5, high: 120, period: 1m}\n",
        7,
        "processes.g.utilization",
        "rises to 120",
    ),
    (
        GROUP + "    utilization: {curve: noise, mean: 5, amplitude: 9, period: 1m}\n",
        7,
        "processes.g.utilization",
        "falls to -4; the minimum is 0",
    ),
    (
        GROUP + "    utilization: {curve: rmap, from: 1}\n",
        7,
        "processes.g.utilization.curve",
        "unknown curve 'rmap'; did you mean 'ramp'?",
    ),
    (GROUP + "    utilization: {low: 1}\n", 7, "processes.g.utilization", "'curve' is missing"),
    (
        GROUP + "    utilization: {curve: ramp, from: 1, to: 2}\n",
        7,
        "processes.g.utilization",
        "'over' is missing",
    ),
    (
        GROUP + "    utilization: {curve: ramp, from: 1, to: 2, over: 1m, ovr: 1}\n",
        7,
        "processes.g.utilization.ovr",
        "did you mean 'over'?",
    ),
    (
        GROUP + "    utilization: {curve: steps, steps: [[5s, 1]]}\n",
        7,
        "processes.g.utilization.steps",
        "the first one at 0s",
    ),
    (
        GROUP + "    utilization: {curve: steps, steps: [[0s, 1, 2]]}\n",
        7,
        "processes.g.utilization.steps[0]",
        "expected a pair [time, value], found a list of 3",
    ),
    (
        GROUP + "    utilization: {curve: steps, steps: [[0s, 1], [9s, 2]], every: 5s}\n",
        7,
        "processes.g.utilization",
        "'every' must be later than the last step",
    ),
    (GROUP + "    memory: {tensor: 1 GiB}\n", 7, "processes.g.memory.tensor", "did you mean 'tensors'?"),
    (
        GROUP + "    memory: {tensors: 1 GG}\n",
        7,
        "processes.g.memory.tensors",
        "expected a size such as 512 MiB",
    ),
    (
        GROUP + "    errors: {NRT_TIMEOT: 1}\n",
        7,
        "processes.g.errors.NRT_TIMEOT",
        "did you mean 'NRT_TIMEOUT'?",
    ),
    (GROUP + "    errors: {NRT_SUCCESS: 1}\n", 7, "processes.g.errors.NRT_SUCCESS", "unknown NRT status"),
    (GROUP + "    latency: {p50: 5ms, p99: 1ms}\n", 7, "processes.g.latency", "'p99' is less than 'p50'"),
    (GROUP + "    latency: [{from: 1s, p50: 5ms}]\n", 7, "processes.g.latency", "the first one from 0s"),
    (
        GROUP + "    latency: {p50: 5ms, tail: {share: 60%}}\n",
        7,
        "processes.g.latency.tail",
        "a share of at most 50%",
    ),
    (GROUP + '    tag: "{rnk}"\n', 7, "processes.g.tag", "unknown field {rnk}; did you mean 'rank'?"),
    (GROUP + '    tag: "{rank"\n', 7, "processes.g.tag", "bad text"),
    (GROUP + '    tag: "{rank:zz}"\n', 7, "processes.g.tag", "bad text"),
    (GROUP + "    start: 30s\n    stop: 20s\n", 8, "processes.g.stop", "'stop' is not later than 'start'"),
    (GROUP + "    crash: NRT_TIMEOUT\n", 7, "processes.g.crash", "needs 'lifetime'"),
    (
        GROUP + "    lifetime: {shortest: 9s, longest: 2s}\n",
        7,
        "processes.g.lifetime",
        "not shorter than 'shortest'",
    ),
    (GROUP + "    restart: {after: 0s}\n", 7, "processes.g.restart.after", "expected a duration above 0"),
    (GROUP + "    mfu: 140%\n", 7, "processes.g.mfu", "expected at most 100 percent, found 140"),
    (GROUP + "    models: [{name: a, code: 9999 TiB}]\n", 7, "processes.g.models[0].code", "the maximum is"),
    (GROUP + "    models: [{code: 1 MiB}]\n", 7, "processes.g.models[0]", "'name' is missing"),
    (GROUP + "    phases: [{name: a}]\n", 7, "processes.g.phases[0]", "'for' is missing"),
    (
        GROUP + "    phases: [{name: load, for: 1s}]\n    repeat_from: laod\n",
        8,
        "processes.g.repeat_from",
        "unknown phase 'laod'; did you mean 'load'?",
    ),
    (GROUP + "    overrides: {3: {uid: 1}}\n", 7, "processes.g.overrides.3", "its ranks are 0-0"),
    (GROUP + "    overrides: {0: {cores: 2}}\n", 7, "processes.g.overrides.0.cores", "unknown key"),
    (HEAD + "processes: {g: {utilization: 5}}\n", 4, "processes.g", "needs 'cores'"),
    (HEAD + "faults: [{kind: ecc, device: 1}]\n", 4, "faults[0]", "'at' is missing"),
    (HEAD + "faults: [{at: 1s, kind: eccs}]\n", 4, "faults[0].kind", "did you mean 'ecc'?"),
    (HEAD + "faults: [{at: 1s, kind: ecc, device: 16}]\n", 4, "faults[0]", "no device 16"),
    (HEAD + "faults: [{at: 1s, kind: ecc}]\n", 4, "faults[0]", "needs a device"),
    (HEAD + "faults: [{at: 1s, kind: link-down, device: 0, to: 9}]\n", 4, "faults[0]", "no link to device 9"),
    (HEAD + "host: {cpu_user: 120}\n", 4, "host.cpu_user", "rises to 120"),
    (HEAD + "host: {memroy: 1}\n", 4, "host.memroy", "did you mean 'memory'?"),
]


@pytest.mark.parametrize(("text", "line", "key", "says"), MISTAKES, ids=[says for *_, says in MISTAKES])
def test_a_mistake_is_named_with_line_and_key(text, line, key, says):
    with pytest.raises(ScenarioError) as caught:
        scenario.parse(text, "f.yaml")
    found = [problem for problem in caught.value.problems if problem.line == line and problem.key == key]
    assert any(says in problem.text for problem in found), caught.value.message
    assert f"f.yaml:{line}: " in caught.value.message


def test_all_mistakes_are_reported_in_order_of_lines():
    text = "description: d\ninstance: x\nduration: y\nprocesses: {g: {cores: 1, utilization: z, tga: t}}\n"
    with pytest.raises(ScenarioError) as caught:
        scenario.parse(text, "f.yaml")
    assert [problem.line for problem in caught.value.problems] == [2, 3, 4, 4]
    assert caught.value.message.startswith("f.yaml has 4 mistakes\n")
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("name", scenario.scenario_names())
def test_every_bundled_scenario_is_sound(name):
    found = scenario.load(name)
    assert found.name == name
    assert found.description
    timeline = ScenarioTimeline(found)
    ends = {run.end.value for run in timeline.runs}
    assert ("out of memory" in ends) == (name == "memory-leak")
    assert ("crash" in ends) == (name in {"crash-loop", "ecc-storm"})


def test_the_scenarios_that_are_promised_are_there():
    assert {
        *("idle", "single-training", "training-32", "inference-fleet", "memory-leak"),
        *("ecc-storm", "crash-loop", "thousand-processes"),
    } <= set(scenario.scenario_names())


def test_a_thousand_processes_are_a_thousand():
    found = scenario.load("thousand-processes")
    assert len(found.processes) == 1000
    assert sorted(core for process in found.processes for core in process.cores) == list(range(128))


def test_cores_that_a_group_names_are_kept_from_the_others():
    text = HEAD + "processes:\n  a: {count: 3, cores: 1}\n  b: {cores: 1-2}\n  c: {cores: [5]}\n"
    found = scenario.parse(text)
    assert [process.cores for process in found.processes] == [(0,), (3,), (4,), (1, 2), (5,)]


def test_cores_may_have_owners_one_after_the_other():
    text = HEAD + "processes:\n  a: {cores: all, stop: 20s}\n  b: {cores: 0-31, start: 20s}\n"
    assert len(scenario.parse(text).processes) == 2


def test_overrides_change_single_processes():
    text = (
        GROUP
        + '    count: 3\n    utilization: 10\n    tag: "t{rank}"\n    overrides: {1: {utilization: 90}}\n'
    )
    found = scenario.parse(text)
    assert [process.work.utilization.high for process in found.processes] == [10, 90, 10]
    assert [process.tag for process in found.processes] == ["t0", "t1", "t2"]


def test_the_rate_of_executions_follows_from_utilization_and_latency():
    (process,) = scenario.parse(
        GROUP + "    utilization: 50\n    latency: {p50: 100ms, p99: 100ms}\n"
    ).processes
    assert process.work.executions.high == pytest.approx(5.0)


def test_another_seed_gives_other_noise():
    noisy = GROUP + "    utilization: {curve: noise, mean: 50, amplitude: 20, period: 10s}\n"
    values = [scenario.parse(noisy, seed=seed).processes[0].work.utilization.value(3) for seed in (1, 2, 1)]
    assert values[0] == values[2] != values[1]


def test_a_name_that_is_not_a_scenario_gets_a_suggestion():
    with pytest.raises(NeuronToolsError) as caught:
        scenario.load("trainig-32")
    assert caught.value.remedy == "did you mean 'training-32'?"
    assert caught.value.exit_code == 2


def test_a_file_that_is_not_there_is_named(home):
    with pytest.raises(NeuronToolsError, match=r"cannot read \./gone\.yaml: No such file"):
        scenario.load("./gone.yaml")
    (home / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ScenarioError, match="not YAML"):
        scenario.load("bytes.yaml")


@settings(max_examples=60)
@given(st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.text(max_size=6), st.sampled_from(["1s", "5m", "ramp"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["processes", "g", "cores", "curve", "utilization", "memory", "tensors", "phases", "name", "for",
                 "faults", "at", "kind", "latency", "p50", "overrides", "errors", "models", "host", "duration"]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=14,
))  # fmt: skip
def test_invalid_input_is_refused_and_nothing_worse(value):
    import yaml

    facts = {"description": "d", "instance": "trn1.2xlarge", "duration": 60}
    for key in ("processes", "faults", "host", "seed", "x"):
        refused = None
        try:
            scenario.parse(yaml.safe_dump({**facts, key: value}))
        except ScenarioError as error:
            refused = error
        assert refused is None or all(problem.line >= 1 and problem.message for problem in refused.problems)
        assert refused is not None or key != "x"
