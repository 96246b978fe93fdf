"""The rounding settings of `NEURONTOOLS_NUMERICS=device`, from the environment, the compiler flags and the device.

Sources: AWS Neuron documentation, "PyTorch NeuronX Environment Variables" (XLA_USE_BF16, XLA_DOWNCAST_BF16,
NEURON_RT_STOCHASTIC_ROUNDING_EN and _SEED), NCC_EVRF051 (float8_e4m3fn before Trn3); torch_xla, csrc/dtype.cpp (double is
float on Neuron devices).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

import torch

from neurontools import env
from neurontools.compiler.options import downcast_variable, read_flags
from neurontools.errors import UsageError
from neurontools.numerics import BF16, FORMATS, FP8_E4M3, FP8_E4M3FN, FP8_E5M2, FP16, FP32, Format

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from neurontools.machine.instances.catalogue import DeviceType


_log = logging.getLogger("neurontools.xla")
_ROUNDING = "NEURON_RT_STOCHASTIC_ROUNDING_EN"
_SEED = "NEURON_RT_STOCHASTIC_ROUNDING_SEED"
_SEED_LIMIT = 1 << 32
_SWITCHES = {"0": False, "false": False, "1": True, "true": True}


class CastMode(StrEnum):
    """Which float32 operators `--auto-cast` casts."""

    NONE = "none"
    MATMULT = "matmult"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class NumericsSettings:
    """How results are rounded.

    Args:
        stored: the format in which the device stores each of torch's types.
        cast_mode: which float32 operators are cast.
        cast_form: the format they are cast to; None if none are cast.
        is_stochastic: whether rounding is stochastic instead of to nearest.
        seed: seed of stochastic rounding, the same on every core.
    """

    stored: Mapping[torch.dtype, Format]
    cast_mode: CastMode = CastMode.NONE
    cast_form: Format | None = None
    is_stochastic: bool = False
    seed: int = 0

    def with_flags(self, flags: Sequence[str], device: DeviceType) -> NumericsSettings:
        """Return these settings with the casts of different compiler flags.

        Raises:
            CompileError: a flag has an invalid value.
        """
        options = read_flags(flags, device)
        mode = CastMode(options.auto_cast)
        form = None if mode is CastMode.NONE else FORMATS[options.auto_cast_type]
        return replace(self, cast_mode=mode, cast_form=form)


def read_numerics(
    environ: Mapping[str, str], flags: Sequence[str], device: DeviceType
) -> NumericsSettings | None:
    """Return the settings of an environment; None if results are those of the CPU.

    Args:
        environ: the environment.
        flags: compiler flags.
        device: the device that computes.

    Raises:
        UsageError: a variable has an invalid value.
        CompileError: a flag has an invalid value.
    """
    variable = downcast_variable(environ)
    if not env.numerics_are_device(environ):
        if variable:
            _log.warning(
                "%s has no effect: results are those of the CPU; set %s=device for those of the device",
                variable,
                env.NUMERICS,
            )
        return None
    settings = NumericsSettings(
        stored=stored_formats(device, variable),
        is_stochastic=_is_stochastic(environ, default=bool(variable)),
        seed=_seed(environ),
    )
    return settings.with_flags(flags, device)


def stored_formats(device: DeviceType, variable: str = "") -> Mapping[torch.dtype, Format]:
    """Return the format in which a device stores each of torch's types.

    Args:
        device: the device.
        variable: XLA_USE_BF16 or XLA_DOWNCAST_BF16, whichever is set.
    """
    return {
        torch.float32: BF16 if variable else FP32,
        torch.float64: BF16 if variable == "XLA_USE_BF16" else FP32,
        torch.bfloat16: BF16,
        torch.float16: FP16,
        torch.float8_e5m2: FP8_E5M2,
        torch.float8_e4m3fn: FP8_E4M3FN if "e4m3fn" in device.features else FP8_E4M3,
    }


def _is_stochastic(environ: Mapping[str, str], *, default: bool) -> bool:
    text = environ.get(_ROUNDING, "")
    if not text:
        return default
    if text.lower() not in _SWITCHES:
        raise UsageError(f"invalid {_ROUNDING} {text!r}: expected 0 or 1", f"correct {_ROUNDING}")
    return _SWITCHES[text.lower()]


def _seed(environ: Mapping[str, str]) -> int:
    text = environ.get(_SEED, "") or "0"
    if not (text.isascii() and text.isdigit() and int(text) < _SEED_LIMIT):
        raise UsageError(
            f"invalid {_SEED} {text!r}: expected a number from 0 to {_SEED_LIMIT - 1}", f"correct {_SEED}"
        )
    return int(text)
