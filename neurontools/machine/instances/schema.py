"""The schema of `fixtures/instances/*.yaml`, and their compilation into one resolved document of plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurontools.config import types
from neurontools.config.reader import (
    MAPPING,
    TEXT,
    FileError,
    FormatError,
    Problem,
    Section,
    Value,
    read_yaml,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

GIB = 2**30
MIB = 2**20
KIB = 2**10

_CORES = "cores.yaml"
_DEVICES = "devices.yaml"
_TOPOLOGIES = "topologies.yaml"
_SHARED = (_CORES, _DEVICES, _TOPOLOGIES)
_SHAPES = ("none", "chain", "ring", "torus4x4", "switched")
_RATE_UNITS = {"GiB/s": 2**30, "TiB/s": 2**40, "GB/s": 1e9, "TB/s": 1e12}
_SYSFS_KEYS = ("device_name", "instance_type", "device_arch", "core_arch")

Plain = dict[str, Any]
_Decisions = dict[str, list[str]]

_COUNT = types.whole(1)
_ABOVE_ZERO = types.number(exclusive=True)

_FEATURES = types.list_of(types.choice(("native", "e4m3fn"), "feature"), "a list of features")
_TEXTS = types.list_of(types.TEXT, "a list of texts")
_NUMBERS = types.list_of(types.WHOLE, "a list of whole numbers")
_LINKS = types.list_of(_NUMBERS, "a list of lists of device numbers")


def _mapping(**keys: types.Type[Any]) -> types.Type[Plain]:
    return types.record(dict, "a mapping", {key: (key, wanted) for key, wanted in keys.items()})


_GPSIMD = _mapping(processors=types.WHOLE, tcm_kib=types.WHOLE)
_MONITOR = _mapping(device_type=types.TEXT, device_version=types.TEXT)
_SYSFS = _mapping(**dict.fromkeys(_SYSFS_KEYS, types.TEXT))
_ULTRASERVER = _mapping(nodes=_COUNT, chips=_COUNT, modes=_NUMBERS, class_files=_TEXTS)


class CatalogueError(FileError):
    """A file of the catalogue is missing or does not follow the schema."""

    def __init__(self, file: str, problems: Iterable[Problem]) -> None:
        super().__init__(
            f"instance catalogue: {file}", problems, "correct the file, or install neurontools again"
        )


def _parse_rate(text: str) -> float:
    number, _, unit = text.partition(" ")
    if unit not in _RATE_UNITS or not float(number) > 0:
        raise ValueError
    return float(number) * _RATE_UNITS[unit]


_RATE = types.scalar(f"a number and one of {', '.join(_RATE_UNITS)}", _parse_rate, 1.0)


def compile_catalogue(files: dict[str, bytes]) -> Plain:
    """Check the catalogue's YAML files and return them as one document with all references resolved.

    Args:
        files: contents by file name: cores.yaml, devices.yaml, topologies.yaml, and one file per family.

    Raises:
        CatalogueError: a file is missing, is not YAML, or does not follow the schema.
    """
    for name in _SHARED:
        if name not in files:
            raise CatalogueError(name, [Problem(0, "", "the file is missing")])
    decisions: _Decisions = {}
    cores = _compile_each(_CORES, files, _compile_core, decisions)
    devices = _compile_each(_DEVICES, files, lambda device: _compile_device(device, cores), decisions)
    for name, device in devices.items():
        decisions[name] += decisions[device["core"]]
    topologies = _compile_each(_TOPOLOGIES, files, _compile_topology, decisions)
    catalogue: Plain = {"cores": cores, "devices": devices, "instances": {}, "aliases": {}}
    for file in files:
        if file not in _SHARED:
            _compile_family(file, files, catalogue, topologies, decisions)
    return catalogue


def _read(file: str, files: dict[str, bytes]) -> Value:
    try:
        return read_yaml(files[file], trusted=True)
    except FormatError as error:
        raise CatalogueError(file, [error.problem]) from error


def _check(file: str, root: Value) -> None:
    if root.problems:
        raise CatalogueError(file, root.problems)


def _compile_each(
    file: str, files: dict[str, bytes], compile_one: Callable[[Section], Plain], decisions: _Decisions
) -> Plain:
    root = _read(file, files)
    compiled = {}
    for name, value in root.section():
        section = value.section()
        compiled[name] = compile_one(section)
        decisions[name] = [f"{name}: {text}" for text in section.require("decisions", _TEXTS)]
        section.finish()
    _check(file, root)
    return compiled


def _compile_core(core: Section) -> Plain:
    gpsimd = core.require("gpsimd", _GPSIMD)
    return {
        "name": core.require("name", types.TEXT),
        "tensor_tflops": _read_numbers(core, "tensor_tflops"),
        "vector_flops_s": core.require("vector_tflops", _ABOVE_ZERO) * 1e12,
        "scalar_flops_s": core.require("scalar_tflops", _ABOVE_ZERO) * 1e12,
        "gpsimd_processors": gpsimd["processors"],
        "gpsimd_tcm_bytes": gpsimd["tcm_kib"] * KIB,
        "clock_hz": [[engine, ghz * 1e9] for engine, ghz in _read_numbers(core, "clocks_ghz")],
        "sbuf_bytes": core.require("sbuf_mib", _COUNT) * MIB,
        "psum_bytes": core.require("psum_mib", _COUNT) * MIB,
        "sbuf_collectives": core.require("sbuf_collectives", types.FLAG),
        "monitor_versions": _read_versions(_require_section(core, "monitor_version")),
    }


def _require_section(section: Section, name: str) -> Section:
    value = section.need(name)
    return Section(section.value, {}) if value is None else value.section()


def _read_numbers(section: Section, name: str) -> list[tuple[str, float]]:
    return [(key, value.read(_ABOVE_ZERO, 1.0)) for key, value in _require_section(section, name)]


def _read_versions(section: Section) -> list[tuple[int, str]]:
    versions = []
    for key, value in section:
        if key in {"1", "2"}:
            versions.append((int(key), value.read(types.TEXT, "")))
        else:
            value.fail("expected a logical NeuronCore configuration, 1 or 2")
    if not versions:
        section.value.fail("no versions")
    return versions


def _compile_device(device: Section, cores: Plain) -> Plain:
    lnc = _require_section(device, "lnc")
    compiled = {
        "name": device.value.key,
        "core": device.require("core", types.choice(cores, "core version")),
        "targets": device.require("targets", _TEXTS),
        "features": device.require("features", _FEATURES),
        "physical_cores": device.require("physical_cores", _COUNT),
        "memory_bytes": device.require("memory_gib", _COUNT) * GIB,
        "memory_bandwidth_bytes_s": device.require("memory_bandwidth", _RATE),
        "dma_engines": device.require("dma_engines", _COUNT),
        "dma_bandwidth_bytes_s": device.require("dma_bandwidth", _RATE),
        "tensor_tflops": _read_numbers(device, "tflops"),
        "collective_cores": device.read("collective_cores", _COUNT, None),
        "lnc_choices": lnc.require("choices", _NUMBERS),
        "lnc_default": lnc.require("default", _COUNT),
        **device.require("monitor", _MONITOR),
        "sysfs": device.require("sysfs", _SYSFS),
        "pci_ids": device.require("pci_ids", _TEXTS),
    }
    _check_lnc(lnc, compiled)
    lnc.finish()
    return compiled


def _check_lnc(lnc: Section, device: Plain) -> None:
    choices = device["lnc_choices"]
    if device["lnc_default"] not in choices:
        lnc.fail("default", f"{device['lnc_default']} is not among the choices {choices}")
    for choice in choices:
        if not choice or device["physical_cores"] % choice:
            lnc.fail("choices", f"{device['physical_cores']} physical cores do not divide by {choice}")


def _compile_topology(topology: Section) -> Plain:
    shape = topology.require("shape", types.choice(_SHAPES, "shape"))
    rows = [] if shape == "none" else topology.require("connected_to", _LINKS)
    for device, row in enumerate(rows):
        for peer in row:
            if peer >= len(rows) or peer == device or device not in rows[peer]:
                topology.fail("connected_to", f"device {device} lists {peer}, which does not list it back")
    return {"shape": shape, "connected_to": rows}


def _compile_family(
    file: str, files: dict[str, bytes], catalogue: Plain, topologies: Plain, decisions: _Decisions
) -> None:
    root = _read(file, files)
    for name, value in root.section():
        if name in catalogue["instances"]:
            value.fail("the instance type is defined twice")
        instance = value.section()
        catalogue["instances"][name] = _compile_instance(
            instance, catalogue["devices"], topologies, decisions
        )
        catalogue["aliases"].update(dict.fromkeys(instance.read("aliases", _TEXTS, []), name))
        instance.finish()
    _check(file, root)


def _compile_instance(instance: Section, devices: Plain, topologies: Plain, decisions: _Decisions) -> Plain:
    device = instance.require("device", types.choice(devices, "device"))
    topology = instance.require("topology", types.choice(topologies, "topology"))
    count = instance.require("devices", _COUNT)
    links = topologies.get(topology or "", {"shape": "", "connected_to": []})
    rows = links["connected_to"] or [None]
    if topology is not None and len(rows) != count:
        instance.fail("topology", f"{topology} connects {len(rows)} devices, the instance has {count}")
    docs = instance.read("topology_docs", types.choice(topologies, "topology"), None)
    docs_rows = None if docs is None else topologies[docs]["connected_to"]
    if docs_rows is not None and _edges(docs_rows) != _edges(rows):
        instance.fail("topology_docs", f"{docs!r} does not have the links of {topology}")
    numa_node = _read_per_device(instance, "numa_node", count)
    return {
        "device": device,
        "device_count": count,
        "vcpus": instance.require("vcpus", _COUNT),
        "host_memory_bytes": instance.require("host_memory_gib", _COUNT) * GIB,
        "network": instance.read("network", types.TEXT, ""),
        "neuronlink": instance.read("neuronlink", types.TEXT, ""),
        "topology": links["shape"],
        "connected_to": rows,
        "connected_to_docs": docs_rows,
        "ultraserver": instance.read("ultraserver", _ULTRASERVER, None),
        "pci_bdf": instance.require("pci_bdf", _texts_of(count)),
        "cpu_affinity": _read_affinity(instance, numa_node),
        "numa_node": numa_node,
        "decisions": instance.require("decisions", _TEXTS)
        + decisions.get(topology or "", [])
        + decisions.get(device or "", []),
    }


def _edges(rows: list[list[int] | None]) -> set[tuple[int, int]]:
    return {(device, peer) for device, row in enumerate(rows) for peer in row or ()}


def _texts_of(count: int) -> types.Type[list[str]]:
    return types.list_of(types.TEXT, f"a list of {count} texts", count=count)


def _read_per_device(section: Section, key: str, count: int) -> list[str]:
    value = section.get(key)
    if value is not None and value.kind == TEXT:
        return [value.text] * count
    return section.require(key, _texts_of(count))


def _read_affinity(instance: Section, numa_node: list[str]) -> list[str]:
    value = instance.get("cpu_affinity")
    if value is None or value.kind != MAPPING:
        return _read_per_device(instance, "cpu_affinity", len(numa_node))
    by_node = value.section()
    affinity = [by_node.require(node, types.TEXT) for node in numa_node]
    by_node.finish()
    return affinity
