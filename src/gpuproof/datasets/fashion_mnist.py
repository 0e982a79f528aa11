"""Fashion-MNIST from its four files of idx, which stay packed by gzip.

Of idx: two bytes of 0, the type (8: unsigned bytes), the number of dimensions, each of them in four bytes
(big endian), then the values. Source: H. Xiao, K. Rasul, R. Vollgraf, Fashion-MNIST, 2017,
https://github.com/zalandoresearch/fashion-mnist.
"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np

from gpuproof.base.errors import MissingDataError, UsageError
from gpuproof.datasets.catalogue import Say
from gpuproof.datasets.download import Archive, fetch_file
from gpuproof.records.dataset_files import TensorFileHeader, write_tensor_file
from gpuproof.records.work.data import DataSpec

HOME = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
FOLDER = "fashion-mnist"
FILES = {
    "train": {
        "train-images-idx3-ubyte.gz": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "md5:25c81989df183df01b3e8a0aad5dffbe",
    },
    "test": {
        "t10k-images-idx3-ubyte.gz": "md5:bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "md5:bb300cfdad3c16e7a12a480ee83cd310",
    },
}
"""Of each part its images and its labels, with their checksums."""
NUM_CLASSES = 10
EDGE = 28
UNSIGNED_BYTES = 8
MOST_BYTES = 2**28
"""Of one file, unpacked: the largest has 47 MB."""


def prepare_fashion_mnist(path: Path, data: DataSpec, *, say: Say) -> TensorFileHeader:
    """Write one part's images as (n, 1, 28, 28) uint8 with their labels; returns the header.

    Raises:
        UsageError: a file is not there, or not what it says.
        EnvironmentUnfitError: the data set was to be fetched, and could not be.
    """
    folder, files = Path(data.path or "data") / FOLDER, FILES[data.split]
    if data.download:
        home = data.download_url or HOME
        for name, checksum in files.items():
            fetch_file(Archive(url=f"{home.rstrip('/')}/{name}", checksum=checksum), folder, say=say)
    images, labels = (_read(folder / name) for name in files)
    fits = images.ndim == 3 and images.shape[1:] == (EDGE, EDGE) and labels.shape == images.shape[:1]
    if not fits or not labels.size or labels.max() >= NUM_CLASSES:
        raise UsageError(
            f"not Fashion-MNIST: images {images.shape}, labels {labels.shape}", place=str(folder)
        )
    return write_tensor_file(
        path,
        name=data.name,
        shape=(len(images), 1, EDGE, EDGE),
        num_classes=NUM_CLASSES,
        images=images.tobytes(),
        labels=labels.tobytes(),
    )


def _read(file: Path) -> np.ndarray:
    """Read a file of unsigned bytes, whatever shape it says."""
    if not file.is_file():
        raise MissingDataError(
            f"Fashion-MNIST is not there: expected the file {file}",
            place="data.path",
            next_step="Set data.download=true, or put the file there as it is, or use data.name=synthetic",
        )
    try:
        with gzip.open(file) as stream:
            content = stream.read(MOST_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"not packed by gzip: {error}", place=str(file)) from error
    num_dimensions = content[3] if len(content) > 4 else 0
    begin = 4 * (num_dimensions + 1)
    shape = np.frombuffer(content[4:begin], dtype=">u4").astype(int) if len(content) >= begin else np.zeros(1)
    is_idx = content[:3] == bytes((0, 0, UNSIGNED_BYTES)) and len(content) - begin == int(np.prod(shape))
    if not is_idx or not num_dimensions:
        raise UsageError(f"not a file of idx with unsigned bytes: {len(content)} bytes", place=str(file))
    return np.frombuffer(content, dtype=np.uint8, offset=begin).reshape(shape)
