"""Which device a program gets: `neuron` if an argument or its code asks for that, without `torch_xla` among its imports.

torch can name PrivateUse1 once, and a program may ask for a device right after `import torch`. So the program's own
source files are read before: the script, and the modules beside it that it imports. An argument that is the name of a
device decides where the code allows both. Code on top of torch_xla may use the text `neuron` for other things.
"""

from __future__ import annotations

import ast
import os
from typing import TYPE_CHECKING, NamedTuple

from neurontools import env
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

NEURON = "neuron"
XLA = "xla"
_LAZY_PACKAGES = frozenset({"torch_xla", "libneuronxla"})
_ON_TORCH_XLA = frozenset({"neuronx_distributed", "neuronx_distributed_inference", "optimum"})
"""Libraries that need torch_xla; `neuron` is the name of an exporter there."""
_OF_EITHER = "torch_neuronx"
"""The package of both devices: the text `neuron` counts where a device is named."""
_TAKE_DEVICES = frozenset(
    {"Generator", "autocast", "device", "get_device_module", "init_device_mesh", "init_process_group"}
    | {"set_default_device", "to", "to_empty"}
)
"""Functions of torch with a device among their arguments."""
_MODULES_OF_TORCH = frozenset({NEURON, "accelerator"})
_FILE_LIMIT = 200
_SIZE_LIMIT = 1 << 20  # generated data, not a program


class StartedProgram(NamedTuple):
    """The code that a process starts with: its text, or the path of its file."""

    source: str
    path: str


class DeviceRequest(NamedTuple):
    """What source code asks for.

    Args:
        neuron: whether it has the text `neuron`, or a name of the device.
        names_device: whether it has them where a device is named.
        lazy: whether it always imports torch_xla, or a library that needs it.
        lazy_for_neuron: whether it imports torch_xla for the text `neuron`.
        imports: the modules that it imports.
    """

    neuron: bool = False
    names_device: bool = False
    lazy: bool = False
    lazy_for_neuron: bool = False
    imports: tuple[str, ...] = ()


def chosen_device(
    environ: Mapping[str, str], arguments: Sequence[str], original_arguments: Sequence[str]
) -> str:
    """Return the device that this process is to have when it imports torch, "" to leave that open.

    Args:
        environ: the environment; NEURONTOOLS_DEVICE decides, and without neuron-run nothing else does.
        arguments: `sys.argv`.
        original_arguments: `sys.orig_argv`.

    Raises:
        UsageError: NEURONTOOLS_DEVICE names another device.
    """
    wanted = environ.get(env.DEVICE, "")
    if wanted not in {"", NEURON, XLA}:
        raise UsageError(f"invalid {env.DEVICE}={wanted!r}", f"use {NEURON} or {XLA}")
    if wanted or environ.get(env.RUN) != "1":
        return wanted
    program = started_program(arguments, original_arguments)
    return NEURON if program is not None and asks_for_neuron(program, arguments[1:]) else ""


def started_program(arguments: Sequence[str], original_arguments: Sequence[str]) -> StartedProgram | None:
    """Return the code that the interpreter runs, None if it is not Python source."""
    if arguments[:1] == ["-c"]:
        flag = next(
            (i for i, text in enumerate(original_arguments) if text.startswith("-") and text.endswith("c")),
            -1,
        )
        following = original_arguments[flag + 1 : flag + 2] if flag > 0 else ()
        return StartedProgram(following[0], "") if following else None
    path = arguments[0] if arguments else ""
    source = _read(path)
    return None if source is None else StartedProgram(source, path)


