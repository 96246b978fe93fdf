"""Random numbers: the states are the engines', the stream is ours (no document describes the chip's)."""

from __future__ import annotations

from typing import Any

import numpy as np

from neurontools.nki.constants import engine as engines
from neurontools.nki.context import Record, running
from neurontools.nki.instructions.operands import (
    GENERATION_3,
    GENERATION_4,
    PSUM,
    SBUF,
    check_tile,
    engine_name,
    needs_generation,
    reads,
    refuse,
    scalar,
)

_STATE_WORDS = {"gpsimd": 6, "vector": 24}


def _generator(unit: str) -> np.random.Generator:
    states = running().random
    if unit not in states:
        states[unit] = np.random.default_rng(0)
    return states[unit]


def uniform(unit: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return float32 numbers of [0, 1) from an engine's stream."""
    return _generator(unit).random(shape, dtype=np.float32)


def rng(dst: Any, engine: Any = engines.vector, name: str | None = None) -> Record:
    """Write random bits."""
    check_tile("rng", "dst", dst)
    unit = engine_name("rng", engine, engines.vector, engines.gpsimd) or "vector"
    if unit == "gpsimd":
        needs_generation("rng", GENERATION_3, "the gpsimd engine's generator")
        if dst.buffer is PSUM:
            refuse("rng", "the gpsimd engine cannot access PSUM", "", dst)
    if "int" not in dst.dtype:
        refuse(
            "rng",
            f"dst is {dst.dtype}, must be an integer type",
            "divide by the largest integer for numbers of 0 to 1",
            dst,
        )
    bits = _generator(unit).integers(0, 1 << 32, dst.shape, dtype=np.uint32)
    dst.write(bits.astype(dst.storage.held_dtype(dst.dtype)))
    return running().issue("rng", unit, (), reads(dst), name)


def rand2(dst: Any, min: Any, max: Any, name: str | None = None) -> Record:  # noqa: A002
    """Write uniform numbers of a range (trn3)."""
    needs_generation("rand2", GENERATION_4)
    check_tile("rand2", "dst", dst)
    low, high = scalar("rand2", "min", min, dst), scalar("rand2", "max", max, dst)
    dst.write((low + (high - low) * uniform("vector", dst.shape)).astype(np.float32))
    return running().issue("rand2", "vector", reads(min, max), reads(dst), name)


def _seed(unit: str, values: np.ndarray) -> None:
    words = np.ascontiguousarray(values).view(np.uint8).reshape(-1).view(np.uint32)
    running().random[unit] = np.random.default_rng([int(word) for word in words])
    running().random[unit, "state"] = values.copy()


def set_rng_seed(src_seeds: Any, name: str | None = None) -> Record:
    """Seed the Vector engine's stream with a 32-bit number."""
    check_tile("set_rng_seed", "src_seeds", src_seeds)
    if src_seeds.size != 1 or src_seeds.itemsize != 4:
        refuse(
            "set_rng_seed",
            f"src_seeds is {src_seeds.shape} {src_seeds.dtype}, must be one 32-bit number",
            "",
            src_seeds,
        )
    _seed("vector", src_seeds.read("src_seeds"))
    return running().issue("set_rng_seed", "vector", reads(src_seeds), (), name)


def rand_set_state(src_seeds: Any, engine: Any = engines.gpsimd, name: str | None = None) -> Record:
    """Set the state of an engine's stream."""
    opcode = "rand_set_state"
    needs_generation(opcode, GENERATION_3)
    check_tile(opcode, "src_seeds", src_seeds, (SBUF,))
    unit = _state_engine(opcode, engine, src_seeds)
    _seed(unit, src_seeds.read("src_seeds"))
    return running().issue(opcode, unit, reads(src_seeds), (), name)


def _state_engine(opcode: str, engine: Any, tile: Any) -> str:
    unit = engine_name(opcode, engine, engines.gpsimd, engines.vector) or "gpsimd"
    if unit == "vector":
        needs_generation(opcode, GENERATION_4, "the vector engine's state")
    if tile.dtype != "uint32" or tile.free_size != _STATE_WORDS[unit]:
        refuse(
            opcode,
            f"the state of the {unit} engine is {_STATE_WORDS[unit]} of uint32 a partition, not {tile.free_size} of {tile.dtype}",
            "",
            tile,
        )
    return unit


def rand_get_state(dst: Any, engine: Any = engines.gpsimd, name: str | None = None) -> Record:
    """Write the state of an engine's stream."""
    opcode = "rand_get_state"
    needs_generation(opcode, GENERATION_3)
    check_tile(opcode, "dst", dst)
    unit = _state_engine(opcode, engine, dst)
    state = running().random.get((unit, "state"))
    if state is None or state.size != dst.size:
        state = _generator(unit).integers(0, 1 << 32, dst.shape, dtype=np.uint32)
    dst.write(state)
    return running().issue(opcode, unit, (), reads(dst), name)
