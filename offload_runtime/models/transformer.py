"""Models of the transformers package, built from a configuration as trainers run them.

No cache, fused attention, experts in grouped products, and the model's own loss as its output. Names and
layers stay the model's: the loss is added by a subclass, not by a wrapper around the module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.initialization import no_init_weights

from offload_runtime.errors import Diagnostic, UsageError, error_text
from offload_runtime.models.batches import ImageBatches, SameLabels, TextBatches
from offload_runtime.models.construction import allocates, construct
from offload_runtime.models.huggingface import KINDS, configured_dtype, unsupported
from offload_runtime.models.resolve import ModelRequest, refuse_options
from offload_runtime.models.under_test import Batch, ModelUnderTest, count_parameters

_DEFAULT_SEQ = 1024
_LEARNING_RATE = 1e-3
_CAUSAL_SDPA = "causal_sdpa_without_mask"
# Every name under which configurations count their layers; a model has one or two of them.
_LAYER_KEYS = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "num_decoder_layers",
    "encoder_layers",
    "decoder_layers",
)


@dataclass(frozen=True)
class _Kind:
    """One kind of model: its class, and how a batch becomes a loss.

    ``loss(call, *batch)`` gets the class's own ``forward`` bound to the model.
    """

    name: str
    suffixes: tuple[str, ...]
    auto_class: Any
    mapping: Any
    loss: Callable[..., Tensor]
    has_text: bool


def _text_loss(call: Callable[..., Any], tokens: Tensor, labels: Tensor) -> Tensor:
    # The model shifts the labels itself (a causal one), or feeds them to its decoder (an encoder-decoder).
    loss: Tensor = call(input_ids=tokens, labels=labels, use_cache=False).loss
    return loss


def _image_loss(call: Callable[..., Any], images: Tensor, labels: Tensor) -> Tensor:
    loss: Tensor = call(pixel_values=images, labels=labels).loss
    return loss


_CAUSAL = _Kind(
    "causal",
    ("ForCausalLM", "LMHeadModel"),
    transformers.AutoModelForCausalLM,
    transformers.MODEL_FOR_CAUSAL_LM_MAPPING,
    _text_loss,
    has_text=True,
)
_SEQ2SEQ = _Kind(
    "seq2seq",
    ("ForConditionalGeneration",),
    transformers.AutoModelForSeq2SeqLM,
    transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    _text_loss,
    has_text=True,
)
_IMAGE = _Kind(
    "image",
    ("ForImageClassification",),
    transformers.AutoModelForImageClassification,
    transformers.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
    _image_loss,
    has_text=False,
)


def build_transformer(request: ModelRequest, data: Mapping[str, Any]) -> ModelUnderTest:
    """Build the model of the configuration ``data``, the content of a ``config.json``."""
    config = _config(request, data)
    kind = _kind(request, config)
    if kind is _SEQ2SEQ and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = config.pad_token_id or 0  # a bare config leaves it to the tokenizer
    if not kind.has_text:
        refuse_options(
            request, ("seq",), "it has images, not sequences", "--batch, --layers and --dtype shape it"
        )
    dtype_name = request.dtype or configured_dtype(data)
    dtype, device = getattr(torch, dtype_name), torch.device(request.device)
    batches = _batches(request, kind, config, dtype)
    module = construct(request.spec, lambda: _build(request, kind, config, dtype), dtype, device)
    use_loss(module, kind.loss)
    return ModelUnderTest(
        name=request.spec,
        description=f"{type(module).__name__} of {request.spec} ({dtype_name})",
        module=module,
        example_args=batches(0),
        loss_fn=None,
        make_batch=batches,
        num_parameters=count_parameters(module),
        num_layers=getattr(config, "num_hidden_layers", None),
        dtype=dtype_name,
        device=device,
        optimizer=request.optimizer or "adamw",
        learning_rate=_LEARNING_RATE,
    )


def _config(request: ModelRequest, data: Mapping[str, Any]) -> Any:
    values = dict(data)
    model_type = values.pop("model_type")
    if "auto_map" in values:
        raise unsupported(
            request.spec,
            "its code is not part of transformers",
            "write a package.module:function that builds it",
        )
    if model_type not in transformers.CONFIG_MAPPING:
        raise unsupported(
            request.spec,
            f"transformers {transformers.__version__} knows no model_type {model_type!r}",
            "install a version of transformers that has it, or use a package.module:function",
        )
    config_class = transformers.CONFIG_MAPPING[model_type]
    if request.layers is not None:
        given = [key for key in _LAYER_KEYS if key in values]
        keys = given or [
            getattr(config_class, "attribute_map", {}).get("num_hidden_layers", "num_hidden_layers")
        ]
        values.update(dict.fromkeys(keys, request.layers))
        values.pop("layer_types", None)  # one entry for each layer; the class derives it anew
    try:
        return config_class(**values)
    except (TypeError, ValueError) as error:
        raise unsupported(
            request.spec,
            f"{config_class.__name__} refuses the configuration: {error_text(error)}",
            "correct the config.json",
        ) from error


def _kind(request: ModelRequest, config: Any) -> _Kind:
    """Choose by the configuration's ``architectures``; a bare backbone, or none, by what its type can be."""
    names = tuple(config.architectures or ())
    named = [name for name in names if not name.endswith("Model") or name.endswith(_CAUSAL.suffixes)]
    kinds = (_SEQ2SEQ,) if getattr(config, "is_encoder_decoder", False) else (_CAUSAL, _IMAGE)
    for kind in kinds:
        if type(config) in kind.mapping and (not named or any(n.endswith(kind.suffixes) for n in named)):
            return kind
    what = " or ".join(names) or f"a {config.model_type} model"
    raise unsupported(
        request.spec,
        f"{what} is none of the kinds that are built from a configuration",
        f"use {KINDS}, or a package.module:function",
    )


