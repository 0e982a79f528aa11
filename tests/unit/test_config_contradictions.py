"""Keys that are fine alone and cannot hold together: each pair is refused, its remedy is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from gpuproof.config.errors import ConfigError
from gpuproof.config.load import load_config
from gpuproof.config.models import RunConfig
from gpuproof.config.sections.benchmark import BenchmarkConfig

CAPTURE = "x.yaml:1: training.cuda_graphs: the step cannot be captured: "
GRAPHS = "cuda_graphs: true, precision: bf16"

CASES = [
    (
        "training: {cuda_graphs: true, precision: amp}",
        f"training: {{{GRAPHS}}}",
        f"{CAPTURE}amp's gradient scaler waits for the device in each step. Set training.precision to bf16.",
    ),
    (
        f"training: {{{GRAPHS}, activation_checkpointing: blocks}}",
        f"training: {{{GRAPHS}}}",
        f"{CAPTURE}checkpointing saves and restores the random state on the host. ",
    ),
    (
        f"training: {{{GRAPHS}, compile: {{enabled: true, mode: max-autotune}}}}",
        f"training: {{{GRAPHS}, compile: {{enabled: true, mode: max-autotune-no-cudagraphs}}}}",
        f"{CAPTURE}torch.compile makes graphs of its own in mode max-autotune. ",
    ),
    (
        f"{{training: {{{GRAPHS}}}, distributed: {{nproc: 2}}}}",
        "{training: {precision: bf16}, distributed: {nproc: 2}}",
        f"{CAPTURE}a graph holds one rank only. Set distributed.nproc to 1.",
    ),
    (
        f"{{training: {{{GRAPHS}}}, distributed: {{device: cpu}}}}",
        f"{{training: {{{GRAPHS}}}, distributed: {{device: cuda}}}}",
        f"{CAPTURE}the device is cpu. ",
    ),
    (
        "benchmark: {measure_by: time}",
        "benchmark: {measure_by: time, measure_seconds: 1}",
        "x.yaml:1: benchmark.measure_by: the window is measured by time, but "
        "benchmark.measure_seconds is null. Set benchmark.measure_seconds.",
    ),
    (
        "benchmark: {measure_steps: null}",
        "benchmark: {measure_steps: null, enabled: false}",
        "x.yaml:1: benchmark.measure_steps: the window is measured by steps, but benchmark.measure_steps "
        "is null. Set benchmark.measure_steps.",
    ),
    (
        "{benchmark: {measure_by: time, measure_seconds: 60}, run: {time_limit_s: 60}}",
        "{benchmark: {measure_by: time, measure_seconds: 60}, run: {time_limit_s: 61}}",
        "x.yaml:1: run.time_limit_s: the time limit of 60 s ends before the window of 60 s does. ",
    ),
    (
        "data: {batch_size: 33, samples_per_epoch: 32}",
        "data: {batch_size: 32, samples_per_epoch: 32}",
        "x.yaml:1: data.samples_per_epoch: an epoch of 32 samples holds no batch of 33. "
        "Set data.samples_per_epoch to 33 or more.",
    ),
    (
        "data: {name: CIFAR100}",
        "data: {name: CIFAR100, path: ./data}",
        "x.yaml:1: data.name: CIFAR100 is read from a folder, but data.path is null. ",
    ),
    (
        "data: {name: tokens}",
        "data: {name: tokens, path: ids.bin}",
        "x.yaml:1: data.name: tokens is read from a file, but data.path is null. "
        "Set data.path to the file that holds it, for example ./tokens.bin.",
    ),
    (
        "data: {name: ImageFolder, path: ./images, download: true}",
        "data: {name: CIFAR10, path: ./images, download: true}",
        "x.yaml:1: data.download: only CIFAR10 and CIFAR100 can be fetched, and data.name is ImageFolder. "
        "Set data.download to false.",
    ),
    (
        "data: {name: CIFAR10, path: d, download_url: 'http://m/c.tgz'}",
        "data: {name: CIFAR10, path: d, download: true, download_url: 'http://m/c.tgz'}",
        "x.yaml:1: data.download_url: data.download_url is set, but data.download is false: nothing is "
        "fetched. Set data.download to true, or data.download_url to null.",
    ),
    (
        "{data: {name: digits}, model: {num_classes: 9}}",
        "{data: {name: digits}, model: {num_classes: 10}}",
        "x.yaml:1: model.num_classes: digits has 10 classes, the model 9. Set model.num_classes to 10.",
    ),
    (
        "distributed: {device: cpu, devices: [0]}",
        "distributed: {device: cuda, devices: [0]}",
        "x.yaml:1: distributed.devices: device indices are given, but the device is cpu, which has none. ",
    ),
    (
        "distributed: {device: cpu, backend: nccl}",
        "distributed: {device: cpu, backend: gloo}",
        "x.yaml:1: distributed.backend: nccl connects GPUs, but the device is cpu. ",
    ),
    (
        "distributed: {devices: [0, 1, 0]}",
        "distributed: {devices: [0, 1, 2]}",
        "x.yaml:1: distributed.devices: a device is named twice in [0, 1, 0]. Name each device once.",
    ),
    (
        "distributed: {nproc: 3, devices: [0, 1]}",
        "distributed: {nproc: 2, devices: [0, 1]}",
        "x.yaml:1: distributed.nproc: 3 ranks are asked for, but distributed.devices names 2. ",
    ),
    (
        "{kind: inference, benchmark: {sync_cuda: true}}",
        "{kind: inference, benchmark: {sync_cuda: true}, inference: {mode: latency}}",
        "x.yaml:1: benchmark.sync_cuda: inference in throughput mode queues its steps, but ",
    ),
    (
        "{kind: inference, inference: {mode: latency}, benchmark: {log_step_times: false}}",
        "{kind: inference, benchmark: {log_step_times: false}}",
        "x.yaml:1: benchmark.log_step_times: latencies are step times, but ",
    ),
    (
        "{kind: inference, inference: {phase: decode}, data: {name: digits}}",
        "{inference: {phase: decode}, data: {name: digits}}",
        "x.yaml:1: data.name: decode reads prompts of drawn tokens, and data.name is digits. ",
    ),
    (
        "{kind: inference, inference: {phase: prefill}, training: {compile: {enabled: true}}}",
        "{kind: inference, training: {compile: {enabled: true}}}",
        "x.yaml:1: training.compile.enabled: prefill works on a cache that grows, ",
    ),
    (
        "{kind: inference, inference: {phase: decode}, distributed: {strategy: tensor}}",
        "{kind: inference, distributed: {strategy: tensor}}",
        "x.yaml:1: distributed.strategy: decode keeps a whole cache on each rank, ",
    ),
]


@pytest.mark.parametrize(("wrong", "right", "message"), CASES)
def test_each_contradiction_is_refused_and_its_remedy_accepted(
    wrong: str, right: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.yaml").write_text(wrong, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config("x.yaml")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    Path("x.yaml").write_text(right, encoding="utf-8")
    assert load_config("x.yaml").source == "x.yaml"


def test_what_is_merely_without_effect_is_no_contradiction(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(
        "training: {optimizer: Adam, momentum: 0.5}\n"
        "distributed: {device: cpu}\nmodel: {channels_last: true}\n",
        encoding="utf-8",
    )
    assert load_config(str(path)).config.training.momentum == 0.5


def test_a_misspelt_remedy_is_told_without_the_contradiction_that_it_causes(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("benchmark: {measure_by: time, measure_secnds: 5}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(str(path))
    assert "did you mean measure_seconds?" in str(caught.value)
    assert "is null" not in str(caught.value)


def test_the_defaults_agree_and_a_config_built_in_python_refuses_contradictions_too() -> None:
    assert RunConfig().benchmark.measure_steps == 2000
    with pytest.raises(ValidationError, match=r"benchmark\.measure_by: the window is measured by time"):
        RunConfig(benchmark=BenchmarkConfig(measure_by="time"))
    with pytest.raises(ValidationError, match="finite"):
        BenchmarkConfig(measure_by="time", measure_seconds=float("nan"))
