"""The backend of torch.distributed, named like the device: recorded collectives for device tensors, immediate ones for CPU tensors.

All workers must run their collectives in the same order, so a collective on CPU tensors first runs the recorded graph.
"""

# ruff: noqa: ARG002, SLF001
# Torch's signatures and private API.

from __future__ import annotations

import os
from collections import deque
from contextlib import nullcontext
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from neurontools.runtime.host_activity import HostEvent, observers
from neurontools.xla import api
from neurontools.xla.device import keep_from_compiler
from neurontools.xla.device_name import XLA, device_name
from neurontools.xla.distributed import collectives, worker_group, workers
from neurontools.xla.distributed.worker_group import REDUCTIONS, Communicator
from neurontools.xla.host_events import Observed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neurontools.xla.distributed.messages import MessageRequest
    from neurontools.xla.distributed.worker_roster import Ranks


def register() -> None:
    """Make the backend known to torch.distributed, and `xla://` as an init method; further calls have no effect."""
    name = device_name()
    if hasattr(dist.Backend, name.upper()):
        return
    for method in vars(ProcessGroupXla).values():
        if isinstance(method, FunctionType):
            keep_from_compiler(
                method
            )  # DistributedDataParallel calls them while torch.compile reads its frames
    dist.Backend.register_backend(name, _create, extended_api=True, devices=[name, "cpu"])
    if name == XLA:
        dist.register_rendezvous_handler(name, _rendezvous)


def _create(options: Any, backend_options: Any) -> ProcessGroupXla:
    timeout = options.timeout
    is_of_environment = worker_group.default_timeout() != dist.default_pg_timeout
    ranks = tuple(options.global_ranks_in_group)
    if ranks:
        if timeout != dist.default_pg_timeout and not is_of_environment:  # one of its own
            worker_group.current().set_timeout(ranks, timeout)
    else:
        workers.assign_core(os.environ)  # of a worker whose rank was not known when it started
        ranks = tuple(range(options.group_size))
        if is_of_environment:
            timeout = worker_group.default_timeout()
        store = options.store if options.group_size > 1 else None
        worker_group.replace(Communicator(store, options.group_rank, options.group_size, timeout))
    return ProcessGroupXla(ranks, options.group_rank, _mesh(ranks, backend_options))


def _mesh(ranks: Ranks, options: Any) -> list[Ranks]:
    """Return the replica groups of a process group; `xla_pg_options` may list those of the other workers too."""
    chosen = options.get("xla_pg_options", {}) if isinstance(options, dict) else {}
    mesh = [tuple(group) for group in chosen.get("mesh") or ()]
    return mesh if ranks in mesh else [ranks]


def _rendezvous(url: str, **options: Any) -> Iterator[Any]:  # noqa: ARG001
    return iter(dist.rendezvous("env://", **options))


def _finished(result: Any) -> Any:
    future = torch.futures.Future()
    future.set_result(result)
    return torch._C._distributed_c10d._create_work_from_future(future)


def _prepare(tensors: Sequence[torch.Tensor]) -> None:
    if any(tensor.device.type != device_name() for tensor in tensors):
        api.engine().sync()


def _reduce_type(operation: Any, size: int) -> tuple[str, float]:
    """Return the reduce type of a `ReduceOp`, and the scale of its result."""
    if operation == dist.ReduceOp.AVG:
        return "sum", 1 / size
    if operation == dist.ReduceOp.PREMUL_SUM:  # FSDP's, with a gradient divide factor
        return "sum", float(operation.factor)
    for name, known in REDUCTIONS.items():
        if operation == known:
            return name, 1.0
    raise NotImplementedError(f"reduce op {operation} is not supported by the backend {device_name()}")


def _check_sizes(sent: list[int], received: list[int]) -> None:
    if device_name() == XLA and (len(set(sent)) > 1 or len(set(received)) > 1):
        raise NotImplementedError(f"the backend {XLA} exchanges parts of equal size only")


class _Receive(dist.Work):  # type: ignore[misc]
    """A tensor to receive when the program waits for it: what it sends before that, the sender may be waiting for.

    Args:
        request: what is to be received.
        tensors: those for the same sender and tag, in the order of the requests; this one's is last.
    """

    def __init__(self, request: MessageRequest, tensors: deque[torch.Tensor]) -> None:
        super().__init__()
        self._request = request
        self._tensors = tensors
        self._own = tensors[-1]

    def wait(self, timeout: Any = None) -> bool:
        """Receive the tensor, and those that were to be received before it."""
        while any(tensor is self._own for tensor in self._tensors):
            tensor = self._tensors.popleft()
            _prepare([tensor])
            collectives.receive_(tensor, self._request.source, self._request.tag)
        return True

    def is_completed(self) -> bool:
        """Return whether the tensor has come, and receive it then; does not wait."""
        return worker_group.current().messages.has_arrived(self._request) and self.wait()

    def get_future(self) -> Any:
        """Receive the tensor and return it as a future."""
        self.wait()
        return _finished([self._own]).get_future()


