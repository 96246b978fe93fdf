"""Public kernels and how to run them on small arrays.

A folder holds the checkouts, which no test fetches:

    nki-library   github.com/aws-neuron/nki-library, branch 2.29_release
    nki-samples   github.com/aws-neuron/nki-samples, commit fc5c69f, the last with all kernels of the first generation
    sdk-2.26      github.com/aws-neuron/aws-neuron-sdk, tag v2.26.0: the folder general/nki
    sdk-2.32      the same repository at 2.32: the folder nki
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import linecache
import os
import sys
import unittest
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import ml_dtypes
import numpy as np

import benchmarks.nki_anchors as anchors
from neurontools.nki import launch as second_generation
from neurontools.nki import runs
from neurontools.nki.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.nki.context import Launch

_BF16 = np.dtype(ml_dtypes.bfloat16)
_TESTS = "sdk-2.26/general/nki/test"
_EXAMPLES_1 = "sdk-2.26/general/nki/examples"
_EXAMPLES_2 = "sdk-2.32/nki/examples"
_REFERENCE = "nki-samples/src/nki_samples/reference"
_LIBRARY = "nki-library/src/nkilib_src/nkilib"


class Finding(NamedTuple):
    """A warning, or the error that ended a kernel.

    Args:
        kind: of the warning; "error".
        text: the location, the message and the notes.
    """

    kind: str
    text: str


class Result(NamedTuple):
    """What the checks say of one launch, or of an error outside of any.

    Args:
        kernel: its name.
        file: where it is.
        findings: what was found.
    """

    kernel: str
    file: str
    findings: tuple[Finding, ...]


def run_file(folder: Path, file: str) -> list[Result]:
    """Run the kernels of a file of the checkouts and return the result of each launch."""
    results: list[Result] = []

    def note(launch: Launch) -> None:
        place = next((item.location.file for item in launch.allocations), "")
        warnings = tuple(Finding(item.kind, f"{item.location}: {item.message}") for item in launch.warnings)
        results.append(Result(launch.kernel, place, warnings))

    def fail(error: BaseException) -> None:
        text = "\n".join([str(error), *getattr(error, "__notes__", ())])
        kind = "error" if isinstance(error, KernelError | IndexError | SyntaxError | ValueError) else "crash"
        results.append(Result("", file, (Finding(kind, text),)))

    with (
        mock.patch.object(runs, "report_warnings", note),
        redirect_stdout(io.StringIO()),
        redirect_stderr(io.StringIO()),
    ):
        _run(folder, file, fail)
    return results


def _run(folder: Path, file: str, fail: Callable[[BaseException], None]) -> None:
    try:
        module = _load(folder, file)
    except Exception as error:
        fail(error)
        return
    if file not in CALLS:
        for case in unittest.defaultTestLoader.loadTestsFromModule(module):
            for test in case:  # type: ignore[attr-defined]
                try:
                    test.debug()
                except Exception as error:
                    if isinstance(error, KernelError) or not isinstance(error, AssertionError):
                        fail(error)  # a kernel with a bug computes something else
        return
    for call in CALLS[file]:
        os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = "trn2"
        try:
            call(module)
        except Exception as error:
            fail(error)


def _load(folder: Path, file: str) -> Any:
    """Import a file anew, with the modules of its checkout that it imports."""
    linecache.checkcache()
    root = str(folder.resolve())
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(root):
            del sys.modules[name]
    importlib.invalidate_caches()
    checkout, _, inside = file.partition("/src/")
    if inside:
        source = str(folder / checkout / "src")
        sys.path[:] = [source, *[path for path in sys.path if not path.startswith(root)]]
        return importlib.import_module(inside.removesuffix(".py").replace("/", "."))
    sys.path[:] = [str((folder / file).parent), *[path for path in sys.path if not path.startswith(root)]]
    spec = importlib.util.spec_from_file_location(Path(file).stem, folder / file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def array(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Return reproducible normal numbers."""
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def _call(name: str, *args: Any, cores: Any = None, **options: Any) -> Callable[[Any], Any]:
    """Return a function that runs a kernel of a module on arguments, which are made for each run."""

    def run(module: Any) -> Any:
        kernel = getattr(module, name)
        if cores is not None:
            kernel = kernel[cores]
        made = [arg() if callable(arg) else arg for arg in args]
        return kernel(*made, **{key: value() if callable(value) else value for key, value in options.items()})

    return run


