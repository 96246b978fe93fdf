"""Counters in assembly: which blocks there are, what one pass through each takes, and that code does what it did."""

from __future__ import annotations

import platform
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neurontools.customop.bench.arithmetic_rates import arithmetic_rates
from neurontools.customop.bench.assembly import Block, count_blocks, defined_symbols
from neurontools.customop.bench.dialects import AARCH64, X86_64, dialect_of
from neurontools.customop.bench.instructions import call_cycles, cycles_of, parse_instruction

if TYPE_CHECKING:
    from pathlib import Path

RATES = arithmetic_rates()
EMULATOR = ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu")

LOOP = """\t.file\t"loop.cpp"
\t.text
\t.globl\tscale
scale:
.LFB0:
\t.file 1 "loop.cpp"
\t.loc 1 2 3
\ttestq\t%rsi, %rsi
\tje\t.L1
\txorl\t%eax, %eax
\t.p2align 4
.L3:
\t.loc 1 3 5 discriminator 1
\tmovss\t(%rdi,%rax,4), %xmm1
\tmulss\t%xmm0, %xmm1
\tmovss\t%xmm1, (%rdi,%rax,4)
\t.loc 1 2 7
\taddq\t$1, %rax
.LBB7:
\tcmpq\t%rax, %rsi
\tjne\t.L3
.L1:
\tret
"""


def passes(blocks: list[Block]) -> list[list[tuple[int, float]]]:
    return [[(segment.line, segment.cycles) for segment in block.segments] for block in blocks]


def test_a_loop_has_its_blocks_and_lines() -> None:
    unit = count_blocks(LOOP, "/home/me", defined_symbols(LOOP), RATES, X86_64)
    assert passes(unit.blocks) == [[(2, 1)], [(2, 0)], [(3, 3), (2, 2)], [(2, 1)]]
    assert {segment.path for block in unit.blocks for segment in block.segments} == {"/home/me/loop.cpp"}
    numbers = [segment.number for block in unit.blocks for segment in block.segments]
    assert numbers == list(range(5))
    lines = unit.text.splitlines()
    assert [line for line in lines if line in LOOP.splitlines()] == LOOP.splitlines()
    assert lines[lines.index(".L3:") + 2].startswith("\tmovq\t%rax, .Lneurontools_scratch")


def test_labels_for_debuggers_end_no_block() -> None:
    one = "f:\n.LFB1:\n\tnop\n.LBB2:\n\taddl\t$1, %eax\n.Ltmp3:\n\tret\n\t.section\t.debug_info\n\t.quad\t.Ltmp3\n"
    assert passes(count_blocks(one, "/", frozenset("f"), RATES, X86_64).blocks) == [[(0, 2)]]
    table = one.replace(".debug_info", ".rodata")
    assert len(count_blocks(table, "/", frozenset("f"), RATES, X86_64).blocks) == 2


def test_what_a_copy_copies_is_counted_in_bytes() -> None:
    text = "f:\n\tmovl\t$1024, %edx\n\tcall\tmemcpy@PLT\n\tret\n"
    unit = count_blocks(text, "/", frozenset("f"), RATES, X86_64)
    assert passes(unit.blocks) == [[(0, 3)], [(0, 1 / RATES.copied_bytes_per_cycle)]]
    assert "\taddq\t%rdx, .Lneurontools_counts+8(%rip)" in unit.text


@pytest.mark.parametrize(
    ("text", "cycles"),
    [
        ("addss\t%xmm0, %xmm1", 1),
        ("addss\t4(%rax), %xmm1", 2),
        ("addl\t$1, (%rax)", 3),
        ("cmpl\t$1, (%rax)", 2),
        ("movss\t(%rax), %xmm0", 1),
        ("movl\t$7, %eax", 1),
        ("movaps\t%xmm0, %xmm1", 0),
        ("movq\t%rdi, %rbx", 0),
        ("pxor\t%xmm0, %xmm0", 0),
        ("xorl\t%eax, %eax", 0),
        ("xorl\t%eax, %ecx", 1),
        ("divss\t%xmm0, %xmm1", RATES.divide_cycles),
        ("divss\t(%rax), %xmm1", RATES.divide_cycles + 1),
        ("sqrtss\t%xmm0, %xmm0", RATES.square_root_cycles),
        ("idivl\t%ecx", RATES.divide_cycles),
        ("leaq\t8(%rax,%rbx,4), %rcx", 1),
        ("call\texpf@PLT", 1),
        ("nop", 0),
        ("endbr64", 0),
        ("jmp\t.L3", 1),
        ("ret", 1),
    ],
)
def test_what_instructions_take(text: str, cycles: int) -> None:
    assert cycles_of(parse_instruction(f"\t{text}  # a comment (%rax)", X86_64), None, RATES) == cycles


