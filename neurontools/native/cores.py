"""The cores that a process may use as devices, and whether their instance type has the native device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools import env
from neurontools.compiler.options import target_of
from neurontools.machine.instances import catalogue
from neurontools.machine.instances.catalogue import instance_type
from neurontools.runtime.core_claim import NUM_CORES, VISIBLE_CORES, parse_visible_cores, read_machine
from neurontools.xla import api
from neurontools.xla.accelerator import DeviceError
from neurontools.xla.distributed import workers

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

    from neurontools.machine.instances.catalogue import InstanceType


_NATIVE = "native"


def prefer_native_instance(environ: MutableMapping[str, str]) -> None:
    """Let a machine that has to be started be of the smallest type with the native device, if no setting names another."""
    if not env.setting(env.INSTANCE, environ):
        environ[env.INSTANCE] = _smallest_instance()


class NoNativeDeviceError(DeviceError):
    """The native device does not exist on an instance type."""


def check_instance(instance: InstanceType, environ: Mapping[str, str]) -> None:
    """Check that an instance type has the native device.

    Source: AWS Neuron documentation, "TorchNeuron: Native PyTorch on AWS Neuron" (Trn2 and Trn3).

    Raises:
        NoNativeDeviceError: it has not, and NEURONTOOLS_NATIVE_ANY_INSTANCE is not set.
    """
    if not _is_supported(instance, environ):
        targets = [target_of(device) for device in catalogue.devices() if _NATIVE in device.features]
        raise NoNativeDeviceError(
            f"the device neuron needs a {' or '.join(targets)} instance, this machine is a {instance.name}",
            f"neuron-run --instance {_smallest_instance()} -- PROGRAM, or neuron-run --force -- PROGRAM on this machine",
        )


def core_count(environ: Mapping[str, str]) -> int:
    """Return the number of devices that a program has, without claiming them: a launcher asks before its workers start.

    Workers, which have one core each, get the number of those of all workers of their machine, as on GPUs. 0 on an
    instance type without the native device. Starts the machine if needed.

    Raises:
        NrtError: NEURON_RT_VISIBLE_CORES is malformed.
        NoMachineError: no machine runs, and none may be started.
    """
    is_worker = workers.has_own_core(environ)
    if api.engine().is_open and not is_worker:
        return api.device_count()
    machine = read_machine(environ)
    if not _is_supported(instance_type(machine.instance_type), environ):
        return 0
    visible = environ.get(env.WORKERS_CORES if is_worker else VISIBLE_CORES, "").strip()
    number = "" if is_worker else environ.get(NUM_CORES, "").strip()
    if visible:
        return len(parse_visible_cores(visible))
    if number.isdecimal():
        return int(number)
    return sum(len(device.core_ids) for device in machine.devices)


def _smallest_instance() -> str:
    instances = [catalogue.instance_type(name) for name in catalogue.instance_names()]
    return min(
        (instance for instance in instances if _NATIVE in instance.device.features),
        key=lambda instance: (instance.device_count, instance.vcpus),
    ).name


def _is_supported(instance: InstanceType, environ: Mapping[str, str]) -> bool:
    return _NATIVE in instance.device.features or env.flag(env.NATIVE_ANY_INSTANCE, environ)
