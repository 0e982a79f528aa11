"""Perceptrons under TensorFlow's MirroredStrategy. The only node-side file to import tensorflow.

In: the settings of a case. Out: `MirroredTraining`. Calling it runs one step on all devices: forward, loss,
backward, gradient sum and update, compiled as one `tf.function`. One process stores a copy of the model on
each device; each copy trains on its own batches, which are drawn before the first step.
https://www.tensorflow.org/api_docs/python/tf/distribute/MirroredStrategy
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.records.case import Placement, TrainingWork
from gpuproof.records.run import Device
from gpuproof.records.work.training import Reduction
from gpuproof.records.work.window import GPU_WINDOW_S
from gpuproof.worker.data.pool_size import batches_read, num_pool_batches
from gpuproof.workloads.info.base import InputShape
from gpuproof.workloads.info.catalogue.mlp import MLP_DROPOUT, MLP_HIDDEN

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "1"}
"""Variables that keep TensorFlow's startup messages out of the rank's output; existing values are not
overridden."""


def import_tensorflow() -> Any:
    """Import TensorFlow.

    Raises:
        EnvironmentUnfitError: TensorFlow cannot be imported.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import tensorflow
    except ImportError as error:
        raise EnvironmentUnfitError(
            f"TensorFlow cannot be imported by {sys.executable}: {error}",
            next_step="Use a Python that has TensorFlow: --python PATH (pip install tensorflow there)",
        ) from error
    return tensorflow


def describe_framework(tf: Any) -> dict[str, Any]:
    """Return TensorFlow's version and build, and the GPUs it sees, in the form `describe_host` uses."""
    build = tf.sysconfig.get_build_info()
    return {
        "tensorflow": str(tf.__version__),
        "tensorflow_cuda": build.get("cuda_version"),
        "tensorflow_cudnn": build.get("cudnn_version"),
        "devices": [
            {"index": index, "name": _gpu_name(tf, gpu), "uuid": None}
            for index, gpu in enumerate(tf.config.list_physical_devices("GPU"))
        ],
    }


