"""Methods about the error counters of devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.machine.daemon.sessions import Answer, answer
from neurontools.machine.events import CountHardware, ResetHardware
from neurontools.machine.hardware import HardwareCounter
from neurontools.machine.protocol import ErrorCode, Params, RpcError

if TYPE_CHECKING:
    from neurontools.machine.daemon.keeper import Keeper
    from neurontools.machine.daemon.server import Connection
    from neurontools.machine.daemon.sessions import Method


class HardwareMethods:
    """`count_hardware` and `reset_hardware`."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self.table: dict[str, Method] = {
            "count_hardware": self._count,
            "reset_hardware": self._reset,
        }

    def _count(self, _connection: Connection, params: Params) -> Answer:
        params.only("device", "counter", "amount")
        amount = 1 if params.optional_integer("amount", 1) is None else params.integer("amount", 1)
        event = CountHardware(params.integer("device", 0), _counter(params.text("counter")), amount)
        self._keeper.change_hardware(event)
        return answer({})

    def _reset(self, _connection: Connection, params: Params) -> Answer:
        params.only("device", "counter")
        name = params.text("counter", "")
        event = ResetHardware(params.integer("device", 0), _counter(name) if name else None)
        self._keeper.change_hardware(event)
        return answer({})


def _counter(name: str) -> HardwareCounter:
    try:
        return HardwareCounter(name)
    except ValueError:
        known = ", ".join(HardwareCounter)
        raise RpcError(
            ErrorCode.INVALID_PARAMS, f"no error counter {name[:40]!r}", f"there are {known}"
        ) from None
