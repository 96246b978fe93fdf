from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from neurontools.cache import extraction, layouts, show
from neurontools.cache.entries import scan
from neurontools.cache.entry_files import State
from neurontools.cache.events import Usage
from neurontools.cache.flags import flags_hash
from neurontools.cache.layouts import CacheLayout
from neurontools.cache.logs import WrapperFormatter
from neurontools.cache.store import CompileCache
from neurontools.cache.walk import EntryRef
from neurontools.compiler.compile import COMPILER_VERSION, compile_graph
from neurontools.compiler.graph import graph_from_bytes
from neurontools.compiler.neff import NeffError, parse
from neurontools.compiler.options import CompileError
from neurontools.machine.instances.catalogue import instance_type
from tests.cache.entries import entry_path
from tests.compiler.graphs import custom_graph, mlp

if TYPE_CHECKING:
    from tests.cache.conftest import Tree

TRN1 = instance_type("trn1.2xlarge").device
TRN2 = instance_type("trn2.48xlarge").device
Opener = Callable[..., CompileCache]
BROKEN = mlp(dtype="complex128")


def state_of(cache: CompileCache, path: str) -> State:
    return next(entry.state for entry in scan(cache.root).entries if entry.path == path)


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.tag, record.getMessage()) for record in caplog.records]  # type: ignore[attr-defined]


def test_a_graph_is_compiled_once(open_cache: Opener) -> None:
    first = open_cache().get_or_compile(mlp(), TRN1, "mlp")
    second = open_cache().get_or_compile(mlp(), TRN1, "mlp")
    assert (first.hit, second.hit) == (False, True)
    assert second.data == first.data
    assert second.neff.graph == mlp()
    assert parse(second.data, validate_hash=True).header.name == "mlp"


def test_an_entry_has_the_documented_layout(open_cache: Opener, home: Path) -> None:
    cache = open_cache(NEURON_CC_FLAGS="--model-type=transformer --cache_dir=" + str(home / "flagged"))
    entry = Path(cache.get_or_compile(mlp(), TRN1, "mlp").entry)
    flags = ["--target=trn1", "--model-type=transformer"]
    assert entry.parent == home / "flagged" / f"neuronxcc-{COMPILER_VERSION}"
    assert entry.name == f"MODULE_{mlp().module_hash()}+{flags_hash(flags)}"
    assert entry.name.endswith("+3cc9a3cb")
    assert {path.name for path in entry.iterdir()} == {
        "model.hlo_module.pb",
        "compile_flags.json",
        "model.neff",
        "model.done",
        ".compiled_by.json",
    }
    assert json.loads((entry / "compile_flags.json").read_text()) == flags
    assert graph_from_bytes((entry / "model.hlo_module.pb").read_bytes()) == mlp()
    assert (entry / "model.done").read_bytes() == b""
    assert (
        (home / "flagged" / "CACHEDIR.TAG")
        .read_text()
        .startswith("Signature: 8a477f597d28d172789f06886806bc55")
    )
    assert (home / "flagged" / "lock").read_bytes() == b""


def test_an_existing_directory_is_not_marked_as_a_cache(open_cache: Opener, home: Path) -> None:
    (home / "mine").mkdir()
    (home / "mine" / "notes.txt").touch()
    open_cache(str(home / "mine")).get_or_compile(mlp(), TRN1, "mlp")
    assert not (home / "mine" / "CACHEDIR.TAG").exists()


def test_source_lines_do_not_make_another_entry(open_cache: Opener) -> None:
    cache = open_cache()
    cache.get_or_compile(mlp(), TRN1, "mlp")
    assert cache.get_or_compile(mlp(source="train.py:99"), TRN1, "mlp").hit


def test_flags_target_core_size_and_libraries_make_other_entries(open_cache: Opener) -> None:
    graph, part = custom_graph()
    other, other_part = custom_graph(b"\x7fELF 2")
    made = [
        open_cache().get_or_compile(mlp(), TRN1, "a"),
        open_cache().get_or_compile(mlp(), instance_type("inf2.xlarge").device, "a"),
        open_cache().get_or_compile(mlp(), TRN2, "a"),
        open_cache(NEURON_LOGICAL_NC_CONFIG="1").get_or_compile(mlp(), TRN2, "a"),
        open_cache(NEURON_CC_FLAGS="-O1").get_or_compile(mlp(), TRN1, "a"),
        open_cache(NEURON_CC_FLAGS="-O1 --x").get_or_compile(mlp(), TRN1, "a"),
        open_cache(NEURON_CC_FLAGS="--x -O1").get_or_compile(mlp(), TRN1, "a"),
        open_cache().get_or_compile(graph, TRN1, "a", [part]),
        open_cache().get_or_compile(other, TRN1, "a", [other_part]),
    ]
    assert not any(result.hit for result in made)
    assert len({result.entry for result in made}) == len(made)
    assert [result.neff.header.lnc for result in made[2:4]] == [2, 1]


