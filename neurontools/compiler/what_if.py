"""The engine model held against a change: another data type, batch, size, device or core configuration.

Nothing runs. The graph of a NEFF is changed as the program would record it, and the model estimates its time. All times
are modelled.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from msgspec import structs

from neurontools import gpsimd
from neurontools.base.text import did_you_mean
from neurontools.compiler.attention_forms import fuse_attention, write_out_attention
from neurontools.compiler.compile import check_and_estimate
from neurontools.compiler.engines.instructions import KernelProgram
from neurontools.compiler.engines.modelled_core import kernel_core
from neurontools.compiler.engines.placement import CUSTOM_OPCODE, is_custom
from neurontools.compiler.engines.schedule import schedule
from neurontools.compiler.graph import Arg, Graph, Slot, Symbol, View, reads
from neurontools.compiler.options import CompileError, device_of, flags_for
from neurontools.compiler.resizing import ChangeError, batch_sizes, resize
from neurontools.compiler.work import item_bytes, numel, written
from neurontools.config.reader import FileError, FormatError, read_yaml
from neurontools.config.settings import read_file
from neurontools.config.types import number
from neurontools.machine.instances.catalogue import find_instance_type, instance_names, instance_type

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from neurontools.compiler.engines.cost import GraphCost
    from neurontools.compiler.engines.instructions import CustomWork
    from neurontools.compiler.graph import Node
    from neurontools.compiler.neff import Neff
    from neurontools.machine.instances.catalogue import DeviceType, InstanceType

__all__ = ["Change", "ChangeError", "Forecast", "apply_change", "model_graph", "read_prices", "what_if"]

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_PRICE_LIST = "a price list has lines such as 'trn1.2xlarge: 1.34', the price of an hour"
_FLOATS = frozenset({"float64", *DTYPES.values()})


@dataclass(frozen=True, slots=True)
class Change:
    """What to change in a graph.

    Args:
        dtype: data type of every floating-point tensor: bf16, fp16, fp32, or torch's name of it; "" for no change.
        batch: old and new batch; the old one is None if the graph shall say, and the new one is then a factor.
        sizes: new sizes of dimensions by old ones.
        attention: "fused", "written-out", or "" for no change.
    """

    dtype: str = ""
    batch: tuple[int | None, float] | None = None
    sizes: Mapping[int, int] = field(default_factory=dict)
    attention: str = ""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The modelled step of one instance type.

    Args:
        instance: the instance type.
        lnc: physical cores of a logical core.
        cores: logical cores of the instance.
        before_ns: time of the graph as it is, None if it cannot run there.
        after_ns: time of the changed graph, None if it cannot run there.
        flops: floating-point operations of the changed graph.
        problem: why a time is missing, "" otherwise.
        fallback: core version whose constants stand in for those of the device, "" if it has its own.
        price_per_hour: of the instance, in the unit of the user's list; None if the list has none.
        batch_factor: new batch by old batch.
    """

    instance: str
    lnc: int
    cores: int
    before_ns: int | None
    after_ns: int | None
    flops: int
    problem: str = ""
    fallback: str = ""
    price_per_hour: float | None = None
    batch_factor: float = 1.0

    @property
    def ratio(self) -> float | None:
        """Time after the change by time before it."""
        return self.after_ns / self.before_ns if self.before_ns and self.after_ns is not None else None

    @property
    def sample_ratio(self) -> float | None:
        """Time of a sample after the change by time of a sample before it."""
        return None if self.ratio is None else self.ratio / self.batch_factor

    @property
    def price_per_million_steps(self) -> float | None:
        """What a million steps of one core cost, if every core of the instance is in use."""
        if self.price_per_hour is None or self.after_ns is None:
            return None
        return self.price_per_hour / 3600e9 * self.after_ns * 1e6 / self.cores


