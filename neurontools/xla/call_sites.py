"""Where an operator is called: the user's line, and the layer of the model, such as `GPT.blocks.3.attn.proj`.

Read from the stack of Python frames while a graph is learned, never when it is replayed. An operator of a backward pass
belongs to the line and layer of its forward operator, which autograd's sequence number names: the forward operator
runs right after autograd has made the node of its backward.
"""

from __future__ import annotations

import re
import sys
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import torch

from neurontools.compiler.graph_nodes import BACKWARD, Node
from neurontools.xla.debugging.compile_log import COMPILED, NOT_USERS

if TYPE_CHECKING:
    from types import CodeType, FrameType


# Torch's private API.


_FRAME = re.compile(r'^ *File "([^"]+)", line (\d+)', re.MULTILINE)
_VARIABLE = re.compile(r"^[LG]\['\w+'\](\.__closure__\[\d+\]\.cell_contents)?")
_MODULE = re.compile(r"\._modules\['(\w+)'\]")
_known: weakref.WeakKeyDictionary[torch.fx.GraphModule, dict[int, tuple[str, str]]] = (
    weakref.WeakKeyDictionary()
)


def origin_of(frame: FrameType, line: int) -> tuple[str, str]:
    """Return the user's `file:line` and the layer of what a line of generated code calls; "" where there is none."""
    if not frame.f_code.co_filename.startswith(COMPILED):
        return "", ""
    graph = frame.f_locals.get("self")
    if not isinstance(graph, torch.fx.GraphModule):
        return "", ""
    origins = _known.get(graph)
    if origins is None:
        origins = _known[graph] = _origins(graph)
    return origins.get(line - frame.f_code.co_firstlineno, ("", ""))


def source_of(node: torch.fx.Node) -> str:
    """Return the user's `file:line` of a node, "" if it has none."""
    frames = _FRAME.findall(node.stack_trace or "")
    return next((f"{file}:{line}" for file, line in reversed(frames) if not file.startswith(NOT_USERS)), "")


def _origins(graph: torch.fx.GraphModule) -> dict[int, tuple[str, str]]:
    """Return source and layer by the line of the graph's code."""
    nodes = list(graph.graph.nodes)
    lines: dict[int, int | None] = getattr(graph, "_lineno_map", None) or {}
    return {
        line: (source_of(nodes[position]), _layer(nodes[position].meta))
        for line, position in lines.items()
        if position is not None
    }


def _layer(meta: dict[str, Any]) -> str:
    forward = meta.get("nn_module_stack")
    modules = list((forward or meta.get("fwd_nn_module_stack") or {}).values())
    suffix = BACKWARD if not forward and "autograd_backward" in meta else ""
    if not modules:
        return suffix
    (outermost, kind), (innermost, _) = modules[0], modules[-1]
    root = "" if _path(outermost) else (kind if isinstance(kind, str) else kind.__name__).rpartition(".")[2]
    return f"{root}{_path(innermost)}".removeprefix(".") + suffix


def _path(name: str) -> str:
    """Return the path of a module below a variable: `.blocks.0` for `L['self']._modules['blocks'].0`."""
    return _VARIABLE.sub("", _MODULE.sub(r".\1", name))


# ruff: noqa: SLF001
# Frames of the interpreter, and torch's private API.


_KEPT_FORWARD = 100_000
_KEPT_MODULES = 100_000
_NEIGHBOURS = 5
_FRAMES_OF_TO = 16
_BACKWARD_NAME = re.compile(r"Backward[0-9]*$")

_current_autograd_node = torch._C._current_autograd_node
_next_sequence_number = torch._C._autograd._get_sequence_nr


def _code_of(function: Any) -> CodeType:
    code: CodeType = function.__code__
    return code


_MODULE_CALL = _code_of(torch.nn.Module._wrapped_call_impl)
_MODULE_APPLY = _code_of(torch.nn.Module._apply)
_OPTIMIZER_STEP = _code_of(torch.optim.Optimizer.profile_hook_step(lambda _: None))
_RUN_BACKWARD = _code_of(torch.autograd.graph._engine_run_backward)


class _UserFiles(dict[str, bool]):
    """Whether a file is the user's, not torch's or this package's."""

    def __missing__(self, file: str) -> bool:
        found = self[file] = not file.startswith(NOT_USERS)
        return found


class _Layers:
    """The paths of modules, by identity; a model's are read when one of its modules is met for the first time."""

    def __init__(self) -> None:
        self._paths: dict[int, tuple[weakref.ref[torch.nn.Module], str]] = {}

    def find(self, module: torch.nn.Module) -> str:
        """Return the path of a module, "" if it is not known."""
        known = self._paths.get(id(module))
        return known[1] if known is not None and known[0]() is module else ""

    def add(self, root: torch.nn.Module) -> None:
        """Read the paths of all modules of a model, without its `named_modules`, which may be a program's own and raise."""
        if len(self._paths) > _KEPT_MODULES:
            self._paths.clear()
        waiting: list[tuple[str, torch.nn.Module]] = [(type(root).__name__, root)]
        visited = set()
        while waiting:
            path, module = waiting.pop()
            if id(module) in visited:
                continue
            visited.add(id(module))
            self._paths[id(module)] = weakref.ref(module), path
            children = vars(module).get("_modules", {})  # none before `Module.__init__`
            waiting += [
                (f"{path}.{name}", child) for name, child in reversed(children.items()) if child is not None
            ]


