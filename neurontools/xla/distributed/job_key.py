"""The key of a job: workers sign with it what they publish, and show each other that they have it when they connect.

Other users of the computer reach the workers' store and their sockets, but not the secret behind the key: a file that
only this user can read. Workers on several machines have no such file in common: their user sets NEURONTOOLS_JOB_SECRET.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
import socket
from contextlib import suppress
from functools import cache
from ipaddress import ip_address
from typing import Any

from neurontools import env, paths
from neurontools.base.files import open_regular, remove_quietly, write_temporary
from neurontools.errors import NeuronToolsError
from neurontools.xla.distributed import workers

LOOPBACK = "127.0.0.1"
PROOF_BYTES = 32
"""The size of a signature."""

_SECRET_BYTES = 32
_OTHERS = 0o077
_log = logging.getLogger("neurontools.xla")


class JobKey:
    """Signs and checks messages with a secret; an empty secret stands for workers that do not know each other."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def sign(self, *parts: bytes) -> bytes:
        """Return the signature of a list of byte strings."""
        code = hmac.new(self._secret, digestmod=hashlib.sha256)
        for part in parts:
            code.update(len(part).to_bytes(8, "little") + part)
        return code.digest()

    def is_signature(self, signature: bytes, *parts: bytes) -> bool:
        """Return whether a worker with the same key signed these byte strings."""
        return hmac.compare_digest(signature, self.sign(*parts))


class JobNetwork:
    """Where the workers of a job reach each other, and their key.

    Args:
        store: torch's key-value store of the job.
        rank: this worker's rank.
        size: number of workers.
    """

    def __init__(self, store: Any, rank: int, size: int) -> None:
        plain = getattr(store, "_underlying_non_prefix_store", store)
        master = getattr(plain, "host", "") or os.environ.get("MASTER_ADDR") or LOOPBACK
        is_on_one_host = workers.local_world_size() == size or _is_loopback(master)
        self.address = LOOPBACK if is_on_one_host else _address_towards(master)
        """This computer's address on the interface that leads to the master."""
        secret = os.environ.get(env.JOB_SECRET, "").encode()
        if not secret and is_on_one_host:
            secret = _user_secret()
        elif not secret and rank == 0:
            _warn_of_strangers()
        # Jobs that run at the same time have stores of different ports: no entry of one is valid in another.
        port = str(getattr(plain, "port", "")).encode()
        self.key = JobKey(JobKey(secret).sign(port) if secret else b"")


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


def _address_towards(host: str) -> str:
    """Return the address of this computer's interface from which packets to a host leave."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)  # chooses the route and sends nothing
        return str(probe.getsockname()[0])


@cache
def _warn_of_strangers() -> None:
    _log.warning(
        "The workers are on several machines and %s is not set: their messages are not authenticated. "
        "Set it to the same secret on each machine",
        env.JOB_SECRET,
    )


def _user_secret() -> bytes:
    """Return this user's secret for jobs on one computer; the first worker that needs it creates the file.

    Raises:
        NeuronToolsError: the file or its directory is not private, or cannot be used.
    """
    path = f"{paths.ensure_private(paths.own_runtime_dir())}/{paths.JOB_SECRET}"
    try:
        if not os.path.lexists(path):
            _create_secret(path)
        with open(open_regular(path), "rb") as file:
            status = os.fstat(file.fileno())
            secret = file.read(_SECRET_BYTES + 1)
    except OSError as error:
        raise NeuronToolsError(
            f"cannot use the workers' secret {path}: {error.strerror}", "remove it"
        ) from error
    if status.st_uid != os.geteuid() or status.st_mode & _OTHERS or len(secret) != _SECRET_BYTES:
        raise NeuronToolsError(
            f"refusing the workers' secret {path}: not 32 bytes for this user alone", "remove it"
        )
    return secret


def _create_secret(path: str) -> None:
    temporary = write_temporary(os.path.dirname(path), secrets.token_bytes(_SECRET_BYTES), mode=0o600)
    try:
        with suppress(FileExistsError):  # another worker was faster
            os.link(temporary, path)
    finally:
        remove_quietly(temporary)
