"""Changed kernels: which NKI kernel of a graph differs from the one before, and in what.

Calls of kernels carry their identity as constants (`neurontools.nki.kernel_identity`): lists of `name=value`.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from neurontools.cache.why.diff import Aspect

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neurontools.cache.graph_facts import OperatorCall
    from neurontools.cache.why.diff import GraphDiff

_PREFIX = "nki."
_KINDS = {"source": "source", "captured": "captured value", "arguments": "argument", "launch": "launch"}


def describe_changed_kernel(diff: GraphDiff) -> str:
    """Return what changed of the first kernel of a graph that is another one than before, "" if none is."""
    pairs = [
        (diff.old.operations[step.old], diff.new.operations[step.new])
        for step in diff.changed()
        if Aspect.CONSTANT in step.aspects
    ]
    # A kernel with other results or another number of tensors is another overload.
    pairs += _replaced(diff.removed(), diff.added())
    for old, new in pairs:
        if new.name.startswith(_PREFIX):
            changes = list(_changes(old, new))
            if changes:
                return f"kernel {_kernel_of(new)}: {'; '.join(changes)}"
    return ""


def _replaced(
    removed: Sequence[OperatorCall], added: Sequence[OperatorCall]
) -> Iterator[tuple[OperatorCall, OperatorCall]]:
    by_name = {_plain_name(operation): operation for operation in removed}
    for operation in added:
        before = by_name.get(_plain_name(operation))
        if before is not None:
            yield before, operation


def _plain_name(operation: OperatorCall) -> str:
    """Return an operator's name without its overload."""
    return operation.name.rpartition(".")[0]


def _kernel_of(operation: OperatorCall) -> str:
    """Return function and file of a kernel."""
    file, _, function = next(iter(_identity(operation).get("source", {})), "").rpartition(":")
    name = function or _plain_name(operation).removeprefix(_PREFIX)
    return f"{name} of {file}" if file else name


def _changes(old: OperatorCall, new: OperatorCall) -> Iterator[str]:
    before, after = _identity(old), _identity(new)
    main = next(iter(after.get("source", {})), "")
    for kind, noun in _KINDS.items():
        olds, news = before.get(kind, {}), after.get(kind, {})
        for name in dict.fromkeys([*olds, *news]):
            if olds.get(name) == news.get(name):
                continue
            if kind != "source":
                yield f"{noun} {name}: {olds.get(name, 'none')} -> {news.get(name, 'none')}"
            elif name == main or not main:
                yield "its source changed"
            else:
                verb = "was added" if name not in olds else "was removed" if name not in news else "changed"
                yield f"{name}, which it calls, {verb}"
    if old.name != new.name:
        yield f"its tensors: {old.name.rpartition('.')[2]} -> {new.name.rpartition('.')[2]}"


def _identity(operation: OperatorCall) -> dict[str, dict[str, str]]:
    """Return the identity of a kernel's call: by kind, values by name."""
    found = {}
    for constant in operation.constants:
        kind, separator, text = constant.partition("=")
        if separator and kind in _KINDS:
            try:
                items = ast.literal_eval(text)
            except (ValueError, SyntaxError, MemoryError, RecursionError):  # a damaged graph
                continue
            if isinstance(items, list):
                found[kind] = dict(str(item).partition("=")[::2] for item in items)
    return found
