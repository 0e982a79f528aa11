"""Is the data set where it should be, does it fill a batch, and does the workload take what it holds?

How many classes a folder of images has, and which ids a file of tokens, is seen when they are prepared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuproof.config.rules.base import Refusal, Refusals
from gpuproof.config.rules.workload import ChosenWorkload

if TYPE_CHECKING:
    from gpuproof.config.models import RunConfig

CLASSES = {"digits": 10, "CIFAR10": 10, "CIFAR100": 100, "FashionMNIST": 10}
"""Classes in each labelled data set; a model with fewer outputs has no place for some labels."""
FETCHED = ("CIFAR10", "CIFAR100", "FashionMNIST")
"""What has an address and a checksum."""
CHANNELS = {"digits": 1, "CIFAR10": 3, "CIFAR100": 3, "FashionMNIST": 1, "ImageFolder": 3}
"""Of the images in each set; one channel is repeated for a model that takes more."""


def epoch_holds_a_batch(config: RunConfig) -> Refusals:
    """Refuse an epoch of fewer samples than a batch has."""
    data = config.data
    if data.name == "synthetic" and data.samples_per_epoch < data.batch_size:
        yield Refusal(
            keys=("data.samples_per_epoch", "data.batch_size"),
            cause=f"an epoch of {data.samples_per_epoch} samples holds no batch of {data.batch_size}",
            next_step=f"Set data.samples_per_epoch to {data.batch_size} or more",
        )


def data_has_a_place(config: RunConfig) -> Refusals:
    """Ask for the path of a data set that is read from one."""
    name = config.data.name
    if name not in ("synthetic", "digits") and config.data.path is None:
        kind, example = ("file", "./tokens.bin") if name == "tokens" else ("folder", "./data")
        yield Refusal(
            keys=("data.name", "data.path"),
            cause=f"{name} is read from a {kind}, but data.path is null",
            next_step=f"Set data.path to the {kind} that holds it, for example {example}",
        )


def held_out_is_of_files_in_a_pool(config: RunConfig) -> Refusals:
    """Refuse to hold out samples of a loader, or for nobody; of data without files the key is not applied."""
    data = config.data
    if not data.held_out or data.name not in ("digits", *FETCHED):
        return
    if data.loading != "device":
        yield Refusal(
            keys=("data.held_out", "data.loading"),
            cause=f"samples are held out of {data.name} on the device, and a loader gives all of them",
            next_step="Set data.held_out to 0, or data.loading to device",
        )
    elif not config.benchmark.evaluate_after:
        yield Refusal(
            keys=("data.held_out", "benchmark.evaluate_after"),
            cause="samples are held out and nothing looks at them",
            next_step="Set benchmark.evaluate_after to true, or data.held_out to 0",
        )


def download_has_archive(config: RunConfig) -> Refusals:
    """Refuse to fetch what has no archive."""
    if config.data.download and config.data.name not in FETCHED:
        yield Refusal(
            keys=("data.download", "data.name"),
            cause=f"only {', '.join(FETCHED)} can be fetched, and data.name is {config.data.name}",
            next_step="Set data.download to false",
        )


def download_keys_need_a_download(config: RunConfig) -> Refusals:
    """Refuse an address or a checksum that nothing would use."""
    data = config.data
    keys = [key for key in ("download_url", "download_checksum") if getattr(data, key) is not None]
    if keys and not data.download:
        yield Refusal(
            keys=(f"data.{keys[0]}", "data.download"),
            cause=f"data.{keys[0]} is set, but data.download is false: nothing is fetched",
            next_step=f"Set data.download to true, or data.{keys[0]} to null",
        )


def one_checksum_is_of_one_archive(config: RunConfig) -> Refusals:
    """Refuse a checksum for a data set of several files."""
    data = config.data
    if data.name == "FashionMNIST" and data.download_checksum is not None:
        yield Refusal(
            keys=("data.download_checksum", "data.name"),
            cause="FashionMNIST is four files, each with the checksum that its authors' file has",
            next_step="Set data.download_checksum to null",
        )


def every_label_has_an_output(config: RunConfig) -> Refusals:
    """Refuse fewer outputs than the data set has classes."""
    classes, outputs = CLASSES.get(config.data.name, 0), config.model.num_classes
    if outputs is not None and outputs < classes:
        yield Refusal(
            keys=("model.num_classes", "data.name"),
            cause=f"{config.data.name} has {classes} classes, the model {outputs}",
            next_step=f"Set model.num_classes to {classes}",
        )


def workload_takes_the_samples(config: RunConfig, chosen: ChosenWorkload) -> Refusals:
    """Refuse images for a model of tokens, tokens for one of images, and images of other channels."""
    name, model, shape = config.data.name, chosen.info.name, chosen.shape
    kind = "tokens" if name == "tokens" else "image"
    if name == "synthetic":
        return
    if shape.kind != kind:
        held = "a file of tokens holds none" if name == "tokens" else f"{name} are images"
        yield Refusal(
            keys=("data.name", "model.name"),
            cause=f"{model} takes {shape.kind}{'s' * (shape.kind == 'image')}, and {held}",
            next_step=f"Use data.name=synthetic, or a model of {'tokens' if name == 'tokens' else 'images'}",
        )
    elif name in CHANNELS and CHANNELS[name] not in (1, shape.shape[0]):
        yield Refusal(
            keys=("data.name", "model.name"),
            cause=f"{name} are images of {CHANNELS[name]} channels, {model} takes {shape.shape[0]}",
            next_step=f"Another model, or where it has the option: model.options.channels={CHANNELS[name]}",
        )


def workload_distinguishes_the_classes(config: RunConfig, chosen: ChosenWorkload) -> Refusals:
    """Refuse a model that has by itself fewer classes than the data set."""
    classes = CLASSES.get(config.data.name, 0)
    if chosen.shape.kind == "image" and chosen.shape.num_targets < classes:
        yield Refusal(
            keys=("model.num_classes", "data.name", "model.name"),
            cause=f"{config.data.name} has {classes} classes, {chosen.info.name} by itself "
            f"{chosen.shape.num_targets}",
            next_step=f"Set model.num_classes to {classes}",
        )
