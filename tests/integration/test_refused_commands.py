"""A command that is refused leaves nothing behind: no folder of a run, no file, nothing to clean up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuproof.base.errors import ExitCode
from running import clean_environment, gpuproof

NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
REFUSED = {
    "run quick --model.name=medum": ExitCode.USAGE,
    "run quick --data.batch_size=0": ExitCode.USAGE,
    "run quick --devices 0,1 --distributed.device=cuda": ExitCode.USAGE,
    "run nowhere.yaml": ExitCode.USAGE,
    "run quick --data.name=cifar100 --data.path=nowhere --model.name=resnet18": ExitCode.USAGE,
    "run collectives --nproc 1": ExitCode.USAGE,
    "run quick --on ssh:nowhere.json": ExitCode.USAGE,
    "load --deployment-file nowhere.json": ExitCode.USAGE,
    "load --num-workers 4 --loader --device tpu": ExitCode.USAGE,
    "scale --gpu-mode multi": ExitCode.UNFIT_ENVIRONMENT,
    "scale --model medum": ExitCode.USAGE,
    "validate": ExitCode.UNFIT_ENVIRONMENT,
    "validate --allow-cpu --model medum": ExitCode.USAGE,
    "validate --allow-cpu --data-mode imagenet --data-dir nowhere": ExitCode.USAGE,
    "validate --baseline nowhere": ExitCode.USAGE,
    "matrix nowhere.yaml": ExitCode.USAGE,
    "matrix quick.yaml": ExitCode.USAGE,
    "compare --ab quick": ExitCode.USAGE,
    "compare --ab quick --b.model.name=medum": ExitCode.USAGE,
    "selftest nothing-like-it": ExitCode.USAGE,
    "monitor exec --devices 99 -- true": ExitCode.USAGE,
    "monitor exec --compare-with nowhere* -- true": ExitCode.USAGE,
    "monitor exec --model medum -- --optimizer adamw": ExitCode.USAGE,
    "monitor exec --model lenet5 -- --optimizer": ExitCode.USAGE,
    "run_benchmark.py --model medium --gpu-mode multi --runs 50": 1,
}
"""Words of a command → its exit code, on a machine without a GPU."""


@pytest.mark.parametrize(("words", "code"), REFUSED.items(), ids=REFUSED)
def test_it_leaves_nothing(words: str, code: int, tmp_path: Path) -> None:
    refused = gpuproof(*words.split(), cwd=tmp_path, environment=clean_environment(**NO_GPU))
    assert refused.returncode == code, refused.stdout + refused.stderr
    assert "Traceback" not in refused.stderr
    assert list(tmp_path.rglob("*")) == []


def test_every_command_that_measures_is_in_the_table() -> None:
    kinds = ("run", "load", "scale", "validate", "matrix", "compare --ab", "selftest", "monitor exec")
    assert {kind for kind in kinds if any(words.startswith(kind) for words in REFUSED)} == set(kinds)


@pytest.mark.parametrize(
    "words",
    [
        "run quick --distributed.device=cuda",
        "load --device cuda",
        "compare --ab quick --b.data.batch_size=8 --distributed.device=cuda",
    ],
)
def test_what_a_launch_finds_missing_is_a_run_that_failed_and_its_record_is_kept(
    words: str, tmp_path: Path
) -> None:
    ended = gpuproof(*words.split(), cwd=tmp_path, environment=clean_environment(**NO_GPU))
    assert ended.returncode == ExitCode.UNFIT_ENVIRONMENT, ended.stdout + ended.stderr
    (file,) = tmp_path.glob("results/*/run_*/result.json")
    result = json.loads(file.read_text())
    assert (result["verdict"], {failure["cause"] for failure in result["failures"]}) == (
        "NOTHING MEASURED",
        {"environment"},
    )
    assert f"gpuproof report {file.parent.relative_to(tmp_path)}" in ended.stdout
