"""The compiler's version and flags: documented flags are checked and applied, others are kept and ignored.

Source: AWS Neuron documentation, "Neuron Compiler CLI Reference Guide (neuronx-cc)".

The version has the format of the real compiler. The part before the plus sign names the release whose interface is
followed (flags, cache layout). The part after it is a git hash in the real compiler; here it is `5eed` and a revision,
which changes whenever equal graphs get other NEFFs, so such NEFFs are never in the same cache directory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from neurontools.machine.instances.catalogue import DeviceType

INTERFACE_VERSION = "2.16.372.0"
REVISION = 2
COMMIT_PREFIX = "5eed"
COMPILER_VERSION = f"{INTERFACE_VERSION}+{COMMIT_PREFIX}{REVISION:04x}"
BUILD_VERSION = f"neurontools simulated compiler {COMPILER_VERSION}"

_CHOICES: dict[str, tuple[str, ...]] = {
    "--target": (),  # the names in the catalogue
    "--model-type": ("generic", "transformer", "unet-inference", "cnn-training"),
    "--auto-cast": ("none", "matmult", "all"),
    "--auto-cast-type": ("bf16", "fp16", "tf32", "fp8_e4m3"),
    "--distribution-strategy": ("llm-training", "nemo", "fsdp"),
    "--optlevel": ("1", "2", "3"),
    "--logical-nc-config": ("1", "2"),
}
_ALIASES = {"-O": "--optlevel", "-lnc": "--logical-nc-config", "--lnc": "--logical-nc-config"}
_OF_THE_DEVICE = ("--target", "--logical-nc-config", "--lnc", "-lnc")
_DOWNCASTS = ("XLA_USE_BF16", "XLA_DOWNCAST_BF16")
_CAST_TYPES = {"bf16": "bf16", "fp16": "fp16", "tf32": "tf32", "fp8_e4m3": "cfp8"}


class CompileError(NeuronToolsError, RuntimeError):
    """The compiler rejects a graph or its flags. `code` is the documented error code, such as NCC_EVRF004.

    A RuntimeError too: torch_xla raises that for a failed compile.
    """

    def __init__(self, code: str, text: str, remedy: str = "") -> None:
        super().__init__(f"[{code}] {text}", remedy)
        self.code = code


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """Flags with an effect.

    Args:
        lnc: physical cores per logical core.
        auto_cast: which float32 operators are cast: none, matmult or all.
        auto_cast_type: what they are cast to: bf16, fp16, tf32 or fp8_e4m3.
    """

    lnc: int
    auto_cast: str
    auto_cast_type: str

    @property
    def matmul_dtype(self) -> str | None:
        """The type, in the cost model's terms, that float32 matrix products are cast to, or None."""
        return None if self.auto_cast == "none" else _CAST_TYPES[self.auto_cast_type]


def target_of(device: DeviceType) -> str:
    """Return the compiler's name of a device: trn1, inf2, ..."""
    return device.targets[0]


def device_of(flags: Sequence[str]) -> DeviceType:
    """Return the device that flags with a `--target` compile for.

    Raises:
        CompileError: NCC_EARG001 without a target, or for an unknown target.
    """
    from neurontools.machine.instances import catalogue

    target = flag_value(flags, "--target").lower()
    for device in catalogue.devices():
        if target in device.targets:
            return device
    raise CompileError(
        "NCC_EARG001", f"argument --target: unknown device {target!r}", "extract the graph again"
    )


def read_flags(flags: Sequence[str], device: DeviceType) -> CompileOptions:
    """Parse compiler flags for a device.

    Raises:
        CompileError: NCC_EARG001 for an invalid value of a documented flag.
    """
    from neurontools.machine.instances import catalogue

    given = _values(flags)
    for flag, value in given.items():
        choices = _CHOICES[flag] or sorted(name for device in catalogue.devices() for name in device.targets)
        if value.lower() not in choices:
            raise CompileError(
                "NCC_EARG001",
                f"argument {flag}: invalid choice: {value!r} (choose from {', '.join(choices)})",
                "correct NEURON_CC_FLAGS",
            )
    lnc = int(given.get("--logical-nc-config", device.lnc_default))
    if lnc not in device.lnc_choices:
        raise CompileError(
            "NCC_EARG001",
            f"argument --logical-nc-config: {lnc} is not supported by {device.name}",
            "correct NEURON_CC_FLAGS or NEURON_LOGICAL_NC_CONFIG",
        )
    auto_cast = given.get("--auto-cast", "none").lower()
    return CompileOptions(lnc, auto_cast, given.get("--auto-cast-type", "bf16").lower())


def flags_for(device: DeviceType, lnc: int, flags: Sequence[str]) -> tuple[str, ...]:
    """Return flags with another target and another size of a logical core."""
    kept = (flag for flag in flags if not flag.startswith(_OF_THE_DEVICE))
    return f"--target={target_of(device)}", f"--logical-nc-config={lnc}", *kept


def downcast_variable(environ: Mapping[str, str]) -> str:
    """Return which of torch_xla's variables makes float32 bfloat16 on the device, "" if none does.

    Source: torch_xla, csrc/dtype.cpp.
    """
    set_ones = (name for name in _DOWNCASTS if environ.get(name, "").lower() in {"1", "true"})
    return next(set_ones, "")


def names_flag(flags: Sequence[str], flag: str) -> bool:
    """Return whether a documented flag is given, in any spelling."""
    return flag in _values(flags)


def flag_value(flags: Sequence[str], flag: str) -> str:
    """Return the value of a documented flag, "" if it is not given."""
    return _values(flags).get(flag, "")


def _values(flags: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    pending = ""
    for word in flags:
        if pending:
            found[pending], pending = word, ""
            continue
        name, equals, value = word.partition("=")
        if name.startswith("-O") and name[2:].isdigit():
            name, equals, value = "-O", "=", name[2:]
        name = _ALIASES.get(name, name)
        if name not in _CHOICES:
            continue
        if equals:
            found[name] = value
        else:
            pending = name
    if pending:
        found[pending] = ""
    return found
