"""The calls about faults that every client offers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neurontools.machine.faults.spec import Fault, Hit


class FaultCalls:
    """Mixed into a client: everything goes through its `call`."""

    if TYPE_CHECKING:

        def call(self, method: str, **params: Any) -> Any:
            """Call a method of the protocol and return its result: the client's own."""

    def inject(
        self,
        kind: str,
        *,
        device: int | None = None,
        core: int | None = None,
        to: int | None = None,
        pid: int | None = None,
        tag: str | None = None,
        after_s: float = 0.0,
        after_executions: int = 0,
        count: int | None = None,
        duration_s: float | None = None,
        factor: float = 2.0,
        ecc: str = "mem-uncorrected",
        amount: int = 1,
        every_s: float | None = None,
    ) -> Fault:
        """Let something go wrong with the machine; see docs/reference/faults.md.

        Args:
            kind: one of `FaultKind`, such as "hang".
            device: only this device.
            core: only this core (machine-wide logical id).
            to: the device at the other end of a link, for "link-down".
            pid: only this process.
            tag: only processes with this NEURON_PROCESS_TAG.
            after_s: seconds until it is armed.
            after_executions: how many executions (or allocations) it lets pass.
            count: how many executions, allocations or memory errors it makes; None: until it is cleared (memory
                errors without `every_s`: one).
            duration_s: seconds after which it ends, from when it is armed.
            factor: how many times as long executions last, for "slow-core".
            ecc: the type of memory errors, one of `EccType`, for "ecc".
            amount: memory errors at a time.
            every_s: seconds between memory errors; None: all of `count` at once.

        Returns:
            The fault as it stands in the machine.

        Raises:
            DaemonError: the fault makes no sense on this machine, or is not this user's to inject.
            NoMachineError: no daemon runs.
        """
        from neurontools.machine.faults.spec import fault_from_json

        wish = {"kind": kind, "device": device, "core": core, "to": to, "pid": pid, "tag": tag or ""}
        when = {"after_s": after_s, "after_executions": after_executions, "duration_s": duration_s}
        much = {"count": count, "factor": factor, "ecc": ecc, "amount": amount, "every_s": every_s}
        return fault_from_json(self.call("inject_fault", **wish, **when, **much)["fault"])

    def faults(self) -> tuple[Fault, ...]:
        """Return the faults of the machine, oldest first."""
        from neurontools.machine.faults.spec import fault_from_json

        return tuple(fault_from_json(fault) for fault in self.call("list_faults")["faults"])

    def clear_faults(self, *faults: Fault | int) -> tuple[int, ...]:
        """End faults, and what they broke; without arguments all of them.

        Returns:
            The numbers of the faults that were ended.

        Raises:
            DaemonError: there is no such fault, or it is not this user's to end.
        """
        ids = [fault if isinstance(fault, int) else fault.id for fault in faults]
        return tuple(self.call("clear_faults", ids=ids or None)["ids"])

    def reset_device(self, device: int, *, force: bool = False) -> None:
        """Reset a device, which mends what memory errors broke; its error counters stay.

        Raises:
            DaemonError: there is no such device, it is lost, or processes hold cores of it and `force` is not set.
        """
        self.call("reset_device", device=device, force=force)

    def take_fault(
        self,
        core: int,
        *,
        pid: int | None = None,
        action: str = "execution",
        collective: bool = False,
        nbytes: int = 0,
    ) -> Hit | None:
        """Ask what happens to an execution or allocation that is about to begin, and count it; None: nothing.

        Args:
            core: where (machine-wide logical id).
            pid: the process, None for this one; others, synthetic ones too, are for the machine's owner and root.
            action: "execution" or "allocation".
            collective: whether the execution exchanges data with other cores.
            nbytes: size of the allocation.
        """
        from neurontools.machine.faults.spec import hit_from_json

        hit = self.call(
            "take_fault", core=core, pid=pid, action=action, collective=collective, nbytes=nbytes
        )["hit"]
        return None if hit is None else hit_from_json(hit)

    def holds_fault(self, fault: int, core: int, *, pid: int | None = None) -> bool:
        """Return whether an execution that a fault let hang still hangs."""
        return bool(
            self.call("holds_fault", fault=fault, core=core, pid=os.getpid() if pid is None else pid)["holds"]
        )

    def release_fault(self, core: int, *, pid: int | None = None) -> None:
        """Tell that an execution does not hang any more, because it timed out."""
        self.call("release_fault", core=core, pid=pid)
