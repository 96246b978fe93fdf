"""Modules of the real packages that can be imported here but not used, such as those of NKI.

Programs and libraries import them at their start, and need them only in parts that they may never run. So every name can
be imported and used as a decorator or in an annotation; a call raises one line with what to use instead.
"""

# ruff: noqa: ARG002
# Stand-ins take the arguments of the real names.

from __future__ import annotations

from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import Any, NoReturn, Self

from neurontools.compat.unsupported import IMPORT_ONLY
from neurontools.compiler.options import COMPILER_VERSION
from neurontools.errors import NeuronToolsError

_DECORATORS = frozenset({"baremetal", "benchmark", "jit", "nki_jit", "profile"})
"""Names that are called without a function to get a decorator."""
_OF_KERNELS = frozenset({"neuronxcc", "nki", "nkilib"})
"""Packages whose classes are options of kernels: libraries make such objects as defaults of their own options."""


class NotSimulatedError(NeuronToolsError, NotImplementedError):
    """A program uses a name that can only be imported."""


def find_spec(name: str) -> ModuleSpec | None:
    """Return the spec of a module that can only be imported, None for other modules."""
    return ModuleSpec(name, _Loader(), is_package=True) if nearest_name(name) is not None else None


def nearest_name(name: str) -> str | None:
    """Return what replaces a module, by the closest package above it that is known; None for other modules."""
    known = name
    while known and known not in IMPORT_ONLY:
        known = known.rpartition(".")[0]
    # Of neuronxcc itself only NKI is expected; its other modules are those of the compiler.
    return IMPORT_ONLY.get(known) if known != "neuronxcc" or name == known else None


def stand_in(module: str, name: str) -> StandIn | None:
    """Return the stand-in for a name of a simulated module that can only be imported, None for other names."""
    nearest = IMPORT_ONLY.get(f"{module}.{name}")
    return None if nearest is None else StandIn(f"{module}.{name}", nearest)


class _Loader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = ImportOnlyModule(spec.name)
        if spec.name == "neuronxcc":
            vars(module)["__version__"] = COMPILER_VERSION
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


class ImportOnlyModule(ModuleType):
    """A module that has every name, each of them a `StandIn`."""

    __import_only__ = True

    def __getattr__(self, name: str) -> StandIn:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}", name=name)
        is_configuration = self.__name__.partition(".")[0] in _OF_KERNELS and name[0].isupper()
        return StandIn(f"{self.__name__}.{name}", nearest_name(self.__name__) or "", is_configuration)


class StandIn(str):  # noqa: SLOT000 # attributes of their own
    """A name that can be imported, decorate a function, and stand in an annotation. A call raises `NotSimulatedError`.

    Members of enumerations are such names too: options of libraries, which compare, copy, pickle and write them.

    Args:
        name: what the error says.
        nearest: what to use instead.
        is_configuration: whether a call makes options of a kernel, which no kernel reads.
    """

    _nearest: str
    _is_configuration: bool

    def __new__(cls, name: str, nearest: str = "", is_configuration: bool = False) -> Self:
        """Return the stand-in for a name."""
        made = super().__new__(cls, name)
        made._nearest, made._is_configuration = nearest, is_configuration
        return made

    @property
    def _name(self) -> str:
        return str.__str__(self)

    def __repr__(self) -> str:
        return f"<{self._name}, import only>"

    def __getattr__(self, name: str) -> StandIn:
        if name.startswith("_"):
            raise AttributeError(f"{self._name} has no attribute {name!r}", name=name)
        return StandIn(f"{self._name}.{name}", self._nearest)

    def __call__(self, *args: Any, **options: Any) -> StandIn:
        """Return a stand-in for the decorated function, for the decorator, or for options.

        Raises:
            NotSimulatedError: any other call.
        """
        if len(args) == 1 and isinstance(args[0], FunctionType | StandIn):
            return StandIn(_name_of(args[0]), self._nearest)
        if self._is_configuration:
            return StandIn(self._name, self._nearest)
        if not args and self._name.rpartition(".")[2] in _DECORATORS:
            return self
        raise self._refusal()

    def __getitem__(self, key: Any) -> StandIn:
        """Return this: `kernel[grid]`, and `tensor[shape]` in annotations."""
        return self

    def __or__(self, other: Any) -> StandIn:
        """Return this: `name | None` in annotations."""
        return self

    __ror__ = __or__

    def __instancecheck__(self, instance: Any) -> bool:
        return False

    def __iter__(self) -> NoReturn:
        raise self._refusal()

    def __mro_entries__(self, bases: tuple[Any, ...]) -> NoReturn:
        raise self._refusal()

    def _refusal(self) -> NotSimulatedError:
        return NotSimulatedError(f"{self._name} is not simulated; nearest supported name: {self._nearest}")


def _name_of(decorated: FunctionType | StandIn) -> str:
    return decorated.__qualname__ if isinstance(decorated, FunctionType) else str(decorated)