def asks_for_neuron(program: StartedProgram, arguments: Sequence[str] = ()) -> bool:
    """Return whether a program asks for the device `neuron`, and does not import torch_xla as its first choice.

    Args:
        program: the code.
        arguments: of the program. `neuron`, `xla`, `--device neuron` or `--device=xla` decide for a program that could
            have both devices, unless it imports torch_xla for the text `neuron`.
    """
    home = os.path.dirname(program.path)
    seen: set[str] = set()
    waiting = [program]
    requests = []
    while waiting and len(seen) < _FILE_LIMIT:
        current = waiting.pop()
        request = read_request(current.source)
        if request.lazy:
            return False
        requests.append(request)
        for path in _files_of(request.imports, home):
            source = None if path in seen else _read(path)
            seen.add(path)
            if source is not None:
                waiting.append(StartedProgram(source, path))
    words = {argument.rpartition("=")[2].partition(":")[0] for argument in arguments}
    named = words & {NEURON, XLA}
    if len(named) == 1 and not any(request.lazy_for_neuron for request in requests):
        return named == {NEURON}
    if any(_OF_EITHER in _packages(request.imports) for request in requests):
        return any(request.names_device for request in requests)
    return any(request.neuron for request in requests)


def read_request(source: str) -> DeviceRequest:
    """Return what source code asks for; code that cannot be parsed asks for nothing, Python itself reports it."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return DeviceRequest()
    always = _packages(_imports(ast.Module(_statements(tree), [])))
    return DeviceRequest(
        neuron=_names_neuron(tree),
        names_device=any(_names_neuron(part) for part in _places_of_devices(tree)),
        lazy=not always.isdisjoint(_LAZY_PACKAGES | _ON_TORCH_XLA),
        lazy_for_neuron=any(_imports_for_neuron(node) for node in ast.walk(tree)),
        imports=tuple(_imports(tree)),
    )


def _packages(modules: Iterable[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def _imports_for_neuron(node: ast.AST) -> bool:
    """Return whether a branch for the text `neuron` imports torch_xla."""
    match node:
        case ast.If(test=test, body=body):
            condition: ast.AST = test
        case ast.match_case(pattern=pattern, body=body):
            condition = pattern
        case _:
            return False
    texts = (part.value for part in ast.walk(condition) if isinstance(part, ast.Constant))
    return NEURON in texts and not _LAZY_PACKAGES.isdisjoint(_packages(_imports(ast.Module(body, []))))


def _places_of_devices(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the parts of code that name a device: arguments of some functions, values of variables called device."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="torch")):
                yield node
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=args, keywords=keywords):
                if name == NEURON:
                    yield node
                about_device = name in _TAKE_DEVICES or any(
                    isinstance(arg, ast.Constant) and "device" in str(arg.value) for arg in args
                )
                yield from args if about_device else ()
                yield from (
                    option.value
                    for option in keywords
                    if about_device or option.arg in {"backend", "map_location"} or _is_device(option.arg)
                )
            case ast.Assign(targets=targets, value=value) if any(map(_is_device, map(ast.unparse, targets))):
                yield value
            case ast.AnnAssign(target=target, value=ast.AST() as value) if _is_device(ast.unparse(target)):
                yield value


def _is_device(name: str | None) -> bool:
    return "device" in (name or "").lower()


def _statements(tree: ast.Module) -> list[ast.stmt]:
    """Return the imports that always run: an import in a function, a branch or a `try` may be one of several choices."""
    return [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names):
                yield from ([module] if module else [])
                yield from (f"{module}.{alias.name}" if module else alias.name for alias in names)


def _names_neuron(tree: ast.AST) -> bool:
    """Return whether code has the text `neuron` or `neuron:1`, or a name of the device.

    What a text is compared with does not count: such code also runs where there is another device.
    """
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        match node:
            case ast.Compare() | ast.MatchValue():
                continue
            case ast.Constant(value=str() as text) if text.partition(":")[0] == NEURON:
                return True
            case ast.Attribute(value=ast.Name(id="torch"), attr=name) if name in _MODULES_OF_TORCH:
                return True
            case ast.Call(func=ast.Attribute(attr=name)) if name == NEURON:
                return True
        waiting += ast.iter_child_nodes(node)
    return False


def _files_of(modules: Sequence[str], home: str) -> Iterator[str]:
    for module in modules:
        base = os.path.join(home, *module.split("."))
        yield f"{base}.py"
        yield os.path.join(base, "__init__.py")


def _read(path: str) -> str | None:
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > _SIZE_LIMIT:
            return None
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return None
