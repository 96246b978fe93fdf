"""Exceptions and Ctrl-C in backward passes, and the guard in C++ that makes them harmless."""

from __future__ import annotations

import _thread
import ctypes
import io
import logging
import os
import signal
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from neurontools.customop.building.native_library import is_intact
from neurontools.customop.errors import CustomOpBuildError
from neurontools.errors import MissingDependencyError, NeuronToolsError
from neurontools.xla import api, buffers, device, device_guard, recorder_lock
from neurontools.xla.accelerator import DeviceError
from neurontools.xla.device_guard import DeviceGuardError, ensure_guard, register_guard, register_views
from neurontools.xla.geometry import META
from neurontools.xla.operators import find_overload
from neurontools.xla.tensor_kernels import storage_kernels

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.xla.conftest import InMemoryAccelerator

    Hook = Callable[..., Any]
    Loss = Callable[[nn.Sequential, torch.Tensor, Hook], torch.Tensor]

TORCH = torch.__path__[0]


class HookError(Exception):
    """What a hook raises."""


def fail(*_: object) -> None:
    raise HookError


def interrupt(*_: object) -> None:
    signal.raise_signal(signal.SIGINT)


class Hooked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, hook: Hook) -> torch.Tensor:
        ctx.hook = hook
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.hook()
        return grad, None


def on_tensor(model: nn.Sequential, x: torch.Tensor, hook: Hook) -> torch.Tensor:
    y = model[0](x)
    y.register_hook(hook)
    return model[2](model[1](y)).sum()


def on_leaf(model: nn.Sequential, x: torch.Tensor, hook: Hook) -> torch.Tensor:
    model[0].weight.register_hook(hook)
    return model(x).sum()


def on_leaf_after_accumulation(model: nn.Sequential, x: torch.Tensor, hook: Hook) -> torch.Tensor:
    model[0].weight.register_post_accumulate_grad_hook(hook)
    return model(x).sum()


def on_node(model: nn.Sequential, x: torch.Tensor, hook: Hook) -> torch.Tensor:
    loss = model(x).sum()
    loss.grad_fn.next_functions[0][0].register_hook(hook)
    return loss


def before_node(model: nn.Sequential, x: torch.Tensor, hook: Hook) -> torch.Tensor:
    loss = model(x).sum()
    loss.grad_fn.next_functions[0][0].register_prehook(hook)
    return loss


def on_module(model: nn.Sequential, x: torch.Tensor, hook: Hook) -> torch.Tensor:
    model[2].register_full_backward_hook(hook)
    return model(x).sum()


def before_module(model: nn.Sequential, x: torch.Tensor, hook: Hook) -> torch.Tensor:
    model[2].register_full_backward_pre_hook(hook)
    return model(x).sum()


def in_function(model: nn.Sequential, x: torch.Tensor, hook: Hook) -> torch.Tensor:
    return Hooked.apply(model(x), hook).sum()


def on_unpacking(model: nn.Sequential, x: torch.Tensor, hook: Hook) -> torch.Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, hook):
        return model(x).pow(2).sum()


LOSSES = (
    on_tensor, on_leaf, on_leaf_after_accumulation, on_node, before_node, on_module, before_module, in_function,
    on_unpacking,
)  # fmt: skip


