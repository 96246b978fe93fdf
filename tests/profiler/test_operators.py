"""Totals by operator, shape, layer, source, engine, rank and opcode; the roofline; the tree."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from msgspec import structs

from neurontools.profiler.analysis.operators import UNKNOWN, By, GroupParts, group_totals, top_operators
from neurontools.profiler.analysis.roofline import COMPUTE, MEMORY, roofline
from neurontools.profiler.analysis.tree import TreeKind, TreeNode, tree
from neurontools.profiler.capture.format import DEVICE_TRACKS
from neurontools.profiler.trace.intervals import busy_ns
from neurontools.profiler.trace.selection import Selection, select

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.profiler.trace.trace import Trace, TraceAction, TraceRow


def events(trace: Trace) -> Iterator[tuple[TraceRow, TraceAction, int, int, int]]:
    """Every event of the device, one by one: row, action, start, duration, time of work."""
    for row in trace.rows_of(*DEVICE_TRACKS):
        for number in range(row.first, row.last):
            event = trace.event(number)
            busy = event.action.busy_ns or event.duration
            yield row, event.action, event.start, event.duration, min(busy, event.duration)


def with_layers(trace: Trace) -> Trace:
    layers = {"aten.mm": "Net.fc", "aten.relu": "Net", "aten.copy_": "Net.fc (backward)"}
    actions = [structs.replace(each, layer=layers.get(each.name, "")) for each in trace.actions]
    return replace(trace, actions=tuple(actions))


def label(row: TraceRow, action: TraceAction, by: By) -> str:
    match by:
        case By.SHAPE:
            return f"{action.name} {action.shape}"
        case By.ENGINE:
            return action.track.label
        case By.RANK:
            return row.process_label
        case By.OPERATOR:
            return action.name
        case _:
            return getattr(action, by) or UNKNOWN


@pytest.mark.parametrize("by", By)
def test_totals_of_groups_are_those_of_their_events(trace: Trace, by: By) -> None:
    trace = with_layers(trace)
    groups: dict[str, list[tuple[TraceAction, int]]] = {}
    for row, action, _, _, worked in events(trace):
        groups.setdefault(label(row, action, by), []).append((action, worked))
    found = {group.name: group for group in group_totals(trace, by)}
    assert set(found) == set(groups)
    for name, own in groups.items():
        group, times = found[name], sorted(worked for _, worked in own)
        assert (group.count, group.total_ns) == (len(own), sum(times))
        assert (group.min_ns, group.median_ns, group.max_ns) == (times[0], times[len(times) // 2], times[-1])
        assert group.flops == sum(action.flops for action, _ in own)
        assert group.bytes_moved == sum(action.read_bytes + action.write_bytes for action, _ in own)
        assert group.flops_s == pytest.approx(group.flops / group.total_ns * 1e9)
    assert sum(group.share for group in found.values()) == pytest.approx(1)
    ordered = [group.total_ns for group in group_totals(trace, by)]
    assert ordered == sorted(ordered, reverse=True)
    assert group_totals(trace, by, 1) == group_totals(trace, by)[:1]


@pytest.mark.parametrize("by", [By.OPERATOR, By.ENGINE, By.LAYER])
def test_the_parts_of_a_group_add_up_to_it(trace: Trace, by: By) -> None:
    trace = with_layers(trace)
    parts = GroupParts(trace)
    for over in (By.SHAPE, By.SOURCE, By.OPCODE):
        groups = {group.name: group for group in group_totals(trace, over)}
        times = dict.fromkeys(groups, 0)
        for group in group_totals(trace, by):
            found = parts.of(by, group.name, over)
            assert sum(part.count for part in found) == group.count
            assert sum(part.total_ns for part in found) == group.total_ns
            ordered = [part.total_ns for part in found]
            assert ordered == sorted(ordered, reverse=True)
            for part in found:
                times[part.name] += part.total_ns
        assert times == {name: group.total_ns for name, group in groups.items()}
    assert parts.of(by, "nothing", By.SHAPE) == ()


def test_a_part_of_the_time_has_the_totals_of_its_events(trace: Trace) -> None:
    part = select(trace, Selection(from_ns=2_505_000, to_ns=6_200_000))
    found = {group.name: group.total_ns for group in group_totals(part, By.OPERATOR)}
    expected: dict[str, int] = {}
    for _, action, _, _, worked in events(part):
        expected[action.name] = expected.get(action.name, 0) + worked
    assert found == expected
    assert 0 < sum(found.values()) < sum(each.total_ns for each in top_operators(trace))


def test_a_trace_without_device_rows_has_no_groups(trace: Trace) -> None:
    bare = trace.with_rows([row for row in trace.rows if row.track.measured], trace.runs)
    assert group_totals(bare, By.OPERATOR) == ()
    assert roofline(bare).points == ()
    assert tree(bare).children == ()


def test_the_roofline_counts_overlapping_work_once(trace: Trace) -> None:
    spans: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for row, action, start, duration, _ in events(trace):
        spans.setdefault((action.name, row.nc), []).append((start, duration))
    expected: dict[str, int] = {}
    for (name, _), own in spans.items():
        columns = np.array(own, dtype=np.int64)
        expected[name] = expected.get(name, 0) + busy_ns(columns[:, 0], columns[:, 1])
    found = roofline(trace)
    assert {point.name: point.total_ns for point in found.points} == expected
    points = {point.name: point for point in found.points}
    product, copy = points["aten.mm"], points["aten.copy_"]
    assert (product.bound, copy.bound, points["aten.relu"].bound) == (COMPUTE, MEMORY, "")
    assert (product.roof, copy.roof) == (pytest.approx(92e12), pytest.approx(410e9))
    # Two transfers of 64 KiB take 5 us together, one of 32 KiB 2 us: 160 KiB in 7 us.
    assert copy.bytes_s == pytest.approx(163_840 / 7e-6)
    assert copy.roof_share == pytest.approx(163_840 / 7e-6 / 410e9)
    assert copy.gap_ns == pytest.approx(copy.total_ns - 10 * 163_840 / 410, abs=1)
    assert found.ridge == pytest.approx(92e12 / 410e9)


def test_the_roofline_is_of_operators_layers_and_lines(trace: Trace) -> None:
    assert {point.name for point in roofline(with_layers(trace), By.LAYER).points} == {
        "Net", "Net.fc", "Net.fc (backward)", UNKNOWN,
    }  # fmt: skip
    with pytest.raises(ValueError, match="no roofline by engine"):
        roofline(trace, By.ENGINE)


def leaves(node: TreeNode) -> list[TreeNode]:
    return [leaf for child in node.children for leaf in leaves(child)] or ([node] if node.is_operator else [])


def test_the_tree_has_modules_with_their_operators(trace: Trace) -> None:
    root = tree(with_layers(trace))
    total = sum(worked for _, _, _, _, worked in events(trace))
    assert root.total_ns == total
    assert root.self_ns == 0
    assert sum(leaf.total_ns for leaf in leaves(root)) == total
    tops = {child.name: child for child in root.children}
    assert set(tops) == {"Net", "Net (backward)", UNKNOWN}
    net = tops["Net"]
    assert [(child.name, child.is_operator) for child in net.children] == [("fc", False), ("aten.relu", True)]
    assert net.self_ns == net.children[1].total_ns == 10 * 2_500
    assert net.total_ns == net.self_ns + net.children[0].total_ns


def test_the_tree_of_sources_has_files_with_their_lines(trace: Trace) -> None:
    (file,) = tree(trace, TreeKind.SOURCE).children
    assert file.name == "train.py"
    assert [line.name for line in file.children] == ["line 12"]
    assert file.children[0].total_ns == file.total_ns == file.children[0].self_ns
