"""Seeded bugs in public kernels: which of them the checks name, at which line; and whether kernels without bugs are silent.

    python -m tests.nki.public_library.mutations FOLDER [--unmodified] [--only TEXT]

`public_kernels.py` says what FOLDER holds. Each bug is made in a copy of the checkouts.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.nki.public_library.public_kernels import prepare, public_files, run_file

_TESTS = "sdk-2.26/general/nki/test"
_FIRST = "sdk-2.26/general/nki/examples"
_SECOND = "sdk-2.32/nki/examples"
_REFERENCE = "nki-samples/src/nki_samples/reference"
_LIBRARY = "nki-library/src/nkilib_src/nkilib"
_MATMUL_1 = f"{_FIRST}/matrix_multiplication/matrix_multiplication_nki_kernels.py"
_MATMUL_2 = f"{_SECOND}/matrix_multiplication/matrix_multiplication_nki_kernels.py"
_MAMBA_1 = f"{_FIRST}/fused_mamba/mamba_nki_kernels.py"
_MAMBA_2 = f"{_SECOND}/fused_mamba/mamba_nki_kernels.py"
_ADD_2 = f"{_SECOND}/tensor_addition/tensor_addition_nki_kernels.py"
_SCATTER_1 = f"{_TESTS}/test_nki_nl_load_store_indirect.py"
_CUMSUM = f"{_LIBRARY}/core/cumsum/cumsum.py"
_FLATTEN = f"{_LIBRARY}/core/subkernels/indexed_flatten.py"
_MLP = f"{_LIBRARY}/core/mlp/mlp.py"
_MLP_NORM = f"{_LIBRARY}/core/mlp/mlp_tkg/mlp_tkg_utils.py"
_SKIP = "(lambda *_, **__: None)("


class Mutation(NamedTuple):
    """A bug that is made in one line of a public kernel.

    Args:
        bug: its kind.
        file: where it is made.
        after: text before it, by which the kernel is found.
        old: a short part of the line.
        new: what replaces it.
        finding: kind of the warning that is expected, "error" for an error.
        line: a part of the line that must be named, after `after`; "" for the line of the bug.
        runs: the file whose kernels are run, "" for the same.
    """

    bug: str
    file: str
    after: str
    old: str
    new: str
    finding: str
    line: str = ""
    runs: str = ""


MUTATIONS = (
    Mutation("missing initialisation", _MAMBA_2, "def mamba_v1", "scanC_accum = nl.zeros(", "scanC_accum = nl.ndarray(", "unwritten", "dst=scanC_accum"),
    Mutation("missing initialisation", _MAMBA_1, "def mamba_v1", "scanC_accum = nl.zeros(", "scanC_accum = nl.ndarray(", "unwritten", "scanC_accum"),
    Mutation("missing memset", _MATMUL_2, "def nki_matmul_fully", "nisa.memset(", _SKIP, "unwritten", "nisa.tensor_tensor("),
    Mutation("missing memset", _CUMSUM, "def cumsum", "nisa.memset(dst=init_sb", _SKIP + "dst=init_sb", "unwritten", "nisa.tensor_tensor_scan("),
    Mutation("missing memset", f"{_LIBRARY}/experimental/conv/conv1d.py", "", "nisa.memset(dst=input_stacked", _SKIP + "dst=input_stacked", "unwritten", "nisa.nc_matmul("),
    Mutation("missing memset", f"{_LIBRARY}/experimental/loss/cross_entropy.py", "", "nisa.memset(dst=batch_d", _SKIP + "dst=batch_d", "unwritten", "nisa.tensor_tensor(\n                dst=batch_d_corrected"),
    Mutation("missing memset", f"{_LIBRARY}/core/subkernels/find_nonzero_indices.py", "", "nisa.memset(dst=offsets", _SKIP + "dst=offsets", "unwritten", "nisa.tensor_copy(dst=offset_tile"),
    Mutation("missing load", _MATMUL_2, "def nki_matmul_tiled_", "nisa.dma_copy(dst=rhs_tile", _SKIP + "dst=rhs_tile", "unwritten", "nisa.nc_matmul("),
    Mutation("missing load", _MATMUL_1, "def nki_matmul_tiled_", "rhs_tile[...] = nl.load(", "_ = nl.load(", "unwritten", "res_psum += "),
    Mutation("wrong offset", _MATMUL_2, "def nki_matmul_tiled_", "dst=result[m * TILE_M:(m + 1) * TILE_M", "dst=result[0 * TILE_M:(0 + 1) * TILE_M", "carried"),
    Mutation("wrong offset", _MATMUL_1, "def nki_matmul_tiled_", "nl.store(result[m * TILE_M:(m + 1) * TILE_M", "nl.store(result[0 * TILE_M:(0 + 1) * TILE_M", "carried"),
    Mutation("wrong offset", _CUMSUM, "def cumsum", "f_start = f_tile_idx * F_TILE_SIZE", "f_start = 0 * F_TILE_SIZE", "lost", "nisa.dma_copy(\n                dst=y_2d"),
    Mutation("out-of-bounds index", _ADD_2, "def nki_tensor_add", "src=a_input[m * TILE_M:(m + 1) * TILE_M", "src=a_input[(m + 1) * TILE_M:(m + 2) * TILE_M", "error"),
    Mutation("out-of-bounds index", _MATMUL_1, "def nki_matmul_tiled_", "nl.load(lhsT[k * TILE_K:(k + 1) * TILE_K", "nl.load(lhsT[(k + 1) * TILE_K:(k + 2) * TILE_K", "error"),
    Mutation("out-of-bounds index", _SCATTER_1, "def example_indirect_save_2", "idx_expr = 2*nl", "idx_expr = 3*nl", "error", "nl.store("),
    Mutation("swapped operands", _MATMUL_2, "def nki_matmul_tiled_", "stationary=lhsT_tile, moving=rhs_tile", "stationary=rhs_tile, moving=lhsT_tile", "error"),
    Mutation("swapped operands", _MATMUL_1, "def nki_matmul_tiled_", "nl.matmul(lhsT_tile[...], rhs_tile[...]", "nl.matmul(rhs_tile[...], lhsT_tile[...]", "error"),
    Mutation("interrupted accumulation", _MATMUL_2, "def nki_matmul_tiled_", "nisa.nc_matmul(dst=res_psum", "nisa.memset(dst=res_psum, value=0.0); nisa.nc_matmul(dst=res_psum", "sum"),
    Mutation("interrupted accumulation", _MATMUL_2, "def nki_matmul_hoist_load_", "nisa.nc_matmul(", "nisa.tensor_copy(dst=nl.ndarray(res_psum.shape, nl.float32), src=res_psum) if k else None; nisa.nc_matmul(", "sum"),
    Mutation("interrupted accumulation", _MATMUL_1, "def nki_matmul_tiled_", "res_psum += nl.matmul(", "res_psum[...] = 1.0; res_psum += nl.matmul(", "sum"),
    Mutation("sum without a start", _MATMUL_2, "def nki_matmul_tiled_", "nisa.nc_matmul(dst=res_psum", "nisa.nc_matmul(accumulate=True, dst=res_psum", "accumulate"),
    Mutation("loop-carried affine_range", _CUMSUM, "def cumsum", "nl.sequential_range(num_f_tiles)", "nl.affine_range(num_f_tiles)", "carried"),
    Mutation("loop-carried affine_range", _MAMBA_2, "def mamba_v3", "nl.static_range(n_seq_len_tile)", "nl.affine_range(n_seq_len_tile)", "carried"),
    Mutation("loop-carried affine_range", _MAMBA_1, "def mamba_v3", "in nl.static_range(n_seq_len_tile)", "in nl.affine_range(n_seq_len_tile)", "carried", "in nl.affine_range(n_seq_len_tile)"),
    Mutation("loop-carried affine_range", f"{_REFERENCE}/attention.py", "def flash_fwd", "nl.sequential_range(0, num_large_k_tile)", "nl.affine_range(0, num_large_k_tile)", "carried"),
    Mutation("overlapping address", f"{_REFERENCE}/allocated_fused_linear.py", "def allocated", "mod_alloc(base_addr=128*2)", "mod_alloc(base_addr=128)", "error"),
    Mutation("overlapping address", f"{_TESTS}/test_sbuf_modulo_alloc.py", "def allocated_loop_transpose", "mod_alloc(base_addr=0)", "mod_alloc(base_addr=1024)", "error"),
    Mutation("unwritten output", _ADD_2, "def nki_tensor_add", "nisa.dma_copy(dst=c_output", _SKIP + "dst=c_output", "error", "c_output = nl.ndarray("),
    Mutation("unwritten output", f"{_FIRST}/rmsnorm/rmsnorm_nki_kernels.py", "def nki_rmsnorm_kernel", "nl.store(", _SKIP, "error", "out_tensor = nl.ndarray("),
    Mutation("incomplete output", _MATMUL_2, "def nki_matmul_tiled_", "nl.affine_range(N // TILE_N)", "nl.affine_range(N // TILE_N - 1)", "incomplete", "result = nl.ndarray("),
    Mutation("equal scatter indices", _SCATTER_1, "def example_indirect_save_2", "idx_expr = 2*nl", "idx_expr = 0*nl", "scatter", "nl.store("),
    Mutation("equal scatter indices", f"{_TESTS}/test_nki_isa_dma_copy.py", "def nki_indirect_store_oob_err", "expr_arange = 2*nl", "expr_arange = 0*nl", "scatter", "nisa.dma_copy("),
    Mutation("lost write", _ADD_2, "def nki_tensor_add", "nisa.dma_copy(dst=b_tile", "nisa.dma_copy(dst=a_tile", "lost"),
    Mutation("lost write", _MAMBA_2, "def mamba_v2", "nisa.dma_copy(dst=u_i", "nisa.dma_copy(dst=delta_i", "lost"),
    Mutation("lost write", f"{_TESTS}/test_sbuf_modulo_alloc.py", "def allocated_loop_transpose", "identity_load[ix0, iy0] = nl.load(", "a_local[ix0, iy0] = nl.load(", "lost"),
    Mutation("dropped barrier", _MLP_NORM, "if store_fused_add_result", "nisa.core_barrier(", _SKIP, "race", "nisa.dma_compute(\n                dst=fused_output[0:T", _MLP),
    Mutation("missing core sync", _FLATTEN, "def indexed_flatten", "nisa.sendrecv(", _SKIP, "unwritten", "nisa.tensor_tensor("),
    Mutation("missing core sync", f"{_LIBRARY}/core/qkv/qkv_tkg.py", "", "nisa.sendrecv(", _SKIP, "unwritten", "nisa.tensor_tensor(output_sb", f"{_LIBRARY}/core/qkv/qkv.py"),
    Mutation("deadlock", _FLATTEN, "def indexed_flatten", "nisa.sendrecv(", f"(nisa.sendrecv if shard_id == 0 else {_SKIP[:-1]})(", "error"),
    Mutation("deadlock", _MLP_NORM, "if store_fused_add_result", "if num_shards > 1 and normtype", "if shard_id == 0 and normtype", "error", "nisa.core_barrier(", _MLP),
)  # fmt: skip


RIGHTLY_WARNED = {("example_indirect_save_1", "incomplete"), ("example_indirect_save_2", "incomplete")}
"""Warnings of kernels without seeded bugs that are right: these examples write every second row of their result."""


class Outcome(NamedTuple):
    """What became of a mutation.

    Args:
        found: "named" where the expected finding names the line, "kind" where it names others, "other", or "missed".
        line: the line that is to be named.
        text: the finding.
    """

    found: str
    line: int
    text: str


def line_number(text: str, after: str, part: str) -> int:
    """Return the number of the first line with a part, behind another text."""
    start = text.index(after)
    return text.count("\n", 0, text.index(part, start)) + 1


def try_mutation(folder: Path, mutation: Mutation) -> Outcome:
    """Make a bug, run the kernels, undo it, and return what the checks say."""
    path = folder / mutation.file
    original = path.read_text(encoding="utf-8")
    place = original.index(mutation.old, original.index(mutation.after))
    mutated = original[:place] + mutation.new + original[place + len(mutation.old) :]
    line = mutated.count("\n", 0, place) + 1
    if mutation.line:
        line = line_number(mutated, mutation.after, mutation.line)
    path.write_text(mutated, encoding="utf-8")
    try:
        results = run_file(folder, mutation.runs or mutation.file)
    finally:
        path.write_text(original, encoding="utf-8")
    findings = [finding for result in results for finding in result.findings]
    named = re.compile(rf"{re.escape(str(path))}:{line}\b")
    for finding in findings:
        if finding.kind == mutation.finding and named.search(finding.text):
            return Outcome("named", line, finding.text)
    for found, kind in (("kind", mutation.finding), ("other", "")):
        for finding in findings:
            if kind in {"", finding.kind}:
                return Outcome(found, line, f"{finding.kind}: {finding.text}")
    return Outcome("missed", line, "")


def _report_mutations(folder: Path, only: str) -> int:
    named = 0
    chosen = [mutation for mutation in MUTATIONS if only in f"{mutation.bug} {mutation.file}"]
    for mutation in chosen:
        outcome = try_mutation(folder, mutation)
        named += outcome.found == "named"
        first = outcome.text.replace(f"{folder}/", "").split("\n")[0]
        print(
            f"{outcome.found:6s} {mutation.bug}: {mutation.file}:{outcome.line}: {mutation.finding}\n       {first}",
            flush=True,
        )
    print(f"{named} of {len(chosen)} mutations named at the line")
    return len(chosen) - named


def _report_unmodified(folder: Path, only: str) -> int:
    silent: set[tuple[str, str]] = set()
    loud: set[tuple[str, str]] = set()
    for file in public_files(folder):
        if only not in file:
            continue
        for result in run_file(folder, file):
            key = (result.file, result.kernel)
            wrong = [item for item in result.findings if (result.kernel, item.kind) not in RIGHTLY_WARNED]
            (loud if wrong else silent).add(key)
            for finding in wrong:
                print(
                    f"{result.kernel or file}: {finding.kind}: {finding.text.replace(f'{folder}/', '')}",
                    flush=True,
                )
    silent -= loud
    print(f"{len(silent)} kernels without a wrong warning, {len(loud)} with")
    return len(loud)


def main() -> int:
    """Print what becomes of each mutation, or what is found in kernels without bugs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="the checkouts")
    parser.add_argument("--unmodified", action="store_true", help="run the kernels as they are")
    parser.add_argument("--only", default="", metavar="TEXT", help="bugs or files that contain this")
    options = parser.parse_args()
    if options.unmodified:
        folder = options.folder.resolve()
        prepare(folder)
        return 1 if _report_unmodified(folder, options.only) else 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve() / "checkouts"
        shutil.copytree(
            options.folder, folder, ignore=shutil.ignore_patterns("*.png", "*.svg", "*.rst", ".git")
        )
        prepare(folder)
        return 1 if _report_mutations(folder, options.only) else 0


if __name__ == "__main__":
    sys.exit(main())
