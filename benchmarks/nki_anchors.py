"""The model of kernels against published times: every row of fixtures/engines/nki_anchors.yaml.

    python -m benchmarks.nki_anchors PATH [--kernel NAME] [--fit]

PATH is a clone of the kernels, which this script does not fetch, and decides the rows: the library's of trn2, or the
tutorials' of the first generation on trn1:

    git clone --depth 1 --branch 2.29_release https://github.com/aws-neuron/nki-library PATH
    git clone --depth 1 https://github.com/aws-neuron/nki-samples PATH

Rows of the calibration half are printed one by one, of the report half aggregates alone.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
import types
from os.path import dirname, isdir, join
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple

import ml_dtypes
import numpy as np

import neurontools
from benchmarks.engine_model.published import CALIBRATION, REPORT, read_published
from neurontools.nki.errors import KernelError
from neurontools.nki.first.launch import run as run_first
from neurontools.nki.launch import Kernel, run
from neurontools.nki.limits import TARGET_VARIABLE, limits_of
from neurontools.nki.program import modelled_us, start_us

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_DTYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}
_PACKAGE = "nkilib_src.nkilib.core"


class AnchorVerdict(NamedTuple):
    """A published time and the modelled one, in microseconds."""

    name: str
    kernel: str
    half: str
    published_us: float
    modelled_us: float
    instructions: int
    seconds: float

    @property
    def ratio(self) -> float:
        """Modelled by published time."""
        return self.modelled_us / self.published_us

    @property
    def error(self) -> float:
        """The factor by which the model errs."""
        return max(self.ratio, 1 / self.ratio)


def read_file() -> dict[str, Any]:
    """Return the published times as they are stored."""
    return read_published("nki_anchors")


def prepare_tutorials(samples: str) -> None:
    """Make the kernels of the tutorials importable."""
    tutorials = join(samples, "src", "nki_samples", "tutorials")
    folders = [join(tutorials, name) for name in ("fused_mamba", "matrix_multiplication")]
    sys.path[:0] = [*folders, join(dirname(neurontools.__file__), "compat")]


def prepare(library: str) -> None:
    """Make the kernels importable; modules that only the vendor has get stand-ins of what the kernels use of them."""
    if not isdir(join(library, "src", "nkilib_src")):
        raise SystemExit(f"error: no kernels in {library}\nhint: see --help for what to clone")
    os.environ.setdefault("NKILIB_LOG_LEVEL", "ERROR")
    sys.path[:0] = [library, join(library, "src"), join(dirname(neurontools.__file__), "compat")]
    dtypes: Any = types.ModuleType("neuron_dtypes")
    dtypes.static_cast = lambda values, dtype: np.asarray(values).astype(_DTYPES.get(str(dtype), dtype))
    sys.modules.setdefault("neuron_dtypes", dtypes)
    nki = importlib.import_module("nki")
    if not hasattr(nki, "dtype"):
        nki.dtype = str  # type: ignore[attr-defined]


def _normal(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return reproducible random numbers; large arrays repeat them, as times do not depend on values."""
    count = int(np.prod(shape))
    block = np.random.default_rng(0).standard_normal(min(count, 1 << 20)).astype(dtype)
    return np.resize(block, shape)


