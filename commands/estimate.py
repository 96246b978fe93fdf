"""neurontools estimate: does a model fit, how fast is it and what does it cost, by instance type, before anything is rented."""

from __future__ import annotations

import argparse
import shutil
from typing import TYPE_CHECKING, Any

from neurontools.commands import console
from neurontools.commands.parsing import add_duration, add_limit, add_verb
from neurontools.commands.profile.options import add_number_output, print_numbers
from neurontools.errors import NeuronToolsError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from neurontools.commands.parsing import Verbs
    from neurontools.estimate.placement import Placement
    from neurontools.estimate.recorded_graph import Execution
    from neurontools.estimate.serving import Serving
    from neurontools.estimate.training import Training

_ABOUT = """MODEL is a config.json of Hugging Face, built by the installed transformers without weights, its directory, or a
*.yaml file with the sizes of a transformer. All numbers are modelled, and printed with the range in which published ones
are expected."""
_SERVE_EXAMPLES = f"""{_ABOUT}

examples:
  neurontools estimate serve config.json
  neurontools estimate serve config.json --instance trn2.48xlarge --batch 1,8,32 --max-tpot 50ms
  neurontools estimate serve llama.yaml --prompt 1024,4096 --output 512 --prices prices.yaml --sort cost
  neurontools estimate serve llama.yaml --plot --html plot.html
  neurontools estimate serve --from prof --instance trn1.32xlarge,inf2.48xlarge
"""
_TRAIN_EXAMPLES = f"""{_ABOUT}

examples:
  neurontools estimate train config.json --batch 1,2,4 --length 2048
  neurontools estimate train config.json --instance trn1.32xlarge --tp 8 --checkpoints
  neurontools estimate train llama.yaml --tokens 1e9 --prices prices.yaml --json
"""
_SHOWN = 20
_PROMPT = 1024
_OF_MODELS = (
    "batch", "prompt", "output", "length", "tp", "dtype", "weights", "max_ttft", "max_tpot", "micro_batches",
    "instances", "pp", "zero1", "tokens", "checkpoints",
)  # fmt: skip
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        prog="neurontools estimate",
        description="Estimate memory, speed and cost of a model on instance types, before anything is rented. Nothing runs.",
        epilog="examples:\n  neurontools estimate serve config.json --max-tpot 50ms\n"
        "  neurontools estimate train llama.yaml --length 2048\n\n"
        "exit codes: 0 success, 1 the model cannot be built, fits nowhere or is too slow, 2 usage error",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    _add_serve(verbs)
    _add_train(verbs)
    return parser


def _add_serve(verbs: Verbs) -> None:
    parser = add_verb(verbs, "serve", "estimate latency, throughput and cost of serving a model", _serve)
    parser.epilog = _SERVE_EXAMPLES
    _add_common(parser, sort=("latency", "cost", "throughput"))
    _add_numbers(parser, "--batch", "sequences decoded together (default: 1)", (1,))
    _add_numbers(
        parser,
        "--prompt",
        "tokens of a prompt, or of an encoder's text (default: 1024, or the model's fixed length)",
    )
    _add_numbers(parser, "--output", "tokens generated (default: 128)", (128,))
    add_duration(parser, "--max-ttft", "longest time to the first token, e.g. 500ms")
    add_duration(parser, "--max-tpot", "longest time of an output token, e.g. 50ms")


def _add_train(verbs: Verbs) -> None:
    parser = add_verb(
        verbs, "train", "estimate step time, MFU and cost of training a model with AdamW", _train
    )
    parser.epilog = _TRAIN_EXAMPLES
    _add_common(parser, sort=("throughput", "cost", "latency"))
    _add_numbers(parser, "--batch", "sequences of a micro-batch (default: 1)", (1,))
    _add_numbers(parser, "--micro-batches", "micro-batches of a replica in a step (default: 1)", (1,))
    _add_numbers(parser, "--instances", "instances that train together (default: 1)", (1,))
    _add_numbers(parser, "--pp", "pipeline stages (default: 1)", (1,))
    parser.add_argument(
        "--zero1", action="store_true", help="share the optimizer states among the replicas (ZeRO-1)"
    )
    _add_numbers(parser, "--length", "tokens of a sequence (default: 2048)", (2048,))
    parser.add_argument(
        "--tokens", type=_amount, metavar="N", help="tokens of the whole run, e.g. 1e9: its time and cost"
    )
    parser.add_argument(
        "--checkpoints",
        action="store_true",
        help="recompute the activations of each layer in the backward pass",
    )


