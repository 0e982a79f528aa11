"""torchvision classifiers with random weights. torchvision is imported only here, and only on request.

torchvision's wheel contains operators compiled for one build of torch. If they cannot be loaded, importing
torchvision fails, although no classifier uses them. In that case, two of these operators are declared without
an implementation.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gpuproof.base.errors import UsageError
from gpuproof.workloads.info.base import InputShape
from gpuproof.workloads.info.library_models import CHANNELS, IMAGE_SIZE, NUM_CLASSES
from gpuproof.workloads.torch.own_module import not_built, require_library, suggest, try_from_library

SIZE_KEYWORDS = {"vit_": "image_size", "maxvit_": "input_size"}
"""Model families built for one image size, with the keyword that sets the size."""


def input_shape(
    name: str, _options: Mapping[str, Any], image_size: int | None, num_classes: int | None
) -> InputShape:
    """Return images of the requested size, or else of the size used by the model's published weights.

    Raises:
        EnvironmentUnfitError: torchvision is not installed.
        UsageError: torchvision has no such classifier.
    """
    size = image_size or _native_size(_models_with(name), name)
    return InputShape(kind="image", shape=(CHANNELS, size, size), num_targets=num_classes or NUM_CLASSES)


def build(name: str, options: Mapping[str, Any], shape: InputShape) -> nn.Module:
    """Build the classifier; maps images to class scores.

    Raises:
        EnvironmentUnfitError: torchvision is not installed.
        UsageError: torchvision has no such classifier, or the model rejects the options or the images.
    """
    models = _models_with(name)
    keywords = {"num_classes": shape.num_targets, **_size_keyword(name, shape.shape[-1]), **options}
    try:
        with warnings.catch_warnings():
            # a warning about initial weights, because their defaults change in later versions
            warnings.simplefilter("ignore", FutureWarning)
            module: nn.Module = models.get_model(name, weights=None, **keywords)
    except (AttributeError, TypeError, ValueError) as error:
        next_step = f"Use keywords of torchvision.models.{name}"
        raise not_built("torchvision", name, error, next_step=next_step) from error
    if getattr(module, "aux_logits", False):
        raise UsageError(
            f"{name} has auxiliary outputs for training, which would be built but not trained",
            place="model.options.aux_logits",
            next_step="Set model.options.aux_logits to false",
        )
    try_from_library(module, f"torchvision/{name}", shape)
    return module


def _models_with(name: str) -> Any:
    require_library("torchvision")
    declare_missing_operators()
    from torchvision import models

    names = models.list_models(module=models)
    if name not in names:
        next_step = suggest(name, names, otherwise=f"Available classifiers: {', '.join(names)}")
        raise UsageError(f"torchvision has no classifier {name!r}", place="model.name", next_step=next_step)
    return models


def _native_size(models: Any, name: str) -> int:
    """Return the size for which the model's weights were trained; the most common one if several."""
    sizes = {weights.transforms.keywords["crop_size"] for weights in models.get_model_weights(name)}
    return IMAGE_SIZE if not sizes or IMAGE_SIZE in sizes else int(min(sizes))


def _size_keyword(name: str, size: int) -> dict[str, Any]:
    for family, keyword in SIZE_KEYWORDS.items():
        if name.startswith(family):
            return {keyword: (size, size) if keyword == "input_size" else size}
    return {}


@functools.cache
def declare_missing_operators() -> torch.library.Library | None:
    """Declare the operators torchvision needs on import, if its own cannot be loaded.

    Does nothing if torchvision is missing or intact. The declarations exist for as long as the returned
    object does.
    """
    spec = find_spec("torchvision")
    if spec is None or spec.origin is None:
        return None
    for extension in Path(spec.origin).parent.glob("_C*.so"):
        # compiled for another torch build: missing operators are declared below
        with contextlib.suppress(OSError):
            torch.ops.load_library(extension)
    if hasattr(torch.ops.torchvision, "nms"):
        return None
    library = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library
