"""Errors of custom operators and their remedies: building, opening a library, running an operator."""

from __future__ import annotations

from neurontools.errors import NeuronToolsError

# kind, words of the reason ("" for all), remedy; the first match counts
_REMEDIES = (
    ("bounds", "is out of bounds", "compare the index with size(i) of the tensor"),
    (
        "bounds",
        "tcm",
        "offset and length are elements: keep offset + length within numel(), and shorten the last piece",
    ),
    ("bounds", "dimension", "compare the number with dim() of the tensor"),
    ("bounds", "", "compare offsets with numel(); --sanitize finds every access outside a tensor"),
    ("const", "", "take the argument as torch::Tensor to write to it, or write to a new tensor"),
    ("tcm", "null pointer", "test what tcm_malloc returns; free blocks, or ask for less than 16384 bytes"),
    ("tcm", "has", "copy at most as many elements as the block has room for"),
    (
        "tcm",
        " bytes, from tcm_malloc",
        "compare the kernel's indexes with the size given to tcm_malloc; a library built with --sanitize names the line",
    ),
    ("tcm", "freed TCM block", "free a block after its last use"),
    ("tcm", "TCM block of", "compare the index with the size given to tcm_malloc"),
    ("tcm", "all TCM blocks", "compare the index with the sizes given to tcm_malloc"),
    ("tcm", "tcm_free", "free each block once, with the pointer that tcm_malloc returned"),
    ("tcm", "not from tcm_malloc", "copy into blocks of tcm_malloc: other memory is not TCM on the device"),
    ("tcm", "not freed", "call tcm_free on every way out of the kernel"),
    ("null", "", "test pointers before using them; tcm_malloc returns nullptr when its pool is full"),
    ("address", "", "build with --sanitize to see where the pointer comes from"),
    ("stack", "", "end the recursion, or move large arrays into TCM or tensors; --stack-size declares more"),
    ("arithmetic", "", "test the divisor"),
    ("illegal", "", "look for undefined behaviour, or a __builtin_trap(), at this line; try --sanitize"),
    ("abort", "heap", "build with --sanitize to find what damaged the heap"),
    ("abort", "", "report errors with TORCH_CHECK(condition, message)"),
    ("exit", "", "return from the kernel; report errors with TORCH_CHECK(condition, message)"),
    ("assert", "", "call the operator with arguments that fulfil the condition, or correct the kernel"),
    ("check", "", "call the operator with arguments that fulfil the condition, or correct the kernel"),
    ("exception", "", "catch it in the kernel: the behaviour of exceptions on the device is not documented"),
    ("timeout", "", "end the loop, or raise NEURON_RT_EXEC_TIMEOUT (run, check: --timeout)"),
    ("worker", "", "find what killed the process: kill(), a memory limit, another program"),
    (
        "overlap",
        "",
        "give each core its own range of elements: begin at get_cpu_id() * share, the last takes the rest",
    ),
    (
        "coverage",
        "",
        "write every element of get_dst_tensor(), also where 8 does not divide numel(): the last core takes the rest",
    ),
    (
        "output",
        "get_dst_tensor",
        "write to get_dst_tensor().tcm_accessor() on every core; what is returned is ignored",
    ),
    ("output", "", "let kernel and shape function make tensors of the same sizes and dtype"),
    ("multicore", "", "use tcm_accessor() and get_dst_tensor(), or build without --multicore"),
    ("stream", "", "per tensor many readers or one writer; as many calls as elements; none after close()"),
    ("coherence", "", "close() the stream first, or set_accessor_coherence_policy(INCOHERENT_QUIET)"),
    ("dtype", "with", "use the C++ type of the tensor's dtype, such as float for kFloat"),
    ("dtype", "the shape function returned", "return a tensor of such a dtype from the shape function"),
    ("dtype", "", "convert one side: the device's operations do as torch does, for its seven dtypes"),
    ("rank", "", "use accessor<T, N> with N = dim(), or reject other ranks with TORCH_CHECK"),
    ("shape", "touch", "compute sizes from sizes() and numbers; data exists in the kernel only"),
    ("shape", "shape function", "do that in the kernel"),
    ("shape", "broadcast", "make both operands the same size first"),
    ("shape", "", "give sizes that are not negative, in at most 8 dimensions"),
    ("domain", "", "use a number that the dtype can hold"),
    ("limit", "dtype", "convert the argument first, such as x.float() or x.int()"),
    ("limit", "", "reshape the argument: at most 8 dimensions up to 65535, or 4 up to 4294967295"),
    ("undefined", "", "give the tensor a value: torch::zeros, torch::empty or an argument"),
    ("index", "", "compare the index with size() of the list"),
    ("memory", "", "use smaller tensors, or fewer temporaries"),
    ("sanitizer", "", "correct the access in this line (found by the compiler's sanitizers)"),
    ("load", "", "build the library again"),
)


class CustomOpBuildError(NeuronToolsError):
    """A library could not be built."""


class CompilerOutputError(CustomOpBuildError):
    """The compiler or the linker reports errors. The message has their lines."""

    has_lines = True


class CustomOpLibraryError(NeuronToolsError):
    """A file is not a custom operator library, is damaged, or was built for another version or computer."""


class UnsupportedInstanceError(CustomOpLibraryError):
    """The machine's cores cannot run custom operators."""


class NeuronCustomOpError(NeuronToolsError):
    """An operator failed while it ran.

    Args:
        op: qualified name, `library::operator`.
        kind: the failed check, one word: bounds, tcm, null, timeout, overlap, coverage, dtype, ...
        reason: the reason, one line.
        core: GPSIMD core, -1 for all cores or a shape function.
        location: `file:line` of the user's source, or "".
        arguments: the arguments' shapes and dtypes, as text.
    """

    def __init__(
        self, op: str, kind: str, reason: str, *, core: int = -1, location: str = "", arguments: str = ""
    ) -> None:
        where = f" on core {core}" if core >= 0 else ""
        source = f" at {location}" if location else ""
        called = f" [called with {arguments}]" if arguments else ""
        super().__init__(
            f"custom operator {op} failed{where}: {kind}: {reason}{source}{called}", remedy_for(kind, reason)
        )
        self.op = op
        self.kind = kind
        self.reason = reason
        self.core = core
        self.location = location
        self.arguments = arguments


def remedy_for(kind: str, reason: str) -> str:
    """Return the remedy for a failed check (`kind`) and its reason, one line."""
    for check, words, remedy in _REMEDIES:
        if check == kind and words in reason:
            return remedy
    return "neuron-customop debug stops in the kernel"