def _tensor(*shape: int, dtype: Any = np.float32) -> Callable[[], np.ndarray]:
    return lambda: array(*shape, dtype=dtype)


def _from_anchor(kernel: str, cores: int, **work: Any) -> Callable[[Any], Any]:
    """Return a function that runs a kernel that the anchors run, too."""

    def run(_module: Any) -> Any:
        function, arguments = anchors.KERNELS[kernel](work)
        made = (
            function if isinstance(function, second_generation.Kernel) else second_generation.Kernel(function)
        )
        return made[cores](**arguments)

    return run


def _mlp(module: Any) -> Any:
    """Run the projections of a few tokens, with a residual addition and a normalization before."""
    norm = importlib.import_module("nkilib_src.nkilib.core.utils.common_types").NormType.RMS_NORM
    arrays = [
        array(*shape, dtype=_BF16)
        for shape in ((1, 4, 1024), (1024, 512), (1024, 512), (512, 1024), (1, 1024))
    ]
    residual = array(1, 4, 1024, dtype=_BF16)
    return module.mlp[2](
        *arrays, fused_add_tensor=residual, store_fused_add_result=True, normalization_type=norm
    )


_MAMBA = (
    _tensor(1, 128, 1024),
    _tensor(1, 128, 1024),
    _tensor(128, 4),
    _tensor(1, 4, 1024),
    _tensor(1, 4, 1024),
)
_HEADS = (_tensor(128, 512), _tensor(128, 512), _tensor(128, 512))
_MATRICES = (_tensor(256, 256, dtype=_BF16), _tensor(256, 1024, dtype=_BF16))
_MATMULS = (
    _call("nki_matmul_basic_", _tensor(128, 64, dtype=_BF16), _tensor(128, 512, dtype=_BF16)),
    _call("nki_matmul_tiled_", *_MATRICES),
    _call("nki_matmul_hoist_load_", *_MATRICES),
    _call(
        "nki_matmul_block_free_dimension_", _tensor(256, 256, dtype=_BF16), _tensor(256, 1024, dtype=_BF16)
    ),
    _call(
        "nki_matmul_fully_optimized_",
        _tensor(1024, 256, dtype=_BF16),
        _tensor(1024, 512, dtype=_BF16),
        2,
        1,
        8,
    ),
)
_MAMBAS = tuple(_call(f"mamba_v{number}", *_MAMBA) for number in (1, 2, 3))

