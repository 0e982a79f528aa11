"""Does the data set exist, does it fill a batch, and does the workload accept its content?

The number of classes in a folder of images, and the ids in a file of tokens, are only known after
preparation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuproof.config.rules.base import Refusal, Refusals
from gpuproof.config.rules.workload import ChosenWorkload

if TYPE_CHECKING:
    from gpuproof.config.models import RunConfig

CLASSES = {"digits": 10, "CIFAR10": 10, "CIFAR100": 100, "FashionMNIST": 10}
"""Number of classes per labelled data set; a model with fewer outputs cannot represent all labels."""
FETCHED = ("CIFAR10", "CIFAR100", "FashionMNIST")
"""Data sets that have a URL and a checksum."""
CHANNELS = {"digits": 1, "CIFAR10": 3, "CIFAR100": 3, "FashionMNIST": 1, "ImageFolder": 3}
"""Channels of the images in each set; a single channel is repeated for a model that needs more."""


def epoch_holds_a_batch(config: RunConfig) -> Refusals:
    """Reject an epoch that has fewer samples than one batch."""
    data = config.data
    if data.name == "synthetic" and data.samples_per_epoch < data.batch_size:
        yield Refusal(
            keys=("data.samples_per_epoch", "data.batch_size"),
            cause=f"an epoch of {data.samples_per_epoch} samples does not fill a batch of {data.batch_size}",
            next_step=f"Set data.samples_per_epoch to {data.batch_size} or more",
        )


def data_has_a_place(config: RunConfig) -> Refusals:
    """Require a path for a data set that is read from disk."""
    name = config.data.name
    if name not in ("synthetic", "digits") and config.data.path is None:
        kind, example = ("file", "./tokens.bin") if name == "tokens" else ("folder", "./data")
        yield Refusal(
            keys=("data.name", "data.path"),
            cause=f"{name} is read from a {kind}, but data.path is null",
            next_step=f"Set data.path to the {kind} that contains it, for example {example}",
        )


def held_out_is_of_files_in_a_pool(config: RunConfig) -> Refusals:
    """Reject held-out samples with a loader, or if unused; data without files ignores the key."""
    data = config.data
    if not data.held_out or data.name not in ("digits", *FETCHED):
        return
    if data.loading != "device":
        yield Refusal(
            keys=("data.held_out", "data.loading"),
            cause=f"samples are held out of {data.name} on the device, but a loader returns all of them",
            next_step="Set data.held_out to 0, or data.loading to device",
        )
    elif not config.benchmark.evaluate_after:
        yield Refusal(
            keys=("data.held_out", "benchmark.evaluate_after"),
            cause="samples are held out but never used",
            next_step="Set benchmark.evaluate_after to true, or data.held_out to 0",
        )


def download_has_archive(config: RunConfig) -> Refusals:
    """Reject a request to download a data set that has no archive."""
    if config.data.download and config.data.name not in FETCHED:
        yield Refusal(
            keys=("data.download", "data.name"),
            cause=f"only {', '.join(FETCHED)} can be fetched, but data.name is {config.data.name}",
            next_step="Set data.download to false",
        )


def download_keys_need_a_download(config: RunConfig) -> Refusals:
    """Reject a URL or a checksum that has no effect."""
    data = config.data
    keys = [key for key in ("download_url", "download_checksum") if getattr(data, key) is not None]
    if keys and not data.download:
        yield Refusal(
            keys=(f"data.{keys[0]}", "data.download"),
            cause=f"data.{keys[0]} is set, but data.download is false: nothing is fetched",
            next_step=f"Set data.download to true, or data.{keys[0]} to null",
        )


def one_checksum_is_of_one_archive(config: RunConfig) -> Refusals:
    """Reject a checksum for a data set that consists of several files."""
    data = config.data
    if data.name == "FashionMNIST" and data.download_checksum is not None:
        yield Refusal(
            keys=("data.download_checksum", "data.name"),
            cause="FashionMNIST consists of four files, each with the checksum of its authors' file",
            next_step="Set data.download_checksum to null",
        )


def every_label_has_an_output(config: RunConfig) -> Refusals:
    """Reject a model with fewer outputs than the data set has classes."""
    classes, outputs = CLASSES.get(config.data.name, 0), config.model.num_classes
    if outputs is not None and outputs < classes:
        yield Refusal(
            keys=("model.num_classes", "data.name"),
            cause=f"{config.data.name} has {classes} classes, but the model has {outputs}",
            next_step=f"Set model.num_classes to {classes}",
        )


def workload_takes_the_samples(config: RunConfig, chosen: ChosenWorkload) -> Refusals:
    """Reject images for a token model, tokens for an image model, and a wrong number of channels."""
    name, model, shape = config.data.name, chosen.info.name, chosen.shape
    kind = "tokens" if name == "tokens" else "image"
    if name == "synthetic":
        return
    if shape.kind != kind:
        held = "a file of tokens contains none" if name == "tokens" else f"{name} are images"
        yield Refusal(
            keys=("data.name", "model.name"),
            cause=f"{model} expects {shape.kind}{'s' * (shape.kind == 'image')}, but {held}",
            next_step=f"Use data.name=synthetic, or a model of {'tokens' if name == 'tokens' else 'images'}",
        )
    elif name in CHANNELS and CHANNELS[name] not in (1, shape.shape[0]):
        yield Refusal(
            keys=("data.name", "model.name"),
            cause=f"{name} are images with {CHANNELS[name]} channels, but {model} expects {shape.shape[0]}",
            next_step=f"Set model.options.channels={CHANNELS[name]} if the model has it, or use another",
        )


def workload_distinguishes_the_classes(config: RunConfig, chosen: ChosenWorkload) -> Refusals:
    """Reject a model that has fewer classes by default than the data set."""
    classes = CLASSES.get(config.data.name, 0)
    if chosen.shape.kind == "image" and chosen.shape.num_targets < classes:
        yield Refusal(
            keys=("model.num_classes", "data.name", "model.name"),
            cause=f"{config.data.name} has {classes} classes, but {chosen.info.name} has "
            f"{chosen.shape.num_targets} by default",
            next_step=f"Set model.num_classes to {classes}",
        )
