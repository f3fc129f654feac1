"""Losses by name, and the outputs of a model that a loss is called with."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ortrain.enums import LossType
from ortrain.errors import InvalidArgumentError, OutputNotFoundError
from ortrain.loading.loader import as_model
from ortrain.onnxblock.blocks import Block
from ortrain.onnxblock.loss import classification, elementwise, embedding, sequence
from ortrain.onnxblock.loss.base import Loss
from ortrain.onnxblock.loss.weighted_sum import WeightedSum

_LOSSES: Mapping[str, type[Loss]] = MappingProxyType({
    "cross-entropy": classification.CrossEntropyLoss,
    "mse": elementwise.MSELoss,
    "l1": elementwise.L1Loss,
    "bce-with-logits": elementwise.BCEWithLogitsLoss,
    "huber": elementwise.HuberLoss,
    "smooth-l1": elementwise.SmoothL1Loss,
    "kl-divergence": elementwise.KLDivLoss,
    "focal": classification.FocalLoss,
    "binary-focal": elementwise.BinaryFocalLoss,
    "nll": classification.NLLLoss,
    "hinge": elementwise.HingeLoss,
    "triplet": embedding.TripletMarginLoss,
    "cosine-embedding": embedding.CosineEmbeddingLoss,
    "ctc": sequence.CTCLoss,
})


_ELSEWHERE: Mapping[str, str] = MappingProxyType({
    "sparse-categorical-crossentropy": "cross-entropy", "categorical-crossentropy": "cross-entropy", "softmax-cross-entropy": "cross-entropy",
    "binary-crossentropy": "bce-with-logits", "binary-cross-entropy": "bce-with-logits", "bce": "bce-with-logits", "mean-squared-error": "mse", "l2": "mse",
    "mean-absolute-error": "l1", "mae": "l1",
})
"""What other libraries call these losses -> their names here, for hints."""


def losses_by_name() -> Mapping[str, type[Loss]]:
    """Return the classes of all losses that can be chosen by name, read-only."""
    return _LOSSES


def loss_by_name(name: str, **options: Any) -> Loss:
    """Return a new loss.

    name: one of losses_by_name(); underscores count as hyphens. options: keyword arguments of its class. Raises InvalidArgumentError for an unknown name
    or option."""
    found = _LOSSES.get(name.lower().replace("_", "-"))
    if found is None:
        spellings = {spelling.lower(): known for known, loss in _LOSSES.items() for spelling in (known, loss.__name__)}
        known = _ELSEWHERE.get(name.replace("_", "-").lower())
        close = {known: None} if known else dict.fromkeys(spellings[s] for s in difflib.get_close_matches(name.replace("_", "-").lower(), spellings))
        hint = f" (did you mean {' or '.join(map(repr, close))}?)" if close else ""
        raise InvalidArgumentError(f"expected the name of a loss, one of {', '.join(_LOSSES)}, got {name!r}{hint}")
    try:
        return found(**options)
    except TypeError as error:
        raise InvalidArgumentError(f"expected options of {found.__name__}, got {options}: {error}") from error


def loss_inputs(loss: LossType | Block | str | None, model: Any, loss_input_names: Sequence[str] | None = None) -> list[str]:
    """Return the outputs of a forward model that a loss is computed from: what a metric compares with the target.

    Named as additional_output_names, they are returned by train steps and eval steps after the loss. loss: as in generate_artifacts; None returns [],
    since the model's first output is then the loss. For a block that is not one of ortrain's losses, the first output. model: a path, bytes, an
    onnx.ModelProto or an ir.Model. loss_input_names: as in generate_artifacts.

    Raises OutputNotFoundError when the model lacks one of the outputs, InvalidArgumentError when it has too few of them or for an unknown loss name."""
    if loss is None:
        return []
    outputs = list(as_model(model).graph.outputs)
    chosen = list(loss_input_names or outputs)
    if isinstance(loss, WeightedSum):
        wanted = list(dict.fromkeys(name for term in loss.terms for name in term.outputs))
    else:
        block = loss_by_name(loss) if isinstance(loss, str) else loss
        count = len(block.predictions) if isinstance(block, Loss) else 1
        if len(chosen) < count:
            raise InvalidArgumentError(f"expected a model with {count} outputs for {type(block).__name__}, got {chosen}")
        wanted = chosen[:count]
    for name in wanted:
        if name not in outputs:
            raise OutputNotFoundError(f"expected outputs of the model for the loss, one of {outputs}, got {name!r}")
    return wanted
