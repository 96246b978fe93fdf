"""Instance types, Neuron devices and NeuronCore versions: the facts of `fixtures/instances/*.yaml` as values.

Bytes are bytes, rates are per second, and a rate of a core is that of one physical core. The checked YAML files are
kept as one JSON document in the cache directory, with their digest: it is compiled again when the digest differs or the
document is damaged, and a cache directory that is not writable only costs time.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cache
from importlib.util import source_hash
from typing import Any

from neurontools import paths
from neurontools.base.files import write_atomic
from neurontools.base.text import suggest
from neurontools.errors import NeuronToolsError, UsageError

_FORMAT = 3
_DTYPE_NAMES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "float8_e4m3fn": "cfp8",
    "float8_e5m2": "cfp8",
    "fp8": "cfp8",
}


class UnknownInstanceError(UsageError):
    """No instance type has that name; the remedy lists those that exist."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        match = suggest(name.lower(), known)
        suggestion = f"did you mean {match!r}? " if match else ""
        super().__init__(
            f"unknown instance type {name!r}", f"{suggestion}the known types are {', '.join(known)}"
        )


@dataclass(frozen=True, slots=True)
class CoreVersion:
    """A NeuronCore version: engines, rates and on-chip memory of one physical core.

    `tensor_tflops` are pairs of data type and dense TFLOPS, `clock_hz` pairs of engine and Hz, `monitor_versions`
    pairs of LNC and the version that neuron-monitor and neuron-top print. `sbuf_collectives` is set for a core that
    exchanges SBUF contents without HBM.
    """

    name: str
    tensor_tflops: tuple[tuple[str, float], ...]
    vector_flops_s: float
    scalar_flops_s: float
    gpsimd_processors: int
    gpsimd_tcm_bytes: int
    clock_hz: tuple[tuple[str, float], ...]
    sbuf_bytes: int
    psum_bytes: int
    sbuf_collectives: bool
    monitor_versions: tuple[tuple[int, str], ...]

    def tensor_flops_s(self, dtype: str) -> float:
        """Return the tensor engine's dense rate for a data type.

        Args:
            dtype: a name of the documents (`bf16`, `fp32`, `cfp8`) or of torch (`bfloat16`, `float32`).

        Returns:
            FLOP/s; the lowest rate of the core for a type that the documents do not list.
        """
        rates = dict(self.tensor_tflops)
        return rates.get(_DTYPE_NAMES.get(dtype, dtype), min(rates.values())) * 1e12

    def engine_clock_hz(self, engine: str) -> float:
        """Return the clock of an engine (`Tensor`, `Vector`, `Scalar`, `GpSimd`); the vector engine's for others."""
        clocks = {name.lower(): hz for name, hz in self.clock_hz}
        return clocks.get(engine.lower(), clocks["vector"])

    def monitor_version(self, lnc: int) -> str:
        """Return what neuron-monitor calls this core at a logical NeuronCore configuration (`v3d` at LNC 2)."""
        versions = dict(self.monitor_versions)
        return versions.get(lnc, self.monitor_versions[0][1])


@dataclass(frozen=True, slots=True)
class SysfsNames:
    """What the driver's sysfs tree prints under `info/architecture`."""

    device_name: str
    instance_type: str
    device_arch: str
    core_arch: str