def what_if(
    neff: Neff,
    change: Change,
    instances: Sequence[str] = (),
    lnc: int | None = None,
    prices: Mapping[str, float] | None = None,
) -> tuple[Forecast, ...]:
    """Return what a change does to the modelled time of a NEFF's graph.

    Args:
        neff: the NEFF.
        change: what to change in its graph.
        instances: instance types; if empty, one with the device that the NEFF was compiled for.
        lnc: physical cores of a logical core; None for the NEFF's on its own device, and the default of others.
        prices: prices an hour by instance type.

    Raises:
        ChangeError: the change cannot be applied to the graph.
        UnknownInstanceError: no instance type has that name.
    """
    own = device_of(neff.flags)
    names = tuple(instances) or (
        next(name for name in instance_names() if instance_type(name).device == own),
    )
    changed = apply_change(neff.graph, change)
    old, new = (1, 1) if change.batch is None else _batch(neff.graph, *change.batch)
    models = _Models(neff, changed)
    found = []
    for name in names:
        instance = instance_type(name)
        wanted = (
            (neff.header.lnc if instance.device == own else instance.device.lnc_default)
            if lnc is None
            else lnc
        )
        forecast = models.forecast(instance, wanted)
        found.append(replace(forecast, price_per_hour=(prices or {}).get(name), batch_factor=new / old))
    return tuple(found)


def read_prices(path: str) -> dict[str, float]:
    """Return a price list: prices an hour by instance type, in any currency, as YAML or JSON.

    Raises:
        FileError: it has mistakes, all of which are listed.
        ChangeError: it cannot be read.
    """
    try:
        root = read_yaml(read_file(path))
    except OSError as error:
        raise ChangeError(f"cannot read {path}: {error.strerror or error}", _PRICE_LIST) from error
    except FormatError as error:
        raise FileError(path, [error.problem], _PRICE_LIST) from error
    prices = {}
    for name, value in root.section("prices an hour by instance type"):
        if find_instance_type(name) is None:
            value.fail_key("unknown instance type", did_you_mean(name, instance_names()))
        prices[name] = value.read(number(expected="a price of an hour, such as 1.34"), 0.0)
    if root.problems:
        raise FileError(path, root.problems, _PRICE_LIST)
    return prices


def apply_change(graph: Graph, change: Change) -> Graph:
    """Return the graph that the changed program would record.

    Raises:
        ChangeError: the change cannot be applied to it.
    """
    if change.batch is not None:
        graph = resize(graph, dict([_batch(graph, *change.batch)]), only_batch=True)
    if change.sizes:
        graph = resize(graph, change.sizes)
    if change.dtype:
        graph = _cast(graph, change.dtype)
    match change.attention:
        case "fused":
            graph = fuse_attention(graph)
        case "written-out":
            graph = write_out_attention(graph)
    return graph


def model_graph(
    neff: Neff,
    graph: Graph,
    device: DeviceType,
    lnc: int,
    flags: Sequence[str] = (),
    custom: Mapping[int, CustomWork] | None = None,
) -> tuple[GraphCost | None, str]:
    """Return the modelled schedule of a changed graph of a NEFF, or None and why the compiler would refuse it.

    Args:
        neff: whose flags and times of custom operators hold.
        graph: its graph, as it is or changed.
        device: the device to run on.
        lnc: physical cores of a logical core.
        flags: compiler flags besides those of the NEFF; they win.
        custom: other work of custom operators by their positions.
    """
    calls = {**_custom_work(neff, graph), **(custom or {})}
    try:
        _, cost = check_and_estimate(graph, device, flags_for(device, lnc, [*neff.flags, *flags]), calls)
    except CompileError as error:
        return None, error.message
    return cost, ""


class _Models:
    """The modelled schedules of a graph and of its changed form, once for each device."""

    def __init__(self, neff: Neff, changed: Graph) -> None:
        self._neff = neff
        self._changed = changed
        self._known: dict[tuple[str, int, bool], tuple[GraphCost | None, str]] = {}

    def forecast(self, instance: InstanceType, lnc: int) -> Forecast:
        """Return the times on an instance type."""
        device = instance.device
        if lnc not in device.lnc_choices:
            choices = " or ".join(map(str, device.lnc_choices))
            problem = f"it has no logical core size of {lnc}, only {choices}"
            return Forecast(instance.name, lnc, 0, None, None, 0, problem)
        before, problem = self._model(device, lnc, is_changed=False)
        after, reason = self._model(device, lnc, is_changed=True)
        return Forecast(
            instance=instance.name,
            lnc=lnc,
            cores=instance.core_count(lnc),
            before_ns=None if before is None else before.total_ns,
            after_ns=None if after is None else after.total_ns,
            flops=0 if after is None else after.flops,
            problem=reason or (f"as it is: {problem}" if problem else ""),
            fallback="" if after is None else after.fallback,
        )

    def _model(self, device: DeviceType, lnc: int, *, is_changed: bool) -> tuple[GraphCost | None, str]:
        is_changed = is_changed and self._changed is not self._neff.graph
        key = device.name, lnc, is_changed
        if key not in self._known:
            graph = self._changed if is_changed else self._neff.graph
            self._known[key] = model_graph(self._neff, graph, device, lnc)
        return self._known[key]


