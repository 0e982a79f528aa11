"""The load suite as configuration and launches: its twelve texts, lengths, readings and order."""

from __future__ import annotations

import pytest

from gpuproof.config.load import load_config
from gpuproof.config.settings import ConfigError
from gpuproof.records.case import InferenceWork, TrainingWork
from gpuproof.records.collected import CaseRecords
from gpuproof.records.work.window import MonitorSpec
from gpuproof.suites.load.plan import TESTS, points_of_tests, reading_interval_s
from planning import next_cases, settled, suite_of

TEXTS = {
    "train_simple_cnn_bs16": (
        "Small batch CNN training - Tests GPU efficiency with limited parallelism and memory usage"
    ),
    "train_simple_cnn_bs32": "Medium batch CNN training - Balanced test of GPU compute and memory bandwidth",
    "train_simple_cnn_bs64": (
        "Large batch CNN training - Tests GPU memory capacity and high-throughput compute"
    ),
    "train_resnet_bs8": (
        "Small batch ResNet training - Tests GPU with complex operations and moderate memory usage"
    ),
    "train_resnet_bs16": "Medium batch ResNet training - Balanced complex compute with memory efficiency",
    "train_resnet_bs32": "Large batch ResNet training - Stress test for GPU memory and complex operations",
    "inference_simple_cnn_bs16": "Small batch CNN inference - Tests low-latency inference scenarios",
    "inference_simple_cnn_bs32": "Medium batch CNN inference - Balanced inference throughput testing",
    "inference_simple_cnn_bs64": "Large batch CNN inference - High-throughput inference performance test",
    "inference_resnet_bs8": "Small batch ResNet inference - Complex model low-latency inference test",
    "inference_resnet_bs16": "Medium batch ResNet inference - Balanced complex inference workload",
    "inference_resnet_bs32": "Large batch ResNet inference - High-throughput complex model inference",
}


@pytest.mark.promise("S0.14", "F0.1")
def test_names_and_descriptions_are_those_of_the_file_format() -> None:
    assert {test.name: test.description for test in TESTS} == TEXTS
    assert [test.name for test in TESTS] == list(TEXTS)


@pytest.mark.promise("S0.10", "S0.11", "S0.12", "S0.13", "F0.3")
def test_each_test_is_a_recipe_of_its_own() -> None:
    config = load_config("load").config
    assert suite_of(config).name == "load"
    cases = next_cases(config)
    assert [case.case_id for case in cases] == list(TEXTS)
    works = [case.model_work for case in cases]
    assert [(w.kind, w.model.name, w.data.batch_size, w.window.measure_steps) for w in works] == [
        *(("training", "simple_cnn", batch, 600) for batch in (16, 32, 64)),
        *(("training", "resnet", batch, 600) for batch in (8, 16, 32)),
        *(("inference", "simple_cnn", batch, 200) for batch in (16, 32, 64)),
        *(("inference", "resnet", batch, 200) for batch in (8, 16, 32)),
    ]
    trained = [work.training for work in works if isinstance(work, TrainingWork)]
    assert [(each.optimizer, each.learning_rate) for each in trained] == [("Adam", 1e-3)] * 6
    assert {c.start for c in cases} == {"fork"}
    assert {(w.data.name, w.data.loading) for w in works} == {("synthetic", "device")}
    assert {(w.training.seed, w.training.precision) for w in works} == {(1337, "fp32")}
    assert all(w.window.warmup_steps > 0 for w in works)
    assert [w.inference.mode for w in works if isinstance(w, InferenceWork)] == ["throughput"] * 6
    assert [w.data.samples_per_epoch for w in works[:2]] == [3200, 6400]
    assert len(points_of_tests(config)) == 12


def test_what_was_launched_is_not_launched_again() -> None:
    config = load_config("load", ["--run.repeats=2"]).config
    cases = next_cases(config)
    assert [case.replicate for case in cases] == [0] * 12 + [1] * 12
    assert {case.start for case in cases} == {"exec"}
    launched = [CaseRecords(case=case, records=()) for case in cases[:5]]
    assert next_cases(config, launched) == cases[5:]
    assert suite_of(config).remaining(settled(config, launched)).num_launches == 19


@pytest.mark.parametrize(
    ("num_steps", "longest_s", "interval_s"),
    [
        (60, 5.0, 0.05),  # never less by itself
        (600, 5.0, 0.05),
        (4_000, 5.0, 0.1),  # ten in 4,000 steps of 0.25 ms
        (300_000, 5.0, 5.0),  # never more than asked
        (600, 0.01, 0.01),  # less, if asked
    ],
)
def test_readings_are_planned_for_the_shortest_steps(
    num_steps: int, longest_s: float, interval_s: float
) -> None:
    assert reading_interval_s(num_steps, longest_s=longest_s) == pytest.approx(interval_s)


def test_readings_of_the_host_come_with_those_of_the_devices() -> None:
    (first, *_) = next_cases(load_config("load", ["--load.metrics_sample_rate_s=0.02"]).config)
    assert first.monitor == MonitorSpec(interval_s=0.02, host_interval_s=0.02)
    (first, *_) = next_cases(load_config("load", ["--monitoring.enabled=false"]).config)
    assert first.monitor is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model.name=mlp"], "command line: model.name: each of the twelve tests of kind load sets"),
        (["--data.batch_size=8"], "data.batch_size: each of the twelve tests"),
        (["--benchmark.measure_steps=8"], "Set load.num_epochs and load.num_batches"),
        (["--monitoring.interval_s=1"], "Set load.metrics_sample_rate_s"),
        (["--serving.rate_per_s=5"], "serving.rate_per_s: each of the twelve tests"),
        (["--inference.mode=latency"], "inference.mode: each of the twelve tests"),
        (["--matrix.training.precision=[fp32, bf16]"], "already form a sweep. Remove matrix"),
        (["--search.kind=batch_size"], "already form a sweep. Remove search.kind"),
        (
            ["--kind=training", "--load.num_epochs=4"],
            "load.num_epochs: unknown key when kind is training: it belongs to kind load",
        ),
    ],
)
def test_what_could_only_be_ignored_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("load", words)
    assert said in str(caught.value)
