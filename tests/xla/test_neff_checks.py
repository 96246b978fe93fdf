"""What a NEFF of another process may do: hostile graphs of every class, and graphs that are fine."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
import torch

from neurontools.compiler.compile import compile_graph
from neurontools.compiler.graph import Graph, Lifted, Node, Slot, Symbol, View
from neurontools.machine.instances.catalogue import instance_type
from neurontools.xla import neff_checks
from neurontools.xla.accelerator import DeviceError
from neurontools.xla.distributed import collectives
from neurontools.xla.neff_checks import true_call_results
from neurontools.xla.neff_executable import NeffExecutable, compile_exported, plain_scalars, whole_view
from neurontools.xla.neff_kernels import ATEN, COLLECTIVES
from neurontools.xla.operators import operator_of
from tests.fuzz.recorded_graphs import listed_graphs

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.xla.conftest import InMemoryAccelerator

pytestmark = pytest.mark.usefixtures("machine")


def view(slot: int, *shape: int, dtype: str = "float32", offset: int = 0) -> View:
    strides = torch.empty(shape, device="meta").stride()
    return View(slot, dtype, shape, tuple(strides), offset)


IN, OUT = view(0, 4), view(1, 4)


def foreign(
    *nodes: Node, inputs: tuple[View, ...] = (IN,), nbytes: tuple[int, ...] = (16, 16, 16, 16), lifted: int = 0,
    outputs: tuple[int, ...] = (1,), libraries: tuple[str, ...] = (), result: View = OUT,
) -> NeffExecutable:  # fmt: skip
    graph = Graph(
        tuple(map(Slot, nbytes)), tuple(item.slot for item in inputs), lifted, nodes, outputs, libraries
    )
    neff = compile_graph(graph, instance_type("trn1.2xlarge").device, ["--target=trn1"], "model")
    return NeffExecutable(neff, inputs, [0.5] * lifted, (result,), name="the NEFF in model.pt")


def call(op: str, *args: object, results: tuple[View | None, ...] = (OUT,), **kwargs: object) -> Node:
    return Node(op, args, tuple(kwargs.items()), results)  # type: ignore[arg-type]


def test_a_graph_of_listed_operators_runs(machine):
    made = foreign(
        call("aten.div.Tensor_mode", IN, view(0, 4), rounding_mode="floor", results=(view(2, 4),)),
        call("aten.mul.Scalar", view(2, 4), Lifted(0), results=(OUT,)),
        call("aten.add_.Tensor", OUT, view(2, 4), results=(OUT,)),
        lifted=1,
    )
    assert made.execute(made.load(0), [torch.tensor([2.0, 3.0, 4.0, 5.0])])[0].tolist() == [1.5] * 4


@pytest.mark.parametrize(
    "op",
    [
        "aten.from_file.default",  # reads and writes files
        "aten.set_.source_Tensor",  # takes another storage
        "aten.resize_.default",
        "aten.record_stream.default",
        "aten._print.default",
        "aten.empty.memory_format",  # shows what was in memory
        "aten._nested_view_from_buffer.default",  # trusts its indices
        "aten.max_pool2d_with_indices_backward.default",
        "aten.fbgemm_linear_fp16_weight.default",
        "aten.quantized_lstm.input_legacy",
        "aten.relu.default.more",
        "aten.__class__.mro",  # not an operator
        "aten._dir.append",
        "load_library.__call__.default",  # loads code
        "import_module.__func__.default",
        "prims.device_put.default",
        "profiler._record_function_enter_new.default",
        "neurontools.set_rng_state.default",  # of this process
        "rngprims.philox_rand.default",
        "__import__('os').system('id').x",
        "",
    ],
)
def test_an_operator_that_is_not_listed_is_refused(op):
    with pytest.raises(DeviceError) as caught:
        foreign(call(op, IN))
    assert caught.value.message == (
        f"the NEFF in model.pt calls {op!r}, which a NEFF of another process may not call"
    )
    assert caught.value.remedy.startswith("compile the model in this process")


def test_an_operator_of_python_is_refused_even_if_a_library_is_named():
    library = torch.library.Library("foreign_test", "FRAGMENT")
    library.define("run(Tensor x) -> Tensor")
    library.impl("run", lambda _: pytest.fail("was called"), "CPU")
    with pytest.raises(DeviceError, match=r"calls 'foreign_test\.run\.default'"):
        foreign(call("foreign_test.run.default", IN), libraries=("ab" * 32,))


def test_names_of_arguments_do_not_become_code(tmp_path):
    trace = tmp_path / "ran"
    hostile = f"alpha=__import__('os').mkdir({str(trace)!r}), alpha"
    with pytest.raises(DeviceError, match=r"invalid call of aten\.add\.Tensor: it does not have these param"):
        foreign(Node("aten.add.Tensor", (IN, IN), ((hostile, 1),), (OUT,)))
    assert not os.path.exists(trace)


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (call("aten.relu.default", "/etc/passwd"), "argument self is '/etc/passwd'"),
        (call("aten.relu.default", None), "argument self is None"),
        (call("aten.relu.default"), "an argument is missing"),
        (call("aten.relu.default", IN, IN), "does not have these parameters"),
        (call("aten.div.Tensor_mode", IN, IN, rounding_mode="/etc"), "argument rounding_mode is '/etc'"),
        (call("aten.sum.default", IN, dtype=Symbol("dtype", "hub")), "argument dtype is Symbol"),
        (call("aten.full.default", (4,), 1, device=Symbol("device", "meta")), "argument device is Symbol"),
        (call("aten.cat.default", (IN, "x")), r"argument tensors is \(View"),
        (call("aten.relu.default", IN, results=(OUT, OUT)), "it returns 1 tensors, not 2"),
        (call("aten.relu.default", view(2, 4)), "buffer 2 does not exist yet"),
        (call("aten.relu.default", view(0, 400)), "reaches beyond buffer 0"),
        (call("aten.relu.default", view(0, 4, offset=1)), "reaches beyond buffer 0"),
        (call("aten.relu.default", view(0, 4, dtype="load")), "data type 'load'"),
        (call("aten.relu.default", view(0, 4, dtype="quint8")), "data type 'quint8'"),
        (call("aten.full.default", (10**12,), 1), "argument size is"),
        (call("aten.full.default", (10**9,), 1), r"it returns int64\[1000000000\]"),
        (call("aten.repeat.default", IN, (10**8,)), r"it returns float32\[400000000\]"),
        (call("aten.constant_pad_nd.default", IN, (0, 10**9)), r"it returns float32\[1000000004\]"),
        (call("aten.mm.default", IN, IN), "a must be 2D"),
    ],
)
def test_an_invalid_call_is_refused(node, reason):
    with pytest.raises(
        DeviceError, match=f"the NEFF in model.pt has an invalid call of {node.op}: .*{reason}"
    ):
        foreign(node)


@pytest.mark.parametrize("place", ["fits_kernel", "_described", "true_results", "_operations"])
@pytest.mark.parametrize("error", [ValueError, RuntimeError, TypeError, KeyError, TimeoutError])
def test_what_a_signal_handler_raises_in_a_check_is_no_refusal(place, error, monkeypatch):
    def handle(number: int, frame: object) -> None:
        raise error("of the handler")

    def interrupted(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handle)
    monkeypatch.setattr(neff_checks, place, interrupted)
    try:
        with pytest.raises(error, match="of the handler"):
            foreign(
                call("aten.full.default", (10**9,), 1)
                if place == "_described"
                else call("aten.relu.default", IN)
            )
    finally:
        signal.signal(signal.SIGUSR1, before)


def foreign_call(op: str, *args: object, inputs: tuple[View, ...], **kwargs: object) -> NeffExecutable:
    """Return the NEFF of one call with the results that torch's meta kernel makes, the first of which it returns."""
    sizes = {view.slot: view_bytes(view) for view in inputs}
    slots = [Slot(sizes.get(slot, 0)) for slot in range(max(sizes) + 1)]
    node = call(op, *args, results=(), **kwargs)
    try:
        made = true_call_results(Graph(tuple(slots), tuple(sizes), 0, (node,), ()), node, ())
    except ValueError:  # the meta kernel checks what the CPU kernel does not
        made = None
    results: list[View | None] = []
    for tensor in made or ():
        if tensor is None:
            results.append(None)
            continue
        dtype = str(tensor.dtype).removeprefix("torch.")
        results.append(View(len(slots), dtype, tuple(tensor.shape), tensor.stride(), 0))
        slots.append(Slot(tensor.untyped_storage().nbytes()))
    first = results[0] if results else inputs[0]
    assert first is not None
    return foreign(
        call(op, *args, results=tuple(results), **kwargs),
        inputs=inputs, nbytes=tuple(slot.nbytes for slot in slots), outputs=(first.slot,), result=first,
    )  # fmt: skip


