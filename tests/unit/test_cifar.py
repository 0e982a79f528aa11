"""CIFAR-10 and CIFAR-100 from files as their authors pickled them; anything else is refused."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from gpuproof.base.errors import UsageError
from gpuproof.datasets.catalogue import prepare
from gpuproof.datasets.downloaded import prepare_cifar
from gpuproof.records.case import Case
from gpuproof.records.dataset_files import read_header
from records_by_hand import case

FILE = "data/cifar.tensors"


def asked(source: Path, *, name: str = "CIFAR100", split: str = "train") -> Case:
    return case(data={"name": name, "path": str(source), "split": split, "file": FILE})


def prepare_cifar100(path: Path, *, source: Path) -> None:
    prepare_cifar(path, asked(source).model_work.data, say=print)


def cifar_folder(tmp_path: Path, content: object, *, protocol: int = 2) -> Path:
    """Write the training file as its authors pickled it: bytes for keys, an array of (n, 3072)."""
    folder = tmp_path / "cifar-100-python"
    folder.mkdir(exist_ok=True)
    (folder / "train").write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, protocol))
    return tmp_path


def pixels(num_images: int) -> np.ndarray:
    return (np.arange(num_images * 3072) % 251).astype(np.uint8).reshape(num_images, 3072)


def python_2_pickle(data: np.ndarray, labels: list[int]) -> bytes:
    """Pickle by hand what Python 2 and an old numpy wrote: byte strings, and numpy.core's old path."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    small = b"".join(b"K" + bytes([label]) for label in labels)
    rows = b"J" + len(data).to_bytes(4, "little")
    dtype = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R" + b"(K\x03" + text(b"|") + b"NNN"
    dtype += b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
    raw = data.tobytes()
    state = (
        b"(K\x01" + rows + b"M\x00\x0c\x86" + dtype + b"\x89T" + len(raw).to_bytes(4, "little") + raw + b"tb"
    )
    pairs = text(b"data") + empty + state + text(b"fine_labels") + b"](" + small + b"e"
    return b"\x80\x02}(" + pairs + b"u."


@pytest.mark.parametrize("as_python_2", [True, False])
def test_cifar_is_read_as_it_comes(as_python_2: bool, tmp_path: Path) -> None:
    data, labels = pixels(3), [99, 0, 42]
    content = python_2_pickle(data, labels) if as_python_2 else {b"data": data, b"fine_labels": labels}
    prepare(asked(cifar_folder(tmp_path, content)), tmp_path, world_size=1, say=print)
    path = tmp_path / FILE
    header, offset = read_header(path)
    assert (header.shape, header.num_classes) == ((3, 3, 32, 32), 100)
    assert path.read_bytes()[offset:] == data.tobytes() + bytes(labels)


@pytest.mark.promise("S1.13", "S1.18")
def test_a_missing_file_is_named_and_nothing_takes_its_place(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        prepare_cifar100(tmp_path / "c.tensors", source=tmp_path)
    assert f"expected the file {tmp_path / 'cifar-100-python' / 'train'}" in str(caught.value)
    assert "cifar-100-python.tar.gz" in str(caught.value)
    assert "Add --data.download=true to download it" in str(caught.value)
    assert f"unpack cifar-100-python.tar.gz (from https://www.cs.toronto.edu/~kriz/) in {tmp_path}" in str(
        caught.value
    )
    assert not (tmp_path / "c.tensors").exists()


@pytest.mark.parametrize(("split", "labels"), [("train", [0, 1, 2, 3, 4]), ("test", [9])])
def test_cifar_10_is_five_files_in_order_and_one_to_test_with(
    split: str, labels: list[int], tmp_path: Path
) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for label, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        content = {b"data": pixels(1) + np.uint8(label), b"labels": [label if label < 5 else 9]}
        (folder / name).write_bytes(pickle.dumps(content, 2))
    prepare(asked(tmp_path, name="CIFAR10", split=split), tmp_path, world_size=1, say=print)
    header, offset = read_header(tmp_path / FILE)
    data = (tmp_path / FILE).read_bytes()[offset:]
    assert (header.name, header.shape, header.num_classes) == ("CIFAR10", (len(labels), 3, 32, 32), 10)
    assert list(data[header.num_elements :]) == labels
    assert data[:3072] == (pixels(1) + np.uint8(0 if split == "train" else 5)).tobytes()


def test_the_test_part_of_cifar_100_is_its_own_file(tmp_path: Path) -> None:
    source = cifar_folder(tmp_path, {b"data": pixels(3), b"fine_labels": [1, 2, 3]})
    content = {b"data": pixels(2), b"fine_labels": [7, 8]}
    (source / "cifar-100-python" / "test").write_bytes(pickle.dumps(content, 2))
    prepare(asked(source, split="test"), tmp_path, world_size=1, say=print)
    assert (tmp_path / FILE).read_bytes()[-2:] == bytes([7, 8])


def test_a_part_that_is_not_there_is_named(tmp_path: Path) -> None:
    source = cifar_folder(tmp_path, {b"data": pixels(1), b"fine_labels": [1]})
    with pytest.raises(UsageError, match=r"expected the file .*cifar-100-python/test"):
        prepare(asked(source, split="test"), tmp_path, world_size=1, say=print)


class Malicious:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("pwned",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_would_run_code_is_refused(
    protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content = {b"data": Malicious(), b"fine_labels": [1]}
    source = cifar_folder(tmp_path, content, protocol=protocol)
    with pytest.raises(UsageError, match=r"it requests posix\.mkdir, which no CIFAR file needs"):
        prepare_cifar100(tmp_path / "c.tensors", source=source)
    assert not (tmp_path / "pwned").exists()
    assert not (tmp_path / "c.tensors").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80",
        b"rubbish",
        b"0.",  # pops from an empty stack
        pickle.dumps({b"data": pixels(2), b"fine_labels": [1, 2]})[:4000],
        {b"data": pixels(2)},
        {b"data": pixels(2), b"fine_labels": [1]},
        {b"data": pixels(2)[:, :3071], b"fine_labels": [1, 2]},
        {b"data": pixels(2), b"fine_labels": [1, 100]},
        {b"data": pixels(2), b"fine_labels": [1, 256]},
        {b"data": pixels(2), b"fine_labels": [1, -1]},
        {b"data": pixels(2), b"fine_labels": ["a", "b"]},
        {b"data": pixels(2), b"fine_labels": 5},
        {b"data": pixels(0), b"fine_labels": []},
        [1, 2],
        7,
    ],
)
def test_anything_else_is_no_cifar_file(content: object, tmp_path: Path) -> None:
    source = cifar_folder(tmp_path, content)
    with pytest.raises(UsageError, match="not a CIFAR-100 file") as caught:
        prepare_cifar100(tmp_path / "c.tensors", source=source)
    assert str(source / "cifar-100-python" / "train") in str(caught.value)
