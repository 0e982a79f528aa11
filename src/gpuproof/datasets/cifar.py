"""CIFAR-100 from the files of its Python version, already on this disk; nothing is downloaded.

The files are pickles, which may run code when they are opened: here only numpy's arrays are let through.
Source: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009,
https://www.cs.toronto.edu/~kriz/cifar.html.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from gpuproof.errors import UsageError
from gpuproof.records.tensor_file import TensorFileHeader, write_tensor_file

NUM_CLASSES = 100
FOLDER = "cifar-100-python"
ALLOWED = {
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("_codecs", "encode"),
}


NOT_A_CIFAR_FILE = (
    *(pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError),  # what a bad pickle raises
    *(KeyError, TypeError, ValueError, OverflowError),  # what a good one of something else does
)


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR file needs")
        return super().find_class(module, name)


def prepare_cifar100(path: Path, *, source: Path | None) -> TensorFileHeader:
    """Write the training images as (n, 3, 32, 32) uint8 with their fine labels; returns the header.

    Raises:
        UsageError: the file is not there, or not what it says.
    """
    file = (source or Path("data")) / FOLDER / "train"
    if not file.is_file():
        raise UsageError(
            f"CIFAR-100 is not there: expected the file {file}",
            place="data.path",
            next_step="Unpack cifar-100-python.tar.gz there, or use data.name=synthetic or digits",
        )
    pixels, labels = _read(file)
    return write_tensor_file(
        path,
        name="CIFAR100",
        shape=(len(pixels), 3, 32, 32),
        num_classes=NUM_CLASSES,
        images=pixels.tobytes(),
        labels=labels.tobytes(),
    )


def _read(file: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        with file.open("rb") as stream:
            content = _ArraysOnly(stream, encoding="bytes").load()
        pixels = np.asarray(content[b"data"], dtype=np.uint8)
        labels = np.asarray(content[b"fine_labels"], dtype=np.uint8)
    except NOT_A_CIFAR_FILE as error:
        raise UsageError(f"not a CIFAR-100 file: {error}", place=str(file)) from error
    fits = labels.ndim == 1 and labels.size and pixels.shape == (labels.size, 3072)
    if not fits or labels.max() >= NUM_CLASSES:
        raise UsageError(
            f"not a CIFAR-100 file: {pixels.shape} pixels, {labels.size} labels",
            place=str(file),
        )
    return pixels, labels
