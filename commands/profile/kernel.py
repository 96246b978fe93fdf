"""neuron-profile kernel: the modelled time, engines, memory and warnings of an NKI kernel."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from typing import TYPE_CHECKING

from neurontools.base.text import printable
from neurontools.commands import console
from neurontools.commands.parsing import add_json, add_verb

if TYPE_CHECKING:
    import argparse

    from neurontools.commands.parsing import Verbs

_PURPOSE = "run an NKI kernel on random arrays and print its modelled time, engines, memory and warnings"
_EXAMPLES = """The kernel runs on the simulated core, with arrays of normally distributed numbers (integers: 0 to 7) that
are the same in every run. Types: bf16, fp16, fp32, fp8, i32, or names of NKI such as float8_e5m2; default fp32.
All times are modelled.

examples:
  neuron-profile kernel add.py::add --shape a=128x512:bf16 --shape b=128x512:bf16
  neuron-profile kernel norm.py::rms_norm --shape x=4096x2048:bf16 --arg eps=1e-5 --target trn2
  neuron-profile kernel matmul.py::matmul --shape a=1024x1024 --shape b=1024x1024 --lnc 2 --json

exit codes: 0 success, 1 the kernel does what the device refuses, 2 usage error, 130 interrupted
"""


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(verbs, "kernel", _PURPOSE, _run)
    parser.epilog = _EXAMPLES
    add_argument = parser.add_argument
    add_argument(
        "source", metavar="FILE.py::NAME", help="file and kernel; the name may be left out if there is one"
    )
    add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME=SIZES:TYPE",
        help="array argument, such as a=128x512:bf16; may be repeated",
    )
    add_argument(
        "--arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="other argument: a Python literal or a string",
    )
    add_argument(
        "--target", metavar="NAME", help="device: trn1, inf2, trn2 or trn3 (default: as nki chooses it)"
    )
    add_argument(
        "--lnc", type=int, choices=(1, 2), default=1, help="physical cores of the launch (default: 1)"
    )
    add_argument("--output", metavar="DIR", help="also write a profile to DIR, for view, summary and advise")
    add_json(parser, "print JSON (base units)")


def _run(arguments: argparse.Namespace) -> int:
    from neurontools.nki.kernel_file import launch_kernel, parse_array, parse_scalar
    from neurontools.nki.report import report, to_json, to_text

    arrays = [parse_array(text) for text in arguments.shape]
    scalars = dict(parse_scalar(text) for text in arguments.arg)
    start_ns = time.monotonic_ns()
    launch = launch_kernel(arguments.source, arrays, scalars, arguments.target or "", arguments.lnc)
    if arguments.output:
        from neurontools.nki.profile import save_profile

        save_profile(arguments.output, launch, start_ns, time.monotonic_ns())
        console.notice(
            f"profile in {printable(arguments.output)}; next: neuron-profile view {printable(shlex.quote(arguments.output))}"
        )
    result = report(launch)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    return console.show(arguments.json, lambda: to_json(result), lambda: to_text(result, width))
