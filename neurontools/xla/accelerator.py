"""What the lazy device runs on: the accelerator's interface, and the graphs and programs that it loads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    import torch

    from neurontools.compiler.graph import Graph, Node
    from neurontools.compiler.neff import Neff
    from neurontools.compiler.options import CompileError
    from neurontools.runtime.memory import MemoryInfo
    from neurontools.xla.numerics_settings import NumericsSettings

T = TypeVar("T")
Executable = Callable[[Iterable[Any], Sequence[float]], tuple["torch.Tensor", ...]]


class DeviceError(NeuronToolsError, RuntimeError):
    """The device does not support a request; a RuntimeError, as torch raises of other devices."""


class LostValueError(DeviceError):
    """A tensor has no value because the graph that computes it failed or was interrupted."""


@dataclass(frozen=True, slots=True)
class LoadedGraph:
    """A compiled graph on a core.

    Args:
        graph: what the NEFF holds; executables are generated from it.
        digest: its sha256.
        hit: whether the persistent cache had it.
        compile_s: seconds until the NEFF was ready.
        handle: the accelerator's own model, None for a graph that was extracted only.
        extracted: it cannot be executed: what it computes counts as zeros (NEURON_EXTRACT_GRAPHS_ONLY).
        neff_bytes: size of the NEFF.
    """

    graph: Graph
    digest: str
    hit: bool
    compile_s: float
    handle: Any
    extracted: bool = False
    neff_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled graph with its executable.

    Args:
        loaded: the graph on its core.
        executable: returns its executable; generates it at the first call, as many graphs are learned and never run again.
        inputs: slots whose host tensors it takes.
        fresh: slots whose host tensors it returns.
        fresh_bytes: device memory that those take.
        random: whether it draws random numbers.
        native: inputs that custom operators read.
    """

    loaded: LoadedGraph
    executable: Callable[[], Executable]
    inputs: tuple[int, ...]
    fresh: tuple[int, ...]
    fresh_bytes: int
    random: bool
    native: tuple[int, ...] = ()


class Accelerator(Protocol):
    """The cores that this process may use. `index` is the position of a core in the process, as in `xla:0`."""

    numerics: NumericsSettings | None
    """How results are rounded; None for the results of the CPU."""

    @property
    def dumps_inputs(self) -> bool:
        """Return whether an execution that fails writes its inputs to files, so that they have to last until then."""

    @property
    def faults_armed(self) -> bool:
        """Return whether a fault may let the next allocation fail, so that it may not come from kept memory."""

    def core_count(self) -> int:
        """Return the number of cores."""

    def device_kind(self) -> str:
        """Return the core version as torch_xla spells it, such as NC_v2."""

    def allocate(self, index: int, nbytes: int) -> None:
        """Take device memory for tensors; raises NrtError when the core's memory is full."""

    def free(self, index: int, nbytes: int) -> None:
        """Give device memory back."""

    def memory(self, index: int) -> MemoryInfo:
        """Return the device memory of a core."""

    def reset_peak_memory(self, index: int) -> None:
        """Let the peak of a core's memory start again at the memory in use."""

    def load(self, index: int, graph: Graph) -> LoadedGraph:
        """Compile a graph, or find it in the cache, and load it on a core."""

    def refusal(self, call: Node) -> CompileError | None:
        """Return the error of every graph that has a call, None if the compiler takes it."""

    def compile(self, graph: Graph, flags: Sequence[str]) -> bytes:
        """Return a graph's NEFF, without the cache."""

    def find_or_compile(self, graph: Graph, flags: Sequence[str]) -> tuple[bytes, bool]:
        """Return a graph's NEFF with further flags, and whether the cache had it."""

    def numerics_for(self, flags: Sequence[str]) -> NumericsSettings | None:
        """Return how results of a NEFF are rounded that was compiled with other flags."""

    def load_neff(self, index: int, neff: Neff, data: bytes, constant_bytes: int) -> LoadedGraph:
        """Load a parsed NEFF on a core; `data` are its bytes, `constant_bytes` is the device memory of its weights."""

    def unload(self, loaded: LoadedGraph) -> None:
        """Take a graph off its core."""

    def execute(self, loaded: LoadedGraph, run: Callable[[], T], inputs: Sequence[Any] = ()) -> T:
        """Run one execution of a loaded graph; `inputs` are its tensors, on the host, if known."""

    def close(self) -> None:
        """Give the cores back."""
