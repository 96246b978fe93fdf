"""Tensors of any memory layout on every way to the device, each beside torch on the CPU.

test_views.py runs this file: `view_program.py DEVICE LIBRARY`, where LIBRARY is the custom operator relu_tcm. A failure ends
it with the smallest example.
"""

# mypy: ignore-errors
import sys
import warnings

import nki
import nki.language as nl
import torch
import torch_neuronx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

warnings.simplefilter("ignore")
DEVICE, LIBRARY = sys.argv[1:]
if DEVICE == "xla":
    import torch_xla
    from torch_neuronx.xla_impl import custom_op

    custom_op.load_library(LIBRARY)


@nki.jit
def double(a):
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.multiply(nl.load(a), 2.0))
    return out


@st.composite
def steps_of_shape(draw, shape):
    """Steps that each make a view, as (name, arguments)."""
    view = torch.empty(shape)
    steps = []
    for _ in range(draw(st.integers(0, 4))):
        kinds = ["expand", "as_strided"]
        kinds += ["slice", "narrow", "select", "unsqueeze"] if view.dim() else []
        kinds += ["transpose", "diagonal"] if view.dim() > 1 else []
        kind = draw(st.sampled_from(kinds))
        axis = draw(st.integers(0, view.dim() - 1)) if view.dim() else 0
        size = view.shape[axis] if view.dim() else 1
        match kind:
            case "slice":
                start = draw(st.integers(0, size))
                step = (kind, axis, start, draw(st.integers(start, size)), draw(st.integers(1, 3)))
            case "narrow":
                start = draw(st.integers(0, size))
                step = (kind, axis, start, draw(st.integers(0, size - start)))
            case "select":
                if not size:
                    continue
                step = (kind, axis, draw(st.integers(0, size - 1)))
            case "transpose" | "diagonal":
                other = draw(st.integers(0, view.dim() - 1).filter(lambda other, axis=axis: other != axis))
                step = (kind, axis, other)
            case "unsqueeze":
                step = (kind, axis)
            case "expand":
                step = (kind, draw(st.integers(0, 3)), *view.shape)
            case "as_strided":
                sizes = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
                strides = draw(st.lists(st.integers(0, 4), min_size=len(sizes), max_size=len(sizes)))
                reach = sum(
                    (count - 1) * stride for count, stride in zip(sizes, strides, strict=True) if count
                )
                last = torch.Size(shape).numel() - reach - 1
                if last < 0:
                    continue
                step = (kind, tuple(sizes), tuple(strides), draw(st.integers(0, last)))
        made = apply(view, [step])
        if made.dim() <= 4:
            view = made
            steps.append(step)
    return steps


def apply(tensor, steps):
    """Make the view."""
    for name, *arguments in steps:
        match name:
            case "slice":
                axis, start, stop, step = arguments
                tensor = tensor[(slice(None),) * axis + (slice(start, stop, step),)]
            case "expand":
                tensor = tensor.expand(arguments)
            case "diagonal":
                tensor = tensor.diagonal(0, *arguments)
            case _:
                tensor = getattr(tensor, name)(*arguments)
    return tensor


@st.composite
def views(draw):
    """A base with its own numbers and steps from it."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    offset = draw(st.integers(0, 3))
    base = torch.arange(float(torch.Size(shape).numel() + offset))[offset:].view(shape)
    return base, draw(steps_of_shape(shape))


def compute(x, y):
    return x * 2 - 1, (x + y).sum(), y.reshape(-1) * 3


def compare(results, wanted, way):
    for result, expected in zip(results, wanted, strict=True):
        torch.testing.assert_close(result.cpu(), expected, rtol=0, atol=0, msg=lambda text: f"{way}: {text}")


def traced_models(x, wanted):
    made = torch_neuronx.trace(compute, (torch.ones(x.shape), torch.ones(x.shape)))
    compare(made(x, x), wanted, "traced")
    torch.jit.save(made, "model.pt")
    compare(torch.jit.load("model.pt")(x, x), wanted, "loaded")
    if x.dim() and x.shape[0]:
        expected = (x * 2 - 1, x)
        made = torch_neuronx.trace(
            lambda x: (x * 2 - 1, x.expand(2, *x.shape)[1]), torch.ones((1, *x.shape[1:]))
        )
        compare(torch_neuronx.dynamic_batch(made)(x), expected, "dynamic batch")
        compare(torch_neuronx.DataParallel(made)(x), expected, "data parallel")


def steps_of_device(base, steps, x, wanted):
    for way, moved in (("moved view", x.to(DEVICE)), ("view on the device", apply(base.to(DEVICE), steps))):
        compare(compute(moved, moved), wanted, way)
        if DEVICE == "neuron":
            compare(torch.compile(compute, backend="neuron")(moved, moved), wanted, f"compiled, {way}")
        else:
            results = compute(moved, moved)
            torch_xla.sync()
            compare(results, wanted, f"marked step, {way}")
            relu = torch.ops.relu_tcm.forward
            if x.dim() == 2 and x.numel():
                compare([relu(moved), relu(x)], [x.relu()] * 2, f"custom operator, {way}")
            if x.numel():
                flat = moved.view(-1)  # never fails on xla
                compare([flat * 1], [x.reshape(-1)], f"flat, {way}")
        if x.dim() == 2 and x.numel():
            compare([double(moved)], [x * 2], f"kernel, {way}")


@settings(
    max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
@given(views())
def check(view):
    base, steps = view
    x = apply(base, steps)
    wanted = compute(x, x)
    if DEVICE == "xla":
        traced_models(x, wanted)
    steps_of_device(base, steps, x, wanted)


torch._dynamo.config.recompile_limit = 10_000
check()
print("same")  # noqa: T201  what the test looks for
