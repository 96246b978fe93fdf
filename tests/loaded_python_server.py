"""The process behind tests/loaded_python.py: executes the preamble, then forks for each request until stdin ends."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import io
import json
import multiprocessing.spawn
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import types
import warnings


def serve(address: str) -> None:
    """Answer each connection with the pid of a child that runs what it asks for, then with the child's exit code."""
    woken, waker = socket.socketpair()
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C is meant for the programs that wait for the children
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    selector = selectors.DefaultSelector()
    for source in (sys.stdin, woken, listener):
        selector.register(source, selectors.EVENT_READ)
    waiting: dict[int, socket.socket] = {}
    while True:
        ready = {key.fileobj for key, _ in selector.select()}
        if sys.stdin in ready:
            break
        if woken in ready:
            woken.recv(4096)
            for client in report_ended(waiting):
                with contextlib.suppress(KeyError):
                    selector.unregister(client)
                ready.discard(client)
                client.close()
        for child in [child for child, client in waiting.items() if client in ready]:
            os.kill(child, signal.SIGKILL)  # who waits for it has been killed
            selector.unregister(waiting[child])
        if listener in ready:
            client, _ = listener.accept()
            request, files = receive(client)
            child = os.fork()
            if not child:
                for other in (selector, woken, waker, listener, client, *waiting.values()):
                    other.close()
                become(request, files)
            for file in files:
                os.close(file)
            waiting[child] = client
            selector.register(client, selectors.EVENT_READ)
            with contextlib.suppress(OSError):
                client.sendall(f"{child}\n".encode())
    for child in waiting:
        os.kill(child, signal.SIGKILL)


def report_ended(waiting: dict[int, socket.socket]) -> list[socket.socket]:
    """Tell the clients of children that have ended how they did; return these clients."""
    told = []
    for child in list(waiting):
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            told.append(waiting.pop(child))
            with contextlib.suppress(OSError):
                told[-1].sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    return told


def receive(client: socket.socket) -> tuple[list[object], list[int]]:
    """Return arguments, directory, environment and numbers of the files of a request, and the files."""
    size, files, _, _ = socket.recv_fds(client, 4, 253)
    with client.makefile("rb") as stream:
        return json.loads(stream.read(int.from_bytes(size, "little"))), files


def become(request: list[object], files: list[int]) -> None:
    """Run a program in this process, a copy of the server, and end it."""
    arguments, directory, environ, numbers = request
    # Out of the way of the program's numbers first.
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD, 512) for file in files]
    for file in files:
        os.close(file)
    for number, file in zip(numbers, moved, strict=True):
        os.dup2(file, number)
        os.close(file)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environ)
    # Not the server's: a stream remembers what kind of file it was opened on.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(  # type: ignore[misc]  # noqa: SIM115
        2, "w", buffering=1, errors="backslashreplace", closefd=False
    )
    code = 0
    try:
        load_site()
        execute(arguments)
    except SystemExit as end:
        code = exit_code(end)
    except BaseException as error:
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if not stream.closed:  # multiprocessing's resource tracker closes it
            stream.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)  # the modules are not torn down: with torch that takes a third of a second


def load_site() -> None:
    """Do what a new Python does with PYTHONPATH: look for modules there first, and load its sitecustomize."""
    listed = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    added = [entry for entry in listed if entry and entry not in sys.path]
    sys.path[:0] = added
    if any(os.path.exists(f"{entry}/sitecustomize.py") for entry in added):
        sys.modules.pop("sitecustomize", None)
        import sitecustomize  # noqa: F401


def execute(arguments: list[str]) -> None:
    """Run a program as python does with these arguments."""
    words = iter(arguments)
    for word in words:
        if word == "-u":
            # Not reconfigure: it would leave the buffer below the text layer.
            sys.stdout = io.TextIOWrapper(open(1, "wb", 0, closefd=False), write_through=True)  # noqa: SIM115
        elif word in ("-B", "-P"):
            continue  # as the process was started
        elif word == "-W":
            warnings.simplefilter(next(words))  # type: ignore[arg-type]
        elif word == "-m":
            name = next(words)
            sys.path.insert(0, os.getcwd())
            sys.argv = [name, *words]
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        elif word == "-c":
            text = next(words)
            run_main("", "<string>", text, ["-c", *words])
        else:
            with open(word) as file:
                run_main(os.path.dirname(os.path.abspath(word)), word, file.read(), [word, *words])


def run_main(directory: str, path: str, text: str, arguments: list[str]) -> None:
    """Execute the text of a program as the module `__main__`."""
    main = types.ModuleType("__main__")
    if path != "<string>":
        main.__file__ = path
    sys.modules["__main__"] = main
    sys.path.insert(0, directory)
    sys.argv = arguments
    exec(compile(text, path, "exec"), vars(main))


def exit_code(end: SystemExit) -> int:
    """Return the exit code of a program that calls sys.exit."""
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    sys.stderr.write(f"{end.code}\n")
    return 1


if __name__ == "__main__":
    exec(sys.argv[2], {})
    gc.freeze()
    # Workers that multiprocessing spawns are copies as well.
    multiprocessing.spawn.set_executable(f"{os.path.dirname(sys.argv[1])}/python")
    serve(sys.argv[1])
