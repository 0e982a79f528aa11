"""`data`: where the samples come from."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from gpuproof.config.sections.base import Section, Text

DatasetName = Literal["synthetic", "digits", "CIFAR100"]
_DATASETS: dict[str, DatasetName] = {
    "synthetic": "synthetic",
    "digits": "digits",
    "cifar100": "CIFAR100",
}


def _canonical_dataset(name: Any) -> Any:
    return _DATASETS.get(name.casefold(), name) if isinstance(name, str) else name


class DataConfig(Section):
    """Where the samples come from."""

    name: Annotated[DatasetName, BeforeValidator(_canonical_dataset)] = Field(
        default="synthetic",
        description="The data set, upper or lower case; synthetic is drawn on the device.",
    )
    path: Text | None = Field(
        default=None, description="The folder that holds the data set; CIFAR100 needs one."
    )
    batch_size: int = Field(default=256, ge=1, le=2**20, description="Samples per rank in one micro-batch.")
    num_workers: int = Field(default=8, ge=0, le=1024, description="Processes per rank that load data.")
    pin_memory: bool = Field(
        default=True, description="Load into page-locked memory, which copies faster to a GPU."
    )
    prefetch_factor: int | None = Field(
        default=4, ge=1, le=1024, description="Batches that each loading process keeps ready."
    )
    persistent_workers: bool = Field(
        default=True, description="Keep the loading processes from epoch to epoch."
    )
    samples_per_epoch: int = Field(
        default=10_000,
        ge=1,
        le=10**9,
        description="Samples that one epoch of the endless synthetic stream counts.",
    )
    image_size: int | None = Field(
        default=None,
        ge=8,
        le=4096,
        description="Edge of the square images in pixels; null is the model's own.",
    )
