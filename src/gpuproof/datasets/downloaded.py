"""CIFAR-10, CIFAR-100 and Fashion-MNIST from their authors' files, downloaded on request.

CIFAR's files are pickles, which can run code when they are loaded, so only numpy arrays are allowed here.
Source: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009,
https://www.cs.toronto.edu/~kriz/cifar.html.

Fashion-MNIST's files are in idx format and stay gzip-compressed: two bytes of 0, the type (8: unsigned
bytes), the number of dimensions, each dimension in four bytes (big endian), then the values. Source: H. Xiao,
K. Rasul, R. Vollgraf, Fashion-MNIST, 2017, https://github.com/zalandoresearch/fashion-mnist.
"""

from __future__ import annotations

import gzip
import pickle
import zlib
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from gpuproof.base.errors import MissingDataError, UsageError
from gpuproof.base.files import open_plain
from gpuproof.datasets.catalogue import Say
from gpuproof.datasets.download import Archive, fetch, fetch_file
from gpuproof.records.dataset_files import TensorFileHeader, write_tensor_file
from gpuproof.records.work.data import DataSpec

CIFAR_HOME = "https://www.cs.toronto.edu/~kriz/"
ARRAY_CLASSES = {
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("_codecs", "encode"),
}
NOT_A_CIFAR_FILE = (
    # raised by an invalid pickle
    *(
        pickle.UnpicklingError,
        EOFError,
        AttributeError,
        ImportError,
        IndexError,
    ),
    *(KeyError, TypeError, ValueError, OverflowError),  # raised by a valid pickle of something else
    *(MemoryError, RecursionError, SystemError),  # raised by a pickle that claims an unlimited size or depth
)
FASHION_MNIST_HOME = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
FASHION_MNIST_FOLDER = "fashion-mnist"
FASHION_MNIST_FILES = {
    "train": {
        "train-images-idx3-ubyte.gz": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "md5:25c81989df183df01b3e8a0aad5dffbe",
    },
    "test": {
        "t10k-images-idx3-ubyte.gz": "md5:bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "md5:bb300cfdad3c16e7a12a480ee83cd310",
    },
}
"""For each split, the files with its images and its labels, and their checksums."""
FASHION_MNIST_CLASSES = 10
EDGE = 28
UNSIGNED_BYTES = 8
MOST_BYTES = 2**28
"""Size limit for one unpacked file; the largest is 47 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cifar:
    """One of the two CIFAR data sets, as packaged by its authors."""

    title: str
    num_classes: int
    folder: str
    files: dict[str, tuple[str, ...]]
    """The files of each part, in order."""
    labels: bytes
    archive: Archive


CIFARS = {
    "CIFAR10": Cifar(
        title="CIFAR-10",
        num_classes=10,
        folder="cifar-10-batches-py",
        files={"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)},
        labels=b"labels",
        archive=Archive(
            url=f"{CIFAR_HOME}cifar-10-python.tar.gz", checksum="md5:c58f30108f718f92721af3b95e74349a"
        ),
    ),
    "CIFAR100": Cifar(
        title="CIFAR-100",
        num_classes=100,
        folder="cifar-100-python",
        files={"train": ("train",), "test": ("test",)},
        labels=b"fine_labels",
        archive=Archive(
            url=f"{CIFAR_HOME}cifar-100-python.tar.gz", checksum="md5:eb9058c3a382ffc7106e4002c42a8d85"
        ),
    ),
}


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ARRAY_CLASSES:
            raise pickle.UnpicklingError(f"it requests {module}.{name}, which no CIFAR file needs")
        return super().find_class(module, name)


def prepare_cifar(path: Path, data: DataSpec, *, say: Say) -> TensorFileHeader:
    """Write one split's images as (n, 3, 32, 32) uint8 with their labels; return the header.

    Raises:
        UsageError: a file is missing, or is not what it claims to be.
        EnvironmentUnfitError: the data set had to be downloaded, but the download failed.
    """
    cifar, source = CIFARS[data.name], Path(data.path or "data")
    folder = source / cifar.folder
    names = chain.from_iterable(cifar.files.values())
    if data.download and not all((folder / name).is_file() for name in names):
        archive = cifar.archive.replaced_by(data.download_url, data.download_checksum)
        fetch(archive, source, folder=cifar.folder, say=say)
    files = [folder / name for name in cifar.files[data.split]]
    for file in files:
        _require_cifar(file, cifar)
    parts = [_read_cifar(file, cifar) for file in files]
    pixels = np.concatenate([pixels for pixels, _ in parts])
    return write_tensor_file(
        path,
        name=data.name,
        shape=(len(pixels), 3, 32, 32),
        num_classes=cifar.num_classes,
        images=pixels.tobytes(),
        labels=np.concatenate([labels for _, labels in parts]).tobytes(),
    )


def _require_cifar(file: Path, cifar: Cifar) -> None:
    if not file.is_file():
        raise MissingDataError(
            f"{cifar.title} is missing: expected the file {file}",
            place="data.path",
            next_step="Add --data.download=true to download it, or, without a network, unpack "
            f"{cifar.archive.name} (from {CIFAR_HOME}) in "
            f"{file.parent.parent.absolute()}; or measure other data: "
            "--data.name=synthetic",
        )


def _read_cifar(file: Path, cifar: Cifar) -> tuple[np.ndarray, np.ndarray]:
    try:
        with open_plain(file) as stream:
            content = _ArraysOnly(stream, encoding="bytes").load()
        pixels = np.asarray(content[b"data"], dtype=np.uint8)
        labels = np.asarray(content[cifar.labels], dtype=np.uint8)
    except (OSError, *NOT_A_CIFAR_FILE) as error:
        raise UsageError(f"not a {cifar.title} file: {error}", place=str(file)) from error
    fits = labels.ndim == 1 and labels.size and pixels.shape == (labels.size, 3072)
    if not fits or labels.max() >= cifar.num_classes:
        raise UsageError(f"not a {cifar.title} file: {pixels.shape}, {labels.size} labels", place=str(file))
    return pixels, labels


def prepare_fashion_mnist(path: Path, data: DataSpec, *, say: Say) -> TensorFileHeader:
    """Write one part's images as (n, 1, 28, 28) uint8 with their labels; return the header.

    Raises:
        UsageError: a file is missing, or is not what it claims to be.
        EnvironmentUnfitError: the data set had to be downloaded, but the download failed.
    """
    folder, files = Path(data.path or "data") / FASHION_MNIST_FOLDER, FASHION_MNIST_FILES[data.split]
    if data.download:
        home = data.download_url or FASHION_MNIST_HOME
        for name, checksum in files.items():
            fetch_file(Archive(url=f"{home.rstrip('/')}/{name}", checksum=checksum), folder, say=say)
    images, labels = (_read_fashion_mnist(folder / name) for name in files)
    fits = images.ndim == 3 and images.shape[1:] == (EDGE, EDGE) and labels.shape == images.shape[:1]
    if not fits or not labels.size or labels.max() >= FASHION_MNIST_CLASSES:
        raise UsageError(
            f"not Fashion-MNIST: images {images.shape}, labels {labels.shape}", place=str(folder)
        )
    return write_tensor_file(
        path,
        name=data.name,
        shape=(len(images), 1, EDGE, EDGE),
        num_classes=FASHION_MNIST_CLASSES,
        images=images.tobytes(),
        labels=labels.tobytes(),
    )


def _read_fashion_mnist(file: Path) -> np.ndarray:
    """Read a file of unsigned bytes, in whatever shape it declares."""
    if not file.is_file():
        raise MissingDataError(
            f"Fashion-MNIST is missing: expected the file {file}",
            place="data.path",
            next_step="Set data.download=true, or put the unchanged file there, or use data.name=synthetic",
        )
    try:
        with gzip.open(file) as stream:
            content = stream.read(MOST_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"not gzip-compressed: {error}", place=str(file)) from error
    num_dimensions = content[3] if len(content) > 4 else 0
    begin = 4 * (num_dimensions + 1)
    shape = np.frombuffer(content[4:begin], dtype=">u4").astype(int) if len(content) >= begin else np.zeros(1)
    is_idx = content[:3] == bytes((0, 0, UNSIGNED_BYTES)) and len(content) - begin == int(np.prod(shape))
    if not is_idx or not num_dimensions:
        raise UsageError(f"not an idx file with unsigned bytes: {len(content)} bytes", place=str(file))
    return np.frombuffer(content, dtype=np.uint8, offset=begin).reshape(shape)
