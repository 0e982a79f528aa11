"""Which data sets there are, where a run keeps their samples, and who prepares them."""

from __future__ import annotations

from pathlib import Path

FILES = {"digits": "data/digits.tensors", "CIFAR100": "data/cifar100.tensors"}
"""Relative to the run directory. Samples of any other data set are drawn on the device."""
CHANNELS = {"digits": 1, "CIFAR100": 3}
"""Of the images in each file; one channel is repeated for a model that takes more."""


def prepare(name: str, run_folder: Path, *, source: Path | None) -> None:
    """Write the tensor file of a data set into the run, if it has one and it is not there yet.

    Raises:
        UsageError: the data set's own files are not at `source`.
        EnvironmentUnfitError: the package that brings it is not installed.
    """
    if name not in FILES or (path := run_folder / FILES[name]).exists():
        return
    path.parent.mkdir(exist_ok=True)
    if name == "digits":
        from gpuproof.datasets.digits import prepare_digits

        prepare_digits(path)
    else:
        from gpuproof.datasets.cifar import prepare_cifar100

        prepare_cifar100(path, source=source)
