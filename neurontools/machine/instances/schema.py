"""The schema of `fixtures/instances/*.yaml`, and their compilation into one resolved document of plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurontools.machine.instances.reader import CatalogueError, Reader

if TYPE_CHECKING:
    from collections.abc import Callable

GIB = 2**30
MIB = 2**20
KIB = 2**10

_CORES = "cores.yaml"
_DEVICES = "devices.yaml"
_TOPOLOGIES = "topologies.yaml"
_SHARED = (_CORES, _DEVICES, _TOPOLOGIES)
_SHAPES = ("none", "chain", "ring", "torus4x4", "switched")

Plain = dict[str, Any]
_Decisions = dict[str, list[str]]


def compile_catalogue(files: dict[str, bytes]) -> Plain:
    """Check the catalogue's YAML files and return them as one document with all references resolved.

    Args:
        files: contents by file name: cores.yaml, devices.yaml, topologies.yaml, and one file per family.

    Raises:
        CatalogueError: a file is missing, is no YAML, or does not follow the schema.
    """
    for name in _SHARED:
        if name not in files:
            raise CatalogueError(name, "", "the file is missing")
    parsed = {name: Reader(name, "", _parse(name, data)) for name, data in files.items()}
    decisions: _Decisions = {}
    cores = _each(parsed[_CORES], _core, decisions)
    devices = _each(parsed[_DEVICES], _device, decisions)
    for name, device in devices.items():
        if device["core"] not in cores:
            raise CatalogueError(_DEVICES, f"{name}.core", f"no core version {device['core']!r} in {_CORES}")
        decisions[name] += decisions[device["core"]]
    topologies = _each(parsed[_TOPOLOGIES], _topology, decisions)
    catalogue: Plain = {"cores": cores, "devices": devices, "instances": {}, "aliases": {}}
    for name, reader in parsed.items():
        if name not in _SHARED:
            _family(reader, catalogue, topologies, decisions)
    return catalogue


def _parse(name: str, data: bytes) -> object:
    import yaml

    try:
        # The parser in C takes a tenth of the time, which the very first start of a machine waits for.
        return yaml.load(data, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506  both are safe
    except yaml.YAMLError as error:
        raise CatalogueError(name, "", "not YAML: " + " ".join(str(error).split())) from error


def _each(reader: Reader, compile_one: Callable[[Reader], Plain], decisions: _Decisions) -> Plain:
    compiled = {}
    for name in reader.names():
        one = reader.mapping(name)
        compiled[name] = compile_one(one)
        decisions[name] = [f"{name}: {text}" for text in one.texts("decisions")]
        one.finish()
    return compiled


def _core(reader: Reader) -> Plain:
    gpsimd = reader.mapping("gpsimd")
    compiled = {
        "name": reader.text("name"),
        "tensor_tflops": _numbers(reader.mapping("tensor_tflops")),
        "vector_flops_s": reader.number("vector_tflops") * 1e12,
        "scalar_flops_s": reader.number("scalar_tflops") * 1e12,
        "gpsimd_processors": gpsimd.integer("processors", least=0),
        "gpsimd_tcm_bytes": gpsimd.integer("tcm_kib", least=0) * KIB,
        "clock_hz": [[engine, ghz * 1e9] for engine, ghz in _numbers(reader.mapping("clocks_ghz"))],
        "sbuf_bytes": reader.integer("sbuf_mib") * MIB,
        "psum_bytes": reader.integer("psum_mib") * MIB,
        "monitor_versions": _versions(reader.mapping("monitor_version")),
    }
    gpsimd.finish()
    return compiled


def _numbers(reader: Reader) -> list[tuple[str, float]]:
    return [(key, reader.number(key)) for key in reader.names()]


def _versions(reader: Reader) -> list[tuple[int, str]]:
    versions = []
    for key in reader.names():
        if key not in {"1", "2"}:
            raise reader.error(key, "expected a logical NeuronCore configuration, 1 or 2")
        versions.append((int(key), reader.text(key)))
    if not versions:
        raise reader.error("1", "missing")
    return versions


def _device(reader: Reader) -> Plain:
    lnc = reader.mapping("lnc")
    monitor = reader.mapping("monitor")
    sysfs = reader.mapping("sysfs")
    compiled = {
        "name": reader.name,
        "core": reader.text("core"),
        "physical_cores": reader.integer("physical_cores"),
        "memory_bytes": reader.integer("memory_gib") * GIB,
        "memory_bandwidth_bytes_s": reader.rate("memory_bandwidth"),
        "dma_engines": reader.integer("dma_engines"),
        "dma_bandwidth_bytes_s": reader.rate("dma_bandwidth"),
        "tensor_tflops": _numbers(reader.mapping("tflops")),
        "collective_cores": reader.optional_integer("collective_cores"),
        "lnc_choices": lnc.integers("choices"),
        "lnc_default": lnc.integer("default"),
        "device_type": monitor.text("device_type"),
        "device_version": monitor.text("device_version"),
        "sysfs": {
            key: sysfs.text(key) for key in ("device_name", "instance_type", "device_arch", "core_arch")
        },
        "pci_ids": reader.texts("pci_ids"),
    }
    _check_lnc(lnc, compiled)
    for part in (lnc, monitor, sysfs):
        part.finish()
    return compiled


def _check_lnc(lnc: Reader, device: Plain) -> None:
    choices = device["lnc_choices"]
    if device["lnc_default"] not in choices:
        raise lnc.error("default", f"{device['lnc_default']} is not among the choices {choices}")
    for choice in choices:
        if not choice or device["physical_cores"] % choice:
            raise lnc.error("choices", f"{device['physical_cores']} physical cores do not divide by {choice}")


def _topology(reader: Reader) -> Plain:
    shape = reader.text("shape", choices=_SHAPES)
    rows = [] if shape == "none" else reader.integer_rows("connected_to")
    for device, row in enumerate(rows):
        for other in row:
            if other >= len(rows) or other == device or device not in rows[other]:
                raise reader.error(
                    "connected_to", f"device {device} lists {other}, which does not list it back"
                )
    return {"shape": shape, "connected_to": rows}


def _family(reader: Reader, catalogue: Plain, topologies: Plain, decisions: _Decisions) -> None:
    for name in reader.names():
        if name in catalogue["instances"]:
            raise reader.error(name, "the instance type is defined twice")
        one = reader.mapping(name)
        catalogue["instances"][name] = _instance(one, catalogue["devices"], topologies, decisions)
        catalogue["aliases"].update(dict.fromkeys(one.optional_texts("aliases"), name))
        one.finish()


def _instance(reader: Reader, devices: Plain, topologies: Plain, decisions: _Decisions) -> Plain:
    device = reader.text("device", choices=tuple(devices))
    topology = reader.text("topology", choices=tuple(topologies))
    count = reader.integer("devices")
    rows = topologies[topology]["connected_to"] or [None]
    if len(rows) != count:
        raise reader.error("topology", f"{topology} connects {len(rows)} devices, the instance has {count}")
    docs = reader.optional_text("topology_docs")
    if docs and _edges(topologies.get(docs, {}).get("connected_to", [])) != _edges(rows):
        raise reader.error("topology_docs", f"{docs!r} has not the links of {topology}")
    numa_node = _per_device(reader, "numa_node", count)
    return {
        "device": device,
        "device_count": count,
        "vcpus": reader.integer("vcpus"),
        "host_memory_bytes": reader.integer("host_memory_gib") * GIB,
        "network": reader.optional_text("network"),
        "neuronlink": reader.optional_text("neuronlink"),
        "topology": topologies[topology]["shape"],
        "connected_to": rows,
        "connected_to_docs": topologies[docs]["connected_to"] if docs else None,
        "ultraserver": _ultraserver(reader.optional_mapping("ultraserver")),
        "pci_bdf": reader.texts("pci_bdf", count=count),
        "cpu_affinity": _affinity(reader, numa_node),
        "numa_node": numa_node,
        "decisions": reader.texts("decisions") + decisions[topology] + decisions[device],
    }


def _edges(rows: list[list[int] | None]) -> set[tuple[int, int]]:
    return {(device, other) for device, row in enumerate(rows) for other in row or ()}


def _ultraserver(reader: Reader | None) -> Plain | None:
    if reader is None:
        return None
    compiled = {
        "nodes": reader.integer("nodes"),
        "chips": reader.integer("chips"),
        "modes": reader.integers("modes"),
        "class_files": reader.texts("class_files"),
    }
    reader.finish()
    return compiled


def _per_device(reader: Reader, key: str, count: int) -> list[str]:
    if reader.is_text(key):
        return [reader.text(key)] * count
    return reader.texts(key, count=count)


def _affinity(reader: Reader, numa_node: list[str]) -> list[str]:
    if not reader.is_mapping("cpu_affinity"):
        return _per_device(reader, "cpu_affinity", len(numa_node))
    by_node = reader.mapping("cpu_affinity")
    affinity = [by_node.text(node) for node in numa_node]
    by_node.finish()
    return affinity
