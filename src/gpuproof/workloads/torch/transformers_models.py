"""transformers models with random weights, given a type and sizes; the hub is never contacted.

transformers is imported only here, and only on request. The options are fields of the type's own
configuration, plus `seq_len`, the length of a sequence, which is not a size of the model.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from gpuproof.base.errors import UsageError
from gpuproof.workloads.info.base import InputShape
from gpuproof.workloads.info.library_models import (
    CHANNELS,
    IMAGE_SIZE,
    NUM_CLASSES,
    SEQ_LEN,
    TASKS,
    choose_task,
)
from gpuproof.workloads.torch.own_module import (
    not_built,
    one_line,
    require_library,
    suggest,
    try_from_library,
)
from gpuproof.workloads.torch.torchvision_models import declare_missing_operators

CLASSES = {
    "image": "AutoModelForImageClassification",
    "causal": "AutoModelForCausalLM",
    "masked": "AutoModelForMaskedLM",
}


class Scores(nn.Module):
    """Wraps a model that outputs more than the scores, and returns only the scores."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map images (batch, channels, height, width) or tokens (batch, seq_len) to scores."""
        scores: torch.Tensor = self.model(inputs).logits
        return scores


def input_shape(
    name: str, options: Mapping[str, Any], image_size: int | None, num_classes: int | None
) -> InputShape:
    """Return the requested sizes, or else those in the type's own configuration.

    Raises:
        EnvironmentUnfitError: transformers is not installed.
        UsageError: transformers has no such type, or the type has no such field.
    """
    config = _configuration(name, options)
    if choose_task(name) == "image":
        size = image_size or getattr(config, "image_size", None) or IMAGE_SIZE
        sizes = (size, size) if isinstance(size, int) else tuple(size)
        channels = getattr(config, "num_channels", CHANNELS)
        return InputShape(kind="image", shape=(channels, *sizes), num_targets=num_classes or NUM_CLASSES)
    seq_len = options.get("seq_len", SEQ_LEN)
    longest = getattr(config, "max_position_embeddings", None)
    if isinstance(longest, int) and 0 < longest < seq_len:
        raise UsageError(
            f"transformers/{name} with these sizes accepts at most {longest} tokens, but seq_len "
            f"is {seq_len}",
            place="model.options.seq_len",
            next_step=f"Set it to {longest} or less, or raise the number of positions",
        )
    return InputShape(kind="tokens", shape=(seq_len,), num_targets=config.vocab_size)


def build(name: str, options: Mapping[str, Any], shape: InputShape) -> nn.Module:
    """Build the model; maps images to class scores, or tokens to vocabulary scores.

    Raises:
        EnvironmentUnfitError: transformers is not installed.
        UsageError: transformers has no such type, or the model rejects the options or the input.
    """
    task = choose_task(name)
    config = _configuration(name, options)
    if task == "image":
        config.num_labels = shape.num_targets
        if getattr(config, "image_size", None) is not None:
            config.image_size = shape.shape[-1]
    if "use_cache" not in options:
        config.use_cache = False  # whole sequences are read, so a cache would only cost time
    try:
        module = Scores(getattr(_transformers(), CLASSES[task]).from_config(config))
    except (AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
        next_step = f"Check the fields of {type(config).__name__} that depend on each other"
        raise not_built("transformers", name, error, next_step=next_step) from error
    try_from_library(module, f"transformers/{name}", shape)
    return module


def _transformers() -> Any:
    require_library("transformers")
    # Must be set before the import, which reads these variables, so that names are never looked up on the
    # hub.
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    declare_missing_operators()
    import transformers

    # The warnings concern special tokens, which are meaningless with random weights.
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    return transformers


def _configuration(name: str, options: Mapping[str, Any]) -> Any:
    """Return the type's configuration with the options applied; each must be an existing field."""
    transformers = _transformers()
    model_type = name.partition(":")[0]
    types = sorted(transformers.CONFIG_MAPPING.keys())
    if model_type not in types:
        hint = suggest(model_type, types, otherwise=f"Available types: {', '.join(types)}")
        raise UsageError(f"transformers has no model type {model_type!r}", place="model.name", next_step=hint)
    fields = {option: value for option, value in options.items() if option != "seq_len"}
    config = transformers.AutoConfig.for_model(model_type)
    _check_task(name, config)
    for field in fields:
        if not hasattr(config, field):
            raise UsageError(
                f"the configuration of {model_type} has no field {field!r}",
                place=f"model.options.{field}",
                next_step=suggest(field, config.to_dict(), otherwise=f"See {type(config).__name__}"),
            )
    try:
        return transformers.AutoConfig.for_model(model_type, **fields)
    except Exception as error:
        raise UsageError(
            f"{model_type} does not accept this configuration: {one_line(error)}",
            place="model.options",
            next_step=f"See the fields of {type(config).__name__}",
        ) from error


def _check_task(name: str, config: Any) -> None:
    """Reject a task if transformers has no model of this type for it."""
    transformers = _transformers()
    families = {task: getattr(transformers, CLASSES[task]) for task in TASKS}
    possible = [task for task in TASKS if type(config) in families[task]._model_mapping]
    if choose_task(name) in possible:
        return
    model_type = name.partition(":")[0]
    others = " or ".join(f"transformers/{model_type}:{task}" for task in possible)
    raise UsageError(
        f"transformers has no {CLASSES[choose_task(name)]} of type {model_type}",
        place="model.name",
        next_step=f"Write {others}" if others else "Choose another type",
    )
