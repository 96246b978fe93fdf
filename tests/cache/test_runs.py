"""What runs did, from our own events and from logs of the real wrapper."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.cache import events
from neurontools.cache.entry_io import read_provenance
from neurontools.cache.events import Events, LookupEventKind
from neurontools.cache.log_counts import LogCounts, count_lines, format_counts, read_lines
from neurontools.cache.stats import RunStats, format_runs, group_runs, sum_events
from neurontools.commands.cache import main
from neurontools.machine.instances.catalogue import instance_type
from tests.cache.trees import CACHES
from tests.compiler.graphs import mlp

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.cache.store import CompileCache

TRN1 = instance_type("trn1.2xlarge").device


def test_a_hit_saves_what_the_compile_took(
    open_cache: Callable[..., CompileCache], capsys: pytest.CaptureFixture[str]
) -> None:
    entry = open_cache().get_or_compile(mlp(), TRN1, "mlp").entry
    open_cache().get_or_compile(mlp(), TRN1, "mlp")
    open_cache().get_or_compile(mlp(), TRN1, "mlp")
    origin = read_provenance(entry)
    assert origin is not None
    assert (origin.pid, origin.host) == (os.getpid(), os.uname().nodename)
    total = sum_events(Events(open_cache().root).read())
    assert (total.hits, total.misses) == (2, 1)
    assert total.saved_s == pytest.approx(2 * origin.compile_s, abs=1e-4)
    assert total.compiled_s == pytest.approx(origin.compile_s, abs=1e-4)
    assert main(["stats", "--json"]) == 0
    usage = json.loads(capsys.readouterr().out)["usage"]
    assert (usage["hits"], usage["saved_s"]) == (2, total.saved_s)
    assert main(["show", entry]) == 0
    assert f"process {os.getpid()} of user" in capsys.readouterr().out


def test_a_run_that_only_met_cached_failures_shows_them(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = Events(str(home / "compile-cache"))
    for _ in range(3):
        written.add(LookupEventKind.REPLAY, "MODULE_1+e30acd3a")
    written.close()
    assert main(["stats", "--runs", "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)
    assert (run["replayed"], run["failures"], run["misses"]) == (3, 0, 0)
    assert main(["stats", "--runs"]) == 0
    assert "REPLAYED" in capsys.readouterr().out


def test_runs_are_distinguished(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(home / "compile-cache")
    for run in ("a", "b", "a"):
        monkeypatch.setattr(events, "_run_of", lambda _, run=run: run)
        written = Events(root)
        written.add(LookupEventKind.HIT, "MODULE_1", 2.0)
        written.add(LookupEventKind.WAIT, "MODULE_2", 0.5)
        written.close()
    found = {
        run.name: (run.hits, run.saved_s, run.waits, run.waited_s) for run in group_runs(Events(root).read())
    }
    assert found == {"a": (2, 4.0, 2, 1.0), "b": (1, 2.0, 1, 0.5)}
    os.makedirs(root)
    assert main(["stats", "--runs"]) == 0
    assert "2 runs recorded" in capsys.readouterr().out
    assert main(["stats", "--runs", "--json"]) == 0
    assert [run["run"] for run in json.loads(capsys.readouterr().out)] == ["a", "b"]


def test_a_narrow_table_of_runs_leaves_out_its_columns_one_by_one() -> None:
    run = RunStats("train", 1.7e9, 1.7e9 + 9, 1, 2, 3, 4, 5)
    heads = [format_runs([run], width).splitlines()[0].split() for width in range(140, 20, -1)]
    gone = [name for number, name in enumerate(heads[0]) if name not in heads[-1]]
    order = sorted(gone, key=lambda name: sum(name in head for head in heads))
    assert order == ["WAITED", "REPLAYED", "FAILED", "WAITS", "COMPILED", "SAVED", "STARTED"]
    assert heads[-1] == ["RUN", "HITS", "MISSES"]


def test_damaged_lines_and_a_full_file_are_no_trouble(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(home / "cache")
    monkeypatch.setattr(events, "_MAX_BYTES", 50)
    for number in range(3):
        written = Events(root)
        written.add(LookupEventKind.MISS, f"MODULE_{number}", 1.0)
        written.close()
    kept = [event.module for event in Events(root).read()]
    assert kept == ["MODULE_1", "MODULE_2"] or kept == ["MODULE_0", "MODULE_1", "MODULE_2"]
    with open(f"{events.counters_dir(root)}/events", "ab") as damaged:
        damaged.write(b"\xff\xfe nonsense\n1 a hit x MODULE\n1 a hit 1")
    assert [event.module for event in Events(root).read()] == kept


def test_a_log_of_the_real_wrapper_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", "--from-log", str(CACHES / "wrapper-2023.log"), "--json"]) == 0
    counts = json.loads(capsys.readouterr().out)
    assert {
        name: counts[name] for name in ("hits", "misses", "replayed", "failures", "extracted", "waits")
    } == {
        "hits": 2,
        "misses": 2,
        "replayed": 1,
        "failures": 1,
        "extracted": 1,
        "waits": 1,
    }
    assert counts["waited_s"] == 120
    assert counts["compiled"] == {"MODULE_111+d41d8cd9": 2}
    assert counts["roots"] == ["/var/tmp/neuron-compile-cache"]
    assert (counts["recognised"], counts["lines"]) == (10, 13)


def test_a_log_may_come_through_a_pipe() -> None:
    command = [str(Path(sys.executable).parent / "neuron-cache"), "stats", "--from-log", "-"]
    with (CACHES / "wrapper-2023.log").open("rb") as log:
        shown = subprocess.run(command, stdin=log, capture_output=True, text=True, check=False)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "compiled 2 times: MODULE_111+d41d8cd9" in shown.stdout


def counted_in(text: str) -> LogCounts:
    return count_lines(io.BytesIO(text.encode()))


def test_the_oldest_wrapper_says_a_miss_in_other_words() -> None:
    counts = counted_in("""\
