"""What torch calls at the end of `import torch`: the entry point `torch.backends` of this package.

Nothing happens in programs without NEURONTOOLS_DEVICE that neuron-run did not start.
"""

from __future__ import annotations

import os
import sys

from neurontools import env
from neurontools.errors import NeuronToolsError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

_UNKNOWN = ("at start of device string: neuron", "module 'torch' has no attribute 'neuron'")
_NO_TORCH_XLA = ("PyTorch is not linked with support for xla devices", "from the 'XLA' backend")
IMPORT_FIRST = f"hint: import torch_xla first, or set {env.DEVICE}=xla"
NO_DEVICE = (
    f"this program's code does not ask for the device neuron, or imports torch_xla: set {env.DEVICE}=neuron"
)

OTHER_DEVICE = f"{env.DEVICE}=xla gives this process the device xla, so it has no device neuron"


def autoload() -> None:
    """Make the device known to torch that this program is to have; end the program if that is impossible.

    Without a choice, the device `xla` becomes known by `import torch_xla`.

    torch would hide an exception's reason behind an advice to turn this entry point off.
    """
    if env.RUN not in os.environ and env.DEVICE not in os.environ:
        return
    from neurontools.native.selection import NEURON, chosen_device

    try:
        if "torch_xla" in sys.modules:
            return
        chosen = chosen_device(os.environ, sys.argv, sys.orig_argv)
        if chosen == NEURON:
            from neurontools.native.activation import activate

            activate()
            return
        if chosen:
            from neurontools.xla import api
            from neurontools.xla.distributed import workers

            workers.assign_core(os.environ)
            api.activate()
        _explain_missing_device(NO_DEVICE if not chosen else OTHER_DEVICE)
    except NeuronToolsError as error:
        raise SystemExit(f"neurontools: {error.message}: {error.remedy}") from None


def _explain_missing_device(reason: str) -> None:
    """Add a note to the traceback of a program that ends because it has no device `neuron`; torch's error has no reason."""
    shown = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        from neurontools.xla import api

        if any(text in str(error) for text in _UNKNOWN) and not api.is_active():
            error.add_note(reason)
        elif any(text in str(error) for text in _NO_TORCH_XLA) and not api.is_active():
            error.add_note(IMPORT_FIRST)
        shown(kind, error, traceback)

    sys.excepthook = show
