"""What a NEFF of another process may do: hostile graphs of every class, and graphs that are fine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import torch

from neurontools.compiler.compile import compile_graph
from neurontools.compiler.graph import Graph, Lifted, Node, Slot, Symbol, View
from neurontools.machine.instances.catalogue import instance_type
from neurontools.xla import neff_checks
from neurontools.xla.accelerator import DeviceError
from neurontools.xla.neff_executable import NeffExecutable, compile_exported
from neurontools.xla.neff_operators import ATEN, COLLECTIVES
from neurontools.xla.operators import operator_of

if TYPE_CHECKING:
    from collections.abc import Callable

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
        (call("aten.full.default", (10**12,), 1), "larger than the graph states"),
        (call("aten.repeat.default", IN, (10**11,)), "larger than the graph states"),
        (call("aten.constant_pad_nd.default", IN, (0, 10**11)), "larger than the graph states"),
        (call("aten.mm.default", IN, IN), "a must be 2D"),
    ],
)
def test_an_invalid_call_is_refused(node, reason):
    with pytest.raises(
        DeviceError, match=f"the NEFF in model.pt has an invalid call of {node.op}: .*{reason}"
    ):
        foreign(node)


def test_normalization_that_reads_beyond_its_weights_is_refused():
    image, few = view(0, 1, 4, 1, 1), view(2, 1)
    inputs = (image, few)
    statistics = (OUT, view(3, 4), view(3, 4))
    with pytest.raises(DeviceError, match="differ in the number of channels"):
        foreign(
            call(
                "aten.native_batch_norm.default",
                image,
                few,
                few,
                few,
                few,
                False,
                0.1,
                1e-5,
                results=statistics,
            ),
            inputs=inputs,
        )
    with pytest.raises(DeviceError, match=r"invalid call of aten\.native_group_norm"):
        foreign(
            call("aten.native_group_norm.default", image, None, None, 9, 4, 1, 1, 1e-5, results=statistics),
            inputs=inputs,
        )


CLASSES, NUMBERS = view(2, 4, dtype="int64"), view(3, 3, dtype="int64")
ROWS, STATISTICS, ROW = view(0, 6, 8), view(1, 6, 1), view(2, 8)


def gradient(op: str, *args: object, inputs: tuple[View, ...], result: View) -> NeffExecutable:
    nbytes = (4096,) * 6
    return foreign(
        call(op, *args, results=(result,) if "norm" not in op else (result, view(5, 8), view(5, 8, offset=8))),
        inputs=inputs, nbytes=nbytes, outputs=(4,), result=result,
    )  # fmt: skip


def nll(reduction: int) -> NeffExecutable:
    scores, one = view(0, 4, 3), view(1)
    args = (one, scores, CLASSES, None, reduction, -100, view(3))
    return gradient(
        "aten.nll_loss_backward.default", *args, inputs=(scores, one, CLASSES, view(3)), result=view(4, 4, 3)
    )


def embedding(*, by_frequency: bool) -> NeffExecutable:
    rows = view(0, 3, 4)
    args = (rows, NUMBERS, 5, -1, by_frequency)
    return gradient(
        "aten.embedding_dense_backward.default", *args, inputs=(rows, NUMBERS), result=view(4, 5, 4)
    )


def layer_norm(above: View = ROWS, mean: View = STATISTICS) -> NeffExecutable:
    args = (above, ROWS, (8,), mean, STATISTICS, ROW, ROW, (True, True, True))
    return gradient(
        "aten.native_layer_norm_backward.default", *args, inputs=(ROWS, STATISTICS, ROW), result=view(4, 6, 8)
    )


IMAGE, FILTERS, MADE = view(0, 2, 3, 4, 4), view(1, 5, 3, 3, 3), view(2, 2, 5, 4, 4)
SCALE, NORM = view(1, 3), view(2, 3)
HEADS, SUMS = view(0, 1, 2, 4, 8), view(1, 1, 2, 4)


def run_with_ones(made: NeffExecutable, *views: View) -> list[torch.Tensor]:
    return made.execute(made.load(0), [torch.ones(view.shape) for view in views])


def convolution(above: View = MADE, padding: int = 1) -> NeffExecutable:
    inputs = (IMAGE, FILTERS, above)
    args = (above, IMAGE, FILTERS, (5,), (1, 1), (padding,) * 2, (1, 1), False, (0, 0), 1, (True, True, True))
    results = (view(4, 2, 3, 4, 4), view(5, 5, 3, 3, 3), view(6, 5))
    return foreign(
        call("aten.convolution_backward.default", *args, results=results),
        inputs=inputs, nbytes=(4096,) * 7, outputs=(4,), result=results[0],
    )  # fmt: skip


def batch_norm(statistics: View | None = NORM, scale: View = SCALE) -> NeffExecutable:
    args = (IMAGE, IMAGE, scale, None, None, statistics, statistics, True, 1e-5, (True, True, True))
    results = (view(4, 2, 3, 4, 4), view(5, 3), view(6, 3))
    return foreign(
        call("aten.native_batch_norm_backward.default", *args, results=results),
        inputs=(IMAGE, scale, NORM), nbytes=(4096,) * 7, outputs=(4,), result=results[0],
    )  # fmt: skip


def attention(sums: View = SUMS, value: View = HEADS, **mask: View) -> NeffExecutable:
    args = (HEADS, HEADS, HEADS, value, HEADS, sums, 0.0, not mask)
    results = tuple(view(slot, 1, 2, 4, 8) for slot in (4, 5, 6))
    return foreign(
        call("aten._scaled_dot_product_flash_attention_for_cpu_backward.default", *args, results=results, **mask),
        inputs=(HEADS, sums, *mask.values()), nbytes=(4096,) * 7, outputs=(4,), result=results[0],
    )  # fmt: skip


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


@pytest.mark.parametrize(
    "make",
    [
        lambda: nll(0),
        lambda: embedding(by_frequency=True),
        lambda: layer_norm(mean=view(1, 3, 1)),
        lambda: layer_norm(mean=View(1, "float32", (6, 1), (0, 1), 0)),
        lambda: attention(value=View(0, "float32", (1, 2, 4, 8), (8, 4, 1, 0), 0)),
        lambda: layer_norm(above=view(0, 2, 8)),
        lambda: convolution(above=view(2, 2, 5, 2, 2)),
        lambda: convolution(padding=0),
        lambda: batch_norm(statistics=view(2, 2)),
        lambda: batch_norm(statistics=None),
        lambda: batch_norm(scale=view(1, 1)),
        lambda: attention(sums=view(1, 1, 2, 1)),
        lambda: attention(value=view(0, 1, 2, 2, 8)),
        lambda: attention(attn_mask=view(2, 1, 1, 4, 2)),
    ],
)
def test_gradients_that_would_reach_beyond_their_tensors_are_refused(make: Callable[[], NeffExecutable]):
    with pytest.raises(DeviceError, match="its kernel does not check these arguments"):
        make()


def test_operators_on_lists_are_those_on_each_tensor():
    node = Node("aten._foreach_add_.List", ((IN, view(1, 4)), (IN, IN)), (), ())
    made = foreign(node, inputs=(IN, OUT))
    assert made.execute(made.load(0), [torch.ones(4), torch.ones(4)])[0].tolist() == [3.0] * 4
    with pytest.raises(DeviceError, match="which a NEFF of another process may not call"):
        foreign(call("aten._foreach_resize_.default", (IN,)))


@pytest.mark.parametrize("place", range(3))
def test_attention_over_rows_that_are_too_short_is_refused(place: int):
    results = (view(4, 1, 2, 4, 8), view(5, 1, 2, 4))

    def attend(*tensors: View) -> NeffExecutable:
        return foreign(
            call("aten._scaled_dot_product_flash_attention_for_cpu.default", *tensors, results=results),
            inputs=(HEADS,), nbytes=(4096,) * 6, outputs=(4,), result=results[0],
        )  # fmt: skip

    assert run_with_ones(attend(HEADS, HEADS, HEADS), HEADS)[0].tolist() == torch.ones(1, 2, 4, 8).tolist()
    repeated = View(0, "float32", (1, 2, 4, 8), (8, 4, 1, 0), 0)
    fewer_heads = view(0, 1, 1, 4, 8)
    for wrong in (repeated, fewer_heads):
        tensors = [HEADS] * 3
        tensors[place] = wrong
        with pytest.raises(DeviceError, match="its kernel does not check these arguments"):
            attend(*tensors)


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


def test_every_listed_operator_exists():
    for name in [*ATEN, *COLLECTIVES]:
        packet = getattr(torch.ops.neurontools if name in COLLECTIVES else torch.ops.aten, name)
        overloads = [operator_of(getattr(packet, overload)) for overload in packet.overloads()]
        assert any(operator.recordable for operator in overloads), name
