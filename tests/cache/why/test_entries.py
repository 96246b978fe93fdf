"""`why` between entries of all layouts, and of graphs that are damaged.

Reports of `neuron-cache why`, to the letter.
"""

from __future__ import annotations

import itertools
import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.cache import layouts
from neurontools.cache.events import LookupEvent, LookupEventKind
from neurontools.cache.graph_reader import UnreadableGraphError, read_graph
from neurontools.cache.walk import walk
from neurontools.cache.why.causes import CauseName, find_causes, make_cause
from neurontools.cache.why.compare import compare
from neurontools.cache.why.diff import diff_graphs
from neurontools.cache.why.diff_text import diff_lines
from neurontools.cache.why.explain import Explanation, RunExplanation, explain_entry, explain_pair
from neurontools.cache.why.report import (
    ReportStyle,
    explanation_json,
    format_explanation,
    format_run,
    read_source_line,
)
from neurontools.commands.cache import main
from tests.cache import hlo_modules
from tests.cache.conftest import NOW
from tests.cache.entries import an_entry
from tests.cache.trees import lay_out
from tests.cache.why.test_causes import facts, step
from tests.compiler.graphs import mlp

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cache.conftest import Tree

OURS = mlp().to_bytes()


def test_entries_of_all_layouts_are_compared_as_far_as_they_can_be_read(home: Path) -> None:
    root = str(lay_out("generations", home / "compile-cache"))
    paths = [place.path for place in walk(root).places]
    for old, new in itertools.combinations(paths, 2):
        report = explain_pair(root, old, new)
        shown = format_explanation(report, ReportStyle())
        assert "what could not be read" in shown
        assert report.comparison is not None
        if report.comparison.old.entry.compiler != report.comparison.new.entry.compiler:
            assert "compiler changed" in shown


def test_an_entry_that_is_compared_with_itself_is_one(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tree.entry(files={layouts.GRAPH: OURS}))
    assert main(["why", path, path]) == 0
    assert "both names are one entry" in capsys.readouterr().out


def test_an_entry_without_an_earlier_relative_is_a_first_compile(
    tree: Tree, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tree.entry(files={layouts.GRAPH: OURS}))
    assert main(["why", path]) == 0
    assert "first compile of this program\n" in capsys.readouterr().out
    tree.entry(graph="1", files={layouts.GRAPH: hlo_modules.mlp()})
    tree.entry(graph="2", files={layouts.GRAPH: b"no graph"})
    assert main(["why", path]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "first compile of this program; 1 earlier entry has a graph that cannot be read" in shown


def test_an_entry_whose_graph_cannot_be_read_is_not_reported_as_unique(
    tree: Tree, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tree.entry(files={layouts.GRAPH: b"\x08half"}))
    tree.entry(graph="2", files={layouts.GRAPH: OURS})
    assert main(["why", path]) == 0
    shown = capsys.readouterr().out
    assert "its graph cannot be read, so it cannot be compared" in shown
    assert "what could not be read" in shown


def test_a_graph_of_ours_and_an_hlo_module_are_not_a_pair(
    tree: Tree, capsys: pytest.CaptureFixture[str]
) -> None:
    one = str(tree.entry(graph="1", files={layouts.GRAPH: OURS}))
    other = str(tree.entry(graph="2", files={layouts.GRAPH: hlo_modules.mlp()}))
    assert main(["why", one, other]) == 0
    shown = capsys.readouterr().out
    assert "cannot be compared" in shown.replace("\n  ", " ")
    assert "no difference in the parts that can be read" in shown


@pytest.mark.parametrize("stored", [b"{", b'{"a": 1}', b"[1, null]", b"[" * 50_000, b""])
def test_flags_that_cannot_be_read_are_not_reported_as_gone(
    tree: Tree, capsys: pytest.CaptureFixture[str], stored: bytes
) -> None:
    one = str(tree.entry(graph="1", files={layouts.GRAPH: OURS}))
    other = str(tree.entry(graph="2", files={layouts.GRAPH: OURS, layouts.FLAGS: stored}))
    assert main(["why", one, other]) == 0
    shown = capsys.readouterr().out
    assert "was removed" not in shown
    assert "its flags: compile_flags.json is not a JSON list of flags, or cannot be read" in " ".join(
        shown.split()
    )
    assert main(["show", other]) == 0
    assert "flags       unreadable or not a JSON list of flags" in capsys.readouterr().out


def test_a_graph_that_is_gone_is_taken_from_the_neff(tree: Tree) -> None:
    path = tree.done()
    (path / layouts.GRAPH).unlink()
    other = tree.entry(graph="2", files={layouts.GRAPH: mlp(rows=2).to_bytes()})
    report = explain_pair(str(tree.root), str(path), str(other))
    assert [cause.name.value for cause in report.causes] == ["input shape changed"]


@given(st.integers(0, len(OURS) - 1), st.binary(min_size=1, max_size=3), st.integers(0, len(OURS)))
def test_any_damage_to_a_graph_of_ours_is_survived(position: int, content: bytes, length: int) -> None:
    damaged = OURS[:position] + content + OURS[position + len(content) :]
    try:
        found = read_graph(damaged[:length] if length > position else damaged)
    except UnreadableGraphError:
        return
    diff_lines(diff_graphs(read_graph(OURS), found), full=True)


def test_only_lines_of_scripts_are_read(home: Path) -> None:
    script = home / "train.py"
    script.write_text("import torch\n  x = f(x)\n")
    assert read_source_line(f"{script}:2") == f"{script}:2: x = f(x)"
    assert read_source_line(f"{script}:9") == f"{script}:9"
    assert read_source_line("/etc/passwd:1") == "/etc/passwd:1"
    assert read_source_line("nonsense") == "nonsense"
    (home / "fifo.py").symlink_to("/dev/zero")
    assert read_source_line(f"{home}/fifo.py:1") == f"{home}/fifo.py:1"


def test_an_entry_is_compared_with_an_earlier_one_although_a_later_one_is_more_like_it(tree: Tree) -> None:
    earlier = tree.entry(graph="1", files={layouts.GRAPH: mlp(rows=64).to_bytes()})
    target = tree.entry(graph="2", files={layouts.GRAPH: OURS})
    later = tree.entry(graph="3", files={layouts.GRAPH: OURS})
    for age, entry in enumerate((later, target, earlier)):
        os.utime(entry / layouts.GRAPH, (1e9 - age, 1e9 - age))
    comparison = explain_entry(str(tree.root), str(target)).comparison
    assert comparison is not None
    assert comparison.old.entry.path == str(earlier)


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
