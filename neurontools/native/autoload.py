"""What torch calls at the end of `import torch`: the entry point `torch.backends` of this package.

Nothing happens in programs without NEURONTOOLS_DEVICE that neuron-run did not start.
"""

from __future__ import annotations

import os
import sys

from neurontools import env
from neurontools.errors import NeuronToolsError


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
        from neurontools.xla.device_name import explain_at_exit

        explain_at_exit()
    except NeuronToolsError as error:
        raise SystemExit(f"neurontools: {error.message}: {error.remedy}") from None