@pytest.mark.parametrize(
    ("hook", "raised"), [(fail, HookError), (interrupt, KeyboardInterrupt)], ids=["error", "Ctrl-C"]
)
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_what_a_hook_raises_reaches_the_caller_of_backward(
    machine: InMemoryAccelerator, loss: Loss, hook: Hook, raised: type[BaseException]
) -> None:
    for _ in range(2):  # learned, replayed
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).to("xla")
        x = torch.ones(3, 4).to("xla").requires_grad_()
        with pytest.raises(raised):
            loss(model, x, hook).backward()
        api.mark_step()
        nn.Linear(4, 1).to("xla")(x).sum().backward()
        assert x.grad.shape == x.shape


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError], ids=lambda error: error.__name__)
def test_an_interrupt_in_a_finalizer_is_not_lost(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Held:
        def __del__(self) -> None:
            raise error

    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    recorder_lock.deliver_from(Held.__del__)

    def wait() -> None:
        held = Held()
        del held
        while True:
            pass

    with pytest.raises(error):
        wait()


def test_torch_accelerator_synchronizes_one_device(machine: InMemoryAccelerator) -> None:
    x, y = torch.ones(3, device="xla") + 1, torch.ones(3, device="xla:1") + 1
    torch.accelerator.synchronize()
    assert [api.engine().pending(index) for index in (0, 1)] == [0, 2]
    torch.accelerator.synchronize(1)
    assert api.engine().pending(1) == 0
    z = x * 2
    torch.accelerator.current_stream().synchronize()
    assert api.engine().pending(0) == 0
    event = torch.Event("xla")
    event.record()
    assert event.query()
    assert (x.tolist(), y.tolist(), z.tolist()) == ([2] * 3, [2] * 3, [4] * 3)


def test_the_current_device_is_that_of_torch_accelerator_in_each_thread(machine: InMemoryAccelerator) -> None:
    with torch.accelerator.device_index(1):
        assert torch.xla.current_device() == 1
        assert torch.ones(2, device="xla").device.index == torch.ones(2).to("xla").device.index == 1
        assert torch.accelerator.current_stream().device_index == 1
        x = torch.ones(2, device="xla:0", requires_grad=True)
        y = x.to("xla:1") * 2
        y.register_hook(lambda grad: grad + torch.ones(2, device="xla"))
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(torch.xla.current_device).result() == 0
        y.sum().backward()
        assert torch.xla.current_device() == 1
    assert torch.xla.current_device() == 0
    assert x.grad.device.index == 0
    assert x.grad.tolist() == [4, 4]


def test_torch_accelerator_reads_the_memory_of_a_device(machine: InMemoryAccelerator) -> None:
    x = torch.ones(4).to("xla:1")
    assert torch.accelerator.memory_allocated(1) == x.nbytes
    assert torch.accelerator.get_memory_info(1) == (machine.limit_bytes - x.nbytes, machine.limit_bytes)
    assert torch.accelerator.memory_allocated() == 0
    torch.accelerator.empty_cache()
    torch.accelerator.empty_host_cache()


def test_bare_storages_are_refused(machine: InMemoryAccelerator) -> None:
    with pytest.raises(RuntimeError, match="storages on xla belong to tensors"):
        torch.UntypedStorage(12, device="xla")


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("location", ["xla", torch.device("xla:0"), {"cpu": "xla"}, "xla:1"], ids=str)
def test_a_checkpoint_is_loaded_onto_the_device(
    machine: InMemoryAccelerator, location: Any, zipped: bool
) -> None:
    file = io.BytesIO()
    values = {"a": torch.arange(6.0).reshape(2, 3).T, "b": torch.arange(4, dtype=torch.int8)[1:3]}
    torch.save(values, file, _use_new_zipfile_serialization=zipped)
    file.seek(0)
    loaded = torch.load(file, map_location=location)
    for name, value in values.items():
        assert loaded[name].device == torch.device("xla:1" if location == "xla:1" else "xla:0")
        assert (loaded[name] + 1).tolist() == (value + 1).tolist()


def test_a_failure_while_torch_accelerator_synchronizes_is_raised(machine: InMemoryAccelerator) -> None:
    x = torch.ones(3, device="xla") + 1
    machine.fail_next = ValueError("the core is gone")
    with pytest.raises(ValueError, match="the core is gone"):
        torch.accelerator.synchronize()
    with pytest.raises(NeuronToolsError, match="has no value"):
        x.tolist()


def test_an_interrupt_while_torch_accelerator_synchronizes_is_raised(
    machine: InMemoryAccelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api.engine(), "sync", lambda *_: interrupt())
    with pytest.raises(KeyboardInterrupt):
        torch.accelerator.synchronize()


class Trip(int):
    """The number of a signal that arrives when `now` is read; its handler runs after the next call."""

    now = property(_thread.interrupt_main)


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError], ids=lambda error: error.__name__)
def test_an_interrupt_at_the_entry_of_a_callback_is_raised(
    machine: InMemoryAccelerator, error: type[BaseException]
) -> None:
    def handle(number: int, frame: Any) -> None:
        raise error

    def observe(frame: Any, event: str, called: Any) -> None:
        if event == "c_call" and called is torch._C._accelerator_synchronizeDevice:
            trip.now  # noqa: B018

    before, trip = signal.signal(signal.SIGUSR1, handle), Trip(signal.SIGUSR1)
    x = torch.ones(3, device="xla")
    try:
        x.add_(1)
        sys.setprofile(observe)
        with pytest.raises(error):
            torch.accelerator.synchronize()
    finally:
        sys.setprofile(None)
        signal.signal(signal.SIGUSR1, before)
    assert x.tolist() == [2, 2, 2]