def test_a_branch_is_part_of_the_compare_before_it() -> None:
    words = ("\tcomiss\t%xmm0, %xmm1", "\taddq\t$1, %rax", "\tjbe\t.L7")
    compare, add, branch = (parse_instruction(word, X86_64) for word in words)
    assert cycles_of(branch, compare, RATES) == 0
    assert cycles_of(branch, add, RATES) == cycles_of(branch, None, RATES) == 1


def test_what_calls_take() -> None:
    known = RATES.function_cycles
    for symbol, name in (("expf", "exp"), ("tanh", "tanh"), ("__expf_finite", "exp"), ("fmaf", "fma")):
        assert call_cycles(symbol, frozenset(), RATES) == known[name]
    assert call_cycles("malloc", frozenset(), RATES) == RATES.other_function_cycles
    own = frozenset({"_Z6doublef"})
    free = ("", "memcpy", "_Z6doublef", "_ZN11neurontools8tcm_roomEPKv", "_ZN5torch3addERKNS_6TensorES2_")
    assert [call_cycles(symbol, own, RATES) for symbol in free] == [0] * len(free)
    callees = [
        parse_instruction(f"\t{word}", X86_64).callee for word in ("call\t*%rax", "jmp\t.L3", "jmp\texpf@PLT")
    ]
    assert callees == ["", "", "expf"]
    assert parse_instruction("\tbl\texpf", AARCH64).callee == "expf"


@pytest.mark.parametrize(
    ("text", "cycles"),
    [
        ("ldr\ts0, [x0, x1, lsl 2]", 1),
        ("str\ts0, [x0], 4", 1),
        ("fmul\ts0, s0, s1", 1),
        ("fmov\ts0, s8", 0),
        ("mov\tx19, x0", 0),
        ("mov\tw0, 7", 1),
        ("mov\tw0, 0", 0),
        ("movi\tv0.2s, #0", 0),
        ("movi\tv0.2s, #1", 1),
        ("fdiv\ts0, s0, s8", RATES.divide_cycles),
        ("sdiv\tw0, w1, w2", RATES.divide_cycles),
        ("fsqrt\ts0, s0", RATES.square_root_cycles),
        ("bl\texpf", 1),
        ("hint\t25", 0),
        ("cbz\tx0, .L3", 1),
        ("ret", 1),
    ],
)
def test_what_instructions_take_on_aarch64(text: str, cycles: int) -> None:
    assert cycles_of(parse_instruction(f"\t{text}  // a comment (%rax)", AARCH64), None, RATES) == cycles


def test_blocks_end_on_aarch64_too() -> None:
    ends = (
        "b\t.L3",
        "bne\t.L3",
        "b.ne\t.L3",
        "cbnz\tx0, .L3",
        "tbz\tx0, 3, .L3",
        "ret",
        "br\tx3",
        "bmi\t.L1",
    )
    goes_on = ("bl\texpf", "blr\tx3", "bic\tx0, x0, x1", "bfi\tx0, x1, 3, 4", "fcmpe\ts0, #0.0")
    assert all(parse_instruction(f"\t{text}", AARCH64).ends_block for text in ends)
    assert not any(parse_instruction(f"\t{text}", AARCH64).ends_block for text in goes_on)
    compare, branch = (parse_instruction(word, AARCH64) for word in ("\tfcmpe\ts0, #0.0", "\tbmi\t.L6"))
    assert cycles_of(branch, compare, RATES) == 0


PROGRAM = """
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
extern "C" { extern std::uint64_t __start_neurontools_counts[]; extern std::uint64_t __stop_neurontools_counts[]; }
__attribute__((noinline)) int collatz(unsigned long n) {
  int steps = 0;
  while (n != 1) { n = n % 2 ? 3 * n + 1 : n / 2; ++steps; }
  return steps;
}
__attribute__((noinline)) int choose(int n) {
  switch (n % 7) { case 0: return 5 + n; case 1: return n * n; case 2: return n - 9; case 3: return n | 64;
                   case 4: return ~n; case 5: return n << 2; default: throw std::runtime_error("six"); }
}
int main(int, char** words) {
  const int n = std::atoi(words[1]);
  long sum = 0;
  for (int i = 1; i <= n; ++i) {
    sum += collatz(i);
    try { sum += choose(i); } catch (const std::exception&) { ++sum; }
  }
  std::printf("%ld", sum);
  for (std::uint64_t* count = __start_neurontools_counts; count != __stop_neurontools_counts; ++count)
    std::printf(" %llu", static_cast<unsigned long long>(*count));
}
"""


