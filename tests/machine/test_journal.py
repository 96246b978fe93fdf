"""What is written down comes back, or nothing does."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from neurontools.errors import NeuronToolsError
from neurontools.machine import journal
from neurontools.machine.effective_config import PreviousRun, resolve
from neurontools.machine.events import Process
from neurontools.machine.journal import (
    Definition,
    Journal,
    load_journal,
    load_record,
    save_journal,
    save_record,
)
from neurontools.machine.machine_config import StartOptions
from neurontools.machine.processes import ProcessKey, this_process
from neurontools.machine.snapshot import CoreTotals, HardwareCounters, History

DEFINITION = Definition("m", "trn2.48xlarge", 1, 12.5, 30.0, ProcessKey(5, 6))
HISTORY = History(
    {"processes": 3},
    (CoreTotals(2, 10, 4, 100, 0, 1, ((1004, 2),)),),
    {1: HardwareCounters(mem_ecc_corrected=7)},
)
JOURNAL = Journal(DEFINITION, "boot", running=True, history=HISTORY)
PROCESS = Process(ProcessKey(5, 6), 0, "t", "python \udc80\n", "2.0", True, (0, 3), 9, ((3, 100),))


def test_a_journal_comes_back(home: Path) -> None:
    save_journal(str(home / "j"), JOURNAL)
    assert load_journal(str(home / "j")) == JOURNAL


def test_a_record_comes_back(home: Path) -> None:
    save_record(str(home / "r"), PROCESS, "boot")
    assert load_record(str(home / "r")) == (PROCESS, "boot")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_file_is_none_and_no_traceback(home: Path, data: st.DataObject) -> None:
    path = str(home / "file")
    save_journal(path, JOURNAL)
    good = Path(path).read_bytes()
    at = data.draw(st.integers(0, len(good) - 1))
    Path(path).write_bytes(good[:at] + data.draw(st.binary(max_size=3)) + good[at + 1 :])
    for found in (load_journal(path), load_record(path)):
        assert found is None or isinstance(found, Journal)


def test_the_format_is_that_of_earlier_daemons(home: Path) -> None:
    (home / "j").write_text(
        '{"version": 2, "definition": {"machine": "m", "instance_type": "trn2.48xlarge", "lnc": 1, "started_unix_s": 12.5, '
        '"idle_exit_s": 30.0, "parent": {"pid": 5, "start_ticks": 6}, "neighbours": "host", "visible_devices": null, '
        '"ultraserver_modes": null, "ultraserver_node": null}, "boot_id": "boot", "running": true, "history": '
        '{"lifetime": {"processes": 3}, "core_totals": [{"core": 2, "busy_ns": 10, "executions": 4, "flops": 100, '
        '"gpsimd_ns": 0, "model_loads": 1, "failures": [[1004, 2]]}], "hardware": {"1": {"mem_ecc_corrected": 7, '
        '"mem_ecc_uncorrected": 0, "mem_ecc_repairable_uncorrected": 0, "sram_ecc_corrected": 0, '
        '"sram_ecc_uncorrected": 0}}}, "faults": {"faults": [], "last_id": 0}, "counted": []}'
    )
    assert load_journal(str(home / "j")) == JOURNAL
    (home / "r").write_text(
        '{"version": 2, "boot_id": "boot", "key": {"pid": 5, "start_ticks": 6}, "uid": 0, "tag": "t", '
        '"command": "python \\udc80\\n", "runtime_version": "2.0", "uses_device": true, "cores": [0, 3], '
        '"registered_ns": 9, "reserved": [[3, 100]], "player": null, "stack": 0}'
    )
    assert load_record(str(home / "r")) == (PROCESS, "boot")


@pytest.mark.parametrize("version", ["1", "3", '"2"', "null"])
def test_another_version_is_not_read(home: Path, version: str) -> None:
    for save, load, value in (
        (save_journal, load_journal, (JOURNAL,)),
        (save_record, load_record, (PROCESS, "boot")),
    ):
        save(str(home / "f"), *value)  # type: ignore[operator]
        text = (home / "f").read_text()
        (home / "f").write_text(text.replace('"version":2', f'"version":{version}'))
        assert load(str(home / "f")) is None  # type: ignore[operator]


def past(*, running: bool = True, inhabited: bool = False, boot: str = "boot") -> PreviousRun:
    return PreviousRun(Journal(DEFINITION, boot, running, History()), "boot", inhabited)


def test_a_killed_daemon_s_definition_goes_on() -> None:
    definition = resolve(StartOptions("m", resume=True), past())
    assert (definition.instance_type, definition.lnc, definition.idle_exit_s) == ("trn2.48xlarge", 1, 30.0)
    assert definition.started_unix_s == 12.5
    assert definition.parent is None, "that process is gone"


def after(definition: Definition) -> History:
    return PreviousRun(
        Journal(DEFINITION, "boot", running=False, history=HISTORY), "boot", inhabited=False
    ).history(definition)


def test_a_stopped_machine_s_counters_go_on() -> None:
    assert after(replace(DEFINITION, started_unix_s=99.0)) == HISTORY


def test_other_cores_of_the_same_devices_count_anew() -> None:
    assert after(replace(DEFINITION, lnc=2)) == History(HISTORY.lifetime, (), HISTORY.hardware)


@pytest.mark.parametrize("other", [{"instance_type": "trn1.32xlarge"}, {"visible_devices": (1,)}])
def test_other_devices_have_no_errors_of_the_former_ones(other: dict[str, Any]) -> None:
    assert after(replace(DEFINITION, **other)) == History(HISTORY.lifetime)


@pytest.mark.parametrize(
    "former", [past(running=False), past(boot="another"), PreviousRun(None, "boot", inhabited=False)]
)
def test_after_an_orderly_end_or_a_boot_the_default_is_the_default(former: PreviousRun) -> None:
    definition = resolve(StartOptions("m"), former)
    assert (definition.instance_type, definition.lnc) == ("trn1.2xlarge", 1)


def test_a_private_machine_keeps_its_parent() -> None:
    me = this_process()
    assert resolve(StartOptions("m", parent_pid=me.pid), past()).parent == me


def test_an_explicit_start_decides_when_the_machine_ends() -> None:
    assert resolve(StartOptions("m"), past()).idle_exit_s is None


def test_living_processes_bind_the_type() -> None:
    with pytest.raises(
        NeuronToolsError, match=r"is trn2\.48xlarge with LNC 1, not trn2\.48xlarge with LNC 2"
    ):
        resolve(StartOptions("m", lnc=2), past(running=False, inhabited=True))
    assert resolve(StartOptions("m"), past(running=False, inhabited=True)).lnc == 1


def test_a_journal_is_readable_json(home: Path) -> None:
    save_journal(str(home / "j"), JOURNAL)
    assert json.loads((home / "j").read_text())["definition"]["instance_type"] == "trn2.48xlarge"


def test_on_a_full_disk_a_journal_is_written_into_reserved_space(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, reserve = home / "journal.json", home / "journal.json.reserve"
    writer = journal.JournalWriter(str(path))
    writer.save(JOURNAL, sync=False)
    assert reserve.stat().st_size == reserve.stat().st_blocks * 512 == 1 << 15
    save, reserve_space = journal.save_journal, journal._reserve_space

    def save_on_a_full_disk(path: str, value: Journal, *, sync: bool) -> None:
        if reserve.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        save(path, value, sync=sync)

    monkeypatch.setattr(journal, "save_journal", save_on_a_full_disk)
    monkeypatch.setattr(journal, "_reserve_space", lambda path: False)
    path.unlink()
    writer.save(JOURNAL, sync=False)
    assert load_journal(str(path)) == JOURNAL
    monkeypatch.setattr(journal, "_reserve_space", reserve_space)
    writer.save(JOURNAL, sync=False)
    assert reserve.exists()
    writer.close()
    assert not reserve.exists()
