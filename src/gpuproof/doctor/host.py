"""What a machine has, what will be missing, and what to do: the checks behind `gpuproof doctor`.

In: the facts that `python -m gpuproof.worker probe` prints. Out: an outcome a check. FAIL: nothing can be
measured here. WARN: it works, with less than there could be. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gpuproof import units
from gpuproof.records.outcome import Judged, Outcome

Facts = Mapping[str, Any]

REQUIREMENTS = "README.md: what gpuproof needs"
GOVERNOR_PAGE = "https://docs.kernel.org/admin-guide/pm/cpufreq.html#generic-scaling-governors"
DEVICES_PAGE = "https://docs.pytorch.org/docs/stable/cuda.html"
DISTRIBUTED_PAGE = "https://docs.pytorch.org/docs/stable/distributed.html#backends"
NVML_PAGE = "https://docs.nvidia.com/deploy/nvml-api/"
PSUTIL_PAGE = "https://psutil.readthedocs.io/"
COMPILE_PAGE = "https://docs.pytorch.org/docs/stable/torch.compiler.html"


def judge_machine(facts: Facts) -> list[Judged]:
    """Judge a machine's facts; what cannot be asked of it is left out."""
    found = {
        "Python": _python(facts),
        "PyTorch": _torch(facts),
        "processor": _processor(facts),
        "accelerators": _accelerators(facts),
        "ROCm" if facts.get("devices") and facts["torch_hip"] else "CUDA": _cuda(facts),
        "NCCL": _nccl(facts),
        "GPU readings": _device_readings(facts),
        "host readings": _host_readings(facts),
        "C++ compiler": _compiler(facts),
    }
    return [Judged(name=name, outcome=outcome) for name, outcome in found.items() if outcome is not None]


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


def _python(facts: Facts) -> Outcome:
    return Outcome.passed_if(
        _version(facts["python"]) >= (3, 10),
        measured=f"{facts['python']} on {facts['os']}",
        expected="3.10 or newer",
        source=REQUIREMENTS,
        next_step="Give a newer one with --python, or install one",
    )


def _torch(facts: Facts) -> Outcome:
    version, lacking = facts.get("torch"), facts.get("torch_missing")
    return Outcome.passed_if(
        version is not None and _version(version) >= (2, 4),
        otherwise="WARN" if version else "FAIL",
        measured=version or f"cannot be imported by {facts['executable']} ({lacking})",
        expected="2.4 or newer",
        source=REQUIREMENTS,
        next_step="pip install 'torch>=2.4', into the environment that gpuproof runs in",
    )


def _processor(facts: Facts) -> Outcome | None:
    cpu = facts.get("cpu")
    if cpu is None:
        return None
    num_cpus = cpu["usable_cpus"] or cpu["logical_cpus"]
    memory = units.memory(facts.get("memory_total_bytes"))
    steady = cpu["governor"] in (None, "performance")
    governor = "" if steady else f", frequency governor {cpu['governor']}"
    return Outcome.passed_if(
        steady,
        otherwise="WARN",
        measured=f"{cpu['name'] or 'unknown processor'}, {num_cpus} usable, {memory}{governor}",
        expected="no frequency governor that changes the clock while steps are timed",
        source=GOVERNOR_PAGE,
        next_step="Set the governor to performance for steady step times",
        responsible="administrator",
    )


def _accelerators(facts: Facts) -> Outcome:
    names = [device["name"] for device in facts["accelerators"]["devices"]]
    reasons = "; ".join(f"{vendor}: {reason}" for vendor, reason in facts["accelerators"]["absent"].items())
    return Outcome.passed_if(
        bool(names),
        otherwise="WARN",
        measured="; ".join(names) or f"none ({reasons}): runs measure the CPU",
        expected="one at least that its vendor's driver lists",
        source=REQUIREMENTS,
        next_step="Install the vendor's driver to measure a GPU",
        responsible="administrator",
    )


def _cuda(facts: Facts) -> Outcome | None:
    if not facts.get("torch"):
        return None
    num_seen = len(facts["devices"])
    if not num_seen and not facts["accelerators"]["devices"]:
        return Outcome(status="NOT-APPLICABLE", reason="torch sees no device; gloo on the CPU will be used")
    build = facts["torch_cuda"] or facts["torch_hip"]
    seen = f"{build}, torch sees {num_seen} {'device' if num_seen == 1 else 'devices'}"
    return Outcome.passed_if(
        num_seen > 0,
        otherwise="WARN",
        measured=seen if num_seen else f"the driver lists devices and torch {facts['torch']} sees none",
        expected="a build of torch that sees the driver's devices",
        source=DEVICES_PAGE,
        next_step="Look at CUDA_VISIBLE_DEVICES and the driver's version"
        if build
        else "This torch is built for the CPU only: install the build for your driver",
    )


def _nccl(facts: Facts) -> Outcome | None:
    if not facts.get("devices"):
        return None
    return Outcome.passed_if(
        bool(facts["nccl"]),
        otherwise="WARN",
        measured=facts["nccl"] or "not in this torch: several ranks will use gloo",
        expected="in torch, for ranks on GPUs",
        source=DISTRIBUTED_PAGE,
        next_step="Install a build of torch that has it",
    )


def _device_readings(facts: Facts) -> Outcome | None:
    nvidia = any(device["vendor"] == "nvidia" for device in facts["accelerators"]["devices"])
    if facts["modules"]["pynvml"] or not nvidia:
        return None
    return Outcome.passed_if(
        False,
        otherwise="WARN",
        measured="nvidia-ml-py is not installed",
        expected="installed, to see clocks, power, temperature and other users",
        source=NVML_PAGE,
        next_step="pip install nvidia-ml-py",
    )


def _host_readings(facts: Facts) -> Outcome:
    there = facts["modules"]["psutil"]
    return Outcome.passed_if(
        there,
        otherwise="WARN",
        measured="psutil" if there else "psutil is not installed; /proc is read instead",
        expected="psutil, for readings on systems without /proc",
        source=PSUTIL_PAGE,
        next_step="pip install psutil",
    )


def _compiler(facts: Facts) -> Outcome:
    return Outcome.passed_if(
        bool(facts["compiler"]),
        otherwise="WARN",
        measured=facts["compiler"] or "none",
        expected="one, for training.compile.enabled on a CPU",
        source=COMPILE_PAGE,
        next_step="apt-get install g++, or your system's package of a C++ compiler",
        responsible="administrator",
    )
