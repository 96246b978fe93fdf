"""Makes the shims importable in every Python process that neuron-run starts.

The finder goes to the end of `sys.meta_path`, so an installed torch_xla, torch_neuronx or torchvision wins, its metadata
too. The next `sitecustomize` on the path, which this file hides, is run afterwards.
"""

import os
import sys
from importlib.machinery import PathFinder
from os.path import dirname, join

SHIMS = frozenset({"libneuronxla", "neuronxcc", "nki", "torch_neuronx", "torch_xla"})
FOR_SCRIPTS = frozenset({"torchvision"})
"""Shims of packages that libraries use in full where they find them: visible to the user's own code alone."""
IMPORT_ONLY = frozenset({"nkilib"})
"""Packages that can be imported, but not used."""
NATIVE = "neurontools.native.activation"
"""Loaded in programs with the device `neuron`: libraries that look for torch_xla must not choose it there."""
INSTALLED = ("/site-packages/", "/dist-packages/")
IMPORT_MACHINERY = frozenset({"importlib", "importlib._bootstrap", "importlib._bootstrap_external"})
PROBES = frozenset({"importlib.util", "pkgutil"})
HERE = dirname(__file__)
SHIM_HOME = dirname(HERE)


class ShimFinder:
    """Finds the top-level shim packages and their metadata; submodules are found through the shims' own `__path__`."""

    @staticmethod
    def find_spec(name, path=None, target=None):  # type: ignore[no-untyped-def] # noqa: ARG004
        """Return the spec of a shim, None for everything else; say what to use instead of a part that shims lack."""
        if name == "torch_xla" and NATIVE in sys.modules and is_probe():
            return None
        if name in SHIMS or (name in FOR_SCRIPTS and is_imported_by_script()):
            return PathFinder.find_spec(name, [SHIM_HOME])
        if not is_part(name, path) or is_probe():
            return None
        from neurontools.compat.unsupported import explain_module, find_import_only

        spec = find_import_only(name)
        if spec is None:
            explain_module(name)
        return spec

    @staticmethod
    def find_distributions(context=None):  # type: ignore[no-untyped-def]
        """Return the distributions of the shims, as `importlib.metadata` asks for them."""
        from importlib.metadata import DistributionFinder, MetadataPathFinder

        wanted = DistributionFinder.Context() if context is None else context
        # Only a search of the default path: a program that lists another directory must not find the shims there.
        if list(wanted.path) != sys.path:
            return iter(())
        here = DistributionFinder.Context(name=wanted.name, path=[join(SHIM_HOME, "metadata")])
        return iter(MetadataPathFinder.find_distributions(here))


def is_part(name: str, path: list[str] | None) -> bool:
    """Return whether a module is missing in a shim, or part of a package that can only be imported."""
    top, _, rest = name.partition(".")
    if not rest:
        return top in IMPORT_ONLY
    first = next(iter(path or ()), None)
    if first is None:  # a module that can only be imported has an empty path
        return hasattr(sys.modules.get(name.rpartition(".")[0]), "__import_only__")
    return top in SHIMS | FOR_SCRIPTS and first.startswith(SHIM_HOME)


def importer() -> tuple[str, str]:
    """Return module name and file of the code outside this file and the import machinery that needs a module."""
    depth = 1
    while True:
        frame = sys._getframe(depth)  # noqa: SLF001
        name = frame.f_globals.get("__name__", "")
        if frame.f_code.co_filename != __file__ and name not in IMPORT_MACHINERY:
            return name, frame.f_code.co_filename
        depth += 1


def is_probe() -> bool:
    """Return whether a program only asks whether a module exists."""
    return importer()[0] in PROBES


def is_imported_by_script() -> bool:
    """Return whether an import statement outside installed packages needs a module."""
    name, file = importer()
    return name not in PROBES and not any(folder in file for folder in INSTALLED)


def run_hidden_sitecustomize() -> None:
    """Run the sitecustomize that this file hides."""
    spec = PathFinder.find_spec("sitecustomize", [entry for entry in sys.path if entry != HERE])
    if spec is None or spec.loader is None:
        return
    from importlib.util import module_from_spec  # takes 4 ms, in every Python process of the program

    hidden = module_from_spec(spec)
    spec.loader.exec_module(hidden)


def show_host_files() -> None:
    """Show the machine's host files to Python's own calls, where no library shows them to the whole process."""
    if "NEURONTOOLS_HOST_FILES" not in os.environ or "/host-files/" in os.environ.get("LD_PRELOAD", ""):
        return
    from contextlib import suppress

    with suppress(ImportError):  # a Python without neurontools
        from neurontools.compat.host_calls import install

        install()


sys.meta_path.append(ShimFinder)
show_host_files()
run_hidden_sitecustomize()
