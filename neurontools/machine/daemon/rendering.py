"""The fast path: the daemon renders the text of a tool, so that the tool itself only prints bytes."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING

from neurontools.errors import DaemonError, NeuronToolsError

if TYPE_CHECKING:
    from neurontools.machine.daemon.service import MachineService
    from neurontools.machine.processes import Peer

log = logging.getLogger("neurond")

_RENDERERS = {"neuron-ls": "neurontools.machine.listing.text"}

# Modules are imported on first use; an upgrade may have moved them by then.
_REPLACED = b"error: neurond is older than the installed neurontools\nhint: neurond restart\n"


def load_renderers() -> None:
    """Import the renderers before they are needed."""
    for module in _RENDERERS.values():
        import_module(module)


def render_answer(service: MachineService, line: bytes, asker: Peer) -> bytes:
    """Return exit code, lengths and text for the line of a `RENDER` request, its first word removed.

    Args:
        service: the machine.
        line: the request.
        asker: the process that sent it.
    """
    tool, _, rest = line.decode("utf-8", "surrogateescape").partition("\0")
    emulate, *argv = rest.split("\0")
    try:
        code, out, err = _rendered(service, tool, argv, emulate, asker)
    except NeuronToolsError as error:
        hint = f"hint: {error.remedy}\n" if error.remedy else ""
        code, out, err = error.exit_code, b"", f"error: {error.message}\n{hint}".encode("utf-8", "replace")
    except ImportError:
        log.exception("rendering %r failed", line[:200])
        code, out, err = DaemonError.exit_code, b"", _REPLACED
    except Exception:
        log.exception("rendering %r failed", line[:200])
        code, out, err = DaemonError.exit_code, b"", b"error: neurond failed\nhint: see `neurond logs`\n"
    return b"%d %d %d\n%b%b" % (code, len(out), len(err), out, err)


def _rendered(
    service: MachineService, tool: str, argv: list[str], emulate: str, asker: Peer
) -> tuple[int, bytes, bytes]:
    if tool not in _RENDERERS:
        raise NeuronToolsError(f"neurond does not render {tool[:40]!r}")
    renderer = import_module(_RENDERERS[tool])
    result: tuple[int, bytes, bytes] = renderer.render(
        service.snapshot(), argv, emulate, asker=(asker.pid, asker.uid, " ".join([tool, *argv]))
    )
    return result