def attention_cte(work: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the kernel and arguments of a row of attention over whole sequences."""
    module = importlib.import_module(f"{_PACKAGE}.attention.attention_cte")
    dtype, d = _DTYPES[work["dtype"]], work["d"]

    def array(batch: int, length: int, *, first: bool) -> np.ndarray:
        return _normal((batch, length, d) if first else (batch, d, length), dtype)

    arguments = {
        "q": array(work["bs"], work["q"], first=work["tp_q"]),
        "k": array(work["bs_kv"], work["kv"], first=work["tp_k"]),
        "v": array(work["bs_kv"], work["kv"], first=True),
        "scale": work["scale"],
        "causal_mask": work["causal"],
        "sliding_window": work.get("window", 0),
        "tp_q": work["tp_q"],
        "tp_k": work["tp_k"],
        "tp_out": work["tp_out"],
        "softmax_dtype": "float32",
        "mm_out_dtype": "float32",
    }
    if "prior" in work:
        arguments["k_prior"] = array(work["bs_kv"], work["prior"], first=work["tp_k"])
        arguments["v_prior"] = array(work["bs_kv"], work["prior"], first=True)
        arguments["prior_used_len"] = np.full((1,), work["used"], np.int32)
    if work.get("sink"):
        arguments["sink"] = np.full((work["bs"], 1), 20.0, np.float32)
    if "degree" in work:
        arguments["cp_offset"] = np.full((1, 1), work["rank"] * work["q"], np.int32)
        arguments["global_cp_deg"] = work["degree"]
    return module.attention_cte, arguments


def rmsnorm_quant(work: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the kernel and arguments of a row of normalization and quantization."""
    module = importlib.import_module(f"{_PACKAGE}.rmsnorm.rmsnorm_quant")
    common = importlib.import_module(f"{_PACKAGE}.utils.common_types")
    norm = common.NormType.NO_NORM if work["quant_only"] else common.NormType.RMS_NORM
    hidden = _normal((work["batch"], work["seqlen"], work["hidden"]), _DTYPES["bfloat16"])
    return module.rmsnorm_quant_kernel, {
        "hidden": np.ones_like(hidden) if work["inputs"] == "ones" else hidden,
        "ln_w": _normal((1, work["hidden"]), _DTYPES["bfloat16"]),
        "kargs": module.RmsNormQuantKernelArgs(
            quantization_type=common.QuantizationType.ROW,
            lower_bound=work["lower_bound"],
            norm_type=norm,
            eps=1e-6,
        ),
        "input_dequant_scale": None,
    }


def qkv_tkg(work: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the kernel and arguments of a row of the projections of a token."""
    module = importlib.import_module(f"{_PACKAGE}.qkv.qkv")
    common = importlib.import_module(f"{_PACKAGE}.utils.common_types")
    bf16, shape = _DTYPES["bfloat16"], (work["batch"], work["seqlen"], work["hidden"])
    is_static = work["quantization"] == "STATIC"
    norm = common.NormType[work["norm"]]
    fused = work.get("fused_add", False)
    weights = _normal((work["hidden"], work["width"]), ml_dtypes.float8_e4m3 if is_static else bf16)
    return module.qkv, {
        "input": _normal(shape, bf16),
        "fused_qkv_weights": np.clip(weights.astype(np.float32), -1, 1).astype(weights.dtype)
        if is_static
        else weights,
        "output_layout": common.QKVOutputLayout.BSD,
        "bias": _normal((1, work["width"]), bf16) if work.get("qkv_bias") else None,
        "quantization_type": common.QuantizationType[work["quantization"]],
        "qkv_w_scale": np.full((128, 3), 1 / 240, np.float32) if is_static else None,
        "qkv_in_scale": np.full((128, 1), 1 / 240, np.float32) if is_static else None,
        "fused_residual_add": fused,
        "mlp_prev": _normal(shape, bf16) if fused else None,
        "attention_prev": _normal(shape, bf16) if fused else None,
        "fused_norm_type": norm,
        "gamma_norm_weights": None if norm is common.NormType.NO_NORM else _normal((1, work["hidden"]), bf16),
        "norm_eps": 1e-6,
        "d_head": work["d"],
        "num_q_heads": work["width"] // work["d"] - 2,
        "num_kv_heads": 1,
        "load_input_with_DMA_transpose": True,
    }


def mamba(kernel: str, work: dict[str, Any]) -> tuple[Any, tuple[np.ndarray, ...]]:
    """Return the kernel and arguments of a row of the Mamba layer: one batch, 16 states."""
    channels, length, states = work["channels"], work["length"], 16
    shapes = ((1, channels, length),) * 2 + ((channels, states),) + ((1, states, length),) * 2
    module = importlib.import_module("mamba_nki_kernels")
    return getattr(module, kernel), tuple(_normal(shape, np.float32) for shape in shapes)


def matmul(_kernel: str, work: dict[str, Any]) -> tuple[Any, tuple[np.ndarray, ...]]:
    """Return the kernel and arguments of a row of the product of matrices."""
    module = importlib.import_module("matrix_multiplication_nki_kernels")
    factors = tuple(_normal(shape, ml_dtypes.bfloat16) for shape in ((8192, 4096), (8192, 8192)))
    return getattr(module, f"nki_matmul_{work['variant']}_"), factors


TUTORIALS: dict[str, Callable[[str, dict[str, Any]], tuple[Any, tuple[np.ndarray, ...]]]] = {
    "mamba_v1": mamba,
    "mamba_v2": mamba,
    "mamba_v3": mamba,
    "matmul": matmul,
}
KERNELS: dict[str, Callable[[dict[str, Any]], tuple[Any, dict[str, Any]]]] = {
    "attention_cte": attention_cte,
    "rmsnorm_quant": rmsnorm_quant,
    "qkv_tkg": qkv_tkg,
}


def judge(row: dict[str, Any], target: str) -> AnchorVerdict:
    """Run the kernel of a row and return its verdict."""
    started = time.perf_counter()
    if row["kernel"] in TUTORIALS:
        function, positional = TUTORIALS[row["kernel"]](row["kernel"], row["workload"])
        launch = run_first(function, positional, {}).launch
    else:
        function, arguments = KERNELS[row["kernel"]](row["workload"])
        kernel = function if isinstance(function, Kernel) else Kernel(function)
        launch = run(kernel[row["lnc"]], (), arguments, limits=limits_of(target)).launch
    modelled = modelled_us(launch)
    count = sum(len(core.records) for core in launch.cores)
    seconds = time.perf_counter() - started
    return AnchorVerdict(row["name"], row["kernel"], row["half"], row["us"], modelled, count, seconds)


def aggregate(verdicts: Iterable[AnchorVerdict]) -> str:
    """Return the errors of several rows as text."""
    errors = [verdict.error for verdict in verdicts]
    near = sum(error <= 1.5 for error in errors) / len(errors)
    ratio = fmean(verdict.ratio for verdict in verdicts)
    return f"{len(errors):3d} rows, mean factor {fmean(errors):.3f}, within 1.5: {near:.0%}, worst {max(errors):.2f}, mean ratio {ratio:.2f}"


def fitted_start_us(verdicts: list[AnchorVerdict], start: float) -> float:
    """Return the start whose mean factor of error over calibration rows is the smallest."""
    rows = [(verdict.published_us, verdict.modelled_us - start) for verdict in verdicts]

    def error(candidate: float) -> float:
        return fmean(max((own + candidate) / us, us / (own + candidate)) for us, own in rows)

    return min((float(candidate) for candidate in range(81)), key=error)


def main() -> int:
    """Print the rows of the calibration half and the aggregates of both."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("library", metavar="PATH", help="clone of the kernels")
    parser.add_argument("--kernel", choices=sorted((*KERNELS, *TUTORIALS)), help="only rows of this kernel")
    parser.add_argument("--half", choices=(CALIBRATION, REPORT), help="only this half")
    parser.add_argument(
        "--fit", action="store_true", help="print the start that fits the calibration half best"
    )
    options = parser.parse_args()
    document = read_file()
    if isdir(join(options.library, "src", "nki_samples")):
        prepare_tutorials(options.library)
        os.environ[TARGET_VARIABLE] = "trn1"
        rows = document["tutorials"]
    else:
        prepare(options.library)
        rows = document["anchors"]
    verdicts: list[AnchorVerdict] = []
    failed = 0
    for row in rows:
        if (options.kernel or row["kernel"]) != row["kernel"] or (options.half or row["half"]) != row["half"]:
            continue
        try:
            verdict = judge(row, document["target"])
        except KernelError as error:
            failed += 1
            print(f"{row['name']}: {str(error).splitlines()[0]}")
            continue
        verdicts.append(verdict)
        if verdict.half == CALIBRATION:
            print(
                f"{verdict.name}: published {verdict.published_us:.1f} us, modelled {verdict.modelled_us:.1f}: "
                f"{verdict.ratio:.2f} x ({verdict.instructions} instructions, {verdict.seconds:.1f} s)",
                flush=True,
            )
    for half in (CALIBRATION, REPORT):
        for kernel in (*KERNELS, *TUTORIALS, ""):
            chosen = [item for item in verdicts if item.half == half and kernel in {"", item.kernel}]
            if chosen:
                print(f"{half:11s} {kernel or 'all':14s} {aggregate(chosen)}")
    if options.fit:
        calibration = [item for item in verdicts if item.half == CALIBRATION]
        print(
            f"start that fits best: {fitted_start_us(calibration, start_us(limits_of(document['target']))):.0f} us"
        )
    print(f"{median(item.seconds for item in verdicts):.1f} s a row (median); {failed} rows failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
