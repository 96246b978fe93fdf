"""The stored form of a graph: tables of what repeats, and columns of small numbers for what differs.

A graph has few *layouts* (a view without its slot) and few *forms* (a call without its slots and scalar inputs), and
calls each of them many times. A call is the number of its form. The slots of all views follow in one column, each as
its distance from the first slot that no earlier view has used: 0 for a new slot, the same small numbers in every layer
of a model.

The first line is JSON and everything that the graph computes; its sha256 identifies the graph. The second line, if
there is one, says where the calls come from.
"""

from __future__ import annotations

import json
import math
from itertools import chain, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from neurontools.compiler.graph_nodes import Arg, GraphError, Lifted, Node, Symbol, View

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

SCHEMA = 2
_LARGEST = 2**63 - 1  # of sizes, strides and offsets
_DEEPEST = 16  # lists in lists of an argument
_SYMBOLS = frozenset({"dtype", "layout", "memory_format", "device"})
_encode = json.JSONEncoder(separators=(",", ":"), sort_keys=True, allow_nan=False).encode

Origin = tuple[str, str]
"""Source and layer of a call."""
Layout = tuple[str, tuple[int, ...], tuple[int, ...], int]


def dump_calls(nodes: Sequence[Node]) -> dict[str, Any]:
    """Return the tables and columns of a graph's calls, without their source lines and layers."""
    return _Writer(nodes).tables()


def dump_sources(nodes: Sequence[Node], cut: str) -> str:
    """Return the line of source locations and layers, "" if there are none."""
    table: dict[str, int] = {}
    column = [table.setdefault(node.source, len(table)) for node in nodes]
    layers: dict[str, int] = {}
    places = [layers.setdefault(node.layer, len(layers)) for node in nodes]
    if not cut and not any(table) and not any(layers):
        return ""
    stored: dict[str, Any] = {"cut": cut, "sources": list(table), "calls": column}
    if any(layers):
        stored |= {"layers": list(layers), "places": places}
    return _encode(stored)


def encode(fields: dict[str, Any]) -> str:
    """Return the first line: canonical JSON of a graph's fields."""
    return _encode({"schema": SCHEMA, **fields})


def decode(line: bytes) -> dict[str, Any]:
    """Return the fields of a stored graph's first line.

    Raises:
        GraphError: the graph has another schema.
        KeyError, TypeError, ValueError, RecursionError: the bytes are damaged.
    """
    stored = json.loads(line)
    if stored["schema"] != SCHEMA:
        raise GraphError(
            f"graph schema {stored['schema']!r:.20} is not supported (supported: {SCHEMA})",
            "compile the model again",
        )
    return dict(stored)


class _Layout(NamedTuple):
    """The place of a view in the key of a form."""

    layout: int


class _Constant(NamedTuple):
    """A bool or a float in the key of a form: 1, True and 1.0 are equal, as are 0.0 and -0.0."""

    kind: type
    text: str


_LIFTED = object()


class _Writer:
    def __init__(self, nodes: Sequence[Node]) -> None:
        self._layouts: dict[Layout, _Layout] = {}
        self._forms: dict[Any, int] = {}
        self._operands: list[int] = []
        self._scalars: list[int] = []
        self._free = 0
        self._next_scalar = 0
        self._calls = [self._call(node) for node in nodes]

    def tables(self) -> dict[str, Any]:
        """Return all of it; tables are in the order of first use."""
        return {
            "layouts": list(self._layouts),
            "forms": [_store_form(*form) for form in self._forms],
            "calls": self._calls,
            "operands": self._operands,
            "scalars": self._scalars,
        }

    def _call(self, node: Node) -> int:
        key = self._key
        form = (
            node.op,
            tuple([key(arg) for arg in node.args]),
            tuple([(name, key(arg)) for name, arg in node.kwargs]),
            tuple([key(result) for result in node.results]),
        )
        return self._forms.setdefault(form, len(self._forms))

    def _key(self, arg: Arg) -> Any:
        if isinstance(arg, View):
            return self._view(arg)
        if isinstance(arg, tuple):
            return tuple([self._key(item) for item in arg])
        kind = arg.__class__
        if kind is bool or kind is float:
            return _Constant(kind, repr(arg))
        if isinstance(arg, Lifted):
            self._scalars.append(arg.index - self._next_scalar)
            self._next_scalar = arg.index + 1
            return _LIFTED
        return arg

    def _view(self, view: View) -> _Layout:
        slot, free = view.slot, self._free
        self._operands.append(free - slot)
        if slot >= free:
            self._free = slot + 1
        layout = (view.dtype, view.shape, view.strides, view.offset)
        known = self._layouts.get(layout)
        if known is None:
            known = self._layouts[layout] = _Layout(len(self._layouts))
        return known


def _store_form(op: str, args: Any, kwargs: Any, results: Any) -> list[Any]:
    return [
        op,
        [_store(arg) for arg in args],
        [[name, _store(arg)] for name, arg in kwargs],
        [_store(result) for result in results],
    ]


