"""neuron-ls: list the Neuron devices, the processes on them and how they are connected.

The plain forms are the fast path: one request to the daemon, which renders; its bytes are written unchanged.
This module imports only what `python -c pass` has, `_socket`, and cheap modules of ours; everything else is in `forms`.
"""

import sys

from neurontools import env
from neurontools.commands.ls.output import show
from neurontools.errors import NeuronToolsError
from neurontools.machine.render_client import request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Sequence

_PLAIN = ("--wide", "--show-all-procs", "--topology", "--json-output", "--json", "--csv")
_PLAIN_DEVICE = "--device="
_PLAIN_LETTERS = "watj"
_INTERRUPTED = 130


def main(argv: "Sequence[str] | None" = None) -> int:
    """Run the command line and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if not all(map(is_plain, words)):
            from neurontools.commands.ls import forms

            return forms.main(words)
        try:
            reply = request(words)
        except ConnectionResetError:
            reply = None
        if reply is None:
            from neurontools.commands.ls import forms

            return forms.without_reply(words)
        code = show(reply)
        if env.config_problems():
            from neurontools.commands import console

            return console.run(lambda: code)
    except NeuronToolsError as error:
        from neurontools.commands.ls import forms

        return forms.failed(error)
    except KeyboardInterrupt:
        return _INTERRUPTED
    return code


def build_parser() -> "ArgumentParser":
    """Return the command's parser, which writes the help and the shell completion."""
    from neurontools.commands.ls import forms

    return forms.build_parser()


def is_plain(word: str) -> bool:
    """Return whether an argument only chooses what the daemon renders."""
    if word[:2] == "--":
        return word in _PLAIN or (word.startswith(_PLAIN_DEVICE) and "\n" not in word)
    return len(word) > 1 and word[0] == "-" and not word[1:].strip(_PLAIN_LETTERS)
