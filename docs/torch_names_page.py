"""docs/reference/torch-names.md, made from the modules that stand in for torch_xla and torch_neuronx."""

from __future__ import annotations

import ast
from pathlib import Path

import neurontools
from neurontools import compat
from neurontools.compat.unsupported import IMPORT_ONLY, LIMITS, UNSUPPORTED, UNSUPPORTED_MODULES
from neurontools.native.names import ALIASES, INSTEAD, SUBMODULES

HEAD = """# Names of torch_xla, torch_neuronx and torch.neuron

Generated from the modules below `neurontools/compat` and `neurontools/native` by `python docs/generate.py`. Programs
under `neuron-run` see these names if the real packages are not installed; `torch.neuron` exists in programs with the
[native device](../explanation/native-device.md), and `torch_neuronx` has its names there too, such as
`torch_neuronx.Stream`. *Yes* means the documented behaviour; a note says what is different. Any other name raises an
`AttributeError` or `ImportError` that shows the nearest supported name, as in this table.

`torchvision` is replaced for scripts alone: `datasets.MNIST`, `transforms.Compose`, `Lambda`, `Normalize` and
`ToTensor`. Installed libraries that look for torchvision do not find it.
"""

IMPORT_ONLY_HEAD = """## Names that can only be imported

Libraries import these at their start and need them only in parts of themselves, so the import succeeds: any name of
these modules, and of modules below them, can be imported, decorate a function and stand in an annotation, and the
options of an NKI kernel can be made. Anything else, such as the call of a decorated kernel, raises a
`NotSimulatedError` (a `NotImplementedError`) that shows the nearest supported name. `importlib.util.find_spec` does
not find the packages.

| name | nearest supported name |
|---|---|"""

NATIVE = "torch.neuron"
HIDDEN = {"index_of", "is_idle", "recording"}
"""Methods behind the functions of a device."""

PACKAGES = ("torch_xla", "torch_neuronx", "libneuronxla")


def torch_names_page() -> str:
    """Return docs/reference/torch-names.md."""
    names = module_names()
    for module, missing in UNSUPPORTED.items():
        if module.partition(".")[0] in PACKAGES:
            names.setdefault(module, set()).update(missing)
    parts = [HEAD]
    names[NATIVE] = native_names()
    for module in sorted(names):
        if names[module]:
            parts.append(
                f"## {module}\n\n| name | supported | note or nearest supported name |\n|---|---|---|"
            )
            parts.append("".join(_row(module, name) for name in sorted(names[module])))
    parts.append(IMPORT_ONLY_HEAD)
    parts.append(
        "".join(f"| `{name}` | {_code(nearest)} |\n" for name, nearest in sorted(IMPORT_ONLY.items()))
    )
    parts.append("## Modules that are not provided\n\n| module | nearest supported name |\n|---|---|")
    parts.append(
        "".join(
            f"| `{module}` | {_code(nearest)} |\n"
            for module, nearest in sorted(UNSUPPORTED_MODULES.items())
            if module.partition(".")[0] != "torchvision"
        )
    )
    return "\n".join(parts)


def module_names() -> dict[str, set[str]]:
    """Return the public names of each module of the shims, read from its text: importing it would start the device."""
    home = Path(compat.__path__[0])
    found = {}
    for package in PACKAGES:
        for path in sorted((home / package).rglob("*.py")):
            parts = path.relative_to(home).with_suffix("").parts
            found[".".join(part for part in parts if part != "__init__")] = _names(path)
    return found


def native_names() -> set[str]:
    """Return the names of `torch.neuron`, supported or not."""
    home = Path(neurontools.__path__[0])
    own = _names(home / "native" / "device_functions.py") - {"install"}
    tree = ast.parse((home / "xla" / "device_module.py").read_text(encoding="utf-8"))
    functions = next(node for node in tree.body if getattr(node, "name", "") == "DeviceFunctions")
    assert isinstance(functions, ast.ClassDef)
    methods = {node.name for node in functions.body if isinstance(node, ast.FunctionDef)}
    public = {name for name in methods if not name.startswith("_")} - HIDDEN
    others = {"Event", "OutOfMemoryError", "Stream"}
    return public | own | others | set(ALIASES) | set(SUBMODULES) | set(INSTEAD)


def _names(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Assign(targets=targets, value=value):
                assigned = {target.id for target in targets if isinstance(target, ast.Name)}
                names |= set(ast.literal_eval(value)) if assigned == {"__all__"} else assigned
    private = path.stem == "_XLAC"
    return {
        name
        for name in names - {"T", "torch"}
        if not name.startswith("__") and (private or not name.startswith("_"))
    }


def _row(module: str, name: str) -> str:
    nearest = (INSTEAD if module == NATIVE else UNSUPPORTED.get(module, {})).get(name)
    about = {"OutOfMemoryError": "torch.OutOfMemoryError"} | dict.fromkeys(
        SUBMODULES, "a module with functions of this one"
    )
    limits = {**ALIASES, **about} if module == NATIVE else LIMITS.get(module, {})
    note = limits.get(name, "") if nearest is None else _code(nearest)
    return f"| `{name}` | {'yes' if nearest is None else 'no'} | {note} |\n"


def _code(nearest: str) -> str:
    return f"`{nearest}`" if nearest and " " not in nearest else nearest