def view_bytes(view: View) -> int:
    itemsize: int = getattr(torch, view.dtype).itemsize
    return max(1, torch.Size(view.shape).numel()) * itemsize


CLASSES, NUMBERS = view(2, 4, dtype="int64"), view(1, 3, dtype="int64")
ROWS, STATISTICS, ROW = view(0, 6, 8), view(1, 6, 1), view(2, 8)
SCORES, ONE, TOTAL = view(0, 4, 3), view(1), view(3)


def nll(reduction: int) -> NeffExecutable:
    args = (ONE, SCORES, CLASSES, None, reduction, -100, TOTAL)
    return foreign_call("aten.nll_loss_backward.default", *args, inputs=(SCORES, ONE, CLASSES, TOTAL))


def embedding(*, by_frequency: bool) -> NeffExecutable:
    rows = view(0, 3, 4)
    args = (rows, NUMBERS, 5, -1, by_frequency)
    return foreign_call("aten.embedding_dense_backward.default", *args, inputs=(rows, NUMBERS))


def layer_norm(above: View = ROWS, mean: View = STATISTICS) -> NeffExecutable:
    args = (above, ROWS, (8,), mean, STATISTICS, ROW, ROW, (True, True, True))
    return foreign_call("aten.native_layer_norm_backward.default", *args, inputs=(ROWS, STATISTICS, ROW))