def _add_numbers(
    parser: argparse.ArgumentParser, name: str, description: str, default: tuple[int, ...] = ()
) -> None:
    parser.add_argument(name, type=_numbers, default=default, metavar="LIST", help=description)


def _add_common(parser: argparse.ArgumentParser, *, sort: tuple[str, ...]) -> None:
    add = parser.add_argument
    add("model", nargs="?", metavar="MODEL", help="config.json, a directory with one, or a *.yaml file")
    add(
        "--from",
        dest="profile",
        metavar="PROFILE",
        help="a recorded graph in place of a model: profile, NEFF, cache entry",
    )
    add(
        "--instance",
        type=_names,
        action="append",
        default=[],
        metavar="LIST",
        help="instance types (default: those of --prices, else all)",
    )
    _add_numbers(parser, "--tp", "tensor-parallel degrees (default: all that fit)")
    add("--lnc", type=int, metavar="N", help="physical cores of a logical core: 1 or 2")
    add(
        "--weights",
        choices=("int8", "fp8"),
        help="stored weights of linear layers and experts (default: by the model's quantization_config, else --dtype)",
    )
    add(
        "--dtype",
        choices=_DTYPES,
        default="bf16",
        help="data type of weights and activations (default: bf16)",
    )
    add("--prices", metavar="FILE", help="price list: cost per hour of each instance (YAML or JSON)")
    add("--sort", choices=sort, help=f"order (default: cost with --prices, else {sort[0]})")
    add("--plot", action="store_true", help="print a plot of latency against throughput")
    add("--html", metavar="FILE", help="write plot and numbers as an HTML page")
    add_limit(parser, f"rows of the table (default: {_SHOWN})")
    add_number_output(parser)


