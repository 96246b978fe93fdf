"""Random programs of operators, views, in-place changes and cuts give the CPU's bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neurontools.xla import api

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.xla.conftest import InMemoryAccelerator

# Every operation takes two tensors of the pool and a number, and returns what joins the pool, or None.
OPERATIONS: list[Callable[[torch.Tensor, torch.Tensor, int], Any]] = [
    lambda a, b, n: a + b if a.shape == b.shape else None,
    lambda a, b, n: a * (n / 4 - 1),
    lambda a, b, n: a - n,
    lambda a, b, n: a @ b if a.dim() == b.dim() == 2 and a.shape[1] == b.shape[0] else None,
    lambda a, b, n: a.t() if a.dim() == 2 else None,
    lambda a, b, n: a[n % a.shape[0]] if a.dim() else None,
    lambda a, b, n: a[n % 2 :] if a.dim() and a.shape[0] > 2 else None,
    lambda a, b, n: a[..., ::2] if a.dim() and a.shape[-1] > 2 else None,
    lambda a, b, n: a.reshape(-1),
    lambda a, b, n: a.view(-1)[n % 3 :] if torch._C.TensorBase.is_contiguous(a) and a.numel() > 4 else None,
    lambda a, b, n: a.unsqueeze(n % (a.dim() + 1)) if a.dim() < 4 else None,
    lambda a, b, n: a.expand(2, *a.shape).sum(0),
    lambda a, b, n: torch.cat([a, a], dim=n % a.dim()) if a.dim() and a.numel() < 64 else None,
    lambda a, b, n: a.sum(),
    lambda a, b, n: a.mean(dim=n % a.dim(), keepdim=True) if a.dim() else None,
    lambda a, b, n: a.tanh(),
    lambda a, b, n: a.clone(),
    lambda a, b, n: a.detach(),
    lambda a, b, n: torch.where(a > 0, a, a * 0.5),
    lambda a, b, n: a.relu().sqrt(),
    lambda a, b, n: torch.zeros_like(a),
    lambda a, b, n: a.half().float(),
    lambda a, b, n: a.max(dim=0)[0] if a.dim() else None,
    lambda a, b, n: a.add_(n),
    lambda a, b, n: a.mul_(0.5),
    lambda a, b, n: a.copy_(b) if a.shape == b.shape else None,
    lambda a, b, n: a.zero_() if n % 3 == 0 else None,
    lambda a, b, n: a.__setitem__(n % a.shape[0], float(n)) if a.dim() else None,
    lambda a, b, n: a.__setitem__(slice(None, 1), a[-1:] + 1) if a.dim() and a.shape[0] > 1 else None,
    lambda a, b, n: a.t_() if a.dim() == 2 else None,
    lambda a, b, n: a.fill_(n) if n % 4 == 0 else None,
    lambda a, b, n: a.copy_(torch.full(a.shape, float(n))),
    lambda a, b, n: a.unbind(0)[0] if a.dim() else None,
    lambda a, b, n: a.cumsum(0) if a.dim() else None,
]

steps = st.lists(
    st.tuples(
        st.sampled_from(["operate"] * 8 + ["cut", "read", "drop", "upload"]),
        st.integers(0, len(OPERATIONS) - 1),
        st.integers(0, 50),
        st.integers(0, 50),
        st.integers(0, 7),
    ),
    min_size=1,
    max_size=25,
)


def run(program: list[tuple[str, int, int, int, int]], device: str) -> list[Any]:
    pool = [torch.arange(6.0).view(2, 3).to(device), torch.linspace(-1, 1, 12).view(3, 4).to(device)]
    seen: list[Any] = []
    for action, operation, first, second, number in program:
        a, b = pool[first % len(pool)], pool[second % len(pool)]
        match action:
            case "cut" if device == "xla":
                api.mark_step()
            case "read":
                seen.append(a.tolist())
            case "drop" if len(pool) > 2:
                pool.pop(first % len(pool))
            case "upload":
                pool.append(torch.full((2, 3), float(number)).to(device))
            case "operate":
                made = OPERATIONS[operation](a, b, number)
                if made is not None and made.numel() < 400:
                    pool.append(made)
    return seen + [(tuple(t.shape), t.tolist()) for t in pool]


@settings(
    max_examples=60,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(program=steps)
def test_random_programs_give_the_same_bits_as_the_cpu(
    machine: InMemoryAccelerator, program: list[tuple[str, int, int, int, int]]
) -> None:
    wanted = repr(run(program, "cpu"))
    for _ in range(2):  # learned, then replayed
        assert repr(run(program, "xla")) == wanted
        api.mark_step()
    assert api.engine().memory(0).used_bytes == 0


@settings(
    max_examples=20,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(start=steps, one=steps, other=steps)
def test_programs_that_part_after_a_common_start_give_the_same_bits_as_the_cpu(
    machine: InMemoryAccelerator, start: list[Any], one: list[Any], other: list[Any]
) -> None:
    for program in (start + one, start + other, start + one, start):
        assert repr(run(program, "xla")) == repr(run(program, "cpu"))
        api.mark_step()
