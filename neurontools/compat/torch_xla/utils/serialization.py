"""torch_xla.utils.serialization (`xser`): checkpoints with one file per tensor."""

from __future__ import annotations

import os
import shutil
from typing import Any

import torch

from neurontools.compat import structures
from neurontools.compat.unsupported import missing_names
from neurontools.xla import api
from neurontools.xla.distributed import workers

__getattr__ = missing_names(__name__)


class TensorReference:
    """Stands for a tensor of a checkpoint: file `tensor_<tid>.pt`."""

    def __init__(self, tid: int) -> None:
        self.tid = tid


def save(data: Any, path: str, master_only: bool = True, global_master: bool = False) -> None:
    """Save a structure at `path`, and its device tensors, on the CPU, in the directory `path`.tensors.

    Args:
        data: any nested structure.
        path: file; with `master_only=False` each process needs another one.
        master_only: whether only the first process writes.
        global_master: the first process of the run, not of each machine.
    """
    api.engine().sync()
    rank = workers.rank() if global_master else workers.local_rank()
    if master_only and rank != 0:
        return
    folder = _folder(path)
    if os.path.isdir(folder):
        shutil.rmtree(folder)
    os.mkdir(folder)
    count = 0

    def store(tensor: torch.Tensor) -> TensorReference:
        nonlocal count
        torch.save(tensor.cpu(), _file(folder, count))
        count += 1
        return TensorReference(count - 1)

    torch.save(structures.replace(data, structures.is_device_tensor, store), path)


def load(path: str) -> Any:
    """Return what `save` stored, with its tensors on the CPU."""
    folder = _folder(path)
    return structures.replace(
        torch.load(path, weights_only=False),
        lambda item: isinstance(item, TensorReference),
        lambda reference: torch.load(_file(folder, reference.tid), weights_only=True),
    )


def _folder(path: str) -> str:
    return f"{path}.tensors"


def _file(folder: str, number: int) -> str:
    return os.path.join(folder, f"tensor_{number}.pt")
