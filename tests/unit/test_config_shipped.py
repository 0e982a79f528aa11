"""The shipped recipe and configs; every key set from the command line, and set wrongly."""

from __future__ import annotations

import functools
import json
import operator
from pathlib import Path
from typing import Any

import pytest

from gpuproof.config.keys import all_keys
from gpuproof.config.load import load_config, recipe_names
from gpuproof.config.models import CasesConfig, CommandConfig, RunConfig
from gpuproof.config.settings import ConfigError, KeyPath, dotted
from gpuproof.records.work.collective import CollectiveSpec
from gpuproof.records.work.data import InferenceSpec
from gpuproof.records.work.probe import ProbeSpec

CONFIGS = Path(__file__).parent.parent.parent / "configs"

OTHER_VALUES: dict[str, Any] = {
    "data.held_out": 0.2,
    "run.target_precision": 0.02,
    "probe.pattern.time_limit_s": 30.0,
    "serving.search_lowest_per_s": 0.5,
    "training.framework": "tensorflow",
    "training.reduction": "nccl",
    "kind": "inference",
    "inference.mode": "latency",
    "inference.weights": "fp32",
    "inference.cuda_graphs": False,
    "training.weights": "precision",
    "inference.phase": "decode",
    "data.name": "digits",
    "data.path": "elsewhere",
    "data.image_size": 64,
    "data.loading": "loader",
    "data.split": "test",
    "data.token_type": "uint32",
    "data.download_url": "http://mirror/cifar.tar.gz",
    "data.download_checksum": "md5:eb9058c3a382ffc7106e4002c42a8d85",
    "model.name": "mlp",
    "model.num_classes": 10,
    "model.options": {"hidden": [8, 8]},
    "training.precision": "bf16",
    "training.optimizer": "Adam",
    "training.momentum": 0.5,
    "training.grad_clip_norm": 1.5,
    "training.optimizer_implementation": "fused",
    "training.activation_checkpointing": "blocks",
    "training.compile.mode": "max-autotune",
    "training.compile.dynamic": True,
    "training.weight_decay": 0.25,
    "training.pruning.method": "magnitude",
    "training.pruning.target_sparsity": 0.5,
    "training.pruning.schedule": "linear",
    "training.pruning.begin_step": 5,
    "training.pruning.end_step": 40,
    "training.total_steps": 400,
    "benchmark.measure_by": "time",
    "benchmark.measure_seconds": 7.5,
    "benchmark.min_seconds": 2.0,
    "distributed.backend": "gloo",
    "distributed.device": "cuda",
    "distributed.devices": [3, 1],
    "distributed.threads_per_rank": 2,
    "distributed.world_size": 1,
    "distributed.local_rank": 0,
    "distributed.node_rank": 0,
    "distributed.strategy": "fsdp",
    "distributed.shard_size": 2,
    "distributed.tensor_parallel_size": 2,
    "distributed.gradient_compression": "fp16",
    "distributed.communication_profile": "tree",
    "distributed.memory_limit_bytes": 12 * 2**30,
    "run.experiment_name": "other",
    "run.run_id": "2026-11-20.a_1",
    "run.save_dir": "elsewhere",
    "run.commit_hash": "0123abc",
    "run.notes": "a note",
    "run.time_limit_s": 900.5,
    "run.start": "fork",
    "run.summary_csv": "epochs",
    "run.order_seed": 7,
    "matrix": {"training.precision": ["fp32", "bf16"]},
    "search.kind": "batch_size",
    "search.step": 4,
    "serving.target": "noop",
    "serving.scenario": "closed_loop",
    "serving.arrivals": "constant",
    "serving.burstiness": 0.5,
    "serving.trace": "trace.jsonl",
    "serving.lengths.shape": "lognormal",
    "serving.lengths.prompt_spread": 0.5,
    "serving.lengths.new_spread": 0.5,
    "serving.shared_prefix.share": 0.5,
    "serving.shared_prefix.number": 4,
    "serving.endpoint.api": "chat",
    "serving.conversation.turns": 4,
    "serving.conversation.think_s": 0.5,
    "serving.rate_per_s": 250.5,
    "serving.latency_bound_s": 0.25,
    "serving.latency_percentile": 95.0,
    "serving.prompt_tokens": 32,
    "serving.new_tokens": 16,
    "serving.clients": 2,
    "serving.endpoint.url": "http://host:8000/v1",
    "serving.endpoint.model": "tiny",
    "serving.endpoint.api_key_variable": "TINY_KEY",
    "serving.bounds.ttft_s": 0.5,
    "serving.bounds.ttft_percentile": 95.0,
    "serving.bounds.tpot_s": 0.05,
    "serving.bounds.tpot_percentile": 95.0,
    "serving.bounds.goodput_percentile": 95.0,
    "collective.operations": ["broadcast", "all_gather"],
    "collective.dtype": "float16",
    "collective.reduction": "max",
    "collective.root": 1,
    "monitoring.host_interval_s": 0.5,
    "probe.name": "overlap",
    "probe.link.host_memory": ["pinned"],
    "probe.pattern.memory_share": 0.5,
    "probe.pattern.patterns": ["address", "random"],
    "probe.pattern.seed": 3,
    "probe.fingerprint.dtypes": ["fp32"],
    "probe.fingerprint.seed": 3,
    "probe.storage.folder": "scratch",
    "probe.nccl_tests.program": "broadcast_perf",
    "command.argv": ["python", "train.py"],
    "command.cwd": "elsewhere",
    "command.env": {"LEVEL": "3"},
    "command.collect": ["*.log"],
    "command.metrics": "metrics.json",
    "command.time_limit_s": 60.0,
    "cases.name": "size-{size}",
    "cases.fields": {"epochs": 2},
    "cases.only": ["size=1"],
    "cases.wait_for_memory": 1024,
    "cases.seed": "size",
    "cases.metric": "loss",
    "cases.better": "lower",
}
"""A value other than the default for each key that doubling gives none."""


