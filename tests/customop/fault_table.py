"""Faults of kernels, and how each is provoked."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """A wrong kernel.

    Args:
        name: test id, and its name in docs/reference/customop-faults.md.
        library: directory under `kernels/`.
        which: what chooses it.
        kind: the check that finds it.
        mark: comment at the end of the line that must be named, in that library's sources.
        core: the core that must be named, -1 for none.
        warning: it succeeds with a warning.
        op: the operator.
    """

    name: str
    library: str
    which: int
    kind: str
    mark: str
    core: int = 0
    warning: bool = False
    op: str = "fault"


ONE, EIGHT = "faults", "multicore_faults"

# The 26 kernels and the shape function of the reference's table.
REFERENCE = (
    Fault("null-dereference", ONE, 0, "null", "null"),
    Fault("division-by-zero", ONE, 64, "arithmetic", "division"),
    Fault("abort", ONE, 60, "abort", "abort"),
    Fault("illegal-instruction", ONE, 65, "illegal", "illegal"),
    Fault("infinite-loop", ONE, 63, "timeout", "loop"),
    Fault("one-past-a-tensor", ONE, 2, "bounds", "past"),
    Fault("index-too-large", ONE, 4, "bounds", "index"),
    Fault("index-negative", ONE, 5, "bounds", "negative"),
    Fault("write-to-const", ONE, 1, "const", "const"),
    Fault("tcm-overflow-by-pointer", ONE, 20, "tcm", "malloc"),
    Fault("tcm-overflow-by-copy", ONE, 21, "tcm", "tcm-copy"),
    Fault("tcm-pool-exhausted", ONE, 22, "tcm", "tcm-null"),
    Fault("tcm-foreign-free", ONE, 23, "tcm", "tcm-foreign"),
    Fault("tcm-leak", ONE, 24, "tcm", "malloc", warning=True),
    Fault("multicore-accessor", EIGHT, 1, "multicore", "accessor"),
    Fault("multicore-no-dst-tensor", EIGHT, 0, "output", "kernel"),
    Fault("multicore-overlap", EIGHT, 3, "overlap", "copy-out", core=1),
    Fault("multicore-unwritten", EIGHT, 4, "coverage", "copy-out", core=7),
    Fault("multicore-one-core-crashes", EIGHT, 9, "null", "crash", core=5),
    Fault("stack-overflow", ONE, 3, "stack", "recursion"),
    Fault("exception", ONE, 68, "exception", "throw"),
    Fault("wrong-rank", ONE, 81, "rank", "rank"),
    Fault("wrong-dtype", ONE, 80, "dtype", "dtype"),
    Fault("wrong-shape", ONE, 82, "output", "kernel"),
    Fault("incoherent", ONE, 43, "coherence", "coherence"),
    Fault("exit", ONE, 61, "exit", "exit"),
    Fault("shape-function-reads-data", ONE, 0, "shape", "data", core=-1, op="bad_shape"),
)

OTHERS = (
    Fault("tcm-write-before-a-block", ONE, 27, "tcm", "malloc"),
    Fault("tcm-copy-beyond-a-tensor", ONE, 25, "bounds", "tcm-beyond"),
    Fault("tcm-copy-to-other-memory", ONE, 28, "tcm", "tcm-stack", warning=True),
    Fault("output-partly-written", ONE, 29, "coverage", "partly"),
    Fault("stream-beyond-the-end", ONE, 40, "stream", "stream-end"),
    Fault("stream-after-close", ONE, 41, "stream", "stream-closed"),
    Fault("two-write-streams", ONE, 42, "stream", "two-writers"),
    Fault("assertion", ONE, 62, "assert", "assert"),
    Fault("torch-check", ONE, 70, "check", "check"),
    Fault("wrong-output-dtype", ONE, 83, "output", "kernel"),
    Fault("tensor-without-value", ONE, 84, "undefined", "kernel"),
    Fault("dtype-not-on-device", ONE, 85, "dtype", "double"),
    Fault("broadcasting", ONE, 86, "shape", "broadcast"),
)

# Found with --sanitize only: without it these calls succeed.
SANITIZED = (
    Fault("heap-overrun", "sanitized", 1, "sanitizer", "heap"),
    Fault("far-pointer", "sanitized", 10, "sanitizer", "far"),
    Fault("integer-overflow", "sanitized", 6, "sanitizer", "overflow"),
    Fault("shift-too-far", "sanitized", 7, "sanitizer", "shift"),
)
