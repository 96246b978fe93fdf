"""The floating-point formats of NeuronCores, and rounding of float32 values to them.

Sources: AWS Neuron documentation, "Data Types" (bits of each format), "nki.language" (tfloat32, float8_e4m3, float8_e5m2,
float8_e4m3fn), "KV Cache Quantization" of vllm-neuron (240 is the largest float8_e4m3 up to Trn2, 448 the largest
float8_e4m3fn), "NeuronCore-v3 Architecture" (the exponent bias of cFP8 is adjustable), "Neuron Rounding Modes" (both modes), "nki.isa.range_select" (a number that is too
large for FP16, BF16 or FP8 becomes an infinity).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from neurontools.errors import UsageError

_CFP8_MANTISSA_BITS = {2: "e5m2", 3: "e4m3", 4: "e3m4"}


@dataclass(frozen=True, slots=True)
class Format:
    """A binary floating-point format with a sign bit, subnormal numbers and NaN.

    Args:
        name: the name in the AWS documentation, such as fp8_e4m3.
        exponent_bits: width of the exponent.
        mantissa_bits: width of the fraction, without the implicit bit.
        bias: the number subtracted from a stored exponent.
        has_infinities: whether the largest exponent is reserved for infinities and NaNs, as in IEEE 754. If not, only
            the pattern of all ones is NaN, and a number that is too large becomes NaN.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    has_infinities: bool = True

    @property
    def bits(self) -> int:
        """The width of a number in bits."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def min_exponent(self) -> int:
        """The exponent of the smallest normal number; subnormal numbers have it, too."""
        return 1 - self.bias

    @property
    def max_exponent(self) -> int:
        """The exponent of the largest finite number."""
        return (1 << self.exponent_bits) - 1 - self.bias - self.has_infinities

    @property
    def largest(self) -> float:
        """The largest finite number."""
        steps = (2 << self.mantissa_bits) - 1 - (not self.has_infinities)
        return steps * 2.0 ** (self.max_exponent - self.mantissa_bits)

    @property
    def smallest(self) -> float:
        """The smallest positive number."""
        return 2.0 ** (self.min_exponent - self.mantissa_bits)


FP32 = Format("fp32", 8, 23, 127)
TF32 = Format("tf32", 8, 10, 127)
BF16 = Format("bf16", 8, 7, 127)
FP16 = Format("fp16", 5, 10, 15)
FP8_E5M2 = Format("fp8_e5m2", 5, 2, 15)
FP8_E4M3 = Format("fp8_e4m3", 4, 3, 7)
FP8_E3M4 = Format("fp8_e3m4", 3, 4, 3)
FP8_E4M3FN = Format("fp8_e4m3fn", 4, 3, 7, has_infinities=False)

FORMATS = {form.name: form for form in (FP32, TF32, BF16, FP16, FP8_E5M2, FP8_E4M3, FP8_E3M4, FP8_E4M3FN)}


def cfp8(mantissa_bits: int, bias: int | None = None) -> Format:
    """Return a member of cFP8, the 8-bit format of configurable range and precision.

    Args:
        mantissa_bits: 2 (e5m2), 3 (e4m3) or 4 (e3m4).
        bias: exponent bias; None for that of IEEE 754. NeuronCore-v3 can adjust it.

    Raises:
        UsageError: there is no such member, or float32 cannot hold its numbers.
    """
    if mantissa_bits not in _CFP8_MANTISSA_BITS:
        raise UsageError(f"invalid mantissa of cFP8: {mantissa_bits} bits", "use 2, 3 or 4")
    exponent_bits = 7 - mantissa_bits
    ieee_bias = (1 << (exponent_bits - 1)) - 1
    made = Format(
        f"cfp8_{_CFP8_MANTISSA_BITS[mantissa_bits]}" + ("" if bias in {None, ieee_bias} else f"_bias{bias}"),
        exponent_bits,
        mantissa_bits,
        ieee_bias if bias is None else bias,
    )
    if made.max_exponent > FP32.max_exponent or made.min_exponent < FP32.min_exponent:
        raise UsageError(
            f"invalid exponent bias of cFP8: {bias}", "choose one whose numbers are normal numbers of float32"
        )
    return made


_NATIVE = {BF16: torch.bfloat16, FP16: torch.float16}
_FLOAT32_BIAS, _FLOAT32_MANTISSA_BITS, _MAGNITUDE = 127, 23, 0x7FFFFFFF
_FLOAT64_BIAS, _FLOAT64_MANTISSA_BITS = 1023, 52
_RANDOM_BITS = 32


def round_to(values: torch.Tensor, form: Format, generator: torch.Generator | None = None) -> torch.Tensor:
    """Return float32 values rounded to a format, as float32 with the same strides.

    Args:
        values: float32.
        form: the format. Numbers beyond its range become infinities, or NaN if it has no infinities.
        generator: source of the random bits of stochastic rounding. This rounds to one of the two neighbouring numbers;
            the probability of each is proportional to the distance from the other, and the neighbour above the largest
            finite number is infinity. None rounds to nearest, with ties to even.
    """
    if form == FP32:
        return values
    if generator is None and form in _NATIVE:
        return values.to(_NATIVE[form]).float()
    if (form.exponent_bits, form.bias) == (FP32.exponent_bits, FP32.bias):
        rounded = _drop_bits(values, _FLOAT32_MANTISSA_BITS - form.mantissa_bits, generator)
    else:
        rounded = _round_steps(values, form, generator)
    if rounded.stride() == values.stride():
        return rounded
    return torch.empty_like(values).copy_(rounded)


def round_number(value: float, form: Format) -> float:
    """Return a number rounded to the nearest number of a format."""
    return float(round_to(torch.tensor(value, dtype=torch.float32), form).item())


def encode(values: torch.Tensor, form: Format) -> torch.Tensor:
    """Return the bit patterns, as int32, of float32 values that a format of at most 16 bits represents exactly."""
    exponent = _exponents(values, form)
    steps = (values.double().abs() * _power_of_two(form.mantissa_bits - exponent)).nan_to_num(0, 0)
    codes = steps.int() + (exponent - form.min_exponent << form.mantissa_bits)
    all_ones = (1 << form.bits - 1) - 1
    if form.has_infinities:
        codes = torch.where(values.isinf(), all_ones ^ (1 << form.mantissa_bits) - 1, codes)
    codes = torch.where(values.isnan(), all_ones, codes)
    return codes | torch.signbit(values).int() << form.bits - 1


def decode(codes: torch.Tensor, form: Format) -> torch.Tensor:
    """Return the values, as float32, of the bit patterns of a format of at most 16 bits."""
    codes = codes.int()
    magnitude = codes & (1 << form.bits - 1) - 1
    exponent = magnitude >> form.mantissa_bits
    fraction = magnitude & (1 << form.mantissa_bits) - 1
    is_normal = exponent > 0
    steps = fraction + (is_normal.int() << form.mantissa_bits)
    scale = _power_of_two(exponent - is_normal.int() + form.min_exponent - form.mantissa_bits)
    values = (steps * scale).float()
    if form.has_infinities:
        special = torch.where(fraction == 0, torch.inf, torch.nan)
        values = torch.where(exponent == (1 << form.exponent_bits) - 1, special, values)
    else:
        values = values.masked_fill(magnitude == (1 << form.bits - 1) - 1, torch.nan)
    return torch.where(codes >> form.bits - 1 != 0, -values, values)


def _drop_bits(values: torch.Tensor, count: int, generator: torch.Generator | None) -> torch.Tensor:
    """Round to a format that differs from float32 only in the mantissa; a carry into the exponent is correct."""
    bits = values.view(torch.int32)
    kept = -1 << count
    if generator is None:
        added = (bits >> count & 1) + ((1 << count - 1) - 1)
    else:
        added = torch.randint(1 << count, values.shape, dtype=torch.int32, generator=generator)
    rounded = (bits + added & kept).view(torch.float32)
    return torch.where(values.isnan(), values, rounded)


def _round_steps(values: torch.Tensor, form: Format, generator: torch.Generator | None) -> torch.Tensor:
    """Round to a multiple of the format's step at each value's exponent; float64 is exact for this."""
    scale = _power_of_two(_exponents(values, form) - form.mantissa_bits)
    steps = values.double() / scale
    if generator is None:
        whole = steps.round()
    else:
        below = steps.floor()
        drawn = torch.randint(1 << _RANDOM_BITS, values.shape, generator=generator)
        whole = below + (drawn * 2.0**-_RANDOM_BITS < steps - below)
    rounded = whole * scale
    outside = torch.inf if form.has_infinities else torch.nan
    rounded = torch.where(
        rounded.abs() > form.largest, torch.copysign(torch.tensor(outside), values), rounded
    )
    return torch.copysign(rounded.float(), values)


def _exponents(values: torch.Tensor, form: Format) -> torch.Tensor:
    bits = values.view(torch.int32) & _MAGNITUDE
    exponents = (bits >> _FLOAT32_MANTISSA_BITS) - _FLOAT32_BIAS
    return exponents.clamp(form.min_exponent, form.max_exponent)


def _power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    return (exponent.long() + _FLOAT64_BIAS << _FLOAT64_MANTISSA_BITS).view(torch.float64)
