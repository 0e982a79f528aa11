"""The user's own module: imported, constructed, and tried once, so that a wrong shape is never measured.

The same functions try out library models. Input: a module, and the input and scores that the case expects.
Output: nothing, or an error.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from gpuproof.accelerators.base import OutOfMemory
from gpuproof.base.errors import EnvironmentUnfitError, UsageError
from gpuproof.workloads.info.base import InputShape

TRIAL_BATCH = 2
"""Batch size for the trial run: some layers do not accept a batch of one."""
PLURALS = {"image": "images", "features": "features", "tokens": "tokens"}


def build_own(path: str, options: Mapping[str, Any], shape: InputShape) -> nn.Module:
    """Instantiate the class at `package.module:Class`, with the number of classes and the options.

    Raises:
        UsageError: the class cannot be imported, is not a module, or does not map images to class scores.
    """
    module = _class_at(path)(num_classes=shape.num_targets, **options)
    if not isinstance(module, nn.Module):
        raise UsageError(f"{path} returns {type(module).__name__}, not a torch.nn.Module", place="model.name")
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
            next_step="Install its package where the worker runs, or add its folder to "
            "PYTHONPATH: the working directory is not searched",
        ) from error


def blank_batch(module: nn.Module, shape: InputShape) -> torch.Tensor:
    """Return two blank images, or two sequences of token 0, on the module's device."""
    weight = next(module.parameters(), None)
    dtype = torch.long if shape.kind == "tokens" else torch.float32
    device = None if weight is None else weight.device
    return torch.zeros(TRIAL_BATCH, *shape.shape, dtype=dtype, device=device)


def try_once(module: nn.Module, name: str, shape: InputShape, *, next_step: str) -> None:
    """Run a blank batch through the module in evaluation mode, then restore its mode.

    Raises:
        UsageError: the module does not map images, or tokens, to scores.
    """
    batch = blank_batch(module, shape)
    was_training = module.training
    module.eval()
    with torch.no_grad():
        scores = module(batch)
    module.train(was_training)
    positions = shape.shape if shape.kind == "tokens" else ()
    expected = (TRIAL_BATCH, *positions, shape.num_targets)
    actual = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
    if actual != expected:
        taken = f"{PLURALS[shape.kind]} {tuple(batch.shape)}"
        raise UsageError(
            f"{name} maps {taken} to {actual}, not to scores {expected}",
            place="model.name",
            next_step=next_step,
        )


def try_from_library(module: nn.Module, name: str, shape: InputShape) -> None:
    """Run a blank batch through a library model; if that fails, the case is at fault.

    Raises:
        UsageError: the model does not accept such input, or returns no scores.
    """
    what = f"images of {shape.shape[-1]} pixels" if shape.kind == "image" else "these tokens"
    try:
        try_once(
            module,
            name,
            shape,
            next_step="Choose another model: this one is not a classifier for its input",
        )
    except OutOfMemory:
        raise
    except (AssertionError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise UsageError(
            f"{name} does not accept {what}: {one_line(error)}",
            place="data.image_size" if shape.kind == "image" else "model.options",
            next_step="Omit data.image_size to use the model's own size"
            if shape.kind == "image"
            else "Check the sizes in model.options",
        ) from error


def one_line(error: Exception) -> str:
    r"""Return a library's error message on one line.

    >>> one_line(TypeError("field 'depth':\n  expected int"))
    "TypeError: field 'depth': expected int"
    """
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def require_library(name: str) -> None:
    """Check that a library is installed, without importing it.

    Raises:
        EnvironmentUnfitError: the library is not installed.
    """
    if find_spec(name) is None:
        raise EnvironmentUnfitError(
            f"{name} is not installed where the worker runs",
            place="model.name",
            next_step=f"pip install {name}",
        )


def suggest(name: str, names: Iterable[str], *, otherwise: str) -> str:
    """Return a next step for a misspelt name: similar names, or `otherwise` if there are none."""
    close = difflib.get_close_matches(name, names, n=3)
    return f"Close to it: {', '.join(close)}" if close else otherwise


def not_built(library: str, name: str, error: Exception, *, next_step: str) -> UsageError:
    """Return an error for options with which a library cannot build a model."""
    return UsageError(
        f"{library} cannot build {name} with these options: {one_line(error)}",
        place="model.options",
        next_step=next_step,
    )
