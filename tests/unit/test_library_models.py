"""Names of libraries' models: what they mean, and what is refused, before any library is imported."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuproof.base.errors import UsageError
from gpuproof.workloads.info.base import InputShape
from gpuproof.workloads.info.library_models import LibraryModel
from gpuproof.workloads.info.lookup import find_workload


def known(name: str) -> LibraryModel:
    info = find_workload(name)
    assert isinstance(info, LibraryModel)
    return info


@pytest.mark.parametrize(
    ("name", "item", "loss"),
    [
        ("torchvision/resnet50", "samples", "cross_entropy"),
        ("timm/vit_tiny_patch16_224.augreg_in21k", "samples", "cross_entropy"),
        ("transformers/vit", "samples", "cross_entropy"),
        ("transformers/gpt2", "tokens", "token_cross_entropy"),
        ("transformers/bert", "tokens", "token_cross_entropy"),
        ("transformers/bert:causal", "tokens", "token_cross_entropy"),
        ("transformers/siglip:image", "samples", "cross_entropy"),
    ],
)
def test_a_name_says_what_is_counted_and_what_is_minimised(name: str, item: str, loss: str) -> None:
    info = known(name)
    assert (info.item, info.loss, info.name) == (item, loss, name)
    assert info.work({}, info.input_shape({}, None, None)) is None


def test_no_library_is_imported_to_know_a_name() -> None:
    program = """
import sys
from gpuproof.workloads.info.lookup import find_workload
for name in ("torchvision/resnet50", "timm/resnet50", "transformers/gpt2"):
    info = find_workload(name)
    info.work({}, info.input_shape({}, None, None))
print(sorted({"torchvision", "timm", "transformers"} & set(sys.modules)))
"""
    asked = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert asked.stdout == "[]\n"


def test_the_input_is_what_the_keys_say() -> None:
    images = known("timm/resnet50").input_shape({"in_chans": 1}, 96, 10)
    assert images == InputShape(kind="image", shape=(1, 96, 96), num_targets=10)
    assert known("torchvision/resnet50").input_shape({}, None, None).shape == (3, 224, 224)
    tokens = known("transformers/gpt2").input_shape({"seq_len": 64, "vocab_size": 500}, None, None)
    assert tokens == InputShape(kind="tokens", shape=(64,), num_targets=500)


@pytest.mark.parametrize(
    "name",
    ["torchvision/", "torchvision/a b", "timm/hf-hub:me/model", "timm/resnet50:image", "transformers/gpt2:x"],
)
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is not the name of a"):
        find_workload(name)


@pytest.mark.promise("S1.26")
@pytest.mark.parametrize("name", ["mobilenet_v9", "resnet1010"])
def test_a_name_without_its_library_is_told_with_it(name: str) -> None:
    with pytest.raises(UsageError, match=rf"no workload is called '{name}'.*torchvision/{name}"):
        find_workload(name)
    assert find_workload(f"torchvision/{name}").name == f"torchvision/{name}"


def test_a_model_of_torchvision_is_known_by_its_name_alone() -> None:
    """The names are those of its own sources, which are read and not imported; ours come first."""
    spec = importlib.util.find_spec("torchvision")
    assert spec is not None
    assert spec.origin is not None
    sources = [path.read_text() for path in (Path(spec.origin).parent / "models").glob("*.py")]
    pattern = r"@register_model\(\)\n(?:[^d].*\n|\)\n)*?def (\w+)\("
    names = {name for source in sources for name in re.findall(pattern, source)}
    assert len(names) >= 80
    ours = {"resnet18", "resnet50", "vit_b_16"}
    assert {find_workload(name).name for name in names} == {
        name if name in ours else f"torchvision/{name}" for name in names
    }


def test_another_library_is_no_workload() -> None:
    with pytest.raises(UsageError, match="no workload is called 'keras/resnet50'"):
        find_workload("keras/resnet50")


@pytest.mark.parametrize(
    ("options", "place", "cause"),
    [
        ({"num_classes": 3}, "num_classes", "its own key"),
        ({"num_labels": 3}, "num_labels", "its own key"),
        ({"pretrained": True}, "pretrained", "nothing is downloaded"),
        ({"weights": "DEFAULT"}, "weights", "nothing is downloaded"),
        ({"seq_len": 0}, "seq_len", "0 is not a whole number of 1 or more"),
        ({"vocab_size": "big"}, "vocab_size", "'big' is not a whole number"),
        ({"seq_len": True}, "seq_len", "True is not a whole number"),
    ],
)
def test_options_of_other_keys_and_downloads_are_refused(
    options: dict[str, Any], place: str, cause: str
) -> None:
    with pytest.raises(UsageError) as raised:
        known("transformers/gpt2").input_shape(options, None, None)
    assert raised.value.place == f"model.options.{place}"
    assert cause in raised.value.cause
