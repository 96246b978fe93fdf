"""How programs reach the process behind tests/loaded_python.py. Imports little: hundreds of processes start with it."""

import json
import os
import signal
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PASSED_ON = (signal.SIGINT, signal.SIGTERM)
STREAMS = {number: number for number in (0, 1, 2)}


def run(
    address: str,
    arguments: "Sequence[str]",
    directory: str,
    environ: "Mapping[str, str]",
    files: "Mapping[int, int]" = STREAMS,
    on_start: "Callable[[int], None]" = lambda _: None,
    timeout_s: "float | None" = None,
) -> int:
    """Run a program in a copy of the process and return its exit code, negative for a signal.

    Args:
        address: socket of the process.
        arguments: what python would be given.
        directory: the program's current directory.
        environ: the program's environment.
        files: this process's descriptor for each of the program's.
        on_start: called with the program's process id.
        timeout_s: how long the program may run; it is killed then.

    Raises:
        TimeoutError: the program runs longer.
    """
    request = json.dumps([[*arguments], directory, dict(environ), [*files]]).encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.settimeout(timeout_s)
        server.connect(address)
        socket.send_fds(server, [len(request).to_bytes(4, "little")], [*files.values()])
        server.sendall(request)
        with server.makefile() as answers:
            on_start(int(answers.readline()))
            return int(answers.readline() or -signal.SIGKILL)


def pass_signals_on(child: int) -> None:
    """Send the signals that this process gets to its program."""
    for number in PASSED_ON:
        signal.signal(number, lambda received, _: os.kill(child, received))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)


def main(address: str) -> None:
    """Run the program of the command line; end as it does."""
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)  # until there is somebody to pass them on to
    # From who started this process, like the pipes that multiprocessing gives its workers.
    opened = [int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")]
    files = {number: number for number in opened if os.get_inheritable(number)}
    code = run(address, sys.argv[1:], os.getcwd(), os.environ, files, on_start=pass_signals_on)
    if code < 0:
        if code != -signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)
