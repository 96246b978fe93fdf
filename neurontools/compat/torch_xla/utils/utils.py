"""torch_xla.utils.utils (`xu`): synthetic data, timers and small functions of training scripts."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypeVar

import torch

from neurontools.compat.structures import replace as for_each_instance_rewrite
from neurontools.compat.structures import visit as for_each_instance
from neurontools.compat.unsupported import missing_names

__all__ = ["for_each_instance", "for_each_instance_rewrite"]
T = TypeVar("T")


__getattr__ = missing_names(__name__)


class SampleGenerator:
    """A data loader that returns the same batch `sample_count` times."""

    def __init__(self, data: Any, sample_count: int) -> None:
        self._data = data
        self._sample_count = sample_count
        self._count = 0

    def __iter__(self) -> SampleGenerator:
        return SampleGenerator(self._data, self._sample_count)

    def __len__(self) -> int:
        return self._sample_count

    def __next__(self) -> Any:
        if self._count >= self._sample_count:
            raise StopIteration
        self._count += 1
        return self._data

    next = __next__


class FnDataGenerator:
    """A data loader of generated batches and what a function makes of them.

    Args:
        func: gives the target of a batch.
        batch_size: first dimension of a batch.
        gen_tensor: such as `torch.randn`.
        dims: further dimensions, [1] by default.
        count: number of batches.
    """

    def __init__(
        self,
        func: Callable[[torch.Tensor], Any],
        batch_size: int,
        gen_tensor: Callable[..., torch.Tensor],
        dims: Iterable[int] | None = None,
        count: int = 1,
    ) -> None:
        self._func = func
        self._shape = (batch_size, *(dims or (1,)))
        self._gen_tensor = gen_tensor
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[torch.Tensor, Any]]:
        for _ in range(self._count):
            data = self._gen_tensor(*self._shape)
            yield data, self._func(data)


class LazyProperty:
    """A value that a function computes at first use."""

    def __init__(self, gen_fn: Callable[[], Any]) -> None:
        self._gen_fn: Callable[[], Any] | None = gen_fn
        self._value: Any = None

    @property
    def value(self) -> Any:
        """The value."""
        if self._gen_fn is not None:
            self._value, self._gen_fn = self._gen_fn(), None
        return self._value


class TmpFolder:
    """A temporary directory, `name`, that goes away with this object."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.name = self._folder.name

    def __del__(self) -> None:
        self._folder.cleanup()


class TimedScope:
    """Prints how long a block took, in milliseconds; nothing after `set_error`."""

    def __init__(self, msg: str = "", printfn: Callable[[str], Any] | None = None) -> None:
        self._message = msg
        self._print = printfn or eprint
        self._error: Any = None
        self._start = 0.0

    def __enter__(self) -> Self:
        self._start = time.time()
        return self

    def __exit__(self, *error: object) -> None:
        if self._error is None:
            self._print(f"{self._message}{1000 * (time.time() - self._start):.3f}ms")

    def set_error(self, error: Any) -> None:
        """Mark the block as failed."""
        self._error = error


def as_list(t: Any) -> Any:
    """Return a list or tuple as it is, anything else in a list."""
    return t if isinstance(t, list | tuple) else [t]


def getenv_as(name: str, type: Callable[[Any], T], defval: T | None = None) -> T | None:
    """Return an environment variable converted to a type; a bool is a number."""
    value = os.environ.get(name)
    if value is None:
        return defval
    return type(int(value)) if type is bool else type(value)


def check_env_flag(name: str, default: str = "") -> bool:
    """Return whether an environment variable is `true` or a positive number."""
    flag = os.environ.get(name, default)
    return flag == "true" or (flag.isdecimal() and int(flag) > 0)


def shape(inputs: Any) -> list[int]:
    """Return the lengths of nested lists, outermost first.

    Raises:
        ValueError: lists of one level differ in length.
    """
    if not isinstance(inputs, list | tuple):
        return []
    inner = [shape(item) for item in inputs]
    if any(item != inner[0] for item in inner):
        raise ValueError("lists of one level differ in length")
    return [len(inputs), *(inner[0] if inner else [])]


def flatten_nested_tuple(inputs: Any) -> tuple[Any, ...]:
    """Return the leaves of nested lists and tuples."""
    if not isinstance(inputs, list | tuple):
        return (inputs,)
    return tuple(leaf for item in inputs for leaf in flatten_nested_tuple(item))


def list_copy_append(ilist: Sequence[T], item: T) -> list[T]:
    """Return a list with one more item."""
    return [*ilist, item]


def null_print(*args: Any, **kwargs: Any) -> None:
    """Print nothing."""


def eprint(*args: Any, **kwargs: Any) -> None:
    """Print on stderr."""
    print(*args, file=sys.stderr, **kwargs)


def get_print_fn(debug: int | None = None) -> Callable[..., None]:
    """Return `eprint` where DEBUG is set, else `null_print`."""
    enabled = int(os.environ.get("DEBUG", "0")) if debug is None else debug
    return eprint if enabled else null_print


def timed(fn: Callable[[], T], msg: str = "", printfn: Callable[..., Any] | None = None) -> T:
    """Call a function and print how long it took, in milliseconds."""
    with TimedScope(msg, printfn or get_print_fn()):
        return fn()


def get_free_tcp_ports(n: int = 1) -> list[int]:
    """Return ports that were free at the call."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for opened in sockets:
            opened.bind(("", 0))
        return [opened.getsockname()[1] for opened in sockets]


def parallel_work(num_workers: int, fn: Callable[..., T], *args: Iterable[Any]) -> list[T]:
    """Map a function over iterables in threads; raises what a call raised."""
    with ThreadPoolExecutor(num_workers) as executor:
        return list(executor.map(fn, *args))
