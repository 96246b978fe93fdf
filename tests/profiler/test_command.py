from __future__ import annotations

import json
import os
import re
import signal
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from neurontools.compiler.compile import compile_graph
from neurontools.compiler.graph import Graph, Node, Slot, View
from neurontools.machine.instances.catalogue import instance_type
from neurontools.profiler.capture.format import Track
from neurontools.profiler.trace.load import load
from tests.profiler.advice.programs import neff_bytes, perceptron
from tests.tui.top.conftest import Terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Maker

    Tool = Callable[..., subprocess.CompletedProcess[str]]

SCRIPT = str(Path(sys.executable).parent / "neuron-profile")


def test_view_in_a_pipe_prints_the_summary(tool: Tool, profile_dir: Path) -> None:
    for arguments in (
        ("view", str(profile_dir)),
        ("view", "-d", str(profile_dir)),
        ("view", "--output-format", "summary-text", "-s", str(next(profile_dir.iterdir()))),
        ("summary", str(profile_dir)),
    ):
        done = tool("neuron-profile", *arguments)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(
            "Profile of a simulated trn1.2xlarge: 1 process, 2 NeuronCores, 112 events"
        )
        assert "tensor_engine_active_time_percent" in done.stdout


def test_neuron_explorer_is_the_same_program(installed_tool: Tool, profile_dir: Path) -> None:
    shown = [
        installed_tool(name, "view", str(profile_dir)).stdout
        for name in ("neuron-profile", "neuron-explorer")
    ]
    assert shown[0] == shown[1] != ""


def test_json_is_the_same_from_view_and_summary(tool: Tool, profile_dir: Path) -> None:
    one = tool("neuron-profile", "summary", str(profile_dir), "--json", "--nc", "1")
    two = tool("neuron-profile", "view", str(profile_dir), "--output-format", "summary-json", "--nc", "1")
    assert one.stdout == two.stdout
    assert [core["nc_idx"] for core in json.loads(one.stdout)["cores"]] == [1]


def _kinds(tool: Tool, directory: Path, *words: str) -> dict[str, int]:
    """The rows of a Chrome file with the number of their events."""
    done = tool("neuron-profile", "view", str(directory), *words, "--output-format", "chrome", cwd=directory)
    assert (done.returncode, done.stdout) == (0, "")
    events = json.loads((directory / "ntff.trace.json").read_text())["traceEvents"]
    names = {each["tid"]: each["args"]["name"] for each in events if each["name"] == "thread_name"}
    return dict(Counter(names[each["tid"]] for each in events if each["ph"] == "X"))


def test_view_leaves_out_what_the_real_tools_flags_say(tool: Tool, profile_dir: Path) -> None:
    everything = _kinds(tool, profile_dir)
    system = {"neuron_rt", "neuron_hw"}
    assert _kinds(tool, profile_dir, "--ignore-system-profile").keys() == everything.keys() - system
    assert _kinds(tool, profile_dir, "--ignore-device-profile").keys() == system
    only = _kinds(tool, profile_dir, "--system-trace-filter-event-type", "nrt_load")
    assert only == {name: count for name, count in everything.items() if name != "neuron_hw"} | {
        "neuron_rt": 2
    }
    one = _kinds(tool, profile_dir, "--system-trace-filter-neuron-core", "1")
    assert (one["neuron_rt"], one["Tensor"]) == (everything["neuron_rt"] // 2, everything["Tensor"])
    other = _kinds(tool, profile_dir, "--system-trace-filter-instance-id", "i-1,i-2")
    assert other.keys() == everything.keys() - system
    summary = tool("neuron-profile", "view", str(profile_dir), "--ignore-device-profile").stdout
    assert "no device profile" not in summary
    nothing = tool(
        "neuron-profile", "view", str(profile_dir), "--ignore-device-profile", "--ignore-system-profile"
    )
    assert (nothing.returncode, nothing.stderr.splitlines()[0]) == (1, "error: no events match the filters")


def test_view_says_which_flags_of_the_real_tool_have_no_effect(tool: Tool, profile_dir: Path) -> None:
    done = tool(
        "neuron-profile", "view", str(profile_dir), "--force", "--port", "3001", "-F", "a=b", "-F", "c=d"
    )
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        "warning: --port has no effect: there is no server",
        "warning: -F has no effect: there are no further settings",
    ]
    refused = tool("neuron-profile", "view", str(profile_dir), "--ingest-only")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == (
        "error: --ingest-only: there is no database\nhint: write tables with --output-format parquet\n"
    )


