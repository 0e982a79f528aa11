"""Two workloads of known cost, registered through the public API: `sleep` and `dense`.

`sleep` waits a fixed time in its forward pass, so that what gpuproof reports can be compared with a known
value. `dense` is one matrix product, the shortest real training step. This half is torch-free.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuproof.workloads.info.base import InputShape, Work, WorkloadInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepOptions:
    """Duration of the sleep in one forward pass, in seconds."""

    sleep_s: float = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseOptions:
    """Number of input and output features of the only layer."""

    width: int = 128


def _sleep_shape(_options: SleepOptions, _image_size: int | None, _num_classes: int | None) -> InputShape:
    return InputShape(kind="features", shape=(1,), num_targets=1)


def _sleep_work(_options: SleepOptions, _shape: InputShape) -> Work:
    return Work(num_parameters=1, forward_flops=1, training_flops=1)


def _dense_shape(options: DenseOptions, _image_size: int | None, _num_classes: int | None) -> InputShape:
    return InputShape(kind="features", shape=(options.width,), num_targets=options.width)


def _dense_work(options: DenseOptions, _shape: InputShape) -> Work:
    forward = 2 * options.width**2
    return Work(
        num_parameters=options.width * (options.width + 1), forward_flops=forward, training_flops=2 * forward
    )


SLEEP = WorkloadInfo(
    name="sleep",
    summary="sleeps a fixed time per step and computes next to nothing",
    item="samples",
    options_type=SleepOptions,
    input_shape=_sleep_shape,
    work=_sleep_work,
    implementation="benchmark_modules:build_sleep",
    loss="mean_squared_error",
)
DENSE = WorkloadInfo(
    name="dense",
    summary="one fully connected layer",
    item="samples",
    options_type=DenseOptions,
    input_shape=_dense_shape,
    work=_dense_work,
    implementation="benchmark_modules:build_dense",
    loss="mean_squared_error",
)