@dataclass(frozen=True, slots=True)
class DeviceType:
    """A Neuron device: one chip. `device_type` and `device_version` are those of neuron-monitor.

    `tensor_tflops` are pairs of data type and the published dense TFLOPS of the whole chip; `collective_cores` is None
    where their number is not published. `targets` are the compiler's names of the device, the usual one first;
    `features` are "native" (the device `neuron` of PyTorch) and "e4m3fn" (float8_e4m3fn in hardware).
    """

    name: str
    core: CoreVersion
    targets: tuple[str, ...]
    features: tuple[str, ...]
    physical_cores: int
    memory_bytes: int
    memory_bandwidth_bytes_s: float
    dma_engines: int
    dma_bandwidth_bytes_s: float
    tensor_tflops: tuple[tuple[str, float], ...]
    collective_cores: int | None
    lnc_choices: tuple[int, ...]
    lnc_default: int
    device_type: str
    device_version: str
    sysfs: SysfsNames
    pci_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UltraServerType:
    """The UltraServer that an instance type is a part of.

    `modes` are the numbers of the ways in which its instances can be joined, `class_files` the names of the files
    about it below `/sys/class/neuron_device` (AWS Neuron documentation, Neuron sysfs user guide).
    """

    nodes: int
    chips: int
    modes: tuple[int, ...]
    class_files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class InstanceType:
    """An instance type. Per-device tuples are indexed by device.

    `connected_to` is None for the device of a single-device instance; `connected_to_docs` has the same links in the
    order of the documents' examples, None where that is the order of real hosts. `topology` is "none", "torus4x4",
    "ring", "chain" or "switched". `decisions` lists the values that no source gives and that we chose.
    """

    name: str
    device: DeviceType
    device_count: int
    vcpus: int
    host_memory_bytes: int
    network: str
    neuronlink: str
    topology: str
    connected_to: tuple[tuple[int, ...] | None, ...]
    connected_to_docs: tuple[tuple[int, ...], ...] | None
    ultraserver: UltraServerType | None
    pci_bdf: tuple[str, ...]
    cpu_affinity: tuple[str, ...]
    numa_node: tuple[str, ...]
    decisions: tuple[str, ...]

    @property
    def lnc_applies(self) -> bool:
        """Whether the logical NeuronCore configuration can be chosen on this instance."""
        return len(self.device.lnc_choices) > 1

    def cores_per_device(self, lnc: int) -> int:
        """Return the logical cores of one device at a logical NeuronCore configuration.

        Raises:
            NeuronToolsError: the device does not offer that configuration.
        """
        if lnc not in self.device.lnc_choices:
            choices = " or ".join(str(choice) for choice in self.device.lnc_choices)
            raise NeuronToolsError(
                f"logical NeuronCore configuration {lnc} does not exist on {self.name}", f"choose {choices}"
            )
        return self.device.physical_cores // lnc

    def core_count(self, lnc: int) -> int:
        """Return the logical cores of the whole instance."""
        return self.device_count * self.cores_per_device(lnc)


def instance_type(name: str) -> InstanceType:
    """Return an instance type by its name or alias.

    Raises:
        UnknownInstanceError: no instance type has that name.
        CatalogueError: the catalogue's files are damaged.
    """
    instances, aliases = _catalogue()
    wanted = aliases.get(name, name)
    if wanted not in instances:
        raise UnknownInstanceError(name, tuple(instances))
    return instances[wanted]


def find_instance_type(name: str) -> InstanceType | None:
    """Return an instance type by its name or alias, None when the catalogue does not have it."""
    try:
        return instance_type(name)
    except UnknownInstanceError:
        return None


def vcpu_count(name: str) -> int:
    """Return the vCPUs of an instance type, of a type that the catalogue does not have those of this host."""
    instance = find_instance_type(name)
    return (os.cpu_count() or 1) if instance is None else instance.vcpus


def instance_aliases() -> dict[str, str]:
    """Return the aliases of instance types."""
    return dict(_catalogue()[1])


def instance_names() -> tuple[str, ...]:
    """Return the names of all instance types, by family and size."""
    return tuple(_catalogue()[0])


def devices() -> tuple[DeviceType, ...]:
    """Return the devices of all instance types."""
    by_name = {instance.device.name: instance.device for instance in _catalogue()[0].values()}
    return tuple(by_name.values())


@cache
def _catalogue() -> tuple[dict[str, InstanceType], dict[str, str]]:
    compiled = load_compiled()
    try:
        return _from_compiled(compiled)
    except (KeyError, TypeError, ValueError):
        return _from_compiled(load_compiled(fresh=True))