IMAGE, FILTERS, MADE = view(0, 2, 3, 4, 4), view(1, 5, 3, 3, 3), view(2, 2, 5, 4, 4)
SCALE, NORM = view(1, 3), view(2, 3)
HEADS, SUMS = view(0, 1, 2, 4, 8), view(1, 1, 2, 4)


def run_with_ones(made: NeffExecutable, *views: View) -> list[torch.Tensor]:
    return made.execute(made.load(0), [torch.ones(view.shape) for view in views])


def convolution(above: View = MADE, padding: int = 1, stride: int = 1, groups: int = 1) -> NeffExecutable:
    settings = ((stride,) * 2, (padding,) * 2, (1, 1), False, (0, 0), groups)
    args = (above, IMAGE, FILTERS, (5,), *settings, (True, True, True))
    return foreign_call("aten.convolution_backward.default", *args, inputs=(IMAGE, FILTERS, above))


def batch_norm(statistics: View | None = NORM, scale: View = SCALE, image: View = IMAGE) -> NeffExecutable:
    args = (image, image, scale, None, None, statistics, statistics, True, 1e-5, (True, True, True))
    return foreign_call("aten.native_batch_norm_backward.default", *args, inputs=(image, scale, NORM))


def normalize(
    statistics: View | None = NORM, scale: View | None = SCALE, *, trains: bool = True
) -> NeffExecutable:
    args = (IMAGE, scale, scale, statistics, statistics, trains, 0.1, 1e-5)
    return foreign_call(
        "aten.native_batch_norm.default", *args, inputs=(IMAGE, scale or SCALE, statistics or NORM)
    )


def attention(sums: View = SUMS, value: View = HEADS, **mask: View) -> NeffExecutable:
    args = (HEADS, HEADS, HEADS, value, HEADS, sums, 0.0, not mask)
    return foreign_call(
        "aten._scaled_dot_product_flash_attention_for_cpu_backward.default", *args,
        inputs=(HEADS, sums, *mask.values()), **mask,
    )  # fmt: skip


def attend(query: View = HEADS, key: View = HEADS, value: View = HEADS) -> NeffExecutable:
    op = "aten._scaled_dot_product_flash_attention_for_cpu.default"
    return foreign_call(op, query, key, value, inputs=(HEADS,))


def fused_layer(op: str, heads: int, width: int = 8) -> NeffExecutable:
    rows = view(0, 1, 2, 8)
    weights = (view(1, 24, 8), view(2, 24), view(3, 8, 8), view(4, 8))
    if "multi" in op:
        return foreign_call(op, rows, rows, rows, width, heads, *weights, inputs=(rows, *weights))
    others = (
        view(5, 8),
        view(5, 8),
        view(5, 8),
        view(5, 8),
        view(6, 8, 8),
        view(5, 8),
        view(6, 8, 8),
        view(5, 8),
    )
    args = (rows, width, heads, *weights, False, False, 1e-5, *others)
    return foreign_call(op, *args, inputs=(rows, *weights, view(5, 8), view(6, 8, 8)))


def weight_norm(dim: int = 0, weight: View = ROWS, scale: View = STATISTICS) -> NeffExecutable:
    return foreign_call("aten._weight_norm_interface.default", weight, scale, dim, inputs=(weight, scale))