def test_the_schema_needs_no_profile(tool: Tool) -> None:
    done = tool("neuron-profile", "--show-profile-schema")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == tool("neuron-profile", "sql", "--show-profile-schema").stdout
    assert done.stdout.startswith("table ")


def test_top_lists_operators(tool: Tool, profile_dir: Path) -> None:
    done = tool("neuron-profile", "top", str(profile_dir), "-k", "2", "--skip-warmup")
    assert [line.split()[:4] for line in done.stdout.splitlines()[2:]] == [
        ["aten.mm", "Tensor", "MATMUL", "16"],
        ["aten.copy_", "DMA", "DMA_DIRECT2D", "24"],
    ]
    rows = json.loads(tool("neuron-profile", "top", str(profile_dir), "--json").stdout)
    assert rows[0]["total_ns"] == 140_000


@pytest.mark.parametrize(
    ("form", "name"), [("json", "ntff.json"), ("chrome", "ntff.trace.json"), ("perfetto", "ntff.pftrace")]
)
def test_trace_files_have_the_vendors_names(
    tool: Tool, profile_dir: Path, home: Path, form: str, name: str
) -> None:
    done = tool("neuron-profile", "view", str(profile_dir), "--output-format", form, cwd=home)
    assert (done.returncode, done.stdout) == (0, "")
    assert re.fullmatch(rf"wrote {re.escape(name)}, [\d.]+ kB; .+\n", done.stderr)
    assert (home / name).stat().st_size > 1000
    tool(
        "neuron-profile", "view", str(profile_dir), "--output-format", form, "--output-file", "mine", cwd=home
    )
    assert (home / "mine").read_bytes() == (home / name).read_bytes()


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (("view", "missing"), 1, "error: no profile at missing: no such directory"),
        (("view", "p", "-d", "p"), 2, "error: several profiles given: p, p"),
        (
            ("view", "p", "--output-format", "db"),
            2,
            "error: --output-format db: there is no database",
        ),
        (("summary", "p", "--nc", "x"), 2, "error: invalid list of cores --nc=x"),
        (
            ("summary", "p", "--nc", "9"),
            1,
            "error: nothing happened on these NeuronCores: the profile has NC0, NC1",
        ),
        (("summary", "p", "--from", "soon"), 2, "error: invalid duration 'soon'"),
        (("summary", "p", "--to", "5"), 2, "error: duration '5' needs a unit"),
        (("inspect",), 2, "error: no program given"),
        (("inspect", "--steps", "5-2", "python"), 2, "error: --steps 5-2 is not a range of steps"),
        (("inspect", "-n", "0", "python"), 2, "error: --num-trace-events is not a positive number"),
        (("inspect", "-o", "x", "no-such-program"), 127, "error: cannot run no-such-program"),
    ],
)
def test_errors_are_one_line_and_a_hint(
    tool: Tool, profile_dir: Path, home: Path, arguments: tuple[str, ...], code: int, error: str
) -> None:
    (home / "p").symlink_to(profile_dir)
    done = tool("neuron-profile", *arguments, cwd=home)
    assert (done.returncode, done.stdout) == (code, "")
    lines = done.stderr.splitlines()
    assert lines[0].startswith(error)
    assert lines[1].startswith("hint: ")
    assert len(lines) == 2


def test_usage_errors_exit_with_2(tool: Tool) -> None:
    for arguments in ((), ("dance",), ("top", "-k", "0"), ("view", "--output-format", "pdf")):
        done = tool("neuron-profile", *arguments)
        assert done.returncode == 2
        assert done.stderr.startswith("error: ")


def test_a_run_that_executed_nothing_is_explained(tool: Tool, home: Path, maker: Maker) -> None:
    maker.capture(home / "p").on_close()
    done = tool("neuron-profile", "view", str(home / "p"))
    assert done.returncode == 0
    assert "no events: the program executed nothing on a NeuronCore" in done.stdout
    assert tool("neuron-profile", "top", str(home / "p")).returncode == 1


