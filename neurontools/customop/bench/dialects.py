"""Assembly as compilers write it for x86-64 (AT&T syntax) and aarch64: what instructions are, and how to count with them."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dialect:
    """The assembly of a processor.

    Args:
        comment: what a comment at the end of a line begins with.
        count: adds one to the counter at a distance of so many bytes; changes no flags, for a branch may still ask for
            those of an earlier block.
        count_bytes: adds the third argument of a call instead.
        flags: what the compiler is told beside.
        calls: instructions that call a function, or jump to one.
        ends: instructions after which another number of passes may begin.
        landing: marks where control may come from elsewhere, to be kept in front.
        free: instructions that take no time.
        compare: instructions that only set flags.
        branch: what a compare right before is part of.
        divide: divisions.
        square_root: square roots.
        copy: copies; of a register, or of zero, they are free.
        register: an operand that is a register.
        zero: an operand that is nothing but zero.
        zeroing: instructions that make zero of twice the same register.
        reads_memory: whether any instruction may have an operand in memory.
    """

    comment: str
    count: str
    count_bytes: str
    flags: tuple[str, ...]
    calls: frozenset[str]
    ends: re.Pattern[str]
    landing: re.Pattern[str]
    free: re.Pattern[str]
    compare: re.Pattern[str]
    branch: re.Pattern[str]
    divide: re.Pattern[str]
    square_root: re.Pattern[str]
    copy: re.Pattern[str]
    register: re.Pattern[str]
    zero: re.Pattern[str]
    zeroing: re.Pattern[str]
    reads_memory: bool


X86_64 = Dialect(
    comment="#",
    count="""\tmovq\t%rax, .Lneurontools_scratch(%rip)
\tmovq\t.Lneurontools_counts+{0}(%rip), %rax
\tleaq\t1(%rax), %rax
\tmovq\t%rax, .Lneurontools_counts+{0}(%rip)
\tmovq\t.Lneurontools_scratch(%rip), %rax""",
    count_bytes="\taddq\t%rdx, .Lneurontools_counts+{0}(%rip)",  # flags mean nothing at a call
    flags=(),
    calls=frozenset({"call", "callq", "jmp"}),
    ends=re.compile(r"(?:j\w+|ret\w*|ud2|hlt)\Z"),
    landing=re.compile(r"endbr64\Z"),
    free=re.compile(r"(?:nop\w*|data16|cs|lock|rep|repz|notrack)\Z"),
    compare=re.compile(r"(?:cmp|test)[bwlq]\Z|v?u?comis[sd]\Z"),
    branch=re.compile(r"j(?!mp)\w+\Z"),
    divide=re.compile(r"i?div[bwlq]\Z|v?div[sp][sd]\Z"),
    square_root=re.compile(r"v?sqrt[sp][sd]\Z"),
    copy=re.compile(r"v?mov[a-z0-9]*\Z"),
    register=re.compile(r"%\w+\Z"),
    zero=re.compile(r"(?!)"),
    zeroing=re.compile(r"v?(?:xor[lq]|pxor|xorp[sd])\Z"),
    reads_memory=True,
)

_ADD = """\tstp\tx16, x17, [sp, #-16]!
\tadrp\tx16, .Lneurontools_counts+{{0}}
\tldr\tx17, [x16, #:lo12:.Lneurontools_counts+{{0}}]
\tadd\tx17, x17, {}
\tstr\tx17, [x16, #:lo12:.Lneurontools_counts+{{0}}]
\tldp\tx16, x17, [sp], #16"""

AARCH64 = Dialect(
    comment="//",
    count=_ADD.format("#1"),
    count_bytes=_ADD.format("x2"),
    flags=("-fno-jump-tables",),  # their entries have a byte or two, too few for code that has grown
    calls=frozenset({"bl", "b"}),
    ends=re.compile(
        r"(?:b|b\.?(?:eq|ne|cs|hs|cc|lo|mi|pl|vs|vc|hi|ls|ge|lt|gt|le|al)|[ct]bn?z|ret\w*|br\w*|brk|udf)\Z"
    ),
    landing=re.compile(r"(?:hint|bti|pac\w+)\Z"),
    free=re.compile(r"(?:nop|aut\w+)\Z"),
    compare=re.compile(r"(?:cmp|cmn|tst|fcmpe?)\Z"),
    branch=re.compile(r"b\.?(?:eq|ne|cs|hs|cc|lo|mi|pl|vs|vc|hi|ls|ge|lt|gt|le)\Z"),
    divide=re.compile(r"[fsu]div\Z"),
    square_root=re.compile(r"fsqrt\Z"),
    copy=re.compile(r"f?movi?\Z"),
    register=re.compile(r"(?:[wxbhsdqv]\d+(?:\.\w+)?|sp)\Z"),
    zero=re.compile(r"(?:#?0(?:\.0(?:e\+0)?)?|#?0x0|[wx]zr)\Z"),
    zeroing=re.compile(r"(?!)"),
    reads_memory=False,
)

_DIALECTS = {"x86_64": X86_64, "AMD64": X86_64, "aarch64": AARCH64, "arm64": AARCH64}


def dialect_of(machine: str) -> Dialect | None:
    """Return the assembly of a processor, None for one whose assembly is not known.

    Args:
        machine: its name, as `platform.machine()` gives it.
    """
    return _DIALECTS.get(machine)
