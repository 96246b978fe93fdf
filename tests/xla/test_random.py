"""Random numbers: draws, seeds and states keep the program's order, recorded or not, and give the CPU's numbers."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from neurontools.xla import api, rng

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.xla.conftest import InMemoryAccelerator


def state_functions(device: str) -> tuple[Callable[[], torch.Tensor], Callable[[torch.Tensor], None]]:
    if device == "cpu":
        return torch.get_rng_state, torch.set_rng_state
    module = torch.get_device_module("xla")
    return module.get_rng_state, module.set_rng_state


def seeds_and_states(device: str) -> list[torch.Tensor]:
    get, set_ = state_functions(device)
    drawn = []

    def draw() -> None:
        drawn.append(torch.rand(3, device=device) + 0.5)

    draw()
    start = get()
    draw()
    torch.manual_seed(7)
    draw()
    seeded = get()
    draw()
    set_(start)
    draw()
    set_(seeded)
    draw()
    return drawn


def forked(device: str) -> list[torch.Tensor]:
    drawn = [torch.randn(20, device=device)]
    with torch.random.fork_rng(devices=[] if device == "cpu" else [0], device_type=device):
        drawn.append(torch.randn(20, device=device))
        torch.manual_seed(3)
        drawn.append(torch.rand(2, device=device))
    drawn.append(torch.randn(20, device=device))
    return drawn


def seeded_in_every_step(device: str) -> list[torch.Tensor]:
    drawn = []
    for seed in range(4):
        torch.manual_seed(seed)
        drawn.append(nn.functional.dropout(torch.ones(9, device=device), 0.5))
    return drawn


def drawn_by_every_operator(device: str) -> list[torch.Tensor]:
    ones = torch.full((4, 5), 0.4, device=device)
    return [
        torch.randn(3, device=device),  # an odd number: half of a pair of normal numbers is left
        ones.clone().normal_(1, 2),
        torch.rand_like(ones),
        torch.randint(0, 9, (4,), device=device),
        torch.randperm(7, device=device),
        torch.bernoulli(ones),
        ones.clone().exponential_(),
        torch.multinomial(ones, 3),
        torch.poisson(ones),
        nn.functional.rrelu(-ones, training=True),
        nn.functional.alpha_dropout(ones, 0.3, training=True),
        nn.functional.gumbel_softmax(ones),
        torch.normal(ones, ones),
        torch.distributions.Gamma(ones, ones).sample(),
        ones.clone().cauchy_().clamp(-9, 9),
        ones.clone().geometric_(0.5),
        ones.clone().log_normal_(),
        ones.clone().uniform_(2, 3),
    ]


@pytest.mark.parametrize("program", [seeds_and_states, forked, seeded_in_every_step, drawn_by_every_operator])
def test_draws_equal_the_cpus_when_learned_and_replayed(
    machine: InMemoryAccelerator, program: Callable[[str], list[torch.Tensor]]
) -> None:
    torch.manual_seed(5)
    wanted = [program("cpu") for _ in range(4)]
    torch.manual_seed(5)
    for number, expected in enumerate(wanted):
        got = program("xla")
        api.mark_step()
        assert [t.tolist() for t in got] == [t.tolist() for t in expected], number
        if number == 0:
            learned = len(machine.graphs)
    assert len(machine.graphs) == learned


def test_a_seed_put_back_before_the_cut_changes_no_recorded_draw(machine: InMemoryAccelerator) -> None:
    def drawn() -> torch.Tensor:
        torch.manual_seed(42)
        numbers = torch.rand(4, device="xla")
        torch.manual_seed(1)
        return numbers

    torch.manual_seed(42)
    expected = torch.rand(4).tolist()
    for _ in range(3):
        numbers = drawn()
        api.mark_step()
        assert numbers.tolist() == expected
    assert machine.executions == 3


class Block(nn.Module):
    def __init__(self, inner: nn.Module | None = None, **options: Any) -> None:
        super().__init__()
        self.linear, self.inner, self.options = nn.Linear(8, 8), inner, options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.dropout(self.linear(x).tanh(), 0.4)
        if self.inner is None:
            return x
        x = checkpoint(self.inner, x, **self.options) if self.options else self.inner(x)
        return nn.functional.dropout(x, 0.2)


def gradients(device: str, mode: dict[str, Any], cut: bool = False) -> list[list[Any]]:
    """Train three steps through two nested checkpoints and return all gradients."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), Block(Block(Block(), **mode), **mode), Block(Block(), **mode)).to(
        device
    )
    x = torch.linspace(-1, 1, 32).view(4, 8).to(device)
    torch.manual_seed(11)
    found = []
    for _ in range(3):
        model.zero_grad()
        loss = model(x).pow(2).sum()
        if cut:
            api.mark_step()
        loss.backward()
        if device == "xla":
            api.mark_step()
        found.append([parameter.grad.tolist() for parameter in model.parameters()])
    return found


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # of the inner checkpoint
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_with_dropout_use_the_same_masks_again(
    machine: InMemoryAccelerator, reentrant: bool
) -> None:
    wanted = gradients("cpu", {})
    assert gradients("cpu", {"use_reentrant": reentrant}) == wanted
    assert gradients("xla", {"use_reentrant": reentrant}) == wanted
    assert machine.executions == 3
    assert len(machine.graphs) <= 2
    assert gradients("xla", {"use_reentrant": reentrant}, cut=True) == wanted


