"""Image folders and token files of the user's own: looked through, listed, decoded, or refused in words."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gpuproof.base.errors import UsageError
from gpuproof.datasets.catalogue import prepare, prepared_file
from gpuproof.records.case import Case
from gpuproof.records.codec import to_json
from gpuproof.records.dataset_files import ImageListing, TokenFile, read_header, read_listing
from records_by_hand import case

COLOURS = {"cat": (255, 0, 0), "dog": (0, 0, 255)}


def image_folder(tmp_path: Path, *, part: str = "train", endings: tuple[str, ...] = ("png", "ppm")) -> Path:
    """Two classes of images of one colour each, wider than high."""
    for name, colour in COLOURS.items():
        folder = tmp_path / "images" / part / name
        folder.mkdir(parents=True)
        for ending in endings:
            Image.new("RGB", (40, 20), colour).save(folder / f"one.{ending}")
        (folder / "notes.txt").write_text("no image")
    return tmp_path / "images"


def images(source: Path, *, size: int = 8, batch_size: int = 2, **changes: object) -> Case:
    loading = str(changes.get("loading", "device"))
    file = prepared_file("ImageFolder", loading=loading, split="train", image_size=size)  # type: ignore[arg-type]
    data = {"name": "ImageFolder", "path": str(source), "file": file, "image_size": size, **changes}
    return case(data={**data, "batch_size": batch_size})


def test_images_are_decoded_to_the_models_size_and_labelled_by_their_folders(tmp_path: Path) -> None:
    said: list[str] = []
    asked = images(image_folder(tmp_path))
    prepare(asked, tmp_path, world_size=1, say=said.append)
    path = tmp_path / "data/imagefolder-8.tensors"
    header, offset = read_header(path)
    data = path.read_bytes()[offset:]
    assert (header.shape, header.num_classes) == ((4, 3, 8, 8), 2)
    found = np.frombuffer(data[: header.num_elements], dtype=np.uint8).reshape(4, 3, 64)
    assert [tuple(image[:, 0]) for image in found] == [(255, 0, 0)] * 2 + [(0, 0, 255)] * 2
    assert list(data[header.num_elements :]) == [0, 0, 1, 1]
    assert said == [f"decoding 4 of 4 images from {tmp_path}/images/train to 8 pixels"]


def test_jpegs_come_close_to_their_colours(tmp_path: Path) -> None:
    prepare(images(image_folder(tmp_path, endings=("jpg",))), tmp_path, world_size=1, say=print)
    header, offset = read_header(tmp_path / "data/imagefolder-8.tensors")
    data = (tmp_path / "data/imagefolder-8.tensors").read_bytes()[offset:]
    found = np.frombuffer(data[: header.num_elements], dtype=np.uint8).reshape(2, 3, 64).mean(axis=2)
    assert np.abs(found - [[255, 0, 0], [0, 0, 255]]).max() < 4


def test_no_more_is_decoded_than_pools_hold(tmp_path: Path) -> None:
    source = image_folder(tmp_path)
    for i in range(300):
        Image.new("RGB", (8, 8), COLOURS["cat"]).save(source / "train" / "cat" / f"{i}.ppm")
    prepare(images(source, batch_size=1), tmp_path, world_size=2, say=print)
    assert read_header(tmp_path / "data/imagefolder-8.tensors")[0].shape[0] == 128  # 64 batches × 2 ranks


def test_for_the_loader_images_are_listed_and_not_opened(tmp_path: Path) -> None:
    source = image_folder(tmp_path)
    (source / "train" / "dog" / "broken.png").write_bytes(b"no image")
    prepare(images(source, loading="loader"), tmp_path, world_size=1, say=print)
    listing = read_listing(ImageListing, tmp_path / "data/imagefolder.json")
    assert listing.files == ("cat/one.png", "cat/one.ppm", "dog/broken.png", "dog/one.png", "dog/one.ppm")
    assert (listing.classes, listing.labels()) == (("cat", "dog"), [0, 0, 1, 1, 1])
    assert Path(listing.root) == source / "train"


def test_an_image_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    source = image_folder(tmp_path)
    (source / "train" / "dog" / "broken.png").write_bytes(b"no image")
    with pytest.raises(UsageError, match="not an image that Pillow can read") as caught:
        prepare(images(source), tmp_path, world_size=1, say=print)
    assert "broken.png" in str(caught.value)
    assert not list((tmp_path / "data").iterdir())


def test_the_part_to_test_with_may_be_called_val(tmp_path: Path) -> None:
    source = image_folder(tmp_path, part="val")
    asked = images(source, split="test")
    prepare(asked, tmp_path, world_size=1, say=print)
    assert read_header(tmp_path / "data/imagefolder-8.tensors")[0].shape[0] == 4
    with pytest.raises(UsageError, match=f"expected one folder per class in {source}/train"):
        prepare(images(source), tmp_path / "other", world_size=1, say=print)


def test_a_folder_without_images_names_the_endings(tmp_path: Path) -> None:
    (tmp_path / "images" / "train" / "cat").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"no images in .*expected files that end in \.bmp"):
        prepare(images(tmp_path / "images"), tmp_path, world_size=1, say=print)


def test_more_classes_than_the_model_tells_apart_are_refused(tmp_path: Path) -> None:
    source = image_folder(tmp_path)
    for i in range(9):
        (source / "train" / f"class{i}").mkdir()
    with pytest.raises(UsageError, match=r"model\.num_classes: .* has 11 classes, but resnet18 has 10"):
        prepare(images(source), tmp_path, world_size=1, say=print)


# --- tokens ----------------------------------------------------------------------------------------------


def tokens(path: Path, *, vocab_size: int = 300, token_type: str = "uint16") -> Case:
    file = prepared_file("tokens", loading="device", split="train", image_size=None)
    return case(
        model={"name": "decoder", "num_classes": None, "options": {"vocab_size": vocab_size}},
        data={
            "name": "tokens",
            "path": str(path),
            "file": file,
            "token_type": token_type,
            "image_size": None,
        },
    )


@pytest.mark.parametrize(("token_type", "dtype"), [("uint16", "<u2"), ("uint32", "<u4")])
def test_a_file_of_tokens_is_looked_through(token_type: str, dtype: str, tmp_path: Path) -> None:
    content = np.array([5, 299, 0, 299], dtype=dtype).tobytes()
    (tmp_path / "ids.bin").write_bytes(content)
    prepare(tokens(tmp_path / "ids.bin", token_type=token_type), tmp_path, world_size=1, say=print)
    listing = read_listing(TokenFile, tmp_path / "data/tokens.json")
    assert (listing.num_tokens, listing.largest, listing.largest_at) == (4, 299, 1)
    assert listing.sha256 == hashlib.sha256(content).hexdigest()
    assert listing.path == str(tmp_path / "ids.bin")


def test_the_largest_id_is_found_in_any_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuproof.datasets.on_disk.BLOCK_TOKENS", 2)
    np.array([1, 2, 3, 250, 4], dtype="<u2").tofile(tmp_path / "ids.bin")
    prepare(tokens(tmp_path / "ids.bin"), tmp_path, world_size=1, say=print)
    listing = read_listing(TokenFile, tmp_path / "data/tokens.json")
    assert (listing.num_tokens, listing.largest, listing.largest_at) == (5, 250, 3)


def test_an_id_outside_the_vocabulary_is_named_with_its_position(tmp_path: Path) -> None:
    np.array([1, 2, 300, 4], dtype="<u2").tofile(tmp_path / "ids.bin")
    with pytest.raises(UsageError, match=r"id 300 at position 2 .* is outside a vocabulary of 300") as caught:
        prepare(tokens(tmp_path / "ids.bin"), tmp_path, world_size=1, say=print)
    assert "vocab_size to at least 301" in str(caught.value)
    assert not (tmp_path / "data/tokens.json").exists()


def test_a_file_of_half_an_id_or_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ids.bin").write_bytes(b"\x01\x00\x02")
    with pytest.raises(UsageError, match="3 bytes are not a whole number of uint16 ids"):
        prepare(tokens(tmp_path / "ids.bin"), tmp_path, world_size=1, say=print)
    with pytest.raises(UsageError, match=r"expected the file .*absent\.bin"):
        prepare(tokens(tmp_path / "absent.bin"), tmp_path, world_size=1, say=print)


# --- the command of a host that does not share rank 0's disk ------------------------------------------------


def test_the_command_prepares_a_case_or_says_why_not(tmp_path: Path) -> None:
    np.array([1, 2], dtype="<u2").tofile(tmp_path / "ids.bin")
    for name, code in (("ids.bin", 0), ("absent.bin", 2)):
        spec = tmp_path / f"{name}.json"
        spec.write_text(json.dumps(to_json(tokens(tmp_path / name))))
        words = [sys.executable, "-m", "gpuproof.datasets", str(spec), str(tmp_path / name[:3]), "2"]
        result = subprocess.run(words, capture_output=True, text=True)
        assert result.returncode == code
        assert "Traceback" not in result.stderr
    assert "expected the file" in result.stderr
    assert (tmp_path / "ids" / "data/tokens.json").is_file()
