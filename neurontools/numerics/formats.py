"""The floating-point formats of NeuronCores, as data.

Sources: AWS Neuron documentation, "Data Types" (bits of each format), "nki.language" (tfloat32, float8_e4m3, float8_e5m2,
float8_e4m3fn), "KV Cache Quantization" of vllm-neuron (240 is the largest float8_e4m3 up to Trn2, 448 the largest
float8_e4m3fn), "NeuronCore-v3 Architecture" (the exponent bias of cFP8 is adjustable).
"""

from __future__ import annotations

from dataclasses import dataclass

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
