"""The inputs of an execution that failed, as files: NEURON_RT_DBG_DUMP_INPUTS_ON_ERR (compile-runtime.md section 3.1).

The variable is an NRT status number. An execution that ends with that status leaves a directory
`input_dump_<random>_h_nn_<model id>` in the working directory with `input0.bin`, `input1.bin`, ... and
`model_name.txt`.
"""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from neurontools.runtime.models import Model

DUMP_INPUTS = "NEURON_RT_DBG_DUMP_INPUTS_ON_ERR"


def wanted_status(environ: Mapping[str, str]) -> int | None:
    """Return the status whose executions leave their inputs, None: no execution does."""
    text = environ.get(DUMP_INPUTS, "").strip()
    return int(text) if text.isascii() and text.isdigit() else None


def dump_inputs(model: Model, inputs: Iterable[bytes]) -> str:
    """Write the inputs of an execution and return the directory's path.

    Raises:
        OSError: it can't be written.
    """
    directory = os.path.abspath(f"input_dump_{secrets.token_hex(4)}_h_nn_{model.model_id}")
    os.mkdir(directory)
    with open(f"{directory}/model_name.txt", "w", encoding="utf-8") as file:
        file.write(f"{model.name}\n")
    for index, content in enumerate(inputs):
        with open(f"{directory}/input{index}.bin", "wb") as binary:
            binary.write(content)
    return directory
