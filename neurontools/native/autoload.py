"""What torch calls at the end of `import torch`: the entry point `torch.backends` of this package.

Nothing happens in programs without NEURONTOOLS_DEVICE that neuron-run did not start.
"""

from __future__ import annotations

import os
import sys

from neurontools import env
from neurontools.errors import NeuronToolsError


def autoload() -> None:
    """Make the device `neuron` known to torch, if this program is to have it; end the program if that is impossible.

    torch would hide an exception's reason behind an advice to turn this entry point off.
    """
    if env.RUN not in os.environ and env.DEVICE not in os.environ:
        return
    from neurontools.native.selection import NEURON, chosen_device

    try:
        if "torch_xla" not in sys.modules and chosen_device(os.environ, sys.argv, sys.orig_argv) == NEURON:
            from neurontools.native.activation import activate

            activate()
    except NeuronToolsError as error:
        raise SystemExit(f"neurontools: {error.message}: {error.remedy}") from None