def test_inspect_runs_a_program_with_profiling_on(tool: Tool, home: Path) -> None:
    code = (
        "import os, sys; print(*(f'{k}={v}' for k, v in os.environ.items() if 'INSPECT' in k)); sys.exit(7)"
    )
    done = tool("neuron-profile", "inspect", "-o", "out", "--", sys.executable, "-c", code, cwd=home)
    assert done.returncode == 7
    assert f"NEURON_RT_INSPECT_OUTPUT_DIR={home.resolve()}/out" in done.stdout
    assert "NEURON_RT_INSPECT_ENABLE=1" in done.stdout
    assert "NEURON_RT_INSPECT_DEVICE_PROFILE=1" in done.stdout


@pytest.mark.torch
def test_inspect_offers_what_neuron_run_offers_and_keeps_what_was_set(
    tool: Tool, monkeypatch: pytest.MonkeyPatch, torch_python: str
) -> None:
    monkeypatch.setenv("NEURON_RT_INSPECT_DEVICE_PROFILE", "model")
    code = "import os, torch_neuronx; print(os.environ['NEURON_RT_INSPECT_DEVICE_PROFILE'])"
    done = tool("neuron-profile", "inspect", torch_python, "-c", code)
    assert (done.returncode, done.stdout) == (0, "model\n")


