"""What a machine has, what will be missing, and what to do: the checks behind `gpuproof doctor`.

In: the facts that `python -m gpuproof.worker probe` prints. Out: one line a check. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gpuproof import units

Facts = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of a diagnosis."""

    name: str
    status: Literal["ok", "limited", "missing"]
    """`limited`: works, with less than there could be. `missing`: nothing can be measured without it."""
    found: str
    next_step: str | None = None


def diagnose(facts: Facts) -> tuple[Check, ...]:
    """Check a machine's facts."""
    checks = (
        _python,
        _torch,
        _processor,
        _accelerators,
        _cuda,
        _nccl,
        _device_readings,
        _host_readings,
        _compiler,
    )
    return tuple(check for rule in checks if (check := rule(facts)) is not None)


def _python(facts: Facts) -> Check:
    return Check(name="Python", status="ok", found=f"{facts['python']} on {facts['os']}")


def _torch(facts: Facts) -> Check:
    if facts.get("torch"):
        return Check(name="PyTorch", status="ok", found=facts["torch"])
    return Check(
        name="PyTorch",
        status="missing",
        found=f"cannot be imported by {facts['executable']} ({facts.get('torch_missing')})",
        next_step="pip install torch, into the environment that gpuproof runs in",
    )


def _processor(facts: Facts) -> Check | None:
    cpu = facts.get("cpu")
    if cpu is None:
        return None
    memory = units.memory(facts.get("memory_total_bytes"))
    found = (
        f"{cpu['name'] or 'unknown processor'}, {cpu['usable_cpus'] or cpu['logical_cpus']} usable, {memory}"
    )
    if cpu["governor"] not in (None, "performance"):
        return Check(
            name="processor",
            status="limited",
            found=f"{found}, frequency governor {cpu['governor']}",
            next_step="Set the governor to performance for steady step times",
        )
    return Check(name="processor", status="ok", found=found)


def _accelerators(facts: Facts) -> Check:
    devices = facts["accelerators"]["devices"]
    if devices:
        return Check(name="accelerators", status="ok", found="; ".join(device["name"] for device in devices))
    reasons = "; ".join(f"{vendor}: {reason}" for vendor, reason in facts["accelerators"]["absent"].items())
    return Check(
        name="accelerators",
        status="limited",
        found=f"none ({reasons})",
        next_step="Runs measure the CPU; install the vendor's driver to measure a GPU",
    )


def _cuda(facts: Facts) -> Check | None:
    if not facts.get("torch"):
        return None
    seen = facts["devices"]
    if seen:
        return Check(
            name="ROCm" if facts["torch_hip"] else "CUDA",
            status="ok",
            found=f"{facts['torch_cuda'] or facts['torch_hip']}, torch sees {len(seen)} "
            f"{'device' if len(seen) == 1 else 'devices'}",
        )
    if not facts["accelerators"]["devices"]:
        return Check(
            name="CUDA", status="limited", found="torch sees no device; gloo on the CPU will be used"
        )
    build = facts["torch_cuda"] or facts["torch_hip"]
    return Check(
        name="CUDA",
        status="limited",
        found=f"the driver lists devices and torch {facts['torch']} sees none",
        next_step="Look at CUDA_VISIBLE_DEVICES and the driver's version"
        if build
        else "This torch is built for the CPU only: install the build for your driver",
    )


def _nccl(facts: Facts) -> Check | None:
    if not facts.get("devices"):
        return None
    if facts["nccl"]:
        return Check(name="NCCL", status="ok", found=facts["nccl"])
    return Check(
        name="NCCL", status="limited", found="not in this torch", next_step="Several ranks will use gloo"
    )


def _device_readings(facts: Facts) -> Check | None:
    nvidia = any(device["vendor"] == "nvidia" for device in facts["accelerators"]["devices"])
    if facts["modules"]["pynvml"] or not nvidia:
        return None
    return Check(
        name="GPU readings",
        status="limited",
        found="nvidia-ml-py is not installed",
        next_step="pip install nvidia-ml-py, to see clocks, power, temperature and other users",
    )


def _host_readings(facts: Facts) -> Check:
    if facts["modules"]["psutil"]:
        return Check(name="host readings", status="ok", found="psutil")
    return Check(
        name="host readings",
        status="limited",
        found="psutil is not installed; /proc is read instead",
        next_step="pip install psutil, for readings on systems without /proc",
    )


def _compiler(facts: Facts) -> Check:
    if facts["compiler"]:
        return Check(name="C++ compiler", status="ok", found=facts["compiler"])
    return Check(
        name="C++ compiler",
        status="limited",
        found="none",
        next_step="training.compile.enabled needs one on a CPU (apt-get install g++)",
    )