CIFAR = ["--data.name=CIFAR10", "--data.path=d"]
COLLECTIVE = ["--kind=collective", "--distributed.nproc=2"]
SEARCH = ["--search.kind=batch_size"]
LOAD = ["--kind=load"]
PERCEPTRON = ["--model.name=medium", "--data.name=synthetic", "--training.precision=fp32"]
FOLDER = ["--probe.storage.folder=scratch"]
PROBES = ("link", "pattern", "fingerprint", "overlap", "storage", "nccl_tests", "nccl_ras")
SERVED = ["--kind=serving", "--serving.bounds.ttft_s=1"]
ENDPOINT = ["--serving.target=endpoint", "--serving.endpoint.url=http://h/v1", "--serving.endpoint.model=m"]
TALK = [*ENDPOINT, "--serving.scenario=closed_loop"]
OF_TEXTS = ("serving.trace", "serving.lengths.", "serving.shared_prefix.", "serving.clients")
SERVING_KEYS = [dotted(path) for path in all_keys() if path[0] == "serving"]
COMMAND = ["--kind=command", "--command.argv=[python, t.py, '{size}']", "--matrix.size=[1,2]"]
NEEDS = {
    "distributed.devices": ["--distributed.nproc=2"],
    "benchmark.measure_by": ["--benchmark.measure_seconds=5"],
    "distributed.shard_size": ["--distributed.strategy=hsdp", "--distributed.nproc=4"],
    "distributed.tensor_parallel_size": [
        *("--distributed.strategy=tensor", "--distributed.nproc=2"),
        "--training.precision=bf16",
    ],
    "data.held_out": ["--data.name=digits", "--benchmark.evaluate_after=true"],
    "data.download": CIFAR,
    "data.download_url": [*CIFAR, "--data.download=true"],
    "data.download_checksum": [*CIFAR, "--data.download=true"],
    "run.order_seed": ["--matrix.data.batch_size=[1,2]"],
    **dict.fromkeys(("load.num_epochs", "load.num_batches", "load.metrics_sample_rate_s"), LOAD),
    **dict.fromkeys((f"collective.{key}" for key in CollectiveSpec.types()), COLLECTIVE),
    **dict.fromkeys(("search.start", "search.factor", "search.up_to", "search.step"), SEARCH),
    "training.cuda_graphs": ["--training.precision=bf16"],
    "training.weights": ["--training.precision=bf16"],
    "probe.name": ["--kind=probe"],
    **{f"inference.{key}": ["--kind=inference"] for key in InferenceSpec.types()},
    "inference.phase": ["--kind=inference", "--model.name=decoder"],
    **{
        f"probe.{probe}.{key}": [
            "--kind=probe",
            f"--probe.name={probe}",
            *(FOLDER if probe == "storage" and key != "folder" else []),
        ]
        for probe in PROBES
        for key in getattr(ProbeSpec(), probe).types()
    },
    "command.argv": ["--kind=command"],
    **dict.fromkeys((f"command.{key}" for key in CommandConfig.types() if key != "argv"), COMMAND),
    **dict.fromkeys((f"cases.{key}" for key in CasesConfig.types()), COMMAND),
    "cases.fields": [*COMMAND, "--command.argv=[python, t.py, '{size}', '{epochs}']"],
    **dict.fromkeys(SERVING_KEYS, SERVED),
    "serving.burstiness": [*SERVED, "--serving.arrivals=gamma"],
    **{f"serving.conversation.{key}": [*SERVED, *TALK] for key in ("turns", "think_s")},
    **{key: [*SERVED, *ENDPOINT] for key in SERVING_KEYS if key.startswith(OF_TEXTS)},
    "serving.bounds.ttft_s": ["--kind=serving"],
    "serving.target": ["--kind=serving", "--serving.latency_bound_s=1"],
    "training.framework": PERCEPTRON,
    "training.reduction": [*PERCEPTRON, "--training.framework=tensorflow"],
    "training.pruning.method": ["--training.pruning.target_sparsity=0.5"],
}
"""What must be set with a key for its other value to make sense."""