def test_without_numpy_one_line_says_how_to_get_it(profile_dir: Path) -> None:
    code = (
        "import sys; sys.modules['numpy'] = None\n"
        "from neurontools.commands.profile import main\n"
        f"sys.exit(main(['summary', {str(profile_dir)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "error: profiles need numpy, which is not installed",
        "hint: pip install 'neurontools[profile]'",
    ]


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom neurontools.commands.profile import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({'numpy', 'textual', 'rich', 'torch', 'dataclasses'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "examples:" in done.stdout
    assert done.stderr.strip() == "[]"


@pytest.fixture
def viewer(profile_dir: Path) -> Iterator[Terminal]:
    """`neuron-profile view` on a terminal, with its timeline drawn."""
    shown = Terminal("view", str(profile_dir), program="neuron-profile")
    shown.read_until("device clock, modelled")
    yield shown
    shown.close()


@pytest.mark.parametrize(("keys", "code"), [("q", 0), ("\x03", 130)])
def test_keys_end_the_viewer_and_the_terminal_is_restored(viewer: Terminal, keys: str, code: int) -> None:
    viewer.press(keys)
    assert viewer.exit_code() == code
    assert viewer.is_restored()
    assert b"device clock, modelled" in viewer.output


def test_a_sigterm_restores_the_terminal(viewer: Terminal) -> None:
    viewer.process.send_signal(signal.SIGTERM)
    assert viewer.exit_code() == 143
    assert viewer.is_restored()


def test_what_no_terminal_should_send_does_not_end_the_viewer(viewer: Terminal) -> None:
    viewer.press("\x1b[99999999999u")
    viewer.press("3")
    viewer.read_until("by operator")
    viewer.press("q")
    assert viewer.exit_code() == 0


@pytest.fixture
def neff(home: Path) -> Path:
    """A NEFF of two products, in the directory of a profile."""
    from neurontools.compiler.compile import compile_graph
    from neurontools.machine.instances.catalogue import instance_type
    from tests.compiler.graphs import mlp

    path = home / "prof" / "i-0_pid_1" / "neff_1.neff"
    path.parent.mkdir(parents=True)
    device = instance_type("trn1.2xlarge").device
    path.write_bytes(compile_graph(mlp(512, 1024), device, ("--target=trn1",), "mlp"))
    (path.parent / "neff_2.neff").write_bytes(compile_graph(mlp(), device, ("--target=trn1",), "x"))
    return path


def test_what_if_prints_times_of_instance_types(tool: Tool, neff: Path, home: Path) -> None:
    (home / "prices.yaml").write_text("trn1.2xlarge: 1.34\n")
    words = ("--batch", "512=1024", "--dtype", "bf16", "--instance", "trn1.2xlarge,trn2.48xlarge")
    done = tool("neuron-profile", "what-if", str(neff), *words, "--prices", str(home / "prices.yaml"))
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[:3] == [
        f"NEFF       {neff}",
        "graph      mlp, 3 operators",
        "change     bf16, batch 512 to 1024",
    ]
    assert lines[4].split() == [
        *(
            "instance",
            "LNC",
            "cores",
            "step",
            "changed",
            "ratio",
            "a",
            "sample",
            "price",
            "of",
            "1M",
            "steps",
        ),
    ]
    assert [line.split()[:3] for line in lines[5:7]] == [
        ["trn1.2xlarge", "1", "2"],
        ["trn2.48xlarge", "2", "64"],
    ]
    assert lines[6].split()[-1] == "-"
    assert lines[-2] == "Times are modelled, for one step of one logical core."


def test_what_if_of_a_profile_is_about_the_program_with_most_device_time(
    tool: Tool, home: Path, maker: Maker
) -> None:
    once, often = neff_bytes(perceptron(512, 256, layers=6)), neff_bytes(perceptron(512, 256, layers=4))
    capture = maker.capture(home / "p")
    now = maker.start_ns
    for model_id, (neff, count) in enumerate(((once, 1), (often, 3)), 10001):
        model = maker.model(neff=neff, model_id=model_id)
        capture.on_load(model, now, now + 1_000)
        for number in range(1, count + 1):
            now += 1_000_000
            capture.on_execute(model, number, now, now + 500_000, 0)
    capture.on_close()
    shown = json.loads(tool("neuron-profile", "what-if", "p", "--json").stdout)
    assert Path(shown["neff"]).read_bytes() == often


def test_what_if_of_another_directory_uses_its_largest_neff(tool: Tool, neff: Path, home: Path) -> None:
    done = tool("neuron-profile", "what-if", str(home / "prof"), "--json")
    shown = json.loads(done.stdout)
    (forecast,) = shown["forecasts"]
    assert (shown["neff"], shown["operators"], shown["is_simulation"]) == (str(neff), 3, True)
    assert forecast["before_ns"] == forecast["after_ns"] > 0
    assert (forecast["ratio"], forecast["problem"]) == (1.0, None)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--batch", "7=8"), 1, "the graph has no data of batch 7"),
        (("--batch", "many"), 2, "'many' is neither OLD=NEW nor a factor such as x2"),
        (("--shape", "8"), 2, "'8' is not OLD=NEW, two sizes such as 260=256"),
        (("--attention", "fused"), 1, "no attention that is written out"),
        (("--dtype", "int3"), 1, "unknown data type 'int3'"),
        (("--instance", "trn9"), 2, "unknown instance type 'trn9'"),
        (("--prices", "/nowhere"), 1, "cannot read /nowhere"),
    ],
)
def test_what_if_says_in_one_line_what_cannot_be(
    tool: Tool, neff: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    done = tool("neuron-profile", "what-if", str(neff), *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr.splitlines()[0]
    assert "Traceback" not in done.stderr


def test_what_if_finds_nothing_where_nothing_is(tool: Tool, home: Path) -> None:
    (home / "empty").mkdir()
    (home / "text.neff").write_text("no")
    for source, said in (
        (str(home / "empty"), "has no NEFF"),
        (str(home / "gone"), "does not exist"),
        (str(home / "text.neff"), "not a NEFF"),
        ("MODULE_1", "compile cache"),
    ):
        done = tool("neuron-profile", "what-if", source)
        assert done.returncode == 1
        assert said in done.stderr
        assert "Traceback" not in done.stderr


def test_what_if_takes_an_entry_of_the_cache(tool: Tool, home: Path) -> None:
    from neurontools.cache.store import CompileCache
    from neurontools.machine.instances.catalogue import instance_type
    from tests.compiler.graphs import mlp

    cache = CompileCache.open()
    made = cache.get_or_compile(mlp(), instance_type("trn1.2xlarge").device, "mlp")
    cache.close()
    done = tool("neuron-profile", "what-if", Path(made.entry).name, "--dtype", "bf16")
    assert done.returncode == 0, done.stderr
    assert f"NEFF       {made.entry}/model.neff" in done.stdout


@pytest.fixture
def capture(torch_python: str, home: Path) -> Tool:
    """Run `neuron-profile capture`, which loads torch."""

    def run(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        command = [torch_python, SCRIPT, "capture", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=home, **options)

    return run


@pytest.mark.torch
def test_capture_executes_a_neff_and_profiles_one_execution(capture: Tool, home: Path) -> None:
    a, b = (View(slot, "float32", (2, 2), (2, 1), 0) for slot in range(2))
    graph = Graph((Slot(16), Slot(16)), (0,), 0, (Node("aten.mm.default", (a, a), (), (b,)),), (1,))
    device = instance_type("trn1.2xlarge").device
    (home / "m.neff").write_bytes(compile_graph(graph, device, ("--target=trn1",), "square"))
    (home / "x.bin").write_bytes(struct.pack("<4f", 1, 2, 3, 4))
    options = (
        "-n",
        "m.neff",
        "-s",
        "out.ntff",
        "--num-exec",
        "4",
        "--profile-nth-exec",
        "3",
        "--save-output",
    )
    machine = {**os.environ, "NEURONTOOLS_AUTOSTART": "1"}
    done = capture(*options, "slot0", "x.bin", env=machine)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-2:] == [
        "executed m.neff 4 times",
        "profile in out_exec_3.ntff; next: neuron-profile view out_exec_3.ntff",
    ]
    assert struct.unpack("<4f", (home / "slot1.bin").read_bytes()) == (7, 10, 15, 22)
    (runs,) = load(str(home / "out_exec_3.ntff")).runs
    assert runs.number.tolist() == [3]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("-r", "2"), "capture executes a NEFF in one process"),
        (("slot0",), "input slot0 has no file"),
        (("--profile-nth-exec", "2"), "--profile-nth-exec 2: there is no such execution"),
    ],
)
def test_a_capture_that_is_not_possible_is_explained(
    words: tuple[str, ...], problem: str, tool: Tool, home: Path
) -> None:
    done = tool("neuron-profile", "capture", *words, cwd=home)
    assert done.returncode in {1, 2}
    assert done.stderr.startswith(f"error: {problem}")
    assert not list(home.glob("profile.ntff"))


