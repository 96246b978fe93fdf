"""One call of an operator as plain values: the request to an executor and its outcome."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from neurontools.customop import abi
from neurontools.customop.mailbox import REQUEST_OFFSET

if TYPE_CHECKING:
    from collections.abc import Sequence

_PLACES = REQUEST_OFFSET + abi.CallRequest.places.offset
_PLACE_BYTES = ctypes.sizeof(abi.Place)
pack_place = struct.Struct("=QQQ").pack_into
FLAG = struct.Struct("=I")
CAPTURES = REQUEST_OFFSET + abi.CallRequest.capture_stdout.offset
OUTPUT_PLACE = _PLACES + _PLACE_BYTES * abi.OUTPUT_SLOT


class Buffer(NamedTuple):
    """Bytes of this process."""

    address: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """A tensor without its bytes."""

    sizes: tuple[int, ...]
    dtype: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class CoreWork:
    """Memory accesses of one GPSIMD core in a call; they determine the modelled time.

    Args:
        element_accesses: accesses of single elements in HBM.
        transfers: copies between HBM and TCM.
        transferred_bytes: bytes of these copies.
        moves: copies within HBM and fills: the returned tensor to the output, `torch::zeros`.
        moved_bytes: bytes of these, each counted once.
        computed_bytes: bytes of the results of tensor functions.
    """

    element_accesses: int = 0
    transfers: int = 0
    transferred_bytes: int = 0
    moves: int = 0
    moved_bytes: int = 0
    computed_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of a call.

    Args:
        kind: the check that failed, one word.
        message: the reason.
        core: the GPSIMD core, -1 for all cores.
        frames: addresses in the library's file, innermost first.
        fatal: whether it ended the worker.
    """

    kind: str
    message: str
    core: int = -1
    frames: tuple[int, ...] = ()
    fatal: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a call.

    Args:
        failure: None when it succeeded.
        warnings: warnings of the checks.
        shape: result of a shape function; meaningless for a kernel.
        work: memory accesses of each core; empty for a shape function.
        elapsed_ns: time of the call on this computer, without copies.
        stdout: output of the kernel on stdout.
        stderr: output of the kernel on stderr.
    """

    failure: Failure | None
    warnings: tuple[str, ...] = ()
    shape: TensorMeta | None = None
    work: tuple[CoreWork, ...] = ()
    elapsed_ns: int = 0
    stdout: str = ""
    stderr: str = ""


class Executor(Protocol):
    """Runs the functions of a library."""

    def call(self, request: abi.CallRequest, inputs: dict[int, Buffer], output: Buffer | None) -> Outcome:
        """Run a function on inputs by argument position; the output is written if the call succeeds."""

    def close(self) -> None:
        """Release its resources."""


def new_request(command: int, callee: int, argument_count: int, core_count: int = 1) -> abi.CallRequest:
    """Return a request without arguments."""
    request = abi.CallRequest()
    request.magic = abi.MAGIC
    request.command = command
    request.callee = callee
    request.argument_count = argument_count
    request.core_count = core_count
    return request


def set_tensor(target: abi.Tensor, meta: TensorMeta) -> None:
    """Set a tensor's shape."""
    target.dim = len(meta.sizes)
    for index, size in enumerate(meta.sizes):
        target.sizes[index] = size
    target.dtype = meta.dtype
    target.nbytes = meta.nbytes


def parse_reply(reply: abi.Reply, core_count: int, stdout: str = "", stderr: str = "") -> Outcome:
    """Parse a reply."""
    failure = None
    if reply.status != abi.OK:
        failure = Failure(
            kind=_text(reply.kind) or "unknown",
            message=_text(reply.message),
            core=reply.core,
            frames=tuple(reply.frames[: min(reply.frame_count, abi.MAX_FRAMES)]),
            fatal=reply.status == abi.FATAL,
        )
    dim = min(max(reply.shape.dim, 0), abi.MAX_DIM)
    return Outcome(
        failure=failure,
        warnings=tuple(_text(reply.warnings).splitlines()),
        shape=TensorMeta(tuple(reply.shape.sizes[:dim]), reply.shape.dtype, reply.shape.nbytes),
        work=tuple(
            CoreWork(*(getattr(core, name) for name, _ in abi.Counters._fields_))
            for core in reply.counters[:core_count]
        ),
        elapsed_ns=reply.elapsed_ns,
        stdout=stdout,
        stderr=stderr,
    )


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


class PreparedCall:
    """A kernel call packed once for its shapes, dtypes and numbers; later calls only change tensor locations.

    Args:
        request: the call, without tensor locations.
        constant: positions of the tensors that the kernel takes as const; they are read in place.
    """

    __slots__ = ("core_count", "is_quick", "output_bytes", "packed", "tensors")

    def __init__(self, request: abi.CallRequest, constant: Sequence[int]) -> None:
        arguments = request.arguments[: request.argument_count]
        used = abi.CallRequest.arguments.offset + request.argument_count * ctypes.sizeof(abi.Argument)
        self.packed = bytes(request)[:used]
        # Of each tensor: position, offset of its location in the mailbox, size, whether it may be read in place.
        self.tensors = tuple(
            (index, _PLACES + _PLACE_BYTES * index, argument.tensor.nbytes, index in constant)
            for index, argument in enumerate(arguments)
            if argument.kind == abi.TENSOR_ARGUMENT
        )
        self.output_bytes: int = request.output.nbytes
        self.core_count: int = request.core_count
        self.is_quick = True  # whether the last call took less time than a wake-up