CALLS: dict[str, tuple[Callable[[Any], Any], ...]] = {
    f"{_EXAMPLES_1}/attention/attention_kernels.py": (
        *[_call(f"attn_fwd_v{number}", *[_tensor(128, 128)] * 3) for number in (1, 2)],
        *[_call(f"attn_fwd_v{number}", *_HEADS) for number in (3, 4, 5, 6, 7, 8, "8a", 9, 10, 11)],
    ),
    f"{_EXAMPLES_1}/average_pool2d/average_pool2d_nki_kernels.py": (
        _call("tensor_avgpool_kernel", _tensor(2, 6, 6), 2),
    ),
    f"{_EXAMPLES_1}/fused_mamba/mamba_nki_kernels.py": _MAMBAS,
    f"{_EXAMPLES_1}/layernorm/layernorm_nki_kernel.py": tuple(
        _call(f"nki_layernorm_kernel_v{number}", _tensor(300, 1000), 1e-5, _tensor(1000), _tensor(1000))
        for number in (1, 2)
    ),
    f"{_EXAMPLES_1}/matrix_multiplication/matrix_multiplication_nki_kernels.py": _MATMULS,
    f"{_EXAMPLES_1}/rmsnorm/rmsnorm_nki_kernels.py": (
        _call("nki_rmsnorm_kernel", _tensor(250, 512), _tensor(512)),
    ),
    f"{_EXAMPLES_1}/sd_attention/sd_attention_nki_kernels.py": (
        _call("fused_self_attn_for_SD_small_head_size", *[_tensor(1024, 64, dtype=_BF16)] * 3),
    ),
    f"{_EXAMPLES_1}/tensor_addition/spmd_tensor_addition_nki_kernels.py": (
        _call("nki_tensor_add", _tensor(256, 1024), _tensor(256, 1024)),
    ),
    f"{_EXAMPLES_1}/tensor_addition/spmd_multiple_nc_tensor_addition_nki_kernels.py": (
        _call("nki_tensor_add_nc2", _tensor(512, 1024), _tensor(512, 1024)),
    ),
    f"{_EXAMPLES_1}/transpose2d/transpose2d_nki_kernels.py": (
        _call("tensor_transpose2D_kernel_", _tensor(2, 12), (3, 4)),
    ),
    f"{_EXAMPLES_2}/average_pool2d/average_pool2d_nki_kernels.py": (
        _call("tensor_avgpool_kernel", _tensor(2, 6, 6), 2),
    ),
    f"{_EXAMPLES_2}/fused_mamba/mamba_nki_kernels.py": _MAMBAS,
    f"{_EXAMPLES_2}/matrix_multiplication/matrix_multiplication_nki_kernels.py": _MATMULS,
    f"{_EXAMPLES_2}/simulate/nki_simulate_example.py": (
        _call("add_kernel", _tensor(128, 512), _tensor(128, 512)),
    ),
    f"{_EXAMPLES_2}/tensor_addition/tensor_addition_nki_kernels.py": (
        _call("nki_tensor_add", _tensor(256, 1024), _tensor(256, 1024)),
    ),
    f"{_EXAMPLES_2}/transpose2d/transpose2d_nki_kernels.py": (
        _call("tensor_transpose2D_kernel_", _tensor(2, 12), (3, 4)),
    ),
    f"{_REFERENCE}/allocated_attention.py": (
        _call(
            "allocated_fused_self_attn_for_SD_small_head_size",
            *[_tensor(1, 128, 4096, dtype=_BF16)] * 2,
            _tensor(1, 4096, 128, dtype=_BF16),
            cores=1,
        ),
    ),
    f"{_REFERENCE}/allocated_fused_linear.py": (
        _call(
            "allocated_fused_rms_norm_qkv", _tensor(1, 128, 512, dtype=_BF16), _tensor(512, 512, dtype=_BF16)
        ),
    ),
    f"{_REFERENCE}/attention.py": (
        _call(
            "flash_fwd",
            _tensor(1, 1, 128, 512, dtype=_BF16),
            _tensor(1, 1, 128, 4096, dtype=_BF16),
            _tensor(1, 1, 4096, 128, dtype=_BF16),
            None,
            cores=(1, 1),
            use_causal_mask=False,
        ),
        _call(
            "flash_attn_bwd",
            *[_tensor(1, 1, 128, 512, dtype=_BF16)] * 5,
            _tensor(1, 1, 128, 4),
            None,
            cores=(1, 1),
        ),
    ),
    f"{_REFERENCE}/tutorial.py": (
        _call(
            "add_kernel_nx8x128x512",
            _tensor(2, 8, 128, 512),
            _tensor(2, 8, 128, 512),
            2 * 8 * 128 * 512,
            cores=2,
        ),
    ),
    f"{_REFERENCE}/vision.py": (
        _call("resize_nearest_fixed_dma_kernel", _tensor(1, 6, 4, 64), (1, 12, 8, 64), cores=1),
        _call("adaptive_avg_pool2d_kernel", _tensor(1, 16, 12, 12), 3),
        _call("select_and_scatter_kernel", _tensor(2, 64, 16, 16), _tensor(2, 64, 8, 8)),
    ),
    "nki-samples/contributed/maxpooling.py": (_call("max_pooling_2d_stride_1", _tensor(128, 64), 3),),
    "nki-samples/contributed/interpolate_bilinear_fwd.py": (
        _call("interpolate_bilinear_2x_fwd", _tensor(1, 16, 10, 12), 5),
    ),
    f"{_LIBRARY}/core/attention/attention_cte.py": tuple(
        _from_anchor(
            "attention_cte",
            2,
            dtype="bfloat16",
            d=128,
            bs=1,
            bs_kv=1,
            q=256,
            kv=256,
            scale=1.0,
            causal=causal,
            tp_q=True,
            tp_k=False,
            tp_out=False,
        )
        for causal in (True, False)
    ),
    f"{_LIBRARY}/core/cumsum/cumsum.py": (_call("cumsum", _tensor(160, 4096)),),
    f"{_LIBRARY}/core/embeddings/rope_hf.py": (
        _call(
            "rope_hf",
            _tensor(1, 2, 256, 128, dtype=_BF16),
            _tensor(1, 1, 256, 128, dtype=_BF16),
            _tensor(1, 2, 256, 128, dtype=_BF16),
            _tensor(1, 1, 256, 128, dtype=_BF16),
            _tensor(256, 128, dtype=_BF16),
            _tensor(256, 128, dtype=_BF16),
            cores=2,
        ),
    ),
    f"{_LIBRARY}/core/max/cascaded_max.py": (_call("cascaded_max", _tensor(4, 4096), cores=2),),
    f"{_LIBRARY}/core/mlp/mlp.py": (_mlp,),
    f"{_LIBRARY}/core/qkv/qkv.py": (
        _from_anchor(
            "qkv_tkg",
            2,
            batch=1,
            seqlen=4,
            hidden=1024,
            width=512,
            d=128,
            quantization="NONE",
            norm="RMS_NORM",
        ),
        _from_anchor(
            "qkv_tkg",
            2,
            batch=1,
            seqlen=256,
            hidden=1024,
            width=512,
            d=128,
            quantization="NONE",
            norm="NO_NORM",
        ),
    ),
    f"{_LIBRARY}/core/rmsnorm/rmsnorm_quant.py": (
        _from_anchor(
            "rmsnorm_quant",
            2,
            batch=1,
            seqlen=256,
            hidden=512,
            quant_only=False,
            lower_bound=0.0,
            inputs="normal",
        ),
    ),
    f"{_LIBRARY}/core/output_projection/output_projection_tkg.py": (
        _call(
            "output_projection_tkg",
            _tensor(128, 1, 2, 4, dtype=_BF16),
            _tensor(256, 1024, dtype=_BF16),
            cores=2,
        ),
    ),
    f"{_LIBRARY}/core/subkernels/find_nonzero_indices.py": (
        _call("find_nonzero_indices", lambda: (array(256, 16) > 0).astype(np.float32), cores=2),
    ),
    f"{_LIBRARY}/core/subkernels/indexed_flatten.py": (
        _call(
            "indexed_flatten",
            lambda: np.arange(4 * 512, dtype=np.int32).reshape(4, 512),
            32,
            2560,
            lambda: np.array([0, 16, 32, 48], np.int32),
            cores=2,
        ),
    ),
    f"{_LIBRARY}/experimental/conv/conv1d.py": (
        _call("conv1d", _tensor(1, 128, 256, dtype=_BF16), _tensor(3, 128, 128, dtype=_BF16), padding=(1, 1)),
    ),
    f"{_LIBRARY}/experimental/dynamic_shapes/dynamic_elementwise_add.py": (
        _call(
            "dynamic_elementwise_add",
            _tensor(256, 512, dtype=_BF16),
            _tensor(256, 512, dtype=_BF16),
            lambda: np.array([[2]], np.int32),
        ),
    ),
    f"{_LIBRARY}/experimental/loss/cross_entropy.py": (
        _call(
            "cross_entropy_forward",
            _tensor(128, 2048, dtype=_BF16),
            lambda: np.arange(128, dtype=np.int32),
            32,
            1024,
            cores=2,
        ),
    ),
    f"{_LIBRARY}/core/topk/rotational_topk.py": (_call("topk", _tensor(1, 4, 4096), 8, cores=2),),
}


def public_files(folder: Path) -> list[str]:
    """Return the files with kernels that are run: those of `CALLS` and the tests of the documents."""
    tests = sorted(path.relative_to(folder).as_posix() for path in (folder / _TESTS).glob("test_*.py"))
    return [*tests, *CALLS]


def prepare(folder: Path) -> None:
    """Make the kernels importable."""
    sys.dont_write_bytecode = True
    anchors.prepare(str(folder / "nki-library"))
