"""Kernels of both generations in programs with torch, each check beside torch's own formula.

test_torch_operator.py runs this file on each device: `kernel_in_model.py DEVICE FACTOR [CHECK ...]`. All names of checks that
pass are printed; the first that fails ends the program.
"""

# mypy: ignore-errors
import sys

import neuronxcc.nki.language as first_nl
import nki
import nki.isa as nisa
import nki.language as nl
import torch
from neuronxcc import nki as first_nki

DEVICE, FACTOR, CHOSEN = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
if DEVICE == "xla":
    import torch_xla
    from torch_neuronx import nki_jit, nki_op, wrap_nki

    device = torch_xla.device()
else:
    from torch_neuronx import nki_jit, nki_op, wrap_nki

    device = torch.device("neuron")
BACKEND = "openxla" if DEVICE == "xla" else "neuron"
_passed = []


@nki.jit
def scale_and_add(a, b, alpha):
    """Return FACTOR * a * alpha + b."""
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    result = nl.ndarray(a.shape, a.dtype)
    nisa.scalar_tensor_tensor(result, nl.load(a), nl.multiply, alpha * FACTOR, nl.add, nl.load(b))
    nisa.dma_copy(out, result)
    return out


@nki.jit
def halves(a):
    """Return 2 * a, half of it on each core."""
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    size = a.shape[0] // nl.num_programs(0)
    rows = nl.ds(nl.program_id(0) * size, size)
    nl.store(out[rows], nl.multiply(nl.load(a[rows]), 2.0))
    return out


@nki.jit
def sine(x, out):
    """Write the sine to a tensor."""
    nl.store(out, nl.sin(nl.load(x)))


@nki.jit
def cosine(x, out):
    """Write the cosine to a tensor."""
    nl.store(out, nl.cos(nl.load(x)))


@nki.jit
def count_up(counter):
    """Add 1 to a tensor in place."""
    nisa.dma_copy(counter, nl.add(nl.load(counter), 1.0))


@nki.jit
def careless(a):
    """Return a plus what nothing has written."""
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.add(nl.ndarray(a.shape, a.dtype), nl.load(a)))
    return out


@first_nki.jit
def first_add(a, b):
    """Return a + b, 16 rows a program of the grid."""
    out = first_nl.ndarray(a.shape, a.dtype, buffer=first_nl.shared_hbm)
    rows = first_nl.program_id(0) * 16 + first_nl.arange(16)[:, None]
    columns = first_nl.arange(a.shape[1])[None, :]
    first_nl.store(out[rows, columns], first_nl.load(a[rows, columns]) + first_nl.load(b[rows, columns]))
    return out


@nki_jit
def first_triple(x, out):
    """Write 3 * x to a tensor."""
    first_nl.store(out, first_nl.load(x) * 3)


class ScaleAndAdd(torch.autograd.Function):
    """The kernel with its gradient."""

    @staticmethod
    def forward(ctx, a, b):
        return scale_and_add(a, b, 2.0)

    @staticmethod
    def backward(ctx, gradient):
        return 2 * FACTOR * gradient, gradient


class Sine(torch.autograd.Function):
    """A kernel that writes its output, with another for the gradient."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        out = torch.empty_like(x)
        sine(x, out)
        return out

    @staticmethod
    def backward(ctx, gradient):
        slope = torch.empty_like(gradient)
        cosine(ctx.saved_tensors[0], slope)
        return gradient * slope


@nki_op("kernels::sine", mutates_args={})
def sine_op(x: torch.Tensor) -> torch.Tensor:
    """Return the sine."""
    out = torch.empty_like(x)
    sine(x, out)
    return out


@nki_op("kernels::sine_with_gradient", mutates_args={})
def sine_with_gradient(x: torch.Tensor) -> torch.Tensor:
    """Return the sine."""
    out = torch.empty_like(x)
    sine(x, out)
    return out


@sine_with_gradient.register_fake
def _(x):
    return torch.empty_like(x)


def _slope(ctx, gradient):
    slope = torch.empty_like(gradient)
    cosine(ctx.saved_tensors[0], slope)
    return gradient * slope


sine_with_gradient.register_autograd(
    _slope, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0])
)


@nki_op("kernels::sine_into", mutates_args={"out"})
def sine_into(x: torch.Tensor, out: torch.Tensor) -> None:
    """Write the sine to a tensor."""
    sine(x, out)


def check(function):
    """Run a check, if it is chosen, and note that it has passed."""
    if not CHOSEN or function.__name__ in CHOSEN:
        function()
        _passed.append(function.__name__)


def compiled(function):
    """Return a function that must be one graph."""
    return torch.compile(function, backend=BACKEND, fullgraph=True)


def same(actual, expected):
    """Assert that a tensor of the device is one of the CPU."""
    assert actual.device.type == DEVICE, actual.device
    assert torch.allclose(actual.detach().cpu(), expected, rtol=1e-5, atol=1e-5), (actual.cpu(), expected)


def train(step, place):
    """Return the losses of three training steps."""
    torch.manual_seed(3)
    model = torch.nn.Linear(32, 32).to(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.randn(16, 32).to(place)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = step(model(data), data).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


host = torch.linspace(-3, 3, 64).reshape(16, 4)
x = host.to(device)


@check
def training():
    expected = train(lambda a, b: a * 2 * FACTOR + b, "cpu")
    actual = train(ScaleAndAdd.apply, device)
    assert torch.allclose(torch.tensor(actual), torch.tensor(expected), rtol=1e-5), (actual, expected)


@check
def in_place():
    counter = torch.zeros(4, 4, device=device)
    count_up(counter)
    count_up(counter)
    same(counter, torch.full((4, 4), 2.0))


@check
def compiled_kernel():
    same(compiled(lambda a, b: scale_and_add(a, b, 3.0).relu())(x, x), (host * (3 * FACTOR + 1)).relu())


@check
def wrapped():
    same(wrap_nki(halves)[2](a=x), 2 * host)
    same(compiled(lambda a: wrap_nki(halves)[2](a=a) + 1)(x), 2 * host + 1)


@check
def operator():
    same(sine_op(x), host.sin())
    same(compiled(lambda a: sine_op(a) * 2)(x), 2 * host.sin())  # without register_fake


@check
def gradients():
    for function in (Sine.apply, sine_with_gradient, compiled(Sine.apply), compiled(sine_with_gradient)):
        leaf = host.to(device).requires_grad_()
        function(leaf).sum().backward()
        same(leaf.grad, host.cos())


@check
def declared_output():
    out = torch.zeros(16, 4, device=device)
    sine_into(x, out)
    same(out, host.sin())

    def into(a, target):
        sine_into(a, target)
        return target * 2

    out = torch.zeros(16, 4, device=device)
    same(compiled(into)(x, out), 2 * host.sin())
    same(out, host.sin())


@check
def first_generation():
    wide = torch.arange(64 * 4.0).reshape(64, 4)
    grids = {(4,): first_add[4], (2, 2): first_add[first_nl.spmd_dim(2, first_nl.nc(2))]}
    for kernel in grids.values():
        same(kernel(wide.to(device), wide.to(device)), 2 * wide)
    same(compiled(lambda a: wrap_nki(first_add)[4](a, a) + 1)(wide.to(device)), 2 * wide + 1)
    out = torch.zeros(16, 4, device=device)
    first_triple(x, out)
    same(out, 3 * host)


@check
def warnings_of_each_line():
    for _ in range(3):
        assert careless(x).isnan().all()


print(" ".join(_passed))  # noqa: T201  what the test looks for
