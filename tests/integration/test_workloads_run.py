"""Every built-in model, tiny, trained and run by the real command; what a sample and an item are there."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpuproof.base.errors import UsageError
from gpuproof.cli.main import cli
from gpuproof.records.case import ModelWork, TrainingWork
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Evaluation, RankResult, Setup, Window
from running import MEASURED, TINY, gpuproof, only_case, run_directory

STEPS = (
    *("--benchmark.warmup_steps=0", "--benchmark.measure_steps=1", "--data.batch_size=2"),
    "--monitoring.enabled=false",
)
KINDS = ("training", "inference")
OWN_SIZE = "model.num_classes: null, data.image_size: null"
SIZES = {"vit_b_16": "model.num_classes: 10, data.image_size: 32"}
ENCODER = "d_model: 32, num_layers: 1, num_heads: 2, d_ff: 64"
DECODER = f"{ENCODER}, num_kv_heads: 1, seq_len: 12, vocab_size: 50"

MODELS = {
    "simple_cnn": ("{}", 1_147_466, None, 1),
    "lenet5": ("{}", 61_706, None, 1),
    "resnet": ("{}", 11_181_642, None, 1),
    # 3·4·4·32 + 32 of the patches, 32 and 65·32 of class token and positions, a layer, a norm, 33·10.
    "vit_b_16": (f"{{{ENCODER}, patch_size: 4}}", 1_568 + 32 + 2_080 + 8_544 + 64 + 330, None, 1),
    # A layer: 3_168 + 1_056 + 2_112 + 2_080 + 128 = 8,544.
    "transformer": (f"{{{ENCODER}, seq_len: 12, vocab_size: 50}}", 1_600 + 8_544 + 1_650, None, 12),
    # A layer: 2·1_024 + 1_024 + 3·32·64 + 64 = 9,280; the embedding, shared with the head; a norm.
    "decoder": (f"{{{DECODER}}}", 1_600 + 9_280 + 32, None, 12),
    # Four experts of 6,144 instead of one, two of them for each token, and a router of 128.
    "moe_decoder": (
        f"{{{DECODER}, num_experts: 4}}",
        1_600 + 9_280 + 3 * 6_144 + 128 + 32,
        1_600 + 9_280 + 6_144 + 128 + 32,
        12,
    ),
}


@pytest.fixture(scope="module")
def every_model(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], CaseRecords]:
    """Run all of them as one sweep, whose launches are forked from a process that has imported torch."""
    place = tmp_path_factory.mktemp("models")
    points = [
        f"{{kind: {kind}, model.name: {name}, model.options: {options}, {SIZES.get(name, OWN_SIZE)}}}"
        for name, (options, *_) in MODELS.items()
        for kind in KINDS
    ]
    words = (*TINY, *STEPS, "--run.start=fork", f"--matrix.include=[{', '.join(points)}]")
    result = gpuproof("run", "quick", *words, "--run.run_id=m", cwd=place)
    assert result.returncode in MEASURED, result.stdout + result.stderr
    found: dict[tuple[str, str], CaseRecords] = {}
    for records in run_directory(place, "m").cases():
        assert records.status == "done", records.primary_failure
        assert isinstance(records.case.work, ModelWork)
        kind = "training" if isinstance(records.case.work, TrainingWork) else "inference"
        found[records.case.work.model.name, kind] = records
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MODELS)
def test_every_model_runs(name: str, kind: str, every_model: Mapping[tuple[str, str], CaseRecords]) -> None:
    _, parameters, active, items_per_sample = MODELS[name]
    records = every_model[name, kind]
    (setup,), (window,), (end,) = records.of(Setup), records.of(Window), records.of(RankResult)
    assert (setup.num_parameters, setup.num_active_parameters) == (parameters, active)
    assert (setup.item, setup.items_per_sample) == (
        "tokens" if items_per_sample > 1 else "samples",
        items_per_sample,
    )
    assert setup.items_per_step == window.items == 2 * items_per_sample
    assert setup.flops_per_step is not None
    assert setup.flops_per_step > 0
    assert (end.last_loss is not None) == (kind == "training")
    without_a_cache = [note for note in setup.notes if "no key-value cache" in note]
    assert bool(without_a_cache) == (kind == "inference" and setup.item == "tokens")


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run a decoder for 4 steps of 3 sequences, accumulated twice, of 12 tokens; epochs have 12 sequences."""
    place = tmp_path_factory.mktemp("language")
    result = gpuproof(
        *("run", "quick", *TINY, "--model.name=decoder", f"--model.options={{{DECODER}}}"),
        *("--data.batch_size=3", "--distributed.gradient_accumulation_steps=2", "--run.run_id=l"),
        *("--benchmark.measure_steps=4", "--data.samples_per_epoch=12", "--benchmark.evaluate_after=true"),
        cwd=place,
    )
    assert result.returncode in MEASURED, result.stdout + result.stderr
    (place / "stdout.txt").write_text(result.stdout)
    return place


