"""Fashion-MNIST from files of idx as its authors packed them; anything else is refused."""

from __future__ import annotations

import gzip
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from gpuproof.base.errors import UsageError
from gpuproof.datasets.catalogue import prepare
from gpuproof.datasets.downloaded import FASHION_MNIST_FILES
from gpuproof.records.case import Case
from gpuproof.records.dataset_files import read_header
from records_by_hand import case

FILE = "data/fashion.tensors"
IMAGES = (np.arange(3 * 28 * 28) % 251).astype(np.uint8).reshape(3, 28, 28)
LABELS = np.array([9, 0, 4], dtype=np.uint8)


packed = partial(gzip.compress, mtime=0)
"""Without the time of packing: names of tests hold these bytes, and all workers must find the same names."""


def idx(values: np.ndarray) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    return bytes((0, 0, 8, values.ndim)) + sizes + values.tobytes()


def written(folder: Path, images: bytes, labels: bytes) -> Path:
    inside = folder / "fashion-mnist"
    inside.mkdir(parents=True)
    for name, content in zip(FASHION_MNIST_FILES["train"], (images, labels), strict=True):
        (inside / name).write_bytes(content)
    return folder


def asked(source: Path) -> Case:
    return case(data={"name": "FashionMNIST", "path": str(source), "split": "train", "file": FILE})


def test_idx_is_read_as_it_comes(tmp_path: Path) -> None:
    source = written(tmp_path, packed(idx(IMAGES)), packed(idx(LABELS)))
    prepare(asked(source), tmp_path, world_size=1, say=print)
    header, offset = read_header(tmp_path / FILE)
    assert (header.shape, header.num_classes) == ((3, 1, 28, 28), 10)
    assert (tmp_path / FILE).read_bytes()[offset:] == IMAGES.tobytes() + LABELS.tobytes()


@pytest.mark.parametrize(
    ("images", "labels", "said"),
    [
        (idx(IMAGES), packed(idx(LABELS)), "not gzip-compressed"),
        (packed(idx(IMAGES))[:-20], packed(idx(LABELS)), "not gzip-compressed"),
        (packed(idx(IMAGES)[:-1]), packed(idx(LABELS)), "not an idx file"),
        (packed(b""), packed(idx(LABELS)), "not an idx file"),
        (packed(b"\0\0\x0d\x03" + idx(IMAGES)[4:]), packed(idx(LABELS)), "not an idx file"),
        (packed(idx(IMAGES)), packed(idx(LABELS[:2])), "not Fashion-MNIST"),
        (packed(idx(IMAGES)), packed(idx(LABELS + 1)), "not Fashion-MNIST"),
        (packed(idx(IMAGES[:, :8])), packed(idx(LABELS)), "not Fashion-MNIST"),
    ],
)
def test_what_is_something_else_is_refused(images: bytes, labels: bytes, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        prepare(asked(written(tmp_path, images, labels)), tmp_path, world_size=1, say=print)


def test_what_is_not_there_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Fashion-MNIST is missing") as refused:
        prepare(asked(tmp_path), tmp_path, world_size=1, say=print)
    assert "data.download=true" in (refused.value.next_step or "")
