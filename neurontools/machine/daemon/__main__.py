"""`python -m neurontools.machine.daemon NAME OPTIONS DESCRIPTOR`: neurond's process. Internal; see `process`."""

import gc
import sys

if __name__ == "__main__":
    # Starting is a matter of milliseconds: no collection while modules load, and no OpenSSL, which asyncio and hashlib
    # load unless None stands for it; neurond speaks no TLS, and Python's own SHA-256 is enough for names.
    gc.disable()
    sys.modules.update(dict.fromkeys(("ssl", "_hashlib")))  # type: ignore[arg-type]
    from neurontools.machine.daemon.process import main

    sys.exit(main(sys.argv[1:]))