def test_the_machines_core_size_is_a_flag_only_where_it_is_not_the_default(open_cache: Opener) -> None:
    cache = open_cache(NEURON_LOGICAL_NC_CONFIG="1")
    assert cache.flags_for(TRN2) == ("--target=trn2", "--logical-nc-config=1")
    assert cache.flags_for(TRN2, lnc=2) == ("--target=trn2",)
    assert cache.flags_for(TRN1) == ("--target=trn1",)


def test_bfloat16_in_place_of_float32_is_a_flag_where_it_has_an_effect(open_cache: Opener) -> None:
    device = {"NEURONTOOLS_NUMERICS": "device"}
    assert open_cache(**device).flags_for(TRN1) == ("--target=trn1",)
    assert open_cache(XLA_USE_BF16="1").flags_for(TRN1) == ("--target=trn1",)
    for name in ("XLA_USE_BF16", "XLA_DOWNCAST_BF16"):
        cache = open_cache(**device, **{name: "1"})
        assert cache.flags_for(TRN1) == ("--target=trn1", f"--downcast={name}")


def test_a_target_of_the_user_stays(open_cache: Opener) -> None:
    assert open_cache(NEURON_CC_FLAGS="--target=trn1n").flags_for(TRN1) == ("--target=trn1n",)


def test_log_lines_are_those_of_the_wrapper(open_cache: Opener, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "neurontools.cache")
    cache = open_cache()
    entry = cache.get_or_compile(mlp(), TRN1, "mlp").entry
    cache.get_or_compile(mlp(), TRN1, "mlp")
    assert lines(caplog) == [
        ("NEURON_CACHE", f"Compile cache path: {cache.root}"),
        (
            "NEURON_CC_WRAPPER",
            (
                f"Call compiler with cmd: neuronx-cc compile --framework=XLA {entry}/model.hlo_module.pb "
                f"--output {entry}/model.neff --target=trn1 --verbose=35"
            ),
        ),
        ("NEURON_CC_WRAPPER", f"Using a cached neff at {entry}/model.neff"),
    ]


def test_a_log_line_has_the_real_shape() -> None:
    record = logging.LogRecord(
        "neurontools.cache", logging.INFO, "", 0, "%s", ("Compile cache path: /x",), None
    )
    record.created, record.msecs, record.process, record.tag = 1_693_000_296.433, 433.0, 7592, "NEURON_CACHE"
    text = WrapperFormatter().format(record)
    assert text.endswith(".000433:  7592  INFO ||NEURON_CACHE||: Compile cache path: /x")
    assert len(text.partition(".")[0]) == len("2023-08-25 21:51:36")


def test_no_cache_neither_reads_nor_writes(open_cache: Opener, home: Path) -> None:
    result = open_cache(NEURON_CC_FLAGS="--no_cache").get_or_compile(mlp(), TRN1, "mlp")
    assert (result.hit, result.entry) == (False, "")
    assert not (home / "compile-cache").exists()
    open_cache().get_or_compile(mlp(), TRN1, "mlp")
    assert not open_cache(NEURON_CC_FLAGS="--no_cache").get_or_compile(mlp(), TRN1, "mlp").hit


