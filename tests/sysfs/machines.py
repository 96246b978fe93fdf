"""Machines made by hand whose trees are known."""

from __future__ import annotations

from msgspec.structs import replace

from neurontools.machine.devices import place_in_ultraserver
from neurontools.machine.instances.catalogue import instance_type
from neurontools.machine.snapshot import (
    CoreTotals,
    CoreUse,
    DeviceState,
    HardwareCounters,
    MemoryUse,
    ProcessState,
    Snapshot,
)
from neurontools.sysfs.layout import DriverRelease, emulated
from neurontools.sysfs.tree import Entry, TreeFile, build_tree

STARTED_S = 1_789_180_800.0


def machine(name: str, lnc: int | None = None, **changes: object) -> Snapshot:
    """An idle machine."""
    instance = instance_type(name)
    chosen = lnc or instance.device.lnc_default
    per_device = instance.cores_per_device(chosen)
    snapshot = Snapshot(
        machine="default",
        source="sim",
        instance_type=instance.name,
        instance_id="i-0bea223b1afb7e159",
        lnc=chosen,
        lnc_applies=instance.lnc_applies,
        neuroncore_version=instance.device.core.monitor_version(chosen),
        taken_ns=60_000_000_000,
        taken_unix_s=STARTED_S + 60,
        started_unix_s=STARTED_S,
        devices=tuple(
            DeviceState(
                index=index,
                bdf=instance.pci_bdf[index],
                cpu_affinity=instance.cpu_affinity[index],
                numa_node=instance.numa_node[index],
                connected_to=instance.connected_to[index],
                core_ids=tuple(range(index * per_device, (index + 1) * per_device)),
                memory_bytes=instance.device.memory_bytes,
                memory_used_bytes=0,
            )
            for index in range(instance.device_count)
        ),
        processes=(),
    )
    return replace(snapshot, **changes)  # type: ignore[arg-type]


def job(cores: tuple[int, ...] = (0,), scale: int = 1, pid: int = 4711, **changes: object) -> ProcessState:
    """A process that did the same on each of its cores: 10 executions of which 3 failed, 7 units of memory."""
    memory = MemoryUse(
        constants=101 * scale,
        model_code=202 * scale,
        model_shared_scratchpad=303 * scale,
        runtime_memory=404 * scale,
        tensors=505 * scale,
        dma_buffers=66 * scale,
    )
    use = CoreUse(
        core=0,
        busy_ns=2_000_000_000 * scale,
        executions=10 * scale,
        flops=1_000_001 * scale,
        gpsimd_ns=0,
        executing=False,
        memory=memory,
        model_loads=2 * scale,
        failures=((5, scale), (1003, 2 * scale)),
    )
    process = ProcessState(
        pid=pid,
        start_ticks=1,
        uid=1000,
        command="python train.py",
        tag="train",
        runtime_version="2.34.10",
        origin="live",
        uses_device=True,
        cores=tuple(replace(use, core=core) for core in cores),
        host_memory=MemoryUse(tensors=1000 * scale, application_memory=2000 * scale),
        models=(),
        status_counts=(),
        latency_counts=(),
        registered_ns=0,
    )
    return replace(process, **changes)  # type: ignore[arg-type]


def busy(name: str, lnc: int | None = None) -> Snapshot:
    """A machine with a job on the first two cores, one that is gone from core 0, and memory errors on device 0."""
    idle = machine(name, lnc)
    gone = CoreTotals(0, busy_ns=1_000_000_000, executions=5, flops=500, model_loads=1, failures=((1201, 1),))
    hurt = replace(
        idle.devices[0],
        hardware=HardwareCounters(mem_ecc_corrected=12, mem_ecc_uncorrected=1),
        unhealthy=("hbm",),
    )
    return replace(idle, devices=(hurt, *idle.devices[1:]), processes=(job((0, 1)),), core_totals=(gone,))


def ultraserver(node: int, modes: tuple[int, ...]) -> Snapshot:
    """An instance of an UltraServer."""
    kind = instance_type("trn2u.48xlarge").ultraserver
    assert kind is not None
    place = place_in_ultraserver(kind.nodes, node, modes, kind.class_files, "owner")
    return machine("trn2u.48xlarge", ultraserver=place)


def tree_of(snapshot: Snapshot, driver: DriverRelease | None = None) -> dict[str, Entry]:
    return build_tree(snapshot, instance_type(snapshot.instance_type), driver or emulated())


def listing(entries: dict[str, Entry]) -> str:
    """The tree as text: mode, path, content."""
    lines = []
    for path, entry in entries.items():
        if isinstance(entry, TreeFile):
            lines.append(f"{entry.mode:04o} {path} {entry.text!r}")
        else:
            lines.append(f"link {path} -> {entry.target}")
    return "\n".join(lines) + "\n"