class ProcessGroupXla(dist.ProcessGroup):  # type: ignore[misc]
    """A group of workers with device tensors.

    Args:
        ranks: ranks of the members in the run.
        rank: this worker's rank in the group.
        mesh: replica groups; one of them is `ranks`.
    """

    def __init__(self, ranks: Ranks, rank: int, mesh: list[Ranks]) -> None:
        super().__init__(rank, len(ranks))
        self._ranks = ranks
        self._mesh = mesh
        self._name = ""
        self._receives: dict[tuple[int, int], deque[torch.Tensor]] = {}

    def getBackendName(self) -> str:  # noqa: N802
        """Return the name of the backend."""
        return device_name()

    @property
    def _device_types(self) -> list[torch.device]:
        """The devices whose tensors the backend takes: torch prefers the CPU for objects."""
        return [torch.device(device_name()), torch.device("cpu")]

    supports_splitting = False

    def _get_backend(self, device: torch.device) -> ProcessGroupXla:
        """Return what torch asks for the abilities of the backend."""
        return self

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_name(self) -> str:
        """The name that torch gave the group."""
        return self._name

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        """Reduce tensors in place."""
        _prepare(tensors)
        operation = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        reduce_type, scale = _reduce_type(operation, self.size())
        collectives.all_reduce_(tensors, reduce_type, scale, self._mesh)
        return _finished(tensors)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        """Reduce tensors in place."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        """Reduce tensors; all members get the result, not only the root, because torch leaves this open."""
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        """Copy a tensor from the root."""
        _prepare(tensors)
        collectives.broadcast_([tensors[opts.rootTensor]], self._ranks[opts.rootRank], self._mesh)
        return _finished(tensors)

    def allgather(
        self, outputs: list[list[torch.Tensor]], tensors: list[torch.Tensor], opts: Any = None
    ) -> Any:
        """Gather tensors into lists; their shapes are those of the lists' tensors."""
        _prepare(tensors)
        for parts, tensor in zip(outputs, tensors, strict=True):
            if len({part.shape for part in parts}) > 1:
                self._gather_uneven(parts, tensor)
                continue
            gathered = collectives.all_gather(tensor.unsqueeze(0), 0, self._mesh)
            with torch.no_grad():
                for part, found in zip(parts, gathered.unbind(0), strict=True):
                    part.copy_(found.view(part.shape))
        return _finished([part for parts in outputs for part in parts])

    def _gather_uneven(self, parts: list[torch.Tensor], tensor: torch.Tensor) -> None:
        with torch.no_grad():
            parts[self.rank()].copy_(tensor)
        for rank, part in zip(self._ranks, parts, strict=True):
            collectives.broadcast_([part], rank, self._mesh)

    def allgather_coalesced(
        self, outputs: list[list[torch.Tensor]], tensors: list[torch.Tensor], opts: Any = None
    ) -> Any:
        """Gather several tensors; `outputs` has a list per member."""
        return self.allgather([list(column) for column in zip(*outputs, strict=True)], tensors, opts)

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Any:
        """Gather tensors into one."""
        _prepare([tensor])
        gathered = collectives.all_gather(tensor, 0, self._mesh)
        with torch.no_grad():
            output.copy_(gathered.view(output.shape))
        return _finished([output])

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], tensors: list[torch.Tensor], opts: Any = None
    ) -> Any:
        """Gather several tensors, each into one tensor."""
        for output, tensor in zip(outputs, tensors, strict=True):
            self.all_gather_single(output, tensor)
        return _finished(outputs)

    def gather(self, outputs: list[list[torch.Tensor]], tensors: list[torch.Tensor], opts: Any) -> Any:
        """Gather tensors at the root; `outputs` is empty elsewhere."""
        if self.rank() == opts.rootRank:
            return self.allgather(outputs, tensors)
        _prepare(tensors)
        collectives.all_gather(tensors[0].unsqueeze(0), 0, self._mesh)
        return _finished([])

    def scatter(self, outputs: list[torch.Tensor], tensors: list[list[torch.Tensor]], opts: Any) -> Any:
        """Send each member its tensor from the root's list."""
        _prepare(outputs)
        (output,) = outputs
        stacked = torch.empty((self.size(), *output.shape), dtype=output.dtype, device=output.device)
        if self.rank() == opts.rootRank:
            stacked = torch.stack(tensors[0])
        collectives.broadcast_([stacked], self._ranks[opts.rootRank], self._mesh)
        with torch.no_grad():
            output.copy_(stacked[self.rank()])
        return _finished(outputs)

    def reduce_scatter(
        self, outputs: list[torch.Tensor], tensors: list[list[torch.Tensor]], opts: Any
    ) -> Any:
        """Reduce lists of tensors; each member gets its tensor of the list."""
        for output, parts in zip(outputs, tensors, strict=True):
            if len({part.shape for part in parts}) == 1:
                self.reduce_scatter_single(output, torch.stack(parts), opts)
                continue
            _prepare(parts)
            reduce_type, scale = _reduce_type(opts.reduceOp, self.size())
            reduced = [part.detach().clone() for part in parts]
            collectives.all_reduce_(reduced, reduce_type, scale, self._mesh)
            with torch.no_grad():
                output.copy_(reduced[self.rank()])
        return _finished(outputs)

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any) -> Any:
        """Reduce a tensor; each member gets its part."""
        _prepare([tensor])
        reduce_type, scale = _reduce_type(opts.reduceOp, self.size())
        part = collectives.reduce_scatter(tensor, reduce_type, scale, 0, self._mesh)
        with torch.no_grad():
            output.copy_(part.view(output.shape))
        return _finished([output])

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], tensors: list[torch.Tensor], opts: Any
    ) -> Any:
        """Reduce several tensors; each member gets its part of each."""
        for output, tensor in zip(outputs, tensors, strict=True):
            self.reduce_scatter_single(output, tensor, opts)
        return _finished(outputs)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_sizes: list[int],
        input_sizes: list[int],
        opts: Any = None,
    ) -> Any:
        """Exchange parts of the first dimension: equal ones, or of these numbers of rows."""
        _prepare([tensor])
        with torch.no_grad():
            if output_sizes or input_sizes:
                sent = input_sizes or [len(tensor) // self.size()] * self.size()
                received = output_sizes or [len(output) // self.size()] * self.size()
                _check_sizes(sent, received)
                collectives.all_to_all_uneven_(output, tensor, received, sent, self._mesh)
            else:
                output.copy_(collectives.all_to_all(tensor, 0, 0, self._mesh).view(output.shape))
        return _finished([output])

    def alltoall(self, outputs: list[torch.Tensor], tensors: list[torch.Tensor], opts: Any = None) -> Any:
        """Exchange tensors of any shapes."""
        _prepare(tensors)
        sent, received = ([tensor.numel() for tensor in several] for several in (tensors, outputs))
        _check_sizes(sent, received)
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        joined = flat.new_empty(sum(received))
        collectives.all_to_all_uneven_(joined, flat, received, sent, self._mesh)
        with torch.no_grad():
            for output, part in zip(outputs, joined.split(received), strict=True):
                output.copy_(part.view(output.shape))
        return _finished(outputs)

    def barrier(self, opts: Any = None) -> Any:
        """Run the recorded operators and wait for all members."""
        api.engine().sync()
        with Observed(HostEvent.COLLECTIVE, "barrier", number=self.size()) if observers else nullcontext():
            worker_group.current().group(self._ranks).barrier()
        return _finished([])

    def send(self, tensors: list[torch.Tensor], target: int, tag: int = 0) -> Any:
        """Send a tensor to a member. The device `neuron` computes it at once: the other worker waits for it."""
        _prepare(tensors)
        collectives.send(tensors[0], self._ranks[target], tag)
        if device_name() != XLA and tensors[0].device.type == device_name():
            api.engine().sync(tensors[0].device.index, "send")
        return _finished(tensors)

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int = 0) -> Any:
        """Receive a tensor from a member, when the program waits for it."""
        waiting = self._receives.setdefault((source, tag), deque())
        waiting.append(tensors[0])
        workers_of_run = worker_group.current()
        timeout = workers_of_run.group(self._ranks).timeout
        request = workers_of_run.messages.request(self._ranks[source], tag, timeout)
        return _Receive(request, waiting)

    def _start_coalescing(self, device: torch.device) -> None:
        """Do nothing: the graph holds the collectives that follow anyway."""

    def _end_coalescing(self, device: torch.device) -> Any:
        """Return what a program waits for after several collectives."""
        return _finished([])

    def shutdown(self) -> None:
        """Do nothing: the connections end with the process."""

    # Older names of torch.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single
    abort = shutdown