def _gpu_name(tf: Any, gpu: Any) -> str:
    return str(tf.config.experimental.get_device_details(gpu).get("device_name") or gpu.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirrors:
    """The devices, each with a copy of the model."""

    names: tuple[str, ...]
    """Names that TensorFlow uses for the devices."""
    first: Device
    is_gpu: bool

    @property
    def min_window_s(self) -> float:
        """Minimum duration of a window limited by steps, unless the recipe specifies another."""
        return GPU_WINDOW_S if self.is_gpu else 0.0

    def peak_memory_bytes(self, tf: Any) -> int | None:
        """Return the highest peak memory of any device since `forget_peak`; None on CPUs (not tracked)."""
        if not self.is_gpu:
            return None
        return max(int(tf.config.experimental.get_memory_info(name)["peak"]) for name in self.names)

    def forget_peak(self, tf: Any) -> None:
        """Reset the peak memory."""
        for name in self.names if self.is_gpu else ():
            tf.config.experimental.reset_memory_stats(name)


def set_process_up(
    tf: Any, work: TrainingWork, placement: Placement, *, threads: int, processor: str
) -> Mirrors:
    """Set this process's threads, precision and devices; must be called before anything has run.

    Raises:
        EnvironmentUnfitError: there are fewer devices than copies of the model.
    """
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(work.num_replicas)
    tf.config.experimental.enable_tensor_float_32_execution(work.training.precision == "tf32")
    tf.keras.utils.set_random_seed(work.training.seed)
    gpus = [] if placement.device == "cpu" else tf.config.list_physical_devices("GPU")
    if placement.device == "cpu" or (placement.device == "auto" and not (gpus or placement.devices)):
        return _processors(tf, work.num_replicas, processor)
    return _gpus(tf, gpus, work, placement)


def _processors(tf: Any, num_replicas: int, processor: str) -> Mirrors:
    """Divide the CPU into logical devices, since TensorFlow sees only one, however many cores it has."""
    (physical, *_) = tf.config.list_physical_devices("CPU")
    parts = [tf.config.LogicalDeviceConfiguration() for _ in range(num_replicas)]
    tf.config.set_logical_device_configuration(physical, parts)
    first = Device(kind="cpu", index=None, name=processor, uuid=None, memory_total_bytes=None)
    return Mirrors(names=tuple(f"CPU:{n}" for n in range(num_replicas)), first=first, is_gpu=False)


def _gpus(tf: Any, gpus: Sequence[Any], work: TrainingWork, placement: Placement) -> Mirrors:
    count = work.num_replicas
    indices = tuple(range(count)) if placement.devices is None else placement.devices[:count]
    if len(indices) < count or any(index >= len(gpus) for index in indices):
        raise EnvironmentUnfitError(
            f"{count} devices were requested, but TensorFlow sees {len(gpus)} GPU(s)",
            place="distributed.nproc",
            next_step="Lower it, or check CUDA_VISIBLE_DEVICES and the CUDA version this TensorFlow needs",
        )
    chosen = [gpus[index] for index in indices]
    tf.config.set_visible_devices(chosen, "GPU")
    limit_bytes = work.parallel.memory_limit_bytes
    for gpu in chosen:
        if limit_bytes is None:
            tf.config.experimental.set_memory_growth(gpu, True)
        else:
            part = tf.config.LogicalDeviceConfiguration(memory_limit=limit_bytes // 2**20)
            tf.config.set_logical_device_configuration(gpu, [part])
    first = Device(
        kind="cuda", index=indices[0], name=_gpu_name(tf, chosen[0]), uuid=None, memory_total_bytes=None
    )
    return Mirrors(names=tuple(f"GPU:{n}" for n in range(count)), first=first, is_gpu=True)


class MirroredTraining:
    """Runs steps of a model on all mirrors, over batches that were drawn in advance."""

    def __init__(self, tf: Any, work: TrainingWork, shape: InputShape, mirrors: Mirrors) -> None:
        self._tf = tf
        usual: Reduction = "nccl" if mirrors.is_gpu else "reduction_to_one_device"  # TensorFlow's own default
        asked = work.training.reduction
        self.reduction: Reduction = usual if asked == "auto" else asked
        self._strategy = tf.distribute.MirroredStrategy(
            devices=list(mirrors.names), cross_device_ops=_reducer(tf, self.reduction)
        )
        with self._strategy.scope():
            self.model = _perceptron(tf, work.model.name, shape)
            self._optimizer = _optimizer(tf, work)
        self._loss: Any = None
        self._train = tf.function(self._step_of_all)
        read = batches_read(work, min_window_s=mirrors.min_window_s)
        self._batches = self._drawn(work, shape, max_batches=read)
        self._position = 0
        self._global_batch = work.data.batch_size * len(mirrors.names)

    def __call__(self) -> None:
        """Run one step on all mirrors."""
        self._loss = self._train(*self._batches[self._position])
        self._position = (self._position + 1) % len(self._batches)

    @property
    def num_pool_batches(self) -> int:
        """Number of batches on each mirror."""
        return len(self._batches)

    @property
    def last_loss(self) -> float:
        """Loss in the latest step: the mean over samples, across all mirrors."""
        return float("nan") if self._loss is None else float(self._loss)

    def synchronize(self) -> None:
        """Wait until all devices have finished their work."""
        self._tf.test.experimental.sync_devices()

    def errors(self) -> tuple[float, float]:
        """Return the mean squared error and mean absolute error over all batches, without dropout."""
        tf, errors = self._tf, []
        for inputs, targets in self._batches:
            per_replica = self._strategy.run(self._errors_of_one, args=(inputs, targets))
            errors.append(self._strategy.reduce(tf.distribute.ReduceOp.MEAN, per_replica, axis=None))
        squared, absolute = tf.reduce_mean(tf.stack(errors), axis=0)
        return float(squared), float(absolute)

    def _errors_of_one(self, inputs: Any, targets: Any) -> Any:
        tf = self._tf
        away = self.model(inputs, training=False) - targets
        return tf.stack([tf.reduce_mean(tf.square(away)), tf.reduce_mean(tf.abs(away))])

    def _step_of_all(self, inputs: Any, targets: Any) -> Any:
        losses = self._strategy.run(self._step_of_one, args=(inputs, targets))
        return self._strategy.reduce(self._tf.distribute.ReduceOp.SUM, losses, axis=None)

    def _step_of_one(self, inputs: Any, targets: Any) -> Any:
        tf = self._tf
        with tf.GradientTape() as tape:
            errors = tf.reduce_mean(tf.square(self.model(inputs, training=True) - targets), axis=-1)
            loss = tf.nn.compute_average_loss(errors, global_batch_size=self._global_batch)
        variables = self.model.trainable_variables
        self._optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    def _drawn(
        self, work: TrainingWork, shape: InputShape, *, max_batches: int | None
    ) -> list[tuple[Any, Any]]:
        """Draw each mirror's batches on its own device, from the seed and the mirror's index."""
        count = num_pool_batches(shape, work.data.batch_size, max_batches=max_batches)

        def of_mirror(number: int) -> Callable[[Any], Any]:
            def draw(context: Any) -> Any:
                seed = (work.training.seed + context.replica_id_in_sync_group, number)
                return draw_features(self._tf, shape, work.data.batch_size, seed=seed)

            return draw

        spread = self._strategy.experimental_distribute_values_from_function
        return [self._parted(spread(of_mirror(number)), shape) for number in range(count)]

    def _parted(self, samples: Any, shape: InputShape) -> tuple[Any, Any]:
        width = shape.shape[0]
        inputs, targets = self._strategy.run(
            lambda drawn: (drawn[:, :width], drawn[:, width:]), args=(samples,)
        )
        return inputs, targets


def draw_features(tf: Any, shape: InputShape, num_samples: int, *, seed: tuple[int, int]) -> Any:
    """Draw features and targets as in S2's data set; two of the features depend on the first one."""
    width = shape.shape[0]
    drawn = tf.random.stateless_normal((num_samples, width + shape.num_targets), seed=seed)
    if width < 3:
        return drawn
    first, second, third = drawn[:, :1], drawn[:, 1:2], drawn[:, 2:3]
    second = 0.7 * first + 0.3 * second
    third = 0.5 * first - 0.3 * second + 0.4 * third
    return tf.concat([first, second, third, drawn[:, 3:]], axis=1)


def _reducer(tf: Any, reduction: Reduction) -> Any:
    of = tf.distribute
    reducers = {
        "nccl": of.NcclAllReduce,
        "hierarchical_copy": of.HierarchicalCopyAllReduce,
        "reduction_to_one_device": of.ReductionToOneDevice,
    }
    return reducers[reduction]()


def _perceptron(tf: Any, name: str, shape: InputShape) -> Any:
    layers = [tf.keras.Input(shape.shape)]
    for width in MLP_HIDDEN[name]:
        layers += [
            tf.keras.layers.Dense(width, activation="relu"),
            tf.keras.layers.Dropout(MLP_DROPOUT[name]),
        ]
    return tf.keras.Sequential([*layers, tf.keras.layers.Dense(shape.num_targets)])


def _optimizer(tf: Any, work: TrainingWork) -> Any:
    training, optimizers = work.training, tf.keras.optimizers
    if training.optimizer == "SGD":
        return optimizers.SGD(training.learning_rate, momentum=training.momentum)
    assert training.optimizer == "Adam", "the recipe was checked"
    return optimizers.Adam(training.learning_rate)
