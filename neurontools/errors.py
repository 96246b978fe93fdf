"""The exception tree: every failure that a user can cause or fix is a `NeuronToolsError`."""

TORCH_REMEDY = "pip install 'neurontools[torch]' --extra-index-url https://download.pytorch.org/whl/cpu"


class NeuronToolsError(Exception):
    """A failure with a remedy.

    Args:
        message: what failed and why, in one line.
        remedy: what to do about it, in one line, or "".

    The remedy is also a note of the exception, so the traceback of a user's script shows it. `exit_code` is that of a
    command (0 success, 1 failed, 2 usage error, 3 no machine, 4 daemon error).
    """

    exit_code = 1
    has_lines = False
    """Whether the message has several lines, and maybe colours; in others a newline belongs to a name and is escaped."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        if remedy:
            self.add_note(f"hint: {remedy}")

    def __reduce__(self) -> tuple[object, ...]:
        # Python would call `__init__` with the message alone: a pool of processes would then wait forever.
        return _restored, (type(self), self.args, self.__dict__)


def _restored(
    kind: type[NeuronToolsError], args: tuple[object, ...], state: dict[str, object]
) -> NeuronToolsError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class UsageError(NeuronToolsError):
    """The command line or a setting is invalid."""

    exit_code = 2


class NoMachineError(NeuronToolsError):
    """No simulated machine of that name runs, and none may be started."""

    exit_code = 3


class DaemonError(NeuronToolsError):
    """The daemon refuses, fails, or speaks another protocol version."""

    exit_code = 4


class MissingDependencyError(NeuronToolsError):
    """An optional package or program is not installed."""
