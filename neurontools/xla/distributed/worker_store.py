"""Entries that the workers of a job publish for each other: signed, in torch's key-value store, to which anybody can write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurontools import env
from neurontools.base.interrupts import is_of_handler
from neurontools.xla.distributed.job_key import PROOF_BYTES
from neurontools.xla.distributed.workers import WorkerError

if TYPE_CHECKING:
    from neurontools.xla.distributed.job_key import JobKey


class WorkerStore:
    """Entries that only workers of the job can write.

    Args:
        plain: torch's store.
        key: the key of the job.
    """

    def __init__(self, plain: Any, key: JobKey) -> None:
        self.plain = plain
        self._key = key

    def set(self, name: str, value: bytes) -> None:
        """Publish a value.

        Raises:
            ConnectionError: the process that holds the store has ended.
        """
        try:
            self.plain.set(name, self._key.sign(name.encode(), value) + value)
        except RuntimeError as error:
            raise _failure(error) from error

    def has(self, *names: str) -> bool:
        """Return whether all these entries are there.

        Raises:
            ConnectionError: the process that holds the store has ended.
        """
        try:
            return bool(self.plain.check(list(names)))
        except RuntimeError as error:
            raise _failure(error) from error

    def get(self, name: str) -> bytes | None:
        """Return a value, None before a worker has published it.

        Raises:
            ConnectionError: the process that holds the store has ended.
            WorkerError: no worker of this job has written the entry.
        """
        if not self.has(name):
            return None
        try:
            entry: bytes = self.plain.get(name)
        except RuntimeError as error:
            raise _failure(error) from error
        value = entry[PROOF_BYTES:]
        if not self._key.is_signature(entry[:PROOF_BYTES], name.encode(), value):
            raise WorkerError(
                f"the entry {name!r} of the workers' store is not from a worker of this job",
                f"another program writes into the store, or the workers have different secrets: set {env.JOB_SECRET} "
                "to the same one for all of them",
            )
        return value


def _failure(error: RuntimeError) -> ConnectionError:
    if is_of_handler(error):
        raise error
    return ConnectionError("the process that holds the workers' store has ended")
