"""`python:package.module:Class`: a module of one's own, run by the real command, or refused in words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpuproof.base.errors import UsageError
from gpuproof.cli.main import cli
from gpuproof.records.case import ModelWork
from gpuproof.records.run import Failure, RankResult, Setup
from running import MEASURED, TINY, clean_environment, gpuproof, only_case, run_directory

SOURCE = """
from torch import nn

class Probe(nn.Module):
    def __init__(self, *, num_classes, width=4, extra=0):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, width, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(width, num_classes + extra),
        )

    def forward(self, images):
        return self.layers(images)

def not_a_module(num_classes):
    return num_classes
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return with_own_models(tmp_path)


def with_own_models(place: Path) -> dict[str, str]:
    folder = place / "my models"
    folder.mkdir()
    (folder / "own_models.py").write_text(SOURCE)
    variables = clean_environment()
    path = ":".join(filter(None, (str(folder), variables.get("PYTHONPATH"))))
    return {**variables, "PYTHONPATH": path}


def words(name: str, options: str = "{}") -> list[str]:
    sizes = ["--data.image_size=8", "--model.num_classes=10", "--benchmark.measure_steps=2"]
    return [
        "run",
        "quick",
        *TINY,
        *sizes,
        f"--model.name={name}",
        f"--model.options={options}",
        "--run.run_id=o",
    ]


@pytest.mark.parametrize("kind", ["training", "inference"])
def test_a_module_of_ones_own_runs(kind: str, environment: dict[str, str], tmp_path: Path) -> None:
    asked = words("python:own_models:Probe", "{width: 5}")
    result = gpuproof(*asked, f"--kind={kind}", cwd=tmp_path, environment=environment)
    assert result.returncode in MEASURED, result.stdout + result.stderr
    assert "per step, counted by torch" in " ".join(result.stdout.split())
    records = only_case(run_directory(tmp_path, "o"))
    (setup,) = records.of(Setup)
    assert setup.num_parameters == 5 * 27 + 5 + 5 * 10 + 10
    # 6·6 places of 27 products for each of 5 channels, and 50; in training the first layer has one gradient.
    per_sample = {"training": 2 * (2 * 36 * 135 + 3 * 50), "inference": 2 * (36 * 135 + 50)}[kind]
    assert (setup.flops_per_step, setup.flops_per_step_counted) == (None, 8 * per_sample)
    assert isinstance(records.records[-1], RankResult)


UNFIT: tuple[tuple[str, dict[str, object], str], ...] = (
    (
        "python:own_models:Probe",
        {"extra": 1},
        "maps images (2, 3, 8, 8) to (2, 11), not to scores (2, 10)",
    ),
    ("python:own_models:Absent", {}, "own_models:Absent cannot be imported: "),
    ("python:absent_models:Probe", {}, "absent_models:Probe cannot be imported: No module named"),
    ("python:own_models:not_a_module", {}, "returns int, not a torch.nn.Module"),
)


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Failure]:
    """Run all of them as one sweep, whose launches are forked from a process that has imported torch."""
    place = tmp_path_factory.mktemp("unfit")
    points = [{"model.name": name, "model.options": options} for name, options, _ in UNFIT]
    result = gpuproof(
        *words(UNFIT[0][0]),
        *("--run.start=fork", f"--matrix.include={json.dumps(points)}"),
        cwd=place,
        environment=with_own_models(place),
    )
    assert result.returncode == 3, result.stdout + result.stderr
    failures: dict[str, Failure] = {}
    for records in run_directory(place, "o").cases():
        assert isinstance(records.case.work, ModelWork)
        (failures[records.case.work.model.name],) = records.of(Failure)
    return failures


@pytest.mark.parametrize(("name", "message"), [(name, message) for name, _, message in UNFIT])
def test_what_the_worker_cannot_run_ends_as_a_failure_in_words(
    name: str, message: str, failed: Mapping[str, Failure]
) -> None:
    failure = failed[name]
    assert failure.message.startswith("model.name: ")
    assert message in failure.message
    assert failure.traceback is None


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "python:own_models",
            "{}",
            "model.name: 'python:own_models' is not the name of a class. Write python:",
        ),
        ("python:os;evil:Class", "{}", "model.name: 'python:os;evil:Class' is not the name of a class"),
        (
            "python:a.b:C",
            "{num_classes: 3}",
            "model.options.num_classes: the number of classes has its own key",
        ),
    ],
)
def test_what_names_no_class_is_refused_before_anything_runs(
    name: str, options: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as refused:
        cli.main(words(name, options), standalone_mode=False)
    assert message in " ".join(str(refused.value).split())
    assert not list(tmp_path.iterdir())