def _from_compiled(compiled: dict[str, Any]) -> tuple[dict[str, InstanceType], dict[str, str]]:
    cores = {key: _core(value) for key, value in compiled["cores"].items()}
    devices = {key: _device(value, cores) for key, value in compiled["devices"].items()}
    instances = {key: _instance(key, value, devices) for key, value in compiled["instances"].items()}
    return instances, dict(compiled["aliases"])


def _core(value: dict[str, Any]) -> CoreVersion:
    fields = dict(value)
    for key in ("tensor_tflops", "clock_hz", "monitor_versions"):
        fields[key] = tuple((name, number) for name, number in value[key])
    return CoreVersion(**fields)


def _device(value: dict[str, Any], cores: dict[str, CoreVersion]) -> DeviceType:
    fields = dict(value)
    fields["core"] = cores[value["core"]]
    fields["tensor_tflops"] = tuple((name, number) for name, number in value["tensor_tflops"])
    fields["lnc_choices"] = tuple(value["lnc_choices"])
    fields["sysfs"] = SysfsNames(**value["sysfs"])
    for key in ("targets", "features", "pci_ids"):
        fields[key] = tuple(value[key])
    return DeviceType(**fields)


def _instance(name: str, value: dict[str, Any], devices: dict[str, DeviceType]) -> InstanceType:
    fields = dict(value)
    fields["device"] = devices[value["device"]]
    fields["connected_to"] = tuple(None if row is None else tuple(row) for row in value["connected_to"])
    docs, ultraserver = value["connected_to_docs"], value["ultraserver"]
    fields["connected_to_docs"] = None if docs is None else tuple(map(tuple, docs))
    fields["ultraserver"] = (
        None
        if ultraserver is None
        else UltraServerType(
            ultraserver["nodes"],
            ultraserver["chips"],
            tuple(ultraserver["modes"]),
            tuple(ultraserver["class_files"]),
        )
    )
    for key in ("pci_bdf", "cpu_affinity", "numa_node", "decisions"):
        fields[key] = tuple(value[key])
    return InstanceType(name=name, **fields)


def load_compiled(*, fresh: bool = False) -> dict[str, Any]:
    """Return the compiled catalogue.

    Args:
        fresh: compile the YAML files even when a compiled form exists.

    Raises:
        CatalogueError: a YAML file is missing, unreadable or does not follow the schema.
    """
    files = _yaml_files()
    digest = source_hash(b"\0".join(name.encode() + b"\0" + data for name, data in files.items())).hex()
    compiled = None if fresh else _read(digest)
    if compiled is None:
        from neurontools.machine.instances.schema import compile_catalogue

        compiled = compile_catalogue(files)
        _write(digest, compiled)
    return compiled


def compiled_path() -> str:
    """Return the path of the compiled form."""
    return f"{paths.cache_home()}/instances.json"


def _yaml_files() -> dict[str, bytes]:
    directory = f"{paths.fixtures_dir()}/instances"
    files = {}
    for name in sorted(os.listdir(directory)):
        if name.endswith(".yaml"):
            with open(f"{directory}/{name}", "rb") as file:
                files[name] = file.read()
    return files


def _read(digest: str) -> dict[str, Any] | None:
    try:
        with open(compiled_path(), "rb") as file:
            document = json.loads(file.read())
        if document["format"] == _FORMAT and document["digest"] == digest:
            catalogue: dict[str, Any] = document["catalogue"]
            return catalogue
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def _write(digest: str, compiled: dict[str, Any]) -> None:
    path = compiled_path()
    document = {"format": _FORMAT, "digest": digest, "catalogue": compiled}
    try:
        paths.make_private(os.path.dirname(path))
        write_atomic(path, json.dumps(document), sync=False)
    except OSError:
        pass
