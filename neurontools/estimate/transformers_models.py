"""Models that the user's own transformers builds from a `config.json`; attention is ours, in the form of kernels.

The tensor-parallel plan is that of transformers (`base_model_tp_plan`): layers split by their outputs, then by their
inputs. Embedding and output are split by the vocabulary.
"""

# ruff: noqa: SLF001
# transformers has no public name for a model's plan.

from __future__ import annotations

import copy
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from neurontools.errors import MissingDependencyError
from neurontools.estimate.decoder import attend
from neurontools.estimate.models import MOST, ModelError
from neurontools.estimate.parallel import RankMesh, VocabularyPart, add, split

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ATTENTION = "neurontools"
_ROWS, _COLUMNS = "rowwise", ("colwise", "colwise_rep")
_SHARED = "describe the model in YAML"


@dataclass(slots=True, eq=False)
class TransformersModel:
    """A model of transformers."""

    config: Any
    name: str
    causal: bool
    make: Callable[[Any], nn.Module] = field(repr=False)

    layers = property(lambda self: self.config.num_hidden_layers)
    heads = property(lambda self: self.config.num_attention_heads)
    kv_heads = property(lambda self: getattr(self.config, "num_key_value_heads", None) or self.heads)
    positions = property(lambda self: self.config.max_position_embeddings)
    head_width = property(
        lambda self: getattr(self.config, "head_dim", None) or self.config.hidden_size // self.heads
    )

    def build(self, mesh: RankMesh, layers: int, *, checkpoints: bool = False) -> nn.Module:
        """Return rank 0's part with some of the layers.

        Raises:
            ModelError: transformers cannot build the model, or not in parts.
        """
        config = copy.deepcopy(self.config)
        config.num_hidden_layers = layers
        config.pad_token_id = None  # for which some models read the tokens
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[:layers]
        with _explained("build", self.name):
            model = self.make(config).eval()
        if checkpoints:
            model.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
            model.train()
            for module in model.modules():
                if isinstance(module, nn.Dropout):
                    module.p = 0.0
        if mesh.tensor > 1:
            self._share(model, mesh)
        return PartOfModel(model, self, mesh)

    def _share(self, model: nn.Module, mesh: RankMesh) -> None:
        plan = getattr(model, "_tp_plan", None) or {}
        if not plan:
            raise ModelError(f"transformers has no tensor-parallel plan for {self.name}", _SHARED)
        for name, module in list(model.named_modules()):
            style = plan.get(re.sub(r"\d+", "*", name))
            if (
                isinstance(module, nn.Linear)
                and style is not None
                and module is not model.get_output_embeddings()
            ):
                self._share_linear(name, module, style, mesh)
            for attribute in ("num_heads", "num_attention_heads", "num_key_value_heads"):
                if isinstance(getattr(module, attribute, None), int):
                    setattr(module, attribute, max(1, getattr(module, attribute) // mesh.tensor))
            if hasattr(module, "num_key_value_groups"):
                module.num_key_value_groups = (self.heads // mesh.tensor) // max(
                    1, self.kv_heads // mesh.tensor
                )
        self._share_vocabulary(model, mesh)

    def _share_linear(self, name: str, module: nn.Linear, style: str, mesh: RankMesh) -> None:
        if style == _ROWS:
            _cut(module, "in_features", 1, module.in_features // mesh.tensor)
            module.register_forward_hook(lambda _module, _inputs, result: add(result, mesh))
        elif style in _COLUMNS:
            is_of_keys = module.out_features == self.kv_heads * self.head_width
            parts = min(mesh.tensor, self.kv_heads) if is_of_keys else mesh.tensor
            if module.out_features % parts:
                raise ModelError(
                    f"{mesh.tensor} ranks do not divide the {module.out_features} outputs of {name}"
                )
            _cut(module, "out_features", 0, module.out_features // parts)
            if module.bias is not None:
                module.bias = nn.Parameter(module.bias[: module.out_features])
            module.register_forward_pre_hook(lambda _module, inputs: (split(inputs[0], mesh),))
        else:
            raise ModelError(f"layers split as {style!r} are not supported ({name} of {self.name})", _SHARED)

    def _share_vocabulary(self, model: nn.Module, mesh: RankMesh) -> None:
        embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
        part = VocabularyPart(embedding.num_embeddings, embedding.embedding_dim, mesh)
        model.set_input_embeddings(part)
        if head is None:
            return
        is_tied = head.weight is embedding.weight
        _cut(head, "out_features", 0, part.num_embeddings)
        head.register_forward_pre_hook(lambda _module, inputs: (split(inputs[0], mesh),))
        if is_tied:
            head.weight = part.weight


def _cut(module: nn.Linear, attribute: str, dim: int, size: int) -> None:
    setattr(module, attribute, size)
    module.weight = nn.Parameter(module.weight.narrow(dim, 0, size).clone())


@contextmanager
def _explained(action: str, name: str) -> Iterator[None]:
    """Say in one line why the code of transformers fails."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ModelError(
            f"transformers cannot {action} {name}: {_first_line(error)}", "correct its config.json"
        ) from error


class PartOfModel(nn.Module):  # type: ignore[misc]
    """A model of transformers with the methods of `decoder.Transformer`."""

    def __init__(self, model: nn.Module, whole: TransformersModel, mesh: RankMesh) -> None:
        super().__init__()
        self.model, self.whole, self.mesh = model, whole, mesh

    def make_cache(self, batch: int, length: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return empty keys and values of each layer."""
        heads = max(1, self.whole.kv_heads // self.mesh.tensor)
        shape = batch, heads, length, self.whole.head_width
        weight = next(self.model.parameters())
        layers = range(self.model.config.num_hidden_layers)
        return [(weight.new_empty(shape), weight.new_empty(shape)) for _ in layers]

    def next_token(
        self, tokens: torch.Tensor, cache: Any = None, at: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the logits of the token after the last one; of an encoder the results of all."""
        if not self.whole.causal:
            return self.logits(tokens)
        where = torch.arange(tokens.size(1), device=tokens.device) if at is None else at
        kept = _cache_type()(cache, is_prompt=at is None)
        settings = {
            "cache_position": where,
            "position_ids": where[None],
            "use_cache": True,
            "logits_to_keep": 1,
        }
        with _explained("run", self.whole.name):
            logits: torch.Tensor = self.model(tokens, past_key_values=kept, **settings).logits
        return logits

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of all tokens."""
        settings = {"use_cache": False} if self.whole.causal else {}
        with _explained("run", self.whole.name):
            hidden: torch.Tensor = self.model(tokens, **settings)[0]
        return hidden


def _cache_type() -> Any:
    from transformers.cache_utils import Cache

    class GivenCache(Cache):  # type: ignore[misc]
        """Keys and values in given tensors, written from the start for a prompt, else at the positions of a call."""

        def __init__(self, tensors: list[tuple[torch.Tensor, torch.Tensor]], *, is_prompt: bool) -> None:
            self.tensors, self.is_prompt = tensors, is_prompt
            self.layers: list[object] = []

        def update(self, key: Any, value: Any, layer_idx: int, cache_kwargs: Any = None) -> Any:
            """Write keys and values of a layer, and return all of them."""
            if self.is_prompt:
                for kept, new in zip(self.tensors[layer_idx], (key, value), strict=True):
                    kept[:, :, : new.size(2)].copy_(new)
                return key, value
            at = cache_kwargs["cache_position"]
            new = zip(self.tensors[layer_idx], (key, value), strict=True)
            return tuple(kept.index_copy_(2, at, states) for kept, states in new)

        def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002  its signature
            """Return 0: positions are given."""
            return 0

    return GivenCache


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
        config = CONFIG_MAPPING[kind].from_dict(fields)
        _check_sizes(config)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ModelError(
            f"{file} does not describe a transformer with one stack of layers: {_first_line(error)}", _SHARED
        ) from error
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{file}: models with encoder and decoder are not supported", _SHARED)
    return _model_of(config, kind)


def _check_sizes(config: Any) -> None:
    names = (
        "num_hidden_layers",
        "num_attention_heads",
        "hidden_size",
        "vocab_size",
        "max_position_embeddings",
    )
    for name in names:
        size = getattr(config, name)
        if type(size) is not int or not 0 < size < MOST:
            raise ValueError(f"{name} is {size!r}")
    if config.hidden_size % config.num_attention_heads and not getattr(config, "head_dim", None):
        raise ValueError(f"{config.num_attention_heads} heads do not divide a width of {config.hidden_size}")


def _model_of(config: Any, kind: str) -> TransformersModel:
    import transformers
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    transformers.utils.logging.set_verbosity_error()
    AttentionInterface.register(_ATTENTION, _attention)
    AttentionMaskInterface.register(_ATTENTION, lambda *_, **__: None)
    name = next(iter(config.architectures or ()), "")
    is_causal = not name or name.endswith(("CausalLM", "LMHeadModel"))
    kinds = (
        transformers.AutoModelForCausalLM
        if is_causal
        else getattr(transformers, name, transformers.AutoModel)
    )
    config._attn_implementation = _ATTENTION

    def make(chosen: Any) -> nn.Module:
        build = getattr(kinds, "from_config", kinds)
        try:
            made: nn.Module = build(chosen)
        except KeyError:  # a family with its own table of attention
            chosen._attn_implementation = "eager"
            made = build(chosen)
        return made

    return TransformersModel(config, name or kind, is_causal, make)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
