"""Samples as raw tensor files: written whole, checked when read, made from real data only."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from gpuproof.base.errors import RecordError
from gpuproof.datasets.catalogue import prepare
from gpuproof.records.dataset_files import read_header, write_tensor_file
from records_by_hand import case

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
        with pytest.raises(RecordError, match="not match its first line"):
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
        with pytest.raises(RecordError, match=r"does not match its first line.*it will be recreated"):
            read_header(path)


@pytest.mark.parametrize("content", [b"", b"rubbish\n", b"\x80\x04\n", b"{}\n", b"[]\n"])
def test_any_other_file_is_no_tensor_file(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.tensors").write_bytes(content)
    with pytest.raises(RecordError) as caught:
        read_header(tmp_path / "a.tensors")
    assert str(tmp_path / "a.tensors") in str(caught.value)


def test_labels_of_more_than_256_classes_take_four_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.tensors"
    labels = (999).to_bytes(4, "little") + (0).to_bytes(4, "little")
    written = write_tensor_file(
        path, name="many", shape=(2, 3, 2, 2), num_classes=1000, images=IMAGES, labels=labels
    )
    header, offset = read_header(path)
    assert header == written
    assert (header.label_bytes, header.num_bytes) == (4, 32)
    assert path.read_bytes()[offset + 24 :] == labels


def test_a_file_from_before_labels_had_a_width_is_still_read(tmp_path: Path) -> None:
    path = tmp_path / "a.tensors"
    small_file(path)
    first, _, rest = path.read_bytes().partition(b"\n")
    header = json.loads(first)
    del header["label_bytes"]
    path.write_bytes(json.dumps(header).encode() + b"\n" + rest)
    assert read_header(path)[0].label_bytes == 1


# --- digits ----------------------------------------------------------------------------------------------


def test_digits_are_the_1797_real_ones(tmp_path: Path) -> None:
    prepare(case(), tmp_path, world_size=1, say=print)
    path = tmp_path / "data/digits.tensors"
    header, offset = read_header(path)
    assert (header.shape, header.num_classes) == ((1797, 1, 8, 8), 10)
    data = path.read_bytes()[offset:]
    images = np.frombuffer(data[: header.num_elements], dtype=np.uint8)
    labels = np.frombuffer(data[header.num_elements :], dtype=np.uint8)
    assert (int(images.min()), int(images.max())) == (0, 255)
    # How often each digit occurs, as its authors publish it.
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    # Reports print this sum: measured runs must stay comparable.
    digest = "37ed66331330dd1cc57b229adb4bdd52b49b4c25fc4f30373d8e36954125ad31"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
    # The first image's first row in grey levels of 16: 0 0 5 13 9 1 0 0.
    assert images[:8].tolist() == [0, 0, 80, 207, 143, 16, 0, 0]


def test_what_is_there_is_not_made_again_and_synthetic_needs_no_file(tmp_path: Path) -> None:
    path = tmp_path / "data/digits.tensors"
    path.parent.mkdir()
    path.write_text("kept")
    prepare(case(), tmp_path, world_size=1, say=print)
    assert path.read_text() == "kept"
    drawn = case(data={"name": "synthetic", "file": None})
    prepare(drawn, tmp_path / "absent", world_size=1, say=print)
    assert not (tmp_path / "absent").exists()
