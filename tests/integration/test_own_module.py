"""`python:package.module:Class`: a module of one's own, run by the real command, or refused in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuproof.errors import ExitCode
from gpuproof.records.run import Failure, RankResult, Setup
from running import TINY, clean_environment, gpuproof, only_case, run_directory

MEASURED = (ExitCode.DONE, ExitCode.INCONCLUSIVE)
"""A window of a few short steps may be judged INVALID; here its records matter, not its figures."""

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
    folder = tmp_path / "my models"
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
    assert "a step, counted by torch" in " ".join(result.stdout.split())
    records = only_case(run_directory(tmp_path, "o"))
    (setup,) = records.of(Setup)
    assert setup.num_parameters == 5 * 27 + 5 + 5 * 10 + 10
    # 6·6 places of 27 products for each of 5 channels, and 50; in training the first layer has one gradient.
    per_sample = {"training": 2 * (2 * 36 * 135 + 3 * 50), "inference": 2 * (36 * 135 + 50)}[kind]
    assert (setup.flops_per_step, setup.flops_per_step_counted) == (None, 8 * per_sample)
    assert isinstance(records.records[-1], RankResult)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "python:own_models:Probe",
            "{extra: 1}",
            "maps images (2, 3, 8, 8) to (2, 11), and not to scores (2, 10)",
        ),
        ("python:own_models:Absent", "{}", "own_models:Absent cannot be imported: "),
        ("python:absent_models:Probe", "{}", "absent_models:Probe cannot be imported: No module named"),
        ("python:own_models:not_a_module", "{}", "makes a int, and no torch.nn.Module"),
    ],
)
def test_what_the_worker_cannot_run_ends_as_a_failure_in_words(
    name: str, options: str, message: str, environment: dict[str, str], tmp_path: Path
) -> None:
    result = gpuproof(*words(name, options), cwd=tmp_path, environment=environment)
    assert result.returncode == 3, result.stdout + result.stderr
    (failure,) = only_case(run_directory(tmp_path, "o")).of(Failure)
    assert failure.message.startswith("model.name: ")
    assert message in failure.message
    assert failure.traceback is None


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("python:own_models", "{}", "model.name: 'python:own_models' does not name a class. Write python:"),
        ("python:os;evil:Class", "{}", "model.name: 'python:os;evil:Class' does not name a class"),
        ("python:a.b:C", "{num_classes: 3}", "model.options.num_classes: the number of classes has a key"),
    ],
)
def test_what_names_no_class_is_refused_before_anything_runs(
    name: str, options: str, message: str, tmp_path: Path
) -> None:
    result = gpuproof(*words(name, options), cwd=tmp_path)
    assert result.returncode == 2
    assert message in " ".join(result.stderr.split())
