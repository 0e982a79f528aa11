"""What a validation of this machine takes, and with which code it ends where GPUs are not there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpuproof.base.errors import EnvironmentUnfitError, ExitCode
from gpuproof.cli.gates.counts import MissingGpusError, device_words
from gpuproof.cli.init import gate_script, wrapper_files
from gpuproof.cli.main import cli
from gpuproof.launchers.registry import HostChoice
from running import clean_environment, gpuproof


def words(number: int, **options: Any) -> dict[str, Any]:
    """Ask for this machine with so many devices of the type that is asked for."""
    names = ("device", "devices", "nproc", "allow_cpu", "expected_gpus")
    given = {**dict.fromkeys(names), "overrides": [], **options}
    return device_words(given, HostChoice(), lambda _: number, recipe="validate-quick")


@pytest.fixture(autouse=True)
def nothing_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GPUS_ON_NODE", "GPUPROOF_GRANTED_GPUS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("number", "options", "expected"),
    [
        (2, {}, {"distributed.nproc": 2}),
        (2, {"device": "simgpu"}, {"distributed.nproc": 2}),  # all of them, and not the first alone
        (2, {"device": "simgpu", "nproc": "1"}, {}),
        (2, {"devices": "1"}, {}),
        (0, {"allow_cpu": True}, {"distributed.device": "cpu", "distributed.nproc": 2}),
        (2, {"expected_gpus": "8"}, {"distributed.nproc": 2}),  # it is measured, and fails by its count
    ],
)
def test_all_that_is_there_is_taken(number: int, options: dict[str, Any], expected: dict[str, Any]) -> None:
    assert words(number, **options) == expected


def test_all_devices_that_are_named_are_taken(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.yaml"
    hosts.write_text("hosts:\n  - {host: a}\n", encoding="utf-8")
    asked = [
        "validate",
        "--deployment-file",
        str(hosts),
        "--dry-run",
        "--verbose",
        "--devices=0,5",
        "--mode=nccl",
    ]
    both = CliRunner().invoke(cli, asked)
    assert (both.exit_code, "--nproc-per-node=2" in both.output) == (0, True), both.output
    one = CliRunner().invoke(cli, [*asked, "--nproc=1"])
    assert "2 devices are listed, but only 1 of them would be used" in str(one.exception)


@pytest.mark.parametrize(
    ("number", "options"),
    [(0, {}), (0, {"device": "cuda", "allow_cpu": True}), (0, {"device": "simgpu"}), (2, {"devices": "0,2"})],
)
def test_what_was_named_and_is_not_there_is_no_failure_of_the_host(
    number: int, options: dict[str, Any]
) -> None:
    with pytest.raises(
        EnvironmentUnfitError,
        match=r"finds no usable GPU here|there is no \w+ device here|device 2 does not exist",
    ):
        words(number, **options)


@pytest.mark.parametrize(
    ("number", "options"),
    [
        (0, {"expected_gpus": "2"}),
        (0, {"sku": "p5.48xlarge"}),
        (0, {"overrides": ["--validate.expected_gpus=2"]}),
        (0, {"expected_gpus": "2", "device": "cuda", "allow_cpu": True}),
        (2, {"expected_gpus": "8", "devices": "7"}),
    ],
)
def test_what_was_expected_and_is_not_there_fails(number: int, options: dict[str, Any]) -> None:
    with pytest.raises(MissingGpusError, match=f"{number} GPUs visible, expected"):
        words(number, **options)


def test_what_was_granted_and_is_not_there_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "2")
    with pytest.raises(MissingGpusError, match=r"expected 2 \(SLURM_GPUS_ON_NODE=2\)"):
        words(0)


@pytest.mark.parametrize(
    ("variables", "code", "line"),
    [
        (
            {"SLURM_JOB_GPUS": "0,1", "CUDA_VISIBLE_DEVICES": ""},
            ExitCode.FAILED,
            "gpuproof: NOT-READY: [node_problem] 0 GPUs visible, expected 2 (SLURM_JOB_GPUS=0,1).",
        ),
        (
            {"GPUPROOF_FAKE_DEVICES": "2:hang_open", "SLURM_JOB_GPUS": "0,1"},
            ExitCode.UNFIT_ENVIRONMENT,
            "gpuproof: could not judge: the driver of device 0, device 1 does not respond.",
        ),
    ],
)
def test_a_gate_fails_where_a_job_sees_none_of_its_gpus_and_not_where_a_driver_is_silent(
    variables: dict[str, str], code: ExitCode, line: str, tmp_path: Path
) -> None:
    words = ("validate", "--prolog", "--time-budget", "30m")
    ended = gpuproof(*words, cwd=tmp_path, environment=clean_environment(**variables))
    assert (ended.returncode, ended.stdout.startswith(line)) == (code, True), ended.stdout + ended.stderr


def test_the_init_container_tells_the_gate_what_the_pod_was_granted() -> None:
    script = gate_script("kubernetes-init", command=sys.executable, options=(), fail_closed=False)
    text = wrapper_files("kubernetes-init", script, image="i", gpus=4)["gpuproof-kubernetes-init.yaml"]
    assert 'GPUPROOF_GRANTED_GPUS, value: "4 nvidia.com/gpu of the pod\'s limits"' in text
