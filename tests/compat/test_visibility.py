"""Who sees the shims: scripts that use what they have, and libraries that ask for torch_xla; no other program."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace, new_class

import pytest

from neurontools.compiler.options import COMPILER_VERSION

LIBRARY = """
    import importlib.util

    def finds():
        return importlib.util.find_spec("torchvision") is not None

    def imports():
        try:
            from torchvision.transforms import InterpolationMode
        except ImportError as error:
            return str(error)
"""


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A module that was installed by pip."""
    home = tmp_path / "site-packages"
    home.mkdir()
    (home / "some_library.py").write_text(textwrap.dedent(LIBRARY))
    monkeypatch.syspath_prepend(home)
    yield importlib.import_module("some_library")
    del sys.modules["some_library"]


@pytest.mark.torch
def test_an_installed_library_does_not_see_the_stand_in_for_torchvision(shims, library):
    assert not library.finds()
    assert library.imports() == "No module named 'torchvision'"


@pytest.mark.torch
def test_a_script_sees_the_stand_in_and_learns_what_it_lacks(shims):
    from torchvision import datasets, transforms

    assert datasets.MNIST
    assert transforms.ToTensor
    with pytest.raises(ImportError, match=r"cannot import name 'InterpolationMode'.*pip install torchvision"):
        from torchvision.transforms import InterpolationMode  # noqa: F401
    with pytest.raises(
        ModuleNotFoundError, match=r"No module named 'torchvision.models'.*pip install torchvision"
    ):
        import torchvision.models  # noqa: F401


def test_the_shims_have_metadata_that_only_programs_under_neuron_run_see(tool, home):
    code = (
        "from importlib.metadata import version, packages_distributions as p\n"
        "print(version('torch_xla'), version('torch-neuronx'), version('neuronx-cc'), p().get('torch_xla'))"
    )
    assert tool("neuron-run", "--", "python", "-c", code).stdout == (
        f"2.13.0 2.13.0 {COMPILER_VERSION} ['torch-xla']\n"
    )
    without = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "PackageNotFoundError: No package metadata was found for torch_xla" in without.stderr


def test_metadata_of_an_installed_package_wins(finder, tmp_path, monkeypatch):
    folder = tmp_path / "torch_xla-9.9.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-xla\nVersion: 9.9\n")
    assert importlib.metadata.version("torch_xla") == "2.13.0"
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.metadata.version("torch_xla") == "9.9"


def test_a_search_of_another_directory_does_not_list_the_shims(finder, tmp_path):
    assert list(importlib.metadata.distributions(path=[str(tmp_path)])) == []


@pytest.mark.torch
def test_the_metadata_has_the_versions_of_the_modules(shims):
    import torch_neuronx
    import torch_xla

    assert importlib.metadata.version("torch_xla") == torch_xla.__version__
    assert importlib.metadata.version("torch_neuronx") == torch_neuronx.__version__


@pytest.mark.torch
def test_a_name_that_the_shims_lack_names_the_nearest(shims):
    import torch_xla
    import torch_xla.core.xla_model as xm

    assert not hasattr(xm, "no_such_name")
    with pytest.raises(
        AttributeError, match=r"has no attribute 'mark_steps'.*nearest supported name: mark_step$"
    ):
        xm.mark_steps()
    with pytest.raises(
        AttributeError, match=r"has no attribute 'send': not simulated; .*collective_permute$"
    ):
        xm.send(None, 0)
    with pytest.raises(
        ImportError, match=r"cannot import name 'recv' from 'torch_xla.core.xla_model': not simulated"
    ):
        from torch_xla.core.xla_model import recv  # noqa: F401
    with pytest.raises(
        ModuleNotFoundError, match=r"No module named 'torch_xla.experimental.scan': not simulated"
    ):
        import torch_xla.experimental.scan
    assert importlib.util.find_spec("torch_xla.experimental.scan") is None
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'neuronxcc.driver': not simulated"):
        import neuronxcc.driver  # noqa: F401
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        torch_xla.nothing()


