"""Pictures of every page of the full-screen programs: three sizes, three states of a machine, SVG and, if possible, PNG.

python -m tests.tui.pictures DIRECTORY [--theme NAME] [--only TEXT]

The machines are made up, so the pictures are the same in every run. PNG files need the package `resvg_py`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import os
import pwd
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from neurontools.machine.snapshot import LATENCY_BUCKETS, HardwareCounters, MemoryUse
from tests.cache.conftest import NOW
from tests.tui.svg import animated, slim
from tests.tui.top.conftest import GIB, SECOND_NS, Job, process_at, snapshot_at
from tests.tui.top.fixed_source import FixedSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.machine.snapshot import DeviceState, ProcessState
    from neurontools.tui.top.source import TimedSnapshot

SIZES = ((80, 24), (120, 40), (200, 60))
STATES = ("idle", "loaded", "faulty")
PAGES = ("overview", "history", "processes", "devices", "events")
SECONDS = 75

_DEVICES, _CORES, _RANKS = 16, 4, 32
_SLOWEST_RANK = 17
_USERS = {1000: "ana", 1001: "kim", 1002: "lee"}
_LOST, _LOST_AT_S = 11, 60
_BROKEN = {5: 6, 6: 5}


def machine_at(state: str, second: int) -> TimedSnapshot:
    """Return the machine of a state after some seconds."""
    from neurontools.machine.host import CpuTimes, HostSample
    from neurontools.tui.top.source import TimedSnapshot

    jobs = _jobs(state, second)
    snapshot = snapshot_at(second, _DEVICES, _CORES, (), "trn2.48xlarge", "v3d")
    users = {"serve": 1001, "bert-embed": 1002}
    processes = tuple(_process(job, users.get(job.tag, 1000), second) for job in jobs)
    load = 0.02 if state == "idle" else 0.31 + 0.05 * math.sin(second / 9)
    cpu = HostSample(
        capacity_s=192.0 * second,
        host=CpuTimes(192 * load * second, 192 * load * second / 6),
        processes=tuple(((one.pid, one.pid * 10), CpuTimes(1.4 * second, 0.2 * second)) for one in jobs),
    )
    devices = tuple(_device(device, state, second, processes) for device in snapshot.devices)
    return TimedSnapshot(replace(snapshot, devices=devices, processes=processes), cpu)


def _jobs(state: str, second: int) -> tuple[Job, ...]:
    if state == "idle":
        return ()
    if state == "loaded":
        if second < 4:
            return ()
        return tuple(_rank(rank) for rank in range(_RANKS))
    serving = (Job(7001, "serve", (56, 57), (0.4, 0.3)), Job(7002, "serve", (58, 59), (0.5, 0.2)))
    embed = (Job(8100, "bert-embed", (60,), (0.97,)),) if second < 66 else ()
    return (*(_rank(rank) for rank in range(20)), *serving, *embed)


def _rank(rank: int) -> Job:
    return Job(4000 + rank, "llama", (2 * rank, 2 * rank + 1), (0.9, 0.9), flops_s=58e12)


def _process(job: Job, uid: int, second: int) -> ProcessState:
    process = process_at(job, second)
    rank = job.pid - 4000 if job.tag == "llama" else None
    slow = rank == _SLOWEST_RANK
    cores = tuple(
        replace(
            use,
            busy_ns=sum(_busy_ns(use.core, before, slow=slow, share=job.busy[0]) for before in range(second)),
            memory=MemoryUse(tensors=(9 + use.core % 5) * GIB, model_code=GIB, constants=2 * GIB),
        )
        for use in process.cores
    )
    buckets = _latencies(job.pid, second, slow=slow)
    command = (
        f"python -m torch.distributed.run pretrain.py --model llama3-8b --rank {rank}"
        if rank is not None
        else f"python {job.tag}.py --port {job.pid}"
    )
    failed = ((1202, second // 20),) if job.tag == "serve" and second >= 40 else ()
    return replace(
        process, uid=uid, command=command, cores=cores, latency_counts=tuple(buckets),
        status_counts=((0, 40 * second), *failed),
    )  # fmt: skip


def _latencies(pid: int, second: int, *, slow: bool) -> list[int]:
    buckets = [0] * LATENCY_BUCKETS
    for past in range(second):
        wave = math.sin(past / 7 + pid)
        buckets[(36 if slow else 34) + (wave > 0.7)] += 76
        buckets[36 + (past % 15 == 0) * 3 + (wave < -0.3)] += 3
        buckets[38 + (past % 15 == 0) * 2 + (wave > 0)] += 1
    return buckets


def _busy_ns(core: int, second: int, *, slow: bool, share: float) -> int:
    step = 0.35 if second % 15 == 0 else 1.0  # a checkpoint
    wave = 0.06 * math.sin(second / 3 + core)
    return int(SECOND_NS * min(1.0, max(0.0, step * (share + wave + (0.05 if slow else 0)))))


def _device(device: DeviceState, state: str, second: int, processes: tuple[ProcessState, ...]) -> DeviceState:
    row, column = divmod(device.index, 4)
    around = {(row + d) % 4 * 4 + (column + r) % 4 for d, r in ((1, 0), (-1, 0), (0, 1), (0, -1))}
    used = sum(
        use.memory.total_bytes for one in processes for use in one.cores if use.core in device.core_ids
    )
    faulty = state == "faulty"
    down = (_BROKEN[device.index],) if faulty and second >= 30 and device.index in _BROKEN else ()
    errors = HardwareCounters(mem_ecc_corrected=second // 5, mem_ecc_uncorrected=second // 30)
    return replace(
        device,
        memory_bytes=96 * GIB,
        memory_used_bytes=used,
        connected_to=tuple(sorted(around - set(down))),
        links_down=down,
        hardware=errors if faulty and device.index == 2 else device.hardware,
        lost=faulty and device.index == _LOST and second >= _LOST_AT_S,
    )


async def take_top(directory: Path, theme: str, only: str) -> None:
    """Take the pages of neuron-top."""
    from neurontools.tui.top.app import TopApp
    from neurontools.tui.top.settings import TopSettings

    for state in STATES:
        updates = [machine_at(state, second) for second in range(1, SECONDS)]
        if not any(only in f"top-{page}-{state}" for page in PAGES):
            continue
        for width, height in SIZES:
            app = TopApp(FixedSource(*updates, name="sim"), settings=TopSettings(theme=theme))
            async with app.run_test(size=(width, height)) as pilot:
                await app.source_ended.wait()
                for page in PAGES:
                    app.action_page(page)
                    await pilot.pause()
                    name = f"top-{page}-{state}-{width}x{height}-{theme}"
                    if only in name:
                        app.save_screenshot(f"{name}.svg", str(directory))
                    for keys, what, back in EXTRAS[page]:
                        name = f"top-{page}-{what}-{state}-{width}x{height}-{theme}"
                        if only in name:
                            await pilot.press(*keys.split())
                            await pilot.pause()
                            app.save_screenshot(f"{name}.svg", str(directory))
                            await pilot.press(*back.split())


EXTRAS = {
    "overview": (("c", "classic", "c"), ("question_mark", "help", "escape"), ("ctrl+p", "palette", "escape")),
    "history": (("U down", "latency", "up u"),),
    "processes": (("enter j enter", "details", "enter k enter"),),
    "devices": (("t", "links", "t"), ("enter", "one", "enter")),
    "events": (("j j j", "selected", "k k k"),),
}
"""Keys that show more of a page, its name, and the keys that end it."""


DOCS = (
    ("neuron-top", "faulty", "overview", (120, 40), "down enter down", "dark"),
    ("neuron-top-classic", "loaded", "overview", (100, 30), "c", "dark"),
    ("neuron-top-history", "loaded", "history", (140, 36), "down enter down", "dark"),
    ("neuron-top-latency", "faulty", "history", (140, 36), "U down", "dark"),
    ("neuron-top-processes", "faulty", "processes", (170, 54), "", "dark"),
    ("neuron-top-devices", "faulty", "devices", (120, 30), "", "dark"),
    ("neuron-top-light", "faulty", "devices", (100, 24), "", "light"),
    ("neuron-top-colorblind", "faulty", "devices", (100, 24), "", "colorblind"),
    ("neuron-top-help", "loaded", "processes", (120, 44), "question_mark", "dark"),
    ("neuron-top-links", "faulty", "devices", (170, 48), "t down down down down down", "dark"),
    ("neuron-top-device", "faulty", "devices", (120, 32), "down down enter", "dark"),
    ("neuron-top-events", "faulty", "events", (160, 44), "j j j j j", "dark"),
)


TOUR_SIZE = (110, 32)
TOUR = (("", 1.0), ("", 1.0), ("", 1.0), ("", 1.0), ("f2", 3.0), ("f3", 3.0), ("f4", 3.0), ("f5", 3.0))
"""The keys before each frame of the animated picture, and the seconds for which it is shown."""


async def take_docs(directory: Path) -> None:
    """Take the pictures of neuron-top in the documentation, and those of its gallery in the light theme."""
    from neurontools.tui.top.app import TopApp
    from neurontools.tui.top.settings import TopSettings

    light = directory / "light"
    light.mkdir(exist_ok=True)
    updates = {
        state: [machine_at(state, second) for second in range(1, SECONDS)] for state in ("loaded", "faulty")
    }
    for name, state, page, size, keys, theme in DOCS:
        for folder, shown in ((directory, theme), *(((light, "light"),) if theme == "dark" else ())):
            app = TopApp(
                FixedSource(*updates[state], name="sim"), settings=TopSettings(page=page, theme=shown)
            )
            async with app.run_test(size=size) as pilot:
                await app.source_ended.wait()
                await pilot.press(*keys.split())
                await pilot.pause()
                (folder / f"{name}.svg").write_text(slim(app.export_screenshot()))
    for folder, theme in ((directory, "dark"), (light, "light")):
        (folder / "neuron-top-machines.svg").write_text(await _machines(theme))
    (directory / "neuron-top-tour.svg").write_text(await _tour(updates["faulty"]))


async def _machines(theme: str) -> str:
    from neurontools.tui.top.app import TopApp
    from neurontools.tui.top.settings import TopSettings
    from neurontools.tui.top.source import MachineUpdate

    names, states = ("train-1", "train-2", "spare", "serve"), ("loaded", "loaded", "idle", "faulty")
    updates = [
        MachineUpdate(index, machine_at(state, second))
        for second in range(1, SECONDS)
        for index, state in enumerate(states)
    ]
    app = TopApp(
        FixedSource(*updates),  # type: ignore[arg-type]
        settings=TopSettings(theme=theme),
        machines=[(name, f"sim:{name}") for name in names],
    )
    async with app.run_test(size=(120, 24)) as pilot:
        await app.source_ended.wait()
        await pilot.press("down")
        await pilot.pause()
        return slim(app.export_screenshot())


async def _tour(updates: Sequence[TimedSnapshot]) -> str:
    from neurontools.tui.top.app import TopApp
    from neurontools.tui.top.settings import TopSettings

    pictures = []
    first = SECONDS - 1 - len(TOUR)
    app = TopApp(FixedSource(*updates[:first], name="sim"), settings=TopSettings(theme="dark"))
    async with app.run_test(size=TOUR_SIZE) as pilot:
        await app.source_ended.wait()
        for number, (key, _) in enumerate(TOUR):
            app.take(updates[first + number])
            await pilot.press(*key.split())
            await pilot.pause()
            pictures.append(slim(app.export_screenshot()))
    return animated(pictures, [seconds for _, seconds in TOUR])


async def take_cache(directory: Path, theme: str) -> None:
    """Take the cache browser with an entry, a group and a failure at the cursor."""
    from neurontools.tui.cache.app import CacheApp
    from neurontools.tui.cache.browser import Browser
    from tests.tui.cache.made_cache import make_cache

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        os.environ["XDG_STATE_HOME"] = f"{folder}/state"
        make_cache(Path("compile-cache"))
        time_now, time.time = time.time, lambda: NOW
        app = CacheApp(Browser("compile-cache"), theme=theme)
        async with app.run_test(size=SIZES[0]) as pilot:
            for width, height in SIZES:
                await pilot.resize_terminal(width, height)
                for keys, what in CACHE_ROWS:
                    await pilot.press(*keys.split())
                    await pilot.pause()
                    await app.workers.wait_for_complete()
                    await pilot.pause()
                    name = "-".join(filter(None, ("cache", what)))
                    app.save_screenshot(f"{name}-{width}x{height}-{theme}.svg", str(directory))
        time.time = time_now


CACHE_ROWS = (("home down down", ""), ("home", "group"), ("end", "failed"))


PROFILE_EXTRAS = {
    "timeline": (("j tab tab tab", "event"), ("p", "path"), ("p escape z Z", "folded"), ("Z z c", "wall")),
    "tree": (("t", "source"),),
    "compare": (("plus plus right", "closer"),),
}


async def take_profile(directory: Path, theme: str) -> None:
    """Take the profile viewer with two made-up runs; each extra picture goes on from the one before."""
    from neurontools.profiler.trace.open import load
    from neurontools.tui.profile.app import PAGE_NAMES, ProfileApp
    from tests.tui.profile.made_runs import make_runs

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        before, after = map(load, make_runs(Path(folder)))
        for width, height in SIZES:
            app = ProfileApp(before, after, theme=theme)
            async with app.run_test(size=(width, height)) as pilot:
                for number, page in enumerate(PAGE_NAMES, 1):
                    await pilot.press(f"f{number}")
                    for keys, what in (("", ""), *PROFILE_EXTRAS.get(page, ())):
                        await pilot.press(*keys.split())
                        await app.workers.wait_for_complete()
                        await pilot.pause()
                        name = "-".join(filter(None, ("profile", page, what)))
                        app.save_screenshot(f"{name}-{width}x{height}-{theme}.svg", str(directory))


def _made_up_user(uid: int) -> pwd.struct_passwd:
    # Users of the computer that draws are of no interest.
    return pwd.struct_passwd((_USERS[uid], "x", uid, uid, "", "/", "/bin/sh"))


def rasterize(directory: Path) -> int:
    """Make a PNG of every SVG; return how many, 0 without the package."""
    try:
        import resvg_py  # type: ignore[import-not-found]
    except ImportError:
        return 0
    paths = sorted(directory.glob("*.svg"))
    for path in paths:
        image = resvg_py.svg_to_bytes(svg_path=str(path), monospace_family="DejaVu Sans Mono")
        path.with_suffix(".png").write_bytes(bytes(image))
    return len(paths)


def main(arguments: list[str]) -> None:
    """Take all pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("directory", type=Path)
    parser.add_argument("--theme", default="dark")
    parser.add_argument("--only", default="", help="pictures with this text in their name")
    parser.add_argument("--docs", action="store_true", help="only the pictures of the documentation")
    parsed = parser.parse_args(arguments)
    directory: Path = parsed.directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    os.environ["TZ"] = "UTC"
    time.tzset()
    pwd.getpwuid = _made_up_user
    if parsed.docs:
        asyncio.run(take_docs(directory))
        return
    if "top".startswith(parsed.only[:3]):
        asyncio.run(take_top(directory, parsed.theme, parsed.only))
    if "cache".startswith(parsed.only[:5]):
        asyncio.run(take_cache(directory, parsed.theme))
    if "profile".startswith(parsed.only[:7]):
        asyncio.run(take_profile(directory, parsed.theme))
    made = rasterize(directory)
    sys.stdout.write(f"{len(list(directory.glob('*.svg')))} SVG and {made} PNG pictures in {directory}\n")


if __name__ == "__main__":
    os.environ.pop("NO_COLOR", None)
    main(sys.argv[1:])
