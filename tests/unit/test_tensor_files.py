"""Samples as raw tensor files: written whole, checked when read, made from real data only."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from gpuproof.datasets.catalogue import FILES, prepare
from gpuproof.datasets.cifar import prepare_cifar100
from gpuproof.errors import RecordError, UsageError
from gpuproof.records.tensor_file import read_header, write_tensor_file

IMAGES = bytes(range(24))  # two images of 3 × 2 × 2


def small_file(path: Path) -> None:
    write_tensor_file(path, name="tiny", shape=(2, 3, 2, 2), num_classes=7, images=IMAGES, labels=b"\x06\x01")


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    small_file(tmp_path / "a.tensors")
    header, offset = read_header(tmp_path / "a.tensors")
    assert (header.name, header.shape, header.num_classes) == ("tiny", (2, 3, 2, 2), 7)
    assert (header.num_elements, header.num_bytes) == (24, 26)
    assert (tmp_path / "a.tensors").read_bytes()[offset:] == IMAGES + b"\x06\x01"
    assert [path.name for path in tmp_path.iterdir()] == ["a.tensors"]


def test_every_changed_or_missing_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.tensors"
    small_file(path)
    whole, offset = path.read_bytes(), read_header(path)[1]
    for place in range(offset, len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(RecordError, match="not what its first line says"):
            read_header(path)
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        with pytest.raises(RecordError):
            read_header(path)


def test_a_header_that_claims_another_shape_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tensors"
    small_file(path)
    first, _, rest = path.read_bytes().partition(b"\n")
    for shape in ([2, 3, 2, 1], [], [3]):
        path.write_bytes(json.dumps(json.loads(first) | {"shape": shape}).encode() + b"\n" + rest)
        with pytest.raises(RecordError, match=r"not what its first line says.*it is made again"):
            read_header(path)


@pytest.mark.parametrize("content", [b"", b"rubbish\n", b"\x80\x04\n", b"{}\n", b"[]\n"])
def test_any_other_file_is_no_tensor_file(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.tensors").write_bytes(content)
    with pytest.raises(RecordError) as caught:
        read_header(tmp_path / "a.tensors")
    assert str(tmp_path / "a.tensors") in str(caught.value)


# --- digits ----------------------------------------------------------------------------------------------


def test_digits_are_the_1797_real_ones(tmp_path: Path) -> None:
    prepare("digits", tmp_path, source=None)
    path = tmp_path / FILES["digits"]
    header, offset = read_header(path)
    assert (header.shape, header.num_classes) == ((1797, 1, 8, 8), 10)
    data = path.read_bytes()[offset:]
    images = np.frombuffer(data[: header.num_elements], dtype=np.uint8)
    labels = np.frombuffer(data[header.num_elements :], dtype=np.uint8)
    assert (int(images.min()), int(images.max())) == (0, 255)
    # How often each digit occurs, as its authors publish it.
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    # The first image's first row in grey levels of 16: 0 0 5 13 9 1 0 0.
    assert images[:8].tolist() == [0, 0, 80, 207, 143, 16, 0, 0]


def test_what_is_there_is_not_made_again_and_synthetic_needs_no_file(tmp_path: Path) -> None:
    path = tmp_path / FILES["digits"]
    path.parent.mkdir()
    path.write_text("kept")
    prepare("digits", tmp_path, source=None)
    assert path.read_text() == "kept"
    prepare("synthetic", tmp_path / "absent", source=None)
    assert not (tmp_path / "absent").exists()


# --- CIFAR-100 -------------------------------------------------------------------------------------------


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
    prepare("CIFAR100", tmp_path, source=cifar_folder(tmp_path, content))
    path = tmp_path / FILES["CIFAR100"]
    header, offset = read_header(path)
    assert (header.shape, header.num_classes) == ((3, 3, 32, 32), 100)
    assert path.read_bytes()[offset:] == data.tobytes() + bytes(labels)


def test_a_missing_file_is_named_and_nothing_takes_its_place(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        prepare_cifar100(tmp_path / "c.tensors", source=tmp_path)
    assert f"expected the file {tmp_path / 'cifar-100-python' / 'train'}" in str(caught.value)
    assert "cifar-100-python.tar.gz" in str(caught.value)
    assert not (tmp_path / "c.tensors").exists()


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
    with pytest.raises(UsageError, match=r"it asks for posix\.mkdir, which no CIFAR file needs"):
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