def _store(key: Any) -> Any:
    match key:
        case _Layout(layout):
            return {"view": layout}
        case _Constant(kind, text):
            if kind is bool:
                return text == "True"
            number = float(text)
            return number if math.isfinite(number) else {"float": text}
        case Symbol(kind, name):
            return {kind: name}
        case tuple():
            return [_store(item) for item in key]
    return {"lifted": True} if key is _LIFTED else key


def load_calls(
    stored: dict[str, Any], origins: Sequence[Origin], slots: int, lifted: int
) -> tuple[Node, ...]:
    """Return the calls of a stored graph, checked.

    Args:
        stored: the fields of its first line.
        origins: source and layer of each call; empty if unknown.
        slots: number of slots of the graph.
        lifted: number of its scalar inputs.

    Raises:
        GraphError: a call refers to a slot or a scalar that does not exist, or a size is out of range.
        IndexError, KeyError, TypeError, ValueError, RecursionError: the tables are damaged.
    """
    layouts = [_load_layout(*row) for row in stored["layouts"]]
    forms = [_Form(row, len(layouts)) for row in stored["forms"]]
    numbers = _integers(stored["calls"], 0, len(forms) - 1)
    called = [forms[number] for number in numbers]
    operands, scalars = _integers(stored["operands"]), _integers(stored["scalars"])
    if sum(form.view_count for form in called) != len(operands):
        raise ValueError("the calls and their operands differ in number")
    if sum(form.scalar_count for form in called) != len(scalars):
        raise ValueError("the calls and their scalars differ in number")
    if origins and len(origins) != len(called):
        raise ValueError("the calls and their sources differ in number")
    used, indices = _resolve_slots(operands), _resolve_scalars(scalars)
    if used and not 0 <= min(used) <= max(used) < slots:
        raise GraphError(f"a node refers to a slot outside 0..{slots - 1}")
    if indices and not 0 <= min(indices) <= max(indices) < lifted:
        raise GraphError(f"a node refers to a scalar input outside 0..{lifted - 1}")
    known = _Views(layouts)
    placed = chain.from_iterable([form.layouts for form in called])
    made: list[Any] = list(map(known.__getitem__, zip(used, placed, strict=True)))
    return tuple(_nodes(called, made, list(map(Lifted, indices)), origins or repeat(("", ""))))


def load_sources(line: bytes) -> tuple[str, list[Origin]]:
    """Return what ended a recording, and source and layer of each call, of a stored graph's second line.

    Raises:
        IndexError, KeyError, TypeError, ValueError, RecursionError: the line is damaged.
    """
    if not line:
        return "", []
    stored = json.loads(line)
    sources = _column(stored["sources"], stored["calls"])
    # Only graphs of modules have layers.
    layers = _column(stored["layers"], stored["places"]) if "layers" in stored else [""] * len(sources)
    return _text(stored["cut"]), list(zip(sources, layers, strict=True))


def _column(table: Any, numbers: Any) -> list[str]:
    texts = [_text(text) for text in table]
    return [texts[number] for number in _integers(numbers, 0, len(texts) - 1)]


def integers(values: Any) -> tuple[int, ...]:
    """Return a stored list of integers.

    Raises:
        TypeError: it is none.
    """
    return tuple(_integers(values))


class _Views(dict[tuple[int, int], View]):
    """The views of a graph by slot and layout: equal ones are one object."""

    def __init__(self, layouts: Sequence[Layout]) -> None:
        super().__init__()
        self._layouts = layouts

    def __missing__(self, key: tuple[int, int]) -> View:
        slot, layout = key
        view = self[key] = View(slot, *self._layouts[layout])
        return view


class _Form:
    """A call without its slots and scalars: how its arguments are picked from views, scalars and constants."""

    __slots__ = ("args", "constants", "kwargs", "layouts", "op", "results", "scalar_count", "view_count")

    def __init__(self, row: Any, layout_count: int) -> None:
        op, args, kwargs, results = row
        reader = _FormReader(layout_count)
        arguments = [reader.read(arg) for arg in args]
        named = [(_text(name), reader.read(arg)) for name, arg in kwargs]
        returned = [reader.read_result(result) for result in results]
        self.op = _text(op)
        self.layouts = reader.layouts
        self.view_count = len(reader.layouts)
        self.scalar_count = reader.scalar_count
        self.constants = reader.constants
        self.args = _picker([self._place(place) for place in arguments])
        self.kwargs = _named_picker([(name, self._place(place)) for name, place in named])
        self.results = _picker([self._place(place) for place in returned])

    def _place(self, place: Any) -> Any:
        """Return a place's index in the list of views, scalars and constants; a list of them for a list."""
        kind, value = place
        if kind == _LIST:
            return [self._place(item) for item in value]
        return value + (0, self.view_count, self.view_count + self.scalar_count)[kind]


_VIEW, _SCALAR, _CONSTANT, _LIST = range(4)


