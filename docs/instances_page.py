"""docs/reference/instances.md, made from the catalogue of instance types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.machine.instances.catalogue import instance_aliases, instance_names, instance_type

if TYPE_CHECKING:
    from neurontools.machine.instances.catalogue import DeviceType, InstanceType

GIB, MIB, KIB = 2**30, 2**20, 2**10

HEAD = """# Instance types

Made by `python docs/generate.py` from `fixtures/instances/*.yaml`, whose heads name the sources. What no source gives
is our decision; all of those are listed at the end, and `neurontools.machine.instances.catalogue` has them as values.

`neurond start --instance TYPE` takes every name of this page.
"""

OPTIONS = """
## Options of a machine

| option of `neurond start` | meaning |
|---|---|
| `--lnc N` | logical NeuronCore configuration, where the chip offers a choice: N physical cores make one core that programs see. Core ids, counts, the version that neuron-monitor prints and the line `logical-neuroncore-config` follow it. |
| `--neighbours host\\|docs` | order in which trn2 lists connected devices: as on real hosts (default), or as in the documents' examples. The links are the same. Elsewhere both are one order. |
| `--visible-devices LIST` | what a container with these devices of the host sees: devices and cores numbered anew from 0 in the order of the host's ids, CONNECTED with the host's ids, PCI address, affinity and NUMA node of the host's devices (as in the capture of a container). Several devices: our decision, by analogy. |
| `--ultraserver-node N` | which instance of its UltraServer the machine is, from 0 |
| `--ultraserver-mode LIST` | ways in which the instances may be joined: 1 is X4, 2 X2H, 3 X2V, 4 X1 |

They are part of what a machine is: they survive the daemon, and a start under the same name with other options is an
error that names the difference.

All machines of a user are instances of one UltraServer (our decision): `server_id_4` is the same everywhere,
`server_id_2` for each pair. A file about a size that no mode has says `-1`.
"""

NOT_OFFERED = """
## Names that are not offered

The driver and the runtime library also name trn2p.48xlarge, trn2eu.48xlarge, trn2e, trn2ac, trn2uac, inf2e,
trn3s-es.48xlarge and trn3sn.3xlarge. Nothing else is known of them.
"""


def instances_page() -> str:
    """Return docs/reference/instances.md."""
    instances = [instance_type(name) for name in instance_names()]
    chips = {one.device.name: one.device for one in instances}
    parts = [
        HEAD,
        "\n## Instances\n\n",
        _table(INSTANCE_HEAD, [_instance(one) for one in instances]),
        "\n" + "\n".join(f"`{alias}` means `{name}`.  " for alias, name in instance_aliases().items()) + "\n",
        OPTIONS,
        "\n## Chips\n\n",
        _table(CHIP_HEAD, [_chip(one) for one in chips.values()]),
        "\n",
        _table(NAMES_HEAD, [_names(one) for one in chips.values()]),
        "\n## Cores\n\nRates of one physical core.\n\n",
        _table(CORE_HEAD, [_core(one) for one in {chip.core.name: chip for chip in chips.values()}.values()]),
        "\n## Places of the devices\n\nIn the order of the devices; one value stands for all.\n\n",
        _table(PLACE_HEAD, [_place(one) for one in instances]),
        "\n## Our decisions\n",
        *(_decisions(one) for one in instances),
        NOT_OFFERED,
    ]
    return "".join(parts)


INSTANCE_HEAD = (
    "instance type",
    "devices",
    "cores",
    "vCPUs",
    "host memory",
    "links",
    "NeuronLink",
    "network",
    "UltraServer",
)
CHIP_HEAD = (
    "chip",
    "core",
    "physical cores",
    "LNC",
    "memory",
    "bandwidth",
    "DMA",
    "collective cores",
    "dense TFLOPS",
)
NAMES_HEAD = ("chip", "neuron-monitor", "sysfs", "PCI ids")
CORE_HEAD = (
    "core",
    "neuron-monitor",
    "clocks in GHz",
    "tensor TFLOPS",
    "vector, scalar TFLOPS",
    "SBUF",
    "PSUM",
    "GPSIMD",
)
PLACE_HEAD = ("instance type", "PCI address", "NUMA node", "CPU affinity")


def _instance(one: InstanceType) -> tuple[str, ...]:
    by_lnc = [f"{one.core_count(lnc)} (LNC {lnc})" for lnc in one.device.lnc_choices]
    ultraserver = one.ultraserver
    return (
        f"`{one.name}`",
        f"{one.device_count} {one.device.name}",
        ", ".join(by_lnc) if one.lnc_applies else str(one.core_count(1)),
        str(one.vcpus),
        f"{one.host_memory_bytes // GIB} GiB",
        one.topology,
        one.neuronlink or "-",
        one.network or "not published",
        "-"
        if ultraserver is None
        else f"{ultraserver.nodes} instances, {ultraserver.chips} chips, modes {_listed(ultraserver.modes)}",
    )


def _chip(one: DeviceType) -> tuple[str, ...]:
    return (
        one.name,
        one.core.name,
        str(one.physical_cores),
        f"{_listed(one.lnc_choices)}, default {one.lnc_default}" if len(one.lnc_choices) > 1 else "1",
        f"{one.memory_bytes // GIB} GiB",
        f"{one.memory_bandwidth_bytes_s / 1e9:.0f} GB/s",
        f"{one.dma_engines} engines, {one.dma_bandwidth_bytes_s / 1e9:.0f} GB/s",
        str(one.collective_cores or "not published"),
        _rates(one.tensor_tflops),
    )


def _names(one: DeviceType) -> tuple[str, ...]:
    names = one.sysfs
    return (
        one.name,
        f"{one.device_type}, {one.device_version}",
        f"{names.device_name}, {names.instance_type}, {names.device_arch}, {names.core_arch}",
        ", ".join(one.pci_ids) or "not published",
    )


def _core(chip: DeviceType) -> tuple[str, ...]:
    core = chip.core
    return (
        core.name,
        ", ".join(f"{name} (LNC {lnc})" for lnc, name in core.monitor_versions),
        ", ".join(f"{engine} {hz / 1e9:g}" for engine, hz in core.clock_hz),
        _rates(core.tensor_tflops),
        f"{core.vector_flops_s / 1e12:g}, {core.scalar_flops_s / 1e12:g}",
        f"{core.sbuf_bytes // MIB} MiB",
        f"{core.psum_bytes // MIB} MiB",
        f"{core.gpsimd_processors} of {core.gpsimd_tcm_bytes // KIB} KiB" if core.gpsimd_processors else "-",
    )


def _place(one: InstanceType) -> tuple[str, ...]:
    return (f"`{one.name}`", *map(_each, (one.pci_bdf, one.numa_node, one.cpu_affinity)))


def _decisions(one: InstanceType) -> str:
    if not one.decisions:
        return f"\n`{one.name}`: none.\n"
    return f"\n`{one.name}`:\n\n" + "".join(f"- {decision}\n" for decision in one.decisions)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _each(values: tuple[str, ...]) -> str:
    return values[0] if len(set(values)) == 1 else "; ".join(values)


def _rates(rates: tuple[tuple[str, float], ...]) -> str:
    return ", ".join(f"{dtype} {tflops:g}" for dtype, tflops in rates)


def _listed(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))