def test_a_stream_resumes_from_64_bits(machine: InMemoryAccelerator) -> None:
    def draw(count: int = 700) -> list[float]:
        return torch.rand(count, device="xla").tolist()

    api.engine().seed(5)
    assert api.engine().rng_value(0) == 5
    draw()
    state = api.engine().rng_value(0)
    assert 2**32 < state < 2**63
    assert api.engine().rng_value(0) == state  # reading changes nothing
    expected = [draw(), draw()]
    saved = io.BytesIO()
    torch.save({"xla": state}, saved)
    saved.seek(0)
    api.engine().set_rng_value(0, torch.load(saved, weights_only=True)["xla"])
    assert [draw(), draw()] == expected
    torch.manual_seed(5)
    torch.rand(700)
    assert torch.rand(700).tolist() == expected[0]


@pytest.mark.parametrize("too_far", [False, True])
def test_a_state_that_64_bits_cannot_name_is_replaced_by_one_that_they_can(
    machine: InMemoryAccelerator, monkeypatch: pytest.MonkeyPatch, too_far: bool
) -> None:
    api.engine().seed(5)
    if too_far:
        monkeypatch.setattr(rng, "_WORDS_LIMIT", 2000)
        torch.rand(3000, device="xla").cpu()
    else:
        torch.randn(3, device="xla").cpu()
    state = api.engine().rng_value(0)
    assert state < 2**32
    assert api.engine().rng_value(0) == state
    expected = torch.rand(4, device="xla").tolist()
    api.engine().set_rng_value(0, state)
    assert torch.rand(4, device="xla").tolist() == expected


def test_reading_64_bits_runs_the_draws_before_it(machine: InMemoryAccelerator) -> None:
    seen = []
    for _ in range(3):
        api.engine().seed(1)
        drawn = torch.rand(4, device="xla")
        seen.append(api.engine().rng_value(0))
        del drawn
    assert seen[0] != 1
    assert seen == [seen[0]] * 3


def test_a_state_is_checked(machine: InMemoryAccelerator) -> None:
    module = torch.get_device_module("xla")
    with pytest.raises(TypeError):
        module.set_rng_state(torch.zeros(5))
    torch.rand(2, device="xla")
    with pytest.raises(RuntimeError):
        module.set_rng_state(torch.zeros(5056, dtype=torch.uint8))
    with pytest.raises(TypeError):
        module.set_rng_state(torch.zeros(5, device="xla"))


def test_a_generator_of_the_device_is_a_stream_of_its_own(machine: InMemoryAccelerator) -> None:
    mine, cpus = torch.Generator("xla"), torch.Generator("cpu")
    assert mine.device.type == "xla"
    assert cpus.device.type == "cpu"
    assert type(cpus) is torch._C.Generator
    assert isinstance(mine, torch.Generator)
    assert isinstance(cpus, torch.Generator)
    expected = torch.rand(3, generator=cpus.manual_seed(4))
    for _ in range(3):
        before = torch.xla.get_rng_state()  # type: ignore[attr-defined]
        drawn = torch.rand(3, device="xla", generator=mine.manual_seed(4))
        assert drawn.device.type == "xla"
        assert torch.equal(drawn.cpu(), expected)
        drawn = torch.empty(3, device="xla").uniform_(generator=mine.manual_seed(4))
        assert torch.equal(drawn.cpu(), expected)
        assert torch.equal(torch.xla.get_rng_state(), before)  # type: ignore[attr-defined]