@pytest.mark.parametrize("damage", [b"", b"x" * 5000, None])
def test_a_damaged_neff_is_a_miss_and_compiled_again(
    open_cache: Opener, damage: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    first = open_cache().get_or_compile(mlp(), TRN1, "mlp")
    neff = Path(first.entry) / "model.neff"
    neff.write_bytes(first.data[:-7] if damage is None else damage)
    again = open_cache().get_or_compile(mlp(), TRN1, "mlp")
    assert (again.hit, again.data) == (False, first.data)
    assert "Ignoring the damaged neff" in caplog.text
    assert open_cache().get_or_compile(mlp(), TRN1, "mlp").hit
    assert Usage(open_cache().root).totals().damaged == 1


def test_the_neff_of_another_graph_is_not_a_hit(open_cache: Opener, caplog: pytest.LogCaptureFixture) -> None:
    first = open_cache().get_or_compile(mlp(), TRN1, "mlp")
    other = open_cache().get_or_compile(mlp(8), TRN1, "mlp")
    (Path(first.entry) / "model.neff").write_bytes(other.data)
    again = open_cache().get_or_compile(mlp(), TRN1, "mlp")
    assert (again.hit, again.data) == (False, first.data)
    assert "another graph" in caplog.text


def test_the_full_hash_is_checked_on_request(open_cache: Opener) -> None:
    first = open_cache().get_or_compile(mlp(), TRN1, "mlp")
    neff = bytearray(first.data)
    neff[5 * 8 + 128 + 4] ^= 1
    (Path(first.entry) / "model.neff").write_bytes(neff)
    with pytest.raises(NeffError):
        parse(bytes(neff), validate_hash=True)
    assert open_cache().get_or_compile(mlp(), TRN1, "mlp").hit
    assert not open_cache(NEURON_RT_VALIDATE_HASH="true").get_or_compile(mlp(), TRN1, "mlp").hit


def test_a_failure_is_remembered_until_a_retry(open_cache: Opener, caplog: pytest.LogCaptureFixture) -> None:
    cache = open_cache()
    entry = entry_path(cache, BROKEN)
    with pytest.raises(CompileError, match="NCC_EVRF004") as first:
        cache.get_or_compile(BROKEN, TRN1, "broken")
    assert state_of(cache, entry) is State.FAILED
    with pytest.raises(CompileError) as again:
        open_cache().get_or_compile(BROKEN, TRN1, "broken")
    assert (again.value.message, again.value.remedy) == (first.value.message, first.value.remedy)
    assert f"Got a cached failed neff at {entry}/model.neff. Will skip compilation" in caplog.text
    assert Usage(cache.root).totals().misses == 1
    with pytest.raises(CompileError):
        open_cache(NEURON_CC_FLAGS="--retry_failed_compilation").get_or_compile(BROKEN, TRN1, "broken")
    assert Usage(cache.root).totals().misses == 2
    assert not os.path.exists(f"{entry}/{layouts.LOCK}")


def test_an_interrupted_compile_is_not_a_failure(open_cache: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> bytes:
        raise KeyboardInterrupt

    cache = open_cache()
    with monkeypatch.context() as patch:
        patch.setattr("neurontools.compiler.compile.compile_graph", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cache.get_or_compile(mlp(), TRN1, "mlp")
    assert state_of(cache, entry_path(cache, mlp())) is State.TODO
    assert not cache.get_or_compile(mlp(), TRN1, "mlp").hit


def test_a_full_disk_costs_one_warning_and_no_result(
    open_cache: Opener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    cache = open_cache()
    with monkeypatch.context() as patch:
        patch.setattr("neurontools.base.files.os.fsync", full)
        for rows in (4, 8):
            result = cache.get_or_compile(mlp(rows), TRN1, "mlp")
            assert (result.hit, result.entry) == (False, "")
    assert caplog.text.count("No space left on device. Compiling without it.") == 1
    assert scan(cache.root).entries == ()
    assert not cache.get_or_compile(mlp(), TRN1, "mlp").hit
    assert cache.get_or_compile(mlp(), TRN1, "mlp").hit


def test_a_disk_that_fills_up_while_publishing_leaves_no_done_marker(
    open_cache: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def fills_up(descriptor: int, data: bytes) -> int:
        if len(data) > 1024:
            raise OSError(28, "No space left on device")
        return write(descriptor, data)

    cache = open_cache()
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fills_up)
        assert cache.get_or_compile(mlp(), TRN1, "mlp").entry == ""
    assert state_of(cache, entry_path(cache, mlp())) is State.TODO


# The interpreter may lie in a directory that only root can enter, so everything is imported before the change of user.
_AS_ANOTHER_USER = """
import logging, os, sys
sys.path.append(sys.argv[1])
from neurontools.cache.store import CompileCache
from neurontools.machine.instances.catalogue import instance_type
from tests.compiler.graphs import mlp
device = instance_type("trn1.2xlarge").device
for _ in range(2):
    CompileCache.open(url=sys.argv[2]).get_or_compile(mlp(), device, "warm")
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")
cache = CompileCache.open()
for rows in (4, 8, 16):
    result = cache.get_or_compile(mlp(rows), device, "mlp")
    print("hit" if result.hit else "miss", result.entry != "")
"""


def test_a_read_only_root_gives_hits_and_compiles_the_rest_uncached(open_cache: Opener, home: Path) -> None:
    open_cache().get_or_compile(mlp(4), TRN1, "mlp")
    before = sorted(str(path) for path in (home / "compile-cache").rglob("*"))
    home.chmod(0o755)
    for path in [home / "compile-cache", *(home / "compile-cache").rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    checkout = Path(__file__).parents[2]
    shown = subprocess.run(
        [sys.executable, "-c", _AS_ANOTHER_USER, str(checkout), str(home / "warm")],
        capture_output=True,
        text=True,
        check=False,
    )
    for path in [home / "compile-cache", *(home / "compile-cache").rglob("*")]:
        path.chmod(0o755)
    assert shown.stdout.splitlines() == [
        "hit True",
        f"WARNING Cannot write to the compile cache {home}/compile-cache: Permission denied. Compiling without it.",
        "miss False",
        "miss False",
    ], shown.stderr
    assert sorted(str(path) for path in (home / "compile-cache").rglob("*")) == before


def test_hits_and_last_use_are_counted(open_cache: Opener) -> None:
    cache = open_cache()
    entry = cache.get_or_compile(mlp(), TRN1, "mlp").entry
    old = 1_600_000_000
    for name in (layouts.DONE, layouts.NEFF):
        os.utime(f"{entry}/{name}", (old, old))
    for _ in range(3):
        cache.get_or_compile(mlp(), TRN1, "mlp")
    (found,) = scan(cache.root).entries
    assert found.hits == 3
    assert found.used_unix_s > old
    totals = Usage(cache.root).totals()
    assert (totals.hits, totals.misses, totals.hit_share) == (3, 1, 0.75)


def test_the_stamp_is_renewed_at_most_hourly(open_cache: Opener) -> None:
    cache = open_cache()
    entry = cache.get_or_compile(mlp(), TRN1, "mlp").entry
    cache.get_or_compile(mlp(), TRN1, "mlp")
    stamp = Path(entry) / layouts.STAMP
    recent = stamp.stat().st_mtime_ns
    cache.get_or_compile(mlp(), TRN1, "mlp")
    assert stamp.stat().st_mtime_ns == recent
    os.utime(stamp, (1, 1))
    cache.get_or_compile(mlp(), TRN1, "mlp")
    assert stamp.stat().st_mtime_ns > recent


def test_counters_that_cannot_be_kept_do_no_harm(
    open_cache: Opener, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    (home / "blocked").touch()
    monkeypatch.setenv("NEURONTOOLS_RUNTIME_DIR", str(home / "blocked"))
    cache = open_cache()
    cache.get_or_compile(mlp(), TRN1, "mlp")
    assert cache.get_or_compile(mlp(), TRN1, "mlp").hit
    assert Usage(cache.root).totals().hits == 0


def test_a_hit_never_takes_the_root_lock(open_cache: Opener) -> None:
    import fcntl

    cache = open_cache()
    cache.get_or_compile(mlp(), TRN1, "mlp")
    with open(f"{cache.root}/lock", "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert open_cache().get_or_compile(mlp(), TRN1, "mlp").hit


def test_only_the_libraries_of_an_extracted_entry_are_removed(tree: Tree) -> None:
    path = tree.entry(files={".library-1": b"x", ".library-1.json": b"{}"})
    kept = sorted(set(os.listdir(path)) - {".library-1", ".library-1.json"})
    extraction.remove_libraries(str(path))
    assert sorted(os.listdir(path)) == kept


def test_the_libraries_of_an_entry_are_those_of_its_neff(tree: Tree) -> None:
    graph, part = custom_graph()
    path = tree.entry(files={layouts.NEFF: compile_graph(graph, TRN1, (), "custom", [part])})
    place = EntryRef(str(path), CacheLayout.CURRENT, COMPILER_VERSION, path.name)
    (found,) = show._libraries(place, (show.EntryFile(layouts.NEFF, 1),))
    assert found.name == part.name
    assert show._libraries(place, ()) == ()
    (path / layouts.NEFF).write_bytes(b"damaged")
    assert show._libraries(place, (show.EntryFile(layouts.NEFF, 1),)) == ()
