"""Registers of the engines' sequencers."""

from __future__ import annotations

from typing import Any

import numpy as np

from neurontools.nki.context import Record, running
from neurontools.nki.instructions.operands import reads, refuse
from neurontools.nki.objects import VirtualRegister
from neurontools.nki.tensor import NkiTensor


def register_alloc(x: Any = None) -> VirtualRegister:
    """Return a new register."""
    if isinstance(x, NkiTensor):
        register = VirtualRegister()
        register_load(register, x)
        return register
    return VirtualRegister(x)


def _need_register(opcode: str, argument: str, value: Any) -> VirtualRegister:
    if not isinstance(value, VirtualRegister):
        refuse(
            opcode,
            f"{argument} is a {type(value).__name__}, not a register",
            "make one with nisa.register_alloc",
        )
    return value


def register_move(dst: Any, src: Any) -> Record:
    """Set a register to a number or another register's value."""
    _need_register("register_move", "dst", dst).value = int(src)
    return running().issue("register_move", "sync", (), ())


def register_load(dst: Any, src: Any) -> Record:
    """Set a register to the only element of a tensor."""
    register = _need_register("register_load", "dst", dst)
    if not isinstance(src, NkiTensor) or src.size != 1:
        refuse("register_load", f"src has {getattr(src, 'size', 'no')} elements, must have one", "", src)
    register.value = int(src.read("src").reshape(-1)[0])
    return running().issue("register_load", "sync", reads(src), ())


def register_store(dst: Any, src: Any) -> Record:
    """Write a register's value to a tensor of one element."""
    register = _need_register("register_store", "src", src)
    if not isinstance(dst, NkiTensor) or dst.size != 1:
        refuse("register_store", f"dst has {getattr(dst, 'size', 'no')} elements, must have one", "", dst)
    dst.write(np.full(dst.shape, register.value, dtype=np.int64))
    return running().issue("register_store", "sync", (), reads(dst))