def sample(interpolation: int = 0, padding: int = 0) -> NeffExecutable:
    image, grid = view(0, 1, 1, 4, 4), view(1, 1, 2, 2, 2)
    args = (image, grid, interpolation, padding, False)
    return foreign_call("aten.grid_sampler_2d.default", *args, inputs=(image, grid))


def divide(dtype: str = "int64", mode: str = "trunc", other: object = None) -> NeffExecutable:
    left, right = view(0, 4, dtype=dtype), view(1, 4, dtype=dtype)
    if other is not None:
        return foreign_call("aten.div.Scalar_mode", left, other, rounding_mode=mode, inputs=(left, right))
    return foreign_call("aten.div.Tensor_mode", left, right, rounding_mode=mode, inputs=(left, right))


def resize(scale: float | None, op: str = "aten._upsample_bilinear2d_aa.default") -> NeffExecutable:
    image = view(0, 1, 1, 4, 4)
    return foreign_call(op, image, (2, 2), False, scale, scale, inputs=(image,))


def test_gradients_of_convolutions_norms_and_attention_run():
    assert run_with_ones(convolution(), IMAGE, FILTERS, MADE)[0].max().item() == 45
    assert run_with_ones(batch_norm(), IMAGE, SCALE, NORM)[0].shape == (2, 3, 4, 4)
    mask = view(2, 1, 1, 4, 4)
    assert run_with_ones(attention(), HEADS, SUMS)[0].isfinite().all()
    assert run_with_ones(attention(attn_mask=mask), HEADS, SUMS, mask)[0].isfinite().all()


def test_gradients_of_losses_and_layers_run_within_their_tensors():
    made = nll(1)
    tensors = [torch.zeros(4, 3), torch.ones(()), torch.tensor([0, 1, 2, 2]), torch.full((), 4.0)]
    (grad,) = made.execute(made.load(0), tensors)
    assert grad.sum(1).tolist() == [-0.25] * 4
    tensors[2][1] = 7
    with pytest.raises(Exception, match="Target 7 is out of bounds"):
        made.execute(made.load(0), tensors)
    made = embedding(by_frequency=False)
    (grad,) = made.execute(made.load(0), [torch.ones(3, 4), torch.tensor([0, 99, 1])])
    assert grad.sum().item() == 8
    layer_norm()


def test_layers_and_numbers_that_fit_their_kernels_run():
    assert run_with_ones(attend(), HEADS)[0].tolist() == torch.ones(1, 2, 4, 8).tolist()
    assert run_with_ones(normalize(), IMAGE, SCALE, NORM)[0].isfinite().all()
    assert run_with_ones(normalize(trains=False), IMAGE, SCALE, NORM)[0].isfinite().all()
    for op in FUSED:
        fused_layer(op, 2)
    weight_norm()
    for mode in range(3):
        sample(mode, mode)
    divide("float32"), divide(mode="floor"), divide(other=3)
    resize(None), resize(0.5), resize(1.0)


FUSED = ("aten._native_multi_head_attention.default", "aten._transformer_encoder_layer_fwd.default")
REPEATED = View(0, "float32", (1, 2, 4, 8), (8, 4, 1, 0), 0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nll(0),
        lambda: embedding(by_frequency=True),
        lambda: layer_norm(mean=view(1, 3, 1)),
        lambda: layer_norm(mean=View(1, "float32", (6, 1), (0, 1), 0)),
        lambda: attention(value=REPEATED),
        lambda: layer_norm(above=view(0, 2, 8)),
        lambda: convolution(above=view(2, 2, 5, 2, 2)),
        lambda: convolution(padding=0),
        lambda: convolution(stride=0),
        lambda: convolution(groups=0),
        lambda: batch_norm(statistics=view(2, 2)),
        lambda: batch_norm(statistics=None),
        lambda: batch_norm(scale=view(1, 1)),
        lambda: batch_norm(image=view(0, 0, 3, 4, 4)),
        lambda: attention(sums=view(1, 1, 2, 1)),
        lambda: attention(value=view(0, 1, 2, 2, 8)),
        lambda: attention(attn_mask=view(2, 1, 1, 4, 2)),
        *(lambda place=place: attend(**{place: REPEATED}) for place in ("query", "key", "value")),
        *(lambda place=place: attend(**{place: view(0, 1, 1, 4, 8)}) for place in ("query", "key", "value")),
        lambda: attend(*[view(0, 1, 0, 4, 8)] * 3),
        lambda: attend(HEADS, *[view(0, 1, 2, 0, 8)] * 2),
        lambda: attend(*[view(0, 1, 2, 4, 0)] * 3),
        lambda: normalize(view(2, 1)),
        lambda: normalize(view(2, 0)),
        lambda: normalize(scale=view(1, 1)),
        lambda: normalize(view(2, 3, dtype="float64")),
        lambda: normalize(None, trains=False),
        *(lambda op=op, heads=heads: fused_layer(op, heads) for op in FUSED for heads in (0, -2, 3)),
        *(lambda op=op: fused_layer(op, 1, width=4) for op in FUSED),
        lambda: weight_norm(1),
        lambda: weight_norm(weight=view(0, 0, 8), scale=view(1, 0, 1)),
        lambda: weight_norm(scale=view(1, 1, 1)),
        lambda: weight_norm(7),
        lambda: sample(3),
        lambda: sample(-1),
        lambda: sample(0, 3),
        divide,
        lambda: divide("int8"),
        lambda: divide(other=-1),
        lambda: resize(1e-5),
        lambda: resize(-1.0),
        lambda: resize(float("nan")),
        lambda: resize(1e300),
        lambda: foreign_call("aten.polygamma.default", 2, IN, inputs=(IN,)),
        lambda: foreign_call("aten.mvlgamma.default", IN, 10**9, inputs=(IN,)),
    ],
)
def test_arguments_that_a_kernel_does_not_check_are_refused(make: Callable[[], NeffExecutable]):
    with pytest.raises(DeviceError, match="its kernel does not check these arguments"):
        make()


