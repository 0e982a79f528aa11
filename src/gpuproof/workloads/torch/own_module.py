"""A module of the user's own: imported, constructed, and tried once, so that a wrong shape is no figure."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from torch import nn

from gpuproof.base.errors import UsageError
from gpuproof.workloads.info.base import InputShape
from gpuproof.workloads.torch.trial_run import try_once


def build_own(path: str, options: Mapping[str, Any], shape: InputShape) -> nn.Module:
    """Construct the class at `package.module:Class` with the number of classes and the options.

    Raises:
        UsageError: it cannot be imported, is no module, or does not map images to scores of the classes.
    """
    module = _class_at(path)(num_classes=shape.num_targets, **options)
    if not isinstance(module, nn.Module):
        raise UsageError(
            f"{path} makes a {type(module).__name__}, and no torch.nn.Module", place="model.name"
        )
    try_once(
        module,
        path,
        shape,
        next_step="Return one score for each of num_classes, and check data.image_size",
    )
    return module


def _class_at(path: str) -> Any:
    module_name, _, class_name = path.partition(":")
    try:
        return getattr(import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"{path} cannot be imported: {error}",
            place="model.name",
            next_step="Install its package where the worker runs, or name its folder in PYTHONPATH: "
            "the working directory is not searched",
        ) from error
