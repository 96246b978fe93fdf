"""neurond's process: `python -m neurontools.machine.daemon --machine NAME [--instance TYPE] ...`.

Started by `neurontools.machine.launch`. It leaves its starter's session, and tells the starter by one line of JSON on
an inherited pipe how the start went: the daemon's facts, or an error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import logging.handlers
import os
import sys
from typing import TYPE_CHECKING

from neurontools.errors import NeuronToolsError
from neurontools.machine.daemon.life import Daemon
from neurontools.machine.directory import MachineDirectory
from neurontools.machine.info import DaemonInfo, StartOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LOG_BYTES = 1 << 20
_LOG_FILES = 2
_LOG_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"


def serve(options: StartOptions, on_ready: Callable[[DaemonInfo], None]) -> None:
    """Run a machine's daemon in this process until it ends.

    Raises:
        NeuronToolsError: it could not start.
    """

    async def life() -> None:
        await Daemon(options, on_ready).run()

    os.umask(0o077)
    try:
        MachineDirectory(options.machine).make()
        _log_to_file(MachineDirectory(options.machine).log, foreground=options.foreground)
        asyncio.run(life())
    except OSError as error:
        raise NeuronToolsError(
            f"machine {options.machine!r} can't start: {error}", "neurond logs may say more"
        ) from error
    finally:
        logging.shutdown()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the daemon's process and return its exit code."""
    arguments = _parser().parse_args(argv)
    if os.fork():
        os._exit(0)
    os.chdir("/")
    options = StartOptions(
        machine=arguments.machine,
        instance_type=arguments.instance,
        lnc=arguments.lnc,
        neighbours=arguments.neighbours,
        visible_devices=arguments.visible_devices,
        ultraserver_mode=arguments.ultraserver_mode,
        ultraserver_node=arguments.ultraserver_node,
        idle_exit_s=arguments.idle_exit,
        parent_pid=arguments.parent_pid,
        resume=arguments.resume,
    )

    def tell(message: dict[str, object]) -> None:
        try:
            os.write(arguments.ready_fd, json.dumps(message).encode() + b"\n")
            os.close(arguments.ready_fd)
        except OSError:
            logging.getLogger("neurond").warning("the starter did not wait")

    try:
        serve(options, lambda info: tell({"ready": info.to_json()}))
    except NeuronToolsError as error:
        tell({"error": error.message, "remedy": error.remedy, "exit_code": error.exit_code})
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="neurond", description="Serve one simulated machine (internal).")
    parser.add_argument("--machine", required=True)
    parser.add_argument("--instance")
    parser.add_argument("--lnc", type=int)
    parser.add_argument("--neighbours")
    parser.add_argument("--visible-devices")
    parser.add_argument("--ultraserver-mode")
    parser.add_argument("--ultraserver-node", type=int)
    parser.add_argument("--idle-exit", type=float, metavar="SECONDS")
    parser.add_argument("--parent-pid", type=int)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--ready-fd", type=int, required=True)
    return parser


def _log_to_file(path: str, *, foreground: bool) -> None:
    handlers: list[logging.Handler] = [
        logging.handlers.RotatingFileHandler(
            path, maxBytes=_LOG_BYTES, backupCount=_LOG_FILES, encoding="utf-8", errors="backslashreplace"
        )
    ]
    if foreground:
        handlers.append(logging.StreamHandler(sys.stderr))
    logging.basicConfig(level=logging.INFO, format=_LOG_FORMAT, handlers=handlers, force=True)


if __name__ == "__main__":
    sys.exit(main())
