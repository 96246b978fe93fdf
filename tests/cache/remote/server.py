"""An S3-protocol server in a process of its own. A line `fill BUCKET PREFIX N NAME...` on stdin makes N entries with files of
these names there.

Prints its address when it listens, and `filled` after each fill; ends with its stdin.
"""

from __future__ import annotations

import sys

from moto.core import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer

CONTENT = {"compile_flags.json": b'["--target=trn1"]', "model.neff": b"n", "model.done": b""}


def fill(bucket: str, prefix: str, number: int, names: list[str]) -> None:
    backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    for position in range(number):
        entry = f"{prefix}/neuronxcc-2.16.372.0+4a9b2326/MODULE_{10**18 + position}+e30acd3a"
        for name in names:
            backend.put_object(bucket, f"{entry}/{name}", CONTENT[name])


def main() -> None:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    sys.stdout.write(f"http://{host}:{port}\n")
    sys.stdout.flush()
    for line in sys.stdin:
        _, bucket, prefix, number, *names = line.split()
        fill(bucket, prefix, int(number), names)
        sys.stdout.write("filled\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
