"""Keys that cannot hold together, or not with this workload or place: each is refused, its remedy is not."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gpuproof.base import registry
from gpuproof.config.inventory import InventoryHost
from gpuproof.config.load import load_config, place_refusals
from gpuproof.config.models import RunConfig
from gpuproof.config.rules.base import Facts, Refusal
from gpuproof.config.settings import ConfigError
from gpuproof.records.work.window import WindowSpec
from planning import next_cases

CAPTURE = "x.yaml:1: training.cuda_graphs: the step cannot be captured: "
GRAPHS = "cuda_graphs: true, precision: bf16"
PRUNED = "end_step: 9, target_sparsity: 0.7"
MAGNITUDE = f"pruning: {{method: magnitude, {PRUNED}}}"
BY_TIME = "benchmark: {measure_by: time, measure_seconds: 1}"
TENSORFLOW = "framework: tensorflow, precision: fp32, optimizer: adam"
FUSED = "optimizer_implementation: fused"

CASES = [
    (
        "training: {precision: amp, weights: precision}",
        "training: {precision: bf16, weights: precision}",
        "x.yaml:1: training.weights: amp's gradient scaler only accepts fp32 gradients, and those of "
        "fp16 weights are fp16. Set training.weights to fp32, or training.precision to bf16.",
    ),
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
        f"{CAPTURE}torch.compile creates its own graphs in mode max-autotune. ",
    ),
    (
        f"{{training: {{{GRAPHS}}}, distributed: {{nproc: 2}}}}",
        "{training: {precision: bf16}, distributed: {nproc: 2}}",
        f"{CAPTURE}a graph supports one rank only. Set distributed.nproc to 1.",
    ),
    (
        f"{{training: {{{GRAPHS}}}, distributed: {{device: cpu}}}}",
        f"{{training: {{{GRAPHS}}}, distributed: {{device: cuda}}}}",
        f"{CAPTURE}the device is cpu. ",
    ),
    (
        f"training: {{{GRAPHS}, optimizer: adamwspam}}",
        f"training: {{{GRAPHS}, optimizer: adamw}}",
        f"{CAPTURE}updates are not all identical with AdamWSpam, but a graph always replays the same "
        "operations. ",
    ),
    (
        "{kind: serving, serving: {rate_per_s: 5, clients: 2, target: noop}}",
        "{kind: serving, serving: {rate_per_s: 5, clients: 2, target: endpoint, endpoint: {url: 'http://h', "
        "model: m}}}",
        "x.yaml:1: serving.clients: one process issues the requests of target noop. Remove serving.clients, ",
    ),
    (
        "training: {pruning: {method: magnitude, end_step: 9}}",
        "training: {pruning: {method: magnitude, end_step: 9, target_sparsity: 0.7}}",
        "x.yaml:1: training.pruning.method: the fraction of weights to prune is not set: "
        "training.pruning.target_sparsity is null. Set training.pruning.target_sparsity, for example to 0.7.",
    ),
    (
        f"training: {{optimizer: adamw, pruning: {{method: state, {PRUNED}}}}}",
        f"training: {{optimizer: ADAMWPRUNE, pruning: {{method: state, {PRUNED}}}}}",
        "x.yaml:1: training.pruning.method: state pruning reads the moments of AdamWPrune, but the optimizer "
        "is AdamW. ",
    ),
    (
        f"training: {{optimizer: adamwprune, pruning: {{method: movement, {PRUNED}}}}}",
        f"training: {{optimizer: adamw, pruning: {{method: movement, {PRUNED}}}}}",
        "x.yaml:1: training.pruning.method: AdamWPrune prunes by its own moments, but the method is ",
    ),
    (
        f"{{{BY_TIME}, training: {{optimizer: AdamWAdv}}}}",
        f"{{{BY_TIME}, training: {{optimizer: AdamWAdv, total_steps: 9}}}}",
        "x.yaml:1: training.optimizer: AdamWAdv's learning rate falls over all updates, whose number is "
        "unknown: the window is measured by time. ",
    ),
    (
        f"{{training: {{{MAGNITUDE}}}, benchmark: {{measure_steps: 8, warmup_steps: 0}}}}",
        f"{{training: {{{MAGNITUDE}}}, benchmark: {{measure_steps: 9, warmup_steps: 0}}}}",
        "x.yaml:1: training.pruning.end_step: the target is reached at update 9, but warm-up and window "
        "have only 8 updates. ",
    ),
    (
        f"training: {{pruning: {{method: magnitude, {PRUNED}, begin_step: 9}}}}",
        f"training: {{pruning: {{method: magnitude, {PRUNED}, begin_step: 8}}}}",
        "x.yaml:1: training.pruning.begin_step: pruning starts after update 9 and ends at update 9. ",
    ),
    (
        f"{{training: {{pruning: {{method: magnitude, {PRUNED}}}}}, distributed: {{strategy: fsdp}}}}",
        f"{{training: {{pruning: {{method: magnitude, {PRUNED}}}}}, distributed: {{strategy: ddp}}}}",
        "x.yaml:1: distributed.strategy: pruning works on whole weights, but fsdp gives each rank a shard. ",
    ),
    (
        f"training: {{precision: amp, {FUSED}, pruning: {{method: movement, {PRUNED}}}}}",
        f"training: {{precision: bf16, {FUSED}, pruning: {{method: movement, {PRUNED}}}}}",
        "x.yaml:1: training.optimizer_implementation: a fused optimizer under amp skips updates on its own, ",
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
        "x.yaml:1: run.time_limit_s: the time limit of 60 s expires before the window of 60 s ends. ",
    ),
    (
        "data: {batch_size: 33, samples_per_epoch: 32}",
        "data: {batch_size: 32, samples_per_epoch: 32}",
        "x.yaml:1: data.samples_per_epoch: an epoch of 32 samples does not fill a batch of 33. "
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
        "Set data.path to the file that contains it, for example ./tokens.bin.",
    ),
    (
        "data: {name: ImageFolder, path: ./images, download: true}",
        "data: {name: CIFAR10, path: ./images, download: true}",
        "x.yaml:1: data.download: only CIFAR10, CIFAR100, FashionMNIST can be fetched, but data.name is "
        "ImageFolder. Set data.download to false.",
    ),
    (
        "data: {name: CIFAR10, path: d, download_url: 'http://m/c.tgz'}",
        "data: {name: CIFAR10, path: d, download: true, download_url: 'http://m/c.tgz'}",
        "x.yaml:1: data.download_url: data.download_url is set, but data.download is false: nothing is "
        "fetched. Set data.download to true, or data.download_url to null.",
    ),
    (
        "{data: {name: digits, held_out: 0.2, loading: loader}, benchmark: {evaluate_after: true}}",
        "{data: {name: digits, held_out: 0.2}, benchmark: {evaluate_after: true}}",
        "x.yaml:1: data.held_out: samples are held out of digits on the device, but a loader returns all of "
        "them. Set data.held_out to 0, or data.loading to device.",
    ),
    (
        "data: {name: digits, held_out: 0.2}",
        "{data: {name: digits, held_out: 0.2}, benchmark: {evaluate_after: true}}",
        "x.yaml:1: data.held_out: samples are held out but never used. "
        "Set benchmark.evaluate_after to true, or data.held_out to 0.",
    ),
    (
        "{data: {name: digits}, model: {num_classes: 9}}",
        "{data: {name: digits}, model: {num_classes: 10}}",
        "x.yaml:1: model.num_classes: digits has 10 classes, but the model has 9. "
        "Set model.num_classes to 10.",
    ),
    (
        "distributed: {device: simgpux}",
        "distributed: {device: xpu}",
        "x.yaml:1: distributed.device: no installed package "
        "provides the device type 'simgpux'. Use one of auto, ",
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
        "distributed: {nproc: 3, devices: [0, 1, 2]}",
        "x.yaml:1: distributed.devices: a device is listed twice in [0, 1, 0]. Name each device once.",
    ),
    (
        "distributed: {nproc: 3, devices: [0, 1]}",
        "distributed: {nproc: 2, devices: [0, 1]}",
        "x.yaml:1: distributed.nproc: 3 ranks are requested, but distributed.devices lists 2. ",
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
        "{data: {name: digits}}",
        "x.yaml:1: data.name: decode reads prompts of random tokens, but data.name is digits. ",
    ),
    (
        "{kind: inference, inference: {phase: decode, cuda_graphs: true}, distributed: {device: cpu}}",
        "{kind: inference, inference: {cuda_graphs: true}, distributed: {device: cpu}}",
        "x.yaml:1: inference.cuda_graphs: the step cannot be captured: the device is cpu. "
        "Set inference.cuda_graphs to false.",
    ),
    (
        f"{{model: {{name: resnet18}}, training: {{{TENSORFLOW}}}}}",
        f"{{model: {{name: large}}, training: {{{TENSORFLOW}}}}}",
        "x.yaml:1: model.name: under TensorFlow, model.name must be medium or large, not resnet18. ",
    ),
    (
        f"{{model: {{name: large}}, training: {{{TENSORFLOW}, cuda_graphs: true}}}}",
        f"{{model: {{name: large}}, training: {{{TENSORFLOW}, reduction: nccl}}}}",
        "x.yaml:1: training.cuda_graphs: this key is for torch, but training.framework is tensorflow. ",
    ),
    (
        "training: {reduction: nccl}",
        "training: {reduction: auto}",
        "x.yaml:1: training.reduction: training.reduction is how TensorFlow sums gradients, ",
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
        RunConfig(benchmark=WindowSpec(measure_by="time"))
    with pytest.raises(ValidationError, match="finite"):
        RunConfig(benchmark=WindowSpec(measure_by="time", measure_seconds=float("nan")))


def refused(text: str, facts: Facts, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(folder)
    Path("x.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config("x.yaml", facts=facts)
    return str(caught.value)


HERE = Facts(hosts=())
UNEVEN = tuple(InventoryHost(name=f"n{gpus}", address="a", place=f"c:{gpus}", gpus=gpus) for gpus in (1, 2))
UNSAID = tuple(InventoryHost(name=name, address=name, place="c:1") for name in "ab")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "model:\n  name: medum\n",
            "x.yaml:2: model.name: no workload is called 'medum'. Did you mean 'medium'?",
        ),
        (
            "model:\n  name: medium\n  options:\n    inputdim: 9\n",
            "x.yaml:4: model.options.inputdim: unknown option. Options of medium: ",
        ),
        (
            "model:\n  name: medium\n  options: {input_dim: wide}\n",
            "x.yaml:3: model.options.input_dim: expected a whole number",
        ),
        (
            "model:\n  name: medium\ndata:\n  name: digits\n",
            "x.yaml:4: data.name: medium expects features, but digits are images. ",
        ),
        (
            "model: {name: resnet18}\ndata:\n  name: CIFAR10\n  path: d\nmatrix:\n"
            "  model.name: [resnet18, lenet5]\n",
            "x.yaml:3: data.name: CIFAR10 are images with 3 channels, but lenet5 expects 1 "
            "(point model.name=lenet5)",
        ),
        (
            "model: {name: simple_cnn}\ndata:\n  name: CIFAR100\n  path: d\n",
            "x.yaml:3: data.name: CIFAR100 has 100 classes, but simple_cnn has 10 by default. ",
        ),
        (
            "kind: serving\nmodel: {name: gemm}\nserving: {rate_per_s: 1}\n",
            "x.yaml:1: kind: gemm is not a workload for kind: serving. ",
        ),
        (
            "kind: serving\nmodel: {name: medium}\nserving:\n  rate_per_s: 1\n  new_tokens: 3\n",
            "x.yaml:5: serving.new_tokens: medium has no key-value cache to generate tokens from. ",
        ),
        (
            "model: {name: resnet18}\ntraining: {precision: bf16}\n"
            "distributed:\n  strategy: tensor\n  nproc: 2\n",
            "x.yaml:4: distributed.strategy: resnet18 has no tensor-parallel plan: ",
        ),
        (
            "model: {name: medium}\ndistributed:\n  nodes: 2\n",
            "x.yaml:3: distributed.nodes: one job spans 2 hosts, but no hosts are named. ",
        ),
    ],
)
def test_what_the_workload_or_this_machine_does_not_go_with_is_told_by_line(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert refused(text, HERE, tmp_path, monkeypatch).startswith(message)


def test_a_refusal_of_some_points_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "data:\n  name: digits\nmatrix:\n  model.name: [resnet18, medium, transformer]\n"
    lines = refused(text, HERE, tmp_path, monkeypatch).splitlines()
    assert lines[1].strip() == (
        "x.yaml:2: data.name: medium expects features, but digits are images (point model.name=medium). "
        "Use data.name=synthetic, or a model of images."
    )
    assert "transformer expects tokens" in lines[2]


@pytest.mark.parametrize(
    ("text", "facts", "message"),
    [
        (
            "distributed: {nproc: 2}",
            Facts(is_attached=True),
            "x.yaml:1: distributed.nproc: 2 ranks were requested",
        ),
        ("run: {repeats: 3}", Facts(is_attached=True), "x.yaml:1: run.repeats: your own launcher"),
        (
            "matrix:\n  data.batch_size: [1, 2]\n",
            Facts(is_attached=True),
            "x.yaml:1: matrix: your own launcher starts each rank once, but each point",
        ),
        ("search: {kind: batch_size}", Facts(is_attached=True), "x.yaml:1: search.kind: your own launcher"),
        (
            "distributed: {nodes: 3}",
            Facts(hosts=UNSAID),
            "x.yaml:1: distributed.nodes: one job spans 3 hosts, but there are 2",
        ),
        (
            "distributed: {nodes: 2}",
            Facts(hosts=UNEVEN, is_one_job=True),
            "c:1: the hosts have different numbers",
        ),
        (
            "distributed: {devices: [0, 5]}",
            HERE,
            "x.yaml:1: distributed.devices: 2 devices are listed, but only 1 of them would be used: "
            "one per rank. Start 2 ranks (--nproc 2), or list one device per rank.",
        ),
        (
            "distributed: {nproc: 2}\nmatrix:\n  distributed.devices: [[0, 1], [0, 1, 2]]\n",
            HERE,
            "x.yaml:3: matrix.distributed.devices: 3 devices are listed, but only 2 of them would be used",
        ),
        (
            "distributed: {devices: [0, 5]}",
            Facts(is_attached=True, environment={"LOCAL_WORLD_SIZE": "1"}),
            "x.yaml:1: distributed.devices: 2 devices are listed, but only 1 of them would be used",
        ),
        (
            "matrix:\n  distributed.nproc: [1, 2]\n",
            Facts(hosts=UNEVEN),
            "x.yaml:2: matrix.distributed.nproc: the",
        ),
    ],
)
def test_what_the_place_cannot_give_is_told_by_line(
    text: str, facts: Facts, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert refused(text, facts, tmp_path, monkeypatch).startswith(message)


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("distributed: {nproc: 2, devices: [0, 5]}", HERE),
        ("distributed: {devices: [0, 5]}\nmatrix:\n  distributed.nproc: [1, 2]\n", HERE),
        ("matrix:\n  distributed.devices: [[0], [5]]\n", HERE),
        ("suite: scale\ndistributed: {devices: [0, 5]}", HERE),
        ("distributed: {devices: [0, 5]}", Facts(hosts=UNEVEN)),
        ("distributed: {devices: [0, 5]}", Facts(is_attached=True)),
        ("distributed: {devices: [0, 5]}", Facts(is_attached=True, environment={"LOCAL_WORLD_SIZE": "2"})),
    ],
)
def test_devices_are_named_for_as_many_ranks_or_to_be_chosen_among(
    text: str, facts: Facts, tmp_path: Path
) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text, encoding="utf-8")
    config = load_config(str(path), facts=facts).config
    assert config.distributed.devices in ((0, 5), None)


def test_a_launcher_that_counts_no_ranks_is_left_to_its_own_check(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("distributed: {strategy: fsdp}\n", encoding="utf-8")
    odd = Facts(environment={"RANK": "0", "WORLD_SIZE": "many"})
    assert load_config(str(path), facts=odd).config.distributed.strategy == "fsdp"


def test_a_refusal_of_what_was_set_nowhere_names_the_key() -> None:
    refusal = Refusal(keys=("kind",), cause="no", next_step="Set it")
    assert str(place_refusals([refusal], [])[0]) == "kind: no. Set it."


def test_a_workload_is_looked_up_once_however_many_launches_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry.forget()
    asked: list[str] = []

    def counted(*, group: str) -> Any:
        asked.append(group)
        return importlib.metadata.entry_points(group=group)

    monkeypatch.setattr(registry, "entry_points", counted)
    words = ["--model.name=medium", "--data.name=synthetic", "--run.repeats=3"]
    words += [f"--matrix.data.batch_size={list(range(1, 51))}"]
    config = load_config("quick", words, facts=HERE).config
    assert len(next_cases(config)) == len(next_cases(config)) == 150
    assert asked.count(registry.WORKLOADS) == 1
