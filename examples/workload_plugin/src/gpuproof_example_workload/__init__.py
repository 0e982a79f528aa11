"""The torch-free half of the workload: its options, its input, and its amount of work.

gpuproof imports this on the machine where the command is run, which may not have torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from gpuproof.workloads.info.base import InputShape, Work, WorkloadInfo, require_positive

CHANNELS, IMAGE_SIZE, NUM_CLASSES = 3, 32, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PerceptronOptions:
    """Options that `model.options` may set."""

    hidden: int = 128

    def __post_init__(self) -> None:
        """Reject a layer with no width; gpuproof shows the ValueError as an error in the recipe."""
        require_positive(self)


def _input_shape(_options: PerceptronOptions, image_size: int | None, num_classes: int | None) -> InputShape:
    """Describe one sample; None means the model's own default."""
    size = image_size or IMAGE_SIZE
    return InputShape(kind="image", shape=(CHANNELS, size, size), num_targets=num_classes or NUM_CLASSES)


def _work(options: PerceptronOptions, shape: InputShape) -> Work:
    """Count the parameters and the work per sample; a multiply-add is two operations.

    Training costs three times the forward pass, minus the gradient of the first layer's input.
    """
    inputs, hidden, classes = prod(shape.shape), options.hidden, shape.num_targets
    forward = 2.0 * hidden * (inputs + classes)
    return Work(
        num_parameters=(inputs + 1) * hidden + (hidden + 1) * classes,
        forward_flops=forward,
        training_flops=3 * forward - 2.0 * inputs * hidden,
    )


PERCEPTRON = WorkloadInfo(
    name="perceptron",
    summary="one hidden layer on images, an example plug-in",
    item="samples",
    options_type=PerceptronOptions,
    input_shape=_input_shape,
    work=_work,
    implementation="gpuproof_example_workload.model:build",
    loss="cross_entropy",
)
