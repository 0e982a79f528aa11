"""Pipes, devices, links and shapes without end, wherever a user names a file: a paragraph, at once."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gpuproof.base.errors import GpuproofError, UsageError
from gpuproof.config.inventory import load_inventory
from gpuproof.config.load import load_config
from gpuproof.config.settings import ConfigError
from gpuproof.config.yaml import MAX_BRACKETS
from gpuproof.datasets.downloaded import prepare_cifar
from gpuproof.datasets.on_disk import list_images
from gpuproof.launchers.ssh.connect import load_keys
from gpuproof.readings.formats import load
from gpuproof.records.dataset_files import decode
from gpuproof.records.work.data import DataSpec
from gpuproof.store.run import RunDirectory, read_case
from gpuproof.verdict.rules import load_rules

READERS: dict[str, Callable[[Path], object]] = {
    "config": lambda path: load_config(str(path)),
    "inventory": lambda path: load_inventory(str(path)),
    "rules": lambda path: load_rules(str(path)),
    "key": lambda path: load_keys(str(path), []),
    "recording": load,
    "image": lambda path: decode(path, size=8),
}


def odd_file(kind: str, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to({"device": "/dev/zero", "nothing": "/nowhere", "itself": path.name}[kind])
    return path


@pytest.mark.parametrize("kind", ["pipe", "device", "nothing", "itself"])
@pytest.mark.parametrize("what", READERS)
def test_what_is_no_plain_file_is_refused_at_once(what: str, kind: str, tmp_path: Path) -> None:
    with pytest.raises(GpuproofError) as caught:
        READERS[what](odd_file(kind, tmp_path / "odd.png"))
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["run.json", "cases/main/0/spec.json", "cases/main/0/rank-0.jsonl"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_run_with_a_pipe_in_it_is_refused_at_once(name: str, kind: str, tmp_path: Path) -> None:
    odd_file(kind, tmp_path / name)
    with pytest.raises(GpuproofError):
        RunDirectory.open(tmp_path) if name == "run.json" else read_case(tmp_path / "cases" / "main" / "0")


@pytest.mark.parametrize("opening", ["{", "[", "{a: ", "[[{"])
def test_open_brackets_are_counted_before_they_are_parsed(opening: str, tmp_path: Path) -> None:
    path = tmp_path / "deep.yaml"
    path.write_text("data:\n  " + opening * 4000)
    with pytest.raises(ConfigError, match=r"deep\.yaml:2: nested deeper than 20 levels"):
        load_config(str(path))


def test_brackets_that_are_closed_or_few_are_no_nesting(tmp_path: Path) -> None:
    path = tmp_path / "wide.yaml"
    path.write_text(f"run: {{notes: '{'[]' * 500}{'{' * (MAX_BRACKETS - 2)}'}}\n")
    assert load_config(str(path)).config.run.notes is not None


@pytest.mark.parametrize("kind", ["pipe", "device", "nothing", "itself"])
def test_a_folder_of_images_names_what_is_no_image(kind: str, tmp_path: Path) -> None:
    odd_file(kind, tmp_path / "train" / "cat" / "a.png")
    with pytest.raises(UsageError, match=r"cat/a\.png: not an image: "):
        list_images(tmp_path, split="train")


def cifar_of(content: bytes, folder: Path) -> UsageError:
    place = folder / "cifar-100-python" / "train"
    place.parent.mkdir(parents=True)
    place.write_bytes(content)
    data = DataSpec(name="CIFAR100", path=str(folder), batch_size=1)
    with pytest.raises(UsageError, match="not a CIFAR-100 file") as caught:
        prepare_cifar(folder / "made", data, say=lambda _: None)
    return caught.value


PIXELS = np.zeros((2, 3072), dtype=np.uint8)
CONTENTS = {
    "endless bytes": b"\x80\x04\x8e" + (2**62).to_bytes(8, "little") + b".",
    "deep": b"\x80\x04" + b"(" * 100_000 + b".",
    "no table": pickle.dumps([1, 2]),
    "empty": pickle.dumps({b"data": PIXELS[:0], b"fine_labels": []}),
    "flat": pickle.dumps({b"data": PIXELS.ravel(), b"fine_labels": [1, 2]}),
    "more pixels": pickle.dumps({b"data": np.zeros((2, 3073), dtype=np.uint8), b"fine_labels": [1, 2]}),
    "labels in a square": pickle.dumps({b"data": PIXELS, b"fine_labels": [[1], [2]]}),
    "labels beyond": pickle.dumps({b"data": PIXELS, b"fine_labels": [1, 200]}),
    "labels below": pickle.dumps({b"data": PIXELS, b"fine_labels": [1, -1]}),
    "ragged": pickle.dumps({b"data": [[1], [1, 2]], b"fine_labels": [1, 2]}),
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_a_cifar_file_of_hostile_shapes_is_a_paragraph(content: bytes, tmp_path: Path) -> None:
    assert "\n" not in str(cifar_of(content, tmp_path))
