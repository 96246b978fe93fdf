"""A training step with a kernel in it, beside the same step of torch: run by test_torch_operator.py with a device's name."""

import sys

import nki
import nki.isa as nisa
import nki.language as nl
import torch

DEVICE = sys.argv[1]
if DEVICE == "xla":
    import torch_xla


@nki.jit
def scale_and_add(a, b, alpha):  # type: ignore[no-untyped-def]
    """Return a * alpha + b."""
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    result = nl.ndarray(a.shape, a.dtype)
    nisa.scalar_tensor_tensor(result, nl.load(a), nl.multiply, alpha, nl.add, nl.load(b))
    nisa.dma_copy(out, result)
    return out


@nki.jit
def count_up(counter):  # type: ignore[no-untyped-def]
    """Add 1 to a tensor in place."""
    nisa.dma_copy(counter, nl.add(nl.load(counter), 1.0))


class ScaleAndAdd(torch.autograd.Function):
    """The kernel with its gradient."""

    @staticmethod
    def forward(ctx, a, b):  # type: ignore[no-untyped-def]
        return scale_and_add(a, b, 2.0)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return 2 * gradient, gradient


def train(step, device):  # type: ignore[no-untyped-def]
    """Return the losses of three training steps."""
    torch.manual_seed(3)
    model = torch.nn.Linear(32, 32).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(16, 32).to(device)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = step(model(data), data).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


device = torch_xla.device() if DEVICE == "xla" else torch.device("neuron")
expected = train(lambda a, b: a * 2 + b, "cpu")
actual = train(ScaleAndAdd.apply, device)
assert torch.allclose(torch.tensor(actual), torch.tensor(expected), rtol=1e-5), (actual, expected)

counter = torch.zeros(4, 4, device=device)
count_up(counter)
count_up(counter)
assert counter.cpu().eq(2).all()

x = torch.ones(16, 32, device=device)
compiled = torch.compile(
    lambda a, b: scale_and_add(a, b, 3.0).relu(), backend="openxla" if DEVICE == "xla" else "neuron"
)
assert compiled(x, x).cpu().eq(4).all()
print("kernels agree")  # noqa: T201  what the test looks for
