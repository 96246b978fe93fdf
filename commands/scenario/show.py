"""neurontools scenario list, show and check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurontools.base.text import printable, table
from neurontools.base.units import format_duration
from neurontools.commands import console
from neurontools.scenario import schema

if TYPE_CHECKING:
    import argparse

    from neurontools.scenario.model import GroupPlan, Scenario
    from neurontools.scenario.timeline import ScenarioTimeline


def list_all(arguments: argparse.Namespace) -> int:
    """Print the bundled scenarios."""
    found = [schema.load(name) for name in schema.scenario_names()]
    if arguments.json:
        console.print_json([_summary(scenario) for scenario in found])
        return 0
    head = ("NAME", "INSTANCE", "DURATION", "PROCESSES", "WHAT HAPPENS")
    rows = [
        (
            scenario.name,
            _instance(scenario),
            format_duration(scenario.duration_s),
            str(len(scenario.processes)),
            scenario.description,
        )
        for scenario in found
    ]
    console.out(table(head, rows, "<<<<<"))
    return 0


def show(arguments: argparse.Namespace) -> int:
    """Print the groups and faults of a scenario."""
    from neurontools.scenario.timeline import ScenarioTimeline

    timeline = ScenarioTimeline(schema.load(arguments.scenario))
    scenario = timeline.scenario
    if arguments.json:
        groups = [_group(group, timeline) for group in scenario.groups]
        faults = [
            {"at_s": fault.at_s, "kind": fault.spec.kind, "target": fault.spec.target()}
            for fault in scenario.faults
        ]
        console.print_json({**_summary(scenario), "groups": groups, "faults": faults})
        return 0
    console.out(printable(f"{scenario.name}: {scenario.description}"))
    console.out(
        f"{_instance(scenario)}, {format_duration(scenario.duration_s)}, "
        f"{len(scenario.processes)} processes, seed {scenario.seed}"
    )
    for group in scenario.groups:
        console.out("\n".join(("", *map(printable, _group_lines(group, timeline)))))
    if scenario.faults:
        console.out("\nfaults")
    for fault in scenario.faults:
        count = "" if fault.spec.count is None else f", {fault.spec.count} times"
        target = printable(fault.spec.target())
        console.out(f"  {format_duration(fault.at_s):<10}{fault.spec.kind} on {target}{count}")
    return 0


def check(arguments: argparse.Namespace) -> int:
    """Print every mistake of scenario files."""
    from neurontools.scenario.schema import ScenarioError

    found: list[dict[str, Any]] = []
    lines: list[str] = []
    for name in arguments.files:
        try:
            scenario = schema.load(name)
        except ScenarioError as error:
            lines += [problem.located(error.file) for problem in error.problems]
            found += [
                {
                    "file": error.file,
                    "line": problem.line,
                    "key": problem.key,
                    "problem": f"{problem.message}; {problem.hint}" if problem.hint else problem.message,
                }
                for problem in error.problems
            ]
        else:
            if not arguments.json:
                count = len(scenario.processes)
                console.out(printable(f"{name}: OK, {count} processes on {_instance(scenario)}"))
    if arguments.json:
        console.print_json(found)
    elif lines:
        console.out("\n".join(lines))
    return 1 if found else 0


def _summary(scenario: Scenario) -> dict[str, Any]:
    names = ("name", "description", "instance_type", "lnc", "duration_s", "seed")
    facts = {name: getattr(scenario, name) for name in names}
    return {**facts, "process_count": len(scenario.processes)}


def _instance(scenario: Scenario) -> str:
    from neurontools.machine.instances import catalogue

    lnc_applies = catalogue.instance_type(scenario.instance_type).lnc_applies
    return scenario.instance_type + (f" LNC {scenario.lnc}" if lnc_applies else "")


def _group(group: GroupPlan, timeline: ScenarioTimeline) -> dict[str, Any]:
    runs = [run for run in timeline.runs if run.plan.group == group.name]
    return {
        "name": group.name,
        "description": group.description,
        "process_count": len(group.processes),
        "cores": [core for process in group.processes for core in process.cores],
        "phases": list(group.phases),
        "starts": len(runs),
        "ends": {end: sum(run.end == end for run in runs) for end in dict.fromkeys(run.end for run in runs)},
        "models": [model.name for model in group.processes[0].models],
    }


def _group_lines(group: GroupPlan, timeline: ScenarioTimeline) -> list[str]:
    from neurontools.machine.machine_names import core_ranges

    facts = _group(group, timeline)
    first = group.processes[0]
    cores = core_ranges(tuple(facts["cores"])) or "none"
    lines = [f"{group.name}: {len(group.processes)} of {first.command}"]
    if group.description:
        lines.append(f"  {group.description}")
    lines.append(f"  {'cores':<13}{cores}")
    work = first.work
    for name, curve, unit in (
        ("utilization", work.utilization, "%"),
        ("executions", work.executions, "/s on each core"),
    ):
        if curve.high:
            lines.append(f"  {name:<13}{curve.low:.4g} to {curve.high:.4g}{unit}")
    memory = sum(curve.high for _, curve in work.memory)
    if memory:
        lines.append(f"  {'memory':<13}up to {memory / 2**30:.3g} GiB on each core, models on top")
    if facts["models"]:
        lines.append(f"  {'models':<13}{', '.join(facts['models'])}")
    if group.phases:
        lines.append(f"  {'phases':<13}{', '.join(group.phases)}")
    if facts["starts"] != len(group.processes):
        ends = ", ".join(f"{count} by {end}" for end, count in facts["ends"].items())
        lines.append(f"  {'starts':<13}{facts['starts']} in all; ends: {ends}")
    return lines
