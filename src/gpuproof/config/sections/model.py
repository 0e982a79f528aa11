"""`model`: what is trained or run."""

from __future__ import annotations

from pydantic import Field, JsonValue

from gpuproof.config.sections.base import ConfigSection, Text


class ModelConfig(ConfigSection):
    """What is trained or run."""

    name: Text = Field(
        default="resnet50",
        description="The registered name of a workload; torchvision/NAME, timm/NAME or transformers/TYPE, a "
        "library's model with random weights; or python:package.module:Class, a module of your own.",
    )
    num_classes: int | None = Field(
        default=None,
        ge=2,
        le=10**6,
        description="Classes that the model tells apart; null is its own number.",
    )
    channels_last: bool = Field(default=True, description="Lay images out as NHWC in memory (CUDA only).")
    options: dict[str, JsonValue] = Field(
        default_factory=dict, description="The workload's own options, checked by the workload."
    )
