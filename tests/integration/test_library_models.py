"""Models of torchvision, timm and transformers: true sizes, counted work, mistakes in words; and runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gpuproof.base.errors import ExitCode, UsageError
from gpuproof.records.run import Failure, RankResult, Setup
from gpuproof.worker.step.flop_count import UncountableError, count_forward_flops, count_training_flops
from gpuproof.workloads.info.base import InputShape
from gpuproof.workloads.info.catalogue.encoder import VIT_B_16
from gpuproof.workloads.info.catalogue.resnet import RESNET18, RESNET50
from gpuproof.workloads.info.library_models import IMAGE_TYPES, MASKED_TYPES
from gpuproof.workloads.info.lookup import find_workload
from gpuproof.workloads.torch.own_module import blank_batch
from gpuproof.workloads.torch.torchvision_models import declare_missing_operators
from gpuproof.workloads.torch.torchvision_models import input_shape as torchvision_shape
from running import MEASURED, TINY, clean_environment, gpuproof, only_case, run_directory

LLAMA = {
    **{"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1},
    **{"intermediate_size": 64, "vocab_size": 50, "seq_len": 12},
}
BERT = {name: value for name, value in LLAMA.items() if name != "num_key_value_heads"}


def flops_of_a_sample(module: nn.Module, shape: InputShape, *, training: bool) -> float:
    batch = blank_batch(module, shape)
    if not training:
        return count_forward_flops(module, batch).total / len(batch)
    counted = count_training_flops(module, batch, batch, loss=lambda scores, _: scores.sum())
    return counted.total / len(batch)


def build(
    name: str, image_size: int | None = None, num_classes: int | None = None, **options: Any
) -> tuple[InputShape, nn.Module]:
    torch.manual_seed(0)
    info = find_workload(name)
    info.input_shape(options, image_size, num_classes)
    shape = info.resolve_shape(options, image_size, num_classes)
    return shape, info.resolve_implementation()(options, shape)


def num_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("name", ["torchvision/resnet50", "timm/resnet50", "transformers/resnet"])
def test_three_libraries_build_our_resnet50(name: str) -> None:
    shape, module = build(name, 32)
    work = RESNET50.work(RESNET50.options_type(), shape)
    assert work is not None
    assert num_parameters(module) == work.num_parameters == 25_557_032


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("torchvision/resnet18", {}),
        ("timm/resnet18", {}),
        (
            "transformers/resnet",
            {"layer_type": "basic", "depths": [2, 2, 2, 2], "hidden_sizes": [64, 128, 256, 512]},
        ),
    ],
)
def test_what_is_counted_is_what_our_closed_form_says(name: str, options: dict[str, Any]) -> None:
    shape, module = build(name, 32, **options)
    work = RESNET18.work(RESNET18.options_type(), shape)
    assert work is not None
    assert num_parameters(module) == work.num_parameters
    assert flops_of_a_sample(module, shape, training=False) == work.forward_flops
    assert flops_of_a_sample(module, shape, training=True) == work.training_flops
    assert all(parameter.grad is None for parameter in module.parameters())
    assert module.training


def test_torchvisions_vit_is_ours_and_its_fast_path_is_counted() -> None:
    shape, module = build("torchvision/vit_b_16", 32)
    work = VIT_B_16.work(VIT_B_16.options_type(), shape)
    assert work is not None
    assert num_parameters(module) == work.num_parameters
    # At 224 pixels it has positions for 196 patches and a class token; here for 4 and the token.
    assert work.num_parameters + 192 * 768 == 86_567_656
    assert flops_of_a_sample(module, shape, training=False) == work.forward_flops


@pytest.mark.parametrize(
    ("name", "options", "parameters"),
    [
        # Tied embedding 50·32, positions 16·32, two norms; a layer of 32·96+96, 32·32+32, 2·32·128+160, 4·32.
        (
            "transformers/gpt2",
            {"n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 50, "n_positions": 16, "seq_len": 12},
            1_600 + 512 + 64 + 3_168 + 1_056 + 8_352 + 128,
        ),
        # Embedding and head 2·1,600; 2·1,024 + 2·512 of attention, 3·32·64, and three norms.
        ("transformers/llama", LLAMA, 3_200 + 2_048 + 1_024 + 6_144 + 96),
        # Three further experts, and a router of 32·4.
        ("transformers/mixtral", {**LLAMA, "num_local_experts": 4}, 12_512 + 3 * 6_144 + 128),
        ("transformers/bert", BERT, 27_826),
    ],
)
def test_language_models_from_their_sizes(name: str, options: dict[str, Any], parameters: int) -> None:
    shape, module = build(name, **options)
    assert shape == InputShape(kind="tokens", shape=(12,), num_targets=50)
    assert num_parameters(module) == parameters
    assert module(torch.zeros(3, 12, dtype=torch.long)).shape == (3, 12, 50)
    forward, training = (flops_of_a_sample(module, shape, training=kind) for kind in (False, True))
    assert training == 3 * forward  # after an embedding every product has both its gradients


def test_experts_chosen_by_a_token_are_counted() -> None:
    shape, module = build("transformers/mixtral", **LLAMA, num_local_experts=4)
    # Of a token: 3·1,024 of attention, 2 experts of 6,144, a router of 128, the head; 4·12²·32 of a sequence.
    expected = 12 * 2 * (3 * 1_024 + 2 * 6_144 + 128 + 1_600) + 4 * 12**2 * 32
    assert flops_of_a_sample(module, shape, training=False) == expected


def test_a_grouped_convolution_costs_its_own_work_backwards() -> None:
    module = nn.Sequential(
        nn.Conv2d(8, 8, 3, groups=8, bias=False), nn.Flatten(), nn.Linear(8, 2, bias=False)
    )
    shape = InputShape(kind="image", shape=(8, 3, 3), num_targets=2)
    # 8 channels of 9 products, then 16; the first layer's input gradient is asked for by nobody.
    assert flops_of_a_sample(module, shape, training=True) == 2 * (2 * 72 + 3 * 16)


def test_a_product_that_torch_cannot_count_leaves_the_work_unknown() -> None:
    class OneScore(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(12))

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return torch.mv(images.flatten(1), self.weight)[:, None]

    shape = InputShape(kind="image", shape=(3, 2, 2), num_targets=1)
    with pytest.raises(UncountableError, match="torch's counter does not know mv"):
        flops_of_a_sample(OneScore(), shape, training=False)


def test_a_module_that_cannot_be_counted_is_left_as_it_was() -> None:
    class OneWay(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(12, 2)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.layer(images.flatten(1)).detach()  # type: ignore[no-any-return]

    module = OneWay()
    shape = InputShape(kind="image", shape=(3, 2, 2), num_targets=2)
    with pytest.raises(RuntimeError, match="element 0 of tensors does not require"):
        flops_of_a_sample(module, shape, training=True)
    assert module.training


def test_every_torchvision_classifier_has_a_size_and_every_type_its_task() -> None:
    declare_missing_operators()
    import transformers
    from torchvision import models

    sizes = {
        name: torchvision_shape(name, {}, None, None).shape[-1] for name in models.list_models(module=models)
    }
    assert {sizes[name] for name in ("resnet50", "vit_h_14", "vit_b_16")} == {224}
    assert (sizes["inception_v3"], sizes["swin_v2_t"], sizes["efficientnet_b1"]) == (299, 256, 240)
    for types, family in (
        (IMAGE_TYPES, transformers.AutoModelForImageClassification),
        (MASKED_TYPES, transformers.AutoModelForMaskedLM),
    ):
        known = types & set(transformers.CONFIG_MAPPING.keys())
        wrong = [name for name in known if transformers.CONFIG_MAPPING[name] not in family._model_mapping]
        assert not wrong
        assert len(known) > 15


def test_sizes_that_nobody_set_are_the_models_own() -> None:
    own = find_workload("timm/efficientnet_b1").resolve_shape({}, None, None)
    assert own == InputShape(kind="image", shape=(3, 240, 240), num_targets=1000)
    info = find_workload("torchvision/inception_v3")
    assert info.resolve_shape({}, None, 10).shape == (3, 299, 299)
    shape, module = build("timm/vit_tiny_patch16_224", 32, 7, depth=1)
    assert module(torch.zeros(1, *shape.shape)).shape == (1, 7)
    shape, module = build("transformers/vit", 32, 7, hidden_size=32, num_hidden_layers=1)
    assert module(torch.zeros(1, *shape.shape)).shape == (1, 7)


@pytest.mark.parametrize(
    ("name", "options", "image_size", "message"),
    [
        ("torchvision/resnet5", {}, None, "torchvision has no classifier 'resnet5'. Close to it: "),
        (
            "torchvision/resnet18",
            {"depth": 3},
            32,
            "model.options: torchvision cannot build resnet18 with these options: ",
        ),
        ("torchvision/googlenet", {}, 64, "Set model.options.aux_logits to false"),
        (
            "torchvision/squeezenet1_1",
            {},
            8,
            "torchvision/squeezenet1_1 does not accept images of 8 pixels: ",
        ),
        ("timm/resnet5", {}, None, "timm has no model 'resnet5'. Close to it: "),
        ("timm/resnet18.none", {}, None, "timm has no model 'resnet18.none'. Close to it: resnet18"),
        ("timm/resnet18", {"depth": 3}, 32, "model.options: timm cannot build resnet18 with these options: "),
        ("transformers/gtp2", {}, None, "transformers has no model type 'gtp2'. Close to it: gpt2"),
        (
            "transformers/gpt2",
            {"n_layers": 3},
            None,
            "model.options.n_layers: the configuration of gpt2 has no",
        ),
        ("transformers/gpt2", {"n_layer": "x"}, None, "gpt2 does not accept this configuration: "),
        ("transformers/gpt2", {"seq_len": 2000}, None, "accepts at most 1024 tokens, but seq_len is 2000"),
        ("transformers/vit:causal", {"vocab_size": 9}, None, "Write transformers/vit:image"),
    ],
)
def test_mistakes_are_told_in_words(
    name: str, options: dict[str, Any], image_size: int | None, message: str
) -> None:
    with pytest.raises(UsageError) as raised:
        build(name, image_size, **options)
    assert message in str(raised.value)


RUNS = {
    "torchvision/shufflenet_v2_x0_5": ("{}", 10, "samples"),
    "timm/resnet10t": ("{in_chans: 3}", 10, "samples"),
    "transformers/llama": (
        "{" + ", ".join(f"{option}: {value}" for option, value in LLAMA.items()) + "}",
        None,
        "tokens",
    ),
}


def words(name: str, options: str, num_classes: int | None) -> list[str]:
    own = ["--model.num_classes=null", "--data.image_size=null"]
    sizes = own if num_classes is None else [f"--model.num_classes={num_classes}", "--data.image_size=32"]
    steps = ["--benchmark.warmup_steps=0", "--benchmark.measure_steps=2", "--data.batch_size=2"]
    named = [f"--model.name={name}", f"--model.options={options}", "--run.run_id=m"]
    return ["run", "quick", *TINY, *steps, *sizes, *named, "--monitoring.enabled=false"]


@pytest.mark.parametrize("name", RUNS)
def test_a_model_of_each_library_trains(name: str, tmp_path: Path) -> None:
    options, num_classes, item = RUNS[name]
    result = gpuproof(*words(name, options, num_classes), cwd=tmp_path)
    assert result.returncode in MEASURED, result.stdout + result.stderr
    records = only_case(run_directory(tmp_path, "m"))
    (setup,), (end,) = records.of(Setup), records.of(RankResult)
    assert (setup.item, setup.flops_per_step) == (item, None)
    assert setup.flops_per_step_counted is not None
    assert setup.input_shape == ((12,) if item == "tokens" else (3, 32, 32))
    assert setup.flops_per_step_counted > 0
    assert end.last_loss is not None
    assert "per step, counted by torch" in " ".join(result.stdout.split())


def test_a_library_that_is_absent_is_named_with_what_to_install(tmp_path: Path) -> None:
    blocker = tmp_path / "blocker"
    blocker.mkdir()
    (blocker / "sitecustomize.py").write_text(
        "from importlib.machinery import PathFinder\n"
        "find_spec = PathFinder.find_spec\n"
        "PathFinder.find_spec = lambda name, *rest: None if name == 'timm' else find_spec(name, *rest)\n"
    )
    variables = clean_environment()
    path = ":".join(filter(None, (str(blocker), variables.get("PYTHONPATH"))))
    result = gpuproof(
        *words("timm/resnet18", "{}", 10), cwd=tmp_path, environment={**variables, "PYTHONPATH": path}
    )
    assert result.returncode == ExitCode.UNFIT_ENVIRONMENT
    (failure,) = only_case(run_directory(tmp_path, "m")).of(Failure)
    assert failure.message == "model.name: timm is not installed where the worker runs"
    assert (failure.next_step, failure.traceback) == ("pip install timm", None)
