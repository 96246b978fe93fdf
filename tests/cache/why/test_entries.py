"""`why` between entries of all layouts, and of graphs that are damaged."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.cache import layouts
from neurontools.cache.graph_reader import UnreadableGraphError, read_graph
from neurontools.cache.walk import walk
from neurontools.cache.why.diff import diff_graphs
from neurontools.cache.why.diff_text import diff_lines
from neurontools.cache.why.explain import explain_entry, explain_pair
from neurontools.cache.why.report import ReportStyle, format_explanation, read_source_line
from neurontools.commands.cache import main
from tests.cache import hlo_modules
from tests.cache.trees import lay_out
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
