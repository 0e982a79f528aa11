"""Multilayer perceptrons for regression on feature vectors."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from gpuproof.workloads.info.base import InputShape, TensorParallel, Work, WorkloadInfo, require_positive
from gpuproof.workloads.info.catalogue.counting import dense, sum_work


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpOptions:
    """Sizes of the input, layers and output in a multilayer perceptron."""

    input_dim: int = 50
    output_dim: int = 3

    def __post_init__(self) -> None:
        require_positive(self)


MLP_HIDDEN = {"medium": (256, 128, 64), "large": (1024, 1024, 512, 512, 256)}
MLP_DROPOUT = {"medium": 0.2, "large": 0.3}


def _mlp(name: str) -> WorkloadInfo:
    def input_shape(options: MlpOptions, _image_size: int | None, _num_classes: int | None) -> InputShape:
        return InputShape(kind="features", shape=(options.input_dim,), num_targets=options.output_dim)

    def work(options: MlpOptions, _shape: InputShape) -> Work:
        widths = (options.input_dim, *MLP_HIDDEN[name], options.output_dim)
        return sum_work([dense(fan_in, fan_out) for fan_in, fan_out in pairwise(widths)])

    def divided(_options: MlpOptions) -> dict[str, int]:
        """Return the names of the parts between the first and second layer in each pair."""
        widths = MLP_HIDDEN[name]
        return {f"hidden layer {number + 1}": widths[number] for number in range(0, len(widths), 2)}

    def num_whole_parameters(options: MlpOptions, _shape: InputShape) -> int:
        """Count the biases of the second layer in each pair, which are added after the sum over ranks."""
        return sum((*MLP_HIDDEN[name], options.output_dim)[1::2])

    return WorkloadInfo(
        name=name,
        summary=f"perceptron, hidden layers {MLP_HIDDEN[name]}, ReLU, dropout {MLP_DROPOUT[name]}",
        item="samples",
        options_type=MlpOptions,
        input_shape=input_shape,
        work=work,
        implementation=f"gpuproof.workloads.torch.mlp:build_{name}",
        loss="mean_squared_error",
        tensor_parallel=TensorParallel(
            plan="gpuproof.workloads.torch.tensor_plans:perceptron_plan",
            divided=divided,
            num_whole_parameters=num_whole_parameters,
        ),
    )


MEDIUM = _mlp("medium")
LARGE = _mlp("large")
