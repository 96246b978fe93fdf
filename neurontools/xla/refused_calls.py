"""Recordings with calls that the compiler refuses: what depends on these calls is lost, everything else is executed.

The recording runs on the host call by call, as when it is learned. So in-place changes, random numbers and exchanges
with other workers keep their order, and the values that remain are those of the CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from neurontools.base.interrupts import HOLD_S, InterruptHold
from neurontools.compiler.engines.placement import split_name
from neurontools.compiler.graph import Lifted, Node, View, reads
from neurontools.xla.buffers import NEVER
from neurontools.xla.learning import run_recorded
from neurontools.xla.recorder_lock import RECORDING
from neurontools.xla.trie import RecordedTrace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.compiler.options import CompileError
    from neurontools.xla.trie import TrieNode


def run_accepted(recorder: Any, cause: str) -> None:
    """Run a recording without refused calls and what depends on them, and start a new one; nothing if none is refused."""
    refused = recorder.programs.refusals(recorder.calls())
    if not refused:
        return
    accepted, lost = _divide(recorder.node.path(), refused)
    live = [slot for slot in recorder.live_slots() if slot not in lost]
    with InterruptHold(HOLD_S):
        recorder.unfinished = RECORDING
        if not recorder.learning:
            run_recorded(recorder)
            recorder.learning = True
        for slot, error in lost.items():
            recorder.slots[slot].host, recorder.slots[slot].epoch = None, error
        if live:
            _execute(recorder, accepted, live, cause)
        for slot, buffer in enumerate(recorder.slots):
            if slot not in lost:
                buffer.epoch = NEVER
        recorder.reset()


def _execute(recorder: Any, calls: Sequence[Node], live: Sequence[int], cause: str) -> None:
    """Report calls that have run to the accelerator, as one execution of a graph of their own."""
    trace, slots, scalars = _renumber(calls, [buffer.layout_id for buffer in recorder.slots])
    numbers = {slot: number for number, slot in enumerate(slots)}
    program = recorder.programs.build(trace, tuple(sorted(numbers[slot] for slot in live)), cause)
    recorder.note_execution(program, len(slots), cause)
    buffers = [recorder.slots[slot] for slot in slots]
    values = [recorder.scalars[index] for index in scalars]
    recorder.runner.run(program, buffers, values, lambda: trace.calls, computed=True)


def _divide(
    path: Sequence[TrieNode], refused: dict[int, CompileError]
) -> tuple[list[Node], dict[int, CompileError]]:
    """Return the calls that depend on no refused one, and why the slots that the others write are lost."""
    accepted: list[Node] = []
    lost: dict[int, CompileError] = {}
    for position, node in enumerate(path):
        call = node.call
        assert call is not None
        error = refused.get(position) or next(
            (lost[view.slot] for view in _operands(call) if view.slot in lost), None
        )
        if error is None:
            accepted.append(call)
            continue
        written = set(node.written)
        independent = () if position in refused else _independent_elements(call, lost)
        if independent:
            accepted.append(_elements(call, independent))
            others = [index for index in range(len(call.args[0])) if index not in independent]  # type: ignore[arg-type]
            call = _elements(call, others)
            written &= {view.slot for view in (*reads(call), *call.results) if view is not None}
        lost.update(dict.fromkeys(written.difference(lost), error))
    return accepted, lost


def _operands(call: Node) -> tuple[View, ...]:
    """Return the views whose contents a call reads: of a tensor that the result is to be like, it only reads the shape."""
    name = split_name(call.op)[1]
    return () if name.endswith("_like") or name.startswith("new_") else reads(call)


def _independent_elements(call: Node, lost: dict[int, CompileError]) -> Sequence[int]:
    """Return the positions in the lists of a call, such as an optimizer's, whose tensors depend on no lost slot."""
    if not call.op.startswith("aten._foreach_") or any(
        isinstance(arg, View) and arg.slot in lost for arg in call.args
    ):
        return ()
    lists = [arg for arg in call.args if isinstance(arg, tuple)]
    return [
        index
        for index, items in enumerate(zip(*lists, strict=True))
        if not any(isinstance(item, View) and item.slot in lost for item in items)
    ]


def _elements(call: Node, positions: Sequence[int]) -> Node:
    """Return a call on some elements of its lists."""
    args = [tuple(arg[i] for i in positions) if isinstance(arg, tuple) else arg for arg in call.args]
    results = tuple(call.results[i] for i in positions) if call.results else ()
    return msgspec.structs.replace(call, args=tuple(args), results=results)


def _renumber(calls: Sequence[Node], layout_ids: Sequence[int]) -> tuple[RecordedTrace, list[int], list[int]]:
    """Return some calls of a recording as one of their own, and the slots and scalars of the whole that it has.

    Args:
        calls: what it records.
        layout_ids: those of the slots of the whole.
    """
    slots: dict[int, int] = {}
    scalars: dict[int, int] = {}
    added_slots: list[int] = []

    def renumber(arg: Any) -> Any:
        match arg:
            case View():
                if arg.slot not in slots:
                    slots[arg.slot] = len(slots)
                    added_slots.append(arg.slot)
                return msgspec.structs.replace(arg, slot=slots[arg.slot])
            case Lifted():
                return Lifted(scalars.setdefault(arg.index, len(scalars)))
            case tuple():
                return tuple(map(renumber, arg))
        return arg

    nodes, added, bound = [], [], []
    for call in calls:
        args, kwargs = renumber(call.args), renumber(call.kwargs)
        bound.append(len(added_slots))
        results = renumber(call.results)
        nodes.append(msgspec.structs.replace(call, args=args, kwargs=kwargs, results=results))
        added.append(tuple(layout_ids[slot] for slot in added_slots))
        added_slots.clear()
    trace = RecordedTrace(tuple(nodes), tuple(added), tuple(bound), len(scalars))
    return trace, list(slots), list(scalars)
