"""A handler that raises at each bytecode of one operator, in turn: its tensors have a value of before, of after, or none."""

from __future__ import annotations

import _thread
import gc
import itertools
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import neurontools
from neurontools.xla import api
from neurontools.xla.accelerator import LostValueError
from neurontools.xla.buffers import buffer_of
from neurontools.xla.kernels import SOURCE_NAME
from neurontools.xla.recorder_lock import RECORDING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.torch, pytest.mark.slow]
_OURS = (str(Path(neurontools.__file__).parent), SOURCE_NAME)
_SIGNAL = signal.SIGUSR1


class StopNow(BaseException):
    pass


class Trip(int):
    """The number of a signal that arrives when `now` is read; its handler runs later, as no call has been made."""

    now = property(_thread.interrupt_main)


def run_interrupted(work: Callable[[], None], position: int) -> bool:
    """Let a handler raise at a bytecode of the device's code; return whether there are that many."""
    left, trip = position, Trip(_SIGNAL)

    def step(frame: Any, event: str, value: Any) -> Any:
        nonlocal left
        left -= event == "opcode"
        if left == 0:
            left = -1
            sys.settrace(None)
            trip.now  # noqa: B018
        return step

    def enter(frame: Any, event: str, value: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_OURS):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return step

    def stop(number: int, frame: Any) -> None:
        raise StopNow

    before = signal.signal(_SIGNAL, stop)
    try:
        sys.settrace(enter)
        work()
        sys.settrace(None)  # a call, after which a handler runs that was held back
    except StopNow:
        pass
    finally:
        signal.signal(_SIGNAL, before)
    return left < 0


def lost() -> tuple[Callable[[], Any], list[tuple[torch.Tensor, Any, Any]]]:
    target = torch.ones(3).to("xla")
    buffer_of(target).host, buffer_of(target).epoch = None, RECORDING
    return lambda: target.fill_(3.0), [(target, None, 3.0)]


def uninitialised() -> tuple[Callable[[], Any], list[tuple[torch.Tensor, Any, Any]]]:
    source, target = torch.full((3,), 2.0).to("xla"), torch.empty(3, device="xla")
    return lambda: target.copy_(source), [(source, 2.0, 2.0), (target, None, 2.0)]


def known() -> tuple[Callable[[], Any], list[tuple[torch.Tensor, Any, Any]]]:
    target, source = torch.full((3,), 2.0).to("xla"), torch.full((3,), 5.0).to("xla")
    return lambda: target.add_(source).mul_(source), [(target, 2.0, (7.0, 35.0)), (source, 5.0, 5.0)]


def learned_after_known() -> tuple[Callable[[], Any], list[tuple[torch.Tensor, Any, Any]]]:
    target = torch.full((3,), 2.0).to("xla")
    doubled = target * 2
    api.mark_step()
    tripled = target * 3
    factor = next(_factors)
    return lambda: tripled.sub_(doubled).div_(factor), [
        (target, 2.0, 2.0),
        (doubled, 4.0, 4.0),
        (tripled, 6.0, (2.0, (torch.tensor(2.0) / factor).item())),
    ]


def executed() -> tuple[Callable[[], Any], list[tuple[torch.Tensor, Any, Any]]]:
    target = torch.full((3,), 2.0).to("xla")
    target.add_(1)
    made = target * 2
    return api.mark_step, [(target, 3.0, 3.0), (made, 6.0, 6.0)]


def _factor_values() -> Iterator[float]:
    for number in itertools.count(2):
        yield 1 + number / 1024


_factors = _factor_values()


@pytest.mark.parametrize("situation", [lost, uninitialised, known, learned_after_known, executed])
def test_no_value_is_wrong_wherever_a_handler_raises(machine, situation):
    position, is_reached = 1, True
    while is_reached:
        work, tensors = situation()
        is_reached = run_interrupted(work, position)
        assert gc.isenabled()
        factor = next(_factors)
        for tensor, before, after in tensors:
            allowed = [before, *(after if isinstance(after, tuple) else (after,))]
            try:
                scaled = (
                    tensor * factor
                )  # an operator that the device does not know yet goes on where it was stopped
                seen = tensor.cpu()
            except LostValueError:
                assert before is None or situation is executed, f"lost at bytecode {position}"
                continue
            if before is None and situation is uninitialised:
                continue  # whatever was there
            assert seen.unique().tolist() in [[value] for value in allowed], f"at bytecode {position}"
            assert torch.equal(scaled.cpu(), seen * factor)
        position += 1
    assert position > 50