def fake_compiler(home: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> Path:
    """Choose a compiler that is a shell script; return the file in which it counts its compiles."""
    script, compiles = home / "compiler", home / "compiles"
    script.write_text(f"#!/bin/sh\n[ $1 = --version ] && echo fake && exit\necho >> {compiles}\n{body}\n")
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    return compiles


WRITE = 'while [ "$1" != -o ]; do shift; done; echo library > "$2"'


def test_the_guard_is_compiled_once(home: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    compiles = fake_compiler(home, monkeypatch, f"{WRITE}; sleep 0.1")
    with caplog.at_level(logging.INFO, "neurontools.xla"), ThreadPoolExecutor(4) as pool:
        (path,) = set(pool.map(ensure_guard, [TORCH] * 4))
    assert compiles.read_text() == "\n"
    assert len([record for record in caplog.records if "compiled the device guard" in record.message]) == 1
    assert [str(found) for found in (home / "cache" / "neurontools" / "device-guard").iterdir()] == [path]
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    changed = home / "compiler"
    changed.write_text(changed.read_text() + "#")
    assert ensure_guard(TORCH) != path


def test_a_compiler_that_fails_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_compiler(home, monkeypatch, "echo 'x.cpp:1: error: no such header' >&2; exit 1")
    with pytest.raises(
        CustomOpBuildError, match=r"cannot compile the device guard: x\.cpp:1: error: no such header"
    ):
        ensure_guard(TORCH)
    assert list((home / "cache" / "neurontools" / "device-guard").iterdir()) == []


def test_a_library_that_does_not_load_or_that_others_can_replace_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_compiler(home, monkeypatch, WRITE)
    with pytest.raises(DeviceGuardError, match=r"cannot load .*device-guard"):
        register_guard(TORCH, api.engine)
    (home / "cache" / "neurontools" / "device-guard").chmod(0o777)
    with pytest.raises(NeuronToolsError, match="others can write to it"):
        register_guard(TORCH, api.engine)


def cut_to(share: float) -> Callable[[Path], None]:
    def cut(library: Path) -> None:
        os.truncate(library, int(library.stat().st_size * share))

    return cut


def another_program(library: Path) -> None:
    library.write_bytes(Path(sys.executable).read_bytes()[:100_000])


def one_bit(library: Path) -> None:
    data = bytearray(library.read_bytes())
    data[len(data) // 2] ^= 1
    library.write_bytes(data)


def directory(library: Path) -> None:
    library.unlink()
    (library / "inside").mkdir(parents=True)


def pipe(library: Path) -> None:
    library.unlink()
    os.mkfifo(library, 0o600)


def link(library: Path) -> None:
    library.rename(library.with_suffix(".moved"))
    library.symlink_to(library.with_suffix(".moved"))


def longer(library: Path) -> None:
    library.write_bytes(library.read_bytes() + b"\0")


def mode(bits: int) -> Callable[[Path], None]:
    return lambda library: library.chmod(bits)


@pytest.mark.parametrize(
    "damage",
    [cut_to(0), cut_to(0.01), cut_to(0.5), cut_to(0.999), another_program, one_bit, longer, directory, pipe, link,
     mode(0o620), mode(0o602)],
)  # fmt: skip
def test_a_damaged_or_foreign_library_is_compiled_again(
    home: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None]
) -> None:
    compiles = fake_compiler(home, monkeypatch, WRITE)
    library = Path(ensure_guard(TORCH))
    intact = library.read_bytes()
    assert ensure_guard(TORCH) == str(library)
    assert compiles.read_text() == "\n"
    damage(library)
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(ensure_guard, [TORCH] * 4)) == {str(library)}
    assert library.read_bytes() == intact
    assert stat.S_IMODE(library.lstat().st_mode) == 0o600
    assert compiles.read_text() == "\n\n"


def test_a_library_of_another_user_is_compiled_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiles = fake_compiler(home, monkeypatch, WRITE)
    library = ensure_guard(TORCH)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert not is_intact(library)
    monkeypatch.undo()
    assert compiles.read_text() == "\n"


def test_a_compiler_that_writes_nothing_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for program in ("true", fake_compiler(home, monkeypatch, "exit 0").with_name("compiler")):
        monkeypatch.setenv("CXX", str(program))
        with pytest.raises(CustomOpBuildError) as caught:
            ensure_guard(TORCH)
        expected = "cannot compile the device guard: it ended without an error and wrote no file"
        assert caught.value.message.endswith(f"{program} {expected}")


def test_an_intact_library_needs_no_place_to_write(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiles = fake_compiler(home, monkeypatch, WRITE)
    library = Path(ensure_guard(TORCH))
    library.parent.chmod(0o500)
    (home / "cache" / "neurontools").chmod(0o500)
    try:
        assert ensure_guard(TORCH) == str(library)
    finally:
        (home / "cache" / "neurontools").chmod(0o700)
        library.parent.chmod(0o700)
    assert compiles.read_text() == "\n"


def test_without_a_compiler_the_guard_in_python_stays_and_a_warning_says_so(
    machine: InMemoryAccelerator, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setenv("CXX", "/nonexistent/g++")
    with pytest.raises(MissingDependencyError):
        ensure_guard(TORCH)
    device.install_guard(api.engine)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "the compiler in CXX does not work: /nonexistent/g++" in record.message
    assert "an exception or Ctrl-C in a backward pass aborts the process" in record.message


def test_a_guard_is_built_again_for_another_torch(tmp_path: Path) -> None:
    def key(version: str) -> str:
        (tmp_path / "version.py").write_text(version)
        return device_guard._key(str(tmp_path))

    assert key("2.13") == key("2.13") != key("2.14")


@pytest.mark.parametrize("size", [10, 64])
def test_a_message_of_the_guard_fits_its_buffer(size: int) -> None:
    def fail_to_answer() -> Any:
        raise DeviceError("0123456789abcdef", "")

    buffer, kind = ctypes.create_string_buffer(b"#" * size, size), [0]
    with ThreadPoolExecutor(1) as pool:  # in the main thread the error itself is raised
        pool.submit(device_guard._answering(fail_to_answer), 0, 0, kind, None, buffer, size).result()
    assert kind == [device_guard._FAILED]
    shown = str(DeviceError("0123456789abcdef", "")).encode()
    taken = min(size - 1, len(shown))
    assert buffer.raw[:taken] == shown[:taken]
    assert buffer.raw[taken:] == b"#" * (size - taken)


VIEWS = [
    ("view", [[6, 2], [-1], [2, -1, 2], [-2], [-1, -1], [5], [0, -1], [], [3, 4, 1]]),
    ("as_strided", [[[2, 3], [4, 1]], [[2], [0], 3], [[], [], None], [[2], [1, 1]], [[2], [-1]], [[2], [1], -1]]),
    ("_reshape_alias", [[[12], [1]], [[2, 6], [6, 1]], [[4, 3], [1, 4]]]),
    ("t", [[]]),
    ("transpose.int", [[0, 1], [-1, -2], [1, 1], [0, 2], [-4, 0]]),
]  # fmt: skip
BASES = [
    lambda: torch.arange(12.0).view(3, 4).to("xla"),
    lambda: torch.arange(12.0).view(3, 4).to("xla").t(),
    lambda: torch.arange(24).view(6, 4).to("xla")[::2][1:],
    lambda: torch.ones(0, 3).to("xla"),
    lambda: torch.ones(12, device="xla:1"),
    lambda: torch.arange(24.0).view(2, 3, 4).to("xla"),
    lambda: torch.tensor(1.5).to("xla"),
]


def outcome(call: Callable[[], torch.Tensor]) -> object:
    try:
        made = call()
    except (RuntimeError, IndexError) as error:
        return (type(error), str(error).splitlines()[0])
    return (made.dtype, made.device, made.shape, made.stride(), made.storage_offset())


@pytest.mark.parametrize("base", BASES)
def test_views_in_cpp_are_those_of_torch_with_its_messages(
    machine: InMemoryAccelerator, base: Callable[[], torch.Tensor]
) -> None:
    tensor = base()
    for name, cases in VIEWS:
        overload = find_overload(f"aten::{name}")
        for case in cases:
            arguments = [case] if name == "view" else case
            in_python = buffers.view if name == "view" else partial(overload.redispatch, META)
            wanted = outcome(lambda: in_python(tensor, *arguments))  # noqa: B023  called at once
            assert outcome(lambda: overload(tensor, *arguments)) == wanted, (name, case)  # noqa: B023


def test_the_device_has_views_without_the_guard_in_cpp(
    machine: InMemoryAccelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not set(storage_kernels(api.engine())) & set(register_views())
    monkeypatch.setattr(device_guard, "_registered", [])
    kernels = storage_kernels(api.engine())
    base = torch.arange(6.0).to("xla")
    assert kernels["view"](base, [3, 2])[1].tolist() == [2, 3]
    assert kernels["as_strided"](base, [2], [2], 1).tolist() == [1, 3]