_users = _UserFiles()
_layers = _Layers()


class Recording(Protocol):
    """What is being recorded: `epoch` is its identity."""

    epoch: object

    def calls(self) -> tuple[Node, ...]:
        """Return the operators so far."""


class CallSites:
    """The call sites of one device. It remembers those of forward operators until their backward pass."""

    def __init__(self) -> None:
        self._forward: dict[int, tuple[str, str, object]] = {}
        self._visited: set[int] = set()
        self._latest = -1

    def current(self, recording: Recording) -> tuple[str, str]:
        """Return the user's `file:line` and the layer of the operator that is being called; "" where there is none."""
        frame: FrameType | None = sys._getframe(1)
        source = layer = ""
        while frame is not None:
            code = frame.f_code  # compared by identity, as code is slow to hash
            if code is _MODULE_CALL:
                layer = layer or _layer_of(frame)
                if source:
                    break
            elif code is _RUN_BACKWARD:
                return self._backward(frame, source, recording)
            elif not source:
                if _users[code.co_filename]:
                    source = f"{code.co_filename}:{frame.f_lineno}"
                    if layer:
                        break
                elif any(found := origin_of(frame, frame.f_lineno)):
                    return found[0] or _users_line(frame), found[1]
                elif code is _OPTIMIZER_STEP and not layer:
                    layer = f"{type(frame.f_locals['args'][0]).__name__}.step"
            frame = frame.f_back
        number = _next_sequence_number() - 1
        # An operator without a backward finds the number of the one before it.
        if number != self._latest and torch.is_grad_enabled():
            self._latest = number
            if len(self._forward) > _KEPT_FORWARD:
                self._forward.clear()
            self._forward[number] = source, layer, recording.epoch
        return source, layer

    def _backward(self, frame: FrameType | None, source: str, recording: Recording) -> tuple[str, str]:
        node = _current_autograd_node()
        if node is not None:
            number = node._sequence_nr()
            if number not in self._forward and number not in self._visited:
                self._match(node, recording)
            for earlier in range(number, number - _NEIGHBOURS, -1):  # views have a node, but are not recorded
                known = self._forward.get(earlier)
                if known is not None and (earlier == number or known[2] is recording.epoch):
                    return known[0], known[1] + BACKWARD
        return source or _users_line(frame), BACKWARD

    def _match(self, root: Any, recording: Recording) -> None:
        """Find the forward operators of a backward pass that were known, so that nothing was noted when they ran.

        Nodes of autograd and recorded operators are in the same order, and a node is named after its operator. Nodes
        of views have none among the recorded operators.
        """
        if len(self._visited) > _KEPT_FORWARD:
            self._visited.clear()
        nodes = _nodes_below(root)
        self._visited.update(nodes)
        calls = recording.calls()
        names = [_plain_name(call.op.split(".")[1]) for call in calls]
        position = 0
        for number in sorted(nodes):
            with suppress(ValueError):
                position = (
                    names.index(_plain_name(_BACKWARD_NAME.sub("", nodes[number].name())), position) + 1
                )
                found = calls[position - 1]
                self._forward.setdefault(number, (found.source, found.layer, recording.epoch))


def _users_line(frame: FrameType | None) -> str:
    """Return `file:line` of the innermost frame of the user's, or "" without one."""
    while frame is not None:
        if _users[frame.f_code.co_filename]:
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _nodes_below(root: Any) -> dict[int, Any]:
    """Return the nodes of autograd that a node leads to, by sequence number."""
    found: dict[int, Any] = {}
    waiting = [root]
    while waiting:
        node = waiting.pop()
        number = node._sequence_nr()
        if number not in found:
            found[number] = node
            waiting += [following for following, _ in node.next_functions if following is not None]
    return found


def _plain_name(name: str) -> str:
    return name.replace("_", "").removesuffix("forward").lower()


def moved_parameter() -> str:
    """Return the path of the parameter or buffer that `Module.to` moves in this call, "" if none."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_FRAMES_OF_TO):
        if frame is None:
            break
        if frame.f_code is _MODULE_APPLY:
            name = frame.f_locals.get("key", "")
            return f"{_layer_of(frame)}.{name}" if name else ""
        frame = frame.f_back
    return ""


def _layer_of(frame: FrameType) -> str:
    """Return the path of the module that a frame calls or moves."""
    module = frame.f_locals["self"]
    path = _layers.find(module)
    if path:
        return path
    outermost = module
    outer = frame.f_back
    while outer is not None and outer.f_code is not _RUN_BACKWARD:
        if outer.f_code is frame.f_code:
            outermost = outer.f_locals["self"]
        outer = outer.f_back
    _layers.add(outermost)
    return _layers.find(module) or type(module).__name__