class _FormReader:
    """Reads the arguments of a form; each becomes the kind and number of its place."""

    def __init__(self, layout_count: int) -> None:
        self.layouts: list[int] = []
        self.constants: list[Any] = []
        self.scalar_count = 0
        self._layout_count = layout_count

    def read(self, stored: Any, depth: int = 0) -> tuple[int, Any]:
        if isinstance(stored, list):
            if depth == _DEEPEST:
                raise ValueError("an argument is nested too deeply")
            return self._read_list([self.read(item, depth + 1) for item in stored])
        if not isinstance(stored, dict):
            if stored is None or isinstance(stored, bool | int | float | str):
                return self._constant(stored)
            raise TypeError(f"unexpected {type(stored).__name__}")
        ((kind, value),) = stored.items()
        if kind == "view":
            return self._view(value)
        if kind == "lifted":
            self.scalar_count += 1
            return _SCALAR, self.scalar_count - 1
        if kind == "float":
            return self._constant(float(_text(value)))
        if kind in _SYMBOLS:
            return self._constant(Symbol(kind, _text(value)))
        raise ValueError(f"unknown argument kind {kind!r}")

    def read_result(self, stored: Any) -> tuple[int, Any]:
        if stored is None:
            return self._constant(None)
        ((kind, value),) = stored.items()
        if kind != "view":
            raise TypeError("a result is a view or null")
        return self._view(value)

    def _read_list(self, places: list[tuple[int, Any]]) -> tuple[int, Any]:
        if all(kind == _CONSTANT for kind, _ in places):
            return self._constant(tuple(self.constants[number] for _, number in places))
        return _LIST, places

    def _constant(self, value: Arg) -> tuple[int, int]:
        self.constants.append(value)
        return _CONSTANT, len(self.constants) - 1

    def _view(self, layout: Any) -> tuple[int, int]:
        if layout.__class__ is not int or not 0 <= layout < self._layout_count:
            raise ValueError("a view has an unknown layout")
        self.layouts.append(layout)
        return _VIEW, len(self.layouts) - 1


def _nodes(
    called: Sequence[_Form], made: list[Any], scalars: list[Any], origins: Iterable[Origin]
) -> Iterable[Node]:
    first = scalar = 0
    for form, (source, layer) in zip(called, origins, strict=False):
        after = first + form.view_count
        values = made[first:after]
        first = after
        if form.scalar_count:
            values += scalars[scalar : scalar + form.scalar_count]
            scalar += form.scalar_count
        values += form.constants
        yield Node(form.op, form.args(values), form.kwargs(values), form.results(values), source, layer)


def _picker(indices: Sequence[Any]) -> Callable[[list[Any]], tuple[Any, ...]]:
    if any(isinstance(index, list) for index in indices):
        inner = [_picker(index) if isinstance(index, list) else itemgetter(index) for index in indices]
        return lambda values: tuple([pick(values) for pick in inner])
    if len(indices) > 1:
        return itemgetter(*indices)
    if indices:
        (only,) = indices
        return lambda values: (values[only],)
    return lambda _: ()


def _named_picker(pairs: Sequence[tuple[str, Any]]) -> Callable[[list[Any]], tuple[Any, ...]]:
    if not pairs:
        return lambda _: ()
    names = [name for name, _ in pairs]
    pick = _picker([index for _, index in pairs])
    return lambda values: tuple(zip(names, pick(values), strict=True))


def _resolve_slots(operands: Iterable[int]) -> list[int]:
    free = 0
    slots = []
    for distance in operands:
        slot = free - distance
        if slot >= free:
            free = slot + 1
        slots.append(slot)
    return slots


def _resolve_scalars(scalars: Iterable[int]) -> list[int]:
    indices = []
    following = 0
    for distance in scalars:
        indices.append(following + distance)
        following += distance + 1
    return indices


def _load_layout(dtype: Any, shape: Any, strides: Any, offset: Any) -> Layout:
    sizes, steps = tuple(_integers(shape)), tuple(_integers(strides))
    if len(sizes) != len(steps):
        raise ValueError("a view differs in the number of sizes and strides")
    numbers = _integers([offset, *sizes, *steps])
    if min(numbers) < 0 or max(numbers) > _LARGEST or _has_too_many_elements(sizes):
        raise GraphError("a size, stride or offset is out of range")
    return _text(dtype), sizes, steps, offset


def _has_too_many_elements(sizes: tuple[int, ...]) -> bool:
    count = 1
    if 0 in sizes:
        return False
    for size in sizes:
        count *= size
        if count > _LARGEST:
            return True
    return False


def _integers(values: Any, low: int | None = None, high: int | None = None) -> list[int]:
    if not isinstance(values, list) or not set(map(type, values)) <= {int}:
        raise TypeError("expected a list of integers")
    if values and low is not None and high is not None and not low <= min(values) <= max(values) <= high:
        raise ValueError(f"a number is outside {low}..{high}")
    return values


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("expected a text")
    return value
