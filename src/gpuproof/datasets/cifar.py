"""CIFAR-10 and CIFAR-100 from the files of their Python versions.

The files are pickles, which may run code when they are opened: here only numpy's arrays are let through.
Source: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009,
https://www.cs.toronto.edu/~kriz/cifar.html.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpuproof.base.errors import MissingDataError, UsageError
from gpuproof.base.files import open_plain
from gpuproof.datasets.catalogue import Say
from gpuproof.datasets.download import Archive, fetch
from gpuproof.records.dataset_files import TensorFileHeader, write_tensor_file
from gpuproof.records.work.data import DataSpec

HOME = "https://www.cs.toronto.edu/~kriz/"
ALLOWED = {
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("_codecs", "encode"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cifar:
    """One of the two data sets, as its authors packed it."""

    title: str
    num_classes: int
    folder: str
    files: dict[str, tuple[str, ...]]
    """Of each part, in order."""
    labels: bytes
    archive: Archive

    @property
    def all_files(self) -> tuple[str, ...]:
        """The files of all parts."""
        return tuple(file for part in self.files.values() for file in part)


SETS = {
    "CIFAR10": Cifar(
        title="CIFAR-10",
        num_classes=10,
        folder="cifar-10-batches-py",
        files={"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)},
        labels=b"labels",
        archive=Archive(url=f"{HOME}cifar-10-python.tar.gz", checksum="md5:c58f30108f718f92721af3b95e74349a"),
    ),
    "CIFAR100": Cifar(
        title="CIFAR-100",
        num_classes=100,
        folder="cifar-100-python",
        files={"train": ("train",), "test": ("test",)},
        labels=b"fine_labels",
        archive=Archive(
            url=f"{HOME}cifar-100-python.tar.gz", checksum="md5:eb9058c3a382ffc7106e4002c42a8d85"
        ),
    ),
}

NOT_A_CIFAR_FILE = (
    *(pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError),  # what a bad pickle raises
    *(KeyError, TypeError, ValueError, OverflowError),  # what a good one of something else does
    *(MemoryError, RecursionError, SystemError),  # and one that claims a size or a depth without end
)


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR file needs")
        return super().find_class(module, name)


def prepare_cifar(path: Path, data: DataSpec, *, say: Say) -> TensorFileHeader:
    """Write one part's images as (n, 3, 32, 32) uint8 with their labels; returns the header.

    Raises:
        UsageError: a file is not there, or not what it says.
        EnvironmentUnfitError: the data set was to be fetched, and could not be.
    """
    cifar, source = SETS[data.name], Path(data.path or "data")
    folder = source / cifar.folder
    if data.download and not all((folder / name).is_file() for name in cifar.all_files):
        archive = cifar.archive.replaced_by(data.download_url, data.download_checksum)
        fetch(archive, source, folder=cifar.folder, say=say)
    files = [folder / name for name in cifar.files[data.split]]
    for file in files:
        _require(file, cifar)
    parts = [_read(file, cifar) for file in files]
    pixels = np.concatenate([pixels for pixels, _ in parts])
    return write_tensor_file(
        path,
        name=data.name,
        shape=(len(pixels), 3, 32, 32),
        num_classes=cifar.num_classes,
        images=pixels.tobytes(),
        labels=np.concatenate([labels for _, labels in parts]).tobytes(),
    )


def _require(file: Path, cifar: Cifar) -> None:
    if not file.is_file():
        raise MissingDataError(
            f"{cifar.title} is not there: expected the file {file}",
            place="data.path",
            next_step="Add --data.download=true to fetch it, or, without a network, unpack "
            f"{cifar.archive.name} (from {HOME}) in {file.parent.parent.absolute()}; or measure other data: "
            "--data.name=synthetic",
        )


def _read(file: Path, cifar: Cifar) -> tuple[np.ndarray, np.ndarray]:
    try:
        with open_plain(file) as stream:
            content = _ArraysOnly(stream, encoding="bytes").load()
        pixels = np.asarray(content[b"data"], dtype=np.uint8)
        labels = np.asarray(content[cifar.labels], dtype=np.uint8)
    except (OSError, *NOT_A_CIFAR_FILE) as error:
        raise UsageError(f"not a {cifar.title} file: {error}", place=str(file)) from error
    fits = labels.ndim == 1 and labels.size and pixels.shape == (labels.size, 3072)
    if not fits or labels.max() >= cifar.num_classes:
        raise UsageError(
            f"not a {cifar.title} file: {pixels.shape} pixels, {labels.size} labels", place=str(file)
        )
    return pixels, labels