@pytest.mark.torch
def test_a_capture_that_is_refused_leaves_no_profile(capture: Tool, home: Path) -> None:
    a, b = (View(slot, "float32", (2, 2), (2, 1), 0) for slot in range(2))
    graph = Graph((Slot(16), Slot(16)), (0,), 0, (Node("aten.hash_tensor.default", (a,), (), (b,)),), (1,))
    device = instance_type("trn1.2xlarge").device
    (home / "m.neff").write_bytes(compile_graph(graph, device, ("--target=trn1",), "hash"))
    done = capture("-n", "m.neff", env={**os.environ, "NEURONTOOLS_AUTOSTART": "1"})
    assert done.returncode == 1
    assert "error: m.neff calls 'aten.hash_tensor.default', which a NEFF of another process" in done.stderr
    assert not list(home.glob("profile.ntff"))


@pytest.mark.torch
def test_a_system_capture_has_no_device_rows_and_filters_events(capture: Tool, home: Path) -> None:
    (home / "m.neff").write_bytes(neff_bytes(perceptron(8, 8)))
    words = ("-t", "systrace", "--systrace-event-filter", "nrt_execute", "--systrace-event-filter", "step")
    alone = ("-r", "1", "-i", "all", "--exec-mode", "async", "--single-io-threshold", "4096")
    machine = {**os.environ, "NEURONTOOLS_AUTOSTART": "1"}
    done = capture("-n", "m.neff", "--num-exec", "2", *words, *alone, env=machine)
    assert done.returncode == 0, done.stderr
    assert "profile in profile.ntff;" in done.stderr
    rows = load(str(home / "profile.ntff")).rows
    assert [(row.track, row.events.count) for row in rows] == [(Track.HOST, 2), (Track.RUNTIME, 2)]


def test_capture_lists_the_names_of_events(tool: Tool) -> None:
    done = tool("neuron-profile", "capture", "--systrace-get-event-types")
    assert (done.returncode, done.stderr) == (0, "")
    assert {"nrt_load", "nrt_execute", "nc_exec_running", "upload", "allocation"} < set(done.stdout.split())


@pytest.mark.torch
def test_a_capture_of_a_neff_that_is_not_there_is_explained(capture: Tool, home: Path) -> None:
    done = capture("-n", "no.neff")
    assert done.returncode in {1, 2}
    assert done.stderr.startswith("error: cannot read no.neff: No such file or directory")
    assert not list(home.glob("profile.ntff"))