@pytest.fixture
def nki(finder):
    """Names of NKI, as libraries import them; those of nkilib and of private kernels are not simulated."""
    assert importlib.util.find_spec("nkilib") is None
    assert importlib.util.find_spec("neuronxcc.nki._any_kernels") is None
    known = set(sys.modules)
    import neuronxcc.nki
    import nki
    from nkilib.core import any_part
    from nkilib.core.any_part import Options

    yield SimpleNamespace(jit=nki.jit, nki=neuronxcc.nki, library=any_part, Options=Options)
    for name in set(sys.modules) - known:
        del sys.modules[name]


def test_private_kernels_of_nki_can_be_imported_and_decorate(nki):
    from neuronxcc.nki._any_kernels.attention import flash_fwd

    @nki.library.jit
    def first(a: nki.library.tensor[nki.library.float32], b: nki.library.ndarray | None = None):
        pass

    @nki.library.jit(mode="torchxla")
    def second(a):
        pass

    third = nki.nki.benchmark(warmup=1)(flash_fwd)
    assert not isinstance(1.0, nki.library.float32)
    for kernel, name, nearest in (
        (first, "first", "torch_neuronx.xla_impl.custom_op"),
        (second, "second", "torch_neuronx.xla_impl.custom_op"),
        (third, "attention.flash_fwd", "neuronxcc.nki.jit"),
    ):
        for run in (kernel, kernel[2, nki.Options(lnc=2)]):
            with pytest.raises(NotImplementedError) as caught:
                run(1, 2)
            assert str(caught.value).endswith(f"{name} is not simulated; nearest supported name: {nearest}")


@pytest.mark.parametrize(
    "use",
    [
        lambda nki: nki.library.affine_range(4),
        lambda nki: list(nki.library.sequence),
        lambda nki: nki.library.simulate_kernel(print, 1),
        lambda nki: new_class("Kernel", (nki.library.tensor,)),
        lambda nki: nki.Options().method(1),
    ],
)
def test_a_use_of_what_nki_lacks_is_refused_in_one_line(nki, use):
    with pytest.raises(NotImplementedError, match=r"^\S+ is not simulated; nearest supported name: \S+$"):
        use(nki)


def test_a_name_that_the_simulated_nki_lacks_names_the_nearest(nki):
    with pytest.raises(
        AttributeError, match=r"'affine_rang': not simulated; nearest supported name: affine_range$"
    ):
        nki.nki.language.affine_rang  # noqa: B018
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'neuronxcc.driver'"):
        import neuronxcc.driver  # noqa: F401


@pytest.mark.torch
def test_names_of_torch_neuronx_that_libraries_import(shims):
    from torch_neuronx.experimental.profiler.v2_x.custom_op_name import hlo_debug
    from torch_neuronx.utils.utils import SUPPORTED_TYPES, get_platform_target
    from torch_neuronx.xla_impl.bucket_trace import create_bucket_model
    from torch_neuronx.xla_impl.ops import nki_jit

    torch = pytest.importorskip("torch")

    def made():
        pass

    assert {"trn1", "inf2"} < set(SUPPORTED_TYPES)
    assert callable(get_platform_target)
    assert callable(nki_jit()(made))
    with hlo_debug(add_var_names=True, monitor_modules_list=["models"]):
        pass
    for use in (create_bucket_model, torch.classes.neuron.LayoutTransformation):
        with pytest.raises(NotImplementedError, match="nearest supported name"):
            use(b"")


def test_a_missing_part_of_an_installed_package_is_not_replaced(finder, tmp_path, monkeypatch):
    (tmp_path / "nkilib").mkdir()
    (tmp_path / "nkilib" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'nkilib.core'$"):
        import nkilib.core  # noqa: F401
    del sys.modules["nkilib"]


def test_the_metadata_is_shipped():
    from neurontools import compat

    assert len(list((Path(compat.__path__[0]) / "metadata").glob("*.dist-info/METADATA"))) == 4
