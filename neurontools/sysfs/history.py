"""What happened to the numbers of a tree: which were set to 0, and the highest that each memory use was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurontools.sysfs.layout import Role

if TYPE_CHECKING:
    from collections.abc import Mapping


class History:
    """Resets and peaks by path.

    A number that was set to 0 shows what came since. When it falls below what it was then, because memory was freed
    or the machine forgot its counters, it shows 0 and counts from there. A peak that was set to 0 stays so until the
    use changes; all peaks begin anew with another start of the machine.
    """

    def __init__(self) -> None:
        self._zeros: dict[str, int] = {}
        self._peaks: dict[str, int] = {}
        self._held: dict[str, int] = {}
        self._notify: dict[str, str] = {}
        self._kind, self._started_unix_s = "", 0.0
        self.changed = False

    def begin(self, kind: str, started_unix_s: float) -> None:
        """Take note of which kind of machine the numbers are from, and when it was started.

        Another kind has nothing to do with what was before; of another start of the same, the peaks are new.
        """
        if kind != self._kind:
            for table in (self._zeros, self._peaks, self._held, self._notify):
                table.clear()
        elif started_unix_s != self._started_unix_s:
            self._peaks.clear()
            self._held.clear()
        self._kind, self._started_unix_s = kind, started_unix_s

    def shown(self, path: str, role: Role, amount: int) -> int:
        """Return what a file shows of a number, and remember its peak."""
        if role is Role.PEAK:
            return self._peak(path, amount)
        zero = self._zeros.get(path)
        if zero is None:
            return amount
        if amount < zero:
            self._zeros[path] = zero = amount
        return amount - zero

    def reset(self, path: str, role: Role, amount: int) -> None:
        """Set the number of a file to 0; `amount` is what it stands for now."""
        self.changed = True
        if role is Role.PEAK:
            self._peaks[path] = 0
            self._held[path] = amount
        else:
            self._zeros[path] = amount

    def notify_delay(self, path: str, default: str) -> str:
        """Return the text of a `notify_delay`."""
        return self._notify.get(path, default)

    def set_notify_delay(self, path: str, text: str) -> None:
        """Remember the text of a `notify_delay`."""
        self.changed = True
        self._notify[path] = text

    def forget(self, directory: str) -> None:
        """Forget everything below a directory: its device is gone."""
        for table in (self._zeros, self._peaks, self._held, self._notify):
            for path in [path for path in table if path.startswith(f"{directory}/")]:
                del table[path]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form. Peaks of nothing are left out."""
        return {
            "zeros": self._zeros,
            "peaks": {path: peak for path, peak in self._peaks.items() if peak},
            "held": self._held,
            "notify": self._notify,
            "kind": self._kind,
            "started_unix_s": self._started_unix_s,
        }

    def _peak(self, path: str, amount: int) -> int:
        held = self._held.get(path)
        if held is not None:
            if held == amount:
                return 0
            del self._held[path]
        peak = max(self._peaks.get(path, 0), amount)
        self._peaks[path] = peak
        return peak


def history_from_json(data: Mapping[str, Any]) -> History:
    """Return the history of its JSON form.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: it is none.
    """
    history = History()
    for name, table in (("zeros", history._zeros), ("peaks", history._peaks), ("held", history._held)):  # noqa: SLF001  its own maker
        table.update({str(path): int(amount) for path, amount in data[name].items()})
    history._notify.update({str(path): str(text) for path, text in data["notify"].items()})  # noqa: SLF001
    history._kind, history._started_unix_s = str(data["kind"]), float(data["started_unix_s"])  # noqa: SLF001
    return history
