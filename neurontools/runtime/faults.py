"""What the machine's faults do to this process: failing, hanging and slow executions, allocations that fail.

The telemetry page tells how many faults are armed; only then is the daemon asked. Without a daemon the job goes on as
if there were none.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

from neurontools import env
from neurontools.errors import DaemonError, NoMachineError
from neurontools.machine.faults.kinds import (
    ECC_UNUSABLE,
    HW_ERROR,
    KINDS,
    LOST_ALLOCATION,
    UNRECOVERABLE,
    FaultKind,
)
from neurontools.machine.faults.params import Action, Hit
from neurontools.runtime.log import Component, Level, RuntimeLog
from neurontools.runtime.memory import pool_line
from neurontools.runtime.status import NrtError, NrtStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from neurontools.machine.client import Client
    from neurontools.machine.pages.page import PageWriter
    from neurontools.runtime.models import Model

EXEC_TIMEOUT = "NEURON_RT_EXEC_TIMEOUT"
DEFAULT_TIMEOUT_S = 600
INF1_TIMEOUT_S = 30

_LOOK_EVERY_S = 0.02
_ASK_EVERY_NS = 500_000_000
_SLOW_NS = 100_000_000

T = TypeVar("T")


class Faults:
    """The faults of one process.

    Args:
        client: the daemon, which knows them.
        writer: the process's page.
        log: where the real runtime's lines go.
        environ: NEURON_RT_EXEC_TIMEOUT and what makes numerical errors fail.
        instance_type: decides the default of the timeout.
    """

    def __init__(
        self,
        client: Client,
        writer: PageWriter,
        log: RuntimeLog,
        environ: Mapping[str, str],
        instance_type: str,
    ) -> None:
        self._client = client
        self._writer = writer
        self._log = log
        self._timeout_s = exec_timeout_s(environ, instance_type)
        self._numerical_is_critical = env.numerical_errors_are_on(environ)
        self._silent_until_ns = 0

    def execute(self, model: Model, run: Callable[[], T]) -> tuple[T, NrtStatus, float]:
        """Run an execution while faults are armed.

        Returns:
            What `run` returned, the status to count, and how many times as long it should last.

        Raises:
            NrtError: a fault makes it fail.
        """
        try:
            return self._execute(model, run)
        except NrtError:
            raise
        except BaseException:
            # A signal may have come at any moment since the daemon counted a hang.
            self._release(model)
            raise

    def _execute(self, model: Model, run: Callable[[], T]) -> tuple[T, NrtStatus, float]:
        hit = self._take(model.core, Action.EXECUTION, collective=model.collective)
        if hit is None:
            return run(), NrtStatus.NRT_SUCCESS, 1.0
        if hit.kind is FaultKind.SLOW_CORE:
            return run(), NrtStatus.NRT_SUCCESS, hit.factor
        if hit.kind is FaultKind.HANG and not self._hangs(hit, model):
            return run(), NrtStatus.NRT_SUCCESS, 1.0
        status = NrtStatus(hit.status)
        runs = KINDS[hit.kind].runs
        if runs and not self._numerical_is_critical:
            return run(), status, 1.0
        if runs:
            run()
        self._log_hit(hit, model=model.model_id)
        raise NrtError("nrt_execute", status, _remedy(hit))

    def check_allocation(self, core: int, nbytes: int, device_bytes: int, function: str) -> None:
        """Let an allocation of `nbytes` on a core (machine-wide logical id) fail if a fault says so.

        `device_bytes` is the size of the device's memory, `function` the runtime's function that allocates.

        Raises:
            NrtError: NRT_RESOURCE when the device seems to be full, NRT_HW_ERROR when it is lost.
        """
        hit = self._take(core, Action.ALLOCATION, nbytes=nbytes)
        if hit is not None:
            if hit.kind is FaultKind.OOM:
                line = pool_line(hit.device, device_bytes, device_bytes, nbytes)
                self._log.write(Level.ERROR, Component.TDRV, "mc_alloc", line)
            self._log_hit(hit, nbytes=nbytes, core=core)
            raise NrtError(function, NrtStatus(hit.status), _remedy(hit))

    def _take(self, core: int, action: Action, **facts: Any) -> Hit | None:
        start_ns = time.monotonic_ns()
        if start_ns < self._silent_until_ns:
            return None
        try:
            return self._client.take_fault(core, action=action, **facts)
        except (DaemonError, NoMachineError):
            end_ns = time.monotonic_ns()
            if end_ns - start_ns > _SLOW_NS:
                self._silent_until_ns = end_ns + 10 * (end_ns - start_ns)
            return None

    def _hangs(self, hit: Hit, model: Model) -> bool:
        """Wait until the fault is cleared (False) or the time for an execution has passed (True)."""
        now_ns = time.monotonic_ns()
        end_ns = None if self._timeout_s == 0 else now_ns + self._timeout_s * 1_000_000_000
        ask_ns, armed = now_ns + _ASK_EVERY_NS, self._writer.armed_faults
        while end_ns is None or now_ns < end_ns:
            time.sleep(_LOOK_EVERY_S if end_ns is None else min(_LOOK_EVERY_S, (end_ns - now_ns) / 1e9))
            now_ns, before, armed = time.monotonic_ns(), armed, self._writer.armed_faults
            if armed == 0:
                return False
            if armed != before or now_ns >= ask_ns:
                ask_ns = now_ns + _ASK_EVERY_NS
                if not self._is_held(hit, model):
                    return False
        self._release(model)
        return True

    def _is_held(self, hit: Hit, model: Model) -> bool:
        try:
            return self._client.holds_fault(hit.fault, model.core)
        except (DaemonError, NoMachineError):
            return True

    def _release(self, model: Model) -> None:
        try:
            self._client.release_fault(model.core)
        except (DaemonError, NoMachineError):
            pass

    def _log_hit(self, hit: Hit, *, model: int = 0, nbytes: int = 0, core: int = 0) -> None:
        line = KINDS[hit.kind].log
        if hit.kind is FaultKind.ECC and hit.status == UNRECOVERABLE:
            line = ECC_UNUSABLE
        elif hit.kind is FaultKind.DEVICE_LOST and hit.status == HW_ERROR:
            line = LOST_ALLOCATION
        if line is None:
            return
        text = line.text.format(
            nd=hit.device,
            nc=hit.nc,
            model=model,
            peer=hit.peer,
            nbytes=nbytes,
            core=core,
            timeout_ms=self._timeout_s * 1000,
        )
        self._log.write(Level.ERROR, Component(line.component), line.function, text)


def exec_timeout_s(environ: Mapping[str, str], instance_type: str) -> int:
    """Return how long an execution may last in seconds, 0 without a limit (our decision).

    The default is that of the developer guide: 30 on Inf1, else 600, which logs show too (AWS Neuron documentation).
    """
    text = environ.get(EXEC_TIMEOUT, "").strip()
    if text.isascii() and text.isdigit() and int(text) < 1 << 31:
        return int(text)
    return INF1_TIMEOUT_S if instance_type.startswith("inf1") else DEFAULT_TIMEOUT_S


def _remedy(hit: Hit) -> str:
    return f"fault {hit.fault} ({hit.kind}) was injected: see `neurontools fault list`"
