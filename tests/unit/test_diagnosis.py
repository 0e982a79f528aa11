"""The doctor's rules, on facts as the probe prints them; every WARN and FAIL says what to do."""

from __future__ import annotations

from typing import Any

import pytest

from gpuproof.doctor import host
from gpuproof.records.outcome import Judged, Outcome
from gpuproof.verdict.check import ask, checks_in
from gpuproof.verdict.facts import FleetFacts

H200 = {"name": "NVIDIA H200", "vendor": "nvidia"}
UNDRIVEN = {"vendor": "nvidia", "pci_bus_id": "0000:41:00.0"}
BARE: dict[str, Any] = {
    "executable": "/usr/bin/python3",
    "python": "3.12.1",
    "os": "Linux",
    "torch": None,
    "torch_missing": "No module named 'torch'",
    "modules": {"psutil": False, "pynvml": False},
    "compiler": None,
    "accelerators": {"devices": [], "absent": {"nvidia": "no driver"}},
}
COMPLETE: dict[str, Any] = {
    **BARE,
    "torch": "2.6.0",
    "torch_cuda": "12.4",
    "torch_hip": None,
    "nccl": "2.21.5",
    "devices": [{"index": 0}, {"index": 1}],
    "modules": {"psutil": True, "pynvml": True},
    "compiler": "/usr/bin/c++",
    "cpu": {"name": "EPYC", "logical_cpus": 8, "usable_cpus": 4, "governor": "performance"},
    "memory_total_bytes": 64 * 2**30,
    "accelerators": {"devices": [H200, H200], "absent": {}},
}


def judged(facts: dict[str, Any]) -> list[Judged]:
    return ask(checks_in(host), FleetFacts(hosts={"": facts}))


def checks(**changes: Any) -> dict[str, Outcome]:
    return {item.name: item.outcome for item in judged({**COMPLETE, **changes})}


def test_a_complete_machine_passes_every_check() -> None:
    found = checks()
    assert {check.status for check in found.values()} == {"PASS"}
    assert found["processor"].measured == "EPYC, 4 usable, 64.0 GiB"
    assert found["CUDA"].measured == "12.4, torch sees 2 devices"
    assert checks(devices=[{"index": 0}])["CUDA"].measured == "12.4, torch sees 1 device"
    assert found["accelerators"].measured == "NVIDIA H200; NVIDIA H200"


def test_gpus_that_were_granted_and_are_not_seen_are_told() -> None:
    grant = {"number": 2, "source": "SLURM_JOB_GPUS=0,1"}
    statuses = {n: checks(granted_gpus=grant, devices=[{"index": i} for i in range(n)]) for n in range(3)}
    assert [statuses[n]["granted GPUs"].status for n in range(3)] == ["FAIL", "WARN", "PASS"]
    assert statuses[0]["granted GPUs"].measured == "torch sees 0 of 2 (SLURM_JOB_GPUS=0,1)"


def test_without_torch_nothing_can_be_measured() -> None:
    found = {item.name: item.outcome for item in judged(BARE)}
    assert found["PyTorch"].status == "FAIL"
    assert "No module named 'torch'" in (found["PyTorch"].measured or "")
    assert [name for name, check in found.items() if check.status == "FAIL"] == ["PyTorch"]
    assert "CUDA" not in found


@pytest.mark.parametrize(
    ("changes", "name", "expected"),
    [
        (
            {"accelerators": {**BARE["accelerators"], "undriven": [UNDRIVEN]}},
            "accelerators",
            "vendor's driver",
        ),
        ({"devices": []}, "CUDA", "CUDA_VISIBLE_DEVICES"),
        ({"devices": [], "torch_cuda": None}, "CUDA", "built for the CPU only"),
        ({"torch": "2.3.1+cu118"}, "PyTorch", "pip install 'torch>=2.4'"),
        ({"nccl": None}, "NCCL", "build of torch that includes it"),
        ({"modules": {"psutil": True, "pynvml": False}}, "GPU readings", "pip install nvidia-ml-py"),
        ({"modules": {"psutil": False, "pynvml": True}}, "host readings", "pip install psutil"),
        ({"compiler": None}, "C++ compiler", "g++"),
    ],
)
def test_what_is_lacking_is_named_with_the_remedy(changes: dict[str, Any], name: str, expected: str) -> None:
    found = checks(**changes)
    assert found[name].status == "WARN"
    assert expected in (found[name].next_step or "")


def test_a_machine_without_a_gpu_works_on_its_processor() -> None:
    found = checks(accelerators=BARE["accelerators"], devices=[])
    assert found["accelerators"].status == "PASS"
    assert found["accelerators"].measured == "no GPU found; runs use the CPU (nvidia: no driver)"
    assert found["CUDA"].status == "NOT-APPLICABLE"
    assert found["CUDA"].reason == "torch sees no device; gloo on the CPU will be used"
    assert "NCCL" not in found


def test_amd_devices_need_no_nvidia_library() -> None:
    amd = {"devices": [{"name": "MI300X", "vendor": "amd"}], "absent": {}}
    lacking = {"psutil": True, "pynvml": False}
    found = checks(accelerators=amd, modules=lacking, torch_cuda=None, torch_hip="6.2")
    assert "GPU readings" not in found
    assert found["ROCm"].measured == "6.2, torch sees 2 devices"


def test_a_processor_that_is_not_known_is_left_out() -> None:
    assert "processor" not in checks(cpu=None)


@pytest.mark.parametrize(
    ("python", "status"), [("3.9.18", "FAIL"), ("3.10.0", "PASS"), ("3.13.0rc1", "PASS")]
)
def test_the_python_of_the_ranks(python: str, status: str) -> None:
    assert checks(python=python)["Python"].status == status
