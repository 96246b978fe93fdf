"""One device in full, by what its source tells: memory by category always, power where somebody knows it, no temperature."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from neurontools.dashboard.recorder import SnapshotRecorder
from neurontools.monitor.codec import parse_line
from neurontools.monitor.exporter import Exporter
from neurontools.monitor.scrape_server import ScrapeAddress, ScrapeServer
from neurontools.sources import open_source
from neurontools.tui.top.model import TopModel
from neurontools.tui.top.pages.device import device_lines
from neurontools.tui.top.pages.devices import DevicesPage
from neurontools.tui.top.pages.registry import make_pages, page_data
from neurontools.tui.top.source import TimedSnapshot, timed_snapshot
from neurontools.tui.widgets.lines import text_of, width_of

Ticks = tuple[TimedSnapshot, TimedSnapshot]
CATEGORIES = ("Tensors", "Constants", "Model Code", "Model Scratchpad", "Runtime Memory")


def drawn(*ticks: TimedSnapshot, index: int = 0) -> dict[str, str]:
    """The lines of a device, each by what it begins with."""
    model = TopModel(colour=False)
    for tick in ticks:
        model.update(tick)
    assert model.shown.snapshot is not None
    lines = [text_of(line) for line in device_lines(model, model.shown.snapshot.devices[index], 120)]
    return {line[:20].strip(): line[20:].strip() for line in lines}


def of(source: str, tick: TimedSnapshot, **device: object) -> TimedSnapshot:
    first, *others = tick.snapshot.devices
    changed = (replace(first, **device), *others)  # type: ignore[arg-type]
    return replace(tick, snapshot=replace(tick.snapshot, source=source, devices=changed))


def test_power_is_the_drivers_modelled_or_not_there(training: Ticks) -> None:
    told = drawn(*(of("real", tick, power=(0.1, 0.9, 0.5)) for tick in training))
    assert told["power"] == "50.00%, from 10.00% to 90.00% in the last minute"
    assert drawn(*training)["power"] == "18.50%, from 18.50% to 18.50% in the last minute (modelled)"
    for source in ("real", "recording", "remote"):
        lines = drawn(*(of(source, tick) for tick in training))
        assert "power" not in lines
        assert not any("temperature" in name for name in lines)


def test_json_says_whether_power_is_modelled(training: Ticks) -> None:
    model = TopModel()
    for tick in training:
        model.update(of("real", tick, power=(0.1, 0.9, 0.5)))
    (page,) = [page for page in make_pages() if page.name == "devices"]
    first, second, *_ = page_data(page, model)["devices"]
    assert first["power"] == {"lowest": 0.1, "highest": 0.9, "mean": 0.5, "is_modelled": False}
    assert second["power"] is None


def test_memory_that_no_process_explains_is_shown_as_other(training: Ticks) -> None:
    held = 2 * (300 + 1200 + 256 + 3 + 640) << 20
    lines = drawn(*(of("real", tick, memory_used_bytes=held + (1 << 30)) for tick in training))
    assert all(name in lines for name in CATEGORIES)
    assert lines["Other"].endswith("1.0GB")
    assert "Other" not in drawn(*(of("real", tick, memory_used_bytes=held) for tick in training))


@pytest.fixture
def recorded(training: Ticks, tmp_path: Path) -> str:
    path = str(tmp_path / "run.jsonl")
    recorder = SnapshotRecorder(path)
    for tick in training:
        recorder.take(tick.snapshot)
    recorder.close()
    return path


def test_a_recording_has_memory_by_category(recorded: str) -> None:
    with open_source(recorded) as source:
        lines = drawn(timed_snapshot(source.snapshot()))
    assert lines["Tensors"].endswith("1.2GB")
    assert lines["Model Code"].endswith("2.3GB")


def test_an_exporter_has_it_too(recorded: str) -> None:
    exporter = Exporter(lambda text: None)
    server = ScrapeServer(exporter, ScrapeAddress("127.0.0.1", 0))
    try:
        for line in Path(recorded).read_bytes().splitlines(keepends=True):
            exporter.update(parse_line(line))
        with open_source(f"http://127.0.0.1:{server.port}") as source:
            lines = drawn(timed_snapshot(source.snapshot()))
    finally:
        server.close()
    assert lines["Tensors"].endswith("1.2GB")
    assert lines["Model Code"].endswith("2.3GB")


@pytest.mark.parametrize(("width", "has_links"), [(120, False), (200, True)])
def test_a_large_terminal_has_charts_below_the_device(training: Ticks, width: int, has_links: bool) -> None:
    model = TopModel(colour=False)
    for tick in training:
        model.update(tick)
    page = DevicesPage()
    page._toggle_device(model)
    lines = [text_of(line) for line in page.lines(model, width, 57)]
    assert [width_of(line) for line in lines] == [width] * 57
    text = "\n".join(lines)
    for name in ("Utilization of ND0: last minute", "HBM in use of ND0: last minute"):
        assert name in text
    assert ("Links of ND0" in text) is has_links
    assert ("\n│ links  " in text) is not has_links
    assert "Utilization of" not in "\n".join(text_of(line) for line in page.lines(model, 80, 21))
