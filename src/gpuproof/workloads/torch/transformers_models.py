"""Models of transformers with random weights, from a type and its sizes; the hub is never asked.

transformers is imported here alone, and only when asked for. The options are fields of the type's own
configuration; beside them `seq_len` is the length of a sequence, which is no size of the model.
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
    """A model whose output holds the scores beside much else, as a function to the scores alone."""

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
    """Return the sizes asked for, else those of the type's own configuration.

    Raises:
        EnvironmentUnfitError: transformers is not installed.
        UsageError: it has no such type, or the type has no such field.
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
            f"transformers/{name} with these sizes takes {longest} tokens at most, and seq_len is {seq_len}",
            place="model.options.seq_len",
            next_step=f"Set it to {longest} or less, or raise the number of positions",
        )
    return InputShape(kind="tokens", shape=(seq_len,), num_targets=config.vocab_size)


def build(name: str, options: Mapping[str, Any], shape: InputShape) -> nn.Module:
    """Build the model; maps images to scores of the classes, or tokens to scores of the vocabulary.

    Raises:
        EnvironmentUnfitError: transformers is not installed.
        UsageError: it has no such type, or the model does not take the options or the input.
    """
    task = choose_task(name)
    config = _configuration(name, options)
    if task == "image":
        config.num_labels = shape.num_targets
        if getattr(config, "image_size", None) is not None:
            config.image_size = shape.shape[-1]
    if "use_cache" not in options:
        config.use_cache = False  # whole sequences; a cache that nobody reads costs time
    try:
        module = Scores(getattr(_transformers(), CLASSES[task]).from_config(config))
    except (AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
        next_step = f"Look at the fields of {type(config).__name__} that go together"
        raise not_built("transformers", name, error, next_step=next_step) from error
    try_from_library(module, f"transformers/{name}", shape)
    return module


def _transformers() -> Any:
    require_library("transformers")
    # Before the import, which reads them: no name is ever looked up at the hub.
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    declare_missing_operators()
    import transformers

    # Its warnings are of tokens with a meaning, which random weights do not know.
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    return transformers


def _configuration(name: str, options: Mapping[str, Any]) -> Any:
    """Return the type's configuration with the options in it, each a field that it has."""
    transformers = _transformers()
    model_type = name.partition(":")[0]
    types = sorted(transformers.CONFIG_MAPPING.keys())
    if model_type not in types:
        hint = suggest(model_type, types, otherwise=f"There are {', '.join(types)}")
        raise UsageError(
            f"transformers has no type of model {model_type!r}", place="model.name", next_step=hint
        )
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
            f"{model_type} cannot be configured so: {one_line(error)}",
            place="model.options",
            next_step=f"See the fields of {type(config).__name__}",
        ) from error


def _check_task(name: str, config: Any) -> None:
    """Refuse a task that the library has no model of this type for."""
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