def test_operators_on_lists_are_those_on_each_tensor():
    node = Node("aten._foreach_add_.List", ((IN, view(1, 4)), (IN, IN)), (), ())
    made = foreign(node, inputs=(IN, OUT))
    assert made.execute(made.load(0), [torch.ones(4), torch.ones(4)])[0].tolist() == [3.0] * 4
    with pytest.raises(DeviceError, match="which a NEFF of another process may not call"):
        foreign(call("aten._foreach_resize_.default", (IN,)))


BATCH = (view(2, 2, 3, 4, 4), view(3, 3), view(4, 3))


@pytest.mark.parametrize(
    ("op", "args", "results"),
    [
        ("aten.relu.default", (IN,), (view(1, 2),)),
        ("aten.relu.default", (IN,), (view(1, 8),)),
        ("aten.relu.default", (IN,), (view(1, 2, 2),)),
        ("aten.relu.default", (IN,), (view(1, 4, dtype="int32"),)),
        ("aten.relu.default", (IN,), (View(1, "float32", (4,), (0,), 0),)),
        ("aten.sum.default", (IN,), (OUT,)),
        ("aten.mm.default", (view(0, 2, 2), view(0, 2, 2)), (View(1, "float32", (2, 2), (1, 2), 0),)),
        ("aten.native_batch_norm.default", (IMAGE, SCALE, None, None, None, True, 0.1, 1e-5), (BATCH[0], view(3, 1), BATCH[2])),
        ("aten.native_batch_norm.default", (IMAGE, SCALE, None, None, None, True, 0.1, 1e-5), (BATCH[0], BATCH[1], view(4, 0))),
        ("aten.native_batch_norm.default", (IMAGE, SCALE, None, SCALE, SCALE, False, 0.1, 1e-5), BATCH),
        ("aten.native_layer_norm.default", (ROWS, (8,), None, None, 1e-5), (view(2, 6, 8), view(3, 6), view(4, 6, 1))),
        ("aten.max.dim", (ROWS, 1), (view(2, 6), view(3, 6))),
        ("aten.unsafe_split.Tensor", (IN, 1), (view(1, 1), view(2, 1))),
        ("aten.add_.Tensor", (IN, IN), (OUT,)),
        ("aten.add_.Tensor", (IN, IN), (view(0, 2),)),
        ("aten._foreach_add_.List", ((IN,), (IN,)), (OUT,)),
        ("aten.index.Tensor", (IN, (view(3, 4, dtype="bool"),)), (OUT,)),
        ("aten.ones.default", ((2**20, 2**20),), (OUT,)),
    ],
)  # fmt: skip
def test_a_result_that_is_not_the_one_that_the_operator_makes_is_refused(
    op: str, args: tuple[object, ...], results: tuple[View | None, ...]
):
    inputs = (
        *{view.slot: view for view in args if isinstance(view, View)}.values(),
        view(3, 4, dtype="bool"),
    )
    inputs = tuple({view.slot: view for view in inputs}.values())
    reads_slot_3 = any(result is not None and result.slot == 3 for result in results)
    inputs = tuple(view for view in inputs if view.slot != 3 or not reads_slot_3)
    outputs = tuple(result.slot for result in results if result is not None) or (0,)
    with pytest.raises(DeviceError, match=r"may not call|invalid call of|do not fit|does not make") as caught:
        foreign(
            call(op, *args, results=results), inputs=inputs, nbytes=(4096,) * 6, outputs=outputs, result=IN
        )
    assert "\n" not in caught.value.message