def _build(request: ModelRequest, kind: _Kind, config: Any, dtype: torch.dtype) -> nn.Module:
    # Experts are left to transformers' own choice, grouped products: their loop would look at the data.
    has_values = allocates(torch.empty(0).device)
    weights = nullcontext() if has_values else no_init_weights()
    softcapped = getattr(config, "attn_logit_softcapping", None) is not None
    with weights:
        try:
            attention = "eager" if softcapped else "sdpa"
            model = kind.auto_class.from_config(config, attn_implementation=attention, dtype=dtype)
        except ValueError as error:
            if "scaled_dot_product_attention" not in error_text(error):
                raise unsupported(request.spec, error_text(error), "correct the config.json") from error
            model = kind.auto_class.from_config(config, attn_implementation="eager", dtype=dtype)
    if not has_values:
        model.tie_weights()  # transformers ties what shares values while it initialises them
    if kind is _CAUSAL and config._attn_implementation == "sdpa":
        transformers.AttentionInterface.register(_CAUSAL_SDPA, _causal_sdpa)
        model.set_attn_implementation(_CAUSAL_SDPA)
    if kind is _CAUSAL and getattr(model, "loss_type", None) is None:
        # Classes not named ForCausalLM take this loss by default, with a warning that breaks the graph.
        model.loss_type = "ForCausalLM"
    module: nn.Module = model.train()
    return module


def _causal_sdpa(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Attend causally without a mask, which the batches, having no padding, do not need.

    Under a tracer transformers builds a mask all the same, and the fused kernels lose ``is_causal``. A
    sliding window shorter than the sequence needs its band.
    """
    window, seq = kwargs.get("sliding_window"), key.shape[2]
    if window is not None and window < seq:
        place = torch.arange(seq, device=query.device)
        ahead = place[:, None] - place
        attention_mask = ((ahead >= 0) & (ahead < window))[None, None]
    sdpa = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS["sdpa"]
    output: tuple[Tensor, None] = sdpa(module, query, key, value, attention_mask, **kwargs)
    return output


def use_loss(module: nn.Module, loss: Callable[..., Tensor]) -> None:
    """Make ``module(*batch)`` return ``loss(forward, *batch)``, without another module around it."""
    own_class: Any = type(module)

    def forward(self: nn.Module, *batch: Any) -> Tensor:
        return loss(partial(own_class.forward, self), *batch)

    module.__class__ = type(own_class.__name__, (own_class,), {"forward": forward, "__module__": __name__})


def _batches(request: ModelRequest, kind: _Kind, config: Any, dtype: torch.dtype) -> Callable[[int], Batch]:
    device = torch.device(request.device)
    needed = ("vocab_size",) if kind.has_text else ("num_channels", "image_size", "num_labels")
    sizes: dict[str, Any] = {name: getattr(config, name, None) for name in needed}
    missing = [name for name, size in sizes.items() if not isinstance(size, int)]
    if missing:
        reason = f"its configuration gives no number for {' and '.join(missing)}"
        raise unsupported(request.spec, reason, "write a package.module:function that builds it")
    if not kind.has_text:
        return ImageBatches(
            request.batch or 8,
            sizes["num_channels"],
            sizes["image_size"],
            sizes["num_labels"],
            dtype,
            device,
            request.seed,
        )
    longest = getattr(config, "max_position_embeddings", None) or _DEFAULT_SEQ
    seq = request.seq or min(_DEFAULT_SEQ, longest)
    if seq > longest:
        raise UsageError(
            Diagnostic(
                "MOD702",
                "error",
                f"--seq {seq} is longer than the {longest} positions of {request.spec}",
                hint=f"give --seq {longest} or less",
            )
        )
    text = TextBatches(request.batch or 1, seq, sizes["vocab_size"], device, request.seed)
    return text if kind is _SEQ2SEQ else SameLabels(text)
