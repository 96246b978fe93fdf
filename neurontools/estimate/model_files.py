"""Files of models: a `config.json` that transformers builds, or a YAML file with the sizes of a transformer."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from neurontools.base.json_reader import load_json
from neurontools.config.reader import FileError, FormatError, read_json, read_yaml
from neurontools.config.settings import read_file
from neurontools.config.types import FLAG, choice, whole
from neurontools.estimate import stored_graphs
from neurontools.estimate.models import MOST, Architecture, ModelError, ModelFacts

if TYPE_CHECKING:
    from torch import nn

    from neurontools.config.reader import Section
    from neurontools.estimate.models import RankedModel
    from neurontools.estimate.parallel import RankMesh
    from neurontools.estimate.transformers_models import TransformersModel

YAML_HELP = (
    "a model in YAML has lines such as 'layers: 32', 'width: 4096', 'heads: 32', 'inner: 14336', "
    "'vocabulary: 128256', 'positions: 8192'"
)
_ACTIVATIONS = ("silu", "gelu", "relu")


@dataclass(frozen=True, slots=True)
class PlainModel:
    """A transformer described by its sizes."""

    name: str
    sizes: Architecture

    @property
    def facts(self) -> ModelFacts:
        """Its sizes, as far as they limit parts and lengths."""
        sizes = self.sizes
        return ModelFacts(
            self.name,
            (sizes.layers,),
            sizes.heads,
            sizes.kv_heads,
            sizes.positions,
            sizes.causal,
            experts=sizes.experts,
        )

    def key(self) -> dict[str, Any]:
        """Return what identifies it, as JSON."""
        return asdict(self.sizes)

    def build(self, mesh: RankMesh, layers: tuple[int, ...], *, checkpoints: bool = False) -> nn.Module:
        """Return rank 0's part with some of the layers."""
        from neurontools.estimate.decoder import Transformer

        return Transformer(replace(self.sizes, layers=layers[0]), mesh, checkpoints=checkpoints)


def read_model(path: str) -> RankedModel:
    """Return a model from its file, or from a directory with a `config.json`.

    Raises:
        ModelError: it cannot be read or built.
        FileError: it has mistakes, all of which are listed.
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
    return ConfigModel(file, _json(file, text))


class ConfigModel:
    """A model that transformers builds from a `config.json`; it is imported when nothing is stored of the model."""

    def __init__(self, file: str, fields: dict[str, Any]) -> None:
        self._file, self._fields = file, fields

    @cached_property
    def facts(self) -> ModelFacts:
        """Its sizes.

        Raises:
            MissingDependencyError: transformers is not installed.
            ModelError: transformers or an estimate do not know the architecture.
        """
        stored = stored_graphs.load(self._fields)
        try:
            facts = ModelFacts(**(stored or ({}, b""))[0])
            return replace(facts, stacks=tuple(facts.stacks))
        except TypeError:
            stored_graphs.save(self._fields, asdict(self._model.facts))
            return self._model.facts

    @cached_property
    def _model(self) -> TransformersModel:
        from neurontools.estimate.transformers_models import read_config

        return read_config(self._file, self._fields)

    def key(self) -> dict[str, Any]:
        """Return what identifies it, as JSON."""
        return self._fields

    def build(self, mesh: RankMesh, layers: tuple[int, ...], *, checkpoints: bool = False) -> nn.Module:
        """Return rank 0's part with some of the layers of each stack."""
        return self._model.build(mesh, layers, checkpoints=checkpoints)


def _json(file: str, text: bytes) -> dict[str, Any]:
    hint = "config.json is JSON; other models are *.yaml"
    try:
        read_json(text.decode(errors="replace"))  # which says the line of a mistake
        config = load_json(text)
    except FormatError as error:
        raise FileError(file, [error.problem], hint) from error
    except ValueError as error:
        raise ModelError(f"{file}: {error}", hint) from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ModelError(
            f"{file} has no 'model_type'", "give a config.json of transformers, or a *.yaml file"
        )
    return config


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
    if not root.problems and (sizes.chosen > sizes.experts or (sizes.experts and not sizes.chosen)):
        section.fail("experts_per_token", f"expected 1 to {sizes.experts}, the number of experts")
    if root.problems:
        raise FileError(file, root.problems, YAML_HELP)
    return sizes


def _sizes(section: Section) -> Architecture:
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
        experts=section.read("experts", whole(0, 4096), 0),
        chosen=section.read("experts_per_token", whole(0, 4096), 0),
    )