@pytest.mark.parametrize("compiler", ["g++", "clang++", "aarch64-linux-gnu-g++"])
@pytest.mark.parametrize("level", ["-O0", "-O2", "-O3"])
def test_a_program_with_counters_does_what_it_did(tmp_path: Path, compiler: str, level: str) -> None:
    foreign = compiler.startswith("aarch64") and platform.machine() != "aarch64"
    dialect = AARCH64 if compiler.startswith("aarch64") else dialect_of(platform.machine())
    if not shutil.which(compiler) or (foreign and not shutil.which(EMULATOR[0])):
        pytest.skip(f"no {compiler}, or no {EMULATOR[0]}")
    if dialect is None:
        pytest.skip(f"counters are not for {platform.machine()}")

    def compile_(*words: str) -> None:
        subprocess.run([compiler, *words], cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / "program.cpp").write_text(PROGRAM)
    compile_(level, "-g1", "-gdwarf-4", "-fPIE", *dialect.flags, "-S", "program.cpp")
    text = (tmp_path / "program.s").read_text()
    unit = count_blocks(text, str(tmp_path), defined_symbols(text), RATES, dialect)
    (tmp_path / "counted.s").write_text(unit.text)
    compile_("counted.s", "-o", "counted")
    plain_sum = _plain(200)
    answer = subprocess.run(
        [*(EMULATOR if foreign else ()), tmp_path / "counted", "200"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    total, counts = int(answer[0]), [int(word) for word in answer[1:]]
    assert total == plain_sum
    assert len(counts) == len(unit.blocks)
    steps = sum(_collatz(number) for number in range(1, 201))
    step = next(number for number, line in enumerate(PROGRAM.splitlines(), 1) if "while (n != 1)" in line)
    most = max(
        count
        for block, count in zip(unit.blocks, counts, strict=True)
        if any(segment.line == step for segment in block.segments)
    )
    assert steps <= most <= steps + 200


def _collatz(number: int) -> int:
    steps = 0
    while number != 1:
        number = 3 * number + 1 if number % 2 else number // 2
        steps += 1
    return steps


def _plain(count: int) -> int:
    ways = (
        lambda n: n + 5,
        lambda n: n * n,
        lambda n: n - 9,
        lambda n: n | 64,
        lambda n: ~n,
        lambda n: n << 2,
        lambda _n: 1,
    )
    return sum(_collatz(number) + ways[number % 7](number) for number in range(1, count + 1))


@given(st.lists(st.sampled_from(["\taddl\t$1, %eax", "\tjne\t.L1", "\tret", ".L1:", "\t.loc 1 4", "f:"])))
@settings(max_examples=60)
def test_every_instruction_is_in_one_block(lines: list[str]) -> None:
    text = "\n".join(["start:", "\tjmp\t.L1", *lines, ""])
    unit = count_blocks(text, "/", frozenset(), RATES, X86_64)
    cycles = sum(segment.cycles for block in unit.blocks for segment in block.segments)
    assert cycles == 1 + sum(line.startswith("\t") and not line.startswith("\t.") for line in lines)
    numbers = sorted(segment.number for block in unit.blocks for segment in block.segments)
    assert numbers == list(range(len(numbers)))


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ('"loop.cpp"', "/home/me/loop.cpp"),
        ('"/src" "loop.cpp"', "/src/loop.cpp"),
        ('"../a b/loop.cpp"', "/home/a b/loop.cpp"),
        ('"a \\\\ \\" \\303\\274.cpp"', '/home/me/a \\ " ü.cpp'),
        ('"ü.cpp"', "/home/me/ü.cpp"),
    ],
)
def test_names_of_files(written: str, path: str) -> None:
    text = f"\t.file 7 {written}\nf:\n\t.loc 7 3 1\n\tret\n"
    (block,) = count_blocks(text, "/home/me", frozenset("f"), RATES, X86_64).blocks
    assert (block.segments[0].path, block.segments[0].line) == (path, 3)
