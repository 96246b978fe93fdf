"""What does not change from line to line: where this runs, and on which hardware."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from neurontools.errors import NeuronToolsError
from neurontools.machine.instances import catalogue
from neurontools.monitor.report import HardwareInfo, InstanceInfo

if TYPE_CHECKING:
    from neurontools.machine.snapshot import Snapshot

# A simulated machine stands in no data centre; these are our decision, in the real shape.
_REGION = "us-west-2"
_ZONE = "us-west-2a"
_ZONE_ID = "usw2-az1"


def instance_info(snapshot: Snapshot) -> InstanceInfo:
    """Return EC2's facts: id and type of the machine, its name as the instance's, made-up ones for the rest.

    Of a real host or a recording only id and type are known; the rest stays empty.
    """
    if snapshot.source != "sim":
        return InstanceInfo(instance_id=snapshot.instance_id, instance_type=snapshot.instance_type)
    digest = hashlib.sha256(snapshot.instance_id.encode()).hexdigest()
    return InstanceInfo(
        instance_name=snapshot.machine,
        instance_id=snapshot.instance_id,
        instance_type=snapshot.instance_type,
        instance_availability_zone=_ZONE,
        instance_availability_zone_id=_ZONE_ID,
        instance_region=_REGION,
        ami_id=f"ami-0{digest[:16]}",
        subnet_id=f"subnet-0{digest[16:32]}",
    )


def hardware_info(snapshot: Snapshot) -> HardwareInfo:
    """Return what devices there are; those that fell off the bus are not counted.

    An instance type that the catalogue does not know leaves type and version of the device empty.
    """
    devices = [device for device in snapshot.devices if not device.lost]
    kind = version = ""
    error = "" if devices else "no neuron device found"
    try:
        device_type = catalogue.instance_type(snapshot.instance_type).device
        kind, version = device_type.device_type, device_type.device_version
    except NeuronToolsError:
        error = error or f"unknown instance type {snapshot.instance_type!r}"
    return HardwareInfo(
        neuron_device_type=kind,
        neuron_device_version=version,
        neuroncore_version=snapshot.neuroncore_version,
        neuron_device_count=len(devices),
        neuron_device_memory_size=devices[0].memory_bytes if devices else 0,
        neuroncore_per_device_count=len(devices[0].core_ids) if devices else 0,
        logical_neuroncore_config=snapshot.lnc,
        error=error,
    )
