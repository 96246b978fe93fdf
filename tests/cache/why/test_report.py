"""Reports of `neuron-cache why`, to the letter."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from neurontools.cache.events import LookupEvent, LookupEventKind
from neurontools.cache.why.causes import CauseName, find_causes, make_cause
from neurontools.cache.why.compare import compare
from neurontools.cache.why.explain import Explanation, RunExplanation
from neurontools.cache.why.report import ReportStyle, explanation_json, format_explanation, format_run
from tests.cache.conftest import NOW
from tests.cache.entries import an_entry
from tests.cache.why.test_causes import facts, step

PAIR = """\
entry      MODULE_2+e30acd3a (done, 2023-11-14 22:13:20)
against    MODULE_1+e30acd3a (done, 2023-11-14 22:13:20)
alike      75% of the operators

flags changed
  -O1 was added
  do:        set the same NEURON_CC_FLAGS, in the same order, for all runs that share a cache; leave
             out paths that differ between runs or hosts

computation changed
  2 of 4 operators are the same; the graphs part at train.py:2
  do:        a different computation needs its own compile; the differences show what changed

what differs
  flags      -O1 was added
  operators  1 operator added: aten.tanh.default
  constants  aten.mul.default at train.py:2: 2.0 -> 3.0
  outputs    also returns float32[8,4] of aten.tanh.default at train.py:4
             no longer returns float32[8,4] of aten.exp.default at train.py:3
  lines      train.py:4
             train.py:2

graph
  3 -> 4 operators: 2 the same, 1 changed, 1 added, 0 removed
  parts at   train.py:2
  cut by -   mark_step at train.py:8
  cut by +   print at train.py:9
  @@ -0,3 +0,4 @@ train.py:2
    aten.relu.default(input 0:float32[8,4]) -> float32[8,4]  # train.py:1
  - aten.mul.default(%0:float32[8,4], 2.0) -> float32[8,4]  # train.py:2
  + aten.mul.default(%0:float32[8,4], 3.0) -> float32[8,4]  # train.py:2
    aten.exp.default(%1:float32[8,4]) -> float32[8,4]  # train.py:3
  + aten.tanh.default(%2:float32[8,4]) -> float32[8,4]  # train.py:4"""

RUN = """\
run        run-7, 2023-11-14 22:13:20: 2 compiles (3.000 s), 4 hits
cache      /c

1. MODULE_1+e30acd3a  22:13:20  1.000 s
2. MODULE_2+e30acd3a  22:13:21  2.000 s
   against    MODULE_1+e30acd3a (75% alike)
   flags changed
     -O1 was added
     do:        set the same NEURON_CC_FLAGS, in the same order, for all runs that share a cache;
                leave out paths that differ between runs or hosts
   computation changed
     2 of 4 operators are the same; the graphs part at train.py:2
     do:        a different computation needs its own compile; the differences show what changed
   flags      -O1 was added
   operators  1 operator added: aten.tanh.default
   constants  aten.mul.default at train.py:2: 2.0 -> 3.0
              2 more differences: neuron-cache why 2+e30acd3a 1+e30acd3a"""

OLD = facts(replace(step("relu", "mul=2", "exp"), cut="mark_step at /w/train.py:8"))
NEW = facts(
    replace(step("relu", "mul=3", "exp", "tanh"), cut="print at /w/train.py:9"),
    entry=an_entry(module="MODULE_2+e30acd3a", path="/c/neuronxcc-2.16/MODULE_2+e30acd3a"),
    flags=("--target=trn1", "-O1"),
)


def explained(event: LookupEvent | None = None) -> Explanation:
    comparison = compare(OLD, NEW)
    return Explanation(NEW, find_causes(comparison), comparison, 0.75, event)


def test_a_pair_is_shown_with_causes_differences_and_graphs() -> None:
    assert format_explanation(explained(), ReportStyle(directory="/w/")) == PAIR
    plain = format_explanation(explained(), ReportStyle())
    assert plain == PAIR.replace("step at ", "step at /w/").replace("print at ", "print at /w/")


def test_a_cause_whose_text_starts_with_its_name_has_no_other_title() -> None:
    first = make_cause(CauseName.FIRST, "first compile of train.py", advice="none needed")
    assert format_explanation(Explanation(NEW, (first,)), ReportStyle()) == (
        "entry      MODULE_2+e30acd3a (done, 2023-11-14 22:13:20)\n\n"
        "first compile of train.py\n  do:        none needed"
    )


def test_a_run_numbers_its_compiles_from_one() -> None:
    first = LookupEvent(NOW, "run-7", LookupEventKind.MISS, 1.0, "MODULE_1+e30acd3a")
    second = LookupEvent(NOW + 1, "run-7", LookupEventKind.MISS, 2.0, "MODULE_2+e30acd3a")
    misses = (Explanation(OLD, event=first), explained(second))
    shown = format_run(RunExplanation("/c", "run-7", NOW, 4, 3.0, misses, (), 0), ReportStyle(width=102))
    assert shown == RUN


@pytest.mark.parametrize(("full", "shown", "more"), [(False, 30, "and 3 more (--full)"), (True, 33, "")])
def test_of_many_compiles_the_first_are_shown(full: bool, shown: int, more: str) -> None:
    events = [
        LookupEvent(NOW + number, "run-7", LookupEventKind.MISS, 1.0, f"MODULE_{number}+0")
        for number in range(33)
    ]
    misses = tuple(Explanation(None, event=event) for event in events)
    report = RunExplanation("/c", "run-7", NOW, 0, 33.0, misses, (), 0)
    lines = format_run(report, ReportStyle(full=full)).splitlines()
    assert len([line for line in lines if re.match(r"\d+\. MODULE_", line)]) == shown
    assert (lines[-1] == more) is bool(more)


def test_operators_that_one_graph_lacks_have_no_place_in_it() -> None:
    for old, new, steps in (
        (step("exp", "tanh"), step("relu", "exp", "tanh"), [(None, 0, "train.py:1")]),
        (step("relu", "exp", "tanh"), step("exp", "tanh"), [(0, None, "train.py:1")]),
    ):
        comparison = compare(facts(old), facts(new))
        shown = explanation_json(Explanation(facts(new), (), comparison, 0.5))["graph"]["steps"]
        found = [(one["old"], one["new"], one["source"]) for one in shown if None in (one["old"], one["new"])]
        assert found == steps
