"""The kind of a machine: everything about it that is chosen when it starts and that cannot change while it lives."""

from __future__ import annotations

from dataclasses import dataclass

from neurontools.machine.naming import core_ranges

HOST, DOCS = "host", "docs"


@dataclass(frozen=True, slots=True)
class Kind:
    """What two starts of one machine must have in common.

    `neighbours` says in which order devices list theirs, that of real hosts or that of the documents;
    `visible_devices` are the host's ids of the devices that a container sees, None for all of them.
    `ultraserver_modes` and `ultraserver_node` are its place in its UltraServer, None where it is in none.
    """

    instance_type: str
    lnc: int
    neighbours: str = HOST
    visible_devices: tuple[int, ...] | None = None
    ultraserver_modes: tuple[int, ...] | None = None
    ultraserver_node: int | None = None

    def differences(self, other: Kind) -> tuple[str, ...]:
        """Return how this kind differs from another one, as words for a message."""
        if self.instance_type != other.instance_type:
            return ()
        mine, theirs = self._aspects(), other._aspects()
        return tuple(text for text, other_text in zip(mine, theirs, strict=True) if text != other_text)

    def _aspects(self) -> tuple[str, ...]:
        visible, modes = self.visible_devices, self.ultraserver_modes
        return (
            f"LNC {self.lnc}",
            "neighbours in the hosts' order"
            if self.neighbours == HOST
            else "neighbours in the documents' order",
            "all devices visible" if visible is None else f"visible devices {core_ranges(visible)}",
            f"UltraServer modes {','.join(map(str, modes or ()))}",
            f"UltraServer node {self.ultraserver_node}",
        )


def kind_in(holder: object) -> Kind:
    """Return the kind that a value holds in fields of its own, which have the names of those of `Kind`."""
    return Kind(*[getattr(holder, name) for name in Kind.__slots__])
