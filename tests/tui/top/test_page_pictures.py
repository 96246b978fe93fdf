"""Pictures of every page, of one at every size and in every theme, and all as text. After a wanted change: `pytest tests/tui/top --snapshot-update`.

The text files are those that `neuron-top --once --page` prints; they stand in goldens/.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from neurontools.machine.snapshot import HardwareCounters, MemoryUse
from neurontools.tui.top.app import TopApp
from neurontools.tui.top.model import TopModel
from neurontools.tui.top.pages.registry import make_pages, page_text
from neurontools.tui.top.settings import TopSettings
from neurontools.tui.top.source import MachineUpdate, SourceProblem, TimedSnapshot
from tests.tui.top.fixed_source import Compare, FixedSource, pressing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.machine.snapshot import DeviceState, ProcessState

Ticks = tuple[TimedSnapshot, TimedSnapshot]
SIZE = (120, 40)
OTHER_LAYOUTS = (((80, 24), "dark"), ((200, 60), "dark"), (SIZE, "light"))
PAGES = ("history", "processes", "devices", "events")
LIVE_PAGES = ("overview", *PAGES)
MACHINES = (("pretrain", "sim:pretrain"), ("serve", "sim:serve"), ("staging", "sim:staging"))
GOLDENS = Path(__file__).parent / "goldens"
SECOND_NS = 1_000_000_000


@pytest.fixture(autouse=True)
def same_everywhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Colours, one version, one time zone, one name of every user."""
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setattr("neurontools.tui.top.pages.rows.__version__", "1.2.3")
    monkeypatch.setattr("neurontools.dashboard.process_table.user_name", lambda uid: f"user{uid}")
    for module in ("columns", "processes", "job_details", "events"):
        monkeypatch.setattr(f"neurontools.tui.top.pages.{module}.user_name", lambda uid: f"user{uid}")
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def minute(training: Ticks) -> tuple[TimedSnapshot, ...]:
    """A machine of sixteen devices in a torus for 40 seconds: a wave of work, errors, a lost device, a broken link."""
    return tuple(at(training[1], second) for second in range(40))


def at(tick: TimedSnapshot, second: int) -> TimedSnapshot:
    snapshot = tick.snapshot
    return replace(
        tick,
        snapshot=replace(
            snapshot,
            taken_ns=snapshot.taken_ns + second * SECOND_NS,
            taken_unix_s=snapshot.taken_unix_s + second,
            devices=tuple(device_at(device, second) for device in snapshot.devices),
            processes=tuple(process_at(process, second) for process in snapshot.processes),
        ),
    )


