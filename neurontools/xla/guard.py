"""The dispatcher state in which graphs run on the host: plain CPU kernels, nothing that watches the caller's code."""

# ruff: noqa: SLF001
# Torch's private API.

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

_KEYS = torch._C.DispatchKey
_WATCHERS = torch._C.DispatchKeySet(_KEYS.ADInplaceOrView)
for _key in (_KEYS.AutogradCPU, _KEYS.AutogradOther, _KEYS.AutocastCPU, _KEYS.AutogradPrivateUse1):
    _WATCHERS = _WATCHERS.add(_key)


def host_execution() -> Any:
    """Return a context in which CPU operators skip autograd, view tracking and autocast."""
    if torch.is_inference_mode_enabled():
        return _outside_inference()
    return torch._C._ExcludeDispatchKeyGuard(_WATCHERS)


@contextmanager
def _outside_inference() -> Iterator[None]:
    with torch.inference_mode(mode=False), torch._C._ExcludeDispatchKeyGuard(_WATCHERS):
        yield
