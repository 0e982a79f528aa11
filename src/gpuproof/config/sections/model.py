"""`model`: what is trained or run."""

from __future__ import annotations

from pydantic import Field, JsonValue

from gpuproof.config.sections.base import ConfigSection
from gpuproof.records.work.options import Text


class ModelConfig(ConfigSection):
    """What is trained or run."""

    name: Text = "resnet50"
    """The registered name of a workload; torchvision/NAME, timm/NAME or transformers/TYPE, a library's model
    with random weights; or python:package.module:Class, a module of your own."""
    num_classes: int | None = Field(default=None, ge=2, le=10**6)
    """Number of classes; null is the model's default."""
    channels_last: bool = True
    """Lay images out as NHWC in memory (CUDA only)."""
    options: dict[str, JsonValue] = Field(default_factory=dict)
    """The workload's own options, checked by the workload."""
