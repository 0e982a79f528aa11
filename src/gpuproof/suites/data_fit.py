"""Does the model take what the data set holds? Asked before anything runs, of what is known without looking.

How many classes a folder of images has, and which ids a file of tokens, is seen when they are prepared.
"""

from __future__ import annotations

from gpuproof.config.models import RunConfig
from gpuproof.config.rules.recipe import CLASSES
from gpuproof.datasets.catalogue import CHANNELS
from gpuproof.errors import UsageError
from gpuproof.workloads.info.base import InputShape, WorkloadInfo


def refuse_other_data(config: RunConfig, info: WorkloadInfo, shape: InputShape) -> None:
    """Check that the data set's samples and labels are such as the model takes.

    Raises:
        UsageError: they are not.
    """
    name = config.data.name
    if name == "synthetic":
        return
    kind = "tokens" if name == "tokens" else "image"
    if shape.kind != kind:
        held = "a file of tokens holds none" if name == "tokens" else f"{name} are images"
        raise UsageError(
            f"{info.name} takes {shape.kind}{'s' * (shape.kind == 'image')}, and {held}",
            place="data.name",
            next_step=f"Use data.name=synthetic, or a model of {'tokens' if name == 'tokens' else 'images'}",
        )
    if name in CHANNELS:
        _refuse_other_images(name, info, shape)


def _refuse_other_images(name: str, info: WorkloadInfo, shape: InputShape) -> None:
    channels, classes = CHANNELS[name], CLASSES.get(name, 0)
    if channels not in (1, shape.shape[0]):
        raise UsageError(
            f"{name} are images of {channels} channels, {info.name} takes {shape.shape[0]}",
            place="data.name",
            next_step=f"Another model, or where it has the option: model.options.channels={channels}",
        )
    if shape.num_targets < classes:
        raise UsageError(
            f"{name} has {classes} classes, {info.name} by itself {shape.num_targets}",
            place="model.num_classes",
            next_step=f"Set model.num_classes to {classes}",
        )
