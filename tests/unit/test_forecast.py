"""What a run says of its memory and time before it begins, against numbers worked out by hand."""

from __future__ import annotations

from pathlib import Path

import torch

from gpuproof.config.load import load_config
from gpuproof.records.case import Case
from gpuproof.suites.cases import build_case
from gpuproof.suites.forecast import forecast
from gpuproof.workloads.info.catalogue.resnet import RESNET_PLANS, resnet_activation_values
from gpuproof.workloads.torch.resnet import ResNet

SYNTHETIC = Path(__file__).resolve().parents[2] / "configs" / "synthetic_resnet50.yaml"
GIB = 2**30


def case_of(config: str | Path, *words: str) -> Case:
    return build_case(load_config(str(config), words).config, 0)


def test_the_residual_network_keeps_what_is_foreseen_and_its_statistics() -> None:
    model = ResNet(RESNET_PLANS["resnet50"], num_classes=10)
    images = torch.randn(2, 3, 64, 64)
    own = {t.untyped_storage().data_ptr() for t in (images, *model.parameters(), *model.buffers())}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        scores = model(images)
    foreseen = 2 * 4 * resnet_activation_values(RESNET_PLANS["resnet50"], image_size=64)
    assert scores.requires_grad
    assert 0.97 < foreseen / sum(kept.values()) <= 1.0


def test_a_machine_that_is_too_small_is_told_the_key_that_makes_it_fit() -> None:
    case = case_of(SYNTHETIC, "--training.precision=fp32")
    time, memory, too_much = forecast([case], one_by_one=True, host_memory_bytes=16 * GIB)
    assert time == "time: not known until a step has been timed; 1 launch of 2,100 steps each"
    # 25,557,032 parameters of 4 bytes, their momentum, and 256 samples of 21,325,824 values.
    assert memory == (
        "memory: at least 20.5 GiB a rank (parameters 97.5 MiB, gradients 97.5 MiB, optimizer 97.5 MiB, "
        "activations 20.3 GiB)"
    )
    said = "20.5 GiB or more is more than this machine's 16.0 GiB; try --data.batch_size=64"
    assert too_much.endswith(said)
    (half,) = forecast([case_of(SYNTHETIC)], one_by_one=True, host_memory_bytes=16 * GIB)[2:]
    assert half.endswith("is more than half of this machine's 16.0 GiB; try --data.batch_size=128")
    fits = case_of(SYNTHETIC, "--training.precision=fp32", "--data.batch_size=64")
    assert len(forecast([fits], one_by_one=True, host_memory_bytes=16 * GIB)) == 2


def test_what_is_not_known_is_said_and_windows_by_time_add_up() -> None:
    plain = case_of("quick", "--model.name=medium", "--data.name=synthetic")
    time, memory = forecast([plain] * 3, one_by_one=True, host_memory_bytes=GIB)
    assert time.startswith(
        "time: at least 15 s for 3 launches; each also takes its start-up and a warm-up of "
    )
    assert memory.endswith("activations not included)")
    compiled = case_of(SYNTHETIC, "--training.compile.enabled=true", "--training.precision=fp32")
    assert "activations not included" in forecast([compiled], one_by_one=False)[0]
