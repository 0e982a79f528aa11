"""Keys that change nothing here are named with the reason, and no others are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuproof.accelerators.choose import find_accelerator
from gpuproof.records.case import Case
from gpuproof.records.work.data import LOADER_KEYS, InferenceSpec
from gpuproof.records.work.training import CompileSpec
from gpuproof.worker.step.applicability import not_applied
from gpuproof.workloads.info.base import InputShape
from records_by_hand import case, with_work

IMAGES = InputShape(kind="image", shape=(1, 64, 64), num_targets=10)
FEATURES = InputShape(kind="features", shape=(50,), num_targets=3)
INFERENCE = {f"inference.{key}" for key in InferenceSpec.types()}
TOKENS = InputShape(kind="tokens", shape=(12,), num_targets=50)

PRECISION = {"benchmark.target_precision", "benchmark.min_steps"}
IDLE_LOADER = {f"data.{key}" for key in LOADER_KEYS}


def keys(
    asked: Case,
    *,
    device_type: str = "cuda",
    shape: InputShape = IMAGES,
    world_size: int = 2,
) -> dict[str, str]:
    found = not_applied(asked, accelerator=find_accelerator(device_type), shape=shape, world_size=world_size)
    assert len({item.key for item in found}) == len(found)
    return {item.key: item.reason for item in found}


def test_on_a_gpu_with_a_window_only_the_epochs_are_idle() -> None:
    assert set(keys(case())) == {
        "training.epochs",
        "data.samples_per_epoch",
        *INFERENCE,
        *PRECISION,
        *IDLE_LOADER,
    }
    by_precision = {"measure_by": "precision", "target_precision": 0.01, "measure_seconds": 60.0}
    assert PRECISION.isdisjoint(keys(case(window=by_precision)))


@pytest.mark.promise("S1.26")
def test_seconds_that_do_not_end_the_window_are_idle() -> None:
    key = "benchmark.measure_seconds"
    by_steps = {"measure_by": "steps", "measure_seconds": 5.0}
    assert "(benchmark.measure_by=time)" in keys(case(window=by_steps))[key]
    assert key not in keys(case(window={"measure_by": "steps", "measure_seconds": None}))
    assert key not in keys(case(window={"measure_by": "time", "measure_seconds": 5.0}))
    least = "benchmark.min_seconds"
    assert least not in keys(case(window={**by_steps, "min_seconds": 2.0}))
    assert "by time" in keys(case(window={**by_steps, "measure_by": "time", "min_seconds": 2.0}))[least]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"model": {"channels_last": True}}, "model.channels_last"),
        ({"training": {"cudnn_benchmark": True}}, "training.cudnn_benchmark"),
        ({"window": {"sync_cuda": True}}, "benchmark.sync_cuda"),
    ],
)
@pytest.mark.promise("S1.5")
def test_what_is_for_cuda_is_idle_on_a_cpu(changes: dict[str, Any], key: str) -> None:
    assert key in keys(case(**changes), device_type="cpu")
    assert key not in keys(case(**changes), device_type="cuda")


def test_a_processor_alone_keeps_what_steps_free() -> None:
    asked = case(training={"keep_freed_memory": True})
    assert "device memory" in keys(asked)["training.keep_freed_memory"]
    assert "training.keep_freed_memory" not in keys(asked, device_type="cpu")
    assert "training.keep_freed_memory" not in keys(case())


def test_a_layout_of_images_is_idle_without_images_and_said_once() -> None:
    asked = case(model={"channels_last": True})
    assert keys(asked, shape=FEATURES)["model.channels_last"] == "resnet18 does not use images"
    assert "on the CPU" in keys(asked, shape=FEATURES, device_type="cpu")["model.channels_last"]


def test_how_weights_are_stored_is_said_by_the_block_of_the_kind() -> None:
    assert "kind of this run is training" in keys(case())["inference.weights"]
    asked = case(kind="inference", training={"weights": "precision"})
    assert "inference.weights applies instead" in keys(asked)["training.weights"]
    assert "inference.weights" not in keys(asked)
    own = case(kind="inference", model={"name": "python:package.module:Class"})
    assert (own.model_work.stored_type, own.model_work.weights) == ("float32", "precision")
    assert case(kind="inference", precision="bf16").model_work.stored_type == "bfloat16"


def test_inference_has_no_optimizer() -> None:
    asked = case(
        kind="inference", training={"grad_clip_norm": 1.0}, parallel={"gradient_accumulation_steps": 4}
    )
    idle = {"optimizer", "learning_rate", "weight_decay", "momentum", "grad_clip_norm", "epochs"}
    idle |= {"optimizer_implementation"}
    expected = {f"training.{key}" for key in idle} | {"distributed.gradient_accumulation_steps"}
    assert set(keys(asked)) == expected | {
        "inference.prompt_tokens",
        "inference.new_tokens",
        "inference.cuda_graphs",
        "data.samples_per_epoch",
        *PRECISION,
        *IDLE_LOADER,
    }


@pytest.mark.parametrize(
    ("phase", "idle"),
    [
        ("forward", {"inference.prompt_tokens", "inference.new_tokens", "inference.cuda_graphs"}),
        ("prefill", {"inference.new_tokens", "model.options.seq_len"}),
        ("decode", {"model.options.seq_len"}),
    ],
)
def test_a_phase_of_inference_has_lengths_of_its_own(phase: str, idle: set[str]) -> None:
    found = keys(case(kind="inference", inference={"phase": phase}), shape=TOKENS)
    assert {key for key in found if key.startswith(("inference.", "model.options."))} == idle


def test_latency_mode_waits_for_every_step_unasked() -> None:
    asked = case(kind="inference", window={"sync_cuda": True}, inference={"mode": "latency"})
    assert "waits for every step" in keys(asked)["benchmark.sync_cuda"]


def test_adam_has_no_momentum() -> None:
    assert "training.momentum" in keys(case(training={"optimizer": "Adam"}))
    assert "training.momentum" not in keys(case(training={"optimizer": "Adam", "momentum": 0.0}))


def test_adamw_has_no_momentum_either() -> None:
    of_adamw = keys(case(training={"optimizer": "AdamW"}))
    assert of_adamw["training.momentum"].startswith("AdamW does not use it")


def test_inference_keeps_nothing_to_compute_again() -> None:
    asked = {"activation_checkpointing": "blocks"}
    assert "training.activation_checkpointing" in keys(case(kind="inference", training=asked))
    assert "training.activation_checkpointing" not in keys(case(training=asked))


def test_deterministic_mode_lets_cudnn_time_nothing() -> None:
    asked = {"cudnn_benchmark": True, "deterministic": True}
    assert "deterministic" in keys(case(training=asked))["training.cudnn_benchmark"]
    assert "cuDNN runs on CUDA" in keys(case(training=asked), device_type="cpu")["training.cudnn_benchmark"]


def test_graphs_of_the_compiler_are_for_cuda() -> None:
    asked = CompileSpec(enabled=True, mode="reduce-overhead")
    assert "training.compile.mode" in keys(case(training={"compile": asked}), device_type="cpu")
    assert "training.compile.mode" not in keys(case(training={"compile": asked}))
    off = keys(case(training={"compile": replace(asked, enabled=False)}), device_type="cpu")
    assert off["training.compile.mode"] == "training.compile.enabled is false"


def test_how_to_compile_is_idle_without_compiling() -> None:
    asked = CompileSpec(fullgraph=True, dynamic=False)
    idle = {"training.compile.fullgraph", "training.compile.dynamic"}
    assert idle <= set(keys(case(training={"compile": asked})))
    assert not idle & set(keys(case(training={"compile": replace(asked, enabled=True)})))


def test_either_the_window_or_the_epochs_decide_the_length() -> None:
    idle = keys(case(window={"enabled": False}, data={"name": "synthetic"}))
    lengths = {
        f"benchmark.{key}"
        for key in ("warmup_steps", "measure_by", "measure_steps", "min_seconds", "measure_seconds")
    }
    assert set(idle) - INFERENCE == lengths | PRECISION | IDLE_LOADER


def test_a_compile_mode_needs_compiling() -> None:
    asked = CompileSpec(mode="max-autotune")
    assert "training.compile.mode" in keys(case(training={"compile": asked}))
    assert "training.compile.mode" not in keys(case(training={"compile": replace(asked, enabled=True)}))


def test_a_regression_has_no_classes() -> None:
    assert "model.num_classes" in keys(case(model={"name": "medium"}), shape=FEATURES)


def test_no_loader_runs() -> None:
    assert "no loader runs" in keys(case(loader={"num_workers": 8}))["data.num_workers"]


LOADER = {"num_workers": 2, "pin_memory": True, "prefetch_factor": 4, "persistent_workers": True}


def test_with_a_loader_its_keys_count_but_for_what_the_machine_lacks() -> None:
    asked = case(loader=LOADER, data={"loading": "loader"})
    loader_keys = {f"data.{key}" for key in LOADER}
    assert not loader_keys & set(keys(asked))
    assert keys(asked, device_type="cpu")["data.pin_memory"] == "there is no GPU to copy to"
    inside = case(loader={**LOADER, "num_workers": 0}, data={"loading": "loader"})
    assert loader_keys & set(keys(inside)) == {"data.prefetch_factor", "data.persistent_workers"}
    quiet = {"num_workers": 0, "pin_memory": False, "prefetch_factor": None, "persistent_workers": False}
    assert not loader_keys & set(keys(case(loader=quiet, data={"loading": "loader"}), device_type="cpu"))


def test_keys_of_other_data_sets_are_idle() -> None:
    asked = case(data={"path": "d", "split": "test", "token_type": "uint32"})
    assert {"data.path", "data.split", "data.token_type"} <= set(keys(asked))
    asked = case(data={"name": "CIFAR10", "path": "d", "split": "test"})
    assert not {"data.path", "data.split"} & set(keys(asked))
    tokens = case(data={"name": "tokens", "path": "d", "token_type": "uint32"})
    assert not {"data.path", "data.token_type"} & set(keys(tokens, shape=TOKENS))
    drawn = case(data={"name": "synthetic", "samples_per_epoch": 7})
    assert "data.samples_per_epoch" not in keys(drawn)


def test_one_rank_talks_to_nobody() -> None:
    idle = keys(case(parallel={"backend": "gloo"}), world_size=1)
    assert {"distributed.backend", "distributed.timeout_s"} <= set(idle)


def test_several_ranks_are_not_forked() -> None:
    asked = replace(case(), start="fork")
    assert "with exec" in keys(asked, world_size=2)["run.start"]
    assert "run.start" not in keys(asked, world_size=1)


@pytest.mark.parametrize(
    ("shape", "instead"),
    [(FEATURES, "model.options.output_dim"), (TOKENS, "model.options.vocab_size")],
    ids=["features", "tokens"],
)
def test_sizes_of_images_and_classes_are_idle_without_images(shape: InputShape, instead: str) -> None:
    asked = case(model={"num_classes": 10}, data={"image_size": 64})
    found = keys(asked, shape=shape)
    assert found["data.image_size"] == "resnet18 does not use images"
    assert instead in found["model.num_classes"]
    assert not {"data.image_size", "model.num_classes"} & set(keys(asked, shape=IMAGES))
    unset = case(model={"num_classes": None}, data={"image_size": None})
    assert not {"data.image_size", "model.num_classes"} & set(keys(unset, shape=shape))


@pytest.mark.parametrize(
    ("parallel", "key"),
    [({"strategy": "fsdp"}, "strategy"), ({"gradient_compression": "fp16"}, "gradient_compression")],
)
def test_one_rank_has_nobody_to_share_a_model_with(parallel: dict[str, Any], key: str) -> None:
    assert f"distributed.{key}" in keys(case(parallel=parallel), world_size=1)
    assert f"distributed.{key}" not in keys(case(parallel=parallel), world_size=2)


def test_a_workload_names_the_keys_that_change_nothing_for_it() -> None:
    asked = case(kind="inference", model={"name": "memory"}, training={"precision": "bf16"})
    assert "4-byte numbers" in keys(asked, shape=FEATURES)["training.precision"]
    assert "training.precision" not in keys(
        with_work(asked, model=replace(asked.model_work.model, name="gemm")), shape=FEATURES
    )
