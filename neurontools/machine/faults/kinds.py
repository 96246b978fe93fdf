"""The kinds of faults and what each does to an execution: one table, which docs/reference/faults.md prints.

Status numbers and names are those of the AWS Neuron documentation, runtime error codes (NRT return codes), log lines those
of its troubleshooting guide where it has them; the driver's log words and counters those of its sysfs user guide.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from neurontools.machine.snapshot import HardwareCounter

NO_STATUS = 0
RESOURCE = 4
TIMEOUT = 5
HW_ERROR = 6
UNRECOVERABLE = 101


class FaultKind(StrEnum):
    """The kinds of faults."""

    ECC = "ecc"
    HANG = "hang"
    TIMEOUT = "timeout"
    OOM = "oom"
    NUMERICAL = "numerical"
    DEVICE_LOST = "device-lost"
    LINK_DOWN = "link-down"
    SLOW_CORE = "slow-core"
    HARDWARE = "hardware"
    DMA_ABORT = "dma-abort"
    COLLECTIVES = "collectives"
    QUEUE_FULL = "queue-full"
    NQ_OVERFLOW = "nq-overflow"
    BAD_INPUT = "bad-input"
    OOB = "oob"
    GENERIC = "generic"


class EccType(StrEnum):
    """The types of memory errors."""

    MEM_CORRECTED = "mem-corrected"
    MEM_UNCORRECTED = "mem-uncorrected"
    MEM_REPAIRABLE_UNCORRECTED = "mem-repairable-uncorrected"
    SRAM_CORRECTED = "sram-corrected"
    SRAM_UNCORRECTED = "sram-uncorrected"


class Reach(StrEnum):
    """What a kind affects, which decides its targets."""

    EXECUTION = "executions"
    ALLOCATION = "allocations"
    DEVICE = "device"
    LINK = "link"


class Recovery(StrEnum):
    """What ends the effect of a fault that has fired.

    Nothing needs to be done; or a reset of the device, or of the cores at the next nrt_init with
    NEURON_RT_RESET_CORES=1; or clearing the fault, or the end of its duration.
    """

    NONE = "-"
    RESET = "reset"
    CLEAR = "clear"


class LogLine(Struct, frozen=True):
    """What the victim logs: component and function of the real runtime, or of ours where `documented` is not set.

    The text has places for `nd` (device), `nc` (core inside of it), `model` (id of the loaded model) and `timeout_ms`.
    """

    component: str
    function: str
    text: str
    documented: bool = False


class KindFacts(Struct, frozen=True):
    """A kind: what it is about, the NRT status of an execution that it hits, what is logged, how it ends.

    `kernel_word` is what follows `NEURON_HW_ERR=` in the kernel log; `runs` tells whether the work is done all the
    same.
    """

    what: str
    reach: Reach = Reach.EXECUTION
    status: int = NO_STATUS
    log: LogLine | None = None
    kernel_word: str = ""
    runs: bool = False
    recovery: Recovery = Recovery.NONE


class EccFacts(Struct, frozen=True):
    """A type of memory errors: its counter, and if it breaks cores, the status and the kernel's word."""

    counter: HardwareCounter
    status: int = NO_STATUS
    kernel_word: str = ""
    component: str = ""

    @property
    def breaks(self) -> bool:
        """Whether an execution fails of it and the device needs a reset."""
        return self.status != NO_STATUS


_INFERENCE_TIMEOUT = LogLine(
    "TDRV",
    "exec_consume_infer_status_notifications",
    "(FATAL-RT-UNDEFINED-STATE) inference timeout ({timeout_ms} ms) on Neuron Device {nd} NC {nc}, "
    "waiting for execution completion notification",
    documented=True,
)


def _ours(text: str) -> LogLine:
    return LogLine("TDRV", "exec_process_errors", "nd{nd}:nc{nc}:h_model.id{model}: " + text)


ECC_UNUSABLE = _ours("execution unit is unrecoverable, the device needs a reset")
"""What executions log after those that memory errors made fail by their own status, until the device is reset."""

LOST_ALLOCATION = LogLine(
    "TDRV", "dmem_alloc", "Failed to allocate {nbytes} bytes on ND {nd}: device is gone"
)
"""What an allocation on a lost device logs."""