def _numbers(text: str) -> tuple[int, ...]:
    words = text.split(",")
    if not all(word.isdecimal() and 0 < int(word) < 1 << 40 for word in words):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers above 0 such as 1,8,32")
    return tuple(map(int, words))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _amount(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value < 1e18:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of tokens such as 1e9")
    return value


def _serve(arguments: argparse.Namespace) -> int:
    from neurontools.estimate.placement import places
    from neurontools.estimate.report import serving_table, smallest_degrees
    from neurontools.estimate.serving import Load, serve

    prices = _prices(arguments)
    where = places(_instances(arguments, prices), arguments.lnc)
    if arguments.profile:
        return _estimate_graph(arguments, where, prices)
    steps = _steps(arguments)
    loads = [
        Load(batch, prompt, output)
        for batch in arguments.batch
        for prompt in arguments.prompt or (steps.facts.source or _PROMPT,)
        for output in arguments.output
    ]
    options = serve(steps, where, loads, arguments.tp, prices)
    keys: dict[str, Callable[[Serving], Any]] = {
        "latency": lambda option: option.token_ns or option.first_ns,
        "cost": _cost,
        "throughput": lambda option: -option.tokens_s,
    }
    kept = [option for option in options if _is_fast(option, arguments.max_ttft, arguments.max_tpot)]
    if not kept:
        best = min(options, key=keys["latency"])
        raise NeuronToolsError(
            f"none of {len(options)} ways to serve {steps.facts.name} is as fast: the fastest takes {best.first_ns / 1e6:.3g} ms "
            f"to the first token and {best.token_ns / 1e6:.3g} ms a token on {best.instance} (modelled)",
            "allow more time, a higher --tp, a smaller batch or shorter prompts",
        )
    kept.sort(key=keys[_order(arguments, "latency")])
    title = f"Serving {steps.facts.name}, modelled"
    return _print(arguments, title, kept, serving_table, smallest_degrees(options))


def _is_fast(option: Serving, first_s: float | None, token_s: float | None) -> bool:
    return (first_s is None or option.first_ns <= first_s * 1e9) and (
        token_s is None or option.token_ns <= token_s * 1e9
    )


def _train(arguments: argparse.Namespace) -> int:
    from neurontools.estimate.placement import places
    from neurontools.estimate.report import smallest_degrees, training_table
    from neurontools.estimate.training import Batch, TrainingPlan, train

    prices = _prices(arguments)
    where = places(_instances(arguments, prices), arguments.lnc)
    if arguments.profile:
        return _estimate_graph(arguments, where, prices)
    batches = [
        Batch(size, length, micro_batches)
        for size in arguments.batch
        for length in arguments.length
        for micro_batches in arguments.micro_batches
    ]
    steps = _steps(arguments, checkpoints=arguments.checkpoints)
    plan = TrainingPlan(arguments.tp, arguments.pp, arguments.instances, arguments.zero1, arguments.tokens)
    options = train(steps, where, batches, plan, prices)
    keys: dict[str, Callable[[Training], Any]] = {
        "latency": lambda option: option.step_ns,
        "cost": _cost,
        "throughput": lambda option: -option.tokens_s,
    }
    options.sort(key=keys[_order(arguments, "throughput")])
    title = f"Training {steps.facts.name}, modelled"
    return _print(arguments, title, options, training_table, smallest_degrees(options))


def _estimate_graph(
    arguments: argparse.Namespace, where: Sequence[Placement], prices: Mapping[str, float]
) -> int:
    from neurontools.base.files import open_input
    from neurontools.commands.profile.what_if import neff_path
    from neurontools.compiler.neff import parse
    from neurontools.estimate.recorded_graph import execute
    from neurontools.estimate.report import execution_table

    if arguments.model is not None:
        raise UsageError("MODEL and --from exclude each other", "give one of them")
    plain = build_parser().parse_args([arguments.verb])
    for name in _OF_MODELS:
        if getattr(arguments, name, None) != getattr(plain, name, None):
            option = "--" + name.replace("_", "-")
            raise UsageError(
                f"{option} is for a MODEL: a recorded graph has its own sizes", f"leave out {option}"
            )
    path = neff_path(arguments.profile)
    with open_input(path) as file:
        neff = parse(file.read())
    options = execute(neff, where, prices)
    keys: dict[str, Callable[[Execution], Any]] = {
        "latency": lambda option: option.execution_ns,
        "cost": _cost,
        "throughput": lambda option: -option.executions_s,
    }
    options.sort(key=keys[_order(arguments, "latency")])
    return _print(arguments, f"Executing {path}, modelled", options, execution_table)


def _cost(option: Serving | Training | Execution) -> tuple[bool, float]:
    """Return what sorts by price, options without one last."""
    return option.price is None, option.price or 0.0


def _instances(arguments: argparse.Namespace, prices: Mapping[str, float]) -> list[str]:
    return [name for names in arguments.instance for name in names] or list(prices)


def _prices(arguments: argparse.Namespace) -> dict[str, float]:
    from neurontools.compiler.what_if import read_prices

    return read_prices(arguments.prices) if arguments.prices else {}


def _order(arguments: argparse.Namespace, default: str) -> str:
    if arguments.sort == "cost" and not arguments.prices:
        raise UsageError(
            "--sort cost needs a price list", "--prices FILE, with lines such as 'trn1.2xlarge: 1.34'"
        )
    return arguments.sort or ("cost" if arguments.prices else default)


def _steps(arguments: argparse.Namespace, *, checkpoints: bool = False) -> Any:
    if arguments.model is None:
        raise UsageError("no MODEL given", "give a config.json or a *.yaml file, or --from PROFILE")
    from neurontools.estimate.model_files import read_model
    from neurontools.estimate.steps import Steps

    dtype, weights = _DTYPES[arguments.dtype], arguments.weights or ""
    return Steps(read_model(arguments.model), dtype, weights=weights, checkpoints=checkpoints)


def _print(
    arguments: argparse.Namespace,
    title: str,
    options: Sequence[Any],
    make_table: Callable[[Sequence[Any], int | None], str],
    smallest: Mapping[str, int] | None = None,
) -> int:
    from neurontools.estimate.report import fields_of, html, notes, plot_text, points

    rows = [fields_of(option) for option in options]
    limit = arguments.limit or _SHOWN
    width = shutil.get_terminal_size().columns if console.has_screen() else None
    lines = [title, "", make_table(options[:limit], width)]
    if len(options) > limit:
        lines.append(f"({len(options) - limit} more: --limit, --json or --csv list all)")
    if arguments.plot:
        lines += ["", plot_text(points(options))]
    lines.append("")
    if smallest and not arguments.tp:
        shown = ", ".join(f"{name} {degree}" for name, degree in smallest.items())
        lines.append(f"Smallest TP that fits in HBM: {shown}.")
    lines += notes(options)
    if arguments.html:
        with open(arguments.html, "w", encoding="utf-8") as file:
            file.write(html(title, points(options), rows, notes(options)))
    document = {"is_simulation": True, "estimates": rows, "smallest_tensor": smallest or {}}
    print_numbers(arguments, "\n".join(lines), rows, document)
    return 0


main = console.command(build_parser)
