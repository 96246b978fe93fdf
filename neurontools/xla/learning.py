"""Learning: recorded calls that run one by one, and what the trace cache keeps of a call that has run."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from neurontools.xla.call_capture import fast_result
from neurontools.xla.execution import host_execution, last_use_of_slots, run_call
from neurontools.xla.trie import Fresh, TrieNode

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from neurontools.xla.buffers import DeviceBuffer
    from neurontools.xla.call_capture import Call
    from neurontools.xla.trie import Recipe

HELD_BY_RECORDER = 2
"""References to a buffer that no tensor has: the recording's, and the argument of the function that counts them."""


def run_recorded(recorder: Any) -> None:
    """Run the recorded calls one by one, and fill the buffers of the results."""
    hosts: list[torch.Tensor | None] = []
    slots, count = recorder.slots, sys.getrefcount
    last_uses = last_use_of_slots(recorder.calls())
    for position, node in enumerate(recorder.node.path()):
        start = len(hosts)
        hosts += [slots[slot].host for slot in range(start, start + node.bound)]
        assert node.call is not None
        assert node.operator is not None
        with host_execution(), recorder.generator.scope() if node.operator.random else nullcontext():
            results = run_call(node.operator, node.call, hosts, recorder.scalars, recorder.numerics)
        fresh = [
            host for host, recipe in zip(results, node.recipes, strict=False) if isinstance(recipe, Fresh)
        ]
        for host in fresh:
            slots[len(hosts)].host = host
            hosts.append(host)
        for slot in last_uses.get(position, ()):
            if count(slots[slot]) <= HELD_BY_RECORDER:
                slots[slot].host = hosts[slot] = None


def release_unreferenced(slots: Sequence[DeviceBuffer]) -> int:
    """Drop the contents of buffers that no tensor refers to, as an eager program would; return the bytes of the others."""
    count = sys.getrefcount
    kept_bytes = 0
    for slot in range(len(slots)):
        if count(slots[slot]) <= HELD_BY_RECORDER:
            slots[slot].host = None
        elif slots[slot].host is not None:
            kept_bytes += slots[slot].nbytes
    return kept_bytes


def learned_node(
    recorder: Any, parent: TrieNode, call: Call, recipes: tuple[Recipe, ...], bound: int
) -> TrieNode:
    """Return the node of a call that has bound that many inputs."""
    fresh = [recipe for recipe in recipes if isinstance(recipe, Fresh)]
    return TrieNode(
        parent=parent,
        operator=call.operator,
        call=call.node(recipes),
        recipes=recipes,
        fast_result=fast_result(call.operator, recipes),
        added=(
            *(buffer.layout_id for buffer in recorder.slots[parent.slots :]),
            *(recipe.layout_id for recipe in fresh),
        ),
        bound=bound,
        lifted=len(recorder.scalars),
        slots=len(recorder.slots) + len(fresh),
        written=(*call.written, *(recipe.slot for recipe in fresh)),
        draws=parent.draws or call.operator.random,
        depth=parent.depth + 1,
    )