def other_value(name: str, default: Any) -> Any:
    if isinstance(default, bool):
        return not default
    return OTHER_VALUES[name] if name in OTHER_VALUES else default * 2


@pytest.mark.parametrize("path", [path for path in all_keys() if path != ("suite",)], ids=dotted)
@pytest.mark.promise("S1.2")
def test_every_key_can_be_set_from_the_command_line(path: KeyPath, tmp_path: Path) -> None:
    file, name = tmp_path / "run.yaml", dotted(path)
    file.write_text("kind: training\n", encoding="utf-8")
    default = functools.reduce(getattr, path, RunConfig())
    value = other_value(name, default)
    assert value != default
    word = f"--{name}={value if isinstance(value, str) else json.dumps(value)}"
    loaded = load_config(str(file), [word, *NEEDS.get(name, [])])
    assert functools.reduce(operator.getitem, path, loaded.config.model_dump(mode="json")) == value
    below = [key for key in loaded.origins if key.startswith(f"{name}.")]
    assert {loaded.origins[key] for key in below or [name]} == {"command line"}


@pytest.mark.parametrize("path", list(all_keys()), ids=dotted)
def test_every_key_refuses_what_it_does_not_take_and_says_what_it_takes(
    path: KeyPath, tmp_path: Path
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "".join(f"{'  ' * depth}{part}:\n" for depth, part in enumerate(path)).rstrip() + " [[1]]\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_config(str(file))
    assert str(caught.value).startswith(f"{file}:{len(path)}: {dotted(path)}: expected ")
    assert ", found [[1]]. " in str(caught.value)


def test_every_recipe_loads() -> None:
    assert "quick" in recipe_names()
    for name in recipe_names():
        assert load_config(name).source == f"recipe {name}"


def test_the_quick_recipe_is_five_launches_or_more_of_resnet18_on_digits() -> None:
    config = load_config("quick").config
    assert (config.kind, config.model.name, config.model.num_classes) == ("training", "resnet18", 10)
    assert (config.data.name, config.data.image_size, config.data.batch_size) == ("digits", 32, 32)
    assert (config.training.precision, config.training.optimizer) == ("fp32", "SGD")
    assert (config.benchmark.warmup_steps, config.benchmark.measure_by) == (3, "time")
    assert (config.benchmark.measure_seconds, config.run.repeats) == (4.0, 5)
    assert (config.run.target_precision, config.run.target_time_s) == (0.03, 60)


COMMON: dict[str, dict[str, Any]] = {
    "data": {
        "batch_size": 256,
        "num_workers": 8,
        "pin_memory": True,
        "prefetch_factor": 4,
        "persistent_workers": True,
    },
    "model": {"name": "resnet50", "channels_last": True},
    "training": {
        "precision": "amp",
        "weight_decay": 0.0,
        "momentum": 0.9,
        "grad_clip_norm": None,
        "seed": 1337,
        "cudnn_benchmark": True,
    },
    "benchmark": {
        "enabled": True,
        "warmup_steps": 100,
        "measure_by": "steps",
        "measure_steps": 2000,
        "measure_seconds": None,
        "log_step_times": True,
        "sync_cuda": False,
        "evaluate_after": False,
    },
    "distributed": {
        "backend": "auto",
        "gradient_accumulation_steps": 1,
        "world_size": None,
        "local_rank": None,
        "node_rank": None,
    },
    "run": {"run_id": None, "save_dir": "./results", "capture_env": True, "commit_hash": "auto"},
}


@pytest.mark.parametrize(
    ("file", "own"),
    [
        ("synthetic_resnet50.yaml", ("synthetic", None, 1000, 3, "SGD", 0.1, False)),
        ("cifar100_resnet50.yaml", ("CIFAR100", "./data", 100, 10, "Adam", 0.001, True)),
    ],
)
@pytest.mark.promise("S1.15", "S1.26", "F1.2")
def test_the_shipped_configs_hold_the_values_of_the_seed(file: str, own: tuple[object, ...]) -> None:
    loaded = load_config(str(CONFIGS / file))
    values = loaded.config.model_dump(mode="json")
    for section, expected in COMMON.items():
        assert {key: values[section][key] for key in expected} == expected
        assert all(loaded.origins[f"{section}.{key}"].startswith(str(CONFIGS / file)) for key in expected)
    training = values["training"]
    assert own == (
        values["data"]["name"],
        values["data"]["path"],
        values["model"]["num_classes"],
        training["epochs"],
        training["optimizer"],
        training["learning_rate"],
        training["compile"]["enabled"],
    )
    assert values["run"]["experiment_name"] == Path(file).stem
