"""Makes the shims importable in every Python process that neuron-run starts.

The finder goes to the end of `sys.meta_path`, so an installed torch_xla, torch_neuronx or torchvision wins. The next
`sitecustomize` on the path, which this file hides, is run afterwards.
"""

import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from os.path import dirname

SHIMS = frozenset({"torch_xla", "torch_neuronx", "torchvision"})
HERE = dirname(__file__)


class ShimFinder:
    """Finds the top-level shim packages; their submodules are found through their own `__path__`."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG004
        """Return the spec of a shim, None for everything else."""
        return PathFinder.find_spec(name, [dirname(HERE)]) if name in SHIMS else None


def run_hidden_sitecustomize() -> None:
    """Run the sitecustomize that this file hides."""
    spec = PathFinder.find_spec("sitecustomize", [entry for entry in sys.path if entry != HERE])
    if spec is None or spec.loader is None:
        return
    hidden = module_from_spec(spec)
    spec.loader.exec_module(hidden)


sys.meta_path.append(ShimFinder)
run_hidden_sitecustomize()
