"""neuron-run: run a program with the device neuron, or with torch_xla, on the simulated machine."""

from __future__ import annotations

import argparse

from neurontools.commands import console
from neurontools.commands.parsing import add_machine
from neurontools.errors import UsageError

EXAMPLES = """examples:
  neuron-run -- python train.py
  neuron-run --profile prof -- python train.py && neuron-profile view prof
  neuron-run --profile prof --steps 10-20 -- python train.py
  neuron-run --explain -- python train.py                  print why each graph is compiled
  neuron-run --instance trn1.32xlarge -- python train.py   a private machine for this program

exit codes: that of the program; 126, 127 the program cannot be started, 1 failed, 2 usage error, 3 no machine,
4 daemon error
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        prog="neuron-run",
        usage="neuron-run [option ...] -- PROGRAM [ARG ...]",
        description="Run a program on the simulated Neuron machine. Installed torch_xla, torch_neuronx and "
        "torchvision packages take precedence over the simulated ones. Returns the program's exit code.",
        epilog=EXAMPLES,
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--instance", metavar="TYPE", help="private machine of this instance type")
    add_machine(where)
    parser.add_argument("--profile", metavar="DIR", help="capture a profile into DIR")
    parser.add_argument(
        "--steps",
        metavar="FIRST-LAST",
        help="profile only these training steps, such as 10-20; the first is 1",
    )
    parser.add_argument("--stacks", action="store_true", help="with --profile: also record call stacks")
    parser.add_argument("--cache-dir", metavar="DIR", help="compile cache (sets NEURON_COMPILE_CACHE_URL)")
    parser.add_argument(
        "--explain", action="store_true", help="print the reason for each compile as it happens"
    )
    parser.add_argument(
        "--force", action="store_true", help="allow the device 'neuron' on machines other than trn2 and trn3"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- PROGRAM [ARG ...]")
    return parser


def _run(arguments: argparse.Namespace) -> int:
    from neurontools.compat import launch

    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    for flag in ("steps", "stacks"):
        if getattr(arguments, flag) and not arguments.profile:
            raise UsageError(f"--{flag} is for a profile", "add --profile DIR")
    if arguments.steps is not None:
        from neurontools.profiler.capture.settings import parse_steps

        parse_steps(arguments.steps, "--steps")
    if not command:
        raise UsageError("no program given (neuron-run -- python train.py)", "see 'neuron-run --help'")
    flag = launch.hiding_flag(command)
    if flag:
        console.warn(
            f"python {flag} hides torch_xla, torch_neuronx and the device neuron from the program: leave {flag} out"
        )
    launch.run(
        launch.RunOptions(
            command=tuple(command),
            instance=arguments.instance,
            machine=arguments.machine,
            profile=arguments.profile,
            steps=arguments.steps,
            stacks=arguments.stacks,
            cache=arguments.cache_dir,
            explain=arguments.explain,
            force=arguments.force,
        ),
        on_notice=console.notice,
    )
    return 0


main = console.command(build_parser, _run)