KINDS: dict[FaultKind, KindFacts] = {
    FaultKind.ECC: KindFacts(
        "memory errors of a device",
        Reach.DEVICE,
        log=_ours("uncorrectable memory error"),
        recovery=Recovery.RESET,
    ),
    FaultKind.HANG: KindFacts(
        "an execution hangs until cleared or timed out",
        status=TIMEOUT,
        log=_INFERENCE_TIMEOUT,
        recovery=Recovery.CLEAR,
    ),
    FaultKind.TIMEOUT: KindFacts("an execution times out at once", status=TIMEOUT, log=_INFERENCE_TIMEOUT),
    FaultKind.OOM: KindFacts(
        "device memory seems to be full",
        Reach.ALLOCATION,
        status=RESOURCE,
        log=LogLine("TDRV", "dmem_alloc", "Failed to allocate {nbytes} bytes on ND {nd}:NC {core}"),
    ),
    FaultKind.NUMERICAL: KindFacts(
        "an execution has numerical errors",
        status=1003,
        log=_ours("execution completed with numerical errors (NaN)"),
        runs=True,
    ),
    FaultKind.DEVICE_LOST: KindFacts(
        "a device falls off the bus",
        Reach.DEVICE,
        status=UNRECOVERABLE,
        log=_ours("device is gone, execution unit is unrecoverable"),
        recovery=Recovery.CLEAR,
    ),
    FaultKind.LINK_DOWN: KindFacts(
        "the link between two devices is down",
        Reach.LINK,
        status=1200,
        log=_ours("collective operation failed: link nd{nd}-nd{peer} is down"),
        recovery=Recovery.CLEAR,
    ),
    FaultKind.SLOW_CORE: KindFacts(
        "executions last several times as long", runs=True, recovery=Recovery.CLEAR
    ),
    FaultKind.HARDWARE: KindFacts(
        "a NeuronCore meets an uncorrectable error",
        status=1202,
        log=_ours("uncorrectable NeuronCore error"),
        kernel_word="NC_UNCORRECTABLE_ERROR",
    ),
    FaultKind.DMA_ABORT: KindFacts(
        "a DMA engine aborts", status=1203, log=_ours("DMA engine aborted"), kernel_word="DMA_ERROR"
    ),
    FaultKind.COLLECTIVES: KindFacts(
        "a collective operation fails", status=1200, log=_ours("hardware error in a collective operation")
    ),
    FaultKind.QUEUE_FULL: KindFacts(
        "the execution queue is full, nothing runs", status=7, log=_ours("execution queue is full")
    ),
    FaultKind.NQ_OVERFLOW: KindFacts(
        "a notification queue overflows", status=1204, log=_ours("notification queue overflow")
    ),
    FaultKind.BAD_INPUT: KindFacts(
        "an execution is given bad input", status=1002, log=_ours("bad input tensors")
    ),
    FaultKind.OOB: KindFacts(
        "an access out of bounds",
        status=1006,
        log=LogLine(
            "TDRV",
            "generate_custom_notification_msg",
            "nd{nd}:nc{nc}:h_model.id{model}: Received notification generated at runtime: failed to run "
            "scatter/gather (indirect memory copy), due to out-of-bound access.",
            documented=True,
        ),
    ),
    FaultKind.GENERIC: KindFacts(
        "an execution ends with other errors", status=1004, log=_ours("execution completed with errors")
    ),
}

ECC: dict[EccType, EccFacts] = {
    EccType.MEM_CORRECTED: EccFacts(HardwareCounter.MEM_ECC_CORRECTED),
    EccType.MEM_UNCORRECTED: EccFacts(
        HardwareCounter.MEM_ECC_UNCORRECTED, 1201, "HBM_UNCORRECTABLE_ERROR", "hbm"
    ),
    EccType.MEM_REPAIRABLE_UNCORRECTED: EccFacts(
        HardwareCounter.MEM_ECC_REPAIRABLE_UNCORRECTED, 1205, "HBM_UNCORRECTABLE_ERROR", "hbm"
    ),
    EccType.SRAM_CORRECTED: EccFacts(HardwareCounter.SRAM_ECC_CORRECTED),
    EccType.SRAM_UNCORRECTED: EccFacts(
        HardwareCounter.SRAM_ECC_UNCORRECTED, 1202, "SRAM_UNCORRECTABLE_ERROR", "sram"
    ),
}