def test_a_buffer_larger_or_smaller_than_its_result_is_refused():
    for nbytes in (12, 20, 4096):
        with pytest.raises(DeviceError, match=r"invalid call of|do not fit its NEFF"):
            foreign(call("aten.relu.default", IN), nbytes=(16, nbytes))


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (call("aten.ones.default", (4,), dtype=99), "argument dtype is 99"),
        (call("aten.ones.default", (4,), dtype=-1), "argument dtype is -1"),
        (call("aten.ones.default", (4,), dtype=Symbol("dtype", "quint8")), "argument dtype is Symbol"),
        (call("aten.ones.default", (4,), dtype=Symbol("layout", "strided")), "argument dtype is Symbol"),
        (call("aten.ones.default", (4,), layout=Symbol("layout", "sparse_coo")), "argument layout is Symbol"),
        (call("aten.ones.default", (4,), layout=7), "argument layout is 7"),
        (call("aten.ones.default", (4,), device=Symbol("device", "cpu")), "argument device is Symbol"),
        (call("aten.clone.default", IN, memory_format=77), "argument memory_format is 77"),
        (call("aten.randint_like.default", IN, 5, dtype=99), "argument dtype is 99"),
        (call("aten.sum.dim_IntList", IN, (2**62,)), "argument dim is"),
        (call("aten.sum.dim_IntList", IN, (9,)), "Dimension out of range"),
        (call("aten.sum.dim_IntList", IN, (0,), 3), "argument keepdim is 3"),
        (call("aten.cat.default", (IN, None)), "argument tensors is"),
        (call("aten.repeat.default", IN, (10**6, 10**6)), "it returns float32"),
        (call("aten.repeat.default", IN, (-1,)), "negative"),
        (call("aten.native_group_norm.default", view(0, 1, 4, 1), None, None, 1, 4, 1, 0, 1e-5, results=(OUT,) * 3), "."),
        (call("aten.convolution.default", view(0, 1, 4), view(0, 4, 1), None, (1,), (0,), (1,), False, (0,), 0), "."),
        (call("aten.view.dtype", IN, Symbol("dtype", "int8")), "may not call"),
        (call("aten.t_.default", view(0, 2, 2), results=(view(0, 2, 2),)), "may not call"),
        (call("aten.special_chebyshev_polynomial_t.n_scalar", IN, 10**15), "may not call"),
        (call("neurontools.send.default", IN, 1, 0, results=()), "there is no worker 1: this run has 1"),
        (call("neurontools.recv_.default", IN, -1, 0, results=()), "there is no worker -1: this run has 1"),
        (call("neurontools.all_gather.default", IN, "{{0,1}}"), "there is no worker 1: this run has 1"),
        (call("neurontools.all_gather.default", IN, "{{0}}", results=(view(1, 2),)), "it returns float32"),
        (call("neurontools.all_gather.default", IN, "{{0},"), "argument replica_groups is"),
        (call("neurontools.broadcast_.default", (IN,), 0, "{{1}}", results=()), "rank 0 is in none of the replica groups"),
        (call("neurontools.collective_permute.default", IN, "{{0,7}}"), "there is no worker 7"),
    ],
)  # fmt: skip
def test_numbers_that_torch_would_trust_are_refused_in_one_line(node: Node, reason: str):
    collectives.define()
    with pytest.raises(DeviceError, match=f"the NEFF in model.pt .*{reason}") as caught:
        foreign(node, nbytes=(16, 16, 16, 16))
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "node",
    [
        call("aten.sum.default", View(0, "float32", (2**40, 2**10), (0, 0), 0), results=(view(1),)),
        call(
            "aten.mm.default",
            View(0, "float32", (2, 2**60), (0, 0), 0),
            View(0, "float32", (2**60, 2), (0, 0), 0),
        ),
        call("aten.avg_pool2d.default", View(0, "float32", (1, 2**20, 2**20), (0, 0, 0), 0), (2**19, 2**19)),
    ],
)
def test_calls_that_would_not_end_are_refused(node: Node):
    graph = Graph((Slot(16), Slot(16)), (0,), 0, (node,), (1,))
    with pytest.raises(DeviceError, match=r"it takes \d\.\de\+\d+ operations, the limit is 1e\+14"):
        neff_checks.check_graph(graph, (IN,), (), "the NEFF")


