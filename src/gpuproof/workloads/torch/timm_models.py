"""timm models with random weights, as classifiers. timm is imported only here, and only on request."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from torch import nn

from gpuproof.base.errors import UsageError
from gpuproof.workloads.info.base import InputShape
from gpuproof.workloads.info.library_models import CHANNELS, IMAGE_SIZE, NUM_CLASSES
from gpuproof.workloads.torch.own_module import not_built, require_library, suggest, try_from_library
from gpuproof.workloads.torch.torchvision_models import declare_missing_operators


def input_shape(
    name: str, options: Mapping[str, Any], image_size: int | None, num_classes: int | None
) -> InputShape:
    """Return the requested image shape and classes, or else those in timm's model configuration.

    Raises:
        EnvironmentUnfitError: timm is not installed.
        UsageError: timm has no such model.
    """
    config = _configuration(name)
    channels, height, width = config.get("input_size") or (CHANNELS, IMAGE_SIZE, IMAGE_SIZE)
    sizes = (image_size, image_size) if image_size else (height, width)
    return InputShape(
        kind="image",
        shape=(options.get("in_chans", channels), *sizes),
        num_targets=num_classes or config.get("num_classes") or NUM_CLASSES,
    )


def build(name: str, options: Mapping[str, Any], shape: InputShape) -> nn.Module:
    """Build the model; maps images to class scores.

    Raises:
        EnvironmentUnfitError: timm is not installed.
        UsageError: timm has no such model, or the model rejects the options or the images.
    """
    config = _configuration(name)
    timm = _timm()
    keywords = {"num_classes": shape.num_targets, **options}
    if config.get("fixed_input_size") and tuple(config["input_size"])[1:] != shape.shape[1:]:
        keywords.setdefault("img_size", shape.shape[-1])
    try:
        module: nn.Module = timm.create_model(name, pretrained=False, **keywords)
    except (AssertionError, AttributeError, TypeError, ValueError) as error:
        next_step = f"Use keywords that timm.create_model accepts for {name}"
        raise not_built("timm", name, error, next_step=next_step) from error
    try_from_library(module, f"timm/{name}", shape)
    return module


def _timm() -> Any:
    require_library("timm")
    os.environ["HF_HUB_OFFLINE"] = "1"  # before timm, since the hub client reads the variables on import
    declare_missing_operators()
    import timm

    return timm


def _configuration(name: str) -> dict[str, Any]:
    """Return timm's configuration of the model: its input, its classes, and its fixed values."""
    timm = _timm()
    base, _, tag = name.partition(".")
    hint = "timm.list_models() lists the available models"
    if not timm.is_model(base):
        hint = suggest(base, timm.list_models(), otherwise=hint)
    elif tag and name not in (tagged := timm.list_models(f"{base}.*", pretrained=True)):
        hint = suggest(name, tagged, otherwise=f"Close to it: {base}")
    else:
        config = timm.get_pretrained_cfg(name)
        return config.to_dict() if config is not None else {}
    raise UsageError(f"timm has no model {name!r}", place="model.name", next_step=hint)
