"""neuron-profile inspect: run a program with profiling, as the real tool does."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from neurontools.commands.parsing import add_verb
from neurontools.commands.profile.options import DEFAULT_DIRECTORY

if TYPE_CHECKING:
    from neurontools.commands.parsing import Verbs


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(verbs, "inspect", "run a program with profiling, like neuron-run --profile", _inspect)
    parser.add_argument(
        "-o",
        "--output-dir",
        default=DEFAULT_DIRECTORY,
        metavar="DIR",
        help="directory for the profile (default: %(default)s)",
    )
    parser.add_argument(
        "-n",
        "--num-trace-events",
        type=int,
        metavar="N",
        help="events to keep per NeuronCore; the oldest are dropped (default: 1000000)",
    )
    parser.add_argument(
        "--steps", metavar="FIRST-LAST", help="profile only these training steps, such as 10-20"
    )
    parser.add_argument("--stacks", action="store_true", help="also record the program's call stacks")
    for name in ("--capture-system-profiles", "--capture-device-profiles"):
        parser.add_argument(name, action="store_true", help="accepted; both are always captured")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="PROGRAM [ARG ...]")


def _inspect(arguments: argparse.Namespace) -> int:
    from neurontools.compat import launch
    from neurontools.errors import UsageError
    from neurontools.profiler.capture.settings import parse_steps

    if not arguments.command:
        raise UsageError("no program given", "neuron-profile inspect -o DIR python train.py")
    if arguments.num_trace_events is not None and arguments.num_trace_events < 1:
        raise UsageError("--num-trace-events is not a positive number", "the default is 1000000")
    if arguments.steps is not None:
        parse_steps(arguments.steps, "--steps")
    command = arguments.command[1:] if arguments.command[0] == "--" else arguments.command
    launch.run(
        launch.RunOptions(
            tuple(command),
            profile=arguments.output_dir,
            steps=arguments.steps,
            stacks=arguments.stacks,
            max_events=arguments.num_trace_events,
        )
    )
    return 0
