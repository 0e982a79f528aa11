"""Look up a workload: registered, from a library, or the user's `python:package.module:Class`.

The user's class is a `torch.nn.Module` that classifies images. It is constructed on the node, with
`num_classes` and the options as keyword arguments. Here, only its name is checked, since importing the class
would import torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from gpuproof.base import registry
from gpuproof.base.errors import UsageError
from gpuproof.records.work.data import OWN_MODULE
from gpuproof.workloads.info.base import InputShape, WorkloadInfo

_NAME = r"[^\W\d]\w*"
TORCHVISION = re.compile(
    r"alexnet|googlenet|inception_v3|maxvit_t|convnext_(tiny|small|base|large)|densenet(121|161|169|201)|"
    r"efficientnet_(b[0-7]|v2_[sml])|mnasnet(0_5|0_75|1_0|1_3)|mobilenet_v(2|3_large|3_small)|"
    r"regnet_([xy]_(400mf|800mf|1_6gf|3_2gf|8gf|16gf|32gf)|y_128gf)|resnet(18|34|50|101|152)|"
    r"resnext(50_32x4d|101_32x8d|101_64x4d)|shufflenet_v2_x(0_5|1_0|1_5|2_0)|squeezenet1_[01]|"
    r"swin(_v2)?_[tsb]|vgg(11|13|16|19)(_bn)?|vit_(b_16|b_32|l_16|l_32|h_14)|wide_resnet(50|101)_2"
)
"""torchvision image classifiers with unambiguous bare names; they exist in 0.19 and in 0.28."""
_PATH = re.compile(rf"{_NAME}(\.{_NAME})*:{_NAME}")


class OwnModel(WorkloadInfo):
    """A user's own class as a workload. Its cost is counted on the node."""

    __slots__ = ()

    def resolve_implementation(self) -> Callable[[Any, InputShape], Any]:
        """Return a function that imports and builds the class; called only on the node."""
        return partial(super().resolve_implementation(), self.name.removeprefix(OWN_MODULE))


def find_workload(name: str) -> WorkloadInfo:
    """Return the description of the workload called `name`.

    Raises:
        UsageError: nothing is registered under that name, or it is not a valid name of a class or model.
    """
    if name.startswith(OWN_MODULE):
        return _own_model(name)
    is_registered = name in registry.names(registry.WORKLOADS)
    if TORCHVISION.fullmatch(name) and not is_registered:
        name = f"torchvision/{name}"
    if "/" in name or not is_registered:
        from gpuproof.workloads.info.library_models import library_model

        if (library := library_model(name)) is not None:
            return library
    try:
        info = registry.load(registry.WORKLOADS, name)
    except UsageError as error:
        raise _or_of_a_library(error, name) from error
    assert isinstance(info, WorkloadInfo)
    return info


def _or_of_a_library(error: UsageError, name: str) -> UsageError:
    """For an unknown name, explain how to request a library model with that name."""
    if name in registry.names(registry.WORKLOADS) or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        return error
    next_step = f"{error.next_step}. From a library: torchvision/{name}, timm/{name} or transformers/{name}"
    return UsageError(error.cause, place=error.place, next_step=next_step)


def _own_model(name: str) -> OwnModel:
    if not _PATH.fullmatch(name.removeprefix(OWN_MODULE)):
        raise UsageError(
            f"{name!r} is not the name of a class",
            place="model.name",
            next_step=f"Write {OWN_MODULE}package.module:Class",
        )
    from gpuproof.workloads.info.library_models import unknown_work

    return OwnModel(
        name=name,
        summary="a module of your own",
        item="samples",
        options_type=dict,
        input_shape=_input_shape,
        work=unknown_work,
        implementation="gpuproof.workloads.torch.own_module:build_own",
        loss="cross_entropy",
    )


def _input_shape(options: Mapping[str, Any], image_size: int | None, num_classes: int | None) -> InputShape:
    if "num_classes" in options:
        raise UsageError(
            "the number of classes has its own key",
            place="model.options.num_classes",
            next_step="Set model.num_classes",
        )
    from gpuproof.workloads.info.library_models import IMAGE_SIZE, NUM_CLASSES

    size = image_size or IMAGE_SIZE
    return InputShape(kind="image", shape=(3, size, size), num_targets=num_classes or NUM_CLASSES)
