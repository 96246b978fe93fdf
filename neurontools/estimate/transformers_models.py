"""Models that the user's own transformers builds from a `config.json`; attention is ours, in the form of kernels.

The tensor-parallel plan is that of transformers (`base_model_tp_plan`): layers split by their outputs, then by their
inputs. Embedding and output are split by the vocabulary.
"""

# ruff: noqa: SLF001
# transformers has no public name for a model's plan.

from __future__ import annotations

import copy
import json
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from neurontools.errors import MissingDependencyError
from neurontools.estimate.decoder import attend
from neurontools.estimate.models import MOST, ModelError, ModelFacts
from neurontools.estimate.parallel import RankMesh, VocabularyPart, add, split
from neurontools.estimate.recording import as_on_device
from neurontools.estimate.routing import route_evenly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ATTENTION = "neurontools"
_ROWS, _COLUMNS = ("rowwise", "rowwise_rep", "local_rowwise"), ("colwise", "colwise_rep", "local_colwise")
_SHARED = "describe the model in YAML"
_STYLES = {
    **dict.fromkeys(("q", "k", "v", "query", "key", "value", "q_proj", "k_proj", "v_proj"), "colwise"),
    **dict.fromkeys(("wi", "wi_0", "wi_1", "fc1", "intermediate.dense", "gate_proj", "up_proj"), "colwise"),
    **dict.fromkeys(("q_b_proj", "kv_b_proj"), "colwise"),
    **dict.fromkeys(("o", "wo", "fc2", "out_proj", "o_proj", "output.dense", "down_proj"), "rowwise"),
}
"""How linear layers are split by the end of their names, where transformers has no plan for them."""

_COUNTS = ("num_heads", "num_attention_heads", "num_key_value_heads", "n_heads", "inner_dim", "all_head_size")
"""Attributes of attention that count heads or their widths."""