def test_rates_count_tokens_batches_and_epochs_count_sequences(language: Path) -> None:
    root = run_directory(language, "l").root
    summary = json.loads((root / "run_summary.json").read_text())
    assert (summary["effective_batch_size"], summary["total_samples"]) == (6, 24)
    assert (summary["item"], summary["total_items"]) == ("tokens", 24 * 12)
    measured_s = summary["total_measured_time_s"]
    assert summary["throughput_items_per_s"] == pytest.approx(24 * 12 / measured_s)
    assert summary["throughput_samples_per_s"] == pytest.approx(24 / measured_s)
    epochs = [json.loads(line) for line in (root / "metrics_epoch.jsonl").read_text().splitlines()]
    assert [(row["measured_steps"], row["measured_samples"]) for row in epochs] == [(2, 12), (2, 12)]
    with (root / "summary.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["effective_batch_size"], row["measured_samples"], row["measured_items"]) == ("6", "24", "288")


def test_the_report_says_tokens_and_what_a_batch_is(language: Path) -> None:
    said = " ".join((language / "stdout.txt").read_text().split())
    assert "tokens/s" in said
    assert "batch 6 × 12 tokens" in said
    assert "model.num_classes" in said
    assert "the vocabulary is used instead" in said


def test_accuracy_of_a_language_model_is_over_its_tokens(language: Path) -> None:
    records = only_case(run_directory(language, "l"))
    (evaluation,), (setup,) = records.of(Evaluation), records.of(Setup)
    assert evaluation.samples == setup.pool_samples
    assert evaluation.accuracy is not None
    # Random tokens are guessed one time in fifty; counted by sequence it would be twelve times that.
    assert evaluation.accuracy == pytest.approx(1 / 50, abs=0.02)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--model.name=decoder", "--model.options={preset: 7b}"],
            "model.options.preset: expected '10m', '100m', '350m', '1.1b', '3.2b' or '8b'. "
            "Options of decoder: seq_len, vocab_size",
        ),
        (
            ["--model.name=transformer", "--model.options={num_heads: 3}"],
            "model.options: d_model 1024 is not divisible into 3 heads. Options of transformer: d_model",
        ),
        (
            ["--model.name=decoder", "--data.name=digits"],
            "data.name: decoder expects tokens, but digits are images",
        ),
        (
            ["--model.name=lenet5", "--data.name=CIFAR100", "--data.path=.", "--model.num_classes=100"],
            "data.name: CIFAR100 are images with 3 channels, but lenet5 expects 1. "
            "Set model.options.channels=3 if the model has it, or use another",
        ),
        (
            ["--model.name=resnet", "--data.name=CIFAR100", "--data.path=.", "--model.num_classes=null"],
            "model.num_classes: CIFAR100 has 100 classes, but resnet has 10 by default. "
            "Set model.num_classes to 100",
        ),
        (
            ["--model.name=vit_b_16", "--data.image_size=100"],
            "data.image_size: 100 pixels are not divisible into patches of 16. Use a multiple of 16",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as refused:
        cli.main(["run", "quick", *TINY, *words], standalone_mode=False)
    assert message in " ".join(str(refused.value).split())
    assert not list(tmp_path.iterdir())


def test_lenet_takes_the_digits(tmp_path: Path) -> None:
    words = ("--model.name=lenet5", "--data.name=digits", "--data.image_size=null", "--run.run_id=d")
    result = gpuproof("run", "quick", *TINY, *STEPS, *words, cwd=tmp_path)
    assert result.returncode in MEASURED, result.stdout + result.stderr
    (setup,) = only_case(run_directory(tmp_path, "d")).of(Setup)
    assert setup.num_parameters == 61_706
