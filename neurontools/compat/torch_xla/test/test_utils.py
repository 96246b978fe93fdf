"""torch_xla.test.test_utils: progress lines and TensorBoard files of training scripts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch

from neurontools.compat.unsupported import missing_names
from neurontools.xla.debugging import metrics
from neurontools.xla.distributed import workers

__getattr__ = missing_names(__name__)


def now(format: str = "%H:%M:%S") -> str:
    """Return the time of day."""
    return time.strftime(format)


def print_training_update(
    device: Any,
    step: int,
    loss: Any,
    rate: float,
    global_rate: float,
    epoch: int | None = None,
    summary_writer: Any = None,
) -> None:
    """Print a line on the progress of training, and write the rate as a summary.

    Args:
        device: of this worker.
        step: number of the step.
        loss: a number, or a tensor of one.
        rate: samples a second since the last line.
        global_rate: samples a second since the start.
        epoch: number of the epoch, if there are epochs.
        summary_writer: of `get_summary_writer`; None writes nothing.
    """
    value = loss.item() if isinstance(loss, torch.Tensor) else loss
    parts = [] if epoch is None else [f"Epoch={epoch}"]
    parts += [f"Step={step}", f"Loss={value:.5f}", f"Rate={rate:.2f}", f"GlobalRate={global_rate:.2f}"]
    _print_update("Training", device, parts)
    write_to_summary(summary_writer, dict_to_write={"examples/sec": rate})


def print_test_update(
    device: Any, accuracy: float | None, epoch: int | None = None, step: int | None = None
) -> None:
    """Print a line on the progress of an evaluation; `accuracy` is in percent."""
    named = (("Epoch", epoch), ("Step", step))
    parts = [f"{name}={value}" for name, value in named if value is not None]
    _print_update("Test", device, parts + ([] if accuracy is None else [f"Accuracy={accuracy:.2f}"]))


def get_summary_writer(logdir: str | None) -> Any:
    """Return a writer of TensorBoard files in the first worker, None in others or without a directory."""
    if not logdir or workers.rank():
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(log_dir=logdir)


def write_to_summary(
    summary_writer: Any,
    global_step: int | None = None,
    dict_to_write: Mapping[str, Any] | None = None,
    write_xla_metrics: bool = False,
) -> None:
    """Write numbers by name, with `write_xla_metrics` also the device's counters; None as writer writes nothing."""
    if summary_writer is None:
        return
    counters = (
        {name: metrics.counter_value(name) for name in metrics.counter_names()} if write_xla_metrics else {}
    )
    for name, value in {**(dict_to_write or {}), **counters}.items():
        summary_writer.add_scalar(name, value, global_step)


def close_summary_writer(summary_writer: Any) -> None:
    """Write the rest; nothing is written without a writer."""
    if summary_writer is not None:
        summary_writer.close()


def _print_update(kind: str, device: Any, parts: list[str]) -> None:
    print("|", kind, f"Device={device}/{workers.rank()}", *parts, f"Time={now()}", flush=True)