@dataclass(slots=True, eq=False)
class TransformersModel:
    """A model of transformers."""

    config: Any
    facts: ModelFacts
    make: Callable[[Any], nn.Module] = field(repr=False)

    def build(self, mesh: RankMesh, layers: tuple[int, ...], *, checkpoints: bool = False) -> nn.Module:
        """Return rank 0's part with some of the layers.

        Raises:
            ModelError: transformers cannot build the model, or not in parts.
        """
        config = copy.deepcopy(self.config)
        for name, count in zip(_layer_names(config), layers, strict=True):
            setattr(config, name, count)
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[: layers[0]]
        with _explained("build", self.facts.name):
            model = self.make(config).eval()
            route_evenly(model, mesh)
        model.config.pad_token_id = None  # for which some models read the tokens
        if checkpoints:
            model.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
            model.train()
            for module in model.modules():
                if isinstance(module, nn.Dropout):
                    module.p = 0.0
        if mesh.tensor > 1:
            self._share(model, mesh)
        return PartOfModel(model, self.facts, mesh)

    def _share(self, model: nn.Module, mesh: RankMesh) -> None:
        plan = getattr(model, "_tp_plan", None) or {}
        shared = 0
        for name, module in list(model.named_modules()):
            is_router = name.endswith(".gate")  # each rank needs all of its scores
            style = not is_router and (plan.get(re.sub(r"\d+", "*", name)) or _style_of(name))
            if type(module) is nn.Linear and style and module is not model.get_output_embeddings():
                self._share_linear(name, module, style, mesh)
                shared += 1
            if name.endswith("relative_attention_bias"):
                module.weight = nn.Parameter(module.weight[:, : self.facts.heads // mesh.tensor].clone())
            for attribute in (*_COUNTS, *(["hidden_size"] if hasattr(module, "num_heads") else [])):
                if type(getattr(module, attribute, None)) is int:
                    setattr(module, attribute, max(1, getattr(module, attribute) // mesh.tensor))
            if hasattr(module, "num_key_value_groups"):
                module.num_key_value_groups = (self.facts.heads // mesh.tensor) // max(
                    1, self.facts.kv_heads // mesh.tensor
                )
        if not shared:
            raise ModelError(f"there is no tensor-parallel plan for {self.facts.name}", _SHARED)
        self._share_vocabulary(model, mesh)

    def _share_linear(self, name: str, module: nn.Linear, style: str, mesh: RankMesh) -> None:
        if style in _ROWS:
            _cut(module, "in_features", 1, module.in_features // mesh.tensor)
            module.register_forward_hook(lambda _module, _inputs, result: add(result, mesh))
        elif style in _COLUMNS:
            is_of_keys = name.endswith(("k_proj", "v_proj", "key", "value"))
            parts = min(mesh.tensor, self.facts.kv_heads) if is_of_keys else mesh.tensor
            if module.out_features % parts:
                raise ModelError(
                    f"{mesh.tensor} ranks do not divide the {module.out_features} outputs of {name}"
                )
            _cut(module, "out_features", 0, module.out_features // parts)
            if module.bias is not None:
                module.bias = nn.Parameter(module.bias[: module.out_features])
            module.register_forward_pre_hook(lambda _module, inputs: (split(inputs[0], mesh),))
        else:
            raise ModelError(
                f"layers split as {style!r} are not supported ({name} of {self.facts.name})", _SHARED
            )

    def _share_vocabulary(self, model: nn.Module, mesh: RankMesh) -> None:
        embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
        part = VocabularyPart(embedding.num_embeddings, embedding.embedding_dim, mesh)
        model.set_input_embeddings(part)
        if head is None:
            return
        is_tied = head.weight is embedding.weight
        _cut(head, "out_features", 0, part.num_embeddings)
        if head.bias is not None:
            head.bias = nn.Parameter(head.bias[: part.num_embeddings])
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias = model.final_logits_bias[:, : part.num_embeddings]
        head.register_forward_pre_hook(lambda _module, inputs: (split(inputs[0], mesh),))
        if is_tied:
            head.weight = part.weight


def _cut(module: nn.Linear, attribute: str, dim: int, size: int) -> None:
    setattr(module, attribute, size)
    module.weight = nn.Parameter(module.weight.narrow(dim, 0, size).clone())


@contextmanager
def _explained(action: str, name: str, ranks: int = 1) -> Iterator[None]:
    """Say in one line why the code of transformers fails."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ModelError(
            f"transformers cannot {action} {name}{f' in {ranks} parts' * (ranks > 1)}: {_first_line(error)}",
            "give --tp 1, or describe the model in YAML" if ranks > 1 else "correct its config.json",
        ) from error


class PartOfModel(nn.Module):  # type: ignore[misc]
    """A model of transformers with the methods of `decoder.Transformer`."""

    def __init__(self, model: nn.Module, facts: ModelFacts, mesh: RankMesh) -> None:
        super().__init__()
        self.model, self.facts, self.mesh = model, facts, mesh
        self.width = model.config.hidden_size

    def drop_embedding(self) -> None:
        """Become the last stage of a pipeline."""
        self.model.set_input_embeddings(nn.Identity())

    def source(self, batch: int, length: int) -> torch.Tensor:
        """Return what the encoder of an encoder-decoder reads: tokens, or the features of sound."""
        weight, bins = next(self.model.parameters()), getattr(self.model.config, "num_mel_bins", 0)
        if bins:
            return weight.new_zeros(batch, bins, 2 * length)
        return weight.new_zeros((batch, length), dtype=torch.int64)

    def make_cache(self, batch: int, length: int, source: int) -> list[tuple[torch.Tensor, ...]]:
        """Return empty keys and values of each layer, and those of the encoder's tokens."""
        from neurontools.estimate.transformers_caches import KeyShapes, cached

        seen, weight = KeyShapes(), next(self.model.parameters())
        tokens = weight.new_zeros((1, 1), dtype=torch.int64)
        with torch.no_grad(), as_on_device():
            if self.facts.has_encoder:
                caches = cached(seen, seen.of_encoder)
                self._run(self.source(1, source), decoder_input_ids=tokens, past_key_values=caches)
            else:
                self._run(tokens, past_key_values=seen, cache_position=torch.zeros_like(tokens[0]))
        lengths = (length, length, source, source)
        return [
            tuple(
                weight.new_empty(batch, heads, count, depth)
                for (heads, depth), count in zip(shapes, lengths, strict=False)
            )
            for shapes in seen.by_layer()
        ]

    def next_token(
        self,
        tokens: torch.Tensor,
        cache: Any = None,
        at: torch.Tensor | None = None,
        source: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the logits of the token after the last one; of an encoder the results of all."""
        if not self.facts.causal:
            return self.logits(tokens)
        from neurontools.estimate.transformers_caches import GivenCache, cached

        where = torch.arange(tokens.size(1), device=tokens.device) if at is None else at
        kept = GivenCache([parts[:2] for parts in cache], is_prompt=at is None)
        settings: dict[str, Any] = {"cache_position": where, "use_cache": True}
        if not self.facts.has_encoder:
            settings |= {"position_ids": where[None], "logits_to_keep": 1}
            if self.model.config._attn_implementation == "eager":  # it masks itself
                count = tokens.size(1) if at is None else cache[0][0].size(2)
                settings["attention_mask"] = tokens.new_ones((tokens.size(0), count))
            return self._run(tokens, past_key_values=kept, **settings)
        of_encoder = GivenCache([parts[2:] for parts in cache], is_prompt=at is None, is_encoder=True)
        if source is None:
            keys = cache[0][2]
            hidden = next(self.model.parameters()).new_empty(keys.size(0), keys.size(2), self.width)
            settings["encoder_outputs"] = (hidden,)
        caches = cached(kept, of_encoder)
        return self._run(source, decoder_input_ids=tokens, past_key_values=caches, **settings)

    def logits(self, tokens: torch.Tensor, source: torch.Tensor | None = None) -> torch.Tensor:
        """Return the logits of all tokens, or of the residual stream that a stage is given."""
        settings: dict[str, Any] = {"use_cache": False} if self.facts.causal else {}
        if self.facts.has_encoder:
            return self._run(source, decoder_input_ids=tokens, **settings)
        if tokens.is_floating_point():
            return self._run(None, inputs_embeds=tokens, **settings)
        return self._run(tokens, **settings)

    def _run(self, *inputs: Any, **settings: Any) -> torch.Tensor:
        with _explained("run", self.facts.name, self.mesh.tensor):
            result: torch.Tensor = self.model(*inputs, **settings)[0]
        return result


def _attention(
    module: Any, query: Any, key: Any, value: Any, _mask: Any, scaling: float | None = None, **_: Any
) -> tuple[torch.Tensor, None]:
    causal = getattr(module, "is_causal", True)
    return attend(query, key, value, scaling, causal=causal).transpose(1, 2).contiguous(), None


def read_config(file: str, fields: dict[str, Any]) -> TransformersModel:
    """Return the model of a `config.json`.

    Raises:
        MissingDependencyError: transformers is not installed.
        ModelError: transformers does not know the architecture, or an estimate does not.
    """
    try:
        import transformers
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    except ImportError as error:
        raise MissingDependencyError(
            f"a config.json needs transformers: {_first_line(error)}",
            "pip install transformers, or describe the model in YAML",
        ) from error
    kind = fields["model_type"]
    if kind not in CONFIG_MAPPING:
        raise ModelError(
            f"transformers {transformers.__version__} does not know the architecture {kind!r} of {file}",
            "install a version that does, or describe the model in YAML",
        )
    try:
        given = {name: value for name, value in fields.items() if name != "quantization_config"}
        config = CONFIG_MAPPING[kind].from_dict(given)
        name = next(iter(config.architectures or ()), "")
        if name.endswith("EncoderModel"):
            config.is_encoder_decoder = False
        facts = _facts_of(config, name or kind, stored_type(fields))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ModelError(
            f"{file} does not describe a transformer that can be estimated: {_first_line(error)}", _SHARED
        ) from error
    return _model_of(config, name, facts)


def _layer_names(config: Any) -> tuple[str, ...]:
    """Return the fields with the number of layers, of both stacks of an encoder-decoder."""
    if not getattr(config, "is_encoder_decoder", False):
        return ("num_hidden_layers",)
    return (
        ("encoder_layers", "decoder_layers")
        if hasattr(config, "decoder_layers")
        else ("num_layers", "num_decoder_layers")
    )


def _facts_of(config: Any, name: str, weights: str) -> ModelFacts:
    def size(*names: str) -> int:
        found = next((each for each in names if getattr(config, each, None) is not None), names[0])
        value = getattr(config, found)
        if type(value) is not int or not 0 < value < MOST:
            raise ValueError(f"{found} is {value!r}")
        return value

    stacks = tuple(map(size, _layer_names(config)))
    heads, width = size("num_attention_heads"), size("hidden_size")
    size("vocab_size")
    if width % heads and not getattr(config, "head_dim", None):
        raise ValueError(f"{heads} heads do not divide a width of {width}")
    has_encoder = len(stacks) > 1
    is_relative = hasattr(config, "relative_attention_num_buckets")
    return ModelFacts(
        name=name,
        stacks=stacks,
        heads=heads,
        kv_heads=size("num_key_value_heads", "num_attention_heads"),
        positions=MOST if is_relative else size("max_target_positions", "max_position_embeddings"),
        causal=has_encoder or "_" in name or name.islower() or name.endswith(("CausalLM", "LMHeadModel")),
        source=size("max_source_positions") if has_encoder and hasattr(config, "num_mel_bins") else 0,
        lead=max(1, getattr(config, "first_k_dense_replace", None) or 1),
        period=max(getattr(config, each, None) or 1 for each in _PERIODS),
        weights=weights,
        experts=next((getattr(config, each) for each in _EXPERTS if getattr(config, each, None)), 0),
    )


_PERIODS = ("decoder_sparse_step", "interleave_moe_layer_step")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


def stored_type(fields: dict[str, Any]) -> str:
    """Return the type of the stored weights by a `quantization_config`: int8, fp8, or "" without one.

    Raises:
        ValueError: it is another type.
    """
    given = fields.get("quantization_config")
    if given is None:
        return ""
    text = json.dumps(given).lower()
    if "fp8" in text or '"type": "float"' in text or "float8" in text:
        return "fp8"
    if '"load_in_8bit": true' in text or '"num_bits": 8' in text or "int8" in text:
        return "int8"
    raise ValueError("its quantization_config is of neither int8 nor fp8 weights")


def _model_of(config: Any, name: str, facts: ModelFacts) -> TransformersModel:
    import transformers
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    transformers.utils.logging.set_verbosity_error()
    AttentionInterface.register(_ATTENTION, _attention)
    AttentionMaskInterface.register(_ATTENTION, lambda *_, **__: None)
    kinds = getattr(transformers, name, None) or (
        transformers.AutoModelForSeq2SeqLM if facts.has_encoder else transformers.AutoModelForCausalLM
    )
    config._attn_implementation = _ATTENTION

    def make(chosen: Any) -> nn.Module:
        build = getattr(kinds, "from_config", None) or kinds._from_config
        try:
            made: nn.Module = build(chosen)
        except (KeyError, ValueError):  # a family with its own attention, or its own table of it
            chosen._attn_implementation = "eager"
            made = build(chosen)
        return made

    return TransformersModel(config, facts, make)


def _style_of(name: str) -> str:
    *_, before, last = f".{name}".split(".")
    return _STYLES.get(last) or _STYLES.get(f"{before}.{last}", "")


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
