"""Models of the user: a `config.json` that transformers builds, or a YAML file with the sizes of a transformer."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from neurontools.config.reader import FileError, FormatError, read_json, read_yaml
from neurontools.config.settings import read_file
from neurontools.config.types import FLAG, choice, whole
from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from torch import nn

    from neurontools.config.reader import Section
    from neurontools.estimate.decoder import Architecture
    from neurontools.estimate.parallel import Mesh

YAML_HELP = (
    "a model in YAML has lines such as 'layers: 32', 'width: 4096', 'heads: 32', 'inner: 14336', "
    "'vocabulary: 128256', 'positions: 8192'"
)
_ACTIVATIONS = ("silu", "gelu", "relu")
MOST = 1 << 24  # of one dimension


class ModelError(NeuronToolsError):
    """A model cannot be read or built."""


class Model(Protocol):
    """A model of which ranks hold parts.

    Its parts have the methods of `decoder.Transformer`: `next_token`, `make_cache` and `logits`.
    """

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def layers(self) -> int:
        """Number of layers."""

    @property
    def heads(self) -> int:
        """Heads of queries."""

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""

    @property
    def positions(self) -> int:
        """Tokens of the longest sequence."""

    @property
    def causal(self) -> bool:
        """Whether it is a decoder."""

    def build(self, mesh: Mesh, layers: int, *, checkpoints: bool = False) -> nn.Module:
        """Return rank 0's part with some of the layers, on the device of torch's context."""


@dataclass(frozen=True, slots=True)
class PlainModel:
    """A transformer described by its sizes."""

    name: str
    sizes: Architecture

    layers = property(lambda self: self.sizes.layers)
    heads = property(lambda self: self.sizes.heads)
    kv_heads = property(lambda self: self.sizes.kv_heads)
    positions = property(lambda self: self.sizes.positions)
    causal = property(lambda self: self.sizes.causal)

    def build(self, mesh: Mesh, layers: int, *, checkpoints: bool = False) -> nn.Module:
        """Return rank 0's part with some of the layers."""
        from neurontools.estimate.decoder import Transformer

        return Transformer(replace(self.sizes, layers=layers), mesh, checkpoints=checkpoints)


def read_model(path: str) -> Model:
    """Return a model from its file, or from a directory with a `config.json`.

    Raises:
        ModelError: it cannot be read or built.
        FileError: it has mistakes, all of which are listed.
        MissingDependencyError: a `config.json` needs transformers.
    """
    file = os.path.join(path, "config.json") if os.path.isdir(path) else path
    try:
        text = read_file(file)
    except OSError as error:
        hint = "give a file: config.json of transformers, or YAML"
        if not os.path.exists(path) and path.count("/") == 1 and not path.startswith((".", "/")):
            hint = f"names on the Hugging Face Hub are not looked up: run 'hf download {path} config.json' and give the file"
        raise ModelError(f"cannot read {file}: {error.strerror or error}", hint) from error
    if file.endswith((".yaml", ".yml")):
        return PlainModel(os.path.splitext(os.path.basename(file))[0], _read_sizes(file, text))
    from neurontools.estimate.transformers_models import read_config

    return read_config(file, _json(file, text))


def check_degree(model: Model, degree: int) -> None:
    """Check that a model can be shared by a number of ranks.

    Raises:
        ModelError: the degree does not divide the heads.
    """
    kv_heads = model.kv_heads
    if model.heads % degree or (kv_heads % degree and degree % kv_heads):
        fitting = ", ".join(map(str, degrees(model, model.heads)))
        raise ModelError(
            f"a tensor-parallel degree of {degree} does not divide {model.heads} heads with {kv_heads} of keys and values",
            f"choose one of {fitting}",
        )


def degrees(model: Model, most: int) -> list[int]:
    """Return the tensor-parallel degrees up to a number that a model can have: powers of two that divide its heads."""
    found = (1 << power for power in range(most.bit_length()))
    kv_heads = model.kv_heads
    return [
        degree
        for degree in found
        if degree <= most and not model.heads % degree and (not kv_heads % degree or not degree % kv_heads)
    ]


def check_length(model: Model, length: int) -> None:
    """Check that a sequence is no longer than a model's longest.

    Raises:
        ModelError: it is.
    """
    if length > model.positions:
        raise ModelError(
            f"{length} tokens are more than the {model.positions} positions of {model.name}",
            f"give lengths up to {model.positions}",
        )


def _json(file: str, text: bytes) -> dict[str, Any]:
    import json

    try:
        read_json(text.decode(errors="replace"))  # with the line of a mistake, and bounded
        found = json.loads(text)
    except FormatError as error:
        raise FileError(file, [error.problem], "config.json is JSON; other models are *.yaml") from error
    if not isinstance(found, dict) or not isinstance(found.get("model_type"), str):
        raise ModelError(
            f"{file} has no 'model_type'", "give a config.json of transformers, or a *.yaml file"
        )
    return found


def _read_sizes(file: str, text: bytes) -> Architecture:
    try:
        root = read_yaml(text)
    except FormatError as error:
        raise FileError(file, [error.problem], YAML_HELP) from error
    section = root.section("the sizes of a transformer")
    sizes = _sizes(section)
    section.finish()
    if not root.problems and sizes.heads % sizes.kv_heads:
        section.fail("kv_heads", f"{sizes.kv_heads} does not divide {sizes.heads} heads")
    if root.problems:
        raise FileError(file, root.problems, YAML_HELP)
    return sizes


def _sizes(section: Section) -> Architecture:
    from neurontools.estimate.decoder import Architecture

    size = whole(1, MOST)
    width, heads = section.require("width", size), section.require("heads", size)
    return Architecture(
        layers=section.require("layers", whole(1, 10_000)),
        width=width,
        heads=heads,
        kv_heads=section.read("kv_heads", size, heads),
        head_width=section.read("head_width", size, max(1, width // heads)),
        inner=section.require("inner", size),
        vocabulary=section.require("vocabulary", size),
        positions=section.require("positions", size),
        norm=section.read("norm", choice(("rms", "layer"), "norm"), "rms") or "rms",
        gated=section.read("gated", FLAG, True),
        activation=section.read("activation", choice(_ACTIVATIONS, "activation"), "silu") or "silu",
        rotary=section.read("rotary", FLAG, True),
        bias=section.read("bias", FLAG, False),
        tied=section.read("tied", FLAG, False),
        causal=section.read("causal", FLAG, True),
    )
