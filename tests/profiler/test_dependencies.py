"""Who waits for whom in an execution, from the schedule of its program."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from neurontools.compiler.compile import compile_graph
from neurontools.compiler.graph import Node
from neurontools.compiler.neff import parse
from neurontools.errors import NeuronToolsError
from neurontools.machine.instances.catalogue import instance_type
from neurontools.profiler.analysis.dependencies import Dependencies, order_details, program_order
from neurontools.profiler.capture.format import Track
from neurontools.profiler.trace.open import load
from tests.compiler.graphs import graph_of, tensor

if TYPE_CHECKING:
    from pathlib import Path

    from neurontools.profiler.trace.trace import Trace
    from tests.profiler.conftest import Maker

TRN1 = instance_type("trn1.2xlarge").device


def compiled() -> bytes:
    """A product, the activation of its result, and a long product beside them."""
    x, w, y, z = (tensor(number, 256, 256) for number in range(4))
    a, b, c = (tensor(number, 1024, 1024) for number in range(4, 7))
    graph = graph_of(
        Node("aten.mm.default", (x, w), (), (y,), "train.py:3"),
        Node("aten.relu.default", (y,), (), (z,), "train.py:4"),
        Node("aten.mm.default", (a, b), (), (c,), "train.py:5"),
        inputs=(0, 1, 4, 5),
    )
    return compile_graph(graph, TRN1, ("--target=trn1",), "three")


def trace_of(neff: bytes, maker: Maker, home: Path) -> Trace:
    capture = maker.capture(home / "chain")
    model = maker.model(neff=neff, name="three")
    capture.on_load(model, maker.start_ns, maker.start_ns + 10)
    for number in (1, 2, 3):
        start = maker.start_ns + number * 1_000_000
        capture.on_execute(model, number, start, start + 900_000, 0)
    capture.on_close()
    return load(str(home / "chain"))


@pytest.fixture
def chain(home: Path, maker: Maker) -> Trace:
    return trace_of(compiled(), maker, home)


def device_events(trace: Trace) -> list[int]:
    rows = [row for row in trace.rows if not row.track.measured and row.track is not Track.MODEL]
    return [event for row in rows for event in range(row.first, row.last)]


def test_links_lead_both_ways() -> None:
    order = program_order(parse(compiled()))
    pairs = {(link.place, place) for place, links in enumerate(order.earlier) for link in links}
    assert pairs == {(place, link.place) for place, links in enumerate(order.later) for link in links}
    assert all((decider, place) in pairs for place, decider in enumerate(order.decides) if decider >= 0)
    assert any(decider < 0 for decider in order.decides)


def test_an_activation_waits_for_its_product_in_its_own_execution(chain: Trace) -> None:
    known = Dependencies(chain)
    (relu, *_) = (
        event for event in device_events(chain) if chain.event(event).action.name.startswith("aten.relu")
        and chain.event(event).row.track is not Track.DMA
        and chain.event(event).execution == 2
    )  # fmt: skip
    program = known.program_of(relu)
    assert not known.is_read(program)
    known.read(program)
    assert known.is_read(program)
    found = known.of_event(relu)
    names = {chain.event(link.event).action.source for link in found.earlier}
    assert "train.py:3" in names
    assert {chain.event(link.event).execution for link in (*found.earlier, *found.later)} == {2}
    assert relu in {link.event for link in known.of_event(found.earlier[0].event).later}
    details = dict(order_details(chain, found))
    assert details["waited for"].startswith("mm on ")
    assert details["waited for"].endswith(", last")
    assert "later" in details["waits for it"]


def test_events_on_the_path_have_no_slack_and_follow_each_other(chain: Trace) -> None:
    known = Dependencies(chain)
    events = device_events(chain)
    known.read(known.program_of(events[0]))
    on_path = [event for event in events if known.of_event(event).is_critical]
    assert on_path
    assert {known.of_event(event).slack_ns for event in on_path} <= {0, 1}
    path = known.of_event(events[0]).path
    assert {chain.actions[number].source for number in path.nonzero()[0]} >= {"train.py:5"}
    for event in on_path:
        for link in known.of_event(event).earlier:
            if link.decides:
                assert known.of_event(link.event).is_critical


def test_an_event_starts_after_what_it_waited_for_started(chain: Trace) -> None:
    known = Dependencies(chain)
    events = device_events(chain)
    known.read(known.program_of(events[0]))
    for event in events:
        found = chain.event(event)
        for link in known.of_event(event).earlier:
            assert chain.event(link.event).start <= found.start + found.duration


def test_events_of_the_host_are_in_no_program(chain: Trace) -> None:
    measured = next(row for row in chain.rows if row.track.measured)
    assert Dependencies(chain).program_of(measured.first) == ""


def test_a_program_for_no_device_has_no_order(trace: Trace) -> None:
    known = Dependencies(trace)
    event = device_events(trace)[0]
    known.read(known.program_of(event))
    with pytest.raises(NeuronToolsError, match="unknown device"):
        known.of_event(event)