2022-10-18 08:01:02.000111: INFO ||NCC_WRAPPER||: No candidate found under /c/USER_neuroncc-1.0.47218.0+162/MODULE_77.
2022-10-18 08:01:02.000112: INFO ||NCC_WRAPPER||: Cache dir for the neff: /c/USER_neuroncc-1.0.47218.0+162/MODULE_77/x
.......
Compiler status PASS
2022-10-18 08:02:02.000112: INFO ||NCC_WRAPPER||: Exiting with a successfully compiled graph
2022-10-18 08:03:02.000111: INFO ||NEURON_CACHE||: No candidate found under /c/MODULE_78.
""")
    assert (counts.misses, counts.missed, counts.recognised) == (1, {"MODULE_77": 1}, 4)


def test_progress_bars_and_messages_in_one_line_are_distinguished() -> None:
    hit = "2024-10-24 18:49:49.000950: INFO ||NEURON_CC_WRAPPER||: Using a cached neff at /c/MODULE_1+d41d8cd9/model.neff"
    counts = counted_in(f" 5%|5 | 1/20\r{hit}\r 10%|# | 2/20 {hit}{hit}\r\n{hit}")
    assert (counts.hits, counts.lines) == (4, 2)


@pytest.mark.parametrize("width", [64, 72, 80, 100])
def test_wrapped_messages_are_read_to_their_end(width: int) -> None:
    stamp = "2023-08-25 21:51:36.000440:  7592  INFO "
    messages = [
        f"{stamp}||NEURON_CC_WRAPPER||: Call compiler with cmd: neuronx-cc compile /t/model.MODULE_111+d41d8cd9.hlo.pb",
        f"{stamp}||NEURON_CC_WRAPPER||: Using a cached neff at /c/MODULE_222+d41d8cd9/model.neff",
        f"{stamp}||NEURON_CACHE||: Another process must be compiling /c/MODULE_3/model.hlo.pb, been waiting for: 2.0 minutes",
    ]
    cut = [line[at : at + width] for line in messages for at in range(0, len(line), width)]
    counts = counted_in("".join(f"{line}\n" for line in cut))
    assert (counts.misses, counts.hits, counts.waited_s) == (1, 1, 120)
    assert counts.missed == {"MODULE_111+d41d8cd9": 1}


def test_processes_are_those_whose_numbers_stand_in_the_lines() -> None:
    text = "INFO ||NEURON_CC_WRAPPER||: Using a cached neff at /c/MODULE_1+d41d8cd9/model.neff\n"
    stamp = "2023-08-25 21:51:36.000440:"
    counts = counted_in(f"{stamp}  7592  {text}{stamp} {text}{stamp}  81  {text}{stamp}  7592  {text}")
    assert (counts.hits, counts.processes) == (4, {"7592", "81"})


def test_a_compile_whose_module_no_line_names_is_counted() -> None:
    start = "2024-01-02 00:00:00.000001: INFO ||NEURON_CC_WRAPPER||: Call compiler with cmd: neuronx-cc"
    counts = counted_in(f"{start}\n{start}\nstep 1\nstep 2\nstep 3\nstep 4\nstep 5 /c/MODULE_9/x\n{start}")
    assert counts.missed == {"(no module named)": 3}


def test_a_log_without_line_ends_is_read_in_pieces() -> None:
    told: list[int] = []
    lines = list(read_lines(io.BytesIO(b"\0" * 3_000_000), told.append))
    assert (max(map(len, lines)), sum(map(len, lines))) == (65536, 3_000_000)
    assert told == sorted(told)
    assert len(told) == 2
    assert count_lines(lines).recognised == 0


def test_our_own_lines_are_counted_alike(
    open_cache: Callable[..., CompileCache], caplog: pytest.LogCaptureFixture
) -> None:
    from neurontools.cache.logs import WrapperFormatter

    with caplog.at_level("INFO", logger="neurontools.cache"):
        open_cache().get_or_compile(mlp(), TRN1, "mlp")
        open_cache().get_or_compile(mlp(), TRN1, "mlp")
    counts = count_lines(WrapperFormatter().format(record).encode() for record in caplog.records)
    assert (counts.hits, counts.misses) == (1, 1)


def test_a_log_that_is_not_there_is_an_error_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", "--from-log", "/no/such/file"]) == 1
    assert capsys.readouterr().err == "error: /no/such/file: No such file or directory\n"


@given(st.lists(st.binary(max_size=80), max_size=10))
def test_any_bytes_are_a_log(lines: list[bytes]) -> None:
    assert count_lines(lines).lines == len(lines)


def test_a_file_of_events_that_is_just_full_is_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def add(module: str) -> int:
        written = Events(root)
        written.add(LookupEventKind.MISS, module, 1.0)
        written.close()
        return os.path.getsize(events.events_path(root))

    root = str(home / "cache")
    size = add("MODULE_1")
    monkeypatch.setattr(events, "_MAX_BYTES", size)
    assert add("MODULE_2") > size
    assert not os.path.exists(f"{events.events_path(root)}.old")
    add("MODULE_3")
    assert os.path.exists(f"{events.events_path(root)}.old")
    assert [event.module for event in Events(root).read()] == ["MODULE_1", "MODULE_2", "MODULE_3"]


@pytest.mark.parametrize(
    ("processes", "text"),
    [
        (set(), "3 lines of the wrapper in 9, a to b"),
        ({"1"}, "3 lines of the wrapper of 1 process in 9, a to b"),
        ({"1", "2"}, "3 lines of the wrapper of 2 processes in 9, a to b"),
    ],
)
def test_the_last_line_of_counts_says_what_was_read(processes: set[str], text: str) -> None:
    counts = LogCounts(lines=9, recognised=3, first="a", last="b", processes=processes)
    assert format_counts(counts).splitlines()[-1] == text