def device_at(device: DeviceState, second: int) -> DeviceState:
    row, column = divmod(device.index, 4)
    around = {
        (row + down) % 4 * 4 + (column + right) % 4 for down, right in ((1, 0), (-1, 0), (0, 1), (0, -1))
    }
    broken = {5: (6,), 6: (5,)}.get(device.index, ()) if second >= 20 else ()
    errors = HardwareCounters(mem_ecc_corrected=second // 8, mem_ecc_uncorrected=second // 30)
    return replace(
        device,
        connected_to=tuple(sorted(around - set(broken))),
        links_down=broken,
        memory_used_bytes=device.memory_bytes * (30 + 2 * device.index + second) // 100,
        hardware=errors if device.index == 2 else device.hardware,
        lost=device.index == 15 and second >= 36,
    )


def process_at(process: ProcessState, second: int) -> ProcessState:
    cores = tuple(
        replace(
            use,
            busy_ns=use.busy_ns
            + sum(busy_ns(use.core, before) for before in range(second)) * bool(use.busy_ns),
            executions=use.executions + 40 * second * bool(use.busy_ns),
        )
        for use in process.cores
    )
    done = 40 * second * len(cores)
    failed = second // 10 if process.pid == 5117 else 0
    return replace(
        process,
        cores=cores,
        latency_counts=(*[0] * 24, done - done // 20, 0, done // 20, *[0] * 37),
        status_counts=((0, done - failed), (1002, failed)) if failed else ((0, done),),
        cpu_user_ns=second * SECOND_NS * 3 // 2,
        host_memory=MemoryUse(tensors=12 << 20, application_memory=420 << 20),
    )


def busy_ns(core: int, second: int) -> int:
    return SECOND_NS * ((core * 7 + second * 5) % 97) // 97


@pytest.mark.parametrize(
    ("page", "size", "theme"),
    [*((page, SIZE, "dark") for page in LIVE_PAGES), *(("overview", *layout) for layout in OTHER_LAYOUTS)],
    ids=lambda value: value if isinstance(value, str) else f"{value[0]}x{value[1]}",
)
def test_page(
    snap_compare: Compare, minute: tuple[TimedSnapshot, ...], page: str, size: tuple[int, int], theme: str
) -> None:
    app = TopApp(FixedSource(*minute), settings=TopSettings(page=page, theme=theme))
    assert snap_compare(app, terminal_size=size, run_before=pressing())


@pytest.mark.parametrize("theme", ["light", "colorblind"])
def test_classic_screen_in_other_themes(
    snap_compare: Compare, minute: tuple[TimedSnapshot, ...], theme: str
) -> None:
    app = TopApp(FixedSource(*minute), settings=TopSettings(theme=theme, classic=True))
    assert snap_compare(app, terminal_size=SIZE, run_before=pressing())


@pytest.mark.parametrize(
    ("page", "keys"),
    [
        ("history", ("down", "enter", "down", "t")),
        ("history", ("u", "u", "down")),
        ("history", ("U", "down", "enter", "down", "down")),
        ("processes", ("I", "enter")),
        ("devices", ("t", "down")),
        ("devices", ("down", "down", "enter")),
        ("events", ("t", "down")),
    ],
    ids=["cores", "executions", "latency", "details", "links", "device", "problems"],
)
def test_what_keys_open(
    snap_compare: Compare, minute: tuple[TimedSnapshot, ...], page: str, keys: tuple[str, ...]
) -> None:
    app = TopApp(FixedSource(*minute), settings=TopSettings(page=page, theme="colorblind"))
    assert snap_compare(app, terminal_size=SIZE, run_before=pressing(*keys))


@pytest.mark.parametrize(
    ("page", "keys"),
    [
        ("history", ("U", "down", "enter")),
        ("processes", ("end",)),
        ("devices", ("t", "down", "down", "down", "down", "down")),
        ("events", ("t", "down", "down")),
    ],
    ids=["latency", "process", "links", "problem"],
)
def test_what_a_large_terminal_shows_beside(
    snap_compare: Compare, minute: tuple[TimedSnapshot, ...], page: str, keys: tuple[str, ...]
) -> None:
    app = TopApp(FixedSource(*minute), settings=TopSettings(page=page, theme="dark"))
    assert snap_compare(app, terminal_size=(200, 60), run_before=pressing(*keys))


@pytest.mark.parametrize("size", [(80, 24), SIZE], ids=lambda size: f"{size[0]}x{size[1]}")
def test_several_machines(
    snap_compare: Compare, minute: tuple[TimedSnapshot, ...], trn2: Ticks, size: tuple[int, int]
) -> None:
    app = TopApp(of_several(minute, trn2), settings=TopSettings(theme="dark"), machines=MACHINES)
    assert snap_compare(app, terminal_size=size, run_before=pressing())


def test_one_of_several_machines(
    snap_compare: Compare, minute: tuple[TimedSnapshot, ...], trn2: Ticks
) -> None:
    app = TopApp(of_several(minute, trn2), settings=TopSettings(theme="dark"), machines=MACHINES)
    assert snap_compare(app, terminal_size=SIZE, run_before=pressing("n", "v"))


def of_several(minute: tuple[TimedSnapshot, ...], trn2: Ticks) -> Any:
    """A machine with alerts, one without, one that is not there."""
    told = [MachineUpdate(0, tick) for tick in minute] + [MachineUpdate(1, tick) for tick in trn2]
    return FixedSource(*told, MachineUpdate(2, SourceProblem("machine not running, waiting for it")))  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("page", PAGES)
def test_page_as_text(
    minute: tuple[TimedSnapshot, ...], page: str, width: int, pytestconfig: pytest.Config
) -> None:
    model = TopModel(colour=False)
    for tick in minute:
        model.update(tick)
    (chosen,) = [made for made in make_pages() if made.name == page]
    text = page_text(chosen, model, width) + "\n"
    golden = GOLDENS / f"{page}-{width}.txt"
    if pytestconfig.getoption("--snapshot-update"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()