def _custom_work(neff: Neff, graph: Graph) -> dict[int, CustomWork]:
    """Return the work of custom operators by position, of as many elements as a changed graph has.

    It was counted when the NEFF was made. A graph that calls each one several times does so in succession.
    """
    work = known_work(neff)
    before = [position for position, node in enumerate(neff.graph.nodes) if is_custom(node.op)]
    after = [position for position, node in enumerate(graph.nodes) if is_custom(node.op)]
    calls = max(len(after) // max(len(before), 1), 1)
    changed: dict[int, CustomWork] = {}
    for call, position in enumerate(after[: len(before) * calls]):
        origin = before[call // calls]
        if origin in work:
            now, then = _elements(graph.nodes[position]), _elements(neff.graph.nodes[origin])
            changed[position] = (
                work[origin] if now == then else _scaled(neff, work[origin], now / max(then, 1))
            )
    return changed


def known_work(neff: Neff) -> dict[int, CustomWork]:
    """Return the work of the custom operators of a NEFF by position, as it was when the NEFF was made."""
    times = {op.operator: op.duration_ns for op in neff.cost.ops if op.opcode == CUSTOM_OPCODE}
    return {**times, **neff.kernels}


def _scaled(neff: Neff, work: CustomWork, ratio: float) -> int:
    """Return the time of a custom operator on other elements; a kernel can be modelled for its own shapes alone."""
    if isinstance(work, KernelProgram):
        return round(schedule(work.alone(), kernel_core(device_of(neff.flags))).end_ns * ratio)
    fixed_ns = min(gpsimd.rates().launch_ns, work)
    return round(fixed_ns + (work - fixed_ns) * ratio)


def _elements(node: Node) -> int:
    return sum(numel(view) for view in (*reads(node), *written(node)))


def _batch(graph: Graph, old: int | None, new: float) -> tuple[int, int]:
    """Return the old and the new batch of a graph."""
    if old is None:
        known = batch_sizes(graph)
        if len(known) != 1:
            found = (
                f"may be {', '.join(map(str, known[:10]))}" if known else "does not follow from its inputs"
            )
            raise ChangeError(f"the batch of the graph {found}", "name it: --batch OLD=NEW")
        old, new = known[0], known[0] * new
    if new < 1 or int(new) != new:
        raise ChangeError(f"a batch of {new:g} is not a whole number of samples", "choose another factor")
    return old, int(new)


def _cast(graph: Graph, name: str) -> Graph:
    dtype = DTYPES.get(name, name)
    if dtype not in _FLOATS and not dtype.startswith("float8"):
        raise ChangeError(f"unknown data type {name!r}", f"choose one of {', '.join(DTYPES)}")
    cast: dict[int, tuple[int, int]] = {}

    def convert(arg: Arg) -> Arg:
        match arg:
            case View() if arg.dtype in _FLOATS:
                cast[arg.slot] = item_bytes(arg.dtype), item_bytes(dtype)
                return structs.replace(arg, dtype=dtype)
            case Symbol("dtype", old) if old in _FLOATS:
                return Symbol("dtype", dtype)
            case tuple():
                return tuple(map(convert, arg))
        return arg

    def convert_call(node: Node) -> Node:
        return structs.replace(
            node,
            args=tuple(map(convert, node.args)),
            kwargs=tuple((key, convert(value)) for key, value in node.kwargs),
            results=tuple(map(convert, node.results)),
        )

    nodes = list(map(convert_call, graph.nodes))
    slots = list(graph.slots)
    for slot, (before, after) in cast.items():
        slots[slot] = Slot(slots[slot].nbytes * after // before)
    return graph.with_calls(slots, nodes)
