"""`python -m neurontools.machine.daemon NAME OPTIONS DESCRIPTOR`: neurond's process. Internal; see `process`."""

import gc
import sys

if __name__ == "__main__":
    # Starting is a matter of milliseconds: no collection while modules load, and no TLS, which neurond does not speak
    # and asyncio loads unless None stands for it.
    gc.disable()
    sys.modules["ssl"] = None  # type: ignore[assignment]
    from neurontools.machine.daemon.daemon import main

    sys.exit(main(sys.argv[1:]))