def test_a_long_graph_is_checked_with_one_look_at_equal_calls(monkeypatch: pytest.MonkeyPatch):
    looks: list[str] = []
    make = neff_checks._Checker._make
    monkeypatch.setattr(neff_checks._Checker, "_make", lambda *args: looks.append("") or make(*args))
    nodes = [call("aten.relu.default", view(slot, 4), results=(view(slot + 1, 4),)) for slot in range(20_000)]
    graph = Graph((Slot(16),) * 20_001, (0,), 0, tuple(nodes), (20_000,))
    neff_checks.check_graph(graph, (IN,), (), "the NEFF")
    assert len(looks) == 1


def test_an_input_that_is_smaller_than_its_buffer_never_shows_other_memory():
    whole = View(0, "int32", (1024,), (1,), 0)
    made = foreign(call("aten.add.Scalar", whole, 0, results=(view(1, 1024, dtype="int32"),)), inputs=(IN,),
                   nbytes=(4096, 4096), result=view(1, 1024, dtype="int32"))  # fmt: skip
    values = torch.full((9,), 7.0)[2:6]
    (shown,) = made.execute(made.load(0), [values])
    assert shown[:4].view(torch.float32).tolist() == [7.0] * 4
    assert shown[4:].count_nonzero() == 0
    with pytest.raises(RuntimeError):
        made.execute(made.load(0), [torch.ones(5)])


def test_recorded_training_steps_and_predictions_are_accepted(machine: InMemoryAccelerator):
    count = 0
    for graph in listed_graphs(machine):
        inputs = tuple(whole_view(graph, slot) for slot in graph.inputs)
        neff_checks.check_graph(graph, inputs, plain_scalars(graph), "the NEFF")
        count += len(graph.nodes)
    assert count > 2000


LARGE = (2**31, -(2**31), 10**12, -(10**12), 5, -6)
TABLE, PLACES = torch.arange(5.0), torch.tensor([0])


@pytest.mark.parametrize("index", LARGE)
@pytest.mark.parametrize("run", [
    lambda place: TABLE.gather(0, place),
    lambda place: torch.ones(5, 64).gather(0, place.view(1, 1).expand(600, 64)),
    lambda place: TABLE.scatter(0, place, 1.0),
    lambda place: TABLE.scatter_add(0, place, torch.ones(1)),
    lambda place: torch.ones(5, 64).scatter_add(0, place.view(1, 1).expand(600, 64), torch.ones(600, 64)),
    lambda place: TABLE.scatter_reduce(0, place, torch.ones(1), "amax"),
    lambda place: TABLE.index_select(0, place),
    lambda place: torch.ones(5, 2).index_select(1, place),
    lambda place: TABLE.index_add(0, place, torch.ones(1)),
    lambda place: TABLE.index_copy(0, place, torch.ones(1)),
    lambda place: TABLE.index_fill(0, place, 1.0),
    lambda place: TABLE.index_reduce(0, place, torch.ones(1), "prod"),
    lambda place: torch.ops.aten.index.Tensor(TABLE, [place]),
    lambda place: torch.ops.aten._unsafe_index.Tensor(TABLE, [place]),
    lambda place: torch.ops.aten.index_put.default(TABLE, [place], torch.ones(1)),
    lambda place: torch.ops.aten._index_put_impl.default(TABLE, [place], torch.ones(1), True, True),
    TABLE.take,
    lambda place: TABLE.clone().put_(place, torch.ones(1)),
    lambda place: torch.ops.aten.embedding.default(torch.ones(5, 2), place),
    lambda place: torch.ops.aten._embedding_bag.default(torch.ones(5, 2), place, PLACES),
    lambda place: torch.ops.aten._embedding_bag_forward_only.default(torch.ones(5, 2), place, PLACES),
    lambda place: torch.ops.aten._embedding_bag_forward_only.default(torch.ones(5, 2), PLACES, place),
    lambda place: torch.ops.aten._embedding_bag.default(torch.ones(5, 2), place, PLACES, False, 2),
    lambda place: torch.ops.aten.nll_loss_forward.default(torch.ones(1, 5), place, None, 1, -100),
    lambda place: torch.ops.aten.nll_loss2d_forward.default(torch.ones(1, 5, 1, 1), place.view(1, 1, 1), None, 1, -100),
    lambda place: torch.ops.aten.nll_loss_backward.default(torch.ones(()), torch.ones(1, 5), place, None, 1, -100, torch.ones(())),
    lambda place: torch.ops.aten.multi_margin_loss.default(torch.ones(1, 5), place),
    lambda place: torch.ops.aten.multilabel_margin_loss_forward.default(torch.ones(1), place, 1),
    lambda place: torch.ops.aten.max_unpool2d.default(torch.ones(1, 1, 1, 1), place.view(1, 1, 1, 1), [1, 5]),
    lambda place: torch.ops.aten.max_unpool3d.default(torch.ones(1, 1, 1, 1, 1), place.view(1, 1, 1, 1, 1), [1, 1, 5], [1, 1, 5], [0, 0, 0]),
    lambda place: torch.searchsorted(TABLE, torch.ones(1), sorter=place.expand(5)),
])  # fmt: skip
def test_kernels_that_read_by_index_check_the_index(run: Callable[[torch.Tensor], object], index: int):
    with pytest.raises((IndexError, RuntimeError)):
        run(torch.tensor([index])), run(torch.tensor([-6]))  # some take negative indices from the end


def test_a_graph_larger_than_this_computer_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NEURONTOOLS_HOST_MEMORY", "1GB")
    with pytest.raises(DeviceError, match=r"the NEFF in model\.pt needs 8\.59 GB of host memory"):
        foreign(call("aten.relu.default", IN), nbytes=(16, 16, 1 << 33), outputs=(1, 2))


def test_memory_that_the_inputs_hold_already_is_not_counted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(neff_checks, "host_limit", lambda: 16)
    foreign(call("aten.relu.default", IN))  # 16 bytes of input, 16 of output
    with pytest.raises(DeviceError, match="needs 32 B of host memory, the limit is 16 B"):
        foreign(call("aten.relu.default", IN), nbytes=(16, 32, 16, 16))
    with pytest.raises(
        DeviceError, match="needs 36 B of host memory"
    ):  # the input's buffer has room for more
        foreign(call("aten.relu.default", IN), nbytes=(20, 16, 16, 16))


def test_results_have_to_be_made():
    with pytest.raises(DeviceError, match="returns tensors that it does not make"):
        foreign(call("aten.relu.default", IN, results=(view(2, 4),)))
    for result in (view(1, 400), view(9, 4), view(1, 4, dtype="hub")):
        with pytest.raises(DeviceError, match="results do not fit its NEFF"):
            foreign(call("aten.relu.default", IN), result=result)


def test_what_this_process_compiled_may_call_any_operator():
    node = call("aten.hash_tensor.default", IN, results=(view(1, 1, dtype="uint64"),))
    neff = compile_exported(Graph((Slot(16), Slot(8)), (0,), 0, (node,), (1,)), ())
    made = NeffExecutable(neff, (IN,), (), (view(1, 1, dtype="uint64"),))
    assert made.execute(made.load(0), [torch.ones(4)])[0].dtype == torch.uint64


@pytest.mark.parametrize("is_same_graph", [True, False], ids=["of the same graph", "of another graph"])
def test_a_cached_neff_may_call_any_operator_of_the_graph_that_this_process_recorded(
    monkeypatch: pytest.MonkeyPatch, machine: InMemoryAccelerator, is_same_graph: bool
):
    results = (view(1, 1, dtype="uint64"),)
    node = call("aten.hash_tensor.default", IN, results=results)
    recorded = Graph((Slot(16), Slot(8)), (0,), 0, (node,), (1,))
    stored = recorded if is_same_graph else Graph((Slot(16), Slot(8), Slot(4)), (0,), 0, (node,), (1,))
    cached = compile_graph(stored, instance_type("trn1.2xlarge").device, ["--target=trn1"], "model")
    monkeypatch.setattr("neurontools.xla.neff_executable._compiled_here", set())
    monkeypatch.setattr(machine, "find_or_compile", lambda *_: (cached, True), raising=False)
    neff = compile_exported(recorded, (), uses_cache=True)
    assert neff == cached
    if is_same_graph:
        made = NeffExecutable(neff, (IN,), (), results)
        assert made.execute(made.load(0), [torch.ones(4)])[0].dtype == torch.uint64
    else:
        with pytest.raises(DeviceError, match="may not call"):
            NeffExecutable(neff, (IN,), (), results)


def test_every_listed_operator_exists():
    for name in [*ATEN, *COLLECTIVES]:
        packet = getattr(torch.ops.neurontools if name in COLLECTIVES else torch.ops.aten, name)
        overloads = [operator_of(getattr(packet, overload)) for overload in packet.overloads()]
        assert any(operator.recordable for operator in overloads), name
